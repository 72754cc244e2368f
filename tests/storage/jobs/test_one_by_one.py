"""Messages of an entry as the protobuf library reads them, which reading as arrays must match."""
import struct

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.jobs import one_by_one

from .topics import Message, metadata_of, single


def batch(*messages: tuple[dict, bytes], **outer):
    """Return (metadata, payload) of a batch of messages, each (fields of SingleMessageMetadata, payload)."""
    body = b""
    for fields, payload in messages:
        head = api.SingleMessageMetadata(**{"payload_size": len(payload)} | fields).SerializeToString()
        body += struct.pack(">I", len(head)) + head + payload
    return metadata_of(num_messages_in_batch=len(messages), **outer), memoryview(body)


def test_a_message_of_negative_size_is_damaged():
    with pytest.raises(one_by_one.Damaged, match="message 1 of its batch is cut"):
        list(one_by_one.messages(*batch(({}, b"first"), ({"payload_size": -5}, b""))))


def test_a_sequence_id_of_zero_is_one():
    found = one_by_one.messages(*batch(({"sequence_id": 0}, b"a"), ({}, b"b"), ({"sequence_id": 7}, b"c"),
                                       sequence_id=5))
    assert [one["sequence_id"] for one in found] == [0, 5, 7]


@pytest.mark.parametrize("event_time", [0, 1, -1, -(1 << 63), (1 << 63) - 1])
def test_times_before_1970_are_negative(event_time):
    [found] = one_by_one.messages(metadata_of(event_time=event_time % (1 << 64)), memoryview(b""))
    assert found["event_time"] == event_time


def test_entries_without_a_checksum_are_read():
    """Ledgers of format version 1 may have entries without a checksum."""
    metadata, stored = one_by_one.split(single(Message("k", b"v"))[6:])
    assert (metadata.partition_key, bytes(stored)) == ("k", b"v")
