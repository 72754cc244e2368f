"""Times, sizes and moments as text: parsing as pulsar-admin does (90, 10m, 7d, -1; 4096, 10M, 2G), and printing."""
import re

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_BYTES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
LAST_MS = 253_402_300_799_999      # end of the year 9999, the last with four digits
_MILLIS = re.compile(r"[0-9]{1,15}ms", re.IGNORECASE)
_RELATIVE = re.compile(r"([+-]?)([0-9]{1,12}[smhdwy])", re.IGNORECASE)


def seconds(text: str) -> int:
    """Parse a time such as 90, 10m or 7d, and return it in seconds.  Raises ValueError."""
    return _scaled(text, _SECONDS, "a time: a number of seconds, or one with a unit of s, m, h, d, w or y, such as 10m")


def millis(text: str) -> int:
    """Parse a time such as 90, 10m or 500ms, and return it in milliseconds.  Raises ValueError."""
    return int(text[:-2]) if _MILLIS.fullmatch(text) else 1_000 * seconds(text)


def moment(text: str, now_ms: int) -> int:
    """Parse a moment: ms since 1970, ISO 8601 (UTC by default) or relative to now as 10m, +2h or -1d.

    Return ms since 1970. Raises ValueError.
    """
    if relative := _RELATIVE.fullmatch(text):
        sign, length = relative.groups()
        time_ms = now_ms + (-1 if sign == "-" else 1) * millis(length)
    elif text.isascii() and text.isdigit():
        time_ms = int(text[:20])
    else:
        from datetime import UTC, datetime
        try:
            when = datetime.fromisoformat(text)
            time_ms = round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1_000)
        except (ValueError, OverflowError):
            time_ms = -1
    if not 0 <= time_ms <= LAST_MS:
        raise ValueError(f"{text[:50]!r} is not a time from 1970 to 9999: ms, ISO 8601 such as 2026-01-31T12:00:00Z, "
                         "or a time from now, such as 10m or -2h")
    return time_ms


def instant(time_ms: int) -> str:
    """Return a moment in ms as ISO 8601; as "N ms" if the number is beyond all dates, which producers may send."""
    from datetime import UTC, datetime, timedelta
    try:
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)      # exact, unlike a float's seconds
        return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{time_ms} ms"


def trimmed_instant(time_ms: int) -> str:
    """Return a moment in ms as Pulsar writes it: no zeros at the end of its fraction; "" if it is beyond all dates."""
    text = instant(time_ms)
    return text[:-1].rstrip("0").rstrip(".") + "Z" if text.endswith("Z") else ""


def size(text: str) -> int:
    """Parse a size such as 4096, 10M or 2G, and return it in bytes.  Raises ValueError."""
    return _scaled(text, _BYTES, "a size: a number of bytes, or one with a unit of K, M, G or T, such as 10M")


def minutes(text: str) -> int:
    """Parse a time such as 10m or 7d, and return it in whole minutes; -1 stays -1.

    Raises ValueError, also for a time that would be no minute: 0 has a meaning of its own.
    """
    return _whole(text, seconds(text), 60, "a minute", "minutes")


def mebibytes(text: str) -> int:
    """Parse a size such as 10M or 2G, and return it in whole MiB; -1 stays -1.

    Raises ValueError, also for a size that would be no MiB: 0 has a meaning of its own.
    """
    return _whole(text, size(text), 1 << 20, "a MiB", "MiB")


def _whole(text: str, amount: int, unit: int, one: str, several: str) -> int:
    if 0 < amount < unit:
        raise ValueError(f"{text!r} is less than {one}, and would be 0: this value is kept in whole {several}; "
                         "0 itself can be given")
    return amount // unit if amount > 0 else amount


def _scaled(text: str, units: dict[str, int], expected: str) -> int:
    factor = units.get(text[-1:].lower())
    try:
        return int(text) if factor is None else factor * int(text[:-1])
    except ValueError:
        raise ValueError(f"{text!r} is not {expected}") from None
