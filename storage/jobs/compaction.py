"""Find the newest message of each key, and write a view with these messages.

A compaction reads the view in force and the ledgers behind its horizon twice. The first pass reads keys. It turns each
message into a number that is larger for newer messages, so that the newest message of a key is a maximum. The second
pass writes, ledger by ledger, the entries in which messages are left. engines.py runs both passes.

    place      number of the ledger in the run << 43 | message in the ledger << 3 | STAYS_WHOLE | HAS_KEY | IS_TOMBSTONE
"""
import itertools
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import CHECKSUM_END, SIZE
from geminga.proto.rows import Rows, field_names
from geminga.proto.sends import IS_BATCH, IS_CHUNK, KEPT_CHECKSUM, with_checksum
from geminga.storage import format
from geminga.storage.delayed.amendments import Amendments
from geminga.storage.disk.files import map_file
from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.jobs import confirmed, reading, rewriting
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.ledgers import compacted_ledgers, ledger_headers
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger, Part, PartWriter
from geminga.storage.ledgers.position import Position

LEDGER_BIT, MESSAGE_BIT = 43, 3      # from which bit of a place on which
LEDGERS_MAX = 1 << 63 - LEDGER_BIT   # of a run
STAYS_WHOLE, HAS_KEY, IS_TOMBSTONE = 4, 2, 1
_MESSAGES_MAX = 1 << LEDGER_BIT - MESSAGE_BIT      # of a ledger
_ROWS_MAX, _SIZE_MAX = 64 << 10, 16 << 20          # entries that are dealt with together, and their bytes; or one
_COLUMNS = "key", "message_index", "payload_size", "null_value", "is_encrypted", "entry_id"
_DAMAGE_MAX = 100                    # of a stretch, as many are told of
_UNFINISHED_MS = 24 * 3_600_000      # a message in chunks whose last one has not come by then does not come any more


class CannotCompact(Exception):
    """This partition cannot be compacted; others can.  The text gives the reason."""


@dataclass(frozen=True, slots=True)
class Source:
    """The part of one ledger that a compaction reads."""

    ledger_id: int
    first_message: int               # messages of the partition before it
    view_entries: int                # up to here, the entries that the view has; 0: none
    end: int                         # entries up to the horizon
    messages: int                    # there are in these
    size: int


@dataclass(frozen=True, slots=True)
class Job:
    """The compaction of one partition, made by `prepare`. Processes on other hosts can use it if they see the data
    folder.
    """

    data_dir: Path
    partition_id: int
    view: int                        # the one that holds; 0: there is none
    horizon: Position                # of the new one
    retains_keyless: bool
    sources: tuple[Source, ...]      # by ledger id, ascending
    token: str                       # differs from every other job's
    first_ledger: int = 0            # the number, in the run, of the first of these
    cancelled: dict[int, list[int]] = field(default_factory=dict)      # ledger id -> delayed entries that are for nobody any more
    # Messages in chunks: {place of the last: places of the others}, and places of those whose last one may yet come.
    chunks: dict[int, list[int]] = field(default_factory=dict)
    unfinished: tuple[int, ...] = ()

    @property
    def folder(self) -> Path:
        return format.partition_folder(self.data_dir, self.partition_id)

    @property
    def target(self) -> Path:
        """The folder to write to.

        The name contains a token, because children of a killed job may go on writing for a moment.
        """
        return compacted_ledgers.unfinished(self.folder, f"{self.view + 1}.{self.token}")

    @property
    def messages(self) -> int:
        return sum(source.messages for source in self.sources)

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources)

    def source(self, number: int) -> Source:
        """Return the source of a ledger, by the ledger's number in the run."""
        return self.sources[number - self.first_ledger]


@dataclass(frozen=True, slots=True)
class Written:
    """Result of the second pass for one ledger."""

    part: Part | None                # None: nothing is left of it
    keys: int = 0                    # whose newest message lies there
    tombstones: int = 0              # of these
    damage: tuple[str, ...] = ()


