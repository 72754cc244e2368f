"""Clients that do not read, do not write, or stop in the middle: memory stays bounded and the others go on."""
import json
import os
import selectors
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..clients.test_administration import topic_url
from ..harness import HANG_SECONDS, Broker, partitioned_topic, request, unique_topic
from ..proto.client_frames import CONNECT, MESSAGE_SIZE_MAX, PING, T, command, entry_of, message_metadata, send
from .peer import SECONDS, Bystander, Closed, Peer, error_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unharmed")]

GROWTH_MAX = 64 << 20       # bytes that all workers together may take during these tests
LARGE = 2**55
ROUNDS = 20                 # rounds of a bystander, during which memory is watched


def workers_memory(broker: Broker) -> int:
    """Return the bytes that belong to the workers alone, without the ledgers they have mapped."""
    return sum(psutil.Process(pid).memory_full_info().uss for name, pid in broker.children().items()
               if name.startswith("geminga-w"))


@pytest.fixture
def within_bounds(broker: Broker, bystander: Bystander) -> Iterator:
    """within_bounds(): while a bystander goes on, the workers take no more than GROWTH_MAX above what they had."""
    before = workers_memory(broker)

    def check() -> None:
        for _ in range(ROUNDS):
            bystander.round()
            assert workers_memory(broker) - before < GROWTH_MAX

    yield check


def wait_readable(peer: Peer) -> None:
    assert _is_ready(peer, selectors.EVENT_READ, SECONDS)


def test_consumers_that_never_read_hold_up_nobody(broker, within_bounds):
    """200 MB for consumers that read nothing stay in the ledger; a consumer that begins to read gets all, in order."""
    topic, entries = unique_topic(), [entry_of(message_metadata(sequence_id=number), bytes(100_000))
                                      for number in range(200)]
    with ExitStack() as open_peers:
        producer = open_peers.enter_context(Peer(broker.service_url))
        producer.open_producer(topic)
        for number, entry in enumerate(entries):
            producer.say(send(entry, sequence_id=number))
        assert [producer.hear().send_receipt.sequence_id for _ in entries] == list(range(200))
        deaf = [open_peers.enter_context(Peer(broker.service_url, receive_buffer=4_096)) for _ in range(10)]
        for number, peer in enumerate(deaf):
            peer.subscribe(topic, f"deaf-{number}")
            peer.say(command(T.FLOW, consumer_id=1, messagePermits=1_000))
        for peer in deaf:
            wait_readable(peer)
        within_bounds()
        assert [deaf[0].hear_frame()[1] == entry for entry in entries] == [True] * 200
        within_bounds()


def _is_ready(peer: Peer, event: int, seconds: float) -> bool:
    """Whether the socket is ready; not by select, which knows no descriptor above 1,023."""
    with selectors.DefaultSelector() as selector:
        selector.register(peer.socket, event)
        return bool(selector.select(seconds))


def say_until_stuck(peer: Peer, data: bytes, times: int) -> int:
    """Write data again and again until the broker takes no more of it for a second; return the bytes it has taken.

    The writing may end within a frame: a PONG would become part of this frame, and its answer might never come.
    """
    peer.answers_pings = False
    peer.socket.setblocking(False)
    said, whole = 0, memoryview(data)
    while said < times * len(data) and _is_ready(peer, selectors.EVENT_WRITE, 1):
        said += peer.socket.send(whole[said % len(data):])
    peer.socket.settimeout(SECONDS)
    return said


