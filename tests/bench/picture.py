"""Draws the first table of docs/benchmarks.md as bars, docs/benchmarks.svg.

    python -m tests.bench.picture

Each pair of bars is one figure of the table; the longer one of a pair has the full width, because the figures of
different rows have nothing to do with each other.
"""
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURE = DOCS / "benchmarks.md", DOCS / "benchmarks.svg"

LABEL_X, BAR_X, BAR_WIDTH, WIDTH = 10, 400, 380, 900
TOP, PAIR, BAR, GAP = 64, 48, 15, 3        # pixels; heights of a pair of bars, of a bar, and between the two
COLOURS = "#1f6feb", "#8b949e"             # 4.5 to 1 and 3.2 to 1 on white


class Pair(NamedTuple):
    """One figure of two brokers."""

    what: str
    values: tuple[str, str]      # as they stand in the table

    @property
    def numbers(self) -> tuple[float, float]:
        first, second = (float(value.replace(",", "")) for value in self.values)
        return first, second


def pairs(page: str) -> tuple[tuple[str, str], list[Pair]]:
    """Return (names of the two brokers, the figures) of the first table with a ratio in a page of Markdown."""
    head = re.search(r"^\| row +\| figure +\| +(\S+) \| +(\S+) \| +ratio \|$", page, re.MULTILINE)
    assert head is not None, "the page has no table of two brokers"
    return (head[1], head[2]), list(_lines(page[head.end():]))


def _lines(table: str) -> Iterator[Pair]:
    row = ""
    for line in table.strip().split("\n")[1:]:      # behind the rule
        if not line.startswith("|"):
            return
        what, figure, first, second, _ = (cell.strip() for cell in line.strip("|").split("|"))
        row = what or row
        if "-" in (first, second):      # one of the brokers was not measured
            continue
        yield Pair(f"{row}: {figure}", (first, second))


def drawn(page: str) -> str:
    """Return the picture of a page's table, as SVG."""
    names, figures = pairs(page)
    height = TOP + PAIR * len(figures)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
             'font-size="12" role="img">',
             f"<title>{escape(names[0])} beside {escape(names[1])}</title>",
             f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    for at, (name, colour) in enumerate(zip(names, COLOURS, strict=True)):
        lines += [f'<rect x="{BAR_X + 120 * at}" y="20" width="{BAR}" height="{BAR}" fill="{colour}"/>',
                  _text(BAR_X + 120 * at + BAR + 6, 32, name)]
    for at, pair in enumerate(figures):
        top = TOP + PAIR * at
        lines.append(_text(LABEL_X, top + BAR + 4, pair.what))
        for which, (value, number) in enumerate(zip(pair.values, pair.numbers, strict=True)):
            length, y = round(BAR_WIDTH * number / max(pair.numbers), 1), top + which * (BAR + GAP)
            lines += [f'<rect x="{BAR_X}" y="{y}" width="{length}" height="{BAR}" fill="{COLOURS[which]}"/>',
                      _text(BAR_X + length + 6, y + BAR - 3, value)]
    return "\n".join([*lines, "</svg>", ""])


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}" fill="#24292f">{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawn(PAGE.read_text()))
