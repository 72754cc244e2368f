"""The table of policies: each is declared once, as a `Policy` in TABLE.

    stored         the catalogue has the value that was set, as JSON, under `Policy.name`; `read` checks it
    in force       each `Part` that has an effect names a field of `policies.Policies`, and the key of StorageOptions
                   that is its default; code that enforces the policy reads `partition.policies.FIELD`
    REST           supervisor/admin/requests/policy_routes.py has paths and methods
    command        supervisor/wording/policy_verbs.py has verbs and options
    documentation  `geminga admin policies` prints the table, systemd/reference.py makes docs/policies.md

A policy has parts. One part without a name is a policy whose JSON is the bare value: `Part("", INTEGER)` takes `60`.
Parts with names make an object: `{"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}`.

A topic's policy is stronger than its namespace's. Of two policies with the same field, the later row is stronger.

The command imports this module, and has to start at once: the module imports next to nothing.
"""
from collections.abc import Callable
from typing import Any, NamedTuple

from geminga.storage.catalogue.policy_values import (
    BOOLEAN,
    DECIMAL,
    INTEGER,
    LONG,
    LONG_MAX,
    TEXT,
    TEXTS,
    Invalid,
    OutOfRange,
    Type,
    one_of,
    some_of,
)

MIB = 1 << 20
HOLD, EXCEPTION, EVICTION = QUOTA_ACTIONS = (
    "producer_request_hold", "producer_exception", "consumer_backlog_eviction")
NAMESPACE, TOPIC = "namespace", "topic"       # levels at which a policy can be set
NAMESPACE_ONLY, TOPIC_ONLY = (NAMESPACE,), (TOPIC,)
_NO_VALUE = object()


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


class Policy(NamedTuple):
    """The declaration of one policy, a row of TABLE."""

    name: str                                # in the catalogue
    doc: str                                 # one line
    parts: tuple[Part, ...]
    levels: tuple[str, ...] = (NAMESPACE, TOPIC)
    where: str = ""                          # the file that enforces it; "": it is stored without effect, ...
    why: str = ""                            # ... for this reason
    check: Callable[[Any], None] | None = None       # checks and completes the value to be stored; raises Invalid

    @property
    def is_object(self) -> bool:
        return bool(self.parts[0].json)


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


# -- checks of values that belong together

def _retention(kept: dict[str, int]) -> None:
    minutes, mib = kept["retentionTimeInMinutes"], kept["retentionSizeInMB"]
    if minutes < -1:
        raise Invalid("Invalid retention policy: time limit must be >= -1")
    if mib < -1:
        raise Invalid("Invalid retention policy: size limit must be >= -1")
    if (minutes == 0) != (mib == 0):
        raise Invalid("Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the"
                      " limits has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To"
                      " disable retention both limits must be set to 0.")
    if mib > LONG_MAX // MIB:
        raise Invalid("Invalid retention policy: the size limit is too large")


def _quota(kept: dict[str, Any]) -> None:
    """Require a backlog quota to have an action, and store its size under both names, `limit` and `limitSize`."""
    if "policy" not in kept:
        raise Invalid(f"The backlog quota's policy is one of {', '.join(QUOTA_ACTIONS)}")
    kept["limit"] = kept["limitSize"] = kept.get("limitSize", kept.get("limit", 0))


def _size_quota(kept: dict[str, Any]) -> None:
    """Require a size that something fits into; -1, which a quota without a size has too, is no bound."""
    if "limit" not in kept:
        kept.setdefault("limitSize", -1)
    _quota(kept)
    if kept["limitSize"] == 0:
        raise Invalid("The backlog quota's limitSize is 0, which nothing fits into; -1 is no bound")


def _inactive(kept: dict[str, Any]) -> None:
    if "inactiveTopicDeleteMode" not in kept:
        raise Invalid(f"inactiveTopicDeleteMode: expected one of {', '.join(DELETE_MODES)}")


def _auto_creation(kept: dict[str, Any]) -> None:
    """Check the topic type and the number of partitions, if topics are created automatically."""
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
        raise OutOfRange(f"Invalid configuration for autoTopicCreationOverride. the detail is {text}")


def _delays(kept: dict[str, Any]) -> None:
    """Switch delayed delivery on when a fixed delay is set and `active` is not given."""
    kept.setdefault("active", bool(kept.get("fixedDeliveryDelayInMillis")))


