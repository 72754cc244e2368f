"""Open transactions of one partition: entries that they published, and acknowledgements that wait for their commit.

    published entries    in the ledgers like all others; no consumer gets one, nor any entry behind the first of them
    acknowledgements     transaction_acks.py; no consumer gets these entries again while the transaction is open

A transaction ends once, by COMMIT or ABORT of its coordinator (transactions/).  Until then the journal has an op for
each change here, and the state file has the same ops.
"""
import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from geminga.proto.rows import Rows
from geminga.storage import format
from geminga.storage.cursors.transaction_acks import TransactionAcks
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.position import Position

NO_TRANSACTION = 0      # in a state file, the op with this id has the position `settled`
_ROLES_MAX = 1_000    # whose hashes are kept: each command about a transaction asks for one
_ENDED_MAX = 1_000    # ended transactions that are remembered, because SENDs may come late


@dataclass(slots=True)
class OpenTransaction:
    """The entries that one open transaction has published in one partition, and its acknowledgements there."""

    entries: dict[int, list[tuple[int, int]]] = field(default_factory=dict)      # ledger id -> runs (first, end)
    # First half of a producer's identity -> runs of its sequence ids in the transaction, first id -> last id.
    sequences: dict[int, dict[int, int]] = field(default_factory=dict)
    acks: dict[int, TransactionAcks] = field(default_factory=dict)               # by subscription id
    role: int = 0            # hash of the role that began it; 0: its coordinator did not say so

    @property
    def first(self) -> Position | None:
        """Position of the first entry that the transaction published; None: it published nothing."""
        if not self.entries:
            return None
        ledger_id = min(self.entries)
        return ledger_id, self.entries[ledger_id][0][0]

    def published(self, ledger_id: int, first: int, end: int) -> None:
        """Note entries first .. end - 1, which lie behind all that were noted before."""
        runs = self.entries.setdefault(ledger_id, [])
        if runs and runs[-1][1] >= first:      # adjacent, or the journal is applied again
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((first, end))

    def acks_of(self, subscription_id: int) -> TransactionAcks:
        """Return the transaction's acknowledgements on a subscription, empty ones at first."""
        return self.acks.setdefault(subscription_id, TransactionAcks())

    def ops(self, transaction: int, partition_id: int) -> Iterator[bytes]:
        """Yield the ops that make this transaction out of nothing."""
        for ledger_id, runs in sorted(self.entries.items()):
            for first, end in runs:
                yield journal_ops.transaction_entries(transaction, partition_id, ledger_id, first, end)
        if self.role:
            yield journal_ops.transaction_role(transaction, partition_id, self.role)
        for producer, runs_of_ids in self.sequences.items():
            for first, last in runs_of_ids.items():
                yield journal_ops.transaction_sequences(transaction, partition_id, producer, first, last)
        for subscription_id, acks in self.acks.items():
            yield from acks.ops(transaction, partition_id, subscription_id)


