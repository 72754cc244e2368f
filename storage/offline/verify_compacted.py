"""Check a partition's compacted view: manifest, rows, entries' checksums, which messages of batches compaction kept,
masks, and hashes of keys.

Damage affects only consumers with readCompacted, because no other consumers read views.
"""
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.proto import checksums
from geminga.proto.rows import Rows
from geminga.proto.sends import KEPT_CHECKSUM
from geminga.storage import format
from geminga.storage.disk import locks
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import compacted_ledgers, view_files
from geminga.storage.ledgers.compacted_ledgers import CompactedLedgers, Part
from geminga.storage.ledgers.position import NOWHERE, Position
from geminga.storage.ledgers.view_files import KeyFile
from geminga.storage.offline.findings import Finding, Severity, corrupt, unreadable
from geminga.storage.offline.verify_ledger import runs

_CHUNK = 8 << 20           # bytes of entries that are checked together; a larger entry is checked alone
_WIDTH = format.COMPACTED_ROW.itemsize
_UNUSED = "it is not used, consumers that read compacted get what the ledgers have"
_MISSING = "missing for consumers that read compacted"


@dataclass(slots=True)
class ViewCheck:
    """Findings about the views of one partition."""

    findings: list[Finding] = field(default_factory=list)
    horizon: Position = NOWHERE
    bytes: int = 0


def check_views(folder: Path, partition_id: int, *, is_served: bool) -> ViewCheck:
    """Check the newest compacted view of a partition.  folder: the partition's folder."""
    check, held = ViewCheck(), compacted_ledgers.numbers(folder)
    if not held:
        return check
    path = format.compacted_folder(folder) / str(held[-1]) / compacted_ledgers.MANIFEST
    try:
        view = compacted_ledgers.open_view(folder, held[-1])
        assert view is not None      # its number is not 0
        check.horizon = view.horizon
        if view.manifest.partition_id != partition_id:
            check.findings.append(Finding(path, f"it is of partition {view.manifest.partition_id}", _UNUSED,
                                          Severity.LOSS))
        for part in view.manifest.parts:
            check.findings += _part(view, part, check)
    except FileNotFoundError as error:
        check.findings.append(Finding(Path(error.filename), "is missing", _UNUSED, Severity.LOSS))
    except CorruptFile as error:
        check.findings.append(corrupt(error, path, _UNUSED))
    except OSError as error:
        check.findings.append(unreadable(path, error))
    if not is_served:
        check.findings += _leftovers(format.compacted_folder(folder), held[-1])
    return check


def _leftovers(folder: Path, number: int) -> Iterator[Finding]:
    for path in sorted(folder.iterdir()):
        if path.name.isdigit() and path.name != str(number):
            yield Finding(path, "was replaced", "its broker removes it", Severity.NOTE)
        elif path.name not in (str(number), locks.LOCK):
            yield Finding(path, "was being made when its job was killed", "the next job removes it", Severity.NOTE)


