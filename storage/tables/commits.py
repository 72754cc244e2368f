"""Commits of a table in Parquet files: which files it has, and how far each partition is in them.

    <tenant>/<namespace>/<topic>/messages/day=2026-11-27/<token>-<n>.parquet    rows; or compacted/, see below
    <tenant>/<namespace>/<topic>/messages-rejected/<token>-<n>.parquet          messages that no row can show
    <tenant>/<namespace>/<topic>/_geminga/messages/commits/0000000012.json      commit 12
    <tenant>/<namespace>/<topic>/_geminga/messages/staged/<token>/...           files of a commit that is being made

A commit first has its files staged, where no reader looks.  Its JSON file, which appears as a whole, is the commit: it
names the files, and the position of each partition up to which all messages are in the files of this and earlier
commits.  Then its files are moved into place, and those that it replaces are deleted.  After a kill the next run does
that again, or deletes staged files that no commit names.  Hence each message is in the committed files once.

Every _WHOLE_EVERY-th commit names all files; older commits are deleted then.
"""
import base64
import json
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypedDict
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from geminga.proto.names import TopicName
from geminga.storage.ledgers.position import Position
from geminga.storage.tables import columns
from geminga.storage.tables.table_folders import TableFolder

MESSAGES, COMPACTED = "messages", "compacted"      # contents of a table
REJECTED = "-rejected"
VERSION = 2                          # since 2 with a schema
_INNER = "_geminga"                  # folder that Spark, Arrow and DuckDB's day=* leave out
_WHOLE_EVERY = 100


class CannotExport(Exception):
    """Error: this table cannot be written, while others can.  The text gives the reason."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table."""

    path: str                        # in the topic's folder
    rows: int
    size: int                        # bytes
    day: str = ""                    # of publishing, 2026-11-27; empty: rejected messages
    partition_id: int = 0            # of a compacted table, whose partitions are replaced one by one

    @property
    def is_rejected(self) -> bool:
        return not self.day


class Totals(TypedDict, total=False):
    """A table as reports show it; empty: it cannot be opened."""

    rows: int
    rejected: int                    # rows of rejected messages
    bytes: int
    files: int
    commits: int
    committed_ms: int                # 0: never
    url: str


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit, and the totals of the table with it."""

    number: int
    broker: str                      # identity of the broker that writes the table
    topic: str
    token: str                       # differs from every other commit's
    at_ms: int = 0
    positions: dict[int, Position] = field(default_factory=dict)      # by partition id: all up to there is in the table
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()    # paths
    files: int = 0
    rows: int = 0
    rejected: int = 0                # rows of rejected messages
    size: int = 0                    # bytes of all files
    everything: tuple[DataFile, ...] | None = None      # all files of the table, in some commits
    schema: str = ""                 # types of all columns of all files, as Arrow has them, in base64; empty: not known

    def encode(self) -> bytes:
        positions = {str(one): f"{at[0]}:{at[1]}" for one, at in self.positions.items()}
        return json.dumps({"version": VERSION, **asdict(self), "positions": positions}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ValueError, KeyError or TypeError for anything but a commit."""
        stored = json.loads(data)
        if (version := stored.pop("version")) > VERSION:
            raise ValueError(f"it has version {version}, which a newer program wrote")
        positions = {int(one): tuple(map(int, at.split(":"))) for one, at in stored["positions"].items()}
        whole = stored["everything"]
        return cls(**stored | {
            "positions": positions, "added": _files(stored["added"]), "removed": tuple(stored["removed"]),
            "everything": None if whole is None else _files(whole)})


def _files(stored: list[dict[str, Any]]) -> tuple[DataFile, ...]:
    return tuple(DataFile(**one) for one in stored)


def _encoded(schema: pa.Schema, before: pa.Schema | None) -> str:
    """Return a schema as a commit has it, with other columns that were known."""
    others = [] if before is None else [one for one in before if one.name not in schema.names]
    return base64.b64encode(pa.schema([*schema, *others]).serialize()).decode()


def folder_of(topic: TopicName) -> str:
    """Return the folder of a topic's tables, relative to the place."""
    return "/".join(_quoted(name) for name in (topic.tenant, topic.namespace_name, topic.local_name))


def _quoted(name: str) -> str:
    """Return a name that is one of a folder: readers leave out names that begin with . or _."""
    text = quote(name, safe=" ")
    return f"%{ord(text[0]):02X}{text[1:]}" if text[0] in "._" else text


