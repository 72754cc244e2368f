"""The layout of every file that this broker writes, except the catalogue's tables (catalogue/layout.py).

    <data>/lock                             held by the supervisor that serves this folder
    <data>/format                           FOLDER_VERSION in digits, of the newest program that has served the folder
                                            (data_folder.py)
    <data>/catalogue.sqlite, standby        see catalogue.py and standby/standing.py
    <data>/backup/                          hard links of a backup in progress (backup.py)
    <data>/stacks                           stacks of all processes, written on SIGUSR1 (processes/stacks.py)
    <data>/journal/<owner>/<n>.journal      SEGMENT_HEADER, then records: RECORD_HEADER, groups, rows, sources, ops,
                                            entries
    <data>/partitions/<id>/<ledger>.ledger  LEDGER_HEADER, then entries as published, without gaps
    <data>/partitions/<id>/<ledger>.index   INDEX_HEADER, then an INDEX_ROW per entry, row n = entry n.  Blocks of
                                            a sealed index are zeros where all entries are discarded
                                            (index_repair.py).  *.new: an index that is being rewritten
    <data>/partitions/<id>/state            all other durable data of the partition, as of a checkpoint, in two
                                            copies: STATE_HEADER, then CURSOR_ROWs, PART_ROWs, ARRAY_ROWs,
                                            SEQUENCE_ROWs, the arrays' bytes, TYPE_ROWs, OP_ROWs and MISSED_ROWs
    <data>/partitions/<id>/compacted/<n>/   the n-th compacted view: its manifest `view` (compacted_ledgers.py), and for
                                            each ledger with kept entries <ledger>.ledger and .index as above, with a
                                            COMPACTED_ROW per kept entry, ascending; <ledger>.keys and .mask
                                            (view_files.py).  *.new: a view in progress
    <data>/partitions/<id>/exported         how far nights have exported the partition (exported.py)
    <data>/transactions/<n>/table           transactions of coordinator n, as of a checkpoint (transaction_table.py)
    <data>/partitions/<id>/delayed/         the delayed index (index.py); can be rebuilt from ledgers' indexes:
        <start>-<width>.window              WINDOW_BLOCKs, each with its WINDOW_ROWs: times in [start, start + width) ms
        schedule                            as of the last save: SCHEDULE_HEADER, WINDOW_FILE_ROWs, WAITING_ROWs, the
                                            bitmaps' bytes
        amended                             AMENDMENT_ROWs: messages that were cancelled or got another delivery time

All numbers are little-endian. Ledgers, indexes and segments are allocated ahead and are zero where nothing was
written. A row of zeros has no valid checksum. An entry carries its producer's CRC32-C over its content. Its row
carries a copy of that, and a checksum over the row and its place, so that a row copied to another place, or pointing
at other bytes, fails.

To change a layout: raise its VERSION, keep the old dtype beside it as NAME_V<old> with a reader, and document here
what each version added.
    Version 1: the first.
    Version 2:
      - `state` replaces a partition's `cursors` and `parts` and the files per ledger and subscription (.acks,
        .redeliveries, .deaths); state_v1.py reads the old files
      - INDEX_HEADER has a checksum, and counts at least some entries of an open ledger
      - SEGMENT_HEADER has a checksum; records have a checksum of their tables, and say which record was synced before
      - an op ACKNOWLEDGED covers a run of entries; sequence ids of producers; every entry has a checksum
    Later, still version 2:
      - PARTITION_DELETED; version 4 of the catalogue keeps programs away that do not know it
      - compacted views; a program that does not know them, or their masks, does not read them
      - `delayed`; a program that does not know it finds the same times in the indexes
      - freed rows; a program that does not know them repairs them, and reports discarded entries as lost
      - `exported`; a program that does not know it deletes messages that are not exported
      - TYPE_CHANGED and TYPE_ROWs; a program that does not know them skips both, and writes states without types
      - MISSED and MISSED_ROWs, and runs of TRANSACTION_SEQUENCE; a program that does not know them skips them: late
        messages are duplicates there, and so are those of an aborted transaction that come again
      - hashes of roles of transactions; a program that does not know them compares checksums
      - names promised to transactions, which older programs take for a partition 0 that does not exist
      - positions of replicators, which older programs forget with sequence ids; markers, which they find discarded

FOLDER_VERSION is the version of the whole folder, and keeps older programs away from it.  Raise it whenever a released
program must not write to a folder of this program: because of a VERSION here, in layout.py or in compacted_ledgers.py,
or because of a new file.  Then put a folder of the new version into tests/storage/formats (make.py), and document here
what it added.
    Version 1: the first one.  Folders without a number are older, and are upgraded.
    Version 2: transactions.  Older programs would deliver messages that are not committed, and forget pending
        acknowledgements.
    Version 3: scalable topics.  Older programs do not know the catalogue's layouts, nor the names of segments.
"""
import struct
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.rows import Rows, as_words, struct_of

