"""Check one ledger: headers, the checksum of each row, rows without gaps, each entry's checksum.

Rows are read in blocks that fit a processor's cache, each with its entries. If a row is damaged, the index is read as
a whole and repaired in memory (index_repair.py), as its broker would do, and the ledger is checked again with the
repaired rows.
"""
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.proto import checksums
from geminga.proto.rows import Rows
from geminga.proto.sends import KEPT_CHECKSUM
from geminga.storage import format
from geminga.storage.cursors.cursor import NOBODY, Cursor
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import ledger_headers
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.ledger_files import take_bounds, take_end
from geminga.storage.ledgers.position import NOWHERE
from geminga.storage.offline.findings import Finding, Severity, corrupt, unreadable

_BLOCK = 8 << 10           # rows
_CHUNK = 1 << 20           # bytes of entries read at once, or one entry
_WIDTH = format.INDEX_ROW.itemsize


@dataclass(frozen=True, slots=True)
class Task:
    """Input for the check of one ledger."""

    folder: Path
    partition_id: int
    ledger_id: int
    is_served: bool                                 # a broker may be writing it
    opened: tuple[int, int] | None                  # (first message, created, ms) if the journal opens it
    rows: list[tuple[int, Rows]]                    # (first entry, rows) that only the journal may have
    gone: Cursor | None                             # has acknowledged all discarded entries


@dataclass(slots=True)
class LedgerCheck:
    """Result of checking one ledger."""

    ledger: Ledger
    index: Rows | None = None                       # INDEX_ROW (n,); None: those in the index file count
    findings: list[Finding] = field(default_factory=list)
    # entries whose bytes are damaged
    wrong: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    is_readable: bool = True
    bytes: int = 0


def check(task: Task) -> LedgerCheck:
    """Check one ledger."""
    ledger = Ledger(task.folder, task.partition_id, task.ledger_id)
    if not task.is_served:      # else the broker may have discarded more entries since
        discarded = task.gone or Cursor(NOBODY, NOWHERE, is_durable=True)
        ledger.is_discarded = partial(discarded.acknowledged, ledger.ledger_id)
    report = LedgerCheck(ledger, is_readable=False)
    try:
        _find_rows(task, report)
        if not _check(task, report):
            _mend(report)
            _check(task, report)
        report.is_readable = True
    except FileNotFoundError as error:
        if not task.is_served:                      # else it has just been deleted
            report.findings.append(Finding(Path(error.filename), "is missing", "the ledger's entries are lost",
                                           Severity.LOSS))
    except CorruptFile as error:
        report.findings.append(corrupt(error, ledger.index_path, "its topic is refused"))
    except OSError as error:
        report.findings.append(unreadable(ledger.ledger_path, error))
    ledger.close()
    return report


def acknowledged(cursor: Cursor | None, ledger_id: int, entries: int) -> NDArray[np.bool_]:
    """Return which of the first `entries` entries of a ledger the cursor has acknowledged, as booleans (n,)."""
    return np.zeros(entries, bool) if cursor is None else cursor.acknowledged(ledger_id, 0, entries)


