"""`geminga admin`: click commands, made on demand from rows of the tables of verbs."""
import json
from collections.abc import Callable, Iterator
from functools import cache
from string import Formatter
from typing import Any

import click

from geminga.storage.runtime import units
from geminga.storage.runtime.similar_names import question
from geminga.supervisor.cli import grammar, show
from geminga.supervisor.cli.admin import verb as kinds
from geminga.supervisor.cli.admin.verb import Option, Values, Verb
from geminga.supervisor.cli.admin.verbs import GROUPS
from geminga.supervisor.cli.completion import complete_name
from geminga.supervisor.cli.missing_names import Unknown, hint_for, listed
from geminga.supervisor.cli.output import FORMS, PAUSE, Converted, Output, remark
from geminga.supervisor.configuration import target
from geminga.workers.pulsar_client.rest import (
    Broker,
    Refused,
    namespace_path,
    quoted,
    shown,
    subscription_path,
    topic_path,
)

_NOT_FOUND = 404
_OF_SUBSCRIPTION = "{topic}/subscription/"
_OF_PARTITIONS = {"stats": "partitioned-stats", "stats-internal": "partitioned-stats-internal"}


def _bare_path(topic: str) -> str:
    """Return a topic's name without its domain, quoted for a path.  Raises ValueError."""
    return topic_path(topic).partition("/")[2]


def _policies_path(topic: str) -> str:
    """Return the path of a topic below which its policies are; a scalable topic has it under its name without topic://.

    Raises ValueError.
    """
    return "persistent/" + _bare_path(topic) if topic.startswith("topic://") else topic_path(topic)


def _scalable_path(topic: str) -> str:
    """Return the name of a scalable topic without its domain, quoted for a path.  Raises ValueError."""
    domain, separator, rest = topic.partition("://")
    if separator and domain != "topic":
        raise ValueError(f"{topic!r} is no scalable topic: [topic://]tenant/namespace/topic")
    return _bare_path(rest if separator else topic)


def _segment_path(segment: str) -> str:
    """Return the path of a segment below that of its topic.  Raises ValueError."""
    topic, _, last = segment.partition("://")[2].rpartition("/")
    number = last.rpartition("-")[2]
    if not (segment.startswith("segment://") and topic and number.isdecimal()):
        raise ValueError(f"{segment!r} is no segment: segment://tenant/namespace/topic/FIRST-LAST-ID, as stats show it")
    return f"{_scalable_path(topic)}/segments/{number}"


