"""Layouts: which bytes of metadata have to be equal, and which are values that a filter looks at.

A `Layout` is learnt from the metadata of one message: tags, lengths and names of properties have to be equal in all
messages of the layout, and values that a filter looks at decide.  Other values, such as sequence ids, times and keys
that no condition names, may differ.  Messages of a layout with equal values are judged by one of them.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from geminga.proto.metadata import each_field
from geminga.proto.varints import decode
from geminga.storage.filters.language import Expression

HEAD_MAX = 1_024             # bytes of metadata of messages that have a layout
_VERDICTS_MAX = 1_024        # verdicts of a layout that are kept
_FEW = 64                    # values that may be judged in any case
_RARE = 8                    # if fewer messages than that have the same values, these hardly ever repeat
_NAME, _VALUE = 1 << 3 | 2, 2 << 3 | 2
_SLOT_BITS = 12
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

Words = NDArray[np.uint64]


class Tags(NamedTuple):
    """Tags of a kind of metadata whose values may differ in messages of a layout."""

    properties: int
    key: int
    skipped: frozenset[int]          # bytes that no filter looks at
    numbers: frozenset[int]          # sequence ids and times: their values may differ, their lengths may not


OUTER = Tags(4 << 3 | 2, 6 << 3 | 2, frozenset({1 << 3 | 2}), frozenset({2 << 3, 3 << 3, 12 << 3, 24 << 3}))
SINGLE = Tags(1 << 3 | 2, 2 << 3 | 2, frozenset({7 << 3 | 2}), frozenset({5 << 3, 8 << 3}))


@dataclass(slots=True)
class Layout:
    """The bytes of a metadata's form, and of its values that a filter looks at, as words; and verdicts of values."""

    form: list[int]          # words of the metadata
    fixed: list[int]         # bits of these that are equal in all messages of the layout
    values: list[int]        # bits of values that the filter looks at
    size: int                # of the metadata in bytes
    fields: dict[int, int]   # {tag: number, or size of bytes}, the last one of a repeated field
    verdicts: dict[tuple[int, ...], bool] = field(default_factory=dict)      # by the words of these values

    def has(self, columns: Sequence[Words]) -> NDArray[np.bool_]:
        """Return which messages (n,) have the layout.  columns: each word (n,) of their metadata."""
        is_unlike = np.zeros(len(columns[0]), bool)
        for column, form, fixed in zip(columns, self.form, self.fixed, strict=True):
            if fixed == (1 << 64) - 1:
                is_unlike |= column != np.uint64(form)
            elif fixed:
                is_unlike |= column & np.uint64(fixed) != np.uint64(form & fixed)
        return ~is_unlike

    def verdict(self, columns: Sequence[Words], is_here: NDArray[np.bool_],
                one: Callable[[int], bool]) -> NDArray[np.bool_] | bool | None:
        """Return which of some messages (n,) match; None if nearly all have other values.

        is_here: those of the layout; the answer about all others is undefined.  one: judges one of the n by its number.
        """
        first, others = int(is_here.argmax()), np.flatnonzero(~is_here)
        values = [column & np.uint64(mask) for column, mask in zip(columns, self.values, strict=True) if mask]
        for column in values:
            column[others] = column[first]
        varying = [column for column in values if (column != column[first]).any()]
        if not varying:
            return self._known(tuple(int(column[first]) for column in values), first, one)
        places = _places(varying)
        if places is None:
            return None
        firsts = np.where(is_here[places.firsts], places.firsts, first)
        distinct = zip(*[column[firsts].tolist() for column in values], strict=True)
        found = [self._known(own, number, one) for own, number in zip(distinct, firsts.tolist(), strict=True)]
        return places.spread(found)

    def verdict_of_all(self, unlike: Words, varied: list[int],
                       one: Callable[[int], bool]) -> NDArray[np.bool_] | bool | None:
        """Return which of messages that all have the layout match; None if nearly all have other values.

        unlike: (n, words) of their metadata, XOR the form.  varied: the bits of each word that are set in any of them.
        Values that differ in few bits are packed into one word, so that telling them apart costs little.
        """
        looked_at = [at for at, mask in enumerate(self.values) if mask]
        packed: list[Words] = []
        used = 64
        for at in looked_at:
            if not (bits := varied[at] & self.values[at]):
                continue
            low = (bits & -bits).bit_length() - 1
            width = bits.bit_length() - low
            column = (unlike[:, at] & np.uint64(bits)) >> np.uint64(low)
            if used + width > 64:
                packed.append(column)
                used = width
            else:
                packed[-1] |= column << np.uint64(used)
                used += width
        places = _places(packed) if packed else None
        if packed and places is None:
            return None
        firsts = np.zeros(1, np.intp) if places is None else places.firsts
        distinct = zip(*[((unlike[firsts, at] ^ np.uint64(self.form[at])) & np.uint64(self.values[at])).tolist()
                         for at in looked_at], strict=True) if looked_at else [()]
        found = [self._known(own, number, one) for own, number in zip(distinct, firsts.tolist(), strict=True)]
        return found[0] if places is None else places.spread(found)

    def _known(self, values: tuple[int, ...], number: int, one: Callable[[int], bool]) -> bool:
        """Return whether messages with these values match, of which `number` is one."""
        if values not in self.verdicts:
            if len(self.verdicts) >= _VERDICTS_MAX:
                self.verdicts.clear()
            self.verdicts[values] = one(number)
        return self.verdicts[values]


