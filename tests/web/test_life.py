"""The process that serves WebSocket: killed, stopped, switched off; slow and strange clients."""
import asyncio
import base64
import contextlib
import os
import resource
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest
import uvloop

from geminga.workers.http_messages.calls import index_of
from geminga.workers.web.connection import Connection

from ..console.browser import Browser, needs_browser
from ..harness import eventually, path_of, request, unique_topic
from .rest import Rest
from .sockets import Closed, Sockets

KILOBYTE = base64.b64encode(b"x" * 768).decode()


def test_a_killed_process_is_started_again_and_clients_come_back(start_broker):
    broker = start_broker()
    topic = unique_topic()
    with Sockets(broker.http_url) as sockets:
        sockets.consumer(topic, "s").close()
        sockets.producer(topic).publish(b"kept")
        consumer = sockets.consumer(topic, "s")
        assert consumer.message()["data"] == b"kept"
        pid = broker.kill("web")
        assert consumer.code() in (None, 1006)
        # Nobody is turned away meanwhile: the handshake waits for the new process.
        assert sockets.consumer(topic, "s").data(1) == [b"kept"]
        assert broker.wait_replaced("web", 0, pid)
        consumer = sockets.consumer(unique_topic(), "s")
        assert broker.stop() == 0
        assert consumer.code() == 1001


def test_the_process_is_started_by_the_first_client(start_broker):
    """Until then it takes no memory, and the broker is ready without it."""
    for is_plain in (True, False):
        broker = start_broker()
        assert request("GET", f"{broker.http_url}/ready") == (200, "ok") and broker.child("web") is None
        if is_plain:
            rest = Rest(broker.http_url)
            assert rest.publish(rest.topic(), "x")
        else:
            with Sockets(broker.http_url) as sockets:
                assert sockets.producer(unique_topic()).publish(b"x")
        assert broker.child("web") and request("GET", f"{broker.http_url}/ready") == (200, "ok")


def test_the_broker_goes_on_when_two_processes_are_called_for_the_first_time_at_once(start_broker, tmp_path):
    (tmp_path / "geminga.toml").write_text("[http]\nweb_processes = 2\n")
    broker = start_broker("--config", str(tmp_path / "geminga.toml"))
    rest = Rest(broker.http_url)
    topics = {index_of(topic, 2): topic for topic in (rest.topic() for _ in range(50))}
    before = sockets_of(broker.child("admin"))
    os.kill(broker.pid, signal.SIGSTOP)      # so that it sees both calls at the same time
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(rest.produce, topic, [{"payload": "x"}]) for topic in topics.values()]
        # For each request one of the client's connection, and one of that to a web process.
        eventually(lambda: len(sockets_of(broker.child("admin")) - before) >= 4)
        os.kill(broker.pid, signal.SIGCONT)
        assert len(topics) == 2 and [answer.result()[0] for answer in answers] == [200, 200]


def sockets_of(pid):
    """Return the inodes of a process's sockets."""
    found = set()
    for place in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):      # it has just been closed
            found.add(os.readlink(place))
    return {each for each in found if each.startswith("socket:")}


def test_without_processes_the_paths_are_missing(tmp_path, start_broker):
    (tmp_path / "broker.conf").write_text("webSocketServiceEnabled=false\n")
    broker = start_broker("--config", str(tmp_path / "broker.conf"))
    with Sockets(broker.http_url) as sockets:
        assert sockets.status(f"/ws/v2/producer/{path_of(unique_topic())}") == 404
    rest = Rest(broker.http_url)
    assert rest.produce(rest.topic(), [{"payload": "x"}])[0] == 404
    assert broker.child("web") is None


def test_sessions_survive_the_end_of_owners_and_workers(start_broker):
    broker = start_broker()
    topic = unique_topic()
    with Sockets(broker.http_url) as sockets:
        consumer, producer = sockets.consumer(topic, "s"), sockets.producer(topic)
        producer.publish(b"1")
        assert consumer.data(1) == [b"1"]
        for role in ("worker", "owner"):
            for index in range(2):
                broker.wait_replaced(role, index, broker.kill(role, index))
            assert producer.publish(role.encode())
            eventually(lambda role=role: role.encode() in consumer.data(1))


