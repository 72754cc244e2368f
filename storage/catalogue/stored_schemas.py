"""Versions of topics' schemas as they are stored; `schemas/` has the rules for them."""
import json

from geminga.proto.names import TopicName
from geminga.storage.catalogue.database import Database, now_ms


class StoredSchemas:
    """Schema versions of topics in the catalogue, by the topics' base names.

    A version has a type (Schema.Type). Type None marks that it was deleted, with all versions before it.
    """

    def __init__(self, database: Database):
        self._database = database

    def versions(self, topic: TopicName) -> list[tuple[int, int | None, bytes]]:
        """Return (version, type, hash) of each schema version of a topic, in order.

        After a deletion the first version has type None. Raises StorageFull.
        """
        return self._database.read(
            "SELECT version, type, hash FROM schemas WHERE topic = ? ORDER BY version", (str(topic),))

    def version_of(self, topic: TopicName, kind: int, definition: bytes) -> int | None:
        """Return the schema version with exactly this type and definition, None if there is none.

        Raises StorageFull.
        """
        return self._database.integer(
            "SELECT version FROM schemas WHERE topic = ? AND type = ? AND length(data) = ? AND data = ?",
            (str(topic), kind, len(definition), definition))

    def total_bytes(self, topic: TopicName) -> int:
        """Return how many bytes the definitions of all schema versions of a topic have.  Raises StorageFull."""
        return self._database.integer("SELECT sum(length(data)) FROM schemas WHERE topic = ?", (str(topic),)) or 0

    def get(self, topic: TopicName, version: int) -> tuple[int | None, int, dict[str, str], bytes] | None:
        """Return (type, creation time in ms, properties, definition) of a schema version, None if there is none.

        Raises StorageFull.
        """
        rows = self._database.read(
            "SELECT type, created_ms, properties, data FROM schemas WHERE topic = ? AND version = ?",
            (str(topic), version))
        return next(((kind, created_ms, json.loads(text), data) for kind, created_ms, text, data in rows), None)

    def add(self, topic: TopicName, version: int, kind: int | None, hashed: bytes, properties: dict[str, str],
            definition: bytes) -> bool:
        """Add a schema version to a topic.  Returns False if another process has added one under this number.

        Raises StorageFull, NotDurable.
        """
        done = self._database.write(
            "INSERT OR IGNORE INTO schemas VALUES (?, ?, ?, ?, ?, ?, ?)",
            (str(topic), version, kind, hashed, now_ms(), json.dumps(properties), definition))
        return done.rowcount > 0

    def delete(self, topic: TopicName) -> int:
        """Delete all schema versions of a topic.  Returns the number that the next version gets.

        Raises StorageFull, NotDurable.
        """
        last = self._database.write("SELECT max(version) FROM schemas WHERE topic = ?", (str(topic),)).fetchone()[0]
        self.forget(topic)
        version = 0 if last is None else last + 1
        self._database.write(
            "INSERT INTO schemas VALUES (?, ?, NULL, x'', ?, '{}', x'')", (str(topic), version, now_ms()))
        return version

    def move(self, topic: TopicName, to: TopicName) -> None:
        """Give another topic all schema versions of a topic instead of its own.  Raises StorageFull, NotDurable."""
        self.forget(to)
        self._database.write("UPDATE schemas SET topic = ? WHERE topic = ?", (str(to), str(topic)))

    def forget(self, topic: TopicName) -> None:
        """Delete all schema versions of a topic, so that the next version gets number 0.

        Raises StorageFull, NotDurable.
        """
        self._database.write("DELETE FROM schemas WHERE topic = ?", (str(topic),))

    def forget_between(self, first: str, last: str) -> None:
        """Delete all schema versions of topics whose names sort between two strings.

        Raises StorageFull, NotDurable.
        """
        self._database.write("DELETE FROM schemas WHERE topic > ? AND topic < ?", (first, last))
