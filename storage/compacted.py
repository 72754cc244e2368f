"""Compacted views: of each key of a partition the newest message up to a horizon, under the ids that the messages have.

Whoever compacts writes `<n>.new` beside the partition's ledgers, ledger by ledger, and at last the file `view`, which says what
is in it; the one step that makes it the partition's view is the renaming to `<n>`, which is its owner's to do.  A view is never
changed.  One that has been replaced stays as long as a consumer reads from it, and goes with its owner's process.

    compacted/7/12.index    COMPACTED_ROWs of the entries of ledger 12 that are left; of a batch of which messages are gone the
    compacted/7/12.ledger   entry is rewritten (jobs/rewriting.py), with the words of its ack set behind it
    compacted/7/view        CRC32-C of the rest in hexadecimal, a space, JSON
"""
import json
import shutil
from collections.abc import Iterable
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
from geminga.storage.ledger import map_file

VERSION = 1
MANIFEST, UNFINISHED = "view", ".new"


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
    """Views that were replaced, and what was begun, go."""
    kept = {str(number) for number in used}
    with_views = format.compacted_folder(folder)
    for path in with_views.iterdir() if with_views.exists() else ():
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)
