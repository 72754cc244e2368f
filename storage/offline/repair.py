"""Repair a data folder: `geminga verify --repair` copies damaged bytes aside, then rebuilds what has a second
source.

    <data>/damaged/<time>/list.json                 one finding a line, with the name of the file that keeps its bytes
    <data>/damaged/<time>/<path>.<offset>           the damaged bytes, unchanged

Rebuilt are the header and rows of an index, a ledger's header, and one copy of a partition's state from the other copy.
A damaged entry stays in its place, because consumers see its checksum fail. Nothing is deleted.
"""
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from geminga.storage import format
from geminga.storage.cursors import state_file
from geminga.storage.cursors.state_file import StateFile
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import ledger_files
from geminga.storage.offline.findings import Finding, Severity


def as_json(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"path": str(finding.path), "severity": finding.severity.name.lower()}


def repair(data_dir: Path, findings: Iterable[Finding]) -> tuple[Path, int]:
    """Copy damaged bytes aside, then rebuild each damaged file that has a second source.

    Return (folder with the damaged bytes, number of rebuilt files). No broker may serve the data folder meanwhile.
    """
    damaged: dict[Path, list[Finding]] = {}
    for finding in findings:
        if finding.severity in (Severity.HARMLESS, Severity.LOSS) and finding.path.is_file():
            damaged.setdefault(finding.path, []).append(finding)
    aside = data_dir / "damaged" / time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
    aside.mkdir(parents=True)
    with open(aside / "list.json", "w") as listed:
        for finding in itertools.chain(*damaged.values()):
            copy = aside / f"{finding.path.relative_to(data_dir)}.{finding.offset}"
            _copy(finding, copy)
            listed.write(json.dumps(as_json(finding) | {"copy": str(copy)}) + "\n")
        listed.flush()
        os.fsync(listed.fileno())
    return aside, sum(_make_anew(data_dir, path, of_file) for path, of_file in sorted(damaged.items()))


def _copy(finding: Finding, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(finding.path, "rb") as source, open(target, "wb") as copy:
        if finding.size:
            source.seek(finding.offset)
            copy.write(source.read(finding.size))
        else:
            shutil.copyfileobj(source, copy)
        copy.flush()
        os.fsync(copy.fileno())


def _make_anew(data_dir: Path, path: Path, findings: list[Finding]) -> bool:
    """Rebuild a damaged file from its second source.

    Return False if the file has no usable second source, so that its findings remain.
    """
    folder, partition_id = path.parent, path.parent.name
    if folder.parent != data_dir / "partitions" or not any(finding.size for finding in findings):
        return False
    try:
        if path == format.state_path(folder):
            return _make_state(folder, int(partition_id))
        if path.suffix == ".ledger" and all(finding.offset for finding in findings):
            return False                                           # entries
        ledger = ledger_files.open_ledger(folder, int(partition_id), int(path.stem))
        if path.suffix == ".ledger":
            ledger_files.write_ledger_header(ledger)
        if ledger.entries:
            _ = ledger.index                                       # checks the rows, and rebuilds damaged ones
        ledger.close()
    except CorruptFile:
        return False
    for written in ledger.files():
        with open(written, "rb") as file:
            os.fsync(file.fileno())
    return True


def _make_state(folder: Path, partition_id: int) -> bool:
    raw = format.state_path(folder).read_bytes()
    half = len(raw) // 2
    wrong = state_file.wrong_copies(raw, partition_id)
    if len(wrong) == 2:
        return False
    StateFile(folder, partition_id).snapshot((raw[half:] if 0 in wrong else raw[:half]) * 2).write()
    return True
