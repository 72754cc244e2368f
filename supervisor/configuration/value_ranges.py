"""The values that keys of the configuration accept, beyond their types.

    RANGES    first and last value of each number
    FORMS     pattern that a text, or each of a list of texts, matches

The bounds and choices of a policy's values hold for the keys with its defaults. Any other key that is added to an
options' dataclass gets its row here.
"""
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.catalogue.policy_values import COMPACTION_ORDERS
from geminga.storage.runtime.log import LEVELS

MIB = 1 << 20
_DEFAULTS = {f"storage.{part.key}": part for policy in TABLE.values() for part in policy.parts if part.key}

# Bounds without another cause are arbitrary: far beyond use, and small enough to catch a wrong unit.
RANGES = {
    **{key: part.key_range for key, part in _DEFAULTS.items() if part.type.name in ("number", "decimal")},
    "http_port": (-1, 65_535),
    "workers": (0, 1_024),
    "owners": (0, 1_024),
    "drain_s": (0, 24 * 3600),
    "http.web_processes": (0, 64),
    "storage.sync_interval_ms": (1, 3_600_000),
    "storage.roll_over_bytes": (MIB, 1 << 40),
    "storage.roll_over_entries": (1, (1 << 31) - 1),
    "storage.roll_over_age_s": (1, 10 * 365 * 24 * 3600),
    "storage.keep_acknowledged_s": (0, 24 * 3600),
    "storage.journal_segment_bytes": (MIB, 4 << 30),
    "storage.journal_segments_max": (2, 1_024),          # one is written while the others are checkpointed
    "storage.pass_bytes_max": (64 << 10, 1 << 30),
    "storage.disk_refuse_below_bytes": (0, 1 << 50),
    "storage.disk_accept_above_bytes": (0, 1 << 50),
    "storage.disk_reserve_bytes": (0, 1 << 40),
    "storage.deduplication_names_max": (1, (1 << 31) - 1),
    "storage.deduplication_inactivity_s": (1, 10 * 365 * 24 * 3600),
    "storage.discovery_grace_s": (0, 24 * 3600),
    "storage.stream_consumer_grace_s": (0, 24 * 3600),
    "storage.replicated_snapshot_interval_s": (1, 24 * 3600),
    "storage.replicated_snapshot_timeout_s": (1, 24 * 3600),
    "storage.replicated_snapshots_max": (1, 1_000),      # each is looked at when one more comes
    "storage.max_unacked_messages_per_broker": (0, (1 << 31) - 1),
    "storage.max_unacked_percent_when_blocked": (1, 100),
    "storage.max_live_messages_per_connection": (0, (1 << 31) - 1),
    "storage.max_same_address_producers_per_topic": (0, (1 << 31) - 1),
    "storage.max_same_address_consumers_per_topic": (0, (1 << 31) - 1),
    "transactions.max_active": (0, (1 << 31) - 1),
    "storage.max_tenants": (0, (1 << 31) - 1),
    "storage.max_namespaces_per_tenant": (0, (1 << 31) - 1),
    "storage.scale_interval_s": (1, 24 * 3600),
    "storage.stats_window_s": (1, 3_600),
    "storage.publish_messages_per_broker": (-1, (1 << 31) - 1),
    "storage.publish_bytes_per_broker": (-1, 1 << 50),
    "storage.dispatch_messages_per_broker": (-1, (1 << 31) - 1),
    "storage.dispatch_bytes_per_broker": (-1, 1 << 50),
    "metrics.topics_max": (0, 1_000_000),
    "alarms.memory_percent": (1, 100),
    "alarms.memory_refuse_percent": (0, 100),
    "alarms.transaction_s": (0, 365 * 24 * 3600),
    "alarms.export_s": (0, 365 * 24 * 3600),
    "alarms.replication_s": (0, 365 * 24 * 3600),
    "nightly.in_process_bytes": (0, 1 << 40),
    "nightly.cores": (0, 1_024),
    "nightly.memory_bytes": (256 << 20, 1 << 44),
    "nightly.niceness": (0, 19),
    "nightly.check_interval_s": (1, (1 << 31) - 1),      # the largest is Pulsar's way to say never
    "console.session_s": (60, 30 * 24 * 3600),
    "network.port": (-1, 65_535),
    "network.max_connections": (0, (1 << 31) - 1),
    "network.max_connections_per_address": (0, (1 << 31) - 1),
    "network.max_message_size": (1_024, 256 << 20),      # a worker holds a whole frame in memory
    "network.keep_alive_interval_ms": (100, 3_600_000),
    "network.write_buffer_bytes": (64 << 10, 1 << 30),
    "network.in_flight_bytes": (MIB, 1 << 34),
    "tls.port": (-1, 65_535),
    "tls.http_port": (-1, 65_535),
    "authentication.refresh_interval_s": (1, 24 * 3600),
    "authentication.clock_skew_s": (0, 24 * 3600),
    "authentication.oidc.clock_skew_s": (0, 24 * 3600),
    "authentication.oidc.refresh_s": (1, 365 * 24 * 3600),
    "authentication.oidc.expiry_s": (1, 365 * 24 * 3600),
    "authentication.oidc.unknown_key_interval_s": (1, 24 * 3600),
    "authentication.oidc.connect_timeout_ms": (1, 60_000),
    "authentication.oidc.read_timeout_ms": (1, 60_000),
}

