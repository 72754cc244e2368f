"""`geminga nightly`: runs the nightly job by hand or by a timer, prints its plan, or the report of its last run.

numpy, Arrow and Spark are imported only when there is something to compact.
"""
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from geminga.supervisor.cli import installed, show
from geminga.supervisor.configuration import units

DONE, FAILED, WRONG_USAGE, REFUSED = range(4)      # exit statuses
_PR_SET_PDEATHSIG = 1
_LINE_SECONDS = 10           # time between two lines of progress without a terminal
_ROWS_MAX = 50               # topics in a printed report; --json has all


class _Size(click.ParamType):
    name = "size"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        try:
            return units.size(value)
        except ValueError as error:
            self.fail(str(error), parameter, context)


@click.command(epilog="Exit status: 0 done; 1 a part of it failed; 2 wrong usage; 3 it cannot run: another run is "
                      "under way, the broker does not answer, or Spark is wanted and a part of it is missing.")
@click.argument("what", type=click.Choice(["run", "plan", "report", "failed"]), default="run")
@click.option("--config", metavar="FILE", help="the broker's: TOML, or Pulsar's broker.conf")
@click.option("--data-dir", metavar="DIR", help="the broker's (default: ./data, or the installed broker's)")
@click.option("--topic", "topics", metavar="NAME", multiple=True,
              help="compact only this topic, whatever its threshold; may be repeated")
@click.option("--pattern", metavar="REGEX", default="", help="compact only topics whose whole names match")
@click.option("--engine", type=click.Choice(["auto", "here", "spark"]),
              help="compact in this process (here) or in Spark (default: auto)")
@click.option("--master", metavar="MASTER",
              help="Spark's master: spark://HOST:7077, local[2] (default: this host's cores)")
@click.option("--cores", metavar="N", help="cores of this host for Spark (default: all)")
@click.option("--memory", type=_Size(), help="memory of Spark's process (default: 640M)")
@click.option("--json", "is_json", is_flag=True, help="print JSON")
@click.option("--partitions", hidden=True)            # from the broker: compact these partitions, and nothing else
@click.option("--parent", type=int, hidden=True)      # from the broker: end together with this process
def nightly(what: str, config: str | None, topics: tuple[str, ...], pattern: str, is_json: bool,
            partitions: str | None, parent: int | None, **options: Any) -> int:
    """Compact topics and give back disk space, as a timer does every night.

    First, topics with new messages are compacted if they have a compaction threshold or were compacted before.  Then
    every topic gives back the space of messages that retention, expiry and deletions have left.  A broker may serve
    the data folder meanwhile.

    `plan` prints what would be compacted and changes nothing; `report` prints the report of the last night.
    `failed` is for the service manager, which gives the result of a run in MONITOR_SERVICE_RESULT: the result is
    logged, and stands in the report.
    """
    if partitions is not None:
        die_with(parent)
    from geminga.supervisor.configuration import config as configuration
    given = {"data_dir": options["data_dir"], "nightly.engine": options["engine"], "nightly.master": options["master"],
             "nightly.cores": options["cores"], "nightly.memory_bytes": options["memory"]}
    try:
        loaded, _ = configuration.load(installed.configuration(config, options["data_dir"]), os.environ, given)
    except configuration.ConfigError as error:
        return _wrong(WRONG_USAGE, error)
    if not (loaded.data_dir / "catalogue.sqlite").is_file():
        return _wrong(WRONG_USAGE, f"{loaded.data_dir} is no data folder of a broker")
    return _run(what, loaded, topics, pattern, is_json=is_json, partitions=partitions)


