"""The configuration: sources of values and their precedence, refusals, and Pulsar's own files.

Every refusal is one line that names the key as its author wrote it; the command prints that line and nothing else.
"""
import os
import re
import tempfile
import tomllib
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

from geminga.storage.options import StorageOptions
from geminga.supervisor.configuration.config import KEYS, SECTIONS, Config, ConfigError, load
from geminga.supervisor.configuration.properties import SPECIAL, TRANSLATED, UNMET, known_names, parse
from geminga.supervisor.configuration.pulsar_texts import texts
from geminga.supervisor.configuration.value_ranges import FORMS, RANGES
from geminga.supervisor.host.host import core_count
from geminga.workers.identity.options import Secret
from geminga.workers.options import WorkerOptions

EXAMPLE = Path(__file__).parents[2] / "systemd" / "geminga.toml.example"
INDEX = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
TIMESTAMP = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"


@pytest.fixture
def written(tmp_path):
    """Write a configuration file; return its path."""
    def write(text, name="geminga.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path
    return write


def refusal(path=None, environ=None, overrides=None):
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {}, overrides or {})
    line = str(caught.value)
    assert "\n" not in line
    return line


# -- defaults and precedence --------------------------------------------------------------------------------------

def test_without_any_setting_the_layers_defaults_hold():
    """The defaults are those of the layers' dataclasses, with zeros and blanks filled in."""
    config, notes = load(None, {}, {})
    assert (config.storage, config.worker, notes) == (StorageOptions(), WorkerOptions(), [])
    assert (config.http_port, config.http_bind, config.cluster_name) == (8080, config.worker.bind, "standalone")
    assert config.workers == config.owners == core_count()


