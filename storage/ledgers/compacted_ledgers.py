"""Compacted views: of each key of a partition the newest message up to a horizon, under the ids that the messages have.

Whoever compacts writes it ledger by ledger, in a folder of its own, and at last the file `view`, which says what is in it, and calls
it `<n>.new`; the one step that makes it the partition's view is the renaming to `<n>`, which is its owner's to do.  A view is never
changed.  One that has been replaced stays as long as a consumer reads from it, and goes with its owner's process.

    compacted/7/12.index    COMPACTED_ROWs of the entries of ledger 12 that are left; of a batch of which messages are gone the
    compacted/7/12.ledger   entry is rewritten (jobs/rewriting.py), with the words of its ack set behind it
    compacted/7/view        CRC32-C of the rest in hexadecimal, a space, JSON
"""
import bisect
import contextlib
import json
import mmap
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.frames import CHECKSUM_END
from geminga.proto.rows import Rows
from geminga.proto.sends import IS_BATCH, KEPT_CHECKSUM
from geminga.storage import format
from geminga.storage.disk import locks
from geminga.storage.disk.files import map_file, sync, write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers.position import Position

VERSION = 1
MANIFEST, UNFINISHED = "view", ".new"
_WRITE_MIN = 4 << 20         # bytes that are gathered for one write
_BLOCK = 8 << 10             # rows looked at together


