"""A ledger: entries and their index in two files, written by one process and mapped by any number of readers.

The owner writes with pwritev after the journal holds the same bytes, and reads the index through its own mapping.  Workers map
both files.  Writing through a mapping was measured and costs 2.6 us of CPU for each new page against 1.0 for pwritev: on ext4 a
page costs a fault, a zeroed page and a block look-up, where one call writes large folios.

Files are allocated ahead, so neither a write nor a mapped page meets a full disk.  Files are never shortened while readers may
have them mapped; a file that grows is mapped again.
"""
import contextlib
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.disk import syscalls
from geminga.storage.disk.files import IOV_MAX, allocate, map_file, open_max, write_all
from geminga.storage.errors import CorruptFile, StorageFull, text_of
from geminga.storage.ledgers import index_repair, ledger_headers

if TYPE_CHECKING:
    from collections.abc import Callable

_EXTENT_MIN = 64 << 10          # bytes of a ledger's file at first; doubled whenever it is full
_INDEX_EXTENT_MIN = 16 << 10
_PAGE = 4096
_FILLED_MAX = 64 << 20          # bytes of indexes with holes that a process keeps filled in
_filled: weakref.WeakKeyDictionary["Ledger", int] = weakref.WeakKeyDictionary()      # bytes of each, filled in longest ago first
_opened: weakref.WeakKeyDictionary["Ledger", None] = weakref.WeakKeyDictionary()     # ledgers with descriptors, longest open first


