"""A compaction that continues a view makes the view that a reading of everything would make, and reads little."""
import contextlib
import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.delayed.amendments import Amendments
from geminga.storage.jobs import confirmed, reading
from geminga.storage.jobs.compacting import compaction, continuation, nightly, part_writer
from geminga.storage.ledgers import compacted_ledgers, view_files
from geminga.storage.ledgers.compacted_ledgers import CompactedLedgers

from .topics import CODECS, Message, Topic, adopt_here, metadata_of, sealed

KEYS = st.one_of(st.none(), st.sampled_from(["", "a", "k" * 300, "é"]), st.integers(0, 40).map(str))
MESSAGES = st.builds(Message, KEYS, st.one_of(st.just(b""), st.binary(min_size=1, max_size=40)), st.booleans(),
                     st.integers(0, 4))
DAYS = st.lists(st.lists(st.one_of(
    st.tuples(st.just("publish"), MESSAGES, st.sampled_from(CODECS)),
    st.tuples(st.just("publish_batch"), st.lists(MESSAGES, min_size=1, max_size=70), st.sampled_from(CODECS)),
    st.tuples(st.just("publish_chunks"),
              st.builds(Message, st.sampled_from(["a", "b", "3"]), st.binary(min_size=3, max_size=9),
                        st.booleans(), st.integers(0, 4)),
              st.integers(2, 3), st.uuids().map(str)),
    st.tuples(st.just("roll"))), max_size=8), min_size=2, max_size=5)


@pytest.fixture
def always(monkeypatch):
    """Have parts never written anew for what they lost, so that masks grow."""
    monkeypatch.setattr(continuation, "_LOST_MIN", 1.0)


def expected_of(topic, *, retains_keyless, by_event_time):
    """Return what the view should have by a dictionary that goes from compaction to compaction."""
    last = topic.held if hasattr(topic, "held") else {}
    start = getattr(topic, "counted", 0)
    newest = {}
    for message, position in topic.expected[start:]:
        key = message.key if message.key is not None else position
        if not by_event_time or key not in newest or message.event_time >= newest[key][0].event_time:
            newest[key] = message, position
    for key, (message, position) in newest.items():
        if not by_event_time or key not in last or message.event_time >= last[key][0].event_time:
            last[key] = message, position
    topic.held = {key: (message, position) for key, (message, position) in last.items()
                  if (retains_keyless if message.key is None else not message.is_tombstone)}
    topic.counted = len(topic.expected)
    return {position: (message.key, message.payload) for message, position in topic.held.values()}


def read_wholly(topic, view, **more):
    """Return {id: (key, payload)} and the figures of a view that a reading of everything makes in place of the newest.
    """
    aside = topic.data_dir.parent / f"{topic.data_dir.name}-whole"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(topic.data_dir, aside)
    folder = format.partition_folder(aside, topic.partition_id)
    shutil.rmtree(format.compacted_folder(folder) / str(view + 1))
    if view:
        shutil.copytree(topic.data_dir.parent / "before", format.compacted_folder(folder) / str(view))
        for path in (format.compacted_folder(folder) / str(view)).glob("*.keys"):
            path.unlink()
    other = topic.moved(aside)
    report = other.compact(**more)
    assert report.outcome == nightly.COMPACTED and not report.damage
    return other.contents(), report


def files_of(topic):
    """Return {name: inode} of the files of the view in force."""
    return {path.name: path.stat().st_ino for path in topic.view().folder.iterdir()}


def filled(tmp_path, ledgers=3, batch=0, **options):
    """Return a topic with ledgers of 40 keys of their own each, compacted, and with an open one behind them."""
    topic = Topic(tmp_path)
    for number in range(ledgers):
        messages = [Message(f"{number}-{n}", b"x" * 50) for n in range(40)]
        if batch:
            for first in range(0, 40, batch):
                topic.publish_batch(messages[first:first + batch])
        else:
            for message in messages:
                topic.publish(message)
        topic.roll()
    topic.publish(Message("always", b"there"))
    topic.compact(**options)
    topic.roll()
    return topic