def _persistence(kept: dict[str, Any]) -> None:
    ensemble, write, ack = (
        kept[name] for name in ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum"))
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
        raise OutOfRange(f"The driver is not supported, support value: {','.join(_DRIVERS)}")


# -- the table

PARTITIONS_MAX = 16_384      # partitions of one topic; arbitrary, and more than one host needs
SUBSCRIPTION_TYPES = ("Exclusive", "Failover", "Key_Shared", "Shared")
DELETE_MODES = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
COMPACTION_ORDERS = BY_POSITION, BY_EVENT_TIME = "position", "event_time"
EXPORTS = EXPORTS_NOTHING, EXPORTS_MESSAGES, EXPORTS_COMPACTED = "none", "messages", "compacted"
STRATEGIES = ("UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL",
              "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE")
_OLD_STRATEGIES = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE", "Backward": "BACKWARD", "Forward": "FORWARD", "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE", "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE", "FullTransitive": "FULL_TRANSITIVE"}
_DRIVERS = ("S3", "aws-s3", "google-cloud-storage", "filesystem", "azureblob", "aliyun-oss")
_NO_OFFLOAD = "Nothing is moved to other stores."
TICK_MS_MAX, WINDOW_MS_MIN, WINDOW_MS_MAX = 24 * 3600 * 1000, 1_000, 4 * 7 * 24 * 3600 * 1000
DELAY_MS_MAX = 100 * 365 * 24 * 3600 * 1000      # arbitrary: a century


def _quota_parts(size: str, age: str, action: str) -> tuple[Part, ...]:
    """Return the parts of a backlog quota.

    size, age, action: the fields of `Policies` that they set; "" for the bound that the quota does not have.
    """
    return (Part("limit", LONG, key="backlog_quota_bytes" if size else "", otherwise=-1),
            Part("limitSize", LONG, field=size, key="backlog_quota_bytes" if size else "", otherwise=-1),
            Part("limitTime", LONG, field=age, key="backlog_quota_age_s" if age else "", default=0, otherwise=-1),
            Part("policy", one_of(*QUOTA_ACTIONS), field=action, key="backlog_quota_policy"))


def _dispatch_parts(stem: str, of: str) -> tuple[Part, ...]:
    """Return the parts of a dispatch rate policy.

    stem: prefix of the fields of `Policies`.  of: suffix of the option names that have the defaults.
    """
    return (Part("dispatchThrottlingRateInMsg", INTEGER, field=f"{stem}_messages", key=f"dispatch_messages_per_{of}",
                 default=0),
            Part("dispatchThrottlingRateInByte", LONG, field=f"{stem}_bytes", key=f"dispatch_bytes_per_{of}",
                 default=0),
            Part("relativeToPublishRate", BOOLEAN, field=f"{stem}_relative", key="dispatch_relative_to_publish",
                 default=False),
            Part("ratePeriodInSecond", INTEGER, field=f"{stem}_period_s", default=0, otherwise=1))


# Fields of offloadPolicies that clients' libraries send too; secrets are not stored.
_OFFLOAD_MORE = (
    *(Part(name, INTEGER) for name in ("managedLedgerOffloadMaxThreads", "managedLedgerOffloadPrefetchRounds")),
    *(Part(f"{stem}{field}", kind) for stem in ("s3", "gcs") for field, kind in (
        ("ManagedLedgerOffloadRegion", TEXT), ("ManagedLedgerOffloadBucket", TEXT),
        ("ManagedLedgerOffloadMaxBlockSizeInBytes", LONG), ("ManagedLedgerOffloadReadBufferSizeInBytes", LONG))),
    *(Part(name, TEXT) for name in ("s3ManagedLedgerOffloadServiceEndpoint", "s3ManagedLedgerOffloadRole",
                                    "s3ManagedLedgerOffloadRoleSessionName", "offloadersDirectory")),
    Part("managedLedgerOffloadAutoTriggerSizeThresholdBytes", LONG))
TABLE = {policy.name: policy for policy in (
    Policy("retention", "Time and size up to which messages are kept after every subscription has acknowledged them.", (
        Part("retentionTimeInMinutes", INTEGER, field="retention_s", scale=60, key="retention_s", default=0),
        Part("retentionSizeInMB", LONG, field="retention_bytes", scale=MIB, key="retention_bytes", default=0)),
        where="storage/enforcement/retention.py", check=_retention),
    Policy("messageTTL", "Time for which unacknowledged messages are kept; 0: for ever.", (
        Part("", INTEGER, field="message_ttl_s", key="message_ttl_s", least=0),),
        where="storage/enforcement/message_ttl.py"),
    Policy("backlogQuota/destination_storage",
           "Bytes of backlog that the slowest subscription may have, and the effect above.",
           _quota_parts("quota_bytes", "", "quota_bytes_action"),
           where="storage/enforcement/backlog_quota.py", check=_size_quota),
    Policy("backlogQuota/message_age", "Age that the oldest unacknowledged message may have, and the effect above.",
           _quota_parts("", "quota_age_s", "quota_age_action"),
           where="storage/enforcement/backlog_quota.py", check=_quota),
    Policy("deduplication", "Whether a message that a producer sends again is stored once.", (
        Part("", BOOLEAN, field="deduplication", key="deduplication"),),
        where="storage/cursors/producer_sequences.py"),
    Policy("deduplicationSnapshotInterval", "Seconds between two snapshots of the last sequence ids.", (
        Part("", INTEGER, least=0),),
        why="There are no snapshots: sequence ids are stored with their entries."),
    Policy("delayedDelivery",
           "Whether messages are delivered not before their time, and how long they may or must be delayed.", (
        Part("tickTime", LONG, field="delay_tick_ms", key="delayed_delivery_tick_ms", default=0, blank=0, least=0,
             most=TICK_MS_MAX),
        Part("active", BOOLEAN, field="delayed_delivery", key="delayed_delivery"),
        Part("maxDeliveryDelayInMillis", LONG, field="delay_max_ms", key="delayed_delivery_max_ms", default=0, least=0,
             most=DELAY_MS_MAX),
        Part("fixedDeliveryDelayInMillis", LONG, field="delay_fixed_ms", key="delayed_delivery_fixed_ms", least=0,
             most=DELAY_MS_MAX),
        Part("timePartitionGranularityInMillis", LONG, field="delay_window_ms", key="delayed_delivery_window_ms",
             least=WINDOW_MS_MIN, most=WINDOW_MS_MAX)),
        where="storage/enforcement/delay_policy.py", check=_delays),
    Policy("compactionThreshold",
           "Bytes that may come after a compaction before the next one; 0: the topic is not compacted by itself.", (
        Part("", LONG, field="compaction_threshold", key="compaction_threshold_bytes", least=0),),
        where="supervisor/admin/resources/compaction.py"),
    Policy("compactionOrder",
           "The message of a key that a compaction keeps: the last one, or the one with the latest event time.", (
        Part("", one_of(*COMPACTION_ORDERS), field="compaction_order", key="compaction_order"),),
        where="storage/jobs/compacting/key_scan.py"),
    Policy("export", "Content of a topic that nights export as tables: all new messages, or the compacted view.", (
        Part("", one_of(*EXPORTS), field="export", key="export"),),
        where="supervisor/tasks/tables.py"),
    Policy("exportBeforeDeletion",
           "Whether messages stay until they are exported, although no subscription and no other policy needs them.", (
        Part("", BOOLEAN, field="export_before_deletion", key="export_before_deletion"),),
        where="storage/topics/partition.py"),
    Policy("persistence", "Number of storage nodes that keep each entry.", (
        Part("bookkeeperEnsemble", INTEGER, default=2, otherwise=1),
        Part("bookkeeperWriteQuorum", INTEGER, default=2, otherwise=1),
        Part("bookkeeperAckQuorum", INTEGER, default=2, otherwise=1),
        Part("managedLedgerMaxMarkDeleteRate", DECIMAL, default=0.0, otherwise=1.0),
        Part("managedLedgerStorageClassName", TEXT)),
        why="There is one host.", check=_persistence),
    Policy("maxUnackedMessagesPerConsumer",
           "Unacknowledged messages of a Shared or Key_Shared consumer; 0: no bound.", (
        Part("", INTEGER, field="max_unacked_messages_per_consumer", key="max_unacked_messages_per_consumer",
             least=0),),
        where="storage/dispatch/shared.py"),
    Policy("maxUnackedMessagesPerSubscription",
           "Unacknowledged messages of a Shared or Key_Shared subscription; 0: no bound.", (
        Part("", INTEGER, field="max_unacked_messages_per_subscription", key="max_unacked_messages_per_subscription",
             least=0),),
        where="storage/dispatch/shared.py"),
    Policy("maxProducers", "Producers of a topic or partition at a time; 0: no bound.", (
        Part("", INTEGER, field="max_producers", key="max_producers_per_topic", least=0),),
        where="storage/commands/producers.py"),
    Policy("maxConsumers", "Consumers of a topic or partition at a time; 0: no bound.", (
        Part("", INTEGER, field="max_consumers", key="max_consumers_per_topic", least=0),),
        where="storage/commands/consumers.py"),
    Policy("maxConsumersPerSubscription", "Consumers of a subscription at a time; 0: no bound.", (
        Part("", INTEGER, field="max_consumers_per_subscription", key="max_consumers_per_subscription", least=0),),
        where="storage/commands/consumers.py"),
    Policy("maxSubscriptionsPerTopic", "Subscriptions of a topic or partition; 0: no bound.", (
        Part("", INTEGER, field="max_subscriptions", key="max_subscriptions_per_topic", least=0),),
        where="storage/commands/subscriptions.py"),
    Policy("maxTopicsPerNamespace", "Topics of a namespace, where each partition counts; 0: no bound.", (
        Part("", INTEGER, field="max_topics", key="max_topics_per_namespace", least=0),),
        levels=NAMESPACE_ONLY, where="storage/catalogue/policies.py"),
    Policy("maxMessageSize", "Bytes of the largest message; 0: the broker's own bound.", (
        Part("", INTEGER, field="max_message_size", least=0),),
        levels=TOPIC_ONLY, where="storage/owner/publishing.py"),
    Policy("inactiveTopicPolicies", "Whether unused topics are deleted, and after how long.", (
        Part("inactiveTopicDeleteMode", one_of(*DELETE_MODES), field="inactive_topic_mode", key="inactive_topic_mode"),
        Part("maxInactiveDurationSeconds", INTEGER, field="inactive_topic_s", key="inactive_topic_s", default=0),
        Part("deleteWhileInactive", BOOLEAN, field="delete_inactive_topics", key="delete_inactive_topics",
             default=False)),
        where="storage/enforcement/inactive_topics.py", check=_inactive),
    Policy("autoTopicCreation", "Whether a topic is created when it is first used, and with how many partitions.", (
        Part("allowAutoTopicCreation", BOOLEAN, field="auto_create_topics", key="auto_create_topics", default=False),
        Part("topicType", one_of("partitioned", "non-partitioned", ""), field="auto_topic_type"),
        Part("defaultNumPartitions", INTEGER, field="auto_create_partitions", key="auto_create_partitions")),
        levels=NAMESPACE_ONLY, where="storage/commands/topics.py", check=_auto_creation),
    Policy("autoSubscriptionCreation", "Whether a subscription is created when it is first used.", (
        Part("allowAutoSubscriptionCreation", BOOLEAN, field="auto_create_subscriptions",
             key="auto_create_subscriptions", default=False),),
        where="storage/commands/subscriptions.py"),
    Policy("subscriptionTypesEnabled", "Subscription types that consumers may ask for.", (
        Part("", some_of(*SUBSCRIPTION_TYPES), field="subscription_types", key="subscription_types", blank=[]),),
        where="storage/commands/consumers.py"),
    Policy("subscriptionExpirationTime", "Minutes after which an unused subscription is deleted; 0: never.", (
        Part("", INTEGER, field="subscription_expiration_s", scale=60, key="subscription_expiration_s", least=0),),
        levels=NAMESPACE_ONLY, where="storage/enforcement/inactive_topics.py"),
    Policy("encryptionRequired", "Whether producers must encrypt their messages.", (
        Part("", BOOLEAN, field="encryption_required", key="encryption_required"),),
        levels=NAMESPACE_ONLY, where="storage/commands/producers.py"),
    Policy("schemaValidationEnforced", "Whether a topic with a schema refuses producers without one.", (
        Part("", BOOLEAN, field="schema_enforced", key="schema_validation_enforced"),),
        where="storage/schemas/registry.py"),
    Policy("isAllowAutoUpdateSchema", "Whether producers may add versions of a schema.", (
        Part("", BOOLEAN, field="schema_updates", key="schema_auto_update"),),
        levels=NAMESPACE_ONLY, where="storage/schemas/registry.py"),
    Policy("schemaAutoUpdateCompatibilityStrategy",
           "The older form of schemaCompatibilityStrategy, which is stronger.", (
        Part("", one_of(*_OLD_STRATEGIES), field="schema_strategy", means=_OLD_STRATEGIES),),
        levels=NAMESPACE_ONLY, where="storage/schemas/registry.py"),
    Policy("schemaCompatibilityStrategy", "Compatibility that a new version of a schema needs.", (
        Part("", one_of(*STRATEGIES), field="schema_strategy", key="schema_compatibility_strategy",
             blank="UNDEFINED"),),
        where="storage/schemas/registry.py"),
    Policy("subscriptionAuthMode", "Whether a subscription's name must begin with the role that uses it.", (
        Part("", one_of("None", "Prefix")),),
        levels=NAMESPACE_ONLY, where="workers/identity/authorization.py"),
    Policy("entryFilters", "Plug-ins that choose which messages are delivered.", (
        Part("entryFilterNames", TEXT, otherwise=""),),
        why="There are no plug-ins: every name is refused.", check=_entry_filters),
    Policy("dispatcherPauseOnAckStatePersistent",
           "Whether dispatch pauses while there are more acknowledgements than can be kept.", (
        Part("", BOOLEAN),),
        why="All acknowledgements are kept."),
    Policy("replicationClusters",
           "Clusters that have the topic; messages go to all but the broker's own, which has to be among them.", (
        Part("", TEXTS, field="replication_clusters"),),
        where="storage/enforcement/replication_cursors.py"),
    Policy("allowedClusters", "Clusters that replicationClusters of the namespace and its topics may name.", (
        Part("", TEXTS),),
        levels=NAMESPACE_ONLY, where="supervisor/admin/resources/cluster_lists.py"),
    Policy("replicatorDispatchRate", "Messages and bytes that go from a topic to each other cluster in a period.", (
        Part("dispatchThrottlingRateInMsg", INTEGER, field="replicator_dispatch_messages",
             key="dispatch_messages_per_replicator", default=-1),
        Part("dispatchThrottlingRateInByte", LONG, field="replicator_dispatch_bytes",
             key="dispatch_bytes_per_replicator", default=-1),
        Part("relativeToPublishRate", BOOLEAN, field="replicator_dispatch_relative", default=False, otherwise=False),
        Part("ratePeriodInSecond", INTEGER, field="replicator_dispatch_period_s", default=1, otherwise=1)),
        where="storage/enforcement/rate_limiter.py"),
    Policy("offloadThreshold", "Bytes of a topic above which ledgers are moved to another store; -1: none are.", (
        Part("", LONG),),
        levels=NAMESPACE_ONLY, why=_NO_OFFLOAD),
    Policy("offloadThresholdInSeconds", "Age above which ledgers are moved to another store; -1: none are.", (
        Part("", LONG),),
        levels=NAMESPACE_ONLY, why=_NO_OFFLOAD),
    Policy("offloadDeletionLagMs", "Time after which a ledger that was moved to another store is deleted here.", (
        Part("", LONG),),
        levels=NAMESPACE_ONLY, why=_NO_OFFLOAD),
    Policy("offloadPolicies", "The other store that ledgers are moved to.", (
        Part("managedLedgerOffloadDriver", TEXT),
        Part("managedLedgerOffloadRegion", TEXT),
        Part("managedLedgerOffloadBucket", TEXT),
        Part("managedLedgerOffloadServiceEndpoint", TEXT),
        Part("managedLedgerOffloadThresholdInBytes", LONG),
        Part("managedLedgerOffloadThresholdInSeconds", LONG),
        Part("managedLedgerOffloadDeletionLagInMillis", LONG),
        *_OFFLOAD_MORE),
        why=_NO_OFFLOAD, check=_offload),
    Policy("antiAffinityGroup", "Namespaces of a group are served by different brokers.", (
        Part("", TEXT),),
        levels=NAMESPACE_ONLY, why="There is one broker."),
    Policy("bookieAffinityGroup", "Groups of storage nodes that are preferred.", (
        Part("bookkeeperAffinityGroupPrimary", TEXT),
        Part("bookkeeperAffinityGroupSecondary", TEXT)),
        levels=NAMESPACE_ONLY, why="There is one host."),
    Policy("publishRate", "Messages and bytes a second that may be published to a topic; 0 or less: no bound.", (
        Part("publishThrottlingRateInMsg", INTEGER, field="publish_messages", key="publish_messages_per_topic",
             default=-1),
        Part("publishThrottlingRateInByte", LONG, field="publish_bytes", key="publish_bytes_per_topic", default=-1)),
        where="storage/enforcement/rate_limiter.py"),
    Policy("dispatchRate", "Messages and bytes that a topic's consumers together get in a period.",
           _dispatch_parts("dispatch", "topic"),
           where="storage/enforcement/rate_limiter.py"),
    Policy("subscriptionDispatchRate",
           "Messages and bytes that the consumers of each subscription together get in a period.",
           _dispatch_parts("subscription_dispatch", "subscription"),
           where="storage/enforcement/rate_limiter.py"),
    Policy("subscribeRate", "Number of times that a consumer may subscribe to a topic in a period.", (
        Part("subscribeThrottlingRatePerConsumer", INTEGER, field="subscribe_count", key="subscribes_per_consumer",
             default=-1),
        Part("ratePeriodInSecond", INTEGER, field="subscribe_period_s", key="subscribe_period_s", default=30)),
        where="storage/enforcement/rate_limiter.py"),
)}
