"""Payloads -> columns of a table, by the versions of their topic's schema.

A record's fields become columns: those of the newest version, and behind them fields that only older versions have.
Other schemas become one column, `value`; pairs become `key` and `value`. A topic without a schema keeps its payloads as
they are, in `_payload`.

Avro messages are read with the version that they were written with. JSON is parsed by Arrow, many messages at once
where all of them fit; otherwise, and for types that Arrow's parser lacks, one by one. The reason why a payload does not
fit is given to the caller, and its row is null.
"""
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.jobs import typed
from geminga.storage.jobs.typed import NoSchema
from geminga.storage.schemas import plain_values, registry
from geminga.storage.schemas.registry import Definition
from geminga.storage.tables import protobuf_values
from geminga.storage.tables.forms import VALUE, Columns, Form, Json, OneByOne, Read, Text

S = api.Schema
RAW = "_payload"
KEY = "key"
_BYTES = registry.TYPES.index("NONE")      # also the type of payloads that are just bytes
_RAW_KINDS = _BYTES, S.Protobuf
NO_SCHEMA = Definition(_BYTES, b"", {})
_MOMENT = pa.timestamp("us", "UTC")
# Type of a schema without fields: the type of its column.
_PLAIN: dict[int, pa.DataType] = {
    S.Bool: pa.bool_(), S.Int8: pa.int32(), S.Int16: pa.int32(), S.Int32: pa.int32(), S.Int64: pa.int64(),
    S.Float: pa.float32(), S.Double: pa.float64(), S.Date: _MOMENT, S.Timestamp: _MOMENT, S.Instant: _MOMENT,
    S.Time: pa.time64("us"), S.LocalDate: pa.date32(), S.LocalTime: pa.time64("us"),
    S.LocalDateTime: pa.timestamp("us")}


