"""Answers why a subscription's consumers receive nothing more, with what each of them holds."""
import os
from itertools import islice
from typing import Any

from geminga.proto import names
from geminga.proto.errors import ProtocolError
from geminga.proto.sends import BadChecksum, key_of
from geminga.storage.admin import delayed_messages
from geminga.storage.admin.context import AdministeredOwner
from geminga.storage.admin.figures import Holder
from geminga.storage.admin.questions import Standstill, Why
from geminga.storage.admin.subscriptions import all_parked
from geminga.storage.commands.consumers import held_messages
from geminga.storage.commands.topic_lookup import subscription_of, topic_of
from geminga.storage.cursors.cursor import REASONS
from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.dispatch.shared import Shared
from geminga.storage.enforcement import rate_limiter
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.statistics.columns import came_ms, kind_of
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Subscription, SubType
from geminga.storage.transactions.pending import messages_of

_CAUSES_MAX = 100         # parked entries, and transactions, in one answer
_CONSUMERS_MAX = 100      # in one answer; consumers that hold the most come first
_KEY_MAX = 200            # characters of a key that are shown


def why(owner: AdministeredOwner, question: Why) -> Standstill:
    """Return the state of a subscription, with the causes that keep its consumers from receiving more."""
    topic = topic_of(owner, question.topic)
    subscription = subscription_of(topic, question.subscription)
    topic.now_ms = owner.now_ms
    kind = kind_of(subscription)
    consumers = sorted((_holder(owner, subscription, one) for one in subscription.consumers),
                       key=lambda holder: -holder.messages)
    return Standstill(
        str(question.topic), subscription.name, "None" if kind < 0 else SubType.Name(SubType.ValueType(kind)),
        subscription.cursor.backlog(topic.ledgers),
        (came_ms(subscription) or None) if isinstance(topic, Partition) else None,
        _messages(subscription), _causes(owner, subscription), consumers[:_CONSUMERS_MAX], len(consumers))


def _holder(owner: AdministeredOwner, subscription: Subscription, consumer: Consumer) -> Holder:
    session, dispatcher = owner.sessions.get((consumer.worker, consumer.connection)), subscription.dispatcher
    # Shared counts while it delivers; other dispatchers have to search.
    messages = consumer.unacknowledged if isinstance(dispatcher, Shared) else held_messages(consumer)
    return Holder(
        consumer.name, session.address.removeprefix("/") if session else "", session.client_version if session else "",
        consumer.connected_ms, consumer.acked_ms, consumer.consumed_ms, messages, consumer.permits,
        not isinstance(dispatcher, Exclusive) or dispatcher.active is consumer)


def _messages(subscription: Subscription) -> dict[str, int]:
    """Return how many messages were published since the subscription began, and what became of them.

    The value of `published` is the sum of all other values. A non-persistent topic gives {}.
    """
    partition, cursor = subscription.partition, subscription.cursor
    if not isinstance(partition, Partition):
        return {}
    return {"published": partition.next_message - cursor.since, **dict(zip(REASONS, cursor.totals, strict=True)),
            "backlog": cursor.backlog_messages(partition.ledgers)}


def _causes(owner: AdministeredOwner, subscription: Subscription) -> list[dict[str, object]]:
    """Return {"cause": ..., and details} for each cause that keeps the subscription's consumers from receiving more."""
    topic = subscription.partition
    throttled, waiting = rate_limiter.causes(owner, subscription), owner.rates.causes(topic)
    transaction = _open_transaction(topic, subscription) if isinstance(topic, Partition) else []
    if isinstance(topic, Partition) and not subscription.cursor.backlog(topic.ledgers):
        return [{"cause": "end of topic" if topic.is_terminated else "no backlog"}, *waiting]
    parked = [{"cause": "parked", "message": "{}:{}".format(*position), "deaths": subscription.deaths_max}
              for position in all_parked(subscription)[:_CAUSES_MAX]]
    others: list[dict[str, Any]] = [{"cause": "no consumer"}]
    pending = _pending(subscription)
    if subscription.dispatcher is not None:
        others = subscription.dispatcher.causes()
    for cause in others:
        if cause["cause"] == "delayed messages" and topic.schedule is not None:
            cause["until_ms"] = delayed_messages.next_due_ms(topic.schedule, cause["until_ms"])
        elif cause["cause"] == "draining key":
            cause["key"] = _key(subscription, cause["message"])
    if throttled or transaction or (pending and not any(map(held_messages, subscription.consumers))):
        # The dispatcher sees nothing in the way and blames its consumers; a rate or a transaction is in the way.
        others = [cause for cause in others if cause["cause"] != "no acknowledgements"]
    return parked + transaction + pending + throttled + others + waiting


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
