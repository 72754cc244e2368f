"""Subscriptions: how they are created, at which position, and how they are reset and deleted."""
from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import is_blank, is_reserved_subscription, remote_of
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.commands.requests import log_consumer
from geminga.storage.cursors.cursor import SKIPPED, Cursor
from geminga.storage.filters.sieve import FILTER, sieve_of
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics import dead_letters
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.discovery import Discovery
from geminga.storage.runtime.log import DEBUG, log
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription, SubType, Topic

NAME_MAX = 4_096                          # characters of a producer's or subscription's name; arbitrary


def check_name(name: str) -> None:
    """Refuse a subscription name that is reserved or too long, with Pulsar's error code."""
    if not name or is_reserved_subscription(name) or len(name) > NAME_MAX:
        text = f"Subscription name {name[:80]!r} is reserved, or longer than {NAME_MAX} characters"
        raise Refusal(api.ProducerBusy, text)


def check_new_name(name: str) -> None:
    """Refuse a name that no subscription gets any more, with Pulsar's error code.

    Older versions created subscriptions with blank names, which can still be used.
    """
    if is_blank(name):
        raise Refusal(api.ProducerBusy, "The subscription's name is blank")


def new_subscription(decisions: Decisions, catalogue: Catalogue, discovery: Discovery, topic: Topic,
                     request: api.CommandSubscribe) -> Subscription:
    """Create the subscription that a SUBSCRIBE asks for.  Raises Refusal, StorageFull."""
    if not isinstance(topic, Partition):
        refuse_one_too_many(topic)
        return topic.add_subscription(request.subscription, Cursor(0, topic.last_confirmed, is_durable=False))
    partition = topic
    if request.durable and not partition.policies.auto_create_subscriptions:
        raise Refusal(api.SubscriptionNotFound, "Subscription does not exist")
    if not request.durable:
        refuse_one_too_many(partition)
    position = _beginning(decisions, discovery, partition, request)
    if request.durable:
        return create_subscription(decisions, catalogue, partition, request.subscription, position)
    return partition.add_subscription(request.subscription, partition.new_cursor(0, position, is_durable=False))


def _beginning(decisions: Decisions, discovery: Discovery, partition: Partition,
               request: api.CommandSubscribe) -> Position:
    """Return the mark-delete position at which a SUBSCRIBE's new subscription begins.

    A start time in the request overrides everything else.  A message id counts for readers only.  If the id lies behind
    the last message, the initial position decides.
    """
    view = partition.view if request.read_compacted else None
    is_earliest = request.initialPosition == api.CommandSubscribe.Earliest
    if request.start_message_rollback_duration_sec:
        return rolled_back(decisions, partition, request)
    if request.HasField("start_message_id") and not request.durable:
        position = position_of(request.start_message_id)
        if (position[0], position[1] - 1) <= partition.last_confirmed:
            return partition.mark_delete_before(position, view)
    elif discovery.is_expected(partition, decisions.now_ms):
        is_earliest = True
    return partition.mark_delete_before(EARLIEST, view) if is_earliest else partition.last_confirmed


def rolled_back(decisions: Decisions, partition: Partition, request: api.CommandSubscribe) -> Position:
    """Return the mark-delete position before the first message published within the SUBSCRIBE's rollback duration."""
    view = partition.view if request.read_compacted else None
    since_ms = decisions.now_ms - request.start_message_rollback_duration_sec * 1000
    return partition.mark_delete_before_time(since_ms, view)


def refuse_one_too_many(topic: Topic) -> None:
    """Refuse a subscription that exceeds the number of subscriptions that policies allow."""
    limit = topic.policies.max_subscriptions
    if limit and sum(remote_of(name) is None for name, _ in topic.subscriptions) >= limit:
        raise Refusal(api.NotAllowedError, f"Exceed the maximum number of subscriptions of the topic: {topic.name}")


def create_subscription(decisions: Decisions, catalogue: Catalogue, partition: Partition, name: str, position: Position,
                        properties: dict[str, str] | None = None) -> Subscription:
    """Create a durable subscription with this mark-delete position.  Raises Refusal, StorageFull, NotDurable."""
    if remote_of(name) is None:
        refuse_one_too_many(partition)
    # A cursor may need a ledger that cannot be opened.  Failing later would leave a row in the catalogue.
    cursor = partition.new_cursor(0, position, is_durable=True)
    cursor.subscription_id = catalogue.subscriptions.create(partition.partition_id, name)
    subscription = partition.add_subscription(name, cursor)
    if properties:
        set_properties(decisions, catalogue, subscription, properties)
    _note_beginning(decisions, subscription)
    log.info("a subscription was made", topic=partition.name, subscription=name)
    return subscription


