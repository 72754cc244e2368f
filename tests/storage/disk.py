"""A simulated disk for tests of power cuts: it keeps the content that each file had when it was last synced, and the
file names that each folder had when it was last synced.

After a power cut a file that was created and never synced has at most its name. Its content is zeros, or it is empty.
Two things count as safe at any time: folders themselves, and the catalogue, which SQLite syncs where Python code cannot
see it. No real sync takes place, which makes these tests fast.
"""
import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from geminga.storage.disk import files
from geminga.storage.upkeep import delayed_scheduler

_FOLDER = -1      # instead of a size


class Disk:
    """Records os.fdatasync and os.fsync of all files and folders below `data_dir`. A test sets `data_dir` anew when
    it goes on with a copy of the folder.
    """

    def __init__(self, data_dir: Path, monkeypatch):
        self.data_dir, self._lock = data_dir, threading.Lock()      # checkpoint threads sync too
        self._contents: dict[Path, tuple[int, bytes]] = {}      # by path below data_dir: inode, bytes
        self._names: dict[Path, dict[str, int]] = {}            # folder -> {name: size}
        monkeypatch.setattr(os, "fdatasync", self._synced)
        monkeypatch.setattr(os, "fsync", self._synced)
        for module in (delayed_scheduler, files):
            monkeypatch.setattr(module, "sync_all", self._all_synced)

    def _synced(self, fd: int) -> None:
        """Record the content of a file, or the names in a folder, in place of a sync. The file may have been deleted
        or renamed by now.
        """
        path, found = Path(os.readlink(f"/proc/self/fd/{fd}")), os.fstat(fd)
        if self.data_dir not in path.parents or not found.st_nlink:
            return
        place = path.relative_to(self.data_dir)
        with self._lock:
            if stat.S_ISDIR(found.st_mode):
                self._names[place] = dict(_sizes(path))
                self._follow_renames(place)
            else:
                with open(f"/proc/self/fd/{fd}", "rb") as file:
                    self._contents[place] = found.st_ino, file.read()

    def _all_synced(self, folder: Path, descriptor: int | None = None) -> None:
        """Record all files as synced, in place of the one call that syncs a whole file system."""
        for path in [*self.data_dir.rglob("*"), self.data_dir]:
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY)
                self._synced(fd)
                os.close(fd)

    def _follow_renames(self, folder: Path) -> None:
        """Move the recorded content of files that were written as NAME.new to the names that they were renamed to."""
        gone = {self._contents[place][0]: place for place in self._contents
                if place.parent == folder and place.suffix == ".new" and not (self.data_dir / place).exists()}
        for name in self._names[folder]:
            with contextlib.suppress(FileNotFoundError):
                inode = os.stat(self.data_dir / folder / name).st_ino
                if inode in gone:
                    self._contents[folder / name] = self._contents.pop(gone[inode])

    def after_power_cut(self, target: Path, *, with_sizes: bool) -> None:
        """Write to `target` what a power cut leaves of data_dir. with_sizes: files that were never synced have their
        length, filled with zeros; otherwise they are empty.
        """
        target.mkdir()
        with self._lock:      # names and contents of one moment
            for path in self.data_dir.glob("catalogue*"):
                shutil.copy(path, target)
            folders, contents = dict(self._names), dict(self._contents)
        for folder, names in folders.items():
            (target / folder).mkdir(parents=True, exist_ok=True)
            for name, size in names.items():
                content = contents.get(folder / name)
                if size == _FOLDER:
                    (target / folder / name).mkdir(exist_ok=True)
                    continue
                (target / folder / name).write_bytes(content[1] if content is not None else bytes(size * with_sizes))


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield (name, size) of each file in the folder, and (name, _FOLDER) of each folder. Other threads of the owner
    may delete files meanwhile.
    """
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(folder / name)
            yield name, _FOLDER if stat.S_ISDIR(found.st_mode) else found.st_size
