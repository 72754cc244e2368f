"""What a client's command does to a partition: one function per command, found in a table.

Each takes (owner, session, command), changes the owner's tables, notes what the journal has to keep, and puts answers into
the outbox; none of them leaves before the pass is durable.  A Refusal raised here becomes the command's error answer.
"""
import traceback
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial

import numpy as np

from geminga.proto import envelope, names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.connection import requested_id
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName, is_system, refuse_reserved
from geminga.storage import format
from geminga.storage.catalogue.policies import policies_of, refuse_topics
from geminga.storage.cursors.cursor import SKIPPED, Cursor, Position
from geminga.storage.cursors.pending_acks import CONSUMERS_MAX
from geminga.storage.cursors.producer_sequences import NONE
from geminga.storage.dispatch import DISPATCHERS, ranges
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.runtime.log import DEBUG, log
from geminga.storage.schemas import registry
from geminga.storage.topics import acknowledge
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition, op
from geminga.storage.topics.producers import Producer
from geminga.storage.topics.subscription import Consumer, Obstacle, Subscription, SubType, busy

T = api.BaseCommand.Type
_RESERVED = ("pulsar.repl",)              # prefixes of subscription names that Pulsar keeps for itself
_RESERVED_NAMES = ("", "pulsar.dedup")
_NAME_MAX = 4_096                         # characters of a producer's or subscription's name; arbitrary, and more than anybody uses
QUARANTINE = "geminga.quarantine.deaths"  # property of a subscription: an entry is parked when so many consumers died over it
_DEATHS_MAX = 10_000
_UNREADABLE_MAX = 100                     # entries of a minute that clients may say that they could not read; an alarm needs no more
_EXPELLED = Refusal(api.ServiceNotReady, "Told to go before it was made; try again")      # and be told what has changed


def carry_out(owner, session, command: api.BaseCommand, *, probed: bool = False) -> None:
    """Do what the command says; probed: what was in its way has been asked whether it lives, and does.

    Raises Refusal, StorageFull, CorruptFile.
    """
    how = _COMMANDS[command.type]
    if probed:
        how(owner, session, command, probed=True)
    else:
        how(owner, session, command)


def refuse(owner, session, command: api.BaseCommand, refusal: Refusal) -> None:
    """Tell the client; and its worker, that the producer or consumer it asked for does not exist."""
    if command.type not in _REQUESTS:      # nobody waits for an answer
        return
    body = getattr(command, _REQUESTS[command.type])
    data = responses.error(body.request_id, refusal.code, refusal.message)
    action, object_id = envelope.WRITE, 0
    if command.type == T.PRODUCER and body.producer_id not in session.producers:
        action, object_id = envelope.PRODUCER_GONE, body.producer_id
    elif command.type == T.SUBSCRIBE and body.consumer_id not in session.consumers:
        action, object_id = envelope.CONSUMER_GONE, body.consumer_id
    owner.outbox(session.worker).reply(session.connection, data, request_id=body.request_id, action=action, object_id=object_id)


def end_session(owner, session, *, by_client: bool) -> None:
    """The connection is closed, by its client or by an end of the worker: its producers and consumers are gone."""
    owner.sessions.pop((session.worker, session.connection), None)
    owner.discovery.ended((session.worker, session.connection))
    for kind, object_id in list(session.waiting):
        _withdraw(owner, session, kind, object_id)
    for producer in list(session.producers.values()):
        _remove_producer(owner, session, producer)
    for consumer in list(session.consumers.values()):
        if by_client and consumer.subscription.deaths_max:
            _count_death(owner, consumer)
        _remove_consumer(owner, session, consumer)
    session.producers.clear()
    session.consumers.clear()
    resume(owner, session, is_alive=False)


def abandon(owner, session) -> None:
    """One of the session's commands failed half-way: nothing of its client is left in any table, in whichever of them it is."""
    mine = session.worker, session.connection
    steps = [partial(_withdraw, owner, session, kind, object_id) for kind, object_id in session.waiting]
    for found in (*owner.by_name.values(), *owner.live.values()):
        for producer in (*found.producers.live.values(), *found.producers.waiting):
            if (producer.worker, producer.connection) == mine:
                steps.append(partial(_remove_producer, owner, session, producer))
        for subscription in list(found.subscriptions.values()):
            for consumer in subscription.consumers:
                if (consumer.worker, consumer.connection) == mine:
                    steps.append(partial(_remove_consumer, owner, session, consumer))
            if not (subscription.is_durable or subscription.consumers or subscription in owner.expected_readers):
                steps.append(partial(found.remove_subscription, subscription))      # made for a consumer that did not come to be
    for step in [*steps, partial(resume, owner, session, is_alive=False)]:
        try:
            step()
        except NotDurable:
            raise
        except Exception:
            log.error(f"tables that a command left cannot be put in order: {traceback.format_exc()}", code="G291")
    for table, counter in ((owner.producers, "producers"), (owner.consumers, "consumers"), (owner.live_producers, "")):
        for handle in [handle for handle, one in table.items() if (one.worker, one.connection) == mine]:
            del table[handle]
            if counter:
                owner.counters.add(counter, -1)
    session.producers.clear()
    session.consumers.clear()
    owner.discovery.ended(mine)


