"""Actions on topics."""
import shlex

from geminga.supervisor.console.actions.action import Actions, Plan, Values
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import counted, topic_path
from geminga.supervisor.wording.human import short

actions = Actions()


@actions.named("unload", "topic")
async def unload(ask: Asking, values: Values) -> Plan:
    rows = (await ask.get(f"/ops/v1/topics/{topic_path(values['topic'])}"))["rows"]
    clients = sum((row["producers"] or 0) + (row["consumers"] or 0) for row in rows)
    return Plan("PUT", f"/admin/v2/{topic_path(values['topic'])}/unload",
                counted("action.unload.effect", clients),
                f"geminga admin topics unload {shlex.quote(short(values['topic']))}")
