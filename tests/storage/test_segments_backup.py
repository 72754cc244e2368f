"""Backups while segments are split, and while producers count anew behind a split."""
import contextlib

import pytest

from geminga.storage.offline import backup, restore
from geminga.storage.offline.findings import Severity
from geminga.storage.offline.verify import walk

from .rig import Rig
from .test_backup import ask
from .test_layout_change_steps import (
    TOPIC,
    begin,
    carry_out,
    check,
    enable_deduplication,
    filled,
    segments,
    stores,
)
from .test_recounting import COUNT, attached, counts, split


@pytest.fixture
def restored(tmp_path):
    """restored(rig, before, after): an owner of a restored backup; called before and behind the cut of the owner."""
    made = []

    def restored(rig, before=lambda: None, after=lambda: None):
        def began():
            ask(rig, "backup-begin")
            before()

        def cut():
            rig.run()
            ask(rig, "backup-hold")
            found = [ask(rig, "backup-cut")]
            ask(rig, "backup-hold", is_over=True)
            after()
            return found

        backup.make(rig.data_dir, tmp_path / "backups", began, cut)
        folder = tmp_path / f"restored-{len(made)}"
        restore.restore(backup.backups(tmp_path / "backups")[-1], folder)
        assert [str(found) for found in walk(folder) if found.severity > Severity.NOTE] == []
        made.append(Rig(folder, now_ms=rig.now_ms, **rig.settings))
        return made[-1]
    yield restored
    for rig in made:
        rig.close()


def go_on(rig):
    """Carry out a change until it has ended or is refused, as the broker does, which tries again."""
    with contextlib.suppress(KeyError):      # there is no answer but an error
        carry_out(rig)


@pytest.mark.parametrize("kind", ["split", "merge", "rebucket"])
@pytest.mark.parametrize("steps", [None, *range(8), 40])
def test_a_change_around_the_cut_is_whole_in_a_restored_copy(rigs, restored, kind, steps):
    """Its children have all subscriptions; steps: those made before the cut, None: it begins behind."""
    rig = filled(rigs())

    def before():
        if steps is not None:
            begin(rig, kind)
            carry_out(rig, steps)

    def after():
        if steps is None:
            begin(rig, kind)
        go_on(rig)

    copy = restored(rig, before, after)
    assert carry_out(copy)
    check(copy, kind)
    assert carry_out(rig)
    check(rig, kind)


@pytest.fixture
def rig(rigs):
    made = rigs()
    made.owner.catalogue.scalable_topics.create(TOPIC, 2)
    enable_deduplication(made)
    return made


@pytest.mark.parametrize("steps", range(8))
def test_sequence_ids_of_a_change_around_the_cut_are_in_a_restored_copy(rig, restored, steps):
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))

    def before():
        begin(rig, "split")
        carry_out(rig, steps)

    copy = restored(rig, before, lambda: go_on(rig))
    assert carry_out(copy)
    for number in (2, 3):
        assert not any(stores(copy, attached(copy, number), *range(COUNT)))


@pytest.mark.parametrize("others", [0, 3])
def test_a_producer_that_counts_anew_behind_the_cut_does_so_in_a_restored_copy(rig, restored, others):
    """The catalogue knows of it, and the partition does not; others: messages of another producer before."""
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    child = segments(rig)[2]

    def after():
        rig.publish(rig.producer(child, producer_name="other-seg-2"), b"1", b"2")
        assert all(counts(rig, attached(rig, 2), *range(COUNT)))

    copy = restored(rig, after=after)
    if others:
        copy.publish(copy.producer(child, producer_name="other-seg-2"), *[b"more"] * others)
    producer = attached(copy, 2)
    assert all(counts(copy, producer, *range(COUNT)))
    assert not any(counts(copy, producer, *range(COUNT)))


def test_a_producer_that_has_counted_anew_before_the_cut_does_so_in_a_restored_copy(rig, restored):
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    first = attached(rig, 2)
    copy = restored(rig, before=lambda: counts(rig, first, *range(5)))
    again = attached(copy, 2, connection=5)
    assert not any(counts(copy, again, *range(5)))
    assert all(counts(copy, again, *range(5, COUNT)))
