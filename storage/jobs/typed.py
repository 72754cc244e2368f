"""Payloads as values of their topic's registered JSON or Avro schema: a struct with the fields of the newest version.

Avro messages are read with the version they were written with. A message without a schema version, with a payload that
does not fit, without a value, or encrypted, has the value null. Types that Arrow lacks, such as unions of several
types, become JSON text. JSON values stay as they are: dates are the numbers that Avro's definitions make of them.
"""
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.jobs import avro_values, confirmed, json_values, shapes
from geminga.storage.jobs.avro_values import Walk, without_logical_types
from geminga.storage.jobs.entry_blocks import ReportDamage
from geminga.storage.jobs.shapes import Fit, NoSchema
from geminga.storage.schemas import registry
from geminga.storage.schemas.plain_values import Unfit

# What Arrow raises for values of other types.
NOT_FITTING = pa.ArrowException, OverflowError, ValueError, TypeError, MemoryError
_SHOWN_MAX = 200      # characters of a reason that are reported
_LARGE = "its value needs too much memory"
_UNFIT = "a value is not of its schema"

Parsed: TypeAlias = dict[str, Any]      # a definition, as its author wrote it
Read = Callable[[bytes], Any]           # payload -> value.  Raises Unfit


@dataclass
class Values:
    """The schemas of some topics whose newest version is the same."""

    kind: int                                        # api.Schema.Json or Avro
    newest: Parsed
    versions: dict[str, dict[bytes, Parsed]]         # topic -> schema_version of messages -> definition

    @property
    def type(self) -> pa.StructType:
        """Arrow type of the topics' values."""
        return shapes.shape_of(self.newest, is_avro=self.kind == api.Schema.Avro).kind

    def of(self, batch: pa.RecordBatch, topic: str, report: ReportDamage) -> pa.Array:
        """Return the values of an Arrow batch's payloads as an Arrow array.

        The batch must have the columns payload, schema_version, is_encrypted and null_value.
        """
        read = self._reader(self.versions.get(topic, {}))
        columns = (batch[name].to_pylist() for name in ("payload", "schema_version", "is_encrypted", "null_value"))
        values = [None if hidden or null else _told(read, payload, version, report)
                  for payload, version, hidden, null in zip(*columns, strict=True)]
        return as_array(values, self.type, lambda at, reason: report(f"{_UNFIT}: {reason}"))

    def _reader(self, versions: dict[bytes, Parsed]) -> Callable[[bytes, bytes | None], Any]:
        """Return the function that reads a payload of a version; None for a version that is not known."""
        shape = shapes.shape_of(self.newest, is_avro=self.kind == api.Schema.Avro)
        if self.kind == api.Schema.Json:
            read = json_values.reader(shape)
            return lambda payload, version: read(payload)
        newest = without_logical_types(self.newest)
        fit: Fit = avro_values.fit_of(shape) or shapes.same
        by_version = {version: (Walk(definition), without_logical_types(definition))
                      for version, definition in versions.items()}
        by_newest = Walk(self.newest), newest      # of messages that name no version

        def read_version(payload: bytes, version: bytes | None) -> Any:
            if version is not None and version not in by_version:
                return None
            walk, plain = by_newest if version is None else by_version[version]
            return fit(walk.decoded(payload, plain, newest))
        return read_version


def _told(read: Callable[[bytes, bytes | None], Any], payload: bytes, version: bytes | None,
          report: ReportDamage) -> Any:
    """Return the value of one payload, None if the payload does not match its schema."""
    try:
        return read(payload, version)
    except Exception as error:      # a payload may make the libraries raise anything
        report(f"{_UNFIT}: {reason_of(error)}")
        return None


def reason_of(error: Exception) -> str:
    """Return why a payload was not read, for people who do not know this program."""
    match error:
        case Unfit() | registry.InvalidSchema():
            return str(error)[:_SHOWN_MAX]
        case RecursionError():
            return "it is nested too deeply"
        case MemoryError():
            return _LARGE
        case UnicodeDecodeError():
            return f"its text is not UTF-8 at byte {error.start}"
        case OverflowError():
            return "its value is out of range"
    return "its bytes are no value of its schema"


def as_array(values: list[Any], kind: pa.DataType, complain: Callable[[int, str], None]) -> pa.Array:
    """Return values (n,) as an Arrow array, with null in place of each that the type cannot hold.

    complain: called with the number of such a value, and the reason.
    """
    def fitting(at: int, value: Any) -> Any:
        try:
            pa.array([value], kind)
        except NOT_FITTING as error:
            is_large = isinstance(error, MemoryError | pa.lib.ArrowCapacityError)
            complain(at, _LARGE if is_large else shapes.misfit(value, kind) or reason_of(error))
            return None
        return value
    try:
        return pa.array(values, kind)
    except NOT_FITTING:
        return pa.array([fitting(at, value) for at, value in enumerate(values)], kind)


def find(partitions: list[tuple[int, TopicName]], data_dir: Path) -> Values:
    """Return the schemas of these partitions' topics, by which values can be typed.  Raises NoSchema."""
    catalogue = confirmed.open_catalogue(data_dir)
    try:
        topics = list(dict.fromkeys(name.base for _, name in partitions))
        last = {topic: kept for topic in topics if (kept := registry.find(catalogue, topic)) is not None}
        if not topics:
            raise NoSchema("option typed: there is no topic whose schema values could have")
        if len(last) < len(topics):
            raise NoSchema(f"option typed: {next(topic for topic in topics if topic not in last)} has no schema")
        definition = last[topics[0]].definition
        for topic, other in last.items():
            if (other.definition.kind, other.definition.data) != (definition.kind, definition.data):
                raise NoSchema(f"option typed: {topics[0]} and {topic} have different schemas")
        if definition.kind not in (api.Schema.Json, api.Schema.Avro):
            raise NoSchema(f"option typed: the schema of {topics[0]} is of type {registry.TYPES[definition.kind]}, "
                           "not JSON or AVRO")
        versions = {str(topic): {number.to_bytes(8, "big"): _parsed(kept.definition.data, topic)
                                 for number in registry.versions(catalogue, topic)
                                 if (kept := registry.find(catalogue, topic, number)) is not None} for topic in topics}
        newest = _parsed(definition.data, topics[0])
        others = [one for of_topic in versions.values() for one in of_topic.values()]
        return Values(definition.kind, with_aliases(newest, others), versions)
    finally:
        catalogue.close()


def definition_of(data: bytes) -> Any:
    """Return a definition that fastavro takes, as its author wrote it.  Raises NoSchema."""
    try:
        definition = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NoSchema(f"its schema is not Avro's: {str(error)[:_SHOWN_MAX]}") from None
    without_logical_types(definition)
    return definition


def with_aliases(newest: Parsed, others: Iterable[Any]) -> Parsed:
    """Return a record that reads the other definitions, too, whatever these are called.

    As in Pulsar's Java client, the record's name does not matter.
    """
    names = {str(one["name"]) for one in others if isinstance(one, dict) and "name" in one} - {newest["name"]}
    return newest | {"aliases": sorted({*newest.get("aliases", ()), *names})}


def _parsed(data: bytes, topic: TopicName) -> Parsed:
    try:
        definition = definition_of(data)
        shapes.shape_of(definition, is_avro=True)
    except NoSchema as error:
        raise NoSchema(f"option typed: {topic}: {error}") from None
    if not isinstance(definition, dict) or definition.get("type") != "record":
        raise NoSchema(f"option typed: the schema of {topic} is no record")
    return definition
