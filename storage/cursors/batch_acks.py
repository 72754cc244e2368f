"""Batches that are acknowledged in part: an integer with one bit for each message, 1 = not acknowledged.

An integer takes memory up to its highest bit.  So an acknowledgement costs as much as the words that the client sent,
however many messages the batch claims to have.
"""
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import Entries

Parts = dict[int, dict[int, int]]      # ledger id -> {entry id: bits}


def words(bits: int, mask: int = 0) -> NDArray[np.uint64]:
    """Return the bits of a batch as 64-bit words (n,), the lowest first.

    Leading zero words are left out; at least one word remains.  mask: bits of the batch's messages that a filter has
    chosen, if they are to follow in as many words.
    """
    size = 8 * max(1, -(-max(bits, mask).bit_length() // 64))
    return np.frombuffer(bits.to_bytes(size, "little") + (mask.to_bytes(size, "little") if mask else b""), np.uint64)


def bits_of(data: bytes | memoryview, messages: int) -> int:
    """Return the bits of a batch from little-endian 64-bit words.  Bits beyond the batch's `messages` are ignored."""
    bits = int.from_bytes(data[:8 * -(-messages // 64)], "little")
    return bits if bits.bit_length() <= messages else bits & ((1 << messages) - 1)


def signed_words(bits: int) -> list[int]:
    """Return the bits of a batch as the protocol's ack_set: signed 64-bit words, the lowest first."""
    signed: list[int] = words(bits).view(np.int64).tolist()
    return signed


def put(bits: int, numbers: NDArray[np.int64], some: NDArray[np.uint64]) -> int:
    """Return a batch's bits with some of its 64-bit words replaced.

    numbers: (n,) which words, ascending.  some: (n,) their new values.
    """
    before = words(bits)
    after = np.zeros(max(len(before), int(numbers[-1]) + 1), np.uint64)
    after[:len(before)] = before
    after[numbers] = some
    return int.from_bytes(after.tobytes(), "little")


def among(batches: Mapping[int, int], entries: Entries) -> list[tuple[int, int]]:
    """Return [(index into entries, bits)] of those batches, {entry id: bits}, that are among the entries, ascending."""
    if len(entries) < len(batches):
        ids = entries if isinstance(entries, range) else entries.tolist()
        return [(at, batches[entry_id]) for at, entry_id in enumerate(ids) if entry_id in batches]
    matches = []
    for entry_id, bits in batches.items():
        at = entry_id - entries.start if isinstance(entries, range) else int(np.searchsorted(entries, entry_id))
        if 0 <= at < len(entries) and entries[at] == entry_id:
            matches.append((at, bits))
    return sorted(matches)


def by_batch(rows: NDArray[np.void], numbers: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Return an iterator over (first, end) of each run of rows about one batch.

    A row holds one word; within a batch the words' `numbers` (n,) ascend.
    """
    is_first = np.ones(len(rows), bool)
    is_first[1:] = numbers[1:] <= numbers[:-1]
    for name in ("subscription_id", "ledger_id", "entry_id"):
        is_first[1:] |= rows[name][1:] != rows[name][:-1]
    firsts = np.flatnonzero(is_first).tolist()
    return zip(firsts, [*firsts[1:], len(rows)], strict=False)
