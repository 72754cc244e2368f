"""What nobody uses any more is deleted, where policies say so: subscriptions with their backlog, topics with all they hold.

Time counts from when a partition is first seen to be idle, anew after each start.
"""
from geminga.proto import names
from geminga.storage import commands
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.partition import Partition
from geminga.storage.policy_table import DELETE_MODES
from geminga.storage.subscription import Subscription

_CAUGHT_UP = DELETE_MODES[1]
_EACH_TICK = 1_000      # partitions looked at


class Inactive:
    """Of one owner."""

    def __init__(self, owner):
        self._owner = owner
        self._watched: dict[Partition, None] = {}                # the first are looked at next
        self._since: dict[Partition | Subscription, int] = {}    # when it was first seen that nobody uses them

    def watch(self, partition: Partition) -> None:
        """Its policies are new."""
        policies = partition.policies
        if (policies.delete_inactive_topics or policies.subscription_expiration_s) and not names.is_system(str(partition.name)):
            self._watched[partition] = None
        else:
            self.release(partition)

    def release(self, partition: Partition) -> None:
        self._watched.pop(partition, None)
        for idle in (partition, *partition.subscriptions.values()):
            self._since.pop(idle, None)

    def tick(self, now_ms: int) -> None:
        """Those whose time has come are gone."""
        for partition in list(self._watched)[:_EACH_TICK]:
            del self._watched[partition]
            self._watched[partition] = None
            try:
                self._look(partition, now_ms)
            except (StorageFull, NotDurable) as error:      # later then
                self._owner.complain(f"{error}; {partition.name} is not deleted")

    def _look(self, partition: Partition, now_ms: int) -> None:
        policies = partition.policies
        if policies.subscription_expiration_s:
            for subscription in [one for one in partition.subscriptions.values() if one.is_durable]:
                if self._is_over(subscription, bool(subscription.consumers), policies.subscription_expiration_s, now_ms):
                    self._since.pop(subscription)
                    commands.delete_subscription(self._owner, subscription)
        if policies.delete_inactive_topics:
            seconds = max(policies.inactive_topic_s, policies.retention_s if policies.retains else 0)
            if self._is_over(partition, self._is_used(partition, now_ms), seconds, now_ms):
                self._owner.delete(partition.name)

    def _is_over(self, what: Partition | Subscription, is_used: bool, seconds: int, now_ms: int) -> bool:
        """Whether nobody has used it for so long."""
        if is_used:
            self._since.pop(what, None)
            return False
        return now_ms - self._since.setdefault(what, now_ms) >= seconds * 1000

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
