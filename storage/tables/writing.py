"""Tasks of an export: stretches of a topic's partitions -> Parquet files, and small files -> larger ones.

A task runs in the process beside this one, or beside one of Spark's Python workers: see apart.py.  A message that ends
this process is found, and rejected.
"""
import contextlib
import itertools
import os
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from geminga.storage.disk.files import sync
from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.jobs import apart, reading
from geminga.storage.jobs.apart import Ended, Mark
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.entry_blocks import ViewReplaced
from geminga.storage.tables import columns
from geminga.storage.tables.columns import REJECTED
from geminga.storage.tables.commits import COMPACTED, DataFile
from geminga.storage.tables.commits import REJECTED as REJECTED_FOLDER
from geminga.storage.tables.values import Values

_GROUP_ROWS, _GROUP_BYTES = 1 << 18, 32 << 20      # of a row group, about
_BUFFERED_BYTES = 96 << 20           # rows that a task holds for all its files
_OPEN_MAX = 64                       # files that a task writes at a time
_FILE_BYTES = 256 << 20              # of rows in memory, after which a file is ended
_TOLD_MAX = 20                       # lines about rejected messages, and about damage, of a task
_REPEATING = "_producer", "_partition", "_ledger_id", "_schema_version"      # columns with few values
_DAY_US = 86_400_000_000
_PATIENCE_S, _BYTES_A_SECOND = 60.0, 1e6      # processor time that messages may take, and more for their bytes
_ENDINGS_MAX = 40                    # of a task's process, after which its table fails


@dataclass(frozen=True, slots=True)
class Source:
    """A topic's partitions, as tasks read them."""

    data_dir: Path
    content: str                                # of the table: its folder
    values: Values
    schema: pa.Schema                           # of the files
    beside: pa.Schema                           # of the files of rejected messages
    numbers: dict[int, int | None]              # partition id -> number of the partition, if the topic has some
    cancelled: dict[int, dict[int, list[int]]]  # partition id -> ledger id -> entries that no consumer gets
    folder: Path                                # for the files
    token: str                                  # of the commit


@dataclass(slots=True)
class Written:
    """Result of a task."""

    files: list[tuple[Path, DataFile]] = field(default_factory=list)
    rows: int = 0
    rejected: int = 0
    told: list[str] = field(default_factory=list)      # positions of rejected messages, with the reason
    damage: list[str] = field(default_factory=list)
    damaged: int = 0
    error: str = ""                             # why the task failed


@dataclass(slots=True)
class Care:
    """Messages that have ended the process of a task: first those of a batch, then which one."""

    suspects: list[Mark] = field(default_factory=list)      # entries whose messages are read one by one
    refused: dict[Mark, str] = field(default_factory=dict)      # messages that are not read -> why

    def learn(self, ended: Ended) -> bool:
        """Note what had been read when a process ended.  Returns whether another one may come further."""
        mark, count = ended.mark, len(self.suspects) + len(self.refused)
        if mark is None or mark in self.suspects or count >= _ENDINGS_MAX:
            return False
        if mark.is_alone:
            self.refused[mark] = str(ended)
        else:
            self.suspects.append(mark)
        return True

    def pieces(self, batch: pa.RecordBatch, ledger_id: int) -> Iterator[tuple[pa.RecordBatch, str]]:
        """Yield the messages of a batch in pieces, each with the reason why its payloads are not read, if there is one.
        """
        entries = batch["entry_id"].to_numpy()
        alone = np.zeros(len(batch), bool)
        for mark in self.suspects:
            if mark.ledger_id == ledger_id:
                alone |= (entries >= mark.first) & (entries <= mark.last)
        together = batch.filter(pa.array(~alone)) if alone.any() else batch
        if len(together):
            ids = together["entry_id"].to_numpy()
            _mark(Mark(ledger_id, int(ids.min()), int(ids.max())), together)
            yield together, ""
        for at in np.flatnonzero(alone).tolist():
            message, entry, index = batch.slice(at, 1), int(entries[at]), batch["batch_index"][at].as_py()
            mark = Mark(ledger_id, entry, entry, -1 if index is None else index, 1)
            _mark(mark, message)
            yield message, self.refused.get(mark, "")


def _mark(mark: Mark, batch: pa.RecordBatch) -> None:
    apart.mark(mark, _PATIENCE_S + batch.nbytes / _BYTES_A_SECOND)


