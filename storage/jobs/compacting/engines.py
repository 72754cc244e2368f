"""Compute a compaction, in this process or in Spark.

Both run the two passes of compaction.py, with a maximum per key in between. Spark spills to disk what does not fit
into memory, and may run on many hosts.
"""
import contextlib
import errno
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from geminga.proto.rows import Rows
from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.jobs import apart
from geminga.storage.jobs.apart import Ended
from geminga.storage.jobs.compacting import compaction, key_scan, spark_tasks, view_writer
from geminga.storage.jobs.compacting.compaction import CannotCompact, Job
from geminga.storage.jobs.compacting.continuation import CannotContinue, Continuation
from geminga.storage.jobs.compacting.spark_tasks import Row, Sum
from geminga.storage.jobs.compacting.view_writer import Written
from geminga.storage.ledgers.view_files import SLOT
from geminga.storage.runtime.threads import beside

READING, WRITING = "reading", "writing"
_MERGE_MIN = 2_000_000           # keys read until they are merged into the newest places known so far
_PARTS_PER_CORE = 4              # parts into which Spark divides keys, and ledgers ...
_PART_MESSAGES = 2_000_000       # ... or more, so that no part has many more messages
_LOOK_S = 0.25                   # between two looks at Spark's progress, and at the clock
_EXECUTORS_S = 120               # for which a cluster's first executor is waited for
_JAVA_MIN = 17

Tell = Callable[[str, int, int], None]      # stage, messages done, messages of all


class NoSpark(Exception):
    """Error: Spark cannot be used.  The text says what is missing."""


class OutOfTime(Exception):
    """Error: a compaction was ended because its time was over; what it has written is to be discarded."""


class NotInstalled(NoSpark):
    """Error: Spark is not installed on this host."""


@dataclass(slots=True)
class Done:
    """Result of one compaction job."""

    written: list[Written] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    error: str = ""                  # why it could not be done
    seconds: float = 0.0
    size_read: int = 0               # bytes

    def take(self, written: Written) -> None:
        """Add the result for one ledger."""
        self.written.append(written)
        self.size_read += written.size


