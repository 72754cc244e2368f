"""Entries as a filter sees them: which of the entries of a ledger match, and which messages of a batch.

    judge(expression, data, begins, ends, flags) -> Judged

Entries of alike form are read as columns (proto/metadata.py), batches are unpacked in the same way (proto/batches.py).
Entries of other forms go through the protobuf library, one by one.  Both say the same of the same bytes.

A message is judged by its own key and properties, so each message of a batch by itself, and a chunk by those of its
message, which clients write into each chunk.  What cannot be read matches as a whole, for its consumer to look at: an
encrypted batch, one of more than MESSAGES_MAX messages or UNPACKED_MAX bytes, and one that is not as clients write it.
"""
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from geminga.proto import batch_parts, metadata
from geminga.proto import batches as packed
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import CannotDecompress, decompress
from geminga.proto.frames import CHECKSUM_END, MAGIC_BYTES, SIZE
from geminga.proto.metadata import ABSENT, PAD, Field
from geminga.proto.rows import words_at_each_byte
from geminga.storage.filters import evaluation
from geminga.storage.filters.alike import Alike
from geminga.storage.filters.language import Expression
from geminga.storage.filters.messages import is_match
from geminga.storage.filters.runs import MESSAGES_MAX, UNPACKED_MAX, Runs

TOGETHER_MIN = 8             # entries; fewer cost less one by one
_TOGETHER_SIZE = 4 << 20     # bytes of batches that are unpacked together; a larger batch is alone
_WORK_MAX = 16 << 20         # bytes of batches that are judged in one call, each of whose messages counts as 64 more
BATCHES_MIN = 32             # batches; of fewer, messages cost less one by one
_STEPS_MAX = 256             # fields of metadata that are read in step; a message with more is read one by one
_MAGIC_WORD = np.uint64(int.from_bytes(MAGIC_BYTES, "little"))
_OUTER = (*evaluation.OUTER, Field("compression", 8, maximum=api.SNAPPY),
          Field("uncompressed_size", 9, maximum=(1 << 32) - 1),
          Field("count", 11, maximum=(1 << 31) - 1, default=ABSENT), Field("encryption", 13, is_bytes=True))


@dataclass(slots=True)
class Judged:
    """Which of the first entries match, as many as are judged in one call."""

    matches: NDArray[np.bool_]                               # (n,): at least one message of the entry does
    # {number of the entry: bits} of batches of which some messages match and some do not; 1 = matches
    parts: dict[int, int] = field(default_factory=dict)

    def note(self, numbers: NDArray[np.intp], matches: NDArray[np.bool_]) -> None:
        """Note which messages of some entries match: numbers (m,) of the entries, matches (m, messages)."""
        has_any = matches.any(axis=1)
        self.matches[numbers] = has_any
        for at in np.flatnonzero(has_any & ~matches.all(axis=1)).tolist():
            self.parts[int(numbers[at])] = _bits(matches[at])

    def note_part(self, number: int, bits: int) -> None:
        """Note a batch of which not all messages match."""
        self.matches[number] = bits != 0
        if bits:
            self.parts[number] = bits


def judge(expression: Expression, data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64],
          alike: Alike) -> Judged:
    """Return which of the entries data[begin:end] match, at least of the first one.

    begins, ends: (n,).  data: with metadata.PAD bytes behind the last entry.  alike: of the same expression.
    """
    judged = Judged(np.ones(len(begins), bool))
    if len(begins) < TOGETHER_MIN:
        _one_by_one(expression, data, begins, ends, range(len(begins)), judged)
        return judged
    words = words_at_each_byte(data)
    bodies = begins + (CHECKSUM_END + 4)
    sizes = (words[begins + CHECKSUM_END] & np.uint64(0xFFFFFFFF)).astype(np.uint32).byteswap().astype(np.int64)
    is_left = (bodies + sizes <= ends) & (words[begins] & np.uint64(0xFFFF) == _MAGIC_WORD)
    alike.judge(data, words, bodies, sizes, ends, is_left, note=judged.note,
                one=lambda number: bits_of(expression, data[begins[number]:ends[number]].tobytes())[0] != 0)
    is_odd = (bodies + sizes > ends) | (words[begins] & np.uint64(0xFFFF) != _MAGIC_WORD)
    left = np.flatnonzero(is_left)
    if len(left) >= TOGETHER_MIN:
        is_odd[left] = _judge_columns(expression, data, left, bodies, bodies + sizes, ends, judged,
                                       alike.runs)
    else:
        is_odd |= is_left
    if is_odd.any():
        _one_by_one(expression, data, begins, ends, np.flatnonzero(is_odd[:len(judged.matches)]).tolist(), judged)
    if len(judged.matches) < len(begins):
        judged.parts = {number: bits for number, bits in judged.parts.items() if number < len(judged.matches)}
    return judged


