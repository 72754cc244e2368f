"""Find messages in the ledgers of a data folder, beside a running broker or without one.

    for piece in pieces(data_dir, partitions(data_dir, "public/default")):
        for entry in entries(data_dir, piece, conditions, print): ...

The index of a ledger has publish times, so entries of other times are not read. Keys, properties, producers and
sequence ids are compared as columns of many messages at once (jobs/reading.py). A text that a message must have is
looked for in whole entries first. Only entries with a message that meets all conditions are handed out.

Nothing is written, and no lock is taken. A search of a ledger covers the messages that were confirmed when it began,
and those too that all subscriptions have acknowledged, as long as they are stored. Messages of aborted transactions are
left out, and so are all from the first one of an open transaction on. Compacted views are not searched.
"""
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto import names
from geminga.proto.frames import CHECKSUM_END
from geminga.proto.names import TopicName
from geminga.proto.rows import Rows
from geminga.proto.sends import HAS_KEY, IS_BATCH, KEPT_CHECKSUM
from geminga.storage import format
from geminga.storage.errors import CorruptFile
from geminga.storage.jobs import confirmed, one_by_one, reading
from geminga.storage.jobs.chunks import Chunks
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.entry_blocks import ReportDamage
from geminga.storage.jobs.one_by_one import Damaged
from geminga.storage.ledgers import ledger_headers
from geminga.storage.ledgers.position import Position

BLOCK_SIZE = 32 << 20            # bytes of entries; batches of 1,000 messages are read twice as fast as with 8 MiB
_HITS_MAX = 1 << 20              # messages that are found before the first of them is read
_ALWAYS = -(1 << 62), 1 << 62
_PLACE = "entry_id", "batch_index", "message_index"

Advance = Callable[[int], None]      # called with a number of bytes that have been searched


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions that a message must meet, all of them.  None and an empty tuple demand nothing."""

    published_ms: tuple[int, int] = _ALWAYS                   # first and last time
    key: str | None = None                                    # as stored: in base64 if the producer gave bytes
    key_pattern: str | None = None                            # RE2, for the whole key
    properties: tuple[tuple[str, str | None], ...] = ()       # (name, value or None for any)
    payload_text: bytes | None = None
    payload_pattern: str | None = None                        # RE2, for a part of the payload
    producer: str | None = None
    sequence_ids: tuple[int, int] | None = None               # first and last

    def columns(self) -> tuple[str, ...]:
        """Return the columns of a message that the conditions look at."""
        asked = {("key",): (self.key, self.key_pattern), ("properties",): self.properties,
                 ("payload",): (self.payload_text, self.payload_pattern), ("producer",): (self.producer,),
                 ("sequence_id",): (self.sequence_ids,)}
        return tuple(name for some, values in asked.items() if any(value is not None for value in values)
                     for name in some)

    def texts(self) -> tuple[bytes, ...]:
        """Return texts that an uncompressed entry contains if a message in it meets the conditions."""
        wanted = [part for name, value in self.properties for part in (name.encode(), (value or "").encode())]
        wanted += [(self.key or "").encode(), (self.producer or "").encode(), self.payload_text or b""]
        return tuple(text for text in wanted if text)

    def of_rows(self, rows: Rows) -> NDArray[np.bool_]:
        """Return a mask (n,): index rows whose entries may hold messages that meet the conditions."""
        first, last = self.published_ms
        wanted = (rows["publish_time"] >= first) & (rows["publish_time"] <= last)
        if self.key is not None or self.key_pattern is not None:
            wanted &= rows["flags"] & (IS_BATCH | HAS_KEY) != 0
        return np.asarray(wanted)


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry with messages that meet the conditions."""

    entries: list[tuple[Position, bytes]]      # position and bytes; before it all other chunks, if it is a last chunk
    indexes: frozenset[int]                    # of these messages in the batch, -1 for a message that was sent alone


@dataclass(frozen=True, slots=True)
class Piece:
    """One ledger of a partition that is to be searched."""

    topic: TopicName
    partition_id: int
    ledger_id: int
    size: int      # bytes of its file
    up_to: Position | None      # where the partition's search ends; None: the state file is damaged


# -- the ledgers