def write_apart(source: Source, task: int, stretches: list[Stretch]) -> Written:
    """Write the messages of stretches as `write` does, in the process beside this one."""
    care = Care()
    while True:
        try:
            written: Written = apart.run(write, source, task, stretches, care)
            return written
        except Ended as ended:
            if not care.learn(ended):
                at = ended.mark and f", at {ended.mark.ledger_id}:{ended.mark.first}"
                return Written(error=f"its messages cannot be read: {ended}{at or ''}")
        except OSError as error:
            return Written(error=text_of(error))
        except Exception as error:      # of a library, about this topic: other topics can be exported
            traceback.print_exc()
            return Written(error=f"{type(error).__name__}: {error}")


def write(source: Source, task: int, stretches: Iterable[Stretch], care: Care) -> Written:
    """Write the messages of stretches as Parquet files, synced."""
    result = Written()

    def report(text: str) -> None:
        result.damaged += 1
        if len(result.damage) < _TOLD_MAX:
            result.damage.append(text)

    files: _Files | None = None
    try:
        files = _Files(source.folder, f"{source.token}-{task}", source.content, source.schema, source.beside)
        for stretch in stretches:
            cancelled = source.cancelled.get(stretch.partition_id, {}).get(stretch.ledger_id)
            number = source.numbers[stretch.partition_id]
            alone = stretch.partition_id if source.content == COMPACTED else 0
            for batch in reading.batches(source.data_dir, stretch, columns.READ, report):
                if cancelled:
                    batch = batch.filter(pc.invert(pc.is_in(batch["entry_id"], pa.array(cancelled, pa.int64()))))
                for piece, refused in care.pieces(batch, stretch.ledger_id):
                    rows, beside, rejected = columns.rows_of(piece, number, source.values, files.schema, refused)
                    files.add(rows, alone)
                    files.add(beside, alone)
                    result.rows += len(rows)
                    result.rejected += len(beside)
                    for message in rejected[:max(0, _TOLD_MAX - len(result.told))]:
                        result.told.append(_line(number, message))
        result.files = files.close()
    except OSError as error:
        result.error = text_of(error)
    except (CorruptFile, ViewReplaced) as error:
        result.error = str(error)
    except Exception as error:      # of a library, about this topic: other topics can be exported
        traceback.print_exc()
        result.error = f"{type(error).__name__}: {error}"
    finally:
        if files is not None:
            files.abandon()
    return result


def _line(number: int | None, rejected: columns.Rejected) -> str:
    index = "" if rejected.batch_index is None else f":{rejected.batch_index}"
    where = "" if number is None else f"partition {number}, "
    return f"{where}{rejected.ledger_id}:{rejected.entry_id}{index}: {rejected.reason}"


