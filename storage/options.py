"""Options of owners: one frozen dataclass, handed down by the supervisor.

Lower layers read no globals and no environment: supervisor/configuration/config.py makes these from the configuration
and checks their ranges.  For every limit, 0 means that there is none, unless its line says otherwise.
"""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How entries are stored, how long they are kept, and the defaults of policies."""

    cluster_name: str = "standalone"          # of this broker, as it stands in lists of clusters

    # -- storage
    sync: str = "group"      # "group": before any answer; "interval": now and then; "none": when the kernel writes back
    sync_interval_ms: int = 1_000             # with sync = "interval": how much of the newest data a power cut may cost
    roll_over_bytes: int = 64 << 20           # a ledger is sealed when it holds so much: ledgers are deleted as a whole
    roll_over_entries: int = 1_000_000        # a ledger is sealed when it holds so many
    roll_over_age_s: int = 4 * 3600           # a ledger is sealed when it is so old
    keep_acknowledged_s: int = 600            # open ledgers keep acknowledged entries; idle ones are sealed then; 0: no
    journal_segment_bytes: int = 16 << 20     # syncing blocks that were written before is four times faster
    journal_segments_max: int = 8             # with journal_segment_bytes a bound of what a recovery replays
    pass_bytes_max: int = 1 << 20             # bytes of entries that a pass takes in before it syncs
    disk_refuse_below_bytes: int = 256 << 20  # free space that stops publishing; at most a 20th of the file system
    disk_accept_above_bytes: int = 384 << 20  # free space with which publishing resumes; at most a 10th
    disk_reserve_bytes: int = 32 << 20        # of each owner, given up when the disk is full; at most a 40th

    # -- topics and subscriptions
    auto_create_topics: bool = True           # a topic is created at its first use
    auto_create_partitions: int = 0           # partitions of topics created so; 0: they are not partitioned
    non_persistent_topics: bool = True        # non-persistent topics may be used
    discovery_grace_s: int = 120              # a new topic keeps all messages so long for consumers that discover it
    stream_consumer_grace_s: int = 60         # a stream consumer keeps its segments so long after its connection's end
    auto_create_subscriptions: bool = True    # a subscription is created at its first use
    force_delete_namespaces: bool = False     # force=true deletes a namespace with all its topics
    force_delete_tenants: bool = False        # force=true deletes a tenant with all its namespaces, if both are allowed
    max_unacked_messages_per_consumer: int = 50_000          # of a shared subscription; above, it is sent no more
    max_unacked_messages_per_subscription: int = 200_000     # of all consumers of a shared subscription together
    max_unacked_messages_per_broker: int = 0  # of all shared subscriptions together
    max_unacked_percent_when_blocked: int = 16       # of that limit; while it is reached, a larger share is blocked
    max_live_messages_per_connection: int = 0        # in flight to non-persistent topics; those above are dropped
    batch_index_acknowledgement: bool = True  # False: a batch counts as acknowledged when all its messages are
    failover_selection: str = "name"          # of active consumers without partitions; or "join-order", "hashring"
    delayed_delivery_strict: bool = True      # messages are at most a tick late; False: at most a tick early
    key_shared_enabled: bool = True           # Key_Shared subscriptions may be used
    key_shared_consistent_hashing: bool = True       # by a ring of hashes; False: the largest range is split

    replication_start_at: str = "latest"      # where a new replication cursor begins: "latest" or "earliest"
    replicated_subscriptions: bool = True     # positions of replicated subscriptions are exchanged with other clusters
    replicated_snapshot_interval_s: int = 1   # between two snapshots of a partition's positions, while messages come
    replicated_snapshot_timeout_s: int = 30   # in which other clusters have to answer one
    replicated_snapshots_max: int = 10        # of a partition, for subscriptions that have yet to pass them

    # -- transactions: [transactions] of the configuration
    transactions: bool = True                 # transactions may be begun and used
    max_active_transactions: int = 0          # of each coordinator, which an owner is; above it, none is begun

    # -- defaults of policies, where a namespace or topic has none of its own
    retention_s: int = 0                      # acknowledged ledgers are kept so long; -1: for ever; 0: they are deleted
    retention_bytes: int = 0                  # ... while their partition is no larger; -1: no limit; 0: they go at once
    message_ttl_s: int = 0                    # messages that were not acknowledged in this time expire
    own_message_ttl: bool = False             # messages expire after the time of their property geminga.ttl
    backlog_quota_bytes: int = -1             # of a partition's slowest subscription; -1: no limit
    backlog_quota_age_s: int = -1             # age of the oldest message of a backlog; -1: no limit
    backlog_quota_check: bool = True          # False: no quota is enforced, wherever it was set
    backlog_quota_policy: str = "producer_request_hold"      # what happens above a quota, see policies.QUOTA_ACTIONS
    max_producers_per_topic: int = 0          # of a partition at a time
    max_consumers_per_topic: int = 0          # of a partition at a time
    max_consumers_per_subscription: int = 0
    max_subscriptions_per_topic: int = 0
    max_topics_per_namespace: int = 0         # each partition counts
    max_same_address_producers_per_topic: int = 0     # of a partition at a time, from one address
    max_same_address_consumers_per_topic: int = 0
    deleted_retention_s: int = 0              # deleted topics and cleared backlogs can be taken back for so long
    delete_inactive_topics: bool = False      # unused topics are deleted
    inactive_topic_s: int = 60                # an unused topic is deleted after so long
    inactive_topic_mode: str = "delete_when_no_subscriptions"    # or "delete_when_subscriptions_caught_up"
    subscription_types: tuple[str, ...] = ("Exclusive", "Failover", "Key_Shared", "Shared")      # that may be used
    encryption_required: bool = False         # unencrypted messages are refused
    subscription_expiration_s: int = 0        # an unused subscription is deleted after so long
    subscription_filters: bool = False        # subscriptions may have a filter for their consumers' messages
    deduplication: bool = False               # a message that a producer sends again is not stored again
    delayed_delivery: bool = True             # Shared and Key_Shared consumers get a message when it is due, not before
    delayed_delivery_tick_ms: int = 1_000     # precision of delivery times
    delayed_delivery_window_ms: int = 300_000        # delivery times that share a file of the delayed index
    delayed_delivery_max_ms: int = 0          # messages with a longer delay are refused
    delayed_delivery_fixed_ms: int = 0        # every message's delay, whatever its producer asks for; 0: as it asks
    message_priority: bool = False            # Shared consumers get messages with a higher geminga.priority first
    message_priority_ageing_s: int = 0        # what has waited so long goes first, whatever its priority; 0: nothing
    compaction_threshold_bytes: int = 0       # so much that is new has a partition compacted; 0: only nights compact it
    compaction_order: str = "position"        # the message of a key that stays: "position" the last, or by "event_time"
    export: str = "none"                      # content that nights export as tables: "none", "messages" or "compacted"
    export_before_deletion: bool = False      # messages of topics with an export stay until they are exported
    schema_compatibility_strategy: str = "FULL"      # of versions of a schema, see storage/schemas/registry.py
    schema_auto_update: bool = True           # clients may add schemas, and versions of them
    schema_validation_enforced: bool = False  # a topic with a schema refuses producers without one
    publish_messages_per_topic: int = 0       # messages a second
    publish_bytes_per_topic: int = 0          # bytes of messages a second
    dispatch_messages_per_topic: int = 0      # messages a second to all subscriptions together
    dispatch_bytes_per_topic: int = 0
    dispatch_messages_per_replicator: int = 0        # messages a second from each topic to each other cluster
    dispatch_bytes_per_replicator: int = 0
    dispatch_messages_per_subscription: int = 0
    dispatch_bytes_per_subscription: int = 0
    dispatch_relative_to_publish: bool = False       # dispatch rates come on top of what is published in the same time
    subscribes_per_consumer: int = 0          # how often a consumer may subscribe to a topic in a period
    subscribe_period_s: int = 30              # that period

    # -- segments of scalable topics, which split and merge by themselves
    scale_automatically: bool = True          # False: only commands split and merge them
    scale_segments_max: int = 64              # of a topic that take messages
    scale_segments_min: int = 1
    scale_merges_max: int = 10                # of which a segment may have come
    scale_split_cooldown_s: int = 60          # between two splits of a topic
    scale_merge_cooldown_s: int = 300         # between two merges of a topic
    scale_merge_window_s: int = 300           # for which segments that are merged have carried little
    scale_rebucket_cooldown_s: int = 60       # between two changes of the buckets of a topic
    scale_split_for_consumers_messages: int = 1_000  # a second; a segment that carries less gets buckets for consumers
    scale_split_messages_in: int = 10_000     # a second that are published to a segment; above, it is split
    scale_split_bytes_in: int = 50_000_000
    scale_split_messages_out: int = 50_000    # a second that its consumers get
    scale_split_bytes_out: int = 250_000_000
    scale_merge_messages_in: int = 1_000      # a second that are published to a segment; below, it may be merged
    scale_merge_bytes_in: int = 5_000_000
    scale_merge_messages_out: int = 5_000
    scale_merge_bytes_out: int = 25_000_000
    scale_buckets_max: int = 1_024            # of a segment
    scale_interval_s: int = 60                # between two looks at what segments carry

    # -- limits of the whole broker, which no policy changes
    publish_messages_per_broker: int = 0      # messages a second, to all topics together
    publish_bytes_per_broker: int = 0
    dispatch_messages_per_broker: int = 0
    dispatch_bytes_per_broker: int = 0
    dispatch_limits_entries: bool = False     # for dispatch rates a batch counts as one message
    dispatch_limits_without_backlog: bool = True     # dispatch rates also hold for subscriptions that keep up
    deduplication_names_max: int = 10_000     # producers that a partition remembers; the longest inactive are forgotten
    deduplication_inactivity_s: int = 6 * 3600       # a producer that is not connected is forgotten after so long
    max_tenants: int = 0                      # those that the broker makes itself count too
    max_namespaces_per_tenant: int = 0
    stats_window_s: int = 60                  # rates in statistics are averages over the last complete window
    keep_alive_interval_ms: int = 30_000      # clients are asked for a sign of life; owners derive their waits from it
