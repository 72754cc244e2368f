"""Measures one broker, or two side by side, and prints a table.

    python tests/bench/table.py --broker geminga=127.0.0.1:6650,pid=123 [--broker pulsar=127.0.0.1:16650,pid=456]
                                [--rows publish,e2e] [--seconds 10] [--rounds 3] [--markdown]
    python tests/bench/table.py --against COMMIT [--rows ...]

With two brokers every row is measured on the first and then on the second, as many times as there are rounds; a figure
is the median of its rounds, and the ratio is the first broker's figure over the second's.  --against measures this
source tree and that commit of it, each served from a folder of its own by this interpreter.  Every measurement has
topics of its own and a warm-up.  CPU and memory are those of the process given and all below it; without a pid these
figures are left out. Payloads are of 100 bytes, subscriptions exclusive unless a row says otherwise.  Progress goes to
stderr.
"""

import argparse
import contextlib
import math
import os
import platform
import statistics
import sys
from pathlib import Path

from commits import serving, source_of
from link import BrokerError
from load import address
from rows import ONLY_WHEN_ASKED, REFUSED, ROWS, Broker, Cells, Settings, say

from geminga.supervisor.load.wire import WireError

# --- running and printing ----------------------------------------------------------------------------------------


def measure_row(row: str, brokers: list[Broker], settings: Settings, rounds: int) -> list[Cells]:
    """Return one Cells for each broker: medians over the rounds, in which the brokers take turns."""
    taken: list[list[Cells]] = [[] for _ in brokers]
    for round_ in range(1 if row == "idle" else rounds):
        for broker, mine in zip(brokers, taken, strict=True):
            try:
                mine.append(ROWS[row][1](broker, settings))
            except (BrokerError, WireError) as error:
                raise BrokerError(f"{broker.name}, row {row}: {error}") from None
            shown = ", ".join(f"{figure} {_number(value)}" for figure, value in mine[-1].items())
            say(f"{row} round {round_ + 1}, {broker.name}: {shown}")
    return [_medians(mine) for mine in taken]


def _medians(rounds: list[Cells]) -> Cells:
    def median(figure: str) -> float | str:
        values = [cells[figure] for cells in rounds if figure in cells]
        return REFUSED if REFUSED in values else statistics.median(values)

    return {figure: median(figure) for figure in rounds[0]}


def lines_of(row: str, measured: list[Cells]) -> list[list[str]]:
    """Return table lines: what was measured, the figure, each broker's value and, of two, the ratio."""
    figures = dict.fromkeys(figure for cells in measured for figure in cells
                            if not figure.endswith("own CPU us/message"))
    lines = []
    for figure in figures:
        values = [cells.get(figure, math.nan) for cells in measured]
        if all(value != value for value in values):
            continue
        lines.append([ROWS[row][0] if not lines else "", figure, *map(_number, values),
                      *([_ratio(*values)] if len(values) == 2 else [])])
    return lines


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    if value != value:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _ratio(first: float | str, second: float | str) -> str:
    if isinstance(first, str) or isinstance(second, str) or first != first or not second > 0:
        return "-"
    return f"{first / second:.2f}"


def print_table(header: list[str], lines: list[list[str]], *, markdown: bool) -> None:
    widths = [max(len(line[at]) for line in [header, *lines]) for at in range(len(header))]
    rule = ["-" * width if at < 2 else "-" * (width - 1) + ":" for at, width in enumerate(widths)]
    for line in [header, rule if markdown else ["-" * width for width in widths], *lines]:
        cells = [cell.ljust(width) if at < 2 else cell.rjust(width)
                 for at, (cell, width) in enumerate(zip(line, widths, strict=True))]
        print(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip())


def machine() -> str:
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
              if line.startswith("model name")]
    model = models[0] if models else platform.machine()
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, Python {platform.python_version()}"
    )


def _broker(text: str) -> Broker:
    name, equals, rest = text.partition("=")
    where, comma, pid = rest.partition(",pid=")
    if not equals or (comma and not pid.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=HOST:PORT[,pid=PID]")
    return Broker(name, *address(where), pid=int(pid) if pid else None)


def _rows(text: str) -> list[str]:
    unknown = set(text.split(",")) - set(ROWS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    return [row for row in ROWS if row in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", type=_broker, action="append", default=[], metavar="NAME=HOST:PORT[,pid=PID]",
                        help="one or two")
    parser.add_argument("--against", metavar="COMMIT", help="measure this source tree and that commit in turns")
    parser.add_argument("--rows", type=_rows, default=[row for row in ROWS if row not in ONLY_WHEN_ASKED],
                        help=", ".join(ROWS))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warmup", type=float, default=3, help="seconds of the same load before each measurement")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--backlog", type=int, default=1_000_000, help="messages")
    parser.add_argument("--soak", type=int, default=20_000_000, help="messages")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    if not (not asked.broker if asked.against else len(asked.broker) in (1, 2)):
        parser.error("one or two brokers, or a commit")
    if asked.rounds < 1:
        parser.error("at least one round")
    settings = Settings(asked.seconds, asked.warmup, asked.backlog, asked.soak)
    lines = []
    try:
        with contextlib.ExitStack() as served:
            brokers = asked.broker or [served.enter_context(serving("new", source_of(None))),
                                       served.enter_context(serving("old", source_of(asked.against)))]
            for row in asked.rows:
                lines += lines_of(row, measure_row(row, brokers, settings, asked.rounds))
    except BrokerError as error:
        print(f"table: {error}", file=sys.stderr)
        return 1
    names = [broker.name for broker in brokers]
    print_table(["row", "figure", *names, *(["ratio"] if len(names) == 2 else [])], lines, markdown=asked.markdown)
    print(f"\n{machine()}; {asked.seconds:g} s a measurement after {asked.warmup:g} s of warm-up, {asked.rounds} "
          "round(s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
