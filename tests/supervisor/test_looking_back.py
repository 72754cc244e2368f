"""Routes by which an operator looks back: the audit log, the log's newest lines, the configuration, the last backup."""
import json
import os
import time
from urllib.parse import quote

import pytest

from geminga.supervisor.admin.requests import audit_reading

from ..harness import Broker, eventually, request, unique_topic

pytestmark = pytest.mark.slow
OWN_OPTIONS = "--owners", "2", "--workers", "2"
LONG = "x" * 4_000


@pytest.fixture
def ask(own):
    def ask(path, status=200, method="GET", body=None):
        got, text = request(method, own.http_url + path, None if body is None else json.dumps(body).encode())
        assert got == status, (path, got, text)
        return json.loads(text) if text.startswith(("{", "[")) else text
    return ask


def create(ask, hint="made"):
    topic = unique_topic(hint)
    ask(f"/admin/v2/{topic.replace('://', '/')}", 204, "PUT")
    return topic


# -- the audit log

def test_changes_are_answered_newest_first_and_page_by_page(ask):
    topics = [create(ask) for _ in range(7)]
    ends = [topic.rpartition("/")[2] for topic in reversed(topics)]
    first = ask("/ops/v1/audit?limit=3")
    assert [row["request"].rpartition("/")[2] for row in first["rows"]] == ends[:3] and first["more"]
    second = ask(f"/ops/v1/audit?limit=4&at={first['at']}")
    assert [row["request"].rpartition("/")[2] for row in second["rows"]] == ends[3:]
    assert {row["status"] for row in first["rows"]} == {204}


def test_changes_are_looked_for_by_role_text_and_time(ask):
    before = time.time_ns() // 1_000_000
    time_of = lambda row: row["time"]      # noqa: E731
    topic = create(ask, "needle")
    name = topic.rpartition("/")[2]
    [row] = ask(f"/ops/v1/audit?match={name.upper()}")["rows"]
    assert row["request"].startswith("PUT /admin/v2/persistent/")
    assert ask(f"/ops/v1/audit?match={name}&role=nobody")["rows"] == []
    assert ask(f"/ops/v1/audit?match={name}&until={before - 1}")["rows"] == []
    assert row in ask(f"/ops/v1/audit?since={before - 1}")["rows"]
    assert all(time_of(one) >= time_of(row) for one in ask(f"/ops/v1/audit?since={before}")["rows"])
    assert ask(f"/ops/v1/audit?since={before + 10_000_000}") == {"rows": [], "at": "", "more": False}


def test_a_request_reads_a_bounded_part_and_the_next_goes_on_across_files(ask, own):
    """Files that were renamed in between are read on, a torn line is left out."""
    (own.data_dir / "audit.log.1").write_text("".join(
        json.dumps({"time": "2020-01-31T12:00:00.000Z", "role": "old", "request": f"PUT /{number} {LONG}"}) + "\n"
        for number in range(1_500)) + '{"time": "torn')
    found, at, asked = [], "", 0
    while asked == 0 or at:
        answer = ask(f"/ops/v1/audit?role=old&limit=1000&at={at}")
        found += [int(row["request"].split()[1][1:]) for row in answer["rows"]]
        at, asked = answer["at"], asked + 1
        if asked == 1:
            os.rename(own.data_dir / "audit.log.1", own.data_dir / "audit.log.2")
    assert found == list(range(1_499, -1, -1)) and asked >= 3
    (own.data_dir / "audit.log.2").unlink()


def test_places_that_are_none_and_values_of_another_form_are_refused_or_empty(ask):
    create(ask)
    for at in ("x", "1-2-3", "-", "99999999999999999999999-1", quote("\0", safe="")):
        assert ask(f"/ops/v1/audit?at={at}")["rows"] == []
    for query in ("limit=1001", "limit=-1", "since=x", f"match={'x' * 300}"):
        ask(f"/ops/v1/audit?{query}", 400)


def test_lines_of_a_file_are_read_backwards_at_any_length(tmp_path):
    lines = [b"x" * length for length in (1, 5, 70_000, 64 << 10, (64 << 10) - 1, (64 << 10) + 1, 3)]
    (tmp_path / "f").write_bytes(b"\n".join(lines) + b"\n")
    with open(tmp_path / "f", "rb") as file:
        read = [(line, end) for line, end in audit_reading._lines_of(file, os.path.getsize(tmp_path / "f")) if line]
        assert [line for line, _ in read] == lines[::-1]
        for number, (_, end) in enumerate(read):
            assert next(audit_reading._lines_of(file, end))[0] == lines[::-1][number]


# -- the log

