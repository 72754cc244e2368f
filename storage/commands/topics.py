"""Topics that commands name, which are opened, or created at their first use."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName, refuse_blank, refuse_reserved
from geminga.storage.catalogue.policies import policies_of, refuse_topics
from geminga.storage.errors import StorageFull
from geminga.storage.runtime.log import log
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Topic


def find_or_create(owner: OwnerContext, name: TopicName, *, may_create: bool = True) -> Partition | NonPersistentTopic:
    """Return the topic of that name, which is created if there is none.

    Raises Refusal if the topic may not be created: by the policies, or with `may_create` False. Raises StorageFull,
    CorruptFile.
    """
    if not (name.is_persistent or owner.options.non_persistent_topics):
        raise Refusal(api.NotAllowedError, "Non-persistent topics are switched off")
    topic = owner.partition(name) if name.is_persistent else owner.non_persistent.get(name)
    if topic is not None:
        return topic
    owner.refuse_foreign(name)
    _is_created(owner, name, may_create)      # most refusals need no transaction
    with owner.catalogue.topics.transaction():      # else a deletion in between leaves a partition without a topic
        if not _is_created(owner, name, may_create):
            owner.catalogue.topics.create(name, 0)
            log.info("a topic was made", topic=name)
        owner.answer_needs_sync()
        if name.is_persistent:
            return owner.create_partition(name)
    created = owner.non_persistent[name] = NonPersistentTopic(name, owner.options)
    owner.apply_policies(created)
    return created


def _is_created(owner: OwnerContext, name: TopicName, may_create: bool) -> bool:
    """Whether the topic or partition has been created.  Raises Refusal if it has not, and may not be, StorageFull."""
    catalogue, base = owner.catalogue, name.base
    if not catalogue.namespaces.exists(name.namespace):
        raise Refusal(api.TopicNotFound, f"Namespace {name.namespace} does not exist")
    count = catalogue.topics.partition_count(base)
    if catalogue.topics.exists(name):      # so may be the name of a partition that the partitioned topic does not have
        return True
    if count:
        is_whole = name.partition < 0
        why = "is partitioned: use its partitions" if is_whole else f"has {count} partitions; {name} does not exist"
        raise Refusal(api.TopicNotFound, f"Topic {base} {why}")
    refuse_reserved(name)
    refuse_blank(name)
    policies = policies_of(catalogue, name, owner.options)
    if not (may_create and policies.auto_create_topics):
        raise Refusal(api.TopicNotFound, f"Topic {name} does not exist")
    refuse_topics(catalogue, name.namespace, policies, 1)
    return False


def forget_if_idle(owner: OwnerContext, topic: Topic) -> None:
    """Forget a non-persistent topic if no client uses it any more."""
    if not isinstance(topic, NonPersistentTopic) or not topic.is_idle:
        return
    if owner.forget_topic(topic):
        try:
            if owner.catalogue.topics.partition_count(topic.name) is None:      # a partition stays with its topic
                return
            owner.catalogue.topics.delete(topic.name, for_now=True)
        except StorageFull as error:      # no client waits for this; the next start deletes the topic
            owner.log_once(f"{error}; {topic.name} stays in lists of topics", code="G103")
