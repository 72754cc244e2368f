"""Read entries as Arrow batches with a row per message.

    for batch in batches(data_dir, stretch, ("key", "payload"), print): ...

`SCHEMA` has all columns. A block of entries is read from the ledger's file, and their checksums are compared together.
Their metadata become columns (proto/metadata.py), batches are unpacked in the same way (proto/batches.py), and bytes
are copied once, into the Arrow array. Entries of another form go through the protobuf library (one_by_one.py), chunks
through chunks.py. All ways return the same rows for the same entries, and a test holds that.

Left out are markers, placeholders of a compacted view, entries whose space was given back, messages with missing
chunks, and damaged entries, which are reported. An encrypted message is a row with its stored payload; an encrypted
batch is one row without a batch index.
"""
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.proto import batches as packed
from geminga.proto import checksums, metadata
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import CannotDecompress, decompress
from geminga.proto.frames import CHECKSUM_END
from geminga.proto.metadata import ABSENT, PAD, Columns, Field
from geminga.proto.rows import Rows, words_at_each_byte
from geminga.proto.sends import KEPT_CHECKSUM
from geminga.storage import format
from geminga.storage.jobs import arrays, confirmed, one_by_one
from geminga.storage.jobs.chunks import Chunks
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.one_by_one import Damaged, Message
from geminga.storage.ledgers import compacted_ledgers

BLOCK_SIZE, BLOCK_ENTRIES = 8 << 20, 32 << 10      # of entries that are looked at together; or one
UNPACKED_MAX = 16 << 20                            # bytes of batches that are decompressed at a time; or one
MESSAGES_MAX = 32 << 10                            # of an Arrow batch, about: what arrays of them need a processor's cache holds
_GAP_MAX = 64 << 10                                # bytes between entries that are read with them

SCHEMA = pa.schema([
    ("partition", pa.int64()),            # its id
    ("ledger_id", pa.int64()), ("entry_id", pa.int64()),
    ("batch_index", pa.int32()),          # null: it came by itself, or as part of an encrypted batch
    ("message_index", pa.int64()),        # numbers the messages of a partition, ascending; of a chunked one that of its last chunk
    ("publish_time", arrays.TIME), ("event_time", arrays.TIME), ("deliver_at", arrays.TIME),      # null: none
    ("broker_time", arrays.TIME),
    ("key", pa.string()),                 # as it is stored: what clients gave as bytes is base64; null: none, which "" is not
    ("key_is_base64", pa.bool_()),
    ("ordering_key", pa.binary()),
    ("properties", pa.map_(pa.string(), pa.string())),
    ("producer", pa.string()), ("sequence_id", pa.int64()),
    ("payload", pa.binary()), ("payload_size", pa.int32()),
    ("schema_version", pa.binary()),
    ("null_value", pa.bool_()), ("is_encrypted", pa.bool_()),
    ("chunks", pa.list_(pa.int64())),     # message_index of each chunk, ascending; null: the message is whole in one entry
])

# Fields of both kinds of metadata, by the columns that need them; the others of an entry's are always looked at.
_PROPERTIES = "properties"
_Places: TypeAlias = NDArray[np.int64]
_OUTER = {
    "producer": Field("producer", 1, is_bytes=True), "sequence_id": Field("sequence_id", 2),
    "properties": Field(_PROPERTIES, 4, is_bytes=True, is_repeated=True), "key": Field("key", 6, is_bytes=True),
    "event_time": Field("event_time", 12), "schema_version": Field("schema_version", 16, is_bytes=True),
    "key_is_base64": Field("key_is_base64", 17), "ordering_key": Field("ordering_key", 18, is_bytes=True),
    "null_value": Field("null_value", 25)}
_ALWAYS = (
    Field("compression", 8, maximum=api.SNAPPY), Field("uncompressed_size", 9, maximum=(1 << 32) - 1),
    Field("count", 11, maximum=(1 << 31) - 1, default=ABSENT), Field("encryption", 13, is_bytes=True),
    Field("marker", 20, default=ABSENT), Field("chunk_count", 27, maximum=(1 << 31) - 1))
