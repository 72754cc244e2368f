"""Questions of administration about messages and positions (queries.py), one function each.

A position is [ledger, entry]. Earliest and latest are as clients write them: [-1, -1], and twice the largest number.
"""
import base64
import os

import numpy as np

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.batches import MESSAGES_MAX
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.commands import subscriptions
from geminga.storage.commands.topic_lookup import has_subscription, stored, subscription_of
from geminga.storage.cursors.batch_acks import signed_words
from geminga.storage.cursors.cursor import EXPIRED, Cursor
from geminga.storage.ledgers.position import Position
from geminga.storage.topics import acknowledge
from geminga.storage.topics.acknowledge import Acks
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription

_BATCH = 2      # flag of an index row


# -- moving a subscription

def _clear(owner, topic: TopicName, arguments: dict) -> None:
    """Acknowledge everything in one subscription, or in all.

    everywhere: the question goes to all partitions, and those without the subscription ignore it.
    """
    found, name = stored(owner, topic), arguments.get("subscription")
    if arguments.get("everywhere") and not has_subscription(found, name):
        return
    for subscription in [subscription_of(found, name)] if name else found.subscriptions.values():
        acknowledge.skip_to(owner, subscription, found.last_confirmed)


def _skip(owner, topic: TopicName, arguments: dict) -> None:
    """Acknowledge the next so many entries."""
    subscription = subscription_of(stored(owner, topic), arguments["subscription"])
    found = subscription.partition
    acknowledge.skip_to(owner, subscription, _nth(found, subscription.cursor, arguments["entries"]) or found.last_confirmed)


def _nth(found: Partition, cursor: Cursor, number: int) -> Position | None:
    """Return the position of the n-th unacknowledged entry, counted from 1; None if there are fewer."""
    for ledger in found.ledgers_from(cursor.mark_delete[0]):
        for first, end in cursor.unacknowledged(ledger, 0, ledger.entries):
            if number <= end - first:
                return ledger.ledger_id, first + number - 1
            number -= end - first
    return None


def _reset(owner, topic: TopicName, arguments: dict) -> None:
    """Move a subscription to a time, to a message, or behind it (`behind`).  Its consumers must subscribe again."""
    found = stored(owner, topic)
    subscription = subscription_of(found, arguments["subscription"])
    subscriptions.close_consumers(owner, subscription)
    if "time_ms" in arguments:
        subscriptions.reset_subscription(owner, subscription, found.mark_delete_before_time(arguments["time_ms"]))
    else:
        position, words = start_of(found, arguments)
        subscriptions.reset_subscription(owner, subscription, found.mark_delete_before(position))
        acknowledge.begin_within(owner, subscription, position, words)
    owner.answer_needs_sync()


def start_of(found: Partition, arguments: dict) -> tuple[Position, list[int]]:
    """Return (entry with which a cursor begins, words of its messages to deliver, empty for all).

    arguments: position; behind, to begin behind that position; batch_index, the message of a batch.
    """
    position, is_behind, index = tuple(arguments["position"]), arguments.get("behind", False), arguments.get("batch_index", -1)
    ledger = found.find(position[0])
    if index >= 0 and ledger is not None and 0 <= position[1] < ledger.entries:
        messages, first = min(int(ledger.messages[position[1]]), MESSAGES_MAX), index + is_behind
        if first < messages:
            return position, signed_words((1 << messages) - (1 << first))
    return (position[0], position[1] + is_behind), []


def _expire(owner, topic: TopicName, arguments: dict) -> int | None:
    """Expire messages of one subscription, or of all: those older than so many seconds, or up to a position.

    Return the number of expired entries, None if the position does not exist yet.
    """
    found = stored(owner, topic)
    if "position" in arguments and start_of(found, arguments)[0] > found.last_confirmed:
        return None
    name = arguments.get("subscription")
    subscriptions = [subscription_of(found, name)] if name else list(found.subscriptions.values())
    count = sum(_expire_of(owner, subscription, arguments) for subscription in subscriptions)
    owner.counters.add("entries_expired", count)
    return count


def _expire_of(owner, subscription: Subscription, arguments: dict) -> int:
    found, before_ = subscription.partition, subscription.cursor.backlog(subscription.partition.ledgers)
    if "position" in arguments:
        position, _ = start_of(found, arguments)
        acknowledge.skip_to(owner, subscription, found.mark_delete_before((position[0], position[1] + 1)), EXPIRED)
    else:
        came_ms = owner.now_ms - arguments["seconds"] * 1000
        for ledger in found.ledgers_from(subscription.cursor.mark_delete[0]):
            times = ledger.deliver_at[:ledger.entries] if found.schedule is None else found.schedule.times_of(ledger, range(ledger.entries))
            old = np.flatnonzero(np.maximum(ledger.column("broker_time")[:ledger.entries], times) <= came_ms)
            entries = np.intersect1d(old, subscription.cursor.all_unacknowledged(ledger, ledger.entries), assume_unique=True)
            if len(entries):
                acknowledge.move(owner, subscription, Acks(single={ledger.ledger_id: entries}), EXPIRED)
                owner.answer_needs_sync()
                owner.wake(found)
    return before_ - subscription.cursor.backlog(found.ledgers)


