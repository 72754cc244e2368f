"""Rows have one layout and two forms: a numpy dtype for many of them, a struct for few.

A numpy call costs a microsecond however small its array, and twenty in a process that has just been woken, whose code the
processor's caches have forgotten; a loop over a few tuples costs less.  So what comes in small numbers, which is most of what
a broker that is not busy does, goes one by one; and a test holds both ways to the same bytes.
"""
import struct

import numpy as np

_LETTERS = {"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "i4": "i", "i8": "q"}


def struct_of(dtype: np.dtype) -> struct.Struct:
    """What packs and unpacks rows of the dtype, its fields in their order; numbers only, without gaps."""
    found = struct.Struct("<" + "".join(_LETTERS[field.str[1:]] for field, *_ in dtype.fields.values()))
    assert found.size == dtype.itemsize, dtype
    return found
