"""Texts in many entries: which entries have one, found without a look at how the entries are built."""
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

_OFTEN = 4      # a text that every 4th entry has saves too little to be looked for further


def having(raw: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64], text: bytes) -> NDArray[np.bool_]:
    """Return which of raw[begin:end] (n,), ascending and without overlaps, may have the text.

    All others have not. The search ends where it turns out that too many have the text.
    """
    has_it = np.zeros(len(begins), bool)
    firsts, stops = begins.tolist(), ends.tolist()
    count, at = 0, raw.find(text, firsts[0], stops[-1]) if firsts else -1
    while at >= 0:
        number = bisect_right(firsts, at) - 1
        if at + len(text) <= stops[number]:
            has_it[number] = True
            count += 1
            at = raw.find(text, max(at + 1, stops[number]), stops[-1])
        else:
            at = raw.find(text, at + 1, stops[-1])
        if count * _OFTEN > len(firsts) and number * 2 < len(firsts):
            has_it[number:] = True
            break
    return has_it
