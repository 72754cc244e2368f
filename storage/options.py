"""What an owner can be told: one frozen dataclass, handed down by the supervisor.

Lower layers read no globals and no environment; supervisor/configuration/config.py composes these from the configuration and checks ranges.
"""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How entries are kept and when what was kept is given back."""

    sync: str = "group"                       # "group": before anything is answered; "interval": now and then; "none": the kernel decides
    sync_interval_ms: int = 1_000             # with sync = "interval": how much of the newest data a power cut may cost
    roll_over_bytes: int = 64 << 20           # a ledger is sealed when it holds this much; space is given back ledger by ledger
    roll_over_entries: int = 1_000_000        # or this many entries
    roll_over_age_s: int = 4 * 3600           # or when it is this old
    journal_segment_bytes: int = 16 << 20     # segments are written over and over: blocks written before sync 4 times faster
    journal_segments_max: int = 8             # bound of what a recovery replays: segments x bytes
    pass_bytes_max: int = 1 << 20             # bytes of entries that one pass takes in before it syncs
    disk_refuse_below_bytes: int = 256 << 20  # with less free nobody may publish; at most a 20th of the file system
    disk_accept_above_bytes: int = 384 << 20  # with so much publishing goes on; at most a 10th of the file system
    disk_reserve_bytes: int = 32 << 20        # of each owner, for the rest when others filled the disk; at most a 40th
    auto_create_topics: bool = True           # a topic comes to be when it is first used
    auto_create_partitions: int = 0           # such topics are partitioned when this is above 0
    non_persistent_topics: bool = True        # topics that keep nothing may be used
    discovery_grace_s: int = 120              # so long a new topic keeps everything for clients that discover it; 0: it does not
    auto_create_subscriptions: bool = True    # a subscription comes to be when it is first used
    force_delete_namespaces: bool = False     # by force=true, with all their topics
    force_delete_tenants: bool = False        # ... with all their namespaces, where both may
    max_unacked_messages_per_consumer: int = 50_000          # of a shared subscription; above, a consumer gets no more; 0: no bound
    max_unacked_messages_per_subscription: int = 200_000     # of all its consumers together; 0: no bound
    max_unacked_messages_per_broker: int = 0  # of all shared subscriptions together; 0: no bound
    max_unacked_percent_when_blocked: int = 16       # of that bound: a subscription with more gets nothing while the bound is reached
    max_live_messages_per_connection: int = 0        # under way to non-persistent topics; what is above is dropped; 0: no bound
    batch_index_acknowledgement: bool = True  # messages of a batch are acknowledged one by one; else it counts when all of it is
    failover_selection: str = "name"          # who is active on a topic that is not partitioned: by "name", "join-order" or "hashring"
    delayed_delivery_strict: bool = True      # never early, late by at most a tick; else early by at most a tick
    key_shared_enabled: bool = True           # Key_Shared subscriptions may be made
    key_shared_consistent_hashing: bool = True       # consumers share a ring of hashes; else the largest range is split
    # What holds where no policy of a topic or a namespace says otherwise:
    retention_s: int = 0                      # acknowledged ledgers are kept so long; -1: no bound; 0: they are not kept
    retention_bytes: int = 0                  # ... and while their partition is not larger; -1: no bound; 0: they are not kept
    message_ttl_s: int = 0                    # messages that are not acknowledged by then expire; 0: they do not
    backlog_quota_bytes: int = -1             # of a partition's slowest subscription; -1: no bound
    backlog_quota_age_s: int = -1             # of the oldest message of a backlog; -1: no bound
    backlog_quota_check: bool = True          # quotas are enforced, whoever has set them
    backlog_quota_policy: str = "producer_request_hold"      # what happens above, see policies.QUOTA_ACTIONS
    max_producers_per_topic: int = 0          # of a topic or partition at a time; of these bounds, 0: there is none
    max_consumers_per_topic: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions_per_topic: int = 0
    max_topics_per_namespace: int = 0         # each partition counts
    max_same_address_producers_per_topic: int = 0     # of a topic or partition at a time, from one address; 0: no bound
    max_same_address_consumers_per_topic: int = 0
    delete_inactive_topics: bool = False      # topics that nobody uses are deleted
    inactive_topic_s: int = 60                # ... after so long
    inactive_topic_mode: str = "delete_when_no_subscriptions"    # ... or "delete_when_subscriptions_caught_up"
    subscription_types: tuple[str, ...] = ("Exclusive", "Failover", "Key_Shared", "Shared")      # that consumers may ask for
    encryption_required: bool = False         # producers must encrypt
    subscription_expiration_s: int = 0        # a subscription that nobody uses is deleted after so long; 0: it is not
    deduplication: bool = False               # what a producer sends again is not stored again
    delayed_delivery: bool = True             # Shared and Key_Shared consumers get a message not before its time
    delayed_delivery_tick_ms: int = 1_000     # how exactly
    delayed_delivery_window_ms: int = 300_000        # the schedule is kept in files for so long each
    delayed_delivery_max_ms: int = 0          # what is published with a longer delay is refused; 0: no bound
    delayed_delivery_fixed_ms: int = 0        # every message is delayed for so long, whatever its producer says; 0: as that says
    compaction_threshold_bytes: int = 0       # a partition with so much news since it was compacted is compacted; 0: it is not
    schema_compatibility_strategy: str = "FULL"      # which versions of a schema get along, see storage/schemas/registry.py
    schema_auto_update: bool = True           # clients may add schemas, and versions of them
    schema_validation_enforced: bool = False  # a topic with a schema takes nothing from producers without one
    publish_messages_per_topic: int = 0       # messages a second; 0 here and below: no bound
    publish_bytes_per_topic: int = 0          # ... and their bytes
    dispatch_messages_per_topic: int = 0      # likewise what consumers get, of all subscriptions together
    dispatch_bytes_per_topic: int = 0
    dispatch_messages_per_subscription: int = 0
    dispatch_bytes_per_subscription: int = 0
    dispatch_relative_to_publish: bool = False       # these are beyond what is published in the same time
    subscribes_per_consumer: int = 0          # how often a consumer may subscribe to a topic ...
    subscribe_period_s: int = 30              # ... in so many seconds
    # Whatever holds:
    publish_messages_per_broker: int = 0      # messages a second, to all topics together; 0 here and below: no bound
    publish_bytes_per_broker: int = 0
    dispatch_messages_per_broker: int = 0
    dispatch_bytes_per_broker: int = 0
    dispatch_limits_entries: bool = False     # a batch counts as one message when what consumers get is bounded
    dispatch_limits_without_backlog: bool = True     # also of subscriptions that are hardly behind
    deduplication_names_max: int = 10_000     # producers that a partition remembers; the longest inactive are forgotten first
    deduplication_inactivity_s: int = 6 * 3600       # a producer that is not connected is forgotten after this
    stats_window_s: int = 60                  # rates are averages over the last complete window of so long
    keep_alive_interval_ms: int = 30_000      # how long an owner waits for a suspected dead connection is derived from it