@pytest.mark.parametrize("batch", [0, 10])
def test_parts_that_lose_nothing_or_little_are_the_same_files(tmp_path, batch):
    topic = filled(tmp_path, batch=batch)
    before = files_of(topic)
    for key in ("1-3", "1-17", "1-17"):
        topic.publish(Message(key, b"new"))
    topic.compact()
    after = files_of(topic)
    assert {name for name in before if after.get(name) == before[name]} == before.keys() - {"view"}
    assert after.keys() - before.keys() == {"11.mask", "14.ledger", "14.index", "14.keys"}
    assert topic.contents() == topic.newest()
    assert topic.view().manifest.messages == 121
    before = files_of(topic)
    topic.roll()
    topic.publish(Message("0-1", b""))
    topic.compact()
    assert files_of(topic)["11.mask"] == before["11.mask"] and "10.mask" in files_of(topic)
    assert topic.contents() == topic.newest()


def test_a_part_that_has_lost_much_is_written_anew(tmp_path):
    """Its disk space comes back; up to then a mask says which messages it has lost."""
    topic, sizes = filled(tmp_path), []
    for first in range(0, 36, 6):
        for n in range(first, first + 6):
            topic.publish(Message(f"1-{n}", b"y" * 50))
        topic.compact()
        topic.roll()
        assert topic.contents() == topic.newest()
        part = next(part for part in topic.view().manifest.parts if part.ledger_id == 11)
        sizes.append((part.kept, part.gone))
    assert sizes == [(40, 6), (40, 12), (40, 18), (16, 0), (16, 6), (4, 0)]


def test_much_that_is_new_has_more_parts_written_anew(tmp_path):
    """As many bytes come back as come: with so many new messages, a part that has lost a third is written anew."""
    topic = filled(tmp_path)
    for n in range(14):
        topic.publish(Message(f"1-{n}", b"y" * 200))
    topic.compact()
    assert [part.kept for part in topic.view().manifest.parts] == [40, 26, 40, 1, 14]


def test_nothing_is_left_of_a_part_whose_messages_are_all_replaced(tmp_path):
    topic = filled(tmp_path)
    for n in range(40):
        topic.publish(Message(f"1-{n}", b""))
    topic.compact()
    assert [part.ledger_id for part in topic.view().manifest.parts] == [10, 12, 13]
    assert topic.contents() == topic.newest()


def test_a_horizon_within_a_ledger_is_passed(tmp_path):
    """The part of the ledger that grows is written anew; if none of its new messages is kept, it is not."""
    topic = Topic(tmp_path)
    for n in range(8):
        topic.publish(Message(str(n), b"1"))
    topic.compact()
    before = files_of(topic)
    topic.publish(Message("no such key", b""))
    topic.compact()
    assert files_of(topic)["10.ledger"] == before["10.ledger"] and topic.view().find(10).entries == 9
    topic.publish(Message("3", b"2"))
    topic.publish_batch([Message("4", b"2"), Message("x", b"2")])
    topic.compact()
    assert files_of(topic)["10.ledger"] != before["10.ledger"]
    assert topic.contents() == topic.newest()


def test_encrypted_batches_stay_whole(tmp_path):
    keys = [api.EncryptionKeys(key="k", value=b"secret")]
    topic = filled(tmp_path)
    sizes = 3, (1 << 31) - 1
    places = [topic.add(sealed(metadata_of(num_messages_in_batch=count, encryption_keys=keys), b"nobody can read this"))
              for count in sizes]
    for _ in range(3):
        topic.publish(Message("0-1", b"new"))
        topic.compact()
        assert topic.contents().items() >= {(*place, None): (None, b"nobody can read this") for place in places}.items()
        assert topic.view().manifest.messages == 121 + sum(sizes)
    amended = Amendments(format.amended_path(topic.folder))
    amended.add(*places[1], NEVER_MS)
    topic.publish(Message("0-1", b"newer"))
    topic.roll()
    topic.compact()
    assert topic.view().manifest.messages == 121 + sizes[0]


