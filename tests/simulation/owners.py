"""Owners that are processes of their own, on one disk, with a network and a supervisor between them.

    Network     envelopes between owners: in order for each pair, and lost with the process at either end
    Owners      a World of one or two owners; one may be killed or stopped while the other goes on

A power cut ends all of them.  The supervisor tells each process which others came and went, some time later.
"""
import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from geminga.proto import envelope
from geminga.storage.errors import CorruptFile
from geminga.storage.owner import recovery
from geminga.storage.runtime.routing import owner_of
from geminga.storage.transactions.peers import Links

from ..storage.rig import WORKER, Answers, Rig
from .disk import Fate, Killed
from .model import Broken, demand
from .turns import Turns
from .world import FAILURES, MENDED, Again, World

FIRST_SERIAL = 1_000      # above the numbers of workers
ROUNDS = 400              # of messages between owners, after which these do not come to an end any more


class Network:
    """What owners have sent each other, as the ZeroMQ context of all of them."""

    def __init__(self) -> None:
        self.under_way: dict[tuple[int, int], list[list[bytes]]] = {}      # by serials of sender and receiver
        self.alive: set[int] = set()

    def socket(self, kind: int) -> "Wire":
        assert kind == zmq.DEALER, kind
        return Wire(self)

    def post(self, sender: int, receiver: int, frames: list[bytes]) -> None:
        if receiver in self.alive:
            self.under_way.setdefault((sender, receiver), []).append(frames)

    def take(self, receiver: int, chance=None) -> list[tuple[int, list[bytes]]]:
        """Return [(sender, frames)] that have arrived: all, or as many as `chance` likes."""
        found = []
        for (sender, to), waiting in self.under_way.items():
            if to == receiver:
                count = len(waiting) if chance is None else chance.randint(0, len(waiting))
                found += [(sender, frames) for frames in waiting[:count]]
                del waiting[:count]
        return found

    def ended(self, serial: int, chance=None) -> None:
        """Lose what was on its way to a process that has ended, and some of what it had sent last if it was killed.

        chance: how much; None: it was stopped, and all that it had sent arrives.
        """
        self.alive.discard(serial)
        for (sender, to), waiting in self.under_way.items():
            if to == serial:
                waiting.clear()
            elif sender == serial and chance is not None:
                del waiting[chance.randint(0, len(waiting)):]


class Wire:
    """The simulated socket from one owner to another."""

    def __init__(self, network: Network):
        self._network, self._frames = network, []
        self._sender = self._receiver = 0

    def setsockopt(self, option: int, value) -> None:
        if option == zmq.IDENTITY:
            self._sender = int(value[1:])

    def connect(self, address: str) -> None:
        self._receiver = int(re.search(r"owner-(\d+)", address)[1])

    def send(self, frame, flags: int = 0) -> None:
        self._frames.append(bytes(frame))
        if not flags & zmq.SNDMORE:
            self._network.post(self._sender, self._receiver, self._frames)
            self._frames = []

    def close(self, linger=None) -> None:
        self._receiver = 0


@dataclass(eq=False)
class Process:
    """One owner's process."""

    index: int
    serial: int
    turns: Turns
    before: dict[str, int]                                      # faults of the disk before it started
    rig: Rig | None = None
    links: Links | None = None
    catalogues: list = field(default_factory=list)
    news: list[tuple[int, int | None]] = field(default_factory=list)      # (index, serial or None: gone) of others
    is_known: bool = False              # all owners served, and had told each other everything, since it started


