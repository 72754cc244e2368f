"""Short scripted worlds for steps that random worlds hardly ever reach: the step runs, and power fails behind it.

    play(scene, seed, folder)      # raises Broken

The seed decides what the power cut leaves.
"""
import contextlib
from collections.abc import Callable
from pathlib import Path

from geminga.storage.errors import CorruptFile, NotDurable

from ..storage.rig import Handle
from .disk import Disk, Fate, Killed
from .model import Broken, demand
from .turns import Turns
from .world import FAILURES, World

TOPIC = "a"
BIG = 5_000      # bytes of an entry of which one fits into a segment


class Scene(World):
    """One topic with one subscription.  `promised` holds the payloads whose receipts have come, in order."""

    def __init__(self, seed: int, folder: Path):
        super().__init__(seed, folder)
        self.move_chance, self.many = 0, 64
        self.options |= {"journal_segment_bytes": 8 << 10, "journal_segments_max": 8, "roll_over_entries": 1_000,
                         "roll_over_bytes": 64 << 20, "deduplication": False}
        self.promised: list[bytes] = []
        self.publisher: Handle | None = None
        self.subscriber: Handle | None = None
        self.positions: list[tuple[int, int]] = []

    def play(self, script: Callable[["Scene"], None]) -> None:
        self.disk = Disk(self.folder / str(next(self.folders)), self.chance, self._called)
        with self._patched(), self.disk.watched():
            try:
                self.start()
                script(self)
            finally:
                self.disk.is_dead = True
                self._bury()

    # -- the process

    def start(self, fate: Fate | None = None) -> None:
        """Start a process and check all promises; with a fate, expect the start to be cut short."""
        self.disk.begin_process()
        self.turns, self.before = Turns(self.disk, self.chance), dict(self.disk.faults)
        self.disk.fate = fate or Fate()
        if fate is not None:
            with contextlib.suppress(Killed, *FAILURES):
                self.rig = self._start()
            return
        try:
            self.rig = self._start()
            demand(not self.rig.damage, "a crash damages nothing", self.rig.damage)
            self.connect()
        except (CorruptFile, NotDurable) as error:
            raise Broken("a crash damages nothing", str(error)) from error
        self.look()

    def connect(self) -> None:
        self.subscriber, self.publisher = self.rig.consumer(TOPIC), self.rig.producer(TOPIC)

    def die(self, how: str = "") -> None:
        """End the process without a stop.  how: what a power cut leaves (Disk.cut); empty: no power cut."""
        self.disk.is_dead = True
        self._bury()
        if how:
            self.disk.cut(self.folder / str(next(self.folders)), how)

    def stop(self) -> None:
        """Stop the process cleanly."""
        self.rig.close()
        self.die()

    def dies_in(self, work: Callable, *arguments, **fate) -> None:
        """Do the work, and expect this fate to end it."""
        self.disk.fate = Fate(**fate)
        with contextlib.suppress(Killed, *FAILURES):
            work(*arguments)

    # -- clients

    def publish(self, *payloads: bytes) -> None:
        """Publish each payload in a pass of its own."""
        for payload in payloads:
            self.positions += self.rig.publish(self.publisher, payload)
            self.promised.append(payload)

    def acknowledge(self, number: int, *, is_asked: bool = True) -> None:
        """Acknowledge the entry with this number; is_asked False: without a receipt, so nothing is synced."""
        self.rig.run(self.rig.acks(self.subscriber, self.positions[number], request_id=int(is_asked)))

    def acknowledge_and_checkpoint(self, number: int) -> None:
        """Acknowledge an entry without a receipt, and finish the checkpoint that its record begins."""
        self.acknowledge(number, is_asked=False)
        while self.turns.tasks:
            self.turns.some()

    def look(self) -> None:
        """Check all promises.  Entries that were seen now must stay, also those without a receipt."""
        stored = [payload for _, payload in self.rig.everything(TOPIC)]
        kept = [payload for payload in stored if payload in self.promised]
        demand(kept == self.promised, "receipted entries are there",
               f"{[one[:10] for one in stored]} for {[one[:10] for one in self.promised]}")
        self.promised = stored
        partition = self.rig.partition(TOPIC)
        cursor = partition.subscriptions["sub", True].cursor
        backlog = cursor.backlog_messages(partition.ledgers)
        demand(partition.next_message - cursor.since == sum(cursor.totals) + backlog, "totals add up",
               f"{partition.next_message} - {cursor.since}, {cursor.totals}")
        self.say("totals", cursor.totals)


def _two_acknowledgements(scene: Scene) -> None:
    """Acknowledge twice, and sync the record of the first only.

    A replay of that record alone would put an old total into a state that has both.
    """
    _publish_and_restart(scene, b"a", b"b", b"c")
    scene.acknowledge(1)
    scene.acknowledge(2, is_asked=False)


def _publish_and_restart(scene: Scene, *payloads: bytes) -> None:
    """Restart, so that the subscription is in the state file; a replay of the record that made it would reset it."""
    scene.publish(*payloads)
    scene.stop()
    scene.start()


