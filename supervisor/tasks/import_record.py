"""The record of a table's import: a property of its topic, by which a repeated import knows what the first one began.

The broker's deduplication knows how far a producer has come, but forgets a name that is not used for hours, and knows
nothing of files.  So the property has the table's identity, and whether messages were stored.
"""
import json
from hashlib import blake2b
from typing import Any, NamedTuple

from geminga.proto.names import TopicName
from geminga.supervisor.tables.files import Table
from geminga.workers.pulsar_client.rest import Answer, Broker, Refused, topic_path

_PREFIX = "geminga.import."
_NOT_FOUND, _NOT_ALLOWED = 404, (401, 403)
Position = tuple[int, int]      # ledger and entry


class NotOnce(Exception):
    """An error: to go on might publish rows twice, or leave some out."""

    exit_status = 1


class Record(NamedTuple):
    """How an import began, and a number of rows that are surely stored."""

    files: int
    digest: str                     # of these files, as Table.chain has it
    options: str                    # digest of what chooses a row's message and partition
    partitions: int                 # of the topic, 0 if it is not partitioned
    ends: list[Position | None]     # the last entry of each partition before the first row
    done: int = 0                   # 0 if perhaps none, else a number of rows that are stored, from the first on


class Records:
    """Records of imports into a topic, kept by the broker."""

    def __init__(self, admin: Broker, topic: TopicName, name: str) -> None:
        self._admin, self._topic, self._key = admin, topic, _PREFIX + name
        self._path = f"/admin/v2/{topic_path(str(topic))}"

    def __repr__(self) -> str:
        return f"<Records {self._key} of {self._topic}>"

    def read(self) -> Record | None:
        """Return the import's record, None if it has not begun.  Raises Refused, NotReachable, NotOnce."""
        try:
            text = (self._ask("GET", "properties").value() or {}).get(self._key)
        except Refused as error:
            if error.status == _NOT_FOUND:      # the topic does not exist
                return None
            raise
        if text is None:
            return None
        try:
            record = Record(**json.loads(text))
            return record._replace(ends=[None if end is None else (end[0], end[1]) for end in record.ends])
        except (ValueError, TypeError, KeyError, IndexError):
            raise NotOnce(f"the property {self._key} of {self._topic} is not one that an import has written") from None

    def write(self, record: Record) -> None:
        """Store the import's record.  Raises Refused, NotReachable."""
        text = json.dumps(record._asdict(), separators=(",", ":"))
        self._ask("PUT", "properties", body={self._key: text})

    def deduplicate(self) -> bool:
        """Have the topic deduplicate, and return whether it did not before.  Raises Refused, NotReachable."""
        if self._ask("GET", "deduplicationEnabled", {"applied": True}).value() is True:
            return False
        self._ask("POST", "deduplicationEnabled", body=True)
        return True

    def _ask(self, method: str, what: str, query: dict[str, Any] | None = None, body: Any = None) -> Answer:
        try:
            return self._admin.ask(method, f"{self._path}/{what}", query, body)
        except Refused as error:
            if error.status not in _NOT_ALLOWED:
                raise
            raise Refused(error.status, f"{self._topic}: an import has its topic deduplicate and keeps a property of "
                                        f"it, which needs rights: {str(error).rpartition(' (HTTP')[0]}") from None

    def check(self, record: Record, table: Table, options: str, partitions: int) -> None:
        """Compare an import's record with what is to be imported now.  Raises NotOnce."""
        remedy = f"a new import with --producer NAME publishes all rows again (property {self._key} of the topic)"
        if record.files > len(table.files) or table.chain[record.files] != record.digest:
            raise NotOnce(f"{table.path}: its files are not those with which this import began ({record.files} files); "
                          f"only files that sort behind them may be added: {remedy}")
        if record.options != options:
            raise NotOnce(f"{table.path}: this import began with other options, or other columns: {remedy}")
        if record.partitions > partitions or (partitions > 0) != (record.partitions > 0):
            raise NotOnce(f"{self._topic} had {record.partitions} partitions when this import began, and has "
                          f"{partitions} now: {remedy}")


def digest_of(*what: object) -> str:
    """Return a digest of values by their texts."""
    return blake2b(repr(what).encode(errors="surrogateescape"), digest_size=8).hexdigest()
