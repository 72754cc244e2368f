"""Life of ledgers: they roll over, and their space is freed when no subscription needs them."""
import pytest

from geminga.storage.owner.owner_pass import TICK_MS

MIB = 1 << 20


# -- roll-over ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("options", "wait_ms"), [
    ({"roll_over_bytes": 1_000}, 0), ({"roll_over_entries": 4}, 0), ({"roll_over_age_s": 60}, 61_000)], ids=["size",
    "count", "age"])
def test_a_ledger_that_is_full_or_old_is_followed_by_another(rigs, options, wait_ms):
    """After a roll-over entry ids begin at 0 in a higher ledger, and reading is one sequence, also after a restart."""
    rig = rigs(**options)
    producer, _ = rig.producer("a"), rig.consumer("a")
    positions = []
    for number in range(12):
        rig.now_ms += wait_ms if number in (4, 8) else 0
        positions += rig.publish(producer, b"%03d" % number * 70)
    ledgers = rig.files("a")
    assert len(ledgers) == 3
    assert positions == [(ledger_id, entry) for ledger_id in ledgers for entry in range(4)]
    expected = list(zip(positions, [b"%03d" % number * 70 for number in range(12)], strict=True))
    assert rig.everything("a") == expected
    assert rigs.restart(rig).everything("a") == expected


def test_an_entry_larger_than_a_ledger_has_one_of_its_own(rigs):
    rig = rigs(roll_over_bytes=1_000)
    producer, _ = rig.producer("a"), rig.consumer("a")
    for payload in (b"x", b"y" * 5_000, b"z"):
        rig.publish(producer, payload)
    assert [payload for _, payload in rig.everything("a")] == [b"x", b"y" * 5_000, b"z"]
    assert len(rig.files("a")) == 3


def test_an_empty_ledger_does_not_grow_old(rigs):
    rig = rigs(roll_over_age_s=60)
    producer, _ = rig.producer("a"), rig.consumer("a")
    rig.now_ms += 1_000_000
    rig.publish(producer, b"x")
    assert len(rig.files("a")) == 1


# -- giving space back -------------------------------------------------------------------------------------------------

def filled(rigs, *subscriptions):
    """(rig, positions, consumers): three ledgers of two entries each, and a consumer of each subscription."""
    rig = rigs(roll_over_entries=2)
    producer = rig.producer("a")
    consumers = [rig.consumer("a", name) for name in subscriptions]
    positions = [position for number in range(6) for position in rig.publish(producer, b"%d" % number)]
    return rig, positions, consumers


def test_fully_acknowledged_ledgers_are_deleted_and_workers_told(rigs):
    """Files of an acknowledged ledger are gone when workers are told to unmap it; the open ledger stays."""
    rig, positions, [consumer] = filled(rigs, "sub")
    assert rig.run(rig.acks(consumer, positions[3])).forgotten == []          # leaves a hole before it, and a bitmap
    answers = rig.run(rig.acks(consumer, *positions[:3]))
    gone = [positions[0][0], positions[2][0]]
    assert answers.forgotten == [(1, ledger_id) for ledger_id in gone]
    assert rig.files("a") == rig.files("a", ".index") == [positions[4][0]]
    assert rig.files("a", ".acks") == []
    assert [position for position, _ in rig.everything("a")] == positions[4:]


def test_a_second_subscription_keeps_the_ledgers_it_needs(rigs):
    rig, positions, [one, other] = filled(rigs, "one", "other")
    rig.run(rig.acks(one, positions[-1], cumulative=True))
    assert len(rig.files("a")) == 3
    rig.run(rig.acks(other, positions[2], cumulative=True))
    assert len(rig.files("a")) == 2
    rig.run(rig.command("unsubscribe", consumer_id=other.object_id, request_id=1))
    assert len(rig.files("a")) == 1


def test_a_deletion_that_was_cut_short_is_completed(rigs, monkeypatch):
    """The journal knows of a deletion before the first file goes, so the next start removes the rest."""
    rig, positions, [consumer] = filled(rigs, "sub")
    victim = rig.partition("a").ledgers[0]
    real = type(victim.ledger_path).unlink
    monkeypatch.setattr(
        type(victim.ledger_path), "unlink", lambda path, **_: real(path) if path.suffix == ".ledger" else None
    )
    rig.run(rig.acks(consumer, *positions[:2]))
    monkeypatch.undo()
    assert victim.index_path.exists() and not victim.ledger_path.exists()
    again = rigs.crash(rig)
    assert [position for position, _ in again.everything("a")] == positions[2:]
    assert again.files("a", ".index") == again.files("a", ".ledger") == [positions[2][0], positions[4][0]]


def test_a_drained_idle_partition_gives_its_space_back(rig):
    """A second after everything is acknowledged, a small new ledger replaces the large open one."""
    producer, consumer = rig.producer("a"), rig.consumer("a")
    positions = rig.publish(producer, *[b"x" * 100_000] * 5) + rig.publish(producer, *[b"x" * 100_000] * 7)
    rig.run(rig.acks(consumer, positions[-2], cumulative=True))
    rig.run(after_ms=3 * TICK_MS)
    assert rig.files("a") == [positions[0][0]]                # one entry is not acknowledged
    rig.run(rig.acks(consumer, positions[-1]))
    answers = rig.run(after_ms=TICK_MS)
    assert answers.forgotten == [(1, positions[0][0])]
    [ledger_id] = rig.files("a")
    assert ledger_id > positions[0][0]
    assert sum(path.stat().st_blocks * 512 for path in rig.partition("a").folder.iterdir()) < 2 * MIB
    assert rig.publish(producer, b"y") == [(ledger_id, 0)]
    assert rig.receive(consumer) == [((ledger_id, 0), b"y")]


def test_what_nobody_subscribes_to_waits_for_who_comes_next(rig):
    """Entries of a topic without subscriptions stay as long as their ledger is open."""
    producer = rig.producer("a")
    positions = rig.publish(producer, *[b"x" * 100_000] * 6) + rig.publish(producer, *[b"x" * 100_000] * 6)
    rig.run(after_ms=3 * TICK_MS)
    assert [position for position, _ in rig.receive(rig.consumer("a"))] == positions


def test_a_partition_in_use_keeps_its_ledger(rig):
    """A partition that is published to keeps its open ledger, because a new one would be filled at once."""
    producer, consumer = rig.producer("a"), rig.consumer("a")
    for _ in range(5):
        positions = rig.publish(producer, *[b"x" * 100_000] * 9)
        rig.run(rig.acks(consumer, positions[-1], cumulative=True), after_ms=TICK_MS // 2)
    assert rig.files("a") == [positions[0][0]]


def test_an_empty_ledger_takes_what_comes_however_old_it_is(rigs):
    """An empty ledger is not rolled over for its age: its successor would be as old when the next message comes."""
    rig = rigs(roll_over_age_s=1)
    producer = rig.producer("a")
    [before] = rig.files("a")
    rig.run(after_ms=5_000)
    assert rig.publish(producer, b"a") == [(before, 0)]
    assert rig.files("a") == [before]
