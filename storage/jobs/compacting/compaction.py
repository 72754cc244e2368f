"""The compaction of one partition: its sources, its chunked messages, and the folder of its view.

A compaction reads the view in force and the ledgers behind its horizon twice.  The first pass (key_scan.py) reads
keys.  It turns each message into a place, a number that is larger for newer messages, so that the newest message of a
key is a maximum.  The second pass (view_writer.py) writes, ledger by ledger, the entries in which messages are left.
engines.py runs both passes.  If the view in force has hashes of its keys, a compaction reads only the ledgers behind
its horizon, and continues the view: continuation.py.

The messages of a sealed segment of a scalable topic may be outdated by those of the segments behind it.  So its first
pass also reads their new ones, as tombstones that are newer than all of its own.  They are in no ledger of the run.
By event time a message may be outdated by one of a segment before it too, which then is read as a whole.

    place      number of the ledger in the run << 43 | message in the ledger << 3 | STAYS_WHOLE | HAS_KEY | IS_TOMBSTONE
"""
import secrets
import shutil
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import CHECKSUM_END, SIZE
from geminga.proto.rows import Rows
from geminga.proto.sends import IS_CHUNK
from geminga.storage import format
from geminga.storage.delayed.amendments import Amendments
from geminga.storage.disk.files import map_file
from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.jobs import confirmed
from geminga.storage.jobs.compacting import key_hashes
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.ledgers import compacted_ledgers, ledger_headers, view_files
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger, CompactedLedgers, Part
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.view_files import Count, KeyFile, keys_path

LEDGER_BIT, MESSAGE_BIT = 43, 3      # lowest bits of a place's ledger and message
STAYS_WHOLE, HAS_KEY, IS_TOMBSTONE = 4, 2, 1
ELSEWHERE = 1 << 19                  # in place of a ledger's number: messages of other segments
_MESSAGES_MAX = 1 << LEDGER_BIT - MESSAGE_BIT      # in a ledger
_ROWS_MAX, _SIZE_MAX = 64 << 10, 16 << 20          # entries of a block and their bytes; a larger entry is one block
READ_AGAIN = "the whole view is read again"
_UNFINISHED_MS = 24 * 3_600_000      # a chunked message without its last chunk is dropped after this time


class CannotCompact(Exception):
    """Error: this partition cannot be compacted, while others can.  The text gives the reason."""


@dataclass(frozen=True, slots=True)
class Source:
    """The part of one ledger that a compaction reads."""

    ledger_id: int
    first_message: int               # messages of the partition before it
    view_entries: int                # entries below this id come from the view in force; 0: none
    end: int                         # id behind the last entry up to the horizon
    messages: int                    # approximate number of messages to read
    size: int                        # bytes of the entries to read


@dataclass(frozen=True, slots=True)
class OtherSegment:
    """Messages of a segment behind the one that is compacted, or before it."""

    partition_id: int
    behind: Position                 # horizon of its view in force, or of the one before if that was made just now
    up_to: Position
    messages: int
    size: int                        # bytes


