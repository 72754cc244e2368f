"""The table of policies: each is declared once, as a `Policy` in TABLE.

    stored         the catalogue has the value that was set, as JSON, under `Policy.name`; `read` checks it
    in force       each `Part` that has an effect names a field of `policies.Policies`, and the key of StorageOptions
                   that is its default; code that enforces the policy reads `partition.policies.FIELD`
    REST           supervisor/admin/resources/policies.py serves each `Route`, authorization.py demands the right
    command        supervisor/cli/admin/policies.py makes verbs of `Policy.verb` and of each `Option`
    browser        supervisor/console/actions/policy_actions.py makes dialogs
    configuration  supervisor/configuration/value_ranges.py takes the values of each `Part.key`
    documentation  `geminga admin policies` prints the table, systemd/reference.py makes docs/policies.md

A topic's policy is stronger than its namespace's. Of two policies with the same field, the later row is stronger.

The command imports this module, and has to start at once: the module imports next to nothing.
"""
import re
from typing import Any

from geminga.storage.catalogue import policy_checks as checks
from geminga.storage.catalogue.policy_declaration import (
    NO_CONTENT,
    OWN_CLUSTER,
    SWITCH,
    Option,
    Part,
    Policy,
    Route,
    declared,
)
from geminga.storage.catalogue.policy_values import (
    BOOLEAN,
    COMPACTION_ORDERS,
    DECIMAL,
    DELAY_MS_MAX,
    DELETE_MODES,
    EXPORTS,
    INT_MAX,
    INTEGER,
    LONG,
    MIB,
    QUOTA_ACTIONS,
    REDELIVERIES_MAX,
    STRATEGIES,
    SUBSCRIPTION_TYPES,
    TEXT,
    TEXTS,
    TICK_MS_MAX,
    WINDOW_MS_MAX,
    WINDOW_MS_MIN,
    one_of,
    some_of,
)

TOO_LARGE_SIZE = ("topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the "
                  "broker-level")
_NO_OFFLOAD = "Nothing is moved to other stores."
_OLD_STRATEGIES = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE", "Backward": "BACKWARD", "Forward": "FORWARD", "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE", "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE", "FullTransitive": "FULL_TRANSITIVE"}


def _quota_routes(kind: str) -> dict[str, Any]:
    """Return what the declarations of all backlog quotas share.  kind: the quota's name in the path."""
    route = Route(f"backlogQuota?backlogQuotaType={kind}", kind=kind)
    return {"namespace": route._replace(member=f"backlog_quota_map/{kind}"), "topic": route,
            "verb": "backlog-quota", "get": "backlog-quotas", "where": "storage/enforcement/backlog_quota.py"}


def _quota_parts(size: str, age: str, action: str) -> tuple[Part, ...]:
    """Return the parts of a backlog quota.

    size, age, action: the fields of `Policies` that they set; "" for the bound that the quota does not have.
    """
    return (Part("limit", LONG, key="backlog_quota_bytes" if size else "", otherwise=-1),
            Part("limitSize", LONG, field=size, key="backlog_quota_bytes" if size else "", otherwise=-1,
                 option=Option("--limit -l", "bytes")),
            Part("limitTime", LONG, field=age, key="backlog_quota_age_s" if age else "", default=0, otherwise=-1,
                 option=Option("--limitTime -lt", "seconds")),
            Part("policy", one_of(*QUOTA_ACTIONS), field=action, key="backlog_quota_policy",
                 option=Option("--policy -p", required=True)))


def _scale_part(name: str, key: str, unit: str = "") -> Part:
    """Return a part of the policy by which segments split and merge: a time, or a rate in a second."""
    flag = "--" + re.sub("(?<=[a-z])(?=[A-Z])", "-", name).lower()
    return Part(name, INTEGER if unit else DECIMAL, key=key, key_values=(0, INT_MAX), option=Option(flag, unit))


