"""Repair a ledger's index: rebuild damaged rows from entries and neighbouring rows.

A row says where its entry lies, and so do the rows around it.  Everything else in a row is in the entry, too.  So one
damaged row can always be rebuilt.  Entries of several damaged rows in succession are told apart by their checksums.
Only the time at which such an entry arrived is taken from a neighbour.

    rows       0 1 ? ? 4       entries 2 and 3 lie between the end of 1 and the beginning of 4

Rows of zeros whose entries are zeros too are not damaged: their blocks were freed (hole_punching.py).  They stay zeros
in the file.  In memory they are filled in: the messages and bytes between their neighbours are shared out evenly.
"""
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.batch_priorities import batch_flags
from geminga.proto.compression import UNPACKED_MAX
from geminga.proto.errors import ProtocolError
from geminga.proto.frames import CHECKSUM_END, MAGIC
from geminga.proto.job_properties import BATCH_BITS
from geminga.proto.rows import Rows
from geminga.proto.sends import (
    INDEX_FIELDS,
    IS_BATCH,
    IS_CHUNK,
    KEPT_CHECKSUM,
    BadChecksum,
    command_of,
    read_one,
)
from geminga.storage import format

_START = MAGIC.to_bytes(2, "big")
_CHUNK = 1 << 20          # bytes read at once


class Bounds(NamedTuple):
    """Fields of an index's header that can be computed from its rows."""

    entries: int
    size: int                 # bytes of the ledger's file up to the end of the last entry
    first_message: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Source:
    """The ledger whose index rows are repaired."""

    path: Path                # of the ledger's file
    ledger_id: int
    size: int                 # bytes of the ledger's file up to the end of the last entry
    first_message: int
    created_ms: int
    # (first, end) -> which of these entries no subscription needs; None: unknown
    is_discarded: Callable[[int, int], NDArray[np.bool_]] | None


class Repaired(NamedTuple):
    """Result of a repair: the correct rows of a ledger, and which entries were damaged or lost."""

    rows: Rows                # (n,) INDEX_ROW
    wrong: NDArray[np.int64]  # entries whose rows were damaged
    lost: list[int]           # entries of `wrong` whose rows cannot be rebuilt
    has_holes: bool           # whether rows of zeros were filled in


def bounds_of(rows: Rows, ledger_id: int) -> Bounds | None:
    """Compute the header's bounds from INDEX_ROWs (n,), some of which may be damaged; None if no row is valid."""
    valid = np.flatnonzero(format.is_valid(rows, ledger_id)).tolist()
    if not valid:
        return None
    first, last = rows[valid[0]], rows[valid[-1]]
    # Entries before the first valid row have at least one message each.
    first_message = max(0, int(first["message_index"]) - valid[0])
    return Bounds(valid[-1] + 1, int(last["offset"]) + int(last["size"]), first_message, int(first["broker_time"]))


def repair(rows: Rows, source: Source) -> Repaired:
    """Check INDEX_ROWs (n,), and return a copy in which damaged rows are rebuilt.  Raises OSError."""
    wrong = np.flatnonzero(~format.is_valid(rows, source.ledger_id))
    if not len(wrong):
        return Repaired(rows, wrong, [], has_holes=False)
    lost: list[int] = []
    fresh, is_damaged = rows.copy(), np.ones(len(wrong), bool)
    for run in np.split(np.arange(len(wrong)), np.flatnonzero(np.diff(wrong) > 1) + 1):
        first, end = int(wrong[run[0]]), int(wrong[run[-1]]) + 1
        if _is_given_back(source, rows, first, end):
            _share_out(fresh, first, end)
            is_damaged[run] = False
        else:
            lost += _rebuild(source, fresh, first, end)
    fresh["checksum"][wrong] = 0
    fresh["checksum"][wrong] = format.row_checksums(fresh[wrong], source.ledger_id, wrong.astype(np.uint64))
    return Repaired(fresh, wrong[is_damaged], lost, has_holes=not is_damaged.all())


def fill_holes(rows: Rows) -> int:
    """Fill in rows of zeros among INDEX_ROWs (n,), in place, as `repair` does; return how many were filled in.

    All other rows must be valid.
    """
    empty = np.flatnonzero(rows["size"] == 0)
    for run in np.split(empty, np.flatnonzero(np.diff(empty) > 1) + 1) if len(empty) else ():
        _share_out(rows, int(run[0]), int(run[-1]) + 1)
    return len(empty)


def _is_given_back(source: Source, rows: Rows, first: int, end: int) -> bool:
    """Whether rows first .. end - 1 are zeros because their blocks were freed, and not because of damage.

    Blocks were freed if the rows and entries are zeros, no subscription needs the entries, and valid rows lie on both
    sides.

    Raises OSError.
    """
    if first == 0 or end == len(rows) or np.ascontiguousarray(rows[first:end]).view(np.uint8).any():
        return False
    if source.is_discarded is not None and not source.is_discarded(first, end).all():
        return False
    before, behind = rows[first - 1], rows[end]
    start, stop = int(before["offset"]) + int(before["size"]), int(behind["offset"])
    return stop - start >= end - first and _is_zero(source.path, start, stop)


def _share_out(rows: Rows, first: int, end: int) -> None:
    """Fill in rows first .. end - 1, which are zeros, from the neighbouring rows.

    Bytes and messages between both neighbours are shared out evenly.
    """
    before, behind, part = rows[first - 1], rows[end], rows[first:end]
    shares = np.arange(end - first + 1)
    start = int(before["offset"]) + int(before["size"])
    message = int(before["message_index"]) + int(before["messages"])
    offsets = start + (int(behind["offset"]) - start) * shares // (end - first)
    messages = message + (int(behind["message_index"]) - message) * shares // (end - first)
    part["offset"], part["size"] = offsets[:-1], np.diff(offsets)
    part["message_index"], part["messages"] = messages[:-1], np.diff(messages)
    part["publish_time"], part["broker_time"] = before["publish_time"], before["broker_time"]
    # The earlier delivery time keeps rows sorted by delivery time, if they were.
    part["deliver_at"] = min(before["deliver_at"], behind["deliver_at"])
    part["flags"] = KEPT_CHECKSUM


