"""Metrics of the broker and its processes: names, help texts, and where each value comes from.

Names are Pulsar's, but for those that begin with `geminga_`. The counters are those of storage/runtime/counters.py,
which all processes share; collector.py reads them.
"""
import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from prometheus_client.core import Metric

from geminga.supervisor.tasks.job_socket import NightReport
from geminga.supervisor.tasks.night_progress import Progress


def metric(kind: Callable[..., Metric], name: str, text: str, labels: Sequence[str],
           values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    """Return a metric of prometheus_client.  values: (a text for each of the labels, the value)."""
    made = kind(name, text, labels=labels)
    for texts, value in values:
        made.add_metric(texts, value)      # type: ignore[attr-defined]  # each family has it, and their base does not
    return made


def buckets(counts: Iterable[int], bounds: Iterable[float]) -> list[tuple[str, int]]:
    """Return a histogram's buckets in Prometheus' cumulative form: (upper bound, count of all values up to it)."""
    texts = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return list(zip(texts, itertools.accumulate(counts), strict=True))


class BrokerMetric(NamedTuple):
    """A metric with Pulsar's name whose value is one of the shared counters, summed over all processes."""

    name: str
    text: str
    is_gauge: bool = False


# Counter -> metric of Pulsar's.
BROKER = {
    "messages_in": BrokerMetric("pulsar_broker_in_messages", "Messages published"),
    "lookups": BrokerMetric("pulsar_broker_lookup_answers", "Lookups answered"),
    "lookups_failed": BrokerMetric(
        "pulsar_broker_lookup_failures",
        "Lookups refused: the namespace or listener does not exist, or a right is missing"),
    "lookups_waiting": BrokerMetric(
        "pulsar_broker_lookup_pending_requests", "Lookups that wait for an owner", is_gauge=True),
    "loads_failed": BrokerMetric("topic_load_failed", "Topics that could not be opened"),
    "commands_waiting": BrokerMetric(
        "pulsar_broker_topic_load_pending_requests",
        "Commands that wait for an owner to start, or for their turn to be sent to it", is_gauge=True),
    "connections_throttled": BrokerMetric(
        "pulsar_broker_throttled_connections", "Connections that are not read because of a publish rate",
        is_gauge=True),
    "snapshots_pending": BrokerMetric(
        "pulsar_replicated_subscriptions_pending_snapshots",
        "Snapshots of positions for replicated subscriptions that other clusters have yet to answer", is_gauge=True),
    "snapshots_timed_out": BrokerMetric(
        "pulsar_replicated_subscriptions_timedout_snapshots", "Snapshots that other clusters did not answer in time"),
    "schemas_compatible": BrokerMetric("pulsar_schema_compatible", "Schemas compatible with the versions before them"),
    "schemas_incompatible": BrokerMetric(
        "pulsar_schema_incompatible", "Schemas refused as incompatible with the versions before them"),
    "schemas_refused": BrokerMetric(
        "pulsar_schema_put_ops_failed", "Schemas that were not added: invalid, incompatible, or against a policy"),
}
# Counter -> (name, HELP text) of a gauge of connections, which also has the labels `broker` and `metric`.
CONNECTIONS = {
    "handshakes": ("pulsar_connection_create_success_count", "Connections whose CONNECT was accepted"),
    "handshakes_refused": ("pulsar_connection_create_fail_count", "Connections whose CONNECT was refused"),
    "connections_opened": ("pulsar_connection_created_total_count", "Connections opened since the start"),
    "connections_closed": ("pulsar_connection_closed_total_count", "Connections closed since the start"),
}
HEALTH = {0: -1, 1: 1, 2: 0}      # the counter's value -> Pulsar's
# Counter -> HELP text of a metric of Geminga's, which has a value for each process.
OWN = {
    "entries_dropped": "Entries of non-persistent topics dropped because a subscription had no permits for them",
    "deliveries_dropped": "Entries of non-persistent topics dropped because a client read too slowly",
    "dead_letters": "Entries that became dead letters: delivered too often, or expired",
    "entries_parked": "Entries put into quarantine because too many consumers ended while they held them",
    "acks_of_damaged": "Messages that clients acknowledged because they could not read them",
    "acks_undecrypted": "Messages that clients acknowledged because they had no key to decrypt them",
    "acks_ignored": "Cumulative acknowledgements ignored because the subscription is Shared or Key_Shared",
    "messages_filtered": "Messages that the filters of subscriptions kept from consumers",
    "damage_found": "Damage found in files; the log has a line for each",
    "entries_lost": "Entries lost because their index rows were damaged",
    "entries_duplicate": "Entries not stored again because deduplication knew them",
    "deduplication_names_evicted": "Producers that deduplication forgot because there were too many",
    "entries_in": "Entries published", "entries_out": "Entries delivered to consumers", "syncs": "Syncs of the journal",
    "starts": "Starts of this process; every start after the first replaced a process that had ended",
    "syncs_failed": "Times that the owner ended because its disk failed",
    "passes": "Passes of the owner's loop", "commands": "Commands other than SEND, ACK and FLOW",
    "scheduled_published": "Messages that schedules have published",
    "scheduled_missed": "Planned times of schedules that were dropped, because they were missed",
    "web_sockets_opened": "Connections that asked for a WebSocket",
    "replicated_messages": "Messages sent to other clusters, again after a failure too",
    "replicated_bytes": "Bytes of messages sent to other clusters",
    "replication_filtered": "Entries not sent to a cluster, because they came from one or name others",
    "replication_failures": "Times that messages of a partition stopped going to a cluster",
    "dead_letters_moved": "Messages published to dead letter topics by the broker",
    "dead_letter_failures": "Times that dead letters of a subscription could not be moved",
    "tls_connections": "Connections to a port with TLS",
    "tls_handshakes": "TLS handshakes that succeeded",
    "tls_handshakes_failed": "TLS handshakes that the client or the broker refused",
    "tls_reloads": "Changed certificate files taken into use",
    "tls_reloads_failed": "Changed certificate files that could not be used",
    "connections_refused": "Connections refused because as many as may be were open",
    "protocol_errors": "Connections closed because the client broke the protocol",
    "sends_refused": "SENDs that the worker refused",
    "commands_refused": "Commands refused because a right is missing",
}
# Counter of owners -> the reason why its entries were acknowledged for subscriptions.
EXPIRED = {"entries_expired": "ttl", "entries_evicted": "backlog_quota"}
OWNER_GAUGES = {
    "publishing_refused": "1 while publishing is refused because there is no room on the disk",
    "disk_free_bytes": "Free bytes of the file system with the data folder",
    "is_waiting": "1 while the disk keeps the owner from starting",
    "kept_topics": "Deleted topics that can be taken back",
    "kept_backlogs": "Cleared backlogs that can be taken back",
    "kept_bytes": "Bytes of deleted topics and cleared backlogs that can be taken back",
    "schedules": "Schedules that publish to the owner's topics",
    "schedules_waiting": "Schedules of which a message could not be published yet",
}
WATCHES = "layout_watches", "namespace_watches"      # counters of workers; see scalable_families.py
WORKER_GAUGES = {"in_flight_bytes": "Bytes of entries sent to owners that these have not taken in"}
WEB_GAUGES = {"web_sockets": "WebSockets that are open"}
REPLICATOR_GAUGES = {
    "replication_lanes": "Partitions and clusters to which their messages are to go, as pairs",
    "replication_lanes_connected": "Those of them whose messages can go now",
    "replication_unanswered": "Entries sent to other clusters that have no receipt yet",
    "dead_letter_lanes": "Subscriptions whose dead letters are being moved",
    "replication_links_down": "Other clusters to which there is no connection",
}
# Histogram -> (Pulsar's name of the summary, HELP text).
SUMMARIES = {
    "publish": ("pulsar_broker_publish_latency",
                "Milliseconds from an entry's arrival at its owner until it is on disk"),
    "snapshot": ("pulsar_replicated_subscriptions_snapshot_ms",
                 "Milliseconds until all other clusters have answered a snapshot for replicated subscriptions"),
    "lookup": ("pulsar_broker_lookup", "Milliseconds until a lookup is answered"),
    "load": ("pulsar_topic_load_times", "Milliseconds to open or create a stored topic"),
    "schema_get": ("pulsar_schema_get_ops_latency", "Milliseconds to read a schema"),
    "schema_put": ("pulsar_schema_put_ops_latency",
                   "Milliseconds to check and add a schema, without the sync of the catalogue"),
    "schema_delete": ("pulsar_schema_del_ops_latency",
                      "Milliseconds to delete a schema, without the sync of the catalogue"),
}
# Histogram -> (role of the processes that have it, HELP text).
HISTOGRAMS = {
    "publish": ("owner", "Seconds from an entry's arrival at its owner until it is on disk"),
    "sync": ("owner", "Seconds of a sync of the journal"),
    "dispatch": ("owner", "Seconds that a pass spends on dispatch, if it dispatches anything"),
    "acknowledge": ("owner", "Seconds that a pass spends on acknowledgements, if there are any"),
    "answer": ("worker", "Seconds from sending an envelope of entries to an owner until the owner has taken it in"),
}
# Columns of topics whose sums are metrics of the broker: name behind pulsar_ -> (column, HELP text).
SUMS = {
    "broker_subscriptions_count": ("subscriptions", "Subscriptions of all open topics"),
    "broker_producers_count": ("producers", "Connected producers"),
    "broker_consumers_count": ("consumers", "Connected consumers"),
    "broker_rate_in": ("rate_in", "Messages published per second"),
    "broker_rate_out": ("rate_out", "Messages delivered to consumers per second"),
    "broker_throughput_in": ("throughput_in", "Bytes published per second"),
    "broker_throughput_out": ("throughput_out", "Bytes delivered to consumers per second"),
    "broker_msg_backlog": ("backlog", "Unacknowledged entries of all subscriptions of open topics"),
    "broker_storage_size": ("storage_bytes", "Bytes of stored entries of open topics"),
    "broker_storage_logical_size": ("storage_bytes", "Bytes of stored entries of open topics, counting a single copy"),
    "broker_storage_write_rate": ("write_rate", "Entries stored per second"),
    "broker_storage_read_rate": ("read_rate", "Entries read per second"),
    "ml_cache_hits_rate": ("read_rate", "Entries read per second: all of them come from mapped files"),
}
# Names behind pulsar_ whose value is always 0 -> the reason.
NEVER = {"ml_cache_misses_rate": "entries are read from mapped files",
         "broker_storage_read_cache_misses_rate": "entries are read from mapped files"}
NEVER_COUNTED = {"broker_lookup_redirects": "there is one broker"}
# Quantiles of the histogram `load` -> names behind pulsar_topic_load_.
LOAD_QUANTILES = {"time_median_ms": 0.5, "time_75percentile_ms": 0.75, "time_95percentile_ms": 0.95,
                  "time_99_percentile_ms": 0.99, "time_99_9_percentile_ms": 0.999, "time_99_99_percentile_ms": 0.9999}

# Metrics of a night while it runs: name behind geminga_nightly_ -> (HELP text, function of its progress).
RUNNING_NIGHT: dict[str, tuple[str, Callable[[Progress], float | None]]] = {
    "progress_ratio": ("Messages read and written by the night that runs, of all that it reads and writes, from 0 to 1",
                       attrgetter("ratio")),
    "remaining_seconds": ("Seconds that the night that runs is expected to take yet; none while they are not known",
                          attrgetter("seconds_left")),
}
# Metrics of the last nightly job: name behind geminga_nightly_ -> (HELP text, function of its report).
NIGHT: dict[str, tuple[str, Callable[[NightReport], float]]] = {
    "last_success_timestamp_seconds": ("Time when a night last succeeded, in seconds since 1970; 0 if none has",
                                       lambda night: night["last_success_ms"] / 1000),
    "last_run_timestamp_seconds": ("Time when a night last ended, in seconds since 1970",
                                   lambda night: night["ended_ms"] / 1000),
    "last_run_seconds": ("Duration of the last night in seconds", lambda night: night["seconds"]),
    "last_status": ("0 if the last night succeeded, 1 if a part of it failed",
                    lambda night: int(night["status"] != "success")),
    "last_compacted": ("Partitions that the last night compacted", lambda night: night["totals"]["compacted"]),
    "last_messages_in": ("Messages of the views and new entries that the last night compacted",
                         lambda night: night["totals"]["messages_in"]),
    "last_messages_out": ("Messages that the last night's compactions kept",
                          lambda night: night["totals"]["messages_out"]),
    "last_bytes_in": ("Bytes of the views and new entries that the last night compacted",
                      lambda night: night["totals"]["bytes_in"]),
    "last_bytes_out": ("Bytes that the last night's compactions kept", lambda night: night["totals"]["bytes_out"]),
    "last_given_back_bytes": ("Bytes that the last night freed by retention, expiry and deletions",
                              lambda night: night["totals"]["given_back"]),
    "last_exported": ("Messages that the last night exported to tables",
                      lambda night: night["totals"].get("exported", 0)),      # a report of an older program has none
    "last_rejected": ("Messages that the last night found no row for in a table",
                      lambda night: night["totals"].get("rejected", 0)),
    "last_tables_failed": ("Tables that the last night could not write",
                           lambda night: night["totals"].get("tables_failed", 0)),
    "last_expired": ("Messages that the last night expired", lambda night: night["totals"]["expired"]),
}
