"""Application of received records on a standby, so that a promotion has little left to recover.

    python -m geminga.storage.standby.applying FOLDER

Runs as a process beside the one that receives, until its standard input is closed.  It reads the journals of the copy
as a feed reads those of a broker, puts records in place as a start does, syncs what they changed, and then removes
segments that are behind it.  Records are applied again after a kill, which changes nothing.

The catalogue belongs to the receiving process.  Deletions of partitions are noted in a file for the promotion, because
the catalogue that lacks them may not have come.
"""
import contextlib
import json
import select
import sys
import time
import traceback
from pathlib import Path

from geminga.storage.disk.files import FileSystem, write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import checkpoints, journal_reader
from geminga.storage.ledgers.journal_reader import StoredRecord
from geminga.storage.owner import recovery
from geminga.storage.standby.journal_tail import JournalTail, Overtaken, beginning

DELETED = "deleted.json"         # ids of partitions that were deleted lately, with the times
UNUSABLE = 3                     # exit status: records do not fit the copy, which has to be made anew
_SECONDS = 1.0                   # between two looks
_APPLIED_BYTES = 64 << 20        # of records that are applied at once, about
_NOTED_SECONDS = 3_600           # the catalogue comes within a second, or at the next connection


class Applier:
    """Applies the records of a copy's journals as they come."""

    def __init__(self, data_dir: Path):
        self._data_dir = data_dir
        self._tails: dict[str, JournalTail] = {}
        (data_dir / "partitions").mkdir(exist_ok=True)
        self._disk = FileSystem(data_dir / "partitions")

    def __repr__(self) -> str:
        return f"<Applier {self._data_dir} tails={list(self._tails.values())}>"

    def step(self) -> bool:
        """Apply what is there, of each journal up to a bound; return whether there was anything.

        Raises OSError, CorruptFile, StorageFull, Overtaken.
        """
        has_applied = False
        for folder in (self._data_dir / "journal").glob("*"):
            if folder.name.isdigit():
                has_applied |= self._apply(folder)
        return has_applied

    def _apply(self, folder: Path) -> bool:
        if folder.name not in self._tails:
            if (place := beginning(folder)) is None:
                return False
            self._tails[folder.name] = JournalTail(folder, place)
        tail, records, size = self._tails[folder.name], list[StoredRecord](), 0
        while size < _APPLIED_BYTES and (block := tail.read()) is not None:
            records += block.records
            size += len(block.data)
        if records:
            # The deletion is on disk before it is applied: a promotion that met the partition in the catalogue, and its
            # folder gone, would begin the topic anew.
            self._note_deleted(recovery.deleted_in(records))
            replayed = recovery.replay(self._data_dir, records)
            replayed.is_durable()
            checkpoints.write_checkpoint(*checkpoints.collect_checkpoint({replayed}), disk=self._disk)
        for sequence, path in journal_reader.by_age(folder):
            # Oldest first.  A kill that left an older segment behind a gap would have the next start replay that one
            # alone, and bring back entries that later records acknowledge.
            if sequence < tail.place.sequence:
                path.unlink()
        return bool(records)

    def _note_deleted(self, gone: set[int]) -> None:
        if gone:
            now = time.time()
            recent = {number: time_s for number, time_s in _noted(self._data_dir).items()
                      if time_s > now - _NOTED_SECONDS}
            write_anew(self._data_dir / DELETED, json.dumps(recent | {str(number): now for number in gone}).encode())


def _noted(data_dir: Path) -> dict[str, float]:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return dict(json.loads((data_dir / DELETED).read_bytes()).items())
    return {}


def deleted(data_dir: Path) -> list[int]:
    """Return the ids of partitions of which applied records say that they were deleted lately."""
    return [int(number) for number in _noted(data_dir)]


def main() -> int:
    """Apply records until standard input is closed, and return the exit status."""
    data_dir = Path(sys.argv[1])
    applier = Applier(data_dir)
    while True:
        try:
            waits_s = 0.0 if applier.step() else _SECONDS
        except (CorruptFile, Overtaken) as error:
            print(f"the copy cannot be used: {error}", file=sys.stderr)
            return UNUSABLE
        except Exception:      # of a disk, mostly: the receiving process logs it, and starts this one again
            traceback.print_exc(limit=-2)
            return 1
        if select.select([sys.stdin], [], [], waits_s)[0] and not sys.stdin.read(1):
            return 0


if __name__ == "__main__":
    sys.exit(main())