def _part(view: CompactedLedgers, part: Part, check: ViewCheck) -> Iterator[Finding]:
    """Yield findings about the entries of one ledger in a compacted view.

    Raises OSError, and CorruptFile when a file is too short.
    """
    index, data = format.index_path(view.folder, part.ledger_id), format.ledger_path(view.folder, part.ledger_id)
    for path, needed in ((index, part.kept * _WIDTH), (data, part.size)):
        if (size := path.stat().st_size) < format.HEADER_SIZE + needed:
            raise CorruptFile(path, size, f"{format.HEADER_SIZE + needed} bytes", "the end of the file")
    rows = compacted_ledgers.read_rows(index, part.kept)
    check.bytes += format.HEADER_SIZE + rows.nbytes + part.size
    whole = compacted_ledgers.is_valid(rows, part.ledger_id)
    whole[whole] &= _in_order(rows[whole], part)
    for first, end in runs(np.flatnonzero(~whole)):
        yield Finding(index, f"rows {first} to {end - 1} are damaged" if end - first > 1 else f"row {first} is damaged",
                      f"their entries are {_MISSING}", Severity.LOSS, format.HEADER_SIZE + first * _WIDTH,
                      (end - first) * _WIDTH, end - first)
    rows = rows[whole]
    for row in rows[list(_wrong(data, rows))]:
        yield Finding(data, f"entry {part.ledger_id}:{row['entry_id']} is damaged",
                      "consumers that read compacted see the checksum fail", Severity.LOSS, int(row["offset"]),
                      int(row["size"]), 1)
    for row in rows[list(_wrong_words(data, rows))]:
        yield Finding(data, f"which messages entry {part.ledger_id}:{row['entry_id']} has left is damaged",
                      f"some of them are {_MISSING}, or come as empty ones", Severity.LOSS,
                      int(row["offset"]) + int(row["size"]), 8 * -(-int(row["messages"]) // 64))
    yield from _beside(view, part, check)


def _beside(view: CompactedLedgers, part: Part, check: ViewCheck) -> Iterator[Finding]:
    """Yield findings about the mask and the key hashes of one ledger in a compacted view.  Raises OSError."""
    def count(size: int) -> None:
        check.bytes += size

    if part.mask:
        try:
            mask = view_files.read_mask(view.folder, part.ledger_id, part.kept, count)
            if int(np.count_nonzero(mask.rows)) != part.gone:
                raise CorruptFile(view_files.mask_path(view.folder, part.ledger_id), 0, f"{part.gone} removed entries",
                                  str(int(np.count_nonzero(mask.rows))))
        except CorruptFile as error:
            yield corrupt(error, view.folder, "consumers that read compacted get messages again that were replaced "
                                              "or deleted")
    try:
        keys = KeyFile(view.folder, part.ledger_id, count)
        keys.words()
        keys.check()
    except FileNotFoundError:
        return      # an older program wrote the view
    except CorruptFile as error:
        yield replace(corrupt(error, view.folder, "the next compaction reads the whole view"),
                      severity=Severity.HARMLESS)


def _in_order(rows: Rows, part: Part) -> NDArray[np.bool_]:
    """Return for each row, as booleans (n,), whether it is behind the previous row and refers to an existing entry."""
    ids, ends = rows["entry_id"].astype(np.int64), rows["offset"] + rows["size"]
    is_in_order: NDArray[np.bool_] = (ids < part.entries) & (ends <= format.HEADER_SIZE + part.size)
    is_in_order[1:] &= (ids[1:] > ids[:-1]) & (rows["offset"][1:] >= ends[:-1])
    return is_in_order


def _wrong(path: Path, rows: Rows) -> Iterator[int]:
    """Yield the position among `rows` of each row whose entry fails its checksum."""
    offsets, sizes = rows["offset"].astype(np.int64), rows["size"].astype(np.int64)
    wanted, first = np.flatnonzero(rows["flags"] & KEPT_CHECKSUM != 0), 0
    offsets, sizes, claimed = offsets[wanted], sizes[wanted], rows["crc32c"][wanted]
    ends = offsets + sizes
    with open(path, "rb") as file:
        while first < len(wanted):
            stop = max(first + 1, int(np.searchsorted(offsets, offsets[first] + _CHUNK)))
            begin, size = int(offsets[first]), int(ends[stop - 1] - offsets[first])
            file.seek(begin)
            data = np.frombuffer(bytearray(file.read(size).ljust(size + checksums.BEHIND, b"\0")), np.uint8)
            wrong = checksums.wrong_entries(data, offsets[first:stop] - begin, ends[first:stop] - begin,
                                            claimed[first:stop])
            yield from wanted[first + wrong].tolist()
            first = stop


def _wrong_words(path: Path, rows: Rows) -> Iterator[int]:
    """Yield the position among `rows` of each cut batch whose words (a bit for each message kept) are impossible.

    A cut batch has lost some of its messages to compaction. Its words are impossible if they keep no message, all
    messages, or more messages than the batch has.
    """
    with open(path, "rb") as file:
        for at in np.flatnonzero(rows["flags"] & format.IS_CUT != 0).tolist():
            messages = int(rows["messages"][at])
            file.seek(int(rows["offset"][at]) + int(rows["size"][at]))
            bits = int.from_bytes(file.read(8 * -(-messages // 64)), "little")
            if not 0 < bits < (1 << messages) - 1:
                yield at
