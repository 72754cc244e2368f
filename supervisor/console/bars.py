"""Histograms over time: counts by hour -> bars of equal length, which templates draw."""
from collections.abc import Iterable
from typing import NamedTuple

_HOUR_MS = 3_600_000
_BARS_MAX = 96               # more would be thinner than a pixel on a telephone
_HOURS = 1, 2, 3, 6, 12, 24, 48, 168, 336, 672, 2_016, 8_760, 87_600      # that a bar may cover


class Bar(NamedTuple):
    """A bar of a histogram: entries in a period, and its place in a drawing that is 100 wide and 30 high."""

    first_ms: int
    end_ms: int
    entries: int
    x: float
    width: float
    height: float
    address: str


def bars_of(rows: Iterable[dict[str, int]], address: str) -> list[Bar]:
    """Return the bars of rows {from, to, entries}, sorted by time.

    address: of a page that shows the messages of a bar. A row that is longer than a bar counts where it begins.
    """
    counts: dict[int, int] = {}
    for row in rows:
        counts[row["from"]] = counts.get(row["from"], 0) + row["entries"]
    if not counts:
        return []
    first, span_h = min(counts), (max(counts) - min(counts)) // _HOUR_MS + 1
    length_ms = _HOUR_MS * next((hours for hours in _HOURS if span_h <= hours * _BARS_MAX), _HOURS[-1])
    first -= first % length_ms
    places: dict[int, int] = {}
    for at_ms, entries in counts.items():
        place = (at_ms - first) // length_ms
        places[place] = places.get(place, 0) + entries
    number, most = max(*places, 11) + 1, max(places.values())
    return [Bar(begin := first + place * length_ms, begin + length_ms, entries, round(100 * place / number, 3),
                round(90 / number, 3), round(max(1, 30 * entries / most), 2),
                f"{address}?from={begin}&to={begin + length_ms}" if address else "")
            for place, entries in sorted(places.items())]
