"""Statistics from owners as the JSON objects of Pulsar's REST.

Fields without a meaning here, such as those of offloading, have the value for "none". Fields are in Pulsar's order.
Geminga's own are `messages` of a subscription, an account of all messages since it was created,
`replicationBacklogSize` of another cluster, bytes that it does not have yet, and, where nights export a topic,
`exportedPosition`, `lastExportTimestamp`, `unexportedSize` and `oldestUnexportedMessageAgeSeconds`.
"""
from typing import Any
from urllib.parse import quote_plus

from geminga.proto.names import TopicName, is_system
from geminga.storage.admin.figures import (
    CompactionFigures,
    ConsumerFigures,
    CursorFigures,
    InboundFigures,
    ProducerFigures,
    ReplicationFigures,
    StorageFigures,
    StoredTopic,
    SubscriptionFigures,
    TopicFigures,
    ViewFigures,
)
from geminga.storage.runtime.units import instant
from geminga.storage.statistics.columns import THROTTLED

Json = dict[str, Any]


# -- statistics

def topic_stats(topic: TopicName, figures: TopicFigures) -> Json:
    """Return a topic's statistics as Pulsar's TopicStats."""
    subscriptions = {name: subscription_stats(topic, one) for name, one in figures.subscriptions.items()}
    each = figures.subscriptions.values()
    document = {
        "msgRateIn": figures.message_rate_in, "msgThroughputIn": figures.byte_rate_in,
        "msgRateOut": figures.message_rate_out, "msgThroughputOut": figures.byte_rate_out,
        "bytesInCounter": figures.bytes_in, "msgInCounter": figures.messages_in,
        "systemTopicBytesInCounter": figures.bytes_in if is_system(str(topic)) else 0,
        "bytesOutCounter": figures.bytes_out, "msgOutCounter": figures.messages_out,
        "averageMsgSize": _average(figures.byte_rate_in, figures.message_rate_in),
        "msgChunkPublished": figures.has_chunks, "storageSize": figures.storage_bytes,
        "backlogSize": max([one.backlog_bytes for one in each if one.is_durable]
                           + [one.backlog_bytes for one in figures.replication.values()], default=0),
        "backlogQuotaLimitSize": figures.quota_bytes, "backlogQuotaLimitTime": figures.quota_age_s,
        "oldestBacklogMessageAgeSeconds": figures.backlog_age_s, "publishRateLimitedTimes": figures.publish_limited,
        "earliestMsgPublishTimeInBacklogs": min(
            (one.earliest_publish_ms for one in each if one.earliest_publish_ms), default=0),
        "offloadedStorageSize": 0, "lastOffloadLedgerId": 0, "lastOffloadSuccessTimeStamp": 0,
        "lastOffloadFailureTimeStamp": 0,
        **dict(zip(("ongoingTxnCount", "abortedTxnCount", "committedTxnCount"), figures.transactions, strict=True)),
        "publishers": [_publisher_stats(topic, publisher) for publisher in figures.publishers],
        "waitingPublishers": figures.waiting_producers, "subscriptions": subscriptions,
        "replication": _replication(figures),
        "deduplicationStatus": "Enabled" if figures.deduplicates else "Disabled",
        "nonContiguousDeletedMessagesRanges": sum(one.acknowledged_runs for one in each),
        "nonContiguousDeletedMessagesRangesSerializedSize": sum(one.bitmap_bytes for one in each),
        "delayedMessageIndexSizeInBytes": figures.delayed_memory,
        "compaction": _compaction(figures.compaction), "topicCreationTimeStamp": figures.created_ms,
        "lastPublishTimeStamp": figures.last_publish_ms,
    }
    if figures.slowest is not None:
        document["oldestBacklogMessageSubscriptionName"] = figures.slowest
    if figures.topic_epoch is not None:
        document["topicEpoch"] = figures.topic_epoch
    if not topic.is_persistent:
        document["msgDropRate"] = figures.drop_rate
    if figures.export is not None:
        document |= {"exportedPosition": "{}:{}".format(*figures.export.position),
                 "lastExportTimestamp": figures.export.exported_ms,
                 "unexportedSize": figures.export.unexported_bytes,
                 "oldestUnexportedMessageAgeSeconds": figures.export.age_s}
    return document


