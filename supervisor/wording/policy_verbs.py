"""Verbs and options with which `geminga admin` sets, gets and removes policies; most are pulsar-admin's.

    set-VERB      sends the JSON made of the options, as supervisor/admin/requests/policy_routes.py says
    get-VERB      sends GET
    remove-VERB   sends DELETE, or sets null where there is no DELETE

Policies that share a verb (the backlog quotas) are told apart by the option `--type -t`. A policy that can have one
value only has no options.
"""
from typing import Any, NamedTuple

from geminga.storage.catalogue.policy_table import TOPIC, Part, Policy

_SWITCH = "--enable -e / --disable -d"


class ValueOption(NamedTuple):
    """The command-line option that gives one value of a policy."""

    flags: str                # its names: "--time -t"; of a switch with two sides: "--enable -e / --disable -d"
    unit: str = ""            # people write "seconds", "minutes" or "ms" as `10m`, `3h`, and "bytes" or "MB" as `10M`
    required: bool = False
    sent: Any = None          # value sent if the option is not given; None: the JSON lacks the value
    unless: str = ""          # an option that makes a required switch unnecessary, and turns it on
    topic_flags: str = ""     # names for topics if they differ


class PolicyVerb(NamedTuple):
    """The common stem of the verbs that set, get and remove a policy, and the options that give its values.

    options: {name of a value in JSON: its option}.
    """

    verb: str
    options: dict[str, ValueOption]
    topic_verb: str = ""      # stem for topics if it differs
    get: str = ""             # stem of the verb get- for namespaces if it differs


