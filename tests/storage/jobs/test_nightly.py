"""A run over many partitions follows its plan, reports failures, and leaves views in force whole until an adoption."""
import contextlib
import errno
import os
import shutil
import signal
import time

import pytest

from geminga.storage import format
from geminga.storage.disk import locks
from geminga.storage.jobs.compacting import engines, nightly, spark_tasks, view_writer
from geminga.storage.jobs.compacting.nightly import BUSY, COMPACTED, FAILED, LATE, NOT_ADOPTED, NOTHING_NEW
from geminga.storage.ledgers import compacted_ledgers

from .topics import Message, Topic, adopt_here


@pytest.fixture
def topics(tmp_path):
    """Three partitions with new messages."""
    found = [Topic(tmp_path, partition_id) for partition_id in (1, 2, 3)]
    for topic in found:
        for n in range(30):
            topic.publish(Message(str(n % 10), b"%d" % n))
        topic.publish_batch([Message(str(n % 15), b"%d" % n) for n in range(40)])
    return found


def run(topics, adopt=None, **more):
    """Run all these partitions as planned, and return {partition id: report}."""
    data_dir = topics[0].data_dir
    night = nightly.run(data_dir, nightly.plan(data_dir, [topic.target for topic in topics]),
                        adopt or adopt_here(data_dir), **more)
    return {report.partition_id: report for report in night.reports}


def outcomes(reports):
    return [report.outcome for _, report in sorted(reports.items())]


def files_of(topic):
    """Return the names in a partition's folder of views, without the lock."""
    folder = format.compacted_folder(topic.folder)
    return sorted(path.name for path in folder.iterdir() if path.name != locks.LOCK) if folder.exists() else []


def test_a_plan_says_what_a_run_then_does(topics, tmp_path):
    empty = Topic(tmp_path, 4)
    planned = nightly.plan(tmp_path, [topic.target for topic in (*topics, empty)])
    assert [(one.is_due, one.entries, one.messages) for one in planned] == [(True, 31, 70)] * 3 + [(False, 0, 0)]
    assert planned[0].why == "70 new messages" and planned[3].why == "there is nothing in it"
    assert all(files_of(topic) == [] for topic in topics)
    reports = run(topics)
    for one in planned[:3]:
        report = reports[one.target.partition_id]
        assert (report.outcome, report.view, report.horizon) == (COMPACTED, 1, one.horizon)
        assert (report.entries_in, report.messages_in, report.bytes_in) == (one.entries, one.messages, one.size)
        assert (report.keys, report.messages_out, report.freed) == (15, 15, report.bytes_in - report.bytes_out)
    for topic in topics:
        assert topic.contents() == topic.newest()
        assert topic.view().manifest.report["keys"] == 15


def test_a_partition_without_news_is_not_touched(topics):
    run(topics)
    before = [times_of(topic) for topic in topics]
    topics[1].publish(Message("new", b"x"))
    planned = nightly.plan(topics[0].data_dir, [topic.target for topic in topics])
    assert [one.why for one in planned] == ["nothing has come since view 1", "1 new message since view 1",
                                            "nothing has come since view 1"]
    assert outcomes(run(topics)) == [NOTHING_NEW, COMPACTED, NOTHING_NEW]
    assert [topic.view().number for topic in topics] == [1, 2, 1]
    assert [times_of(topic) == times for topic, times in zip(topics, before, strict=True)] == [True, False, True]


def times_of(topic):
    return {str(path): path.stat().st_mtime_ns for path in topic.folder.rglob("*")}


def test_two_runs_at_once_are_refused(topics):
    refused = []

    def adopt(partition_id, topic, number):
        with pytest.raises(nightly.AlreadyRunning, match="another run is under way"):
            run(topics)
        refused.append(partition_id)

    run(topics, adopt)
    assert refused == [1, 2, 3]
    assert len(run(topics)) == 3


