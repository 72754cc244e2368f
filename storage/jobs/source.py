"""Topics as tables in Spark: a data source with the name `geminga`.

    from geminga.storage.jobs.source import register
    register(spark)
    messages = spark.read.format("geminga").option("data_dir", "/var/lib/geminga").option("topic", "orders").load()

Each task reads a stretch of a ledger and yields Arrow batches (reading.py). Spark does not tell a data source written
in Python which columns a query needs; name them with `columns`, or give a schema with .schema().

Filters by options on times, positions and keys are applied before entries are read, or at least before rows go to
Spark. With `pushdown` a query's own filters on publish_time, broker_time, ledger_id and key are applied there too.
`pushdown` is off by default and meant for a DataFrame of one query: Spark 4.3 gives all queries on a DataFrame the
filters of the last one, so that both parts of a.where(x).union(a.where(y)) get y.

Options, all but the first two optional:
    data_dir, or load(DIR)           the broker's data folder, as the driver and the executors see it
    topic, topics, topic_pattern     one of these: a name, names with commas between, an expression for whole names
    from_time, to_time               publish times, from (inclusive), to (exclusive): 2026-01-31T12:00:00Z or ms
    from_position, to_position       ledger:entry, both inclusive
    key                              only messages with this key
    compacted                        true: the compacted view up to its horizon and the ledgers behind it
    typed                            true: `value` has the fields of the registered JSON or Avro schema
    columns                          names with commas between
    pushdown                         true: see above; needs spark.sql.python.filterPushdown.enabled
"""
import datetime
import logging
import re
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import SparkSession, datasource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.proto.rows import Rows, field_names
from geminga.storage.jobs import confirmed, message_columns, reading, typed
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.entry_blocks import ReportDamage
from geminga.storage.jobs.typed import Values
from geminga.storage.ledgers.position import NOWHERE, Position

NAME = "geminga"
SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()),      # number of the partition, null without one
                    *(column for column in message_columns.SCHEMA if column.name != "partition")])
_TOPICS = "topic", "topics", "topic_pattern"
_OPTIONS = ("data_dir", "path", *_TOPICS, "from_time", "to_time", "from_position", "to_position", "key", "compacted",
            "typed", "columns", "pushdown")
_OF_INDEX = "publish_time", "broker_time", "ledger_id"      # columns that index rows or stretches have exactly
_FIRST, _LAST = -(1 << 62), 1 << 62
_log = logging.getLogger("geminga.source")


class BadOption(ValueError):
    """Error: an option of the data source has an invalid value.  The text names the option."""


def register(spark: SparkSession) -> None:
    """Register the data source with Spark, as the format `geminga` of spark.read."""
    spark.dataSource.register(GemingaSource)


@dataclass(slots=True)
class Options:
    """Parsed options of the data source."""

    data_dir: Path
    topics: list[str] | re.Pattern[str]
    bounds: dict[str, tuple[int, int]]       # publish_time: (first, last) in ms
    first: Position
    last: Position | None
    key: str | None
    is_compacted: bool
    is_typed: bool
    columns: list[str]
    has_pushdown: bool


def parse(options: MutableMapping[str, str]) -> Options:
    """Return the parsed options of the data source.  Raises BadOption."""
    for name in options:
        if name.lower() not in _OPTIONS:
            raise BadOption(f"option {name} is unknown; there are {', '.join(_OPTIONS)}")
    given = {name: options[name] for name in _OPTIONS if name in options}
    if ("data_dir" in given) == ("path" in given):
        raise BadOption("option data_dir (or path, as load() gives it) is needed, and only one of them")
    if len([name for name in _TOPICS if name in given]) != 1:
        raise BadOption(f"one of the options {', '.join(_TOPICS)} is needed, and only one")
    data_dir = Path(given.get("data_dir") or given["path"])
    if not (data_dir / "catalogue.sqlite").exists():
        raise BadOption(f"option data_dir: {data_dir} is not the data folder of a broker")
    columns = [name.strip() for name in given["columns"].split(",")] if "columns" in given else SCHEMA.names
    for name in columns:
        if name not in (*SCHEMA.names, "value"):
            raise BadOption(f"option columns: there is no column {name}; there are {', '.join(SCHEMA.names)}")
    is_typed = _truth(given, "typed")
    if is_typed and "columns" not in given:
        columns = [*columns, "value"]
    elif is_typed != ("value" in columns):
        raise BadOption("option columns: value is there with the option typed, and has to be named then")
    first, last = (_position(given, name) for name in ("from_position", "to_position"))
    bounds = {"publish_time": (_time(given, "from_time", _FIRST), _time(given, "to_time", _LAST + 1) - 1)}
    return Options(
        data_dir, _topics(given), bounds if "from_time" in given or "to_time" in given else {},
        (first[0], first[1] - 1) if first is not None else NOWHERE, last, given.get("key"),
        _truth(given, "compacted"), is_typed, columns, _truth(given, "pushdown"))


