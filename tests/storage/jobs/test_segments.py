"""Compaction over segments of a scalable topic: of a key the newest message is left, whichever segment has it.

The newest message is the last one, or by event time the one that an ordinary topic would keep.
"""
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geminga.storage.jobs.compacting import engines, nightly
from geminga.storage.jobs.compacting.nightly import COMPACTED, FAILED, NOTHING_NEW, Target

from .topics import Message, Topic, adopt_here

LATER = {1: (2, 3, 4), 2: (4,), 3: (4,), 4: ()}      # a segment was split, and its halves were merged
EARLIER = {number: tuple(other for other in LATER if number in LATER[other]) for number in LATER}
KEYS = st.sampled_from("abcd")
# A key of the upper half of the hashes goes to segment 3.
PLACES = {1: (1, 1), 2: (2, 3), 3: (4, 4)}


class Family:
    """Four segments, and the newest message of each key over all of them."""

    def __init__(self, folder: Path, by_event_time: bool = False):
        self.data_dir, self.by_event_time = folder, by_event_time
        self.segments = {number: Topic(folder, number, first_ledger=number * 1_000) for number in LATER}
        self.kept: dict[str, Message] = {}       # what a compaction of an ordinary topic would have left
        self.fresh: list[Message] = []           # published since

    def publish(self, generation: int, key: str, text: str, event_time: int = 0) -> None:
        """Publish a message to the segment that takes the key then; an empty text deletes the key."""
        message = Message(key, text.encode(), event_time=event_time)
        self.segments[PLACES[generation][key > "b"]].publish(message)
        self.fresh.append(message)

    def _newest(self, held: dict[str, Message], messages) -> dict[str, Message]:
        for message in messages:
            before = held.get(message.key)
            if before is None or not self.by_event_time or message.event_time >= before.event_time:
                held[message.key] = message
        return held

    def target(self, number: int) -> Target:
        return Target(number, f"segment://a/b/c/{number}", by_event_time=self.by_event_time, later=LATER[number],
                      earlier=EARLIER[number])

    def planned(self) -> list[nightly.Planned]:
        return nightly.plan(self.data_dir, map(self.target, sorted(LATER)))

    def run(self, adopt=None, **more) -> list[str]:
        """Compact all segments as a night does, and return their outcomes."""
        night = nightly.run(self.data_dir, self.planned(), adopt or adopt_here(self.data_dir), **more)
        assert not night.error, night
        return [report.outcome for report in sorted(night.reports, key=lambda one: one.partition_id)]

    def one_by_one(self) -> None:
        """Compact all segments as it is done on demand."""
        taken = nightly.Taken()
        for number in sorted(LATER):
            nightly.compact(self.data_dir, self.target(number), adopt_here(self.data_dir), taken=taken)

    def check(self) -> None:
        newest, self.fresh = self._newest({}, self.fresh), []
        self.kept = {key: message for key, message in self._newest(self.kept, newest.values()).items()
                     if not message.is_tombstone}
        found = [item for segment in self.segments.values() if segment.view() for item in segment.contents().values()]
        assert sorted(found) == sorted((key, message.payload) for key, message in self.kept.items())


@settings(deadline=None, derandomize=True, max_examples=120)
@given(steps=st.lists(st.tuples(KEYS, st.sampled_from(["", "x", "y"]), st.integers(0, 8), st.integers(0, 3)),
                      max_size=30),
       borders=st.tuples(st.integers(0, 30), st.integers(0, 30)), by_event_time=st.booleans())
@example(steps=[("a", "x", 0, 0), ("a", "", 7, 0), ("b", "x", 8, 0), ("b", "", 7, 0)], borders=(1, 30),
         by_event_time=False)
