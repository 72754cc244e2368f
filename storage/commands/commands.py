"""Commands of clients: a table with one function for each command, and the ends of connections.

Each function takes (owner, session, command).  It changes the owner's tables, notes ops for the journal, and puts
answers into the outbox.  Answers leave when the pass is durable.  A Refusal becomes the command's error answer.
"""
import traceback
from functools import partial
from typing import TYPE_CHECKING, Protocol

from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.commands.consumers import (
    close_consumer,
    consumer_stats,
    count_death,
    redeliver,
    remove_consumer,
    subscribe,
    unsubscribe,
)
from geminga.storage.commands.positions import get_last_message_id, seek
from geminga.storage.commands.producers import close_producer, create_producer, dismiss, expel_producer, remove_producer
from geminga.storage.commands.requests import T, refuse, withdraw
from geminga.storage.commands.subscriptions import close_consumers
from geminga.storage.commands.topics import forget_if_idle
from geminga.storage.commands.transactional_acks import acknowledge_in_transaction
from geminga.storage.commands.transactions import (
    add_partitions,
    add_subscriptions,
    end_transaction,
    new_transaction,
)
from geminga.storage.errors import NotDurable
from geminga.storage.runtime.log import log
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.session import Session
from geminga.storage.topics.subscription import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from geminga.storage.topics.subscription import Consumer, Producer

# A client that lost a permission while its command was parked.  When it tries again, it is told of the permission.
_EXPELLED = Refusal(api.ServiceNotReady, "Told to go before it was made; try again")


class _Command(Protocol):
    """A function that carries out one command of a client."""

    def __call__(self, owner: OwnerContext, session: Session, command: api.BaseCommand) -> None: ...


class _ParkableCommand(Protocol):
    """A function that carries out a command that may be parked.

    probed: whether the connection whose producer or consumer is in the way has answered a PING.
    """

    def __call__(
        self, owner: OwnerContext, session: Session, command: api.BaseCommand, *, probed: bool = False) -> None: ...


_PARKABLE: dict[int, _ParkableCommand] = {T.PRODUCER: create_producer, T.SUBSCRIBE: subscribe}
_COMMANDS: dict[int, _Command] = {
    T.CLOSE_PRODUCER: close_producer, T.CLOSE_CONSUMER: close_consumer, T.UNSUBSCRIBE: unsubscribe,
    T.REDELIVER_UNACKNOWLEDGED_MESSAGES: redeliver, T.SEEK: seek, T.GET_LAST_MESSAGE_ID: get_last_message_id,
    T.CONSUMER_STATS: consumer_stats, T.ACK: acknowledge_in_transaction, T.NEW_TXN: new_transaction,
    T.ADD_PARTITION_TO_TXN: add_partitions, T.ADD_SUBSCRIPTION_TO_TXN: add_subscriptions, T.END_TXN: end_transaction,
}


def carry_out(owner: OwnerContext, session: Session, command: api.BaseCommand, *, probed: bool = False) -> None:
    """Carry out a client's command.

    probed: whether the connection whose producer or consumer is in the way has answered a PING.

    Raises Refusal, StorageFull, CorruptFile.
    """
    if command.type in _PARKABLE:
        _PARKABLE[command.type](owner, session, command, probed=probed)
    else:
        _COMMANDS[command.type](owner, session, command)


def end_session(owner: OwnerContext, session: Session, *, by_client: bool) -> None:
    """Remove the producers and consumers of a session whose connection is closed.

    by_client: True if the client closed the connection or vanished, and may have died over an entry. False: its worker
    ended.
    """
    owner.sessions.pop((session.worker, session.connection), None)
    owner.discovery.ended((session.worker, session.connection))
    for kind, object_id in list(session.waiting):
        withdraw(owner, session, kind, object_id)
    for producer in list(session.producers.values()):
        remove_producer(owner, session, producer)
    for consumer in list(session.consumers.values()):
        if by_client and consumer.subscription.deaths_max:
            count_death(owner, consumer)
        remove_consumer(owner, session, consumer)
    session.producers.clear()
    session.consumers.clear()
    resume(owner, session, is_alive=False)


