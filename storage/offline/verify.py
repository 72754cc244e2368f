"""Find damage in a data folder, with its place and cost: read only, offline or while a broker serves the folder.

    catalogue     SQLite's integrity check, and rows that refer to each other and to folders
    journals      synced records that are damaged; records that wait for replay count as already applied
    exported      the checksum
    state         both copies, and cursors against the ledgers: positions, bitmaps, totals
    ledgers       headers, each row's checksum over content and place, rows without gaps, each entry's checksum
    views         manifests of compacted views, rows, entries' checksums, which messages of batches compaction kept

The cursor NOBODY holds entries that are lost or cancelled for all subscriptions. These entries are not checked, because
their disk space may have been freed.

A broker writes an entry before its row, and a row before the header counts it. So an entry with a valid row is complete
even while a broker serves the folder. Any other apparent damage is checked several times, and reported only if it is
found every time.
"""
import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from geminga.storage import format
from geminga.storage.cursors import state_file, state_v1
from geminga.storage.cursors.cursor import NOBODY
from geminga.storage.cursors.state_file import State
from geminga.storage.disk import locks, regular_files
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import journal_reader, ledger_headers
from geminga.storage.offline import verify_ledger, verify_partition
from geminga.storage.offline.findings import Finding, Severity, corrupt, of_copies, place, unreadable
from geminga.storage.offline.rehearsal import Rehearsal
from geminga.storage.offline.verify_catalogue import Names, read_names
from geminga.storage.offline.verify_compacted import check_views
from geminga.storage.offline.verify_ledger import LedgerCheck, Task
from geminga.storage.offline.verify_partition import CheckedPartition
from geminga.storage.topics import exported
from geminga.storage.transactions import transaction_table

_PROCESSES_MIN = 64 << 20  # bytes; starting processes for less takes longer than it saves
_LOOKS = 3                 # checks while a broker serves the folder; only what each of them finds is reported


@dataclass(slots=True)
class Seen:
    """Amounts of data that `walk` has checked."""

    bytes: int = 0
    entries: int = 0
    ledgers: int = 0
    partitions: int = 0


def walk(data_dir: Path | str, *, processes: int = 1, seen: Seen | None = None,
         told: Callable[[int, int], None] = lambda done, total: None) -> Iterator[Finding]:
    """Iterate over all findings about a data folder.

    processes: number of processes that check ledgers. seen: receives the amounts that were checked.
    told: function that is called with (ledgers checked so far, ledgers to check).

    No broker can be started on the folder meanwhile. A broker that already serves the folder keeps running.
    """
    data_dir, seen = Path(data_dir), seen or Seen()
    path = data_dir / "catalogue.sqlite"
    try:
        if not path.exists():
            yield Finding(data_dir, "there is no catalogue.sqlite", "this is no data folder", Severity.UNREADABLE)
            return
        regular_files.opened(path).close()
        regular_files.check(data_dir / "partitions", data_dir / "journal", data_dir / "transactions")
        with locks.hold(data_dir) as is_served:
            yield from _Walk(data_dir, is_served, processes, seen, told).findings()
    except OSError as error:
        yield unreadable(data_dir, error)


def _leave_unusable_folder() -> None:
    """Go to the root folder if this process may not enter its working folder, as new processes do at their start.

    Root's home is such a folder for a command that has become the data folder's owner.  No relative path leads anywhere
    from there.
    """
    try:
        os.chdir(Path.cwd())
    except OSError:
        os.chdir("/")


# -- the walk

