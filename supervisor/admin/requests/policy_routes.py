"""Policies over REST: for each policy of storage/catalogue/policy_table.py its path, method and answers at each level.

Paths continue `/admin/v2/namespaces/TENANT/NAMESPACE/` or `/admin/v2/persistent/TENANT/NAMESPACE/TOPIC/`. A path has
GET, the method that sets the policy, and DELETE. `resources/policies.py` serves these routes. The `geminga admin`
command asks for them too, so this module imports next to nothing.
"""
from typing import Any, NamedTuple


class Nothing:
    """An answer to GET of a policy that is not set: a status instead of a value."""

    def __init__(self, status: int):
        self.status = status


NO_BODY, NO_CONTENT = Nothing(200), Nothing(204)
OWN_CLUSTER = Nothing(200)                   # a list with only the name of this cluster
TOO_LARGE_SIZE = ("topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the "
                  "broker-level")


class Route(NamedTuple):
    """The path of one policy for namespaces or for topics, and the meaning of requests to that path."""

    path: str
    method: str = "POST"                     # sets the policy
    status: int = 204                        # status of the answer to that method
    query: str = ""                          # a parameter that has the value; "": the body has it
    unset: Any = NO_BODY                     # answer of GET where nothing is set: a value, or a Nothing
    nullable: bool = False                   # setting null, or sending no body, removes the policy
    removable: bool = True                   # DELETE removes the policy
    refusal: str = ""                        # text for numbers that are too small; "": the general one
    kind: str = ""                           # value of backlogQuotaType, for policies that share a path
    member: str = ""                         # name in a namespace's object of policies; "a/b": member b of object a
    by_cluster: bool = False                 # whether `member` is an object with a value for each cluster
    implied: Any = None                      # the only value that can be set: there is no body
    remove: str = ""                         # the path of DELETE, where it differs
    is_raw: bool = False                     # the value is a text without quotes, in questions and answers


class PolicyRoutes(NamedTuple):
    """The routes of one policy for namespaces and for topics; None at a level where the policy cannot be set."""

    namespace: Route | None = None
    topic: Route | None = None