def _topics(given: dict[str, str]) -> list[str] | re.Pattern[str]:
    if "topic_pattern" in given:
        try:
            return re.compile(given["topic_pattern"])
        except re.error as error:
            raise BadOption(f"option topic_pattern: {given['topic_pattern']!r}: {error}") from None
    texts = [given["topic"]] if "topic" in given else [text.strip() for text in given["topics"].split(",")]
    try:
        return [str(names.parse(text)) for text in texts]
    except Refusal as error:
        raise BadOption(f"option {'topic' if 'topic' in given else 'topics'}: {error}") from None


def _truth(given: dict[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise BadOption(f"option {name}: {given[name]!r} is neither true nor false")
    return text == "true"


def _time(given: dict[str, str], name: str, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    try:
        return _milliseconds(datetime.datetime.fromisoformat(text))
    except ValueError:
        raise BadOption(f"option {name}: {text!r} is neither a time as 2026-01-31T12:00:00Z nor milliseconds") from None


def _milliseconds(time: datetime.datetime) -> int:
    """Return a time as milliseconds since 1970, rounded up.  A time without a zone is UTC."""
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
    return -((datetime.datetime.fromtimestamp(0, datetime.UTC) - zoned) // datetime.timedelta(milliseconds=1))


def _position(given: dict[str, str], name: str) -> Position | None:
    if name not in given:
        return None
    ids = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", given[name])
    if not ids:
        raise BadOption(f"option {name}: {given[name]!r} is not ledger:entry")
    return int(ids[1]), int(ids[2])


class GemingaSource(datasource.DataSource):
    """Spark's data source `geminga`.  The module's docstring lists its options."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = parse(self.options)
        return from_arrow_schema(_arrow_schema(options.columns, _values(options)))

    def reader(self, schema: StructType) -> "Reader":
        options = parse(self.options)
        return (FilteringReader if options.has_pushdown else Reader)(options, schema)

    def streamReader(self, schema: StructType) -> "StreamReader":
        return StreamReader(parse(self.options), schema)


def _arrow_schema(columns: list[str], values: Values | None) -> pa.Schema:
    return pa.schema([pa.field("value", values.type) if name == "value" and values is not None else SCHEMA.field(name)
                      for name in columns])


def _partitions(options: Options) -> list[tuple[int, TopicName]]:
    try:
        return confirmed.partitions(options.data_dir, options.topics)
    except LookupError as error:
        raise BadOption(f"option topic: {error}") from None


def _values(options: Options) -> Values | None:
    return typed.find(_partitions(options), options.data_dir) if options.is_typed else None


@dataclass
class Task(datasource.InputPartition):
    """A stretch of a topic, which one Spark task reads."""

    stretch: Stretch
    topic: TopicName


@dataclass
class _Reading:
    """The parameters that all tasks of a Spark query share."""

    options: Options
    columns: list[str]
    values: Values | None
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)      # column of _OF_INDEX: (first, last)
    keys: list[set[str]] = field(default_factory=list)                    # a message's key must be in each set

    def batches(self, task: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task as Arrow batches."""
        if not isinstance(task, Task):      # Spark makes up a partition if there are no tasks
            return
        schema = _arrow_schema(self.columns, self.values)
        own = [name for name in self.columns if name not in ("topic", "partition", "value")]
        of_value = ["payload", "schema_version", "is_encrypted", "null_value"] if "value" in self.columns else []
        needed = dict.fromkeys([*own, *of_value, *(["key"] if self.keys else [])])
        damaged = 0

        def report(text: str) -> None:
            nonlocal damaged
            damaged += 1
            _log.warning(text)

        if "entry_id" not in needed:
            needed["entry_id"] = None       # without a column a batch would not know how many rows it has
        wanted = self._wanted if self.bounds or self.options.bounds else None
        for batch in reading.batches(self.options.data_dir, task.stretch, list(needed), report, wanted=wanted):
            for keys in self.keys:
                batch = batch.filter(pc.is_in(batch["key"], pa.array(sorted(keys), pa.string())))
            if batch.num_rows:
                columns = [self._column(name, batch, task, report) for name in self.columns]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
        if damaged:
            _log.warning("%s, ledger %d: %d damages were left out", task.topic, task.stretch.ledger_id, damaged)

    def _column(self, name: str, batch: pa.RecordBatch, task: Task, report: ReportDamage) -> pa.Array:
        match name:
            case "topic":
                return pa.repeat(str(task.topic.base), batch.num_rows)
            case "partition":
                number = task.topic.partition
                return pa.repeat(pa.scalar(number if number >= 0 else None, pa.int32()), batch.num_rows)
            case "value" if self.values is not None:
                return self.values.of(batch, str(task.topic.base), report)
        return batch[name]

    def _wanted(self, rows: Rows) -> NDArray[np.bool_]:
        wanted = np.ones(len(rows), bool)
        for bounds in (self.options.bounds, self.bounds):
            for name, (first, last) in bounds.items():
                if name in field_names(rows.dtype):
                    wanted &= (rows[name] >= first) & (rows[name] <= last)
        return wanted

    def tasks(self, behind: dict[int, Position], up_to: dict[int, Position] | None = None) -> list[Task]:
        """Return the tasks of a query, one for each stretch.

        behind, up_to: positions by partition id.  Partitions that are missing in up_to are not read.
        """
        options, tasks = self.options, []
        for partition_id, topic in _partitions(options):
            view = confirmed.current_view(options.data_dir, partition_id) if options.is_compacted else 0
            start = max(options.first, behind.get(partition_id, NOWHERE))
            end = options.last if up_to is None else up_to.get(partition_id, NOWHERE)
            tasks += [Task(stretch, topic) for stretch in confirmed.stretches(
                options.data_dir, partition_id, behind=start, up_to=end, view=view) if self._may_be_wanted(stretch)]
        return tasks

    def _may_be_wanted(self, stretch: Stretch) -> bool:
        first, last = self.bounds.get("ledger_id", (_FIRST, _LAST))
        return first <= stretch.ledger_id <= last


class Reader(datasource.DataSourceReader):
    """Reader of all messages that are confirmed, and committed, when a query begins."""

    def __init__(self, options: Options, schema: StructType):
        self._reading = _reading(options, schema)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._reading}>"

    def partitions(self) -> list[Task]:
        return self._reading.tasks({})

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.batches(partition)


class FilteringReader(Reader):
    """Reader that applies the query's own filters, with the option `pushdown`."""

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterator[datasource.Filter]:
        for wanted in filters:
            if not self._push(wanted):
                yield wanted

    def _push(self, wanted: datasource.Filter) -> bool:
        """Note a filter that this reader can apply itself.  Returns False if Spark must apply it."""
        attribute: tuple[str, ...] = getattr(wanted, "attribute", ())
        name = attribute[0] if len(attribute) == 1 else ""
        if name == "key" and isinstance(wanted, datasource.EqualTo | datasource.In):
            values = [wanted.value] if isinstance(wanted, datasource.EqualTo) else wanted.value
            self._reading.keys.append({value for value in values if value is not None})
            return True
        bounds = _bounds(wanted, name)
        if bounds is None:
            return False
        first, last = self._reading.bounds.get(name, (_FIRST, _LAST))
        self._reading.bounds[name] = max(first, bounds[0]), min(last, bounds[1])
        return True


def _bounds(wanted: datasource.Filter, name: str) -> tuple[int, int] | None:
    """Return the range (first, last) that a filter demands of a column of the index, None if it is no such filter."""
    if name not in _OF_INDEX:
        return None
    value: Any = getattr(wanted, "value", None)
    if isinstance(value, datetime.datetime):
        value, is_whole = _milliseconds(value), value.microsecond % 1000 == 0
    elif isinstance(value, int):
        is_whole = True
    else:
        return None
    match wanted:
        case datasource.EqualTo():
            return (value, value) if is_whole else (1, 0)
        case datasource.GreaterThanOrEqual():
            return value, _LAST
        case datasource.GreaterThan():
            return value + is_whole, _LAST
        case datasource.LessThan():
            return _FIRST, value - 1
        case datasource.LessThanOrEqual():
            return _FIRST, value - (not is_whole)
    return None


class StreamReader(datasource.DataSourceStreamReader):
    """Reader for streaming queries.

    Offsets are positions in each partition up to which all is committed: {id: "ledger:entry"}.
    """

    def __init__(self, options: Options, schema: StructType):
        if options.is_compacted:
            raise BadOption("option compacted: a stream has all messages as they come, and no compacted view")
        self._reading = _reading(options, schema)

    def __repr__(self) -> str:
        return f"<StreamReader {self._reading}>"

    def initialOffset(self) -> dict[str, str]:
        return {}

    def latestOffset(self, start: dict[str, str], limit: object) -> dict[str, str]:
        data_dir, offsets = self._reading.options.data_dir, dict(start)
        for partition_id, _ in _partitions(self._reading.options):
            last = confirmed.committed_up_to(data_dir, partition_id)
            if last > _offsets(offsets).get(partition_id, NOWHERE):
                offsets[str(partition_id)] = f"{last[0]}:{last[1]}"
        return offsets

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[Task]:
        return self._reading.tasks(_offsets(start), _offsets(end))

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.batches(partition)


def _offsets(offsets: dict[str, str]) -> dict[int, Position]:
    positions = {int(partition_id): text.split(":") for partition_id, text in offsets.items()}
    return {partition_id: (int(ledger_id), int(entry_id)) for partition_id, (ledger_id, entry_id) in positions.items()}


def _reading(options: Options, schema: StructType) -> _Reading:
    """Return the parameters that a query's tasks share.

    Raises BadOption if the schema has a column that is not available.
    """
    values = _values(options)
    available = from_arrow_schema(_arrow_schema([*SCHEMA.names, *(["value"] if values else [])], values))
    for column in schema.fields:
        if column.name not in available.names or available[column.name].dataType != column.dataType:
            raise BadOption(f"the schema has {column.name} {column.dataType.simpleString()}; "
                            f"there are {available.simpleString()}")
    keys = [] if options.key is None else [{options.key}]
    return _Reading(options, schema.names, values if "value" in schema.names else None, keys=keys)
