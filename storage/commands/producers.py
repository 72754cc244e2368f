"""Producers: how they are created, and closed by their clients or by the broker."""
from collections.abc import Iterable

from geminga.proto import envelope, names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.proto.errors import Refusal
from geminga.proto.names import is_system
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.commands import schema_admission
from geminga.storage.commands.requests import carries_out, log_client, park, withdraw
from geminga.storage.commands.subscriptions import NAME_MAX, check_name, check_new_name, create_subscription
from geminga.storage.cursors.producer_sequences import NONE
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.open_topics.answers import probe, succeed
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.publish_gate import PublishGate
from geminga.storage.open_topics.publisher import Publisher
from geminga.storage.open_topics.session import Session
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.runtime.log import DEBUG, log
from geminga.storage.scalable.inheritance import Inheritance
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Producer, Topic

FENCED = Refusal(api.ProducerFenced, "Fenced by a producer with ExclusiveWithFencing")
CLOSED = Refusal(api.ServiceNotReady, "The topic was closed; try again")      # clients wait for access again, then


def create_producer(decisions: Decisions, clients: Clients, topics: TopicTable, gate: PublishGate,
                    inheritance: Inheritance, session: Session, command: api.BaseCommand, *,
                    probed: bool = False) -> None:
    """PRODUCER: create a producer, or answer again if the connection already has the producer.

    probed: whether the connection of the producer that is in the way has answered a PING.
    """
    request = command.producer
    existing = session.producers.get(request.producer_id)
    if existing is not None:
        if not existing.is_ready:
            raise Refusal(api.ServiceNotReady, "Producer is already present on the connection")
        return _answer_ready(decisions, clients, topics.catalogue, existing, request.request_id)
    _refuse_unsupported(topics.options, request)
    topic = topics.find_or_create(names.parse(request.topic))
    _refuse_publishing(topic, request)
    if isinstance(topic, Partition):
        if topic.policies.migrated_to:
            if names.source_cluster(request.producer_name) is not None:
                raise Refusal(api.ServiceNotReady, f"{topic.name} has moved to another cluster")
            return decisions.outbox(session.worker).reply(
                session.connection, _close_at_client(topic, request.producer_id, None), request_id=request.request_id,
                action=envelope.PRODUCER_GONE, object_id=request.producer_id)
        if not _may_enter(gate, session, command, topic) or inheritance.park_producer(session, command, topic):
            return
    producer = _new_producer(decisions, clients, topics, session, request, topic)
    holder = topic.producers.holder_of_name(producer)
    if holder is not None and request.producer_access_mode != api.ExclusiveWithFencing:
        if not probed and (holder.worker, holder.connection) != session.key:
            return park(decisions, clients, session, command, holder.worker, holder.connection)
        raise Refusal(api.ProducerBusy, f"Producer with name '{producer.name}' is already connected to topic")
    holder = topic.producers.holder_of_access(producer)
    if holder is not None and not probed and (holder.worker, holder.connection) != session.key:
        if request.producer_access_mode != api.WaitForExclusive:
            return park(decisions, clients, session, command, holder.worker, holder.connection)
        probe(decisions, holder.worker, holder.connection)
    if producer.source is None:
        _refuse_one_too_many(clients, topics.options, session, topic)
    _create_initial_subscription(decisions, topics.catalogue, topic, request.initial_subscription_name)
    for replaced in topic.producers.admit(producer):
        expel_producer(decisions, clients, replaced, FENCED)
    _register(decisions, clients, session, producer)
    if producer.is_ready:
        _answer_ready(decisions, clients, topics.catalogue, producer, request.request_id)
    else:
        clients.producers.contended[topic] = None
        data = responses.producer_success(request.request_id, producer.name, is_ready=False)
        decisions.outbox(session.worker).reply(session.connection, data, request_id=request.request_id)


def _may_enter(gate: PublishGate, session: Session, command: api.BaseCommand, topic: Partition) -> bool:
    """Whether the publish gate lets the producer in now; else its command waits.  Raises Refusal."""
    try:
        return gate.enter(session, command, topic)
    except Refusal as refusal:
        is_replicator = names.source_cluster(command.producer.producer_name) is not None
        if is_replicator and refusal.code == api.ProducerBlockedQuotaExceededException:
            # At this code a replicator of Pulsar 4.0.7 stops until its topic is unloaded.
            raise Refusal(api.ProducerBlockedQuotaExceededError, refusal.message) from None
        raise


