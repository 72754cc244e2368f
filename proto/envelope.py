"""What crosses ZeroMQ between workers and owners: one envelope per pass, of sections in the order things happened.

    frame 0      HEADER, a SECTION for each, then for each its rows (a numpy array of its kind's dtype) and its bytes
    further      bytes of a section that has more than INLINE_MAX are a frame of their own

    worker -> owner    SENDS     SEND_ROW + entries      ACKS  ACK_ROW + words     FLOWS  FLOW_ROW     COMMANDS  COMMAND_ROW + commands
    owner -> worker    RECEIPTS  RECEIPT_ROW             RUNS  RUN_ROW     REPLIES  REPLY_ROW + frames     FORGET  FORGET_ROW
    admin -> owner     QUESTIONS QUESTION_ROW + JSON     ANSWERS  likewise, and back
    owner -> worker    PICKS     PICK_ROW + entries, words                 PASSED    PASSED_ROW + entries, their bytes

Sends, acks and flows of a pass may come in any order among themselves; a command comes after all that preceded it and
before all that followed it.  No pickles, no dicts.
"""
import struct

import numpy as np
from numpy.typing import NDArray

from geminga.proto.deliveries import RECEIPT_ROW
from geminga.proto.rows import struct_of
from geminga.proto.sends import SEND_ROW

SENDS, ACKS, FLOWS, COMMANDS, QUESTIONS = 1, 2, 3, 4, 5
RECEIPTS, RUNS, REPLIES, FORGET, PICKS, PASSED, ANSWERS = 16, 17, 18, 19, 20, 21, 22

HEADER = struct.Struct("<QQ")     # owner -> worker: bytes of entries, and COMMANDs' cost, taken from it so far (its credit); sections
SECTION = struct.Struct("<IIQ")   # kind, rows, bytes
INLINE_MAX = 32 << 10             # bytes; to copy so many costs less than a frame of their own does at both ends

ACK_ROW = np.dtype([
    ("consumer", "<u8"),     # the owner's handle
    ("ledger_id", "<u8"),
    ("entry_id", "<u8"),
    ("request_id", "<u8"),   # answered by ACK_RESPONSE when WANTS_RESPONSE, on the last row of the command
    ("flags", "<u4"),
    ("words", "<u4"),        # of 8 bytes each, in the section's data: the messages of the batch that are not acknowledged, when PARTIAL
])
CUMULATIVE, PARTIAL, WANTS_RESPONSE, NOTHING = 1, 2, 4, 8   # PARTIAL: only some messages of a batch; NOTHING: an ACK of no ids

FLOW_ROW = np.dtype([("consumer", "<u8"), ("permits", "<u8")])

COMMAND_ROW = np.dtype([
    ("connection", "<u4"),
    ("kind", "<u2"),               # COMMAND, or what happened to the connection
    ("protocol_version", "<u2"),   # of the client
    ("size", "<u4"),               # bytes of the BaseCommand
    ("flags", "<u4"),
])
COMMAND_COST = 16 << 10  # bytes of entries that a command counts for beside its own: about as dear to its owner
COMMAND = 0             # a client's
CONNECTION_GONE = 1
CONNECTION_ALIVE = 2    # it has answered a PROBE
DISCOVERS = 3           # it was told the topics of the namespace that is named instead of a command
LOOKED_UP = 4           # it asked where a topic is that is new to it: "request-id name"
INTRODUCED = 5          # comes before its first command to an owner: {"address", "version", "partial"} in JSON, see Session
PRODUCER_EXPELLED, CONSUMER_EXPELLED = 6, 7     # it is not to have a producer or consumer: "id handle"; handle 0: that was not told yet
DAMAGED = 8             # it could not read messages: a CommandAck of them, which it was about to acknowledge