def _analyze(owner, topic: TopicName, arguments: dict) -> dict:
    """Analyze the backlog of a subscription, from its own position or another one."""
    found = stored(owner, topic)
    subscription = subscription_of(found, arguments["subscription"])
    start = found.mark_delete_before(start_of(found, arguments)[0]) if "position" in arguments else subscription.cursor.mark_delete
    entries = messages = 0
    first = last = None
    for ledger in found.ledgers_from(start[0]):
        begin = start[1] + 1 if ledger.ledger_id == start[0] else 0
        for run_first, run_end in subscription.cursor.unacknowledged(ledger, begin, ledger.entries):
            entries += run_end - run_first
            first, last = first or (ledger.ledger_id, run_first), (ledger.ledger_id, run_end - 1)
        messages += subscription.cursor.unacknowledged_messages(ledger, begin, ledger.entries)
    return {"entries": entries, "messages": messages, "first": first, "last": last}


# -- finding messages

def _last(owner, topic: TopicName, arguments: dict) -> dict:
    """Return the id of the last message."""
    found = stored(owner, topic)
    ledger_id, entry_id, batch_index = found.last_message()
    if entry_id < 0:
        ledger_id, entry_id = found.last_confirmed
    size = int(found.find(ledger_id).messages[entry_id]) if batch_index >= 0 else 0
    return {"ledger": ledger_id, "entry": entry_id, "batch_index": batch_index, "batch_size": size}


def _at_time(owner, topic: TopicName, arguments: dict) -> Position:
    """Return the first message published at or after a time; the next message to come if there is none."""
    found = stored(owner, topic)
    return _following(found, found.mark_delete_before_time(arguments["time_ms"]))


def _following(found: Partition, position: Position) -> Position:
    for ledger in found.ledgers_from(position[0]):
        entry_id = position[1] + 1 if ledger.ledger_id == position[0] else 0
        if entry_id < ledger.entries:
            return ledger.ledger_id, entry_id
    return found.last_confirmed[0], found.last_confirmed[1] + 1


def _by_index(owner, topic: TopicName, arguments: dict) -> Position:
    """Return the entry with the message of this number, counted from the topic's beginning."""
    found, index = stored(owner, topic), arguments["index"]
    for ledger in found.ledgers:
        if ledger.entries and ledger.first_message <= index < ledger.next_message:
            within = index - ledger.first_message + int(ledger.column("message_index")[0])
            return ledger.ledger_id, int(np.searchsorted(ledger.column("message_index")[:ledger.entries], within, "right")) - 1
    raise Refusal(api.MetadataError, "Message not found")


# -- showing messages

def _peek(owner, topic: TopicName, arguments: dict) -> dict:
    """Return the n-th unacknowledged entry.

    A subscription that does not exist is treated as one that begins at the earliest message.
    """
    found, name = stored(owner, topic), arguments["subscription"]
    cursor = subscription_of(found, name).cursor if has_subscription(found, name) else found.discarded
    return _shown(found, _nth(found, cursor, arguments["number"]))


def _entry(owner, topic: TopicName, arguments: dict) -> dict:
    return _shown(stored(owner, topic), tuple(arguments["position"]))


def _examine(owner, topic: TopicName, arguments: dict) -> dict | None:
    """Return the n-th entry from the first or back from the last.

    If there are fewer entries, return the last one in that direction; None if there is none.
    """
    found, number = stored(owner, topic), max(1, arguments["number"])
    ledgers = [ledger for ledger in found.ledgers if ledger.entries]
    if not ledgers:
        return None
    end = ledgers[0] if arguments["from_latest"] else ledgers[-1]
    for ledger in reversed(ledgers) if arguments["from_latest"] else ledgers:
        if number <= ledger.entries:
            return _shown(found, (ledger.ledger_id, ledger.entries - number if arguments["from_latest"] else number - 1))
        number -= ledger.entries
    return _shown(found, (end.ledger_id, 0 if arguments["from_latest"] else end.last_entry))


def _shown(found: Partition, position: Position | None) -> dict:
    """Return the stored bytes of an entry, from the length of its metadata on."""
    ledger = found.find(position[0]) if position else None
    if ledger is None or not 0 <= position[1] < ledger.entries:
        raise Refusal(api.MetadataError, "Message not found")
    row = ledger.index[position[1]]
    raw = os.pread(ledger.descriptor, int(row["size"]), int(row["offset"]))
    return {"ledger": position[0], "entry": position[1], "data": base64.b64encode(raw).decode(), "timestamp": int(row["broker_time"]),
            "index": int(row["message_index"]) + int(row["messages"]) - 1}


QUESTIONS = {"clear": _clear, "skip": _skip, "reset": _reset, "expire": _expire, "analyze": _analyze, "last_message": _last,
             "at_time": _at_time, "by_index": _by_index, "peek": _peek, "entry": _entry, "examine": _examine}
