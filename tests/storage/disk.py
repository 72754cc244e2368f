"""What a power cut leaves: files as they were when they were last synced, under the names that their folder had when
it was.

A file that was created and never synced has its name at best, and no content: zeros, or no length either.  Folders
themselves, and the catalogue, which SQLite syncs out of our sight, count as safe.  Nothing is really synced
meanwhile, which makes these tests fast.
"""
import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from geminga.storage.upkeep import delayed_scheduler


class Disk:
    """Watches os.fdatasync and os.fsync of everything below `data_dir`; that may be changed for a copy of it."""

    def __init__(self, data_dir: Path, monkeypatch):
        self.data_dir, self._lock = data_dir, threading.Lock()      # of checkpoints, and who writes meanwhile
        self._contents: dict[Path, tuple[int, bytes]] = {}      # by path below data_dir: inode, bytes
        self._names: dict[Path, dict[str, int]] = {}            # folder -> {name: size}
        monkeypatch.setattr(os, "fdatasync", self._synced)
        monkeypatch.setattr(os, "fsync", self._synced)
        monkeypatch.setattr(delayed_scheduler, "sync_all", self._all_synced)

    def _synced(self, fd: int) -> None:
        """The file may be deleted, or have another name, by now."""
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

    def _all_synced(self, folder: Path) -> None:
        """With one call: what schedules have written, as all else is synced by itself too."""
        for place in self.data_dir.glob("partitions/*/delayed"):
            for path in [*place.iterdir(), place]:
                with contextlib.suppress(FileNotFoundError):
                    fd = os.open(path, os.O_RDONLY)
                    self._synced(fd)
                    os.close(fd)

    def _follow_renames(self, folder: Path) -> None:
        """Of files that were written under a name with .new."""
        gone = {self._contents[place][0]: place for place in self._contents
                if place.parent == folder and place.suffix == ".new" and not (self.data_dir / place).exists()}
        for name in self._names[folder]:
            with contextlib.suppress(FileNotFoundError):
                inode = os.stat(self.data_dir / folder / name).st_ino
                if inode in gone:
                    self._contents[folder / name] = self._contents.pop(gone[inode])

    def after_power_cut(self, target: Path, *, with_sizes: bool) -> None:
        """Write to target what is safe of data_dir.  with_sizes: files that were never synced have their length."""
        target.mkdir()
        for path in self.data_dir.glob("catalogue*"):
            shutil.copy(path, target)
        for folder, names in list(self._names.items()):
            (target / folder).mkdir(parents=True, exist_ok=True)
            for name, size in names.items():
                content = self._contents.get(folder / name)
                if content is None and (self.data_dir / folder / name).is_dir():
                    continue
                (target / folder / name).write_bytes(content[1] if content is not None else bytes(size * with_sizes))


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """Of each file in it; the owner's other threads may delete some meanwhile."""
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            yield name, os.stat(folder / name).st_size
