"""First pass of a compaction: find the newest message of each key.

Each message becomes a place (compaction.py), a number that is larger for newer messages.  The newest message of a key
is then the maximum of its places.  If a compaction goes by event time, the newest one has the latest event time, and of
several with that time it is the last one.

    scan_keys    a stretch of a ledger -> keys and places
    blocks       keys and places -> a block of bytes for each bucket of keys, which Spark moves as one value
    newest       the blocks of a bucket -> the newest message of each key, as slots: places with hashes of keys
    by_ledger    slots -> those of each ledger, for the second pass
"""
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from geminga.proto.rows import Rows, field_names
from geminga.proto.sends import IS_BATCH
from geminga.storage.errors import CorruptFile
from geminga.storage.jobs import reading
from geminga.storage.jobs.compacting import compaction, key_hashes
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.entry_blocks import ViewReplaced
from geminga.storage.ledgers.view_files import NO_KEY, SLOT
from geminga.storage.ledgers.view_files import STAYS_WHOLE as WHOLE

_COLUMNS = "key", "message_index", "payload_size", "null_value", "is_encrypted", "entry_id"
_KEYED = pa.schema([("key", pa.string()), ("place", pa.int64()), ("time", pa.int64())])
_DAMAGE_MAX = 100                    # lines of damage of a stretch
_SAMPLE = 20_000                     # keys that tell whether many of them repeat
_REPEATED = 0.7                      # distinct ones among them, up to which finding the newest at once moves less


@dataclass(frozen=True, slots=True)
class KeyScan:
    """The keys and places of some messages, found by the first pass of a compaction."""

    keyed: pa.RecordBatch            # `key`, shortened, `place`, and `time` if the compaction goes by event time
    alone: NDArray[np.int64]         # places of keyless messages that are kept
    messages: int                    # read
    damage: tuple[str, ...]
    size: int = 0                    # bytes read


def scan_keys(job: compaction.Job, stretch: Stretch) -> Iterator[KeyScan]:
    """Yield the keys and places of a stretch's messages, some messages at a time.  Raises CannotCompact.

    The stretch is one of the job's sources, or of another segment than the one that is compacted.
    """
    if stretch.partition_id != job.partition_id:
        yield from _scan_elsewhere(job, stretch)
        return
    numbered = job.numbered(stretch.ledger_id)
    assert numbered is not None, stretch      # stretches are those of the job's sources
    (number, source), flags, counter = numbered, None, itertools.count(1)
    damage: list[str] = []
    sizes_read = [0]
    columns = (*_COLUMNS, "event_time") if job.by_event_time else _COLUMNS
    schema = _KEYED if job.by_event_time else _KEYED.remove(2)

    def report(text: str) -> None:
        if (count := next(counter)) <= _DAMAGE_MAX:
            more = f"; further damage of ledger {source.ledger_id} is not listed" if count == _DAMAGE_MAX else ""
            damage.append(text + more)

    try:
        for batch in reading.batches(job.data_dir, stretch, columns, report, count=sizes_read.append):
            batch = _without_cancelled(job, stretch, batch)
            keys, indexes, sizes, nulls, encrypted, entry_ids = batch.columns[:len(_COLUMNS)]
            firsts = indexes.to_numpy() - source.first_message
            places = (number << compaction.LEDGER_BIT) + (firsts << compaction.MESSAGE_BIT)
            is_keyed = keys.is_valid().to_numpy(zero_copy_only=False)
            counts = np.ones(len(places), np.int64)
            if pc.any(encrypted).as_py():
                if flags is None:
                    flags = _flags(job, source, stretch.end)
                is_whole = encrypted.to_numpy(zero_copy_only=False) & (
                    flags["flags"][entry_ids.to_numpy()] & IS_BATCH != 0)
                is_keyed &= ~is_whole
                counts = np.where(is_whole, flags["messages"][entry_ids.to_numpy()], 1)
                places += compaction.STAYS_WHOLE * is_whole
                stays = is_whole if not job.retains_keyless else ~is_keyed
            else:
                stays = ~is_keyed if job.retains_keyless else np.zeros(len(places), bool)
            alone = places[stays]
            is_tombstone = (sizes.to_numpy() == 0) | nulls.to_numpy(zero_copy_only=False)
            places += compaction.HAS_KEY | is_tombstone
            times = [batch["event_time"].cast(pa.int64()).fill_null(0)] if job.by_event_time else []
            keyed = pa.record_batch([keys, pa.array(places), *times], schema=schema)
            if not is_keyed.all():
                keyed = keyed.filter(pa.array(is_keyed))
            keyed = keyed.set_column(0, schema.field(0), key_hashes.shortened(keyed["key"], job.seed))
            yield KeyScan(keyed, alone, int(counts.sum()), tuple(damage), sum(sizes_read))
            damage.clear()
            sizes_read.clear()
    except (OSError, CorruptFile, ViewReplaced) as error:
        raise compaction.CannotCompact(compaction.reason(error)) from error
    if damage or sizes_read:
        yield KeyScan(pa.RecordBatch.from_pylist([], schema), np.empty(0, np.int64), 0, tuple(damage), sum(sizes_read))


