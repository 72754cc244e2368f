"""Statistics of one topic as the JSON objects of Pulsar's REST, made of the counters in statistics.py.

Fields without a meaning here, such as those of offloading, have the value for "none". `messages` of a subscription is
Geminga's own field: the account of all messages since the subscription began.
"""
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName, is_system
from geminga.storage import format
from geminga.storage.commands.topic_lookup import stored, topic_of
from geminga.storage.cursors.cursor import EXPIRED, REASONS, Cursor
from geminga.storage.enforcement.backlog_quota import backlog_bytes
from geminga.storage.ledgers.compacted_ledgers import View
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.statistics.columns import (
    DELAYED,
    THROTTLED,
    again,
    came_ms,
    delayed,
    delayed_index,
    delayed_memory,
    durable,
    find_slowest,
    first_left,
    is_blocked,
    is_named,
    kind_of,
    last_times,
    publish_limited,
    rates_of,
    storage_bytes,
    subscription_counts,
    throttled,
    topic_counts,
    unacknowledged,
)
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.producers import Producer
from geminga.storage.topics.subscription import Consumer, Subscription, SubType

Topic = Partition | NonPersistentTopic
_RANGES_MAX = 1_000          # of acknowledged entries beyond the mark-delete position that are told


def topic(owner, found: Topic, *, earliest: bool, publishers: bool, consumers: bool) -> dict:
    """Return TopicStats.  earliest: include the publish time of the oldest message of each backlog."""
    counts, rates, cursors = topic_counts(found), rates_of(found, 6), [one for one in found.subscriptions.values() if is_named(found, one)]
    subscriptions = {one.name: _of_subscription(owner, one, earliest=earliest, consumers=consumers) for one in cursors}
    slowest, stored = None, found.is_persistent
    if stored:
        slowest = find_slowest(found)
    age = (owner.now_ms - came_ms(slowest, found)) // 1000 if slowest else -1
    times = [one["earliestMsgPublishTimeInBacklog"] for one in subscriptions.values() if one["earliestMsgPublishTimeInBacklog"]]
    told = {
        "msgRateIn": rates[0], "msgThroughputIn": rates[1], "msgRateOut": rates[3], "msgThroughputOut": rates[4],
        "bytesInCounter": counts[1], "msgInCounter": counts[0],
        "systemTopicBytesInCounter": counts[1] if is_system(str(found.name)) else 0, "bytesOutCounter": counts[4],
        "msgOutCounter": counts[3], "averageMsgSize": rates[1] / rates[0] if rates[0] else 0.0,
        "msgChunkPublished": found.chunks_in > 0, "storageSize": storage_bytes(found) if stored else 0,
        "backlogSize": max((one["backlogSize"] for one in subscriptions.values() if one["isDurable"]), default=0),
        "backlogQuotaLimitSize": found.policies.quota_bytes if stored else -1,
        "backlogQuotaLimitTime": found.policies.quota_age_s if stored else -1,
        "oldestBacklogMessageAgeSeconds": age, "publishRateLimitedTimes": publish_limited(found),
        "earliestMsgPublishTimeInBacklogs": min(times, default=0),
        "offloadedStorageSize": 0, "lastOffloadLedgerId": 0, "lastOffloadSuccessTimeStamp": 0, "lastOffloadFailureTimeStamp": 0,
        "ongoingTxnCount": 0, "abortedTxnCount": 0, "committedTxnCount": 0,
        "publishers": [_of_producer(owner, one) for one in found.producers.live.values()] if publishers else [],
        "waitingPublishers": len(found.producers.waiting), "subscriptions": subscriptions, "replication": {},
        "deduplicationStatus": "Enabled" if stored and found.deduplicates else "Disabled",
        "nonContiguousDeletedMessagesRanges": sum(one["nonContiguousDeletedMessagesRanges"] for one in subscriptions.values()),
        "nonContiguousDeletedMessagesRangesSerializedSize":
            sum(one["nonContiguousDeletedMessagesRangesSerializedSize"] for one in subscriptions.values()),
        "delayedMessageIndexSizeInBytes": delayed_index(found)[DELAYED.index("delayed_memory")],
        "compaction": _compaction(found.view),
        "topicCreationTimeStamp": owner.catalogue.topics.created_ms(found.name.base) or 0,
        "lastPublishTimeStamp": last_publish_ms(found),
    }
    if slowest is not None:
        told["oldestBacklogMessageSubscriptionName"] = slowest.name
    if found.producers.topic_epoch is not None:
        told["topicEpoch"] = found.producers.topic_epoch
    if not stored:
        told["msgDropRate"] = sum(one["msgDropRate"] for one in subscriptions.values()) + sum(
            rates_of(one, 4)[3] for one in found.producers.live.values())
    return told


