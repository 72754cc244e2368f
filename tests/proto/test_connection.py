"""The state table of a connection, and what is no protocol at all: events or a ProtocolError, whatever comes and
however it is cut.
"""
import re
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geminga.proto import connection as connections
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import AUTHENTICATING, CONNECTED, NEW, TABLE
from geminga.proto.frames import FRAME_PADDING

from .client_frames import (
    CONNECT,
    PING,
    T,
    byte_by_byte,
    command,
    cut,
    entry_of,
    field_of,
    frame,
    listen,
    message_metadata,
    send,
)

STATES = NEW, AUTHENTICATING, CONNECTED
TO_REACH = {NEW: b"", AUTHENTICATING: CONNECT, CONNECTED: CONNECT}
UNKNOWN_TYPES = (0, 1, 48, 69, 99, 127, 128, 1_000_000, 2**31 - 1)
LIMIT = 1_000                 # bytes of a message; small, so that the largest frame is quickly made


def filled(message_class) -> dict:
    """Return the smallest set of fields that a command must have."""
    return {name: _value(found) for name, found in message_class.DESCRIPTOR.fields_by_name.items() if found.is_required}


def _value(found):
    if found.message_type is not None:
        return {name: _value(inner) for name, inner in found.message_type.fields_by_name.items() if inner.is_required}
    if found.enum_type is not None:
        return found.enum_type.values[0].number
    return {found.CPPTYPE_STRING: "text" if found.type == found.TYPE_STRING else b"bytes"}.get(found.cpp_type, 1)


def command_class(kind: int):
    return type(getattr(api.BaseCommand(), field_of(kind)))


# -- the table

@pytest.mark.parametrize("kind", T.values(), ids=T.Name)
@pytest.mark.parametrize("state", STATES)
def test_every_command_in_every_state_is_as_the_table_says(state, kind):
    """A command gives an event and the next state if the table has a row for it, else a ProtocolError that names
    both.
    """
    said = send() if kind == T.SEND else command(kind, **filled(command_class(kind)))
    heard = listen([TO_REACH[state] + said], admits=state == CONNECTED)
    events = heard.events[len(TO_REACH[state]) > 0:]
    if kind in TABLE and TABLE[kind].state == state:
        assert [event[0] for event in events] == ["send" if kind == T.SEND else kind]
        assert (heard.error, heard.state) == ("", TABLE[kind].next_state)
    else:
        assert (events, heard.state) == ([], state)
        assert T.Name(kind) in heard.error and state in heard.error


def test_a_connection_begins_with_connect_and_has_one_only():
    """Commands that only brokers send, and a second CONNECT, break the protocol."""
    assert {kind for kind, row in TABLE.items() if row.state != CONNECTED} == {T.CONNECT}
    assert (TABLE[T.CONNECT].state, TABLE[T.CONNECT].next_state) == (NEW, AUTHENTICATING)
    ours = "RESPONSE|SUCCESS|ERROR|RECEIPT|MESSAGE$|CONNECTED"
    answers = [kind for kind in T.values() if re.search(ours, T.Name(kind))]
    assert not set(answers) - {T.AUTH_RESPONSE} & TABLE.keys()


@pytest.mark.parametrize("number", UNKNOWN_TYPES)
@pytest.mark.parametrize("state", STATES)
def test_an_unknown_command_breaks_the_protocol(state, number):
    body = b"\x08" + connections.sends.varints.encode(number)
    assert listen([TO_REACH[state] + frame(body)], admits=state == CONNECTED).error


@pytest.mark.parametrize("kind", sorted(TABLE), ids=T.Name)
def test_a_command_without_its_required_fields_breaks_the_protocol(kind):
    """A command without its own field, one of its required fields or a type breaks the protocol."""
    before = TO_REACH[NEW if kind == T.CONNECT else CONNECTED]
    assert listen([before + frame(b"\x08" + bytes([kind]))]).error
    complete = filled(command_class(kind))
    for missing in complete:
        entry = entry_of(message_metadata()) if kind == T.SEND else b""
        rest = {name: value for name, value in complete.items() if name != missing}
        whole = command(kind, **rest)
        assert listen([before + frame(whole[8:], entry)]).error
    without_type = api.BaseCommand(**{field_of(kind): complete}).SerializePartialToString()
    assert listen([before + frame(without_type)]).error


