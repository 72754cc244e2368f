"""Rows: one layout, as a numpy dtype for many of them and as a struct for few.

A numpy call costs a microsecond however short its array, and up to twenty when the process has just been woken and the
processor's caches are cold.  A loop over a few tuples costs less.  So small numbers of rows, which are the rule on a
broker that is not busy, are packed and unpacked one by one.  A test holds both ways to the same bytes.
"""
import struct
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.void]      # (n,) of a structured dtype
Row: TypeAlias = tuple[int, ...]        # one row, in the order of its fields
_LETTERS = {"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "i4": "i", "i8": "q"}


def field_names(dtype: np.dtype[np.void]) -> tuple[str, ...]:
    """Return the names of a structured dtype's fields."""
    assert dtype.names is not None
    return dtype.names


def struct_of(dtype: np.dtype[np.void]) -> struct.Struct:
    """Return the struct with a dtype's layout.  The dtype has numbers, and void fields where bytes are not used.

    Void fields take no argument of `pack`, and are packed as zeros.
    """
    fields = [dtype[name] for name in field_names(dtype)]
    letters = [f"{field.itemsize}x" if field.kind == "V" else _LETTERS[field.str[1:]] for field in fields]
    layout = struct.Struct("<" + "".join(letters))
    assert layout.size == dtype.itemsize, dtype
    return layout


def as_words(rows: Rows) -> NDArray[np.uint64]:
    """View contiguous rows (n,) as their words (n, itemsize / 8): numpy copies words ten times faster than fields."""
    return rows.view(np.uint64).reshape(len(rows), rows.dtype.itemsize // 8)


def from_words(words: NDArray[np.uint64], dtype: np.dtype[np.void]) -> Rows:
    """Return rows (n,) of the dtype, in memory of their own if need be, from their words (n, itemsize / 8)."""
    return np.ascontiguousarray(words).view(dtype).ravel()


def words_at_each_byte(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """View bytes (n,) as words (n - 7,), little-endian, one of which begins at every byte."""
    return np.ndarray(len(data) - 7, "<u8", data, 0, (1,))


def interleave(heads: NDArray[np.uint8], data: memoryview, begins: NDArray[np.integer],
               ends: NDArray[np.integer]) -> bytes:
    """Return each of the heads (n, width) with the bytes data[begin:end] behind it; begins, ends: (n,).

    The bytes have any sizes.  One slice of them for each head costs less than arrays that name every byte.
    """
    count, width = heads.shape
    pieces: list[bytes | memoryview] = [b""] * (2 * count)
    pieces[::2] = heads.view(f"V{width}").ravel().tolist()
    pieces[1::2] = [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    return b"".join(pieces)
