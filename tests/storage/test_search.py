"""Search of ledgers: it hands out the entries of exactly those messages that meet the conditions."""
import os
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.jobs import entry_blocks, one_by_one, reading
from geminga.storage.jobs.reading import having
from geminga.storage.offline import search
from geminga.storage.offline.search import Conditions

from .files import flip, overwrite
from .jobs.topics import CODECS, NOW_MS, Message, Topic

KEYS = ["a", "ab", "b", "key-1", "key-2", "", None]
TEXTS = [b"", b"a", b"needle", b"hay needle hay", b"x" * 50]


def name_of(topic):
    return names.parse(f"t{topic.partition_id}")


def pieces(topic):
    topic.ledger.write_header()
    return search.pieces(topic.data_dir, [(topic.partition_id, name_of(topic))])


def hits(topic, conditions, report=pytest.fail, is_backwards=False):
    """Return the ids of messages that the search finds, in order; backwards, the last entry comes first."""
    found = []
    for piece in reversed(pieces(topic)) if is_backwards else pieces(topic):
        for hit in search.entries(topic.data_dir, piece, conditions, report, is_backwards=is_backwards):
            found += [(*hit.entries[-1][0], None if index < 0 else index)
                      for index in sorted(hit.indexes, reverse=is_backwards)]
    return found


def count(topic, conditions, report=pytest.fail):
    return sum(search.count(topic.data_dir, piece, conditions, report) for piece in pieces(topic))


@pytest.fixture
def topic(tmp_path):
    return Topic(tmp_path)


MESSAGES = st.builds(Message, st.sampled_from(KEYS), st.sampled_from(TEXTS))
ENTRIES = st.lists(st.tuples(st.sampled_from(["single", "batch", "chunks", "roll"]), st.sampled_from(CODECS),
                             st.lists(MESSAGES, min_size=1, max_size=6)), min_size=1, max_size=30)


@pytest.mark.slow
@given(ENTRIES, st.sampled_from([None, "a", "key-1", "", "nobody"]),
       st.sampled_from([None, "a.*", "b", "a|b", "key-.", ".*"]),
       st.sampled_from([None, b"needle", b"a", b"no such text"]))
@settings(max_examples=150, deadline=None)
def test_a_search_finds_all_messages_that_meet_the_conditions_and_no_others(tmp_path_factory, made, key, pattern, text):
    """The conditions are checked on the messages that were published, one by one."""
    topic = Topic(tmp_path_factory.mktemp("data"))
    for number, (kind, codec, messages) in enumerate(made):
        if kind == "roll":
            topic.roll()
        elif kind == "batch":
            topic.publish_batch(messages, codec)
        elif kind == "single":
            topic.publish(messages[0], codec)
        else:
            topic.publish_chunks(Message(messages[0].key, b"long needle" * 3), 3, str(number))
    expected = [position for message, position in topic.expected
                if (key is None or message.key == key) and (text is None or text in message.payload)
                and (pattern is None or (message.key is not None and re.fullmatch(pattern, message.key)))]
    conditions = Conditions(key=key, key_pattern=pattern, payload_text=text)
    assert hits(topic, conditions) == expected
    assert hits(topic, conditions, is_backwards=True) == expected[::-1]
    assert count(topic, conditions) == len(expected)


@given(st.lists(st.binary(max_size=5), max_size=40), st.binary(min_size=1, max_size=2))
def test_no_stretch_of_bytes_that_has_a_text_is_left_out(pieces, text):
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    begins = ends - np.array([len(piece) for piece in pieces], np.int64)
    has_it = having(b"".join(pieces), begins, ends, text).tolist()
    assert all(said for said, piece in zip(has_it, pieces, strict=True) if text in piece)
    if sum(text in piece for piece in pieces) * 4 <= len(pieces):      # not too many to be worth a look
        assert has_it == [text in piece for piece in pieces]


def test_a_text_that_goes_over_a_border_is_in_neither_stretch():
    borders = np.arange(0, 9, 2)
    assert having(b"xabxabxx", borders[:-1], borders[1:], b"ab").tolist() == [False, False, True, False]


