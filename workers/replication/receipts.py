"""SEND_RECEIPTs of a remote, many at once, and the entries of a lane that have none yet.

A remote that knows the source positions of entries names the position in each receipt: `sequence_id` is the ledger,
`highest_sequence_id` the entry; of a marker, the sequence id has both (entries.py).  Other remotes repeat the
sequence id of the message, which several producers of one topic may share, so their receipts count in the order in
which they come.
"""
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from geminga.proto import metadata, varints
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import SIZES
from geminga.proto.metadata import Field
from geminga.proto.names import ENTRY_BITS, ENTRY_MAX, MARKER_RECEIPT
from geminga.proto.rows import words_at_each_byte
from geminga.workers.replication.frames import Bytes, Places, Unreadable, alike

FEW_MAX = 12                 # receipts that are cheaper to read one by one
_COMMAND = (Field("receipt", 7, is_bytes=True),)
_RECEIPT = Field("producer_id", 1), Field("sequence_id", 2), Field("highest_sequence_id", 4)
_MESSAGE_ID = 3 << 3 | 2      # tag of a field that is not read
_WORD = (1 << 64) - 1
NOWHERE = -1, -1
Numbers = NDArray[np.uint64]


class Receipts(NamedTuple):
    """Consecutive receipts for one producer: the two numbers that name positions, (n,) each."""

    producer_id: int
    ledgers: Numbers
    entries: Numbers


def receipts(data: Bytes, starts: Places, ends: Places) -> Iterator[Receipts]:
    """Yield the receipts of SEND_RECEIPT frames in order.  starts, ends: (n,) their places.  Raises Unreadable."""
    at = 0
    while len(starts) - at > FEW_MAX:
        columns = _read_alike(data, starts[at:], ends[at:])
        if 2 * len(columns[0]) < len(starts) - at:
            break
        yield from _by_producer(*columns)
        at += len(columns[0])
    starts, ends = starts[at:], ends[at:]
    if len(starts) <= FEW_MAX:
        for start in starts.tolist():
            yield _one(data, start)
        return
    odd, numbers = _read_in_step(data, starts, ends)
    borders = (np.flatnonzero(odd[1:] | odd[:-1]) + 1).tolist()
    for first, stop in pairwise((0, *borders, len(starts))):
        if odd[first]:
            yield _one(data, int(starts[first]))
        else:
            yield from _by_producer(*(column[first:stop] for column in numbers))


def _by_producer(producers: Numbers, ledgers: Numbers, entries: Numbers) -> Iterator[Receipts]:
    borders = (np.flatnonzero(producers[1:] != producers[:-1]) + 1).tolist()
    for first, stop in pairwise((0, *borders, len(producers))):
        yield Receipts(int(producers[first]), ledgers[first:stop], entries[first:stop])


def _read_alike(data: Bytes, starts: Places, ends: Places) -> tuple[Numbers, Numbers, Numbers]:
    """Read the three numbers of _RECEIPT (n,) of the first receipts, which are encoded as the first one is.

    n is 0 if its form is unusual.
    """
    first = int(starts[0])
    size = SIZES.unpack_from(data, first)[1]
    frame = data[first:min(first + 8 + size, int(ends[0]))].tobytes()
    try:
        inside = metadata.fields_of(frame, *metadata.fields_of(frame, 8, 8 + size)[_COMMAND[0].tag])
        spans = [inside[field.tag] for field in _RECEIPT]
    except (IndexError, KeyError, ValueError):
        spans = [(0, varints.WORD_MAX + 1)]
    if any(end - begin > varints.WORD_MAX for begin, end in spans):
        none = np.empty(0, np.uint64)
        return none, none, none
    tight = np.full(len(frame), 255, np.uint8)
    tight[slice(*inside.get(_MESSAGE_ID, (0, 0)))] = 0
    for begin, end in spans:
        tight[begin:end] = 128      # the value of a varint may differ, its length may not
    starts = starts[:alike(data, starts, ends, tight)]
    words = words_at_each_byte(data)
    producers, ledgers, entries = (varints.read_words(words[starts + begin], end - begin) for begin, end in spans)
    return producers, ledgers, entries


def _read_in_step(data: Bytes, starts: Places, ends: Places) -> tuple[NDArray[np.bool_], list[Numbers]]:
    """Return (which receipts (n,) are for the library to read, the three numbers of _RECEIPT (n,) of the others)."""
    sizes = words_at_each_byte(data)[starts + 4].astype(np.uint32).byteswap()
    outer = metadata.read(data, starts + 8, np.minimum(starts + 8 + sizes, ends), _COMMAND)
    begins, stops = outer.spans.get("receipt", (np.full(len(starts), -1), np.zeros(len(starts), np.int64)))
    odd = outer.odd | (begins < 0) | (stops > ends)
    inner = metadata.read(data, np.where(odd, starts, begins), np.where(odd, starts, stops), _RECEIPT)
    return odd | inner.odd, [inner.number(field.name) for field in _RECEIPT]


