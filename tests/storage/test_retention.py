"""Retention: acknowledged entries are kept up to the age and the size that policies say. Then their ledgers are
deleted.
"""
import pytest

from geminga.storage import format

DAY_S = 24 * 3600


def filled(rigs, ledgers=4, **options):
    """Publish entries a minute apart into `ledgers` ledgers of some 2,000 bytes. Return (rig, positions, consumer)."""
    rig = rigs(roll_over_entries=2, **options)
    producer, consumer = rig.producer("t"), rig.consumer("t")
    positions = []
    for _ in range(2 * ledgers):
        positions += rig.publish(producer, b"x" * 1_000)
        rig.run(after_ms=60_000)
    return rig, positions, consumer


def tick(rig, ms=0):
    """Let time pass, then ten seconds more, so that an idle owner looks at its ledgers."""
    rig.run(after_ms=ms)
    rig.run(after_ms=10_000)


def test_without_retention_nothing_that_is_acknowledged_is_kept(rigs):
    rig, positions, consumer = filled(rigs)
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    assert len(rig.files("t")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("options", "kept"), [
    ({"retention_s": -1, "retention_bytes": -1}, 4),
    ({"retention_s": DAY_S, "retention_bytes": -1}, 4),
    # The newest entry of the first ledger is 7 minutes old, that of the next 5 minutes.
    ({"retention_s": 330, "retention_bytes": -1}, 3),
    ({"retention_s": -1, "retention_bytes": 1 << 20}, 4),
    # Without the first ledger 6,000 bytes are left, without the second 4,000.
    ({"retention_s": -1, "retention_bytes": 3_000}, 2),
    ({"retention_s": DAY_S, "retention_bytes": 3_000}, 2),
    ({"retention_s": 330, "retention_bytes": 1 << 20}, 3),
    ({"retention_s": DAY_S, "retention_bytes": 0}, 1),
    ({"retention_s": 0, "retention_bytes": -1}, 1),
])
def test_a_ledger_goes_when_it_is_too_old_or_there_is_enough_without_it(rigs, options, kept):
    """Ledgers are deleted oldest first while they are too old or the size is exceeded. The first one kept, or not
    acknowledged, keeps all behind it.
    """
    rig, positions, consumer = filled(rigs, **options)
    ledgers = rig.files("t")
    tick(rig)
    assert rig.files("t") == ledgers
    rig.now_ms -= 20_000
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    assert len(rig.files("t")) == kept
    assert len(rig.everything("t")) == 2 * kept


@pytest.mark.parametrize(("more", "kept"), [(0, 2), (1, 3)])
def test_as_many_bytes_as_were_asked_for_are_enough(rigs, more, kept):
    sizes = [found.size - format.HEADER_SIZE for found in filled(rigs)[0].partition("t").ledgers]
    rig, positions, consumer = filled(rigs, retention_s=-1, retention_bytes=sum(sizes[2:]) + more)
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    assert len(rig.files("t")) == kept


def test_what_is_kept_can_be_read_again_and_what_is_too_old_goes_by_itself(rigs):
    rig, positions, consumer = filled(rigs, retention_s=DAY_S, retention_bytes=-1)
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    after = rigs.restart(rig)
    assert [position for position, _ in after.everything("t")] == positions
    tick(after, (DAY_S - 8 * 60) * 1000)
    assert [position for position, _ in after.everything("t")] == positions
    tick(after, 2 * 60_000)
    assert [position for position, _ in after.everything("t")] == positions[2:]
    tick(after, 10 * 60_000)
    assert after.everything("t") == []      # the open ledger too, as it was drained
    assert len(after.files("t")) == 1


def test_an_open_ledger_that_somebody_needs_stays(rigs):
    rig, positions, consumer = filled(rigs, retention_s=60, retention_bytes=-1)
    rig.run(rig.acks(consumer, positions[-2], cumulative=True))
    tick(rig, DAY_S * 1000)
    assert [position for position, _ in rig.everything("t")] == positions[-2:]
    rig.run(rig.acks(consumer, positions[-1]))
    tick(rig)
    assert rig.everything("t") == []


def test_a_retention_that_is_set_or_taken_away_holds_at_once(rigs):
    rig, positions, consumer = filled(rigs)
    unbounded = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    rig.owner.catalogue.policies.set("public/default", "retention", unbounded)
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope="public/default"))
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    assert len(rig.everything("t")) == 8
    rig.owner.catalogue.policies.set("public/default", "retention", None)
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope="public/default"))
    assert len(rig.files("t")) == 1
