"""A table of Apache Iceberg, written through Iceberg's Java library, which Spark has loaded.

Spark's workers write the Parquet files as for other tables.  The driver uploads them to the table's location, and
commits them in one transaction with the positions:

    geminga.broker       identity of the broker that writes the table
    geminga.positions    {partition id: "ledger:entry"}; all up to there is in the table
    geminga.rejected     files of rejected messages, which belong into the table beside; see below
    geminga.token        the commit that wrote these

The table of rejected messages, <name>_rejected, is another table, and Iceberg commits one table at a time.  Hence the
first commit names the uploaded files of the second.  Whoever opens the table commits those again unless the second
table has the same token.  Files that were uploaded and never committed are left to Iceberg's removal of orphan files.

A column whose type Iceberg cannot widen, as from int to double, becomes another column of the same name and place.  All
files with it are rewritten and uploaded before.  One transaction then replaces the column and the files, so readers see
the old table or the new one.

Files have the ids of the table's columns, so a table gets its columns before its files are written.  Those of earlier
versions have none: readers find their columns by names, which the property `schema.name-mapping.default` has.

The catalog is that of spark.sql.catalog.geminga.* in Spark's settings, as Iceberg's documentation has them. Without
these, it is a catalog of files (`hadoop`) whose warehouse is the tables' URL.
"""
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from geminga.proto.names import TopicName
from geminga.storage.ledgers.position import Position
from geminga.storage.tables.columns import REJECTED
from geminga.storage.tables.commits import COMPACTED, CannotExport, DataFile, Totals, folder_of
from geminga.storage.tables.iceberg_types import arrow_of, is_named_alike, is_widened, struct_of, with_ids
from geminga.storage.tables.table_folders import java_errors, reason_of

_BROKER, _POSITIONS, _REJECTED, _TOKEN = (f"geminga.{name}" for name in ("broker", "positions", "rejected", "token"))
_SETTINGS = "spark.sql.catalog.geminga."
_MAPPING = "schema.name-mapping.default"
_DAY = "_publish_time_day"           # Iceberg's name of the partition field day(_publish_time)


class Catalog:
    """A catalog of Iceberg's Java library."""

    def __init__(self, context: Any, url: str):
        """context: a SparkContext with Iceberg's package.  url: the warehouse.  Raises OSError."""
        self.url, self.context, self.jvm = url.rstrip("/"), context, context._jvm
        if not urlsplit(self.url).scheme:
            self.url = f"file://{self.url}"
        self.iceberg = self.jvm.org.apache.iceberg
        given = {name.removeprefix(_SETTINGS): value for name, value in context.getConf().getAll()
                 if name.startswith(_SETTINGS)}
        properties = self.jvm.java.util.HashMap()
        for name, value in ({"type": "hadoop", "warehouse": self.url} | given).items():
            properties.put(name, value)
        try:
            with java_errors("Iceberg"):
                self.java = self.iceberg.CatalogUtil.buildIcebergCatalog(
                    "geminga", properties, context._jsc.hadoopConfiguration())
        except TypeError:      # a package of Java that is not there
            raise OSError(2, "Iceberg's package for Spark is not among nightly.tables.packages", url) from None

    def __repr__(self) -> str:
        return f"<Catalog {self.url}>"

    def identifier(self, topic: TopicName, suffix: str) -> Any:
        """Return the identifier of a table: tenant.namespace.topic."""
        *namespace, name = (unquote(level) for level in folder_of(topic).split("/"))
        return self.iceberg.catalog.TableIdentifier.of(self.namespace(namespace), name + suffix)

    def namespace(self, levels: list[str]) -> Any:
        """Return a namespace of these levels."""
        names = self.context._gateway.new_array(self.jvm.java.lang.String, len(levels))
        for index, level in enumerate(levels):
            names[index] = level
        return self.iceberg.catalog.Namespace.of(names)


