"""Consumers: how they attach to subscriptions and leave them, and their requests other than for messages."""
import itertools
from datetime import UTC, datetime
from typing import Any

import numpy as np

from geminga.proto import envelope, names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.proto.errors import Refusal
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.commands import schema_admission
from geminga.storage.commands.producers import reaches_address_limit
from geminga.storage.commands.requests import carries_out, log_consumer, park, withdraw
from geminga.storage.commands.subscriptions import (
    NAME_MAX,
    check_name,
    check_new_name,
    close_consumers,
    delete_subscription,
    keep_type,
    new_subscription,
    reset_subscription,
    rolled_back,
    set_properties,
    set_replicated,
)
from geminga.storage.cursors.dead_entries import DELIVERIES
from geminga.storage.cursors.pending_acks import CONSUMERS_MAX
from geminga.storage.dispatch import DISPATCHERS, dispatcher_for, ranges
from geminga.storage.dispatch.entry_buckets import EntryBuckets, may_follow, share
from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.filters.sieve import FILTER
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.open_topics import acknowledge, dead_letters, filtering
from geminga.storage.open_topics.answers import probe, succeed
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.compacted_views import CompactedViews
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.discovery import Discovery
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.publish_gate import PublishGate
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.session import Session
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.runtime.log import DEBUG, log
from geminga.storage.scalable.inheritance import Inheritance
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import (
    SPREAD,
    Consumer,
    Dispatcher,
    Obstacle,
    Subscription,
    SubType,
    Topic,
    busy,
)

QUARANTINE = "geminga.quarantine.deaths"  # property of a subscription: deaths after which an entry is parked
_DEATHS_MAX = 10_000
_UNREADABLE_MAX = 100                     # unreadable entries that clients may report in a minute; enough for an alarm


def subscribe(decisions: Decisions, clients: Clients, topics: TopicTable, discovery: Discovery, views: CompactedViews,
              inheritance: Inheritance, session: Session, command: api.BaseCommand, *, probed: bool = False) -> None:
    """SUBSCRIBE: attach a consumer to a subscription, or answer again if the connection already has the consumer.

    probed: whether the connection of the consumer that is in the way has answered a PING.
    """
    request = command.subscribe
    existing = session.consumers.get(request.consumer_id)
    if existing is not None:
        return _answer_ready(decisions, clients, existing, request.request_id)
    if session.is_replicator:
        return _subscribe_replicator(decisions, clients, topics, session, request)
    _refuse_unsupported(topics, request)
    deaths_max, filter_text = _deaths_max(request), _filter(request)
    topic = topics.find_or_create(names.parse(request.topic), may_create=request.force_topic_creation)
    _refuse_one_too_many(clients, topics.options, session, topic, request)
    known = topic.subscriptions.get((request.subscription, request.durable and topic.is_persistent))
    filtering.refuse(topic, known, filter_text)
    if request.HasField("schema"):
        schema_admission.admit_consumer(topics.catalogue, decisions.counters, topic, request.schema)
    rate = topic.rate_limits.subscribed if topic.rate_limits is not None else None
    client = session.host, request.consumer_name, request.consumer_id
    if rate is not None and not rate.may(client, decisions.now_ms):
        raise Refusal(api.NotAllowedError, "Subscribe limited by subscribe rate limit per consumer.")
    if _is_late(topics, topic, request):
        assert isinstance(topic, Partition), topic
        if inheritance.park(session, command, topic):
            return None
        decisions.acknowledged[topic] = None      # at the end it has drained the segment
    subscription = _find_or_create_subscription(decisions, clients, topics.catalogue, discovery, topic, request)
    if request.subType not in SPREAD:      # a cumulative acknowledgement would take what is on its way
        _refuse_while_undone(subscription)
    consumer = _new_consumer(decisions, clients, session, request, subscription)
    if (obstacle := _obstacle(subscription, request.subType, consumer)) is not None:
        holder = obstacle.holder
        if not probed and (holder.worker, holder.connection) != session.key:
            return park(decisions, clients, session, command, holder.worker, holder.connection)
    if rate is not None:
        rate.count(client, decisions.now_ms)
    if obstacle is not None:
        raise obstacle.refusal
    _configure_subscription(decisions, topics.catalogue, views, subscription, request, deaths_max)
    active = _dispatcher(subscription).active
    if active is not None and (active.worker, active.connection) != session.key:
        probe(decisions, active.worker, active.connection)      # the newcomer waits for it to leave
    _attach(decisions, clients, session, consumer)
    _answer_ready(decisions, clients, consumer, request.request_id)
    decisions.wake(topic)


