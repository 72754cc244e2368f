"""Answers to questions about how a topic is stored: its ledgers, cursors and compacted view."""
import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.admin import figures
from geminga.storage.admin.questions import GetStorage, GetStored
from geminga.storage.commands.topic_lookup import stored, topic_of
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.statistics.columns import Topic, durable, is_named, to_redeliver
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription

_RUNS_MAX = 1_000          # of acknowledged entries beyond a mark-delete position, in one answer


def storage(topics: TopicTable, question: GetStorage) -> figures.StorageFigures:
    topic = topic_of(topics, question.topic)
    subscriptions, view = topic.subscriptions.values(), topic.view
    return figures.StorageFigures(
        entries_in=topic.entries_in, last_confirmed=topic.last_confirmed,
        is_terminated=isinstance(topic, Partition) and topic.is_terminated,
        waiting_cursors=sum(map(_is_waiting, subscriptions)) if topic.is_persistent else 0,
        view=None if view is None else figures.ViewFigures(view.number, view.manifest.entries, view.manifest.size),
        ledgers=_ledgers(topic),
        cursors={one.name: _cursor(one) for one in subscriptions if is_named(topic, one)})


def _ledgers(topic: Topic) -> list[figures.LedgerFigures]:
    return [figures.LedgerFigures(ledger.ledger_id, ledger.entries, ledger.size - format.HEADER_SIZE, ledger.created_ms)
            for ledger in topic.ledgers]


def _is_waiting(subscription: Subscription) -> bool:
    """Whether the subscription has consumers and has delivered everything once."""
    (ledger_id, entry_id), dispatcher = subscription.read, subscription.dispatcher
    if dispatcher is None or (ledger_id, entry_id - 1) < subscription.partition.last_confirmed:
        return False
    return not (dispatcher.reads_all_first and to_redeliver(subscription))


def _cursor(subscription: Subscription) -> figures.CursorFigures:
    topic, cursor = subscription.partition, subscription.cursor
    runs = acknowledged_runs(cursor, topic.ledgers)
    first = [(ledger_id, before, last) for ledger_id, some in runs for before, last in some[:_RUNS_MAX].tolist()]
    return figures.CursorFigures(
        mark_delete=cursor.mark_delete, read=subscription.read, settled=sum(cursor.totals),
        delivered=_entries_between(subscription) if topic.is_persistent else 0,
        has_consumers=bool(subscription.consumers), is_waiting=topic.is_persistent and _is_waiting(subscription),
        to_redeliver=to_redeliver(subscription), run_count=sum(len(some) for _, some in runs), runs=first[:_RUNS_MAX])


def acknowledged_runs(cursor: Cursor, ledgers: list[Ledger]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return [(ledger id, (n, 2))]: runs of acknowledged entries beyond the mark-delete position, by ledger.

    A row has the entry before the run and the last entry of the run.
    """
    runs = []
    for ledger in ledgers if cursor.bitmaps else ():
        if ledger.ledger_id in cursor.bitmaps and ledger.ledger_id >= cursor.mark_delete[0]:
            first = cursor.mark_delete[1] + 1 if ledger.ledger_id == cursor.mark_delete[0] else 0
            # One unacknowledged entry is added on either side, so that every run has two edges.
            settled = np.zeros(ledger.entries - first + 2, bool)
            settled[1:-1] = cursor.acknowledged(ledger.ledger_id, first, ledger.entries)
            runs.append((ledger.ledger_id, np.flatnonzero(np.diff(settled)).reshape(-1, 2) + (first - 1)))
    return runs


def _entries_between(subscription: Subscription) -> int:
    """Return the number of entries from a subscription's first unacknowledged one to the next one to deliver."""
    (ledger_id, entry_id), (read_ledger, read_entry) = subscription.cursor.mark_delete, subscription.read
    return 1 + sum(min(read_entry if ledger.ledger_id == read_ledger else ledger.entries, ledger.entries)
                   - (entry_id + 1 if ledger.ledger_id == ledger_id else 0)
                   for ledger in subscription.partition.ledgers_from(ledger_id) if ledger.ledger_id <= read_ledger)


def stored_topic(decisions: Decisions, topics: TopicTable, question: GetStored) -> figures.StoredTopic:
    partition = stored(topics, question.topic)
    return figures.StoredTopic(
        created_ms=topics.catalogue.topics.created_ms(partition.name.base) or 0, answered_ms=decisions.now_ms,
        ledgers=_ledgers(partition),
        cursors={subscription.name: figures.StoredCursor(subscription.cursor.mark_delete, subscription.advanced_ms,
                                                         subscription.cursor.backlog(partition.ledgers))
                 for subscription in durable(partition)})
