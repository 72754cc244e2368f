"""The state machine of a connection: bytes in, events out.  No sockets, no clock, no ZeroMQ.

`receive` reads the whole frames of a buffer and appends to `events`, in order:

    Sends            many SENDs, as rows and the bytes of their entries
    Send             one SEND
    ...InTransaction a run of SENDs in transactions, or one SEND in a transaction
    EntryAck         an ACK of one entry, or up to it
    EntryAcks        an ACK of many messages, as arrays
    SendRefused      a SEND that is answered with an error and changes nothing
    BaseCommand      any other command, as the protobuf library decodes it

Bytes that break the protocol raise ProtocolError, and the connection has to be closed.  Events of the whole frames
before them stay valid.
"""
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from geminga.proto import acks, frames, mixed_sends, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.acks import EntryAck, EntryAcks
from geminga.proto.commands import CONNECTED, NEW, TABLE, T
from geminga.proto.errors import ErrorCode, ProtocolError
from geminga.proto.rows import Row, Rows

# Looking up a type of BaseCommand costs half a microsecond.
_SEND = T.SEND
# BaseCommand{type: SEND, ...} and {type: ACK, ...} as every client writes them.
_SEND_HEAD, _ACK_HEAD = b"\x08\x06", b"\x08\x0a"
_LIGHT_SIZE_MAX = 4 << 10     # a light command up to so many bytes is cheap to execute
EVENTS_MAX = 64
FIRST_SIZE_MAX = 256 << 10    # bytes of the frame with CONNECT; a token over its 16 KiB is refused by its own error
_BACK_OFF_MAX = 4_096         # frames read otherwise before the next try, where runs were short or odd
_ODD_PART = 4                 # a quarter of the frames that were read in step may have to be read once more


@dataclass(slots=True)
class Sends:
    """Many SENDs: rows (n,) SEND_ROW, and the bytes of their entries, one behind the other.

    rows["offset"] and rows["size"] say where each entry is.
    """

    rows: Rows
    data: bytes | memoryview


@dataclass(slots=True)
class Send:
    """One SEND: the row of sends.read_one, and the entry, which begins with a checksum."""

    row: Row
    entry: bytes


class SendsInTransaction(Sends):
    """A run of SENDs in transactions, which are in their rows."""

    __slots__ = ()


