"""Properties of messages that this broker reads.  Any client can set them; only policies give them an effect.

    geminga.priority     "0" .. "9": the higher, the sooner Shared consumers get the message; see docs/priority.md
    geminga.ttl          "30s", or "1500" in ms: the time after which the message expires; see docs/dead-letters.md

The last property of a name counts, as for a map of properties.  A value that is none of those above is no error: the
message counts as one without the property.
"""
import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api

PRIORITY_PROPERTY = "geminga.priority"
PRIORITIES = 10            # 0 .. 9
PRIORITY_DEFAULT = 4       # of a message without the property, as in JMS
# Bits of SEND_ROW's `flags`, which chunks use for their number: 1 + the priority, or 0 for none.
PRIORITY_SHIFT = 8
PRIORITY_BITS = 15 << PRIORITY_SHIFT
TTL_PROPERTY = "geminga.ttl"
# Bits of `flags`, likewise: a time in ms as a number of 5 bits of exponent and 11 bits of mantissa, 0 for none.  It is
# rounded up, by less than a part in two thousand.
TTL_SHIFT = 12
TTL_BITS = 0xFFFF << TTL_SHIFT
BATCH_BITS = PRIORITY_BITS | TTL_BITS      # what a batch has of its messages
_MANTISSA = 11
TTL_MAX_MS = (2 << _MANTISSA) - 1 << 30      # 139 years; longer times count as this one
_TTL = re.compile(r"([0-9]{1,15})(ms|s|m|h|d|w|y|)", re.ASCII | re.IGNORECASE)
_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000,
       "y": 31_536_000_000}
_VALUES = {str(value): value for value in range(PRIORITIES)}


def priority_flags(properties: Iterable[api.KeyValue]) -> int:
    """Return the bits of `flags` that say the priority among a message's properties, 0 without one."""
    values = [one.value for one in properties if one.key == PRIORITY_PROPERTY]
    value = _VALUES.get(values[-1]) if values else None
    return 0 if value is None else flags_of(value)


def flags_of_one(properties: Sequence[api.KeyValue]) -> int:
    """Return the bits of `flags` that a message's properties ask for."""
    return priority_flags(properties) | ttl_flags(properties)


def ttl_flags(properties: Iterable[api.KeyValue]) -> int:
    """Return the bits of `flags` that say the time to live among a message's properties, 0 without one."""
    values = [one.value for one in properties if one.key == TTL_PROPERTY]
    match = _TTL.fullmatch(values[-1]) if values and isinstance(values[-1], str) else None
    return 0 if match is None else ttl_flags_of(int(match[1]) * _MS[match[2].lower()])


def ttl_flags_of(ttl_ms: int) -> int:
    """Return the bits of `flags` that say a time to live of so many ms, or the next longer one; 0 for 0."""
    ttl_ms = min(ttl_ms, TTL_MAX_MS)
    shift = max(0, ttl_ms.bit_length() - _MANTISSA - 1)
    mantissa = -(-ttl_ms >> shift)
    if mantissa >> _MANTISSA + 1:
        shift, mantissa = shift + 1, mantissa >> 1
    exponent = shift + 1 if mantissa >> _MANTISSA else 0
    return (exponent << _MANTISSA | mantissa & (1 << _MANTISSA) - 1) << TTL_SHIFT


def ttls_of(flags: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the times to live (n,) in ms of entries with these `flags` (n,), 0 for none.  They are no chunks."""
    bits = (flags >> TTL_SHIFT & 0xFFFF).astype(np.int64)
    exponents, mantissas = bits >> _MANTISSA, bits & (1 << _MANTISSA) - 1
    ttls: NDArray[np.int64] = (mantissas | np.where(exponents > 0, 1 << _MANTISSA, 0)) << np.maximum(exponents - 1, 0)
    return ttls


def flags_of(priority: int) -> int:
    """Return the bits of `flags` that say this priority."""
    return priority + 1 << PRIORITY_SHIFT


def priorities_of(flags: NDArray[np.uint32], is_chunk: int) -> NDArray[np.uint8]:
    """Return the priorities (n,) of entries with these `flags` (n,); is_chunk: the bit that says that one is a chunk.

    Chunks count as PRIORITY_DEFAULT.
    """
    priorities: NDArray[np.uint8] = _PRIORITY_OF[flags >> PRIORITY_SHIFT & 15]
    chunks = flags & is_chunk != 0
    if chunks.any():
        priorities[chunks] = PRIORITY_DEFAULT
    return priorities


# By the four bits; those above 10 are never stored.
_PRIORITY_OF = np.array([PRIORITY_DEFAULT, *range(PRIORITIES), *[PRIORITY_DEFAULT] * 5], np.uint8)
