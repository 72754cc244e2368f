"""A job queue with all features keeps its promises while processes are killed, and the check finds broken ones."""
from collections import Counter

import pytest

from . import jobs
from .jobs import Kind

KILLS, KILLS_OF_A_NIGHT = 5, 60
KINDS = [Kind(), Kind(is_mine=True), Kind(is_mine=True, is_poison=True), Kind(is_mine=True, expires=True),
         Kind(expires=True)]


@pytest.mark.slow
@pytest.mark.usefixtures("start_broker")        # skipped where no broker may be killed
@pytest.mark.parametrize("kills", [KILLS, pytest.param(KILLS_OF_A_NIGHT, marks=pytest.mark.nightly)])
def test_each_job_is_done_or_one_letter_over_kills(tmp_path, seed, kills):
    counts = jobs.run(tmp_path / "round", kills, seed)
    assert counts["done"] and counts["letters"] and counts["ticks"], counts


@pytest.mark.parametrize(("stored", "done", "letters", "fault"), [
    ({}, {1}, [2, 3, 4], {}), ({}, {1, 3}, [2, 3], {}), ({}, {1}, [1, 2, 3], {}),
    ({3: 0}, {1}, [2, 3], {}), ({0: 0}, {1}, [2, 3], {"lost": 1}), ({1: 2}, {1}, [2, 3], {"stored twice": 1}),
    ({}, {1}, [2, 2, 3], {"two letters": 1}), ({}, {1}, [0, 2, 3], {"a letter that was filtered": 1}),
    ({}, {1}, [2], {"neither done nor a letter": 1}), ({}, set(), [2, 3], {"neither done nor a letter": 1}),
    ({}, {1, 2, 3}, [], {"neither done nor a letter": 1}),
])
def test_broken_promises_about_jobs_are_found(stored, done, letters, fault):
    """stored: how often jobs are stored, if not once."""
    numbers = range(len(KINDS))
    assert jobs.faults(KINDS, set(numbers), done, +Counter(dict.fromkeys(numbers, 1) | stored),
                       Counter(letters)) == fault
