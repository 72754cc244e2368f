"""Check a partition as a whole: compare its files with each other, with the catalogue and with the journal."""
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from geminga.storage import format
from geminga.storage.cursors.cursor import NOBODY, Cursor
from geminga.storage.cursors.state_file import State
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.offline.findings import Finding, Severity
from geminga.storage.offline.verify_compacted import ViewCheck
from geminga.storage.offline.verify_ledger import LedgerCheck, acknowledged, entries, runs


@dataclass(frozen=True, slots=True)
class CheckedPartition:
    """A partition whose files have each been checked on their own."""

    folder: Path
    name: str | None                     # None: the catalogue has no such partition
    subscriptions: dict[int, str]        # names by id, as the catalogue has them
    state: State                         # after the next start
    has_state: bool                      # the state file can be used, or is not there
    is_stateless: bool                   # the state file is not there
    is_in_journal: bool                  # ops that wait for a replay are about it
    reports: list[LedgerCheck]                # by ledger, ascending
    view: ViewCheck
    is_served: bool                      # a broker serves the folder

    @property
    def ledgers(self) -> list[Ledger]:
        """The partition's ledgers, ascending by id."""
        return [report.ledger for report in self.reports]

    @property
    def has_entries(self) -> bool:
        return any(ledger.entries for ledger in self.ledgers)

    @property
    def cursors(self) -> dict[str, Cursor]:
        """Cursors by the names of their subscriptions."""
        return {name: self.state.cursors[number] for number, name in self.subscriptions.items()
                if number in self.state.cursors}


def check(partition: CheckedPartition) -> list[Finding]:
    """Return all findings about a partition, in three steps.

    1. Findings about each single file, with the subscriptions that need the damaged entries.

    2. If a whole file is missing or cannot be used, one finding says so, and nothing else is compared.

    3. Findings of comparisons: ledgers with their neighbours, positions with ledgers, totals with entries.
    """
    findings = list(partition.view.findings)
    for report in partition.reports:
        findings += report.findings
        if len(report.wrong):
            findings += _losses(report, partition.cursors, len(partition.subscriptions))
        if report.index is not None:
            report.ledger.use_index(report.index)
    missing, is_comparable = _missing(partition)
    findings += missing
    if not is_comparable:
        return findings
    ledgers, cursors, path = partition.ledgers, partition.cursors, format.state_path(partition.folder)
    findings += _chain(ledgers, min((cursor.mark_delete[0] for cursor in cursors.values()), default=-1))
    findings += [Finding(path, f"subscription {name} has no position",
                         "the next SUBSCRIBE creates it again, as its creation was never answered", Severity.NOTE)
                 for number, name in partition.subscriptions.items() if number not in partition.state.cursors]
    for name, cursor in cursors.items():
        findings += _positions(path, name, cursor, ledgers, partition.view.horizon)
        # Damage explains wrong totals; only without any are totals worth a finding of their own.
        has_damage = any(ledger.lost for ledger in ledgers) or any(finding.severity for finding in findings)
        if not partition.state.is_uncounted and not has_damage:
            findings += _totals(path, name, cursor, partition.state, ledgers)
    return findings


def _missing(partition: CheckedPartition) -> tuple[list[Finding], bool]:
    """Return (at most one finding about a missing or unusable file, whether the partition's files can be compared)."""
    def only(what: str, consequence: str, severity: Severity,
             path: Path = partition.folder) -> tuple[list[Finding], bool]:
        return [Finding(path, what, consequence, severity)], False

    if partition.name is None:
        if partition.is_served:      # it may have been deleted meanwhile
            return [], False
        if partition.has_entries:
            return only("the catalogue has no such partition", "nobody can reach what it holds", Severity.LOSS)
        return only("the catalogue has no such partition", "it is empty, and left alone", Severity.NOTE)
    if not partition.has_state or not all(report.is_readable for report in partition.reports):
        if partition.is_in_journal and not partition.is_served:
            return only("the journal has something for a file that cannot be used", "no broker starts", Severity.LOSS)
        return [], False
    if not partition.folder.exists() and not partition.reports:
        return only(f"the folder of {partition.name} is missing",
                    "whatever it held is lost, and its topic refused", Severity.LOSS)
    if partition.subscriptions and partition.has_entries and partition.is_stateless and not partition.is_in_journal:
        return only("is missing", "what its subscriptions have acknowledged is lost", Severity.LOSS,
                    format.state_path(partition.folder))
    if not partition.reports and not partition.is_stateless:
        return only("there is no ledger", "whatever it held is lost, and its topic refused", Severity.LOSS)
    return [], True


