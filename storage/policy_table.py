"""The table of policies: each is declared here once, as one `Policy`, and nowhere else.

Everything that has to do with policies is made from TABLE:

    what was set       kept in the catalogue under `Policy.name`, for a namespace or a topic, as its JSON (`read` makes it so)
    what holds         each `Part` that has an effect names a field of `storage.policies.Policies`, and the key of StorageOptions
                       that holds where nobody set anything; whoever puts it into effect looks at `partition.policies.FIELD`
    REST               supervisor/admin/policies.py makes GET, POST or PUT, and DELETE of every `Level`
    command line       `geminga admin namespaces|topics set-VERB, get-VERB, remove-VERB` with an option per part
    documentation      `geminga admin policies` prints the table

A policy more is one row, a field of Policies, a key of StorageOptions if the broker is to have a default, and its effect.  A row has
parts.  One part without a `json` name is a policy whose JSON is the bare value: `Policy("messageTTL", ..., (Part("", INTEGER, ...),))` is
`60`.  Parts with names make an object: `{"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}`.

Levels say where a policy can be set and what differs there: its path below `namespaces/T/N/` or `persistent/T/N/TOPIC/`, the method that
sets it, what GET answers when it is not set, and pulsar-admin's words for it.  What a topic's level sets is stronger than its
namespace's.  GET with `applied=true` gives what holds.

For a command line: set-VERB sends `Level.method` to `Level.path` with the JSON made of the options; remove-VERB sends DELETE, unless
the level is not `removable`; get-VERB (`Level.get` where it differs) sends GET.  `flags_of(policy, level)` pairs each part with its
flags, in order: `"--time -t"`; for a part of type BOOLEAN two sets of flags: `"--enable -e / --disable -d"`.  `Part.unit` is how people
write the value: "" a number, a text or a list with commas; "seconds", "minutes" or "ms": a number of those, or with a unit (`10m`, `3h`,
`2d`, `5w`); "bytes" or "MB": bytes, or with a unit (`10M`, `16G`).  A part without flags is not set from the command line.
`Part.required` options must be given, others are left out of the JSON.  Where `Level.query` is set the value is that parameter, and
there is no body.  Rows that share a verb (the backlog quotas) differ in `Level.kind`: pulsar-admin's `--type -t` picks
one, the first by default; their GET is `backlogQuotaMap`.

This module imports next to nothing, as the command line has to start at once.
"""
from collections.abc import Callable
from typing import Any, NamedTuple

INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
MIB = 1 << 20
HOLD, EXCEPTION, EVICTION = QUOTA_ACTIONS = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")


class Invalid(ValueError):
    """What a client sent is not a value of the policy; status is HTTP's."""

    def __init__(self, text: str, status: int = 400):
        super().__init__(text)
        self.status = status


class Nothing:
    """What GET answers for a policy that is not set, where it is no value."""

    def __init__(self, status: int):
        self.status = status


NO_BODY, NO_CONTENT = Nothing(200), Nothing(204)
_NO_VALUE = object()


class Type(NamedTuple):
    """Of a part."""

    name: str                                # "number", "decimal", "true or false", "text", "list"
    read: Callable[[Any], Any]               # JSON -> value; raises ValueError
    choices: tuple[str, ...] = ()


class Part(NamedTuple):
    """One value: the whole JSON of a policy, or a field of its object."""

    json: str                                # the field's name; "": the value is all there is
    type: Type
    flags: str = ""                          # pulsar-admin's, see above
    unit: str = ""
    required: bool = False                   # by the command line
    field: str = ""                          # of Policies; "": nothing looks at it
    scale: int = 1                           # what is kept, times this, is the field; negative values stay
    key: str = ""                            # of StorageOptions, in the field's unit: what holds where nothing is set
    default: Any = None                      # what is kept when an object lacks it; None: nothing
    otherwise: Any = None                    # what is shown to hold where nothing is set and there is no key
    blank: Any = _NO_VALUE                   # a value that says: what is set further up holds
    least: int | None = None                 # smaller numbers are refused with 412
    member: str = ""                         # another name of the field in what namespaces are shown as