def _count_death(owner, consumer: Consumer) -> None:
    """The consumer may have died over what it had; what too many died over is parked: kept, and given to nobody."""
    subscription = consumer.subscription
    for ledger_id, entries in subscription.dispatcher.held_by(consumer):
        acknowledge.note_counts(owner, subscription, format.DIED, ledger_id, entries,
                                     subscription.cursor.deaths.add(ledger_id, entries))
        parked = subscription.parked(ledger_id, entries)
        if parked:
            subscription.dispatcher.acknowledged(subscription.find(ledger_id), np.array(parked))
            owner.counters.add("entries_parked", len(parked))


def resume(owner, session, *, is_alive: bool) -> None:
    """Carry out the commands that waited for the fate of this session's connection."""
    for (other, kind, object_id), command in owner.parked.pop((session.worker, session.connection), {}).items():
        other.waiting.pop((kind, object_id), None)
        if owner.has(other):
            owner.carry_out(other, command, probed=is_alive)


def _park(owner, session, command: api.BaseCommand, worker: int, connection: int) -> None:
    """Wait with the command until the other connection, which is in its way, has shown whether it lives."""
    object_id = requested_id(command)
    session.waiting[command.type, object_id] = worker, connection
    waiting = owner.parked.setdefault((worker, connection), {})
    if not waiting:      # else it is being asked
        owner.outbox(worker).reply(connection, b"", action=envelope.PROBE)
    waiting[session, command.type, object_id] = command


def _withdraw(owner, session, kind: int, object_id: int) -> api.BaseCommand | None:
    """What was closed before it was made is not made when its turn comes; returns the command."""
    where = session.waiting.pop((kind, object_id), None)
    if isinstance(where, Partition):
        return owner.gate.withdraw(session, where, object_id)
    return owner.parked.get(where, {}).pop((session, kind, object_id), None)


# -- topics

def find_or_create(owner, name: TopicName, *, may_create: bool = True) -> Partition | NonPersistentTopic:
    """The partition of that name; made when it may be.  Raises Refusal."""
    if not (name.is_persistent or owner.options.non_persistent_topics):
        raise Refusal(api.NotAllowedError, "Non-persistent topics are switched off")
    found = owner.partition(name) if name.is_persistent else owner.live.get(name)
    if found is not None:
        return found
    owner.refuse_foreign(name)
    catalogue, base = owner.catalogue, name.base
    if not catalogue.has_namespace(name.namespace):
        raise Refusal(api.TopicNotFound, f"Namespace {name.namespace} does not exist")
    count = catalogue.partition_count(base)
    if count and not 0 <= name.partition < count:
        why = "is partitioned: use its partitions" if name.partition < 0 else f"has {count} partitions; {name} does not exist"
        raise Refusal(api.TopicNotFound, f"Topic {base} {why}")
    if not count and catalogue.partition_count(name) is None:
        refuse_reserved(name)
        policies = policies_of(catalogue, name, owner.options)
        if not (may_create and policies.auto_create_topics):
            raise Refusal(api.TopicNotFound, f"Topic {name} does not exist")
        refuse_topics(catalogue, name.namespace, policies, 1)
        catalogue.create_topic(name, 0)
        log.info("a topic was made", topic=name)
    owner.answer_needs_sync()
    if name.is_persistent:
        return owner.create_partition(name)
    found = owner.live[name] = NonPersistentTopic(name, owner.options)
    owner.apply_policies(found)
    return found


def forget_if_idle(owner, found: Partition | NonPersistentTopic) -> None:
    """A topic that keeps nothing is only there as long as somebody uses it."""
    if not found.is_persistent and found.is_idle and forget(owner, found) and found.name.partition < 0:
        try:
            owner.catalogue.delete_topic(found.name, for_now=True)
        except StorageFull as error:      # nobody waits for that; the next start does it
            owner.complain(f"{error}; {found.name} stays in lists of topics", code="G103")


def forget(owner, found: NonPersistentTopic) -> bool:
    """Nothing is left of it in memory; whether there was anything."""
    if owner.live.pop(found.name, None) is None:
        return False
    owner.statistics.release(found)
    owner.rates.release(found)
    owner.strict.pop(found, None)
    return True


# -- producers

