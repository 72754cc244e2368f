"""Heartbeats: a process that does not answer is given up or not by its state in the kernel.

Only time in which the supervisor itself was running counts.
"""
import os
import signal
import subprocess
import sys

import pytest

from geminga.supervisor.processes.heartbeat import ASK_SECONDS, BUSY_SECONDS, LOOK_SECONDS, Heartbeat, State, state_of

from ..harness import eventually


def seconds_until(wanted, state, limit=200):
    """Return how long after a question the heartbeat says this word; None if it never does."""
    heartbeat = Heartbeat(0)
    assert heartbeat.check(LOOK_SECONDS, BUSY_SECONDS, state) == "ask"
    for passed in range(1, limit):
        if heartbeat.check(LOOK_SECONDS, BUSY_SECONDS, state) == wanted:
            return passed
    return None


def at_work(letter):
    switches = iter(range(1_000_000))
    return lambda pid: State(letter, next(switches))


@pytest.mark.parametrize("letter", ["T", "t", "S"])
def test_who_is_stopped_or_asleep_is_replaced_within_ten_seconds(letter):
    """The time holds even for a process that hung right after an answer."""
    assert ASK_SECONDS + seconds_until("kill", lambda pid: State(letter, 5)) + LOOK_SECONDS < 9


@pytest.mark.parametrize("state", [at_work("S"), lambda pid: State("R", 5)])
def test_who_is_at_work_has_longer(state):
    assert seconds_until("kill", state) == BUSY_SECONDS


def test_who_waits_for_a_disk_is_left_alone_and_shown():
    heartbeat = Heartbeat(0)
    for _ in range(500):
        assert heartbeat.check(LOOK_SECONDS, BUSY_SECONDS, lambda pid: State("D", 5)) in ("", "ask")
    assert heartbeat.waits_for_disk and "disk" in heartbeat.trouble
    assert heartbeat.is_fine      # the service manager is not told, as it could not end the process either


def test_the_time_in_the_kernel_is_not_held_against_it_afterwards():
    heartbeat = Heartbeat(0)
    for _ in range(500):
        heartbeat.check(LOOK_SECONDS, BUSY_SECONDS, lambda pid: State("D", 5))
    assert heartbeat.check(LOOK_SECONDS, BUSY_SECONDS, at_work("S")) == ""


def test_a_pause_of_the_host_is_nobodys_delay():
    """A pause between two looks, however long, does not count."""
    heartbeat = Heartbeat(0)
    heartbeat.check(LOOK_SECONDS, BUSY_SECONDS)
    assert heartbeat.check(3_600, BUSY_SECONDS, lambda pid: State("S", 5)) == ""


def test_an_answer_makes_up_for_everything():
    heartbeat = Heartbeat(0)
    for _ in range(5):
        heartbeat.check(LOOK_SECONDS, BUSY_SECONDS, lambda pid: State("S", 5))
    assert not heartbeat.is_fine
    heartbeat.answered()
    assert heartbeat.is_fine and not heartbeat.trouble
    assert heartbeat.check(LOOK_SECONDS, BUSY_SECONDS) == ""
    assert heartbeat.check(LOOK_SECONDS, BUSY_SECONDS) == "ask"


WAITS_FOR_A_THREAD = """
import ctypes, threading, time
def uninterruptible():
    if ctypes.PyDLL(None).vfork() == 0:      # its parent sleeps so until it ends
        ctypes.CDLL(None).sleep(60)
        ctypes.CDLL(None)._exit(0)
thread = threading.Thread(target=uninterruptible)
thread.start()
thread.join()
"""


def test_who_waits_for_a_thread_that_waits_in_the_kernel_does_so_too():
    """An owner waits for the thread of its checkpoint, on a disk that hangs."""
    waiter = subprocess.Popen([sys.executable, "-c", WAITS_FOR_A_THREAD], start_new_session=True)
    try:
        eventually(lambda: state_of(waiter.pid).letter == "D")
    finally:
        os.killpg(waiter.pid, signal.SIGKILL)
        waiter.wait()


def test_the_kernel_tells_who_is_stopped():
    assert state_of(os.getpid()).letter == "R"
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        eventually(lambda: state_of(sleeper.pid).letter == "S")
        sleeper.send_signal(signal.SIGSTOP)
        eventually(lambda: state_of(sleeper.pid).letter == "T")
    finally:
        sleeper.kill()
        sleeper.wait()
