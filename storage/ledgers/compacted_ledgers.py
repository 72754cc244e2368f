"""Compacted views: the newest message of each key of a partition up to a horizon; messages keep their ids.

A compaction writes a view ledger by ledger, in a folder of its own called `<n>.new`, and at last the file `view`, the
manifest.  The partition's owner adopts the view by renaming the folder to `<n>`.  A view is never changed.  A replaced
view stays as long as a consumer reads from it, and goes with its owner's process.

    compacted/7/12.index    a COMPACTED_ROW for each kept entry of ledger 12
    compacted/7/12.ledger   the kept entries.  A batch that lost messages is rewritten
                            (jobs/compacting/rewriting.py), and the words of its ack set follow it
    compacted/7/12.keys     hashes of the keys of these entries' messages (view_files.py)
    compacted/7/12.mask     messages that this view has no more, although the files above have them (view_files.py)
    compacted/7/view        CRC32-C of the JSON in hexadecimal, a space, JSON

A view that continues another one shares files with it, as hard links (jobs/compacting).

    Version 1 of the manifest: the first.
    Version 2: masks.  A view without any is still of version 1.
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

from geminga.proto.rows import Rows
from geminga.proto.sends import IS_BATCH
from geminga.storage import format
from geminga.storage.disk import locks
from geminga.storage.disk.files import map_file, sync, write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import view_files
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.view_files import Mask

VERSION = 2
IS_MASKED = 128              # flag of a row in memory: the mask removes some messages of the entry, not all
MANIFEST, UNFINISHED = "view", ".new"
_BLOCK = 8 << 10             # rows that are checked together


@dataclass(frozen=True, slots=True)
class Part:
    """Figures in a manifest for one ledger of a compacted view."""

    ledger_id: int
    entries: int          # entries of the ledger up to the horizon
    kept: int             # entries in its files
    messages: int         # messages that the view has, masked ones not counted
    size: int             # bytes of the entries in its files
    gone: int = 0         # entries of which the mask leaves nothing
    mask: int = 0         # bytes of the mask's file; 0: there is none


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of the file `view`: horizon, ledgers and figures of a compacted view."""

    partition_id: int
    horizon: Position                # the last entry that the compaction read
    parts: tuple[Part, ...]          # ascending by ledger id; none for ledgers without kept entries
    created_ms: int
    report: dict[str, Any] = field(default_factory=dict)      # figures of the compaction, for people

    @property
    def messages(self) -> int:
        """The number of messages that the compaction kept."""
        return sum(part.messages for part in self.parts)

    @property
    def entries(self) -> int:
        """The number of entries that the compaction kept."""
        return sum(part.kept - part.gone for part in self.parts)

    @property
    def size(self) -> int:
        """The size in bytes of the entries in the view's files, also of entries that masks hide."""
        return sum(part.size for part in self.parts)

    def encode(self) -> bytes:
        """Return the content of the file `view`: checksum and JSON."""
        fields = {"version": VERSION if any(part.mask for part in self.parts) else 1, **asdict(self)}
        if fields["version"] == 1:
            for part in fields["parts"]:
                del part["gone"], part["mask"]
        text = json.dumps(fields, separators=(",", ":")).encode()
        return b"%08x %s" % (crc32c(text), text)


def decode(data: bytes, path: Path) -> Manifest:
    """Decode the content of a manifest.  Raises CorruptFile if it is damaged, or of a newer version."""
    try:
        checksum, text = data.split(b" ", 1)
        if int(checksum, 16) != crc32c(text):
            raise ValueError
        stored = json.loads(text)
    except ValueError:
        raise CorruptFile(path, 0, "a checksum and what it is of", data[:16]) from None
    if (version := stored.pop("version")) > VERSION:
        raise CorruptFile(path, 0, f"format version {VERSION} or older", version)
    parts = tuple(Part(**part) for part in stored["parts"])
    return Manifest(**stored | {"horizon": tuple(stored["horizon"]), "parts": parts})


