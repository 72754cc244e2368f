"""Questions of administration about delayed messages (queries.py): list, cancel, reschedule.

Whether an entry waits does not depend on the subscription. So every change here holds for all subscriptions of the
partition.
"""
from collections import defaultdict
from itertools import groupby

import numpy as np

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.commands.topic_lookup import stored
from geminga.storage.cursors.cursor import SKIPPED
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.delayed import reports
from geminga.storage.delayed.index import DelayedIndex
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import journal_ops
from geminga.storage.topics import acknowledge
from geminga.storage.topics.acknowledge import Acks
from geminga.storage.topics.partition import Partition

_HOUR_MS = 3_600_000


def _schedule_of(owner, found: Partition) -> DelayedIndex | None:
    """Return the delayed index as of now, None if nothing waits."""
    if found.schedule is None or not found.policies.delayed_delivery:
        return None
    owner.schedules.complete(found, owner.now_ms)
    if owner.schedules.advance(found, owner.now_ms):
        owner.wake(found)
    return found.schedule


def _delayed(owner, topic: TopicName, arguments: dict) -> dict:
    """Count waiting entries, and list those due in [first_ms, end_ms): by window of the index, by hour, or one by one.

    Hours and windows that reach into the range are counted as a whole.
    """
    found = stored(owner, topic)
    schedule, bounds, most = _schedule_of(owner, found), (arguments["first_ms"], arguments["end_ms"]), arguments["at_most"]
    if schedule is None:
        return {"waiting": 0, "next_due_ms": None, "windows": 0, "index_bytes": 0, "memory_bytes": 0, "rows": []}
    try:
        due_ms = next_due_ms(schedule, schedule.next_due_ms())
        if arguments["by"] == "message":
            rows = _messages(found, *bounds, most)
        else:
            counts = _counts(schedule, *bounds, by_hour=arguments["by"] == "hour")
            rows = [{"from": first, "to": end, "entries": entries} for first, end, entries in counts[:most]]
    except CorruptFile as error:
        schedule.rebuild(str(error))
        owner.schedules.look(found)
        owner.wake(found)
        raise Refusal(api.ServiceNotReady, "The index of what waits was damaged, and is made anew; ask again") from error
    return {"waiting": schedule.waiting, "next_due_ms": None if due_ms == NEVER_MS else due_ms, "windows": schedule.windows,
            "index_bytes": schedule.index_bytes, "memory_bytes": schedule.memory_bytes, "rows": rows}


def next_due_ms(schedule: DelayedIndex, about_ms: int) -> int:
    """Return when the next entry falls due, to the millisecond, reading its window file if necessary.

    If that file is damaged, the answer is the best known time.
    """
    try:
        return next((due_ms for due_ms, _, _ in reports.next_due(schedule, 0, NEVER_MS, 1)), NEVER_MS)
    except CorruptFile:      # is dealt with when it is needed
        return about_ms


def _counts(schedule: DelayedIndex, first_ms: int, end_ms: int, *, by_hour: bool) -> list[tuple[int, int, int]]:
    """Return (start, end, entries) of each window, or of each hour.

    An hour has the windows that begin in it; a window longer than an hour stands for itself.
    """
    windows = reports.count_by_window(schedule, first_ms, end_ms)
    if not by_hour:
        return windows
    counts = []
    for hour, some in groupby(windows, key=lambda window: window[0] // _HOUR_MS):
        _, ends, entries = zip(*some, strict=True)
        counts.append((hour * _HOUR_MS, -(-max(ends) // _HOUR_MS) * _HOUR_MS, sum(entries)))
    return counts


def _messages(found: Partition, first_ms: int, end_ms: int, at_most: int) -> list[dict]:
    """Return waiting entries in the order of their delivery times."""
    due, by_ledger, known = reports.next_due(found.schedule, first_ms, end_ms, at_most), defaultdict(list), {}
    for _, ledger_id, entry_id in due:
        by_ledger[ledger_id].append(entry_id)
    for ledger_id, entries in by_ledger.items():
        ledger = found.find(ledger_id)
        columns = (ledger.column(name)[entries].tolist() for name in ("publish_time", "messages", "size"))
        known |= zip(((ledger_id, entry_id) for entry_id in entries), zip(*columns, strict=True), strict=True)
    rows = []
    for due_ms, ledger_id, entry_id in due:
        published_ms, messages, size = known[ledger_id, entry_id]
        rows.append({"id": f"{ledger_id}:{entry_id}", "partition": found.name.partition, "deliverAt": due_ms, "publishTime": published_ms,
                     "messages": messages, "bytes": size})
    return rows


def _waits(owner, found: Partition, ledger_id: int, entry_id: int) -> bool | None:
    """Whether the entry waits; None if it does not exist."""
    ledger, schedule = found.find(ledger_id), _schedule_of(owner, found)
    if ledger is None or entry_id >= ledger.entries:
        return None
    return schedule is not None and schedule.time_of(ledger_id, entry_id) is not None


def _cancel(owner, topic: TopicName, arguments: dict) -> bool | None:
    """Cancel an entry for all subscriptions, also for new ones and after a seek.

    Return False if the entry does not wait, None if it does not exist.
    """
    found, (ledger_id, entry_id) = stored(owner, topic), arguments["position"]
    if waits := _waits(owner, found, ledger_id, entry_id):
        entries = np.array([entry_id])
        for subscription in found.subscriptions.values():
            acknowledge.move(owner, subscription, Acks(single={ledger_id: [entry_id]}), SKIPPED)
        found.discarded.acknowledge(found.find(ledger_id), entries)
        owner.note_many(found, journal_ops.acknowledged(
            found.partition_id, found.discarded.subscription_id, ledger_id, entries))
        owner.commit()      # who is killed here has it fall due for nobody; the other way round it would wait for ever
        _amend(owner, found, ledger_id, entry_id, None)
    return waits


def _reschedule(owner, topic: TopicName, arguments: dict) -> bool | None:
    """Give a waiting entry another delivery time; a past one means now.  Return as _cancel does."""
    found, (ledger_id, entry_id) = stored(owner, topic), arguments["position"]
    if waits := _waits(owner, found, ledger_id, entry_id):
        _amend(owner, found, ledger_id, entry_id, max(arguments["deliver_at_ms"], owner.now_ms))
    return waits


def _amend(owner, found: Partition, ledger_id: int, entry_id: int, deliver_at_ms: int | None) -> None:
    """Amend an entry.  The amendment is on disk when this returns."""
    found.schedule.amend(ledger_id, entry_id, deliver_at_ms)
    owner.schedules.look(found)
    owner.wake(found)


QUESTIONS = {"delayed": _delayed, "cancel": _cancel, "reschedule": _reschedule}
