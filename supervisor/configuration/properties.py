"""Translation of Pulsar's own settings (broker.conf, standalone.conf, PULSAR_PREFIX_ variables) to Geminga's keys.

    key=value ──parse──▶ {name: Setting} ──translate──▶ {key: Setting}, notes

A name of Pulsar's is of one of five kinds:

    translated        TRANSLATED and SPECIAL
    refused           REFUSED: ignoring its value would leave something open that its owner wanted closed
    not followed      UNMET: a line at start says what holds instead
    without effect    all others in pulsar_keys.txt, and those above with values that demand nothing: one line at start
    misspelt          an error

Ranges are checked once, in config.py, for values from every source.
"""
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from geminga.storage.runtime.similar_names import likest
from geminga.supervisor.configuration.quantities import has_unit

ENVIRONMENT_PREFIX = "PULSAR_PREFIX_"
FREE_PREFIXES = ("bookkeeper_", "brokerClient_")   # Pulsar hands any name that follows to a client library of its own
NEVER_S = 10 * 365 * 24 * 3600                     # Pulsar's "no limit" for a ledger's age: ten years stand for never


def _is_on(text: str) -> bool:
    return text.lower() != "false"


def _is_off(text: str) -> bool:
    return text.lower() == "false"


def _is_said(text: str) -> bool:
    return True


def _is_bound(text: str) -> bool:
    return text.isdigit() and int(text) > 0


def _is_foreign(text: str) -> bool:
    """Whether a Java class is not part of Pulsar."""
    return not text.startswith("org.apache.")


def _is_not_disabled(text: str) -> bool:
    return text.upper() != "DISABLED"


_PLUGINS = "plug-ins of Pulsar are not loaded"
# Pulsar's name: (whether a value demands something that is not available, why it is refused).
REFUSED: dict[str, tuple[Callable[[str], bool], str]] = {
    "tlsEnabledWithKeyStore": (
        _is_on, "Java's key stores are not read: set tlsCertificateFilePath and its siblings to PEM files"),
    "tlsAllowInsecureConnection": (_is_on, "client certificates need the signature of a trusted authority"),
    "entryFilterNames": (_is_said, "there are no entry filters: consumers would get messages that a filter holds back"),
    "brokerInterceptors": (_is_said, f"{_PLUGINS}: requests would pass without the interceptors' checks"),
    "brokerEntryPayloadProcessors": (_is_said, f"{_PLUGINS}: payloads would be stored as they come"),
    "enablePersistentTopics": (_is_off, "persistent topics cannot be switched off"),
    "webServiceHaProxyProtocolEnabled": (
        _is_on, "PROXY headers are not understood over HTTP: connections would be closed"),
    "bindAddresses": (_is_said, "one address is supported: set bindAddress and the ports"),
    "tokenSettingPrefix": (_is_said, "keys under another prefix are not read: set tokenSecretKey or tokenPublicKey"),
    "sslFactoryPlugin": (_is_foreign, f"{_PLUGINS}: set tlsCertificateFilePath and its siblings to PEM files"),
    "tlsFactoryClassName": (_is_foreign, f"{_PLUGINS}: set tlsCertificateFilePath and its siblings to PEM files"),
    "openIDFallbackDiscoveryMode": (
        _is_not_disabled, "issuers are not looked up in Kubernetes: set openIDAllowedTokenIssuers to the cluster's"),
    "clientLibraryVersionCheckEnabled": (
        _is_on, "versions of clients are not checked: every client of the protocol may connect"),
}
# Pulsar's name: (whether a value demands something that is not available, what holds instead).
UNMET: dict[str, tuple[Callable[[str], bool], str]] = {
    "systemTopicEnabled": (
        _is_off, "policies of topics stay available: they are in the catalogue, not in system topics"),
    "topicLevelPoliciesEnabled": (_is_off, "policies of topics stay available"),
    "scalableTopicsEnabled": (_is_off, "scalable topics stay available"),
    "maxNumPartitionsPerPartitionedTopic": (_is_bound, "the number is not bounded by this key"),
    "httpRequestsLimitEnabled": (_is_on, "requests over HTTP have no rate"),
    "functionsWorkerEnabled": (_is_on, "functions are not run"),
    "enablePackagesManagement": (_is_on, "packages are not managed"),
    "messagingProtocols": (_is_said, _PLUGINS),
    "additionalServlets": (_is_said, _PLUGINS),
    "extraServerComponents": (_is_said, _PLUGINS),
    "managedLedgerOffloadDriver": (_is_said, "nothing is offloaded"),
    "bootstrapNamespaces": (_is_said, "these namespaces are not created"),
    "internalListenerName": (
        _is_said, "clients that name no listener are sent to network.advertised_address, or stay where they came"),
    "subscriptionRedeliveryTrackerEnabled": (_is_off, "redeliveries are counted"),
    "enableBrokerSideSubscriptionPatternEvaluation": (
        _is_off, "the broker evaluates patterns for clients that ask for it"),
    "enableBrokerTopicListWatcher": (_is_off, "clients may watch lists of topics"),
    "brokerDeleteInactivePartitionedTopicMetadataEnabled": (
        _is_on, "a topic stays partitioned after all its partitions were deleted"),
    "strictTopicNameEnabled": (_is_on, "names are checked as without this key"),
    "splitTopicAndPartitionLabelInPrometheus": (_is_on, "metrics have a partition's name in one label"),
    "webServiceTrustXForwardedFor": (_is_on, "a client's address is that of its connection"),
    "topicFactoryClassName": (_is_foreign, _PLUGINS),
    "dispatchRateLimiterFactoryClassName": (_is_foreign, _PLUGINS),
    "delayedDeliveryTrackerFactoryClassName": (_is_foreign, _PLUGINS),
    "schemaRegistryStorageClassName": (_is_foreign, _PLUGINS),
    "transactionMetadataStoreProviderClassName": (_is_foreign, _PLUGINS),
    "transactionBufferProviderClassName": (_is_foreign, _PLUGINS),
    "transactionPendingAckStoreProviderClassName": (_is_foreign, _PLUGINS),
}
METHODS = {"AuthenticationProviderTls": "tls", "AuthenticationProviderToken": "token",
           "AuthenticationProviderBasic": "basic"}
