"""Hashes of keys, by which a compaction finds the messages of a view that new ones replace.

A hash has 96 bits: three sums, each of which multiplies all words of the key with random factors and keeps the high
half (multilinear hashing).  Two different keys have the same hash with a probability of 2^-96, whichever they are,
because nobody outside knows the factors.  They come from a seed that the first compaction of a view draws.

A key without any collision would have to be read from its entry.  Batches would make that most of the view.
"""
import functools
import hashlib
import secrets
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from geminga.proto.rows import words_at_each_byte
from geminga.storage.ledgers.view_files import KEYS_HEADER

SEED_SIZE = KEYS_HEADER["seed"].itemsize
_LONG = 256                      # bytes; longer keys are hashed by BLAKE2b first, which is slower for short ones
_KEPT_MAX = 64                   # bytes of a key that is kept as it is while a compaction compares keys
_STANDS = "\0"                   # begins a text that stands for a key; another key that begins so is replaced too
_TOGETHER = 1 << 16              # keys hashed at a time
_HALVES = 2 * (_LONG // 8) + 1   # factors of a sum: for the halves of a key's words, and for its length
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_NO_SEED = b""                   # of buckets, which need not be secret
_HIGH, _LOW = np.uint64(32), np.uint64((1 << 32) - 1)


def new_seed() -> bytes:
    """Return a seed for the hashes of a view that continues no other one."""
    return secrets.token_bytes(SEED_SIZE)


def hashes(keys: pa.ChunkedArray | pa.StringArray, seed: bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Return the hashes of keys, which are not null: a word (n,) that is never 0, and 64 more bits (n,)."""
    words, more = np.empty(len(keys), np.uint32), np.empty(len(keys), np.uint64)
    done = 0
    for piece in _pieces(keys if isinstance(keys, pa.ChunkedArray) else pa.chunked_array([keys])):
        first, second, third = (total >> _HIGH for total in _sums(piece, seed, 3))
        words[done:done + len(piece)] = np.maximum(first, np.uint64(1))
        more[done:done + len(piece)] = second << _HIGH | third
        done += len(piece)
    return words, more


def shortened(keys: pa.StringArray, seed: bytes) -> pa.StringArray:
    """Return keys with short texts in place of the long ones among them.  keys: without nulls.

    A message may have a key of megabytes, and few bytes of a compressed batch many of them.
    """
    is_replaced = pc.or_(pc.greater(pc.binary_length(keys), _KEPT_MAX), pc.starts_with(keys, _STANDS))
    if not pc.any(is_replaced).as_py():
        return keys
    words, more = hashes(keys.filter(is_replaced), seed)
    texts = [f"{_STANDS}{word:08x}{rest:016x}" for word, rest in zip(words.tolist(), more.tolist(), strict=True)]
    return pc.replace_with_mask(keys, is_replaced, pa.array(texts, keys.type))


def hashes_of_shortened(keys: pa.ChunkedArray, seed: bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Return what `hashes` returns for the keys that were shortened with the same seed."""
    words, more = hashes(keys, seed)
    stands = pc.starts_with(keys, _STANDS)
    if pc.any(stands).as_py():
        texts, chosen = keys.filter(stands).to_pylist(), stands.to_numpy()
        words[chosen] = [int(text[1:9], 16) for text in texts]
        more[chosen] = [int(text[9:], 16) for text in texts]
    return words, more


def buckets(keys: pa.ChunkedArray, count: int) -> NDArray[np.int16]:
    """Return the bucket (n,), below `count`, of each key.  Keys, which are not null, are spread evenly."""
    numbers = np.zeros(len(keys), np.int16)
    if count > 1:
        done = 0
        for piece in _pieces(keys):
            [total] = _sums(piece, _NO_SEED, 1)
            numbers[done:done + len(piece)] = (total >> _HIGH) % np.uint64(count)
            done += len(piece)
    return numbers


def _pieces(keys: pa.ChunkedArray) -> Iterator[pa.StringArray]:
    for chunk in keys.chunks:
        for first in range(0, len(chunk), _TOGETHER):
            yield chunk[first:first + _TOGETHER]


def _sums(keys: pa.StringArray, seed: bytes, count: int) -> list[NDArray[np.uint64]]:
    """Return the first sums (n,) of the keys, of which only the high halves are hashes."""
    _, offsets, text = keys.buffers()
    ends = np.frombuffer(offsets, np.int32)[keys.offset:keys.offset + len(keys) + 1].astype(np.int64)
    begins, sizes = ends[:-1] - ends[0], np.diff(ends)
    raw = memoryview(text)[ends[0]:ends[-1]] if text is not None else memoryview(b"")
    pieces, length = [raw], len(raw)
    lengths = sizes.astype(np.uint64)
    for at in np.flatnonzero(sizes > _LONG).tolist():
        pieces.append(memoryview(hashlib.blake2b(raw[begins[at]:begins[at] + sizes[at]], key=seed).digest()))
        begins[at], sizes[at] = length, len(pieces[-1])
        length += len(pieces[-1])
    data = np.frombuffer(b"".join((*pieces, bytes(8))), np.uint8)
    loaded, factors = words_at_each_byte(data), _factors(seed)[:count]
    sums = [lengths * factor for factor in factors[:, -1]]
    for number in range(-(-int(sizes.max(initial=0)) // 8)):
        chosen: slice | NDArray[np.intp] = slice(None)
        if (is_longer := sizes > 8 * number).mean() < 1:
            chosen = np.flatnonzero(is_longer)
        word = loaded[begins[chosen] + 8 * number] & _MASKS[np.minimum(sizes[chosen] - 8 * number, 8)]
        low, high = word & _LOW, word >> _HIGH
        for total, factor in zip(sums, factors, strict=True):
            total[chosen] += low * factor[2 * number] + high * factor[2 * number + 1]
    return sums


@functools.lru_cache(maxsize=16)
def _factors(seed: bytes) -> NDArray[np.uint64]:
    """Return the factors (3, _HALVES) of the three sums."""
    raw = hashlib.shake_256(seed).digest(3 * 8 * _HALVES)
    return np.frombuffer(raw, "<u8").reshape(3, _HALVES)
