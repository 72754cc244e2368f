"""A data folder with topics, a folder for their tables, and what a reader finds in them."""
import contextlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.catalogue import catalogue
from geminga.storage.jobs.compacting.engines import LocalEngine
from geminga.storage.tables import exports
from geminga.storage.tables.commits import MESSAGES, REJECTED, ParquetTable, folder_of
from geminga.storage.tables.table_folders import LocalFolder

from ..jobs.topics import Topic

S = api.Schema
ORDER = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None},
    {"name": "price", "type": ["null", "double"], "default": None}]}


class Lake:
    """Topics in one data folder, which may be there already, and their tables in another."""

    def __init__(self, folder: Path):
        self.data_dir, self.target = folder / "data", folder / "tables"
        self.data_dir.mkdir(exist_ok=True)
        self.broker, self.told = "us", []
        self.place = LocalFolder(self.target)
        self.by_topic = {}
        with self._catalogue() as kept:
            for partition_id, text in kept.partitions.all():
                name = names.parse(text)
                self.by_topic.setdefault(name.base, []).append((partition_id, name))

    def topic(self, name="orders", partitions=0):
        """Make a topic, and return its partitions, to publish into."""
        full = names.parse(name)
        with self._catalogue() as kept:
            kept.topics.create(full.base, partitions)
            stored = [full.partition_name(number) for number in range(partitions)] or [full]
            ids = [kept.partitions.create(one) for one in stored]
            kept.commit()
        made = [Topic(self.data_dir, partition_id, 10 + 1000 * at) for at, partition_id in enumerate(ids)]
        self.by_topic.setdefault(full, []).extend(zip(ids, stored, strict=True))
        return made

    def forget(self, name="orders"):
        """Delete a topic as far as an export sees it."""
        self.by_topic.pop(names.parse(name))

    def schema(self, definition, kind=S.Json, name="orders", properties=None):
        """Add a version of the topic's schema, and return it as messages have it."""
        data = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
        topic = names.parse(name)
        with self._catalogue() as kept:
            version = len(kept.schemas.versions(topic))
            kept.schemas.add(topic, version, kind, b"", properties or {}, data)
            kept.commit()
        return version.to_bytes(8, "big")

    def _catalogue(self):
        return contextlib.closing(catalogue.open_catalogue(self.data_dir / "catalogue.sqlite"))

    def open_table(self, topic, content):
        return ParquetTable(self.place, topic, content, self.broker)

    def plan(self, content=MESSAGES):
        wanted = [exports.Wanted(topic, content, tuple(partitions)) for topic, partitions in self.by_topic.items()]
        return exports.plan(self.data_dir, wanted, self.open_table)

    def export(self, content=MESSAGES, engine=None, **more):
        """Export what is new, and return the reports."""
        planned = self.plan(content)
        exports.run(self.data_dir, planned, self.target / "_geminga-scratch", engine or LocalEngine(),
                    lambda *told: self.told.append(told), lambda *told: None, **more)
        return [one.report() for one in planned]

    def rows(self, name="orders", content=MESSAGES):
        """Return the rows that a reader finds, which looks for day=*/*.parquet and knows nothing of commits."""
        paths = sorted((self.target / folder_of(names.parse(name)) / content).glob("day=*/*.parquet"))
        if not paths:
            return []
        for path in paths:
            days = {one.date().isoformat() for one in pq.read_table(path, columns=["_publish_time"])[0].to_pylist()}
            assert days == {path.parent.name.removeprefix("day=")}
        tables = [pq.read_table(path, partitioning=None) for path in paths]
        return pa.concat_tables(tables, promote_options="permissive").to_pylist()

    def rejected(self, name="orders", content=MESSAGES):
        folder = self.target / folder_of(names.parse(name)) / (content + REJECTED)
        return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def position_of(row):
    return row["_ledger_id"], row["_entry_id"], row["_batch_index"]