@dataclass
class Values:
    """The columns of a topic's payloads, and how they are read.

    Picklable: parsed definitions are made anew where they are needed.
    """

    newest: Definition = NO_SCHEMA
    versions: dict[bytes, Definition] = field(default_factory=dict)      # schema_version of messages -> definition

    def __getstate__(self) -> dict[str, Any]:
        return {"newest": self.newest, "versions": self.versions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.newest, self.versions = state["newest"], state["versions"]

    @cached_property
    def _form(self) -> Form:
        return form_of(self.newest, self._same)

    @property
    def _same(self) -> dict[bytes, Definition]:
        """The versions of the newest one's type.  Messages of others cannot be read."""
        return {version: one for version, one in self.versions.items() if one.kind == self.newest.kind}

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the columns.  Raises NoSchema if the topic's schema cannot be a table."""
        return self._form.schema

    @property
    def is_raw(self) -> bool:
        """Whether payloads stay as they are, in the column `_payload`."""
        return self.newest.kind in _RAW_KINDS

    def read(self, payloads: pa.Array, versions: pa.Array, skipped: NDArray[np.bool_]) -> Columns:
        """Return (columns of the schema, reasons why payloads do not fit) for payloads (n,) of binary.

        versions: schema_version (n,) of each message.  skipped: rows (n,) whose columns are null, and not read.
        """
        if self.is_raw:
            return self._form.read(payloads, versions, skipped)
        known = pc.or_(pc.is_null(versions), pc.is_in(versions, pa.array(list(self._same), pa.binary())))
        strange = np.flatnonzero(~known.to_numpy(zero_copy_only=False) & ~skipped)
        if len(strange):
            skipped = skipped.copy()
            skipped[strange] = True
        columns, reasons = self._form.read(payloads, versions, skipped)
        return columns, reasons | {
            at: f"version {int.from_bytes(versions[at].as_py())} of its schema is not known, or of another type"
            for at in strange.tolist()}


def of_topic(catalogue: Catalogue, topic: TopicName) -> Values:
    """Return the columns of a topic's payloads.  Raises CatalogueError."""
    newest = registry.find(catalogue, topic)
    if newest is None:
        return Values()
    found = ((number, registry.find(catalogue, topic, number)) for number in registry.versions(catalogue, topic))
    return Values(newest.definition, {number.to_bytes(8, "big"): kept.definition
                                      for number, kept in found if kept is not None})


def form_of(newest: Definition, versions: dict[bytes, Definition]) -> Form:
    """Return the form of a topic's values.

    newest: the newest version of its schema.  versions: those that have the newest one's type, by the number that
    messages have.  Raises NoSchema.
    """
    kind = newest.kind
    if kind in _RAW_KINDS:
        return Form(pa.schema([(RAW, pa.binary())]))
    if kind == S.String:
        return Text(pa.schema([(VALUE, pa.string())]))
    if kind in (S.Json, S.Avro):
        return _record(newest, versions)
    if kind == S.ProtobufNative:
        roots = {version: protobuf_values.descriptor(one.data) for version, one in versions.items()}
        newest_root = protobuf_values.descriptor(newest.data)
        readers = {version: protobuf_values.reader(root) for version, root in roots.items()}
        return OneByOne(protobuf_values.kind_of((newest_root, *reversed(roots.values()))), readers)
    if kind == S.KeyValue:
        return _pair(newest, versions)
    if kind not in _PLAIN:
        raise NoSchema(f"schemas of type {registry.TYPES[kind]} cannot be tables")
    return OneByOne(_PLAIN[kind], plain_values.READERS[kind])


# -- Avro's definitions, of AVRO and JSON

def _record(newest: Definition, versions: dict[bytes, Definition]) -> Form:
    """Return the form of Avro and JSON values, with the fields of all versions."""
    whole, parsed = _merged(_parsed(newest.data), {version: _parsed(one.data) for version, one in versions.items()})
    is_avro = newest.kind == S.Avro
    kind, fit = typed.shape_of(whole, is_avro)
    if is_avro:
        return OneByOne(kind, {version: _avro_reader(one, whole, fit) for version, one in parsed.items()})
    is_plain = pa.types.is_struct(kind) and bool(len(kind)) and _is_plain(whole)
    return (Json if is_plain else OneByOne)(kind, _json_reader(kind, fit))


def _json_reader(kind: pa.DataType, fit: Callable[[Any], Any]) -> Read:
    def read(payload: bytes) -> Any:
        value = json.loads(payload)
        if pa.types.is_struct(kind) and not isinstance(value, dict | None):
            raise ValueError("it is no JSON object")
        return fit(value)
    return read


def _avro_reader(writer: Any, reader: Any, fit: Callable[[Any], Any]) -> Read:
    def read(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        value = fit(fastavro.schemaless_reader(stream, writer, reader))
        if stream.read(1):
            raise ValueError("there are bytes behind its value")
        return value
    return read


def _parsed(data: bytes) -> Any:
    """Return a definition, of which fastavro can make sense, as its author wrote it.  Raises NoSchema."""
    try:
        typed.definition_of(data)
    except NoSchema as error:
        raise NoSchema(f"its schema {error}") from None
    return json.loads(data)


def _merged(newest: Any, versions: dict[bytes, Any]) -> tuple[Any, dict[bytes, Any]]:
    """Return (a definition with the fields of all versions, the versions), as fastavro has parsed them."""
    if isinstance(newest, dict) and newest.get("type") == "record":
        fields, seen = list(newest["fields"]), {one["name"].lower() for one in newest["fields"]}
        for one in reversed(versions.values()):
            for older in one["fields"] if isinstance(one, dict) and one.get("type") == "record" else ():
                if older["name"].lower() not in seen:
                    seen.add(older["name"].lower())
                    fields.append({"name": older["name"], "type": _optional(older["type"]), "default": None})
        newest = typed.with_aliases(newest | {"fields": fields}, versions.values())
    try:
        return fastavro.parse_schema(newest), {version: fastavro.parse_schema(one) for version, one in versions.items()}
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise NoSchema(f"the versions of its schema cannot be one table: {typed.said(error)}") from None


def _optional(kind: Any) -> list[Any]:
    return ["null", *(one for one in (kind if isinstance(kind, list) else [kind]) if one != "null")]


def _is_plain(schema: Any) -> bool:
    """Whether Arrow's parser of JSON reads values of an Avro schema as json.loads and typed.shape_of do."""
    if isinstance(schema, list):
        rest = [one for one in schema if one != "null"]
        return len(rest) == 1 and _is_plain(rest[0])
    if isinstance(schema, str):
        return schema in ("boolean", "int", "long", "float", "double", "string")
    match schema["type"]:
        case "record":
            return bool(schema["fields"]) and all(_is_plain(one["type"]) for one in schema["fields"])
        case "array":
            return _is_plain(schema["items"])
        case "enum":
            return True
        case inner:
            return _is_plain(inner)


# -- pairs

def _pair(newest: Definition, versions: dict[bytes, Definition]) -> Form:
    """Return the form of KEY_VALUE messages.

    With separated halves the payload is the value, and the key is the message's.
    """
    kinds = [kind for kind, _ in _halves_of(newest)]
    halves = {version: [read for _, read in _halves_of(one)] for version, one in versions.items()}
    if newest.properties.get("kv.encoding.type") == "SEPARATED":
        return OneByOne(pa.struct([(VALUE, kinds[1])]), {version: _one(read) for version, (_, read) in halves.items()})
    return OneByOne(pa.struct([(KEY, kinds[0]), (VALUE, kinds[1])]),
                    {version: _both(reads) for version, reads in halves.items()})


def _halves_of(pair: Definition) -> list[tuple[pa.DataType, Read]]:
    """Return (Arrow type, reader) of a pair's key and value."""
    halves: list[tuple[pa.DataType, Read]] = []
    for name, data in zip((KEY, VALUE), plain_values.halves(pair.data), strict=True):
        text = pair.properties.get(f"{name}.schema.type", "BYTES").upper()
        kind = registry.TYPES.index(text) if text in registry.TYPES else _BYTES
        if kind in _RAW_KINDS or kind == S.KeyValue:
            halves.append((pa.binary(), bytes))
        elif kind == S.String:
            halves.append((pa.string(), bytes.decode))
        else:
            one = Definition(kind, data or b"", {})
            form = form_of(one, {b"": one})
            assert isinstance(form, OneByOne)
            halves.append((form.kind, form.reader_of(b"")))
    return halves


def _one(read: Read) -> Read:
    return lambda payload: {VALUE: read(payload)}


def _both(reads: list[Read]) -> Read:
    def read(payload: bytes) -> dict[str, Any]:
        return {name: None if part is None else one(part)
                for name, one, part in zip((KEY, VALUE), reads, plain_values.halves(payload), strict=True)}
    return read
