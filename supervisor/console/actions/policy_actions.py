"""Actions that set and remove a topic's policies, made from the table of policies.

A dialog has a field for each part of the policy that has an option in `geminga admin topicPolicies set-...`.
"""
import json
import shlex
from collections.abc import Iterator
from typing import Any

from geminga.storage.catalogue.policy_table import TABLE, TOPIC, Part, Policy, read
from geminga.storage.catalogue.policy_values import Invalid
from geminga.supervisor.admin.policy_routes import ROUTES
from geminga.supervisor.console.actions.action import NOTHING, Action, Actions, Field, Make, Plan, Values, Wrong
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import text, topic_path
from geminga.supervisor.wording import human
from geminga.supervisor.wording.policy_verbs import ValueOption, options_of, verb_of

actions = Actions()
_UNITS = {"minutes": "m", "ms": "ms", "MB": "M"}      # as the command writes them
_BOOLEANS = "true", "false"
_WORDS = "policy"            # table of the words that the dialogs share
_VALUE = "value"             # name of the field of a policy that is no object


def action_name(policy: str) -> str:
    """Return the name of the action that sets a policy."""
    return f"set-{policy.replace('/', '-')}"


def _fields(policy: Policy) -> tuple[Field, ...]:
    return tuple(_field(part, option) for part, option in options_of(policy, TOPIC))


def _field(part: Part, option: ValueOption) -> Field:
    name, label = part.json or _VALUE, part.json or text("action.policy.value")
    label += f" ({unit})" if (unit := option.unit) else ""
    if part.type.name == "true or false":
        return Field(name, "choice", "false", _BOOLEANS, label=label)
    if part.type.name == "text" and part.type.choices:
        return Field(name, "choice", part.type.choices[0], part.type.choices, label=label)
    hint = text("action.policy.some", choices=", ".join(part.type.choices)) if part.type.choices else ""
    return Field(name, "number" if part.type.name == "number" else "text", "",
                 is_required=option.required and part.type.name != "list", label=label, hint=hint)


def _sent(policy: Policy, values: Values) -> Any:
    """Return the JSON that sets a policy to what fields say.  Raises Wrong."""
    told = {part.json: _value(part, typed) for part, _ in options_of(policy, TOPIC)
            if (typed := values.get(part.json or _VALUE, "").strip()) or part.type.name == "list"}
    sent = told if policy.is_object else told.get("")
    try:
        read(policy, sent)
    except Invalid as error:
        raise Wrong(str(error)) from None
    return sent


def _value(part: Part, typed: str) -> Any:
    """Return what somebody typed as JSON.  Raises Wrong."""
    try:
        if part.type.name == "list":
            return part.type.read([one.strip() for one in typed.split(",") if one.strip()])
        return part.type.read(typed.replace(",", "") if part.type.name == "number" else typed)
    except ValueError as error:
        raise Wrong(f"{part.json}: {error}" if part.json else str(error)) from None


def _words(policy: Policy, sent: Any) -> Iterator[str]:
    """Yield the options of the command for a value."""
    if kind := ROUTES[policy.name].topic.kind:      # type: ignore[union-attr]  # topics have the policy
        yield from ("--type", kind)
    for part, option in options_of(policy, TOPIC):
        value = sent.get(part.json) if policy.is_object else sent
        if value is None or value == []:
            continue
        sides = [side.split()[0] for side in option.flags.split("/")]
        if part.type.name == "true or false":
            if value:
                yield sides[0]
            elif len(sides) > 1:
                yield sides[1]
        else:
            yield from (sides[0], _word(value, option.unit))


def _word(value: Any, unit: str) -> str:
    """Return a value as the command takes it: with its unit, as numbers alone are seconds and bytes there."""
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, str):
        return value
    return json.dumps(value) + (_UNITS.get(unit, "") if value > 0 else "")


def _command(verb: str, policy: Policy, topic: str, *words: str) -> str:
    return shlex.join(["geminga", "admin", "topicPolicies", f"{verb}-{verb_of(policy, TOPIC)}", human.short(topic),
                       *words])


def _setting(policy: Policy) -> Make:
    route = ROUTES[policy.name].topic
    assert route is not None, policy

    async def make(ask: Asking, values: Values) -> Plan:
        topic, sent = values["topic"], _sent(policy, values)
        path = f"/admin/v2/{topic_path(topic)}/{route.path}"
        if route.query:
            path, body = f"{path}?{route.query}={sent}", NOTHING
        else:
            body = sent
        return Plan(route.method, path, text("action.policy.effect", policy=policy.name, value=json.dumps(sent)),
                    _command("set", policy, topic, *_words(policy, sent)), body)
    return make


def is_removable(policy: str) -> bool:
    """Whether a topic's policy can be removed; otherwise another value can be set."""
    route = ROUTES[policy].topic
    return route is not None and (route.removable or route.nullable)


def _is_settable(policy: Policy) -> bool:
    return bool(policy.where) and ROUTES[policy.name].topic is not None


for _policy in filter(_is_settable, TABLE.values()):
    actions.append(Action(action_name(_policy.name), _setting(_policy), ("topic",), _fields(_policy), False, _WORDS,
                          f"{_policy.name}: {_policy.doc}"))


@actions.named("remove-policy", "topic policy")
async def remove(ask: Asking, values: Values) -> Plan:
    topic, policy = values["topic"], TABLE.get(values["policy"])
    route = ROUTES[policy.name].topic if policy is not None else None
    if policy is None or route is None:
        raise Wrong(text("action.remove-policy.none"))
    rows = await ask.get(f"/ops/v1/policies/{topic_path(topic)}")
    row = next((row for row in rows if row["policy"] == policy.name), None)
    if row is None or row["topic"] is None:
        raise Wrong(text("action.remove-policy.none"))
    weaker = "namespace" if row["namespace"] is not None else "broker"
    effect = text("action.remove-policy.effect", policy=policy.name, value=json.dumps(row["topic"]),
                  level=text(f"topic.from_{weaker}"), next=json.dumps(row[weaker]))
    words = ["--type", route.kind] if route.kind else []
    path = f"/admin/v2/{topic_path(topic)}/{route.remove or route.path}"
    if route.removable:
        return Plan("DELETE", path, effect, _command("remove", policy, topic, *words))
    return Plan(route.method, path, effect, _command("remove", policy, topic, *words), None)
