"""What administration asks of an owner: one function per question, found in a table.

A question and its answer are JSON objects.  Each function takes (owner, topic, arguments) and returns the answer; it leaves when the
pass that it is part of is durable.  A Refusal raised here becomes the answer's error.
"""
import json

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage import commands
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.live import LiveTopic
from geminga.storage.partition import Partition
from geminga.storage.subscription import Subscription


def answer(owner, question: bytes) -> bytes:
    """{"ask": ..., "topic": ..., ...} -> {"answer": ...}, or {"refused": error code, "text": ...}."""
    asked = json.loads(question)
    try:
        return json.dumps({"answer": QUESTIONS[asked.pop("ask")](owner, names.parse(asked.pop("topic")), asked)}).encode()
    except Refusal as refusal:
        code, text = refusal.code, refusal.message
    except (StorageFull, CorruptFile) as error:
        code, text = api.PersistenceError, str(error)
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
    """Nothing is published any more; the last message's id."""
    found = _stored(owner, topic)
    commands.terminate(owner, found)
    ledger_id, entry_id = found.last_confirmed
    return {"ledgerId": ledger_id, "entryId": entry_id, "partitionIndex": topic.partition}


def _unload(owner, topic: TopicName, arguments: dict) -> None:
    """Whoever uses the topic looks it up again; it is opened anew from disk."""
    commands.unload(owner, _found(owner, topic))


def _clear(owner, topic: TopicName, arguments: dict) -> None:
    """Everything in the subscription is acknowledged."""
    found = _stored(owner, topic)
    commands.skip_to(owner, _subscription(found, arguments["subscription"]), found.last_confirmed)


def _skip(owner, topic: TopicName, arguments: dict) -> None:
    """So many entries more are acknowledged."""
    found = _stored(owner, topic)
    subscription = _subscription(found, arguments["subscription"])
    commands.skip_to(owner, subscription, commands.behind(subscription, arguments["entries"]))


def _reset(owner, topic: TopicName, arguments: dict) -> None:
    """The subscription starts anew: at a time, or at (behind: behind) a message."""
    found = _stored(owner, topic)
    subscription = _subscription(found, arguments["subscription"])
    if "time_ms" in arguments:
        position = found.before_time(arguments["time_ms"])
    else:
        position = found.before((arguments["ledger"], arguments["entry"] + arguments.get("behind", False)))
    commands.reset(owner, subscription, position)


def _why(owner, topic: TopicName, arguments: dict) -> dict:
    """What keeps the subscription's consumers from getting more."""
    found = _found(owner, topic)
    subscription = _subscription(found, arguments["subscription"])
    found.now_ms = owner.now_ms
    return {"topic": str(topic), "subscription": subscription.name, "type": subscription.kind_name,
            "backlog": subscription.cursor.backlog(found.ledgers), "causes": commands.causes(subscription)}


def _release(owner, topic: TopicName, arguments: dict) -> dict:
    """What was parked because consumers died over it is given out again."""
    return {"entries": commands.release(owner, _subscription(_stored(owner, topic), arguments["subscription"]))}


QUESTIONS = {"terminate": _terminate, "unload": _unload, "clear": _clear, "skip": _skip, "reset": _reset, "why": _why, "release": _release}
