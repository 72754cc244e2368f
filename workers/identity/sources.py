"""Keys and password files as a configuration names them: where they are, what is in them, and when they have changed.

    PATH, file:PATH                  a file, read again when it has changed
    data:;base64,..., data:,...      the content itself
    BASE64                           likewise, where there is no such file and it does not look like one
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
_LOOK_SECONDS = 1.0          # a file that is used is looked at no more often


class SourceError(Exception):
    """What was named cannot be used.  Says why, and nothing of the content."""


def read(where: str) -> tuple[Path | None, bytes]:
    """(the file, or None for content given in place; the content).  Raises SourceError."""
    if where.startswith("data:"):
        head, comma, data = where[5:].partition(",")
        if not comma:
            raise SourceError("lacks a comma between data: and the content")
        return None, _unpack(data) if head.endswith(";base64") else unquote_to_bytes(data)
    path = Path(unquote(urlsplit(where).path) if where.startswith("file:") else where)
    try:
        return path, path.read_bytes()
    except (OSError, ValueError) as error:      # ValueError: a NUL in it
        if where.startswith(("file:", "/", ".")):      # many a path is good base64
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
    """What tells one version of a file from another; None when it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Source(Generic[T]):
    """What one of them holds, as `parse` makes it out.  While a file that has changed cannot be used, what it held before counts."""

    def __init__(self, key: str, where: str, parse: Callable[[bytes], T]):
        """key: of the configuration.  Raises Unusable."""
        self._key, self._parse = key, parse
        try:
            self._path, data = read(where)
            self._value = parse(data)
        except SourceError as error:
            raise Unusable(key, str(error)) from None
        if self._path is None and not where.startswith("data:"):
            log.info(f"{key} names no file: it is taken for a content in base64", code="G331")
        self._stamp: tuple | None = None      # not known: it is read once more, for it may have changed since
        self._due = time.monotonic() + _LOOK_SECONDS

    def get(self) -> T:
        if self._path is not None and time.monotonic() >= self._due:
            self._due = time.monotonic() + _LOOK_SECONDS
            found = stamp(self._path)
            if found != self._stamp:
                self._stamp = found
                self._read_again()
        return self._value

    def _read_again(self) -> None:
        try:
            self._value = self._parse(read(f"file:{quote(str(self._path))}")[1])      # whatever is missing now, it is a file
        except SourceError as error:
            log.error(f"{self._key} {error}; what was there before is used on", code="G405")
