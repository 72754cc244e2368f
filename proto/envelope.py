"""Envelopes: messages of ZeroMQ between workers and owners, one per pass, with sections in the order of events.

    frame 0      HEADER, a SECTION for each section, then each section's rows (an array of its kind's dtype) and bytes
    further      the bytes of a section, when they are more than INLINE_MAX, are a frame of their own

    worker -> owner    SENDS        SEND_ROW + entries       ACKS       ACK_ROW + words
                       FLOWS        FLOW_ROW                 COMMANDS   COMMAND_ROW + commands
    owner -> worker    RECEIPTS     RECEIPT_ROW              RUNS       RUN_ROW
                       REPLIES      REPLY_ROW + frames       FORGET     FORGET_ROW
                       ENTRY_LISTS  ENTRY_LIST_ROW + LISTED_ENTRY rows, words
                       TRANSIENT    TRANSIENT_ROW + TRANSIENT_ENTRY rows, the entries' bytes
                       LAYOUTS      LAYOUT_ROW
    worker -> owner    SENDS_IN_TRANSACTIONS  as SENDS; rows with IN_TRANSACTION have its id in the field message_index
    owner -> owner     TRANSACTIONS TRANSACTION_ROW          NOTICES    NOTICE_ROW + JSON
    admin -> owner     QUESTIONS    QUESTION_ROW + JSON
    owner -> admin     ANSWERS      QUESTION_ROW + JSON

Sends, acks and flows of a pass may come in any order among themselves.  A command comes after all that preceded it and
before all that followed it.  No pickles, no dicts.
"""
import struct
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from geminga.proto.deliveries import RECEIPT_ROW
from geminga.proto.rows import Row, Rows, struct_of
from geminga.proto.sends import SEND_ROW

Data: TypeAlias = bytes | memoryview

SENDS, ACKS, FLOWS, COMMANDS, QUESTIONS, SENDS_IN_TRANSACTIONS, TRANSACTIONS, NOTICES = 1, 2, 3, 4, 5, 6, 7, 8
RECEIPTS, RUNS, REPLIES, FORGET, ENTRY_LISTS, TRANSIENT, ANSWERS, LAYOUTS = 16, 17, 18, 19, 20, 21, 22, 23

# (cost of entries and commands that the owner has taken from the worker so far, number of sections).  The first is the
# worker's credit, and 0 in the other direction.
HEADER = struct.Struct("<QQ")
SECTION = struct.Struct("<IIQ")   # kind, rows, bytes
INLINE_MAX = 32 << 10             # bytes; copying so many costs less than a frame of their own costs at both ends

ACK_ROW = np.dtype([
    ("consumer", "<u8"),     # the owner's handle
    ("ledger_id", "<u8"),
    ("entry_id", "<u8"),
    ("request_id", "<u8"),   # answered by ACK_RESPONSE when WANTS_RESPONSE, on the last row of the command
    ("flags", "<u4"),
    ("words", "<u4"),        # when PARTIAL: words in the section's data, a bit for each message not acknowledged
])
# PARTIAL: some messages of a batch.  NOTHING: an ACK without ids.
CUMULATIVE, PARTIAL, WANTS_RESPONSE, NOTHING = 1, 2, 4, 8

FLOW_ROW = np.dtype([("consumer", "<u8"), ("permits", "<u8")])

