"""Metadata of many messages -> columns: protobuf messages anywhere in a buffer, read in step.

In each step the lowest tag among the messages' next fields is taken, and all messages whose next field has that tag
read it, as arrays.  Clients write fields in the order of their numbers.  So messages with the same fields stay
together, and a message that lacks a field waits for the others.

One word of eight bytes is loaded for each field.  A message is `odd` when a varint or tag does not fit into the word,
or when its bytes are not as clients write them; odd messages are the protobuf library's to read.  Both ways give the
same values for the same bytes, and a test holds them to it.
"""
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from geminga.proto.rows import words_at_each_byte
from geminga.proto.varints import decode, join_sevens

PAD = 16                                 # bytes that have to follow the last message: words are loaded whole
_DONE = np.uint64(1 << 32)               # in place of the next tag
_NOWHERE = 1 << 62                       # behind the end of every message
_TAG_MAX = np.uint64(127)                # of one byte
_STOPS = np.uint64(0x8080808080808080)
_ONE, _BYTE, _TWO_BYTES = map(np.uint64, (1, 0xFF, 0xFFFF))
ABSENT = np.uint64((1 << 64) - 1)        # default of a number that may also be 0: longer than any number read here
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5      # wire types
_Chosen: TypeAlias = slice | NDArray[np.intp]          # numbers of some messages; the slice is all of them


class Field(NamedTuple):
    """A protobuf field to read: a number, or bytes whose place is found."""

    name: str
    number: int
    is_bytes: bool = False
    is_repeated: bool = False            # bytes of which each occurrence is kept
    maximum: int = 1 << 63               # a message with a larger number is odd
    default: int | np.uint64 = 0

    @property
    def tag(self) -> int:
        """The tag's one or two bytes as a little-endian number."""
        tag = self.number << 3 | (_LENGTH if self.is_bytes else _VARINT)
        return tag if tag < 128 else tag & 127 | 128 | tag >> 7 << 8


@dataclass(slots=True)
class Columns:
    """Fields of `count` protobuf messages.  A field that no message has is in none of the three dicts."""

    odd: NDArray[np.bool_]                                 # (count,); columns are undefined for an odd message
    numbers: dict[str, NDArray[np.uint64]] = field(default_factory=dict)                               # (count,)
    # Begins (count,), -1 for absent, and ends (count,).
    spans: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)
    # (message, begin, end), each (occurrences,), in the order of messages and of bytes.
    repeated: dict[str, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)

    def number(self, name: str, default: int | np.uint64 = 0) -> NDArray[np.uint64]:
        """Return the values (count,) of a numeric field; `default` for messages without the field."""
        numbers = self.numbers.get(name)
        return np.full(len(self.odd), default, np.uint64) if numbers is None else numbers

    def has(self, name: str) -> NDArray[np.bool_]:
        """Return a mask (count,) of the messages that have this field of bytes."""
        has_it = np.zeros(len(self.odd), bool)
        if name in self.repeated:
            has_it[self.repeated[name][0]] = True
        elif name in self.spans:
            has_it = self.spans[name][0] >= 0
        return has_it

    def store(self, known: Field, chosen: _Chosen, values: NDArray[np.uint64], begin: NDArray[np.int64],
              end: NDArray[np.int64]) -> None:
        """Store a field that is not repeated for the chosen messages: its values, or where its bytes begin and end."""
        count = len(self.odd)
        if known.is_bytes:
            if known.name not in self.spans:
                self.spans[known.name] = np.full(count, -1), np.zeros(count, np.int64)
            begins, ends = self.spans[known.name]
            begins[chosen], ends[chosen] = begin, end
            return
        if known.name not in self.numbers:
            self.numbers[known.name] = np.full(count, known.default, np.uint64)
        self.numbers[known.name][chosen] = values
        if values.max() > known.maximum:
            self.odd[chosen] |= values > known.maximum


_Pieces: TypeAlias = list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]


def read(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64],
         fields: tuple[Field, ...], *, steps_max: int | None = None) -> Columns:
    """Read `fields` of the messages data[begin:end]; other fields are skipped.

    begins, ends: (count,).  `data` has PAD bytes behind the last message.  steps_max: messages that are not read after
    so many steps are odd, because a message with very many fields takes a step for each.
    """
    wanted = _by_tag(fields)
    reader, columns = _Reader(data, begins, ends), Columns(np.zeros(len(begins), bool))
    pieces: dict[str, _Pieces] = {}
    reader.advance(columns.odd, slice(None))
    steps = 0
    while (lowest := reader.lowest_tag()) is not None:
        if steps == steps_max:
            columns.odd |= reader.tags != _DONE
            break
        steps += 1
        tag, chosen = lowest
        size, wire = 1 if tag < 128 else 2, tag & 7
        # A tag of three bytes or more, a group, the number 0, or padding.
        if tag >> 15 or wire not in (_VARINT, _FIXED64, _LENGTH, _FIXED32) or tag < 8 or 128 <= tag < 256:
            columns.odd[chosen] = True
            reader.tags[chosen] = _DONE
            continue
        if wire in (_FIXED64, _FIXED32):
            reader.places[chosen] += size + (8 if wire == _FIXED64 else 4)
            reader.advance(columns.odd, chosen)
            continue
        values, lengths, too_long = read_varints(reader.words[chosen] >> np.uint64(8 * size), 8 - size)
        begin = reader.places[chosen] + (size + lengths)
        end = begin + values.astype(np.int64) if wire == _LENGTH else begin
        if too_long is not None:
            columns.odd[chosen] |= too_long
            end = np.where(too_long, _NOWHERE, end)
        known = wanted.get(tag)
        if known is not None and known.is_repeated:
            pieces.setdefault(known.name, []).append((np.arange(len(begins))[chosen], begin, end))
        elif known is not None:
            columns.store(known, chosen, values, begin, end)
        reader.places[chosen] = end
        reader.advance(columns.odd, chosen)
    columns.repeated = {name: _in_order(found, columns.odd) for name, found in pieces.items()}
    return columns


