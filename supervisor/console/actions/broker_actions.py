"""Actions on the broker as a whole: settings, the log's level, backups, compactions, and alarms."""
import os
import shlex

from geminga.supervisor.console.actions.action import Actions, Field, Plan, Values, Wrong
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import counted, text, topic_path
from geminga.supervisor.wording import human

actions = Actions()
_SETTINGS = "/admin/v2/brokers/configuration"
_LEVELS = "debug", "info", "warning", "error"
_SECONDS_MAX = 7 * 24 * 3_600


async def _row(ask: Asking, setting: str) -> Values:
    rows = (await ask.get("/ops/v1/configuration"))["rows"]
    for row in rows:
        if row["setting"] == setting:
            found: Values = row
            return found
    raise Wrong(text("action.change-setting.unknown"))


@actions.named("change-setting", "setting", Field("value"))
async def change_setting(ask: Asking, values: Values) -> Plan:
    row, value = await _row(ask, values["setting"]), values["value"].strip()
    return Plan("POST", f"{_SETTINGS}/{ask.quoted(values['setting'])}/{ask.quoted(value)}",
                text("action.change-setting.effect", key=row["key"], before=row["value"]),
                shlex.join(["geminga", "admin", "brokers", "update-dynamic-config", "--config", values["setting"],
                            "--value", value]))


@actions.named("reset-setting", "setting")
async def reset_setting(ask: Asking, values: Values) -> Plan:
    row = await _row(ask, values["setting"])
    return Plan("DELETE", f"{_SETTINGS}/{ask.quoted(values['setting'])}",
                text("action.reset-setting.effect", key=row["key"], before=row["value"]),
                shlex.join(["geminga", "admin", "brokers", "delete-dynamic-config", "--config", values["setting"]]))


@actions.named("set-log-level", "", Field("level", "choice", "debug", _LEVELS), Field("seconds", "number", "300"),
               Field("topic", is_required=False), Field("client", is_required=False))
async def set_log_level(ask: Asking, values: Values) -> Plan:
    typed = values["seconds"].strip()
    if not typed.isascii() or not typed.isdigit() or not 0 < int(typed) <= _SECONDS_MAX:
        raise Wrong(text("action.set-log-level.wrong_seconds", most=human.count(_SECONDS_MAX)))
    body = {"level": values["level"], "seconds": int(typed),
            **{name: values[name].strip() for name in ("topic", "client") if values[name].strip()}}
    of = [f"--{name} {shlex.quote(str(body[name]))}" for name in ("topic", "client") if name in body]
    return Plan("PUT", "/ops/v1/log-level",
                text("action.set-log-level.effect_some" if of else "action.set-log-level.effect",
                     level=values["level"], length=human.length(int(typed))),
                " ".join(["geminga log level", values["level"], *of, f"--for {typed}s"]), body)


@actions.named("reset-log-level", "")
async def reset_log_level(ask: Asking, values: Values) -> Plan:
    told = await ask.get("/ops/v1/log-level")
    return Plan("DELETE", "/ops/v1/log-level",
                counted("action.reset-log-level.effect", len(told["for_now"]), level=told["level"]),
                "geminga log level --reset")


@actions.named("make-backup", "", Field("folder"), Field("keep", "number", "0"))
async def make_backup(ask: Asking, values: Values) -> Plan:
    folder, keep = values["folder"].strip(), values["keep"].strip()
    if not os.path.isabs(folder):
        raise Wrong(text("action.make-backup.not_absolute"))
    if not keep.isascii() or not keep.isdigit() or len(keep) > 6:
        raise Wrong(text("action.make-backup.wrong_keep"))
    size = human.size((await ask.get("/ops/v1/status"))["loaded"]["stored_bytes"])
    effect = text("action.make-backup.effect", size=size)
    if int(keep):
        effect += " " + counted("action.make-backup.removes", int(keep))
    return Plan("POST", "/ops/v1/backup", effect,
                shlex.join(["geminga", "backup", folder, *(["--keep", keep] if int(keep) else [])]),
                {"folder": folder, "keep": int(keep)})


@actions.named("start-compaction", "", Field("topic"))
async def start_compaction(ask: Asking, values: Values) -> Plan:
    typed = values["topic"].strip()
    full = typed if "://" in typed else f"persistent://{typed if typed.count('/') == 2 else f'public/default/{typed}'}"
    if not full.startswith("persistent://") or full.count("/") != 4:
        raise Wrong(text("action.start-compaction.wrong"))
    rows = (await ask.get(f"/ops/v1/topics/{topic_path(full)}"))["rows"]
    return Plan("PUT", f"/admin/v2/{topic_path(full)}/compaction",
                text("action.start-compaction.effect",
                     size=human.size(sum(row["storage_bytes"] or 0 for row in rows))),
                shlex.join(["geminga", "admin", "topics", "compact", human.short(full)]))


@actions.named("acknowledge-alarm", "alarm")
async def acknowledge_alarm(ask: Asking, values: Values) -> Plan:
    raised = {one["alarm"]: one for one in (await ask.get("/ops/v1/status"))["alarms"]}
    found = raised.get(values["alarm"])
    is_possible = found is not None and found["can_be_seen_to"]
    effect = text("action.acknowledge-alarm.effect") if is_possible else text("action.acknowledge-alarm.over")
    return Plan("POST", f"/ops/v1/alarms/{ask.quoted(values['alarm'])}/seen", effect,
                f"geminga status --seen {shlex.quote(values['alarm'])}", is_possible=is_possible)
