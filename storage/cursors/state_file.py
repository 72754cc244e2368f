"""The state file of a partition: cursors and sequence ids, written anew at each checkpoint.

    state    copy, copy
    copy     STATE_HEADER | CURSOR_ROWs | PART_ROWs | ARRAY_ROWs | SEQUENCE_ROWs | the arrays' bytes | TYPE_ROWs
             | OP_ROWs of open transactions | MISSED_ROWs, up to the end

One TRANSACTION_ENTRIES_OP has no transaction, but the position `settled`: all transactions with entries up to there had
ended when the state was taken.

The journal has all later changes; its records may be applied to this state any number of times.  A rename replaces the
file once the new one is synced, so a power cut leaves the old file or the new one.  The file holds its content twice,
so a damaged copy costs nothing.
"""
import errno
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.cursors import state_v1
from geminga.storage.cursors.batch_acks import words
from geminga.storage.cursors.cursor import NOBODY, Cursor, load_parts
from geminga.storage.cursors.open_transactions import OpenTransactions
from geminga.storage.cursors.producer_sequences import Sequences
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers.checkpoints import FileSnapshot, SnapshotFile
from geminga.storage.ledgers.position import NOWHERE

_ATTEMPTS = 10      # to remove a folder


@dataclass(slots=True)
class State:
    """The durable state of one partition without its entries: cursors, and sequence ids of producers."""

    cursors: dict[int, Cursor] = field(default_factory=dict)      # by subscription id, and NOBODY
    sequences: Sequences = field(default_factory=Sequences)
    damage: list[str] = field(default_factory=list)               # one line for each damaged copy
    is_uncounted: bool = False                                    # read from format version 1, which has no totals
    delays: int = format.UNKNOWN                                  # whether entries were ever delayed
    transactions: OpenTransactions | None = None                  # None: none was open since the partition was opened

    def with_transactions(self) -> OpenTransactions:
        """Return the open transactions, which are none at first."""
        if self.transactions is None:
            self.transactions = OpenTransactions()
        return self.transactions

    def cursor(self, subscription_id: int) -> Cursor:
        if subscription_id not in self.cursors:
            self.cursors[subscription_id] = Cursor(subscription_id, NOWHERE, is_durable=True)
        return self.cursors[subscription_id]

    @property
    def discarded(self) -> Cursor:
        """The cursor of discarded entries, which no subscription gets, not even a new one.

        Their disk blocks were given back, they are damaged, or their delivery was cancelled or undone by an abort.
        """
        return self.cursor(NOBODY)


def encode(partition_id: int, state: State) -> bytes:
    """Return the content of a partition's state file."""
    cursors: list[tuple[Any, ...]] = []
    parts: list[tuple[int, ...]] = []
    arrays: list[tuple[int, ...]] = []
    blobs: list[bytes] = []
    for subscription_id, cursor in state.cursors.items():
        cursors.append((subscription_id, *cursor.mark_delete, cursor.since, cursor.totals))
        parts += [(subscription_id, ledger_id, entry_id, number, word) for ledger_id, entries in cursor.parts.items()
                  for entry_id, bits in entries.items() for number, word in enumerate(words(bits).tolist()) if word]
        for kind, by_ledger in _arrays(cursor).items():
            for ledger_id, array in by_ledger.items():
                if ledger_id >= cursor.mark_delete[0] and len(used := np.flatnonzero(array)):
                    first, end = int(used[0]), int(used[-1]) + 1
                    blobs.append(array[first:end].tobytes())
                    arrays.append((subscription_id, ledger_id, kind, 0, first, len(blobs[-1])))
    tables = [np.array(rows, dtype).tobytes() for rows, dtype in
              ((cursors, format.CURSOR_ROW), (parts, format.PART_ROW), (arrays, format.ARRAY_ROW))]
    sequences = state.sequences.rows()
    types = [(subscription_id, cursor.last_type, 0) for subscription_id, cursor in state.cursors.items()
             if cursor.last_type is not None]
    ops = state.transactions.ops(partition_id) if state.transactions is not None else b""
    # What came later stands last, because older programs do not look behind what they know.
    body = b"".join([*tables, sequences.tobytes(), *blobs, np.array(types, format.TYPE_ROW).tobytes(), ops,
                     state.sequences.missed_rows().tobytes()])
    fields = {
        "magic": format.STATE_MAGIC,
        "partition_id": partition_id,
        "size": len(body),
        "cursors": len(cursors),
        "parts": len(parts),
        "arrays": len(arrays),
        "sequences": len(sequences),
        "is_uncounted": state.is_uncounted,
        "delays": state.delays,
        "types": len(types),
        "transactions": len(ops) // format.OP_ROW.itemsize,
    }
    copy = (
        format.header(
            format.STATE_HEADER, **fields, checksum=crc32c(body, crc32c(format.header(format.STATE_HEADER, **fields)))
        )
        + body
    )
    return copy + copy


def _arrays(cursor: Cursor) -> dict[int, dict[int, NDArray[Any]]]:
    return {
        format.ACKS: cursor.bitmaps,
        format.REDELIVERIES: cursor.redeliveries.arrays,
        format.DEATHS: cursor.deaths.arrays,
    }