def _producer(owner, session, command: api.BaseCommand, *, probed: bool = False) -> None:
    request = command.producer
    existing = session.producers.get(request.producer_id)
    if existing is not None:
        if not existing.is_ready:
            raise Refusal(api.ServiceNotReady, "Producer is already present on the connection")
        return _producer_ready(owner, existing, request.request_id)
    if request.txn_enabled:
        raise Refusal(api.NotAllowedError, "Transactions are not enabled.")
    if len(request.producer_name) > _NAME_MAX:
        raise Refusal(api.NotAllowedError, f"Producer name longer than {_NAME_MAX} characters")
    found = find_or_create(owner, names.parse(request.topic))
    if found.is_persistent and found.is_terminated:
        raise Refusal(api.TopicTerminatedError, "Topic was already terminated")
    if found.policies.encryption_required and not request.encrypted:
        raise Refusal(api.MetadataError, f"Encryption is required in {found.name}")
    if found.is_persistent and found.policies.migrated_to:
        return owner.outbox(session.worker).reply(
            session.connection, _farewell_to_producer(found, request.producer_id), request_id=request.request_id,
            action=envelope.PRODUCER_GONE, object_id=request.producer_id)
    if found.is_persistent and not owner.gate.enter(session, command, found):
        return
    schema_version = registry.admit_producer(owner, found, request.schema if request.HasField("schema") else None)
    producer = Producer(
        owner.new_handle(), session.worker, session.connection, request.producer_id, request.request_id,
        request.producer_name or _generated_name(owner), not (request.user_provided_producer_name and request.producer_name),
        request.epoch, request.producer_access_mode, request.topic_epoch if request.HasField("topic_epoch") else None, found,
        connected_ms=owner.now_ms, metadata={one.key: one.value for one in request.metadata}, is_encrypted=request.encrypted,
        schema_version=schema_version)
    holder = found.producers.holder_of_name(producer)
    if holder is not None and request.producer_access_mode != api.ExclusiveWithFencing:
        if not probed and (holder.worker, holder.connection) != (session.worker, session.connection):
            return _park(owner, session, command, holder.worker, holder.connection)
        raise Refusal(api.ProducerBusy, f"Producer with name '{producer.name}' is already connected to topic")
    limit = found.policies.max_producers
    if limit and len(found.producers.live) >= limit:
        raise Refusal(api.ProducerBusy, f"Topic '{found.name}' reached max producers limit")
    if _is_full_for(owner, session, found, owner.options.max_same_address_producers_per_topic, found.producers.live.values()):
        raise Refusal(api.ProducerBusy, f"Topic '{found.name}' reached max same address producers limit")
    initial = request.initial_subscription_name
    if initial and found.is_persistent and (initial, True) not in found.subscriptions:
        if not found.policies.auto_create_subscriptions:
            raise Refusal(api.NotAllowedError,
                          "Could not create the initial subscription due to the auto subscription creation is not allowed.")
        check_name(initial)
        create_subscription(owner, found, initial, found.mark_delete_before(EARLIEST))
    for outcast in found.producers.admit(producer):
        expel_producer(owner, outcast)
    session.producers[producer.producer_id] = producer
    owner.producers[producer.handle] = producer
    if not found.is_persistent:
        owner.live_producers[producer.handle] = producer
    owner.counters.add("producers")
    if producer.is_ready:
        _producer_ready(owner, producer, request.request_id)
    else:
        data = responses.producer_success(request.request_id, producer.name, is_ready=False)
        owner.outbox(session.worker).reply(session.connection, data, request_id=request.request_id)


def _generated_name(owner) -> str:
    owner.answer_needs_sync()
    return owner.catalogue.producer_name()


def _producer_ready(owner, producer: Producer, request_id: int) -> None:
    found = producer.partition
    if log.level >= DEBUG:
        _log(owner.sessions.get((producer.worker, producer.connection)), "a producer was made", found, producer=producer.name)
    owner.statistics.changed[found] = None
    if found.producers.exclusive is producer and found.is_persistent:
        owner.catalogue.set_topic_epoch(found.partition_id, producer.topic_epoch)
    last = found.sequences.of(producer.identity).last if found.is_persistent and found.deduplicates else NONE
    data = responses.producer_success(request_id, producer.name, topic_epoch=producer.topic_epoch,
                                    last_sequence_id=-1 if last == NONE else last, schema_version=producer.schema_version)
    owner.outbox(producer.worker).reply(producer.connection, data, request_id=request_id, action=envelope.PRODUCER_READY,
                                        object_id=producer.producer_id, handle=producer.handle)


def _remove_producer(owner, session, producer: Producer) -> None:
    if log.level >= DEBUG:
        _log(session, "a producer was closed", producer.partition, producer=producer.name)
    _take_right(owner, producer)
    _let_next_in(owner, producer)
    forget_if_idle(owner, producer.partition)


def _log(session, what: str, found: Partition | NonPersistentTopic, **fields: str) -> None:
    log.debug(what, topic=found.name, **fields, client=session.address.removeprefix("/") if session is not None else "")


def _log_consumer(session, what: str, consumer: Consumer) -> None:
    _log(session, what, consumer.subscription.partition, subscription=consumer.subscription.name, consumer=consumer.name)


def _take_right(owner, producer: Producer) -> None:
    """It may not publish any more."""
    owner.statistics.changed[producer.partition] = None
    owner.live_producers.pop(producer.handle, None)
    owner.rates.left(producer)
    if owner.producers.pop(producer.handle, None) is not None:
        owner.counters.add("producers", -1)
    if producer.partition.is_persistent:
        producer.partition.sequences.leave(producer.identity, owner.now_ms)


def _let_next_in(owner, producer: Producer) -> None:
    """Its place is free."""
    successor = producer.partition.producers.leave(producer)
    if successor is not None:
        _producer_ready(owner, successor, successor.request_id)


_FENCED = Refusal(api.ProducerFenced, "Fenced by a producer with ExclusiveWithFencing")


def expel_producer(owner, producer: Producer, why: Refusal = _FENCED) -> None:
    """Another has taken its place; its client may come back and be told what holds.  why: what one is told that waits for its turn."""
    session = owner.sessions.get((producer.worker, producer.connection))
    if session is not None:
        session.producers.pop(producer.producer_id, None)
    if log.level >= DEBUG:
        _log(session, "a producer was told to go", producer.partition, producer=producer.name)
    _take_right(owner, producer)
    data, which = _farewell_to_producer(producer.partition, producer.producer_id), {"handle": producer.handle}
    if not producer.is_ready:      # its worker does not know the handle
        which = {"request_id": producer.request_id}
        if not (producer.partition.is_persistent and producer.partition.policies.migrated_to):
            data = responses.error(producer.request_id, why.code, why.message)
    owner.outbox(producer.worker).reply(producer.connection, data, action=envelope.PRODUCER_GONE, object_id=producer.producer_id, **which)


def _farewell_to_producer(found: Partition | NonPersistentTopic, producer_id: int) -> bytes:
    """What closes it at its client; which is told before where to go, if that is another cluster."""
    close, to = responses.close_producer(producer_id), found.policies.migrated_to if found.is_persistent else ()
    return responses.topic_migrated(api.CommandTopicMigrated.Producer, producer_id, *to) + close if to else close


