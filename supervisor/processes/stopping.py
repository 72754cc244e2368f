"""The order in which a stop ends the processes."""
import os
import signal
from collections.abc import Iterable

from geminga.storage.runtime.log import log
from geminga.supervisor.processes.children import GONE, STOPPING, Child

# a stop kills a child that takes longer
STOP_SECONDS = {"worker": 2.5, "admin": 2.5, "web": 2.5, "replicator": 2.5, "owner": 4.0}
_LAST_SECONDS = 14.0         # of the admin process with the feed of a standby that is promoted
_ORDER = ("web", "replicator"), ("worker", "admin"), ("owner",)
_LAST = ("web", "replicator"), ("worker",), ("owner",), ("admin",)


def stop_step(children: Iterable[Child], passed: float, *, is_last: bool) -> bool:
    """Take the next step of a stop that began `passed` seconds ago; return whether all processes have ended.

    Workers and the admin process are stopped before the owners, which store the messages that workers have sent to
    them by then.  Processes that take too long are killed.

    is_last: a standby is promoted.  Then the admin process is last, because its feed sends what owners have stored.
    """
    for roles in _LAST if is_last else _ORDER:
        alive = [child for child in children if child.role in roles and child.state != GONE]
        for child in alive:
            left = (_LAST_SECONDS if is_last and child.role == "admin" else STOP_SECONDS[child.role]) - passed
            if child.state != STOPPING:
                child.become(STOPPING)
                child.control.send(stop=left)
            elif left < 0 and not child.killed_for:      # once: a process may take a while to end
                child.killed_for = "did not stop"
                log.warning(f"{child.name} does not stop; killed", code="G202")
                os.kill(child.pid, signal.SIGKILL)
        if alive:
            return False
    return True
