"""The log: where lines go, which fields and codes they have, how they are limited, and that a slow reader holds up
nobody.
"""
import ast
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from geminga.storage.runtime import log as logs
from geminga.storage.runtime.log import DEBUG, Log, LogOptions, Rule
from geminga.storage.runtime.log_codes import CODES

from ..harness import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = ROOT / "systemd" / "runbook"
LAYERS = "storage", "workers", "supervisor"


@pytest.fixture
def log():
    """Return a log that has begun, whose attribute `written` gets each written (level, text, code, fields)."""
    made = Log()
    made.written = []
    made._write = lambda *line: made.written.append(line)
    made._has_begun = True
    return made


def texts(log):
    return [line[1] for line in log.written]


# -- codes -------------------------------------------------------------------------------------------------------------

def calls():
    """Yield (file, line, method, its code or None) of each call in the program that writes a log line."""
    for layer in LAYERS:
        for path in sorted((ROOT / layer).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and (
                        node.func.attr == "complain"
                        or (isinstance(node.func.value, ast.Name) and node.func.value.id == "log")
                    )
                ):
                    codes = [word.value for word in node.keywords if word.arg == "code"]
                    yield path.relative_to(ROOT), node.lineno, node.func.attr, codes[0] if codes else None


@pytest.mark.slow
def test_every_warning_and_error_has_a_code_of_the_table():
    found = list(calls())
    assert len(found) >= len(CODES)
    for path, line, method, code in found:
        if method in ("warning", "error", "complain") and path.name != "log.py" and not isinstance(code, ast.Name):
            assert code is not None, f"{path}:{line}: a line without a code"
        if code is not None and not isinstance(code, ast.Name):
            codes = [part.value for part in ((code.body, code.orelse) if isinstance(code, ast.IfExp) else (code,))]
            assert set(codes) <= set(CODES), f"{path}:{line}: {codes} are not all in the table"


def test_every_code_of_the_table_is_used():
    used = {code for layer in LAYERS for path in (ROOT / layer).rglob("*.py") if path.name != "log_codes.py"
            for code in re.findall(r'"(G\d{3})"', path.read_text())}
    assert used == set(CODES)


def test_every_code_and_every_alarm_has_a_page_that_names_it():
    pages = {path.stem: path.read_text() for path in RUNBOOK.glob("*.md")}
    rows = dict(re.findall(r"^\| (G\d{3}) \| \[\w+\]\((\w+)\.md\) \|", pages.pop("README"), re.MULTILINE))
    assert rows == {code: page for code, (page, _) in CODES.items()}
    assert {page for page, _ in CODES.values()} <= set(pages)
    for code, (page, _) in CODES.items():
        assert code in pages[page] or page == "limits", f"{page}.md does not name {code}"


def test_no_code_stands_twice_in_the_table():
    source = ast.parse((ROOT / "storage/runtime/log_codes.py").read_text())
    [table] = [node.value for node in ast.walk(source) if isinstance(node, ast.Assign)]
    codes = [key.value for key in table.keys]
    assert len(codes) == len(set(codes)) and codes == sorted(codes)


def test_long_running_processes_print_nothing_past_the_log():
    looked_at = set()
    for layer in LAYERS:
        for path in sorted((ROOT / layer).rglob("*.py")):
            looked_at.add(layer)
            if path.relative_to(ROOT).parts[:2] in (
                ("supervisor", "cli"),
                ("supervisor", "main.py"),
                ("supervisor", "bootstrap.py"),
                ("storage", "jobs"),
                ("storage", "tables"),
                ("storage", "log.py"),
            ) or path.name == "applying.py":
                continue      # commands print to the terminal, and a standby logs what its process that applies prints
            assert "sys.stderr)" not in path.read_text() and "print_exc" not in path.read_text(), path
    assert looked_at == set(LAYERS)


# -- what is told ------------------------------------------------------------------------------------------------------

def test_fields_that_the_text_does_not_name_are_appended(log):
    log.info("a topic was made", topic="persistent://public/default/a", client="10.0.0.7:1", role="a b")
    log.warning("persistent://public/default/a: it is late", code="G101", topic="persistent://public/default/a")
    assert texts(log) == ['a topic was made topic=persistent://public/default/a client=10.0.0.7:1 role="a b"',
                          "persistent://public/default/a: it is late"]
    assert log.written[0][3] == {"topic": "persistent://public/default/a", "client": "10.0.0.7:1", "role": "a b"}