OPEN_ID = "AuthenticationProviderOpenID"      # it checks tokens too, by the keys of issuers
AUTHORIZATION_PROVIDER = "PulsarAuthorizationProvider"
ALIASES = {"delayedDeliveryMaxDeliveryDelayInMillis": "delayedDeliveryMaxDelayInMillis"}      # names in proposals
PORTS = {"brokerServicePort": "network.port", "webServicePort": "http_port"}
TLS_PORTS = {"brokerServicePortTls": "tls.port", "webServicePortTls": "tls.http_port"}
COMPACTIONS = {"PulsarCompactionServiceFactory": "position", "EventTimeCompactionServiceFactory": "event_time"}
INTERCEPTORS = {"AppendIndexMetadataInterceptor": "index", "AppendBrokerTimestampMetadataInterceptor": "timestamp"}


class ConfigError(ValueError):
    """An error: the configuration cannot be used.  The text is one line that names the key."""

    exit_status = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Setting(NamedTuple):
    value: Any
    origin: str     # as errors print it: "broker.conf:3: maxMessageSize", "geminga.toml:7", "GEMINGA_HTTP_PORT"


def parse(text: str, path: str) -> dict[str, Setting]:
    """Parse a Java properties file, and return {name: setting}.

    Of several values for one name the last counts, as in Java.
    """
    settings = {}
    for number, line in _logical_lines(text):
        name, value = _split(line)
        settings[name] = Setting(value, f"{path}:{number}: {name}")
    return settings


