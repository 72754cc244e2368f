"""Deduplication: the last sequence id of each producer name, so that a message sent twice is stored once.

Sequence ids of a producer rise.  A SEND whose sequence id is not above the last stored one is a duplicate: its receipt
has no position.  One record of the journal holds the entries and the sequence ids of a pass, so a crash never parts
them, and a start reads no entries to learn sequence ids.

All chunks of a message have the same sequence id.  While the chunks of a message arrive, the number of the next one is
known.  A producer that lost its state sends its message again from the first chunk, which then differs from the stored
first chunk.  These chunks are stored, as the message may be cut differently now; a consumer that gets a first chunk
again discards the chunks it has.

A replicator of another cluster publishes messages of many producers, in the order of its own topic.  In place of a
sequence id counts the position of each entry there (proto/names.py), and always, whether or not the topic
deduplicates.  A replicator may pause for weeks while its cluster cannot be reached, so its position is never too old.
"""
import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from geminga.proto.rows import Rows
from geminga.proto.sends import CHUNK_ID, CHUNK_ID_MAX, IS_CHUNK, IS_LAST_CHUNK
from geminga.storage import format
from geminga.storage.ledgers import journal_ops

NONE = -(1 << 63)             # a sequence id below all others
NOWHERE = (1 << 64) - 1       # ledger id and entry id of a duplicate's receipt
# Unfinished chunked messages of one producer.  Its threads may interleave some; without a bound, abandoned ones would
# pile up.
_UNDER_WAY_MAX = 64
_HALVES = struct.Struct("<qq")
# Replicators of one topic whose positions are kept.  Without a bound, clients that invent names would fill the disk.
REPLICATORS_MAX = 1_000
_REPLICATOR = b"repl"         # the end of a replicator's identity


def identity(name: str, *, is_replicator: bool = False) -> bytes:
    """Return a hash of 16 bytes that stands for a producer's name.  Collisions do not happen in practice.

    is_replicator: the producer names positions, and the 16 bytes say so.
    """
    mark = _REPLICATOR if is_replicator else b""
    return blake2b(name.encode(), digest_size=_HALVES.size - len(mark)).digest() + mark


def span(sequence_id: int, highest: int) -> tuple[int, int]:
    """Return (first, last) sequence id of a SEND, as signed numbers: Pulsar reads the unsigned fields as signed."""
    first = sequence_id - (1 << 64) if sequence_id >> 63 else sequence_id
    if not highest:
        return first, first
    return first, max(first, highest - (1 << 64) if highest >> 63 else highest)


