"""Folders for tables: one of this host, or any URL for which Spark has a file system of Hadoop (s3a:, hdfs: ...).

Paths are relative to the folder, with / between names. Both raise OSError.
"""
import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from geminga.storage.disk.files import sync, write_anew


class TableFolder(Protocol):
    """A folder in which tables lie."""

    url: str

    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders in a folder, none if the folder does not exist."""

    def read(self, path: str) -> bytes:
        """Return the content of a file.  Raises FileNotFoundError."""

    def create(self, path: str, data: bytes) -> None:
        """Write a new file, which is there as a whole or not at all.  Raises FileExistsError."""

    def put(self, source: Path, path: str) -> None:
        """Move a file of this host to a path that does not exist, durably."""

    def fetch(self, path: str) -> Path | None:
        """Return where a file can be read on this host, None if `copy` must bring it here."""

    def copy(self, path: str, target: Path) -> None:
        """Copy a file to this host."""

    def move(self, path: str, to: str) -> None:
        """Move a file, unless an earlier move did: then it is missing, and the target is there."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that it has, if it exists."""


def local_folder(url: str) -> Path | None:
    """Return the folder of this host that a URL names, None for other file systems."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(url) if not parts.scheme else None


class LocalFolder:
    """A folder of this host."""

    def __init__(self, folder: Path):
        self.url, self.folder = str(folder), folder

    def __repr__(self) -> str:
        return f"<LocalFolder {self.folder}>"

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self.folder / folder)
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes:
        return (self.folder / path).read_bytes()

    def create(self, path: str, data: bytes) -> None:
        target = self.folder / path
        self._make_folder(target.parent)
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        write_anew(fresh, data)
        try:
            os.link(fresh, target)
        finally:
            fresh.unlink()
        sync(target.parent, os.fsync)

    def put(self, source: Path, path: str) -> None:
        target = self.folder / path
        self._make_folder(target.parent)
        sync(source, os.fsync)
        source.rename(target)
        sync(target.parent, os.fsync)

    def fetch(self, path: str) -> Path | None:
        return self.folder / path

    def copy(self, path: str, target: Path) -> None:
        shutil.copyfile(self.folder / path, target)

    def move(self, path: str, to: str) -> None:
        source, target = self.folder / path, self.folder / to
        self._make_folder(target.parent)
        try:
            source.rename(target)
        except FileNotFoundError:
            if not target.exists():
                raise
        sync(target.parent, os.fsync)

    def delete(self, path: str) -> None:
        target = self.folder / path
        with contextlib.suppress(FileNotFoundError):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink()

    def _make_folder(self, folder: Path) -> None:
        """Make a folder, and those above it, durably."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent, os.fsync)


class HadoopFolder:
    """A URL of a file system that Spark's Java libraries know."""

    def __init__(self, url: str, context: Any):
        """context: SparkContext, whose settings spark.hadoop.* the file system uses.  Raises OSError."""
        self.url, self._jvm = url.rstrip("/"), context._jvm
        self._hadoop = self._jvm.org.apache.hadoop.fs
        with java_errors(url):
            uri = self._jvm.java.net.URI(self.url)
            self._system = self._hadoop.FileSystem.get(uri, context._jsc.hadoopConfiguration())

    def __repr__(self) -> str:
        return f"<HadoopFolder {self.url}>"

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(f"{self.url}/{path}")

    def names(self, folder: str) -> list[str]:
        with java_errors(folder):
            if not self._system.exists(self._path(folder)):
                return []
            return [one.getPath().getName() for one in self._system.listStatus(self._path(folder))]

    def read(self, path: str) -> bytes:
        with java_errors(path):
            if not self._system.exists(self._path(path)):
                raise FileNotFoundError(errno.ENOENT, "No such file", path)
            stream = self._system.open(self._path(path))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def create(self, path: str, data: bytes) -> None:
        with java_errors(path):
            if self._system.exists(self._path(path)):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            folder, _, name = path.rpartition("/")
            fresh = self._path(f"{folder}/.{name}.new")
            stream = self._system.create(fresh, True)
            stream.write(bytearray(data))
            stream.close()
            if not self._system.rename(fresh, self._path(path)):
                raise FileExistsError(errno.EEXIST, "File exists, or its folder does not", path)

    def put(self, source: Path, path: str) -> None:
        with java_errors(path):
            self._system.copyFromLocalFile(True, True, self._hadoop.Path(f"file://{source}"), self._path(path))

    def fetch(self, path: str) -> Path | None:
        return None

    def copy(self, path: str, target: Path) -> None:
        with java_errors(path):
            self._system.copyToLocalFile(False, self._path(path), self._hadoop.Path(f"file://{target}"), True)

    def move(self, path: str, to: str) -> None:
        with java_errors(path):
            source, target = self._path(path), self._path(to)
            if not self._system.exists(source):
                if self._system.exists(target):
                    return
                raise FileNotFoundError(errno.ENOENT, "No such file", path)
            self._system.mkdirs(target.getParent())
            if not self._system.rename(source, target):
                raise OSError(errno.EIO, "It cannot be moved into place", path)

    def delete(self, path: str) -> None:
        with java_errors(path):
            self._system.delete(self._path(path), True)


@contextlib.contextmanager
def java_errors(path: str) -> Iterator[None]:
    """Raise errors of Java as OSError."""
    from py4j.protocol import Py4JError
    try:
        yield
    except Py4JError as error:
        raise OSError(errno.EIO, reason_of(error), path) from error


def reason_of(error: Exception) -> str:
    """Return the first line of an error of Java."""
    lines = str(getattr(error, "java_exception", None) or error).strip().splitlines()
    return lines[0] if lines else "Java fails"