class _Gap(NamedTuple):
    """Place, messages and time of the entries of a run of damaged rows, taken from the valid rows around the run."""

    start: int                # offset of the first entry
    stop: int                 # offset behind the last one
    message: int              # messages of the partition before the first entry
    messages: int | None      # of all entries together; None: unknown, as no row follows the run
    time: int                 # broker time of a neighbour, used for all entries


def _gap(source: Source, rows: Rows, first: int, end: int) -> _Gap:
    """Return place, messages and time of the entries of damaged rows first .. end - 1."""
    start, message, time = format.HEADER_SIZE, source.first_message, source.created_ms
    stop, messages = source.size, None
    if end < len(rows):
        behind = rows[end]
        stop, time = int(behind["offset"]), int(behind["broker_time"])
    if first:
        before = rows[first - 1]
        start = int(before["offset"]) + int(before["size"])
        message = int(before["message_index"]) + int(before["messages"])
        time = int(before["broker_time"])
    if end < len(rows):
        messages = int(rows[end]["message_index"]) - message
    return _Gap(start, stop, message, messages, time)


def _rebuild(source: Source, rows: Rows, first: int, end: int) -> list[int]:
    """Rebuild rows first .. end - 1, in place; return the ids of entries that are lost.  Raises OSError.

    1. The neighbouring rows give the byte range of the file in which the entries lie (`_gap`).

    2. A single damaged row has the range for itself.  Several entries are told apart by their checksums (`_split`).  If
       that fails, all of them are lost, and their rows become placeholders of one byte at the start of the range.

    3. All other fields of a row are read from its entry (`_describe`).  If the entry is damaged too, the row gets the
       checksum in the entry's own header, so that readers see the entry fail.
    """
    gap = _gap(source, rows, first, end)
    count, message = end - first, gap.message
    data = _read(source.path, gap.start, gap.stop)
    pieces = [(gap.start, gap.stop)] if count == 1 else _split(data, gap.start, count)
    messages = max(1, gap.messages or 1) if count == 1 else 1      # of an entry that cannot be read
    for number, (at, until) in enumerate(pieces or [(gap.start, gap.start + 1)] * count):
        row, time = rows[first + number:first + number + 1], gap.time
        entry = data[at - gap.start:until - gap.start]
        described = _describe(entry) if pieces else None
        row[:] = np.zeros(1, format.INDEX_ROW)
        row["offset"], row["size"], row["message_index"] = at, until - at, message
        row["publish_time"], row["broker_time"] = time, time
        row["messages"], row["flags"] = messages, KEPT_CHECKSUM
        if described is not None:
            for name in ("publish_time", "deliver_at", "messages", "key_hash", "flags", "crc32c"):
                row[name] = described[name]
        elif until - at > CHECKSUM_END:
            row["crc32c"] = int.from_bytes(entry[2:CHECKSUM_END], "big")
        message += int(row["messages"][0])
    return [] if pieces else list(range(first, end))


def _describe(entry: bytes) -> dict[str, int] | None:
    """Return {field of INDEX_ROW: value} as read from an entry; None if its checksum is wrong."""
    try:
        fields = read_one(command_of(entry), entry)[-len(INDEX_FIELDS):]
    except (BadChecksum, ProtocolError):
        return None
    described = dict(zip(INDEX_FIELDS, fields, strict=True))
    # Whether the partition delivered by priority when the entry came is not known here.  If not, the bits do nothing.
    if described["flags"] & (IS_BATCH | IS_CHUNK) == IS_BATCH and (found := batch_flags(entry, UNPACKED_MAX)[0]):
        described["flags"] = described["flags"] & ~BATCH_BITS | found
    return described


def _split(data: bytes, start: int, count: int) -> list[tuple[int, int]]:
    """Split data into `count` entries: return [(begin, end)] as offsets; [] if the entries cannot be told apart.

    start: offset of data.  An entry ends at the next magic number up to which its checksum is right.  The checksum is
    needed because a magic number may also be part of an entry's content.
    """
    pieces, at = [], 0
    while at < len(data) and data[at:at + 2] == _START:
        claimed = int.from_bytes(data[at + 2:at + CHECKSUM_END], "big")
        checksum, covered, end = 0, at + CHECKSUM_END, at + CHECKSUM_END
        while end < len(data) and (checksum != claimed or end == at + CHECKSUM_END):
            end = data.find(_START, end + 1)
            end = len(data) if end < 0 else end
            checksum = crc32c(data[covered:end], checksum)
            covered = end
        if checksum != claimed:
            return []
        pieces.append((start + at, start + end))
        at = end
    return pieces if len(pieces) == count and at == len(data) else []


def _read(path: Path, start: int, stop: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(max(0, stop - start))


def _is_zero(path: Path, start: int, stop: int) -> bool:
    """Whether bytes start .. stop - 1 of a file are zeros.  Holes are skipped, not read.  Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        try:
            while (start := os.lseek(file.fileno(), start, os.SEEK_DATA)) < stop:
                data = file.read(min(stop - start, _CHUNK))
                if data.count(0) < len(data):
                    return False
                start += len(data)
        except OSError as error:
            if error.errno != errno.ENXIO:      # ENXIO: a hole up to the end of the file
                raise
    return True
