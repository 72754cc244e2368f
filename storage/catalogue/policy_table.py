"""The table of policies: each is declared here once, as one `Policy`, and nowhere else.

Everything that has to do with policies is made from TABLE:

    what was set       kept in the catalogue under `Policy.name`, for a namespace or a topic, as its JSON (`read` makes it so)
    what holds         each `Part` that has an effect names a field of `storage.policies.Policies`, and the key of StorageOptions
                       that holds where nobody set anything; whoever puts it into effect looks at `partition.policies.FIELD`
    REST               supervisor/admin/resources/policies.py makes GET, POST or PUT, and DELETE of every `Level`
    command line       `geminga admin namespaces|topics set-VERB, get-VERB, remove-VERB` with an option per part
    documentation      `geminga admin policies` prints the table, systemd/reference.py makes docs/policies.md

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
`Part.required` options must be given, unless another one does as well (`Part.unless`); of others the JSON has `Part.sent`, or nothing.
A BOOLEAN with one set of flags is false without.  Where `Level.query` is set the value is that parameter, and there is no body; where
`Level.implied` is, there is no body at all.  Rows that share a verb (the backlog quotas) differ in `Level.kind`: pulsar-admin's
`--type -t` picks one, the first by default; their GET is `backlogQuotaMap`.

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


NO_BODY, NO_CONTENT, OWN_CLUSTER = Nothing(200), Nothing(204), Nothing(200)      # the last: a list of just our cluster
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
    sent: Any = None                         # by the command line where the option is not given
    field: str = ""                          # of Policies; "": nothing looks at it
    scale: int = 1                           # what is kept, times this, is the field; negative values stay
    means: dict[Any, Any] | None = None      # what is kept -> the field
    key: str = ""                            # of StorageOptions, in the field's unit: what holds where nothing is set
    default: Any = None                      # what is kept when an object lacks it; None: nothing
    otherwise: Any = None                    # what is shown to hold where nothing is set and there is no key
    blank: Any = _NO_VALUE                   # a value that says: what is set further up holds
    least: int | None = None                 # smaller numbers are refused with 412
    most: int | None = None                  # likewise larger ones
    unless: str = ""                         # of a required switch: the option that says as much as the first of its flags
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
    implied: Any = None                      # what is set; there is no body
    remove: str = ""                         # another path for DELETE
    is_raw: bool = False                     # a text without quotes, in both directions; with quotes it is understood, too


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
    if part.most is not None and value > part.most:
        raise Invalid(f"{part.json} must be {part.most} or less", 412)
    return value


def fields(policy: Policy, kept: Any) -> dict[str, Any]:
    """What is kept -> fields of Policies."""
    found = {}
    for part in policy.parts:
        value = kept.get(part.json) if policy.is_object else kept
        if part.field and value is not None and value != part.blank:
            found[part.field] = _meant(part, value)
    return found


def _meant(part: Part, value: Any) -> Any:
    if part.means is not None:
        return part.means[value]
    if isinstance(value, list):
        return tuple(value)
    return value * part.scale if part.scale != 1 and value > 0 else value


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
        return int(value)
    return read_integer


def _decimal(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LONG_MAX:
        raise ValueError("expected a number")
    return value


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ValueError("expected true or false")


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4_096:
        raise ValueError("expected a text")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > 1_000 or not all(isinstance(one, str) and len(one) <= 4_096 for one in value):
        raise ValueError("expected a list of texts")
    return value


def one_of(*choices: str) -> Type:
    def read_choice(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"expected one of {', '.join(filter(None, choices))}")
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


def _inactive(kept: dict[str, Any]) -> None:
    if "inactiveTopicDeleteMode" not in kept:
        raise Invalid(f"inactiveTopicDeleteMode: expected one of {', '.join(DELETE_MODES)}")


def _auto_creation(kept: dict[str, Any]) -> None:
    """What is not to happen needs no details."""
    if not kept["allowAutoTopicCreation"]:
        return
    kind: str | None = kept.get("topicType")
    partitions: Any = kept.get("defaultNumPartitions")
    text = ""
    if not kind:
        text = "Unknown topic type [null]"
    elif kind == "partitioned" and partitions is None:
        text = "[defaultNumPartitions] cannot be null when the type is partitioned."
    elif kind == "partitioned" and partitions <= 0:
        text = "[defaultNumPartitions] cannot be less than 1 for partition type."
    elif kind == "partitioned" and partitions > PARTITIONS_MAX:
        text = f"[defaultNumPartitions] cannot be more than {PARTITIONS_MAX}."
    elif kind == "non-partitioned" and partitions is not None:
        text = "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
    if text:
        raise Invalid(f"Invalid configuration for autoTopicCreationOverride. the detail is {text}", 412)


def _delays(kept: dict[str, Any]) -> None:
    """Who demands a delay and does not say whether there are any means that there are."""
    kept.setdefault("active", bool(kept.get("fixedDeliveryDelayInMillis")))


def _persistence(kept: dict[str, Any]) -> None:
    ensemble, write, ack = (kept[name] for name in ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum"))
    for name, value in (("Bookkeeper-Ensemble", ensemble), ("WriteQuorum", write), ("AckQuorum", ack)):
        if not 0 < value <= 5:
            raise Invalid(f"{name} must be <= 5 and > 0.")
    if not ensemble >= write >= ack:
        raise Invalid(f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack})")


def _entry_filters(kept: dict[str, Any]) -> None:
    name = kept.get("entryFilterNames", "").split(",")[0]
    raise Invalid(f"Entry filter '{name}' not found" if name else
                  "entryFilterNames can't be empty. To remove entry filters use the remove method.")


def _offload(kept: dict[str, Any]) -> None:
    if kept.get("managedLedgerOffloadDriver") not in _DRIVERS:
        raise Invalid(f"The driver is not supported, support value: {','.join(_DRIVERS)}", 412)


# -- the table

PARTITIONS_MAX = 16_384      # of one topic; arbitrary, and more than one host has a use for
SUBSCRIPTION_TYPES = ("Exclusive", "Failover", "Key_Shared", "Shared")
DELETE_MODES = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
STRATEGIES = ("UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE",
              "FORWARD_TRANSITIVE", "FULL_TRANSITIVE")
_OLD_STRATEGIES = {"AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE", "Backward": "BACKWARD", "Forward": "FORWARD", "Full": "FULL",
                   "AlwaysCompatible": "ALWAYS_COMPATIBLE", "BackwardTransitive": "BACKWARD_TRANSITIVE",
                   "ForwardTransitive": "FORWARD_TRANSITIVE", "FullTransitive": "FULL_TRANSITIVE"}
_DRIVERS = ("S3", "aws-s3", "google-cloud-storage", "filesystem", "azureblob", "aliyun-oss")
_NO_OFFLOAD = "Nothing is moved to other stores."
TOO_LARGE_SIZE = "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the broker-level"


TICK_MS_MAX, WINDOW_MS_MIN, WINDOW_MS_MAX = 24 * 3600 * 1000, 1_000, 4 * 7 * 24 * 3600 * 1000
DELAY_MS_MAX = 100 * 365 * 24 * 3600 * 1000      # arbitrary, and more than anybody waits for


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


# What clients' libraries send besides; secrets are not kept.
_OFFLOAD_MORE = (
    *(Part(name, INTEGER) for name in ("managedLedgerOffloadMaxThreads", "managedLedgerOffloadPrefetchRounds")),
    *(Part(f"{stem}{field}", kind) for stem in ("s3", "gcs") for field, kind in (
        ("ManagedLedgerOffloadRegion", TEXT), ("ManagedLedgerOffloadBucket", TEXT), ("ManagedLedgerOffloadMaxBlockSizeInBytes", LONG),
        ("ManagedLedgerOffloadReadBufferSizeInBytes", LONG))),
    *(Part(name, TEXT) for name in ("s3ManagedLedgerOffloadServiceEndpoint", "s3ManagedLedgerOffloadRole",
                                    "s3ManagedLedgerOffloadRoleSessionName", "offloadersDirectory")),
    Part("managedLedgerOffloadAutoTriggerSizeThresholdBytes", LONG))
_SWITCH = "--enable -e / --disable -d"
TABLE = {policy.name: policy for policy in (
    Policy("retention", "Time and size up to which messages are kept after every subscription has acknowledged them.", (
        Part("retentionTimeInMinutes", INTEGER, "--time -t", "minutes", required=True, field="retention_s", scale=60, key="retention_s",
             default=0),
        Part("retentionSizeInMB", LONG, "--size -s", "MB", required=True, field="retention_bytes", scale=MIB, key="retention_bytes",
             default=0)),
        Level("retention", "retention", nullable=True, member="retention_policies"), Level("retention", "retention", nullable=True),
        where="storage/enforcement/retention.py", check=_retention),
    Policy("messageTTL", "Time for which unacknowledged messages are kept; 0: for ever.", (
        Part("", INTEGER, unit="seconds", required=True, field="message_ttl_s", key="message_ttl_s", least=0),),
        Level("messageTTL", "message-ttl", ("--messageTTL -ttl",), member="message_ttl_in_seconds",
              refusal="Invalid value for message TTL, message TTL must >= 0"),
        Level("messageTTL", "message-ttl", ("--ttl -t",), query="messageTTL", nullable=True, refusal="Invalid value for message TTL"),
        where="storage/enforcement/message_ttl.py"),
    Policy("backlogQuota/destination_storage", "Bytes of backlog that the slowest subscription may have, and the effect above.",
           _quota_parts("quota_bytes", "", "quota_bytes_action"), *_quota_levels("destination_storage"),
           where="storage/enforcement/backlog_quota.py", check=_quota),
    Policy("backlogQuota/message_age", "Age that the oldest unacknowledged message may have, and the effect above.",
           _quota_parts("", "quota_age_s", "quota_age_action"), *_quota_levels("message_age"),
           where="storage/enforcement/backlog_quota.py", check=_quota),
    Policy("deduplication", "Whether a message that a producer sends again is stored once.", (
        Part("", BOOLEAN, _SWITCH, required=True, field="deduplication", key="deduplication"),),
        Level("deduplication", "deduplication", member="deduplicationEnabled"),
        Level("deduplicationEnabled", "deduplication", nullable=True),
        where="storage/cursors/producer_sequences.py"),
    Policy("deduplicationSnapshotInterval", "Seconds between two snapshots of the last sequence ids.", (
        Part("", INTEGER, "--interval -i", required=True, least=0),),
        Level("deduplicationSnapshotInterval", "deduplication-snapshot-interval", nullable=True, removable=False,
              member="deduplicationSnapshotIntervalSeconds", refusal="interval must be greater than or equal to 0"),
        Level("deduplicationSnapshotInterval", "deduplication-snapshot-interval", nullable=True, refusal="interval must be 0 or more"),
        why="There are no snapshots: sequence ids are stored with their entries."),
    Policy("delayedDelivery", "Whether messages are delivered not before their time, and how long they may or must be delayed.", (
        Part("tickTime", LONG, "--time -t", "ms", sent=1_000, field="delay_tick_ms", key="delayed_delivery_tick_ms", default=0, blank=0,
             least=0, most=TICK_MS_MAX),
        Part("active", BOOLEAN, _SWITCH, required=True, unless="fixed_delay", field="delayed_delivery", key="delayed_delivery"),
        Part("maxDeliveryDelayInMillis", LONG, "--maxDelay -md", "ms", field="delay_max_ms", key="delayed_delivery_max_ms", default=0,
             least=0, most=DELAY_MS_MAX),
        Part("fixedDeliveryDelayInMillis", LONG, "--fixed-delay -fd", "ms", field="delay_fixed_ms", key="delayed_delivery_fixed_ms",
             least=0, most=DELAY_MS_MAX),
        Part("timePartitionGranularityInMillis", LONG, "--time-partition-granularity -p", "ms", field="delay_window_ms",
             key="delayed_delivery_window_ms", least=WINDOW_MS_MIN, most=WINDOW_MS_MAX)),
        Level("delayedDelivery", "delayed-delivery", nullable=True, member="delayed_delivery_policies"),
        Level("delayedDelivery", "delayed-delivery", nullable=True),
        where="storage/enforcement/delay_policy.py", check=_delays),
    Policy("compactionThreshold", "Bytes that may come after a compaction before the next one; 0: the topic is not compacted by itself.", (
        Part("", LONG, "--threshold -t", "bytes", required=True, field="compaction_threshold", key="compaction_threshold_bytes", least=0),),
        Level("compactionThreshold", "compaction-threshold", method="PUT", member="compaction_threshold",
              refusal="compactionThreshold must be 0 or more"),
        Level("compactionThreshold", "compaction-threshold", refusal="Invalid value for compactionThreshold"),
        where="supervisor/admin/resources/compaction.py"),
    Policy("persistence", "Number of storage nodes that keep each entry.", (
        Part("bookkeeperEnsemble", INTEGER, "--bookkeeper-ensemble -e", default=2, otherwise=1),
        Part("bookkeeperWriteQuorum", INTEGER, "--bookkeeper-write-quorum -w", default=2, otherwise=1),
        Part("bookkeeperAckQuorum", INTEGER, "--bookkeeper-ack-quorum -a", default=2, otherwise=1),
        Part("managedLedgerMaxMarkDeleteRate", DECIMAL, "--ml-mark-delete-max-rate -r", default=0.0, otherwise=1.0),
        Part("managedLedgerStorageClassName", TEXT, "--ml-storage-class -c")),
        Level("persistence", "persistence", member="persistence"),
        Level("persistence", "persistence"),
        why="There is one host.", check=_persistence),
    Policy("maxUnackedMessagesPerConsumer", "Unacknowledged messages of a Shared or Key_Shared consumer; 0: no bound.", (
        Part("", INTEGER, required=True, field="max_unacked_messages_per_consumer", key="max_unacked_messages_per_consumer", least=0),),
        Level("maxUnackedMessagesPerConsumer", "max-unacked-messages-per-consumer", ("--max-unacked-messages-per-topic -c",),
              member="max_unacked_messages_per_consumer"),
        Level("maxUnackedMessagesOnConsumer", "max-unacked-messages-per-consumer", ("--maxNum -m",), nullable=True,
              refusal="maxUnackedNum must be 0 or more"),
        where="storage/dispatch/shared.py"),
    Policy("maxUnackedMessagesPerSubscription", "Unacknowledged messages of a Shared or Key_Shared subscription; 0: no bound.", (
        Part("", INTEGER, required=True, field="max_unacked_messages_per_subscription", key="max_unacked_messages_per_subscription",
             least=0),),
        Level("maxUnackedMessagesPerSubscription", "max-unacked-messages-per-subscription",
              ("--max-unacked-messages-per-subscription -c",), member="max_unacked_messages_per_subscription"),
        Level("maxUnackedMessagesOnSubscription", "max-unacked-messages-per-subscription", ("--maxNum -m",), nullable=True,
              refusal="maxUnackedNum must be 0 or more"),
        where="storage/dispatch/shared.py"),
    Policy("maxProducers", "Producers of a topic or partition at a time; 0: no bound.", (
        Part("", INTEGER, required=True, field="max_producers", key="max_producers_per_topic", least=0),),
        Level("maxProducersPerTopic", "max-producers-per-topic", ("--max-producers-per-topic -p",), member="max_producers_per_topic"),
        Level("maxProducers", "max-producers", ("--max-producers -p",)),
        where="storage/commands/producers.py"),
    Policy("maxConsumers", "Consumers of a topic or partition at a time; 0: no bound.", (
        Part("", INTEGER, required=True, field="max_consumers", key="max_consumers_per_topic", least=0),),
        Level("maxConsumersPerTopic", "max-consumers-per-topic", ("--max-consumers-per-topic -c",), member="max_consumers_per_topic"),
        Level("maxConsumers", "max-consumers", ("--max-consumers -c",)),
        where="storage/commands/consumers.py"),
    Policy("maxConsumersPerSubscription", "Consumers of a subscription at a time; 0: no bound.", (
        Part("", INTEGER, "--max-consumers-per-subscription -c", required=True, field="max_consumers_per_subscription",
             key="max_consumers_per_subscription", least=0),),
        Level("maxConsumersPerSubscription", "max-consumers-per-subscription", member="max_consumers_per_subscription"),
        Level("maxConsumersPerSubscription", "max-consumers-per-subscription", unset=NO_CONTENT,
              refusal="Invalid value for maxConsumersPerSubscription"),
        where="storage/commands/consumers.py"),
    Policy("maxSubscriptionsPerTopic", "Subscriptions of a topic or partition; 0: no bound.", (
        Part("", INTEGER, required=True, field="max_subscriptions", key="max_subscriptions_per_topic", least=0),),
        Level("maxSubscriptionsPerTopic", "max-subscriptions-per-topic", ("--max-subscriptions-per-topic -m",),
              member="max_subscriptions_per_topic"),
        Level("maxSubscriptionsPerTopic", "max-subscriptions-per-topic", ("--max-subscriptions-per-topic -s",), unset=NO_CONTENT),
        where="storage/commands/subscriptions.py"),
    Policy("maxTopicsPerNamespace", "Topics of a namespace, where each partition counts; 0: no bound.", (
        Part("", INTEGER, "--max-topics-per-namespace -t", required=True, field="max_topics", key="max_topics_per_namespace", least=0),),
        Level("maxTopicsPerNamespace", "max-topics-per-namespace", unset=0, member="max_topics_per_namespace"),
        where="storage/catalogue/policies.py"),
    Policy("maxMessageSize", "Bytes of the largest message; 0: the broker's own bound.", (
        Part("", INTEGER, "--max-message-size -m", required=True, field="max_message_size", least=0),),
        topic=Level("maxMessageSize", "max-message-size", unset=NO_CONTENT, refusal=TOO_LARGE_SIZE),
        where="storage/owner/publishing.py"),
    Policy("inactiveTopicPolicies", "Whether unused topics are deleted, and after how long.", (
        Part("inactiveTopicDeleteMode", one_of(*DELETE_MODES), "--delete-mode -m", required=True, field="inactive_topic_mode",
             key="inactive_topic_mode"),
        Part("maxInactiveDurationSeconds", INTEGER, "--max-inactive-duration -t", "seconds", required=True, field="inactive_topic_s",
             key="inactive_topic_s", default=0),
        Part("deleteWhileInactive", BOOLEAN, "--enable-delete-while-inactive -e / --disable-delete-while-inactive -d", required=True,
             field="delete_inactive_topics", key="delete_inactive_topics", default=False)),
        Level("inactiveTopicPolicies", "inactive-topic-policies", nullable=True, member="inactive_topic_policies"),
        Level("inactiveTopicPolicies", "inactive-topic-policies", nullable=True),
        where="storage/enforcement/inactive_topics.py", check=_inactive),
    Policy("autoTopicCreation", "Whether a topic is created when it is first used, and with how many partitions.", (
        Part("allowAutoTopicCreation", BOOLEAN, _SWITCH, required=True, field="auto_create_topics", key="auto_create_topics",
             default=False),
        Part("topicType", one_of("partitioned", "non-partitioned", ""), "--type -t", sent="non-partitioned", field="auto_topic_type"),
        Part("defaultNumPartitions", INTEGER, "--num-partitions -n", field="auto_create_partitions", key="auto_create_partitions")),
        Level("autoTopicCreation", "auto-topic-creation", nullable=True, member="autoTopicCreationOverride"),
        where="storage/commands/topics.py", check=_auto_creation),
    Policy("autoSubscriptionCreation", "Whether a subscription is created when it is first used.", (
        Part("allowAutoSubscriptionCreation", BOOLEAN, "--enable -e", field="auto_create_subscriptions", key="auto_create_subscriptions",
             default=False),),
        Level("autoSubscriptionCreation", "auto-subscription-creation", nullable=True, member="autoSubscriptionCreationOverride"),
        Level("autoSubscriptionCreation", "auto-subscription-creation", nullable=True),
        where="storage/commands/subscriptions.py"),
    Policy("subscriptionTypesEnabled", "Subscription types that consumers may ask for.", (
        Part("", some_of(*SUBSCRIPTION_TYPES), "--types -t", required=True, field="subscription_types", key="subscription_types",
             blank=[]),),
        Level("subscriptionTypesEnabled", "subscription-types-enabled", unset=[], member="subscription_types_enabled"),
        Level("subscriptionTypesEnabled", "subscription-types-enabled", unset=NO_CONTENT),
        where="storage/commands/consumers.py"),
    Policy("subscriptionExpirationTime", "Minutes after which an unused subscription is deleted; 0: never.", (
        Part("", INTEGER, "--time -t", required=True, field="subscription_expiration_s", scale=60, key="subscription_expiration_s",
             least=0),),
        Level("subscriptionExpirationTime", "subscription-expiration-time", member="subscription_expiration_time_minutes",
              refusal="Invalid value for subscription expiration time"),
        where="storage/enforcement/inactive_topics.py"),
    Policy("encryptionRequired", "Whether producers must encrypt their messages.", (
        Part("", BOOLEAN, _SWITCH, required=True, field="encryption_required", key="encryption_required"),),
        Level("encryptionRequired", "encryption-required", unset=False, removable=False, member="encryption_required"),
        where="storage/commands/producers.py"),
    Policy("schemaValidationEnforced", "Whether a topic with a schema refuses producers without one.", (
        Part("", BOOLEAN, _SWITCH, required=True, field="schema_enforced", key="schema_validation_enforced"),),
        Level("schemaValidationEnforced", "schema-validation-enforce", unset=False, removable=False, member="schema_validation_enforced"),
        Level("schemaValidationEnforced", "schema-validation-enforce", unset=False, removable=False),
        where="storage/schemas/registry.py"),
    Policy("isAllowAutoUpdateSchema", "Whether producers may add versions of a schema.", (
        Part("", BOOLEAN, _SWITCH, required=True, field="schema_updates", key="schema_auto_update"),),
        Level("isAllowAutoUpdateSchema", "is-allow-auto-update-schema", unset=True, removable=False, member="is_allow_auto_update_schema"),
        where="storage/schemas/registry.py"),
    Policy("schemaAutoUpdateCompatibilityStrategy", "The older form of schemaCompatibilityStrategy, which is stronger.", (
        Part("", one_of(*_OLD_STRATEGIES), "--compatibility -c", required=True, field="schema_strategy", means=_OLD_STRATEGIES),),
        Level("schemaAutoUpdateCompatibilityStrategy", "schema-autoupdate-strategy", method="PUT", unset=NO_CONTENT, nullable=True,
              removable=False, member="schema_auto_update_compatibility_strategy"),
        where="storage/schemas/registry.py"),
    Policy("schemaCompatibilityStrategy", "Compatibility that a new version of a schema needs.", (
        Part("", one_of(*STRATEGIES), required=True, field="schema_strategy", key="schema_compatibility_strategy", blank="UNDEFINED"),),
        Level("schemaCompatibilityStrategy", "schema-compatibility-strategy", ("--compatibility -c",), method="PUT", unset="UNDEFINED",
              nullable=True, removable=False, member="schema_compatibility_strategy"),
        Level("schemaCompatibilityStrategy", "schema-compatibility-strategy", ("--strategy -s",), method="PUT", nullable=True),
        where="storage/schemas/registry.py"),
    Policy("subscriptionAuthMode", "Whether a subscription's name must begin with the role that uses it.", (
        Part("", one_of("None", "Prefix"), "--subscription-auth-mode -m", required=True),),
        Level("subscriptionAuthMode", "subscription-auth-mode", unset="None", nullable=True, removable=False,
              member="subscription_auth_mode"),
        where="workers/identity/authorization.py"),
    Policy("entryFilters", "Plug-ins that choose which messages are delivered.", (
        Part("entryFilterNames", TEXT, "--entry-filters-name -efn", required=True, otherwise=""),),
        Level("entryFilters", "entry-filters", nullable=True, member="entryFilters"),
        Level("entryFilters", "entry-filters-per-topic", nullable=True),
        why="There are no plug-ins: every name is refused.", check=_entry_filters),
    Policy("dispatcherPauseOnAckStatePersistent", "Whether dispatch pauses while there are more acknowledgements than can be kept.", (
        Part("", BOOLEAN),),
        Level("dispatcherPauseOnAckStatePersistent", "dispatcher-pause-on-ack-state-persistent", implied=True, unset=False,
              member="dispatcherPauseOnAckStatePersistentEnabled"),
        Level("dispatcherPauseOnAckStatePersistent", "dispatcher-pause-on-ack-state-persistent", implied=True, unset=False),
        why="All acknowledgements are kept."),
    Policy("replicationClusters", "Clusters that messages are copied to.", (
        Part("", Type("list", _texts), "--clusters -c", required=True),),
        Level("replication", "clusters", status=200, removable=False, unset=OWN_CLUSTER, member="replication_clusters"),
        Level("replication", "replication-clusters"),
        why="There is one cluster, the only one that is accepted."),
    Policy("allowedClusters", "Clusters in which the namespace may be used.", (
        Part("", Type("list", _texts), "--clusters -c", required=True),),
        Level("allowedClusters", "allowed-clusters", status=200, removable=False, unset=[], member="allowed_clusters"),
        why="There is one cluster, the only one that is accepted."),
    Policy("replicatorDispatchRate", "How fast messages are copied to other clusters.", (
        Part("dispatchThrottlingRateInMsg", INTEGER, "--msg-dispatch-rate -md", default=-1, otherwise=0),
        Part("dispatchThrottlingRateInByte", LONG, "--byte-dispatch-rate -bd", default=-1, otherwise=0),
        Part("relativeToPublishRate", BOOLEAN, default=False, otherwise=False),
        Part("ratePeriodInSecond", INTEGER, "--dispatch-rate-period -dt", default=1, otherwise=1)),
        Level("replicatorDispatchRate", "replicator-dispatch-rate", nullable=True, member="replicatorDispatchRate", by_cluster=True),
        Level("replicatorDispatchRate", "replicator-dispatch-rate", nullable=True),
        why="There is one cluster."),
    Policy("offloadThreshold", "Bytes of a topic above which ledgers are moved to another store; -1: none are.", (
        Part("", LONG, "--size -s", "bytes", required=True),),
        Level("offloadThreshold", "offload-threshold", method="PUT", unset=-1, removable=False, member="offload_threshold"),
        why=_NO_OFFLOAD),
    Policy("offloadThresholdInSeconds", "Age above which ledgers are moved to another store; -1: none are.", (
        Part("", LONG, "--time -t", "seconds", required=True),),
        Level("offloadThresholdInSeconds", "offload-threshold-in-seconds", method="PUT", status=200, unset=-1, removable=False,
              member="offload_threshold_in_seconds"),
        why=_NO_OFFLOAD),
    Policy("offloadDeletionLagMs", "Time after which a ledger that was moved to another store is deleted here.", (
        Part("", LONG, "--lag -l", "ms", required=True),),
        Level("offloadDeletionLagMs", "offload-deletion-lag", method="PUT", member="offload_deletion_lag_ms"),
        why=_NO_OFFLOAD),
    Policy("offloadPolicies", "The other store that ledgers are moved to.", (
        Part("managedLedgerOffloadDriver", TEXT, "--driver -d", required=True),
        Part("managedLedgerOffloadRegion", TEXT, "--region -r"),
        Part("managedLedgerOffloadBucket", TEXT, "--bucket -b"),
        Part("managedLedgerOffloadServiceEndpoint", TEXT, "--endpoint -e"),
        Part("managedLedgerOffloadThresholdInBytes", LONG, "--offloadAfterThreshold -oat", "bytes"),
        Part("managedLedgerOffloadThresholdInSeconds", LONG, "--offloadAfterThresholdInSeconds -oats", "seconds"),
        Part("managedLedgerOffloadDeletionLagInMillis", LONG, "--offloadAfterElapsed -oae", "ms"), *_OFFLOAD_MORE),
        Level("offloadPolicies", "offload-policies", remove="removeOffloadPolicies", member="offload_policies"),
        Level("offloadPolicies", "offload-policies", (
            "--driver -d", "--region -r", "--bucket -b", "--endpoint -e", "--offloadThresholdInBytes -t", "--offloadThresholdInSeconds -ts",
            "--offloadDeletionLagInMillis -dl", *[""] * len(_OFFLOAD_MORE))),
        why=_NO_OFFLOAD, check=_offload),
    Policy("antiAffinityGroup", "Namespaces of a group are served by different brokers.", (
        Part("", TEXT, "--group -g", required=True),),
        Level("antiAffinity", "anti-affinity-group", unset=NO_CONTENT, member="antiAffinityGroup", is_raw=True),
        why="There is one broker."),
    Policy("bookieAffinityGroup", "Groups of storage nodes that are preferred.", (
        Part("bookkeeperAffinityGroupPrimary", TEXT, "--primary-group -pg", required=True),
        Part("bookkeeperAffinityGroupSecondary", TEXT, "--secondary-group -sg")),
        Level("persistence/bookieAffinity", "bookie-affinity-group", unset=NO_CONTENT, nullable=True),
        why="There is one host."),
    Policy("publishRate", "Messages and bytes a second that may be published to a topic; 0 or less: no bound.", (
        Part("publishThrottlingRateInMsg", INTEGER, "--msg-publish-rate -m", field="publish_messages", key="publish_messages_per_topic",
             default=-1),
        Part("publishThrottlingRateInByte", LONG, "--byte-publish-rate -b", "bytes", field="publish_bytes", key="publish_bytes_per_topic",
             default=-1)),
        Level("publishRate", "publish-rate", nullable=True, member="publishMaxMessageRate", by_cluster=True),
        Level("publishRate", "publish-rate", nullable=True, unset=NO_CONTENT), where="storage/enforcement/rate_limiter.py"),
    Policy("dispatchRate", "Messages and bytes that a topic's consumers together get in a period.", _dispatch_parts("dispatch", "topic"),
           Level("dispatchRate", "dispatch-rate", nullable=True, member="topicDispatchRate", by_cluster=True),
           Level("dispatchRate", "dispatch-rate", nullable=True), where="storage/enforcement/rate_limiter.py"),
    Policy("subscriptionDispatchRate", "Messages and bytes that the consumers of each subscription together get in a period.",
           _dispatch_parts("subscription_dispatch", "subscription"),
           Level("subscriptionDispatchRate", "subscription-dispatch-rate", nullable=True, member="subscriptionDispatchRate",
                 by_cluster=True),
           Level("subscriptionDispatchRate", "subscription-dispatch-rate", nullable=True), where="storage/enforcement/rate_limiter.py"),
    Policy("subscribeRate", "Number of times that a consumer may subscribe to a topic in a period.", (
        Part("subscribeThrottlingRatePerConsumer", INTEGER, "--subscribe-rate -sr", field="subscribe_count",
             key="subscribes_per_consumer", default=-1),
        Part("ratePeriodInSecond", INTEGER, "--subscribe-rate-period -st", "seconds", field="subscribe_period_s",
             key="subscribe_period_s", default=30)),
        Level("subscribeRate", "subscribe-rate", nullable=True, member="clusterSubscribeRate", by_cluster=True),
        Level("subscribeRate", "subscribe-rate", nullable=True), where="storage/enforcement/rate_limiter.py"),
)}
