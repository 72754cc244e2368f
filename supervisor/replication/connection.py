"""A connection with requests under way: what the sides towards a worker and towards a remote share."""
import asyncio
import itertools
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from geminga.proto import frames as wire
from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.pulsar_client.client import ClientError
from geminga.supervisor.replication.frames import KIND_AT, Bytes, FrameReader, Places, Unreadable

T = api.BaseCommand.Type
_TEXT_MAX = 500              # characters of an error that are kept
ANSWER_S = 30.0              # that the peer has for an answer
# Type of an answer: (its field of BaseCommand, field of an error's code in there, field of its text).
_ANSWERS: dict[int, tuple[str, str, str]] = {
    T.SUCCESS: ("success", "", ""),
    T.PRODUCER_SUCCESS: ("producer_success", "", ""),
    T.ERROR: ("error", "error", "message"),
    T.PARTITIONED_METADATA_RESPONSE: ("partitionMetadataResponse", "error", "message"),
    T.LOOKUP_RESPONSE: ("lookupTopicResponse", "error", "message"),
    T.GET_SCHEMA_RESPONSE: ("getSchemaResponse", "error_code", "error_message"),
    T.GET_OR_CREATE_SCHEMA_RESPONSE: ("getOrCreateSchemaResponse", "error_code", "error_message"),
}


class Ended(ClientError):
    """An error: the connection has ended, or the peer does not answer; the text gives the reason."""


class Connection(FrameReader):
    """A connection of the binary protocol; frames of one kind are taken as arrays."""

    MANY: int                # the type of the commands that come in great number

    def __init__(self, buffer_size: int, frame_max: int) -> None:
        super().__init__(buffer_size, frame_max)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._connected: asyncio.Future[api.BaseCommand] = asyncio.get_running_loop().create_future()
        self._ids = itertools.count(1)

    def next_id(self) -> int:
        """Return a new number for a request, a producer or a consumer."""
        return next(self._ids)

    def send(self, command: api.BaseCommand) -> None:
        if self.is_open:
            self.transport.write(wire.frame(command))

    async def ask(self, command: api.BaseCommand, request_id: int) -> Any:
        """Send a request, and return the message inside its answer.  Raises ClientError, Ended."""
        if not self.is_open:
            raise Ended(self.why_ended or "the connection is not open")
        waiting = self._asked[request_id] = asyncio.get_running_loop().create_future()
        self.send(command)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await waiting
        except TimeoutError:
            raise Ended(f"no answer to {T.Name(command.type)} within {ANSWER_S:g} s") from None
        finally:
            self._asked.pop(request_id, None)

    async def greet(self, request: api.CommandConnect) -> api.CommandConnected:
        """Send CONNECT, and return CONNECTED.  Raises ClientError, Ended."""
        self.send(api.BaseCommand(type=T.CONNECT, connect=request))
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._connected
        except TimeoutError:
            raise Ended(f"no answer to CONNECT within {ANSWER_S:g} s") from None
        if answer.type == T.ERROR:
            raise ClientError(text_of(answer.error.error, answer.error.message), answer.error.error)
        return answer.connected

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
        kind = command.type
        if kind == T.PING:
            self.send(api.BaseCommand(type=T.PONG, pong=api.CommandPong()))
        elif kind == T.CONNECTED or (kind == T.ERROR and not self._connected.done()):
            if not self._connected.done():
                self._connected.set_result(command)
        elif kind in _ANSWERS:
            self._answered(command, *_ANSWERS[kind])
        else:
            self.take_command(command)

    def _answered(self, command: api.BaseCommand, name: str, code: str, text: str) -> None:
        answer = getattr(command, name)
        waiting = self._asked.get(answer.request_id)
        if waiting is None or waiting.done():
            return
        if command.type == T.PRODUCER_SUCCESS and not answer.producer_ready:      # another answer follows
            return
        if code and answer.HasField(code):
            number = getattr(answer, code)
            waiting.set_exception(ClientError(text_of(number, getattr(answer, text)), number))
        else:
            waiting.set_result(answer)

    def ended(self, why: str) -> None:
        for waiting in (*self._asked.values(), self._connected):
            if not waiting.done():
                waiting.set_exception(Ended(why))
                waiting.exception()      # else asyncio logs that nobody waits any more
        self._asked.clear()

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
