"""Deletion of topics and subscriptions that no client uses, where policies say so.

A subscription is deleted with its backlog, a topic with everything. Time counts from the first look at which it was
unused, and anew after each start.
"""
import contextlib

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.storage.catalogue.policy_values import DELETE_MODES
from geminga.storage.commands import subscriptions
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.discovery import Discovery
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription

_CAUGHT_UP = DELETE_MODES[1]
_EACH_TICK = 1_000      # partitions looked at in a second


class InactiveTopics(Watcher):
    """Deletion of one owner's unused topics and subscriptions."""

    def __init__(self, decisions: Decisions, clients: Clients, topics: TopicTable, reports: Reports,
                 discovery: Discovery):
        self._decisions, self._clients, self._topics = decisions, clients, topics
        self._reports, self._discovery = reports, discovery
        # Partition -> {unused topic or subscription: since when in ms}; the first was looked at longest ago.
        self._watched: dict[Partition, dict[Partition | Subscription, int]] = {}

    def __repr__(self) -> str:
        return f"<InactiveTopics: {len(self._watched)} partitions watched>"

    def watch(self, partition: Partition) -> None:
        """Apply the policies of a partition that was opened, or whose policies have changed."""
        policies = partition.policies
        can_delete = self._deletes(partition) or policies.subscription_expiration_s
        if can_delete and not names.is_system(str(partition.name)):
            self._watched.setdefault(partition, {})
        else:
            self.release(partition)

    def release(self, partition: Partition) -> None:
        """Stop watching a partition that the owner gives up for inactivity."""
        self._watched.pop(partition, None)

    def tick(self, now_ms: int) -> None:
        """Look at some partitions, and delete topics and subscriptions unused for long enough; called once a second."""
        for partition in list(self._watched)[:_EACH_TICK]:
            before = self._watched.pop(partition)
            unused = self._unused(partition, now_ms)
            since = self._watched[partition] = {what: before.get(what, now_ms) for what in unused}
            try:
                self._delete([what for what, since_ms in since.items() if now_ms - since_ms >= _seconds(what) * 1000])
            except (StorageFull, NotDurable) as error:      # the next look tries again
                self._reports.once(f"{error}; what nobody uses of {partition.name} is not deleted", code="G103",
                                   topic=str(partition.name))

    def _unused(self, partition: Partition, now_ms: int) -> list[Partition | Subscription]:
        """Return the partition's unused subscriptions that may be deleted, then the partition itself if it is
        unused.
        """
        policies = partition.policies
        unused: list[Partition | Subscription] = []
        if policies.subscription_expiration_s and not self._is_segment(partition):      # as of a topic: see _deletes
            unused += [one for one in partition.subscriptions.values()
                       if one.is_durable and not one.consumers and one.remote is None]
        if self._deletes(partition) and not self._is_used(partition, now_ms):
            unused.append(partition)
        return unused

    def _is_used(self, partition: Partition, now_ms: int) -> bool:
        """Whether the partition's topic is used by clients, or must be kept for another reason."""
        policies, producers = partition.policies, partition.producers
        cursors = [one for one in partition.subscriptions.values() if one.remote is not None]
        if producers.live or producers.waiting or self._discovery.holds(partition, now_ms):
            return True
        if partition.attached.keys() - set(cursors):
            return True
        if any(one.cursor.backlog(partition.ledgers) for one in cursors):
            return True
        if (policies.retains and policies.retention_s < 0) or partition.limit is not None:
            return True
        if policies.keeps_unexported and partition.first_unexported():
            return True
        if self._topics.catalogue.schedules.count(partition.name.base):
            return True
        if policies.inactive_topic_mode == _CAUGHT_UP:
            return any(one.cursor.backlog(partition.ledgers) for one in partition.subscriptions.values())
        return len(partition.subscriptions) > len(cursors)

    def _deletes(self, partition: Partition) -> bool:
        """Whether the partition may be deleted when nobody uses it.

        A segment stays with its scalable topic: deleted by itself, it would take along what the topic's subscriptions
        are to get of its keys from the next message on.
        """
        return partition.policies.delete_inactive_topics and not self._is_segment(partition)

    def _is_segment(self, partition: Partition) -> bool:
        """Whether the partition is a segment, maybe of a topic that is only to be made scalable."""
        return partition.name.is_segment or (
            partition.is_terminated and self._topics.catalogue.scalable_topics.is_sealed_for(partition.name))

    def _delete(self, overdue: list[Partition | Subscription]) -> None:
        for what in overdue:
            if isinstance(what, Subscription):
                subscriptions.delete_subscription(self._decisions, self._clients, self._topics.catalogue, what)
            else:
                for cursor in list(what.attached):      # the replicator's consumers are all that is left
                    subscriptions.close_consumers(self._decisions, self._clients, cursor)
                with contextlib.suppress(Refusal):      # it is being made scalable
                    self._topics.delete(what.name)


def _seconds(what: Partition | Subscription) -> int:
    """Return the number of unused seconds before a topic or subscription is deleted.

    A topic is not deleted before its retention time is over.
    """
    if isinstance(what, Subscription):
        return what.partition.policies.subscription_expiration_s
    policies = what.policies
    return max(policies.inactive_topic_s, policies.retention_s if policies.retains else 0)
