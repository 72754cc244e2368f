"""Messages shown over HTTP, whatever bytes and metadata their producers sent."""
import base64
import json
import struct
import zlib

import lz4.block
import pytest
import snappy
import zstandard
from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.admin.questions import StoredEntry
from geminga.supervisor.admin.resources.messages import _shown

PAYLOAD = b"some payload, some payload, some payload"
COMPRESSED = {
    api.NONE: PAYLOAD, api.LZ4: lz4.block.compress(PAYLOAD, store_size=False), api.ZLIB: zlib.compress(PAYLOAD),
    api.ZSTD: zstandard.ZstdCompressor().compress(PAYLOAD), api.SNAPPY: snappy.compress(PAYLOAD)}


def shown(payload=PAYLOAD, *, raw=None, added=(), index=0, timestamp=0, **fields):
    """Return (body, headers)."""
    fields = {"producer_name": "p", "sequence_id": 7, "publish_time": 1_700_000_000_001} | fields
    metadata = api.MessageMetadata(**fields).SerializeToString()
    entry = b"\x0e\x01\0\0\0\0" + struct.pack(">I", len(metadata)) + metadata + payload if raw is None else raw
    found = StoredEntry(3, 4, base64.b64encode(entry).decode(), index=index, timestamp=timestamp)
    answer = _shown(found, added)
    return answer.body, answer.headers


@pytest.mark.parametrize("compression", COMPRESSED, ids=api.CompressionType.Name)
def test_a_payload_is_unpacked(compression):
    body, headers = shown(COMPRESSED[compression], compression=compression, uncompressed_size=len(PAYLOAD))
    assert body == PAYLOAD and headers["X-Pulsar-Message-ID"] == "3:4"
    assert headers.get("X-Pulsar-compression") == (api.CompressionType.Name(compression) if compression else None)


@pytest.mark.parametrize("compression", [one for one in COMPRESSED if one], ids=api.CompressionType.Name)
@pytest.mark.parametrize(("payload", "size"), [(None, 3), (b"", 10), (b"\xff" * 50, 50)])
def test_one_that_is_not_what_its_metadata_says_is_refused(compression, payload, size):
    """The same holds for a payload that would unpack to more than it says."""
    with pytest.raises(web.HTTPClientError) as refused:
        shown(COMPRESSED[compression] if payload is None else payload, compression=compression, uncompressed_size=size)
    assert refused.value.status_code == 422


def test_what_is_encrypted_or_too_large_stays_as_it_is():
    for more in ({"encryption_keys": [api.EncryptionKeys(key="k", value=b"v")]}, {"uncompressed_size": 1 << 31}):
        body, headers = shown(COMPRESSED[api.ZLIB],
                              **{"compression": api.ZLIB, "uncompressed_size": len(PAYLOAD)} | more)
        assert (
            body == COMPRESSED[api.ZLIB] and headers["X-Pulsar-Is-Encrypted"] == str("encryption_keys" in more).lower()
        )


@pytest.mark.parametrize(("time_ms", "text"), [
    (99_999_999_999_999, "5138-11-16T09:46:39.999Z"), (1_700_000_000_120, "2023-11-14T22:13:20.12Z"),
    (1_500, "1970-01-01T00:00:01.5Z"), (60_000, "1970-01-01T00:01:00Z")])
def test_times_are_exact_and_written_as_pulsar_writes_them(time_ms, text):
    """As a float of seconds, the first one is a millisecond earlier."""
    assert shown(event_time=time_ms)[1]["X-Pulsar-event-time"] == text


def test_what_the_metadata_says_is_in_headers_as_far_as_headers_can():
    _, headers = shown(partition_key="a\r\nX-Evil: 1", event_time=(1 << 64) - 1, deliver_at_time=1_700_000_000_000,
                       num_messages_in_batch=3,
                       properties=[api.KeyValue(key="k\n", value="\u2603")], ordering_key=b"\0\1", chunk_id=1,
                       num_chunks_from_msg=2, uuid="u" * 5_000, null_value=True, schema_id=b"\0\2",
                       compacted_batch_indexes=[0, 2])
    assert headers["X-Pulsar-partition-key"] == "a??X-Evil: 1" and "X-Pulsar-event-time" not in headers
    assert headers["X-Pulsar-publish-time"] == "2023-11-14T22:13:20.001Z"
    assert headers["X-Pulsar-deliver-at-time"] == "2023-11-14T22:13:20Z"
    assert (
        json.loads(headers["X-Pulsar-PROPERTY"]) == {"k\n": "\u2603"}
        and headers["X-Pulsar-Base64-ordering-key"] == "AAE="
    )
    assert (headers["X-Pulsar-Base64-schema-id"], headers["X-Pulsar-compacted-batch-indexes"]) == ("AAI=", "0,2")
    assert (headers["X-Pulsar-num-batch-message"], headers["X-Pulsar-batch-size"]) == ("3", str(len(PAYLOAD)))
    assert (
        headers["X-Pulsar-chunk-id"],
        headers["X-Pulsar-PROPERTY-TOTAL-CHUNKS"],
        headers["X-Pulsar-null-value"],
    ) == ("1", "2", "true")


def test_texts_that_are_not_utf_8_are_in_headers_with_their_bytes_escaped():
    """Clients in C++ and Go publish whatever bytes an application gives them as a key."""
    fields = api.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1).SerializeToString()
    fields += b"\x32\x02k\xff" + b"\x22\x08" + b"\x0a\x02n\xfe\x12\x02v\xfd"      # partition_key, one of properties
    _, headers = shown(raw=b"\x0e\x01\0\0\0\0" + struct.pack(">I", len(fields)) + fields + PAYLOAD)
    assert headers["X-Pulsar-partition-key"] == "k\\xff"
    assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"n\\xfe": "v\\xfd"}


def test_keys_and_clusters_have_a_header_each():
    keys = [api.EncryptionKeys(key=name, value=b"wrapped", metadata=[api.KeyValue(key="a", value="b")])
            for name in ("k", "l")]
    _, headers = shown(encryption_keys=[*keys, api.EncryptionKeys(key="long", value=b"x" * 5_000)],
                       replicate_to=["here", "there"])
    assert headers.getall("X-Pulsar-Base64-encryption-keys") == [base64.b64encode(one.SerializeToString()).decode()
                                                                 for one in keys]
    assert headers.getall("X-Pulsar-replicated-to") == ["here", "there"]
    _, headers = shown(replicate_to=["x"] * 1_000)
    assert len(headers.getall("X-Pulsar-replicated-to")) == 20


@pytest.mark.parametrize("added", [(), ("timestamp",), ("index",), ("index", "timestamp")])
def test_what_the_broker_adds_to_entries_is_in_headers(added):
    _, headers = shown(added=added, index=9, timestamp=1_700_000_000_000)
    wanted = {"timestamp": "2023-11-14T22:13:20Z", "index": "9"}
    assert {
        name: text for name, text in wanted.items() if headers.get(f"X-Pulsar-Broker-Entry-METADATA-{name}") == text
    } == {name: wanted[name] for name in added}
    assert sum(name.startswith("X-Pulsar-Broker-Entry") for name in headers) == len(added)


@pytest.mark.parametrize("raw", [b"", b"\x0e\x01\0\0\0\0", b"\x0e\x01\0\0\0\0\0\0\0\4\xff\xff\xff\xff"])
def test_metadata_that_cannot_be_read_is_told(raw):
    with pytest.raises(web.HTTPClientError) as refused:
        shown(raw=raw)
    assert refused.value.status_code == 422
