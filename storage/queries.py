"""What administration asks of an owner: one function per question, found in a table.

A question and its answer are JSON objects.  Each function takes (owner, topic, arguments) and returns the answer; it leaves when the
pass that it is part of is durable.  A Refusal raised here becomes the answer's error.
"""
import json

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage import acknowledgements, commands, format
from geminga.storage.acknowledgements import Acks
from geminga.storage.cursor import REASONS, SKIPPED, Position
from geminga.storage.errors import CorruptFile, StorageFull, text_of
from geminga.storage.live import LiveTopic
from geminga.storage.partition import Partition, op
from geminga.storage.subscription import Subscription

_CAUSES_MAX = 100      # parked entries told of at a time


def answer(owner, question: bytes) -> bytes:
    """{"ask": ..., "topic": ..., ...} -> {"answer": ...}, or {"refused": error code, "text": ...}; some are about no one topic."""
    asked = json.loads(question)
    try:
        ask, topic = asked.pop("ask"), asked.pop("topic", None)
        return json.dumps({"answer": QUESTIONS[ask](owner, topic and names.parse(topic), asked)}).encode()
    except Refusal as refusal:
        code, text = refusal.code, refusal.message
    except (StorageFull, CorruptFile) as error:
        code, text = api.PersistenceError, str(error)
    except OSError as error:
        code, text = api.PersistenceError, text_of(error)
    return json.dumps({"refused": code, "text": text}).encode()


def _stored(owner, topic: TopicName) -> Partition:
    if not topic.is_persistent:
        raise Refusal(api.NotAllowedError, f"{topic} keeps nothing")
    return _found(owner, topic)


def _found(owner, topic: TopicName) -> Partition | LiveTopic:
    found = owner.partition(topic) if topic.is_persistent else owner.live.get(topic)
    if found is None:
        raise Refusal(api.TopicNotFound, f"Topic {topic} not found")
    return found


def _subscription(found: Partition | LiveTopic, name: str) -> Subscription:
    subscription = found.subscriptions.get((name, True)) or found.subscriptions.get((name, False))
    if subscription is None:
        raise Refusal(api.SubscriptionNotFound, f"Subscription {name} not found")
    return subscription


def _terminate(owner, topic: TopicName, arguments: dict) -> dict:
    """Nothing is published any more: producers are told to go, and who comes back is refused.  The last message's id."""
    found = _stored(owner, topic)
    if not found.is_terminated:
        owner.catalogue.terminate(found.partition_id)
        found.is_terminated = True
        owner.answer_needs_sync()
    for producer in found.producers.expel_all():
        commands.expel_producer(owner, producer)
    owner.wake(found)
    ledger_id, entry_id = found.last_confirmed
    return {"ledgerId": ledger_id, "entryId": entry_id, "partitionIndex": topic.partition}


def _unload(owner, topic: TopicName, arguments: dict) -> None:
    """Everybody is told to look the topic up again, and what is in memory of it is given up; it is opened anew from disk."""
    found = _found(owner, topic)
    for producer in found.producers.expel_all():
        commands.expel_producer(owner, producer)
    for subscription in list(found.subscriptions.values()):
        commands.expel_consumers(owner, subscription)
        if not subscription.is_durable:
            found.remove_subscription(subscription)
    if found.is_persistent:
        owner.release(found)
    else:
        commands.forget_if_idle(owner, found)


def _clear(owner, topic: TopicName, arguments: dict) -> None:
    """Everything in the subscription is acknowledged."""
    found = _stored(owner, topic)
    _skip_to(owner, _subscription(found, arguments["subscription"]), found.last_confirmed)


def _skip(owner, topic: TopicName, arguments: dict) -> None:
    """So many entries more are acknowledged."""
    subscription = _subscription(_stored(owner, topic), arguments["subscription"])
    _skip_to(owner, subscription, _behind(subscription, arguments["entries"]))