def test_lines_of_all_processes_are_kept_over_a_restart(own, ask):
    topic = create(ask)
    line = eventually(lambda: ask(f"/ops/v1/log?match={topic}")["rows"])[0]
    assert (line["process"], line["level"]) == ("geminga-admin", "info") and "administration: PUT" in line["text"]
    own.wait_replaced("admin", 0, own.kill("admin"))
    eventually(lambda: request("GET", own.http_url + "/ready")[0] == 200)
    assert ask(f"/ops/v1/log?match={topic}")["rows"][-1] == line
    [killed] = ask("/ops/v1/log?level=error&code=G201&process=supervisor")["rows"][:1]
    assert "geminga-admin" in killed["text"] and killed["time_ms"] >= line["time_ms"]
    assert ask(f"/ops/v1/log?since={killed['time_ms'] + 3_600_000}") == {"rows": [], "more": False}
    assert all(row["level"] in ("error", "warning") for row in ask("/ops/v1/log?level=warning")["rows"])


def test_the_log_says_whether_there_are_more_lines_and_refuses_other_forms(ask):
    create(ask), create(ask)
    one = ask("/ops/v1/log?limit=1")
    assert len(one["rows"]) == 1 and one["more"]
    for query in ("limit=1001", "level=loud", "code=g", "since=-1", f"match={'x' * 300}", f"process={'x' * 300}"):
        ask(f"/ops/v1/log?{query}", 400)


# -- the configuration

def rows_of(ask):
    return {row["key"]: row for row in ask("/ops/v1/configuration")["rows"]}


def test_each_key_has_its_value_its_source_and_when_a_change_takes_effect(ask, own):
    rows = rows_of(ask)
    assert rows["owners"] | {"why": ""} == {
        "key": "owners", "value": "2", "default": "0", "origin": "command line", "is_set": True,
        "set_at_run_time": False, "takes_effect": "restart", "why": "", "setting": "", "text": ""}
    assert rows["log.level"]["origin"] == "" and rows["log.level"]["takes_effect"] == "reload"


def test_a_setting_that_was_changed_at_run_time_says_so(ask):
    name = "dispatchThrottlingRatePerTopicInMsg"
    by_name = {row["setting"]: row for row in rows_of(ask).values() if row["setting"]}
    assert name in by_name, sorted(by_name)
    key = by_name[name]["key"]
    ask(f"/admin/v2/brokers/configuration/{name}/1234", method="POST")
    row = rows_of(ask)[key]
    assert (row["value"], row["text"], row["set_at_run_time"]) == ("1234", "1234", True)
    ask(f"/admin/v2/brokers/configuration/{name}", method="DELETE")
    assert not rows_of(ask)[key]["is_set"]


def test_a_reload_changes_values_with_their_source_and_no_secret_is_shown(tmp_path):
    file = tmp_path / "geminga.toml"
    (tmp_path / "key").write_bytes(b"a secret key of thirty-two bytes")
    file.write_text('[authentication]\nsecret_keys = ["data:;base64,YSBzZWNyZXQga2V5IG9mIHRoaXJ0eS10d28gYnl0ZXM="]\n'
                    "[log]\nlevel = 'info'\n")
    own = Broker(tmp_path / "data", "--config", str(file), "--owners", "1", "--workers", "1")
    try:
        own.start()
        def rows():
            return {row["key"]: row for row in
                    json.loads(request("GET", own.http_url + "/ops/v1/configuration")[1])["rows"]}
        assert rows()["authentication.secret_keys"]["value"] == '["***"]'
        assert rows()["log.level"]["origin"] == f"{file}:4"
        file.write_text("\n\n[alarms]\nmemory_percent = 70\n[log]\nlevel = 'warning'\n")
        os.kill(own.pid, 1)
        changed = eventually(lambda: (found := rows())["log.level"]["value"] == '"warning"' and found)
        assert changed["log.level"]["origin"] == f"{file}:6" and not changed["authentication.secret_keys"]["is_set"]
        assert changed["alarms.memory_percent"]["value"] == "70"
    finally:
        own.close()


# -- backups and compactions

def test_the_last_backup_is_told(ask, tmp_path):
    ask("/ops/v1/backup", 404)
    made = ask("/ops/v1/backup", method="POST", body={"folder": str(tmp_path)})
    told = ask("/ops/v1/backup")
    assert told["folder"] == made["folder"] and told["bytes"] == made["bytes"]
    assert abs(told["ended_ms"] / 1000 - time.time()) < 60


def test_compactions_are_told_with_their_results(ask):
    assert ask("/ops/v1/compaction") == {"night": None, "running": [], "waiting": [],
                                         "numbers": {"running": 0, "waiting": 0}, "ended": []}
    topic = create(ask)
    ask(f"/admin/v2/{topic.replace('://', '/')}/compaction", 204, "PUT")
    ended = eventually(lambda: ask("/ops/v1/compaction")["ended"])
    assert ended[0]["topic"] == topic and ended[0]["error"] == "" and ended[0]["succeeded"] == 1
