"""Kills: a real broker under load of real clients and raw ones, of which a random process is killed at a random moment,
again and again.

    python -m tests.crash.run --kills 1000 --seed 1

A round is an empty folder, a configuration by chance, some topics, and KILLS kills; then all is held against what
clients were promised.
"""
import random
import threading
import time
from pathlib import Path

from ..harness import HANG_SECONDS, eventually
from . import rounds
from .clients import KINDS, Client
from .figures import configuration

KILLS = 50                    # of a round
PATIENCE = HANG_SECONDS
PAUSE_SECONDS = 0.3           # at most, between two
VICTIMS = {"worker": 3, "owner": 4, "admin": 1, "supervisor": 3}


class Round(rounds.Round):
    """One folder and its broker, whose processes are killed."""

    def __init__(self, folder: Path, seed: int):
        chance = random.Random(seed)
        self.epoch, self.folder = 0, folder
        folder.mkdir()
        super().__init__(rounds.broker_of(folder, folder / "data", configuration(chance, workers=2, owners=2)), chance)

    def load(self) -> None:
        self.add_lanes("crash", 2)
        for how in self.chance.sample(KINDS, 2):
            self.clients.append(Client(self.broker, self.folder / "clients.log", self.chance.randrange(1 << 32),
                                       lambda: self.epoch, **how))

    def finish(self) -> None:
        self.broker.kill_supervisor()
        self.start()

    def end(self) -> None:
        threading.Event().wait(self.chance.random() * PAUSE_SECONDS)
        victim = self.chance.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        self.epoch += 1
        begun = time.monotonic()
        if victim == "supervisor":
            self.broker.kill_supervisor()
        else:
            self.broker.kill(victim, 0 if victim == "admin" else self.chance.randrange(2))
        self.epoch += 1
        if victim == "supervisor":
            self.start()
        self.figures.ends[f"killed: {victim}"] += 1
        if self.chance.random() < 0.7:        # else the next comes while this one is not over
            sent = {lane: lane.promises.sent for lane in self.lanes}
            eventually(lambda: all(lane.promises.latest >= sent[lane] for lane in self.lanes), PATIENCE,
                       "receipts on all topics")
            self.figures.took(f"return of publishing, {victim} killed", time.monotonic() - begun)


if __name__ == "__main__":
    raise SystemExit(rounds.main("kills", __doc__, Round, KILLS))