_SINGLE = {
    "properties": Field(_PROPERTIES, 1, is_bytes=True, is_repeated=True), "key": Field("key", 2, is_bytes=True),
    "event_time": Field("event_time", 5), "key_is_base64": Field("key_is_base64", 6),
    "ordering_key": Field("ordering_key", 7, is_bytes=True), "sequence_id": Field("sequence_id", 8, default=ABSENT),
    "null_value": Field("null_value", 9)}
_SINGLE_ALWAYS = Field("payload_size", 3, maximum=(1 << 31) - 1), Field("compacted_out", 4)
_PAIR = Field("key", 1, is_bytes=True), Field("value", 2, is_bytes=True)

Report = Callable[[str], None]


class ViewReplaced(Exception):
    """The view to be read is gone, because a newer one has replaced it."""


def batches(data_dir: Path | str, stretch: Stretch, columns: Collection[str], report_damage: Report, *,
            wanted: Callable[[Rows], NDArray[np.bool_]] | None = None) -> Iterator[pa.RecordBatch]:
    """Iterate over the messages of a stretch as Arrow batches with these columns of SCHEMA, in this order.

    message_index ascends within messages of one kind (single, in batches, in chunks), and not beyond that.

    report_damage: called with a line for each damage; reading goes on. wanted: given index rows (n,), INDEX_ROW or
    COMPACTED_ROW, returns which of them to read. payload_size of a single message is the size that its metadata claim,
    unless `payload` is asked for too. A ledger that is deleted before it is opened has no messages; later it is read
    to its end.

    Raises ViewReplaced, and OSError if the disk fails.
    """
    reader = _Reader(Path(data_dir), stretch, tuple(columns), report_damage)
    try:
        yield from reader.read(wanted)
    finally:
        reader.close()


@dataclass(slots=True)
class _Block:
    """Entries that are read together: their bytes, and the place of each."""

    rows: Rows                          # INDEX_ROW or COMPACTED_ROW
    entry_ids: NDArray[np.int64]
    data: NDArray[np.uint8]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def entry(self, at: int) -> bytes:
        return self.data[self.begins[at]:self.ends[at]].tobytes()

    def chosen(self, some: NDArray[np.intp]) -> "_Block":
        return _Block(self.rows[some], self.entry_ids[some], self.data, self.begins[some], self.ends[some])


@dataclass(slots=True)
class _Messages:
    """Messages as places in buffers."""

    block: _Block
    entry: NDArray[np.intp]             # of the block; ascending
    outer: Columns                      # of the block's entries
    own: Columns
    at: NDArray[np.intp]                # in `own`; ascending
    data: NDArray[np.uint8]             # that `own` and payloads are in
    payload: tuple[NDArray[np.int64], NDArray[np.int64]]
    sizes: NDArray[np.int64]
    index: NDArray[np.int64] | None     # in their batch


