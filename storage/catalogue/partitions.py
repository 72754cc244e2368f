"""Stored partitions and their durable subscriptions: names and ids. Their positions are in state files, not here."""
from geminga.proto import names
from geminga.proto.names import TopicName
from geminga.storage.catalogue.database import Database
from geminga.storage.catalogue.ids import Counters
from geminga.storage.catalogue.stored_policies import StoredPolicies, scope_of
from geminga.storage.catalogue.topics import Topics

PREFIX = "kept:"      # of the names of partitions whose topic was deleted and is kept, see kept_topics.py
_IS_KEPT = f"substr(partitions.name, 1, {len(PREFIX)}) = '{PREFIX}'"
# Rows of cleared backlogs without a cursor.
_FORGET_EMPTY = ("DELETE FROM kept_topics WHERE json_extract(record, '$.subscription') IS NOT NULL "
                 "AND NOT EXISTS (SELECT 1 FROM kept_cursors WHERE kept_id = kept_topics.id)")
# Gives the cleared backlogs of a topic to another one, but not those of an earlier topic that was deleted and is kept.
MOVE_BACKLOGS = ("UPDATE kept_topics SET topic = ?, partitions = 0 WHERE topic = ? AND id IN (SELECT kept_id FROM "
                 f"kept_cursors JOIN partitions ON partition_id = partitions.id WHERE NOT {_IS_KEPT})")


class Subscriptions:
    """Durable subscriptions in the catalogue, by partition and name.  An id is never given out twice."""

    def __init__(self, database: Database, policies: StoredPolicies):
        self._database, self._policies = database, policies

    def ids(self, partition_id: int) -> dict[str, int]:
        """Return {name: id} of a partition's durable subscriptions."""
        return dict(self._database.connection.execute(
            "SELECT name, id FROM subscriptions WHERE partition_id = ?", (partition_id,)))

    def create(self, partition_id: int, name: str) -> int:
        """Create a durable subscription and return its id.  Raises StorageFull, NotDurable.

        A subscription of the same name is replaced: its owner was killed before the journal had it, so no client was
        answered.
        """
        earlier = self._database.value(
            "SELECT id FROM subscriptions WHERE partition_id = ? AND name = ?", (partition_id, name))
        if earlier is not None:
            self.delete(earlier)
        return self._database.insert(
            "INSERT INTO subscriptions (partition_id, name) VALUES (?, ?)", (partition_id, name))

    def new_id(self, partition_id: int) -> int:
        """Return an id that no subscription has had or gets.  Raises StorageFull, NotDurable."""
        number = self.create(partition_id, "")
        self._database.write("DELETE FROM subscriptions WHERE id = ?", (number,))
        return number

    def delete(self, subscription_id: int) -> None:
        """Delete a durable subscription with its policies and properties.  Raises StorageFull, NotDurable."""
        self._policies.delete_scopes(scope_of(subscription_id), rights=False)
        self._database.write("DELETE FROM subscriptions WHERE id = ?", (subscription_id,))

    def named(self, prefix: str) -> list[tuple[str, str]]:
        """Return (partition, subscription) of all durable subscriptions whose names begin so.  Raises StorageFull."""
        return self._database.read(
            "SELECT partitions.name, subscriptions.name FROM subscriptions "
            "JOIN partitions ON partition_id = partitions.id WHERE substr(subscriptions.name, 1, ?) = ? "
            f"AND NOT {_IS_KEPT}",
            (len(prefix), prefix))

    def below(self, prefix: str, most: int) -> list[tuple[int, str, str]]:
        """Return (partition id, partition, subscription) of durable subscriptions of partitions whose names begin so.

        They are in the order of partitions and names, `most` at most.  Raises StorageFull.
        """
        return self._database.read(
            "SELECT partition_id, partitions.name, subscriptions.name FROM partitions "
            "JOIN subscriptions ON partition_id = partitions.id WHERE partitions.name >= ? AND partitions.name < ? "
            "ORDER BY partitions.name, subscriptions.name LIMIT ?", (prefix, prefix + chr(0x10FFFF), most))

    def replicated(self, partition_id: int) -> set[int]:
        """Return the ids of a partition's subscriptions that are marked as replicated.  Raises StorageFull."""
        return set(self._database.column(
            "SELECT subscriptions.id FROM subscriptions JOIN policies ON scope = '#' || subscriptions.id "
            "WHERE partition_id = ? AND policies.name = 'replicated'", (partition_id,)))

    def set_replicated(self, subscription_id: int, is_replicated: bool) -> None:
        """Mark a subscription as replicated, or remove the mark.  Raises StorageFull, NotDurable."""
        self._policies.set(scope_of(subscription_id), "replicated", is_replicated or None)