class LocalEngine:
    """Compaction in this process.

    The keys of one partition at a time are in memory, each briefly up to three times.
    """

    name = "this process"
    continues_max = math.inf         # new messages of a partition up to which its view is continued

    def __repr__(self) -> str:
        return "<LocalEngine>"

    def close(self) -> None:
        """Do nothing: this engine holds no resources."""

    def compact(self, jobs: list[Job], tell: Tell, ends: float = math.inf) -> Iterator[tuple[Job, Done]]:
        """Compact the jobs one after the other; yield each with its result as it ends.

        The ledgers of its view are written then, in the job's own folder; nightly.py completes the view.

        ends: when the time is over, by time.monotonic(); it is looked at between stretches and ledgers.  Raises
        OutOfTime.
        """
        total, before = sum(job.messages for job in jobs), 0
        for job in jobs:
            started = time.monotonic()
            job, done = self._done(job, tell, before, total, ends)
            done.seconds = time.monotonic() - started
            before += job.messages
            tell(WRITING, before, total)
            yield job, done

    def each(self, task: Callable[[int], Any], count: int, tell: Tell, stage: str, messages: list[int],
             ends: float = math.inf) -> list[Any]:
        """Return the results of tasks 0 .. count - 1, run one after the other.

        messages: of each task, for `tell`.  ends: see `compact`.  Raises OutOfTime.
        """
        results, total = [], sum(messages)
        for number in range(count):
            _check_time(ends)
            tell(stage, sum(messages[:number]), total)
            results.append(task(number))
        tell(stage, total, total)
        return results

    def _done(self, job: Job, tell: Tell, before: int, total: int, ends: float) -> tuple[Job, Done]:
        """Compact one job.  Returns the job that was done, with its result.  Raises OutOfTime.

        before, total: messages of earlier jobs, and of all, for `tell`.
        """
        tell_read, written = partial(_tell_read, tell, before, total), before
        done = Done()
        try:
            if job.behind is not None:
                try:
                    return job, self.continued(job, tell_read, ends)
                except CannotContinue as error:
                    job = compaction.whole(job, str(error))
            done = Done(damage=list(job.damage), size_read=job.size_read)
            slots = self._newest(job, done, tell_read, ends)
            if len(extra := key_scan.kept_chunks(job, slots["place"])):
                slots = np.concatenate((slots, key_scan.keyless_slots(extra)))
            for number, some in key_scan.by_ledger(slots):
                _check_time(ends)
                done.take(view_writer.write(job, number, some))
                written += job.source(number).messages
                tell(WRITING, written, total)
        except OutOfTime:
            raise
        except Exception as error:      # any error of this partition: others can be compacted
            done.error = _text(error)
        return job, done

    def continued(self, job: Job, tell: Callable[[int], None], ends: float) -> Done:
        """Compact a job that continues a view.  Raises CannotContinue, CannotCompact, OutOfTime, OSError, CorruptFile.
        """
        continuation, done = Continuation(job), Done(size_read=job.size_read)
        news = self._newest(job, done, tell, ends)
        done.written = list(continuation.written(news, partial(_check_time, ends)))
        done.size_read += continuation.size_read
        return done

    @staticmethod
    def _newest(job: Job, done: Done, tell: Callable[[int], None], ends: float) -> Rows:
        """Return the newest message of each key, and keyless messages that are kept, as SLOTs (n,)."""
        newest, fresh, count, alone, looked = None, [], 0, [], 0
        for stretch, _ in compaction.stretches(job):
            _check_time(ends)
            for scan in key_scan.scan_keys(job, stretch):
                fresh.append(pa.Table.from_batches([scan.keyed]))
                alone.append(scan.alone)
                count += scan.keyed.num_rows
                looked += scan.messages
                done.damage += scan.damage
                done.size_read += scan.size
                if count >= max(_MERGE_MIN, newest.num_rows if newest is not None else 0):
                    newest, fresh, count = _merged(newest, fresh), [], 0
                    tell(looked)
            tell(looked)
        if fresh:
            newest = _merged(newest, fresh)
        if newest is None:
            return np.empty(0, SLOT)
        slots, places = key_scan.keyed_slots(newest, job.seed), np.concatenate(alone)
        return np.concatenate((slots, key_scan.keyless_slots(places))) if len(places) else slots


class ApartEngine(LocalEngine):
    """Compaction in a process beside this one.

    A partition whose keys need more memory than there is ends that process, and the others are compacted.
    """

    def __init__(self) -> None:
        self._process: apart.Process | None = None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _done(self, job: Job, tell: Tell, before: int, total: int, ends: float) -> tuple[Job, Done]:
        if self._process is None or not self._process.is_running:
            self.close()
            self._process = apart.Process()
        try:
            done: tuple[Job, Done] = self._process.run(_compacted, (job, before, total, ends), tell)
            return done
        except Ended as ended:
            return job, Done(damage=list(job.damage), error=f"{ended}, as when memory runs out")


def _compacted(job: Job, before: int, total: int, ends: float) -> tuple[Job, Done]:
    return LocalEngine()._done(job, apart.tell, before, total, ends)


def _tell_read(tell: Tell, before: int, total: int, looked: int) -> None:
    tell(READING, before + looked, total)


def _check_time(ends: float) -> None:
    if time.monotonic() >= ends:
        raise OutOfTime


def _merged(newest: pa.Table | None, fresh: list[pa.Table]) -> pa.Table:
    return key_scan.newest_of(pa.concat_tables(fresh if newest is None else [newest, *fresh]))