def _skip_to(owner, subscription: Subscription, position: Position) -> None:
    """Everything up to position is acknowledged; consumers go on behind it."""
    if position > subscription.cursor.mark_delete:
        acknowledgements.move(owner, subscription, Acks(up_to=position), SKIPPED)
        owner.answer_needs_sync()
        owner.wake(subscription.partition)


def _behind(subscription: Subscription, entries: int) -> Position:
    """The position of the entry that comes so many unacknowledged ones on, or of the last there is."""
    found, cursor = subscription.partition, subscription.cursor
    for ledger in found.ledgers_from(cursor.mark_delete[0]):
        for first, end in cursor.unacknowledged(ledger, 0, ledger.entries):
            if entries <= end - first:
                return ledger.ledger_id, first + entries - 1
            entries -= end - first
    return found.last_confirmed


def _reset(owner, topic: TopicName, arguments: dict) -> None:
    """The subscription starts anew, at a time or at (behind: behind) a message; its consumers are told to subscribe again."""
    found = _stored(owner, topic)
    subscription = _subscription(found, arguments["subscription"])
    if "time_ms" in arguments:
        position = found.before_time(arguments["time_ms"])
    else:
        position = found.before((arguments["ledger"], arguments["entry"] + arguments.get("behind", False)))
    commands.expel_consumers(owner, subscription)
    commands.reset(owner, subscription, position)
    owner.answer_needs_sync()


def _why(owner, topic: TopicName, arguments: dict) -> dict:
    """What keeps the subscription's consumers from getting more."""
    found = _found(owner, topic)
    subscription = _subscription(found, arguments["subscription"])
    found.now_ms = owner.now_ms
    return {"topic": str(topic), "subscription": subscription.name, "type": subscription.kind_name,
            "backlog": subscription.cursor.backlog(found.ledgers), "messages": _messages(subscription), "causes": _causes(subscription)}


def _messages(subscription: Subscription) -> dict:
    """What became of all that were published since the subscription began; the others together are `published`."""
    found, cursor = subscription.partition, subscription.cursor
    if not found.is_persistent:
        return {}
    return {"published": found.next_message - cursor.since, **dict(zip(REASONS, cursor.totals, strict=True)),
            "backlog": cursor.backlog_messages(found.ledgers)}


def _causes(subscription: Subscription) -> list[dict]:
    """{"cause": ..., and who and what is part of it} each."""
    found = subscription.partition
    if found.is_persistent and not subscription.cursor.backlog(found.ledgers):
        return [{"cause": "end of topic" if found.is_terminated else "no backlog"}]
    parked = [{"cause": "parked", "message": "{}:{}".format(*position), "deaths": subscription.deaths_max}
              for position in subscription.all_parked()[:_CAUSES_MAX]]
    return parked + (subscription.dispatcher.causes() if subscription.dispatcher else [{"cause": "no consumer"}])


def _release(owner, topic: TopicName, arguments: dict) -> dict:
    """What was parked because consumers died over it is given out again."""
    subscription = _subscription(_stored(owner, topic), arguments["subscription"])
    parked = subscription.all_parked()
    subscription.cursor.deaths.clear()
    owner.note(subscription.partition, op(format.DIED, subscription.partition.partition_id,
                                          subscription_id=subscription.cursor.subscription_id, entry_id=-1))
    owner.answer_needs_sync()
    if parked and subscription.dispatcher is not None:
        subscription.dispatcher.released(parked)
        owner.wake(subscription.partition)
    return {"entries": len(parked)}


def _policies(owner, topic: None, arguments: dict) -> None:
    """What was set for a namespace, or for a topic, binds its partitions when this is answered."""
    for found in owner.by_name.values():
        if arguments["scope"] in (found.name.namespace, str(found.name.base)):
            owner.apply_policies(found)
    owner.sweep.begin()


QUESTIONS = {"terminate": _terminate, "unload": _unload, "clear": _clear, "skip": _skip, "reset": _reset, "why": _why, "release": _release,
             "policies": _policies}
