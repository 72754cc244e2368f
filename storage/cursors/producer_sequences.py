"""Deduplication: how far each producer of a partition has come, so that a message that is sent again is not stored again.

A producer's sequence ids rise.  One that is not above the last that was stored has come before: its producer is told so, by a
receipt without a place.  What is stored and how far its producer has come by that are one record of the journal, so a crash
never parts them, and nothing is read through at a start.

All chunks of a message have its sequence id.  While such messages are under way, the next chunk of each is known.  A producer that
lost its state begins its message anew: its first chunk is another entry than the one that was stored.  It and those that follow are
stored then, for they may be cut differently; consumers give up the chunks they have when a first one comes again.
"""
import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from geminga.proto.sends import CHUNK_ID, CHUNK_ID_MAX, IS_CHUNK, IS_LAST_CHUNK
from geminga.storage import format

NONE = -(1 << 63)             # a sequence id below all others
NOWHERE = (1 << 64) - 1       # ledger id and entry id in the receipt of a duplicate
_UNDER_WAY_MAX = 64           # messages in chunks of one producer; its threads may take turns, but what it abandons must not pile up
_HALVES = struct.Struct("<qq")


def identity(name: str) -> bytes:
    """What a producer is known by: 128 bits, which no two names have in common, however long they are."""
    return blake2b(name.encode(), digest_size=_HALVES.size).digest()


def span(sequence_id: int, highest: int) -> tuple[int, int]:
    """(first, last) sequence id of what a SEND brings, with a sign, as other brokers read them."""
    first = sequence_id - (1 << 64) if sequence_id >> 63 else sequence_id
    if not highest:
        return first, first
    return first, max(first, highest - (1 << 64) if highest >> 63 else highest)


def spans(sequence_ids: NDArray[np.uint64], highest: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Likewise of many."""
    first = sequence_ids.view(np.int64)
    if not highest.any():
        return first, first
    return first, np.where(highest == 0, first, np.maximum(first, highest.view(np.int64)))


@dataclass(slots=True)
class Progress:
    """How far one producer has come."""

    last: int = NONE              # sequence id of the last message that is stored whole
    # Messages of which chunks are stored: sequence id -> (next chunk, checksum of the first).  Never changed, but replaced.
    under_way: dict[int, tuple[int, int]] = field(default_factory=dict)
    seen_ms: int = 0

    def copy(self) -> "Progress":
        return Progress(self.last, self.under_way)

    def take(self, first: int, last: int, flags: int, crc32c: int) -> bool:
        """Whether this SEND brings something new; it counts as stored then."""
        if flags & IS_CHUNK:
            return self._take_chunk(first, flags, crc32c)
        if first <= self.last:
            return False
        self.last = last
        if first in self.under_way:
            self._set(first, 0, 0)
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
        """The next chunk of that message is known; 0: it is not under way."""
        under_way = {key: found for key, found in self.under_way.items() if key != sequence_id}
        if following:
            under_way[sequence_id] = following, beginning
        if len(under_way) > _UNDER_WAY_MAX:
            del under_way[next(iter(under_way))]
        self.under_way = under_way


class Sequences:
    """Of the producers of one partition."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, Progress] = OrderedDict()      # by identity, the longest inactive first

    def __len__(self) -> int:
        return len(self._found)

    def of(self, producer: bytes) -> Progress:
        """How far the producer has come; not to be changed."""
        return self._found.get(producer) or Progress()

    def learn(self, producer: bytes, progress: Progress, now_ms: int) -> None:
        """The producer has come so far."""
        progress.seen_ms = now_ms
        self._found[producer] = progress
        self._found.move_to_end(producer)

    def leave(self, producer: bytes, now_ms: int) -> None:
        """The producer is not connected any more."""
        if producer in self._found:
            self.learn(producer, self._found[producer], now_ms)

    def clear(self) -> None:
        self._found.clear()

    # -- forgetting

    def is_due(self, now_ms: int, inactive_ms: int, count_max: int) -> bool:
        """Whether there may be somebody to forget."""
        return bool(self._found) and (len(self._found) > count_max or now_ms - next(iter(self._found.values())).seen_ms >= inactive_ms)

    def forget(self, now_ms: int, inactive_ms: int, count_max: int, connected: Iterable[bytes]) -> int:
        """Forget who was inactive for so long, and the longest inactive of too many; returns how many the latter were.

        Whoever is connected is not inactive.
        """
        connected, evicted = set(connected), 0
        for _ in range(len(self._found)):
            if not self.is_due(now_ms, inactive_ms, count_max):
                break
            is_excess = len(self._found) > count_max
            producer, progress = self._found.popitem(last=False)
            if producer in connected:
                self.learn(producer, progress, now_ms)
            else:
                evicted += is_excess and now_ms - progress.seen_ms < inactive_ms
        return evicted

    # -- at rest

    def ops(self, partition_id: int, producer: bytes, progress: Progress) -> bytes:
        """What the journal is to know (OP_ROWs) before the producer has come so far."""
        (low, high), known, found = _HALVES.unpack(producer), self.of(producer), b""
        if progress.last != known.last:
            found = format.OP.pack(format.PRODUCED, 0, partition_id, low, progress.last, high)
        if progress.under_way is not known.under_way:
            for sequence_id in sorted(known.under_way.keys() | progress.under_way.keys()):
                following, beginning = progress.under_way.get(sequence_id, (0, 0))
                if known.under_way.get(sequence_id, (0, 0)) != (following, beginning):
                    kind = format.CHUNKED | following << format.KIND_WORD
                    found += format.OP.pack(kind, beginning, partition_id, low, sequence_id, high)
        return found

    def apply(self, kind: int, beginning: int, low: int, sequence_id: int, high: int) -> None:
        """One of these ops: its kind, subscription_id, ledger_id, entry_id and value."""
        progress = self._found.setdefault(_HALVES.pack(low, high), Progress())
        if kind & format.KIND == format.PRODUCED:
            progress.last = sequence_id
        else:
            progress._set(sequence_id, kind >> format.KIND_WORD, beginning)

    def rows(self) -> NDArray:
        """All of it: (n,) SEQUENCE_ROW, in the order in which it would be forgotten."""
        return np.array([(_HALVES.unpack(producer), progress.last, sequence_id, following, beginning)
                         for producer, progress in self._found.items()
                         for sequence_id, (following, beginning) in (progress.under_way or {NONE: (0, 0)}).items()], format.SEQUENCE_ROW)

    def load(self, rows: NDArray) -> None:
        """Know what these rows say."""
        for (low, high), last, sequence_id, following, beginning in rows.tolist():
            progress = self._found.setdefault(_HALVES.pack(low, high), Progress(last))
            progress._set(sequence_id, following, beginning)

    def begin(self, now_ms: int) -> None:
        """The partition has been opened: nobody counts as inactive since before then."""
        for progress in self._found.values():
            progress.seen_ms = now_ms
