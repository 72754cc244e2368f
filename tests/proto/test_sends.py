"""SENDs read by whole arrays give what the protobuf library gives one by one, however their bytes arrive."""
import base64
import struct

import mmh3
import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.proto import job_properties, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import CONNECTED

from . import client_frames as client
from .client_frames import CONNECT, PING, byte_by_byte, cut, entry_of, listen, message_metadata, send

FIELDS = sends.SEND_ROW.names


def understood(frame: bytes) -> tuple:
    """Read one SEND with the protobuf library alone, as the oracle."""
    command_size = struct.unpack_from(">I", frame, 4)[0]
    said = api.BaseCommand.FromString(frame[8:8 + command_size]).send
    entry = body = frame[8 + command_size:]
    checksum = 0
    if entry.startswith(b"\x0e\x01"):
        checksum, body = struct.unpack_from(">I", entry, 2)[0], entry[6:]
        if crc32c(body) != checksum:
            return "refused", said.producer_id, said.sequence_id, api.ChecksumError
    else:
        checksum = crc32c(entry)
        entry = b"\x0e\x01" + struct.pack(">I", checksum) + entry
    size = struct.unpack_from(">I", body)[0]
    metadata = api.MessageMetadata.FromString(body[4:4 + size])
    unpacked = min(metadata.uncompressed_size, 128 << 20) if metadata.compression else 0
    if 6 * metadata.num_messages_in_batch > max(unpacked, len(body) - 4 - size) and metadata.num_messages_in_batch > 1:
        return "refused", said.producer_id, said.sequence_id, api.NotAllowedError
    flags = 1 + (2 if metadata.HasField("num_messages_in_batch") else 0)
    if is_chunk := said.is_chunk or metadata.num_chunks_from_msg > 1:
        is_last = metadata.HasField("num_chunks_from_msg") and metadata.chunk_id >= metadata.num_chunks_from_msg - 1
        flags += 4 + (16 if is_last else 0) + 256 * metadata.chunk_id
    elif priorities := [one.value for one in metadata.properties if one.key == "geminga.priority"]:
        flags += 256 * ("0123456789".index(priorities[-1]) + 1) if priorities[-1] in [*"0123456789"] else 0
    key = None
    if metadata.HasField("ordering_key"):
        key = metadata.ordering_key
    elif metadata.HasField("partition_key"):
        key = metadata.partition_key.encode()
        if metadata.partition_key_b64_encoded:
            key = base64.b64decode(key)
    sticky = f"{metadata.producer_name}-{metadata.sequence_id}".encode() if key is None and is_chunk else key
    key_hash = mmh3.hash(sticky, signed=False) & 0x7FFFFFFF if sticky is not None else 0
    lowest = metadata.entry_hash_min
    highest = metadata.entry_hash_max if metadata.HasField("entry_hash_max") else lowest
    if metadata.HasField("entry_hash_min") and not is_chunk and lowest <= highest < 1 << 16:
        key_hash = (1 << 31) + (min(highest - lowest, 32_767) << 16) + lowest
    row = {
        "producer_id": said.producer_id, "sequence_id": said.sequence_id,
        "highest_sequence_id": said.highest_sequence_id,
        "publish_time": metadata.publish_time, "deliver_at": metadata.deliver_at_time, "size": len(entry),
        "messages": metadata.num_messages_in_batch, "key_hash": key_hash, "crc32c": checksum,
        "flags": flags + (8 if key is not None else 0),
    }
    if said.txnid_most_bits or said.txnid_least_bits:
        if said.txnid_most_bits > 127 or not 0 < said.txnid_least_bits < 2**56:
            return "refused", said.producer_id, said.sequence_id, api.NotAllowedError
        row |= {"message_index": said.txnid_most_bits * 2**56 + said.txnid_least_bits, "flags": row["flags"] + 64}
    return "send", tuple(row.get(name, 0) for name in FIELDS), entry


# -- frames

