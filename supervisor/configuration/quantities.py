"""Times and sizes of the configuration's keys: numbers, or text with a unit such as 10s, 5m, 1d, 10M or 2G.

The last word of a key's name is its unit, and a number without a unit counts in that unit.
"""
import contextlib
import re
from collections.abc import Callable

from geminga.storage.runtime.units import millis, size

_NUMBER = re.compile(r"[+-]?[0-9]+")
_WITH_UNIT = re.compile(r"([0-9]{1,15}) ?([A-Za-z]+)")


def has_unit(text: str) -> bool:
    """Whether the text is a number with a unit, known or unknown."""
    return _WITH_UNIT.fullmatch(text.strip()) is not None


def reader(name: str) -> Callable[[object], int] | None:
    """Return the function that reads values of a key of time or size; None if the key is of another kind."""
    if name.endswith("_ms"):
        return lambda value: _parsed(value, millis, 1, "a time: a number of milliseconds, or one with a unit of ms, "
                                                       "s, m, h, d, w or y, such as 10s, 5m or 1d")
    if name.endswith("_s"):
        return lambda value: _parsed(value, millis, 1_000, "a time: a number of seconds, or one with a unit of s, m, "
                                                           "h, d, w or y, such as 10s, 5m or 1d")
    if "bytes" in name or name.endswith("_size"):
        return lambda value: _parsed(value, size, 1, "a size: a number of bytes, or one with a unit of K, M, G or T, "
                                                     "such as 10M or 2G")
    return None


def _parsed(value: object, parse: Callable[[str], int], own: int, expected: str) -> int:
    """Return a number as it is, and text in the key's own unit.  Raises ValueError with the text of what is expected.

    own: the key's unit, in that of `parse`.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            return int(text[:40])      # Python refuses to read thousands of digits; the range refuses the rest
        with contextlib.suppress(ValueError):
            if has_unit(text) and not (amount := parse(text.replace(" ", ""))) % own:
                return amount // own
    raise ValueError(expected)
