"""A night's exports: which tables are due, their tasks in rounds, their commits, and small files merged.

    plan(...)    what an export would do; reads headers of ledgers, and the last commit of each table
    run(...)     export what is due, and report

A round has tasks of one or several tables.  Each table of a round is committed when its tasks are done, so that a night
that is killed or out of time has exported what it has committed.
"""
import itertools
import math
import secrets
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Protocol, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.delayed.amendments import Amendments
from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.jobs import confirmed
from geminga.storage.jobs.compacting import nightly
from geminga.storage.jobs.compacting.engines import OutOfTime, Tell
from geminga.storage.jobs.compacting.nightly import Engine
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.shapes import NoSchema
from geminga.storage.ledgers import compacted_ledgers, ledger_headers
from geminga.storage.ledgers.position import NOWHERE, Position
from geminga.storage.tables import columns, values, writing
from geminga.storage.tables.commits import COMPACTED, CannotExport, DataFile, Totals
from geminga.storage.tables.values import Values
from geminga.storage.tables.writing import Source, Written

EXPORTING = "exporting"
NOTHING_NEW, EXPORTED, FAILED, LATE = "nothing new", "exported", "failed", "not in time"
_TASK_BYTES = 128 << 20              # of entries
_ROUND_BYTES = 2 << 30               # of entries: all that a killed night does again
_SMALL_BYTES, _MERGED_BYTES = 32 << 20, 256 << 20      # files that are merged, and what they become
_MERGE_MIN = 8                       # small files of a day that are worth it
_LINES_MAX = 100                     # in a table's report
_TEXT_MAX = 500                      # characters of a library's error

# (partition id, topic, position up to which all is in a table) -> None, or why the partition's owner does not know it.
Exported = Callable[[int, str, Position], str | None]


