"""Times and sizes as pulsar-admin reads them: 90, 10m, 7d, -1; 4096, 10M, 2G."""

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_BYTES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def seconds(text: str) -> int:
    return _scaled(text, _SECONDS, "a time: a number of seconds, or one with a unit of s, m, h, d, w or y, such as 10m")


def millis(text: str) -> int:
    return 1_000 * seconds(text)


def size(text: str) -> int:
    return _scaled(text, _BYTES, "a size: a number of bytes, or one with a unit of K, M, G or T, such as 10M")


def minutes(text: str) -> int:
    """Of a time; whole ones, and -1 stays what it is."""
    found = seconds(text)
    return found // 60 if found > 0 else found


def mebibytes(text: str) -> int:
    """Of a size; whole ones, and -1 stays what it is."""
    found = size(text)
    return found >> 20 if found > 0 else found


def _scaled(text: str, units: dict[str, int], expected: str) -> int:
    factor = units.get(text[-1:].lower())
    try:
        return int(text) if factor is None else factor * int(text[:-1])
    except ValueError:
        raise ValueError(f"{text!r} is not {expected}") from None