NUMBERS = st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 2**28, 2**42 - 3, 2**56 - 4, 2**56, 2**63 - 41, 2**64 - 81])
KEYS = st.sampled_from([
    {}, {"partition_key": "key-%03d"}, {"partition_key": "ключ%03d"}, {"partition_key": ""},
    {"ordering_key": b"ordered"},
    {"partition_key": "key-%03d", "ordering_key": b"ordered"},
    {"partition_key": base64.b64encode(b"bytes").decode(), "partition_key_b64_encoded": True},
    {"partition_key": "key-%03d", "partition_key_b64_encoded": False},
])
PRIORITIES = st.sampled_from(["0", "4", "9", "10", "", " 5", "५", "a", "/", ":"])
# Priorities beside other properties, of which the last one counts, and names that only resemble theirs.
PROPERTIES = st.lists(st.builds(
    lambda key, value: api.KeyValue(key=key, value=value),
    st.sampled_from(["k", "geminga.priority", "geminga.priority", "geminga.prioritz", "xeminga.priority"]), PRIORITIES),
    min_size=1, max_size=3)
EXTRAS = st.fixed_dictionaries({}, optional={
    "event_time": st.sampled_from([1, 1_700_000_000_000]),
    "deliver_at_time": st.sampled_from([-1, 5, 1_800_000_000_000]),
    "num_messages_in_batch": st.sampled_from([1, 2, 300]), "highest_sequence_id": NUMBERS,
    "schema_version": st.just(b"\0" * 8),
    "properties": PROPERTIES, "chunk_id": st.sampled_from([0, 3, 2**24 - 1]),
    "num_chunks_from_msg": st.sampled_from([1, 4, 2**24]),
    "entry_hash_min": st.sampled_from([0, 5, 30_000, 1 << 16]), "entry_hash_max": st.sampled_from([5, 30_000, 65_535]),
    "uncompressed_size": st.sampled_from([0, 1_799, 1_800, 70_000]), "compression": st.sampled_from([0, 2]),
})
COMMAND_EXTRAS = st.fixed_dictionaries({}, optional={
    "num_messages": st.sampled_from([1, 300]), "highest_sequence_id": NUMBERS, "is_chunk": st.booleans(),
    "marker": st.just(False),
})
TRANSACTIONS = st.sampled_from([
    {}, {}, {"txnid_most_bits": 0, "txnid_least_bits": 0}, {"txnid_most_bits": 3, "txnid_least_bits": 700},
    {"txnid_least_bits": 9}, {"txnid_most_bits": 127, "txnid_least_bits": 2**56 - 1},
    {"txnid_most_bits": 128, "txnid_least_bits": 1}, {"txnid_most_bits": 3}, {"txnid_least_bits": 2**56},
])
# too small for 300 messages, or just not
PAYLOADS = st.sampled_from([b"", b"x", b"p" * 60, b"p" * 1_799, b"p" * 1_800])
# of frames alike: too few for a run, or enough
COUNTS = st.one_of(st.integers(1, 3), st.integers(sends.RUN_MIN, 2 * sends.RUN_MIN))


@st.composite
def some_alike(draw) -> list[bytes]:
    """Draw SEND frames that differ as successive messages do, some of them damaged."""
    count, first, producer = draw(COUNTS), draw(NUMBERS), draw(NUMBERS)
    transaction, payload = draw(TRANSACTIONS), draw(PAYLOADS)
    metadata = draw(KEYS) | draw(EXTRAS) | draw(st.sampled_from([{}, transaction]))
    said = draw(COMMAND_EXTRAS) | transaction
    has_checksum = draw(st.sampled_from([True, True, True, False]))
    damaged = draw(st.sets(st.integers(0, count - 1), max_size=3)) if payload and has_checksum else ()
    frames, step = [], draw(st.integers(0, 1)) if 0 < transaction.get("txnid_least_bits", 0) < 2**55 else 0
    for number in range(count):
        key = {"partition_key": metadata["partition_key"] % number} if "%" in metadata.get("partition_key", "") else {}
        if step:
            said["txnid_least_bits"] = transaction["txnid_least_bits"] + number
        times = {"publish_time": 1_700_000_000_000 + number * 7, "sequence_id": first + number}
        entry = entry_of(message_metadata(**metadata | key | times), payload)
        if number in damaged:
            entry = entry[:-1] + bytes([entry[-1] ^ 0x10])
        frames.append(send(entry if has_checksum else entry[6:], producer_id=producer, sequence_id=first + number,
                           **said))
    return frames