@dataclass(frozen=True, slots=True)
class Part:
    """What a view has of one ledger."""

    ledger_id: int
    entries: int          # of the ledger, up to the horizon; those that are left are fewer
    kept: int
    messages: int         # in these
    size: int             # bytes of these


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the file `view` says."""

    partition_id: int
    horizon: Position                # the last entry that was looked at
    parts: tuple[Part, ...]          # by ledger id, ascending; of ledgers that have nothing left there is none
    created_ms: int
    report: dict = field(default_factory=dict)      # what its making was like, for people

    @property
    def messages(self) -> int:
        return sum(part.messages for part in self.parts)

    @property
    def entries(self) -> int:
        return sum(part.kept for part in self.parts)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def encode(self) -> bytes:
        text = json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":")).encode()
        return b"%08x %s" % (crc32c(text), text)


def decode(data: bytes, path: Path) -> Manifest:
    """Raises CorruptFile."""
    try:
        checksum, text = data.split(b" ", 1)
        if int(checksum, 16) != crc32c(text):
            raise ValueError
        said = json.loads(text)
    except ValueError:
        raise CorruptFile(path, 0, "a checksum and what it is of", data[:16]) from None
    if (version := said.pop("version")) > VERSION:
        raise CorruptFile(path, 0, f"format version {VERSION} or older", version)
    return Manifest(**said | {"horizon": tuple(said["horizon"]), "parts": tuple(Part(**part) for part in said["parts"])})


class CompactedLedger:
    """What a view has of one ledger, up to the horizon: what dispatchers ask a Ledger for, where some entries are not there.

    Entries are asked for by those ids that are in `kept`.  What is in memory of it is given up by `close`, and comes again when asked for.
    """

    is_sealed = True
    has_lost = False

    def __init__(self, folder: Path, view: int, part: Part, damage: list[str] | None = None):
        """damage: where what is found is told."""
        self._folder, self.view, self.ledger_id = folder, view, part.ledger_id
        self.entries, self._count = part.entries, part.kept
        self.damage: list[str] = [] if damage is None else damage
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"<CompactedLedger {self.ledger_id} of view {self.view}: {self._count} of {self.entries}>"

    @property
    def last_entry(self) -> int:
        return self.entries - 1

    @cached_property
    def rows(self) -> NDArray:
        """COMPACTED_ROW (n,), ascending by entry id; damaged ones are left out, and told of in `damage`."""
        if not self._count:
            return np.empty(0, format.COMPACTED_ROW)
        path = format.index_path(self._folder, self.ledger_id)
        try:
            rows = read_rows(path, self._count)
        except (OSError, ValueError) as error:      # the latter of an empty file
            self._found(f"{path}: {error}; entries of ledger {self.ledger_id} are missing from the compacted view")
            return np.empty(0, format.COMPACTED_ROW)
        whole = is_valid(rows, self.ledger_id) & (rows["entry_id"] < self.entries)
        for at in np.flatnonzero(~whole).tolist():
            self._found(f"{path}: row {at} is damaged; its entry is missing from the compacted view")
        if len(rows) < self._count:
            self._found(f"{path}: it ends before row {len(rows)} of {self._count}; entries are missing from the compacted view")
        return rows if whole.all() else rows[whole]

    @cached_property
    def kept(self) -> NDArray[np.int64]:
        """Ids of the entries that are there, ascending."""
        return self.rows["entry_id"].astype(np.int64)

    @cached_property
    def _data(self) -> mmap.mmap | bytes:
        path = format.ledger_path(self._folder, self.ledger_id)
        try:
            return map_file(path, writable=False)
        except (OSError, ValueError) as error:
            self._found(f"{path}: {error}; its entries are missing from the compacted view")
            return b""

    def _found(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.damage.append(text)

    def close(self) -> None:
        for name in ("rows", "kept", "_data"):
            self.__dict__.pop(name, None)

    def kept_of(self, first: int, end: int) -> NDArray[np.int64]:
        """Those of the entries first .. end - 1."""
        return self.kept[slice(*np.searchsorted(self.kept, (first, end)).tolist())]

    def rows_of(self, entries: range | NDArray[np.int64]) -> Rows:
        return self.rows[np.searchsorted(self.kept, entries)]

    def column(self, name: str) -> NDArray[Any]:
        """(entries,) by entry id; entries that are not there have 0."""
        dense = np.zeros(self.entries, format.COMPACTED_ROW[name])
        dense[self.kept] = self.rows[name]
        return dense

    def bytes_of(self, entries: range | NDArray[np.int64]) -> int:
        return int(self.rows_of(entries)["size"].sum(dtype=np.int64))

    def cut_of(self, entries: NDArray[np.int64]) -> list[tuple[int, int]]:
        """[(which of the entries, a bit per message, 1 = there)] of the batches of which some messages are gone."""
        rows = self.rows_of(entries)
        at = np.flatnonzero(rows["flags"] & format.IS_CUT)
        ends = (rows["offset"] + rows["size"])[at].tolist()
        return [(n, int.from_bytes(self._data[end:end + 8 * -(-messages // 64)], "little"))
                for n, end, messages in zip(at.tolist(), ends, rows["messages"][at].tolist(), strict=True)]

    @property
    def cut(self) -> dict[int, int]:
        """{entry id: bits} of all of those."""
        return {int(self.kept[at]): bits for at, bits in self.cut_of(self.kept)}

    def bits_of(self, entry_id: int) -> int:
        """A bit per message of the entry, 1 = there; 0 when it is not there itself."""
        entries = self.kept_of(entry_id, entry_id + 1)
        if not len(entries):
            return 0
        return next((bits for _, bits in self.cut_of(entries)), (1 << int(self.rows_of(entries)["messages"][0])) - 1)

    def last_message(self) -> tuple[int, int, int]:
        """(ledger, entry, batch index) of the last message that is there; there has to be one."""
        entry_id = int(self.kept[-1])
        is_batch = int(self.rows[-1]["flags"]) & IS_BATCH
        return self.ledger_id, entry_id, self.bits_of(entry_id).bit_length() - 1 if is_batch else -1


class View:
    """A partition's compacted view, the `number`th."""

    def __init__(self, folder: Path, number: int, manifest: Manifest):
        self.folder, self.number, self.manifest = folder, number, manifest
        self.horizon = manifest.horizon
        self.damage: list[str] = []
        self.ledgers = [CompactedLedger(folder, number, part, self.damage) for part in manifest.parts]

    @cached_property
    def last_message(self) -> tuple[int, int, int]:
        """(ledger, entry, batch index) of the last message that is there; -1 each when there is none."""
        return next((ledger.last_message() for ledger in reversed(self.ledgers) if len(ledger.kept)), (-1, -1, -1))

    def __repr__(self) -> str:
        return f"<View {self.number} up to {self.horizon}>"

    def find(self, ledger_id: int) -> CompactedLedger | None:
        at = bisect.bisect_left(self.ledgers, ledger_id, key=_ledger_id)
        return self.ledgers[at] if at < len(self.ledgers) and self.ledgers[at].ledger_id == ledger_id else None

    def cover(self, ledgers: Iterable[tuple[int, int]]) -> None:
        """Of these ledgers, (id, entries), it has something, be it that nothing is left of them up to the horizon, which lies in one."""
        entries = {self.horizon[0]: self.horizon[1] + 1} | {
            ledger_id: count for ledger_id, count in ledgers if ledger_id < self.horizon[0]}
        for ledger_id in entries.keys() - {found.ledger_id for found in self.ledgers}:
            self.ledgers.append(CompactedLedger(self.folder, self.number, Part(ledger_id, entries[ledger_id], 0, 0, 0), self.damage))
        self.ledgers.sort(key=_ledger_id)

    def ledgers_from(self, ledger_id: int) -> list[CompactedLedger]:
        """The ledger with that id, or the next there is, and all behind it up to the horizon."""
        return self.ledgers[bisect.bisect_left(self.ledgers, ledger_id, key=_ledger_id):]

    def count_before(self, ledger_id: int, entries: NDArray[np.int64]) -> int:
        """How many of these entries (n,) of a ledger, ascending, are not behind the horizon."""
        if ledger_id != self.horizon[0]:
            return len(entries) if ledger_id < self.horizon[0] else 0
        return int(np.searchsorted(entries, self.horizon[1], side="right"))

    def before(self, position: Position) -> Position:
        """The mark-delete position of a cursor whose next entry is the one at position, or the first behind it up to the horizon."""
        found = next(iter(self.ledgers_from(position[0])), None)
        if found is None:
            return self.horizon
        entry_id = position[1] if found.ledger_id == position[0] else 0
        return found.ledger_id, min(max(entry_id - 1, -1), found.last_entry)

    def missing(self) -> str:
        """What of its files is not there as it should be; "" when all is."""
        for part in self.manifest.parts:
            for path, size in ((format.index_path(self.folder, part.ledger_id), part.kept * format.COMPACTED_ROW.itemsize),
                               (format.ledger_path(self.folder, part.ledger_id), part.size)):
                there = path.stat().st_size if path.exists() else 0
                if there < format.HEADER_SIZE + size:
                    return f"{path}: at byte {there}: expected {format.HEADER_SIZE + size} bytes, found the end of the file"
        return ""

    def unlink(self) -> None:
        """Its files go; mappings of them stay readable."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _ledger_id(found: CompactedLedger) -> int:
    return found.ledger_id


def is_valid(rows: NDArray, ledger_id: int) -> NDArray[np.bool_]:
    """Which rows (n,) of a ledger's index, from the first on, are in their place and whole."""
    if len(rows) <= _BLOCK:
        return format.is_valid(rows, ledger_id)
    return np.concatenate([format.is_valid(rows[at:at + _BLOCK], ledger_id, at) for at in range(0, len(rows), _BLOCK)])


