"""ACKs of whole entries, read without the protobuf library: those of one id, and those of many as arrays.

    08 0a 52 ..  08 CONSUMER 10 TYPE  1a SIZE 08 LEDGER 10 ENTRY [18 PARTITION]
    08 0a 52 ..  08 CONSUMER 10 00  (1a SIZE 08 LEDGER 10 ENTRY [18 PARTITION] [20 BATCH INDEX])*  [40 REQUEST]

Clients that do not gather ids send most of their commands in the first form.  Others gather up to a thousand into one
command; ids of one form are a stretch, read with a few operations per column.  A command of any other form is left to
the library; one that acknowledges part of a batch is among them.
"""
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminga.proto import varints
from geminga.proto.batches import MESSAGES_MAX

SIZE_MIN = 128              # bytes of the smallest command that arrays read faster than the library
WORDS_MAX = -(-MESSAGES_MAX // 64)      # words of the longest ack set: a bit for each message of a batch
_HEAD = b"\x08\x0a\x52"
_INDIVIDUAL = b"\x10\x00"
_ID, _REQUEST = 0x1A, 0x40
_LEDGER, _ENTRY = 0x08, 0x10
_IGNORED = 0x18, 0x20       # partition and batch index: ledger and entry identify a whole entry
_STRETCHES_MAX = 16
ONE_SIZE_MAX = 127          # bytes of an ACK of one id: each size in it is one byte
_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_FORM = rb"\x08\x0a\x52(.)\x08(%b)\x10([\x00\x01])\x1a(.)\x08(%b)\x10(%b)(?:\x18%b)?" % (4 * (_VARINT,))
_one = re.compile(_FORM, re.DOTALL).fullmatch


@dataclass(slots=True)
class EntryAcks:
    """Individual acknowledgements of whole entries; ids are (n,)."""

    consumer_id: int
    ledger_ids: NDArray[np.uint64]
    entry_ids: NDArray[np.uint64]
    request_id: int | None


@dataclass(slots=True)
class EntryAck:
    """An acknowledgement of one whole entry, or of all up to it, without a request id."""

    consumer_id: int
    is_cumulative: bool
    ledger_id: int
    entry_id: int


def read_one(command: bytes) -> EntryAck | None:
    """Decode an ACK of one whole entry, of at most ONE_SIZE_MAX bytes; return None for an ACK of another form."""
    found = _one(command)
    if found is None:
        return None
    size, consumer_id, kind, id_size, ledger_id, entry_id = found.groups()
    if size[0] != len(command) - 4 or id_size[0] != len(command) - found.end(4):
        return None
    return EntryAck(_number(consumer_id), kind == b"\1", _number(ledger_id), _number(entry_id))


def _number(varint: bytes) -> int:
    if len(varint) == 1:
        return varint[0]
    if len(varint) == 2:
        return varint[0] & 127 | varint[1] << 7
    return varints.decode(varint, 0)[0]


def read(command: bytes) -> EntryAcks | None:
    """Decode an ACK of many whole entries as arrays; return None for an ACK of another form."""
    if not command.startswith(_HEAD):
        return None
    try:
        size, at = varints.decode(command, len(_HEAD))
        if at + size != len(command) or command[at] != 0x08:
            return None
        consumer_id, at = varints.decode(command, at + 1)
        if command[at:at + 2] != _INDIVIDUAL:
            return None
        return _ids(command, at + 2, consumer_id)
    except (IndexError, ValueError):
        return None


def _ids(command: bytes, at: int, consumer_id: int) -> EntryAcks | None:
    data = np.frombuffer(command, np.uint8)
    stretches: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = []
    while at < len(command) and command[at] == _ID:
        stretch = _stretch(command, data, at)
        if stretch is None or len(stretches) == _STRETCHES_MAX:
            return None
        ledger_ids, entry_ids, size = stretch
        stretches.append((ledger_ids, entry_ids))
        at += size
    request_id = None
    if at < len(command):
        if command[at] != _REQUEST:
            return None
        request_id, at = varints.decode(command, at + 1)
    if not stretches or at != len(command):
        return None
    return EntryAcks(consumer_id, np.concatenate([ledger_ids for ledger_ids, _ in stretches]),
                     np.concatenate([entry_ids for _, entry_ids in stretches]), request_id)


def _stretch(command: bytes, data: NDArray[np.uint8],
             at: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64], int] | None:
    """Return (ledger ids, entry ids, bytes read) of the message ids from `at` on that are encoded like the first
    one.
    """
    step = 2 + command[at + 1]
    columns, tight, place = {}, np.full(step, 255, np.uint8), at + 2
    while place < at + step:
        tag = command[place]
        _, end = varints.decode(command, place + 1)
        if tag in columns or tag not in (_LEDGER, _ENTRY, *_IGNORED) or end > at + step:
            return None
        columns[tag] = place + 1 - at, end - at
        tight[place + 1 - at:end - at] = 128      # the value of a varint may differ, its length may not
        place = end
    if _LEDGER not in columns or _ENTRY not in columns:
        return None
    rows = data[at:at + (len(data) - at) // step * step].reshape(-1, step)
    same = (((rows ^ rows[0]) & tight) == 0).all(axis=1)
    count = len(rows) if same.all() else int(same.argmin())
    return _values(rows[:count], *columns[_LEDGER]), _values(rows[:count], *columns[_ENTRY]), count * step


def _values(rows: NDArray[np.uint8], start: int, end: int) -> NDArray[np.uint64]:
    values = np.zeros(len(rows), np.uint64)
    for byte in range(start, end):
        values |= (rows[:, byte] & 127).astype(np.uint64) << np.uint64(7 * (byte - start))
    return values