def test_a_partition_that_somebody_compacts_is_left_to_them(topics):
    with compaction_of(topics[1]):
        reports = run(topics)
        assert outcomes(reports) == [COMPACTED, BUSY, COMPACTED]
        assert "already" in reports[2].error
        assert nightly.compact(topics[1].data_dir, topics[1].target, adopt_here(topics[1].data_dir)).outcome == BUSY
    assert topics[1].compact().outcome == COMPACTED


def compaction_of(topic):
    folder = format.compacted_folder(topic.folder)
    folder.mkdir(exist_ok=True)
    return locks.lock(folder / locks.LOCK)


def test_one_that_was_compacted_since_it_was_planned_is_looked_at_anew(topics):
    planned = nightly.plan(topics[0].data_dir, [topics[0].target])
    topics[0].compact()
    night = nightly.run(topics[0].data_dir, planned, adopt_here(topics[0].data_dir))
    assert (night.reports[0].outcome, night.reports[0].view) == (NOTHING_NEW, 1)


def test_what_is_not_adopted_goes(topics):
    reports = run(topics, lambda partition_id, topic, number: "it is not here any more" if partition_id == 2 else
                  adopt_here(topics[0].data_dir)(partition_id, topic, number))
    assert outcomes(reports) == [COMPACTED, NOT_ADOPTED, COMPACTED]
    assert reports[2].error == "it is not here any more"
    assert [files_of(topic) for topic in topics] == [["1"], [], ["1"]]


def test_topics_that_are_deleted_meanwhile_are_told_of(topics, monkeypatch):
    planned = nightly.plan(topics[0].data_dir, [topic.target for topic in topics])
    shutil.rmtree(topics[0].folder)
    write = view_writer.write

    def deleted(job, *more):
        if job.partition_id == 2:
            shutil.rmtree(job.folder)
        return write(job, *more)

    monkeypatch.setattr(view_writer, "write", deleted)
    reports = nightly.run(topics[0].data_dir, planned, adopt_here(topics[0].data_dir)).reports
    assert sorted(report.outcome for report in reports) == [COMPACTED, FAILED, FAILED]
    assert all("deleted meanwhile" in report.error for report in reports if report.outcome == FAILED)
    assert not topics[0].folder.exists() and not topics[1].folder.exists()


def test_a_full_disk_costs_a_partition_its_view_and_no_more(topics, monkeypatch):
    run(topics)
    before = topics[1].contents()
    for topic in topics:
        topic.publish(Message("new", b"x"))
    write = os.write

    def full(fd, data):
        if "/2/compacted/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    reports = run(topics)
    assert outcomes(reports) == [COMPACTED, FAILED, COMPACTED]
    assert reports[2].error.endswith(".new: No space left on device") and reports[2].view == 1
    assert files_of(topics[1]) == ["1"] and topics[1].contents() == before
    monkeypatch.undo()
    assert outcomes(run(topics)) == [NOTHING_NEW, COMPACTED, NOTHING_NEW]
    assert topics[1].contents() == topics[1].newest()


def test_a_broken_view_is_told_of_and_nothing_done(topics):
    run(topics)
    (topics[1].view().folder / "view").write_bytes(b"00000000 {}")
    for topic in topics:
        topic.publish(Message("new", b"x"))
    reports = run(topics)
    assert outcomes(reports) == [COMPACTED, FAILED, COMPACTED]
    assert "view" in reports[2].error


def test_what_was_begun_and_left_goes(topics):
    target = compacted_ledgers.unfinished(topics[0].folder, 1)
    target.mkdir(parents=True)
    (target / "77.ledger").write_bytes(b"of a job that was killed")
    run(topics)
    assert files_of(topics[0]) == ["1"]
    assert topics[0].contents() == topics[0].newest()


def test_a_run_that_breaks_off_leaves_nothing_begun(topics):
    def adopt(partition_id, topic, number):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(topics, adopt)
    assert all(files_of(topic) == [] for topic in topics)


def test_what_nobody_has_thought_of_is_told_and_leaves_nothing_begun(topics):
    def adopt(partition_id, topic, number):
        raise ZeroDivisionError

    data_dir = topics[0].data_dir
    night = nightly.run(data_dir, nightly.plan(data_dir, [topic.target for topic in topics]), adopt)
    assert (night.error, night.reports) == ("ZeroDivisionError", ())
    assert all(files_of(topic) == [] for topic in topics)


