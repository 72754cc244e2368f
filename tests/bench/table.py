"""Measures one broker, or two side by side, and prints a table.

    python tests/bench/table.py --broker geminga=127.0.0.1:6650,pid=123 [--broker pulsar=127.0.0.1:16650,pid=456]
                                [--rows publish,e2e] [--seconds 10] [--rounds 3] [--markdown]

With two brokers every row is measured on the first and then on the second, as many times as there are rounds; a figure
is the median of its rounds, and the ratio is the first broker's figure over the second's.  Every measurement has topics
of its own and a warm-up.  CPU and memory are those of the process given and all below it; without a pid these figures
are left out. Payloads are of 100 bytes, subscriptions exclusive unless a row says otherwise.  Progress goes to stderr.
"""

import argparse
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from link import BrokerError, Load, Refused
from load import Figures, address, measure, measure_backlog, topic_names
from usage import memory_bytes

from geminga.supervisor.load.wire import WireError

BATCH = {"batch": 100, "window": 5000, "lead": 1_000_000}
TOPICS, TOPICS_PERMITS, TOPICS_RATE = 500, 1000, 10_000
PACED_RATE = 2000
# seconds of rest before memory is read; long against the times after which brokers drop cached entries
SETTLE_S = 5.0
REFUSED = "refused"

Cells = dict[str, float | str]  # figure -> value


@dataclass(frozen=True, slots=True)
class Broker:
    name: str
    host: str
    port: int
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    seconds: float
    warmup_s: float
    backlog: int
    soak: int


def _load(broker: Broker, *, topics: int = 1, **changes: object) -> Load:
    return Load(broker.host, broker.port, topic_names(topics), **changes)


def _run(broker: Broker, settings: Settings, **changes: object) -> Figures:
    return measure(_load(broker, **changes), pid=broker.pid, warmup_s=settings.warmup_s, seconds=settings.seconds)


def _throughput(figures: Figures, *, published: bool = False) -> Cells:
    rate = figures.published_rate if published else figures.arrived_rate
    return {"messages/s": rate, "broker CPU us/message": figures.cpu_us, "own CPU us/message": figures.own_cpu_us}


def idle(broker: Broker, settings: Settings) -> Cells:
    return {"PSS MiB": memory_bytes(broker.pid, "pss") / 2**20 if broker.pid else math.nan}


def publish(broker: Broker, settings: Settings) -> Cells:
    return _throughput(_run(broker, settings, consumers=0), published=True)


def e2e(broker: Broker, settings: Settings, **changes: object) -> Cells:
    return _throughput(_run(broker, settings, **changes))


def backlog(broker: Broker, settings: Settings) -> Cells:
    """Measure reading a backlog; the warm-up reads one too, a tenth as long."""
    measure_backlog(_load(broker), settings.backlog // 10, pid=None)
    return {"messages/s": measure_backlog(_load(broker), settings.backlog, pid=broker.pid).arrived_rate}


def topics(broker: Broker, settings: Settings) -> Cells:
    cells = _throughput(_run(broker, settings, topics=TOPICS, permits=TOPICS_PERMITS))
    paced = _run(broker, settings, topics=TOPICS, permits=TOPICS_PERMITS, rate=TOPICS_RATE)
    return cells | {f"at {TOPICS_RATE}/s: publish p99 ms": _percentile(paced.publish_ms, 99)}


def paced(broker: Broker, settings: Settings) -> Cells:
    figures = _run(broker, settings, rate=PACED_RATE)
    return {
        "publish p50 ms": _percentile(figures.publish_ms, 50),
        "publish p99 ms": _percentile(figures.publish_ms, 99),
        "arrival p50 ms": _percentile(figures.arrival_ms, 50),
        "broker CPU us/message": figures.cpu_us,
    }


def soak(broker: Broker, settings: Settings) -> Cells:
    """Measure private memory after a warm-up and after the messages, both at rest."""
    if not broker.pid:
        return {"private memory growth MiB": math.nan}
    _run(broker, replace(settings, seconds=1.0))
    time.sleep(SETTLE_S)
    before = memory_bytes(broker.pid, "uss")
    arrived_rate = measure(_load(broker, limit=settings.soak), pid=broker.pid, warmup_s=1.0, seconds=0).arrived_rate
    time.sleep(SETTLE_S)
    after = memory_bytes(broker.pid, "uss")
    return {"private memory growth MiB": (after - before) / 2**20, "private memory MiB": after / 2**20,
            "messages/s": arrived_rate}


def shared(broker: Broker, settings: Settings, *, kind: str) -> Cells:
    cells: Cells = {}
    for consumers in (1, 4):
        label = f"{consumers} consumer{'s' if consumers > 1 else ''}: "
        try:
            some = e2e(broker, settings, kind=kind, consumers=consumers)
        except Refused as error:
            _say(f"{broker.name} refused: {error}")
            some = dict.fromkeys(("messages/s", "broker CPU us/message"), REFUSED)
        cells |= {label + figure: value for figure, value in some.items()}
    return cells


def _percentile(times_ms: np.ndarray, part: float) -> float:
    return float(np.percentile(times_ms, part)) if len(times_ms) else math.nan


# Memory at rest is measured first, as it is that of a broker nobody has used yet.
ROWS: dict[str, tuple[str, Callable[[Broker, Settings], Cells]]] = {
    "idle": ("idle memory", idle),
    "publish": ("publish, one connection", publish),
    "e2e": ("publish and consume", e2e),
    "batch": ("publish and consume, 100 to a batch", partial(e2e, **BATCH)),
    "backlog": ("read a backlog", backlog),
    "topics": (f"publish and consume, {TOPICS} topics", topics),
    "paced": (f"one topic at {PACED_RATE}/s", paced),
    "soak": ("memory after many messages", soak),
    "shared": ("shared subscription", partial(shared, kind="shared")),
    "key_shared": ("key_shared subscription", partial(shared, kind="key_shared")),
}
ONLY_WHEN_ASKED = ("soak", "shared", "key_shared")


# --- running and printing ----------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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
            _say(f"{row} round {round_ + 1}, {broker.name}: {shown}")
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
    parser.add_argument("--broker", type=_broker, action="append", required=True, metavar="NAME=HOST:PORT[,pid=PID]",
                        help="one or two")
    parser.add_argument("--rows", type=_rows, default=[row for row in ROWS if row not in ONLY_WHEN_ASKED],
                        help=", ".join(ROWS))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warmup", type=float, default=3, help="seconds of the same load before each measurement")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--backlog", type=int, default=1_000_000, help="messages")
    parser.add_argument("--soak", type=int, default=20_000_000, help="messages")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    if len(asked.broker) > 2 or asked.rounds < 1:
        parser.error("one or two brokers, and at least one round")
    settings = Settings(asked.seconds, asked.warmup, asked.backlog, asked.soak)
    lines = []
    try:
        for row in asked.rows:
            lines += lines_of(row, measure_row(row, asked.broker, settings, asked.rounds))
    except BrokerError as error:
        print(f"table: {error}", file=sys.stderr)
        return 1
    names = [broker.name for broker in asked.broker]
    print_table(["row", "figure", *names, *(["ratio"] if len(names) == 2 else [])], lines, markdown=asked.markdown)
    print(f"\n{machine()}; {asked.seconds:g} s a measurement after {asked.warmup:g} s of warm-up, {asked.rounds} "
          "round(s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
