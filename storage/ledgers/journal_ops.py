"""Build the operations of the journal: a function for each kind of format.OPS, or one for several similar kinds.

A function returns the bytes of one op, or an array of several ops.  owner/replayed_ops.py applies ops at a start.
"""
import numpy as np
from numpy.typing import NDArray

from geminga.proto.rows import Rows, struct_of
from geminga.proto.varints import signed
from geminga.storage import format
from geminga.storage.ledgers.position import Position

_LEDGER_OPENED, _LEDGER_DELETED = struct_of(format.LEDGER_OPENED_OP), struct_of(format.LEDGER_DELETED_OP)
_MARK_DELETE, _CURSOR_RESET = struct_of(format.MARK_DELETE_OP), struct_of(format.CURSOR_RESET_OP)
_PART_ACKNOWLEDGED, _COUNTED = struct_of(format.PART_ACKNOWLEDGED_OP), struct_of(format.COUNTED_OP)
_TOTAL, _PRODUCED, _CHUNKED = struct_of(format.TOTAL_OP), struct_of(format.PRODUCED_OP), struct_of(format.CHUNKED_OP)
_SUBSCRIPTION, _PARTITION = struct_of(format.SUBSCRIPTION_OP), struct_of(format.PARTITION_OP)
_TYPE_CHANGED, _MISSED = struct_of(format.TYPE_CHANGED_OP), struct_of(format.MISSED_OP)
_CURSOR_REPLACED = struct_of(format.CURSOR_REPLACED_OP)

_COORDINATED, _ADDED = struct_of(format.COORDINATED_OP), struct_of(format.ADDED_OP)
_T_ENTRIES, _T_SEQUENCE = struct_of(format.TRANSACTION_ENTRIES_OP), struct_of(format.TRANSACTION_SEQUENCE_OP)
_T_ACKS, _T_UP_TO = struct_of(format.TRANSACTION_ACKS_OP), struct_of(format.TRANSACTION_ACK_UP_TO_OP)
_T_PART, _T_ENDED = struct_of(format.TRANSACTION_ACK_PART_OP), struct_of(format.TRANSACTION_ENDED_OP)


# -- ledgers

def ledger_opened(partition_id: int, ledger_id: int, *, created_ms: int, first_message: int) -> bytes:
    """Return the op for a new ledger.  first_message: number of messages of the partition before this ledger."""
    return _LEDGER_OPENED.pack(format.LEDGER_OPENED, partition_id, ledger_id, created_ms, first_message)


def ledger_deleted(partition_id: int, ledger_id: int) -> bytes:
    """Return the op for a deleted ledger, whose files are deleted after this op is synced."""
    return _LEDGER_DELETED.pack(format.LEDGER_DELETED, partition_id, ledger_id)


# -- subscriptions

def mark_delete(partition_id: int, subscription_id: int, position: Position) -> bytes:
    """Return the op that sets a subscription's mark-delete position."""
    return _MARK_DELETE.pack(format.MARK_DELETE, subscription_id, partition_id, *position)


def acknowledged(partition_id: int, subscription_id: int, ledger_id: int, entries: NDArray[np.int64]) -> Rows:
    """Return ACKNOWLEDGED_OPs (m,), one for each run of entries (n,), ascending, beyond the mark-delete position."""
    starts = np.flatnonzero(np.diff(entries, prepend=entries[0] - 2) != 1)
    ops = np.zeros(len(starts), format.ACKNOWLEDGED_OP)
    ops["kind"] = format.ACKNOWLEDGED
    ops["partition_id"], ops["subscription_id"], ops["ledger_id"] = partition_id, subscription_id, ledger_id
    _set_entries(ops, entries, starts)
    return ops


def _set_entries(ops: Rows, entries: NDArray[np.int64], starts: NDArray[np.int64]) -> None:
    """Set first entry and count in ops (m,), one for each run of consecutive entries.

    starts: indices (m,) into entries (n,) at which the runs begin.
    """
    ops["first_entry"] = entries[starts]
    ops["more_entries"] = np.diff(starts, append=len(entries)) - 1


def cursor_reset(partition_id: int, subscription_id: int, position: Position, *, since: int) -> bytes:
    """Return the op that resets a subscription's cursor to a position, with nothing acknowledged beyond it.

    since: number of messages of the partition up to that position.
    """
    return _CURSOR_RESET.pack(format.CURSOR_RESET, subscription_id, partition_id, *position, since)