def test_an_error_that_nobody_foresaw_fails_only_its_partition(topics, monkeypatch, capsys):
    write = view_writer.write

    def failing(job, *more):
        if job.partition_id == 1:
            raise KeyError("of a library")
        return write(job, *more)
    monkeypatch.setattr(view_writer, "write", failing)
    reports = run(topics)
    assert outcomes(reports) == [FAILED, COMPACTED, COMPACTED] and reports[1].error == "KeyError: 'of a library'"
    assert files_of(topics[0]) == [] and "Traceback" in capsys.readouterr().err


class Deadly:
    """A value that kills the process which it is sent to, as a lack of memory does."""

    def __reduce__(self):
        return signal.raise_signal, (signal.SIGKILL,)


class Starved(engines.ApartEngine):
    def _done(self, job, tell, before, total, ends):
        return super()._done(job, tell, before, total, Deadly() if job.partition_id == 1 else ends)


@pytest.mark.slow
def test_a_partition_that_needs_all_memory_costs_no_other_its_view(topics):
    with contextlib.closing(Starved()) as engine:
        reports = run(topics, engine=engine)
    assert outcomes(reports) == [FAILED, COMPACTED, COMPACTED]
    assert reports[1].error == "its process ended with signal SIGKILL, as when memory runs out"
    assert files_of(topics[0]) == [] and topics[1].contents() == topics[1].newest()


@pytest.mark.slow
def test_a_process_beside_this_one_tells_how_far_it_is_and_ends_in_time(topics):
    seen = []
    with contextlib.closing(engines.ApartEngine()) as engine:
        assert outcomes(run(topics, engine=engine, ends=time.monotonic() + 1e-6)) == [LATE] * 3
        assert outcomes(run(topics, engine=engine, progress=lambda *told: seen.append(told))) == [COMPACTED] * 3
    assert {stage for stage, _, _ in seen} == {engines.READING, engines.WRITING}
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen) and seen[-1][1:] == (210, 210)


def test_progress_goes_up_to_all_messages_over_all_rounds(topics, monkeypatch):
    monkeypatch.setattr(nightly, "_TOGETHER", 2)
    seen = []
    run(topics, progress=lambda stage, done, total: seen.append((stage, done, total)))
    assert {total for _, _, total in seen} == {210}
    assert max(done for stage, done, _ in seen if stage == engines.READING) == 210
    done = [done for _, done, _ in seen]
    assert done == sorted(done) and done[-1] == 210


# -- a night that has to be over

class Clock:
    """A clock that goes on only when a partition's messages are read, by a second for 100,000 bytes."""

    def __init__(self, monkeypatch):
        self.now, scan = 1_000.0, engines.key_scan.scan_keys
        for module in (engines, nightly):
            monkeypatch.setattr(module, "time", self)

        def slow(job, stretch):
            self.now += job.size / 100_000
            yield from scan(job, stretch)
        monkeypatch.setattr(engines.key_scan, "scan_keys", slow)

    def monotonic(self):
        return self.now

    def time(self):
        return time.time()


def test_a_night_is_over_in_time_and_the_neediest_are_done(topics, monkeypatch):
    """The partition with the most new bytes comes first; one that is expected to take too long is not begun."""
    topics[1].publish(Message("large", b"." * 100_000))
    topics[2].publish(Message("larger", b"." * 200_000))
    monkeypatch.setattr(nightly, "_FIRST_BYTES", 1)
    clock = Clock(monkeypatch)
    assert outcomes(run(topics, ends=clock.now)) == [LATE, LATE, LATE]
    assert outcomes(run(topics, ends=clock.now + 2.5)) == [COMPACTED, LATE, COMPACTED]
    assert [files_of(topic) for topic in topics] == [["1"], [], ["1"]]
    assert outcomes(run(topics, ends=clock.now + 60)) == [NOTHING_NEW, COMPACTED, NOTHING_NEW]