GROUPS = st.lists(some_alike(), min_size=1, max_size=5).map(lambda groups: [frame for group in groups
                                                                            for frame in group])


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=150)
@given(frames=GROUPS, places=st.lists(st.integers(0, 2**20), max_size=12))
def test_arrays_and_the_library_read_the_same(frames, places):
    """Arrays and the protobuf library read the same rows, entries and refusals, however the bytes are cut."""
    stream, expected = b"".join(frames), [understood(frame) for frame in frames]
    assert listen([CONNECT, stream]).events[1:] == expected
    assert listen([CONNECT, *cut(stream, places)]).events[1:] == expected


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=25)
@given(frames=GROUPS)
def test_bytes_that_come_one_by_one_are_read_the_same(frames):
    frames = frames[:40]
    heard = listen([CONNECT, *byte_by_byte(b"".join(frames))])
    assert heard.events[1:] == [understood(frame) for frame in frames]


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=100)
@given(frames=st.lists(some_alike(), min_size=2, max_size=4).flatmap(lambda groups: st.permutations(sum(groups, []))))
def test_frames_of_all_kinds_in_any_order_are_read_the_same(frames):
    assert listen([CONNECT, b"".join(frames)]).events[1:] == [understood(frame) for frame in frames]


# -- runs

ALIKE = [send(sequence_id=1_000 + number) for number in range(64)]


def test_frames_alike_are_read_as_a_run():
    """Similar frames are read as a run; without runs the other tests would compare the library with itself."""
    heard = listen([CONNECT, b"".join(ALIKE)])
    assert heard.runs == 1
    assert heard.events[1:] == [understood(frame) for frame in ALIKE]


@pytest.mark.parametrize("key", ["key-%03d", "ключ%03d"])
def test_keys_of_one_length_do_not_break_a_run(key):
    frames = [send(entry_of(message_metadata(partition_key=key % number))) for number in range(64)]
    heard = listen([CONNECT, b"".join(frames)])
    assert heard.runs == 1
    assert heard.events[1:] == [understood(frame) for frame in frames]


@pytest.mark.parametrize("damaged", [{30}, {30, 31}, {63}, {20, 40, 62}, set(range(20, 64))], ids=len)
def test_a_wrong_checksum_refuses_its_own_entry_and_no_other(damaged):
    """Entries with wrong checksums within a run are refused in their places, and the others are read."""
    frames = [frame[:-1] + b"?" if number in damaged else frame for number, frame in enumerate(ALIKE)]
    heard = listen([CONNECT, b"".join(frames)])
    assert heard.runs > 0
    assert heard.events[1:] == [understood(frame) for frame in frames]
    assert [event[2] for event in heard.events if event[0] == "refused"] == [1_000 + number
                                                                             for number in sorted(damaged)]


def test_many_wrong_checksums_take_no_more_than_one_look_at_each(monkeypatch):
    """A run of damaged entries costs one check of each; a megabyte of them once took 90 seconds."""
    looked_at = []
    wrong_rows = sends.checksums.wrong_rows
    monkeypatch.setattr(sends.checksums, "wrong_rows",
                        lambda bodies, claimed: looked_at.append(len(bodies)) or wrong_rows(bodies, claimed))
    damaged = [frame[:-1] + b"?" for frame in ALIKE * 10]
    heard = listen([CONNECT, b"".join(ALIKE + damaged)])
    assert sum(looked_at) <= len(ALIKE + damaged)
    assert heard.events[1:] == [understood(frame) for frame in ALIKE + damaged]


