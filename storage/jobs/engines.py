"""Compute a compaction, in this process or in Spark.

Both run the two passes of compaction.py, with a maximum per key in between. Spark spills to disk what does not fit
into memory, and may run on many hosts.
"""
import bisect
import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.jobs import compaction, key_scan, view_writer
from geminga.storage.jobs.compaction import CannotCompact, Job
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.view_writer import Written
from geminga.storage.ledgers.compacted_ledgers import Part

READING, WRITING = "reading", "writing"
_MERGE_MIN = 2_000_000           # keys read until they are merged into the newest places known so far
_BUNDLE_MESSAGES = 500_000       # messages of the small stretches that one Spark task reads
_PARTS_PER_CORE = 4              # parts into which Spark divides keys
_LOOK_S = 0.25                   # between two looks at Spark's progress
_JAVA_MIN = 17

_Sum: TypeAlias = Any      # an accumulator of Spark
Tell = Callable[[str, int, int], None]      # stage, messages done, messages of all


class NoSpark(Exception):
    """Error: Spark cannot be used.  The text says what is missing."""


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

    def compact(self, jobs: list[Job], tell: Tell) -> Iterator[tuple[Job, Done]]:
        """Yield each job with its result as it ends.  Views are written, but not finished."""
        total, before = sum(job.messages for job in jobs), 0
        for job in jobs:
            done, started = Done(), time.monotonic()
            try:
                places = self._newest(job, done, partial(_tell_read, tell, before, total))
                places = np.concatenate((places, key_scan.kept_chunks(job, places)))
                for number, some in key_scan.by_ledger(places):
                    done.written.append(view_writer.write(job, number, some))
            except (CannotCompact, OSError, CorruptFile) as error:
                done.error = _text(error)
            done.seconds = time.monotonic() - started
            before += job.messages
            tell(WRITING, before, total)
            yield job, done

    @staticmethod
    def _newest(job: Job, done: Done, tell: Callable[[int], None]) -> NDArray[np.int64]:
        """Return the places of the newest message of each key, and of keyless messages that are kept."""
        known, fresh, count, alone, looked = None, [], 0, [], 0
        for stretch, _ in compaction.stretches(job):
            for scan in key_scan.scan_keys(job, stretch):
                fresh.append(pa.record_batch([scan.keys, pa.array(scan.places)], ["key", "place"]))
                alone.append(scan.alone)
                count += len(scan.places)
                looked += scan.messages
                done.damage += scan.damage
                if count >= max(_MERGE_MIN, known.num_rows if known is not None else 0):
                    known, fresh, count = _merged(known, fresh), [], 0
                    tell(looked)
            tell(looked)
        if fresh:
            known = _merged(known, fresh)
        return np.concatenate((*alone, known["place"].to_numpy())) if known is not None else np.empty(0, np.int64)


