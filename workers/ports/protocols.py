"""Protocols that clients speak, told apart by a connection's first bytes, and the answer on a port of another protocol.

    a client sends       the answer, without TLS
    HTTP                 400 with a text that names the right port
    Pulsar's protocol    ERROR with the same text
    TLS                  one of both, as the port speaks: TLS libraries take either for a "wrong version number"
    a PROXY header       none, as a proxy forwards it to a client that cannot help it
"""
import re
from collections.abc import Mapping

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import responses
from geminga.proto.frames import NO_REQUEST
from geminga.workers.ports import proxy_header
from geminga.workers.ports.throttled_log import strangers

HTTP, PULSAR, TLS, PROXY = "HTTP", "Pulsar's protocol", "TLS", "a PROXY header"
LEAST_BYTES = 4                          # tell protocols apart; the first message of each has more
SILENT_SECONDS = 10.0                    # at most, until these have come
SERVED = {"pulsar": PULSAR, "pulsar+ssl": f"{PULSAR} over TLS", "http": HTTP, "https": "HTTPS"}
_LOOK = b"GET /ops/v1/standby"           # of a standby that looks for the port of HTTP (supervisor/tasks/standbys.py)
_REQUEST = re.compile(rb"[A-Z]{3} [/*a-zA-Z]?|[A-Z]{4}")      # the beginning of a request's first line


def spoken(first: bytes) -> str:
    """Return the protocol to which a connection's first bytes belong; "" for none of these."""
    if proxy_header.begins(first):
        return PROXY
    if first[:2] == b"\x16\x03":         # a record of type handshake, version 3.x
        return TLS
    if first[:2] == b"\0\0":             # a frame's size: CONNECT is smaller than 64 KiB
        return PULSAR
    return HTTP if _REQUEST.match(first) else ""


def belongs(first: bytes, scheme: str) -> bool:
    """Whether a connection's first bytes may be of the port's protocol: bytes of no known protocol may, without TLS.
    """
    came = spoken(first)
    return came == TLS if scheme in ("pulsar+ssl", "https") else came in ("", SERVED[scheme])


def warn_of_header(error: proxy_header.Malformed, host: str) -> None:
    """Log that a connection of the host began with a malformed PROXY header, and is closed."""
    strangers.warn("malformed", f"{host} sends a malformed PROXY header: {error}; its connection is closed", "G408",
                   host)


def refusal(first: bytes, scheme: str, ports: Mapping[str, int], host: str) -> bytes:
    """Log that a connection's first bytes are not of the port's protocol, and return the answer, b"" for none.

    A standby that looks for the port of HTTP is not logged.

    scheme: the port's, which is one of `ports`: scheme -> port.  host: the client's address.
    """
    came = spoken(first)
    port = f"port {ports[scheme]} serves {SERVED[scheme]}"
    hint = _hint(came, scheme, ports)
    if not first.startswith(_LOOK):
        strangers.warn(f"{came} {scheme}", f"{host} sends {came or 'bytes of no protocol'}, and {port}; {hint}", "G408",
                       host)
    if came == HTTP or (came == TLS and scheme == "http"):
        return _bad_request(f"{_capital(port)}; {hint}.\n")
    if came == PULSAR or (came == TLS and scheme == "pulsar"):
        return responses.error(NO_REQUEST, api.NotAllowedError, f"{_capital(port)}; {hint}")
    return b""


def _hint(came: str, scheme: str, ports: Mapping[str, int]) -> str:
    """Return where clients of that protocol connect instead, as far as this broker has such a port."""
    if came == PROXY:
        return "PROXY headers are taken where network.proxy_protocol is true, on ports of Pulsar's protocol"
    wanted = {HTTP: ("http", "https"), PULSAR: ("pulsar", "pulsar+ssl"),
              TLS: {"pulsar": ("pulsar+ssl",), "http": ("https",)}.get(scheme, ())}.get(came, (scheme,))
    places = [f"{SERVED[one]} is at port {ports[one]}" for one in wanted if one in ports]
    if not places and came == TLS:
        return "TLS is off: tls.certificate is not set"
    return ", ".join(places) or f"no port serves {came}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _bad_request(text: str) -> bytes:
    body = text.encode()
    return (b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)) + body
