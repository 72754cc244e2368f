"""CRC32-C of many entries at once: of one size as they come over the wire, of any sizes as they lie in a ledger.

A call of crc32c costs about 100 ns whatever it covers.  A CRC is linear, so a single call over all bodies laid end to
end can be compared with the combination of the claimed checksums: combined(a, b) = shift(a, len(b)) ^ b.  `shift` is
the effect of so many zero bytes on a checksum: a 32x32 matrix over GF(2), held as four tables of 256 words.  Checksums
are combined pair by pair, so n of them take n table look-ups, done as arrays.  Every shift is invertible, so a single
wrong entry always changes the outcome.  Only then is each entry checked by itself.
"""
from functools import cache, lru_cache

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.frames import CHECKSUM_END, MAGIC
from geminga.proto.rows import words_at_each_byte

COMBINE_MIN = 1024           # entries; fewer are cheaper as calls: a look-up costs a microsecond however short
_GROUPS_BITS = 5             # log2 of the number of groups at which combining stops: then a call for each is cheaper
LARGE_MIN = 1024             # bytes; copying bodies this large side by side costs more than the calls it saves
_POLYNOMIAL = 0x82F63B78     # CRC32-C, reflected
_ONES = 0xFFFFFFFF           # a checksum begins with this, and is xored with it in the end
_DIGIT_BITS, _DIGITS = 7, 3  # a shift by any number of bytes is a shift for each digit of the number
LAID_OUT_MAX = 1 << _DIGIT_BITS * _DIGITS      # bytes that _DIGITS digits can count
BEHIND = 8                   # bytes that have to follow the last entry: a word is loaded where an entry begins
_CELL_DIGITS = 2             # digits of the length of a group
_CELL_BITS = 13              # entries that begin in one cell of 8 KiB are a group; longer entries are checked alone
_MAGIC = np.uint64(int.from_bytes(MAGIC.to_bytes(2, "big"), "little"))
_HEAD = np.uint64((1 << 8 * CHECKSUM_END) - 1)      # bits of a word that are magic and checksum


