"""The policies in force for a topic or partition.

A topic's policy is stronger than its namespace's, which is stronger than the broker's default (StorageOptions). The
catalogue has each policy that was set, by its name, in the form in which clients send it (stored_policies.py). Owners
and workers use `Policies`. The policies that can be set are declared in policy_table.py.
"""
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import DEAD_LETTERS, TopicName, is_system
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policy_declaration import Policy, default, fields
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.catalogue.policy_values import (
    BY_POSITION,
    DELETE_MODES,
    EVICTION,
    EXPORTS_NOTHING,
    HOLD,
    MIB,
    SUBSCRIPTION_TYPES,
    Invalid,
)
from geminga.storage.options import StorageOptions

NO_LIMIT = -1
CLUSTERS = "/clusters"                  # scope of the records of clusters, by their names
MIGRATION = "/migration"                # scope of the migration of this cluster to another
MIGRATED = "migrated"                   # in that scope, and of a namespace: it takes part in the migration
DISPATCH_RATE_OF = "dispatchRate/"      # with a subscription's name behind it: a topic's policy for that subscription
BYTES_QUOTA, AGE_QUOTA = "backlogQuota/destination_storage", "backlogQuota/message_age"
CLASHING = "retention", BYTES_QUOTA, AGE_QUOTA      # policies that may contradict each other
DispatchRate = tuple[int, int, int, bool]      # messages, bytes, period in s, whether relative to the publish rate


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies in force for one partition."""

    # Retention and backlog; sizes in bytes
    retention_s: int = 0               # how long acknowledged ledgers are kept; NO_LIMIT: without a bound
    retention_bytes: int = 0           # ... while the partition is not larger; 0 in either: none are kept
    message_ttl_s: int = 0             # after this time unacknowledged messages expire; 0: never
    own_message_ttl: bool = False      # messages expire by the time that they name themselves
    quota_bytes: int = NO_LIMIT        # of the slowest durable subscription's backlog
    quota_bytes_action: str = HOLD     # taken when the backlog reaches this size
    quota_age_s: int = NO_LIMIT        # of the backlog's oldest message
    quota_age_action: str = HOLD       # taken when the oldest message reaches this age
    deduplication: bool = False
    subscription_filters: bool = False               # subscriptions may get a filter, see docs/filters.md
    compaction_order: str = BY_POSITION              # which message of a key a compaction keeps
    compaction_threshold: int = 0      # bytes published since a compaction that cause the next; 0: only on demand
    export: str = EXPORTS_NOTHING      # content that nights export as tables
    export_before_deletion: bool = False             # messages stay until they are exported

    # Dead letters
    dead_letter_redeliveries: int = 0  # a message given back more often is a dead letter; 0: none is for that
    dead_letter_topic: str = ""        # local name of the topic for dead letters; "": TOPIC-SUBSCRIPTION-DLQ
    dead_letter_subscription: str = "geminga-redrive"      # made at that topic, so that it keeps them
    dead_letter_expired: bool = False  # expired messages are dead letters too

    # Delayed delivery
    delayed_delivery: bool = True      # Shared and Key_Shared consumers get messages at their delivery time
    delay_tick_ms: int = 1_000         # precision of delivery times
    delay_window_ms: int = 300_000     # length of the delayed index's windows, each of which has a file
    delay_max_ms: int = 0              # messages with a longer delay are refused; 0: none
    delay_fixed_ms: int = 0            # delay of every message, whatever its producer asks for; 0: the producer's

    # Priorities
    message_priority: bool = False     # Shared consumers get messages of higher priority first
    message_priority_ageing_s: int = 0               # ... after those that have waited so long; 0: none

    # Bounds of numbers; 0: no bound
    max_unacked_messages_per_consumer: int = 50_000      # of Shared and Key_Shared subscriptions
    max_unacked_messages_per_subscription: int = 200_000
    max_producers: int = 0             # of the partition
    max_consumers: int = 0             # of all subscriptions of the partition together
    max_consumers_per_subscription: int = 0
    max_subscriptions: int = 0         # of the partition, durable ones
    max_topics: int = 0                # of the namespace; each partition counts
    max_message_size: int = 0

    # Creation and deletion
    deleted_retention_s: int = 0       # a deleted topic can be taken back for so long; 0: it cannot
    delete_inactive_topics: bool = False
    inactive_topic_s: int = 60         # a topic is deleted after this unused time
    inactive_topic_mode: str = DELETE_MODES[0]       # if it has no subscriptions, or none with a backlog
    auto_create_topics: bool = True    # topics are created at their first use
    auto_topic_type: str = ""          # partitioned or not, where a namespace says so
    auto_create_partitions: int = 0    # partitions of a topic created at its first use; 0: it is not partitioned
    auto_create_subscriptions: bool = True           # subscriptions are created at their first use
    subscription_types: tuple[str, ...] = SUBSCRIPTION_TYPES     # that consumers may ask for
    subscription_expiration_s: int = 0               # a subscription is deleted after this unused time; 0: never

    # Encryption and schemas
    encryption_required: bool = False                # producers have to encrypt
    schema_strategy: str = "FULL"      # compatibility that a new version of a schema needs
    schema_updates: bool = True        # clients may add schemas and versions
    schema_enforced: bool = False      # a topic with a schema refuses producers without one

    # Rates; 0 or less: no bound
    publish_messages: int = 0          # in a second
    publish_bytes: int = 0
    dispatch_messages: int = 0         # in a period, for all subscriptions together
    dispatch_bytes: int = 0
    dispatch_period_s: int = 1         # fewer than one count as one
    dispatch_relative: bool = False    # the rate is added to the publish rate
    subscription_dispatch_messages: int = 0          # ... for each subscription
    subscription_dispatch_bytes: int = 0
    subscription_dispatch_period_s: int = 1
    subscription_dispatch_relative: bool = False
    subscribe_count: int = 0           # times that a consumer may subscribe in a period
    subscribe_period_s: int = 30
    dispatch_rates_of: tuple[tuple[str, DispatchRate], ...] = ()     # subscriptions with a rate of their own, by name

    # Replication to other clusters
    replication_clusters: tuple[str, ...] = ()       # the list that was set, with the broker's own cluster; (): none
    remote_clusters: tuple[str, ...] = ()            # the others of the list that have a record, sorted
    replicator_dispatch_messages: int = 0            # in a period, to each of them; 0 or less: no bound
    replicator_dispatch_bytes: int = 0
    replicator_dispatch_period_s: int = 1
    replicator_dispatch_relative: bool = False       # the rate is added to the publish rate

    # The cluster to which clients are sent: its addresses without and with TLS; (): clients stay
    migrated_to: tuple[str, str] | tuple[()] = ()

    @property
    def new_topics_partitions(self) -> int:
        """The number of partitions of a topic that is created at its first use; 0: it is not partitioned."""
        return 0 if self.auto_topic_type.lower() == "non-partitioned" else self.auto_create_partitions

    @property
    def has_rates(self) -> bool:
        """Whether publishing, dispatching or subscribing is limited by a rate."""
        return bool(self.dispatch_rates_of) or max(
            self.publish_messages, self.publish_bytes, *self.dispatch_rate[:2], *self.subscription_dispatch_rate[:2],
            *(self.replicator_dispatch_rate[:2] if self.remote_clusters else ()), self.subscribe_count) > 0

    @property
    def dispatch_rate(self) -> DispatchRate:
        """The dispatch rate of all subscriptions of the topic together."""
        return self.dispatch_messages, self.dispatch_bytes, max(1, self.dispatch_period_s), self.dispatch_relative

    @property
    def subscription_dispatch_rate(self) -> DispatchRate:
        """The dispatch rate of each subscription that has no rate of its own."""
        return (self.subscription_dispatch_messages, self.subscription_dispatch_bytes,
                max(1, self.subscription_dispatch_period_s), self.subscription_dispatch_relative)

    @property
    def replicator_dispatch_rate(self) -> DispatchRate:
        """The dispatch rate of each replication cursor."""
        return (self.replicator_dispatch_messages, self.replicator_dispatch_bytes,
                max(1, self.replicator_dispatch_period_s), self.replicator_dispatch_relative)

    @property
    def retains(self) -> bool:
        """Whether messages are kept after all subscriptions have acknowledged them."""
        return self.retention_s != 0 and self.retention_bytes != 0

    @property
    def exports(self) -> bool:
        """Whether nights export any content of the topic."""
        return self.export != EXPORTS_NOTHING

    @property
    def keeps_unexported(self) -> bool:
        """Whether messages that are not exported yet are kept for the next export."""
        return self.exports and self.export_before_deletion

    @property
    def work_alone(self) -> bool:
        """Whether any of the policies acts on a partition that no client uses."""
        return bool(self.message_ttl_s or self.own_message_ttl or self.retains
                    or (self.quota_age_s > 0 and self.quota_age_action == EVICTION)
                    or self.delete_inactive_topics or self.subscription_expiration_s or self.compaction_threshold
                    or self.dead_letter_redeliveries or self.exports or self.remote_clusters)

    @property
    def has_dead_letters(self) -> bool:
        """Whether messages may go to a dead letter topic."""
        return self.dead_letter_expired or self.dead_letter_redeliveries > 0

    @property
    def has_quota(self) -> bool:
        """Whether a backlog quota limits the size or the age of the backlog."""
        return self.quota_bytes >= 0 or self.quota_age_s > 0


@lru_cache(maxsize=16)
def broker_policies(options: StorageOptions) -> Policies:
    """Return the broker's default policies, which are in force where no policy is set."""
    return Policies(**{part.field: getattr(options, part.key) for policy in TABLE.values() for part in policy.parts
                       if part.field and part.key})