def test_another_command_between_two_runs_keeps_its_place():
    heard = listen([CONNECT, b"".join(ALIKE) + PING + b"".join(ALIKE)])
    expected = [understood(frame) for frame in ALIKE]
    assert heard.events[1:65] == heard.events[66:] == expected
    assert heard.events[65][0] == client.T.PING


# -- one by one

def test_clients_from_before_checksums_are_understood():
    """Clients below protocol version 6 send no magic and checksum; the entry gets both."""
    entry = entry_of(message_metadata())
    for count in (1, 64):
        heard = listen([CONNECT, send(entry[6:]) * count])
        assert heard.events[1:] == listen([CONNECT, send(entry)]).events[1:] * count


@pytest.mark.parametrize("values, expected", [
    (["0"], 1 << 8), (["4"], 5 << 8), (["9"], 10 << 8), (["9", "1"], 2 << 8), (["9", "urgent"], 0),
    (["10"], 0), ([""], 0),
], ids=str)
@pytest.mark.parametrize("frames", [1, 64])
def test_the_priority_of_a_message_is_in_its_flags(values, expected, frames):
    """The last property of the name counts, and a value that is no priority leaves the message without one."""
    properties = [api.KeyValue(key=job_properties.PRIORITY_PROPERTY, value=value) for value in values]
    frame = send(entry_of(message_metadata(properties=properties)))
    rows = [row for _, row, _ in listen([CONNECT, frame * frames]).events[1:]]
    assert [row[FIELDS.index("flags")] for row in rows] == [expected | sends.KEPT_CHECKSUM] * frames
    found = job_properties.priorities_of(np.array([expected], np.uint32), sends.IS_CHUNK)
    assert found.tolist() == [(expected >> 8) - 1 if expected else 4]


@pytest.mark.parametrize("frames", [1, 64])
def test_the_time_to_live_of_a_message_is_in_its_flags(frames):
    """It stands beside the priority, and a run of frames that look alike has it too."""
    properties = [api.KeyValue(key="geminga.ttl", value="30s"),
                  api.KeyValue(key=job_properties.PRIORITY_PROPERTY, value="9")]
    frame = send(entry_of(message_metadata(properties=properties)))
    rows = [row for _, row, _ in listen([CONNECT, frame * frames]).events[1:]]
    flags = np.array([row[FIELDS.index("flags")] for row in rows], np.uint32)
    assert len(flags) == frames and set(job_properties.ttls_of(flags).tolist()) == {30_000}
    assert set(job_properties.priorities_of(flags, sends.IS_CHUNK).tolist()) == {9}


def test_a_chunk_counts_as_one_without_a_priority():
    """The bits of a priority have the number of a chunk, however high."""
    flags = np.arange(64, dtype=np.uint32) << 8
    assert set(job_properties.priorities_of(flags | sends.IS_CHUNK, sends.IS_CHUNK).tolist()) == {4}


@pytest.mark.parametrize("chunk_id, count, expected", [
    (0, 3, sends.IS_CHUNK), (1, 3, sends.IS_CHUNK | 1 << 8), (2, 3, sends.IS_CHUNK | sends.IS_LAST_CHUNK | 2 << 8),
    (0, 1, sends.IS_CHUNK | sends.IS_LAST_CHUNK), (-1, 3, sends.IS_CHUNK),
    (2**31 - 1, 0, sends.IS_CHUNK | 0xFFFFFF << 8)], ids=str)
def test_which_chunk_of_its_message_an_entry_is(chunk_id, count, expected):
    """The flags of a row say whether an entry is a chunk and the last one; invalid chunk numbers are cut."""
    entry = entry_of(message_metadata(chunk_id=chunk_id, num_chunks_from_msg=count))
    for frames in (1, 64):
        rows = [row for _, row, _ in listen([CONNECT, send(entry, is_chunk=True) * frames]).events[1:]]
        assert [row[FIELDS.index("flags")] for row in rows] == [expected | sends.KEPT_CHECKSUM] * frames


