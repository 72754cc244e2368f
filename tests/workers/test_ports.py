"""First bytes of connections, PROXY headers, and bounds on the number of connections."""
import asyncio
import ipaddress
import struct
from types import SimpleNamespace

import pytest

from geminga.workers.options import WorkerOptions
from geminga.workers.ports import admission, protocols, proxy_header, throttled_log
from geminga.workers.ports.admission import Admission, make_admissions
from geminga.workers.ports.proxy_header import SIZE_MAX, Header, Malformed
from geminga.workers.ports.within_tls import BehindHeader

from ..proto.client_frames import CONNECT

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
ONE, OTHER = "192.0.2.7", "2001:db8::7"


def binary(client: str = ONE, port: int = 56324, *, command: int = 0x21, fields: bytes = b"") -> bytes:
    """A header of version 2."""
    address = ipaddress.ip_address(client)
    body = address.packed + address.packed + struct.pack(">HH", port, 6650) + fields
    return SIGNATURE + struct.pack(">BBH", command, 0x11 if address.version == 4 else 0x21, len(body)) + body


WHOLE = [
    (b"PROXY TCP4 192.0.2.7 192.0.2.1 56324 6650\r\n", (ONE, 56324)),
    (b"PROXY TCP6 2001:db8::7 2001:db8::1 56324 6650\r\n", (OTHER, 56324)),
    (b"PROXY UNKNOWN\r\n", None), (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    (binary(), (ONE, 56324)), (binary(OTHER), (OTHER, 56324)), (binary(fields=b"\x04\0\x01x" * 9), (ONE, 56324)),
    (binary(command=0x20), None), (SIGNATURE + b"\x20\0\0\0", None),
    (SIGNATURE + b"\x21\x31\0\xd8" + bytes(216), None),      # of a Unix socket
    # as long as may be
    (b"PROXY UNKNOWN " + b"x" * 91 + b"\r\n", None), (SIGNATURE + b"\x20\x11\x0f\xf0" + bytes(4080), None),
]


@pytest.mark.parametrize(("header", "client"), WHOLE)
def test_a_header_ends_where_it_says(header, client):
    """Bytes behind a header do not belong to it; without its last bytes it is not whole."""
    assert proxy_header.parse(header) == proxy_header.parse(header + CONNECT) == Header(len(header), client)
    assert all(proxy_header.parse(header[:size]) is None for size in range(protocols.LEAST_BYTES, len(header)))


class Link(asyncio.Transport):
    """The decrypted side of a connection."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return False


class Kept(asyncio.BufferedProtocol):
    """Keeps the bytes that it is given, seven at a time."""

    def __init__(self) -> None:
        self.data, self._room = b"", bytearray(7)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self._room[:nbytes]


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize(("header", "client"), [*WHOLE, (b"", None)])
def test_a_header_within_tls_is_taken_off_however_it_is_cut(header, client, size):
    """The bytes behind it go to the protocol object, which is made when the header is whole."""
    made, kept = [], Kept()

    async def come() -> None:
        link, first = Link(), BehindHeader(lambda announced: made.append(announced) or kept, None)
        link.set_protocol(first)
        first.connection_made(link)
        said = header + CONNECT
        for start in range(0, len(said), size):
            piece = said[start:start + size]
            if link.protocol is first:
                first.data_received(piece)
            else:
                kept.data += piece

    asyncio.run(come())
    assert made == [client]
    assert kept.data == CONNECT


@pytest.mark.parametrize("first", [CONNECT, b"\x16\x03\x01\x02\0", b"GET / HTTP/1.1\r\n", b"PRODUCE\r\n", bytes(4)])
def test_other_bytes_are_no_header(first):
    assert proxy_header.parse(first) == Header(0, None)


@pytest.mark.parametrize("first", [
    b"PROXY TCP4 192.0.2.7 192.0.2.1 56324\r\n", b"PROXY TCP4 2001:db8::7 2001:db8::1 1 2\r\n", b"PROXY \r\n",
    b"PROXY UDP4 192.0.2.7 192.0.2.1 1 2\r\n", b"PROXY TCP4 192.0.2.7 192.0.2.1 1 65536\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 x 2\r\n", b"PROXY TCP4 host 192.0.2.1 1 2\r\n", b"PROXY " + b"x" * 200,
    b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n",
    SIGNATURE + b"\x11\x11\0\x0c" + bytes(12), SIGNATURE + b"\x22\x11\0\x0c" + bytes(12),
    SIGNATURE + b"\x21\x11\0\x0b" + bytes(11), SIGNATURE + b"\x21\x21\0\x23" + bytes(35),
    SIGNATURE + b"\x21\x11" + struct.pack(">H", SIZE_MAX - 15),
])
def test_a_malformed_header_is_told_from_an_unfinished_one(first):
    with pytest.raises(Malformed):
        proxy_header.parse(first)


@pytest.mark.parametrize(("first", "protocol"), [
    (CONNECT, protocols.PULSAR), (b"\x16\x03\x01\x02\0\x01", protocols.TLS), (b"GET / HT", protocols.HTTP),
    (b"GET ", protocols.HTTP), (b"POST", protocols.HTTP), (b"OPTIONS * HTTP/1.1\r\n", protocols.HTTP),
    (b"PRI * HTTP/2.0", protocols.HTTP), (b"PROXY TCP4", protocols.PROXY), (SIGNATURE, protocols.PROXY),
    (b"\xff" * 8, ""), (b"ab c", ""), (b"\0\x01\0\0", ""), (b"\x16\x04\0\0", "")])
def test_four_bytes_tell_a_protocol(first, protocol):
    assert protocols.spoken(first) == protocol == protocols.spoken(first[:protocols.LEAST_BYTES])


@pytest.mark.parametrize(("scheme", "passed"), [
    ("pulsar", {protocols.PULSAR, ""}), ("http", {protocols.HTTP, ""}),
    ("pulsar+ssl", {protocols.TLS}), ("https", {protocols.TLS})])
def test_a_port_passes_on_its_own_protocol(scheme, passed):
    """Bytes of no known protocol reach the parser of a port without TLS, whose business they are."""
    firsts = {protocols.PULSAR: CONNECT, protocols.TLS: b"\x16\x03\x01\x02\0", protocols.HTTP: b"GET / HTTP/1.1",
              protocols.PROXY: SIGNATURE, "": b"\xff" * 8}
    assert {name for name, first in firsts.items() if protocols.belongs(first, scheme)} == passed


@pytest.mark.parametrize(("first", "scheme", "ports", "answer"), [
    (b"GET / HTTP/1.1", "pulsar", {"pulsar": 1, "http": 2, "https": 3},
     b"Port 1 serves Pulsar's protocol; HTTP is at port 2, HTTPS is at port 3"),
    (b"GET / HTTP/1.1", "pulsar", {"pulsar": 1}, b"Port 1 serves Pulsar's protocol; no port serves HTTP"),
    (CONNECT, "http", {"http": 2, "pulsar": 1}, b"Port 2 serves HTTP; Pulsar's protocol is at port 1"),
    (CONNECT, "pulsar+ssl", {"pulsar+ssl": 4},
     b"Port 4 serves Pulsar's protocol over TLS; Pulsar's protocol over TLS is at port 4"),
    (b"\x16\x03\x01\x02\0", "pulsar", {"pulsar": 1, "pulsar+ssl": 4},
     b"Port 1 serves Pulsar's protocol; Pulsar's protocol over TLS is at port 4"),
    (b"\x16\x03\x01\x02\0", "http", {"http": 2}, b"Port 2 serves HTTP; TLS is off: tls.certificate is not set"),
    (SIGNATURE, "pulsar", {"pulsar": 1}, b"")])
def test_an_answer_names_the_right_port(first, scheme, ports, answer):
    said = protocols.refusal(first, scheme, ports, "192.0.2.7")
    assert answer in said if answer else said == b""


# -- lines about strangers

def test_a_kind_of_line_comes_once_a_minute_and_counts_those_left_out(monkeypatch):
    said, clock = [], iter([0, 1, 1, 59, 60, 61, 120])
    monkeypatch.setattr(throttled_log, "log", SimpleNamespace(warning=lambda text, **_: said.append(text)))
    monkeypatch.setattr(throttled_log, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    lines = throttled_log.ThrottledLog()
    for kind in ("malformed", "malformed", "HTTP", "malformed", "malformed", "malformed", "malformed"):
        lines.warn(kind, kind, "G408", ONE)
    assert said == ["malformed", "HTTP", "malformed; 2 more of them since the last line",
                    "malformed; 1 more of them since the last line"]


# -- bounds

def enter(to: Admission, host: str = ONE, total: int = 0, each: int = 0) -> int:
    return to.admit(host, WorkerOptions(max_connections=total, max_connections_per_address=each))[0]


def test_a_bound_holds_over_all_workers():
    """The connections of all workers count together, and a connection that ends makes room in any of them."""
    one, other = make_admissions(2)
    places = [enter(one, total=3), enter(other, total=3), enter(one, total=3)]
    assert -1 not in places and enter(one, total=3) == enter(other, total=3) == -1
    other.free(places[1])
    assert enter(one, total=3) >= 0 and enter(other, total=3) == -1


def test_each_address_has_a_bound_of_its_own():
    one, other = make_admissions(2)
    place = enter(one, each=2)
    assert enter(other, each=2) >= 0 and enter(other, each=2) == -1
    assert enter(other, OTHER, each=2) >= 0
    one.free(place)
    assert enter(other, each=2) >= 0 and enter(one, each=2) == -1


def test_refused_connections_leave_nothing():
    """What was refused, and freed with -1, does not count afterwards."""
    [one] = make_admissions(1)
    enter(one, total=1)
    for _ in range(5):
        one.free(enter(one, total=1))
    assert enter(one, total=2) >= 0 and enter(one, total=2) == -1


def test_a_worker_that_was_killed_leaves_no_connections():
    """A worker's successor clears its row, and no other one."""
    table = make_admissions(2)
    for each in table:
        enter(each)
        enter(each)
    successor = Admission(table[0]._table, 0)
    successor.clear()
    assert [enter(successor, each=4) >= 0 for _ in range(3)] == [True, True, False]
    assert enter(successor, total=5) >= 0 and enter(successor, total=5) == -1


def test_places_are_used_again_and_a_process_has_as_many_as_it_has(monkeypatch):
    """Without a bound of the configuration the places of a process are one."""
    monkeypatch.setattr(admission, "_PLACES_MAX", 2)
    [one] = make_admissions(1)
    places = [enter(one), enter(one)]
    assert one.admit(ONE, WorkerOptions()) == (-1, "Reached the maximum number of connections of one process")
    one.free(places[0])
    assert enter(one) == places[0]


def test_connections_count_before_a_bound_is_set():
    """A reload may bring a bound: connections from before it count."""
    [one] = make_admissions(1)
    enter(one)
    assert enter(one, total=1) == enter(one, each=1) == -1
