"""WebSocket frames: what a client sends is read whole or in pieces, and what breaks the protocol has its code."""
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.workers.web import frames
from geminga.workers.web.frames import BINARY, CONTINUATION, PING, TEXT, TEXT_MAX, Message, Reader


def client_frame(opcode, payload, *, is_last=True, mask=b"\x01\x02\x03\x04"):
    size = len(payload)
    head = bytes([0x80 * is_last | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 1 << 16:
        head += b"\xfe" + struct.pack(">H", size)
    else:
        head += b"\xff" + struct.pack(">Q", size)
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(1, 50))
def test_texts_are_read_however_their_bytes_come(payloads, step):
    data, reader, found = b"".join(client_frame(TEXT, payload) for payload in payloads), Reader(), []
    for at in range(0, len(data), step):
        messages, violation = reader.read(data[at:at + step])
        assert violation is None
        found += messages
    assert found == [Message(TEXT, payload) for payload in payloads]


def test_a_text_may_come_in_fragments_with_a_ping_between():
    data = client_frame(TEXT, b"a", is_last=False) + client_frame(PING, b"?") + client_frame(CONTINUATION, b"b")
    assert Reader().read(data) == ([Message(PING, b"?"), Message(TEXT, b"ab")], None)


@pytest.mark.parametrize(("data", "code"), [
    (client_frame(BINARY, b"x"), 1003),
    (bytes([0x81, 0x01]) + b"x0000", 1002),                                      # not masked
    (bytes([0xC1]) + client_frame(TEXT, b"x")[1:], 1002),                        # a reserved bit
    (client_frame(CONTINUATION, b"x"), 1002),                                    # of nothing
    (client_frame(TEXT, b"", is_last=False) + client_frame(TEXT, b""), 1002),    # a text inside a text
    (client_frame(3, b""), 1002), (client_frame(11, b""), 1002),                 # unknown
    (client_frame(PING, b"x" * 126), 1002), (client_frame(PING, b"", is_last=False), 1002),
    (b"\x81\xff" + struct.pack(">Q", TEXT_MAX + 1), 1009),                       # said before the payload has come
    (client_frame(TEXT, b"", is_last=False) + client_frame(CONTINUATION, b"", is_last=False) * 4096, 1008),
])
def test_what_breaks_the_protocol_has_its_code(data, code):
    whole = client_frame(TEXT, b"before")
    messages, violation = Reader().read(whole + data)
    assert messages[0] == Message(TEXT, b"before") and violation.code == code


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frames_for_clients_have_their_lengths(size):
    made = frames.frame(TEXT, b"x" * size)
    assert made.endswith(b"x" * size) and len(made) - size == (2 if size < 126 else 4 if size < 65_536 else 10)


def test_a_close_has_a_short_reason_of_whole_characters():
    made = frames.closing(1008, "ä" * 100)
    assert made[1] <= 125 and made[4:].decode() == "ä" * 61


@pytest.mark.parametrize(("payload", "code"), [(b"", 1000), (struct.pack(">H", 1001), 1001), (b"x", 1002),
                                               (struct.pack(">H", 1005), 1002), (struct.pack(">H", 4000), 4000)])
def test_a_clients_close_is_answered_by_its_code_if_that_may_be_sent(payload, code):
    assert frames.code_of(payload) == code
