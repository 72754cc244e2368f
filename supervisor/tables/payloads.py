"""Rows as payloads: bytes of one column, JSON made column by column, or values of a topic's schema one by one."""
import json
from json.encoder import encode_basestring as quoted
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from avro.schema import RecordSchema, Schema, UnionSchema

from geminga.storage.schemas import avro_rules, registry
from geminga.storage.schemas.registry import TYPES, Definition, T
from geminga.supervisor.tables import avro_types, plain_values
from geminga.supervisor.tables.files import BadTable
from geminga.workers.messages import avro_encoding
from geminga.workers.messages.outgoing import Wrong
from geminga.workers.messages.schema_encoding import SchemaEncoder

_ESCAPED = r'["\\\x00-\x1f]'      # characters that a text of JSON cannot have as they are
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_BYTES = pa.large_binary()
_T = pa.types


class Payloads(Protocol):
    """A way to make payloads of rows."""

    def of(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """Return the payloads of rows (n,), None for rows without a value.  Raises Wrong, which names the column."""


class Raw:
    """Payloads that are the bytes, or the text, of one column."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<Raw {self._name}>"

    def of(self, batch: pa.RecordBatch) -> list[bytes | None]:
        return _listed(batch.column(self._name).cast(_BYTES))


class Json:
    """JSON objects, without spaces, with all fields in the order of the columns."""

    def __init__(self, fields: list[pa.Field], definition: RecordSchema | None) -> None:
        """definition: Avro's of the rows, by which times are numbers; without one they are text."""
        self._names = [field.name for field in fields]
        self._schemas = _schemas_of(definition)
        keys = [json.dumps(name, ensure_ascii=False) + ":" for name in self._names]
        self._starts = [f"{',' if at else '{'}{key}" for at, key in enumerate(keys)]

    def __repr__(self) -> str:
        return f"<Json {self._names}>"

    def of(self, batch: pa.RecordBatch) -> list[bytes | None]:
        pieces: list[Any] = []
        for name, start in zip(self._names, self._starts, strict=True):
            pieces += start, self._texts(batch.column(name), name)
        return _listed(_joined(*pieces, "}").cast(_BYTES))

    def _texts(self, array: pa.Array, name: str) -> pa.Array:
        """Return the JSON texts of a column, large_string (n,).  Raises Wrong."""
        kind = array.type
        if avro_types.is_text(kind):
            texts = _quoted(array)
        elif _T.is_integer(kind) or _T.is_boolean(kind):
            texts = self._fitting(array, name).cast(pa.large_string())
        elif _T.is_floating(kind):
            if not pc.all(pc.is_finite(array), min_count=0).as_py():
                raise Wrong(f"{name}: JSON has no number that is infinite or none (NaN)")
            texts = array.cast(pa.large_string())
        elif self._is_number(kind, name):
            return self._texts(plain_values.numbers(array, name), name)
        else:
            plain = plain_values.values(array, name, self._schemas.get(name), is_avro=False)
            try:
                made = [_ENCODER.encode(value) for value in plain]
            except ValueError as error:
                raise Wrong(f"{name}: {error}") from None
            texts = pa.array(made, pa.large_string())
        return pc.coalesce(texts, pa.scalar("null", pa.large_string()))

    def _fitting(self, array: pa.Array, name: str) -> pa.Array:
        """Return a column, of 64 bits with a sign if the definition says so.  Raises Wrong."""
        if not self._schemas or not _T.is_uint64(array.type):
            return array
        try:
            return array.cast(pa.int64())
        except pa.ArrowInvalid:
            raise Wrong(f"{name}: a number is above {(1 << 63) - 1}, the largest of the schema's type long") from None

    def _is_number(self, kind: Any, name: str) -> bool:
        """Whether values of a type of times are numbers as `plain_values.numbers` returns them."""
        logical = plain_values.logical_type(plain_values.branch(self._schemas.get(name)))
        return logical.endswith("-micros") or (logical == "date" and _T.is_date(kind))


def _quoted(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.large_string())
    if pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        return pa.array([None if text is None else quoted(text) for text in texts.to_pylist()], pa.large_string())
    return _joined('"', texts, '"')


def _joined(*pieces: pa.Array | str) -> pa.Array:
    """Return texts (n,) of pieces, of which at least one is an array large_string (n,)."""
    text = pa.large_string()
    return pc.binary_join_element_wise(*(pa.scalar(piece, text) if isinstance(piece, str) else piece
                                         for piece in pieces), pa.scalar("", text))


class Records:
    """Objects encoded one by one by a topic's schema, JSON or Protobuf, which has a field for each column."""

    def __init__(self, names: list[str], definition: Definition) -> None:
        self._names, self._encoder = names, SchemaEncoder(definition)
        self._schemas = _schemas_of(record_of(definition))

    def __repr__(self) -> str:
        return f"<Records {self._names} for {self._encoder}>"

    def of(self, batch: pa.RecordBatch) -> list[bytes | None]:
        names, encode = self._names, self._encoder.of_value
        columns = [plain_values.values(batch.column(name), name, self._schemas.get(name), is_avro=False)
                   for name in names]
        return [encode(dict(zip(names, row, strict=True))).payload for row in zip(*columns, strict=True)]


class Avro:
    """Records in Avro's binary form, whose fields are encoded column by column, and each distinct value once."""

    def __init__(self, names: list[str], record: RecordSchema) -> None:
        """Raises BadTable if the record needs a field that no column has."""
        self._record, self._defaults = record, dict[str, bytes]()
        for field in record.fields:
            if field.name not in names:
                try:
                    value = avro_encoding.default(field, field.name)
                except Wrong as error:
                    raise BadTable(f"column {error}") from None
                self._defaults[field.name] = avro_encoding.encode(field.type, value, field.name)

    def __repr__(self) -> str:
        return f"<Avro {self._record.fullname}>"

    def of(self, batch: pa.RecordBatch) -> list[bytes | None]:
        pieces = [pa.scalar(self._defaults[field.name], _BYTES) if field.name in self._defaults
                  else _encoded(batch.column(field.name), field.name, field.type) for field in self._record.fields]
        return _listed(pc.binary_join_element_wise(*pieces, pa.scalar(b"", _BYTES)))


def _encoded(array: pa.Array, name: str, schema: Schema) -> pa.Array:
    """Return a column in Avro's binary form, large_binary (n,).  Raises Wrong."""
    indices = None
    if not _T.is_nested(array.type):
        distinct = array.dictionary_encode(null_encoding="encode")
        array, indices = distinct.dictionary, distinct.indices
    values = plain_values.values(array, name, schema, is_avro=True)
    branch = plain_values.branch(schema)
    if branch is None or not isinstance(schema, UnionSchema):
        made = [avro_encoding.encode(schema, value, name) for value in values]
    else:       # a union of null and one type: its branch is known, and to try null first would take most of the time
        start = bytes((2 * next(at for at, one in enumerate(schema.schemas) if one is branch),))
        made = [avro_encoding.encode(schema, value, name) if value is None
                else start + avro_encoding.encode(branch, value, name) for value in values]
    encoded = pa.array(made, _BYTES)
    return encoded if indices is None else encoded.take(indices)


class Single:
    """Values of one column, encoded by a topic's schema of a primitive type."""

    def __init__(self, name: str, definition: Definition) -> None:
        self._name, self._encoder = name, SchemaEncoder(definition)

    def __repr__(self) -> str:
        return f"<Single {self._name} for {self._encoder}>"

    def of(self, batch: pa.RecordBatch) -> list[bytes | None]:
        name, encode = self._name, self._encoder.of_value
        values = plain_values.values(batch.column(name), name, None, is_avro=False)
        try:
            return [encode(value).payload for value in values]
        except Wrong as error:
            raise Wrong(f"{name}: {str(error).removeprefix('the value: ')}") from None


def record_of(definition: Definition) -> RecordSchema | None:
    """Return the Avro record of a schema AVRO or JSON; None if it has none, as JSON Schema of an old client."""
    if definition.kind not in (T.Avro, T.Json):
        return None
    try:
        schema = avro_rules.parse(definition.data.decode())
    except ValueError:
        return None
    return schema if isinstance(schema, RecordSchema) else None


def _schemas_of(record: Schema | None) -> dict[str, Schema]:
    return {field.name: field.type for field in getattr(record, "fields", ())}


def for_schema(definition: Definition, fields: list[pa.Field]) -> Payloads:
    """Return how rows become payloads of a topic's schema.  Raises BadTable, NotEncodable, InvalidSchema."""
    kind, names = definition.kind, [field.name for field in fields]
    if kind in (T.KeyValue, T.Protobuf):
        raise BadTable(f"the topic's schema is {TYPES[kind]}, by which rows cannot be encoded: --payload-column "
                       "publishes bytes as they are")
    if kind not in (T.Avro, T.Json, T.ProtobufNative):
        if len(fields) != 1:
            raise BadTable(f"the topic's schema is {TYPES[kind]}, of single values: choose one column with --columns, "
                           f"of {', '.join(names)}")
        return Single(names[0], definition)
    record = record_of(definition)
    if kind == T.Json and definition.data == derived(fields, T.Json).data:
        return Json(fields, record)      # every row fits
    for name in names:
        if record is not None and name not in _schemas_of(record):
            raise BadTable(f"column {name}: the topic's schema has no such field; --columns chooses columns")
    return Avro(names, record) if kind == T.Avro and record is not None else Records(names, definition)


def derived(fields: list[pa.Field], kind: int) -> Definition:
    """Return the schema, AVRO or JSON, of rows with these columns.  Raises BadTable."""
    made = avro_types.definition(fields, is_json=kind == T.Json)
    definition = Definition(kind, json.dumps(made, separators=(",", ":"), ensure_ascii=False).encode(), {})
    if len(definition.data) > registry.SIZE_MAX:
        raise BadTable(f"the table's schema has {len(definition.data)} bytes, and a broker takes "
                       f"{registry.SIZE_MAX}; choose fewer columns with --columns")
    return definition


def _listed(column: pa.Array) -> list[bytes | None]:
    payloads: list[bytes | None] = column.to_pylist()
    return payloads
