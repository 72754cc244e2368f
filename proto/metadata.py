"""Metadata of many messages -> columns: protobuf messages that lie anywhere in a buffer, read in step.

All messages whose next field is the one with the lowest tag read that field, as arrays; then those whose next field is the lowest
now, and so on.  Fields are written in the order of their numbers, so messages that have the same fields stay together, and one that
lacks some waits for the others.  A word of eight bytes is loaded for each field: what does not fit in (longer varints, tags of three
bytes), and what no client writes, makes a message `odd`, and it is the protobuf library that reads it.  Both give the same
values for the same bytes, and a test holds them to it.
"""
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PAD = 16                                 # bytes behind the last message that the buffer must have: words are loaded whole
_DONE = np.uint64(1 << 32)               # in place of a tag
_STOPS = np.uint64(0x8080808080808080)
_RANKS = [tuple(map(np.uint64, rank)) for rank in (
    (1, 0x007F007F007F007F, 0x7F007F007F007F00), (2, 0x00003FFF00003FFF, 0x3FFF00003FFF0000), (4, 0x0FFFFFFF, 0x0FFFFFFF00000000))]
_ONE, _BYTE, _TWO_BYTES = map(np.uint64, (1, 0xFF, 0xFFFF))
ABSENT = np.uint64((1 << 64) - 1)        # of a number that may also be 0: longer than what is read here


class Field(NamedTuple):
    """What becomes of a field: a number, or where its bytes are."""

    name: str
    number: int
    is_bytes: bool = False
    is_repeated: bool = False            # of bytes: each is kept
    maximum: int = 1 << 63               # of numbers; the library reads larger ones
    default: int = 0

    @property
    def tag(self) -> int:
        """As its one or two bytes are read."""
        tag = self.number << 3 | (2 if self.is_bytes else 0)
        return tag if tag < 128 else tag & 127 | 128 | tag >> 7 << 8


@dataclass(slots=True)
class Columns:
    """What is not in any of the messages is not there; other columns are as long as there are messages."""

    odd: NDArray[np.bool_]                                                                  # of which all columns say nothing
    numbers: dict[str, NDArray[np.uint64]] = field(default_factory=dict)
    spans: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)      # (begin, end); begin -1: absent
    repeated: dict[str, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)
    # (message, begin, end) of each, by message, in their order

    def number(self, name: str, default: int = 0) -> NDArray[np.uint64]:
        found = self.numbers.get(name)
        return np.full(len(self.odd), default, np.uint64) if found is None else found

    def has(self, name: str) -> NDArray[np.bool_]:
        """Which messages have that field of bytes."""
        found = np.zeros(len(self.odd), bool)
        if name in self.repeated:
            found[self.repeated[name][0]] = True
        elif name in self.spans:
            found = self.spans[name][0] >= 0
        return found


def words_of(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """As if a word began at every byte."""
    return np.ndarray(len(data) - 7, "<u8", data, 0, (1,))


def read(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64], fields: tuple[Field, ...]) -> Columns:
    """The fields of the messages that lie at data[begin:end]; others are passed over.  data goes on for PAD bytes behind them."""
    wanted = {one.tag: one for one in fields}
    words, count = words_of(data), len(begins)
    columns, pieces = Columns(np.zeros(count, bool)), {}
    at, word, tags = begins.astype(np.int64), np.empty(count, np.uint64), np.full(count, _DONE)
    _advance(words, at, ends, word, tags, columns.odd, slice(None))
    while count:
        tag = tags.min()
        if tag == _DONE:
            break
        some: slice | NDArray[np.intp] = slice(None)
        chosen = tags == tag
        if not chosen.all():
            some = np.flatnonzero(chosen)
        tag = int(tag)
        size = 1 if tag < 128 else 2
        wire = tag & 7
        if tag >> 15 or wire not in (0, 1, 2, 5) or tag < 8 or 128 <= tag < 256:      # longer, groups, no field's, padded
            columns.odd[some], tags[some] = True, _DONE
            continue
        if wire in (1, 5):
            at[some] += size + (8 if wire == 1 else 4)
        else:
            values, lengths, too_long = varints(word[some] >> np.uint64(8 * size), 8 - size)
            begin = at[some] + (size + lengths)
            end = begin + values.astype(np.int64) if wire == 2 else begin
            if too_long is not None:
                columns.odd[some] |= too_long
            known = wanted.get(tag)
            if known is None:
                pass
            elif known.is_repeated:
                pieces.setdefault(known.name, []).append((np.arange(count)[some], begin, end))
            elif known.is_bytes:
                if known.name not in columns.spans:
                    columns.spans[known.name] = np.full(count, -1), np.zeros(count, np.int64)
                columns.spans[known.name][0][some], columns.spans[known.name][1][some] = begin, end
            else:
                if known.name not in columns.numbers:
                    columns.numbers[known.name] = np.full(count, known.default, np.uint64)
                columns.numbers[known.name][some] = values
                if values.max() > known.maximum:
                    columns.odd[some] |= values > known.maximum
            at[some] = end
        _advance(words, at, ends, word, tags, columns.odd, some)
    for name, found in pieces.items():
        rows, begin, end = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if len(found) > 1:
            order = np.argsort(rows, kind="stable")
            rows, begin, end = rows[order], begin[order], end[order]
        if columns.odd.any():
            kept = ~columns.odd[rows]
            rows, begin, end = rows[kept], begin[kept], end[kept]
        columns.repeated[name] = rows, begin, end
    return columns


def _advance(words, at, ends, word, tags, odd, some: slice | NDArray[np.intp]) -> None:
    """These messages have their next field before them, or are done, or turned out odd."""
    here, until = at[some], ends[some]
    is_odd = odd[some] | (here > until)
    is_done = is_odd | (here == until)
    if is_done.any():
        odd[some] |= is_odd
        if is_done.all():
            tags[some] = _DONE
            return
        here = np.where(is_done, 0, here)
    word[some] = loaded = words[here]
    tag = loaded & _BYTE
    is_long = tag > np.uint64(127)
    if is_long.any():
        tag = np.where(is_long, loaded & _TWO_BYTES, tag)
    if is_done.any():
        tag[is_done] = _DONE
    tags[some] = tag


def varints(words: NDArray[np.uint64], available: int) -> tuple[NDArray[np.uint64], NDArray[np.int64] | int, NDArray[np.bool_] | None]:
    """(value, length, None or which are longer) of the varints that the words begin with; behind the bytes that are available they are 0.

    Neighbours close ranks as in varints.read_words, as far as the longest has bytes.
    """
    stops = ~words & _STOPS
    if (stops & np.uint64(0x80)).all():
        return words & np.uint64(0x7F), 1, None
    below = (stops & (~stops + _ONE)) - _ONE               # the bits below the first byte that has no other behind it
    lengths = (np.bitwise_count(below) + np.uint8(1)) >> np.uint8(3)
    values = words & below & ~_STOPS
    longest = int(lengths.max())
    for shift, low, high in _RANKS[:(longest - 1).bit_length()]:
        values = (values & low) | (values & high) >> shift
    return values, lengths.astype(np.int64), lengths > available if longest > available else None
