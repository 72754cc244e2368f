"""Metadata read in step says what the library says of each, or leaves it to that."""
import numpy as np
import pytest

from geminga.proto import metadata, varints
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.metadata import Field

SIZE = Field("uncompressed_size", 9, maximum=(1 << 32) - 1)
FIELDS = (Field("producer", 1, is_bytes=True), SIZE, Field("deliver_at", 19))


def read(raws: list[bytes], ends: list[int] | None = None) -> metadata.Columns:
    """Read metadata as columns.  ends: where each message is claimed to end, if not at its true end."""
    sizes = [len(raw) for raw in raws]
    begins = np.cumsum([0, *sizes[:-1]])
    data = np.frombuffer(b"".join(raws) + bytes(metadata.PAD), np.uint8)
    return metadata.read(data, begins, begins + (ends or sizes), FIELDS)


def said(**fields) -> bytes:
    return api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields).SerializeToString()


def test_numbers_that_are_too_large_are_left_to_the_library():
    """Messages with numbers above 64 bits are marked odd, and their neighbours are read."""
    tag = varints.encode(9 << 3)
    found = read([said(uncompressed_size=5), said() + tag + varints.encode(1 << 32),
                  said(uncompressed_size=(1 << 32) - 1)])
    assert found.odd.tolist() == [False, True, False]
    assert found.number("uncompressed_size")[[0, 2]].tolist() == [5, (1 << 32) - 1]


@pytest.mark.parametrize("extra", [b"\x0a\x05abc", b"\x0a\x7f", b"\x12\x02a"], ids=repr)
def test_a_field_that_ends_behind_its_message_is_left_to_the_library(extra):
    """A message whose field reaches into the next message is marked odd."""
    found = read([said(), said() + extra, said(deliver_at_time=7)])
    assert found.odd.tolist() == [False, True, False]
    assert found.number("deliver_at")[2] == 7


def test_a_varint_too_long_for_a_word_is_left_to_the_library():
    found = read([said(deliver_at_time=-1), said(deliver_at_time=7)])
    assert found.odd.tolist() == [True, False]


@pytest.mark.parametrize("extra", [b"\xf8\xff\x03\x05", b"\x0b\x0c", b"\x00\x01", b"\x88\x00\x01"], ids=repr)
def test_tags_that_no_client_writes_are_left_to_the_library(extra):
    """Messages with tags of three bytes, groups, field 0 or padded tags are marked odd."""
    assert read([said(), extra + said(), said()]).odd.tolist() == [False, True, False]
