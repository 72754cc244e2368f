"""Run compactions of many partitions: plan them, do them, report them.

    plan(data_dir, targets)                              what a run would do; reads headers only
    run(data_dir, planned, adopt, engine, progress)      compacts what is due, and reports
    compact(data_dir, target, adopt, engine, progress)   one partition, independently of nights

`adopt` asks the partition's owner to put a finished view into force.
"""
import contextlib
import math
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from geminga.storage import format
from geminga.storage.disk import locks
from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.jobs import confirmed
from geminga.storage.jobs.compacting import compaction
from geminga.storage.jobs.compacting.compaction import CannotCompact, Job
from geminga.storage.jobs.compacting.engines import Done, LocalEngine, OutOfTime, Spark, Tell
from geminga.storage.jobs.compacting.key_files import size_read
from geminga.storage.ledgers import compacted_ledgers, ledger_headers
from geminga.storage.ledgers.position import NOWHERE, Position

# Outcomes for one partition.
NOTHING_NEW, COMPACTED, FAILED, NOT_ADOPTED, BUSY, LATE = (
    "nothing new", "compacted", "failed", "not adopted", "busy", "not in time")
# (partition id, topic, view) -> None if the view is in force now, else why not; the view is removed then.
Adopt = Callable[[int, str, int], str | None]
Engine: TypeAlias = LocalEngine | Spark


class AlreadyRunning(Exception):
    """Error: another nightly run holds the lock in the data folder's `nightly` folder."""


@dataclass(frozen=True, slots=True)
class Target:
    """A partition to compact if it has new messages, with its options."""

    partition_id: int
    topic: str
    retains_keyless: bool = False
    by_event_time: bool = False      # of a key the message with the latest event time stays, else the last one


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a nightly run for one partition."""

    target: Target
    is_due: bool
    why: str                         # text for operators: the number of new messages, or why nothing is done
    view: int = 0                    # number of the view in force; 0: none
    horizon: Position | None = None  # of the new view: the last entry that is committed
    entries: int = 0                 # new ones, behind the horizon of the view in force
    messages: int = 0                # in the new entries
    size: int = 0                    # bytes of the new entries
    view_entries: int = 0            # of the view in force
    view_messages: int = 0
    view_size: int = 0
    view_read: int = 0               # bytes of the view in force that are read: of all entries, or of hashes of keys
    error: str = ""                  # why the partition cannot be compacted

    @property
    def size_read(self) -> int:
        """Bytes that a compaction of the partition reads."""
        return self.size + self.view_read


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The result of a nightly run for one partition."""

    partition_id: int
    topic: str
    outcome: str                     # NOTHING_NEW, COMPACTED ...
    error: str = ""
    view: int = 0
    horizon: Position | None = None
    entries_in: int = 0              # of the view before, and new ones
    messages_in: int = 0
    bytes_in: int = 0
    bytes_read: int = 0              # entries as often as they were read, index rows, hashes of keys
    entries_out: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    keys: int = 0                    # distinct
    tombstones: int = 0              # keys whose newest message deletes them
    freed: int = 0                   # bytes_in - bytes_out
    seconds: float = 0.0             # partitions done together share the time by their bytes
    damage: tuple[str, ...] = ()
    given_up: bool = False           # begun, and not done when a night was over: this one, or one since its last view


@dataclass(frozen=True, slots=True)
class Night:
    """The result of a whole nightly run."""

    started_ms: int
    seconds: float
    engine: str
    reports: tuple[PartitionReport, ...] = ()
    error: str = ""                  # why it ended early


_TOGETHER = 200                      # partitions that are compacted together: each takes a file descriptor
_FIRST_BYTES = 256 << 20             # of them, until it is known how many bytes take how long


# -- the plan

def plan(data_dir: Path, targets: Iterable[Target]) -> list[Planned]:
    """Return what a nightly run would do with each partition."""
    return [_plan(data_dir, target) for target in targets]


def is_settled(data_dir: Path, target: Target) -> bool:
    """Whether files say of all new entries in transactions how these have ended.  Raises CorruptFile, OSError."""
    held = compacted_ledgers.open_view(format.partition_folder(data_dir, target.partition_id))
    return confirmed.committed(data_dir, target.partition_id, behind=held.horizon if held else NOWHERE).is_all


def _plan(data_dir: Path, target: Target) -> Planned:
    folder = format.partition_folder(data_dir, target.partition_id)
    try:
        held = compacted_ledgers.open_view(folder)
        behind = held.horizon if held else NOWHERE
        known = confirmed.committed(data_dir, target.partition_id, behind=behind)
        horizon = known.up_to
        entries, messages, size = news(folder, target.partition_id, behind, horizon)
    except (CorruptFile, OSError) as error:
        text = text_of(error) if isinstance(error, OSError) else str(error)
        return Planned(target, False, f"it cannot be compacted: {text}", error=text)
    view = (held.number, held.manifest.entries, held.manifest.messages, held.manifest.size) if held else (0, 0, 0, 0)
    if not entries:
        why = f"nothing has come since view {held.number}" if held else "there is nothing in it"
        if not known.is_all:
            why = "all that has come is in transactions that are open, or behind them"
        return Planned(target, False, why, view[0], behind if held else None, 0, 0, 0, *view[1:])
    why = f"{messages:,} new message{'' if messages == 1 else 's'}" + (f" since view {held.number}" if held else "")
    read = 0 if held is None else size_read(
        held, keeps_keyless=target.retains_keyless, by_event_time=target.by_event_time,
        grows=compaction.has_news(folder, target.partition_id, behind[0], behind))
    return Planned(target, True, why, view[0], horizon, entries, messages, size, *view[1:], read)