COMMAND_ROW = np.dtype([
    ("connection", "<u4"),
    ("kind", "<u2"),               # COMMAND, or an event of the connection
    ("protocol_version", "<u2"),   # of the client
    ("size", "<u4"),               # bytes of the BaseCommand
    ("flags", "<u4"),
])
COMMAND_COST = 16 << 10  # bytes of credit that a command takes beside its own: an owner serves so many in the same time
COMMAND = 0             # a client's command
CONNECTION_GONE = 1
CONNECTION_ALIVE = 2    # the client has answered a PROBE
DISCOVERS = 3           # the client was told the topics of a namespace; the data is the namespace
LOOKED_UP = 4           # the client asked for the first time where a topic is; the data is "request-id name"
INTRODUCED = 5          # before a connection's first command to an owner, and on changes: JSON with "role", ...
PRODUCER_EXPELLED, CONSUMER_EXPELLED = 6, 7     # the right to it was revoked: "id handle", handle 0 if unknown
DAMAGED = 8             # the client could not read messages; the data is its CommandAck, which acknowledges them
SEND_REFUSED = 9        # a replicator's SEND; "id handle " and the frames that tell the client
STREAM_RESTORED = 10    # a stream consumer that the owner's former process had registered; its SCALABLE_TOPIC_SUBSCRIBE
STREAM_EXPELLED = 11    # the right to its topic was revoked; the data is its consumer id

REPLY_ROW = np.dtype([
    ("connection", "<u4"),
    ("action", "<u4"),
    ("object_id", "<u8"),          # the client's producer or consumer id
    ("handle", "<u8"),             # the owner's number of the producer or consumer
    ("request_id", "<u8"),         # of the client's request that this answers, or NO_REQUEST
    ("size", "<u4"),               # bytes of frames to write to the client
    ("partition", "<i4"),          # CONSUMER_READY: the partition in the ids of its messages, or -1
])
WRITE, PRODUCER_READY, PRODUCER_GONE, CONSUMER_READY, CONSUMER_GONE = 0, 1, 2, 3, 4
PROBE = 5                # PING the client: a sign of life is told as CONNECTION_ALIVE, silence ends the connection
CONSUMER_EPOCH = 6       # `object_id` is the consumer's handle, `handle` the epoch of messages delivered from here on
PAUSE_READING = 7        # stop reading from the connection
RESUME_READING = 8       # read from the connection again, unless another owner has paused it
END = 9                  # end the connection
STREAM_REGISTERED = 10   # `object_id` is the consumer id of a stream consumer
STREAM_ASSIGNED = 11     # a stream consumer's new assignment, which replaces any that its client has not read yet
PRODUCER_SEALED = 12     # as PRODUCER_GONE, and its client closes it as soon as it learns of the topic's new layout

RUN_ROW = np.dtype([
    ("connection", "<u4"),
    ("count", "<u4"),              # entries
    ("consumer", "<u8"),           # the owner's handle
    ("partition_id", "<u8"),       # the name of the ledger's folder
    ("ledger_id", "<u8"),
    ("first_entry", "<u8"),
])

ENTRY_LIST_ROW = np.dtype([
    ("connection", "<u4"),
    ("count", "<u4"),              # entries
    ("consumer", "<u8"),           # the owner's handle
    ("partition_id", "<u8"),
    ("ledger_id", "<u8"),
    ("size", "<u4"),               # bytes of its LISTED_ENTRY rows and their words
    ("view", "<u4"),               # the number of the view whose compacted ledger is meant; 0: the ledger itself
])
LISTED_ENTRY = np.dtype([
    ("entry_id", "<u8"),
    ("redeliveries", "<u4"),
    # Words behind all rows, with a bit for each message that is not acknowledged; see deliveries.CHOSEN.
    ("words", "<u4"),
])

TRANSIENT_ROW = np.dtype([         # entries of a non-persistent topic
    ("connection", "<u4"),
    ("count", "<u4"),              # entries
    ("consumer", "<u8"),
    ("size", "<u8"),               # bytes of its TRANSIENT_ENTRY rows and of the entries
])
TRANSIENT_ENTRY = np.dtype([("entry_id", "<u8"), ("size", "<u4"), ("messages", "<u4")])

QUESTION_ROW = np.dtype([("number", "<u8"), ("size", "<u8")])     # an answer has its question's number

