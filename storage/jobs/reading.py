"""Read entries as Arrow batches with a row per message.

    for batch in batches(data_dir, stretch, ("key", "payload"), print): ...

entry_blocks.py reads a block of entries from the ledger's file and compares their checksums together.  Their metadata
become columns (proto/metadata.py), batches are unpacked in the same way (proto/batches.py), and bytes are copied once,
into the Arrow array (message_columns.py, which has the schema).  Entries of another form go through the protobuf
library (one_by_one.py), chunks through chunks.py.  All ways return the same rows for the same entries, and a test
holds that.

Left out are markers, placeholders and masked messages of a compacted view, entries whose space was given back,
messages with missing chunks, and damaged entries, which are reported.  An encrypted message is a row with its stored
payload; an encrypted batch is one row without a batch index.
"""
from bisect import bisect_right
from collections.abc import Collection, Generator, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.proto import batches as packed
from geminga.proto import metadata
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import CannotDecompress, decompress
from geminga.proto.frames import CHECKSUM_END
from geminga.proto.metadata import ABSENT, PAD, Columns
from geminga.proto.rows import words_at_each_byte
from geminga.proto.sends import KEPT_CHECKSUM
from geminga.storage.jobs import message_columns, one_by_one
from geminga.storage.jobs.chunks import Chunks
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.entry_blocks import Block, BlockReader, ReportDamage, Wanted, message_numbers
from geminga.storage.jobs.message_columns import SCHEMA, Messages, read_properties
from geminga.storage.jobs.one_by_one import Damaged, Message
from geminga.storage.ledgers.view_files import Count

UNPACKED_MAX = 16 << 20             # bytes of batches that are decompressed at a time; a larger batch is alone
MESSAGES_MAX = 32 << 10             # messages of an Arrow batch, roughly: its arrays fit into a processor's cache
_OFTEN = 4                          # a text that every 4th entry has saves too little to be looked for further

_Places: TypeAlias = NDArray[np.int64]