def test_an_entry_of_the_view_that_was_cancelled_goes(tmp_path):
    topic = filled(tmp_path, batch=10)
    amended = Amendments(format.amended_path(topic.folder))
    amended.add(11, 2, NEVER_MS)
    amended.add(12, 77, NEVER_MS)      # no such entry
    topic.publish(Message("1-0", b"new"))
    topic.compact()
    gone = {f"1-{n}" for n in range(20, 30)}
    assert topic.contents() == {place: message for place, message in topic.newest().items() if message[0] not in gone}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 10])
def test_by_event_time_old_and_new_messages_are_compared(tmp_path, batch, always):
    """Late messages are left out, late tombstones too.  A message that a mask removes is compared with none."""
    topic = filled(tmp_path, batch=batch, by_event_time=True)
    topic.publish(Message("1-1", b"of five", event_time=5))
    topic.publish(Message("1-2", b"", event_time=5))
    assert topic.compact(by_event_time=True).damage == ()
    topic.roll()
    for message in (Message("1-1", b"late", event_time=4), Message("1-1", b"", event_time=3),
                    Message("0-1", b"of no time"), Message("1-2", b"back", event_time=1)):
        topic.publish(message)
    assert topic.compact(by_event_time=True).damage == ()
    left = {key: payload for key, payload in topic.contents().values() if key in ("0-1", "1-1", "1-2")}
    assert left == {"0-1": b"of no time", "1-1": b"of five", "1-2": b"back"}
    amended = Amendments(format.amended_path(topic.folder))
    amended.add(13, 0, NEVER_MS)
    amended.add(14, 0, NEVER_MS)      # the message of five
    topic.publish(Message("1-1", b"later", event_time=2))
    assert topic.compact(by_event_time=True).damage == ()
    assert {payload for key, payload in topic.contents().values() if key == "1-1"} == {b"later"}


def test_chunks_of_the_view_go_with_their_message_and_may_become_whole(tmp_path):
    topic = filled(tmp_path)
    topic.publish_chunks(Message("a", b"abcdef"), 3, "1")
    topic.publish_chunks(Message("b", b"abcdef"), 3, "2", up_to=2)
    topic.publish(Message("c", b"1"))
    topic.compact()
    topic.roll()
    topic.add(sealed(metadata_of(uuid="2", num_chunks_from_msg=3, chunk_id=2, total_chunk_msg_size=6,
                                 partition_key="b"), b"ef"), is_chunk=True)
    topic.expected.append((Message("b", b"abcdef"), (15, 0, None)))
    topic.compact()
    assert topic.contents() == topic.newest()
    assert topic.view().find(14).kept.tolist() == [0, 1, 2, 3, 4, 5]
    topic.publish(Message("a", b"2"))
    topic.compact()
    assert topic.contents() == topic.newest()
    assert topic.view().find(14).kept.tolist() == [3, 4, 5]
    topic.now_ms += 25 * 3_600_000
    topic.publish_chunks(Message("d", b"abcdef"), 3, "3", up_to=2)
    topic.publish(Message("b", b""))
    topic.compact()
    assert topic.contents() == topic.newest()
    assert topic.view().find(14).kept.tolist() == [5]


def test_a_view_is_read_wholly_if_it_was_made_with_other_options(tmp_path):
    """Of no times, of keyless messages, and without hashes: none of it is damage."""
    topic = filled(tmp_path)
    topic.publish(Message(None, b"keyless"))
    topic.compact(retains_keyless=True)
    assert (topic.ledger.ledger_id, 0, None) in topic.contents()
    topic.publish(Message("0-2", b"new"))
    assert topic.compact().damage == ()
    assert topic.contents() == topic.newest()
    topic.publish(Message("0-1", b"of five", event_time=5))
    assert topic.compact(by_event_time=True).damage == ()
    assert topic.contents() == topic.newest(by_event_time=True)
    for path in topic.view().folder.glob("*.keys"):
        path.unlink()
    topic.publish(Message("0-1", b"of four", event_time=4))
    assert topic.compact(by_event_time=True).damage == ()
    assert topic.contents() == topic.newest(by_event_time=True)
    topic.publish(Message("0-1", b"of three", event_time=3))
    report = topic.compact()
    assert report.damage == () and topic.contents() == topic.newest()