def _without_cancelled(job: compaction.Job, stretch: Stretch, batch: pa.RecordBatch) -> pa.RecordBatch:
    if cancelled := job.cancelled.get(stretch.ledger_id):
        batch = batch.filter(pc.invert(pc.is_in(batch["entry_id"], pa.array(cancelled, batch["entry_id"].type))))
    return batch


def _scan_elsewhere(job: compaction.Job, stretch: Stretch) -> Iterator[KeyScan]:
    """Yield the keys of messages of another segment than the one that is compacted, as tombstones.

    A tombstone outdates messages of its time and of earlier ones.  So those of segments before this one have an event
    time that is a moment earlier, as of messages of one time the last one counts.  The other segment's own compaction
    reports damage of its files.  Raises CannotCompact.
    """
    moment = int(any(earlier.partition_id == stretch.partition_id for earlier in job.earlier))
    columns = ("key", "entry_id", "event_time") if job.by_event_time else ("key", "entry_id")
    schema, sizes_read = _KEYED if job.by_event_time else _KEYED.remove(2), [0]
    place = (compaction.ELSEWHERE << compaction.LEDGER_BIT) + (compaction.HAS_KEY | compaction.IS_TOMBSTONE)
    try:
        for batch in reading.batches(job.data_dir, stretch, columns, lambda text: None, count=sizes_read.append):
            batch = _without_cancelled(job, stretch, batch)
            count = batch.num_rows
            batch = batch.filter(batch["key"].is_valid())
            times = [pc.subtract(batch[name].cast(pa.int64()).fill_null(0), moment) for name in columns[2:]]
            keyed = pa.record_batch([key_hashes.shortened(batch["key"], job.seed),
                                     pa.array(np.full(batch.num_rows, place)), *times], schema=schema)
            yield KeyScan(keyed, np.empty(0, np.int64), count, (), sum(sizes_read))
            sizes_read.clear()
    except (OSError, CorruptFile, ViewReplaced) as error:
        raise compaction.CannotCompact(compaction.reason(error)) from error


def _flags(job: compaction.Job, source: compaction.Source, end: int) -> Rows:
    """Return the `flags` and `messages` (end,) of a ledger's index rows, by entry id."""
    flags = np.zeros(end, [("flags", "<u4"), ("messages", "<u4")])
    for block in compaction.entries(job, source):
        is_there = block.ids < end
        for name in field_names(flags.dtype):
            flags[name][block.ids[is_there]] = block.rows[name][is_there]
    return flags


