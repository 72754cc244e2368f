"""Actions on rights: what roles may do with namespaces, topics and subscriptions."""
from typing import Any

from geminga.supervisor.console.actions.action import Actions, Field, Make, Plan, Values, Wrong, command
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import namespace_path, text, topic_path
from geminga.supervisor.wording.human import short

actions = Actions()
_CHOSEN = "produce", "consume"       # the actions that the dialog offers; others stay as they are
_FIELDS = (Field("role"), *(Field(name, "check", is_required=False) for name in _CHOSEN))


def _path(place: str) -> str:
    """Return the path of the grants of a topic, or a namespace."""
    return f"/admin/v2/{topic_path(place) if '://' in place else f'namespaces/{namespace_path(place)}'}/permissions"


def _command(verb: str, place: str, *words: str) -> str:
    return command("admin", "topics" if "://" in place else "namespaces", verb, short(place), *words)


async def _granted(ask: Asking, place: str) -> dict[str, list[str]]:
    """Return {role: actions} of a namespace, or of a topic alone, without those of its namespace."""
    if "://" not in place:
        return dict(await ask.get(_path(place)))
    namespace = place.partition("://")[2].rpartition("/")[0]
    kept = await ask.get(f"/admin/v2/namespaces/{namespace_path(namespace)}")
    return dict(kept["auth_policies"]["destination_auth"].get(place, {}))


def _granting(subject: str) -> Make:
    async def grant(ask: Asking, values: Values) -> Plan:
        place, role = values[subject], values["role"].strip()
        before = (await _granted(ask, place)).get(role, [])
        granted = [name for name in _CHOSEN if values[name] == "true"]
        granted += [action for action in before if action not in _CHOSEN]
        if not granted:
            raise Wrong(text("action.grant.nothing"))
        lost = [action for action in before if action not in granted]
        effect = text("action.grant.effect", role=role, actions=", ".join(granted))
        if lost:
            effect += " " + text("action.grant.loses", actions=", ".join(lost))
        return Plan("POST", f"{_path(place)}/{ask.quoted(role)}", effect, _command(
            "grant-permission", place, "--role", role, "--actions", ",".join(granted)), granted)
    return grant


def _revoking(subject: str) -> Make:
    async def revoke(ask: Asking, values: Values) -> Plan:
        place, role = values[subject], values["role"]
        return Plan("DELETE", f"{_path(place)}/{ask.quoted(role)}", text("action.revoke.effect", role=role),
                    _command("revoke-permission", place, "--role", role))
    return revoke


for _subject in "namespace", "topic":
    actions.named(f"grant-{_subject}", _subject, *_FIELDS)(_granting(_subject))
    actions.named(f"revoke-{_subject}", f"{_subject} role", is_dangerous=True)(_revoking(_subject))


@actions.named("grant-subscription", "namespace", Field("subscription"), Field("role"))
async def grant_subscription(ask: Asking, values: Values) -> Plan:
    name, role = values["subscription"].strip(), values["role"].strip()
    path = f"{_path(values['namespace'])}/subscription"
    before: list[Any] = (await ask.get(path)).get(name, [])
    roles = sorted({*before, role})
    effect = text("action.grant-subscription.effect" if before else "action.grant-subscription.first",
                  roles=", ".join(roles), subscription=name)
    return Plan("POST", f"{path}/{ask.quoted(name)}", effect, _command(
        "grant-subscription-permission", values["namespace"], "--subscription", name, "--roles", ",".join(roles)),
        roles)


@actions.named("revoke-subscription", "namespace subscription role", is_dangerous=True)
async def revoke_subscription(ask: Asking, values: Values) -> Plan:
    path, name, role = _path(values["namespace"]), values["subscription"], values["role"]
    effect = text("action.revoke.effect", role=role)
    if not set((await ask.get(f"{path}/subscription")).get(name, [])) - {role}:
        effect += " " + text("action.revoke-subscription.last", subscription=name)
    return Plan("DELETE", f"{path}/{ask.quoted(name)}/{ask.quoted(role)}", effect, _command(
        "revoke-subscription-permission", values["namespace"], "--subscription", name, "--role", role))
