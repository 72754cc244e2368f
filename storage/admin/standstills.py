"""Answers where a subscription stands: why its consumers receive nothing more, and the states of all entries."""
import os
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminga.proto import names
from geminga.proto.errors import ProtocolError
from geminga.proto.sends import BadChecksum, key_of
from geminga.storage.admin import delayed_messages
from geminga.storage.admin.figures import Holder
from geminga.storage.admin.priorities import waiting_by_priority
from geminga.storage.admin.questions import Standstill, Why
from geminga.storage.admin.subscriptions import all_parked
from geminga.storage.admin.table_questions import STATES, CursorMap, GetCursorMap
from geminga.storage.admin.topic_figures import account_of
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.commands.consumers import held_messages
from geminga.storage.commands.topic_lookup import cursor_of, stored, subscription_of, topic_of
from geminga.storage.cursors.pending_acks import NOBODY, TO_REDELIVER
from geminga.storage.dispatch.by_priority import ByPriority
from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.dispatch.shared import Shared
from geminga.storage.enforcement import rate_limiter
from geminga.storage.enforcement.rate_limiter import RateLimiter
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.open_topics import dead_letters
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.statistics.columns import came_ms, kind_of
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Subscription, SubType
from geminga.storage.transactions.pending import messages_of

_BLAME = "no acknowledgements", "no answer of the cluster"      # causes of a dispatcher that sees nothing in the way
_CAUSES_MAX = 100         # parked entries, and transactions, in one answer
_CONSUMERS_MAX = 100      # in one answer; consumers that hold the most come first
_KEY_MAX = 200            # characters of a key that are shown
_MAPPED_MAX = 2_000_000   # entries whose states one map looks at one by one: some 20 ms
_STRETCH = 1 << 16        # entries of a ledger that are looked at together
_LEDGERS_MAX = 200        # listed in one map
_ACKNOWLEDGED, _OUT, _AGAIN, _PARKED, _DELAYED, _WAITING = range(len(STATES))


def why(decisions: Decisions, clients: Clients, topics: TopicTable, rates: RateLimiter, question: Why) -> Standstill:
    topic = topic_of(topics, question.topic)
    subscription = cursor_of(topic, question.subscription)
    topic.now_ms = decisions.now_ms
    kind = kind_of(subscription)
    consumers = sorted((_holder(clients, subscription, consumer) for consumer in subscription.consumers),
                       key=lambda holder: -holder.messages)
    return Standstill(
        str(question.topic), subscription.name, "None" if kind < 0 else SubType.Name(SubType.ValueType(kind)),
        subscription.cursor.backlog(topic.ledgers),
        (came_ms(subscription) or None) if isinstance(topic, Partition) else None,
        account_of(topic, subscription) if isinstance(topic, Partition) else {},
        _causes(topics.catalogue, rates, subscription), consumers[:_CONSUMERS_MAX], len(consumers),
        waiting_by_priority(subscription))


def _holder(clients: Clients, subscription: Subscription, consumer: Consumer) -> Holder:
    session, dispatcher = clients.sessions.of(consumer), subscription.dispatcher
    # Shared counts while it delivers; other dispatchers have to search.
    messages = consumer.unacknowledged if isinstance(dispatcher, Shared) else held_messages(consumer)
    return Holder(
        consumer.name, session.address.removeprefix("/") if session else "", session.client_version if session else "",
        consumer.connected_ms, consumer.acked_ms, consumer.consumed_ms, messages, consumer.permits,
        not isinstance(dispatcher, Exclusive) or dispatcher.active is consumer)