def abandon(owner: OwnerContext, session: Session) -> None:
    """Remove the session's producers and consumers from every table, after one of its commands failed halfway."""
    mine = session.worker, session.connection
    steps: list[Callable[[], object]] = [
        partial(withdraw, owner, session, kind, object_id) for kind, object_id in session.waiting]
    topics: list[Topic] = [*owner.by_name.values(), *owner.non_persistent.values()]
    for topic in topics:
        for producer in (*topic.producers.live.values(), *topic.producers.waiting):
            if (producer.worker, producer.connection) == mine:
                steps.append(partial(remove_producer, owner, session, producer))
        for subscription in list(topic.subscriptions.values()):
            for consumer in subscription.consumers:
                if (consumer.worker, consumer.connection) == mine:
                    steps.append(partial(remove_consumer, owner, session, consumer))
            if not (subscription.is_durable or subscription.consumers or subscription in owner.expected_readers):
                # The command created the subscription for a consumer, and failed before that was attached.
                steps.append(partial(topic.remove_subscription, subscription))
    steps.append(partial(resume, owner, session, is_alive=False))
    for step in steps:
        try:
            step()
        except NotDurable:
            raise
        except Exception:
            log.error(f"tables that a command left cannot be put in order: {traceback.format_exc()}", code="G291")
    tables: tuple[tuple[dict[int, Producer] | dict[int, Consumer], str], ...] = (
        (owner.producers, "producers"), (owner.consumers, "consumers"), (owner.non_persistent_producers, ""),
        (owner.replicators, ""))
    for table, counter in tables:
        for handle in [handle for handle, one in table.items() if (one.worker, one.connection) == mine]:
            del table[handle]
            if counter:
                owner.counters.add(counter, -1)
    session.producers.clear()
    session.consumers.clear()
    owner.discovery.ended(mine)


def resume(owner: OwnerContext, session: Session, *, is_alive: bool) -> None:
    """Carry out the parked commands that waited for this session's connection to answer a PING or to end."""
    for (other, kind, object_id), command in owner.parked.pop((session.worker, session.connection), {}).items():
        other.waiting.pop((kind, object_id), None)
        if owner.has(other):
            owner.carry_out(other, command, probed=is_alive)


def expel(owner: OwnerContext, session: Session, object_id: int, handle: int, *, is_producer: bool) -> None:
    """Close the session's producer or consumer, or withdraw its parked command, as its client lost a permission.

    object_id: the id that the client chose.  handle: the owner's number; 0: the worker does not know it yet.  The
    worker is answered in any case.
    """
    producer, consumer = session.producers.get(object_id), session.consumers.get(object_id)
    if is_producer and producer is not None and handle in (0, producer.handle):
        dismiss(owner, producer, _EXPELLED)
        forget_if_idle(owner, producer.partition)
    elif not is_producer and consumer is not None and handle in (0, consumer.handle):
        del session.consumers[object_id]
        remove_consumer(owner, session, consumer)
        _tell_closed(owner, session, object_id, consumer.handle, is_producer=False)
    elif handle:
        _tell_closed(owner, session, object_id, handle, is_producer=is_producer)
    else:
        command = withdraw(owner, session, T.PRODUCER if is_producer else T.SUBSCRIBE, object_id)
        if command is not None:
            refuse(owner, session, command, _EXPELLED)


def _tell_closed(owner: OwnerContext, session: Session, object_id: int, handle: int, *, is_producer: bool) -> None:
    """Tell the worker and the client that the producer or consumer is closed."""
    if is_producer:
        data, action = responses.close_producer(object_id), envelope.PRODUCER_GONE
    else:
        data, action = responses.close_consumer(object_id), envelope.CONSUMER_GONE
    owner.outbox(session.worker).reply(session.connection, data, action=action, object_id=object_id, handle=handle)


def expel_all(owner: OwnerContext, topic: Topic) -> None:
    """Close all producers and consumers of a topic, and remove its subscriptions that are not durable.

    Clients look the topic up again.
    """
    for producer in topic.producers.expel_all():
        expel_producer(owner, producer)
    for subscription in list(topic.subscriptions.values()):
        close_consumers(owner, subscription)
        if not subscription.is_durable:
            topic.remove_subscription(subscription)
