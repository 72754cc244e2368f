"""Received bytes -> whole frames, many at once."""
import struct

import numpy as np
from numpy.typing import NDArray

from geminga.proto import metadata
from geminga.proto.rows import words_at_each_byte

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
KIND_AT = 9                  # offset of a command's type in a frame: it is the first field of BaseCommand
U32 = struct.Struct(">I")
_RUN_MIN = 8                 # frames; a shorter run of equal sizes costs less one by one
_LOOK_MAX = 1_024            # frames compared in one step, so that many short runs do not cost the square of frames
_WALK_MAX = 256              # frames walked one by one before looking for a run again
PAD = metadata.PAD + 8       # bytes behind the received ones: words are loaded whole, see `alike` too


class Unreadable(Exception):
    """An error: the peer sends bytes that are none of the protocol's, or a frame that is too large."""


def whole_frames(data: Bytes, at: int, end: int, size_max: int) -> tuple[Places, Places, int]:
    """Return (where whole frames of data[at:end] begin (n,), where they end (n,), where the rest begins).

    Raises Unreadable for a frame of more than size_max bytes, or one that is too short for a command.
    """
    starts: list[Places] = []
    sizes: list[Places] = []
    while end - at >= 4:
        size = 4 + U32.unpack_from(data, at)[0]
        if size > size_max or size < 8:
            raise Unreadable(f"a frame of {size} bytes came; the limit is {size_max}")
        if at + size > end:
            break
        # Frames of one producer are mostly of one size.  Where they are not, walking some hundred of them costs less
        # than asking again at each frame.
        run = _equal_frames(data, at, end, size)
        if run < _RUN_MIN:
            borders = _walk(data, at, end)
            starts.append(borders[:-1])
            sizes.append(np.diff(borders))
            at = int(borders[-1])
            # A size beyond the limits is found here, as long as its frame is whole; else before the next walk.
            if len(wrong := sizes[-1][(sizes[-1] > size_max) | (sizes[-1] < 8)]):
                raise Unreadable(f"a frame of {wrong[0]} bytes came; the limit is {size_max}")
        else:
            starts.append(at + size * np.arange(run, dtype=np.int64))
            sizes.append(np.full(run, size, np.int64))
            at += size * run
    if not starts:
        return np.empty(0, np.int64), np.empty(0, np.int64), at
    begins = np.concatenate(starts) if len(starts) > 1 else starts[0]
    return begins, begins + (np.concatenate(sizes) if len(sizes) > 1 else sizes[0]), at


def _equal_frames(data: Bytes, at: int, end: int, size: int) -> int:
    """Return how many frames of this size follow each other: each begins where the one before says that it ends."""
    heads: NDArray[np.uint32] = np.ndarray((min(_LOOK_MAX, (end - at) // size),), "<u4", data, at, (size,))
    same = heads == heads[0]
    return len(same) if same.all() else int(same.argmin())


def _walk(data: Bytes, at: int, end: int) -> Places:
    """Return where some whole frames begin, and behind them where the last one ends."""
    places, unpack, view, last = [at], U32.unpack_from, memoryview(data), end - 4
    for _ in range(_WALK_MAX):
        if at > last:
            break
        at += 4 + unpack(view, at)[0]
        places.append(at)
    if at > end:
        places.pop()
    return np.array(places, np.int64)


def alike(data: Bytes, starts: Places, ends: Places, tight: Bytes) -> int:
    """Return how many frames begin with the bytes of the first one, as far as bits of `tight` are set.

    tight: (k,), for the first k bytes of each frame; a shorter frame is unlike.
    """
    words = words_at_each_byte(data)
    is_short = ends - starts < len(tight)
    if (count := int(is_short.argmax()) if is_short.any() else len(starts)) == 0:
        return 0
    unlike = np.zeros(count, np.uint64)
    for number, mask in enumerate(np.append(tight, np.zeros(-len(tight) % 8, np.uint8)).view("<u8")):
        column = words[starts[:count] + 8 * number]
        unlike |= (column ^ column[0]) & mask
    return int((unlike != 0).argmax()) if unlike.any() else count
