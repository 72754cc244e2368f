"""Questions of administration to an owner: one function for each question, in one table.

A question and its answer are JSON objects. Each function takes (owner, topic, arguments) and returns the answer, which
leaves when its pass is durable. A Refusal becomes the answer's error. positions.py has questions about messages,
delayed_messages.py those about delayed messages.
"""
import json
import traceback

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.admin import compaction, delayed_messages, housekeeping, positions, topic_stats
from geminga.storage.commands import commands, producers, subscriptions, topics
from geminga.storage.commands.topic_lookup import has_subscription, stored, subscription_of, topic_of
from geminga.storage.cursors.cursor import REASONS
from geminga.storage.enforcement import rate_limiter
from geminga.storage.errors import CorruptFile, NotDurable, StorageFull, text_of
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.runtime.log import log
from geminga.storage.topics import acknowledge
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription
from geminga.storage.upkeep import backup_snapshot

_CAUSES_MAX = 100      # parked entries told of at a time


def answer(owner, question: bytes) -> bytes:
    """Answer a question {"ask": ..., "topic": ..., ...}, with or without a topic.

    Return {"answer": ...}, or {"refused": error code, "text": ...}, as JSON.
    """
    try:
        asked = json.loads(question)
        ask, text = asked.pop("ask"), asked.pop("topic", None)
        topic = text and names.parse(text)
        if topic:
            owner.refuse_foreign(topic)
        found = QUESTIONS[ask](owner, topic, asked)
        return found if isinstance(found, bytes) else json.dumps({"answer": found}).encode()      # what is no JSON says so by itself
    except Refusal as refusal:
        code, text = refusal.code, refusal.message
    except (StorageFull, CorruptFile) as error:
        code, text = api.PersistenceError, str(error)
    except OSError as error:
        code, text = api.PersistenceError, text_of(error)
    except NotDurable:
        raise
    except Exception:
        log.error(f"a question of administration failed: {question.decode()}: {traceback.format_exc()}", code="G291")
        code, text = api.UnknownError, "An error of the broker's own; its log has the details"
    return json.dumps({"refused": code, "text": text}).encode()


# -- topics

def _terminate(owner, topic: TopicName, arguments: dict) -> dict:
    """Terminate a topic: producers are closed, and new ones are refused.  Return the id of the last message."""
    found = stored(owner, topic)
    if not found.is_terminated:
        owner.catalogue.partitions.terminate(found.partition_id)
        found.is_terminated = True
        owner.answer_needs_sync()
    for producer in found.producers.expel_all():
        producers.expel_producer(owner, producer)
    owner.wake(found)
    ledger_id, entry_id = found.last_confirmed
    return {"ledgerId": ledger_id, "entryId": entry_id, "partitionIndex": topic.partition}


def _unload(owner, topic: TopicName, arguments: dict) -> None:
    """Unload a topic: clients are told to look it up again, and its next use opens it from disk."""
    found = topic_of(owner, topic)
    commands.expel_all(owner, found)
    if found.is_persistent:
        owner.release(found)
    else:
        topics.forget_if_idle(owner, found)


def _open(owner, topic: None, arguments: dict) -> list[str]:
    """Return the topics of a namespace that can be unloaded."""
    return [str(name) for name in [*owner.by_name, *owner.live] if name.namespace == arguments["namespace"]]


def _delete(owner, topic: TopicName, arguments: dict) -> None:
    """Delete a topic or partition with all its data; without `force` only if it is unused."""
    if not topic.is_persistent:
        return _delete_live(owner, topic, arguments)
    if owner.catalogue.partitions.find(topic) is None and not owner.catalogue.topics.exists(topic):
        if arguments.get("gone"):      # its partitioned topic is, already
            return
        raise Refusal(api.TopicNotFound, f"Topic {topic} not found")
    if (found := owner.by_name.get(topic)) is not None:      # else nobody uses it, and it may be damaged
        _refuse_used(found, arguments["force"])
        commands.expel_all(owner, found)
    owner.delete(topic)


