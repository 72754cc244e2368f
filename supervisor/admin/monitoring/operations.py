"""Operations on the broker as a whole: its status, acknowledged alarms, and temporary log levels."""
import asyncio
import os
import time
from dataclasses import asdict
from typing import Any

import psutil
from aiohttp import web

from geminga.proto import names
from geminga.proto.responses import VERSION
from geminga.storage.open_topics.disk_space import refuse_below
from geminga.storage.runtime.log import LEVELS, NAMES, Rule, log
from geminga.supervisor.admin.monitoring.alarms import ALARMS_OF
from geminga.supervisor.admin.monitoring.health import loading, obstacles
from geminga.supervisor.admin.monitoring.stats import Measured, measure
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import (
    CONTROL,
    COUNTERS,
    TOPICS,
    body_of,
    catalogue_of,
    done,
    part_of,
)
from geminga.supervisor.admin.resources.compaction import COMPACTIONS
from geminga.supervisor.configuration import exposure
from geminga.supervisor.host.build import build
from geminga.supervisor.tasks.job_socket import last_report

routes = rights.Routes()
_LEVEL_SECONDS, _LEVEL_SECONDS_MAX = 300, 7 * 24 * 3600
_RULES_MAX = 100
_MEASURE_SECONDS = 1.0       # owners that have not answered by then are left out
_COUNTED = {
    "subscriptions": "subscriptions",
    "producers": "producers",
    "consumers": "consumers",
    "backlog_entries": "backlog",
    "stored_bytes": "storage_bytes",
}
_RATES = {"messages_in": "rate_in", "messages_out": "rate_out",
          "bytes_in": "throughput_in", "bytes_out": "throughput_out"}

_RECENT = "messages_in", "bytes_in", "messages_out", "bytes_out"      # the order in which owners count them


# -- the log

@routes.get("/ops/v1/log-level")
async def level(request: web.Request) -> web.Response:
    """Answer with the level of the log, and its rules."""
    return web.json_response(_level())


def _level() -> dict[str, Any]:
    now = time.monotonic()
    return {
        "level": NAMES[log.configured],
        "for_now": [
            {
                "level": NAMES[rule.level],
                "topic": rule.topic,
                "client": rule.client,
                "seconds_left": round(rule.until - now, 1),
            }
            for rule in log.rules()
        ],
    }


@routes.put("/ops/v1/log-level")
async def set_level(request: web.Request) -> web.Response:
    """Set the log level of a topic, a client or the whole broker for a limited time.

    {"level": "debug", "topic": "...", "client": "10.0.0.7:1234", "seconds": 300}
    """
    asked = await body_of(request)
    if not isinstance(asked, dict) or not set(asked) <= {"level", "topic", "client", "seconds"}:
        raise web.HTTPBadRequest(text="The body is an object with level, and perhaps topic, client and seconds")
    wanted, topic, client, seconds = (asked.get(name, default) for name, default in (
        ("level", ""), ("topic", ""), ("client", ""), ("seconds", _LEVEL_SECONDS)))
    if not isinstance(wanted, str) or wanted not in LEVELS:
        raise web.HTTPBadRequest(text=f"level is one of {', '.join(LEVELS)}")
    if not isinstance(topic, str) or not isinstance(client, str):
        raise web.HTTPBadRequest(text="topic and client are texts")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _LEVEL_SECONDS_MAX:
        raise web.HTTPBadRequest(text=f"seconds is a number above 0 and up to {_LEVEL_SECONDS_MAX}")
    rule = Rule(LEVELS[wanted], time.monotonic() + seconds, str(names.parse(topic)) if topic else "", client)
    others = [one for one in log.rules() if (one.topic, one.client) != (rule.topic, rule.client)]
    _follow(request, [*others, rule][-_RULES_MAX:])
    return web.json_response(_level())


@routes.delete("/ops/v1/log-level")
async def reset_level(request: web.Request) -> web.Response:
    """Restore the configured log level."""
    _follow(request, [])
    return web.json_response(_level())


def _follow(request: web.Request, rules: list[Rule]) -> None:
    """Apply rules of log levels in this process, and have the supervisor pass them to all other processes."""
    log.follow(rules)
    request.app[CONTROL].send(tell={"log": rules})


# -- how the broker is

