"""When what is queued for an owner leaves: the owner here is a socket that answers when the test says so."""
import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import zmq

from geminga.proto import envelope, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime import zmq_frames
from geminga.storage.runtime.routing import socket_path
from geminga.workers.owners.links import OwnerLinks

from ..proto.client_frames import entry_of, message_metadata


class Owner:
    """The other end of a worker's link, and the link."""

    def __init__(self, folder, loop):
        user = SimpleNamespace(options=SimpleNamespace(in_flight_bytes=1 << 30), is_draining=False,
                               received=lambda: None, lease=SimpleNamespace(keep=lambda: None))
        counters = SimpleNamespace(set=lambda *_: None, observe=lambda *_: None)
        self.context, self.loop = zmq.Context(), loop
        self.router = self.context.socket(zmq.ROUTER)
        self.router.bind(socket_path(folder, 1))
        self.links = OwnerLinks(folder, 2, 1, user, counters, loop)
        self.link, self.identity = self.links.connect(0, 1), b""
        self.queued = 0      # bytes that the link counts as sent, and that are not on their way

    def pass_of_the_worker(self):
        """Let the worker send what is due, as at the end of a pass of its loop."""
        self.links.schedule_flush()
        self.loop.run_until_complete(asyncio.sleep(0))

    def acknowledges(self):
        """Queue an acknowledgement of a client that wants no receipt."""
        self.link.many_acks(np.zeros(1, envelope.ROWS[envelope.ACKS]))
        self.links.flush_acks_soon(self.link)

    def taken_up(self, is_there=True):
        """Return the data of the sections that have come, without an answer to them."""
        if not self.router.poll(10_000 if is_there else 0):
            return []
        self.identity, *parts = zmq_frames.receive(self.router)
        self.identity = bytes(self.identity)
        return [bytes(data) for _, _, data in envelope.unseal(parts)[1]]

    def answer(self):
        """Answer everything that the worker has sent so far, and let it handle that."""
        zmq_frames.send(self.router, [self.identity, *envelope.seal([], self.link.sent - self.queued)])
        assert self.link.socket.poll(10_000)
        self.links.receive(self.link)
        self.loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def owner(tmp_path):
    loop = asyncio.new_event_loop()
    made = Owner(tmp_path, loop)
    yield made
    made.links.close(made.links.disconnect(0))
    made.router.close()
    for context in (made.context, made.links._context):
        context.term()
    loop.close()


def row(sequence_id):
    return sends.read_one(api.CommandSend(producer_id=1, sequence_id=sequence_id), entry_of(message_metadata()))


def test_a_little_waits_for_the_answer_to_what_was_sent_before(owner):
    owner.link.send(10, 1, row(1), b"a")
    owner.pass_of_the_worker()
    assert owner.taken_up() == [b"a"]
    owner.link.send(10, 1, row(2), b"b")
    owner.pass_of_the_worker()
    owner.link.command(1, 21, b"cc")
    owner.pass_of_the_worker()
    assert owner.taken_up(is_there=False) == []
    owner.queued = 1 + envelope.COMMAND_COST + 2
    owner.answer()
    assert owner.taken_up() == [b"b", b"cc"]      # in one envelope
    owner.queued = 0
    owner.answer()
    owner.link.send(10, 1, row(3), b"d")
    owner.pass_of_the_worker()
    assert owner.taken_up() == [b"d"]


def test_much_does_not_wait(owner):
    owner.link.send(10, 1, row(1), b"a")
    owner.pass_of_the_worker()
    assert owner.taken_up() == [b"a"]
    owner.link.send(10, 1, row(2), bytes(100_000))
    owner.pass_of_the_worker()
    assert owner.taken_up() == [bytes(100_000)]
    for _ in range(1_000):
        owner.link.command(1, 21, b"c")
    owner.pass_of_the_worker()
    assert owner.taken_up() == [b"c" * 1_000]


def test_what_the_owner_never_answers_does_not_hold_others_back(owner):
    """Permits and acknowledgements without a receipt give no credit back, so nothing waits for an answer to them."""
    for permits in (1, 2):
        owner.link.flow(5, permits)
        owner.pass_of_the_worker()
        assert owner.taken_up() == [b""]
    owner.acknowledges()
    owner.links.schedule_flush(owner.link)      # as for one that wants a receipt
    owner.pass_of_the_worker()
    assert owner.taken_up() == [b""]


def test_acknowledgements_that_want_no_receipt_leave_with_what_comes_next(owner):
    """Neither passes of the worker nor answers of the owner send them by themselves: each would wake the owner."""
    owner.link.send(10, 1, row(1), b"a")
    owner.pass_of_the_worker()
    assert owner.taken_up() == [b"a"]
    owner.acknowledges()
    owner.pass_of_the_worker()
    owner.answer()
    owner.pass_of_the_worker()
    assert owner.taken_up(is_there=False) == []
    owner.link.send(10, 1, row(2), b"b")
    owner.pass_of_the_worker()
    assert sorted(owner.taken_up()) == [b"", b"b"]


def test_acknowledgements_leave_soon_if_nothing_comes(owner, monkeypatch):
    monkeypatch.setattr("geminga.workers.owners.links._ACK_SECONDS", 0)
    for _ in range(2):
        owner.acknowledges()
        while owner.link.has_queued:
            owner.loop.run_until_complete(asyncio.sleep(0))
        assert owner.taken_up() == [b""]