class Level(NamedTuple):
    """Where and how a policy is set: of namespaces, or of topics."""

    path: str                                # last part of the REST path
    verb: str                                # stem of pulsar-admin's set-, get- and remove-
    flags: tuple[str, ...] = ()              # where pulsar-admin's differ from the parts' own
    method: str = "POST"                     # that sets it
    status: int = 204                        # when that is done
    query: str = ""                          # parameter that has the value, instead of the body
    unset: Any = NO_BODY                     # what GET answers: NO_BODY (200), NO_CONTENT (204), or a value
    nullable: bool = False                   # no body, or null, takes it away
    removable: bool = True                   # DELETE does
    refusal: str = ""                        # what is said of numbers that are too small
    get: str = ""                            # pulsar-admin's other word after get-
    kind: str = ""                           # value of pulsar-admin's --type, of rows that share a verb
    member: str = ""                         # its name in the object that a namespace is made with and shown as; "a/b": b of object a
    by_cluster: bool = False                 # there it is an object of clusters: {"standalone": ...}


class Policy(NamedTuple):
    """A row."""

    name: str                                # in the catalogue
    doc: str                                 # one line
    parts: tuple[Part, ...]
    namespace: Level | None = None
    topic: Level | None = None
    where: str = ""                          # file in which it takes effect; "": it has none here
    why: str = ""                            # ... because
    check: Callable[[Any], None] | None = None       # of what is to be kept; raises Invalid

    @property
    def is_object(self) -> bool:
        return bool(self.parts[0].json)


# -- reading

def read(policy: Policy, level: Level, sent: Any) -> Any:
    """What a client sent (not None), as it is kept.  Raises Invalid."""
    if policy.is_object:
        if not isinstance(sent, dict):
            raise Invalid("expected an object")
        kept = {}
        for part in policy.parts:
            value = part.default if sent.get(part.json) is None else _value(level, part, sent[part.json])
            if value is not None:
                kept[part.json] = value
    else:
        kept = _value(level, policy.parts[0], sent)
    if policy.check is not None:
        policy.check(kept)
    return kept


def _value(level: Level, part: Part, sent: Any) -> Any:
    try:
        value = part.type.read(sent)
    except ValueError as error:
        raise Invalid(f"{part.json}: {error}" if part.json else str(error)) from None
    if part.least is not None and value < part.least:
        raise Invalid(level.refusal or f"{part.json or level.path} must be {part.least} or more", 412)
    return value


def fields(policy: Policy, kept: Any) -> dict[str, Any]:
    """What is kept -> fields of Policies."""
    found = {}
    for part in policy.parts:
        value = kept.get(part.json) if policy.is_object else kept
        if part.field and value is not None and value != part.blank:
            found[part.field] = value * part.scale if part.scale != 1 and value > 0 else tuple(value) if isinstance(value, list) else value
    return found


def default(policy: Policy, options: Any) -> Any:
    """What holds where nothing is set, as it would be kept; None where nothing does.  options: StorageOptions."""
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


def flags_of(policy: Policy, level: Level) -> list[tuple[Part, str]]:
    """Parts that can be set from the command line, with their flags there."""
    flags = level.flags or tuple(part.flags for part in policy.parts)
    return [(part, text) for part, text in zip(policy.parts, flags, strict=True) if text]


# -- types

