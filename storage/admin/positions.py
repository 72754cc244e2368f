"""Answers to questions about messages and positions: move subscriptions, find messages, show them."""
import base64
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.batches import MESSAGES_MAX
from geminga.proto.errors import Refusal
from geminga.storage.admin import questions
from geminga.storage.admin.table_questions import GetPage, StoredPage
from geminga.storage.commands import subscriptions
from geminga.storage.commands.topic_lookup import cursor_of, has_subscription, stored, subscription_of
from geminga.storage.cursors.batch_acks import signed_words
from geminga.storage.cursors.cursor import EXPIRED, Cursor
from geminga.storage.enforcement.message_ttl import published
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.ledgers.position import Position, entries_up_to
from geminga.storage.ledgers.readable import StoredLedger
from geminga.storage.open_topics import acknowledge, cleared_backlogs
from geminga.storage.open_topics.acknowledge import Acks
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.disk_space import DiskSpace
from geminga.storage.open_topics.durability import Durability
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription

_STRETCH = 1 << 16           # entries of a ledger that are looked at together

# -- moving a subscription

def clear(decisions: Decisions, topics: TopicTable, space: DiskSpace, question: questions.Clear) -> None:
    partition, name = stored(topics, question.topic), question.subscription
    if name is None:
        chosen = _all(partition)
    elif question.everywhere and not has_subscription(partition, name):
        return
    else:
        chosen = [cursor_of(partition, name)]
    for subscription in chosen:
        cleared_backlogs.keep(decisions, topics.catalogue, space, subscription, partition.last_confirmed,
                              asked_ms=question.asked_ms)
        acknowledge.skip_to(decisions, subscription, partition.last_confirmed)


def take_backlog_back(decisions: Decisions, clients: Clients, topics: TopicTable, durability: Durability,
                      question: questions.TakeBacklogBack) -> int | None:
    subscription = subscription_of(stored(topics, question.topic), question.subscription)
    if not (backlogs := cleared_backlogs.find(subscription, question.number)):
        return None
    subscriptions.close_consumers(decisions, clients, subscription)
    messages = sum(cleared_backlogs.take_back(decisions, topics.catalogue, subscription, one) for one in backlogs)
    durability.commit_and_sync()      # a row that is deleted first would leave a killed owner with neither cursor
    for one in backlogs:
        topics.catalogue.kept_topics.forget_cursor(one.row)
    return messages


def _all(partition: Partition) -> list[Subscription]:
    """Return all subscriptions of a partition, but no replication cursor.

    Requests about all subscriptions need the right to consume only, which does not include giving up what another
    cluster does not have yet.
    """
    return [subscription for subscription in partition.subscriptions.values() if subscription.remote is None]


def skip(decisions: Decisions, topics: TopicTable, space: DiskSpace, question: questions.Skip) -> None:
    partition = stored(topics, question.topic)
    subscription = cursor_of(partition, question.subscription)
    end = _nth(partition, subscription.cursor, question.entries) or partition.last_confirmed
    cleared_backlogs.keep(decisions, topics.catalogue, space, subscription, end, asked_ms=0)
    acknowledge.skip_to(decisions, subscription, end)


def _nth(partition: Partition, cursor: Cursor, number: int) -> Position | None:
    """Return the position of a cursor's n-th unacknowledged entry, counted from 1; None if there are fewer."""
    for ledger in partition.ledgers_from(cursor.mark_delete[0]):
        for first, end in cursor.unacknowledged(ledger, 0, ledger.entries):
            if number <= end - first:
                return ledger.ledger_id, first + number - 1
            number -= end - first
    return None


def reset(decisions: Decisions, clients: Clients, topics: TopicTable, space: DiskSpace,
          question: questions.Reset) -> None:
    partition, start = stored(topics, question.topic), None
    subscription = subscription_of(partition, question.subscription)
    if question.time_ms is not None:
        mark_delete = partition.mark_delete_before_time(question.time_ms)
    else:
        assert question.position is not None, question
        start = start_of(partition, question.position, question)
        mark_delete = partition.mark_delete_before(start[0])
    cleared_backlogs.keep(decisions, topics.catalogue, space, subscription, mark_delete, asked_ms=question.asked_ms)
    subscriptions.close_consumers(decisions, clients, subscription)
    subscriptions.reset_subscription(decisions, subscription, mark_delete)
    if start is not None:
        acknowledge.begin_within(decisions, subscription, *start)
    decisions.answer_needs_sync()


def start_of(partition: Partition, position: Position, place: questions.TopicPlace) -> tuple[Position, list[int]]:
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


def expire(decisions: Decisions, topics: TopicTable, question: questions.Expire) -> int | None:
    """Expire messages of one subscription, or of all: by their age in seconds, or up to a position.

    Returns the number of expired entries, None if the position does not exist yet.
    """
    partition, position = stored(topics, question.topic), None
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
            acknowledge.skip_to(decisions, subscription, end, EXPIRED)
        else:
            assert question.seconds is not None, question
            _expire_older(decisions, partition, subscription, decisions.now_ms - question.seconds * 1000)
        entries += before - subscription.cursor.backlog(partition.ledgers)
    decisions.counters.add("entries_expired", entries)
    return entries


def _expire_older(decisions: Decisions, partition: Partition, subscription: Subscription, by_ms: int) -> None:
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
            acknowledge.move(decisions, subscription, Acks(single={ledger.ledger_id: entries}), EXPIRED)
            decisions.answer_needs_sync()
            decisions.wake(partition)


