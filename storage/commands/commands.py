"""Commands of clients that an owner carries out, and the ends of connections.

Each function takes (tables, session, request), and is registered by `carries_out`.  It changes the owner's tables,
notes ops for the journal, and puts answers into the outbox.  Answers leave when the pass is durable.  A Refusal becomes
the command's error answer.
"""
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T, request_of
from geminga.proto.errors import Refusal
from geminga.storage.commands import (  # noqa: F401 (they register commands)
    positions,
    stream_consumers,
    transactional_acks,
    transactions,
)
from geminga.storage.commands.consumers import count_death, remove_consumer, report_damaged, subscribe
from geminga.storage.commands.producers import create_producer, dismiss, expel_producer, refuse_send, remove_producer
from geminga.storage.commands.requests import COMMANDS, withdraw
from geminga.storage.commands.subscriptions import close_consumers
from geminga.storage.errors import CorruptFile, NotDurable, StorageFull, text_of
from geminga.storage.open_topics.answers import refuse
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.discovery import Discovery
from geminga.storage.open_topics.given import given
from geminga.storage.open_topics.publish_gate import PublishGate
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.session import Session
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.runtime.log import log
from geminga.storage.scalable.stream_consumers import StreamConsumers
from geminga.storage.topics.subscription import Topic
from geminga.storage.transactions.coordinator import Coordinator

if TYPE_CHECKING:
    from geminga.storage.topics.subscription import Consumer, Producer

# A client that lost a permission while its command was parked.  When it tries again, it is told of the permission.
_EXPELLED = Refusal(api.ServiceNotReady, "Told to go before it was made; try again")

# Commands that may be parked: functions (tables, session, command, probed=...)
_PARKABLE: dict[int, Callable[..., None]] = {T.PRODUCER: create_producer, T.SUBSCRIBE: subscribe}