def from_environment(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Return settings from variables such as PULSAR_PREFIX_maxMessageSize=1048576, as Pulsar's container images do."""
    return {name.removeprefix(ENVIRONMENT_PREFIX): Setting(environ[name].strip(), name)
            for name in sorted(environ) if name.startswith(ENVIRONMENT_PREFIX)}


def translate(properties: Mapping[str, Setting]) -> tuple[dict[str, Setting], list[str]]:
    """Translate Pulsar's settings, and return (settings under Geminga's keys, notes for the log).

    Raises ConfigError for a name that Pulsar does not have, and for a demand in REFUSED.
    """
    _refuse_unknown(properties)
    properties = {ALIASES.get(name, name): setting for name, setting in properties.items()}
    _refuse_demands(properties)
    said = {name: setting for name, setting in properties.items() if setting.value}
    idle = _of_absent_providers(said)
    said = {name: setting for name, setting in said.items() if name not in idle}
    given = {ours: _converted(said[name], convert) for name, (ours, convert) in TRANSLATED.items() if name in said}
    special, notes = _special(said, properties)
    unmet = {name: text for name, (demands, text) in UNMET.items() if name in said and demands(said[name].value)}
    notes += [f"{said[name].origin}: not followed: {text}" for name, text in unmet.items()]
    unheard = sorted(said.keys() - TRANSLATED.keys() - SPECIAL.keys() - REFUSED.keys() - unmet.keys())
    if unheard:
        notes.append(f"{len(unheard)} settings of Pulsar have no effect here: {', '.join(unheard)}")
    if idle:
        notes.append(f"{len(idle)} settings have no effect without their class in authenticationProviders: "
                     f"{', '.join(sorted(idle))}")
    return given | special, notes


def texts_in_force(properties: Mapping[str, Setting], given: Mapping[str, Setting],
                   stronger: Collection[str]) -> dict[str, str]:
    """Return the texts of Pulsar's settings, by name, that decide about keys.

    given: settings of all sources by key.  stronger: keys that a source above Pulsar's settings sets.
    """
    said = {ALIASES.get(name, name): setting for name, setting in properties.items() if setting.value}
    decides = {name for name, (ours, _) in TRANSLATED.items()
               if name in said and ours in given and given[ours].origin == said[name].origin}
    decides |= {name for name, ours in SPECIAL.items() if name in said and ours not in stronger}
    if "journalSyncData" in decides and _is_off(said["journalSyncData"].value):
        decides.remove("journalSyncData")      # it is not followed
    return {name: said[name].value for name in sorted(decides)}


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ", did you mean NAME?" for the most similar name, "" if no name is similar."""
    matches = likest(name, names, cutoff=cutoff)
    return f", did you mean {matches[0]}?" if matches else ""


@cache
def known_names() -> frozenset[str]:
    lines = files("geminga.supervisor.configuration").joinpath("pulsar_keys.txt").read_text("ascii").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def _refuse_unknown(properties: Mapping[str, Setting]) -> None:
    for name, setting in properties.items():
        if name not in known_names() and not name.startswith(FREE_PREFIXES):
            raise ConfigError(f"{setting.origin}: Pulsar has no such setting{nearest(name, sorted(known_names()))}")


def _refuse_demands(properties: Mapping[str, Setting]) -> None:
    for name, (demands, why) in REFUSED.items():
        if name in properties and properties[name].value and demands(properties[name].value):
            raise ConfigError(f"{properties[name].origin}: {why}")
    for name, tls in (("webServiceTlsProtocols", "tlsProtocols"), ("webServiceTlsCiphers", "tlsCiphers")):
        setting = properties.get(name)
        if setting and setting.value and setting.value != (properties[tls].value if tls in properties else ""):
            raise ConfigError(f"{setting.origin}: is the same setting as {tls} here: set both to one value")


def _converted(setting: Setting, convert: Callable[[str], Any]) -> Setting:
    try:
        return Setting(convert(setting.value), setting.origin)
    except ValueError as error:
        raise ConfigError(f"{setting.origin}: {error}") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"must be a whole number, not {text!r}") from None


class Scaled:
    """A converter that multiplies a number by a factor.  0 and negative numbers mean "no bound", and stay."""

    def __init__(self, factor: int) -> None:
        self._factor = factor

    def __repr__(self) -> str:
        return f"<Scaled by {self._factor}>"

    def __call__(self, text: str) -> int | str:
        """Convert Pulsar's text; a number with a unit stays text.  Raises ValueError."""
        return text if has_unit(text) else number * self._factor if (number := _whole(text)) > 0 else number

    def text(self, value: int) -> str:
        """Return a value as Pulsar's text, with a fraction if it is no multiple of the factor."""
        return number_text(value / self._factor) if value > 0 else str(value)


def number_text(number: float) -> str:
    """Return a number as a text of up to ten digits, without a fraction that is 0."""
    return f"{number:.10g}"


def _rate(text: str) -> str:
    """Return a rate in whole messages or bytes a second.  Raises ValueError."""
    return number_text(round(float(text)))


def _percent(text: str) -> int:
    """Convert a fraction such as 0.16 to a percentage."""
    try:
        return round(float(text) * 100)
    except (ValueError, OverflowError):
        raise ValueError(f"must be a number, not {text!r}") from None


def _age_s(text: str) -> int | str:
    if has_unit(text):
        return text
    minutes = _whole(text)
    return minutes * 60 if minutes > 0 else NEVER_S


def _interval_s(text: str) -> int:
    return max(1, _whole(text) // 1_000)


def _interceptors(text: str) -> tuple[str, ...]:
    names = [part.strip().rpartition(".")[2] for part in text.split(",") if part.strip()]
    for name in names:
        if name not in INTERCEPTORS:
            raise ValueError(f"knows {' and '.join(INTERCEPTORS)}, not {name!r}")
    return tuple(dict.fromkeys(INTERCEPTORS[name] for name in names))


def _compaction_order(text: str) -> str:
    name = text.rpartition(".")[2]
    if name not in COMPACTIONS:
        raise ValueError(f"knows {' and '.join(COMPACTIONS)}, not {text!r}: {_PLUGINS}")
    return COMPACTIONS[name]


def _one_process(text: str) -> int:
    return int(not _is_off(text))


def _wanted(text: str) -> str:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"must be true or false, not {text!r}")
    return "required" if text.lower() == "true" else "wanted"


# Pulsar's name: (Geminga's key, converter).  With the converter str, the text is read as an environment variable is.
TRANSLATED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "acknowledgmentAtBatchIndexLevelEnabled": ("storage.batch_index_acknowledgement", str),
    "advertisedAddress": ("network.advertised_address", str),
    "advertisedListeners": ("network.advertised_listeners", str),
    "allowAutoSubscriptionCreation": ("storage.auto_create_subscriptions", str),
    "allowAutoTopicCreation": ("storage.auto_create_topics", str),
    "allowedTopicPropertyKeysForMetrics": ("metrics.topic_properties", str),
    "anonymousUserRole": ("authentication.anonymous_role", str),
    "authenticateMetricsEndpoint": ("authentication.metrics", str),
    "authenticateOriginalAuthData": ("authentication.original_authentication", str),
    "authenticationRefreshCheckSeconds": ("authentication.refresh_interval_s", str),
    "authorizationAllowWildcardsMatching": ("authorization.wildcards", str),
    "authorizationEnabled": ("authorization.enabled", str),
    "backlogQuotaCheckEnabled": ("storage.backlog_quota_check", str),
    "backlogQuotaDefaultLimitBytes": ("storage.backlog_quota_bytes", str),
    "backlogQuotaDefaultLimitSecond": ("storage.backlog_quota_age_s", str),
    "backlogQuotaDefaultRetentionPolicy": ("storage.backlog_quota_policy", str),
    "basicAuthConf": ("authentication.users", str),
    "bindAddress": ("network.bind", str),
    "brokerDeduplicationEnabled": ("storage.deduplication", str),
    "brokerDeduplicationMaxNumberOfProducers": ("storage.deduplication_names_max", str),
    "brokerDeduplicationProducerInactivityTimeoutMinutes": ("storage.deduplication_inactivity_s", Scaled(60)),
    "brokerDeleteInactiveTopicsEnabled": ("storage.delete_inactive_topics", str),
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": ("storage.inactive_topic_s", str),
    "brokerDeleteInactiveTopicsMode": ("storage.inactive_topic_mode", str),
    "brokerEntryMetadataInterceptors": ("network.broker_entry_metadata", _interceptors),
    "brokerMaxConnections": ("network.max_connections", str),
    "brokerMaxConnectionsPerIp": ("network.max_connections_per_address", str),
    "brokerPublisherThrottlingMaxByteRate": ("storage.publish_bytes_per_broker", str),
    "brokerPublisherThrottlingMaxMessageRate": ("storage.publish_messages_per_broker", str),
    "brokerServicePort": ("network.port", str),
    "brokerServicePortTls": ("tls.port", str),
    "brokerServiceCompactionMonitorIntervalInSeconds": ("nightly.check_interval_s", str),
    "brokerServiceCompactionThresholdInBytes": ("storage.compaction_threshold_bytes", str),
    "clusterName": ("cluster_name", str),
    "compactionServiceFactoryClassName": ("storage.compaction_order", _compaction_order),
    "defaultRetentionSizeInMB": ("storage.retention_bytes", Scaled(1 << 20)),
    "defaultRetentionTimeInMinutes": ("storage.retention_s", Scaled(60)),
    "delayedDeliveryEnabled": ("storage.delayed_delivery", str),
    "delayedDeliveryMaxDelayInMillis": ("storage.delayed_delivery_max_ms", str),
    "delayedDeliveryTickTimeMillis": ("storage.delayed_delivery_tick_ms", str),
    "dispatchThrottlingOnBatchMessageEnabled": ("storage.dispatch_limits_entries", str),
    "dispatchThrottlingOnNonBacklogConsumerEnabled": ("storage.dispatch_limits_without_backlog", str),
    "dispatchThrottlingRateInByte": ("storage.dispatch_bytes_per_broker", str),
    "dispatchThrottlingRateInMsg": ("storage.dispatch_messages_per_broker", str),
    "dispatchThrottlingRatePerReplicatorInByte": ("storage.dispatch_bytes_per_replicator", str),
    "dispatchThrottlingRatePerReplicatorInMsg": ("storage.dispatch_messages_per_replicator", str),
    "dispatchThrottlingRatePerSubscriptionInByte": ("storage.dispatch_bytes_per_subscription", str),
    "dispatchThrottlingRatePerSubscriptionInMsg": ("storage.dispatch_messages_per_subscription", str),
    "dispatchThrottlingRatePerTopicInByte": ("storage.dispatch_bytes_per_topic", str),
    "dispatchThrottlingRatePerTopicInMsg": ("storage.dispatch_messages_per_topic", str),
    "dispatchThrottlingRateRelativeToPublishRate": ("storage.dispatch_relative_to_publish", str),
    "enableNonPersistentTopics": ("storage.non_persistent_topics", str),
    "enableReplicatedSubscriptions": ("storage.replicated_subscriptions", str),
    "encryptionRequireOnProducer": ("storage.encryption_required", str),
    "exposeConsumerLevelMetricsInPrometheus": ("metrics.consumers", str),
    "exposeCustomTopicMetricLabelsEnabled": ("metrics.property_labels", str),
    "exposeProducerLevelMetricsInPrometheus": ("metrics.producers", str),
    "exposeTopicLevelMetricsInPrometheus": ("metrics.topics", str),
    "exposingBrokerEntryMetadataToClientEnabled": ("network.expose_broker_entry_metadata", str),
    "forceDeleteNamespaceAllowed": ("storage.force_delete_namespaces", str),
    "forceDeleteTenantAllowed": ("storage.force_delete_tenants", str),
    "haProxyProtocolEnabled": ("network.proxy_protocol", str),
    "isAllowAutoUpdateSchemaEnabled": ("storage.schema_auto_update", str),
    "isDelayedDeliveryDeliverAtTimeStrict": ("storage.delayed_delivery_strict", str),
    "isSchemaValidationEnforced": ("storage.schema_validation_enforced", str),
    "keepAliveIntervalSeconds": ("network.keep_alive_interval_ms", Scaled(1_000)),
    "managedLedgerMaxEntriesPerLedger": ("storage.roll_over_entries", str),
    "managedLedgerMaxLedgerRolloverTimeMinutes": ("storage.roll_over_age_s", _age_s),
    "managedLedgerMaxSizePerLedgerMbytes": ("storage.roll_over_bytes", Scaled(1 << 20)),
    "maxActiveTransactionsPerCoordinator": ("transactions.max_active", str),
    "maxConcurrentNonPersistentMessagePerConnection": ("storage.max_live_messages_per_connection", str),
    "maxConsumersPerSubscription": ("storage.max_consumers_per_subscription", str),
    "maxConsumersPerTopic": ("storage.max_consumers_per_topic", str),
    "maxMessageSize": ("network.max_message_size", str),
    "maxNamespacesPerTenant": ("storage.max_namespaces_per_tenant", str),
    "maxProducersPerTopic": ("storage.max_producers_per_topic", str),
    "maxPublishRatePerTopicInBytes": ("storage.publish_bytes_per_topic", str),
    "maxPublishRatePerTopicInMessages": ("storage.publish_messages_per_topic", str),
    "maxSameAddressConsumersPerTopic": ("storage.max_same_address_consumers_per_topic", str),
    "maxSameAddressProducersPerTopic": ("storage.max_same_address_producers_per_topic", str),
    "maxSubscriptionsPerTopic": ("storage.max_subscriptions_per_topic", str),
    "maxTenants": ("storage.max_tenants", str),
    "maxTopicsPerNamespace": ("storage.max_topics_per_namespace", str),
    "maxUnackedMessagesPerBroker": ("storage.max_unacked_messages_per_broker", str),
    "maxUnackedMessagesPerConsumer": ("storage.max_unacked_messages_per_consumer", str),
    "maxUnackedMessagesPerSubscription": ("storage.max_unacked_messages_per_subscription", str),
    "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": ("storage.max_unacked_percent_when_blocked", _percent),
    "openIDAcceptedTimeLeewaySeconds": ("authentication.oidc.clock_skew_s", str),
    "openIDAllowedAudiences": ("authentication.oidc.audiences", str),
    "openIDAllowedTokenIssuers": ("authentication.oidc.issuers", str),
    "openIDCacheExpirationSeconds": ("authentication.oidc.expiry_s", str),
    "openIDCacheRefreshAfterWriteSeconds": ("authentication.oidc.refresh_s", str),
    "openIDHttpConnectionTimeoutMillis": ("authentication.oidc.connect_timeout_ms", str),
    "openIDHttpReadTimeoutMillis": ("authentication.oidc.read_timeout_ms", str),
    "openIDKeyIdCacheMissRefreshSeconds": ("authentication.oidc.unknown_key_interval_s", str),
    "openIDRequireIssuersUseHttps": ("authentication.oidc.require_https", str),
    "openIDRoleClaim": ("authentication.oidc.role_claim", str),
    "openIDTokenIssuerTrustCertsFilePath": ("authentication.oidc.trusted", str),
    "proxyRoles": ("authorization.proxy_roles", str),
    "replicatedSubscriptionsSnapshotFrequencyMillis": (
        "storage.replicated_snapshot_interval_s", _interval_s),
    "replicatedSubscriptionsSnapshotMaxCachedPerSubscription": ("storage.replicated_snapshots_max", str),
    "replicatedSubscriptionsSnapshotTimeoutSeconds": ("storage.replicated_snapshot_timeout_s", str),
    "replicationStartAt": ("storage.replication_start_at", str),
    "scalableTopicAutoScaleEnabled": ("storage.scale_automatically", str),
    "scalableTopicAutoScaleIntervalSeconds": ("storage.scale_interval_s", str),
    "scalableTopicConsumerSessionGracePeriodSeconds": ("storage.stream_consumer_grace_s", str),
    "scalableTopicEntryBucketMaxPerSegment": ("storage.scale_buckets_max", str),
    "scalableTopicMaxDagDepth": ("storage.scale_merges_max", str),
    "scalableTopicMaxSegments": ("storage.scale_segments_max", str),
    "scalableTopicMergeBytesRateInThreshold": ("storage.scale_merge_bytes_in", _rate),
    "scalableTopicMergeBytesRateOutThreshold": ("storage.scale_merge_bytes_out", _rate),
    "scalableTopicMergeCooldownSeconds": ("storage.scale_merge_cooldown_s", str),
    "scalableTopicMergeMsgRateInThreshold": ("storage.scale_merge_messages_in", _rate),
    "scalableTopicMergeMsgRateOutThreshold": ("storage.scale_merge_messages_out", _rate),
    "scalableTopicMergeWindowSeconds": ("storage.scale_merge_window_s", str),
    "scalableTopicMinSegments": ("storage.scale_segments_min", str),
    "scalableTopicRebucketCooldownSeconds": ("storage.scale_rebucket_cooldown_s", str),
    "scalableTopicSplitBytesRateInThreshold": ("storage.scale_split_bytes_in", _rate),
    "scalableTopicSplitBytesRateOutThreshold": ("storage.scale_split_bytes_out", _rate),
    "scalableTopicSplitCooldownSeconds": ("storage.scale_split_cooldown_s", str),
    "scalableTopicSplitMsgRateInThreshold": ("storage.scale_split_messages_in", _rate),
    "scalableTopicSplitMsgRateOutThreshold": ("storage.scale_split_messages_out", _rate),
    "scalableTopicSplitVsRebucketMinMsgRateInThreshold": ("storage.scale_split_for_consumers_messages", _rate),
    "schemaCompatibilityStrategy": ("storage.schema_compatibility_strategy", str),
    "statsUpdateFrequencyInSecs": ("storage.stats_window_s", str),
    "subscribeRatePeriodPerConsumerInSecond": ("storage.subscribe_period_s", str),
    "subscribeThrottlingRatePerConsumer": ("storage.subscribes_per_consumer", str),
    "subscriptionExpirationTimeMinutes": ("storage.subscription_expiration_s", Scaled(60)),
    "subscriptionKeySharedEnable": ("storage.key_shared_enabled", str),
    "subscriptionKeySharedUseConsistentHashing": ("storage.key_shared_consistent_hashing", str),
    "subscriptionTypesEnabled": ("storage.subscription_types", str),
    "superUserRoles": ("authorization.super_user_roles", str),
    "tlsCertificateFilePath": ("tls.certificate", str),
    "tlsCiphers": ("tls.ciphers", lambda text: ":".join(part.strip() for part in text.split(","))),
    "tlsKeyFilePath": ("tls.key", str),
    "tlsProtocols": ("tls.versions", str),
    "tlsRequireTrustedClientCertOnConnect": ("tls.client_certificates", _wanted),
    "tlsTrustCertsFilePath": ("tls.trusted", str),
    "tokenAllowedClockSkewSeconds": ("authentication.clock_skew_s", str),
    "tokenAudience": ("authentication.audience", str),
    "tokenAudienceClaim": ("authentication.audience_claim", str),
    "tokenAuthClaim": ("authentication.role_claim", str),
    "tokenPublicAlg": ("authentication.public_key_algorithm", str),
    "tokenPublicKey": ("authentication.public_keys", lambda text: (text,)),
    "tokenSecretKey": ("authentication.secret_keys", lambda text: (text,)),
    "topicCompactionRetainNullKey": ("nightly.retain_keyless", str),
    "transactionCoordinatorEnabled": ("transactions.enabled", str),
    "ttlDurationDefaultInSeconds": ("storage.message_ttl_s", str),
    "webSocketServiceEnabled": ("http.web_processes", _one_process),
    "webServicePort": ("http_port", str),
    "webServicePortTls": ("tls.http_port", str),
}
# Pulsar's name, of a setting that is translated together with others: Geminga's key.
SPECIAL = {
    "activeConsumerFailoverConsistentHashing": "storage.failover_selection",
    "allowAutoTopicCreationType": "storage.auto_create_partitions",
    "authenticationEnabled": "authentication.methods",
    "authenticationProviders": "authentication.methods",
    "authorizationProvider": "authorization.enabled",
    "backlogQuotaDefaultLimitGB": "storage.backlog_quota_bytes",
    "defaultNumPartitions": "storage.auto_create_partitions",
    "journalSyncData": "storage.sync",
    "tlsEnabled": "tls.certificate",
    "webServiceTlsCiphers": "tls.ciphers",
    "webServiceTlsProtocols": "tls.versions",
}


