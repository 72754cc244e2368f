"""Puts a backup in place: into an empty folder, on whatever file system, with every checksum looked at.

Until all is there and synced, the folder's file `format` keeps programs from taking it for a data folder.
"""
import contextlib
import os
import shutil
from pathlib import Path

from geminga.storage.catalogue.catalogue import CatalogueError, open_catalogue
from geminga.storage.disk import data_folder
from geminga.storage.disk.files import sync
from geminga.storage.disk.syscalls import sync_all
from geminga.storage.errors import CorruptFile
from geminga.storage.offline import backup
from geminga.storage.offline.backup import CannotBackUp, Item, Manifest


class CannotRestore(Exception):
    """One line that says why."""


def restore(source: Path, data_dir: Path) -> Manifest:
    """The folder is what the backup has; what was in it, if it was anything.  Raises CannotRestore, OSError, and it is empty then."""
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
        for item in manifest.items:
            _put(source, data_dir, item)
        with contextlib.closing(open_catalogue(data_dir / backup.CATALOGUE)) as catalogue:
            catalogue.put_back()
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
    """Raises CannotRestore, with the file's name, when it is not what it was."""
    path, target = source / item.path, data_dir / item.path
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        found = backup.copy_item(source, path, target, item)
    except FileNotFoundError:
        raise CannotRestore(f"{path}: it is missing") from None
    except CorruptFile as error:
        raise CannotRestore(str(error)) from None
    if found != item.crc32c:
        raise CannotRestore(f"{path}: it is damaged: its checksum is {found:08x}, and was {item.crc32c:08x}")


def _own(above: Path, data_dir: Path) -> None:
    """What root has made there is the folder's user's."""
    if os.geteuid():
        return
    user = data_dir.stat()
    for path in [above, *above.iterdir()]:
        os.chown(path, user.st_uid, user.st_gid)
