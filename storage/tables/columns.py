"""The rows of a table: a message's own columns, which begin with `_`, and those of its payload (values.py).

    _partition          number of the topic's partition; null: the topic has none
    _ledger_id, _entry_id, _batch_index    the message id; _batch_index is null for a message that was sent alone
    _publish_time       the table's files lie in a folder for each of its days, in UTC
    _event_time         null: the message has none
    _key, _key_is_base64, _ordering_key    as stored; a key of bytes is base64
    _properties
    _producer, _sequence_id
    _schema_version     null: the message was sent without a schema
    _null_value         the message has no value: it deletes its key

Messages that no row can show are in a table beside it, with the stored payload and the reason: encrypted ones, and
those whose payload does not fit the schema.
"""
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geminga.storage.jobs import message_columns
from geminga.storage.jobs.shapes import joined, same, widening
from geminga.storage.tables.values import RAW, Values

PREFIX, REASON = "_", "_reason"
READ = ("ledger_id", "entry_id", "batch_index", "publish_time", "event_time", "key", "key_is_base64", "ordering_key",
        "properties", "producer", "sequence_id", "payload", "schema_version", "null_value", "is_encrypted")
_LAST = ("schema_version", "null_value")
_PLAIN = tuple(name for name in READ if name not in ("payload", "is_encrypted", *_LAST))
OWN = pa.schema([("_partition", pa.int32()),
                 *((PREFIX + name, message_columns.SCHEMA.field(name).type) for name in _PLAIN),
                 ("_schema_version", pa.int64()), ("_null_value", pa.bool_())])
REJECTED = pa.schema([*OWN, (RAW, pa.binary()), (REASON, pa.string())])
ENCRYPTED = "its payload is encrypted"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message that cannot be a row: its position, and why."""

    ledger_id: int
    entry_id: int
    batch_index: int | None
    reason: str


def schema_of(values: Values) -> pa.Schema:
    """Return the Arrow schema of a topic's table.  Raises NoSchema.

    A field whose name another column has, in whatever case, gets `_` behind its name.
    """
    taken, named = {name.lower() for name in (*OWN.names, "day")}, []
    for column in values.schema:
        name = column.name
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        named.append(column.with_name(name))
    return pa.schema([*OWN, *(named if not values.is_raw else values.schema)])


def rows_of(batch: pa.RecordBatch, partition: int | None, values: Values, schema: pa.Schema, refused: str = ""
            ) -> tuple[pa.RecordBatch, pa.RecordBatch, list[Rejected]]:
    """Return (rows of the table, rows of the table of rejected messages, the rejected messages).

    batch: messages with the columns READ.  partition: the number of their partition, if their topic has some.  schema:
    of the table's next files, `settled`.
    refused: why no payload is to be read.
    """
    own = _own(batch, partition)
    encrypted = batch["is_encrypted"].to_numpy(zero_copy_only=False)
    is_null = batch["null_value"].to_numpy(zero_copy_only=False)
    payloads = batch["payload"]
    skipped = encrypted | is_null | bool(refused)
    if not values.is_raw:
        is_empty = pc.equal(pc.binary_length(payloads), 0).to_numpy(zero_copy_only=False)
        if values.takes_empty:      # but for a message without a schema, whose sender knew of no value without bytes
            is_empty &= batch["schema_version"].is_null().to_numpy(zero_copy_only=False)
        skipped |= is_empty
    columns, reasons = values.read(payloads, batch["schema_version"], skipped)
    reasons |= dict.fromkeys(np.flatnonzero(encrypted).tolist(), ENCRYPTED)
    if refused:
        reasons |= dict.fromkeys(range(len(batch)), refused)
    columns = [cast(column, row.type) for column, row in zip(columns, list(schema)[len(own):], strict=True)]
    rows = pa.RecordBatch.from_arrays([*own, *columns], schema=schema)
    if not reasons:
        return rows, _NOTHING, []
    numbers = sorted(reasons)
    is_kept = np.ones(len(rows), bool)
    is_kept[numbers] = False
    why = pa.array([reasons[row] for row in numbers], pa.string())
    beside = pa.RecordBatch.from_arrays([*(column.take(pa.array(numbers)) for column in (*own, payloads)), why],
                                        schema=REJECTED)
    rejected = [Rejected(*row.values()) for row in beside.select(
        ["_ledger_id", "_entry_id", "_batch_index", REASON]).to_pylist()]
    return rows.filter(pa.array(is_kept)), beside, rejected


_NOTHING = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in REJECTED], schema=REJECTED)


def _own(batch: pa.RecordBatch, partition: int | None) -> list[pa.Array]:
    """Return the columns OWN of messages."""
    count = len(batch)
    plain = [_unique(_text(batch[name])) if name == "properties" else _text(batch[name]) for name in _PLAIN]
    return [pa.repeat(pa.scalar(partition, pa.int32()), count), *plain, _numbers(batch["schema_version"]),
            batch["null_value"]]


def _unique(properties: pa.MapArray) -> pa.MapArray:
    """Return maps in which no key is twice: the last value counts, as in Pulsar's clients."""
    if not len(properties.keys):
        return properties
    rows = np.repeat(np.arange(len(properties)), np.diff(properties.offsets))
    pairs = np.stack((rows, properties.keys.dictionary_encode().indices.to_numpy()))
    if np.unique(pairs, axis=1).shape[1] == len(rows):
        return properties
    return pa.array([None if one is None else list(dict(one).items()) for one in properties.to_pylist()],
                    properties.type)