def _merged(known: pa.Table | None, fresh: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(fresh)
    if known is not None:
        table = pa.concat_tables([known, table])
    return table.group_by("key", use_threads=False).aggregate([("place", "max")]).rename_columns({"place_max": "place"})


class Spark:
    """Compaction by Spark, with any master; local[*] is this host.

    Other hosts need the data folder under the same path, and geminga installed. memory: of Spark's own process; each of
    its Python workers, one for a core, takes some 200 MiB more.
    """

    def __init__(self, scratch: Path, master: str = "local[*]", memory: str = "640m", session: Any = None):
        """Start Spark, or use an existing session.

        scratch: a folder for data that does not fit into memory. Raises NoSpark.
        """
        self.name, self._scratch, self._is_ours = f"Spark, {master}", scratch, session is None
        self.session = _start(scratch, master, memory) if session is None else session
        self.name = f"Spark {self.session.version}, {self.session.sparkContext.master}"

    def __repr__(self) -> str:
        return f"<Spark {self.name}>"

    def close(self) -> None:
        """Stop Spark if this engine started it."""
        if self._is_ours:
            self.session.stop()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def compact(self, jobs: list[Job], tell: Tell) -> Iterator[tuple[Job, Done]]:
        """Compact all jobs together, then yield each with its result.  Views are written, but not finished."""
        from pyspark.errors import PySparkException

        started, results = time.monotonic(), [Done() for _ in jobs]
        context, total = self.session.sparkContext, sum(job.messages for job in jobs)
        stretches = []
        for number, job in enumerate(jobs):
            try:
                stretches += [(number, stretch, messages) for stretch, messages in compaction.stretches(job)]
            except (CannotCompact, OSError, CorruptFile) as error:
                results[number].error = _text(error)
        looked, written, notes = context.accumulator(0), context.accumulator(0), context.accumulator([], _lists())
        with _told(tell, total, looked, written), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
            try:
                rows = self._run(jobs, _bundled(stretches), looked, written, notes)
            except PySparkException as error:
                rows, lines = [], str(error).strip().splitlines()
                text = f"Spark failed: {lines[-1] if lines else type(error).__name__}"
                notes.add([(number, True, text) for number in range(len(jobs))])
        for number, part, keys, tombstones, damage in rows:
            results[number].written.append(Written(Part(*part) if part else None, keys, tombstones, tuple(damage)))
        for number, is_error, text in notes.value:
            if is_error:
                results[number].error = results[number].error or text
            else:
                results[number].damage.append(text)
        seconds = time.monotonic() - started
        for job, done in zip(jobs, results, strict=True):
            done.seconds = seconds * job.size / max(1, sum(other.size for other in jobs))
            yield job, done

    def _run(self, jobs: list[Job], bundles: list[list[tuple[int, Stretch]]], looked: _Sum, written: _Sum,
             notes: _Sum) -> list[tuple[Any, ...]]:
        """Run both passes of the jobs in Spark.

        Returns [(number of the job, fields of its part or None, keys, tombstones, lines of damage)], one for each
        ledger.
        """
        from pyspark.sql import functions

        if not bundles:
            return []
        session = self.session
        tasks = session.range(0, len(bundles), 1, numPartitions=len(bundles))
        keys = tasks.mapInArrow(_looker(jobs, bundles, looked, notes), "job int, key string, place long")
        newest = keys.groupBy("job", "key").agg(functions.max("place").alias("place")).select("place")
        extra = [place for job in jobs for place in job.unfinished]
        lasts = [last for job in jobs for last in job.chunks]
        if lasts:
            newest = newest.persist()
            of_last = session.createDataFrame([(last,) for last in lasts], "last long")
            last = functions.shiftleft(functions.shiftright("place", compaction.MESSAGE_BIT), compaction.MESSAGE_BIT)
            alive = newest.join(functions.broadcast(of_last), last == of_last["last"], "left_semi")
            alive = np.array([row.place for row in alive.collect()], np.int64)
            extra = [place for job in jobs for place in key_scan.kept_chunks(job, alive).tolist()]
        if extra:
            newest = newest.union(session.createDataFrame([(place,) for place in extra], "place long"))
        places = newest.withColumn("ledger", functions.shiftright("place", compaction.LEDGER_BIT))
        rows = places.groupBy("ledger").applyInArrow(_writer(jobs, written, notes), _WRITTEN).collect()
        if lasts:
            newest.unpersist()
        return [(row.job, list(row.part) if row.part else None, row.keys, row.tombstones, row.damage) for row in rows]


# -- tasks of Spark

_WRITTEN = """job int, part struct<ledger_id: long, entries: long, kept: long, messages: long, size: long>,
              keys long, tombstones long, damage array<string>"""
_PART_FIELDS = "ledger_id", "entries", "kept", "messages", "size"
_WRITTEN_ARROW = pa.schema([
    ("job", pa.int32()), ("part", pa.struct([(name, pa.int64()) for name in _PART_FIELDS])),
    ("keys", pa.int64()), ("tombstones", pa.int64()), ("damage", pa.list_(pa.string()))])


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


def _looker(jobs: list[Job], bundles: list[list[tuple[int, Stretch]]], looked: _Sum,
            notes: _Sum) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that runs the first pass of a compaction for the bundles of a Spark task."""
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        failed = set()
        for bundle in (bundle for batch in batches for bundle in batch.column(0).to_pylist()):
            for number, stretch in bundles[bundle]:
                if number in failed:
                    continue
                try:
                    for scan in key_scan.scan_keys(jobs[number], stretch):
                        looked.add(scan.messages)
                        notes.add([(number, False, text) for text in scan.damage])
                        yield _keys(number, scan.keys, scan.places)
                        if len(scan.alone):
                            yield _keys(number, _names(scan.alone), scan.alone)
                except CannotCompact as error:
                    failed.add(number)
                    notes.add([(number, True, str(error))])
    return look


def _keys(number: int, keys: pa.StringArray, places: NDArray[np.int64]) -> pa.RecordBatch:
    numbers = pa.array(np.full(len(places), number, np.int32))
    return pa.record_batch([numbers, keys, pa.array(places)], ["job", "key", "place"])


def _names(places: NDArray[np.int64]) -> pa.StringArray:
    """Return a unique key for each keyless message.  It begins with the byte FF, as no text and so no real key does."""
    text = np.full((len(places), 9), 0xFF, np.uint8)
    text[:, 1:] = places.astype(">i8").view(np.uint8).reshape(-1, 8)
    offsets = np.arange(len(places) + 1, dtype=np.int32) * 9
    return pa.StringArray.from_buffers(len(places), pa.py_buffer(offsets), pa.py_buffer(text.tobytes()))


def _writer(jobs: list[Job], written: _Sum, notes: _Sum) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    """Return the function that runs the second pass of a compaction for one ledger in Spark."""
    firsts = [job.first_ledger for job in jobs]

    def write(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        ledger = key[0].as_py()
        number = bisect.bisect_right(firsts, ledger) - 1
        job, result = jobs[number], Written(None)
        try:
            result = view_writer.write(job, ledger, rows["place"].to_numpy())
        except CannotCompact as error:
            notes.add([(number, True, str(error))])
        written.add(job.source(ledger).messages)
        row = {"job": number, "part": asdict(result.part) if result.part else None, "keys": result.keys,
               "tombstones": result.tombstones, "damage": list(result.damage)}
        return pa.Table.from_pylist([row], _WRITTEN_ARROW)
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
def _told(tell: Tell, total: int, looked: _Sum, written: _Sum) -> Iterator[None]:
    """Report the progress of Spark's passes regularly while the context is open."""
    is_over = threading.Event()

    def watch() -> None:
        told = None
        while not is_over.wait(_LOOK_S):
            stage, done = (WRITING, written.value) if written.value else (READING, looked.value)
            if (stage, done) != told:
                tell(stage, min(done, total), total)
                told = stage, done
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _start(scratch: Path, master: str, memory: str) -> Any:
    """Start Spark, and return a new SparkSession.  Raises NoSpark."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
            from pyspark.errors import PySparkException
            from pyspark.sql import SparkSession
    except ImportError:
        raise NotInstalled("Spark is not installed: that is the package geminga-nightly, "
                           "or pip install 'geminga[nightly]'") from None
    check_java()
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    quiet = scratch / "log4j2.properties"
    quiet.write_text(_QUIET)
    options = f"-Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile={quiet}"
    settings = {
        "spark.driver.memory": memory, "spark.executor.memory": memory,
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": scratch, "spark.sql.warehouse.dir": scratch / "warehouse",
        "spark.driver.extraJavaOptions": options,
        "spark.python.worker.reuse": "true",
        "spark.sql.adaptive.enabled": "false",      # it would join partitions, and leave cores idle that could write
        "spark.sql.execution.arrow.maxRecordsPerBatch": 1 << 16,
        "spark.sql.session.timeZone": "UTC"}
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")      # else Spark fails on a host whose name has no address
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)      # the interpreter of Spark's Python workers
    builder = SparkSession.builder.master(master).appName("geminga nightly")
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    try:
        session = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise NoSpark(f"Spark does not start: {error}") from error
    session.conf.set("spark.sql.shuffle.partitions", str(_PARTS_PER_CORE * session.sparkContext.defaultParallelism))
    return session


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