def policies_of(catalogue: Catalogue, topic: TopicName, options: StorageOptions) -> Policies:
    """Return the policies that are in force now for a topic or partition."""
    policies = broker_policies(options)
    stored: dict[str, Any] = {}
    for scope in _scopes(catalogue, topic):
        stored = catalogue.policies.of(scope)
        for policy in TABLE.values() if stored else ():       # of two rows with the same field, the later is stronger
            if policy.name in stored:
                policies = replace(policies, **fields(policy, stored[policy.name]))
    if to := migrated_to(catalogue, topic):
        policies = replace(policies, migrated_to=to)
    if policies.replication_clusters:
        policies = replace(policies, remote_clusters=_remotes(catalogue, topic, policies, options))
    if policies.exports and is_system(str(topic)):      # nobody analyses the broker's own topics
        policies = replace(policies, export=EXPORTS_NOTHING)
    if policies.has_dead_letters and (is_system(str(topic)) or _takes_dead_letters(topic, policies)):
        policies = _without_dead_letters(policies, has_own_ttl="messageTTL" in stored)
    if not stored:
        return policies
    each = TABLE["subscriptionDispatchRate"]      # `stored` is the last scope's now: the topic's
    rates = [(name.removeprefix(DISPATCH_RATE_OF), replace(policies, **fields(each, value)).subscription_dispatch_rate)
             for name, value in stored.items() if name.startswith(DISPATCH_RATE_OF)]
    return replace(policies, dispatch_rates_of=tuple(rates))


