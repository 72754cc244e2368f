"""Rows of the lab: verdicts, the file that keeps them, and the tables that docs/lab.md shows of them."""

import csv
import dataclasses
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("record.tsv")
PAGE = Path(__file__).parents[2] / "docs/lab.md"
README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- tables: written by python -m tests.lab -->\n", "<!-- end of tables -->\n"

NOT_RUN, LACKS = "not run: ", "lacks: "      # beginnings of answers that are none
RIGHT, LIKE_PEER, DECIDED, WITHOUT, UNTRIED, WRONG = "right", "as peer", "decided", "lacks", "not run", "wrong"
SIGNS = {RIGHT: "✓", LIKE_PEER: "=", DECIDED: "d", WITHOUT: "-", UNTRIED: "?", WRONG: "✗"}


@dataclass(frozen=True)
class Row:
    """One thing that was asked of one subject: each field is a short text of one line."""

    wing: str
    subject: str
    asked: str
    versions: str
    expected: str
    answer: str       # with Geminga
    peer: str         # the answer without Geminga (Ground.against); "" if it was not asked
    verdict: str
    note: str         # the reason of a decision
    date: str         # of the answer, YYYY-MM-DD

    @property
    def key(self) -> tuple[str, str, str]:
        return self.wing, self.subject, self.asked


def verdict_of(expected: str, answer: str, peer: str, decision: str) -> str:
    """Return the verdict on an answer."""
    if answer.startswith(NOT_RUN):
        return UNTRIED
    if answer.startswith(LACKS):
        return WITHOUT
    if answer == expected:
        return RIGHT
    if answer == peer:
        return LIKE_PEER
    return DECIDED if decision else WRONG


def one_line(text: str, most: int = 500) -> str:
    """Return a text that fits into a field."""
    return " ".join(text.split())[:most]


class Record:
    """All rows by key, as the last runs left them."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows = {row.key: row for row in rows}
        self._put: dict[tuple[str, str, str], Row] = {}      # rows that this process has put

    def __repr__(self) -> str:
        return f"<Record of {len(self.rows)} rows>"

    @classmethod
    def read(cls, file: Path = FILE) -> "Record":
        if not file.exists():
            return cls()
        with file.open(newline="") as lines:
            return cls(Row(**fields) for fields in csv.DictReader(lines, delimiter="\t"))

    def write(self, file: Path = FILE) -> None:
        """Write the file, with what other runs have written since it was read."""
        self.rows = self.read(file).rows | self._put if self._put else self.rows
        names = [field.name for field in dataclasses.fields(Row)]
        with file.open("w", newline="") as lines:
            writer = csv.writer(lines, delimiter="\t", lineterminator="\n")
            writer.writerow(names)
            writer.writerows(dataclasses.astuple(row) for row in self.rows.values())

    def put(self, row: Row) -> bool:
        """Replace a row; return whether it differs from the last time, in its answer or its verdict."""
        last = self.rows.get(row.key)
        if last and not row.peer:      # the peer was not asked this time
            row = dataclasses.replace(row, peer=last.peer)
            row = dataclasses.replace(row, verdict=verdict_of(row.expected, row.answer, row.peer, row.note))
        self.rows[row.key] = self._put[row.key] = row
        return last is not None and last.verdict != UNTRIED and (last.answer, last.verdict) != (row.answer, row.verdict)

    def forget(self, wing: str, subjects: set[str], asked: dict[str, set[str]]) -> None:
        """Remove rows of a wing that no subject asks for any more."""
        self.rows = {key: row for key, row in self.rows.items()
                     if row.wing != wing or (row.subject in subjects and row.asked in asked[row.subject])}
        self._put = {}

    def counts(self) -> Counter[str]:
        return Counter(row.verdict for row in self.rows.values())

    def subjects(self, wing: str) -> list[str]:
        """Return the subjects of a wing that gave at least one answer."""
        ran = {row.subject: None for row in self.rows.values() if row.wing == wing and row.verdict != UNTRIED}
        return list(ran)

    def tables(self, abouts: dict[str, str]) -> str:
        """Return the tables of the page.

        abouts: a sentence for each wing.
        """
        counts = self.counts()
        ran = len(self.rows) - counts[UNTRIED]
        parts = [f"{len(self.rows)} rows, of which {ran} were run: " + ", ".join(
            f"{counts[verdict]} {verdict}" for verdict in SIGNS if counts[verdict]) + ".\n"]
        for wing, about in abouts.items():
            rows = [row for row in self.rows.values() if row.wing == wing]
            if rows:
                parts += [f"### {wing.capitalize()}\n", about + "\n", _matrix(rows), *_remarks(rows)]
        return "\n".join(parts)


def _matrix(rows: list[Row]) -> str:
    """Return a table with a line for each thing asked and a column for each subject, or the other way round."""
    subjects, asked = list(dict.fromkeys(row.subject for row in rows)), list(dict.fromkeys(row.asked for row in rows))
    signs = {(row.subject, row.asked): SIGNS[row.verdict] for row in rows}
    lines = ["| asked | " + " | ".join(subjects) + " |", "|---" * (len(subjects) + 1) + "|"]
    for thing in asked:
        lines.append(f"| {thing} | " + " | ".join(signs.get((subject, thing), "") for subject in subjects) + " |")
    return "\n".join(lines) + "\n"


def _remarks(rows: list[Row]) -> list[str]:
    """Return the versions, and a table of the rows that are neither right nor lacking."""
    versions = {row.subject: f"{row.versions} ({row.date})" for row in rows}
    lines = ["Versions and dates: " + "; ".join(f"{name}: {text}" for name, text in versions.items()) + ".\n"]
    told: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row.verdict not in (RIGHT, WITHOUT):
            answers = (row.asked if row.verdict != UNTRIED else "", row.verdict, row.answer, row.peer, row.note)
            told.setdefault(answers, []).append(row.subject)
    if told:
        lines += ["| asked | of | verdict | answer | peer's | why |\n|---|---|---|---|---|---|\n" + "".join(
            f"| {_cell(asked)} | {', '.join(dict.fromkeys(subjects))} | {verdict} | {_cell(answer)} | {_cell(peer)} "
            f"| {_cell(note)} |\n"
            for (asked, verdict, answer, peer, note), subjects in told.items())]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


COUNTED = {"clients": "clients", "bridges": "bridges", "readers": "readers of tables", "tools": "tools",
           "ground": "grounds"}


def with_counts(readme: str, kept: Record) -> str:
    """Return the README with other counts of what was tried, in its line about the lab."""
    for wing, name in COUNTED.items():
        readme = re.sub(rf"\b\d+ {name}\b", f"{len(kept.subjects(wing))} {name}", readme)
    return readme


def with_tables(page: str, tables: str) -> str:
    """Return the page with other tables between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + tables + "\n" + END + after