class Ledger:
    """One ledger as its owner sees it.

    Invariant: rows 0 .. entries - 1 of the index are written, and their bytes lie below `size` in the ledger's file.

    Rows that another process wrote are checked when they are first needed.  A damaged row is made anew from the rows and entries
    around it; entries that this cannot bring back are in `lost`, and `damage` says what was damaged.
    """

    view = 0      # compacted ledgers (compacted_ledgers.py) have their view's number

    def __init__(self, folder: Path, partition_id: int, ledger_id: int):
        self.folder, self.partition_id, self.ledger_id = folder, partition_id, ledger_id
        self.entries = 0
        self.size = format.HEADER_SIZE
        self.first_message = 0
        self.created_ms = 0
        self.is_sealed = False
        self.was_sealed = False                          # blocks behind its last entry may have been given back
        self.is_unlinked = False
        self.is_released = False                         # another process may have opened the ledger: these fields are stale
        self.is_header_lost = False                      # first_message is not known; the partition computes it
        self.damage: list[str] = []
        self.lost: list[int] = []                        # entries that are lost and not yet skipped by the subscriptions
        self.is_discarded: Callable[[int, int], NDArray[np.bool_]] | None = None      # (first, end) -> needed by no subscription
        self.has_holes = False                           # the index's file has rows of zeros, whose blocks were given back
        self.is_index_new = True                         # more blocks of its index may be given back than were
        self._unchecked = 0                              # rows, from the first on, that another process wrote
        self._index: NDArray | None = None
        self._columns: dict[str, NDArray] = {}
        self._fds: tuple[int, int] | None = None         # of ledger and index, while it is written
        self._allocated = (0, 0)                         # bytes of each

    def __repr__(self) -> str:
        return f"<Ledger {self.ledger_id} entries={self.entries} size={self.size}{' sealed' if self.is_sealed else ''}>"

    @property
    def ledger_path(self) -> Path:
        return format.ledger_path(self.folder, self.ledger_id)

    @property
    def index_path(self) -> Path:
        return format.index_path(self.folder, self.ledger_id)

    @property
    def index(self) -> NDArray:
        """INDEX_ROW of all that was allocated when it was mapped; rows from `entries` on are not written yet."""
        if self._index is None or len(self._index) < self.entries:
            _keep_open(self)
            self._map(private=False)
            if self._unchecked:
                self._check_rows()
            if self.has_holes:
                self._fill_holes()
        return self._index

    def _map(self, *, private: bool) -> None:
        mapped = map_file(self.index_path, writable=False, private=private)
        whole_rows = (len(mapped) - format.HEADER_SIZE) // format.INDEX_ROW.itemsize
        self._index = np.frombuffer(mapped, format.INDEX_ROW, whole_rows, format.HEADER_SIZE)
        self._columns = {}

    def _fill_holes(self) -> None:
        """Fill in rows whose blocks were given back, in memory.  Beyond a bound, ledgers filled in longest ago are closed."""
        self._map(private=True)
        filled = index_repair.fill_holes(self._index[:self.entries])
        self._index.flags.writeable = False
        _filled.pop(self, None)
        _filled[self] = filled * format.INDEX_ROW.itemsize
        while len(_filled) > 1 and sum(_filled.values()) > _FILLED_MAX:
            next(iter(_filled)).close()

    @property
    def has_lost(self) -> bool:
        """Whether entries are lost; rows that another process wrote are checked first."""
        return self.index is not None and bool(self.lost)

    def column(self, name: str) -> NDArray[Any]:
        """A column of `index`.  Cached: making the view costs as much as reading a few rows."""
        index = self.index
        if name not in self._columns:
            self._columns[name] = index[name]
        return self._columns[name]

    @property
    def messages(self) -> NDArray[np.uint32]:
        return self.column("messages")

    @property
    def deliver_at(self) -> NDArray[np.int64]:
        """Due times in ms since the epoch; 0: not delayed."""
        return self.column("deliver_at")

    def messages_in(self, first: int, end: int) -> int:
        """The number of messages in entries first .. end - 1."""
        if first >= end:
            return 0
        before = self.column("message_index")
        return int(before.item(end - 1)) + int(self.messages.item(end - 1)) - int(before.item(first))

    def bytes_of(self, entries: range | NDArray[np.int64]) -> int:
        """The total size of these entries in bytes."""
        sizes = self.column("size")
        if not isinstance(entries, range):
            return int(sizes[entries].sum(dtype=np.int64))
        offsets, last = self.column("offset"), entries[-1]      # entries of a run are adjacent
        return offsets.item(last) + sizes.item(last) - offsets.item(entries.start)

    @property
    def last_entry(self) -> int:
        return self.entries - 1

    @property
    def allocated(self) -> int:
        """Allocated bytes of the ledger's file, the larger of the two."""
        self._open()
        return self._allocated[0]

    @property
    def is_shared(self) -> bool:
        """Whether a backup shares the ledger's file by a hard link: its blocks must not be given back then."""
        try:
            return self.ledger_path.stat().st_nlink > 1
        except FileNotFoundError:
            return False

    @property
    def descriptor(self) -> int:
        """A file descriptor of the ledger's file, for writing."""
        return self._open()[0]

    def _open(self) -> tuple[int, int]:
        if self._fds is None:
            _keep_open(self)
            fd = os.open(self.ledger_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._fds = fd, os.open(self.index_path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                os.close(fd)
                raise
            is_whole = not self.was_sealed
            self._allocated = tuple(os.fstat(fd).st_size for fd in self._fds) if is_whole else (self.size, self._index_size(0))
        return self._fds

    def close(self) -> None:
        """Give up descriptors and mapping.  Methods that need them open them again."""
        if self._fds is not None:
            for fd in self._fds:
                os.close(fd)
        self._fds = self._index = None
        self._columns = {}
        _opened.pop(self, None)
        _filled.pop(self, None)

    def __del__(self) -> None:
        self.close()

    def has_room(self, count: int, size: int) -> bool:
        """Whether the files are long enough for `count` more entries of `size` bytes together.  Raises StorageFull."""
        try:
            self._open()
        except OSError as error:
            raise StorageFull(text_of(error)) from error
        data, index = self._allocated
        return self.size + size <= data and self._index_size(count) <= index

    def reserve(self, count: int, size: int, ahead: int = 1 << 62) -> None:
        """Make room for `count` more entries of `size` bytes together, and allocate at most `ahead` bytes beyond that.

        Raises StorageFull.
        """
        if self.has_room(count, size):
            return
        data, index = self._allocated
        ahead -= ahead % _PAGE      # whole rows: an index that ends within a row looks damaged to workers
        if self.size + size > data:
            data = max(min(2 * data, data + ahead), _round_up(self.size + size))
            allocate(self.ledger_path, data, self._allocated[0])
        if (needed := self._index_size(count)) > index:
            index = max(min(2 * index, index + ahead), _round_up(needed))
            allocate(self.index_path, index, self._allocated[1])
        self._allocated = data, index

    def _index_size(self, more: int) -> int:
        return format.HEADER_SIZE + (self.entries + more) * format.INDEX_ROW.itemsize

    def write(self, pieces: list, offset: int) -> None:
        """Write the pieces one behind the other at this offset of the ledger's file, where room was reserved."""
        fd = self._open()[0]
        for start in range(0, len(pieces), IOV_MAX):
            some = pieces[start:start + IOV_MAX]
            size = sum(map(len, some))
            if os.pwritev(fd, some, offset) != size:     # cut short by a signal, which is rare: write all of it again
                write_all(fd, b"".join(some), offset)
            offset += size

    def append(self, rows: NDArray | bytes, size: int) -> None:
        """Append INDEX_ROWs whose entries are written already; `size` is the offset behind those."""
        raw, width = memoryview(rows).cast("B"), format.INDEX_ROW.itemsize
        write_all(self._open()[1], raw, format.HEADER_SIZE + self.entries * width)
        self.entries += len(raw) // width
        self.size = size

    def seal(self) -> None:
        """End the ledger: write its header, and give back blocks that were allocated ahead.  Raises OSError."""
        self.is_sealed = True
        self.write_header()
        index_end = self._index_size(0)
        for fd, path, end, allocated in zip(self._open(), self.files(), (self.size, index_end), self._allocated, strict=True):
            if (begin := _round_up(end)) < allocated:
                with contextlib.suppress(OSError):      # some file systems cannot punch holes, or need room for that
                    syscalls.punch(fd, begin, allocated, path)
        self.close()

    def give_back_rows(self, holes: list[tuple[int, int]]) -> None:
        """Give back the blocks of byte ranges (begin, end), ascending, of the index; they read as zeros then.

        The file is replaced, so mappings of the old file keep all rows.  Raises OSError.
        """
        fresh, size, at = self.index_path.with_suffix(".new"), self._index_size(0), 0
        try:
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(self.index_path, "rb") as old, open(fd, "wb") as new:
                for begin, end in [*holes, (size, size)]:
                    old.seek(at)
                    new.seek(at)
                    new.write(old.read(begin - at))
                    at = end
                new.flush()
                os.fsync(fd)
            fresh.replace(self.index_path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        self.has_holes = True
        self.close()

    def go_on(self) -> None:
        """Append to this ledger again, sealed or not: it is the last one of its partition."""
        if self.is_sealed:
            self.is_sealed, self.was_sealed = False, True
            self.close()

    @property
    def unused(self) -> int:
        """Bytes of the ledger's file that were allocated ahead.  Does not open the file."""
        if self._fds is not None or self.was_sealed:
            return self.allocated - self.size
        try:
            return os.stat(self.ledger_path).st_size - self.size
        except FileNotFoundError:      # missing_files.py reports that
            return 0

    def write_header(self) -> None:
        """Write the index's header with the present number of entries.  Raises OSError."""
        write_all(self._open()[1], self.header(), 0)

    def header(self) -> bytes:
        """The index's header as of now."""
        return ledger_headers.index_header(
            self.ledger_id, self.partition_id, first_message=self.first_message, created_ms=self.created_ms, entries=self.entries,
            size=self.size, is_sealed=self.is_sealed)

    def write_ledger_header(self) -> None:
        """Write the header of the ledger's file.  Raises OSError."""
        self.write([ledger_headers.ledger_header(self.ledger_id, self.partition_id)], 0)

    def check_lengths(self) -> None:
        """Raise CorruptFile if the files are too short for the entries."""
        if not self.entries:
            return
        for path, needed in ((self.ledger_path, self.size),
                             (self.index_path, format.HEADER_SIZE + self.entries * format.INDEX_ROW.itemsize)):
            if (size := path.stat().st_size) < needed:
                raise CorruptFile(path, size, f"{needed} bytes", "the end of the file")

    def checkpoint(self) -> tuple[list[Path], list]:
        """Write the header; return (files to be synced, snapshots to be written)."""
        if self.is_unlinked:
            return [], []
        if not self.is_sealed and not self.is_released:
            self.write_header()
        return self.files(), []

    def files(self) -> list[Path]:
        return [self.ledger_path, self.index_path]

    def inodes(self) -> tuple[int, ...]:
        """Inodes of `files()` while they are open; otherwise ()."""
        return tuple(os.fstat(fd).st_ino for fd in self._fds or ())

    @property
    def next_message(self) -> int:
        """The number of messages of the partition up to the end of this ledger."""
        if not self.entries:
            return self.first_message
        return self.first_message + self.messages_in(0, self.entries)

    def repaired(self, rows: NDArray) -> index_repair.Repaired:
        """INDEX_ROWs (n,) of this ledger as they should be; see index_repair.py.  Raises OSError."""
        return index_repair.repair(rows, index_repair.Source(
            self.ledger_path, self.ledger_id, self.size, self.first_message, self.created_ms, self.is_discarded))

    def _check_rows(self) -> None:
        """Check rows that another process wrote, and write damaged ones anew."""
        count, self._unchecked = min(self._unchecked, self.entries), 0
        rows, wrong, lost, has_holes = self.repaired(self._index[:count])
        self.has_holes |= has_holes
        if not len(wrong):
            return
        for entry_id in wrong.tolist():
            _write_index(self, format.HEADER_SIZE + entry_id * format.INDEX_ROW.itemsize, rows[entry_id].tobytes())
        self.damage.append(f"{self.index_path}: damaged rows were made anew, of {len(wrong)} entries from {wrong[0]} on")
        if lost:
            self.lost += lost
            self.damage.append(f"{self.ledger_path}: {len(lost)} entries from {lost[0]} on are lost with their index")

    def unlink(self) -> None:
        """Remove the files; mappings of them stay readable."""
        self.is_unlinked = True
        self.close()
        for path in (self.ledger_path, self.index_path):
            path.unlink(missing_ok=True)


def _keep_open(ledger: Ledger) -> None:
    """Note that a ledger is opened now.  Beyond the bound, ledgers open for longest are closed."""
    _opened[ledger] = None
    while len(_opened) > open_max():
        next(iter(_opened)).close()


def _write_index(ledger: Ledger, offset: int, data: bytes) -> None:
    """Overwrite bytes of the index; its length stays."""
    fd = os.open(ledger.index_path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def read_rows(index_path: Path) -> NDArray:
    """INDEX_ROW (n,): all that an index's file has room for, unchecked."""
    raw = index_path.read_bytes()
    return np.frombuffer(raw, format.INDEX_ROW, max(0, len(raw) - format.HEADER_SIZE) // format.INDEX_ROW.itemsize,
                         min(len(raw), format.HEADER_SIZE))


def _round_up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def create(folder: Path, partition_id: int, ledger_id: int, *, first_message: int, created_ms: int, extent: int = 0) -> Ledger:
    """Create an empty ledger.  Files that exist already are kept: a journal is being replayed.  Raises StorageFull."""
    ledger = Ledger(folder, partition_id, ledger_id)
    ledger.first_message, ledger.created_ms = first_message, created_ms
    is_new = not ledger.ledger_path.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        allocate(ledger.ledger_path, max(_EXTENT_MIN, extent))
        allocate(ledger.index_path, _INDEX_EXTENT_MIN)
        ledger.write_ledger_header()
        ledger.write_header()
    except (OSError, StorageFull) as error:
        if is_new:
            with contextlib.suppress(OSError):
                ledger.unlink()
        raise StorageFull(text_of(error) if isinstance(error, OSError) else str(error)) from error
    return ledger


def take_bounds(ledger: Ledger, rows: NDArray) -> None:
    """Set entries, size, first_message and created_ms from INDEX_ROWs (n,), as the header is damaged."""
    bounds = index_repair.bounds_of(rows, ledger.ledger_id)
    ledger.is_header_lost = bounds is None
    ledger.entries, ledger.size = (bounds.entries, bounds.size) if bounds else (0, format.HEADER_SIZE)
    if bounds:
        ledger.first_message, ledger.created_ms = bounds.first_message, bounds.created_ms


def take_end(ledger: Ledger) -> None:
    """Set entries and size from the valid rows: headers of version 1 lack them while a ledger is open."""
    rows = read_rows(ledger.index_path)
    ledger.entries = format.valid_rows(rows, ledger.ledger_id)
    if ledger.entries:
        last = rows[ledger.entries - 1]
        ledger.size = int(last["offset"]) + int(last["size"])


def open_ledger(folder: Path, partition_id: int, ledger_id: int) -> Ledger:
    """Open a ledger that lies on disk, as long as its header says.  Raises CorruptFile for a newer version.

    After a power cut the files may be shorter than that; the journal has the rest.
    """
    ledger = Ledger(folder, partition_id, ledger_id)
    head = ledger_headers.read_index_header(ledger.index_path)
    if head is None:
        raise CorruptFile(ledger.index_path, 0, f"{format.HEADER_SIZE} bytes of header", ledger.index_path.stat().st_size)
    if head["version"][0] > format.VERSION and head["magic"][0] == format.INDEX_MAGIC and format.is_whole(head):
        raise CorruptFile(ledger.index_path, 8, f"format version {format.VERSION} or older", int(head["version"][0]))
    ledger.entries = (ledger.index_path.stat().st_size - format.HEADER_SIZE) // format.INDEX_ROW.itemsize
    if not ledger_headers.is_header_of(head, ledger_id, partition_id) or (head["version"][0] != 1 and not format.is_whole(head)):
        take_bounds(ledger, read_rows(ledger.index_path))
        ledger.damage.append(f"{ledger.index_path}: its header is damaged and was made anew, with {ledger.entries} entries")
        _write_index(ledger, 0, ledger.header())
    else:
        ledger.first_message, ledger.created_ms = int(head["first_message"][0]), int(head["created_ms"][0])
        ledger.is_sealed = bool(head["state"][0] == format.SEALED)
        if ledger.is_sealed or head["version"][0] > 1:
            ledger.entries, ledger.size = int(head["entries"][0]), int(head["size"][0])
        else:
            take_end(ledger)
    if not ledger_headers.has_ledger_header(ledger.ledger_path, ledger_id, partition_id):
        ledger.damage.append(f"{ledger.ledger_path}: its header is damaged and was written anew")
        ledger.write_ledger_header()
    ledger._unchecked = ledger.entries
    return ledger
