"""WebSocket frames (RFC 6455): bytes of a client -> messages, and messages -> bytes for a client.

    [FIN, RSV, opcode][MASK, length u7][length u16 or u64][mask, 4 bytes][payload]

A client masks every frame, a server none.  There is no I/O and no clock here.
"""
import base64
import binascii
import hashlib
import struct
from typing import NamedTuple

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
CONTINUATION = 0
# Codes with which a connection is closed.
NORMAL, GOING_AWAY, PROTOCOL_ERROR, NOT_TEXT, BAD_DATA, REFUSED, TOO_BIG, FAILED = (
    1000, 1001, 1002, 1003, 1007, 1008, 1009, 1011)
TEXT_MAX = 1 << 20           # bytes of a message from a client, as in Pulsar
_CONTROL_MAX = 125           # bytes of a control frame's payload
_REASON_MAX = 123            # bytes of the reason in a CLOSE
_FRAGMENTS_MAX = 4_096       # of one message: each costs more to keep than to send
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_U16, _U64 = struct.Struct(">H"), struct.Struct(">Q")
_KEY_BYTES = 16


class Violation(Exception):
    """A client breaks the protocol, or a limit: the connection ends with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Message(NamedTuple):
    """A text, or a control frame, with its payload unmasked."""

    opcode: int
    data: bytes


class Reader:
    """Reads the frames of one client."""

    __slots__ = ("_fragments", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""                             # received bytes that are no whole frame yet
        self._fragments: list[bytes] | None = None   # of a message whose last frame has not come
        self._size = 0                               # bytes of those

    def __repr__(self) -> str:
        return f"<Reader rest={len(self._rest)} fragments={len(self._fragments or ())}>"

    def read(self, data: bytes) -> tuple[list[Message], Violation | None]:
        """Return the messages that these bytes complete, and the violation behind them, None without one.

        Nothing may be read after a violation.
        """
        if self._rest:
            data = self._rest + data
        messages: list[Message] = []
        at, end, violation = 0, len(data), None
        try:
            while end - at >= 2:
                first, second = data[at], data[at + 1]
                size, begin = second & 0x7F, at + 2
                if size == 126:
                    if end < begin + 2:
                        break
                    size, begin = _U16.unpack_from(data, begin)[0], begin + 2
                elif size == 127:
                    if end < begin + 8:
                        break
                    size, begin = _U64.unpack_from(data, begin)[0], begin + 8
                self._check(first, second, size)
                behind = begin + 4 + size
                if behind > end:
                    break
                payload = _unmasked(data[begin + 4:behind], data[begin:begin + 4])
                at = behind
                if first == 0x80 | TEXT and self._fragments is None:      # by far the most frequent
                    messages.append(Message(TEXT, payload))
                elif (message := self._take(first, payload)) is not None:
                    messages.append(message)
        except Violation as error:
            violation = error
        self._rest = data[at:]
        return messages, violation

    def _check(self, first: int, second: int, size: int) -> None:
        """Look at the head of a frame, before its payload has come.  Raises Violation."""
        opcode = first & 0x0F
        if first & 0x70:
            raise Violation(PROTOCOL_ERROR, "A reserved bit is set")
        if not second & 0x80:
            raise Violation(PROTOCOL_ERROR, "A frame of a client must be masked")
        if opcode >= CLOSE:
            if opcode > PONG or not first & 0x80 or size > _CONTROL_MAX:
                raise Violation(PROTOCOL_ERROR, "A control frame is unknown, fragmented or too long")
        elif opcode > BINARY or (opcode == CONTINUATION) != (self._fragments is not None):
            raise Violation(PROTOCOL_ERROR, "A data frame is unknown, or out of order")
        elif opcode == BINARY:
            raise Violation(NOT_TEXT, "Frames are texts")
        elif self._size + size > TEXT_MAX:
            raise Violation(TOO_BIG, f"A text has at most {TEXT_MAX} bytes")

    def _take(self, first: int, payload: bytes) -> Message | None:
        opcode, is_last = first & 0x0F, bool(first & 0x80)
        if opcode >= CLOSE:
            return Message(opcode, payload)
        if self._fragments is None:
            self._fragments = []
        if len(self._fragments) >= _FRAGMENTS_MAX:
            raise Violation(REFUSED, f"A text has at most {_FRAGMENTS_MAX} fragments")
        self._fragments.append(payload)
        self._size += len(payload)
        if not is_last:
            return None
        whole = b"".join(self._fragments)
        self._fragments, self._size = None, 0
        return Message(TEXT, whole)


def _unmasked(data: bytes, mask: bytes) -> bytes:
    size = len(data)
    if not size:
        return b""
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(pattern, "little")).to_bytes(size, "little")


def frame(opcode: int, payload: bytes) -> bytes:
    """Return the frame of a whole message for a client."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    if size < 1 << 16:
        return bytes((0x80 | opcode, 126)) + _U16.pack(size) + payload
    return bytes((0x80 | opcode, 127)) + _U64.pack(size) + payload


def closing(code: int, reason: str) -> bytes:
    """Return a CLOSE frame; the reason is cut to the length that such a frame may have."""
    text = reason.encode()[:_REASON_MAX].decode(errors="ignore").encode()
    return frame(CLOSE, _U16.pack(code) + text)


def code_of(payload: bytes) -> int:
    """Return the code that answers a client's CLOSE with this payload."""
    if not payload:
        return NORMAL
    code = _U16.unpack_from(payload)[0] if len(payload) >= 2 else 0
    return code if 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999 else PROTOCOL_ERROR


# -- the handshake

def is_key(key: str) -> bool:
    """Whether a text is a Sec-WebSocket-Key."""
    try:
        return len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        return False


def accepted(key: str) -> bytes:
    """Return the answer that accepts a handshake with this Sec-WebSocket-Key."""
    token = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest())
    return b"".join((b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     b"Sec-WebSocket-Accept: ", token, b"\r\n\r\n"))


def refused(status: int, phrase: str, body: bytes) -> bytes:
    """Return the answer that refuses a handshake; the connection ends behind it."""
    head = (f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n")
    return head.encode() + body
