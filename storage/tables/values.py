"""Payloads -> columns of a table, by the versions of their topic's schema.

A record's fields become columns: those of the newest version, and behind them fields that only older versions have.
Other schemas become one column, `value`; pairs become `key` and `value`. A topic without a schema keeps its payloads as
they are, in `_payload`.

A column has one type, which holds the values of all versions (shapes.py). Avro and Protobuf messages are read with the
version that they were written with. JSON is parsed by Arrow, many messages at once where all of them fit; otherwise,
and for types that Arrow's parser lacks, one by one. The reason why a payload does not fit is given to the caller, and
its row is null.
"""
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.jobs import avro_values, json_values, shapes
from geminga.storage.jobs.shapes import NoSchema, Shape
from geminga.storage.jobs.typed import definition_of
from geminga.storage.schemas import plain_values, registry
from geminga.storage.schemas.registry import Definition
from geminga.storage.tables import protobuf_values
from geminga.storage.tables.forms import VALUE, Columns, Form, Json, OneByOne, Read, Text

S = api.Schema
RAW = "_payload"
KEY = "key"
_BYTES = registry.TYPES.index("NONE")      # also the type of payloads that are just bytes
_RAW_KINDS = _BYTES, S.Protobuf
_JAVA = "__alwaysAllowNull"                # property of schemas that Java's client makes of classes
NO_SCHEMA = Definition(_BYTES, b"", {})
_MOMENT = pa.timestamp("us", "UTC")
# Type of a schema without fields: the type of its column.
_PLAIN: dict[int, pa.DataType] = {
    S.Bool: pa.bool_(), S.Int8: pa.int32(), S.Int16: pa.int32(), S.Int32: pa.int32(), S.Int64: pa.int64(),
    S.Float: pa.float32(), S.Double: pa.float64(), S.Date: _MOMENT, S.Timestamp: _MOMENT, S.Instant: _MOMENT,
    S.Time: pa.string(), S.LocalDate: pa.date32(), S.LocalTime: pa.string(), S.LocalDateTime: pa.timestamp("us")}
# Times of day are text: Spark reads no file that has a column of them.
_READERS: dict[int, Read] = plain_values.READERS | {
    S.Time: lambda payload: shapes.time_text(1_000 * plain_values.milliseconds_of_day(payload)),
    S.LocalTime: lambda payload: shapes.time_text(0, plain_values.nanoseconds_of_day(payload))}


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
        return {version: definition for version, definition in self.versions.items()
                if definition.kind == self.newest.kind}

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the columns.  Raises NoSchema if the topic's schema cannot be a table."""
        return self._form.schema

    @property
    def takes_empty(self) -> bool:
        """Whether a payload without bytes is a value, and not the absence of one."""
        return self.is_raw or self._form.takes_empty

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
        is_known = pc.or_(pc.is_null(versions), pc.is_in(versions, pa.array(list(self._same), pa.binary())))
        strange = np.flatnonzero(~is_known.to_numpy(zero_copy_only=False) & ~skipped)
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
    stored = ((number, registry.find(catalogue, topic, number)) for number in registry.versions(catalogue, topic))
    return Values(newest.definition, {number.to_bytes(8, "big"): kept.definition
                                      for number, kept in stored if kept is not None})


def form_of(newest: Definition, versions: dict[bytes, Definition]) -> Form:
    """Return the form of a topic's values.

    newest: the newest version of its schema.  versions: those that have the newest one's type, by the number that
    messages have.  Raises NoSchema.
    """
    kind = newest.kind
    if kind in _RAW_KINDS:
        return Form(pa.schema([(RAW, pa.binary())]))
    if kind == S.String:
        return Text()
    if kind in (S.Json, S.Avro):
        return _record(newest, versions)
    if kind == S.ProtobufNative:
        roots = {version: protobuf_values.descriptor(definition.data) for version, definition in versions.items()}
        newest_root = protobuf_values.descriptor(newest.data)
        kind_of_all = protobuf_values.kind_of((newest_root, *reversed(roots.values())))
        readers = {version: protobuf_values.reader(root, kind_of_all) for version, root in roots.items()}
        return OneByOne(kind_of_all, readers, takes_empty=True)
    if kind == S.KeyValue:
        return _pair(newest, versions)
    if kind not in _PLAIN:
        raise NoSchema(f"schemas of type {registry.TYPES[kind]} cannot be tables")
    return OneByOne(_PLAIN[kind], _READERS[kind])


# -- Avro's definitions, of AVRO and JSON

