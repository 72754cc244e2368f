"""Progress of a night: how much is done, and how long the rest takes; the broker is told while the night runs.

A night has stages: messages are read, messages are written, topics give back space.  Reading and writing take turns
where partitions are compacted in rounds.

    seconds left     the sum, over stages, of what is left there * seconds for one, at the pace measured this night
    ratio            messages read and written, of all that are to be read and written

A stage without a measured pace is expected to go like the messages before it, or at the pace of the night before where
that is given.  The moment of the end is smoothed, so that the seconds left run down evenly.

This module imports neither Arrow nor Spark.
"""
import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from geminga.storage.runtime.threads import beside
from geminga.supervisor.tasks import job_socket

PLANNING, GIVING_BACK = "planning", "giving back space"
MESSAGES, TOPICS = "messages", "topics"
_KNOWN_SECONDS, _KNOWN_RATIO = 2.0, 0.01      # measured time, and share of a stage, from which on a pace is trusted
_SMOOTH_SECONDS = 5.0        # after at most so long the end shown has come two thirds of the way to a changed estimate
_TELL_SECONDS = 1.0
_ANSWER_SECONDS = 2.0        # limit for the broker's answer, which the end of a night waits for
_FRESH_SECONDS = 10.0        # after so long without news, as of a stopped process, nobody knows how long it takes


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a night is."""

    stage: str
    done: int                        # in the stage, over the whole night
    total: int                       # 0: it is not known
    unit: str                        # of both: MESSAGES or TOPICS
    ratio: float                     # messages read and written, of all, from 0 to 1
    seconds_left: float | None       # of the whole night; None while they cannot be known


@dataclass(slots=True)
class _Stage:
    """What is known of a stage."""

    total: int
    unit: str = MESSAGES
    pace: float | None = None        # seconds for one, as long as none was measured
    done: int = 0
    measured: int = 0                # those of `done` whose duration was measured
    seconds: float = 0.0             # total duration of those measured
    longest: float = 0.0             # seconds between two reports; a longer wait means that the stage has slowed down

    @property
    def left(self) -> int:
        return max(0, self.total - self.done)

    def is_measured(self) -> bool:
        return self.seconds >= _KNOWN_SECONDS and self.measured >= _KNOWN_RATIO * self.total > 0


class NightProgress:
    """The progress of a night, which its engine tells from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._lock = clock, threading.Lock()
        self._stages: dict[str, _Stage] = {}
        self._stage = PLANNING
        self._told_at: float | None = None      # when a stage was last told of
        self._compacted_at = math.inf           # when compaction has to be over
        self._end: float | None = None          # of the night, smoothed
        self._looked_at = 0.0

    def __repr__(self) -> str:
        return f"<NightProgress {self.look()}>"

    def expect(self, stage: str, total: int, unit: str = MESSAGES, pace: float | None = None) -> None:
        """Take a stage into account that is still to come.  pace: seconds for one, if they are known."""
        with self._lock:
            self._stages[stage] = _Stage(total, unit, pace)

    def end_compaction(self, at: float) -> None:
        """Expect that stages of messages end at a moment of the clock, wherever they are then."""
        with self._lock:
            self._compacted_at = at

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Take over how much of a stage is done, over all rounds of the night."""
        with self._lock:
            now, known = self._clock(), self._stages.setdefault(stage, _Stage(total))
            if self._told_at is not None:      # else it is not known how long the first ones took
                known.seconds += now - self._told_at
                known.longest = max(known.longest, now - self._told_at)
                known.measured += max(0, done - known.done)
            known.total, known.done = total, max(known.done, done)
            self._stage, self._told_at = stage, now

    def finish(self, *stages: str) -> None:
        """Count stages as done, whatever was left of them."""
        with self._lock:
            for stage in stages:
                if stage in self._stages:
                    self._stages[stage].done = self._stages[stage].total

    def look(self) -> Progress:
        """Return how far the night is now."""
        with self._lock:
            now, left = self._clock(), self._seconds_left()
            if left is None:
                self._end = None
            elif self._end is None:
                self._end = now + left
            else:
                time_constant = min(_SMOOTH_SECONDS, max(_TELL_SECONDS, left / 2))      # shorter towards the end
                share = 1 - math.exp((self._looked_at - now) / time_constant)
                self._end += (now + left - self._end) * share
            self._looked_at = now
            current = self._stages.get(self._stage, _Stage(0))
            of_messages = [stage for stage in self._stages.values() if stage.unit == MESSAGES]
            total = sum(stage.total for stage in of_messages)
            ratio = sum(min(stage.done, stage.total) for stage in of_messages) / total if total else 0.0
            # To the millisecond: sums of times leave more than nothing at the end.
            seconds_left = None if self._end is None else round(max(0.0, self._end - now), 3)
            return Progress(self._stage, min(current.done, current.total), current.total, current.unit, ratio,
                            seconds_left)

    def _seconds_left(self) -> float | None:
        """Return the seconds that all stages still take, None if that cannot be known."""
        if self._told_at is None:
            return None
        now, under_way = self._clock(), self._stages[self._stage]
        waited = now - self._told_at
        overdue = max(0.0, waited - under_way.longest) if under_way.left else 0.0
        stages = self._stages | {self._stage: replace(under_way, seconds=under_way.seconds + overdue)}
        like_others = max((one.seconds / one.measured for one in stages.values()
                           if one.unit == MESSAGES and one.is_measured()), default=None)
        seconds = {MESSAGES: 0.0, TOPICS: 0.0}
        for stage, one in stages.items():
            pace = one.seconds / one.measured if one.is_measured() else one.pace
            if pace is None and one.unit == MESSAGES:
                pace = like_others
            if pace is not None:
                seconds[one.unit] += one.left * pace
            elif one.left and (one.unit == MESSAGES or stage == self._stage):
                return None
        before, seconds[under_way.unit] = seconds[under_way.unit], max(
            0.0, seconds[under_way.unit] - (waited - overdue))
        if before and not under_way.left and not seconds[under_way.unit]:
            return None      # a stage that has told nothing yet takes longer than was expected
        return min(seconds[MESSAGES], max(0.0, self._compacted_at - now)) + seconds[TOPICS]


# -- to the broker

def announced(data_dir: Path, look: Callable[[], Progress]) -> contextlib.AbstractContextManager[None]:
    """Return a context in which the broker that serves a data folder is told once a second how far the night is.

    A thread tells it, over a connection of its own, so that the night never waits for the broker.  The end of the
    connection tells that the night is over, also when this process is killed.
    """
    return beside(partial(_announce, data_dir, look))


def _announce(data_dir: Path, look: Callable[[], Progress], is_over: threading.Event) -> None:
    link = None
    while True:
        is_last = is_over.is_set()
        try:
            if link is None and not is_last:
                link = job_socket.connect(data_dir, _ANSWER_SECONDS)
            if link is not None:
                job_socket.exchange(link, {"night": None if is_last else asdict(look())})
        except (OSError, ValueError):      # no broker serves the folder, or the broker stops; the next pass tries again
            _close(link)
            link = None
        if is_last:
            return _close(link)
        is_over.wait(_TELL_SECONDS)


def _close(link: Any) -> None:
    if link is not None:
        with contextlib.suppress(OSError):      # what was not sent is of no use any more
            link.close()


# -- in the broker

class RunningNights:
    """The progress of nights that are connected to this broker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._told: dict[object, tuple[float, Progress]] = {}      # connection -> (when, what), first connected first

    def __repr__(self) -> str:
        return f"<RunningNights {len(self._told)}>"

    def tell(self, whose: object, told: Mapping[str, Any] | None) -> None:
        """Take over what a connection tells; None: its night is over.  Raises TypeError, ValueError, KeyError."""
        if told is None:
            self.forget(whose)
            return
        seconds = told["seconds_left"]
        self._told[whose] = self._clock(), Progress(
            str(told["stage"]), int(told["done"]), int(told["total"]), str(told["unit"]), float(told["ratio"]),
            None if seconds is None else float(seconds))

    def forget(self, whose: object) -> None:
        """End the night of a connection, if it has one."""
        self._told.pop(whose, None)

    def look(self) -> Progress | None:
        """Return how far the night is that runs, None if none does.

        A second night is about to be refused, so the first one counts.
        """
        for at, told in self._told.values():
            is_fresh = self._clock() - at <= _FRESH_SECONDS
            return told if is_fresh else replace(told, seconds_left=None)
        return None