def _judge_columns(expression: Expression, data: NDArray[np.uint8], left: NDArray[np.intp], bodies: NDArray[np.int64],
                   payloads: NDArray[np.int64], ends: NDArray[np.int64], judged: Judged,
                   runs: Runs) -> NDArray[np.bool_]:
    """Judge the entries that are left (m,), by columns; return which of them the protobuf library has to read."""
    outer = metadata.read(data, bodies[left], payloads[left], _OUTER, steps_max=_STEPS_MAX)
    matches, is_odd = evaluation.matching(expression, data, outer), outer.odd
    if "count" in outer.numbers:
        is_batch = ~is_odd & (outer.numbers["count"] != ABSENT)
        if "encryption" in outer.spans:
            is_closed = is_batch & (outer.spans["encryption"][0] >= 0)
            matches |= is_closed
            is_batch &= ~is_closed
        if is_batch.any():
            own = Judged(matches)
            is_odd |= _judge_batches(expression, data, is_batch, payloads[left], ends[left], outer, own, runs)
            judged.parts |= {int(left[number]): bits for number, bits in own.parts.items()}
            if len(own.matches) < len(left):      # the others are too much work for this call
                judged.matches = judged.matches[:left[len(own.matches)]]
                matches, left = own.matches, left[:len(own.matches)]
    judged.matches[left] = matches[:len(left)]
    return is_odd


def _judge_batches(expression: Expression, data: NDArray[np.uint8], is_batch: NDArray[np.bool_],
                   payloads: NDArray[np.int64], ends: NDArray[np.int64], outer: metadata.Columns,
                   judged: Judged, runs: Runs) -> NDArray[np.bool_]:
    """Judge batches; return which entries (n,) the protobuf library has to read."""
    is_odd, raw = np.zeros(len(ends), bool), memoryview(data)
    counts = np.where(is_batch, outer.numbers["count"], 0).astype(np.int64)
    unpacked = np.where(outer.number("compression") != 0, outer.number("uncompressed_size"),
                        (ends - payloads).astype(np.uint64)).astype(np.int64)
    judged.matches |= is_batch
    is_batch = is_batch & (counts <= MESSAGES_MAX) & (unpacked <= UNPACKED_MAX)
    work = np.cumsum(np.where(is_batch, unpacked + 64 * counts, 0))
    judged.matches = judged.matches[:max(1, int(np.searchsorted(work, _WORK_MAX, side="right")))]
    places = np.flatnonzero(is_batch[:len(judged.matches)])
    if len(places) < BATCHES_MIN:
        is_odd[places] = True
        return is_odd
    bodies: list[bytes | memoryview] = []
    numbers: list[int] = []
    size = 0
    for number, codec, whole in zip(places.tolist(), outer.number("compression")[places].tolist(),
                                    unpacked[places].tolist(), strict=True):
        body: bytes | memoryview = raw[payloads[number]:ends[number]]
        if codec:
            try:
                body = decompress(codec, body, whole)
            except CannotDecompress:
                continue      # it matches
        if size and size + len(body) > _TOGETHER_SIZE:
            is_odd[_judge_bodies(expression, bodies, numbers, outer, judged, runs)] = True
            bodies, numbers, size = [], [], 0
        bodies.append(body)
        numbers.append(number)
        size += len(body)
    if numbers:
        is_odd[_judge_bodies(expression, bodies, numbers, outer, judged, runs)] = True
    return is_odd


