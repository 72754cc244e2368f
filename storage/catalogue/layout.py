"""The catalogue's tables: their definition, and the upgrade of files that older versions wrote."""
from collections.abc import Iterable

from geminga.storage.catalogue import checksums
from geminga.storage.catalogue.checksums import COLUMNS
from geminga.storage.catalogue.database import Database

VERSION = 9

# Statements end with semicolons: their comments must have none.
_TABLES = """
CREATE TABLE tenants (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE namespaces (name TEXT PRIMARY KEY, tenant TEXT NOT NULL REFERENCES tenants) WITHOUT ROWID;
-- Topics by base name: partitions = 0 if not partitioned.
CREATE TABLE topics (name TEXT PRIMARY KEY, namespace TEXT NOT NULL REFERENCES namespaces, partitions INTEGER NOT NULL,
                     created_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX topics_by_namespace ON topics (namespace);
-- Stored partitions: a topic that is not partitioned has one, under its own name.
CREATE TABLE partitions (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, topic_epoch INTEGER,
                         is_terminated INTEGER NOT NULL DEFAULT 0);
CREATE TABLE subscriptions (id INTEGER PRIMARY KEY AUTOINCREMENT, partition_id INTEGER NOT NULL REFERENCES partitions, \
name TEXT NOT NULL,
                            UNIQUE (partition_id, name));
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_POLICIES = """
-- scope: a tenant, a namespace (tenant/namespace), a topic's base name or a subscription (#id).  value: JSON.
CREATE TABLE policies (scope TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, \
PRIMARY KEY (scope, name)) WITHOUT ROWID;
"""
_PROPERTIES = """
-- Properties that users set, as one JSON object.  scope: as in policies, without tenants.
CREATE TABLE properties (scope TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_SCHEMAS = """
-- Versions of schemas, by the topic's base name.  type: a Schema.Type, NULL if this and all earlier ones are deleted.
CREATE TABLE schemas (topic TEXT NOT NULL, version INTEGER NOT NULL, type INTEGER, hash BLOB NOT NULL, \
created_ms INTEGER NOT NULL,
                      properties TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (topic, version));
"""
_LAYOUTS = """
-- Segments of scalable topics, see scalable_topics.py.  segments: JSON.
CREATE TABLE layouts (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, next_segment INTEGER NOT NULL, \
segments TEXT NOT NULL, is_deleted INTEGER NOT NULL) WITHOUT ROWID;
-- The last change of each scalable topic's layout, see scalable_topics.py.  change: JSON.
CREATE TABLE layout_changes (name TEXT PRIMARY KEY, change TEXT NOT NULL, is_done INTEGER NOT NULL) WITHOUT ROWID;
"""
_SCHEDULES = """
-- Schedules of topics, see stored_schedules.py.  timing, message: JSON.  metadata, payload: of the entry.
CREATE TABLE schedules (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, name TEXT NOT NULL, \
partition TEXT NOT NULL, since_ms INTEGER NOT NULL, is_paused INTEGER NOT NULL, timing TEXT NOT NULL, \
message TEXT NOT NULL, metadata BLOB NOT NULL, payload BLOB NOT NULL, UNIQUE (topic, name));
"""
_KEPT = """
-- Deleted topics and cleared backlogs that can be taken back, see kept_topics.py.  record: JSON.
CREATE TABLE kept_topics (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, partitions INTEGER NOT NULL, \
deleted_ms INTEGER NOT NULL, until_ms INTEGER NOT NULL, bytes INTEGER NOT NULL, is_given_up INTEGER NOT NULL, \
record TEXT NOT NULL);
"""
_KEPT_CURSORS = """
-- Cursors of cleared backlogs, by ids of the table subscriptions.  ledger, entry: the position cleared up to.
CREATE TABLE kept_cursors (id INTEGER PRIMARY KEY, kept_id INTEGER NOT NULL, partition_id INTEGER NOT NULL, \
ledger INTEGER NOT NULL, entry INTEGER NOT NULL);
CREATE INDEX kept_cursors_by_partition ON kept_cursors (partition_id);
CREATE INDEX kept_cursors_by_kept ON kept_cursors (kept_id);
"""
_INHERITED = """
-- What segments before a partition have stored, by producer.  missing: format.GAP_ROW, contents: format.CONTENT_ROW.
-- anew_from: the number of messages in the partition when the producer was found to count anew, NULL if it was not.
CREATE TABLE inherited (partition_id INTEGER NOT NULL, producer BLOB NOT NULL, through INTEGER NOT NULL, \
missing BLOB NOT NULL, contents BLOB NOT NULL, anew_from INTEGER, \
PRIMARY KEY (partition_id, producer)) WITHOUT ROWID;
"""
_SUMS = "CREATE TABLE sums (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID"
# {version: tables with a checksum since then}
_SINCE = {4: ("properties", "schemas"), 5: ("layouts", "layout_changes"), 6: ("schedules",), 7: ("kept_topics",),
          8: ("kept_cursors",), 9: ("inherited",)}


def version_of(database: Database) -> int:
    """Return the format version of the catalogue's file, 0 for an empty file.  Raises StorageFull."""
    return database.integer("PRAGMA user_version") or 0


def create(database: Database) -> None:
    """Create all tables of this program's version, in a transaction that stays open.

    Raises StorageFull, NotDurable.
    """
    database.connection.execute("PRAGMA journal_mode = WAL")
    for statement in (_TABLES + _POLICIES + _PROPERTIES + _SCHEMAS + _LAYOUTS + _SCHEDULES + _KEPT +
                      _KEPT_CURSORS + _INHERITED).split(";"):
        database.write(statement)
    database.write(_SUMS)
    _add_checksums(database, COLUMNS)
    database.write(f"PRAGMA user_version = {VERSION}")


def upgrade(database: Database) -> None:
    """Upgrade an older catalogue to this program's version, in a transaction that stays open.

    Two processes may try at once: the second finds the work done.  Raises StorageFull, NotDurable.
    """
    database.write("SELECT 1")       # begin the transaction: no other process writes from here on
    version = version_of(database)
    if version < 2:
        for statement in _POLICIES.split(";"):
            database.write(statement)
    if version < 3:
        database.write(_SUMS)
        _add_checksums(database, COLUMNS.keys() - {table for tables in _SINCE.values() for table in tables})
    if version < 4:
        for statement in (_PROPERTIES + _SCHEMAS).split(";"):
            database.write(statement)
        _add_checksums(database, _SINCE[4])
    if version < 5:
        for statement in _LAYOUTS.split(";"):
            database.write(statement)
        _add_checksums(database, _SINCE[5])
    if version < 6:
        for statement in _SCHEDULES.split(";"):
            database.write(statement)
        _add_checksums(database, _SINCE[6])
    if version < 7:
        for statement in _KEPT.split(";"):
            database.write(statement)
        _add_checksums(database, _SINCE[7])
    if version < 8:
        for statement in _KEPT_CURSORS.split(";"):
            database.write(statement)
        _add_checksums(database, _SINCE[8])
    if version < 9:
        for statement in _INHERITED.split(";"):
            database.write(statement)
        _add_checksums(database, _SINCE[9])
    database.write(f"PRAGMA user_version = {VERSION}")


def _add_checksums(database: Database, tables: Iterable[str]) -> None:
    """Give each of the tables a row in table `sums`, and triggers that keep this checksum up to date."""
    for table in tables:
        database.write("INSERT INTO sums VALUES (?, ?)", (table, checksums.sum_of(database.connection, table)))
        for trigger in checksums.triggers(table):
            database.write(trigger)