ROUTES: dict[str, PolicyRoutes] = {
    "retention": PolicyRoutes(
        Route("retention", nullable=True, member="retention_policies"),
        Route("retention", nullable=True)),
    "messageTTL": PolicyRoutes(
        Route("messageTTL", refusal="Invalid value for message TTL, message TTL must >= 0",
              member="message_ttl_in_seconds"),
        Route("messageTTL", query="messageTTL", nullable=True, refusal="Invalid value for message TTL")),
    "backlogQuota/destination_storage": PolicyRoutes(
        Route("backlogQuota?backlogQuotaType=destination_storage", nullable=True, kind="destination_storage",
              member="backlog_quota_map/destination_storage"),
        Route("backlogQuota?backlogQuotaType=destination_storage", nullable=True, kind="destination_storage")),
    "backlogQuota/message_age": PolicyRoutes(
        Route("backlogQuota?backlogQuotaType=message_age", nullable=True, kind="message_age",
              member="backlog_quota_map/message_age"),
        Route("backlogQuota?backlogQuotaType=message_age", nullable=True, kind="message_age")),
    "deduplication": PolicyRoutes(
        Route("deduplication", member="deduplicationEnabled"),
        Route("deduplicationEnabled", nullable=True)),
    "deduplicationSnapshotInterval": PolicyRoutes(
        Route("deduplicationSnapshotInterval", nullable=True, removable=False,
              refusal="interval must be greater than or equal to 0", member="deduplicationSnapshotIntervalSeconds"),
        Route("deduplicationSnapshotInterval", nullable=True, refusal="interval must be 0 or more")),
    "delayedDelivery": PolicyRoutes(
        Route("delayedDelivery", nullable=True, member="delayed_delivery_policies"),
        Route("delayedDelivery", nullable=True)),
    "compactionThreshold": PolicyRoutes(
        Route("compactionThreshold", method="PUT", refusal="compactionThreshold must be 0 or more",
              member="compaction_threshold"),
        Route("compactionThreshold", refusal="Invalid value for compactionThreshold")),
    "compactionOrder": PolicyRoutes(
        Route("compactionOrder", nullable=True), Route("compactionOrder", nullable=True)),
    "export": PolicyRoutes(Route("export", nullable=True), Route("export", nullable=True)),
    "exportBeforeDeletion": PolicyRoutes(
        Route("exportBeforeDeletion", nullable=True), Route("exportBeforeDeletion", nullable=True)),
    "persistence": PolicyRoutes(Route("persistence", member="persistence"), Route("persistence")),
    "maxUnackedMessagesPerConsumer": PolicyRoutes(
        Route("maxUnackedMessagesPerConsumer", member="max_unacked_messages_per_consumer"),
        Route("maxUnackedMessagesOnConsumer", nullable=True, refusal="maxUnackedNum must be 0 or more")),
    "maxUnackedMessagesPerSubscription": PolicyRoutes(
        Route("maxUnackedMessagesPerSubscription", member="max_unacked_messages_per_subscription"),
        Route("maxUnackedMessagesOnSubscription", nullable=True, refusal="maxUnackedNum must be 0 or more")),
    "maxProducers": PolicyRoutes(
        Route("maxProducersPerTopic", member="max_producers_per_topic"),
        Route("maxProducers")),
    "maxConsumers": PolicyRoutes(
        Route("maxConsumersPerTopic", member="max_consumers_per_topic"),
        Route("maxConsumers")),
    "maxConsumersPerSubscription": PolicyRoutes(
        Route("maxConsumersPerSubscription", member="max_consumers_per_subscription"),
        Route("maxConsumersPerSubscription", unset=NO_CONTENT,
              refusal="Invalid value for maxConsumersPerSubscription")),
    "maxSubscriptionsPerTopic": PolicyRoutes(
        Route("maxSubscriptionsPerTopic", member="max_subscriptions_per_topic"),
        Route("maxSubscriptionsPerTopic", unset=NO_CONTENT)),
    "maxTopicsPerNamespace": PolicyRoutes(Route("maxTopicsPerNamespace", unset=0, member="max_topics_per_namespace")),
    "maxMessageSize": PolicyRoutes(topic=Route("maxMessageSize", unset=NO_CONTENT, refusal=TOO_LARGE_SIZE)),
    "inactiveTopicPolicies": PolicyRoutes(
        Route("inactiveTopicPolicies", nullable=True, member="inactive_topic_policies"),
        Route("inactiveTopicPolicies", nullable=True)),
    "autoTopicCreation": PolicyRoutes(Route("autoTopicCreation", nullable=True, member="autoTopicCreationOverride")),
    "autoSubscriptionCreation": PolicyRoutes(
        Route("autoSubscriptionCreation", nullable=True, member="autoSubscriptionCreationOverride"),
        Route("autoSubscriptionCreation", nullable=True)),
    "subscriptionTypesEnabled": PolicyRoutes(
        Route("subscriptionTypesEnabled", unset=[], member="subscription_types_enabled"),
        Route("subscriptionTypesEnabled", unset=NO_CONTENT)),
    "subscriptionExpirationTime": PolicyRoutes(
        Route("subscriptionExpirationTime", refusal="Invalid value for subscription expiration time",
              member="subscription_expiration_time_minutes")),
    "encryptionRequired": PolicyRoutes(
        Route("encryptionRequired", unset=False, removable=False, member="encryption_required")),
    "schemaValidationEnforced": PolicyRoutes(
        Route("schemaValidationEnforced", unset=False, removable=False, member="schema_validation_enforced"),
        Route("schemaValidationEnforced", unset=False, removable=False)),
    "isAllowAutoUpdateSchema": PolicyRoutes(
        Route("isAllowAutoUpdateSchema", unset=True, removable=False, member="is_allow_auto_update_schema")),
    "schemaAutoUpdateCompatibilityStrategy": PolicyRoutes(
        Route("schemaAutoUpdateCompatibilityStrategy", method="PUT", unset=NO_CONTENT, nullable=True, removable=False,
              member="schema_auto_update_compatibility_strategy")),
    "schemaCompatibilityStrategy": PolicyRoutes(
        Route("schemaCompatibilityStrategy", method="PUT", unset="UNDEFINED", nullable=True, removable=False,
              member="schema_compatibility_strategy"),
        Route("schemaCompatibilityStrategy", method="PUT", nullable=True)),
    "subscriptionAuthMode": PolicyRoutes(
        Route("subscriptionAuthMode", unset="None", nullable=True, removable=False, member="subscription_auth_mode")),
    "entryFilters": PolicyRoutes(
        Route("entryFilters", nullable=True, member="entryFilters"),
        Route("entryFilters", nullable=True)),
    "dispatcherPauseOnAckStatePersistent": PolicyRoutes(
        Route("dispatcherPauseOnAckStatePersistent", unset=False, member="dispatcherPauseOnAckStatePersistentEnabled",
              implied=True),
        Route("dispatcherPauseOnAckStatePersistent", unset=False, implied=True)),
    "replicationClusters": PolicyRoutes(
        Route("replication", status=200, unset=OWN_CLUSTER, removable=False, member="replication_clusters"),
        Route("replication")),
    "allowedClusters": PolicyRoutes(
        Route("allowedClusters", status=200, unset=[], removable=False, member="allowed_clusters")),
    "replicatorDispatchRate": PolicyRoutes(
        Route("replicatorDispatchRate", nullable=True, member="replicatorDispatchRate", by_cluster=True),
        Route("replicatorDispatchRate", nullable=True)),
    "offloadThreshold": PolicyRoutes(
        Route("offloadThreshold", method="PUT", unset=-1, removable=False, member="offload_threshold")),
    "offloadThresholdInSeconds": PolicyRoutes(
        Route("offloadThresholdInSeconds", method="PUT", status=200, unset=-1, removable=False,
              member="offload_threshold_in_seconds")),
    "offloadDeletionLagMs": PolicyRoutes(Route("offloadDeletionLagMs", method="PUT", member="offload_deletion_lag_ms")),
    "offloadPolicies": PolicyRoutes(
        Route("offloadPolicies", member="offload_policies", remove="removeOffloadPolicies"),
        Route("offloadPolicies")),
    "antiAffinityGroup": PolicyRoutes(Route("antiAffinity", unset=NO_CONTENT, member="antiAffinityGroup", is_raw=True)),
    "bookieAffinityGroup": PolicyRoutes(Route("persistence/bookieAffinity", unset=NO_CONTENT, nullable=True)),
    "publishRate": PolicyRoutes(
        Route("publishRate", nullable=True, member="publishMaxMessageRate", by_cluster=True),
        Route("publishRate", unset=NO_CONTENT, nullable=True)),
    "dispatchRate": PolicyRoutes(
        Route("dispatchRate", nullable=True, member="topicDispatchRate", by_cluster=True),
        Route("dispatchRate", nullable=True)),
    "subscriptionDispatchRate": PolicyRoutes(
        Route("subscriptionDispatchRate", nullable=True, member="subscriptionDispatchRate", by_cluster=True),
        Route("subscriptionDispatchRate", nullable=True)),
    "subscribeRate": PolicyRoutes(
        Route("subscribeRate", nullable=True, member="clusterSubscribeRate", by_cluster=True),
        Route("subscribeRate", nullable=True)),
}