def _dismiss(owner, producer: Producer, why: Refusal = _FENCED) -> None:
    expel_producer(owner, producer, why)
    _let_next_in(owner, producer)


def dismiss_open_text(owner, found: Partition | NonPersistentTopic) -> None:
    """Producers that do not encrypt are told to go."""
    for producer in [one for one in found.producers.live.values() if not one.is_encrypted]:
        _dismiss(owner, producer)


def dismiss_producers(owner, found: Partition) -> None:
    """Those that may publish are to come back; those that wait until they may go on waiting, or have their turn."""
    for producer in list(found.producers.live.values()):
        _dismiss(owner, producer)


def dismiss_refused(owner, session, producer_id: int) -> None:
    """One of its SENDs was refused.  On a partition that deduplicates the producer is to come back, and begin with that one: if what
    it has sent behind that were stored first, that one would count as stored."""
    producer = session.producers.get(producer_id)
    if producer is not None and producer.partition.deduplicates:
        _dismiss(owner, producer)


def _close_producer(owner, session, command: api.BaseCommand) -> None:
    request = command.close_producer
    producer = session.producers.pop(request.producer_id, None)
    if producer is not None:
        owner.publish_held(producer.partition)
        _remove_producer(owner, session, producer)
    _withdraw(owner, session, T.PRODUCER, request.producer_id)
    _success(owner, session, request.request_id)


def _success(owner, session, request_id: int, gone: Consumer | None = None) -> None:
    """What came before is durable then, acknowledgements too: a closed consumer has nothing left to wait for.

    gone: is not there any more, which its worker does not know yet.
    """
    owner.answer_needs_sync()
    action = {} if gone is None else {"action": envelope.CONSUMER_GONE, "object_id": gone.consumer_id, "handle": gone.handle}
    owner.outbox(session.worker).reply(session.connection, responses.success(request_id), request_id=request_id, **action)


# -- subscriptions and consumers

def _subscribe(owner, session, command: api.BaseCommand, *, probed: bool = False) -> None:
    request = command.subscribe
    existing = session.consumers.get(request.consumer_id)
    if existing is not None:
        return _consumer_ready(owner, existing, request.request_id)
    _check_subscribe(owner, request)
    deaths_max = _deaths_max(request)
    found = find_or_create(owner, names.parse(request.topic), may_create=request.force_topic_creation)
    _refuse_consumer(owner, session, found, request)
    if request.HasField("schema"):
        registry.admit_consumer(owner, found, request.schema)
    subscribed = found.rate_limits.subscribed if found.rate_limits is not None else None
    who = session.address.rpartition(":")[0], request.consumer_name, request.consumer_id
    if subscribed is not None and not subscribed.may(who, owner.now_ms):
        raise Refusal(api.NotAllowedError, "Subscribe limited by subscribe rate limit per consumer.")
    subscription = found.subscriptions.get((request.subscription, request.durable and found.is_persistent))
    if subscription is None:
        subscription = _new_subscription(owner, found, request)
    elif request.start_message_rollback_duration_sec and found.is_persistent and not subscription.consumers \
            and subscription not in owner.expected_readers:      # one that sought begins where it wanted to
        reset(owner, subscription, _rolled_back(owner, found, request))
    consumer = _new_consumer(owner, session, request, subscription)
    if (obstacle := _obstacle(subscription, request.subType, consumer)) is not None:
        holder = obstacle.holder
        if not probed and (holder.worker, holder.connection) != (session.worker, session.connection):
            return _park(owner, session, command, holder.worker, holder.connection)
    if subscribed is not None:
        subscribed.count(who, owner.now_ms)
    if obstacle is not None:
        raise obstacle.refusal
    found.now_ms = owner.now_ms
    if found.is_persistent and (deaths_max or not subscription.consumers):      # one that asks for nothing takes it from nobody
        subscription.deaths_max = deaths_max
    if request.subscription_properties and not subscription.properties:
        set_properties(owner, subscription, {one.key: one.value for one in request.subscription_properties})
    if request.replicate_subscription_state and subscription.is_durable and not subscription.is_replicated:
        set_replicated(owner, subscription, True)
    if found.is_persistent and not subscription.consumers:
        owner.views.begin(subscription, reads_compacted=request.read_compacted)
    subscription.attach(consumer)
    found.attached[subscription] = None
    session.consumers[consumer.consumer_id] = consumer
    owner.consumers[consumer.handle] = consumer
    owner.counters.add("consumers")
    _consumer_ready(owner, consumer, request.request_id)
    owner.wake(found)


def _new_consumer(owner, session, request: api.CommandSubscribe, subscription: Subscription) -> Consumer:
    shared = request.keySharedMeta
    return Consumer(
        owner.new_handle(), session.worker, session.connection, request.consumer_id, request.consumer_name, session.protocol_version,
        subscription, owner.now_ms, priority=request.priority_level,
        epoch=request.consumer_epoch if request.HasField("consumer_epoch") else None,
        ranges=_ranges(request),
        is_out_of_order_allowed=request.subType == SubType.Key_Shared and shared.allowOutOfOrderDelivery,
        metadata={one.key: one.value for one in request.metadata},
        takes_any_schema=request.HasField("schema") and request.schema.type == api.Schema.AutoConsume)