def test_what_is_less_important_than_the_level_is_left_out(log):
    for level in ("error", "warning", "info", "debug"):
        log._configured = logs.LEVELS[level]
        log.follow([])
        log.error("1", code="G101")
        log.warning("2", code="G101")
        log.info("3")
        log.debug("4")
    assert texts(log) == ["1", "1", "2", "1", "2", "3", "1", "2", "3", "4"]


def test_a_rule_is_about_a_topic_with_its_partitions_or_a_client_by_address_or_host(log):
    log.follow(
        [
            Rule(DEBUG, time.monotonic() + 60, topic="t"),
            Rule(DEBUG, time.monotonic() + 60, client="10.0.0.7"),
            Rule(DEBUG, time.monotonic() + 60, client="[::1]:5"),
            Rule(DEBUG, time.monotonic() + 60, topic="both", client="10.0.0.8"),
        ]
    )
    for number, fields in enumerate(
        (
            {"topic": "t"},
            {"topic": "t-partition-12"},
            {"topic": "t-partition-x"},
            {"topic": "t2"},
            {},
            {"client": "10.0.0.7:99"},
            {"client": "10.0.0.70:99"},
            {"client": "[::1]:5"},
            {"client": "[::1]:6"},
            {"topic": "both"},
            {"topic": "both", "client": "10.0.0.8:1"},
        )
    ):
        log.debug(f"<{number}>", **fields)
    assert [text.partition(" ")[0] for text in texts(log)] == ["<0>", "<1>", "<5>", "<7>", "<10>"]


