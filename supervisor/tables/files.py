"""A table: a Parquet file, or all Parquet files of a folder.

Files are sorted by their paths, and their rows are numbered from 0 through all files.  Folders such as day=2026-11-27
are columns of their files.  Names that begin with _ or . are left out, as Spark, DuckDB and pyarrow do.
"""
import os
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

SUFFIXES = (".parquet", ".parq", ".pq")
_BATCH_ROWS, _BATCH_BYTES = 16_384, 8 << 20      # of a batch in memory, by the average of its file
_BUFFER = 1 << 20                                # bytes that are read at once
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"         # a folder's value for null
_END, _MAGIC = 8, b"PAR1"                        # of a file: the footer's size, then the magic number


class BadTable(Exception):
    """An error: a path is no table, or not one that can be published.  The text names file and column."""

    exit_status = 2


class File(NamedTuple):
    """A Parquet file of a table."""

    path: str
    name: str                    # below the table's folder
    first: int                   # number of its first row in the table
    rows: int
    size: int                    # bytes of its rows, decoded, as its footer says
    footer: bytes                # digest of its size and its footer
    folders: dict[str, str | None]      # column: value, from its folders


class Rows(NamedTuple):
    """Rows that follow each other in a file."""

    file: File
    first: int                   # number of the first one in the table
    batch: pa.RecordBatch


class Table:
    """All files of a table, with their common schema.  Raises BadTable when it is made."""

    def __init__(self, path: str) -> None:
        self.path = str(Path(path).resolve())
        self.files: list[File] = []
        self._fields: dict[str, tuple[pa.Field, File]] = {}      # by column, with the first file that has it
        first, seen = 0, 0
        for name, folders in _found(path):
            file, schema = _opened(path, name, folders, first)
            self._join(schema, file, seen)
            self.files.append(file)
            first, seen = first + file.rows, seen + 1
        self.rows = first
        self.folder_columns = self._folder_columns()
        fields = [field for field, _ in self._fields.values()]
        self.schema = pa.schema([*fields, *self.folder_columns.values()])

    def __repr__(self) -> str:
        return f"<Table {self.path} files={len(self.files)} rows={self.rows}>"

    def _join(self, schema: pa.Schema, file: File, seen: int) -> None:
        """Add the columns of a file to those of the `seen` files before it.  Raises BadTable."""
        for name in schema.names:
            if schema.names.count(name) > 1:
                raise BadTable(f"{file.path}: two columns have the name {name}")
        for field in schema:
            known = self._fields.get(field.name)
            if known is None:
                self._fields[field.name] = field.with_nullable(field.nullable or seen > 0), file
            elif pa.types.is_null(known[0].type):
                self._fields[field.name] = field.with_nullable(True), file
            elif field.type != known[0].type and not pa.types.is_null(field.type):
                raise BadTable(f"{file.path}: column {field.name} is {field.type}, and {known[0].type} in "
                               f"{known[1].path}")
            elif field.nullable and not known[0].nullable:
                self._fields[field.name] = known[0].with_nullable(True), known[1]
        for name, (field, other) in self._fields.items():
            if name not in schema.names and not field.nullable:
                self._fields[name] = field.with_nullable(True), other

    def _folder_columns(self) -> dict[str, pa.Field]:
        """Return the fields of columns that only folders give: whole numbers if all values are, else text."""
        values: dict[str, list[str | None]] = {}
        for file in self.files:
            for name in file.folders:
                if name not in self._fields:
                    values.setdefault(name, [])
        for name, all_values in values.items():
            all_values += [file.folders.get(name) for file in self.files]
        return {name: pa.field(name, pa.int64() if _are_whole(all_values) else pa.string())
                for name, all_values in values.items()}

    @cached_property
    def chain(self) -> list[str]:
        """The identity of the first n files, for n = 0, 1, ...: their names, sizes and footers, in hexadecimal."""
        digests = [b""]
        for file in self.files:
            digests.append(blake2b(digests[-1] + file.name.encode(errors="surrogateescape") + b"\0" + file.footer,
                                   digest_size=16).digest())
        return [digest.hex() for digest in digests]

    def rows_of(self, files: int) -> int:
        """Return the number of rows of the first files."""
        return self.files[files].first if files < len(self.files) else self.rows

    def batches(self, first: int, columns: Sequence[str]) -> Generator[Rows, None, None]:
        """Yield the rows from number `first` on, with some columns.  Callers close the generator.  Raises BadTable."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        for file in self.files:
            if file.first + file.rows > first:
                with closing(self._batches_of(file, max(0, first - file.first), schema)) as rows:
                    yield from rows

    def _batches_of(self, file: File, skipped: int, schema: pa.Schema) -> Generator[Rows, None, None]:
        size = max(1, min(_BATCH_ROWS, _BATCH_BYTES * file.rows // max(1, file.size)))
        at = 0
        try:
            with pq.ParquetFile(file.path, buffer_size=_BUFFER, page_checksum_verification=True) as opened:
                if _footer(file.path) != file.footer:
                    raise BadTable(f"{file.path}: it was changed while it was imported")
                groups: list[int] = []
                for number in range(opened.num_row_groups):
                    rows = opened.metadata.row_group(number).num_rows
                    if not groups and at + rows <= skipped:
                        at += rows
                    else:
                        groups.append(number)
                present = [name for name in opened.schema_arrow.names if name in schema.names]
                # The reader takes a name with a dot for the path of a field within a column.
                wanted = None if any("." in name for name in present) else present
                # An iterator that Python frees at its own end makes pyarrow wait forever.
                with closing(opened.iter_batches(size, row_groups=groups, columns=wanted, use_threads=False)) as read:
                    for batch in read:
                        left = max(0, skipped - at)
                        if left < len(batch):
                            yield Rows(file, file.first + at + left, self._shaped(batch.slice(left), file, schema))
                        at += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(file.path, error) from None

    def _shaped(self, batch: pa.RecordBatch, file: File, schema: pa.Schema) -> pa.RecordBatch:
        """Return a batch with the columns of a schema: those of the file, those of its folders, else nulls."""
        arrays = []
        for field in schema:
            if field.name in self.folder_columns:
                value = file.folders.get(field.name)
                whole = value is not None and pa.types.is_integer(field.type)
                arrays.append(pa.repeat(pa.scalar(int(value or 0) if whole else value, field.type), len(batch)))
            elif field.name not in batch.schema.names:
                arrays.append(pa.nulls(len(batch), field.type))
            else:
                arrays.append(_decoded(batch.column(field.name), field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([field.with_nullable(True) for field in schema]))


def _found(path: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return (path below a folder, columns of its folders) of all Parquet files, sorted.  Raises BadTable.

    The path of a single file is "".
    """
    if not Path(path).is_dir():
        return [("", {})]
    paths: list[tuple[tuple[str, ...], dict[str, str | None]]] = []

    def refuse(error: OSError) -> None:
        raise BadTable(f"{error.filename}: {error.strerror}")

    for folder, folders, files in os.walk(path, onerror=refuse):
        folders[:] = [one for one in folders if not one.startswith(("_", "."))]
        parts = Path(folder).relative_to(path).parts
        columns = dict(part.split("=", 1) for part in parts if "=" in part)
        values = {unquote(name): None if value == _NO_VALUE else unquote(value) for name, value in columns.items()}
        paths += [((*parts, file), values) for file in files
                  if file.endswith(SUFFIXES) and not file.startswith(("_", "."))]
    if not paths:
        raise BadTable(f"{path}: the folder has no Parquet file, which is one with a name that ends with "
                       f"{', '.join(SUFFIXES)}")
    return [("/".join(parts), values) for parts, values in sorted(paths, key=lambda one: one[0])]