def keys_header(path, size):
    return 5


def keys_words(path, size):
    return view_files.KEYS_HEADER.itemsize + 9


def keys_items(path, size):
    return size - 8 * 40 + 8 * 3 + 2      # of the message that is replaced


@pytest.mark.slow
@pytest.mark.parametrize("at", [keys_header, keys_words, keys_items])
@pytest.mark.parametrize("is_cut", [False, True])
def test_without_whole_hashes_everything_is_read_and_the_report_says_why(tmp_path, at, is_cut):
    topic = filled(tmp_path)
    path = view_files.keys_path(topic.view().folder, 11)
    data = bytearray(path.read_bytes())
    place = at(path, len(data))
    data[place] ^= 1
    path.write_bytes(data[:place] if is_cut else data)
    topic.publish(Message("1-3", b"new"))
    report = topic.compact()
    assert report.outcome == nightly.COMPACTED and topic.contents() == topic.newest()
    [line] = report.damage
    assert str(path) in line and "the whole view is read again" in line
    topic.publish(Message("1-3", b"newer"))
    assert topic.compact().damage == () and topic.contents() == topic.newest()


def test_a_damaged_mask_is_told_by_all_who_read_it(tmp_path, always):
    """A compaction then reads everything; what the mask hid and nothing replaced comes again, as the report says."""
    topic = filled(tmp_path)
    topic.publish(Message("1-3", b"new"))
    topic.publish(Message("1-4", b""))
    topic.compact()
    path = view_files.mask_path(topic.view().folder, 11)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    view = topic.view()
    assert len(view.find(11).rows) == 40
    assert str(path) in view.damage[0] and "come again" in view.damage[0]
    topic.publish(Message("1-5", b"new"))
    report = topic.compact()
    assert any(str(path) in line and "the whole view is read again" in line for line in report.damage)
    assert topic.contents() == topic.newest() | {(11, 4, None): ("1-4", b"x" * 50)}


def test_an_entry_that_is_damaged_in_a_part_to_be_written_anew_is_left_out(tmp_path):
    topic = filled(tmp_path)
    path = format.ledger_path(topic.view().folder, 11)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    for n in range(30):
        topic.publish(Message(f"1-{n}", b"new"))
    report = topic.compact()
    assert report.outcome == nightly.COMPACTED and len(report.damage) == 2
    assert topic.contents() == {place: message for place, message in topic.newest().items() if message[0] != "1-39"}


def test_files_that_cannot_be_linked_are_written(tmp_path, monkeypatch):
    topic = filled(tmp_path)
    topic.publish(Message("1-3", b"new"))

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    report = topic.compact()
    assert report.outcome == nightly.COMPACTED and "Operation not permitted" in report.damage[0]
    assert topic.contents() == topic.newest()


def test_a_view_that_is_replaced_meanwhile_ends_the_compaction(tmp_path, monkeypatch):
    topic = filled(tmp_path)
    topic.publish(Message("1-3", b"new"))

    folder = topic.view().folder

    def replaced(*_):
        shutil.rmtree(folder)
        os.stat(folder)

    monkeypatch.setattr(continuation.Continuation, "_linked", replaced)
    report = topic.compact()
    assert report.outcome == nightly.FAILED and "deleted meanwhile" in report.error


