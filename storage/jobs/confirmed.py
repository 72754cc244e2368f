"""Partitions, the confirmed entries of their ledgers, and their views, as stretches to read.

Only files are read, with or without a running broker. An entry is confirmed when its row is in the index, because the
journal has it by then. The header of an open ledger may count too few entries; further rows are checked one by one.

Stretches end where consumers do: before the first entry of a transaction that is open as far as the files say. The
state file says which transactions have ended, and may be older than the ledgers. Owners write it again about a second
after transactions end.
"""
import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.proto import names
from geminga.proto.names import TopicName
from geminga.proto.rows import Rows
from geminga.proto.sends import IN_TRANSACTION
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue, open_to_read
from geminga.storage.cursors import state_file
from geminga.storage.cursors.state_file import State
from geminga.storage.disk.files import map_file
from geminga.storage.ledgers import compacted_ledgers, ledger_headers
from geminga.storage.ledgers.compacted_ledgers import CompactedLedgers
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.ledger_files import take_bounds
from geminga.storage.ledgers.position import NOWHERE, Position, entries_up_to

SIZE_MAX, ENTRIES_MAX = 64 << 20, 1 << 19      # of a stretch
_BLOCK = 8 << 10                               # rows looked at together


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch: entries first .. end - 1 of one ledger, which one task reads."""

    partition_id: int
    ledger_id: int
    first: int
    end: int
    view: int = 0      # number of the compacted view to read them from; 0: the ledger itself


# -- partitions

def open_catalogue(data_dir: Path | str) -> Catalogue:
    """Open the data folder's catalogue for reading.  Raises CatalogueError."""
    return open_to_read(Path(data_dir) / "catalogue.sqlite")


def partitions(data_dir: Path | str, topics: Iterable[str] | re.Pattern[str]) -> list[tuple[int, TopicName]]:
    """Return (id, name) of all stored partitions of these topics, sorted by name.

    A pattern must match the whole name of a topic without its partition. persistent://public/default/ may be left out
    of the pattern. Patterns do not match system topics.

    Raises LookupError for a topic that does not exist, Refusal for an invalid name, CatalogueError.
    """
    catalogue = open_catalogue(data_dir)
    try:
        if isinstance(topics, re.Pattern):
            pattern = re.compile(_complete(topics.pattern), topics.flags)
            wanted = [name for text in catalogue.topics.all_base_names()
                      if not names.is_system(text) and pattern.fullmatch(text)
                      for name in _parts(catalogue, names.parse(text))]
        else:
            wanted = [name for text in dict.fromkeys(topics) for name in _parts(catalogue, names.parse(text))]
        stored = {(row[0], name) for name in wanted if (row := catalogue.partitions.find(name)) is not None}
    finally:
        catalogue.close()
    return sorted(stored, key=lambda partition: str(partition[1]))


def _complete(pattern: str) -> str:
    if "://" in pattern:
        return pattern
    return f"persistent://{pattern}" if "/" in pattern else f"persistent://public/default/{pattern}"


def _parts(catalogue: Catalogue, topic: TopicName) -> list[TopicName]:
    """Return the names under which a topic is stored: of its partitions, or its own.  Raises LookupError."""
    count = catalogue.topics.partition_count(topic)
    if count is None and not catalogue.topics.exists(topic):
        raise LookupError(f"there is no topic {topic}")
    return catalogue.topics.parts(topic)


# -- stretches of a partition