def _ranges(request: api.CommandSubscribe) -> list[tuple[int, int]] | None:
    """Of hashes, that a sticky consumer brings, or a reader that is to be given some keys only."""
    shared = request.keySharedMeta
    if request.subType == SubType.Exclusive:
        is_sticky = bool(shared.hashRanges) and names.parse(request.topic).is_persistent
    else:
        is_sticky = request.subType == SubType.Key_Shared and shared.keySharedMode == api.STICKY
    return [(one.start, one.end) for one in shared.hashRanges] if is_sticky else None


def _obstacle(subscription: Subscription, kind: int, consumer: Consumer) -> Obstacle | None:
    """What keeps the consumer from attaching; the subscription is of its kind now if nobody was there."""
    if not subscription.consumers:
        subscription.kind, subscription.dispatcher = kind, DISPATCHERS[kind](subscription)
    elif subscription.kind != kind:
        there = SubType.Name(subscription.kind)
        return Obstacle(subscription.first_consumer, busy(f"Subscription is of different type: it has a consumer of type {there}"))
    return subscription.dispatcher.obstacle(consumer)


def _deaths_max(request: api.CommandSubscribe) -> int:
    """What the consumer's, or the subscription's, properties ask for.  Raises Refusal."""
    for one in (*request.metadata, *request.subscription_properties):
        if one.key == QUARANTINE:
            if not (one.value.isascii() and one.value.isdigit() and 0 < int(one.value[:6]) <= _DEATHS_MAX):
                raise Refusal(api.NotAllowedError, f"{QUARANTINE} is a number of 1 to {_DEATHS_MAX}")
            return int(one.value)
    return 0


def check_name(name: str) -> None:
    """Of a subscription; the code is the one that clients know from Pulsar."""
    if name in _RESERVED_NAMES or name.startswith(_RESERVED) or len(name) > _NAME_MAX:
        raise Refusal(api.ProducerBusy, f"Subscription name {name[:80]!r} is reserved, or longer than {_NAME_MAX} characters")


def _check_subscribe(owner, request: api.CommandSubscribe) -> None:
    check_name(request.subscription)
    if request.subType == SubType.Key_Shared and not owner.options.key_shared_enabled:
        raise Refusal(api.NotAllowedError, "Key_Shared subscription is not allowed")
    if request.read_compacted and request.subType not in (SubType.Exclusive, SubType.Failover):
        raise Refusal(api.NotAllowedError, "read_compacted is for Exclusive and Failover subscriptions")
    if request.read_compacted and not names.parse(request.topic).is_persistent:
        raise Refusal(api.NotAllowedError, "read_compacted is for persistent topics")
    if len(request.consumer_name) > _NAME_MAX:
        raise Refusal(api.NotAllowedError, f"Consumer name longer than {_NAME_MAX} characters")
    if (wanted := _ranges(request)) is not None:
        ranges.check(wanted)
        if request.read_compacted:      # a compacted view does not have the keys' hashes
            raise Refusal(api.NotAllowedError, "read_compacted is not for consumers with ranges of key hashes")


def _is_full_for(owner, session, found: Partition | NonPersistentTopic, limit: int, there: Iterable[Producer | Consumer]) -> bool:
    """Whether clients at the session's address have as many of these as one address may."""
    if not limit or is_system(str(found.name)):
        return False
    host = session.address.rpartition(":")[0]
    others = (owner.sessions.get((one.worker, one.connection)) for one in there)
    return sum(other is not None and other.address.rpartition(":")[0] == host for other in others) >= limit


def _refuse_consumer(owner, session, found: Partition | NonPersistentTopic, request: api.CommandSubscribe) -> None:
    """One of a type that is not wanted, or one more than there may be."""
    policies, kind = found.policies, SubType.Name(request.subType)
    if kind not in policies.subscription_types:
        raise Refusal(api.NotAllowedError, f"Topic[{{{found.name}}}] doesn't support {kind} sub type!")
    if policies.max_consumers and sum(len(one.consumers) for one in found.attached) >= policies.max_consumers:
        raise Refusal(api.ConsumerBusy, "Topic reached max consumers limit")
    consumers = (consumer for one in found.attached for consumer in one.consumers)
    if _is_full_for(owner, session, found, owner.options.max_same_address_consumers_per_topic, consumers):
        raise Refusal(api.ConsumerBusy, "Topic reached max same address consumers limit")
    subscription = found.subscriptions.get((request.subscription, request.durable and found.is_persistent))
    limit = min(policies.max_consumers_per_subscription or CONSUMERS_MAX, CONSUMERS_MAX)
    if subscription is not None and len(subscription.consumers) >= limit:
        raise Refusal(api.ConsumerBusy, "Subscription reached max consumers limit")


def _new_subscription(owner, found: Partition, request: api.CommandSubscribe) -> Subscription:
    if not found.is_persistent:
        _refuse_subscriptions(found)
        return found.add_subscription(request.subscription, Cursor(0, found.last_confirmed, is_durable=False))
    if request.durable and not found.policies.auto_create_subscriptions:
        raise Refusal(api.SubscriptionNotFound, "Subscription does not exist")
    if not request.durable:
        _refuse_subscriptions(found)
    position = _beginning(owner, found, request)
    if request.durable:
        return create_subscription(owner, found, request.subscription, position)
    return found.add_subscription(request.subscription, found.new_cursor(0, position, is_durable=False))