# -- what there is to be looked at

def prepare(data_dir: Path, partition_id: int, view: int, horizon: Position, *, retains_keyless: bool = False,
            first_ledger: int = 0) -> Job:
    """Return the compaction of a partition up to `horizon`.  Raises CannotCompact."""
    folder = format.partition_folder(data_dir, partition_id)
    try:
        held = compacted_ledgers.open_view(folder, view) if view else None
        behind = held.horizon if held else (-1, -1)
        parts = {part.ledger_id: part for part in held.manifest.parts} if held else {}
        ledger_ids = {*parts, *(found for found in ledger_headers.ledger_ids(folder) if behind[0] <= found <= horizon[0])}
        sources = []
        for ledger_id in sorted(ledger_ids):
            of_view = held.find(ledger_id) if held else None
            view_entries = of_view.entries if of_view else behind[1] + 1 if ledger_id == behind[0] else 0
            end = horizon[1] + 1 if ledger_id == horizon[0] else -1
            if (found := _source(folder, partition_id, ledger_id, of_view, parts.get(ledger_id), view_entries, end, behind)) is not None:
                sources.append(found)
    except (CorruptFile, FileNotFoundError) as error:
        raise CannotCompact(_text(error)) from error
    amended = Amendments(format.amended_path(folder))
    amended.read()                   # of what is damaged its owner tells
    job = Job(data_dir, partition_id, view, horizon, retains_keyless, tuple(sources), secrets.token_hex(8), first_ledger,
              amended.cancelled())
    chunks, unfinished = _chunks(job)
    return replace(job, chunks=chunks, unfinished=tuple(unfinished))


def _source(folder: Path, partition_id: int, ledger_id: int, of_view: CompactedLedger | None, part: Part | None, view_entries: int,
            end: int, behind: Position) -> Source | None:
    """Return the source of one ledger, None if it has no entries to read.  end: -1 for all entries."""
    messages = size = 0
    first_message = -1
    if of_view is not None and part is not None and len(of_view.rows):
        first_message, messages, size = int(of_view.rows["message_index"][0]), part.messages, part.size
    if ledger_id < behind[0]:
        end = view_entries
    else:
        rows: Rows = np.empty(0, format.INDEX_ROW)
        if format.index_path(folder, ledger_id).exists():
            rows = confirmed.confirmed_rows(folder, partition_id, ledger_id)
        end = min(len(rows), end) if end >= 0 else len(rows)
        news = rows[view_entries:end]
        if len(news):
            ends = news[[0, -1]]
            if not (format.is_valid(ends[:1], ledger_id, view_entries)[0] and format.is_valid(ends[1:], ledger_id, end - 1)[0]):
                valid = np.flatnonzero(format.is_valid(news, ledger_id, view_entries))
                if not len(valid):
                    raise CorruptFile(format.index_path(folder, ledger_id), format.HEADER_SIZE, "rows", "nothing that is whole")
                ends = news[valid[[0, -1]]].copy()
                ends["message_index"][0] -= min(int(valid[0]), int(ends["message_index"][0]))
            first, behind_last = int(ends["message_index"][0]), int(ends["message_index"][1]) + int(ends["messages"][1])
            messages += behind_last - first
            size += int(ends["offset"][1]) + int(ends["size"][1]) - int(ends["offset"][0])
            first_message = first if first_message < 0 else first_message
            if behind_last - first_message >= _MESSAGES_MAX:
                raise CannotCompact(f"ledger {ledger_id} claims to have {behind_last - first_message} messages")
        end = max(end, view_entries)
    return Source(ledger_id, first_message, view_entries, end, messages, size) if first_message >= 0 else None


