"""The policy of dead letters: partitions that have it, and what of their subscriptions is dead when it changes."""
from geminga.storage.open_topics import dead_letters
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition


class DeadLetters(Watcher):
    """The partitions of one owner whose messages may become dead letters."""

    def __init__(self, decisions: Decisions):
        self._decisions = decisions
        self.partitions: dict[Partition, None] = {}

    def __repr__(self) -> str:
        return f"<DeadLetters of {len(self.partitions)} partitions>"

    def watch(self, partition: Partition) -> None:
        """Apply the policy of a partition that was opened, or whose policies have changed."""
        if partition.policies.has_dead_letters:
            self.partitions[partition] = None
        elif self.partitions.pop(partition, self) is self:      # the policy is not in force, and was not before
            return
        for subscription in partition.subscriptions.values():
            if subscription.remote is None:
                dead_letters.revive(self._decisions, subscription)

    def release(self, partition: Partition) -> None:
        """Forget a partition that the owner gives up."""
        self.partitions.pop(partition, None)
