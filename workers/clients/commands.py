"""Commands of clients: answered by the worker itself, or passed on to the owner of their topic.

    handle -> may the client do that? (rights.py) -> COMMANDS, a table by the command's type

PRODUCER and SUBSCRIBE may wait in the worker twice: for a check of their schema, and for their owner to have room.
"""
import time
from collections.abc import Callable

from geminga.proto import names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.acks import EntryAcks
from geminga.proto.connection import (
    Send,
    SendInTransaction,
    SendRefused,
    Sends,
    SendsInTransaction,
    requested_id,
)
from geminga.proto.errors import Refusal
from geminga.workers.clients import messages, transactions
from geminga.workers.clients.client import Client
from geminga.workers.clients.forwarding import forward
from geminga.workers.clients.routes import Route
from geminga.workers.clients.stream import Handlers
from geminga.workers.directory import requests, schemas
from geminga.workers.directory.requests import ANSWERS
from geminga.workers.identity.demands import right_of

T = api.BaseCommand.Type
_TOPIC_EPOCH_MAX = 1 << 62       # that the catalogue stores, with room to count on; only invented epochs are larger

Opening = api.CommandProducer | api.CommandSubscribe


def handle(client: Client, command: api.BaseCommand) -> None:
    """Carry out or forward a command that has just come, or one that had to wait for its owner."""
    if not _is_refused(client, command):
        COMMANDS[command.type](client, command)


def _is_refused(client: Client, command: api.BaseCommand) -> bool:
    """Whether authorization forbids the command; if so, answer the client with the refusal.

    A right may also be revoked while a command waits.
    """
    rights = client.worker.rights
    if rights is None or (refusal := rights.refused(client, command)) is None:
        return False
    _drop_route(client, command)
    client.stream.write(refusal)
    return True


# -- the connection

def _connect(client: Client, command: api.BaseCommand) -> None:
    if client.refusal:
        return client.refuse()
    client.worker.handshakes.connect(client, command.connect)


def _auth_response(client: Client, command: api.BaseCommand) -> None:
    client.worker.handshakes.response(client, command.authResponse)


def _ping(client: Client, command: api.BaseCommand) -> None:
    client.stream.write(responses.PONG)


def _pong(client: Client, command: api.BaseCommand) -> None:
    """Ignore PONG: any bytes from a client already count as a sign of life."""


# -- answers from the catalogue

def _answer(client: Client, command: api.BaseCommand) -> None:
    client.worker.counters.add("commands")
    client.stream.write(ANSWERS[command.type](client.worker.directory, command))


def _list_topics(client: Client, command: api.BaseCommand) -> None:
    client.worker.counters.add("commands")
    client.stream.write(client.worker.watchers.list_topics(client, command.getTopicsOfNamespace))


def _watch(client: Client, command: api.BaseCommand) -> None:
    client.worker.counters.add("commands")
    client.stream.write(client.worker.watchers.watch(client, command.watchTopicList))


def _close_watcher(client: Client, command: api.BaseCommand) -> None:
    client.worker.counters.add("commands")
    client.stream.write(client.worker.watchers.close(client, command.watchTopicListClose))


def _lookup(client: Client, command: api.BaseCommand) -> None:
    client.worker.counters.add("commands")
    began = time.perf_counter()
    try:
        answer = requests.lookup(client.worker.directory, command)
    except Refusal as refusal:
        client.stream.write(responses.lookup_failed(command.lookupTopic.request_id, refusal.code, refusal.message))
        client.worker.counters.add("lookups_failed")
        return
    if client.discoveries:
        answer = client.worker.watchers.looked_up(client, command, answer)
    if answer:
        answer_lookup(client, answer, began)


def answer_lookup(client: Client, answer: bytes, began: float) -> None:
    """Write the answer to a LOOKUP, and record its latency.  began: when the LOOKUP came, by time.perf_counter."""
    client.stream.write(answer)
    client.worker.counters.add("lookups")
    client.worker.counters.observe("lookup", time.perf_counter() - began)


def _get_schema(client: Client, command: api.BaseCommand) -> None:
    client.worker.counters.add("commands")
    with client.worker.counters.timed("schema_get"):
        client.stream.write(requests.get_schema(client.worker.directory, command))


