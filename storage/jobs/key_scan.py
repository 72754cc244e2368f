"""First pass of a compaction: find the newest message of each key.

Each message becomes a place (compaction.py), a number that is larger for newer messages.  The newest message of a key
is then the maximum of its places.
"""
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from geminga.proto.rows import Rows, field_names
from geminga.proto.sends import IS_BATCH
from geminga.storage.errors import CorruptFile
from geminga.storage.jobs import reading
from geminga.storage.jobs.compaction import (
    HAS_KEY,
    IS_TOMBSTONE,
    LEDGER_BIT,
    MESSAGE_BIT,
    STAYS_WHOLE,
    CannotCompact,
    Job,
    entries,
    reason,
)
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.entry_blocks import ViewReplaced

_COLUMNS = "key", "message_index", "payload_size", "null_value", "is_encrypted", "entry_id"
_DAMAGE_MAX = 100                    # lines of damage of a stretch


@dataclass(frozen=True, slots=True)
class KeyScan:
    """The keys and places of some messages, found by the first pass of a compaction."""

    keys: pa.StringArray
    places: NDArray[np.int64]        # of the messages with these keys
    alone: NDArray[np.int64]         # of keyless messages that are kept
    messages: int                    # read
    damage: tuple[str, ...]


def scan_keys(job: Job, stretch: Stretch) -> Iterator[KeyScan]:
    """Yield the keys and places of a stretch's messages, some messages at a time.  Raises CannotCompact."""
    number = next(at for at, source in enumerate(job.sources, job.first_ledger)
                  if source.ledger_id == stretch.ledger_id)
    source, damage, flags, counter = job.source(number), [], None, itertools.count(1)

    def report(text: str) -> None:
        if (count := next(counter)) <= _DAMAGE_MAX:
            more = f"; further damage of ledger {source.ledger_id} is not listed" if count == _DAMAGE_MAX else ""
            damage.append(text + more)

    try:
        for batch in reading.batches(job.data_dir, stretch, _COLUMNS, report):
            if cancelled := job.cancelled.get(source.ledger_id):
                batch = batch.filter(pc.invert(
                    pc.is_in(batch["entry_id"], pa.array(cancelled, batch["entry_id"].type))))
            keys, indexes, sizes, nulls, encrypted, entry_ids = batch.columns
            firsts = indexes.to_numpy() - source.first_message
            places = (number << LEDGER_BIT) + (firsts << MESSAGE_BIT)
            is_keyed = keys.is_valid().to_numpy(zero_copy_only=False)
            counts = np.ones(len(places), np.int64)
            if pc.any(encrypted).as_py():
                if flags is None:
                    flags = _flags(job, stretch)
                is_whole = encrypted.to_numpy(zero_copy_only=False) & (
                    flags["flags"][entry_ids.to_numpy()] & IS_BATCH != 0)
                is_keyed &= ~is_whole
                counts = np.where(is_whole, flags["messages"][entry_ids.to_numpy()], 1)
                places += STAYS_WHOLE * is_whole
                stays = is_whole if not job.retains_keyless else ~is_keyed
            else:
                stays = ~is_keyed if job.retains_keyless else np.zeros(len(places), bool)
            alone = places[stays]
            is_tombstone = (sizes.to_numpy() == 0) | nulls.to_numpy(zero_copy_only=False)
            places += HAS_KEY | is_tombstone
            if not is_keyed.all():
                keys, places = keys.filter(pa.array(is_keyed)), places[is_keyed]
            yield KeyScan(keys, places, alone, int(counts.sum()), tuple(damage))
            damage.clear()
    except (OSError, CorruptFile, ViewReplaced) as error:
        raise CannotCompact(reason(error)) from error
    if damage:
        yield KeyScan(pa.array([], pa.string()), np.empty(0, np.int64), np.empty(0, np.int64), 0, tuple(damage))


def _flags(job: Job, stretch: Stretch) -> Rows:
    """Return the `flags` and `messages` (n,) of the index rows of a stretch's ledger, by entry id."""
    flags = np.zeros(stretch.end, [("flags", "<u4"), ("messages", "<u4")])
    for some in entries(job, job.sources[[source.ledger_id for source in job.sources].index(stretch.ledger_id)]):
        is_there = some.ids < stretch.end
        for name in field_names(flags.dtype):
            flags[name][some.ids[is_there]] = some.rows[name][is_there]
    return flags


def kept_chunks(job: Job, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of chunks that a compaction keeps, besides the last chunks.

    They are the other chunks of kept messages, and all chunks of unfinished messages. places: of the newest message of
    each key.
    """
    numbers = places[places & IS_TOMBSTONE == 0] >> MESSAGE_BIT << MESSAGE_BIT
    lasts = np.fromiter(job.chunks, np.int64, len(job.chunks))      # no bit below MESSAGE_BIT is set in them
    others = [place for last in lasts[np.isin(lasts, numbers)].tolist() for place in job.chunks[last]]
    return np.array([*others, *job.unfinished], np.int64)


def by_ledger(places: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (number of a ledger in the run, its places) for places of messages in any order."""
    places = np.sort(places)
    starts = np.flatnonzero(np.diff(places >> LEDGER_BIT, prepend=-1))
    for some in np.split(places, starts[1:]) if len(places) else ():
        yield int(some[0]) >> LEDGER_BIT, some