class _Walk:
    def __init__(self, data_dir: Path, is_served: bool, processes: int, seen: Seen, told: Callable[[int, int], None]):
        self.data_dir, self.is_served, self.processes, self.seen = data_dir, is_served, processes, seen
        self.told = told

    def findings(self) -> Iterator[Finding]:
        """Iterate over all findings.

        While a broker serves the folder, the check is repeated, because files that are being written look damaged for
        a moment.  Only findings that every repetition makes are yielded; repetitions check the partitions with some.
        """
        confirmed: dict[int, list[Finding]] = {}
        for number in range(_LOOKS if self.is_served else 1):
            names = read_names(self.data_dir, is_served=self.is_served)
            if not number:
                yield from names.findings
                if any(finding.severity == Severity.UNREADABLE for finding in names.findings):
                    return
            again = self._look(names, set(confirmed) if number else None)
            if number:
                again = {partition_id: [finding for finding in findings if finding in confirmed.get(partition_id, ())]
                         for partition_id, findings in again.items()}
            confirmed = {partition_id: findings for partition_id, findings in again.items() if findings}
            if not confirmed:
                return
        for partition_id in sorted(confirmed):
            yield from confirmed[partition_id]

    def _look(self, names: Names, wanted: set[int] | None) -> dict[int, list[Finding]]:
        """Check partitions once, and return {partition id: findings}; findings about no partition have the key 0.

        wanted: ids of the partitions to check, None for all. States are read before journals, and journals before
        ledgers. So anything that a broker writes meanwhile is in a file that is read later.
        """
        stored = {int(path.name) for path in (self.data_dir / "partitions").glob("*") if path.name.isdigit()}
        ids = sorted((stored | set(names.partitions)) if wanted is None else wanted - {0})
        findings: dict[int, list[Finding]] = {0: []}
        rehearsal = Rehearsal(self.data_dir)
        states = {}
        for partition_id in ids:
            findings[partition_id], states[partition_id] = self._states(rehearsal, partition_id)
        findings[0] += self._coordinators() + self._journals(rehearsal)
        ids = [partition_id for partition_id in ids if partition_id not in rehearsal.gone]
        tasks = {partition_id: self._tasks(rehearsal, partition_id, findings[partition_id]) for partition_id in ids}
        checks, done = self._checks([task for of_partition in tasks.values() for task in of_partition]), 0
        total = sum(map(len, tasks.values()))
        for partition_id in ids:
            ledgers = [next(checks) for _ in tasks[partition_id]]
            view = check_views(rehearsal.folder(partition_id), partition_id, is_served=self.is_served)
            self.seen.bytes += view.bytes + sum(ledger.bytes for ledger in ledgers)
            self.seen.ledgers += len(ledgers)
            self.seen.entries += sum(check.ledger.entries for check in ledgers)
            done += len(ledgers)
            self.told(done, total)
            findings[partition_id] += verify_partition.check(CheckedPartition(
                rehearsal.folder(partition_id), names.partitions.get(partition_id),
                names.subscriptions.get(partition_id, {}), rehearsal.state(partition_id), states[partition_id],
                partition_id in rehearsal.stateless, partition_id in rehearsal.touched, ledgers, view, self.is_served))
            if wanted is None:
                self.seen.partitions += 1
        return findings

    def _checks(self, tasks: list[Task]) -> Iterator[LedgerCheck]:
        """Check ledgers in order.  Several processes share large amounts of data."""
        size = 0
        for task in tasks:
            with contextlib.suppress(FileNotFoundError):
                size += format.ledger_path(task.folder, task.ledger_id).stat().st_size
        if self.processes == 1 or size < _PROCESSES_MIN:
            yield from map(verify_ledger.check, tasks)
            return
        _leave_unusable_folder()
        with ProcessPoolExecutor(self.processes, get_context("spawn")) as pool:
            yield from pool.map(verify_ledger.check, tasks)

    # -- journals, and what coordinators know of transactions

    def _coordinators(self) -> list[Finding]:
        findings: list[Finding] = []
        for folder in sorted((self.data_dir / "transactions").glob("*")):
            if folder.name.isdigit():
                path = transaction_table.path_of(self.data_dir, int(folder.name))
                try:
                    raw = path.read_bytes()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    findings.append(unreadable(path, error))
                    continue
                findings += of_copies(path, len(raw), transaction_table.wrong_copies(raw, int(folder.name)),
                                      "the coordinator's table", "its transactions are aborted")
        return findings

    def _journals(self, rehearsal: Rehearsal) -> list[Finding]:
        findings, records = [], 0
        for folder in sorted((self.data_dir / "journal").glob("*")):
            if not folder.is_dir():
                continue
            try:
                replayed = journal_reader.replay(folder)
            except CorruptFile as error:
                findings.append(corrupt(error, folder, "the broker does not start"))
                continue
            except OSError as error:
                # its broker has just reused the file
                if not (self.is_served and isinstance(error, FileNotFoundError)):
                    findings.append(unreadable(folder, error))
                continue
            if replayed.records:
                rehearsal.apply(replayed.records, lambda step, done, of: None)
            records += len(replayed.records)
            findings += [_of_journal(text, folder) for text in replayed.damage]
        if records and not self.is_served:
            findings.append(Finding(self.data_dir / "journal", f"{records} records are to be replayed",
                                    "the next start does that; all else was checked as if it had", Severity.NOTE))
        return findings

    # -- a partition

    def _states(self, rehearsal: Rehearsal, partition_id: int) -> tuple[list[Finding], bool]:
        """Return (findings about the partition's state, whether the state can be used)."""
        folder = format.partition_folder(self.data_dir, partition_id)
        path = format.state_path(folder)
        findings = [Finding(unfinished, "was being written when its broker was killed", "it is left alone",
                            Severity.NOTE) for unfinished in folder.glob("*.new") if not self.is_served]
        findings += _exported(folder)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            try:
                is_of_version_1 = state_v1.is_there(folder)
                rehearsal.know(partition_id, State(state_v1.read_cursors(folder, partition_id),
                                                   is_uncounted=is_of_version_1))
                if not is_of_version_1:
                    rehearsal.stateless.add(partition_id)
            except CorruptFile as error:
                return [*findings, corrupt(error, folder, "its topic is refused")], False
            return findings, True
        except OSError as error:
            return [*findings, unreadable(path, error)], False
        self.seen.bytes += len(raw)
        wrong = state_file.wrong_copies(raw, partition_id)
        findings += of_copies(path, len(raw), wrong, "the partition's state",
                              "what its subscriptions have acknowledged is lost, and the topic refused")
        if len(wrong) == 2:
            return findings, False
        try:
            rehearsal.know(partition_id, state_file.read(folder, partition_id))
        except CorruptFile as error:
            return [*findings, corrupt(error, path, "its topic is refused")], False
        if state_v1.is_there(folder) and not self.is_served:
            findings.append(Finding(folder / "cursors", "is left over from format version 1", "`state` replaced it",
                                    Severity.NOTE))
        return findings, True

    def _tasks(self, rehearsal: Rehearsal, partition_id: int, findings: list[Finding]) -> list[Task]:
        """Return a Task for each ledger of the partition.

        Findings about the remains of deleted or unfinished ledgers are appended to `findings`.
        """
        folder = format.partition_folder(self.data_dir, partition_id)
        ids = {int(path.stem) for suffix in (".index", ".ledger") for path in folder.glob(f"*{suffix}")
               if path.stem.isdigit()}
        ids |= {ledger_id for number, ledger_id in rehearsal.opened_ledgers if number == partition_id}
        cursors = rehearsal.state(partition_id).cursors
        positions = [cursor.mark_delete for number, cursor in cursors.items() if number != NOBODY]
        done = min(positions)[0] if positions else -1
        tasks = []
        for ledger_id in sorted(ids):
            key = partition_id, ledger_id
            if key in rehearsal.deleted:
                continue
            if key in rehearsal.opened_ledgers or ledger_headers.exists(folder, ledger_id):
                tasks.append(Task(folder, partition_id, ledger_id, self.is_served, rehearsal.opened_ledgers.get(key),
                                  rehearsal.rows.get(key, []), cursors.get(NOBODY)))
            elif not self.is_served:
                findings += _half_a_ledger(folder, ledger_id, is_needed=ledger_id >= done)
        return tasks


