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
from geminga.storage.jobs.compacting import compaction, overtaken
from geminga.storage.jobs.compacting.compaction import CannotCompact, Job, OtherSegment
from geminga.storage.jobs.compacting.engines import Done, LocalEngine, OutOfTime, Spark, Tell
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
    later: tuple[int, ...] = ()      # ids of the partitions of all segments behind this one
    earlier: tuple[int, ...] = ()    # likewise, before this one


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
    later: tuple[OtherSegment, ...] = ()       # new messages of segments behind this one
    earlier: tuple[OtherSegment, ...] = ()     # messages of segments before this one, if they are compared
    behind: Position = NOWHERE       # horizon of the view in force

    @property
    def size_read(self) -> int:
        """Bytes that a compaction of the partition reads."""
        return self.size + self.view_read + sum(other.size for other in (*self.later, *self.earlier))


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


class Taken:
    """How far segments before others have taken over what those have: these are compacted no further.

    A tombstone is in no view.  When a segment is compacted, it must have removed its key from all views before.
    """

    def __init__(self, planned: Iterable[Planned] = ()):
        self._up_to: dict[int, dict[int, Position]] = {}      # segment -> {each segment before it: how far that is}
        self._behind: dict[int, Position] = {}                # segment -> horizon of its view before this compaction
        for one in planned:
            self.block(one.target) if one.is_due or one.error else self.note(one)

    def __repr__(self) -> str:
        return f"<Taken {self._up_to}>"

    def note(self, planned: Planned) -> None:
        """Note how far a segment takes over what those behind it have; one without messages sets no bound."""
        number = planned.target.partition_id
        self._behind.setdefault(number, planned.behind)
        for bounds in self._up_to.values():
            bounds.pop(number, None)
        for one in planned.later:
            self._up_to.setdefault(one.partition_id, {})[number] = one.up_to

    def block(self, target: Target) -> None:
        """Note that a segment takes over nothing, as its compaction waits or has failed."""
        for partition_id in target.later:
            self._up_to.setdefault(partition_id, {})[target.partition_id] = NOWHERE

    def since(self, others: Iterable[OtherSegment]) -> tuple[OtherSegment, ...]:
        """Return other segments from where they were before they were compacted themselves."""
        return tuple(replace(other, behind=min(other.behind, self._behind.get(other.partition_id, other.behind)))
                     for other in others)

    def bound(self, partition_id: int) -> Position | None:
        """Return the position up to which a partition may be compacted, None: to its end."""
        return min(self._up_to.get(partition_id, {}).values(), default=None)


_TOGETHER = 200                      # partitions that are compacted together: each takes a file descriptor
_FIRST_BYTES = 256 << 20             # of them, until it is known how many bytes take how long


# -- the plan

def plan(data_dir: Path, targets: Iterable[Target]) -> list[Planned]:
    """Return what a nightly run would do with each partition."""
    return [_plan(data_dir, target) for target in targets]


def _plan(data_dir: Path, target: Target, bound: Position | None = None) -> Planned:
    """Return what a compaction would do.  bound: position up to which it goes at most."""
    folder = format.partition_folder(data_dir, target.partition_id)
    try:
        held = compacted_ledgers.open_view(folder)
        behind = held.horizon if held else NOWHERE
        committed = confirmed.committed(data_dir, target.partition_id, behind=behind)
        horizon = committed.up_to if bound is None else max(behind, min(committed.up_to, bound))
        entries, messages, size = news(folder, target.partition_id, behind, horizon)
        later = _others(data_dir, target.later, with_views=False) if held or entries or not committed.is_all else ()
        earlier = _others(data_dir, target.earlier, with_views=True) if target.by_event_time and entries else ()
        noted = overtaken.read(folder) if earlier else {}
        earlier = tuple(replace(one, behind=min(one.behind, noted.get(one.partition_id, one.behind)))
                        for one in earlier)
        if not committed.is_all:     # messages that are committed later must not outlive those behind them
            later = tuple(replace(one, up_to=one.behind, messages=0, size=0) for one in later)
    except (CorruptFile, OSError) as error:
        text = text_of(error) if isinstance(error, OSError) else str(error)
        return Planned(target, False, f"it cannot be compacted: {text}", error=text)
    view = (held.number, held.manifest.entries, held.manifest.messages, held.manifest.size) if held else (0, 0, 0, 0)
    if not entries and not any(one.messages for one in later):
        why = f"nothing has come since view {held.number}" if held else "there is nothing in it"
        if not committed.is_all:
            why = "all that has come is in transactions that are open, or behind them"
        if bound is not None and bound < committed.up_to:
            why = "a segment before it has not been compacted"
        return Planned(target, False, why, view[0], behind if held else None, 0, 0, 0, *view[1:], later=later,
                       behind=behind)
    why = f"{messages:,} new message{'' if messages == 1 else 's'}" + (f" since view {held.number}" if held else "")
    read = 0 if held is None else compaction.size_read(
        held, keeps_keyless=target.retains_keyless, by_event_time=target.by_event_time,
        grows=compaction.has_news(folder, target.partition_id, behind[0], behind))
    horizon = max(behind, horizon)
    return Planned(target, True, why, view[0], horizon, entries, messages, size, *view[1:], read, later=later,
                   earlier=earlier, behind=behind)


