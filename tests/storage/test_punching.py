"""Space within ledgers: what everybody has acknowledged is given back, and nothing else; nobody gets it any more."""
import random

import pytest

from geminga.storage import format
from geminga.storage.cursor import SKIPPED
from geminga.storage.findings import Severity
from geminga.storage.punching import NOTHING
from geminga.storage.subscription import SubType
from geminga.storage.verify import walk

from .files import read_mapped
from .rig import Rig, copy_of, payload_of

SECOND = 1_000


def used(rig):
    """Bytes that the ledgers' entries take on disk: without what was allocated ahead, which sealed ones have given back."""
    files = [(ledger, ledger.ledger_path.stat()) for ledger in rig.partition("t").ledgers]
    return sum(found.st_blocks * 512 - (0 if ledger.is_sealed else found.st_size - ledger.size) for ledger, found in files)


def filled(rigs, entries, size=10_000, **options):
    rig = rigs(journal_segment_bytes=8 << 20, **options)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    positions = []
    for start in range(0, entries, 50):
        positions += rig.publish(producer, *[b"%06d" % number * (size // 6) for number in range(start, min(start + 50, entries))])
    return rig, producer, consumer, positions


def bytes_of(rig, position):
    found = rig.partition("t")
    [entry] = read_mapped(format.partition_folder(rig.data_dir, found.partition_id), *position, 1)
    return bytes(entry)


def is_whole(rig, position, number, size=10_000):
    return payload_of(bytes_of(rig, position)) == b"%06d" % number * (size // 6)


def test_what_lies_between_messages_that_are_needed_is_given_back(rigs):
    """Nine of ten are acknowledged: most of the space goes, every message that is left stays whole, over a crash too."""
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


def test_every_message_that_is_gone_shows_it_in_its_first_bytes(rigs):
    """So that a worker, which may still have it before it, does not give half of it to a client."""
    rig, _, consumer, positions = filled(rigs, 300, size=1_700)
    rig.run(rig.acks(consumer, *(position for number, position in enumerate(positions) if number % 50)))
    rig.run(after_ms=SECOND)
    for number, position in enumerate(positions):
        assert bytes_of(rig, position).startswith(NOTHING) or is_whole(rig, position, number, 1_700)
    assert sum(bytes_of(rig, position).startswith(NOTHING) for position in positions) > 250


def test_a_new_subscription_passes_over_what_is_gone(rigs):
    rig, _, consumer, positions = filled(rigs, 100)
    rig.run(rig.acks(consumer, *positions[10:90]))
    rig.run(after_ms=SECOND)
    rig = rigs.restart(rig)
    late = rig.consumer("t", "late")
    got = [position for position, _ in rig.receive(late)]
    assert got[:10] == positions[:10] and got[-10:] == positions[90:]
    assert len(got) < 25      # what shares its blocks with neighbours stays
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
    """Where space was given back it stays given back, and what is published later is whole."""
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


def test_a_lone_message_that_waits_for_its_time_keeps_a_few_blocks_of_its_ledger(rigs):
    """F175: neither what lies around it nor what was allocated ahead stays; it comes in its time, and the folder is whole."""
    rig = rigs()
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    rig.run(rig.flow(consumer, 1 << 20))
    acked = []
    for number in range(10):
        if number == 5:
            [lone] = rig.run(rig.sends((producer, b"lone", {"deliver_at_time": rig.now_ms + 3_600_000}))).positions
        acked += rig.publish(producer, *[bytes(1_000)] * 500)
    found = rig.partition("t").open_ledger
    rig.owner.roll(rig.partition("t"))
    rig.run(rig.acks(consumer, *acked), after_ms=SECOND)
    for _ in range(3):
        rig.run(after_ms=SECOND)
    assert found.size > 5_000_000 and found.ledger_path.stat().st_blocks * 512 <= 64 << 10
    assert found.index_path.stat().st_blocks * 512 <= found.entries * format.INDEX_ROW.itemsize + 8192
    assert rig.asked("why", "t", subscription="sub")["messages"] == {
        "published": 5001, "acknowledged": 5000, "expired": 0, "skipped": 0, "evicted": 0, "backlog": 1}
    again = rigs.crash(rig)
    assert [str(one) for one in walk(again.data_dir) if one.severity > Severity.NOTE] == []
    waiting = again.consumer("t", subType=SubType.Shared)
    assert again.receive(waiting) == []
    answers = again.run(after_ms=3_601_000)
    assert again.delivered(answers, waiting) == [(lone, b"lone")]


def test_little_is_not_worth_the_trouble(rigs):
    rig, _, consumer, positions = filled(rigs, 100)
    before = used(rig)
    rig.run(rig.acks(consumer, *positions[10:15]))
    rig.run(after_ms=SECOND)
    assert used(rig) == before


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_not_acknowledged_is_whole(rigs, seed):
    """After many rounds of publishing and acknowledging, by two subscriptions, in order and not; over restarts and crashes."""
    random_ = random.Random(seed)
    size = random_.choice((600, 5_000, 20_000))
    rig = rigs(journal_segment_bytes=8 << 20, roll_over_entries=random_.choice((70, 10_000)))
    numbers, left = {}, {"one": set(), "two": set()}
    producer, consumers = None, {}
    for step in range(24):
        if producer is None:
            producer = rig.producer("t")
            consumers = {name: rig.consumer("t", name, subType=SubType.Shared) for name in left}
        for position in rig.publish(producer, *[b"%06d" % number * (size // 6) for number in range(40 * step, 40 * step + 40)]):
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
        assert positions == {position for position, _ in rig.receive(rig.consumer("t", name, subType=SubType.Shared), 100_000)}
    assert all(is_whole(rig, position, numbers[position], size) for position in left["one"] | left["two"])


def test_what_a_backup_has_too_stays_as_it_is_also_over_a_crash(rigs, tmp_path):
    """Neither is it given back, nor does what the journal has come back where there was a hole before.  Later it is given back."""
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
    folder = copy_of(rig.data_dir, tmp_path / "data")      # as a kill leaves it
    backup.unlink()
    backup.hardlink_to(folder / ledger.ledger_path.relative_to(rig.data_dir))
    again = Rig(folder, now_ms=rig.now_ms, **rig.settings)
    assert again.recovered and backup.read_bytes() == content
    consumer = again.consumer("t", subType=SubType.Shared)
    assert [position for position, _ in again.receive(consumer, 10_000)] == [positions[0], positions[300], *positions[900:]]
    before = used(again)
    backup.unlink()
    again.run(again.acks(consumer, *positions[900:910]))
    again.run(after_ms=SECOND)
    assert used(again) < before * 0.5
    again.close()