def test_the_example_file_shows_every_key_with_its_default():
    """Uncommented, the example holds every key and no other, with its default; as shipped it sets nothing."""
    text = re.sub(r"^#(?=\w+ = )", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    document = tomllib.loads(text)
    shown = {name: value for name, value in document.items() if not isinstance(value, dict)}
    for section in SECTIONS:
        of_section = reduce(getitem, section.split("."), document)
        shown |= {f"{section}.{name}": value for name, value in of_section.items() if not isinstance(value, dict)}
    assert shown == {
        name: str(key.default) if key.type is Path else list(key.default) if isinstance(key.default, tuple)
        else key.default
        for name, key in KEYS.items()
    }
    assert list(shown) == sorted(shown, key=lambda name: list(KEYS).index(name)), "in the dataclasses' order"
    assert load(EXAMPLE, {}, {}) == load(None, {}, {})


def test_every_key_is_explained_in_the_example():
    """Above each key of the example stands a comment."""
    lines = EXAMPLE.read_text().splitlines()
    above = {line: before for before, line in zip(lines, lines[1:], strict=False) if re.match(r"#\w+ = ", line)}
    assert {line[1:].partition(" ")[0] for line in above} == {key.rpartition(".")[2] for key in KEYS}
    assert [line for line, before in above.items() if not before.startswith("# ")] == []


def test_every_number_has_a_range_and_every_text_a_form():
    """A key added to a dataclass gets its bounds here, too."""
    assert RANGES
    for name, key in KEYS.items():
        assert key.type in (bool, Path, Secret) or name in (RANGES if key.type is int else FORMS), name
    for name, (first, last) in RANGES.items():
        assert first <= KEYS[name].default <= last, name


SOURCES = [
    ({}, {}, {}, 8080),
    ({"file": 1}, {}, {}, 1),
    ({"file": 1}, {"PULSAR_PREFIX_webServicePort": "2"}, {}, 2),
    ({"file": 1}, {"PULSAR_PREFIX_webServicePort": "2", "GEMINGA_HTTP_PORT": "3"}, {}, 3),
    ({"file": 1}, {"PULSAR_PREFIX_webServicePort": "2", "GEMINGA_HTTP_PORT": "3"}, {"http_port": 4}, 4),
    ({"file": 1}, {}, {"http_port": None}, 1),
]


@pytest.mark.parametrize(("file", "environ", "overrides", "expected"), SOURCES)
@pytest.mark.parametrize(("name", "line"), [("geminga.toml", "http_port = {}"), ("broker.conf", "webServicePort={}")])
def test_the_stronger_source_wins(written, name, line, file, environ, overrides, expected):
    """Command line over GEMINGA_ over PULSAR_PREFIX_ over file over default; None on the command line counts as absent.
    """
    path = written(line.format(file["file"]), name) if file else None
    assert load(path, environ, overrides)[0].http_port == expected


@pytest.mark.parametrize(("variable", "text", "read"), [
    ("GEMINGA_DATA_DIR", "/srv/data", lambda config: str(config.data_dir) == "/srv/data"),
    ("GEMINGA_STORAGE_SYNC", "interval", lambda c: c.storage.sync == "interval"),
    ("GEMINGA_STORAGE_SYNC_INTERVAL_MS", "50", lambda c: c.storage.sync_interval_ms == 50),
    ("GEMINGA_STORAGE_AUTO_CREATE_TOPICS", "False", lambda c: c.storage.auto_create_topics is False),
    ("GEMINGA_NETWORK_PORT", "0", lambda c: c.worker.port == 0),
    ("GEMINGA_NETWORK_BROKER_ENTRY_METADATA", "index, timestamp",
     lambda c: c.worker.broker_entry_metadata == ("index", "timestamp")),
])
def test_a_variable_is_read_as_its_keys_type(variable, text, read):
    """GEMINGA_<SECTION>_<KEY> takes numbers, true and false, lists with commas."""
    assert read(load(None, {variable: text, "PATH": "/bin"}, {})[0])


def test_variables_that_something_else_made_are_noted_not_refused():
    """A Kubernetes pod beside a service named geminga has such variables: the broker starts, and notes them."""
    environ = {"GEMINGA_PORT": "tcp://10.0.0.1:6650", "GEMINGA_SERVICE_HOST": "10.0.0.1",
               "GEMINGA_PORT_6650_TCP_PORT": "6650"}
    assert load(None, environ, {})[1] == ["variables without effect: " + ", ".join(sorted(environ))]


def test_addresses_follow_each_other_unless_told():
    """http_bind is network.bind's unless set; an owner's keep-alive interval is always the network's."""
    config = load(None, {}, {"network.bind": "0.0.0.0", "network.keep_alive_interval_ms": 5_000})[0]
    assert (config.http_bind, config.storage.keep_alive_interval_ms, config.worker.keep_alive_interval_ms) == (
        "0.0.0.0",
        5_000,
        5_000,
    )
    assert load(None, {}, {"network.bind": "0.0.0.0", "http_bind": "127.0.0.1"})[0].http_bind == "127.0.0.1"


def test_two_addresses_may_have_one_port():
    ports = {"network.port": 7000, "http_port": 7000, "network.bind": "127.0.0.1"}
    assert load(None, {}, ports | {"http_bind": "127.0.0.2"})[0].http_port == 7000
    assert refusal(overrides=ports) == "command line: http_port and network.port must differ, both are 7000"


def test_publishing_goes_on_above_the_watermark_and_not_at_it():
    config, notes = load(None, {"GEMINGA_STORAGE_DISK_REFUSE_BELOW_BYTES": str(1 << 30)}, {})
    above = ("storage.disk_accept_above_bytes is 1610612736, more than by default, "
             "for storage.disk_refuse_below_bytes = 1073741824")
    assert (config.storage.disk_accept_above_bytes, notes) == (3 << 29, [above])


def test_a_retention_that_keeps_nothing_is_noted():
    """Retention needs both a time and a size: with 0 for either, nothing is retained."""
    _, notes = load(None, {"GEMINGA_STORAGE_RETENTION_S": "60"}, {})
    assert notes == [
        "nothing is retained while one of storage.retention_s and storage.retention_bytes is 0; -1 is no bound"
    ]
    assert load(None, {"GEMINGA_STORAGE_RETENTION_S": "60", "GEMINGA_STORAGE_RETENTION_BYTES": "-1"}, {})[1] == []


# -- refusals -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "line"), [
    ("http_prot = 1", "geminga.toml:1: http_prot is not a key, did you mean http_port?"),
    ("\n[storage]\n# why\nsink = 'none'", "geminga.toml:4: storage.sink is not a key, did you mean storage.sync?"),
    ("[worker]\nport = 1", "geminga.toml:2: worker.port is not a key, did you mean network.port?"),
    ("[storage]\nkeep_alive_interval_ms = 1",
     "storage.keep_alive_interval_ms is not a key, did you mean network.keep_alive_interval_ms?"),
    ("[stroage]", "geminga.toml: stroage is not a key, did you mean section [storage]?"),
    ("storage = 3", "geminga.toml:1: storage is not a key: it is a section, begun by a line [storage]"),
    ("http_port = '80 80'", "geminga.toml:1: http_port must be a whole number, not '80 80'"),
    ("http_port = true", "geminga.toml:1: http_port must be a whole number, not True"),
    ("http_port = 65536", "geminga.toml:1: http_port must be -1 to 65535, not 65536"),
    ("http_port = 6650", "geminga.toml:1: http_port and network.port must differ, both are 6650"),
    ("workers = -1", "geminga.toml:1: workers must be 0 to 1024, not -1"),
    ("data_dir = ''", "geminga.toml:1: data_dir must be a path, not ''"),
    ("cluster_name = 'a/b'", "geminga.toml:1: cluster_name must be letters, digits and -=:._, not 'a/b'"),
    ("cluster_name = 'a\\nb'", "geminga.toml:1: cluster_name must be"),
    ("[storage]\nsync = 'grop'", "geminga.toml:2: storage.sync must be group, interval or none, not 'grop'"),
    ("[storage]\nauto_create_topics = 'yes'",
     "geminga.toml:2: storage.auto_create_topics must be true or false, not 'yes'"),
    ("[storage]\nauto_create_topics = 1", "geminga.toml:2: storage.auto_create_topics must be true or false, not 1"),
    ("[storage]\nroll_over_bytes = 5242880",
     "geminga.toml:2: storage.roll_over_bytes must be at least 5253121 for network.max_message_size = 5242880, not "
     "5242880"),
    ("[network]\nmax_message_size = 5242880\n[storage]\njournal_segment_bytes = 15728639",
     "geminga.toml:4: storage.journal_segment_bytes must be at least 15728640 for network.max_message_size = 5242880, "
     "not 15728639"),
    ("[network]\nadvertised_address = 'pulsar://here'",
     "geminga.toml:2: network.advertised_address must be a host name"),
    ("[network]\nadvertised_listeners = ['pulsar://here:6650']",
     "network.advertised_listeners must be name:pulsar://host:port"),
    ("[network]\nadvertised_listeners = ['a:pulsar://x:1', 'a:pulsar://y:1']",
     "must have one address for each name and scheme"),
    ("[network]\nport = -1", "geminga.toml:2: network.port is -1, which needs tls.certificate and tls.port"),
    ("http_port = -1", "geminga.toml:1: http_port is -1, which needs tls.certificate and tls.http_port"),
    ("[tls]\ncertificate = 'c'\nkey = 'k'\nport = 6650",
     "geminga.toml:4: network.port and tls.port must differ, both are 6650"),
    ("[tls]\ncertificate = 'c'", "geminga.toml:2: tls.certificate needs tls.key"),
    ("[tls]\nversions = []", "geminga.toml:2: tls.versions must be one of TLSv1.2 and TLSv1.3, or both"),
    ("[network]\nadvertised_listeners = [1]", "network.advertised_listeners must be a list of texts, not [1]"),
    ("[network]\nbroker_entry_metadata = ['indx']",
     "network.broker_entry_metadata must be timestamp or index, not 'indx'"),
    ("[network", "geminga.toml: "),
])
def test_a_wrong_file_is_refused_in_one_line_that_names_the_key(written, text, line):
    """Unknown keys come with the nearest name, wrong values with what is allowed, both with the line they stand on."""
    assert line in refusal(written(text))


@pytest.mark.parametrize(("text", "key", "value"), [
    ("[storage]\nretention_s = '1d'", "storage.retention_s", 86_400),
    ("[storage]\nretention_s = '90'", "storage.retention_s", 90),
    ("[storage]\nretention_s = -1", "storage.retention_s", -1),
    ("[storage]\ndelayed_delivery_tick_ms = '2s'", "storage.delayed_delivery_tick_ms", 2_000),
    ("[storage]\ndelayed_delivery_tick_ms = '500ms'", "storage.delayed_delivery_tick_ms", 500),
    ("[storage]\nretention_bytes = '2G'", "storage.retention_bytes", 2 << 30),
    ("[network]\nmax_message_size = '10M'", "network.max_message_size", 10 << 20),
    ("[storage]\npublish_bytes_per_topic = '64k'", "storage.publish_bytes_per_topic", 64 << 10),
])
def test_times_and_sizes_are_taken_with_a_unit_and_without(written, text, key, value):
    """A number without a unit counts in the unit that ends the key's name."""
    config, _ = load(written(text), {}, {})
    section, _, name = key.partition(".")
    assert getattr(getattr(config, SECTIONS[section][0]), name) == value


