"""Answers to questions about messages and positions: move subscriptions, find messages, show them."""
import base64
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.batches import MESSAGES_MAX
from geminga.proto.errors import Refusal
from geminga.storage.admin.context import AdministeredOwner
from geminga.storage.admin.questions import (
    Analyze,
    Backlog,
    BytesBehind,
    Clear,
    Examine,
    Expire,
    FindByIndex,
    FindByTime,
    GetEntry,
    GetLastMessage,
    LastMessage,
    Peek,
    Place,
    Reset,
    Skip,
    StoredEntry,
)
from geminga.storage.admin.table_questions import GetPage, StoredPage
from geminga.storage.commands import subscriptions
from geminga.storage.commands.topic_lookup import cursor_of, has_subscription, stored, subscription_of
from geminga.storage.cursors.batch_acks import signed_words
from geminga.storage.cursors.cursor import EXPIRED, Cursor
from geminga.storage.enforcement.message_ttl import published
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.ledgers.position import Position, entries_up_to
from geminga.storage.ledgers.readable import StoredLedger
from geminga.storage.topics import acknowledge
from geminga.storage.topics.acknowledge import Acks
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription

_STRETCH = 1 << 16           # entries of a ledger that are looked at together

# -- moving a subscription

def clear(owner: AdministeredOwner, question: Clear) -> None:
    """Acknowledge the whole backlog of one subscription or replication cursor, or of all subscriptions."""
    partition, name = stored(owner, question.topic), question.subscription
    if name is None:
        chosen = _all(partition)
    elif question.everywhere and not has_subscription(partition, name):
        return
    else:
        chosen = [cursor_of(partition, name)]
    for subscription in chosen:
        acknowledge.skip_to(owner, subscription, partition.last_confirmed)


def _all(partition: Partition) -> list[Subscription]:
    """Return all subscriptions of a partition, but no replication cursor.

    Requests about all subscriptions need the right to consume only, which does not include giving up what another
    cluster does not have yet.
    """
    return [one for one in partition.subscriptions.values() if one.remote is None]


def skip(owner: AdministeredOwner, question: Skip) -> None:
    """Acknowledge a number of unacknowledged entries from the first one on, or all if there are fewer."""
    partition = stored(owner, question.topic)
    subscription = cursor_of(partition, question.subscription)
    end = _nth(partition, subscription.cursor, question.entries) or partition.last_confirmed
    acknowledge.skip_to(owner, subscription, end)


def _nth(partition: Partition, cursor: Cursor, number: int) -> Position | None:
    """Return the position of a cursor's n-th unacknowledged entry, counted from 1; None if there are fewer."""
    for ledger in partition.ledgers_from(cursor.mark_delete[0]):
        for first, end in cursor.unacknowledged(ledger, 0, ledger.entries):
            if number <= end - first:
                return ledger.ledger_id, first + number - 1
            number -= end - first
    return None


def reset(owner: AdministeredOwner, question: Reset) -> None:
    """Reset a subscription to a time or a place.  Its consumers are closed, and subscribe again."""
    partition = stored(owner, question.topic)
    subscription = subscription_of(partition, question.subscription)
    subscriptions.close_consumers(owner, subscription)
    if question.time_ms is not None:
        mark_delete = partition.mark_delete_before_time(question.time_ms)
        subscriptions.reset_subscription(owner, subscription, mark_delete)
    else:
        assert question.position is not None, question
        position, words = start_of(partition, question.position, question)
        subscriptions.reset_subscription(owner, subscription, partition.mark_delete_before(position))
        acknowledge.begin_within(owner, subscription, position, words)
    owner.answer_needs_sync()


def start_of(partition: Partition, position: Position, place: Place) -> tuple[Position, list[int]]:
    """Return the first entry that a cursor reset to `place` delivers, and which of its messages.

    position: that of the place, or a default.  Returns (entry, ack-set words of the messages, [] for all of them).
    """
    ledger = partition.find(position[0])
    if place.batch_index >= 0 and ledger is not None and 0 <= position[1] < ledger.entries:
        messages = min(int(ledger.messages[position[1]]), MESSAGES_MAX)
        first = place.batch_index + place.behind
        if first < messages:
            return position, signed_words((1 << messages) - (1 << first))
    return (position[0], position[1] + place.behind), []


def expire(owner: AdministeredOwner, question: Expire) -> int | None:
    """Expire messages of one subscription, or of all: by their age in seconds, or up to a position.

    Returns the number of expired entries, None if the position does not exist yet.
    """
    partition, position = stored(owner, question.topic), None
    if question.position is not None:
        position = start_of(partition, question.position, question)[0]
        if position > partition.last_confirmed:
            return None
    name = question.subscription
    chosen = _all(partition) if name is None else [cursor_of(partition, name)]
    entries = 0
    for subscription in chosen:
        before = subscription.cursor.backlog(partition.ledgers)
        if position is not None:
            end = partition.mark_delete_before((position[0], position[1] + 1))
            acknowledge.skip_to(owner, subscription, end, EXPIRED)
        else:
            assert question.seconds is not None, question
            _expire_older(owner, partition, subscription, owner.now_ms - question.seconds * 1000)
        entries += before - subscription.cursor.backlog(partition.ledgers)
    owner.counters.add("entries_expired", entries)
    return entries