class Spark:
    """Compaction by Spark, with any master; local[*] is this host.

    Other hosts need the data folder under the same path, and geminga installed. memory: of Spark's own process; each of
    its Python workers, one for a core, takes some 200 MiB more.
    """

    continues_max = _PART_MESSAGES   # new messages of a partition up to which one task continues its view

    def __init__(self, scratch: Path, master: str = "local[*]", memory: str = "640m", context: Any = None,
                 settings: Mapping[str, str] | None = None):
        """Start Spark, or use an existing SparkContext.

        Executors of a cluster have started when this returns, so no compaction's time has their start in it.

        scratch: a folder for data that does not fit into memory. settings: more of Spark's properties.  Raises NoSpark.
        """
        self._scratch, self._is_ours = scratch, context is None
        self.context = _start(scratch, master, memory, settings or {}) if context is None else context
        if self._is_ours and not master.startswith("local"):
            try:
                _wait_for_executors(self.context, memory)
            except NoSpark:
                self.close()
                raise
        self.name = f"Spark {self.context.version}, {self.context.master}"

    def __repr__(self) -> str:
        return f"<Spark {self.name}>"

    def close(self) -> None:
        """Stop Spark if this engine started it."""
        if self._is_ours:
            self.context.stop()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def compact(self, jobs: list[Job], tell: Tell, ends: float = math.inf) -> Iterator[tuple[Job, Done]]:
        """Compact all jobs together, then yield each with its result; see LocalEngine.compact.

        A task continues the view of one partition.  All other partitions are divided among tasks.  If Spark fails, one
        partition may be the reason, as when its keys need too much memory: then each is compacted alone.

        ends: when Spark's work is cancelled, by time.monotonic().  Raises OutOfTime.
        """
        started = time.monotonic()
        results, failed = self._together(jobs, tell, ends)
        if len(failed) > 1:
            failed = [self._alone(job, ends) for job, _ in failed]
        in_order = {job.partition_id: number for number, job in enumerate(jobs)}
        results = sorted([*results, *failed], key=lambda one: in_order[one[0].partition_id])
        seconds, size = time.monotonic() - started, max(1, sum(job.size for job, _ in results))
        for job, done in results:
            done.seconds = seconds * job.size / size
            yield job, done

    def _alone(self, job: Job, ends: float) -> tuple[Job, Done]:
        """Compact one job that failed together with others.  Raises OutOfTime."""
        try:
            compaction.begin(job)      # without what the tasks that failed have written
        except CannotCompact as error:
            return job, Done(error=str(error))
        [result] = itertools.chain(*self._together([job], lambda *_: None, ends))
        return result

    def _together(self, jobs: list[Job], tell: Tell,
                  ends: float) -> tuple[list[tuple[Job, Done]], list[tuple[Job, Done]]]:
        """Compact jobs together; return (those with a result, those for which Spark failed).  Raises OutOfTime."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        results, why = list[tuple[Job, Done]](), ""
        context, total = self.context, sum(job.messages for job in jobs)
        looked, written = context.accumulator(0), context.accumulator(0)
        notes, sizes = (context.accumulator([], _lists()) for _ in range(2))

        def look() -> None:
            stage, done = (WRITING, written.value) if written.value else (READING, looked.value)
            tell(stage, min(done, total), total)

        with _watched(context, look, ends):
            remaining = jobs
            try:
                results, again = self._continued([job for job in jobs if job.behind is not None], jobs, looked)
                remaining = [*(job for job in jobs if job.behind is None), *again]
                rows = self._run(remaining, looked, written, notes, sizes)
            except (PySparkException, Py4JError, OSError) as error:
                _check_time(ends)      # then it was cancelled
                why = f"Spark failed: {_reason(error)}"
        if why:
            return results, [(job, Done(damage=list(job.damage), error=why)) for job in remaining]
        results_left = [Done(damage=list(job.damage), size_read=job.size_read) for job in remaining]
        for number, result in rows:
            results_left[number].take(result)
        for number, size in sizes.value:
            results_left[number].size_read += size
        for number, is_error, text in notes.value:
            if is_error:
                results_left[number].error = results_left[number].error or text
            else:
                results_left[number].damage.append(text)
        return [*results, *zip(remaining, results_left, strict=True)], []

    def each(self, task: Callable[[int], Any], count: int, tell: Tell, stage: str, messages: list[int],
             ends: float = math.inf) -> list[Any]:
        """Return the results of tasks 0 .. count - 1, run by Spark's workers; see LocalEngine.each.

        Raises OutOfTime, and OSError if Spark fails.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        context, total = self.context, sum(messages)
        done = context.accumulator(0)

        def run(number: int) -> Any:
            result = task(number)
            done.add(messages[number])
            return result

        with _watched(context, lambda: tell(stage, min(total, done.value), total), ends):
            try:
                results: list[Any] = context.parallelize(range(count), count).map(run).collect() if count else []
            except (PySparkException, Py4JError) as error:
                _check_time(ends)      # then it was cancelled
                raise OSError(errno.EIO, f"Spark failed: {_reason(error)}") from error
        return results

    def _continued(self, jobs: list[Job], run: list[Job], looked: Sum) -> tuple[list[tuple[Job, Done]], list[Job]]:
        """Compact jobs that continue views.  Return them with their results, and jobs for which that is not possible.

        run: all jobs of the run.  The returned jobs, which read whole views, have numbers of ledgers behind theirs.
        """
        if not jobs:
            return [], []
        results, again = list[tuple[Job, Done]](), list[Job]()
        behind = max(job.first_ledger + len(job.sources) for job in run)
        tasks = self.context.parallelize(range(len(jobs)), len(jobs)).map(_continuer(jobs, looked))
        for job, (done, why) in zip(jobs, tasks.collect(), strict=True):
            try:
                if why:
                    again.append(compaction.whole(job, why, behind))
                    behind += len(again[-1].sources)
                    continue
            except CannotCompact as error:
                done = Done(error=str(error))
            results.append((job, done))
        return results, again

    def _run(self, jobs: list[Job], looked: Sum, written: Sum, notes: Sum, sizes: Sum) -> "list[Row]":
        """Run both passes of the jobs in Spark; return a row for each ledger.

        Spark moves keys and slots as blocks of bytes: as rows of its own, each would go through the JVM by itself.
        """
        stretches = []
        for number, job in enumerate(jobs):
            try:
                stretches += [(number, stretch, messages) for stretch, messages in compaction.stretches(job)]
            except (CannotCompact, OSError, CorruptFile) as error:
                notes.add([(number, True, _text(error))])
        if not (bundles := spark_tasks.bundled(stretches)):
            return []
        context = self.context
        parts = max(_PARTS_PER_CORE * context.defaultParallelism, sum(job.messages for job in jobs) // _PART_MESSAGES)
        tasks = context.parallelize(range(len(bundles)), len(bundles))
        blocks = tasks.flatMap(spark_tasks.looker(jobs, bundles, parts, looked, notes, sizes))
        newest = blocks.partitionBy(parts, int).mapPartitions(spark_tasks.finder([job.seed for job in jobs]))
        extra = [place for job in jobs for place in job.unfinished]
        lasts = [last for job in jobs for last in job.chunks]
        if lasts:
            newest = newest.persist()
            alive = np.array(newest.flatMap(spark_tasks.among(lasts)).collect(), np.int64)
            extra = [place for job in jobs for place in key_scan.kept_chunks(job, alive).tolist()]
        slots = newest
        if extra:
            more = key_scan.keyless_slots(np.array(extra, np.int64))
            slots = slots.union(context.parallelize([(number, some.tobytes())
                                                     for number, some in key_scan.by_ledger(more)]))
        ledgers = sum(len(job.sources) for job in jobs)
        by_ledger = slots.partitionBy(min(ledgers, parts), int)
        rows: list[Row] = by_ledger.mapPartitions(spark_tasks.writer(jobs, written, notes)).collect()
        if lasts:
            newest.unpersist()
        return rows


def _continuer(jobs: list[Job], looked: Sum) -> Callable[[int], tuple[Done, str]]:
    """Return the function that continues a view.  It returns (result, why that is not possible)."""
    def run(number: int) -> tuple[Done, str]:
        try:
            done = LocalEngine().continued(jobs[number], lambda count: None, math.inf)
        except CannotContinue as error:
            return Done(), str(error)
        except (CannotCompact, OSError, CorruptFile) as error:
            done = Done(error=_text(error))
        looked.add(jobs[number].messages)
        return done, ""
    return run


# -- Spark itself

def _lists() -> Any:
    from pyspark import AccumulatorParam

    class Lists(AccumulatorParam[list[Any]]):
        def zero(self, value: list[Any]) -> list[Any]:
            return []

        def addInPlace(self, first: list[Any], second: list[Any]) -> list[Any]:
            first += second
            return first
    return Lists()


def _watched(context: Any, look: Callable[[], None], ends: float) -> contextlib.AbstractContextManager[None]:
    """Report the progress of Spark by `look` while this is entered; from `ends` on, cancel all jobs of Spark."""
    def watch(is_over: threading.Event) -> None:
        while not is_over.wait(_LOOK_S):
            look()
            if time.monotonic() >= ends:
                context.cancelAllJobs()      # at each look: another one may be about to begin
    return beside(watch)


def _reason(error: Exception) -> str:
    """Return the line of an error of Spark that says why: the last one before the frames of the JVM."""
    lines = str(error).partition("\n\tat ")[0].strip().splitlines()
    return lines[-1].removeprefix(": ") if lines else type(error).__name__


def _start(scratch: Path, master: str, memory: str, more: Mapping[str, str]) -> Any:
    """Start Spark, and return its new SparkContext.  Raises NoSpark."""
    try:
        from py4j.protocol import Py4JError
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
    except ImportError:
        raise NotInstalled("Spark is not installed: that is the package geminga-nightly, "
                           "or pip install 'geminga[nightly]'") from None
    check_java()
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    quiet = scratch / "log4j2.properties"
    quiet.write_text(_QUIET)
    settings = {
        "spark.driver.memory": memory, "spark.executor.memory": memory,
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": scratch,
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile={quiet} {_JVM}",
        "spark.executor.extraJavaOptions": _JVM,
        "spark.python.worker.reuse": "true"}
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")      # else Spark fails on a host whose name has no address
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)      # the interpreter of Spark's Python workers
    configuration = SparkConf().setMaster(master).setAppName("geminga nightly")
    for name, value in {**settings, **more}.items():
        configuration.set(name, str(value))
    try:
        return SparkContext(conf=configuration)
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        raise NoSpark(f"Spark does not start: {_reason(error)}") from error