def _takes_dead_letters(topic: TopicName, policies: Policies) -> bool:
    """Whether a topic gets the dead letters of others: it has none itself, or they would go around for ever."""
    name = topic.base.local_name
    return name.endswith(DEAD_LETTERS) or name == policies.dead_letter_topic


def refuse_own_letters(topic: TopicName, value: dict[str, Any]) -> None:
    """Raise Invalid for a policy of dead letters of a topic that gets those of others: it would have no effect."""
    name = topic.base.local_name
    if value.get("deadLetterTopic") == name:
        raise Invalid("deadLetterTopic names the topic itself, whose letters would go around for ever")
    if name.endswith(DEAD_LETTERS) or is_system(str(topic)):
        raise Invalid(f"{name} gets dead letters, as its name says, or is the broker's own: it has none itself")


def _without_dead_letters(policies: Policies, *, has_own_ttl: bool) -> Policies:
    """Return the policies of a topic that has no dead letters, because it gets those of others.

    Expired messages do not expire there once more.  has_own_ttl: a time to live is set for this topic itself.
    """
    if policies.dead_letter_expired:
        ttl_s = policies.message_ttl_s if has_own_ttl else 0
        policies = replace(policies, message_ttl_s=ttl_s, own_message_ttl=False)
    return replace(policies, dead_letter_redeliveries=0, dead_letter_expired=False)


