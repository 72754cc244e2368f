"""Files that let a compaction continue a compacted view: hashes of the keys of a part, and masks of a part.

A part is a ledger of a view.  Its messages are numbered as slots: each kept message is one, and an encrypted batch,
which stays as a whole, is one.  Index and ledger of a part never change, so views share them as hard links.

    <ledger>.keys    KEYS_HEADER, then
                     words    uint32 for each slot: the first word of its key's hash; NO_KEY: it has none
                     starts   a bit for each slot, 1 = the first of its row; only if the part has batches
                     sums     CRC32-C, uint32, for each block of items
                     items    for each slot `more`, then `index`, then `time`: see `items_of`
    <ledger>.mask    MASK_HEADER, then
                     slots    a bit for each slot, 1 = removed since the part was written
                     rows     a bit for each row of the index, 1 = nothing is left of its entry
                     cut      a CUT_ROW for each message removed from an entry of which messages are left, ascending

The words are read as a whole, the items only of slots that are looked for.  An item is therefore checked by itself:
`more` has the rest of the key's hash, and a sum that covers the item's other fields.  An item whose hash is not the one
that was looked for is another key's, or damaged, which the block's sum tells.
"""
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.rows import Rows
from geminga.storage.disk.files import map_file
from geminga.storage.errors import CorruptFile

KEYS, MASK = ".keys", ".mask"
_BLOCK = 512                     # items that have one sum
VERSION = 1
_KEYS_MAGIC, _MASK_MAGIC = b"GEMKEYS", b"GEMMASK"
NO_KEY, STAYS_WHOLE = (0, 0), (0, 1)      # (word, more) of a slot without a key, and of an encrypted batch

KEYS_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"),
    ("checksum", "<u4"),             # CRC32-C over the header with 0 here
    ("ledger_id", "<u8"),
    ("seed", "S16"),                 # of the hashes; parts of a view have the same
    ("slots", "<u4"), ("rows", "<u4"),
    ("chunks", "<u4"),               # rows that are chunks of messages
    ("words_checksum", "<u4"),       # CRC32-C over words, starts and sums
    ("block", "<u4"),                # items that have one sum
    ("index_size", "u1"),            # bytes of `index` in the items, 2 or 4; 0: each row is one slot
    ("has_times", "u1"),             # 1: the items have `time`
    ("keeps_keyless", "u1"),         # whether the compaction kept messages without a key
    ("unused", "u1"),
])
MASK_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"),
    ("checksum", "<u4"),             # CRC32-C over the header with 0 here and all that follows
    ("ledger_id", "<u8"), ("slots", "<u4"), ("rows", "<u4"), ("cut", "<u4"), ("unused", "V28")])
CUT_ROW = np.dtype([("row", "<u4"), ("index", "<u4")])      # row of the index; number of the message in the entry
assert KEYS_HEADER.itemsize == MASK_HEADER.itemsize == 64

# A slot in memory.  `place`: jobs/compacting/compaction.py; `time`: event time in us.
SLOT = np.dtype([("place", "<i8"), ("word", "<u4"), ("more", "<u8"), ("time", "<i8")])
_INDEX_ODD, _TIME_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)

Count: TypeAlias = Callable[[int], None]      # is called with a number of bytes that were read


def keys_path(folder: Path, ledger_id: int) -> Path:
    return folder / f"{ledger_id}{KEYS}"


def mask_path(folder: Path, ledger_id: int) -> Path:
    return folder / f"{ledger_id}{MASK}"


# -- hashes of keys

def _item(index_size: int, *, has_times: bool) -> np.dtype[np.void]:
    return np.dtype([("more", "<u8"), *([("index", f"<u{index_size}")] if index_size else []),
                     *([("time", "<i8")] if has_times else [])])


def _sums(items: Rows) -> NDArray[np.uint64]:
    """Return the number (n,) that is added to `more` of each item, by its other fields."""
    total = np.zeros(len(items), np.uint64)
    names = items.dtype.names or ()
    if "index" in names:
        total += (items["index"].astype(np.uint64) + np.uint64(1)) * _INDEX_ODD
    if "time" in names:
        total += (items["time"].astype(np.uint64) + np.uint64(1)) * _TIME_ODD
    return total