def _numbers(versions: pa.Array) -> pa.Array:
    """Return schema versions of 8 bytes as numbers; null for others."""
    if versions.null_count == len(versions):
        return pa.nulls(len(versions), pa.int64())
    coded = versions.dictionary_encode()
    numbers = [int.from_bytes(version) if len(version) == 8 else 1 << 63 for version in coded.dictionary.to_pylist()]
    return pa.array([number if number < 1 << 63 else None for number in numbers], pa.int64()).take(coded.indices)


def _text(column: pa.Array) -> pa.Array:
    """Return a column in which all text is UTF-8: bytes that are not become replacement characters."""
    if pa.types.is_map(column.type):
        keys, items = _text(column.keys), _text(column.items)
        if keys is column.keys and items is column.items:
            return column
        return pa.MapArray.from_arrays(column.offsets, keys, items)
    if not pa.types.is_string(column.type) or column.null_count == len(column):
        return column
    try:
        return column.view(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if one is None else one.decode(errors="replace")
                         for one in column.view(pa.binary()).to_pylist()], pa.string())


def settled(wanted: pa.Schema, known: pa.Schema | None) -> pa.Schema:
    """Return the schema of a table's next files: each column has a type that holds the values of earlier files too."""
    if known is None:
        return wanted
    return pa.schema([column.with_type(joined(known.field(column.name).type, column.type))
                      if column.name in known.names else column for column in wanted])


def all_of(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return a schema with the columns of all, each of a type that holds the values of all."""
    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for column in schema:
            types[column.name] = joined(types[column.name], column.type) if column.name in types else column.type
    return pa.schema(list(types.items()))


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as a type, `joined` with its own."""
    if column.type == kind:
        return column
    if not pa.types.is_nested(kind) and kind != pa.string():
        return column.cast(kind)
    wider = widening(column.type, kind) or same
    return pa.array([wider(one) for one in column.to_pylist()], kind)


def as_schema(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return batches as a table of a schema, whose other columns are null."""
    table = pa.Table.from_batches(list(batches))
    arrays = [pa.chunked_array([cast(chunk, column.type) for chunk in table[column.name].chunks], column.type)
              if column.name in table.column_names else pa.nulls(table.num_rows, column.type) for column in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