@pytest.mark.parametrize(("line", "part", "name", "value"), [
    ("defaultRetentionTimeInMinutes=1d", "storage", "retention_s", 86_400),
    ("defaultRetentionTimeInMinutes=2", "storage", "retention_s", 120),
    ("defaultRetentionSizeInMB=2G", "storage", "retention_bytes", 2 << 30),
    ("keepAliveIntervalSeconds=1m", "worker", "keep_alive_interval_ms", 60_000),
    ("managedLedgerMaxLedgerRolloverTimeMinutes=1h", "storage", "roll_over_age_s", 3_600),
    ("managedLedgerMaxSizePerLedgerMbytes=1G", "storage", "roll_over_bytes", 1 << 30),
    ("backlogQuotaDefaultLimitGB=500M", "storage", "backlog_quota_bytes", 500 << 20),
    ("delayedDeliveryTickTimeMillis=5s", "storage", "delayed_delivery_tick_ms", 5_000),
    ("maxMessageSize=10M", "worker", "max_message_size", 10 << 20),
])
def test_keys_of_pulsar_take_units_too(written, line, part, name, value):
    """Without a unit a number is of minutes, seconds, milliseconds, MB or GB, as the key's name says."""
    assert getattr(getattr(load(written(line, "broker.conf"), {}, {})[0], part), name) == value


@pytest.mark.parametrize(("environ", "overrides", "line"), [
    ({"GEMINGA_STORAGE_SYNK": "none"}, {},
     "GEMINGA_STORAGE_SYNK: there is no such setting, did you mean GEMINGA_STORAGE_SYNC?"),
    ({"GEMINGA_STORAGE_XYZ": "1"}, {}, "GEMINGA_STORAGE_XYZ: there is no such setting"),
    ({"GEMINGA_OWNER": "2"}, {}, "GEMINGA_OWNER: there is no such setting, did you mean GEMINGA_OWNERS?"),
    ({"GEMINGA_HTTP_PORT": ""}, {}, "GEMINGA_HTTP_PORT: http_port must be a whole number, not ''"),
    ({"GEMINGA_HTTP_PORT": "tcp://10.0.0.1:8080"}, {}, "GEMINGA_HTTP_PORT: http_port must be a whole number"),
    ({"PULSAR_PREFIX_maxMesageSize": "1"}, {},
     "PULSAR_PREFIX_maxMesageSize: Pulsar has no such setting, did you mean maxMessageSize?"),
    ({"PULSAR_PREFIX_authenticationEnabled": "true"}, {},
     "PULSAR_PREFIX_authenticationEnabled: needs authenticationProviders"),
    ({}, {"network.port": 70_000}, "command line: network.port must be -1 to 65535, not 70000"),
    ({}, {"network.prot": 1}, "command line: network.prot is not a key, did you mean network.port?"),
])
def test_a_wrong_variable_or_argument_is_refused_in_one_line(environ, overrides, line):
    """The line begins with where the value came from."""
    assert refusal(None, environ, overrides).startswith(line)


def test_a_default_grows_with_the_message_size_and_says_so():
    """If max_message_size is set alone, the defaults for ledgers and journal segments grow with it, which is noted."""
    config, notes = load(None, {"PULSAR_PREFIX_maxMessageSize": str(100 << 20)}, {})
    assert config.storage.journal_segment_bytes == 205 << 20
    assert config.storage.roll_over_bytes == 101 << 20
    assert [note.split()[0] for note in notes] == ["storage.roll_over_bytes", "storage.journal_segment_bytes"]


# -- Pulsar's files -----------------------------------------------------------------------------------------------

def retention(config):
    return config.storage.retention_s, config.storage.retention_bytes