def _register(decisions: Decisions, clients: Clients, session: Session, producer: Producer) -> None:
    """Enter the producer in the tables of the owner and of its connection."""
    session.producers[producer.producer_id] = producer
    clients.producers.enter(producer)
    if isinstance(producer.partition, Partition) and producer.source is not None and producer.sends_positions:
        producer.partition.replicators.add(producer)
    decisions.counters.add("producers")


def _refuse_unsupported(options: OptionsInForce, request: api.CommandProducer) -> None:
    if request.txn_enabled and not options.current.transactions:
        raise Refusal(api.NotAllowedError, "Transactions are not enabled.")
    if len(request.producer_name) > NAME_MAX:
        raise Refusal(api.NotAllowedError, f"Producer name longer than {NAME_MAX} characters")


def _refuse_publishing(topic: Topic, request: api.CommandProducer) -> None:
    """Refuse a producer of a terminated topic, or one that does not encrypt although the topic requires it."""
    if isinstance(topic, Partition) and topic.is_terminated:
        raise Refusal(api.TopicTerminatedError, "Topic was already terminated")
    # A replicator passes on what others have encrypted: each of its messages is looked at.
    is_replicator = names.source_cluster(request.producer_name) is not None
    if topic.policies.encryption_required and not request.encrypted and not is_replicator:
        raise Refusal(api.MetadataError, f"Encryption is required in {topic.name}")


def _refuse_one_too_many(clients: Clients, options: OptionsInForce, session: Session, topic: Topic) -> None:
    """Refuse a producer that exceeds the number of producers that policies and options allow, without replicators."""
    of_topic, limit = topic.policies.max_producers, options.current.max_same_address_producers_per_topic
    if not (of_topic or limit):
        return
    connected = [producer for producer in topic.producers.live.values() if producer.source is None]
    if of_topic and len(connected) >= of_topic:
        raise Refusal(api.ProducerBusy, f"Topic '{topic.name}' reached max producers limit")
    if reaches_address_limit(clients, session, topic, limit, connected):
        raise Refusal(api.ProducerBusy, f"Topic '{topic.name}' reached max same address producers limit")


def reaches_address_limit(clients: Clients, session: Session, topic: Topic, limit: int,
                          connected: Iterable[Producer | Consumer]) -> bool:
    """Whether `limit` clients of the topic are connected from the session's address already; 0: there is no limit.

    connected: all connected producers, or consumers, of the topic.
    """
    if not limit or is_system(str(topic.name)):
        return False
    others = (clients.sessions.of(one) for one in connected)
    return sum(other is not None and other.host == session.host for other in others) >= limit


def _new_producer(
    decisions: Decisions, clients: Clients, topics: TopicTable, session: Session, request: api.CommandProducer,
    topic: Partition | NonPersistentTopic,
) -> Producer:
    """Return the producer that a PRODUCER asks for, not yet entered in any table.

    Raises Refusal if its schema is not compatible.
    """
    schema_version = schema_admission.admit_producer(
        topics.catalogue, decisions.counters, topic, request.schema if request.HasField("schema") else None)
    source = names.source_cluster(request.producer_name)
    return Producer(
        clients.new_handle(), session.worker, session.connection, request.producer_id, request.request_id,
        request.producer_name or _generated_name(decisions, topics.catalogue),
        not (request.user_provided_producer_name and request.producer_name),
        request.epoch, request.producer_access_mode, request.topic_epoch if request.HasField("topic_epoch") else None,
        topic, connected_ms=decisions.now_ms, metadata={one.key: one.value for one in request.metadata},
        is_encrypted=request.encrypted, schema_version=schema_version, source=source,
        sends_positions=source is not None and session.sends_positions and topic.is_persistent,
        only_for=_only_for(request, topic))


