"""Deduplication: the sequence ids stored under each producer name, so that a message sent twice is stored once.

Sequence ids of a producer rise, but need not arrive in that order: a delayed message overtakes the batch that is being
filled.  So each producer has its highest id, and the gaps below it (missing_ids.py).  A SEND is a duplicate if all ids
that it names were stored: its receipt has no position.  If some were stored and others not, as in a batch that was cut
anew, it is stored whole, because a receipt promises that nothing is lost.  One record of the journal holds the entries
and the sequence ids of a pass, so a crash never parts them, and a start reads no entries to learn sequence ids.

A batch of Java's client names its first and its last id.  Other clients name the first only.  Such a batch is supposed
to hold the ids that follow and are missing, one for each message.  A batch with a key holds messages of that key alone:
it is supposed to hold the id that it names, and others are left as gaps.  Supposed ids never make a SEND a duplicate
that names a higher id than any before.

All chunks of a message have the same sequence id.  While the chunks of a message arrive, the number of the next one is
known.  A producer that lost its state sends its message again from the first chunk, which then differs from the stored
first chunk.  These chunks are stored, as the message may be cut differently now; a consumer that gets a first chunk
again discards the chunks it has.

A replicator of another cluster publishes messages of many producers, in the order of its own topic.  In place of a
sequence id counts the position of each entry there (proto/names.py), and always, whether or not the topic
deduplicates.  Positions leave no gaps, because a replicator sends in their order and leaves some out for good.  A
replicator may pause for weeks while its cluster cannot be reached, so its position is never too old.

A schedule of the topic is known among the replicators: its position is the planned time of its last message, in ms.
"""
import itertools
import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from geminga.proto.rows import Rows
from geminga.proto.sends import CHUNK_ID, CHUNK_ID_MAX, HAS_KEY, IS_CHUNK, IS_LAST_CHUNK
from geminga.proto.varints import signed
from geminga.storage import format
from geminga.storage.cursors.missing_ids import Gap, MissingIds
from geminga.storage.ledgers import journal_ops

NONE = -(1 << 63)             # a sequence id below all others
HIGHEST = (1 << 63) - 1       # the highest sequence id
NOWHERE = (1 << 64) - 1       # ledger id and entry id of a duplicate's receipt
# Unfinished chunked messages of one producer.  Its threads may interleave some; without a bound, abandoned ones would
# pile up.
_UNDER_WAY_MAX = 64
_HALVES = struct.Struct("<qq")
# Replicators of one topic whose positions are kept.  Without a bound, clients that invent names would fill the disk.
REPLICATORS_MAX = 1_000
# Gaps of all producers of one partition, a MB.  Beyond it, producers that were inactive longest lose theirs.
PARTITION_GAPS_MAX = 65_536
_SUPPOSED_MAX = (1 << 24) - 1     # ids above the highest, as many as an op of the journal can count
_REPLICATOR = b"repl"         # the end of a replicator's identity
_SCHEDULE = b"plan" + _REPLICATOR      # the end of a schedule's identity
_NO_GAPS = MissingIds()


def identity(name: str, *, is_replicator: bool = False) -> bytes:
    """Return a hash of 16 bytes that stands for a producer's name.  Collisions do not happen in practice.

    is_replicator: the producer names positions, and the 16 bytes say so.
    """
    mark = _REPLICATOR if is_replicator else b""
    return blake2b(name.encode(), digest_size=_HALVES.size - len(mark)).digest() + mark


def identity_of_schedule(schedule_id: int) -> bytes:
    """Return the 16 bytes that stand for a schedule, which names planned times as positions."""
    return schedule_id.to_bytes(_HALVES.size - len(_SCHEDULE), "little") + _SCHEDULE


def schedule_of(identity: bytes) -> int | None:
    """Return the id of the schedule for which the 16 bytes stand, None if they stand for no schedule."""
    is_one = identity.endswith(_SCHEDULE)
    return int.from_bytes(identity[:-len(_SCHEDULE)], "little") if is_one else None


def span(sequence_id: int, highest: int) -> tuple[int, int]:
    """Return (first, last) sequence id of a SEND, as signed numbers: Pulsar reads the unsigned fields as signed."""
    first = signed(sequence_id)
    return first, max(first, signed(highest)) if highest else first


