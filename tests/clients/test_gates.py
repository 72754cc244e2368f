"""What a real broker does with a connection before its first command: PROXY headers, other protocols, bounds."""
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pulsar
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import frame

from ..conftest import _running_broker
from ..harness import HANG_SECONDS, Broker, eventually, request, unique_topic
from ..proto.client_frames import CONNECT, T
from ..relay import Relay
from ..workers.peer import Closed, Peer
from ..workers.test_ports import OTHER, SIGNATURE, binary
from .test_reach import port_of, uses
from .test_tls import Authority

GEMINGA = str(Path(sys.executable).with_name("geminga"))
TEXT = b"PROXY TCP4 192.0.2.7 192.0.2.1 56324 6650\r\n"
HELLO = b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(506)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    if _running_broker() is not None:
        pytest.skip("needs a broker with its own configuration")
    return Authority(tmp_path_factory.mktemp("gates"))


@pytest.fixture(scope="module")
def behind(authority) -> Iterator[Broker]:
    """A broker behind proxies, with and without TLS."""
    own = Broker(authority.folder / "data", "--config",
                 authority.configuration("[network]\nproxy_protocol = true\nmax_connections_per_address = 20\n"))
    try:
        yield own.start()
    finally:
        own.close()


# -- PROXY headers

@pytest.mark.parametrize(("header", "address"), [
    (TEXT, "192.0.2.7"), (binary(), "192.0.2.7"), (binary(OTHER, fields=b"\x04\0\x01x"), "[2001:db8::7]"),
    (binary(command=0x20), "127.0.0.77"), (b"", "127.0.0.77")])
@pytest.mark.parametrize("port", ["service_url", "tls_url"])
def test_statistics_have_the_address_that_a_proxy_announces(behind, authority, connect, header, address, port):
    """Through a proxy, and without a header, over both ports: the real client works and is known by its address."""
    with Relay(port_of(getattr(behind, port)), header) as relay:
        client = connect(f"{urlsplit(getattr(behind, port)).scheme}://localhost:{relay.port}",
                         tls_trust_certs_file_path=authority.trusted, tls_validate_hostname=True)
        assert uses(client, behind, unique_topic("proxy")) == {address}
        listed = json.loads(request("GET", behind.http_url + "/ops/v1/clients?limit=1000")[1])["rows"]
        assert urlsplit(getattr(behind, port)).scheme in {
            row["listener"] for row in listed if row["address"].rpartition(":")[0] == address}
        client.close()


def test_a_header_may_come_in_pieces(behind):
    """However a header is cut, even into its bytes, the bytes behind it are the client's."""
    for header in (TEXT, binary()):
        with Peer(behind.service_url, b"") as peer:
            peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in header + CONNECT:
                peer.say(bytes([byte]))
            assert peer.hear().type == T.CONNECTED


def test_a_single_byte_is_read_behind_a_header(behind):
    """The port waits for four bytes at once while it looks for a header, and for any byte afterwards."""
    ping = frame(api.BaseCommand(type=T.PING, ping=api.CommandPing()))
    with Peer(behind.service_url, TEXT + CONNECT) as peer:
        assert peer.hear().type == T.CONNECTED
        peer.say(ping + ping[:-1])
        assert peer.hear().type == T.PONG
        peer.socket.settimeout(10)      # shorter than keep_alive_interval_ms, whose answer would bring more bytes
        peer.say(ping[-1:])
        assert peer.hear().type == T.PONG


@pytest.mark.parametrize(("outer", "inner", "address"), [
    (b"", binary("192.0.2.61"), "192.0.2.61"), (b"", TEXT.replace(b"2.7", b"2.62"), "192.0.2.62"),
    (binary("192.0.2.63"), binary("192.0.2.64"), "192.0.2.64"),
    (binary("192.0.2.65"), binary(command=0x20), "192.0.2.65")])
def test_a_header_may_come_within_tls(behind, authority, outer, inner, address):
    """Pulsar's proxy sends its header behind the handshake: the client is known by its address."""
    with Peer(behind.tls_url.replace("+ssl", ""), outer) as peer:
        peer.socket = authority.context().wrap_socket(peer.socket, server_hostname="localhost")
        peer.say(inner + CONNECT)
        assert peer.hear().type == T.CONNECTED
        assert eventually(lambda: address in {
            row["address"].rpartition(":")[0]
            for row in json.loads(request("GET", behind.http_url + "/ops/v1/clients?limit=1000")[1])["rows"]})