def _remotes(catalogue: Catalogue, topic: TopicName, policies: Policies, options: StorageOptions) -> tuple[str, ...]:
    """Return the clusters to which a topic's messages go, sorted; none for topics of the broker's own or without files.

    A name without a record is left out: after a change of `cluster_name`, lists still have this broker's former name.
    """
    others = set(policies.replication_clusters) - {options.cluster_name}
    if not others or topic.domain != "persistent" or is_system(str(topic)) or catalogue.topics.whole(topic).is_scalable:
        return ()
    return tuple(sorted(others & catalogue.policies.of(CLUSTERS).keys()))


def migrated_to(catalogue: Catalogue, topic: TopicName) -> tuple[str, str] | tuple[()]:
    """Return the addresses of the cluster to which a topic's clients are sent, without and with TLS.

    Returns () unless the topic has moved to another cluster; the broker's own topics never move.
    """
    migration = catalogue.policies.of(MIGRATION)
    to = migration.get("to")
    if not to or is_system(str(topic)):
        return ()
    if not (migration.get(MIGRATED) or catalogue.policies.of(topic.namespace).get(MIGRATED)):
        return ()
    return to.get("brokerServiceUrl") or "", to.get("brokerServiceUrlTls") or ""


def _scopes(catalogue: Catalogue, topic: TopicName) -> tuple[str, str]:
    """Return the scopes whose policies apply to a topic, the weaker first: its namespace and its base name."""
    return topic.namespace, str(catalogue.topics.whole(topic))


def applied(catalogue: Catalogue, topic: TopicName, policy: Policy, options: StorageOptions) -> Any:
    """Return the value of a policy that is in force for a topic, in stored form; None without a value."""
    return layered(catalogue, _scopes(catalogue, topic), policy, options)


def layered(catalogue: Catalogue, scopes: Iterable[str], policy: Policy, options: StorageOptions) -> Any:
    """Return a policy's value in stored form, as the default and these scopes, the weaker first, together set it."""
    in_force = default(policy, options)
    for scope in scopes:
        value = catalogue.policies.of(scope).get(policy.name)
        if value is not None and policy.is_object:      # fields that this scope leaves open come from the weaker one
            open_parts = [part for part in policy.parts if part.key and value.get(part.json) in (None, part.blank)]
            in_force = value | {part.json: in_force[part.json] for part in open_parts if part.json in (in_force or ())}
        elif value is not None and value != policy.parts[0].blank:
            in_force = value
    return in_force


def refuse_topics(catalogue: Catalogue, namespace: str, policies: Policies, count: int) -> None:
    """Raise Refusal if `count` more topics, or partitions, would exceed the namespace's maximum."""
    if policies.max_topics and catalogue.topics.count(namespace) + count > policies.max_topics:
        raise Refusal(api.NotAllowedError, "Exceed maximum number of topics in namespace.")


def clash(stored: dict[str, Any]) -> bool:
    """Whether policies {name: value} in force together are contradictory: a backlog quota must be below retention."""
    retention = stored.get("retention", {"retentionSizeInMB": 0, "retentionTimeInMinutes": 0})
    bounds = ((BYTES_QUOTA, "limitSize", retention["retentionSizeInMB"] * MIB),
              (AGE_QUOTA, "limitTime", retention["retentionTimeInMinutes"] * 60))
    return any(quota in stored and stored[quota][limit] >= bound > 0 for quota, limit, bound in bounds)