class IcebergTable:
    """A table of Iceberg, with the table of rejected messages beside it."""

    def __init__(self, catalog: Catalog, topic: TopicName, content: str, broker: str):
        """Open a table, without changing anything.  Raises CannotExport, OSError."""
        self._catalog, self._broker, self._content = catalog, broker, content
        suffix = "_compacted" if content == COMPACTED else ""
        self._name = catalog.identifier(topic, suffix)
        self._beside_name = catalog.identifier(topic, f"{suffix}_rejected")
        self._staged: dict[str, Path] = {}       # path of a DataFile -> where it is on this host
        self._uploaded: dict[str, str] = {}      # path of a DataFile -> its location
        self._known: dict[str, Any] = {}         # path of a DataFile -> Iceberg's own
        self._has_deleted_rows = False           # whether `files` left some out
        # Rewritten files that are uploaded, and those in whose place the next commit puts them.
        self._recast: tuple[list[DataFile], list[DataFile]] = [], []
        self._replacing: Any = None              # the transaction that replaces columns, until it is committed
        self._new_beside: Any = None             # the transaction that makes the second table, likewise
        with java_errors(str(self._name)):
            self._table = self._load(self._name)
            properties = self._properties(self._table)
            owner = properties.get(_BROKER, broker)
            if owner != broker:
                raise CannotExport(f"{self._name} is written by another broker, {owner}")
            if self._table is not None and _BROKER not in properties:
                raise CannotExport(f"{self._name} exists, and no broker has made it")
            self._beside = self._load(self._beside_name)

    def __repr__(self) -> str:
        return f"<IcebergTable {self._name}>"

    def _load(self, name: Any) -> Any:
        return self._catalog.java.loadTable(name) if self._catalog.java.tableExists(name) else None

    @staticmethod
    def _properties(table: Any) -> dict[str, str]:
        return dict(table.properties()) if table is not None else {}

    @property
    def positions(self) -> dict[int, Position]:
        try:
            stored = json.loads(self._properties(self._table).get(_POSITIONS, "{}"))
            positions: dict[int, Position] = {}
            for one, text in stored.items():
                ledger_id, entry_id = text.split(":")
                positions[int(one)] = int(ledger_id), int(entry_id)
        except (ValueError, AttributeError) as error:
            raise CannotExport(f"the property {_POSITIONS} of {self._name} has no positions: {error}") from None
        return positions

    def schema(self) -> tuple[pa.Schema | None, bool]:
        """Return the table's columns, without those of types that no topic's column has.  Raises CannotExport."""
        if self._table is None:
            return None, True
        with java_errors(str(self._name)):
            parts = self._struct(self._table)["fields"]
        return pa.schema([(part["name"], kind) for part in parts if (kind := arrow_of(part["type"])) is not None]), True

    def _struct(self, table: Any) -> dict[str, Any]:
        """Return a table's columns as a struct of Iceberg's JSON."""
        struct: dict[str, Any] = json.loads(str(self._catalog.iceberg.SchemaParser.toJson(table.schema())))
        return struct

    def widens(self, types: pa.Schema) -> bool:
        """Whether Iceberg's readers do it, for the types that its format lets become wider."""
        return not self._replaced(types)

    def _replaced(self, types: pa.Schema) -> list[str]:
        """Return the names of the columns that have to be replaced to become of these types."""
        known, _ = self.schema()
        return [] if known is None else [
            one.name for one in known
            if one.name in types.names and not is_widened(one.type, types.field(one.name).type)]

    def recover(self) -> None:
        """Finish what a killed run has begun.  Raises CannotExport, OSError."""
        with java_errors(str(self._name)):
            self._commit_rejected(self._properties(self._table))

    def prepare(self, types: pa.Schema) -> pa.Schema:
        """Give the table the columns of a schema, and return the schema with their ids.  Raises CannotExport, OSError.

        Columns that have to be replaced are so with the next commit.
        """
        replaced, self._replacing = self._replaced(types), None
        with java_errors(str(self._name)):
            self._table = table = self._at_schema(self._table, self._name, pa.schema(
                [column for column in types if column.name not in replaced]))
            if replaced:
                self._replacing = self._table.newTransaction()
                self._replace_columns(self._replacing, types, replaced)
                table = self._replacing.table()
            return with_ids(types, self._struct(table))

    def prepare_beside(self) -> pa.Schema:
        """Return the columns of rejected messages with their ids.  The second table is made with its first files."""
        with java_errors(str(self._beside_name)):
            if self._beside is not None:
                self._beside = table = self._at_schema(self._beside, self._beside_name, REJECTED)
            else:
                self._new_beside = self._builder(self._beside_name, REJECTED).createTransaction()
                table = self._new_beside.table()
            return with_ids(REJECTED, self._struct(table))

    def marked(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema with the ids of the table's columns."""
        with java_errors(str(self._name)):
            return with_ids(schema, self._struct(self._table))

    def is_named_alike(self, file: pa.Schema) -> bool:
        """Whether the columns of a file are those that the table has under their names."""
        with java_errors(str(self._name)):
            return is_named_alike(file, self._struct(self._table))

    # -- commits

    def stage(self, token: str, files: list[tuple[Path, DataFile]]) -> None:
        """Note where written files are.  `commit` uploads them: a new table has its location only then."""
        self._staged = {one.path: source for source, one in files}

    def recast(self, token: str, added: list[DataFile], removed: list[DataFile], known: pa.Schema) -> None:
        """Upload staged files with wider columns.  The next commit puts them in place of others.  Raises OSError."""
        if self._has_deleted_rows:
            raise CannotExport(f"rows of {self._name} were deleted by another program: rewrite its data files")
        with java_errors(str(self._name)):
            for file in added:
                self._upload(file, self._table)
        self._recast[0].extend(added)
        self._recast[1].extend(removed)

    def commit(self, token: str, positions: dict[int, Position], added: list[DataFile], removed: list[DataFile],
               schema: pa.Schema) -> None:
        """Upload staged files, and commit them with the positions.  Raises CannotExport, OSError.

        positions: of the partitions that have come further.  removed: files that the added ones replace.
        """
        is_merge, recast, self._recast = not positions, self._recast, ([], [])
        transaction, self._replacing = self._replacing, None
        with java_errors(str(self._name)):
            if transaction is None:
                self._table.refresh()
                transaction = self._table.newTransaction()
            table = transaction.table()
            if not with_ids(schema, self._struct(table)).equals(schema, check_metadata=True):
                raise CannotExport(f"columns of {self._name} were changed by another program meanwhile")
            rejected = [file for file in added if file.is_rejected]
            if rejected and self._beside is None:
                self._new_beside.commitTransaction()
                self._beside = self._load(self._beside_name)
            for file in added:
                self._upload(file, self._beside if file.is_rejected else self._table)
            stored = {str(one): f"{at[0]}:{at[1]}" for one, at in {**self.positions, **positions}.items()}
            fresh = [self._java_file(table, self._uploaded[file.path], file.day)
                     for file in (*added, *recast[0]) if not file.is_rejected]
            gone = [self._known[file.path] for file in (*removed, *recast[1]) if file.path in self._known]
            self._change(transaction, fresh, gone, is_merge=is_merge)
            update = transaction.updateProperties()
            pending = json.dumps([[self._uploaded[file.path], file.rows] for file in rejected])
            for name, value in {_BROKER: self._broker, _POSITIONS: json.dumps(stored), _TOKEN: token,
                                _REJECTED: pending, _MAPPING: self._mapping(table, as_text=True)}.items():
                update.set(name, value)
            update.commit()
            transaction.commitTransaction()
            self._table.refresh()
            # Iceberg commits one table at a time.  A kill here leaves the rejected messages' files named in the first
            # table's properties, and the next opening for a run commits them; in the other order they would be there
            # twice, because the positions that say they are exported would be missing.
            self._commit_rejected(self._properties(self._table))

    def _replace_columns(self, transaction: Any, schema: pa.Schema, names: list[str]) -> None:
        """Replace columns by others of the same name, at the same place and with the schema's types."""
        update, types, before = transaction.updateSchema(), self._java_schema(schema), None
        for column in [str(field.name()) for field in self._table.schema().columns()]:
            if column in names:
                update.deleteColumn(column)
                update.addColumn(column, types.findType(column))
                if before is not None:
                    update.moveAfter(column, before)
            before = column
        update.commit()

    def _java_schema(self, schema: pa.Schema) -> Any:
        """Return a schema as Iceberg has it."""
        fields = struct_of(((column.name, column.type) for column in schema), count(1).__next__)
        return self._catalog.iceberg.SchemaParser.fromJson(json.dumps(fields | {"schema-id": 0}))

    def _change(self, transaction: Any, fresh: list[Any], gone: list[Any], *, is_merge: bool) -> None:
        """Add data files to a transaction, or have them replace others."""
        if not (fresh or gone):
            return
        change = transaction.newFastAppend() if not gone else \
            transaction.newRewrite() if is_merge else transaction.newOverwrite()
        for file in gone:
            change.deleteFile(file)
        for file in fresh:
            (change.addFile if gone else change.appendFile)(file)
        change.commit()

    def _commit_rejected(self, properties: dict[str, str]) -> None:
        """Append the rejected messages' files of the table's last commit, unless that was done."""
        pending, token = json.loads(properties.get(_REJECTED, "[]")), properties.get(_TOKEN, "")
        if not pending or self._properties(self._beside).get(_TOKEN) == token:
            return
        if self._beside is None:
            raise CannotExport(f"{self._beside_name} is gone, and rejected messages belong there")
        transaction = self._beside.newTransaction()
        append = transaction.newFastAppend()
        for location, _ in pending:
            append.appendFile(self._java_file(self._beside, location, ""))
        append.commit()
        transaction.updateProperties().set(_TOKEN, token).set(
            _MAPPING, self._mapping(self._beside, as_text=True)).commit()
        transaction.commitTransaction()
        self._beside.refresh()

    def _upload(self, file: DataFile, table: Any) -> None:
        location = table.locationProvider().newDataLocation(file.path.rpartition("/")[2])
        self._uploaded[file.path] = location
        files, source = self._catalog.jvm.java.nio.file.Files, self._staged.pop(file.path)
        stream = table.io().newOutputFile(location).createOrOverwrite()
        try:
            files.copy(self._catalog.jvm.java.io.File(str(source)).toPath(), stream)
        finally:
            stream.close()
        source.unlink()

    def _java_file(self, table: Any, location: str, day: str) -> Any:
        """Return an uploaded file as Iceberg's metadata have it, with the statistics of its footer."""
        iceberg = self._catalog.iceberg
        there = table.io().newInputFile(location)
        metrics = iceberg.parquet.ParquetUtil.fileMetrics(there, iceberg.MetricsConfig.forTable(table),
                                                          self._mapping(table))
        builder = iceberg.DataFiles.builder(table.spec())
        builder = builder.withInputFile(there).withMetrics(metrics).withFormat("PARQUET")
        if day:
            builder = builder.withPartitionPath(f"{_DAY}={day}")
        return builder.build()

    def _mapping(self, table: Any, *, as_text: bool = False) -> Any:
        """Return the mapping from names of columns to Iceberg's ids, which files of earlier versions do not have."""
        mapping = self._catalog.iceberg.mapping
        made = mapping.MappingUtil.create(table.schema())
        return mapping.NameMappingParser.toJson(made) if as_text else made

    def _at_schema(self, table: Any, name: Any, schema: pa.Schema) -> Any:
        """Return a table that has the columns of a schema; it is made, or gets those that it lacks.

        Raises CannotExport if a column would have to become another type.
        """
        if table is None:
            self._make_namespace(name.namespace())
            return self._builder(name, schema).create()
        from py4j.protocol import Py4JJavaError
        try:
            table.updateSchema().unionByNameWith(self._java_schema(schema)).commit()
        except Py4JJavaError as error:
            raise CannotExport(f"{name} cannot take over the topic's schema: {reason_of(error)}.  Rename the column, "
                               "and the next night adds the new one") from None
        table.refresh()
        return table

    def _builder(self, name: Any, schema: pa.Schema) -> Any:
        """Return Iceberg's builder of a new table."""
        wanted, properties = self._java_schema(schema), self._catalog.jvm.java.util.HashMap()
        properties.put("format-version", "2")
        properties.put(_BROKER, self._broker)
        spec = self._catalog.iceberg.PartitionSpec.builderFor(wanted)
        spec = spec if schema is REJECTED else spec.day("_publish_time")
        return self._catalog.java.buildTable(name, wanted).withPartitionSpec(spec.build()).withProperties(properties)

    def _make_namespace(self, namespace: Any) -> None:
        """Make a namespace, and those above it."""
        levels = list(namespace.levels())
        for end in range(1, len(levels) + 1):
            level = self._catalog.namespace(levels[:end])
            if not self._catalog.java.namespaceExists(level):
                self._catalog.java.createNamespace(level)

    # -- files

    def files(self) -> list[DataFile]:
        """Return the files of the table that have no rows deleted.  Raises CannotExport, OSError."""
        if self._table is None:
            return []
        self._known, self._has_deleted_rows = {}, False
        files = []
        with java_errors(str(self._name)):
            for task in _each(self._table.newScan().planFiles()):
                if not task.deletes().isEmpty():
                    self._has_deleted_rows = True
                    continue
                file = task.file()
                path = str(file.location())
                self._known[path] = file.copy()
                number = path.rpartition("/")[2].removesuffix(".parquet").rpartition("-p")[2]
                files.append(DataFile(path, file.recordCount(), file.fileSizeInBytes(),
                                      str(self._table.spec().partitionToPath(file.partition())).rpartition("=")[2],
                                      int(number) if number.isdigit() else 0))
        return files

    def local(self, file: DataFile, scratch: Path) -> Path:
        """Copy a file of the table into `scratch`, and return where it is.  Raises OSError."""
        target = scratch / file.path.rpartition("/")[2]
        with java_errors(file.path):
            stream = self._table.io().newInputFile(file.path).newStream()
            try:
                options = self._catalog.context._gateway.new_array(self._catalog.jvm.java.nio.file.CopyOption, 0)
                self._catalog.jvm.java.nio.file.Files.copy(
                    stream, self._catalog.jvm.java.io.File(str(target)).toPath(), options)
            finally:
                stream.close()
        return target

    def totals(self) -> Totals:
        with java_errors(str(self._name)):
            snapshot = self._table.currentSnapshot() if self._table is not None else None
            summary = dict(snapshot.summary()) if snapshot is not None else {}
            beside = self._beside.currentSnapshot() if self._beside is not None else None
            rejected = int(dict(beside.summary()).get("total-records", 0)) if beside is not None else 0
            return {"rows": int(summary.get("total-records", 0)), "rejected": rejected,
                    "bytes": int(summary.get("total-files-size", 0)),
                    "files": int(summary.get("total-data-files", 0)),
                    "commits": len(list(self._table.snapshots())) if self._table is not None else 0,
                    "committed_ms": snapshot.timestampMillis() if snapshot is not None else 0,
                    "url": str(self._table.location()) if self._table is not None else ""}


def _each(iterable: Any) -> Iterator[Any]:
    """Yield the items of one of Iceberg's iterables, and close it."""
    try:
        items = iterable.iterator()
        while items.hasNext():
            yield items.next()
    finally:
        iterable.close()
