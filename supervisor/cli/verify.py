"""`geminga verify`, and the report of damage that `geminga restore` ends with."""
import contextlib
import sys
from pathlib import Path

import click


@click.command(epilog="Exit status: 0 nothing is damaged; 3 damage that costs nothing; 4 entries, or what is known of subscriptions, are "
                 "lost; 5 something could not be looked at, or not be repaired; 2 wrong arguments.  With --repair: by what is left.")
@click.argument("data_dir", metavar="DATA_DIR")
@click.option("--repair", is_flag=True, help="copy damaged bytes to DATA_DIR/damaged, and make anew what can be: indexes, headers, copies "
              "of state; no broker may serve the folder")
@click.option("--json", "is_json", is_flag=True, help="print an object a line, the summary last")
def verify(data_dir: str, repair: bool, is_json: bool) -> int:
    """Look for damage in a data folder, and print a line for each, with its place and its consequence.

    A broker may go on serving the folder; none can be started on it meanwhile.
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
            print(f"geminga: {folder} is served by a broker: it can be looked at, and not repaired", file=sys.stderr)
            return findings.Severity.UNREADABLE
        return report_damage(folder, is_json=is_json, repairs=repair)


def report_damage(data_dir, *, is_json: bool, repairs: bool) -> int:
    """Print what is damaged in the folder; returns the exit status."""
    import json
    import time
    from collections import Counter
    from dataclasses import asdict

    from geminga.storage.offline import repair, verify
    from geminga.supervisor.configuration.config import core_count

    def say(text: str, **values) -> None:
        print(json.dumps(values) if is_json else text, flush=True)

    began, seen, findings = time.monotonic(), verify.Seen(), []
    for finding in verify.walk(data_dir, processes=core_count(), seen=seen):
        findings.append(finding)
        say(str(finding), **repair.as_json(finding))
    seconds = max(time.monotonic() - began, 1e-6)
    counts = {severity.name.lower(): count for severity, count in sorted(Counter(found.severity for found in findings).items())}
    say(f"{seen.partitions} partitions, {seen.ledgers} ledgers, {seen.entries} entries; {seen.bytes} bytes in {seconds:.1f} s, "
        f"{seen.bytes / seconds / 1e6:.0f} MB/s; found: {', '.join(f'{count} {name}' for name, count in counts.items()) or 'nothing'}",
        **asdict(seen), seconds=seconds, found=counts)
    if repairs and any(found.severity for found in findings):
        aside, made = repair.repair(data_dir, findings)
        findings = list(verify.walk(data_dir, processes=core_count()))
        left = sum(1 for found in findings if found.severity)
        say(f"damaged bytes are in {aside}; {made} files were made anew, {left} findings are left", aside=str(aside), made=made, left=left)
    return max((found.severity for found in findings), default=0)
