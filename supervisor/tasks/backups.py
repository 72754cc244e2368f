"""Backups of a data folder, with or without a running broker."""
import contextlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from geminga.storage.catalogue.catalogue import CatalogueError, open_catalogue
from geminga.storage.disk import data_folder, locks
from geminga.storage.disk.files import write_anew
from geminga.storage.errors import CorruptFile, NotDurable, StorageFull
from geminga.storage.offline import backup
from geminga.storage.offline.backup import BackupReport
from geminga.storage.owner import recovery
from geminga.supervisor.tasks.job_socket import BrokerSocket, CannotRun, JobRefused

NOTE = Path("nightly", "backup.json")      # in the data folder: the last backup's report


def make(data_dir: Path, parent: Path, keep: int = 0,
         told: backup.Told = lambda done, total: None) -> BackupReport:
    """Make a backup of the data folder in a new folder of `parent`.

    With `keep` above 0, all but the newest `keep` backups are deleted afterwards. told: see backup.Told.

    Raises CannotRun or OSError, and leaves no files then.
    """
    try:
        report = _make(data_dir, parent, keep, told)
        _note(data_dir, report)
        return report
    except (data_folder.CannotUse, backup.CannotBackUp, CatalogueError, CorruptFile, StorageFull, NotDurable) as error:
        raise CannotRun(str(error)) from None
    except JobRefused as error:
        raise CannotRun(f"the broker refuses: {error}") from None


def last_backup(data_dir: Path) -> dict[str, Any] | None:
    """Return the report of the last backup that was made of a data folder, None if there is none to be read."""
    try:
        note = json.loads((data_dir / NOTE).read_bytes())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def _note(data_dir: Path, report: BackupReport) -> None:
    """Write down that a backup was made, for those who look at the broker.  The backup stands without the note."""
    note = asdict(report) | {"ended_ms": time.time_ns() // 1_000_000}
    with contextlib.suppress(OSError):
        (data_dir / NOTE).parent.mkdir(exist_ok=True)
        write_anew(data_dir / NOTE, json.dumps(note).encode())


def _make(data_dir: Path, parent: Path, keep: int, told: backup.Told) -> BackupReport:
    data_folder.check(data_dir)
    with contextlib.closing(BrokerSocket(data_dir)) as broker:
        if broker.is_served():
            return backup.make(data_dir, parent, lambda: broker.ask("backup-begin", owner="all"),
                               lambda: _cut(broker), keep=keep, told=told)
    with locks.lock(data_dir / locks.LOCK) as is_ours:
        if not is_ours:
            raise CannotRun(f"{data_dir}: a broker has just been started on it; try again")
        _put_in_place(data_dir)
        return backup.make(data_dir, parent, lambda: None, list, keep=keep, told=told)


def _cut(broker: BrokerSocket) -> list[backup.Cut]:
    """Have all owners write down where their files end, and decide no commit of a transaction meanwhile.

    Raises JobRefused, OSError.
    """
    broker.ask("backup-hold", owner="all")
    try:
        cuts: list[backup.Cut] = broker.ask("backup-cut", owner="all")
        return cuts
    finally:
        with contextlib.suppress(JobRefused):      # owners that do not hear of it go on after some seconds
            broker.ask("backup-hold", owner="all", is_over=True)


def _put_in_place(data_dir: Path) -> None:
    """Recover the data folder as a start of the broker would: entries in journals go into their ledgers.

    Raises CorruptFile, CatalogueError.
    """
    data_folder.claim(data_dir)
    open_catalogue(data_dir / backup.CATALOGUE).close()
    for journal in (data_dir / "journal").glob("*"):
        if journal.name.isdigit():
            recovery.recover(data_dir, journal, is_put_on_disk=True)