def test_a_pattern_is_one_of_whole_keys(topic):
    for key in ("b", "ab", "bc", "b\nb"):
        topic.publish(Message(key, b""))
    assert [at for _, at, _ in hits(topic, Conditions(key_pattern="b"))] == [0]
    assert [at for _, at, _ in hits(topic, Conditions(key_pattern="b.*"))] == [0, 2, 3]


def test_space_that_is_given_back_between_finding_and_reading_is_no_damage(topic):
    for number in range(3):
        topic.publish(Message("k", b"%d" % number))
    (piece,), row = pieces(topic), topic.ledger.index[1]
    under_way = search.entries(topic.data_dir, piece, Conditions(key="k"), pytest.fail)
    next(under_way)
    overwrite(topic.ledger.ledger_path, int(row["offset"]), bytes(int(row["size"])))
    assert [hit.entries[-1][0] for hit in under_way] == [(10, 2)]


def test_properties_producers_and_sequence_ids_are_conditions(topic):
    def pair(name, value):
        return api.KeyValue(key=name, value=value)
    topic.publish(Message("k", b"0"), properties=[pair("region", "eu"), pair("tier", "1")], producer_name="one",
                  sequence_id=5)
    topic.publish(Message("k", b"1"), properties=[pair("region", "us")], producer_name="two", sequence_id=6)
    topic.publish_batch([Message("k", b"2"), Message("k", b"3")], producer_name="one", sequence_id=7)
    for conditions, expected in [
            (Conditions(properties=(("region", None),)), [0, 1]), (Conditions(properties=(("region", "eu"),)), [0]),
            (Conditions(properties=(("region", "eu"), ("tier", "1"))), [0]),
            (Conditions(properties=(("region", "eu"), ("tier", "2"))), []),
            (Conditions(properties=(("eu", None),)), []),
            (Conditions(producer="two"), [1]), (Conditions(producer="one"), [0, 2]), (Conditions(producer="on"), []),
            (Conditions(sequence_ids=(5, 6)), [0, 1]), (Conditions(sequence_ids=(7, 9)), [2]),
            (Conditions(sequence_ids=(8, 9)), [])]:
        assert sorted({entry_id for _, entry_id, _ in hits(topic, conditions)}) == expected, conditions


def test_entries_of_other_times_are_not_read(topic):
    """The index has the times: damage of an entry out of the range is not even noticed."""
    for number in range(10):
        topic.publish(Message("k", b"%d" % number), publish_time=NOW_MS + number)
    for number in (3, 8):
        flip(topic.ledger.ledger_path, int(topic.ledger.index[number]["offset"]) + 20)
    assert [at for _, at, _ in hits(topic, Conditions((NOW_MS + 4, NOW_MS + 7)))] == [4, 5, 6, 7]
    damage = []
    assert [at for _, at, _ in hits(topic, Conditions((NOW_MS + 2, NOW_MS + 4)), damage.append)] == [2, 4]
    assert damage == [f"{topic.ledger.ledger_path}: entry 10:3 is left out: its checksum is wrong"]


def test_batches_without_the_text_are_not_unpacked(topic, monkeypatch):
    """Looking for a text in bytes is much faster than unpacking them."""
    for number in range(40):
        topic.publish_batch([Message(f"key-{number}-{index}", b"v" * 30) for index in range(5)], CODECS[number % 2])
    unpacked, unpack = [], reading.packed.unpack

    def counted(data, begins, ends, counts):
        unpacked.append(len(begins))
        return unpack(data, begins, ends, counts)
    monkeypatch.setattr(reading.packed, "unpack", counted)
    assert hits(topic, Conditions(key="key-20-3")) == [(10, 20, 3)]
    assert hits(topic, Conditions(key="key-21-3")) == [(10, 21, 3)]
    assert sum(unpacked) == 2
    assert count(topic, Conditions(key_pattern="key-20-[34]")) == 2
    assert sum(unpacked) == 42


