"""Actions that set and remove policies of topics and namespaces, made from the table of policies.

A dialog has a field for each part of the policy that has an option in `geminga admin topicPolicies set-...` or
`geminga admin namespaces set-...`.
"""
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from geminga.storage.catalogue.policy_declaration import NAMESPACE, TOPIC, Option, Part, Policy, Route, read
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.catalogue.policy_values import Invalid
from geminga.supervisor.console.actions.action import (
    NOTHING,
    Action,
    Actions,
    Field,
    Make,
    Plan,
    Values,
    Wrong,
    command,
)
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import namespace_path, text, topic_path
from geminga.supervisor.wording import human

actions = Actions()
_UNITS = {"minutes": "m", "ms": "ms", "MB": "M"}      # as the command writes them
_NUMBERS = "number", "decimal"      # types of policies' values
_BOOLEANS = "true", "false"
_WORDS = "policy"            # table of the words that the dialogs share
_VALUE = "value"             # name of the field of a policy that is no object


class _Level(NamedTuple):
    """A level at which policies are set."""

    name: str                # also of the value that comes with a button: the topic's or the namespace's name
    group: str               # of commands
    prefix: str              # of the names of actions

    def path(self, place: str, rest: str) -> str:
        """Return the path over REST of what belongs to a topic or namespace."""
        return f"/admin/v2/{topic_path(place) if self.name == TOPIC else f'namespaces/{namespace_path(place)}'}/{rest}"

    def questions(self, place: str) -> str:
        """Return the path that answers with all policies that hold there."""
        return f"/ops/v1/policies/{topic_path(place) if self.name == TOPIC else namespace_path(place)}"

    def command(self, verb: str, policy: Policy, place: str, *words: str) -> str:
        return command("admin", self.group, f"{verb}-{policy.verb_at(self.name)}", human.short(place), *words)


LEVELS = {TOPIC: _Level(TOPIC, "topicPolicies", ""), NAMESPACE: _Level(NAMESPACE, "namespaces", "namespace-")}


def action_name(policy: str, level: str = TOPIC, verb: str = "set") -> str:
    """Return the name of the action that sets a policy."""
    return f"{verb}-{LEVELS[level].prefix}{policy.replace('/', '-')}"


def _fields(policy: Policy, level: _Level) -> tuple[Field, ...]:
    return tuple(_field(part, option) for part, option in policy.options_at(level.name))


def _field(part: Part, option: Option) -> Field:
    name, label = part.json or _VALUE, part.json or text("action.policy.value")
    label += f" ({unit})" if (unit := option.unit) else ""
    if part.type.name == "true or false":
        return Field(name, "choice", "false", _BOOLEANS, label=label)
    if part.type.name == "text" and part.type.choices:
        return Field(name, "choice", part.type.choices[0], part.type.choices, label=label)
    hint = text("action.policy.some", choices=", ".join(part.type.choices)) if part.type.choices else ""
    return Field(name, "number" if part.type.name in _NUMBERS else "text", "",
                 is_required=option.required and part.type.name != "list", label=label, hint=hint)


def _sent(policy: Policy, values: Values, level: _Level) -> Any:
    """Return the JSON that sets a policy to what fields say.  Raises Wrong."""
    value = {part.json: _value(part, typed) for part, _ in policy.options_at(level.name)
            if (typed := values.get(part.json or _VALUE, "").strip()) or part.type.name == "list"}
    sent = value if policy.is_object else value.get("")
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
        if part.type.name == "decimal":
            return part.type.read(float(typed.replace(",", "")))
        return part.type.read(typed.replace(",", "") if part.type.name == "number" else typed)
    except ValueError as error:
        raise Wrong(f"{part.json}: {error}" if part.json else str(error)) from None


def _words(policy: Policy, sent: Any, level: _Level, route: Route) -> Iterator[str]:
    """Yield the options of the command for a value."""
    if route.kind:
        yield from ("--type", route.kind)
    for part, option in policy.options_at(level.name):
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


def _setting(policy: Policy, level: _Level, route: Route) -> Make:
    async def make(ask: Asking, values: Values) -> Plan:
        place = values[level.name]
        sent = route.implied if route.implied is not None else _sent(policy, values, level)
        path, body = level.path(place, route.path), sent
        if route.query:
            path, body = f"{path}?{route.query}={sent}", NOTHING
        elif route.implied is not None:
            body = NOTHING
        effect = text(f"action.policy.effect_{level.name}", policy=policy.name, value=json.dumps(sent))
        return Plan(route.method, path, effect,
                    level.command("set", policy, place, *_words(policy, sent, level, route)), body)
    return make


def is_removable(policy: str, level: str = TOPIC) -> bool:
    """Whether a policy can be removed at a level; otherwise another value can be set."""
    route = TABLE[policy].route_at(level)
    return route is not None and (route.removable or route.nullable)


for _level in LEVELS.values():
    for _policy in TABLE.values():
        if _policy.where and (_route := _policy.route_at(_level.name)) is not None:
            actions.append(Action(action_name(_policy.name, _level.name), _setting(_policy, _level, _route),
                                  (_level.name,), _fields(_policy, _level), False, _WORDS,
                                  f"{_policy.name}: {_policy.doc}"))


def _removing(level: _Level) -> Make:
    async def remove(ask: Asking, values: Values) -> Plan:
        place, policy = values[level.name], TABLE.get(values["policy"])
        route = policy.route_at(level.name) if policy is not None else None
        if policy is None or route is None:
            raise Wrong(text("action.remove-policy.none"))
        rows = await ask.get(level.questions(place))
        row = next((row for row in rows if row["policy"] == policy.name), None)
        if row is None or row[level.name] is None:
            raise Wrong(text("action.remove-policy.none"))
        weaker = NAMESPACE if level.name == TOPIC and row[NAMESPACE] is not None else "broker"
        effect = text("action.remove-policy.effect", policy=policy.name, value=json.dumps(row[level.name]),
                      level=text(f"topic.from_{weaker}"), next=json.dumps(row[weaker]))
        words = ["--type", route.kind] if route.kind else []
        path, command = level.path(place, route.remove or route.path), level.command("remove", policy, place, *words)
        if route.removable:
            return Plan("DELETE", path, effect, command)
        return Plan(route.method, path, effect, command, None)
    return remove


actions.named("remove-policy", "topic policy")(_removing(LEVELS[TOPIC]))
actions.named("remove-namespace-policy", "namespace policy")(_removing(LEVELS[NAMESPACE]))
