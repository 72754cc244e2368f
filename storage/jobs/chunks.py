"""Join messages that were sent in chunks.

The search begins at the last chunk and goes backwards, through earlier ledgers too.
"""
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import CHECKSUM_END, SIZE
from geminga.proto.rows import Rows
from geminga.proto.sends import IS_CHUNK
from geminga.storage import format
from geminga.storage.errors import CorruptFile
from geminga.storage.jobs import confirmed, one_by_one
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.jobs.entry_blocks import ReportDamage
from geminga.storage.jobs.one_by_one import Damaged, Message
from geminga.storage.ledgers import compacted_ledgers, ledger_headers
from geminga.storage.ledgers.position import Position

_HEAD = 4 << 10      # bytes of an entry that are read first for its metadata; more if the metadata are longer
_Head: TypeAlias = tuple[tuple[str, ...], int, int]      # identity of the message, chunk's number, bytes of its payload


class _Ledger:
    """Index rows of the chunks in one ledger, or in a view's part of one ledger, with the open file."""

    def __init__(self, ledger_id: int, path: Path, rows: Rows, entry_ids: NDArray[np.int64]):
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.ledger_id, self.path, self.ids = ledger_id, path, entry_ids.tolist()
        self.rows = rows
        self.heads: list[_Head | None] = [None] * len(rows)      # None: not read yet

    def __repr__(self) -> str:
        return f"<_Ledger {self.path} chunks={len(self.ids)}>"

    def head(self, number: int) -> _Head:
        """Return (identity of the message, chunk id, payload size) of one chunk.

        The answer is ((), -1, 0) if its metadata cannot be read.
        """
        head_of = self.heads[number]
        if head_of is None:
            offset, size = int(self.rows["offset"][number]), int(self.rows["size"][number])
            head = os.pread(self.fd, min(size, _HEAD), offset)
            if len(head) >= CHECKSUM_END + 4:
                needed = CHECKSUM_END + 4 + SIZE.unpack_from(head, CHECKSUM_END)[0]
                if needed > len(head):
                    head = os.pread(self.fd, min(size, needed), offset)
            try:
                metadata, rest = one_by_one.split(head)
                head_of = _whose(metadata), metadata.chunk_id, size - len(head) + len(rest)
            except Damaged:
                head_of = (), -1, 0
            self.heads[number] = head_of
        return head_of

    def payload(self, number: int) -> memoryview:
        """Return the stored payload of a chunk.  Raises Damaged."""
        return one_by_one.split(self.entry(number))[1]

    def entry(self, number: int) -> bytes:
        """Return the entry of a chunk.  Raises Damaged."""
        entry = os.pread(self.fd, int(self.rows["size"][number]), int(self.rows["offset"][number]))
        if crc32c(memoryview(entry)[CHECKSUM_END:]) != self.rows["crc32c"][number]:
            raise Damaged(f"the checksum of its chunk {self.path}, entry {self.ids[number]}, is wrong")
        return entry


_Chunk: TypeAlias = tuple[_Ledger, int, int]      # its ledger, its place there, bytes of its payload


