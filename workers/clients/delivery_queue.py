"""Entries that owners have dispatched to a client's consumers, written as MESSAGE frames as far as the client reads.

    RUNS           entries in a row of a ledger                                          -> runs
    ENTRY_LISTS    entries that lie apart, are redelivered, or are of a compacted view   -> runs
    TRANSIENT      entries of a non-persistent topic, with their bytes                   -> written at once, or dropped

Bytes of runs are read from ledgers only when they can be written, so a client that does not read costs no memory.
"""
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from geminga.proto import envelope
from geminga.proto.deliveries import FEW_MAX, Delivery, words_of
from geminga.storage.runtime.counters import Counters
from geminga.workers.clients import egress
from geminga.workers.clients.egress import LedgerGone, Ledgers
from geminga.workers.clients.routes import Route, Routes
from geminga.workers.clients.stream import Stream
from geminga.workers.failures import attempt
from geminga.workers.owners.links import OwnerLink, OwnerLinks


@dataclass(eq=False, slots=True)
class Run:
    """Entries to be written to one consumer: `count` consecutive ones from `first` on, or the ones listed in
    `picked`.
    """

    route: Route
    partition_id: int
    ledger_id: int
    first: int
    count: int
    epoch: int
    picked: NDArray[np.void] | None = None                # rows LISTED_ENTRY
    words: NDArray[np.uint64] | None = None      # ack sets of the picked entries, one behind the other
    view: int = 0      # number of the compacted view that has the entries; 0: the ledger itself


class DeliveryWorker(Protocol):
    """The parts of the worker that delivery queues use."""

    ledgers: Ledgers
    counters: Counters

    @property
    def owners(self) -> OwnerLinks: ...


class DeliveryQueue:
    """Entries that owners have dispatched to a client and that the client has not had room for yet."""

    def __init__(self, worker: DeliveryWorker, stream: Stream, routes: Routes):
        self._worker, self._stream, self._routes = worker, stream, routes
        self.runs: deque[Run] = deque()
        self.has_checksums = True          # entries are written with the checksums that they are stored with
        self.broker_fields = 0             # bits of deliveries.BROKER_*: fields of BrokerEntryMetadata that are written

    def __repr__(self) -> str:
        return f"<DeliveryQueue {sum(run.count for run in self.runs)} entries in {len(self.runs)} runs>"

    def add(self, link: OwnerLink, handle: int, partition_id: int, ledger_id: int, first: int, count: int) -> None:
        """Queue `count` consecutive entries, beginning with entry id `first`, for the consumer with this handle."""
        route = self._routes.by_handle.get((link, handle))
        if route is None:
            return
        last = self.runs[-1] if self.runs else None
        if last is not None \
                and last.route is route and last.ledger_id == ledger_id and last.first + last.count == first \
                and last.epoch == route.epoch:
            last.count += count
        else:
            self.runs.append(Run(route, partition_id, ledger_id, first, count, route.epoch))

    def add_picked(self, link: OwnerLink, handle: int, partition_id: int, ledger_id: int, picked: NDArray[np.void],
                   words: NDArray[np.uint64], view: int) -> None:
        """Queue listed entries for the consumer with this handle: rows (n,) LISTED_ENTRY, and the words of their ack
        sets.

        view: number of the compacted view to read the entries from; 0: the ledger itself.
        """
        route = self._routes.by_handle.get((link, handle))
        if route is not None:
            self.runs.append(Run(route, partition_id, ledger_id, -1, len(picked), route.epoch, picked, words, view))

    def write_transient(self, link: OwnerLink, handle: int, entries: NDArray[np.void], data: memoryview) -> None:
        """Write entries of a non-persistent topic, rows (n,) TRANSIENT_ENTRY, at once or never.

        While the client does not read, such entries are dropped and their permits are returned to the owner.
        """
        route = self._routes.by_handle.get((link, handle))
        if route is None:
            return
        if not self._stream.is_writable:
            self._worker.counters.add("deliveries_dropped", len(entries))
            link.flow(handle, int(entries["messages"].sum()))
            return self._worker.owners.schedule_flush()
        delivery = Delivery(route.object_id, 0, route.partition, epoch=route.epoch, has_checksums=self.has_checksums)
        self._stream.transport.write(delivery.transient_frames(entries, data))
        self._worker.counters.add("deliveries", len(entries))

    def write(self) -> None:
        """Write queued entries until the client's socket is full or the queue is empty."""
        runs, stream, out, size, count = self.runs, self._stream, [], 0, 0
        while runs and stream.is_writable:
            entries, frames = self.next_frames()
            count += entries
            out += frames
            size += sum(map(len, frames))
            if size >= egress.BYTES_MAX or not runs:
                stream.transport.writelines(out)
                out, size = [], 0
        if out:
            stream.transport.writelines(out)
        self._worker.counters.add("deliveries", count)

    def next_frames(self) -> tuple[int, list[bytes | memoryview]]:
        """Take entries off the queue's first run, as many as are read at a time.

        Returns (number of entries that still exist, their MESSAGE frames).
        """
        run, ledgers = self.runs[0], self._worker.ledgers
        route = run.route
        if self._routes.consumers.get(route.object_id) is not route:      # the client has closed the consumer meanwhile
            self.runs.popleft()
            return 0, []
        if route.delivery is None or route.delivery_to != (run.ledger_id, run.epoch):
            route.delivery = Delivery(route.object_id, run.ledger_id, route.partition, self.broker_fields, run.epoch,
                                      has_checksums=self.has_checksums)
            route.delivery_to = run.ledger_id, run.epoch
        if run.count <= FEW_MAX and run.picked is None and (few := self._few(run, route.delivery)):
            self.runs.popleft()
            return run.count, [few]
        try:
            if run.picked is None:
                rows, data = ledgers.read(run.partition_id, run.ledger_id, run.first, run.count)
            else:
                rows, data = ledgers.pick(run.partition_id, run.ledger_id, run.picked["entry_id"], run.view)
        except LedgerGone:
            self.runs.popleft()
            return 0, []
        count = len(rows)
        if run.picked is None:
            frames = route.delivery.frames(run.first, rows, data)
        else:
            assert run.words is not None
            frames = route.delivery.picked_frames(run.picked[:count], run.words, rows, data)
        is_left = egress.still_there(rows, data)
        if is_left is not None:
            rows, frames = _frames_of_left(run, route.delivery, rows, data, is_left)
        self._advance(run, count)
        return len(rows), frames

    def _few(self, run: Run, delivery: Delivery) -> bytes:
        """Return the MESSAGE frames of a run of few entries; nothing if one of them may have been given back."""
        if not delivery.is_plain or (found := self._worker.ledgers.places(run.ledger_id, run.first, run.count)) is None:
            return b""
        places, data = found
        frames = delivery.few(run.first, places, data)
        # Looked at after the copy, as in `still_there`.  An entry that was given back, or has no checksum, begins
        # with a zero.
        return frames if 0 not in [data[offset] for offset, _ in places] else b""

    def _advance(self, run: Run, count: int) -> None:
        """Remove the first `count` entries of the first run."""
        if run.picked is None:
            run.first += count
        else:
            assert run.words is not None
            run.words = run.words[int(words_of(run.picked[:count]).sum()):]
            run.picked = run.picked[count:]
        run.count -= count
        if not run.count:
            self.runs.popleft()

    def configured(self) -> None:
        """Make later MESSAGE frames follow the worker's new options."""
        for route in self._routes.consumers.values():
            route.delivery_to = (-1, -1)