def _special(said: Mapping[str, Setting], properties: Mapping[str, Setting]) -> tuple[dict[str, Setting], list[str]]:
    _refuse_tls_without_certificate(said)
    given = _partitions(said) | _ports(properties) | _methods(said) | _quota(said) | _failover(said)
    notes = []
    sync = said.get("journalSyncData")
    if sync and sync.value.lower() == "true":
        given["storage.sync"] = Setting("group", sync.origin)
    elif sync:
        # Pulsar's standalone.conf ships with false: a user who copies that file has not chosen to lose messages.
        notes.append(f"{sync.origin}: not followed: answers wait for the disk, unless storage.sync says otherwise")
    return given, notes


def _quota(said: Mapping[str, Setting]) -> dict[str, Setting]:
    """Translate backlogQuotaDefaultLimitGB, an older name of the quota in bytes, which Pulsar prefers if it is above 0.
    """
    setting = said.get("backlogQuotaDefaultLimitGB")
    size = _converted(setting, Scaled(1 << 30)) if setting else None
    has_bound = size is not None and (isinstance(size.value, str) or size.value > 0)
    return {"storage.backlog_quota_bytes": size} if size is not None and has_bound else {}


def _failover(said: Mapping[str, Setting]) -> dict[str, Setting]:
    setting = said.get("activeConsumerFailoverConsistentHashing")
    if setting is None or _is_off(setting.value):
        return {}
    return {"storage.failover_selection": Setting("hashring", setting.origin)}