def _subscribe_replicator(decisions: Decisions, clients: Clients, topics: TopicTable, session: Session,
                          request: api.CommandSubscribe) -> None:
    """Attach the consumer of the broker's own replicator to a replication cursor, or the one that moves dead letters.

    The consumer takes the place of an earlier one at once: the replicator was started anew, and its former process may
    hang. No policy about consumers holds for it.  Raises Refusal if the topic has no such cursor.
    """
    topic = topics.find(names.parse(request.topic))
    subscription = None if topic is None else topic.subscriptions.get((request.subscription, True))
    undoes = any(one.key == names.UNDOES for one in request.metadata)
    if subscription is not None and subscription.remote is None and (undoes or dead_letters.may_have(subscription)):
        _refuse_while_undone(subscription, undoes=undoes)
        return _attach_mover(decisions, clients, topics, session, request, subscription)
    if topic is None or subscription is None or subscription.remote is None:
        raise Refusal(api.SubscriptionNotFound, f"{request.topic} has no replication cursor {request.subscription}")
    if request.subType != SubType.Exclusive:
        raise Refusal(api.NotAllowedError, "A replication cursor has one consumer, of type Exclusive")
    close_consumers(decisions, clients, subscription)
    consumer = _new_consumer(decisions, clients, session, request, subscription)
    consumer.takes_any_schema = True      # else the first schema of the topic would be refused, as if somebody read it
    subscription.kind, subscription.dispatcher = SubType.Exclusive, DISPATCHERS[SubType.Exclusive](subscription)
    _attach(decisions, clients, session, consumer)
    _answer_ready(decisions, clients, consumer, request.request_id)
    decisions.wake(topic)


def _attach_mover(decisions: Decisions, clients: Clients, topics: TopicTable, session: Session,
                  request: api.CommandSubscribe, subscription: Subscription) -> None:
    """Attach the consumer that moves a subscription's dead letters, in place of an earlier one."""
    if (earlier := subscription.mover) is not None:
        if (other := clients.sessions.of(earlier)) is not None:
            other.consumers.pop(earlier.consumer_id, None)
        remove_consumer(decisions, clients, topics, other or session, earlier)
    mover = _new_consumer(decisions, clients, session, request, subscription)
    dead_letters.attach(subscription, mover, mover.metadata.get(names.MOVER_ERROR, ""))
    session.consumers[mover.consumer_id] = mover
    clients.consumers.by_handle[mover.handle] = mover
    decisions.counters.add("consumers")
    _answer_ready(decisions, clients, mover, request.request_id)


def _refuse_while_undone(subscription: Subscription, *, undoes: bool = False) -> None:
    """Raise Refusal while a redrive to a subscription is being undone.  undoes: whether the newcomer does the same."""
    if not undoes and dead_letters.is_undone(subscription):
        raise Refusal(api.ConsumerBusy, "A redrive to the subscription is being undone; try again when it has ended")


def _is_late(topics: TopicTable, topic: Topic, request: api.CommandSubscribe) -> bool:
    """Whether a SUBSCRIBE makes a durable subscription on a segment that is sealed already.

    Raises Refusal if the segment is being deleted: the subscription would go with it, and be on no other segment.
    """
    if not (isinstance(topic, Partition) and topic.is_terminated and request.durable
            and (request.subscription, True) not in topic.subscriptions and topic.policies.auto_create_subscriptions):
        return False
    if topics.catalogue.scalable_topics.is_pruned(topic.name):
        raise Refusal(api.TopicNotFound, f"{topic.name} was not found in active segments of {topic.name.base}")
    return topics.catalogue.scalable_topics.is_sealed_for(topic.name)


