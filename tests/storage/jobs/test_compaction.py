"""A compaction keeps the newest message of each key, under its id, and nothing else."""
import random as random_module
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.delayed.amendments import Amendments
from geminga.storage.jobs.compacting import (
    compaction,
    engines,
    key_hashes,
    key_scan,
    nightly,
    part_writer,
    rewriting,
    view_writer,
)
from geminga.storage.ledgers import compacted_ledgers, view_files

from ..files import flip
from .topics import CODECS, Message, Topic, adopt_here, metadata_of, sealed, single

MESSAGES = st.builds(Message,
                     st.one_of(st.none(), st.sampled_from(["", "a", "b", "k" * 20, "é"]), st.integers(0, 30).map(str)),
                     st.one_of(st.just(b""), st.binary(min_size=1, max_size=40)), st.booleans())
TIMED = st.builds(Message, st.one_of(st.none(), st.integers(0, 9).map(str)), st.binary(max_size=3), st.booleans(),
                  st.integers(0, 4))
STEPS = st.lists(st.one_of(
    st.tuples(st.just("publish"), MESSAGES, st.sampled_from(CODECS)),
    st.tuples(st.just("publish_batch"), st.lists(MESSAGES, min_size=1, max_size=70), st.sampled_from(CODECS)),
    st.tuples(st.just("publish_chunks"),
              st.builds(Message, st.sampled_from(["a", "b", "c"]), st.binary(min_size=3, max_size=9)),
              st.integers(2, 3), st.uuids().map(str)),
    st.tuples(st.just("roll")), st.tuples(st.just("compact"))), max_size=25)


