"""Answers to questions about whole topics: terminate, unload, delete, truncate, trim, and apply changed policies."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin import questions
from geminga.storage.commands import commands, producers
from geminga.storage.commands.topic_lookup import stored, topic_of
from geminga.storage.enforcement.closed_partition_scan import ClosedPartitionScan
from geminga.storage.enforcement.rate_limiter import RateLimiter
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics import acknowledge, cleared_backlogs
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.upkeep.trimming import Trimming

_TERMINATED = Refusal(api.TopicTerminatedError, "Topic was already terminated")

def terminate(decisions: Decisions, clients: Clients, topics: TopicTable, question: questions.Terminate) -> Position:
    partition = stored(topics, question.topic)
    if not partition.is_terminated:
        topics.catalogue.partitions.terminate(partition.partition_id)
        partition.is_terminated = True
        decisions.answer_needs_sync()
    for producer in partition.producers.expel_all():
        producers.expel_producer(decisions, clients, producer, _TERMINATED)
    decisions.wake(partition)
    return partition.last_confirmed


def unload(decisions: Decisions, clients: Clients, topics: TopicTable, question: questions.Unload) -> None:
    """Unload a topic.  A non-persistent topic is forgotten unless a client uses it."""
    topic = topic_of(topics, question.topic)
    commands.expel_all(decisions, clients, topic)
    if isinstance(topic, Partition):
        topics.unload(topic)
    else:
        topics.forget_if_idle(topic)


def open_topics(topics: TopicTable, question: questions.OpenTopics) -> list[str]:
    return [str(name) for name in [*topics.by_name, *topics.non_persistent] if name.namespace == question.namespace]


def delete(decisions: Decisions, clients: Clients, topics: TopicTable, question: questions.Delete) -> None:
    """Delete a topic or partition without opening it, so that a damaged one can be deleted too."""
    name = question.topic
    if not name.is_persistent:
        return _delete_non_persistent(decisions, clients, topics, question)
    if topics.catalogue.partitions.find(name) is None and not topics.catalogue.topics.exists(name):
        if question.gone:
            if (partition := topics.by_name.get(name)) is not None:      # the deletion of its topic keeps it
                commands.expel_all(decisions, clients, partition)
                topics.unload(partition)
            return
        raise Refusal(api.TopicNotFound, f"Topic {name} not found")
    if (partition := topics.by_name.get(name)) is not None:
        _refuse_used(partition, question.force)
        commands.expel_all(decisions, clients, partition)
    topics.delete(name)


def _delete_non_persistent(decisions: Decisions, clients: Clients, topics: TopicTable,
                           question: questions.Delete) -> None:
    name = question.topic
    if (topic := topics.non_persistent.get(name)) is not None:
        _refuse_used(topic, question.force)
        commands.expel_all(decisions, clients, topic)
        topics.forget(topic)
    elif not (topics.catalogue.topics.exists(name) or question.gone):
        raise Refusal(api.TopicNotFound, f"Topic {name} not found")
    topics.catalogue.topics.delete(name)
    decisions.answer_needs_sync()


def is_used(topics: TopicTable, question: questions.IsUsed) -> bool:
    topic = topics.by_name.get(question.topic) or topics.non_persistent.get(question.topic)
    return topic is not None and bool(_connected(topic))


def _refuse_used(topic: Partition | NonPersistentTopic, force: bool) -> None:
    if not force and (connected := _connected(topic)):
        raise Refusal(api.ConsumerBusy, f"Topic has {connected} connected producers/consumers")


def _connected(topic: Partition | NonPersistentTopic) -> int:
    """Return the number of the topic's producers and consumers, without the consumers of replication cursors."""
    subscriptions = [subscription for subscription in topic.subscriptions.values() if subscription.remote is None]
    return len(topic.producers.live) + sum(len(subscription.consumers) for subscription in subscriptions)


def truncate(decisions: Decisions, topics: TopicTable, trimming: Trimming, question: questions.Truncate) -> None:
    partition = stored(topics, question.topic)
    for subscription in partition.subscriptions.values():
        acknowledge.skip_to(decisions, subscription, partition.last_confirmed)
    for backlog in list(partition.cleared):
        topics.catalogue.kept_topics.forget_cursor(backlog.row)
        cleared_backlogs.give_up(decisions, partition, backlog)
    trimming.truncate(partition)


def trim(decisions: Decisions, topics: TopicTable, question: questions.Trim) -> None:
    decisions.wake_trimming(stored(topics, question.topic))


def apply_policies(topics: TopicTable, closed_scan: ClosedPartitionScan, question: questions.ApplyPolicies) -> None:
    """Apply changed policies to open topics, and begin a new scan of closed partitions."""
    open_topics: list[Partition | NonPersistentTopic] = [*topics.by_name.values(), *topics.non_persistent.values()]
    for topic in open_topics:
        base = topic.name.base      # the scope of a topic that was made scalable is that of its former partitions too
        if question.scope in (topic.name.namespace, str(base), str(base.scalable)):
            topics.apply_policies(topic)
    closed_scan.begin()


def apply_options(topics: TopicTable, rates: RateLimiter, closed_scan: ClosedPartitionScan,
                  question: questions.ApplyOptions) -> None:
    put_options_in_force(topics, rates, closed_scan)


def put_options_in_force(topics: TopicTable, rates: RateLimiter, closed_scan: ClosedPartitionScan) -> None:
    """Put options in force that were changed in the catalogue or in the configuration."""
    topics.options.refresh()
    rates.configure()
    topics.apply_options()
    closed_scan.begin()
