"""Topics by the names that users give them; `partitions.py` has their stored partitions."""
import contextlib
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import NameTaken, Refusal
from geminga.proto.names import PARTITION_MAX, TopicName
from geminga.storage.catalogue.database import Database, now_ms
from geminga.storage.catalogue.ids import Counters
from geminga.storage.catalogue.stored_policies import RIGHTS, StoredPolicies
from geminga.storage.catalogue.stored_schedules import StoredSchedules
from geminga.storage.catalogue.stored_schemas import StoredSchemas

_SCALABLE = f"{names.SCALABLE}://"
_HAS_LEGACY = "NOT is_deleted AND instr(segments, '\"persistent://')"      # of a row of layouts; see `Layout.to_row`


class Topics:
    """Topics in the catalogue by base name, with their number of partitions, 0 for one that is not partitioned."""

    def __init__(self, database: Database, policies: StoredPolicies, schemas: StoredSchemas,
                 schedules: StoredSchedules, counters: Counters):
        self._database, self._policies, self._schemas = database, policies, schemas
        self._schedules, self._counters = schedules, counters

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
        """Whether a topic that is not partitioned, a partition, or a segment has been created.  Raises StorageFull."""
        if topic.is_segment:
            # Numbers are compared: making the names of a thousand segments takes milliseconds for each PRODUCER.
            return [*topic.segment, ""] in self._segments(topic.base)
        count = self.partition_count(topic)
        if count is None and 0 <= topic.partition < (self.partition_count(topic.base) or 0):
            return True
        return count == 0 or (count is None and topic in self.legacy(topic.base.scalable))

    def parts(self, topic: TopicName) -> list[TopicName]:
        """Return the names under which a topic's messages are stored: of its partitions or segments, or its own.

        Raises StorageFull.
        """
        if topic.is_scalable:
            return [names.parse(legacy) if legacy else topic.segment_name(*segment)
                    for *segment, legacy in self._segments(topic)]
        return [topic.partition_name(number) for number in range(self.partition_count(topic) or 0)] or [topic]

    def _segments(self, topic: TopicName) -> list[list[Any]]:
        """Return [number, first hash, last hash, legacy name or ""] of each segment of a scalable topic.

        See `Layout.to_row`.
        """
        text = self._database.value(
            "SELECT segments FROM layouts WHERE name = ? AND NOT is_deleted", (str(topic),))
        return [[*row[:3], row[-1]] for row in json.loads(text or "[]")]

    def legacy(self, topic: TopicName) -> list[TopicName]:
        """Return the segments of a scalable topic that were partitions, or a topic, before it was made scalable.

        Raises StorageFull.
        """
        text = self._database.value(f"SELECT segments FROM layouts WHERE name = ? AND {_HAS_LEGACY}", (str(topic),))
        return [names.parse(row[-1]) for row in json.loads(text or "[]") if row[-1]]

    def former_partitions(self, topic: TopicName) -> int | None:
        """Return the number of partitions that a topic had before it was made scalable, 0 for one of these.

        Returns None for a topic that was not made scalable, or of which nothing is left.  Raises StorageFull.
        """
        left = self.legacy(topic.base.scalable)
        if topic in left:
            return 0
        return left[-1].partition + 1 if left and topic.partition < 0 else None

    def all_legacy(self) -> list[str]:
        """Return the names of all segments that were partitions, or topics.  Raises StorageFull."""
        texts = self._database.column(f"SELECT segments FROM layouts WHERE {_HAS_LEGACY}")
        return [row[-1] for text in texts for row in json.loads(text) if row[-1]]

    def whole(self, name: TopicName) -> TopicName:
        """Return the topic that has the policies, schemas and rights of a partition or segment, or of a topic's name.

        The name of a regular topic stands for the scalable one if there is only that, as after a migration.  That of a
        partition does so if the topic was made scalable.  Raises StorageFull.
        """
        base = name.base
        if base.domain != "persistent" or self.partition_count(base) is not None:
            return base
        scalable = base.scalable
        is_its = self.partition_count(scalable) is not None if name.partition < 0 else name in self.legacy(scalable)
        return scalable if is_its else base

    def is_shadowed(self, topic: TopicName) -> bool:
        """Whether a persistent topic or partition is hidden by a scalable topic of the same tenant, namespace and name.

        Clients of Pulsar 5 get the scalable topic under either name, as in Pulsar.  Older clients are refused both.
        Raises StorageFull.
        """
        return topic.domain == "persistent" and self.partition_count(topic.base.scalable) is not None

    def created_ms(self, topic: TopicName) -> int | None:
        """Return when the topic of that base name was created, None if there is none.  Raises StorageFull."""
        created_ms = self._database.integer("SELECT created_ms FROM topics WHERE name = ?", (str(topic),))
        if created_ms is None and (whole := self.whole(topic)) != topic:
            return self.created_ms(whole)
        return created_ms

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

    def complete_names(self, namespace: str | None = None) -> list[str]:
        """Return the names of a namespace's topics, or of all, sorted by base name.

        Each partition and segment is under its own name.  Raises StorageFull.
        """
        chosen, values = ("", ()) if namespace is None else ("WHERE namespace = ?", (namespace,))
        rows = self._database.read(f"SELECT name, partitions FROM topics {chosen} ORDER BY name", values)
        return [complete for name, count in rows for complete in self._complete(name, count)]

    def never_stored(self, behind: str, most: int) -> tuple[list[str], str]:
        """Look at `most` persistent topics whose names follow `behind`; "" begins with the first.

        Returns the topics without partitions that no client has used, and the name to go on behind, "" at the end.
        Raises StorageFull.
        """
        is_unused = "topics.partitions = 0 AND NOT EXISTS (SELECT 1 FROM partitions WHERE name = topics.name)"
        rows = self._database.read(
            f"SELECT name, {is_unused} FROM topics WHERE name > ? AND name < 'persistent;' ORDER BY name LIMIT ?",
            (behind or "persistent:", most))
        return [name for name, unused in rows if unused], rows[-1][0] if len(rows) == most else ""

    def _complete(self, name: str, count: int) -> list[str]:
        if name.startswith(_SCALABLE):
            return list(map(str, self.parts(names.parse(name))))
        return [name] if count == 0 else [f"{name}-partition-{number}" for number in range(count)]

    def count(self, namespace: str) -> int:
        """Return how many topics a namespace has; each partition counts, brokers' own topics do not.

        Raises StorageFull.
        """
        others = [*(f"*/{name}" for name in names.SYSTEM_TOPICS), f"*{names.SYSTEM_SUFFIX}"]
        left_out = " AND name NOT GLOB ?" * len(others)
        statement = f"SELECT SUM(MAX(partitions, 1)) FROM topics WHERE namespace = ?{left_out}"
        return self._database.integer(statement, (namespace, *others)) or 0

    def total(self) -> int:
        """Return how many topics there are; each partition and segment counts, as in `complete_names`.

        Raises StorageFull.
        """
        layouts = self._database.column("SELECT segments FROM layouts WHERE NOT is_deleted")
        more = sum(len(json.loads(segments)) - 1 for segments in layouts)
        return (self._database.integer("SELECT SUM(MAX(partitions, 1)) FROM topics") or 0) + more

    def taken(self, topic: TopicName, first: int, stop: int) -> list[str]:
        """Return the topics of their own, sorted, whose names partitions of that topic would have.

        They were created while the topic had no such partition. So were stored partitions that belong to no topic.

        first, stop: the partitions' numbers. Raises StorageFull.
        """
        between = f"{topic}-partition-", f"{topic}-partition."      # the point is the character behind the hyphen
        alike = set(self._database.column("SELECT name FROM topics WHERE name > ? AND name < ? AND partitions = 0",
                                          between))
        if self.partition_count(topic) is None:
            alike.update(self._database.column("SELECT name FROM partitions WHERE name > ? AND name < ?", between))
        parsed = map(names.parse, sorted(alike))
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
            if topic.domain == "persistent" and self.legacy(topic.base.scalable):
                raise NameTaken(f"{topic.base} was made scalable, and {topic.base.scalable} has its messages still")
            if partitions:
                self._refuse_taken(topic, 0, PARTITION_MAX + 1)
            elif topic.partition >= 0 and self.partition_count(topic.base):
                raise NameTaken(f"{topic.base} is partitioned, and {topic} has the name of a partition")
            try:
                self._database.write("INSERT INTO topics VALUES (?, ?, ?, ?)",
                                     (str(topic), topic.namespace, partitions, now_ms()))
                self._counters.take("topics")
            except sqlite3.IntegrityError:
                raise Refusal(api.TopicNotFound, f"Namespace {topic.namespace} does not exist") from None
        return True

    def _refuse_taken(self, topic: TopicName, first: int, stop: int) -> None:
        if taken := self.taken(topic, first, stop):
            more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
            raise NameTaken(f"{topic} cannot have that partition: {taken[0]}{more} exists as a topic of its own")

    def set_partition_count(self, topic: TopicName, partitions: int) -> None:
        """Change a topic's number of partitions.

        Raises NameTaken if topics have the names of new partitions, StorageFull, NotDurable.
        """
        with self.transaction():
            self.refuse_migrating(topic)
            self._refuse_taken(topic, self.partition_count(topic) or 0, partitions)
            self._database.write("UPDATE topics SET partitions = ? WHERE name = ?", (partitions, str(topic)))
            self._counters.take("topics")

    def refuse_migrating(self, topic: TopicName) -> None:
        """Raise Refusal for a regular topic, or a partition, that is being made scalable.  Raises StorageFull."""
        scalable = topic.base.scalable
        if topic.domain == "persistent" and self.partition_count(scalable) is None and self._database.value(
                "SELECT 1 FROM layout_changes WHERE name = ? AND NOT is_done", (str(scalable),)):
            raise Refusal(api.ServiceNotReady, f"{topic.base} is being made scalable; try again")

    def make_scalable(self, topic: TopicName) -> None:
        """Give a regular topic's row to the scalable topic of its name, with its policies, schemas and schedules.

        Raises StorageFull, NotDurable.
        """
        regular = topic.regular
        self._database.write("UPDATE topics SET name = ?, partitions = 0 WHERE name = ?", (str(topic), str(regular)))
        self._policies.move(str(regular), str(topic))
        self._schemas.move(regular, topic)
        self._schedules.move(regular, topic)
        self._counters.take("topics")

    def delete(self, topic: TopicName, *, for_now: bool = False) -> None:
        """Delete a topic with its schemas and schedules, and with the policies of the topic and its partitions.

        for_now: permissions stay.  Raises Refusal: it is being made scalable.  Raises StorageFull, NotDurable.
        """
        self.refuse_migrating(topic)
        scopes = self._database.column(
            "SELECT scope FROM policies WHERE scope >= ? AND scope < ?", (f"{topic}-partition-", f"{topic}-partition."))
        of_partitions = (scope for scope in scopes if names.parse(scope).base == topic)
        self._policies.delete_scopes(str(topic), *of_partitions, rights=not for_now)
        self._schemas.forget(topic)
        if not for_now:
            self._schedules.delete_all(topic)
        self.forget_name(topic)

    def set_created_ms(self, topic: TopicName, created_ms: int) -> None:
        """Store when a topic was created, which was deleted and taken back.  Raises StorageFull, NotDurable."""
        self._database.write("UPDATE topics SET created_ms = ? WHERE name = ?", (created_ms, str(topic)))

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