def spans(sequence_ids: NDArray[np.uint64], highest: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last sequence id of many SENDs, as signed numbers: two arrays (n,)."""
    first = sequence_ids.view(np.int64)
    if not highest.any():
        return first, first
    return first, np.where(highest == 0, first, np.maximum(first, highest.view(np.int64)))


@dataclass(slots=True)
class Progress:
    """The sequence ids stored under one producer name."""

    last: int = NONE              # sequence id of the last message stored whole
    # Unfinished chunked messages: sequence id -> (number of the next chunk, CRC32-C of the first).  Replaced, never
    # changed.
    under_way: dict[int, tuple[int, int]] = field(default_factory=dict)
    seen_ms: int = 0

    def copy(self) -> "Progress":
        return Progress(self.last, self.under_way)

    def take(self, first: int, last: int, flags: int, crc32c: int) -> bool:
        """Return whether a SEND is new, and note a new one as stored."""
        if flags & IS_CHUNK:
            return self._take_chunk(first, flags, crc32c)
        if first <= self.last:
            return False
        self.last = last
        if first in self.under_way:
            self._set(first, 0, 0)
        return True

    def take_position(self, position: int) -> bool:
        """Return whether an entry at this position of its source is new, and note a new one as stored.

        position: NONE for an entry without one, which is new.
        """
        if NONE < position <= self.last:
            return False
        self.last = max(self.last, position)
        return True

    def _take_chunk(self, sequence_id: int, flags: int, crc32c: int) -> bool:
        chunk, (following, beginning) = flags >> CHUNK_ID, self.under_way.get(sequence_id, (0, 0))
        is_new = sequence_id > self.last
        if following:
            is_new = chunk >= following or (chunk == 0 and crc32c != beginning)
        if is_new and flags & IS_LAST_CHUNK:
            self.last = max(self.last, sequence_id)
            self._set(sequence_id, 0, 0)
        elif is_new:
            self._set(sequence_id, min(chunk + 1, CHUNK_ID_MAX), beginning if chunk else crc32c)
        return is_new

    def _set(self, sequence_id: int, following: int, beginning: int) -> None:
        """Note the number of the next chunk of an unfinished message.

        following: that number; 0 if the message is finished.  beginning: the CRC32-C of its first chunk.
        """
        under_way = {key: value for key, value in self.under_way.items() if key != sequence_id}
        if following:
            under_way[sequence_id] = following, beginning
        if len(under_way) > _UNDER_WAY_MAX:
            del under_way[next(iter(under_way))]
        self.under_way = under_way


class Sequences:
    """Deduplication state of a partition: the progress of all its producers and replicators."""

    def __init__(self) -> None:
        # By identity, the longest inactive first.
        self.by_producer: OrderedDict[bytes, Progress] = OrderedDict()
        self.by_replicator: OrderedDict[bytes, Progress] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Sequences of {len(self.by_producer)} producers and {len(self.by_replicator)} replicators>"

    def __len__(self) -> int:
        return len(self.by_producer)

    def _table(self, producer: bytes) -> OrderedDict[bytes, Progress]:
        return self.by_replicator if producer.endswith(_REPLICATOR) else self.by_producer

    def of(self, producer: bytes) -> Progress:
        """Return the progress of a producer, empty for an unknown one; callers must not change it."""
        return self._table(producer).get(producer) or Progress()

    def learn(self, producer: bytes, progress: Progress, now_ms: int) -> None:
        """Set the progress of a producer, and count it as active now."""
        progress.seen_ms = now_ms
        table = self._table(producer)
        table[producer] = progress
        table.move_to_end(producer)
        if len(self.by_replicator) > REPLICATORS_MAX:
            self.by_replicator.popitem(last=False)

    def leave(self, producer: bytes, now_ms: int) -> None:
        """Count a producer that disconnects as active up to now."""
        table = self._table(producer)
        if producer in table:
            self.learn(producer, table[producer], now_ms)

    def clear(self) -> None:
        """Forget all producers, but no replicator."""
        self.by_producer.clear()

    # -- eviction

    def is_due(self, now_ms: int, inactive_ms: int, count_max: int) -> bool:
        """Whether there are more than `count_max` producers, or one was inactive for `inactive_ms`."""
        if not self.by_producer:
            return False
        return (
            len(self.by_producer) > count_max or now_ms - next(iter(self.by_producer.values())).seen_ms >= inactive_ms
        )

    def forget(self, now_ms: int, inactive_ms: int, count_max: int, connected: Iterable[bytes]) -> int:
        """Evict producers inactive for `inactive_ms`, and the longest inactive ones beyond `count_max`.

        Connected producers count as active.  Returns how many were evicted only because of `count_max`.
        """
        connected, evicted = set(connected), 0
        for _ in range(len(self.by_producer)):
            if not self.is_due(now_ms, inactive_ms, count_max):
                break
            is_excess = len(self.by_producer) > count_max
            producer, progress = self.by_producer.popitem(last=False)
            if producer in connected:
                self.learn(producer, progress, now_ms)
            else:
                evicted += is_excess and now_ms - progress.seen_ms < inactive_ms
        return evicted

    # -- at rest

    def ops(self, partition_id: int, producer: bytes, progress: Progress) -> bytes:
        """Return the journal ops, as bytes, that change a producer's progress from the present one to `progress`."""
        halves, known, ops = _HALVES.unpack(producer), self.of(producer), b""
        if progress.last != known.last:
            ops = journal_ops.produced(partition_id, halves, progress.last)
        if progress.under_way is not known.under_way:
            for sequence_id in sorted(known.under_way.keys() | progress.under_way.keys()):
                following, beginning = progress.under_way.get(sequence_id, (0, 0))
                if known.under_way.get(sequence_id, (0, 0)) != (following, beginning):
                    ops += journal_ops.chunked(
                        partition_id, halves, sequence_id, next_chunk=following, crc32c=beginning)
        return ops

    def apply_produced(self, ops: Rows) -> None:
        """Apply PRODUCED_OPs (n,) from the journal."""
        for _, _, _, low, sequence_id, high in ops.tolist():
            producer = _HALVES.pack(low, high)
            self._table(producer).setdefault(producer, Progress()).last = sequence_id

    def apply_chunked(self, ops: Rows) -> None:
        """Apply CHUNKED_OPs (n,) from the journal."""
        for kind, crc32c, _, low, sequence_id, high in ops.tolist():
            progress = self.by_producer.setdefault(_HALVES.pack(low, high), Progress())
            progress._set(sequence_id, kind >> format.NUMBER, crc32c)

    def rows(self) -> NDArray[np.void]:
        """Return the progress of all producers and replicators as SEQUENCE_ROWs (n,), in the order of eviction."""
        return np.array(
            [
                (_HALVES.unpack(producer), progress.last, sequence_id, following, beginning)
                for producer, progress in (*self.by_producer.items(), *self.by_replicator.items())
                for sequence_id, (following, beginning) in (progress.under_way or {NONE: (0, 0)}).items()
            ],
            format.SEQUENCE_ROW,
        )

    def load(self, rows: NDArray[np.void]) -> None:
        """Add the producers' progress that SEQUENCE_ROWs (n,) hold."""
        for (low, high), last, sequence_id, following, beginning in rows.tolist():
            producer = _HALVES.pack(low, high)
            self._table(producer).setdefault(producer, Progress(last))._set(sequence_id, following, beginning)

    def begin(self, now_ms: int) -> None:
        """Count all producers of a partition that was just opened as active until now; earlier time does not count."""
        for progress in self.by_producer.values():
            progress.seen_ms = now_ms