VERBS: dict[str, PolicyVerb] = {
    "retention": PolicyVerb("retention", {
        "retentionTimeInMinutes": ValueOption("--time -t", "minutes", required=True),
        "retentionSizeInMB": ValueOption("--size -s", "MB", required=True)}),
    "messageTTL": PolicyVerb("message-ttl", {
        "": ValueOption("--messageTTL -ttl", "seconds", required=True, topic_flags="--ttl -t")}),
    "backlogQuota/destination_storage": PolicyVerb("backlog-quota", {
        "limitSize": ValueOption("--limit -l", "bytes"),
        "limitTime": ValueOption("--limitTime -lt", "seconds"),
        "policy": ValueOption("--policy -p", required=True)}, get="backlog-quotas"),
    "backlogQuota/message_age": PolicyVerb("backlog-quota", {
        "limitSize": ValueOption("--limit -l", "bytes"),
        "limitTime": ValueOption("--limitTime -lt", "seconds"),
        "policy": ValueOption("--policy -p", required=True)}, get="backlog-quotas"),
    "deduplication": PolicyVerb("deduplication", {"": ValueOption(_SWITCH, required=True)}),
    "deduplicationSnapshotInterval": PolicyVerb("deduplication-snapshot-interval", {
        "": ValueOption("--interval -i", required=True)}),
    "delayedDelivery": PolicyVerb("delayed-delivery", {
        "tickTime": ValueOption("--time -t", "ms", sent=1_000),
        "active": ValueOption(_SWITCH, required=True, unless="fixed_delay"),
        "maxDeliveryDelayInMillis": ValueOption("--maxDelay -md", "ms"),
        "fixedDeliveryDelayInMillis": ValueOption("--fixed-delay -fd", "ms"),
        "timePartitionGranularityInMillis": ValueOption("--time-partition-granularity -p", "ms")}),
    "compactionThreshold": PolicyVerb("compaction-threshold", {
        "": ValueOption("--threshold -t", "bytes", required=True)}),
    "compactionOrder": PolicyVerb("compaction-order", {
        "": ValueOption("--order", required=True)}),
    "export": PolicyVerb("export", {"": ValueOption("--content", required=True)}),
    "exportBeforeDeletion": PolicyVerb("export-before-deletion", {"": ValueOption(_SWITCH, required=True)}),
    "persistence": PolicyVerb("persistence", {
        "bookkeeperEnsemble": ValueOption("--bookkeeper-ensemble -e"),
        "bookkeeperWriteQuorum": ValueOption("--bookkeeper-write-quorum -w"),
        "bookkeeperAckQuorum": ValueOption("--bookkeeper-ack-quorum -a"),
        "managedLedgerMaxMarkDeleteRate": ValueOption("--ml-mark-delete-max-rate -r"),
        "managedLedgerStorageClassName": ValueOption("--ml-storage-class -c")}),
    "maxUnackedMessagesPerConsumer": PolicyVerb("max-unacked-messages-per-consumer", {
        "": ValueOption("--max-unacked-messages-per-topic -c", required=True, topic_flags="--maxNum -m")}),
    "maxUnackedMessagesPerSubscription": PolicyVerb("max-unacked-messages-per-subscription", {
        "": ValueOption("--max-unacked-messages-per-subscription -c", required=True, topic_flags="--maxNum -m")}),
    "maxProducers": PolicyVerb("max-producers-per-topic", {
        "": ValueOption("--max-producers-per-topic -p", required=True,
                        topic_flags="--max-producers -p")}, topic_verb="max-producers"),
    "maxConsumers": PolicyVerb("max-consumers-per-topic", {
        "": ValueOption("--max-consumers-per-topic -c", required=True,
                        topic_flags="--max-consumers -c")}, topic_verb="max-consumers"),
    "maxConsumersPerSubscription": PolicyVerb("max-consumers-per-subscription", {
        "": ValueOption("--max-consumers-per-subscription -c", required=True)}),
    "maxSubscriptionsPerTopic": PolicyVerb("max-subscriptions-per-topic", {
        "": ValueOption("--max-subscriptions-per-topic -m", required=True,
                        topic_flags="--max-subscriptions-per-topic -s")}),
    "maxTopicsPerNamespace": PolicyVerb("max-topics-per-namespace", {
        "": ValueOption("--max-topics-per-namespace -t", required=True)}),
    "maxMessageSize": PolicyVerb("max-message-size", {"": ValueOption("--max-message-size -m", required=True)}),
    "inactiveTopicPolicies": PolicyVerb("inactive-topic-policies", {
        "inactiveTopicDeleteMode": ValueOption("--delete-mode -m", required=True),
        "maxInactiveDurationSeconds": ValueOption("--max-inactive-duration -t", "seconds", required=True),
        "deleteWhileInactive": ValueOption("--enable-delete-while-inactive -e / --disable-delete-while-inactive -d",
                                           required=True)}),
    "autoTopicCreation": PolicyVerb("auto-topic-creation", {
        "allowAutoTopicCreation": ValueOption(_SWITCH, required=True),
        "topicType": ValueOption("--type -t", sent="non-partitioned"),
        "defaultNumPartitions": ValueOption("--num-partitions -n")}),
    "autoSubscriptionCreation": PolicyVerb("auto-subscription-creation", {
        "allowAutoSubscriptionCreation": ValueOption("--enable -e")}),
    "subscriptionTypesEnabled": PolicyVerb("subscription-types-enabled", {
        "": ValueOption("--types -t", required=True)}),
    "subscriptionExpirationTime": PolicyVerb("subscription-expiration-time", {
        "": ValueOption("--time -t", required=True)}),
    "encryptionRequired": PolicyVerb("encryption-required", {"": ValueOption(_SWITCH, required=True)}),
    "schemaValidationEnforced": PolicyVerb("schema-validation-enforce", {"": ValueOption(_SWITCH, required=True)}),
    "isAllowAutoUpdateSchema": PolicyVerb("is-allow-auto-update-schema", {"": ValueOption(_SWITCH, required=True)}),
    "schemaAutoUpdateCompatibilityStrategy": PolicyVerb("schema-autoupdate-strategy", {
        "": ValueOption("--compatibility -c", required=True)}),
    "schemaCompatibilityStrategy": PolicyVerb("schema-compatibility-strategy", {
        "": ValueOption("--compatibility -c", required=True, topic_flags="--strategy -s")}),
    "subscriptionAuthMode": PolicyVerb("subscription-auth-mode", {
        "": ValueOption("--subscription-auth-mode -m", required=True)}),
    "entryFilters": PolicyVerb("entry-filters", {
        "entryFilterNames": ValueOption("--entry-filters-name -efn",
                                        required=True)}, topic_verb="entry-filters-per-topic"),
    "dispatcherPauseOnAckStatePersistent": PolicyVerb("dispatcher-pause-on-ack-state-persistent", {}),
    "replicationClusters": PolicyVerb("clusters", {
        "": ValueOption("--clusters -c", required=True)}, topic_verb="replication-clusters"),
    "allowedClusters": PolicyVerb("allowed-clusters", {"": ValueOption("--clusters -c", required=True)}),
    "replicatorDispatchRate": PolicyVerb("replicator-dispatch-rate", {
        "dispatchThrottlingRateInMsg": ValueOption("--msg-dispatch-rate -md"),
        "dispatchThrottlingRateInByte": ValueOption("--byte-dispatch-rate -bd", "bytes"),
        "ratePeriodInSecond": ValueOption("--dispatch-rate-period -dt", "seconds")}),
    "offloadThreshold": PolicyVerb("offload-threshold", {"": ValueOption("--size -s", "bytes", required=True)}),
    "offloadThresholdInSeconds": PolicyVerb("offload-threshold-in-seconds", {
        "": ValueOption("--time -t", "seconds", required=True)}),
    "offloadDeletionLagMs": PolicyVerb("offload-deletion-lag", {"": ValueOption("--lag -l", "ms", required=True)}),
    "offloadPolicies": PolicyVerb("offload-policies", {
        "managedLedgerOffloadDriver": ValueOption("--driver -d", required=True),
        "managedLedgerOffloadRegion": ValueOption("--region -r"),
        "managedLedgerOffloadBucket": ValueOption("--bucket -b"),
        "managedLedgerOffloadServiceEndpoint": ValueOption("--endpoint -e"),
        "managedLedgerOffloadThresholdInBytes": ValueOption("--offloadAfterThreshold -oat", "bytes",
                                                            topic_flags="--offloadThresholdInBytes -t"),
        "managedLedgerOffloadThresholdInSeconds": ValueOption("--offloadAfterThresholdInSeconds -oats", "seconds",
                                                              topic_flags="--offloadThresholdInSeconds -ts"),
        "managedLedgerOffloadDeletionLagInMillis": ValueOption("--offloadAfterElapsed -oae", "ms",
                                                               topic_flags="--offloadDeletionLagInMillis -dl")}),
    "antiAffinityGroup": PolicyVerb("anti-affinity-group", {"": ValueOption("--group -g", required=True)}),
    "bookieAffinityGroup": PolicyVerb("bookie-affinity-group", {
        "bookkeeperAffinityGroupPrimary": ValueOption("--primary-group -pg", required=True),
        "bookkeeperAffinityGroupSecondary": ValueOption("--secondary-group -sg")}),
    "publishRate": PolicyVerb("publish-rate", {
        "publishThrottlingRateInMsg": ValueOption("--msg-publish-rate -m"),
        "publishThrottlingRateInByte": ValueOption("--byte-publish-rate -b", "bytes")}),
    "dispatchRate": PolicyVerb("dispatch-rate", {
        "dispatchThrottlingRateInMsg": ValueOption("--msg-dispatch-rate -md"),
        "dispatchThrottlingRateInByte": ValueOption("--byte-dispatch-rate -bd", "bytes"),
        "relativeToPublishRate": ValueOption("--relative-to-publish-rate -rp"),
        "ratePeriodInSecond": ValueOption("--dispatch-rate-period -dt", "seconds")}),
    "subscriptionDispatchRate": PolicyVerb("subscription-dispatch-rate", {
        "dispatchThrottlingRateInMsg": ValueOption("--msg-dispatch-rate -md"),
        "dispatchThrottlingRateInByte": ValueOption("--byte-dispatch-rate -bd", "bytes"),
        "relativeToPublishRate": ValueOption("--relative-to-publish-rate -rp"),
        "ratePeriodInSecond": ValueOption("--dispatch-rate-period -dt", "seconds")}),
    "subscribeRate": PolicyVerb("subscribe-rate", {
        "subscribeThrottlingRatePerConsumer": ValueOption("--subscribe-rate -sr"),
        "ratePeriodInSecond": ValueOption("--subscribe-rate-period -st", "seconds")}),
}


def verb_of(policy: Policy, level: str) -> str:
    """Return the stem of a policy's verbs for namespaces or for topics."""
    row = VERBS[policy.name]
    return row.topic_verb or row.verb if level == TOPIC else row.verb


def options_of(policy: Policy, level: str) -> list[tuple[Part, ValueOption]]:
    """Return (value, option) for each value of a policy that has an option, in the order of the table."""
    options = VERBS[policy.name].options
    pairs = [(part, options[part.json]) for part in policy.parts if part.json in options]
    if level != TOPIC:
        return pairs
    return [(part, option._replace(flags=option.topic_flags or option.flags)) for part, option in pairs]