def _find_or_create_subscription(
    decisions: Decisions, clients: Clients, catalogue: Catalogue, discovery: Discovery,
    topic: Partition | NonPersistentTopic, request: api.CommandSubscribe,
) -> Subscription:
    """Return the subscription that a SUBSCRIBE names.

    It is created if there is none, and reset if the request asks for a start in the past.
    """
    subscription = topic.subscriptions.get((request.subscription, request.durable and topic.is_persistent))
    if subscription is None:
        return new_subscription(decisions, catalogue, discovery, topic, request)
    is_sought = subscription in clients.consumers.expected_readers      # a seek takes precedence
    is_free = not (subscription.consumers or is_sought)
    if isinstance(topic, Partition) and request.start_message_rollback_duration_sec and is_free:
        reset_subscription(decisions, subscription, rolled_back(decisions, topic, request))
    return subscription


def _configure_subscription(
    decisions: Decisions, catalogue: Catalogue, views: CompactedViews, subscription: Subscription,
    request: api.CommandSubscribe, deaths_max: int,
) -> None:
    """Apply the properties, the quarantine and `read_compacted` of a SUBSCRIBE to its subscription."""
    topic = subscription.partition
    topic.now_ms = decisions.now_ms
    is_first = topic.is_persistent and not subscription.consumers
    if is_first or (topic.is_persistent and deaths_max):      # a later consumer cannot switch quarantine off
        subscription.deaths_max = deaths_max
    properties = {one.key: one.value for one in request.subscription_properties}
    if (filter_text := _filter(request)) is not None:
        properties[FILTER] = filter_text
    if properties and not subscription.has_own_properties:
        set_properties(decisions, catalogue, subscription, properties)
    if request.replicate_subscription_state and subscription.is_durable and not subscription.is_replicated:
        set_replicated(decisions, catalogue, subscription, True)
    if is_first:
        views.begin(subscription, reads_compacted=request.read_compacted)


def _attach(decisions: Decisions, clients: Clients, session: Session, consumer: Consumer) -> None:
    """Attach the consumer to its subscription, and enter it in the tables of the owner and of its connection."""
    subscription = consumer.subscription
    if subscription.consumers and type(subscription.dispatcher) is Exclusive:      # which it follows
        share(subscription)
    subscription.attach(consumer)
    subscription.partition.attached[subscription] = None
    session.consumers[consumer.consumer_id] = consumer
    clients.consumers.by_handle[consumer.handle] = consumer
    decisions.counters.add("consumers")
    assert subscription.kind is not None, subscription
    keep_type(decisions, subscription, subscription.kind)


def _new_consumer(
    decisions: Decisions, clients: Clients, session: Session, request: api.CommandSubscribe,
    subscription: Subscription) -> Consumer:
    """Return the consumer that a SUBSCRIBE asks for, not yet entered in any table."""
    shared = request.keySharedMeta
    return Consumer(
        clients.new_handle(), session.worker, session.connection, request.consumer_id, request.consumer_name,
        session.protocol_version, subscription, decisions.now_ms, priority=request.priority_level,
        epoch=request.consumer_epoch if request.HasField("consumer_epoch") else None,
        ranges=_ranges(request),
        is_out_of_order_allowed=request.subType == SubType.Key_Shared and shared.allowOutOfOrderDelivery,
        shares_buckets=_shares_buckets(request),
        metadata={one.key: one.value for one in request.metadata},
        takes_any_schema=request.HasField("schema") and request.schema.type == api.Schema.AutoConsume)


def _ranges(request: api.CommandSubscribe) -> list[tuple[int, int]] | None:
    """Return the ranges of key hashes, (first, last), that a sticky consumer or a reader asks for; None for all."""
    shared = request.keySharedMeta
    if request.subType == SubType.Exclusive:
        is_sticky = bool(shared.hashRanges) and names.parse(request.topic).is_persistent
    else:
        is_sticky = request.subType == SubType.Key_Shared and shared.keySharedMode == api.STICKY
    return [(one.start, one.end) for one in shared.hashRanges] if is_sticky else None


