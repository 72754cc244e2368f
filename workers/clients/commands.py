"""Commands of clients: answered by the worker itself, or passed on to the owner that has to answer them.

    handle -> may the client do that? (rights.py) -> COMMANDS, by the command's type, or else by who answers it

A Refusal becomes the error that the command's row in proto/commands.py names.  PRODUCER and SUBSCRIBE may wait in the
worker twice: for a check of their schema, and for their owner to have room.
"""
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from geminga.proto import names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.acks import EntryAck, EntryAcks
from geminga.proto.commands import TABLE, Answerer, T, request_of, requested_id
from geminga.proto.connection import Send, SendInTransaction, SendRefused, Sends, SendsInTransaction
from geminga.proto.errors import Refusal
from geminga.proto.layouts import MANAGED
from geminga.storage.errors import StorageFull
from geminga.workers.clients import messages, stream_consumers, transactions
from geminga.workers.clients.client import Client, stopping
from geminga.workers.clients.forwarding import forward
from geminga.workers.clients.rights import right_of
from geminga.workers.clients.routes import Route
from geminga.workers.clients.stream import Handlers
from geminga.workers.directory import requests, schemas

_TOPIC_EPOCH_MAX = 1 << 62       # that the catalogue stores, with room to count on; only invented epochs are larger

Opening = api.CommandProducer | api.CommandSubscribe
Handler = Callable[[Client, api.BaseCommand], None]


def handle(client: Client, command: api.BaseCommand) -> None:
    """Carry out or forward a command that has just come, or one that had to wait for its owner."""
    _handle(client, command, COMMANDS.get(command.type) or _FORWARDS[TABLE[command.type].answered_by])


def _handle(client: Client, command: api.BaseCommand, handler: Handler) -> None:
    """Call the handler if the client has the right that the command needs, which may be revoked while it waits."""
    try:
        if client.worker.rights is not None:
            client.worker.rights.check(client, command)
        handler(client, command)
    except Refusal as refusal:
        _refuse(client, command, refusal)
    except StorageFull as error:
        _refuse(client, command, Refusal(api.PersistenceError, str(error)))


def _refuse(client: Client, command: api.BaseCommand, refusal: Refusal) -> None:
    """Answer a command with its error, and free the id that it had taken for a producer or consumer."""
    if command.type in _OPENING:
        route = client.routes.of_kind(is_producer=command.type == T.PRODUCER).get(requested_id(command))
        if route is not None and route.is_made_by(command):
            client.routes.drop(route)
    if error := responses.refusal(command, refusal.code, refusal.message):
        client.stream.write(error)


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
    client.stream.write(_ANSWERS[command.type](client, request_of(command)))


def _get_schema(client: Client, request: api.CommandGetSchema) -> bytes:
    began = time.perf_counter()
    try:
        return requests.get_schema(client.worker.directory, request)
    finally:
        client.worker.counters.observe("schema_get", time.perf_counter() - began)


_ANSWERS: dict[int, Callable[[Client, Any], bytes]] = {
    T.PARTITIONED_METADATA: lambda client, request: requests.partition_metadata(client.worker.directory, request),
    T.GET_SCHEMA: _get_schema,
    T.GET_TOPICS_OF_NAMESPACE: lambda client, request: client.worker.watchers.list_topics(client, request),
    T.WATCH_TOPIC_LIST: lambda client, request: client.worker.watchers.watch(client, request),
    T.WATCH_TOPIC_LIST_CLOSE: lambda client, request: client.worker.watchers.close(client, request),
    T.SCALABLE_TOPIC_LOOKUP: lambda client, request: client.worker.layouts.watch(client, request),
    T.WATCH_SCALABLE_TOPICS: lambda client, request: client.worker.namespace_watches.watch(client, request),
    T.WATCH_TC_ASSIGNMENTS: transactions.watch,
}


def _close_layout(client: Client, command: api.BaseCommand) -> None:
    client.worker.counters.add("commands")
    client.worker.layouts.close(client, command.scalableTopicClose.session_id)


def _close_namespace_watch(client: Client, command: api.BaseCommand) -> None:
    client.worker.counters.add("commands")
    client.worker.namespace_watches.close(client, command.watchScalableTopicsClose.watch_id)


def _count(client: Client, command: api.BaseCommand) -> None:
    """Count a command that closes a watch for which the worker keeps no state."""
    client.worker.counters.add("commands")


def _lookup(client: Client, command: api.BaseCommand) -> None:
    client.worker.counters.add("commands")
    began = time.perf_counter()
    try:
        answer = requests.lookup(client.worker.directory, command.lookupTopic)
    except Refusal:
        client.worker.counters.add("lookups_failed")
        raise
    if client.discoveries:
        answer = client.worker.watchers.looked_up(client, command, answer)
    if answer:
        answer_lookup(client, answer, began)


def answer_lookup(client: Client, answer: bytes, began: float) -> None:
    """Write the answer to a LOOKUP, and record its latency.  began: when the LOOKUP came, by time.perf_counter."""
    client.stream.write(answer)
    client.worker.counters.add("lookups")
    client.worker.counters.observe("lookup", time.perf_counter() - began)


def _get_or_create_schema(client: Client, command: api.BaseCommand) -> None:
    client.worker.counters.add("commands")
    request = command.getOrCreateSchema
    topic = client.worker.directory.catalogue.topics.named(request.topic)
    client.worker.directory.refuse_made_up(topic)
    client.worker.schema_checks.begin(client, command, topic,
                                      schemas.get_or_create(request, topic, client.worker.counters))


