"""Bytes of the load generator are those of the protocol's own definition; its fast readers agree with slow ones."""

import struct

import numpy as np
import pytest

from geminga.proto import pulsar_api_pb2 as pb
from geminga.supervisor.load import wire

from ..bench import sends

TOPIC = "persistent://public/default/bench-0-0"
BATCHED_PAYLOAD = b"p" * 100


def command(frame: bytes) -> tuple[pb.BaseCommand, bytes]:
    """Return the command of exactly one frame, and the bytes behind it."""
    total, size = struct.unpack_from(">II", frame)
    assert total == len(frame) - 4
    decoded = pb.BaseCommand.FromString(frame[8 : 8 + size])
    assert decoded.IsInitialized()
    return decoded, frame[8 + size :]


def receipt(producer_id: int, sequence_id: int, entry_id: int) -> bytes:
    body = pb.CommandSendReceipt(producer_id=producer_id, sequence_id=sequence_id)
    body.message_id.ledgerId, body.message_id.entryId = 7, entry_id
    raw = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT, send_receipt=body).SerializeToString()
    return struct.pack(">II", 4 + len(raw), len(raw)) + raw


def test_commands_decode_to_what_was_asked_for():
    assert command(wire.connect())[0].connect.protocol_version == wire.PROTOCOL_VERSION
    asked = command(sends.partitioned_metadata(TOPIC, 3))[0].partitionMetadata
    assert asked == pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=3)
    assert command(sends.lookup(TOPIC, 3))[0].lookupTopic == pb.CommandLookupTopic(topic=TOPIC, request_id=3,
                                                                                  authoritative=False)
    assert command(wire.flow(300, 20_000))[0].flow == pb.CommandFlow(consumer_id=300, messagePermits=20_000)
    assert command(sends.unsubscribe(130, 9))[0].unsubscribe == pb.CommandUnsubscribe(consumer_id=130, request_id=9)
    assert command(wire.close_consumer(130, 9))[0].close_consumer == pb.CommandCloseConsumer(
        consumer_id=130, request_id=9
    )
    assert command(wire.pong())[0].type == pb.BaseCommand.PONG


def test_producer_and_subscribe_name_their_ids():
    opened = command(wire.producer(TOPIC, 128, 5, "name"))[0].producer
    assert opened == pb.CommandProducer(topic=TOPIC, producer_id=128, request_id=5, producer_name="name")
    asked = command(wire.subscribe(TOPIC, "sub", "key_shared", 128, 5, "name"))[0].subscribe
    assert (asked.subType, asked.initialPosition) == (pb.CommandSubscribe.Key_Shared, pb.CommandSubscribe.Earliest)
    assert (asked.topic, asked.subscription, asked.consumer_id, asked.request_id, asked.consumer_name) == (
        TOPIC,
        "sub",
        128,
        5,
        "name",
    )


def test_an_acknowledgement_carries_ids_as_they_came():
    raw = pb.MessageIdData(ledgerId=4, entryId=700).SerializeToString()
    ack = command(wire.acknowledge(128, wire.INDIVIDUAL, wire.string(3, raw) * 2))[0].ack
    assert (ack.consumer_id, ack.ack_type) == (128, pb.CommandAck.Individual)
    assert [(one.ledgerId, one.entryId) for one in ack.message_id] == [(4, 700)] * 2


def test_an_entry_has_metadata_payload_and_their_checksum():
    entry = sends.entry("name", b"payload", key="k")
    magic, checksum, size = struct.unpack_from(">HII", entry)
    metadata = pb.MessageMetadata.FromString(entry[10 : 10 + size])
    assert (magic, checksum) == (0x0E01, sends.crc32c.crc32c(entry[6:]))
    assert (metadata.producer_name, metadata.partition_key, entry[10 + size :]) == ("name", "k", b"payload")