def _shares_buckets(request: api.CommandSubscribe) -> bool:
    return request.subType == SubType.Key_Shared and request.keySharedMeta.entryBucketDispatch


def _obstacle(subscription: Subscription, kind: "SubType.ValueType", consumer: Consumer) -> Obstacle | None:
    """Return what prevents the consumer from attaching to the subscription, None if it may attach.

    A subscription without consumers takes the consumer's type.
    """
    first = subscription.first_consumer
    if first is None:
        subscription.kind, subscription.dispatcher = kind, dispatcher_for(subscription, kind, consumer)
    elif may_follow(subscription, kind, consumer):
        dispatcher = subscription.dispatcher
        return dispatcher.obstacle(consumer) if isinstance(dispatcher, EntryBuckets) else None
    elif subscription.kind != kind:
        text = f"Subscription is of different type: it has a consumer of type {subscription.kind_name}"
        return Obstacle(first, busy(text))
    elif isinstance(subscription.dispatcher, EntryBuckets) and not consumer.shares_buckets:
        return Obstacle(first, busy("Subscription is of different type: another Key_Shared policy"))
    return _dispatcher(subscription).obstacle(consumer)


def _dispatcher(subscription: Subscription) -> Dispatcher:
    """Return the dispatcher of a subscription that has consumers."""
    assert subscription.dispatcher is not None, subscription
    return subscription.dispatcher


def _deaths_max(request: api.CommandSubscribe) -> int:
    """Return the number of deaths after which an entry is parked, as set by a property; 0: never.  Raises Refusal."""
    for one in (*request.metadata, *request.subscription_properties):
        if one.key == QUARANTINE:
            if not (one.value.isascii() and one.value.isdigit() and 0 < int(one.value[:6]) <= _DEATHS_MAX):
                raise Refusal(api.NotAllowedError, f"{QUARANTINE} is a number of 1 to {_DEATHS_MAX}")
            return int(one.value)
    return 0


def _filter(request: api.CommandSubscribe) -> str | None:
    """Return the filter that a SUBSCRIBE asks for, None without one.

    Some clients have no properties of subscriptions: these set it as a property of the consumer.  Raises Refusal.
    """
    asked = {one.value for one in (*request.metadata, *request.subscription_properties) if one.key == FILTER}
    if len(asked) > 1:
        raise Refusal(api.NotAllowedError, f"{FILTER}: more than one filter")
    text = next(iter(asked), None)
    if isinstance(text, bytes):      # the protobuf library returns a string that is not UTF-8 as bytes
        raise Refusal(api.NotAllowedError, f"{FILTER}: the filter is not UTF-8")
    return text


def _is_subscribed(topics: TopicTable, request: api.CommandSubscribe) -> bool:
    topic = names.parse(request.topic)
    partition = topics.find(topic) if topic.is_persistent else None
    return partition is not None and (request.subscription, True) in partition.subscriptions


def _refuse_unsupported(topics: TopicTable, request: api.CommandSubscribe) -> None:
    """Refuse a SUBSCRIBE that no topic could carry out, before a topic or subscription is created for it."""
    check_name(request.subscription)
    if names.is_blank(request.subscription) and not _is_subscribed(topics, request):
        check_new_name(request.subscription)
    if request.subType == SubType.Key_Shared and not topics.options.current.key_shared_enabled:
        raise Refusal(api.NotAllowedError, "Key_Shared subscription is not allowed")
    if request.read_compacted and request.subType not in (SubType.Exclusive, SubType.Failover):
        raise Refusal(api.NotAllowedError, "read_compacted is for Exclusive and Failover subscriptions")
    if request.read_compacted and not names.parse(request.topic).is_persistent:
        raise Refusal(api.NotAllowedError, "read_compacted is for persistent topics")
    if len(request.consumer_name) > NAME_MAX:
        raise Refusal(api.NotAllowedError, f"Consumer name longer than {NAME_MAX} characters")
    if _shares_buckets(request):
        _check_buckets(request)
    elif (wanted := _ranges(request)) is not None:
        ranges.check(wanted)
        if request.read_compacted:      # a compacted view does not have the keys' hashes
            raise Refusal(api.NotAllowedError, "read_compacted is not for consumers with ranges of key hashes")


