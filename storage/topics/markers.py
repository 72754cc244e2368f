"""Markers: entries that clusters write for each other into a replicated topic, stored in its order.

    snapshot requests, responses, snapshots, updates     of replicated subscriptions
    commits, aborts                                      of transactions in another cluster

No consumer gets a marker.  It has no messages, so that nothing counts it, and is discarded for all subscriptions,
present and future.  One record of the journal has the marker and that op, so a crash never parts them.
"""
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.cursor import SKIPPED
from geminga.storage.ledgers import journal_ops
from geminga.storage.topics import acknowledge, publish_plan
from geminga.storage.topics.acknowledge import Acks
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Plan


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers that a plan stores in one partition."""

    partition: Partition
    ledger_id: int
    entries: NDArray[np.int64]      # (n,), ascending


def stored(planned: Plan) -> list[Markers]:
    """Return the markers that a plan stores, and add the ops that discard them to the plan's record."""
    marked = [Markers(group.partition, group.ledger.ledger_id, entries) for group in planned.groups
              if len(entries := publish_plan.markers(planned, group))]
    planned.ops += b"".join([
        journal_ops.acknowledged(one.partition.partition_id, one.partition.discarded.subscription_id, one.ledger_id,
                                 one.entries).tobytes() for one in marked])
    return marked


def discard(owner: OwnerContext, marked: list[Markers]) -> None:
    """Discard markers for all subscriptions, once their plan is applied and before anything is delivered."""
    for one in marked:
        for subscription in one.partition.subscriptions.values():
            acknowledge.move(owner, subscription, Acks(single={one.ledger_id: one.entries}), SKIPPED)
        ledger = one.partition.find(one.ledger_id)
        assert ledger is not None, one
        one.partition.discarded.acknowledge(ledger, one.entries)
