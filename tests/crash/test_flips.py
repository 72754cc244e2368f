"""One bit anywhere is wrong, and what flips.py promises holds; the checks are shown to fail where the code would lie.
"""
import numpy as np

from geminga.storage import format
from geminga.storage.open_topics.topic_table import TopicTable

from .flips import Flips

FLIPS = 100


def test_one_wrong_bit_costs_nothing_or_its_entry_and_is_told(tmp_path, seed):
    flips = Flips(tmp_path, seed)
    for _ in range(FLIPS):
        flips.turn_one()
    assert not flips.faults
    assert sum(flips.figures.values()) == FLIPS


def turned(flips, how, kind):
    """A flipped bit in the middle of one place of each kind."""
    for place in flips.places[how][kind][:3]:
        flips.turn(how, place, place.offset + place.size // 2, 3)
    return flips.faults


def test_damage_that_nobody_is_told_of_is_a_fault(tmp_path, monkeypatch):
    flips = Flips(tmp_path, 1)
    monkeypatch.setattr(TopicTable, "report_damage", lambda *_: None)
    assert len(turned(flips, "stop", "state")) == 3


def test_a_row_that_is_taken_as_it_is_is_a_fault(tmp_path, monkeypatch):
    flips = Flips(tmp_path, 1)
    monkeypatch.setattr(format, "is_valid", lambda rows, *_: np.ones(len(rows), bool))
    assert len(turned(flips, "stop", "index row")) == 3


def test_a_partition_that_does_not_open_is_a_fault(tmp_path, monkeypatch):
    flips = Flips(tmp_path, 1)

    def fail(*_):
        raise ValueError

    monkeypatch.setattr(TopicTable, "find", fail)
    assert len(turned(flips, "kill", "index header")) == 3
