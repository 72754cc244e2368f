"""The open ledger keeps acknowledged entries for seeks and new readers, until it is sealed or disk space is short."""
from dataclasses import replace
from types import SimpleNamespace

import pytest

from geminga.storage.open_topics import disk_space
from geminga.storage.upkeep import hole_punching

from .test_punching import SECOND, filled, is_whole, used

DISK, KEPT_S = 1 << 40, 600
EARLIEST = {"ledgerId": (1 << 64) - 1, "entryId": (1 << 64) - 1}
SHORT = 4 * (384 << 20) - 1      # free bytes, with the default of disk_accept_above_bytes


@pytest.fixture
def room(monkeypatch):
    """Return room(bytes), which sets how much is free from now on."""
    def room(free):
        monkeypatch.setattr(disk_space.os, "statvfs",
                            lambda path: SimpleNamespace(f_blocks=DISK, f_frsize=1, f_bavail=free))
    room(DISK)
    return room


def consumed(rigs, entries=200, **options):
    """Publish entries of 10,000 bytes, acknowledge all, and let a tick pass."""
    rig, producer, consumer, positions = filled(rigs, entries, **{"keep_acknowledged_s": KEPT_S} | options)
    rig.receive(consumer, entries)
    rig.run(rig.acks(consumer, *positions))
    rig.run(after_ms=SECOND)
    return rig, producer, consumer, positions


def sought(rig, consumer):
    """Return the positions that a consumer gets after a seek to the earliest message."""
    rig.run(rig.command("seek", consumer_id=consumer.object_id, request_id=5, message_id=EARLIEST))
    again = rig.consumer("t", connection=2, subType=1)
    return [position for position, _ in rig.receive(again, 10_000)]


def backlog(rig):
    stats = rig.shown("stats", "t", earliest=False, publishers=False, consumers=False)
    return stats["subscriptions"]["sub"]["msgBacklog"]


def test_acknowledged_messages_of_the_open_ledger_come_again_after_a_seek(rigs, room):
    """They do after a crash too, count as backlog, and come to a reader that is opened late."""
    rig, _, _, positions = consumed(rigs)
    assert backlog(rig) == 0 and used(rig) > 2_000_000
    rig = rigs.crash(rig)
    rig.run(after_ms=SECOND)
    assert [position for position, _ in rig.everything("t")] == positions
    assert sought(rig, rig.consumer("t", subType=1)) == positions and backlog(rig) == len(positions)
    assert all(is_whole(rig, position, number) for number, position in enumerate(positions))


def test_while_the_disk_is_short_they_are_freed(rigs, room):
    rig, producer, consumer, _ = consumed(rigs, 100)
    room(SHORT)
    rig.run(after_ms=SECOND)
    assert used(rig) < 50_000 and rig.everything("t") == []
    room(SHORT + 1)
    rig.run(after_ms=SECOND)
    later = rig.publish(producer, *[bytes(10_000)] * 50)
    rig.receive(consumer)
    rig.run(rig.acks(consumer, *later))
    rig.run(after_ms=SECOND)
    assert [position for position, _ in rig.everything("t")] == later


def test_the_largest_ledgers_are_freed_first(rigs, room, monkeypatch):
    monkeypatch.setattr(hole_punching, "_SHORT_MAX", 1)
    rig, *_ = consumed(rigs, 50)
    producer, consumer = rig.producer("u"), rig.consumer("u")
    rig.run(rig.acks(consumer, *rig.publish(producer, *[bytes(10_000)] * 20)))
    rig.run(after_ms=SECOND)
    room(SHORT)
    rig.run(after_ms=SECOND)
    assert rig.everything("t") == [] and len(rig.everything("u")) == 20
    rig.run(after_ms=SECOND)
    assert rig.everything("u") == []


def test_an_idle_ledger_is_sealed_and_deleted_after_the_time(rigs, room):
    rig, *_ = consumed(rigs)
    [ledger] = rig.partition("t").ledgers
    rig.run(after_ms=(KEPT_S - 2) * SECOND)
    assert rig.partition("t").ledgers == [ledger]
    for _ in range(3):
        rig.run(after_ms=SECOND)
    assert ledger not in rig.partition("t").ledgers and rig.everything("t") == []


def test_what_was_acknowledged_in_a_ledger_is_freed_when_it_is_sealed(rigs, room):
    rig, _, consumer, positions = filled(rigs, 100, keep_acknowledged_s=KEPT_S)
    before = used(rig)
    rig.run(rig.acks(consumer, *positions[1:]))
    rig.run(after_ms=SECOND)
    assert used(rig) == before
    rig.owner.topics.roll(rig.partition("t"))
    rig.run(after_ms=SECOND)
    assert used(rig) < 50_000 and is_whole(rig, positions[0], 0)


def test_an_owner_that_is_told_to_keep_nothing_frees_what_it_kept(rigs, room):
    rig, *_ = consumed(rigs, 100)
    rig.owner.configure(replace(rig.options, keep_acknowledged_s=0))
    rig.run(after_ms=SECOND)
    assert used(rig) < 50_000