def cursor_replaced(partition_id: int, subscription_id: int, other: int, *, since: int) -> bytes:
    """Return the op by which a subscription gets the cursor with the id `other`; no cursor has that id afterwards.

    since: number of messages of the partition before those that the cursor's totals count.
    """
    return _CURSOR_REPLACED.pack(format.CURSOR_REPLACED, subscription_id, partition_id, other, since)


def subscription_deleted(partition_id: int, subscription_id: int) -> bytes:
    """Return the op for a deleted durable subscription."""
    return _SUBSCRIPTION.pack(format.SUBSCRIPTION_DELETED, subscription_id, partition_id)


def type_changed(partition_id: int, subscription_id: int, type: int) -> bytes:
    """Return the op that stores the type of a subscription's consumers, a CommandSubscribe.SubType."""
    return _TYPE_CHANGED.pack(format.TYPE_CHANGED | type << format.NUMBER, subscription_id, partition_id)


def first_part_acknowledged(partition_id: int, subscription_id: int, position: Position, word: int) -> bytes:
    """Return the op for acknowledgements among the first 64 messages of a batch.

    word: a bit for each message, 1 = not acknowledged.
    """
    return _PART_ACKNOWLEDGED.pack(format.PART_ACKNOWLEDGED, subscription_id, partition_id, *position, word)


def parts_acknowledged(partition_id: int, subscription_id: int, position: Position, numbers: NDArray[np.int64],
                       words: NDArray[np.uint64]) -> Rows:
    """Return PART_ACKNOWLEDGED_OPs (n,) for acknowledgements within a batch, one for each word of 64 messages.

    words: bits (n,) of messages, 1 = not acknowledged.  numbers: the number (n,) of each word in the batch, ascending.
    """
    ops = np.zeros(len(numbers), format.PART_ACKNOWLEDGED_OP)
    ops["kind_and_word_number"] = format.PART_ACKNOWLEDGED | numbers << format.NUMBER
    ops["partition_id"], ops["subscription_id"] = partition_id, subscription_id
    ops["ledger_id"], ops["entry_id"] = position
    ops["word"] = words
    return ops


def counted(kind: int, partition_id: int, subscription_id: int, ledger_id: int, entries: NDArray[np.int64],
            counts: NDArray[np.uint16]) -> Rows:
    """Return COUNTED_OPs (m,) that set counts (n,) of entries (n,), ascending.

    Consecutive entries with an equal count share one op.  kind: format.REDELIVERED or format.DIED.
    """
    starts = np.flatnonzero((np.diff(entries, prepend=entries[0] - 2) != 1) | (np.diff(counts, prepend=counts[0]) != 0))
    ops = np.zeros(len(starts), format.COUNTED_OP)
    ops["kind_and_count"] = kind | counts[starts].astype(np.uint32) << np.uint32(format.NUMBER)
    ops["partition_id"], ops["subscription_id"], ops["ledger_id"] = partition_id, subscription_id, ledger_id
    _set_entries(ops, entries, starts)
    return ops


def deaths_forgotten(partition_id: int, subscription_id: int) -> bytes:
    """Return the op that resets all counts of deaths of a subscription to 0."""
    return _COUNTED.pack(format.DIED, subscription_id, partition_id, 0, -1, 0)


def total(partition_id: int, subscription_id: int, reason: int, messages: int) -> bytes:
    """Return the op that sets the number of messages that a subscription no longer needs for one reason.

    reason: an index of cursor.REASONS.
    """
    return _TOTAL.pack(format.TOTAL | reason << format.NUMBER, subscription_id, partition_id, messages)


# -- producers

def produced(partition_id: int, producer: tuple[int, int], sequence_id: int, *, supposed: int = 0) -> bytes:
    """Return the op with the highest sequence id of a producer's completely stored messages.

    producer: the halves of its identity.  supposed: how many ids above it are supposed to be stored.
    """
    kind = format.PRODUCED | supposed << format.NUMBER
    return _PRODUCED.pack(kind, partition_id, producer[0], sequence_id, producer[1])


def missed(partition_id: int, producer: tuple[int, int], first: int, last: int) -> bytes:
    """Return the op for a gap in a producer's sequence ids, first .. last; of none if `last` is below `first`."""
    count = last - first + 1
    kind = format.MISSED | count >> 32 << format.NUMBER
    return _MISSED.pack(kind, count & 0xFFFFFFFF, partition_id, producer[0], first, producer[1])