def _delete_live(owner, topic: TopicName, arguments: dict) -> None:
    if (found := owner.live.get(topic)) is not None:
        _refuse_used(found, arguments["force"])
        commands.expel_all(owner, found)
        owner.forget_topic(found)
    elif not (owner.catalogue.topics.exists(topic) or arguments.get("gone")):
        raise Refusal(api.TopicNotFound, f"Topic {topic} not found")
    owner.catalogue.topics.delete(topic)
    owner.answer_needs_sync()


def _is_used(owner, topic: TopicName, arguments: dict) -> bool:
    """Whether the topic has producers or consumers."""
    found = owner.by_name.get(topic) or owner.live.get(topic)
    return found is not None and bool(_connected(found))


def _refuse_used(found: Partition | NonPersistentTopic, force: bool) -> None:
    if not force and (connected := _connected(found)):
        raise Refusal(api.ConsumerBusy, f"Topic has {connected} connected producers/consumers")


def _connected(found: Partition | NonPersistentTopic) -> int:
    """Return the producers and consumers of a topic."""
    return len(found.producers.live) + sum(len(subscription.consumers) for subscription in found.subscriptions.values())


def _truncate(owner, topic: TopicName, arguments: dict) -> None:
    """Acknowledge everything for all subscriptions, and delete all ledgers."""
    found = stored(owner, topic)
    for subscription in found.subscriptions.values():
        acknowledge.skip_to(owner, subscription, found.last_confirmed)
    owner.truncate(found)


def _trim(owner, topic: TopicName, arguments: dict) -> None:
    """Delete ledgers that no subscription and no policy needs."""
    owner.wake_trimming(stored(owner, topic))


# -- subscriptions

def _subscriptions(owner, topic: TopicName, arguments: dict) -> list[str]:
    return sorted({name for name, _ in topic_of(owner, topic).subscriptions})


def _subscribe(owner, topic: TopicName, arguments: dict) -> bool:
    """Create a durable subscription. Return False if it exists.

    new: the partition was created by this request, so the catalogue may not know it yet.
    """
    if arguments.get("new") and owner.catalogue.partitions.find(topic) is None:
        owner.create_partition(topic)
    if arguments.get("may_create"):
        topics.find_or_create(owner, topic)
    found, name = stored(owner, topic), arguments["subscription"]
    if (name, True) in found.subscriptions:
        return False
    subscriptions.check_name(name)
    position, words = positions.start_of(found, {"position": EARLIEST} | arguments)
    made = subscriptions.create_subscription(owner, found, name, found.mark_delete_before(position), arguments.get("properties"))
    acknowledge.begin_within(owner, made, position, words)
    if arguments.get("replicated"):
        subscriptions.set_replicated(owner, made, True)
    return True


def _unsubscribe(owner, topic: TopicName, arguments: dict) -> None:
    found, name = topic_of(owner, topic), arguments["subscription"]
    if arguments.get("everywhere") and not has_subscription(found, name):
        return
    subscription = subscription_of(found, name)
    if subscription.consumers and not arguments["force"]:
        raise Refusal(api.ConsumerBusy, "Subscription has active connected consumers")
    subscriptions.delete_subscription(owner, subscription)


def _properties(owner, topic: TopicName, arguments: dict) -> dict[str, str]:
    """Return the properties of a subscription, after setting new ones if there are any."""
    subscription = subscription_of(topic_of(owner, topic), arguments["subscription"])
    if "properties" in arguments:
        subscriptions.set_properties(owner, subscription, arguments["properties"])
    return subscription.properties


