"""The loop of one connection with producers.

With a rate, messages are due in bursts each millisecond.  A latency counts from the time at which a message was due,
also while the broker or this process keeps it waiting.  Without a rate, a message is due when it is sent.
"""
import time

import numpy as np
from numpy.typing import NDArray

from geminga.supervisor.load import blocks, latencies, wire
from geminga.supervisor.load.link import ANSWER_MAX_S, CLOCK, BrokerError
from geminga.supervisor.load.plan import Board, Part, Plan

BURST_S = 0.001
_LOOK_S = 0.01       # a full window, or a used up lead, is looked at again after this time at the latest


class Producer:
    """A producer on each topic of a part, over one connection."""

    def __init__(self, plan: Plan, part: Part, board: Board):
        self._plan, self._number, self._board = plan, part.number, board
        self._sent = self._confirmed = 0      # entries
        message = plan.message
        name = f"bench-{plan.run}-{part.number:05d}"
        self._block = blocks.Block(name, plan.run, message, producers=len(part.topics))
        self._limit = part.entries
        entries_a_second = plan.rate * part.share / message.batch
        self._burst = max(1, round(entries_a_second * BURST_S))      # entries due at a time
        self._interval_s = self._burst / entries_a_second if plan.rate else 0.0
        self._due_at = np.full(plan.window, np.nan)      # of entry n at n modulo the window, until its receipt
        self._began_at = self._heard_at = 0.0
        self.link = plan.link(part.place)
        for at, topic in enumerate(part.topics):
            request = wire.producer(topic, wire.ID_FIRST + at, self.link.request_id(), f"{name}-{at}")
            self.link.ask(f"producer on {topic}", request, wire.PRODUCER_SUCCESS)

    def __repr__(self) -> str:
        return f"<Producer {self._number} sent={self._sent} confirmed={self._confirmed}>"

    def begin(self) -> None:
        """Begin to send; connections take turns within an interval."""
        self._began_at = self._heard_at = CLOCK() + self._interval_s * (self._number * 0.618 % 1)

    @property
    def is_done(self) -> bool:
        return self._ends and self._sent == self._confirmed and not self.link.outbox

    @property
    def _ends(self) -> bool:
        return self._board.stops_producing or self._sent == self._limit

    def step(self) -> float:
        """Take receipts, send what is due, and return the time in seconds after which to be called again at the
        latest.
        """
        self._take_receipts(self.link.receive(0))
        if self._ends:
            return _LOOK_S
        if not self._plan.rate:
            self._send(self._room(), CLOCK())
            return _LOOK_S
        while True:
            burst, done = divmod(self._sent, self._burst)
            due_at, now = self._began_at + burst * self._interval_s, CLOCK()
            if due_at > now:
                self._board.behind[self._number] = 0
                return due_at - now
            self._board.behind[self._number] = int((now - due_at) / self._interval_s) * self._burst * self._batch
            if not self._send(min(self._burst - done, self._room()), due_at):
                return _LOOK_S

    @property
    def _batch(self) -> int:
        return self._plan.message.batch

    def leave(self) -> None:
        """Close the connection; its producers end with it."""
        self.link.close()

    def _room(self) -> int:
        """Return how many more entries may be on their way."""
        room = self._plan.window - (self._sent - self._confirmed)
        if self._plan.consumers and self._plan.lead and not self._plan.rate:
            board = self._board
            ahead = int(board.published.sum() - board.arrived.sum()) + (self._sent - self._confirmed) * self._batch
            room = min(room, (self._plan.lead - ahead) // self._batch)
        return room

    def _send(self, count: int, due_at: float) -> int:
        """Send entries that were due at a time of CLOCK, at most `count`, and return how many."""
        count = min(count, self._block.rows)
        if self._limit is not None:
            count = min(count, self._limit - self._sent)
        if count <= 0 or self.link.outbox:
            return 0
        slots = np.arange(self._sent, self._sent + count) % len(self._due_at)
        is_taken = ~np.isnan(self._due_at[slots])      # by an entry whose receipt other partitions' have overtaken
        if is_taken.any():
            count = int(is_taken.argmax())
            if not count:
                return 0
        due_us = int((time.time() - CLOCK() + due_at) * 1e6)
        self._due_at[slots[:count]] = due_at
        self.link.put(self._block.stamped(self._sent, count, due_us))
        self._sent += count
        return count

    def _take_receipts(self, starts: NDArray[np.int64]) -> None:
        now, link = CLOCK(), self.link
        if not len(starts):
            if self._sent == self._confirmed:
                self._heard_at = now
            elif now - self._heard_at > ANSWER_MAX_S:
                raise BrokerError(f"{self._sent - self._confirmed} entries without a receipt for {ANSWER_MAX_S:.0f} s")
            return
        self._heard_at = now
        is_receipt = link.data[starts + wire.KIND_AT] == wire.SEND_RECEIPT
        for start in starts[~is_receipt]:
            link.meet(int(start), "publishing")
        numbers = wire.sequences_of(link.data, starts[is_receipt])
        if len(numbers):
            slots = numbers % len(self._due_at)
            latencies.add(self._board.publish_counts[self._number], (now - self._due_at[slots]) * 1e6)
            self._due_at[slots] = np.nan
            self._confirmed += len(numbers)
            self._board.published[self._number] = self._confirmed * self._batch
