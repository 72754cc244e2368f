"""Tables of topics with the policy `export`, as the night makes them.

The file `tables.json` beside the night's report shows people how far each table is.  The next night goes on from the
tables' own commits, not from that file.
"""
import contextlib
import json
import math
import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from geminga.proto import names
from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.catalogue.policy_values import EXPORTS_NOTHING
from geminga.storage.disk.files import write_anew
from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.jobs import confirmed
from geminga.storage.jobs.compacting import nightly
from geminga.storage.jobs.compacting.engines import LocalEngine, Spark, Tell
from geminga.storage.ledgers.position import NOWHERE, Position
from geminga.storage.tables import exports
from geminga.storage.tables.commits import MESSAGES, ParquetTable
from geminga.storage.tables.exports import Open, Planned, Table, TableReport, Wanted
from geminga.storage.tables.table_folders import HadoopFolder, LocalFolder, TableFolder, local_folder
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.tasks.job_socket import TABLES, BrokerSocket, CannotRun, known_tables
from geminga.supervisor.tasks.night_engines import ICEBERG, PARQUET, Engines

_IDENTITY = Path("nightly", "identity")
_SCRATCH = "_geminga-"               # folder for files that are being written; readers leave out names with _


def wanted(config: Config, among: Iterable[str] | None = None) -> list[Wanted]:
    """Return the topics that are exported, with their partitions.  Raises CatalogueError.

    among: partitions, of which only those topics are considered.
    """
    if not config.tables.url:
        return []
    with contextlib.closing(confirmed.open_catalogue(config.data_dir)) as catalogue:
        chosen = None if among is None else {catalogue.topics.whole(names.parse(text)) for text in among}
        options = catalogue.options.applied_to(config.storage)
        by_topic: dict[TopicName, list[tuple[int, TopicName]]] = {}
        for partition_id, text in catalogue.partitions.all():
            name = names.parse(text)
            by_topic.setdefault(catalogue.topics.whole(name), []).append((partition_id, name))
        topics = [Wanted(topic, policies_of(catalogue, topic, options).export, tuple(sorted(partitions)))
                  for topic, partitions in by_topic.items()
                  if not names.is_system(str(topic)) and (chosen is None or topic in chosen)]
        # A topic that a scalable one hides would have that one's folder, and both would write the same table.
        topics = [wanted for wanted in topics
                  if wanted.content != EXPORTS_NOTHING and not catalogue.topics.is_shadowed(wanted.topic)]
    return sorted(topics, key=lambda wanted: str(wanted.topic))


def opener(config: Config, engine: LocalEngine | Spark) -> Open:
    """Return the function that opens a topic's table.  Raises CannotRun."""
    identity = _identity(config.data_dir)
    if config.tables.format == ICEBERG:
        from geminga.storage.tables.iceberg import Catalog, IcebergTable
        assert isinstance(engine, Spark)
        try:
            catalog = Catalog(engine.context, config.tables.url)
        except OSError as error:
            raise CannotRun(f"nightly.tables: {text_of(error)}") from None
        return partial(IcebergTable, catalog, broker=identity)
    try:
        place = _place(config, engine)
    except OSError as error:
        raise CannotRun(f"nightly.tables.url: {text_of(error)}") from None

    def open_table(topic: TopicName, content: str) -> Table:
        return ParquetTable(place, topic, content, identity)
    return open_table


def _place(config: Config, engine: LocalEngine | Spark) -> TableFolder:
    folder = local_folder(config.tables.url)
    if folder is not None:
        return LocalFolder(folder)
    assert isinstance(engine, Spark)
    return HadoopFolder(config.tables.url, engine.context)


def _identity(data_dir: Path) -> str:
    """Return the identity of the broker as a writer of tables, which is made once."""
    path = data_dir / _IDENTITY
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_anew(path, uuid.uuid4().hex.encode())
    return path.read_text()


