"""The two loops that load a broker, each in a process of its own.

    Producer  SENDs over any number of topics, as fast as the window allows or at a rate
    Consumer  SUBSCRIBEs to any number of topics, takes what arrives, acknowledges, grants permits

Without a rate a loop naps between two looks at its socket: a pass costs some 250 us beside a busy broker, whose work
empties the caches in between, and much the same for ten frames as for a thousand.  Windows and permits outlast a nap,
so it costs no throughput: naps of 10 ms halve that of the fastest broker, naps of 1 ms are no better than these.
"""

import multiprocessing as mp
import time

import numpy as np
import sends
from link import ANSWER_MAX_S, CLOCK, Board, BrokerError, Link, Load
from numpy.typing import NDArray

from geminga.supervisor.load import wire

NAP_S = 0.002
TICK_S = 0.001              # with a rate, messages that are due are sent once in this time
ACKNOWLEDGE_EVERY_S = 0.1   # client libraries group acknowledgements for this long by default
ACKNOWLEDGE_IDS_MAX = 1000
BLOCK_ROWS_MAX, BLOCK_SIZE_MAX = 4096, 1 << 21


class Producer:
    def __init__(self, load: Load, index: int, board: Board):
        self.load, self.index, self.board = load, index, board
        self.sent = self.confirmed = 0      # entries
        self.was_full = False
        name = f"bench-{index}-{mp.current_process().pid}"
        self.link = Link(load)
        for at, topic in enumerate(load.topics):
            self.link.find(topic)
            request = wire.producer(topic, wire.ID_FIRST + at, self.link.request_id(), f"{name}-{at}")
            self.link.ask(f"producer on {topic}", request, wire.PRODUCER_SUCCESS)
        self.random = np.random.default_rng(index)
        self.block = self._block(name)
        self.tick_entries = max(1, round(load.rate * TICK_S / load.batch))
        # kept only with a rate: one array for each tick, and one for each look at the receipts
        self.sent_at: list[NDArray] = []
        # (bytes of receipts, how many, when they came); decoded at the end
        self.receipts: list[tuple[bytes, int, float]] = []

    def _block(self, name: str) -> sends.SendBlock:
        load = self.load
        payload = b"." * load.size_bytes
        one = sends.entry(name, payload, load.batch, "key-0000" if load.keys else None, ttl=load.ttl)
        rows = max(1, min(BLOCK_ROWS_MAX, load.window, BLOCK_SIZE_MAX // len(one)))
        if load.delay_s is not None:
            return sends.DelayedBlock(name, payload, rows, self._due_times, producers=len(load.topics))
        if load.keys:
            entries = [sends.entry(name, payload, load.batch, f"key-{row % load.keys:04d}") for row in range(rows)]
        else:
            entries = [sends.entry(name, payload, load.batch, ttl=load.ttl)] * rows
        return sends.SendBlock(entries, batch=load.batch, producers=len(load.topics))

    def _due_times(self, first: int, count: int) -> NDArray[np.int64]:
        least, most = self.load.delay_s
        began = self.load.due_at or time.time()
        return ((began + self.random.uniform(least, most, count)) * 1000).astype(np.int64)

    def run(self) -> dict:
        self.next_at = self.heard_at = CLOCK()
        while True:
            is_ending = self.board.producers_stop.value or (self.load.limit and self.sent >= self.load.limit)
            if is_ending and self.sent == self.confirmed:
                return self._latencies()
            if not is_ending:
                self._send(CLOCK())
            self._take_receipts(self.link.receive(self._patience()))
            if not self.load.rate and self.link.is_calm():
                time.sleep(NAP_S)

    def _patience(self) -> float:
        if self.load.rate:
            return min(0.1, max(0.0, self.next_at - CLOCK())) if not self.was_full else TICK_S
        return 0.01

    def _send(self, now: float) -> None:
        if self.link.outbox or (self.load.rate and now < self.next_at):
            return
        room = min(self.load.window - (self.sent - self.confirmed), len(self.block.rows), self._held_back())
        count = self.tick_entries if self.load.rate else room
        if self.load.limit:
            count = min(count, self.load.limit - self.sent)
        if count > room or count <= 0:
            self.was_full = True
            return
        if self.load.rate:
            # A tick the broker kept waiting counts from when it was due, one that only this process was late for does
            # not.
            self.sent_at.append(np.full(count, self.next_at if self.was_full else now))
            self.next_at += count * self.load.batch / self.load.rate
            self.was_full = now > self.next_at and self.was_full
        self.link.put(self.block.stamped(self.sent, count))
        self.sent += count

    def _held_back(self) -> int:
        """Return how many more entries may be sent before the lead over the consumers is used up; no consumers, no
        lead.
        """
        if not self.load.consumers or not self.load.lead:
            return self.load.window
        own_unconfirmed = (self.sent - self.confirmed) * self.load.batch
        ahead = sum(self.board.published) + own_unconfirmed - sum(self.board.arrived) // self.load.subscriptions
        return (self.load.lead - ahead) // self.load.batch

    def _take_receipts(self, starts: NDArray[np.int64]) -> None:
        now = CLOCK()
        link, data = self.link, self.link.data
        if not len(starts):
            if self.sent > self.confirmed and now - self.heard_at > ANSWER_MAX_S:
                raise BrokerError(f"{self.sent - self.confirmed} entries without a receipt for {ANSWER_MAX_S:.0f} s")
            return
        self.heard_at = now
        is_receipt = data[starts + wire.KIND_AT] == wire.SEND_RECEIPT
        count = int(np.count_nonzero(is_receipt))
        if count < len(starts):
            for start in starts[~is_receipt]:
                link.meet(int(start), "publishing")
        self.confirmed += count
        self.board.published[self.index] = self.confirmed * self.load.batch
        if self.load.rate:
            self.receipts.append((bytes(link.inbox[starts[0] : link.taken]), len(starts), now))

    def _latencies(self) -> dict:
        """Return sent_at and confirmed_at of every entry in the order sent; empty without a rate."""
        sent_at = np.concatenate(self.sent_at) if self.sent_at else np.zeros(0)
        confirmed_at = np.full(len(sent_at), np.nan)
        data = np.frombuffer(b"".join(raw for raw, _, _ in self.receipts) or b"\0", np.uint8)
        starts, _ = wire.frame_starts(data, data.size)
        when = np.repeat([now for _, _, now in self.receipts],
                         np.array([count for _, count, _ in self.receipts], np.int64))
        is_receipt = data[starts + wire.KIND_AT] == wire.SEND_RECEIPT
        confirmed_at[wire.sequences_of(data, starts[is_receipt])] = when[is_receipt]
        return {"sent_at": sent_at, "confirmed_at": confirmed_at}


class Consumer:
    def __init__(self, load: Load, index: int, board: Board):
        self.load, self.index, self.board = load, index, board
        self.is_cumulative = load.kind in ("exclusive", "failover")
        count = len(load.topics)
        self.used = [0] * count                             # messages since the last FLOW of each consumer
        self.newest = np.zeros((count, sends.MESSAGE_ID_SIZE_MAX), np.uint8)
        self.is_owed = np.zeros(count, bool)                # whether a consumer has a newest id to acknowledge
        self.individual: list[list[bytes]] = [[] for _ in load.topics]
        self.individual_count = 0
        # (entries so far, when); kept only where arrival is measured
        self.arrivals: list[tuple[int, float]] = []
        self.can_nap = not load.rate or count > 1
        self.link = Link(load)
        for at, topic in enumerate(load.topics):
            self._subscribe(at, topic)

    def _subscribe(self, at: int, topic: str) -> None:
        self.link.find(topic)
        name = f"bench-{self.index}"
        load = self.load
        subscription = f"{load.subscription}-{self.index % load.subscriptions}"
        request = wire.subscribe(topic, subscription, load.kind, wire.ID_FIRST + at, self.link.request_id(), name)
        self.link.ask(f"{load.kind} subscription on {topic}", request, wire.SUCCESS)

    def run(self) -> dict:
        """Take messages until told to stop; return when permits were first given and when the last message came."""
        started_at = last_at = acknowledged_at = CLOCK()
        entries = 0
        for at in range(len(self.load.topics)):
            self.link.put(wire.flow(wire.ID_FIRST + at, self.load.permits))
        while not self.board.consumers_stop.value:
            starts = self._messages(self.link.receive(0.02))
            now = CLOCK()
            if len(starts):
                entries, last_at = entries + len(starts), now
                self._take(starts)
                self.board.arrived[self.index] = entries * self.load.batch
                if not self.can_nap:
                    self.arrivals.append((entries, now))
            if now - acknowledged_at >= ACKNOWLEDGE_EVERY_S or self.individual_count >= ACKNOWLEDGE_IDS_MAX:
                self._acknowledge()
                acknowledged_at = now
            if self.can_nap and self.link.is_calm():
                time.sleep(NAP_S)
        self._leave()
        return {"started_at": started_at, "last_at": last_at, "arrived_at": self._arrival_times()}

    def _messages(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        is_message = self.link.data[starts + wire.KIND_AT] == wire.MESSAGE
        if is_message.all():
            return starts
        for start in starts[~is_message]:
            self.link.meet(int(start), "consuming")
        return starts[is_message]

    def _take(self, starts: NDArray[np.int64]) -> None:
        data, count = self.link.data, len(self.load.topics)
        if count == 1 and self.is_cumulative:
            at = int(starts[-1]) + wire.MESSAGE_ID_AT
            self.newest[0] = data[at : at + sends.MESSAGE_ID_SIZE_MAX]
            self.is_owed[0] = True
            self._count_used(0, len(starts))
            return
        consumers = wire.ids_of(data, starts)
        if self.is_cumulative:
            last = np.full(count, -1)
            last[consumers] = starts            # numpy keeps the last value of repeated indices
            touched = np.flatnonzero(last >= 0)
            self.newest[touched] = data[last[touched, None] + wire.MESSAGE_ID_AT + np.arange(sends.MESSAGE_ID_SIZE_MAX)]
            self.is_owed[touched] = True
        else:
            for at in np.unique(consumers):
                self.individual[at] += self._ids(starts[consumers == at])
            self.individual_count += len(starts)
        counts = np.bincount(consumers, minlength=count)
        for at in np.flatnonzero(counts):
            self._count_used(int(at), int(counts[at]))

    def _count_used(self, at: int, entries: int) -> None:
        """Give permits back when half of them are used, as client libraries do."""
        self.used[at] += entries * self.load.batch
        if self.used[at] >= self.load.permits // 2:
            self.link.put(wire.flow(wire.ID_FIRST + at, self.used[at]))
            self.used[at] = 0

    def _ids(self, starts: NDArray[np.int64]) -> list[bytes]:
        """Return the message ids as fields of an ACK: the tag of field 3, then length and id as they came."""
        data, ids = self.link.data, []
        sizes = data[starts + wire.MESSAGE_ID_AT]
        for size in np.unique(sizes):
            some = starts[sizes == size]
            rows = np.full((len(some), int(size) + 2), 3 << 3 | 2, np.uint8)
            rows[:, 1:] = data[some[:, None] + wire.MESSAGE_ID_AT + np.arange(int(size) + 1)]
            raw, step = rows.tobytes(), (int(size) + 2) * ACKNOWLEDGE_IDS_MAX
            ids += [raw[at : at + step] for at in range(0, len(raw), step)]
        return ids

    def _acknowledge(self) -> None:
        for at in np.flatnonzero(self.is_owed):
            newest = self.newest[at]
            size = int(newest[0])
            assert size < sends.MESSAGE_ID_SIZE_MAX
            self.link.put(wire.acknowledge(wire.ID_FIRST + int(at), wire.CUMULATIVE,
                                           b"\x1a" + newest[: size + 1].tobytes()))
        self.is_owed[:] = False
        for at, lists in enumerate(self.individual):
            for ids in lists:
                self.link.put(wire.acknowledge(wire.ID_FIRST + at, wire.INDIVIDUAL, ids))
            lists.clear()
        self.individual_count = 0

    def _leave(self) -> None:
        """Acknowledge the rest; a lone consumer removes its subscriptions too, so that the broker can delete the
        topics.
        """
        self._acknowledge()
        for at, topic in enumerate(self.load.topics if self.load.consumers == 1 else ()):
            self.link.ask(f"unsubscribing from {topic}", sends.unsubscribe(wire.ID_FIRST + at, self.link.request_id()),
                          wire.SUCCESS)
        while self.link.outbox:
            self.link.receive(0.1)

    def _arrival_times(self) -> NDArray[np.float64]:
        """Return when each entry arrived, in the order of arrival; empty without a rate."""
        counts = np.diff(np.array([entries for entries, _ in self.arrivals], np.int64), prepend=0)
        return np.repeat(np.array([when for _, when in self.arrivals], np.float64), counts)
