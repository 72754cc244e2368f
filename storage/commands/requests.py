"""Answers to requests, and parked commands, as all commands need them."""
from collections.abc import Callable
from typing import Any, TypeVar

from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T, request_of, requested_id
from geminga.proto.errors import Refusal
from geminga.storage.runtime.log import log
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.session import Session
from geminga.storage.topics.subscription import Consumer, Topic

Request = TypeVar("Request")
Function = Callable[[OwnerContext, Session, Request], None]

COMMANDS: dict[int, Function[Any]] = {}      # type of a command -> the function that carries it out in an owner


def carries_out(kind: int) -> Callable[[Function[Request]], Function[Request]]:
    """Register a function (owner, session, request) for a kind of command.

    request: the command's own message, such as `command.seek`.
    """
    def register(function: Function[Request]) -> Function[Request]:
        assert kind not in COMMANDS, kind
        COMMANDS[kind] = function
        return function
    return register


def refuse(owner: OwnerContext, session: Session, command: api.BaseCommand, refusal: Refusal) -> None:
    """Answer the command with an error.

    If it was to create a producer or consumer, its worker is told that this does not exist.
    """
    data = responses.refusal(command, refusal.code, refusal.message)
    if not data:      # its client waits for no answer
        return
    body = request_of(command)
    action, object_id = envelope.WRITE, 0
    if command.type == T.PRODUCER and body.producer_id not in session.producers:
        action, object_id = envelope.PRODUCER_GONE, body.producer_id
    elif command.type == T.SUBSCRIBE and body.consumer_id not in session.consumers:
        action, object_id = envelope.CONSUMER_GONE, body.consumer_id
    owner.outbox(session.worker).reply(
        session.connection, data, request_id=body.request_id, action=action, object_id=object_id)


def succeed(owner: OwnerContext, session: Session, request_id: int, gone: Consumer | None = None) -> None:
    """Answer the request with SUCCESS, once all earlier changes are durable, acknowledgements too.

    gone: a consumer that this request closed, and that its worker still takes for open.
    """
    owner.answer_needs_sync()
    action = {} if gone is None else {
        "action": envelope.CONSUMER_GONE, "object_id": gone.consumer_id, "handle": gone.handle}
    owner.outbox(session.worker).reply(
        session.connection, responses.success(request_id), request_id=request_id, **action)


def park(owner: OwnerContext, session: Session, command: api.BaseCommand, worker: int, connection: int) -> None:
    """Park the command until another connection answers a PING or ends.

    worker, connection: the connection whose producer or consumer is in the command's way.
    """
    object_id = requested_id(command)
    session.waiting[command.type, object_id] = worker, connection
    waiting = owner.parked.setdefault((worker, connection), {})
    if not waiting:      # else another command has had the connection asked already
        probe(owner, worker, connection)
    waiting[session, command.type, object_id] = command


def probe(owner: OwnerContext, worker: int, connection: int) -> None:
    """Have a worker end a connection that stays silent after a PING."""
    owner.outbox(worker).reply(connection, b"", action=envelope.PROBE)


def withdraw(owner: OwnerContext, session: Session, kind: int, object_id: int) -> api.BaseCommand | None:
    """Withdraw a parked command, because its client closed the producer or consumer before it was created.

    Returns the command, None if it was not parked.
    """
    obstacle = session.waiting.pop((kind, object_id), None)
    if isinstance(obstacle, Partition):
        return owner.gate.withdraw(session, obstacle, object_id)
    if not isinstance(obstacle, tuple):
        return None
    return owner.parked.get(obstacle, {}).pop((session, kind, object_id), None)


def log_client(session: Session | None, what: str, topic: Topic, **fields: str) -> None:
    """Log at level debug that a client, or the broker, created or closed a producer or consumer of the topic."""
    client = session.address.removeprefix("/") if session is not None else ""
    log.debug(what, topic=topic.name, **fields, client=client)


def log_consumer(session: Session | None, what: str, consumer: Consumer) -> None:
    """Log at level debug that a consumer was created or closed, by its client or by the broker."""
    subscription = consumer.subscription
    log_client(session, what, subscription.partition, subscription=subscription.name, consumer=consumer.name)
