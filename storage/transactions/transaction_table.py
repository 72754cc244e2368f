"""The transactions of one coordinator: open ones, and those that ended lately.

    table    copy, copy
    copy     HEADER | ops COORDINATED and ADDED_TO_TRANSACTION, which make the table out of nothing

The journal has all later changes; its ops may be applied to this table any number of times.  A rename replaces the file
once the new one is synced.  The file holds its content twice, so a damaged copy costs nothing.

A coordinator has a file of its own, because coordinators go to other owners when the number of owners changes.
"""
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from geminga.proto.rows import Rows
from geminga.storage import format
from geminga.storage.cursors.open_transactions import hash_of_role
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.checkpoints import FileSnapshot, SnapshotFile

OPEN, COMMITTING, ABORTING, COMMITTED, ABORTED = 1, 2, 3, 4, 5
STATES = {OPEN: "open", COMMITTING: "committing", ABORTING: "aborting", COMMITTED: "committed", ABORTED: "aborted"}
ENDED_MAX = 100_000           # ended transactions that are remembered
ENDED_MS = 10 * 60_000        # how long

_MAGIC = b"GEMTRANS"
_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"),
    ("checksum", "<u4"),             # CRC32-C over the header with 0 here and all of this copy
    ("coordinator", "<u8"),
    ("size", "<u8"),                 # bytes behind the header
    ("reserved", "V32"),
])
assert _HEADER.itemsize == format.HEADER_SIZE

Used = tuple[int, int]        # a partition's id, and a subscription's or 0


class Role(NamedTuple):
    """The role that began a transaction, as far as an op of the journal has room for its name."""

    hash: int                 # of 64 bits, which nobody can choose a name for; 0: an older program wrote the op
    crc32c: int               # names with equal checksums are easily made

    def is_name(self, name: str) -> bool:
        """Whether this is the role with that name."""
        return self.hash == hash_of_role(name) if self.hash else self.crc32c == crc32c(name.encode())


def role(name: str) -> Role:
    """Return the role with this name."""
    return Role(hash_of_role(name), crc32c(name.encode()))


@dataclass(slots=True)
class Transaction:
    """A transaction that has not ended, as its coordinator knows it."""

    transaction: int               # its id, see names.transaction
    role: Role                     # that opened it
    opened_ms: int
    lifetime_ms: int
    state: int = OPEN
    added: set[Used] = field(default_factory=set)
    promised: set[bytes] = field(default_factory=set)      # topics that were not there when added: named.hash_of
    written: dict[str, str] = field(default_factory=dict, compare=False)      # topic -> as a client wrote it
    role_name: str | None = field(default=None, compare=False)     # None: its coordinator has restarted since
    # When its end was decided, or taken up again by a coordinator that restarted; 0: it is open.
    decided_ms: int = field(default=0, compare=False)

    @property
    def deadline_ms(self) -> int:
        """Time at which it is aborted, unless it has ended by then."""
        return self.opened_ms + self.lifetime_ms

    @property
    def commits(self) -> bool:
        """Whether it is to be committed in its partitions, once its end is decided."""
        return self.state == COMMITTING

    def op(self) -> bytes:
        """Return the op for its state."""
        return journal_ops.coordinated(
            self.transaction, self.state, self.role.hash, opened_ms=self.opened_ms, lifetime_ms=self.lifetime_ms,
            role_crc32c=self.role.crc32c)