class Owners(World):
    """A world of several owners.  Their clients are a subclass's."""

    def __init__(self, seed: int, folder: Path):
        super().__init__(seed, folder)
        self.owners = self.chance.choice([1, 2, 2, 2])
        self.is_moving = self.chance.random() < 0.3       # whether the number of owners changes
        self.serials = itertools.count(FIRST_SERIAL)
        self.network = Network()
        self.processes: dict[int, Process] = {}           # those that serve, by index
        self.process: Process | None = None               # the one that runs

    def owner_of(self, topic: str) -> Process | None:
        """Return the process that has a topic now."""
        return self.processes.get(self.index_of(topic))

    def index_of(self, topic: str) -> int:
        """Return the index of the owner that a topic belongs to."""
        return owner_of(f"persistent://public/default/{topic}", self.owners)

    def _enter(self, process: Process) -> None:
        """Let a process run: all that happens to the disk is its doing."""
        self.process, self.rig = process, process.rig
        self.turns, self.catalogues, self.before = process.turns, process.catalogues, process.before
        self.disk.pause, self.disk.is_owner = process.turns.pause, lambda: process.turns.running is None

    # -- starts

    def begin(self) -> None:
        """Start all owners, and prepare what clients need."""
        self.start_all()

    def start_all(self, *, has_faults: bool = False) -> None:
        """Start all owners that are needed, none of which serves, again after each fault that ends one of them."""
        for attempt in itertools.count():
            self.disk.begin_process()
            if has_faults and attempt < 3:
                self._draw_fate(0.3)
            is_moved = recovery.has_moved(self.disk.root, self.owners)
            if all(self.start(index, is_moved=is_moved) for index in range(self.owners)) \
                    and (not is_moved or self._introduced()) and self._settled():
                self.disk.fate = Fate()
                return
            for process in list(self.processes.values()):
                self.lose(process)

    def _introduced(self) -> bool:
        """Tell owners of each other, and carry what they say then; return whether all of them still serve.

        After partitions have moved, the supervisor starts workers only when all owners have recovered, and each owner
        knows that before a client's command can reach it.  So no client meets an owner that waits for another one.
        """
        while any(process.news for process in self.processes.values()):
            self.tell_news()
            self.carry()
        return len(self.processes) == self.owners

    def _settled(self) -> bool:
        try:
            recovery.settle(self.disk.root, self.owners)
        except Killed:
            pass
        except FAILURES as error:
            self._check_injected(error)
        else:
            return True
        self.die()
        return False

    def start(self, index: int, *, is_moved: bool = False) -> bool:
        """Start one owner; return whether it serves."""
        process = Process(index, next(self.serials), Turns(self.disk, self.chance), dict(self.disk.faults))
        self._enter(process)
        number = self.owners
        try:
            process.rig = Rig(
                self.disk.root, now_ms=self.now_ms, owners=number, index=index, has_moved=is_moved,
                is_mine=lambda name: owner_of(name, number) == index, **self.options)
        except Killed:
            self.count("kills while recovering")
        except FAILURES as error:
            self._check_injected(error)
            self.count("starts that failed")
        except CorruptFile as error:
            raise Broken("a crash damages nothing", str(error)) from error
        if process.rig is None:
            self.die()
            return False
        damage = [text for text in process.rig.damage if not text.endswith(MENDED)]
        demand(not damage, "a crash damages nothing", damage)
        self.rig, process.links = process.rig, Links(self.network, Path("/run"), process.serial)
        for other in self.processes.values():
            other.news.append((index, process.serial))
            process.news.append((other.index, other.serial))
        self.processes[index] = process
        self.network.alive.add(process.serial)
        self.say("process", index, process.serial, self.disk.calls)
        return True

    def start_some(self) -> None:
        """Start owners that do not serve, sometimes another number of them."""
        if not self.processes:
            if self.is_moving and self.chance.random() < 0.5:
                self.owners = 3 - self.owners
            return self.start_all(has_faults=True)
        for index in range(self.owners):
            if index not in self.processes and self.chance.random() < 0.7 and not self.start(index):
                return

    # -- ends

    def restart(self) -> None:
        """End the running process, as `guard` wants it; another one starts later.  Raises Again at the world's end."""
        self.die()
        if self.is_ending:
            raise Again

    def die(self, *, is_cut: bool | None = None) -> None:
        """End the running process, and all others too if the power is cut."""
        is_cut = self.disk.fate.power_fails or self.chance.random() < 0.3 if is_cut is None else is_cut
        self.lose(self.process)
        if is_cut:
            for process in list(self.processes.values()):
                self.lose(process)
            self._cut_power()
        else:
            self.count("kills")
        self.is_dying = False
        self.disk.begin_process()
        self.say("died", self.process.index, is_cut)

    def lose(self, process: Process, *, is_stopped: bool = False) -> None:
        """Drop everything of a process but its files."""
        is_dead, self.disk.is_dead = self.disk.is_dead, True
        process.turns.end()
        for found in process.catalogues:
            found.close()
        for partition in process.rig.partitions if process.rig is not None else ():
            for ledger in partition.ledgers:
                ledger.close()
        self.disk.is_dead = is_dead
        if self.processes.get(process.index) is process:
            del self.processes[process.index]
            self.network.ended(process.serial, None if is_stopped else self.chance)
            for other in self.processes.values():
                other.news.append((process.index, None))
            self.gone(process)

    def gone(self, process: Process) -> None:
        """Note that a process has ended: its clients are disconnected."""

    def _bury(self) -> None:
        for process in list(self.processes.values()):
            self.lose(process)

    def stop_one(self, process: Process) -> None:
        """Stop a process cleanly."""
        self._enter(process)
        self.say("stop", process.index)
        if self.guard(process.rig.close, is_last=True) is not None:
            self.count("stops")
            self.lose(process, is_stopped=True)
            self.disk.begin_process()

    # -- what happens to owners

    def faults_go_on(self) -> None:
        """Let faults begin and end, threads run, owners start, and some of what is under way arrive."""
        if self.disk.fate.is_full and self.chance.random() < 0.3:
            self.disk.fate.room = None
        if self.disk.fate.files_left is not None and self.chance.random() < 0.5:
            self.disk.fate.files_left = None
        if self.disk.fate == Fate():
            self._draw_fate(0.08)
        if self.processes and self.chance.random() < 0.2:
            self._enter(self.chance.choice(list(self.processes.values())))
            self.guard(lambda: [self.turns.some() for _ in range(self.chance.randint(1, 20))])
            if self.is_dying:
                self.die()
        if self.chance.random() < 0.5:
            self.start_some()
        if self.chance.random() < 0.7:
            self.tell_news()
        if self.chance.random() < 0.6:
            self.carry()
        self.note_known()

    def time_passes(self) -> None:
        self.now_ms += self.chance.choice([1, 20, 20, 100, 100, 500, 5_000, 60_000])
        self.pass_of_all()

    def pass_of_all(self, after_ms: int = 0) -> None:
        """Run a pass of each owner."""
        self.now_ms += after_ms
        for process in list(self.processes.values()):
            self.pass_of(process)

    def killed(self) -> None:
        if self.processes:
            self._enter(self.chance.choice(list(self.processes.values())))
            self.die()

    def stopped(self) -> None:
        if self.processes:
            self.stop_one(self.chance.choice(list(self.processes.values())))

    # -- passes

    def pass_of(self, process: Process, *sections, others=(), before=None) -> Answers | None:
        """Run a pass of an owner and tell clients its answers; return these, None if the process ended before.

        others: (sender, frames) from other owners.  before: called at the pass's beginning.
        """
        if self.processes.get(process.index) is not process:
            return None
        self._enter(process)
        process.rig.now_ms = self.now_ms
        failed, by_sender = self.disk.failed_syncs, {WORKER: list(sections)}
        for sender, frames in others:
            by_sender.setdefault(sender, []).extend(envelope.unseal(frames)[1])

        def work() -> Answers:
            if before is not None:
                process.rig.owner.passes.begin(self.now_ms)
                before()
            return process.rig.run_all(by_sender)

        answers = self.guard(work)
        self.count("passes")
        if answers is None:
            return None
        demand(self.disk.failed_syncs == failed, "a failed sync ends the owner")
        self.answered(process, answers)
        # Killed behind the pass: clients have the answers, other owners have nothing.
        if self.is_dying or (self.disk.fate != Fate() and self.chance.random() < 0.05):
            self.restart()
            return None
        process.links.send(process.rig.owner.peers.take_others())
        return answers

    def answered(self, process: Process, answers: Answers) -> None:
        """Take the answers of a pass for the clients."""

    def carry(self, *, is_all: bool = False) -> None:
        """Bring envelopes to owners."""
        for process in list(self.processes.values()):
            if found := self.network.take(process.serial, None if is_all else self.chance):
                self.pass_of(process, others=found)

    def tell_news(self, *, is_all: bool = False) -> None:
        """Tell owners which others came and went."""
        for process in list(self.processes.values()):
            while process.news and self.processes.get(process.index) is process \
                    and (is_all or self.chance.random() < 0.7):
                index, serial = process.news.pop(0)
                self.pass_of(process, before=lambda one=process, news=(index, serial): _hear(one, *news))

    @property
    def _is_quiet(self) -> bool:
        """Whether nothing is on its way to any owner."""
        return not any(self.network.under_way.values()) and not any(one.news for one in self.processes.values())

    def note_known(self) -> None:
        """Note whether owners have told each other everything."""
        if self._is_quiet and len(self.processes) == self.owners:
            for process in self.processes.values():
                process.is_known = True

    def settle(self) -> None:
        """Let everything arrive that owners have to tell each other."""
        for _ in range(ROUNDS):
            if self._is_quiet:
                return
            self.tell_news(is_all=True)
            self.carry(is_all=True)
        raise Broken("owners come to an end", str(self.network.under_way))


def _hear(process: Process, index: int, serial: int | None) -> None:
    if serial is None:
        process.links.disconnect(index)
    else:
        process.links.connect(index, serial)
        process.rig.owner.owner_is_up(index)