def _check_buckets(request: api.CommandSubscribe) -> None:
    """Refuse a consumer that cannot share a segment by its entry buckets."""
    shared = request.keySharedMeta
    if not names.parse(request.topic).is_segment:
        raise Refusal(api.NotAllowedError, "Entry buckets are for segments of scalable topics")
    if shared.keySharedMode != api.STICKY or shared.allowOutOfOrderDelivery:
        raise Refusal(api.ConsumerAssignError, "Entry buckets need the policy STICKY, in order")
    ranges.check_buckets(_ranges(request) or [])


def _refuse_one_too_many(clients: Clients, options: OptionsInForce, session: Session, topic: Topic,
                         request: api.CommandSubscribe) -> None:
    """Refuse a consumer whose type policies exclude, or which exceeds their number of consumers."""
    policies, kind = topic.policies, SubType.Name(request.subType)
    if kind not in policies.subscription_types:
        raise Refusal(api.NotAllowedError, f"Topic[{{{topic.name}}}] doesn't support {kind} sub type!")
    subscriptions = [one for one in topic.attached if one.remote is None]
    if policies.max_consumers and sum(len(one.consumers) for one in subscriptions) >= policies.max_consumers:
        raise Refusal(api.ConsumerBusy, "Topic reached max consumers limit")
    consumers = itertools.chain.from_iterable(one.consumers for one in subscriptions)      # only looked at if limited
    if reaches_address_limit(clients, session, topic, options.current.max_same_address_consumers_per_topic, consumers):
        raise Refusal(api.ConsumerBusy, "Topic reached max same address consumers limit")
    subscription = topic.subscriptions.get((request.subscription, request.durable and topic.is_persistent))
    limit = min(policies.max_consumers_per_subscription or CONSUMERS_MAX, CONSUMERS_MAX)
    if subscription is not None and len(subscription.consumers) >= limit:
        raise Refusal(api.ConsumerBusy, "Subscription reached max consumers limit")


def _answer_ready(decisions: Decisions, clients: Clients, consumer: Consumer, request_id: int) -> None:
    """Answer a SUBSCRIBE with SUCCESS, after which the consumer may grant permits."""
    if log.level >= DEBUG:
        log_consumer(clients.sessions.of(consumer), "a consumer was made", consumer)
    decisions.outbox(consumer.worker).reply(
        consumer.connection, responses.success(request_id), request_id=request_id, action=envelope.CONSUMER_READY,
        object_id=consumer.consumer_id, handle=consumer.handle,
        partition=consumer.subscription.partition.name.partition)
    _tell_epoch(decisions, consumer)


def _tell_epoch(decisions: Decisions, consumer: Consumer) -> None:
    """Tell the worker the epoch with which it sends the consumer's messages from now on."""
    if consumer.epoch is not None:
        decisions.outbox(consumer.worker).reply(
            consumer.connection, b"", action=envelope.CONSUMER_EPOCH, object_id=consumer.handle, handle=consumer.epoch)


def remove_consumer(decisions: Decisions, clients: Clients, topics: TopicTable, session: Session,
                    consumer: Consumer) -> None:
    """Remove a consumer that its client has closed, or whose connection ended."""
    subscription = consumer.subscription
    if log.level >= DEBUG:
        log_consumer(session, "a consumer was closed", consumer)
    if clients.consumers.by_handle.pop(consumer.handle, None) is not None:
        decisions.counters.add("consumers", -1)
        clients.consumers.note_closed(consumer)
    subscription.partition.now_ms = decisions.now_ms
    if consumer is subscription.mover:
        return dead_letters.detach(decisions, subscription)
    try:
        subscription.detach(consumer)
    except Exception:      # the dispatcher's state is unknown now, so all consumers subscribe anew
        close_consumers(decisions, clients, subscription)
        raise
    if not subscription.consumers:
        subscription.partition.attached.pop(subscription, None)
        if not subscription.is_durable:
            subscription.partition.remove_subscription(subscription)
    decisions.wake(subscription.partition)
    topics.forget_if_idle(subscription.partition)


