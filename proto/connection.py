"""One connection's state table: bytes in, events out.  No sockets, no clock, no ZeroMQ.

`receive` reads the whole frames of a buffer and returns what happened, in order:

    Sends            a run of SENDs, as rows and the bytes of their entries
    Acks             an ACK of many messages, as arrays
    SendRefused      a SEND that is answered with an error and changes nothing
    BaseCommand      any other command, as the protobuf library decodes it

Anything that is not the protocol raises ProtocolError, after which the connection is to be closed.  The events before it
are kept in `events`: what a client has said in whole frames counts.
"""
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from geminga.proto import acks, frames, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import ProtocolError

T = api.BaseCommand.Type

NEW, AUTHENTICATING, CONNECTED = "NEW", "AUTHENTICATING", "CONNECTED"

# Connection state -> command type -> next state.  What is not here is a ProtocolError: unknown commands, answers that only
# a broker gives, anything before CONNECT, a second CONNECT.  Whoever reads the event of a CONNECT says when it is CONNECTED.
TRANSITIONS: dict[str, dict[int, str]] = {
    NEW: {T.CONNECT: AUTHENTICATING},
    AUTHENTICATING: {},
    CONNECTED: dict.fromkeys((
        T.PING, T.PONG, T.PARTITIONED_METADATA, T.LOOKUP, T.GET_TOPICS_OF_NAMESPACE, T.GET_SCHEMA, T.GET_OR_CREATE_SCHEMA,
        T.WATCH_TOPIC_LIST, T.WATCH_TOPIC_LIST_CLOSE, T.AUTH_RESPONSE,
        T.PRODUCER, T.SEND, T.CLOSE_PRODUCER,
        T.SUBSCRIBE, T.FLOW, T.ACK, T.REDELIVER_UNACKNOWLEDGED_MESSAGES, T.UNSUBSCRIBE, T.CLOSE_CONSUMER, T.SEEK,
        T.GET_LAST_MESSAGE_ID, T.CONSUMER_STATS,
        T.TC_CLIENT_CONNECT_REQUEST, T.NEW_TXN, T.ADD_PARTITION_TO_TXN, T.ADD_SUBSCRIPTION_TO_TXN, T.END_TXN), CONNECTED),
}

# The field of BaseCommand that holds each command, by its number in the enum: fields and types share their numbers but SEND's.
_FIELD_OF_TYPE = {number: api.BaseCommand.DESCRIPTOR.fields_by_number[number].name
                  for number in T.values() if number in api.BaseCommand.DESCRIPTOR.fields_by_number}
_SEND_HEAD, _ACK_HEAD = b"\x08\x06", b"\x08\x0a"      # BaseCommand{type: SEND, ...} and {type: ACK, ...} as every client writes them
_SEND = T.SEND        # as T.SEND costs half a microsecond each time
_WITHOUT_TEXT = frozenset((T.ACK, T.FLOW, T.PING, T.PONG, T.REDELIVER_UNACKNOWLEDGED_MESSAGES))
_LIGHT = frozenset((T.ACK, T.FLOW, T.PING, T.PONG))      # commands that cost little to deal with, if they are no larger than ...
_LIGHT_SIZE_MAX = 4 << 10
EVENTS_MAX = 64
FIRST_SIZE_MAX = 256 << 10    # of the frame with CONNECT: tokens have 16 KiB at most, and whoever shows a larger one is told so
_BACK_OFF_MAX = 4_096         # frames read one by one before a run is tried for again, where runs were short


@dataclass(slots=True)
class Sends:
    """A run of SENDs: rows (n,) SEND_ROW, and their entries' bytes, (n, size) in the read buffer, valid until the next read."""

    rows: NDArray
    entries: NDArray[np.uint8]


@dataclass(slots=True)
class Send:
    """One SEND: its row as sends.read_one reads it, and its entry, which begins with a checksum."""

    row: tuple
    entry: bytes


@dataclass(frozen=True, slots=True)
class SendRefused:
    producer_id: int
    sequence_id: int
    code: int
    message: str


