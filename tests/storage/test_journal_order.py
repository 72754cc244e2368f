"""The order of writes, syncs and renames of journal files, checked by the system calls of the process."""
import os

import numpy as np
import pytest

from geminga.storage import format
from geminga.storage.errors import NotDurable
from geminga.storage.ledgers import journal, journal_reader
from geminga.storage.ledgers.ledger_files import open_ledger
from geminga.storage.owner import recovery
from geminga.storage.owner.recovery import has_moved, settle
from geminga.storage.topics.subscription import SubType

from .files import record
from .journals import BIG, HEADER, SEGMENT, numbers, segments, write


class Kernel:
    """Records system calls in order, as ("write", "sync", "rename" or "replace", name of the file or folder)."""

    def __init__(self, monkeypatch):
        self.calls = []
        for name in ("pwrite", "pwritev", "write", "fdatasync", "fsync"):
            monkeypatch.setattr(os, name, self._told(name, getattr(os, name)))
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._named(name, getattr(os, name)))

    def _told(self, name, right):
        def call(fd, *arguments):
            self.calls.append(
                ("sync" if "sync" in name else "write", os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
            )
            return right(fd, *arguments)
        return call

    def _named(self, name, right):
        def call(path, *arguments, **more):
            self.calls.append((name, os.path.basename(path)))
            return right(path, *arguments, **more)
        return call

    def of(self, name, since=0):
        """Return the calls for the file or folder of that name, from call number `since` on."""
        return [what for what, which in self.calls[since:] if which == name]


@pytest.fixture
def kernel(monkeypatch):
    return Kernel(monkeypatch)


class Changed:
    """A file that a checkpoint puts on disk. When the checkpoint asks for it, it calls `look`, which looks whether
    the journal is synced.
    """

    def __init__(self, path, look=lambda: None):
        path.touch()
        self.path, self._look = path, look

    def checkpoint(self):
        self._look()
        return {self.path}, []


def test_what_a_checkpoint_puts_on_disk_is_in_the_journal_first(opened, kernel, tmp_path):
    """The journal is synced before a checkpoint takes its snapshots. Memory includes the record just appended, and a
    snapshot ahead of the journal would hold half a pass.
    """
    written, seen = opened(), []
    written.mark_dirty(Changed(tmp_path / "of", lambda: seen.append(kernel.of(written._segment.path.name)[-1])))
    for number in range(8):      # without a sync after each
        written.append(record(number, data=b"x" * BIG))
    assert seen and set(seen) == {"sync"}


def test_a_segment_that_is_full_is_on_disk_before_the_next_is_begun(opened, kernel):
    """A full segment is synced before records go into the next one. Otherwise a power cut could leave a gap in front
    of them.
    """
    written = opened()
    first = written._segment.path.name
    for number in range(3):
        written.append(record(number, data=b"x" * BIG))
    second = written._segment.path.name
    assert second != first and kernel.of(first)[-1] == "sync"
    begun = len(kernel.calls) - 1 - [name for _, name in reversed(kernel.calls)].index(first)
    assert ("write", second) not in [call for call in kernel.calls[:begun] if call[1] == second][1:]


def test_a_segment_is_retired_on_disk_before_it_is_free(opened, kernel, tmp_path):
    """The retired header of a segment is synced before the segment is free. Otherwise a power cut could leave the
    old header with parts of new records.
    """
    written = opened()
    written.mark_dirty(Changed(tmp_path / "of"))
    for number in range(12):
        write(written, [number], b"x" * BIG)
    written._collect_checkpoints(wait=False)
    names = {call[1] for call in kernel.calls if call[1].endswith(".journal")}
    at = {name: [number for number, call in enumerate(kernel.calls) if call == ("sync", name)] for name in names}
    put = [number for number, call in enumerate(kernel.calls) if call == ("sync", "of")]
    assert put and any(number > put[0] for name in names for number in at[name])


def test_a_stop_syncs_puts_in_place_and_retires_in_that_order(opened, kernel, tmp_path):
    written = opened()
    name = written._segment.path.name
    write(written, [0])
    written.mark_dirty(Changed(tmp_path / "of"))
    written.append(record(1))
    since = len(kernel.calls)
    opened.close(written)
    order = [call for call in kernel.calls[since:] if call[1] in (name, "of")]
    assert order == [("sync", name), ("sync", "of"), ("write", name), ("sync", name)]
    assert segments(opened.folder) == {}


def many(opened, count=5):
    """Return a folder with `count` segments that a kill has left."""
    written = opened(segments_max=8)
    for number in range(2 * count):
        write(written, [number], b"x" * BIG)
    return opened.left()


def test_a_start_retires_all_segments_oldest_first_each_on_disk_before_the_next(opened, kernel):
    """A start retires segments oldest first, and syncs each before the next. If it is killed meanwhile, the newest
    segments are left, which are safe to replay again.
    """
    folder = many(opened)
    before, since = list(segments(folder).values()), len(kernel.calls)
    assert len(before) > 3
    again = journal.open_journal(folder, segment_bytes=SEGMENT, segments_max=8)
    order = [call for call in kernel.calls[since:] if call[1] in {path.name for path in before}]
    expected = [call for path in before for call in (("write", path.name), ("sync", path.name))]
    assert order[:len(expected)] == expected
    assert list(segments(folder)) == [again._segment.sequence]
    again.close()


class Put:
    """A stand-in for replayed changes that are already applied to files."""

    def is_durable(self):
        pass

    def checkpoint(self):
        return set(), []


def test_what_is_replayed_is_on_disk_first_and_kept_as_it_is(opened, kernel):
    """A kill may have come before a sync; of the newest segment the sync may have failed, which the kernel tells once.
    """
    folder = many(opened)
    found, since = journal_reader.replay(folder), len(kernel.calls)
    assert found.segments == [path for _, path in reversed(journal_reader.by_age(folder))]
    journal_reader.make_sure(found)
    newest, *others = (kernel.of(path.name, since) for path in found.segments)
    assert "write" in newest and newest[-1] == "sync" and others == [["sync"]] * len(others)
    since = len(kernel.calls)
    again = journal.open_journal(folder, segment_bytes=SEGMENT, segments_max=8, kept=found, changed=Put())
    assert not any(kernel.of(path.name, since) for path in found.segments)
    assert numbers(folder) == list(range(10))
    again.close()


def test_a_start_syncs_the_journal_before_it_changes_a_file(opened, kernel, monkeypatch, tmp_path):
    """A power cut could otherwise leave what was changed, and not the record that explains it."""
    folder, synced = many(opened), []

    def replay(*_):
        synced.extend(path for path in journal_reader.replay(folder).segments if kernel.of(path.name)[-1] == "sync")
        raise InterruptedError

    for path in segments(folder).values():
        os.pwrite(fd := os.open(path, os.O_RDWR), b"", 0)      # the last call for it is no sync
        os.close(fd)
    monkeypatch.setattr(recovery, "replay", replay)
    with pytest.raises(InterruptedError):
        recovery.recover(tmp_path, folder)
    assert len(synced) > 3


def test_what_can_be_read_of_a_segment_that_failed_is_on_disk_under_its_name_before_the_other_is_put_aside(
    opened, kernel
):
    folder = many(opened)
    [*_, path] = segments(folder).values()
    content, bad = path.read_bytes(), path.with_suffix(journal_reader.BAD)
    path.rename(bad)
    since = len(kernel.calls)
    journal_reader.rescue(folder)
    assert path.read_bytes() == content == bad.with_suffix(journal_reader.ASIDE).read_bytes() and not bad.exists()
    order, new = kernel.calls[since:], path.with_suffix(".new").name
    steps = [("sync", new), ("replace", new), ("sync", folder.name), ("rename", bad.name), ("sync", folder.name)]
    assert [call for call in order if call in steps] == steps, order


def test_a_copy_that_was_made_before_is_not_made_again(opened):
    """The copy of a segment that failed is not made a second time, as less of the original may be readable by now."""
    folder = many(opened)
    [*_, path] = segments(folder).values()
    bad = path.with_suffix(journal_reader.BAD)
    bad.write_bytes(b"what is left by now")
    content = path.read_bytes()
    journal_reader.rescue(folder)
    assert path.read_bytes() == content


def test_a_new_segment_is_on_disk_with_its_name_before_it_is_used(opened, kernel):
    written = opened()
    for name in {path.name for path in opened.folder.glob("*.journal")}:
        calls = [call for call in kernel.calls if call[1] in (name, opened.folder.name)]
        at = calls.index(("sync", name))
        assert ("sync", opened.folder.name) in calls[at:] and calls[:at].count(("write", name)) > 0
    assert written


def test_a_record_says_which_one_is_surely_on_disk_before_it(opened):
    """Each record names the last record synced before it. Replay reports damage up to that one only, as later
    records may be incomplete after a power cut.
    """
    written = opened()
    for number, is_synced in enumerate([True, False, False, True, False]):
        written.append(record(number))
        if is_synced:
            written.sync()
    raw, at, said = written._segment.path.read_bytes(), HEADER, []
    for _ in range(5):
        head = np.frombuffer(raw, format.RECORD_HEADER, 1, at)[0]
        said.append((int(head["number"]), int(head["synced"])))
        at += HEADER + int(head["size"])
    first = said[0][0]
    assert said == [(first + number, first + synced) for number, synced in enumerate([-1, 0, 0, 0, 3])]


def test_a_record_that_fits_goes_where_it_fits_to_the_last_byte(opened):
    written = opened()
    before, bare = written._segment.sequence, record(0)
    room = written.size_max - HEADER - sum(len(table) if isinstance(table, bytes) else table.nbytes for table in (
        bare.groups, bare.rows, bare.sources, bare.ops))
    whole = record(0)
    whole.data, whole.size = [b"x" * room], room
    written.append(whole)
    written.sync()
    assert written._segment.sequence == before and numbers(opened.left()) == [0]
    written.append(record(1))
    assert written._segment.sequence == before + 1


# -- recovery ----------------------------------------------------------------------------------------------------------

def counted(rig):
    """Return the redelivery counts of the first three entries, as the partition has them in memory."""
    partition = rig.partition("t")
    found = partition.subscriptions["sub", True].cursor.redeliveries.of(partition.ledgers[0].ledger_id, range(3))
    return [0] * 3 if found is None else found.tolist()


def test_counts_of_redeliveries_are_there_after_a_kill_those_of_the_first_entry_too(rigs):
    rig = rigs()
    consumer = rig.consumer("t", subType=SubType.Shared)
    first, *_ = rig.publish(rig.producer("t"), b"a", b"b", b"c")
    rig.run(rig.flow(consumer, 3))
    rig.run(rig.redeliver(consumer))
    assert counted(rig) == [1, 1, 1]
    rig.run(rig.flow(consumer, 3))
    rig.run(rig.redeliver(consumer, first))
    assert counted(rig) == [2, 1, 1]
    after = rigs.crash(rig)
    after.consumer("t", subType=SubType.Shared)
    assert counted(after) == [2, 1, 1]


def test_entries_that_a_ledger_has_beyond_what_the_journal_puts_back_stay(rigs):
    """Replay keeps entries that a ledger has behind the replayed ones. A checkpoint may have retired the segments
    with the later records.
    """
    rig = rigs()
    rig.consumer("t")
    rig.publish(rig.producer("t"), b"a", b"b", b"c", b"d")
    partition = rig.partition("t")
    ledger_id, folder = partition.open_ledger.ledger_id, partition.folder
    rig.close()
    found = open_ledger(folder, partition.partition_id, ledger_id)
    raw, size = found.ledger_path.read_bytes(), found.size
    rows = found.index[:2].copy()
    start = int(rows["offset"][0])
    entries = recovery._Entries(np.arange(2), rows, np.zeros(2, np.int64), (rows["offset"] - start).astype(np.int64),
                                [memoryview(raw)[start:]])
    assert recovery._put(found, entries, None) == 2
    assert (found.entries, found.size) == (4, size)
    found.close()


def test_who_wrote_the_journals_is_known_by_number(tmp_path):
    assert not has_moved(tmp_path, 2)                        # there are no journals
    (tmp_path / "journal").mkdir()
    assert has_moved(tmp_path, 2) and has_moved(tmp_path, 1)      # the number of owners was not noted
    settle(tmp_path, 2)
    assert not has_moved(tmp_path, 2) and has_moved(tmp_path, 1) and has_moved(tmp_path, 3)
    settle(tmp_path, 3)
    assert has_moved(tmp_path, 2) and not has_moved(tmp_path, 3)


def test_a_segment_that_another_file_has_the_name_of_is_not_written_to(opened):
    """The journal refuses to go on with a segment whose file was replaced, because the next start would not find the
    records.
    """
    written = opened()
    written.check()
    path = written._segment.path
    (other := path.with_suffix(".copy")).write_bytes(path.read_bytes())
    other.replace(path)
    with pytest.raises(NotDurable, match="removed or replaced"):
        written.check()
