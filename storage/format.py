"""Every byte this broker writes to disk is defined here, and nowhere else (the catalogue's tables: catalogue.py).

    <data>/lock                                   held by the supervisor that serves this folder
    <data>/format                                 FOLDER_VERSION in digits, of the newest program that has served it (data_folder.py)
    <data>/catalogue.sqlite                       see catalogue.py
    <data>/backup/                                of a backup that is being made (backup.py)
    <data>/stacks                                 where processes were when they were asked, text (supervisor/processes/stacks.py)
    <data>/journal/<owner>/<n>.journal            SEGMENT_HEADER, then records: RECORD_HEADER, groups, rows, sources, ops, entries
    <data>/partitions/<id>/<ledger>.ledger        LEDGER_HEADER, then entries as they came, without gaps
    <data>/partitions/<id>/<ledger>.index         INDEX_HEADER, then an INDEX_ROW per entry, row n = entry n; of a sealed
                                                  one zeros where nothing is left of many entries (index_repair.py); *.new while such
                                                  an index is being made
    <data>/partitions/<id>/state                  all else about the partition, as of a checkpoint, twice: STATE_HEADER, then
                                                  CURSOR_ROWs, PART_ROWs, ARRAY_ROWs, SEQUENCE_ROWs, and the arrays' bytes
    <data>/partitions/<id>/compacted/<n>/         a compacted view, the n-th: what its file `view` says (compacted_ledgers.py), and of each
                                                  ledger that has something left <ledger>.ledger and .index as above, with a
                                                  COMPACTED_ROW per entry that is left, ascending; *.new while it is being made
    <data>/partitions/<id>/delayed/               what waits for its time (index.py), can be made anew from the ledgers' indexes:
        <start>-<width>.window                    blocks, each a WINDOW_BLOCK and its WINDOW_ROWs: times in [start, start + width) ms
        schedule                                  as of the last save: SCHEDULE_HEADER, WINDOW_FILE_ROWs, WAITING_ROWs, the bitmaps' bytes
        amended                                   AMENDMENT_ROWs: what was cancelled, or has another time than its entry says

Little-endian throughout.  Ledgers, indexes and segments are allocated ahead and zero where nothing was written: a row of zeros
has no valid checksum.  An entry carries its producer's CRC32-C over its content; its row carries a copy of that, and a
checksum of its own over the row and its place, so that a row copied to another place, or pointing at other bytes, fails.

To change a layout: raise its VERSION, keep the old dtype beside it as NAME_V<old> with a reader, and write down here what
each version added.
    Version 1: the first.
    Version 2: `state` in place of a partition's `cursors` and `parts` and of files per ledger and subscription (.acks,
    .redeliveries, .deaths: state_v1.py reads them); INDEX_HEADER has a checksum, and of an open ledger too what it holds at least;
    SEGMENT_HEADER too; records have a checksum of their tables, and say what was synced before them; an op of ACKNOWLEDGED is about a
    run of entries; sequence ids of producers; every entry has a checksum.  PARTITION_DELETED came later, with the catalogue's version 4,
    which keeps programs away that do not know it.  Compacted views came later too: who does not know them does not look there.  So
    did `delayed`: who does not know it finds the same times in the indexes.  And so did rows that were given back: who does not know
    them makes them anew, and tells of entries as lost that were there for nobody any more.

FOLDER_VERSION is of the folder as a whole, and keeps older programs away from it: raise it whenever one that is out there must not write
to what this one writes, be it a VERSION here, the catalogue's or compacted_ledgers.py's, or a file that it would have to know of.  Put a
folder of the new version into tests/storage/formats (make.py), and write down here what it added.
    Version 1: the first that there is a number of; folders without one are older, and are taken over.
"""
import struct
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.rows import Rows, as_words, struct_of

VERSION = 2
FOLDER_VERSION = 1
LEDGER_MAGIC, INDEX_MAGIC, SEGMENT_MAGIC, STATE_MAGIC = b"GEMLEDGR", b"GEMINDEX", b"GEMJOURN", b"GEMSTATE"
SCHEDULE_MAGIC = b"GEMSCHED"
RECORD_MAGIC, WINDOW_MAGIC = 0x47454D52, 0x57454D31      # the latter's last byte is a version

OPEN, SEALED = 1, 2
# The first bytes of an entry whose space was given back; an entry begins with a magic number or the size of its metadata.
NO_ENTRY = bytes(4)

LEDGER_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"), ("unused", "<u4"), ("ledger_id", "<u8"), ("partition_id", "<u8"), ("reserved", "V32")])