@cache
def _by_tag(fields: tuple[Field, ...]) -> dict[int, Field]:
    return {one.tag: one for one in fields}


class _Reader:
    """Walks through many protobuf messages at once; knows each message's next field, its first word and its tag."""

    def __init__(self, data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]):
        self._every_word, self._ends = words_at_each_byte(data), ends
        self.places = begins.astype(np.int64)
        self.words = np.empty(len(begins), np.uint64)
        self.tags = np.full(len(begins), _DONE)

    def lowest_tag(self) -> tuple[int, _Chosen] | None:
        """Return (the lowest tag, the messages that have it next); None when all are done."""
        tag = self.tags.min(initial=_DONE)
        if tag == _DONE:
            return None
        has_it = self.tags == tag
        return int(tag), slice(None) if has_it.all() else np.flatnonzero(has_it)

    def advance(self, odd: NDArray[np.bool_], chosen: _Chosen) -> None:
        """Load the next field of the chosen messages: its first word and its tag.

        Messages that overran their end are marked in `odd`.
        """
        here, until = self.places[chosen], self._ends[chosen]
        is_done = here >= until
        has_done = is_done.any()
        if has_done:
            odd[chosen] |= here > until
            if is_done.all():
                self.tags[chosen] = _DONE
                return
            here = np.where(is_done, 0, here)
        self.words[chosen] = loaded = self._every_word[here]
        tag = loaded & _BYTE
        if tag.max(initial=0) > _TAG_MAX:
            tag = np.where(tag > _TAG_MAX, loaded & _TWO_BYTES, tag)
        if has_done:
            tag[is_done] = _DONE
        self.tags[chosen] = tag


def _in_order(found: _Pieces, odd: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Sort occurrences of a repeated field by message, and leave out those of malformed messages.

    Return (message, begin, end), each (occurrences,).
    """
    rows, begin, end = (np.concatenate(column) for column in zip(*found, strict=True))
    if len(found) > 1:
        order = np.argsort(rows, kind="stable")
        rows, begin, end = rows[order], begin[order], end[order]
    if odd.any():
        kept = ~odd[rows]
        rows, begin, end = rows[kept], begin[kept], end[kept]
    return rows, begin, end


def read_varints(words: NDArray[np.uint64], available: int
                 ) -> tuple[NDArray[np.uint64], NDArray[np.int64] | int, NDArray[np.bool_] | None]:
    """Decode the varint at the start of each word (n,): return (values (n,), lengths (n,), too_long (n,)).

    Only the first `available` bytes of a word count; the rest is 0.  too_long marks varints that do not end there;
    None: there are none.
    """
    stops = ~words & _STOPS
    if (stops & np.uint64(0x80)).all():
        return words & np.uint64(0x7F), 1, None
    below = (stops & (~stops + _ONE)) - _ONE               # bits below the top bit of each varint's last byte
    lengths = (np.bitwise_count(below) + np.uint8(1)) >> np.uint8(3)
    longest = int(lengths.max())
    values = join_sevens(words & below & ~_STOPS, longest)
    return values, lengths.astype(np.int64), lengths > available if longest > available else None


# -- one message

def fields_of(data: bytes, at: int, end: int) -> dict[int, tuple[int, int]]:
    """Return where the value of each field is: {tag: (first byte, byte behind it)}; the last one of a repeated field.

    The key is the tag, not the number: a field with another wire type than its definition's is an unknown field.
    Raises ValueError for a repeated varint, a group, and a field that ends behind `end`.
    """
    found: dict[int, tuple[int, int]] = {}
    for tag, start, stop in each_field(data, at, end):
        if tag in found and tag & 7 == 0:
            raise ValueError("repeated")
        found[tag] = start, stop
    return found


def each_field(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (tag, first byte of the value, byte behind it) of each field.  Raises ValueError as `fields_of` does."""
    while at < end:
        tag, start = decode(data, at)
        if tag & 7 == 0:
            _, at = decode(data, start)
        elif tag & 7 == 2:
            size, start = decode(data, start)
            at = start + size
        elif tag & 7 == 1:
            at = start + 8
        elif tag & 7 == 5:
            at = start + 4
        else:
            raise ValueError("groups are not used")
        yield tag, start, at
    if at != end:
        raise ValueError("a field ends behind its message")
