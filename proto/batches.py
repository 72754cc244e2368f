"""Batches -> where each of their messages is: [size u32][SingleMessageMetadata][payload], one behind the other.

A message's own metadata says where the message ends.  So the n-th messages of all batches are looked at together, and
n goes up.  A batch that does not look as clients write it is `odd`: the protobuf library has to read it.
"""
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from geminga.proto import metadata
from geminga.proto.compression import UNPACKED_MAX
from geminga.proto.rows import words_at_each_byte

TOGETHER_MIN = 4          # batches; fewer cost less in the library
MESSAGE_MIN = 6           # bytes that a message takes at least: the sizes of its metadata and payload
MESSAGES_MAX = UNPACKED_MAX // MESSAGE_MIN      # messages that an entry may claim to hold
_PAYLOAD_SIZE = np.uint64(3 << 3)
_SIZE_BITS, _BYTE, _EIGHT = map(np.uint64, (0xFFFFFFFF, 0xFF, 8))


class Messages(NamedTuple):
    """Places of all messages of several batches, in order; each column but `odd` is (messages,)."""

    batches: NDArray[np.int64]           # the number of each message's batch
    indexes: NDArray[np.int64]           # its number in the batch
    begins: NDArray[np.int64]            # of its metadata
    ends: NDArray[np.int64]              # of its metadata: where its payload begins
    payload_ends: NDArray[np.int64]
    odd: NDArray[np.bool_]               # (batches,); columns are undefined for an odd batch


def unpack(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64],
           counts: NDArray[np.int64]) -> Messages:
    """Find the messages of the batches data[begin:end], of which each claims to hold `counts` (n,) messages.

    `data` has metadata.PAD bytes behind the last batch.
    """
    words = words_at_each_byte(data)
    odd = counts * MESSAGE_MIN > ends - begins
    if np.count_nonzero(~odd) < TOGETHER_MIN:      # else a single batch that claims millions takes as many steps
        odd[:] = True
    counts = np.where(odd, 0, counts)
    total, first = int(counts.sum()), np.cumsum(counts) - counts
    found = np.zeros((3, total), np.int64)
    order = np.argsort(-counts, kind="stable")
    descending, at, limit = -counts[order], begins[order].astype(np.int64), ends[order]
    out, is_bad = first[order], odd[order]
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
    return Messages(batch, np.arange(total) - first[batch], found[0], found[1], found[2], odd)


def _payload_sizes(words: NDArray[np.uint64], at: NDArray[np.int64],
                   ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return (payload sizes (n,), whether each was found) of the metadata at these places (n,).

    Clients write the size behind properties and key.  Fields of bytes before it are skipped; any other field ends the
    search.
    """
    while True:
        loaded = words[at]
        has_size = loaded & _BYTE == _PAYLOAD_SIZE
        numbers, lengths, too_long = metadata.read_varints(loaded >> _EIGHT, 7)
        values = numbers.astype(np.int64)
        is_skipped = ~has_size & (loaded & np.uint64(7) == np.uint64(2)) & (loaded & np.uint64(0x80) == np.uint64(0))
        if too_long is not None:
            is_skipped &= ~too_long
        behind = at + 1 + lengths + values
        is_skipped &= behind < ends
        if not is_skipped.any():
            has_size &= (at + 1 + lengths <= ends) & (values < 1 << 31)
            return values, has_size if too_long is None else has_size & ~too_long
        at = np.where(is_skipped, behind, at)
