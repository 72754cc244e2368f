"""Actions on the broker as a whole: settings, the log's level, backups, compactions, and alarms."""
import os

from geminga.supervisor.console.actions import topic_actions
from geminga.supervisor.console.actions.action import (
    Actions,
    Field,
    Plan,
    Values,
    Wrong,
    command,
    topic_named,
    whole,
)
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import counted, text
from geminga.supervisor.wording import human

actions = Actions()
_SETTINGS = "/admin/v2/brokers/configuration"
_LEVELS = "debug", "info", "warning", "error"
_SECONDS_MAX = 7 * 24 * 3_600


async def _row(ask: Asking, setting: str) -> Values:
    for row in (await ask.get("/ops/v1/configuration"))["rows"]:
        if row["setting"] == setting:
            return dict(row)
    raise Wrong(text("action.change-setting.unknown"))


@actions.named("change-setting", "setting", Field("value"))
async def change_setting(ask: Asking, values: Values) -> Plan:
    row, value = await _row(ask, values["setting"]), values["value"].strip()
    return Plan("POST", f"{_SETTINGS}/{ask.quoted(values['setting'])}/{ask.quoted(value)}",
                text("action.change-setting.effect", key=row["key"], before=row["value"]),
                command("admin", "brokers", "update-dynamic-config", "--config", values["setting"], "--value", value))


@actions.named("reset-setting", "setting")
async def reset_setting(ask: Asking, values: Values) -> Plan:
    row = await _row(ask, values["setting"])
    return Plan("DELETE", f"{_SETTINGS}/{ask.quoted(values['setting'])}",
                text("action.reset-setting.effect", key=row["key"], before=row["value"]),
                command("admin", "brokers", "delete-dynamic-config", "--config", values["setting"]))


@actions.named("set-log-level", "", Field("level", "choice", "debug", _LEVELS), Field("seconds", "number", "300"),
               Field("topic", is_required=False), Field("client", is_required=False))
async def set_log_level(ask: Asking, values: Values) -> Plan:
    wrong = text("action.set-log-level.wrong_seconds", most=human.count(_SECONDS_MAX))
    seconds = whole(values["seconds"], 1, _SECONDS_MAX, wrong)
    of = {name: values[name].strip() for name in ("topic", "client") if values[name].strip()}
    words = [word for name, value in of.items() for word in (f"--{name}", value)]
    return Plan("PUT", "/ops/v1/log-level",
                text("action.set-log-level.effect_some" if of else "action.set-log-level.effect",
                     level=values["level"], length=human.length(seconds)),
                command("log", "level", values["level"], *words, "--for", f"{seconds}s"),
                {"level": values["level"], "seconds": seconds, **of})


@actions.named("reset-log-level", "")
async def reset_log_level(ask: Asking, values: Values) -> Plan:
    levels = await ask.get("/ops/v1/log-level")
    return Plan("DELETE", "/ops/v1/log-level",
                counted("action.reset-log-level.effect", len(levels["for_now"]), level=levels["level"]),
                "geminga log level --reset")


@actions.named("make-backup", "", Field("folder"), Field("keep", "number", "0"))
async def make_backup(ask: Asking, values: Values) -> Plan:
    folder, keep = values["folder"].strip(), whole(values["keep"], 0)
    if not os.path.isabs(folder):
        raise Wrong(text("action.make-backup.not_absolute"))
    size = human.size((await ask.get("/ops/v1/status"))["loaded"]["stored_bytes"])
    effect = text("action.make-backup.effect", size=size)
    if keep:
        effect += " " + counted("action.make-backup.removes", keep)
    return Plan("POST", "/ops/v1/backup", effect, command("backup", folder, *["--keep", str(keep)] * (keep > 0)),
                {"folder": folder, "keep": keep})


@actions.named("start-compaction", "", Field("topic"))
async def start_compaction(ask: Asking, values: Values) -> Plan:
    topic = topic_named(values["topic"])
    if not topic.startswith("persistent://"):
        raise Wrong(text("action.start-compaction.wrong"))
    return await topic_actions.compact(ask, {"topic": topic})


@actions.named("acknowledge-alarm", "alarm")
async def acknowledge_alarm(ask: Asking, values: Values) -> Plan:
    is_possible = any(alarm["alarm"] == values["alarm"] and alarm["can_be_seen_to"]
                      for alarm in (await ask.get("/ops/v1/status"))["alarms"])
    effect = text("action.acknowledge-alarm.effect") if is_possible else text("action.acknowledge-alarm.over")
    return Plan("POST", f"/ops/v1/alarms/{ask.quoted(values['alarm'])}/seen", effect,
                command("status", "--seen", values["alarm"]), is_possible=is_possible)
