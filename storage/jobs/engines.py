"""Compute a compaction, in this process or in Spark.

Both run the two passes of compaction.py, with a maximum per key in between. Spark spills to disk what does not fit
into memory, and may run on many hosts.
"""
import bisect
import contextlib
import errno
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.jobs import compaction, key_scan, view_writer
from geminga.storage.jobs.compaction import CannotCompact, Job
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.key_scan import KeyScan
from geminga.storage.jobs.view_writer import Written
from geminga.storage.ledgers.compacted_ledgers import Part

READING, WRITING = "reading", "writing"
_MERGE_MIN = 2_000_000           # keys read until they are merged into the newest places known so far
_BUNDLE_MESSAGES = 500_000       # messages of the small stretches that one Spark task reads, and of its blocks
_PARTS_PER_CORE = 4              # parts into which Spark divides keys, and ledgers ...
_PART_MESSAGES = 2_000_000       # ... or more, so that no part has many more messages
_BUCKET_MESSAGES = 100_000       # of a partition, for each of the buckets of its keys
_LOOK_S = 0.25                   # between two looks at Spark's progress, and at the clock
_JAVA_MIN = 17

_Sum: TypeAlias = Any      # an accumulator of Spark
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


class LocalEngine:
    """Compaction in this process.

    The keys of one partition at a time are in memory, each briefly up to three times.
    """

    name = "this process"

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
            done, started = Done(), time.monotonic()
            try:
                places = self._newest(job, done, partial(_tell_read, tell, before, total), ends)
                places = np.concatenate((places, key_scan.kept_chunks(job, places)))
                written = before
                for number, some in key_scan.by_ledger(places):
                    _check_time(ends)
                    done.written.append(view_writer.write(job, number, some))
                    written += job.source(number).messages
                    tell(WRITING, written, total)
            except (CannotCompact, OSError, CorruptFile) as error:
                done.error = _text(error)
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

    @staticmethod
    def _newest(job: Job, done: Done, tell: Callable[[int], None], ends: float) -> NDArray[np.int64]:
        """Return the places of the newest message of each key, and of keyless messages that are kept."""
        known, fresh, count, alone, looked = None, [], 0, [], 0
        for stretch, _ in compaction.stretches(job):
            _check_time(ends)
            for scan in key_scan.scan_keys(job, stretch):
                fresh.append(pa.Table.from_batches([scan.keyed]))
                alone.append(scan.alone)
                count += scan.keyed.num_rows
                looked += scan.messages
                done.damage += scan.damage
                if count >= max(_MERGE_MIN, known.num_rows if known is not None else 0):
                    known, fresh, count = _merged(known, fresh), [], 0
                    tell(looked)
            tell(looked)
        if fresh:
            known = _merged(known, fresh)
        return np.concatenate((*alone, known["place"].to_numpy())) if known is not None else np.empty(0, np.int64)


def _check_time(ends: float) -> None:
    if time.monotonic() >= ends:
        raise OutOfTime


def _merged(known: pa.Table | None, fresh: list[pa.Table]) -> pa.Table:
    return key_scan.newest_of(pa.concat_tables(fresh if known is None else [known, *fresh]))


