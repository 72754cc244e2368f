"""SENDs of differing sizes, read in step, are what the protobuf library reads one by one."""
import random
import struct

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.proto import metadata, mixed_sends, names, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.connection import Connection, SendInTransaction

from .client_frames import CONNECT, MESSAGE_SIZE_MAX, PING, STALE, cut, entry_of, listen, message_metadata, send
from .test_sends import COMMAND_EXTRAS, EXTRAS, FIELDS, KEYS, NUMBERS, PAYLOADS, PROPERTIES, TRANSACTIONS, understood
from .test_source_positions import expected as position_of

MANY = 40 * mixed_sends.RUN_MIN
KEPT = [FIELDS.index(name) for name in FIELDS if name not in ("offset", "entry_id")]
TEXTS = st.one_of(
    st.builds("{}:{}".format, st.integers(0, 2**41), st.integers(0, 2**24)),
    st.builds("{}:{}".format, st.integers(0, 9), st.integers(0, 10**15)),
    st.builds(lambda text, at, other: text[:at % len(text)] + other + text[at % len(text) + 1:],
              st.builds("{}:{}".format, st.integers(0, 2**40), st.integers(0, 2**23)), st.integers(0, 20),
              st.sampled_from(":;/ aé\x7f")),
    st.text("0123456789:; é", max_size=30), st.just(f"{'0' * 12}1:{'0' * 12}2"))


def read(frames: list[bytes], *, reads_positions: bool = False) -> mixed_sends.MixedSends:
    ends = np.cumsum([len(frame) for frame in frames])
    starts = ends - [len(frame) for frame in frames]
    buffer = np.frombuffer(bytearray(b"".join(frames) + STALE), np.uint8)
    return mixed_sends.read(buffer, starts, ends, reads_positions=reads_positions)


def rows_and_entries(found: mixed_sends.MixedSends) -> list[tuple[tuple, bytes] | None]:
    """Return (row without offset and position, entry) of each SEND, None for an odd one."""
    return [None if is_odd else (tuple(row[place] for place in KEPT), bytes(found.data[row[8]:row[8] + row[13]]))
            for row, is_odd in zip(found.rows.tolist(), found.odd.tolist(), strict=True)]


def by_library(frame: bytes) -> tuple[tuple, bytes] | None:
    """Return a SEND's row and entry as the library reads them, None for one that has no row of its own."""
    kind, row, *rest = understood(frame)
    return (tuple(row[place] for place in KEPT), rest[0]) if kind == "send" else None


@st.composite
def any_send(draw) -> bytes:
    """Draw one SEND frame, mostly as clients write them, whose size and fields owe nothing to its neighbours."""
    number, transaction = draw(NUMBERS), draw(TRANSACTIONS) if draw(st.integers(0, 7)) == 0 else {}
    fields = draw(KEYS) | draw(EXTRAS)
    if "%" in fields.get("partition_key", ""):
        fields["partition_key"] = fields["partition_key"].replace("%03d", "7" * draw(st.integers(0, 9)))
    if draw(st.integers(0, 9)) == 0:
        fields["encryption_keys"] = [api.EncryptionKeys(key="k", value=b"v" * draw(st.integers(0, 200)))]
    fields["properties"] = [api.KeyValue(key="k" * draw(st.integers(0, 5)), value="v" * draw(st.integers(0, 150)))
                            for _ in range(draw(st.integers(0, 4)))]
    fields["properties"] += draw(st.one_of(st.just([]), PROPERTIES))
    fields["producer_name"] = "p" * draw(st.integers(0, 140))
    payload = draw(st.one_of(PAYLOADS, st.integers(0, 1_200).map(bytes)))
    wrong_by = draw(st.sampled_from([0] * 9 + [1]))
    entry = entry_of(message_metadata(sequence_id=number, **fields), payload, wrong_by=wrong_by)
    has_checksum = draw(st.integers(0, 15)) > 0
    extras = draw(COMMAND_EXTRAS) if draw(st.booleans()) else {}
    return send(entry if has_checksum else entry[6:], producer_id=draw(NUMBERS), sequence_id=number,
                **extras | transaction)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=100)
@given(frames=st.lists(any_send(), min_size=1, max_size=30))
def test_sends_of_any_kinds_have_the_rows_that_the_library_reads(frames):
    """Every SEND that is not left to the library has the row that the library reads."""
    found = rows_and_entries(read(frames))
    assert [one for one in found if one] == [
        by_library(frame) for one, frame in zip(found, frames, strict=True) if one]