VERSION = 2
FOLDER_VERSION = 3
LEDGER_MAGIC, INDEX_MAGIC, SEGMENT_MAGIC, STATE_MAGIC = b"GEMLEDGR", b"GEMINDEX", b"GEMJOURN", b"GEMSTATE"
SCHEDULE_MAGIC = b"GEMSCHED"
RECORD_MAGIC, WINDOW_MAGIC = 0x47454D52, 0x57454D31      # the last byte of WINDOW_MAGIC is a version

OPEN, SEALED = 1, 2
# The first bytes of an entry whose space was freed.  Any other entry begins with a magic number, or with the size of
# its metadata.
NO_ENTRY = bytes(4)

LEDGER_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"), ("unused", "<u4"), ("ledger_id", "<u8"), ("partition_id", "<u8"),
    ("reserved", "V32")])

INDEX_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"),
    ("state", "<u4"),                # OPEN or SEALED
    ("ledger_id", "<u8"), ("partition_id", "<u8"),
    ("first_message", "<u8"),        # messages of the partition before this ledger
    ("created_ms", "<i8"),
    ("entries", "<u4"),              # in an open ledger a lower bound; the journal has the rest
    ("checksum", "<u4"),             # CRC32-C over the header with 0 here; version 1: always 0
    ("size", "<u8"),                 # offset behind the last counted entry
])

INDEX_ROW = np.dtype([
    ("offset", "<u8"),               # of the entry in the ledger's file
    ("publish_time", "<i8"),         # ms, the producer's clock
    ("broker_time", "<i8"),          # ms, the broker's clock
    ("deliver_at", "<i8"),           # ms; 0: at once
    ("message_index", "<u8"),        # messages of the partition before this entry
    ("size", "<u4"),
    ("messages", "<u4"),
    ("key_hash", "<u4"),
    ("flags", "<u4"),                # proto/sends.py
    ("crc32c", "<u4"),               # checksum of the entry's content
    ("checksum", "<u4"),             # over this row and its place
])

COMPACTED_ROW = np.dtype([           # an INDEX_ROW with the entry's id in place of the key hash
    ("offset", "<u8"), ("publish_time", "<i8"), ("broker_time", "<i8"), ("deliver_at", "<i8"), ("message_index", "<u8"),
    ("size", "<u4"), ("messages", "<u4"),
    ("entry_id", "<u4"),             # unchanged
    ("flags", "<u4"),                # as in INDEX_ROW, and IS_CUT
    ("crc32c", "<u4"), ("checksum", "<u4"),
])
IS_CUT = 32                          # a batch that lost messages; words follow it: a bit per message, 1 = kept

STATE_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"),
    ("checksum", "<u4"),             # CRC32-C over the header with 0 here and all of this copy
    ("partition_id", "<u8"),
    ("size", "<u8"),                 # bytes behind the header
    ("cursors", "<u4"), ("parts", "<u4"), ("arrays", "<u4"),      # rows of each
    ("is_uncounted", "<u4"),         # 1: read from format version 1, which had no totals
    ("sequences", "<u4"),            # rows
    ("delays", "<u4"),               # UNKNOWN, NONE_DELAYED or SCHEDULED
    ("types", "<u4"),                # rows; older programs wrote 0
    ("transactions", "<u4"),         # ops; older programs wrote 0
])
UNKNOWN, NONE_DELAYED, SCHEDULED = 0, 1, 2      # whether the partition ever had delayed entries; older programs wrote 0

