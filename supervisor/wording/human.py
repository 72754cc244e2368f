"""Values as text for people: sizes, counts, rates, lengths of time, ages and names of topics."""
import time
from collections.abc import Mapping
from typing import Any

_SIZES = "B", "KiB", "MiB", "GiB", "TiB"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def size(number: float) -> str:
    """Return a number of bytes with its unit, such as 1.5 MiB."""
    unit = 0
    while abs(number) >= 1024 and unit < len(_SIZES) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.0f} {_SIZES[unit]}" if abs(number) >= 100 or not unit else f"{number:.1f} {_SIZES[unit]}"


def count(number: float) -> str:
    """Return a whole number with separated thousands, such as 12,345."""
    return f"{number:,.0f}"


def rate(per_second: float) -> str:
    """Return a rate per second: three digits where it is below 100."""
    return f"{per_second:,.0f}" if per_second >= 100 or per_second == 0 else f"{per_second:.3g}"


def length(seconds: float) -> str:
    """Return a length of time by its two largest units, such as 3 d 4 h, and below a second in ms."""
    if 0 < seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    left = int(seconds)
    parts: list[str] = []
    for unit_s, unit in _UNITS:
        number, left = divmod(left, unit_s)
        if number or parts:
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2]) or "0 s"


def ago(time_ms: int, now_ms: int | None = None) -> str:
    """Return how long ago a moment in ms was, such as 5 min 3 s."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return length(max(0, now_ms - time_ms) / 1_000)


def night_progress(night: Mapping[str, Any]) -> str:
    """Return how far a night is, such as "reading, 41 % of 16,000,000 messages, 35 s left".

    night: a Progress of supervisor/tasks/night_progress.py as a dictionary.
    """
    parts = [night["stage"]]
    if night["unit"] == "topics":
        parts.append(f"{count(night['done'])} of {count(night['total'])} topics")
    elif night["total"]:
        parts.append(f"{int(100 * night['ratio'])} % of {count(night['total'])} messages")
    if night["seconds_left"] is not None:
        parts.append(f"{length(round(night['seconds_left']))} left")
    return ", ".join(parts)


def schedule(one: Mapping[str, Any]) -> str:
    """Return when a schedule publishes, by its object of REST."""
    return f"{one['cron']} {one['time_zone']}" if "cron" in one else f"every {length(one['every'] / 1_000)}"


def short(topic: str) -> str:
    """Return a topic's name as tables show it: a persistent topic without its domain."""
    return topic.removeprefix("persistent://")