class _Files:
    """The Parquet files that one task writes: for each day one, and one of rejected messages."""

    def __init__(self, folder: Path, name: str, content: str, schema: pa.Schema, beside: pa.Schema):
        self.schema, self._beside = schema, beside
        self._folder, self._name, self._content, self._counter = folder, name, content, itertools.count()
        self._open: dict[tuple[str, int], _File] = {}      # by day and `partition_id`
        self._done: list[tuple[Path, DataFile]] = []

    def __repr__(self) -> str:
        return f"<_Files {self._name} open={len(self._open)} done={len(self._done)}>"

    def add(self, rows: pa.RecordBatch, partition_id: int) -> None:
        """Add rows of the table, or of rejected messages.  Raises OSError.

        partition_id: of a compacted table; otherwise 0, and partitions share files.
        """
        if not len(rows):
            return
        if rows.schema.names == REJECTED.names:
            self._add("", rows, partition_id)
            return
        days = rows["_publish_time"].cast(pa.int64()).to_numpy() // _DAY_US
        first, last = int(days.min()), int(days.max())
        if first == last:
            self._add(_text(first), rows, partition_id)
            return
        order = np.argsort(days, kind="stable")
        days, rows = days[order], rows.take(pa.array(order))
        starts = np.flatnonzero(np.diff(days, prepend=days[0] - 1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(days)], strict=True):
            self._add(_text(int(days[start])), rows.slice(start, end - start), partition_id)

    def _add(self, day: str, rows: pa.RecordBatch, partition_id: int) -> None:
        key = day, partition_id
        if key not in self._open:
            if len(self._open) >= _OPEN_MAX:
                self._end(next(iter(self._open)))
            alone = f"-p{partition_id}" if partition_id else ""
            self._open[key] = _File(self._folder / f"{self._name}-{next(self._counter)}{alone}.parquet",
                                    self.schema if day else self._beside)
        file = self._open.pop(key)
        self._open[key] = file                # the one that was used last is the last
        file.add(rows)
        if sum(other.buffered for other in self._open.values()) > _BUFFERED_BYTES:
            max(self._open.values(), key=lambda other: other.buffered).flush()
        if file.size >= _FILE_BYTES:
            self._end(key)

    def _end(self, key: tuple[str, int]) -> None:
        file, (day, partition_id) = self._open.pop(key), key
        file.close()
        folder = f"{self._content}/day={day}" if day else self._content + REJECTED_FOLDER
        self._done.append((file.path, DataFile(f"{folder}/{file.path.name}", file.rows, file.path.stat().st_size, day,
                                              partition_id)))

    def close(self) -> list[tuple[Path, DataFile]]:
        """End all files, and return them.  Raises OSError."""
        for key in list(self._open):
            self._end(key)
        return self._done

    def abandon(self) -> None:
        """Close what is still open, without a complaint: a failure is why it is."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()


def _text(day: int) -> str:
    return (date(1970, 1, 1) + timedelta(day)).isoformat()


class _File:
    """A Parquet file that is being written."""

    def __init__(self, path: Path, schema: pa.Schema):
        self.path, self._schema = path, schema
        self.rows = self.size = self.buffered = 0
        self._buffer: list[pa.RecordBatch] = []
        self._writer: pq.ParquetWriter | None = None

    def __repr__(self) -> str:
        return f"<_File {self.path.name} rows={self.rows}>"

    def add(self, rows: pa.RecordBatch) -> None:
        self._buffer.append(rows)
        self.buffered += rows.nbytes
        self.size += rows.nbytes
        self.rows += len(rows)
        if self.buffered >= _GROUP_BYTES or sum(map(len, self._buffer)) >= _GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered, as a row group."""
        if self._writer is None:
            self._writer = writer_of(self.path, self._schema)
        self._writer.write_table(pa.Table.from_batches(self._buffer, self._schema), row_group_size=_GROUP_ROWS)
        self._buffer, self.buffered = [], 0

    def close(self) -> None:
        if self._buffer:
            self.flush()
        assert self._writer is not None      # a file is made for its first rows
        self._writer.close()
        sync(self.path, os.fdatasync)

    def abandon(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
            self._writer = None
        self.path.unlink(missing_ok=True)


def writer_of(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of a new Parquet file.  Raises OSError.

    Floating-point columns have no statistics, as those leave out NaN: readers would pass over files and row groups that
    have rows with NaN, or take a column of 0 and NaN for one of 0 only.
    """
    counted = [path for column in schema for path, kind in _leaves(column.name, column.type)
               if not pa.types.is_floating(kind)]
    return pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, write_statistics=counted,
                            use_dictionary=[name for name in _REPEATING if name in schema.names])


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield (path, type) of the columns that a field has in a Parquet file."""
    if pa.types.is_struct(kind):
        for part in kind:
            yield from _leaves(f"{path}.{part.name}", part.type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    else:
        yield path, kind


# -- rewriting

def merge(paths: list[Path], target: Path, schema: pa.Schema) -> int:
    """Write the rows of Parquet files into one file, synced; return how many.  Raises OSError, pa.ArrowException.

    schema: all columns of all files.  Those that only some have are null in the rows of the others.
    """
    return _write_all(paths, target, schema)


def recast(path: Path, target: Path, schema: pa.Schema) -> int:
    """Write the rows of a Parquet file into another one, synced; return how many.  Raises OSError, pa.ArrowException.

    The columns that the schema has too are as there.
    """
    return _write_all([path], target, pa.schema(
        [schema.field(column.name) if column.name in schema.names else column for column in pq.read_schema(path)]))


def _write_all(paths: list[Path], target: Path, schema: pa.Schema) -> int:
    count = 0
    with writer_of(target, schema) as writer:
        for rows in _groups(paths, schema):
            writer.write_table(rows, row_group_size=_GROUP_ROWS)
            count += rows.num_rows
    sync(target, os.fdatasync)
    return count


def _groups(paths: list[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of files as tables of about a row group each."""
    some: list[pa.Table] = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1 << 16):
                some.append(columns.as_schema([batch], schema))
                if sum(one.num_rows for one in some) >= _GROUP_ROWS or sum(one.nbytes for one in some) >= _GROUP_BYTES:
                    yield pa.concat_tables(some)
                    some = []
    if some:
        yield pa.concat_tables(some)
