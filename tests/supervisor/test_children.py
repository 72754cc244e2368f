"""A child's life is a table, and its end is told in an operator's words."""
import signal

import pytest

from geminga.supervisor.children import GONE, READY, STARTING, STOPPING, TRANSITIONS, Child, describe_exit

STATES = (STARTING, READY, STOPPING, GONE)
LEGAL = {(STARTING, READY), (STARTING, STOPPING), (STARTING, GONE), (READY, STOPPING), (READY, GONE), (STOPPING, GONE), (GONE, STARTING)}


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
