"""Payloads as values of their topic's registered JSON or Avro schema: a struct with the fields of the newest version.

Avro messages are read with the version they were written with. A message without a schema version, with a payload that
does not fit, without a value, or encrypted, has the value null. Types that Arrow lacks, such as unions of several
types, become JSON text. JSON values stay as they are: dates are the numbers that Avro's definitions make of them.
"""
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.jobs import confirmed
from geminga.storage.jobs.entry_blocks import ReportDamage
from geminga.storage.schemas import registry

_PRIMITIVES = {"boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
               "double": pa.float64(), "bytes": pa.binary(), "string": pa.string()}
_LOGICAL = {"date": pa.date32(),
            "timestamp-millis": pa.timestamp("us", "UTC"), "timestamp-micros": pa.timestamp("us", "UTC"),
            "local-timestamp-millis": pa.timestamp("us"), "local-timestamp-micros": pa.timestamp("us")}
NOT_FITTING = pa.ArrowException, OverflowError, ValueError, TypeError      # what Arrow raises for values of other types
SHOWN_MAX = 200       # characters of an error that are reported

_UNFIT = "a value is not of its schema"

Fit = Callable[[Any], Any]
Parsed: TypeAlias = dict[str, Any]      # a definition as fastavro has parsed it


class NoSchema(ValueError):
    """Error: the topics have no common schema by which values could be typed."""


@dataclass
class Values:
    """The schemas of some topics whose newest version is the same."""

    kind: int                                        # api.Schema.Json or Avro
    newest: Parsed
    versions: dict[str, dict[bytes, Parsed]]         # topic -> schema_version of messages -> definition

    def shape(self) -> tuple[pa.StructType, Fit]:
        """Return (Arrow type of the topics' values, function that converts a parsed value to it)."""
        return shape_of(self.newest, self.kind == api.Schema.Avro)

    @property
    def type(self) -> pa.StructType:
        return self.shape()[0]

    def of(self, batch: pa.RecordBatch, topic: str, report: ReportDamage) -> pa.Array:
        """Return the values of an Arrow batch's payloads as an Arrow array.

        The batch must have the columns payload, schema_version, is_encrypted and null_value.
        """
        (kind, fit), versions = self.shape(), self.versions.get(topic, {})
        columns = (batch[name].to_pylist() for name in ("payload", "schema_version", "is_encrypted", "null_value"))
        values = [None if hidden or null else self._read(payload, versions.get(version), fit, report)
                  for payload, version, hidden, null in zip(*columns, strict=True)]
        return as_array(values, kind, lambda at, error: report(f"{_UNFIT}: {str(error)[:SHOWN_MAX]}"))

    def _read(self, payload: bytes, version: Parsed | None, fit: Fit, report: ReportDamage) -> Any:
        """Return the value of one payload, None if the payload does not match its schema."""
        try:
            if self.kind == api.Schema.Json:
                return fit(json.loads(payload))
            if version is None:
                return None
            return fit(fastavro.schemaless_reader(io.BytesIO(payload), version, self.newest))
        except Exception as error:      # a payload may make the libraries raise anything
            report(f"{_UNFIT}: {said(error)}")
            return None


def said(error: Exception) -> str:
    """Return the type of an error and its text, of which a report shows the first SHOWN_MAX characters."""
    return f"{type(error).__name__}: {str(error)[:SHOWN_MAX]}"


def as_array(values: list[Any], kind: pa.DataType, complain: Callable[[int, Exception], None]) -> pa.Array:
    """Return values (n,) as an Arrow array, with null in place of each that the type cannot hold.

    complain: called with the number and the error of such a value.
    """
    def fitting(at: int, value: Any) -> Any:
        try:
            pa.array([value], kind)
        except NOT_FITTING as error:
            complain(at, error)
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
    """Return a definition as fastavro parses it.  Raises NoSchema, whose text goes on behind "the schema"."""
    try:
        return fastavro.parse_schema(json.loads(data))
    except (ValueError, KeyError, TypeError, RecursionError,
            fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise NoSchema(f"is not Avro's: {str(error)[:SHOWN_MAX]}") from None


def with_aliases(newest: Parsed, others: Iterable[Any]) -> Parsed:
    """Return a record that reads the other definitions, too, whatever these are called.

    As in Pulsar's Java client, the record's name does not matter.
    """
    names = {str(one["name"]) for one in others if isinstance(one, dict) and "name" in one} - {newest["name"]}
    return newest | {"aliases": sorted({*newest.get("aliases", ()), *names})}


def _parsed(data: bytes, topic: TopicName) -> Parsed:
    try:
        definition = definition_of(data)
    except NoSchema as error:
        raise NoSchema(f"option typed: the schema of {topic} {error}") from None
    if not isinstance(definition, dict) or definition.get("type") != "record":
        raise NoSchema(f"option typed: the schema of {topic} is no record")
    return definition


# -- types

def shape_of(schema: Parsed, is_avro: bool) -> tuple[pa.DataType, Fit]:
    """Return (Arrow type of a definition that fastavro has parsed, function that converts a parsed value to it).

    is_avro: whether logical types count; in JSON values they do not.
    """
    return _shape(schema, is_avro, {}, ())


def _shape(schema: Any, is_avro: bool, named: dict[str, Parsed], inside: tuple[str, ...]) -> tuple[pa.DataType, Fit]:
    """Return (Arrow type of an Avro schema, function that converts a value to it).

    named: definitions seen so far, by name.  inside: names of the enclosing records; a recursive one is JSON text.
    """
    if isinstance(schema, list):
        rest = [one for one in schema if one not in ("null", {"type": "null"})]
        return _shape(rest[0], is_avro, named, inside) if len(rest) == 1 else (pa.string(), _text)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema], _same
        if schema not in named or schema in inside:
            return pa.string(), _text
        return _shape(named[schema], is_avro, named, inside)
    kind, logical = schema["type"], schema.get("logicalType") if is_avro else None
    if "name" in schema:
        named[schema["name"]] = schema
    if logical in _LOGICAL:
        return _LOGICAL[logical], _same
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0)), _same
    if logical is not None:
        return pa.string(), _text
    if kind == "record" and not schema["fields"]:      # Parquet has no struct without fields
        return pa.string(), _text
    if kind == "record":
        fields = {one["name"]: _shape(one["type"], is_avro, named, (*inside, schema["name"]))
                  for one in schema["fields"]}
        return pa.struct([(name, inner) for name, (inner, _) in fields.items()]), \
            lambda value: value if value is None else {
                name: fit(value.get(name)) for name, (_, fit) in fields.items()}
    if kind == "array":
        inner, fit = _shape(schema["items"], is_avro, named, inside)
        return pa.list_(inner), lambda value: value if value is None else [fit(one) for one in value]
    if kind == "map":
        inner, fit = _shape(schema["values"], is_avro, named, inside)
        return pa.map_(pa.string(), inner), \
            lambda value: value if value is None else [(key, fit(one)) for key, one in value.items()]
    if kind in ("enum", "fixed"):
        return (pa.string() if kind == "enum" else pa.binary()), _same
    return _shape(kind, is_avro, named, inside)


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)