def stretches(job: Job) -> list[tuple[Stretch, int]]:
    """Return the stretches that the first pass reads, in order, each with its approximate number of messages."""
    found = confirmed.stretches(job.data_dir, job.partition_id, up_to=job.horizon, view=job.view)
    share = job.messages / max(1, sum(stretch.end - stretch.first for stretch in found))
    return [(stretch, round((stretch.end - stretch.first) * share)) for stretch in found]


@dataclass(frozen=True, slots=True)
class _Entries:
    """A block of entries of one ledger."""

    rows: Rows                       # INDEX_ROW or COMPACTED_ROW
    ids: NDArray[np.int64]
    data: memoryview                 # of the file they lie in
    is_of_view: bool


def _entries(job: Job, source: Source) -> Iterator[_Entries]:
    """Iterate over blocks of all entries of a source.  Entries whose row is lost are left out."""
    if job.view:
        held = compacted_ledgers.open_view(job.folder, job.view)
        assert held is not None
        found = held.find(source.ledger_id)
        if found is not None and len(found.rows):
            data = memoryview(map_file(format.ledger_path(held.folder, source.ledger_id), writable=False))
            yield from _blocks(found.rows, found.kept, data, True)
    if source.end > source.view_entries:
        rows, is_lost, _ = confirmed.whole_rows(job.folder, job.partition_id, source.ledger_id, source.view_entries, source.end)
        ids = np.arange(source.view_entries, source.view_entries + len(rows))
        if is_lost.any():
            rows, ids = rows[~is_lost], ids[~is_lost]
        data = memoryview(map_file(format.ledger_path(job.folder, source.ledger_id), writable=False))
        yield from _blocks(rows, ids, data, False)


def _blocks(rows: Rows, ids: NDArray[np.int64], data: memoryview, is_of_view: bool) -> Iterator[_Entries]:
    ends, first = np.cumsum(rows["size"], dtype=np.int64), 0
    while first < len(rows):
        before = int(ends[first]) - int(rows["size"][first])
        until = min(first + _ROWS_MAX, max(first + 1, int(np.searchsorted(ends, before + _SIZE_MAX, side="right"))))
        yield _Entries(rows[first:until], ids[first:until], data, is_of_view)
        first = until


def _chunks(job: Job) -> tuple[dict[int, list[int]], list[int]]:
    """Return ({place of a message's last chunk: places of its other chunks}, places of chunks whose last may still
    come).
    """
    whole: dict[int, list[int]] = {}
    begun: dict[tuple[str, str], tuple[int, list[int]]] = {}      # producer and uuid: (ms of the last chunk, places so far)
    now_ms = 0
    for number, source in enumerate(job.sources, job.first_ledger):
        for some in _entries(job, source):
            if len(some.rows):
                now_ms = max(now_ms, int(some.rows["broker_time"][-1]))
            for at in np.flatnonzero(some.rows["flags"] & IS_CHUNK).tolist():
                row = some.rows[at]
                offset = int(row["offset"])
                metadata = _metadata(some.data[offset:offset + int(row["size"])])
                if metadata is None:
                    continue
                place = _place(number, source, int(row["message_index"]))
                identity = metadata.producer_name, metadata.uuid
                _, before = begun.pop(identity, (0, []))
                if metadata.chunk_id == 0:
                    before = []                  # its producer begins anew
                elif metadata.chunk_id == len(before) - 1:
                    before = before[:-1]         # it came twice
                elif metadata.chunk_id != len(before):
                    continue
                if metadata.chunk_id + 1 < metadata.num_chunks_from_msg:
                    begun[identity] = int(row["broker_time"]), [*before, place]
                elif before:
                    whole[place] = before
    return whole, [place for time_ms, places in begun.values() if time_ms > now_ms - _UNFINISHED_MS for place in places]


def _metadata(entry: memoryview) -> api.MessageMetadata | None:
    try:
        end = CHECKSUM_END + 4 + SIZE.unpack_from(entry, CHECKSUM_END)[0]
        return api.MessageMetadata.FromString(bytes(entry[CHECKSUM_END + 4:end]))
    except Exception as error:      # struct.error, DecodeError: the reader tells of it
        if type(error).__name__ not in ("error", "DecodeError"):
            raise
        return None


