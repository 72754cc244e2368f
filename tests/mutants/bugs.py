"""What a bug of the list is, and where the lists are.

A list is a module beside this one with a name for its room (`proto`, `workers`, ...) and a tuple BUGS, made of
`of(...)`.
"""
import importlib
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NOT_LISTS = {"__main__", "bugs", "checkout"}


class Bug(NamedTuple):
    """A text of a file that stands there once, and what is to stand there instead."""

    file: str
    old: str
    new: str
    breaks: str                  # in a few words; "" where the texts say it all
    tests: tuple[str, ...]       # files and functions that concern it, the fastest first
    harmless: str = ""           # why no test can tell it from the right code, if none can

    def __str__(self) -> str:
        return f"{self.file}: {self.breaks or f'{_short(self.old)} -> {_short(self.new)}'}"

    def put_in(self, source: str) -> str:
        """The source with the bug; ValueError unless its text stands there once."""
        if source.count(self.old) != 1:
            raise ValueError(f"{self}: its text stands there {source.count(self.old)} times: {self.old!r}")
        return source.replace(self.old, self.new)


def _short(text: str) -> str:
    return repr(" ".join(text.split())[:80])


def of(file: str, tests: str, *rows: tuple[str, ...]) -> list[Bug]:
    """Bugs of one file as rows (old text, new text, what it breaks[, tests of its own[, why it is harmless]]).

    Tests are separated by spaces, and relative to the folder of all tests.
    """
    found = []
    for old, new, breaks, *more in rows:
        own, harmless = (*more, "", "")[:2]
        found.append(Bug(file, old, new, breaks, tuple(f"tests/{test}" for test in (own or tests).split()), harmless))
    return found


def all_bugs() -> list[Bug]:
    rooms = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_LISTS)
    return [bug for room in rooms for bug in importlib.import_module(f"{__package__}.{room}").BUGS]