def partitions(data_dir: Path, text: str) -> list[tuple[int, TopicName]]:
    """Return (id, name) of the stored partitions of a topic, or of a namespace's topics, sorted by name.

    Topics that brokers use among themselves are left out of a namespace. Raises LookupError if there is no such topic
    or namespace, Refusal, CatalogueError.
    """
    if not is_namespace(text):
        return confirmed.partitions(data_dir, [text])
    names.parse_namespace(text)
    catalogue = confirmed.open_catalogue(data_dir)
    try:
        is_there = catalogue.namespaces.exists(text)
    finally:
        catalogue.close()
    if not is_there:
        raise LookupError(f"there is no namespace {text}")
    return confirmed.partitions(data_dir, re.compile(f"(persistent|topic)://{re.escape(text)}/.+", re.DOTALL))


def namespaces(data_dir: Path) -> list[str]:
    """Return all namespaces.  Raises CatalogueError."""
    catalogue = confirmed.open_catalogue(data_dir)
    try:
        return [name for tenant in catalogue.tenants.names() for name in catalogue.namespaces.of_tenant(tenant)]
    finally:
        catalogue.close()


def is_namespace(text: str) -> bool:
    """Tell whether a text has the form of a namespace and not of a topic."""
    return "://" not in text and text.count("/") == 1


def pieces(data_dir: Path, partitions: list[tuple[int, TopicName]]) -> list[Piece]:
    """Return the ledgers of partitions (id, name), in order."""
    made = []
    for partition_id, topic in partitions:
        folder, up_to = format.partition_folder(data_dir, partition_id), None
        with contextlib.suppress(CorruptFile, OSError):      # the search raises it
            up_to = confirmed.committed_up_to(data_dir, partition_id)
        for ledger_id in ledger_headers.ledger_ids(folder):
            try:
                size = os.stat(format.ledger_path(folder, ledger_id)).st_size
            except FileNotFoundError:
                continue      # retention has removed it
            made.append(Piece(topic, partition_id, ledger_id, size, up_to))
    return made


# -- the search

def count(data_dir: Path, piece: Piece, conditions: Conditions, report: ReportDamage,
          advance: Advance = lambda size: None) -> int:
    """Return the number of messages of a ledger that meet the conditions.  Raises CorruptFile, OSError."""
    return sum(len(places) for _, places in _hits(data_dir, piece, conditions, report, advance))


def entries(data_dir: Path, piece: Piece, conditions: Conditions, report: ReportDamage,
            advance: Advance = lambda size: None, is_backwards: bool = False) -> Iterator[Hit]:
    """Yield the entries of a ledger with messages that meet the conditions, in order, or the last one first.

    report: called with a line for each damage.  Raises CorruptFile, OSError.
    """
    for stretch, places in _hits(data_dir, piece, conditions, report, advance, is_backwards):
        yield from _read(data_dir, stretch, places, report, is_backwards)