_NO_REPLICATION: Json = {
    "msgRateIn": 0.0, "msgInCount": 0, "msgThroughputIn": 0.0, "bytesInCount": 0, "msgRateOut": 0.0, "msgOutCount": 0,
    "msgThroughputOut": 0.0, "bytesOutCount": 0, "msgRateExpired": 0.0, "msgExpiredCount": 0, "replicationBacklog": 0,
    "connected": False, "replicationDelayInSeconds": 0}


def _replication(figures: TopicFigures) -> Json:
    """Return {other cluster: what goes there, and what comes from there} as Pulsar's ReplicatorStats.

    Only clusters to which the topic goes have `replicationBacklogSize`.
    """
    names = sorted(figures.replication.keys() | figures.inbound.keys())
    clusters = {name: dict(_NO_REPLICATION) for name in names}
    for remote, one in figures.replication.items():
        clusters[remote] |= replication_stats(one)
    for source, some in figures.inbound.items():
        clusters[source] |= inbound_stats(some)
    return clusters


def replication_stats(figures: ReplicationFigures) -> Json:
    """Return what is to go to another cluster; the replicator adds what it sent, and how its connection is."""
    return {"msgRateExpired": figures.expire_rate, "msgExpiredCount": figures.expired,
            "replicationBacklog": figures.backlog, "replicationBacklogSize": figures.backlog_bytes,
            "connected": figures.is_connected, "replicationDelayInSeconds": figures.delay_s}


def _average(bytes_: float, messages: float) -> float:
    return bytes_ / messages if messages else 0.0


def _compaction(figures: CompactionFigures) -> Json:
    """Return a topic's compactions as Pulsar's CompactionStats, without the time of the last failure.

    The admin process adds that time, because it runs the compactions.
    """
    return {"lastCompactionRemovedEventCount": figures.removed,
            "lastCompactionSucceedTimestamp": figures.succeeded_ms, "lastCompactionFailedTimestamp": 0,
            "lastCompactionDurationTimeInMills": round(figures.seconds * 1000)}


def subscription_stats(topic: TopicName, figures: SubscriptionFigures) -> Json:
    """Return a subscription's statistics as Pulsar's SubscriptionStats."""
    document: Json = {
        "msgRateOut": figures.message_rate, "msgThroughputOut": figures.byte_rate,
        "bytesOutCounter": figures.bytes_out, "msgOutCounter": figures.messages_out,
        "msgRateRedeliver": figures.redeliver_rate, "messageAckRate": figures.acknowledge_rate,
        "chunkedMessageRate": figures.chunk_rate, "msgBacklog": figures.backlog, "backlogSize": figures.backlog_bytes,
        "earliestMsgPublishTimeInBacklog": figures.earliest_publish_ms,
        "msgBacklogNoDelayed": figures.backlog - figures.delayed,
        "blockedSubscriptionOnUnackedMsgs": figures.is_blocked, "msgDelayed": figures.delayed,
        "msgInReplay": figures.to_redeliver, "unackedMessages": figures.unacknowledged, "type": figures.type,
        "msgRateExpired": figures.expire_rate, "totalMsgExpired": figures.expired,
        "lastExpireTimestamp": figures.expired_ms, "lastConsumedFlowTimestamp": figures.flow_ms,
        "lastConsumedTimestamp": figures.consumed_ms, "lastAckedTimestamp": figures.acked_ms,
        "lastMarkDeleteAdvancedTimestamp": figures.advanced_ms,
        "consumers": [_consumer_stats(consumer) for consumer in figures.consumers], "isDurable": figures.is_durable,
        "isReplicated": figures.is_replicated, "allowOutOfOrderDelivery": figures.allows_out_of_order,
        "consumersAfterMarkDeletePosition": {}, "drainingHashesCount": figures.draining_hashes,
        "drainingHashesClearedTotal": figures.hashes_cleared,
        "drainingHashesUnackedMessages": figures.draining_entries,
        "nonContiguousDeletedMessagesRanges": figures.acknowledged_runs,
        "nonContiguousDeletedMessagesRangesSerializedSize": figures.bitmap_bytes,
        "delayedMessageIndexSizeInBytes": figures.delayed_memory, "subscriptionProperties": figures.properties,
        "filterProcessedMsgCount": figures.accepted + figures.rejected, "filterAcceptedMsgCount": figures.accepted,
        "filterRejectedMsgCount": figures.rejected,
        "filterRescheduledMsgCount": 0, **dict(zip(THROTTLED, figures.throttled, strict=True)),
        "durable": figures.is_durable, "replicated": figures.is_replicated,
    }
    if figures.is_sticky is not None:
        document["keySharedMode"] = "STICKY" if figures.is_sticky else "AUTO_SPLIT"
    if figures.active_consumer is not None:
        document["activeConsumerName"] = figures.active_consumer
    if figures.waiting:
        document["waitingByPriority"] = figures.waiting
    if topic.is_persistent:
        document["messages"] = figures.messages
    else:
        document["msgDropRate"] = figures.drop_rate
    return document


