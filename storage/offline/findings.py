"""Findings of `geminga verify`: place, damage and cost."""
import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from geminga.storage.errors import CorruptFile


class Severity(IntEnum):
    """Severity of a finding.  The highest severity of a run is the exit status of `geminga verify`."""

    NOTE = 0               # nothing is wrong
    HARMLESS = 3           # damage without loss of data
    LOSS = 4               # entries, or positions of subscriptions, are lost
    UNREADABLE = 5         # could not be checked: a newer format, no permission, a failing disk


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding about `size` bytes of a file, starting at `offset`.  A size of 0 means the whole file."""

    path: Path
    what: str
    consequence: str
    severity: Severity
    offset: int = 0
    size: int = 0
    entries: int = 0       # number of entries that are lost, or damaged but no longer needed

    def __str__(self) -> str:
        return f"{self.severity.name.lower()}: {self.path}: at byte {self.offset}: {self.what}; {self.consequence}"


def unreadable(path: Path, error: OSError) -> Finding:
    """Return the finding for a file that the operating system fails to read."""
    return Finding(Path(error.filename or path), f"cannot be read: {error.strerror}", "its content was not checked",
                   Severity.UNREADABLE)


def corrupt(error: CorruptFile, path: Path, consequence: str) -> Finding:
    """Return the finding for a file that cannot be used at all because of its damage or its format version."""
    where, offset, what = place(str(error), path)
    severity = Severity.UNREADABLE if "format version" in what else Severity.LOSS
    return Finding(where, what, consequence, severity, offset)


def of_copies(path: Path, size: int, wrong: dict[int, str], subject: str, loss: str) -> list[Finding]:
    """Return the findings for a file that holds two copies of the same.

    wrong: {number of a damaged copy, 0 or 1: why}.  loss: what is lost with both copies.
    """
    is_lost, half = len(wrong) == 2, size // 2
    consequence = f"so is the other copy: {loss}" if is_lost else "the other is used"
    return [Finding(path, f"copy {number + 1} of {subject} is damaged: {why}", consequence,
                    Severity.LOSS if is_lost else Severity.HARMLESS, number * half, half)
            for number, why in wrong.items()]


def place(text: str, path: Path) -> tuple[Path, int, str]:
    """Split the text of a CorruptFile into (file, offset, damage); any other text becomes (path, 0, text)."""
    match = re.fullmatch(r"(.*?): at byte (\d+): (.*)", text, re.DOTALL)
    return (Path(match[1]), int(match[2]), match[3]) if match else (path, 0, text)
