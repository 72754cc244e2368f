"""Disks that are full or fail: some requests are refused, but nothing that was answered is lost."""
import errno
import os
from concurrent import futures
from types import SimpleNamespace

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.errors import NotDurable
from geminga.storage.ledgers import journal, ledger
from geminga.storage.ledgers.checkpoints import write_checkpoint
from geminga.storage.owner.owner_pass import TICK_MS
from geminga.storage.owner.recovery import journal_folder

from ..crash import full
from .rig import T

MIB = 1 << 20
DISK = 1 << 40                                        # bytes of the disk in tests with `room`
SMALL = {"journal_segment_bytes": 64 << 10, "journal_segments_max": 4}
MARKS = {"disk_refuse_below_bytes": 100 * MIB, "disk_accept_above_bytes": 200 * MIB}


@pytest.fixture
def room(monkeypatch):
    """Return room(bytes), which sets how much is free from now on."""
    def room(free):
        monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_blocks=DISK, f_frsize=1, f_bavail=free))
    room(DISK)
    return room


def fails(monkeypatch, name, number, *, when=lambda path: True):
    """Make os.NAME fail with an error for files whose paths `when` chooses.  Return a function that undoes that."""
    real = getattr(os, name)

    def failing(fd, *more):
        if when(os.readlink(f"/proc/self/fd/{fd}")):
            raise OSError(number, os.strerror(number))
        return real(fd, *more)

    monkeypatch.setattr(os, name, failing)
    return lambda: monkeypatch.setattr(os, name, real)


def payloads(found):
    return [payload for _, payload in found]


def test_below_the_high_watermark_nobody_publishes_and_the_rest_goes_on(rigs, room):
    rig = rigs(**MARKS)
    producer, consumer = rig.producer("a"), rig.consumer("a")
    [position] = rig.publish(producer, b"1")
    room(99 * MIB)
    rig.run(after_ms=TICK_MS)
    answers = rig.run(rig.sends((producer, b"2")))
    assert [command.type for command in answers.commands()] == [T.CLOSE_PRODUCER] and not answers.receipts
    [refused] = rig.run(rig.command("producer", topic="a", producer_id=77, request_id=1)).commands(T.ERROR)
    assert refused.error.error == api.ServiceNotReady
    assert rig.receive(consumer) == [(position, b"1")]
    assert rig.run(rig.acks(consumer, position, request_id=5)).commands(T.ACK_RESPONSE)
    again = rigs.crash(rig)
    assert again.receive(again.consumer("a")) == []