def _judge_bodies(expression: Expression, bodies: list[bytes | memoryview], numbers: list[int],
                  outer: metadata.Columns, judged: Judged, runs: Runs) -> list[int]:
    """Judge batches by their decompressed payloads; return the numbers of those that are not as clients write them."""
    data = np.frombuffer(b"".join([*bodies, bytes(PAD)]), np.uint8)
    stops = np.cumsum([len(body) for body in bodies])
    begins, places = stops - [len(body) for body in bodies], np.array(numbers)
    counts = outer.numbers["count"][places].astype(np.int64)
    is_left = np.ones(len(places), bool)
    is_fresh = outer.number("compression")[places] != 0      # runs were not looked for before
    for count in np.unique(counts[is_fresh]).tolist():
        some = np.flatnonzero(is_fresh & (counts == count))
        is_done, matches = runs.judge(data, begins[some], stops[some], count)
        judged.note(places[some[is_done]], matches[is_done])
        is_left[some[is_done]] = False
    if not is_left.any():
        return []
    places, counts = places[is_left], counts[is_left]
    found = packed.unpack(data, begins[is_left], stops[is_left], counts)
    single = metadata.read(data, found.begins, found.ends, evaluation.SINGLE, steps_max=_STEPS_MAX)
    is_match = evaluation.matching(expression, data, single)
    odd = found.odd.copy()
    odd[found.batches[single.odd]] = True
    firsts = np.searchsorted(found.batches, np.arange(len(places) + 1))
    before = np.concatenate(([0], np.cumsum(is_match)))
    matching = before[firsts[1:]] - before[firsts[:-1]]
    for at in np.flatnonzero(~odd & (matching < counts)).tolist():
        judged.note_part(int(places[at]), _bits(is_match[firsts[at]:firsts[at + 1]]))
    odd_places: list[int] = places[odd].tolist()
    return odd_places


def _bits(matches: NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(matches, bitorder="little").tobytes(), "little")


# -- one by one

def _one_by_one(expression: Expression, data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64],
                numbers: "range | list[int]", judged: Judged) -> None:
    """Judge entries by their numbers, ascending.  Those that are too much work for one call are left out."""
    work = 0
    for number in numbers:
        entry = data[begins[number]:ends[number]].tobytes()
        outer = _metadata(entry)
        if outer is not None and outer.HasField("num_messages_in_batch"):
            work += min(UNPACKED_MAX, outer.uncompressed_size) + 64 * min(MESSAGES_MAX, outer.num_messages_in_batch)
            if number and work > _WORK_MAX:
                judged.matches = judged.matches[:number]
                return
        bits, count = _bits_of(expression, entry, outer)
        judged.matches[number] = True
        if bits.bit_count() < count:
            judged.note_part(number, bits)


def bits_of(expression: Expression, entry: bytes) -> tuple[int, int]:
    """Return (bits of an entry's messages, 1 = matches; number of messages), of which a message sent alone is one."""
    return _bits_of(expression, entry, _metadata(entry))


def _metadata(entry: bytes) -> api.MessageMetadata | None:
    """Return the metadata of an entry, None if they cannot be read."""
    at = CHECKSUM_END if entry[:len(MAGIC_BYTES)] == MAGIC_BYTES else 0
    try:
        outer = api.MessageMetadata.FromString(entry[at + 4:_payload(entry)])
    except (DecodeError, struct.error):
        return None
    return outer if outer.IsInitialized() else None


def _payload(entry: bytes) -> int:
    """Return where the payload of an entry begins.  Raises struct.error."""
    at = CHECKSUM_END if entry[:len(MAGIC_BYTES)] == MAGIC_BYTES else 0
    return at + 4 + int(SIZE.unpack_from(entry, at)[0])


def _bits_of(expression: Expression, entry: bytes, outer: api.MessageMetadata | None) -> tuple[int, int]:
    if outer is None:
        return 1, 1
    if not outer.HasField("num_messages_in_batch"):
        return int(is_match(expression, outer)), 1
    count = max(1, outer.num_messages_in_batch)
    if outer.encryption_keys or count > MESSAGES_MAX:
        return 1, 1
    body: bytes | memoryview = entry[_payload(entry):]
    unpacked = outer.uncompressed_size if outer.compression else len(body)
    if unpacked > UNPACKED_MAX:
        return 1, 1
    try:
        if outer.compression:
            body = decompress(outer.compression, body, unpacked)
        own = (is_match(expression, api.SingleMessageMetadata.FromString(some)) for some in _messages(body, count))
        return sum(1 << number for number, found in enumerate(own) if found), count
    except (CannotDecompress, batch_parts.Unreadable, DecodeError):
        return 1, 1


def _messages(body: bytes | memoryview, count: int) -> Iterator[bytes]:
    """Return an iterator over the metadata of each message of a batch.  Raises batch_parts.Unreadable."""
    for start, _ in pairwise(batch_parts.boundaries(body, count)):
        yield bytes(body[start + 4:start + 4 + SIZE.unpack_from(body, start)[0]])
