"""What can be brought back of a ledger's index that is damaged.

A row says where its entry lies, and so do the rows beside it; what it says of the entry stands in the entry itself.  So one
damaged row costs nothing, and of several that lie together the entries are told apart by their checksums.  The time at which an
entry came is its neighbour's then.

    rows       0 1 ? ? 4       entries 2 and 3 lie between the end of 1 and the beginning of 4

Rows of zeros whose entries are zeros too are not damaged: their space was given back (hole_punching.py).  They stay zeros in the file.  In
memory they say what lies around them: messages and bytes are shared out evenly, and together are as many as there were.
"""
import errno
import functools
import os
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import ProtocolError
from geminga.proto.frames import CHECKSUM_END, MAGIC
from geminga.proto.sends import INDEX_FIELDS, KEPT_CHECKSUM, BadChecksum, is_chunk, read_one
from geminga.storage import format

if TYPE_CHECKING:
    from geminga.storage.ledgers.ledger import Ledger

_START = MAGIC.to_bytes(2, "big")
_STRIDE = 1_024
_CHUNK = 1 << 20          # bytes read at once


def make_header(ledger: "Ledger") -> None:
    """The index's header, from its rows; a ledger that has none begins where the one before it ends, which its partition knows."""
    find_bounds(ledger, _all_rows(ledger))
    ledger.damage.append(f"{ledger.index_path}: its header is damaged and was made anew, with {ledger.entries} entries")
    _write(ledger, 0, ledger.header())


def find_bounds(ledger: "Ledger", rows: NDArray) -> None:
    """What its header would say, from all rows there may be."""
    valid = np.flatnonzero(format.is_valid(rows, ledger.ledger_id)).tolist()
    ledger.entries, ledger.size, ledger.is_header_lost = 0, format.HEADER_SIZE, not valid
    if valid:
        first, last = rows[valid[0]], rows[valid[-1]]
        ledger.entries, ledger.size = valid[-1] + 1, int(last["offset"]) + int(last["size"])
        ledger.first_message, ledger.created_ms = max(0, int(first["message_index"]) - valid[0]), int(first["broker_time"])


def find_end(ledger: "Ledger") -> None:
    """Of an open ledger of version 1, whose header does not say: it is as long as its valid rows."""
    rows = _all_rows(ledger)
    ledger.entries = format.valid_rows(rows, ledger.ledger_id)
    if ledger.entries:
        last = rows[ledger.entries - 1]
        ledger.size = int(last["offset"]) + int(last["size"])


def check_rows(ledger: "Ledger") -> None:
    """Rows that another process wrote are right, or made anew; what there is no way to tell is in ledger.lost."""
    count, ledger._unchecked = min(ledger._unchecked, ledger.entries), 0
    fresh, wrong, lost = mend(ledger, ledger._index[:count])
    if not len(wrong):
        return
    for entry_id in wrong.tolist():
        _write(ledger, format.HEADER_SIZE + entry_id * format.INDEX_ROW.itemsize, fresh[entry_id].tobytes())
    ledger.damage.append(f"{ledger.index_path}: damaged rows were made anew, of {len(wrong)} entries from {wrong[0]} on")
    if lost:
        ledger.lost += lost
        ledger.damage.append(f"{ledger.ledger_path}: {len(lost)} entries from {lost[0]} on are lost with their index")


def mend(ledger: "Ledger", rows: NDArray) -> tuple[NDArray, NDArray, list[int]]:
    """(the ledger's rows as they should be, which of them are damaged, the entries that are lost with them)"""
    wrong, lost = np.flatnonzero(~format.is_valid(rows, ledger.ledger_id)), []
    if not len(wrong):
        return rows, wrong, lost
    fresh, is_damaged = rows.copy(), np.ones(len(wrong), bool)
    for run in np.split(np.arange(len(wrong)), np.flatnonzero(np.diff(wrong) > 1) + 1):
        first, end = int(wrong[run[0]]), int(wrong[run[-1]]) + 1
        if _is_given_back(ledger, rows, first, end):
            _share_out(fresh, first, end)
            ledger.has_holes, is_damaged[run] = True, False
        else:
            lost += _mend(ledger, fresh, first, end)
    fresh["checksum"][wrong] = 0
    fresh["checksum"][wrong] = format.row_checksums(fresh[wrong], ledger.ledger_id, wrong.astype(np.uint64))
    return fresh, wrong[is_damaged], lost