def test_what_a_night_gave_up_takes_the_next_one_from_nobody(topics, monkeypatch):
    """It comes last until it is done, also after a night that did not begin it."""
    topics[1].publish(Message("large", b"." * 200_000))
    clock = Clock(monkeypatch)
    monkeypatch.setattr(nightly, "_FIRST_BYTES", 1)
    reports = run(topics, ends=clock.now + 1)
    assert outcomes(reports) == [LATE, LATE, LATE]
    for _ in range(2):      # the second of these nights does not begin it
        assert [number for number, report in reports.items() if report.given_up] == [2]
        reports = run(topics, ends=clock.now + 1, given_up={2})
        assert reports[2].outcome == LATE
    assert outcomes(reports) == [NOTHING_NEW, LATE, NOTHING_NEW]
    reports = run(topics, ends=clock.now + 60, given_up={2})
    assert (reports[2].outcome, reports[2].given_up) == (COMPACTED, False)


def test_what_is_not_done_when_the_time_is_over_stays_as_it_was(topics, monkeypatch):
    """Whole partitions of a round that was given up stay done, and of the others nothing is left."""
    clock, size = Clock(monkeypatch), nightly.plan(topics[0].data_dir, [topics[0].target])[0].size
    assert outcomes(run(topics, ends=clock.now + 1.5 * size / 100_000)) == [COMPACTED, LATE, LATE]
    assert [files_of(topic) for topic in topics] == [["1"], [], []]
    assert outcomes(run(topics)) == [NOTHING_NEW, COMPACTED, COMPACTED]
    for topic in topics:
        assert topic.contents() == topic.newest()


@pytest.mark.spark
def test_spark_is_stopped_when_the_time_is_over(topics, spark, tmp_path):
    """Its tasks are cancelled while they wait, and Spark can be used again."""
    path = tmp_path / "pipe"
    os.mkfifo(path)      # who opens it to read waits for a writer, which never comes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_tasks, "looker", lambda *_: lambda bundle: path.read_text())
        engine = engines.Spark(tmp_path / "scratch", context=spark.sparkContext)
        reports = run(topics, engine=engine, ends=time.monotonic() + 2)
    assert outcomes(reports) == [LATE] * 3
    assert [files_of(topic) for topic in topics] == [[], [], []]
    assert outcomes(run(topics, engine=engine, ends=time.monotonic() + 600)) == [COMPACTED] * 3


@pytest.mark.spark
def test_a_partition_that_spark_cannot_compact_costs_no_other_its_view(topics, spark, tmp_path, monkeypatch):
    """Its keys may need all memory: the process that reads them is killed, and with it all that Spark does together."""
    looker = spark_tasks.looker

    def starved(jobs, *more):
        if all(job.partition_id != 1 for job in jobs):
            return looker(jobs, *more)

        def look(bundle):
            signal.raise_signal(signal.SIGKILL)
        return look
    monkeypatch.setattr(spark_tasks, "looker", starved)
    reports = run(topics, engine=engines.Spark(tmp_path / "scratch", context=spark.sparkContext))
    assert outcomes(reports) == [FAILED, COMPACTED, COMPACTED]
    assert reports[1].error.startswith("Spark failed: ") and files_of(topics[0]) == []
    for topic in topics[1:]:
        assert topic.contents() == topic.newest()


def test_no_java_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(engines.NoSpark,
                       match="^Spark needs a Java runtime, 17 or newer: apt-get install default-jre-headless$"):
        engines.Spark(tmp_path / "scratch")
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(engines.NoSpark, match="java is 11"):
        engines.Spark(tmp_path / "scratch")


def test_what_a_job_that_failed_has_written_is_gone_before_the_next_is_done(topics, monkeypatch):
    """The space of a failed view is free before the next partition is compacted."""
    write, seen = os.write, []

    def full(fd, data):
        if "/1/compacted/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    def adopt(*view):
        seen.append(files_of(topics[0]))
        return adopt_here(topics[0].data_dir)(*view)

    monkeypatch.setattr(os, "write", full)
    assert outcomes(run(topics, adopt)) == [FAILED, COMPACTED, COMPACTED]
    assert seen == [[], []]