def runs(numbers: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return (first, end) of each run of consecutive numbers in an ascending array."""
    if not len(numbers):
        return []
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)]


def entries(ledger: Ledger, first: int, end: int) -> str:
    """Return the text that names entries first .. end - 1 of a ledger in a finding."""
    if end - first == 1:
        return f"entry {ledger.ledger_id}:{first}"
    return f"entries {ledger.ledger_id}:{first} to {ledger.ledger_id}:{end - 1}"


# -- headers, and where the rows are

def _find_rows(task: Task, report: LedgerCheck) -> None:
    """Set the ledger's number of entries, and report.index if its rows may differ from those in the index file.

    Rows may differ if some are only in the journal, if the index's header is damaged, or if a broker writes the ledger.
    """
    ledger = report.ledger
    stored: Rows = np.empty(0, format.INDEX_ROW)
    if task.opened is not None:
        ledger.first_message, ledger.created_ms = task.opened
    if task.opened is None or ledger_headers.exists(task.folder, task.ledger_id):
        whole_rows = format.rows_in(ledger.index_path.stat().st_size)
        head = ledger_headers.read_whole_header(ledger.index_path, ledger.ledger_id, ledger.partition_id,
                                                is_served=task.is_served)
        if not ledger_headers.has_ledger_header(ledger.ledger_path, ledger.ledger_id, ledger.partition_id):
            report.findings.append(Finding(ledger.ledger_path, "the ledger's header is damaged",
                                           "nothing in it is needed", Severity.HARMLESS, size=format.HEADER_SIZE))
        if head is not None:
            ledger.first_message, ledger.created_ms = int(head["first_message"][0]), int(head["created_ms"][0])
            ledger.is_sealed = bool(head["state"][0] == format.SEALED)
            ledger.entries, ledger.size = int(head["entries"][0]), int(head["size"][0])
            if not ledger.is_sealed and head["version"][0] == 1:
                take_end(ledger)
        is_settled = ledger.is_sealed or not task.is_served
        if head is not None and not task.rows and is_settled and ledger.entries <= whole_rows:
            return
        stored = read_rows(ledger.index_path)
        report.bytes += stored.nbytes
        if head is None:
            take_bounds(ledger, stored)
            report.findings.append(Finding(
                ledger.index_path, "the index's header is damaged",
                f"it is rebuilt from its rows, with {ledger.entries} entries", Severity.HARMLESS,
                size=format.HEADER_SIZE))
        elif task.is_served and not ledger.is_sealed:
            valid = format.is_valid(stored, ledger.ledger_id)[ledger.entries:]
            ledger.entries += len(valid) if valid.all() else int((~valid).argmax())
        if ledger.entries > len(stored):
            raise CorruptFile(ledger.index_path, format.HEADER_SIZE + stored.nbytes,
                              f"rows of {ledger.entries} entries", "the end of the file")
    end = max([ledger.entries, *(first + len(rows) for first, rows in task.rows)])
    report.index = np.zeros(end, format.INDEX_ROW)
    report.index[:len(stored)] = stored[:end]
    for first, rows in task.rows:
        report.index[first:first + len(rows)] = rows
    ledger.entries = end
    if end and (task.rows or task.is_served):
        ledger.size = int(report.index["offset"][-1]) + int(report.index["size"][-1])


def read_rows(path: Path) -> Rows:
    """Return all allocated rows (n,) INDEX_ROW of an index file."""
    raw = path.read_bytes()
    return np.frombuffer(raw, format.INDEX_ROW, format.rows_in(len(raw)), min(len(raw), format.HEADER_SIZE))


def _mend(report: LedgerCheck) -> None:
    """Repair damaged rows in report.index, and add a finding for each run of damaged rows."""
    ledger = report.ledger
    rows = report.index if report.index is not None else read_rows(ledger.index_path)[:ledger.entries]
    report.index, wrong, ledger.lost, _ = ledger.repaired(rows)
    lost = np.array(ledger.lost, np.int64)
    for first, end in runs(wrong):
        gone = int(((lost >= first) & (lost < end)).sum())
        report.findings.append(Finding(
            ledger.index_path, f"the index data of {entries(ledger, first, end)} is damaged",
            f"{gone} entries are lost with it" if gone else "it is rebuilt from neighbouring rows and entries",
            Severity.LOSS if gone else Severity.HARMLESS, format.index_size(first), (end - first) * _WIDTH, gone))


# -- rows and entries

def _check(task: Task, report: LedgerCheck) -> bool:
    """Check all rows and entries of a ledger.  Return False at the first damaged row, without checking the rest."""
    ledger = report.ledger
    if not ledger.entries:
        return True
    size = ledger.ledger_path.stat().st_size if not task.rows else ledger.size
    if size < ledger.size:
        raise CorruptFile(ledger.ledger_path, size, f"{ledger.size} bytes", "the end of the file")
    gone = acknowledged(task.gone, ledger.ledger_id, ledger.entries)
    gone[ledger.lost] = True
    is_elsewhere = gone.copy()                      # bytes are discarded, or in the journal
    for first, rows in task.rows:
        is_elsewhere[first:first + len(rows)] = True
    order, wrong = _Order(report), []
    reader = None if is_elsewhere.all() else _Reader(ledger.ledger_path)
    for first, rows in _blocks(report):
        if not format.is_valid(rows, ledger.ledger_id, first).all():
            return False
        end = first + len(rows)
        offsets, sizes = rows["offset"].astype(np.int64), rows["size"].astype(np.int64)
        order.check(first, rows, offsets, sizes, gone[first:end])
        wanted = ~is_elsewhere[first:end] & (rows["flags"] & KEPT_CHECKSUM != 0)
        claimed = rows["crc32c"].copy()
        for start, stop in _chunks(offsets, sizes, wanted):
            begin = int(offsets[start])
            begins, ends = offsets[start:stop] - begin, offsets[start:stop] + sizes[start:stop] - begin
            assert reader is not None      # rows of the index file have their bytes in the ledger
            data = reader.read(begin, int(ends[-1]))
            report.bytes += int(ends[-1])
            wrong.append(first + start + checksums.wrong_entries(data, begins, ends, claimed[start:stop]))
    order.finish()
    report.wrong = np.concatenate(wrong) if wrong else report.wrong
    return True


def _blocks(report: LedgerCheck) -> Iterator[tuple[int, Rows]]:
    """Iterate over blocks of index rows as (number of the first row, INDEX_ROW (n,)).

    The rows of a block are valid only until the next block is requested.
    """
    count = report.ledger.entries
    if report.index is not None:
        for first in range(0, count, _BLOCK):
            yield first, report.index[first:min(first + _BLOCK, count)]
        return
    reader = _Reader(report.ledger.index_path)
    for first in range(0, count, _BLOCK):
        size = (min(first + _BLOCK, count) - first) * _WIDTH
        report.bytes += size
        yield first, reader.read(format.index_size(first), size)[:size].view(format.INDEX_ROW)


class _Reader:
    """Reader of a file that reuses one buffer for all reads.

    A memory mapping would be faster, but an I/O error of the disk would then kill the process.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - as long as this lives
        self._memory = np.empty(0, np.uint8)

    def read(self, offset: int, size: int) -> NDArray[np.uint8]:
        """Read `size` bytes at an offset of the file; return a view (size + checksums.BEHIND,) uint8 of the buffer.

        The bytes behind `size` are arbitrary. The next read overwrites the view.

        Raises OSError, and CorruptFile if the file is too short.
        """
        if size + checksums.BEHIND > len(self._memory):
            self._memory = np.empty(max(size, _CHUNK) + checksums.BEHIND, np.uint8)
        self._file.seek(offset)
        into, done = memoryview(self._memory)[:size], 0
        while done < size:
            try:
                count = self._file.readinto(into[done:])
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from error
            if not count:
                raise CorruptFile(self.path, offset + done, f"{size - done} bytes more", "the end of the file")
            done += count
        return self._memory[:size + checksums.BEHIND]

    def __del__(self) -> None:
        self._file.close()


class _Order:
    """Check that entries are contiguous in the ledger, and that message numbers have no gap.

    Gaps beside discarded entries are allowed, because their index rows may have been freed.
    """

    def __init__(self, report: LedgerCheck):
        self._report, ledger = report, report.ledger
        self._end, self._message, self._was_gone = format.HEADER_SIZE, ledger.first_message, ledger.is_header_lost
        # Reported at the end only: when a damaged row ends the check, rows are repaired and all are checked again, and
        # findings of the first check would stand twice.
        self._findings: list[Finding] = []

    def check(self, first: int, rows: Rows, offsets: NDArray[np.int64], sizes: NDArray[np.int64],
              gone: NDArray[np.bool_]) -> None:
        ends, numbers = offsets + sizes, rows["message_index"].astype(np.int64)
        following = numbers + rows["messages"]
        for begins, before, last, what, severity in (
                (offsets, ends, self._end, "does not begin where the one before ends", Severity.LOSS),
                (numbers, following, self._message, "does not count on from the one before", Severity.HARMLESS)):
            is_off = np.empty(len(rows), bool)
            is_off[0] = begins[0] != last and not self._was_gone
            np.not_equal(begins[1:], before[:-1], out=is_off[1:])
            if is_off.any():
                is_off &= ~gone
                is_off[1:] &= ~gone[:-1]
                ledger = self._report.ledger
                self._findings += [
                    Finding(ledger.index_path, f"{entries(ledger, start, end)} {what}",
                            "its row was written with this error", severity, format.index_size(start),
                            (end - start) * _WIDTH) for start, end in runs(first + np.flatnonzero(is_off))]
        self._end, self._message, self._was_gone = int(ends[-1]), int(following[-1]), bool(gone[-1])

    def finish(self) -> None:
        ledger = self._report.ledger
        if self._end != ledger.size:
            self._findings.append(Finding(
                ledger.index_path, f"entries end at byte {self._end}, by the header at {ledger.size}",
                "there may be a gap in the ledger", Severity.HARMLESS, size=format.HEADER_SIZE))
        self._report.findings += self._findings


def _chunks(offsets: NDArray[np.int64], sizes: NDArray[np.int64],
            wanted: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Iterate over (first, end) of wanted entries that are contiguous in the file and are read with one read."""
    joined = offsets[1:] == offsets[:-1] + sizes[:-1]
    joined &= wanted[1:] & wanted[:-1]
    borders = np.concatenate(([0], np.flatnonzero(~joined) + 1, [len(offsets)])).tolist()
    for first, end in itertools.pairwise(borders):
        while first < end and wanted[first]:
            until = max(first + 1, int(np.searchsorted(offsets[:end], offsets[first] + _CHUNK, side="right")) - 1)
            until = end if offsets[end - 1] + sizes[end - 1] <= offsets[first] + _CHUNK else until
            yield first, until
            first = until
