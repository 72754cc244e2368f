"""Entries that resemble each other, judged at once: the same fields of the same lengths, with other values.

Entries of a layout (layouts.py) whose values are equal too are judged by one of them.  So thousands of entries with few
values cost a few operations for each eight bytes of their metadata.  Batches of a layout have their messages judged in
runs (runs.py).

What is left is judged in other ways (entries.py): compressed batches, entries of rare layouts, and values that hardly
ever repeat.
"""
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from geminga.storage.filters import layouts
from geminga.storage.filters.language import Expression
from geminga.storage.filters.layouts import HEAD_MAX, Layout, Learner, Words
from geminga.storage.filters.runs import MESSAGES_MAX, Runs

_SIZES_MAX = 8               # lengths of metadata among the entries of a call, and ...
_LAYOUTS_MAX = 8             # ... layouts of one length, that are looked for
_KNOWN_MAX = 64              # layouts that are kept
_COMPRESSION, _UNPACKED, _COUNT, _ENCRYPTION = 8 << 3, 9 << 3, 11 << 3, 13 << 3 | 2


class Alike:
    """Judges entries that resemble each other, and remembers what they look like."""

    def __init__(self, expression: Expression):
        self.runs = Runs(expression)
        self._learner = Learner(expression, layouts.OUTER)
        self._layouts: dict[int, list[Layout]] = {}      # by the size of the metadata

    def __repr__(self) -> str:
        return f"<Alike layouts={sum(map(len, self._layouts.values()))}>"

    def judge(self, data: NDArray[np.uint8], words: Words, bodies: NDArray[np.int64], sizes: NDArray[np.int64],
              ends: NDArray[np.int64], is_left: NDArray[np.bool_], one: Callable[[int], bool],
              note: Callable[[NDArray[np.intp], NDArray[np.bool_]], None]) -> None:
        """Judge entries of those left (n,), and take them off.

        bodies, sizes: (n,) of metadata.  one: judges an entry by its number.  note: is told numbers of entries (m,) and
        which of their messages match (m, messages).
        """
        for size in _distinct(sizes[is_left])[:_SIZES_MAX]:
            if 0 < size <= HEAD_MAX:
                some = np.flatnonzero(is_left & (sizes == size))
                self._judge(data, words, bodies[some], size, ends[some], some, is_left, one, note)

    def _judge(self, data: NDArray[np.uint8], words: Words, bodies: NDArray[np.int64], size: int,
               ends: NDArray[np.int64], numbers: NDArray[np.intp], is_left: NDArray[np.bool_],
               one: Callable[[int], bool], note: Callable[[NDArray[np.intp], NDArray[np.bool_]], None]) -> None:
        columns = [_column(words, bodies + at) for at in range(0, size, 8)]
        left = np.ones(len(numbers), bool)
        known = self._layouts.setdefault(size, [])
        for layout in [*known[-_LAYOUTS_MAX:], *[None] * _LAYOUTS_MAX]:
            if layout is None:
                if not left.any():
                    return
                first = int(left.argmax())
                layout = self._learnt(data[bodies[first]:bodies[first] + size].tobytes())
                if layout is None:
                    return
            if not (here := left & layout.has(columns)).any():
                continue
            left &= ~here
            at = np.flatnonzero(here)
            if count := layout.fields.get(_COUNT):
                is_done, bits = self.runs.judge(data, bodies[at] + size, ends[at], count)
                note(numbers[at][is_done], bits[is_done])
                is_left[numbers[at][is_done]] = False
            elif (found := layout.verdict(columns, here, lambda at: one(int(numbers[at])))) is not None:
                note(numbers[at], np.broadcast_to(found, len(here))[at][:, None])
                is_left[numbers[at]] = False

    def _learnt(self, head: bytes) -> Layout | None:
        """Return the layout of metadata that resemble these; None for those that are read in other ways."""
        layout = self._learner.learn(head)
        if layout is None:
            return None
        if (count := layout.fields.get(_COUNT)) is not None and (
                not 0 < count <= MESSAGES_MAX or layout.fields.get(_COMPRESSION) or _ENCRYPTION in layout.fields):
            return None
        if sum(map(len, self._layouts.values())) >= _KNOWN_MAX:
            self._layouts.clear()
        self._layouts.setdefault(len(head), []).append(layout)
        return layout


def _column(words: Words, at: NDArray[np.int64]) -> Words:
    """Return the words at these places (n,), without a copy where the places have equal distances."""
    if len(at) > 1 and (step := int(at[1] - at[0])) > 0 and int(at[-1] - at[0]) == step * (len(at) - 1) \
            and (at[1:] - at[:-1] == step).all():
        return words[int(at[0]):int(at[-1]) + 1:step]
    return words[at] if int(at[-1]) < len(words) else words[np.minimum(at, len(words) - 1)]


def _distinct(values: NDArray[np.int64]) -> list[int]:
    """Return the distinct values (n,), the most frequent ones first."""
    if not len(values) or (values == values[0]).all():
        return [int(value) for value in values[:1]]
    found, counts = np.unique(values, return_counts=True)
    ordered: list[int] = found[np.argsort(-counts, kind="stable")].tolist()
    return ordered