def usual(number: int, chance: random.Random, **fields) -> bytes:
    """Return a SEND as clients write them, of any size."""
    said = {"partition_key": "k" * chance.randint(1, 20)} if chance.random() < 0.5 else {}
    if chance.random() < 0.5:
        said["properties"] = [api.KeyValue(key="kind", value="v" * chance.randint(0, 30))] * chance.randint(1, 3)
    if chance.random() < 0.3:
        said |= {"num_messages_in_batch": chance.randint(1, 5), "compression": api.LZ4, "uncompressed_size": 900}
    if chance.random() < 0.2:
        said["ordering_key"] = b"o" * chance.randint(1, 9)
    if chance.random() < 0.1:
        said["encryption_keys"] = [api.EncryptionKeys(key="k", value=b"v" * 200)]
    metadata_ = message_metadata(sequence_id=number, producer_name="p" * chance.randint(1, 9), **said | fields)
    return send(entry_of(metadata_, bytes(chance.randint(50, 1_000))), producer_id=chance.randint(1, 200),
                sequence_id=number)


def test_usual_sends_are_all_read_in_step():
    chance = random.Random(1)
    frames = [usual(number, chance) for number in range(300)]
    found = read(frames)
    assert not found.odd.any()
    assert rows_and_entries(found) == [by_library(frame) for frame in frames]


def test_sends_in_step_may_end_where_the_buffer_does():
    frames = [usual(number, random.Random(number)) for number in range(5)]
    frames[-1] = send(entry_of(message_metadata(), b""))
    ends = np.cumsum([len(frame) for frame in frames])
    buffer = np.frombuffer(bytearray(b"".join(frames)), np.uint8)
    found = mixed_sends.read(buffer, ends - [len(frame) for frame in frames], ends, reads_positions=False)
    assert rows_and_entries(found) == [by_library(frame) for frame in frames]


@pytest.mark.parametrize("damage", range(40))
def test_metadata_of_any_bytes_are_read_as_the_library_does_or_left_to_it(damage):
    """SENDs whose metadata have wrong bytes below a right checksum have the library's row, or none."""
    chance, frames = random.Random(damage), []
    for number in range(60):
        meta = bytearray(message_metadata(
            sequence_id=number, partition_key="key", properties=[api.KeyValue(key="a", value="b")] * 2,
            encryption_keys=[api.EncryptionKeys(key="k", value=b"v")], num_messages_in_batch=1, deliver_at_time=5))
        for _ in range(chance.randint(1, 2)):
            byte = chance.choice((0, 1, 7, 8, 10, 18, 127, 128, 255, chance.randrange(256)))
            meta[chance.randrange(len(meta))] = byte
        frames.append(send(entry_of(bytes(meta)), sequence_id=number))
    found, expected = rows_and_entries(read(frames)), []
    for one, frame in zip(found, frames, strict=True):
        command_end = 8 + struct.unpack_from(">I", frame, 4)[0]
        command = api.BaseCommand.FromString(frame[8:command_end]).send
        if one is not None:
            row = sends.read_one(command, frame[command_end:])      # which raises no ProtocolError then
            expected.append((tuple(row[place] for place in KEPT), frame[command_end:]))
    assert [one for one in found if one] == expected


@pytest.mark.parametrize("frame", [
    send(entry_of(message_metadata(properties=[api.KeyValue(key="k")]))),
    send(entry_of(message_metadata(encryption_keys=[api.EncryptionKeys(key="k")]))),
    send(entry_of(api.MessageMetadata(producer_name="p", sequence_id=1).SerializePartialToString())),
    send(entry_of(message_metadata(marker_type=10))), send(is_chunk=True),
    send(entry_of(message_metadata(num_messages_in_batch=2_000_000_000))),
    send(entry_of(message_metadata(num_chunks_from_msg=2))),
    send(message_id=api.MessageIdData(ledgerId=1, entryId=2)), send(txnid_least_bits=4),
    send(b"\x0e\x01\0\0\0\0\0\0"), send(entry_of(message_metadata(sequence_id=2**63)))], ids=range(11))
def test_what_needs_a_closer_look_is_left_to_the_library(frame):
    neighbours = [usual(number, random.Random(number)) for number in range(4)]
    assert read([*neighbours[:2], frame, *neighbours[2:]]).odd.tolist() == [False, False, True, False, False]


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=40)
@given(seed=st.integers(0, 99), places=st.lists(st.integers(0, 2**20), max_size=8), others=st.sets(
    st.integers(0, MANY - 1), max_size=20))
