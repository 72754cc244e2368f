"""Make Arrow arrays of bytes that lie anywhere in a buffer, without an object for each."""
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.proto.rows import words_at_each_byte

_INLINE_MAX = 12                        # bytes that a view has in itself
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_FIRST = _MASKS[[0, 1, 2, 3, *[4] * (_INLINE_MAX - 3)]]      # by size: mask of the first four bytes
_REST = _MASKS[[*[0] * 5, *range(1, 9)]]                     # by size: mask of the bytes behind the first four
TIME = pa.timestamp("us", "UTC")
_TIMES = -62_135_596_800_000, 253_402_300_799_999      # ms: of the years 1 to 9999, as Python and SQL have them


def strings(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Return an Arrow array with data[begin:end] for each pair, null where begin is -1.

    data must have metadata.PAD more bytes at its end. Text is not checked to be UTF-8.
    """
    count, present = len(begins), begins >= 0
    nulls = count - int(np.count_nonzero(present))
    if nulls == count:
        return pa.nulls(count, kind)
    if nulls:
        begins, ends = np.where(present, begins, 0), np.where(present, ends, 0)
    sizes = ends - begins
    views = np.empty((count, 2), np.uint64)
    words = words_at_each_byte(data)
    loaded = words[begins]
    views[:, 0] = sizes.astype(np.uint64) | loaded << np.uint64(32)
    views[:, 1] = begins.astype(np.uint64) << np.uint64(32)
    short = sizes <= _INLINE_MAX
    if short.any():
        some = slice(None) if short.all() else np.flatnonzero(short)
        these = sizes[some]
        views[some, 0] = these.astype(np.uint64) | (loaded[some] & _FIRST[these]) << np.uint64(32)
        views[some, 1] = words[begins[some] + 4] & _REST[these]
    validity = None if not nulls else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [validity, pa.py_buffer(views), pa.py_buffer(data)]
    copied = pa.Array.from_buffers(pa.binary_view(), count, buffers, nulls).cast(pa.binary())
    return copied if kind == pa.binary() else pa.Array.from_buffers(kind, count, copied.buffers(), nulls)


def times(milliseconds: NDArray[np.int64], *, is_optional: bool = False) -> pa.Array:
    """Return an Arrow array of timestamps from milliseconds since 1970.  is_optional: 0 means null.

    Times outside the years 1 to 9999 become the first or last moment of these years.
    """
    microseconds = pa.array(np.clip(milliseconds, *_TIMES) * 1000, mask=milliseconds == 0 if is_optional else None)
    return microseconds.view(TIME)