def test_a_rule_ends_by_itself(log, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    log.follow([Rule(DEBUG, 160.0)])
    log.debug("before")
    now[0] = 160.0
    log.debug("after")
    assert texts(log) == ["before"] and log.level == logs.INFO and not log.rules()


def test_a_rule_may_make_less_be_told(log):
    log.follow([Rule(logs.ERROR, time.monotonic() + 60)])
    log.info("left out")
    log.error("told", code="G101")
    assert texts(log) == ["told"]


def test_of_one_code_only_so_many_lines_are_told_in_a_minute_and_then_how_many_there_were(log, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    for _ in range(50):
        log.warning("x", code="G101")
    log.warning("y", code="G102")
    now[0] += 60
    log.warning("x", code="G101")
    assert texts(log) == ["x"] * 30 + ["y", "x (20 more like it were left out)"]


def test_of_one_event_as_many_as_a_busy_minute_has_whatever_it_is_about(log):
    for number in range(2_000):
        log.info(f"administration: PUT /{number}")
    log.info("a topic was made", topic="orders")
    assert len(log.written) == 1_001 and texts(log)[-1] == "a topic was made topic=orders"


# -- where it goes -----------------------------------------------------------------------------------------------------

SAYS = """
import sys
from geminga.storage.runtime.log import log, LogOptions
log.begin(LogOptions(*sys.argv[1:]))
log.bind(owner=3)
log.warning("first\\nsecond \\x1b[31m\\udc80", code="G101", topic="t", subscription="s")
log.debug("not told")
"""


def run(code=SAYS, *arguments, **how):
    return subprocess.run([sys.executable, "-c", code, *arguments], check=True, timeout=HANG_SECONDS, **how)


def test_text_cannot_pass_for_another_line_or_speak_to_a_terminal():
    said = run(stderr=subprocess.PIPE).stderr
    assert said.endswith(b"geminga: first\n    second \\x1b[31m\\udc80 topic=t subscription=s [G101]\n")


def test_a_line_of_text_begins_with_its_time_and_level():
    """The time is of UTC, with milliseconds; the code stands at the end."""
    line = run(stderr=subprocess.PIPE).stderr.decode(errors="replace").splitlines()[0]
    when, level, rest = line.split(maxsplit=2)
    assert abs(datetime.fromisoformat(when).timestamp() - time.time()) < 60 and len(when) == 24
    assert (level, rest) == ("WARNING", "geminga: first")


def test_json_is_an_object_a_line():
    [line] = run(SAYS, "info", "json", stderr=subprocess.PIPE).stderr.splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "warning",
        "message": "first\nsecond \x1b[31m\udc80 topic=t subscription=s",
        "code": "G101",
        "owner": 3,
        "topic": "t",
        "subscription": "s",
    }


def fields_of(data):
    """Return {name: value} of the fields in a datagram of journald's protocol."""
    found = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, is_short, value = line.partition(b"=")
        if not is_short:
            size, = struct.unpack("<Q", data[:8])
            value, data = data[8:8 + size], data[9 + size:]
        found[name.decode()] = value.decode()
    return found


@pytest.fixture
def journal(tmp_path, monkeypatch):
    """Return a socket that this process takes for journald's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.settimeout(HANG_SECONDS)
        monkeypatch.setattr(logs, "JOURNAL", str(tmp_path / "socket"))
        yield listener


def tell(*line):
    journal = logs._Journal()
    journal(*line)
    journal.close()


def test_the_journal_gets_fields(journal):
    fields = {"owner": 3, "topic": "persistent://a/b/c", "subscription": "s", "client": "h:1"}
    tell(logs.WARNING, "first\nsecond", "G101", fields)
    assert fields_of(journal.recv(65536)) == {
        "MESSAGE": "first\nsecond [G101]",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "geminga",
        "CODE": "G101",
        "OWNER": "3",
        "TOPIC": "persistent://a/b/c",
        "SUBSCRIPTION": "s",
        "CLIENT": "h:1",
    }


def test_what_is_too_large_for_a_datagram_comes_as_a_sealed_file(journal):
    text = "x" * (1 << 20)
    tell(logs.ERROR, text, "", {})
    data, passed, _, _ = socket.recv_fds(journal, 65536, 1)
    with open(passed[0], "rb") as file:
        file.seek(0)
        assert data == b"" and fields_of(file.read())["MESSAGE"] == text
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(file.fileno(), 0)


def test_stderr_is_the_journal_where_its_device_and_inode_are_named(monkeypatch, tmp_path):
    with open(tmp_path / "a", "w") as one, open(tmp_path / "b", "w") as other:
        found = os.fstat(one.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        assert logs.is_journal(one.fileno()) and not logs.is_journal(other.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", "nonsense")
        assert not logs.is_journal(one.fileno())


FLOODS = """
from geminga.storage.runtime.log import log, LogOptions
log.begin(LogOptions())
for number in range(5_000):
    log.info(f"{number} " + "x" * 200, code=f"{number}")
print(log._lost > 0, flush=True)
input()
log.info("last")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "socket", "closed"])
def test_nobody_waits_for_a_reader_that_does_not_read(kind):
    """When nobody reads the log, lines that do not fit are dropped. The next line that is written says how many
    were.
    """
    if kind == "pipe":
        read, write = map(os.fdopen, os.pipe(), "rw")
    else:
        read, write = socket.socketpair()
    if kind == "closed":
        read.close()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", FLOODS], stdin=pipe, stdout=pipe, stderr=write, text=True) as process:
        write.close()
        assert process.stdout.readline() == "True\n"
        if kind == "closed":
            process.communicate("\n", timeout=HANG_SECONDS)
            return
        said = os.read(read.fileno(), 1 << 20)
        while b"lines before it could not be written" not in said:
            if process.poll() is None and process.stdin:
                process.stdin.write("\n")
                process.stdin.close()
                process.stdin = None
            more = os.read(read.fileno(), 1 << 20)
            assert more, said[-500:]
            said += more
        assert b"geminga: last (" in said
    read.close()


def test_options_choose_among_four_levels():
    assert list(logs.LEVELS) == ["error", "warning", "info", "debug"] and LogOptions().level in logs.LEVELS


def test_a_line_that_was_cut_by_a_full_pipe_does_not_swallow_the_next(monkeypatch):
    read, write = os.pipe()
    monkeypatch.setattr(logs.os, "write", lambda fd, data, real=os.write: real(fd, data[:20]))
    stream = logs._Stream(logs._as_text)
    stream._fd = write
    stream(logs.INFO, "one that is too long", "", {})
    monkeypatch.undo()
    stream(logs.INFO, "two", "", {})
    assert os.read(read, 1000) == b"geminga: one that is\ngeminga: two\n"
    os.close(read)
    os.close(write)


def test_what_libraries_log_goes_the_same_way():
    code = (
        "import logging\nfrom geminga.storage.runtime.log import log, LogOptions\n"
        "log.begin(LogOptions(format='json'))\nlogging.getLogger('asyncio').error('it %s', 'fails')\n"
        "logging.getLogger('other').warning('late')\nlogging.info('not told')"
    )
    said = [json.loads(line) for line in run(code, stderr=subprocess.PIPE).stderr.splitlines()]
    assert [(one["level"], one["message"], one["code"]) for one in said] == [
        ("error", "asyncio: it fails", "G290"), ("warning", "other: late", "G290")]