def _expire_older(owner: AdministeredOwner, partition: Partition, subscription: Subscription, by_ms: int) -> None:
    """Expire a subscription's entries that were published by `by_ms`, also those that wait for their delivery time.

    It goes no further than the first entry of an open transaction, which may be committed yet.
    """
    last = partition.last_confirmed if partition.limit is None else (partition.limit[0], partition.limit[1] - 1)
    for ledger in partition.ledgers_from(subscription.cursor.mark_delete[0]):
        end = entries_up_to(last, ledger.ledger_id, ledger.entries)
        old = np.flatnonzero(published(ledger, 0, end) <= by_ms)
        unacknowledged = subscription.cursor.all_unacknowledged(ledger, ledger.entries)
        entries = np.intersect1d(old, unacknowledged, assume_unique=True)
        if len(entries):
            acknowledge.move(owner, subscription, Acks(single={ledger.ledger_id: entries}), EXPIRED)
            owner.answer_needs_sync()
            owner.wake(partition)


def analyze(owner: AdministeredOwner, question: Analyze) -> Backlog:
    """Count the backlog of a subscription, from its mark-delete position on or from another position."""
    partition = stored(owner, question.topic)
    cursor = subscription_of(partition, question.subscription).cursor
    start = cursor.mark_delete
    if question.position is not None:
        start = partition.mark_delete_before(start_of(partition, question.position, question)[0])
    entries = messages = 0
    first: Position | None = None
    last: Position | None = None
    for ledger in partition.ledgers_from(start[0]):
        begin = start[1] + 1 if ledger.ledger_id == start[0] else 0
        for run_first, run_end in cursor.unacknowledged(ledger, begin, ledger.entries):
            entries += run_end - run_first
            first, last = first or (ledger.ledger_id, run_first), (ledger.ledger_id, run_end - 1)
        messages += cursor.unacknowledged_messages(ledger, begin, ledger.entries)
    return Backlog(entries, messages, first, last)


def bytes_behind(owner: AdministeredOwner, question: BytesBehind) -> int:
    """Return the bytes of all entries of a partition from a position on."""
    return stored(owner, question.topic).bytes_from(question.ledger, question.entry)


# -- finding messages

def last_message(owner: AdministeredOwner, question: GetLastMessage) -> LastMessage:
    """Return the id of a partition's last message, or the last position if there is no message."""
    partition = stored(owner, question.topic)
    ledger_id, entry_id, batch_index = partition.last_message()
    if entry_id < 0:
        ledger_id, entry_id = partition.last_confirmed
    size = 0
    if batch_index >= 0:
        ledger = partition.find(ledger_id)
        assert ledger is not None, ledger_id
        size = int(ledger.messages[entry_id])
    return LastMessage(ledger_id, entry_id, batch_index, size)


def find_by_time(owner: AdministeredOwner, question: FindByTime) -> Position:
    """Return the position of the first entry published at or after a time.

    Without such an entry it is the position that the next entry will have.
    """
    partition = stored(owner, question.topic)
    return _following(partition, partition.mark_delete_before_time(question.time_ms))


def _following(partition: Partition, position: Position) -> Position:
    """Return the position of the entry that follows a position, in the same ledger or a later one."""
    for ledger in partition.ledgers_from(position[0]):
        entry_id = position[1] + 1 if ledger.ledger_id == position[0] else 0
        if entry_id < ledger.entries:
            return ledger.ledger_id, entry_id
    return partition.last_confirmed[0], partition.last_confirmed[1] + 1


def find_by_index(owner: AdministeredOwner, question: FindByIndex) -> Position:
    """Return the position of the entry that has the message of a given number, counted from the topic's beginning.

    Raises Refusal.
    """
    partition, index = stored(owner, question.topic), question.index
    for ledger in partition.ledgers:
        if ledger.entries and ledger.first_message <= index < ledger.next_message:
            numbers = ledger.column("message_index")[:ledger.entries]
            within = index - ledger.first_message + int(numbers[0])
            return ledger.ledger_id, int(np.searchsorted(numbers, within, "right")) - 1
    raise Refusal(api.MetadataError, "Message not found")


# -- showing messages: those that a reader can get, so no marker, and none in a transaction that is open or was aborted

