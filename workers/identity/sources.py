"""Keys and password files as the configuration names them: what they hold now, and when they have changed.

    PATH, file:PATH                  a file, read again when it has changed
    data:;base64,..., data:,...      the content itself
    BASE64                           the content itself, if there is no such file and it does not look like a path; one
                                     that begins with "/" does, unless it ends in "="
"""
import base64
import binascii
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

from geminga.storage.runtime.log import log
from geminga.workers.identity.options import Unusable

T = TypeVar("T")
_LOOK_SECONDS = 1.0          # between two looks at a file


class SourceError(Exception):
    """A file or value of the configuration cannot be used.  The message gives the reason and none of the content."""


def read(where: str) -> tuple[Path | None, bytes]:
    """Return (path, content) of a key or file of users that the configuration names.

    The path is None if the configuration has the content itself.  Raises SourceError.
    """
    if where.startswith("data:"):
        head, comma, data = where[5:].partition(",")
        if not comma:
            raise SourceError("lacks a comma between data: and the content")
        return None, _unpack(data) if head.endswith(";base64") else unquote_to_bytes(data)
    path = Path(unquote(urlsplit(where).path) if where.startswith("file:") else where)
    try:
        return path, path.read_bytes()
    except (OSError, ValueError) as error:      # ValueError: a NUL in the path
        # A path may be valid base64, and one key of 64 begins as a path does.
        if where.startswith(("file:", ".")) or (where.startswith("/") and not where.endswith("=")):
            raise SourceError(f"cannot be read: {path}: {getattr(error, 'strerror', None) or 'not a path'}") from None
    try:
        return None, _unpack(where)
    except SourceError:
        raise SourceError("is neither a file that can be read nor base64") from None


def _unpack(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SourceError("is not base64") from None


def stamp(path: Path | str) -> tuple[int, ...] | None:
    """Return numbers that differ between two versions of a file; None if the file is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class Source(Generic[T]):
    """Parsed content of a key or a file of users, read again when the file changes.

    If a changed file cannot be used, the former content stays in force.
    """

    def __init__(self, key: str, where: str, parse: Callable[[bytes], T]):
        """Read and parse the source.  key: its key in the configuration; parse: raises SourceError.  Raises
        Unusable.
        """
        self._key, self._parse = key, parse
        try:
            self._path, data = read(where)
            self._value = parse(data)
        except SourceError as error:
            raise Unusable(key, str(error)) from None
        if self._path is None and not where.startswith("data:"):
            log.info(f"{key} names no file: it is taken for content in base64", code="G331")
        self._stamp: tuple[object, ...] | None = None      # unknown, as the file may have changed since it was read
        self._due = time.monotonic() + _LOOK_SECONDS

    def __repr__(self) -> str:
        return f"<Source of {self._key}: {self._path or 'given in place'}>"

    def get(self) -> T:
        """Return the parsed content; a file that has changed is read again."""
        if self._path is not None and time.monotonic() >= self._due:
            self._due = time.monotonic() + _LOOK_SECONDS
            current = stamp(self._path)
            if current != self._stamp:
                self._stamp = current
                self._read_again()
        return self._value

    def _read_again(self) -> None:
        try:
            # Read by its URL, else a missing file would be taken for base64.
            self._value = self._parse(read(f"file:{quote(str(self._path))}")[1])
        except SourceError as error:
            log.error(f"{self._key} {error}; its former content stays in force", code="G405")