@pytest.mark.slow
def test_a_slow_client_costs_little_and_holds_up_nobody(broker, sockets):
    """A client that does not read has a few megabytes in the process at most, whatever waits for it."""
    topic = unique_topic()
    where = urlsplit(broker.http_url)
    slow = socket.create_connection((where.hostname, where.port))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.sendall(f"GET /ws/v2/reader/{path_of(topic)}?messageId=earliest HTTP/1.1\r\nHost: {where.netloc}\r\n"
                 "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                 "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode())
    assert b"101" in slow.recv(20)
    web = psutil.Process(broker.child("web"))
    before, quick, producer = web.memory_full_info().uss, sockets.consumer(topic, "s"), sockets.producer(topic)
    large = b"x" * 700_000
    for _ in range(60):      # 42 MB
        producer.publish(large)
        assert quick.data(1) == [large]
    assert web.memory_full_info().uss - before < 20 << 20
    slow.close()


def test_large_and_strange_frames_have_their_codes(sockets):
    topic = unique_topic()
    for send, code in ((lambda producer: producer.text("x" * ((1 << 20) + 1)), 1009),
                       (lambda producer: producer.binary(b"x"), 1003),
                       (lambda producer: producer.raw(1, b"\xff"), 1007),
                       (lambda producer: producer.raw(8, b"\x03\xe8"), 1000)):
        producer = sockets.producer(topic)
        send(producer)
        assert producer.code() == code


def test_a_text_sent_with_the_handshake_is_read(broker):
    where, topic = urlsplit(broker.http_url), unique_topic()
    text = b'{"payload":"eA=="}'
    with socket.create_connection((where.hostname, where.port), 30) as link:
        link.sendall(f"GET /ws/v2/producer/{path_of(topic)} HTTP/1.1\r\nHost: {where.netloc}\r\n"
                     "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                     "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode()
                     + bytes([0x81, 0x80 | len(text)]) + bytes(4) + text)
        came = b""
        while b'"result":"ok"' not in came:
            came += link.recv(4096)
        assert b"101 Switching Protocols" in came


def test_a_connection_that_asked_for_something_else_before_may_become_a_websocket(broker):
    """A client library may take a connection for its WebSocket that is open already."""
    with Sockets(broker.http_url) as sockets:
        async def ask():
            async with sockets._session.get(f"{broker.http_url}/status.html") as answer:
                return await answer.text()
        assert sockets.run(ask()) == "OK"
        assert sockets.producer(unique_topic()).publish(b"x")


@pytest.mark.slow
def test_many_texts_without_a_break_are_all_answered(sockets):
    """More than the process takes before it holds back the client."""
    topic = unique_topic()
    producer = sockets.producer(topic, batchingEnabled="true")
    texts = 12_000

    async def flood():
        for number in range(texts):
            await producer.link.send_str(f'{{"payload":"{KILOBYTE}","context":"{number}"}}')

    sending = threading.Thread(target=lambda: sockets.run(flood()))
    sending.start()
    contexts = [producer.receive()["context"] for _ in range(texts)]
    sending.join()
    assert contexts == [str(number) for number in range(texts)]


def test_in_a_crowd_websockets_share_connections_until_they_are_busy(start_broker):
    """A process may have only so many descriptors."""
    broker, topic = start_broker(), unique_topic()

    def inside():
        return request("GET", f"{broker.http_url}/ops/v1/clients")[1].count("Geminga WebSocket")

    with Sockets(broker.http_url) as sockets:
        sockets.consumer(topic, "s", subscriptionType="Shared").close()      # begins the process
        hard = resource.prlimit(broker.child("web"), resource.RLIMIT_NOFILE)[1]
        resource.prlimit(broker.child("web"), resource.RLIMIT_NOFILE, (120, hard))      # a quarter: 30 of their own
        quiet = [sockets.consumer(topic, "s", subscriptionType="Shared", receiverQueueSize="1") for _ in range(50)]
        assert inside() == 31
        producer = sockets.producer(topic)
        assert producer.publish(b"first") and inside() == 32
        for _ in range(50):
            producer.publish(b"x" * 100)
        assert {message["data"] for message in (consumer.message() for consumer in quiet)} <= {b"first", b"x" * 100}
        large = unique_topic("large")      # more than sockets hold, for a client that does not read at first
        slow, writer = sockets.reader(large, receiverQueueSize="1000"), sockets.producer(large)
        before = inside()
        for number in range(100):
            writer.publish(b"%d " % number * 40_000)
        eventually(lambda: inside() == before + 2)      # the writer's, and the slow reader's
        assert [slow.message()["data"].split()[0] for _ in range(100)] == [b"%d" % number for number in range(100)]
        last = sockets.producer(topic)      # the ends of others leave a shared one as it is
        for consumer in quiet[40:]:
            consumer.close()
        assert last.publish(b"last") and quiet[35].link.closed is False