def news(folder: Path, partition_id: int, behind: Position, horizon: Position) -> tuple[int, int, int]:
    """Return (entries, messages, bytes) of a partition behind one position and up to another."""
    entries = messages = size = 0
    if horizon <= behind:
        return 0, 0, 0
    for ledger_id in ledger_headers.ledger_ids(folder):
        if not behind[0] <= ledger_id <= horizon[0]:
            continue
        with contextlib.suppress(FileNotFoundError):
            rows = confirmed.confirmed_rows(folder, partition_id, ledger_id)
            start = behind[1] + 1 if ledger_id == behind[0] else 0
            rows = rows[start:horizon[1] + 1 if ledger_id == horizon[0] else len(rows)]
            there = np.flatnonzero(rows["size"])      # size 0: the entry's space was given back
            if len(there):
                first, last = (rows[at][["message_index", "messages", "offset", "size"]].tolist()
                               for at in there[[0, -1]].tolist())
                entries += len(rows)
                messages += max(0, last[0] + last[1] - first[0])
                size += max(0, last[2] + last[3] - first[2])
    return entries, messages, size


# -- the run

def run(data_dir: Path, planned: list[Planned], adopt: Adopt, engine: Engine | None = None,
        progress: Tell | None = None, ends: float = math.inf, given_up: Collection[int] = ()) -> Night:
    """Compact all partitions that the plan calls due.  The caller closes the engine.

    ends: when the run has to be over, by time.monotonic().  Then partitions with the most new bytes come first, in
    rounds that are expected to be done in time; a round that is not is given up, and its partitions stay as they were.
    given_up: ids of partitions of which the last night's report says that.  They come last, the smallest first, else
    one that is too large for a night would take every night from all others.

    An unforeseen error ends the run; the result has the error and the partitions done before.  Raises AlreadyRunning.
    """
    engine = engine or LocalEngine()
    started_ms, started, reports, error = int(time.time() * 1_000), time.monotonic(), [], ""
    with alone(data_dir):
        due = [one for one in planned if one.is_due]
        tell = _Teller(progress, sum(one.messages + one.view_messages for one in due))
        try:
            for one in planned:
                if not one.is_due:
                    outcome = FAILED if one.error else NOTHING_NEW
                    reports.append(PartitionReport(one.target.partition_id, one.target.topic, outcome, one.error,
                                                   one.view, one.horizon))
            if ends < math.inf:
                due.sort(key=lambda one: (1, one.size) if one.target.partition_id in given_up else (0, -one.size))
            pace = 0.0                       # bytes a second of the quickest round
            while some := _next_round(due, pace, ends):
                due, began = [one for one in due if one not in some], time.monotonic()
                reports += _compact(data_dir, [one.target for one in some], adopt, engine, tell, ends)
                pace = max(pace, sum(one.size_read for one in some) / max(1e-3, time.monotonic() - began))
                tell.next_round(sum(one.messages + one.view_messages for one in some))
            reports += [PartitionReport(one.target.partition_id, one.target.topic, LATE, view=one.view,
                                        given_up=one.target.partition_id in given_up) for one in due]
        except Exception as failure:      # any error: the result has it, with the partitions done before
            traceback.print_exc()
            error = str(failure) or type(failure).__name__
    return Night(started_ms, round(time.monotonic() - started, 3), engine.name, tuple(reports), error)


def _next_round(due: list[Planned], pace: float, ends: float) -> list[Planned]:
    """Return the partitions to compact next, together: the first ones that are expected to be done in time.

    pace: bytes a second of earlier rounds; 0: there were none.
    """
    if ends == math.inf:
        return due[:_TOGETHER]
    some: list[Planned] = []
    seconds, size = ends - time.monotonic(), 0
    room = seconds * pace if pace else _FIRST_BYTES
    for one in due if seconds > 0 else ():
        is_first = not (some or pace)      # it may be larger: somewhere a night has to begin
        if len(some) < _TOGETHER and (is_first or size + one.size_read <= room):
            some.append(one)
            size += one.size_read
    return some


def compact(data_dir: Path, target: Target, adopt: Adopt, engine: Engine | None = None,
            progress: Tell | None = None) -> PartitionReport:
    """Compact one partition now, if it has new messages."""
    planned = _plan(data_dir, target)
    tell = _Teller(progress, planned.messages + planned.view_messages)
    return _compact(data_dir, [target], adopt, engine or LocalEngine(), tell)[0]