def test_a_connection_reads_mixed_sends_however_they_are_cut(seed, places, others):
    """SENDs of mixed sizes, among which are rare ones and other commands, are the same events in their order."""
    chance = random.Random(seed)
    stream, expected = [], []
    for number in range(MANY // 4):
        frame = usual(number, chance)
        if number in others:
            frame = chance.choice((PING, send(is_chunk=True, sequence_id=number), frame[:-1] + b"?",
                                   send(entry_of(message_metadata())[6:], sequence_id=number)))
        stream.append(frame)
        expected.append((api.BaseCommand.PING, frame[8:]) if frame is PING else understood(frame))
    heard = listen([CONNECT, *cut(b"".join(stream), places)])
    assert (heard.events[1:], heard.error) == (expected, "")


def test_most_sends_of_mixed_sizes_are_read_in_step():
    """A connection reads few of many SENDs one by one, and learns when their sizes are equal again."""
    chance = random.Random(3)
    connection = connected()
    taken = receive(connection, [usual(number, chance) for number in range(MANY)])
    assert sum(map(len, taken)) > MANY - 3 * mixed_sends.RUN_MIN
    taken = receive(connection, [send(sequence_id=1_000 + number) for number in range(3 * 4_096)])
    assert max(map(len, taken)) > mixed_sends.RUN_MAX      # of a run of one layout


def test_a_breach_ends_a_run_behind_what_came_before():
    chance = random.Random(4)
    frames = [usual(number, chance) for number in range(MANY // 4)]
    frames[-9] = send(entry_of(b"\x0a"))
    heard = listen([CONNECT, b"".join(frames)])
    assert heard.error and heard.events[1:] == [understood(frame) for frame in frames[:-9]]


def connected() -> Connection:
    connection = Connection(MESSAGE_SIZE_MAX)
    connection.state = "CONNECTED"
    return connection


def receive(connection: Connection, frames: list[bytes]) -> list[np.ndarray]:
    """Have a connection read frames; return the rows of each of its runs."""
    data, taken, runs = b"".join(frames), 0, []
    buffer = np.frombuffer(bytearray(data + STALE), np.uint8)
    while taken < len(data):
        taken = connection.receive(buffer, memoryview(buffer), taken, len(data))
        runs += [event.rows for event in connection.events if hasattr(event, "rows")]
        connection.events = []
    return runs


@pytest.mark.slow
def test_sends_that_are_mostly_odd_are_seldom_read_twice(monkeypatch):
    """SENDs in transactions, of mixed sizes, are not tried in step again and again."""
    tried, original = [], mixed_sends.read
    monkeypatch.setattr(mixed_sends, "read", lambda buffer, starts, ends, **more: (
        tried.append(len(starts)), original(buffer, starts, ends, **more))[1])
    connection, count = connected(), 8 * 4_096
    data = b"".join(send(entry_of(message_metadata(), bytes(number % 50)), txnid_least_bits=4, sequence_id=number)
                    for number in range(count))
    buffer, taken, read_ = np.frombuffer(bytearray(data + STALE), np.uint8), 0, 0
    while taken < len(data):
        taken = connection.receive(buffer, memoryview(buffer), taken, len(data))
        read_ += sum(isinstance(event, SendInTransaction) for event in connection.events)
        connection.events = []
    assert read_ == count and sum(tried) < count


def test_very_many_fields_take_a_bounded_number_of_steps(monkeypatch):
    """A message with a thousand properties is left to the library, after a bounded number of steps for all."""
    steps, original = [], metadata._Reader.lowest_tag
    monkeypatch.setattr(metadata._Reader, "lowest_tag", lambda self: (steps.append(1), original(self))[1])
    chance = random.Random(5)
    many = send(entry_of(message_metadata(properties=[api.KeyValue(key="k", value="v")] * 1_000)))
    assert read([usual(1, chance), many, usual(2, chance)]).odd[1]
    assert len(steps) <= 4 * (mixed_sends.STEPS_MAX + 1)


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(texts=st.lists(TEXTS, min_size=1, max_size=30), before=st.integers(0, 2))
def test_positions_are_what_their_texts_say(texts, before):
    """The last property of the name gives the position of a replicated SEND, whatever stands beside it."""
    frames = []
    for number, text in enumerate(texts):
        properties = [api.KeyValue(key=names.POSITION_PROPERTY, value="8:8")] * before
        properties += [api.KeyValue(key="k", value=text), api.KeyValue(key=names.POSITION_PROPERTY, value=text),
                       api.KeyValue(key=names.POSITION_PROPERTY[:-1] + "?", value="9:9")]
        frames.append(send(entry_of(message_metadata(sequence_id=number, properties=properties))))
    found = read(frames, reads_positions=True)
    assert not found.odd.any()
    assert found.rows["entry_id"].tolist() == [position_of(text) for text in texts]
    assert not read(frames).rows["entry_id"].any()


def test_priorities_are_read_in_step():
    """Of several properties of the name the last one counts, and a text that is no priority gives none."""
    frames, expected = [], []
    for number in range(2 * mixed_sends.RUN_MIN):
        text = ["3", "9", "0", "10", "", "/", ":", "x"][number % 8]
        properties = [api.KeyValue(key="geminga.priority", value=value) for value in ["7", text][number % 3 == 0:]]
        properties += [api.KeyValue(key="geminga.prioritz", value="1" * (number % 5))]
        frames.append(send(entry_of(message_metadata(properties=properties))))
        expected.append(1 + (int(text) + 1 << 8 if text in ("3", "9", "0") else 0))
    found = read(frames)
    assert not found.odd.any() and found.rows["flags"].tolist() == expected


def test_frames_with_a_time_to_live_are_left_to_the_library():
    """They are rare, and a name that only resembles the property's makes none of them."""
    texts = [["30s"], ["x", "5"], [], []] * mixed_sends.RUN_MIN
    frames = [send(entry_of(message_metadata(sequence_id=number, properties=[
        *(api.KeyValue(key="geminga.ttl", value=text) for text in some), api.KeyValue(key="geminga.ttk", value="1s")])))
        for number, some in enumerate(texts)]
    assert read(frames).odd.tolist() == [bool(some) for some in texts]


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=20), chosen=st.data())
def test_chosen_sends_keep_their_entries(sizes, chosen):
    """The chosen SENDs come with their own entries, one behind the other, of equal sizes or not."""
    entries = [bytes([number]) * size for number, size in enumerate(sizes)]
    rows = np.zeros(len(sizes), sends.SEND_ROW)
    rows["size"], rows["offset"], rows["crc32c"] = sizes, np.cumsum(sizes) - sizes, [crc32c(each) for each in entries]
    is_chosen = np.array(chosen.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)).filter(any)))
    some, data = sends.choose(rows, b"".join(entries), is_chosen)
    assert [data[at:at + size] for at, size in zip(some["offset"].tolist(), some["size"].tolist(), strict=True)] == \
        [entry for entry, one in zip(entries, is_chosen, strict=True) if one]
    assert len(data) == sum(some["size"].tolist())


