"""How far a night is, and how long the rest takes, by a clock of the tests."""
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.storage.jobs.compacting.engines import READING, WRITING
from geminga.supervisor.tasks.night_progress import (
    GIVING_BACK,
    MESSAGES,
    PLANNING,
    TOPICS,
    NightProgress,
    Progress,
    RunningNights,
)
from geminga.supervisor.wording import human

ROUND = 1_000_000


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def expecting(clock, messages, topics=0, pace=None):
    progress = NightProgress(clock)
    progress.expect(READING, messages)
    progress.expect(WRITING, messages)
    if topics:
        progress.expect(GIVING_BACK, topics, TOPICS, pace)
    return progress


def work(progress, clock, stage, first, until, total, seconds, steps=20):
    """Do a part of a stage at an even pace; yield what is seen after each step."""
    for step in range(1, steps + 1):
        clock.now += seconds / steps
        progress(stage, first + (until - first) * step // steps, total)
        yield progress.look()


def test_the_time_left_is_shown_only_once_it_can_be_known(clock):
    progress = expecting(clock, 16 * ROUND)
    assert progress.look() == Progress(PLANNING, 0, 0, MESSAGES, 0.0, None)
    clock.now += 60                     # a start of Spark is no reading
    progress(READING, 0, 16 * ROUND)
    assert progress.look().seconds_left is None
    seen = list(work(progress, clock, READING, 0, 16 * ROUND, 16 * ROUND, 20))
    assert [one.seconds_left is None for one in seen] == [True] + [False] * 19
    assert [round(one.seconds_left) for one in seen[1::6]] == [38, 32, 26, 20]      # writing is expected to be as slow
    assert seen[-1].ratio == 0.5


def test_a_pace_is_measured_for_each_stage(clock):
    """Writing is three times as fast here.  Rounds come to an end as expected, and give back space at the given pace.
    """
    total = 4 * ROUND
    progress = expecting(clock, total, topics=10, pace=0.5)
    progress(READING, 0, total)
    seen, ends = [], []
    for number in range(4):
        for stage, seconds in ((READING, 15), (WRITING, 5)):
            seen += work(progress, clock, stage, number * ROUND, (number + 1) * ROUND, total, seconds)
            ends.append(clock.now + progress.look().seconds_left)
    truth = clock.now + 5
    assert [abs(end - truth) < 2 for end in ends[2:]] == [True] * 6
    assert [one.ratio for one in seen] == sorted(one.ratio for one in seen) and seen[-1].ratio == 1
    progress.finish(READING, WRITING)
    [*_, last] = work(progress, clock, GIVING_BACK, 0, 10, 10, 5, steps=10)
    assert (last.stage, last.done, last.total, last.unit, last.ratio) == (GIVING_BACK, 10, 10, TOPICS, 1)
    assert last.seconds_left < 1


def test_it_runs_down_between_two_tellings_and_changes_smoothly(clock):
    progress = expecting(clock, 100 * ROUND)
    progress(READING, 0, 100 * ROUND)
    before = list(work(progress, clock, READING, 0, 50 * ROUND, 100 * ROUND, 50))[-1].seconds_left
    clock.now += 1
    assert 0.5 < before - progress.look().seconds_left < 1.5
    clock.now += 0.01
    progress(READING, 100 * ROUND, 100 * ROUND)      # all at once
    assert progress.look().seconds_left > before / 2
    clock.now += 30
    assert progress.look().seconds_left == pytest.approx(21, abs=5)
    clock.now += 30                     # and nothing was written yet, which ought to be all done
    assert progress.look().seconds_left is None


def test_work_that_stands_still_takes_longer(clock):
    progress = expecting(clock, 2 * ROUND)
    progress(READING, 0, 2 * ROUND)
    left = list(work(progress, clock, READING, 0, ROUND, 2 * ROUND, 10))[-1].seconds_left
    for _ in range(100):
        clock.now += 1
        last = progress.look().seconds_left
    assert last > 5 * left


def test_compaction_takes_no_longer_than_it_may(clock):
    progress = expecting(clock, 100 * ROUND, topics=10, pace=1.0)
    progress.end_compaction(clock.now + 30)
    progress(READING, 0, 100 * ROUND)
    [*_, seen] = work(progress, clock, READING, 0, ROUND, 100 * ROUND, 10)
    assert seen.seconds_left == pytest.approx(20 + 10, abs=1)


def test_a_stage_that_nobody_expected_counts_from_when_it_begins(clock):
    progress = expecting(clock, ROUND)
    progress.finish(READING, WRITING)
    progress("tables", 0, ROUND)
    [*_, seen] = work(progress, clock, "tables", 0, ROUND // 2, ROUND, 10)
    assert seen.seconds_left == pytest.approx(10, abs=1) and seen.ratio == pytest.approx(2.5 / 3)


@pytest.mark.slow
@given(total=st.integers(0, 1_000),
       told=st.lists(st.tuples(st.sampled_from([READING, WRITING, GIVING_BACK, "tables"]), st.integers(0, 1_000),
                               st.floats(0, 1_000))),
       pace=st.one_of(st.none(), st.floats(0, 10)), ends=st.one_of(st.just(math.inf), st.floats(0, 5_000)))
def test_whatever_is_told_no_time_is_negative_and_no_share_above_one(total, told, pace, ends):
    clock = Clock()
    progress = expecting(clock, total, topics=3, pace=pace)
    progress.end_compaction(ends)
    for stage, done, seconds in told:
        clock.now += seconds
        progress(stage, done, total)
        seen = progress.look()
        assert 0 <= seen.ratio <= 1 and 0 <= seen.done <= seen.total
        assert seen.seconds_left is None or 0 <= seen.seconds_left < math.inf
    progress.finish(READING, WRITING, GIVING_BACK, "tables")
    clock.now += 1_000_000
    assert progress.look().seconds_left in (None, 0)


# -- in the broker

FRESH = {"stage": READING, "done": 7, "total": 10, "unit": MESSAGES, "ratio": 0.35, "seconds_left": 6.5}


def test_the_first_of_two_nights_counts_as_the_other_one_is_refused(clock):
    nights, first, second = RunningNights(clock), object(), object()
    assert nights.look() is None
    nights.tell(first, FRESH)
    nights.tell(second, FRESH | {"stage": PLANNING})
    nights.tell(first, FRESH | {"done": 8})
    assert nights.look() == Progress(**FRESH | {"done": 8})
    nights.forget(first)
    assert nights.look().stage == PLANNING
    nights.tell(second, None)
    nights.forget(second)
    assert nights.look() is None


def test_a_night_that_tells_nothing_more_has_no_time_left_that_is_known(clock):
    nights = RunningNights(clock)
    nights.tell(1, FRESH)
    clock.now += 60
    assert nights.look() == Progress(**FRESH | {"seconds_left": None})


@pytest.mark.parametrize("told", [{}, FRESH | {"ratio": "x"}, FRESH | {"done": None}, 7])
def test_what_is_no_progress_is_refused(told):
    nights = RunningNights()
    with pytest.raises((KeyError, TypeError, ValueError)):
        nights.tell(1, told)
    assert nights.look() is None


# -- in words

@pytest.mark.parametrize("changed, text", [
    ({}, "reading, 35 % of 10 messages, 6 s left"), ({"seconds_left": None}, "reading, 35 % of 10 messages"),
    ({"stage": PLANNING, "total": 0, "seconds_left": None}, "planning"),
    ({"stage": GIVING_BACK, "unit": TOPICS, "seconds_left": 0.2}, "giving back space, 7 of 10 topics, 0 s left"),
    ({"seconds_left": 4_000}, "reading, 35 % of 10 messages, 1 h 6 min left"),
    ({"ratio": 0.999}, "reading, 99 % of 10 messages, 6 s left")])
def test_it_is_told_in_words(changed, text):
    assert human.night_progress(FRESH | changed) == text