def _only_for(request: api.CommandProducer, topic: Partition | NonPersistentTopic) -> str:
    """Return the subscription that is to get what the producer publishes, "" for all.  Raises Refusal without it."""
    name = next((one.value for one in request.metadata if one.key == names.ONLY_FOR), "")
    if name and (name, True) not in topic.subscriptions:
        raise Refusal(api.SubscriptionNotFound, f"Topic {topic.name} has no subscription '{name}'")
    return name


def _create_initial_subscription(decisions: Decisions, catalogue: Catalogue, topic: Topic, name: str) -> None:
    """Create the subscription that a PRODUCER names, so that it gets the producer's first message; "" names none."""
    if not name or not isinstance(topic, Partition) or (name, True) in topic.subscriptions:
        return
    if not topic.policies.auto_create_subscriptions:
        raise Refusal(
            api.NotAllowedError,
            "Could not create the initial subscription due to the auto subscription creation is not allowed.")
    check_name(name)
    check_new_name(name)
    create_subscription(decisions, catalogue, topic, name, topic.mark_delete_before(EARLIEST))


def _generated_name(decisions: Decisions, catalogue: Catalogue) -> str:
    decisions.answer_needs_sync()
    return catalogue.ids.producer_name()


def _answer_ready(decisions: Decisions, clients: Clients, catalogue: Catalogue, producer: Producer,
                  request_id: int) -> None:
    """Answer a PRODUCER with PRODUCER_SUCCESS, after which the producer may publish."""
    topic = producer.partition
    if log.level >= DEBUG:
        session = clients.sessions.of(producer)
        log_client(session, "a producer was made", topic, producer=producer.name)
    decisions.changed[topic] = None
    last = NONE
    if isinstance(topic, Partition) and topic.deduplicates and producer.source is None:
        last = topic.sequences.of(producer.identity).last
    if isinstance(topic, Partition) and topic.producers.exclusive is producer and producer.topic_epoch is not None:
        catalogue.partitions.set_topic_epoch(topic.partition_id, producer.topic_epoch)
    data = responses.producer_success(
        request_id, producer.name, topic_epoch=producer.topic_epoch, last_sequence_id=-1 if last == NONE else last,
        schema_version=producer.schema_version)
    decisions.outbox(producer.worker).reply(
        producer.connection, data, request_id=request_id, action=envelope.PRODUCER_READY,
        object_id=producer.producer_id, handle=producer.handle)


def remove_producer(decisions: Decisions, clients: Clients, topics: TopicTable, session: Session,
                    producer: Producer) -> None:
    """Remove a producer that its client has closed, or whose connection ended."""
    if log.level >= DEBUG:
        log_client(session, "a producer was closed", producer.partition, producer=producer.name)
    _revoke(decisions, clients, producer)
    _let_next_in(decisions, clients, topics.catalogue, producer)
    topics.forget_if_idle(producer.partition)


def _revoke(decisions: Decisions, clients: Clients, producer: Producer) -> None:
    """Take the producer out of the owner's tables, so that it may not publish any more."""
    decisions.changed[producer.partition] = None
    if clients.producers.remove(producer):
        decisions.counters.add("producers", -1)
    if isinstance(producer.partition, Partition):
        producer.partition.replicators.discard(producer)
        producer.partition.sequences.leave(producer.identity, decisions.now_ms)


def _let_next_in(decisions: Decisions, clients: Clients, catalogue: Catalogue, producer: Producer) -> None:
    """Take a closed producer off its topic, and admit the next producer that waits for exclusive access."""
    successor = producer.partition.producers.leave(producer)
    if successor is not None:
        _answer_ready(decisions, clients, catalogue, successor, successor.request_id)


