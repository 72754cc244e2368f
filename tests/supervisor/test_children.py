"""The states of a child are a table, and its end is described in an operator's words."""
import os
import signal

import pytest

from geminga.supervisor.processes.children import (
    GONE,
    READY,
    STARTING,
    STOPPING,
    TRANSITIONS,
    Child,
    describe_exit,
    keep_to_core,
    spread,
)

STATES = (STARTING, READY, STOPPING, GONE)
LEGAL = {(STARTING, READY), (STARTING, STOPPING), (STARTING, GONE), (READY, STOPPING), (READY, GONE), (STOPPING, GONE),
         (GONE, STARTING)}


@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("after", STATES)
def test_a_child_changes_as_the_table_says(before, after):
    child = Child("owner", 0, "geminga-o0", lambda *_: None, state=before)
    assert (after in TRANSITIONS[before]) == ((before, after) in LEGAL)
    if (before, after) in LEGAL:
        child.become(after)
        assert child.state == after
    else:
        with pytest.raises(AssertionError):
            child.become(after)


@pytest.mark.parametrize(("status", "text"), [
    (0, "exited with status 0"), (3 << 8, "exited with status 3"), (signal.SIGTERM, "killed by SIGTERM"),
    (signal.SIGKILL, "killed by SIGKILL (perhaps out of memory)"), (signal.SIGSEGV | 0x80, "killed by SIGSEGV")])
def test_an_end_is_told_in_words(status, text):
    assert describe_exit(status) == text


def test_workers_and_owners_are_spread_over_the_cores_that_the_broker_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 2, 5})
    children = [Child(role, n, "", lambda *_: None) for role, count in (("owner", 4), ("worker", 3), ("admin", 1))
                for n in range(count)]
    spread(children, True)
    assert [child.core for child in children] == [2, 5, 7, 2, 2, 5, 7, None]


def test_a_core_that_is_none_of_ours_any_more_costs_a_line(capsys):
    allowed = os.sched_getaffinity(0)
    keep_to_core(Child("worker", 0, "geminga-w0", lambda *_: None, core=1_000_000))
    assert os.sched_getaffinity(0) == allowed
    assert "geminga-w0 cannot keep to core 1000000" in capsys.readouterr().err
