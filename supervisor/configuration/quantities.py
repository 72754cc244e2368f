"""Times and sizes of the configuration's keys: numbers, or text with a unit such as 10s, 5m, 1d, 10M or 2G.

The last word of a key's name is its unit, and a number without a unit counts in that unit.
"""
import re
from collections.abc import Callable

_MILLIS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000,
           "y": 365 * 86_400_000}
_BYTES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_NUMBER = re.compile(r"[+-]?[0-9]+")
_WITH_UNIT = re.compile(r"([0-9]{1,15}) ?([A-Za-z]+)")


def has_unit(text: str) -> bool:
    """Whether the text is a number with a unit, known or unknown."""
    return _WITH_UNIT.fullmatch(text.strip()) is not None


def reader(name: str) -> Callable[[object], int] | None:
    """Return the function that reads values of a key of time or size; None if the key is of another kind."""
    if name.endswith("_ms"):
        return lambda value: _parsed(value, _MILLIS, 1, "a time: a number of milliseconds, or one with a unit of ms, "
                                                        "s, m, h, d, w or y, such as 10s, 5m or 1d")
    if name.endswith("_s"):
        return lambda value: _parsed(value, _MILLIS, 1_000, "a time: a number of seconds, or one with a unit of s, m, "
                                                            "h, d, w or y, such as 10s, 5m or 1d")
    if "bytes" in name or name.endswith("_size"):
        return lambda value: _parsed(value, _BYTES, 1, "a size: a number of bytes, or one with a unit of K, M, G or T, "
                                                       "such as 10M or 2G")
    return None


def _parsed(value: object, units: dict[str, int], own: int, expected: str) -> int:
    """Return a number as it is, and text in the key's own unit.  Raises ValueError with the text of what is expected.

    own: the key's unit, in those of `units`.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            return int(text[:40])      # Python refuses to read thousands of digits; the range refuses the rest
        parts = _WITH_UNIT.fullmatch(text)
        if parts and (unit := units.get(parts[2].lower())) and not (amount := int(parts[1]) * unit) % own:
            return amount // own
    raise ValueError(expected)
