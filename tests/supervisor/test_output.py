"""Forms in which commands show rows and values, and texts of sizes, lengths of time and rates."""
import contextlib
import json
import os
import pty
import subprocess
import sys

import pytest
import yaml

from geminga.storage.runtime.similar_names import question
from geminga.supervisor.cli.output import Column, Output
from geminga.supervisor.wording import human

ROWS = [{"topic": "orders", "bytes": 1536, "hidden": None}, {"topic": "a\x1b[31m", "bytes": 5}]
COLUMNS = Column("topic"), Column("bytes", "size", human.size, is_number=True)


def test_a_table_is_aligned_and_shows_no_control_characters(capsys):
    Output("table").rows(ROWS, COLUMNS)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["TOPIC         SIZE", "orders     1.5 KiB", "a\\x1b[31m      5 B"]


def test_forms_for_programs_have_all_keys_and_plain_values(capsys):
    for form, parse in (("json", json.loads), ("yaml", yaml.safe_load),
                        ("jsonl", lambda text: [json.loads(line) for line in text.splitlines()])):
        Output(form).rows(iter(ROWS), COLUMNS)
        assert parse(capsys.readouterr().out) == ROWS, form


def test_a_value_is_text_for_people_only(capsys):
    for form in ("table", "json", "jsonl", "yaml"):
        Output(form).value({"a": [1]}, lambda value: f"a is {value['a']}")
    assert capsys.readouterr().out == 'a is [1]\n{\n  "a": [\n    1\n  ]\n}\n{"a":[1]}\na:\n- 1\n'


@pytest.mark.parametrize("value, text", [
    (human.size(0), "0 B"), (human.size(1023), "1023 B"), (human.size(10 << 20), "10.0 MiB"),
    (human.size(5 << 50), "5120 TiB"), (human.length(0.25), "250 ms"), (human.length(59), "59 s"),
    (human.length(3_600), "1 h 0 min"), (human.length(90_061), "1 d 1 h"), (human.rate(0.125), "0.125"),
    (human.rate(12_345.6), "12,346"), (human.ago(1_000, 61_000), "1 min 0 s"), (human.count(1_234), "1,234"),
])
def test_values_are_texts_with_units(value, text):
    assert value == text


def test_a_mistyped_name_is_answered_with_names_like_it():
    assert question("stauts", ["status", "tune"]) == "  Did you mean status?"
    assert question("x", ["status"]) == ""


BYTES = """
from geminga.supervisor.cli.progress import done_of_total
with done_of_total("restore", is_bytes=True) as tell:
    tell(1 << 20, 4 << 20)
    print("a row", flush=True)
    tell(4 << 20, 4 << 20)
"""
WATCHED = """
from geminga.supervisor.cli.progress import watched
texts = ["reading"]
with watched(lambda: (0.5, texts[-1])):
    print("a row", flush=True)
    texts.append("giving back space, 3 of 10 topics")
"""


@pytest.mark.slow
@pytest.mark.parametrize("code, drawn", [(BYTES, (b"restore",)), (WATCHED, (b"giving back space, 3 of 10 topics",))])
def test_progress_is_drawn_on_a_terminal_only(code, drawn):
    """A bar goes to a terminal at standard error; rows go to standard output, also while a bar is drawn."""
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (piped.stdout, piped.stderr) == ("a row\n", "")
    terminal, other = pty.openpty()
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=other, text=True, check=True,
                          env=os.environ | {"TERM": "xterm", "COLUMNS": "120"})
    os.close(other)
    assert done.stdout == "a row\n"
    shown = b""
    with contextlib.suppress(OSError):      # the end of a terminal that nobody has open
        while more := os.read(terminal, 1 << 16):
            shown += more
    os.close(terminal)
    assert [text for text in drawn if text not in shown] == []