def die_with(parent: int | None) -> None:
    """Have the kernel kill this process when its parent ends.  Exit if the parent has ended already."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)      # the broker's processes, which started this one, ignore them
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(REFUSED)


def _wrong(status: int, why: object) -> int:
    print(f"geminga: {why}", file=sys.stderr)
    return status


def _run(what: str, config: Any, topics: tuple[str, ...], pattern: str, *, is_json: bool,
         partitions: str | None) -> int:
    import re

    from geminga.proto.errors import Refusal
    from geminga.storage.catalogue.catalogue import CatalogueError
    from geminga.storage.runtime.log import log
    from geminga.supervisor.tasks import job_socket, nights
    try:
        nights.check(config)
        if partitions is not None:
            nights.be_polite(config.nightly.niceness)
            return DONE if nights.on_demand(config, map(int, partitions.split(","))) else FAILED
        if what == "failed":
            log.begin(config.log)
            log.error(f"the nightly job failed: {nights.failed(config, os.environ)}; "
                      "its report: geminga nightly report", code="G514")
            return DONE
        if what == "report":
            report = job_socket.last_report(config.data_dir)
            if not report:
                return _wrong(FAILED, f"there was no night yet: {config.data_dir / job_socket.REPORT} is not there")
        else:
            targets = nights.targets(config, topics, pattern)
            if what == "plan":
                return _show_plan(nights.planned(config, targets), is_json=is_json)
            nights.be_polite(config.nightly.niceness)
            with _ProgressBar() as bar:
                report = nights.run(config, targets, bar.compaction, bar.other)
    except re.error as error:
        return _wrong(WRONG_USAGE, f"{pattern!r} is no regular expression: {error}")
    except (LookupError, Refusal) as error:
        return _wrong(WRONG_USAGE, getattr(error, "message", error))
    except (job_socket.CannotRun, CatalogueError, OSError) as error:
        return _wrong(REFUSED, error)
    print(json.dumps(report) if is_json else _text(report))
    return FAILED if report["status"] != nights.SUCCESS and what == "run" else DONE


# -- progress

class _ProgressBar:
    """A progress bar on a terminal; elsewhere a line every _LINE_SECONDS."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._what, self._done, self._next = "", 0, time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> "_ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def compaction(self, progress: Any) -> None:
        self._show(f"compaction, {progress.stage}", progress.done, progress.total,
                   lambda: f"messages, {progress.rate:,.0f}/s, {_time(progress.left_s)} left")

    def other(self, what: str, done: int, total: int) -> None:
        self._show(what, done, total, lambda: "topics")

    def __repr__(self) -> str:
        return f"<_ProgressBar {self._what!r} done={self._done}>"

    def _show(self, what: str, done: int, total: int, more: Callable[[], str]) -> None:
        if not self._is_terminal:
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + _LINE_SECONDS
                print(f"{what}: {done:,} of {total:,} {more()}", file=sys.stderr, flush=True)
            return
        if what != self._what:
            self._end()
            self._bar = click.progressbar(length=total, label=f"{what:<20}", file=sys.stderr, show_eta=False,
                                          item_show_func=lambda text: text)
            self._bar.__enter__()
            self._what, self._done = what, 0
        self._bar.update(done - self._done, more())
        self._done = done

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


# -- plan and report

def _show_plan(planned: list[Any], *, is_json: bool) -> int:
    rows = [{"topic": one.target.topic, "due": one.is_due, "why": one.why, "messages": one.messages, "bytes": one.size,
             "view_messages": one.view_messages, "view_bytes": one.view_size} for one in planned]
    if is_json:
        print(json.dumps(rows))
    elif rows:
        print(show.text(rows))
    else:
        print("Nothing is compacted: no topic has a compaction threshold, or was compacted before")
    return DONE


def _text(report: dict[str, Any]) -> str:
    ended, totals = datetime.fromtimestamp(report["ended_ms"] / 1000), report["totals"]
    lines = [f"{report['status']}: ended {ended:%Y-%m-%d %H:%M:%S}, after {report['seconds']:.1f} s"
             + (f"; {report['error']}" if report["error"] else "")]
    done = [{"topic": one["topic"], "outcome": one["outcome"] + (f": {one['error']}" if one["error"] else ""),
             "messages": f"{one['messages_in']:,} -> {one['messages_out']:,}",
             "bytes": f"{one['bytes_in']:,} -> {one['bytes_out']:,}",
             "keys": f"{one['keys']:,}", "deleted": f"{one['tombstones']:,}", "seconds": round(one["seconds"], 2)}
            for one in report["compaction"]]
    lines += ["", f"Compacted {totals['compacted']} of {report['partitions']} partitions ({report['engine']})",
              *_table(done)]
    if report["retention"] is None:
        return "\n".join([*lines, "",
                          "Nothing was given back: no broker serves the data folder, and only a broker can do that"])
    given = [{"topic": one["topic"], "messages": f"{one['messages_before']:,} -> {one['messages_after']:,}",
              "bytes": f"{one['bytes_before']:,} -> {one['bytes_after']:,}", "expired": f"{one['expired']:,}",
              "names forgotten": one["names_forgotten"], "seconds": round(one["seconds"], 3)}
             for one in report["retention"]["topics"]]
    deleted, errors = report["retention"]["deleted"], report["retention"]["errors"]
    lines += ["", f"Given back {totals['given_back']:,} bytes, by {len(given)} of "
              f"{report['retention']['partitions']} partitions"
              + (f" and {deleted['folders']} that were deleted" if deleted["folders"] else ""), *_table(given)]
    return "\n".join([*lines, *(["", "Not dealt with", *_table(errors)] if errors else [])])


def _table(rows: list[dict[str, Any]]) -> list[str]:
    left = len(rows) - _ROWS_MAX
    return [show.text(rows[:_ROWS_MAX])] * bool(rows) + [f"... and {left} more; --json has all"] * (left > 0)