def _consumer_stats(figures: ConsumerFigures) -> Json:
    """Return a consumer's statistics as Pulsar's ConsumerStats."""
    draining = figures.draining or []
    document = {
        "msgRateOut": figures.message_rate, "msgThroughputOut": figures.byte_rate,
        "bytesOutCounter": figures.bytes_out, "msgOutCounter": figures.messages_out,
        "msgRateRedeliver": figures.redeliver_rate, "messageAckRate": figures.acknowledge_rate,
        "chunkedMessageRate": figures.chunk_rate, "consumerName": figures.name, "availablePermits": figures.permits,
        "unackedMessages": figures.unacknowledged,
        "avgMessagesPerEntry": round(figures.messages_out / figures.entries_out) if figures.entries_out else 0,
        "blockedConsumerOnUnackedMsgs": figures.is_blocked, "drainingHashesCount": len(draining),
        "drainingHashesClearedTotal": figures.hashes_cleared,
        "drainingHashesUnackedMessages": sum(one.entries for one in draining), "address": figures.address,
        "connectedSince": instant(figures.connected_ms), "clientVersion": figures.client_version,
        "lastAckedTimestamp": figures.acked_ms, "lastConsumedTimestamp": figures.consumed_ms,
        "lastConsumedFlowTimestamp": figures.flow_ms, "metadata": figures.metadata,
        "lastAckedTime": instant(figures.acked_ms), "lastConsumedTime": instant(figures.consumed_ms),
    }
    if figures.draining is not None and figures.ranges is not None:
        document["drainingHashes"] = [{"hash": one.hash, "unackMsgs": one.entries, "blockedAttempts": one.blocked}
                                  for one in draining]
        document["keyHashRangeArrays"] = [list(bounds) for bounds in figures.ranges]
    return document


def _publisher_stats(topic: TopicName, figures: ProducerFigures) -> Json:
    """Return a producer's statistics as Pulsar's PublisherStats."""
    document = {
        "accessMode": figures.access_mode, "msgRateIn": figures.message_rate, "msgThroughputIn": figures.byte_rate,
        "averageMsgSize": _average(figures.byte_rate, figures.message_rate), "chunkedMessageRate": figures.chunk_rate,
        "producerId": figures.producer_id, "supportsPartialProducer": figures.supports_partial,
        "producerName": figures.name, "address": figures.address, "connectedSince": instant(figures.connected_ms),
        "clientVersion": figures.client_version, "metadata": figures.metadata,
    }
    if not topic.is_persistent:
        document["msgDropRate"] = figures.drop_rate
    return document


def inbound_stats(figures: InboundFigures) -> Json:
    """Return what another cluster's replicators publish here, as far as Pulsar's ReplicatorStats tell it."""
    return {"msgRateIn": figures.message_rate, "msgInCount": figures.messages, "msgThroughputIn": figures.byte_rate,
            "bytesInCount": figures.bytes, "inboundConnection": figures.address,
            "inboundConnectedSince": instant(figures.connected_ms)}


# -- how it is stored

