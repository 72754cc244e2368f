"""A ledger: entries and their index in two files, one writer, any number of readers that map them.

The owner writes with pwritev, after the journal holds what it writes, and reads the index through its own mapping; workers
map both files.  Writing through a mapping was measured and costs 2.6 us of CPU per new page against 1.0 (ext4: a fault, a
zeroed page and a block look-up each, where one call writes large folios).  Files are allocated ahead, so that neither a
write nor a mapped page meets a full disk, and are never shortened while anybody may map them; growing means a longer file
and a new mapping.
"""
import contextlib
import mmap
import os
import resource
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.disk import syscalls
from geminga.storage.errors import CorruptFile, StorageFull, text_of
from geminga.storage.ledgers import index_repair

if TYPE_CHECKING:
    from geminga.storage.cursors.cursor import Cursor

_EXTENT_MIN = 64 << 10          # first allocation of a ledger's file; doubled whenever it is full
_INDEX_EXTENT_MIN = 16 << 10
_PAGE = 4096
_IOV_MAX = 1000                 # pieces of one write; the kernel takes 1024
_HEADERS_MAX = 100              # looks at one that its broker may be writing
_DESCRIPTORS = 3                # of a ledger that is open: two files, and what Python keeps of a mapping
_FILLED_MAX = 64 << 20          # bytes of indexes with holes that a process keeps filled in
_filled: weakref.WeakKeyDictionary["Ledger", int] = weakref.WeakKeyDictionary()      # bytes of each, filled in longest ago first
_opened: weakref.WeakKeyDictionary["Ledger", None] = weakref.WeakKeyDictionary()     # those that hold descriptors, longest open first


