"""Compaction on demand: requested over HTTP, or begun when a partition has passed its threshold; and the results.

Jobs compact, in processes of their own. This process starts one job at a time (`geminga nightly --partitions`), and a
timer starts the nightly job. All jobs talk to the broker over a socket in the data folder. Its lines are JSON, and each
is answered by one:

    {"ask": name, "topic": ...}         a question to the topic's owner
    {"ask": name, "owner": n}           a question to one owner, or to all at once ("all"), whose answers are a list
                                        -> {"answer": ...}, or {"refused": why, "again": whether to ask again soon}
    {"began": {partition id: topic}}    the job compacts these, until it reports each or the connection ends
    {"adopted": partition id}           the partition's view is in force
    {"ended": report}                   the result: a PartitionReport of storage/jobs/compacting/nightly.py
    {"night": progress}                 how far a night is: a Progress of supervisor/tasks/night_progress.py.  The night
                                        is over at null, or when the connection ends
"""
import asyncio
import bisect
import contextlib
import json
import os
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.json_object import JsonObject
from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.admin import typed_json
from geminga.storage.admin.questions import (
    AdoptView,
    BeginBackup,
    CompactionDue,
    CutBackup,
    Enforce,
    HoldCommits,
    NoteExported,
    Question,
    RemoveLeftovers,
    Settle,
    Subscriptions,
    TopicQuestion,
)
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.errors import text_of
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.runtime import unix_sockets
from geminga.storage.runtime.log import log
from geminga.storage.statistics.columns import LATENCIES_MS
from geminga.supervisor.admin.requests import jobs, rights
from geminga.supervisor.admin.requests.owners import Owners
from geminga.supervisor.admin.requests.request_parts import (
    SCALABLE,
    TOPIC,
    TOPICS,
    ask_each,
    ask_single,
    catalogue_of,
    done,
    existing_of,
    not_allowed,
    parts_of,
    topic_of,
)
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.tasks.job_socket import REPORT, SOCKET, known_tables
from geminga.supervisor.tasks.night_progress import RunningNights

routes = rights.Routes()
# The questions that jobs may have for owners, by their names.
QUESTIONS: dict[str, type[Question[Any]]] = {
    kind.name: kind for kind in (
        AdoptView, NoteExported, Settle, Enforce, RemoveLeftovers, BeginBackup, HoldCommits, CutBackup)}
_BATCH = 100                 # partitions for one job
_LINE_MAX = 1 << 20
_RECORDS_MAX = 10_000
_SHOWN_MAX = 100             # topics of each kind in the answer about all compactions
_AGAIN_SECONDS = 5           # time between attempts to create the socket
_FAILED_SECONDS = 3_600      # time after a failure in which the partition's threshold begins no compaction
_RUNNING, _SUCCESS, _ERROR, _NOT_RUN = "RUNNING", "SUCCESS", "ERROR", "NOT_RUN"


@dataclass(slots=True)
class Record:
    """Results of a partition's compactions since the admin process began."""

    topic: str
    error: str = ""              # error of the last compaction; empty if it succeeded
    ended: float = 0.0
    succeeded: int = 0
    failed: int = 0
    failed_ms: int = 0           # when a compaction last failed
    removed: int = 0             # messages removed by all compactions
    seconds: float = 0.0         # this and the next three are of the last compaction that succeeded
    bytes_in: int = 0
    bytes_out: int = 0
    entries_out: int = 0
    bytes_read: int = 0          # bytes read by all compactions that succeeded
    seconds_sum: float = 0.0     # duration of all compactions that succeeded
    # number of compactions in each bucket of LATENCIES_MS
    durations: list[int] = field(default_factory=lambda: [0] * (len(LATENCIES_MS) + 1))

    def add(self, report: JsonObject) -> None:
        """Add the report of one compaction to the partition's results."""
        self.error, self.ended = report["error"], time.monotonic()
        if self.error:
            self.failed += 1
            self.failed_ms = time.time_ns() // 1_000_000
            return
        self.succeeded += 1
        if report["outcome"] == "compacted":
            self.removed += report["messages_in"] - report["messages_out"]
            self.seconds, self.bytes_in, self.bytes_out = report["seconds"], report["bytes_in"], report["bytes_out"]
            self.entries_out = report["entries_out"]
            # A compaction that reads everything reads it twice; one that continues a view reads less than everything.
            self.bytes_read += min(report["bytes_in"], report["bytes_read"])
            self.durations[bisect.bisect_left(LATENCIES_MS, self.seconds * 1000)] += 1
            self.seconds_sum += self.seconds


