"""A batch that lost some messages has the others unchanged, under their batch indexes."""
import struct

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from geminga.proto import batch_parts, compression
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.jobs.compacting import rewriting

CODECS = [api.NONE, api.LZ4, api.ZLIB, api.ZSTD, api.SNAPPY]
UNKNOWN = b"\xfa\x3f\x03new"       # field 1023: of a later version of the protocol


def batch_of(messages, codec=api.NONE, **fields):
    """Return the bytes of an entry.  messages: (fields of SingleMessageMetadata, payload) each."""
    body = b""
    for more, payload in messages:
        one = api.SingleMessageMetadata(payload_size=len(payload), **more).SerializeToString() + UNKNOWN
        body += struct.pack(">I", len(one)) + one + payload
    if codec != api.NONE:
        fields |= {"compression": codec, "uncompressed_size": len(body)}
    head = UNKNOWN + api.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1 << 41,
                                         num_messages_in_batch=len(messages),
                                         **fields).SerializeToString() + UNKNOWN
    content = struct.pack(">I", len(head)) + head + compression.compress(codec, body)
    return b"\x0e\x01" + struct.pack(">I", crc32c(content)) + content


def read(entry):
    """Return (MessageMetadata, its bytes, [(SingleMessageMetadata, its bytes, payload)]) of an entry."""
    assert entry[:2] == b"\x0e\x01"
    assert struct.unpack_from(">I", entry, 2)[0] == crc32c(entry[6:])
    end = 10 + struct.unpack_from(">I", entry, 6)[0]
    metadata = api.MessageMetadata.FromString(entry[10:end])
    body = bytes(compression.decompress(metadata.compression, entry[end:], metadata.uncompressed_size))
    at, found = 0, []
    while at < len(body):
        start, = struct.unpack_from(">I", body, at)
        raw = body[at + 4:at + 4 + start]
        one = api.SingleMessageMetadata.FromString(raw)
        at += 4 + start + one.payload_size
        found.append((one, raw, body[at - one.payload_size:at]))
    return metadata, entry[10:end], found


def cut_one(entry, kept):
    [found] = rewriting.cut([entry], [kept])
    if isinstance(found, Exception):
        raise found
    return found


MESSAGES = st.lists(st.tuples(st.fixed_dictionaries({}, optional={
    "partition_key": st.text(max_size=3), "event_time": st.integers(0, 1 << 40), "null_value": st.booleans(),
    "ordering_key": st.binary(max_size=3)}), st.binary(max_size=300)), min_size=1, max_size=130)


@pytest.mark.slow
@given(MESSAGES, st.sampled_from(CODECS), st.data())
def test_what_is_kept_stays_byte_for_byte_at_its_index(messages, codec, data):
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages))))
    entry = batch_of(messages, codec, schema_version=b"v", properties=[api.KeyValue(key="k", value="v")])
    metadata, head, found = read(cut_one(entry, kept))
    before, head_before, all_of_it = read(entry)
    assert len(found) == len(messages)
    for number, (one, raw, payload) in enumerate(found):
        if kept[number]:
            assert (raw, payload) == all_of_it[number][1:]
        else:
            assert (one.compacted_out, one.payload_size) == (True, 0)
            assert (one.HasField("partition_key"), payload) == (False, b"")
    if codec != api.NONE:
        before.uncompressed_size = metadata.uncompressed_size
    assert metadata == before
    if codec == api.NONE:
        assert head == head_before
    else:
        assert head.startswith(UNKNOWN) and head.endswith(UNKNOWN)


def test_a_batch_that_was_cut_is_cut_further():
    entry = batch_of([({"partition_key": str(n)}, b"x" * n) for n in range(100)], api.LZ4)
    kept = np.arange(100) % 2 == 0
    fewer = kept & (np.arange(100) % 3 == 0)
    assert read(cut_one(cut_one(entry, kept), fewer))[2] == read(cut_one(entry, fewer))[2]


def test_words_have_a_bit_for_each_message_that_is_there():
    kept = np.zeros(70, bool)
    kept[[0, 3, 69]] = True
    assert rewriting.words_of(kept) == (1 << 0 | 1 << 3 | 1 << 69).to_bytes(16, "little")
    assert len(rewriting.words_of(np.ones(64, bool))) == 8


@pytest.mark.parametrize("codec", CODECS[1:], ids=api.CompressionType.Name)
def test_a_payload_that_is_not_compressed_as_it_says_is_told(codec):
    entry = batch_of([({}, b"abcdefgh" * 10)] * 3, codec)
    with pytest.raises(batch_parts.Unreadable, match="payload"):
        cut_one(entry[:-9], np.ones(3, bool))


def test_a_batch_that_has_fewer_messages_than_it_says_is_told():
    for damaged in (batch_of([({}, b"a")] * 3)[:-1], batch_of([({}, b"a")] * 3)[:-20]):
        with pytest.raises(batch_parts.Unreadable):
            cut_one(damaged, np.ones(3, bool))
    with pytest.raises(batch_parts.Unreadable):
        cut_one(batch_of([({}, b"a")] * 3), np.ones(4, bool))


@pytest.mark.slow
@given(st.lists(st.tuples(MESSAGES, st.sampled_from(CODECS), st.sampled_from(["", "short", "fewer"]), st.randoms()),
                max_size=9))
def test_many_are_cut_as_one_by_one(some):
    entries, masks = [], []
    for messages, codec, damage, random in some:
        entry = batch_of(messages, codec)
        entries.append(entry[:-1] if damage == "short" else entry)
        masks.append(np.array([random.random() < 0.5 for _ in range(len(messages) + (damage == "fewer"))]))
    expected = []
    for entry, mask in zip(entries, masks, strict=True):
        try:
            expected.append(cut_one(entry, mask))
        except batch_parts.Unreadable as error:
            expected.append(str(error))
    results = rewriting.cut(entries, masks)
    assert [str(result) if isinstance(result, Exception) else result for result in results] == expected


@pytest.mark.parametrize("together", [1, 10, 10**6])
def test_however_many_are_cut_together_each_is_there_once(monkeypatch, together):
    monkeypatch.setattr(rewriting, "_TOGETHER_SIZE", together)
    entries, mask = [batch_of([({}, b"%d" % number), ({}, b"gone")]) for number in range(5)], np.array([True, False])
    assert rewriting.cut(entries, [mask] * 5) == [cut_one(entry, mask) for entry in entries]


def test_a_size_before_compression_is_right_where_there_is_no_compression():
    """Some clients set uncompressed_size without compression."""
    entry = batch_of([({}, b"first"), ({}, b"second")], uncompressed_size=len(b"anything"))
    metadata, head, _ = read(cut_one(entry, np.array([True, False])))
    body = cut_one(entry, np.array([True, False]))[10 + len(head):]
    assert metadata.uncompressed_size == len(body)


def test_a_message_of_negative_size_is_none():
    one = api.SingleMessageMetadata(payload_size=-5).SerializeToString()
    with pytest.raises(batch_parts.Unreadable):
        batch_parts.boundaries(struct.pack(">I", len(one)) + one, 1)
