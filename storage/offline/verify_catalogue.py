"""Check the catalogue: SQLite's integrity check, rows that refer to each other, and the write-ahead log.

SQLite has checksums only in the write-ahead log. Frames behind the first one that fails its checksum are silently
ignored.
"""
import contextlib
import json
import re
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from geminga.proto.names import SEGMENT
from geminga.storage.catalogue import checksums, layout
from geminga.storage.catalogue.partitions import PREFIX
from geminga.storage.disk import regular_files
from geminga.storage.offline.findings import Finding, Severity

_LOG_MAGIC = 0x377F0682                        # the magic + 1: checksums are over big-endian words
_LOG_HEADER = struct.Struct(">IIIIIIII")       # magic, version, page size, sequence, salts, checksums
_FRAME = struct.Struct(">IIIIII")              # page, pages of the database after a commit or 0, salts, checksums


@dataclass(slots=True)
class Names:
    """Names and ids of partitions and subscriptions in the catalogue, and findings about the catalogue."""

    partitions: dict[int, str] = field(default_factory=dict)
    subscriptions: dict[int, dict[int, str]] = field(default_factory=dict)     # partition -> {id: name}
    findings: list[Finding] = field(default_factory=list)


def read_names(data_dir: Path, *, is_served: bool) -> Names:
    path = data_dir / "catalogue.sqlite"
    try:
        with looked_at(data_dir, is_served=is_served) as db:
            names = _read(path, db)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:      # the latter if SQLite quotes damaged bytes
        names = Names(findings=[Finding(path, f"SQLite cannot read it: {error}", "no broker starts on it",
                                        Severity.UNREADABLE)])
    if not is_served:
        names.findings += _check_log(Path(f"{path}-wal"))
    return names


@contextlib.contextmanager
def looked_at(data_dir: Path, *, is_served: bool) -> Iterator[sqlite3.Connection]:
    """Connect to the catalogue for reading, as a context manager.

    A catalogue that no broker serves is copied first, because SQLite would write files beside it.

    Raises DatabaseError.
    """
    path = data_dir / "catalogue.sqlite"
    with contextlib.ExitStack() as stack:
        if is_served:
            place = f"file:{path}?mode=ro"
        else:
            place = str(Path(stack.enter_context(tempfile.TemporaryDirectory()), path.name))
            for suffix in ("", "-wal"):
                with contextlib.suppress(FileNotFoundError), regular_files.opened(Path(f"{path}{suffix}")) as file, \
                        open(f"{place}{suffix}", "wb") as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
        yield stack.enter_context(contextlib.closing(sqlite3.connect(place, uri=is_served, timeout=30)))


def _read(path: Path, db: sqlite3.Connection) -> Names:
    names = Names()

    def tell(what: str, consequence: str, severity: Severity) -> None:
        names.findings.append(Finding(path, what, consequence, severity))

    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > layout.VERSION:
        tell(f"has format version {version}, and this program reads {layout.VERSION} and older",
             "nothing was looked at", Severity.UNREADABLE)
        return names
    for text, in db.execute("PRAGMA integrity_check"):
        if text != "ok":
            tell(text, "queries that use it return wrong results", Severity.LOSS)
    for table, _, parent, _ in db.execute("PRAGMA foreign_key_check"):
        tell(f"a row of {table} refers to a row of {parent} that is not there", "the object that it names is not found",
             Severity.LOSS)
    sums = dict(db.execute("SELECT name, value FROM sums")) if version > 2 else {}
    for table in sums.keys() & checksums.COLUMNS.keys() if version > 2 else ():
        if checksums.sum_of(db, table) != sums[table]:
            tell(f"a value in the table {table} is not what was written",
                 "it has another effect, or names something else", Severity.LOSS)
    names.partitions = dict(db.execute("SELECT id, name FROM partitions"))
    for number, partition_id, name in db.execute("SELECT id, partition_id, name FROM subscriptions"):
        names.subscriptions.setdefault(partition_id, {})[number] = name
    topics = dict(db.execute("SELECT name, partitions FROM topics"))
    legacy = _former_partitions(db) if version > 4 else set()
    for name in names.partitions.values():
        if name.startswith((f"{SEGMENT}://", PREFIX)) or name in legacy:
            continue      # its topic's row names it, and the deletion of the topic finds it; or that row is kept
        match = re.fullmatch(r"(.*?)(?:-partition-(\d+))?", name)
        base, number = match.groups() if match is not None else (name, None)
        if name not in topics and (number is None or int(number) >= topics.get(base, 0)):
            tell(f"there is no topic of partition {name}", "lists of topics lack it", Severity.HARMLESS)
    return names


def _former_partitions(db: sqlite3.Connection) -> set[str]:
    """Return the partitions that are segments of topics which were made scalable, also of those being deleted."""
    ids: set[str] = set()
    for text, in db.execute("SELECT segments FROM layouts"):
        with contextlib.suppress(ValueError, TypeError, IndexError):      # a damaged row: its checksum says so
            ids.update(row[-1] for row in json.loads(text))
    return ids


def _check_log(path: Path) -> Iterator[Finding]:
    """Yield findings for damage in SQLite's write-ahead log: SQLite ignores all frames behind a damaged one.

    A single damaged commit at the end of the log may have been interrupted by a power cut before it was confirmed to a
    client.
    """
    try:
        with regular_files.opened(path) as file:
            raw = file.read()
    except FileNotFoundError:
        return
    if len(raw) < _LOG_HEADER.size:
        return
    magic, _, page_size, _, *salts, first, second = _LOG_HEADER.unpack_from(raw)
    words = np.dtype(">u4" if magic & 1 else "<u4")
    checksum = _log_checksum(raw[:_LOG_HEADER.size - 8], words, (0, 0))
    if magic & ~1 != _LOG_MAGIC or checksum != (first, second):
        yield Finding(path, "the header of SQLite's log is damaged", "what only the log has is lost", Severity.LOSS,
                      size=_LOG_HEADER.size)
        return
    wrong: int | None = None
    commits, size = 0, _FRAME.size + page_size
    for offset in range(_LOG_HEADER.size, len(raw) - size + 1, size):
        _, pages, *own_salts, first, second = _FRAME.unpack_from(raw, offset)
        if wrong is None:
            checksum = _log_checksum(raw[offset:offset + 8] + raw[offset + _FRAME.size:offset + size], words, checksum)
            if own_salts != salts or checksum != (first, second):
                wrong = offset
        if wrong is not None and own_salts == salts and pages:
            commits += 1
    if wrong is not None and commits > 1:
        yield Finding(path, "SQLite's log is damaged", f"{commits} changes of the catalogue are lost", Severity.LOSS,
                      wrong, size)
    elif wrong is not None and commits:
        yield Finding(path, "the last change in SQLite's log is not whole", "if it was answered, it is lost",
                      Severity.NOTE, wrong, size)


def _log_checksum(data: bytes, words: np.dtype, checksum: tuple[int, int]) -> tuple[int, int]:
    first, second = checksum
    numbers = iter(np.frombuffer(data, words).tolist())
    for even, odd in zip(numbers, numbers, strict=True):
        first = first + even + second & 0xFFFFFFFF
        second = second + odd + first & 0xFFFFFFFF
    return first, second