def schema_checked(client: Client, command: api.BaseCommand, answer: bytes | None, refusal: Refusal | None) -> None:
    """Continue a command after the check of its schema: answer it, refuse it, or open the producer or consumer."""
    if refusal is not None:
        _refuse(client, command, refusal)
    elif command.type == T.GET_OR_CREATE_SCHEMA:
        client.stream.write(responses.schema_created(command.getOrCreateSchema.request_id, answer or b""))
    else:
        _handle(client, command, partial(_OPENING[command.type], is_checked=True))


# -- producers and consumers

def _open_producer(client: Client, command: api.BaseCommand, *, is_checked: bool = False) -> None:
    request = command.producer
    if request.topic_epoch > _TOPIC_EPOCH_MAX:
        raise Refusal(api.ProducerFenced, f"No topic has had the epoch {request.topic_epoch}")
    _open(client, command, request, request.producer_id, is_producer=True, is_checked=is_checked)


def _subscribe(client: Client, command: api.BaseCommand, *, is_checked: bool = False) -> None:
    request = command.subscribe
    _open(client, command, request, request.consumer_id, is_producer=False, is_checked=is_checked)


def _open(client: Client, command: api.BaseCommand, request: Opening, object_id: int, *, is_producer: bool,
          is_checked: bool) -> None:
    """Ask the topic's owner to make a producer or consumer.  is_checked: the schema that came with the command has
    been checked.
    """
    worker, routes = client.worker, client.routes
    route = routes.of_kind(is_producer=is_producer).get(object_id)
    if route is not None and not route.is_made_by(command):
        return _open_again(client, route, request)
    if worker.is_draining:
        raise stopping()
    link = withdraw = None
    topic = names.parse(request.topic)
    worker.directory.refuse_unusable(topic)
    is_valid = is_checked or (route is not None and route.is_valid)
    if not is_checked and not schemas.is_settled(worker.directory.catalogue, topic, request, is_valid=is_valid):
        withdraw = worker.schema_checks.begin(client, command, topic,
                                              schemas.settle(request, topic, worker.counters))
    elif (link := worker.owners.with_room(topic, has_waited=route is not None and not is_checked)) is None:
        withdraw = worker.waiting.wait(client, topic, command)
    if route is None:
        route = Route(None, object_id, is_producer, request=(topic, command), request_id=request.request_id,
                      right=right_of(command.type, request))
        if isinstance(request, api.CommandProducer):
            route.is_replicator = names.source_cluster(request.producer_name) is not None
            route.follows_layout = topic.is_segment or any(pair.key == MANAGED for pair in request.metadata)
        routes.add(route)
    route.link, route.withdraw, route.is_valid = link, withdraw, is_valid
    if link is not None:
        since = link.sent
        forward(client, link, command, request)
        worker.owners.queue_of(topic).asked(since, link.sent)


def _open_again(client: Client, route: Route, request: Opening) -> None:
    """Answer PRODUCER or SUBSCRIBE for an id in use with success.  Raises Refusal: the owner has not made it yet."""
    client.worker.counters.add("commands")
    if not route.handle:
        what = "Producer" if route.is_producer else "Consumer"
        raise Refusal(api.ServiceNotReady, f"{what} is already present on the connection")
    if route.is_producer:
        client.stream.write(responses.repeated_success(route.success, request.request_id))
    else:
        client.stream.write(responses.success(request.request_id))


def _close_producer(client: Client, command: api.BaseCommand) -> None:
    request = command.close_producer
    if not client.worker.sealed_producers.closed(client, request.producer_id, request.request_id):
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
    request = request_of(command)
    route = client.routes.consumers.get(request.consumer_id)
    if route is None or route.link is None:
        code = api.ConsumerNotFound if command.type == T.CONSUMER_STATS else api.MetadataError
        raise Refusal(code, "Consumer not found")
    forward(client, route.link, command, request)


_OPENING = {T.PRODUCER: _open_producer, T.SUBSCRIBE: _subscribe}
# Commands that the worker answers, and those that it has something to do for before they go to their owner.
COMMANDS: dict[int, Handler] = {
    T.CONNECT: _connect, T.AUTH_RESPONSE: _auth_response, T.PING: _ping, T.PONG: _pong,
    **dict.fromkeys(_ANSWERS, _answer), T.LOOKUP: _lookup, T.GET_OR_CREATE_SCHEMA: _get_or_create_schema,
    T.PRODUCER: _open_producer, T.CLOSE_PRODUCER: _close_producer,
    T.SUBSCRIBE: _subscribe, T.CLOSE_CONSUMER: _close_consumer, T.FLOW: messages.flow, T.ACK: messages.acknowledge,
    T.SCALABLE_TOPIC_CLOSE: _close_layout, T.SCALABLE_TOPIC_SUBSCRIBE: stream_consumers.register,
    T.SCALABLE_TOPIC_UNSUBSCRIBE: stream_consumers.unregister,
    T.WATCH_SCALABLE_TOPICS_CLOSE: _close_namespace_watch, T.WATCH_TC_ASSIGNMENTS_CLOSE: _count,
    T.TC_CLIENT_CONNECT_REQUEST: transactions.connect, T.NEW_TXN: transactions.begin, T.END_TXN: transactions.end,
    T.END_TXN_ON_PARTITION: transactions.refuse_brokers, T.END_TXN_ON_SUBSCRIPTION: transactions.refuse_brokers,
}
_FORWARDS = {Answerer.CONSUMER: _ask_about_consumer, Answerer.COORDINATOR: transactions.use}      # all other commands
HANDLERS: Handlers = {
    Send: messages.publish_one, Sends: messages.publish, SendRefused: messages.refuse_send,
    SendInTransaction: messages.publish_one_in_transaction, SendsInTransaction: messages.publish_in_transaction,
    EntryAck: messages.acknowledge_one,
    EntryAcks: messages.acknowledge_many,
    api.BaseCommand: handle,
}
