"""Answers to questions about schedules."""
import contextlib

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin.schedule_questions import (
    GetSchedules,
    PrepareForSchedule,
    RanSchedule,
    RunSchedule,
    ScheduleFigures,
    TakeOverSchedules,
)
from geminga.storage.commands.topic_lookup import topic_of
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.recurring.recurring import RecurringMessages, Schedule


def take_over(recurring: RecurringMessages, question: TakeOverSchedules) -> None:
    recurring.refresh()


def prepare(topics: TopicTable, question: PrepareForSchedule) -> None:
    if question.topic.is_persistent:
        topic_of(topics, question.topic)


def figures(recurring: RecurringMessages, question: GetSchedules) -> list[ScheduleFigures]:
    return [_figures(recurring, one) for number in question.ids if (one := recurring.find(number)) is not None]


def _figures(recurring: RecurringMessages, one: Schedule) -> ScheduleFigures:
    last_ms, next_ms = None, None
    with contextlib.suppress(Refusal, StorageFull, CorruptFile, OSError):      # `waiting` says what is wrong
        last_ms, next_ms = recurring.planned(one)
    return ScheduleFigures(one.stored.id, last_ms, next_ms, one.waiting, one.published, one.missed)


def run(decisions: Decisions, recurring: RecurringMessages, question: RunSchedule) -> RanSchedule:
    one = recurring.find(question.id)
    if one is None:
        raise Refusal(api.TopicNotFound, "The schedule was deleted")
    scheduled_ms, position = recurring.publish_now(one, decisions.now_ms)
    return RanSchedule(scheduled_ms, *(position or (-1, -1)))
