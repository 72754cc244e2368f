"""Columns of protobuf varints: written into, or read from, the same columns of every row of a block of bytes.

A varint of n bytes holds 7n bits, lowest first; the top bit of every byte but the last is set.  All values of a column
take the same number of bytes.  Shorter values are padded with continuation bytes that hold no bits (5 in two bytes is
85 00), and every protobuf decoder reads the same number.
"""
# Numpy is imported for types only: commands that read and write single varints start sooner without it.
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORD_MAX = 8                                  # bytes of the longest varint that one 8-byte load reads
# Constants take the type of the array that they meet, so they are of any type for the type checker.
_SEVENS: list[Any] = [0x7F7F7F7F7F7F7F7F >> 8 * (WORD_MAX - size) for size in range(WORD_MAX + 1)]
# Top bits of all bytes but the last.
_MORES: list[Any] = [0x80808080808080 >> 8 * (WORD_MAX - max(size, 1)) for size in range(WORD_MAX + 1)]
# Steps that join 7 bits of each byte of a word: (shift, bits that stay, bits that are shifted).
_JOINS: list[tuple[Any, Any, Any]] = [
    (1, 0x007F007F007F007F, 0x7F007F007F007F00), (2, 0x00003FFF00003FFF, 0x3FFF00003FFF0000),
    (4, 0x0FFFFFFF, 0x0FFFFFFF00000000)]
_LAST = [bytes((value,)) for value in range(128)]
_MORE = [bytes((value | 128,)) for value in range(128)]


def encode(value: int) -> bytes:
    """Return the varint of a number in 0 .. 2**64 - 1."""
    out = b""
    while value > 127:
        out += _MORE[value & 127]
        value >>= 7
    return out + _LAST[value] if out else _LAST[value]


def decode(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return (the value of the varint at `at`, the offset behind it).

    Raises ValueError when it is longer than ten bytes, IndexError when the data ends inside it.
    """
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


def signed(value: int) -> int:
    """Return an unsigned field of 64 bits as a signed number: Pulsar reads all of them so, and its client sends -1."""
    return value - (1 << 64) if value >> 63 else value


def length(value: int) -> int:
    """Return the number of bytes in the varint of `value`."""
    return max(1, (value.bit_length() + 6) // 7)


def stamp(block: "NDArray[np.uint8]", column: int, values: "NDArray[np.unsignedinteger]", size: int) -> None:
    """Write values (n,) as varints of `size` bytes into block[:, column : column + size]."""
    for byte in range(size):
        part = (values >> 7 * byte).astype("u1")
        block[:, column + byte] = (part & 127 if byte == size - 1 else part | 128)


def to_words(values: "NDArray[np.uint64]", size: int) -> "NDArray[np.uint64]":
    """Return words (n,) that begin with the values (n,) as varints of `size` bytes (at most 8), and end with zeros."""
    for shift, low, high in reversed(_JOINS):
        values = (values & low) | (values << shift) & high
    words: NDArray[np.uint64] = values | _MORES[size]
    return words


def read_words(words: "NDArray[np.uint64]", size: int) -> "NDArray[np.uint64]":
    """Return the values (n,) of the varints of `size` bytes (at most 8) that words (n,) begin with."""
    return join_sevens(words & _SEVENS[size], size)


def join_sevens(words: "NDArray[np.uint64]", size: int) -> "NDArray[np.uint64]":
    """Return the numbers (n,) whose 7-bit digits are the first `size` bytes of words (n,); all other bits are 0.

    Neighbours are joined: eight times 7 bits become four times 14, then two times 28, then 56.
    """
    for shift, low, high in _JOINS[:(size - 1).bit_length()]:
        words = (words & low) | (words & high) >> shift
    return words