class SendInTransaction(Send):
    """One SEND in a transaction, which is in its row."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SendRefused:
    """A SEND that has to be answered with SEND_ERROR."""

    producer_id: int
    sequence_id: int
    code: ErrorCode
    message: str


Event: TypeAlias = Sends | Send | EntryAck | EntryAcks | SendRefused | api.BaseCommand


class Connection:
    """The protocol state of one connection: turns its bytes into events."""

    def __init__(self, message_size_max: int):
        self.state = NEW
        self.events: list[Event] = []
        self.reads_positions = False       # its replicators name the position of each entry in their own cluster
        self.limit_messages(message_size_max)
        self._layout: sends.Layout | None = None
        self._total = 0                    # bytes of the last SEND that the library has read
        self._singles = 0                  # frames to read before the next try for a run of one layout
        self._back_off = 0
        self._alone = 0                    # frames to read one by one before the next try to read SENDs in step
        self._odd_back_off = 0

    def __repr__(self) -> str:
        return f"Connection({self.state}, {len(self.events)} events, next run tried in {self._singles} frames)"

    def limit_messages(self, message_size_max: int) -> None:
        """Set the size in bytes of the largest message that is accepted from now on."""
        self._total_max = frames.frame_size_max(message_size_max)

    def receive(self, buffer: NDArray[np.uint8], data: memoryview, at: int, end: int) -> int:
        """Read the frames in bytes at .. end-1 of buffer and append to `events`; return the end of the last frame read.

        `data` has the same bytes as the buffer.  Reading stops at EVENTS_MAX events, as their responses may take a
        thousand times the bytes that were read; SENDs that are read in step may exceed it, whose responses are short.
        Reading also stops behind each command that may be expensive, so that
        the caller can check its time slice, and behind CONNECT, which decides about all that follows.  Raises
        ProtocolError.
        """
        total_max = self._largest_total()
        while end - at >= 8 and len(self.events) < EVENTS_MAX:
            total, command_size = frames.SIZES.unpack_from(data, at)
            if total > total_max:
                raise _too_large(total, total_max)
            if total < 4 or command_size > total - 4:
                raise ProtocolError(f"a frame of {total} bytes with a command of {command_size}")
            step = 4 + total
            is_run = self._singles <= 0 and (end - at) // step >= sends.RUN_MIN
            if is_run and (taken := self._read_run(buffer, at, end, step)):
                at += taken
                continue
            if at + step > end:
                break
            if self._singles > mixed_sends.RUN_MIN and self._alone <= 0 and self.state == CONNECTED \
                    and data[at + 8:at + 10] == _SEND_HEAD and (taken := self._read_mixed(buffer, data, at, end)):
                at += taken
                continue
            is_last = self._read_frame(bytes(data[at:at + step]), 8 + command_size)
            self._singles -= 1
            self._alone -= 1
            at += step
            if is_last:
                break
        else:
            if 4 <= end - at < 8 and (total := frames.SIZE.unpack_from(data, at)[0]) < 4:
                raise ProtocolError(f"a frame of {total} bytes")
        return at

    def frame_size(self, data: memoryview, at: int, end: int) -> int:
        """Return the size in bytes of the frame that begins at `at`; 8 if fewer than 8 of its bytes lie before `end`.

        Raises ProtocolError: it takes more than is accepted, so the caller must not make room for it.
        """
        if end - at < 8:
            return 8
        total = int(frames.SIZE.unpack_from(data, at)[0])
        if total > (total_max := self._largest_total()):
            raise _too_large(total, total_max)
        return 4 + total

    def _largest_total(self) -> int:
        return self._total_max if self.state == CONNECTED else FIRST_SIZE_MAX

    def _read_run(self, buffer: NDArray[np.uint8], at: int, end: int, step: int) -> int:
        """Read frames that look like the last SEND; return the bytes taken, 0 when there is no such run."""
        layout = self._layout
        run = layout.read(buffer, at, end) if layout is not None and layout.total == step else None
        if run is None or len(run[0]) < sends.RUN_MIN:
            self._back_off = min(_BACK_OFF_MAX, 2 * self._back_off or 1)
            self._singles = self._back_off
            return 0
        rows, entries, wrong = run
        rows["offset"] = np.arange(len(rows)) * entries.shape[1]
        data = memoryview(entries.tobytes())
        kind = SendsInTransaction if layout is not None and layout.is_in_transaction else Sends
        self._back_off = 0
        start = 0
        for refused in wrong.tolist():
            if refused > start:
                self.events.append(_stretch(kind, rows, data, start, refused))
            producer_id, sequence_id = int(rows["producer_id"][refused]), int(rows["sequence_id"][refused])
            self.events.append(SendRefused(producer_id, sequence_id, api.ChecksumError, "Checksum failed"))
            start = refused + 1
        if start < len(rows):
            self.events.append(_stretch(kind, rows, data, start, len(rows)))
        return len(rows) * step

    def _read_mixed(self, buffer: NDArray[np.uint8], data: memoryview, at: int, end: int) -> int:
        """Read SENDs in step, whatever their sizes are; return the bytes taken, 0 when they are too few for that.

        The last one of the frames that are read before the next try for a run is left, to learn its layout.
        """
        places = mixed_sends.find(data, at, end, self._total_max, self._singles - 1)
        if len(places) <= mixed_sends.RUN_MIN:
            self._alone = len(places)
            return 0
        borders = np.array(places, np.int64)
        rows, entries, odd = mixed_sends.read(buffer, borders[:-1], borders[1:], reads_positions=self.reads_positions)
        count, left, start = len(rows), np.flatnonzero(odd).tolist(), 0
        if count < mixed_sends.RUN_MIN or _ODD_PART * len(left) > count:
            self._alone = self._odd_back_off = min(_BACK_OFF_MAX, 2 * self._odd_back_off or mixed_sends.RUN_MIN)
        else:
            self._odd_back_off = 0
        for place in left:
            if place > start:
                self.events.append(_stretch(Sends, rows, entries, start, place))
            frame = bytes(data[places[place]:places[place + 1]])
            self._read_send(frame, 8 + frames.SIZES.unpack_from(frame)[1])
            start = place + 1
        if start < count:
            self.events.append(_stretch(Sends, rows, entries, start, count))
        self._singles -= count
        return places[count] - at

    def _read_frame(self, frame: bytes, command_end: int) -> bool:
        """Read one frame; return True if the caller has to execute its command before more is read."""
        if frame[8:10] == _SEND_HEAD and self.state == CONNECTED:
            layout = self._layout
            if layout is not None and layout.total == len(frame) and (row := layout.read_one(frame)) is not None:
                kind = SendInTransaction if layout.is_in_transaction else Send
                self.events.append(kind(row, frame[command_end:]))
            else:
                self._read_send(frame, command_end)
            return False
        if frame[8:10] == _ACK_HEAD and self.state == CONNECTED:
            read = acks.read if command_end > acks.SIZE_MIN else acks.read_one
            if (ack := read(frame[8:command_end])) is not None:
                self.events.append(ack)
                return False
        try:
            command = api.BaseCommand.FromString(frame[8:command_end])
        except DecodeError as error:
            raise ProtocolError(f"a command that cannot be read: {error}") from None
        if command.type == _SEND and command.HasField("type"):
            self._read_send(frame, command_end)
            return False
        is_light = self._accept(command)
        self.events.append(command)
        return not is_light or command_end > _LIGHT_SIZE_MAX

    def _accept(self, command: api.BaseCommand) -> bool:
        """Go to the next state, and return whether the command is light.

        Raises ProtocolError: the command may not come now, or lacks what it must have.  The reader of the events sets
        CONNECTED, once the client is authenticated.
        """
        row = TABLE.get(command.type) if command.HasField("type") else None
        if row is None or row.state != self.state:
            name = T.Name(command.type) if command.HasField("type") else "of an unknown type"
            raise ProtocolError(f"command {name} while {self.state}")
        if not command.HasField(row.field) or not command.IsInitialized():
            raise ProtocolError(f"command {T.Name(row.kind)} lacks a required field")
        if row.has_text:
            _check_text(getattr(command, row.field))
        self.state = row.next_state
        return row.is_light

    def _read_send(self, frame: bytes, command_end: int) -> None:
        try:
            command = api.BaseCommand.FromString(frame[8:command_end])
        except DecodeError as error:
            raise ProtocolError(f"a SEND that cannot be read: {error}") from None
        send = command.send
        if self.state != CONNECTED or not send.IsInitialized():
            raise ProtocolError(f"SEND while {self.state}, or without a required field")
        entry = frame[command_end:]
        if entry[:2] != frames.MAGIC_BYTES:      # of a client before protocol version 6
            entry = frames.with_checksum(entry)
        try:
            row = sends.read_one(send, entry, reads_positions=self.reads_positions)
        except sends.BadChecksum:
            return self._refuse(send, api.ChecksumError, "Checksum failed")
        except sends.UnknownTransaction as error:
            # At any other error clients connect their producer again and send the message once more, for ever.
            return self._refuse(send, api.NotAllowedError, f"There is no transaction {error}")
        if row[sends.MESSAGES] > 1 and (why := sends.refusal_of_count(entry, row[sends.MESSAGES])):
            return self._refuse(send, api.NotAllowedError, why)
        self.events.append((SendInTransaction if row[sends.FLAGS] & sends.IN_TRANSACTION else Send)(row, entry))
        # Learning costs as much as reading ten frames.  Where sizes differ all the time, no layout serves twice.
        is_repeated, self._total = len(frame) == self._total, len(frame)
        layout = self._layout
        if self._singles <= 1 and (layout is None or self._back_off or (layout.total != len(frame) and is_repeated)):
            self._layout = sends.learn(frame, row)

    def _refuse(self, send: api.CommandSend, code: ErrorCode, message: str) -> None:
        self.events.append(SendRefused(send.producer_id, send.sequence_id, code, message))


def _stretch(kind: type[Sends], rows: Rows, data: memoryview, start: int, stop: int) -> Sends:
    """Return rows start .. stop - 1 with their entries, which follow each other in data."""
    rows = rows[start:stop]
    first, last = rows["offset"].item(0), rows["offset"].item(-1) + rows["size"].item(-1)
    rows["offset"] -= np.uint64(first)
    return kind(rows, data[first:last])


def _too_large(total: int, total_max: int) -> ProtocolError:
    return ProtocolError(f"a frame of {total} bytes; at most {total_max} are accepted")


def _check_text(message: Message) -> None:
    """Raise ProtocolError for a string that is not UTF-8: the library returns it as bytes, which no caller expects."""
    for field, value in message.ListFields():
        for part in value if field.is_repeated else (value,):
            if field.message_type is not None:
                _check_text(part)
            elif isinstance(part, bytes) and field.type == field.TYPE_STRING:
                raise ProtocolError(f"{field.name} is not UTF-8")