class TransactionTable(SnapshotFile):
    """The transactions of one coordinator, and their file."""

    def __init__(self, path: Path, coordinator: int):
        super().__init__(path)
        self.coordinator = coordinator
        self.by_id: dict[int, Transaction] = {}
        self.damage: list[str] = []                    # one line for each damaged copy of the file
        self._ended: OrderedDict[int, bytes] = OrderedDict()      # by id: the op, in the order in which they ended

    def __repr__(self) -> str:
        return f"<TransactionTable {self.path} open={len(self.by_id)} ended={len(self._ended)}>"

    # -- ended transactions

    def end(self, transaction: Transaction, *, commits: bool, now_ms: int) -> bytes:
        """Forget a transaction but for how it ended; return the op for that."""
        del self.by_id[transaction.transaction]
        op = journal_ops.coordinated(
            transaction.transaction, COMMITTED if commits else ABORTED, transaction.role.hash,
            opened_ms=transaction.opened_ms, lifetime_ms=max(0, now_ms - transaction.opened_ms),
            role_crc32c=transaction.role.crc32c)
        self._has_ended(transaction.transaction, op)
        return op

    def _has_ended(self, transaction: int, op: bytes) -> None:
        self._ended[transaction] = op
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def ended(self, transaction: int) -> tuple[int, Role] | None:
        """Return (state, role) of a transaction that ended lately, None if none of that id did."""
        if (op := self._ended.get(transaction)) is None:
            return None
        row = np.frombuffer(op, format.COORDINATED_OP)[0]
        return int(row["kind_and_state"]) >> format.NUMBER, Role(int(row["role"]), int(row["role_crc32c"]))

    def forget_ended(self, now_ms: int) -> None:
        """Forget transactions that ended more than ENDED_MS ago."""
        while self._ended:
            transaction, op = next(iter(self._ended.items()))
            row = np.frombuffer(op, format.COORDINATED_OP)[0]
            if now_ms - int(row["opened_ms"]) - int(row["lifetime_ms"]) < ENDED_MS:
                return
            del self._ended[transaction]

    # -- on disk

    def apply(self, ops: Rows) -> None:
        """Apply ops (n,) of one kind, as read from a journal or the file, in their order."""
        if ops.dtype == format.ADDED_OP:
            for subscription_id, partition_id, promised, transaction in zip(
                    *(ops[name].tolist() for name in ("subscription_id", "partition_id", "promised", "transaction")),
                    strict=True):
                if (known := self.by_id.get(transaction)) is None:      # it has ended since
                    continue
                if partition_id:
                    known.added.add((partition_id, subscription_id))
                else:
                    known.promised.add(promised)
            return
        names = "kind_and_state", "role", "role_crc32c", "opened_ms", "lifetime_ms", "transaction"
        for row, kind_and_state, role, crc, opened_ms, lifetime_ms, transaction in zip(
                ops, *(ops[name].tolist() for name in names), strict=True):
            state = kind_and_state >> format.NUMBER
            if state in (COMMITTED, ABORTED):
                self.by_id.pop(transaction, None)
                self._ended.pop(transaction, None)
                self._has_ended(transaction, row.tobytes())
            else:
                known = self.by_id.setdefault(
                    transaction, Transaction(transaction, Role(role, crc), opened_ms, lifetime_ms))
                known.state = state

    def encode(self, *, of_backup: bool = False) -> bytes:
        """Return the content of the file.

        of_backup: without transactions that are not committed.  A backup may lack messages that these publish until
        they end, so partitions of a restored copy must abort them.
        """
        ops = [*self._ended.values()]
        for each in self.by_id.values():
            if of_backup and not each.commits:
                continue
            ops.append(each.op())
            ops += [journal_ops.added_to_transaction(each.transaction, *used) for used in sorted(each.added)]
            ops += [journal_ops.promised_to_transaction(each.transaction, name) for name in sorted(each.promised)]
        body = b"".join(ops)
        fields = {"magic": _MAGIC, "coordinator": self.coordinator, "size": len(body)}
        bare = format.header(_HEADER, **fields)
        return 2 * (format.header(_HEADER, **fields, checksum=crc32c(body, crc32c(bare))) + body)

    def checkpoint(self) -> tuple[list[Path], list[FileSnapshot]]:
        """Return (files to sync: none, the snapshot to write)."""
        return [], [self.snapshot(self.encode())]

    def _make_folder(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def path_of(data_dir: Path, coordinator: int) -> Path:
    return data_dir / "transactions" / str(coordinator) / "table"


def read(data_dir: Path, coordinator: int) -> TransactionTable:
    """Return a coordinator's transactions, none without a file.

    If no copy in the file is whole, `damage` says so.  Open transactions are then aborted in their partitions, which
    ask for them in vain.  Raises OSError.
    """
    path = path_of(data_dir, coordinator)
    table = TransactionTable(path, coordinator)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return table
    wrong = wrong_copies(raw, coordinator)
    if len(wrong) == 2:
        table.damage.append(f"{path}: both copies are damaged ({wrong[0]}); transactions that were open are aborted")
        return table
    table.damage += [f"{path}: copy {number + 1} is damaged ({why}); the other one is used"
                     for number, why in wrong.items()]
    for ops in ops_of(raw, 1 if 0 in wrong else 0):
        table.apply(ops)
    return table


def wrong_copies(raw: bytes, coordinator: int) -> dict[int, str]:
    """Return {number of a copy, 0 or 1: why it is not whole}."""
    half = len(raw) // 2
    reasons = {number: _why_wrong(raw[number * half:(number + 1) * half], coordinator) for number in (0, 1)}
    return {number: why for number, why in reasons.items() if why}


def _why_wrong(copy: bytes, coordinator: int) -> str:
    if len(copy) < format.HEADER_SIZE:
        return "it is too short"
    head = np.frombuffer(copy, _HEADER, 1).copy()
    checksum = int(head["checksum"][0])
    head["checksum"] = 0
    if crc32c(copy[format.HEADER_SIZE:], crc32c(head.tobytes())) != checksum:
        return "its checksum is wrong"
    if head["magic"][0] != _MAGIC or int(head["coordinator"][0]) != coordinator:
        return "it is of something else"
    return ""


def ops_of(raw: bytes, number: int) -> list[Rows]:
    """Return the ops of a whole copy of a file, as runs of one kind."""
    half = len(raw) // 2
    rows = np.frombuffer(raw[number * half + format.HEADER_SIZE:(number + 1) * half], format.OP_ROW)
    borders = np.flatnonzero(rows["kind"][1:] != rows["kind"][:-1]) + 1
    return [run.view(format.OPS[int(run["kind"][0])]) for run in np.split(rows, borders) if len(run)]