def supposed_end(first: int, last: int, messages: int, highest: int, flags: int) -> int:
    """Return the last id that a SEND is supposed to hold: `last`, unless it is a batch that names its first id only."""
    if highest or messages < 2 or flags & (HAS_KEY | IS_CHUNK):
        return last
    return min(first + messages - 1, HIGHEST)


def spans(sequence_ids: NDArray[np.uint64], highest: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last sequence id of many SENDs, as signed numbers: two arrays (n,)."""
    first = sequence_ids.view(np.int64)
    if not highest.any():
        return first, first
    return first, np.where(highest == 0, first, np.maximum(first, highest.view(np.int64)))


def supposed_ends(first: NDArray[np.int64], last: NDArray[np.int64], messages: NDArray[np.uint32],
                  highest: NDArray[np.uint64], flags: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return `supposed_end` of many SENDs, an array (n,); it is `last` itself if it has the same ids."""
    is_supposed = (messages > 1) & (highest == 0) & (flags & (HAS_KEY | IS_CHUNK) == 0)
    if not is_supposed.any():
        return last
    more = np.where(is_supposed, messages.astype(np.int64) - 1, 0)
    ends: NDArray[np.int64] = last + np.minimum(more, HIGHEST - np.maximum(last, 0))
    return ends


@dataclass(slots=True)
class Progress:
    """The sequence ids stored under one producer name."""

    last: int = NONE              # the highest sequence id of a message stored whole
    # Unfinished chunked messages: sequence id -> (number of the next chunk, CRC32-C of the first).  Replaced, never
    # changed.
    under_way: dict[int, tuple[int, int]] = field(default_factory=dict)
    missing: MissingIds = _NO_GAPS      # ids below `last` of which nothing was stored
    supposed: int = NONE          # ids above `last` up to here are supposed to be in the batch that was stored last
    seen_ms: int = 0

    def copy(self) -> "Progress":
        return Progress(self.last, self.under_way, self.missing, self.supposed)

    @property
    def reach(self) -> int:
        """The highest id that was stored or is supposed to be; -1 if there is none, as ids from 0 on may be late."""
        return max(self.last, self.supposed, -1)

    def take(self, first: int, last: int, end: int, flags: int, crc32c: int) -> bool:
        """Return whether a SEND is new, and note a new one as stored.  end: as `supposed_end` returns it."""
        if flags & IS_CHUNK:
            return self._take_chunk(first, flags, crc32c)
        if first > self.last:
            self.rise(self._gap_below(first), last, end)
        elif not self._is_late(first, last, end):
            return False
        elif end > last:
            self._take_late_batch(first, end)
        else:
            self._store(first, last)
        if first in self.under_way:
            self._set(first, 0, 0)
        return True

    def _is_late(self, first: int, last: int, end: int) -> bool:
        """Whether a SEND whose first id is not above the highest has messages that were not stored."""
        return end > (self.reach if end > last else self.last) or self.missing.touches(first, end)

    def rise(self, gaps: list[Gap], last: int, end: int) -> None:
        """Note SENDs whose ids are above the highest one, up to `last`, and the gaps that they leave.

        end: the highest id that any of them is supposed to hold.
        """
        if gaps:
            self.missing = self.missing.with_gaps(gaps)
        self.last = last
        self.suppose(max(end, self.supposed))

    def _gap_below(self, first: int) -> list[Gap]:
        """Return the gap that a SEND leaves whose first id is above the highest one; none if it follows that."""
        reach = self.reach
        return [(reach + 1, first - 1)] if first > reach + 1 else []

    def suppose(self, end: int) -> None:
        """Suppose that ids above the highest one, up to `end`, are stored; few enough for an op of the journal."""
        self.supposed = min(end, self.last + _SUPPOSED_MAX, HIGHEST) if end > self.last else NONE

    def _store(self, first: int, last: int) -> None:
        """Note first .. last as stored, where first is not above the highest id."""
        self.missing = self.missing.without(first, last)
        if last > self.last:
            self.last = last
            self.suppose(self.supposed)

    def _take_late_batch(self, first: int, end: int) -> None:
        """Note a batch that names only its first id, which is not above the highest one.

        If that id was missing, the batch holds the next missing ones.  Else it begins with messages that came before.
        """
        if self.missing.touches(first, first):
            last_missing, above = self.missing.nth(first, end - first + 1)
            self.missing = self.missing.without(first, last_missing)
            end = self.reach + above
        else:
            self.missing = self.missing.without(first, end)
        self.suppose(max(end, self.supposed))

    def give_back(self, first: int, last: int) -> None:
        """Note that nothing of first .. last is stored any more.  They count as unsent, also if they were the highest.
        """
        self.under_way = {key: value for key, value in self.under_way.items() if not first <= key <= last}
        if first > self.last:
            return
        self.missing = self.missing.with_missing(first, min(last, self.last))
        top = self.missing.top
        if top is not None and top[1] == self.last:
            self.missing = self.missing.without(*top)
            self.last, self.supposed = top[0] - 1, NONE

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
        is_new = sequence_id > self.last or self.missing.touches(sequence_id, sequence_id)
        if following:
            is_new = chunk >= following or (chunk == 0 and crc32c != beginning)
        if is_new and flags & IS_LAST_CHUNK:
            if sequence_id > self.last:
                self.rise(self._gap_below(sequence_id), sequence_id, sequence_id)
            else:
                self._store(sequence_id, sequence_id)
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


def united(progresses: Iterable[Progress]) -> Progress:
    """Return the progress of a producer of whose messages each is in one of several partitions.

    Unfinished chunked messages are left out: their parts are in a partition that takes no others any more.
    """
    known = [progress for progress in progresses if progress.last != NONE]
    last = max((progress.last for progress in known), default=NONE)
    missing: list[Gap] | None = None
    for progress in known:
        gaps = [*progress.missing, *([(progress.reach + 1, last)] if progress.reach < last else [])]
        missing = gaps if missing is None else _common(missing, gaps)
    whole = Progress(last, missing=MissingIds().with_gaps(missing) if missing else _NO_GAPS)
    whole.suppose(max((progress.supposed for progress in known), default=NONE))
    return whole


def _common(some: list[Gap], others: list[Gap]) -> list[Gap]:
    """Return the ids that are in gaps of both."""
    found: list[Gap] = []
    ours, theirs = 0, 0
    while ours < len(some) and theirs < len(others):
        first, last = max(some[ours][0], others[theirs][0]), min(some[ours][1], others[theirs][1])
        if first <= last:
            found.append((first, last))
        if some[ours][1] < others[theirs][1]:
            ours += 1
        else:
            theirs += 1
    return found


def _above(progress: Progress) -> list[Gap]:
    """Return the ids above the highest one that are supposed to be stored, as (first, last), if there are any."""
    return [(progress.last + 1, progress.supposed)] if progress.supposed > progress.last else []


class Sequences:
    """Deduplication state of a partition: the progress of all its producers and replicators."""

    def __init__(self) -> None:
        # By identity, the longest inactive first.
        self.by_producer: OrderedDict[bytes, Progress] = OrderedDict()
        self.by_replicator: OrderedDict[bytes, Progress] = OrderedDict()
        self._gaps = 0      # of all producers

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
        self._gaps += len(progress.missing) - len(self.of(producer).missing)
        table[producer] = progress
        table.move_to_end(producer)
        if self._gaps > PARTITION_GAPS_MAX:
            self._forget_gaps()
        if len(self.by_replicator) > REPLICATORS_MAX:
            self._forget_replicator()

    def _forget_replicator(self) -> None:
        """Forget the replicator that is inactive longest.  Schedules have a bound of their own."""
        oldest = next((each for each in self.by_replicator if not each.endswith(_SCHEDULE)), None)
        if oldest is not None:
            del self.by_replicator[oldest]

    def keep_schedules(self, kept: set[bytes], count_max: int) -> None:
        """If more than `count_max` schedules are known, forget all but those with the identities `kept`.

        No op says so: after a kill they may be known again, and are forgotten again.
        """
        known = [each for each in self.by_replicator if each.endswith(_SCHEDULE)]
        for each in known if len(known) > count_max else ():
            if each not in kept:
                del self.by_replicator[each]

    def leave(self, producer: bytes, now_ms: int) -> None:
        """Count a producer that disconnects as active up to now."""
        table = self._table(producer)
        if producer in table:
            self.learn(producer, table[producer], now_ms)

    def clear(self) -> None:
        """Forget all producers, but no replicator."""
        self.by_producer.clear()
        self._gaps = 0

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
            self._gaps -= len(progress.missing)
            if producer in connected:
                self.learn(producer, progress, now_ms)
            else:
                evicted += is_excess and now_ms - progress.seen_ms < inactive_ms
        return evicted

    def _forget_gaps(self) -> None:
        """Forget half of all gaps, those of the longest inactive producers.

        No op says so: after a kill they may be known again, and are still gaps.
        """
        for progress in self.by_producer.values():
            if self._gaps <= PARTITION_GAPS_MAX // 2:
                break
            self._gaps -= len(progress.missing)
            progress.missing = _NO_GAPS

    # -- at rest

    def ops(self, partition_id: int, producer: bytes, progress: Progress) -> bytes:
        """Return the journal ops, as bytes, that change a producer's progress from the present one to `progress`."""
        halves, known, ops = _HALVES.unpack(producer), self.of(producer), b""
        if progress.last != known.last or progress.supposed != known.supposed:
            ops = journal_ops.produced(
                partition_id, halves, progress.last, supposed=max(progress.supposed - progress.last, 0))
        if progress.missing is not known.missing:
            ops += b"".join([journal_ops.missed(partition_id, halves, first, last)
                             for first, last in progress.missing.changes(known.missing)])
        if progress.under_way is not known.under_way:
            for sequence_id in sorted(known.under_way.keys() | progress.under_way.keys()):
                following, beginning = progress.under_way.get(sequence_id, (0, 0))
                if known.under_way.get(sequence_id, (0, 0)) != (following, beginning):
                    ops += journal_ops.chunked(
                        partition_id, halves, sequence_id, next_chunk=following, crc32c=beginning)
        return ops

    def apply_produced(self, ops: Rows) -> None:
        """Apply PRODUCED_OPs (n,) from the journal."""
        for kind, _, _, low, sequence_id, high in ops.tolist():
            producer = _HALVES.pack(low, high)
            progress = self._table(producer).setdefault(producer, Progress())
            progress.last = sequence_id
            progress.suppose(sequence_id + (kind >> format.NUMBER))

    def apply_missed(self, ops: Rows) -> None:
        """Apply MISSED_OPs (n,) from the journal."""
        by_producer: dict[bytes, dict[int, int]] = {}
        for kind, less, _, low, first, high in ops.tolist():
            identity = _HALVES.pack(low, high)
            if (gaps := by_producer.get(identity)) is None:
                gaps = by_producer[identity] = dict(self.of(identity).missing)
            count = kind >> format.NUMBER << 32 | less
            gaps.pop(first, None)
            if count:
                gaps[first] = first + count - 1
        for identity, gaps in by_producer.items():
            self._set_missing(identity, sorted(gaps.items()))

    def apply_chunked(self, ops: Rows) -> None:
        """Apply CHUNKED_OPs (n,) from the journal."""
        for kind, crc32c, _, low, sequence_id, high in ops.tolist():
            progress = self.by_producer.setdefault(_HALVES.pack(low, high), Progress())
            progress._set(sequence_id, kind >> format.NUMBER, crc32c)

    def _set_missing(self, producer: bytes, gaps: Iterable[Gap]) -> None:
        progress = self.by_producer.setdefault(producer, Progress())
        before, progress.missing = len(progress.missing), MissingIds(gaps)
        self._gaps += len(progress.missing) - before

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

    def missed_rows(self) -> NDArray[np.void]:
        """Return the gaps of all producers, and ids that are supposed to be stored, as MISSED_ROWs (n,)."""
        return np.array([
            (_HALVES.unpack(producer), first, last)
            for producer, progress in self.by_producer.items()
            for first, last in (*progress.missing, *_above(progress))], format.MISSED_ROW)

    def load(self, rows: NDArray[np.void]) -> None:
        """Add the producers' progress that SEQUENCE_ROWs (n,) hold."""
        for (low, high), last, sequence_id, following, beginning in rows.tolist():
            producer = _HALVES.pack(low, high)
            self._table(producer).setdefault(producer, Progress(last))._set(sequence_id, following, beginning)

    def load_missed(self, rows: NDArray[np.void]) -> None:
        """Add the gaps that MISSED_ROWs (n,) hold to the progress of their producers, which was loaded before."""
        for identity, its in itertools.groupby(rows.tolist(), lambda row: _HALVES.pack(*row[0])):
            progress, gaps = self.of(identity), [(first, last) for _, first, last in its]
            if gaps[-1][0] > progress.last:
                progress.suppose(gaps.pop()[1])
            self._set_missing(identity, gaps)

    def begin(self, now_ms: int) -> None:
        """Count all producers of a partition that was just opened as active until now; earlier time does not count."""
        for progress in self.by_producer.values():
            progress.seen_ms = now_ms
