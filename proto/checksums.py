"""CRC32-C of many entries at once: of one size as they come over the wire, of any sizes as they lie in a ledger.

A call of crc32c costs about 100 ns whatever it covers.  A CRC is linear, so one call over all bodies laid end to end can
be compared with what the claimed checksums combine to: combined(a, b) = shift(a, len(b)) ^ b, where `shift` (what so many
zero bytes do to a checksum) is a 32x32 matrix over GF(2), here four tables of 256 words.  Pairs are combined in halves,
so n checksums take n table look-ups as arrays.  A single wrong entry always changes the outcome, since
every shift is invertible; only then is each one looked at by itself.
"""
from functools import cache, lru_cache

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.frames import CHECKSUM_END, MAGIC

COMBINE_MIN = 1024           # entries; below that the look-ups, a microsecond each however short, cost more than the calls
_GROUPS_BITS = 5             # log2 of how many groups are left when combining stops: a call for each is cheaper than going on
LARGE_MIN = 1024             # bytes; copying bodies this large side by side costs more than it saves
_POLYNOMIAL = 0x82F63B78     # CRC32-C, reflected
_ONES = 0xFFFFFFFF           # a checksum begins with this, and is xored with it in the end
_DIGIT_BITS, _DIGITS = 7, 3  # a shift by any number of bytes is one for each of the number's digits
LAID_OUT_MAX = 1 << _DIGIT_BITS * _DIGITS      # bytes
BEHIND = 8                   # bytes that are loaded where an entry begins
_CELL_DIGITS = 2             # of lengths of
_CELL_BITS = 13              # entries of so many bytes are looked at together, and those that are longer by themselves
_MAGIC, _HEAD = np.uint64(int.from_bytes(MAGIC.to_bytes(2, "big"), "little")), np.uint64((1 << 8 * CHECKSUM_END) - 1)