def _exported(folder: Path) -> list[Finding]:
    """Return a finding if the file with the position up to which the partition is exported cannot be used."""
    path = folder / exported.NAME
    try:
        exported.read(folder)
    except CorruptFile as error:
        return [replace(corrupt(error, path, "nothing of the partition counts as exported until the next export"),
                        severity=Severity.HARMLESS)]
    except OSError as error:
        return [unreadable(path, error)]
    return []


def _of_journal(text: str, folder: Path) -> Finding:
    """Return the finding for one line of damage that a journal replay reported."""
    path, offset, what = place(text, folder)
    if "entries []" in what or "made good" in what:
        return Finding(path, what, "nothing of it is lost", Severity.HARMLESS, offset)
    return Finding(path, what, "what only the journal had is lost", Severity.LOSS, offset)


def _half_a_ledger(folder: Path, ledger_id: int, *, is_needed: bool) -> list[Finding]:
    """Return findings for a ledger that has only one of its two files, or whose index was never written.

    is_needed: whether some subscription has not acknowledged the whole ledger.
    """
    data, index = format.ledger_path(folder, ledger_id), format.index_path(folder, ledger_id)
    if _is_written(data) or _is_written(index):
        path, missing = (data, index) if data.exists() else (index, data)
        what = "the index is all zeros" if missing.exists() else f"{missing.name} is missing"
        if not is_needed:
            return [Finding(path, what, "all subscriptions have that ledger behind them", Severity.HARMLESS)]
        return [Finding(path, what, "the ledger's entries are lost", Severity.LOSS)]
    return [Finding(path, "is left of a ledger that was being made", "it is empty, and left alone", Severity.NOTE)
            for path in (data, index) if path.exists()]


def _is_written(path: Path) -> bool:
    """Whether the file has any nonzero byte behind its header."""
    try:
        with open(path, "rb") as file:
            file.seek(format.HEADER_SIZE)
            return any(any(block) for block in iter(lambda: file.read(1 << 20), b""))
    except FileNotFoundError:
        return False