def _compaction(view: View | None) -> dict:
    """Return the fields about the compaction that made the view in force; the admin process adds failures."""
    report = view.manifest.report if view else {}
    return {"lastCompactionRemovedEventCount": report.get("messages_in", 0) - report.get("messages_out", 0),
            "lastCompactionSucceedTimestamp": view.manifest.created_ms if view else 0, "lastCompactionFailedTimestamp": 0,
            "lastCompactionDurationTimeInMills": round(report.get("seconds", 0) * 1000)}


def last_publish_ms(found: Topic) -> int:
    """Return when the last entry was stored, 0 if there is none."""
    for ledger in reversed(found.ledgers):
        if ledger.entries:
            return int(ledger.column("broker_time")[ledger.last_entry])
    return 0


def _of_subscription(owner, subscription: Subscription, *, earliest: bool, consumers: bool) -> dict:
    counts, rates, found, cursor = subscription_counts(subscription), rates_of(subscription, 8), subscription.partition, subscription.cursor
    stored, dispatcher = found.is_persistent, subscription.dispatcher
    kind = kind_of(subscription)
    backlog = cursor.backlog(found.ledgers) if stored else 0
    first = first_left(subscription) if stored and earliest else None
    later, (acked, consumed, flow) = delayed(subscription), last_times(subscription)
    draining = list(dispatcher.draining.values()) if kind == SubType.Key_Shared and dispatcher is not None else []
    ranges = sum(len(runs) for _, runs in acknowledged_runs(cursor, found.ledgers))
    told = {
        "msgRateOut": rates[0], "msgThroughputOut": rates[1], "bytesOutCounter": counts[1], "msgOutCounter": counts[0],
        "msgRateRedeliver": rates[3], "messageAckRate": rates[5], "chunkedMessageRate": rates[4], "msgBacklog": backlog,
        "backlogSize": backlog_bytes(cursor, found) if stored else 0,
        "earliestMsgPublishTimeInBacklog": int(first[0].column("publish_time")[first[1]]) if first else 0,
        "msgBacklogNoDelayed": backlog - later, "blockedSubscriptionOnUnackedMsgs": is_blocked(subscription), "msgDelayed": later,
        "msgInReplay": again(subscription), "unackedMessages": unacknowledged(subscription),
        "type": "None" if kind < 0 else SubType.Name(kind), "msgRateExpired": rates[6], "totalMsgExpired": cursor.totals[EXPIRED],
        "lastExpireTimestamp": subscription.expired_ms, "lastConsumedFlowTimestamp": flow, "lastConsumedTimestamp": consumed,
        "lastAckedTimestamp": acked, "lastMarkDeleteAdvancedTimestamp": subscription.advanced_ms,
        "consumers": _of_consumers(owner, subscription) if consumers else [],
        "isDurable": subscription.is_durable, "isReplicated": subscription.is_replicated,
        "allowOutOfOrderDelivery": any(one.is_out_of_order_allowed for one in subscription.consumers),
        "consumersAfterMarkDeletePosition": {}, "drainingHashesCount": len(draining),
        "drainingHashesClearedTotal": sum(one.hashes_cleared for one in subscription.consumers),
        "drainingHashesUnackedMessages": sum(one.entries for one in draining),
        "nonContiguousDeletedMessagesRanges": ranges,
        "nonContiguousDeletedMessagesRangesSerializedSize": sum(bitmap.nbytes for bitmap in cursor.bitmaps.values()),
        "delayedMessageIndexSizeInBytes": delayed_memory(subscription, later), "subscriptionProperties": subscription.properties,
        "filterProcessedMsgCount": 0, "filterAcceptedMsgCount": 0, "filterRejectedMsgCount": 0, "filterRescheduledMsgCount": 0,
        **dict(zip(THROTTLED, throttled(subscription), strict=True)),
        "durable": subscription.is_durable, "replicated": subscription.is_replicated,
    }
    if kind == SubType.Key_Shared and subscription.consumers:
        told["keySharedMode"] = "AUTO_SPLIT" if subscription.first_consumer.ranges is None else "STICKY"
    if kind in (SubType.Exclusive, SubType.Failover) and dispatcher is not None and dispatcher.active is not None:
        told["activeConsumerName"] = dispatcher.active.name
    if stored:
        told["messages"] = messages(subscription)
    else:
        told["msgDropRate"] = rates[7]
    return told