def stretches(data_dir: Path | str, partition_id: int, *, behind: Position = NOWHERE, up_to: Position | None = None,
              view: int = 0, size_max: int = SIZE_MAX) -> list[Stretch]:
    """Return the stretches of a partition, in order, from behind one position up to and including another.

    Nothing behind an open transaction is in a stretch, and readers leave out entries of aborted ones.

    view: number of a compacted view; entries up to its horizon come from the view, all others from the ledgers. A
    stretch has at most size_max bytes, or one entry. Ledgers that are deleted meanwhile are left out.

    Raises CorruptFile, and FileNotFoundError if the view does not exist.
    """
    folder = format.partition_folder(Path(data_dir), partition_id)
    committed = committed_up_to(data_dir, partition_id)
    up_to = committed if up_to is None else min(committed, up_to)
    pieces = []
    if view:
        opened = compacted_ledgers.open_view(folder, view)
        assert opened is not None      # a view has a number above 0
        pieces += _of_view(opened, behind, up_to, size_max)
        behind = max(behind, opened.horizon)
    for ledger_id in ledger_headers.ledger_ids(folder):
        if ledger_id < behind[0] or ledger_id > up_to[0]:
            continue
        pieces += of_ledger(folder, partition_id, ledger_id, behind=behind, up_to=up_to, size_max=size_max)
    return pieces


def of_ledger(folder: Path, partition_id: int, ledger_id: int, *, behind: Position = NOWHERE,
              up_to: Position | None = None, size_max: int = SIZE_MAX) -> list[Stretch]:
    """Return the stretches of one ledger, as `stretches` does; none if the ledger is deleted.  Raises CorruptFile."""
    try:
        rows = confirmed_rows(folder, partition_id, ledger_id)
    except FileNotFoundError:
        return []
    first, end = _within(ledger_id, len(rows), behind, up_to)
    offsets = np.maximum.accumulate(rows["offset"])      # rows whose space was given back are zeros
    return [Stretch(partition_id, ledger_id, *bounds) for bounds in _split(offsets, first, end, size_max)]


def last_confirmed(data_dir: Path | str, partition_id: int) -> Position:
    """Return the position of a partition's last confirmed entry, NOWHERE without entries.  Raises CorruptFile."""
    folder = format.partition_folder(Path(data_dir), partition_id)
    return next(((ledger_id, len(rows) - 1) for ledger_id, rows in _ledgers(folder, partition_id, is_backwards=True)
                 if len(rows)), NOWHERE)


def _ledgers(folder: Path, partition_id: int, *, is_backwards: bool = False) -> Iterator[tuple[int, Rows]]:
    """Yield (id, confirmed index rows) of each ledger that is not deleted meanwhile.  Raises CorruptFile."""
    for ledger_id in ledger_headers.ledger_ids(folder)[::-1 if is_backwards else 1]:
        with contextlib.suppress(FileNotFoundError):
            yield ledger_id, confirmed_rows(folder, partition_id, ledger_id)


def committed_up_to(data_dir: Path | str, partition_id: int) -> Position:
    """Return the position up to which no entry is in an open transaction, as far as the files say it.

    NOWHERE: there is none.  Raises CorruptFile.
    """
    return _committed(data_dir, partition_id)[0]


def is_settled(data_dir: Path | str, partition_id: int) -> bool:
    """Whether the files say of all entries how their transactions have ended.  Raises CorruptFile."""
    return _committed(data_dir, partition_id)[1]


def _committed(data_dir: Path | str, partition_id: int) -> tuple[Position, bool]:
    """Return (last position before the first open transaction, whether it is the last of all)."""
    folder = format.partition_folder(Path(data_dir), partition_id)
    settled, up_to = _settled(state_file.read(folder, partition_id)), NOWHERE
    for ledger_id, rows in _ledgers(folder, partition_id):
        for at in range(entries_up_to(settled, ledger_id, len(rows)), len(rows), _BLOCK):
            is_open = rows["flags"][at:at + _BLOCK] & IN_TRANSACTION != 0
            if is_open.any():
                first = at + int(is_open.argmax())
                return (ledger_id, first - 1) if first else up_to, False
        if len(rows):
            up_to = ledger_id, len(rows) - 1
    return up_to, True


