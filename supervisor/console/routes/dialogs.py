"""Dialogs of actions: the fields, what the action does with them, and who may not."""
from typing import Any

from aiohttp import web
from yarl import URL

from geminga.supervisor.admin.requests.authorization import refusal
from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.console import rendering
from geminga.supervisor.console.actions import (
    access_actions,
    broker_actions,
    client_actions,
    delayed_actions,
    message_actions,
    policy_actions,
    scalable_actions,
    schedule_actions,
    schema_actions,
    subscription_actions,
    tenant_actions,
    topic_actions,
)
from geminga.supervisor.console.actions.action import Action, Plan, Values, Wrong
from geminga.supervisor.console.asking import Asking, QuestionRefused

PARTS = (topic_actions, scalable_actions, subscription_actions, message_actions, policy_actions, schema_actions,
         delayed_actions, schedule_actions, client_actions, tenant_actions, access_actions, broker_actions)
ACTIONS: dict[str, Action] = {action.name: action for part in PARTS for action in part.actions}
routes = web.RouteTableDef()


@routes.get("/console/actions/{name}")
async def dialog(request: web.Request) -> web.Response:
    """Answer with the dialog of an action for the values in the query."""
    action = ACTIONS.get(request.match_info["name"])
    if action is None:
        raise web.HTTPNotFound(text="There is no such action")
    values: Values = {field.name: field.default for field in action.fields} | dict(request.query)
    if missing := [name for name in action.subject if name not in values]:
        raise web.HTTPBadRequest(text=f"{', '.join(missing)} must be given")
    plan, problem = None, ""
    try:
        _refuse_empty(action, values)
        plan = await action.make(Asking(request, request.match_info, request.query), values)
        problem = await _problem(request, plan)
    except Wrong as wrong:
        problem = str(wrong)
    except QuestionRefused as refused:
        problem = refused.text
    context: dict[str, Any] = {"action": action, "values": values, "plan": plan, "problem": problem}
    return web.Response(text=rendering.page("dialog.html", context), content_type="text/html")


def _refuse_empty(action: Action, values: Values) -> None:
    for field in action.fields:
        if field.is_required and not values[field.name].strip():
            label = field.label or rendering.text(f"action.{action.words or action.name}.{field.name}")
            raise Wrong(rendering.text("dialog.missing", field=label))


async def _problem(request: web.Request, plan: Plan) -> str:
    """Return why this role cannot carry out a plan now, "" if it can."""
    if request.app[TOPICS].config.console.read_only:
        return rendering.text("common.read_only")
    if not plan.is_possible:
        return plan.effect
    inner = request.clone(method=plan.method, rel_url=URL(plan.path, encoded=True))
    reason = await refusal(inner)
    return rendering.text("dialog.not_allowed", reason=reason) if reason else ""