CURSOR_ROW = np.dtype([
    ("subscription_id", "<u8"),      # 0: entries lost or cancelled, for all subscriptions
    ("ledger_id", "<i8"),            # mark-delete position
    ("entry_id", "<i8"),
    ("since", "<u8"),                # messages of the partition before the first one that the totals count
    ("totals", "<u8", 4),            # messages, by reason: cursor.py
])

PART_ROW = np.dtype([                # batches that are acknowledged in part
    ("subscription_id", "<u8"), ("ledger_id", "<u8"), ("entry_id", "<u8"),
    ("number", "<u8"),               # index of the word among the words of the entry
    ("word", "<u8"),                 # a bit per message, 1 = not acknowledged
])

ARRAY_ROW = np.dtype([
    ("subscription_id", "<u8"), ("ledger_id", "<u8"),
    ("kind", "<u4"), ("unused", "<u4"),
    ("first", "<u8"),                # number of omitted items before it, which are 0
    ("size", "<u8"),                 # bytes
])
SEQUENCE_ROW = np.dtype([            # progress of producers, for deduplication
    ("producer", "<i8", 2),          # producer_sequences.identity
    ("last", "<i8"),                 # sequence id of the last message stored completely
    ("sequence_id", "<i8"),          # sequence id of a message whose chunks are being stored
    ("next_chunk", "<u4"),           # 0: no such message
    ("crc32c", "<u4"),               # of the first chunk
])
MISSED_ROW = np.dtype([              # ids that a producer has passed over, ascending within a producer
    ("producer", "<i8", 2),
    ("first", "<i8"), ("last", "<i8"),      # a gap; above SEQUENCE_ROW's `last`: ids that are supposed to be stored
])
GAP_ROW = np.dtype([("first", "<i8"), ("last", "<i8")])      # in the catalogue's table `inherited`
CONTENT_ROW = np.dtype([             # a message that a segment before has stored, in the catalogue's table `inherited`
    ("sequence_id", "<i8"),
    ("digest", "<i8"),               # contents.Contents.messages
])
TYPE_ROW = np.dtype([                # subscriptions that have had consumers
    ("subscription_id", "<u8"),
    ("type", "<u4"),                 # CommandSubscribe.SubType
    ("unused", "<u4"),
])

ACKS = 1                   # a bit per entry, 1 = acknowledged, beyond the mark-delete position
REDELIVERIES = 2           # u2 per entry: redelivery count
DEATHS = 3                 # u2 per entry: number of consumers that disconnected while they held it

WINDOW_BLOCK = np.dtype([
    ("magic", "<u4"), ("count", "<u4"),
    ("checksum", "<u4"),             # CRC32-C over its rows
    ("unused", "<u4"),
])
WINDOW_ROW = np.dtype([
    ("after_ms", "<u4"),             # delivery time minus the window's start
    ("entry_id", "<u4"), ("ledger_id", "<u8"),
])
SCHEDULE_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"),
    ("checksum", "<u4"),             # CRC32-C over the header with 0 here and all that follows
    ("partition_id", "<u8"),
    ("ledger_id", "<i8"),            # first position not indexed
    ("entry_id", "<i8"),
    ("sorted_ledger_id", "<i8"),     # from the position above up to this one (exclusive) times ascend, ...
    ("sorted_entry_id", "<i8"),
    ("sorted_ms", "<i8"),            # ... and this is the last time
    ("files", "<u4"), ("bitmaps", "<u4"),      # rows of each
])
WINDOW_FILE_ROW = np.dtype([("start", "<i8"), ("width", "<i8"), ("size", "<u8"), ("rows", "<u8")])
WAITING_ROW = np.dtype([("ledger_id", "<u8"), ("first", "<u8"), ("size", "<u8")])  # first: number of omitted zero bytes
AMENDMENT_ROW = np.dtype([
    ("ledger_id", "<u8"), ("entry_id", "<u8"),
    ("deliver_at", "<i8"),           # ms; -1: never
    ("checksum", "<u4"),             # CRC32-C over the row with 0 here
    ("unused", "<u4"),
])

