"""Answers to requests of clients, as all commands give them."""
from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T, request_of
from geminga.proto.errors import Refusal
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.session import Session
from geminga.storage.topics.subscription import Consumer


def refuse(decisions: Decisions, session: Session, command: api.BaseCommand, refusal: Refusal) -> None:
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
    decisions.outbox(session.worker).reply(
        session.connection, data, request_id=body.request_id, action=action, object_id=object_id)


def succeed(decisions: Decisions, session: Session, request_id: int, gone: Consumer | None = None) -> None:
    """Answer the request with SUCCESS, once all earlier changes are durable, acknowledgements too.

    gone: a consumer that this request closed, and that its worker still takes for open.
    """
    decisions.answer_needs_sync()
    action = {} if gone is None else {
        "action": envelope.CONSUMER_GONE, "object_id": gone.consumer_id, "handle": gone.handle}
    decisions.outbox(session.worker).reply(
        session.connection, responses.success(request_id), request_id=request_id, **action)


def probe(decisions: Decisions, worker: int, connection: int) -> None:
    """Have a worker end a connection that stays silent after a PING."""
    decisions.outbox(worker).reply(connection, b"", action=envelope.PROBE)
