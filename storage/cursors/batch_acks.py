"""Batches of which only some messages are acknowledged: a number with a bit per message.

A number takes memory up to its highest bit, so an acknowledgement costs what its words do, however many messages a batch claims to have.
"""
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Parts = dict[int, dict[int, int]]      # ledger id -> {entry id: a bit per message, 1 = not acknowledged}


def words(bits: int) -> NDArray[np.uint64]:
    """The bits as words of 64, the lowest first: one, or up to the last that is not 0."""
    return np.frombuffer(bits.to_bytes(8 * max(1, -(-bits.bit_length() // 64)), "little"), np.uint64)


def bits_of(data: bytes | memoryview, messages: int) -> int:
    """The bits of a batch's messages in these words; words that the batch does not have say nothing."""
    bits = int.from_bytes(data[:8 * -(-messages // 64)], "little")
    return bits if bits.bit_length() <= messages else bits & ((1 << messages) - 1)


def signed_words(bits: int) -> list[int]:
    """The bits as clients write them."""
    return words(bits).view(np.int64).tolist()


def put(bits: int, numbers: NDArray[np.int64], some: NDArray[np.uint64]) -> int:
    """The bits with other words (n,) at these places (n,), ascending."""
    before = words(bits)
    found = np.zeros(max(len(before), int(numbers[-1]) + 1), np.uint64)
    found[:len(before)] = before
    found[numbers] = some
    return int.from_bytes(found.tobytes(), "little")


def by_batch(rows: NDArray, numbers: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """(first, end) of the rows, one for each word, that are about one batch: their numbers ascend."""
    is_first = np.ones(len(rows), bool)
    is_first[1:] = numbers[1:] <= numbers[:-1]
    for name in ("subscription_id", "ledger_id", "entry_id"):
        is_first[1:] |= rows[name][1:] != rows[name][:-1]
    firsts = np.flatnonzero(is_first).tolist()
    return zip(firsts, [*firsts[1:], len(rows)], strict=False)


def load(cursors: dict, rows: NDArray) -> None:
    """Have the cursors, by subscription, know what PART_ROWs say."""
    numbers = rows["number"].astype(np.int64)
    for first, end in by_batch(rows, numbers):
        subscription_id, ledger_id, entry_id = (int(rows[name][first]) for name in ("subscription_id", "ledger_id", "entry_id"))
        if subscription_id in cursors:
            cursors[subscription_id].set_parts(ledger_id, entry_id, numbers[first:end], rows["word"][first:end])