@pytest.mark.slow
@given(STEPS, st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_view_has_the_newest_message_of_each_key(tmp_path_factory, steps, retains_keyless):
    topic = Topic(tmp_path_factory.mktemp("data"))
    topic.publish(Message("always", b"there"))
    for step, *arguments in [*steps, ("compact",)]:
        if step == "compact":
            report = topic.compact(retains_keyless=retains_keyless)
            assert report.outcome in (nightly.COMPACTED, nightly.NOTHING_NEW), report
            expected = topic.newest(retains_keyless)
            assert topic.contents() == expected
            if report.outcome == nightly.COMPACTED:
                assert report.damage == ()
        else:
            getattr(topic, step)(*arguments)


@pytest.mark.slow
@given(st.lists(st.one_of(
    st.tuples(st.just("publish"), TIMED, st.sampled_from(CODECS)),
    st.tuples(st.just("publish_batch"), st.lists(TIMED, min_size=1, max_size=70), st.sampled_from(CODECS)),
    st.tuples(st.just("roll"))), max_size=25))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_by_event_time_a_view_has_the_latest_message_of_each_key(tmp_path_factory, steps):
    topic = Topic(tmp_path_factory.mktemp("data"))
    topic.publish(Message("always", b"there"))
    for step, *arguments in steps:
        getattr(topic, step)(*arguments)
    assert topic.compact(by_event_time=True).damage == ()
    assert topic.contents() == topic.newest(by_event_time=True)


def test_by_event_time_a_topic_without_keys_is_compacted(tmp_path):
    topic = Topic(tmp_path)
    topic.publish(Message(None, b"x", event_time=1))
    assert topic.compact(by_event_time=True).outcome == nightly.COMPACTED
    topic.publish(Message(None, b"y"))
    topic.compact(by_event_time=True, retains_keyless=True)
    assert topic.contents() == {(10, 1, None): (None, b"y")}


def test_by_event_time_a_late_message_does_not_replace_an_earlier_one(tmp_path):
    """Not in the same compaction, and not in a later one; of equal times the last message stays."""
    topic = Topic(tmp_path)
    topic.publish(Message("a", b"of five", event_time=5))
    topic.publish(Message("a", b"of four", event_time=4))
    topic.publish(Message("b", b"of no time"))
    topic.publish(Message("c", b"first of five", event_time=5))
    topic.publish(Message("c", b"second of five", event_time=5))
    topic.compact(by_event_time=True)
    assert sorted(topic.contents().values()) == [("a", b"of five"), ("b", b"of no time"), ("c", b"second of five")]
    topic.publish(Message("a", b"of three", event_time=3))
    topic.publish(Message("b", b"of one", event_time=1))
    topic.publish(Message("c", b"", event_time=4))      # a tombstone that comes too late
    topic.compact(by_event_time=True)
    assert sorted(topic.contents().values()) == [("a", b"of five"), ("b", b"of one"), ("c", b"second of five")]
    topic.publish(Message("c", b"", event_time=6))
    topic.publish(Message("a", b"of two", event_time=2))
    topic.compact()      # by position
    assert sorted(topic.contents().values()) == [("a", b"of two"), ("b", b"of one")]


@pytest.mark.slow
def test_ids_stay(tmp_path):
    """Messages that are left keep the ledger, entry and batch index of their receipts."""
    topic = Topic(tmp_path)
    topic.publish_batch([Message("a", b"1"), Message("b", b"1"), Message("a", b"2")])
    topic.roll()
    topic.publish(Message("c", b"1"))
    topic.publish(Message("b", b"2"))
    topic.publish(Message("c", b""))
    topic.compact()
    assert topic.contents() == {(10, 0, 2): ("a", b"2"), (11, 1, None): ("b", b"2")}
    [cut] = topic.view().find(10).cut.items()
    assert cut == (0, 0b100)
    assert topic.view().horizon == (11, 2)


def test_a_view_is_compacted_further_as_messages_come(tmp_path):
    """A batch that an earlier compaction has cut is cut further, and deleted ledgers are read from the view."""
    topic = Topic(tmp_path)
    topic.publish_batch([Message(str(n), b"1") for n in range(100)], api.ZSTD)
    topic.publish(Message("99", b"2"))
    topic.compact()
    topic.roll()
    for path in topic.folder.glob("10.*"):
        path.unlink()
    for n in range(0, 100, 2):
        topic.publish(Message(str(n), b"2"))
    report = topic.compact()
    assert topic.contents() == topic.newest()
    assert (report.messages_in, report.messages_out, report.keys) == (100 + 50, 100, 100)
    assert topic.view().number == 2 and topic.view().horizon == (11, 49)


def test_a_view_of_which_nothing_is_left_is_one(tmp_path):
    topic = Topic(tmp_path)
    topic.publish(Message("a", b"1"))
    topic.publish(Message("a", b""))
    report = topic.compact()
    assert (report.outcome, report.messages_out, report.keys, report.tombstones) == (nightly.COMPACTED, 0, 1, 1)
    assert topic.contents() == {} and topic.view().horizon == (10, 1)


def test_encrypted_batches_stay_whole_and_encrypted_messages_count_by_their_keys(tmp_path):
    keys = [api.EncryptionKeys(key="k", value=b"secret")]
    topic = Topic(tmp_path)
    batch_at = topic.add(sealed(metadata_of(num_messages_in_batch=3, encryption_keys=keys), b"nobody can read this"))
    huge_at = topic.add(sealed(metadata_of(num_messages_in_batch=(1 << 31) - 1, encryption_keys=keys), b"nor this"))
    topic.publish(Message("a", b"old"))
    position = topic.add(single(Message("a", b"ciphertext"), encryption_keys=keys))
    topic.compact()
    topic.publish(Message("b", b"x"))
    topic.compact()
    assert set(topic.contents()) == {(*batch_at, None), (*huge_at, None), (*position, None), (10, 4, None)}
    assert topic.view().find(10).cut == {}


def test_what_was_cancelled_is_for_nobody(tmp_path):
    """If a message is cancelled, the one before it is its key's newest, even if an older view has it."""
    topic = Topic(tmp_path)
    for payload in (b"1", b"2", b"3"):
        topic.publish(Message("a", payload))
        topic.publish(Message("b", payload))
    amended = Amendments(format.amended_path(topic.folder))
    amended.add(10, 4, NEVER_MS)
    amended.add(10, 2, 1_000)       # which only comes at another time
    topic.compact()
    assert topic.contents() == {(10, 2, None): ("a", b"2"), (10, 5, None): ("b", b"3")}
    amended.add(10, 5, NEVER_MS)
    topic.publish(Message("c", b"1"))
    topic.compact()
    assert topic.contents() == {(10, 2, None): ("a", b"2"), (10, 6, None): ("c", b"1")}


def test_markers_are_left_out(tmp_path):
    topic = Topic(tmp_path)
    topic.add(sealed(metadata_of(marker_type=10, partition_key="a"), b"marker"))
    topic.publish(Message("a", b"x"))
    topic.add(sealed(metadata_of(marker_type=10, partition_key="a"), b"marker"))
    topic.compact()
    assert topic.contents() == {(10, 1, None): ("a", b"x")}


def test_chunks_stay_and_go_together_over_ledgers(tmp_path):
    topic = Topic(tmp_path)
    topic.publish_chunks(Message("a", b"abcdef"), 3, "1")
    topic.publish_chunks(Message("b", b"abcdef"), 3, "2", up_to=1)
    topic.roll()
    topic.publish_chunks(Message("a", b"ghijkl"), 2, "3")
    topic.compact()
    assert topic.contents() == topic.newest()
    assert topic.view().find(10).kept.tolist() == [3]      # its last chunk may yet come
    topic.roll()
    topic.publish(Message("a", b""))
    topic.compact()
    assert topic.contents() == {} and topic.view().find(11) is None


def test_what_comes_while_it_is_compacted_is_for_the_next(tmp_path):
    """Entries behind the horizon, which is in a ledger that still grows, are left to the next compaction."""
    topic = Topic(tmp_path)
    topic.publish(Message("a", b"1"))
    topic.publish(Message("b", b"1"))
    topic.roll()
    topic.publish(Message("a", b"2"))
    expected = topic.newest()
    horizon = topic.ledger.ledger_id, topic.ledger.last_entry
    topic.publish(Message("a", b"3"))
    topic.publish(Message("b", b""))
    topic.ledger.checkpoint()
    job = compaction.prepare(topic.data_dir, topic.partition_id, 0, horizon)
    assert [(source.ledger_id, source.messages) for source in job.sources] == [(10, 2), (11, 1)]
    topic.compact()
    assert topic.contents() == topic.newest() != expected


def test_chunks_that_came_twice_are_there_once(tmp_path):
    """If a producer sends chunks again without deduplication, the later copies replace the earlier ones."""
    topic, whole = Topic(tmp_path), Message("a", b"abcdef")
    pieces = [sealed(metadata_of(uuid="1", num_chunks_from_msg=3, chunk_id=number, total_chunk_msg_size=6,
                                 **whole.fields()),
                     whole.payload[2 * number:2 * number + 2]) for number in range(3)]
    for number in (0, 1, 1, 2):
        last = topic.add(pieces[number], is_chunk=True)
    topic.expected.append((whole, (*last, None)))
    topic.publish(Message("b", b"x"))
    topic.compact()
    assert topic.view().find(10).kept.tolist() == [0, 2, 3, 4]
    assert topic.contents() == topic.newest()


def test_chunks_whose_last_one_never_came_go_after_a_day(tmp_path):
    topic = Topic(tmp_path)
    topic.publish_chunks(Message("b", b"abcdef"), 3, "2", up_to=2)
    topic.compact()
    assert topic.view().find(10).kept.tolist() == [0, 1]
    topic.now_ms += 25 * 3_600_000
    topic.publish(Message("a", b"x"))
    topic.compact()
    assert topic.view().find(10).kept.tolist() == [2]


def test_damaged_entries_are_told_of_and_left_out(tmp_path):
    """If the newest message of a key is damaged, the newest whole one is kept."""
    topic = Topic(tmp_path)
    topic.publish(Message("a", b"whole"))
    topic.publish(Message("a", b"damaged"))
    topic.publish_batch([Message(str(n), b"x") for n in range(9)], api.LZ4)
    topic.add(sealed(metadata_of(api.ZSTD, 50, num_messages_in_batch=4), b"this is no zstd"))
    topic.publish(Message("b", b"x"))
    path = format.ledger_path(topic.folder, 10)
    data = bytearray(path.read_bytes())
    data[data.index(b"damaged")] ^= 1
    path.write_bytes(data)
    report = topic.compact()
    assert report.outcome == nightly.COMPACTED and len(report.damage) == 2
    assert "10:1" in report.damage[0] + report.damage[1] and "10:3" in report.damage[0] + report.damage[1]
    assert topic.contents()[10, 0, None] == ("a", b"whole")
    assert len(topic.contents()) == 1 + 9 + 1


def test_rows_that_are_damaged_cost_nothing(tmp_path):
    """Damaged index rows are rebuilt from their neighbours and entries, as in the broker."""
    topic = Topic(tmp_path)
    for n in range(8):
        topic.publish(Message(str(n), b"x"))
    for entry_id in (0, 3, 7):
        path = format.index_path(topic.folder, 10)
        data = bytearray(path.read_bytes())
        data[format.HEADER_SIZE + 64 * entry_id + 20] ^= 255
        path.write_bytes(data)
    topic.ledger.write_header()
    report = topic.compact()
    assert len(report.damage) == 3
    assert topic.contents() == topic.newest()


def test_a_clock_in_the_future_changes_nothing(tmp_path):
    """The order of arrival decides which message is newest, not the producers' clocks."""
    topic = Topic(tmp_path)
    topic.publish(Message("a", b"old"), publish_time=(1 << 62))
    topic.publish(Message("a", b"new"), publish_time=1)
    topic.publish(Message("b", b"x"), publish_time=(1 << 64) - 1)
    topic.compact()
    assert {payload for _, payload in topic.contents().values()} == {b"new", b"x"}


def test_one_key_and_large_messages(tmp_path):
    topic = Topic(tmp_path)
    for n in range(4):
        topic.publish(Message("k" * 100_000, bytes([n]) * (5 << 20)))
    topic.publish_batch([Message("k" * 100_000, b"x" * 1_000_000) for _ in range(4)], api.SNAPPY)
    report = topic.compact()
    assert (report.keys, report.messages_out) == (1, 1)
    assert topic.contents() == topic.newest()


@pytest.mark.slow
def test_many_keys(tmp_path, monkeypatch):
    """There are more keys than are merged at once."""
    monkeypatch.setattr("geminga.storage.jobs.compacting.engines._MERGE_MIN", 5_000)
    topic = Topic(tmp_path)
    for n in range(60):
        topic.publish_batch([Message(str((n * 1_000 + m) % 40_000), b"%d" % n) for m in range(1_000)])
        if n % 20 == 19:
            topic.roll()
    report = topic.compact()
    assert report.keys == 40_000
    assert topic.contents() == topic.newest()


@pytest.mark.spark
def test_spark_gives_the_same(tmp_path, spark, monkeypatch):
    monkeypatch.setattr(key_hashes, "new_seed", lambda: b"the same for all")
    random, engine = random_module.Random(7), engines.Spark(tmp_path / "scratch", context=spark.sparkContext)
    topics = [Topic(tmp_path, partition_id, first_ledger=100 * partition_id) for partition_id in (1, 2, 3)]
    keys = [None, "", *(str(n) for n in range(40))]

    def message():
        return Message(random.choice(keys), random.randbytes(random.randrange(4)), event_time=random.randrange(9))

    for night in range(3):
        for topic in topics:
            for n in range(3):
                for _ in range(20):
                    topic.publish_batch([message() for _ in range(random.randrange(1, 70))], random.choice(CODECS))
                    topic.publish(message(), random.choice(CODECS))
                topic.publish_chunks(Message(str(n), b"abcdef"), 3, f"{n} {random.random()}")
                topic.publish_chunks(Message("9", b"abcdef"), 3, f"{n} {random.random()}", up_to=1)
                topic.roll()
        if night == 2:      # this view has to be read wholly, the others are continued
            path = view_files.keys_path(topics[0].view().folder, topics[0].view().ledgers[0].ledger_id)
            flip(path, view_files.KEYS_HEADER.itemsize)
        timed = nightly.Target(2, topics[1].target.topic, by_event_time=True)
        retaining = nightly.Target(3, topics[2].target.topic, retains_keyless=True)
        planned = nightly.plan(tmp_path, [topics[0].target, timed, retaining])
        adopt = Looking(tmp_path)
        by_spark = nightly.run(tmp_path, planned, adopt, engine)
        here = nightly.run(tmp_path, planned, adopt_here(tmp_path))
        for topic, first, second in zip(topics, by_spark.reports, here.reports, strict=True):
            assert first.outcome == nightly.NOT_ADOPTED, first
            same = {"outcome": "", "error": "", "view": 0, "seconds": 0.0, "freed": 0}
            assert replace(first, **same) == replace(second, **same)
            assert (len(first.damage) == 1) == (night == 2 and topic is topics[0])
            assert adopt.seen[topic.partition_id] == files_in(topic.view().folder)
            if topic is not topics[1]:      # it forgets times of tombstones from one compaction to the next
                assert topic.contents() == topic.newest(topic is topics[2])


class Looking:
    """An adoption that keeps a copy of the view's files, and refuses."""

    def __init__(self, data_dir):
        self.data_dir, self.seen = data_dir, {}

    def __call__(self, partition_id, _topic, number):
        folder = format.partition_folder(self.data_dir, partition_id)
        self.seen[partition_id] = files_in(compacted_ledgers.unfinished(folder, number))
        return "measured only"


def files_in(folder):
    """Return {name: bytes} of a view's files without the manifest."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != compacted_ledgers.MANIFEST}


def test_what_is_punched_while_it_is_copied_is_not_taken_for_an_entry(tmp_path, monkeypatch):
    """An owner punches a hole for an acknowledged entry between the two passes."""
    topic = Topic(tmp_path)
    for n in range(8):
        topic.publish(Message(str(n), b"x" * 100))
    write = view_writer.write

    def punched(job, *more):
        with open(format.ledger_path(topic.folder, 10), "r+b") as file:
            file.seek(int(topic.ledger.index["offset"][5]))
            file.write(bytes(100))
        return write(job, *more)

    monkeypatch.setattr(view_writer, "write", punched)
    report = topic.compact()
    assert report.outcome == nightly.FAILED and "checksum" in report.error
    monkeypatch.undo()
    assert topic.compact().outcome == nightly.COMPACTED
    assert len(topic.contents()) == 7


def test_a_message_in_chunks_that_its_producer_begins_anew_is_whole(tmp_path):
    topic = Topic(tmp_path)
    topic.publish_chunks(Message("a", b"abcdef"), 3, "1", up_to=2)
    topic.publish_chunks(Message("a", b"abcdef"), 3, "1")
    topic.publish(Message("b", b"x"))
    topic.compact()
    assert topic.view().find(10).kept.tolist() == [2, 3, 4, 5]
    assert topic.contents() == topic.newest()


def test_chunks_of_a_tombstone_go(tmp_path):
    topic = Topic(tmp_path)
    topic.publish_chunks(Message("a", b"abcdef", is_null=True), 3, "1")
    topic.publish(Message("b", b"x"))
    topic.compact()
    assert topic.view().find(10).kept.tolist() == [3]


def test_nothing_is_left_of_a_ledger_that_could_not_be_written(tmp_path, monkeypatch):
    topic = Topic(tmp_path)
    topic.publish(Message("a", b"x"))
    topic.ledger.checkpoint()
    format.compacted_folder(topic.folder).mkdir()
    job = compaction.prepare(topic.data_dir, topic.partition_id, 0, (10, 0))
    compaction.begin(job)

    def full(writer, entries):
        raise OSError("full")

    monkeypatch.setattr(part_writer.PartWriter, "finish", full)
    with pytest.raises(compaction.CannotCompact, match="full"):
        view_writer.write(job, 0, key_scan.keyless_slots(np.array([compaction.HAS_KEY])))
    assert list(job.target.iterdir()) == []


def test_what_an_earlier_compaction_has_cut_is_copied_as_it_is(tmp_path, monkeypatch):
    """A cut batch is rewritten only if it loses more messages."""
    topic, cut, rewritten = Topic(tmp_path), rewriting.cut, []
    monkeypatch.setattr(rewriting, "cut", lambda entries, masks: rewritten.append(len(entries)) or cut(entries, masks))
    topic.publish_batch([Message(key, b"1") for key in "abcd"], api.LZ4)
    for gone, expected in (("a", 1), ("z", 0), ("b", 1)):
        topic.publish(Message(gone, b"2"))
        rewritten.clear()
        topic.compact()
        assert (sum(rewritten), topic.contents()) == (expected, topic.newest())


def test_a_ledger_has_no_more_messages_than_places_have_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "_MESSAGES_MAX", 4)
    topic = Topic(tmp_path)
    topic.publish_batch([Message(key, b"1") for key in "abc"])
    topic.ledger.checkpoint()
    assert compaction.prepare(topic.data_dir, topic.partition_id, 0, (10, 0)).messages == 3
    topic.publish(Message("d", b"1"))
    topic.ledger.checkpoint()
    with pytest.raises(compaction.CannotCompact, match="ledger 10 claims to have 4 messages"):
        compaction.prepare(topic.data_dir, topic.partition_id, 0, (10, 1))
