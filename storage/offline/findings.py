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
    offset: int
    size: int
    what: str
    consequence: str
    severity: Severity
    entries: int = 0       # number of entries that are lost, or damaged but no longer needed

    def __str__(self) -> str:
        return f"{self.severity.name.lower()}: {self.path}: at byte {self.offset}: {self.what}; {self.consequence}"


def unreadable(path: Path, error: OSError) -> Finding:
    """Return the finding for a file that the operating system fails to read."""
    return Finding(Path(error.filename or path), 0, 0, f"cannot be read: {error.strerror}",
                   "its content was not checked", Severity.UNREADABLE)


def corrupt(error: CorruptFile, path: Path, consequence: str) -> Finding:
    """Return the finding for a file that cannot be used at all because of its damage or its format version."""
    where, offset, what = place(str(error), path)
    severity = Severity.UNREADABLE if "format version" in what else Severity.LOSS
    return Finding(where, offset, 0, what, consequence, severity)


def place(text: str, path: Path) -> tuple[Path, int, str]:
    """Split the text of a CorruptFile into (file, offset, damage); any other text becomes (path, 0, text)."""
    said = re.fullmatch(r"(.*?): at byte (\d+): (.*)", text, re.DOTALL)
    return (Path(said[1]), int(said[2]), said[3]) if said else (path, 0, text)