class ParquetTable:
    """A table in Parquet files, with its last commit."""

    def __init__(self, place: TableFolder, topic: TopicName, content: str, broker: str):
        """Open a table, without changing anything.  Raises CannotExport, OSError."""
        self.place, self.topic, self.content, self._broker = place, topic, content, broker
        self._folder = folder_of(topic)
        self._inner = f"{self._folder}/{_INNER}/{content}"
        self.last = self._read(numbers[-1]) if (numbers := self._numbers()) else None
        if self.last is not None and self.last.broker != broker:
            raise CannotExport(f"{place.url}/{self._folder} is written by another broker, {self.last.broker}")

    def __repr__(self) -> str:
        return f"<ParquetTable {self._folder} {self.content} commit={self.last and self.last.number}>"

    @property
    def positions(self) -> dict[int, Position]:
        return self.last.positions if self.last is not None else {}

    def recover(self) -> None:
        """Finish or undo what a killed run left.  Only for the one that is about to write.  Raises OSError."""
        if self.last is not None:
            self._publish(self.last)
        for token in self.place.names(f"{self._inner}/staged"):
            self.place.delete(f"{self._inner}/staged/{token}")

    def stage(self, token: str, files: list[tuple[Path, DataFile]]) -> None:
        """Bring written files to where a commit finds them.  Raises OSError."""
        for source, file in files:
            self.place.put(source, f"{self._inner}/staged/{token}/{file.path}")

    def commit(self, token: str, positions: dict[int, Position], added: list[DataFile], removed: list[DataFile],
               schema: pa.Schema) -> None:
        """Commit staged files, and put them into place.

        positions: of the partitions that have come further.  removed: files that the added ones replace.  schema: the
        columns that all files with one of them have in these types.  Raises CannotExport, OSError; then the next
        opening of the table finds the commit made, or not at all.
        """
        last = self.last or Commit(0, self._broker, str(self.topic), "")
        gone = {file.path for file in removed}
        commit = replace(
            last, number=last.number + 1, token=token, at_ms=time.time_ns() // 1_000_000,
            positions={**last.positions, **positions}, added=tuple(added), removed=tuple(sorted(gone)), everything=None,
            schema=_encoded(schema, self.schema()[0]),
            files=last.files + len(added) - len(removed),
            rows=last.rows + sum(file.rows * (not file.is_rejected) for file in added)
            - sum(file.rows * (not file.is_rejected) for file in removed),
            rejected=last.rejected + sum(file.rows * file.is_rejected for file in added)
            - sum(file.rows * file.is_rejected for file in removed),
            size=last.size + sum(file.size for file in added) - sum(file.size for file in removed))
        if commit.number % _WHOLE_EVERY == 0:
            commit = replace(commit, everything=(*(file for file in self.files() if file.path not in gone), *added))
        try:
            self.place.create(self._path(commit.number), commit.encode())
        except FileExistsError:
            raise CannotExport(f"{self.place.url}/{self._path(commit.number)} exists: another program writes the "
                               "table") from None
        self.last = commit
        self._publish(commit)
        if commit.everything is not None:
            for number in self._numbers()[:-1]:
                self.place.delete(self._path(number))

    def widens(self, types: pa.Schema) -> bool:
        """Say that files have to be rewritten: readers take a column's type from one of them."""
        return False

    def prepare(self, types: pa.Schema) -> pa.Schema:
        """Return the schema as files have it: readers find columns by their names."""
        return types

    def prepare_beside(self) -> pa.Schema:
        """Return the columns of rejected messages."""
        return columns.REJECTED

    def marked(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema as files have it."""
        return schema

    def is_named_alike(self, file: pa.Schema) -> bool:
        """Say that files have columns by their names."""
        return True

    def recast(self, token: str, added: list[DataFile], removed: list[DataFile], known: pa.Schema) -> None:
        """Commit staged files with wider columns in place of others.  Raises CannotExport, OSError."""
        self.commit(token, {}, added, removed, known)

    def _publish(self, commit: Commit) -> None:
        """Move a commit's files to where readers look, and delete those that it replaces.  Raises OSError."""
        staged = f"{self._inner}/staged/{commit.token}"
        if self.place.names(staged):
            for file in commit.added:
                self.place.move(f"{staged}/{file.path}", f"{self._folder}/{file.path}")
        # Only now do the replaced files go.  A kill between the two leaves rows twice until the next night repeats this
        # step; in the other order rows would be missing, and readers cannot tell.
        for path in commit.removed:
            self.place.delete(f"{self._folder}/{path}")
        self.place.delete(staged)      # last: as long as the folder is there, the step is repeated

    def schema(self) -> tuple[pa.Schema | None, bool]:
        """Return (all columns of the files, whether each has one type in all of them).  Raises OSError.

        Tables that an older program has begun say it in their files only, which are read if they are on this host;
        otherwise None.
        """
        if self.last is None:
            return None, True
        if self.last.schema:
            return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.last.schema))), True
        paths = [self.place.fetch(f"{self._folder}/{file.path}") for file in self.files() if not file.is_rejected]
        if None in paths:
            return None, True
        return columns.all_of(pq.read_schema(path) for path in paths), False

    def files(self) -> list[DataFile]:
        """Return all files of the table.  Raises CannotExport, OSError."""
        if self.last is None:
            return []
        commits, commit = [self.last], self.last
        while commit.everything is None and commit.number > 1:
            commit = self._read(commit.number - 1)
            commits.append(commit)
        files = {file.path: file for file in commit.everything or ()}
        for commit in reversed(commits):
            files |= {file.path: file for file in commit.added}
            for path in commit.removed:
                files.pop(path, None)
        return list(files.values())

    def local(self, file: DataFile, scratch: Path) -> Path:
        """Return where a committed file can be read on this host; it may be copied into `scratch`.  Raises OSError."""
        path = f"{self._folder}/{file.path}"
        local = self.place.fetch(path)
        if local is None:
            local = scratch / Path(file.path).name
            self.place.copy(path, local)
        return local

    def totals(self) -> Totals:
        last = self.last or Commit(0, self._broker, str(self.topic), "")
        return {"rows": last.rows, "rejected": last.rejected, "bytes": last.size, "files": last.files,
                "commits": last.number, "committed_ms": last.at_ms, "url": f"{self.place.url}/{self._folder}"}

    def _numbers(self) -> list[int]:
        names = self.place.names(f"{self._inner}/commits")
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())

    def _path(self, number: int) -> str:
        return f"{self._inner}/commits/{number:010}.json"

    def _read(self, number: int) -> Commit:
        try:
            return Commit.decode(self.place.read(self._path(number)))
        except (ValueError, KeyError, TypeError) as error:
            raise CannotExport(f"{self.place.url}/{self._path(number)} is no commit: {error}") from None