class _Reader:
    def __init__(self, data_dir: Path, stretch: Stretch, columns: tuple[str, ...], report: Report):
        self.folder = format.partition_folder(data_dir, stretch.partition_id)
        self.stretch, self.columns, self._report = stretch, columns, report
        self.schema = pa.schema([SCHEMA.field(name) for name in columns])
        self._outer = tuple(field for name, field in _OUTER.items() if name in columns) + _ALWAYS
        self._single = tuple(field for name, field in _SINGLE.items() if name in columns) + _SINGLE_ALWAYS
        self._fd, self._memory = -1, np.zeros(0, np.uint8)
        self._chunks = Chunks(data_dir, stretch, report)

    def close(self) -> None:
        self._chunks.close()
        if self._fd >= 0:
            os.close(self._fd)

    def report(self, entry_id: int, text: str) -> None:
        self._report(f"{self.path}: entry {self.stretch.ledger_id}:{entry_id} is left out: {text}")

    # -- rows and bytes

    def read(self, wanted: Callable[[Rows], NDArray[np.bool_]] | None) -> Iterator[pa.RecordBatch]:
        stretch = self.stretch
        folder = format.compacted_folder(self.folder) / str(stretch.view) if stretch.view else self.folder
        self.path = format.ledger_path(folder, stretch.ledger_id)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            rows, entry_ids = self._view_rows() if stretch.view else self._ledger_rows()
        except FileNotFoundError:
            if stretch.view and self.folder.exists():
                raise ViewReplaced(f"compacted view {stretch.view} of partition {stretch.partition_id} was replaced while it was "
                                   "read; read again") from None
            return
        if wanted is not None:
            chosen = wanted(rows)
            rows, entry_ids = rows[chosen], entry_ids[chosen]
        for first, end in _blocks(rows):
            block = self._load(rows[first:end], entry_ids[first:end])
            yield from self._batches(block)

    def _ledger_rows(self) -> tuple[Rows, NDArray[np.int64]]:
        stretch = self.stretch
        rows, lost, damage = confirmed.whole_rows(self.folder, stretch.partition_id, stretch.ledger_id, stretch.first, stretch.end)
        for text in damage:
            self._report(text)
        entry_ids = np.arange(stretch.first, stretch.first + len(rows))
        return (rows[~lost], entry_ids[~lost]) if lost.any() else (rows, entry_ids)

    def _view_rows(self) -> tuple[Rows, NDArray[np.int64]]:
        stretch = self.stretch
        view = compacted_ledgers.open_view(self.folder, stretch.view)
        found = view.find(stretch.ledger_id) if view is not None else None
        if found is None:
            return np.empty(0, format.COMPACTED_ROW), np.empty(0, np.int64)
        start, stop = np.searchsorted(found.kept, [stretch.first, stretch.end]).tolist()
        for text in found.damage if start == 0 else ():      # the first task tells of it
            self._report(text)
        return found.rows[start:stop], found.kept[start:stop]

    def _load(self, rows: Rows, entry_ids: NDArray[np.int64]) -> _Block:
        """Return a block with those entries that exist and are whole."""
        offsets, sizes = rows["offset"].astype(np.int64), rows["size"].astype(np.int64)
        start, size = int(offsets[0]), int(offsets[-1] + sizes[-1] - offsets[0])
        if size + PAD > len(self._memory):      # what was made of the block before is a copy
            self._memory = np.zeros(size + PAD, np.uint8)
        data = self._memory[:size + PAD]
        there = _read_at(self._fd, memoryview(data)[:size], start)
        begins = offsets - start
        block = _Block(rows, entry_ids, data, begins, begins + sizes)
        heads = np.ndarray(len(data) - 3, "<u4", data, 0, (1,))
        is_there = heads[begins] != 0      # else its space was given back
        is_cut = block.ends > there
        if is_cut.any():
            for entry_id in entry_ids[is_cut].tolist():
                self.report(entry_id, "the file ends before it does")
            is_there &= ~is_cut
        checked = np.flatnonzero(is_there & (rows["flags"] & KEPT_CHECKSUM != 0))
        wrong = checked[checksums.wrong_entries(data, begins[checked], block.ends[checked], rows["crc32c"][checked])]
        for entry_id in entry_ids[wrong].tolist():
            self.report(entry_id, "its checksum is wrong")
        is_there[wrong] = False
        return block if is_there.all() else block.chosen(np.flatnonzero(is_there))

    # -- entries

    def _batches(self, block: _Block) -> Iterator[pa.RecordBatch]:
        if not len(block.rows):
            return
        words = words_at_each_byte(block.data)
        bodies = block.begins + (CHECKSUM_END + 4)
        payloads = bodies + (words[block.begins + CHECKSUM_END] & np.uint64(0xFFFFFFFF)).astype(np.uint32).byteswap()
        is_odd = (payloads > block.ends) | (block.rows["flags"] & KEPT_CHECKSUM == 0)
        if is_odd.any():
            payloads = np.where(is_odd, bodies, payloads)
        outer = metadata.read(block.data, bodies, payloads, self._outer)
        self._read_properties(block.data, outer)
        is_odd |= outer.odd
        rest = ~is_odd
        if "marker" in outer.numbers:
            rest &= outer.numbers["marker"] == ABSENT
        by_chunk = np.empty(0, np.intp)
        if "chunk_count" in outer.numbers:
            is_chunk = rest & (outer.numbers["chunk_count"] > np.uint64(1))
            by_chunk, rest = np.flatnonzero(is_chunk), rest & ~is_chunk
        is_batch = np.zeros(len(rest), bool)
        if "count" in outer.numbers:
            is_batch = rest & (outer.numbers["count"] != ABSENT) & ~outer.has("encryption")
        if (plain := np.flatnonzero(rest & ~is_batch)).size:
            yield from self._plain(block, outer, plain, payloads)
        odd = np.flatnonzero(is_odd).tolist()
        if is_batch.any():
            for some in _by_size(np.flatnonzero(is_batch), outer, block.ends - payloads):
                left = yield from self._unpack(block, outer, some, payloads)
                odd += left.tolist()
        yield from self._one_by_one(block, odd + by_chunk.tolist())

    def _read_properties(self, data: NDArray[np.uint8], columns: Columns) -> None:
        """Read the spans of keys and values of properties.  Messages with unreadable properties become odd."""
        if _PROPERTIES not in columns.repeated:
            return
        messages, begins, ends = columns.repeated[_PROPERTIES]
        pairs = metadata.read(data, begins, ends, _PAIR)
        spans = [np.where(pairs.has(name), side, 0) for name in ("key", "value") for side in pairs.spans.get(name, (0, 0))]
        if pairs.odd.any():
            columns.odd[messages[pairs.odd]] = True
            spans = [np.where(pairs.odd, 0, span) for span in spans]
        places: Any = (messages, *spans)      # key and value: two columns more than of a field that is read by itself
        columns.repeated[_PROPERTIES] = places

    def _plain(self, block: _Block, outer: Columns, some: NDArray[np.intp], payloads: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Return the messages that are not in batches, and encrypted entries."""
        begins, ends, data = payloads[some], block.ends[some], block.data
        sizes = ends - begins
        if "compression" in outer.numbers:
            encrypted = outer.has("encryption")[some]
            codecs = outer.numbers["compression"][some]
            is_compressed = (codecs != api.NONE) & ~encrypted
            sizes = np.where(is_compressed, outer.number("uncompressed_size")[some].astype(np.int64), sizes)
            if "payload" in self.columns:
                for piece in _within(np.arange(len(some)), np.where(is_compressed, sizes, 0)):
                    yield from self._decompressed(block, outer, some[piece], begins[piece], ends[piece], codecs[piece],
                                                  is_compressed[piece], sizes[piece])
                return
        yield from self._rows(_Messages(block, some, outer, outer, some, data, (begins, ends), sizes, None))

    def _decompressed(self, block: _Block, outer: Columns, some: NDArray[np.intp], begins: _Places, ends: _Places,
                      codecs: NDArray[np.uint64], is_compressed: NDArray[np.bool_],
                      sizes: NDArray[np.integer]) -> Iterator[pa.RecordBatch]:
        data, begins, ends, failed = self._undo(block, some, begins, ends, codecs, is_compressed, sizes)
        if failed.any():
            some, begins, ends = some[~failed], begins[~failed], ends[~failed]
        yield from self._rows(_Messages(block, some, outer, outer, some, data, (begins, ends), ends - begins, None))

    def _undo(self, block: _Block, some: NDArray[np.intp], begins: _Places, ends: _Places, codecs: NDArray[np.uint64],
              is_compressed: NDArray[np.bool_],
              sizes: NDArray[np.integer]) -> tuple[NDArray[np.uint8], _Places, _Places, NDArray[np.bool_]]:
        """Return (data with decompressed payloads at its end, begins, ends, which payloads cannot be decompressed)."""
        chosen, failed, raw = np.flatnonzero(is_compressed), np.zeros(len(some), bool), memoryview(block.data)
        pieces: list[bytes | memoryview] = []
        if not len(chosen):
            return block.data, begins, ends, failed
        for at, codec, begin, end, size in zip(*(column.tolist() for column in (
                chosen, codecs[chosen], begins[chosen], ends[chosen], sizes[chosen])), strict=True):
            try:
                pieces.append(decompress(codec, raw[begin:end], size))
            except CannotDecompress as error:
                failed[at] = True
                pieces.append(b"")
                self.report(int(block.entry_ids[some[at]]), f"its payload {error}")
        begins, ends, behind = begins.copy(), ends.copy(), len(block.data) + np.cumsum([len(piece) for piece in pieces])
        begins[chosen], ends[chosen] = np.append(len(block.data), behind[:-1]), behind
        return np.frombuffer(b"".join((block.data.data, *pieces, bytes(PAD))), np.uint8), begins, ends, failed

    def _unpack(self, block: _Block, outer: Columns, some: NDArray[np.intp],
                payloads: _Places) -> Generator[pa.RecordBatch, None, NDArray[np.intp]]:
        """Unpack the messages of batches.  Return the batches that must go through the protobuf library."""
        begins, ends, data = payloads[some], block.ends[some], block.data
        if "compression" in outer.numbers:
            codecs = outer.numbers["compression"][some]
            data, begins, ends, failed = self._undo(block, some, begins, ends, codecs, codecs != api.NONE,
                                                    outer.number("uncompressed_size")[some])
            some, begins, ends = some[~failed], begins[~failed], ends[~failed]
        found = packed.unpack(data, begins, ends, outer.numbers["count"][some].astype(np.int64))
        left = [some[found.odd]]
        kept = ~found.odd[found.batches]
        for piece in _slices(found.batches, kept):
            batch, index, begin, end, behind = (column[piece] for column in found[:5])
            own = metadata.read(data, begin, end, self._single)
            self._read_properties(data, own)
            is_odd = own.odd | (own.number("payload_size").astype(np.int64) != behind - end)
            chosen = np.ones(len(batch), bool)
            if is_odd.any():
                odd_ones = np.unique(batch[is_odd])
                left.append(some[odd_ones])
                chosen = ~np.isin(batch, odd_ones)
            if "compacted_out" in own.numbers:
                chosen &= own.numbers["compacted_out"] == 0
            at = np.flatnonzero(chosen)
            if at.size:
                yield from self._rows(_Messages(block, some[batch[at]], outer, own, at, data, (end[at], behind[at]),
                                                behind[at] - end[at], index[at]))
        return np.concatenate(left)

    # -- rows

    def _rows(self, messages: _Messages) -> Iterator[pa.RecordBatch]:
        if len(messages.entry):
            yield pa.RecordBatch.from_arrays([self._column(name, messages) for name in self.columns], schema=self.schema)

    def _column(self, name: str, messages: _Messages) -> pa.Array:
        block, entry, own, at = messages.block, messages.entry, messages.own, messages.at
        count, kind = len(entry), SCHEMA.field(name).type
        match name:
            case "partition":
                return pa.array(np.full(count, self.stretch.partition_id))
            case "ledger_id":
                return pa.array(np.full(count, self.stretch.ledger_id))
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
                of = np.cumsum(np.diff(entry, prepend=entry[:1]) != 0)      # each of a batch has the same
                return _strings(block.data, messages.outer, name, entry[np.diff(of, prepend=-1) != 0], kind).take(pa.array(of))
            case "properties":
                return _properties(messages)
            case "sequence_id":
                found = messages.outer.number(name)[entry]
                if messages.index is not None:
                    own_ones = own.number(name, int(ABSENT))[at]
                    found = np.where(own_ones == ABSENT, found, own_ones)
                return pa.array(found.astype(np.int64))
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

    def _one_by_one(self, block: _Block, some: list[int]) -> Iterator[pa.RecordBatch]:
        """Iterate over batches of messages of unusual entries and chunks, by the protobuf library."""
        found, size = [], 0
        for at in sorted(some):
            row, entry_id = block.rows[at], int(block.entry_ids[at])
            try:
                outer, stored = one_by_one.split(block.entry(at))
                if outer.HasField("marker_type"):
                    continue
                these: Iterable[Message]
                if one_by_one.is_chunk(outer):
                    these = self._chunks.joined(entry_id, row, outer, stored, "payload" in self.columns)
                elif outer.num_messages_in_batch <= MESSAGES_MAX:
                    these = list(one_by_one.messages(outer, stored))
                else:
                    one_by_one.check(outer, stored)      # before anything of it is given
                    these = one_by_one.messages(outer, stored)
            except Damaged as damage:
                self.report(entry_id, str(damage))
                continue
            for message in these:
                message |= {
                    "partition": self.stretch.partition_id, "ledger_id": self.stretch.ledger_id, "entry_id": entry_id,
                    "message_index": int(row["message_index"]) + (message["batch_index"] or 0), "chunks": message.get("chunks"),
                    **{name: int(row[name]) for name in ("publish_time", "broker_time", "deliver_at")}}
                found.append(message)
                size += message["payload_size"]
                if len(found) >= MESSAGES_MAX or size >= UNPACKED_MAX:
                    yield self._batch_of(found)
                    found, size = [], 0
        if found:
            yield self._batch_of(found)

    def _batch_of(self, found: list[Message]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([_listed([one[name] for one in found], SCHEMA.field(name)) for name in self.columns],
                                          schema=self.schema)


def _listed(values: list[Any], field: pa.Field) -> pa.Array:
    if field.type == arrays.TIME:
        return arrays.times(np.array(values, np.int64), is_optional=field.name in ("event_time", "deliver_at"))
    if field.type == pa.string():
        return _as_text(pa.array(values, pa.binary()))
    if pa.types.is_map(field.type):
        offsets = np.concatenate(([0], np.cumsum([len(pairs) for pairs in values]))).astype(np.int32)
        keys, items = ([pair[side] for pairs in values for pair in pairs] for side in (0, 1))
        return pa.MapArray.from_arrays(offsets, _as_text(pa.array(keys, pa.binary())), _as_text(pa.array(items, pa.binary())))
    return pa.array(values, field.type)


def _as_text(array: pa.Array) -> pa.Array:
    """Return an array of bytes as text, without a check."""
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count)


def _strings(data: NDArray[np.uint8], columns: Columns, name: str, some: NDArray[np.intp], kind: pa.DataType) -> pa.Array:
    if name not in columns.spans:
        return pa.nulls(len(some), kind)
    begins, ends = columns.spans[name]
    return arrays.strings(data, begins[some], ends[some], kind)


def _properties(messages: _Messages) -> pa.Array:
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


# -- what is looked at together

def _blocks(rows: Rows) -> Iterator[tuple[int, int]]:
    """Iterate over (first, end) of rows whose entries are read together."""
    offsets = rows["offset"].astype(np.int64)
    ends = offsets + rows["size"]
    borders = np.flatnonzero((offsets[1:] - ends[:-1] > _GAP_MAX) | (offsets[1:] < ends[:-1])) + 1
    for first, end in zip([0, *borders.tolist()], [*borders.tolist(), len(rows)], strict=True):
        while first < end:
            until = int(np.searchsorted(ends[first:end], offsets[first] + BLOCK_SIZE, side="right"))
            until = min(end, first + max(1, min(until, BLOCK_ENTRIES)))
            yield first, until
            first = until


def _by_size(some: NDArray[np.intp], outer: Columns, stored: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Split batches into groups that are not too large when they are decompressed."""
    sizes = stored[some]
    if "compression" in outer.numbers:
        sizes = np.where(outer.numbers["compression"][some] != api.NONE, outer.number("uncompressed_size")[some].astype(np.int64), sizes)
    return list(_within(some, sizes))


def _within(some: NDArray[np.intp], sizes: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """Iterate over groups of at most UNPACKED_MAX bytes together, or of one."""
    ends = np.cumsum(sizes)
    first, before = 0, 0
    while first < len(some):
        until = max(first + 1, int(np.searchsorted(ends, before + UNPACKED_MAX, side="right")))
        yield some[first:until]
        first, before = until, int(ends[until - 1])


def _slices(batch: NDArray[np.int64], kept: NDArray[np.bool_]) -> Iterator[NDArray[np.intp]]:
    """Iterate over groups of about MESSAGES_MAX messages; no group ends within a batch."""
    left = np.flatnonzero(kept)
    first = 0
    while first < len(left):
        until = min(len(left), first + MESSAGES_MAX)
        if until < len(left):
            until = int(np.searchsorted(batch[left], batch[left[until - 1]], side="right"))
        yield left[first:until]
        first = until


def _read_at(fd: int, into: memoryview, offset: int) -> int:
    """Read into a buffer, and return the number of bytes read."""
    done = 0
    while done < len(into) and (count := os.preadv(fd, [into[done:]], offset + done)):
        done += count
    return done
