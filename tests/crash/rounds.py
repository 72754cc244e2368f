"""What runs of kills and of power cuts share: rounds, each of them a broker under load that ends again and again."""
import argparse
import random
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from ..harness import Broker, unique_topic
from .clients import Client
from .figures import Figures, NotBack
from .traffic import LANES, Lane


class Round(ABC):
    """One folder with a broker and a load; at the end everything is compared with what clients were promised."""

    def __init__(self, broker: Broker, chance: random.Random):
        self.broker, self.chance, self.figures = broker, chance, Figures()
        self.lanes: list[Lane] = []
        self.clients: list[Client] = []

    @abstractmethod
    def load(self) -> None:
        """Start the clients, after the broker was started."""

    @abstractmethod
    def end(self) -> None:
        """End the broker in this run's way, and start it again."""

    @abstractmethod
    def finish(self) -> None:
        """Check all promises, after the clients were stopped."""

    def close(self) -> None:
        self.broker.close()

    def run(self, ends: int) -> Figures:
        try:
            self.start()
            self.load()
            for _ in range(ends):
                self.end()
            for load in self.lanes + self.clients:
                load.stop()
            self.finish()
            for load in self.lanes + self.clients:
                self.figures.receipted += len(load.promises.receipted)
                self.figures.acknowledged += len(load.promises.acked)
                self.figures.faults += load.faults()
        except NotBack:
            pass
        finally:
            for lane in self.lanes:
                lane.stop()
            for client in self.clients:
                client.abandon()
            self.close()
        self.figures.tracebacks = self.broker.log().count("Traceback")
        if not self.figures.is_good:
            print(self.broker.log())
        return self.figures

    def add_lanes(self, hint: str, count: int) -> None:
        self.lanes += [Lane(self.broker, unique_topic(hint), self.chance.randrange(1 << 32),
                            is_audited=self.chance.random() < 0.5, **how)
                       for how in self.chance.sample(LANES, count)]

    def start(self) -> None:
        begun = time.monotonic()
        try:
            self.broker.start()
        except RuntimeError as failed:
            self.figures.restart_failures += 1
            raise NotBack from failed
        self.figures.took("start", time.monotonic() - begun)


def broker_of(folder: Path, data_dir: Path, configuration: str) -> Broker:
    config = folder / "geminga.toml"
    config.write_text(configuration)
    return Broker(data_dir, "--config", str(config))


def main(what: str, documentation: str, make: Callable[[Path, int], Round], ends: int) -> int:
    """Run the command of a crash test.  what: how the broker ends, and the option for how often; ends: in each
    round.
    """
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(f"--{what}", dest="ends", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    return many(make, options.ends, ends, options.seed, options.folder)


def many(make: Callable[[Path, int], Round], wanted: int, ends: int, seed: int, place: Path) -> int:
    """Run rounds until the broker has ended as often as wanted, print the outcome, and return the exit status."""
    all_of_them = Figures()
    while all_of_them.ends.total() < wanted:
        with tempfile.TemporaryDirectory(dir=place, prefix="crash-") as folder:
            figures = make(Path(folder) / "round", seed).run(ends)
        all_of_them.add(figures)
        print(f"seed {seed}: {figures.line()}", flush=True)
        seed += 1
    print(all_of_them.table())
    return not all_of_them.is_good