SEGMENT_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"),
    ("is_retired", "<u4"),           # 1: all its records were applied and synced
    ("sequence", "<u8"),             # never used twice
    ("first_record", "<u8"),         # number of its first record; of a retired one 0, or that of the next one's
    ("checksum", "<u4"),             # CRC32-C over the header with 0 here; version 1: always 0
    ("reserved", "V28"),
])

RECORD_HEADER = np.dtype([
    ("magic", "<u4"),
    ("checksum", "<u4"),             # CRC32-C over the header behind this field and the whole record
    ("segment", "<u8"),              # sequence of its segment; tells records of an earlier use of the file apart
    ("number", "<u8"),               # one more than that of the previous record
    ("size", "<u8"),                 # bytes behind the header
    ("groups", "<u4"), ("rows", "<u4"), ("ops", "<u4"),
    # CRC32-C over the header behind `checksum`, with 0 here, and over the tables; version 1: 0
    ("tables", "<u4"),
    ("synced", "<u8"),               # number of the last record synced before this one was written; version 1: 0
    ("reserved", "V8"),
])
_RECORD_HEADER, _CHECKSUM = struct.Struct("<IIQQQIIIIQ8x"), struct.Struct("<I")
CHECKED_FROM = 8                     # offset in a record's header from which its checksums cover it

GROUP_ROW = np.dtype([("partition_id", "<u8"), ("ledger_id", "<u8"), ("first_entry", "<u8"), ("count", "<u8")])
SOURCE = np.dtype("<u4")             # per row: offset of its entry in the record's entries

# Operations ("ops"): changes that a pass made, other than entries.  Each kind has fields of its own in its 40 bytes:
#
#   kind                  | 0      1..3          4..7             8..15         16..23       24..31       32..39
#   LEDGER_OPENED         | kind   .             .                partition_id  ledger_id    created_ms   first_message
#   LEDGER_DELETED        | kind   .             .                partition_id  ledger_id    .            .
#   MARK_DELETE           | kind   .             subscription_id  partition_id  ledger_id    entry_id     .
#   ACKNOWLEDGED          | kind   .             subscription_id  partition_id  ledger_id    first_entry  more_entries
#   CURSOR_RESET          | kind   .             subscription_id  partition_id  ledger_id    entry_id     since
#   SUBSCRIPTION_DELETED  | kind   .             subscription_id  partition_id  .            .            .
#   CURSOR_REPLACED       | kind   .             subscription_id  partition_id  other        .            since
#   PART_ACKNOWLEDGED     | kind   word_number   subscription_id  partition_id  ledger_id    entry_id     word
#   REDELIVERED, DIED     | kind   count         subscription_id  partition_id  ledger_id    first_entry  more_entries
#   TOTAL                 | kind   reason        subscription_id  partition_id  .            .            messages
#   PRODUCED              | kind   supposed      .                partition_id  producer_a   sequence_id  producer_b
#   MISSED                | kind   count_high    count_low        partition_id  producer_a   first        producer_b
#   CHUNKED               | kind   next_chunk    crc32c           partition_id  producer_a   sequence_id  producer_b
#   SEQUENCES_FORGOTTEN   | kind   .             .                partition_id  .            .            .
#   PARTITION_DELETED, DELAYED: as SEQUENCES_FORGOTTEN
#   COORDINATED           | kind   state         role_crc32c      role          opened_ms    lifetime_ms  transaction
#   ADDED_TO_TRANSACTION  | kind   .             subscription_id  partition_id  promised     promised     transaction
#   TRANSACTION_ENTRIES   | kind   .             more_entries     partition_id  ledger_id    first_entry  transaction
#   TRANSACTION_SEQUENCE  | kind   place         more             partition_id  producer_a   sequence_id  transaction
#   TRANSACTION_ACKS      | kind   .             subscription_id  partition_id  ledger_id    first, more  transaction
#   TRANSACTION_ACK_UP_TO | kind   .             subscription_id  partition_id  ledger_id    entry_id     transaction
#   TRANSACTION_ACK_PART  | kind   word_number   subscription_id  partition_id  ledger_id    entry, word  transaction
#   TRANSACTION_ENDED     | kind   .             .                partition_id  .            .            transaction
#   TYPE_CHANGED          | kind   type          subscription_id  partition_id  .            .            .
#
# numpy has no integers of three bytes.  So the field of such a number holds the kind too, and is named after both;
# `numbers_of` gives the number.  journal_ops.py makes ops.
OP_ROW = np.dtype([("kind", "u1"), ("number", "V3"), ("about", "V4"), ("partition_id", "<u8"), ("fields", "V24")])
KIND, NUMBER = 0xFF, 8     # of a field that holds kind and number: mask of the kind, lowest bit of the number

