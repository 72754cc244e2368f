"""Frames as clients write them, and a connection read as a worker reads it.

What a client says is put together by the protobuf library alone, so that a mistake in the broker's own reading and
writing of bytes cannot hide here.
"""
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from crc32c import crc32c
from google.protobuf.message import Message

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import AUTHENTICATING, CONNECTED, NEW
from geminga.proto.connection import Connection, Send, SendRefused, Sends
from geminga.proto.errors import ProtocolError

T = api.BaseCommand.Type
MESSAGE_SIZE_MAX = 5 * 1024 * 1024
STALE = b"\x08\x06\xff" * 100          # what an earlier read may have left behind the bytes of this one


def frame(body: bytes, entry: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(body) + len(entry), len(body)) + body + entry


def field_of(kind: int) -> str:
    """Return the name of the BaseCommand field that holds this type of command: field and type have one number."""
    return api.BaseCommand.DESCRIPTOR.fields_by_number[kind].name


def command(kind: int, **fields) -> bytes:
    """Return the frame of one command; required fields that are not given stay empty."""
    out = api.BaseCommand(type=kind)
    inner = getattr(out, field_of(kind))
    inner.SetInParent()
    for name, value in fields.items():
        if isinstance(value, dict):
            getattr(inner, name).MergeFrom(type(getattr(inner, name))(**value))
        elif isinstance(value, list):
            getattr(inner, name).extend(value)
        elif isinstance(value, Message):
            getattr(inner, name).CopyFrom(value)
        else:
            setattr(inner, name, value)
    return frame(out.SerializePartialToString())


CONNECT = command(T.CONNECT, client_version="test", protocol_version=21)
PING = command(T.PING)


def message_metadata(**fields) -> bytes:
    given = {"producer_name": "p", "sequence_id": 0, "publish_time": 1_700_000_000_000} | fields
    return api.MessageMetadata(**given).SerializePartialToString()


def entry_of(metadata: bytes, payload: bytes = b"payload", *, wrong_by: int = 0) -> bytes:
    covered = struct.pack(">I", len(metadata)) + metadata + payload
    return b"\x0e\x01" + struct.pack(">I", crc32c(covered) ^ wrong_by) + covered


def send(entry: bytes | None = None, *, producer_id: int = 1, sequence_id: int = 0, **fields) -> bytes:
    said = api.BaseCommand(type=T.SEND,
                           send=api.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **fields))
    return frame(said.SerializeToString(),
                 entry_of(message_metadata(sequence_id=sequence_id)) if entry is None else entry)


# -- reading

@dataclass
class Heard:
    """The events that a connection made of some bytes, in a form that hides how SENDs were grouped."""

    events: list = field(default_factory=list)
    error: str = ""        # of the ProtocolError that ended it
    state: str = NEW
    runs: int = 0          # events that were read as arrays
    kinds: set[str] = field(default_factory=set)      # classes of events about SENDs that were not refused


def listen(pieces: Iterable[bytes], message_size_max: int = MESSAGE_SIZE_MAX, *, admits: bool = True) -> Heard:
    """Feed a connection with pieces as a socket gives them, keeping unread bytes for the next piece.

    admits: every CONNECT succeeds at once.
    """
    connection, heard, rest = Connection(message_size_max), Heard(), b""
    for piece in pieces:
        data = rest + piece
        buffer = np.frombuffer(bytearray(data + STALE), np.uint8)
        events, taken, before = [], 0, -1
        try:
            while taken != before:
                before = taken
                try:
                    taken = connection.receive(buffer, memoryview(buffer), taken, len(data))
                finally:
                    events += connection.events
                    connection.events = []
                    if admits and connection.state == AUTHENTICATING:
                        connection.state = CONNECTED
            assert connection.frame_size(memoryview(buffer), taken, len(data)) > len(data) - taken
        except ProtocolError as error:
            heard.error = str(error)
        for event in events:
            heard.runs += isinstance(event, Sends)
            heard.events += flat(event)
            if isinstance(event, Sends | Send):
                heard.kinds.add(type(event).__name__)
        heard.state = connection.state
        if heard.error:
            return heard
        rest = data[taken:]
    return heard


def flat(event) -> list[tuple]:
    """Return a tuple for each SEND; ("refused", producer, sequence, code); or (type, bytes of the command)."""
    if isinstance(event, Sends):
        rows, data = event.rows.copy(), bytes(event.data)
        assert len(data) == int(rows["size"].sum())
        ends = np.cumsum(rows["size"], dtype=np.int64).tolist()
        starts = [0, *ends[:-1]]
        assert rows["offset"].tolist() == starts
        rows["offset"] = 0
        return [("send", tuple(row), data[start:end])
                for row, start, end in zip(rows.tolist(), starts, ends, strict=True)]
    if isinstance(event, Send):
        return [("send", event.row, event.entry)]
    if isinstance(event, SendRefused):
        return [("refused", event.producer_id, event.sequence_id, event.code)]
    return [(event.type, event.SerializePartialToString())]


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    """Cut the stream into pieces that end at these places (modulo its length)."""
    borders = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    return [stream[start:end] for start, end in zip(borders, borders[1:], strict=False)]


def byte_by_byte(stream: bytes) -> list[bytes]:
    return [stream[at:at + 1] for at in range(len(stream))]