class Learner:
    """Learns layouts of one kind of metadata for a filter."""

    def __init__(self, expression: Expression, tags: Tags):
        self._names = {name.text.encode("utf-8", "surrogateescape") for name in expression.names if not name.is_key}
        self._looks_at_keys = any(name.is_key for name in expression.names)
        self._tags = tags

    def learn(self, head: bytes, start: int = 0) -> Layout | None:
        """Return the layout of metadata that resemble head[start:]; None if clients write another form.

        What is before `start` is equal in all messages of the layout.
        """
        fixed, values = bytearray(b"\xff" * len(head)), bytearray(len(head))
        fields: dict[int, int] = {}
        try:
            for tag, begin, end in each_field(head, start, len(head)):
                fields[tag] = decode(head, begin)[0] if tag & 7 == 0 else end - begin
                if tag in self._tags.numbers:
                    fixed[begin:end] = b"\x80" * (end - begin)
                elif tag == self._tags.properties:
                    self._learn_property(head, begin, end, fixed, values)
                elif tag == self._tags.key or tag in self._tags.skipped:
                    fixed[begin:end] = bytes(end - begin)
                    if tag == self._tags.key and self._looks_at_keys:
                        values[begin:end] = b"\xff" * (end - begin)
        except ValueError:
            return None
        return Layout(_words(head), _words(fixed), _words(values), len(head), fields)

    def _learn_property(self, head: bytes, start: int, stop: int, fixed: bytearray, values: bytearray) -> None:
        """Note where the value of a property is.  Raises ValueError."""
        inner = list(each_field(head, start, stop))
        if [tag for tag, _, _ in inner] != [_NAME, _VALUE]:
            raise ValueError("not as clients write it")
        (_, name, name_end), (_, value, value_end) = inner
        fixed[value:value_end] = bytes(value_end - value)
        if head[name:name_end] in self._names:
            values[value:value_end] = b"\xff" * (value_end - value)


class _Places(NamedTuple):
    """Entries told apart by their values: each has a place, and entries with equal values share theirs."""

    places: NDArray[np.intp]      # (n,) of the entries
    used: NDArray[np.intp]        # (m,) places that are used, ascending
    firsts: NDArray[np.intp]      # (m,) an entry of each of these

    def spread(self, found: list[bool]) -> NDArray[np.bool_]:
        """Return for each entry (n,) what was found for its place (m,)."""
        table = np.zeros(int(self.used[-1]) + 1, bool)
        table[self.used] = found
        return table[self.places]


def _places(values: list[Words]) -> _Places | None:
    """Return the places of entries, None if there are nearly as many as entries.

    values: the words (n,) of the entries' values.  A small number is a place.  Other values get their places by a hash.
    Where two distinct ones share one, they are sorted instead.
    """
    count, most = len(values[0]), int(values[0].max())
    is_small = len(values) == 1 and most >> _SLOT_BITS == 0
    if is_small:
        table, places = np.full(most + 1, -1), values[0].view(np.intp)
    else:
        hashed = values[0] * _FACTOR
        for column in values[1:]:
            hashed = (hashed ^ (hashed >> np.uint64(29)) ^ column) * _FACTOR
        table, places = np.full(1 << _SLOT_BITS, -1), (hashed >> np.uint64(64 - _SLOT_BITS)).view(np.intp)
    table[places] = np.arange(count)
    if is_small or all((column == column[table[places]]).all() for column in values):
        used = np.flatnonzero(table >= 0)
        firsts = table[used]
    else:
        _, firsts, places = np.unique(hashed, return_index=True, return_inverse=True)
        if any((column != column[firsts[places]]).any() for column in values):      # two have the same hash
            return None
        used = np.arange(len(firsts))
    return None if len(firsts) * _RARE > count + _FEW else _Places(places, used, firsts)


def _words(data: bytes | bytearray) -> list[int]:
    """Return bytes as little-endian words, with zeros behind the last one."""
    words: list[int] = np.frombuffer(bytes(data).ljust(-(-len(data) // 8) * 8, b"\0"), "<u8").tolist()
    return words