def _others(data_dir: Path, partition_ids: Iterable[int], *, with_views: bool) -> tuple[OtherSegment, ...]:
    """Return the new messages of other segments.  with_views: also those of their views.  Raises CorruptFile, OSError.
    """
    others = []
    for partition_id in partition_ids:
        folder = format.partition_folder(data_dir, partition_id)
        held = compacted_ledgers.open_view(folder)
        behind = held.horizon if held else NOWHERE
        up_to = confirmed.committed(data_dir, partition_id, behind=behind).up_to
        _, messages, size = news(folder, partition_id, behind, up_to)
        if held and with_views:
            messages, size = messages + held.manifest.messages, size + held.manifest.size
        others.append(OtherSegment(partition_id, behind, up_to, messages, size))
    return tuple(others)


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
    taken = Taken(planned)
    with alone(data_dir):
        due = [partition for partition in planned if partition.is_due]
        tell = _Teller(progress, sum(partition.messages + partition.view_messages for partition in due))
        try:
            for partition in planned:
                if not partition.is_due:
                    reports.append(PartitionReport(
                        partition.target.partition_id, partition.target.topic,
                        FAILED if partition.error else NOTHING_NEW, partition.error, partition.view,
                        partition.horizon))
            if ends < math.inf:
                due.sort(key=lambda one: (1, one.size) if one.target.partition_id in given_up else (0, -one.size))
                due = _parents_first(due)
            pace = 0.0                       # bytes a second of the quickest round
            while together := _next_round(due, pace, ends):
                due, began = [partition for partition in due if partition not in together], time.monotonic()
                reports += _compact(data_dir, [partition.target for partition in together], adopt, engine, tell, taken,
                                    ends)
                size_read = sum(partition.size_read for partition in together)
                pace = max(pace, size_read / max(1e-3, time.monotonic() - began))
                tell.next_round(sum(partition.messages + partition.view_messages for partition in together))
            reports += [PartitionReport(partition.target.partition_id, partition.target.topic, LATE,
                                        view=partition.view, given_up=partition.target.partition_id in given_up)
                        for partition in due]
        except Exception as failure:      # any error: the result has it, with the partitions done before
            traceback.print_exc()
            error = str(failure) or type(failure).__name__
    return Night(started_ms, round(time.monotonic() - started, 3), engine.name, tuple(reports), error)


def _parents_first(due: list[Planned]) -> list[Planned]:
    """Return partitions in their order, but for segments that would come before their parents."""
    before: dict[int, list[Planned]] = {}
    for one in due:
        for partition_id in one.target.later:
            before.setdefault(partition_id, []).append(one)
    placed: dict[int, Planned] = {}
    for one in due:
        for parent in sorted(before.get(one.target.partition_id, ()), key=lambda parent: parent.target.partition_id):
            placed.setdefault(parent.target.partition_id, parent)
        placed.setdefault(one.target.partition_id, one)
    return list(placed.values())


