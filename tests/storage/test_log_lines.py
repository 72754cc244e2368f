"""The newest lines of the log in shared memory: order, wrap, torn lines, and what other processes see."""
import os

import pytest

from geminga.storage.runtime import log_lines
from geminga.storage.runtime.log_lines import ROW_BYTES, LogLines


@pytest.fixture
def lines():
    return LogLines(["supervisor", "geminga-o0"])


def texts(lines):
    return [line.text for line in lines.newest()]


def test_the_newest_line_comes_first_of_all_processes(lines, monkeypatch):
    for number, process in enumerate(["supervisor", "geminga-o0", "supervisor"]):
        monkeypatch.setattr(log_lines.time, "time_ns", lambda number=number: (1_000 + number) * 1_000_000)
        lines.write(process, 4, f"line {number}", "G101" if number else "")
    assert list(lines.newest()) == [
        (1_002, "supervisor", 4, "G101", "line 2"), (1_001, "geminga-o0", 4, "G101", "line 1"),
        (1_000, "supervisor", 4, "", "line 0")]


def test_old_lines_give_way_and_all_that_are_left_are_whole(lines):
    """Lines of many lengths end at every place of the ring, also at its seam."""
    written = [f"{number} " + "é" * (number % 61) for number in range(3_000)]
    for number, text in enumerate(written):
        lines.write("supervisor", 6, text, "")
        if number % 97 == 0:
            kept = texts(lines)
            assert kept == written[number::-1][:len(kept)]
    assert 200 < len(texts(lines)) < ROW_BYTES / 20


def test_a_torn_line_ends_the_reading_and_no_error(lines):
    for number in range(10):
        lines.write("supervisor", 6, f"line {number}", "")
    place = bytes(lines._memory).index(b"line 5")
    lines._memory[place:place + 1] = b"X"
    assert texts(lines) == [f"line {number}" for number in (9, 8, 7, 6)]


def test_any_bytes_in_the_ring_are_read_without_an_error(lines, seed):
    import random
    chance = random.Random(seed)
    for _ in range(50):
        lines._memory[8:8 + ROW_BYTES] = chance.randbytes(ROW_BYTES)
        lines._memory[:8] = chance.randrange(1 << 20).to_bytes(8, "little")
        assert texts(lines) == []


def test_a_long_line_keeps_its_beginning_and_its_end(lines):
    lines.write("supervisor", 3, "begin" + "\U0001f600" * 100_000 + "end", "G290")
    [line] = lines.newest()
    assert line.text.startswith("begin") and line.text.endswith("end") and len(line.text) < 5_000


def test_a_process_that_was_forked_is_read_by_the_others(lines):
    if not (pid := os.fork()):
        lines.write("geminga-o0", 6, "of the child", "")
        os._exit(0)
    os.waitpid(pid, 0)
    lines.write("supervisor", 6, "of the parent", "")
    assert sorted(texts(lines)) == ["of the child", "of the parent"]


def test_a_process_without_a_row_keeps_nothing(lines):
    lines.write("", 6, "of a command", "")
    assert texts(lines) == []