class OpenTransactions:
    """The open transactions of one partition, by id."""

    def __init__(self) -> None:
        self.by_id: dict[int, OpenTransaction] = {}
        # What clients have added: subscription ids, and 0 for the right to publish.  The coordinator has it durably.
        self.added: dict[int, set[int]] = {}
        # Hashes of the roles that began these transactions, of which the coordinator has said so.
        self.roles: dict[int, int] = {}
        self.limit: Position | None = None      # the first entry of any of them: consumers get entries before it
        # Of the newest state file: transactions with entries up to there had ended, and aborted entries were discarded.
        self.settled: Position | None = None
        self.committed = self.aborted = 0       # transactions that published here, since the partition was opened
        # (first entry, transaction) of all that published, as a heap.  Some may have ended.
        self._firsts: list[tuple[Position, int]] = []
        # Whether ended transactions were committed, the oldest first.
        self._outcomes: OrderedDict[int, bool] = OrderedDict()

    def __repr__(self) -> str:
        return f"<OpenTransactions {len(self.by_id)} limit={self.limit} added={len(self.added)}>"

    def of(self, transaction: int) -> OpenTransaction:
        """Return the transaction, without any effect at first."""
        return self.by_id.setdefault(transaction, OpenTransaction())

    @property
    def publishing(self) -> int:
        """Number of open transactions that have published entries."""
        return sum(1 for each in self.by_id.values() if each.entries)

    @property
    def oldest(self) -> int | None:
        """The open transaction whose first entry is the limit; None: there is none."""
        return self._firsts[0][1] if self._firsts else None

    def may_publish(self, transaction: int) -> bool:
        """Whether the transaction is open, and a client has added the partition to it."""
        if 0 in self.added.get(transaction, ()):
            return True
        known = self.by_id.get(transaction)      # a start forgets what was added, and not what was published
        return known is not None and bool(known.entries)

    def role(self, transaction: int) -> int:
        """Return the hash of the role that began a transaction, 0 if it is not known."""
        known = self.by_id.get(transaction)
        return self.roles.get(transaction) or (known.role if known is not None else 0)

    def belongs_to(self, transaction: int, role: str) -> bool:
        """Whether a transaction may be one that this role began; older programs have not said whose it is."""
        return self.role(transaction) in (0, hash_of_role(role))

    def note_role(self, transaction: int, partition_id: int) -> bytes:
        """Note durably whose a transaction is that begins to use the partition; return the op, b"" if it is known."""
        role = self.roles.get(transaction, 0)
        if not role or (known := self.of(transaction)).role:
            return b""
        known.role = role
        return journal_ops.transaction_role(transaction, partition_id, role)

    def outcome(self, transaction: int) -> bool | None:
        """Whether a transaction was committed here, if it is one of the last that have ended; None of any other."""
        return self._outcomes.get(transaction)

    def published(self, transaction: int, ledger_id: int, first: int, end: int) -> None:
        """Note entries first .. end - 1 of a ledger, the newest of the partition."""
        each = self.of(transaction)
        if not each.entries:
            heapq.heappush(self._firsts, ((ledger_id, first), transaction))
            if self.limit is None or (ledger_id, first) < self.limit:
                self.limit = ledger_id, first
        each.published(ledger_id, first, end)

    def end(self, transaction: int, *, commits: bool) -> None:
        """Forget a transaction but for how it ended."""
        self._outcomes.pop(transaction, None)
        self._outcomes[transaction] = commits
        if len(self._outcomes) > _ENDED_MAX:
            self._outcomes.popitem(last=False)
        self.remove(transaction)

    def remove(self, transaction: int) -> OpenTransaction | None:
        """Remove and return a transaction that ends; None: it has done nothing here."""
        self.added.pop(transaction, None)
        self.roles.pop(transaction, None)
        removed = self.by_id.pop(transaction, None)
        self._find_limit()
        return removed

    def _find_limit(self) -> None:
        while self._firsts:
            first, transaction = self._firsts[0]
            if transaction in self.by_id and self.by_id[transaction].first == first:
                break
            heapq.heappop(self._firsts)
        self.limit = self._firsts[0][0] if self._firsts else None

    def forget_sequences(self) -> None:
        """Forget sequence ids: the partition has stopped deduplicating."""
        for each in self.by_id.values():
            each.sequences.clear()

    def cut(self, entries_of: Callable[[int], int]) -> None:
        """Forget entries that do not exist, because their ledger is lost in part.

        entries_of: the number of entries of a ledger, by its id; 0 without that ledger.
        """
        for each in self.by_id.values():
            for ledger_id, runs in list(each.entries.items()):
                count = entries_of(ledger_id)
                if runs[-1][1] > count:
                    each.entries[ledger_id] = [(first, min(end, count)) for first, end in runs if first < count]
                if not each.entries[ledger_id]:
                    del each.entries[ledger_id]
        self._firsts = sorted((each.first, number) for number, each in self.by_id.items() if each.first is not None)
        self._find_limit()

    def check(self) -> None:
        """Assert that the limit is the first entry of the open transactions, and that entries ascend."""
        firsts = [each.first for each in self.by_id.values() if each.first is not None]
        assert self.limit == min(firsts, default=None), (self, firsts)
        for each in self.by_id.values():
            for runs in each.entries.values():
                assert runs, each
                edges = [edge for run in runs for edge in run]
                assert edges == sorted(set(edges)), each

    def forget_subscription(self, subscription_id: int) -> None:
        """Forget what transactions have acknowledged on a subscription that is deleted."""
        for each in self.by_id.values():
            each.acks.pop(subscription_id, None)
        for added in self.added.values():
            added.discard(subscription_id)

    def ops(self, partition_id: int) -> bytes:
        """Return the ops that make these transactions out of nothing, for the state file."""
        ops = [op for transaction, each in self.by_id.items() for op in each.ops(transaction, partition_id)]
        if self.settled is not None:
            ledger_id, entry_id = self.settled
            ops.append(journal_ops.transaction_entries(NO_TRANSACTION, partition_id, ledger_id, entry_id, entry_id + 1))
        return b"".join(ops)

    def apply(self, ops: Rows) -> None:
        """Apply ops (n,) of one kind, as read from a journal or a state file, in their order."""
        kind = int(ops.view(format.OP_ROW)["kind"][0])
        for op in ops:
            self._apply(kind, int(op["transaction"]), op)

    def _apply(self, kind: int, transaction: int, op: np.void) -> None:
        if kind == format.TRANSACTION_ENDED:
            self.remove(transaction)
        elif kind == format.TRANSACTION_ENTRIES:
            first = int(op["first_entry"])
            if transaction == NO_TRANSACTION:
                self.settled = int(op["ledger_id"]), first
                return
            self.published(transaction, int(op["ledger_id"]), first, first + int(op["more_entries"]) + 1)
        elif kind == format.TRANSACTION_SEQUENCE:
            place = int(op["kind_and_place"]) >> format.NUMBER
            if place == format.ROLE:
                self.of(transaction).role = int(op["sequence_id"]) & ((1 << 64) - 1)
                return
            ids = self.of(transaction).sequences.setdefault(int(op["producer_a"]), {})
            _note_ids(ids, place, int(op["sequence_id"]), int(op["more"]))
        else:
            self.of(transaction).acks_of(int(op["subscription_id"])).apply(kind, op)


@lru_cache(_ROLES_MAX)
def hash_of_role(name: str) -> int:
    """Return a hash of 64 bits that stands for a role's name; never 0.  A second name with it cannot be found."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") or 1


def _note_ids(ids: dict[int, int], place: int, sequence_id: int, more: int) -> None:
    """Note in `ids`, first id -> last id, the sequence ids of a transaction that a TRANSACTION_SEQUENCE_OP has."""
    if place == format.RUN:
        ids[sequence_id] = sequence_id + more
    elif place == format.BEFORE:
        ids.clear()
        ids[max(sequence_id + 1, 0)] = sequence_id      # empty, until LAST follows
    elif ids:
        ids[next(iter(ids))] = sequence_id
