"""`geminga admin`: click commands, made on demand from rows of the tables of verbs."""
import json
from collections.abc import Callable, Iterator
from functools import cache
from string import Formatter
from typing import Any

import click

from geminga.supervisor.cli import show
from geminga.supervisor.cli.admin import verb as kinds
from geminga.supervisor.cli.admin.verb import Option, Verb
from geminga.supervisor.cli.admin.verbs import GROUPS
from geminga.supervisor.configuration import units
from geminga.supervisor.pulsar_client import credentials
from geminga.supervisor.pulsar_client.rest import (
    Broker,
    NotReachable,
    Refused,
    namespace_path,
    quoted,
    shown,
    topic_path,
)

URL = "http://127.0.0.1:8080"
_OUTPUTS = ("table", "json")
# Group: the level of the policies that it sets.
_POLICIES = {"namespaces": "namespace", "topicPolicies": "topic", "topics": "topic"}
# Arguments of verbs, in the order of the command line: (function that quotes the argument for a path, an example).
_ARGUMENTS: dict[str, tuple[Callable[[str], str], str]] = {
    "asked_role": (quoted, "alice"),
    "asked_action": (quoted, "produce"),
    "topic": (topic_path, "public/default/orders"),
    "message": (quoted, "12:0"),
    "message_key": (str, "order-17"),
    "schema_topic": (lambda name: topic_path(name).partition("/")[2], "public/default/orders"),
    "namespace": (namespace_path, "public/default"),
    "tenant": (quoted, "public"),
    "cluster": (quoted, "standalone"),
}


def verb_of(group: str, name: str) -> Verb | None:
    """Return the verb of this name in a group, None if there is none.

    Verbs of policies are made only if no other verb has the name.
    """
    return next((verb for verb in GROUPS[group][1] if verb.name == name), None) or policies_of(group).get(name)


@cache
def policies_of(group: str) -> dict[str, Verb]:
    """Return a group's verbs that set, get and remove policies, by name.

    In the group `topics` they are hidden, because the group `topicPolicies` lists them.
    """
    if group not in _POLICIES:
        return {}
    from geminga.supervisor.cli.admin import policies
    return {verb.name: verb._replace(hidden=group == "topics") for verb in policies.verbs(_POLICIES[group])}


class Group(click.Group):
    """A group of verbs as a click group.  Each command is made when it is looked up."""

    name: str

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({verb.name for verb in GROUPS[self.name][1]} | policies_of(self.name).keys())

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        verb = verb_of(self.name, name)
        return None if verb is None else _command(self.name, verb)


class Admin(click.Group):
    """The click group `geminga admin`, with all groups of verbs, `policies` and `tokens`."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*sorted(GROUPS), "policies", "tokens"]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name == "policies":
            return click.Command(name, callback=_show_policies, help="List all policies, and the verbs that set them.")
        if name == "tokens":
            from geminga.supervisor.cli import tokens
            return tokens.command
        return Group(name, help=GROUPS[name][0], no_args_is_help=True) if name in GROUPS else None


def _show_policies() -> None:
    from geminga.supervisor.cli.admin import policies
    print(show.text(policies.table()))


def _set_output(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(dict)["output"] = value


def _output() -> click.Option:
    return click.Option(["output", "-o", "--output"], type=click.Choice(_OUTPUTS), expose_value=False,
                        callback=_set_output, help="A table for people, or the broker's answer as it came.")


def command() -> click.Group:
    """Return the click group `geminga admin`."""
    def admin(url: str, **who: Any) -> None:
        asked = click.get_current_context().ensure_object(dict)
        asked["url"], asked["credentials"] = url, credentials.of(**who)

    url = click.Option(["url", "--admin-url", "--http-url"], default=URL, show_default=True,
                       help="The broker's address of HTTP.")
    return Admin("admin", params=[url, *credentials.parameters(), _output()], callback=admin, no_args_is_help=True,
                 context_settings={"help_option_names": ["-h", "--help"]},
                 help="Administer a broker, with the verbs of pulsar-admin.  Exit status: 0 done; 1 refused by the "
                      "broker; 2 wrong usage; 3 the broker cannot be reached.")


# -- a row as a command

class _Converted(click.ParamType):
    """A click type that reads a value with a function; the function raises ValueError for a wrong text."""

    def __init__(self, name: str, convert: Any) -> None:
        self.name = name
        self._convert = convert

    def __repr__(self) -> str:
        return f"_Converted({self.name})"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return self._convert(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), parameter, context)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not key=value")
    return name, value


_TYPES = {
    kinds.TEXT: click.STRING, kinds.INT: click.INT, kinds.DECIMAL: click.FLOAT,
    kinds.FILE: click.Path(exists=True, dir_okay=False),
    kinds.LIST: _Converted("a,b,...", lambda text: [part.strip() for part in text.split(",") if part.strip()]),
    kinds.MAP: _Converted("key=value", _pair),
    kinds.SECONDS: _Converted("time", units.seconds), kinds.MINUTES: _Converted("time", units.minutes),
    kinds.MILLIS: _Converted("time", units.millis),
    kinds.SIZE: _Converted("size", units.size), kinds.MEBIBYTES: _Converted("size", units.mebibytes),
}


def _arguments(verb: Verb) -> list[str]:
    """Return the names of a verb's arguments, in command-line order."""
    in_path = {name for _, name, _, _ in Formatter().parse(verb.path)}
    return [name for name in _ARGUMENTS if name in in_path]


