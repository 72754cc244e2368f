"""Repair of a ledger's index.

A row says where its entry lies, and so do the rows around it; what a row says of an entry stands in the entry, too.  So one
damaged row costs nothing.  Entries of several damaged rows in succession are told apart by their checksums.  The time at which
such an entry arrived is taken from its neighbour.

    rows       0 1 ? ? 4       entries 2 and 3 lie between the end of 1 and the beginning of 4

Rows of zeros whose entries are zeros too are not damaged: their blocks were given back (hole_punching.py).  They stay zeros in
the file.  In memory they are filled in: the messages and bytes between their neighbours are shared out evenly.
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

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import ProtocolError
from geminga.proto.frames import CHECKSUM_END, MAGIC
from geminga.proto.sends import INDEX_FIELDS, KEPT_CHECKSUM, BadChecksum, is_chunk, read_one
from geminga.storage import format

_START = MAGIC.to_bytes(2, "big")
_CHUNK = 1 << 20          # bytes read at once


class Bounds(NamedTuple):
    """What an index's header says of its ledger."""

    entries: int
    size: int                 # bytes of the ledger's file up to the end of the last entry
    first_message: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Source:
    """What rows are repaired from."""

    path: Path                # of the ledger's file
    ledger_id: int
    size: int                 # bytes of the ledger's file up to the end of the last entry
    first_message: int
    created_ms: int
    is_discarded: Callable[[int, int], NDArray[np.bool_]] | None      # (first, end) -> needed by no subscription; None: unknown


class Repaired(NamedTuple):
    """Rows of a ledger as they should be."""

    rows: NDArray             # INDEX_ROW (n,)
    wrong: NDArray[np.int64]  # entries whose rows were damaged
    lost: list[int]           # those of them that cannot be brought back
    has_holes: bool           # whether rows of zeros were filled in


def bounds_of(rows: NDArray, ledger_id: int) -> Bounds | None:
    """Bounds by INDEX_ROWs (n,), some of which may be damaged; None when no row is valid."""
    valid = np.flatnonzero(format.is_valid(rows, ledger_id)).tolist()
    if not valid:
        return None
    first, last = rows[valid[0]], rows[valid[-1]]
    return Bounds(valid[-1] + 1, int(last["offset"]) + int(last["size"]), max(0, int(first["message_index"]) - valid[0]),
                  int(first["broker_time"]))


def repair(rows: NDArray, source: Source) -> Repaired:
    """Check INDEX_ROWs (n,) and make the damaged ones anew.  Raises OSError."""
    wrong = np.flatnonzero(~format.is_valid(rows, source.ledger_id))
    if not len(wrong):
        return Repaired(rows, wrong, [], has_holes=False)
    fresh, is_damaged, lost = rows.copy(), np.ones(len(wrong), bool), []
    for run in np.split(np.arange(len(wrong)), np.flatnonzero(np.diff(wrong) > 1) + 1):
        first, end = int(wrong[run[0]]), int(wrong[run[-1]]) + 1
        if _is_given_back(source, rows, first, end):
            _share_out(fresh, first, end)
            is_damaged[run] = False
        else:
            lost += _remake(source, fresh, first, end)
    fresh["checksum"][wrong] = 0
    fresh["checksum"][wrong] = format.row_checksums(fresh[wrong], source.ledger_id, wrong.astype(np.uint64))
    return Repaired(fresh, wrong[is_damaged], lost, has_holes=not is_damaged.all())


def fill_holes(rows: NDArray) -> int:
    """Fill in rows of zeros, in place, as `repair` does; return their number.  All other rows must be valid."""
    empty = np.flatnonzero(rows["size"] == 0)
    for run in np.split(empty, np.flatnonzero(np.diff(empty) > 1) + 1) if len(empty) else ():
        _share_out(rows, int(run[0]), int(run[-1]) + 1)
    return len(empty)