class Connection:
    """The state of one connection as its bytes tell it."""

    def __init__(self, message_size_max: int):
        self.state = NEW
        self.events: list = []
        self.bound(message_size_max)
        self._layout: sends.Layout | None = None
        self._singles = 0                  # frames to read one by one before the next try for a run
        self._back_off = 0

    def bound(self, message_size_max: int) -> None:
        """Messages may be so large from now on."""
        self._total_max = frames.frame_size_max(message_size_max)

    def receive(self, buffer: NDArray[np.uint8], data: memoryview, at: int, end: int) -> int:
        """Read the frames in bytes at .. end-1 of buffer (and data, the same bytes); returns where those read end.

        Adds to `events`.  Stops when there are EVENTS_MAX of them: what they are answered may be a thousand times as much as
        was read; and behind each command that may cost much, so that whoever deals with it can look at the clock; a CONNECT
        has to be answered first, too.  Raises ProtocolError.
        """
        total_max = self._total_max if self.state == CONNECTED else FIRST_SIZE_MAX
        while end - at >= 8 and len(self.events) < EVENTS_MAX:
            total, command_size = frames.SIZES.unpack_from(data, at)
            if total > total_max:
                raise ProtocolError(f"a frame of {total} bytes; at most {total_max} are accepted")
            if total < 4 or command_size > total - 4:
                raise ProtocolError(f"a frame of {total} bytes with a command of {command_size}")
            step = 4 + total
            if self._singles <= 0 and (end - at) // step >= sends.RUN_MIN and (taken := self._run(buffer, at, end, step)):
                at += taken
                continue
            if at + step > end:
                break
            is_last = self._one(bytes(data[at:at + step]), 8 + command_size)
            self._singles -= 1
            at += step
            if is_last:
                break
        else:
            if 4 <= end - at < 8 and (total := frames.SIZE.unpack_from(data, at)[0]) < 4:
                raise ProtocolError(f"a frame of {total} bytes")
        return at

    def needed(self, data: memoryview, at: int, end: int) -> int:
        """How many bytes the frame that begins at `at` takes in all, as far as is known; 8 at least."""
        return 8 if end - at < 8 else 4 + frames.SIZE.unpack_from(data, at)[0]

    def _run(self, buffer: NDArray[np.uint8], at: int, end: int, step: int) -> int:
        """Read frames that look like the last SEND; returns the bytes taken, 0 when there is no such run."""
        layout = self._layout
        found = layout.read(buffer, at, end) if layout is not None and layout.total == step else None
        if found is None or len(found[0]) < sends.RUN_MIN:
            self._back_off = min(_BACK_OFF_MAX, 2 * self._back_off or 1)
            self._singles = self._back_off
            return 0
        rows, entries, wrong = found
        self._back_off = 0
        start = 0
        for refused in wrong.tolist():
            if refused > start:
                self.events.append(Sends(rows[start:refused], entries[start:refused]))
            row = rows[refused]
            self.events.append(SendRefused(int(row["producer_id"]), int(row["sequence_id"]), api.ChecksumError, "Checksum failed"))
            start = refused + 1
        if start < len(rows):
            self.events.append(Sends(rows[start:], entries[start:]))
        return len(rows) * step

    def _one(self, frame: bytes, command_end: int) -> bool | None:
        """Whether it is to be dealt with before what is behind it is read."""
        if frame[8:10] == _SEND_HEAD and self.state == CONNECTED:
            return self._send(frame, command_end)
        if command_end > acks.SIZE_MIN and frame[8:10] == _ACK_HEAD and self.state == CONNECTED \
                and (found := acks.read(frame[8:command_end])) is not None:
            return self.events.append(found)
        try:
            command = api.BaseCommand.FromString(frame[8:command_end])
        except DecodeError as error:
            raise ProtocolError(f"a command that cannot be read: {error}") from None
        if command.type == _SEND and command.HasField("type"):
            return self._send(frame, command_end)
        self.state = self._next_state(command)
        self.events.append(command)
        return command.type not in _LIGHT or command_end > _LIGHT_SIZE_MAX

    def _next_state(self, command: api.BaseCommand) -> str:
        kind = command.type if command.HasField("type") else -1
        allowed = TRANSITIONS[self.state]
        if kind not in allowed:
            raise ProtocolError(f"command {T.Name(kind) if kind in T.values() else kind} while {self.state}")
        field = _FIELD_OF_TYPE[kind]
        if not command.HasField(field) or not command.IsInitialized():
            raise ProtocolError(f"command {T.Name(kind)} lacks a required field")
        if kind not in _WITHOUT_TEXT:
            _check_text(getattr(command, field))
        return allowed[kind]

    def _send(self, frame: bytes, command_end: int) -> None:
        try:
            command = api.BaseCommand.FromString(frame[8:command_end])
        except DecodeError as error:
            raise ProtocolError(f"a SEND that cannot be read: {error}") from None
        send = command.send
        if _SEND not in TRANSITIONS[self.state] or not send.IsInitialized():
            raise ProtocolError(f"SEND while {self.state}, or without a required field")
        entry = sends.with_checksum(frame[command_end:])
        try:
            row = sends.read_one(send, entry)
        except sends.BadChecksum:
            return self._refuse(send, api.ChecksumError, "Checksum failed")
        except sends.TransactionsRefused:
            return self._refuse(send, api.NotAllowedError, "Transactions are not enabled.")
        if row[sends.MESSAGES] > 1 and (why := sends.overstated(entry, row[sends.MESSAGES])):
            return self._refuse(send, api.NotAllowedError, why)
        self.events.append(Send(row, entry))
        if self._singles <= 1 and (self._layout is None or self._layout.total != len(frame) or self._back_off):
            self._layout = sends.learn(frame, send, row)

    def _refuse(self, send: api.CommandSend, code: int, message: str) -> None:
        self.events.append(SendRefused(send.producer_id, send.sequence_id, code, message))


def object_asked(command: api.BaseCommand) -> int:
    """The id of the producer or consumer that a PRODUCER or SUBSCRIBE asks for."""
    return command.producer.producer_id if command.type == T.PRODUCER else command.subscribe.consumer_id


def _check_text(message) -> None:
    """Raises ProtocolError for a string that is not UTF-8: the library gives its bytes instead, which nobody behind this expects."""
    for field, value in message.ListFields():
        for part in value if field.is_repeated else (value,):
            if field.message_type is not None:
                _check_text(part)
            elif isinstance(part, bytes) and field.type == field.TYPE_STRING:
                raise ProtocolError(f"{field.name} is not UTF-8")
