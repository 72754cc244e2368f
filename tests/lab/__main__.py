"""Run the lab: others' software, as registries serve it, with Geminga on valid input.

    python -m tests.lab                             every wing; writes the record and docs/lab.md
    python -m tests.lab --only clients,readers      wings; or subjects by a part of "WING/SUBJECT"
    python -m tests.lab --only "clients/Java 4.0.8"
    python -m tests.lab --only "/schema"            what is asked, by a part of "WING/SUBJECT/ASKED"
    python -m tests.lab --against pulsar            without Geminga, for the column of the peer: clients with Apache
                                                    Pulsar, readers with files that PyArrow writes of the same values
    python -m tests.lab --newest                    the newest versions served; says what differs, writes nothing
    python -m tests.lab --page                      writes docs/lab.md of the record, and runs nothing

A row that differs from last time is red, as is a wrong one.  Exit status: 1 when there is one of either.  A wing is a
module with `NAME`, `ABOUT` and `subjects()`:

    clients.py     Pulsar's client libraries; programs/ has a program for each language
    readers.py     programs that read the tables of nights
    bridges.py     frameworks that copy a topic to another
    objects.py     records of one language, read by others
    tools.py       administration and metrics with others' tools; pulsar_admin.py has those for Java
    ground.py      file systems, interpreters, bounds of the kernel

    subject.py     what a wing declares: subjects, what is asked of them, why something was not run
    registries.py  installs pinned packages into a cache
    running.py     brokers and programs, each bounded in time and ended by its own id
    record.py      rows, verdicts, the file of all rows, and the tables of the page
"""

import argparse
import dataclasses
import datetime
import signal
import sys
import time

from . import bridges, clients, ground, objects, readers, record, registries, tools
from .record import NOT_RUN, Record, Row, one_line, verdict_of
from .running import Ground
from .subject import NotRun, Subject

WINGS = {wing.NAME: wing for wing in (clients, bridges, readers, objects, tools, ground)}
RED, PLAIN = ("\x1b[31m", "\x1b[0m") if sys.stdout.isatty() else ("RED ", "")


def chosen(only: str, newest: bool) -> list[tuple[str, Subject]]:
    """Return the subjects, each with what is chosen of it: one of the texts is in WING/SUBJECT/ASKED.

    only: texts that commas separate.
    """
    texts = [text.strip() for text in only.split(",")]
    found = []
    for name, wing in WINGS.items():
        for subject in wing.subjects(newest):
            asked = {asked: expected for asked, expected in subject.asked.items()
                     if any(text in f"{name}/{subject.name}/{asked}" for text in texts)}
            if asked:
                found.append((name, dataclasses.replace(subject, asked=asked)))
    return found


def answers_of(subject: Subject, ground: Ground) -> dict[str, str]:
    """Return the answer to everything that a subject is asked."""
    answers = {}
    missing = "no answer"
    try:
        for asked, answer in subject.ask(ground, list(subject.asked)):
            answers[asked] = one_line(answer)
    except NotRun as why:
        missing = NOT_RUN + one_line(str(why))
    except Exception as error:      # whatever others' software does, the other rows are not lost
        missing = "no answer: " + one_line(f"{type(error).__name__}: {error}")
    return {asked: answers.get(asked, missing) for asked in subject.asked}


def row_of(wing: str, subject: Subject, asked: str, answer: str, peer: str) -> Row:
    expected, note = one_line(subject.asked[asked]), subject.decided.get(asked, "")
    verdict = verdict_of(expected, answer, peer, note)
    if verdict != record.DECIDED:
        note = ""
    return Row(wing, subject.name, asked, subject.versions, expected, answer, peer, verdict, note,
               str(datetime.date.today()))


def run(subjects: list[tuple[str, Subject]], against: str, kept: Record, writes: bool) -> int:
    """Ask the subjects, print their rows, and return how many are red."""
    red = 0
    with Ground(against) as ground:
        for wing, subject in subjects:
            began = time.monotonic()
            answers = answers_of(subject, ground)
            for reason in {answer for answer in answers.values() if answer.startswith(NOT_RUN)}:
                print(f"{wing}/{subject.name}: {reason}")
            for asked, answer in answers.items():
                red += _take(kept, wing, subject, asked, answer, ground.is_geminga)
            print(f"      {wing}/{subject.name}: {time.monotonic() - began:.0f} s", flush=True)
            if writes:
                kept.write()
    return red


def _take(kept: Record, wing: str, subject: Subject, asked: str, answer: str, is_geminga: bool) -> bool:
    """Put an answer into the record and print its row; return whether the row is red."""
    last = kept.rows.get((wing, subject.like or subject.name, asked))
    if subject.like:
        differs = last is not None and last.answer != answer
        said = f"{'differs' if differs else 'same':9} {wing}/{subject.name}: {asked}: {answer}"
        if last and differs:
            said = f"{RED}{said} ({subject.like}: {last.answer}){PLAIN}"
        print(said, flush=True)
        return differs
    if is_geminga:
        row = row_of(wing, subject, asked, answer, last.peer if last else "")
    else:
        row = row_of(wing, subject, asked, last.answer if last else NOT_RUN + "so far only with its peer", answer)
    differs = kept.put(row)
    is_red = differs or row.verdict == record.WRONG
    if row.verdict == record.UNTRIED and not is_red:
        return False
    said = f"{row.verdict:9} {wing}/{subject.name}: {asked}"
    if row.verdict != record.RIGHT or not is_geminga:
        said += f": {answer}" + ("" if answer == row.expected else f" (expected: {row.expected})")
    if differs and last:
        said += f" (last time {last.verdict}: {last.answer})"
    print(f"{RED if is_red else ''}{said}{PLAIN if is_red else ''}", flush=True)
    return is_red


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="wings or subjects, by parts of WING/SUBJECT")
    parser.add_argument("--against", default="geminga", choices=["geminga", "pulsar"], help="the broker")
    parser.add_argument("--newest", action="store_true", help="take the newest versions that are served")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))      # ends what was started
    kept, red, began = Record.read(), 0, time.monotonic()
    if not options.page:
        subjects = chosen(options.only, options.newest)
        if options.against == "pulsar":
            subjects = [(wing, subject) for wing, subject in subjects if subject.compared]
        red = run(subjects, options.against, kept, writes=not options.newest)
        print(f"{time.monotonic() - began:.0f} s, {registries.size() / 1e9:.1f} GB in {registries.place()}, {red} red")
    if not options.newest:
        for name, wing in WINGS.items():
            subjects = wing.subjects(False)
            kept.forget(name, {subject.name for subject in subjects},
                        {subject.name: set(subject.asked) for subject in subjects})
        kept.write()
        tables = kept.tables({name: wing.ABOUT for name, wing in WINGS.items()})
        record.PAGE.write_text(record.with_tables(record.PAGE.read_text(), tables))
        record.README.write_text(record.with_counts(record.README.read_text(), kept))
    return 1 if red else 0


if __name__ == "__main__":
    raise SystemExit(main())
