"""Restore a backup into an empty folder, on any file system, and compare every checksum.

Until all files are in place and synced, the folder's file `format` keeps programs from using it as a data folder.
"""
import contextlib
import os
import shutil
from pathlib import Path

from geminga.storage.catalogue.catalogue import CatalogueError, open_catalogue
from geminga.storage.disk import data_folder
from geminga.storage.disk.files import sync, sync_all
from geminga.storage.errors import CorruptFile
from geminga.storage.offline import backup
from geminga.storage.offline.backup import CannotBackUp, Manifest
from geminga.storage.offline.backup_items import Item, copy_item


class CannotRestore(Exception):
    """Exception for a backup that cannot be restored.  The text is one line for the user."""


def restore(source: Path, data_dir: Path, told: backup.Told = lambda done, total: None) -> Manifest:
    """Restore the backup in `source` into data_dir, which must be empty or missing.  Return the backup's manifest.

    told: see backup.Told.

    Raises CannotRestore, OSError, after emptying the folder again.
    """
    try:
        manifest = backup.read_manifest(source)
    except FileNotFoundError:
        raise CannotRestore(f"{source}: it has no {backup.MANIFEST}: it is no backup, or was not completed") from None
    except (CorruptFile, CannotBackUp) as error:
        raise CannotRestore(str(error)) from None
    data_folder.make(data_dir)
    if any(data_dir.iterdir()):
        raise CannotRestore(f"{data_dir} is not empty")
    try:
        data_folder.begin(data_dir)
        done, total = 0, sum(item.size for item in manifest.items)
        for item in manifest.items:
            _put(source, data_dir, item)
            done += item.size
            told(done, total)
        with contextlib.closing(open_catalogue(data_dir / backup.CATALOGUE)) as catalogue:
            catalogue.ids.mark_restored()
            catalogue.commit()
        for above, _, _ in os.walk(data_dir):
            _own(Path(above), data_dir)
        sync_all(data_dir)
        data_folder.complete(data_dir)
        sync(data_dir.resolve().parent, os.fsync)
    except BaseException as error:
        for path in data_dir.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if isinstance(error, CatalogueError):
            raise CannotRestore(str(error)) from None
        raise
    return manifest


def _put(source: Path, data_dir: Path, item: Item) -> None:
    """Copy one file of the backup into the data folder.

    Raises CannotRestore if the file is missing or damaged; the text names the file.
    """
    path, target = source / item.path, data_dir / item.path
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        checksum = copy_item(source, path, target, item)
    except FileNotFoundError:
        raise CannotRestore(f"{path}: it is missing") from None
    except CorruptFile as error:
        raise CannotRestore(str(error)) from None
    if checksum != item.crc32c:
        raise CannotRestore(f"{path}: it is damaged: its checksum is {checksum:08x}, and was {item.crc32c:08x}")


def _own(above: Path, data_dir: Path) -> None:
    """Set the owner of all files in the folder `above` to the owner of data_dir, when running as root."""
    if os.geteuid():
        return
    user = data_dir.stat()
    for path in [above, *above.iterdir()]:
        os.chown(path, user.st_uid, user.st_gid)