class CompactedLedger:
    """One ledger of a compacted view: some entries are missing, but its interface is that of a Ledger (readable.py).

    Callers ask only for entries whose ids are in `kept`.  Files are read when they are first needed; `close` releases
    the memory until they are needed again.
    """

    is_sealed = True
    has_lost = False

    def __init__(self, folder: Path, view: int, part: Part, damage: list[str] | None = None):
        """Make the ledger without reading its files.

        view: the view's number.  damage: a list that receives lines about damage.
        """
        self._folder, self.view, self.ledger_id = folder, view, part.ledger_id
        self.entries, self._count, self._part = part.entries, part.kept, part
        self.damage: list[str] = [] if damage is None else damage
        self._reported: set[str] = set()

    def __repr__(self) -> str:
        return f"<CompactedLedger {self.ledger_id} of view {self.view}: {self._count} of {self.entries}>"

    @property
    def last_entry(self) -> int:
        """Id of the ledger's last entry up to the horizon, whether or not the compaction kept it."""
        return self.entries - 1

    @cached_property
    def rows(self) -> Rows:
        """Index rows of kept entries, COMPACTED_ROW (n,), ascending by entry id, with the flag IS_MASKED.

        Damaged rows are left out, with a line in `damage`, and those of which the mask leaves nothing.
        """
        if not self._count:
            return np.empty(0, format.COMPACTED_ROW)
        path = format.index_path(self._folder, self.ledger_id)
        try:
            rows = read_rows(path, self._count)
        except (OSError, ValueError) as error:      # ValueError: an empty file cannot be mapped
            self._report(f"{path}: {error}; entries of ledger {self.ledger_id} are missing from the compacted view")
            return np.empty(0, format.COMPACTED_ROW)
        whole = is_valid(rows, self.ledger_id) & (rows["entry_id"] < self.entries)
        for at in np.flatnonzero(~whole).tolist():
            self._report(f"{path}: row {at} is damaged; its entry is missing from the compacted view")
        if len(rows) < self._count:
            self._report(f"{path}: it ends before row {len(rows)} of {self._count}; "
                         "entries are missing from the compacted view")
        if (mask := self._mask) is not None:
            rows, whole = rows.copy(), whole & ~mask.rows[:len(rows)]
            rows["flags"][mask.cut["row"][mask.cut["row"] < len(rows)]] |= IS_MASKED
        return rows if whole.all() else rows[whole]

    @cached_property
    def _mask(self) -> Mask | None:
        try:
            return view_files.read_mask(self._folder, self.ledger_id, self._count) if self._part.mask else None
        except (OSError, CorruptFile) as error:
            self._report(f"{error}; messages of ledger {self.ledger_id} that were replaced or deleted come again")
            return None

    @cached_property
    def removed(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(entry id (n,), number of the message in it (n,)) of messages that the mask removes from kept entries."""
        if self._mask is None or not len(self.rows):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        rows = read_rows(format.index_path(self._folder, self.ledger_id), self._count)
        cut = self._mask.cut[self._mask.cut["row"] < len(rows)]
        return rows["entry_id"][cut["row"]].astype(np.int64), cut["index"].astype(np.int64)

    @cached_property
    def kept(self) -> NDArray[np.int64]:
        """Ids (n,) int64 of the entries that the compaction kept, ascending."""
        return self.rows["entry_id"].astype(np.int64)

    @cached_property
    def data(self) -> mmap.mmap | bytes:
        """The bytes of the kept entries, at the offsets in `rows`."""
        path = format.ledger_path(self._folder, self.ledger_id)
        try:
            return map_file(path, writable=False)
        except (OSError, ValueError) as error:
            self._report(f"{path}: {error}; its entries are missing from the compacted view")
            return b""

    def _report(self, text: str) -> None:
        """Add a line about damage to `damage`, unless the same line was added before."""
        if text not in self._reported:
            self._reported.add(text)
            self.damage.append(text)

    def close(self) -> None:
        """Release memory and mappings; methods that need the files read them again."""
        for name in ("rows", "kept", "removed", "_mask", "data"):
            self.__dict__.pop(name, None)

    def kept_of(self, first: int, end: int) -> NDArray[np.int64]:
        """Return ids (n,) of the kept entries among first .. end - 1."""
        return self.kept[slice(*np.searchsorted(self.kept, (first, end)).tolist())]

    def rows_of(self, entries: range | NDArray[np.int64]) -> Rows:
        """Return COMPACTED_ROW (n,) of the given entries (n,), all of which must be kept ones."""
        assert len(entries) <= len(self.kept), self
        return self.rows[np.searchsorted(self.kept, entries)]

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of COMPACTED_ROW as (entries,), by entry id; 0 for entries that the compaction removed."""
        dense: NDArray[Any] = np.zeros(self.entries, format.COMPACTED_ROW[name])
        dense[self.kept] = self.rows[name]
        return dense

    def bytes_of(self, entries: range | NDArray[np.int64]) -> int:
        """Return the total size in bytes of the given entries, all of which must be kept ones."""
        return int(self.rows_of(entries)["size"].sum(dtype=np.int64))

    def cut_of(self, entries: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return [(index among `entries`, bits)] for batches that lost messages; bits has a 1 for each message kept."""
        rows = self.rows_of(entries)
        at = np.flatnonzero(rows["flags"] & (format.IS_CUT | IS_MASKED))
        columns = (rows[name][at].tolist() for name in ("entry_id", "offset", "size", "messages", "flags"))
        return [(n, self._bits(*row)) for n, *row in zip(at.tolist(), *columns, strict=True)]

    def _bits(self, entry_id: int, offset: int, size: int, messages: int, flags: int) -> int:
        """Return an int with a bit for each message of a row's entry, 1 = kept."""
        end = offset + size
        bits = int.from_bytes(self.data[end:end + 8 * -(-messages // 64)], "little") if flags & format.IS_CUT \
            else (1 << messages) - 1
        if flags & IS_MASKED:
            ids, indexes = self.removed
            for index in indexes[slice(*np.searchsorted(ids, (entry_id, entry_id + 1)).tolist())].tolist():
                bits &= ~(1 << index)
        return bits

    @property
    def cut(self) -> dict[int, int]:
        """{entry id: bits} of all batches that lost messages; bits has a 1 for each message kept."""
        return {int(self.kept[at]): bits for at, bits in self.cut_of(self.kept)}

    def bits_of(self, entry_id: int) -> int:
        """Return an int with a bit for each message of the entry, 1 = kept; 0 if the compaction removed the entry."""
        entries = self.kept_of(entry_id, entry_id + 1)
        if not len(entries):
            return 0
        all_of_them = (1 << int(self.rows_of(entries)["messages"][0])) - 1
        return next((bits for _, bits in self.cut_of(entries)), all_of_them)

    def last_message(self) -> tuple[int, int, int]:
        """Return (ledger, entry, batch index) of the last message that the compaction kept; there must be one."""
        entry_id = int(self.kept[-1])
        is_batch = int(self.rows[-1]["flags"]) & IS_BATCH
        return self.ledger_id, entry_id, self.bits_of(entry_id).bit_length() - 1 if is_batch else -1


class CompactedLedgers:
    """A compacted view of a partition; the view with the highest number is the newest."""

    def __init__(self, folder: Path, number: int, manifest: Manifest):
        self.folder, self.number, self.manifest = folder, number, manifest
        self.horizon = manifest.horizon
        self.damage: list[str] = []
        self.ledgers = [CompactedLedger(folder, number, part, self.damage) for part in manifest.parts]

    @cached_property
    def last_message(self) -> tuple[int, int, int]:
        """(ledger, entry, batch index) of the last message that the compaction kept; (-1, -1, -1) when it kept none."""
        return next((ledger.last_message() for ledger in reversed(self.ledgers) if len(ledger.kept)), (-1, -1, -1))

    def __repr__(self) -> str:
        return f"<CompactedLedgers {self.number} up to {self.horizon}: {len(self.ledgers)} ledgers>"

    def find(self, ledger_id: int) -> CompactedLedger | None:
        """Return the view's compacted ledger with this id; None if the view has no such ledger."""
        at = bisect.bisect_left(self.ledgers, ledger_id, key=_ledger_id)
        return self.ledgers[at] if at < len(self.ledgers) and self.ledgers[at].ledger_id == ledger_id else None

    def cover(self, ledgers: Iterable[tuple[int, int]]) -> None:
        """Add an empty compacted ledger for each of `ledgers`, (id, entries), of which the compaction kept nothing.

        Cursors then advance over all ledgers up to the horizon in the same way.
        """
        entries = {self.horizon[0]: self.horizon[1] + 1} | {
            ledger_id: count for ledger_id, count in ledgers if ledger_id < self.horizon[0]}
        for ledger_id in entries.keys() - {each.ledger_id for each in self.ledgers}:
            empty = Part(ledger_id, entries[ledger_id], 0, 0, 0)
            self.ledgers.append(CompactedLedger(self.folder, self.number, empty, self.damage))
        self.ledgers.sort(key=_ledger_id)

    def ledgers_from(self, ledger_id: int) -> list[CompactedLedger]:
        """Return the view's compacted ledgers from this id on, or from the next higher id, up to the horizon."""
        return self.ledgers[bisect.bisect_left(self.ledgers, ledger_id, key=_ledger_id):]

    def count_before(self, ledger_id: int, entries: NDArray[np.int64]) -> int:
        """Return how many of the given entries (n,) of a ledger, ascending, lie at or before the horizon."""
        if ledger_id != self.horizon[0]:
            return len(entries) if ledger_id < self.horizon[0] else 0
        return int(np.searchsorted(entries, self.horizon[1], side="right"))

    def before(self, position: Position) -> Position:
        """Return the mark-delete position of a cursor whose next entry is the first one at or after `position`.

        The result is the horizon if the view has no ledger from that position on.
        """
        ledger = next(iter(self.ledgers_from(position[0])), None)
        if ledger is None:
            return self.horizon
        entry_id = position[1] if ledger.ledger_id == position[0] else 0
        return ledger.ledger_id, min(max(entry_id - 1, -1), ledger.last_entry)

    def missing(self) -> str:
        """Return a text that names the first missing or too short file; "" if all are complete.  Raises OSError."""
        for part in self.manifest.parts:
            rows_size, head = part.kept * format.COMPACTED_ROW.itemsize, format.HEADER_SIZE
            for path, needed in ((format.index_path(self.folder, part.ledger_id), head + rows_size),
                                 (format.ledger_path(self.folder, part.ledger_id), head + part.size),
                                 (view_files.mask_path(self.folder, part.ledger_id), part.mask)):
                length = path.stat().st_size if path.exists() else 0
                if length < needed:
                    return f"{path}: at byte {length}: expected {needed} bytes, found the end of the file"
        return ""

    def unlink(self) -> None:
        """Remove the view's files; existing mappings stay readable."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _ledger_id(ledger: CompactedLedger) -> int:
    return ledger.ledger_id


def is_valid(rows: Rows, ledger_id: int) -> NDArray[np.bool_]:
    """Return for each of the first rows (n,) of a ledger's index whether its checksum matches content and place."""
    if len(rows) <= _BLOCK:
        return format.is_valid(rows, ledger_id)
    starts = range(0, len(rows), _BLOCK)
    return np.concatenate([format.is_valid(rows[at:at + _BLOCK], ledger_id, at) for at in starts])


def read_rows(path: Path, count: int) -> Rows:
    """Map the first `count` COMPACTED_ROWs (n,) of an index; fewer if the file is shorter.

    Raises OSError; ValueError if the file is empty.
    """
    data = map_file(path, writable=False)
    there = (len(data) - format.HEADER_SIZE) // format.COMPACTED_ROW.itemsize
    return np.frombuffer(data, format.COMPACTED_ROW, max(0, min(count, there)), format.HEADER_SIZE)


def numbers(folder: Path) -> list[int]:
    """Return the numbers of a partition's compacted views, ascending; the last one is the newest.

    folder: the partition's folder.
    """
    try:
        return sorted(int(path.name) for path in format.compacted_folder(folder).iterdir() if path.name.isdigit())
    except FileNotFoundError:
        return []


def open_view(folder: Path, number: int = 0) -> CompactedLedgers | None:
    """Open a compacted view of a partition; number 0 means the newest.  folder: the partition's folder.

    Return None when there is no view.  Raises CorruptFile, FileNotFoundError.
    """
    number = number or next(reversed(numbers(folder)), 0)
    if not number:
        return None
    path = format.compacted_folder(folder) / str(number)
    return CompactedLedgers(path, number, decode((path / MANIFEST).read_bytes(), path / MANIFEST))


def unfinished(folder: Path, number: int | str) -> Path:
    """Return the path of the folder of a view that is still being written, or waits to be adopted."""
    return format.compacted_folder(folder) / f"{number}{UNFINISHED}"


def remove_unused(folder: Path, used: Iterable[int]) -> None:
    """Remove all views of a partition whose numbers are not in `used`.

    Unfinished views are removed too, unless a compaction is running.
    """
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

def finish(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a compacted view, synced, after all of its ledgers were written.  Raises OSError."""
    write_anew(folder / MANIFEST, manifest.encode())
    sync(folder, os.fsync)
    sync(folder.parent, os.fsync)


def make_empty(folder: Path, number: int, partition_id: int, horizon: Position, now_ms: int) -> None:
    """Create and adopt a compacted view without any entry up to the horizon.  Raises OSError."""
    made = format.compacted_folder(folder) / f"{number}.empty"
    made.mkdir(parents=True, exist_ok=True)
    finish(made, Manifest(partition_id, horizon, (), now_ms))
    made.rename(made.with_name(str(number)))
    sync(made.parent, os.fsync)


def adopt(folder: Path, number: int) -> None:
    """Make a finished compacted view the partition's newest one, synced.  Raises OSError."""
    unfinished(folder, number).rename(format.compacted_folder(folder) / str(number))
    sync(format.compacted_folder(folder), os.fsync)
