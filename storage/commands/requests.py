"""Answers to requests, and parked commands, as all commands need them."""
from typing import Any

from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.connection import requested_id
from geminga.proto.errors import Refusal
from geminga.storage.runtime.log import log
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.session import Session
from geminga.storage.topics.subscription import Consumer, Topic

T = api.BaseCommand.Type
_REQUESTS = {      # commands whose clients wait for an answer -> the field of BaseCommand that has the request
    T.PRODUCER: "producer", T.CLOSE_PRODUCER: "close_producer", T.SUBSCRIBE: "subscribe",
    T.CLOSE_CONSUMER: "close_consumer", T.UNSUBSCRIBE: "unsubscribe", T.SEEK: "seek",
    T.GET_LAST_MESSAGE_ID: "getLastMessageId", T.CONSUMER_STATS: "consumerStats",
    T.NEW_TXN: "newTxn", T.ADD_PARTITION_TO_TXN: "addPartitionToTxn",
    T.ADD_SUBSCRIPTION_TO_TXN: "addSubscriptionToTxn", T.END_TXN: "endTxn", T.ACK: "ack",
}
_OF_TRANSACTIONS = T.ADD_PARTITION_TO_TXN, T.ADD_SUBSCRIPTION_TO_TXN, T.END_TXN


def refuse(owner: OwnerContext, session: Session, command: api.BaseCommand, refusal: Refusal) -> None:
    """Answer the command with an error.

    If it was to create a producer or consumer, its worker is told that this does not exist.
    """
    if command.type == T.ACK and command.ack.HasField("request_id"):
        ack, why = command.ack, (refusal.code, refusal.message)
        return owner.outbox(session.worker).reply(
            session.connection, responses.ack_response(ack.consumer_id, ack.request_id, why), request_id=ack.request_id)
    if command.type not in _REQUESTS:
        return
    body = getattr(command, _REQUESTS[command.type])
    if not body.HasField("request_id"):      # an ACK whose client waits for no answer
        return
    data = _refusal(command.type, body, refusal)
    action, object_id = envelope.WRITE, 0
    if command.type == T.PRODUCER and body.producer_id not in session.producers:
        action, object_id = envelope.PRODUCER_GONE, body.producer_id
    elif command.type == T.SUBSCRIBE and body.consumer_id not in session.consumers:
        action, object_id = envelope.CONSUMER_GONE, body.consumer_id
    owner.outbox(session.worker).reply(
        session.connection, data, request_id=body.request_id, action=action, object_id=object_id)


def _refusal(kind: int, body: Any, refusal: Refusal) -> bytes:
    """Return the frame that answers a command with an error.  body: the request in the command."""
    if kind == T.ACK:
        return responses.ack_response(body.consumer_id, body.request_id, (refusal.code, refusal.message))
    if kind == T.NEW_TXN:
        return responses.transaction_refused(kind, body.request_id, refusal.code, refusal.message, body.tc_id)
    if kind in _OF_TRANSACTIONS:
        return responses.transaction_refused(kind, body.request_id, refusal.code, refusal.message,
                                             body.txnid_most_bits, body.txnid_least_bits)
    return responses.error(body.request_id, refusal.code, refusal.message)


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
