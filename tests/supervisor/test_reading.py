"""Entries as `geminga read` shows them, one by one, without a broker."""
import asyncio
import struct

from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.cli import reading
from geminga.supervisor.pulsar_client.client import Entry


def entry_of(payload, entry_id=0, **fields):
    metadata = api.MessageMetadata(producer_name="p", sequence_id=entry_id, publish_time=1, **fields)
    raw = metadata.SerializeToString()
    return Entry(7, entry_id, metadata, b"\x0e\x01" + bytes(4) + struct.pack(">I", len(raw)) + raw + payload)


def chunk(payload, entry_id, number, count=2):
    return entry_of(payload, entry_id, uuid="u", chunk_id=number, num_chunks_from_msg=count, total_chunk_msg_size=2)


class Partitions:
    """Session of a topic: a list of entries for each partition."""

    def __init__(self, *entries):
        self._entries = entries

    async def partitions(self, _name):
        return len(self._entries)

    async def subscribe(self, name, *, makes_topic):
        assert not makes_topic
        return int(name.rpartition("-")[2])

    async def last(self, consumer):
        return None

    async def entries(self, consumer, _last):
        yield self._entries[consumer]

    async def close_consumer(self, consumer):
        pass


def read(*partitions):
    """Return (messages, lines of complaint)."""
    made = reading.Reading()

    async def all_of():
        return [payload async for payload in made.messages(Partitions(*partitions), "t")]

    return asyncio.run(all_of()), made.left_out


def test_an_entry_that_says_it_is_larger_than_a_message_may_be_is_not_unpacked():
    size = reading._MESSAGE_MAX + 1
    assert read([entry_of(b"a", 0, uncompressed_size=size), entry_of(b"b", 1, uncompressed_size=1)]) == (
        [b"b"], [f"7:0 is not shown: it claims to have {size} bytes"])


def test_chunks_wait_for_no_chunk_of_another_partition():
    messages, left_out = read([chunk(b"a", 0, 0)], [chunk(b"b", 5, 1), entry_of(b"c", 6)])
    assert messages == [b"c"]
    assert left_out == [f"7:{entry_id} is not shown: {reading._CHUNK}" for entry_id in (0, 5)]
