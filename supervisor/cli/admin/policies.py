"""Verbs that set, get and remove policies, made from the table of policies."""
from collections.abc import Callable
from typing import Any

from geminga.storage.catalogue.policy_declaration import NAMESPACE, TOPIC, Part, Policy, Route
from geminga.storage.catalogue.policy_declaration import Option as ValueOption
from geminga.storage.catalogue.policy_table import TABLE
from geminga.supervisor.cli.admin.verb import FLAG, LIST, Option, Values, Verb

Row = tuple[Policy, Route]
# Verbs of topics that one subscription may have too: (option, path).
_OF_ONE = {"subscription-dispatch-rate": ("subscription", "{policies_topic}/{subscription}/dispatchRate")}
_SAMPLES = {"number": "5", "decimal": "2.5", "list": "standalone", "text": "name", "seconds": "10m", "minutes": "3h",
            "ms": "2s", "bytes": "10M", "MB": "1G"}


def verbs(level: str) -> list[Verb]:
    """Return the verbs of all policies for namespaces or for topics.

    Policies that share a verb, such as the backlog quotas, count as kinds of one policy.
    """
    rows: dict[str, list[Row]] = {}
    for policy in TABLE.values():
        route = policy.route_at(level)
        if route is not None:
            rows.setdefault(policy.verb_at(level), []).append((policy, route))
    return [verb for stem, kinds in rows.items() for verb in _three(level, stem, kinds)]


def of_scalable_topics() -> list[Verb]:
    """Return the verbs of the one policy that only scalable topics have."""
    row = TABLE["scalableTopicAutoScale"], Route("autoScalePolicy")
    return _three(TOPIC, "auto-scale-policy", [row], "scalable/{scalable_topic}/")


def _three(level: str, stem: str, kinds: list[Row], where: str = "") -> list[Verb]:
    """Return the verbs set-STEM, get-STEM and remove-STEM of one policy, or of several kinds that share the stem.

    where: the beginning of its paths; "": as the level has it.
    """
    policy, route = kinds[0]
    where = where or ("namespaces/{namespace}/" if level == NAMESPACE else "{policies_topic}/")
    path, named = where + route.path, route.path.partition("?")[0]
    kind: tuple[Option, ...] = ()
    if route.kind:      # a parameter of the path says which kind is set; one question shows all kinds
        path, named = where + named + "?" + route.path.partition("?")[2].partition("=")[0] + "={type}", named + "Map"
        choices = tuple(each.kind for _, each in kinds)
        kind = (Option("--type -t", "", "which quota", default=choices[0], choices=choices),)
    of_one = _OF_ONE.get(stem) if level == TOPIC else None
    if of_one:
        kind = (Option("--subscription -s", "", "only of this subscription"),)
    doc = policy.doc if len(kinds) == 1 else " ".join(each.doc for each, _ in kinds)
    applied: tuple[Option, ...] = ()
    if level == TOPIC:
        applied = (Option("--applied -ap -a", "?applied", "the value in force, wherever it was set", FLAG),)
    options, example, body = _settable(level, policy, route)
    get = policy.get if level == NAMESPACE else ""
    made = [Verb(f"set-{stem}", route.method, path, f"Set: {doc}", (*kind, *options), example, of_one, body),
            Verb(f"get-{get or stem}", "GET", where + named, f"Show: {doc}",
                 (*(kind if of_one else ()), *applied), "", of_one)]
    if route.removable or route.nullable:
        method, place = route.method, path
        if route.removable:
            method, place = "DELETE", where + route.remove if route.remove else path
        made.append(Verb(f"remove-{stem}", method, place,
                         f"Remove, so that the next higher level's value is in force: {doc}", kind, "", of_one))
    return made


def _settable(level: str, policy: Policy,
              route: Route) -> tuple[list[Option], str, Callable[[Values], Any] | None]:
    """Return the options with which a policy is set, an example, and a function that makes the JSON body.

    The function takes the values of the options.  A request without a body has None instead of the function.
    """
    options: list[Option] = []
    example: list[str] = []
    makers: list[tuple[str, Callable[[Values], Any]]] = []
    for part, option in policy.options_at(level):
        of_part = _options(part, option, route)
        options += of_part
        if option.required or not example:
            short = min(of_part[0].flags.split(), key=len)
            example.append(short if of_part[0].kind == FLAG else f"{short} {_sample(part, option)}")
        makers.append((part.json, _maker(option, of_part)))
    if not makers:
        return [], "", None
    if route.query:
        return [options[0]._replace(to="?" + route.query), *options[1:]], " ".join(example), None
    if not policy.is_object:
        return options, " ".join(example), makers[0][1]
    return options, " ".join(example), lambda values: {
        name: value for name, make in makers if (value := make(values)) is not None}


def _options(part: Part, option: ValueOption, route: Route) -> list[Option]:
    if part.type.name == "true or false":
        sides = [side.strip() for side in option.flags.split("/")]
        return [Option(side, "", "", FLAG) for side in sides]
    kind = option.unit or (LIST if part.type.name == "list" else part.type.name)
    choices = part.type.choices
    help = part.json or route.path.partition("?")[0]
    if kind == LIST and choices:
        help, choices = f"{help}: some of {', '.join(choices)}", ()
    return [Option(option.flags, "", help, kind, option.sent, option.required, choices)]


def _maker(option: ValueOption, options: list[Option]) -> Callable[[Values], Any]:
    keys = [each.key for each in options]
    if len(keys) == 1:
        return lambda values: values[keys[0]]

    def which(values: Values) -> bool | None:
        on, off = (values[key] for key in keys)
        if not (on or off) and values.get(option.unless) is not None:
            return True
        if (on and off) or (option.required and not (on or off)):
            raise ValueError(f"give either --{keys[0]} or --{keys[1]}".replace("_", "-"))
        return True if on else False if off else None
    return which


def _sample(part: Part, option: ValueOption) -> str:
    return part.type.choices[-1] if part.type.choices else _SAMPLES[option.unit or part.type.name]


def table() -> list[dict[str, str]]:
    """Return the rows that `geminga admin policies` prints, one for each policy."""
    return [{"policy": policy.name,
             "namespaces": f"set-{policy.verb_at(NAMESPACE)}" if NAMESPACE in policy.levels else "-",
             "topics": f"set-{policy.verb_at(TOPIC)}" if TOPIC in policy.levels else "-",
             "meaning": policy.doc + ("" if policy.where else f" No effect here: {policy.why}")}
            for policy in TABLE.values()]
