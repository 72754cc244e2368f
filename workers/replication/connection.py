"""A connection whose frames are taken as arrays: the sides towards a worker and towards a remote derive from it.

It reads into one buffer, so that frames are arrays of places in it and entries are copied only into the block that is
sent on.
"""
import asyncio

import numpy as np
from google.protobuf.message import DecodeError

from geminga.proto import frames as wire
from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.pulsar_client.connection import ClientError, Connection
from geminga.workers.replication.frames import KIND_AT, PAD, U32, Bytes, Places, Unreadable, whole_frames


class Ended(ClientError):
    """An error: the connection has ended, or the peer does not answer; the text gives the reason."""


class ArrayConnection(Connection, asyncio.BufferedProtocol):
    """A connection of the binary protocol; frames of one kind are taken as arrays."""

    ENDED = Ended
    MANY: int                # the type of the commands that come in great number

    def __init__(self, buffer_size: int, frame_max: int) -> None:
        """buffer_size: bytes of the buffer, which grows for a larger frame.  frame_max: bytes of the largest one."""
        super().__init__()
        self._buffer_size, self._frame_max = buffer_size, frame_max
        self._buffer = bytearray(0)
        self._data: Bytes = np.empty(0, np.uint8)
        self._end = 0                                  # of the bytes that are no whole frame yet, and begin at 0
        self._clock = asyncio.get_running_loop().time
        self.heard_s = self._clock()                   # loop's time at which bytes came last

    # -- called by the event loop

    def get_buffer(self, sizehint: int) -> memoryview:
        if len(self._buffer) - PAD - self._end <= 0:
            self._resize(max(self._buffer_size, self._wanted()))
        return memoryview(self._buffer)[self._end:len(self._buffer) - PAD]

    def _wanted(self) -> int:
        """Return the size of the frame that has begun to arrive, 0 while its size is not known."""
        return 4 + U32.unpack_from(self._buffer)[0] if self._end >= 4 else 0

    def _resize(self, size: int) -> None:
        buffer = bytearray(size + PAD)
        buffer[:self._end] = memoryview(self._buffer)[:self._end]
        self._buffer, self._data = buffer, np.frombuffer(buffer, np.uint8)

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.heard_s = self._clock()
        try:
            starts, ends, rest = whole_frames(self._data, 0, self._end, self._frame_max)
            if len(starts):
                self._take_frames(self._data, starts, ends)
        except Unreadable as error:
            return self.finish(str(error))
        if rest:
            left = self._end - rest
            view = memoryview(self._buffer)
            view[:left] = bytes(view[rest:self._end])      # by a copy, as both places may overlap
            self._end = left
        if self._wanted() > len(self._buffer) - PAD:
            self._resize(self._wanted())
        elif len(self._buffer) > self._buffer_size + PAD and max(self._wanted(), self._end) <= self._buffer_size:
            self._resize(self._buffer_size)

    def _take_frames(self, data: Bytes, starts: Places, ends: Places) -> None:
        """Take whole frames.  data: received bytes, valid during the call, and a few behind them.

        Raises Unreadable.
        """
        # BaseCommand's first field is its type: the byte 8, then a value of one byte.  A command of any other form has
        # the kind 0, and is parsed by itself.
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
        if not self.take(command):
            self.take_command(command)

    # -- of a subclass

    def take_many(self, data: Bytes, starts: Places, ends: Places) -> None:
        """Take frames whose type is MANY.  Raises Unreadable."""
        raise NotImplementedError

    def take_command(self, command: api.BaseCommand) -> None:
        """Handle a command that is neither of type MANY nor the answer to a request."""
