"""Actions on rights: what roles may do with namespaces, topics and subscriptions."""
import shlex
from typing import Any

from geminga.supervisor.console.actions.action import Actions, Field, Plan, Values, Wrong
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import text, topic_path
from geminga.supervisor.wording.human import short

actions = Actions()
_CHOSEN = "produce", "consume"       # the actions that the dialog offers; others stay as they are
_FIELDS = (Field("role"), *(Field(name, "check", is_required=False) for name in _CHOSEN))


def _place(ask: Asking, namespace: str) -> str:
    tenant, _, own = namespace.partition("/")
    return f"{ask.quoted(tenant)}/{ask.quoted(own)}"


def _plan(values: Values, before: list[str], path: str, command: list[str]) -> Plan:
    """Return the plan of a grant.  before: actions that the role has there."""
    role = values["role"].strip()
    wanted = [name for name in _CHOSEN if values[name] == "true"]
    granted = wanted + [one for one in before if one not in _CHOSEN]
    if not granted:
        raise Wrong(text("action.grant.nothing"))
    lost = [one for one in before if one not in granted]
    effect = text("action.grant.effect", role=role, actions=", ".join(granted))
    if lost:
        effect += " " + text("action.grant.loses", actions=", ".join(lost))
    return Plan("POST", path, effect, shlex.join([*command, "--role", role, "--actions", ",".join(granted)]), granted)


@actions.named("grant-namespace", "namespace", *_FIELDS)
async def grant_namespace(ask: Asking, values: Values) -> Plan:
    path = f"/admin/v2/namespaces/{_place(ask, values['namespace'])}/permissions"
    before = (await ask.get(path)).get(values["role"].strip(), [])
    return _plan(values, before, f"{path}/{ask.quoted(values['role'].strip())}",
                 ["geminga", "admin", "namespaces", "grant-permission", values["namespace"]])


@actions.named("grant-topic", "topic", *_FIELDS)
async def grant_topic(ask: Asking, values: Values) -> Plan:
    path = f"/admin/v2/{topic_path(values['topic'])}/permissions"
    own = await _own_grants(ask, values["topic"])
    return _plan(values, own.get(values["role"].strip(), []), f"{path}/{ask.quoted(values['role'].strip())}",
                 ["geminga", "admin", "topics", "grant-permission", short(values["topic"])])


async def _own_grants(ask: Asking, topic: str) -> dict[str, list[str]]:
    """Return {role: actions} of a topic alone, without those of its namespace."""
    namespace = topic.partition("://")[2].rpartition("/")[0]
    kept = await ask.get(f"/admin/v2/namespaces/{_place(ask, namespace)}")
    found: dict[str, list[str]] = kept["auth_policies"]["destination_auth"].get(topic, {})
    return found


@actions.named("grant-subscription", "namespace", Field("subscription"), Field("role"))
async def grant_subscription(ask: Asking, values: Values) -> Plan:
    name, role = values["subscription"].strip(), values["role"].strip()
    path = f"/admin/v2/namespaces/{_place(ask, values['namespace'])}/permissions/subscription"
    before: list[Any] = (await ask.get(path)).get(name, [])
    roles = sorted({*before, role})
    effect = text("action.grant-subscription.effect" if before else "action.grant-subscription.first",
                  roles=", ".join(roles), subscription=name)
    return Plan("POST", f"{path}/{ask.quoted(name)}", effect, shlex.join(
        ["geminga", "admin", "namespaces", "grant-subscription-permission", values["namespace"],
         "--subscription", name, "--roles", ",".join(roles)]), roles)


@actions.named("revoke-namespace", "namespace role", is_dangerous=True)
async def revoke_namespace(ask: Asking, values: Values) -> Plan:
    path = f"/admin/v2/namespaces/{_place(ask, values['namespace'])}/permissions/{ask.quoted(values['role'])}"
    return Plan("DELETE", path, text("action.revoke.effect", role=values["role"]), shlex.join(
        ["geminga", "admin", "namespaces", "revoke-permission", values["namespace"], "--role", values["role"]]))


@actions.named("revoke-topic", "topic role", is_dangerous=True)
async def revoke_topic(ask: Asking, values: Values) -> Plan:
    path = f"/admin/v2/{topic_path(values['topic'])}/permissions/{ask.quoted(values['role'])}"
    return Plan("DELETE", path, text("action.revoke.effect", role=values["role"]), shlex.join(
        ["geminga", "admin", "topics", "revoke-permission", short(values["topic"]), "--role", values["role"]]))


@actions.named("revoke-subscription", "namespace subscription role", is_dangerous=True)
async def revoke_subscription(ask: Asking, values: Values) -> Plan:
    path = f"/admin/v2/namespaces/{_place(ask, values['namespace'])}/permissions"
    left = [one for one in (await ask.get(f"{path}/subscription")).get(values["subscription"], [])
            if one != values["role"]]
    effect = text("action.revoke.effect", role=values["role"])
    if not left:
        effect += " " + text("action.revoke-subscription.last", subscription=values["subscription"])
    return Plan("DELETE", f"{path}/{ask.quoted(values['subscription'])}/{ask.quoted(values['role'])}", effect,
                shlex.join(["geminga", "admin", "namespaces", "revoke-subscription-permission", values["namespace"],
                            "--subscription", values["subscription"], "--role", values["role"]]))