@dataclass(frozen=True, slots=True)
class Job:
    """The compaction of one partition, made by `prepare`.

    Processes on other hosts can carry it out if they see the data folder.
    """

    data_dir: Path
    partition_id: int
    view: int                        # number of the view in force; 0: none
    horizon: Position                # of the new view
    retains_keyless: bool
    by_event_time: bool              # of a key the message with the latest event time is kept, else the last one
    sources: tuple[Source, ...]      # by ledger id, ascending
    token: str                       # differs from every other job's
    seed: bytes                      # of the hashes of keys (key_hashes.py)
    first_ledger: int = 0            # number of the first source in the run
    # Horizon of the view in force, if the job continues that view (continuation.py): its sources are then the ledgers
    # with new entries, and parts of the view with chunks.  None: the whole view is read.
    behind: Position | None = None
    view_messages: int = 0           # of the view in force, if the job continues it
    damage: tuple[str, ...] = ()     # why the view in force cannot be continued
    # Ledger id -> entries that no consumer gets: cancelled delayed ones, and those of aborted transactions.
    cancelled: dict[int, list[int]] = field(default_factory=dict)
    chunks: dict[int, list[int]] = field(default_factory=dict)         # place of last chunk -> places of earlier ones
    unfinished: tuple[int, ...] = ()                                   # places of chunks whose last may still come
    chunk_places: tuple[int, ...] = ()                                 # of all chunks
    size_read: int = 0               # bytes that `prepare` has read
    later: tuple[OtherSegment, ...] = ()       # segments behind this one, of which the new messages are read
    earlier: tuple[OtherSegment, ...] = ()     # segments before this one, of which all is read; () unless by event time

    @property
    def folder(self) -> Path:
        return format.partition_folder(self.data_dir, self.partition_id)

    @property
    def target(self) -> Path:
        """The folder of the unfinished view.

        Its name has a token, because children of a killed job may go on writing for a moment.
        """
        return compacted_ledgers.unfinished(self.folder, f"{self.view + 1}.{self.token}")

    @property
    def messages(self) -> int:
        return sum(source.messages for source in self.sources) + self.view_messages + sum(
            other.messages for other in (*self.later, *self.earlier))

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources)

    def source(self, number: int) -> Source:
        """Return the source that a ledger is, by the ledger's number in the run."""
        return self.sources[number - self.first_ledger]

    def numbered(self, ledger_id: int) -> tuple[int, Source] | None:
        """Return (number in the run, source) of a ledger, None if it is not among the sources."""
        return next(((number, source) for number, source in enumerate(self.sources, self.first_ledger)
                     if source.ledger_id == ledger_id), None)


# -- sources

def prepare(data_dir: Path, partition_id: int, view: int, horizon: Position, *, retains_keyless: bool = False,
            by_event_time: bool = False, first_ledger: int = 0, continues: bool = True,
            later: tuple[OtherSegment, ...] = (), earlier: tuple[OtherSegment, ...] = ()) -> Job:
    """Return the job that compacts a partition up to `horizon`.

    continues: whether the job is to continue the view in force, if that view can be continued.  Raises CannotCompact.
    """
    folder, read = format.partition_folder(data_dir, partition_id), [0]
    key_files = None
    damage: tuple[str, ...] = ()
    try:
        held = compacted_ledgers.open_view(folder, view) if view else None
        behind = held.horizon if held else (-1, -1)
        try:
            if held and continues:
                key_files = continuable(held, read.append, keeps_keyless=retains_keyless, by_event_time=by_event_time)
        except (CorruptFile, OSError) as error:
            damage = (f"{reason(error)}; {READ_AGAIN}",)
        parts = {part.ledger_id: part for part in held.manifest.parts} if held else {}
        ledger_ids = {*parts, *(ledger_id for ledger_id in ledger_headers.ledger_ids(folder)
                                if behind[0] <= ledger_id <= horizon[0])}
        sources = []
        for ledger_id in sorted(ledger_ids):
            if key_files is not None and not (ledger_id in key_files and key_files[ledger_id].chunks) \
                    and not has_news(folder, partition_id, ledger_id, behind):
                continue
            of_view = held.find(ledger_id) if held else None
            view_entries = of_view.entries if of_view else behind[1] + 1 if ledger_id == behind[0] else 0
            end = horizon[1] + 1 if ledger_id == horizon[0] else -1
            source = _source(folder, partition_id, ledger_id, of_view, parts.get(ledger_id), view_entries, end, behind)
            if source is not None:
                sources.append(source)
        cancelled = _cancelled(data_dir, partition_id, behind)
        for other in (*later, *earlier):      # ids of ledgers are used once
            cancelled |= _cancelled(data_dir, other.partition_id, other.behind)
    except (CorruptFile, FileNotFoundError) as error:
        raise CannotCompact(reason(error)) from error
    seed = next(iter(key_files.values())).seed if key_files else key_hashes.new_seed()
    job = Job(data_dir, partition_id, view, horizon, retains_keyless, by_event_time, tuple(sources),
              secrets.token_hex(8), seed, first_ledger, None if key_files is None else behind,
              held.manifest.messages if held and key_files is not None else 0, damage, cancelled, later=later,
              earlier=earlier)
    return _with_chunks(job, sum(read))