class Partitions:
    """Stored partitions in the catalogue, and topics that are not partitioned.  An id is never given out twice."""

    def __init__(self, database: Database, topics: Topics, subscriptions: Subscriptions, counters: Counters):
        self._database, self._topics, self._counters = database, topics, counters
        self.subscriptions = subscriptions

    def find(self, name: TopicName) -> tuple[int, int | None] | None:
        """Return (id, topic epoch) of the partition of that name, None if it has never been stored."""
        row: tuple[int, int | None] | None = self._database.connection.execute(
            "SELECT id, topic_epoch FROM partitions WHERE name = ?", (str(name),)).fetchone()
        return row

    def name_of(self, partition_id: int) -> str | None:
        """Return the name of the partition with that id, None if there is none, or its topic was deleted.

        Raises StorageFull.
        """
        name: str | None = self._database.value(
            f"SELECT name FROM partitions WHERE id = ? AND NOT {_IS_KEPT}", (partition_id,))
        return name

    def all(self) -> list[tuple[int, str]]:
        """Return (id, name) of all partitions, in the order of ids, without kept ones.  Raises StorageFull."""
        return self._database.read(f"SELECT id, name FROM partitions WHERE NOT {_IS_KEPT} ORDER BY id")

    def ids(self) -> set[int]:
        """Return the ids of all partitions that have files, also of kept ones.  Raises StorageFull."""
        return set(self._database.column("SELECT id FROM partitions"))

    def names(self) -> list[str]:
        """Return the names of all partitions, in no order, without kept ones.  Raises StorageFull."""
        return self._database.column(f"SELECT name FROM partitions WHERE NOT {_IS_KEPT}")

    def count(self) -> int:
        """Return the number of stored partitions.  Raises StorageFull."""
        return self._database.integer(f"SELECT count(*) FROM partitions WHERE NOT {_IS_KEPT}") or 0

    def newest_id(self) -> int:
        """Return the highest id ever given to a partition; later partitions get higher ones.  Raises StorageFull."""
        return self._database.integer("SELECT seq FROM sqlite_sequence WHERE name = 'partitions'") or 0

    def create(self, name: TopicName) -> int:
        """Create a partition and return its id.  Raises StorageFull, NotDurable."""
        return self._database.insert("INSERT INTO partitions (name) VALUES (?)", (str(name),))

    def delete(self, partition_id: int) -> None:
        """Delete a partition with its subscriptions and cleared backlogs, and its topic if that is not partitioned.

        Raises StorageFull, NotDurable.
        """
        for subscription_id in self.subscriptions.ids(partition_id).values():
            self.subscriptions.delete(subscription_id)
        self._database.write("DELETE FROM inherited WHERE partition_id = ?", (partition_id,))
        if self._database.write("DELETE FROM kept_cursors WHERE partition_id = ?", (partition_id,)).rowcount:
            self._database.write(_FORGET_EMPTY)
            self._counters.take("kept")
        name = self._database.value("SELECT name FROM partitions WHERE id = ?", (partition_id,))
        if name is not None:
            self._database.write("DELETE FROM partitions WHERE id = ?", (partition_id,))
            if not name.startswith(PREFIX):
                self._topics.delete(names.parse(name))

    def forget(self, partition_id: int) -> None:
        """Delete a partition that has never been written; its topic stays.  Raises StorageFull, NotDurable."""
        for subscription_id in self.subscriptions.ids(partition_id).values():
            self.subscriptions.delete(subscription_id)
        self._database.write("DELETE FROM inherited WHERE partition_id = ?", (partition_id,))
        self._database.write("DELETE FROM partitions WHERE id = ?", (partition_id,))

    def set_topic_epoch(self, partition_id: int, epoch: int) -> None:
        """Store the epoch of the partition's exclusive producer.  Raises StorageFull, NotDurable."""
        self._database.write("UPDATE partitions SET topic_epoch = ? WHERE id = ?", (epoch, partition_id))

    def is_terminated(self, partition_id: int) -> bool:
        """Whether the partition is terminated, and takes no messages any more.  Raises StorageFull."""
        return bool(self._database.value("SELECT is_terminated FROM partitions WHERE id = ?", (partition_id,)))

    def terminate(self, partition_id: int) -> None:
        """Mark the partition as terminated, so that it takes no messages any more.  Raises StorageFull, NotDurable."""
        self._database.write("UPDATE partitions SET is_terminated = 1 WHERE id = ?", (partition_id,))