TRANSACTION_ROW = np.dtype([
    ("what", "<u4"),               # ADD and its like
    ("subscription_id", "<u4"),    # ADD, ADDED, REFUSED: 0 for the right to publish
    ("partition_id", "<u8"),
    ("transaction", "<u8"),        # see names.transaction
    ("role", "<u8"),               # ADD: hash of the role that began the transaction; 0: not known
])
# From a coordinator: ADD a partition or subscription to a transaction; COMMIT or ABORT it in a partition.
# To a coordinator: these are done, durably; ASK how a transaction ended, or nothing if it is still open; MAY_PUBLISH
# asks whether a SEND is to be stored, MAY_ACKNOWLEDGE whether an ACK on a subscription is to be taken.  The answer is
# ADD, ABORT or REFUSED.
ADD, COMMIT, ABORT, ADDED, ENDED, ASK, MAY_PUBLISH, REFUSED, MAY_ACKNOWLEDGE = 1, 2, 3, 4, 5, 6, 7, 8, 9

NOTICE_ROW = np.dtype([("size", "<u8")])      # a notice about segments, see storage/scalable/notices.py

RAW = b"\0"      # the first byte of an answer that is not JSON

# A ledger that is to be unmapped; `view` as in ENTRY_LIST_ROW.
FORGET_ROW = np.dtype([("ledger_id", "<u8"), ("view", "<u8")])

LAYOUT_ROW = np.dtype([("none", "<u4")])      # some layouts have changed: the catalogue says which

ROWS = {SENDS: SEND_ROW, ACKS: ACK_ROW, FLOWS: FLOW_ROW, COMMANDS: COMMAND_ROW,
        RECEIPTS: RECEIPT_ROW, RUNS: RUN_ROW, REPLIES: REPLY_ROW, FORGET: FORGET_ROW, ENTRY_LISTS: ENTRY_LIST_ROW,
        TRANSIENT: TRANSIENT_ROW, QUESTIONS: QUESTION_ROW, ANSWERS: QUESTION_ROW, LAYOUTS: LAYOUT_ROW,
        SENDS_IN_TRANSACTIONS: SEND_ROW, TRANSACTIONS: TRANSACTION_ROW,
        NOTICES: NOTICE_ROW}
STRUCTS = {kind: struct_of(dtype) for kind, dtype in ROWS.items()}
_SIZES = {kind: dtype.itemsize for kind, dtype in ROWS.items()}


def pack(kind: int, rows: Iterable[Row]) -> bytes:
    """Return the bytes of rows of that kind, for `seal`."""
    put = STRUCTS[kind].pack
    return b"".join([put(*row) for row in rows])


def seal(sections: Sequence[tuple[int, Rows | bytes, Data]], taken: int = 0) -> list[Data]:
    """Return the frames of an envelope of sections (kind, rows, data).  Rows are an array, or bytes of `pack`."""
    head: list[Data] = [HEADER.pack(taken, len(sections))]
    body: list[Data] = []
    frames: list[Data] = []
    for kind, rows, data in sections:
        if not isinstance(rows, bytes):
            assert rows.dtype == ROWS[kind]
            rows = rows.tobytes()
        head.append(SECTION.pack(kind, len(rows) // _SIZES[kind], len(data)))
        body.append(rows)
        if data:
            (body if len(data) <= INLINE_MAX else frames).append(data)
    return [b"".join(head + body), *frames]


def unseal(parts: Sequence[Any]) -> tuple[int, list[tuple[int, Rows, memoryview]]]:
    """Return (taken, [(kind, rows, data)]) of the frames that `seal` made; rows are read-only views of the frames.

    parts: buffers, as ZeroMQ returns them.
    """
    head, frames = memoryview(parts[0]), iter(parts[1:])
    taken, count = HEADER.unpack_from(head)
    at = HEADER.size + count * SECTION.size
    sections = []
    for kind, many, size in SECTION.iter_unpack(head[HEADER.size:at]):
        rows = np.frombuffer(head, ROWS[kind], many, at)
        at += rows.nbytes
        if size <= INLINE_MAX:
            data = head[at:at + size]
            at += size
        else:
            data = memoryview(next(frames))
        sections.append((kind, rows, data))
    return taken, sections
