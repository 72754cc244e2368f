"""Shortage of memory: publishing is refused until enough memory is free again, everything else continues.

The admin process measures memory (supervisor/admin/monitoring/alarms.py), and sets a counter that all processes share.
Owners look at the counter with each tick.
"""
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.open_topics.barrier import Barrier
from geminga.storage.runtime.counters import Counters
from geminga.storage.topics.partition import Partition

_BARRIER = Barrier(api.ServiceNotReady, "The broker's memory is nearly used up; try again", is_waited_for=True)


class MemoryPressure:
    """The shortage of memory as one owner sees it, which is a cause to refuse publishing (barrier.Cause)."""

    def __init__(self, counters: Counters):
        self._counters = counters
        self.is_short = False

    def __repr__(self) -> str:
        return f"<MemoryPressure short={self.is_short}>"

    @property
    def is_possible(self) -> bool:
        return self.is_short

    def barrier(self, partition: Partition) -> Barrier | None:
        """Return the barrier against publishing while memory is short, else None."""
        return _BARRIER if self.is_short else None

    def look(self) -> None:
        """Read from the shared counter whether memory is short."""
        self.is_short = self._counters.total("memory_refuses") > 0
