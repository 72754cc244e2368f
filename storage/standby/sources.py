"""What a feed sends beside records: files of partitions, compacted views, amendments, and the catalogue's pages.

Files are read while the broker changes them.  A standby applies the records from before the first file was read up to
after the last one, as a start after a crash does, which finds files that the kernel wrote at different moments.
"""
import contextlib
import errno
import itertools
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.catalogue.kept_topics import BACKLOG_ROWS, BacklogRows
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.standby import frames
from geminga.storage.topics import exported

Pieces = list[bytes | memoryview]
NO_BACKLOGS = BacklogRows([], [])
_CHUNK = 1 << 20
_LOOKED_AT = 100          # partitions that are looked at in one round for new views and amendments
_LIST_SECONDS = 0.25      # between two lists of all partitions


def base(data_dir: Path) -> Iterator[Pieces]:
    """Yield frames with all files of the data folder that a base has, except the catalogue, views and amendments.

    Indexes come before ledgers, so that each row has its entry.  Files that disappear meanwhile are left out: records
    say so, and the standby applies these later.
    """
    for folder in (data_dir / "partitions").glob("*"):
        if folder.name.isdigit():
            with contextlib.suppress(FileNotFoundError):
                for path in sorted(folder.iterdir(), key=lambda path: path.suffix != ".index"):
                    if path.is_file() and path.suffix != ".new" and path.name != exported.NAME:
                        yield from _file(data_dir, path)
    for path in (data_dir / "transactions").glob("*/table"):
        yield from _file(data_dir, path)


def size_of(data_dir: Path) -> int:
    """Return the bytes that files of partitions take on the disk, views too, about."""
    size = 0
    for above, _, names in os.walk(data_dir / "partitions"):
        for name in names:
            with contextlib.suppress(OSError):
                size += Path(above, name).stat().st_blocks * 512
    return size


def _file(data_dir: Path, path: Path, target: Path | None = None) -> Iterator[Pieces]:
    """Yield frames with one file, without its holes.  A file that is missing gives none."""
    name = str((target or path).relative_to(data_dir))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        size, at = os.fstat(fd).st_size, 0
        while at < size:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:      # only a hole is left
                    raise
                break
            if not (data := os.pread(fd, min(_CHUNK, size - at), at)):
                break
            if data.count(0) < len(data):
                yield frames.encode(frames.FILE, data, path=name, at=at, size=size, whole=False)
            at += len(data)
        yield frames.encode(frames.FILE, path=name, at=size, size=size, whole=True)
    finally:
        os.close(fd)


class Extras:
    """Compacted views and amendments of delayed messages, which the journal does not have, as far as they were sent."""

    def __init__(self, data_dir: Path, views: dict[int, int], amended: dict[int, int]):
        """Begin with what the standby has: numbers of views, and sizes of files with amendments, by partition."""
        self._data_dir, self._views, self._amended = data_dir, views, amended
        self._round: Iterator[int] = iter(())
        self._listed = float("-inf")

    def __repr__(self) -> str:
        return f"<Extras views={len(self._views)} amended={len(self._amended)}>"

    def look(self) -> Iterator[Pieces]:
        """Yield frames with new views and amendments of the next partitions: all have their turn."""
        some = list(itertools.islice(self._round, _LOOKED_AT))
        if len(some) < _LOOKED_AT and time.monotonic() - self._listed > _LIST_SECONDS:
            self._listed = time.monotonic()
            with contextlib.suppress(FileNotFoundError):
                names = os.listdir(self._data_dir / "partitions")
                self._round = iter([int(name) for name in names if name.isdigit()])
        for partition_id in some:
            yield from self.of(partition_id)

    def of(self, partition_id: int) -> Iterator[Pieces]:
        """Yield frames with the newest view and the amendments of a partition, unless the standby has them."""
        folder = format.partition_folder(self._data_dir, partition_id)
        path = format.amended_path(folder)
        try:
            if (size := path.stat().st_size) != self._amended.get(partition_id, 0):
                self._amended[partition_id] = size
                yield from _file(self._data_dir, path)
        except FileNotFoundError:
            pass
        for number in compacted_ledgers.numbers(folder)[-1:]:
            if number != self._views.get(partition_id):
                yield from self._view(folder, partition_id, number)

    def _view(self, folder: Path, partition_id: int, number: int) -> Iterator[Pieces]:
        view = format.compacted_folder(folder) / str(number)
        try:
            paths = sorted(view.iterdir())
        except FileNotFoundError:      # a newer one is there
            return
        for path in paths:
            yield from _file(self._data_dir, path, compacted_ledgers.unfinished(folder, number) / path.name)
        if all(path.exists() for path in paths):
            self._views[partition_id] = number
            yield frames.encode(frames.VIEW, partition=partition_id, number=number)


class CataloguePages:
    """The catalogue of a broker: the pages that changed since they were last taken."""

    def __init__(self, path: Path):
        """Open the catalogue for reading.  Raises sqlite3.Error."""
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        self._seen: int | None = None
        self._backlogs_seen, self._backlogs = -1, NO_BACKLOGS
        self._image = np.empty((0, frames.PAGE), np.uint8)

    def __repr__(self) -> str:
        return f"<CataloguePages {len(self._image)} pages>"

    def changed(self) -> bool:
        """Whether any process has committed since the last call of `take`.  Costs one pragma."""
        return self._version() != self._seen

    def _version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    def backlogs(self) -> BacklogRows:
        """Return the rows about cleared backlogs that there are now.  Costs one pragma if nothing changed."""
        version = self._version()
        if version != self._backlogs_seen:
            self._backlogs_seen = version
            self._backlogs = BacklogRows(*(self._connection.execute(each).fetchall() for each in BACKLOG_ROWS))
        return self._backlogs

    def take(self, backlogs: BacklogRows = NO_BACKLOGS) -> Pieces:
        """Return a frame with the pages that differ from those of the last call.  Raises sqlite3.Error.

        backlogs: rows that the frame has although they are deleted by now; the next call is due at once then.
        """
        self._seen = self._version()
        raw = self._whole(backlogs)
        assert len(raw) % frames.PAGE == 0, len(raw)
        image = np.frombuffer(raw, np.uint8).reshape(-1, frames.PAGE)
        known = min(len(image), len(self._image))
        is_new = np.ones(len(image), bool)
        is_new[:known] = (image[:known] != self._image[:known]).any(axis=1)
        self._image = image
        numbers = np.flatnonzero(is_new)
        return frames.encode(frames.CATALOGUE, image[numbers].tobytes(), size=len(raw), pages=numbers.tolist())

    def _whole(self, backlogs: BacklogRows) -> bytes:
        """Return all pages as of one moment, with these rows.  Raises sqlite3.Error.

        `serialize` would need no file.  An interpreter lacks that method if its SQLite was built without the function,
        as SQLite before 3.36 is by default, and the standby would never be complete.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "catalogue.sqlite")
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as copy:
                copy.execute("PRAGMA synchronous = OFF")
                copy.execute("PRAGMA journal_mode = OFF")
                self._connection.backup(copy)
                has_all = not backlogs.cursors or {row[0] for row in backlogs.cursors} <= {
                    row[0] for row in copy.execute(BACKLOG_ROWS[1])}
            if not has_all:
                self._seen = None
                with contextlib.closing(open_catalogue(path)) as catalogue:
                    catalogue.kept_topics.put_back(backlogs, catalogue.partitions.ids())
                    catalogue.commit()
            return path.read_bytes()

    def close(self) -> None:
        self._connection.close()