def _cancelled(data_dir: Path, partition_id: int, behind: Position) -> dict[int, list[int]]:
    """Return {ledger id: entries that no consumer gets} of a partition.  Raises CorruptFile, FileNotFoundError.

    behind: position from which on aborted transactions are looked for.
    """
    amended = Amendments(format.amended_path(format.partition_folder(data_dir, partition_id)))
    amended.read()                   # the partition's owner reports damage of this file
    cancelled = amended.cancelled()
    for ledger_id, entries_ in confirmed.committed(data_dir, partition_id, behind=behind).aborted.items():
        cancelled[ledger_id] = [*cancelled.get(ledger_id, ()), *entries_.tolist()]
    return cancelled


def whole(job: Job, why: str, first_ledger: int | None = None) -> Job:
    """Return the job that reads the whole view in place of one that continues it, with an empty folder.

    why: the reason, for the report.  Raises CannotCompact.
    """
    anew = prepare(job.data_dir, job.partition_id, job.view, job.horizon, retains_keyless=job.retains_keyless,
                   by_event_time=job.by_event_time, continues=False,
                   first_ledger=job.first_ledger if first_ledger is None else first_ledger, later=job.later,
                   earlier=job.earlier)
    anew = replace(anew, token=job.token, damage=(f"{why}; {READ_AGAIN}",), size_read=anew.size_read + job.size_read)
    begin(anew)
    return anew


def has_news(folder: Path, partition_id: int, ledger_id: int, behind: Position) -> bool:
    """Whether a ledger has entries behind the horizon of the view in force."""
    if ledger_id != behind[0]:
        return ledger_id > behind[0]
    return format.index_path(folder, ledger_id).exists() and len(
        confirmed.confirmed_rows(folder, partition_id, ledger_id)) > behind[1] + 1


def _source(folder: Path, partition_id: int, ledger_id: int, of_view: CompactedLedger | None, part: Part | None,
            view_entries: int, end: int, behind: Position) -> Source | None:
    """Return the part of one ledger that a compaction reads, None if it has no entries to read.

    of_view, part: the ledger in the view in force.  end: -1 for all entries.  behind: horizon of the view in force.
    """
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
        fresh = rows[view_entries:end]
        if len(fresh):
            ends = fresh[[0, -1]]
            if not (format.is_valid(ends[:1], ledger_id, view_entries)[0]
                    and format.is_valid(ends[1:], ledger_id, end - 1)[0]):
                valid = np.flatnonzero(format.is_valid(fresh, ledger_id, view_entries))
                if not len(valid):
                    raise CorruptFile(format.index_path(folder, ledger_id), format.HEADER_SIZE, "rows",
                                      "nothing that is whole")
                ends = fresh[valid[[0, -1]]].copy()
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
    """Return the stretches that a compaction's first pass reads, in order, each with an approximate message count."""
    if job.behind is None:
        read = confirmed.stretches(job.data_dir, job.partition_id, up_to=job.horizon, view=job.view)
    else:
        read = [stretch for source in job.sources if source.end > source.view_entries
                for stretch in confirmed.of_ledger(job.folder, job.partition_id, source.ledger_id, behind=job.behind,
                                                   up_to=job.horizon)]
    read += [stretch for later in job.later for stretch in confirmed.stretches(
        job.data_dir, later.partition_id, behind=later.behind, up_to=later.up_to)]
    read += [stretch for earlier in job.earlier for stretch in _of_earlier(job.data_dir, earlier)]
    share = (job.messages - job.view_messages) / max(1, sum(stretch.end - stretch.first for stretch in read))
    return [(stretch, round((stretch.end - stretch.first) * share)) for stretch in read]


def _of_earlier(data_dir: Path, earlier: OtherSegment) -> list[Stretch]:
    """Return the stretches of a segment before the one that is compacted: its view, and what came behind it.

    Its own compaction may have made that view just now.  The tombstones that it took into account are in no view, and
    count for messages that are compacted at the same time.
    """
    view = confirmed.current_view(data_dir, earlier.partition_id)
    read = confirmed.stretches(data_dir, earlier.partition_id, up_to=earlier.up_to, view=view)
    if view:
        read += confirmed.stretches(data_dir, earlier.partition_id, behind=earlier.behind, up_to=earlier.up_to)
    return read