def read(folder: Path, partition_id: int) -> State:
    """Return the state of a partition, an empty one if there is no state file.

    Raises CorruptFile when no copy in the file is whole.
    """
    path = format.state_path(folder)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return State(state_v1.read_cursors(folder, partition_id), is_uncounted=state_v1.is_there(folder))
    half = len(raw) // 2
    wrong = [why_wrong(raw[:half], partition_id), why_wrong(raw[half:], partition_id)]
    if all(wrong):
        raise CorruptFile(path, 0, "a copy of the partition's state that is whole", wrong[0])
    state = _decode(raw[half:] if wrong[0] else raw[:half])
    state.damage = [
        f"{path}: copy {number} is damaged ({why}); the other one is used" for number, why in enumerate(wrong, 1) if why
    ]
    return state


def wrong_copies(raw: bytes, partition_id: int) -> dict[int, str]:
    """Return {number of a copy, 0 or 1: why it is not whole}."""
    half = len(raw) // 2
    copies = {number: why_wrong(raw[number * half:(number + 1) * half], partition_id) for number in (0, 1)}
    return {number: why for number, why in copies.items() if why}


def why_wrong(copy: bytes, partition_id: int) -> str:
    """Return why a copy of the partition's state is not whole, "" if it is."""
    if len(copy) < format.HEADER_SIZE:
        return f"it has {len(copy)} bytes"
    head = np.frombuffer(copy, format.STATE_HEADER, 1)
    bare = head.copy()
    bare["checksum"] = 0
    if crc32c(memoryview(copy)[format.HEADER_SIZE:], crc32c(bare.tobytes())) != head["checksum"][0]:
        return "its checksum is wrong"
    if head["version"][0] > format.VERSION:
        return f"it has format version {head['version'][0]}, and this program reads {format.VERSION} and older"
    if (head["magic"][0], int(head["partition_id"][0])) != (format.STATE_MAGIC, partition_id):
        return f"it is not of partition {partition_id}"
    return ""


def _decode(copy: bytes) -> State:
    """Return the state that an undamaged copy holds."""
    head, at = np.frombuffer(copy, format.STATE_HEADER, 1)[0], format.HEADER_SIZE
    tables = []
    for name, dtype in (("cursors", format.CURSOR_ROW), ("parts", format.PART_ROW), ("arrays", format.ARRAY_ROW),
                        ("sequences", format.SEQUENCE_ROW)):
        tables.append(np.frombuffer(copy, dtype, int(head[name]), at))
        at += tables[-1].nbytes
    cursors, parts, arrays, sequences = tables
    state = State(is_uncounted=bool(head["is_uncounted"]), delays=int(head["delays"]))
    state.sequences.load(sequences)
    for subscription_id, ledger_id, entry_id, since, totals in cursors.tolist():
        cursor = Cursor(subscription_id, (ledger_id, entry_id), is_durable=True, since=since)
        cursor.totals = totals.tolist()
        state.cursors[subscription_id] = cursor
    load_parts(state.cursors, parts)
    for subscription_id, ledger_id, kind, _, first, size in arrays.tolist():
        by_ledger = _arrays(state.cursors[subscription_id])[kind]
        items = np.frombuffer(copy[at:at + size], np.uint8 if kind == format.ACKS else np.uint16)
        by_ledger[ledger_id] = np.concatenate((np.zeros(first, items.dtype), items))
        at += size
    for subscription_id, last_type, _ in np.frombuffer(copy, format.TYPE_ROW, int(head["types"]), at).tolist():
        state.cursors[subscription_id].last_type = last_type
    at += int(head["types"]) * format.TYPE_ROW.itemsize
    for op in np.frombuffer(copy, format.OP_ROW, int(head["transactions"]), at)[:, np.newaxis]:
        state.with_transactions().apply(op.view(format.OPS[int(op["kind"][0])]))
    at += int(head["transactions"]) * format.OP_ROW.itemsize
    state.sequences.load_missed(np.frombuffer(copy, format.MISSED_ROW, -1, at) if at < len(copy)
                                else np.empty(0, format.MISSED_ROW))
    return state


class StateFile(SnapshotFile):
    """The writer of one partition's state file."""

    def __init__(self, folder: Path, partition_id: int):
        super().__init__(format.state_path(folder))
        self.partition_id = partition_id

    def take(self, state: State) -> FileSnapshot:
        """Return a snapshot of the state as of now, to be written by any thread."""
        return self.snapshot(encode(self.partition_id, state))

    def _replaced(self) -> None:
        state_v1.remove(self.path.parent)

    def remove(self) -> None:
        """Remove the partition's folder, and drop snapshots that are still to be written.  Raises OSError."""
        with self._lock:
            self._written = sys.maxsize
            for left in reversed(range(_ATTEMPTS)):
                try:
                    if self.path.parent.exists():
                        shutil.rmtree(self.path.parent)
                    return
                except OSError as error:      # a job has just created or removed a file in the folder
                    if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or not left:
                        raise

    def checkpoint(self) -> tuple[list[Path], list[FileSnapshot]]:
        """Return (paths to be synced, snapshots to be written) at the checkpoint after `remove`."""
        return [self.path], []
