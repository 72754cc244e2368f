"""`geminga verify`, and the report of damage that `geminga restore` ends with."""
import contextlib
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
    from geminga.storage.offline import findings
    folder = installed.folder(data_dir)
    installed.become_owner(folder, writes=repair)
    try:
        if not folder.is_dir():
            raise data_folder.CannotUse(f"{folder}: there is no such folder")
        data_folder.check(folder)
    except (data_folder.CannotUse, OSError) as error:
        raise output.Failed(findings.Severity.UNREADABLE, error) from None
    with locks.hold(folder) if repair else contextlib.nullcontext(False) as is_served:
        if is_served:
            raise output.Failed(findings.Severity.UNREADABLE,
                                f"{folder} is served by a broker: it can be verified, but not repaired")
        return report_damage(folder, output.Output(form), repairs=repair)


def report_damage(data_dir: Path, shown: output.Output, *, repairs: bool) -> int:
    """Print all damage of the folder, and repair it if `repairs`.  Return the exit status."""
    status = 0

    def lines() -> Iterator[Line]:
        nonlocal status
        for line in damage(data_dir, repairs=repairs):
            status = line.status
            yield line

    shown.stream(lines(), lambda line: line.row, lambda line: line.text)
    return status


class Line(NamedTuple):
    """A line of the report: a finding, the summary of all findings, or the result of a repair."""

    text: str                  # for people
    row: dict[str, Any]        # for programs
    status: int                # the exit status so far


def damage(data_dir: Path, *, repairs: bool) -> Iterator[Line]:
    """Iterate over the findings in a data folder, then the summary, then the result of the repair if there was one."""
    import time
    from collections import Counter
    from dataclasses import asdict

    from geminga.storage.offline import repair, verify
    from geminga.supervisor.host.host import core_count
    began, seen, findings, status = time.monotonic(), verify.Seen(), [], 0
    with done_of_total("ledgers") as tell:
        for finding in verify.walk(data_dir, processes=core_count(), seen=seen, told=tell):
            findings.append(finding)
            status = max(status, finding.severity)
            yield Line(str(finding), repair.as_json(finding), status)
    seconds = max(time.monotonic() - began, 1e-6)
    by_severity = Counter(finding.severity for finding in findings)
    counts = {severity.name.lower(): count for severity, count in sorted(by_severity.items())}
    kinds = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"
    yield Line(f"{seen.partitions} partitions, {seen.ledgers} ledgers, {seen.entries} entries; "
               f"{size(seen.bytes)} in {seconds:.1f} s, {size(seen.bytes / seconds)}/s; found: {kinds}",
               asdict(seen) | {"seconds": seconds, "found": counts}, status)
    if repairs and any(finding.severity for finding in findings):
        aside, made = repair.repair(data_dir, findings)
        findings = list(verify.walk(data_dir, processes=core_count()))
        remaining = sum(1 for finding in findings if finding.severity)
        yield Line(f"damaged bytes are in {aside}; {made} files were rebuilt, {remaining} findings are left",
                   {"aside": str(aside), "made": made, "left": remaining},
                   max((finding.severity for finding in findings), default=0))