LEDGER_OPENED = 1          # its entries come after this op
LEDGER_DELETED = 2
MARK_DELETE = 3            # the subscription's mark-delete position is this
ACKNOWLEDGED = 4           # beyond that position: first_entry, and more_entries behind it
CURSOR_RESET = 5           # the subscription restarts behind this position, with nothing acknowledged beyond it
SUBSCRIPTION_DELETED = 6
PART_ACKNOWLEDGED = 7      # 64 bits of a batch's messages, 1 = not acknowledged; word 0 has the first 64 messages
REDELIVERED = 8            # the redelivery count of first_entry, and of more_entries behind it
DIED = 9                   # the count of consumers that disconnected while they held it; entry -1: all become 0
TOTAL = 10                 # messages that the subscription no longer needs, by reason (an index of cursor.REASONS)
PRODUCED = 11              # the highest sequence id of the producer's completely stored messages
CHUNKED = 12               # a chunked message: its next chunk (0: it is complete), and the checksum of the first
SEQUENCES_FORGOTTEN = 13   # of all producers
PARTITION_DELETED = 14     # its id is never used again
DELAYED = 15               # the partition has a delayed index from now on
TYPE_CHANGED = 16          # the subscription's consumers are of this CommandSubscribe.SubType
COORDINATED = 17           # a transaction of this owner's coordinators has this state from now on
ADDED_TO_TRANSACTION = 18  # ... may publish to this partition, or acknowledge on this subscription of it (0: none)
TRANSACTION_ENTRIES = 19   # entries that an open transaction published: first_entry, and more_entries behind it
TRANSACTION_SEQUENCE = 20  # sequence ids that a producer used in a transaction; or the role of the transaction
TRANSACTION_ACKS = 21      # entries that an open transaction acknowledges: first_entry, and more_entries behind it
TRANSACTION_ACK_UP_TO = 22 # ... all entries up to this position
TRANSACTION_ACK_PART = 23  # ... 32 messages of a batch, a bit each, 1 = acknowledged by the transaction
TRANSACTION_ENDED = 24     # everything of the transaction is applied, or undone, in this partition
MISSED = 25                # a gap in a producer's sequence ids begins at this one; count 0: no gap begins there
CURSOR_REPLACED = 26       # the subscription's cursor is from now on the other one, of which this is the last op

LEDGER_OPENED_OP = np.dtype([
    ("kind", "<u4"), ("unused", "V4"), ("partition_id", "<u8"), ("ledger_id", "<i8"),
    ("created_ms", "<i8"),
    ("first_message", "<i8"),        # messages of the partition before this ledger
])
LEDGER_DELETED_OP = np.dtype([
    ("kind", "<u4"), ("unused", "V4"), ("partition_id", "<u8"), ("ledger_id", "<i8"), ("unused2", "V16")])
