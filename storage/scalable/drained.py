"""Sealed segments, and which of their subscriptions have drained them.

A subscription has drained a sealed segment when it has acknowledged everything there.  Delayed messages, those of open
transactions, and those that are to be delivered again are not acknowledged, so they count.  Stream consumers get the
children of a segment only from then on.  The owner of the topic's name, which deals segments to them, is told with the
acknowledgement, when that is durable.

A kill may lose acknowledgements.  The client of Pulsar 5.0.1 remembers across connections what it has acknowledged
cumulatively: it discards those messages when they are delivered again, and does not acknowledge them again.  Nothing
else comes in a sealed segment, so the subscription would never drain it.  Only a new consumer of the segment has
forgotten.  So the owner of the topic's name is told of consumers that were delivered everything and stay silent, and
has them made anew.  Silence says nothing about a consumer that was never lost: its application may just be slow.
"""
from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.scalable.notices import ASKED, DRAINED, SILENT, Notices
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription, SubType

# From the last delivery until a consumer without any acknowledgement counts as silent.  An application that is slower
# loses nothing: its client goes on once it has acknowledged, and takes other segments only then.
_SILENT_S = 4


class SealedSegments(Watcher):
    """The sealed segments of one owner that are open."""

    def __init__(self, decisions: Decisions, topics: TopicTable, notices: Notices):
        self._decisions, self._topics, self._notices = decisions, topics, notices
        # What the owner of the topic's name was told: {subscription: is it drained}.  None: nothing yet.
        self.sealed: dict[Partition, dict[str, bool] | None] = {}
        notices.functions[ASKED] = self._asked

    def __repr__(self) -> str:
        return f"<SealedSegments {len(self.sealed)}>"

    def watch(self, partition: Partition) -> None:
        """Look at a partition from now on if it is a sealed segment."""
        if partition.is_terminated and self._topics.catalogue.scalable_topics.is_sealed_for(partition.name):
            self.sealed.setdefault(partition, None)

    def release(self, partition: Partition) -> None:
        """Forget a partition that is unloaded or deleted."""
        self.sealed.pop(partition, None)

    def look(self) -> None:
        """Tell of subscriptions that this pass may have changed."""
        for partition in self.sealed:
            if partition in self._decisions.acknowledged:
                self._tell(partition)

    def tick(self, now_ms: int) -> None:
        """Tell of all other changes: subscriptions that were reset, or made at the end; and of silent consumers."""
        for partition in self.sealed:
            self._tell(partition)
            for subscription in partition.attached:
                if _is_silent(partition, subscription, now_ms):
                    self._notices.send(
                        str(partition.name.base.scalable), SILENT, str(partition.name), subscription.name)

    def owner_is_up(self, index: int) -> None:
        """Tell an owner's new process which segments are drained: what the former one was told may be lost."""
        for partition in self.sealed:
            if self._notices.owner_index(str(partition.name.base.scalable)) == index:
                self.sealed[partition] = None
                self._tell(partition)

    def _tell(self, partition: Partition) -> None:
        """Tell the owner of the topic's name if anything has changed.

        It must not learn of acknowledgements that a crash takes back: messages would overtake those before them.
        """
        now = drained(partition)
        if self.sealed[partition] != now:
            self.sealed[partition] = now
            self._decisions.answer_needs_sync()
            self._notices.send(str(partition.name.base.scalable), DRAINED, str(partition.name), now)

    def _asked(self, segment: str) -> None:
        """Tell everything of a segment, if it is sealed."""
        try:
            partition = self._topics.find(names.parse(segment))
        except (Refusal, CorruptFile, StorageFull, OSError):      # consumers of the segment are refused for it too
            return
        if partition is not None and partition.is_terminated:
            self.sealed[partition] = None
            self._tell(partition)


def _is_silent(partition: Partition, subscription: Subscription, now_ms: int) -> bool:
    """Whether the consumer of a whole segment has got everything, and has acknowledged nothing since it came back.

    True at growing distances only: in the seconds 4, 8, 16 and so on behind the last delivery.
    """
    consumer = subscription.first_consumer
    if consumer is None or len(subscription.consumers) > 1 or not subscription.is_durable:
        return False
    if not subscription.may_lack_acks or (subscription.kind != SubType.Exclusive and not consumer.is_sole):
        return False
    if consumer.acked_ms or not consumer.consumed_ms or subscription.read <= partition.last_stored:
        return False
    seconds = (now_ms - consumer.consumed_ms) // 1_000
    return seconds >= _SILENT_S and seconds & (seconds - 1) == 0


def drained(partition: Partition) -> dict[str, bool]:
    """Return {durable subscription: whether it has acknowledged everything} of a sealed segment."""
    last = partition.last_stored
    return {subscription.name: subscription.cursor.mark_delete >= last
            for subscription in partition.subscriptions.values() if subscription.is_durable}
