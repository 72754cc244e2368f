"""Kills: a real broker under load of real clients and raw ones, of which a random process is killed at a random moment, again and again.

    python -m tests.crash.run --kills 1000 --seed 1

A round is an empty folder, a configuration by chance, some topics, and KILLS kills; then all is held against what clients were promised.
"""
import argparse
import random
import tempfile
import threading
import time
from pathlib import Path

from ..harness import Broker, eventually, unique_topic
from .clients import KINDS, Client
from .figures import Figures, NotBack, configuration
from .traffic import LANES, Lane

KILLS = 50                    # of a round
PATIENCE = 60                 # seconds; how long it took is in the figures
PAUSE_SECONDS = 0.3           # at most, between two
VICTIMS = {"worker": 3, "owner": 4, "admin": 1, "supervisor": 3}


class Round:
    """One folder and its broker."""

    def __init__(self, folder: Path, seed: int):
        self.chance = random.Random(seed)
        self.figures = Figures()
        self.epoch = 0
        folder.mkdir()
        self.folder = folder
        config = folder / "geminga.toml"
        config.write_text(configuration(self.chance, workers=2, owners=2))
        self.broker = Broker(folder / "data", "--config", str(config))

    def run(self, kills: int) -> Figures:
        lanes: list[Lane] = []
        clients: list[Client] = []
        try:
            self._start()
            lanes += [Lane(self.broker, unique_topic("crash"), self.chance.randrange(1 << 32), is_audited=self.chance.random() < 0.5, **how)
                      for how in self.chance.sample(LANES, 2)]
            for how in self.chance.sample(KINDS, 2):
                clients.append(Client(self.broker, self.folder / "clients.log", self.chance.randrange(1 << 32),
                                      lambda: self.epoch, **how))
            for _ in range(kills):
                threading.Event().wait(self.chance.random() * PAUSE_SECONDS)
                self._kill(lanes)
            for load in lanes + clients:
                load.stop()
            self.broker.kill_supervisor()
            self._start()
            for load in lanes + clients:
                self.figures.receipted += len(load.promises.receipted)
                self.figures.acknowledged += len(load.promises.acked)
                self.figures.faults += load.faults()
        except NotBack:
            pass
        finally:
            for lane in lanes:
                lane.stop()
            for client in clients:
                client.abandon()
            self.broker.close()
        self.figures.tracebacks = self.broker.log().count("Traceback")
        if not self.figures.is_good:
            print(self.broker.log())
        return self.figures

    def _start(self) -> None:
        begun = time.monotonic()
        try:
            self.broker.start()
        except RuntimeError as failed:
            self.figures.restart_failures += 1
            raise NotBack from failed
        self.figures.took("start", time.monotonic() - begun)

    def _kill(self, lanes: list[Lane]) -> None:
        victim = self.chance.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        self.epoch += 1
        begun = time.monotonic()
        if victim == "supervisor":
            self.broker.kill_supervisor()
        else:
            self.broker.kill(victim, 0 if victim == "admin" else self.chance.randrange(2))
        self.epoch += 1
        if victim == "supervisor":
            self._start()
        self.figures.ends[f"killed: {victim}"] += 1
        if self.chance.random() < 0.7:        # else the next comes while this one is not over
            sent = {lane: lane.promises.sent for lane in lanes}
            eventually(lambda: all(lane.promises.latest >= sent[lane] for lane in lanes), PATIENCE, "receipts on all topics")
            self.figures.took(f"return of publishing, {victim} killed", time.monotonic() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    all_of_them, seed = Figures(), options.seed
    while all_of_them.ends.total() < options.kills:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="crash-") as folder:
            figures = Round(Path(folder) / "round", seed).run(KILLS)
        all_of_them.add(figures)
        print(f"seed {seed}: {figures.line()}", flush=True)
        seed += 1
    print(all_of_them.table())
    return not all_of_them.is_good


if __name__ == "__main__":
    raise SystemExit(main())