@example(steps=[("a", "x", 7, 0), ("a", "", 7, 0), ("b", "y", 7, 0)], borders=(1, 2), by_event_time=False)
@example(steps=[("a", "x", 7, 2), ("a", "y", 7, 1)], borders=(1, 30), by_event_time=True)
@example(steps=[("a", "", 0, 2), ("a", "y", 7, 1)], borders=(1, 2), by_event_time=True)
@example(steps=[("a", "", 0, 2), ("a", "y", 8, 1)], borders=(1, 2), by_event_time=True)
def test_the_newest_message_of_each_key_is_left_over_all_segments(steps, borders, by_event_time):
    """Also when a tombstone in a child outdates a message of its parent, compacted in one night or one by one.

    By event time a message of a parent may outdate one of its child.
    """
    with tempfile.TemporaryDirectory() as folder:
        family = Family(Path(folder), by_event_time)
        for number, (key, text, then, event_time) in enumerate(steps):
            family.publish(1 + sum(number >= border for border in borders), key, text and f"{text}{number}",
                           event_time)
            if then >= 7:
                family.run() if then == 7 else family.one_by_one()
                family.check()
        family.run()
        family.check()


@pytest.fixture
def family(tmp_path):
    """A parent that is compacted, of which a child has deleted one key and replaced another."""
    made = Family(tmp_path)
    for key in "ab":
        made.publish(1, key, "old")
    assert made.run() == [COMPACTED, NOTHING_NEW, NOTHING_NEW, NOTHING_NEW]
    made.publish(2, "a", "")
    made.publish(2, "b", "new")
    return made


@pytest.mark.parametrize("by_event_time", [False, True])
@pytest.mark.parametrize("kills", [1, 2])
def test_a_kill_between_a_parent_and_its_child_forgets_no_tombstone(tmp_path, by_event_time, kills):
    """By event time the parent's tombstone deletes a late message of the child, and is in no view."""
    made = Family(tmp_path, by_event_time)
    made.publish(1, "a", "old", event_time=1)
    made.run()
    made.publish(1, "a", "", event_time=5)
    made.publish(2, "a", "late", event_time=3)

    def adopt(partition_id, topic, number):
        if partition_id == 2:
            raise KeyboardInterrupt
        return adopt_here(tmp_path)(partition_id, topic, number)

    for number in range(kills):
        with pytest.raises(KeyboardInterrupt):
            made.run(adopt)
        made.publish(1, "b", f"{number}")      # the parent is compacted again
    made.run()
    made.check()
    assert not list(tmp_path.rglob("overtaken"))


def test_a_child_waits_for_its_parents(family):
    """Its tombstone is in no view, so the parent's message would come back."""
    def adopt(partition_id, topic, number):
        return "it is refused" if partition_id == 1 else adopt_here(family.data_dir)(partition_id, topic, number)

    assert family.run(adopt)[:2] == ["not adopted", FAILED]
    assert family.segments[1].contents() == family.segments[1].newest()
    assert family.segments[2].view() is None
    assert family.run()[:2] == [COMPACTED, COMPACTED]
    family.check()
    assert family.run() == [NOTHING_NEW] * 4


def test_a_child_is_compacted_as_far_as_its_parents_have_read_it(family):
    """What comes in between is for the next night."""
    def adopt(partition_id, topic, number):
        if partition_id == 1 and number == 2:
            family.publish(2, "a", "newest")
            family.publish(2, "b", "")
        return adopt_here(family.data_dir)(partition_id, topic, number)

    taken = nightly.Taken()
    for number in (1, 2):
        target = Target(number, "s", later=LATER[number])
        assert nightly.compact(family.data_dir, target, adopt, taken=taken).outcome == COMPACTED
    assert [value for _, value in family.segments[2].contents().values()] == [b"new"]
    family.run()
    family.check()


def test_in_a_short_night_no_child_comes_before_its_parent(family):
    """Otherwise the partitions with the most new bytes come first."""
    for number in range(50):
        family.publish(2, "c", f"{number}" * 100)
    family.segments[2].publish(Message(None, b"without a key"))
    assert [one.target.partition_id for one in nightly._parents_first(
        sorted(family.planned(), key=lambda one: -one.size))] == [1, 3, 2, 4]
    assert family.run(ends=1e18)[:3] == [COMPACTED] * 3
    family.check()


@pytest.mark.spark
@pytest.mark.parametrize("by_event_time", [False, True])
def test_spark_gives_the_same(family, tmp_path, spark, by_event_time):
    family.by_event_time = by_event_time
    family.publish(3, "b", "")
    family.publish(3, "c", "c")
    engine = engines.Spark(tmp_path / "scratch", context=spark.sparkContext)
    assert family.run(engine=engine) == [COMPACTED] * 2 + [NOTHING_NEW, COMPACTED]
    family.check()