def _record(newest: Definition, versions: dict[bytes, Definition]) -> Form:
    """Return the form of Avro and JSON values, with the fields of all versions."""
    definitions = {version: definition_of(definition.data) for version, definition in versions.items()}
    last, is_avro = definition_of(newest.data), newest.kind == S.Avro
    names = {version: _new_names(definition, last) if is_avro else {} for version, definition in definitions.items()}
    all_shapes = [shapes.shape_of(last, is_avro=is_avro), *(
        _renamed(shapes.shape_of(definition, is_avro=is_avro), names[version])
        for version, definition in reversed(definitions.items()))]
    whole = shapes.joined_shapes(all_shapes)
    if is_avro:
        return OneByOne(whole.kind, {version: avro_values.reader(definition, whole.kind, names[version])
                                     for version, definition in definitions.items()})
    return (Json if whole.type == "record" and _is_plain(whole) else OneByOne)(
        whole.kind, json_values.reader(whole, is_of_java=_JAVA in newest.properties))


def _new_names(older: Any, newest: Any) -> dict[str, str]:
    """Return {name of an older record's field: its name in the newest}, for fields that have another one by an alias.
    """
    if not all(isinstance(definition, dict) and definition.get("type") == "record" for definition in (older, newest)):
        return {}
    present = {part["name"] for part in newest["fields"]}
    aliases = {alias: part["name"] for part in newest["fields"] for alias in part.get("aliases", ())}
    had = {part["name"] for part in older["fields"]}
    return {name: aliases[name] for name in had if name not in present and aliases.get(name, name) not in had}


def _renamed(shape: Shape, names: dict[str, str]) -> Shape:
    """Return the shape of a record whose fields have other names."""
    if not names:
        return shape
    fields = {names.get(name, name): inner for name, inner in shape.fields.items()}
    return Shape(pa.struct([(name, inner.kind) for name, inner in fields.items()]), shape.type, fields=fields)


def _is_plain(shape: Shape) -> bool:
    """Whether Arrow's parser of JSON reads values of a shape as json_values does, or fails."""
    if shape.type in ("record", "array"):
        inner = shape.fields.values() if shape.item is None else (shape.item,)
        return all(map(_is_plain, inner))
    return shape.type in ("boolean", "int", "long", "float", "double", "string", "enum")


# -- pairs

def _pair(newest: Definition, versions: dict[bytes, Definition]) -> Form:
    """Return the form of KEY_VALUE messages.

    With separated halves the payload is the value, and the key is the message's.
    """
    halves = {version: _halves_of(definition) for version, definition in versions.items()}
    kinds = [form.kind for form in _halves_of(newest)]
    for own in reversed(halves.values()):
        kinds = [shapes.joined(kind, form.kind) for kind, form in zip(kinds, own, strict=True)]
    reads = {version: [_widened(form, kind) for form, kind in zip(own, kinds, strict=True)]
             for version, own in halves.items()}
    if newest.properties.get("kv.encoding.type") == "SEPARATED":
        return OneByOne(pa.struct([(VALUE, kinds[1])]), {version: _one(read) for version, (_, read) in reads.items()},
                        takes_empty=all(value.takes_empty for _, value in halves.values()))
    return OneByOne(pa.struct([(KEY, kinds[0]), (VALUE, kinds[1])]),
                    {version: _both(both) for version, both in reads.items()})


def _halves_of(pair: Definition) -> list[OneByOne]:
    """Return the forms of a pair's key and value."""
    halves: list[OneByOne] = []
    for name, data in zip((KEY, VALUE), plain_values.halves(pair.data), strict=True):
        text = pair.properties.get(f"{name}.schema.type", "BYTES").upper()
        kind = registry.TYPES.index(text) if text in registry.TYPES else _BYTES
        if kind in _RAW_KINDS or kind == S.KeyValue:
            halves.append(OneByOne(pa.binary(), bytes, takes_empty=True))
        elif kind == S.String:
            halves.append(OneByOne(pa.string(), bytes.decode, takes_empty=True))
        else:
            definition = Definition(kind, data or b"", {})
            form = form_of(definition, {b"": definition})
            assert isinstance(form, OneByOne)
            halves.append(form)
    return halves


def _widened(form: OneByOne, kind: pa.DataType) -> Read:
    """Return the reader of a half, with values of a type `joined` with its own."""
    read, wider = form.reader_of(b""), shapes.widening(form.kind, kind)
    return read if wider is None else lambda payload: wider(read(payload))


def _one(read: Read) -> Read:
    return lambda payload: {VALUE: read(payload)}


def _both(reads: list[Read]) -> Read:
    def read(payload: bytes) -> dict[str, Any]:
        return {name: None if half is None else read_half(half)
                for name, read_half, half in zip((KEY, VALUE), reads, plain_values.halves(payload), strict=True)}
    return read
