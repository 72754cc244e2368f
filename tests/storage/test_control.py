"""The connection between the supervisor and its child processes: a child that looks at it answers the ping, and
keeps the other messages for later.
"""
import fcntl
import resource
import socket

import pytest

from geminga.storage.options import StorageOptions
from geminga.storage.runtime.control import Control, control_pair, packed, unpacked
from geminga.workers.identity.options import Secret

from ..harness import HANG_SECONDS


@pytest.fixture
def ends():
    both = control_pair()
    yield both
    for end in both:
        end.close()


def test_a_question_is_answered_by_looking(ends):
    ours, theirs = ends
    ours.send(ping=True)
    assert ours.receive() == []      # the child has not looked yet
    assert theirs.receive() == []
    assert ours.receive() == [{"pong": True}]


def test_in_the_middle_of_something_long_only_that_is_dealt_with(ends):
    ours, theirs = ends
    ours.send(owner=[1, 2])
    ours.send(ping=True)
    ours.send(stop=True)
    theirs.answer()
    assert ours.receive() == [{"pong": True}]
    assert theirs.has_kept
    assert theirs.receive() == [{"owner": [1, 2]}, {"stop": True}]
    assert not theirs.has_kept


def test_a_descriptor_above_those_of_select_is_waited_for(ends):
    above = 1_100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, above + 1_000), hard))
    ours, theirs = socket.socketpair()
    with ours, socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD, above)) as high, theirs:
        ours.sendall(b'{"stop": true}\n')
        control = Control(high)
        control.wait(HANG_SECONDS)
        assert control.receive() == [{"stop": True}]


def test_options_come_as_they_were():
    """Options arrive unchanged, secrets included, and a secret's repr stays masked."""
    found, secret = unpacked(packed((StorageOptions(sync="none"), Secret("s"))))
    assert found == StorageOptions(sync="none")
    assert isinstance(secret, Secret) and repr(secret) == "'***'"
