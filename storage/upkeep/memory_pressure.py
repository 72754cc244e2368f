"""Memory that is nearly used up: nobody may publish until some is free again; the rest goes on.

The admin process measures it (supervisor/admin/alarms.py) and says so in a number that all processes see; an owner looks there with
each tick.
"""
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.enforcement.publish_gate import Barrier
from geminga.storage.runtime.counters import Counters
from geminga.storage.topics.partition import Partition

_BARRIER = Barrier(api.ServiceNotReady, "The broker's memory is nearly used up; try again", is_waited_for=True)


class MemoryPressure:
    """As one owner sees it.  A cause of gate.Gate."""

    def __init__(self, counters: Counters):
        self._counters = counters
        self.is_short = False

    @property
    def is_possible(self) -> bool:
        return self.is_short

    def barrier(self, partition: Partition) -> Barrier | None:
        return _BARRIER if self.is_short else None

    def look(self) -> None:
        self.is_short = self._counters.total("memory_refuses") > 0