def _beginning(owner, found: Partition, request: api.CommandSubscribe) -> Position:
    """The mark-delete position of a new subscription.  A time goes before all else; a message id is for readers, and one that lies
    behind the last message leaves it to the initial position."""
    view, is_earliest = found.view if request.read_compacted else None, request.initialPosition == api.CommandSubscribe.Earliest
    if request.start_message_rollback_duration_sec:
        return _rolled_back(owner, found, request)
    if request.HasField("start_message_id") and not request.durable:
        position = _position(request.start_message_id)
        if (position[0], position[1] - 1) <= found.last_confirmed:
            return found.mark_delete_before(position, view)
    elif owner.discovery.is_expected(found, owner.now_ms):
        is_earliest = True
    return found.mark_delete_before(EARLIEST, view) if is_earliest else found.last_confirmed


def _rolled_back(owner, found: Partition, request: api.CommandSubscribe) -> Position:
    """As far as the request says that its consumer goes back in time."""
    view = found.view if request.read_compacted else None
    return found.mark_delete_before_time(owner.now_ms - request.start_message_rollback_duration_sec * 1000, view)


def _refuse_subscriptions(found: Partition) -> None:
    """One more than there may be."""
    limit = found.policies.max_subscriptions
    if limit and len(found.subscriptions) >= limit:
        raise Refusal(api.NotAllowedError, f"Exceed the maximum number of subscriptions of the topic: {found.name}")


def create_subscription(owner, found: Partition, name: str, position: Position, properties: dict[str, str] | None = None) -> Subscription:
    _refuse_subscriptions(found)
    cursor = found.new_cursor(0, position, is_durable=True)      # before anything is made: its ledger may not open
    cursor.subscription_id = owner.catalogue.create_subscription(found.partition_id, name)
    subscription = found.add_subscription(name, cursor)
    if properties:
        set_properties(owner, subscription, properties)
    _note_beginning(owner, subscription)
    log.info("a subscription was made", topic=found.name, subscription=name)
    return subscription


def set_properties(owner, subscription: Subscription, properties: dict[str, str]) -> None:
    """In place of those that it had."""
    subscription.properties = properties
    if subscription.is_durable:
        owner.catalogue.set_properties(subscription.cursor.subscription_id, properties)
        owner.answer_needs_sync()


def set_replicated(owner, subscription: Subscription, is_replicated: bool) -> None:
    """Whether other clusters are to know it."""
    subscription.is_replicated = is_replicated
    if subscription.is_durable:
        owner.catalogue.set_replicated(subscription.cursor.subscription_id, is_replicated)
        owner.answer_needs_sync()


def delete_subscription(owner, subscription: Subscription) -> None:
    """Its consumers are told to go, and what it has not acknowledged is needed by it no more."""
    found = subscription.partition
    expel_consumers(owner, subscription)
    if subscription.is_durable:
        owner.catalogue.delete_subscription(subscription.cursor.subscription_id)
        owner.note(found, op(format.SUBSCRIPTION_DELETED, found.partition_id, subscription_id=subscription.cursor.subscription_id))
        owner.commit()
        found.remove_subscription(subscription)
        owner.journal.touched(found)
        owner.wake_trimming(found)
        log.info("a subscription was deleted", topic=found.name, subscription=subscription.name)
    else:      # with the last of its consumers it may have gone already
        found.remove_subscription(subscription)


def reset(owner, subscription: Subscription, position: Position) -> None:
    """The cursor starts anew behind position."""
    subscription.partition.reset_cursor(subscription.cursor, position)
    _note_beginning(owner, subscription)


def _note_beginning(owner, subscription: Subscription) -> None:
    found, cursor = subscription.partition, subscription.cursor
    if subscription.is_durable:
        ledger_id, entry_id = cursor.mark_delete
        owner.note(found, op(format.CURSOR_RESET, found.partition_id, subscription_id=cursor.subscription_id,
                             ledger_id=ledger_id, entry_id=entry_id, value=cursor.since))
        owner.count(subscription, SKIPPED, 0)
        owner.answer_needs_sync()
    subscription.rewind()


def _consumer_ready(owner, consumer: Consumer, request_id: int) -> None:
    if log.level >= DEBUG:
        _log_consumer(owner.sessions.get((consumer.worker, consumer.connection)), "a consumer was made", consumer)
    owner.outbox(consumer.worker).reply(consumer.connection, responses.success(request_id), request_id=request_id,
                                        action=envelope.CONSUMER_READY, object_id=consumer.consumer_id, handle=consumer.handle,
                                        partition=consumer.subscription.partition.name.partition)
    _tell_epoch(owner, consumer)


def _tell_epoch(owner, consumer: Consumer) -> None:
    """Its worker, what the consumer's messages carry from now on."""
    if consumer.epoch is not None:
        owner.outbox(consumer.worker).reply(consumer.connection, b"", action=envelope.CONSUMER_EPOCH, object_id=consumer.handle,
                                            handle=consumer.epoch)


def _remove_consumer(owner, session, consumer: Consumer) -> None:
    subscription = consumer.subscription
    if log.level >= DEBUG:
        _log_consumer(session, "a consumer was closed", consumer)
    if owner.consumers.pop(consumer.handle, None) is not None:
        owner.counters.add("consumers", -1)
    subscription.partition.now_ms = owner.now_ms
    try:
        subscription.detach(consumer)
    except Exception:      # whatever its dispatcher takes for handed out now: the others come back, and it begins anew
        expel_consumers(owner, subscription)
        raise
    if not subscription.consumers:
        subscription.partition.attached.pop(subscription, None)
        if not subscription.is_durable:
            subscription.partition.remove_subscription(subscription)
    owner.wake(subscription.partition)
    forget_if_idle(owner, subscription.partition)


