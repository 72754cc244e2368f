"""The type of a bug, and the function that collects all lists of bugs.

A list is a module beside this one, named for its room (`proto`, `workers`, ...), with a tuple BUGS made of `of(...)`.
"""
import importlib
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIVES = "simulation/test_simulation.py::test_every_promise_is_kept"      # whole lives of owners, under seeds
NOT_LISTS = {"__main__", "bugs", "checkout"}


class Bug(NamedTuple):
    """A text that stands exactly once in a file, and the wrong text that replaces it."""

    file: str
    old: str
    new: str
    breaks: str                  # the consequence, in a few words; "" where the two texts say it all
    tests: tuple[str, ...]       # files and functions that should catch the bug, the fastest first

    def __str__(self) -> str:
        return f"{self.file}: {self.breaks or f'{_short(self.old)} -> {_short(self.new)}'}"

    def put_in(self, source: str) -> str:
        """Return the source with the bug.  Raises ValueError unless the old text stands there exactly once."""
        if source.count(self.old) != 1:
            raise ValueError(f"{self}: its text stands there {source.count(self.old)} times: {self.old!r}")
        return source.replace(self.old, self.new)


def _short(text: str) -> str:
    return repr(" ".join(text.split())[:80])


def of(file: str, tests: str, *rows: tuple[str, ...]) -> list[Bug]:
    """Return the bugs of one file, given as rows (old text, new text, what it breaks[, own tests]).

    Tests are separated by spaces, and relative to the folder of all tests.
    """
    found = []
    for old, new, breaks, *more in rows:
        [own] = more or [tests]
        found.append(Bug(file, old, new, breaks, tuple(f"tests/{test}" for test in own.split())))
    return found


def all_bugs() -> list[Bug]:
    rooms = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_LISTS)
    return [bug for room in rooms for bug in importlib.import_module(f"{__package__}.{room}").BUGS]