def fill_holes(rows: NDArray) -> int:
    """Rows of zeros among those of a ledger say what `mend` has them say; returns how many.  All others are whole."""
    empty = np.flatnonzero(rows["size"] == 0)
    for run in np.split(empty, np.flatnonzero(np.diff(empty) > 1) + 1) if len(empty) else ():
        _share_out(rows, int(run[0]), int(run[-1]) + 1)
    return len(empty)


def _is_given_back(ledger: "Ledger", rows: NDArray, first: int, end: int) -> bool:
    """Whether the space of rows first .. end - 1 was given back: they are zeros, as are their entries, and those around them are whole."""
    if first == 0 or end == len(rows) or np.ascontiguousarray(rows[first:end]).view(np.uint8).any():
        return False
    if ledger.gone is not None and not ledger.gone.acknowledged(ledger.ledger_id, first, end).all():
        return False
    start, stop = int(rows["offset"][first - 1]) + int(rows["size"][first - 1]), int(rows["offset"][end])
    return stop - start >= end - first and _is_nothing(ledger, start, stop)


def _share_out(rows: NDArray, first: int, end: int) -> None:
    """Fill in rows first .. end - 1, of zeros, from those around them."""
    before, behind, part = rows[first - 1], rows[end], rows[first:end]
    shares = np.arange(end - first + 1)
    start, message = int(before["offset"]) + int(before["size"]), int(before["message_index"]) + int(before["messages"])
    offsets = start + (int(behind["offset"]) - start) * shares // (end - first)
    messages = message + (int(behind["message_index"]) - message) * shares // (end - first)
    part["offset"], part["size"] = offsets[:-1], np.diff(offsets)
    part["message_index"], part["messages"] = messages[:-1], np.diff(messages)
    part["publish_time"], part["broker_time"] = before["publish_time"], before["broker_time"]
    part["deliver_at"] = min(before["deliver_at"], behind["deliver_at"])      # what is in the order of these times stays so
    part["flags"] = KEPT_CHECKSUM


def _mend(ledger: "Ledger", rows: NDArray, first: int, end: int) -> list[int]:
    """Fill in rows first .. end - 1 from what lies around them; returns the entries that are lost."""
    before = rows[first - 1] if first else None
    start = int(before["offset"]) + int(before["size"]) if first else format.HEADER_SIZE
    message = int(before["message_index"]) + int(before["messages"]) if first else ledger.first_message
    behind = rows[end] if end < len(rows) else None
    stop = int(behind["offset"]) if behind is not None else ledger.size
    time = int((before if before is not None else behind if behind is not None else {"broker_time": ledger.created_ms})["broker_time"])
    data = _read(ledger, start, stop)
    pieces = [(start, stop)] if end - first == 1 else _split(data, start, end - first)
    count = int(behind["message_index"]) - message if behind is not None else 0
    for number, (at, until) in enumerate(pieces or [(start, start + 1)] * (end - first)):
        row = rows[first + number:first + number + 1]
        found = _describe(data[at - start:until - start]) if pieces else None
        row[:] = np.zeros(1, format.INDEX_ROW)
        row["offset"], row["size"], row["publish_time"], row["broker_time"], row["message_index"] = at, until - at, time, time, message
        row["messages"], row["flags"] = max(1, count if end - first == 1 else 1), KEPT_CHECKSUM
        if found is not None:
            for name in ("publish_time", "deliver_at", "messages", "key_hash", "flags", "crc32c"):
                row[name] = found[name]
        elif until - at > CHECKSUM_END:
            row["crc32c"] = int.from_bytes(data[at - start + 2:at - start + CHECKSUM_END], "big")
        message += int(row["messages"][0])
    return [] if pieces else list(range(first, end))