def test_commands_of_another_form_are_not_looked_for_again_and_again(monkeypatch):
    """SENDs whose type is not their first field, which no client writes, cost one look for a run in many frames."""
    looked, original = [], mixed_sends.find
    monkeypatch.setattr(mixed_sends, "find", lambda *given: (looked.append(1), original(*given))[1])
    connection, count = connected(), 4 * 4_096
    body = b"\x00\x06"      # where the kind stands in others; the library refuses such a command
    assert mixed_sends.read(np.frombuffer((struct.pack(">II", 40, 20) + body + bytes(34)) * 2 + STALE, np.uint8),
                            np.array([0, 44]), np.array([44, 88]), reads_positions=False).odd.tolist() == []
    command = api.BaseCommand(type=api.BaseCommand.SEND, send=api.CommandSend(producer_id=1, sequence_id=2))
    said = command.SerializeToString()
    unusual = said[:2] + b"\x08\x06" + said[2:]      # the type twice
    data = b"".join(struct.pack(">II", 4 + len(unusual) + len(entry), len(unusual)) + unusual + entry
                    for entry in (entry_of(message_metadata(), bytes(number % 50)) for number in range(count)))
    buffer, taken, read_ = np.frombuffer(bytearray(data + STALE), np.uint8), 0, 0
    while taken < len(data):
        taken = connection.receive(buffer, memoryview(buffer), taken, len(data))
        read_ += len(connection.events)
        connection.events = []
    assert read_ == count and len(looked) < 40
