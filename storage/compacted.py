"""Compacted views: of each key of a partition the newest message up to a horizon, under the ids that the messages have.

Whoever compacts writes `<n>.new` beside the partition's ledgers, ledger by ledger, and at last the file `view`, which says what
is in it; the one step that makes it the partition's view is the renaming to `<n>`, which is its owner's to do.  A view is never
changed.  One that has been replaced stays as long as a consumer reads from it, and goes with its owner's process.

    compacted/7/12.index    COMPACTED_ROWs of the entries of ledger 12 that are left; of a batch of which messages are gone the
    compacted/7/12.ledger   entry is rewritten (jobs/rewriting.py), with the words of its ack set behind it
    compacted/7/view        CRC32-C of the rest in hexadecimal, a space, JSON
"""
import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.sends import IS_BATCH
from geminga.storage import format
from geminga.storage.cursor import Position
from geminga.storage.errors import CorruptFile
from geminga.storage.ledger import map_file, sync, write_anew

VERSION = 1
MANIFEST, UNFINISHED = "view", ".new"
LOCK = "lock"                # of who makes one, beside the views
_WRITE_MIN = 4 << 20         # bytes that are gathered for one write


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
    if said.pop("version") > VERSION:
        raise CorruptFile(path, 0, f"format version {VERSION} or older", text[:16])
    return Manifest(**said | {"horizon": tuple(said["horizon"]), "parts": tuple(Part(**part) for part in said["parts"])})


