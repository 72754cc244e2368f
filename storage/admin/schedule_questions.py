"""Questions of administration about schedules, to the owner of the partition to which they publish."""
from dataclasses import dataclass

from geminga.storage.admin.questions import Question, TopicQuestion


@dataclass(frozen=True)
class ScheduleFigures:
    """What an owner has done of a schedule."""

    id: int
    last_ms: int | None      # planned time of its last message
    next_ms: int | None      # next planned time; None: it is paused, or there is none
    waiting: str             # why a message could not be published yet; "": none waits
    published: int           # messages since the owner started
    missed: int              # planned times that were dropped since then


@dataclass(frozen=True)
class RanSchedule:
    """A message that a schedule was told to publish at once."""

    scheduled_ms: int        # as the message says it
    ledger_id: int           # -1: the topic stores nothing
    entry_id: int


@dataclass(frozen=True)
class TakeOverSchedules(Question[None], name="take_over_schedules"):
    """A request to take over schedules that were changed in the catalogue.  The answer comes when that is done."""


@dataclass(frozen=True)
class PrepareForSchedule(TopicQuestion[None], name="prepare_for_schedule"):
    """A request to store the partition of a topic that was created and never used, for a schedule."""


@dataclass(frozen=True, kw_only=True)
class GetSchedules(TopicQuestion[list[ScheduleFigures]], name="schedules"):
    """A question for figures of schedules that publish to a partition; unknown ids are left out."""

    ids: list[int]


@dataclass(frozen=True, kw_only=True)
class RunSchedule(TopicQuestion[RanSchedule], name="run_schedule"):
    """A request to publish a schedule's message at once, beside its planned times."""

    id: int