def _losses(report: LedgerCheck, cursors: dict[str, Cursor], subscriptions: int) -> Iterator[Finding]:
    """Yield findings for damaged entries of a ledger, beginning with entries that a subscription still needs.

    cursors: by names of subscriptions.  Without any subscription every entry counts as needed.
    """
    ledger, wrong = report.ledger, report.wrong
    index = report.index if report.index is not None else ledger.index
    needs = {name: ~acknowledged(cursor, ledger.ledger_id, ledger.entries)[wrong] for name, cursor in cursors.items()}
    is_needed = np.logical_or.reduce(list(needs.values())) if needs else np.ones(len(wrong), bool)
    if not subscriptions:
        is_needed[:] = True
    for chosen, severity in ((is_needed, Severity.LOSS), (~is_needed, Severity.HARMLESS)):
        for first, end in runs(wrong[chosen]):
            offset, last = int(index["offset"][first]), index[end - 1]
            is_in_run = (wrong >= first) & (wrong < end)
            who = ", ".join(name for name, needed in needs.items() if needed[is_in_run].any())
            if who:
                consequence = f"consumers of {who} see the checksum fail"
            elif severity == Severity.LOSS:
                consequence = "readers see the checksum fail"
            else:
                consequence = "all subscriptions have it behind them; only readers see the checksum fail"
            verb = "are" if end - first > 1 else "is"
            yield Finding(ledger.ledger_path, f"{entries(ledger, first, end)} {verb} damaged", consequence, severity,
                          offset, int(last["offset"]) + int(last["size"]) - offset, end - first)


def _chain(ledgers: list[Ledger], done: int) -> Iterator[Finding]:
    """Yield findings for ledgers that do not begin where the previous one ends, and for a sealed last ledger.

    Gaps before ledger `done`, which all subscriptions have acknowledged, are not reported: a power cut may undo the
    deletion of some ledgers.
    """
    for before, ledger in itertools.pairwise(ledgers):
        if ledger.is_header_lost:
            ledger.first_message = before.next_message
        missing = ledger.first_message - before.next_message
        what = (f"ledger {ledger.ledger_id} begins with message {ledger.first_message}, "
                f"and the one before it ends before {before.next_message}")
        if missing > 0 and ledger.ledger_id > done:
            yield Finding(ledger.index_path, what, f"{missing} messages are missing", Severity.LOSS,
                          size=format.HEADER_SIZE)
        elif missing < 0:
            yield Finding(ledger.index_path, what, "messages have numbers twice", Severity.HARMLESS,
                          size=format.HEADER_SIZE)
    if ledgers and ledgers[-1].is_sealed:
        last = ledgers[-1]
        yield Finding(last.index_path, f"ledger {last.ledger_id} is sealed, and none follows it",
                      "entries of a following ledger, if there was one, are lost", Severity.HARMLESS,
                      size=format.HEADER_SIZE)


def _positions(path: Path, name: str, cursor: Cursor, ledgers: list[Ledger], horizon: Position) -> Iterator[Finding]:
    """Yield findings for a cursor that refers to entries that do not exist.

    Up to `horizon`, a compacted view may have entries of deleted ledgers, so bits for such ledgers are allowed.
    """
    by_id = {ledger.ledger_id: ledger for ledger in ledgers}
    ledger_id, entry_id = cursor.mark_delete
    is_behind_all = bool(ledgers) and ledger_id > ledgers[-1].ledger_id
    if is_behind_all or (ledger_id in by_id and entry_id >= by_id[ledger_id].entries):
        yield Finding(path, f"subscription {name} has acknowledged up to {ledger_id}:{entry_id}, which is not there",
                      "messages that come there are not delivered", Severity.LOSS)
    for number, bitmap in cursor.bitmaps.items():
        used = np.flatnonzero(bitmap)
        last = int(used[-1]) * 8 + int(bitmap[used[-1]]).bit_length() - 1 if len(used) else -1
        is_of_no_ledger = number not in by_id and number > max(ledger_id, horizon[0])
        if is_of_no_ledger or (number in by_id and last >= by_id[number].entries):
            yield Finding(path, f"subscription {name} has acknowledged {number}:{last}, which is not there",
                          "messages that come there are not delivered", Severity.LOSS)


def _totals(path: Path, name: str, cursor: Cursor, state: State, ledgers: list[Ledger]) -> Iterator[Finding]:
    """Yield a finding if published != acknowledged + expired + skipped + evicted + backlog for a subscription.

    Messages count as published since the subscription began. First, discarded entries (the cursor NOBODY) are
    acknowledged in `cursor`, as opening the partition does.
    """
    if not ledgers:
        return
    for ledger in ledgers:
        done = np.flatnonzero(acknowledged(state.cursors.get(NOBODY), ledger.ledger_id, ledger.entries))
        if len(done):
            cursor.acknowledge(ledger, done)
    cursor.forget_acknowledged_parts()
    backlog = cursor.backlog_messages(ledgers)
    published, settled = ledgers[-1].next_message - cursor.since, sum(map(int, cursor.totals))
    missing = published - settled - backlog
    if missing:
        yield Finding(
            path, f"of the {published} messages since subscription {name} began {settled} are acknowledged or dropped, "
                  f"and {backlog} are in the backlog",
            f"{missing} messages are missing" if missing > 0 else "its totals are wrong",
            Severity.LOSS if missing > 0 else Severity.HARMLESS)
