"""`geminga nightly`, with a broker and without: its output, its report, and its exit status when something fails."""
import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pytest

from geminga.storage import format
from geminga.storage.disk import locks
from geminga.storage.jobs.compacting import nightly as jobs
from geminga.storage.ledgers import compacted_ledgers
from geminga.supervisor.cli.folder.nightly import _text
from geminga.supervisor.main import main
from geminga.supervisor.tasks import job_socket, night_engines, nights

from ..harness import COMMAND, HANG_SECONDS, eventually, request, unique_topic
from .test_compaction import compacted_values, fill, partition_id, url_of, views
from .test_metrics import samples, value

LATEST = {f"key-{number % 5}": number for number in range(45, 50)}


@pytest.fixture
def nightly(own, capsys, monkeypatch):
    """nightly(words...): (exit status, standard output, complaints) of a run in this process.

    Spark is used only if asked for.
    """
    monkeypatch.setenv("GEMINGA_NIGHTLY_ENGINE", "here")

    def run(*words, data_dir=own.data_dir):
        status = main(["nightly", *words, "--data-dir", str(data_dir)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err
    return run


def compact_later(broker, topic):
    """Have the topic compacted at night only: its threshold is never reached."""
    place = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/compactionThreshold"
    assert request("POST", place, b"1000000000000")[0] == 204


# -- beside a broker

def test_a_night_beside_a_broker(own, client, nightly):
    """The night is planned, carried out and reported; a second one finds nothing to do."""
    assert request("GET", f"{own.http_url}/ops/v1/compaction/report")[0] == 404
    status, _, complaint = nightly("report")
    assert status == 1 and "no night yet" in complaint
    topic, other = unique_topic("night"), unique_topic("not-compacted")
    for one in (topic, other):
        fill(client, one)
    assert nightly("plan")[:2] == (0, "Nothing is compacted or exported: no topic has a compaction threshold, was "
                                      "compacted before, or has the policy export\n")
    compact_later(own, topic)
    status, printed, _ = nightly("plan", "--json")
    [planned] = json.loads(printed)
    assert (
        status == 0
        and planned["topic"] == topic
        and planned["due"]
        and planned["messages"] == 50
        and not views(own, topic)
    )

    status, printed, _ = nightly("--json")
    report = json.loads(printed)
    assert (status, report["status"], report["served"]) == (0, "success", True)
    [found] = report["compaction"]
    assert (found["topic"], found["outcome"], found["messages_in"], found["messages_out"], found["keys"]) == (
        topic,
        "compacted",
        50,
        5,
        5,
    )
    assert report["retention"]["partitions"] == 2 and not report["retention"]["errors"]
    assert compacted_values(client, topic) == LATEST and not views(own, other)
    assert json.loads(request("GET", f"{own.http_url}/ops/v1/compaction/report")[1]) == report
    assert json.loads(request("GET", url_of(own, topic))[1]) == {"status": "SUCCESS", "lastError": ""}

    assert topic in nightly("report")[1]
    assert "false" in nightly("plan")[1]
    status, printed, _ = nightly()
    assert status == 0 and printed.startswith("success: ended ") and "Compacted 0 of 1 partitions" in printed
    assert "Not due: 1 partition: nothing has come since its last compaction\n" in printed
    assert views(own, topic) == [1]


def test_its_numbers_are_in_metrics(own, client, nightly):
    topic = unique_topic("numbers")
    fill(client, topic)
    assert nightly("--topic", topic)[0] == 0
    found = samples(request("GET", f"{own.http_url}/metrics")[1])
    report = job_socket.last_report(own.data_dir)
    assert value(found, "geminga_nightly_last_status") == 0 and value(found, "geminga_nightly_last_compacted") == 1
    assert value(found, "geminga_nightly_last_success_timestamp_seconds") == report["ended_ms"] / 1000
    assert (value(found, "geminga_nightly_last_messages_in"), value(found, "geminga_nightly_last_messages_out")) == (
        50,
        5,
    )
    assert value(found, "pulsar_compaction_succeed_count", topic=topic) == 1


def running(broker):
    return json.loads(request("GET", f"{broker.http_url}/ops/v1/status")[1])["running_night"]


def samples_of_progress(broker):
    """Return {name: value} of the metrics of a night that runs."""
    found = samples(request("GET", f"{broker.http_url}/metrics")[1])
    return {name.removeprefix("geminga_nightly_"): found[name][0].value for name in found
            if name in ("geminga_nightly_running", "geminga_nightly_progress_ratio",
                        "geminga_nightly_remaining_seconds")}


def test_the_broker_knows_how_far_a_night_is(own, client, nightly, monkeypatch, capsys):
    """Status, metrics, the answer about compactions and the console say so until the night is over."""
    topic, adopt, seen = unique_topic("progress"), job_socket.BrokerSocket.adopt, []
    fill(client, topic)
    assert running(own) is None and samples_of_progress(own) == {"running": 0}

    def look_and_adopt(*about):
        seen.append(eventually(lambda: (found := running(own)) and found["ratio"] == 1 and found))
        seen.append(samples_of_progress(own))
        seen.append(json.loads(request("GET", f"{own.http_url}/ops/v1/compaction")[1])["night"])
        main(["status", "--admin-url", own.http_url])
        seen.append(capsys.readouterr().out)
        seen.append([request("GET", own.http_url + page)[1] for page in ("/", "/console/nights")])
        return adopt(*about)

    monkeypatch.setattr(job_socket.BrokerSocket, "adopt", look_and_adopt)
    assert nightly("--topic", topic)[0] == 0
    told, measured, of_compactions, shown, pages = seen
    for one in (told, of_compactions):
        assert one.pop("seconds_left") in (None, pytest.approx(0, abs=5))
        assert one == {"stage": "writing", "done": 50, "total": 50, "unit": "messages", "ratio": 1.0}
    assert measured.pop("remaining_seconds", 0) == pytest.approx(0, abs=5)
    assert measured == {"running": 1, "progress_ratio": 1}
    assert "  night       writing, 100 % of 50 messages" in shown
    assert ["A night runs: writing, 100 % of 50 messages" in page for page in pages] == [True, True]
    assert running(own) is None and samples_of_progress(own) == {"running": 0}


KILLED = """
import signal, sys
from geminga.supervisor.main import main
from geminga.supervisor.tasks import job_socket, nights
nights.be_polite = lambda niceness: None
job_socket.BrokerSocket.adopt = lambda *about: signal.pause()
main(sys.argv[1:])
"""


def test_a_night_that_is_killed_is_over(own, client):
    """A broker that was started meanwhile has been told of the night."""
    topic = unique_topic("killed")
    fill(client, topic)
    command = [sys.executable, "-P", "-c", KILLED, "nightly", "--engine", "here", "--data-dir", str(own.data_dir),
               "--topic", topic]
    with subprocess.Popen(command) as night:
        try:
            assert eventually(lambda: running(own))
            own.stop()
            own.start()
            assert eventually(lambda: running(own))["stage"] == "writing"
        finally:
            night.kill()
    assert eventually(lambda: running(own) is None)
    assert samples_of_progress(own) == {"running": 0} and not views(own, topic)


def test_topics_are_named_or_match(own, client, nightly):
    """Topics that are named, or match, need no threshold."""
    names = [unique_topic(hint) for hint in ("named", "matched", "neither")]
    for name in names:
        fill(client, name)
    short = names[0].rpartition("/")[2]
    assert nightly("--topic", short, "--pattern", "persistent://public/default/matched-.*")[0] == 0
    assert [views(own, name) for name in names] == [[1], [1], []]


def test_what_a_deleted_topic_has_left_goes(own, client, nightly):
    topic = unique_topic("deleted")
    fill(client, topic)
    folder = format.partition_folder(own.data_dir, partition_id(own, topic))
    assert request("DELETE", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}?force=true")[0] == 204
    folder.mkdir()
    (folder / "7.ledger").write_bytes(bytes(10_000))
    status, printed, _ = nightly("--json")
    assert status == 0 and not folder.exists()
    deleted = json.loads(printed)["retention"]["deleted"]
    assert deleted["folders"] == 1 and deleted["freed"] >= 10_000


def test_a_damaged_topic_fails_and_the_others_do_not(own, client, nightly):
    """The report, the exit status and the alarm say so; the time of the last success stays."""
    bad, good = unique_topic("damaged"), unique_topic("whole")
    for name in (bad, good):
        fill(client, name)
        assert nightly("--topic", name)[0] == 0
        fill(client, name)
    before = job_socket.last_report(own.data_dir)["last_success_ms"]
    manifest = (
        compacted_ledgers.format.compacted_folder(format.partition_folder(own.data_dir, partition_id(own, bad)))
        / "1"
        / "view"
    )
    whole = manifest.read_bytes()
    manifest.write_bytes(b"0" * len(whole))
    status, printed, _ = nightly("--topic", bad, "--topic", good, "--json")
    report = json.loads(printed)
    assert (status, report["status"], report["last_success_ms"]) == (1, "failed", before)
    assert {one["topic"]: one["outcome"] for one in report["compaction"]} == {bad: "failed", good: "compacted"}
    assert bad in _text(report) and str(manifest) in _text(report)
    assert value(samples(request("GET", f"{own.http_url}/metrics")[1]), "geminga_nightly_last_status") == 1
    status, text = request("GET", url_of(own, bad))
    assert json.loads(text)["status"] == "ERROR" and str(manifest) in json.loads(text)["lastError"]
    assert main(["admin", "--admin-url", own.http_url, "topics", "compaction-status", bad, "-w"]) == 1
    manifest.write_bytes(whole)
    assert nightly("--topic", bad)[0] == 0
    assert value(samples(request("GET", f"{own.http_url}/metrics")[1]), "geminga_nightly_last_status") == 0


# -- refused

@pytest.mark.parametrize("words", [
    ("--topic", "persistent://public/default/none"), ("--pattern", "("), ("--topic", "a/b/c/d/e/f"),
    ("--engine", "abacus"),
    ("--memory", "much"), ("--memory", "1K"), ("--cores", "-1"), ("--master", "spark"), ("tomorrow",),
    ("--config", "{folder}/absent.toml")])
def test_wrong_usage(nightly, tmp_path, words):
    status, printed, complaint = nightly(*(word.replace("{folder}", str(tmp_path)) for word in words))
    assert status == 2 and not printed and complaint


def test_what_is_no_data_folder_is_left_as_it_is(nightly, tmp_path):
    status, _, complaint = nightly(data_dir=tmp_path)
    assert (status, complaint) == (2, f"geminga: {tmp_path} is no data folder of a broker\n")
    assert not list(tmp_path.iterdir())


def test_a_report_that_cannot_be_written_costs_no_night(own, nightly, tmp_path):
    shutil.copy(own.data_dir / "catalogue.sqlite", tmp_path)
    (tmp_path / job_socket.REPORT).mkdir(parents=True)
    status, printed, complaint = nightly("--json", data_dir=tmp_path)
    report = json.loads(printed)
    assert (status, complaint, report["status"]) == (1, "", "failed")
    assert report["error"].startswith(f"its report cannot be written: {tmp_path}/nightly/")


def test_two_nights_at_once_are_refused(own, client, nightly):
    topic = unique_topic("twice")
    fill(client, topic)
    with locks.lock(own.data_dir / "nightly" / locks.LOCK) as is_ours:
        assert is_ours
        status, printed, complaint = nightly("--topic", topic)
    assert (status, printed) == (3, "") and "another run is under way" in complaint and complaint.count("\n") == 1
    assert not views(own, topic)


def test_a_folder_that_is_in_use_by_something_that_does_not_answer(own, nightly, tmp_path, monkeypatch):
    monkeypatch.setattr(job_socket, "_PATIENCE_SECONDS", 0)
    shutil.copy(own.data_dir / "catalogue.sqlite", tmp_path)
    with locks.lock(tmp_path / locks.LOCK):
        status, _, complaint = nightly(data_dir=tmp_path)
    assert status == 3 and "does not answer" in complaint and complaint.count("\n") == 1


def test_without_java_one_line_says_what_is_missing(own, client, nightly, tmp_path, monkeypatch):
    topic = unique_topic("no-java")
    fill(client, topic)
    for name in ("PATH", "JAVA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setenv("GEMINGA_NIGHTLY_IN_PROCESS_BYTES", "0")      # else a small night does not ask for Java
    for engine in ("spark", "auto"):
        status, printed, complaint = nightly("--topic", topic, "--engine", engine)
        assert (status, printed) == (3, "") and complaint.count("\n") == 1
        assert re.search("java", complaint, re.IGNORECASE) and "--engine here" in complaint
    assert nightly("--topic", topic)[0] == 0 and views(own, topic) == [1]


def test_a_small_night_does_not_start_spark(own, client, nightly, monkeypatch):
    """Spark's start takes longer than the same steps take in this process."""
    def start(*_, **__):
        raise AssertionError("Spark is started")

    monkeypatch.setattr(night_engines, "Spark", start)
    topic = unique_topic("small")
    fill(client, topic)
    status, printed, _ = nightly("--topic", topic, "--engine", "auto")
    assert status == 0 and "Compacted 1 of 1 partitions (this process)" in printed
    assert compacted_values(client, topic) == LATEST


def test_where_spark_is_not_installed_a_night_is_of_one_process(own, client, nightly, monkeypatch):
    """--engine auto then compacts in this process; --engine spark fails in one line."""
    topic = unique_topic("no-spark")
    fill(client, topic)
    monkeypatch.setenv("GEMINGA_NIGHTLY_IN_PROCESS_BYTES", "0")
    monkeypatch.setitem(sys.modules, "pyspark.errors", None)
    status, _, complaint = nightly("--topic", topic, "--engine", "spark")
    assert status == 3 and "Spark is not installed" in complaint and complaint.count("\n") == 1
    status, printed, _ = nightly("--topic", topic, "--engine", "auto")
    assert status == 0 and "Compacted 1 of 1 partitions (this process)" in printed
    assert compacted_values(client, topic) == LATEST


# -- without a broker, and with Spark

def test_a_night_without_a_broker(own, client, nightly):
    """Views are put in force; what only owners can do is left to a broker, and the report says so."""
    topic = unique_topic("alone")
    fill(client, topic)
    own.stop()
    try:
        status, printed, _ = nightly("--topic", topic)
        assert status == 0 and "Compacted 1 of 1 partitions" in printed and "no broker serves" in printed
        assert not job_socket.last_report(own.data_dir)["served"]
        assert views(own, topic) == [1]
    finally:
        own.start()
    assert compacted_values(client, topic) == LATEST


def test_a_broker_may_be_started_and_stopped_while_a_job_is_at_it(own, client):
    """The broker and the job do not disturb each other, and the view is put in force by whichever can."""
    topic = unique_topic("up-and-down")
    fill(client, topic)
    target = jobs.Target(partition_id(own, topic), topic)
    with contextlib.closing(job_socket.BrokerSocket(own.data_dir)) as side:
        for change, number in ((own.start, 1), (own.stop, 2)):
            def adopt(*about, change=change):
                change()
                return side.adopt(*about)

            if change == own.start:
                own.stop()
            assert side.is_served() == own.is_there
            side.began({target.partition_id: topic})
            report = jobs.compact(own.data_dir, target, adopt)
            assert (report.outcome, report.error, views(own, topic)[-1]) == (jobs.COMPACTED, "", number)
            side.ended(asdict(report))
            if change == own.start:
                assert compacted_values(client, topic) == LATEST
                fill(client, topic)
    own.start()
    assert compacted_values(client, topic) == LATEST


@pytest.mark.spark
def test_a_night_with_spark(own, client):
    """The command is run as the timer runs it, but not behind all other tests."""
    topic = unique_topic("spark")
    fill(client, topic)
    command = [str(Path(sys.executable).with_name("geminga")), "nightly", "--data-dir", str(own.data_dir), "--topic",
               topic, "--cores", "2", "--json"]
    # It is no small night.
    environment = os.environ | {"GEMINGA_NIGHTLY_IN_PROCESS_BYTES": "1", "GEMINGA_NIGHTLY_NICENESS": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["engine"].startswith("Spark") and report["compaction"][0]["messages_out"] == 5
    assert compacted_values(client, topic) == LATEST
    assert not list((own.data_dir / "nightly").glob("scratch*"))


@pytest.mark.slow
def test_it_goes_behind_others():
    code = "from geminga.supervisor.tasks.nights import be_polite; import os, psutil; be_polite(12); " \
           "print(os.nice(0), psutil.Process().ionice().ioclass.name, open('/proc/self/oom_score_adj').read().strip())"
    told = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert int(told[0]) == max(12, os.nice(0)) and told[1] == "IOPRIO_CLASS_IDLE"


BEHIND = """
import subprocess, sys
from geminga.supervisor.tasks.nights import be_polite
be_polite(10)
mine = subprocess.Popen(sys.argv[1:])
print(mine.pid, flush=True)
sys.stdin.read()
mine.kill()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may go back to a higher priority without LimitNICE")
def test_it_takes_idle_cores_and_does_not_starve():
    """A core that another process wants all the time is shared by the niceness, for some seconds in every few.

    While others use cores, the job keeps off one.
    """
    cores = sorted(os.sched_getaffinity(0))
    code = f"import os, time; os.sched_setaffinity(0, [{cores[0]}])\nwhile time.process_time() < 60: pass"
    busy = [sys.executable, "-c", code]
    with subprocess.Popen(busy) as other, subprocess.Popen(
            [sys.executable, "-P", "-c", BEHIND, *busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        try:
            mine = int(job.stdout.readline())
            for policy in (os.SCHED_IDLE, os.SCHED_OTHER, os.SCHED_IDLE):
                eventually(lambda policy=policy: os.sched_getscheduler(mine) == policy, what=f"policy {policy}")
            assert os.sched_getaffinity(mine) == set(cores[:-1] or cores)
        finally:
            other.kill()
            job.stdin.close()


# -- what is shown

def test_a_run_that_could_not_tell_how_it_ended_is_told_of(nightly, own):
    """The service manager has it reported, in the log and in the report, which keeps the time of the last success."""
    def failed(result, status):
        environ = os.environ | {"MONITOR_SERVICE_RESULT": result, "MONITOR_EXIT_STATUS": status}
        command = [COMMAND[0], "nightly", "failed", "--data-dir", str(own.data_dir)]
        return subprocess.run(command, capture_output=True, text=True, check=True,
                              timeout=HANG_SECONDS, env=environ).stderr

    assert nightly()[0] == 0
    before = job_socket.last_report(own.data_dir)
    failed("exit-code", "1")
    assert job_socket.last_report(own.data_dir) == before      # that run has reported everything itself
    assert "the nightly job failed: it ended with exit status 3" in failed("exit-code", "3")
    assert "the nightly job failed: it ended with oom-kill" in failed("oom-kill", "KILL")
    status, told, _ = nightly("report")
    assert status == 0 and told.startswith("failed: ended") and "it ended with oom-kill" in told
    assert job_socket.last_report(own.data_dir)["last_success_ms"] == before["last_success_ms"]


# -- a night that has to be over

def test_the_end_of_a_night_is_the_next_time_of_that_day():
    now = datetime(2026, 3, 1, 4, 30)
    assert nights.ends_at("05:00", now) == 30 * 60
    assert nights.ends_at("04:30", now) == nights.ends_at("04:30", now.replace(second=1)) + 1 == 24 * 3600
    assert nights.ends_at("", now) == math.inf


def test_topics_that_a_night_has_no_time_for_are_no_failure(own, client, nightly, monkeypatch):
    """They are told of, and the broker does not take them for compacted."""
    topic = unique_topic("late")
    fill(client, topic)
    monkeypatch.setattr(nights, "ends_at", lambda until, now: 0 if until == "05:00" else math.inf)
    status, printed, _ = nightly("--topic", topic, "--ends-at", "05:00")
    assert status == 0 and "not in time" in printed and "Compacted 0 of 1" in printed
    assert json.loads(nightly("report", "-o", "json")[1])["totals"]["late"] == 1
    assert views(own, topic) == []
    assert json.loads(request("GET", url_of(own, topic))[1])["status"] == "NOT_RUN"
    assert nightly("--topic", topic)[0] == 0
    assert views(own, topic) == [1]


def test_a_time_that_is_none_is_refused(nightly):
    status, _, complaint = nightly("--ends-at", "5")
    assert status == 2 and "nightly.until" in complaint and "HH:MM" in complaint
