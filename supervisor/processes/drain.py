"""A drain before a stop: publishing and delivery end, and consumers may still acknowledge messages that they hold.

The drain ends when nothing is unacknowledged, or when its time is over.  Then the broker stops.
"""
import time

from geminga.storage.runtime.control import Control
from geminga.storage.runtime.log import log
from geminga.supervisor.processes.supervision import Supervision

DRAIN_LOOK_SECONDS = 0.1      # time between two counts of outstanding messages
_SECONDS_MAX = 24 * 3600


class Drain:
    """The drain of a broker before a stop, from the first command to the stop."""

    def __init__(self, supervisor: Supervision):
        self._supervisor = supervisor
        self._by: float | None = None             # monotonic; the broker stops then, whatever is outstanding
        self._wanted: float | None = None         # seconds of a drain that a signal has asked for
        self._callers: list[Control] = []         # connections that are told how many messages are outstanding

    def __repr__(self) -> str:
        return f"<Drain is_under_way={self.is_under_way} callers={len(self._callers)}>"

    @property
    def is_under_way(self) -> bool:
        return self._by is not None

    @property
    def outstanding(self) -> int:
        """Count the messages that consumers of the whole broker have received and not acknowledged."""
        return self._supervisor.counters["admin", 0].total("outstanding")

    def asked(self, caller: Control, seconds: float) -> None:
        """Begin a drain of at most `seconds` for an operator, or change the time limit of the current drain.

        Raises ValueError or TypeError for seconds that are no number from 0 to a day.
        """
        if not 0 <= seconds <= _SECONDS_MAX:
            raise ValueError(seconds)
        self._callers.append(caller)
        self._begin(seconds)

    def requested(self, seconds: float) -> None:
        """Record a signal to stop: `go_on` begins a drain of at most `seconds`.  A second signal ends any drain."""
        if seconds and not self.is_under_way and self._wanted is None:
            self._wanted = seconds
        else:
            self._supervisor.begin_stop()

    def _begin(self, seconds: float) -> None:
        supervisor = self._supervisor
        if not supervisor.is_ready or supervisor.is_stopping:
            return supervisor.begin_stop()
        if self._by is None:
            log.info(f"the broker is drained for up to {seconds:g} s before it stops")
            for child in supervisor.children:
                if child.process is not None:
                    child.control.send(drain=True)
        self._by = time.monotonic() + seconds

    def go_on(self) -> None:
        """Report the number of outstanding messages to callers, and begin the stop when the drain is over.

        Callers are told nothing until every process refuses new work: a number would be no limit of what is to come.
        """
        supervisor = self._supervisor
        if self._wanted is not None and self._by is None:
            self._begin(self._wanted)
        if self._by is None or supervisor.is_stopping:
            return
        outstanding, is_done = self.outstanding, all(child.is_drained for child in supervisor.children)
        if is_done:
            for caller in self._callers:
                caller.send(outstanding=outstanding)
        if (is_done and not outstanding) or time.monotonic() >= self._by:
            log.info(f"the broker was drained: {outstanding} messages are not acknowledged")
            supervisor.begin_stop()