def encode_keys(ledger_id: int, seed: bytes, slots: Rows, counts: NDArray[np.int64], indexes: NDArray[np.int64], *,
                chunks: int, has_times: bool, keeps_keyless: bool) -> bytes:
    """Return the content of a file of key hashes.

    slots: SLOT (n,) in the order of the part.  counts: slots (rows,) of each row of the index.  indexes: number of the
    message in its entry (n,).
    """
    head = np.zeros(1, KEYS_HEADER)
    head["magic"], head["version"], head["ledger_id"], head["seed"] = _KEYS_MAGIC, VERSION, ledger_id, seed
    head["slots"], head["rows"], head["chunks"] = len(slots), len(counts), chunks
    has_batches = len(slots) != len(counts) or bool(indexes.any())
    index_size = (2 if int(indexes.max()) < 1 << 16 else 4) if has_batches else 0
    head["index_size"], head["has_times"], head["keeps_keyless"] = index_size, has_times, keeps_keyless
    items = np.zeros(len(slots), _item(index_size, has_times=has_times))
    starts = b""
    if has_batches:
        items["index"] = indexes
        is_first = np.zeros(len(slots), bool)
        is_first[np.cumsum(counts) - counts] = True
        starts = np.packbits(is_first, bitorder="little").tobytes()
    if has_times:
        items["time"] = slots["time"]
    items["more"] = slots["more"] + _sums(items)
    sums = np.array([crc32c(items[at:at + _BLOCK].tobytes()) for at in range(0, len(items), _BLOCK)], "<u4")
    words = b"".join((slots["word"].tobytes(), starts, sums.tobytes()))
    head["words_checksum"], head["block"] = crc32c(words), _BLOCK
    head["checksum"] = crc32c(head.tobytes())
    return b"".join((head.tobytes(), words, items.tobytes()))


