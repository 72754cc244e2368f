"""The transactions of all coordinators that one owner has."""
import heapq
from collections.abc import Callable
from itertools import islice

from geminga.proto import names
from geminga.storage.transactions.transaction_table import Role, Transaction, TransactionTable


class Transactions:
    """The tables of one owner's coordinators: its own, and those of coordinators that have no owner any more."""

    def __init__(self, tables: dict[int, TransactionTable]):
        self.tables = tables      # by number of the coordinator

    def __repr__(self) -> str:
        return f"<Transactions open={self.active} coordinators={sorted(self.tables)}>"

    @property
    def active(self) -> int:
        """Number of transactions that have not ended."""
        return sum(len(table.by_id) for table in self.tables.values())

    @property
    def oldest(self) -> int:
        """The lowest id of a transaction that has not ended, 0 without any: ids of a coordinator ascend."""
        return min((next(iter(table.by_id)) for table in self.tables.values() if table.by_id), default=0)

    @property
    def open(self) -> list[Transaction]:
        """All transactions that have not ended."""
        return [each for table in self.tables.values() for each in table.by_id.values()]

    def longest_open(self, is_wanted: Callable[[Transaction], bool], most: int) -> list[Transaction]:
        """Return the first `most` wanted ones of the transactions that have not ended, the longest open first."""
        wanted = heapq.merge(*(filter(is_wanted, table.by_id.values()) for table in self.tables.values()),
                             key=lambda each: each.opened_ms)
        return list(islice(wanted, most))

    def find(self, transaction_id: int) -> Transaction | None:
        """Return a transaction that has not ended, None if there is none with that id."""
        table = self._table(transaction_id)
        return None if table is None else table.by_id.get(transaction_id)

    def ended(self, transaction_id: int) -> tuple[int, Role] | None:
        """Return (COMMITTED or ABORTED, role) of a transaction that ended lately, None of any other."""
        table = self._table(transaction_id)
        return None if table is None else table.ended(transaction_id)

    def outcome(self, transaction_id: int) -> int | None:
        """Return COMMITTED or ABORTED of a transaction that ended lately, None of any other."""
        ended = self.ended(transaction_id)
        return None if ended is None else ended[0]

    def table_of(self, transaction: Transaction) -> TransactionTable:
        """Return the table that has a transaction."""
        return self.tables[names.transaction_bits(transaction.transaction)[0]]

    def _table(self, transaction_id: int) -> TransactionTable | None:
        return self.tables.get(names.transaction_bits(transaction_id)[0])
