"""One owner, its disk and its clients, under one seed: what happens, and what of it may be believed.

    world = World(seed, folder)
    world.live(steps)             # raises Broken

Every step something happens: clients send, ask, acknowledge, give back, seek, come and go; administration skips, clears
and unloads; time passes; the process is killed, stopped, or loses its power, between any two calls of its disk.  In the
end all faults are over, and everything is delivered and acknowledged.
"""
import contextlib
import gc
import hashlib
import itertools
import random
from pathlib import Path, PurePath
from unittest import mock
from zlib import crc32

from geminga.proto import envelope, names
from geminga.storage.catalogue import catalogue, scalable_topics, stored_schemas, topics
from geminga.storage.delayed import index, window_files
from geminga.storage.disk import files
from geminga.storage.errors import CorruptFile, NotDurable, StorageFull
from geminga.storage.ledgers import checkpoints, journal
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.open_topics import durability
from geminga.storage.owner import dispatching, owner_pass, publishing, recovery
from geminga.storage.topics.partition import Partition
from geminga.storage.upkeep import delayed_scheduler

from ..storage import rig as rigs
from ..storage.rig import START_MS, Answers, Rig, T
from . import checks
from .disk import LANDMARKS, Disk, Fate, Killed
from .model import Broken, Entry, Producer, State, Subscription, Topic, demand
from .turns import Lock, Turns

TOPICS = ("a", "b", "c-partition-1", "d")
NOWHERE = (1 << 64) - 1   # the place of what was stored before, in a receipt
SYNCED_MS = 30          # an acknowledgement that nobody waits for is on disk after this
# what is asked before them is on disk, but for a SUBSCRIBE that makes nothing
ANSWERS = {T.SUCCESS, T.ACK_RESPONSE}
TEMPLATE: dict[str, bytes] = {}      # a catalogue that nobody has used
FAILURES = OSError, StorageFull, NotDurable
# A write cut short by what was one bit anyway looks like a bit that is wrong, and is whole when that is made good.
MENDED = "has a bit that is wrong, and was made good"


class Again(Exception):
    """The process ended while the world was about to do something."""