def _wait_for_executors(context: Any, memory: str) -> None:
    """Return when executors of a cluster have run Python and exchanged data.  Raises NoSpark after _EXECUTORS_S.

    A first task waits for one executor.  Further tasks go to all that have come until its end.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    ends = time.monotonic() + _EXECUTORS_S
    try:
        with _watched(context, lambda: None, ends):
            for count in (1, None):
                tasks = count or context.defaultParallelism
                context.parallelize(range(tasks), tasks).map(spark_tasks.begun).partitionBy(tasks).collect()
    except (PySparkException, Py4JError) as error:
        why = f"no executor with {memory} of memory has started within {_EXECUTORS_S} s" \
            if time.monotonic() >= ends else _reason(error)
        raise NoSpark(f"{context.master}: {why}") from error


# The JVM only moves blocks: compilers and collectors for long computations would take the cores that Python needs.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n
"""


def check_java() -> None:
    """Check that there is a Java runtime that Spark can use.  Raises NoSpark."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    missing = f"Spark needs a Java runtime, {_JAVA_MIN} or newer: apt-get install default-jre-headless"
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr if java else ""
    except (OSError, subprocess.TimeoutExpired):
        output = ""
    version = re.search(r'version "(\d+)', output)
    if version is None:
        raise NoSpark(missing)
    if int(version[1]) < _JAVA_MIN:
        raise NoSpark(f"{missing} ({java} is {version[1]})")


def _text(error: Exception) -> str:
    """Return the text of an error that ends one compaction.  An unexpected error is also logged."""
    if isinstance(error, OSError):
        return text_of(error)
    if isinstance(error, CannotCompact | CorruptFile):
        return str(error)
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"