def wrong_rows(bodies: NDArray[np.uint8], claimed: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Return the indexes of those rows of bodies (n, size) whose CRC32-C differs from the claimed one (n,)."""
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
    return np.flatnonzero(crc32c_of_each(bodies) != claimed)


def crc32c_of_each(bodies: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the checksum (n,) of each row of bodies (n, size > 0)."""
    if bodies.shape[1] >= LARGE_MIN:
        return np.fromiter(map(crc32c, bodies), np.uint32, len(bodies))
    pieces = np.ascontiguousarray(bodies).view(f"V{bodies.shape[1]}").ravel().tolist()
    return np.fromiter(map(crc32c, pieces), np.uint32, len(bodies))


def _combine(checksums: NDArray[np.uint32], size: int) -> list[tuple[int, int, int]]:
    """Combine checksums of pieces of `size` bytes to checksums of larger stretches.

    Return [(first, end, checksum of pieces first .. end-1 laid end to end)].
    """
    count = len(checksums)
    levels = max(0, (count - 1).bit_length() - _GROUPS_BITS)
    missing = -count % (1 << levels)                     # filled up in front with empty pieces, whose checksum is 0
    checksums = np.concatenate((np.zeros(missing, np.uint32), checksums))
    for _ in range(levels):
        checksums = _apply(_tables(size), checksums[0::2]) ^ checksums[1::2]
        size *= 2
    step = 1 << levels
    return [(max(0, number * step - missing), (number + 1) * step - missing, expected)
            for number, expected in enumerate(checksums.tolist())]


def change_before(changes: NDArray[np.uint32], following: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return how checksums of whole messages change (n,), given how the checksums of their changed beginnings do
    (n,).

    following: (n,) or (1,) unchanged bytes behind each changed beginning, fewer than LAID_OUT_MAX.
    """
    if len(following) == 1 and following[0] > 0:
        return _apply(_tables(int(following[0])), changes)
    return _shift(changes.astype(np.int64), np.broadcast_to(following, len(changes)), _DIGITS)


def change_of_byte(place: int) -> NDArray[np.uint32]:
    """Return a table (256,) that maps the changed bits of one byte to the changed bits of the checksum.

    place: 1 for the last byte of a message, 2 for the byte before it.
    """
    table: NDArray[np.uint32] = _tables(place)[0]
    return table


def wrong_entries(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64],
                  claimed: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Return the numbers of the entries data[begin:end] whose magic, stored checksum or content is wrong.

    begins, ends (n,) ascend and do not overlap; claimed (n,) are the checksums of a ledger's index.  `data` has BEHIND
    bytes behind the last entry.  It is changed during the call, and restored.

    1. All heads are compared at once: magic, and the checksum that the entry itself claims.
    2. Adjacent entries that begin in one cell of the data are a group.  One call of crc32c covers the group, and is
       compared with the combination of its entries' checksums.
    3. Every entry of a group that differs is checked alone, as is every entry that no group can have: shorter than a
       word, longer than a cell, or with a wrong head.

        cells      |          0          |          1          |
        entries     [aaaa][bbb][cccccccccc][ddd]   [eeeee][ff]
        groups      a b c                  d       e f              e begins anew, as it does not adjoin d
    """
    if not len(begins):
        return np.empty(0, np.intp)
    heads, sizes = words_at_each_byte(data)[begins], ends - begins
    is_wrong = (heads & _HEAD) != (claimed.byteswap().astype(np.uint64) << np.uint64(16) | _MAGIC)
    is_wrong |= sizes < CHECKSUM_END
    is_suspect = is_wrong | (sizes < 8) | (sizes > 1 << _CELL_BITS)
    grouped = np.flatnonzero(~is_suspect) if is_suspect.any() else slice(None)
    is_suspect[grouped] = _lies_in_wrong_group(data, begins[grouped], ends[grouped], claimed[grouped])
    raw = memoryview(data)
    for at in np.flatnonzero(is_suspect).tolist():
        is_wrong[at] |= crc32c(raw[int(begins[at]) + CHECKSUM_END:int(ends[at])]) != claimed[at]
    return np.flatnonzero(is_wrong)


def _lies_in_wrong_group(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64],
                         claimed: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return a mask (n,) of the entries whose group of adjacent entries does not fit the claimed checksums.

    A group is a row of adjacent entries that begin in one cell.  Heads are overwritten with zeros for the time of the
    check.  Each body then adds its register, which is its checksum without the ones at both ends, shifted by all bytes
    that follow it in the group.
    """
    if not len(begins):
        return np.empty(0, bool)
    cells = begins >> _CELL_BITS
    is_first = np.empty(len(begins), bool)
    is_first[0] = True
    np.not_equal(cells[1:], cells[:-1], out=is_first[1:])
    is_first[1:] |= begins[1:] != ends[:-1]
    firsts = np.flatnonzero(is_first)
    counts = np.diff(firsts, append=len(begins))
    starts, stops = begins[firsts], ends[firsts + counts - 1]
    words, raw = words_at_each_byte(data), memoryview(data)
    heads = words[begins]
    words[begins] = heads & ~_HEAD
    sums = [crc32c(raw[start:stop]) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    words[begins] = heads
    ones = _shifted_ones(_CELL_DIGITS)
    following = np.repeat(stops, counts) - ends
    registers = _shift(claimed.astype(np.int64) ^ _ONES, following, _CELL_DIGITS)
    registers ^= ones[following + (ends - begins) - CHECKSUM_END]
    expected = np.bitwise_xor.reduceat(registers, firsts) ^ ones[stops - starts] ^ np.uint32(_ONES)
    return np.repeat(np.array(sums, np.uint32) != expected, counts)


@cache
def _shifted_ones(digits: int) -> NDArray[np.uint32]:
    """Return a table: number of zero bytes, of so many digits -> _ONES shifted by them."""
    size = 1 << _DIGIT_BITS * digits
    shifted = np.full(size, _ONES, np.uint32)
    count = 1
    while count < size:
        shifted[count:2 * count] = _apply(_tables(count), shifted[:count])
        count *= 2
    return shifted


def _shift(vectors: NDArray[np.int64], sizes: NDArray[np.int64], digits: int) -> NDArray[np.uint32]:
    """Return the registers (n,), each shifted by sizes (n,) zero bytes, numbers of so many digits."""
    for digit in range(digits):
        tables, first = _tables_of_digit(digit), (sizes >> _DIGIT_BITS * digit & (1 << _DIGIT_BITS) - 1) << 10
        out: NDArray[np.uint32] = tables.take(first + (vectors & 255))
        for byte in (1, 2, 3):
            out ^= tables.take(first + (256 * byte) + (vectors >> 8 * byte & 255))
        vectors = out.astype(np.int64)
    return out


@cache
def _tables_of_digit(digit: int) -> NDArray[np.uint32]:
    """Return tables, flattened from (values of the digit, 4, 256): byte of a register -> the byte, shifted."""
    tables = np.empty((1 << _DIGIT_BITS, 4, 256), np.uint32)
    tables[0] = np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    one = _tables(1 << _DIGIT_BITS * digit)
    for value in range(1, len(tables)):
        tables[value] = _apply(one, tables[value - 1])
    return tables.ravel()


def _apply(tables: NDArray[np.uint32], vectors: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the registers (n,), shifted by the number of zero bytes that the tables are for."""
    out: NDArray[np.uint32] = tables[0][vectors & 255]
    for byte in (1, 2, 3):
        out ^= tables[byte][(vectors >> np.uint32(8 * byte)) & 255]
    return out


@lru_cache(maxsize=1024)
def _tables(size: int) -> NDArray[np.uint32]:
    """Return tables (4, 256): byte 0 .. 3 of a register -> the byte shifted by `size` zero bytes."""
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
