"""The loop of one connection with consumers: take what arrives, acknowledge, grant permits.

An entry of the same run has a known length and batch, so such entries are handled as arrays.  The metadata of others,
which a topic had before or gets from elsewhere, is decoded one by one.
"""
import time

import numpy as np
from numpy.typing import NDArray

from geminga.proto import frames
from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.load import blocks, latencies, wire
from geminga.supervisor.load.link import CLOCK
from geminga.supervisor.load.plan import Board, Part, Plan

_ACKNOWLEDGE_EVERY_S = 0.1   # client libraries group acknowledgements for this long by default
_ACKNOWLEDGE_IDS_MAX = 1_000
_BROKER_METADATA = b"\x0e\x02"


class Consumer:
    """A consumer on each topic of a part, over one connection."""

    def __init__(self, plan: Plan, part: Part, board: Board):
        self._plan, self._number, self._board = plan, part.number, board
        self._is_cumulative = plan.kind in ("exclusive", "failover")
        self._used = [0] * len(part.topics)                                  # messages since the last FLOW
        self._owed: list[list[bytes]] = [[] for _ in part.topics]            # ids to acknowledge, as fields of ACK
        self._owed_count = 0
        self._acknowledged_at = 0.0
        self._stamps = blocks.Stamps(plan.run, plan.message)
        self.link = plan.link(part.place)
        for at, topic in enumerate(part.topics):
            position = wire.LATEST if plan.starts_at_end else wire.EARLIEST
            request = wire.subscribe(topic, plan.subscription, plan.kind, wire.ID_FIRST + at, self.link.request_id(),
                                     f"bench-{plan.run}-{part.number}", position)
            self.link.ask(f"{plan.kind} subscription on {topic}", request, wire.SUCCESS)

    def __repr__(self) -> str:
        return f"<Consumer {self._number} owed={self._owed_count}>"

    def begin(self) -> None:
        """Grant the first permits."""
        for at in range(len(self._used)):
            self.link.put(wire.flow(wire.ID_FIRST + at, self._plan.permits))

    @property
    def is_done(self) -> bool:
        return self._board.stops_consuming

    def step(self) -> float:
        """Take messages, and return the time in seconds after which to be called again at the latest."""
        starts = self.link.receive(0)
        if len(starts):
            is_message = self.link.data[starts + wire.KIND_AT] == wire.MESSAGE
            for start in starts[~is_message]:
                self.link.meet(int(start), "consuming")
            ends = np.append(starts[1:], self.link.taken)
            self._take(starts[is_message], ends[is_message])
        now = CLOCK()
        if now - self._acknowledged_at >= _ACKNOWLEDGE_EVERY_S or self._owed_count >= _ACKNOWLEDGE_IDS_MAX:
            self._acknowledge()
            self._acknowledged_at = now
        return _ACKNOWLEDGE_EVERY_S

    def _take(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        if not len(starts):
            return
        data, now_us, board = self.link.data, time.time() * 1e6, self._board
        ours = self._stamps.ours(data, ends)
        due_us = self._stamps.due_us(data, ends[ours]).astype(np.float64)
        message = self._plan.message
        messages = np.full(len(starts), message.batch)
        payloads = np.full(len(starts), message.batch * message.size)      # bytes, counted as those that are published
        if not ours.all():
            others = [self._metadata(int(start), int(end)) for start, end in
                      zip(starts[~ours], ends[~ours], strict=True)]
            messages[~ours] = [max(1, one.num_messages_in_batch) for one, _ in others]
            payloads[~ours] = [one.uncompressed_size or size for one, size in others]
            due_us = np.append(due_us, [due for one, _ in others if (due := blocks.due_us_of(one)) is not None])
        if len(due_us):
            latencies.add(board.arrival_counts[self._number], now_us - due_us)
        self._owe(starts, messages)
        board.bytes_arrived[self._number] += int(payloads.sum())
        board.arrived[self._number] += int(messages.sum())

    def _metadata(self, start: int, end: int) -> tuple[api.MessageMetadata, int]:
        """Return the metadata of a MESSAGE, and the bytes of its payload."""
        view = memoryview(self.link.inbox)
        at = start + 8 + frames.SIZE.unpack_from(view, start + 4)[0]
        if view[at:at + 2] == _BROKER_METADATA:
            at += 6 + frames.SIZE.unpack_from(view, at + 2)[0]
        if view[at:at + 2] == frames.MAGIC.to_bytes(2, "big"):
            at += frames.CHECKSUM_END
        size = frames.SIZE.unpack_from(view, at)[0]
        return api.MessageMetadata.FromString(bytes(view[at + 4:min(at + 4 + size, end)])), max(0, end - at - 4 - size)

    def _owe(self, starts: NDArray[np.int64], messages: NDArray[np.int64]) -> None:
        """Note what to acknowledge, and give permits back when half of them are used, as client libraries do."""
        consumers = wire.ids_of(self.link.data, starts) if len(self._used) > 1 else np.zeros(len(starts), np.int64)
        used = np.bincount(consumers, messages, minlength=len(self._used)).astype(np.int64)
        for at in np.flatnonzero(used).tolist():
            some = starts[consumers == at] if len(self._used) > 1 else starts
            if self._is_cumulative:
                self._owed[at] = self._ids(some[-1:])
            else:
                self._owed[at] += self._ids(some)
                self._owed_count += len(some)
            self._used[at] += int(used[at])
            if self._used[at] >= max(1, self._plan.permits // 2):
                self.link.put(wire.flow(wire.ID_FIRST + at, self._used[at]))
                self._used[at] = 0

    def _ids(self, starts: NDArray[np.int64]) -> list[bytes]:
        """Return the ids of messages as fields of an ACK: the tag of field 3, then length and id as they came."""
        data, ids = self.link.data, []
        sizes = data[starts + wire.MESSAGE_ID_AT]
        for size in np.unique(sizes).tolist():
            some = starts[sizes == size]
            rows = np.full((len(some), size + 2), 3 << 3 | 2, np.uint8)
            rows[:, 1:] = data[some[:, None] + wire.MESSAGE_ID_AT + np.arange(size + 1)]
            raw, step = rows.tobytes(), (size + 2) * _ACKNOWLEDGE_IDS_MAX
            ids += [raw[at:at + step] for at in range(0, len(raw), step)]
        return ids

    def _acknowledge(self) -> None:
        how = wire.CUMULATIVE if self._is_cumulative else wire.INDIVIDUAL
        for at, owed in enumerate(self._owed):
            for ids in owed:
                self.link.put(wire.acknowledge(wire.ID_FIRST + at, how, ids))
            owed.clear()
        self._owed_count = 0

    def leave(self) -> None:
        """Acknowledge the rest, and close the consumers."""
        self._acknowledge()
        for at in range(len(self._used)):
            self.link.ask("closing a consumer", wire.close_consumer(wire.ID_FIRST + at, self.link.request_id()),
                          wire.SUCCESS)
