"""One connection, or many, cannot take a worker from its other clients: a witness is served, and memory stays bounded.
"""
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import psutil
import pytest

from geminga.proto.connection import FIRST_SIZE_MAX
from geminga.workers.clients.turns import UNFINISHED_MAX, UNREAD_MAX, Turns, UnfinishedFrames

from ..harness import HANG_SECONDS, Broker, Stopwatch, partitioned_topic, unique_topic
from ..proto.client_frames import MESSAGE_SIZE_MAX, PING, T, command, entry_of, message_metadata, send
from .peer import Bystander, Peer

pytestmark = pytest.mark.slow

WAIT_MAX = 2          # seconds that a witness may wait for its message, some of them for a busy machine
PONG = command(T.PONG)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Iterator[Broker]:
    """A broker with one worker, which all connections share."""
    made = Broker(tmp_path_factory.mktemp("alone") / "data", "--workers", "1", "--owners", "1")
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture
def witness(alone: Broker) -> Iterator["Witness"]:
    """A client from before the test; after the test every process is the one that it was."""
    before = alone.children()
    found = Witness(alone.service_url)
    yield found
    found.round()
    found.close()
    assert alone.children() == before


class Witness(Bystander):
    """A correct client that notes how long it waits."""

    def __init__(self, service_url: str):
        super().__init__(service_url, unique_topic("witness"))
        self.longest = 0.0      # seconds

    def while_(self, goes_on: Callable[[], bool], seconds: float = 120) -> int:
        """Make rounds while the condition holds; return how many."""
        count, end = 0, time.monotonic() + seconds
        while goes_on():
            assert time.monotonic() < end, f"it still goes on after {seconds} s"
            watch = Stopwatch()
            self.round()
            self.longest = max(self.longest, watch.seconds())
            count += 1
        return count


class Flood:
    """A connection that says much at once, and reads its answers, in threads of its own."""

    def __init__(self, service_url: str, said: bytes, last: bytes = PING, answer: bytes = PONG):
        self.peer = Peer(service_url)
        self.peer.socket.settimeout(None)
        self.is_answered = self.has_ended = False
        self._said, self._answer = said + last, answer
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._say, self._hear)]
        for thread in self._threads:
            thread.start()

    def _say(self) -> None:
        with suppress(OSError):
            self.peer.socket.sendall(self._said)

    def _hear(self) -> None:
        tail = b""
        with suppress(OSError):
            while data := self.peer.socket.recv(1 << 20):
                tail = (tail + data)[-100 - len(data):]      # a PING may come behind the last answer
                if self._answer in tail:
                    self.is_answered = True
                    return
        self.has_ended = True

    def close(self) -> None:
        with suppress(OSError):
            self.peer.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self.peer.socket.close()


def worker_memory(broker: Broker) -> int:
    return psutil.Process(broker.child("worker")).memory_full_info().uss


@pytest.fixture
def flood(alone: Broker) -> Iterator[Callable[..., Flood]]:
    """flood(said): one more such connection."""
    made: list[Flood] = []

    def begin(said: bytes, **more) -> Flood:
        made.append(Flood(alone.service_url, said, **more))
        return made[-1]

    yield begin
    for one in made:
        one.close()


# -- turns

CHEAP_TO_SAY = {
    "partition metadata": command(T.PARTITIONED_METADATA, topic="orders", request_id=1),
    "lookups": command(T.LOOKUP, topic="orders", request_id=1),
}


