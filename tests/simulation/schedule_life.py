"""A world with schedules: each planned time is there exactly once, whatever is killed, moved or changed when.

Every schedule publishes all times that it missed, so its messages have each planned time between its first and its last
one, once and in order.  Only what passes while it is paused, or before it was changed, is left out.
"""
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.cursors.producer_sequences import Sequences
from geminga.storage.errors import StorageFull
from geminga.storage.owner.publishing import Publishing
from geminga.storage.recurring import timetable
from geminga.storage.runtime.units import moment
from geminga.storage.topics.partition import Partition

from .canaries import patched
from .disk import Fate
from .model import demand
from .world import Again, World

TOPICS = ("a", "b", "c-partition-1")
EVERY_MS = 4_000, 7_000, 60_000
CHANGES_MAX = 8      # of one schedule
SCHEDULE_CANARIES: dict[str, tuple] = {}


@dataclass(eq=False)
class Planned:
    """A schedule in the model."""

    topic: str
    name: str
    number: int                                        # its id in the catalogue
    every_ms: int
    # Times at which it was made, paused, resumed or changed, with what holds behind them: every_ms, or 0.
    changes: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_paused(self) -> bool:
        return not self.changes[-1][1]

    def times(self, until_ms: int) -> list[int]:
        """Return the planned times up to then."""
        found = []
        for (begin, every_ms), (end, _) in itertools.pairwise([*self.changes, (until_ms, 0)]):
            found += range((begin // every_ms + 1) * every_ms, end + 1, every_ms) if every_ms else ()
        return found


class ScheduleLife(World):
    """One owner, its disk and its schedules, under one seed."""

    def __init__(self, seed: int, folder: Path):
        super().__init__(seed, folder)
        self.topics = []      # of the model with clients, of which there are none
        self.options |= {"retention_s": -1, "retention_bytes": -1, "delete_inactive_topics": False}
        self.latest_ms = self.now_ms
        self.planned: list[Planned] = []

    def begin(self) -> None:
        super().begin()
        self._pass()

    def step(self) -> None:
        if self.disk.fate.is_full and self.chance.random() < 0.3:
            self.disk.fate.room = None
        if self.disk.fate.files_left is not None and self.chance.random() < 0.5:
            self.disk.fate.files_left = None
        if self.disk.fate == Fate():
            self._draw_fate(0.15)
        if self.chance.random() < 0.3:
            self.guard(lambda: [self.turns.some() for _ in range(self.chance.randint(1, 20))])
        [action] = self.chance.choices(list(ACTIONS), list(ACTIONS.values()))
        self.say(action.__name__)
        action(self)
        if action in (ScheduleLife.killed, ScheduleLife.stopped) or self.chance.random() < 0.1:
            self._check(is_end=False)

    def end(self) -> None:
        """End all faults, and check that every planned time is there."""
        self.is_ending = True
        while True:
            try:
                self.is_dying, self.disk.fate = False, Fate()
                self._take_over()
                for _ in range(60):
                    self._pass(1_000)
                break
            except Again:
                continue
        self._check(is_end=True)
        try:
            self.stop()
        except Again:
            return
        self._check(is_end=True)

    # -- what happens

    def _pass(self, after_ms: int = 0) -> None:
        """Run passes until nothing is due."""
        self.run(after_ms=after_ms)
        self.latest_ms = max(self.latest_ms, self.now_ms)
        for _ in range(200):
            if self.rig.owner.recurring.due_ms > self.now_ms or self.disk.is_dead:
                return
            self.run()

    def _take_over(self) -> None:
        self.run(self.rig.tell("take_over_schedules"))

    def make(self) -> None:
        if len(self.planned) >= 5:
            return self.time_passes()
        topic = names.parse(self.chance.choice(TOPICS))
        made = self.guard(lambda: self.rig.owner.topics.find_or_create(topic) and self.rig.run())
        if made is None or self.disk.faults != self.before:
            return None
        self._set(Planned(str(topic), f"s{next(self.numbers)}", 0, self.chance.choice(EVERY_MS)), is_new=True)
        return None

    def _set(self, one: Planned, *, is_new: bool) -> None:
        """Write a schedule into the catalogue, and tell the owner, perhaps late."""
        catalogue, topic = self.rig.owner.catalogue, names.parse(one.topic)
        table = timetable.read({"every": one.every_ms, "missed": "all", "at_most": timetable.AT_MOST_MAX})
        metadata = api.MessageMetadata(producer_name="", sequence_id=0, publish_time=0)
        catalogue.schedules.set(
            topic, one.name, partition=topic, is_paused=False, timing=json.dumps(table.as_json()), message="{}",
            metadata=metadata.SerializePartialToString(), payload=b"x", now_ms=self.now_ms)
        self._note(one, one.every_ms)
        catalogue.commit()
        if is_new:
            one.number = catalogue.schedules.find(topic, one.name).id
            self.planned.append(one)
        if self.chance.random() < 0.8:
            self._take_over()

    def _note(self, one: Planned, every_ms: int) -> None:
        """Note a change.  What is over was published before: the owner is told of no change while something is due."""
        stored = self.rig.owner.catalogue.schedules.find(names.parse(one.topic), one.name)
        one.changes.append((stored.since_ms, every_ms))

    def change(self) -> None:
        """Pause, resume or change a schedule of which nothing is due, so that the model knows what was published."""
        self._pass()
        found = [one for one in self.planned if len(one.changes) < CHANGES_MAX]
        if not found or self.now_ms < self.latest_ms or not self._is_settled():
            return
        one, catalogue = self.chance.choice(found), self.rig.owner.catalogue
        if self.chance.random() < 0.3:
            one.every_ms = self.chance.choice(EVERY_MS)
            return self._set(one, is_new=False)
        is_paused = not one.is_paused
        catalogue.schedules.pause(one.number, is_paused=is_paused, now_ms=self.now_ms)
        self._note(one, 0 if is_paused else one.every_ms)
        catalogue.commit()
        if self.chance.random() < 0.8:
            self._take_over()
        return None

    def _is_settled(self) -> bool:
        """Whether everything is published that is planned up to now."""
        recurring = self.rig.owner.recurring
        return all((found := recurring.find(one.number)) is not None and not found.waiting
                   and (one.is_paused or found.done_ms >= self.now_ms) for one in self.planned)

    def unload(self) -> None:
        if self.rig.partitions:
            partition = self.chance.choice(self.rig.partitions)
            self.run(self.rig.question("unload", str(partition.name)))

    def time_passes(self) -> None:
        self._pass(self.chance.choice([1, 400, 999, 1_000, 1_001, 5_000, 20_000, 3 * 60_000]))

    def clock_goes_back(self) -> None:
        self._pass(-self.chance.choice([1, 1_000, 30_000]))

    def killed(self) -> None:
        self.restart()

    def stopped(self) -> None:
        self.stop()

    # -- the promise

    def _check(self, *, is_end: bool) -> None:
        """Check the messages of all open topics, and in the end that nothing is missing."""
        with self.disk.aside():
            for one in self.planned:
                partition = self.rig.owner.topics.by_name.get(names.parse(one.topic))
                if partition is None and is_end:
                    partition = self.rig.owner.topics.find(names.parse(one.topic))
                if partition is None:
                    continue
                there, planned = _stored(partition, one.name), one.times(self.latest_ms)
                demand(len(set(there)) == len(there), "a planned time is published once", f"{one.name} {there}")
                demand(there == planned[:len(there)], "planned times are published in order, and none is left out",
                       f"{one.name} {there} {planned}")
                if is_end and self.now_ms >= self.latest_ms:
                    demand(there == planned, "every planned time is published",
                           f"{one.name} {planned[len(there):]} {self.rig.owner.recurring.find(one.number)}")
        self.count("planned times", sum(len(one.times(self.latest_ms)) for one in self.planned) if is_end else 0)


def _stored(partition: Partition, name: str) -> list[int]:
    """Return the planned times of a schedule's messages in a partition."""
    found = []
    for ledger in partition.ledgers:
        whole = (partition.folder / f"{ledger.ledger_id}.ledger").read_bytes()
        for at in ledger.column("offset")[:ledger.entries].tolist():
            size = int.from_bytes(whole[at + 6:at + 10], "big")
            metadata = api.MessageMetadata.FromString(whole[at + 10:at + 10 + size])
            said = {one.key: one.value for one in metadata.properties}
            if said.get(names.SCHEDULE) == name:
                found.append(moment(said[names.SCHEDULED_FOR], 0))
    return found


ACTIONS = {
    ScheduleLife.make: 4, ScheduleLife.change: 4, ScheduleLife.time_passes: 20, ScheduleLife.unload: 3,
    ScheduleLife.clock_goes_back: 2, ScheduleLife.killed: 4, ScheduleLife.stopped: 2,
}


# -- owners that break the promise

def _canary(*promises: str):
    def add(how):
        SCHEDULE_CANARIES[how.__name__] = lambda: patched(how()), set(promises)
        return how
    return add


@_canary("a planned time is published once")
def planned_times_are_not_numbers():
    """The message is stored as if it had no number, so a start publishes it again."""
    before = Publishing.publish_own
    yield Publishing, "publish_own", lambda self, producer, entries: before(
        self, producer, [(None, entry) for _, entry in entries])


@_canary("a planned time is published once")
def state_files_lack_schedules():
    """What was published is in the journal, and is forgotten with it."""
    before = Sequences.rows

    def rows(self):
        found, self.by_replicator = self.by_replicator, type(self.by_replicator)()
        try:
            return before(self)
        finally:
            self.by_replicator = found
    yield Sequences, "rows", rows


@_canary("every planned time is published", "planned times are published in order, and none is left out")
def a_refused_message_counts_as_published():
    """A message for which there is no room is dropped without a word."""
    before = Publishing.publish_own

    def publish_own(self, producer, entries):
        try:
            return before(self, producer, entries)
        except (Refusal, StorageFull):
            return []
    yield Publishing, "publish_own", publish_own
