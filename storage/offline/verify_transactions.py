"""Check the tables of transactions' coordinators."""
from pathlib import Path

from geminga.storage.offline.findings import Finding, Severity, unreadable
from geminga.storage.transactions import transaction_table


def check(data_dir: Path) -> list[Finding]:
    """Return findings about the tables of all coordinators."""
    findings: list[Finding] = []
    for folder in sorted((data_dir / "transactions").glob("*")):
        if not folder.name.isdigit():
            continue
        path = transaction_table.path_of(data_dir, int(folder.name))
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            findings.append(unreadable(path, error))
            continue
        half, wrong = len(raw) // 2, transaction_table.wrong_copies(raw, int(folder.name))
        is_lost = len(wrong) == 2
        findings += [Finding(
            path, number * half, half, f"copy {number + 1} of the coordinator's table is damaged: {why}",
            "so is the other copy: its transactions are aborted" if is_lost else "the other is used",
            Severity.LOSS if is_lost else Severity.HARMLESS) for number, why in wrong.items()]
    return findings
