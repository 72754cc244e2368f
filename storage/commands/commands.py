"""Commands of clients: one function per command, found in a table.

Each takes (owner, session, command), changes the owner's tables, notes what the journal has to keep, and puts answers into
the outbox; none of them leaves before the pass is durable.  A Refusal raised here becomes the command's error answer.
"""
import traceback
from functools import partial
from typing import Protocol

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
from geminga.storage.errors import NotDurable
from geminga.storage.runtime.log import log
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.session import Session
from geminga.storage.topics.subscription import Topic

_EXPELLED = Refusal(api.ServiceNotReady, "Told to go before it was made; try again")      # and be told what has changed


class _Command(Protocol):
    """Carries out one command; those that may be parked take `probed` as well."""

    def __call__(self, owner: OwnerContext, session: Session, command: api.BaseCommand) -> None: ...


_COMMANDS: dict[int, _Command] = {
    T.PRODUCER: create_producer, T.CLOSE_PRODUCER: close_producer,
    T.SUBSCRIBE: subscribe, T.CLOSE_CONSUMER: close_consumer, T.UNSUBSCRIBE: unsubscribe,
    T.REDELIVER_UNACKNOWLEDGED_MESSAGES: redeliver,
    T.SEEK: seek, T.GET_LAST_MESSAGE_ID: get_last_message_id, T.CONSUMER_STATS: consumer_stats,
}


def carry_out(owner: OwnerContext, session: Session, command: api.BaseCommand, *, probed: bool = False) -> None:
    """Carry out the command; probed: the connection in its way was asked, and lives.

    Raises Refusal, StorageFull, CorruptFile.
    """
    how = _COMMANDS[command.type]
    if probed:
        how(owner, session, command, probed=True)
    else:
        how(owner, session, command)


def end_session(owner: OwnerContext, session: Session, *, by_client: bool) -> None:
    """Remove the session's producers and consumers: its connection is closed.

    by_client: the client closed it, or vanished, and may have died over what its consumers held; else its worker ended.
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
    """Remove all that is the session's from every table, as one of its commands failed half-way."""
    mine = session.worker, session.connection
    steps = [partial(withdraw, owner, session, kind, object_id) for kind, object_id in session.waiting]
    for topic in (*owner.by_name.values(), *owner.live.values()):
        for producer in (*topic.producers.live.values(), *topic.producers.waiting):
            if (producer.worker, producer.connection) == mine:
                steps.append(partial(remove_producer, owner, session, producer))
        for subscription in list(topic.subscriptions.values()):
            for consumer in subscription.consumers:
                if (consumer.worker, consumer.connection) == mine:
                    steps.append(partial(remove_consumer, owner, session, consumer))
            if not (subscription.is_durable or subscription.consumers or subscription in owner.expected_readers):
                steps.append(partial(topic.remove_subscription, subscription))      # created for a consumer that did not come to be
    for step in [*steps, partial(resume, owner, session, is_alive=False)]:
        try:
            step()
        except NotDurable:
            raise
        except Exception:
            log.error(f"tables that a command left cannot be put in order: {traceback.format_exc()}", code="G291")
    for table, counter in ((owner.producers, "producers"), (owner.consumers, "consumers"), (owner.live_producers, "")):
        for handle in [handle for handle, one in table.items() if (one.worker, one.connection) == mine]:
            del table[handle]
            if counter:
                owner.counters.add(counter, -1)
    session.producers.clear()
    session.consumers.clear()
    owner.discovery.ended(mine)


def resume(owner: OwnerContext, session: Session, *, is_alive: bool) -> None:
    """Carry out the commands that waited until this session's connection was known to be alive or dead."""
    for (other, kind, object_id), command in owner.parked.pop((session.worker, session.connection), {}).items():
        other.waiting.pop((kind, object_id), None)
        if owner.has(other):
            owner.carry_out(other, command, probed=is_alive)


def expel(owner: OwnerContext, session: Session, object_id: int, handle: int, *, is_producer: bool) -> None:
    """Close the session's producer or consumer, for which its client has lost the permission; or withdraw it, if it waits to be made.

    object_id: the client's.  handle: the owner's; 0 when the worker does not know it yet.  The worker is told in any case.
    """
    kind, table, gone, farewell = (T.PRODUCER, session.producers, envelope.PRODUCER_GONE, responses.close_producer) if is_producer else \
        (T.SUBSCRIBE, session.consumers, envelope.CONSUMER_GONE, responses.close_consumer)
    client_object = table.get(object_id)
    if client_object is None or (handle and client_object.handle != handle):
        if (command := None if handle else withdraw(owner, session, kind, object_id)) is not None:
            refuse(owner, session, command, _EXPELLED)
        elif handle:
            owner.outbox(session.worker).reply(session.connection, farewell(object_id), action=gone, object_id=object_id, handle=handle)
    elif is_producer:
        dismiss(owner, client_object, _EXPELLED)
        forget_if_idle(owner, client_object.partition)
    else:
        del table[object_id]
        remove_consumer(owner, session, client_object)
        owner.outbox(session.worker).reply(
            session.connection, farewell(object_id), action=gone, object_id=object_id, handle=client_object.handle)


def expel_all(owner: OwnerContext, topic: Topic) -> None:
    """Close all producers and consumers of the topic, whose clients look it up again, and remove what is not durable."""
    for producer in topic.producers.expel_all():
        expel_producer(owner, producer)
    for subscription in list(topic.subscriptions.values()):
        close_consumers(owner, subscription)
        if not subscription.is_durable:
            topic.remove_subscription(subscription)