def test_a_second_command_inside_is_complete_or_breaks_the_protocol():
    """An incomplete second command inside a BaseCommand breaks the protocol.

    Commands are handed on as they were decoded; one that could not be encoded again once raised an exception in the
    worker.
    """
    both = api.BaseCommand(type=T.PRODUCER, producer=filled(api.CommandProducer))
    both.flow.consumer_id = 1
    assert listen([CONNECT + frame(both.SerializePartialToString())]).error
    both.flow.messagePermits = 1
    assert listen([CONNECT + frame(both.SerializeToString())]).events[1] == (T.PRODUCER, both.SerializeToString())


@pytest.mark.parametrize("kind", [
    T.PRODUCER, T.SUBSCRIBE, T.LOOKUP, T.PARTITIONED_METADATA, T.GET_TOPICS_OF_NAMESPACE, T.GET_SCHEMA], ids=T.Name)
def test_a_string_that_is_no_text_breaks_the_protocol(kind):
    """A string that is not UTF-8 breaks the protocol.

    The library returns such a string as bytes, which once raised an exception in the worker.
    """
    whole = command(kind, **filled(command_class(kind)))
    assert listen([CONNECT + whole]).error == ""
    assert "UTF-8" in listen([CONNECT + whole.replace(b"text", b"te\xff\xfe")]).error


def test_a_string_that_is_no_text_is_found_in_what_a_command_contains():
    said = command(T.PRODUCER, topic="t", producer_id=1, request_id=1, metadata=[api.KeyValue(key="text", value="v")])
    assert "UTF-8" in listen([CONNECT + said.replace(b"text", b"te\xff\xfe")]).error


def test_connect_with_a_name_that_is_no_text_breaks_the_protocol():
    assert "UTF-8" in listen([CONNECT.replace(b"test", b"te\xff\xfe")]).error


# -- sizes

@pytest.mark.parametrize("sizes", [
    (0, 0), (1, 0), (3, 0), (3, 2**32 - 1), (4, 1), (10, 7), (10, 2**31), (10, 2**32 - 1), (100, 97), (2**32 - 1, 4),
    (2**31, 0),
], ids=str)
@pytest.mark.parametrize("state", [NEW, CONNECTED])
def test_sizes_that_lie_break_the_protocol(state, sizes):
    """A frame too small for its command breaks the protocol, read at once and byte by byte."""
    stream = TO_REACH[state] + struct.pack(">II", *sizes) + bytes(100)
    assert listen([stream]).error
    assert listen(byte_by_byte(stream)).error


@pytest.mark.parametrize("total", [0, 1, 2, 3])
def test_a_size_without_room_for_another_is_known_from_itself(total):
    assert listen([CONNECT, struct.pack(">I", total)]).error


def send_of_total(total: int) -> bytes:
    """Return the start of a SEND frame with this total size."""
    least = len(send(entry_of(message_metadata(), b""))) - 4
    found = send(entry_of(message_metadata(), b"x" * (total - least)))
    assert struct.unpack_from(">I", found)[0] == total
    return found


def test_a_frame_of_exactly_the_limit_is_taken_and_one_byte_more_is_not():
    """A frame may have the size of the largest message and 10 KiB."""
    largest, too_large = (send_of_total(LIMIT + 10 * 1024 + more) for more in (0, 1))
    assert FRAME_PADDING == 10 * 1024
    assert [event[0] for event in listen([CONNECT, largest], LIMIT).events] == [T.CONNECT, "send"]
    assert str(LIMIT + 10 * 1024) in listen([CONNECT, too_large], LIMIT).error
    assert listen([CONNECT, too_large[:8]], LIMIT).error      # before anybody sets memory aside for it


def test_before_it_is_known_who_that_is_a_frame_is_small():
    """Before CONNECT a frame is limited to 256 KiB, however large messages may be."""
    assert not listen([struct.pack(">II", connections.FIRST_SIZE_MAX, 20)]).error
    assert listen([struct.pack(">II", connections.FIRST_SIZE_MAX + 1, 20)]).error
    assert not listen([CONNECT, struct.pack(">II", connections.FIRST_SIZE_MAX + 1, 20)]).error