def _causes(catalogue: Catalogue, rates: RateLimiter, subscription: Subscription) -> list[dict[str, object]]:
    """Return {"cause": ..., and details} for each cause that keeps the subscription's consumers from receiving more."""
    topic = subscription.partition
    throttled, waiting = rate_limiter.causes(catalogue, subscription), rates.causes(topic)
    transaction = _open_transaction(topic, subscription) if isinstance(topic, Partition) else []
    if isinstance(topic, Partition) and not subscription.cursor.backlog(topic.ledgers):
        is_over = topic.is_terminated and not topic.name.is_segment      # a scalable topic goes on in other segments
        return [{"cause": "end of topic" if is_over else "no backlog"}, *waiting, *_filtered(subscription)]
    parked: list[dict[str, Any]] = [
        {"cause": "parked", "message": "{}:{}".format(*position), "deaths": subscription.deaths_max}
        for position in all_parked(subscription)[:_CAUSES_MAX]]
    if (dead := sum(len(entries) for _, entries in dead_letters.waiting(subscription))):
        parked.append({"cause": "dead letters", "entries": dead, "error": subscription.mover_error})
    others: list[dict[str, Any]] = [{"cause": "no consumer"}]
    pending = _pending(subscription)
    if subscription.dispatcher is not None:
        others = subscription.dispatcher.causes()
    if subscription.remote is not None:
        others = [{"cause": "no answer of the cluster" if subscription.consumers else "no replicator",
                   "cluster": subscription.remote}]
    for cause in others:
        if cause["cause"] == "delayed messages" and topic.schedule is not None:
            cause["until_ms"] = delayed_messages.next_due_ms(topic.schedule, cause["until_ms"])
        elif cause["cause"] == "draining key":
            cause["key"] = _key(subscription, cause["message"])
    if throttled or transaction or (pending and not any(map(held_messages, subscription.consumers))):
        # The dispatcher sees nothing in the way and blames its consumers; a rate or a transaction is in the way.
        others = [cause for cause in others if cause["cause"] not in _BLAME]
    return parked + transaction + pending + throttled + others + waiting + _filtered(subscription)


def _filtered(subscription: Subscription) -> list[dict[str, Any]]:
    """Return the messages that the subscription's filter kept from its consumers, as a cause; [] without any."""
    if subscription.sieve is None or not subscription.sieve.rejected:
        return []
    return [{"cause": "filter", "messages": subscription.sieve.rejected, "filter": subscription.sieve.expression.text}]


def _pending(subscription: Subscription) -> list[dict[str, Any]]:
    """Return a cause for each open transaction that acknowledges messages, which are delivered only if it aborts."""
    if subscription.withheld is None:
        return []
    return [{"cause": "acknowledged in a transaction", "transaction": names.transaction_text(transaction),
             "messages": messages}
            for transaction, acks in islice(subscription.withheld.by_transaction.items(), _CAUSES_MAX)
            if (messages := messages_of(subscription, acks))]


def _open_transaction(topic: Partition, subscription: Subscription) -> list[dict[str, Any]]:
    """Return the open transaction that a subscription waits for, as a cause; [] if it waits for none."""
    transactions = topic.transactions
    if transactions is None or transactions.limit is None or subscription.read < transactions.limit:
        return []
    (ledger_id, first), oldest = transactions.limit, transactions.oldest
    assert oldest is not None, transactions
    messages = sum(
        subscription.cursor.unacknowledged_messages(ledger, first if ledger.ledger_id == ledger_id else 0,
                                                    ledger.entries)
        for ledger in topic.ledgers_from(ledger_id))
    if not messages:
        return []
    began = topic.find(ledger_id)
    assert began is not None, (topic, ledger_id)      # none is deleted from the limit on
    return [{"cause": "open transaction", "transaction": names.transaction_text(oldest), "messages": messages,
             "since_ms": int(began.column("broker_time")[first])}]


def _key(subscription: Subscription, message: str) -> str | None:
    """Return the key of an entry, "ledger:entry", as text; None if the entry has none or cannot be read."""
    ledger_id, entry_id = map(int, message.split(":"))
    ledger = subscription.partition.find(ledger_id)
    if not isinstance(ledger, Ledger):
        return None
    row = ledger.index[entry_id]
    try:
        key = key_of(os.pread(ledger.descriptor, int(row["size"]), int(row["offset"])))
    except (BadChecksum, ProtocolError, OSError):
        return None
    return None if key is None else key.decode(errors="backslashreplace")[:_KEY_MAX]


# -- the map of a cursor

def cursor_map(topics: TopicTable, question: GetCursorMap) -> CursorMap:
    partition = stored(topics, question.topic)
    subscription = subscription_of(partition, question.subscription)
    ledgers = partition.ledgers
    before = [0, *np.cumsum([ledger.entries for ledger in ledgers]).tolist()]
    made = _Segments(before[-1], min(question.segments, before[-1]))
    mark_delete, left = subscription.cursor.mark_delete, _MAPPED_MAX
    for ledger, base in zip(ledgers, before, strict=False):
        done = ledger.entries if ledger.ledger_id < mark_delete[0] else (
            mark_delete[1] + 1 if ledger.ledger_id == mark_delete[0] else 0)
        made.add_run(base, base + done, _ACKNOWLEDGED)
        if _is_untouched(subscription, ledger):
            made.add_run(base + done, base + ledger.entries, _WAITING)
            continue
        end = min(ledger.entries, done + left)
        left -= end - done
        for first in range(done, end, _STRETCH):
            made.add(base + first, _states(subscription, ledger, first, min(end, first + _STRETCH)))
        made.add_run(base + end, base + ledger.entries, _WAITING)
    starts = np.searchsorted(before, made.edges[:-1], side="right") - 1
    return CursorMap(
        str(question.topic), before[-1], mark_delete, subscription.read,
        dict(zip(STATES, made.counts.sum(axis=0).tolist(), strict=True)), made.counts.tolist(),
        [(ledgers[at].ledger_id, edge - before[at])
         for at, edge in zip(starts.tolist(), made.edges.tolist(), strict=False)],
        [(ledger.ledger_id, base, ledger.entries)
         for ledger, base in zip(ledgers, before, strict=False)][-_LEDGERS_MAX:], len(ledgers), left > 0)


