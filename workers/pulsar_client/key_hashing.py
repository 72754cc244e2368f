"""The partition that each client library publishes a key to.

Clients choose the partition by a hash of the key, and hashes differ among client libraries.  docs/partitioning.md says
which one each client uses by default, and by which options another.  Tests publish with the client libraries.
"""
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import mmh3

_MOST = (1 << 31) - 1
_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1
_GOLDEN, _GOLDEN_SQUARE = 0x9E3779B97F4A7C15, 0xDF442D22CE4859B9      # of boost::hash
_MURMUR = 0xC6A4A7935BD1E995


class Scheme(NamedTuple):
    """A hash function of a client library, by its name in that library."""

    name: str
    hash: Callable[[str], int]


def murmur3(key: str) -> int:
    return mmh3.hash(key.encode(), signed=False) & _MOST


def java(key: str) -> int:
    """Hash a key as the Java client does: String.hashCode() over UTF-16."""
    units = key.encode("utf-16-be")
    return _times_31(int.from_bytes(units[at:at + 2], "big") for at in range(0, len(units), 2)) & _MOST


def go(key: str) -> int:
    """Hash a key as the Go client's JavaStringHash does: over UTF-8, keeping the highest bit."""
    return _times_31(key.encode())


def cpp_java(key: str) -> int:
    """Hash a key as the C++ library's JavaStringHash does: over UTF-8, with signed bytes."""
    return _times_31(byte - 256 if byte > 127 else byte for byte in key.encode()) & _MOST


def _times_31(values: Iterable[int]) -> int:
    result = 0
    for value in values:
        result = (31 * result + value) & _U32
    return result


def boost(key: str) -> int:
    """Hash a key as boost::hash<std::string> does since Boost 1.81."""
    data = key.encode()
    seed, at, left = _GOLDEN, 0, len(data)
    result = _mulx(seed, _GOLDEN_SQUARE) ^ left
    seed = _mulx(seed, _GOLDEN_SQUARE)
    while left >= 8:
        seed = (seed + _GOLDEN) & _U64
        result ^= _mulx(int.from_bytes(data[at:at + 8], "little") + seed, _GOLDEN_SQUARE)
        at, left = at + 8, left - 8
    rest, last = data[at:], 0
    if left >= 4:
        last = int.from_bytes(rest[left - 4:], "little") << (left - 4) * 8 | int.from_bytes(rest[:4], "little")
    elif left:
        middle = left - 1 & 2
        last = rest[middle] << middle * 8 | rest[left >> 1] << (left >> 1) * 8 | rest[0]
    seed = (seed + _GOLDEN) & _U64
    result ^= _mulx(last + seed, _GOLDEN_SQUARE)
    return _mulx(result + seed, _GOLDEN_SQUARE) & _MOST


def _mulx(one: int, other: int) -> int:
    product = (one & _U64) * other
    return product & _U64 ^ product >> 64


def boost_before_181(key: str) -> int:
    """Hash a key as boost::hash<std::string> did before Boost 1.81: bytes one by one, signed."""
    result = 0
    for byte in key.encode():
        value = (byte - 256 if byte > 127 else byte) & _U64
        value = value * _MURMUR & _U64
        value = (value ^ value >> 47) * _MURMUR & _U64
        result = ((result ^ value) * _MURMUR + 0xE6546B64) & _U64
    return result & _MOST


_MURMUR3 = Scheme("Murmur3_32Hash", murmur3)
_BOOST = Scheme("BoostHash", boost), Scheme("BoostHash before Boost 1.81", boost_before_181)
# Client: its hashes; the first is the default.
CLIENTS: dict[str, tuple[Scheme, ...]] = {
    "java": (Scheme("JavaStringHash", java), _MURMUR3),
    "go": (Scheme("JavaStringHash", go), _MURMUR3),
    "python": _BOOST,
    "cpp": (*_BOOST, _MURMUR3, Scheme("JavaStringHash", cpp_java)),
    "node": (*_BOOST, _MURMUR3, Scheme("JavaStringHash", cpp_java)),
}
# By the names that commands give them.
HASHES = {"murmur3": murmur3, "java": java, "go": go, "boost": boost}


def partitions_of(key: str, count: int, client: str | None = None) -> list[dict[str, Any]]:
    """Return the partition of a key on a topic with `count` partitions, a row for each client library and hash.

    client: the library whose rows are wanted, None for all.
    """
    hashes = [(name, number, scheme.name, scheme.hash(key)) for name, schemes in CLIENTS.items()
              if client in (None, name) for number, scheme in enumerate(schemes)]
    return [{"client": name, "hashing": hashing, "default": number == 0, "hash": value, "partition": value % count}
            for name, number, hashing, value in hashes]
