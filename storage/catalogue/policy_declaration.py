"""The form of a policy's declaration: its values, its paths over REST, its verbs of `geminga admin`.

A policy has parts. One part without a name is a policy whose JSON is the bare value: `Part("", INTEGER)` takes `60`.
Parts with names make an object: `{"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}`.

The rows are in policy_table.py. The command imports this module, and has to start at once: the module imports next to
nothing.
"""
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from geminga.storage.catalogue.policy_values import INT_MAX, Invalid, OutOfRange, Type

NAMESPACE, TOPIC = "namespace", "topic"       # levels at which a policy can be set
SWITCH = "--enable -e / --disable -d"
_CENTURY_S, _LARGEST_BYTES = 100 * 365 * 24 * 3600, 1 << 50      # arbitrary: beyond use, and they catch a wrong unit
_NO_VALUE = object()


class Option(NamedTuple):
    """The command-line option that gives one value of a policy."""

    flags: str                               # "--time -t"; of a switch with two sides: "--enable -e / --disable -d"
    unit: str = ""                           # "seconds", "minutes", "ms": `10m`, `3h` are taken; "bytes", "MB": `10M`
    required: bool = False                   # the value of a policy that is no object always is
    sent: Any = None                         # value sent if the option is not given; None: the JSON lacks the value
    unless: str = ""                         # an option that makes a required switch unnecessary, and turns it on
    topic_flags: str = ""                    # names for topics if they differ


class Part(NamedTuple):
    """One value of a policy: its whole JSON, or a field of its JSON object."""

    json: str                                # the field's name; "": the policy's JSON is this value
    type: Type
    field: str = ""                          # of Policies; "": nothing depends on the value
    scale: int = 1                           # the field is the stored value times this; negative values stay
    means: dict[Any, Any] | None = None      # stored value -> the field
    key: str = ""                            # of StorageOptions, in the field's unit: the default
    default: Any = None                      # stored where an object lacks the value; None: nothing is stored
    otherwise: Any = None                    # shown as the value in force where none is set and there is no key
    blank: Any = _NO_VALUE                   # a value that leaves the next weaker level in force
    least: int | None = None                 # smaller numbers are out of range, ...
    most: int | None = None                  # ... and larger ones than this
    option: Option | None = None             # in `geminga admin`; a bare truth value has a SWITCH without saying so
    key_values: tuple[int, int] | None = None        # first and last of `key`, where the part's own bounds do not tell

    @property
    def key_range(self) -> tuple[int, int]:
        """First and last value of the key of a number."""
        if self.key_values is not None:
            return self.key_values
        first = -1 if self.least is None else self.least + (self.blank == self.least)
        last = _LARGEST_BYTES if "bytes" in self.key else _CENTURY_S if self.key.endswith("_s") else INT_MAX
        return first, last if self.most is None else self.most

    @property
    def key_choices(self) -> tuple[str, ...]:
        """Texts that the key takes; () if the type has no choices."""
        return tuple(choice for choice in self.type.choices if choice != self.blank)


class Nothing:
    """An answer to GET of a policy that is not set: a status instead of a value."""

    def __init__(self, status: int):
        self.status = status


NO_BODY, NO_CONTENT = Nothing(200), Nothing(204)
OWN_CLUSTER = Nothing(200)                   # a list with only the name of this cluster


class Route(NamedTuple):
    """The path of one policy at one level, and the meaning of requests to that path.

    Paths continue `/admin/v2/namespaces/TENANT/NAMESPACE/` or `/admin/v2/persistent/TENANT/NAMESPACE/TOPIC/`. A path
    has GET, the method that sets the policy, and DELETE.
    """

    path: str = ""                           # "": the policy's name
    method: str = "POST"                     # sets the policy
    status: int = 204                        # status of the answer to that method
    query: str = ""                          # a parameter that has the value; "": the body has it
    unset: Any = NO_BODY                     # answer of GET where nothing is set: a value, or a Nothing
    nullable: bool = True                    # setting null, or sending no body, removes the policy
    removable: bool = True                   # DELETE removes the policy
    refusal: str = ""                        # text for numbers that are too small; "": the general one
    kind: str = ""                           # value of backlogQuotaType, for policies that share a path
    member: str = ""                         # name in a namespace's object of policies; "a/b": member b of object a
    by_cluster: bool = False                 # whether `member` is an object with a value for each cluster
    implied: Any = None                      # the only value that can be set: there is no body, and no option
    remove: str = ""                         # the path of DELETE, where it differs
    right_to_get: str = ""                   # whose administration it is: "broker", "tenant"; "": the level's own
    right_to_set: str = ""                   # ... and to remove it
    is_raw: bool = False                     # the value is a text without quotes, in questions and answers