def are_committed(folder: Path, partition_id: int, ledger_id: int, rows: Rows, first: int) -> NDArray[np.bool_]:
    """Return which entries of a ledger (n,) are in no transaction, or in one that is committed.  Raises CorruptFile.

    rows: of the entries from `first` on.
    """
    is_in: NDArray[np.bool_] = rows["flags"] & IN_TRANSACTION != 0
    if not is_in.any():
        return ~is_in
    state = state_file.read(folder, partition_id)
    end = first + len(rows)
    is_known = np.arange(first, end) < entries_up_to(_settled(state), ledger_id, end)
    is_committed: NDArray[np.bool_] = ~is_in | (is_known & ~state.discarded.acknowledged(ledger_id, first, end))
    return is_committed


def _settled(state: State) -> Position:
    return (state.transactions.settled if state.transactions is not None else None) or NOWHERE


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed entries of a partition, as far as its files say."""

    up_to: Position                           # no entry up to there is in an open transaction; NOWHERE: there is none
    aborted: dict[int, NDArray[np.int64]]     # ledger id -> entries up to there that are in aborted transactions
    is_all: bool                              # whether `up_to` is the last confirmed entry


def committed(data_dir: Path | str, partition_id: int, *, behind: Position = NOWHERE) -> Committed:
    """Return the committed entries of a partition behind a position.  Raises CorruptFile.

    The state file says how transactions have ended.  It may be older than the ledgers: then entries of transactions
    that have ended since count as open.
    """
    folder = format.partition_folder(Path(data_dir), partition_id)
    up_to = before = NOWHERE
    within: dict[int, NDArray[np.int64]] = {}
    counts: dict[int, int] = {}
    for ledger_id, rows in _ledgers(folder, partition_id):
        if len(rows):
            counts[ledger_id], up_to = len(rows), (ledger_id, len(rows) - 1)
        if ledger_id >= behind[0]:
            since = behind[1] + 1 if ledger_id == behind[0] else 0
            entries = since + np.flatnonzero(rows["flags"][since:] & IN_TRANSACTION)
            if len(entries):
                within[ledger_id] = entries
    if not within:
        return Committed(up_to, {}, True)
    state = state_file.read(folder, partition_id)
    settled = _settled(state)
    aborted: dict[int, NDArray[np.int64]] = {}
    for ledger_id, count in counts.items():
        entries = within.get(ledger_id, np.zeros(0, np.int64))
        known = entries[entries < entries_up_to(settled, ledger_id, count)]
        is_aborted = state.discarded.acknowledged(ledger_id, 0, count)[known]
        if is_aborted.any():
            aborted[ledger_id] = known[is_aborted]
        if len(known) < len(entries):
            first = int(entries[len(known)])
            return Committed((ledger_id, first - 1) if first else before, aborted, False)
        before = ledger_id, count - 1
    return Committed(up_to, aborted, True)


def current_view(data_dir: Path | str, partition_id: int) -> int:
    """Return the number of the partition's compacted view in force, 0 if there is none."""
    return next(reversed(compacted_ledgers.numbers(format.partition_folder(Path(data_dir), partition_id))), 0)


def _of_view(view: CompactedLedgers, behind: Position, up_to: Position | None, size_max: int) -> list[Stretch]:
    pieces = []
    for part in view.manifest.parts:
        opened = view.find(part.ledger_id)
        assert opened is not None
        start, stop = np.searchsorted(opened.kept, _within(part.ledger_id, part.entries, behind, up_to)).tolist()
        pieces += [Stretch(view.manifest.partition_id, part.ledger_id, int(opened.kept[at]),
                          int(opened.kept[until - 1]) + 1, view.number)
                  for at, until in _split(opened.rows["offset"], start, stop, size_max)]
    return pieces


def _within(ledger_id: int, entries: int, behind: Position, up_to: Position | None) -> tuple[int, int]:
    """Return (first, end) of a ledger's entries behind one position and up to and including another."""
    first = behind[1] + 1 if ledger_id == behind[0] else 0 if ledger_id > behind[0] else entries
    if up_to is None or ledger_id < up_to[0]:
        return first, entries
    return first, min(entries, up_to[1] + 1) if ledger_id == up_to[0] else 0


