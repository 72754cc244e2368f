"""Stream consumers of one client: their registrations, which owners keep, and which this worker knows as well.

Any worker's client may register for a subscription.  The owner of the topic's name knows all consumers of the
subscription, and answers with the segments that this one is to consume.  If the owner's process ends, its next process
is told from here what the former one knew, and clients notice nothing.
"""
from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import LENGTH_MAX
from geminga.workers.clients.client import Client, stopping
from geminga.workers.clients.forwarding import forward, introduce
from geminga.workers.clients.registrations import StreamConsumer
from geminga.workers.clients.rights import right_of
from geminga.workers.owners.links import OwnerLink

REGISTRATIONS_MAX = 10_000      # of one connection, as many as it has watches


def register(client: Client, command: api.BaseCommand) -> None:
    """SCALABLE_TOPIC_SUBSCRIBE: ask the owner of the topic's name to register a stream consumer."""
    request, worker = command.scalableTopicSubscribe, client.worker
    consumer = client.stream_consumers.get(request.consumer_id)
    if consumer is None or consumer.command is not command:
        consumer = _new(client, command, consumer)
    if worker.is_draining:
        _drop(client, consumer)
        raise stopping()
    link = worker.owners.link_of(consumer.topic)
    try:
        if link is None:
            consumer.withdraw = worker.waiting.wait(client, consumer.topic, command)
        else:
            consumer.link, consumer.withdraw = link, None
            forward(client, link, command, request)
    except Refusal:
        _drop(client, consumer)
        raise


def _new(client: Client, command: api.BaseCommand, former: StreamConsumer | None) -> StreamConsumer:
    """Return the entry of a consumer that is to be registered.  Raises Refusal.

    former: the one that has its id already, which may be the same consumer.
    """
    request = command.scalableTopicSubscribe
    if not (request.subscription and request.consumer_name):
        raise Refusal(api.NotAllowedError, "A stream consumer needs a subscription and a name")
    if max(len(request.subscription), len(request.consumer_name)) > LENGTH_MAX:      # SUBSCRIBE takes none either
        raise Refusal(api.NotAllowedError, f"The subscription or the name is longer than {LENGTH_MAX} characters")
    directory, rights = client.worker.directory, client.worker.rights
    topic = directory.resolved(request.topic)
    request.topic = str(topic)                    # by which the owner knows it, whatever form of it the client wrote
    if topic.is_scalable and rights is not None:
        rights.check(client, command)             # the name may have been that of a regular topic
    if former is not None and not former.is_same(request):
        raise Refusal(api.NotAllowedError, f"Consumer id {request.consumer_id} is registered for something else")
    if former is not None and not former.is_made:
        raise Refusal(api.ServiceNotReady, "Consumer is already being registered on the connection")
    if former is None and len(client.stream_consumers) >= REGISTRATIONS_MAX:
        raise Refusal(api.TooManyRequests, f"The connection has {REGISTRATIONS_MAX} stream consumers")
    directory.layout(topic, may_create=True)      # a topic that is missing is created, or refused
    consumer = StreamConsumer(topic.scalable, command, right_of(command.type, request))
    client.stream_consumers[request.consumer_id] = consumer
    return consumer


def unregister(client: Client, command: api.BaseCommand) -> None:
    """SCALABLE_TOPIC_UNSUBSCRIBE: have the owner forget a stream consumer; an unknown one succeeds."""
    request = command.scalableTopicUnsubscribe
    consumer = client.stream_consumers.pop(request.consumer_id, None)
    if consumer is not None and consumer.link is not None:
        return forward(client, consumer.link, command, request)
    if consumer is not None and consumer.withdraw is not None:
        consumer.withdraw()
        client.stream.write(responses.refusal(consumer.command, api.ServiceNotReady, "Closed before it was registered"))
    client.worker.counters.add("commands")
    client.stream.write(responses.success(request.request_id))


def _drop(client: Client, consumer: StreamConsumer) -> None:
    client.stream_consumers.pop(consumer.command.scalableTopicSubscribe.consumer_id, None)


# -- what owners say, and their ends

def registered(client: Client, link: OwnerLink, consumer_id: int) -> None:
    """Note that an owner has registered a consumer; the client may have closed it meanwhile."""
    consumer = client.stream_consumers.get(consumer_id)
    if consumer is not None and consumer.link is link:
        consumer.is_made = True


def assigned(client: Client, link: OwnerLink, consumer_id: int, frame: bytes) -> None:
    """Tell the client a consumer's new assignment: only the newest one if the client does not read."""
    consumer = client.stream_consumers.get(consumer_id)
    if consumer is not None and consumer.link is link:
        if client.stream.is_writable:
            client.stream.tell(frame)
        else:
            consumer.unwritten = frame


def owner_gone(client: Client, link: OwnerLink) -> None:
    """Keep what the owner had registered for its next process; what it had not is refused as any request is."""
    for consumer_id, consumer in list(client.stream_consumers.items()):
        if consumer.link is link:
            consumer.link = None
            if not consumer.is_made:
                del client.stream_consumers[consumer_id]


def restore(client: Client, link: OwnerLink) -> None:
    """Tell an owner's new process what its predecessor had registered for this client."""
    for consumer in client.stream_consumers.values():
        if consumer.is_made and consumer.link is None and client.worker.owners.link_of(consumer.topic) is link:
            if link not in client.introduced:
                introduce(client, link)
            consumer.link = link
            link.command(client.number, client.protocol_version,
                         consumer.command.scalableTopicSubscribe.SerializeToString(), envelope.STREAM_RESTORED)
