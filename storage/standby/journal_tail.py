"""The tail of a journal: the records that its owner appends, read from its segments' files as it writes them.

    read() -> Block   whole records of one segment, in order, as bytes that are copied into a file at the same offset;
                      none at the begin of a segment
           -> None    the end: the owner has written nothing more yet

The reader never talks to the owner and takes no lock.  A record counts when its checksum is right.  Segments are used
again, so a reader that stays far behind misses records, which raises Overtaken.
"""
import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np

from geminga.storage import format
from geminga.storage.ledgers import journal_reader
from geminga.storage.ledgers.journal_reader import StoredRecord

_READ_BYTES = 256 << 10      # at once; what lies behind the newest record is of an earlier use of the file


class Overtaken(Exception):
    """Exception for a journal that does not continue at the reader's place: records were missed, or never were."""


class JournalPlaceFields(TypedDict):
    """A JournalPlace as JSON."""

    sequence: int
    at: int
    first: int
    number: int
    last: str


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """A place between two records of a journal."""

    sequence: int            # of the segment
    at: int                  # offset in it
    first: int               # number of the segment's first record
    number: int              # number of the next record
    last: str = ""           # hexadecimal; the header of the record before in this segment, "" if it has none

    def fields(self) -> JournalPlaceFields:
        """Return the place as frames and the file `standby` have it."""
        return {"sequence": self.sequence, "at": self.at, "first": self.first, "number": self.number, "last": self.last}


@dataclass(slots=True)
class Block:
    """Whole records of one segment."""

    begin: JournalPlace
    end: JournalPlace
    data: bytes = field(repr=False)
    records: list[StoredRecord] = field(repr=False)


def beginning(folder: Path) -> JournalPlace | None:
    """Return the begin of the oldest record that a start would replay.

    None for a journal that nobody writes: it has no segment, or the newest is retired.  Raises OSError, CorruptFile.
    """
    heads = journal_reader.heads(folder)
    newest = sequence = max(heads, default=0)
    if not newest or heads[newest][1]["is_retired"]:
        return None
    while sequence - 1 in heads and not heads[sequence - 1][1]["is_retired"]:
        sequence -= 1
    first = int(heads[sequence][1]["first_record"])
    return JournalPlace(sequence, format.HEADER_SIZE, first, first)


class JournalTail:
    """A reader of one journal, from a place on."""

    def __init__(self, folder: Path, place: JournalPlace):
        self.folder, self.place = folder, place
        self._fd = -1

    def __repr__(self) -> str:
        return f"<JournalTail {self.folder} {self.place}>"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def check(self) -> None:
        """Raise Overtaken unless the journal continues here: it has the record before this place, and those behind it.

        A journal that lost its end in a power cut, or that belongs to another copy of the data folder, does not.
        Raises OSError, CorruptFile.
        """
        head = journal_reader.heads(self.folder).get(self.place.sequence)
        if self.place.last and head is not None:
            size = journal_reader.record_size(memoryview(bytes.fromhex(self.place.last)), self.place.sequence,
                                              self.place.number - 1)
            if _pread(head[0], format.HEADER_SIZE, self.place.at - size).hex() != self.place.last:
                raise Overtaken(f"{self.folder}: record {self.place.number - 1} is another one than the copy has")
        with contextlib.closing(JournalTail(self.folder, self.place)) as probe:
            if probe.read() is None and probe.place.sequence == self.place.sequence and head is None:
                raise Overtaken(f"{self.folder}: segment {self.place.sequence} is gone")

    def read(self) -> Block | None:
        """Return the next records, None if there is none yet.  Raises Overtaken, OSError, CorruptFile."""
        if (block := self._read()) is not None:
            return block
        heads = journal_reader.heads(self.folder)
        following = min((sequence for sequence in heads if sequence > self.place.sequence), default=0)
        if not following:
            if self._fd >= 0 and not self._is_ours():
                raise Overtaken(f"{self.folder}: segment {self.place.sequence} is gone")
            return None
        if (block := self._read()) is not None:      # appended just before the next segment was begun
            return block
        path, head = heads[following]
        self._go_to(path, following, self._first_of(path, head, following))
        return Block(self.place, self.place, b"", [])

    def _read(self) -> Block | None:
        if self._fd < 0 and not self._open():
            return None
        place = self.place
        head = memoryview(os.pread(self._fd, format.HEADER_SIZE, place.at))
        if not (size := journal_reader.record_size(head, place.sequence, place.number)):
            return None
        raw = memoryview(os.pread(self._fd, max(size, _READ_BYTES), place.at))
        records, size = journal_reader.whole_records(raw, place.sequence, place.number)
        if not records:
            return None
        self.place = behind(place, raw[:size], len(records))
        return Block(place, self.place, bytes(raw[:size]), records)

    def _open(self) -> bool:
        """Open the file of this segment, if there is one."""
        head = journal_reader.heads(self.folder).get(self.place.sequence)
        if head is None:
            return False
        try:
            self._fd = os.open(head[0], os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        return True

    def _is_ours(self) -> bool:
        """Whether the open file still is the segment that is being read."""
        head = np.frombuffer(os.pread(self._fd, format.HEADER_SIZE, 0), format.SEGMENT_HEADER)
        return len(head) == 1 and int(head["sequence"][0]) == self.place.sequence

    def _first_of(self, path: Path, head: np.void, sequence: int) -> int:
        """Return the number of the first record of the next segment.

        Raises Overtaken unless that record follows on the last one that was read.  Segments between the two that had no
        records do not matter.
        """
        first = int(head["first_record"])
        if head["is_retired"]:
            first = _first_record(path, sequence) or first
        if first == self.place.number:
            return first
        raise Overtaken(f"{self.folder}: record {self.place.number} was overwritten before it was read")

    def _go_to(self, path: Path, sequence: int, first: int) -> None:
        self.close()
        self.place = JournalPlace(sequence, format.HEADER_SIZE, first, first)
        self._open()


def _first_record(path: Path, sequence: int) -> int:
    """Return the number of a segment's first record, 0 if it has none."""
    raw = _pread(path, format.HEADER_SIZE, format.HEADER_SIZE)
    if len(raw) < format.HEADER_SIZE:
        return 0
    head = np.frombuffer(raw, format.RECORD_HEADER, 1)[0]
    return int(head["number"]) if (head["magic"], head["segment"]) == (format.RECORD_MAGIC, sequence) else 0


def behind(place: JournalPlace, raw: memoryview, count: int) -> JournalPlace:
    """Return the place behind `count` whole records, whose bytes these are."""
    last = offset = 0
    while offset < len(raw):
        last = offset
        offset += format.HEADER_SIZE + int(np.frombuffer(raw, format.RECORD_HEADER, 1, offset)["size"][0])
    return JournalPlace(place.sequence, place.at + len(raw), place.first, place.number + count,
                 bytes(raw[last:last + format.HEADER_SIZE]).hex())


def _pread(path: Path, size: int, offset: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return os.pread(file.fileno(), size, offset)
