"""A run over many partitions: what there is to do, doing it, and what became of it.

    plan(data_dir, targets)                              what a run would do; reads headers only
    run(data_dir, planned, adopt, engine, progress)      does it, and tells of it: <data>/nightly/last.json has the last run's Night
"""
from collections.abc import Callable
from dataclasses import dataclass

from geminga.storage.cursor import Position

NOTHING_NEW, COMPACTED, FAILED, NOT_ADOPTED, BUSY = "nothing new", "compacted", "failed", "not adopted", "busy"      # outcomes
# (partition id, topic, view) -> None: it is the partition's view now; else why not, and it is removed
Adopt = Callable[[int, str, int], str | None]


class AlreadyRunning(Exception):
    """Another run holds the data folder's lock."""


@dataclass(frozen=True, slots=True)
class Target:
    """A partition that is to be compacted when it has news."""

    partition_id: int
    topic: str
    retains_keyless: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """What a run would do with one."""

    target: Target
    is_due: bool
    why: str                         # for people: what is new, or why nothing is done
    view: int = 0                    # the one that holds; 0: there is none
    horizon: Position | None = None  # of the view that would be made: the last confirmed entry
    entries: int = 0                 # that are new: behind the horizon of the view that holds
    messages: int = 0                # in these
    size: int = 0                    # bytes of these
    view_messages: int = 0           # of the view that holds, which are read too
    view_size: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one."""

    partition_id: int
    topic: str
    outcome: str                     # one of those above
    error: str = ""
    view: int = 0
    horizon: Position | None = None
    entries_in: int = 0              # of the view that held, and new ones
    messages_in: int = 0
    bytes_in: int = 0
    entries_out: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    keys: int = 0                    # distinct
    tombstones: int = 0              # of these
    freed: int = 0                   # bytes_in - bytes_out
    seconds: float = 0.0             # of a run over several by the share of their bytes
    damage: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    stage: str                       # "reading", then "writing"
    done: int                        # messages, of this stage
    total: int
    rate: float                      # messages a second
    left_s: float


@dataclass(frozen=True, slots=True)
class Night:
    """A whole run, as last.json has it."""

    started_ms: int
    seconds: float
    engine: str
    reports: tuple[Report, ...] = ()
    error: str = ""                  # why it ended before its end
