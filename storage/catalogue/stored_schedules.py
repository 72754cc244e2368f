"""Schedules of topics as they are stored; `recurring/` has the rules for them.

A schedule belongs to a topic by its base name, and publishes to one partition, which it keeps, or to the segment of its
key.  When that is sealed, one transaction gives the schedule the new segment and the last time that was published, so
that the new segment's owner goes on behind it.  Its id is given out once: a schedule that is deleted and made again
under the same name is another one.
"""
from collections.abc import Callable
from typing import NamedTuple

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.layouts import Layout
from geminga.proto.names import TopicName
from geminga.storage.catalogue.database import Database
from geminga.storage.catalogue.ids import Counters
from geminga.storage.catalogue.stored_policies import names_between

_COLUMNS = "id, topic, name, partition, since_ms, is_paused, timing, message"


class StoredSchedule(NamedTuple):
    """A schedule in the catalogue."""

    id: int
    topic: str            # base name
    name: str
    partition: str        # the partition, segment or topic that gets its messages
    since_ms: int         # only times behind this one are planned
    is_paused: int
    timing: str           # JSON, see recurring/timetable.py
    message: str          # JSON, as it was given


class StoredSchedules:
    """Schedules in the catalogue, by topic and name."""

    def __init__(self, database: Database, counters: Counters):
        self._database, self._counters = database, counters

    def version(self) -> int:
        """Return a number that changes whenever a schedule was made, changed or deleted.  Raises StorageFull."""
        return self._counters.value("schedules")

    def all(self) -> list[StoredSchedule]:
        """Return all schedules, by topic and name.  Raises StorageFull."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM schedules ORDER BY topic, name")
        return [StoredSchedule(*row) for row in rows]

    def timings(self) -> list[StoredSchedule]:
        """Return all schedules without their messages, which may be large, by id.  Raises StorageFull."""
        columns = _COLUMNS.replace("message", "''")
        return [StoredSchedule(*row) for row in self._database.read(f"SELECT {columns} FROM schedules ORDER BY id")]

    def of(self, topic: TopicName) -> list[StoredSchedule]:
        """Return a topic's schedules, by name.  Raises StorageFull."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM schedules WHERE topic = ? ORDER BY name", (str(topic),))
        return [StoredSchedule(*row) for row in rows]

    def find(self, topic: TopicName, name: str) -> StoredSchedule | None:
        """Return the topic's schedule of that name, None if there is none.  Raises StorageFull."""
        rows = self._database.read(
            f"SELECT {_COLUMNS} FROM schedules WHERE topic = ? AND name = ?", (str(topic), name))
        return StoredSchedule(*rows[0]) if rows else None

    def count(self, topic: TopicName) -> int:
        """Return how many schedules a topic has.  Raises StorageFull."""
        return self._database.integer("SELECT count(*) FROM schedules WHERE topic = ?", (str(topic),)) or 0

    def count_in(self, namespace: str) -> int:
        """Return how many schedules the topics of a namespace have.  Raises StorageFull."""
        return sum(self._database.integer("SELECT count(*) FROM schedules WHERE topic > ? AND topic < ?",
                                          names_between(domain, namespace)) or 0
                   for domain in (*names.DOMAINS, names.SCALABLE))

    def entry(self, schedule_id: int, since_ms: int) -> tuple[bytes, bytes] | None:
        """Return (metadata, payload) of a schedule that is in force as it was read; None if it has changed since.

        Raises StorageFull.
        """
        rows = self._database.read(
            "SELECT metadata, payload FROM schedules WHERE id = ? AND since_ms = ?", (schedule_id, since_ms))
        return rows[0] if rows else None

    # -- changes

    def set(self, topic: TopicName, name: str, *, partition: TopicName, is_paused: bool, timing: str, message: str,
            metadata: bytes, payload: bytes, now_ms: int) -> None:
        """Make a schedule, or change the one of that name.  Times up to now are not planned.

        Raises StorageFull, NotDurable.
        """
        self._database.write(
            "INSERT INTO schedules (topic, name, partition, since_ms, is_paused, timing, message, metadata, payload) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (topic, name) DO UPDATE SET "
            "partition = excluded.partition, since_ms = max(since_ms + 1, excluded.since_ms), "
            "is_paused = excluded.is_paused, timing = excluded.timing, message = excluded.message, "
            "metadata = excluded.metadata, payload = excluded.payload",
            (str(topic), name, str(partition), now_ms, is_paused, timing, message, metadata, payload))
        self._counters.take("schedules")

    def pause(self, schedule_id: int, *, is_paused: bool, now_ms: int) -> None:
        """Pause a schedule, or resume it.  Times up to now are not planned.  Raises StorageFull, NotDurable."""
        self._database.write("UPDATE schedules SET is_paused = ?, since_ms = max(since_ms + 1, ?) WHERE id = ?",
                             (is_paused, now_ms, schedule_id))
        self._counters.take("schedules")

    def seal(self, partition: TopicName, last_ms: Callable[[int], int]) -> None:
        """Plan nothing that was published to a partition, which is sealed.  Raises StorageFull, NotDurable.

        last_ms: returns the planned time of the last message of the schedule with that id.
        """
        for schedule_id in self._database.column("SELECT id FROM schedules WHERE partition = ?", (str(partition),)):
            self._database.write("UPDATE schedules SET since_ms = max(since_ms, ?) WHERE id = ?",
                                 (last_ms(schedule_id), schedule_id))

    def follow(self, topic: TopicName, layout: Layout) -> None:
        """Have the schedules of a scalable topic publish to the segments of a layout.  Raises StorageFull, NotDurable.
        """
        for schedule_id, name, metadata in self._database.read(
                "SELECT id, name, metadata FROM schedules WHERE topic = ?", (str(topic),)):
            about = api.MessageMetadata()
            about.MergeFromString(metadata)
            self._database.write("UPDATE schedules SET partition = ? WHERE id = ?",
                                 (layout.takes(about.partition_key or name).topic, schedule_id))
            self._counters.take("schedules")

    def move(self, topic: TopicName, new: TopicName) -> None:
        """Give all schedules of a topic to one that has none.  Raises StorageFull, NotDurable."""
        self._database.write("UPDATE schedules SET topic = ? WHERE topic = ?", (str(new), str(topic)))

    def delete(self, schedule_id: int) -> None:
        """Delete a schedule.  Raises StorageFull, NotDurable."""
        self._database.write("DELETE FROM schedules WHERE id = ?", (schedule_id,))
        self._counters.take("schedules")

    def delete_all(self, topic: TopicName) -> None:
        """Delete a topic's schedules.  Raises StorageFull, NotDurable."""
        if self._database.write("DELETE FROM schedules WHERE topic = ?", (str(topic),)).rowcount:
            self._counters.take("schedules")
