"""Policies: what operators set for a namespace or a topic, and what holds for a partition because of it.

A topic's policy is stronger than its namespace's, and that than the broker's own (StorageOptions).  What was set lies in the
catalogue under its name, as clients send it; `Policies` is what owners and workers go by.  What can be set stands in policy_table.py.
"""
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName, is_system
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policy_table import (
    DELETE_MODES,
    EVICTION,
    HOLD,
    MIB,
    SUBSCRIPTION_TYPES,
    TABLE,
    Policy,
    default,
    fields,
)
from geminga.storage.options import StorageOptions

NO_LIMIT = -1
MIGRATION, MIGRATED = "/migration", "migrated"      # a scope: what is said of this cluster's; a namespace's policy: that it takes part
DISPATCH_RATE_OF = "dispatchRate/"      # and a subscription's name: a topic's policy that is about it alone
BYTES_QUOTA, AGE_QUOTA = "backlogQuota/destination_storage", "backlogQuota/message_age"


@dataclass(frozen=True, slots=True)
class Policies:
    """What holds for one partition."""

    retention_s: int = 0               # acknowledged ledgers are kept so long; NO_LIMIT: no bound of this kind
    retention_bytes: int = 0           # ... and while the partition is not larger than this; 0 in either: they are not kept
    message_ttl_s: int = 0             # messages that nobody acknowledges are kept so long; 0: for ever
    quota_bytes: int = NO_LIMIT        # of the backlog of the slowest durable subscription
    quota_bytes_action: str = HOLD     # what happens when it is that large
    quota_age_s: int = NO_LIMIT        # of the oldest message of the backlog
    quota_age_action: str = HOLD       # what happens when it is that old
    deduplication: bool = False
    compaction_threshold: int = 0      # bytes of news since it was compacted after which it is again; 0: it is not by itself
    delayed_delivery: bool = True      # Shared and Key_Shared consumers get a message not before its time
    delay_tick_ms: int = 1_000         # how exactly
    delay_window_ms: int = 300_000     # the schedule is kept in files for so long each
    delay_max_ms: int = 0              # what is published with a longer delay is refused; 0: no bound
    delay_fixed_ms: int = 0            # every message is delayed for so long, whatever its producer says; 0: as that says
    max_unacked_messages_per_consumer: int = 50_000      # of shared subscriptions; of these bounds, 0: there is none
    max_unacked_messages_per_subscription: int = 200_000
    max_producers: int = 0             # of the partition
    max_consumers: int = 0             # ... all its subscriptions' together
    max_consumers_per_subscription: int = 0
    max_subscriptions: int = 0         # of the partition, durable ones
    max_topics: int = 0                # of the namespace; each partition counts
    max_message_size: int = 0
    delete_inactive_topics: bool = False
    inactive_topic_s: int = 60         # nobody used it for so long
    inactive_topic_mode: str = DELETE_MODES[0]       # and it has no subscriptions, or none that lags behind
    auto_create_topics: bool = True    # a topic comes to be when it is first used
    auto_topic_type: str = ""          # partitioned or not, where a namespace says so
    auto_create_partitions: int = 0    # of such a topic; 0: it is not partitioned
    auto_create_subscriptions: bool = True           # a subscription comes to be when it is first used
    subscription_types: tuple[str, ...] = SUBSCRIPTION_TYPES     # that consumers may ask for
    subscription_expiration_s: int = 0               # a subscription that nobody used for so long is deleted; 0: none is
    encryption_required: bool = False                # of producers
    schema_strategy: str = "FULL"      # which versions of a schema get along
    schema_updates: bool = True        # clients may add schemas, and versions of them
    schema_enforced: bool = False      # a topic with a schema takes nothing from producers without one
    publish_messages: int = 0          # in a second; 0 or less here and below: no bound
    publish_bytes: int = 0
    dispatch_messages: int = 0         # ... that all subscriptions together get, ...
    dispatch_bytes: int = 0
    dispatch_period_s: int = 1         # ... in so many seconds; fewer than one are one
    dispatch_relative: bool = False    # ... beyond what is published
    subscription_dispatch_messages: int = 0
    subscription_dispatch_bytes: int = 0
    subscription_dispatch_period_s: int = 1
    subscription_dispatch_relative: bool = False
    subscribe_count: int = 0           # that a consumer may subscribe ...
    subscribe_period_s: int = 30       # ... in so many seconds
    dispatch_rates_of: tuple[tuple[str, tuple[int, int, int, bool]], ...] = ()     # of subscriptions with one of their own, by name
    migrated_to: tuple[str, str] | tuple[()] = ()  # the cluster to which producers and consumers are sent: its address, and that with TLS

    @property
    def new_topics_partitions(self) -> int:
        """Of a topic that comes to be when it is first used; 0: it is not partitioned."""
        return 0 if self.auto_topic_type == "non-partitioned" else self.auto_create_partitions

    @property
    def has_rates(self) -> bool:
        return bool(self.dispatch_rates_of) or max(
            self.publish_messages, self.publish_bytes, *self.dispatch_rate[:2], *self.subscription_dispatch_rate[:2],
            self.subscribe_count) > 0

    @property
    def dispatch_rate(self) -> tuple[int, int, int, bool]:
        """Messages, bytes, in so many seconds, more than is published."""
        return self.dispatch_messages, self.dispatch_bytes, max(1, self.dispatch_period_s), self.dispatch_relative

    @property
    def subscription_dispatch_rate(self) -> tuple[int, int, int, bool]:
        return (self.subscription_dispatch_messages, self.subscription_dispatch_bytes, max(1, self.subscription_dispatch_period_s),
                self.subscription_dispatch_relative)

    @property
    def retains(self) -> bool:
        """Whether anything that is acknowledged is kept."""
        return self.retention_s != 0 and self.retention_bytes != 0

    @property
    def work_alone(self) -> bool:
        """Whether something happens because of them although nobody uses the partition."""
        return bool(self.message_ttl_s or self.retains or (self.quota_age_s > 0 and self.quota_age_action == EVICTION)
                    or self.delete_inactive_topics or self.subscription_expiration_s or self.compaction_threshold)

    @property
    def has_quota(self) -> bool:
        return self.quota_bytes >= 0 or self.quota_age_s > 0


