"""Functions in tables are given the parts of an owner that they ask for, or the owner does not start."""
import pytest

from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.given import given
from geminga.storage.open_topics.session import Session, Sessions

SESSION = Session(worker=1, connection=2, protocol_version=21)


def carried_out(sessions: Sessions, session: Session, request: str, *, probed: bool = False) -> tuple:
    return sessions, session, request, probed


def test_a_function_is_given_the_parts_of_its_first_parameters():
    sessions = Sessions()
    function = given(carried_out, {Sessions: sessions}, left=2)
    assert function(SESSION, "request", probed=True) == (sessions, SESSION, "request", True)


def test_a_part_that_is_missing_is_noticed_before_the_first_call():
    with pytest.raises(KeyError, match="Sessions"):
        given(carried_out, {Decisions: None}, left=2)
