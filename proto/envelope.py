"""What crosses ZeroMQ between workers and owners: one envelope per pass, of sections in the order things happened.

    frame 0      HEADER, a SECTION for each, then the rows of all (numpy arrays of each kind's dtype)
    then, for each section that has any, its bytes in a frame of their own

    worker -> owner    SENDS     SEND_ROW + entries      ACKS  ACK_ROW     FLOWS  FLOW_ROW     COMMANDS  COMMAND_ROW + commands
    owner -> worker    RECEIPTS  RECEIPT_ROW             RUNS  RUN_ROW     REPLIES  REPLY_ROW + frames     FORGET  FORGET_ROW

Sends, acks and flows of a pass may come in any order among themselves; a command comes after all that preceded it and
before all that followed it.  No pickles, no dicts, no Python object per entry.
"""
import numpy as np
from numpy.typing import NDArray

from geminga.proto.deliveries import RECEIPT_ROW
from geminga.proto.sends import SEND_ROW

SENDS, ACKS, FLOWS, COMMANDS = 1, 2, 3, 4
RECEIPTS, RUNS, REPLIES, FORGET = 16, 17, 18, 19

HEADER = np.dtype([
    ("taken", "<u8"),        # owner -> worker: bytes of entries taken from this worker so far (its credit)
    ("sections", "<u8"),
])
SECTION = np.dtype([("kind", "<u4"), ("rows", "<u4"), ("size", "<u8")])

ACK_ROW = np.dtype([
    ("consumer", "<u8"),     # the owner's handle
    ("ledger_id", "<u8"),
    ("entry_id", "<u8"),
    ("request_id", "<u8"),   # answered by ACK_RESPONSE when WANTS_RESPONSE, on the last row of the command
    ("flags", "<u4"),
    ("unused", "<u4"),
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
COMMAND = 0             # a client's
CONNECTION_GONE = 1
CONNECTION_ALIVE = 2    # it has answered a PROBE

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
PROBE = 5    # PING the client: a sign of life is told as CONNECTION_ALIVE, silence ends the connection

RUN_ROW = np.dtype([
    ("connection", "<u4"),
    ("count", "<u4"),              # entries
    ("consumer", "<u8"),           # the owner's handle
    ("partition_id", "<u8"),       # names the folder of the ledger
    ("ledger_id", "<u8"),
    ("first_entry", "<u8"),
])

FORGET_ROW = np.dtype([("ledger_id", "<u8")])

ROWS = {SENDS: SEND_ROW, ACKS: ACK_ROW, FLOWS: FLOW_ROW, COMMANDS: COMMAND_ROW,
        RECEIPTS: RECEIPT_ROW, RUNS: RUN_ROW, REPLIES: REPLY_ROW, FORGET: FORGET_ROW}


def seal(sections: list[tuple[int, NDArray, bytes]], taken: int = 0) -> list:
    """The frames of an envelope.  Few of them: each costs ZeroMQ microseconds at both ends."""
    table, rows, data = [], [], []
    for kind, array, piece in sections:
        assert array.dtype == ROWS[kind]
        table.append((kind, len(array), len(piece)))
        rows.append(array.tobytes())
        if len(piece):
            data.append(piece)
    head = np.array([(taken, len(table))], HEADER).tobytes() + np.array(table, SECTION).tobytes()
    return [b"".join((head, *rows)), *data]


def unseal(parts: list) -> tuple[int, list[tuple[int, NDArray, memoryview]]]:
    """(taken, sections) of the frames that `seal` made; rows are read-only views of them."""
    head, data = parts[0], iter(parts[1:])
    (taken, count), = np.frombuffer(head, HEADER, 1).tolist()
    table = np.frombuffer(head, SECTION, count, HEADER.itemsize).tolist()
    at = HEADER.itemsize + count * SECTION.itemsize
    sections = []
    for kind, many, size in table:
        dtype = ROWS[kind]
        sections.append((kind, np.frombuffer(head, dtype, many, at), memoryview(next(data)) if size else _NOTHING))
        at += many * dtype.itemsize
    return taken, sections


_NOTHING = memoryview(b"")