@pytest.mark.parametrize("said", CHEAP_TO_SAY.values(), ids=CHEAP_TO_SAY)
def test_who_asks_much_at_once_is_answered_between_others(witness, flood, said):
    """Each flood is half a second's work; while ten of them are worked off the witness waits for none of them."""
    floods = [flood(said * (400_000 // len(said))) for _ in range(10)]
    rounds = witness.while_(lambda: not all(one.is_answered for one in floods))
    assert not any(one.has_ended for one in floods)
    assert witness.longest < WAIT_MAX and rounds > 10


def test_producers_without_end_let_their_owner_serve_others(alone, witness, flood):
    """One connection asks for thirty thousand: the owner has a moment's worth of them, the others wait at the worker.
    """
    memory = worker_memory(alone)
    topic, end = unique_topic("many"), time.monotonic() + 6
    many = flood(b"".join(command(T.PRODUCER, topic=topic, producer_id=number, request_id=number)
                          for number in range(30_000)))
    rounds = witness.while_(lambda: time.monotonic() < end and not many.is_answered)
    assert witness.longest < WAIT_MAX and rounds > 10
    assert worker_memory(alone) - memory < 100 << 20


# -- memory

def test_before_connect_a_frame_is_small(alone, witness):
    """A frame before CONNECT has room for tokens and no more: nobody unknown makes the worker hold megabytes."""
    with Peer(alone.service_url, struct.pack(">II", FIRST_SIZE_MAX + 1, 20)) as peer:
        assert peer.until_closed() == []
    shown = {"client_version": "test", "auth_method_name": "token", "auth_data": bytes(FIRST_SIZE_MAX - 100)}
    with Peer(alone.service_url, command(T.CONNECT, **shown)) as peer:
        assert peer.hear().type == T.CONNECTED


def test_messages_that_are_never_finished_are_bounded_over_all(alone, witness):
    """Sixty clients send nearly five megabytes of a frame each: the oldest unfinished frame makes room, whole ones
    pass.
    """
    before, begun = (
        worker_memory(alone),
        struct.pack(">II", MESSAGE_SIZE_MAX, 20) + send()[8:28] + bytes(MESSAGE_SIZE_MAX - 100),
    )
    with ExitStack() as open_peers:
        peers = [open_peers.enter_context(Peer(alone.service_url)) for _ in range(60)]
        for peer in peers:
            peer.say(begun)
            witness.round()
        assert peers[0].until_closed() == []
        assert worker_memory(alone) - before < UNFINISHED_MAX + (48 << 20)
        large = open_peers.enter_context(Peer(alone.service_url))
        large.open_producer(unique_topic())
        large.say(send(entry_of(message_metadata(), bytes(MESSAGE_SIZE_MAX))))
        assert large.hear().type == T.SEND_RECEIPT
        peers[-1].answers_pings = False
        peers[-1].socket.settimeout(0.1)
        with pytest.raises(TimeoutError):      # the last connection is still waited for
            peers[-1].hear()
    assert "unfinished messages take more than 128 MiB" in alone.log()


def test_answers_that_nobody_takes_are_bounded_over_all(alone, witness):
    """Twenty-four connections ask for lists and read nothing: none has as much waiting as one alone might have."""
    partitioned_topic(alone.http_url, 200, "list")
    said = command(T.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=1) * 2_000
    before = worker_memory(alone)
    with ExitStack() as open_peers:
        peers = [open_peers.enter_context(Peer(alone.service_url, receive_buffer=4_096)) for _ in range(24)]
        for peer in peers:
            peer.socket.setblocking(False)
            peer.socket.send(said)
        grown: list[int] = []

        def grows() -> bool:
            grown.append(worker_memory(alone) - before)
            return len(grown) < 40 or grown[-1] > grown[-20] + (1 << 20)

        witness.while_(grows)
        assert max(grown) < UNREAD_MAX + (48 << 20)
        assert witness.longest < WAIT_MAX
        peers[0].socket.settimeout(HANG_SECONDS)
        peers[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        for _ in range(300):      # a client that reads after all misses nothing
            assert len(peers[0].hear().getTopicsOfNamespaceResponse.topics) >= 200


# -- the parts alone, without a broker

class Waiting:
    """A client with work for so many turns."""

    address = "test"

    def __init__(self, turns: Turns, work: int, taken: list, *, fails: bool = False):
        self.turns, self.work, self.taken, self.fails, self.is_closed = turns, work, taken, fails, False
        self.transport = self

    def take_turn(self) -> None:
        self.taken.append(self)
        if self.fails:
            raise ValueError("its own")
        self.work -= 1
        if self.work:
            self.turns.wait(self)

    def abort(self) -> None:
        self.is_closed = True

    give_up = abort


class Loop:
    """A loop that makes the calls that it was asked for, one after the other."""

    def __init__(self):
        self.due: list[Callable[[], None]] = []

    def call_soon(self, function: Callable[[], None]) -> None:
        self.due.append(function)

    def run(self) -> int:
        passes = 0
        while self.due:
            due, self.due = self.due, []
            passes += 1
            for function in due:
                function()
        return passes


def test_turns_go_round():
    loop, taken = Loop(), []
    turns = Turns(loop, 1 << 20)
    clients = [Waiting(turns, work, taken) for work in (3, 1, 2)]
    for client in clients:
        turns.wait(client)
    assert len(loop.due) == 1
    loop.run()
    assert taken == [*clients, clients[0], clients[2], clients[0]] and turns.room == 1 << 20


def test_between_turns_the_loop_looks_at_sockets(monkeypatch):
    """When waiting clients have used their time, the loop looks at its sockets first; no client has two turns at once.
    """
    now = iter(range(1_000))
    monkeypatch.setattr("geminga.workers.clients.turns.time.monotonic", lambda: next(now))
    loop, taken = Loop(), []
    turns = Turns(loop, 1 << 20)
    monkeypatch.setattr("geminga.workers.clients.turns._TURN_SECONDS", 1.5)
    turns.wait(Waiting(turns, 3, taken))
    assert loop.run() == 3 and len(taken) == 3


def test_a_turn_that_fails_ends_its_connection_and_nothing_else(capfd):
    loop, taken = Loop(), []
    turns = Turns(loop, 1 << 20)
    bad, good = Waiting(turns, 1, taken, fails=True), Waiting(turns, 2, taken)
    turns.wait(bad)
    turns.wait(good)
    loop.run()
    assert bad.is_closed and not good.is_closed and taken == [bad, good, good]
    assert "ValueError: its own" in capfd.readouterr().err


def test_the_more_wait_the_less_is_read():
    turns = Turns(Loop(), 1 << 20)
    clients, rooms = [Waiting(turns, 1, []) for _ in range(100)], []
    for number, client in enumerate(clients):
        turns.unread(client, 1) if number % 2 else turns.wait(client)
        rooms.append(turns.room)
    assert rooms[:3] == [(1 << 20) // 2, (1 << 20) // 3, (1 << 20) // 4] and rooms[-1] == 16 << 10
    assert sum(rooms) < 6 << 20
    turns._loop.run()
    assert turns.room == (1 << 20) // 51
    for client in clients:
        turns.read(client)
    assert turns.room == 1 << 20


def test_what_is_unread_is_bounded_over_all():
    turns = Turns(Loop(), 1 << 20)
    one, other = Waiting(turns, 1, []), Waiting(turns, 1, [])
    turns.unread(one, UNREAD_MAX - 10)
    turns.unread(other, 10)
    turns.unread(other, 10)
    assert not turns.is_crowded
    turns.unread(other, 11)
    assert turns.is_crowded
    turns.read(other)
    turns.read(other)
    assert not turns.is_crowded


def test_of_halves_the_one_begun_first_makes_room(monkeypatch, capfd):
    monkeypatch.setattr("geminga.workers.clients.turns.UNFINISHED_MAX", 1_000)
    halves, clients = UnfinishedFrames(), [Waiting(None, 0, []) for _ in range(4)]
    for client in clients[:3]:
        halves.keep(client, 300)
    halves.keep(clients[0], 200)      # the first frame was finished, and another one begun
    halves.grew(clients[1], 200)      # the same frame has grown: 300 + 500 + 200
    assert not any(client.is_closed for client in clients)
    halves.keep(clients[3], 1)
    assert [client.is_closed for client in clients] == [False, True, False, False]
    halves.keep(clients[2], 0)
    halves.keep(clients[1], 0)        # its connection has ended
    halves.keep(clients[0], 999)
    assert [client.is_closed for client in clients] == [False, True, False, False]
    halves.grew(clients[0], 1)
    assert [client.is_closed for client in clients] == [False, True, False, True]
    assert capfd.readouterr().err.count("G322") == 0      # the code is a field of the log line; its text is for people