def count_death(decisions: Decisions, consumer: Consumer) -> None:
    """Count a death for each entry that the consumer held when its connection ended.

    An entry with too many deaths is parked: it stays in the backlog, and is delivered to no consumer.
    """
    subscription = consumer.subscription
    if consumer is subscription.mover:
        return
    for ledger_id, entries in _dispatcher(subscription).held_by(consumer):
        counts = subscription.cursor.deaths.add(ledger_id, entries)
        acknowledge.note_counts(decisions, subscription, format.DIED, ledger_id, entries, counts)
        dead_letters.count(decisions, subscription, ledger_id, entries)
        parked = subscription.parked(ledger_id, entries) if subscription.deaths_max else entries[:0]
        if subscription.counts_deliveries:
            dead_letters.bury(decisions, subscription, ledger_id, parked, DELIVERIES)
        elif len(parked):
            _dispatcher(subscription).acknowledged(_ledger(subscription, ledger_id), parked)
            decisions.counters.add("entries_parked", len(parked))


@carries_out(T.CLOSE_CONSUMER)
def close_consumer(decisions: Decisions, clients: Clients, topics: TopicTable, gate: PublishGate, session: Session,
                   request: api.CommandCloseConsumer) -> None:
    """CLOSE_CONSUMER: remove the consumer, or withdraw its parked SUBSCRIBE."""
    consumer = session.consumers.pop(request.consumer_id, None)
    if consumer is not None:
        remove_consumer(decisions, clients, topics, session, consumer)
        consumer.subscription.may_lack_acks = False      # whoever comes next knows only what has arrived
    withdraw(clients, gate, session, T.SUBSCRIBE, request.consumer_id)
    succeed(decisions, session, request.request_id)


def report_damaged(decisions: Decisions, reports: Reports, session: Session, ack: api.CommandAck) -> None:
    """Log and count entries that a client discarded as unreadable, because they may be damaged on disk."""
    consumer = session.consumers.get(ack.consumer_id)
    if consumer is None:
        return
    topic, places = consumer.subscription.partition, []
    if not isinstance(topic, Partition):
        return
    for position in {(identity.ledgerId, identity.entryId): None for identity in ack.message_id}:
        is_known = (topic, position) in reports.unreadable or len(reports.unreadable) >= _UNREADABLE_MAX
        if not is_known and _dispatcher(consumer.subscription).holds(consumer, position):
            reports.unreadable.add((topic, position))
            places.append("{}:{}".format(*position))
    if places:
        decisions.counters.add("acks_of_damaged", len(places))
        why = api.CommandAck.ValidationError.Name(ack.validation_error)
        log.error(f"a client could not read message {', '.join(places)} ({why}); "
                  "geminga verify tells whether it is damaged on disk", code="G122")


def consumer_of(session: Session, consumer_id: int) -> Consumer:
    """Return the session's consumer with an id.  Raises Refusal if there is none."""
    if consumer_id not in session.consumers:
        raise Refusal(api.MetadataError, "Consumer not topic")
    return session.consumers[consumer_id]


@carries_out(T.UNSUBSCRIBE)
def unsubscribe(decisions: Decisions, clients: Clients, topics: TopicTable, session: Session,
                request: api.CommandUnsubscribe) -> None:
    """UNSUBSCRIBE: delete the consumer's subscription."""
    consumer = consumer_of(session, request.consumer_id)
    subscription = consumer.subscription
    if subscription.remote is not None:
        raise Refusal(api.NotAllowedError, "A replication cursor is deleted by taking its cluster out of the list")
    if len(subscription.consumers) > 1 and not request.force:
        raise Refusal(api.MetadataError, "Subscription has other consumers")
    del session.consumers[request.consumer_id]
    remove_consumer(decisions, clients, topics, session, consumer)
    delete_subscription(decisions, clients, topics.catalogue, subscription)
    succeed(decisions, session, request.request_id, consumer)