def open_max() -> int:
    """Ledgers that a process keeps open: with a quarter of the descriptors that it may have."""
    return max(16, min(8_192, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // (4 * _DESCRIPTORS)))


def allocate(path: Path, size: int, before: int | None = None) -> None:
    """Make the file at least `size` bytes long and what is new of it writable; raises StorageFull, and leaves it as it was then.

    before: bytes of it that are writable, if not all are; what was punched out among them stays so.
    """
    is_there = path.exists()
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageFull(text_of(error)) from error
    try:
        length = os.fstat(fd).st_size
        before = length if before is None else min(before, length)
        try:
            if before < size:
                os.posix_fallocate(fd, before, size - before)
        except OSError as error:      # what there was of room is taken now; nobody has touched what is behind the old end
            os.ftruncate(fd, length)
            if not is_there:
                path.unlink()
            raise StorageFull(f"{path}: {error.strerror}") from error
    finally:
        os.close(fd)


def sync(path: Path, how) -> None:
    """how: os.fsync, for folders, or os.fdatasync."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        how(fd)
    finally:
        os.close(fd)


def write_anew(path: Path, data) -> None:
    """The file has this, synced, or what it had before; its folder is the caller's to sync.  Raises OSError."""
    fresh = path.with_suffix(".new")
    try:
        with open(fresh, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)      # what there was of room is of use to others
        raise


def map_file(path: Path, *, writable: bool, private: bool = False) -> mmap.mmap:
    """The whole file, shared; private: what is written to it stays in memory."""
    fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    finally:
        os.close(fd)


class Ledger:
    """The owner's view of one ledger.

    Invariant: rows 0 .. entries-1 of the index are written, and their bytes lie below `size` in the ledger's file.

    Rows that another process wrote are looked at when they are first needed.  A damaged one is made anew from what lies around
    it; what that cannot bring back is in `lost`.  `damage` says what was found.
    """

    view = 0      # it is no compacted view's: compacted_ledgers.py has those

    def __init__(self, folder: Path, partition_id: int, ledger_id: int):
        self.folder, self.partition_id, self.ledger_id = folder, partition_id, ledger_id
        self.entries = 0
        self.size = format.HEADER_SIZE
        self.first_message = 0
        self.created_ms = 0
        self.is_sealed = False
        self.was_sealed = False                          # what lies behind its last entry may have been given back
        self.is_unlinked = False
        self.is_released = False                         # somebody else may have opened it anew: this says nothing any more
        self.is_header_lost = False                      # where its messages begin is for its partition to say
        self.damage: list[str] = []
        self.lost: list[int] = []                        # entries that are there no more, and not dealt with
        self.gone: Cursor | None = None                  # what is there for nobody any more, if that is known
        self.has_holes = False                           # rows whose space was given back: zeros in the index's file
        self.is_index_new = True                         # more of its index may be given back than was
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
            self._keep_open()
            self._map(private=False)
            if self._unchecked:
                index_repair.check_rows(self)
            if self.has_holes:
                self._fill_holes()
        return self._index

    def _map(self, *, private: bool) -> None:
        mapped = map_file(self.index_path, writable=False, private=private)
        whole_rows = (len(mapped) - format.HEADER_SIZE) // format.INDEX_ROW.itemsize
        self._index = np.frombuffer(mapped, format.INDEX_ROW, whole_rows, format.HEADER_SIZE)
        self._columns = {}

    def _fill_holes(self) -> None:
        """Rows whose space was given back are filled in, in memory; other ledgers give theirs up when that is too much."""
        self._map(private=True)
        filled = index_repair.fill_holes(self._index[:self.entries])
        self._index.flags.writeable = False
        _filled.pop(self, None)
        _filled[self] = filled * format.INDEX_ROW.itemsize
        while len(_filled) > 1 and sum(_filled.values()) > _FILLED_MAX:
            next(iter(_filled)).close()

    @property
    def has_lost(self) -> bool:
        """Whether there is anything in `lost`; rows that another process wrote are looked at for that."""
        return self.index is not None and bool(self.lost)

    def column(self, name: str) -> NDArray:
        """One of the index; kept, because making a view of a column costs as much as reading a few rows."""
        index = self.index
        if name not in self._columns:
            self._columns[name] = index[name]
        return self._columns[name]

    @property
    def messages(self) -> NDArray[np.uint32]:
        return self.column("messages")

    @property
    def deliver_at(self) -> NDArray[np.int64]:
        """ms, 0 for at once"""
        return self.column("deliver_at")

    def messages_in(self, first: int, end: int) -> int:
        """Messages of the entries first .. end - 1."""
        if first >= end:
            return 0
        before = self.column("message_index")
        return int(before.item(end - 1)) + int(self.messages.item(end - 1)) - int(before.item(first))

    def bytes_of(self, entries: range | NDArray[np.int64]) -> int:
        """Bytes of these entries together."""
        sizes = self.column("size")
        if not isinstance(entries, range):
            return int(sizes[entries].sum(dtype=np.int64))
        offsets, last = self.column("offset"), entries[-1]      # a run's lie side by side
        return offsets.item(last) + sizes.item(last) - offsets.item(entries.start)

    @property
    def last_entry(self) -> int:
        return self.entries - 1

    @property
    def allocated(self) -> int:
        """Bytes of its larger file."""
        self._open()
        return self._allocated[0]

    @property
    def is_shared(self) -> bool:
        """Whether the ledger's file is a backup's too: what lies there stays."""
        try:
            return self.ledger_path.stat().st_nlink > 1
        except FileNotFoundError:
            return False

    @property
    def descriptor(self) -> int:
        """Of the ledger's file, to write to it."""
        return self._open()[0]

    def _open(self) -> tuple[int, int]:
        if self._fds is None:
            self._keep_open()
            fd = os.open(self.ledger_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._fds = fd, os.open(self.index_path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                os.close(fd)
                raise
            is_whole = not self.was_sealed
            self._allocated = tuple(os.fstat(fd).st_size for fd in self._fds) if is_whole else (self.size, self._index_size(0))
        return self._fds

    def _keep_open(self) -> None:
        """It is about to be opened; those that have been open for longest are closed when they are too many."""
        _opened[self] = None
        while len(_opened) > open_max():
            next(iter(_opened)).close()

    def close(self) -> None:
        """Give up descriptors and mapping; what needs them opens them again."""
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
        """Whether its files are long enough for `count` entries more of together `size` bytes.  Raises StorageFull."""
        try:
            self._open()
        except OSError as error:
            raise StorageFull(text_of(error)) from error
        data, index = self._allocated
        return self.size + size <= data and self._index_size(count) <= index

    def reserve(self, count: int, size: int, ahead: int = 1 << 62) -> None:
        """Make room for these, and in each file for so many bytes more that nobody needs yet, `ahead`, at most.  Raises StorageFull."""
        if self.has_room(count, size):
            return
        data, index = self._allocated
        ahead -= ahead % _PAGE      # whole rows only: workers take an index that ends within one for a damaged file
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
        """Put the pieces, one behind the other, at this offset of the ledger's file, where there is room for them."""
        fd = self._open()[0]
        for start in range(0, len(pieces), _IOV_MAX):
            some = pieces[start:start + _IOV_MAX]
            size = sum(map(len, some))
            if os.pwritev(fd, some, offset) != size:     # a signal came in between: rare enough to do it the plain way
                _write_all(fd, b"".join(some), offset)
            offset += size

    def append(self, rows: NDArray | bytes, size: int) -> None:
        """Add INDEX_ROWs behind the last; `size` is the offset behind their entries' bytes, which are in place already."""
        raw, width = memoryview(rows).cast("B"), format.INDEX_ROW.itemsize
        _write_all(self._open()[1], raw, format.HEADER_SIZE + self.entries * width)
        self.entries += len(raw) // width
        self.size = size

    def seal(self) -> None:
        """Nothing is appended any more; the header says how much there is, and what was allocated beyond that is given back."""
        self.is_sealed = True
        self.write_header()
        index_end = self._index_size(0)
        for fd, path, end, allocated in zip(self._open(), self.files(), (self.size, index_end), self._allocated, strict=True):
            if (begin := _round_up(end)) < allocated:
                with contextlib.suppress(OSError):      # not all file systems can, and some need room for it
                    syscalls.punch(fd, begin, allocated, path)
        self.close()

    def give_back_rows(self, holes: list[tuple[int, int]]) -> None:
        """The blocks of these bytes of the index, (begin, end), ascending, go back to the file system, and read as zeros.

        The file is made anew: who has mapped it goes on with all rows as they were.  Raises OSError.
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
        """It is the last of its partition, sealed or not: what comes is appended to it."""
        if self.is_sealed:
            self.is_sealed, self.was_sealed = False, True
            self.close()

    @property
    def unused(self) -> int:
        """Bytes of its larger file that were allocated ahead; it is not opened for that."""
        if self._fds is not None or self.was_sealed:
            return self.allocated - self.size
        try:
            return os.stat(self.ledger_path).st_size - self.size
        except FileNotFoundError:      # others find that out
            return 0

    def write_header(self) -> None:
        """The index says how much there is."""
        _write_all(self._open()[1], self.header(), 0)

    def header(self) -> bytes:
        """Of the index, as things are."""
        return format.checked_header(
            format.INDEX_HEADER, magic=format.INDEX_MAGIC, state=format.SEALED if self.is_sealed else format.OPEN,
            ledger_id=self.ledger_id, partition_id=self.partition_id, first_message=self.first_message, created_ms=self.created_ms,
            entries=self.entries, size=self.size)

    def ledger_header(self) -> bytes:
        return format.header(format.LEDGER_HEADER, magic=format.LEDGER_MAGIC, ledger_id=self.ledger_id, partition_id=self.partition_id)

    def has_its_header(self) -> bool:
        """Whether the ledger file begins with it, of any version there was; or with zeros, as a power cut leaves it."""
        with open(self.ledger_path, "rb") as file:
            found = file.read(format.HEADER_SIZE)
        head = np.frombuffer(self.ledger_header(), format.LEDGER_HEADER).copy()
        for version in range(1, format.VERSION + 1):
            head["version"] = version
            if found == head.tobytes():
                return True
        return not any(found)

    def write_ledger_header(self) -> None:
        self.write([self.ledger_header()], 0)

    def check_lengths(self) -> None:
        """Raises CorruptFile when its files are too short for its entries."""
        if not self.entries:
            return
        for path, needed in ((self.ledger_path, self.size),
                             (self.index_path, format.HEADER_SIZE + self.entries * format.INDEX_ROW.itemsize)):
            if (size := path.stat().st_size) < needed:
                raise CorruptFile(path, size, f"{needed} bytes", "the end of the file")

    def checkpoint(self) -> tuple[list[Path], list]:
        """(files to be synced, snapshots to be written); the header says how much there is by now."""
        if self.is_unlinked:
            return [], []
        if not self.is_sealed and not self.is_released:
            self.write_header()
        return self.files(), []

    def files(self) -> list[Path]:
        return [self.ledger_path, self.index_path]

    def inodes(self) -> tuple[int, ...]:
        """Of the same, while they are open; else none."""
        return tuple(os.fstat(fd).st_ino for fd in self._fds or ())

    @property
    def next_message(self) -> int:
        """Messages of the partition up to and with this ledger."""
        if not self.entries:
            return self.first_message
        return self.first_message + self.messages_in(0, self.entries)

    def unlink(self) -> None:
        """Remove its files; mappings of them stay readable."""
        self.is_unlinked = True
        self.close()
        for path in (self.ledger_path, self.index_path):
            path.unlink(missing_ok=True)


def _write_all(fd: int, data, offset: int) -> None:
    data = memoryview(data)
    while len(data):
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _round_up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def create(folder: Path, partition_id: int, ledger_id: int, *, first_message: int, created_ms: int, extent: int = 0) -> Ledger:
    """A new, empty ledger; what of it exists already (a journal being replayed) is kept.  Raises StorageFull."""
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


def open_ledger(folder: Path, partition_id: int, ledger_id: int) -> Ledger:
    """The ledger as it lies on disk, as long as its header says.  Raises CorruptFile for one of a newer version.

    After a power cut its files may be shorter than that: the journal has the rest.
    """
    ledger = Ledger(folder, partition_id, ledger_id)
    head = _read_header(ledger.index_path)
    if head is None:
        raise CorruptFile(ledger.index_path, 0, f"{format.HEADER_SIZE} bytes of header", ledger.index_path.stat().st_size)
    if head["version"][0] > format.VERSION and head["magic"][0] == format.INDEX_MAGIC and format.is_whole(head):
        raise CorruptFile(ledger.index_path, 8, f"format version {format.VERSION} or older", int(head["version"][0]))
    ledger.entries = (ledger.index_path.stat().st_size - format.HEADER_SIZE) // format.INDEX_ROW.itemsize
    if not _is_of(head, ledger) or (head["version"][0] != 1 and not format.is_whole(head)):
        index_repair.make_header(ledger)
    else:
        ledger.first_message, ledger.created_ms = int(head["first_message"][0]), int(head["created_ms"][0])
        ledger.is_sealed = bool(head["state"][0] == format.SEALED)
        if ledger.is_sealed or head["version"][0] > 1:
            ledger.entries, ledger.size = int(head["entries"][0]), int(head["size"][0])
        else:
            index_repair.find_end(ledger)
    if not ledger.has_its_header():
        ledger.damage.append(f"{ledger.ledger_path}: its header is damaged and was written anew")
        ledger.write_ledger_header()
    ledger._unchecked = ledger.entries
    return ledger


def _is_of(head: NDArray, ledger: Ledger) -> bool:
    ours = format.INDEX_MAGIC, ledger.ledger_id, ledger.partition_id
    return (head["magic"][0], int(head["ledger_id"][0]), int(head["partition_id"][0])) == ours


def _read_header(path: Path) -> NDArray | None:
    """Of an index, shape (1,); None when there is not as much."""
    with open(path, "rb") as file:
        raw = file.read(format.HEADER_SIZE)
    return np.frombuffer(raw, format.INDEX_HEADER, 1) if len(raw) == format.HEADER_SIZE else None


def read_header(ledger: Ledger, *, is_served: bool) -> NDArray | None:
    """INDEX_HEADER (1,) of its index, also while a broker is writing that; None when it is damaged.  Raises CorruptFile for one of a
    newer version."""
    for _ in range(_HEADERS_MAX if is_served else 1):
        head = _read_header(ledger.index_path)
        if head is None:
            return None
        if _is_of(head, ledger) and (head["version"][0] == 1 or format.is_whole(head)):
            if head["version"][0] > format.VERSION:
                raise CorruptFile(ledger.index_path, 8, f"format version {format.VERSION} or older",
                                  f"format version {head['version'][0]}")
            return head
    return None


def _is_begun(path: Path) -> bool:
    """Whether there is a header, of whatever kind."""
    with open(path, "rb") as file:
        return any(file.read(format.HEADER_SIZE))


def exists(folder: Path, ledger_id: int) -> bool:
    """Whether there is such a ledger: one that was being made, or deleted, when its process was killed is none."""
    try:
        return _is_begun(format.index_path(folder, ledger_id)) and format.ledger_path(folder, ledger_id).exists()
    except FileNotFoundError:
        return False


def ledger_ids(folder: Path) -> list[int]:
    """Of the ledgers in a partition's folder, ascending."""
    return sorted(int(path.stem) for path in folder.glob("*.index") if path.stem.isdigit() and exists(folder, int(path.stem)))


def remove_unmade(folder: Path) -> None:
    """Files that hold nothing, of ledgers that there are not: what was being made when its process was killed, or the disk was full.

    And an index that was being made anew.
    """
    for path in folder.glob("*.new"):
        if path.stem.isdigit():
            path.unlink()
    for path in [*folder.glob("*.ledger"), *folder.glob("*.index")]:
        if path.stem.isdigit() and not exists(folder, int(path.stem)) and not any(path.read_bytes()[format.HEADER_SIZE:]):
            path.unlink()