def internal_stats(topic: TopicName, figures: StorageFigures) -> Json:
    """Return a topic's ledgers and cursors as PersistentTopicInternalStats; fewer fields for a non-persistent topic."""
    document = {"entriesAddedCounter": figures.entries_in,
                "numberOfEntries": sum(ledger.entries for ledger in figures.ledgers),
                "totalSize": sum(ledger.size for ledger in figures.ledgers)}
    if not topic.is_persistent:
        return document | {"currentLedgerEntries": 0, "currentLedgerSize": 0, "waitingCursorsCount": 0,
                       "cursors": {name: _cursor_stats(one) for name, one in figures.cursors.items()}}
    last = figures.ledgers[-1]
    return document | {
        "currentLedgerEntries": last.entries, "currentLedgerSize": last.size,
        "lastLedgerCreatedTimestamp": instant(last.created_ms), "waitingCursorsCount": figures.waiting_cursors,
        "lastConfirmedEntry": "{}:{}".format(*figures.last_confirmed),
        "state": "Terminated" if figures.is_terminated else "LedgerOpened",
        "ledgers": [{"ledgerId": one.ledger_id, "entries": one.entries, "size": one.size, "offloaded": False,
                     "underReplicated": False} for one in figures.ledgers],
        "cursors": {_cursor_name(name): _cursor_stats(one, last.created_ms) for name, one in figures.cursors.items()},
        "compactedLedger": {**_compacted_ledger(figures.view), "offloaded": False, "underReplicated": False},
    }


def _compacted_ledger(view: ViewFigures | None) -> dict[str, int]:
    if view is None:
        return dict.fromkeys(("ledgerId", "entries", "size"), -1)
    return {"ledgerId": view.number, "entries": view.entries, "size": view.size}


def _cursor_name(subscription: str) -> str:
    """Return the name of a subscription's cursor, which Pulsar encodes as Java's URLEncoder does."""
    return quote_plus(subscription, safe="*").replace("~", "%7E")


def _cursor_stats(figures: CursorFigures, switched_ms: int | None = None) -> Json:
    """Return a cursor's state as Pulsar's CursorStats.

    switched_ms: when the open ledger was created; None for a non-persistent topic.
    """
    nowhere = 0 if switched_ms is None else -1
    document = {
        "waitingReadOp": figures.is_waiting, "messagesConsumedCounter": figures.settled,
        "cursorLedger": nowhere, "cursorLedgerLastEntry": nowhere, "active": figures.has_consumers,
        "numberOfEntriesSinceFirstNotAckedMessage": figures.delivered,
        "totalNonContiguousDeletedMessagesRange": figures.run_count,
        "subscriptionHavePendingRead": figures.is_waiting,
        "subscriptionHavePendingReplayRead": figures.to_redeliver > 0,
    }
    if switched_ms is None:
        return document
    runs = [f"({ledger_id}:{before}..{ledger_id}:{last}]" for ledger_id, before, last in figures.runs]
    return document | {
        "markDeletePosition": "{}:{}".format(*figures.mark_delete), "readPosition": "{}:{}".format(*figures.read),
        "individuallyDeletedMessages": f"[{','.join(runs)}]", "lastLedgerSwitchTimestamp": instant(switched_ms),
        "state": "Open", "properties": {},
    }


def internal_info(stored: StoredTopic) -> Json:
    """Return the ledgers and cursors of a topic as Pulsar's ManagedLedgerInfo."""
    created, last = instant(stored.created_ms), stored.ledgers[-1]
    return {
        "version": 1, "creationDate": created, "modificationDate": instant(last.created_ms),
        "ledgers": [{"ledgerId": one.ledger_id, "entries": one.entries, "size": one.size, "timestamp": one.created_ms,
                     "isOffloaded": False} for one in stored.ledgers],
        "cursors": {_cursor_name(name): {
            "version": 1, "creationDate": created, "cursorsLedgerId": -1,
            "modificationDate": instant(one.advanced_ms or last.created_ms),
            "markDelete": {"ledgerId": one.mark_delete[0], "entryId": one.mark_delete[1]}}
            for name, one in stored.cursors.items()},
    }


def offline_stats(topic: TopicName, stored: StoredTopic) -> Json:
    """Return sizes and backlogs from a topic's stored ledgers as Pulsar's PersistentOfflineTopicStats."""
    return {
        "storageSize": sum(one.size for one in stored.ledgers),
        "totalMessages": sum(one.entries for one in stored.ledgers),
        "messageBacklog": sum(cursor.backlog for cursor in stored.cursors.values()), "topicName": str(topic),
        "dataLedgerDetails": [{"entries": ledger.entries, "timestamp": ledger.created_ms, "size": ledger.size,
                               "ledgerId": ledger.ledger_id} for ledger in stored.ledgers],
        "cursorDetails": {name: {"cursorBacklog": one.backlog, "cursorLedgerId": one.mark_delete[0]}
                          for name, one in stored.cursors.items()},
        "statGeneratedAt": stored.answered_ms,
    }