def _replicated(owner, topic: TopicName, arguments: dict) -> dict[str, bool]:
    """Return whether a subscription is marked as replicated, after setting the mark if there is one."""
    subscription = subscription_of(stored(owner, topic), arguments["subscription"])
    if "replicated" in arguments:
        subscriptions.set_replicated(owner, subscription, arguments["replicated"])
    return {str(topic): subscription.is_replicated}


def _why(owner, topic: TopicName, arguments: dict) -> dict:
    """Return the causes that keep the subscription's consumers from receiving more."""
    found = topic_of(owner, topic)
    subscription = subscription_of(found, arguments["subscription"])
    found.now_ms = owner.now_ms
    return {"topic": str(topic), "subscription": subscription.name, "type": subscription.kind_name,
            "backlog": subscription.cursor.backlog(found.ledgers), "messages": _messages(subscription),
            "causes": _causes(owner, subscription)}


def _messages(subscription: Subscription) -> dict:
    """Account for all messages since the subscription began: the other values together are `published`."""
    found, cursor = subscription.partition, subscription.cursor
    if not found.is_persistent:
        return {}
    return {"published": found.next_message - cursor.since, **dict(zip(REASONS, cursor.totals, strict=True)),
            "backlog": cursor.backlog_messages(found.ledgers)}


def _causes(owner, subscription: Subscription) -> list[dict]:
    """Return {"cause": ..., and details} for each cause."""
    found = subscription.partition
    slowed, waiting = rate_limiter.causes(owner, subscription), owner.rates.causes(found)
    if found.is_persistent and not subscription.cursor.backlog(found.ledgers):
        return [{"cause": "end of topic" if found.is_terminated else "no backlog"}, *waiting]
    parked = [{"cause": "parked", "message": "{}:{}".format(*position), "deaths": subscription.deaths_max}
              for position in subscription.all_parked()[:_CAUSES_MAX]]
    others = subscription.dispatcher.causes() if subscription.dispatcher else [{"cause": "no consumer"}]
    for cause in others:
        if cause["cause"] == "delayed messages":
            cause["until_ms"] = delayed_messages.next_due_ms(found.schedule, cause["until_ms"])
    if slowed:      # what there is to say when nothing is in the way is not true then
        others = [cause for cause in others if cause["cause"] != "no acknowledgements"]
    return parked + slowed + others + waiting


def _release(owner, topic: TopicName, arguments: dict) -> dict:
    """Let parked messages of a quarantine be delivered again."""
    subscription = subscription_of(stored(owner, topic), arguments["subscription"])
    parked = subscription.all_parked()
    subscription.cursor.deaths.clear()
    owner.note(subscription.partition, journal_ops.deaths_forgotten(
        subscription.partition.partition_id, subscription.cursor.subscription_id))
    owner.answer_needs_sync()
    if parked and subscription.dispatcher is not None:
        subscription.dispatcher.released(parked)
        owner.wake(subscription.partition)
    return {"entries": len(parked)}


def _policies(owner, topic: None, arguments: dict) -> None:
    """Apply changed policies of a namespace or topic to its open partitions."""
    for found in (*owner.by_name.values(), *owner.live.values()):
        if arguments["scope"] in (found.name.namespace, str(found.name.base)):
            owner.apply_policies(found)
    owner.closed_scan.begin()


def _options(owner, topic: None, arguments: dict) -> None:
    """Apply options that were changed at run time."""
    owner.apply_options()


QUESTIONS = {
    "terminate": _terminate, "unload": _unload, "open": _open, "delete": _delete, "is_used": _is_used, "truncate": _truncate,
    "trim": _trim, "subscriptions": _subscriptions, "subscribe": _subscribe, "unsubscribe": _unsubscribe, "properties": _properties,
    "replicated": _replicated,
    "why": _why, "release": _release, "policies": _policies, "options": _options, **positions.QUESTIONS, **topic_stats.QUESTIONS,
    **housekeeping.QUESTIONS, **compaction.QUESTIONS, **delayed_messages.QUESTIONS, **backup_snapshot.QUESTIONS}