def analyze(topics: TopicTable, question: questions.Analyze) -> questions.Backlog:
    partition = stored(topics, question.topic)
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
    return questions.Backlog(entries, messages, first, last)


def bytes_behind(topics: TopicTable, question: questions.BytesBehind) -> int:
    return stored(topics, question.topic).bytes_from(question.ledger, question.entry + 1)


# -- finding messages

def last_message(topics: TopicTable, question: questions.GetLastMessage) -> questions.LastMessage:
    partition = stored(topics, question.topic)
    ledger_id, entry_id, batch_index = partition.last_message()
    if entry_id < 0:
        ledger_id, entry_id = partition.last_confirmed
    size = 0
    if batch_index >= 0:
        ledger = partition.find(ledger_id)
        assert ledger is not None, ledger_id
        size = int(ledger.messages[entry_id])
    return questions.LastMessage(ledger_id, entry_id, batch_index, size)


def find_by_time(topics: TopicTable, question: questions.FindByTime) -> Position:
    partition = stored(topics, question.topic)
    return _following(partition, partition.mark_delete_before_time(question.time_ms))


def _following(partition: Partition, position: Position) -> Position:
    """Return the position of the entry that follows a position, in the same ledger or a later one."""
    for ledger in partition.ledgers_from(position[0]):
        entry_id = position[1] + 1 if ledger.ledger_id == position[0] else 0
        if entry_id < ledger.entries:
            return ledger.ledger_id, entry_id
    return partition.last_confirmed[0], partition.last_confirmed[1] + 1


def find_by_index(topics: TopicTable, question: questions.FindByIndex) -> Position:
    partition, index = stored(topics, question.topic), question.index
    for ledger in partition.ledgers:
        if ledger.entries and ledger.first_message <= index < ledger.next_message:
            numbers = ledger.column("message_index")[:ledger.entries]
            within = index - ledger.first_message + int(numbers[0])
            return ledger.ledger_id, int(np.searchsorted(numbers, within, "right")) - 1
    raise Refusal(api.MetadataError, "Message not found")


# -- showing messages: those that a reader can get, so no marker, and none in a transaction that is open or was aborted

def peek(topics: TopicTable, question: questions.Peek) -> questions.StoredEntry:
    partition, name = stored(topics, question.topic), question.subscription
    cursor = partition.discarded
    if has_subscription(partition, name):
        cursor = subscription_of(partition, name).cursor
    return _shown(partition, _nth(partition, cursor, question.number))


def entry(topics: TopicTable, question: questions.GetEntry) -> questions.StoredEntry:
    return _shown(stored(topics, question.topic), question.position)


def examine(topics: TopicTable, question: questions.Examine) -> questions.StoredEntry | None:
    partition, number = stored(topics, question.topic), max(1, question.number)
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


def page(topics: TopicTable, question: GetPage) -> StoredPage:
    partition = stored(topics, question.topic)
    cursor = partition.discarded
    if question.subscription is not None:
        cursor = subscription_of(partition, question.subscription).cursor
    begin = max(question.position or EARLIEST, cursor.mark_delete)
    shown: list[questions.StoredEntry] = []
    size, passed_entries, passed_messages, has_more = 0, 0, 0, False
    for ledger, entries in _kept(partition, cursor, begin, from_latest=question.from_latest):
        passed = entries[:max(0, question.skipped - passed_entries)]
        if len(passed):
            passed_entries += len(passed)
            passed_messages += int(cursor.messages_of(ledger, passed).sum())
        for entry_id in entries[len(passed):].tolist():
            has_more = len(shown) >= question.entries_max or (size >= question.bytes_max and bool(shown))
            if has_more:
                break
            stored_entry = _shown(partition, (ledger.ledger_id, entry_id))
            size += len(stored_entry.data) * 3 // 4
            has_more = bool(shown) and size > question.bytes_max
            if has_more:
                break
            shown.append(stored_entry)
        if has_more:
            break
    if question.from_latest:
        shown.reverse()
    return StoredPage(shown, [_ack_set(cursor, each) for each in shown], has_more, passed_entries, passed_messages)


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


def _ack_set(cursor: Cursor, stored_entry: questions.StoredEntry) -> list[int]:
    """Return the words of an ack set with the messages of an entry that a cursor has left; []: all."""
    bits = cursor.parts.get(stored_entry.ledger, {}).get(stored_entry.entry)
    return [] if bits is None else [bits >> shift & (1 << 64) - 1 for shift in range(0, bits.bit_length(), 64)]


def _shown(partition: Partition, position: Position | None) -> questions.StoredEntry:
    """Return the entry at a position with its stored bytes.  Raises Refusal if there is no such entry."""
    ledger = partition.find(position[0]) if position is not None else None
    if position is None or ledger is None or not 0 <= position[1] < ledger.entries or (
            partition.limit is not None and position >= partition.limit) \
            or partition.unreadable(ledger, position[1], position[1] + 1)[0]:
        raise Refusal(api.MetadataError, "Message not found")
    row = ledger.index[position[1]]
    with open(ledger.ledger_path, "rb", buffering=0) as file:      # a sealed ledger is not kept open
        raw = os.pread(file.fileno(), int(row["size"]), int(row["offset"]))
    return questions.StoredEntry(
        position[0], position[1], base64.b64encode(raw).decode(), timestamp=int(row["broker_time"]),
        index=int(row["message_index"]) + int(row["messages"]) - 1)
