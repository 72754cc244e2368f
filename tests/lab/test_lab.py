"""The lab's own promises, shown without any package of others: rows, verdicts, the page, and programs that hang."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from . import __main__ as lab
from . import bridges, record, registries, running
from .record import Record, Row
from .subject import NotRun, Subject


def row(answer: str = "yes", **changes: str) -> Row:
    made = Row("clients", "Java", "it works", "1.0", "yes", answer, "", "", "", "2026-11-29")
    made = dataclasses.replace(made, **changes)
    return dataclasses.replace(made, verdict=record.verdict_of(made.expected, made.answer, made.peer, made.note))


@pytest.fixture(autouse=True)
def no_registry(monkeypatch):
    """Tests ask no registry."""
    monkeypatch.setattr(registries, "run", None)


@pytest.mark.parametrize("answer, peer, decision, verdict", [
    ("yes", "no", "", "right"),
    ("no", "", "", "wrong"),
    ("no", "no", "", "as peer"),
    ("no", "yes", "", "wrong"),
    ("no", "yes", "it is deliberate", "decided"),
    ("no", "no", "it is deliberate", "as peer"),
    ("lacks: such a thing", "", "", "lacks"),
    ("not run: no Java", "", "", "not run"),
])
def test_a_verdict_compares_the_answer_with_the_expected_one_and_with_its_peers(answer, peer, decision, verdict):
    assert record.verdict_of("yes", answer, peer, decision) == verdict


def test_a_row_differs_when_its_answer_or_verdict_does_and_keeps_its_peers_answer():
    kept = Record([row("no", peer="no")])
    assert not kept.put(row("no", date="2026-12-01"))
    assert kept.rows[row().key].verdict == "as peer"
    assert kept.put(row("yes"))
    assert kept.rows[row().key].peer == "no"


def test_the_record_is_read_as_it_was_written_and_keeps_rows_that_another_run_wrote_meanwhile(tmp_path):
    file = tmp_path / "record.tsv"
    first, second = Record.read(file), Record.read(file)
    first.put(row("a\tb\"c"))
    first.write(file)
    second.put(row(subject="Go"))
    second.write(file)
    assert [row.subject for row in Record.read(file).rows.values()] == ["Java", "Go"]
    assert Record.read(file).rows[row().key].answer == "a\tb\"c"


def _subject(ask) -> Subject:
    return Subject("Java", "1.0", {"one": "1", "two": "2"}, ask)


def test_a_subject_that_cannot_be_had_is_not_run_and_one_that_fails_keeps_its_other_answers():
    def missing(_ground, _asked):
        raise NotRun("no Java")

    def failing(_ground, _asked):
        yield "one", "1"
        raise ValueError("a fault")

    assert lab.answers_of(_subject(missing), None) == {"one": "not run: no Java", "two": "not run: no Java"}
    assert lab.answers_of(_subject(failing), None) == {"one": "1", "two": "no answer: ValueError: a fault"}


PROGRAM = """
import json, sys, time
told = json.loads(sys.argv[-1])
for thing in told["things"].split(","):
    if thing == "hang":
        time.sleep(1000)
    if thing == "end":
        sys.exit(3)
    if thing == "please":
        print(json.dumps({"please": "PUT", "path": "x"}), flush=True)
        print(json.dumps({"thing": thing, "answer": sys.stdin.readline().strip()}), flush=True)
    else:
        print("a log line")
        print(json.dumps({"thing": thing, "answer": told["prefix"]}), flush=True)
"""


def test_a_program_that_hangs_or_ends_in_one_thing_is_asked_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "SILENCE_SECONDS", 3)
    monkeypatch.setattr(running.Ground, "please", lambda _self, wish: wish["path"])
    (tmp_path / "program.py").write_text(PROGRAM)
    with running.Ground("geminga") as ground:
        ground.__dict__["told"] = {}
        answers = dict(ground.ask([sys.executable, tmp_path / "program.py"], ["a", "hang", "please", "end", "b"], "p"))
    assert answers == {"a": "lab", "hang": running.HANGS, "please": "x", "end": "the program ended with status 3",
                       "b": "lab"}


def test_a_newest_version_is_compared_with_the_pinned_one_and_leaves_the_record_as_it_is(capsys):
    kept = Record([row("yes")])
    newer = dataclasses.replace(_subject(None), name="Java 2", like="Java")
    assert not lab._take(kept, "clients", newer, "it works", "yes", True)
    assert lab._take(kept, "clients", newer, "it works", "no", True)
    assert "(Java: yes)" in capsys.readouterr().out
    assert list(kept.rows.values()) == [row("yes")]


@pytest.mark.parametrize("got, expected, said", [
    ([*range(200)], bridges.ONCE, bridges.ONCE),
    ([*range(200), 7], bridges.ONCE, "200 of 200, in order, some twice"),
    ([*range(150), 140, *range(150, 200)], bridges.AT_LEAST_ONCE, bridges.AT_LEAST_ONCE),
    ([*range(200), 199], bridges.AT_LEAST_ONCE, "200 of 200, in order, later ones twice"),
    ([*range(1, 200), 0], bridges.ONCE, "200 of 200, out of order, none twice"),
    ([*range(190)], bridges.ONCE, "190 of 200, in order, none twice"),
])
def test_a_bridges_answer_tells_what_was_lost_came_twice_or_in_another_order(got, expected, said):
    assert bridges._said(got, expected) == said


def test_names_are_asked_once_and_fit_into_the_page():
    names = [(name, subject.name) for name, wing in lab.WINGS.items() for subject in wing.subjects(False)]
    assert len(names) == len(set(names))
    asked = [asked for _, subject in lab.chosen("", False) for asked in subject.asked]
    assert not any("|" in text or "," in text for text in asked)


def test_the_page_shows_the_record_and_the_readme_its_counts():
    kept, page = Record.read(), record.PAGE.read_text()
    abouts = {name: wing.ABOUT for name, wing in lab.WINGS.items()}
    assert record.with_tables(page, kept.tables(abouts)) == page
    readme = record.README.read_text()
    assert f"{len(kept.subjects('clients'))} clients" in readme
    assert record.with_counts(readme, kept) == readme


def test_every_language_program_knows_what_it_is_asked():
    things = lab.WINGS["clients"].THINGS
    for name in ("things.py", "Things.java", "things.go"):
        source = (Path(__file__).parent / "programs" / name).read_text()
        unknown = [thing for thing in things if json.dumps(thing)[1:-1] not in source and not thing.startswith("compr")]
        assert not unknown, name
