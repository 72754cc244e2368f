"""Deleted topics and cleared backlogs that are kept for a while, so that they can be taken back.

A deletion that keeps its topic changes the catalogue only.  It removes the topic with its policies, properties, schemas
and schedules, and keeps these in one row.  Its stored partitions get names that no topic can have, `kept:ID:NAME`, so
nothing finds, opens or lists them, and their files and subscriptions stay as they are.  One transaction does all of it,
and one transaction takes it back, so that a kill leaves the topic either there or kept, and whole.  Those of a scalable
topic are its segments, and the row has its layout too, with the change that was under way, which goes on when the
topic is back.

A kept topic that is given up is marked first: from then on it cannot be taken back.  Then the owners of its partitions
delete these for good (open_topics/kept.py), and the row goes with the last one.

A cleared backlog has a row of the same table, for all partitions of its topic, and a cursor in each of them: what the
subscription had left before the clear (open_topics/cleared_backlogs.py).  The row of a cursor is committed before the
journal has the cursor, and deleted behind the end of it.  So a row without a cursor means nothing.
"""
import base64
import json
from typing import Any, NamedTuple

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import NameTaken, Refusal
from geminga.proto.names import TopicName
from geminga.storage.catalogue.database import Database
from geminga.storage.catalogue.ids import Counters
from geminga.storage.catalogue.partitions import PREFIX, Partitions
from geminga.storage.catalogue.scalable_topics import ScalableTopics
from geminga.storage.catalogue.topics import Topics

# Tables with rows of a topic, and the column that names it.  Each is kept and restored with all its columns.
_TABLES = {"policies": "scope", "properties": "scope", "schemas": "topic", "schedules": "topic", "layouts": "name",
           "layout_changes": "name"}


class KeptTopic(NamedTuple):
    """A deleted topic that is kept, or the backlog of one subscription that was cleared."""

    id: int
    topic: str               # base name
    deleted_ms: int
    until_ms: int            # when it is given up
    bytes: int               # of its files, when it was deleted; of a backlog: from its first message to its last
    is_given_up: int         # it cannot be taken back any more, and is being deleted for good
    partitions: int          # 0: it is not partitioned; of a scalable topic, too
    subscription: str        # of the backlog; "": it is a topic
    messages: int            # of the backlog


class KeptCursor(NamedTuple):
    """The cursor of a cleared backlog in one partition."""

    id: int
    kept_id: int             # of its KeptTopic
    subscription: str
    end: tuple[int, int]     # (ledger id, entry id): the last position that was cleared


class BacklogRows(NamedTuple):
    """Rows of the catalogue about cleared backlogs, in the order of their columns."""

    kept: list[tuple[Any, ...]]          # of kept_topics
    cursors: list[tuple[Any, ...]]       # of kept_cursors


# Rows of cleared backlogs and of their cursors, in the order of BacklogRows.
BACKLOG_ROWS = ("SELECT id, topic, partitions, deleted_ms, until_ms, bytes, is_given_up, record FROM kept_topics "
                "WHERE id IN (SELECT kept_id FROM kept_cursors)",
                "SELECT id, kept_id, partition_id, ledger, entry FROM kept_cursors")