def _partitions(said: Mapping[str, Setting]) -> dict[str, Setting]:
    kind = said.get("allowAutoTopicCreationType")
    if kind is None:
        return {}
    if kind.value not in ("partitioned", "non-partitioned"):
        raise ConfigError(f"{kind.origin}: must be partitioned or non-partitioned, not {kind.value!r}")
    if kind.value == "non-partitioned":
        return {"storage.auto_create_partitions": Setting(0, kind.origin)}
    number = _converted(said.get("defaultNumPartitions", Setting("1", kind.origin)), _whole)
    if number.value < 1:
        raise ConfigError(f"{number.origin}: must be at least 1, not {number.value}")
    return {"storage.auto_create_partitions": number}


def _refuse_tls_without_certificate(said: Mapping[str, Setting]) -> None:
    if said.get("tlsEnabled", Setting("", "")).value.lower() == "true" and "tlsCertificateFilePath" not in said:
        raise ConfigError(f"{said['tlsEnabled'].origin}: needs tlsCertificateFilePath")


def _ports(properties: Mapping[str, Setting]) -> dict[str, Setting]:
    """Close ports that are set to nothing, and TLS ports that are not set although there is a certificate."""
    closed = {ours: properties[theirs] for theirs, ours in PORTS.items()
              if theirs in properties and not properties[theirs].value}
    certificate = properties.get("tlsCertificateFilePath")
    if certificate and certificate.value:
        closed |= {ours: certificate for theirs, ours in TLS_PORTS.items()
                   if theirs not in properties or not properties[theirs].value}
    return {ours: Setting(-1, setting.origin) for ours, setting in closed.items()}