def test_a_key_that_is_not_base64_counts_as_it_stands():
    entry = entry_of(message_metadata(partition_key="no base 64!", partition_key_b64_encoded=True))
    (_, (_, row, _)) = listen([CONNECT, send(entry)]).events
    assert row[FIELDS.index("key_hash")] == mmh3.hash(b"no base 64!", signed=False) & 0x7FFFFFFF


def test_keys_are_hashed_as_other_brokers_do():
    assert mmh3.mmh3_32_uintdigest(b"Order-3459134") & 0x7FFFFFFF == 964_695_987
    entry = entry_of(message_metadata(partition_key="Order-3459134"))
    (_, (_, row, _)) = listen([CONNECT, send(entry)]).events
    assert row[FIELDS.index("key_hash")] == 964_695_987


def test_a_key_that_is_no_text_is_the_same_key_alone_and_in_a_run():
    """A key that is not UTF-8 has the same hash alone and in a run; alone it once ended the connection."""
    metadata = message_metadata(partition_key="????").replace(b"????", b"\xff\xfe\x80!")
    stream = CONNECT + send(entry_of(metadata)) * 64
    at_once = listen([stream])
    assert (at_once.runs, at_once.error) == (1, "")
    assert at_once.events == listen(byte_by_byte(stream)).events
    assert at_once.events[-1][1][FIELDS.index("key_hash")] == mmh3.hash(b"\xff\xfe\x80!", signed=False) & 0x7FFFFFFF


def test_an_ordering_key_counts_before_the_key_alone_and_in_a_run():
    stream = CONNECT + send(entry_of(message_metadata(partition_key="key", ordering_key=b"order"))) * 64
    at_once = listen([stream])
    assert (at_once.runs, at_once.error) == (1, "")
    assert at_once.events == listen(byte_by_byte(stream)).events
    assert {row[FIELDS.index("key_hash")] for _, row, _ in at_once.events[1:]} == {mmh3.hash(b"order", signed=False)
                                                                                   & 0x7FFFFFFF}


def test_a_field_of_another_wire_type_is_not_taken_for_a_number():
    """A field of CommandSend with another wire type is unknown, alone and in a run."""
    said = api.CommandSend(producer_id=1, sequence_id=1_000).SerializeToString() + b"\x12\x02\x05\x06"
    frame = client.frame(b"\x08\x06\x32" + bytes([len(said)]) + said, entry_of(message_metadata()))
    heard = listen([CONNECT, frame * 64])
    assert heard.events[1:] == [understood(frame)] * 64


@pytest.mark.parametrize("entry", [
    b"", b"\x0e", b"\x0e\x01", b"\x0e\x01\0\0\0", b"\0\0", b"\0\0\0\x09abc", b"\xff\xff\xff\xff",
    b"\x0e\x01\0\0\0\0", entry_of(message_metadata())[6:9], entry_of(b"\xff\xff"), entry_of(message_metadata()[:-1]),
    entry_of(b"\x0a\x01p"), entry_of(b""), entry_of(b"\x0b" * 40),
], ids=repr)
def test_an_entry_that_cannot_be_read_breaks_the_protocol(entry):
    """Wrong sizes, and metadata that lack required fields, break the protocol; earlier SENDs count."""
    heard = listen([CONNECT + send() + send(entry)])
    assert heard.error
    assert heard.events[1:] == [understood(send())]


OPEN = {"txnid_most_bits": 3, "txnid_least_bits": 700}
UNKNOWN = ({"txnid_most_bits": 1}, {"txnid_most_bits": 128, "txnid_least_bits": 1}, {"txnid_least_bits": 2**56},
           {"txnid_most_bits": 2**64 - 1, "txnid_least_bits": 2**64 - 1})


def in_transaction(count=64, *, first=1_000, of=OPEN):
    """Return SENDs as clients write them: the id is in the command and in the metadata."""
    return [send(entry_of(message_metadata(sequence_id=number, **of)), sequence_id=number, **of)
            for number in range(first, first + count)]


