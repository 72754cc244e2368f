"""Producers on very many connections, in one process: each sends a message in turn, and waits for its receipt.

The connections publish at one rate, at moments spread evenly, as clients on many hosts do.
"""
import multiprocessing as mp
import resource
import selectors
import socket
from itertools import count

import numpy as np
import sends
from link import ANSWER_MAX_S, CLOCK, Board, BrokerError, Link, Load
from numpy.typing import NDArray

from geminga.supervisor.load import wire

AT_ONCE = 100           # connections that are opened at the same time
READ_SIZE = 1 << 14     # bytes
SPARE_DESCRIPTORS = 64


class Crowd:
    """`load.crowd` connections, with a producer each; `load.rate` is the messages a second of each of them."""

    def __init__(self, load: Load, index: int, board: Board):
        self.load, self.index, self.board = load, index, board
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], load.crowd + SPARE_DESCRIPTORS), limits[1]))
        self.name = f"bench-{index}-{mp.current_process().pid}"
        link = Link(load)
        for topic in load.topics:
            link.find(topic)
        link.close()
        self.selector = selectors.EpollSelector()
        self.sockets: list[socket.socket] = []
        self.inboxes = [b""] * load.crowd
        for first in range(0, load.crowd, AT_ONCE):
            self._open(first, min(load.crowd, first + AT_ONCE))
        self.block = sends.SendBlock([sends.entry(self.name, b"." * load.size_bytes)], batch=1, producers=1)
        self.sent_at: list[float] = []
        self.confirmed_at: list[float] = []

    def _open(self, first: int, end: int) -> None:
        """Open connections first .. end - 1, and wait until each has its producer."""
        for number in range(first, end):
            one = socket.create_connection((self.load.host, self.load.port), timeout=ANSWER_MAX_S)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            topic = self.load.topics[number % len(self.load.topics)]
            one.sendall(wire.connect() + wire.producer(topic, wire.ID_FIRST, 1, f"{self.name}-{number}"))
            self.sockets.append(one)
        for number in range(first, end):
            kind, got = 0, b""
            while kind != wire.PRODUCER_SUCCESS:
                if not (more := self.sockets[number].recv(READ_SIZE)):
                    raise BrokerError("the broker closed a connection")
                got += more
                starts, taken = wire.frame_starts(np.frombuffer(got, np.uint8), len(got))
                for start in starts.tolist():
                    kind, _ = wire.command_of(got, start)
                    if kind == wire.ERROR:
                        raise BrokerError("the broker refused a producer")
                got = got[taken:]
            self.sockets[number].setblocking(False)
            self.selector.register(self.sockets[number], selectors.EVENT_READ, number)

    def run(self) -> dict[str, NDArray[np.float64]]:
        """Publish until told to stop; return when each message was sent and confirmed, in order."""
        sent, began, heard_at = 0, CLOCK(), CLOCK()
        step, turns, frames = 1 / (self.load.rate * self.load.crowd), count(), [self._frame(0)]
        turn = next(turns)
        while True:
            is_ending, now = self.board.producers_stop.value, CLOCK()
            while not is_ending and began + turn * step <= now:
                message, connection = divmod(turn, self.load.crowd)
                if message == len(frames):
                    frames.append(self._frame(message))
                self.sockets[connection].send(frames[message])      # far less than a socket's buffer
                self.sent_at.append(now)
                self.confirmed_at.append(np.nan)
                sent, turn = sent + 1, next(turns)
            if is_ending and self.board.published[self.index] == sent:
                return {"sent_at": np.array(self.sent_at), "confirmed_at": np.array(self.confirmed_at)}
            patience = 0.1 if is_ending else max(0.0, began + turn * step - CLOCK())
            for key, _ in self.selector.select(patience):
                heard_at = CLOCK()
                self._take(key.data, self.sockets[key.data].recv(READ_SIZE), heard_at)
            if CLOCK() - heard_at > ANSWER_MAX_S:
                raise BrokerError(f"{sent - self.board.published[self.index]} messages without a receipt")

    def _frame(self, message: int) -> bytes:
        return self.block.stamped(message, 1)

    def _take(self, connection: int, got: bytes, now: float) -> None:
        if not got:
            raise BrokerError("the broker closed a connection")
        got = self.inboxes[connection] + got
        at = 0
        while len(got) - at >= 4 and len(got) - at >= (size := 4 + int.from_bytes(got[at:at + 4], "big")):
            if got[at + wire.KIND_AT] == wire.SEND_RECEIPT:
                _, found = wire.command_of(got[at:at + size], 0)
                self.confirmed_at[(found[2] - wire.SEQUENCE_FIRST) * self.load.crowd + connection] = now
                self.board.published[self.index] += 1
            elif wire.command_of(got, at)[0] == wire.PING:
                self.sockets[connection].send(wire.pong())
            else:
                raise BrokerError(f"a producer was told {sends.NAMES.get(got[at + wire.KIND_AT], 'something else')}")
            at += size
        self.inboxes[connection] = got[at:]