def _place(number: int, source: Source, message: int) -> int:
    return number << LEDGER_BIT | message - source.first_message << MESSAGE_BIT


# -- the first pass: keys

@dataclass(frozen=True, slots=True)
class Looked:
    """Keys and places of some messages."""

    keys: pa.StringArray
    places: NDArray[np.int64]        # of the messages with these keys
    alone: NDArray[np.int64]         # of messages that stay without a key
    messages: int                    # that were looked at
    damage: tuple[str, ...]


def look(job: Job, stretch: Stretch) -> Iterator[Looked]:
    """First pass: iterate over keys and places of the messages of a stretch.  Raises CannotCompact."""
    number = next(at for at, source in enumerate(job.sources, job.first_ledger) if source.ledger_id == stretch.ledger_id)
    source, damage, flags, found = job.source(number), [], None, itertools.count(1)

    def report(text: str) -> None:
        if (count := next(found)) <= _DAMAGE_MAX:
            damage.append(text if count < _DAMAGE_MAX else f"{text}; what more there is of ledger {source.ledger_id} is not listed")

    try:
        for batch in reading.batches(job.data_dir, stretch, _COLUMNS, report):
            if cancelled := job.cancelled.get(source.ledger_id):
                batch = batch.filter(pc.invert(pc.is_in(batch["entry_id"], pa.array(cancelled, batch["entry_id"].type))))
            keys, indexes, sizes, nulls, encrypted, entry_ids = batch.columns
            firsts = indexes.to_numpy() - source.first_message
            places = (number << LEDGER_BIT) + (firsts << MESSAGE_BIT)
            is_keyed = keys.is_valid().to_numpy(zero_copy_only=False)
            counts = np.ones(len(places), np.int64)
            if pc.any(encrypted).as_py():
                if flags is None:
                    flags = _flags(job, stretch)
                is_whole = encrypted.to_numpy(zero_copy_only=False) & (flags["flags"][entry_ids.to_numpy()] & IS_BATCH != 0)
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
            yield Looked(keys, places, alone, int(counts.sum()), tuple(damage))
            damage.clear()
    except (OSError, CorruptFile, reading.ViewReplaced) as error:
        raise CannotCompact(_text(error)) from error
    if damage:
        yield Looked(pa.array([], pa.string()), np.empty(0, np.int64), np.empty(0, np.int64), 0, tuple(damage))


def _flags(job: Job, stretch: Stretch) -> Rows:
    """Return (n,) `flags` and `messages` of the ledger's index, by entry id."""
    found = np.zeros(stretch.end, [("flags", "<u4"), ("messages", "<u4")])
    for some in _entries(job, job.sources[[source.ledger_id for source in job.sources].index(stretch.ledger_id)]):
        is_there = some.ids < stretch.end
        for name in field_names(found.dtype):
            found[name][some.ids[is_there]] = some.rows[name][is_there]
    return found


# -- the second pass: a ledger of the view

def write(job: Job, number: int, places: NDArray[np.int64]) -> Written:
    """Second pass: write the view's part of one ledger, synced.

    number: of the ledger in the run. places: of the newest messages of keys, and of keyless messages that stay.

    Raises CannotCompact; the files of this ledger are removed then.
    """
    source = job.source(number)
    damage: list[str] = []
    keyed = places & HAS_KEY != 0
    is_tombstone = places & IS_TOMBSTONE != 0
    places = np.sort(places[~is_tombstone] & (1 << LEDGER_BIT) - 1)
    kept, of_whole = places >> MESSAGE_BIT, places[places & STAYS_WHOLE != 0] >> MESSAGE_BIT
    counted = int(keyed.sum()), int((keyed & is_tombstone).sum())
    if not len(kept):
        return Written(None, *counted)
    try:
        with PartWriter(job.target, job.partition_id, source.ledger_id) as writer:
            for some in _entries(job, source):
                _copy(writer, some, source, kept, of_whole, damage)
            part = writer.finish(source.end)
    except (OSError, CorruptFile) as error:
        remove(job, source.ledger_id)
        raise CannotCompact(_text(error, job.target)) from error
    if not part.kept:
        remove(job, source.ledger_id)
    return Written(part if part.kept else None, *counted, tuple(damage))


