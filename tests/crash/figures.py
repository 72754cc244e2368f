"""What runs of kills and of power cuts share: the broker's configuration, and what came of it."""
import random
from collections import Counter
from dataclasses import dataclass, field


class NotBack(Exception):
    """The broker did not start again, so the round ends."""


@dataclass
class Figures:
    ends: Counter[str] = field(default_factory=Counter)       # kills and cuts, by kind
    receipted: int = 0                                        # messages
    acknowledged: int = 0                                     # answered
    faults: Counter[str] = field(default_factory=Counter)     # broken promises, as Promises.kept names them
    restart_failures: int = 0
    tracebacks: int = 0
    slowest: dict[str, float] = field(default_factory=dict)   # seconds, by what took them

    def took(self, what: str, seconds: float) -> None:
        self.slowest[what] = max(self.slowest.get(what, 0.0), seconds)

    def add(self, other: "Figures") -> None:
        self.ends += other.ends
        self.receipted += other.receipted
        self.acknowledged += other.acknowledged
        self.faults += other.faults
        self.restart_failures += other.restart_failures
        self.tracebacks += other.tracebacks
        for what, seconds in other.slowest.items():
            self.took(what, seconds)

    @property
    def is_good(self) -> bool:
        return not (self.faults.total() or self.restart_failures or self.tracebacks)

    def line(self) -> str:
        return (f"{self.ends.total()} ends, {self.receipted} receipts, {self.acknowledged} acknowledgements answered, "
                f"faults {dict(self.faults) or 0}, restart failures {self.restart_failures}, tracebacks "
                f"{self.tracebacks}")

    def table(self) -> str:
        rows = [*self.ends.items(), ("messages receipted", self.receipted),
                ("acknowledgements answered", self.acknowledged),
                ("receipted and lost", self.faults["lost"]), ("acknowledged, answered and back", self.faults["back"]),
                *((f"fault: {what}", count) for what, count in self.faults.items() if what not in ("lost", "back")),
                ("restart failures", self.restart_failures), ("tracebacks", self.tracebacks),
                *((f"slowest {what}", f"{seconds:.2f} s") for what, seconds in self.slowest.items())]
        return "\n".join(f"{what:40}{value:>12}" for what, value in rows)


def configuration(chance: random.Random, *, workers: int, owners: int, sync: str = "group") -> str:
    """Return a configuration: mostly with small files, so that journals and ledgers roll often; sometimes the
    defaults.
    """
    lines = [f"workers = {workers}", f"owners = {owners}", "[storage]", f'sync = "{sync}"']
    if chance.random() < 0.8:
        lines += [f"roll_over_entries = {chance.choice([100, 1_000, 10_000])}", f"pass_bytes_max = {1 << 16}",
                  f"journal_segment_bytes = {chance.choice([3 << 19, 4 << 20])}",
                  f"journal_segments_max = {chance.choice([2, 4, 8])}",
                  "[network]", f"max_message_size = {1 << 16}"]
    return "\n".join(lines) + "\n"