def read_rows(path: Path, count: int) -> NDArray:
    """COMPACTED_ROW (n,) of an index, mapped: count, or as many as there are."""
    data = map_file(path, writable=False)
    there = (len(data) - format.HEADER_SIZE) // format.COMPACTED_ROW.itemsize
    return np.frombuffer(data, format.COMPACTED_ROW, max(0, min(count, there)), format.HEADER_SIZE)


def numbers(folder: Path) -> list[int]:
    """Of the views of the partition that has this folder, ascending; the last one holds."""
    try:
        return sorted(int(path.name) for path in format.compacted_folder(folder).iterdir() if path.name.isdigit())
    except FileNotFoundError:
        return []


def open_view(folder: Path, number: int = 0) -> View | None:
    """The view of the partition that has this folder, or of its views that one.  Raises CorruptFile, FileNotFoundError."""
    found = number or next(reversed(numbers(folder)), 0)
    if not found:
        return None
    path = format.compacted_folder(folder) / str(found)
    return View(path, found, decode((path / MANIFEST).read_bytes(), path / MANIFEST))


def unfinished(folder: Path, number: int | str) -> Path:
    """Where the view of that number waits to be adopted."""
    return format.compacted_folder(folder) / f"{number}{UNFINISHED}"


def remove_unused(folder: Path, used: Iterable[int]) -> None:
    """Views that were replaced go, and what was begun, unless somebody is at it."""
    kept = {locks.LOCK, *map(str, used)}
    with_views = format.compacted_folder(folder)
    unused = [path for path in with_views.iterdir() if path.name not in kept] if with_views.exists() else []
    if not unused:
        return
    with contextlib.suppress(OSError), locks.lock(with_views / locks.LOCK) as is_ours:
        for path in unused:
            if is_ours or path.suffix != UNFINISHED:
                shutil.rmtree(path, ignore_errors=True)


# -- making one