def _copy(writer: PartWriter, some: _Entries, source: Source, kept: NDArray[np.int64], of_whole: NDArray[np.int64],
          damage: list[str]) -> None:
    """Copy entries with kept messages.  An entry with a message in `of_whole` keeps all its messages."""
    if not len(some.rows):
        return
    firsts = some.rows["message_index"].astype(np.int64) - source.first_message
    rows_of, indexes = _found_in(firsts, some.rows["messages"].astype(np.int64), kept)
    chosen, starts, counts = np.unique(rows_of, return_index=True, return_counts=True)
    if not len(chosen):
        return
    rows = some.rows[chosen].view(format.COMPACTED_ROW)
    rows["entry_id"] = some.ids[chosen]
    there, behind = _left(some, rows)
    if len(of_whole):
        first = of_whole[np.searchsorted(of_whole, firsts[0]):np.searchsorted(of_whole, firsts[-1] + 1)]
        counts = np.where(np.isin(chosen, np.searchsorted(firsts, first)), there, counts)
    begins, is_whole, masks = rows["offset"].astype(np.int64), counts == there, []
    ends, cut = begins + rows["size"], np.flatnonzero(counts != there).tolist()
    for at in cut:
        masks.append(np.zeros(rows["messages"][at], bool))
        masks[-1][indexes[starts[at]:starts[at] + counts[at]]] = True
    rewritten = rewriting.cut([with_checksum(bytes(some.data[begins[at]:ends[at]])) for at in cut], masks)
    fresh, bad = {}, []
    for at, entry, mask in zip(cut, rewritten, masks, strict=True):
        if isinstance(entry, rewriting.Unreadable):
            bad.append(at)
            damage.append(f"entry {source.ledger_id}:{rows['entry_id'][at]}: {entry}")
            continue
        fresh[at] = entry, rewriting.words_of(mask)
        rows["size"][at], rows["crc32c"][at] = len(entry), int.from_bytes(entry[2:CHECKSUM_END], "big")
        rows["flags"][at] |= format.IS_CUT | KEPT_CHECKSUM
    pieces = _pieces(some.data, begins, ends + behind, is_whole, fresh)
    behind[list(fresh)] = [len(words) for _, words in fresh.values()]
    if bad:
        rows, behind, counts = np.delete(rows, bad), np.delete(behind, bad), np.delete(counts, bad)
    writer.add(rows, behind, pieces, int(counts.sum()))


