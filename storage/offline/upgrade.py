"""Report the formats of a data folder, and the changes that a start of this program would make: `geminga upgrade
check`.

The data folder is only read.
"""
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
    found = Outlook()
    if not (data_dir / "catalogue.sqlite").exists():
        found.refused = f"{data_dir}: there is no catalogue.sqlite: this is no data folder"
        return found
    try:
        found.folder = data_folder.check(data_dir)
    except data_folder.CannotUse as error:
        found.refused = str(error)
        return found
    regular_files.opened(data_dir / "catalogue.sqlite").close()
    regular_files.check(data_dir / "partitions", data_dir / "journal")
    with locks.hold(data_dir) as found.is_served, looked_at(data_dir, is_served=found.is_served) as db:
        found.catalogue = db.execute("PRAGMA user_version").fetchone()[0]
    of_version_1 = _count(data_dir, found)
    newest = max(found.files, default=0)
    for what, there, known in (("the catalogue", found.catalogue, layout.VERSION), ("a file", newest, format.VERSION)):
        if there > known:
            found.refused = (
                f"{data_dir}: {what} has format version {there}, and this program knows {known} and older; "
                "a newer one wrote it"
            )
            return found
    if found.folder < format.FOLDER_VERSION:
        found.rewrites.append(f"`format` says {format.FOLDER_VERSION}: programs that know only less refuse the folder "
                              "from then on")
    if found.catalogue < layout.VERSION:
        found.rewrites.append(f"the catalogue becomes version {layout.VERSION}, in one transaction, "
                              "before anybody is served")
    if of_version_1:
        found.rewrites.append(
            f"what {of_version_1} partitions know of their subscriptions goes from the files of version 1 into "
            "`state`, when each is saved for the first time after a change"
        )
    found.has_way_back = (found.folder, found.catalogue) == (format.FOLDER_VERSION, layout.VERSION)
    return found


def _count(data_dir: Path, found: Outlook) -> int:
    """Count ledgers, states and journal segments by format version into `found.files`.

    Return the number of partitions whose cursors are in files of version 1.
    """
    of_version_1 = 0
    for partition in (data_dir / "partitions").glob("*"):
        of_version_1 += state_v1.is_there(partition)
        for path in (*partition.glob("*.index"), *partition.glob("state")):
            _add(path, (format.INDEX_MAGIC, format.STATE_MAGIC), found)
    for path in (data_dir / "journal").glob("*/*.journal"):
        _add(path, (format.SEGMENT_MAGIC,), found)
    return of_version_1


def _add(path: Path, magics: tuple[bytes, ...], found: Outlook) -> None:
    """Add one file to the counts by format version.

    A file that begins with none of `magics` is damaged or was never written, has no version, and is not counted.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_VERSION_END)
    except FileNotFoundError:      # its broker has just removed it
        return
    if head[:8] in magics and len(head) == _VERSION_END:
        version = int(np.frombuffer(head, "<u4", 1, 8)[0])
        found.files[version] = found.files.get(version, 0) + 1