def _dispatch_parts(stem: str, of: str) -> tuple[Part, ...]:
    """Return the parts of a dispatch rate policy.

    stem: prefix of the fields of `Policies`.  of: suffix of the option names that have the defaults.
    """
    return (Part("dispatchThrottlingRateInMsg", INTEGER, field=f"{stem}_messages", key=f"dispatch_messages_per_{of}",
                 default=0, option=Option("--msg-dispatch-rate -md")),
            Part("dispatchThrottlingRateInByte", LONG, field=f"{stem}_bytes", key=f"dispatch_bytes_per_{of}",
                 default=0, option=Option("--byte-dispatch-rate -bd", "bytes")),
            Part("relativeToPublishRate", BOOLEAN, field=f"{stem}_relative", key="dispatch_relative_to_publish",
                 default=False, option=Option("--relative-to-publish-rate -rp")),
            Part("ratePeriodInSecond", INTEGER, field=f"{stem}_period_s", default=0, otherwise=1,
                 option=Option("--dispatch-rate-period -dt", "seconds")))


# Fields of offloadPolicies that clients' libraries send too; secrets are not stored.
_OFFLOAD_MORE = (
    *(Part(name, INTEGER) for name in ("managedLedgerOffloadMaxThreads", "managedLedgerOffloadPrefetchRounds")),
    *(Part(f"{stem}{field}", kind) for stem in ("s3", "gcs") for field, kind in (
        ("ManagedLedgerOffloadRegion", TEXT), ("ManagedLedgerOffloadBucket", TEXT),
        ("ManagedLedgerOffloadMaxBlockSizeInBytes", LONG), ("ManagedLedgerOffloadReadBufferSizeInBytes", LONG))),
    *(Part(name, TEXT) for name in ("s3ManagedLedgerOffloadServiceEndpoint", "s3ManagedLedgerOffloadRole",
                                    "s3ManagedLedgerOffloadRoleSessionName", "offloadersDirectory")),
    Part("managedLedgerOffloadAutoTriggerSizeThresholdBytes", LONG))
