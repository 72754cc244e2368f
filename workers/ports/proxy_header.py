"""The PROXY protocol: a header before a connection's own bytes, by which a proxy says whose connection it forwards.

    version 1    PROXY TCP4 192.0.2.7 192.0.2.1 56324 6650\\r\\n
    version 2    12 bytes, version and command, family, size of the rest; addresses and ports; fields (TLV)

Specification: haproxy's doc/proxy-protocol.txt.
"""
import ipaddress
import struct
from typing import NamedTuple

ClientAddress = tuple[str, int]      # that a proxy announces

SIZE_MAX = 4096                      # of a header of version 2; fields beside the addresses take some hundred bytes
_TEXT, _SIGNATURE = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"
_TEXT_MAX = 107                      # bytes of version 1, by the specification
_FIXED = 16                          # bytes of version 2 before the addresses
_LOCAL, _PROXY = 0x20, 0x21          # version 2 and command: a proxy's own connection, or a client's
_FAMILIES = {0x11: 4, 0x21: 16}      # TCP over IPv4, over IPv6 -> bytes of an address


class Malformed(ValueError):
    """An error: what begins like a PROXY header is none."""


class Header(NamedTuple):
    """A PROXY header; size 0: there is none."""

    size: int
    client: ClientAddress | None        # its address and port; None: those of the connection hold


def begins(first: bytes) -> bool:
    """Whether a connection's first bytes, at least four, are the beginning of a PROXY header."""
    return any(first[:len(mark)] == mark[:len(first)] for mark in (_TEXT, _SIGNATURE))


def parse(first: bytes) -> Header | None:
    """Parse the header that a connection begins with; None: more bytes have to come.  Raises Malformed."""
    if not begins(first):
        return Header(0, None)
    return _text(first) if first[:1] == _TEXT[:1] else _binary(first)


def _text(first: bytes) -> Header | None:
    end = first.find(b"\r\n", 0, _TEXT_MAX)
    if end < 0:
        if len(first) >= _TEXT_MAX:
            raise Malformed(f"a line of more than {_TEXT_MAX} bytes")
        return None
    words = first[:end].decode("latin-1").split(" ")
    if words[1:2] == ["UNKNOWN"]:
        return Header(end + 2, None)
    try:
        _, family, source, destination, source_port, destination_port = words
        version = {"TCP4": 4, "TCP6": 6}[family]
        addresses = [ipaddress.ip_address(text) for text in (source, destination)]
        ports = [int(text) for text in (source_port, destination_port)]
    except (ValueError, KeyError):
        raise Malformed(repr(first[:end].decode("latin-1"))) from None
    if any(address.version != version for address in addresses) or not all(0 <= port < 1 << 16 for port in ports):
        raise Malformed(repr(first[:end].decode("latin-1")))
    return Header(end + 2, (str(addresses[0]), ports[0]))


def _binary(first: bytes) -> Header | None:
    if len(first) < _FIXED:
        return None
    command, family, size = struct.unpack_from(">BBH", first, len(_SIGNATURE))
    if command not in (_LOCAL, _PROXY):
        raise Malformed(f"version and command {command:#04x}")
    if _FIXED + size > SIZE_MAX:
        raise Malformed(f"a header of {_FIXED + size} bytes; at most {SIZE_MAX} are taken")
    width = _FAMILIES.get(family, 0)
    if command == _PROXY and size < 2 * width + (4 if width else 0):
        raise Malformed(f"addresses of {size} bytes for family {family:#04x}")
    if len(first) < _FIXED + size:
        return None
    if command == _LOCAL or not width:      # a health check of the proxy, or a family without addresses of the network
        return Header(_FIXED + size, None)
    address = ipaddress.ip_address(first[_FIXED:_FIXED + width])
    [port] = struct.unpack_from(">H", first, _FIXED + 2 * width)
    return Header(_FIXED + size, (str(address), port))
