"""Markers: entries that clusters write for each other into a replicated topic, stored in its order.

    snapshot requests, responses, updates     of replicated subscriptions
    commits, aborts                           of transactions in another cluster

No consumer gets a marker.  It has no messages, so that nothing counts it, and is discarded for all subscriptions,
present and future.  One record of the journal has the marker and that op, so a crash never parts them.  The broker's
own markers stay for the replication cursors that there are, which take them to other clusters, until the partition is
opened anew: markers of then would be late.
"""
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from geminga.proto import frames
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import CHECKSUM_END, SIZE
from geminga.proto.names import SENT_MARKERS
from geminga.proto.rows import field_names
from geminga.proto.sends import SEND_ROW, read_one
from geminga.storage import format
from geminga.storage.cursors.cursor import SKIPPED
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics import acknowledge
from geminga.storage.open_topics.acknowledge import Acks
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.topics import publish_plan
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Demand, Group, Plan
from geminga.storage.topics.subscription import Producer

SIZE_MAX = 16 << 10      # bytes of a marker that is read; those of brokers have some hundred
_PRODUCER = "pulsar.marker"
_COMMAND = api.CommandSend(marker=True)      # as if a marker of the broker's own had come with it


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers that a plan stores in one partition."""

    partition: Partition
    ledger_id: int
    entries: NDArray[np.int64]      # (n,), ascending
    sources: list[str | None]       # (n,), the cluster whose replicator published each; None: another producer did
    is_own: bool                    # the broker wrote them


@dataclass(frozen=True, slots=True)
class Received:
    """A marker of replicated subscriptions, which a replicator of another cluster has published."""

    partition: Partition
    position: Position
    source: str                     # that cluster
    kind: int                       # one of names.SENT_MARKERS
    payload: bytes


def entry_of(kind: int, payload: Message, now_ms: int, *, to: str | None = None) -> bytes:
    """Return a marker as it is stored.  to: the only cluster that gets it; None: all others do."""
    metadata = api.MessageMetadata(producer_name=_PRODUCER, sequence_id=0, publish_time=now_ms, marker_type=kind,
                                   replicate_to=[] if to is None else [to])
    raw = metadata.SerializeToString()
    return frames.with_checksum(SIZE.pack(len(raw)) + raw + payload.SerializeToString())


def plan(markers: list[tuple[Demand, list[bytes]]], now_ms: int) -> Plan:
    """Give markers of the broker's own their places.  Nobody gets a receipt for them.

    markers: [(demand with a ledger, entries)]
    """
    planned = Plan([], [], b"", b"", [], [], has_markers=True, is_own=True)
    index: list[bytes] = []
    sources: list[bytes] = []
    at = 0      # in all entries laid end to end
    for demand, entries in markers:
        ledger, partition = demand.ledger, demand.partition
        assert ledger is not None, demand
        offset = ledger.size
        for entry_id, entry in enumerate(entries, ledger.entries):
            row = dict(zip(field_names(SEND_ROW), read_one(_COMMAND, entry), strict=True))
            index.append(format.index_row(
                ledger.ledger_id, entry_id, offset=offset, publish_time=row["publish_time"], broker_time=now_ms,
                deliver_at=0, message_index=partition.next_message, size=len(entry), messages=0, key_hash=0,
                flags=row["flags"], crc32c=row["crc32c"]))
            sources.append(np.array(at, format.SOURCE).tobytes())
            offset, at = offset + len(entry), at + len(entry)
        pieces = [memoryview(entry) for entry in entries]
        planned.groups.append(Group(partition, ledger, len(index) - len(entries), len(entries), offset,
                                    partition.next_message, pieces))
        planned.data += pieces
    planned.index, planned.sources = b"".join(index), b"".join(sources)
    return planned


def stored(planned: Plan, producers: Mapping[int, Producer]) -> list[Markers]:
    """Return the markers that a plan stores, and add the ops that discard them to the plan's record.

    producers: those that are connected, by handle.
    """
    marked = [Markers(group.partition, group.ledger.ledger_id, entries,
                      _sources(planned, group, entries - group.ledger.entries + group.first, producers),
                      is_own=planned.is_own)
              for group in planned.groups if len(entries := publish_plan.markers(planned, group))]
    planned.ops += b"".join([
        journal_ops.acknowledged(one.partition.partition_id, one.partition.discarded.subscription_id, one.ledger_id,
                                 one.entries).tobytes() for one in marked])
    return marked


def _sources(planned: Plan, group: Group, rows: NDArray[np.int64],
             producers: Mapping[int, Producer]) -> list[str | None]:
    """Return the clusters whose replicators published these rows (n,) of a plan, all of them of the group."""
    if planned.is_own:
        return [None] * len(rows)
    if planned.many is None:
        return [planned.few[row][0].source for row in rows.tolist()]
    return [None if (producer := producers.get(handle)) is None else producer.source
            for handle in planned.many.handles[rows].tolist()]


def discard(decisions: Decisions, marked: list[Markers]) -> None:
    """Discard markers for all subscriptions, once their plan is applied and before anything is delivered."""
    for one in marked:
        for subscription in one.partition.subscriptions.values():
            if one.is_own and subscription.remote is not None:
                continue
            acknowledge.move(decisions, subscription, Acks(single={one.ledger_id: one.entries}), SKIPPED)
        ledger = one.partition.find(one.ledger_id)
        assert ledger is not None, one
        one.partition.discarded.acknowledge(ledger, one.entries)


def received(one: Markers) -> Iterator[Received]:
    """Yield those of stored markers that are of replicated subscriptions, and come from the cluster that they name."""
    ledger = one.partition.find(one.ledger_id)
    assert ledger is not None, one
    for entry_id, source in zip(one.entries.tolist(), one.sources, strict=True):
        size, offset = (int(ledger.column(name)[entry_id]) for name in ("size", "offset"))
        if source is None or size > SIZE_MAX:
            continue
        entry = os.pread(ledger.descriptor, size, offset)
        try:
            begin = CHECKSUM_END + 4
            end = begin + SIZE.unpack_from(entry, CHECKSUM_END)[0]
            metadata = api.MessageMetadata.FromString(entry[begin:end])
        except DecodeError:
            continue
        if metadata.marker_type in SENT_MARKERS and metadata.replicated_from == source:
            yield Received(one.partition, (one.ledger_id, entry_id), source, metadata.marker_type, entry[end:])