# Group: the level of the policies that it sets.
_SCALABLE = "scalable-topics"      # which have a policy of their own
_POLICIES = {"namespaces": "namespace", "topicPolicies": "topic", "topics": "topic"}
# Arguments of verbs, in the order of the command line: (function that quotes the argument for a path, an example).
_ARGUMENTS: dict[str, tuple[Callable[[str], str], str]] = {
    "asked_role": (quoted, "alice"),
    "asked_action": (quoted, "produce"),
    "topic": (topic_path, "public/default/orders"),
    "policies_topic": (_policies_path, "public/default/orders"),
    "message": (quoted, "12:0"),
    "message_key": (str, "order-17"),
    "schema_topic": (_bare_path, "public/default/orders"),
    "scalable_topic": (_scalable_path, "topic://public/default/events"),
    "scalable_segment": (_segment_path, "segment://public/default/events/0000-ffff-0"),
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
    if group not in _POLICIES and group != _SCALABLE:
        return {}
    from geminga.supervisor.cli.admin import policies
    if group == _SCALABLE:
        return {verb.name: verb for verb in policies.of_scalable_topics()}
    return {verb.name: verb._replace(hidden=group == "topics") for verb in policies.verbs(_POLICIES[group])}


class _Verbs(grammar.Group):
    """A group of verbs as a click group.  Each command is made when it is looked up."""

    name: str

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({verb.name for verb in GROUPS[self.name][1]} | policies_of(self.name).keys())

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        verb = verb_of(self.name, name)
        return None if verb is None else _command(self.name, verb)


class Admin(grammar.Group):
    """The click group `geminga admin`, with all groups of verbs, `policies` and `tokens`."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*sorted(GROUPS), "policies", "tokens"]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name == "policies":
            return click.Command(name, callback=_show_policies, params=[_output()],
                                 help="List all policies, and the verbs that set them.")
        if name == "tokens":
            from geminga.supervisor.cli.access import tokens
            return tokens.command
        return _Verbs(name, help=GROUPS[name][0], no_args_is_help=True) if name in GROUPS else None


def _show_policies() -> None:
    from geminga.supervisor.cli.admin import policies
    Output(click.get_current_context().ensure_object(dict).get("output", "table")).value(policies.table(), show.text)


def _set_output(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(dict)["output"] = value


def _output() -> click.Option:
    return click.Option(["output", "-o", "--output"], type=click.Choice(FORMS), expose_value=False,
                        callback=_set_output, help="A table for people, or a form for programs; json is the broker's "
                                                   "answer as it came.")


def _watch() -> click.Option:
    return click.Option(["watch_s", "--watch"], metavar="TIME", is_flag=False, flag_value="2s", type=PAUSE,
                        help="Show again every 2 s, or after TIME, until interrupted.")


def command() -> click.Group:
    """Return the click group `geminga admin`."""
    def admin(**who: Any) -> None:
        click.get_current_context().ensure_object(dict)["who"] = who

    return Admin("admin", params=[*target.admin_parameters(), _output()], callback=admin, no_args_is_help=True,
                 context_settings={"help_option_names": ["-h", "--help"]},
                 help="Administer a broker, with the verbs of pulsar-admin.  Exit status: 0 done; 1 refused by the "
                      "broker; 2 wrong usage; 3 the broker cannot be reached.")


# -- a row as a command

def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not key=value")
    return name, value


_TYPES = {
    kinds.TEXT: click.STRING, kinds.INT: click.INT, kinds.DECIMAL: click.FLOAT,
    kinds.FILE: click.Path(exists=True, dir_okay=False),
    kinds.LIST: Converted("a,b,...", lambda text: [part.strip() for part in text.split(",") if part.strip()]),
    kinds.MAP: Converted("key=value", _pair),
    kinds.SECONDS: Converted("time", units.seconds), kinds.MINUTES: Converted("time", units.minutes),
    kinds.MILLIS: Converted("time", units.millis),
    kinds.TOPIC: Converted("topic", _bare_path),
    kinds.SIZE: Converted("size", units.size), kinds.MEBIBYTES: Converted("size", units.mebibytes),
}


def _arguments(verb: Verb) -> list[str]:
    """Return the names of a verb's arguments, in command-line order."""
    in_path = {name for _, name, _, _ in Formatter().parse(verb.path)} - {option.key for option in verb.options}
    return [name for name in _ARGUMENTS if name in in_path]


def _command(group: str, verb: Verb) -> click.Command:
    arguments = _arguments(verb)
    params: list[click.Parameter] = [
        click.Argument([name], metavar=name.rpartition("_")[2].upper(), shell_complete=complete_name)
        for name in arguments]
    params += [_option(option) for option in verb.options]
    samples = "".join(" " + _ARGUMENTS[name][1] for name in arguments)
    return click.Command(
        verb.name,
        params=[*params, *([_watch()] if verb.method == "GET" and not verb.streams else []), _output(),
                target.context_option(hidden=True)],
        help=verb.help, short_help=verb.help, hidden=verb.hidden,
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


def _run(verb: Verb, values: Values) -> None:
    asked = click.get_current_context().ensure_object(dict)
    output = Output(asked.get("output", "table"), values.pop("watch_s", None))
    for option in verb.options:
        if option.kind == kinds.MAP:
            values[option.key] = dict(values[option.key])
    typed = dict(values)
    try:
        for name in _arguments(verb):
            if not values[name]:
                raise ValueError(f"{name.rpartition('_')[2].upper()} is empty")
            values[name] = _ARGUMENTS[name][0](values[name])
        broker = target.of(asked["who"]).broker()
        if verb.streams and verb.run is not None:
            _show_messages(verb.run(broker, values), output)
            return
        output.repeat(lambda: _show(verb, _ask(broker, verb, dict(values), is_json=output.form == "json"), output))
    except Refused as refused:
        if refused.status == _NOT_FOUND and (hint := _hint(broker, verb, typed)):
            raise Unknown(f"{refused}.{hint}") from None
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _hint(broker: Broker, verb: Verb, typed: Values) -> str:
    """Return a question for names like those that were typed, if these do not exist, or for a verb of partitions."""
    if "cluster" in typed or "tenant" in typed:
        kind = "cluster" if "cluster" in typed else "tenant"
        names = listed(broker, f"/admin/v2/{kind}s")
        return "" if typed[kind] in names else question(typed[kind], names)
    name = typed.get("topic") or typed.get("policies_topic") or typed.get("schema_topic") or typed.get("namespace")
    if not name:
        return ""
    if hint := hint_for(broker, name):
        return hint
    if verb.name in _OF_PARTITIONS and _has_partitions(broker, name):
        return f"  It has partitions.  Did you mean {_OF_PARTITIONS[verb.name]}?"
    if not typed.get("subscription"):
        return ""
    return question(typed["subscription"], listed(broker, f"/admin/v2/{topic_path(name)}/subscriptions"))


def _has_partitions(broker: Broker, topic: str) -> bool:
    try:
        return bool(broker.ask("GET", f"/admin/v2/{topic_path(topic)}/partitions").value()["partitions"])
    except Refused:
        return False


def _show(verb: Verb, value: Any, output: Output) -> None:
    """Print an answer; people get its page, or its table."""
    if output.form == "json":
        if value is not None:
            print(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))
    elif not output.is_for_people:
        if isinstance(value, list):
            output.rows(value, ())
        else:
            output.value(value, str)
    elif value is not None and value != []:
        print(show.text(verb.table(value) if verb.table else value))
    elif verb.method == "GET" and value is None:
        print("not set")


def _ask(broker: Broker, verb: Verb, values: Values, *, is_json: bool) -> Any:
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
    # The values of arguments and of topics are quoted already.
    ready = {*_arguments(verb), *(option.key for option in verb.options if option.kind == kinds.TOPIC)}
    placed = {name: value if name in ready else quoted(shown(value)) for name, value in values.items()}
    path = verb.of_one[1] if verb.of_one and values[verb.of_one[0]] is not None else verb.path
    if path.startswith(_OF_SUBSCRIPTION):
        placed["subscription"] = subscription_path(values["subscription"])
    path = path.format_map(placed)
    answer = broker.ask(verb.method, path if path.startswith("/") else "/admin/v2/" + path, query, fields or body)
    return (answer.body.decode(errors="replace") or None) if is_json else answer.value()


def _show_messages(entries: Iterator[Any], output: Output) -> None:
    """Print messages; json is a message on each line, as jsonl."""
    from geminga.supervisor.cli.admin import messages
    if not output.is_for_people:
        form = output._replace(form="jsonl" if output.form == "json" else output.form)
        form.rows(map(messages.as_json, entries), ())
        return
    number = 0
    for message in entries:
        print(("\n" if number else "") + messages.text(message))
        number += 1
    if not number:
        remark("there are no messages to show")