def _compact(data_dir: Path, targets: list[Target], adopt: Adopt, engine: Engine, tell: Tell,
             ends: float = math.inf) -> list[PartitionReport]:
    """Compact partitions together.  Each partition's lock keeps other jobs from compacting the partition meanwhile."""
    with contextlib.ExitStack() as taken:
        reports, ready, jobs, ledgers = [], [], {}, 0
        for target in targets:
            folder = format.partition_folder(data_dir, target.partition_id)
            blank = PartitionReport(target.partition_id, target.topic, FAILED)
            try:
                if not folder.exists():
                    raise CannotCompact("it was deleted meanwhile")
                format.compacted_folder(folder).mkdir(exist_ok=True)
                if not taken.enter_context(locks.lock(format.compacted_folder(folder) / locks.LOCK)):
                    reports.append(replace(blank, outcome=BUSY, error="it is being compacted already"))
                    continue
                planned = _plan(data_dir, target)      # anew: another job may have compacted the partition meanwhile
                if not planned.is_due:
                    outcome = FAILED if planned.error else NOTHING_NEW
                    reports.append(replace(blank, outcome=outcome, error=planned.error, view=planned.view,
                                           horizon=planned.horizon))
                    continue
                assert planned.horizon is not None      # a plan that is due has one
                job = compaction.prepare(data_dir, target.partition_id, planned.view, planned.horizon,
                                         retains_keyless=target.retains_keyless,
                                         by_event_time=target.by_event_time, first_ledger=ledgers,
                                         continues=planned.messages <= engine.continues_max)
                compaction.begin(job)
            except (CannotCompact, OSError) as error:
                reports.append(replace(blank, error=text_of(error) if isinstance(error, OSError) else str(error)))
                continue
            ledgers += len(job.sources)
            jobs[job.partition_id] = target, planned
            ready.append(job)
        try:
            for job, done in engine.compact(ready, tell, ends) if ready else ():
                reports.append(_finished(job, done, *jobs.pop(job.partition_id), adopt))
        except OutOfTime:
            reports += [PartitionReport(target.partition_id, target.topic, LATE, view=planned.view, given_up=True)
                        for target, planned in jobs.values()]
        finally:
            for job in ready:      # adopted views have other names by now
                compaction.discard(job)
        return reports


def _finished(job: Job, done: Done, target: Target, planned: Planned, adopt: Adopt) -> PartitionReport:
    """Finish a job's view and have it adopted, or discard it.  Returns the partition's report."""
    parts = [written.part for written in done.written if written.part is not None]
    size = sum(part.size for part in parts)
    bytes_in = planned.size + planned.view_size
    report = PartitionReport(
        target.partition_id, target.topic, COMPACTED, view=job.view + 1, horizon=job.horizon,
        entries_in=planned.entries + planned.view_entries, messages_in=planned.messages + planned.view_messages,
        bytes_in=bytes_in, bytes_read=done.size_read, entries_out=sum(part.kept - part.gone for part in parts),
        messages_out=sum(part.messages for part in parts), bytes_out=size,
        keys=sum(written.keys for written in done.written),
        tombstones=sum(written.tombstones for written in done.written), freed=bytes_in - size,
        seconds=round(done.seconds, 3),
        damage=(*done.damage, *(text for written in done.written for text in written.damage)))
    try:
        if done.error:
            raise CannotCompact(done.error)
        compaction.finish(job, parts, int(time.time() * 1_000), asdict(report))
        why_not = adopt(target.partition_id, target.topic, job.view + 1)
    except CannotCompact as error:
        compaction.discard(job)      # at once: the next partition may need the space
        return replace(report, outcome=FAILED, error=str(error), view=job.view, freed=0)
    return report if why_not is None else replace(report, outcome=NOT_ADOPTED, error=why_not, view=job.view, freed=0)


@contextlib.contextmanager
def alone(data_dir: Path) -> Iterator[None]:
    """Hold the lock of nightly runs.  Raises AlreadyRunning."""
    _folder(data_dir).mkdir(exist_ok=True)
    with locks.lock(_folder(data_dir) / locks.LOCK) as is_ours:
        if not is_ours:
            raise AlreadyRunning(f"{_folder(data_dir) / locks.LOCK}: another run is under way")
        yield


def _folder(data_dir: Path) -> Path:
    return data_dir / "nightly"


class _Teller:
    """Reporter of a run's progress: totals over its rounds."""

    def __init__(self, progress: Tell | None, total: int):
        self._progress, self._total = progress, total
        self._before = 0                 # messages of rounds that are done

    def __call__(self, stage: str, done: int, _total: int) -> None:
        if self._progress is not None:
            self._progress(stage, min(self._total, self._before + done), self._total)

    def __repr__(self) -> str:
        return f"<_Teller {self._before} of {self._total} messages before this round>"

    def next_round(self, messages: int) -> None:
        """Count the messages of a finished round of partitions as done."""
        self._before += messages
