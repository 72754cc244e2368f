"""The columns of a message, and Arrow arrays of them.

`SCHEMA` has all columns.  Arrays are made of messages that lie as places in buffers (`Messages`), or of messages that
the protobuf library has read one by one.
"""
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.proto import metadata
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.metadata import ABSENT, Columns, Field
from geminga.storage.jobs import arrays
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.entry_blocks import Block
from geminga.storage.jobs.one_by_one import Message

SCHEMA = pa.schema([
    ("partition", pa.int64()),            # its id
    ("ledger_id", pa.int64()), ("entry_id", pa.int64()),
    ("batch_index", pa.int32()),          # null: the message was sent alone, or is in an encrypted batch
    ("message_index", pa.int64()),        # ascending in the partition; of a chunked message its last chunk has it
    ("publish_time", arrays.TIME), ("event_time", arrays.TIME), ("deliver_at", arrays.TIME),      # null: none
    ("broker_time", arrays.TIME),
    ("key", pa.string()),                 # as stored: base64 if the client gave bytes; null: none, unlike ""
    ("key_is_base64", pa.bool_()),
    ("ordering_key", pa.binary()),
    ("properties", pa.map_(pa.string(), pa.string())),
    ("producer", pa.string()), ("sequence_id", pa.int64()),
    ("payload", pa.binary()), ("payload_size", pa.int32()),
    ("schema_version", pa.binary()),
    ("null_value", pa.bool_()), ("is_encrypted", pa.bool_()),
    ("chunks", pa.list_(pa.int64())),     # message_index of each chunk, ascending; null: the message is one entry
])

_PROPERTIES = "properties"
# Fields of an entry's metadata, and of a single message's in a batch, by the columns that need them.
_OUTER = {
    "producer": Field("producer", 1, is_bytes=True), "sequence_id": Field("sequence_id", 2),
    "properties": Field(_PROPERTIES, 4, is_bytes=True, is_repeated=True), "key": Field("key", 6, is_bytes=True),
    "event_time": Field("event_time", 12), "schema_version": Field("schema_version", 16, is_bytes=True),
    "key_is_base64": Field("key_is_base64", 17), "ordering_key": Field("ordering_key", 18, is_bytes=True),
    "null_value": Field("null_value", 25)}
_SINGLE = {
    "properties": Field(_PROPERTIES, 1, is_bytes=True, is_repeated=True), "key": Field("key", 2, is_bytes=True),
    "event_time": Field("event_time", 5), "key_is_base64": Field("key_is_base64", 6),
    "ordering_key": Field("ordering_key", 7, is_bytes=True), "sequence_id": Field("sequence_id", 8, default=ABSENT),
    "null_value": Field("null_value", 9)}
# Fields that are always read, because the payload cannot be read without them.
_OUTER_ALWAYS = (
    Field("compression", 8, maximum=api.SNAPPY), Field("uncompressed_size", 9, maximum=(1 << 32) - 1),
    Field("count", 11, maximum=(1 << 31) - 1, default=ABSENT), Field("encryption", 13, is_bytes=True),
    Field("marker", 20, default=ABSENT), Field("chunk_count", 27, maximum=(1 << 31) - 1))
_SINGLE_ALWAYS = Field("payload_size", 3, maximum=(1 << 31) - 1), Field("compacted_out", 4)
_PAIR = Field("key", 1, is_bytes=True), Field("value", 2, is_bytes=True)      # KeyValue


def outer_fields(names: Collection[str]) -> tuple[Field, ...]:
    """Return the fields of MessageMetadata to read for these columns."""
    return tuple(field for name, field in _OUTER.items() if name in names) + _OUTER_ALWAYS


def single_fields(names: Collection[str]) -> tuple[Field, ...]:
    """Return the fields of SingleMessageMetadata to read for these columns."""
    return tuple(field for name, field in _SINGLE.items() if name in names) + _SINGLE_ALWAYS


def read_properties(data: NDArray[np.uint8], columns: Columns) -> None:
    """Find where the keys and values of message properties begin and end in `data`.

    Messages with unreadable properties are marked as odd, to be read one by one.
    """
    if _PROPERTIES not in columns.repeated:
        return
    messages, begins, ends = columns.repeated[_PROPERTIES]
    pairs = metadata.read(data, begins, ends, _PAIR)
    spans = [np.where(pairs.has(name), side, 0) for name in ("key", "value") for side in pairs.spans.get(name, (0, 0))]
    if pairs.odd.any():
        columns.odd[messages[pairs.odd]] = True
        spans = [np.where(pairs.odd, 0, span) for span in spans]
    places: Any = (messages, *spans)      # two columns more than a field has that is read by itself
    columns.repeated[_PROPERTIES] = places