@pytest.mark.slow
@pytest.mark.parametrize(("line", "read", "expected"), [
    ("brokerServicePort=6652", lambda c: c.worker.port, 6652),
    ("webServicePort : 8081", lambda c: c.http_port, 8081),
    ("bindAddress 0.0.0.0", lambda c: (c.worker.bind, c.http_bind), ("0.0.0.0", "0.0.0.0")),
    ("advertisedAddress=localhost", lambda c: c.worker.advertised_address, "localhost"),
    ("advertisedListeners=a:pulsar://h:1,a:pulsar+ssl://[::1]:2", lambda c: c.worker.advertised_listeners,
     ("a:pulsar://h:1", "a:pulsar+ssl://[::1]:2")),
    ("clusterName=east-1", lambda c: c.cluster_name, "east-1"),
    ("clusterName=", lambda c: c.cluster_name, "standalone"),
    ("maxMessageSize=1024000", lambda c: c.worker.max_message_size, 1_024_000),
    ("keepAliveIntervalSeconds=15", lambda c: c.worker.keep_alive_interval_ms, 15_000),
    ("managedLedgerMaxEntriesPerLedger=50000", lambda c: c.storage.roll_over_entries, 50_000),
    ("managedLedgerMaxSizePerLedgerMbytes=2048", lambda c: c.storage.roll_over_bytes, 2 << 30),
    ("managedLedgerMaxLedgerRolloverTimeMinutes=240", lambda c: c.storage.roll_over_age_s, 14_400),
    ("managedLedgerMaxLedgerRolloverTimeMinutes=0", lambda c: c.storage.roll_over_age_s, 315_360_000),
    ("allowAutoTopicCreation=false", lambda c: c.storage.auto_create_topics, False),
    ("allowAutoSubscriptionCreation=FALSE", lambda c: c.storage.auto_create_subscriptions, False),
    ("allowAutoTopicCreationType=non-partitioned\ndefaultNumPartitions=4", lambda c: c.storage.auto_create_partitions,
     0),
    ("allowAutoTopicCreationType=partitioned\ndefaultNumPartitions=4", lambda c: c.storage.auto_create_partitions, 4),
    ("allowAutoTopicCreationType=partitioned", lambda c: c.storage.auto_create_partitions, 1),
    ("defaultNumPartitions=4", lambda c: c.storage.auto_create_partitions, 0),
    (f"brokerEntryMetadataInterceptors={INDEX},{TIMESTAMP}", lambda c: c.worker.broker_entry_metadata,
     ("index", "timestamp")),
    ("exposingBrokerEntryMetadataToClientEnabled=true", lambda c: c.worker.expose_broker_entry_metadata, True),
    ("acknowledgmentAtBatchIndexLevelEnabled=false", lambda c: c.storage.batch_index_acknowledgement, False),
    ("maxUnackedMessagesPerConsumer=7", lambda c: c.storage.max_unacked_messages_per_consumer, 7),
    ("maxUnackedMessagesPerSubscription=0", lambda c: c.storage.max_unacked_messages_per_subscription, 0),
    ("maxUnackedMessagesPerBroker=9", lambda c: c.storage.max_unacked_messages_per_broker, 9),
    ("maxUnackedMessagesPerSubscriptionOnBrokerBlocked=0.29", lambda c: c.storage.max_unacked_percent_when_blocked, 29),
    ("maxConcurrentNonPersistentMessagePerConnection=7", lambda c: c.storage.max_live_messages_per_connection, 7),
    ("maxSameAddressProducersPerTopic=7", lambda c: c.storage.max_same_address_producers_per_topic, 7),
    ("maxSameAddressConsumersPerTopic=6", lambda c: c.storage.max_same_address_consumers_per_topic, 6),
    ("backlogQuotaCheckEnabled=false", lambda c: c.storage.backlog_quota_check, False),
    ("backlogQuotaDefaultLimitGB=3\nbacklogQuotaDefaultLimitBytes=7", lambda c: c.storage.backlog_quota_bytes, 3 << 30),
    ("backlogQuotaDefaultLimitGB=-1\nbacklogQuotaDefaultLimitBytes=7", lambda c: c.storage.backlog_quota_bytes, 7),
    ("activeConsumerFailoverConsistentHashing=true", lambda c: c.storage.failover_selection, "hashring"),
    ("activeConsumerFailoverConsistentHashing=false", lambda c: c.storage.failover_selection, "name"),
    ("subscriptionKeySharedEnable=false", lambda c: c.storage.key_shared_enabled, False),
    ("ttlDurationDefaultInSeconds=60", lambda c: c.storage.message_ttl_s, 60),
    ("defaultRetentionTimeInMinutes=5\ndefaultRetentionSizeInMB=-1", retention, (300, -1)),
    ("brokerServiceCompactionThresholdInBytes=7", lambda c: c.storage.compaction_threshold_bytes, 7),
    ("compactionServiceFactoryClassName=org.apache.pulsar.compaction.EventTimeCompactionServiceFactory",
     lambda c: c.storage.compaction_order, "event_time"),
    ("compactionServiceFactoryClassName=org.apache.pulsar.compaction.PulsarCompactionServiceFactory",
     lambda c: c.storage.compaction_order, "position"),
    ("enableReplicatedSubscriptions=false", lambda c: c.storage.replicated_subscriptions, False),
    ("replicatedSubscriptionsSnapshotFrequencyMillis=5000", lambda c: c.storage.replicated_snapshot_interval_s, 5),
    ("replicatedSubscriptionsSnapshotFrequencyMillis=100", lambda c: c.storage.replicated_snapshot_interval_s, 1),
    ("replicatedSubscriptionsSnapshotTimeoutSeconds=7", lambda c: c.storage.replicated_snapshot_timeout_s, 7),
    ("replicatedSubscriptionsSnapshotMaxCachedPerSubscription=3", lambda c: c.storage.replicated_snapshots_max, 3),
    ("brokerServiceCompactionMonitorIntervalInSeconds=30", lambda c: c.nightly.check_interval_s, 30),
    ("brokerServiceCompactionMonitorIntervalInSeconds=2147483647", lambda c: c.nightly.check_interval_s, 2147483647),
    ("topicCompactionRetainNullKey=true", lambda c: c.nightly.retain_keyless, True),
    ("defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=3", retention, (-1, 3 << 20)),
    ("backlogQuotaDefaultLimitBytes=1000", lambda c: c.storage.backlog_quota_bytes, 1_000),
    ("backlogQuotaDefaultLimitSecond=10", lambda c: c.storage.backlog_quota_age_s, 10),
    ("backlogQuotaDefaultRetentionPolicy=consumer_backlog_eviction", lambda c: c.storage.backlog_quota_policy,
     "consumer_backlog_eviction"),
    ("subscriptionKeySharedUseConsistentHashing=false", lambda c: c.storage.key_shared_consistent_hashing, False),
    ("encryptionRequireOnProducer=true", lambda c: c.storage.encryption_required, True),
    ("maxProducersPerTopic=3", lambda c: c.storage.max_producers_per_topic, 3),
    ("maxConsumersPerTopic=3", lambda c: c.storage.max_consumers_per_topic, 3),
    ("maxConsumersPerSubscription=3", lambda c: c.storage.max_consumers_per_subscription, 3),
    ("maxSubscriptionsPerTopic=3", lambda c: c.storage.max_subscriptions_per_topic, 3),
    ("maxTopicsPerNamespace=3", lambda c: c.storage.max_topics_per_namespace, 3),
    ("brokerDeleteInactiveTopicsEnabled=true", lambda c: c.storage.delete_inactive_topics, True),
    ("brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=7", lambda c: c.storage.inactive_topic_s, 7),
    ("brokerDeleteInactiveTopicsMode=delete_when_subscriptions_caught_up", lambda c: c.storage.inactive_topic_mode,
     "delete_when_subscriptions_caught_up"),
    ("subscriptionTypesEnabled=Shared,Failover", lambda c: c.storage.subscription_types, ("Shared", "Failover")),
    ("scalableTopicConsumerSessionGracePeriodSeconds=5", lambda c: c.storage.stream_consumer_grace_s, 5),
    ("subscriptionExpirationTimeMinutes=2", lambda c: c.storage.subscription_expiration_s, 120),
    ("delayedDeliveryEnabled=false", lambda c: c.storage.delayed_delivery, False),
    ("delayedDeliveryTickTimeMillis=50", lambda c: c.storage.delayed_delivery_tick_ms, 50),
    ("isDelayedDeliveryDeliverAtTimeStrict=false", lambda c: c.storage.delayed_delivery_strict, False),
    ("delayedDeliveryMaxDelayInMillis=7", lambda c: c.storage.delayed_delivery_max_ms, 7),
    ("delayedDeliveryMaxDeliveryDelayInMillis=7", lambda c: c.storage.delayed_delivery_max_ms, 7),
    ("brokerDeduplicationEnabled=true", lambda c: c.storage.deduplication, True),
    ("brokerDeduplicationMaxNumberOfProducers=7", lambda c: c.storage.deduplication_names_max, 7),
    ("brokerDeduplicationProducerInactivityTimeoutMinutes=2", lambda c: c.storage.deduplication_inactivity_s, 120),
    ("enableNonPersistentTopics=false", lambda c: c.storage.non_persistent_topics, False),
    ("forceDeleteNamespaceAllowed=true", lambda c: c.storage.force_delete_namespaces, True),
    ("forceDeleteTenantAllowed=true", lambda c: c.storage.force_delete_tenants, True),
    ("journalSyncData=true", lambda c: c.storage.sync, "group"),
    ("transactionCoordinatorEnabled=false", lambda c: c.storage.transactions, False),
    ("transactionCoordinatorEnabled=true", lambda c: c.worker.transactions, True),
    ("maxActiveTransactionsPerCoordinator=7", lambda c: c.storage.max_active_transactions, 7),
    ("brokerServicePort=1\nbrokerServicePort=2", lambda c: c.worker.port, 2),
])
def test_a_setting_of_pulsar_is_followed_in_our_units(written, line, read, expected):
    """A setting with a counterpart here is taken over, without a note."""
    config, notes = load(written(line, "broker.conf"), {}, {})
    assert (read(config), notes) == (expected, [])


