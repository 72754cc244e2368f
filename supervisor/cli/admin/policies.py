"""Verbs that set, get and remove policies, made of the table of policies."""
from collections.abc import Callable
from typing import Any

from geminga.storage.catalogue.policy_table import TABLE, Level, Part, Policy, flags_of
from geminga.supervisor.cli.admin.verb import FLAG, LIST, Option, Verb

Row = tuple[Policy, Level]
_OF_ONE = {"subscription-dispatch-rate": ("subscription", "{topic}/{subscription}/dispatchRate")}     # what one subscription may have
_SAMPLES = {"number": "5", "decimal": "2.5", "list": "standalone", "text": "name", "seconds": "10m", "minutes": "3h", "ms": "2s",
            "bytes": "10M", "MB": "1G"}


def verbs(of: str) -> list[Verb]:
    """Of "namespace" or "topic".  Rows with the same verb are kinds of one policy."""
    rows: dict[str, list[Row]] = {}
    for policy in TABLE.values():
        level = getattr(policy, of)
        if level is not None:
            rows.setdefault(level.verb, []).append((policy, level))
    return [verb for kinds in rows.values() for verb in _three(of, kinds)]


def _three(of: str, kinds: list[Row]) -> list[Verb]:
    policy, level = kinds[0]
    where = "namespaces/{namespace}/" if of == "namespace" else "{topic}/"
    path, named = where + level.path, level.path.partition("?")[0]
    kind: tuple[Option, ...] = ()
    if level.kind:      # the query's value says which one; there is one question for all of them
        path, named = where + named + "?" + level.path.partition("?")[2].partition("=")[0] + "={type}", named + "Map"
        choices = tuple(each.kind for _, each in kinds)
        kind = (Option("--type -t", "", "which quota", default=choices[0], choices=choices),)
    of_one = _OF_ONE.get(level.verb) if of == "topic" else None
    if of_one:
        kind = (Option("--subscription -s", "", "only of this subscription"),)
    doc = policy.doc if len(kinds) == 1 else " ".join(each.doc for each, _ in kinds)
    applied = (Option("--applied -ap -a", "?applied", "what holds, wherever it was set", FLAG),) if of == "topic" else ()
    options, example, body = _settable(kinds)
    made = [Verb(f"set-{level.verb}", level.method, path, f"Set: {doc}", (*kind, *options), example, of_one, body),
            Verb(f"get-{level.get or level.verb}", "GET", where + named, f"Show: {doc}", (*(kind if of_one else ()), *applied), "", of_one)]
    if level.removable or level.nullable:
        method, place = ("DELETE", where + level.remove if level.remove else path) if level.removable else (level.method, path)
        made.append(Verb(f"remove-{level.verb}", method, place, f"Remove, so that what is set further up holds: {doc}", kind, "", of_one))
    return made


def _settable(kinds: list[Row]) -> tuple[list[Option], str, Callable[[dict[str, Any]], Any] | None]:
    """Options, an example, and what makes JSON of their values."""
    options: list[Option] = []
    example: list[str] = []
    makers: list[tuple[str, Callable[[dict[str, Any]], Any]]] = []
    for part, flags in flags_of(*kinds[0]):
        found = _options(part, flags, kinds[0][1])
        options += found
        if part.required or not example:
            short = min(found[0].flags.split(), key=len)
            example.append(short if found[0].kind == FLAG else f"{short} {_sample(part)}")
        makers.append((part.json, _maker(part, found)))
    if not makers:
        return [], "", None
    if kinds[0][1].query:
        return [options[0]._replace(to="?" + kinds[0][1].query), *options[1:]], " ".join(example), None
    if not kinds[0][0].is_object:
        return options, " ".join(example), makers[0][1]
    return options, " ".join(example), lambda values: {name: value for name, make in makers if (value := make(values)) is not None}


def _options(part: Part, flags: str, level: Level) -> list[Option]:
    if part.type.name == "true or false":
        sides = [side.strip() for side in flags.split("/")]
        return [Option(side, "", "", FLAG) for side in sides]
    kind = part.unit or (LIST if part.type.name == "list" else part.type.name)
    choices = part.type.choices
    help = part.json or level.path.partition("?")[0]
    if kind == LIST and choices:
        help, choices = f"{help}: some of {', '.join(choices)}", ()
    return [Option(flags, "", help, kind, part.sent, part.required, choices)]


def _maker(part: Part, options: list[Option]) -> Callable[[dict[str, Any]], Any]:
    keys = [option.key for option in options]
    if len(keys) == 1:
        return lambda values: values[keys[0]]

    def which(values: dict[str, Any]) -> bool | None:
        on, off = (values[key] for key in keys)
        if not (on or off) and values.get(part.unless) is not None:
            return True
        if (on and off) or (part.required and not (on or off)):
            raise ValueError(f"give either --{keys[0]} or --{keys[1]}".replace("_", "-"))
        return True if on else False if off else None
    return which


def _sample(part: Part) -> str:
    return part.type.choices[-1] if part.type.choices else _SAMPLES[part.unit or part.type.name]


def table() -> list[dict[str, str]]:
    """All policies, for people: a row each."""
    return [{"policy": policy.name,
             "namespaces": f"set-{policy.namespace.verb}" if policy.namespace else "-",
             "topics": f"set-{policy.topic.verb}" if policy.topic else "-",
             "": policy.doc + ("" if policy.where else f" No effect here: {policy.why}")} for policy in TABLE.values()]