def test_hashes_with_the_same_first_word_are_told_apart(tmp_path, monkeypatch):
    """All keys have one of two first words; the other bits say which is which."""
    hashes = continuation.key_scan.key_hashes.hashes

    def alike(keys, seed):
        words, more = hashes(keys, seed)
        return words % 2 + np.uint32(1), more

    monkeypatch.setattr(continuation.key_scan.key_hashes, "hashes", alike)
    topic = filled(tmp_path)
    for key in ("1-3", "2-3", "new", "1-4"):
        topic.publish(Message(key, b"new"))
    assert topic.compact().damage == () and topic.contents() == topic.newest()


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 100])
@pytest.mark.parametrize("by_event_time", [False, True])
def test_a_second_night_reads_a_twentieth_of_the_first(tmp_path, batch, by_event_time):
    """Each message has a key of its own, and one in a hundred, everywhere in all ledgers, gets a new value."""
    topic, count = Topic(tmp_path), 10_000
    chosen = np.random.default_rng(1).permutation(count)
    for some in np.array_split(np.arange(count), 100):
        messages = [Message(f"key-{n:06}", b"x" * 100, event_time=1_000 + n) for n in some.tolist()]
        if batch:
            topic.publish_batch(messages)
        else:
            for message in messages:
                topic.publish(message)
        if some[0] % 2_000 == 0:
            topic.roll()
    topic.roll()
    first = topic.compact(by_event_time=by_event_time)
    news = [Message(f"key-{n:06}", b"y" * 100, event_time=100_000) for n in chosen[:count // 100].tolist()]
    if batch:
        topic.publish_batch(news)
    else:
        for message in news:
            topic.publish(message)
    planned = nightly.plan(topic.data_dir, [nightly.Target(topic.partition_id, "t", by_event_time=by_event_time)])
    second = topic.compact(by_event_time=by_event_time)
    assert first.bytes_read >= 2 * first.bytes_in
    assert second.bytes_read <= first.bytes_read / 20
    assert planned[0].size_read <= second.bytes_read
    assert topic.contents() == topic.newest(by_event_time=by_event_time)


def test_readers_get_what_a_mask_leaves_of_a_batch(tmp_path):
    """The ack set of an entry leaves out what was removed from it before and since; ids and columns stay."""
    topic = Topic(tmp_path)
    topic.publish_batch([Message(str(n), b"1") for n in range(70)])
    topic.publish_batch([Message(str(n), b"1") for n in range(100, 103)])
    topic.publish_batch([Message(str(n), b"1") for n in range(200, 240)])
    topic.publish(Message("0", b"2"))
    topic.compact()
    topic.roll()
    for key in ("69", "100", "101", "102", "200"):
        topic.publish(Message(key, b"2"))
    topic.compact()
    ledger = topic.view().find(10)
    everything = (1 << 70) - 1
    assert ledger.kept.tolist() == [0, 2, 3]
    assert ledger.cut == {0: everything & ~1 & ~(1 << 69), 2: (1 << 40) - 2}
    assert ledger.cut_of(np.array([2, 3])) == [(0, (1 << 40) - 2)]
    assert (ledger.bits_of(1), ledger.bits_of(3)) == (0, 1)
    assert ledger.column("messages").tolist() == [70, 0, 40, 1]
    ledger.close()
    assert ledger.kept.tolist() == [0, 2, 3] and ledger.damage == []
    assert topic.contents() == topic.newest()


def test_a_view_with_masks_is_of_a_version_that_older_programs_refuse(tmp_path, always):
    topic = filled(tmp_path)
    path = topic.view().folder / compacted_ledgers.MANIFEST
    assert b'"version":1,' in path.read_bytes()
    topic.publish(Message("1-3", b"new"))
    topic.compact()
    path = topic.view().folder / compacted_ledgers.MANIFEST
    assert b'"version":2,' in path.read_bytes()
    view_files.mask_path(path.parent, 11).unlink()
    assert "11.mask" in topic.view().missing()
    assert isinstance(topic.view(), CompactedLedgers) and compaction.size_read(
        topic.view(), keeps_keyless=False, by_event_time=True, grows=False) == topic.view().manifest.size
    assert confirmed.current_view(topic.data_dir, topic.partition_id) == 2
    assert adopt_here(topic.data_dir) is not None


def test_a_mask_holds_for_batches_that_are_read_one_by_one(tmp_path, monkeypatch):
    """Reading all of a view, and further compactions, leave out what the mask removes from an unusual batch, too."""
    def all_odd(_reader, _block, _outer, some, _payloads):
        return some
        yield

    monkeypatch.setattr(reading._Reader, "_unpack", all_odd)
    topic = filled(tmp_path, batch=10)
    topic.publish_batch([Message("1-3", b"new"), Message("2-1", b"")])
    topic.compact()
    assert topic.view().find(11).cut == {0: (1 << 10) - 1 - (1 << 3)}
    assert topic.contents() == topic.newest()


class Killed(BaseException):
    """Error: the process ends here."""


CALLS = (os, "link"), (part_writer, "write_anew"), (part_writer.PartWriter, "finish"), \
    (compacted_ledgers, "finish"), (Path, "rename"), (os, "fsync"), (shutil, "rmtree")


@pytest.mark.slow
def test_a_kill_at_any_call_leaves_the_old_view_or_the_new_one(tmp_path, monkeypatch):
    """Before and after each link, write, sync, rename and removal.  The next run then makes the view."""
    topic = filled(tmp_path / "data")
    for key in ("0-1", "1-3", "2-5"):
        topic.publish(Message(key, b"new"))
    for n in range(30):
        topic.publish(Message(f"2-{n}", b"new"))      # this part is written anew
    old = topic.contents()
    calls = []

    def watched(folder, name, at, is_behind):
        called = getattr(folder, name)

        def call(*arguments, **more):
            calls.append(name)
            number = len(calls)
            if number == at and not is_behind:
                raise Killed
            answer = called(*arguments, **more)
            if number == at:
                raise Killed
            return answer
        return call

    killed, outcomes = 0, set()
    for at in itertools.count(1):
        for is_behind in (False, True):
            shutil.rmtree(tmp_path / "copy", ignore_errors=True)
            shutil.copytree(tmp_path / "data", tmp_path / "copy")
            copy = topic.moved(tmp_path / "copy")
            calls.clear()
            with pytest.MonkeyPatch.context() as patch:
                for folder, name in CALLS:
                    patch.setattr(folder, name, watched(folder, name, at, is_behind))
                # A process that is killed removes nothing.
                patch.setattr(compaction, "discard", lambda job: None)
                with contextlib.suppress(Killed):
                    copy.compact()
                    break
            killed += 1
            assert copy.contents() in (old, topic.newest())
            outcomes.add(copy.view().number)
            assert copy.compact().outcome in (nightly.COMPACTED, nightly.NOTHING_NEW)
            assert copy.contents() == topic.newest()
            left = {path.name for path in format.compacted_folder(copy.folder).iterdir()} - {"lock", "1", "2"}
            assert left == set()
        else:
            continue
        break
    assert killed > 30 and outcomes == {1, 2}


@pytest.mark.slow
@given(DAYS, st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_night_after_night_a_view_has_what_a_reading_of_everything_finds(
        tmp_path_factory, monkeypatch, days, retains_keyless, by_event_time, is_masked):
    """The same messages with the same ids, and the same figures, whether parts are masked or written anew."""
    if is_masked:
        monkeypatch.setattr(continuation, "_LOST_MIN", 1.0)
    folder = tmp_path_factory.mktemp("continuation")
    topic, view = Topic(folder / "data"), 0
    topic.publish(Message("always", b"there", event_time=9))
    options = {"retains_keyless": retains_keyless, "by_event_time": by_event_time}
    for day in days:
        for step, *arguments in day:
            getattr(topic, step)(*arguments)
        shutil.rmtree(folder / "before", ignore_errors=True)
        if view:
            shutil.copytree(topic.view().folder, folder / "before")
        report = topic.compact(**options)
        assert not report.damage and report.outcome in (nightly.COMPACTED, nightly.NOTHING_NEW)
        if report.outcome == nightly.COMPACTED:
            contents = topic.contents()
            assert contents == expected_of(topic, **options)
            wholly, whole = read_wholly(topic, view, **options)
            assert contents == wholly
            figures = dict.fromkeys(("bytes_read", "bytes_out", "freed", "seconds"), 0)
            assert replace(report, **figures) == replace(whole, **figures)
            view += 1
    assert topic.view().number == view > 0
    monkeypatch.undo()