def _opened(table: str, name: str, folders: dict[str, str | None], first: int) -> tuple[File, pa.Schema]:
    """Return (a file of a table, its schema).  Raises BadTable."""
    path = f"{table}/{name}" if name else table
    try:
        with pq.ParquetFile(path) as opened:
            metadata = opened.metadata
            size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
            schema = pa.schema([_field(field) for field in opened.schema_arrow])
            file = File(path, name or Path(path).name, first, metadata.num_rows, size, _footer(path), folders)
            return file, schema
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _damaged(path: str, error: Exception) -> BadTable:
    if isinstance(error, OSError) and error.errno is not None:
        return BadTable(f"{path}: {error.strerror or error}")
    return BadTable(f"{path}: it is no Parquet file, or damaged: {' '.join(str(error).split())[:200]}")


def _footer(path: str) -> bytes:
    """Return a digest of a file's size and footer, which has the places and statistics of all columns.

    Raises OSError.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(-min(size, _END), os.SEEK_END)
        end = file.read()
        length = int.from_bytes(end[:4], "little") if end.endswith(_MAGIC) else 0
        file.seek(-min(size, length + _END), os.SEEK_END)
        return blake2b(size.to_bytes(8) + file.read(), digest_size=16).digest()


def _field(field: pa.Field) -> pa.Field:
    """Return a column's field without the ways in which Arrow may store the same values."""
    return pa.field(field.name, _stored(field.type), field.nullable)


def _stored(kind: Any) -> Any:
    """Return a column's type, for dictionaries and extensions that of their values."""
    if pa.types.is_dictionary(kind):
        return _stored(kind.value_type)
    return _stored(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


def _decoded(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array if array.type == kind else array.cast(kind)


def _are_whole(values: list[str | None]) -> bool:
    """Tell whether all values are whole numbers of 64 bits as Python writes them."""
    present = [value for value in values if value is not None]
    return bool(present) and all(value.lstrip("-").isascii() and value.lstrip("-").isdigit()
                               and str(int(value)) == value and -1 << 63 <= int(value) < 1 << 63 for value in present)