def plan(config: Config, topics: list[Wanted], engine: LocalEngine | Spark,
         broker: BrokerSocket | None = None) -> list[Planned]:
    """Return what an export would do.  Raises CannotRun, CatalogueError.

    broker: is asked to settle transactions of which the files do not say how they have ended.
    """
    def settle(name: TopicName) -> None:
        if broker is not None:
            broker.settle(str(name))
    return exports.plan(config.data_dir, topics, opener(config, engine), settle) if topics else []


def export(broker: BrokerSocket, config: Config, engines: Engines, topics: list[Wanted], tell: Tell,
           ends: float = math.inf) -> list[TableReport]:
    """Export topics; return a report for each table.  Raises CannotRun, CatalogueError, OSError."""
    folder = local_folder(config.tables.url) if config.tables.format == PARQUET else None
    base = folder if folder is not None else config.data_dir / "nightly"
    try:
        with nightly.alone(config.data_dir):
            engine = engines.for_tables(0)
            planned = plan(config, topics, engine, broker)
            if isinstance(engine, LocalEngine):
                engine = engines.for_tables(sum(one.bytes_new for one in planned))
            for one in planned:
                _tell_known(broker, one)
            exports.run(config.data_dir, planned, base / f"{_SCRATCH}{_identity(config.data_dir)}", engine,
                        broker.exported, tell, ends)
    except nightly.AlreadyRunning as error:
        raise CannotRun(str(error)) from None
    reports = [one.report() for one in planned]
    _keep(config.data_dir, reports)
    return reports


def _tell_known(broker: BrokerSocket, planned: Planned) -> None:
    """Tell owners how far their partitions are exported; a run that was killed may not have told them."""
    positions = planned.table.positions if planned.table is not None and not planned.error else {}
    for partition_id, name in planned.wanted.partitions:
        if (position := positions.get(partition_id)) is not None:
            broker.exported(partition_id, str(name), position)


def _keep(data_dir: Path, reports: list[TableReport]) -> None:
    tables = known_tables(data_dir)
    for report in reports:
        if report["table"]:
            topic = names.parse(report["topic"])
            if topic.is_scalable:      # a regular topic that was made scalable has left its table to it
                tables.pop(f"{topic.regular} {report['content']}", None)
            tables[f"{report['topic']} {report['content']}"] = {
                "topic": report["topic"], "content": report["content"], "positions": report["positions"],
                **report["table"]}
    write_anew(data_dir / TABLES, json.dumps(tables).encode())


def listed(config: Config) -> list[dict[str, Any]]:
    """Return a row for each table, with the messages that are not in it yet.  Raises CatalogueError."""
    with contextlib.closing(confirmed.open_catalogue(config.data_dir)) as catalogue:
        ids: dict[TopicName, dict[str, int]] = {}
        for partition_id, text in catalogue.partitions.all():
            ids.setdefault(catalogue.topics.whole(names.parse(text)), {})[text] = partition_id
        tables = [table for _, table in sorted(known_tables(config.data_dir).items())]
        topics = [catalogue.topics.whole(names.parse(table["topic"])) for table in tables]
    return [table | {"behind": _behind(config.data_dir, table, ids.get(topic, {}))}
            for table, topic in zip(tables, topics, strict=True)]


def _behind(data_dir: Path, table: Mapping[str, Any], ids: Mapping[str, int]) -> int | None:
    """Return how many committed messages of its topic a table does not have, None for a compacted one.

    ids: of the topic's partitions, by their names.
    """
    if table["content"] != MESSAGES:
        return None
    behind = 0
    for text, partition_id in ids.items():
        position: Position = NOWHERE
        if (at := table["positions"].get(text)) is not None:
            ledger_id, entry_id = at.split(":")
            position = int(ledger_id), int(entry_id)
        try:
            end = confirmed.committed_up_to(data_dir, partition_id)
            behind += nightly.news(format.partition_folder(data_dir, partition_id), partition_id, position, end)[1]
        except (CorruptFile, OSError):
            continue
    return behind