INDEX_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"),
    ("state", "<u4"),                # OPEN or SEALED
    ("ledger_id", "<u8"), ("partition_id", "<u8"),
    ("first_message", "<u8"),        # messages of the partition before this ledger
    ("created_ms", "<i8"),
    ("entries", "<u4"),              # of an open ledger: at least; the journal has the others
    ("checksum", "<u4"),             # CRC32-C over the header with 0 here; version 1: always 0
    ("size", "<u8"),                 # offset behind the last of those
])

INDEX_ROW = np.dtype([
    ("offset", "<u8"),               # of the entry in the ledger's file
    ("publish_time", "<i8"),         # ms, the producer's clock
    ("broker_time", "<i8"),          # ms, ours
    ("deliver_at", "<i8"),           # ms; 0: at once
    ("message_index", "<u8"),        # messages of the partition before this entry
    ("size", "<u4"),
    ("messages", "<u4"),
    ("key_hash", "<u4"),
    ("flags", "<u4"),                # proto/sends.py
    ("crc32c", "<u4"),               # the entry's own
    ("checksum", "<u4"),             # of this row and its place
])

COMPACTED_ROW = np.dtype([           # an INDEX_ROW, in the place of row n, whose key's hash nobody asks for
    ("offset", "<u8"), ("publish_time", "<i8"), ("broker_time", "<i8"), ("deliver_at", "<i8"), ("message_index", "<u8"),
    ("size", "<u4"), ("messages", "<u4"),
    ("entry_id", "<u4"),             # the one it had, and has
    ("flags", "<u4"),                # and IS_CUT
    ("crc32c", "<u4"), ("checksum", "<u4"),
])
IS_CUT = 32                          # a batch of which some messages are gone; words follow it, a bit per message, 1 = there

STATE_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"),
    ("checksum", "<u4"),             # CRC32-C over the header with 0 here and all of this copy
    ("partition_id", "<u8"),
    ("size", "<u8"),                 # bytes behind the header
    ("cursors", "<u4"), ("parts", "<u4"), ("arrays", "<u4"),      # rows of each
    ("is_uncounted", "<u4"),         # 1: of format version 1, which had no totals
    ("sequences", "<u4"),            # rows
    ("delays", "<u4"),               # UNKNOWN, NONE_DELAYED or SCHEDULED
    ("reserved", "V8"),
])
UNKNOWN, NONE_DELAYED, SCHEDULED = 0, 1, 2      # whether entries of the partition ever waited; who wrote it did not know of that: 0

CURSOR_ROW = np.dtype([
    ("subscription_id", "<u8"),      # 0: what is there for nobody any more
    ("ledger_id", "<i8"),            # mark-delete position
    ("entry_id", "<i8"),
    ("since", "<u8"),                # messages of the partition before those that the totals are about
    ("totals", "<u8", 4),            # messages, by reason: cursor.py
])

PART_ROW = np.dtype([                # batches that are acknowledged in part
    ("subscription_id", "<u8"), ("ledger_id", "<u8"), ("entry_id", "<u8"),
    ("number", "<u8"),               # of the word among the entry's
    ("word", "<u8"),                 # a bit per message, 1 = not acknowledged
])

ARRAY_ROW = np.dtype([
    ("subscription_id", "<u8"), ("ledger_id", "<u8"),
    ("kind", "<u4"), ("unused", "<u4"),
    ("first", "<u8"),                # items before it that are 0
    ("size", "<u8"),                 # bytes
])
SEQUENCE_ROW = np.dtype([            # how far producers have come
    ("producer", "<i8", 2),          # sequences.identity
    ("last", "<i8"),                 # sequence id of its last message that is stored whole
    ("sequence_id", "<i8"),          # of one of which chunks are stored
    ("next_chunk", "<u4"),           # 0: there is none
    ("crc32c", "<u4"),               # of its first chunk
])

ACKS = 1                   # a bit per entry, 1 = acknowledged, beyond the mark-delete position
REDELIVERIES = 2           # u2 per entry: how often that subscription gave it back
DEATHS = 3                 # u2 per entry: how often a consumer's connection ended over it

WINDOW_BLOCK = np.dtype([
    ("magic", "<u4"), ("count", "<u4"),
    ("checksum", "<u4"),             # CRC32-C over its rows
    ("unused", "<u4"),
])
WINDOW_ROW = np.dtype([
    ("after_ms", "<u4"),             # its time, from the window's start on
    ("entry_id", "<u4"), ("ledger_id", "<u8"),
])
SCHEDULE_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"),
    ("checksum", "<u4"),             # CRC32-C over the header with 0 here and all that follows
    ("partition_id", "<u8"),
    ("ledger_id", "<i8"),            # the first entry that is not in the index, or the one that comes next
    ("entry_id", "<i8"),
    ("sorted_ledger_id", "<i8"),     # up to, and without, which the entries from that one on are in the order of their times, ...
    ("sorted_entry_id", "<i8"),
    ("sorted_ms", "<i8"),            # ... and the last one's
    ("files", "<u4"), ("bitmaps", "<u4"),      # rows of each
])
WINDOW_FILE_ROW = np.dtype([("start", "<i8"), ("width", "<i8"), ("size", "<u8"), ("rows", "<u8")])
WAITING_ROW = np.dtype([("ledger_id", "<u8"), ("first", "<u8"), ("size", "<u8")])      # bytes that are 0 before; bytes
AMENDMENT_ROW = np.dtype([
    ("ledger_id", "<u8"), ("entry_id", "<u8"),
    ("deliver_at", "<i8"),           # ms; -1: never
    ("checksum", "<u4"),             # CRC32-C over the row with 0 here
    ("unused", "<u4"),
])