class CompactedLedger:
    """What a view has of one ledger, up to the horizon: what dispatchers ask a Ledger for, where some entries are not there.

    Columns are asked for by entry id, as a ledger's are; entries that are not there have 0.
    """

    is_sealed = True

    def __init__(self, folder: Path, view: int, part: Part):
        self._folder, self.view, self.ledger_id = folder, view, part.ledger_id
        self.entries, self._count = part.entries, part.kept
        self.damage: list[str] = []
        self._columns: dict[str, NDArray] = {}

    def __repr__(self) -> str:
        return f"<CompactedLedger {self.ledger_id} of view {self.view}: {self._count} of {self.entries}>"

    @property
    def last_entry(self) -> int:
        return self.entries - 1

    @property
    def has_lost(self) -> bool:
        return False

    @cached_property
    def rows(self) -> NDArray:
        """COMPACTED_ROW (n,), ascending by entry id; damaged ones are left out, and told of in `damage`."""
        if not self._count:
            return np.empty(0, format.COMPACTED_ROW)
        path = format.index_path(self._folder, self.ledger_id)
        rows = read_rows(path, self._count)
        whole = format.is_valid(rows, self.ledger_id)
        if not whole.all():
            self.damage += [f"{path}: row {at} is damaged; its entry is missing from the compacted view"
                            for at in np.flatnonzero(~whole).tolist()]
            rows = rows[whole]
        return rows

    @cached_property
    def kept(self) -> NDArray[np.int64]:
        """Ids of the entries that are there, ascending."""
        return self.rows["entry_id"].astype(np.int64)

    def column(self, name: str) -> NDArray:
        """(entries,) by entry id."""
        if name not in self._columns:
            self._columns[name] = dense = np.zeros(self.entries, format.COMPACTED_ROW[name])
            dense[self.kept] = self.rows[name]
        return self._columns[name]

    @property
    def messages(self) -> NDArray[np.uint32]:
        """(entries,), with those of batches that are gone: clients count them"""
        return self.column("messages")

    def bytes_of(self, entries: range | NDArray[np.int64]) -> int:
        return int(self.column("size")[np.asarray(entries)].sum(dtype=np.int64))

    @cached_property
    def cut(self) -> dict[int, int]:
        """{entry id: a bit per message, 1 = there} of the batches of which some messages are gone."""
        rows = self.rows[self.rows["flags"] & format.IS_CUT != 0]
        if not len(rows):
            return {}
        data, found = map_file(format.ledger_path(self._folder, self.ledger_id), writable=False), {}
        for offset, size, messages, entry_id in rows[["offset", "size", "messages", "entry_id"]].tolist():
            found[entry_id] = int.from_bytes(data[offset + size:offset + size + 8 * -(-messages // 64)], "little")
        return found

    def last_message(self) -> tuple[int, int, int]:
        """(ledger, entry, batch index) of the last message that is there; there has to be one."""
        row = self.rows[-1]
        entry_id = int(row["entry_id"])
        bits = self.cut.get(entry_id, (1 << int(row["messages"])) - 1)
        return self.ledger_id, entry_id, bits.bit_length() - 1 if int(row["flags"]) & IS_BATCH else -1


class View:
    """A partition's compacted view, the `number`th."""

    def __init__(self, folder: Path, number: int, manifest: Manifest):
        self.folder, self.number, self.manifest = folder, number, manifest
        self.horizon = manifest.horizon
        self.ledgers = [CompactedLedger(folder, number, part) for part in manifest.parts]

    def __repr__(self) -> str:
        return f"<View {self.number} up to {self.horizon}>"

    def find(self, ledger_id: int) -> CompactedLedger | None:
        return next((ledger for ledger in self.ledgers if ledger.ledger_id == ledger_id), None)

    def unlink(self) -> None:
        """Its files go; mappings of them stay readable."""
        shutil.rmtree(self.folder, ignore_errors=True)


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


def unfinished(folder: Path, number: int) -> Path:
    """Where the view of that number is made."""
    return format.compacted_folder(folder) / f"{number}{UNFINISHED}"


def remove_unused(folder: Path, used: Iterable[int]) -> None:
    """Views that were replaced go, and what was begun, unless somebody is at it."""
    kept = {LOCK, *map(str, used)}
    with_views = format.compacted_folder(folder)
    unused = [path for path in with_views.iterdir() if path.name not in kept] if with_views.exists() else []
    if not unused:
        return
    with lock(with_views / LOCK) as is_ours:
        for path in unused:
            if is_ours or path.suffix != UNFINISHED:
                shutil.rmtree(path, ignore_errors=True)


# -- making one

@contextlib.contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Whether it was taken: nobody else has it then.  It ends with its process at the latest."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = True
    except OSError:
        is_ours = False
    try:
        yield is_ours
    finally:
        if fd >= 0:
            os.close(fd)


class PartWriter:
    """Writes what a view that is being made has of one ledger; entries come ascending.  Raises OSError."""

    def __init__(self, folder: Path, partition_id: int, ledger_id: int):
        self._partition_id, self._ledger_id = partition_id, ledger_id
        self._kept = self._messages = 0
        self._size = format.HEADER_SIZE
        self._pieces = [format.header(format.LEDGER_HEADER, magic=format.LEDGER_MAGIC, ledger_id=ledger_id, partition_id=partition_id)]
        self._gathered = 0               # bytes of these
        self._rows = [bytes(format.HEADER_SIZE)]
        self._fds: list[int] = []        # of ledger and index
        for path in (format.ledger_path(folder, ledger_id), format.index_path(folder, ledger_id)):
            self._fds.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640))

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
        self._rows.append(rows.tobytes())
        self._pieces += pieces
        self._gathered += int(taken.sum()) + rows.nbytes
        self._kept, self._size, self._messages = self._kept + len(rows), int(ends[-1]), self._messages + messages
        if self._gathered >= _WRITE_MIN:
            self._write()

    def _write(self) -> None:
        for fd, pieces in zip(self._fds, (self._pieces, self._rows), strict=True):
            data = memoryview(b"".join(pieces))
            while len(data):
                data = data[os.write(fd, data):]
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


def finish(folder: Path, manifest: Manifest) -> None:
    """All parts are written: the view in this folder is whole.  Raises OSError."""
    write_anew(folder / MANIFEST, manifest.encode())
    sync(folder, os.fsync)
    sync(folder.parent, os.fsync)


def adopt(folder: Path, number: int) -> None:
    """The view that was made is the partition's from now on.  Raises OSError."""
    unfinished(folder, number).rename(format.compacted_folder(folder) / str(number))
    sync(format.compacted_folder(folder), os.fsync)