def _found_in(firsts: NDArray[np.int64], messages: NDArray[np.int64], kept: NDArray[np.int64]
              ) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return (entry, message within the entry) for each kept message that lies in these entries; ascending."""
    here = kept[np.searchsorted(kept, firsts[0]):np.searchsorted(kept, firsts[-1] + messages[-1])]
    rows_of = np.searchsorted(firsts, here, side="right") - 1
    indexes = here - firsts[rows_of]
    is_there = indexes < messages[rows_of]
    return rows_of[is_there], indexes[is_there]


def _left(some: _Entries, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (messages left, bytes of words behind the entry) for each row.

    An entry that an earlier compaction has cut has fewer messages left than `messages` says.
    """
    there, behind = rows["messages"].astype(np.int64), np.zeros(len(rows), np.int64)
    for at in np.flatnonzero(rows["flags"] & format.IS_CUT).tolist() if some.is_of_view else ():
        behind[at] = 8 * -(-there[at] // 64)
        end = int(rows["offset"][at]) + int(rows["size"][at])
        there[at] = int.from_bytes(some.data[end:end + behind[at]], "little").bit_count()
    return there, behind


def _pieces(data: memoryview, begins: NDArray[np.int64], ends: NDArray[np.int64], is_whole: NDArray[np.bool_],
            fresh: dict[int, tuple[bytes, bytes]]) -> list[bytes | memoryview]:
    """Return the bytes of entries as pieces to write.

    Unchanged neighbours are one piece; `fresh` has rewritten entries with their words.
    """
    is_run = np.zeros(len(begins), bool)          # goes on where the one before ended, both as they are
    is_run[1:] = is_whole[1:] & is_whole[:-1] & (begins[1:] == ends[:-1])
    starts = np.flatnonzero(~is_run)
    stops = np.append(starts[1:], len(begins))
    pieces: list[bytes | memoryview] = []
    for first, stop, whole in zip(starts.tolist(), stops.tolist(), is_whole[starts].tolist(), strict=True):
        if whole:
            pieces.append(data[begins[first]:ends[stop - 1]])
        else:
            pieces += fresh.get(first, ())
    return pieces


def remove(job: Job, ledger_id: int) -> None:
    """Remove the files of one ledger from the unfinished view."""
    for path in (format.ledger_path(job.target, ledger_id), format.index_path(job.target, ledger_id)):
        path.unlink(missing_ok=True)


# -- around them

def begin(job: Job) -> None:
    """Make an empty folder for the view, and remove the partition's unfinished views.  Raises CannotCompact."""
    try:
        for path in job.target.parent.glob(f"*{compacted_ledgers.UNFINISHED}"):
            shutil.rmtree(path, ignore_errors=True)
        job.target.mkdir()
    except OSError as error:
        raise CannotCompact(_text(error)) from error


def discard(job: Job) -> None:
    for path in (job.target, compacted_ledgers.unfinished(job.folder, job.view + 1)):
        shutil.rmtree(path, ignore_errors=True)


def finish(job: Job, parts: Iterable[Part], now_ms: int, report: dict[str, Any]) -> None:
    """Complete a view whose ledgers are all written.  The view then waits to be adopted.  Raises CannotCompact."""
    try:
        compacted_ledgers.finish(job.target, compacted_ledgers.Manifest(
            job.partition_id, job.horizon, tuple(sorted(parts, key=lambda part: part.ledger_id)), now_ms, report))
        job.target.rename(compacted_ledgers.unfinished(job.folder, job.view + 1))
    except OSError as error:
        raise CannotCompact(_text(error)) from error


def kept_chunks(job: Job, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return places of chunks to keep besides last chunks.

    These are the other chunks of kept messages, and chunks of messages that are not complete yet.
    """
    numbers = places[places & IS_TOMBSTONE == 0] >> MESSAGE_BIT << MESSAGE_BIT
    lasts = np.fromiter(job.chunks, np.int64, len(job.chunks))      # of which no bit below MESSAGE_BIT is set
    found = [place for last in lasts[np.isin(lasts, numbers)].tolist() for place in job.chunks[last]]
    return np.array([*found, *job.unfinished], np.int64)


def by_ledger(places: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Iterate over (number of the ledger in the run, its places)."""
    places = np.sort(places)
    starts = np.flatnonzero(np.diff(places >> LEDGER_BIT, prepend=-1))
    for some in np.split(places, starts[1:]) if len(places) else ():
        yield int(some[0]) >> LEDGER_BIT, some


def _text(error: Exception, path: Path | None = None) -> str:
    """Return the text of an error.  path: the file it is about, if the error names none."""
    if isinstance(error, FileNotFoundError):
        return f"it was deleted meanwhile ({error.filename} is gone)"
    if not isinstance(error, OSError):
        return str(error)
    return text_of(error) if error.filename or path is None else f"{path}: {text_of(error)}"