def _get_or_create_schema(client: Client, command: api.BaseCommand) -> None:
    client.worker.counters.add("commands")
    request = command.getOrCreateSchema
    try:
        topic = client.worker.directory.catalogue.topics.named(request.topic)
        client.worker.schema_checks.begin(client, command, topic,
                                          schemas.get_or_create(request, topic, client.worker.counters))
    except Refusal as refusal:
        schema_checked(client, command, None, refusal)


def schema_checked(client: Client, command: api.BaseCommand, answer: bytes | None, refusal: Refusal | None) -> None:
    """Continue a command after the check of its schema: answer it, refuse it, or open the producer or consumer."""
    request = getattr(command, _WITH_SCHEMAS[command.type])
    if command.type == T.GET_OR_CREATE_SCHEMA:
        client.stream.write(responses.schema_refused(request.request_id, refusal.code, refusal.message) if refusal else
                            responses.schema_created(request.request_id, answer or b""))
    elif refusal:
        _drop_route(client, command)
        client.stream.write(responses.error(request.request_id, refusal.code, refusal.message))
    elif not _is_refused(client, command):
        _OPENING[command.type](client, command, is_checked=True)


# -- producers and consumers

def _open_producer(client: Client, command: api.BaseCommand, *, is_checked: bool = False) -> None:
    request = command.producer
    if request.topic_epoch > _TOPIC_EPOCH_MAX:
        text = f"No topic has had the epoch {request.topic_epoch}"
        return client.stream.write(responses.error(request.request_id, api.ProducerFenced, text))
    _open(client, command, request, request.producer_id, is_producer=True, is_checked=is_checked)


def _subscribe(client: Client, command: api.BaseCommand, *, is_checked: bool = False) -> None:
    _open(client, command, command.subscribe, command.subscribe.consumer_id, is_producer=False, is_checked=is_checked)


def _open(client: Client, command: api.BaseCommand, request: Opening, object_id: int, *, is_producer: bool,
          is_checked: bool) -> None:
    """Ask the topic's owner to make a producer or consumer.  is_checked: the schema that came with the command has
    been checked.
    """
    worker, routes = client.worker, client.routes
    route = routes.of_kind(is_producer=is_producer).get(object_id)
    if route is not None and not route.is_made_by(command):
        return _open_again(client, route, request)
    link = withdraw = None
    try:
        if worker.is_draining:
            raise Refusal(api.ServiceNotReady, "The broker is being stopped; try again")
        topic = names.parse(request.topic)
        is_valid = is_checked or (route is not None and route.is_valid)
        if not is_checked and not schemas.is_settled(worker.directory.catalogue, topic, request, is_valid=is_valid):
            withdraw = worker.schema_checks.begin(client, command, topic,
                                                  schemas.settle(request, topic, worker.counters))
        elif (link := worker.owners.with_room(topic)) is None:
            withdraw = worker.waiting.wait(client, topic, command)
    except Refusal as refusal:
        if route is not None:
            routes.drop(route)
        return client.stream.write(responses.error(request.request_id, refusal.code, refusal.message))
    if route is None:
        route = Route(None, object_id, is_producer, request=(topic, command), request_id=request.request_id,
                      right=right_of(command.type, request))
        if isinstance(request, api.CommandProducer):
            route.is_replicator = names.source_cluster(request.producer_name) is not None
        routes.add(route)
    route.link, route.withdraw, route.is_valid = link, withdraw, is_valid
    if link is not None:
        since = link.sent
        forward(client, link, command, request)
        worker.owners.queue_of(topic).asked(link, since)


def _open_again(client: Client, route: Route, request: Opening) -> None:
    """Answer PRODUCER or SUBSCRIBE for an id in use, as Pulsar does: success if the owner has made it, else an
    error.
    """
    client.worker.counters.add("commands")
    if not route.handle:
        text = f"{'Producer' if route.is_producer else 'Consumer'} is already present on the connection"
        client.stream.write(responses.error(request.request_id, api.ServiceNotReady, text))
    elif route.is_producer:
        client.stream.write(responses.repeated_success(route.success, request.request_id))
    else:
        client.stream.write(responses.success(request.request_id))


