"""A connection with requests under way: what the sides towards a worker and towards a remote share."""
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from geminga.proto import frames as wire
from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.pulsar_client.client import ClientError
from geminga.supervisor.pulsar_client.requests import Requests
from geminga.supervisor.replication.frames import KIND_AT, Bytes, FrameReader, Places, Unreadable

T = api.BaseCommand.Type
_TEXT_MAX = 500              # characters of an error that are kept


class Ended(ClientError):
    """An error: the connection has ended, or the peer does not answer; the text gives the reason."""


class Connection(FrameReader):
    """A connection of the binary protocol; frames of one kind are taken as arrays."""

    MANY: int                # the type of the commands that come in great number

    def __init__(self, buffer_size: int, frame_max: int) -> None:
        super().__init__(buffer_size, frame_max)
        self._requests = Requests(self.send, Ended, text_of)

    def next_id(self) -> int:
        """Return a new number for a request, a producer or a consumer."""
        return self._requests.next_id()

    def send(self, message: Message) -> None:
        """Send the command with that message, such as FLOW for a CommandFlow."""
        if self.is_open:
            self.transport.write(wire.frame(wire.command_of(message)))

    async def ask(self, request: Any) -> Any:
        """Send a request, to which a number is given, and return the message inside its answer.

        Raises ClientError, Ended.
        """
        if not self.is_open:
            raise Ended(self.why_ended or "the connection is not open")
        return await self._requests.ask(request)

    async def greet(self, request: api.CommandConnect) -> api.CommandConnected:
        """Send CONNECT, and return CONNECTED.  Raises ClientError, Ended."""
        return await self._requests.greet(request)

    def take_frames(self, data: Bytes, starts: Places, ends: Places) -> None:
        kinds = np.where(data[starts + (KIND_AT - 1)] == 8, data[starts + KIND_AT], 0)
        borders = (np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist()
        for first, stop in zip((0, *borders), (*borders, len(starts)), strict=True):
            if kinds[first] == self.MANY:
                self.take_many(data, starts[first:stop], ends[first:stop])
                continue
            for start, end in zip(starts[first:stop].tolist(), ends[first:stop].tolist(), strict=True):
                self._take_one(data[start:end].tobytes())
        self.taken()

    def _take_one(self, frame: bytes) -> None:
        size = wire.SIZES.unpack_from(frame)[1]
        try:
            command = api.BaseCommand.FromString(frame[8:8 + size])
        except DecodeError:
            raise Unreadable("a command came that cannot be parsed: the peer may not speak Pulsar's protocol") from None
        if command.type == T.PING:
            self.send(api.CommandPong())
        elif not self._requests.take(command):
            self.take_command(command)

    def ended(self, why: str) -> None:
        self._requests.end(why)

    # -- of a subclass

    def take_many(self, data: Bytes, starts: Places, ends: Places) -> None:
        """Take frames whose type is MANY.  Raises Unreadable."""
        raise NotImplementedError

    def take_command(self, command: api.BaseCommand) -> None:
        """Take any other command that answers no request."""

    def taken(self) -> None:
        """Go on after all frames that came together."""


def text_of(code: int, message: str) -> str:
    """Return an error of the protocol as text."""
    values = api.ServerError.DESCRIPTOR.values_by_number
    name = values[code].name if code in values else f"error {code}"
    return f"{name}: {' '.join(message[:_TEXT_MAX].split())}"