@dataclass(slots=True)
class Messages:
    """Messages of a block, given by where their metadata and payloads lie in buffers."""

    block: Block
    entry: NDArray[np.intp]             # place of each message's entry in the block; ascending
    outer: Columns                      # metadata of the block's entries
    own: Columns                        # metadata of messages; `outer` again outside of batches
    at: NDArray[np.intp]                # place of each message in `own`; ascending
    data: NDArray[np.uint8]             # that `own` and payloads are in
    payload: tuple[NDArray[np.int64], NDArray[np.int64]]      # begins, ends
    sizes: NDArray[np.int64]            # of payloads
    index: NDArray[np.int64] | None     # in the batch; None outside of batches


def column(name: str, messages: Messages, stretch: Stretch) -> pa.Array:
    """Return one column of SCHEMA for messages of a stretch, as an Arrow array.

    Raises KeyError for an unknown name.
    """
    block, entry, own, at = messages.block, messages.entry, messages.own, messages.at
    count, kind = len(entry), SCHEMA.field(name).type
    match name:
        case "partition":
            return pa.array(np.full(count, stretch.partition_id))
        case "ledger_id":
            return pa.array(np.full(count, stretch.ledger_id))
        case "entry_id":
            return pa.array(block.entry_ids[entry])
        case "batch_index":
            return pa.nulls(count, kind) if messages.index is None else pa.array(messages.index.astype(np.int32))
        case "message_index":
            indexes = block.rows[name].astype(np.int64)[entry]
            return pa.array(indexes if messages.index is None else indexes + messages.index)
        case "publish_time" | "broker_time" | "deliver_at":
            return arrays.times(block.rows[name][entry], is_optional=name == "deliver_at")
        case "event_time":
            return arrays.times(own.number(name).astype(np.int64)[at], is_optional=True)
        case "key" | "ordering_key":
            return _strings(messages.data, own, name, at, kind)
        case "producer" | "schema_version":
            if messages.index is None:
                return _strings(block.data, messages.outer, name, entry, kind)
            # All messages of a batch have the same: it is copied once for each batch.
            batch = np.cumsum(np.diff(entry, prepend=entry[:1]) != 0)
            firsts = entry[np.diff(batch, prepend=-1) != 0]
            return _strings(block.data, messages.outer, name, firsts, kind).take(pa.array(batch))
        case "properties":
            return _properties(messages)
        case "sequence_id":
            numbers = messages.outer.number(name)[entry]
            if messages.index is not None:
                own_ones = own.number(name, int(ABSENT))[at]
                numbers = np.where(own_ones == ABSENT, numbers, own_ones)
            return pa.array(numbers.astype(np.int64))
        case "payload":
            return arrays.strings(messages.data, *messages.payload, kind)
        case "payload_size":
            return pa.array(messages.sizes.astype(np.int32))
        case "key_is_base64" | "null_value":
            return pa.array(own.number(name)[at] != 0)
        case "is_encrypted":
            return pa.array(messages.outer.has("encryption")[entry])
        case "chunks":
            return pa.nulls(count, kind)
    raise KeyError(name)


def listed(name: str, messages: list[Message]) -> pa.Array:
    """Return one column of SCHEMA for messages that the protobuf library has read one by one."""
    field, values = SCHEMA.field(name), [message[name] for message in messages]
    if field.type == arrays.TIME:
        return arrays.times(np.array(values, np.int64), is_optional=field.name in ("event_time", "deliver_at"))
    if field.type == pa.string():
        return _as_text(pa.array(values, pa.binary()))
    if pa.types.is_map(field.type):
        offsets = np.concatenate(([0], np.cumsum([len(pairs) for pairs in values]))).astype(np.int32)
        keys, items = ([pair[side] for pairs in values for pair in pairs] for side in (0, 1))
        return pa.MapArray.from_arrays(offsets, _as_text(pa.array(keys, pa.binary())),
                                       _as_text(pa.array(items, pa.binary())))
    return pa.array(values, field.type)


def _as_text(array: pa.Array) -> pa.Array:
    """Return an Arrow array of bytes as strings, without checking that they are UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count)


def _strings(data: NDArray[np.uint8], columns: Columns, name: str, some: NDArray[np.intp],
             kind: pa.DataType) -> pa.Array:
    if name not in columns.spans:
        return pa.nulls(len(some), kind)
    begins, ends = columns.spans[name]
    return arrays.strings(data, begins[some], ends[some], kind)


def _properties(messages: Messages) -> pa.Array:
    own, at = messages.own, messages.at
    if _PROPERTIES not in own.repeated:
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(np.zeros(len(at) + 1, np.int32), nothing, nothing)
    of, *spans = own.repeated[_PROPERTIES]
    wanted = np.zeros(len(own.odd), bool)
    wanted[at] = True
    counts, kept = np.bincount(of, minlength=len(own.odd)), wanted[of]
    keys_begin, keys_end, begin, end = (span[kept] for span in spans)
    offsets = np.concatenate(([0], np.cumsum(counts[at]))).astype(np.int32)
    return pa.MapArray.from_arrays(offsets, arrays.strings(messages.data, keys_begin, keys_end, pa.string()),
                                   arrays.strings(messages.data, begin, end, pa.string()))
