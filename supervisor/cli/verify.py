"""`geminga verify`, and the report of damage that `geminga restore` ends with."""
import contextlib
import sys
from pathlib import Path
from typing import Any

import click


@click.command(epilog="Exit status: 0 nothing is damaged; 3 damage that costs nothing; 4 entries or states of "
                      "subscriptions are lost; 5 something could not be read, or not be repaired; 2 wrong arguments.  "
                      "With --repair: by the damage that is left.")
@click.argument("data_dir", metavar="DATA_DIR")
@click.option("--repair", is_flag=True, help="copy damaged bytes to DATA_DIR/damaged, and rebuild what can be rebuilt: "
              "indexes, headers, copies of state; no broker may serve the folder")
@click.option("--json", "is_json", is_flag=True, help="print an object a line, the summary last")
def verify(data_dir: str, repair: bool, is_json: bool) -> int:
    """Look for damage in a data folder, and print a line for each finding, with its place and its consequence.

    A running broker may go on serving the folder, but none can be started on it meanwhile.
    """
    from geminga.storage.disk import data_folder, locks
    from geminga.storage.errors import text_of
    from geminga.storage.offline import findings
    folder = Path(data_dir)
    try:
        data_folder.check(folder)
    except (data_folder.CannotUse, OSError) as error:
        print(f"geminga: {text_of(error) if isinstance(error, OSError) else error}", file=sys.stderr)
        return findings.Severity.UNREADABLE
    with locks.hold(folder) if repair else contextlib.nullcontext(False) as is_served:
        if is_served:
            print(f"geminga: {folder} is served by a broker: it can be verified, but not repaired", file=sys.stderr)
            return findings.Severity.UNREADABLE
        return report_damage(folder, is_json=is_json, repairs=repair)


def report_damage(data_dir: Path, *, is_json: bool, repairs: bool) -> int:
    """Print all damage of the folder, and repair it if `repairs`.  Return the exit status."""
    import json
    import time
    from collections import Counter
    from dataclasses import asdict

    from geminga.storage.offline import repair, verify
    from geminga.supervisor.configuration.config import core_count

    def say(text: str, **values: Any) -> None:
        print(json.dumps(values) if is_json else text, flush=True)

    began, seen, findings = time.monotonic(), verify.Seen(), []
    for finding in verify.walk(data_dir, processes=core_count(), seen=seen):
        findings.append(finding)
        say(str(finding), **repair.as_json(finding))
    seconds = max(time.monotonic() - began, 1e-6)
    by_severity = Counter(finding.severity for finding in findings)
    counts = {severity.name.lower(): count for severity, count in sorted(by_severity.items())}
    damage = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"
    say(f"{seen.partitions} partitions, {seen.ledgers} ledgers, {seen.entries} entries; "
        f"{seen.bytes} bytes in {seconds:.1f} s, {seen.bytes / seconds / 1e6:.0f} MB/s; found: {damage}",
        **asdict(seen), seconds=seconds, found=counts)
    if repairs and any(finding.severity for finding in findings):
        aside, made = repair.repair(data_dir, findings)
        findings = list(verify.walk(data_dir, processes=core_count()))
        left = sum(1 for finding in findings if finding.severity)
        say(f"damaged bytes are in {aside}; {made} files were rebuilt, {left} findings are left",
            aside=str(aside), made=made, left=left)
    return max((finding.severity for finding in findings), default=0)
