"""Report the formats of a data folder, and the changes that a start of this program would make: `geminga upgrade
check`.

The data folder is only read.
"""
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from geminga.storage import format
from geminga.storage.catalogue import layout
from geminga.storage.cursors import state_v1
from geminga.storage.disk import data_folder, locks, regular_files
from geminga.storage.offline.verify_catalogue import looked_at

_VERSION_END = 12      # offset in a header behind magic and version


@dataclass(slots=True)
class Outlook:
    """Result of `look`: formats of a data folder, and whether this program can serve it.

    folder, catalogue: their format versions, 0 if not created yet. files: {format version: number of ledgers, states
    and journal segments}.
    """

    folder: int = 0
    catalogue: int = 0
    files: dict[int, int] = field(default_factory=dict)
    is_served: bool = False
    refused: str = ""                                          # why this program cannot serve it; "" if it can
    rewrites: list[str] = field(default_factory=list)          # changes that its first start makes, at once or later
    has_way_back: bool = False                                 # whether its last program can still serve it


def look(data_dir: Path) -> Outlook:
    """Return the formats of a data folder, and the changes that the first start of this program would make to it.

    Raises OSError, sqlite3.DatabaseError.
    """
    outlook = Outlook()
    if not (data_dir / "catalogue.sqlite").exists():
        outlook.refused = f"{data_dir}: there is no catalogue.sqlite: this is no data folder"
        return outlook
    try:
        outlook.folder = data_folder.check(data_dir)
    except data_folder.CannotUse as error:
        outlook.refused = str(error)
        return outlook
    regular_files.opened(data_dir / "catalogue.sqlite").close()
    regular_files.check(data_dir / "partitions", data_dir / "journal")
    with locks.hold(data_dir) as outlook.is_served, looked_at(data_dir, is_served=outlook.is_served) as db:
        outlook.catalogue = db.execute("PRAGMA user_version").fetchone()[0]
    of_version_1 = _count(data_dir, outlook.files)
    for what, there, known in (("the catalogue", outlook.catalogue, layout.VERSION),
                               ("a file", max(outlook.files, default=0), format.VERSION)):
        if there > known:
            outlook.refused = (f"{data_dir}: {what} has format version {there}, and this program knows {known} and "
                               "older; a newer one wrote it")
            return outlook
    if outlook.folder < format.FOLDER_VERSION:
        outlook.rewrites.append(f"`format` says {format.FOLDER_VERSION}: programs that know only less refuse the "
                                "folder from then on")
    if outlook.catalogue < layout.VERSION:
        outlook.rewrites.append(f"the catalogue becomes version {layout.VERSION}, in one transaction, before anybody "
                                "is served")
    if of_version_1:
        outlook.rewrites.append(
            f"what {of_version_1} partitions know of their subscriptions goes from the files of version 1 into "
            "`state`, when each is saved for the first time after a change")
    outlook.has_way_back = (outlook.folder, outlook.catalogue) == (format.FOLDER_VERSION, layout.VERSION)
    return outlook


def _count(data_dir: Path, versions: dict[int, int]) -> int:
    """Count ledgers, states and journal segments by format version into `versions`.

    Return the number of partitions whose cursors are in files of version 1.
    """
    of_version_1 = 0
    for partition in (data_dir / "partitions").glob("*"):
        of_version_1 += state_v1.is_there(partition)
        for path in (*partition.glob("*.index"), *partition.glob("state")):
            _add(path, (format.INDEX_MAGIC, format.STATE_MAGIC), versions)
    for path in (data_dir / "journal").glob("*/*.journal"):
        _add(path, (format.SEGMENT_MAGIC,), versions)
    return of_version_1


def _add(path: Path, magics: tuple[bytes, ...], versions: dict[int, int]) -> None:
    """Count one file.

    A file that begins with none of `magics` is damaged or was never written, has no version, and is not counted.
    """
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:      # its broker may have just removed it
        head = file.read(_VERSION_END)
        if head[:8] in magics and len(head) == _VERSION_END:
            version = int(np.frombuffer(head, "<u4", 1, 8)[0])
            versions[version] = versions.get(version, 0) + 1