class PartWriter:
    """Writes what a view that is being made has of one ledger; entries come ascending.

    What is written has the checksums that its rows say.  Raises CorruptFile: its space was given back meanwhile; OSError.
    """

    def __init__(self, folder: Path, partition_id: int, ledger_id: int):
        self._partition_id, self._ledger_id = partition_id, ledger_id
        self._kept = self._messages = 0
        self._size = format.HEADER_SIZE
        self._pieces = [format.header(format.LEDGER_HEADER, magic=format.LEDGER_MAGIC, ledger_id=ledger_id, partition_id=partition_id)]
        self._gathered = self._written = 0               # bytes of these; of the file
        self._rows: list[NDArray] = []
        self._fds: list[int] = []        # of ledger and index
        for path in (format.ledger_path(folder, ledger_id), format.index_path(folder, ledger_id)):
            self._fds.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        self._path = format.ledger_path(folder, ledger_id)
        _write_all(self._fds[1], bytes(format.HEADER_SIZE))

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_) -> None:
        for fd in self._fds:
            os.close(fd)

    def add(self, rows: NDArray, behind: NDArray[np.int64], pieces: list, messages: int) -> None:
        """COMPACTED_ROWs (n,), of which offset and checksum are to be made; how many bytes lie behind each entry; all of these bytes,
        and how many messages there are."""
        if not len(rows):
            return
        taken = rows["size"].astype(np.int64) + behind
        ends = self._size + np.cumsum(taken)
        rows["offset"], rows["checksum"] = ends - taken, 0
        rows["checksum"] = format.row_checksums(rows, self._ledger_id, np.arange(self._kept, self._kept + len(rows), dtype=np.uint64))
        self._rows.append(rows)
        self._pieces += pieces
        self._gathered += int(taken.sum()) + rows.nbytes
        self._kept, self._size, self._messages = self._kept + len(rows), int(ends[-1]), self._messages + messages
        if self._gathered >= _WRITE_MIN:
            self._write()

    def _write(self) -> None:
        data = memoryview(b"".join(self._pieces))
        for rows in self._rows:
            checked = rows[rows["flags"] & KEPT_CHECKSUM != 0]
            begins = checked["offset"].astype(np.int64) - self._written
            ends = (begins + checked["size"]).tolist()
            for begin, end, claimed in zip((begins + CHECKSUM_END).tolist(), ends, checked["crc32c"].tolist(), strict=True):
                if crc32c(data[begin:end]) != claimed:
                    raise CorruptFile(self._path, self._written + begin, f"an entry with checksum {claimed:08x}", "another")
            _write_all(self._fds[1], rows)
        _write_all(self._fds[0], data)
        self._written += len(data)
        self._pieces, self._rows, self._gathered = [], [], 0

    def finish(self, entries: int) -> Part:
        """Synced; of how many entries of the ledger these are what is left."""
        self._write()
        os.pwrite(self._fds[1], format.checked_header(
            format.INDEX_HEADER, magic=format.INDEX_MAGIC, state=format.SEALED, ledger_id=self._ledger_id, partition_id=self._partition_id,
            entries=self._kept, size=self._size), 0)
        for fd in self._fds:
            os.fsync(fd)
        return Part(self._ledger_id, entries, self._kept, self._messages, self._size - format.HEADER_SIZE)


def _write_all(fd: int, data) -> None:
    data = memoryview(data).cast("B")
    while len(data):
        data = data[os.write(fd, data):]


def finish(folder: Path, manifest: Manifest) -> None:
    """All parts are written: the view in this folder is whole.  Raises OSError."""
    write_anew(folder / MANIFEST, manifest.encode())
    sync(folder, os.fsync)
    sync(folder.parent, os.fsync)


def make_empty(folder: Path, number: int, partition_id: int, horizon: Position, now_ms: int) -> None:
    """The view of that number, with nothing in it: all is gone up to the horizon.  Raises OSError."""
    made = format.compacted_folder(folder) / f"{number}.empty"
    made.mkdir(parents=True, exist_ok=True)
    finish(made, Manifest(partition_id, horizon, (), now_ms))
    made.rename(made.with_name(str(number)))
    sync(made.parent, os.fsync)


def adopt(folder: Path, number: int) -> None:
    """The view that was made is the partition's from now on.  Raises OSError."""
    unfinished(folder, number).rename(format.compacted_folder(folder) / str(number))
    sync(format.compacted_folder(folder), os.fsync)
