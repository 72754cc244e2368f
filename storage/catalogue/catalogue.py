"""The catalogue: what is small and relational, in SQLite, shared by all processes.

Every process opens it by itself; writers take turns.  A reader asks `changed` (one pragma, no I/O) whether anybody has
committed since it last looked.  What is in a committed transaction is on disk.

Ids of partitions, subscriptions and ledgers are handed out once and never again: AUTOINCREMENT for the first two, and for
ledgers a counter from which each owner takes a block at a time.  That counter, and the one in generated names of producers, are never
behind the clock: when an older copy of the data folder is put back, what was given out since the copy was made is not given out again.
Nor are entry ids in the ledgers that such a copy has: `put_back` closes these.

SQLite does not notice a bit that is wrong within a value.  So of each table there is the sum of a hash of its rows, which triggers
keep in the same transaction; geminga verify sums up again.
"""
import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.options import StorageOptions

LEDGER_BLOCK = 100           # ledger ids taken at a time; what is left of a block at a crash is never used
IDS_PER_SECOND = 1_024       # more than anybody takes for long, so that the clock is ahead of the counters
_EPOCH_S = 1_735_689_600     # 2025-01-01 UTC
VERSION = 4

_TABLES = """
CREATE TABLE tenants (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE namespaces (name TEXT PRIMARY KEY, tenant TEXT NOT NULL REFERENCES tenants) WITHOUT ROWID;
-- A topic as its users name it: partitions = 0 when it is not partitioned.
CREATE TABLE topics (name TEXT PRIMARY KEY, namespace TEXT NOT NULL REFERENCES namespaces, partitions INTEGER NOT NULL,
                     created_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX topics_by_namespace ON topics (namespace);
-- What is stored: a topic that is not partitioned, or one partition.
CREATE TABLE partitions (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, topic_epoch INTEGER,
                         is_terminated INTEGER NOT NULL DEFAULT 0);
CREATE TABLE subscriptions (id INTEGER PRIMARY KEY AUTOINCREMENT, partition_id INTEGER NOT NULL REFERENCES partitions, name TEXT NOT NULL,
                            UNIQUE (partition_id, name));
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_POLICIES = """
-- What somebody set: of a tenant, a namespace (tenant/namespace), a topic by its base name, a subscription (#id).  Values are JSON.
CREATE TABLE policies (scope TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (scope, name)) WITHOUT ROWID;
"""
_PROPERTIES = """
-- What users note, as one JSON object: of a namespace (tenant/namespace), of a topic by its base name, of a subscription (#id).
CREATE TABLE properties (scope TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_SCHEMAS = """
-- Versions of a topic's schema, by its base name.  type is a Schema.Type, or NULL: deleted, and those before are gone.
CREATE TABLE schemas (topic TEXT NOT NULL, version INTEGER NOT NULL, type INTEGER, hash BLOB NOT NULL, created_ms INTEGER NOT NULL,
                      properties TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (topic, version));
"""
_SUMS = "CREATE TABLE sums (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID"
COLUMNS = {          # of the tables that are summed up
    "tenants": ("name",), "namespaces": ("name", "tenant"), "topics": ("name", "namespace", "partitions", "created_ms"),
    "partitions": ("id", "name", "topic_epoch", "is_terminated"), "subscriptions": ("id", "partition_id", "name"),
    "counters": ("name", "value"), "policies": ("scope", "name", "value"), "properties": ("scope", "value"),
    "schemas": ("topic", "version", "type", "hash", "created_ms", "properties", "data")}
_SINCE = {4: ("properties", "schemas")}      # tables that a version added to them
# Policies that say who may do what: of tenants, namespaces and topics.
ADMIN_ROLES, PERMISSIONS, SUBSCRIPTION_PERMISSIONS, AUTH_MODE = RIGHTS = (
    "adminRoles", "permissions", "subscriptionPermissions", "subscriptionAuthMode")
_Values: TypeAlias = tuple[Any, ...]


class CatalogueError(Exception):
    """The catalogue cannot be used: of a newer version, or not a catalogue."""


class Catalogue:
    """One process's connection.  Writing happens in a transaction that `commit` ends; reading sees what is committed."""

    OPTIONS = "/options"      # scope of the options that were changed while the broker ran

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, *, is_read_only: bool = False):
        self.path, self._clock = path, clock
        address = f"{path.absolute().as_uri()}?mode=ro" if is_read_only else path
        self._db = sqlite3.connect(address, isolation_level=None, timeout=30, check_same_thread=False, uri=is_read_only)
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.create_function("with_row", -1, with_row, deterministic=True)
        self._seen = -1, -1
        self._ledger_ids: Iterator[int] = iter(())

    def close(self) -> None:
        self._db.close()

    def version(self) -> tuple[int, int]:
        """Another one whenever another process has committed, or this one has written."""
        return self._db.execute("PRAGMA data_version").fetchone()[0], self._db.total_changes

    def changed(self) -> bool:
        """Whether there is another version since the last time this was asked."""
        seen = self.version()
        if seen == self._seen:
            return False
        self._seen = seen
        return True

    # -- transactions

    def _write(self, statement: str, values: _Values = ()) -> sqlite3.Cursor:
        """Raises StorageFull; NotDurable when what the transaction had before is undone as well."""
        was_open = self._db.in_transaction
        try:
            if not was_open:
                self._db.execute("BEGIN IMMEDIATE")
            return self._db.execute(statement, values)
        except sqlite3.OperationalError as error:
            if was_open and not self._db.in_transaction:
                raise NotDurable(f"{self.path}: {error}") from error
            raise StorageFull(f"{self.path}: {error}") from error

    @property
    def is_changing(self) -> bool:
        """Whether something is written that is not committed."""
        return self._db.in_transaction

    def commit(self) -> None:
        """What was written since the last commit is on disk.  Raises NotDurable, and it is undone then."""
        if not self._db.in_transaction:
            return
        try:
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise NotDurable(f"{self.path}: {error}") from error

    def undo(self) -> None:
        """What was written since the last commit never was."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _read(self, statement: str, values: _Values = ()) -> list[tuple[Any, ...]]:
        """Raises StorageFull."""
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            raise StorageFull(f"{self.path}: {error}") from error

    def _one(self, statement: str, values: _Values = ()) -> Any:
        rows = self._read(statement, values)
        return rows[0][0] if rows else None

    def _integer(self, statement: str, values: _Values = ()) -> int | None:
        number: int | None = self._one(statement, values)
        return number

    def _insert(self, statement: str, values: _Values) -> int:
        """Return the id of the new row.  Raises StorageFull."""
        row_id = self._write(statement, values).lastrowid
        assert row_id is not None
        return row_id

    def _column(self, statement: str, values: _Values = ()) -> list[Any]:
        return [row[0] for row in self._read(statement, values)]

    # -- tenants, namespaces, topics

    def tenants(self) -> list[str]:
        return self._column("SELECT name FROM tenants ORDER BY name")

    def has_tenant(self, name: str) -> bool:
        return self._one("SELECT 1 FROM tenants WHERE name = ?", (name,)) is not None

    def create_tenant(self, name: str) -> None:
        self._write("INSERT OR IGNORE INTO tenants VALUES (?)", (name,))

    def delete_tenant(self, name: str) -> None:
        """One without namespaces; its policies go too."""
        self._write("DELETE FROM tenants WHERE name = ?", (name,))
        self._forget(name)

    def create_namespace(self, name: str) -> None:
        """The namespace and its tenant exist."""
        tenant = name.split("/", 1)[0]
        self.create_tenant(tenant)
        self._write("INSERT OR IGNORE INTO namespaces VALUES (?, ?)", (name, tenant))

    def delete_namespace(self, name: str) -> bool:
        """Its policies go too, and what was said of topics that are not there; False when it has topics."""
        try:
            self._write("DELETE FROM namespaces WHERE name = ?", (name,))
        except sqlite3.IntegrityError:
            return False
        self._forget(name)
        for domain in names.DOMAINS:
            first, last = f"{domain}://{name}/", f"{domain}://{name}0"       # 0 follows /
            self._write("DELETE FROM schemas WHERE topic > ? AND topic < ?", (first, last))
            self._forget(*self._column("SELECT scope FROM policies WHERE scope > ? AND scope < ?", (first, last)))
        return True

    def namespaces(self, tenant: str) -> list[str]:
        return self._column("SELECT name FROM namespaces WHERE tenant = ? ORDER BY name", (tenant,))

    def has_namespace(self, name: str) -> bool:
        return self._one("SELECT 1 FROM namespaces WHERE name = ?", (name,)) is not None

    def partition_count(self, topic: TopicName) -> int | None:
        """Of a topic by its base name: 0 when it is not partitioned, None when there is no such topic."""
        return self._integer("SELECT partitions FROM topics WHERE name = ?", (str(topic),))

    def has_topic(self, topic: TopicName) -> bool:
        """Whether the topic, or the partitioned one of which it is a partition, was made."""
        return self.partition_count(topic) == 0 or 0 <= topic.partition < (self.partition_count(topic.base) or 0)

    def create_topic(self, topic: TopicName, partitions: int) -> bool:
        """False when there is one already.  Raises Refusal when the namespace has just been deleted."""
        was_open = self.is_changing
        try:
            done = self._write("INSERT OR IGNORE INTO topics VALUES (?, ?, ?, ?)", (str(topic), topic.namespace, partitions, now_ms()))
        except sqlite3.IntegrityError:
            if not was_open:      # nobody else waits for what is not going to be committed
                self.undo()
            raise Refusal(api.TopicNotFound, f"Namespace {topic.namespace} does not exist") from None
        if done.rowcount:
            self.take("topics")
        return done.rowcount > 0

    def delete_topic(self, topic: TopicName, *, for_now: bool = False) -> None:
        """Its policies and schemas go too, and who was given rights to it or its partitions; for_now: these stay."""
        found = self._column("SELECT scope FROM policies WHERE scope >= ? AND scope < ?", (f"{topic}-partition-", f"{topic}-partition."))
        self._forget(str(topic), *(scope for scope in found if names.parse(scope).base == topic), rights=not for_now)
        self.forget_schemas(topic)
        if self._write("DELETE FROM topics WHERE name = ?", (str(topic),)).rowcount:
            self.take("topics")

    def topics_version(self) -> int:
        """Another one whenever topics have come or gone."""
        return self._integer("SELECT value FROM counters WHERE name = 'topics'") or 0

    def created_ms(self, topic: TopicName) -> int | None:
        """When the topic of that base name was created; None when there is none."""
        return self._integer("SELECT created_ms FROM topics WHERE name = ?", (str(topic),))

    def forget_live_topics(self) -> None:
        """Topics that keep nothing are gone when the broker was; those that are partitioned were asked for, and stay."""
        gone = "SELECT name FROM topics WHERE name LIKE 'non-persistent:%' AND partitions = 0"
        self._write(f"DELETE FROM policies WHERE scope IN ({gone}) AND name NOT IN (?, ?, ?, ?)", RIGHTS)
        self._write(f"DELETE FROM properties WHERE scope IN ({gone})")
        self._write(f"DELETE FROM schemas WHERE topic IN ({gone})")
        self._write(f"DELETE FROM topics WHERE name IN ({gone})")

    def topics(self, namespace: str) -> list[str]:
        """Complete names, a partitioned topic by each of its partitions, sorted."""
        rows = self._db.execute("SELECT name, partitions FROM topics WHERE namespace = ? ORDER BY name", (namespace,))
        return [part for name, count in rows for part in ([name] if count == 0 else [f"{name}-partition-{n}" for n in range(count)])]

    def all_topics(self) -> list[str]:
        """Base names, of all namespaces, sorted."""
        return self._column("SELECT name FROM topics ORDER BY name")

    def topic_count(self, namespace: str) -> int:
        """Topics and partitions, but those that brokers use among themselves."""
        others = [*(f"*/{name}" for name in names.SYSTEM_TOPICS), f"*{names.SYSTEM_SUFFIX}"]
        left_out = " AND name NOT GLOB ?" * len(others)
        statement = f"SELECT SUM(MAX(partitions, 1)) FROM topics WHERE namespace = ?{left_out}"
        return self._integer(statement, (namespace, *others)) or 0

    def base_topics(self, namespace: str) -> list[str]:
        """Base names, sorted."""
        return self._column("SELECT name FROM topics WHERE namespace = ? ORDER BY name", (namespace,))

    def partitioned_topics(self, namespace: str) -> list[str]:
        """Base names, sorted."""
        return self._column("SELECT name FROM topics WHERE namespace = ? AND partitions > 0 ORDER BY name", (namespace,))

    # -- partitions and subscriptions

    def partition(self, name: TopicName) -> tuple[int, int | None] | None:
        """(id, topic epoch) of a stored partition, None when nothing was stored under the name yet."""
        row: tuple[int, int | None] | None = self._db.execute(
            "SELECT id, topic_epoch FROM partitions WHERE name = ?", (str(name),)).fetchone()
        return row

    def partition_total(self) -> int:
        """How many there are."""
        return self._integer("SELECT count(*) FROM partitions") or 0

    def partition_names(self) -> list[str]:
        return self._column("SELECT name FROM partitions")

    def partitions(self) -> list[tuple[int, str]]:
        """(id, name) of all that are stored."""
        return self._read("SELECT id, name FROM partitions ORDER BY id")

    def newest_partition(self) -> int:
        """The highest id given to a partition; those that come later get higher ones."""
        return self._integer("SELECT seq FROM sqlite_sequence WHERE name = 'partitions'") or 0

    def create_partition(self, name: TopicName) -> int:
        return self._insert("INSERT INTO partitions (name) VALUES (?)", (str(name),))

    def delete_partition(self, partition_id: int) -> None:
        """Its subscriptions go too, and the topic when that is not partitioned."""
        for subscription_id in self._column("SELECT id FROM subscriptions WHERE partition_id = ?", (partition_id,)):
            self.delete_subscription(subscription_id)
        name = self._one("SELECT name FROM partitions WHERE id = ?", (partition_id,))
        if name is not None:
            self._write("DELETE FROM partitions WHERE id = ?", (partition_id,))
            self.delete_topic(names.parse(name))

    def set_topic_epoch(self, partition_id: int, epoch: int) -> None:
        self._write("UPDATE partitions SET topic_epoch = ? WHERE id = ?", (epoch, partition_id))

    def is_terminated(self, partition_id: int) -> bool:
        return bool(self._one("SELECT is_terminated FROM partitions WHERE id = ?", (partition_id,)))

    def terminate(self, partition_id: int) -> None:
        self._write("UPDATE partitions SET is_terminated = 1 WHERE id = ?", (partition_id,))

    def set_partition_count(self, topic: TopicName, partitions: int) -> None:
        self._write("UPDATE topics SET partitions = ? WHERE name = ?", (partitions, str(topic)))
        self.take("topics")

    def subscriptions(self, partition_id: int) -> dict[str, int]:
        """{name: id} of the durable ones."""
        return dict(self._db.execute("SELECT name, id FROM subscriptions WHERE partition_id = ?", (partition_id,)))

    def create_subscription(self, partition_id: int, name: str) -> int:
        """In place of one whose owner was killed before its journal knew of it: that was never answered."""
        if (before := self._one("SELECT id FROM subscriptions WHERE partition_id = ? AND name = ?", (partition_id, name))) is not None:
            self.delete_subscription(before)
        return self._insert("INSERT INTO subscriptions (partition_id, name) VALUES (?, ?)", (partition_id, name))

    def delete_subscription(self, subscription_id: int) -> None:
        self._forget(_scope_text(subscription_id), rights=False)
        self._write("DELETE FROM subscriptions WHERE id = ?", (subscription_id,))

    def replicated_subscriptions(self, partition_id: int) -> set[int]:
        """Ids of those that are to be replicated."""
        return set(self._column("SELECT subscriptions.id FROM subscriptions JOIN policies ON scope = '#' || subscriptions.id "
                                "WHERE partition_id = ? AND policies.name = 'replicated'", (partition_id,)))

    def set_replicated(self, subscription_id: int, is_replicated: bool) -> None:
        self.set_policy(_scope_text(subscription_id), "replicated", is_replicated or None)

    # -- policies

    def policies(self, scope: str) -> dict[str, Any]:
        """{name: value} of what was set there."""
        return {name: json.loads(value) for name, value in self._db.execute("SELECT name, value FROM policies WHERE scope = ?", (scope,))}

    def set_policy(self, scope: str, name: str, value: Any) -> None:
        """None takes it away."""
        if value is None:
            self._write("DELETE FROM policies WHERE scope = ? AND name = ?", (scope, name))
        else:
            self._write("INSERT INTO policies VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                        (scope, name, json.dumps(value)))
        if name in RIGHTS:
            self.take("rights")

    def all_policies(self, name: str) -> dict[str, Any]:
        """{namespace or topic: value} of those that have that policy."""
        return {scope: json.loads(value)
                for scope, value in self._read("SELECT scope, value FROM policies WHERE name = ? ORDER BY scope", (name,))}

    def topics_policies(self, namespace: str, name: str) -> dict[str, Any]:
        """{topic or partition: value} of those of the namespace that have that policy."""
        return {scope: json.loads(value) for domain in names.DOMAINS for scope, value in self._read(
            "SELECT scope, value FROM policies WHERE scope > ? AND scope < ? AND name = ?",
            (f"{domain}://{namespace}/", f"{domain}://{namespace}0", name))}

    def rights_version(self) -> int:
        """Another one whenever it was changed who may do what."""
        return self._one("SELECT value FROM counters WHERE name = 'rights'") or 0

    def _forget(self, *scopes: str, rights: bool = True) -> None:
        """What was said of them is gone, but for who may do what with them unless rights."""
        kept = () if rights else RIGHTS
        for scope in scopes:
            gone = self._write(f"DELETE FROM policies WHERE scope = ? AND name NOT IN ({', '.join('?' * len(kept))})", (scope, *kept))
            if rights and gone.rowcount:
                self.take("rights")
            self._write("DELETE FROM properties WHERE scope = ?", (scope,))

    def with_changes(self, options: StorageOptions) -> StorageOptions:
        """These, with what was changed since the broker was configured."""
        known = {field.name for field in fields(StorageOptions)}
        changes: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                   for name, value in self.policies(self.OPTIONS).items() if name in known}
        return replace(options, **changes)

    # -- properties

    def properties(self, scope: str | int) -> dict[str, str]:
        """Of a namespace, of a topic by its base name, or of a subscription by its id."""
        properties: dict[str, str] = json.loads(
            self._one("SELECT value FROM properties WHERE scope = ?", (_scope_text(scope),)) or "{}")
        return properties

    def subscriptions_properties(self, partition_id: int) -> dict[int, dict[str, str]]:
        """{id: properties} of those that have some."""
        rows = self._read("SELECT subscriptions.id, value FROM subscriptions JOIN properties ON scope = '#' || subscriptions.id "
                          "WHERE partition_id = ?", (partition_id,))
        return {subscription_id: json.loads(value) for subscription_id, value in rows}

    def set_properties(self, scope: str | int, found: dict[str, str]) -> None:
        """In place of those that there were."""
        self._write("DELETE FROM properties WHERE scope = ?", (_scope_text(scope),))
        if found:
            self._write("INSERT INTO properties VALUES (?, ?)", (_scope_text(scope), json.dumps(found)))

    # -- schemas

    def schema_versions(self, topic: TopicName) -> list[tuple[int, int | None, bytes]]:
        """(version, type, hash) of a topic by its base name, in order; after a deletion the first has type None."""
        return self._read("SELECT version, type, hash FROM schemas WHERE topic = ? ORDER BY version", (str(topic),))

    def schema_version(self, topic: TopicName, kind: int, data: bytes) -> int | None:
        """The version that is that to the byte."""
        return self._integer("SELECT version FROM schemas WHERE topic = ? AND type = ? AND length(data) = ? AND data = ?",
                             (str(topic), kind, len(data), data))

    def schema_bytes(self, topic: TopicName) -> int:
        """Of all its versions."""
        return self._one("SELECT sum(length(data)) FROM schemas WHERE topic = ?", (str(topic),)) or 0

    def schema(self, topic: TopicName, version: int) -> tuple[int | None, int, dict[str, str], bytes] | None:
        """(type, when it was made, properties, definition); None when there is no such version."""
        found = self._read("SELECT type, created_ms, properties, data FROM schemas WHERE topic = ? AND version = ?", (str(topic), version))
        return next(((kind, made, json.loads(text), data) for kind, made, text, data in found), None)

    def add_schema(self, topic: TopicName, version: int, kind: int | None, hashed: bytes, properties: dict[str, str],
                   data: bytes) -> bool:
        """False when somebody else was quicker to add one under that version."""
        done = self._write("INSERT OR IGNORE INTO schemas VALUES (?, ?, ?, ?, ?, ?, ?)",
                           (str(topic), version, kind, hashed, now_ms(), json.dumps(properties), data))
        return done.rowcount > 0

    def delete_schema(self, topic: TopicName) -> int:
        """All versions are gone, and those that come go on behind the number returned."""
        last = self._write("SELECT max(version) FROM schemas WHERE topic = ?", (str(topic),)).fetchone()[0]
        self.forget_schemas(topic)
        version = 0 if last is None else last + 1
        self._write("INSERT INTO schemas VALUES (?, ?, NULL, x'', ?, '{}', x'')", (str(topic), version, now_ms()))
        return version

    def forget_schemas(self, topic: TopicName) -> None:
        """All versions are gone, and those that come begin with 0."""
        self._write("DELETE FROM schemas WHERE topic = ?", (str(topic),))

    # -- counters

    def next_ledger_id(self) -> int:
        """Never given out before, nor ever again.  Raises StorageFull, NotDurable."""
        for ledger_id in self._ledger_ids:
            return ledger_id
        is_alone = not self.is_changing
        last = self._take_ahead("ledgers", LEDGER_BLOCK)
        try:
            self.commit()      # before the first of them names a file
        except NotDurable as error:
            if is_alone:
                raise StorageFull(str(error)) from error
            raise
        self._ledger_ids = iter(range(last - LEDGER_BLOCK + 1, last + 1))
        return next(self._ledger_ids)

    def put_back(self) -> None:
        """The data folder is a copy that was put back: ledgers that it has grow no more.

        The process that has served them may have gone on, and given out message ids in them that the copy does not know.
        """
        last = self._take_ahead("ledgers", 1)
        self._write("INSERT INTO counters VALUES ('put back', ?1) ON CONFLICT DO UPDATE SET value = ?1", (last,))

    def last_closed_ledger(self) -> int:
        """No ledger up to that id may grow any more; 0: the folder was never put back."""
        return self._integer("SELECT value FROM counters WHERE name = 'put back'") or 0

    def producer_name(self) -> str:
        """Never given out before, nor ever again.  Part of the open transaction."""
        return f"geminga-{self._take_ahead('producers', 1)}"

    def _take_ahead(self, counter: str, count: int) -> int:
        """As take, and never behind the clock."""
        floor = max(0, int((self._clock() - _EPOCH_S) * IDS_PER_SECOND))
        self._write("INSERT INTO counters VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = max(value, ?2)", (counter, floor))
        return self.take(counter, count)

    def take(self, counter: str, count: int = 1) -> int:
        """Raise the counter by count; returns its new value.  Part of the open transaction."""
        value: int = self._write(
            "INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value RETURNING value",
            (counter, count)).fetchone()[0]
        return value


def _scope_text(scope: str | int) -> str:
    return f"#{scope}" if isinstance(scope, int) else scope


def open_catalogue(path: Path, clock: Callable[[], float] = time.time) -> Catalogue:
    """The catalogue at path, made when there is none: by the supervisor, before there are others.  Raises CatalogueError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        catalogue = Catalogue(path, clock)
        found = catalogue._one("PRAGMA user_version")
        if found == 0:
            _create(catalogue)
        elif found > VERSION:
            raise CatalogueError(f"{path} has format version {found}; this program reads {VERSION}")
        elif found < VERSION:
            _upgrade(catalogue)
    except sqlite3.DatabaseError as error:
        raise CatalogueError(f"{path}: {error}") from error
    return catalogue


def open_to_read(path: Path) -> Catalogue:
    """The catalogue that there is, for programs beside the broker, which write nothing into it.  Raises CatalogueError."""
    try:
        catalogue = Catalogue(path, is_read_only=True)
        found = catalogue._db.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise CatalogueError(f"{path}: {error}") from error
    if found != VERSION:
        raise CatalogueError(f"{path} has format version {found}; this program reads {VERSION}")
    return catalogue


def _create(catalogue: Catalogue) -> None:
    """All of it or nothing."""
    catalogue._db.execute("PRAGMA journal_mode = WAL")
    for statement in (_TABLES + _POLICIES + _PROPERTIES + _SCHEMAS).split(";"):
        catalogue._write(statement)
    catalogue._write(_SUMS)
    _sum_up(catalogue, COLUMNS)
    for namespace in ("public/default", "pulsar/system"):
        catalogue.create_namespace(namespace)
    catalogue._write(f"PRAGMA user_version = {VERSION}")
    catalogue.commit()


def _upgrade(catalogue: Catalogue) -> None:
    """To this version, in place; all of it or nothing.  Of two processes that try, one finds it done."""
    catalogue._write("SELECT 1")       # nobody else writes from here on
    version = catalogue._one("PRAGMA user_version")
    if version < 2:
        for statement in _POLICIES.split(";"):
            catalogue._write(statement)
    if version < 3:
        catalogue._write(_SUMS)
        _sum_up(catalogue, COLUMNS.keys() - _SINCE[4])
    if version < 4:
        for statement in (_PROPERTIES + _SCHEMAS).split(";"):
            catalogue._write(statement)
        _sum_up(catalogue, _SINCE[4])
    catalogue._write(f"PRAGMA user_version = {VERSION}")
    catalogue.commit()


def _sum_up(catalogue: Catalogue, tables: Iterable[str]) -> None:
    """From now on each of these tables has its sum."""
    for table in tables:
        columns = COLUMNS[table]
        catalogue._write("INSERT INTO sums VALUES (?, ?)", (table, sum_of(catalogue._db, table)))
        old, new = (", ".join(f"{which}.{column}" for column in columns) for which in ("OLD", "NEW"))
        for event, value in (("INSERT", f"with_row(value, 1, {new})"), ("DELETE", f"with_row(value, -1, {old})"),
                             ("UPDATE", f"with_row(with_row(value, -1, {old}), 1, {new})")):
            catalogue._write(f"CREATE TRIGGER sum_{table}_{event} AFTER {event} ON {table} BEGIN "
                             f"UPDATE sums SET value = {value} WHERE name = '{table}'; END")


def sum_of(db: sqlite3.Connection, table: str) -> int:
    """What the sum of that table is by its rows as they are."""
    total = 0
    for row in db.execute(f"SELECT {', '.join(COLUMNS[table])} FROM {table}"):
        total = with_row(total, 1, *row)
    return total


def with_row(total: int, sign: int, *values: int | str | bytes | None) -> int:
    """The sum, 64 bits with a sign, with a row more (1) or less (-1)."""
    digest = hashlib.blake2b(repr(values).encode(), digest_size=8).digest()
    return (total + sign * int.from_bytes(digest, "little") + (1 << 63)) % (1 << 64) - (1 << 63)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