def peek(owner: AdministeredOwner, question: Peek) -> StoredEntry:
    """Return the n-th unacknowledged entry of a subscription.  Raises Refusal if there are fewer."""
    partition, name = stored(owner, question.topic), question.subscription
    cursor = partition.discarded
    if has_subscription(partition, name):
        cursor = subscription_of(partition, name).cursor
    return _shown(partition, _nth(partition, cursor, question.number))


def entry(owner: AdministeredOwner, question: GetEntry) -> StoredEntry:
    """Return the stored entry at a position.  Raises Refusal if there is none."""
    return _shown(stored(owner, question.topic), question.position)


def examine(owner: AdministeredOwner, question: Examine) -> StoredEntry | None:
    """Return a partition's n-th stored entry, counted from the first one forwards or from the last one backwards.

    If there are fewer entries, return the last one in that direction; None if there is none.
    """
    partition, number = stored(owner, question.topic), max(1, question.number)
    ledgers = partition.readable_ledgers
    end: Position | None = None
    for ledger in reversed(ledgers) if question.from_latest else ledgers:
        entries = np.flatnonzero(~partition.unreadable(ledger, 0, ledger.entries))
        if number <= len(entries):
            return _shown(partition, (ledger.ledger_id, int(entries[-number if question.from_latest else number - 1])))
        number -= len(entries)
        if len(entries):
            end = ledger.ledger_id, int(entries[0 if question.from_latest else -1])
    return None if end is None else _shown(partition, end)


def page(owner: AdministeredOwner, question: GetPage) -> StoredPage:
    """Return stored entries in order: all, or those that a subscription has not acknowledged.  Raises Refusal."""
    partition = stored(owner, question.topic)
    cursor = partition.discarded
    if question.subscription is not None:
        cursor = subscription_of(partition, question.subscription).cursor
    begin = max(question.position or EARLIEST, cursor.mark_delete)
    found: list[StoredEntry] = []
    size, passed_entries, passed_messages, has_more = 0, 0, 0, False
    for ledger, entries in _kept(partition, cursor, begin, from_latest=question.from_latest):
        passed = entries[:max(0, question.skipped - passed_entries)]
        if len(passed):
            passed_entries += len(passed)
            passed_messages += int(cursor.messages_of(ledger, passed).sum())
        for entry_id in entries[len(passed):].tolist():
            has_more = len(found) >= question.entries_max or (size >= question.bytes_max and bool(found))
            if has_more:
                break
            one = _shown(partition, (ledger.ledger_id, entry_id))
            size += len(one.data) * 3 // 4
            has_more = bool(found) and size > question.bytes_max
            if has_more:
                break
            found.append(one)
        if has_more:
            break
    if question.from_latest:
        found.reverse()
    return StoredPage(found, [_left(cursor, one) for one in found], has_more, passed_entries, passed_messages)


def _kept(partition: Partition, cursor: Cursor, begin: Position, *,
          from_latest: bool) -> Iterator[tuple[StoredLedger, NDArray[np.int64]]]:
    """Yield (ledger, entries (n,)) from a position on that the cursor has left and readers can get, in stretches.

    from_latest: the last ones come first.
    """
    way = -1 if from_latest else 1
    for ledger in [ledger for ledger in partition.readable_ledgers if ledger.ledger_id >= begin[0]][::way]:
        first = max(0, begin[1]) if ledger.ledger_id == begin[0] else 0
        for start in range(first, ledger.entries, _STRETCH)[::way]:
            end = min(start + _STRETCH, ledger.entries)
            is_kept = ~cursor.acknowledged(ledger.ledger_id, start, end) & ~partition.unreadable(ledger, start, end)
            if is_kept.any():
                yield ledger, (np.flatnonzero(is_kept) + start)[::way]


def _left(cursor: Cursor, one: StoredEntry) -> list[int]:
    """Return the words of an ack set with the messages of an entry that a cursor has left; []: all."""
    bits = cursor.parts.get(one.ledger, {}).get(one.entry)
    return [] if bits is None else [bits >> at & (1 << 64) - 1 for at in range(0, bits.bit_length(), 64)]


def _shown(partition: Partition, position: Position | None) -> StoredEntry:
    """Return the entry at a position with its stored bytes.  Raises Refusal if there is no such entry."""
    ledger = partition.find(position[0]) if position is not None else None
    if position is None or ledger is None or not 0 <= position[1] < ledger.entries or (
            partition.limit is not None and position >= partition.limit) \
            or partition.unreadable(ledger, position[1], position[1] + 1)[0]:
        raise Refusal(api.MetadataError, "Message not found")
    row = ledger.index[position[1]]
    with open(ledger.ledger_path, "rb", buffering=0) as file:      # a sealed ledger is not kept open
        raw = os.pread(file.fileno(), int(row["size"]), int(row["offset"]))
    return StoredEntry(position[0], position[1], base64.b64encode(raw).decode(), timestamp=int(row["broker_time"]),
                       index=int(row["message_index"]) + int(row["messages"]) - 1)