def _drop_route(client: Client, command: api.BaseCommand) -> None:
    """Free the producer or consumer id that a refused command had taken; an id taken by another command stays."""
    if command.type not in _OPENING:
        return
    route = client.routes.of_kind(is_producer=command.type == T.PRODUCER).get(requested_id(command))
    if route is not None and route.is_made_by(command):
        client.routes.drop(route)


def _close_producer(client: Client, command: api.BaseCommand) -> None:
    request = command.close_producer
    _close(client, command, request, client.routes.close(request.producer_id, is_producer=True))


def _close_consumer(client: Client, command: api.BaseCommand) -> None:
    request = command.close_consumer
    _close(client, command, request, client.routes.close(request.consumer_id, is_producer=False))


def _close(client: Client, command: api.BaseCommand, request: api.CommandCloseProducer | api.CommandCloseConsumer,
           route: Route | None) -> None:
    """Ask the owner to close a producer or consumer, or cancel it if its command still waits in this worker.

    Closing a producer or consumer that does not exist succeeds.
    """
    if route is not None and route.link is not None:
        return forward(client, route.link, command, request)
    if route is not None and route.withdraw is not None:
        route.withdraw()
    client.stream.write(responses.success(request.request_id))


def _ask_about_consumer(client: Client, command: api.BaseCommand) -> None:
    """Forward a request about a consumer, such as SEEK, to the owner of the consumer."""
    request = getattr(command, _CONSUMER_REQUESTS[command.type])
    route = client.routes.consumers.get(request.consumer_id)
    if route is not None and route.link is not None:
        return forward(client, route.link, command, request)
    if command.type == T.CONSUMER_STATS:
        client.stream.write(responses.consumer_stats(request.request_id, error_code=api.ConsumerNotFound,
                                                     error_message="Consumer not found"))
    elif command.type != T.REDELIVER_UNACKNOWLEDGED_MESSAGES:
        client.stream.write(responses.error(request.request_id, api.MetadataError, "Consumer not found"))


_CONSUMER_REQUESTS = {
    T.UNSUBSCRIBE: "unsubscribe", T.SEEK: "seek",
    T.GET_LAST_MESSAGE_ID: "getLastMessageId", T.CONSUMER_STATS: "consumerStats",
    T.REDELIVER_UNACKNOWLEDGED_MESSAGES: "redeliverUnacknowledgedMessages",
}
_WITH_SCHEMAS = {T.PRODUCER: "producer", T.SUBSCRIBE: "subscribe", T.GET_OR_CREATE_SCHEMA: "getOrCreateSchema"}
_OPENING = {T.PRODUCER: _open_producer, T.SUBSCRIBE: _subscribe}
COMMANDS: dict[int, Callable[[Client, api.BaseCommand], None]] = {
    T.CONNECT: _connect, T.AUTH_RESPONSE: _auth_response, T.PING: _ping, T.PONG: _pong,
    **dict.fromkeys(ANSWERS, _answer), T.LOOKUP: _lookup,
    T.GET_SCHEMA: _get_schema, T.GET_OR_CREATE_SCHEMA: _get_or_create_schema,
    T.GET_TOPICS_OF_NAMESPACE: _list_topics, T.WATCH_TOPIC_LIST: _watch, T.WATCH_TOPIC_LIST_CLOSE: _close_watcher,
    T.PRODUCER: _open_producer, T.CLOSE_PRODUCER: _close_producer,
    T.SUBSCRIBE: _subscribe, T.CLOSE_CONSUMER: _close_consumer,
    **dict.fromkeys(_CONSUMER_REQUESTS, _ask_about_consumer), T.FLOW: messages.flow, T.ACK: messages.acknowledge,
    **transactions.COMMANDS,
}
HANDLERS: Handlers = {
    Send: messages.publish_one, Sends: messages.publish, SendRefused: messages.refuse_send,
    SendInTransaction: messages.publish_one_in_transaction, SendsInTransaction: messages.publish_in_transaction,
    EntryAcks: messages.acknowledge_many,
    api.BaseCommand: handle,
}
