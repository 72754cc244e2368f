"""Blocks of keys, which Spark moves: none is lost, and each key's newest message is found in one bucket."""
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.jobs.compacting import compaction, engines, key_hashes, key_scan, nightly

from .topics import Message, Topic

KEYS = st.one_of(st.sampled_from(["", "a", "b", "é", "k" * 300]), st.integers(0, 50).map(str))


@pytest.mark.slow
@given(st.lists(st.lists(st.tuples(KEYS, st.integers(0, 3)), max_size=40), max_size=6), st.integers(1, 9),
       st.integers(0, 3), st.booleans())
def test_blocks_of_a_bucket_have_all_about_a_key(calls, buckets, left_out, by_event_time):
    """Each call has later places than the one before; the arrays of keys may begin within their buffers."""
    by_bucket, expected, latest, place = {}, {}, {}, 0
    for messages in calls:
        columns = {"key": [], "place": [], "time": []}
        for number, (key, time) in enumerate(messages):
            if number >= left_out and (not by_event_time or time >= latest.get(key, 0)):
                expected[key], latest[key] = place, time
            for name, value in zip(columns, (key, place, time), strict=True):
                columns[name].append(value)
            place += 1
        table = pa.table(columns, key_scan._KEYED)[left_out:]
        for bucket, block in key_scan.blocks(table if by_event_time else table.drop("time"), buckets):
            assert 0 <= bucket < buckets
            by_bucket.setdefault(bucket, []).append(block)
    found = [place for blocks in by_bucket.values() for place in key_scan.newest(blocks, bytes(16))["place"].tolist()]
    assert sorted(found) == sorted(expected.values())


@pytest.mark.slow
def test_keys_go_to_all_buckets_evenly():
    """Keys that differ in one place only, wherever it is, do."""
    for text in ("user-{:06}", "{:06}-user", "a" * 300 + "{:06}" + "b" * 300):
        keys = pa.array([text.format(number) for number in range(8_000)])
        blocks = dict(key_scan.blocks(pa.table({"key": keys, "place": pa.array(range(8_000), pa.int64())}), 8))
        sizes = [len(key_scan.newest([block], bytes(16))) for block in blocks.values()]
        assert len(sizes) == 8 and min(sizes) > 800, (text, sizes)


@given(st.lists(st.one_of(KEYS, st.sampled_from(["\0", "\0" + 24 * "0", "k" * 64, "k" * 65, "é" * 33])), max_size=20))
def test_texts_that_stand_for_keys_have_their_hashes(keys):
    """Also for keys that look like such texts."""
    keys, seed = pa.array(keys, pa.string()), bytes(16)
    short = key_hashes.shortened(keys, seed)
    assert max([len(text.encode()) for text in short.to_pylist()], default=0) <= 64
    found = key_hashes.hashes_of_shortened(pa.chunked_array([short]), seed)
    assert [column.tolist() for column in found] == [column.tolist() for column in key_hashes.hashes(keys, seed)]


def test_few_bytes_with_long_keys_take_little_memory(tmp_path):
    """A compressed batch has megabytes of keys in some kilobytes; a later night finds them again."""
    topic = Topic(tmp_path)
    topic.publish_batch([Message(f"{n}{'k' * 100_000}", b"old") for n in range(50)], api.ZSTD)
    [planned] = nightly.plan(tmp_path, [topic.target])
    job = compaction.prepare(tmp_path, topic.target.partition_id, 0, planned.horizon)
    scans = [scan for stretch, _ in compaction.stretches(job) for scan in key_scan.scan_keys(job, stretch)]
    assert planned.size < 50_000 and sum(scan.keyed.nbytes for scan in scans) < 50 * 100
    topic.compact()
    topic.publish_batch([Message(f"{n}{'k' * 100_000}", b"new") for n in range(25, 75)], api.ZSTD)
    topic.compact()
    assert topic.contents() == topic.newest() and len(topic.newest()) == 75


@pytest.mark.parametrize("text, why", [
    ("An error occurred while calling z:PythonRDD.collectAndServe.\n: org.apache.spark.SparkException: Job aborted: "
     "Traceback (most recent call last):\n  File \"x\", line 1\nValueError: five\n\n\tat org.apache.A(B.scala:1)\n"
     "\tat org.apache.C(D.scala:2)\nCaused by: other", "ValueError: five"),
    ("An error occurred while calling o1.x.\n: java.lang.OutOfMemoryError: Java heap space\n\tat java.A(B.java:1)",
     "java.lang.OutOfMemoryError: Java heap space"),
    ("Answer from Java side is empty", "Answer from Java side is empty"),
    ("", "RuntimeError")])
def test_why_spark_failed_is_one_line(text, why):
    assert engines._reason(RuntimeError(text)) == why
