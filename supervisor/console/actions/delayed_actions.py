"""Actions on delayed messages: cancel, and give another delivery time."""
import time

from geminga.storage.runtime.units import instant, moment
from geminga.supervisor.console.actions.action import Actions, Field, Plan, Values, Wrong, command
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import counted, text, topic_path
from geminga.supervisor.wording import human

actions = Actions()


async def _messages(ask: Asking, values: Values) -> int:
    """Return how many messages the entry has.  Raises Wrong if it does not wait any more."""
    path, due_ms = f"/ops/v1/delayed/{topic_path(values['topic'])}", values["due"]
    if not (due_ms.isascii() and due_ms.isdigit() and len(due_ms) < 17):
        raise Wrong(text("action.cancel-delayed.gone"))
    waiting = await ask.get(path, **{"by": "message", "from": due_ms, "to": int(due_ms) + 1, "limit": 10_000})
    for row in waiting["rows"]:
        if row["id"] == values["message"]:
            return int(row["messages"])
    raise Wrong(text("action.cancel-delayed.gone"))


def _path(values: Values) -> str:
    return f"/ops/v1/delayed/{topic_path(values['topic'])}/{Asking.quoted(values['message'])}"


def _command(verb: str, values: Values, *more: str) -> str:
    return command("admin", "delayed", verb, human.short(values["topic"]), values["message"], *more)


@actions.named("cancel-delayed", "topic message due", is_dangerous=True)
async def cancel(ask: Asking, values: Values) -> Plan:
    number = await _messages(ask, values)
    return Plan("DELETE", _path(values),
                counted("action.cancel-delayed.effect", number, due=instant(int(values["due"]))),
                _command("cancel", values))


@actions.named("reschedule-delayed", "topic message due", Field("at", default="1h"))
async def reschedule(ask: Asking, values: Values) -> Plan:
    number, at = await _messages(ask, values), values["at"].strip()
    try:
        due_ms = moment(at, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise Wrong(str(error)) from None
    return Plan("PATCH", _path(values), counted("action.reschedule-delayed.effect", number, due=instant(due_ms),
                                                before=instant(int(values["due"]))),
                _command("reschedule", values, "--at", at), {"deliver_at": at})
