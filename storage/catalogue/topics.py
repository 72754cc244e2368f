"""Topics by the names that users give them; `partitions.py` has their stored partitions."""
import contextlib
import sqlite3
from collections.abc import Iterator

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import NameTaken, Refusal
from geminga.proto.names import PARTITION_MAX, TopicName
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

    def named(self, text: str) -> TopicName:
        """Return the topic that a request names, in its complete or short form.

        Raises Refusal(InvalidTopicName) for a name that no topic gets. Older versions created topics with blank names:
        these can be named. Raises StorageFull.
        """
        topic = names.parse(text)
        try:
            names.refuse_blank(topic)
        except Refusal:
            if not self.exists(topic) and self.partition_count(topic) is None:
                raise
        return topic

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

    def total(self) -> int:
        """Return how many topics there are; each partition counts, as in `all_complete_names`.  Raises StorageFull."""
        return self._database.integer("SELECT SUM(MAX(partitions, 1)) FROM topics") or 0

    def taken(self, topic: TopicName, first: int, stop: int) -> list[str]:
        """Return the topics of their own, sorted, whose names partitions of that topic would have.

        They were created while the topic had no such partition. So were stored partitions that belong to no topic.

        first, stop: the partitions' numbers. Raises StorageFull.
        """
        between = f"{topic}-partition-", f"{topic}-partition."      # the point is the character behind the hyphen
        found = set(self._database.column("SELECT name FROM topics WHERE name > ? AND name < ? AND partitions = 0",
                                          between))
        if self.partition_count(topic) is None:
            found.update(self._database.column("SELECT name FROM partitions WHERE name > ? AND name < ?", between))
        parsed = map(names.parse, sorted(found))
        return [str(name) for name in parsed if first <= name.partition < stop and name.base == topic]

    # -- changes

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep other processes from changing topics until the transaction ends, with `commit` or `undo`.

        A Refusal ends it, unless it was open before: no commit follows, and it would block other writers.
        Raises StorageFull, NotDurable.
        """
        was_open = self._database.is_changing
        self._database.write("SELECT 1")      # begins it
        try:
            yield
        except Refusal:
            if not was_open:
                self._database.undo()
            raise

    def create(self, topic: TopicName, partitions: int) -> bool:
        """Create a topic.  Returns False if it exists already.

        partitions: their number, 0 for a topic that is not partitioned.

        Raises NameTaken if topics have the names of its partitions, or it has the name of another topic's partition.
        Raises Refusal when the namespace has just been deleted, StorageFull, NotDurable.
        """
        with self.transaction():
            if self.partition_count(topic) is not None:
                return False
            if partitions:
                self._refuse_taken(topic, 0, PARTITION_MAX + 1)
            elif topic.partition >= 0 and self.partition_count(topic.base):
                raise NameTaken(f"{topic.base} is partitioned, and {topic} has the name of a partition")
            try:
                self._insert(topic, partitions)
            except sqlite3.IntegrityError:
                raise Refusal(api.TopicNotFound, f"Namespace {topic.namespace} does not exist") from None
        return True

    def _insert(self, topic: TopicName, partitions: int) -> None:
        self._database.write(
            "INSERT INTO topics VALUES (?, ?, ?, ?)", (str(topic), topic.namespace, partitions, now_ms()))
        self._counters.take("topics")

    def _refuse_taken(self, topic: TopicName, first: int, stop: int) -> None:
        if taken := self.taken(topic, first, stop):
            more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
            raise NameTaken(f"{topic} cannot have that partition: {taken[0]}{more} exists as a topic of its own")

    def set_partition_count(self, topic: TopicName, partitions: int) -> None:
        """Change a topic's number of partitions.

        Raises NameTaken if topics have the names of new partitions, StorageFull, NotDurable.
        """
        with self.transaction():
            self._refuse_taken(topic, self.partition_count(topic) or 0, partitions)
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
        self.forget_name(topic)

    def forget_name(self, topic: TopicName) -> None:
        """Remove a topic from all lists, and nothing else of it.  Raises StorageFull, NotDurable."""
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
