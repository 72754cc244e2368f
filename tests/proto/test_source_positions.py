"""Positions of replicated messages: SENDs read as arrays have the positions that are read one by one."""
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from geminga.proto import connection as connections
from geminga.proto import names, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import CONNECTED
from geminga.proto.connection import Connection, Sends

from .client_frames import MESSAGE_SIZE_MAX, STALE, entry_of, flat, message_metadata, send

KEY = names.POSITION_PROPERTY
COUNT = 2 * sends.RUN_MIN


def frame(position, number=0, *, before=(), behind=(), **fields):
    """Return the frame of a SEND with this position; before, behind: values of other properties."""
    properties = [api.KeyValue(key="other", value=value) for value in before]
    properties += [api.KeyValue(key=KEY, value=position)]
    properties += [api.KeyValue(key="more", value=value) for value in behind]
    metadata = message_metadata(sequence_id=number % 100, properties=properties, replicated_from="far", **fields)
    return send(entry_of(metadata), sequence_id=number % 100)


def hear(frames, *, reads_positions=True):
    """Return (the position + 1 of each SEND, how many SENDs were read as arrays)."""
    connection = Connection(MESSAGE_SIZE_MAX)
    connection.state, connection.reads_positions = CONNECTED, reads_positions
    data = b"".join(frames)
    buffer = np.frombuffer(bytearray(data + STALE), np.uint8)
    taken, found, in_runs = 0, [], 0
    while taken < len(data):
        taken = connection.receive(buffer, memoryview(buffer), taken, len(data))
        events, connection.events = connection.events, []
        for event in events:
            in_runs += len(event.rows) if isinstance(event, Sends) else 0
            found += [row[sends.ENTRY_ID] for _, row, _ in flat(event)]
    return found, in_runs


def expected(text):
    """Return the position + 1 that a text names, 0 for none, read without the code under test."""
    ledger, colon, entry = text.partition(":")
    if not colon or not all(part.isascii() and part.isdigit() and len(part) <= 13 for part in (ledger, entry)):
        return 0
    is_within = int(ledger) < 2**40 and int(entry) < 2**23
    return int(ledger) * 2**23 + int(entry) + 1 if is_within else 0


def test_a_run_of_positions_is_read_as_arrays():
    texts = [f"7:{1_000 + number}" for number in range(COUNT)]
    found, in_runs = hear([frame(text, number) for number, text in enumerate(texts)])
    assert found == list(map(expected, texts)) and in_runs >= sends.RUN_MIN


def test_messages_of_many_producers_are_read_as_arrays():
    mixed = [frame(f"7:{1_000 + number}", number, producer_name=f"p{number % 7}") for number in range(COUNT)]
    found, in_runs = hear(mixed)
    assert found == [expected(f"7:{1_000 + number}") for number in range(COUNT)] and in_runs >= sends.RUN_MIN


@pytest.mark.slow
@given(first=st.sampled_from(["7:1000", "1099511627775:8388607", "0:0", "0000000000001:0000000000001"]), data=st.data(),
       before=st.sampled_from([(), ("7:1000",)]), behind=st.sampled_from([(), ("x", "9:9")]))
def test_texts_of_one_length_are_read_as_arrays_as_they_are_one_by_one(first, data, before, behind):
    alphabet = st.sampled_from("0123456789")
    odd = st.sampled_from("0123456789:;/ax\x00")
    texts = [first] * sends.RUN_MIN
    for _ in range(sends.RUN_MIN):
        letters = data.draw(st.lists(odd if data.draw(st.integers(0, 20)) == 0 else alphabet,
                                     min_size=len(first), max_size=len(first)))
        letters[first.index(":")] = ":"
        texts.append("".join(letters))
    found, _ = hear([frame(text, number, before=before, behind=behind) for number, text in enumerate(texts)])
    assert found == list(map(expected, texts))


@given(st.text(st.sampled_from("0123456789:- +x\u0667"), max_size=24))
@example("1099511627776:0")
@example("0:8388608")
@example("1099511627775:8388607")
@example("00000000000001:1")
def test_a_position_is_two_numbers_within_bounds(text):
    assert names.parse_position(text) + 1 == expected(text)
    if expected(text):
        position = names.parse_position(text)
        assert tuple(map(int, names.position_text(position).split(":"))) == tuple(map(int, text.split(":")))


def test_the_last_property_of_the_name_counts():
    """An application may have used the name itself: the replicator's property lies behind that."""
    for last in ("7:8", ""):
        properties = [api.KeyValue(key=KEY, value=value) for value in ("1:1", last)]
        twice = send(entry_of(message_metadata(properties=properties)))
        assert hear([twice] * COUNT)[0] == [expected(last)] * COUNT


def test_positions_are_not_looked_for_on_other_connections():
    assert hear([frame("7:8")] * COUNT, reads_positions=False) == ([0] * COUNT, COUNT - 1)


@pytest.mark.parametrize("count", [1, COUNT])
def test_a_marker_has_no_messages(count):
    metadata = message_metadata(marker_type=10, num_messages_in_batch=1,
                                properties=[api.KeyValue(key=KEY, value="7:8")])
    connection = Connection(MESSAGE_SIZE_MAX)
    connection.state, connection.reads_positions = CONNECTED, True
    data = send(entry_of(metadata), marker=True) * count
    buffer = np.frombuffer(bytearray(data + STALE), np.uint8)
    taken = 0
    while taken < len(data):
        taken = connection.receive(buffer, memoryview(buffer), taken, len(data))
    rows = np.array([row for event in connection.events for _, row, _ in flat(event)], sends.SEND_ROW)
    assert len(rows) == min(count, connections.EVENTS_MAX)
    assert (rows["flags"] == sends.KEPT_CHECKSUM | sends.IS_MARKER).all()
    assert not rows["messages"].any()
    assert (rows["entry_id"] == expected("7:8")).all()


@pytest.mark.parametrize(("name", "cluster"), [
    ("pulsar.repl.far", "far"), ("pulsar.repl.far-->here", "far"), ("pulsar.repl.", ""), ("pulsar.repl.-->x", ""),
    ("pulsar.repl-topic-->other", None), ("pulsar.repl", None), ("p", None), ("", None)])
def test_a_replicators_name_tells_its_cluster(name, cluster):
    assert names.source_cluster(name) == cluster
