"""Entries for one subscription: a redrive sends a subscription's dead letters back to it, and to no other.

The producer names the subscription in its metadata, under names.ONLY_FOR.  The pass that stores its entries
acknowledges them for all other subscriptions that there are, readers and replication cursors among them.  One record of
the journal has the entries and these ops, so a crash never parts them.  A subscription that is made later, or sought
back, gets them: they are messages of the topic like all others.

The producer's own name is that of a subscription which keeps what it publishes, until its work is done.
"""
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.cursor import SKIPPED
from geminga.storage.ledgers import journal_ops
from geminga.storage.open_topics import acknowledge
from geminga.storage.open_topics.acknowledge import Acks
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Group, Plan
from geminga.storage.topics.subscription import Producer, Subscription

# Ops in the record that stores the entries.  What does not fit is noted behind it, so that a kill in between leaves
# copies to other subscriptions: a topic with thousands of subscriptions, and entries that do not lie together.
_OPS_MAX = 5_000


@dataclass(frozen=True, slots=True)
class Addressed:
    """The entries that a plan stores in one partition for one subscription."""

    partition: Partition
    producer: Producer
    ledger_id: int
    entries: NDArray[np.int64]      # (n,), ascending

    @property
    def others(self) -> list[Subscription]:
        """The subscriptions that do not get the entries; none if the one that is to get them was deleted."""
        subscriptions = self.partition.subscriptions
        if (self.producer.only_for, True) not in subscriptions:
            return []
        return [each for (name, is_durable), each in subscriptions.items()
                if not (is_durable and name in (self.producer.only_for, self.producer.name))]


def stored(planned: Plan, producers: Mapping[int, Producer]) -> list[Addressed]:
    """Return what a plan stores for one subscription, and add ops that acknowledge it for others to the plan's record.

    producers: those with such entries, by handle.
    """
    if planned.is_own:
        return []
    found = [Addressed(group.partition, producer, group.ledger.ledger_id, rows - group.first + group.ledger.entries)
             for group in planned.groups for producer in producers.values()
             if producer.partition is group.partition and len(rows := _rows(planned, group, producer))]
    ops: list[bytes] = []
    size = 0
    for one in found:
        for subscription in one.others:
            if not subscription.is_durable:
                continue
            made = journal_ops.acknowledged(
                one.partition.partition_id, subscription.cursor.subscription_id, one.ledger_id, one.entries)
            if (size := size + len(made)) > _OPS_MAX:
                break
            ops.append(made.tobytes())
    planned.ops += b"".join(ops)
    return found


def _rows(planned: Plan, group: Group, producer: Producer) -> NDArray[np.int64]:
    """Return the rows (n,) of a plan's group that a producer has published."""
    if planned.many is not None:
        is_theirs = planned.many.handles[group.first:group.first + group.count] == producer.handle
        return np.flatnonzero(is_theirs) + group.first
    few = planned.few[group.first:group.first + group.count]
    return np.array([row for row, each in enumerate(few, group.first) if each[0] is producer], np.int64)


def acknowledge_for_others(decisions: Decisions, addressed: list[Addressed]) -> None:
    """Acknowledge entries for all subscriptions but theirs, once the plan is applied and before anything is delivered.
    """
    for one in addressed:
        for subscription in one.others:
            acknowledge.move(decisions, subscription, Acks(single={one.ledger_id: one.entries}), SKIPPED)