def kept_chunks(job: compaction.Job, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of chunks that a compaction keeps, besides the last chunks.

    They are the other chunks of kept messages, and all chunks of unfinished messages. places: of the newest message of
    each key.
    """
    numbers = places[places & compaction.IS_TOMBSTONE == 0] >> compaction.MESSAGE_BIT << compaction.MESSAGE_BIT
    lasts = np.fromiter(job.chunks, np.int64, len(job.chunks))      # no bit below MESSAGE_BIT is set in them
    others = [place for last in lasts[np.isin(lasts, numbers)].tolist() for place in job.chunks[last]]
    return np.array([*others, *job.unfinished], np.int64)


def newest_of(keyed: pa.Table) -> pa.Table:
    """Return the rows of a table, with columns as KeyScan.keyed has them, that are about the newest message of a key.
    """
    if "time" not in keyed.column_names:
        newest = keyed.group_by("key", use_threads=False).aggregate([("place", "max")])
        return newest.rename_columns({"place_max": "place"})
    if not keyed.num_rows:
        return keyed
    encoded = keyed["key"].dictionary_encode()      # all chunks have one dictionary
    numbers = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    order = np.lexsort((keyed["place"].to_numpy(), keyed["time"].to_numpy(), numbers))
    is_last = np.diff(numbers[order], append=-1) != 0
    return keyed.take(pa.array(order[is_last]))


def blocks(keyed: pa.Table, buckets: int) -> Iterator[tuple[int, bytes]]:
    """Yield (bucket, block) for keys, which are not null, and their places; columns as KeyScan.keyed has them.

    A key is always in the same of so many buckets, and in no more blocks than calls had it.
    """
    if not keyed.num_rows:
        return
    if pc.count_distinct(keyed["key"][:_SAMPLE]).as_py() <= _REPEATED * min(_SAMPLE, keyed.num_rows):
        keyed = newest_of(keyed)
    numbers = key_hashes.buckets(keyed["key"], buckets)
    order = np.argsort(numbers, kind="stable")
    numbers, keyed = numbers[order], keyed.take(pa.array(order))
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, keyed.schema) as stream:
            stream.write_table(keyed[start:end])
        yield int(numbers[start]), out.getvalue().to_pybytes()


def newest(some: Iterable[bytes], seed: bytes) -> Rows:
    """Return the newest message of each key in blocks of one bucket, as SLOTs (n,)."""
    return keyed_slots(newest_of(pa.concat_tables([pa.ipc.open_stream(block).read_all() for block in some])), seed)


def keyed_slots(keyed: pa.Table, seed: bytes) -> Rows:
    """Return the SLOTs (n,) of messages with keys; columns as KeyScan.keyed has them.

    seed: with which long keys were shortened.
    """
    slots = np.zeros(keyed.num_rows, SLOT)
    slots["place"] = keyed["place"].to_numpy()
    slots["word"], slots["more"] = key_hashes.hashes_of_shortened(keyed["key"], seed)
    if "time" in keyed.column_names:
        slots["time"] = keyed["time"].to_numpy()
    return slots


def keyless_slots(places: NDArray[np.int64]) -> Rows:
    """Return the SLOTs (n,) of messages whose keys do not count, from their places (n,)."""
    slots = np.zeros(len(places), SLOT)
    slots["place"] = places
    slots["word"], slots["more"] = NO_KEY
    slots["more"][places & compaction.STAYS_WHOLE != 0] = WHOLE[1]
    return slots


def by_ledger(slots: Rows) -> Iterator[tuple[int, Rows]]:
    """Yield (number of a ledger in the run, its SLOTs, ascending by place) for SLOTs (n,) in any order.

    Those of messages in other segments are left out: no ledger of the run has them.
    """
    slots = slots[slots["place"] < compaction.ELSEWHERE << compaction.LEDGER_BIT]
    if not len(slots):
        return
    order = np.argsort(slots["place"], kind="stable")
    numbers = slots["place"][order] >> compaction.LEDGER_BIT
    for some in np.split(order, np.flatnonzero(np.diff(numbers)) + 1):      # a copy of all at once would take memory
        yield int(slots["place"][some[0]]) >> compaction.LEDGER_BIT, slots[some]