@pytest.mark.parametrize("unknown", UNKNOWN, ids=str)
def test_a_send_in_a_transaction_that_nobody_can_have_begun_is_refused_and_nothing_else(unknown):
    heard = listen([CONNECT, send(sequence_id=1) + send(sequence_id=2, **unknown) + send(sequence_id=3)])
    assert heard.events[1:] == [
        understood(send(sequence_id=1)), ("refused", 1, 2, api.NotAllowedError), understood(send(sequence_id=3))]


def test_sends_in_transactions_of_one_coordinator_are_a_run_of_their_own():
    """Runs end where plain SENDs begin, and transactions of another coordinator."""
    one, other, plain = in_transaction(), in_transaction(of={"txnid_most_bits": 4, "txnid_least_bits": 701}), ALIKE
    frames = one + other + one + plain + one
    heard = listen([CONNECT, b"".join(frames)])
    assert heard.events[1:] == [understood(frame) for frame in frames]
    assert heard.runs >= 5
    assert heard.kinds == {"SendsInTransaction", "SendInTransaction", "Sends", "Send"}


def test_a_run_has_the_transactions_that_its_sends_name():
    """One that names no transaction beside its coordinator is refused, alone and among others."""
    frames = [frame for number in range(150) for frame in in_transaction(
        1, first=1_000 + number, of=OPEN | {"txnid_least_bits": number % 50})]
    heard = listen([CONNECT, b"".join(frames)])
    assert heard.events[1:] == [
        understood(frame) if number % 50 else ("refused", 1, 1_000 + number, api.NotAllowedError)
        for number, frame in enumerate(frames)]
    assert heard.runs >= 1


def test_what_is_no_transaction_is_a_plain_send():
    """Ids of zeros, and ids in the metadata only, make no SEND transactional."""
    zeros = {"txnid_most_bits": 0, "txnid_least_bits": 0}
    for frames in ([send(sequence_id=1_000 + number, **zeros) for number in range(64)],
                   [send(entry_of(message_metadata(**OPEN)), sequence_id=1_000 + number) for number in range(64)]):
        heard = listen([CONNECT, b"".join(frames)])
        assert heard.kinds == {"Send", "Sends"}
        assert heard.events[1:] == [understood(frame) for frame in frames]


def test_a_wrong_checksum_in_a_transaction_refuses_its_own_entry():
    frames = [frame[:-1] + b"?" if number == 40 else frame for number, frame in enumerate(in_transaction())]
    heard = listen([CONNECT, b"".join(frames)])
    assert heard.events[1:] == [understood(frame) for frame in frames]
    assert heard.kinds == {"SendsInTransaction", "SendInTransaction"}


