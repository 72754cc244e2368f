"""Columns of protobuf varints: many of them written into, or read from, the same columns of a block of bytes.

A varint of n bytes holds 7n bits, lowest first; the top bit of every byte but the last is set.  All values of a column
take the same number of bytes: where they differ, shorter ones are padded with continuation bytes of no value
(5 in two bytes is 85 00), which every protobuf decoder reads as the same number.
"""
import numpy as np
from numpy.typing import NDArray

WORD_MAX = 8                                  # longest varint that can be read from one 8-byte load
_SEVENS = [np.uint64(0x7F7F7F7F7F7F7F7F >> 8 * (WORD_MAX - size)) for size in range(WORD_MAX + 1)]
# Top bits of all bytes but the last.
_MORES = [np.uint64(0x80808080808080 >> 8 * (WORD_MAX - max(size, 1))) for size in range(WORD_MAX + 1)]
_RANKS = [tuple(map(np.uint64, rank)) for rank in (
    (1, 0x007F007F007F007F, 0x7F007F007F007F00), (2, 0x00003FFF00003FFF, 0x3FFF00003FFF0000), (4, 0x0FFFFFFF, 0x0FFFFFFF00000000))]


_LAST = [bytes((value,)) for value in range(128)]
_MORE = [bytes((value | 128,)) for value in range(128)]


def encode(value: int) -> bytes:
    """The varint of a number in 0 .. 2**64 - 1."""
    out = b""
    while value > 127:
        out += _MORE[value & 127]
        value >>= 7
    return out + _LAST[value] if out else _LAST[value]


def decode(data, at: int) -> tuple[int, int]:
    """(value, offset behind it); raises ValueError when it is longer than ten bytes, IndexError when it is cut."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise ValueError("varint longer than ten bytes")


def length(value: int) -> int:
    """Bytes that the varint of value takes."""
    return max(1, (value.bit_length() + 6) // 7)


def stamp(block: NDArray[np.uint8], column: int, values: NDArray[np.uint64], size: int) -> None:
    """Write values (n,) as varints of `size` bytes into block[:, column : column + size]."""
    for byte in range(size):
        part = (values >> np.uint64(7 * byte)).astype(np.uint8)
        block[:, column + byte] = (part & 127 if byte == size - 1 else part | 128)


def words(values: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Words (n,) that begin with the values as varints of `size` bytes (at most 8), and end with zeros."""
    for shift, low, high in reversed(_RANKS):
        values = (values & low) | (values << shift) & high
    return values | _MORES[size]


def read_words(words: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """The values of varints of `size` bytes (at most 8) that words (n,) begin with.

    Neighbours close ranks: eight times 7 bits in bytes become four times 14, then two times 28, then 56.
    """
    values = words & _SEVENS[size]
    for shift, low, high in _RANKS[:(size - 1).bit_length()]:
        values = (values & low) | (values & high) >> shift
    return values