def _describe(entry: bytes) -> dict | None:
    """What the index says of an entry, if that is whole."""
    try:
        return dict(zip(INDEX_FIELDS, read_one(api.CommandSend(is_chunk=is_chunk(entry)), entry)[-len(INDEX_FIELDS):], strict=True))
    except (BadChecksum, ProtocolError):
        return None


def _split(data: bytes, start: int, count: int) -> list[tuple[int, int]]:
    """[(begin, end)] of the entries that lie one behind the other in data, from the offset `start` on; [] if they cannot be told apart."""
    found, at = [], 0
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
        found.append((start + at, start + end))
        at = end
    return found if len(found) == count and at == len(data) else []


def _all_rows(ledger: "Ledger") -> NDArray:
    raw = ledger.index_path.read_bytes()
    return np.frombuffer(raw, format.INDEX_ROW, max(0, len(raw) - format.HEADER_SIZE) // format.INDEX_ROW.itemsize,
                         min(len(raw), format.HEADER_SIZE))


def _read(ledger: "Ledger", start: int, stop: int) -> bytes:
    with open(ledger.ledger_path, "rb") as file:
        file.seek(start)
        return file.read(max(0, stop - start))


def _is_nothing(ledger: "Ledger", start: int, stop: int) -> bool:
    """Whether these bytes of its entries' file are zeros."""
    with open(ledger.ledger_path, "rb", buffering=0) as file:
        try:
            while (start := os.lseek(file.fileno(), start, os.SEEK_DATA)) < stop:
                data = file.read(min(stop - start, _CHUNK))
                if data.count(0) < len(data):
                    return False
                start += len(data)
        except OSError as error:
            if error.errno != errno.ENXIO:      # else nothing but a hole follows
                raise
    return True


def _write(ledger: "Ledger", offset: int, data: bytes) -> None:
    """Into the index, whose length stays as it is."""
    fd = os.open(ledger.index_path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def wrong_bit(size: int, difference: int) -> int | None:
    """Which bit of `size` bytes is wrong, when one is and their CRC32-C differs so from what it should be; None: it is more than one.

    A CRC is linear: the difference is what comes of that bit and of the zeros behind it.  So zeros are taken back, many at a time,
    until it is one that is known.
    """
    if not difference:
        return None
    known, back = _strides()
    for behind in range(0, size, _STRIDE):
        if difference in known:
            zeros, bit = known[difference]
            at = size - 1 - behind - zeros
            return 8 * at + bit if at >= 0 else None
        bits, difference = difference, 0
        for number in range(32):
            if bits >> number & 1:
                difference ^= back[number]
    return None


@functools.cache
def _strides() -> tuple[dict[int, tuple[int, int]], list[int]]:
    """({CRC of a byte with one bit and fewer zeros than a stride behind it: (zeros, bit)}, what each bit of a CRC was a stride before)"""
    of_byte = [crc32c(bytes([byte])) ^ crc32c(bytes(1)) for byte in range(256)]      # what a byte adds to a CRC
    by_top = {crc >> 24: byte for byte, crc in enumerate(of_byte)}
    known, back = {}, []
    for bit in range(8):
        crc = of_byte[1 << bit]
        for zeros in range(_STRIDE):
            known[crc] = zeros, bit
            crc = crc >> 8 ^ of_byte[crc & 0xFF]
    for bit in range(32):
        crc = 1 << bit
        for _ in range(_STRIDE):
            last = by_top[crc >> 24]
            crc = (crc ^ of_byte[last]) << 8 & 0xFFFFFFFF | last
        back.append(crc)
    return known, back
