"""Metrics of topics, subscriptions and compactions: names, help texts, and the columns that give their values.

Names and labels are Pulsar's, except those that begin with `geminga_`. Owners deliver the columns of numbers
(storage/statistics/columns.py); series.py writes the lines.
"""
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from geminga.proto.job_properties import PRIORITIES
from geminga.supervisor.admin.resources.compaction import Record

Columns = dict[str, NDArray[Any]]                    # column name -> one number for each topic or subscription
Values = Callable[[Columns, float], NDArray[Any]]      # function of (columns, time in ms)


class Family(NamedTuple):
    """One metric, or the series of one metric that share the same further `labels`.

    Families of one metric are adjacent in the table.
    """

    name: str
    text: str                     # text of the HELP line; empty for all but the first family of a name
    values: str | Values          # a column, or what is computed of columns
    type: str = "gauge"
    sums: bool = True             # whether topics without series of their own are summed up; else they have none
    labels: str = ""              # further ones, behind those of the topic or subscription
    prefix: str = ""              # of the names of labels
    only: str = ""                # a column: where it is 0 there is no series; "": there is one everywhere


def _ratio(above: str, below: str) -> Values:
    return lambda columns, now_ms: columns[above] / np.maximum(columns[below], 1e-9) * (columns[below] > 0)