class Commands:
    """The commands of one owner's clients."""

    def __init__(self, decisions: Decisions, clients: Clients, topics: TopicTable, reports: Reports, gate: PublishGate,
                 discovery: Discovery, streams: StreamConsumers, coordinator: Coordinator,
                 parts: Mapping[type, object]):
        """parts: parts of the owner by their types, of which each function is given those that it asks for."""
        self._decisions, self._clients, self._topics, self._reports = decisions, clients, topics, reports
        self._gate, self._discovery, self._stream_consumers = gate, discovery, streams
        self._coordinator = coordinator
        # By the type of the command.
        self.functions = {kind: given(function, parts, left=2) for kind, function in COMMANDS.items()}
        self.parkable = {kind: given(function, parts, left=2) for kind, function in _PARKABLE.items()}

    def __repr__(self) -> str:
        return f"<Commands {self._clients!r}>"

    def carry_out(self, session: Session, command: api.BaseCommand, *, probed: bool = False) -> None:
        """Carry out a client's command, or answer it with an error.

        probed: whether the connection whose producer or consumer is in the way has answered a PING.
        """
        try:
            if command.type in self.parkable:
                self.parkable[command.type](session, command, probed=probed)
            else:
                self.functions[command.type](session, request_of(command))
        except Refusal as refusal:
            refuse(self._decisions, session, command, refusal)
        except StorageFull as error:
            refuse(self._decisions, session, command, Refusal(api.PersistenceError, str(error)))
        except CorruptFile as error:
            self._reports.refused(error)
            refuse(self._decisions, session, command, Refusal(api.PersistenceError, str(error)))
        except OSError as error:
            self._reports.once(text_of(error), code="G103")
            refuse(self._decisions, session, command, Refusal(api.PersistenceError, text_of(error)))
        except NotDurable:
            raise
        except Exception:
            self.failed(session)

    # -- events of connections

    def end_session(self, session: Session, *, by_client: bool) -> None:
        """Remove the producers and consumers of a session whose connection is closed.

        by_client: True if the client closed the connection or vanished, and may have died over an entry.  False: its
        worker ended.
        """
        self._clients.sessions.by_key.pop((session.worker, session.connection), None)
        self._discovery.ended((session.worker, session.connection))
        self._stream_consumers.ended(session.key, self._decisions.now_ms)
        self._coordinator.session_ended(session)
        for kind, object_id in list(session.waiting):
            withdraw(self._clients, self._gate, session, kind, object_id)
        for producer in list(session.producers.values()):
            remove_producer(self._decisions, self._clients, self._topics, session, producer)
        for consumer in list(session.consumers.values()):
            if by_client and (consumer.subscription.deaths_max or consumer.subscription.counts_deliveries):
                count_death(self._decisions, consumer)
            remove_consumer(self._decisions, self._clients, self._topics, session, consumer)
        session.producers.clear()
        session.consumers.clear()
        self.resume(session, is_alive=False)

    def _abandon(self, session: Session) -> None:
        """Remove the session's producers and consumers from every table, after one of its commands failed halfway."""
        mine, tables = session.key, (self._decisions, self._clients, self._topics)
        steps: list[Callable[[], object]] = [
            partial(withdraw, self._clients, self._gate, session, *parked) for parked in session.waiting]
        topics: list[Topic] = [*self._topics.by_name.values(), *self._topics.non_persistent.values()]
        for topic in topics:
            for producer in (*topic.producers.live.values(), *topic.producers.waiting):
                if (producer.worker, producer.connection) == mine:
                    steps.append(partial(remove_producer, *tables, session, producer))
            for subscription in list(topic.subscriptions.values()):
                for consumer in subscription.everyone:
                    if (consumer.worker, consumer.connection) == mine:
                        steps.append(partial(remove_consumer, *tables, session, consumer))
                is_expected = subscription in self._clients.consumers.expected_readers
                if not (subscription.is_durable or subscription.consumers or is_expected):
                    # The command created the subscription for a consumer, and failed before that was attached.
                    steps.append(partial(topic.remove_subscription, subscription))
        steps.append(partial(self.resume, session, is_alive=False))
        for step in steps:
            try:
                step()
            except NotDurable:
                raise
            except Exception:
                log.error(f"tables that a command left cannot be put in order: {traceback.format_exc()}", code="G291")
        producers, consumers = self._clients.producers, self._clients.consumers
        counted: tuple[tuple[dict[int, Producer] | dict[int, Consumer], str], ...] = (
            (producers.by_handle, "producers"), (consumers.by_handle, "consumers"), (producers.non_persistent, ""),
            (producers.replicators, ""), (producers.addressed, ""))
        for table, counter in counted:
            for handle in [handle for handle, one in table.items() if (one.worker, one.connection) == mine]:
                del table[handle]
                if counter:
                    self._decisions.counters.add(counter, -1)
        session.producers.clear()
        session.consumers.clear()
        self._discovery.ended(mine)
        self._stream_consumers.ended(mine, self._decisions.now_ms)

    def resume(self, session: Session, *, is_alive: bool) -> None:
        """Carry out the parked commands that waited for this session's connection to answer a PING or to end."""
        self.resume_at(session.key, is_alive=is_alive)

    def resume_at(self, place: tuple[int, int], *, is_alive: bool) -> None:
        """Carry out the commands that are parked at a place: a connection, or another pair of numbers."""
        parked = self._clients.sessions.parked.pop(place, {})
        for (other, kind, object_id), command in parked.items():
            other.waiting.pop((kind, object_id), None)
            if self._clients.sessions.has(other):
                self.carry_out(other, command, probed=is_alive)

    def expel(self, session: Session, object_id: int, handle: int, *, is_producer: bool) -> None:
        """Close the session's producer or consumer, or withdraw its parked command, as its client lost a permission.

        object_id: the id that the client chose.  handle: the owner's number; 0: the worker does not know it yet.  The
        worker is answered in any case.
        """
        producer, consumer = session.producers.get(object_id), session.consumers.get(object_id)
        if is_producer and producer is not None and handle in (0, producer.handle):
            dismiss(self._decisions, self._clients, self._topics.catalogue, producer, _EXPELLED)
            self._topics.forget_if_idle(producer.partition)
        elif not is_producer and consumer is not None and handle in (0, consumer.handle):
            del session.consumers[object_id]
            remove_consumer(self._decisions, self._clients, self._topics, session, consumer)
            self._tell_closed(session, object_id, consumer.handle, is_producer=False)
        elif handle:
            self._tell_closed(session, object_id, handle, is_producer=is_producer)
        else:
            kind = T.PRODUCER if is_producer else T.SUBSCRIBE
            command = withdraw(self._clients, self._gate, session, kind, object_id)
            if command is not None:
                refuse(self._decisions, session, command, _EXPELLED)

    def _tell_closed(self, session: Session, object_id: int, handle: int, *, is_producer: bool) -> None:
        """Tell the worker and the client that the producer or consumer is closed."""
        if is_producer:
            data, action = responses.close_producer(object_id), envelope.PRODUCER_GONE
        else:
            data, action = responses.close_consumer(object_id), envelope.CONSUMER_GONE
        self._decisions.outbox(session.worker).reply(
            session.connection, data, action=action, object_id=object_id, handle=handle)

    def failed(self, session: Session) -> None:
        """End the connection of a client whose command failed unexpectedly.  Other clients are not affected.

        Commands refuse before they change anything.  A topic or subscription that was created before the failure is
        complete and stays.  A producer or consumer may be in some tables only, so `_abandon` searches all of them.

        A failure in a commit, or over many clients' SENDs or acknowledgements, ends the process instead.  It is then
        unknown how much was applied, but a new process that starts from the files has everything that was answered.
        """
        log.error(f"a command failed, and its connection is ended: {traceback.format_exc()}", code="G291",
                  client=session.address.removeprefix("/"))
        session.is_over = True
        self._abandon(session)
        self._decisions.outbox(session.worker).reply(session.connection, b"", action=envelope.END)

    def refuse_send(self, session: Session, producer_id: int, handle: int, frames: bytes) -> None:
        """Close a replicator's producer because its worker has refused a SEND; frames: they tell the client."""
        refuse_send(self._decisions, self._clients, self._topics.catalogue, session, producer_id, handle, frames)

    def report_damaged(self, session: Session, ack: api.CommandAck) -> None:
        """Log and count entries that a client discarded as unreadable, because they may be damaged on disk."""
        report_damaged(self._decisions, self._reports, session, ack)


def expel_all(decisions: Decisions, clients: Clients, topic: Topic) -> None:
    """Close all producers and consumers of a topic, and remove its subscriptions that are not durable.

    Clients look the topic up again.
    """
    for producer in topic.producers.expel_all():
        expel_producer(decisions, clients, producer)
    for subscription in list(topic.subscriptions.values()):
        close_consumers(decisions, clients, subscription)
        if not subscription.is_durable:
            topic.remove_subscription(subscription)