class Spark:
    """Compaction by Spark, with any master; local[*] is this host.

    Other hosts need the data folder under the same path, and geminga installed. memory: of Spark's own process; each of
    its Python workers, one for a core, takes some 200 MiB more.
    """

    def __init__(self, scratch: Path, master: str = "local[*]", memory: str = "640m", context: Any = None,
                 settings: Mapping[str, str] | None = None):
        """Start Spark, or use an existing SparkContext.

        scratch: a folder for data that does not fit into memory. settings: more of Spark's properties.  Raises NoSpark.
        """
        self._scratch, self._is_ours = scratch, context is None
        self.context = _start(scratch, master, memory, settings or {}) if context is None else context
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

        ends: when Spark's work is cancelled, by time.monotonic().  Raises OutOfTime.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        started, results = time.monotonic(), [Done() for _ in jobs]
        context, total = self.context, sum(job.messages for job in jobs)
        stretches = []
        for number, job in enumerate(jobs):
            try:
                stretches += [(number, stretch, messages) for stretch, messages in compaction.stretches(job)]
            except (CannotCompact, OSError, CorruptFile) as error:
                results[number].error = _text(error)
        looked, written, notes = context.accumulator(0), context.accumulator(0), context.accumulator([], _lists())

        def look() -> None:
            stage, done = (WRITING, written.value) if written.value else (READING, looked.value)
            tell(stage, min(done, total), total)

        with _watched(context, look, ends):
            try:
                rows = self._run(jobs, _bundled(stretches), looked, written, notes)
            except (PySparkException, Py4JError) as error:
                _check_time(ends)      # then it was cancelled
                rows, text = [], f"Spark failed: {_reason(error)}"
                notes.add([(number, True, text) for number in range(len(jobs))])
        for number, part, keys, tombstones, damage in rows:
            results[number].written.append(Written(part, keys, tombstones, damage))
        for number, is_error, text in notes.value:
            if is_error:
                results[number].error = results[number].error or text
            else:
                results[number].damage.append(text)
        seconds = time.monotonic() - started
        for job, done in zip(jobs, results, strict=True):
            done.seconds = seconds * job.size / max(1, sum(other.size for other in jobs))
            yield job, done

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

    def _run(self, jobs: list[Job], bundles: list[list[tuple[int, Stretch]]], looked: _Sum, written: _Sum,
             notes: _Sum) -> "list[_Row]":
        """Run both passes of the jobs in Spark; return a row for each ledger.

        Spark moves keys and places as blocks of bytes: as rows of its own, each would go through the JVM by itself.
        """
        if not bundles:
            return []
        context = self.context
        parts = max(_PARTS_PER_CORE * context.defaultParallelism, sum(job.messages for job in jobs) // _PART_MESSAGES)
        tasks = context.parallelize(range(len(bundles)), len(bundles))
        blocks = tasks.flatMap(_looker(jobs, bundles, parts, looked, notes))
        newest = blocks.partitionBy(parts, int).mapPartitions(_newest)
        extra = [place for job in jobs for place in job.unfinished]
        lasts = [last for job in jobs for last in job.chunks]
        if lasts:
            newest = newest.persist()
            alive = np.array(newest.flatMap(_among(lasts)).collect(), np.int64)
            extra = [place for job in jobs for place in key_scan.kept_chunks(job, alive).tolist()]
        places = newest
        if extra:
            some = [(number, more.tobytes()) for number, more in key_scan.by_ledger(np.array(extra, np.int64))]
            places = places.union(context.parallelize(some))
        ledgers = sum(len(job.sources) for job in jobs)
        written_ledgers = places.partitionBy(min(ledgers, parts), int).mapPartitions(_writer(jobs, written, notes))
        rows: list[_Row] = written_ledgers.collect()
        if lasts:
            newest.unpersist()
        return rows


# -- tasks of Spark

# A block of keys and places, for the part that is its key: (part, (number of the job, block)); job -1: only places.
_Block: TypeAlias = tuple[int, tuple[int, bytes]]
_Places: TypeAlias = tuple[int, bytes]      # (number of a ledger, places in it, int64)
_Row: TypeAlias = tuple[int, Part | None, int, int, tuple[str, ...]]      # (number of the job, fields of Written)


def _tell_read(tell: Tell, before: int, total: int, looked: int) -> None:
    tell(READING, before + looked, total)


def _bundled(stretches: list[tuple[int, Stretch, int]]) -> list[list[tuple[int, Stretch]]]:
    """Group small stretches into bundles, of which each is one Spark task."""
    bundles: list[list[tuple[int, Stretch]]] = []
    size = _BUNDLE_MESSAGES
    for number, stretch, messages in stretches:
        if size + messages > _BUNDLE_MESSAGES:
            bundles.append([])
            size = 0
        bundles[-1].append((number, stretch))
        size += messages
    return bundles


def _looker(jobs: list[Job], bundles: list[list[tuple[int, Stretch]]], parts: int, looked: _Sum,
            notes: _Sum) -> Callable[[int], Iterator[_Block]]:
    """Return the function that runs the first pass of a compaction for one bundle."""
    def look(bundle: int) -> Iterator[_Block]:
        for number, stretches in groupby(bundles[bundle], itemgetter(0)):
            scans: list[KeyScan] = []
            try:
                for _, stretch in stretches:
                    for scan in key_scan.scan_keys(jobs[number], stretch):
                        looked.add(scan.messages)
                        notes.add([(number, False, text) for text in scan.damage])
                        scans.append(scan)
                        if sum(scan.keyed.num_rows for scan in scans) >= _BUNDLE_MESSAGES:
                            yield from _blocks(number, jobs[number], scans, parts)
                            scans = []
                yield from _blocks(number, jobs[number], scans, parts)
            except CannotCompact as error:
                notes.add([(number, True, str(error))])
    return look


def _blocks(number: int, job: Job, scans: list[KeyScan], parts: int) -> Iterator[_Block]:
    """Yield the keys and places of a job's scans as blocks."""
    if alone := b"".join(scan.alone.tobytes() for scan in scans):
        yield number % parts, (-1, alone)
    if scans:
        keyed = pa.concat_tables([pa.Table.from_batches([scan.keyed]) for scan in scans])
        buckets = min(parts, 1 + job.messages // _BUCKET_MESSAGES)
        for bucket, block in key_scan.blocks(keyed, buckets):
            yield (number + bucket) % parts, (number, block)


def _newest(blocks: Iterator[_Block]) -> Iterator[_Places]:
    """Yield the newest place of each key in the blocks of a part."""
    by_job: dict[int, list[bytes]] = {}
    for _, (number, block) in blocks:
        by_job.setdefault(number, []).append(block)
    while by_job:
        number, some = by_job.popitem()
        places = key_scan.newest(some) if number >= 0 else np.frombuffer(b"".join(some), np.int64)
        for ledger, of_ledger in key_scan.by_ledger(places):
            yield ledger, of_ledger.tobytes()


def _among(lasts: list[int]) -> Callable[[_Places], list[int]]:
    """Return the function that finds those newest places which are of the last chunks of messages."""
    def find(found: _Places) -> list[int]:
        places = np.frombuffer(found[1], np.int64)
        among: list[int] = places[np.isin(places >> compaction.MESSAGE_BIT << compaction.MESSAGE_BIT, lasts)].tolist()
        return among
    return find


def _writer(jobs: list[Job], written: _Sum, notes: _Sum) -> Callable[[Iterator[_Places]], Iterator[_Row]]:
    """Return the function that runs the second pass of a compaction for some ledgers."""
    firsts = [job.first_ledger for job in jobs]

    def write(found: Iterator[_Places]) -> Iterator[_Row]:
        by_ledger: dict[int, list[bytes]] = {}
        for ledger, places in found:
            by_ledger.setdefault(ledger, []).append(places)
        while by_ledger:
            ledger, some = by_ledger.popitem()
            number = bisect.bisect_right(firsts, ledger) - 1
            job, result = jobs[number], Written(None)
            try:
                result = view_writer.write(job, ledger, np.frombuffer(b"".join(some), np.int64))
            except CannotCompact as error:
                notes.add([(number, True, str(error))])
            written.add(job.source(ledger).messages)
            yield number, result.part, result.keys, result.tombstones, result.damage
    return write


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


@contextlib.contextmanager
def _watched(context: Any, look: Callable[[], None], ends: float) -> Iterator[None]:
    """Report the progress of Spark by `look` while this is entered; from `ends` on, cancel all jobs of Spark."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_S):
            look()
            if time.monotonic() >= ends:
                context.cancelAllJobs()      # at each look: another one may be about to begin
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


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
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr if java else ""
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    version = re.search(r'version "(\d+)', told)
    if version is None:
        raise NoSpark(missing)
    if int(version[1]) < _JAVA_MIN:
        raise NoSpark(f"{missing} ({java} is {version[1]})")


def _text(error: Exception) -> str:
    return text_of(error) if isinstance(error, OSError) else str(error)
