"""What a wing declares: a subject is a program of others in one version, which is asked some things."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .running import Ground


class NotRun(Exception):
    """Something cannot be had on this machine; the text says what and why."""


Answers = Iterator[tuple[str, str]]      # (what was asked, the answer)


@dataclass(frozen=True)
class Subject:
    """A program of others, or a combination of some.

    name: the same for all versions that take turns, such as "Java 4.0"; versions: of each package.
    asked: what is asked, with the expected answer.  ask: yields the answers to some of it, in any order; raises NotRun.
    """

    name: str
    versions: str
    asked: dict[str, str]
    ask: Callable[[Ground, list[str]], Answers]
    compared: bool = False      # whether it can be asked with Pulsar in Geminga's place
    # Answers that differ for a reason that is no fault of Geminga's: what was asked, the reason.
    decided: dict[str, str] = field(default_factory=dict)
    like: str = ""      # of a newest version: the subject in the record whose answers are compared
