"""Chunked messages of a subscription with many consumers: all chunks of a message go to one consumer.

A client joins a message of its chunks, so a consumer that got the first one is *pinned*: it gets the others too.  The
pin ends with the last chunk, when the consumer acknowledges or gives back what it has of the message, and when it
leaves.  The next chunk then pins the consumer that gets it.

A message is known by its uuid, which stands in the metadata of each chunk.  Only entries whose flags say that they are
chunks are read for it.  `Partition.may_have_chunks` says of most topics that they have none.
"""
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import CHECKSUM_END, SIZE
from geminga.proto.sends import IS_CHUNK, IS_LAST_CHUNK
from geminga.storage.cursors.pending_acks import Entries
from geminga.storage.ledgers import cut_ledger
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.readable import ReadableLedger

WAITING_MAX = 10_000       # chunks that wait for permits of their consumers; then nothing new is read
_PINS_MAX = 10_000         # messages; the oldest pin ends for one more, as clients drop their oldest message too
_HELD_MAX = 100_000        # chunks noted of pinned messages; acknowledging one that is not noted ends no pin
_READ_MAX = 50_000         # uuids kept, of chunks that were looked at and not delivered
_HEAD = 4 << 10            # bytes of an entry that are read first for its metadata; more if the metadata are longer

Message = bytes            # a digest of the uuid, which may be as long as an entry


@dataclass(slots=True, eq=False)
class Pin:
    """A consumer that gets all chunks of a message."""

    message: Message
    slot: int                                                 # of the consumer
    held: set[Position] = field(default_factory=set)          # chunks that the consumer has
    waiting: set[Position] = field(default_factory=set)       # chunks that wait until it has permits


class ChunkPins:
    """The pins of one subscription."""

    def __init__(self) -> None:
        self._pins: dict[Message, Pin] = {}                   # the oldest first
        self._held: dict[Position, Pin] = {}
        self._waiting: dict[Position, Pin] = {}
        self._read: dict[Position, Message | None] = {}       # what `messages` has found

    def __repr__(self) -> str:
        return f"<ChunkPins pins={len(self._pins)} held={len(self._held)} waiting={len(self._waiting)}>"

    def __len__(self) -> int:
        """The number of messages that have a pin."""
        return len(self._pins)

    def check(self) -> None:
        """Assert that the tables by position are those of the pins."""
        for table, name in ((self._held, "held"), (self._waiting, "waiting")):
            assert table == {at: pin for pin in self._pins.values() for at in getattr(pin, name)}, (self, name)
        assert all(pin.message == message for message, pin in self._pins.items()), self
        assert len(self._pins) <= _PINS_MAX and len(self._held) <= _HELD_MAX, self

    @property
    def waiting(self) -> int:
        """Chunks that wait for permits of their consumers."""
        return len(self._waiting)

    @property
    def pins_waiting(self) -> list[Pin]:
        """Pins of which chunks wait, the one of the longest waiting chunk first."""
        return list(dict.fromkeys(self._waiting.values())) if self._waiting else []

    def of(self, message: Message) -> Pin | None:
        """Return the pin of a message."""
        return self._pins.get(message)

    # -- the messages of entries

    def runs(self, ledger: ReadableLedger, entries: Entries) -> Iterator[tuple[Entries, Message | None, bool]]:
        """Yield entries (n,) in runs: (entries, their message, whether the last chunk of it is among them).

        The message is None for a run of entries that are no chunks.
        """
        ids = np.arange(entries.start, entries.stop) if isinstance(entries, range) else entries
        flags = ledger.column("flags")[ids]
        chunks = np.flatnonzero(flags & IS_CHUNK)
        if not len(chunks):      # mostly, also where nobody knows before
            yield entries, None, False
            return
        messages = self.messages(ledger, ids, chunks)
        is_last = (flags & IS_LAST_CHUNK) != 0
        first = 0
        for at in range(1, len(ids) + 1):
            message = messages.get(first)
            ends = message is not None and bool(is_last[at - 1])
            if at == len(ids) or ends or messages.get(at) != message:
                yield entries[first:at], message, ends
                first = at

    def messages(self, ledger: ReadableLedger, ids: NDArray[np.int64], chunks: NDArray[np.intp]) -> dict[int, Message]:
        """Return {index: message} of those of the entries ids (n,) that are chunks; chunks: (k,) their indexes.

        A chunk without a uuid, or whose metadata cannot be read, has no message, and may go to any consumer.
        """
        found: dict[int, Message] = {}
        unread: list[int] = []
        for index, entry_id in zip(chunks.tolist(), ids[chunks].tolist(), strict=True):
            known = self._read.get((ledger.ledger_id, entry_id), b"")
            if known == b"":
                unread.append(index)
            elif known is not None:
                found[index] = known
        if unread:
            read = _read_uuids(ledger, ids[unread])
            if len(self._read) + len(read) > _READ_MAX:
                self._read.clear()
            for index, message in zip(unread, read, strict=True):
                self._read[ledger.ledger_id, int(ids[index])] = message
                if message is not None:
                    found[index] = message
        return found

    # -- pins

    def gave(self, message: Message, ledger_id: int, entries: Entries, slot: int, *, is_last: bool) -> set[Position]:
        """Note that a consumer was given chunks of a message; return the chunks that wait for no consumer any more.

        is_last: the last chunk is among them.
        """
        positions = _positions(ledger_id, entries)
        for position in positions:
            self._read.pop(position, None)
        pin, freed = self._pins.get(message), set[Position]()
        assert pin is None or pin.slot == slot, (self, pin)
        if is_last:
            return freed if pin is None else self._end(pin)
        if pin is None:
            if len(self._pins) >= _PINS_MAX:
                freed = self._end(next(iter(self._pins.values())))
            pin = self._pins[message] = Pin(message, slot)
        noted = positions[:max(0, _HELD_MAX - len(self._held))]
        pin.held.update(noted)
        self._held.update(dict.fromkeys(noted, pin))
        return freed

    def wait(self, message: Message, ledger_id: int, entries: Entries) -> None:
        """Note that chunks wait until the consumer that is pinned has permits."""
        pin, positions = self._pins[message], _positions(ledger_id, entries)
        pin.waiting.update(positions)
        self._waiting.update(dict.fromkeys(positions, pin))

    def take(self, pin: Pin, count: int) -> list[Position]:
        """Return the first chunks, at most `count`, that wait for a pin; they wait no longer."""
        taken = sorted(pin.waiting)[:count]
        pin.waiting.difference_update(taken)
        for position in taken:
            del self._waiting[position]
        return taken

    def acknowledged(self, ledger_id: int, entries: Sequence[int] | NDArray[np.integer]) -> set[Position]:
        """End the pins of which a client acknowledges chunks; return the chunks that wait no longer."""
        freed: set[Position] = set()
        for position in self._among(self._held, ledger_id, entries):
            if (pin := self._held.get(position)) is not None:
                freed |= self._end(pin)
        return freed

    def given_back(self, ledger_id: int, entries: NDArray[np.int64]) -> set[Position]:
        """End the pins of which a consumer has given back all chunks; return the chunks that wait no longer."""
        freed: set[Position] = set()
        for position in self._among(self._held, ledger_id, entries):
            pin = self._held.pop(position)
            pin.held.discard(position)
            if not pin.held:
                freed |= self._end(pin)
        return freed

    def gone(self, ledger_id: int, entries: NDArray[np.int64]) -> None:
        """Forget waiting chunks that the subscription needs no more."""
        for position in self._among(self._waiting, ledger_id, entries):
            self._waiting.pop(position).waiting.discard(position)

    def left(self, slot: int) -> set[Position]:
        """End the pins of a consumer that leaves; return the chunks that wait no longer."""
        freed: set[Position] = set()
        for pin in [pin for pin in self._pins.values() if pin.slot == slot]:
            freed |= self._end(pin)
        return freed

    def _end(self, pin: Pin) -> set[Position]:
        del self._pins[pin.message]
        for position in pin.held:
            del self._held[position]
        for position in pin.waiting:
            del self._waiting[position]
        return pin.waiting

    @staticmethod
    def _among(table: dict[Position, Pin], ledger_id: int, entries: Sequence[int] | NDArray[np.integer]
               ) -> list[Position]:
        """Return the positions of a table that are among these entries."""
        if len(entries) <= len(table):
            return [position for entry_id in entries if (position := (ledger_id, int(entry_id))) in table]
        wanted = set(np.asarray(entries).tolist())
        return [position for position in table if position[0] == ledger_id and position[1] in wanted]