def power_fails_in_a_stop(scene: Scene) -> None:
    """Cut the power in a stop, when states are on disk and no segment is retired."""
    _two_acknowledgements(scene)
    scene.dies_in(scene.rig.close, landmark="header of a segment", kill_in=1)
    scene.die("nothing")
    scene.start()


def _killed_with_a_record(scene: Scene) -> None:
    """Start after a kill, so that the next record checkpoints the replayed segment with the states of that moment."""
    _publish_and_restart(scene, b"a", b"b", b"c", b"d")
    scene.acknowledge(1)
    scene.die()
    scene.start()


def power_fails_in_a_checkpoint(scene: Scene) -> None:
    """Cut the power when the state on disk has the acknowledgement that began the checkpoint, and no segment is
    retired.
    """
    _killed_with_a_record(scene)
    scene.dies_in(scene.acknowledge_and_checkpoint, 2, landmark="header of a segment", kill_in=1)
    scene.die("nothing")
    scene.start()


def power_fails_after_a_stop_behind_a_checkpoint(scene: Scene) -> None:
    """Cut the power after a stop that does not retire the segment which a checkpoint has already retired."""
    _killed_with_a_record(scene)
    scene.acknowledge_and_checkpoint(2)
    scene.acknowledge(3)
    scene.stop()
    scene.die("nothing")
    scene.start()


def power_fails_when_owners_move(scene: Scene) -> None:
    """Cut the power when another number of owners has applied the records of a killed one and not yet retired them."""
    _two_acknowledgements(scene)
    scene.die()
    _move(scene)


def power_fails_when_owners_move_after_a_failed_sync(scene: Scene) -> None:
    """Cut the power when records of a failed sync are in memory only: the owner died before it set the segment
    aside.
    """
    _publish_and_restart(scene, b"a", b"b", b"c")
    scene.acknowledge(1)
    scene.dies_in(scene.acknowledge, 2, fail_sync_in=1, landmark="rename", kill_in=1)
    scene.die()
    _move(scene)


def _move(scene: Scene) -> None:
    scene.owners = 2
    scene.start(Fate(landmark="rename", kill_in=scene.chance.randint(4, 8)))      # the state has its name
    scene.die("nothing")
    scene.start()


def power_fails_after_a_start_behind_a_failed_sync(scene: Scene) -> None:
    """Cut the power after records of a failed sync were replayed from memory and more was stored behind them."""
    scene.publish(b"a")
    scene.dies_in(scene.publish, b"b", fail_sync_in=1, landmark="rename", kill_in=1)
    scene.die()
    scene.start()
    scene.publish(b"c")
    scene.die("nothing")
    scene.start()


def power_fails_after_a_start_without_room(scene: Scene) -> None:
    """Cut the power after a start that reuses replayed segments at once, because a new segment has no room."""
    scene.publish(b"a")
    scene.die()
    scene.start(Fate(room=0))
    scene.die("nothing")
    scene.start()


def power_fails_in_a_rescue(scene: Scene) -> None:
    """Cut the power while a segment whose sync failed is being copied."""
    scene.publish(b"a")
    scene.dies_in(scene.publish, b"b", fail_sync_in=1)
    scene.die("nothing")
    scene.start(Fate(landmark="rename", kill_in=scene.chance.randint(2, 4)))
    scene.die("mixed")
    scene.start()


def an_older_segment_is_not_retired_when_one_is_rescued(scene: Scene) -> None:
    """Rescue a segment without losing older ones: segment and copy would both be the newest and end the chain."""
    scene.publish(b"a" * BIG, b"b" * BIG)
    scene.dies_in(scene.publish, b"c", fail_sync_in=1)
    scene.die("nothing")
    scene.start()


def power_fails_in_a_start_when_a_rescued_segment_was_removed(scene: Scene) -> None:
    """Start with fewer segments, which removes a rescued copy; the original must not come back and be copied again."""
    for number in range(6):
        scene.publish(b"%d" % number + b"x" * BIG)
    scene.stop()
    scene.start()
    scene.acknowledge(1)
    scene.dies_in(scene.acknowledge, 2, fail_sync_in=1)
    scene.die()
    scene.start()
    scene.acknowledge(3)
    scene.acknowledge(4)
    scene.stop()
    scene.options["journal_segments_max"] = 2
    scene.start()
    scene.die("mixed")
    scene.start()


def power_fails_while_a_journal_is_removed(scene: Scene) -> None:
    """Remove the journal of an owner; its oldest segment alone would bring back what was acknowledged since."""
    scene.stop()
    scene.owners = 2
    scene.start()
    scene.publish(b"a", b"b", b"c")
    scene.acknowledge(1)
    scene.publish(b"d" * BIG, b"e" * BIG)
    scene.acknowledge(2)
    scene.die()
    scene.owners = 1
    scene.start(Fate(landmark="unlink", kill_in=scene.chance.randint(1, 6)))
    scene.die("mixed")
    scene.start()


def play(script: Callable[[Scene], None], seed: int, folder: Path) -> None:
    """Play the scene under this seed.  Raises Broken."""
    Scene(seed, folder).play(script)
