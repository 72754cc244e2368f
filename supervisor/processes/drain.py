"""A drain, which goes before a stop: nobody publishes or is given anything any more, and what consumers have they may still acknowledge.

It ends when nothing is out any more, or when its time is over; then everything stops as ever.
"""
import time

from geminga.storage.runtime.control import Control
from geminga.storage.runtime.log import log
from geminga.supervisor.processes.supervision import Supervision

DRAIN_LOOK_SECONDS = 0.1      # between looks at what is outstanding
_SECONDS_MAX = 24 * 3600


class Drain:
    def __init__(self, supervisor: Supervision):
        self._supervisor = supervisor
        self._by: float | None = None             # when everything stops although not everything was acknowledged
        self._callers: list[Control] = []         # who are told how much is outstanding

    @property
    def is_under_way(self) -> bool:
        return self._by is not None

    @property
    def outstanding(self) -> int:
        """Messages that consumers may acknowledge yet."""
        return self._supervisor.counters["admin", 0].total("outstanding")

    def asked(self, caller: Control, seconds: float) -> None:
        """By an operator.  Raises ValueError, TypeError."""
        if not 0 <= seconds <= _SECONDS_MAX:
            raise ValueError(seconds)
        self._callers.append(caller)
        self._begin(seconds)

    def _begin(self, seconds: float) -> None:
        supervisor = self._supervisor
        if not supervisor.is_ready or supervisor.is_stopping:
            return supervisor.begin_stop()
        if self._by is None:
            log.info(f"the broker is drained for up to {seconds:g} s before it stops")
            for child in supervisor.children:
                if child.control is not None:
                    child.control.send(drain=True)
        self._by = time.monotonic() + seconds

    def go_on(self) -> None:
        supervisor = self._supervisor
        if self._by is None or supervisor.is_stopping:
            return
        outstanding, is_done = self.outstanding, all(child.is_drained for child in supervisor.children)
        for caller in self._callers:
            caller.send(outstanding=outstanding)
        if (is_done and not outstanding) or time.monotonic() >= self._by:
            log.info(f"the broker was drained: {outstanding} messages are out that nobody has acknowledged")
            supervisor.begin_stop()