REPLY_ROW = np.dtype([
    ("connection", "<u4"),
    ("action", "<u4"),
    ("object_id", "<u8"),          # the client's producer or consumer id
    ("handle", "<u8"),             # the owner's
    ("request_id", "<u8"),         # of the client's request that this answers, or NO_REQUEST
    ("size", "<u4"),               # bytes of frames to write to the client
    ("partition", "<i4"),          # CONSUMER_READY: what MESSAGE ids are to carry
])
NO_REQUEST = 0xFFFFFFFFFFFFFFFF
WRITE, PRODUCER_READY, PRODUCER_GONE, CONSUMER_READY, CONSUMER_GONE = 0, 1, 2, 3, 4
CONSUMER_EPOCH = 6       # `object_id` is the consumer's handle, `handle` what the messages delivered to it from here on carry
HOLD, GO_ON = 7, 8       # the connection is not read from; it is again, as far as this owner goes
END = 9                  # the connection is ended
PROBE = 5    # PING the client: a sign of life is told as CONNECTION_ALIVE, silence ends the connection

RUN_ROW = np.dtype([
    ("connection", "<u4"),
    ("count", "<u4"),              # entries
    ("consumer", "<u8"),           # the owner's handle
    ("partition_id", "<u8"),       # names the folder of the ledger
    ("ledger_id", "<u8"),
    ("first_entry", "<u8"),
])

PICK_ROW = np.dtype([
    ("connection", "<u4"),
    ("count", "<u4"),              # entries
    ("consumer", "<u8"),           # the owner's handle
    ("partition_id", "<u8"),
    ("ledger_id", "<u8"),
    ("size", "<u4"),               # bytes of its PICKED rows and their words
    ("view", "<u4"),               # the number of the compacted view that they are of; 0: of the ledger itself
])
PICKED = np.dtype([
    ("entry_id", "<u8"),
    ("redeliveries", "<u4"),
    ("words", "<u4"),              # of 8 bytes each, behind all rows: the messages of the batch that are not acknowledged
])

PASSED_ROW = np.dtype([            # entries of a topic that keeps none
    ("connection", "<u4"),
    ("count", "<u4"),              # entries
    ("consumer", "<u8"),
    ("size", "<u8"),               # bytes of its ENTRY rows and of the entries
])
ENTRY = np.dtype([("entry_id", "<u8"), ("size", "<u4"), ("messages", "<u4")])

QUESTION_ROW = np.dtype([("number", "<u8"), ("size", "<u8")])     # of administration, JSON; the answer has the question's number

RAW = b"\0"      # an answer that is no JSON begins with it

FORGET_ROW = np.dtype([("ledger_id", "<u8"), ("view", "<u8")])    # as of a PICK_ROW

ROWS = {SENDS: SEND_ROW, ACKS: ACK_ROW, FLOWS: FLOW_ROW, COMMANDS: COMMAND_ROW,
        RECEIPTS: RECEIPT_ROW, RUNS: RUN_ROW, REPLIES: REPLY_ROW, FORGET: FORGET_ROW, PICKS: PICK_ROW, PASSED: PASSED_ROW,
        QUESTIONS: QUESTION_ROW, ANSWERS: QUESTION_ROW}


STRUCTS = {kind: struct_of(dtype) for kind, dtype in ROWS.items()}


def pack(kind: int, rows: list[tuple]) -> bytes:
    """Rows of that kind, for `seal`."""
    put = STRUCTS[kind].pack
    return b"".join([put(*row) for row in rows])


def seal(sections: list[tuple[int, NDArray | bytes, bytes]], taken: int = 0) -> list:
    """The frames of an envelope of (kind, rows, bytes); rows as an array, or packed."""
    head, body, frames = [HEADER.pack(taken, len(sections))], [], []
    for kind, rows, data in sections:
        if not isinstance(rows, bytes):
            assert rows.dtype == ROWS[kind]
            rows = rows.tobytes()
        head.append(SECTION.pack(kind, len(rows) // STRUCTS[kind].size, len(data)))
        body.append(rows)
        (body if len(data) <= INLINE_MAX else frames).append(data)
    return [b"".join(head + body), *frames]


def unseal(parts: list) -> tuple[int, list[tuple[int, NDArray, memoryview]]]:
    """(taken, sections) of the frames that `seal` made; rows are read-only views of them."""
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