@pytest.mark.parametrize("cut_at", range(1, 40))
def test_a_frame_cut_short_is_waited_for(cut_at):
    """An incomplete frame gives no event until the rest has come."""
    said = send()
    assert listen([CONNECT, said[:cut_at]]).events[1:] == []
    assert listen([CONNECT, said[:cut_at], said[cut_at:]]).events == listen([CONNECT, said]).events


@pytest.mark.parametrize("breach", [
    b"\0\0\0\x02aa", struct.pack(">II", 2**31, 4), struct.pack(">II", 5, 2) + b"\x08", frame(b"\xff"),
    frame(b"\x08\x63"), CONNECT,
    frame(b""),
    frame(b"\x08\x06"), send(b"\0\0\0\x09abc"), frame(b"\x08\x06\x32\x02\x08\x01"),
], ids=repr)
def test_what_was_said_before_a_breach_counts(breach):
    """SENDs in whole frames are events although later bytes of the same read break the protocol."""
    for count in (1, 5, 40):
        stream = CONNECT + send() * count + breach
        at_once = listen([stream])
        assert at_once.error
        assert [event[0] for event in at_once.events] == [T.CONNECT] + ["send"] * count
        assert listen(byte_by_byte(stream)).events == at_once.events


# -- any bytes

FRAMES = st.one_of(
    st.just(CONNECT), st.just(PING), st.integers(0, 300).map(lambda number: send(sequence_id=number)),
    st.just(send() * 20),
    st.binary(max_size=40).map(frame),
    st.builds(frame, st.binary(max_size=20), st.binary(max_size=30)),
    st.builds(lambda kind, body: frame(b"\x08" + bytes([kind]) + body), st.integers(0, 127), st.binary(max_size=20)),
    st.builds(lambda kind, body: frame(b"\x08" + bytes([kind]) + _tag(kind) + bytes([len(body)]) + body),
              st.sampled_from(T.values()), st.binary(max_size=40)),
    st.binary(max_size=40).map(send),
    st.binary(max_size=30).map(lambda metadata: send(entry_of(metadata))),
    st.builds(lambda total, size, rest: struct.pack(">II", total, size) + rest,
              st.integers(0, 60), st.integers(0, 60), st.binary(max_size=40)),
    st.binary(max_size=12),
)


def _tag(number: int) -> bytes:
    return connections.sends.varints.encode(number << 3 | 2)


@st.composite
def damaged(draw) -> bytes:
    """Draw frames in a row, perhaps with one changed byte."""
    stream = bytearray(CONNECT + b"".join(draw(st.lists(FRAMES, max_size=8))))
    if draw(st.booleans()):
        stream[draw(st.integers(0, len(stream) - 1))] = draw(st.integers(0, 255))
    return bytes(stream)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=300)
@given(stream=st.one_of(damaged(), st.binary(max_size=60)), places=st.lists(st.integers(0, 2**16), max_size=6))
@example(stream=b"\0\0\0\x03", places=[])
@example(stream=CONNECT + b"\0\0\0\x02\0\0\0\0", places=[])
def test_any_bytes_in_any_pieces_are_the_same_events_or_the_same_breach(stream, places):
    """Any bytes give the same events or the same ProtocolError, however the network cuts them."""
    at_once = listen([stream])
    for pieces in (cut(stream, places), byte_by_byte(stream)):
        heard = listen(pieces)
        assert (heard.events, heard.state, bool(heard.error)) == (at_once.events, at_once.state, bool(at_once.error))


def test_one_read_makes_a_bounded_number_of_events():
    """One read makes a bounded number of events, because each may be answered with a thousand times its bytes."""
    stream = PING * 500
    connection = connections.Connection(LIMIT)
    connection.state = CONNECTED
    buffer = np.frombuffer(bytearray(stream), np.uint8)
    taken, heard = 0, 0
    while taken < len(stream):
        taken = connection.receive(buffer, memoryview(buffer), taken, len(stream))
        assert 0 < len(connection.events) <= connections.EVENTS_MAX
        heard += len(connection.events)
        connection.events = []
    assert heard == 500
