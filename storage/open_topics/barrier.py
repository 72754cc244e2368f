"""Barriers: reasons for which a partition is closed to producers, and the causes that have them."""
from dataclasses import dataclass
from typing import Protocol

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.topics.partition import Partition


@dataclass(frozen=True, slots=True)
class Barrier:
    """The reason for which a partition is closed to producers, with the error that they get."""

    code: api.ServerError.ValueType
    text: str
    is_waited_for: bool    # producers that reconnect get no error at once, but wait until the barrier is gone

    @property
    def refusal(self) -> Refusal:
        return Refusal(self.code, self.text)


class Cause(Protocol):
    """A cause that can close partitions to producers, such as a full disk or a backlog quota."""

    @property
    def is_possible(self) -> bool:
        """Whether any partition can have a barrier, so that passes skip the check otherwise."""

    def barrier(self, partition: Partition) -> Barrier | None:
        """Return the barrier that closes the partition to producers now, None if this cause has none."""
