"""Entries become the messages that their producers sent, without a broker."""
import json
import struct

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import compress
from geminga.workers.messages import decoding
from geminga.workers.messages.decoding import Decoder
from geminga.workers.pulsar_client.entries import Entry

TOPIC = "persistent://public/default/t-partition-2"


def entry_of(payload, entry_id=0, redelivery_count=0, ack_set=(), **fields):
    metadata = api.MessageMetadata(producer_name="p", sequence_id=entry_id, publish_time=1, **fields)
    raw = metadata.SerializeToString()
    data = b"\x0e\x01" + bytes(4) + struct.pack(">I", len(raw)) + raw + payload
    return Entry(7, entry_id, metadata, data, redelivery_count, ack_set)


def chunk(payload, entry_id, number, count=2):
    return entry_of(payload, entry_id, uuid="u", chunk_id=number, num_chunks_from_msg=count, total_chunk_msg_size=2)


def packed(*messages):
    """Return a batch's payload; each message is (payload, fields of its metadata)."""
    parts = []
    for payload, fields in messages:
        own = api.SingleMessageMetadata(payload_size=len(payload), **fields).SerializeToString()
        parts.append(struct.pack(">I", len(own)) + own + payload)
    return b"".join(parts)


def read(*entries, topic=TOPIC):
    """Return (messages, lines of complaint)."""
    decoder = Decoder()
    messages = [message for entry in entries for message in decoder.messages(topic, entry)]
    decoder.end()
    return messages, decoder.left_out


def payloads(*entries):
    messages, left_out = read(*entries)
    return [message.payload for message in messages], left_out


def test_an_entry_that_says_it_is_larger_than_a_message_may_be_is_not_unpacked():
    size = decoding.MESSAGE_MAX + 1
    assert payloads(entry_of(b"a", 0, uncompressed_size=size), entry_of(b"b", 1, uncompressed_size=1)) == (
        [b"b"], [f"7:0 is not shown: it claims to have {size} bytes"])


def test_chunks_wait_for_no_chunk_of_another_topic():
    decoder = Decoder()
    assert [*decoder.messages("one", chunk(b"a", 0, 0)), *decoder.messages("two", chunk(b"b", 5, 1))] == []
    assert [message.payload for message in decoder.messages("two", entry_of(b"c", 6))] == [b"c"]
    decoder.end("two")
    assert decoder.left_out == [f"7:5 is not shown: {decoding.MISSING_CHUNKS}"]
    message, = decoder.messages("one", chunk(b"b", 1, 1))
    assert (message.payload, message.id, message.chunks) == (b"ab", "7:1", ((7, 0), (7, 1)))
    decoder.end()
    assert len(decoder.left_out) == 1


def test_all_fields_of_a_single_message_are_told():
    message, = read(entry_of(
        b"payload", 3, redelivery_count=4, partition_key="k", ordering_key=b"\0o", event_time=1_000,
        deliver_at_time=2_000, schema_version=(5).to_bytes(8), null_value=True, schema_id=b"id",
        properties=[api.KeyValue(key="a", value="b"), api.KeyValue(key="c", value="")]))[0]
    assert message.as_json() == {
        "id": "7:3", "topic": TOPIC, "publishTime": "1970-01-01T00:00:00.001Z",
        "eventTime": "1970-01-01T00:00:01.000Z", "deliverAt": "1970-01-01T00:00:02.000Z", "producer": "p",
        "sequenceId": 3, "key": "k", "orderingKey": "AG8=", "schemaVersion": 5, "schemaId": "aWQ=",
        "redeliveryCount": 4, "isNull": True,
        "properties": {"a": "b", "c": ""}, "payload": "payload"}
    assert (message.partition, message.batch_index, message.batch_size) == (2, -1, 0)
    assert message.as_text().splitlines()[-3:] == ["property     a = b", "property     c = ", "payload"]


@pytest.mark.parametrize("codec", [api.NONE, api.LZ4, api.ZLIB, api.ZSTD, api.SNAPPY], ids=api.CompressionType.Name)
def test_a_batch_is_unpacked_without_what_was_taken_out_of_it(codec):
    """The last two of its messages are compacted away and acknowledged."""
    stored = packed((b"first", {"partition_key": "k", "sequence_id": 9}), (b"\xff", {"event_time": 5}),
                    (b"compacted", {"compacted_out": True}), (b"acknowledged", {}))
    messages, left_out = read(entry_of(compress(codec, stored), 1, 0, (0b0111,), num_messages_in_batch=4,
                                       schema_id=b"i", compression=codec, uncompressed_size=len(stored)))
    assert [(one.id, one.batch_size, one.key, one.sequence_id, one.event_time_ms, one.payload) for one in messages] == [
        ("7:1:0", 4, "k", 9, 0, b"first"), ("7:1:1", 4, None, 1, 5, b"\xff")]
    assert {one.schema_id for one in messages} == {b"i"}
    assert left_out == [] and json.loads(json.dumps(messages[1].as_json()))["payloadBase64"] == "/w=="


def test_acknowledged_messages_of_a_long_batch_are_left_out():
    """The set has 64 messages in a word; words that it lacks are acknowledged, and a word may be negative."""
    stored = packed(*((str(number).encode(), {}) for number in range(130)))
    messages, _ = read(entry_of(stored, ack_set=(-1 << 63, 0b101), num_messages_in_batch=130))
    assert [one.batch_index for one in messages] == [63, 64, 66]


def test_markers_and_encrypted_entries_are_no_messages():
    entries = entry_of(b"x", 0, marker_type=1), entry_of(b"y", 1, encryption_keys=[api.EncryptionKeys(key="k",
                                                                                                     value=b"v")])
    assert payloads(*entries) == ([], ["7:1 is not shown: it is encrypted"])


def test_names_that_are_not_utf8_are_shown_with_their_bytes():
    raw = b"\x0a\x01p\x10\0\x18\x01\x32\x02\xffk"      # a key of two bytes
    metadata = api.MessageMetadata.FromString(raw)
    entry = Entry(1, 2, metadata, b"\x0e\x01" + bytes(4) + struct.pack(">I", len(raw)) + raw + b"x")
    message, = Decoder().messages("t", entry)
    assert message.key == r"\xffk"