def _split(offsets: NDArray[np.uint64], first: int, end: int, size_max: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of pieces of the index rows first .. end - 1.

    The entries of a piece have at most size_max bytes, or the piece is one entry.
    """
    while first < end:
        stop = min(end, first + ENTRIES_MAX)
        until = first + int(np.searchsorted(offsets[first:stop], offsets[first] + np.uint64(size_max), side="right"))
        until = stop if until >= stop else max(first + 1, until - 1)
        yield first, until
        first = until


def confirmed_rows(folder: Path, partition_id: int, ledger_id: int) -> Rows:
    """Return the index rows (n,) INDEX_ROW of a ledger's confirmed entries, mapped and not checked.

    Rows of zeros follow if the index is too short. Raises FileNotFoundError, and CorruptFile for a newer format
    version.
    """
    path = format.index_path(folder, ledger_id)
    head = ledger_headers.read_whole_header(path, ledger_id, partition_id, is_served=True)
    data = map_file(path, writable=False)
    rows = np.frombuffer(data, format.INDEX_ROW, format.rows_in(len(data)), min(len(data), format.HEADER_SIZE))
    if head is None:      # damaged: the broker will rebuild it from the last valid row, too
        whole = np.flatnonzero(format.is_valid(rows, ledger_id))
        return rows[:int(whole[-1]) + 1 if len(whole) else 0]
    count = int(head["entries"][0]) if head["version"][0] > 1 or head["state"][0] == format.SEALED else 0
    if count > len(rows):
        return np.concatenate((rows, np.zeros(count - len(rows), format.INDEX_ROW)))
    if head["state"][0] == format.SEALED:
        return rows[:count]
    for first in range(count, len(rows), _BLOCK):
        valid = format.is_valid(rows[first:first + _BLOCK], ledger_id, first)
        count = first + (len(valid) if valid.all() else int((~valid).argmax()))
        if not valid.all():
            break
    return rows[:count]


def whole_rows(folder: Path, partition_id: int, ledger_id: int, first: int,
               end: int) -> tuple[Rows, NDArray[np.bool_], list[str]]:
    """Return (index rows of a ledger's entries first .. end - 1, which of them are lost, lines of damage).

    Damaged rows are repaired in memory where that is possible.
    """
    everything = confirmed_rows(folder, partition_id, ledger_id)
    rows, path = everything[first:end], format.index_path(folder, ledger_id)
    pieces = [format.is_valid(rows[start:start + _BLOCK], ledger_id, first + start)
              for start in range(0, len(rows), _BLOCK)]
    valid = np.concatenate([np.empty(0, bool), *pieces])
    if valid.all():
        return rows, np.zeros(len(rows), bool), []
    ledger = Ledger(folder, partition_id, ledger_id)
    head = ledger_headers.read_whole_header(path, ledger_id, partition_id, is_served=True)
    take_bounds(ledger, everything)
    if head is not None:
        ledger.first_message, ledger.created_ms = int(head["first_message"][0]), int(head["created_ms"][0])
        ledger.size = max(ledger.size, int(head["size"][0]))
    fresh, wrong, lost, _ = ledger.repaired(everything)
    is_lost, is_damaged = np.zeros(len(everything), bool), np.zeros(len(everything), bool)
    is_lost[lost], is_damaged[wrong] = True, True
    is_lost, is_damaged = is_lost[first:end], is_damaged[first:end]
    damaged_ids = (first + np.flatnonzero(is_damaged)).tolist()
    damage = [f"{path}: the index row of entry {ledger_id}:{entry_id} is damaged; "
              f"it is {'lost' if is_gone else 'rebuilt'}"
              for entry_id, is_gone in zip(damaged_ids, is_lost[is_damaged].tolist(), strict=True)]
    return fresh[first:end], is_lost, damage