def test_between_the_watermarks_publishing_goes_on_and_nothing_is_allocated_ahead(rigs, room):
    rig = rigs(**MARKS)
    producer, found = rig.producer("a"), None
    for free, ahead in ((DISK, 1 << 20), (201 * MIB, MIB // 4), (199 * MIB, 0), (100 * MIB, 0)):
        room(free)
        rig.run(after_ms=TICK_MS)
        rig.owner.topics.roll(rig.partition("a"))
        found = rig.partition("a").open_ledger
        while len(rig.publish(producer, bytes(40_000))) and found.entries < 12:
            assert found.unused <= max(64 << 10, ahead + 4096)
        assert found.entries == 12 and found.size > 480_000


@pytest.mark.slow
def test_files_of_a_busy_topic_grow_seldom(rigs, monkeypatch):
    """Each file that grows is mapped anew by its owner and by workers.  Once a ledger is full, the next one gets as
    much room at once, for its entries and for its index.
    """
    rig = rigs(roll_over_bytes=256 << 10)
    producer, grown, real = rig.producer("a"), [], os.posix_fallocate

    def allocate(fd, *more):
        grown.append(os.readlink(f"/proc/self/fd/{fd}"))
        return real(fd, *more)

    rig.consumer("a")      # keeps ledgers from being trimmed
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    partition, passes = rig.partition("a"), {}
    while len(partition.ledgers) < 4:
        rig.publish(producer, *[b"."] * 50)
        passes[partition.open_ledger] = passes.get(partition.open_ledger, 0) + 1
    first, second, third, _ = partition.ledgers
    assert min(passes[each] for each in (first, second, third)) > 200
    counts = [[grown.count(str(path)) for path in each.files()] for each in (first, second, third)]
    assert counts[0] == [2, 6] and max(*counts[1], *counts[2]) <= 2


def test_who_was_sent_away_is_let_in_as_soon_as_there_is_room(rigs, room):
    """Publishing goes on above disk_accept_above_bytes.  Until then a producer that comes back waits, and is refused
    only after a long wait.
    """
    rig = rigs(**MARKS)
    rig.producer("a")
    room(99 * MIB)
    rig.run(after_ms=TICK_MS)
    back = rig.command("producer", topic="a", producer_id=7, request_id=1, producer_name="p", epoch=1)
    assert rig.run(back).commands() == []
    room(199 * MIB)
    assert rig.run(after_ms=TICK_MS).commands() == []
    room(200 * MIB)
    assert [command.type for command in rig.run(after_ms=TICK_MS).commands()] == [T.PRODUCER_SUCCESS]


def test_the_reserve_is_given_up_piece_by_piece_and_taken_back(rigs, room):
    rig = rigs(**MARKS, disk_reserve_bytes=8 * MIB)
    reserve = journal_folder(rig.data_dir, 0) / "reserve"
    sizes = [reserve.stat().st_size]
    room(1 * MIB)
    while reserve.exists():
        rig.run(after_ms=TICK_MS)
        sizes.append(reserve.stat().st_size if reserve.exists() else 0)
    assert sizes == [8 * MIB, 6 * MIB, 4 * MIB, 2 * MIB, 0]
    room(205 * MIB)                  # enough to publish, not enough for that and a reserve
    rig.run(after_ms=TICK_MS)
    assert not reserve.exists()
    room(DISK)
    rig.run(after_ms=TICK_MS)
    assert reserve.stat().st_size == 8 * MIB


@pytest.mark.slow
def test_acknowledgements_go_on_while_checkpoints_find_no_room(rigs, monkeypatch):
    """Journal segments are kept while a checkpoint fails.  When there is room again it is written, and no
    acknowledgement is lost.
    """
    rig = rigs(**SMALL)
    producer, consumer = rig.producer("a"), rig.consumer("a")
    positions = [position for number in range(100) for position in rig.publish(producer, *(b"%d" % number,) * 8)]
    room = iter([OSError(errno.ENOSPC, "No space left on device")] * 5)

    def full(*what):
        if (error := next(room, None)) is not None:
            raise error
        write_checkpoint(*what)

    monkeypatch.setattr(journal, "write_checkpoint", full)
    for first in range(0, 800, 2):
        assert rig.run(rig.acks(consumer, positions[first], request_id=first + 1)).commands(T.ACK_RESPONSE)
        rig.run(rig.redeliver(consumer))
        rig.publish(producer, b"x" * 1_000)
    assert next(room, None) is None
    again = rigs.crash(rig)
    left = [position for position, _ in again.receive(again.consumer("a"))]
    assert not set(left) & set(positions[::2]) and set(left) >= set(positions[1::2])


def test_a_segment_that_there_is_no_room_for_is_done_without(rigs, monkeypatch):
    """If no segment can be made, the journal goes on in the two it has.  So does the next process, which otherwise
    keeps the segments that it has replayed.
    """
    rig = rigs(**SMALL)
    producer = rig.producer("a")

    def full(path, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal, "make_segment", full)
    sent = [b"%d" % number * 500 for number in range(200)]
    for payload in sent:
        rig.publish(producer, payload)
        futures.wait(rig.owner.journal._free)      # a thread refuses the file; on a busy machine it might come too late
    assert len(list(journal_folder(rig.data_dir, 0).glob("*.journal"))) == 2
    again = rigs.crash(rig)
    assert payloads(again.everything("a")) == sent
    assert len(list(journal_folder(again.data_dir, 0).glob("*.journal"))) == 2


@pytest.mark.slow
def test_a_segment_that_failed_to_sync_is_set_aside_and_never_used_again(rigs, monkeypatch):
    """A journal segment that failed to sync is kept but never written again. Everything that was answered is there
    for the next process.
    """
    rig = rigs(**SMALL)
    producer, consumer = rig.producer("a"), rig.consumer("a")
    first, _second = rig.publish(producer, b"1", b"2")
    rig.run(rig.acks(consumer, first, request_id=1))
    mend = fails(monkeypatch, "fdatasync", errno.EIO, when=lambda path: path.endswith((".journal", ".bad")))
    with pytest.raises(NotDurable, match=r"1\.journal: Input/output error; it is set aside as 1\.bad"):
        rig.run(rig.sends((producer, b"3")))
    mend()
    folder = journal_folder(rig.data_dir, 0)
    # syncs of the segment that failed go on failing
    fails(monkeypatch, "fdatasync", errno.EIO, when=lambda path: path.endswith(("1.bad", "1.aside")))
    again = rigs.crash(rig)
    folder = journal_folder(again.data_dir, 0)
    aside = {path.name: path.read_bytes() for path in folder.glob("*.aside")}
    assert list(aside) == ["1.aside"] and not list(folder.glob("*.bad"))
    found = payloads(again.receive(again.consumer("a")))
    assert found in ([b"2"], [b"2", b"3"])               # entry 3 was not answered
    for number in range(200):
        again.publish(again.producer("a"), b"%d" % number * 500)
    assert {path.name: path.read_bytes() for path in folder.glob("*.aside")} == aside
    third = rigs.crash(again)
    assert payloads(third.receive(third.consumer("a")))[:len(found)] == found


def test_a_block_of_the_journal_that_cannot_be_read_costs_its_records_alone(rigs, monkeypatch, tmp_path):
    rig = rigs(**SMALL)
    sent = [b"%d" % number * 400 for number in range(20)]
    for payload in sent:
        rig.publish(rig.producer("a"), payload)
    whole, read = type(tmp_path).read_bytes, os.pread

    def unreadable(path):
        if path.name == "1.journal":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return whole(path)

    def block(fd, size, at):
        if at == 4 * 4096:
            raise OSError(errno.EIO, "Input/output error")
        return read(fd, size, at)

    monkeypatch.setattr(type(tmp_path), "read_bytes", unreadable)
    monkeypatch.setattr(os, "pread", block)
    again = rigs.crash(rig)
    assert any("1 of its blocks of 4096 bytes cannot be read" in text for text in again.damage)
    assert set(payloads(again.everything("a"))) <= set(sent)


def test_a_checkpoint_that_failed_to_sync_ends_the_process_and_keeps_its_segments(rigs, monkeypatch):
    rig = rigs(**SMALL)
    producer = rig.producer("a")
    sent = []
    mend = fails(monkeypatch, "fdatasync", errno.EIO, when=lambda path: path.endswith(".ledger"))
    with pytest.raises(NotDurable, match="Input/output error"):
        while len(sent) < 10_000:
            sent.append(b"%d" % len(sent) * 500)
            rig.publish(producer, sent[-1])
    with pytest.raises(NotDurable, match="at the next start"):
        rig.close()
    mend()
    again = rigs.crash(rig)
    found = payloads(again.everything("a"))
    assert found[:len(sent) - 1] == sent[:-1] and len(found) <= len(sent)


def test_a_topic_that_cannot_be_put_on_disk_is_not_given_up(rigs, monkeypatch):
    """After a failed sync the kernel forgets the pages. Only the journal has their bytes, so the next process replays
    it.
    """
    rig = rigs()
    rig.publish(rig.producer("a"), b"1")
    mend = fails(monkeypatch, "fdatasync", errno.EIO, when=lambda path: path.endswith(".ledger"))
    with pytest.raises(NotDurable):
        rig.asked("unload", "a")
    mend()
    assert payloads(rigs.crash(rig).everything("a")) == [b"1"]


def test_a_journal_that_was_removed_ends_the_process(rigs):
    """Bytes written to a journal file without a name would be lost at the next start."""
    rig = rigs()
    rig.run(after_ms=TICK_MS)
    for path in journal_folder(rig.data_dir, 0).glob("*.journal"):
        path.unlink()
    with pytest.raises(NotDurable, match="removed"):
        rig.run(after_ms=TICK_MS)
    rig.close()      # a stop still puts the journal's entries into their ledgers


@pytest.mark.slow
def test_no_more_ledgers_are_open_than_a_process_has_descriptors_for(rigs, monkeypatch):
    """The number of open ledgers stays below the limit, however many topics are used in turn or at once."""
    monkeypatch.setattr(ledger, "_OPEN_MAX", 16)
    rig = rigs()
    topics = [f"t{number}" for number in range(40)]
    producers = [rig.producer(topic) for topic in topics]
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        positions = rig.run(rig.sends(*[(producer, b"%d" % number) for producer in producers])).positions
        assert len(positions) == 40
        assert len(os.listdir("/proc/self/fd")) <= before + 3 * 16
    for topic in topics:
        assert payloads(rig.everything(topic)) == [b"0", b"1", b"2"]
    assert len(ledger._opened) <= 16


def blocks_of(found):
    """Return the bytes that a ledger and its index take on disk."""
    return [path.stat().st_blocks * 512 for path in found.files()]


def test_a_sealed_ledger_takes_what_it_holds_and_has_room_again_if_it_has_to_go_on(rigs):
    """If a power cut loses the ledger behind it, a sealed ledger is open again.  It must have room allocated before
    entries are written to it.
    """
    rig = rigs()
    producer = rig.producer("a")
    for _ in range(9):
        rig.publish(producer, bytes(300_000))
    partition = rig.partition("a")
    sealed = partition.open_ledger
    assert blocks_of(sealed)[0] > sealed.size + MIB
    rig.owner.topics.roll(partition)
    sizes = [path.stat().st_size for path in sealed.files()]
    assert blocks_of(sealed)[0] < sealed.size + 8192 and blocks_of(sealed)[1] <= 4096
    partition.open_ledger.unlink()
    again = rigs.restart(rig)      # on the same files: a copy would have no holes
    [position] = again.publish(again.producer("a"), b"behind")
    went_on = again.partition("a").open_ledger
    assert position == (sealed.ledger_id, 9) and [path.stat().st_size for path in went_on.files()] >= sizes
    assert went_on.unused >= 0 and blocks_of(went_on)[0] >= went_on.allocated and len(again.everything("a")) == 10


@pytest.fixture
def small_disk(tmp_path):
    """Return the folder of a mounted file system of 96 MiB."""
    if reason := full.why_not("tmpfs"):
        pytest.skip(reason)
    with full.disk(tmp_path, "tmpfs") as place:
        yield place


@pytest.mark.slow
def test_a_small_disk_is_used_to_its_watermark_and_after_it_was_cleared_again(small_disk, rigs):
    """Bytes allocated ahead neither stop publishing before the disk is full, nor keep it stopped after space was freed.
    """
    rig = rigs.on(small_disk / "data", journal_segment_bytes=6 * MIB)
    for topic in ("a", "b"):
        rig.consumer(topic)
    body, is_refused = bytes(250_000), lambda: rig.counters.read()["publishing_refused"] == 1
    for _ in range(3):
        published = {"a": 0, "b": 0}
        for topic, at_most in (("b", 10 * MIB), ("a", 1 << 40)):
            while published[topic] < at_most and not is_refused():
                producer = rig.producer(topic)
                while published[topic] < at_most and rig.run(rig.sends((producer, body)), after_ms=10).positions:
                    published[topic] += len(body)
                rig.run(after_ms=TICK_MS)
        stat = os.statvfs(small_disk)
        free, size = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
        assert free < size // 10 and is_refused()
        used = sum(path.stat().st_blocks * 512 for path in (small_disk / "data" / "partitions").rglob("*.ledger"))
        assert used - sum(published.values()) < 2 * MIB, (used, published)
        for topic in published:
            rig.asked("clear", topic, subscription="sub")
        for _ in range(3):
            rig.run(after_ms=TICK_MS)
        assert not is_refused()
        assert os.statvfs(small_disk).f_bavail * stat.f_frsize > 60 * MIB