def keep_type(decisions: Decisions, subscription: Subscription, kind: "SubType.ValueType") -> None:
    """Keep the type of a subscription's consumers, which reports tell when nobody is connected.

    No answer waits for a sync: a power cut at once after a change of the type may leave the type before.
    """
    cursor, topic = subscription.cursor, subscription.partition
    if cursor.last_type == kind:
        return
    cursor.last_type = kind
    if cursor.is_durable:
        assert isinstance(topic, Partition), subscription
        decisions.note(topic, journal_ops.type_changed(topic.partition_id, cursor.subscription_id, kind))


def set_properties(decisions: Decisions, catalogue: Catalogue, subscription: Subscription,
                   properties: dict[str, str]) -> None:
    """Replace the subscription's properties, and with them its filter."""
    if properties.get(FILTER) != subscription.properties.get(FILTER):
        subscription.sieve = sieve_of(properties)
        subscription.rewind()
    subscription.properties, subscription.has_own_properties = properties, True
    if subscription.is_durable:
        catalogue.properties.set(subscription.cursor.subscription_id, properties)
        decisions.answer_needs_sync()


def set_replicated(decisions: Decisions, catalogue: Catalogue, subscription: Subscription, is_replicated: bool) -> None:
    """Mark the subscription as replicated to other clusters, or take the mark away."""
    subscription.is_replicated = is_replicated
    if subscription.is_durable:
        catalogue.subscriptions.set_replicated(subscription.cursor.subscription_id, is_replicated)
        decisions.answer_needs_sync()


def delete_subscription(decisions: Decisions, clients: Clients, catalogue: Catalogue,
                        subscription: Subscription) -> None:
    """Delete the subscription: close its consumers, and let ledgers be trimmed that only it needed."""
    partition = subscription.partition
    close_consumers(decisions, clients, subscription)
    if subscription.is_durable:
        assert isinstance(partition, Partition), subscription
        catalogue.subscriptions.delete(subscription.cursor.subscription_id)
        decisions.note(partition, journal_ops.subscription_deleted(
            partition.partition_id, subscription.cursor.subscription_id))
        decisions.answer_needs_sync()
        if partition.transactions is not None:
            partition.transactions.forget_subscription(subscription.cursor.subscription_id)
        partition.remove_subscription(subscription)
        decisions.wake_trimming(partition)
        log.info("a subscription was deleted", topic=partition.name, subscription=subscription.name)
    else:      # the end of the last consumer may have removed it already
        partition.remove_subscription(subscription)


def reset_subscription(decisions: Decisions, subscription: Subscription, position: Position) -> None:
    """Reset the subscription of a stored topic to a mark-delete position; entries behind it are delivered again."""
    partition = subscription.partition
    assert isinstance(partition, Partition), subscription
    partition.reset_cursor(subscription.cursor, position)
    _note_beginning(decisions, subscription)


def _note_beginning(decisions: Decisions, subscription: Subscription) -> None:
    """Note the subscription's mark-delete position in the journal, and deliver from there on."""
    partition, cursor = subscription.partition, subscription.cursor
    if subscription.is_durable:
        assert isinstance(partition, Partition), subscription
        decisions.note(partition, journal_ops.cursor_reset(
            partition.partition_id, cursor.subscription_id, cursor.mark_delete, since=cursor.since))
        decisions.count(subscription, SKIPPED, 0)
        decisions.answer_needs_sync()
    subscription.rewind()


def close_consumers(decisions: Decisions, clients: Clients, subscription: Subscription) -> None:
    """Close the subscription's consumers.

    Their clients subscribe again, and unacknowledged entries are redelivered.
    """
    for consumer in subscription.everyone:
        session = clients.sessions.of(consumer)
        if session is not None:
            session.consumers.pop(consumer.consumer_id, None)
        if log.level >= DEBUG:
            log_consumer(session, "a consumer was told to go", consumer)
        if clients.consumers.by_handle.pop(consumer.handle, None) is not None:
            decisions.counters.add("consumers", -1)
            clients.consumers.note_closed(consumer)
        data = responses.close_consumer(consumer.consumer_id)
        if subscription.has_moved and (to := subscription.partition.policies.migrated_to):
            data = responses.topic_migrated(api.CommandTopicMigrated.Consumer, consumer.consumer_id, *to) + data
        decisions.outbox(consumer.worker).reply(
            consumer.connection, data, action=envelope.CONSUMER_GONE, object_id=consumer.consumer_id,
            handle=consumer.handle)
    if subscription.mover is not None:
        dead_letters.detach(decisions, subscription)
    subscription.vacate()
    subscription.partition.attached.pop(subscription, None)


def position_of(identity: api.MessageIdData) -> Position:
    """Return the position that a message id names, as signed numbers: ids are unsigned on the wire.

    Entry id -1 stands for the first entry.
    """
    ledger_id, entry_id = (
        value - (1 << 64) if value >> 63 else value for value in (identity.ledgerId, identity.entryId))
    return ledger_id, entry_id