def _one(data: Bytes, start: int) -> Receipts:
    size = SIZES.unpack_from(data, start)[1]
    try:
        receipt = api.BaseCommand.FromString(data[start + 8:start + 8 + size].tobytes()).send_receipt
    except DecodeError:
        raise Unreadable("a SEND_RECEIPT that cannot be parsed") from None
    return Receipts(receipt.producer_id, np.array([receipt.sequence_id & _WORD], np.uint64),
                    np.array([receipt.highest_sequence_id & _WORD], np.uint64))


class NeverSent(Exception):
    """An error: a receipt is for an entry that was not sent, or that has its receipt."""


class _Stretch:
    """Entries of one ledger that came together: those that were sent, and the last one of all."""

    __slots__ = ("answered", "done", "entries", "last", "ledger_id", "messages")

    def __init__(self, ledger_id: int, entries: Numbers, last: int, messages: int) -> None:
        self.ledger_id, self.entries, self.last, self.messages = ledger_id, entries, last, messages
        self.done = 0                                        # entries at the beginning that have receipts
        self.answered: NDArray[np.bool_] | None = None       # those behind `done` that have receipts; None: none


class Unanswered:
    """Entries of a lane that have come from the worker and are not acknowledged yet."""

    def __init__(self) -> None:
        self._stretches: deque[_Stretch] = deque()
        self.count = 0                     # entries that were sent and have no receipt
        self.returned = 0                  # messages of acknowledged entries, whose permits can be granted again
        self._reached = self._told = NOWHERE

    def __repr__(self) -> str:
        return f"<Unanswered {self.count}>"

    def add(self, ledger_id: int, entries: Numbers, is_sent: NDArray[np.bool_], messages: int) -> None:
        """Add entries (n > 0,) in order; those that were not sent need no receipt.  messages: in all of them."""
        sent = entries[is_sent]
        self._stretches.append(_Stretch(ledger_id, sent, int(entries[-1]), messages))
        self.count += len(sent)
        self._advance()

    def answered(self, ledgers: Numbers, entries: Numbers) -> None:
        """Record receipts (n,) that name positions, or markers.  Raises NeverSent."""
        is_marker = entries == np.uint64(MARKER_RECEIPT)
        if is_marker.any():
            entries = np.where(is_marker, ledgers & np.uint64(ENTRY_MAX), entries)
            ledgers = np.where(is_marker, ledgers >> np.uint64(ENTRY_BITS), ledgers)
        at, count = 0, len(entries)
        while at < count and self._stretches:
            head = self._stretches[0]
            few = min(count - at, len(head.entries) - head.done)
            if head.answered is not None or (ledgers[at:at + few] != head.ledger_id).any() or \
                    (entries[at:at + few] != head.entries[head.done:head.done + few]).any():
                break
            head.done += few
            self.count -= few
            at += few
            self._advance()
        for ledger_id, entry_id in zip(ledgers[at:].tolist(), entries[at:].tolist(), strict=True):
            self._answered_one(ledger_id, entry_id)
        if at < count:
            self._advance()

    def _answered_one(self, ledger_id: int, entry_id: int) -> None:
        for stretch in self._stretches:
            if stretch.ledger_id != ledger_id or not len(stretch.entries) or entry_id > int(stretch.entries[-1]):
                continue
            place = int(np.searchsorted(stretch.entries, np.uint64(entry_id)))
            if int(stretch.entries[place]) != entry_id or place < stretch.done:
                break
            if stretch.answered is None:
                stretch.answered = np.zeros(len(stretch.entries), bool)
            if stretch.answered[place]:
                break
            stretch.answered[place] = True
            self.count -= 1
            return
        raise NeverSent(f"a receipt for {ledger_id}:{entry_id}, which has not been sent or has its receipt")

    def answered_next(self, count: int) -> None:
        """Record receipts for the next `count` entries.  Raises NeverSent."""
        if count > self.count:
            raise NeverSent(f"{count} receipts came for {self.count} messages")
        while count:
            head = self._stretches[0]
            few = min(count, len(head.entries) - head.done)
            head.done += few
            self.count -= few
            count -= few
            self._advance()

    def _advance(self) -> None:
        """Drop what is answered at the beginning, and note how far all entries are."""
        while self._stretches:
            head = self._stretches[0]
            if head.answered is not None:
                rest = head.answered[head.done:]
                head.done += len(rest) if rest.all() else int(rest.argmin())
                if not head.answered[head.done:].any():
                    head.answered = None
            if head.done < len(head.entries):
                if head.done:
                    self._reached = head.ledger_id, int(head.entries[head.done - 1])
                return
            self._reached = head.ledger_id, head.last
            self.returned += head.messages
            self._stretches.popleft()

    def take_reached(self) -> tuple[int, int] | None:
        """Return the position up to which all entries are answered, if it is a new one since the last call."""
        if self._reached == self._told:
            return None
        self._told = self._reached
        return self._reached

    def first(self) -> tuple[int, int] | None:
        """Return the position of the first entry without a receipt, None if there is none."""
        for stretch in self._stretches:
            if stretch.done < len(stretch.entries):
                return stretch.ledger_id, int(stretch.entries[stretch.done])
        return None