_HOST = r"[^\s/,]+"
_LINE = r"[^\n]*", "one line"
# Key: (the pattern, how an error describes it).
FORMS = {
    **{key: ("|".join(part.key_choices), ", ".join(part.key_choices))
       for key, part in _DEFAULTS.items() if part.key_choices},
    "affinity": ("none|spread", "none or spread"),
    "console.url": (r"(https?://[^\s/?#@]+)?", "https://HOST or https://HOST:PORT"),
    "cluster_name": (r"[-=:.\w]+", "letters, digits and -=:._"),
    "http_bind": (rf"({_HOST})?", "an address"),
    "storage.compaction_order": ("|".join(COMPACTION_ORDERS), " or ".join(COMPACTION_ORDERS)),
    "storage.failover_selection": (r"name|join-order|hashring", "name, join-order or hashring"),
    "storage.replication_start_at": ("latest|earliest", "latest or earliest"),
    "storage.sync": (r"group|interval|none", "group, interval or none"),
    "nightly.until": (r"(([01]\d|2[0-3]):[0-5]\d)?", "a time of day, HH:MM"),
    "nightly.engine": ("auto|here|spark", "auto, here or spark"),
    "nightly.master": (r"(local\[(\*|\d+)\]|(spark|k8s)://\S+|yarn)?",
                       "local[N], spark://HOST:PORT or another master of Spark"),
    "nightly.tables.url": (r"(/[^\0\n]*|[a-z][-+.a-z0-9]*:/\S*)?", "a path that begins with /, or a URL"),
    "nightly.tables.format": ("parquet|iceberg", "parquet or iceberg"),
    "nightly.tables.packages": (r"[^\s:,]+:[^\s:,]+:[^\s:,]+", "GROUP:ARTIFACT:VERSION"),
    "nightly.tables.settings_file": (r"(/[^\0\n]*)?", "a path that begins with /"),
    "http.hosts": (r"[-.\w]+|\[?[0-9A-Fa-f:.]+\]?", "a host name or address, without scheme and port"),
    "http.backup_folders": (r"[^\0\n]+", "a path"),
    "standby.of": (r"(pulsar(\+ssl)?://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+)(:\d{1,5})?)?",
                   "pulsar://HOST or pulsar+ssl://HOST"),
    "standby.auth_params": _LINE, "standby.trusted": _LINE,
    "standby.hosts": (r"\[?[0-9A-Fa-f:.]+\]?", "an address"),
    "network.bind": (_HOST, "an address"),
    "network.advertised_address": (rf"({_HOST})?", "a host name or address, without scheme"),
    "network.advertised_listeners": (r"[-.\w]+:pulsar(\+ssl)?://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}",
                                     "name:pulsar://host:port or name:pulsar+ssl://host:port"),
    "metrics.topic_properties": (r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", "names that Prometheus takes for labels"),
    "network.broker_entry_metadata": (r"timestamp|index", "timestamp or index"),
    "log.level": ("|".join(LEVELS), ", ".join(LEVELS)),
    "log.format": ("text|json", "text or json"),
    "tls.client_certificates": ("none|wanted|required", "none, wanted or required"),
    "tls.versions": (r"TLSv1\.[23]", "TLSv1.2 or TLSv1.3"),
    "authentication.methods": ("token|basic|tls", "token, basic or tls"),
    "tls.certificate": _LINE, "tls.key": _LINE, "tls.trusted": _LINE, "tls.ciphers": _LINE,
    "authentication.role_claim": (r"[^\n]+", "the name of a claim"),
    "authentication.audience_claim": _LINE, "authentication.audience": _LINE, "authentication.anonymous_role": _LINE,
    "authentication.secret_keys": _LINE, "authentication.public_keys": _LINE, "authentication.users": _LINE,
    "authentication.oidc.issuers": (r"https?://[^\s?#@,]+", "the URL of an issuer, as its tokens name it"),
    "authentication.oidc.audiences": (r"[^\n]+", "one line"), "authentication.oidc.trusted": _LINE,
    "authentication.oidc.groups_claim": _LINE, "authentication.oidc.console_client_id": _LINE,
    "authentication.oidc.console_scope": (r"[^\n]+", "one line"),
    "authentication.oidc.role_claim": (r"[^\n]+", "the name of a claim"),
    "authorization.super_user_roles": _LINE, "authorization.proxy_roles": _LINE,
    "authorization.replicator_roles": _LINE,
    "authentication.public_key_algorithm": (r"[RPE]S(256|384|512)", "RS256, ES256 or one of their kind"),
}