class _Segments:
    """Counts of entries by state, in segments of equal size."""

    def __init__(self, entries: int, size: int) -> None:
        self.edges = np.arange(size + 1) * entries // max(1, size)      # (size + 1,): first entries, and the end
        self.counts = np.zeros((size, len(STATES)), np.int64)

    def __repr__(self) -> str:
        return f"<_Segments n={len(self.counts)} entries={self.edges[-1]}>"

    def add_run(self, first: int, end: int, state: int) -> None:
        """Count entries first .. end - 1, which all have one state."""
        if first < end:
            overlap = np.minimum(self.edges[1:], end) - np.maximum(self.edges[:-1], first)
            self.counts[:, state] += np.maximum(overlap, 0)

    def add(self, first: int, states: NDArray[np.uint8]) -> None:
        """Count entries from `first` on with these states (n,)."""
        bounds = np.clip(self.edges, first, first + len(states))
        segments = np.repeat(np.arange(len(self.counts)), np.diff(bounds))
        counts = np.bincount(segments * len(STATES) + states, minlength=self.counts.size)
        self.counts += counts.reshape(self.counts.shape)


def _is_untouched(subscription: Subscription, ledger: Ledger) -> bool:
    """Whether all entries of a ledger behind the mark-delete position just wait to be delivered."""
    cursor, schedule, ledger_id = subscription.cursor, subscription.partition.schedule, ledger.ledger_id
    return ledger_id not in cursor.bitmaps and ledger_id not in cursor.deaths.arrays and not cursor.dead \
        and ledger_id > subscription.read[0] and (schedule is None or (
            not schedule.bits.knows(ledger_id) and schedule.end(ledger) == ledger.entries))


def _states(subscription: Subscription, ledger: Ledger, first: int, end: int) -> NDArray[np.uint8]:
    """Return the states (n,) of a ledger's entries first .. end - 1."""
    cursor, dispatcher, ledger_id = subscription.cursor, subscription.dispatcher, ledger.ledger_id
    entries = np.arange(first, end)
    states = np.full(end - first, _WAITING, np.uint8)
    if isinstance(dispatcher, Shared):
        slots = dispatcher.pending.slots(ledger_id, entries)
        states[slots != NOBODY] = _OUT
        states[slots == TO_REDELIVER] = _AGAIN
        if isinstance(dispatcher, ByPriority):      # which keeps all that waits in these slots
            given = cursor.redeliveries.of(ledger_id, entries)
            states[(slots == TO_REDELIVER) & (True if given is None else given == 0)] = _WAITING
    elif dispatcher is not None and dispatcher.active is not None:
        read = subscription.read
        reached = end if ledger_id < read[0] else read[1] if ledger_id == read[0] else first
        states[:max(0, reached - first)] = _OUT
    if dispatcher is None or isinstance(dispatcher, Shared):
        states[_delayed(subscription, ledger, range(first, end)) & (states == _WAITING)] = _DELAYED
    if subscription.parks:
        states[subscription.parked(ledger_id, entries) - first] = _PARKED
    states[cursor.acknowledged(ledger_id, first, end)] = _ACKNOWLEDGED
    return states


def _delayed(subscription: Subscription, ledger: Ledger, entries: range) -> NDArray[np.bool_]:
    """Return which of a ledger's entries (n,) wait for their delivery times."""
    schedule, waits = subscription.partition.schedule, np.zeros(len(entries), bool)
    if schedule is None or not subscription.partition.policies.delayed_delivery:
        return waits
    if (known := schedule.waits(ledger.ledger_id, entries)) is not None:
        waits |= known
    if schedule.sorted_from is not None:
        waits[max(0, schedule.end(ledger) - entries.start):] = True
    return waits
