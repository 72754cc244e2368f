"""Journals with tiny segments for tests, so that a few records fill many segments."""
import numpy as np

from geminga.storage import format
from geminga.storage.ledgers.journal import open_journal
from geminga.storage.ledgers.journal_reader import replay

from .files import copy_of, number_of, record

SEGMENT = 8192
HEADER = format.HEADER_SIZE
BIG = 3000           # bytes of data of which two records fill a segment


class Journals:
    """Opens journals in one folder, one after the other, and closes them."""

    def __init__(self, data_dir):
        self.data_dir, self.folder = data_dir, data_dir / "journal"
        self._open = []

    def __call__(self, segments_max=4):
        self._open.append(open_journal(self.folder, segment_bytes=SEGMENT, segments_max=segments_max))
        return self._open[-1]

    def close(self, target):
        self._open.remove(target)
        target.close()

    def close_all(self):
        for target in list(self._open):
            self.close(target)

    def left(self):
        """Return a copy of the journal's folder as a SIGKILL leaves it."""
        return copy_of(self.folder, self.data_dir / "crashed")


def write(target, numbers, data=b""):
    """Append records with these numbers to the journal, each with its own sync."""
    for number in numbers:
        target.append(record(number, data=data))
        target.sync()


def numbers(folder):
    return [number_of(found) for found in replay(folder).records]


def segments(folder):
    """Return {sequence: path} of the segments that are not retired, oldest first."""
    found = {}
    for path in folder.glob("*.journal"):
        raw = path.read_bytes()
        if len(raw) < HEADER:        # a segment that was being made
            continue
        head = np.frombuffer(raw, format.SEGMENT_HEADER, 1)[0]
        if head["magic"] == format.SEGMENT_MAGIC and not head["is_retired"]:
            found[int(head["sequence"])] = path
    return dict(sorted(found.items()))


def only_segment(folder):
    [path] = segments(folder).values()
    return path