@pytest.mark.parametrize("header", [b"PROXY TCP4 nobody\r\n", SIGNATURE + b"\x11\x11\0\x0c" + bytes(12)])
@pytest.mark.parametrize("port", ["service_url", "tls_url"])
def test_a_malformed_header_ends_the_connection(behind, header, port):
    with Peer(getattr(behind, port).replace("+ssl", ""), header + CONNECT) as peer:
        assert peer.until_closed() == []
    eventually(lambda: "127.0.0.1 sends a malformed PROXY header" in behind.log())


def test_a_malformed_header_within_tls_ends_the_connection(behind, authority):
    with Peer(behind.tls_url.replace("+ssl", ""), b"") as peer:
        peer.socket = authority.context().wrap_socket(peer.socket, server_hostname="localhost")
        peer.say(b"PROXY TCP4 nobody\r\n" + CONNECT)
        assert peer.until_closed() == []


def test_bounds_hold_for_announced_addresses(behind):
    """A bound for each address is one for each client of the proxy, not for the proxy."""
    with ExitStack() as stack:
        def opened(client: str) -> Peer:
            return stack.enter_context(Peer(behind.service_url, binary(client) + CONNECT))

        assert all(opened("192.0.2.50").hear().type == T.CONNECTED for _ in range(20))
        assert opened("192.0.2.50").hear().error.error == api.NotAllowedError
        assert opened("192.0.2.51").hear().type == T.CONNECTED


def test_a_stranger_is_told_by_the_address_that_a_proxy_announces(behind):
    """Otherwise the log would blame the proxy for its client."""
    assert b"serves Pulsar's protocol" in said_to(behind.service_url, binary("192.0.2.99") + GET)
    eventually(lambda: "192.0.2.99 sends HTTP, and port" in behind.log())


def test_a_header_that_is_not_asked_for_is_refused(own):
    """Without network.proxy_protocol no client can claim another address, and the log says which key takes headers."""
    with Peer(own.service_url, TEXT + CONNECT) as peer:
        assert peer.until_closed() == []
    eventually(lambda: "sends a PROXY header, and port" in own.log() and "network.proxy_protocol" in own.log())


# -- other protocols

def said_to(url: str, first: bytes) -> bytes:
    """Return everything that a port answers until it closes the connection."""
    heard = b""
    with closing(socket.create_connection((urlsplit(url).hostname, port_of(url)), 30)) as link:
        link.sendall(first)
        while data := link.recv(4096):
            heard += data
    return heard


@pytest.fixture(scope="module")
def ports(authority, tmp_path_factory) -> Iterator[Broker]:
    """A broker with all four ports and one of each process, whose log has each kind of stranger once."""
    own = Broker(tmp_path_factory.mktemp("ports") / "data", "--config", authority.configuration(), "--workers", "1")
    try:
        yield own.start()
    finally:
        own.close()


GET = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(("port", "first", "came", "right"), [
    ("service_url", GET, "HTTP", "http_url"), ("service_url", HELLO, "TLS", "tls_url"),
    ("tls_url", GET, "HTTP", "https_url"), ("tls_url", CONNECT, "Pulsar's protocol", "service_url"),
    ("http_url", CONNECT, "Pulsar's protocol", "service_url"), ("http_url", HELLO, "TLS", "https_url"),
    ("https_url", GET, "HTTP", "http_url"), ("https_url", CONNECT, "Pulsar's protocol", "tls_url")])
def test_another_protocol_is_told_its_port(ports, port, first, came, right):
    """It is closed at once with an answer, and one line of the log says what came, from where and where it belongs."""
    there, belongs = port_of(getattr(ports, port)), port_of(getattr(ports, right))
    for _ in range(3):
        answer = said_to(getattr(ports, port), first)
        assert f"Port {there} serves ".encode() in answer and f"is at port {belongs}".encode() in answer
        is_http = came == "HTTP" or (port == "http_url" and came == "TLS")
        assert answer.startswith(b"HTTP/1.1 400 " if is_http else b"\0\0")
    lines = [line for line in ports.log().splitlines() if f"127.0.0.1 sends {came}, and port {there} serves" in line]
    assert len(lines) == 1 and f"is at port {belongs}" in lines[0]


@pytest.mark.parametrize(("port", "first", "answer"), [
    ("tls_url", GET, "Port {} serves Pulsar's protocol over TLS; HTTP is at port"),
    ("https_url", CONNECT, "Port {} serves HTTPS; Pulsar's protocol is at port")])
def test_another_protocol_over_tls_is_told_the_port_that_it_came_to(ports, authority, port, first, answer):
    """Behind the handshake the same bytes come as without TLS, and the answer must not name the port without it."""
    there = port_of(getattr(ports, port))
    with socket.create_connection(("127.0.0.1", there), 30) as plain, \
            authority.context().wrap_socket(plain, server_hostname="localhost") as link:
        for half in (first[:2], first[2:]):      # as much as it takes to tell protocols apart may come in pieces
            link.sendall(half)
        assert answer.format(there).encode() in link.recv(4096)
        assert link.recv(4096) == b""
    assert answer.format(there)[1:] in ports.log()