@carries_out(T.REDELIVER_UNACKNOWLEDGED_MESSAGES)
def redeliver(decisions: Decisions, session: Session, request: api.CommandRedeliverUnacknowledgedMessages) -> None:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES: redeliver the named entries, or else all that the consumer holds."""
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None or not consumer.subscription.partition.is_persistent \
            or consumer is consumer.subscription.mover:
        return
    subscription = consumer.subscription
    wanted: dict[int, set[int]] = {}
    for identity in request.message_ids:
        ledger = subscription.find(identity.ledgerId)
        if ledger is not None:
            entries = wanted.setdefault(identity.ledgerId, set())
            if identity.entryId < ledger.entries:
                entries.add(identity.entryId)
        elif _dispatcher(subscription).hears_clients:      # the ledger was deleted while it had the entry
            _dispatcher(subscription).heard({identity.ledgerId: [identity.entryId]})
            decisions.wake(subscription.partition)
    if request.message_ids and not wanted:
        return
    has_epochs = subscription.kind in (SubType.Exclusive, SubType.Failover) or consumer.is_sole
    # Never back: a client drops messages of epochs before its own.
    is_later = request.HasField("consumer_epoch") and (
        consumer.epoch is None or request.consumer_epoch > consumer.epoch)
    if has_epochs and is_later:
        consumer.epoch = request.consumer_epoch
        _tell_epoch(decisions, consumer)
    held = held_messages(consumer)
    nacked = _dispatcher(subscription).redeliver(
        consumer, {ledger_id: np.array(sorted(entries), np.int64) for ledger_id, entries in wanted.items()})
    for ledger_id, given_back in nacked:
        counts = subscription.cursor.redeliveries.add(ledger_id, given_back)
        acknowledge.note_counts(decisions, subscription, format.REDELIVERED, ledger_id, given_back, counts)
        dead_letters.count(decisions, subscription, ledger_id, given_back)
    consumer.redelivered += held - held_messages(consumer)
    decisions.wake(subscription.partition)


def held_messages(consumer: Consumer) -> int:
    """Return how many messages the consumer holds: delivered, and neither acknowledged nor given back."""
    subscription = consumer.subscription
    return sum(int(subscription.messages(_ledger(subscription, ledger_id), entries).sum())
               for ledger_id, entries in _dispatcher(subscription).held_by(consumer))


def _ledger(subscription: Subscription, ledger_id: int) -> Ledger | CompactedLedger:
    """Return a ledger of a subscription by its id, which exists because consumers hold entries of it."""
    ledger = subscription.find(ledger_id)
    assert isinstance(ledger, Ledger | CompactedLedger), (subscription, ledger_id)
    return ledger


@carries_out(T.CONSUMER_STATS)
def consumer_stats(decisions: Decisions, session: Session, request: api.CommandConsumerStats) -> None:
    """CONSUMER_STATS: answer with the counters of a consumer of this connection."""
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None:
        data = responses.consumer_stats(
            request.request_id, error_code=api.ConsumerNotFound, error_message="Consumer not topic")
    else:
        data = responses.consumer_stats(
            request.request_id, address=session.address, **_statistics(consumer, decisions.now_ms))
    decisions.outbox(session.worker).reply(session.connection, data, request_id=request.request_id)


def _statistics(consumer: Consumer, now_ms: int) -> dict[str, Any]:
    """Return fields of CommandConsumerStatsResponse for a consumer; rates are averages since it connected.

    The backlog is what the consumer can get now: messages of open transactions may be undone.
    """
    subscription = consumer.subscription
    topic, seconds = subscription.partition, max(1.0, (now_ms - consumer.connected_ms) / 1000)
    held, ledgers = held_messages(consumer), topic.readable_ledgers if isinstance(topic, Partition) else ()
    return {
        "msgRateOut": consumer.messages_out / seconds, "msgThroughputOut": consumer.bytes_out / seconds,
        "msgRateRedeliver": consumer.redelivered / seconds,
        "messageAckRate": max(0, consumer.messages_out - consumer.redelivered - held) / seconds,
        "consumerName": consumer.name, "availablePermits": max(0, consumer.permits),
        "unackedMessages": held, "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
        "connectedSince": datetime.fromtimestamp(consumer.connected_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "type": subscription.kind_name, "msgBacklog": subscription.cursor.backlog(ledgers)}
