"""Holes in ledgers: disk blocks of entries that all subscriptions have acknowledged are given back, and no others."""
import random
import subprocess

import numpy as np
import pytest

from geminga.storage import format
from geminga.storage.cursors.cursor import SKIPPED
from geminga.storage.disk import syscalls
from geminga.storage.format import NO_ENTRY
from geminga.storage.jobs import confirmed, reading
from geminga.storage.ledgers import index_repair, ledger
from geminga.storage.offline import dump
from geminga.storage.offline.findings import Severity
from geminga.storage.offline.verify import walk
from geminga.storage.topics.subscription import SubType
from geminga.storage.upkeep import hole_punching

from .. import machine
from .files import read_mapped
from .rig import Rig, copy_of, payload_of

SECOND = 1_000


def used(rig):
    """Return the bytes that the ledgers' entries take on disk, without bytes allocated ahead in the open ledger."""
    files = [(ledger, ledger.ledger_path.stat()) for ledger in rig.partition("t").ledgers]
    return sum(found.st_blocks * 512 - (0 if ledger.is_sealed else found.st_size - ledger.size)
               for ledger, found in files)


def filled(rigs, entries, size=10_000, **options):
    rig = rigs(journal_segment_bytes=8 << 20, **options)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    positions = []
    for start in range(0, entries, 50):
        positions += rig.publish(producer,
                                 *[b"%06d" % number * (size // 6) for number in range(start, min(start + 50, entries))])
    return rig, producer, consumer, positions


def bytes_of(rig, position):
    found = rig.partition("t")
    [entry] = read_mapped(format.partition_folder(rig.data_dir, found.partition_id), *position, 1)
    return bytes(entry)


def is_whole(rig, position, number, size=10_000):
    return payload_of(bytes_of(rig, position)) == b"%06d" % number * (size // 6)


@pytest.mark.slow
def test_what_lies_between_messages_that_are_needed_is_given_back(rigs):
    """Nine of ten messages are acknowledged: most of the space goes, and the others stay whole, after a crash too."""
    rig, _, consumer, positions = filled(rigs, 1_000)
    before = used(rig)
    random_ = random.Random(1)
    kept = sorted(random_.sample(range(1_000), 100))
    gone = [position for number, position in enumerate(positions) if number not in set(kept)]
    random_.shuffle(gone)
    rig.run(rig.acks(consumer, *gone))
    rig.run(after_ms=SECOND)
    assert used(rig) < before * 0.25
    for one in (rig, rigs.crash(rig)):
        again = one.consumer("t", subType=SubType.Shared)
        assert [position for position, _ in one.receive(again, 10_000)] == [positions[number] for number in kept]
        assert all(is_whole(one, positions[number], number) for number in kept)


def test_a_replay_leaves_holes_as_they_are(rigs, tmp_path):
    """The journal still has what was given back.  It is not put in place again, where nothing would free it."""
    rig, _, consumer, positions = filled(rigs, 300)
    rig.run(rig.acks(consumer, *(position for number, position in enumerate(positions) if number % 100)))
    rig.run(after_ms=SECOND)
    rig.settle()
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", "--sparse=always", rig.data_dir, copy], check=True)
    file = copy / rig.partition("t").open_ledger.ledger_path.relative_to(rig.data_dir)
    holes = file.stat().st_blocks
    assert holes * 512 < 100_000
    again = Rig(copy, now_ms=rig.now_ms, **rig.settings)
    assert file.stat().st_blocks <= holes
    left = again.receive(again.consumer("t", subType=SubType.Shared), 1_000)
    assert [position for position, _ in left] == positions[::100]
    assert all(is_whole(again, positions[number], number) for number in (0, 100, 200))
    assert problems(again) == []
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize("unloaded", [False, True], ids=["killed", "unloaded"])
def test_what_is_recorded_and_was_not_punched_is_punched_after_a_start(rigs, tmp_path, monkeypatch, unloaded):
    """The owner is killed between the record of what it discards and the holes, or among these."""
    rig, _, consumer, positions = filled(rigs, 300)
    rig.close_consumer(consumer)
    consumer = rig.consumer("t", subType=SubType.Shared)
    rig.receive(consumer, 1_000)
    before, real, copies = used(rig), syscalls.punch, []

    def punch(*arguments):
        if len(copies) < 2:
            copies.append(copy_of(rig.data_dir, tmp_path / f"copy-{len(copies)}"))
        if not unloaded:
            real(*arguments)

    monkeypatch.setattr(syscalls, "punch", punch)
    rig.run(rig.acks(consumer, *(position for number, position in enumerate(positions) if number % 100)))
    rig.run(after_ms=SECOND)
    assert len(copies) == 2
    monkeypatch.setattr(syscalls, "punch", real)
    if unloaded:
        rig.close_consumer(consumer)
        assert used(rig) == before
        rig.asked("unload", "t")
        found = [rig]
    else:
        found = [rigs.on(copy, now_ms=rig.now_ms, **rig.settings) for copy in copies]
    for again in found:
        left = again.receive(again.consumer("t", subType=SubType.Shared), 1_000)
        assert [position for position, _ in left] == positions[::100]
        again.run(after_ms=SECOND)
        assert used(again) < before * 0.1
        assert all(is_whole(again, positions[number], number) for number in (0, 100, 200))
        assert problems(again) == []


def test_a_replay_writes_no_state_that_no_record_has_changed(rigs):
    """It looks into the state of each partition whose entries it writes, for those that are discarded."""
    rig = rigs()
    rig.publish(rig.producer("t"), b"1")
    rig = rigs.restart(rig)
    rig.publish(rig.producer("t"), b"2")
    again = rigs.crash(rig)
    state = format.state_path(format.partition_folder(again.data_dir, rig.partition("t").partition_id))
    before = state.stat().st_ino      # a state that is written gets a file of its own
    assert again.recovered == 1
    again.close()
    assert state.stat().st_ino == before
    assert [payload for _, payload in rigs.on(again.data_dir).everything("t")] == [b"1", b"2"]


def test_every_message_that_is_gone_shows_it_in_its_first_bytes(rigs):
    """A worker that still has a discarded message to deliver recognizes the hole, and does not send half a message."""
    rig, _, consumer, positions = filled(rigs, 300, size=1_700)
    rig.run(rig.acks(consumer, *(position for number, position in enumerate(positions) if number % 50)))
    rig.run(after_ms=SECOND)
    for number, position in enumerate(positions):
        assert bytes_of(rig, position).startswith(NO_ENTRY) or is_whole(rig, position, number, 1_700)
    assert sum(bytes_of(rig, position).startswith(NO_ENTRY) for position in positions) > 250


@pytest.mark.slow
def test_much_is_given_back_in_parts_so_that_no_pass_takes_long(rigs, tmp_path, monkeypatch):
    """Passes follow each other at once until all is given back.  Meanwhile each message is whole or shows that it is
    gone, acknowledgements that come in between wait for their turn, and what a backup takes in between stays.
    """
    monkeypatch.setattr(hole_punching, "_PUNCHED_MAX", 64 << 10)
    rig, _, consumer, positions = filled(rigs, 300)
    passes, punched, steps, real = rig.owner.passes, [], [], syscalls.punch

    def punch(descriptor, begin, end, path):
        punched.append(end - begin)
        real(descriptor, begin, end, path)

    def go_on(*sections, after_ms=0):
        punched.clear()
        rig.run(*sections, after_ms=after_ms)
        for number, position in enumerate(positions):
            assert bytes_of(rig, position).startswith(NO_ENTRY) or is_whole(rig, position, number)
        steps.append(sum(punched))

    monkeypatch.setattr(syscalls, "punch", punch)
    rig.run(rig.acks(consumer, *positions[1:150], *positions[151:200]))

    go_on(after_ms=SECOND)
    go_on(rig.acks(consumer, *positions[201:299]))
    backup = tmp_path / "backup"
    backup.hardlink_to(rig.partition("t").open_ledger.ledger_path)
    go_on()
    assert steps == [64 << 10, 64 << 10, 0] and passes.due_ms() > rig.now_ms
    backup.unlink()
    go_on(after_ms=SECOND)
    while passes.due_ms() <= rig.now_ms:
        go_on()
    assert max(steps) == 64 << 10 and sum(steps) > 295 * 10_000 - 6 * 8_192
    assert all(is_whole(rig, positions[number], number) for number in (0, 150, 200, 299))


def test_a_new_subscription_passes_over_what_is_gone(rigs):
    rig, _, consumer, positions = filled(rigs, 100)
    rig.run(rig.acks(consumer, *positions[10:90]))
    rig.run(after_ms=SECOND)
    rig = rigs.restart(rig)
    late = rig.consumer("t", "late")
    got = [position for position, _ in rig.receive(late)]
    assert got[:10] == positions[:10] and got[-10:] == positions[90:]
    assert len(got) < 25      # messages that share blocks with others stay
    assert rig.partition("t").subscriptions["late", True].cursor.totals[SKIPPED] == 100 - len(got)


@pytest.mark.parametrize("options", [{"retention_s": -1, "retention_bytes": -1}], ids=["retained"])
def test_what_is_retained_stays(rigs, options):
    rig, _, consumer, positions = filled(rigs, 100, **options)
    before = used(rig)
    rig.run(rig.acks(consumer, *positions[10:90]))
    rig.run(after_ms=SECOND)
    assert used(rig) == before


@pytest.mark.parametrize("durable", [True, False], ids=["subscription", "reader"])
def test_what_another_one_needs_stays(rigs, durable):
    rig, _, consumer, positions = filled(rigs, 100)
    other = rig.consumer("t", "other", durable=durable, subType=SubType.Exclusive)
    before = used(rig)
    rig.run(rig.acks(consumer, *positions[10:90]))
    rig.run(after_ms=SECOND)
    assert used(rig) == before
    rig.run(rig.acks(other, positions[-1], cumulative=True))
    rig.run(after_ms=SECOND)
    assert used(rig) < before - 600_000


def test_a_ledger_goes_on_growing_around_its_holes(rigs):
    """Holes stay holes while the ledger grows, and messages published later are whole."""
    rig, producer, consumer, positions = filled(rigs, 300)
    rig.run(rig.acks(consumer, *positions[1:]))
    rig.run(after_ms=SECOND)
    assert used(rig) < 2_500_000
    later = []
    for number in range(300, 600, 50):
        later += rig.publish(producer, *[b"%06d" % one * 1_666 for one in range(number, number + 50)])
    assert all(is_whole(rig, position, number) for number, position in enumerate(later, 300))
    assert used(rig) < 6_500_000
    rig.run(rig.acks(consumer, *later))
    rig.run(after_ms=SECOND)
    assert is_whole(rig, positions[0], 0)


@pytest.mark.slow
def test_a_lone_message_that_waits_for_its_time_keeps_a_few_blocks_of_its_ledger(rigs):
    """All blocks around a lone delayed message are given back, those of the index included. The message is delivered
    in time, and the folder verifies.
    """
    rig = rigs()
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    rig.run(rig.flow(consumer, 1 << 20))
    acked = []
    for number in range(10):
        if number == 5:
            [lone] = rig.run(rig.sends((producer, b"lone", {"deliver_at_time": rig.now_ms + 3_600_000}))).positions
        acked += rig.publish(producer, *[bytes(1_000)] * 500)
    found = rig.partition("t").open_ledger
    whole = found.index_path.stat().st_blocks * 512
    rig.owner.topics.roll(rig.partition("t"))
    forgotten = rig.run(rig.acks(consumer, *acked), after_ms=SECOND).forgotten
    for _ in range(3):
        forgotten += rig.run(after_ms=SECOND).forgotten
    assert (1, found.ledger_id) in forgotten      # else a worker that has mapped the index keeps it on disk
    assert found.size > 5_000_000 and found.ledger_path.stat().st_blocks * 512 <= 64 << 10
    assert whole > 300_000 and found.index_path.stat().st_blocks * 512 <= 32 << 10
    assert rig.asked("why", "t", subscription="sub")["messages"] == {
        "published": 5001, "acknowledged": 5000, "expired": 0, "skipped": 0, "evicted": 0, "backlog": 1}
    rig = rigs.restart(rig)
    assert rig.receive(rig.consumer("t", subType=SubType.Shared)) == []
    if machine.file_system(found.index_path) not in machine.IN_MEMORY:      # there a hole takes memory when it is read
        assert found.index_path.stat().st_blocks * 512 <= 32 << 10
    assert rig.partition("t").find(found.ledger_id).messages_in(0, 5001) == 5001
    assert rig.asked("why", "t", subscription="sub")["messages"]["backlog"] == 1
    again = rigs.crash(rig)
    assert [str(one) for one in walk(again.data_dir) if one.severity > Severity.NOTE] == []
    waiting = again.consumer("t", subType=SubType.Shared)
    assert again.receive(waiting) == []
    answers = again.run(after_ms=3_601_000)
    assert again.delivered(answers, waiting) == [(lone, b"lone")]


def with_lone_ones(rigs, *numbers, entries=5_000, **options):
    """Make a sealed ledger in which all is acknowledged but a delayed message before each of these numbers.

    Return (rig, ledger, {position of a delayed message: payload}).
    """
    rig = rigs(**options)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    rig.run(rig.flow(consumer, 1 << 20))
    acked, lone, borders = [], {}, [0, *sorted(numbers), entries]
    for first, end in zip(borders, borders[1:], strict=False):
        if first:
            fields = {"deliver_at_time": rig.now_ms + 3_600_000}
            [position] = rig.run(rig.sends((producer, b"%d" % first, fields))).positions
            lone[position] = b"%d" % first
        for start in range(first, end, 500):
            acked += rig.publish(producer, *[b"%06d" % number * 40 for number in range(start, min(start + 500, end))])
    found = rig.partition("t").open_ledger
    rig.owner.topics.roll(rig.partition("t"))
    rig.run(rig.acks(consumer, *acked), after_ms=SECOND)
    for _ in range(3):
        rig.run(after_ms=SECOND)
    return rig, found, lone


def taken_by_index(ledger):
    return ledger.index_path.stat().st_blocks * 512


def problems(rig):
    return [str(one) for one in walk(rig.data_dir) if one.severity > Severity.NOTE]


@pytest.mark.slow
@pytest.mark.parametrize("then", ["restart", "crash"])
def test_rows_that_were_given_back_are_passed_over_by_whoever_comes_later(rigs, then):
    """A new subscription from the beginning and one that seeks back get the messages that are left, and their totals
    add up.
    """
    rig, found, lone = with_lone_ones(rigs, 700, 2_500, 2_600)
    assert taken_by_index(found) <= 64 << 10
    positions = [(found.ledger_id, entry) for entry in (1_500, 2_501, 4_000)]
    rig = getattr(rigs, then)(rig)
    consumer, late = rig.consumer("t", subType=SubType.Shared), rig.consumer("t", "late", subType=SubType.Shared)
    partition = rig.partition("t")
    assert partition.find(found.ledger_id).messages_in(0, found.entries) == partition.next_message == 5_003
    for position in positions:      # between rows that were given back
        cursor = partition.new_cursor(99, position, is_durable=False)
        assert cursor.since + cursor.totals[SKIPPED] + cursor.backlog_messages(partition.ledgers) == 5_003
    assert rig.receive(late, 10_000) == rig.receive(consumer, 10_000) == []
    told = rig.asked("why", "t", subscription="late")["messages"]
    assert (told["published"], told["backlog"]) == (5_003, 3) and sum(told.values()) == 2 * 5_003
    assert problems(rig) == []
    answers = rig.run(after_ms=3_601_000)
    assert dict(rig.delivered(answers, consumer)) == dict(rig.delivered(answers, late)) == lone
    rig.run(rig.acks(consumer, *lone), rig.acks(late, *lone), after_ms=SECOND)
    assert not found.index_path.is_relative_to(rig.data_dir) or not found.index_path.exists()
    assert rig.owner.counters.read()["entries_lost"] == 0


@pytest.mark.slow
def test_a_damaged_row_beside_rows_that_were_given_back_costs_nothing(rigs):
    """The rows of messages that are left are read, because the blocks on either side of a hole are whole."""
    rig, found, lone = with_lone_ones(rigs, 2_500)
    rig.close()
    content = found.index_path.read_bytes()
    rows = np.frombuffer(content, format.INDEX_ROW, found.entries, format.HEADER_SIZE)
    [*_, last] = edges = np.flatnonzero(np.diff(rows["size"] > 0))
    assert len(edges) == 4 and last < found.entries - 1      # the last block, whose rows may be few, stays
    for number in (edges[1] + 1, 2_500, edges[2]):
        with found.index_path.open("r+b") as file:
            file.seek(format.HEADER_SIZE + int(number) * format.INDEX_ROW.itemsize + 8)
            file.write(b"damaged.")
    again = Rig(rig.data_dir, now_ms=rig.now_ms, **rig.settings)
    consumer = again.consumer("t", subType=SubType.Shared)
    assert again.receive(consumer) == []
    assert dict(again.delivered(again.run(after_ms=3_601_000), consumer)) == lone
    again.close()


def test_rows_that_are_zeros_of_entries_that_are_needed_are_lost_and_told(rigs, capfd):
    """Zeros in place of rows that nobody punched mean a damaged disk: the entries are lost, and that is reported."""
    rig = rigs()
    positions = rig.publish(rig.producer("t"), *[b"%04d" % number * 100 for number in range(300)])
    rig.consumer("t", subType=SubType.Shared)
    found = rig.partition("t").open_ledger
    rig.owner.topics.roll(rig.partition("t"))
    begin, end = int(found.column("offset")[127]), int(found.column("offset")[191])
    rig = rigs.restart(rig)
    for path, at, size in ((found.index_path, 8_192, 4_096), (found.ledger_path, begin, end - begin)):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes(size))
    assert any("64 entries are lost" in one for one in problems(rig))
    again = rigs.restart(rig)
    consumer = again.consumer("t", subType=SubType.Shared)
    assert [position for position, _ in again.receive(consumer, 1_000)] == positions[:127] + positions[191:]
    assert again.owner.counters.read()["entries_lost"] == 64
    assert again.asked("why", "t", subscription="sub")["messages"] == {
        "published": 300, "acknowledged": 0, "expired": 0, "skipped": 64, "evicted": 0, "backlog": 236}


@pytest.mark.slow
def test_an_index_that_was_being_made_anew_when_the_process_was_killed_is_taken_away(rigs):
    rig, found, lone = with_lone_ones(rigs, 2_500)
    fresh = found.index_path.with_suffix(".new")
    fresh.write_bytes(b"half")
    rig = rigs.restart(rig)
    consumer = rig.consumer("t", subType=SubType.Shared)
    assert rig.receive(consumer) == [] and not fresh.exists()
    assert dict(rig.delivered(rig.run(after_ms=3_601_000), consumer)) == lone


@pytest.mark.slow
def test_of_entries_that_are_there_again_after_a_power_cut_rows_are_made_anew(rigs):
    """After a power cut the index has its hole and the ledger has not: the rows are made anew from the entries."""
    rig, found, lone = with_lone_ones(rigs, 2_500)
    offset = int(found.column("offset")[1_000])
    rig.close()
    with found.ledger_path.open("r+b") as file:
        file.seek(offset)
        file.write(b"what was there")
    again = Rig(rig.data_dir, now_ms=rig.now_ms, **rig.settings)
    consumer = again.consumer("t", subType=SubType.Shared)
    assert again.receive(consumer) == []
    assert again.asked("why", "t", subscription="sub")["messages"]["backlog"] == 1
    assert dict(again.delivered(again.run(after_ms=3_601_000), consumer)) == lone
    again.close()


@pytest.mark.slow
def test_jobs_pass_over_rows_that_were_given_back(rigs):
    rig, found, _lone = with_lone_ones(rigs, 2_500)
    told, seen = [], []
    rig.close()
    partition_id = found.partition_id
    for stretch in confirmed.stretches(rig.data_dir, partition_id, size_max=64 << 10):
        for batch in reading.batches(rig.data_dir, stretch, ("entry_id",), told.append):
            seen += batch.column(0).to_pylist()
    assert told == [] and 2_500 in seen and len(seen) < 100


@pytest.mark.slow
def test_a_dump_says_which_rows_were_given_back(rigs):
    rig, found, _ = with_lone_ones(rigs, 2_500)
    rig.close()
    lines = list(dump.dump(found.index_path, 1_000, 1_002))
    assert ["damaged" in line for line in lines] == [False] * 3 and "its row was given back" in lines[1]["checksum"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_figures_stay_right_whatever_rows_are_given_back(rigs, seed):
    """Batches of several sizes are acknowledged in any order, with restarts and crashes in between: totals stay right.
    """
    random_ = random.Random(seed)
    rig = rigs(journal_segment_bytes=8 << 20, roll_over_entries=6_000)
    sizes, positions, producer, most = {}, [], None, 0
    for _ in range(12):
        if producer is None:
            producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
        for _ in range(3):
            count = random_.choice((1, 3, 10))
            later = {"deliver_at_time": rig.now_ms + 86_400_000 if random_.random() < 0.2 else 0}
            messages = [(producer, b"%020d" % number * 10, {"batch": count} | later) for number in range(500)]
            fresh = rig.run(rig.sends(*messages)).positions
            sizes |= dict.fromkeys(fresh, count)
            positions += fresh
        for _ in range(random_.randrange(3)):
            start, reach = random_.randrange(len(positions)), random_.choice((500, 2_000, 8_000))
            if some := positions[start:start + reach]:
                rig.run(rig.acks(consumer, *some))
                positions[start:start + reach] = []
        for _ in range(4):
            rig.run(after_ms=SECOND)
        told = rig.asked("why", "t", subscription="sub")["messages"]
        assert (told["backlog"], told["published"]) == (sum(sizes[one] for one in positions), sum(sizes.values()))
        found = rig.partition("t")
        messages = sum(one.messages_in(0, one.entries) for one in found.ledgers)
        assert messages + found.ledgers[0].first_message == found.next_message
        for one in found.ledgers:
            columns = [one.column(name)[:one.entries].astype(np.int64)
                       for name in ("offset", "size", "message_index", "messages")]
            assert all(np.array_equal(at[1:], at[:-1] + size[:-1]) for at, size in (columns[:2], columns[2:]))
        most = max(most, sum(one.has_holes for one in found.ledgers))
        if random_.random() < 0.3:
            rig, producer = (rigs.crash if random_.random() < 0.5 else rigs.restart)(rig), None
            assert problems(rig) == []
    assert most


@pytest.mark.slow
def test_rows_that_were_given_back_take_little_memory(rigs, monkeypatch):
    """Only some of many ledgers have their given back rows filled in in memory at a time."""
    monkeypatch.setattr(ledger, "_FILLED_MAX", 100_000)
    rig, one, _ = with_lone_ones(rigs, 2_500)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    rig.run(rig.flow(consumer, 1 << 20))
    acked = [position for _ in range(10) for position in rig.publish(producer, *[bytes(300)] * 500)]
    two = rig.partition("t").open_ledger
    rig.run(rig.sends((producer, b"lone", {"deliver_at_time": rig.now_ms + 3_600_000})))
    rig.owner.topics.roll(rig.partition("t"))
    rig.run(rig.acks(consumer, *acked), after_ms=SECOND)
    rig.run(after_ms=SECOND)
    assert taken_by_index(two) <= 32 << 10
    for found, other in ((one, two), (two, one), (one, two)):
        assert int(found.messages[:found.entries].sum()) == found.entries
        assert found._index is not None and other._index is None


def test_rows_that_were_given_back_are_not_filled_in_with_every_tick(rigs, monkeypatch):
    """An index is made anew when it becomes half as large.  In between, its rows stay in memory for who reads them."""
    fill, filled_in = index_repair.fill_holes, []
    monkeypatch.setattr(index_repair, "fill_holes", lambda rows: filled_in.append(fill(rows)) or filled_in[-1])
    rig = rigs(roll_over_entries=10_000)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    positions = [position for _ in range(21) for position in rig.publish(producer, *[b"x" * 240] * 500)]
    rig.run(rig.flow(consumer, 1 << 20))
    for first in range(0, 9_500, 250):
        rig.run(rig.acks(consumer, *positions[first:first + 250]), after_ms=SECOND)
        rig.run(after_ms=SECOND)
        assert rig.asked("why", "t", subscription="sub")["messages"]["backlog"] == len(positions) - first - 250
    assert 1 <= len(filled_in) <= 6


def test_little_is_not_worth_the_trouble(rigs):
    rig, _, consumer, positions = filled(rigs, 100)
    before = used(rig)
    rig.run(rig.acks(consumer, *positions[10:15]))
    rig.run(after_ms=SECOND)
    assert used(rig) == before


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_not_acknowledged_is_whole(rigs, seed):
    """Two subscriptions acknowledge in many rounds, in order and not, with restarts and crashes: all other messages
    stay whole.
    """
    random_ = random.Random(seed)
    size = random_.choice((600, 5_000, 20_000))
    rig = rigs(journal_segment_bytes=8 << 20, roll_over_entries=random_.choice((70, 10_000)))
    numbers, left = {}, {"one": set(), "two": set()}
    producer, consumers = None, {}
    for step in range(24):
        if producer is None:
            producer = rig.producer("t")
            consumers = {name: rig.consumer("t", name, subType=SubType.Shared) for name in left}
        for position in rig.publish(producer,
                                    *[b"%06d" % number * (size // 6) for number in range(40 * step, 40 * step + 40)]):
            numbers[position] = len(numbers)
            for positions in left.values():
                positions.add(position)
        for name, positions in left.items():
            count = random_.randrange(len(positions))
            some = sorted(positions)[:count] if random_.random() < 0.3 else random_.sample(sorted(positions), count)
            if some:
                rig.run(rig.acks(consumers[name], *some))
                positions -= set(some)
        rig.run(after_ms=SECOND)
        if random_.random() < 0.2:
            rig, producer = (rigs.crash if random_.random() < 0.5 else rigs.restart)(rig), None
    for name, positions in left.items():
        consumer = rig.consumer("t", name, subType=SubType.Shared)
        assert positions == {position for position, _ in rig.receive(consumer, 100_000)}
    assert all(is_whole(rig, position, numbers[position], size) for position in left["one"] | left["two"])


@pytest.mark.slow
def test_what_a_backup_has_too_stays_as_it_is_also_over_a_crash(rigs, tmp_path):
    """A ledger that a backup shares gets no hole. After a crash the journal does not write entries back into a hole.
    When the backup is gone, the space is given back.
    """
    rig, _, consumer, positions = filled(rigs, 1_000)
    rig.run(rig.acks(consumer, *positions[1:300]))
    rig.run(after_ms=SECOND)
    [ledger] = rig.partition("t").ledgers
    before, backup = used(rig), tmp_path / "backup"
    assert before < ledger.size * 0.8
    backup.hardlink_to(ledger.ledger_path)
    content = backup.read_bytes()
    rig.run(rig.acks(consumer, *positions[301:900]))
    rig.run(after_ms=SECOND)
    assert used(rig) == before and backup.read_bytes() == content
    rig.settle()
    folder = copy_of(rig.data_dir, tmp_path / "data")      # as a kill leaves the file
    backup.unlink()
    backup.hardlink_to(folder / ledger.ledger_path.relative_to(rig.data_dir))
    again = Rig(folder, now_ms=rig.now_ms, **rig.settings)
    assert again.recovered and backup.read_bytes() == content
    consumer = again.consumer("t", subType=SubType.Shared)
    received = [position for position, _ in again.receive(consumer, 10_000)]
    assert received == [positions[0], positions[300], *positions[900:]]
    before = used(again)
    backup.unlink()
    again.run(again.acks(consumer, *positions[900:910]))
    again.run(after_ms=SECOND)
    assert used(again) < before * 0.5
    again.close()
