"""What `geminga verify` has to say: what is damaged, where, and what that costs."""
import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from geminga.storage.errors import CorruptFile


class Severity(IntEnum):
    """How bad; that of the worst finding is the exit status."""

    NOTE = 0               # nothing is wrong
    HARMLESS = 3           # damage that costs nothing
    LOSS = 4               # entries, or what is known of subscriptions, are lost
    UNREADABLE = 5         # could not be looked at: a newer format, no permission, a failing disk


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about `size` bytes of a file from an offset on; size 0: the file as a whole."""

    path: Path
    offset: int
    size: int
    what: str
    consequence: str
    severity: Severity
    entries: int = 0       # that are lost, or damaged and not needed any more

    def __str__(self) -> str:
        return f"{self.severity.name.lower()}: {self.path}: at byte {self.offset}: {self.what}; {self.consequence}"


def unreadable(path: Path, error: OSError) -> Finding:
    return Finding(Path(error.filename or path), 0, 0, f"cannot be read: {error.strerror}", "what it holds was not looked at",
                   Severity.UNREADABLE)


def corrupt(error: CorruptFile, path: Path, consequence: str) -> Finding:
    """Of a file that cannot be used at all."""
    where, offset, what = place(str(error), path)
    return Finding(where, offset, 0, what, consequence, Severity.UNREADABLE if "format version" in what else Severity.LOSS)


def place(text: str, path: Path) -> tuple[Path, int, str]:
    """(file, offset, what) of a line that says so; of another one only the latter."""
    said = re.fullmatch(r"(.*?): at byte (\d+): (.*)", text, re.DOTALL)
    return (Path(said[1]), int(said[2]), said[3]) if said else (path, 0, text)