def chunked(partition_id: int, producer: tuple[int, int], sequence_id: int, *, next_chunk: int, crc32c: int) -> bytes:
    """Return the op for the progress of a producer's chunked message.

    next_chunk: the chunk expected next; 0 if the message is complete.  crc32c: checksum of the first chunk.
    """
    kind = format.CHUNKED | next_chunk << format.NUMBER
    return _CHUNKED.pack(kind, crc32c, partition_id, producer[0], sequence_id, producer[1])


def sequences_forgotten(partition_id: int) -> bytes:
    """Return the op that deletes the sequence ids of all producers of a partition, which no longer deduplicates."""
    return _PARTITION.pack(format.SEQUENCES_FORGOTTEN, partition_id)


# -- partitions

def partition_deleted(partition_id: int) -> bytes:
    """Return the op for a deleted partition, with all of its files."""
    return _PARTITION.pack(format.PARTITION_DELETED, partition_id)


def delayed(partition_id: int) -> bytes:
    """Return the op for a partition that has a delayed index from now on."""
    return _PARTITION.pack(format.DELAYED, partition_id)


# -- transactions: an id is one number, see names.transaction

def coordinated(transaction: int, state: int, role: int, *, opened_ms: int, lifetime_ms: int,
                role_crc32c: int = 0) -> bytes:
    """Return the op for the state of a transaction at its coordinator.

    role, role_crc32c: hash and checksum of the name of the role that opened it.
    """
    return _COORDINATED.pack(
        format.COORDINATED | state << format.NUMBER, role_crc32c, role, opened_ms, lifetime_ms, transaction)


def added_to_transaction(transaction: int, partition_id: int, subscription_id: int) -> bytes:
    """Return the op for a partition (subscription_id 0), or a subscription, that a transaction may use."""
    return _ADDED.pack(format.ADDED_TO_TRANSACTION, subscription_id, partition_id, transaction)


def promised_to_transaction(transaction: int, promised: bytes) -> bytes:
    """Return the op that adds a topic which is not there to a transaction.  promised: hash of its name, 16 bytes."""
    op = np.zeros(1, format.ADDED_OP)
    op["kind"], op["promised"], op["transaction"] = format.ADDED_TO_TRANSACTION, np.void(promised), transaction
    return op.tobytes()


def transaction_entries(transaction: int, partition_id: int, ledger_id: int, first: int, end: int) -> bytes:
    """Return the op for entries first .. end - 1 that a transaction published."""
    return _T_ENTRIES.pack(format.TRANSACTION_ENTRIES, end - first - 1, partition_id, ledger_id, first, transaction)


def transaction_sequences(transaction: int, partition_id: int, producer: int, first: int, last: int) -> bytes:
    """Return the op for sequence ids first .. last that a producer has used in a transaction.

    producer: the first half of its identity.
    """
    kind = format.TRANSACTION_SEQUENCE | format.RUN << format.NUMBER
    return _T_SEQUENCE.pack(kind, last - first, partition_id, producer, first, transaction)


def transaction_role(transaction: int, partition_id: int, role: int) -> bytes:
    """Return the op for the role that began a transaction which a partition has part in.  role: its hash, 64 bits."""
    kind = format.TRANSACTION_SEQUENCE | format.ROLE << format.NUMBER
    return _T_SEQUENCE.pack(kind, 0, partition_id, 0, signed(role), transaction)


def transaction_acks(transaction: int, partition_id: int, subscription_id: int, ledger_id: int, first: int,
                     end: int) -> bytes:
    """Return the op for entries first .. end - 1 that a transaction acknowledges."""
    return _T_ACKS.pack(
        format.TRANSACTION_ACKS, subscription_id, partition_id, ledger_id, first, end - first - 1, transaction)


def transaction_ack_up_to(transaction: int, partition_id: int, subscription_id: int, position: Position) -> bytes:
    """Return the op for the position up to which a transaction acknowledges."""
    return _T_UP_TO.pack(format.TRANSACTION_ACK_UP_TO, subscription_id, partition_id, *position, transaction)


def transaction_ack_part(transaction: int, partition_id: int, subscription_id: int, position: Position, number: int,
                         word: int) -> bytes:
    """Return the op for messages 32 * number .. 32 * number + 31 of a batch that a transaction acknowledges.

    word: a bit for each of them, 1 = acknowledged by the transaction.
    """
    kind = format.TRANSACTION_ACK_PART | number << format.NUMBER
    return _T_PART.pack(kind, subscription_id, partition_id, *position, word, transaction)


def transaction_ended(transaction: int, partition_id: int) -> bytes:
    """Return the op that ends a transaction in one partition, behind the ops of all that this changed."""
    return _T_ENDED.pack(format.TRANSACTION_ENDED, partition_id, transaction)
