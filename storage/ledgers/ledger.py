"""A ledger: entries and their index in two files, written by one process and mapped by any number of readers.

The owner writes with pwritev after the journal holds the same bytes, and reads the index through its own mapping.
Workers map both files.  Writing through a mapping was measured and costs 2.6 us of CPU for each new page against 1.0
for pwritev: on ext4 a page costs a fault, a zeroed page and a block look-up, where one call writes large folios.

Files are allocated ahead, so neither a write nor a mapped page meets a full disk.  Files are never shortened while
readers may have them mapped; a file that grows is mapped again.
"""
import contextlib
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from geminga.proto.rows import Rows
from geminga.storage import format
from geminga.storage.disk import syscalls
from geminga.storage.disk.files import IOV_MAX, allocate, map_file, open_max, write_all
from geminga.storage.errors import StorageFull, text_of
from geminga.storage.ledgers import index_repair, ledger_headers
from geminga.storage.ledgers.checkpoints import FileSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable

_PAGE, _ROW = 4096, format.INDEX_ROW.itemsize
_OPEN_MAX = 8_192               # ledgers that an owner keeps open
_DESCRIPTORS, _PART = 3, 0.75   # of an open ledger: two files and a mapping; of all descriptors, for open ledgers
_FILLED_MAX = 64 << 20          # bytes of indexes with holes that a process keeps filled in
# Bytes of each filled-in index, the one filled in longest ago first.
_filled: weakref.WeakKeyDictionary["Ledger", int] = weakref.WeakKeyDictionary()
# Ledgers with open descriptors, the one opened longest ago first.
_opened: weakref.WeakKeyDictionary["Ledger", None] = weakref.WeakKeyDictionary()