def _positions(ledger_id: int, entries: Entries) -> list[Position]:
    ids = list(entries) if isinstance(entries, range) else entries.tolist()
    return [(ledger_id, entry_id) for entry_id in ids]


def _read_uuids(ledger: ReadableLedger, ids: NDArray[np.int64]) -> list[Message | None]:
    """Return the message of each of a ledger's chunks (n,); None where it cannot be told."""
    stored = cut_ledger.whole(ledger)
    assert isinstance(stored, Ledger), ledger
    offsets, sizes = (stored.column(name)[ids].tolist() for name in ("offset", "size"))
    try:
        with open(stored.ledger_path, "rb", buffering=0) as file:      # a sealed ledger is not kept open
            return [_message(_metadata(file.fileno(), offset, size)) for offset, size in zip(
                offsets, sizes, strict=True)]
    except OSError:      # whoever reads the entry for its consumer reports that
        return [None] * len(ids)


def _metadata(fd: int, offset: int, size: int) -> bytes:
    """Return the bytes of an entry's metadata.  Raises OSError."""
    begin = CHECKSUM_END + 4
    head = os.pread(fd, min(size, _HEAD), offset)
    end = begin + SIZE.unpack_from(head, CHECKSUM_END)[0] if len(head) >= begin else 0
    if end > len(head):
        head = os.pread(fd, min(size, end), offset)
    return head[begin:end]


def _message(metadata: bytes) -> Message | None:
    try:
        uuid: str | bytes = api.MessageMetadata.FromString(metadata).uuid
    except DecodeError:
        return None
    raw = uuid if isinstance(uuid, bytes) else uuid.encode()
    return blake2b(raw, digest_size=16).digest() if raw else None