def test_a_text_sent_while_the_session_is_opened_is_read(broker):
    where, topic, text = urlsplit(broker.http_url), unique_topic(), b'{"payload":"eA=="}'
    with socket.create_connection((where.hostname, where.port), 120) as link:
        link.sendall(f"GET /ws/v2/producer/{path_of(topic)} HTTP/1.1\r\nHost: {where.netloc}\r\n"
                     "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                     "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode())
        for at in range(len(text)):      # byte by byte, so that some come at any moment of the hand-over
            link.sendall((bytes([0x81, 0x80 | len(text)]) + bytes(4) if at == 0 else b"") + text[at:at + 1])
        came = b""
        while b'"result":"ok"' not in came:
            came += link.recv(4096)
        assert b"101 Switching Protocols" in came


class Taking:
    """A session that keeps texts."""

    def __init__(self, taken: list[str]):
        self._taken = taken

    def texts(self, texts: list[str]) -> None:
        self._taken += texts

    def socket_writable(self, *, is_writable: bool) -> None: ...
    def closed(self) -> None: ...


def test_a_text_is_kept_that_comes_between_the_hand_over_and_the_session():
    """The event loop begins to read behind connection_made, and the text was dropped."""
    taken: list[str] = []

    async def talk() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.sendall(bytes([0x81, 0x81]) + bytes(4))
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_unix_connection(lambda: Connection(set(), "key"), sock=ours)
        await rounds()
        connection.open(Taking(taken), b"")
        theirs.sendall(b"x")
        await rounds()
        theirs.close()

    async def rounds() -> None:
        for _ in range(100):      # of the event loop, in each of which it could read
            await asyncio.sleep(0)

    uvloop.run(talk())
    assert taken == ["x"]


@pytest.mark.slow
@needs_browser
def test_the_script_of_a_page_publishes_and_consumes(broker):
    topic, browser = unique_topic(), Browser()
    try:
        browser.open(f"{broker.http_url}/status.html")
        said = browser.driver.execute_async_script("""
            const [place, done] = arguments;
            const consumer = new WebSocket(`ws://${location.host}/ws/v2/consumer/${place}/s?token=unused`);
            consumer.onmessage = event => {
                const message = JSON.parse(event.data);
                consumer.send(JSON.stringify({messageId: message.messageId}));
                done(atob(message.payload));
            };
            consumer.onopen = () => {
                const producer = new WebSocket(`ws://${location.host}/ws/v2/producer/${place}?token=unused`);
                producer.onopen = () => producer.send(JSON.stringify({payload: btoa("from a page")}));
            };
        """, path_of(topic))
        assert said == "from a page"
    finally:
        browser.close()


def test_who_goes_away_in_the_handshake_leaves_nothing(broker):
    topic, where = unique_topic(), urlsplit(broker.http_url)
    for _ in range(20):
        with socket.create_connection((where.hostname, where.port)) as link:
            link.sendall(f"GET /ws/v2/consumer/{path_of(topic)}/s HTTP/1.1\r\nHost: {where.netloc}\r\n"
                         "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                         "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode())
    with Sockets(broker.http_url) as sockets:
        def is_free():
            try:
                return sockets.consumer(topic, "s")
            except (aiohttp.WSServerHandshakeError, Closed):
                return None
        assert eventually(is_free)