def _providers(said: Mapping[str, Setting]) -> list[str]:
    """Return the names of Pulsar's classes of authentication that are in use, without their packages."""
    if "authenticationEnabled" not in said or said["authenticationEnabled"].value.lower() != "true":
        return []
    named = said.get("authenticationProviders", Setting("", "")).value.split(",")
    return [part.strip().rpartition(".")[2] for part in named if part.strip()]


def _of_absent_providers(said: Mapping[str, Setting]) -> set[str]:
    """Return the settings of Pulsar's two classes for tokens that have no effect, because their class is not in use.

    Both classes are one method here.  With the keys of a class that Pulsar leaves out, its tokens would be accepted.
    """
    names = _providers(said)
    idle = ["openID"] if OPEN_ID not in names else ["token"] if "AuthenticationProviderToken" not in names else []
    return {name for name in said if name in TRANSLATED and name.startswith(tuple(idle))}


def _methods(said: Mapping[str, Setting]) -> dict[str, Setting]:
    """Translate Pulsar's classes of authentication to Geminga's methods.

    An unknown class is refused, because clients that it was meant to keep out would be admitted.
    """
    provider = said.get("authorizationProvider")
    if provider and provider.value.rpartition(".")[2] != AUTHORIZATION_PROVIDER:
        raise ConfigError(f"{provider.origin}: knows {AUTHORIZATION_PROVIDER} only, not {provider.value!r}")
    enabled, providers = said.get("authenticationEnabled"), said.get("authenticationProviders")
    if enabled is None or enabled.value.lower() != "true":
        return {}
    names, methods = _providers(said), {**METHODS, OPEN_ID: "token"}
    for name in names:
        if providers is not None and name not in methods:
            raise ConfigError(f"{providers.origin}: knows {', '.join(methods)}, not {name!r}")
    if providers is None or not names:
        raise ConfigError(f"{enabled.origin}: needs authenticationProviders")
    if OPEN_ID in names and "openIDAllowedTokenIssuers" not in said:
        raise ConfigError(f"{providers.origin}: {OPEN_ID} needs openIDAllowedTokenIssuers")
    used = tuple(dict.fromkeys(methods[name] for name in names))
    return {"authentication.methods": Setting(used, providers.origin)}


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Yield (line number, line) of a properties file, without blank lines and comments.

    A line that ends in an odd number of backslashes continues on the next one.
    """
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        line = line.lstrip()
        if not joined and (not line or line[0] in "#!"):
            continue
        first = first if joined else number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1]
            continue
        yield first, joined + line
        joined = ""
    if joined:
        yield first, joined


_NAME = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)


def _split(line: str) -> tuple[str, str]:
    match = _NAME.fullmatch(line)
    assert match is not None      # every line fits
    name, value = match.groups()
    return _unescaped(name), _unescaped(value).strip()


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) == 5:      # u and four digits
            return chr(int(escape[1:], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(escape, escape)
    return _ESCAPE.sub(one, text)
