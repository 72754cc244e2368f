"""Actions on schedules: create or change one, pause, resume, try and delete it."""
import time
from typing import Any

from geminga.storage.recurring import timetable
from geminga.storage.recurring.timetable import Timetable, WrongTiming
from geminga.storage.runtime import units
from geminga.supervisor.console.actions import message_actions
from geminga.supervisor.console.actions.action import Actions, Field, Plan, Values, Wrong, command, topic_named
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import text, topic_path
from geminga.supervisor.wording import human

actions = Actions()
_SUBJECT = "topic schedule"
_SHOWN = 3                   # planned times that the dialog names


def _path(values: Values, verb: str = "") -> str:
    return f"/ops/v1/schedules/{topic_path(values['topic'])}/{Asking.quoted(values['schedule'])}{verb}"


def _command(verb: str, values: Values, *more: str) -> str:
    return command("schedule", verb, human.short(values["topic"]), values["schedule"], *more)


def _table_of(told: dict[str, Any]) -> Timetable:
    """Return the timing of a schedule that REST tells."""
    return timetable.read({name: told[name] for name in ("cron", "time_zone", "every") if name in told})


def _next_times(table: Timetable, count: int) -> str:
    now_ms = time.time_ns() // 1_000_000
    return ", ".join(timetable.in_zone(at_ms, table) for at_ms in timetable.first_times(table, now_ms, count))


@actions.named("create-schedule", "", Field("topic"), Field("schedule"),
               Field("timing", "choice", "cron", ("cron", "every")), Field("when"),
               Field("time_zone", default="UTC", is_required=False),
               Field("missed", "choice", timetable.LAST, timetable.MISSED),
               Field("form", "choice", "text", ("text", "value")), Field("payload", "area", is_required=False),
               Field("key", is_required=False), Field("properties", "area", is_required=False),
               Field("paused", "check", is_required=False))
async def create_schedule(ask: Asking, values: Values) -> Plan:
    values = values | {"topic": topic_named(values["topic"]), "schedule": values["schedule"].strip()}
    timing = _timing(values)
    try:
        table = timetable.read(timing)
    except WrongTiming as error:
        raise Wrong(str(error)) from None
    if len(values["payload"]) > message_actions.TEXT_MAX:
        raise Wrong(text("action.create-schedule.too_long"))
    content, _ = await message_actions.content(ask, values["topic"], values)
    message = content | message_actions.about(values)
    if values["paused"] == "true":
        effect = text("action.create-schedule.effect_paused")
    else:
        effect = text("action.create-schedule.effect", times=_next_times(table, _SHOWN))
    if (before := await ask.maybe(_path(values))) is not None:
        effect = text("action.create-schedule.replaces", when=human.schedule(before)) + " " + effect
    return Plan("PUT", _path(values), effect, _set_command(values, message),
                timing | {"paused": values["paused"] == "true", "message": message})


def _timing(values: Values) -> dict[str, Any]:
    """Return the fields of a body that say when.  Raises Wrong."""
    when = values["when"].strip()
    if values["timing"] == "cron":
        return {"cron": when, "time_zone": values["time_zone"].strip() or "UTC", "missed": values["missed"]}
    try:
        return {"every": units.millis(when), "missed": values["missed"]}
    except ValueError as error:
        raise Wrong(str(error)) from None


def _set_command(values: Values, message: dict[str, Any]) -> str:
    when = values["when"].strip()
    options = ["--cron", when, "--time-zone", values["time_zone"].strip() or "UTC"] \
        if values["timing"] == "cron" else ["--every", when]
    options += ["--missed", values["missed"], *message_actions.options_of(message)]
    options += ["--paused"] if values["paused"] == "true" else []
    if "value" in message:
        return _command("set", values, *options, "--value", values["payload"])
    return _command("set", values, *options, *message_actions.as_last(values["payload"]))


@actions.named("pause-schedule", _SUBJECT)
async def pause_schedule(ask: Asking, values: Values) -> Plan:
    told = await ask.get(_path(values))
    effect = text("action.pause-schedule.paused" if told["paused"] else "action.pause-schedule.effect")
    return Plan("POST", _path(values, "/pause"), effect, _command("pause", values), is_possible=not told["paused"])


@actions.named("resume-schedule", _SUBJECT)
async def resume_schedule(ask: Asking, values: Values) -> Plan:
    told = await ask.get(_path(values))
    effect = text("action.resume-schedule.effect", time=_next_times(_table_of(told), 1)) if told["paused"] else \
        text("action.resume-schedule.active")
    return Plan("POST", _path(values, "/resume"), effect, _command("resume", values), is_possible=told["paused"])


@actions.named("try-schedule", _SUBJECT)
async def try_schedule(ask: Asking, values: Values) -> Plan:
    told = await ask.get(_path(values))
    return Plan("POST", _path(values, "/run"),
                text("action.try-schedule.effect", topic=human.short(told["partition"])), _command("run", values))


@actions.named("delete-schedule", _SUBJECT, is_dangerous=True)
async def delete_schedule(ask: Asking, values: Values) -> Plan:
    told = await ask.get(_path(values))
    return Plan("DELETE", _path(values), text("action.delete-schedule.effect", when=human.schedule(told)),
                _command("delete", values))
