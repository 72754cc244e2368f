"""Batches of which only some messages are acknowledged: a number with a bit per message."""
from collections.abc import Sequence

import numpy as np

Parts = dict[int, dict[int, int]]      # ledger id -> {entry id: a bit per message, 1 = not acknowledged}
WORD = (1 << 64) - 1


def words(bits: int, messages: int) -> list[int]:
    """The bits as words of 64, the lowest first, for a batch of so many messages."""
    return [bits >> at & WORD for at in range(0, messages, 64)]


def bits_of(words: Sequence[int], messages: int) -> int:
    """The bits that a client's words, which have a sign, say of a batch of so many messages; words beyond these count for nothing."""
    known = np.array(words[:-(-messages // 64)], np.int64)
    return int.from_bytes(known.tobytes(), "little") & (1 << messages) - 1


def signed_words(bits: int, messages: int) -> list[int]:
    """The bits as clients write them."""
    return [word - (1 << 64) if word >> 63 else word for word in words(bits, messages)]
