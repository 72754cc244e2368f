"""`geminga nightly`: runs the nightly job by hand or by a timer, prints its plan, or the report of its last run.

numpy, Arrow and Spark are imported only when there is something to compact.
"""
import ctypes
import os
import signal
import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from geminga.storage.runtime import units
from geminga.supervisor.cli import options as cli_options
from geminga.supervisor.cli import output, show
from geminga.supervisor.cli.completion import complete_topic
from geminga.supervisor.cli.progress import watched
from geminga.supervisor.wording.human import night_progress, size

if TYPE_CHECKING:
    from geminga.supervisor.tasks.job_socket import NightReport

DONE, FAILED, WRONG_USAGE, REFUSED, PARTLY = range(5)      # exit statuses
_PR_SET_PDEATHSIG = 1
_LINES_MAX = 10              # about rejected or damaged messages of a table, in a printed report
_ROWS_MAX = 50               # topics in a printed report; --json has all


@click.command(epilog="Exit status: 0 done; 1 a part of it failed; 2 wrong usage; 3 it cannot run: another run is "
                      "under way, the broker does not answer, or Spark is wanted and a part of it is missing; "
                      "4 done, but some messages are no rows of their tables: rejected, or damaged.")
@click.argument("what", type=click.Choice(["run", "plan", "report", "failed"]), default="run")
@cli_options.CONFIG
@cli_options.DATA_DIR
@click.option("--topic", "topics", metavar="NAME", multiple=True, shell_complete=complete_topic,
              help="Compact only this topic, whatever its threshold; repeatable.")
@click.option("--pattern", metavar="REGEX", default="", 
              help="Compact only topics whose whole names match.")
@click.option("--engine", type=click.Choice(["auto", "here", "spark"]), show_default="auto",
              help="Compact in this process (here) or in Spark.")
@click.option("--master", metavar="MASTER", show_default="this host's cores",
              help="Spark's master: spark://HOST:7077, local[2].")
@click.option("--cores", metavar="N", show_default="all", help="Cores of this host for Spark.")
@click.option("--ends-at", "until", metavar="HH:MM", show_default="when all is done",
              help="Be over at this time of day; topics with the most new bytes come first.")
@click.option("--memory", type=output.Converted("size", units.size), show_default="640M",
              help="Memory of Spark's process.")
@output.FORM
@output.json_flag("json")
@click.option("--partitions", hidden=True)            # from the broker: compact these partitions, and nothing else
@click.option("--parent", type=int, hidden=True)      # from the broker: end together with this process
def nightly(what: str, config: str | None, topics: tuple[str, ...], pattern: str, form: str,
            partitions: str | None, parent: int | None, **options: Any) -> int:
    """Compact topics, export tables, and give back disk space.

    A timer runs this command every night.  First, topics with new messages are compacted if they have a compaction
    threshold or were compacted before.  Then topics with the policy `export` become tables, with what is new.  At last
    every topic gives back the space of messages that retention, expiry and deletions have left.  A broker may serve the
    data folder meanwhile.

    `plan` prints what would be compacted and exported, and changes nothing; `report` prints the report of the last
    night.  `failed` is for the service manager, which gives the result of a run in MONITOR_SERVICE_RESULT: the result
    is logged, and stands in the report.
    """
    if partitions is not None:
        die_with(parent)
    given = {f"nightly.{name}": options[name] for name in ("engine", "master", "cores", "until")}
    loaded = cli_options.configured(config, options["data_dir"], **given,
                                    **{"nightly.memory_bytes": options["memory"]})
    cli_options.become_owner_of_folder(loaded.data_dir)
    return _run(what, loaded, topics, pattern, output.Output(form), partitions=partitions)