def test_delayed_entries_have_a_time_and_a_checksum_each():
    times = np.array([1 << 35, 1_700_000_000_123, 1_893_456_000_000, (1 << 42) - 1])
    block = sends.DelayedBlock("name", b"p" * 100, 4, lambda first, count: times[first:first + count], producers=1)
    frames = block.stamped(0, 4)
    size = len(frames) // 4
    for at, time_ms in enumerate(times.tolist()):
        sent, entry = command(frames[at * size:(at + 1) * size])
        metadata = pb.MessageMetadata.FromString(entry[10:10 + int.from_bytes(entry[6:10], "big")])
        assert (sent.send.sequence_id, metadata.deliver_at_time) == (wire.SEQUENCE_FIRST + at, time_ms)
        assert int.from_bytes(entry[2:6], "big") == sends.crc32c.crc32c(entry[6:])
    ends = size * np.arange(1, 5)
    assert sends.deliver_at_of(np.frombuffer(frames, np.uint8), ends, 100).tolist() == times.tolist()


def test_a_batch_has_a_single_message_metadata_for_each_message():
    entry = sends.entry("name", BATCHED_PAYLOAD, batch=100)
    size = struct.unpack_from(">I", entry, 6)[0]
    metadata, rest, count = pb.MessageMetadata.FromString(entry[10 : 10 + size]), entry[10 + size :], 0
    assert metadata.uncompressed_size == len(rest)
    while rest:
        size = struct.unpack_from(">I", rest)[0]
        single = pb.SingleMessageMetadata.FromString(rest[4 : 4 + size])
        payload, rest = rest[4 + size : 4 + size + single.payload_size], rest[4 + size + single.payload_size :]
        assert (single.sequence_id, payload) == (count, BATCHED_PAYLOAD)
        count += 1
    assert count == metadata.num_messages_in_batch == 100


@pytest.mark.parametrize("first", [0, 127, 1 << 20])
def test_a_block_takes_producers_in_turn_and_counts_sequence_ids(first):
    entry = sends.entry("name", b"payload")
    raw = sends.SendBlock([entry] * 500, batch=1, producers=300).stamped(first, 400)
    step = len(raw) // 400
    for row in range(400):
        decoded, rest = command(raw[row * step : (row + 1) * step])
        expected = pb.CommandSend(producer_id=128 + (first + row) % 300, sequence_id=(1 << 28) + first + row,
                                  num_messages=1)
        assert (decoded.send, rest) == (expected, entry)


def test_frames_are_found_whether_their_lengths_vary_or_not():
    lengths = [5] * 40 + [5, 300] * 40 + [70_000] * 20  # entry ids whose varints make runs long, short and long again
    frames = [receipt(128, wire.SEQUENCE_FIRST, entry_id) for entry_id in lengths]
    raw = b"".join(frames)
    data = np.frombuffer(raw + frames[0][:-1] + bytes(100), np.uint8)
    expected = np.cumsum([0, *map(len, frames)])
    for end in (len(raw), len(raw) + 3, len(raw) + len(frames[0]) - 1):
        starts, eaten = wire.frame_starts(data, end)
        assert (starts.tolist(), eaten) == (expected[:-1].tolist(), len(raw))
    starts, eaten = wire.frame_starts(data, len(raw) - 1)
    assert (len(starts), eaten) == (len(frames) - 1, expected[-2])
    assert wire.frame_starts(data, 3)[0].size == 0


def test_ids_and_sequences_are_read_from_receipts():
    raw = b"".join(receipt(128 + index, wire.SEQUENCE_FIRST + 1000 * index, index) for index in range(400))
    data = np.frombuffer(raw, np.uint8)
    starts, _ = wire.frame_starts(data, len(raw))
    assert wire.ids_of(data, starts).tolist() == list(range(400))
    assert wire.sequences_of(data, starts).tolist() == [1000 * index for index in range(400)]
    assert wire.command_of(raw, int(starts[3]))[1][2] == wire.SEQUENCE_FIRST + 3000


def test_kinds_are_the_numbers_of_their_fields():
    assert sends.NAMES
    for kind, name in sends.NAMES.items():
        assert pb.BaseCommand.Type.Value(name) == kind
        assert pb.BaseCommand.DESCRIPTOR.fields_by_number[kind].message_type is not None