def test_garbage_at_a_port_of_tls_ends_at_once(ports):
    for url in (ports.tls_url, ports.https_url):
        assert said_to(url, b"\xff" * 100) == b""
    assert request("GET", ports.http_url + "/metrics")[0] == 200


@pytest.mark.parametrize(("command", "reason"), [
    (["publish", "--url", "pulsar+ssl://{plain}", "t", "x"], "may not speak TLS"),
    (["publish", "--url", "pulsar://{http}", "t", "x"], "serves HTTP; Pulsar's protocol is at port"),
    (["publish", "--url", "pulsar://{tls}", "t", "x"], "serves Pulsar's protocol over TLS"),
    (["admin", "--admin-url", "http://{plain}", "clusters", "list"], "serves Pulsar's protocol; HTTP is at port"),
    (["admin", "--admin-url", "https://{http}", "clusters", "list"], "may not speak TLS")])
def test_commands_say_why_an_address_is_wrong(ports, command, reason):
    places = {"plain": ports.service_url, "http": ports.http_url, "tls": ports.tls_url}
    places = {name: urlsplit(url).netloc for name, url in places.items()}
    done = subprocess.run([GEMINGA, *(word.format(**places) for word in command)], capture_output=True, text=True,
                          timeout=HANG_SECONDS)
    assert done.returncode in (1, 3) and reason in done.stderr and done.stderr.count("\n") == 1


def test_the_library_is_told_of_tls_at_a_plain_port(ports, authority):
    """The answer to a ClientHello is what TLS libraries take for a port without TLS."""
    with socket.create_connection(("127.0.0.1", port_of(ports.service_url)), 30) as link, \
            pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
        authority.context().wrap_socket(link, server_hostname="localhost")


# -- bounds

Admit = Callable[..., Peer | None]


@pytest.fixture
def admitted() -> Iterator[Admit]:
    """A function admitted(broker, source) that connects; None if the broker refuses one connection more."""
    with ExitStack() as stack:
        def admit(broker: Broker, source: str = "") -> Peer | None:
            peer = stack.enter_context(Peer(broker.service_url, b"", source=source))
            try:
                answer = peer.ask(T.CONNECT, client_version="test", protocol_version=21)
            except Closed:      # of a worker that was killed
                return None
            if answer.type == T.CONNECTED:
                return peer
            assert (answer.type, answer.error.error) == (T.ERROR, api.NotAllowedError)
            assert answer.error.message.startswith("Reached the maximum number of connections")
            with pytest.raises(Closed):
                peer.hear()
            return None

        yield admit


def test_a_bound_holds_over_all_workers(start_broker: Callable[..., Broker], tmp_path, admitted: Admit, connect):
    """Of many connections, to two workers, exactly as many as the bound are open; a reload raises it."""
    place = tmp_path / "geminga.conf"
    place.write_text("brokerMaxConnections=10\n")
    broker = start_broker("--config", str(place), "--workers", "2")
    peers = [peer for _ in range(30) if (peer := admitted(broker))]
    assert len(peers) == 10
    # The broker's own connections need no place: a health check publishes and consumes a message.
    assert request("GET", broker.http_url + "/admin/v2/brokers/health") == (200, "ok")
    with pytest.raises(pulsar.PulsarException):
        connect(broker.service_url, operation_timeout_seconds=5).create_producer(unique_topic())
    for peer in peers[:3]:
        peer.socket.close()
    peers = peers[3:] + [eventually(lambda: admitted(broker)) for _ in range(3)]
    assert admitted(broker) is None
    _, metrics = request("GET", broker.http_url + "/metrics")
    refused = [line for line in metrics.splitlines() if line.startswith("geminga_connections_refused_total{")]
    assert sum(float(line.split()[-1]) for line in refused) >= 21
    assert json.loads(request("GET", broker.http_url + "/admin/v2/broker-stats/load-report")[1])
    lines = [line for line in broker.log().splitlines() if "a connection from 127.0.0.1 is refused" in line]
    assert 1 <= len(lines) <= 2 and "which is 10" in lines[0]      # one of each worker

    broker.wait_replaced("worker", 0, broker.kill("worker", 0))
    peers += eventually(lambda: [peer for _ in range(20) if (peer := admitted(broker))])
    place.write_text("brokerMaxConnections=0\n")
    assert subprocess.run([GEMINGA, "reload", "--data-dir", str(broker.data_dir)], timeout=HANG_SECONDS).returncode == 0
    assert admitted(broker) and admitted(broker)