def test_a_number_of_more_than_64_bits_is_none_alone_and_in_a_run():
    """A varint of more than 64 bits breaks the protocol, alone and in a run: consumers read it again."""
    whole = send(entry_of(message_metadata(event_time=2**64 - 1)), sequence_id=1_000)
    metadata = message_metadata(event_time=2**64 - 1).replace(b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x7f")
    stream = CONNECT + whole * 64 + send(entry_of(metadata), sequence_id=1_000)
    at_once, one_by_one = listen([stream]), listen(byte_by_byte(stream))
    assert (at_once.events, bool(at_once.error)) == (one_by_one.events, bool(one_by_one.error))


def test_a_checksum_of_zero_is_compared_as_any_other():
    whole = entry_of(message_metadata())
    frame = send(whole[:2] + bytes(4) + whole[6:], sequence_id=5)
    for stream in (frame, b"".join(ALIKE) + frame):
        assert listen([CONNECT, stream]).events[-1] == ("refused", 1, 5, api.ChecksumError)


def test_metadata_that_would_end_behind_the_entry_break_the_protocol():
    """Metadata that claim one byte more than the entry has break the protocol."""
    metadata = message_metadata()
    covered = struct.pack(">I", len(metadata) + 1) + metadata
    assert "announces" in listen([CONNECT, send(b"\x0e\x01" + struct.pack(">I", crc32c(covered)) + covered)]).error


@pytest.mark.parametrize("metadata, field, expected", [
    ({"num_messages_in_batch": 0}, "messages", 1), ({"num_messages_in_batch": -3}, "messages", 1), ({}, "messages", 1),
    ({"publish_time": 2**64 - 5}, "publish_time", -5), ({"publish_time": 2**63 - 1}, "publish_time", 2**63 - 1)],
                         ids=str)
def test_numbers_that_no_client_should_say_mean_the_same_alone_and_in_a_run(metadata, field, expected):
    frame = send(entry_of(message_metadata(**metadata)))
    for frames in (1, 64):
        rows = [row for _, row, _ in listen([CONNECT, frame * frames]).events[1:]]
        assert [row[FIELDS.index(field)] for row in rows] == [expected] * frames


def test_a_run_may_end_where_the_buffer_does():
    """Reading a run at the end of the buffer touches no byte behind it, although columns are loaded as words."""
    frames = [send(entry_of(message_metadata(publish_time=5 + n), b""), sequence_id=n) for n in range(64)]
    connection = client.Connection(client.MESSAGE_SIZE_MAX)
    connection.state = CONNECTED
    for _ in range(2):      # one by one, until the layout is known; then as a run
        buffer = np.frombuffer(bytearray(b"".join(frames)), np.uint8)
        taken = 0
        while taken < len(buffer):
            taken = connection.receive(buffer, memoryview(buffer), taken, len(buffer))
            said, connection.events = connection.events, []
            assert said
    assert isinstance(said[-1], client.Sends | client.Send)


MIXED = {
    "another count": ({"num_messages_in_batch": 2}, {"num_messages_in_batch": 3}),
    "another time": ({"deliver_at_time": 5}, {"deliver_at_time": 6}),
    "times of other lengths": ({"publish_time": 300, "event_time": 5}, {"publish_time": 5, "event_time": 300}),
    "another key field": ({"ordering_key": b"0123"}, {"ordering_key": b"0124"}),
}


@pytest.mark.parametrize("kinds", MIXED.values(), ids=MIXED.keys())
@pytest.mark.parametrize("place", [40, 63, 79])
def test_one_frame_of_another_form_among_others_of_its_size_is_read_as_what_it_is(kinds, place):
    frames = [send(entry_of(message_metadata(sequence_id=7, **kinds[number == place]))) for number in range(80)]
    assert len({len(frame) for frame in frames}) == 1
    heard = listen([CONNECT, b"".join(ALIKE), b"".join(frames)])
    assert heard.events[65:] == [understood(frame) for frame in frames]


def test_numbers_of_a_command_that_change_their_lengths_are_read_as_what_they_are():
    entry = entry_of(message_metadata())
    frames = [send(entry, producer_id=5, sequence_id=300) if number % 40 == 39
              else send(entry, producer_id=300, sequence_id=5)
              for number in range(120)]
    assert len({len(frame) for frame in frames}) == 1
    assert listen([CONNECT, b"".join(frames)]).events[1:] == [understood(frame) for frame in frames]


def test_a_shorter_number_with_an_unknown_field_behind_it_is_no_longer_number():
    """A shorter varint followed by an unknown field is not read as one longer varint."""
    before = api.MessageMetadata(producer_name="p", sequence_id=1).SerializePartialToString()
    usual, odd = (send(entry_of(before + times))
                  for times in (b"\x18\xac\x02\x60\xac\x02", b"\x18\x05\x20\x60\x60\x07"))
    frames = [odd if number == 50 else usual for number in range(100)]
    heard = listen([CONNECT, b"".join(frames)])
    assert heard.runs > 0
    assert [row[FIELDS.index("publish_time")] for _, row, _ in heard.events[1:]] == [
        5 if number == 50 else 300 for number in range(100)
    ]
