"""The connection of one process to the catalogue's SQLite file, and its transactions.

The first write begins a transaction, and `commit` or `undo` ends it. Writers of different processes take turns. Reads
outside a transaction see the last commit.
"""
import os
import sqlite3
import time
from pathlib import Path
from typing import Any, TypeAlias

from geminga.storage.catalogue.checksums import with_row
from geminga.storage.disk.files import sync
from geminga.storage.errors import NotDurable, StorageFull, text_of

_BUSY_TIMEOUT_S = 30         # for which a writer waits for its turn
Values: TypeAlias = tuple[Any, ...]


class Database:
    """A connection to the SQLite file with one transaction at a time, whose errors are StorageFull and NotDurable."""

    def __init__(self, path: Path, *, is_read_only: bool = False):
        self.path = path
        self.sync_first: set[Path] = set()      # folders that the next commit syncs before, as its rows need them
        address = f"{path.absolute().as_uri()}?mode=ro" if is_read_only else path
        self.connection = sqlite3.connect(
            address, isolation_level=None, timeout=_BUSY_TIMEOUT_S, check_same_thread=False, uri=is_read_only)
        try:
            self._prepare()
        except sqlite3.Error:      # such as a file that is no database
            self.connection.close()
            raise

    def _prepare(self) -> None:
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("PRAGMA foreign_keys = ON")
        self.connection.create_function("with_row", -1, with_row, deterministic=True)

    def __repr__(self) -> str:
        return f"<Database {self.path}>"

    def close(self) -> None:
        """Close the connection to the SQLite file, and undo an open transaction."""
        self.connection.close()

    def version(self) -> tuple[int, int]:
        """Return a pair that changes whenever another process commits or this one writes.  Costs one pragma, no I/O."""
        return self.connection.execute("PRAGMA data_version").fetchone()[0], self.connection.total_changes

    # -- transactions

    @property
    def is_changing(self) -> bool:
        """Whether a transaction is open."""
        return self.connection.in_transaction

    def commit(self) -> None:
        """Commit the open transaction, if any, to disk.  If that fails, undoes it and raises NotDurable."""
        if not self.connection.in_transaction:
            return
        try:
            for folder in self.sync_first:
                sync(folder, os.fsync)
            self.sync_first.clear()
            self.connection.execute("COMMIT")
        except (sqlite3.OperationalError, OSError) as error:
            self.undo()
            raise NotDurable(f"{self.path}: {text_of(error) if isinstance(error, OSError) else error}") from error

    def undo(self) -> None:
        """Undo the open transaction, if any."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    # -- statements

    def write(self, statement: str, values: Values = ()) -> sqlite3.Cursor:
        """Execute a statement that writes, in a transaction.

        Raises StorageFull if only this statement failed: earlier writes of the transaction stand. Raises NotDurable if
        SQLite has undone the whole transaction.
        """
        was_open = self.connection.in_transaction
        try:
            if not was_open:
                self.connection.execute("BEGIN IMMEDIATE")
            return self.connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            if was_open and not self.connection.in_transaction:
                raise NotDurable(f"{self.path}: {error}") from error
            raise StorageFull(f"{self.path}: {error}") from error

    def insert(self, statement: str, values: Values) -> int:
        """Insert a row into a table, and return the row's id.  Raises StorageFull, NotDurable."""
        row_id = self.write(statement, values).lastrowid
        assert row_id is not None
        return row_id

    def read(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query.  Raises StorageFull."""
        try:
            return self.connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            raise StorageFull(f"{self.path}: {error}") from error

    def column(self, statement: str, values: Values = ()) -> list[Any]:
        """Return the first column of a query's rows.  Raises StorageFull."""
        return [row[0] for row in self.read(statement, values)]

    def value(self, statement: str, values: Values = ()) -> Any:
        """Return the first column of a query's first row, None when it has no rows.  Raises StorageFull."""
        rows = self.read(statement, values)
        return rows[0][0] if rows else None

    def integer(self, statement: str, values: Values = ()) -> int | None:
        """Return the number in a query's first column and row, None when it has no rows.  Raises StorageFull."""
        number: int | None = self.value(statement, values)
        return number


def now_ms() -> int:
    """Return the wall clock's time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
