"""Power cuts: a real broker under load on a file system that forgets what was not synced (forgetful.py), cut and
started again.

    python -m tests.crash.power --cuts 1000 --seed 1

A round is an empty disk, a configuration by chance, some topics, and CUTS cuts; then all is held against what its
clients were promised.
"""
import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..harness import eventually
from . import rounds
from .figures import configuration
from .forgetful import Disk

CUTS = 20                     # of a round
LOAD_SECONDS = 0.5            # at most, between a start and a cut


class Round(rounds.Round):
    """One disk and its broker, whose power is cut.  disk_of: makes the disk in a folder, of a seed."""

    def __init__(self, folder: Path, seed: int, sync: str = "group", disk_of: Callable[[Path, int], Disk] = Disk):
        chance = random.Random(seed)
        folder.mkdir()
        text = configuration(chance, workers=1, owners=chance.choice([1, 2]), sync=sync)
        self.disk = disk_of(folder / "disk", seed)
        super().__init__(rounds.broker_of(folder, self.disk.folder, text), chance)

    def load(self) -> None:
        self.add_lanes("power", 3)

    def end(self) -> None:
        self._wait()
        self._cut()
        while self.chance.random() < 0.15:
            self._cut_while_it_starts()
        self.start()

    def finish(self) -> None:
        """Check all promises, after the broker was started again."""

    def close(self) -> None:
        super().close()
        self.disk.close()

    def _wait(self) -> None:
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
        eventually(lambda: self.broker.is_there or not thread.is_alive(), what="a process")
        thread.join(self.chance.uniform(0.1, 0.8))
        if self.broker.is_there:
            self._power_off()
        thread.join()
        self.broker.close()
        self.disk.cut(self.chance.randrange(1 << 32))
        self.figures.ends["cut during a start"] += 1


if __name__ == "__main__":
    raise SystemExit(rounds.main("cuts", __doc__, Round, CUTS))
