"""Answers to questions about delayed messages: list them, cancel them, give them another time.

Whether an entry waits does not depend on the subscription. So every change here holds for all subscriptions of the
partition.
"""
from collections import defaultdict
from itertools import groupby

import numpy as np

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin.questions import Cancel, DelayedMessages, GetDelayed, Reschedule
from geminga.storage.commands.topic_lookup import stored
from geminga.storage.cursors.cursor import SKIPPED
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.delayed import reports
from geminga.storage.delayed.index import DelayedIndex
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics import acknowledge
from geminga.storage.open_topics.acknowledge import Acks
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.durability import Durability
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.topics.partition import Partition
from geminga.storage.upkeep.delayed_scheduler import DelayedScheduler

_HOUR_MS = 3_600_000
_NOTHING = DelayedMessages(waiting=0, next_due_ms=None, windows=0, index_bytes=0, memory_bytes=0, rows=[])


def _index_of(decisions: Decisions, schedules: DelayedScheduler, partition: Partition) -> DelayedIndex | None:
    """Return the partition's delayed index, advanced to now; None without an index or with delayed delivery off."""
    if partition.schedule is None or not partition.policies.delayed_delivery:
        return None
    schedules.complete(partition, decisions.now_ms)
    if schedules.advance(partition, decisions.now_ms):
        decisions.wake(partition)
    return partition.schedule


def delayed(decisions: Decisions, topics: TopicTable, schedules: DelayedScheduler,
            question: GetDelayed) -> DelayedMessages:
    """Count waiting delayed entries, and list those due in [first_ms, end_ms).

    The list has a row for each window of the index, each hour, or each entry. Hours and windows that reach into the
    range are counted as a whole.
    """
    partition = stored(topics, question.topic)
    index = _index_of(decisions, schedules, partition)
    if index is None:
        return _NOTHING
    try:
        due = _next_due(partition, index, 0, NEVER_MS, 1)
        rows = _rows(partition, index, question)
    except CorruptFile as error:
        index.rebuild(str(error))
        schedules.look(partition)
        decisions.wake(partition)
        why = "The index of delayed messages was damaged, and is rebuilt; ask again"
        raise Refusal(api.ServiceNotReady, why) from error
    return DelayedMessages(partition.delayed, due[0][0] if due else None, index.windows, index.store.files.size,
                           index.memory_bytes, rows)


def next_due_ms(index: DelayedIndex, about_ms: int) -> int:
    """Return when the next delayed entry falls due, to the millisecond, reading its window file if necessary.

    about_ms: the answer if that file is damaged; the index is rebuilt when the window falls due.
    """
    try:
        return next((due_ms for due_ms, _, _ in reports.next_due(index, 0, NEVER_MS, 1)), NEVER_MS)
    except CorruptFile:
        return about_ms


def _rows(partition: Partition, index: DelayedIndex, question: GetDelayed) -> list[dict[str, object]]:
    """Return the rows by entry, hour or window that a GetDelayed question asks for.  Raises CorruptFile."""
    bounds = question.first_ms, question.end_ms
    if question.by == "message":
        return _messages(partition, index, *bounds, question.at_most)
    counts = _counts(index, *bounds, by_hour=question.by == "hour")
    return [{"from": first, "to": end, "entries": entries} for first, end, entries in counts[:question.at_most]]


