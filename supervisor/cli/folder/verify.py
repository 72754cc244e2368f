"""`geminga verify`, and the report of damage that `geminga restore` ends with."""
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from geminga.supervisor.cli import output
from geminga.supervisor.cli.progress import done_of_total
from geminga.supervisor.host import installed
from geminga.supervisor.wording.human import size


@click.command(epilog="Exit status: 0 nothing is damaged; 3 damage that costs nothing; 4 entries or states of "
                      "subscriptions are lost; 5 something could not be read, or not be repaired; 2 wrong usage.  "
                      "With --repair: by the damage that is left.")
@click.argument("data_dir", metavar="[DATA_DIR]", required=False)
@click.option("--repair", is_flag=True, help="Copy damaged bytes to DATA_DIR/damaged, and rebuild what can be rebuilt: "
              "indexes, headers, copies of state; no broker may serve the folder.")
@output.FORM
@output.json_flag("jsonl")
def verify(data_dir: str | None, repair: bool, form: str) -> int:
    """Look for damage in a data folder.

    A line for each finding has its place and its consequence.  A running broker may go on serving the folder, but none
    can be started on it meanwhile.  Without DATA_DIR it is ./data, or the installed broker's.  In forms for programs
    the last row is the summary.
    """
    from geminga.storage.disk import data_folder, locks
    from geminga.storage.errors import text_of
    from geminga.storage.offline import findings
    folder = installed.folder(data_dir)
    installed.become_owner(folder, writes=repair)
    try:
        if not folder.is_dir():
            raise data_folder.CannotUse(f"{folder}: there is no such folder")
        data_folder.check(folder)
    except (data_folder.CannotUse, OSError) as error:
        print(f"geminga: {text_of(error) if isinstance(error, OSError) else error}", file=sys.stderr)
        return findings.Severity.UNREADABLE
    with locks.hold(folder) if repair else contextlib.nullcontext(False) as is_served:
        if is_served:
            print(f"geminga: {folder} is served by a broker: it can be verified, but not repaired", file=sys.stderr)
            return findings.Severity.UNREADABLE
        return report_damage(folder, output.Output(form), repairs=repair)


def report_damage(data_dir: Path, shown: output.Output, *, repairs: bool) -> int:
    """Print all damage of the folder, and repair it if `repairs`.  Return the exit status."""
    status = 0

    def told() -> Iterator[Told]:
        nonlocal status
        for one in damage(data_dir, repairs=repairs):
            status = one.status
            yield one

    shown.stream(told(), lambda one: one.row, lambda one: one.text)
    return status


class Told(NamedTuple):
    """A finding, the summary of all findings, or the result of a repair."""

    text: str                  # for people
    row: dict[str, Any]        # for programs
    status: int                # the exit status so far


def damage(data_dir: Path, *, repairs: bool) -> Iterator[Told]:
    """Iterate over the findings in a data folder, then the summary, then the result of the repair if there was one."""
    import time
    from collections import Counter
    from dataclasses import asdict

    from geminga.storage.offline import repair, verify
    from geminga.supervisor.host.host import core_count
    began, seen, findings, status = time.monotonic(), verify.Seen(), [], 0
    with done_of_total("ledgers") as told:
        for finding in verify.walk(data_dir, processes=core_count(), seen=seen, told=told):
            findings.append(finding)
            status = max(status, finding.severity)
            yield Told(str(finding), repair.as_json(finding), status)
    seconds = max(time.monotonic() - began, 1e-6)
    by_severity = Counter(finding.severity for finding in findings)
    counts = {severity.name.lower(): count for severity, count in sorted(by_severity.items())}
    found = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"
    yield Told(f"{seen.partitions} partitions, {seen.ledgers} ledgers, {seen.entries} entries; "
               f"{size(seen.bytes)} in {seconds:.1f} s, {size(seen.bytes / seconds)}/s; found: {found}",
               asdict(seen) | {"seconds": seconds, "found": counts}, status)
    if repairs and any(finding.severity for finding in findings):
        aside, made = repair.repair(data_dir, findings)
        findings = list(verify.walk(data_dir, processes=core_count()))
        left = sum(1 for finding in findings if finding.severity)
        yield Told(f"damaged bytes are in {aside}; {made} files were rebuilt, {left} findings are left",
                   {"aside": str(aside), "made": made, "left": left},
                   max((finding.severity for finding in findings), default=0))
