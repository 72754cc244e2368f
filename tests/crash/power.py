"""Power cuts: a real broker under load on a file system that forgets what was not synced (forgetful.py), cut and started again.

    python -m tests.crash.power --cuts 1000 --seed 1

A round is an empty disk, a configuration by chance, some topics, and CUTS cuts; then all is held against what its clients were promised.
"""
import argparse
import os
import random
import signal
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from ..harness import Broker, unique_topic
from .figures import Figures, NotBack, configuration
from .forgetful import Disk
from .traffic import LANES, Lane

CUTS = 20                     # of a round
LOAD_SECONDS = 0.5            # at most, between a start and a cut


class Round:
    """One disk and its broker."""

    def __init__(self, folder: Path, seed: int, sync: str = "group"):
        self.chance = random.Random(seed)
        self.figures = Figures()
        folder.mkdir()
        config = folder / "geminga.toml"
        config.write_text(configuration(self.chance, workers=1, owners=self.chance.choice([1, 2]), sync=sync))
        self.disk = Disk(folder / "disk", seed)
        self.broker = Broker(folder / "disk", "--config", str(config))

    def run(self, cuts: int) -> Figures:
        lanes: list[Lane] = []
        try:
            self._start()
            lanes = [Lane(self.broker, unique_topic("power"), self.chance.randrange(1 << 32), is_audited=self.chance.random() < 0.5, **how)
                     for how in self.chance.sample(LANES, 3)]
            for _ in range(cuts):
                self._load()
                self._cut()
                while self.chance.random() < 0.15:
                    self._cut_while_it_starts()
                self._start()
            for lane in lanes:
                lane.stop()
            for lane in lanes:
                self.figures.receipted += len(lane.promises.receipted)
                self.figures.acknowledged += len(lane.promises.acked)
                self.figures.faults += lane.faults()
        except NotBack:
            pass
        finally:
            for lane in lanes:
                lane.stop()
            self.broker.close()
            self.disk.close()
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

    def _load(self) -> None:
        wait = threading.Event().wait
        wait(self.chance.random() * LOAD_SECONDS)
        if self.chance.random() < 0.5:
            self.disk.write_back()
            wait(self.chance.random() * 0.1)

    def _power_off(self) -> None:
        self.disk.freeze()
        for pid in [self.broker.pid, *self.broker.children().values()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.disk.thaw()

    def _cut(self) -> None:
        self._power_off()
        self.broker.kill_supervisor()
        self.disk.cut(self.chance.randrange(1 << 32))
        self.figures.ends["cut"] += 1

    def _cut_while_it_starts(self) -> None:
        def start() -> None:
            with suppress(RuntimeError):          # it printed no addresses: so it was meant
                self.broker.start()

        thread = threading.Thread(target=start)
        thread.start()
        thread.join(self.chance.uniform(0.2, 0.8))
        self._power_off()
        thread.join()
        self.broker.close()
        self.disk.cut(self.chance.randrange(1 << 32))
        self.figures.ends["cut during a start"] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    all_of_them, seed = Figures(), options.seed
    while all_of_them.ends.total() < options.cuts:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="power-") as folder:
            figures = Round(Path(folder) / "round", seed).run(CUTS)
        all_of_them.add(figures)
        print(f"seed {seed}: {figures.line()}", flush=True)
        seed += 1
    print(all_of_them.table())
    return not all_of_them.is_good


if __name__ == "__main__":
    raise SystemExit(main())