def _next_round(due: list[Planned], pace: float, ends: float) -> list[Planned]:
    """Return the partitions to compact next, together: the first ones that are expected to be done in time.

    pace: bytes a second of earlier rounds; 0: there were none.
    """
    if ends == math.inf:
        return due[:_TOGETHER]
    chosen: list[Planned] = []
    seconds, size = ends - time.monotonic(), 0
    room = seconds * pace if pace else _FIRST_BYTES
    for partition in due if seconds > 0 else ():
        is_first = not (chosen or pace)      # it may be larger: somewhere a night has to begin
        if len(chosen) < _TOGETHER and (is_first or size + partition.size_read <= room):
            chosen.append(partition)
            size += partition.size_read
    return chosen


def compact(data_dir: Path, target: Target, adopt: Adopt, engine: Engine | None = None,
            progress: Tell | None = None, taken: Taken | None = None) -> PartitionReport:
    """Compact one partition now, if it has new messages.  taken: of the partitions that are compacted one by one."""
    planned = _plan(data_dir, target)
    tell = _Teller(progress, planned.messages + planned.view_messages)
    return _compact(data_dir, [target], adopt, engine or LocalEngine(), tell, taken or Taken())[0]


def _compact(data_dir: Path, targets: list[Target], adopt: Adopt, engine: Engine, tell: Tell, taken: Taken,
             ends: float = math.inf) -> list[PartitionReport]:
    """Compact partitions together.  Each partition's lock keeps other jobs from compacting the partition meanwhile.

    Segments stand behind their parents.
    """
    with contextlib.ExitStack() as locked:
        reports, ready, jobs, ledgers = [], [], {}, 0
        for target in targets:
            folder = format.partition_folder(data_dir, target.partition_id)
            blank = PartitionReport(target.partition_id, target.topic, FAILED)
            taken.block(target)
            try:
                if not folder.exists():
                    raise CannotCompact("it was deleted meanwhile")
                format.compacted_folder(folder).mkdir(exist_ok=True)
                if not locked.enter_context(locks.lock(format.compacted_folder(folder) / locks.LOCK)):
                    reports.append(replace(blank, outcome=BUSY, error="it is being compacted already"))
                    continue
                # Planned anew under the lock: another job may have compacted the partition since.  By the older plan
                # this one would read a view that is gone, or make a second view of the same number.
                planned = _plan(data_dir, target, taken.bound(target.partition_id))
                if not planned.error:
                    taken.note(planned)
                if not planned.is_due:
                    outcome = FAILED if planned.error else NOTHING_NEW
                    reports.append(replace(blank, outcome=outcome, error=planned.error, view=planned.view,
                                           horizon=planned.horizon))
                    continue
                assert planned.horizon is not None      # a plan that is due has one
                job = compaction.prepare(data_dir, target.partition_id, planned.view, planned.horizon,
                                         retains_keyless=target.retains_keyless,
                                         by_event_time=target.by_event_time, first_ledger=ledgers,
                                         continues=planned.messages <= engine.continues_max, later=planned.later,
                                         earlier=taken.since(planned.earlier))
                compaction.begin(job)
            except (CannotCompact, OSError) as error:
                taken.block(target)
                reports.append(replace(blank, error=text_of(error) if isinstance(error, OSError) else str(error)))
                continue
            ledgers += len(job.sources)
            jobs[job.partition_id] = target, planned
            ready.append(job)
        try:
            for job, done in engine.compact(ready, tell, ends) if ready else ():
                target, planned = jobs.pop(job.partition_id)
                bound = taken.bound(job.partition_id)
                if bound is not None and bound < job.horizon and not done.error:
                    done.error = "a segment before it could not be compacted"
                if target.by_event_time:
                    _note_overtaken(data_dir, planned)
                reports.append(_finished(job, done, target, planned, adopt))
                if reports[-1].outcome != COMPACTED:
                    taken.block(target)
                else:
                    overtaken.clear(job.folder)
        except OutOfTime:
            reports += [PartitionReport(target.partition_id, target.topic, LATE, view=planned.view, given_up=True)
                        for target, planned in jobs.values()]
        finally:
            for job in ready:      # adopted views have other names by now
                compaction.discard(job)
        return reports


def _note_overtaken(data_dir: Path, planned: Planned) -> None:
    """Note for the segments behind one that its view is about to be replaced; those without messages need nothing."""
    for later in planned.later:
        if later.messages:
            overtaken.note(format.partition_folder(data_dir, later.partition_id), planned.target.partition_id,
                           planned.behind)


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