def die_with(parent: int | None) -> None:
    """Have the kernel kill this process when its parent ends.  Exit if the parent has ended already."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)      # the broker's processes, which started this one, ignore them
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(REFUSED)


def _run(what: str, config: Any, topics: tuple[str, ...], pattern: str, shown: output.Output, *,
         partitions: str | None) -> int:
    import re

    from geminga.proto.errors import Refusal
    from geminga.storage.catalogue.catalogue import CatalogueError
    from geminga.storage.runtime.log import log
    from geminga.supervisor.tasks import job_socket, nights, tables
    from geminga.supervisor.tasks.night_engines import Engines
    from geminga.supervisor.tasks.night_progress import NightProgress
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
                raise output.Failed(FAILED, f"there was no night yet: {config.data_dir / job_socket.REPORT} is not "
                                            "there")
        else:
            targets = nights.targets(config, topics, pattern)
            wanted = tables.wanted(config, [target.topic for target in targets] if topics or pattern else None)
            if what == "plan":
                with Engines(config, is_night=True) as engines:
                    exported = tables.plan(config, wanted, engines.for_tables(0)) if wanted else []
                return _show_plan(nights.planned(config, targets), exported, shown)
            nights.be_polite(config.nightly.niceness)
            progress = NightProgress()

            def look() -> tuple[float, str]:
                now = progress.look()
                return now.ratio, night_progress(asdict(now))

            with watched(look):
                report = nights.run(config, targets, wanted, progress)
    except re.error as error:
        raise output.Failed(WRONG_USAGE, f"{pattern!r} is no regular expression: {error}") from None
    except (LookupError, Refusal) as error:
        raise output.Failed(WRONG_USAGE, getattr(error, "message", error)) from None
    except (job_socket.CannotRun, CatalogueError, OSError) as error:
        raise output.Failed(REFUSED, error) from None
    shown.value(report, _text)
    if what == "report":
        return DONE
    is_part = bool(report["totals"]["rejected"] or report["totals"]["damaged"])
    return FAILED if report["status"] != nights.SUCCESS else PARTLY if is_part else DONE


# -- plan and report

def _show_plan(planned: list[Any], exported: list[Any], shown: output.Output) -> int:
    rows = [{"work": "compaction", "topic": one.target.topic, "due": one.is_due, "why": one.why,
             "messages": one.messages, "bytes": one.size, "view_messages": one.view_messages,
             "view_bytes": one.view_size, "read_bytes": one.size_read}
            for one in planned]
    rows += [{"work": f"table of {one.wanted.content}", "topic": str(one.wanted.topic),
              "due": bool(one.partitions) and not one.error,
              "why": one.error or (f"{one.messages:,} messages" if one.partitions else "nothing new"),
              "messages": one.messages, "bytes": one.bytes_new, "view_messages": 0, "view_bytes": 0,
              "read_bytes": one.bytes_new}
             for one in exported]
    if not shown.is_for_people:
        shown.rows(rows, ())
    elif rows:
        print(show.text(rows))
    else:
        print("Nothing is compacted or exported: no topic has a compaction threshold, was compacted before, "
              "or has the policy export")
    return DONE


def _text(report: "NightReport") -> str:
    ended, totals = datetime.fromtimestamp(report["ended_ms"] / 1000), report["totals"]
    lines = [f"{report['status']}: ended {ended:%Y-%m-%d %H:%M:%S}, after {report['seconds']:.1f} s"
             + (f"; {report['error']}" if report["error"] else "")]
    done = [{"topic": one["topic"], "outcome": one["outcome"] + (f": {one['error']}" if one["error"] else ""),
             "messages": f"{one['messages_in']:,} -> {one['messages_out']:,}",
             "bytes": f"{size(one['bytes_in'])} -> {size(one['bytes_out'])}",
             # a report of an older program does not say it
             "read": size(one["bytes_read"]) if "bytes_read" in one else "",
             "keys": f"{one['keys']:,}", "deleted": f"{one['tombstones']:,}", "seconds": round(one["seconds"], 2)}
            for one in report["compaction"]]
    lines += ["", f"Compacted {totals['compacted']} of {report['partitions']} partitions ({report['engine']})",
              *_table(done), *_not_due(report), *_tables(report)]
    if report["retention"] is None:
        return "\n".join([*lines, "",
                          "Nothing was given back: no broker serves the data folder, and only a broker can do that"])
    given = [{"topic": one["topic"], "messages": f"{one['messages_before']:,} -> {one['messages_after']:,}",
              "bytes": f"{size(one['bytes_before'])} -> {size(one['bytes_after'])}", "expired": f"{one['expired']:,}",
              "names forgotten": one["names_forgotten"], "seconds": round(one["seconds"], 3)}
             for one in report["retention"]["topics"]]
    deleted, errors = report["retention"]["deleted"], report["retention"]["errors"]
    lines += ["", f"Given back {size(totals['given_back'])}, by {len(given)} of "
              f"{report['retention']['partitions']} partitions"
              + (f" and {deleted['folders']} that were deleted" if deleted["folders"] else ""), *_table(given)]
    return "\n".join([*lines, *(["", "Not dealt with", *_table(errors)] if errors else [])])


def _not_due(report: "NightReport") -> list[str]:
    """Return a line for each reason for which partitions needed no compaction."""
    reasons = report.get("not_due") or {}      # a report of an older program has none
    return [f"Not due: {number:,} partition{'' if number == 1 else 's'}: {why}" for why, number in reasons.items()]


def _tables(report: "NightReport") -> list[str]:
    """Return lines about the tables of a night, and about messages that are no rows of theirs."""
    tables = report.get("tables") or []      # a report of an older program has none
    if not tables:
        return []
    rows = [{"topic": one["topic"], "content": one["content"],
             "outcome": one["outcome"] + (f": {one['error']}" if one["error"] else ""), "rows": f"{one['rows']:,}",
             "rejected": f"{one['rejected']:,}", "files": one["files"], "bytes": size(one["bytes"])}
            for one in tables]
    lines = ["", f"Exported {report['totals']['exported']:,} messages to {len(tables)} tables", *_table(rows)]
    for table in tables:
        lines += [f"{table['topic']}: rejected: {text}" for text in table["rejected_messages"][:_LINES_MAX]]
        lines += [f"{table['topic']}: damaged: {text}" for text in table["damage"][:_LINES_MAX]]
    return lines


def _table(rows: list[dict[str, Any]]) -> list[str]:
    left = len(rows) - _ROWS_MAX
    return [show.text(rows[:_ROWS_MAX])] * bool(rows) + [f"... and {left} more; -o json has all"] * (left > 0)
