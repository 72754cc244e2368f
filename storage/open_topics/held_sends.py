"""SENDs that are held back in memory, for each topic in the order of arrival: by a publish rate, or for a coordinator.

Held-back entries have no receipt yet, and their connection is not read until half of its held-back entries are
published. So a client fills no more memory than with its entries that were already under way, and nothing is refused or
lost.
"""
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from geminga.proto import envelope
from geminga.proto.rows import Rows
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.topics.publish_plan import Sends
from geminga.storage.topics.subscription import Topic

Piece = tuple[int, Rows, memoryview]      # (worker, rows (n,) SEND_ROW, their entries without gaps)


@dataclass(slots=True)
class HeldTopic:
    """Entries of one topic that are held back, in order."""

    since_ms: int                         # since when entries of the topic have been held back without a break
    pieces: deque[Piece] = field(default_factory=deque)

    def entries(self) -> int:
        return sum(len(rows) for _, rows, _ in self.pieces)


@dataclass(slots=True)
class _Connection:
    entries: int = 0                      # its entries that are held back
    enough: int = -1                      # reading resumes at this number of entries; -1: not paused


class HeldSends:
    """Entries of one owner's topics that are held back, and the connections paused because of them."""

    def __init__(self, decisions: Decisions):
        self._decisions = decisions
        self.by_topic: dict[Topic, HeldTopic] = {}
        self.size = 0                     # bytes of all entries
        self._connections: dict[tuple[int, int], _Connection] = {}      # by worker and number, with entries held back

    def __repr__(self) -> str:
        return f"<HeldSends {self.size} bytes of {len(self.by_topic)} topics and {len(self._connections)} connections>"

    def add(self, topic: Topic, worker: int, rows: Rows, data: memoryview) -> None:
        """Hold back rows (n,) SEND_ROW, with copies of their entries in `data`; pause reading of their connections."""
        piece = packed(rows, data)
        self.by_topic.setdefault(topic, HeldTopic(self._decisions.now_ms)).pieces.append((worker, *piece))
        self.size += len(piece[1])
        for number, count in _by_connection(rows):
            connection = self._connections.setdefault((worker, number), _Connection())
            connection.entries += count
            connection.enough = connection.entries // 2
            self._decisions.outbox(worker).reply(number, b"", action=envelope.PAUSE_READING)

    def take_first(self, held: HeldTopic, count: int) -> Piece:
        """Take the first `count` rows out of a topic's oldest piece of held-back SENDs."""
        worker, rows, data = held.pieces.popleft()
        self._remove(worker, rows[:count])
        end = int(rows["size"][:count].sum(dtype=np.int64))
        if count < len(rows):
            rest = rows[count:].copy()
            rest["offset"] -= np.uint64(end)
            held.pieces.appendleft((worker, rest, data[end:]))
        return worker, rows[:count], data[:end]

    def drop_producer(self, topic: Topic, handle: int) -> None:
        """Drop the held-back entries of one producer."""
        held = self.by_topic.get(topic)
        if held is None:
            return
        pieces, held.pieces = held.pieces, deque()
        for worker, rows, data in pieces:
            is_its = rows["producer"] == handle
            if is_its.any():
                self._remove(worker, rows[is_its])
                rows, data = packed(rows[~is_its], data)
            if len(rows):
                held.pieces.append((worker, rows, data))
        if not held.pieces:
            self.drop(topic)

    def drop(self, topic: Topic) -> None:
        """Drop all held-back entries of a topic, if it has any."""
        held = self.by_topic.pop(topic, None)
        for worker, rows, _ in held.pieces if held is not None else ():
            self._remove(worker, rows)

    def _remove(self, worker: int, rows: Rows) -> None:
        """Stop counting rows as held back, and resume reading of connections whose held-back entries have halved."""
        self.size -= int(rows["size"].sum(dtype=np.int64))
        for number, count in _by_connection(rows):
            connection = self._connections[worker, number]
            connection.entries -= count
            if connection.entries <= connection.enough:
                connection.enough = -1
                self._decisions.outbox(worker).reply(number, b"", action=envelope.RESUME_READING)
            if not connection.entries:
                del self._connections[worker, number]


def _by_connection(rows: Rows) -> list[tuple[int, int]]:
    """Return [(number of a connection, how many of the rows came over it)]."""
    numbers, counts = np.unique(rows["connection"], return_counts=True)
    return list(zip(numbers.tolist(), counts.tolist(), strict=True))


def packed(rows: Rows, data: memoryview) -> tuple[Rows, memoryview]:
    """Copy rows (n,) SEND_ROW and their entries without gaps, so that the whole of `data` need not stay in memory."""
    rows = rows.copy()
    ends = np.cumsum(rows["size"], dtype=np.uint64)
    offsets, starts = rows["offset"].copy(), ends - rows["size"]
    rows["offset"] = starts
    if len(rows) and (offsets - offsets[0] == starts).all():
        return rows, memoryview(bytes(data[int(offsets[0]):int(offsets[0] + ends[-1])]))
    sizes = rows["size"].tolist()
    return rows, memoryview(b"".join([data[at:at + size] for at, size in zip(offsets.tolist(), sizes, strict=True)]))


def in_parts(sends: Sends, bytes_max: int) -> list[Sends]:
    """Return SENDs in lists of at most so many bytes; a piece that has more is a list of its own."""
    parts: list[Sends] = []
    size = 0
    for one in sends:
        size += len(one[2])
        if not parts or size > bytes_max:
            parts.append([])
            size = len(one[2])
        parts[-1].append(one)
    return parts