def _age_s(name: str) -> Values:
    def age(columns: Columns, now_ms: float) -> NDArray[Any]:
        since = columns[name]
        return np.where(since > 0, (now_ms - since) // 1000, -1)
    return age


def _nothing(columns: Columns, now_ms: float) -> NDArray[Any]:
    return np.zeros(len(next(iter(columns.values()))))


def _sum(*names: str) -> Values:
    def added(columns: Columns, now_ms: float) -> NDArray[Any]:
        return np.asarray(sum(columns[name] for name in names))
    return added


def _less(whole: str, part: str) -> Values:
    return lambda columns, now_ms: columns[whole] - columns[part]


_LATENCIES = ("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000", "overflow")
_SIZES = ("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb", "le_overflow")


def _buckets(name: str, prefix: str, text: str, buckets: tuple[str, ...], total: str) -> list[Family]:
    """Return families for a histogram over the last window: one for each bucket, one for its count, one for its sum.

    prefix: of the buckets' columns. total: the column of the sum.
    """
    count = _sum(*(f"{prefix}_{bucket}" for bucket in buckets))
    return [*(Family(f"{name}_{bucket}", f"{text} (last window)", f"{prefix}_{bucket}") for bucket in buckets),
            Family(f"{name}_count", f"{text}: number of entries (last window)", count),
            Family(f"{name}_sum", f"{text}: sum (last window)", total)]


# -- topics

TOPIC_FAMILIES = [
    Family("pulsar_subscriptions_count", "Subscriptions of the topic", "subscriptions"),
    Family("pulsar_producers_count", "Connected producers", "producers"),
    Family("pulsar_consumers_count", "Connected consumers", "consumers"),
    Family("pulsar_rate_in", "Messages published per second", "rate_in"),
    Family("pulsar_rate_out", "Messages delivered to consumers per second", "rate_out"),
    Family("pulsar_throughput_in", "Bytes published per second", "throughput_in"),
    Family("pulsar_throughput_out", "Bytes delivered to consumers per second", "throughput_out"),
    Family("pulsar_average_msg_size", "Average size of a published message in bytes",
           _ratio("throughput_in", "rate_in")),
    Family("pulsar_msg_backlog", "Unacknowledged entries, summed over all subscriptions", "backlog"),
    Family("pulsar_storage_size", "Bytes of stored entries", "storage_bytes"),
    Family("pulsar_storage_logical_size", "Bytes of stored entries, counting a single copy", "storage_bytes"),
    Family("pulsar_storage_backlog_size", "Bytes stored from the oldest unacknowledged entry on", "backlog_bytes"),
    Family("pulsar_storage_backlog_age_seconds", "Age of the oldest unacknowledged entry; -1 without a backlog",
           _age_s("backlog_since_ms"), sums=False),
    Family("pulsar_storage_backlog_quota_limit", "Backlog quota in bytes; -1 if there is none", "quota_bytes",
           sums=False),
    Family("pulsar_storage_backlog_quota_limit_time", "Backlog quota in seconds; -1 if there is none", "quota_age_s",
           sums=False),
    Family("pulsar_storage_backlog_quota_exceeded_evictions_total",
           "Times that a backlog quota acknowledged the oldest messages of subscriptions", "evicted_by_size",
           "counter", labels=',quota_type="size"'),
    Family("pulsar_storage_backlog_quota_exceeded_evictions_total", "", "evicted_by_age", "counter",
           labels=',quota_type="time"'),
    Family("pulsar_publish_rate_limit_times", "Times that a publish rate throttled the topic", "publish_limited"),
    Family("pulsar_storage_write_rate", "Entries stored per second", "write_rate"),
    Family("pulsar_storage_read_rate", "Entries read per second", "read_rate"),
    Family("pulsar_in_messages_total", "Messages published since the topic was opened", "messages_in", "counter"),
    Family("pulsar_in_bytes_total", "Bytes published since the topic was opened", "bytes_in", "counter"),
    Family("geminga_delayed_entries",
           "Entries whose delivery time has not come, whichever subscriptions they wait for", "waiting"),
    Family("pulsar_delayed_message_index_size_bytes", "Memory of the delayed index in bytes", "delayed_memory"),
    Family("pulsar_delayed_message_index_loaded",
           "Delayed entries whose index rows are in memory: recent ones, and those that fall due soon",
           "delayed_loaded"),
    Family("pulsar_delayed_message_index_bucket_total", "Files of the delayed index, one for each window of time",
           "delayed_windows"),
    Family("pulsar_delayed_message_index_bucket_snapshot_size_bytes", "Bytes of the delayed index's files",
           "delayed_disk"),
    *(Family("pulsar_delayed_message_index_bucket_op_count",
             "Files of the delayed index created, loaded and deleted since the topic was opened", column,
             labels=f',state="{state}",type="{type_}"')
      for type_, state, column in (
          ("create", "all", "windows_created"), ("create", "succeed", "windows_created"),
          ("load", "all", _sum("windows_read", "windows_unreadable")), ("load", "succeed", "windows_read"),
          ("load", "failed", "windows_unreadable"),
          ("delete", "all", "windows_removed"), ("delete", "succeed", "windows_removed"))),
    Family("pulsar_broker_topic_messages_delayed_rejected_total",
           "Messages refused because their delay exceeded the maximum", "delays_refused", "counter", prefix="pulsar_"),
    Family("pulsar_broker_topic_messages_fixed_delay_overridden_total",
           "Messages whose delivery time was replaced by the topic's fixed delay", "delays_overridden", "counter",
           prefix="pulsar_"),
    Family("geminga_tables_unexported_seconds",
           "Age of the oldest message that nights have to export and have not; -1 if there is none",
           _age_s("unexported_since_ms"), sums=False),
    *_buckets("pulsar_storage_write_latency", "latency",
              "Entries by milliseconds from their arrival at the owner until they were on disk", _LATENCIES,
              "latency_sum"),
    *_buckets("pulsar_storage_ledger_write_latency", "journal",
              "Entries by milliseconds that the write of the journal took", _LATENCIES, "journal_sum"),
    *_buckets("pulsar_add_entry_latency", "latency", "Same as pulsar_storage_write_latency", _LATENCIES, "latency_sum"),
    *_buckets("pulsar_entry_size", "size", "Entries by size in bytes", _SIZES, "size_sum"),
    Family("pulsar_entry_size_overflow", "Same as pulsar_entry_size_le_overflow", "size_le_overflow"),
    Family("pulsar_storage_read_cache_misses_rate", "Always 0: entries are read from mapped files", _nothing),
    Family("pulsar_storage_offloaded_size", "Always 0: there is no offloading", _nothing),
    Family("pulsar_txn_tb_active_total", "Open transactions that published to the topic", "transactions_open"),
    *(Family(f"pulsar_txn_tb_{state}_total", f"Transactions {state} in the topic since it was opened",
             f"transactions_{state}", "counter") for state in ("aborted", "committed")),
]


# -- subscriptions

SUBSCRIPTION_FAMILIES = [
    Family("pulsar_subscription_back_log", "Unacknowledged entries", "backlog"),
    Family("pulsar_subscription_back_log_no_delayed",
           "Unacknowledged entries, less those whose delivery time has not come", _less("backlog", "delayed")),
    Family("pulsar_subscription_delayed", "Entries whose delivery time has not come", "delayed"),
    Family("pulsar_subscription_in_replay", "Entries to be redelivered", "in_replay"),
    Family("pulsar_subscription_unacked_messages", "Messages delivered to consumers and not acknowledged",
           "unacknowledged"),
    Family("pulsar_subscription_blocked_on_unacked_messages",
           "1 while delivery is stopped because too many messages are unacknowledged", "is_blocked"),
    Family("pulsar_subscription_consumers_count", "Connected consumers", "consumers"),
    Family("pulsar_subscription_msg_rate_out", "Messages delivered to consumers per second", "rate_out"),
    Family("pulsar_subscription_msg_throughput_out", "Bytes delivered to consumers per second", "throughput_out"),
    Family("pulsar_subscription_msg_rate_redeliver", "Messages redelivered per second", "rate_redeliver"),
    Family("pulsar_subscription_msg_ack_rate", "Messages acknowledged per second", "rate_acknowledged"),
    Family("pulsar_subscription_msg_rate_expired", "Messages expired per second", "rate_expired"),
    Family("pulsar_subscription_total_msg_expired", "Messages expired since the subscription was created", "expired"),
    Family("pulsar_subscription_msg_drop_rate",
           "Messages of a non-persistent topic dropped per second because no consumer had permits", "rate_dropped"),
    Family("pulsar_subscription_last_expire_timestamp", "Time of the last expiry, in milliseconds since 1970",
           "expired_ms", sums=False),
    Family("pulsar_subscription_last_acked_timestamp", "Time of the last acknowledgement, in milliseconds since 1970",
           "acked_ms", sums=False),
    Family("pulsar_subscription_last_consumed_timestamp", "Time of the last delivery, in milliseconds since 1970",
           "consumed_ms", sums=False),
    Family("pulsar_subscription_last_consumed_flow_timestamp",
           "Time when a consumer last granted permits, in milliseconds since 1970", "flow_ms", sums=False),
    Family("pulsar_subscription_last_mark_delete_advanced_timestamp",
           "Time when the mark-delete position last moved, in milliseconds since 1970", "advanced_ms", sums=False),
    Family("pulsar_subscription_delayed_message_index_size_bytes",
           "Memory of the delayed index in bytes if entries wait for this subscription; all subscriptions share it",
           "delayed_memory"),
    Family("pulsar_out_messages_total", "Messages delivered to consumers since the topic was opened", "messages_out",
           "counter"),
    Family("pulsar_out_bytes_total", "Bytes delivered to consumers since the topic was opened", "bytes_out", "counter"),
    *(Family(f"pulsar_subscription_dispatch_throttled_{unit}_events",
             "Times that a dispatch rate held back the subscription's entries",
             f"dispatchThrottled{column}EventsBy{level}Limit", labels=f',reason="{level.lower()}"')
      for unit, column in (("msg", "Msg"), ("bytes", "Bytes")) for level in ("Subscription", "Topic", "Broker")),
    *(Family(f"pulsar_subscription_filter_{outcome}_msg_count", "Always 0: there are no entry filters", _nothing)
      for outcome in ("processed", "accepted", "rejected", "rescheduled")),
    *(Family(f"pulsar_txn_tp_{state}_count_total",
             f"Transactions that acknowledged on the subscription and were {state}, since the topic was opened",
             f"transactions_{state}", "counter", labels=',status="succeed"') for state in ("committed", "aborted")),
    Family("geminga_subscription_backlog_messages",
           "Unacknowledged messages: those published since the subscription was created, less acknowledged, expired, "
           "skipped and evicted ones", "backlog_messages"),
    *(Family("geminga_subscription_waiting",
             "Entries that wait, by priority, where a topic's Shared consumers get the highest priority first",
             f"waiting_{priority}", labels=f',priority="{priority}"', only="by_priority")
      for priority in range(PRIORITIES)),
]

# -- replication to another cluster; topics without series of their own are not summed up

REPLICATION_FAMILIES = [
    Family("pulsar_replication_rate_out", "Messages per second that went to the other cluster", "rate_out", sums=False),
    Family("pulsar_replication_throughput_out", "Bytes per second that went to the other cluster", "throughput_out",
           sums=False),
    Family("pulsar_replication_backlog", "Entries that the other cluster does not have yet", "backlog", sums=False),
    Family("pulsar_replication_rate_expired", "Messages per second that expired before the other cluster had them",
           "rate_expired", sums=False),
    Family("pulsar_replication_connected_count", "1 while the replicator reads the topic for the other cluster",
           "consumers", sums=False),
    Family("pulsar_replication_disconnected_count", "1 while no replicator reads the topic for the other cluster",
           lambda columns, now_ms: 1 - columns["consumers"], sums=False),
    Family("pulsar_replication_delay_in_seconds", "Age of the oldest entry that the other cluster does not have yet",
           lambda columns, now_ms: np.maximum(0, _age_s("backlog_since_ms")(columns, now_ms)), sums=False),
]
# Gauges of a consumer or producer -> HELP text, in the order of the values that owners send.
CONSUMER_GAUGES = {
    "msg_rate_out": "Messages delivered to the consumer per second",
    "msg_throughput_out": "Bytes delivered to the consumer per second",
    "msg_rate_redeliver": "Messages redelivered to the consumer per second",
    "msg_ack_rate": "Messages that the consumer acknowledged per second",
    "unacked_messages": "Messages delivered to the consumer and not acknowledged",
    "blocked_on_unacked_messages": "1 while the consumer gets nothing more because of its unacknowledged messages",
    "available_permits": "Messages that the consumer has permits for",
}
PRODUCER_GAUGES = {
    "msg_rate_in": "Messages that the producer published per second",
    "msg_throughput_in": "Bytes that the producer published per second",
    "msg_average_Size": "Average size of the producer's messages in bytes",
}

# Gauges of the replicators of another cluster that publish to a topic, likewise.
INBOUND_GAUGES = {
    "rate_in": "Messages that replicators of the remote cluster published per second",
    "throughput_in": "Bytes that replicators of the remote cluster published per second",
}


# -- compactions

def _duration(at: int, record: Record) -> int:
    return record.durations[at]


# A topic's compactions since the admin process began: name behind pulsar_compaction_ -> (HELP text, value).
COMPACTION_FAMILIES: dict[str, tuple[str, Callable[[Record], float]]] = {
    "removed_event_count": ("Messages removed by compactions", lambda record: record.removed),
    "succeed_count": ("Compactions that succeeded", lambda record: record.succeeded),
    "failed_count": ("Compactions that failed", lambda record: record.failed),
    "duration_time_in_mills": ("Duration of the last successful compaction in milliseconds",
                               lambda record: round(record.seconds * 1000)),
    "read_throughput": ("Bytes per second that the last successful compaction read",
                        lambda record: round(record.bytes_in / max(record.seconds, 1e-3), 3)),
    "write_throughput": ("Bytes per second that the last successful compaction wrote",
                         lambda record: round(record.bytes_out / max(record.seconds, 1e-3), 3)),
    "compacted_entries_count": ("Entries that the last successful compaction kept", lambda record: record.entries_out),
    "compacted_entries_size": ("Bytes of the entries that the last successful compaction kept",
                               lambda record: record.bytes_out),
    **{f"latency_{bucket}": ("Compactions by duration in milliseconds", partial(_duration, at))
       for at, bucket in enumerate(_LATENCIES)},
    "latency_count": ("Compactions that succeeded and had something to do", lambda record: sum(record.durations)),
    "latency_sum": ("Duration of all successful compactions in milliseconds",
                    lambda record: round(record.seconds_sum * 1000)),
}