def _integer(last: int) -> Callable[[Any], int]:
    def read_integer(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError("expected a whole number")
        try:
            value = int(value)
        except ValueError:
            raise ValueError("expected a whole number") from None
        if abs(value) > last:
            raise ValueError("the number is too large")
        return value
    return read_integer


def _decimal(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LONG_MAX:
        raise ValueError("expected a number")
    return value


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ValueError("expected true or false")


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4_096:
        raise ValueError("expected a text")
    return value


def one_of(*choices: str) -> Type:
    def read_choice(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return value
    return Type("text", read_choice, choices)


def some_of(*choices: str) -> Type:
    def read_choices(value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(one, str) and one in choices for one in value):
            raise ValueError(f"expected a list of {', '.join(choices)}")
        return sorted(set(value))
    return Type("list", read_choices, choices)


INTEGER, LONG = Type("number", _integer(INT_MAX)), Type("number", _integer(LONG_MAX))
DECIMAL, BOOLEAN, TEXT = Type("decimal", _decimal), Type("true or false", _boolean), Type("text", _text)


# -- checks of what goes together

def _retention(kept: dict[str, int]) -> None:
    minutes, mib = kept["retentionTimeInMinutes"], kept["retentionSizeInMB"]
    if minutes < -1:
        raise Invalid("Invalid retention policy: time limit must be >= -1")
    if mib < -1:
        raise Invalid("Invalid retention policy: size limit must be >= -1")
    if (minutes == 0) != (mib == 0):
        raise Invalid("Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a non-zero"
                      " value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both limits must be set"
                      " to 0.")
    if mib > LONG_MAX // MIB:
        raise Invalid("Invalid retention policy: the size limit is too large")


def _quota(kept: dict[str, Any]) -> None:
    """The size has two names; what is kept has it under both."""
    if "policy" not in kept:
        raise Invalid(f"The backlog quota's policy is one of {', '.join(QUOTA_ACTIONS)}")
    kept["limit"] = kept["limitSize"] = kept.get("limitSize", kept.get("limit", 0))


# -- the table

def _quota_parts(size: str, age: str, action: str) -> tuple[Part, ...]:
    """The one that is not of this kind has no effect."""
    return (Part("limit", LONG, key="backlog_quota_bytes" if size else "", otherwise=-1),
            Part("limitSize", LONG, "--limit -l", "bytes", field=size, key="backlog_quota_bytes" if size else "", otherwise=-1),
            Part("limitTime", LONG, "--limitTime -lt", "seconds", field=age, key="backlog_quota_age_s" if age else "", default=0,
                 otherwise=-1),
            Part("policy", one_of(*QUOTA_ACTIONS), "--policy -p", required=True, field=action, key="backlog_quota_policy"))


def _quota_levels(kind: str) -> tuple[Level, Level]:
    path = f"backlogQuota?backlogQuotaType={kind}"
    return (Level(path, "backlog-quota", get="backlog-quotas", kind=kind, member=f"backlog_quota_map/{kind}", nullable=True),
            Level(path, "backlog-quota", kind=kind, nullable=True))


def _dispatch_parts(stem: str, of: str) -> tuple[Part, ...]:
    """Fields and options whose names begin with stem; of what the broker has a default."""
    return (Part("dispatchThrottlingRateInMsg", INTEGER, "--msg-dispatch-rate -md", field=f"{stem}_messages",
                 key=f"dispatch_messages_per_{of}", default=0),
            Part("dispatchThrottlingRateInByte", LONG, "--byte-dispatch-rate -bd", "bytes", field=f"{stem}_bytes",
                 key=f"dispatch_bytes_per_{of}", default=0),
            Part("relativeToPublishRate", BOOLEAN, "--relative-to-publish-rate -rp", field=f"{stem}_relative",
                 key="dispatch_relative_to_publish", default=False),
            Part("ratePeriodInSecond", INTEGER, "--dispatch-rate-period -dt", "seconds", field=f"{stem}_period_s", default=0, otherwise=1))


_SWITCH = "--enable -e / --disable -d"
TABLE = {policy.name: policy for policy in (
    Policy("retention", "How long, and how much of, what everybody has acknowledged is kept.", (
        Part("retentionTimeInMinutes", INTEGER, "--time -t", "minutes", required=True, field="retention_s", scale=60, key="retention_s",
             default=0),
        Part("retentionSizeInMB", LONG, "--size -s", "MB", required=True, field="retention_bytes", scale=MIB, key="retention_bytes",
             default=0)),
        Level("retention", "retention", nullable=True, member="retention_policies"), Level("retention", "retention", nullable=True),
        where="storage/retention.py", check=_retention),
    Policy("messageTTL", "How long what is not acknowledged is kept; 0: for ever.", (
        Part("", INTEGER, unit="seconds", required=True, field="message_ttl_s", key="message_ttl_s", least=0),),
        Level("messageTTL", "message-ttl", ("--messageTTL -ttl",), member="message_ttl_in_seconds",
              refusal="Invalid value for message TTL, message TTL must >= 0"),
        Level("messageTTL", "message-ttl", ("--ttl -t",), query="messageTTL", nullable=True, refusal="Invalid value for message TTL"),
        where="storage/expiry.py"),
    Policy("backlogQuota/destination_storage", "Bytes that the slowest subscription may have before it, and what happens above.",
           _quota_parts("quota_bytes", "", "quota_bytes_action"), *_quota_levels("destination_storage"),
           where="storage/quota.py", check=_quota),
    Policy("backlogQuota/message_age", "Age of the oldest message that is not acknowledged, and what happens above.",
           _quota_parts("", "quota_age_s", "quota_age_action"), *_quota_levels("message_age"),
           where="storage/quota.py", check=_quota),
    Policy("deduplication", "Whether what a producer sends again is stored once.", (
        Part("", BOOLEAN, _SWITCH, required=True, field="deduplication", key="deduplication"),),
        Level("deduplication", "deduplication", member="deduplicationEnabled"),
        Level("deduplicationEnabled", "deduplication", nullable=True),
        where="storage/sequences.py"),
    Policy("publishRate", "What may be published to a topic in a second; what comes above waits, and 0 or less is no bound.", (
        Part("publishThrottlingRateInMsg", INTEGER, "--msg-publish-rate -m", field="publish_messages", key="publish_messages_per_topic",
             default=-1),
        Part("publishThrottlingRateInByte", LONG, "--byte-publish-rate -b", "bytes", field="publish_bytes", key="publish_bytes_per_topic",
             default=-1)),
        Level("publishRate", "publish-rate", nullable=True, member="publishMaxMessageRate", by_cluster=True),
        Level("publishRate", "publish-rate", nullable=True, unset=NO_CONTENT), where="storage/rates.py"),
    Policy("dispatchRate", "What all consumers of a topic together are given in a time.", _dispatch_parts("dispatch", "topic"),
           Level("dispatchRate", "dispatch-rate", nullable=True, member="topicDispatchRate", by_cluster=True),
           Level("dispatchRate", "dispatch-rate", nullable=True), where="storage/rates.py"),
    Policy("subscriptionDispatchRate", "What the consumers of each subscription together are given in a time.",
           _dispatch_parts("subscription_dispatch", "subscription"),
           Level("subscriptionDispatchRate", "subscription-dispatch-rate", nullable=True, member="subscriptionDispatchRate",
                 by_cluster=True),
           Level("subscriptionDispatchRate", "subscription-dispatch-rate", nullable=True), where="storage/rates.py"),
    Policy("subscribeRate", "How often a consumer may subscribe to a topic in a time.", (
        Part("subscribeThrottlingRatePerConsumer", INTEGER, "--subscribe-rate -sr", field="subscribe_count",
             key="subscribes_per_consumer", default=-1),
        Part("ratePeriodInSecond", INTEGER, "--subscribe-rate-period -st", "seconds", field="subscribe_period_s",
             key="subscribe_period_s", default=30)),
        Level("subscribeRate", "subscribe-rate", nullable=True, member="clusterSubscribeRate", by_cluster=True),
        Level("subscribeRate", "subscribe-rate", nullable=True), where="storage/rates.py"),
)}