def _is_given_back(source: Source, rows: NDArray, first: int, end: int) -> bool:
    """Whether the blocks of rows first .. end - 1 were given back: rows and entries are zeros, and the rows around are whole."""
    if first == 0 or end == len(rows) or np.ascontiguousarray(rows[first:end]).view(np.uint8).any():
        return False
    if source.is_discarded is not None and not source.is_discarded(first, end).all():
        return False
    start, stop = int(rows["offset"][first - 1]) + int(rows["size"][first - 1]), int(rows["offset"][end])
    return stop - start >= end - first and _is_zero(source.path, start, stop)


def _share_out(rows: NDArray, first: int, end: int) -> None:
    """Fill in rows first .. end - 1, which are zeros, from the rows around them."""
    before, behind, part = rows[first - 1], rows[end], rows[first:end]
    shares = np.arange(end - first + 1)
    start, message = int(before["offset"]) + int(before["size"]), int(before["message_index"]) + int(before["messages"])
    offsets = start + (int(behind["offset"]) - start) * shares // (end - first)
    messages = message + (int(behind["message_index"]) - message) * shares // (end - first)
    part["offset"], part["size"] = offsets[:-1], np.diff(offsets)
    part["message_index"], part["messages"] = messages[:-1], np.diff(messages)
    part["publish_time"], part["broker_time"] = before["publish_time"], before["broker_time"]
    part["deliver_at"] = min(before["deliver_at"], behind["deliver_at"])      # keeps rows sorted by due time if they were
    part["flags"] = KEPT_CHECKSUM


def _remake(source: Source, rows: NDArray, first: int, end: int) -> list[int]:
    """Make rows first .. end - 1 anew, in place; return the entries that are lost."""
    before = rows[first - 1] if first else None
    start = int(before["offset"]) + int(before["size"]) if first else format.HEADER_SIZE
    message = int(before["message_index"]) + int(before["messages"]) if first else source.first_message
    behind = rows[end] if end < len(rows) else None
    stop = int(behind["offset"]) if behind is not None else source.size
    time = int((before if before is not None else behind if behind is not None else {"broker_time": source.created_ms})["broker_time"])
    data = _read(source.path, start, stop)
    pieces = [(start, stop)] if end - first == 1 else _split(data, start, end - first)
    count = int(behind["message_index"]) - message if behind is not None else 0
    for number, (at, until) in enumerate(pieces or [(start, start + 1)] * (end - first)):
        row = rows[first + number:first + number + 1]
        described = _describe(data[at - start:until - start]) if pieces else None
        row[:] = np.zeros(1, format.INDEX_ROW)
        row["offset"], row["size"], row["publish_time"], row["broker_time"], row["message_index"] = at, until - at, time, time, message
        row["messages"], row["flags"] = max(1, count if end - first == 1 else 1), KEPT_CHECKSUM
        if described is not None:
            for name in ("publish_time", "deliver_at", "messages", "key_hash", "flags", "crc32c"):
                row[name] = described[name]
        elif until - at > CHECKSUM_END:
            row["crc32c"] = int.from_bytes(data[at - start + 2:at - start + CHECKSUM_END], "big")
        message += int(row["messages"][0])
    return [] if pieces else list(range(first, end))


def _describe(entry: bytes) -> dict | None:
    """{field of INDEX_ROW: value} of an entry; None when its checksum is wrong."""
    try:
        return dict(zip(INDEX_FIELDS, read_one(api.CommandSend(is_chunk=is_chunk(entry)), entry)[-len(INDEX_FIELDS):], strict=True))
    except (BadChecksum, ProtocolError):
        return None


def _split(data: bytes, start: int, count: int) -> list[tuple[int, int]]:
    """[(begin, end)] of `count` entries in data, which begins at the offset `start`; [] if they cannot be told apart."""
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
    """Whether bytes start .. stop - 1 of a file are zeros.  Holes are not read.  Raises OSError."""
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