_TLS = {"tlsCertificateFilePath": "/a", "tlsKeyFilePath": "/b"}
_TOKENS = {"authenticationEnabled": "true", "tokenSecretKey": "data:;base64,AAAA",
           "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"}
_OPEN_ID = {"authenticationEnabled": "true", "openIDAllowedTokenIssuers": "https://id.example.com/realms/a",
            "openIDAllowedAudiences": "pulsar",
            "authenticationProviders": "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID"}
# Settings that a test writes together: a text for each name whose default or type does not give one.
TEXTS = {
    "allowedTopicPropertyKeysForMetrics": "team,area",
    "advertisedAddress": "pulsar.example.com", "advertisedListeners": "a:pulsar://h:1,b:pulsar://h:2",
    "allowAutoTopicCreationType": "partitioned", "anonymousUserRole": "nobody",
    "authorizationProvider": "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider",
    "backlogQuotaDefaultLimitGB": "3", "backlogQuotaDefaultRetentionPolicy": "producer_exception",
    "bindAddress": "127.0.0.2", "brokerDeleteInactiveTopicsMode": "delete_when_subscriptions_caught_up",
    "brokerEntryMetadataInterceptors": f"{INDEX},{TIMESTAMP}", "brokerServicePort": "6652", "clusterName": "east",
    "compactionServiceFactoryClassName": "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory",
    **{name: text for name, text in _OPEN_ID.items() if name.startswith("openID")}, "openIDRoleClaim": "groups",
    "openIDTokenIssuerTrustCertsFilePath": "/c",
    "journalSyncData": "true", "maxMessageSize": "1048576", "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": "0.25",
    "proxyRoles": "a,b", "replicatedSubscriptionsSnapshotFrequencyMillis": "5000", "replicationStartAt": "earliest",
    "scalableTopicMinSegments": "7",
    **{f"scalableTopicSplit{rate}Threshold": "300000000"
       for rate in ("MsgRateIn", "BytesRateIn", "MsgRateOut", "BytesRateOut")},
    "schemaCompatibilityStrategy": "BACKWARD", "subscriptionTypesEnabled": "Shared,Failover", "superUserRoles": "a,b",
    "tlsCiphers": "A,B", "tlsProtocols": "TLSv1.3", "tokenAuthClaim": "role", "tokenPublicAlg": "ES256",
    "tokenAudience": "us", "tokenAudienceClaim": "aud", "webServicePort": "8081", "webServiceTlsCiphers": "A,B",
    "webServiceTlsProtocols": "TLSv1.3", "tlsTrustCertsFilePath": "/c", "tlsEnabled": "true", **_TLS, **_TOKENS}
# What a setting needs beside it.
NEEDED = {
    "defaultNumPartitions": {"allowAutoTopicCreationType": "partitioned"},
    "authenticationEnabled": _TOKENS, "authenticationProviders": _TOKENS, "authorizationEnabled": _TOKENS,
    **{name: _OPEN_ID for name in TRANSLATED if name.startswith("openID")},
    "webServiceTlsCiphers": {"tlsCiphers": "A,B"}, "webServiceTlsProtocols": {"tlsProtocols": "TLSv1.3"},
    "tokenAudience": {"tokenAudienceClaim": "aud"}, "tokenAudienceClaim": {"tokenAudience": "us"},
    "tlsRequireTrustedClientCertOnConnect": {**_TLS, "tlsTrustCertsFilePath": "/c"}, "tlsTrustCertsFilePath": _TLS,
    "tlsEnabled": _TLS, "tlsCertificateFilePath": _TLS, "tlsKeyFilePath": _TLS,
    "brokerServicePortTls": _TLS, "webServicePortTls": _TLS}
BACK = {"backlogQuotaDefaultLimitGB": "-1"}      # the quota is told under its other name
SECRETS = {"basicAuthConf", "tokenPublicKey", "tokenSecretKey"}
SETTINGS = sorted({*TRANSLATED, *SPECIAL} - SECRETS)


def said(name):
    """Return a text for a setting that differs from its default."""
    if name in TEXTS:
        return TEXTS[name]
    key = TRANSLATED[name][0] if name in TRANSLATED else SPECIAL[name]
    if KEYS[key].type is bool or name in ("tlsRequireTrustedClientCertOnConnect", "webSocketServiceEnabled",
                                          "activeConsumerFailoverConsistentHashing"):
        return str(shown_of({})[name] != "true").lower()
    return "77"