def _frames_of_left(run: Run, delivery: Delivery, rows: NDArray[np.void], data: memoryview,
                    is_left: NDArray[np.bool_] | None) -> tuple[NDArray[np.void], list[bytes | memoryview]]:
    """Return (index rows, MESSAGE frames) of those entries whose space has not been given back.

    rows: the index rows of all entries.  Other consumers have acknowledged the missing ones meanwhile.  The permits of
    missing entries are returned to the owner, so that the client gets as many messages as it asked for.
    """
    link = run.route.link
    assert link is not None
    frames: list[bytes | memoryview] = []
    picked, words = _picked(run, len(rows))
    while is_left is not None:      # space may be given back while frames are copied
        link.flow(run.route.handle, int(rows["messages"][~is_left].sum()))
        words = words[np.repeat(is_left, words_of(picked))]
        picked, rows = picked[is_left], rows[is_left]
        frames = delivery.picked_frames(picked, words, rows, data) if len(rows) else []
        is_left = egress.still_there(rows, data)
    return rows, frames


def _picked(run: Run, count: int) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
    """Return (rows (count,) LISTED_ENTRY, words of their ack sets) of a run's first entries, for both kinds of run."""
    if run.picked is not None:
        assert run.words is not None
        picked = run.picked[:count]
        return picked, run.words[:int(words_of(picked).sum())]
    picked = np.zeros(count, envelope.LISTED_ENTRY)
    picked["entry_id"] = np.arange(run.first, run.first + count)
    return picked, np.zeros(0, np.uint64)


# -- sections of an owner's envelope

class Receiver(Protocol):
    """The parts of a client that deliveries use."""

    @property
    def stream(self) -> Stream: ...
    @property
    def deliveries(self) -> DeliveryQueue: ...


def deliver_runs(clients: Mapping[int, Receiver], link: OwnerLink, rows: NDArray[np.void], data: memoryview) -> None:
    """Queue runs of consecutive entries, rows (n,) RUN_ROW, and write as much as each client reads."""
    receivers = {}
    for connection, count, consumer, partition_id, ledger_id, first in rows.tolist():
        client = clients.get(connection)
        if client is not None:
            client.deliveries.add(link, consumer, partition_id, ledger_id, first, count)
            receivers[connection] = client
    for client in receivers.values():
        attempt(client.stream, client.deliveries.write)


def deliver_entry_lists(clients: Mapping[int, Receiver], link: OwnerLink, rows: NDArray[np.void],
                        data: memoryview) -> None:
    """Queue listed entries, and write as much as each client reads.

    rows: (n,) ENTRY_LIST_ROW.  data: for each row its LISTED_ENTRY rows, then the words of their ack sets.
    """
    at, receivers = 0, {}
    for connection, count, consumer, partition_id, ledger_id, size, view in rows.tolist():
        picked = np.frombuffer(data, envelope.LISTED_ENTRY, count, at)
        words = np.frombuffer(data[at + picked.nbytes:at + size], np.uint64)
        at += size
        client = clients.get(connection)
        if client is not None:
            client.deliveries.add_picked(link, consumer, partition_id, ledger_id, picked, words, view)
            receivers[connection] = client
    for client in receivers.values():
        attempt(client.stream, client.deliveries.write)


def deliver_transient(clients: Mapping[int, Receiver], link: OwnerLink, rows: NDArray[np.void],
                      data: memoryview) -> None:
    """Write entries of non-persistent topics to clients that read, and drop the others.

    rows: (n,) TRANSIENT_ROW.  data: for each row its TRANSIENT_ENTRY rows, then the bytes of the entries.
    """
    at = 0
    for connection, count, consumer, size in rows.tolist():
        client = clients.get(connection)
        if client is not None:
            entries = np.frombuffer(data, envelope.TRANSIENT_ENTRY, count, at)
            attempt(client.stream, client.deliveries.write_transient, link, consumer, entries,
                    data[at + entries.nbytes:at + size])
        at += size
