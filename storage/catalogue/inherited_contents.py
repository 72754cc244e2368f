"""Contents of messages that segments before a segment have stored, by producer; see `scalable/recounting.py`."""
from typing import NamedTuple

from geminga.storage.catalogue.database import Database


class InheritedRow(NamedTuple):
    """The messages of one producer that segments before a partition have stored, as far as they are known."""

    through: int          # the highest sequence id that they have stored
    missing: bytes        # (n,) format.GAP_ROW: ids below of which they have stored nothing
    contents: bytes       # (n,) format.CONTENT_ROW
    anew_from: int | None = None      # messages ever published to the partition when the producer counted anew


class InheritedContents:
    """Rows by partition and producer, which a partition's deletion deletes."""

    def __init__(self, database: Database):
        self._database = database

    def of(self, partition_id: int) -> dict[bytes, InheritedRow]:
        """Return the rows of a partition by producer.  Raises StorageFull."""
        return {producer: InheritedRow(*row) for producer, *row in self._database.read(
            "SELECT producer, through, missing, contents, anew_from FROM inherited WHERE partition_id = ?",
            (partition_id,))}

    def put(self, partition_id: int, producer: bytes, row: InheritedRow) -> None:
        """Write the row of a producer anew.  Raises StorageFull, NotDurable."""
        self._database.write("INSERT OR REPLACE INTO inherited VALUES (?, ?, ?, ?, ?, ?)",
                             (partition_id, producer, *row))

    def correct(self, partition_id: int, next_message: int) -> None:
        """Drop notes that producers count anew from messages which the partition does not have.

        next_message: messages ever published to it.  Raises StorageFull, NotDurable.
        """
        behind = partition_id, next_message
        if self._database.value("SELECT 1 FROM inherited WHERE partition_id = ? AND anew_from >= ? LIMIT 1", behind):
            self._database.write(
                "UPDATE inherited SET anew_from = NULL WHERE partition_id = ? AND anew_from >= ?", behind)

    def forget(self, partition_id: int, producer: bytes, anew_from: int) -> None:
        """Note that a producer counts anew from that message of the partition on.  Raises StorageFull, NotDurable."""
        self._database.write("UPDATE inherited SET anew_from = ? WHERE partition_id = ? AND producer = ?",
                             (anew_from, partition_id, producer))