class KeyFile:
    """The hashes of the keys of one part.  Only the header is read at first."""

    def __init__(self, folder: Path, ledger_id: int, count: Count):
        """Open the key file of a ledger and read its header.

        count: called with the number of bytes of each read.  Raises CorruptFile, OSError.
        """
        self.path, self.ledger_id, self._count = keys_path(folder, ledger_id), ledger_id, count
        with open(self.path, "rb") as file:
            raw = file.read(KEYS_HEADER.itemsize)
        count(len(raw))
        head = _checked(self.path, raw, KEYS_HEADER, _KEYS_MAGIC, ledger_id, b"")
        # numpy strips zeros at the end of a text
        self.seed = bytes(head["seed"][0]).ljust(KEYS_HEADER["seed"].itemsize, b"\0")
        self.slots, self.rows, self.chunks = int(head["slots"][0]), int(head["rows"][0]), int(head["chunks"][0])
        self.has_batches, self.has_times, self.keeps_keyless = (
            bool(head[name][0]) for name in ("index_size", "has_times", "keeps_keyless"))
        self._words_checksum, self._block = int(head["words_checksum"][0]), int(head["block"][0])
        self._sums: NDArray[np.uint32] | None = None      # of blocks of items; None: not read yet
        self._dtype = _item(int(head["index_size"][0]), has_times=self.has_times)
        self._starts_size = -(-self.slots // 8) if self.has_batches else 0
        self._words_size = 4 * self.slots + self._starts_size + 4 * -(-self.slots // self._block)
        self._items_at = KEYS_HEADER.itemsize + self._words_size
        if (size := self.path.stat().st_size) != (needed := self._items_at + self.slots * self._dtype.itemsize):
            raise CorruptFile(self.path, size, f"{needed} bytes", "another size")

    def __repr__(self) -> str:
        return f"<KeyFile {self.path} slots={self.slots} rows={self.rows}>"

    @property
    def words_size(self) -> int:
        """The number of bytes that are read in any case."""
        return KEYS_HEADER.itemsize + self._words_size

    def words(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return (word (slots,) of each key, first slot (rows,) of each row).  Raises CorruptFile, OSError."""
        with open(self.path, "rb") as file:
            file.seek(KEYS_HEADER.itemsize)
            raw = file.read(self._words_size)
        self._count(len(raw))
        if crc32c(raw) != self._words_checksum:
            raise CorruptFile(self.path, KEYS_HEADER.itemsize, f"words with checksum {self._words_checksum:08x}",
                              "others")
        self._sums = np.frombuffer(raw, "<u4", offset=4 * self.slots + self._starts_size).copy()      # without `raw`
        words = np.frombuffer(raw, "<u4", self.slots)
        if not self.has_batches:
            return words, np.arange(self.slots)
        bits = np.unpackbits(np.frombuffer(raw, np.uint8, offset=4 * self.slots), count=self.slots, bitorder="little")
        return words, np.flatnonzero(bits)

    def items_of(self, slots: NDArray[np.int64]) -> Rows:
        """Return SLOTs (n,) without place and word, and with `index`, for the given slots (n,).

        `more` is another number if the item is damaged.  Raises OSError, ValueError.
        """
        items = np.frombuffer(map_file(self.path, writable=False), self._dtype, self.slots, self._items_at)[slots]
        self._count(items.nbytes)
        found = np.zeros(len(items), [("more", "<u8"), ("index", "<i8"), ("time", "<i8")])
        found["more"] = items["more"] - _sums(items)
        for name in self._dtype.names or ():
            if name != "more":
                found[name] = items[name]
        return found

    def check(self, slots: NDArray[np.int64] | None = None) -> None:
        """Compare the sums of the blocks that have the items of these slots (n,); None: of all blocks.

        Raises CorruptFile, OSError.
        """
        if self._sums is None:
            self.words()
        assert self._sums is not None, self
        sums, size = self._sums, self._block * self._dtype.itemsize
        with open(self.path, "rb") as file:
            for block in range(len(sums)) if slots is None else np.unique(slots // self._block).tolist():
                at = self._items_at + block * size
                file.seek(at)
                raw = file.read(size)
                self._count(len(raw))
                if crc32c(raw) != sums[block]:
                    raise CorruptFile(self.path, at, f"items with checksum {sums[block]:08x}", "others")


# -- masks

@dataclass(frozen=True, slots=True)
class Mask:
    """The messages of a part that were removed since it was written."""

    slots: NDArray[np.bool_]         # (slots,) removed
    rows: NDArray[np.bool_]          # (rows,) nothing is left of the entry
    cut: Rows                        # CUT_ROW (n,), ascending

    def encode(self, ledger_id: int) -> bytes:
        """Return the content of the mask's file."""
        head = np.zeros(1, MASK_HEADER)
        head["magic"], head["version"], head["ledger_id"] = _MASK_MAGIC, VERSION, ledger_id
        head["slots"], head["rows"], head["cut"] = len(self.slots), len(self.rows), len(self.cut)
        body = b"".join((np.packbits(self.slots, bitorder="little").tobytes(),
                         np.packbits(self.rows, bitorder="little").tobytes(), self.cut.tobytes()))
        head["checksum"] = crc32c(body, crc32c(head.tobytes()))
        return head.tobytes() + body


def read_mask(folder: Path, ledger_id: int, rows: int, count: Count | None = None) -> Mask:
    """Return the mask of a part whose index has `rows` rows.

    count: called with the number of bytes of each read.  Raises CorruptFile, OSError.
    """
    path = mask_path(folder, ledger_id)
    raw = path.read_bytes()
    if count is not None:
        count(len(raw))
    head = _checked(path, raw[:MASK_HEADER.itemsize], MASK_HEADER, _MASK_MAGIC, ledger_id, raw[MASK_HEADER.itemsize:])
    slots, cut = int(head["slots"][0]), int(head["cut"][0])
    if int(head["rows"][0]) != rows:
        raise CorruptFile(path, 0, f"a mask of {rows} rows", f"one of {int(head['rows'][0])}")
    at = MASK_HEADER.itemsize
    bits = [np.unpackbits(np.frombuffer(raw, np.uint8, -(-number // 8), offset), count=number, bitorder="little")
            for number, offset in ((slots, at), (rows, at + -(-slots // 8)))]
    behind = at + -(-slots // 8) + -(-rows // 8)
    return Mask(bits[0].astype(bool), bits[1].astype(bool), np.frombuffer(raw, CUT_ROW, cut, behind))


def _checked(path: Path, raw: bytes, dtype: np.dtype[np.void], magic: bytes, ledger_id: int, body: bytes) -> Rows:
    """Return a file's header (1,) whose checksum covers `body` too.  Raises CorruptFile."""
    if len(raw) < dtype.itemsize:
        raise CorruptFile(path, len(raw), "a header", "the end of the file")
    head = np.frombuffer(raw, dtype, 1)
    bare = head.copy()
    bare["checksum"] = 0
    if head["magic"][0] != magic or crc32c(body, crc32c(bare.tobytes())) != int(head["checksum"][0]):
        raise CorruptFile(path, 0, f"{magic.decode()} with its checksum", raw[:16])
    if int(head["version"][0]) > VERSION:
        raise CorruptFile(path, 0, f"format version {VERSION} or older", int(head["version"][0]))
    if int(head["ledger_id"][0]) != ledger_id:
        raise CorruptFile(path, 0, f"a file of ledger {ledger_id}", f"one of ledger {int(head['ledger_id'][0])}")
    return head
