"""What nobody uses any more is deleted, where policies say so: subscriptions with their backlog, topics with all they hold.

Time counts from when it is first seen that nobody uses them, anew after each start.
"""
from geminga.proto import names
from geminga.storage.catalogue.policy_table import DELETE_MODES
from geminga.storage.commands import subscriptions
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription
from geminga.storage.topics.watcher import Watcher

_CAUGHT_UP = DELETE_MODES[1]
_EACH_TICK = 1_000      # partitions looked at


class Inactive(Watcher):
    """Of one owner."""

    def __init__(self, owner):
        self._owner = owner
        # Partition: {what of it nobody uses: since when}; that which was looked at longest ago is the first.
        self._watched: dict[Partition, dict[Partition | Subscription, int]] = {}

    def watch(self, partition: Partition) -> None:
        """Its policies are new."""
        policies = partition.policies
        if (policies.delete_inactive_topics or policies.subscription_expiration_s) and not names.is_system(str(partition.name)):
            self._watched.setdefault(partition, {})
        else:
            self.release(partition)

    def release(self, partition: Partition) -> None:
        self._watched.pop(partition, None)

    def tick(self, now_ms: int) -> None:
        """Those whose time has come are gone."""
        for partition in list(self._watched)[:_EACH_TICK]:
            before = self._watched.pop(partition)
            since = self._watched[partition] = {what: before.get(what, now_ms) for what in self._unused(partition, now_ms)}
            try:
                self._delete([what for what, since_ms in since.items() if now_ms - since_ms >= _seconds(what) * 1000])
            except (StorageFull, NotDurable) as error:      # later then
                self._owner.complain(f"{error}; what nobody uses of {partition.name} is not deleted", code="G103",
                                     topic=str(partition.name))

    def _unused(self, partition: Partition, now_ms: int) -> list[Partition | Subscription]:
        """What of it may be deleted, and nobody uses."""
        policies, found = partition.policies, []
        if policies.subscription_expiration_s:
            found += [one for one in partition.subscriptions.values() if one.is_durable and not one.consumers]
        if policies.delete_inactive_topics and not self._is_used(partition, now_ms):
            found.append(partition)
        return found

    def _is_used(self, partition: Partition, now_ms: int) -> bool:
        """... or it is kept for other reasons."""
        policies, producers = partition.policies, partition.producers
        if producers.live or producers.waiting or partition.attached or self._owner.discovery.holds(partition, now_ms):
            return True
        if policies.retains and policies.retention_s < 0:
            return True
        if policies.inactive_topic_mode == _CAUGHT_UP:
            return any(subscription.cursor.backlog(partition.ledgers) for subscription in partition.subscriptions.values())
        return bool(partition.subscriptions)

    def _delete(self, overdue: list[Partition | Subscription]) -> None:
        for what in overdue:
            if isinstance(what, Subscription):
                subscriptions.delete_subscription(self._owner, what)
            else:
                self._owner.delete(what.name)


def _seconds(what: Partition | Subscription) -> int:
    """So long it stays unused; what a topic retains is kept."""
    if isinstance(what, Subscription):
        return what.partition.policies.subscription_expiration_s
    policies = what.policies
    return max(policies.inactive_topic_s, policies.retention_s if policies.retains else 0)