class Policy(NamedTuple):
    """The declaration of one policy, a row of TABLE."""

    name: str                                # in the catalogue
    doc: str                                 # one line
    parts: tuple[Part, ...]
    namespace: Route | None = Route()        # None: it cannot be set for namespaces
    topic: Route | None = Route()            # None: it cannot be set for topics
    verb: str = ""                           # stem of set-STEM, get-STEM, remove-STEM; "": the name with hyphens
    topic_verb: str = ""                     # stem for topics if it differs
    get: str = ""                            # stem of the verb get- for namespaces if it differs
    where: str = ""                          # the file that enforces it; "": it is stored without effect, ...
    why: str = ""                            # ... for this reason
    check: Callable[[Any], None] | None = None       # checks and completes the value to be stored; raises Invalid

    @property
    def is_object(self) -> bool:
        return bool(self.parts[0].json)

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels at which the policy can be set."""
        return tuple(level for level in (NAMESPACE, TOPIC) if self.route_at(level) is not None)

    def route_at(self, level: str) -> Route | None:
        return self.topic if level == TOPIC else self.namespace

    def verb_at(self, level: str) -> str:
        """Return the stem of the verbs for namespaces or for topics."""
        return self.topic_verb or self.verb if level == TOPIC else self.verb

    def options_at(self, level: str) -> list[tuple[Part, Option]]:
        """Return (value, option) for each value that has an option, in the order of the declaration."""
        pairs = [(part, part.option) for part in self.parts if part.option is not None]
        if level != TOPIC:
            return pairs
        return [(part, option._replace(flags=option.topic_flags or option.flags)) for part, option in pairs]


def declared(row: Policy) -> Policy:
    """Return a policy with paths, verb and option filled in where its row leaves them to its name and type."""
    namespace, topic = (route and route._replace(path=route.path or row.name) for route in (row.namespace, row.topic))
    verb = row.verb or re.sub("(?<=[a-z])(?=[A-Z])", "-", row.name).lower()
    parts = row.parts
    if not row.is_object and not any(route and route.implied is not None for route in (namespace, topic)):
        option = parts[0].option or Option(SWITCH)
        parts = parts[0]._replace(option=option._replace(required=True)),
    return row._replace(namespace=namespace, topic=topic, verb=verb, parts=parts)


# -- reading

def read(policy: Policy, sent: Any, *, name: str = "the value", too_small: str = "") -> Any:
    """Return a policy's value from a client (not None) in the form in which it is stored.  Raises Invalid.

    name: how error texts call a value that is not a field of an object. too_small: the error text for numbers that are
    too small.
    """
    if policy.is_object:
        if not isinstance(sent, dict):
            raise Invalid("expected an object")
        stored = {}
        for part in policy.parts:
            value = part.default if sent.get(part.json) is None else _value(part, sent[part.json], name, too_small)
            if value is not None:
                stored[part.json] = value
    else:
        stored = _value(policy.parts[0], sent, name, too_small)
    if policy.check is not None:
        policy.check(stored)
    return stored


def _value(part: Part, sent: Any, name: str, too_small: str) -> Any:
    try:
        value = part.type.read(sent)
    except ValueError as error:
        raise Invalid(f"{part.json}: {error}" if part.json else str(error)) from None
    if part.least is not None and value < part.least:
        raise OutOfRange(too_small or f"{part.json or name} must be {part.least} or more")
    if part.most is not None and value > part.most:
        raise OutOfRange(f"{part.json} must be {part.most} or less")
    return value


def fields(policy: Policy, stored: Any) -> dict[str, Any]:
    """Return {name: value} of the fields of `Policies` that a policy's stored value sets."""
    set_fields = {}
    for part in policy.parts:
        value = stored.get(part.json) if policy.is_object else stored
        if part.field and value is not None and value != part.blank:
            set_fields[part.field] = _meant(part, value)
    return set_fields


def _meant(part: Part, value: Any) -> Any:
    if part.means is not None:
        return part.means[value]
    if isinstance(value, list):
        return tuple(value)
    return value * part.scale if part.scale != 1 and value > 0 else value


def default(policy: Policy, options: Any) -> Any:
    """Return a policy's value where none is set, in stored form; None if there is no default.

    options: StorageOptions, which this module does not import.
    """
    values = {part.json: _default(part, options) for part in policy.parts}
    values = {name: value for name, value in values.items() if value is not None}
    return values.get("") if not policy.is_object else values or None


def _default(part: Part, options: Any) -> Any:
    if not part.key:
        return part.otherwise
    value = getattr(options, part.key)
    if part.scale != 1 and value > 0:
        return -(-value // part.scale)
    return list(value) if isinstance(value, tuple) else value
