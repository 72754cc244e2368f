"""What clients of a topic were promised, and what there is of it in the end.

A message is a number, published in ascending order; where it is stored is its place (ledger, entry, place in the
batch).
"""
from collections import Counter
from dataclasses import dataclass, field

Place = tuple[int, int, int]

def body(number: int) -> bytes:
    """Return the body of message `number`: lengths vary, and int() reads it."""
    return b"%d" % number + b" " * (number * 7919 % 997)


def number_of(data: bytes) -> int:
    """Return the number of the message with this body; -1 for none."""
    try:
        return int(data)
    except ValueError:
        return -1


@dataclass
class Promises:
    """The promises made to clients of one topic; each part is written by one client's thread."""

    topic: str
    # nothing of it is deleted: a subscription of that name takes nothing
    is_audited: bool = True
    sent: int = 0                                                     # numbers below were published
    latest: int = -1                                                  # receipted
    receipted: set[int] = field(default_factory=set)
    # of a number, where more than one: sent again by a client
    copies_allowed: Counter[int] = field(default_factory=Counter)
    asked: dict[Place, int] = field(default_factory=dict)             # acknowledged, answered or not
    acked: set[Place] = field(default_factory=set)                    # and answered
    found: Counter[str] = field(default_factory=Counter)              # what was seen at once
    details: list[str] = field(default_factory=list)                  # a line for a fault

    def delivered(self, place: Place, number: int, data: bytes) -> None:
        self._fault(self.found, "back", [place] if place in self.acked else [])
        self._fault(self.found, "damaged", [(place, number, data)] if data != body(number) else [])

    def _fault(self, faults: Counter[str], what: str, cases: list) -> None:
        if cases:
            faults[what] += len(cases)
            self.details.append(f"{self.topic}: {what}: {len(cases)} from {cases[0]!r} to {cases[-1]!r}"[:500])

    def kept(
        self, stored: list[tuple[Place, int]], left: list[tuple[Place, int]], parted: bool = False
    ) -> Counter[str]:
        """Count broken promises.  stored: all messages of the topic; left: those that the subscription has not
        acknowledged.

        parted: messages went to several partitions, or client batches by key changed their order, so no order is
        checked.
        """
        numbers = Counter(number for _, number in stored)
        places, rest = {place for place, _ in stored}, {place for place, _ in left}
        asked = set(self.asked.values())
        faults = Counter(self.found)
        self._fault(faults, "lost",
                    sorted(n for n in self.receipted if n not in numbers and (self.is_audited or n not in asked)))
        self._fault(faults, "back", sorted(self.acked & rest))
        self._fault(faults, "undelivered", sorted(places - rest - self.asked.keys()))
        self._fault(faults, "duplicates", [n for n, count in numbers.items() if count > self.copies_allowed.get(n, 1)])
        self._fault(faults, "duplicates",
                    [place for place, count in Counter(place for place, _ in left).items() if count > 1])
        self._fault(faults, "unknown", [found for found in stored if not 0 <= found[1] < self.sent])
        self._fault(faults, "unknown", sorted(rest - places))
        if not parted:
            self._fault(faults, "disorder", descents(list(dict.fromkeys(number for _, number in stored))))
            self._fault(faults, "disorder", descents([place for place, _ in left]))
        return +faults


def descents(values: list) -> list[tuple]:
    """Return the neighbours of which the second is not larger."""
    return [(one, other) for one, other in zip(values, values[1:], strict=False) if not one < other]


def is_ascending(values: list) -> bool:
    return not descents(values)