def shown_of(settings, environ=None, **overrides):
    """Return Pulsar's texts of a configuration that a properties file makes."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write("".join(f"{name}={text}\n" for name, text in settings.items()))
        file.flush()
        config = load(file.name, environ or {}, overrides)[0]
    return texts(config, config.storage, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_pulsar_is_told_as_it_was_written(written, name):
    settings = {**NEEDED.get(name, {}), name: said(name)}
    told = shown_of(settings)
    assert told[name] == said(name)
    assert told.keys() == {*TRANSLATED, *SPECIAL}
    # A value from another source is translated back to the same text.
    config = load(written("".join(f"{key}={text}\n" for key, text in settings.items()), "broker.conf"), {}, {})[0]
    assert texts(replace(config, pulsar_texts={}), config.storage, {})[name] == BACK.get(name, said(name))


def test_every_default_is_pulsars_or_on_the_page_of_differences():
    """The page calls a difference that is not on it a bug.  It says both values, and no difference that is none."""
    lines = (Path(__file__).parent / "pulsar_defaults.txt").read_text().splitlines()
    pulsars = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    ours = shown_of({})
    assert pulsars.keys() == ours.keys()
    assert {name: (pulsars[name], ours[name]) for name in ours if pulsars[name] != ours[name]} == told_differences()


def told_differences():
    """Return {setting: (Pulsar's default, ours)} of the table in compatibility.md."""
    part = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text().partition("### Defaults")[2]
    rows = re.findall(r"^\| (`.+?`) \| (.*?) ?\| (.*?) ?\| \S.*\|$", part.partition("\n### ")[0], re.MULTILINE)
    return {name: (theirs.strip("`"), ours.strip("`")) for names, theirs, ours in rows
            for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("settings, told", [
    ({}, {"webServicePortTls": "", "brokerServicePortTls": "", "keepAliveIntervalSeconds": "30", "tlsEnabled": "false",
          "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": "0.16", "managedLedgerMaxSizePerLedgerMbytes": "64",
          "brokerDeduplicationProducerInactivityTimeoutMinutes": "360", "tokenSecretKey": "", "basicAuthConf": "",
          "replicatedSubscriptionsSnapshotFrequencyMillis": "1000", "authenticationProviders": ""}),
    (_TLS | {"webServicePortTls": "8444"}, {"webServicePortTls": "8444", "brokerServicePortTls": ""}),
    (_TLS | {"webServicePortTls": "8444", "webServicePort": ""}, {"webServicePort": ""}),
    (_TOKENS, {"tokenSecretKey": "*****", "authenticationEnabled": "true"}),
    (_OPEN_ID, _OPEN_ID | {"openIDRoleClaim": "sub", "openIDCacheExpirationSeconds": "86400"}),
    ({"basicAuthConf": "data:;base64,AAAA"}, {"basicAuthConf": "*****"}),
    ({"journalSyncData": "false"}, {"journalSyncData": "true"}),      # not followed
    ({"backlogQuotaDefaultLimitGB": "3", "backlogQuotaDefaultLimitBytes": "7"},
     {"backlogQuotaDefaultLimitGB": "3", "backlogQuotaDefaultLimitBytes": str(3 << 30)}),
    ({"delayedDeliveryMaxDeliveryDelayInMillis": "7"}, {"delayedDeliveryMaxDelayInMillis": "7"}),
    ({"managedLedgerMaxSizePerLedgerMbytes": "1G"}, {"managedLedgerMaxSizePerLedgerMbytes": "1G"}),
], ids=str)
def test_texts_are_those_of_what_holds(settings, told):
    shown = shown_of(settings)
    assert {name: shown[name] for name in told} == told


def test_a_stronger_source_is_told_instead_of_the_file():
    written = {"keepAliveIntervalSeconds": "15", "allowAutoTopicCreationType": "partitioned", "tlsProtocols": "TLSv1.3"}
    environ = {"GEMINGA_NETWORK_KEEP_ALIVE_INTERVAL_MS": "2500", "GEMINGA_STORAGE_AUTO_CREATE_PARTITIONS": "0",
               "PULSAR_PREFIX_tlsProtocols": "TLSv1.2"}
    told = shown_of(written, environ)
    assert [told[name] for name in written] == ["2.5", "non-partitioned", "TLSv1.2"]
    assert shown_of({"webServicePort": "8081"}, http_port=8082)["webServicePort"] == "8082"


def test_a_port_of_tls_is_open_only_where_it_is_said(written):
    """A certificate alone opens no TLS port."""
    for said in ("brokerServicePortTls=\n", ""):
        text = f"tlsCertificateFilePath=/a\ntlsKeyFilePath=/b\nwebServicePortTls=8443\n{said}"
        tls = load(written(text, "broker.conf"), {}, {})[0].tls
        assert (tls.port, tls.http_port) == (-1, 8443)


def test_two_settings_from_two_places_make_one_of_ours(written):
    """A variable of the container image completes a setting of the file."""
    path = written("allowAutoTopicCreationType=partitioned\ndefaultNumPartitions=2", "standalone.conf")
    assert load(path, {"PULSAR_PREFIX_defaultNumPartitions": "6"}, {})[0].storage.auto_create_partitions == 6


def test_unsafe_durability_is_not_copied(written):
    """standalone.conf's journalSyncData=false leaves sync at group, with a note; our own key may still choose
    otherwise.
    """
    path = written("journalSyncData=false", "standalone.conf")
    config, notes = load(path, {}, {})
    assert config.storage.sync == "group"
    assert notes == [f"{path}:1: journalSyncData: not followed: answers wait for the disk, unless storage.sync says "
                     "otherwise"]
    assert load(path, {"GEMINGA_STORAGE_SYNC": "none"}, {})[0].storage.sync == "none"


def test_settings_without_effect_are_listed_once(written):
    """One note names all of them; empty settings, and those for Pulsar's own clients, are left out."""
    text = ("zookeeperServers=\nnumIOThreads=8\nloadBalancerEnabled=true\n"
            "bookkeeper_tlsHostnameVerificationEnabled=false\ntlsEnabled=false")
    assert load(written(text, "broker.conf"), {}, {})[1] == [
        "3 settings of Pulsar have no effect here: bookkeeper_tlsHostnameVerificationEnabled, loadBalancerEnabled, "
        "numIOThreads"]


def test_owners_and_workers_agree_about_transactions(written):
    config = load(written("[transactions]\nenabled = false\nmax_active = 7"), {}, {})[0]
    assert (config.storage.transactions, config.worker.transactions, config.storage.max_active_transactions) == (
        False, False, 7)
    default = load(None, {}, {})[0]
    assert (default.storage.transactions, default.worker.transactions, default.storage.max_active_transactions) == (
        True, True, 0)


def test_what_tunes_the_transactions_of_pulsar_has_no_effect(written):
    names = sorted(name for name in known_names() if name.startswith("transaction") and not name.endswith("ClassName")
                   and name != "transactionCoordinatorEnabled")
    assert len(names) == 20
    text = "\n".join(f"{name}=1" for name in names)
    assert load(written(text, "broker.conf"), {}, {})[1] == [
        f"20 settings of Pulsar have no effect here: {', '.join(names)}"]


@pytest.mark.slow
def test_a_demand_that_is_not_met_has_a_line_of_its_own(written):
    for name, (demands, what) in UNMET.items():
        assert name in known_names()
        for value in ("true", "false", "7", "0", "a.Mine", "org.apache.Theirs"):
            path = written(f"{name}={value}", "broker.conf")
            note = (
                f"{path}:1: {name}: not followed: {what}"
                if demands(value)
                else f"1 settings of Pulsar have no effect here: {name}"
            )
            assert load(path, {}, {})[1] == [note], (name, value)
        assert load(written(f"{name}=", "broker.conf"), {}, {})[1] == []
    name = "maxNumPartitionsPerPartitionedTopic"
    assert load(written(f"{name}=0", "broker.conf"), {}, {})[1] == [f"1 settings of Pulsar have no effect here: {name}"]
    path = written(f"{name}=3\nsystemTopicEnabled=false\nsubscriptionRedeliveryTrackerEnabled=true", "broker.conf")
    assert load(path, {}, {})[1] == [
        f"{path}:2: systemTopicEnabled: not followed: policies of topics stay available: they are in the catalogue, "
        "not in system topics",
        f"{path}:1: {name}: not followed: the number is not bounded by this key",
        "1 settings of Pulsar have no effect here: subscriptionRedeliveryTrackerEnabled"]


@pytest.mark.parametrize(("line", "complaint"), [
    ("entryFilterNames=a.Mine", "there are no entry filters: consumers would get messages that a filter holds back"),
    ("brokerInterceptors=a", "plug-ins of Pulsar are not loaded: requests would pass without the interceptors' checks"),
    ("brokerEntryPayloadProcessors=a.B", "plug-ins of Pulsar are not loaded: payloads would be stored as they come"),
    ("enablePersistentTopics=false", "persistent topics cannot be switched off"),
    ("webServiceHaProxyProtocolEnabled=TRUE",
     "PROXY headers are not understood over HTTP: connections would be closed"),
    ("bindAddresses=a:pulsar://0.0.0.0:6650", "one address is supported: set bindAddress and the ports"),
    ("tokenSettingPrefix=mine", "keys under another prefix are not read: set tokenSecretKey or tokenPublicKey"),
    ("sslFactoryPlugin=a.Mine",
     "plug-ins of Pulsar are not loaded: set tlsCertificateFilePath and its siblings to PEM files"),
    ("clientLibraryVersionCheckEnabled=true",
     "versions of clients are not checked: every client of the protocol may connect"),
    ("webServiceTlsProtocols=TLSv1.3", "is the same setting as tlsProtocols here: set both to one value"),
    ("webServiceTlsCiphers=A", "is the same setting as tlsCiphers here: set both to one value"),
])
def test_a_demand_that_others_rely_on_is_refused(written, line, complaint):
    path = written(line, "broker.conf")
    assert refusal(path) == f"{path}:1: {line.partition('=')[0]}: {complaint}"
    assert load(written(f"{line.partition('=')[0]}=", "broker.conf"), {}, {})[1] == []


@pytest.mark.parametrize("line", [
    "enablePersistentTopics=true", "haProxyProtocolEnabled=false", "clientLibraryVersionCheckEnabled=false",
    "sslFactoryPlugin=org.apache.pulsar.common.util.DefaultPulsarSslFactory"])
def test_what_pulsar_comes_with_demands_nothing(written, line):
    assert load(written(line, "broker.conf"), {}, {})[0] == load(None, {}, {})[0]


def test_ciphers_and_protocols_of_https_may_be_said_as_those_of_all():
    given = {"PULSAR_PREFIX_tlsProtocols": "TLSv1.3", "PULSAR_PREFIX_webServiceTlsProtocols": "TLSv1.3"}
    assert load(None, given, {})[0].tls.versions == ("TLSv1.3",)


def test_issuers_are_followed_only_with_their_class(written):
    """Pulsar has a class for tokens of its own keys and one for those of issuers; only listed ones accept tokens."""
    def identity(providers):
        lines = {**_TOKENS, **_OPEN_ID, "authenticationProviders": providers}
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        return load(written(text, "broker.conf"), {}, {})[0].identity
    token, open_id = "a.AuthenticationProviderToken", "a.AuthenticationProviderOpenID"
    assert identity(token).oidc.issuers == () and identity(token).authentication.secret_keys
    assert identity(open_id).oidc.issuers and identity(open_id).authentication.secret_keys == ()
    both = identity(f"{token},{open_id}")
    assert both.oidc.issuers and both.authentication.secret_keys and both.authentication.methods == ("token",)


DEMANDS = [
    ("authenticationEnabled=true", "needs authenticationProviders"),
    ("authorizationEnabled=true", "authorization.enabled needs authentication.methods"),
    ("tlsEnabled=TRUE", "needs tlsCertificateFilePath"),
    ("brokerServicePortTls=6651", "tls.port needs tls.certificate"),
    ("webServicePortTls=8443", "tls.http_port needs tls.certificate"),
    ("tlsRequireTrustedClientCertOnConnect=true", "tls.client_certificates needs tls.trusted"),
    ("tlsEnabledWithKeyStore=true",
     "Java's key stores are not read: set tlsCertificateFilePath and its siblings to PEM files"),
    ("tlsAllowInsecureConnection=true", "client certificates need the signature of a trusted authority"),
]


@pytest.mark.parametrize(("line", "complaint"), DEMANDS)
def test_a_demand_for_security_is_never_passed_over(written, line, complaint):
    """A demand for security without its details is refused by the setting's name: the broker does not start without it.
    """
    path = written("# first\n" + line, "broker.conf")
    name = line.partition("=")[0]
    assert refusal(path) == f"{path}:2: {name}: {complaint}"
    for harmless in ("", "false")[:1 if "Port" in name else 2]:
        assert load(written(f"{name}={harmless}", "broker.conf"), {}, {})[1] == []


def test_a_variable_withdraws_a_demand_of_the_file(written):
    path = written("authenticationEnabled=true\nmaxMessageSize=1024000\ntlsEnabled=true", "broker.conf")
    withdrawn = {"PULSAR_PREFIX_authenticationEnabled": "false", "PULSAR_PREFIX_tlsEnabled": ""}
    assert load(path, withdrawn, {})[0].worker.max_message_size == 1_024_000


@pytest.mark.parametrize(("line", "complaint"), [
    ("brokerServicPort=6650", "brokerServicPort: Pulsar has no such setting, did you mean brokerServicePort?"),
    ("qqqqqqqq=1", "qqqqqqqq: Pulsar has no such setting"),
    ("openIDFallbackDiscoveryMode=KUBERNETES_DISCOVER_TRUSTED_ISSUER",
     "openIDFallbackDiscoveryMode: issuers are not looked up in Kubernetes"),
    ("authenticationEnabled=true\nauthenticationProviders=a.AuthenticationProviderOpenID",
     "authenticationProviders: AuthenticationProviderOpenID needs openIDAllowedTokenIssuers"),
    ("authenticationEnabled=true\nauthenticationProviders=a.Kerberos",
     "authenticationProviders: knows AuthenticationProviderTls, "),
    ("authorizationProvider=a.Mine", "authorizationProvider: knows PulsarAuthorizationProvider only, not 'a.Mine'"),
    ("tlsRequireTrustedClientCertOnConnect=yes",
     "tlsRequireTrustedClientCertOnConnect: must be true or false, not 'yes'"),
    ("brokerServicePort=http", "brokerServicePort: network.port must be a whole number, not 'http'"),
    ("maxMessageSize=0", "maxMessageSize: network.max_message_size must be 1024 to 268435456, not 0"),
    ("keepAliveIntervalSeconds=1x", "keepAliveIntervalSeconds: network.keep_alive_interval_ms must be a time: "),
    ("keepAliveIntervalSeconds=soon", "keepAliveIntervalSeconds: must be a whole number, not 'soon'"),
    ("managedLedgerMaxSizePerLedgerMbytes=4",
     "managedLedgerMaxSizePerLedgerMbytes: storage.roll_over_bytes must be at least 5253121"),
    ("allowAutoTopicCreation=no", "allowAutoTopicCreation: storage.auto_create_topics must be true or false, not 'no'"),
    ("allowAutoTopicCreationType=both",
     "allowAutoTopicCreationType: must be partitioned or non-partitioned, not 'both'"),
    ("allowAutoTopicCreationType=partitioned\ndefaultNumPartitions=0",
     "defaultNumPartitions: must be at least 1, not 0"),
    ("brokerEntryMetadataInterceptors=com.example.Mine", "brokerEntryMetadataInterceptors: knows "),
    ("advertisedListeners=a:ssl://h:6651",
     "advertisedListeners: network.advertised_listeners must be name:pulsar://host:port"),
])
def test_a_wrong_setting_of_pulsar_is_refused_by_its_name(written, line, complaint):
    """The line has the file, the line's number and the name that the author wrote."""
    path = written(line, "broker.conf")
    assert re.match(rf"{path}:\d: {re.escape(complaint)}", refusal(path))


@pytest.mark.parametrize(("name", "text", "port"), [
    ("broker.conf", "brokerServicePort=1", 1),
    ("my.properties", "brokerServicePort=1", 1),
    ("settings", "bindAddress=0.0.0.0\nbrokerServicePort=1", 1),
    ("settings", "[network]\nport = 1", 1),
])
def test_the_kind_of_file_is_told_by_name_or_content(written, name, text, port):
    """.conf and .properties are Pulsar's, .toml is ours, anything else is ours if it is TOML."""
    assert load(written(text, name), {}, {})[0].worker.port == port


@pytest.mark.parametrize(("text", "expected"), [
    ("a=1\n\n# c\n! d\nb = 2 ", {"a": ("1", 1), "b": ("2", 5)}),
    ("a=1,\\\n   2,\\\n\t3\nb=2", {"a": ("1,2,3", 1), "b": ("2", 4)}),
    ("a=x\\\\\nb=2", {"a": ("x\\", 1), "b": ("2", 2)}),
    ("a\\:b=c\\=d\\u0041", {"a:b": ("c=dA", 1)}),
    ("a = b = c", {"a": ("b = c", 1)}),
    ("a:{\"k\":\"v\"}", {"a": ('{"k":"v"}', 1)}),
    ("a\r\nb=1\r\n", {"a": ("", 1), "b": ("1", 2)}),
    ("a=1\\", {"a": ("1", 1)}),
])
def test_a_properties_file_is_read_as_java_reads_it(text, expected):
    """Separators, comments, continued lines, escapes; each value knows its line."""
    assert parse(text, "f") == {name: (value, f"f:{line}: {name}") for name, (value, line) in expected.items()}


@pytest.mark.parametrize("text, complaint", [
    ("[storage]\nscale_segments_max = 4\nscale_segments_min = 5\n",
     "storage.scale_segments_max must be at least 5, as storage.scale_segments_min is 5, not 4"),
    ("[storage]\nscale_merge_bytes_in = 50_000_000\n",
     "storage.scale_merge_bytes_in must be at most 49999999, as storage.scale_split_bytes_in is 50000000, "
     "not 50000000"),
    ("[storage]\nscale_split_messages_out = 5_000\n",
     "storage.scale_split_messages_out must be at least 5001, as storage.scale_merge_messages_out is 5000, not 5000"),
])
def test_what_is_merged_is_not_split_at_once(written, text, complaint):
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(written(text), {}, {})


def test_the_settings_of_pulsar_5_are_known(written):
    """A broker.conf of 5.0.1 is taken: what has no effect is said in one line, and a plug-in is refused."""
    text = "scalableTopicSplitMsgRateInThreshold=20000.0\ntransactionCoordinatorScalableTopicsParallelism=16\n"
    config, notes = load(written(text, "broker.conf"), {}, {})[:2]
    assert config.storage.scale_split_messages_in == 20_000
    assert any("transactionCoordinatorScalableTopicsParallelism" in note for note in notes)
    with pytest.raises(ConfigError, match="plug-ins of Pulsar are not loaded"):
        load(written("tlsFactoryClassName=com.example.Tls\n", "broker.conf"), {}, {})


def test_the_list_of_pulsars_names_is_a_list_of_names():
    """The list is sorted, has no name twice, and covers broker, bookie and offloader settings."""
    lines = (
        (Path(__file__).parents[2] / "supervisor" / "configuration" / "pulsar_keys.txt").read_text().splitlines()[1:]
    )
    assert lines == sorted(set(lines))
    assert all(re.fullmatch(r"[A-Za-z]\w+", line) for line in lines)
    assert known_names() == set(lines)
    assert known_names() >= {"brokerServicePort", "journalSyncData", "s3ManagedLedgerOffloadBucket", "tokenSecretKey"}


# -- cores --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("files", "expected"), [
    ({}, 8),
    ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8),
    ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
      "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 2),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "6400000 100000\n"}, 8),
    ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 8),
])
def test_cores_are_those_this_process_may_use(tmp_path, monkeypatch, files, expected):
    """The number follows affinity and the tightest quota of the control groups, either version, rounded up, at least
    one.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert core_count(tmp_path) == expected


def test_a_number_of_processes_that_is_set_is_kept():
    """Only 0 means one per core."""
    config, _ = load(None, {"GEMINGA_WORKERS": "3"}, {"owners": 1})
    assert (config.workers, config.owners) == (3, 1)
    assert isinstance(config, Config)


def test_credentials_are_where_the_service_manager_has_them(written):
    """Credentials lie in CREDENTIALS_DIRECTORY if that is set, else in the unit's folder below /run/credentials."""
    path = written('tls = {certificate = "/c", key = "credential:tls.key"}\n'
                   'authentication = {secret_keys = ["credential:a", "/b", "data:,c"]}\n')
    found, _ = load(path, {"CREDENTIALS_DIRECTORY": "/run/c"}, {})
    assert found.tls.key == "/run/c/tls.key" and found.authentication.secret_keys == ("/run/c/a", "/b", "data:,c")
    assert all(isinstance(key, Secret) for key in found.authentication.secret_keys)
    assert load(path, {}, {})[0].tls.key == "/run/credentials/geminga.service/tls.key"


@pytest.mark.parametrize("name", ["", "../token.key", "/etc/token.key", ".", ".."])
def test_a_credential_has_a_plain_name(written, name):
    line = refusal(written(f'[authentication]\nusers = "credential:{name}"\n'))
    assert "authentication.users must be credential:NAME" in line