def wrong_ones(bodies: NDArray[np.uint8], claimed: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Which rows of bodies (n, size) do not have the checksum that is claimed (n,); mostly none."""
    count, size = bodies.shape
    if size == 0:
        return np.flatnonzero(claimed)
    if size >= LARGE_MIN:
        return np.array([row for row, body in enumerate(bodies) if crc32c(body) != claimed[row]], np.intp)
    bodies = np.ascontiguousarray(bodies)
    if count < COMBINE_MIN:
        return _wrong_one_by_one(bodies, claimed)
    wrong = [first + _wrong_one_by_one(bodies[first:end], claimed[first:end])
             for first, end, expected in _combine(claimed, size) if crc32c(bodies[first:end].data) != expected]
    return np.concatenate(wrong) if wrong else np.empty(0, np.intp)


def _wrong_one_by_one(bodies: NDArray[np.uint8], claimed: NDArray[np.uint32]) -> NDArray[np.intp]:
    return np.flatnonzero(of_each(bodies) != claimed)


def of_each(bodies: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The checksum of each row of bodies (n, size > 0)."""
    if bodies.shape[1] < LARGE_MIN:
        bodies = np.ascontiguousarray(bodies).view(f"V{bodies.shape[1]}").ravel().tolist()
    return np.fromiter(map(crc32c, bodies), np.uint32, len(bodies))


def _combine(checksums: NDArray[np.uint32], size: int) -> list[tuple[int, int, int]]:
    """[(first, end, checksum of these pieces laid end to end)] of some tens of groups of pieces of `size` bytes."""
    count = len(checksums)
    levels = max(0, (count - 1).bit_length() - _GROUPS_BITS)
    missing = -count % (1 << levels)                     # nothing at all has checksum 0, and comes first
    checksums = np.concatenate((np.zeros(missing, np.uint32), checksums))
    for _ in range(levels):
        checksums = _apply(_tables(size), checksums[0::2]) ^ checksums[1::2]
        size *= 2
    step = 1 << levels
    return [(max(0, number * step - missing), (number + 1) * step - missing, expected)
            for number, expected in enumerate(checksums.tolist())]


def before_so_many(changes: NDArray[np.uint32], behind: NDArray[np.int64]) -> NDArray[np.uint32]:
    """What changes (n,) of checksums are when so many bytes, that do not change, follow: (n,) or (1,), fewer than LAID_OUT_MAX."""
    if len(behind) == 1 and behind[0] > 0:
        return _apply(_tables(int(behind[0])), changes)
    return _shift(changes.astype(np.int64), np.broadcast_to(behind, len(changes)), _DIGITS)


def of_byte(last: int) -> NDArray[np.uint32]:
    """(256,): what changing bits of one byte changes of the checksum of bytes among which it is the last but `last` - 1."""
    return _tables(last)[0]


def wrong_entries(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64],
                  claimed: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Which entries data[begin:end], ascending and none over another, do not begin with magic and the claimed checksum, or have another.

    Many short stretches are looked at at once, for which small tables do: with zeros where magics and checksums are, what each body
    adds at its place is its register, the checksum without the ones at both ends, shifted by all that follows it.  data is written to
    meanwhile, and goes on for BEHIND bytes behind the last entry.
    """
    if not len(begins):
        return np.empty(0, np.intp)
    words = np.ndarray(len(data) - 7, "<u8", data, 0, (1,))
    heads, sizes = words[begins], ends - begins
    is_wrong = (heads & _HEAD) != (claimed.byteswap().astype(np.uint64) << np.uint64(16) | _MAGIC)
    is_wrong |= sizes < CHECKSUM_END
    is_alone = is_wrong | (sizes < 8) | (sizes > 1 << _CELL_BITS)
    cells = begins >> _CELL_BITS
    is_first = np.empty(len(begins), bool)
    is_first[:1] = True
    np.not_equal(cells[1:], cells[:-1], out=is_first[1:])
    is_first[1:] |= begins[1:] != ends[:-1]
    if is_alone.any():
        is_first |= is_alone
        is_first[1:] |= is_alone[:-1]
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(begins)) - 1
    raw, starts, stops = memoryview(data), begins[firsts], ends[lasts]
    lengths = stops - starts
    together = slice(None) if not is_alone.any() else np.flatnonzero(~is_alone)
    after = np.repeat(stops, lasts - firsts + 1) - ends
    if isinstance(together, slice) or len(together):
        words[begins[together]] = heads[together] & ~_HEAD
        found = np.array([crc32c(raw[start:stop]) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)], np.uint32)
        words[begins[together]] = heads[together]
        begun = _begun(_CELL_DIGITS)
        terms = np.zeros(len(begins), np.uint32)
        some = after[together]
        terms[together] = _shift(claimed[together].astype(np.int64) ^ _ONES, some, _CELL_DIGITS) ^ begun[
            some + sizes[together] - CHECKSUM_END]
        lengths[is_alone[firsts]] = 0
        expected = np.bitwise_xor.reduceat(terms, firsts) ^ begun[lengths] ^ np.uint32(_ONES)
        suspects = (found != expected) | is_alone[firsts]
    else:
        suspects = np.ones(len(firsts), bool)
    for number in np.flatnonzero(suspects).tolist():
        for at in range(int(firsts[number]), int(lasts[number]) + 1):
            is_wrong[at] |= crc32c(raw[int(begins[at]) + CHECKSUM_END:int(ends[at])]) != claimed[at]
    return np.flatnonzero(is_wrong)


@cache
def _begun(digits: int) -> NDArray[np.uint32]:
    """(as many as numbers of so many digits,): what that many zero bytes do to the ones that a checksum begins with."""
    size = 1 << _DIGIT_BITS * digits
    done = np.full(size, _ONES, np.uint32)
    count = 1
    while count < size:
        done[count:2 * count] = _apply(_tables(count), done[:count])
        count *= 2
    return done


def _shift(vectors: NDArray[np.int64], sizes: NDArray[np.int64], digits: int) -> NDArray[np.uint32]:
    """What sizes (n,), of so many digits, zero bytes do to each of the checksums (n,)."""
    for digit in range(digits):
        tables, first = _tables_of_digit(digit), (sizes >> _DIGIT_BITS * digit & (1 << _DIGIT_BITS) - 1) << 10
        out = tables.take(first + (vectors & 255))
        for byte in (1, 2, 3):
            out ^= tables.take(first + (256 * byte) + (vectors >> 8 * byte & 255))
        vectors = out.astype(np.int64)
    return out


@cache
def _tables_of_digit(digit: int) -> NDArray[np.uint32]:
    """(values of a digit x 4 x 256,): what so many zero bytes do to each byte of a checksum."""
    tables = np.empty((1 << _DIGIT_BITS, 4, 256), np.uint32)
    tables[0] = np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    one = _tables(1 << _DIGIT_BITS * digit)
    for value in range(1, len(tables)):
        tables[value] = _apply(one, tables[value - 1])
    return tables.ravel()


def _apply(tables: NDArray[np.uint32], vectors: NDArray[np.uint32]) -> NDArray[np.uint32]:
    out = tables[0][vectors & 255]
    for byte in (1, 2, 3):
        out ^= tables[byte][(vectors >> np.uint32(8 * byte)) & 255]
    return out


@lru_cache(maxsize=1024)
def _tables(size: int) -> NDArray[np.uint32]:
    """(4, 256): what `size` zero bytes do to each byte of a checksum."""
    basis = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if size == 1:
        columns = basis
        for _ in range(8):
            columns = (columns >> np.uint32(1)) ^ np.where(columns & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    else:
        half = _tables(size // 2)
        columns = _apply(half, _apply(half, basis))
        if size & 1:
            columns = _apply(_tables(1), columns)
    tables = np.zeros((4, 256), np.uint32)
    for bit in range(32):
        row, low = tables[bit // 8], 1 << (bit % 8)
        row[low:2 * low] = row[:low] ^ columns[bit]
    return tables