def test_a_producer_that_never_reads_its_receipts_is_not_read_from(broker, within_bounds):
    """Receipts wait up to a bound, then the producer is not read from; every receipt comes when it reads."""
    with Peer(broker.service_url, receive_buffer=4_096) as peer:
        peer.open_producer(unique_topic(), LARGE)
        # large numbers make large receipts
        one = send(producer_id=LARGE, sequence_id=LARGE, highest_sequence_id=LARGE)
        said = say_until_stuck(peer, one * 10_000, 200)
        assert said < 200 * 10_000 * len(one)
        within_bounds()
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        kinds = {peer.hear().type for _ in range(said // len(one))}
        assert kinds == {T.SEND_RECEIPT}
        peer.say(one[said % len(one):] if said % len(one) else b"")


def test_a_client_that_never_reads_answers_is_not_read_from(broker, within_bounds):
    """Answers of the worker itself are bounded too, though one read asks for a gigabyte; none is lost."""
    partitioned_topic(broker.http_url, 1_000, "long-list")
    with Peer(broker.service_url, receive_buffer=4_096) as peer:
        asked = b"".join(command(T.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=number)
                         for number in range(1, 20_001))
        said = say_until_stuck(peer, asked, 10)
        assert said < 10 * len(asked)
        within_bounds()
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        for number in range(1, 501):
            answer = peer.hear().getTopicsOfNamespaceResponse
            assert answer.request_id == number and len(answer.topics) >= 1_000
        within_bounds()


HALF = {
    "nothing": b"",
    "half a size": b"\0\0",
    "a size": struct.pack(">I", 100),
    "connected": CONNECT,
    "half a command": CONNECT + PING[:-1],
    "a large frame announced": CONNECT + struct.pack(">II", MESSAGE_SIZE_MAX, 20) + send()[8:28],
    "a large frame begun": CONNECT + struct.pack(">II", MESSAGE_SIZE_MAX, 20) + send()[8:28] + bytes(70_000),
}


@pytest.mark.parametrize("said", HALF.values(), ids=HALF)
def test_many_connections_that_stop_in_the_middle_cost_little(broker, within_bounds, said):
    """200 connections have announced large frames, and take no memory for bytes that have not come."""
    with ExitStack() as open_peers:
        for _ in range(200):
            peer = open_peers.enter_context(Peer(broker.service_url, b""))
            peer.say(said)
        within_bounds()


def test_a_connection_that_goes_away_in_the_middle_of_a_frame_leaves_nothing(broker):
    """Its producer's name is free again at once, and half a message is not stored."""
    topic = unique_topic()
    name = {"topic": topic, "producer_id": 1, "request_id": 1, "producer_name": "named",
            "user_provided_producer_name": True}
    with Peer(broker.service_url) as peer:
        assert peer.ask(T.PRODUCER, **name).type == T.PRODUCER_SUCCESS
        peer.say(send(sequence_id=1) + send(sequence_id=2)[:-1])
        assert peer.hear().send_receipt.sequence_id == 1
        peer.end()
        with pytest.raises(Closed):
            peer.hear()
    with Peer(broker.service_url) as peer:
        assert peer.ask(T.PRODUCER, **name).type == T.PRODUCER_SUCCESS
        peer.subscribe(topic)
        last = peer.ask(T.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=3).getLastMessageIdResponse.last_message_id
        assert last.entryId == 0


def test_what_is_said_in_single_bytes_is_understood(broker):
    """Each byte comes in a packet of its own, as far as the network lets it."""
    with Peer(broker.service_url, b"") as peer:
        for byte in CONNECT + command(T.PRODUCER, topic=unique_topic(), producer_id=1, request_id=1):
            peer.say(bytes([byte]))
        assert [peer.hear().type, peer.hear().type] == [T.CONNECTED, T.PRODUCER_SUCCESS]
        for byte in send():
            peer.say(bytes([byte]))
        assert peer.hear().type == T.SEND_RECEIPT
        assert api.BaseCommand.Type.Name(peer.ask(T.PING).type) == "PONG"


def test_an_answer_that_is_not_read_because_of_a_rate_is_waited_for(start_broker):
    """A client that is throttled for its earlier SENDs is not taken for dead while its PONG lies unread behind them."""
    broker = start_broker("--workers", "1", "--owners", "1")
    topic = unique_topic("held")
    with Peer(broker.service_url) as holder, Peer(broker.service_url) as other:
        assert (
            holder.ask(T.PRODUCER, topic=topic, producer_id=1, request_id=1, producer_name="mine").type
            == T.PRODUCER_SUCCESS
        )
        rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
        assert request("POST", topic_url(broker, topic, "publishRate"), json.dumps(rate).encode())[0] == 204
        owner = broker.pause("owner")
        try:
            for peer, said in (
                    (other, command(T.PRODUCER, topic=topic, producer_id=1, request_id=1, producer_name="mine")),
                    (holder, b"".join(send(entry_of(message_metadata(sequence_id=at), b"x"), sequence_id=at)
                                      for at in range(100)))):
                assert peer.ask(T.PING).type == T.PONG
                peer.say(said)
                assert peer.ask(T.PING).type == T.PONG      # the worker has read the last command
        finally:
            os.kill(owner, signal.SIGCONT)
        while not _is_ready(other, selectors.EVENT_READ, 0):
            assert holder.hear().type == T.SEND_RECEIPT        # one receipt a second, and PINGs are answered meanwhile
        assert error_of(other.hear()) == api.ProducerBusy      # this comes after the holder has answered its PING
        assert len(json.loads(request("GET", topic_url(broker, topic, "stats"))[1])["publishers"]) == 1


def test_a_client_that_has_not_connected_is_not_asked_for_a_sign_of_life(start_broker, tmp_path):
    """Such a client may say nothing but CONNECT: a PONG would end its connection."""
    (tmp_path / "geminga.toml").write_text("[network]\nkeep_alive_interval_ms = 100\n")
    broker = start_broker("--config", str(tmp_path / "geminga.toml"), "--workers", "1")
    with Peer(broker.service_url, b"") as late, Peer(broker.service_url) as connected:
        connected.answers_pings = False
        assert connected.until_closed() == []      # two rounds of PINGs have passed
        late.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            late.socket.recv(1)
        late.socket.settimeout(HANG_SECONDS)
        assert late.ask(T.CONNECT, client_version="test", protocol_version=21).type == T.CONNECTED