class Compactions:
    """Queued and running compactions, and the results of finished ones."""

    def __init__(self, config: Config, catalogue: Catalogue, owners: Owners):
        self._catalogue, self._owners = catalogue, owners
        self._has_changed = asyncio.Event()                          # set when the configuration has changed
        self.configure(config)
        self._waiting: dict[int, str] = {}                           # partition id -> topic
        # partition id -> (topic, the connection of its job, None before that connects)
        self._running: dict[int, tuple[str, object]] = {}
        # partition id -> topic: of the job that this process started
        self._batch: dict[int, str] = {}
        self._records: OrderedDict[int, Record] = OrderedDict()      # in the order in which they ended
        self.bytes_read = 0                                          # by all compactions
        self.nights = RunningNights()
        self._has_waiting = asyncio.Event()
        self._job: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        return f"<Compactions waiting={len(self._waiting)} running={len(self._running)} records={len(self._records)}>"

    def configure(self, config: Config) -> None:
        """Apply a new configuration; a running job keeps the configuration it was started with."""
        self._config = config
        self._has_changed.set()

    async def serve(self, _app: web.Application) -> AsyncIterator[None]:
        """Start compactions, and listen for jobs, while the application runs."""
        has_tried = asyncio.Event()
        tasks = [asyncio.create_task(task) for task in (self._listen(has_tried), self._work(), self._watch())]
        await has_tried.wait()
        yield
        for task in tasks:
            task.cancel()
        self._kill()

    # -- what is known

    def status(self, partition_id: int) -> tuple[str, str]:
        """Return (status, last error) of a partition's compaction, with the statuses of Pulsar's REST."""
        if self.is_under_way(partition_id):
            return _RUNNING, ""
        if (record := self._records.get(partition_id)) is not None:
            return (_ERROR, record.error) if record.error else (_SUCCESS, "")
        has_view = compacted_ledgers.numbers(format.partition_folder(self._config.data_dir, partition_id))
        return _SUCCESS if has_view else _NOT_RUN, ""

    def record(self, partition_id: int) -> Record | None:
        """Return the results of a partition's compactions, None if none has ended since the admin process began."""
        return self._records.get(partition_id)

    def is_under_way(self, partition_id: int) -> bool:
        return partition_id in self._waiting or partition_id in self._running

    def under_way(self, most: int) -> dict[str, list[str]]:
        """Return {"running": topics, "waiting": topics}, at most `most` of each."""
        return {"running": [topic for topic, _ in islice(self._running.values(), most)],
                "waiting": list(islice(self._waiting.values(), most))}

    @property
    def counts(self) -> dict[str, int]:
        return {"running": len(self._running), "waiting": len(self._waiting)}

    def records(self) -> list[Record]:
        """Return the compaction results of all partitions that exist, last ended first."""
        existing = []
        for partition_id, record in reversed(self._records.items()):
            stored = self._catalogue.partitions.find(names.parse(record.topic))
            if stored is not None and stored[0] == partition_id:
                existing.append(record)
        return existing

    # -- what is to be done

    def begin(self, partitions: Mapping[int, str]) -> bool:
        """Queue partitions for compaction.  Return False if all of them are queued or being compacted."""
        fresh = {partition_id: topic for partition_id, topic in partitions.items()
                 if not self.is_under_way(partition_id)}
        self._waiting |= fresh
        if fresh:
            self._has_waiting.set()
        return bool(fresh)

    async def _work(self) -> None:
        """Compact queued partitions, several in each job, as long as this process runs."""
        while True:
            await self._has_waiting.wait()
            self._batch = dict(islice(self._waiting.items(), _BATCH))
            for partition_id, topic in self._batch.items():
                del self._waiting[partition_id]
                self._running[partition_id] = topic, None
            status = await self._run_job(self._batch)
            without_report = {partition_id: topic for partition_id, topic in self._batch.items()
                    if self._running.pop(partition_id, None)}
            self._batch = {}
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            self._fail(without_report, f"Its job {how}; the broker's log has what it said")
            if not self._waiting:
                self._has_waiting.clear()

    async def _run_job(self, partition_ids: Iterable[int]) -> int:
        """Run a compaction job for these partitions, and return its exit status.

        The job is killed when this process ends.
        """
        command = jobs.command("supervisor.main", "nightly", "--data-dir", self._config.data_dir.resolve(),
                               "--partitions", ",".join(map(str, partition_ids)), "--parent", os.getpid())
        settings = {f"GEMINGA_NIGHTLY_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
                    for name, value in asdict(self._config.nightly).items()}
        try:
            self._job = await asyncio.create_subprocess_exec(
                *command, env=jobs.environment() | settings, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            log.error(f"compaction cannot be started: {text_of(error)}", code="G511")
            return 1
        try:
            return await self._job.wait()
        finally:
            self._kill()

    def _kill(self) -> None:
        """Kill the compaction job, and all processes that it has started.

        The job is forgotten, because another process may get its number later.
        """
        job, self._job = self._job, None
        if job is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)

    def _fail(self, partitions: Mapping[int, str], error: str) -> None:
        """Record a failure for partitions whose compaction job ended without a report."""
        for partition_id, topic in partitions.items():
            self._ended({"partition_id": partition_id, "topic": topic, "error": error})

    def _ended(self, report: JsonObject) -> None:
        """Record the report of a partition's compaction; one for which a night had no time left changes nothing."""
        if report.get("outcome") == "not in time":
            self._running.pop(report["partition_id"], None)
            return
        record = self._records.pop(report["partition_id"], None) or Record(report["topic"])
        before = record.bytes_read
        record.add(report)
        self.bytes_read += record.bytes_read - before
        self._records[report["partition_id"]] = record
        if len(self._records) > _RECORDS_MAX:
            self._records.popitem(last=False)
        self._running.pop(report["partition_id"], None)

    async def _watch(self) -> None:
        """Ask owners at intervals which partitions have passed their compaction thresholds, and queue the
        partitions.

        A partition whose last compaction failed lately is left out.
        """
        while True:
            self._has_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.nightly.check_interval_s):
                    await self._has_changed.wait()
                continue
            for index in range(self._owners.count):
                with contextlib.suppress(Refusal):      # the next round asks again
                    due = await self._owners.ask_owner(index, CompactionDue())
                    self.begin({partition_id: topic for partition_id, topic in due
                                if not self._has_failed(partition_id)})

    def _has_failed(self, partition_id: int) -> bool:
        """Whether the partition's last compaction failed lately."""
        record = self._records.get(partition_id)
        return record is not None and bool(record.error) and time.monotonic() - record.ended < _FAILED_SECONDS

    # -- what jobs say

    async def _listen(self, has_tried: asyncio.Event) -> None:
        """Accept connections of jobs, and retry while the socket cannot be created."""
        said = ""
        while True:
            try:
                server = await unix_sockets.serve_streams(_listener(self._config.data_dir), self._talk, _LINE_MAX)
                has_tried.set()
                return await server.serve_forever()
            except OSError as error:
                if text_of(error) != said:
                    said = text_of(error)
                    log.error(f"nothing can be compacted, and nightly jobs find no broker: {said}", code="G512")
            has_tried.set()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the lines of one job until it disconnects."""
        try:
            while line := await reader.readline():
                writer.write(typed_json.dump(await self._told(writer, json.loads(line))) + b"\n")
                await writer.drain()
        except (OSError, ValueError, KeyError, TypeError) as error:      # the job has ended, or the peer is no job
            if not isinstance(error, OSError):
                log.warning(f"a job said something strange: {error!r}", code="G513")
        finally:
            self._fail({partition_id: topic for partition_id, (topic, whose) in self._running.items()
                        if whose is writer and partition_id not in self._batch}, "Its job ended before it was done")
            self.nights.forget(writer)
            writer.close()

    async def _told(self, whose: object, said: dict[str, Any]) -> dict[str, object]:
        """Return the answer to one line of a job.

        Raises KeyError, TypeError, ValueError for a line of another form.
        """
        if "began" in said:
            for partition_id, topic in said["began"].items():
                self._running[int(partition_id)] = topic, whose
        elif "adopted" in said:
            self._running.pop(said["adopted"], None)
            if (record := self._records.get(said["adopted"])) is not None:
                record.error = ""
        elif "ended" in said:
            self._ended(said["ended"])
        elif "night" in said:
            self.nights.tell(whose, said["night"])
        else:
            return await self._asked(**said)
        return {"answer": None}

    async def _asked(self, ask: str, topic: str = "", owner: int | str = 0, **fields: object) -> dict[str, object]:
        """Pass a job's question to one owner or to all, and return the answer.

        Raises TypeError for a question with unknown fields.
        """
        if (kind := QUESTIONS.get(ask)) is None:
            return {"refused": f"There is no question {ask}", "again": False}
        values = typed_json.read_fields(kind, fields)
        try:
            if issubclass(kind, TopicQuestion):
                return {"answer": await self._owners.ask(kind(names.parse(topic), **values))}
            question = kind(**values)
            if owner == "all":
                return {"answer": await self._owners.ask_all(question)}
            return {"answer": await self._owners.ask_owner(int(owner), question)}
        except Refusal as refusal:
            return {"refused": refusal.message, "again": refusal.code == api.ServiceNotReady}


COMPACTIONS = web.AppKey("compactions", Compactions)


def _listener(data_dir: Path) -> socket.socket:
    """Return the listening socket for jobs, which replaces one that an earlier process left.  Raises OSError."""
    path = data_dir / SOCKET
    path.parent.mkdir(exist_ok=True)
    return unix_sockets.listen(path, is_replacing=True)


# -- over HTTP

@routes.get(TOPIC + "/compaction", right=rights.TOPIC)
async def status(request: web.Request) -> web.Response:
    """Answer with the state of a topic's compaction."""
    _refuse_live(request)
    await ask_single(request, "", Subscriptions)
    [partition_id] = _stored(request, [topic_of(request)])
    state, error = request.app[COMPACTIONS].status(partition_id)
    return web.json_response({"status": state, "lastError": error})