def _command(group: str, verb: Verb) -> click.Command:
    arguments = _arguments(verb)
    params: list[click.Parameter] = [
        click.Argument([name], metavar=name.rpartition("_")[2].upper(), shell_complete=_complete)
        for name in arguments]
    params += [_option(option) for option in verb.options]
    samples = "".join(" " + _ARGUMENTS[name][1] for name in arguments)
    return click.Command(
        verb.name, params=[*params, _output()], help=verb.help, short_help=verb.help, hidden=verb.hidden,
        epilog="\b\nExample:\n  " + f"geminga admin {group} {verb.name}{samples} {verb.example}".rstrip(),
        callback=lambda **values: _run(verb, values))


def _option(option: Option) -> click.Option:
    flags = [option.key, *option.flags.split()]
    if option.kind == kinds.FLAG:
        return click.Option(flags, is_flag=True, default=bool(option.default), help=option.help)
    given = {} if option.default is None else {"default": option.default, "show_default": option.default != ()}
    kind = click.Choice(option.choices) if option.choices else _TYPES[option.kind]
    return click.Option(flags, type=kind, required=option.required, multiple=option.kind == kinds.MAP,
                        help=option.help, **given)


def _run(verb: Verb, values: dict[str, Any]) -> None:
    asked = click.get_current_context().ensure_object(dict)
    is_json = asked.get("output") == "json"
    for option in verb.options:
        if option.kind == kinds.MAP:
            values[option.key] = dict(values[option.key])
    try:
        values |= {name: _ARGUMENTS[name][0](values[name]) for name in _arguments(verb)}
        broker = Broker(asked.get("url", URL), credentials=asked.get("credentials", credentials.NOBODY))
        if verb.streams and verb.run is not None:
            _show_messages(verb.run(broker, values), is_json)
            return
        value = _ask(broker, verb, values, is_json)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if is_json:
        if value is not None:
            print(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))
    elif value is not None and value != []:
        print(show.text(verb.table(value) if verb.table else value))
    elif verb.method == "GET" and value is None:
        print("not set")


def _ask(broker: Broker, verb: Verb, values: dict[str, Any], is_json: bool) -> Any:
    """Send a verb's request to the broker, and return the answer's value; with is_json the answer's text.

    Raises Refused, NotReachable.
    """
    if verb.run is not None:
        return verb.run(broker, values)
    query, body, fields = {}, verb.body(values) if verb.body else None, {}
    for option in verb.options:
        value = values[option.key]
        if value is None or not option.to:
            continue
        if option.to == "=":
            body = value
        elif option.to[0] == "?":
            query[option.to[1:]] = value
        else:
            fields[option.to[1:]] = value
    arguments = _arguments(verb)        # their values are quoted already
    placed = {name: value if name in arguments else quoted(shown(value)) for name, value in values.items()}
    path = verb.of_one[1] if verb.of_one and values[verb.of_one[0]] is not None else verb.path
    path = path.format_map(placed)
    answer = broker.ask(verb.method, path if path.startswith("/") else "/admin/v2/" + path, query, fields or body)
    return (answer.body.decode(errors="replace") or None) if is_json else answer.value()


def _show_messages(entries: Iterator[Any], is_json: bool) -> None:
    from geminga.supervisor.cli.admin import messages
    for number, message in enumerate(entries):
        if is_json:
            print(json.dumps(messages.as_json(message), ensure_ascii=False))
        else:
            print(("\n" if number else "") + messages.text(message))


# -- completion

def _complete(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Return names for shell completion of a tenant, namespace, topic or cluster.

    Return [] if the broker does not answer at once.
    """
    while context.parent is not None and "url" not in context.params:       # `admin` has the options of the connection
        context = context.parent
    try:
        names = [option.name or "" for option in credentials.parameters()]
        values: dict[str, Any] = {name: context.params.get(name) for name in names}
        who = credentials.of(**values)
        broker = Broker(context.params.get("url", URL), timeout_s=0.5, credentials=who)
        if parameter.name == "cluster":
            return [name for name in broker.ask("GET", "/admin/v2/clusters").value() if name.startswith(typed)]
        return _names(broker, typed, parts={"tenant": 1, "namespace": 2}.get(parameter.name or "", 3))
    except (Refused, NotReachable, click.UsageError):
        return []


def _names(broker: Broker, typed: str, parts: int) -> list[str]:
    """Return completions of the typed text for names of `parts` parts separated by slashes.

    Only one part is completed at a time. If one name alone matches that part, the next part is completed too.
    """
    *above, _ = typed.split("/")
    place = "/".join(map(quoted, above))
    path = ("tenants", f"namespaces/{place}", f"persistent/{place}")[min(len(above), 2)]
    names = [name.rpartition("://")[2] for name in broker.ask("GET", f"/admin/v2/{path}").value()]
    matches = [name for name in names if name.startswith(typed)]
    if len(above) + 1 == parts:
        return matches
    return _names(broker, matches[0] + "/", parts) if len(matches) == 1 else [name + "/" for name in matches]