def test_space_that_was_given_back_and_ledgers_that_were_removed_are_passed_over(topic):
    for number in range(6):
        topic.publish(Message("k", b"%d" % number))
    first = topic.ledger
    topic.roll()
    topic.publish(Message("k", b"6"))
    topic.roll()
    topic.publish(Message("k", b"7"))
    offset, end = (int(first.index[number]["offset"]) for number in (1, 3))
    overwrite(first.ledger_path, offset, bytes(end - offset))
    assert hits(topic, Conditions(key="k")) == [(10, at, None) for at in (0, 3, 4, 5)] + [(11, 0, None), (12, 0, None)]
    some = pieces(topic)
    os.unlink(format.ledger_path(topic.folder, 11))
    os.unlink(format.index_path(topic.folder, 11))
    assert [len(list(search.entries(topic.data_dir, piece, Conditions(), pytest.fail))) for piece in some] == [4, 0, 1]
    under_way = search.entries(topic.data_dir, some[0], Conditions(key="k"), pytest.fail)
    next(under_way)
    os.unlink(first.ledger_path)
    os.unlink(first.index_path)
    assert len(list(under_way)) == 3


def test_space_that_is_given_back_while_it_is_read_is_no_damage(topic, monkeypatch):
    for number in range(4):
        topic.publish(Message("k", b"%d" % number))
    row, read_at = topic.ledger.index[2], entry_blocks._read_at

    def torn(fd, into, offset):
        done = read_at(fd, into, offset)
        overwrite(topic.ledger.ledger_path, int(row["offset"]), bytes(int(row["size"])))
        end = int(row["offset"]) + int(row["size"]) - offset
        into[end - 3:end] = bytes(3)
        return done
    topic.ledger.write_header()
    monkeypatch.setattr(entry_blocks, "_read_at", torn)
    assert [at for _, at, _ in hits(topic, Conditions(key="k"))] == [0, 1, 3]


def test_a_message_in_chunks_comes_with_all_of_them(topic):
    topic.publish_chunks(Message("big", b"needle" + bytes(range(200))), 2, "u")
    topic.publish_chunks(Message("big", b"cut"), 3, "w", up_to=2)
    topic.roll()
    topic.publish_chunks(Message("big", b"hay needle"), 3, "v")
    conditions = Conditions(key="big", payload_text=b"needle")
    found = [hit for piece in pieces(topic)
             for hit in search.entries(topic.data_dir, piece, conditions, pytest.fail)]
    assert [[place for place, _ in hit.entries] for hit in found] == [[(10, 0), (10, 1)], [(11, 0), (11, 1), (11, 2)]]
    assert b"".join(one_by_one.split(data)[1] for _, data in found[1].entries) == b"hay needle"


def test_messages_that_are_not_confirmed_are_not_searched(topic):
    """An entry is confirmed once its row is in the index whole; entries behind may be torn, or be lost with the power.
    """
    for number in range(10):
        topic.publish(Message("k", b"%d" % number))
    topic.ledger.write_header()
    for number in range(10, 20):
        topic.publish(Message("k", b"%d" % number))
    flip(topic.ledger.index_path, format.HEADER_SIZE + 64 * 15)
    (piece,) = search.pieces(topic.data_dir, [(topic.partition_id, name_of(topic))])
    assert search.count(topic.data_dir, piece, Conditions(key="k"), pytest.fail) == 15


def test_progress_ends_at_the_size_of_the_ledger(topic, monkeypatch):
    monkeypatch.setattr(search, "BLOCK_SIZE", 300)
    for number in range(50):
        topic.publish(Message(f"key-{number}", b"v" * 30))
    for conditions in (Conditions(key="key-7"), Conditions((0, 1))):
        steps = []
        (piece,) = pieces(topic)
        list(search.entries(topic.data_dir, piece, conditions, pytest.fail, steps.append))
        assert len(steps) > 5 and min(steps) >= 0 and sum(steps) == piece.size
