"""Topics by the names that users give them; `partitions.py` has their stored partitions."""
import sqlite3

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.catalogue.database import Database, now_ms
from geminga.storage.catalogue.ids import Counters
from geminga.storage.catalogue.stored_policies import RIGHTS, StoredPolicies
from geminga.storage.catalogue.stored_schemas import StoredSchemas


class Topics:
    """Topics in the catalogue by base name, with their number of partitions, 0 for one that is not partitioned."""

    def __init__(self, database: Database, policies: StoredPolicies, schemas: StoredSchemas, counters: Counters):
        self._database, self._policies, self._schemas, self._counters = database, policies, schemas, counters

    def partition_count(self, topic: TopicName) -> int | None:
        """Return the number of partitions of the topic of that base name, 0 if it is not partitioned.

        Returns None if there is no such topic.  Raises StorageFull.
        """
        return self._database.integer("SELECT partitions FROM topics WHERE name = ?", (str(topic),))

    def exists(self, topic: TopicName) -> bool:
        """Whether a topic that is not partitioned, or a partition, has been created.  Raises StorageFull."""
        return self.partition_count(topic) == 0 or 0 <= topic.partition < (self.partition_count(topic.base) or 0)

    def created_ms(self, topic: TopicName) -> int | None:
        """Return when the topic of that base name was created, None if there is none.  Raises StorageFull."""
        return self._database.integer("SELECT created_ms FROM topics WHERE name = ?", (str(topic),))

    def version(self) -> int:
        """Return a number that changes whenever topics were created or deleted.  Raises StorageFull."""
        return self._counters.value("topics")

    # -- lists

    def base_names(self, namespace: str) -> list[str]:
        """Return the base names of a namespace's topics, sorted.  Raises StorageFull."""
        return self._database.column("SELECT name FROM topics WHERE namespace = ? ORDER BY name", (namespace,))

    def partitioned_names(self, namespace: str) -> list[str]:
        """Return the base names of a namespace's partitioned topics, sorted.  Raises StorageFull."""
        return self._database.column(
            "SELECT name FROM topics WHERE namespace = ? AND partitions > 0 ORDER BY name", (namespace,))

    def all_base_names(self) -> list[str]:
        """Return the base names of all topics, sorted.  Raises StorageFull."""
        return self._database.column("SELECT name FROM topics ORDER BY name")

    def complete_names(self, namespace: str) -> list[str]:
        """Return the names of a namespace's topics, sorted by base name, each partition under its own name."""
        rows = self._database.connection.execute(
            "SELECT name, partitions FROM topics WHERE namespace = ? ORDER BY name", (namespace,))
        return [complete for name, count in rows
                for complete in ([name] if count == 0 else [f"{name}-partition-{n}" for n in range(count)])]

    def all_complete_names(self) -> list[str]:
        """Return the names of all topics, sorted by base name, each partition under its own name.

        Raises StorageFull.
        """
        rows = self._database.read("SELECT name, partitions FROM topics ORDER BY name", ())
        return [complete for name, count in rows
                for complete in ([name] if count == 0 else [f"{name}-partition-{n}" for n in range(count)])]

    def count(self, namespace: str) -> int:
        """Return how many topics a namespace has; each partition counts, brokers' own topics do not.

        Raises StorageFull.
        """
        others = [*(f"*/{name}" for name in names.SYSTEM_TOPICS), f"*{names.SYSTEM_SUFFIX}"]
        left_out = " AND name NOT GLOB ?" * len(others)
        statement = f"SELECT SUM(MAX(partitions, 1)) FROM topics WHERE namespace = ?{left_out}"
        return self._database.integer(statement, (namespace, *others)) or 0

    # -- changes

    def create(self, topic: TopicName, partitions: int) -> bool:
        """Create a topic.  Returns False if it exists already.

        partitions: their number, 0 for a topic that is not partitioned.

        Raises Refusal when the namespace has just been deleted, StorageFull, NotDurable.
        """
        was_open = self._database.is_changing
        try:
            done = self._database.write(
                "INSERT OR IGNORE INTO topics VALUES (?, ?, ?, ?)", (str(topic), topic.namespace, partitions, now_ms()))
        except sqlite3.IntegrityError:
            if not was_open:      # no commit follows a refusal, and the open transaction would block other writers
                self._database.undo()
            raise Refusal(api.TopicNotFound, f"Namespace {topic.namespace} does not exist") from None
        if done.rowcount:
            self._counters.take("topics")
        return done.rowcount > 0

    def set_partition_count(self, topic: TopicName, partitions: int) -> None:
        """Change a topic's number of partitions.  Raises StorageFull, NotDurable."""
        self._database.write("UPDATE topics SET partitions = ? WHERE name = ?", (partitions, str(topic)))
        self._counters.take("topics")

    def delete(self, topic: TopicName, *, for_now: bool = False) -> None:
        """Delete a topic with its schemas, and with the policies of the topic and its partitions.

        for_now: permissions stay.  Raises StorageFull, NotDurable.
        """
        scopes = self._database.column(
            "SELECT scope FROM policies WHERE scope >= ? AND scope < ?", (f"{topic}-partition-", f"{topic}-partition."))
        of_partitions = (scope for scope in scopes if names.parse(scope).base == topic)
        self._policies.delete_scopes(str(topic), *of_partitions, rights=not for_now)
        self._schemas.forget(topic)
        if self._database.write("DELETE FROM topics WHERE name = ?", (str(topic),)).rowcount:
            self._counters.take("topics")

    def delete_non_persistent(self) -> None:
        """Delete non-persistent topics, which end with the broker, but keep partitioned ones, which users created.

        Raises StorageFull, NotDurable.
        """
        ended = "SELECT name FROM topics WHERE name LIKE 'non-persistent:%' AND partitions = 0"
        self._database.write(f"DELETE FROM policies WHERE scope IN ({ended}) AND name NOT IN (?, ?, ?, ?)", RIGHTS)
        self._database.write(f"DELETE FROM properties WHERE scope IN ({ended})")
        self._database.write(f"DELETE FROM schemas WHERE topic IN ({ended})")
        self._database.write(f"DELETE FROM topics WHERE name IN ({ended})")