def _counts(index: DelayedIndex, first_ms: int, end_ms: int, *, by_hour: bool) -> list[tuple[int, int, int]]:
    """Return (start, end, entries) of each window of a delayed index, or of each hour.

    An hour has the windows that begin in it; a window longer than an hour is a row of its own.
    """
    windows = reports.count_by_window(index, first_ms, end_ms)
    if not by_hour:
        return windows
    counts = []
    for hour, some in groupby(windows, key=lambda window: window[0] // _HOUR_MS):
        _, ends, entries = zip(*some, strict=True)
        counts.append((hour * _HOUR_MS, -(-max(ends) // _HOUR_MS) * _HOUR_MS, sum(entries)))
    return counts


def _messages(partition: Partition, index: DelayedIndex, first_ms: int, end_ms: int,
              at_most: int) -> list[dict[str, object]]:
    """Return a row for each waiting delayed entry due in [first_ms, end_ms), in the order of delivery times."""
    due = _next_due(partition, index, first_ms, end_ms, at_most)
    by_ledger: dict[int, list[int]] = defaultdict(list)
    for _, ledger_id, entry_id in due:
        by_ledger[ledger_id].append(entry_id)
    columns_of: dict[Position, tuple[int, int, int]] = {}
    for ledger_id, entries in by_ledger.items():
        ledger = partition.find(ledger_id)
        assert ledger is not None, ledger_id      # the index forgets a ledger before it is deleted
        columns = (ledger.column(name)[entries].tolist() for name in ("publish_time", "messages", "size"))
        columns_of |= zip(((ledger_id, entry_id) for entry_id in entries), zip(*columns, strict=True), strict=True)
    rows: list[dict[str, object]] = []
    for due_ms, ledger_id, entry_id in due:
        published_ms, messages, size = columns_of[ledger_id, entry_id]
        rows.append({"id": f"{ledger_id}:{entry_id}", "partition": partition.name.partition, "deliver_at": due_ms,
                     "publish_time": published_ms, "messages": messages, "bytes": size})
    return rows


def _next_due(partition: Partition, index: DelayedIndex, first_ms: int, end_ms: int,
              at_most: int) -> list[tuple[int, int, int]]:
    """Return what reports.next_due does, without entries of aborted transactions.  Raises CorruptFile."""
    asked = at_most
    while True:
        due = reports.next_due(index, first_ms, end_ms, asked)
        kept = [row for row in due if not partition.discarded.is_acknowledged(*row[1:])]
        if len(kept) >= at_most or len(due) < asked:
            return kept[:at_most]
        asked *= 2


def _waits(decisions: Decisions, schedules: DelayedScheduler, partition: Partition, position: Position) -> bool | None:
    """Return whether the entry waits for its delivery time; None if it does not exist."""
    ledger, index = partition.find(position[0]), _index_of(decisions, schedules, partition)
    if ledger is None or position[1] >= ledger.entries:
        return None
    return index is not None and index.time_of(*position) is not None \
        and not partition.discarded.is_acknowledged(*position)


def cancel(decisions: Decisions, topics: TopicTable, durability: Durability, schedules: DelayedScheduler,
           question: Cancel) -> bool | None:
    partition, (ledger_id, entry_id) = stored(topics, question.topic), question.position
    if waits := _waits(decisions, schedules, partition, question.position):
        entries, ledger = np.array([entry_id]), partition.find(ledger_id)
        assert ledger is not None, question
        for subscription in partition.subscriptions.values():
            acknowledge.move(decisions, subscription, Acks(single={ledger_id: [entry_id]}), SKIPPED)
        partition.discarded.acknowledge(ledger, entries)
        decisions.note_many(partition, journal_ops.acknowledged(
            partition.partition_id, partition.discarded.subscription_id, ledger_id, entries))
        # After a kill between the two steps the entry falls due, and no consumer gets it. In the other order it would
        # never fall due, and stay in all backlogs for ever.
        durability.commit_and_sync()
        _amend(decisions, schedules, partition, question.position, None)
    return waits


def reschedule(decisions: Decisions, topics: TopicTable, schedules: DelayedScheduler,
               question: Reschedule) -> bool | None:
    partition = stored(topics, question.topic)
    if waits := _waits(decisions, schedules, partition, question.position):
        _amend(decisions, schedules, partition, question.position, max(question.deliver_at_ms, decisions.now_ms))
    return waits


def _amend(decisions: Decisions, schedules: DelayedScheduler, partition: Partition, position: Position,
           deliver_at_ms: int | None) -> None:
    """Change the delivery time of a delayed entry, None to cancel it.  The change is on disk when this returns."""
    assert partition.schedule is not None, partition
    partition.schedule.amend(*position, deliver_at_ms)
    schedules.look(partition)
    decisions.wake(partition)
