"""Batches -> where each of their messages is: [size u32][SingleMessageMetadata][payload], one behind the other.

Where a message ends says its own metadata, so the n-th messages of all batches are looked at together.  Batches that do not look as
clients write them are told of, and the protobuf library's to read.
"""
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from geminga.proto import metadata

TOGETHER_MIN = 4          # batches; fewer cost less in the library
MESSAGE_MIN = 6           # bytes: sizes of metadata and payload, at least
UNPACKED_MAX = 128 << 20  # bytes that are made of an entry's payload that is compressed: larger ones are only their consumers' to read
MESSAGES_MAX = UNPACKED_MAX // MESSAGE_MIN      # of a batch: no entry may claim more
_PAYLOAD_SIZE = np.uint64(3 << 3)
_SIZE_BITS, _BYTE, _EIGHT = map(np.uint64, (0xFFFFFFFF, 0xFF, 8))


class Unpacked(NamedTuple):
    """Of all messages of all batches, in their order."""

    batch: NDArray[np.int64]             # which it is of
    index: NDArray[np.int64]             # its number there
    begins: NDArray[np.int64]            # of its metadata
    ends: NDArray[np.int64]              # ... where its payload begins
    payload_ends: NDArray[np.int64]
    odd: NDArray[np.bool_]               # (batches,): of these all the above says nothing


def unpack(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64], counts: NDArray[np.int64]) -> Unpacked:
    """The messages of batches of `counts` messages that lie at data[begin:end]; data goes on for metadata.PAD bytes behind them."""
    words = metadata.words_of(data)
    odd = counts * MESSAGE_MIN > ends - begins
    if np.count_nonzero(~odd) < TOGETHER_MIN:      # each may say that it has millions
        odd[:] = True
    counts = np.where(odd, 0, counts)
    total, first = int(counts.sum()), np.cumsum(counts) - counts
    found = np.zeros((3, total), np.int64)
    order = np.argsort(-counts, kind="stable")
    descending, at, limit, out, is_bad = -counts[order], begins[order].astype(np.int64), ends[order], first[order], odd[order]
    for number in range(int(counts.max(initial=0))):
        active = int(np.searchsorted(descending, -number))
        if active < TOGETHER_MIN:
            is_bad[:active] = True
            break
        begin, end = at[:active] + 4, limit[:active]
        size = (words[at[:active]] & _SIZE_BITS).astype(np.uint32).byteswap().astype(np.int64)
        stop = begin + size
        payload_sizes, is_found = _payload_sizes(words, begin, np.minimum(stop, end))
        behind = stop + payload_sizes
        is_found &= behind <= end
        if not is_found.all():
            is_bad[:active] |= ~is_found
            behind = np.where(is_found, behind, end)
            behind = np.minimum(behind, end)
        slots = out[:active] + number
        found[0, slots], found[1, slots], found[2, slots] = begin, stop, behind
        at[:active] = behind
    odd[order] = is_bad
    batch = np.repeat(np.arange(len(counts)), counts)
    return Unpacked(batch, np.arange(total) - first[batch], *found, odd)


def _payload_sizes(words: NDArray[np.uint64], at: NDArray[np.int64],
                   ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(the payload's size, whether that is where clients write it: behind properties and key) of the metadata at these places."""
    while True:
        loaded = words[at]
        is_there = loaded & _BYTE == _PAYLOAD_SIZE
        values, lengths, too_long = metadata.varints(loaded >> _EIGHT, 7)
        values = values.astype(np.int64)
        passed = ~is_there & (loaded & np.uint64(7) == np.uint64(2)) & (loaded & np.uint64(0x80) == np.uint64(0))
        if too_long is not None:
            passed &= ~too_long
        behind = at + 1 + lengths + values
        passed &= behind < ends
        if not passed.any():
            is_there &= (at + 1 + lengths <= ends) & (values < 1 << 31)
            return values, is_there if too_long is None else is_there & ~too_long
        at = np.where(passed, behind, at)