class World:
    def __init__(self, seed: int, folder: Path):
        self.seed, self.folder = seed, folder
        self.chance = random.Random(seed)
        self.trace = hashlib.blake2b(digest_size=8)
        self.verbose = False
        self.counts: dict[str, int] = {}
        self.numbers = itertools.count(1)
        self.folders = itertools.count()
        self.connections: list[int] = []
        self.rig: Rig | None = None
        self.catalogues: list = []
        self.now_ms = START_MS
        self.unsynced_since: int | None = None
        # by the pass: its state before, whether it began anew
        self.touched: dict[Subscription, tuple[State | None, bool]] = {}
        self.sending: list[tuple[Producer, Entry]] = []                     # in the pass
        self.is_dying = self.is_ending = False
        self.is_more = False                  # something in the pass comes after what is answered in it
        self.making: Subscription | None = None
        self.deaf: set[int] = set()           # connections that are lost before the answers of the pass come
        pick = self.chance.choice
        self.options = {
            "journal_segment_bytes": pick([8 << 10, 8 << 10, 12 << 10, 32 << 10]),
            "journal_segments_max": pick([2, 3, 4]),
            "roll_over_entries": pick([3, 5, 9, 1_000]), "roll_over_bytes": pick([2_000, 10_000, 64 << 20]),
            "max_unacked_messages_per_consumer": pick([50_000, 50_000, 7]),
            "key_shared_consistent_hashing": pick([True, False]), "deduplication": pick([True, False]),
            "discovery_grace_s": 0,
            "deduplication_inactivity_s": 1 << 30}
        self.is_by_priority = False           # of messages to Shared consumers
        self.owners, self.move_chance = 1, pick([0, 0, 0.6])
        self.many, self.collected_max = pick([0, 64]), pick([1, 16])      # of checkpoints
        self.topics = [Topic(name, names.parse(name).partition, self.options["deduplication"])
                       for name in TOPICS[:pick([1, 2, 4])]]

    # -- what happens is told

    def say(self, *what) -> None:
        text = " ".join(map(str, what))
        self.trace.update(text.encode() + b"\n")
        if self.verbose:
            print(text)

    def count(self, what: str, many: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + many

    def _called(self, kind: str, what: str) -> None:
        self.trace.update(f"{kind} {what}\n".encode())
        if self.verbose:
            print(f"    {kind} {what}")

    # -- processes

    @contextlib.contextmanager
    def _patched(self):
        """Make threads take turns, time the world's, and sets ordered, so that a seed always runs alike."""
        with contextlib.ExitStack() as stack:
            def put(*where) -> None:
                stack.enter_context(mock.patch.object(*where))

            for module in (journal, delayed_scheduler):
                put(module, "ThreadPoolExecutor", lambda *_: self.turns)
            for module in (delayed_scheduler, files):
                put(module, "sync_all", self.disk.sync_all)
            put(checkpoints, "_MANY", self.many)
            put(journal, "_COLLECTED_MAX", self.collected_max)
            put(checkpoints, "threading", mock.Mock(Lock=lambda: Lock(self.turns)))
            for module in (owner_pass, publishing, dispatching, durability, delayed_scheduler, index,
                           window_files):
                put(module, "time", mock.Mock(sleep=self._sleep, perf_counter=lambda: 0.0, monotonic=lambda: 0.0))
            for module in (scalable_topics, stored_schemas, topics):
                put(module, "now_ms", lambda: self.now_ms)
            put(rigs, "open_catalogue", self._open_catalogue)
            put(PurePath, "__hash__", lambda path: crc32(str(path).removeprefix(str(self.folder)).encode()))
            put(Ledger, "__hash__", lambda ledger: ledger.ledger_id)
            put(Partition, "__hash__", lambda partition: partition.partition_id)
            yield

    def _sleep(self, seconds: float) -> None:
        """Let time pass while an owner waits for room on the disk."""
        self.count("waits for room")
        if self.chance.random() < 0.3:
            self.disk.fate.room = None
        self.disk.step("sleep", "")
        if self.disk.is_dead:
            raise Killed

    def _open_catalogue(self, path: Path, *more):
        """Open the catalogue without syncs: what it commits counts as safe here."""
        if not path.exists() and TEMPLATE.get("bytes"):
            with self.disk.aside():
                path.write_bytes(TEMPLATE["bytes"])
        found = catalogue.open_catalogue(path, *more)
        found.connection.execute("PRAGMA synchronous = OFF")
        self.catalogues.append(found)
        return found

    def live(self, steps: int) -> None:
        self.disk = Disk(self.folder / str(next(self.folders)), self.chance, self._called)
        with self._patched(), self.disk.watched():
            try:
                self.begin()
                for number in range(steps):
                    self.say("step", number, self.now_ms - START_MS)
                    self.step()
                    self.count("steps")
                self.end()
            finally:
                self.disk.is_dead = True
                self._bury()

    def begin(self) -> None:
        """Start a process, again after each fault that ends the start."""
        for attempt in itertools.count():
            self.disk.begin_process()
            self.turns = Turns(self.disk, self.chance)
            self.before = dict(self.disk.faults)
            if attempt < 3 and self.rig is not None:
                self._draw_fate(0.3)
            try:
                self.rig = self._start()
            except Killed:
                self.count("kills while recovering")
            except FAILURES as error:
                self._check_injected(error)
                self.count("starts that failed")
            except CorruptFile as error:
                raise Broken("a crash damages nothing", str(error)) from error
            else:
                self.disk.fate = Fate()
                damage = [text for text in self.rig.damage if not text.endswith(MENDED)]
                demand(not damage, "a crash damages nothing", damage)
                break
            self.disk.is_dead = True
            self._bury()
            if self.disk.fate.power_fails or self.chance.random() < 0.3:
                self._cut_power()
        self.connections = [next(self.numbers) for _ in range(3)]
        self.unsynced_since = None
        self.say("process", self.disk.calls)

    def _start(self) -> Rig:
        """Start the last owner, which has all partitions; if the number of owners changed, the others start before
        it.
        """
        if self.chance.random() < self.move_chance:
            self.owners = 3 - self.owners
        is_moved = recovery.has_moved(self.disk.root, self.owners)
        for other in range(self.owners - 1) if is_moved else ():
            recovery.recover_owner(self.disk.root, other, self.owners, has_moved=True)
            size = self.options["journal_segment_bytes"]
            journal.open_journal(
                recovery.journal_folder(self.disk.root, other), segment_bytes=size, segments_max=2
            ).close()
        started = Rig(self.disk.root, now_ms=self.now_ms, owners=self.owners, has_moved=is_moved, **self.options)
        for other in range(self.owners - 1):
            started.owner.owner_is_up(other)
        recovery.settle(self.disk.root, self.owners)
        return started

    def _draw_fate(self, chance: float) -> None:
        if self.chance.random() >= chance:
            return
        what, fate = (
            self.chance.choice(["kill"] * 3 + ["landmark"] * 6 + ["sync", "files", "full", "full"]),
            self.disk.fate,
        )
        if what == "kill":
            fate.kill_in = self.chance.choice([self.chance.randint(1, 10), self.chance.randint(1, 80)])
        elif what == "landmark":
            fate.landmark, fate.kill_in = self.chance.choice(LANDMARKS), self.chance.choice([1, 2, 3, 3, 4, 7])
            fate.power_fails = True
        elif what == "sync":
            fate.fail_sync_in = self.chance.randint(1, 8)
        elif what == "files":
            fate.files_left = self.chance.randint(0, 6)
        else:
            fate.room = self.chance.choice([0, 0, 1, 2, 3])

    def _check_injected(self, error: Exception) -> None:
        """Check that the error comes from a fault that the disk was told to make."""
        if self.disk.faults == self.before:
            raise Broken("nothing but the disk's own failures ends an owner", repr(error)) from error

    def _bury(self) -> None:
        """Drop everything of the process but its files."""
        self.turns.end()
        for found in self.catalogues:
            found.close()
        self.catalogues = []
        if self.rig is not None:
            for partition in self.rig.partitions:
                for ledger in partition.ledgers:
                    ledger.close()

    def _cut_power(self) -> None:
        self.disk.cut(self.folder / str(next(self.folders)))
        self.count("power cuts")
        self.say("power cut")

    def restart(self) -> None:
        """End the process if it has not ended, and begin another one."""
        self.disk.is_dead = True
        self._bury()
        is_cut = self.disk.fate.power_fails or self.chance.random() < 0.5
        unsure = {subscription: list(subscription.candidates) for topic in self.topics
                  for subscription in topic.subscriptions.values()}
        cuts = self.counts.get("power cuts", 0)
        for topic in self.topics:
            if not is_cut:
                for subscription in topic.subscriptions.values():
                    self._sure(subscription, topic)
            for subscription, (before, is_anew) in self.touched.items():
                if subscription.topic is topic:
                    subscription.candidates += self._between(before, subscription.state, is_anew)
            self._vacate(topic)
            topic.attempted += [entry for producer, entry in self.sending if producer.topic is topic
                                and not entry.is_stored]
            topic.is_known = False
        self.touched, self.sending, self.is_more = {}, [], False
        self.connections = []
        if is_cut:
            self._cut_power()
        else:
            self.count("kills")
            self.say("killed")
        if self.chance.random() < 0.1:
            gc.collect()
        self.begin()
        # before what the kill had left in memory was synced
        if not is_cut and self.counts.get("power cuts", 0) > cuts:
            for subscription, candidates in unsure.items():
                subscription.candidates = candidates + subscription.candidates
        if self.is_ending:
            raise Again
        if self.chance.random() < 0.7:
            for topic in self.topics:
                self.know(topic)

    def _sure(self, subscription: Subscription, topic: Topic) -> None:
        """Take the state after the last finished pass for durable: a kill loses nothing of it."""
        if topic.is_known:
            found = self.touched[subscription][0] if subscription in self.touched else subscription.state
            subscription.candidates = [(found, found)]

    @staticmethod
    def _between(before: State | None, after: State | None, is_anew: bool) -> list[tuple]:
        return [(before, before), (after, after)] if is_anew else [(before, after)]

    def _vacate(self, topic: Topic) -> None:
        """Disconnect all producers and consumers of the topic in the model."""
        for key, subscription in list(topic.subscriptions.items()):
            subscription.vacate()
            if not subscription.is_durable:
                del topic.subscriptions[key]
        for producer in topic.producers:
            producer.handle = 0
        topic.producers = [producer for producer in topic.producers if topic.deduplicates]

    def stop(self) -> None:
        """Stop cleanly; afterwards nothing is left to replay, even if the power is cut."""
        self.say("stop")
        if self.guard(self.rig.close, is_last=True) is None:
            return
        demand(self.disk.faults.get("failed sync") == self.before.get("failed sync"), "a failed sync ends the owner")
        self.count("stops")
        for topic in self.topics:
            self._vacate(topic)
            for subscription in topic.subscriptions.values():
                if topic.is_known:
                    subscription.candidates = [(subscription.state, subscription.state)]
            topic.is_known = False
        self.disk.is_dead = True
        self._bury()
        if self.chance.random() < 0.3:
            self._cut_power()
        self.disk.begin_process()
        self.turns, self.before = Turns(self.disk, self.chance), dict(self.disk.faults)
        try:
            self.rig = self._start()
        except FAILURES as error:      # the disk makes no faults in this start
            raise Broken("nothing but the disk's own failures ends an owner", repr(error)) from error
        demand(self.rig.recovered == 0, "nothing is replayed after a clean stop", self.rig.recovered)
        demand(not self.rig.damage, "a stop damages nothing", self.rig.damage)
        self.connections = [next(self.numbers) for _ in range(3)]
        self.unsynced_since = None
        for topic in self.topics:
            self.know(topic)

    # -- passes

    def guard(self, work, *, is_last: bool = False):
        """Return the result of work(), True instead of None; None if the process ended meanwhile and was replaced."""
        try:
            found = work()
        except Killed:
            self.say("dies")
        except FAILURES as error:
            self._check_injected(error)
            self.say("ends", type(error).__name__)
            self.count("ended by a fault")
        except CorruptFile as error:
            raise Broken("a crash damages nothing", str(error)) from error
        except Exception as error:
            raise Broken("nothing but the disk's own failures ends an owner", repr(error)) from error
        else:
            if not self.disk.is_dead or is_last:
                return True if found is None else found
            self.is_dying = True             # what it answered has been answered
            return True if found is None else found
        self.restart()
        return None

    def run(self, *sections, after_ms: int = 0, first=None) -> Answers | None:
        """Run one pass and check it; None if the process ended in it.  first: called with the answers before the
        checks.
        """
        self.now_ms += after_ms
        self.rig.now_ms = self.now_ms
        failed = self.disk.failed_syncs
        answers = self.guard(lambda: self.rig.run(*sections))
        self.count("passes")
        if answers is None:
            return None
        demand(self.disk.failed_syncs == failed, "a failed sync ends the owner")
        if first is not None:
            first(answers)
        self._settle(answers)
        self._receive(answers)
        if self.is_dying:
            self.is_dying = False
            self.restart()
            return None
        self.check(answers)
        return answers

    def _settle(self, answers: Answers) -> None:
        """Note what is durable now because a client was told so."""
        is_told = bool(answers.answered) or any(position[0] != NOWHERE for position in answers.positions) \
            or any(command is not None and command.type in ANSWERS and action != envelope.CONSUMER_READY
                   for _, action, _, _, command in answers.replies) \
            or (any(is_anew for _, is_anew in self.touched.values()) and bool(answers.commands(T.SUCCESS)))
        is_more, self.is_more = self.is_more, False
        touched, self.touched = self.touched, {}
        is_late = self.unsynced_since is not None and self.now_ms - self.unsynced_since >= SYNCED_MS
        # what was done before the pass is on disk, perhaps not what was in it
        if (is_told and is_more) or (is_late and not is_told):
            self._is_on_disk({subscription: before for subscription, (before, _) in touched.items()})
            is_told = False
        for subscription, (before, is_anew) in touched.items():
            subscription.candidates += self._between(before, subscription.state, is_anew)
        if touched and self.unsynced_since is None:
            self.unsynced_since = self.now_ms
        if is_told:
            self._is_on_disk({})

    def _is_on_disk(self, before: dict[Subscription, State | None]) -> None:
        """Note that each subscription is durable in its former or its present state."""
        self.unsynced_since = None
        for topic in self.topics:
            for key, subscription in list(topic.subscriptions.items()) if topic.is_known else ():
                state = before.get(subscription, subscription.state)
                subscription.candidates = (
                    [(state.copy(), state.copy())] if state else [(None, None)] if subscription in before else []
                )
                if state is None and subscription not in before:
                    del topic.subscriptions[key]

    def _receive(self, answers: Answers) -> None:
        """Check receipts and deliveries against the model."""
        waiting: dict[tuple[int, int], list[Entry]] = {}
        by_id = {}
        for producer, entry in self.sending:
            waiting.setdefault((producer.connection, producer.object_id), []).append(entry)
            by_id[producer.connection, producer.object_id] = producer
        self.sending = []
        for connection, action, object_id, _, command in answers.replies:
            if command is not None and command.type == T.SEND_ERROR:
                entries = waiting[connection, command.send_error.producer_id]
                demand(self.disk.faults != self.before, "nothing is refused without a cause",
                       command.send_error.message)
                [found] = [entry for entry in entries if entry.sequence_id == command.send_error.sequence_id][:1]
                entries.remove(found)
                self.count("sends refused")
            elif action == envelope.PRODUCER_GONE and (connection, object_id) in by_id:
                # its client comes back, and sends again
                by_id[connection, object_id].handle = 0
                topic = by_id[connection, object_id].topic
                topic.producers = [producer for producer in topic.producers if producer.handle or topic.deduplicates]
                waiting[connection, object_id] = [entry for entry in waiting[connection, object_id] if entry.is_stored]
                self.count("producers sent away")
        for _, connection, producer_id, sequence_id, position in answers.receipts:
            entries = waiting.get((connection, producer_id))
            demand(bool(entries), "nothing is answered twice", position)
            entry, producer = entries.pop(0), by_id[connection, producer_id]
            self.say("receipt", producer.name, sequence_id, position)
            demand(entry.sequence_id == sequence_id, "receipts come in order", position)
            if position == (NOWHERE, NOWHERE):
                demand(entry.is_stored, "what is said to have been stored was", f"{entry.producer} {sequence_id}")
                self.count("duplicates")
            else:
                demand(not entry.is_stored, "what is sent again is stored once", f"{entry.producer} {sequence_id}")
                producer.topic.add(position, entry)
                self.count("entries")
            if connection not in self.deaf and entry in producer.unconfirmed:
                producer.unconfirmed.remove(entry)
        demand(not any(waiting.values()), "every send is answered",
               {key: len(found) for key, found in waiting.items() if found})
        self._follow()
        for topic in self.topics:
            if topic.is_known and (partition := checks.partition_of(self.rig, topic)) is not None:
                checks.chain(topic, partition)
        by_handle = {consumer.handle: consumer for topic in self.topics for subscription in topic.subscriptions.values()
                     for consumer in subscription.consumers}
        for handle, partition_id, ledger_id, gift in answers.gifts:
            demand(handle in by_handle, "only who is there gets something", handle)
            consumer = by_handle[handle]
            for entry_id, redeliveries, words in gift:
                checks.given(consumer.subscription, consumer, (ledger_id, entry_id), redeliveries, words, self.now_ms,
                             is_by_priority=self.is_by_priority)
                self.count("deliveries")
            with self.disk.aside():
                checks.delivered_bytes(self.disk.root, partition_id, ledger_id, [one[0] for one in gift],
                                       consumer.subscription.topic)
            self.say("given", consumer.name, ledger_id, [one[:2] for one in gift])

    def _follow(self) -> None:
        """Acknowledge in the model what the owner has acknowledged by itself in this pass."""

    def check(self, answers: Answers) -> None:
        checks.counters(self.rig, self.topics)
        with self.disk.aside():
            for topic in self.topics:
                partition = checks.partition_of(self.rig, topic)
                if topic.is_known and partition is not None:
                    self._look(topic, partition)

    def _look(self, topic: Topic, partition: Partition) -> None:
        checks.totals_add_up(topic, partition)
        for subscription in topic.subscriptions.values():
            if subscription is self.making and not subscription.consumers:      # it was refused
                continue
            checks.subscription_is(subscription, partition)
            checks.nothing_held_back(subscription, partition, self.now_ms)
        checks.agrees_with_itself(partition)

    def know(self, topic: Topic) -> bool:
        """Learn what a crash has left of the topic; return False if that cannot be seen now."""
        if topic.is_known:
            return True
        name = names.parse(topic.name)

        def look():
            self.rig.owner.passes.begin(self.now_ms)
            try:
                return (self.rig.owner.topics.find(name),)
            except FAILURES as error:      # whoever asks is refused
                self._check_injected(error)
                return "not now"

        found = self.guard(look)
        if found in (None, "not now") or topic.is_known:
            return topic.is_known
        if self.is_dying:
            self.is_dying = False
            self.restart()
            return topic.is_known
        [partition] = found
        with self.disk.aside():
            if partition is None:
                demand(not topic.log, "receipted entries are there", topic.name)
                demand(all(any(low is None for low, _ in one.candidates) for one in topic.subscriptions.values()),
                       "subscriptions stay")
                topic.subscriptions, topic.attempted = {}, []
            else:
                checks.entries_are_there(topic, partition, self.disk.root)
                topic.first_ledger = max(topic.first_ledger, -1)
                checks.whoever_waited_goes_on(topic, partition)
                topic.subscriptions = {key: one for key, one in topic.subscriptions.items() if one.state is not None}
                self.say("found", topic.name, len(topic.log), [one.name for one in topic.subscriptions.values()])
        topic.is_known = True
        return self.run() is not None and topic.is_known