@routes.get(SCALABLE + "/compaction", right=rights.TOPIC)
async def status_of_scalable(request: web.Request) -> web.Response:
    """Answer with the state of a scalable topic's compaction, over all segments."""
    segments = catalogue_of(request).topics.parts(existing_of(request))
    states = [request.app[COMPACTIONS].status(partition_id) for partition_id in _stored(request, segments)]
    state, error = next((one for name in (_RUNNING, _ERROR, _SUCCESS) for one in states if one[0] == name),
                        (_NOT_RUN, ""))
    return web.json_response({"status": state, "lastError": error})


@routes.put(SCALABLE + "/compaction", right=rights.TOPIC)
@routes.put(TOPIC + "/compaction", right=rights.TOPIC)
async def compact(request: web.Request) -> web.Response:
    """Queue the topic, or all its partitions or segments, for compaction.

    Partitions already queued or being compacted are left out. Answers 409 if all of them are.
    """
    _refuse_live(request)
    if not catalogue_of(request).namespaces.exists(topic_of(request).namespace):
        raise web.HTTPNotFound(text="Namespace not found")
    parts = parts_of(request)
    if not parts:
        raise Refusal(api.TopicNotFound, f"Scalable topic not found: {topic_of(request)}")
    # opens partitions that were never used, so that they have storage
    await ask_each(request, parts, Subscriptions)
    if not request.app[COMPACTIONS].begin(_stored(request, parts)):
        raise web.HTTPConflict(text="Compaction already in progress")
    return done()