def expel_consumers(owner, subscription: Subscription) -> None:
    """They are to subscribe again: what they were given no longer counts."""
    for consumer in list(subscription.consumers):
        session = owner.sessions.get((consumer.worker, consumer.connection))
        if session is not None:
            session.consumers.pop(consumer.consumer_id, None)
        if log.level >= DEBUG:
            _log_consumer(session, "a consumer was told to go", consumer)
        if owner.consumers.pop(consumer.handle, None) is not None:
            owner.counters.add("consumers", -1)
        data = responses.close_consumer(consumer.consumer_id)
        if subscription.has_moved:
            to = subscription.partition.policies.migrated_to
            data = responses.topic_migrated(api.CommandTopicMigrated.Consumer, consumer.consumer_id, *to) + data
        owner.outbox(consumer.worker).reply(consumer.connection, data, action=envelope.CONSUMER_GONE, object_id=consumer.consumer_id,
                                            handle=consumer.handle)
    subscription.vacate()
    subscription.partition.attached.pop(subscription, None)


def expel(owner, session, object_id: int, handle: int, *, is_producer: bool) -> None:
    """The session's producer or consumer is told to go, as its client may not have it any more; so is one that waits to be made.

    handle: its; 0 when its worker does not know it yet.  The worker is told in any case that it is gone.
    """
    kind, table, gone, farewell = (T.PRODUCER, session.producers, envelope.PRODUCER_GONE, responses.close_producer) if is_producer else \
        (T.SUBSCRIBE, session.consumers, envelope.CONSUMER_GONE, responses.close_consumer)
    found = table.get(object_id)
    if found is None or (handle and found.handle != handle):
        if (command := None if handle else _withdraw(owner, session, kind, object_id)) is not None:
            refuse(owner, session, command, _EXPELLED)
        elif handle:
            owner.outbox(session.worker).reply(session.connection, farewell(object_id), action=gone, object_id=object_id, handle=handle)
    elif is_producer:
        _dismiss(owner, found, _EXPELLED)
        forget_if_idle(owner, found.partition)
    else:
        del table[object_id]
        _remove_consumer(owner, session, found)
        owner.outbox(session.worker).reply(session.connection, farewell(object_id), action=gone, object_id=object_id, handle=found.handle)


def expel_all(owner, found: Partition | NonPersistentTopic) -> None:
    """Producers and consumers are told to look the topic up again; what only was there for them is gone."""
    for producer in found.producers.expel_all():
        expel_producer(owner, producer)
    for subscription in list(found.subscriptions.values()):
        expel_consumers(owner, subscription)
        if not subscription.is_durable:
            found.remove_subscription(subscription)


def _close_consumer(owner, session, command: api.BaseCommand) -> None:
    request = command.close_consumer
    consumer = session.consumers.pop(request.consumer_id, None)
    if consumer is not None:
        _remove_consumer(owner, session, consumer)
    _withdraw(owner, session, T.SUBSCRIBE, request.consumer_id)
    _success(owner, session, request.request_id)


def report_damaged(owner, session, ack: api.CommandAck) -> None:
    """A client discards messages that it cannot read; those that it has are counted, and told, so that somebody looks at the disk."""
    consumer = session.consumers.get(ack.consumer_id)
    if consumer is None or not consumer.subscription.partition.is_persistent:
        return
    found, places = consumer.subscription.partition, []
    for position in {(identity.ledgerId, identity.entryId): None for identity in ack.message_id}:
        is_known = (found, position) in owner.unreadable or len(owner.unreadable) >= _UNREADABLE_MAX
        if not is_known and consumer.subscription.dispatcher.holds(consumer, position):
            owner.unreadable.add((found, position))
            places.append("{}:{}".format(*position))
    if places:
        owner.counters.add("acks_of_damaged", len(places))
        why = api.CommandAck.ValidationError.Name(ack.validation_error)
        log.error(f"a client could not read message {', '.join(places)} ({why}); geminga verify tells whether it is damaged on disk",
                  code="G122")


def _consumer(session, consumer_id: int) -> Consumer:
    if consumer_id not in session.consumers:
        raise Refusal(api.MetadataError, "Consumer not found")
    return session.consumers[consumer_id]


def _unsubscribe(owner, session, command: api.BaseCommand) -> None:
    request = command.unsubscribe
    consumer = _consumer(session, request.consumer_id)
    subscription = consumer.subscription
    if len(subscription.consumers) > 1 and not request.force:
        raise Refusal(api.MetadataError, "Subscription has other consumers")
    del session.consumers[request.consumer_id]
    _remove_consumer(owner, session, consumer)
    delete_subscription(owner, subscription)
    _success(owner, session, request.request_id, consumer)


def _redeliver(owner, session, command: api.BaseCommand) -> None:
    """Without ids, everything that the consumer has."""
    request = command.redeliverUnacknowledgedMessages
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None or not consumer.subscription.partition.is_persistent:
        return
    subscription, wanted = consumer.subscription, {}
    found = subscription.partition
    for identity in request.message_ids:
        if subscription.find(identity.ledgerId) is not None:
            wanted.setdefault(identity.ledgerId, set()).add(identity.entryId)
    if request.message_ids and not wanted:
        return
    if request.HasField("consumer_epoch") and subscription.kind in (SubType.Exclusive, SubType.Failover):
        consumer.epoch = request.consumer_epoch
        _tell_epoch(owner, consumer)
    held = held_messages(consumer)
    nacked = subscription.dispatcher.redeliver(consumer, {
        ledger_id: np.array([entry for entry in sorted(entries) if entry < subscription.find(ledger_id).entries], np.int64)
        for ledger_id, entries in wanted.items()})
    for ledger_id, entries in nacked:
        acknowledge.note_counts(owner, subscription, format.REDELIVERED, ledger_id, entries,
                                     subscription.cursor.redeliveries.add(ledger_id, entries))
    consumer.redelivered += held - held_messages(consumer)
    owner.wake(found)