class KeptTopics:
    """Deleted topics and cleared backlogs in the catalogue that are kept."""

    def __init__(self, database: Database, topics: Topics, scalable_topics: ScalableTopics, partitions: Partitions,
                 counters: Counters):
        self._database, self._topics, self._scalable = database, topics, scalable_topics
        self._partitions, self._counters = partitions, counters

    def all(self) -> list[KeptTopic]:
        """Return all that is kept, the longest deleted first.  Raises StorageFull."""
        rows = self._database.read(
            "SELECT id, topic, deleted_ms, until_ms, bytes, is_given_up, partitions, "
            "coalesce(json_extract(record, '$.subscription'), ''), coalesce(json_extract(record, '$.messages'), 0) "
            "FROM kept_topics ORDER BY deleted_ms, id")
        return [KeptTopic(*row) for row in rows]

    def find(self, number: int) -> KeptTopic | None:
        """Return what is kept with that id, None if there is nothing.  Raises StorageFull."""
        return next((one for one in self.all() if one.id == number), None)

    def stored(self, number: int) -> list[tuple[int, str]]:
        """Return (id, former name) of the stored partitions of a kept topic.  Raises StorageFull."""
        prefix = f"{PREFIX}{number}:"
        return [(partition_id, name.removeprefix(prefix)) for partition_id, name in self._database.read(
            "SELECT id, name FROM partitions WHERE name > ? AND name < ? ORDER BY id", (prefix, prefix[:-1] + ";"))]

    def version(self) -> int:
        """Return a number that changes whenever something was kept, taken back or given up.  Raises StorageFull."""
        return self._counters.value("kept")

    # -- changes

    def keep(self, topic: TopicName, parts: list[TopicName], *, now_ms: int, until_ms: int, size: int) -> int:
        """Delete a topic from everything but its row here, in the open transaction, and return the row's id.

        topic: a base name.  parts: its partitions or segments.  size: bytes of its files.  Raises Refusal, StorageFull,
        NotDurable.
        """
        base, count = str(topic), self._topics.partition_count(topic) or 0
        scopes = list(dict.fromkeys([base, *map(str, parts)]))
        record = {"created_ms": self._topics.created_ms(topic), "rows": {
            table: [_as_json(row) for scope in (scopes if column == "scope" else [base])
                    for row in self._database.read(f"SELECT * FROM {table} WHERE {column} = ?", (scope,))]
            for table, column in _TABLES.items()}}
        number = self._database.insert(
            "INSERT INTO kept_topics (topic, partitions, deleted_ms, until_ms, bytes, is_given_up, record) "
            "VALUES (?, ?, ?, ?, ?, 0, ?)", (base, count, now_ms, until_ms, size, json.dumps(record)))
        for name in parts:
            self._database.write("UPDATE partitions SET name = ? WHERE name = ?",
                                 (f"{PREFIX}{number}:{name}", str(name)))
        (self._scalable.begin_deletion if topic.is_scalable else self._topics.delete)(topic)
        self._counters.take("kept")
        return number

    def take_back(self, one: KeptTopic, now_ms: int) -> None:
        """Bring a kept topic back, in the open transaction.

        Its schedules go on from now.  Raises NameTaken if there is a topic of its name, or of a part of it.  Raises
        Refusal: it was given up, its namespace was deleted, or a scalable topic is still being deleted.  Raises
        StorageFull, NotDurable.
        """
        with self._topics.transaction():
            text = self._database.value("SELECT record FROM kept_topics WHERE id = ? AND NOT is_given_up", (one.id,))
            if text is None:
                raise Refusal(api.TopicNotFound, f"{one.topic} is not kept any more")
            topic, record, stored = names.parse(one.topic), json.loads(text), self.stored(one.id)
            if topic.is_scalable:
                self._scalable.refuse_being_deleted(topic)
                self._topics.refuse_migrating(topic.regular)
            parts = [names.parse(name) for _, name in stored]
            if any(self._partitions.find(part) is not None for part in parts) \
                    or self._is_former_taken(topic, parts, record) \
                    or not self._topics.create(topic, one.partitions):
                raise NameTaken(f"There is a topic {topic} again: delete that one, then take back the older one by "
                                "its id")
            self._topics.set_created_ms(topic, record["created_ms"])
            for partition_id, name in stored:
                self._database.write("UPDATE partitions SET name = ? WHERE id = ?", (name, partition_id))
            for table, rows in record["rows"].items():
                for row in map(_from_json, rows):
                    self._database.write(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", tuple(row))
            if topic.is_scalable:
                self._scalable.renew(topic)
            self._database.write("UPDATE schedules SET since_ms = max(since_ms + 1, ?) WHERE topic = ?",
                                 (now_ms, one.topic))
            self._database.write("DELETE FROM kept_topics WHERE id = ?", (one.id,))
            for counter in ("kept", "rights", "schedules"):
                self._counters.take(counter)

    def _is_former_taken(self, topic: TopicName, parts: list[TopicName], record: dict[str, Any]) -> bool:
        """Whether a regular topic has the name that a scalable one had before it was made so, or that of a part."""
        was_regular = any('"persistent://' in segments for _, _, _, segments, _ in record["rows"].get("layouts", ()))
        return was_regular and (self._topics.partition_count(topic.regular) is not None
                                or any(map(self._topics.exists, parts)))

    def give_up(self, number: int) -> None:
        """Give up what is kept: it cannot be taken back any more.  Raises StorageFull, NotDurable."""
        self._database.write("UPDATE kept_topics SET is_given_up = 1 WHERE id = ?", (number,))
        self._counters.take("kept")

    def forget_if_gone(self, number: int) -> None:
        """Delete the row of what was given up and has no partition and no cursor any more.

        Raises StorageFull, NotDurable.
        """
        if not self.stored(number) and not self.places(number):
            self._database.write("DELETE FROM kept_topics WHERE id = ? AND is_given_up", (number,))
            self._counters.take("kept")

    # -- cleared backlogs

    def keep_backlog(self, partition: TopicName, subscription: str, *, end: tuple[int, int], now_ms: int, until_ms: int,
                     size: int, messages: int) -> KeptCursor:
        """Keep what a subscription of a partition has left up to `end`; return the cursor that says so, to be made.

        now_ms: when the clear was asked for, which joins partitions or segments of a topic.  size, messages: of the
        backlog.  Raises Refusal, StorageFull, NotDurable.
        """
        base = self._topics.whole(partition)
        with self._topics.transaction():
            stored = self._partitions.find(partition)
            assert stored is not None, partition
            record, names_it = {"subscription": subscription}, "topic = ? AND deleted_ms = ? AND NOT is_given_up"
            number = self._database.integer(
                f"SELECT id FROM kept_topics WHERE {names_it} AND json_extract(record, '$.subscription') = ?",
                (str(base), now_ms, subscription)) or self._database.insert(
                "INSERT INTO kept_topics (topic, partitions, deleted_ms, until_ms, bytes, is_given_up, record) "
                "VALUES (?, ?, ?, ?, 0, 0, ?)",
                (str(base), self._topics.partition_count(base) or 0, now_ms, until_ms, json.dumps(record)))
            self._database.write(
                "UPDATE kept_topics SET bytes = bytes + ?, record = json_set(record, '$.messages', "
                "coalesce(json_extract(record, '$.messages'), 0) + ?) WHERE id = ?", (size, messages, number))
            cursor_id = self._partitions.subscriptions.new_id(stored[0])
            self._database.write("INSERT INTO kept_cursors VALUES (?, ?, ?, ?, ?)",
                                 (cursor_id, number, stored[0], *end))
            self._counters.take("kept")
        return KeptCursor(cursor_id, number, subscription, end)

    def cursors(self, partition_id: int) -> list[KeptCursor]:
        """Return the cursors of a partition's cleared backlogs, the first cleared first.  Raises StorageFull."""
        rows = self._database.read(
            "SELECT kept_cursors.id, kept_id, json_extract(record, '$.subscription'), ledger, entry FROM kept_cursors "
            "JOIN kept_topics ON kept_id = kept_topics.id WHERE partition_id = ? ORDER BY kept_cursors.id",
            (partition_id,))
        return [KeptCursor(number, kept_id, name, (ledger, entry)) for number, kept_id, name, ledger, entry in rows]

    def places(self, number: int) -> list[tuple[int, str]]:
        """Return (cursor id, partition's name) of a cleared backlog.  Raises StorageFull."""
        return self._database.read(
            "SELECT kept_cursors.id, name FROM kept_cursors JOIN partitions ON partition_id = partitions.id "
            "WHERE kept_id = ? ORDER BY kept_cursors.id", (number,))

    def backlog_rows(self) -> BacklogRows:
        """Return the rows of all cleared backlogs and of their cursors, for a backup.  Raises StorageFull."""
        return BacklogRows(*map(self._database.read, BACKLOG_ROWS))

    def put_back(self, rows: BacklogRows, partitions: set[int]) -> None:
        """Insert the rows that are missing, of these partitions, into a backup's or standby's copy.

        Ids of both tables are never given twice.  Raises StorageFull, NotDurable.
        """
        needed = set()
        for cursor in rows.cursors:
            if cursor[2] in partitions:
                self._database.write("INSERT OR IGNORE INTO kept_cursors VALUES (?, ?, ?, ?, ?)", tuple(cursor))
                needed.add(cursor[1])
        for kept in rows.kept:
            if kept[0] in needed:
                self._database.write(
                    "INSERT OR IGNORE INTO kept_topics (id, topic, partitions, deleted_ms, until_ms, bytes, "
                    "is_given_up, record) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", tuple(kept))
        if needed:
            self._counters.take("kept")

    def forget_cursor(self, cursor: KeptCursor) -> None:
        """Delete the row of a cursor that is not needed any more, and the backlog's with its last one.

        Raises StorageFull, NotDurable.
        """
        self._database.write("DELETE FROM kept_cursors WHERE id = ?", (cursor.id,))
        self._database.write(
            "DELETE FROM kept_topics WHERE id = ? AND NOT EXISTS (SELECT 1 FROM kept_cursors WHERE kept_id = ?)",
            (cursor.kept_id, cursor.kept_id))
        self._counters.take("kept")


def former_name(name: str) -> str:
    """Return the name of a stored partition, without what the deletion of its topic has put before it."""
    return name.split(":", 2)[2] if name.startswith(PREFIX) else name


def _as_json(row: tuple[Any, ...]) -> list[Any]:
    return [{"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value for value in row]


def _from_json(row: list[Any]) -> list[Any]:
    return [base64.b64decode(value["bytes"]) if isinstance(value, dict) else value for value in row]