TABLE = {policy.name: policy for policy in map(declared, (
    Policy("retention", "Time and size up to which messages are kept after every subscription has acknowledged them.", (
        Part("retentionTimeInMinutes", INTEGER, field="retention_s", scale=60, key="retention_s", default=0,
             option=Option("--time -t", "minutes", required=True)),
        Part("retentionSizeInMB", LONG, field="retention_bytes", scale=MIB, key="retention_bytes", default=0,
             option=Option("--size -s", "MB", required=True))),
        namespace=Route(member="retention_policies"), where="storage/enforcement/retention.py", check=checks.retention),
    Policy("messageTTL", "Time for which unacknowledged messages are kept; 0: for ever.", (
        Part("", INTEGER, field="message_ttl_s", key="message_ttl_s", least=0,
             option=Option("--messageTTL -ttl", "seconds", topic_flags="--ttl -t")),),
        namespace=Route(nullable=False, refusal="Invalid value for message TTL, message TTL must >= 0",
                        member="message_ttl_in_seconds"),
        topic=Route(query="messageTTL", refusal="Invalid value for message TTL"),
        where="storage/enforcement/message_ttl.py"),
    Policy("ownMessageTTL", "Whether messages expire after the time that their property `geminga.ttl` names.", (
        Part("", BOOLEAN, field="own_message_ttl", key="own_message_ttl"),),
        where="storage/enforcement/own_ttl.py"),
    Policy("deadLetter",
           "Messages that the broker moves to a dead letter topic: delivered too often, or expired.", (
        Part("maxRedeliverCount", INTEGER, field="dead_letter_redeliveries", default=0, least=0,
             most=REDELIVERIES_MAX, option=Option("--max-redeliver-count -c")),
        Part("deadLetterTopic", TEXT, field="dead_letter_topic", option=Option("--dead-letter-topic -dlt")),
        Part("initialSubscriptionName", TEXT, field="dead_letter_subscription",
             option=Option("--initial-subscription -is")),
        Part("expired", BOOLEAN, field="dead_letter_expired", default=False, option=Option("--expired -e"))),
        where="storage/open_topics/dead_letters.py", check=checks.dead_letters),
    Policy("backlogQuota/destination_storage",
           "Bytes of backlog that the slowest subscription may have, and the effect above.",
        _quota_parts("quota_bytes", "", "quota_bytes_action"),
        **_quota_routes("destination_storage"), check=checks.size_quota),
    Policy("backlogQuota/message_age", "Age that the oldest unacknowledged message may have, and the effect above.",
        _quota_parts("", "quota_age_s", "quota_age_action"),
        **_quota_routes("message_age"), check=checks.quota),
    Policy("deduplication", "Whether a message that a producer sends again is stored once.", (
        Part("", BOOLEAN, field="deduplication", key="deduplication"),),
        namespace=Route(nullable=False, member="deduplicationEnabled"), topic=Route("deduplicationEnabled"),
        where="storage/cursors/producer_sequences.py"),
    Policy("deduplicationSnapshotInterval", "Seconds between two snapshots of the last sequence ids.", (
        Part("", INTEGER, least=0, option=Option("--interval -i")),),
        namespace=Route(removable=False, refusal="interval must be greater than or equal to 0",
                        member="deduplicationSnapshotIntervalSeconds"),
        topic=Route(refusal="interval must be 0 or more"),
        why="There are no snapshots: sequence ids are stored with their entries."),
    Policy("delayedDelivery",
           "Whether messages are delivered not before their time, and how long they may or must be delayed.", (
        Part("tickTime", LONG, field="delay_tick_ms", key="delayed_delivery_tick_ms", default=0, blank=0, least=0,
             most=TICK_MS_MAX, option=Option("--time -t", "ms", sent=1000)),
        Part("active", BOOLEAN, field="delayed_delivery", key="delayed_delivery",
             option=Option(SWITCH, required=True, unless="fixed_delay")),
        Part("maxDeliveryDelayInMillis", LONG, field="delay_max_ms", key="delayed_delivery_max_ms", default=0, least=0,
             most=DELAY_MS_MAX, option=Option("--maxDelay -md", "ms")),
        Part("fixedDeliveryDelayInMillis", LONG, field="delay_fixed_ms", key="delayed_delivery_fixed_ms", least=0,
             most=DELAY_MS_MAX, option=Option("--fixed-delay -fd", "ms")),
        Part("timePartitionGranularityInMillis", LONG, field="delay_window_ms", key="delayed_delivery_window_ms",
             least=WINDOW_MS_MIN, most=WINDOW_MS_MAX, option=Option("--time-partition-granularity -p", "ms"))),
        namespace=Route(member="delayed_delivery_policies", right_to_set="broker"),
        where="storage/enforcement/delay_policy.py", check=checks.delays),
    Policy("messagePriority",
           "Whether Shared consumers get messages of higher priority first, and after how long any message is next.", (
        Part("active", BOOLEAN, field="message_priority", key="message_priority",
             option=Option(SWITCH, required=True)),
        Part("ageingSeconds", INTEGER, field="message_priority_ageing_s", key="message_priority_ageing_s", default=0,
             least=0, option=Option("--ageing -a", "seconds"))),
        where="storage/dispatch/by_priority.py"),
    Policy("compactionThreshold",
           "Bytes that may come after a compaction before the next one; 0: the topic is not compacted by itself.", (
        Part("", LONG, field="compaction_threshold", key="compaction_threshold_bytes", least=0,
             option=Option("--threshold -t", "bytes")),),
        namespace=Route(method="PUT", nullable=False, refusal="compactionThreshold must be 0 or more",
                        member="compaction_threshold"),
        topic=Route(nullable=False, refusal="Invalid value for compactionThreshold"),
        where="supervisor/admin/resources/compaction.py"),
    Policy("compactionOrder",
           "The message of a key that a compaction keeps: the last one, or the one with the latest event time.", (
        Part("", one_of(*COMPACTION_ORDERS), field="compaction_order", key="compaction_order",
             option=Option("--order")),),
        where="storage/jobs/compacting/key_scan.py"),
    Policy("export", "Content of a topic that nights export as tables: all new messages, or the compacted view.", (
        Part("", one_of(*EXPORTS), field="export", key="export", option=Option("--content")),),
        where="supervisor/tasks/tables.py"),
    Policy("exportBeforeDeletion",
           "Whether messages stay until they are exported, although no subscription and no other policy needs them.", (
        Part("", BOOLEAN, field="export_before_deletion", key="export_before_deletion"),),
        where="storage/topics/partition.py"),
    Policy("subscriptionFilters",
           "Whether subscriptions may have a filter, which says which messages their consumers get.", (
        Part("", BOOLEAN, field="subscription_filters", key="subscription_filters"),),
        where="storage/open_topics/filtering.py"),
    Policy("persistence", "Number of storage nodes that keep each entry.", (
        Part("bookkeeperEnsemble", INTEGER, default=2, otherwise=1, option=Option("--bookkeeper-ensemble -e")),
        Part("bookkeeperWriteQuorum", INTEGER, default=2, otherwise=1, option=Option("--bookkeeper-write-quorum -w")),
        Part("bookkeeperAckQuorum", INTEGER, default=2, otherwise=1, option=Option("--bookkeeper-ack-quorum -a")),
        Part("managedLedgerMaxMarkDeleteRate", DECIMAL, default=0.0, otherwise=1.0,
             option=Option("--ml-mark-delete-max-rate -r")),
        Part("managedLedgerStorageClassName", TEXT, option=Option("--ml-storage-class -c"))),
        namespace=Route(nullable=False, member="persistence"), topic=Route(nullable=False), why="There is one host.",
        check=checks.persistence),
    Policy("maxUnackedMessagesPerConsumer",
           "Unacknowledged messages of a Shared or Key_Shared consumer; 0: no bound.", (
        Part("", INTEGER, field="max_unacked_messages_per_consumer", key="max_unacked_messages_per_consumer", least=0,
             option=Option("--max-unacked-messages-per-topic -c", topic_flags="--maxNum -m")),),
        namespace=Route(nullable=False, member="max_unacked_messages_per_consumer"),
        topic=Route("maxUnackedMessagesOnConsumer", refusal="maxUnackedNum must be 0 or more"),
        where="storage/dispatch/shared.py"),
    Policy("maxUnackedMessagesPerSubscription",
           "Unacknowledged messages of a Shared or Key_Shared subscription; 0: no bound.", (
        Part("", INTEGER, field="max_unacked_messages_per_subscription", key="max_unacked_messages_per_subscription",
             least=0, option=Option("--max-unacked-messages-per-subscription -c", topic_flags="--maxNum -m")),),
        namespace=Route(nullable=False, member="max_unacked_messages_per_subscription"),
        topic=Route("maxUnackedMessagesOnSubscription", refusal="maxUnackedNum must be 0 or more"),
        where="storage/dispatch/shared.py"),
    Policy("maxProducers", "Producers of a topic or partition at a time; 0: no bound.", (
        Part("", INTEGER, field="max_producers", key="max_producers_per_topic", least=0,
             option=Option("--max-producers-per-topic -p", topic_flags="--max-producers -p")),),
        namespace=Route("maxProducersPerTopic", nullable=False, member="max_producers_per_topic"),
        topic=Route(nullable=False), verb="max-producers-per-topic", topic_verb="max-producers",
        where="storage/commands/producers.py"),
    Policy("maxConsumers", "Consumers of a topic or partition at a time; 0: no bound.", (
        Part("", INTEGER, field="max_consumers", key="max_consumers_per_topic", least=0,
             option=Option("--max-consumers-per-topic -c", topic_flags="--max-consumers -c")),),
        namespace=Route("maxConsumersPerTopic", nullable=False, member="max_consumers_per_topic"),
        topic=Route(nullable=False), verb="max-consumers-per-topic", topic_verb="max-consumers",
        where="storage/commands/consumers.py"),
    Policy("maxConsumersPerSubscription", "Consumers of a subscription at a time; 0: no bound.", (
        Part("", INTEGER, field="max_consumers_per_subscription", key="max_consumers_per_subscription", least=0,
             option=Option("--max-consumers-per-subscription -c")),),
        namespace=Route(nullable=False, member="max_consumers_per_subscription"),
        topic=Route(unset=NO_CONTENT, nullable=False, refusal="Invalid value for maxConsumersPerSubscription"),
        where="storage/commands/consumers.py"),
    Policy("maxSubscriptionsPerTopic", "Subscriptions of a topic or partition; 0: no bound.", (
        Part("", INTEGER, field="max_subscriptions", key="max_subscriptions_per_topic", least=0,
             option=Option("--max-subscriptions-per-topic -m", topic_flags="--max-subscriptions-per-topic -s")),),
        namespace=Route(nullable=False, member="max_subscriptions_per_topic"),
        topic=Route(unset=NO_CONTENT, nullable=False), where="storage/commands/subscriptions.py"),
    Policy("maxTopicsPerNamespace", "Topics of a namespace, where each partition counts; 0: no bound.", (
        Part("", INTEGER, field="max_topics", key="max_topics_per_namespace", least=0,
             option=Option("--max-topics-per-namespace -t")),),
        namespace=Route(unset=0, nullable=False, member="max_topics_per_namespace"), topic=None,
        where="storage/catalogue/policies.py"),
    Policy("maxMessageSize", "Bytes of the largest message; 0: the broker's own bound.", (
        Part("", INTEGER, field="max_message_size", least=0, option=Option("--max-message-size -m")),),
        namespace=None, topic=Route(unset=NO_CONTENT, nullable=False, refusal=TOO_LARGE_SIZE, right_to_get="tenant",
                                    right_to_set="tenant"),
        where="storage/owner/publishing.py"),
    Policy("deletedRetention", "Seconds for which deleted topics and cleared backlogs can be taken back; 0: not.", (
        Part("", INTEGER, field="deleted_retention_s", key="deleted_retention_s", least=0,
             option=Option("--time -t", "seconds")),),
        where="storage/open_topics/kept.py"),
    Policy("inactiveTopicPolicies", "Whether unused topics are deleted, and after how long.", (
        Part("inactiveTopicDeleteMode", one_of(*DELETE_MODES), field="inactive_topic_mode", key="inactive_topic_mode",
             option=Option("--delete-mode -m", required=True)),
        Part("maxInactiveDurationSeconds", INTEGER, field="inactive_topic_s", key="inactive_topic_s", default=0,
             key_values=(1, INT_MAX),
             option=Option("--max-inactive-duration -t", "seconds", required=True)),
        Part("deleteWhileInactive", BOOLEAN, field="delete_inactive_topics", key="delete_inactive_topics",
             default=False,
             option=Option("--enable-delete-while-inactive -e / --disable-delete-while-inactive -d", required=True))),
        namespace=Route(member="inactive_topic_policies"), where="storage/enforcement/inactive_topics.py",
        check=checks.inactive),
    Policy("autoTopicCreation", "Whether a topic is created when it is first used, and with how many partitions.", (
        Part("allowAutoTopicCreation", BOOLEAN, field="auto_create_topics", key="auto_create_topics", default=False,
             option=Option(SWITCH, required=True)),
        Part("topicType", TEXT._replace(choices=("partitioned", "non-partitioned", "")), field="auto_topic_type",
             option=Option("--type -t", sent="non-partitioned")),
        Part("defaultNumPartitions", INTEGER, field="auto_create_partitions", key="auto_create_partitions",
             key_values=(0, 10_000),
             option=Option("--num-partitions -n"))),
        namespace=Route(member="autoTopicCreationOverride"), topic=None, where="storage/open_topics/topic_table.py",
        check=checks.auto_creation),
    Policy("autoSubscriptionCreation", "Whether a subscription is created when it is first used.", (
        Part("allowAutoSubscriptionCreation", BOOLEAN, field="auto_create_subscriptions",
             key="auto_create_subscriptions", default=False, option=Option("--enable -e")),),
        namespace=Route(member="autoSubscriptionCreationOverride"), where="storage/commands/subscriptions.py"),
    Policy("subscriptionTypesEnabled", "Subscription types that consumers may ask for.", (
        Part("", some_of(*SUBSCRIPTION_TYPES), field="subscription_types", key="subscription_types", blank=[],
             option=Option("--types -t")),),
        namespace=Route(unset=[], nullable=False, member="subscription_types_enabled"),
        topic=Route(unset=NO_CONTENT, nullable=False), where="storage/commands/consumers.py"),
    Policy("subscriptionExpirationTime", "Minutes after which an unused subscription is deleted; 0: never.", (
        Part("", INTEGER, field="subscription_expiration_s", scale=60, key="subscription_expiration_s", least=0,
             option=Option("--time -t")),),
        namespace=Route(nullable=False, refusal="Invalid value for subscription expiration time",
                        member="subscription_expiration_time_minutes"),
        topic=Route(query="subscriptionExpirationTime", refusal="Invalid value for subscription expiration time"),
        where="storage/enforcement/inactive_topics.py"),
    Policy("scalableTopicAutoScale",
           "When segments of scalable topics split, merge and get more buckets by themselves.", (
        Part("enabled", BOOLEAN, key="scale_automatically", option=Option(SWITCH)),
        Part("maxSegments", INTEGER, key="scale_segments_max", key_values=(1, 1_024),
             option=Option("--max-segments")),
        Part("minSegments", INTEGER, key="scale_segments_min", key_values=(1, 1_024),
             option=Option("--min-segments")),
        Part("maxDagDepth", INTEGER, key="scale_merges_max", key_values=(0, INT_MAX), option=Option("--max-dag-depth")),
        *(_scale_part(f"{name}Seconds", f"scale_{key}_s", "seconds") for name, key in (
            ("splitCooldown", "split_cooldown"), ("mergeCooldown", "merge_cooldown"),
            ("mergeWindow", "merge_window"), ("rebucketCooldown", "rebucket_cooldown"))),
        _scale_part("splitVsRebucketMinMsgRateInThreshold", "scale_split_for_consumers_messages"),
        *(_scale_part(f"{change}{rate}Threshold", f"scale_{change}_{key}") for change in ("split", "merge")
          for rate, key in (("MsgRateIn", "messages_in"), ("BytesRateIn", "bytes_in"),
                            ("MsgRateOut", "messages_out"), ("BytesRateOut", "bytes_out"))),
        Part("maxEntryBucketsPerSegment", INTEGER, key="scale_buckets_max", key_values=(1, 1_024),
             option=Option("--max-entry-buckets-per-segment"))),
        namespace=Route("scalableTopicAutoScalePolicy"), topic=None, where="storage/scalable/auto_scaling.py"),
    Policy("encryptionRequired", "Whether producers must encrypt their messages.", (
        Part("", BOOLEAN, field="encryption_required", key="encryption_required"),),
        namespace=Route(unset=False, nullable=False, removable=False, member="encryption_required"), topic=None,
        where="storage/commands/producers.py"),
    Policy("schemaValidationEnforced", "Whether a topic with a schema refuses producers without one.", (
        Part("", BOOLEAN, field="schema_enforced", key="schema_validation_enforced"),),
        namespace=Route(unset=False, nullable=False, removable=False, member="schema_validation_enforced"),
        topic=Route(unset=False, nullable=False, removable=False), verb="schema-validation-enforce",
        where="storage/schemas/registry.py"),
    Policy("isAllowAutoUpdateSchema", "Whether producers may add versions of a schema.", (
        Part("", BOOLEAN, field="schema_updates", key="schema_auto_update"),),
        namespace=Route(unset=True, nullable=False, removable=False, member="is_allow_auto_update_schema"), topic=None,
        where="storage/schemas/registry.py"),
    Policy("schemaAutoUpdateCompatibilityStrategy",
           "The older form of schemaCompatibilityStrategy, which is stronger.", (
        Part("", one_of(*_OLD_STRATEGIES), field="schema_strategy", means=_OLD_STRATEGIES,
             option=Option("--compatibility -c")),),
        namespace=Route(method="PUT", unset=NO_CONTENT, removable=False,
                        member="schema_auto_update_compatibility_strategy"),
        topic=None, verb="schema-autoupdate-strategy", where="storage/schemas/registry.py"),
    Policy("schemaCompatibilityStrategy", "Compatibility that a new version of a schema needs.", (
        Part("", one_of(*STRATEGIES), field="schema_strategy", key="schema_compatibility_strategy", blank="UNDEFINED",
             option=Option("--compatibility -c", topic_flags="--strategy -s")),),
        namespace=Route(method="PUT", unset="UNDEFINED", removable=False, member="schema_compatibility_strategy"),
        topic=Route(method="PUT"), where="storage/schemas/registry.py"),
    Policy("subscriptionAuthMode", "Whether a subscription's name must begin with the role that uses it.", (
        Part("", one_of("None", "Prefix"), option=Option("--subscription-auth-mode -m")),),
        namespace=Route(unset="None", removable=False, member="subscription_auth_mode"), topic=None,
        where="workers/identity/authorization.py"),
    Policy("entryFilters", "Plug-ins that choose which messages are delivered.", (
        Part("entryFilterNames", TEXT, otherwise="", option=Option("--entry-filters-name -efn", required=True)),),
        namespace=Route(member="entryFilters"), topic_verb="entry-filters-per-topic",
        why="There are no plug-ins: every name is refused.", check=checks.entry_filters),
    Policy("dispatcherPauseOnAckStatePersistent",
           "Whether dispatch pauses while there are more acknowledgements than can be kept.", (
        Part("", BOOLEAN),),
        namespace=Route(unset=False, nullable=False, member="dispatcherPauseOnAckStatePersistentEnabled", implied=True),
        topic=Route(unset=False, nullable=False, implied=True), why="All acknowledgements are kept."),
    Policy("replicationClusters",
           "Clusters that have the topic; messages go to all but the broker's own, which has to be among them.", (
        Part("", TEXTS, field="replication_clusters", option=Option("--clusters -c")),),
        namespace=Route("replication", status=200, unset=OWN_CLUSTER, nullable=False, removable=False,
                        member="replication_clusters"),
        topic=Route("replication", nullable=False), verb="clusters", topic_verb="replication-clusters",
        where="storage/enforcement/replication_cursors.py"),
    Policy("allowedClusters", "Clusters that replicationClusters of the namespace and its topics may name.", (
        Part("", TEXTS, option=Option("--clusters -c")),),
        namespace=Route(status=200, unset=[], nullable=False, removable=False, member="allowed_clusters"), topic=None,
        where="supervisor/admin/resources/cluster_lists.py"),
    Policy("replicatorDispatchRate", "Messages and bytes that go from a topic to each other cluster in a period.", (
        Part("dispatchThrottlingRateInMsg", INTEGER, field="replicator_dispatch_messages",
             key="dispatch_messages_per_replicator", default=-1, option=Option("--msg-dispatch-rate -md")),
        Part("dispatchThrottlingRateInByte", LONG, field="replicator_dispatch_bytes",
             key="dispatch_bytes_per_replicator", default=-1, option=Option("--byte-dispatch-rate -bd", "bytes")),
        Part("relativeToPublishRate", BOOLEAN, field="replicator_dispatch_relative", default=False, otherwise=False),
        Part("ratePeriodInSecond", INTEGER, field="replicator_dispatch_period_s", default=1, otherwise=1,
             option=Option("--dispatch-rate-period -dt", "seconds"))),
        namespace=Route(member="replicatorDispatchRate", by_cluster=True), where="storage/enforcement/rate_limiter.py"),
    Policy("offloadThreshold", "Bytes of a topic above which ledgers are moved to another store; -1: none are.", (
        Part("", LONG, option=Option("--size -s", "bytes")),),
        namespace=Route(method="PUT", unset=-1, nullable=False, removable=False, member="offload_threshold"),
        topic=None, why=_NO_OFFLOAD),
    Policy("offloadThresholdInSeconds", "Age above which ledgers are moved to another store; -1: none are.", (
        Part("", LONG, option=Option("--time -t", "seconds")),),
        namespace=Route(method="PUT", status=200, unset=-1, nullable=False, removable=False,
                        member="offload_threshold_in_seconds"),
        topic=None, why=_NO_OFFLOAD),
    Policy("offloadDeletionLagMs", "Time after which a ledger that was moved to another store is deleted here.", (
        Part("", LONG, option=Option("--lag -l", "ms")),),
        namespace=Route(method="PUT", nullable=False, member="offload_deletion_lag_ms"), topic=None,
        verb="offload-deletion-lag", why=_NO_OFFLOAD),
    Policy("offloadPolicies", "The other store that ledgers are moved to.", (
        Part("managedLedgerOffloadDriver", TEXT, option=Option("--driver -d", required=True)),
        Part("managedLedgerOffloadRegion", TEXT, option=Option("--region -r")),
        Part("managedLedgerOffloadBucket", TEXT, option=Option("--bucket -b")),
        Part("managedLedgerOffloadServiceEndpoint", TEXT, option=Option("--endpoint -e")),
        Part("managedLedgerOffloadThresholdInBytes", LONG,
             option=Option("--offloadAfterThreshold -oat", "bytes", topic_flags="--offloadThresholdInBytes -t")),
        Part("managedLedgerOffloadThresholdInSeconds", LONG,
             option=Option("--offloadAfterThresholdInSeconds -oats", "seconds",
                           topic_flags="--offloadThresholdInSeconds -ts")),
        Part("managedLedgerOffloadDeletionLagInMillis", LONG,
             option=Option("--offloadAfterElapsed -oae", "ms", topic_flags="--offloadDeletionLagInMillis -dl")),
        *_OFFLOAD_MORE),
        namespace=Route(nullable=False, member="offload_policies", remove="removeOffloadPolicies"),
        topic=Route(nullable=False), why=_NO_OFFLOAD, check=checks.offload),
    Policy("antiAffinityGroup", "Namespaces of a group are served by different brokers.", (
        Part("", TEXT, option=Option("--group -g")),),
        namespace=Route("antiAffinity", unset=NO_CONTENT, nullable=False, member="antiAffinityGroup", is_raw=True),
        topic=None, why="There is one broker."),
    Policy("bookieAffinityGroup", "Groups of storage nodes that are preferred.", (
        Part("bookkeeperAffinityGroupPrimary", TEXT, option=Option("--primary-group -pg", required=True)),
        Part("bookkeeperAffinityGroupSecondary", TEXT, option=Option("--secondary-group -sg"))),
        namespace=Route("persistence/bookieAffinity", unset=NO_CONTENT, right_to_get="broker", right_to_set="broker"),
        topic=None, why="There is one host."),
    Policy("allowedTopicPropertyKeysForMetrics", "Properties of topics that metrics may have as labels.", (
        Part("", TEXTS, option=Option("--keys -k")),), namespace=Route(member="allowedTopicPropertyKeysForMetrics"),
        topic=None, where="supervisor/admin/monitoring/property_labels.py", check=checks.property_keys),
    Policy("publishRate", "Messages and bytes a second that may be published to a topic; 0 or less: no bound.", (
        Part("publishThrottlingRateInMsg", INTEGER, field="publish_messages", key="publish_messages_per_topic",
             default=-1, option=Option("--msg-publish-rate -m")),
        Part("publishThrottlingRateInByte", LONG, field="publish_bytes", key="publish_bytes_per_topic", default=-1,
             option=Option("--byte-publish-rate -b", "bytes"))),
        namespace=Route(member="publishMaxMessageRate", by_cluster=True), topic=Route(unset=NO_CONTENT),
        where="storage/enforcement/rate_limiter.py"),
    Policy("dispatchRate", "Messages and bytes that a topic's consumers together get in a period.",
        _dispatch_parts("dispatch", "topic"),
        namespace=Route(member="topicDispatchRate", by_cluster=True), where="storage/enforcement/rate_limiter.py"),
    Policy("subscriptionDispatchRate",
           "Messages and bytes that the consumers of each subscription together get in a period.",
        _dispatch_parts("subscription_dispatch", "subscription"),
        namespace=Route(member="subscriptionDispatchRate", by_cluster=True),
        where="storage/enforcement/rate_limiter.py"),
    Policy("subscribeRate", "Number of times that a consumer may subscribe to a topic in a period.", (
        Part("subscribeThrottlingRatePerConsumer", INTEGER, field="subscribe_count", key="subscribes_per_consumer",
             default=-1, option=Option("--subscribe-rate -sr")),
        Part("ratePeriodInSecond", INTEGER, field="subscribe_period_s", key="subscribe_period_s", default=30,
             key_values=(1, 24 * 3600),
             option=Option("--subscribe-rate-period -st", "seconds"))),
        namespace=Route(member="clusterSubscribeRate", by_cluster=True), where="storage/enforcement/rate_limiter.py"),
))}
