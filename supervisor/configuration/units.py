"""Times and sizes as pulsar-admin reads them: 90, 10m, 7d, -1; 4096, 10M, 2G.  Moments, also as the broker reads and shows them."""
import re

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_BYTES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
LAST_MS = 253_402_300_799_999      # of the year 9999, the last one that is written with four digits
_MILLIS = re.compile(r"[0-9]{1,15}ms", re.IGNORECASE)
_RELATIVE = re.compile(r"([+-]?)([0-9]{1,12}[smhdwy])", re.IGNORECASE)


def seconds(text: str) -> int:
    return _scaled(text, _SECONDS, "a time: a number of seconds, or one with a unit of s, m, h, d, w or y, such as 10m")


def millis(text: str) -> int:
    """Of a time; also 500ms."""
    return int(text[:-2]) if _MILLIS.fullmatch(text) else 1_000 * seconds(text)


def moment(text: str, now_ms: int) -> int:
    """In ms: of ms, of ISO 8601 (UTC where it does not say), or so long from now: 10m, +2h, -1d.  Raises ValueError."""
    if relative := _RELATIVE.fullmatch(text):
        sign, length = relative.groups()
        found = now_ms + (-1 if sign == "-" else 1) * millis(length)
    elif text.isascii() and text.isdigit():
        found = int(text[:20])
    else:
        from datetime import UTC, datetime
        try:
            when = datetime.fromisoformat(text)
            found = round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1_000)
        except (ValueError, OverflowError):
            found = -1
    if not 0 <= found <= LAST_MS:
        raise ValueError(f"{text[:50]!r} is not a time from 1970 to 9999: ms, ISO 8601 such as 2026-01-31T12:00:00Z, or so long from now, "
                         "such as 10m or -2h")
    return found


def instant(time_ms: int) -> str:
    """As the broker writes times; producers may have set any number."""
    from datetime import UTC, datetime
    try:
        return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


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
