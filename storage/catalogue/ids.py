"""Counters in the catalogue, and ids that are given out once and never again.

Ids of partitions and subscriptions come from SQLite (AUTOINCREMENT). Ledger ids come from a counter, from which each
owner takes a block at a time; ids of transactions and the number in generated producer names come from others. All
are at least as high as a number made of the clock's time. So after an older copy of the data folder was restored, ids
given out since the copy was made are not given out again. Entry ids are not given out twice either, as `mark_restored`
closes the ledgers of a restored copy.
"""
from collections.abc import Callable, Iterator

from geminga.storage.catalogue.database import Database
from geminga.storage.errors import NotDurable, StorageFull

LEDGER_BLOCK = 100           # ledger ids taken at a time; a crash leaves the rest of a block unused
IDS_PER_SECOND = 1_024       # more than any broker takes for long, so that the clock stays ahead of the counters
TRANSACTION_BLOCK = 1_000    # ids of transactions taken at a time
TRANSACTIONS_PER_SECOND = 65_536     # as IDS_PER_SECOND; it lasts for 30,000 years
_EPOCH_S = 1_735_689_600     # 2025-01-01 UTC


class Counters:
    """Named counters in the catalogue that only grow."""

    def __init__(self, database: Database):
        self._database = database

    def value(self, counter: str) -> int:
        """Return the counter's value, 0 before its first use.  Raises StorageFull."""
        return self._database.integer("SELECT value FROM counters WHERE name = ?", (counter,)) or 0

    def take(self, counter: str, count: int = 1) -> int:
        """Raise the counter by `count` in the open transaction and return its new value.

        Raises StorageFull, NotDurable.
        """
        value: int = self._database.write(
            "INSERT INTO counters VALUES (?, ?) "
            "ON CONFLICT DO UPDATE SET value = value + excluded.value RETURNING value", (counter, count)).fetchone()[0]
        return value

    def raise_to(self, counter: str, floor: int) -> None:
        """Raise the counter to `floor` if it is lower.  Raises StorageFull, NotDurable."""
        self._database.write(
            "INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
            (counter, floor))


class Ids:
    """Source of ids of ledgers and transactions, and of producer names, that were never given out before."""

    def __init__(self, database: Database, counters: Counters, clock: Callable[[], float]):
        self._database, self._counters, self._clock = database, counters, clock
        self._blocks: dict[str, Iterator[int]] = {}     # by counter: the rest of the block taken last

    def next_ledger_id(self) -> int:
        """Return a ledger id that was never given out.  Raises StorageFull, NotDurable."""
        return self._next("ledgers", LEDGER_BLOCK)

    def next_transaction(self) -> int:
        """Return the least bits of a transaction's id, that were never given out.  Raises StorageFull, NotDurable."""
        return self._next("transactions", TRANSACTION_BLOCK, TRANSACTIONS_PER_SECOND)

    def _next(self, counter: str, size: int, per_second: int = IDS_PER_SECOND) -> int:
        for number in self._blocks.get(counter, ()):
            return number
        is_alone = not self._database.is_changing
        last = self._take_ahead(counter, size, per_second)
        try:
            self._database.commit()      # before the first of them is used
        except NotDurable as error:
            if is_alone:
                raise StorageFull(str(error)) from error
            raise
        self._blocks[counter] = iter(range(last - size + 1, last + 1))
        return next(self._blocks[counter])

    def mark_restored(self) -> None:
        """Record that the data folder is a restored copy, whose ledgers must not grow.

        Raises StorageFull, NotDurable.

        The broker from which the copy was made may have gone on, and given out entry ids that the copy does not know.
        """
        last = self._take_ahead("ledgers", 1)
        self._counters.raise_to("put back", last)

    def last_closed_ledger(self) -> int:
        """Return the highest ledger id of a restored copy, 0 without one; ledgers up to that id must not grow."""
        return self._counters.value("put back")

    def producer_name(self) -> str:
        """Return a producer name that was never given out, in the open transaction.  Raises StorageFull, NotDurable."""
        return f"geminga-{self._take_ahead('producers', 1)}"

    def _take_ahead(self, counter: str, count: int, per_second: int = IDS_PER_SECOND) -> int:
        """Raise a counter by `count`, but at least to a number made of the clock's time, and return its value."""
        self._counters.raise_to(counter, max(0, int((self._clock() - _EPOCH_S) * per_second)))
        return self._counters.take(counter, count)