@dataclass(frozen=True, slots=True)
class Entries:
    """A block of entries of one ledger, in its mapped file."""

    rows: Rows                       # (n,) INDEX_ROW or COMPACTED_ROW
    ids: NDArray[np.int64]
    data: memoryview                 # the whole file
    of_view: CompactedLedger | None  # None: the entries are of the ledger itself


def entries(job: Job, source: Source) -> Iterator[Entries]:
    """Yield all entries of a compaction's source in blocks.  Entries whose index row is lost are left out."""
    if job.view:
        held = compacted_ledgers.open_view(job.folder, job.view)
        assert held is not None
        ledger = held.find(source.ledger_id)
        if ledger is not None and len(ledger.rows):
            data = memoryview(map_file(format.ledger_path(held.folder, source.ledger_id), writable=False))
            yield from _blocks(ledger.rows, ledger.kept, data, ledger)
    if source.end > source.view_entries:
        rows, is_lost, _ = confirmed.whole_rows(job.folder, job.partition_id, source.ledger_id, source.view_entries,
                                                source.end)
        ids = np.arange(source.view_entries, source.view_entries + len(rows))
        if is_lost.any():
            rows, ids = rows[~is_lost], ids[~is_lost]
        data = memoryview(map_file(format.ledger_path(job.folder, source.ledger_id), writable=False))
        yield from _blocks(rows, ids, data, None)


def _blocks(rows: Rows, ids: NDArray[np.int64], data: memoryview, of_view: CompactedLedger | None) -> Iterator[Entries]:
    ends, first = np.cumsum(rows["size"], dtype=np.int64), 0
    while first < len(rows):
        before = int(ends[first]) - int(rows["size"][first])
        until = min(first + _ROWS_MAX, max(first + 1, int(np.searchsorted(ends, before + _SIZE_MAX, side="right"))))
        yield Entries(rows[first:until], ids[first:until], data, of_view)
        first = until


# -- key hashes of the view in force

def continuable(view: CompactedLedgers, count: Count, *, keeps_keyless: bool,
                by_event_time: bool) -> dict[int, KeyFile] | None:
    """Return the files with the key hashes of a view, by ledger id, if a compaction can continue the view.

    Return None if an older program wrote the view, if it has nothing, or if the compaction has other options than the
    view's.  count: called with the number of bytes of each read.  Raises CorruptFile, OSError.
    """
    parts = view.manifest.parts
    if not parts or not any(keys_path(view.folder, part.ledger_id).exists() for part in parts):
        return None
    files = {part.ledger_id: KeyFile(view.folder, part.ledger_id, count) for part in parts}
    for part, file in zip(parts, files.values(), strict=True):
        if file.rows != part.kept:
            raise CorruptFile(file.path, 0, f"hashes of {part.kept} entries", f"those of {file.rows}")
    if len({file.seed for file in files.values()}) > 1 or any(
            file.keeps_keyless != keeps_keyless or (by_event_time and not file.has_times) for file in files.values()):
        return None
    return files


def size_read(view: CompactedLedgers, *, keeps_keyless: bool, by_event_time: bool, grows: bool) -> int:
    """Return how many bytes of a view a further compaction reads: of its key hashes, or all of its entries.

    grows: whether there are new entries in the ledger of the view's horizon.
    """
    try:
        files = continuable(view, lambda size: None, keeps_keyless=keeps_keyless, by_event_time=by_event_time)
    except (CorruptFile, OSError):      # the compaction reports it
        files = None
    if files is None:
        return view.manifest.size
    return sum(file.words_size for file in files.values()) + sum(
        part.mask + (part.size if grows and part.ledger_id == view.horizon[0] else 0) for part in view.manifest.parts)


# -- chunked messages