def _hits(data_dir: Path, piece: Piece, conditions: Conditions, report: ReportDamage,
          advance: Advance, is_backwards: bool = False) -> Iterator[tuple[Stretch, NDArray[np.int64]]]:
    """Yield (stretch, places of messages that meet the conditions), the last stretch first if asked.

    places: (n, 2), entry id and index in the batch or -1, in the order of the messages.
    """
    folder = format.partition_folder(data_dir, piece.partition_id)
    up_to = confirmed.committed_up_to(data_dir, piece.partition_id) if piece.up_to is None else piece.up_to
    stretches = confirmed.of_ledger(
        folder, piece.partition_id, piece.ledger_id, up_to=up_to, size_max=BLOCK_SIZE)
    columns = (*_PLACE, *conditions.columns())
    # Backwards a stretch is handed out whole, as its last message comes first; it is bounded by the size of a block.
    hits_max = sys.maxsize if is_backwards else _HITS_MAX
    for number, stretch in enumerate(reversed(stretches) if is_backwards else stretches, 1):
        places: list[NDArray[np.int64]] = []
        for batch in reading.batches(data_dir, stretch, columns, report, wanted=conditions.of_rows,
                                     texts=conditions.texts(), block_size=BLOCK_SIZE):
            meeting = np.flatnonzero(_meeting(batch, conditions))
            if len(meeting):
                places.append(np.stack([pc.fill_null(batch[name], -1).to_numpy().astype(np.int64)[meeting]
                                      for name in _PLACE], axis=1))
            if sum(map(len, places)) >= hits_max:
                yield stretch, _in_order(places)
                places = []
        if places:
            yield stretch, _in_order(places)
        advance(piece.size * number // len(stretches) - piece.size * (number - 1) // len(stretches))
    if not stretches:
        advance(piece.size)


def _in_order(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    places = np.concatenate(parts)
    return places[np.argsort(places[:, 2], kind="stable"), :2]


def _meeting(batch: pa.RecordBatch, conditions: Conditions) -> NDArray[np.bool_]:
    """Return which messages of an Arrow batch (n,) meet the conditions that are about its columns."""
    meets = np.ones(batch.num_rows, bool)
    if conditions.producer is not None:
        meets &= _truth(pc.equal(batch["producer"], conditions.producer))
    if conditions.sequence_ids is not None:
        first, last = conditions.sequence_ids
        ids = batch["sequence_id"].to_numpy()
        meets &= (ids >= first) & (ids <= last)
    if conditions.key is not None:
        meets &= _truth(pc.equal(batch["key"], conditions.key))
    if conditions.key_pattern is not None:
        meets &= _truth(pc.match_substring_regex(batch["key"], f"^(?s:{conditions.key_pattern})$"))
    for name, value in conditions.properties if meets.any() else ():
        meets &= _with_property(batch["properties"], name, value)
    if meets.any() and conditions.payload_text is not None:
        meets &= _truth(pc.match_substring(batch["payload"], conditions.payload_text))
    if meets.any() and conditions.payload_pattern is not None:
        payloads = batch["payload"]
        texts = pa.Array.from_buffers(pa.string(), len(payloads), payloads.buffers(), payloads.null_count)
        meets &= _truth(pc.match_substring_regex(texts, conditions.payload_pattern))
    return meets


def _truth(array: pa.Array) -> NDArray[np.bool_]:
    """Return an Arrow array of booleans as numpy's, with False for null."""
    return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False), bool)


def _with_property(properties: pa.MapArray, name: str, value: str | None) -> NDArray[np.bool_]:
    """Return which messages have a property of this name, and of this value unless it is None."""
    fits = _truth(pc.equal(properties.keys, name))
    if value is not None:
        fits &= _truth(pc.equal(properties.items, value))
    offsets = properties.offsets.to_numpy()
    has_it = np.zeros(len(properties), bool)
    has_it[np.searchsorted(offsets, np.flatnonzero(fits) + offsets[0], side="right") - 1] = True
    return has_it


# -- entries with messages that were found

def _read(data_dir: Path, stretch: Stretch, places: NDArray[np.int64], report: ReportDamage,
          is_backwards: bool = False) -> Iterator[Hit]:
    """Yield the entries of a stretch that have the messages at these places, the last one first if asked."""
    folder = format.partition_folder(data_dir, stretch.partition_id)
    path = format.ledger_path(folder, stretch.ledger_id)
    try:
        rows, _, _ = confirmed.whole_rows(folder, stretch.partition_id, stretch.ledger_id, stretch.first, stretch.end)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return      # retention has removed the ledger since
    chunks = Chunks(data_dir, stretch, report)
    try:
        borders = np.flatnonzero(np.diff(places[:, 0], prepend=-1)).tolist()
        runs = list(zip(borders, [*borders[1:], len(places)], strict=True))
        for first, end in reversed(runs) if is_backwards else runs:
            entry_id = int(places[first, 0])
            row = rows[entry_id - stretch.first]
            entry = os.pread(fd, int(row["size"]), int(row["offset"]))
            if entry.startswith(format.NO_ENTRY):
                continue      # its space was given back since
            try:
                before = _chunks_before(entry, row, entry_id, chunks)
            except Damaged as damage:
                report(f"{path}: entry {stretch.ledger_id}:{entry_id} is left out: {damage}")
                continue
            yield Hit([*before, ((stretch.ledger_id, entry_id), entry)], frozenset(places[first:end, 1].tolist()))
    finally:
        chunks.close()
        os.close(fd)


def _chunks_before(entry: bytes, row: np.void, entry_id: int, chunks: Chunks) -> list[tuple[Position, bytes]]:
    """Return the other chunks of the message whose last chunk is this entry.  Raises Damaged."""
    if row["flags"] & KEPT_CHECKSUM and crc32c(memoryview(entry)[CHECKSUM_END:]) != row["crc32c"]:
        raise Damaged("its checksum is wrong")
    metadata, _ = one_by_one.split(entry)
    return chunks.entries(entry_id, metadata) if one_by_one.is_chunk(metadata) else []