SEGMENT_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"),
    ("is_retired", "<u4"),           # 1: all it holds is where it belongs, and synced there
    ("sequence", "<u8"),             # never used twice
    ("first_record", "<u8"),         # number of its first record
    ("checksum", "<u4"),             # CRC32-C over the header with 0 here; version 1: always 0
    ("reserved", "V28"),
])

RECORD_HEADER = np.dtype([
    ("magic", "<u4"),
    ("checksum", "<u4"),             # CRC32-C over the header behind this field and the whole record
    ("segment", "<u8"),              # sequence of its segment: what an earlier use of the file left behind does not count
    ("number", "<u8"),               # one more than the record before
    ("size", "<u8"),                 # bytes behind the header
    ("groups", "<u4"), ("rows", "<u4"), ("ops", "<u4"),
    ("tables", "<u4"),               # CRC32-C over the header behind `checksum` with 0 here, groups, rows, sources and ops; version 1: 0
    ("synced", "<u8"),               # number of the last record that was surely on disk when this one was written; version 1: 0
    ("reserved", "V8"),
])
_RECORD_HEADER = struct.Struct("<IIQQQIIIIQ8x")
CHECKED_FROM = 8                     # bytes of a record's header before what its checksums cover

GROUP_ROW = np.dtype([("partition_id", "<u8"), ("ledger_id", "<u8"), ("first_entry", "<u8"), ("count", "<u8")])
SOURCE = np.dtype("<u4")             # per row: offset of its entry in the record's entries