@routes.get("/ops/v1/status")
async def status(request: web.Request) -> web.Response:
    """Answer with the overview that an operator reads first: processes, alarms, disk, traffic."""
    app, owners = request.app, request.app[OWNERS]
    rows = {who: counters.read() for who, counters in app[COUNTERS].items()}
    measured = await measure(owners, 0, seconds=_MEASURE_SECONDS)
    answered, alarms = [one for one in measured if one is not None], app[ALARMS_OF]
    made = await asyncio.to_thread(build)      # the first call may start git
    began, memory = psutil.Process(os.getppid()).create_time(), alarms.memory
    disk, night = os.statvfs(app[TOPICS].config.data_dir), app[COMPACTIONS].nights.look()
    wrong, stored = obstacles(app), catalogue_of(request).partitions.count()
    opened = sum(row["partitions_open"] for (role, index), row in rows.items()
                 if role == "owner" and measured[index] is not None)
    return web.json_response(
        {
            "version": VERSION,
            "commit": made.commit,
            "committed": made.committed,
            "data_dir": str(app[TOPICS].config.data_dir.resolve()),
            "uptime_seconds": round(time.time() - began),
            "ready": not wrong,
            "loading": loading(app),
            "obstacles": wrong,
            "warnings": list(filter(None, [exposure.warning(app[TOPICS].config)])),
            "alarms": alarms.told(),
            "processes": [
                _process("supervisor", psutil.Process(os.getppid()), 1),
                *(
                    _process(role if role == "admin" else f"{role}-{index}", row["pid"], row["starts"])
                    for (role, index), row in rows.items() if row["starts"]
                ),
            ],
            "connections": sum(row["connections_opened"] - row["connections_closed"] for row in rows.values()),
            # Counted as /ops/v1/topics lists them: each partition, also one that nothing was ever stored in.
            "topics": {"total": catalogue_of(request).topics.total(),
                       "loaded": sum(sum(one.head["loaded"]) for one in answered)},
            "stored_not_loaded": max(0, stored - opened),
            "loaded": {name: int(sum(one.total(column) for one in answered)) for name, column in _COUNTED.items()},
            "rates": _rates(answered),
            "totals": {name: int(sum(one.total(name) for one in answered)) for name in _RATES},
            "cores_busy_seconds": [round(one.user + one.nice + one.system, 2) for one in psutil.cpu_times(percpu=True)],
            "not_measured": [index for index, one in enumerate(measured) if one is None],
            "disk": {"free_bytes": disk.f_bavail * disk.f_frsize, "bytes": disk.f_blocks * disk.f_frsize,
                     "refuse_below_bytes": refuse_below(disk, app[TOPICS].storage)},
            "memory": {"used_bytes": memory.used, "limit_bytes": memory.limit, "of": memory.of},
            "kept": {"topics": sum(row["kept_topics"] for row in rows.values()),
                     "backlogs": sum(row["kept_backlogs"] for row in rows.values()),
                     "bytes": sum(row["kept_bytes"] for row in rows.values())},
            "schedules": {"total": sum(row["schedules"] for row in rows.values()),
                          "waiting": sum(row["schedules_waiting"] for row in rows.values())},
            "standby": alarms.standby.told() if alarms.standby is not None else None,
            "running_night": night and asdict(night),
            "night": _night(request),
            "log": _level(),
        }
    )


def _rates(answered: list[Measured]) -> dict[str, float]:
    """Return messages and bytes a second, over the last seconds.

    Where very many topics have traffic, an owner has rates over the last window only; then these are used.
    """
    recent = [one.head["recent"] for one in answered]
    if None in recent:
        return {name: round(sum(one.total(column) for one in answered), 1) for name, column in _RATES.items()}
    sums = [sum(rates) for rates in zip(*recent, strict=True)] or [0.0] * len(_RECENT)
    return {name: round(rate, 1) for name, rate in zip(_RECENT, sums, strict=True)}


def _process(name: str, process: psutil.Process | int, starts: int) -> dict[str, Any]:
    row = {"process": name, "pid": process if isinstance(process, int) else process.pid,
            "started_again": max(0, starts - 1)}
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        with process.oneshot():
            return row | {"state": process.status(), "uptime_seconds": round(time.time() - process.create_time()),
                           "memory_bytes": process.memory_info().rss,
                           "cpu_seconds": round(sum(process.cpu_times()[:2]), 2)}
    except (psutil.NoSuchProcess, ValueError):
        return row | {"state": "gone", "uptime_seconds": 0, "memory_bytes": 0, "cpu_seconds": 0.0}


def _night(request: web.Request) -> dict[str, Any] | None:
    """Return the report of the last nightly job, None if there was none."""
    report = last_report(request.app[TOPICS].config.data_dir)
    if not report:
        return None
    return {name: report[name] for name in ("status", "error", "ended_ms", "seconds", "last_success_ms")} | {
        name: report["totals"][name] for name in ("compacted", "given_back")}


@routes.post("/ops/v1/alarms/{alarm}/seen")
async def seen(request: web.Request) -> web.Response:
    """Acknowledge an alarm that stays raised until an operator does so."""
    if not request.app[ALARMS_OF].seen_to(part_of(request, "alarm")):
        raise web.HTTPNotFound(text="There is no such alarm, or it is over by itself")
    return done()