def expel_producer(decisions: Decisions, clients: Clients, producer: Producer, why: Refusal = CLOSED, *,
                   is_sealed: bool = False) -> None:
    """Close a producer that was removed from its topic's producers.  Its client may reconnect.

    why: the error for a producer that still waits for exclusive access.  is_sealed: its segment ended with that error,
    which one that has published gets before CLOSE_PRODUCER.  A client ignores errors of a producer that it was told to
    close: it would connect that producer again, and wait for this to fail, before it sends to another segment.
    """
    session = clients.sessions.of(producer)
    if session is not None:
        session.producers.pop(producer.producer_id, None)
    if log.level >= DEBUG:
        log_client(session, "a producer was told to go", producer.partition, producer=producer.name)
    _revoke(decisions, clients, producer)
    topic = producer.partition
    data, which = _close_at_client(topic, producer.producer_id, producer.source), {"handle": producer.handle}
    action = envelope.PRODUCER_SEALED if is_sealed else envelope.PRODUCER_GONE
    if is_sealed and producer.messages_in:
        data = responses.send_error(producer.producer_id, 0, why.code, why.message) + data
    if not producer.is_ready:      # its worker does not know its handle
        action = envelope.PRODUCER_GONE
        which = {"request_id": producer.request_id}
        if not (topic.is_persistent and topic.policies.migrated_to):
            data = responses.error(producer.request_id, why.code, why.message)
    decisions.outbox(producer.worker).reply(
        producer.connection, data, action=action, object_id=producer.producer_id, **which)


def _close_at_client(topic: Topic, producer_id: int, source: str | None) -> bytes:
    """Return a CLOSE_PRODUCER frame, after a TOPIC_MIGRATED frame if the topic has moved to another cluster.

    source: the cluster whose replicator the producer is.  A replicator is not sent away: it would publish in the other
    cluster what it has from there.
    """
    close, to = responses.close_producer(producer_id), topic.policies.migrated_to if topic.is_persistent else ()
    if source is not None:
        return close
    return responses.topic_migrated(api.CommandTopicMigrated.Producer, producer_id, *to) + close if to else close


def dismiss(decisions: Decisions, clients: Clients, catalogue: Catalogue, producer: Producer,
            why: Refusal = CLOSED) -> None:
    """Close a producer, and admit the next one that waits for exclusive access.

    why: the error for a producer that still waits for exclusive access itself.
    """
    expel_producer(decisions, clients, producer, why)
    _let_next_in(decisions, clients, catalogue, producer)


def close_unencrypted_producers(decisions: Decisions, clients: Clients, catalogue: Catalogue, topic: Topic) -> None:
    """Close the topic's producers that do not encrypt, but no replicator."""
    for producer in [one for one in topic.producers.live.values() if not one.is_encrypted and one.source is None]:
        dismiss(decisions, clients, catalogue, producer)


def close_producers(decisions: Decisions, clients: Clients, catalogue: Catalogue, topic: Topic) -> None:
    """Close the topic's producers that may publish.

    They reconnect, and queue behind producers that already wait for exclusive access.
    """
    for producer in list(topic.producers.live.values()):
        dismiss(decisions, clients, catalogue, producer)


def close_refused(decisions: Decisions, clients: Clients, catalogue: Catalogue, session: Session,
                  producer_id: int) -> None:
    """Close a producer whose SEND was refused, if its partition deduplicates, or if it is a replicator.

    The client sends the refused message and all later ones again. If a later SEND were stored first, messages would
    change their order, and a replicator's refused one would be taken for a duplicate and be lost.
    """
    producer = session.producers.get(producer_id)
    if producer is None or not isinstance(producer.partition, Partition):
        return
    if producer.partition.deduplicates or producer.source is not None:
        dismiss(decisions, clients, catalogue, producer)


def refuse_send(decisions: Decisions, clients: Clients, catalogue: Catalogue, session: Session, producer_id: int,
                handle: int, frames: bytes) -> None:
    """Close a replicator's producer because its worker has refused a SEND; frames: they tell the client."""
    decisions.outbox(session.worker).reply(session.connection, frames)
    producer = session.producers.get(producer_id)
    if producer is not None and producer.handle == handle:
        dismiss(decisions, clients, catalogue, producer)


@carries_out(T.CLOSE_PRODUCER)
def close_producer(decisions: Decisions, clients: Clients, topics: TopicTable, gate: PublishGate, publisher: Publisher,
                   session: Session, request: api.CommandCloseProducer) -> None:
    """CLOSE_PRODUCER: remove the producer, or withdraw its parked PRODUCER."""
    producer = session.producers.pop(request.producer_id, None)
    if producer is not None:
        publisher.publish_held(producer.partition)
        remove_producer(decisions, clients, topics, session, producer)
    withdraw(clients, gate, session, T.PRODUCER, request.producer_id)
    succeed(decisions, session, request.request_id)