def _refuse_live(request: web.Request) -> None:
    if not topic_of(request).is_persistent:
        raise not_allowed(request, "Cannot compact non-persistent topics: they keep nothing")


def _stored(request: web.Request, topics: Iterable[TopicName]) -> dict[int, str]:
    """Return {partition id: topic} of the topics that have storage."""
    return {stored[0]: str(topic) for topic in topics
            if (stored := catalogue_of(request).partitions.find(topic)) is not None}


@routes.get("/ops/v1/compaction/report")
async def report(request: web.Request) -> web.Response:
    """Answer with the report of the last nightly job."""
    try:
        text = (request.app[TOPICS].config.data_dir / REPORT).read_text("utf-8")
        return web.Response(text=text, content_type="application/json")
    except FileNotFoundError:
        raise web.HTTPNotFound(text="There was no nightly run yet") from None


@routes.get("/ops/v1/tables")
async def tables(request: web.Request) -> web.Response:
    """Answer with the tables that nights have made of topics: how far each is, its rows, bytes and files."""
    return web.json_response([table for _, table in sorted(known_tables(request.app[TOPICS].config.data_dir).items())])


@routes.get("/ops/v1/compaction")
async def compactions(request: web.Request) -> web.Response:
    """Answer with the night that runs, compactions that run and wait, and the last results, last ended first."""
    compactions = request.app[COMPACTIONS]
    night = compactions.nights.look()
    ended = [{"topic": record.topic, "error": record.error, "ago_seconds": round(time.monotonic() - record.ended, 1),
              "succeeded": record.succeeded, "failed": record.failed, "seconds": record.seconds,
              "bytes_in": record.bytes_in, "bytes_out": record.bytes_out}
             for record in islice(compactions.records(), _SHOWN_MAX)]
    return web.json_response({**compactions.under_way(_SHOWN_MAX), "night": night and asdict(night),
                              "numbers": compactions.counts, "ended": ended})
