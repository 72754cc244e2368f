"""Filters on arrays: many messages, given by where their key and properties lie in a buffer -> which of them match.

The distinct values of each name are found first, and each condition is evaluated once for each of them.  What is left
for each message is to look its values up, and minima and maxima of numbers.  `language.Expression.matches` says the
same of one message, and a test holds both to it.
"""
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from geminga.proto import metadata
from geminga.proto.metadata import Columns, Field
from geminga.proto.rows import words_at_each_byte
from geminga.storage.filters.language import (
    TRUE,
    VALUE_SIZE_MAX,
    All,
    Expression,
    Name,
    Node,
    Not,
    Term,
    truth_of,
)

PROPERTIES, KEY = "properties", "key"
OUTER = Field(PROPERTIES, 4, is_bytes=True, is_repeated=True), Field(KEY, 6, is_bytes=True)      # of MessageMetadata
SINGLE = Field(PROPERTIES, 1, is_bytes=True, is_repeated=True), Field(KEY, 2, is_bytes=True)     # of a batch's messages
_PAIR = Field("name", 1, is_bytes=True), Field("value", 2, is_bytes=True)      # KeyValue
_WORDS_MAX = 8               # words of a value that is found distinct as an array; longer ones are looked up as bytes
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)      # odd, so that multiplying loses nothing

_Places = NDArray[np.int64]
_Truth = NDArray[np.int8]


class _Values(NamedTuple):
    """The values of one name: (messages,) which of the distinct ones each has, 0 where it has none."""

    codes: NDArray[np.int64]
    distinct: list[str | None]      # from code 1 on; None for a value that is too long


def matching(expression: Expression, data: NDArray[np.uint8], columns: Columns) -> NDArray[np.bool_]:
    """Return which messages (n,) match.  Undefined for odd ones, to which this adds those with odd properties.

    data: with metadata.PAD bytes behind the last message.  columns: the fields OUTER or SINGLE of the messages.
    """
    words = words_at_each_byte(data)
    found = _places(expression.names, data, words, columns)
    values = {name: _coded(data, words, *found[name]) for name in expression.names}
    is_match: NDArray[np.bool_] = _evaluate(expression.root, values, len(columns.odd)) == TRUE
    return is_match


def _places(names: Sequence[Name], data: NDArray[np.uint8], words: NDArray[np.uint64],
            columns: Columns) -> dict[Name, tuple[_Places, _Places]]:
    """Return where each name's value begins, -1 where a message has none, and ends: (n,) each."""
    count = len(columns.odd)
    nowhere = np.full(count, -1), np.zeros(count, np.int64)
    keys = columns.spans.get(KEY, nowhere)
    if columns.odd.any():
        keys = np.where(columns.odd, -1, keys[0]), np.where(columns.odd, 0, keys[1])
    places = {name: keys if name.is_key else nowhere for name in names}
    if PROPERTIES not in columns.repeated or all(name.is_key for name in names):
        return places
    messages, begins, ends = columns.repeated[PROPERTIES]
    pairs = metadata.read(data, begins, ends, _PAIR)
    pairs.odd |= ~pairs.has("name") | ~pairs.has("value")
    if pairs.odd.any():
        columns.odd[messages[pairs.odd]] = True
    if "name" not in pairs.spans or "value" not in pairs.spans:
        return places
    (name_begins, name_ends), (value_begins, value_ends) = pairs.spans["name"], pairs.spans["value"]
    sizes = np.where(pairs.odd, -1, name_ends - name_begins)
    for name in names:
        if name.is_key:
            continue
        wanted = name.text.encode("utf-8", "surrogateescape")
        at = np.flatnonzero(sizes == len(wanted))
        for start in range(0, len(wanted), 8):
            piece = wanted[start:start + 8]
            at = at[words[name_begins[at] + start] & _MASKS[len(piece)] == np.uint64(int.from_bytes(piece, "little"))]
        if len(at):
            first, end = np.full(count, -1), np.zeros(count, np.int64)
            first[messages[at]], end[messages[at]] = value_begins[at], value_ends[at]      # the last one counts
            places[name] = first, end
    return places


def _coded(data: NDArray[np.uint8], words: NDArray[np.uint64], begins: _Places, ends: _Places) -> _Values:
    """Return the distinct values among data[begin:end], begins and ends (n,)."""
    has_it = begins >= 0
    at = slice(None) if has_it.all() else np.flatnonzero(has_it)
    first, sizes = begins[at], ends[at] - begins[at]
    codes = np.zeros(len(begins), np.int64)
    if not len(first):
        return _Values(codes, [])
    longest = int(sizes.max())
    if longest <= 8 * _WORDS_MAX and (own := _distinct(words, first, sizes, longest)) is not None:
        inverse, representatives = own
        codes[at] = inverse + 1
        return _Values(codes, [_text(data, int(first[one]), int(sizes[one])) for one in representatives.tolist()])
    table: dict[bytes | None, int] = {}
    raw = memoryview(data)
    codes[at] = [table.setdefault(bytes(raw[begin:begin + size]) if size <= VALUE_SIZE_MAX else None, len(table) + 1)
                 for begin, size in zip(first.tolist(), sizes.tolist(), strict=True)]
    return _Values(codes, [None if value is None else value.decode("utf-8", "surrogateescape") for value in table])


def _distinct(words: NDArray[np.uint64], begins: _Places, sizes: _Places,
              longest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return (for each value the number of its distinct one (n,), a value that is equal to each distinct one (m,)).

    Values count as equal if their hashes are, which is verified by comparing them.  None if two that differ have the
    same hash.
    """
    known = [sizes.astype(np.uint64)]
    for start in range(0, longest, 8):
        at = np.minimum(begins + start, len(words) - 1) if start else begins
        known.append(words[at] & _MASKS[np.clip(sizes - start, 0, 8)])
    if all((column == column[0]).all() for column in known):      # often: one value for all
        return np.zeros(len(begins), np.int64), np.zeros(1, np.int64)
    hashed = known[0]
    for column in known[1:]:
        hashed = (hashed ^ column) * _FACTOR
        hashed ^= hashed >> np.uint64(29)
    _, representatives, inverse = np.unique(hashed, return_index=True, return_inverse=True)
    inverse = inverse.astype(np.int64)
    if any((column != column[representatives[inverse]]).any() for column in known):
        return None
    return inverse, representatives


def _text(data: NDArray[np.uint8], begin: int, size: int) -> str:
    return data[begin:begin + size].tobytes().decode("utf-8", "surrogateescape")


def _evaluate(node: Node, values: Mapping[Name, _Values], count: int) -> _Truth:
    if isinstance(node, Term):
        own = values[node.name]
        table = [truth_of(node, {}), *(truth_of(node, {node.name: value}) for value in own.distinct)]
        if len(table) == 2 and own.codes.all():
            return np.full(count, table[1], np.int8)
        truths: _Truth = np.array(table, np.int8)[own.codes]
        return truths
    if isinstance(node, Not):
        inner: _Truth = TRUE - _evaluate(node.part, values, count)
        return inner
    least_or_most = np.minimum if isinstance(node, All) else np.maximum
    whole = _evaluate(node.parts[0], values, count)
    for part in node.parts[1:]:
        whole = least_or_most(whole, _evaluate(part, values, count))
    return whole
