"""The table of functions that carry out commands, and parked commands, as all commands need them."""
from collections.abc import Callable
from typing import TypeVar

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import requested_id
from geminga.storage.open_topics.answers import probe
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.publish_gate import PublishGate
from geminga.storage.open_topics.session import Session
from geminga.storage.runtime.log import log
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Topic

Function = TypeVar("Function", bound=Callable[..., None])

COMMANDS: dict[int, Callable[..., None]] = {}      # type of a command -> the function that carries it out in an owner


def carries_out(kind: int) -> Callable[[Function], Function]:
    """Register a function (tables, session, request) for a kind of command.

    tables: those of the owner that the function's first parameters name by their types, see `open_topics/given.py`.
    request: the command's own message, such as `command.seek`.
    """
    def register(function: Function) -> Function:
        assert kind not in COMMANDS, kind
        COMMANDS[kind] = function
        return function
    return register


def park(decisions: Decisions, clients: Clients, session: Session, command: api.BaseCommand, worker: int,
         connection: int) -> None:
    """Park the command until another connection answers a PING or ends.

    worker, connection: the connection whose producer or consumer is in the command's way.
    """
    object_id = requested_id(command)
    session.waiting[command.type, object_id] = worker, connection
    waiting = clients.sessions.parked.setdefault((worker, connection), {})
    if not waiting:      # else another command has had the connection asked already
        probe(decisions, worker, connection)
    waiting[session, command.type, object_id] = command


def withdraw(clients: Clients, gate: PublishGate, session: Session, kind: int,
             object_id: int) -> api.BaseCommand | None:
    """Withdraw a parked command, because its client closed the producer or consumer before it was created.

    Returns the command, None if it was not parked.
    """
    obstacle = session.waiting.pop((kind, object_id), None)
    if isinstance(obstacle, Partition):
        return gate.withdraw(session, obstacle, object_id)
    if not isinstance(obstacle, tuple):
        return None
    return clients.sessions.parked.get(obstacle, {}).pop((session, kind, object_id), None)


def log_client(session: Session | None, what: str, topic: Topic, **fields: str) -> None:
    """Log at level debug that a client, or the broker, created or closed a producer or consumer of the topic."""
    client = session.address.removeprefix("/") if session is not None else ""
    log.debug(what, topic=topic.name, **fields, client=client)


def log_consumer(session: Session | None, what: str, consumer: Consumer) -> None:
    """Log at level debug that a consumer was created or closed, by its client or by the broker."""
    subscription = consumer.subscription
    log_client(session, what, subscription.partition, subscription=subscription.name, consumer=consumer.name)
