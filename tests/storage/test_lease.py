"""The lease, without which no process of a broker answers: who renews it, and what a process does that waits."""
import subprocess
import sys
import threading

from geminga.storage.runtime.control import control_pair
from geminga.storage.runtime.lease import ADMIN, FEED, Lease

WAITS = """
import os, sys
from geminga.storage.runtime.control import control_pair
from geminga.storage.runtime.lease import ADMIN, Lease
ours, theirs = control_pair()
lease = Lease()
lease.renew(ADMIN, 0.0)
if os.fork() == 0:
    ours.close()
    lease.bind(theirs)
    lease.keep()
    os._exit(3)
theirs.close()
ours.send(ping=True)
os.set_blocking(ours.fileno(), True)
assert ours._socket.recv(100) == b'{"pong": true}\\n'
ours.send(**{sys.argv[1]: True}) if sys.argv[1] else lease.renew(ADMIN, lease.now() + 60)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_lease_lasts_as_long_as_one_of_those_who_renew_it_says():
    lease = Lease()
    assert not lease.has_lapsed      # nobody follows
    lease.renew(ADMIN, lease.now() - 1)
    assert lease.has_lapsed
    Lease(lease.descriptor).renew(FEED, lease.now() + 60)      # as another program does
    assert not lease.has_lapsed and 50 < lease.seconds_left(FEED) <= 60 and lease.seconds_left(ADMIN) < 0


def test_a_process_whose_lease_has_lapsed_waits_until_it_is_renewed():
    lease, (ours, theirs) = Lease(), control_pair()
    lease.bind(theirs)
    lease.renew(ADMIN, 0.0)
    waiting = threading.Thread(target=lease.keep)
    waiting.start()
    ours.send(options="kept for the loop")
    assert waiting.is_alive()
    lease.renew(ADMIN, lease.now() + 60)
    waiting.join()
    assert not waiting.is_alive()
    ours.close()
    theirs.close()


def exit_status_of_one(told: str) -> str:
    command = [sys.executable, "-c", WAITS, told]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_process_that_waits_answers_pings_and_ends_when_it_is_told_to_stop():
    """What it has not answered by then is never answered."""
    assert exit_status_of_one("stop") == "0"
    assert exit_status_of_one("") == "3"