MARK_DELETE_OP = np.dtype([
    ("kind", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"), ("ledger_id", "<i8"), ("entry_id", "<i8"),
    ("unused", "V8")])
ACKNOWLEDGED_OP = np.dtype([
    ("kind", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"), ("ledger_id", "<i8"),
    ("first_entry", "<i8"),
    ("more_entries", "<i8"),         # 0: only first_entry
])
CURSOR_RESET_OP = np.dtype([
    ("kind", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"), ("ledger_id", "<i8"), ("entry_id", "<i8"),
    ("since", "<i8"),                # as in CURSOR_ROW
])
PART_ACKNOWLEDGED_OP = np.dtype([
    ("kind_and_word_number", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"), ("ledger_id", "<i8"),
    ("entry_id", "<i8"), ("word", "<u8")])
COUNTED_OP = np.dtype([              # REDELIVERED, DIED
    ("kind_and_count", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"), ("ledger_id", "<i8"),
    ("first_entry", "<i8"), ("more_entries", "<i8")])
TOTAL_OP = np.dtype([
    ("kind_and_reason", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"), ("unused", "V16"),
    ("messages", "<i8")])
PRODUCED_OP = np.dtype([
    ("kind_and_supposed", "<u4"),    # ids above it that are supposed to be stored; older programs wrote 0
    ("unused", "V4"), ("partition_id", "<u8"),
    ("producer_a", "<i8"),           # the halves of producer_sequences.identity
    ("sequence_id", "<i8"), ("producer_b", "<i8")])
MISSED_OP = np.dtype([
    ("kind_and_count_high", "<u4"),  # the high 24 bits of the number of ids in the gap
    ("count_low", "<u4"),            # ... and the low 32 bits
    ("partition_id", "<u8"), ("producer_a", "<i8"), ("first", "<i8"), ("producer_b", "<i8")])
CHUNKED_OP = np.dtype([
    ("kind_and_next_chunk", "<u4"), ("crc32c", "<u4"), ("partition_id", "<u8"), ("producer_a", "<i8"),
    ("sequence_id", "<i8"), ("producer_b", "<i8")])
SUBSCRIPTION_OP = np.dtype([         # SUBSCRIPTION_DELETED
    ("kind", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"), ("unused", "V24")])
CURSOR_REPLACED_OP = np.dtype([
    ("kind", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"),
    ("other", "<i8"),                # id of the cursor
    ("unused", "V8"), ("since", "<i8")])
TYPE_CHANGED_OP = np.dtype([
    ("kind_and_type", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"), ("unused", "V24")])
PARTITION_OP = np.dtype([            # SEQUENCES_FORGOTTEN, PARTITION_DELETED, DELAYED
    ("kind", "<u4"), ("unused", "V4"), ("partition_id", "<u8"), ("unused2", "V24")])
COORDINATED_OP = np.dtype([
    ("kind_and_state", "<u4"),       # transactions/transaction_table.py has the states
    ("role_crc32c", "<u4"),          # of the name of the role that opened it, which older programs compare
    ("role", "<u8"),                 # ... and a hash of it, in place of a partition's id; older programs wrote 0
    ("opened_ms", "<i8"),
    ("lifetime_ms", "<i8"),          # ... allowed; of an ended one, that which it had
    ("transaction", "<u8")])
ADDED_OP = np.dtype([
    ("kind", "<u4"), ("subscription_id", "<u4"),
    ("partition_id", "<u8"),         # 0: a topic that was not there, by its name
    ("promised", "V16"),             # hash of that name; else zeros, as older programs always wrote
    ("transaction", "<u8")])
PROMISED_SIZE = 16
TRANSACTION_ENTRIES_OP = np.dtype([
    ("kind", "<u4"), ("more_entries", "<u4"), ("partition_id", "<u8"), ("ledger_id", "<i8"), ("first_entry", "<i8"),
    ("transaction", "<u8")])
TRANSACTION_SEQUENCE_OP = np.dtype([
    ("kind_and_place", "<u4"),       # RUN or ROLE; older programs wrote BEFORE, and then LAST
    ("more", "<u4"),                 # of a RUN: ids behind the first one
    ("partition_id", "<u8"),
    ("producer_a", "<i8"),           # the first half of producer_sequences.identity
    ("sequence_id", "<i8"), ("transaction", "<u8")])
# In sequence_id: that before the transaction, its last one, or a run's first one; or the hash of the transaction's
# role.  That is no kind of its own, because older programs read no new kinds in a state file.
BEFORE, LAST, RUN, ROLE = 0, 1, 2, 3
TRANSACTION_ACKS_OP = np.dtype([
    ("kind", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"), ("ledger_id", "<i8"),
    ("first_entry", "<u4"), ("more_entries", "<u4"), ("transaction", "<u8")])
TRANSACTION_ACK_UP_TO_OP = np.dtype([
    ("kind", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"), ("ledger_id", "<i8"), ("entry_id", "<i8"),
    ("transaction", "<u8")])
TRANSACTION_ACK_PART_OP = np.dtype([
    ("kind_and_word_number", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"), ("ledger_id", "<i8"),
    ("entry_id", "<u4"), ("word", "<u4"), ("transaction", "<u8")])
TRANSACTION_ENDED_OP = np.dtype([
    ("kind", "<u4"), ("unused", "V4"), ("partition_id", "<u8"), ("unused2", "V16"), ("transaction", "<u8")])

OPS = {
    LEDGER_OPENED: LEDGER_OPENED_OP, LEDGER_DELETED: LEDGER_DELETED_OP, MARK_DELETE: MARK_DELETE_OP,
    ACKNOWLEDGED: ACKNOWLEDGED_OP, CURSOR_RESET: CURSOR_RESET_OP, SUBSCRIPTION_DELETED: SUBSCRIPTION_OP,
    CURSOR_REPLACED: CURSOR_REPLACED_OP,
    PART_ACKNOWLEDGED: PART_ACKNOWLEDGED_OP, REDELIVERED: COUNTED_OP, DIED: COUNTED_OP, TOTAL: TOTAL_OP,
    PRODUCED: PRODUCED_OP, CHUNKED: CHUNKED_OP, SEQUENCES_FORGOTTEN: PARTITION_OP, PARTITION_DELETED: PARTITION_OP,
    DELAYED: PARTITION_OP, TYPE_CHANGED: TYPE_CHANGED_OP, MISSED: MISSED_OP,
    COORDINATED: COORDINATED_OP, ADDED_TO_TRANSACTION: ADDED_OP, TRANSACTION_ENTRIES: TRANSACTION_ENTRIES_OP,
    TRANSACTION_SEQUENCE: TRANSACTION_SEQUENCE_OP, TRANSACTION_ACKS: TRANSACTION_ACKS_OP,
    TRANSACTION_ACK_UP_TO: TRANSACTION_ACK_UP_TO_OP, TRANSACTION_ACK_PART: TRANSACTION_ACK_PART_OP,
    TRANSACTION_ENDED: TRANSACTION_ENDED_OP,
}

for _header in (LEDGER_HEADER, INDEX_HEADER, INDEX_ROW, COMPACTED_ROW, STATE_HEADER, CURSOR_ROW, SEGMENT_HEADER,
                RECORD_HEADER):
    assert _header.itemsize == 64
assert _RECORD_HEADER.size == RECORD_HEADER.itemsize
assert {dtype.itemsize for dtype in (OP_ROW, *OPS.values())} == {40}

HEADER_SIZE = 64
GROUP = struct_of(GROUP_ROW)
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


def index_size(rows: int) -> int:
    """Return the bytes of a ledger's index that has so many rows; the row with that number begins there."""
    return HEADER_SIZE + rows * INDEX_ROW.itemsize


def rows_in(size: int) -> int:
    """Return the number of whole rows in a ledger's index of so many bytes; 0 for one without a whole header."""
    return max(0, size - HEADER_SIZE) // INDEX_ROW.itemsize


def state_path(folder: Path) -> Path:
    return folder / "state"


def delayed_folder(folder: Path) -> Path:
    """Return the folder of a partition's delayed index; `folder` is the partition's folder."""
    return folder / "delayed"


def amended_path(folder: Path) -> Path:
    """Return the path of the file with delayed messages that operators cancelled or moved."""
    return delayed_folder(folder) / "amended"


def linked_folder(data_dir: Path) -> Path:
    """Return the folder in which a backup in progress keeps hard links to files, by partition."""
    return data_dir / "backup" / "linked"


def compacted_folder(folder: Path) -> Path:
    """Return the folder of a partition's compacted views; `folder` is the partition's folder."""
    return folder / "compacted"


def header(dtype: np.dtype[np.void], **fields: Any) -> bytes:
    """Return the bytes of a header with the given fields and the current format version."""
    out = np.zeros(1, dtype)
    out["version"] = VERSION
    for name, value in fields.items():
        out[name] = value
    return out.tobytes()


def record_header(*, segment: int, number: int, synced: int, size: int, groups: int, rows: int, ops: int) -> bytes:
    """Return the bytes of a RECORD_HEADER without its two checksums.

    Every pass makes one, so it is packed with struct: numpy would be too slow.
    """
    return _RECORD_HEADER.pack(RECORD_MAGIC, 0, segment, number, size, groups, rows, ops, 0, synced)


def with_checksums(header: bytes, checksum: int, tables: int) -> bytes:
    """Return the bytes of a RECORD_HEADER with its fields `checksum` and `tables`."""
    return b"".join((header[:4], _CHECKSUM.pack(checksum), header[8:44], _CHECKSUM.pack(tables), header[48:]))


def checked_header(dtype: np.dtype[np.void], **fields: Any) -> bytes:
    """Return the bytes of a header with the given fields, the current format version, and the header's checksum."""
    return header(dtype, **fields, checksum=crc32c(header(dtype, **fields)))


def numbers_of(kinds: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the numbers (n,) int64 in fields (n,) uint32 of ops that hold kind and number."""
    return kinds.astype(np.int64) >> NUMBER


def is_whole(head: Rows) -> bool:
    """Whether the header, shape (1,), matches its own checksum."""
    bare = head.copy()
    bare["checksum"] = 0
    return crc32c(bare.tobytes()) == int(head["checksum"][0])


def row_checksums(rows: Rows, ledger_ids: NDArray[np.uint64] | int,
                  entry_ids: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return the field `checksum` (n,) uint32 for INDEX_ROWs (n,) at the given ledger and entry ids.

    The rows must have 0 in that field.  The checksum is the high half of a multilinear hash.  Each factor is odd, so
    that a change of any one bit changes the sum.  A look-up or a call for each row would cost ten times as much as
    these few multiplications.
    """
    return _checksums(as_words(np.ascontiguousarray(rows)), ledger_ids, entry_ids)


def _checksums(words: NDArray[np.uint64], ledger_ids: NDArray[np.uint64] | int,
               entry_ids: NDArray[np.uint64]) -> NDArray[np.uint32]:
    total = words @ _ODD
    total += np.asarray(ledger_ids, np.uint64) * _LEDGER_ODD + (entry_ids + np.uint64(1)) * _ENTRY_ODD
    return (total >> np.uint64(32)).astype(np.uint32)


def index_row(ledger_id: int, entry_id: int, *, offset: int, publish_time: int, broker_time: int, deliver_at: int,
              message_index: int, size: int, messages: int, key_hash: int, flags: int, crc32c: int) -> bytes:
    """Return the bytes of one INDEX_ROW with its checksum for this ledger and entry id."""
    a, b, c, d, e, f, g, h = _WORDS
    total = (offset * a + publish_time * b + broker_time * c + deliver_at * d + message_index * e
             + (size | messages << 32) * f + (key_hash | flags << 32) * g + crc32c * h
             + ledger_id * _LEDGER + (entry_id + 1) * _ENTRY)
    return _INDEX.pack(offset, publish_time, broker_time, deliver_at, message_index, size, messages, key_hash, flags,
                       crc32c, total >> 32 & 0xFFFFFFFF)


def is_valid(rows: Rows, ledger_id: int, first: int = 0) -> NDArray[np.bool_]:
    """Return for each row (n,) of a ledger's index whether its checksum matches content and place, as booleans (n,).

    first: entry id of the first row.
    """
    bare = as_words(np.ascontiguousarray(rows)).copy()
    bare[:, 7] &= np.uint64(0xFFFFFFFF)      # checksum
    found = _checksums(bare, ledger_id, np.arange(first, first + len(rows), dtype=np.uint64))
    valid: NDArray[np.bool_] = (found == rows["checksum"]) & (rows["size"] > 0)
    return valid


def valid_rows(rows: Rows, ledger_id: int) -> int:
    """Return the number of valid rows before the first invalid one."""
    valid = is_valid(rows, ledger_id)
    return len(rows) if valid.all() else int((~valid).argmax())