def _with_chunks(job: Job, read: int) -> Job:
    """Return the job with the chunked messages of its sources.  read: bytes that were read for the job so far."""
    complete: dict[int, list[int]] = {}
    seen: list[int] = []
    begun: dict[tuple[str, str], tuple[int, list[int]]] = {}      # (producer, uuid): (ms of the newest chunk, places)
    now_ms = 0                       # by the broker's times in the entries
    for number, source in enumerate(job.sources, job.first_ledger):
        for some in entries(job, source):
            read += some.rows.nbytes
            if len(some.rows):
                now_ms = max(now_ms, int(some.rows["broker_time"][-1]))
            chunks = np.flatnonzero(some.rows["flags"] & IS_CHUNK)
            if cancelled := job.cancelled.get(source.ledger_id):
                chunks = chunks[~np.isin(some.ids[chunks], cancelled)]
            for at in chunks.tolist():
                row = some.rows[at]
                offset = int(row["offset"])
                metadata = _metadata(some.data[offset:offset + int(row["size"])])
                if metadata is None:
                    continue
                place = place_of(number, source, int(row["message_index"]))
                if metadata.num_chunks_from_msg > 1:
                    seen.append(place)
                identity = metadata.producer_name, metadata.uuid
                _, before = begun.pop(identity, (0, []))
                if metadata.chunk_id == 0:
                    before = []                  # the producer sends the message once more
                elif metadata.chunk_id == len(before) - 1:
                    before = before[:-1]         # the chunk came twice
                elif metadata.chunk_id != len(before):
                    continue
                if metadata.chunk_id + 1 < metadata.num_chunks_from_msg:
                    begun[identity] = int(row["broker_time"]), [*before, place]
                elif before:
                    complete[place] = before
    unfinished = [place for time_ms, places in begun.values() if time_ms > now_ms - _UNFINISHED_MS for place in places]
    return replace(job, chunks=complete, unfinished=tuple(unfinished), chunk_places=tuple(seen), size_read=read)


def _metadata(entry: memoryview) -> api.MessageMetadata | None:
    try:
        end = CHECKSUM_END + 4 + SIZE.unpack_from(entry, CHECKSUM_END)[0]
        return api.MessageMetadata.FromString(bytes(entry[CHECKSUM_END + 4:end]))
    except (struct.error, DecodeError):      # the first pass reports the entry
        return None


def place_of(number: int, source: Source, message: Any) -> Any:
    """Return the place of a message: one integer, by which messages are sorted by ledger and then by message.

    number: of the ledger among the job's ledgers.  message: its number in the partition, or an array (n,) of such
    numbers, for which an array of places is returned.
    """
    return (number << LEDGER_BIT) + (message - source.first_message << MESSAGE_BIT)


# -- the folder of the view

def begin(job: Job) -> None:
    """Make an empty folder for the job's view, and remove the partition's unfinished views.  Raises CannotCompact."""
    try:
        for path in job.target.parent.glob(f"*{compacted_ledgers.UNFINISHED}"):
            shutil.rmtree(path, ignore_errors=True)
        job.target.mkdir()
    except OSError as error:
        raise CannotCompact(reason(error)) from error


def discard(job: Job) -> None:
    """Remove the job's view, complete or not, unless it was adopted."""
    for path in (job.target, compacted_ledgers.unfinished(job.folder, job.view + 1)):
        shutil.rmtree(path, ignore_errors=True)


def remove(job: Job, ledger_id: int) -> None:
    """Remove the files of one ledger from the unfinished view."""
    for path in (format.ledger_path(job.target, ledger_id), format.index_path(job.target, ledger_id),
                 view_files.keys_path(job.target, ledger_id)):
        path.unlink(missing_ok=True)


def finish(job: Job, parts: Iterable[Part], now_ms: int, report: dict[str, Any]) -> None:
    """Complete a view whose ledgers are all written, so that it can be adopted.  Raises CannotCompact."""
    try:
        compacted_ledgers.finish(job.target, compacted_ledgers.Manifest(
            job.partition_id, job.horizon, tuple(sorted(parts, key=lambda part: part.ledger_id)), now_ms, report))
        # The folder had a name with a token until now, as workers of a job that was killed may go on writing for a
        # moment.  Under the name that an owner adopts, they would write into a view that is in force.
        job.target.rename(compacted_ledgers.unfinished(job.folder, job.view + 1))
    except OSError as error:
        raise CannotCompact(reason(error)) from error


def reason(error: Exception, path: Path | None = None) -> str:
    """Return the text of CannotCompact for an error.  path: the file in question, for an error that names none."""
    if isinstance(error, FileNotFoundError):
        return f"it was deleted meanwhile ({error.filename} is gone)"
    if not isinstance(error, OSError):
        return str(error)
    return text_of(error) if error.filename or path is None else f"{path}: {text_of(error)}"
