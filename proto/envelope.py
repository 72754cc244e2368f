"""What crosses ZeroMQ between workers and owners: one envelope per pass, of sections in the order things happened.

    frame 0      HEADER, then one byte per section: its kind
    then, per section, two frames: its rows (a numpy array of the kind's dtype) and its bytes (may be empty)

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

HEADER = np.dtype([("taken", "<u8")])   # owner -> worker: bytes of entries taken from this worker so far (its credit)

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
    """The frames of an envelope."""
    kinds = bytes(kind for kind, _, _ in sections)
    out: list = [np.array([(taken,)], HEADER).tobytes() + kinds]
    for kind, rows, data in sections:
        assert rows.dtype == ROWS[kind]
        out += (rows.tobytes(), data)
    return out


def unseal(parts: list) -> tuple[int, list[tuple[int, NDArray, memoryview]]]:
    """(taken, sections) of the frames that `seal` made; rows are read-only views of them."""
    head = bytes(parts[0])
    taken = int(np.frombuffer(head, HEADER, 1)["taken"][0])
    kinds = head[HEADER.itemsize:]
    assert len(parts) == 1 + 2 * len(kinds)
    return taken, [(kind, np.frombuffer(parts[1 + 2 * n], ROWS[kind]), memoryview(parts[2 + 2 * n])) for n, kind in enumerate(kinds)]
