"""Lines about messages that could not be searched."""
from collections.abc import Callable


class Report:
    """Lines about messages that could not be searched or shown; only the first ones are kept."""

    LINES_MAX = 100

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self.count = say, 0

    def __repr__(self) -> str:
        return f"<Report {self.count} lines>"

    def __call__(self, line: str) -> None:
        self.count += 1
        if self.count <= self.LINES_MAX:
            self._say(line)
        elif self.count == self.LINES_MAX + 1:
            self._say(f"more than {self.LINES_MAX} entries are damaged or not shown; the others are not listed")