class Table(Protocol):
    """A table with its last commit, in Parquet files (commits.py) or in Iceberg (iceberg.py)."""

    @property
    def positions(self) -> dict[int, Position]:
        """Position of each partition, by id, up to which all messages are in the table."""

    def schema(self) -> tuple[pa.Schema | None, bool]:
        """Return (all columns of the files, whether each has one type in all of them); None: there are none, or nobody
        knows.

        Raises CannotExport, OSError.
        """

    def widens(self, types: pa.Schema) -> bool:
        """Whether columns become these types although files have them in others.  Raises CannotExport, OSError."""

    def prepare(self, types: pa.Schema) -> pa.Schema:
        """Get ready for files with columns of these types, and return the schema that they are to have.

        Raises CannotExport, OSError.
        """

    def prepare_beside(self) -> pa.Schema:
        """Return the schema that files of rejected messages are to have.  Raises CannotExport, OSError."""

    def marked(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema of some of the table's columns as files are to have it.  Raises OSError."""

    def is_named_alike(self, file: pa.Schema) -> bool:
        """Whether the columns of a file are the table's of the same names: other programs may rename a column, and a
        night adds another one of its former name.  Raises OSError.
        """

    def recover(self) -> None:
        """Finish or undo what a killed run left.  For a run that is about to write.  Raises CannotExport, OSError."""

    def stage(self, token: str, files: list[tuple[Path, DataFile]]) -> None:
        """Bring written files to where a commit finds them.  Raises OSError."""

    def commit(self, token: str, positions: dict[int, Position], added: list[DataFile], removed: list[DataFile],
               schema: pa.Schema) -> None:
        """Commit staged files, and the positions with them.  Raises CannotExport, OSError."""

    def recast(self, token: str, added: list[DataFile], removed: list[DataFile], known: pa.Schema) -> None:
        """Have staged files with wider columns replace others, now, or with the next commit, which has the wider types.

        known: the columns as before.  Raises CannotExport, OSError.
        """

    def files(self) -> list[DataFile]:
        """Return all files.  Raises CannotExport, OSError."""

    def local(self, one: DataFile, scratch: Path) -> Path:
        """Return where a file can be read on this host; it may be copied into `scratch`.  Raises OSError."""

    def totals(self) -> Totals:
        """Return the table's figures as of its last commit.  Raises OSError."""


Open = Callable[[TopicName, str], Table]      # (topic, content).  Raises CannotExport, OSError
Settle = Callable[[TopicName], None]          # has a partition's owner write down how transactions have ended


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic that is exported, with its partitions."""

    topic: TopicName
    content: str                     # MESSAGES or COMPACTED
    partitions: tuple[tuple[int, TopicName], ...]


@dataclass(slots=True)
class _Partition:
    """New messages of one partition."""

    partition_id: int
    name: TopicName
    end: Position                    # of what is new
    stretches: list[Stretch]
    messages: int
    size: int                        # bytes of entries


class TableReport(TypedDict):
    """One table in a night's report."""

    topic: str
    content: str
    outcome: str                     # NOTHING_NEW, EXPORTED ...
    error: str
    rows: int                        # of this night, as the next three
    rejected: int
    bytes: int
    files: int
    new_messages: int                # planned
    new_bytes: int                   # of entries
    positions: dict[str, str]        # partition -> ledger:entry, up to which all is in the table
    rejected_messages: list[str]     # the first of them, with the reason
    damage: list[str]                # the first lines
    damaged: int
    table: Totals


@dataclass(slots=True)
class Planned:
    """The plan of an export for one topic, and what has been done of it."""

    wanted: Wanted
    table: Table | None = None
    values: Values = field(default_factory=Values)
    schema: pa.Schema | None = None  # of the table's next files
    beside: pa.Schema | None = None  # of files of rejected messages
    partitions: list[_Partition] = field(default_factory=list)
    error: str = ""                  # why the table cannot be written
    rows: int = 0                    # of this night, as the fields below
    rejected: int = 0
    files: int = 0
    size: int = 0                    # bytes of the files
    positions: dict[int, Position] = field(default_factory=dict)
    is_late: bool = False
    told: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    damaged: int = 0

    @property
    def messages(self) -> int:
        return sum(partition.messages for partition in self.partitions)

    @property
    def bytes_new(self) -> int:
        return sum(partition.size for partition in self.partitions)

    def report(self) -> TableReport:
        outcome = (FAILED if self.error else LATE if self.is_late else EXPORTED if self.positions else NOTHING_NEW)
        totals = self.table.totals() if self.table is not None else {}
        positions = self.table.positions if self.table is not None else {}
        return {
            "topic": str(self.wanted.topic), "content": self.wanted.content, "outcome": outcome, "error": self.error,
            "rows": self.rows, "rejected": self.rejected, "bytes": self.size, "files": self.files,
            "new_messages": self.messages, "new_bytes": self.bytes_new,
            "positions": {str(name): "{}:{}".format(*positions[partition_id])
                          for partition_id, name in self.wanted.partitions if partition_id in positions},
            "rejected_messages": self.told[:_LINES_MAX], "damage": self.damage[:_LINES_MAX],
            "damaged": self.damaged, "table": totals}


# -- the plan

def plan(data_dir: Path, wanted: Iterable[Wanted], open_table: Open,
         settle: Settle = lambda name: None) -> list[Planned]:
    """Return what an export would do with each topic.  Raises CatalogueError.

    settle: called for a partition whose files do not say of all new messages whether they are committed.
    """
    catalogue = confirmed.open_catalogue(data_dir)
    try:
        return [_plan(data_dir, topic, open_table, settle, catalogue) for topic in wanted]
    finally:
        catalogue.close()


def _plan(data_dir: Path, wanted: Wanted, open_table: Open, settle: Settle, catalogue: Catalogue) -> Planned:
    planned = Planned(wanted)
    try:
        planned.table = open_table(wanted.topic, wanted.content)
        planned.values = values.of_topic(catalogue, wanted.topic)
        columns.schema_of(planned.values)
        for partition_id, name in wanted.partitions:
            behind = planned.table.positions.get(partition_id, NOWHERE)
            if wanted.content == COMPACTED:
                new = _compacted(data_dir, partition_id, name, behind)
            else:
                new = _messages(data_dir, partition_id, name, behind, settle)
            if new is not None:
                planned.partitions.append(new)
    except Exception as error:      # of this topic: others are exported
        planned.error = _text(error)
    return planned


def _messages(data_dir: Path, partition_id: int, name: TopicName, behind: Position,
              settle: Settle) -> _Partition | None:
    """Return the committed messages of a partition behind a position, None if there are none.

    Only headers and what is behind the position are read.  Raises CannotExport, CorruptFile, OSError.
    """
    folder = format.partition_folder(data_dir, partition_id)
    known = confirmed.committed(data_dir, partition_id, behind=behind)
    if not known.is_all:
        settle(name)
        known = confirmed.committed(data_dir, partition_id, behind=behind)
    end, ledger_ids = known.up_to, ledger_headers.ledger_ids(folder)
    if behind > end:
        if ledger_ids and behind > max(confirmed.last_confirmed(data_dir, partition_id), (ledger_ids[-1], -1)):
            raise CannotExport(f"the table has messages of {name} up to {behind[0]}:{behind[1]}, and the data folder "
                               "has not: an older backup was restored.  Export to another place, or remove the table")
        return None
    stretches = [stretch for ledger_id in ledger_ids if behind[0] <= ledger_id <= end[0]
                 for stretch in confirmed.of_ledger(folder, partition_id, ledger_id, behind=behind, up_to=end)]
    if not stretches:
        return None
    _, messages, size = nightly.news(folder, partition_id, behind, end)
    return _Partition(partition_id, name, end, stretches, messages, size)


def _compacted(data_dir: Path, partition_id: int, name: TopicName, behind: Position) -> _Partition | None:
    """Return the compacted view of a partition, None if the table has it already."""
    view = compacted_ledgers.open_view(format.partition_folder(data_dir, partition_id))
    if view is None or view.horizon <= behind:
        return None
    stretches = confirmed.stretches(data_dir, partition_id, up_to=view.horizon, view=view.number)
    return _Partition(partition_id, name, view.horizon, [stretch for stretch in stretches if stretch.view],
                      view.manifest.messages, view.manifest.size)


def _text(error: Exception) -> str:
    """Return the text of an error that ends one table.  A stranger one is logged too: it is a fault of this program."""
    if isinstance(error, OSError):
        return text_of(error)
    if isinstance(error, CannotExport | NoSchema | CorruptFile):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {str(error)[:_TEXT_MAX]}"


# -- the run

def run(data_dir: Path, planned: list[Planned], scratch: Path, engine: Engine, exported: Exported, tell: Tell,
        ends: float = math.inf) -> None:
    """Export what is planned, and note in the plan what was done.

    scratch: a folder for files that are being written; it is made, and removed at the end.  exported: called for each
    partition that has come further.  ends: when the run has to be over, by time.monotonic(); tables with the most new
    bytes then come first.  Errors are in the plan, by table.
    """
    for export in planned:
        _recover(export)
    due = [export for export in planned if export.partitions and not export.error]
    if ends < math.inf:
        due.sort(key=attrgetter("bytes_new"), reverse=True)
    done, total = 0, sum(export.messages for export in due)
    try:
        for export in due:
            _settle_types(export, scratch, engine, ends)
        due = [export for export in due if not export.error]
        for pieces in _rounds(due):
            try:
                _round(data_dir, [piece for piece in pieces if not piece.planned.error], scratch, engine, exported,
                       _shifted(tell, done, total), ends)
            except OutOfTime:
                break
            except OSError as error:
                for piece in pieces:
                    piece.planned.error = piece.planned.error or text_of(error)
            done += sum(piece.messages for piece in pieces)
        for export in due:
            export.is_late |= not export.error and len(export.positions) < len(export.partitions)
        _merge_small([export for export in due if export.positions and not export.error], scratch, engine, ends)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# -- one type for each column

def _settle_types(planned: Planned, scratch: Path, engine: Engine, ends: float) -> None:
    """Choose the types of a table's next files, and rewrite its files where a column had another type until now.

    The files are rewritten before there are others.  A run that ends on the way leaves the rest to the next one: only
    the last commit has the new types as those of all files.
    """
    table = planned.table
    assert table is not None
    try:
        wanted, (known, is_settled) = columns.schema_of(planned.values), table.schema()
        schema = columns.settled(wanted, known)
        if known is not None and not (is_settled and all(
                column.type == known.field(column.name).type for column in schema if column.name in known.names)):
            _widen(planned, table, columns.all_of([schema, known]), known, scratch, engine, ends)
        planned.schema, planned.beside = table.prepare(schema), table.prepare_beside()
    except OutOfTime:
        planned.is_late, planned.partitions = True, []
    except Exception as error:
        planned.error = f"its files cannot get the types of the topic's schema: {_text(error)}"


def _widen(planned: Planned, table: Table, types: pa.Schema, known: pa.Schema, scratch: Path, engine: Engine,
           ends: float) -> None:
    """Rewrite those files of a table that have other types, unless readers widen them.  Raises OutOfTime and others."""
    if table.widens(types):
        return
    types = table.prepare(types)
    for group in _by_bytes(file for file in table.files() if not file.is_rejected):
        if time.monotonic() >= ends:
            raise OutOfTime
        _recast(planned, table, group, types, known, scratch, engine, ends)
    table.commit(secrets.token_hex(8), {}, [], [], types)


def _by_bytes(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Group files by about _MERGED_BYTES."""
    group: list[DataFile] = []
    for file in files:
        group.append(file)
        if sum(other.size for other in group) >= _MERGED_BYTES:
            yield group
            group = []
    if group:
        yield group


def _recast(planned: Planned, table: Table, group: list[DataFile], types: pa.Schema, known: pa.Schema, scratch: Path,
            engine: Engine, ends: float) -> None:
    """Replace those files of a group that have other types."""
    token = _begun(scratch)
    old = [(file, path) for file in group if _differs(path := table.local(file, scratch), types)]
    if not all(table.is_named_alike(pq.read_schema(path)) for _, path in old):
        raise CannotExport("another program has renamed or replaced columns: rewrite the table's data files")
    targets = [scratch / f"{token}-{number}{f'-p{file.partition_id}' * (file.partition_id > 0)}.parquet"
               for number, (file, _) in enumerate(old)]
    paths = [path for _, path in old]
    rows = engine.each(lambda number: writing.recast(paths[number], targets[number], types), len(old),
                       lambda *progress: None, EXPORTING, [file.rows for file, _ in old], ends)
    if rows != [file.rows for file, _ in old]:
        raise CannotExport(f"{rows} rows were read of files that have {[file.rows for file, _ in old]}")
    made = [replace(file, path=f"{file.path.rpartition('/')[0]}/{target.name}", size=target.stat().st_size)
            for (file, _), target in zip(old, targets, strict=True)]
    if made:
        table.stage(token, list(zip(targets, made, strict=True)))
        table.recast(token, made, [file for file, _ in old], known)


def _begun(scratch: Path) -> str:
    """Empty the folder for files that are being written, and return the token of a new commit."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    return secrets.token_hex(8)


def _differs(path: Path, types: pa.Schema) -> bool:
    return any(column.type != types.field(column.name).type for column in pq.read_schema(path)
               if column.name in types.names)


def _recover(planned: Planned) -> None:
    try:
        if planned.table is not None and not planned.error:
            planned.table.recover()
    except Exception as error:
        planned.error = _text(error)


def _shifted(tell: Tell, before: int, total: int) -> Tell:
    return lambda stage, done, _: tell(stage, min(total, before + done), total)


@dataclass(slots=True)
class _Piece:
    """A part of a partition that one round exports."""

    planned: Planned
    partition: _Partition
    stretches: list[Stretch]
    end: Position                    # of the partition in the table when the piece is committed
    messages: int                    # approximately


def _rounds(due: list[Planned]) -> Iterator[list[_Piece]]:
    """Yield the pieces of each round, about _ROUND_BYTES of entries together.

    A compacted view is one piece, however large: it replaces the one before as a whole.
    """
    pieces: list[_Piece] = []
    room = _ROUND_BYTES
    for planned in due:
        for partition in planned.partitions:
            each = partition.size / max(1, len(partition.stretches))      # bytes
            remaining = list(partition.stretches)
            while True:
                count = len(remaining) if planned.wanted.content == COMPACTED else max(1, int(room // max(1, each)))
                taken, remaining = remaining[:count], remaining[count:]
                end = partition.end if not remaining else (taken[-1].ledger_id, taken[-1].end - 1)
                share = round(partition.messages * len(taken) / max(1, len(partition.stretches)))
                pieces.append(_Piece(planned, partition, taken, end, share))
                room -= int(each * len(taken))
                if room <= 0:
                    yield pieces
                    pieces, room = [], _ROUND_BYTES
                if not remaining:
                    break
    if pieces:
        yield pieces


def _round(data_dir: Path, pieces: list[_Piece], scratch: Path, engine: Engine, exported: Exported, tell: Tell,
           ends: float) -> None:
    """Export the pieces of a round, and commit each table.  Raises OutOfTime, OSError."""
    token = _begun(scratch)
    by_table = [(planned, list(of_table)) for planned, of_table in itertools.groupby(pieces, attrgetter("planned"))]
    sources, ready = [], []
    for planned, of_table in by_table:
        try:
            sources.append(_source(data_dir, planned, of_table, scratch, token))
            ready.append((planned, of_table))
        except Exception as error:      # of this topic: others are exported
            planned.error = _text(error)
    tasks = [(number, stretches) for number, (_, of_table) in enumerate(ready) for stretches in _tasks(of_table)]
    weights = _weights(pieces)

    def write(number: int) -> Written:
        table, stretches = tasks[number]
        return writing.write_apart(sources[table], number, stretches)

    results = engine.each(write, len(tasks), tell, EXPORTING,
                          [sum(weights[stretch] for stretch in stretches) for _, stretches in tasks], ends)
    for number, (planned, of_table) in enumerate(ready):
        written = [result for (of, _), result in zip(tasks, results, strict=True) if of == number]
        _finish(planned, of_table, written, token, exported)


def _source(data_dir: Path, planned: Planned, pieces: list[_Piece], scratch: Path, token: str) -> Source:
    numbers, cancelled = {}, {}
    for piece in pieces:
        partition_id, name = piece.partition.partition_id, piece.partition.name
        numbers[partition_id] = name.partition if name.partition >= 0 else None
        amended = Amendments(format.amended_path(format.partition_folder(data_dir, partition_id)))
        amended.read()               # the partition's owner reports damage of this file
        if entries := amended.cancelled():
            cancelled[partition_id] = entries
    assert planned.schema is not None and planned.beside is not None
    return Source(data_dir, planned.wanted.content, planned.values, planned.schema, planned.beside, numbers, cancelled,
                  scratch, token)


def _weights(pieces: list[_Piece]) -> dict[Stretch, int]:
    """Return about how many messages each stretch has."""
    weights: dict[Stretch, int] = {}
    for piece in pieces:
        entries = sum(stretch.end - stretch.first for stretch in piece.stretches)
        weights |= {stretch: round(piece.messages * (stretch.end - stretch.first) / max(1, entries))
                    for stretch in piece.stretches}
    return weights


def _tasks(pieces: list[_Piece]) -> Iterator[list[Stretch]]:
    """Group the stretches of a table's pieces into tasks of about _TASK_BYTES."""
    stretches: list[Stretch] = []
    size = 0.0
    for piece in pieces:
        each = piece.partition.size / max(1, len(piece.partition.stretches))
        for stretch in piece.stretches:
            if stretches and size + each > _TASK_BYTES:
                yield stretches
                stretches, size = [], 0
            stretches.append(stretch)
            size += each
    if stretches:
        yield stretches


def _finish(planned: Planned, pieces: list[_Piece], written: list[Written], token: str, exported: Exported) -> None:
    """Commit what a round has written of one table."""
    table, files = planned.table, [file for result in written for file in result.files]
    assert table is not None and planned.schema is not None
    for result in written:
        planned.told += result.told[:max(0, _LINES_MAX - len(planned.told))]
        planned.damage += result.damage[:max(0, _LINES_MAX - len(planned.damage))]
        planned.damaged += result.damaged
    ends = {piece.partition.partition_id: piece.end for piece in pieces}
    try:
        for result in written:
            if result.error:
                raise CannotExport(result.error)
        added = [file for _, file in files]
        removed = [file for file in table.files() if file.partition_id in ends] if (
            planned.wanted.content == COMPACTED) else []
        table.stage(token, files)
        table.commit(token, ends, added, removed, planned.schema)
    except Exception as error:
        planned.error = _text(error)
        for path, _ in files:
            path.unlink(missing_ok=True)
        return
    planned.rows += sum(result.rows for result in written)
    planned.rejected += sum(result.rejected for result in written)
    planned.files += len(added)
    planned.size += sum(file.size for file in added)
    for piece in pieces:
        partition = piece.partition
        if why_not := exported(partition.partition_id, str(partition.name), piece.end):
            planned.error = f"it is exported, but the owner of {partition.name} does not know: {why_not}"
        if piece.end == partition.end:
            planned.positions[partition.partition_id] = piece.end


# -- small files

def _merge_small(tables: list[Planned], scratch: Path, engine: Engine, ends: float) -> None:
    """Merge small files of tables that have many for one day.  A failure is noted in the plan."""
    for planned in tables:
        table = planned.table
        assert table is not None
        try:
            for group in _groups(table.files()):
                if time.monotonic() >= ends:
                    return
                _merge(planned, table, group, scratch, engine, ends)
        except OutOfTime:
            return
        except Exception as error:
            planned.error = f"its files are not merged: {_text(error)}"


def _groups(files: list[DataFile]) -> Iterator[list[DataFile]]:
    """Yield small files that are to become one."""
    small = [file for file in files if file.size < _SMALL_BYTES and not file.is_rejected and not file.partition_id]
    small.sort(key=attrgetter("day"))
    for _, of_day in itertools.groupby(small, attrgetter("day")):
        yield from (group for group in _by_bytes(of_day)
                    if len(group) >= _MERGE_MIN or sum(file.size for file in group) >= _MERGED_BYTES)


def _merge(planned: Planned, table: Table, group: list[DataFile], scratch: Path, engine: Engine,
           ends: float) -> None:
    token = _begun(scratch)
    local = {table.local(file, scratch): file for file in group}
    schemas = {path: own for path in local if table.is_named_alike(own := pq.read_schema(path))}
    if len(schemas) < 2:
        return
    group, paths = [local[path] for path in schemas], list(schemas)
    target, schema = scratch / f"{token}.parquet", table.marked(columns.all_of(schemas.values()))
    (rows,) = engine.each(lambda _: writing.merge(paths, target, schema), 1, lambda *progress: None, EXPORTING, [0],
                          ends)
    merged = DataFile(f"{group[0].path.rpartition('/')[0]}/{target.name}", rows, target.stat().st_size, group[0].day)
    if rows != sum(file.rows for file in group):
        raise CannotExport(f"{rows} rows were read of files that have {sum(file.rows for file in group)}")
    table.stage(token, [(target, merged)])
    assert planned.schema is not None
    table.commit(token, {}, [merged], group, planned.schema)