def batches(data_dir: Path | str, stretch: Stretch, columns: Collection[str], report_damage: ReportDamage, *,
            wanted: Wanted | None = None, texts: Collection[bytes] = (),
            block_size: int | None = None, count: Count | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a stretch as Arrow batches with these columns of SCHEMA, in this order.

    message_index ascends within messages of one kind (single, in batches, in chunks), but not across kinds.

    report_damage: called with a line for each damage; reading goes on.  wanted: given index rows (n,), INDEX_ROW or
    COMPACTED_ROW, returns which of them to read.  texts: entries without them are left out where that saves work; other
    messages without them may be yielded.  block_size: bytes of entries to read at once, BLOCK_SIZE unless given; large
    batches need large blocks to be read fast.  count: called with each number of bytes that are read.

    payload_size of a single message is the size that its metadata claims, unless `payload` is asked for too.  A ledger
    that is deleted before it is opened has no messages; one that is deleted later is read to its end.

    Raises ViewReplaced, and OSError if the disk fails.
    """
    reader = _Reader(Path(data_dir), stretch, tuple(columns), report_damage, texts, block_size, count)
    try:
        yield from reader.read(wanted)
    finally:
        reader.close()


class _Reader:
    """One reading of a stretch as Arrow batches."""

    def __init__(self, data_dir: Path, stretch: Stretch, columns: tuple[str, ...], report: ReportDamage,
                 texts: Collection[bytes], block_size: int | None, count: Count | None):
        self.stretch, self.columns, self._texts = stretch, columns, texts
        self._together_max = max(UNPACKED_MAX, block_size or 0)
        self.schema = pa.schema([SCHEMA.field(name) for name in columns])
        self._outer, self._single = message_columns.outer_fields(columns), message_columns.single_fields(columns)
        self._entries = BlockReader(data_dir, stretch, report, block_size, count)
        self._chunks = Chunks(data_dir, stretch, report)

    def __repr__(self) -> str:
        return f"<_Reader {self._entries} columns={self.columns}>"

    def close(self) -> None:
        self._chunks.close()
        self._entries.close()

    def read(self, wanted: Wanted | None) -> Iterator[pa.RecordBatch]:
        for block in self._entries.blocks(wanted):
            yield from self._batches(block)

    def _batches(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a block: of single entries, of batches, then of entries that are read one by one."""
        if not len(block.rows):
            return
        words = words_at_each_byte(block.data)
        bodies = block.begins + (CHECKSUM_END + 4)
        payloads = bodies + (words[block.begins + CHECKSUM_END] & np.uint64(0xFFFFFFFF)).astype(np.uint32).byteswap()
        is_odd = (payloads > block.ends) | (block.rows["flags"] & KEPT_CHECKSUM == 0)
        if is_odd.any():
            payloads = np.where(is_odd, bodies, payloads)
        outer = metadata.read(block.data, bodies, payloads, self._outer)
        read_properties(block.data, outer)
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
        if self._texts:
            has_texts = self._has_texts(block, outer, rest)
            rest, is_batch = rest & has_texts, is_batch & has_texts
        if (plain := np.flatnonzero(rest & ~is_batch)).size:
            yield from self._plain(block, outer, plain, payloads)
        odd = np.flatnonzero(is_odd).tolist()
        if is_batch.any():
            for places in _by_size(np.flatnonzero(is_batch), outer, block.ends - payloads, self._together_max):
                odd_places = yield from self._unpack(block, outer, places, payloads)
                odd += odd_places.tolist()
        yield from self._one_by_one(block, odd + by_chunk.tolist())

    def _has_texts(self, block: Block, outer: Columns, rest: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which entries of a block may have all texts.  Compressed ones may, until they are decompressed."""
        has_texts = np.ones(len(rest), bool)
        is_open = rest
        if "compression" in outer.numbers:
            is_open = rest & ((outer.numbers["compression"] == api.NONE) | outer.has("encryption"))
        places, raw = np.flatnonzero(is_open), block.data.tobytes()
        for text in self._texts:
            has_texts[places] &= having(raw, block.begins[places], block.ends[places], text)
        return has_texts

    def _plain(self, block: Block, outer: Columns, places: NDArray[np.intp],
               payloads: _Places) -> Iterator[pa.RecordBatch]:
        """Yield the messages of entries that are not batches, or that are encrypted."""
        begins, ends, data = payloads[places], block.ends[places], block.data
        sizes = ends - begins
        if "compression" in outer.numbers:
            encrypted = outer.has("encryption")[places]
            codecs = outer.numbers["compression"][places]
            is_compressed = (codecs != api.NONE) & ~encrypted
            sizes = np.where(is_compressed, outer.number("uncompressed_size")[places].astype(np.int64), sizes)
            if "payload" in self.columns:
                for piece in _within(np.arange(len(places)), np.where(is_compressed, sizes, 0), self._together_max):
                    yield from self._decompressed(block, outer, places[piece], begins[piece], ends[piece],
                                                  codecs[piece], is_compressed[piece], sizes[piece])
                return
        yield from self._rows(Messages(block, places, outer, outer, places, data, (begins, ends), sizes, None))

    def _decompressed(self, block: Block, outer: Columns, places: NDArray[np.intp], begins: _Places, ends: _Places,
                      codecs: NDArray[np.uint64], is_compressed: NDArray[np.bool_],
                      sizes: NDArray[np.integer]) -> Iterator[pa.RecordBatch]:
        data, begins, ends, failed = self._undo(block, places, begins, ends, codecs, is_compressed, sizes)
        if failed.any():
            places, begins, ends = places[~failed], begins[~failed], ends[~failed]
        yield from self._rows(Messages(block, places, outer, outer, places, data, (begins, ends), ends - begins, None))

    def _undo(self, block: Block, places: NDArray[np.intp], begins: _Places, ends: _Places, codecs: NDArray[np.uint64],
              is_compressed: NDArray[np.bool_],
              sizes: NDArray[np.integer]) -> tuple[NDArray[np.uint8], _Places, _Places, NDArray[np.bool_]]:
        """Decompress payloads of a block's entries.

        Returns (data with decompressed payloads at its end, begins, ends, which payloads to leave out: they cannot be
        decompressed, or have not the texts).
        """
        chosen, failed, raw = np.flatnonzero(is_compressed), np.zeros(len(places), bool), memoryview(block.data)
        pieces: list[bytes | memoryview] = []
        if not len(chosen):
            return block.data, begins, ends, failed
        for number, codec, begin, end, size in zip(*(column.tolist() for column in (
                chosen, codecs[chosen], begins[chosen], ends[chosen], sizes[chosen])), strict=True):
            try:
                pieces.append(decompress(codec, raw[begin:end], size))
            except CannotDecompress as error:
                failed[number] = True
                pieces.append(b"")
                self._entries.report(int(block.entry_ids[places[number]]), f"its payload {error}")
        begins, ends, behind = begins.copy(), ends.copy(), len(block.data) + np.cumsum([len(piece) for piece in pieces])
        begins[chosen], ends[chosen] = np.append(len(block.data), behind[:-1]), behind
        joined = b"".join((block.data.data, *pieces, bytes(PAD)))
        for text in self._texts:
            failed[chosen] |= ~(having(joined, begins[chosen], ends[chosen], text)
                                | having(joined, block.begins[places[chosen]], block.ends[places[chosen]], text))
        return np.frombuffer(joined, np.uint8), begins, ends, failed

    def _unpack(self, block: Block, outer: Columns, places: NDArray[np.intp],
                payloads: _Places) -> Generator[pa.RecordBatch, None, NDArray[np.intp]]:
        """Yield the messages of batches.  Returns the batches that the protobuf library has to read."""
        begins, ends, data = payloads[places], block.ends[places], block.data
        if "compression" in outer.numbers:
            codecs = outer.numbers["compression"][places]
            data, begins, ends, failed = self._undo(block, places, begins, ends, codecs, codecs != api.NONE,
                                                    outer.number("uncompressed_size")[places])
            places, begins, ends = places[~failed], begins[~failed], ends[~failed]
        unpacked = packed.unpack(data, begins, ends, outer.numbers["count"][places].astype(np.int64))
        odd_places = [places[unpacked.odd]]
        kept = ~unpacked.odd[unpacked.batches]
        for piece in _slices(unpacked.batches, kept):
            batch, index, begin, end, behind = (column[piece] for column in unpacked[:5])
            own = metadata.read(data, begin, end, self._single)
            read_properties(data, own)
            is_odd = own.odd | (own.number("payload_size").astype(np.int64) != behind - end)
            chosen = np.ones(len(batch), bool)
            if is_odd.any():
                odd_ones = np.unique(batch[is_odd])
                odd_places.append(places[odd_ones])
                chosen = ~np.isin(batch, odd_ones)
            if "compacted_out" in own.numbers:
                chosen &= own.numbers["compacted_out"] == 0
            if len(self._entries.masked):
                chosen &= ~np.isin(message_numbers(block.entry_ids[places[batch]], index), self._entries.masked)
            rows = np.flatnonzero(chosen)
            if rows.size:
                yield from self._rows(Messages(block, places[batch[rows]], outer, own, rows, data,
                                               (end[rows], behind[rows]), behind[rows] - end[rows], index[rows]))
        return np.concatenate(odd_places)

    def _one_by_one(self, block: Block, places: list[int]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of unusual entries and of chunks, read with the protobuf library.

        places: their places in the block.
        """
        ready: list[Message] = []
        size = 0
        for place in sorted(places):
            row, entry_id = block.rows[place], int(block.entry_ids[place])
            try:
                outer, stored = one_by_one.split(block.entry(place))
                if outer.HasField("marker_type"):
                    continue
                these: Iterable[Message]
                if one_by_one.is_chunk(outer):
                    these = self._chunks.joined(entry_id, row, outer, stored, "payload" in self.columns)
                elif outer.num_messages_in_batch <= MESSAGES_MAX:
                    these = list(one_by_one.messages(outer, stored))
                else:
                    one_by_one.check(outer, stored)      # before its first messages leave this function
                    these = one_by_one.messages(outer, stored)
            except Damaged as damage:
                self._entries.report(entry_id, str(damage))
                continue
            for message in these:
                if self._entries.is_masked(entry_id, message["batch_index"] or 0):
                    continue
                message |= {
                    "partition": self.stretch.partition_id, "ledger_id": self.stretch.ledger_id, "entry_id": entry_id,
                    "message_index": int(row["message_index"]) + (message["batch_index"] or 0),
                    "chunks": message.get("chunks"),
                    **{name: int(row[name]) for name in ("publish_time", "broker_time", "deliver_at")}}
                ready.append(message)
                size += message["payload_size"]
                if len(ready) >= MESSAGES_MAX or size >= UNPACKED_MAX:
                    yield self._batch_of(ready)
                    ready, size = [], 0
        if ready:
            yield self._batch_of(ready)

    def _rows(self, messages: Messages) -> Iterator[pa.RecordBatch]:
        if len(messages.entry):
            yield pa.RecordBatch.from_arrays(
                [message_columns.column(name, messages, self.stretch) for name in self.columns], schema=self.schema)

    def _batch_of(self, messages: list[Message]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([message_columns.listed(name, messages) for name in self.columns],
                                          schema=self.schema)


# -- groups of entries or messages

def _by_size(places: NDArray[np.intp], outer: Columns, stored: NDArray[np.int64],
             size_max: int) -> list[NDArray[np.intp]]:
    """Split batch entries into groups of at most size_max decompressed bytes.  stored: bytes of each payload."""
    sizes = stored[places]
    if "compression" in outer.numbers:
        is_compressed = outer.numbers["compression"][places] != api.NONE
        sizes = np.where(is_compressed, outer.number("uncompressed_size")[places].astype(np.int64), sizes)
    return list(_within(places, sizes, size_max))


def _within(items: NDArray[np.intp], sizes: NDArray[np.int64], size_max: int) -> Iterator[NDArray[np.intp]]:
    """Yield groups of items with at most size_max bytes; a larger item is a group of its own."""
    ends = np.cumsum(sizes)
    first, before = 0, 0
    while first < len(items):
        until = max(first + 1, int(np.searchsorted(ends, before + size_max, side="right")))
        yield items[first:until]
        first, before = until, int(ends[until - 1])


def _slices(batch: NDArray[np.int64], kept: NDArray[np.bool_]) -> Iterator[NDArray[np.intp]]:
    """Yield groups of about MESSAGES_MAX messages; no group ends within a batch."""
    messages = np.flatnonzero(kept)
    first = 0
    while first < len(messages):
        until = min(len(messages), first + MESSAGES_MAX)
        if until < len(messages):
            until = int(np.searchsorted(batch[messages], batch[messages[until - 1]], side="right"))
        yield messages[first:until]
        first = until


# -- texts

def having(raw: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64], text: bytes) -> NDArray[np.bool_]:
    """Return which of raw[begin:end] (n,), ascending and without overlaps, may have the text.

    All others have not. The search ends where it turns out that too many have the text.
    """
    has_it = np.zeros(len(begins), bool)
    firsts, stops = begins.tolist(), ends.tolist()
    count, offset = 0, raw.find(text, firsts[0], stops[-1]) if firsts else -1
    while offset >= 0:
        number = bisect_right(firsts, offset) - 1
        is_inside = offset + len(text) <= stops[number]
        if is_inside:
            has_it[number] = True
            count += 1
        offset = raw.find(text, max(offset + 1, stops[number]) if is_inside else offset + 1, stops[-1])
        if count * _OFTEN > len(firsts) and number * 2 < len(firsts):
            has_it[number:] = True
            break
    return has_it