def held_messages(consumer: Consumer) -> int:
    """Messages it has been given, and has neither acknowledged nor given back."""
    subscription = consumer.subscription
    return sum(int(subscription.messages(subscription.find(ledger_id), entries).sum())
               for ledger_id, entries in subscription.dispatcher.held_by(consumer))


# -- positions

def _position(identity: api.MessageIdData) -> Position:
    return tuple(value - (1 << 64) if value >> 63 else value for value in (identity.ledgerId, identity.entryId))


def _stored(subscription: Subscription, what: str) -> Partition:
    if not subscription.partition.is_persistent:
        raise Refusal(api.NotAllowedError, f"{what} is not supported on a non-persistent topic")
    return subscription.partition


def _seek(owner, session, command: api.BaseCommand) -> None:
    request = command.seek
    subscription = _consumer(session, request.consumer_id).subscription
    found = _stored(subscription, "SEEK")
    view = found.view if subscription.reads_compacted else None
    start = None
    if request.HasField("message_id"):
        start = _position(request.message_id)
        position = found.mark_delete_before(start, view)
    elif request.HasField("message_publish_time"):
        position = found.mark_delete_before_time(min(request.message_publish_time, (1 << 63) - 1), view)
    else:
        raise Refusal(api.MetadataError, "SEEK names neither a message id nor a time")
    expel_consumers(owner, subscription)
    reset(owner, subscription, position)
    if start is not None:
        acknowledge.begin_within(owner, subscription, start, request.message_id.ack_set)
    if not subscription.is_durable:
        owner.expected_readers[subscription] = owner.now_ms
    _success(owner, session, request.request_id)


def _get_last_message_id(owner, session, command: api.BaseCommand) -> None:
    request = command.getLastMessageId
    subscription = _consumer(session, request.consumer_id).subscription
    found = _stored(subscription, "GET_LAST_MESSAGE_ID")
    number = found.name.partition
    ledger_id, entry_id, batch_index = _last_message(subscription)
    mark_delete = subscription.cursor.mark_delete
    data = responses.last_message_id(request.request_id, responses.message_id(ledger_id, entry_id, number, batch_index),
                                   responses.message_id(*mark_delete, number))
    owner.outbox(session.worker).reply(session.connection, data, request_id=request.request_id)


def _last_message(subscription: Subscription) -> tuple[int, int, int]:
    """(ledger, entry, batch index) of the last message that its consumers get; -1 each when there is none."""
    found, last = subscription.partition, subscription.partition.last_message()
    view = subscription.view or found.view
    if not subscription.reads_compacted or view is None:
        return last
    has_read_view = subscription.view is None      # then what it has not acknowledged comes from ledgers
    return last if last[:2] > (subscription.cursor.mark_delete if has_read_view else view.horizon) else view.last_message


def _consumer_stats(owner, session, command: api.BaseCommand) -> None:
    request = command.consumerStats
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None:
        data = responses.consumer_stats(request.request_id, error_code=api.ConsumerNotFound, error_message="Consumer not found")
    else:
        data = responses.consumer_stats(request.request_id, address=session.address, **_statistics(consumer, owner.now_ms))
    owner.outbox(session.worker).reply(session.connection, data, request_id=request.request_id)


def _statistics(consumer: Consumer, now_ms: int) -> dict:
    """Rates are a second's share of all since the consumer came."""
    subscription = consumer.subscription
    found, seconds = subscription.partition, max(1.0, (now_ms - consumer.connected_ms) / 1000)
    held = held_messages(consumer)
    return {
        "msgRateOut": consumer.messages_out / seconds, "msgThroughputOut": consumer.bytes_out / seconds,
        "msgRateRedeliver": consumer.redelivered / seconds,
        "messageAckRate": max(0, consumer.messages_out - consumer.redelivered - held) / seconds,
        "consumerName": consumer.name, "availablePermits": max(0, consumer.permits),
        "unackedMessages": held, "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
        "connectedSince": datetime.fromtimestamp(consumer.connected_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "type": subscription.kind_name, "msgBacklog": subscription.cursor.backlog(found.ledgers)}


_COMMANDS: dict[int, Callable] = {
    T.PRODUCER: _producer, T.CLOSE_PRODUCER: _close_producer,
    T.SUBSCRIBE: _subscribe, T.CLOSE_CONSUMER: _close_consumer, T.UNSUBSCRIBE: _unsubscribe,
    T.REDELIVER_UNACKNOWLEDGED_MESSAGES: _redeliver,
    T.SEEK: _seek, T.GET_LAST_MESSAGE_ID: _get_last_message_id, T.CONSUMER_STATS: _consumer_stats,
}
_REQUESTS = {T.PRODUCER: "producer", T.CLOSE_PRODUCER: "close_producer", T.SUBSCRIBE: "subscribe", T.CLOSE_CONSUMER: "close_consumer",
             T.UNSUBSCRIBE: "unsubscribe", T.SEEK: "seek", T.GET_LAST_MESSAGE_ID: "getLastMessageId", T.CONSUMER_STATS: "consumerStats"}
