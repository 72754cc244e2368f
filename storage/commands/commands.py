"""Commands of clients that an owner carries out, and the ends of connections.

Each function takes (owner, session, request), and is registered by `carries_out`.  It changes the owner's tables, notes
ops for the journal, and puts answers into the outbox.  Answers leave when the pass is durable.  A Refusal becomes the
command's error answer.
"""
import traceback
from functools import partial
from typing import TYPE_CHECKING, Protocol

from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T, request_of
from geminga.proto.errors import Refusal
from geminga.storage.commands import positions, transactional_acks, transactions  # noqa: F401 (they register commands)
from geminga.storage.commands.consumers import count_death, remove_consumer, subscribe
from geminga.storage.commands.producers import create_producer, dismiss, expel_producer, remove_producer
from geminga.storage.commands.requests import COMMANDS, refuse, withdraw
from geminga.storage.commands.subscriptions import close_consumers
from geminga.storage.commands.topics import forget_if_idle
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


class _ParkableCommand(Protocol):
    """A function that carries out a command that may be parked.

    probed: whether the connection whose producer or consumer is in the way has answered a PING.
    """

    def __call__(
        self, owner: OwnerContext, session: Session, command: api.BaseCommand, *, probed: bool = False) -> None: ...


_PARKABLE: dict[int, _ParkableCommand] = {T.PRODUCER: create_producer, T.SUBSCRIBE: subscribe}


def carry_out(owner: OwnerContext, session: Session, command: api.BaseCommand, *, probed: bool = False) -> None:
    """Carry out a client's command.

    probed: whether the connection whose producer or consumer is in the way has answered a PING.

    Raises Refusal, StorageFull, CorruptFile.
    """
    if command.type in _PARKABLE:
        _PARKABLE[command.type](owner, session, command, probed=probed)
    else:
        COMMANDS[command.type](owner, session, request_of(command))


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
