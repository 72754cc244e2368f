"""The newest lines of the log, of all processes: a block of shared memory, made by the supervisor before it forks.

Each process has a row, which only the process itself writes, so nothing is locked.  A restarted process continues the
row of its predecessor.  A row is the number of bytes ever written to it, then a ring of ROW_BYTES:

    ... | JSON: [time in ms, level, code, text] | its length, 2 bytes | its CRC-32, 4 bytes | ...

A reader begins at the end and goes back from line to line. Where the length or the checksum is wrong, the ring was
written over meanwhile, or begins: the reader stops there.
"""
import heapq
import json
import mmap
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

ROW_BYTES = 64 << 10         # some 500 lines of each process
_TEXT_MAX = 4_000            # characters of a line's text that are kept; a traceback's end says most
_TOTAL = struct.Struct("<Q")
_END = struct.Struct("<HI")


class Line(NamedTuple):
    """A line of the log."""

    time_ms: int
    process: str
    level: int               # syslog's number
    code: str
    text: str


class LogLines:
    """The newest lines of all processes."""

    def __init__(self, processes: Sequence[str]):
        """Make rows for processes of these names, in memory that processes forked later share."""
        self._width = _TOTAL.size + ROW_BYTES
        self._memory = mmap.mmap(-1, self._width * max(1, len(processes)))
        self._rows = {name: number * self._width for number, name in enumerate(processes)}

    def __repr__(self) -> str:
        return f"<LogLines processes={len(self._rows)}>"

    def write(self, process: str, level: int, text: str, code: str) -> None:
        """Add a line to the row of a process, which only that process may do.  A process without a row keeps none."""
        if (at := self._rows.get(process)) is None:
            return
        if len(text) > _TEXT_MAX:
            text = f"{text[:_TEXT_MAX // 4]} ... {text[-_TEXT_MAX // 4 * 3:]}"
        # ASCII, so at most 12 bytes for a character: the length fits into two bytes.
        line = json.dumps([time.time_ns() // 1_000_000, level, code, text]).encode()
        record = line + _END.pack(len(line), zlib.crc32(line))
        memory, ring = self._memory, at + _TOTAL.size
        total, = _TOTAL.unpack_from(memory, at)
        begin = total % ROW_BYTES
        head = record[:ROW_BYTES - begin]
        memory[ring + begin:ring + begin + len(head)] = head
        memory[ring:ring + len(record) - len(head)] = record[len(head):]
        _TOTAL.pack_into(memory, at, total + len(record))      # last: a reader sees whole lines up to here

    def newest(self) -> Iterator[Line]:
        """Yield the kept lines of all processes, the newest first."""
        return heapq.merge(*(self._of(name, at) for name, at in self._rows.items()), key=lambda line: -line.time_ms)

    def _of(self, name: str, at: int) -> Iterator[Line]:
        """Yield the lines of one row, the newest first."""
        total, = _TOTAL.unpack_from(self._memory, at)
        ring = self._memory[at + _TOTAL.size:at + self._width]
        end = total % ROW_BYTES
        data = ring[end:] + ring[:end] if total >= ROW_BYTES else ring[:end]      # the oldest byte first
        place = len(data)
        while (place := place - _END.size) >= 0:
            length, checksum = _END.unpack_from(data, place)
            line = data[place - length:place] if length <= place else b""
            if not line or zlib.crc32(line) != checksum:
                return
            yield Line(*_fields(line, name))
            place -= length


def _fields(line: bytes, process: str) -> tuple[int, str, int, str, str]:
    time_ms, level, code, text = json.loads(line)
    return time_ms, process, level, code, text