OP_ROW = np.dtype([
    ("kind", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"),
    ("ledger_id", "<i8"), ("entry_id", "<i8"), ("value", "<i8"),
])
LEDGER_OPENED = 1          # ledger_id; value = first message; entry_id = created, ms
LEDGER_DELETED = 2         # ledger_id
MARK_DELETE = 3            # subscription, (ledger_id, entry_id)
ACKNOWLEDGED = 4           # subscription, (ledger_id, entry_id) and `value` entries more, beyond the mark-delete position
CURSOR_RESET = 5           # subscription starts anew behind (ledger_id, entry_id): nothing beyond is acknowledged; value = since
SUBSCRIPTION_DELETED = 6   # subscription
PART_ACKNOWLEDGED = 7      # subscription, (ledger_id, entry_id); value = a word of bits, 1 = not acknowledged; its number is in KIND_WORD
REDELIVERED = 8            # subscription, (ledger_id, entry_id) and `value` entries more; how often each was by now is in KIND_WORD
DIED = 9                   # likewise of a consumer's deaths; entry_id -1: nobody died over anything of the subscription
TOTAL = 10                 # subscription; value = messages; the reason is in KIND_WORD
PRODUCED = 11              # (ledger_id, value) = a producer, see producer_sequences.py; entry_id = sequence id of its last message
CHUNKED = 12               # likewise; entry_id = a sequence id under way; subscription_id = checksum; the next chunk is in KIND_WORD
SEQUENCES_FORGOTTEN = 13   # of all producers
PARTITION_DELETED = 14     # nothing is left of it; its id is not used again
DELAYED = 15               # entries of the partition wait for their time
KIND, KIND_WORD = 0xFF, 8  # of an op's kind: what it is, and from which bit on a number that goes with it

for _header in (LEDGER_HEADER, INDEX_HEADER, INDEX_ROW, COMPACTED_ROW, STATE_HEADER, CURSOR_ROW, SEGMENT_HEADER, RECORD_HEADER):
    assert _header.itemsize == 64
assert _RECORD_HEADER.size == RECORD_HEADER.itemsize
assert OP_ROW.itemsize == 40

HEADER_SIZE = 64
GROUP, OP = struct_of(GROUP_ROW), struct_of(OP_ROW)
_INDEX = struct_of(INDEX_ROW)
_WORDS = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F, \
    0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3
_ODD = np.array(_WORDS, np.uint64)
_LEDGER, _ENTRY = 0x1D8E4E27C47D124F, 0xEB44ACCAB455D165
_LEDGER_ODD, _ENTRY_ODD = np.uint64(_LEDGER), np.uint64(_ENTRY)


def format_path(data_dir: Path) -> Path:
    return data_dir / "format"


def partition_folder(data_dir: Path, partition_id: int) -> Path:
    return data_dir / "partitions" / str(partition_id)


def ledger_path(folder: Path, ledger_id: int) -> Path:
    return folder / f"{ledger_id}.ledger"


def index_path(folder: Path, ledger_id: int) -> Path:
    return folder / f"{ledger_id}.index"


def state_path(folder: Path) -> Path:
    return folder / "state"


def delayed_folder(folder: Path) -> Path:
    """Of the schedule of the partition that has this folder."""
    return folder / "delayed"


def amended_path(folder: Path) -> Path:
    """What operators have changed of it."""
    return delayed_folder(folder) / "amended"


def linked_folder(data_dir: Path) -> Path:
    """Where a backup that is being made has second names of files, by partition."""
    return data_dir / "backup" / "linked"


def compacted_folder(folder: Path) -> Path:
    """Of the views of the partition that has this folder."""
    return folder / "compacted"


def header(dtype: np.dtype[np.void], **fields: Any) -> bytes:
    """The bytes of a header with these fields and the current version."""
    out = np.zeros(1, dtype)
    out["version"] = VERSION
    for name, value in fields.items():
        out[name] = value
    return out.tobytes()


def record_header(*, segment: int, number: int, synced: int, size: int, groups: int, rows: int, ops: int, checksum: int = 0,
                  tables: int = 0) -> bytes:
    """The bytes of a RECORD_HEADER; one is made for every pass, so without numpy."""
    return _RECORD_HEADER.pack(RECORD_MAGIC, checksum, segment, number, size, groups, rows, ops, tables, synced)


def checked_header(dtype: np.dtype[np.void], **fields: Any) -> bytes:
    """Likewise of a header that has a checksum of itself."""
    return header(dtype, **fields, checksum=crc32c(header(dtype, **fields)))


def is_whole(head: Rows) -> bool:
    """Whether the checksum of such a header (shape (1,)) is right."""
    bare = head.copy()
    bare["checksum"] = 0
    return crc32c(bare.tobytes()) == int(head["checksum"][0])


def row_checksums(rows: Rows, ledger_ids: NDArray[np.uint64] | int, entry_ids: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """What `checksum` of INDEX_ROW rows (n,), in which it is 0, in these places is: a multilinear hash, high word.

    Each factor is odd, so that a change of any one bit changes the sum; a look-up or a call per row would cost ten times
    as much as these few multiplications.
    """
    return _checksums(as_words(np.ascontiguousarray(rows)), ledger_ids, entry_ids)


def _checksums(words: NDArray[np.uint64], ledger_ids: NDArray[np.uint64] | int, entry_ids: NDArray[np.uint64]) -> NDArray[np.uint32]:
    total = words @ _ODD
    total += np.asarray(ledger_ids, np.uint64) * _LEDGER_ODD + (entry_ids + np.uint64(1)) * _ENTRY_ODD
    return (total >> np.uint64(32)).astype(np.uint32)


def index_row(ledger_id: int, entry_id: int, *, offset: int, publish_time: int, broker_time: int, deliver_at: int, message_index: int,
              size: int, messages: int, key_hash: int, flags: int, crc32c: int) -> bytes:
    """The bytes of one INDEX_ROW in that place."""
    a, b, c, d, e, f, g, h = _WORDS
    total = (offset * a + publish_time * b + broker_time * c + deliver_at * d + message_index * e + (size | messages << 32) * f
             + (key_hash | flags << 32) * g + crc32c * h + ledger_id * _LEDGER + (entry_id + 1) * _ENTRY)
    return _INDEX.pack(offset, publish_time, broker_time, deliver_at, message_index, size, messages, key_hash, flags, crc32c,
                       total >> 32 & 0xFFFFFFFF)


def is_valid(rows: Rows, ledger_id: int, first: int = 0) -> NDArray[np.bool_]:
    """Which rows (n,), those of a ledger's n entries from `first` on, are in their place and whole."""
    bare = as_words(np.ascontiguousarray(rows)).copy()
    bare[:, 7] &= np.uint64(0xFFFFFFFF)      # checksum
    found = _checksums(bare, ledger_id, np.arange(first, first + len(rows), dtype=np.uint64))
    valid: NDArray[np.bool_] = (found == rows["checksum"]) & (rows["size"] > 0)
    return valid


def valid_rows(rows: Rows, ledger_id: int) -> int:
    """How many rows from the first on are."""
    valid = is_valid(rows, ledger_id)
    return len(rows) if valid.all() else int((~valid).argmax())