@lru_cache(maxsize=16)
def broker_policies(options: StorageOptions) -> Policies:
    """What holds where nobody set anything."""
    return Policies(**{part.field: getattr(options, part.key) for policy in TABLE.values() for part in policy.parts
                       if part.field and part.key})


def policies_of(catalogue: Catalogue, topic: TopicName, options: StorageOptions) -> Policies:
    """What holds for that topic or partition now."""
    found = broker_policies(options)
    for scope in _scopes(topic):
        kept = catalogue.policies.of(scope)
        for policy in TABLE.values() if kept else ():       # in their order: of two that set the same the later is stronger
            if policy.name in kept:
                found = replace(found, **fields(policy, kept[policy.name]))
    if to := migrated_to(catalogue, topic):
        found = replace(found, migrated_to=to)
    return replace(found, dispatch_rates_of=tuple(      # a topic's, as kept is of the last scope
        (name.removeprefix(DISPATCH_RATE_OF), replace(found, **fields(TABLE["subscriptionDispatchRate"], value)).subscription_dispatch_rate)
        for name, value in kept.items() if name.startswith(DISPATCH_RATE_OF))) if kept else found


def migrated_to(catalogue: Catalogue, topic: TopicName) -> tuple[str, str] | tuple[()]:
    """Where its producers and consumers are sent; () while they stay, as the broker's own always do."""
    said = catalogue.policies.of(MIGRATION)
    if not (said.get("to") and (said.get(MIGRATED) or catalogue.policies.of(topic.namespace).get(MIGRATED))) or is_system(str(topic)):
        return ()
    return said["to"].get("brokerServiceUrl") or "", said["to"].get("brokerServiceUrlTls") or ""


def _scopes(topic: TopicName) -> tuple[str, str]:
    """Whose policies hold for it, the weaker first."""
    return topic.namespace, str(topic.base)


def applied(catalogue: Catalogue, topic: TopicName, policy: Policy, options: StorageOptions) -> Any:
    """What holds of that policy, as if it were set there; None when nothing does."""
    found = default(policy, options)
    for scope in _scopes(topic):
        value = catalogue.policies.of(scope).get(policy.name)
        if value is not None and policy.is_object:      # fields that it leaves open are as further up
            found = value | {part.json: found[part.json] for part in policy.parts
                             if part.key and value.get(part.json) in (None, part.blank) and part.json in (found or ())}
        elif value is not None and value != policy.parts[0].blank:
            found = value
    return found


def refuse_topics(catalogue: Catalogue, namespace: str, policies: Policies, count: int) -> None:
    """So many topics, or partitions, more than there may be.  Raises Refusal."""
    if policies.max_topics and catalogue.topics.count(namespace) + count > policies.max_topics:
        raise Refusal(api.NotAllowedError, "Exceed maximum number of topics in namespace.")


def clash(kept: dict[str, Any]) -> bool:
    """Whether what is set in one scope does not go together: what is retained is to be more than what the quota lets be there."""
    retention = kept.get("retention", {"retentionSizeInMB": 0, "retentionTimeInMinutes": 0})
    bounds = ((BYTES_QUOTA, "limitSize", retention["retentionSizeInMB"] * MIB),
              (AGE_QUOTA, "limitTime", retention["retentionTimeInMinutes"] * 60))
    return any(quota in kept and kept[quota][limit] >= bound > 0 for quota, limit, bound in bounds)
