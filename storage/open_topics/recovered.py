"""What a recovery has read from the journal, as backups and the table of topics need it."""
from typing import Protocol

from geminga.storage.cursors.state_file import State, StateFile
from geminga.storage.topics.partition import Partition


class Recovered(Protocol):
    """The states of partitions that a recovery has read from the journal, and that are not in state files yet.

    The recovery itself belongs to the owner's process, which is above this room.
    """

    @property
    def unopened(self) -> dict[int, State]:
        """The states of partitions that were not opened since the start, by partition id."""

    def state_of(self, partition_id: int) -> tuple[State, StateFile] | None:
        """Return a partition's recovered state and its state file; None if the file is up to date."""

    def opened(self, partition: Partition) -> None:
        """Hand a partition's state over to the partition, which was opened with it."""

    def delete(self, partition_id: int) -> StateFile:
        """Drop a deleted partition's state, and return its state file."""