def messages(subscription: Subscription) -> dict:
    """Account for all messages since the subscription began: the other values together are `published`."""
    found, cursor = subscription.partition, subscription.cursor
    published = found.next_message - cursor.since
    return {"published": published, **dict(zip(REASONS, cursor.totals, strict=True)), "backlog": published - sum(cursor.totals)}


def acknowledged_runs(cursor: Cursor, ledgers: list[Ledger]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return [(ledger id, (n, 2))] for runs of acknowledged entries beyond the mark-delete position.

    A row has the entry before the run and the last entry of the run.
    """
    found = []
    for ledger in ledgers if cursor.bitmaps else ():
        if ledger.ledger_id in cursor.bitmaps and ledger.ledger_id >= cursor.mark_delete[0]:
            first = cursor.mark_delete[1] + 1 if ledger.ledger_id == cursor.mark_delete[0] else 0
            settled = np.zeros(ledger.entries - first + 2, bool)      # with one that is not on either side, so that every run has two edges
            settled[1:-1] = cursor.acknowledged(ledger.ledger_id, first, ledger.entries)
            found.append((ledger.ledger_id, np.flatnonzero(np.diff(settled)).reshape(-1, 2) + (first - 1)))
    return found


def _of_consumers(owner, subscription: Subscription) -> list[dict]:
    if subscription.kind != SubType.Key_Shared:
        return [_of_consumer(owner, one) for one in subscription.consumers]
    found, ranges, draining = [], subscription.dispatcher.ranges.all(), {}
    for number, one in sorted(subscription.dispatcher.draining.items()):
        draining.setdefault(one.slot, []).append({"hash": number, "unackMsgs": one.entries, "blockedAttempts": one.blocked})
    for consumer in subscription.consumers:
        mine = draining.get(consumer.slot, [])
        found.append(_of_consumer(owner, consumer) | {
            "drainingHashesCount": len(mine), "drainingHashesUnackedMessages": sum(one["unackMsgs"] for one in mine),
            "drainingHashes": mine, "keyHashRangeArrays": [list(one) for one in ranges.get(consumer.slot, [])]})
    return found


def _of_consumer(owner, consumer: Consumer) -> dict:
    rates, session = rates_of(consumer, 5), _session_of(owner, consumer)
    return {
        "msgRateOut": rates[0], "msgThroughputOut": rates[1], "bytesOutCounter": consumer.bytes_out, "msgOutCounter": consumer.messages_out,
        "msgRateRedeliver": rates[2], "messageAckRate": rates[4], "chunkedMessageRate": rates[3], "consumerName": consumer.name,
        "availablePermits": consumer.permits, "unackedMessages": consumer.unacknowledged,
        "avgMessagesPerEntry": round(consumer.messages_out / consumer.entries_out) if consumer.entries_out else 0,
        "blockedConsumerOnUnackedMsgs": consumer.is_blocked, "drainingHashesCount": 0,
        "drainingHashesClearedTotal": consumer.hashes_cleared, "drainingHashesUnackedMessages": 0,
        "address": session.address if session else "", "connectedSince": iso(consumer.connected_ms),
        "clientVersion": session.client_version if session else "", "lastAckedTimestamp": consumer.acked_ms,
        "lastConsumedTimestamp": consumer.consumed_ms, "lastConsumedFlowTimestamp": consumer.flow_ms, "metadata": consumer.metadata,
        "lastAckedTime": iso(consumer.acked_ms), "lastConsumedTime": iso(consumer.consumed_ms),
    }


def _of_producer(owner, producer: Producer) -> dict:
    rates, session = rates_of(producer, 4), _session_of(owner, producer)
    told = {
        "accessMode": api.ProducerAccessMode.Name(producer.access_mode), "msgRateIn": rates[0], "msgThroughputIn": rates[1],
        "averageMsgSize": rates[1] / rates[0] if rates[0] else 0.0, "chunkedMessageRate": rates[2], "producerId": producer.producer_id,
        "supportsPartialProducer": session.supports_partial_producer if session else False, "producerName": producer.name,
        "address": session.address if session else "", "connectedSince": iso(producer.connected_ms),
        "clientVersion": session.client_version if session else "", "metadata": producer.metadata,
    }
    if not producer.partition.is_persistent:
        told["msgDropRate"] = rates[3]
    return told


def _session_of(owner, found: Producer | Consumer):
    return owner.sessions.get((found.worker, found.connection))


def iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- how it is stored

def internal(found: Topic) -> dict:
    """Return PersistentTopicInternalStats."""
    told = {"entriesAddedCounter": found.entries_in, "numberOfEntries": sum(ledger.entries for ledger in found.ledgers),
            "totalSize": storage_bytes(found) if found.is_persistent else 0}
    subscriptions = found.subscriptions.values()
    if not found.is_persistent:
        return told | {"currentLedgerEntries": 0, "currentLedgerSize": 0, "waitingCursorsCount": 0,
                       "cursors": {one.name: _of_cursor(one) for one in subscriptions if is_named(found, one)}}
    last = found.open_ledger
    return told | {
        "currentLedgerEntries": last.entries, "currentLedgerSize": last.size - format.HEADER_SIZE,
        "lastLedgerCreatedTimestamp": iso(last.created_ms), "waitingCursorsCount": sum(map(_is_waiting, subscriptions)),
        "lastConfirmedEntry": "{}:{}".format(*found.last_confirmed),
        "state": "Terminated" if found.is_terminated else "LedgerOpened",
        "ledgers": [{"ledgerId": one.ledger_id, "entries": one.entries, "size": one.size - format.HEADER_SIZE, "offloaded": False,
                     "underReplicated": False} for one in found.ledgers],
        "cursors": {one.name: _of_cursor(one) for one in subscriptions if is_named(found, one)},
        "compactedLedger": {**_compacted_ledger(found.view), "offloaded": False, "underReplicated": False},
    }


def _compacted_ledger(view: View | None) -> dict[str, int]:
    if view is None:
        return dict.fromkeys(("ledgerId", "entries", "size"), -1)
    return {"ledgerId": view.number, "entries": view.manifest.entries, "size": view.manifest.size}


def _is_waiting(subscription: Subscription) -> bool:
    """Whether the subscription has consumers and has delivered everything."""
    ledger_id, entry_id = subscription.read
    last = subscription.partition.last_confirmed
    return bool(subscription.consumers) and (ledger_id, entry_id - 1) >= last


def _of_cursor(subscription: Subscription) -> dict:
    found, cursor = subscription.partition, subscription.cursor
    stored, runs = found.is_persistent, acknowledged_runs(cursor, found.ledgers)
    told = {
        "waitingReadOp": stored and _is_waiting(subscription), "messagesConsumedCounter": sum(cursor.totals),
        "cursorLedger": -1 if stored else 0, "cursorLedgerLastEntry": -1 if stored else 0, "active": bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": _entries_between(subscription) if stored else 0,
        "totalNonContiguousDeletedMessagesRange": sum(len(some) for _, some in runs),
        "subscriptionHavePendingRead": stored and _is_waiting(subscription), "subscriptionHavePendingReplayRead": again(subscription) > 0,
    }
    if stored:
        ranges = [f"({ledger_id}:{before}..{ledger_id}:{last}]" for ledger_id, some in runs for before, last in some[:_RANGES_MAX].tolist()]
        told |= {
            "markDeletePosition": "{}:{}".format(*cursor.mark_delete), "readPosition": "{}:{}".format(*subscription.read),
            "individuallyDeletedMessages": f"[{','.join(ranges[:_RANGES_MAX])}]",
            "lastLedgerSwitchTimestamp": iso(found.open_ledger.created_ms), "state": "Open", "properties": {},
        }
    return told


def _entries_between(subscription: Subscription) -> int:
    """Return the number of entries from the first unacknowledged one to the next one to deliver."""
    (ledger_id, entry_id), (read_ledger, read_entry) = subscription.cursor.mark_delete, subscription.read
    return 1 + sum(min(read_entry if ledger.ledger_id == read_ledger else ledger.entries, ledger.entries)
                   - (entry_id + 1 if ledger.ledger_id == ledger_id else 0)
                   for ledger in subscription.partition.ledgers_from(ledger_id) if ledger.ledger_id <= read_ledger)


def info(owner, found: Partition) -> dict:
    """Return ManagedLedgerInfo: the ledgers and cursors of a topic."""
    created = iso(owner.catalogue.topics.created_ms(found.name.base) or 0)
    return {
        "version": 1, "creationDate": created, "modificationDate": iso(found.open_ledger.created_ms),
        "ledgers": [{"ledgerId": one.ledger_id, "entries": one.entries, "size": one.size - format.HEADER_SIZE, "timestamp": one.created_ms,
                     "isOffloaded": False} for one in found.ledgers],
        "cursors": {one.name: {"version": 1, "creationDate": created, "cursorsLedgerId": -1,
                               "modificationDate": iso(one.advanced_ms or found.open_ledger.created_ms),
                               "markDelete": {"ledgerId": one.cursor.mark_delete[0], "entryId": one.cursor.mark_delete[1]}}
                    for one in durable(found)},
    }


def offline(owner, found: Partition) -> dict:
    """Return PersistentOfflineTopicStats."""
    cursors = {one.name: {"cursorBacklog": one.cursor.backlog(found.ledgers), "cursorLedgerId": one.cursor.mark_delete[0]}
               for one in durable(found)}
    return {
        "storageSize": storage_bytes(found), "totalMessages": sum(ledger.entries for ledger in found.ledgers),
        "messageBacklog": sum(one["cursorBacklog"] for one in cursors.values()), "topicName": str(found.name),
        "dataLedgerDetails": [{"entries": one.entries, "timestamp": one.created_ms, "size": one.size - format.HEADER_SIZE,
                               "ledgerId": one.ledger_id} for one in found.ledgers],
        "cursorDetails": cursors, "statGeneratedAt": owner.now_ms,
    }


# -- what is asked

def _stats(owner, name: TopicName, arguments: dict) -> dict:
    return topic(owner, topic_of(owner, name), earliest=arguments["earliest"], publishers=arguments["publishers"],
                 consumers=arguments["consumers"])


def _internal(owner, name: TopicName, arguments: dict) -> dict:
    return internal(topic_of(owner, name))


def _info(owner, name: TopicName, arguments: dict) -> dict:
    return info(owner, stored(owner, name))


def _offline(owner, name: TopicName, arguments: dict) -> dict:
    return offline(owner, stored(owner, name))


def _behind(owner, name: TopicName, arguments: dict) -> dict:
    return stored(owner, name).bytes_from(arguments["ledger"], arguments["entry"])


def _measure(owner, name: None, arguments: dict) -> dict | bytes:
    return owner.statistics.measure(arguments["most"], consumers=arguments["consumers"], producers=arguments["producers"])


QUESTIONS = {"stats": _stats, "internal": _internal, "info": _info, "offline": _offline, "behind": _behind, "measure": _measure}