class Chunks:
    """Joiner of chunked messages whose last chunk lies in a stretch."""

    def __init__(self, data_dir: Path, stretch: Stretch, report: ReportDamage):
        self._stretch, self._report = stretch, report
        self._folder = format.partition_folder(data_dir, stretch.partition_id)
        self._ledgers: list[_Ledger] = []
        self._earlier = self._open_backwards()

    def __repr__(self) -> str:
        return f"<Chunks of {self._stretch} in {len(self._ledgers)} ledgers>"

    def close(self) -> None:
        for ledger in self._ledgers:
            os.close(ledger.fd)
        self._ledgers = []

    def joined(self, entry_id: int, row: np.void, metadata: api.MessageMetadata, stored: memoryview,
               with_payload: bool) -> list[Message]:
        """Return [the message] whose last chunk is this entry.

        The list is empty if the entry is not a last chunk, or if other chunks are missing. Raises Damaged.
        """
        earlier = self._earlier_chunks(entry_id, metadata)
        if earlier is None:
            return []
        indexes = [int(ledger.rows["message_index"][number]) for ledger, number, _ in earlier]
        indexes.append(int(row["message_index"]))
        if with_payload:
            payload: bytes | memoryview = b"".join([*(ledger.payload(number) for ledger, number, _ in earlier), stored])
            if not one_by_one.is_encrypted(metadata):
                payload = one_by_one.undone(metadata, payload)
            size = len(payload)
        else:
            payload, size = b"", sum(size for *_, size in earlier) + len(stored)
            if metadata.compression and not one_by_one.is_encrypted(metadata):
                size = metadata.uncompressed_size
        return [one_by_one.message(metadata, metadata, payload)
                | {"payload_size": size, "batch_index": None, "chunks": indexes}]

    def entries(self, entry_id: int, metadata: api.MessageMetadata) -> list[tuple[Position, bytes]]:
        """Return (position, entry) of all chunks of a message before its last one, which is this entry.

        The list is empty if the entry is not a last chunk, or if other chunks are missing. Raises Damaged.
        """
        return [((ledger.ledger_id, ledger.ids[number]), ledger.entry(number))
                for ledger, number, _ in self._earlier_chunks(entry_id, metadata) or ()]

    def _earlier_chunks(self, entry_id: int, metadata: api.MessageMetadata) -> list[_Chunk] | None:
        """Return all chunks of a message before its last one, None if they are not all there."""
        if metadata.chunk_id != metadata.num_chunks_from_msg - 1:
            return None
        whose, expected = _whose(metadata), metadata.chunk_id - 1
        earlier: list[_Chunk] = []
        for there, at in self._before(entry_id):
            other, number, size = there.head(at)
            if other != whose:
                continue
            if number == expected:
                earlier.append((there, at, size))
                expected -= 1
                if expected < 0:
                    break
            elif number != expected + 1 or number == metadata.chunk_id:      # any but the last chunk may come twice
                return None
        if expected >= 0:
            return None
        earlier.reverse()
        return earlier

    def _before(self, entry_id: int) -> Iterator[tuple[_Ledger, int]]:
        """Yield the (ledger, index) of chunks before an entry of the stretch's ledger, backwards."""
        number = 0
        while number < len(self._ledgers) or self._open_next():
            ledger = self._ledgers[number]
            end = len(ledger.ids) if number else int(np.searchsorted(ledger.ids, entry_id))
            for at in range(end - 1, -1, -1):
                yield ledger, at
            number += 1

    def _open_next(self) -> bool:
        opened = next(self._earlier, None)
        if opened is not None:
            self._ledgers.append(opened)
        return opened is not None

    def _open_backwards(self) -> Iterator[_Ledger]:
        """Yield ledgers with chunks: the stretch's own ledger first, then earlier ones, backwards.

        Entries before the horizon of a view may exist in the view only.
        """
        stretch = self._stretch
        view = None
        try:
            view = compacted_ledgers.open_view(self._folder, stretch.view)
        except (CorruptFile, FileNotFoundError) as error:
            if stretch.view:
                raise
            self._report(f"{error}; chunks are not looked for there")
        parts = {part.ledger_id for part in view.manifest.parts} if view is not None else set()
        ledgers = set() if stretch.view else set(ledger_headers.ledger_ids(self._folder))
        for ledger_id in sorted((parts | ledgers), reverse=True):
            if ledger_id > stretch.ledger_id:
                continue
            try:
                if ledger_id in ledgers:
                    rows = confirmed.confirmed_rows(self._folder, stretch.partition_id, ledger_id)
                    ids, path = np.arange(len(rows)), format.ledger_path(self._folder, ledger_id)
                else:
                    there = view.find(ledger_id) if view is not None else None
                    assert view is not None and there is not None      # the ledger is one of the view's parts
                    rows, ids, path = there.rows, there.kept, format.ledger_path(view.folder, ledger_id)
                is_chosen = rows["flags"] & IS_CHUNK != 0
                if ledger_id in ledgers and is_chosen.any():      # a message that was undone may come again, by its id
                    is_chosen &= confirmed.are_committed(self._folder, stretch.partition_id, ledger_id, rows, 0)
                chosen = np.flatnonzero(is_chosen)
                yield _Ledger(ledger_id, path, rows[chosen], ids[chosen])
            except FileNotFoundError:
                continue


def _whose(metadata: api.MessageMetadata) -> tuple[str, ...]:
    """Return the identity of a chunked message, which all its chunks have: producer name and UUID."""
    return metadata.producer_name, metadata.uuid