class Ledger:
    """One ledger as its owner sees it: two files, their descriptors, and a mapping of the index.

    Invariant: rows 0 .. entries - 1 of the index are written, and their bytes lie below `size` in the ledger's file.

    Rows that another process wrote are checked when they are first needed.  A damaged row is rebuilt from the rows and
    entries around it.  Entries whose rows cannot be rebuilt are in `lost`, and `damage` has a line for each damage.
    """

    view = 0      # compacted ledgers (compacted_ledgers.py) have their view's number

    def __init__(self, folder: Path, partition_id: int, ledger_id: int):
        self.folder, self.partition_id, self.ledger_id = folder, partition_id, ledger_id
        self.entries = 0
        self.size = format.HEADER_SIZE
        self.first_message = 0
        self.created_ms = 0
        self.is_sealed = False
        self.was_sealed = False                          # blocks behind its last entry may have been freed
        self.is_unlinked = False
        self.is_released = False                         # another process may have opened it, so fields may be stale
        self.is_header_lost = False                      # first_message is not known; the partition computes it
        self.damage: list[str] = []
        self.lost: list[int] = []                        # lost entries that subscriptions have not skipped yet
        # (first, end) -> which of these entries no subscription needs
        self.is_discarded: Callable[[int, int], NDArray[np.bool_]] | None = None
        self.has_holes = False                           # rows of zeros in the index's file: blocks were freed
        self.is_index_new = True                         # more blocks of the index may be freed
        self.unchecked = 0                              # rows, from the first on, that another process wrote
        self._index: Rows | None = None
        self._columns: dict[str, NDArray[Any]] = {}
        self._fds: tuple[int, int] | None = None         # of ledger and index, while it is written
        self._allocated = (0, 0)                         # bytes of each

    def __repr__(self) -> str:
        state = "sealed" if self.is_sealed else "open"
        return f"<Ledger {self.ledger_id} {state} entries={self.entries} size={self.size} lost={len(self.lost)}>"

    def check(self) -> None:
        """Assert the invariants of a ledger between passes.  Rows are checked only if the index is mapped."""
        assert self.entries >= 0 and self.size >= format.HEADER_SIZE + self.entries, self
        assert not (self.is_sealed and self._fds), self
        if self._fds is not None:
            data, index = self._allocated
            assert self.size <= data and self.index_size <= index, (self, self._allocated)
        if not self.entries or not self.is_mapped:
            return
        offsets, sizes = self.column("offset")[:self.entries].astype(np.int64), self.column("size")[:self.entries]
        ends = offsets + sizes
        assert offsets[0] >= format.HEADER_SIZE and ends[-1] <= self.size, (self, offsets[0], ends[-1])
        assert (offsets[1:] >= ends[:-1]).all(), self
        before, messages = self.column("message_index")[:self.entries], self.messages[:self.entries]
        assert before[0] >= self.first_message and (before[1:] == before[:-1] + messages[:-1]).all(), self

    @property
    def ledger_path(self) -> Path:
        return format.ledger_path(self.folder, self.ledger_id)

    @property
    def index_path(self) -> Path:
        return format.index_path(self.folder, self.ledger_id)

    # -- reading

    @property
    def index(self) -> Rows:
        """INDEX_ROWs (n,) of the mapped index, which are unwritten from `entries` on.

        n is the number of rows allocated when the file was mapped.  Raises OSError.
        """
        if self._index is None or len(self._index) < self.entries:
            _keep_open(self)
            mapped = self._map(private=False)
            if self.unchecked:
                self._check_rows(mapped)
            if self.has_holes:
                self._fill_holes()
        assert self._index is not None
        return self._index

    @property
    def is_mapped(self) -> bool:
        """Whether the index is in memory, and all rows that another process wrote were checked."""
        return self._index is not None and not self.unchecked and len(self._index) >= self.entries

    def use_index(self, rows: Rows) -> None:
        """Use INDEX_ROWs (n,) that were repaired in memory instead of those in the index file."""
        self._index, self._columns = rows, {}

    def _map(self, *, private: bool) -> Rows:
        mapped = map_file(self.index_path, writable=False, private=private)
        count = format.rows_in(len(mapped))
        self._index, self._columns = np.frombuffer(mapped, format.INDEX_ROW, count, format.HEADER_SIZE), {}
        return self._index

    def _fill_holes(self) -> None:
        """Fill in, in memory, rows whose disk blocks were freed.

        If the filled-in indexes of all ledgers need too much memory, ledgers that were filled in longest ago are
        closed.
        """
        mapped = self._map(private=True)
        filled = index_repair.fill_holes(mapped[:self.entries])
        mapped.flags.writeable = False
        _filled.pop(self, None)
        _filled[self] = filled * format.INDEX_ROW.itemsize
        while len(_filled) > 1 and sum(_filled.values()) > _FILLED_MAX:
            next(iter(_filled)).close()

    @property
    def given_back(self) -> int:
        """Bytes of the index whose blocks were freed.  Maps it.  Raises OSError."""
        _ = self.index
        return _filled.get(self, 0)

    @property
    def has_lost(self) -> bool:
        """Whether entries are lost that subscriptions have not skipped yet.  Checks rows that another process wrote."""
        if self._index is None:
            _ = self.index
        return bool(self.lost)

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of `index` as an array (n,).

        The array is cached, because making a numpy view costs as much as reading a few rows.
        """
        column = self._columns.get(name)
        if column is None or len(column) < self.entries:
            index = self.index      # which may be mapped anew, without columns
            column = self._columns[name] = index[name]
        return column

    @property
    def messages(self) -> NDArray[np.uint32]:
        """The number of messages of each entry (n,) uint32, with arbitrary values behind the last entry."""
        return self.column("messages")

    @property
    def deliver_at(self) -> NDArray[np.int64]:
        """Delivery times of entries (n,) int64 in ms since 1970; 0: not delayed."""
        return self.column("deliver_at")

    def messages_in(self, first: int, end: int) -> int:
        """Return the number of messages in entries first .. end - 1."""
        if first >= end:
            return 0
        before = self.column("message_index")
        return int(before.item(end - 1)) + int(self.messages.item(end - 1)) - int(before.item(first))

    def bytes_of(self, entries: range | NDArray[np.int64]) -> int:
        """Return the total size in bytes of the given entries; a range must not be empty."""
        sizes = self.column("size")
        if not isinstance(entries, range):
            return int(sizes[entries].sum(dtype=np.int64))
        offsets, last = self.column("offset"), entries[-1]      # entries of a run are adjacent
        return int(offsets.item(last) + sizes.item(last) - offsets.item(entries.start))

    @property
    def last_entry(self) -> int:
        """Id of the last entry; -1 in an empty ledger."""
        return self.entries - 1

    @property
    def allocated(self) -> int:
        """Allocated bytes of the data file (*.ledger), the larger of the ledger's two files."""
        self._open()
        return self._allocated[0]

    @property
    def is_shared(self) -> bool:
        """Whether a backup has a hard link to the ledger's data file, so that no blocks of the file may be freed."""
        try:
            return self.ledger_path.stat().st_nlink > 1
        except FileNotFoundError:
            return False

    @property
    def descriptor(self) -> int:
        """A file descriptor of the ledger's data file, open for writing."""
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
            data, index = (os.fstat(fd).st_size for fd in self._fds)
            # Blocks that sealing freed have to be allocated again.
            self._allocated = (self.size, self.index_size) if self.was_sealed else (data, index)
        return self._fds

    def close(self) -> None:
        """Close file descriptors and drop the mapping.  Methods that need them open them again."""
        if self._fds is not None:
            for fd in self._fds:
                os.close(fd)
        self._fds = self._index = None
        self._columns = {}
        _opened.pop(self, None)
        _filled.pop(self, None)

    def __del__(self) -> None:
        self.close()

    # -- writing

    def has_room(self, count: int, size: int) -> bool:
        """Whether the allocated files have room for `count` more entries of `size` bytes in total.

        Raises StorageFull.
        """
        if self._fds is None:
            try:
                self._open()
            except OSError as error:
                raise StorageFull(text_of(error)) from error
        data, index = self._allocated
        return self.size + size <= data and format.HEADER_SIZE + (self.entries + count) * _ROW <= index

    def reserve(self, count: int, size: int, ahead: int = 1 << 62, most: int = 1 << 62) -> None:
        """Allocate room for `count` more entries of `size` bytes in total, and in each file at most `ahead` bytes more.

        A file that has to grow is doubled.  most: bytes to which the data file is not allocated ahead.  Raises
        StorageFull.
        """
        if self.has_room(count, size):
            return
        data, index = self._allocated
        ahead -= ahead % _PAGE      # whole rows: an index that ends within a row looks damaged to workers
        if self.size + size > data:
            data = max(min(2 * data, data + ahead, most), _round_up(self.size + size))
            allocate(self.ledger_path, data, self._allocated[0])
        if (needed := format.index_size(self.entries + count)) > index:
            index = max(min(2 * index, index + ahead), _round_up(needed))
            allocate(self.index_path, index, self._allocated[1])
        self._allocated = data, index

    @property
    def index_size(self) -> int:
        """Bytes of the index, without those allocated ahead."""
        return format.index_size(self.entries)

    def write(self, pieces: Sequence[bytes | memoryview], offset: int) -> None:
        """Write the pieces contiguously at an offset of the ledger's data file, where room was reserved.

        Raises OSError.
        """
        fd = (self._fds or self._open())[0]
        if len(pieces) == 1:      # nearly always
            if os.pwrite(fd, pieces[0], offset) != len(pieces[0]):
                write_all(fd, pieces[0], offset)
            return
        for start in range(0, len(pieces), IOV_MAX):
            some = pieces[start:start + IOV_MAX]
            size = sum(map(len, some))
            if os.pwritev(fd, some, offset) != size:     # cut short by a signal, which is rare: write all of it again
                write_all(fd, b"".join(some), offset)
            offset += size

    def append(self, rows: Rows | bytes, size: int) -> None:
        """Append INDEX_ROWs (n,) of entries whose bytes are already written.

        size: the offset behind these entries in the data file.  Raises OSError.
        """
        raw = rows if isinstance(rows, bytes) else memoryview(rows).cast("B")
        count, left = divmod(len(raw), _ROW)
        assert size > self.size and not left, (self, size, len(raw))
        fd, offset = (self._fds or self._open())[1], format.HEADER_SIZE + self.entries * _ROW
        if os.pwrite(fd, raw, offset) != len(raw):
            write_all(fd, raw, offset)
        self.entries += count
        self.size = size

    def seal(self) -> None:
        """Seal the ledger: write its header, and free blocks that were allocated ahead.  Raises OSError."""
        self.is_sealed = True
        # Before blocks are freed: a start takes all blocks of an unsealed ledger as allocated, and would meet a full
        # disk while it writes into holes.
        self.write_header()
        ends = self.size, self.index_size
        for fd, path, end, allocated in zip(self._open(), self.files(), ends, self._allocated, strict=True):
            if (begin := _round_up(end)) < allocated:
                with contextlib.suppress(OSError):      # some file systems cannot punch holes, or need space for it
                    syscalls.punch(fd, begin, allocated, path)
        self.close()

    def go_on(self) -> None:
        """Make a sealed ledger, the last one of its partition, open for appends again; an open one stays open."""
        if self.is_sealed:
            self.is_sealed, self.was_sealed = False, True
            self.close()

    @property
    def unused(self) -> int:
        """Bytes of the ledger's data file that were allocated ahead.

        The file of a closed ledger is not opened, unless the ledger was sealed before.
        """
        if self._fds is not None or self.was_sealed:
            return self.allocated - self.size
        try:
            return os.stat(self.ledger_path).st_size - self.size
        except FileNotFoundError:      # missing_files.py reports that
            return 0

    # -- headers and files

    def write_header(self) -> None:
        """Write the index's header with the current number of entries.  Raises OSError."""
        write_all(self._open()[1], self.header(), 0)

    def header(self) -> bytes:
        """Return the bytes of the index's header for the current state of the ledger."""
        return ledger_headers.index_header(
            self.ledger_id, self.partition_id, first_message=self.first_message, created_ms=self.created_ms,
            entries=self.entries, size=self.size, is_sealed=self.is_sealed)

    def checkpoint(self) -> tuple[list[Path], list[FileSnapshot]]:
        """Write the header; return (files to be synced, snapshots to be written).  Raises OSError."""
        if self.is_unlinked:
            return [], []
        if not self.is_sealed and not self.is_released:
            self.write_header()
        return self.files(), []

    def files(self) -> list[Path]:
        """Return the paths of the ledger's data file and index."""
        return [self.ledger_path, self.index_path]

    def inodes(self) -> tuple[int, ...]:
        """Return the inodes of the ledger's two files while they are open; otherwise ()."""
        return tuple(os.fstat(fd).st_ino for fd in self._fds or ())

    @property
    def next_message(self) -> int:
        """The number of messages ever published to the partition, up to the end of this ledger."""
        if not self.entries:
            return self.first_message
        return self.first_message + self.messages_in(0, self.entries)

    def repaired(self, rows: Rows) -> index_repair.Repaired:
        """Return this ledger's INDEX_ROWs (n,) with damaged ones rebuilt; see index_repair.py.  Raises OSError."""
        return index_repair.repair(rows, index_repair.Source(
            self.ledger_path, self.ledger_id, self.size, self.first_message, self.created_ms, self.is_discarded))

    def _check_rows(self, mapped: Rows) -> None:
        """Check mapped rows that another process wrote, and rewrite damaged ones in the index file.  Raises OSError."""
        count, self.unchecked = min(self.unchecked, self.entries), 0
        rows, wrong, lost, has_holes = self.repaired(mapped[:count])
        self.has_holes |= has_holes
        if not len(wrong):
            return
        for entry_id in wrong.tolist():
            ledger_headers.write_into_index(self.index_path, format.index_size(entry_id), rows[entry_id].tobytes())
        some = f"{len(wrong)} entries from {wrong[0]} on"
        self.damage.append(f"{self.index_path}: damaged rows were made anew, of {some}")
        if lost:
            self.lost += lost
            some = f"{len(lost)} entries from {lost[0]} on"
            self.damage.append(f"{self.ledger_path}: {some} are lost with their index")

    def unlink(self) -> None:
        """Remove the ledger's two files; existing mappings stay readable."""
        self.is_unlinked = True
        self.close()
        for path in (self.ledger_path, self.index_path):
            path.unlink(missing_ok=True)


def _keep_open(ledger: Ledger) -> None:
    """Record a ledger as the one opened last.

    If too many ledgers are open, those opened longest ago are closed.
    """
    _opened[ledger] = None
    while len(_opened) > open_max(_OPEN_MAX, _DESCRIPTORS, _PART):
        next(iter(_opened)).close()


def _round_up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
