"""The table of client connections of one worker, which the worker writes and the admin process reads.

It lies in memory that both share, so a listing costs the worker nothing and needs no owner.  A row has a version, which
is odd while the worker writes the row; the reader leaves such a row out.
"""
import mmap
import struct
import threading
from typing import NamedTuple

import numpy as np

CONNECTIONS_MAX = 20_000             # rows of a worker; further connections are only counted
_NO_ROW = -1
_USED, _LEFT_OUT = 0, 1              # of the head: rows up to the last one in use, connections without a row

_ROW = np.dtype([
    ("version", "<i8"),              # odd: it is being written
    ("is_open", "<i8"),
    ("worker", "<i8"), ("number", "<i8"),      # by which owners know the connection
    ("connected_ms", "<i8"),         # when it was accepted
    ("listener", "S16"), ("address", "S64"),   # address: host:port
    ("protocol", "<i8"),             # version; -1 until its handshake succeeded
    ("library", "S208"), ("role", "S208"),     # cut to that
    ("layouts", "<i8")])             # 1 since it has watched the layout of a topic
# Parts of a row for the methods that write one: struct writes them in a microsecond, numpy in thirty.
_VERSION, _IS_OPEN, _LAYOUTS = struct.Struct("<q"), struct.Struct("<q"), struct.Struct("<q")
_ACCEPTED, _GREETED = struct.Struct("<4q16s64s"), struct.Struct("<q208s208s")
assert _VERSION.size + _ACCEPTED.size + _GREETED.size + _LAYOUTS.size == _ROW.itemsize
_HEAD_BYTES = 16


class Connection(NamedTuple):
    """One connection, as it was when the table was read."""

    worker: int                      # serial number of its worker's process
    number: int                      # of the connection in that worker
    connected_ms: int                # when it was accepted
    listener: str                    # pulsar, pulsar+ssl, or local: the socket in the data folder
    address: str                     # host:port
    protocol: int | None             # version of the protocol; None until its handshake succeeded
    library: str                     # name of the client's library, "" if it gave none
    role: str                        # as which the client is authenticated, "" for none
    has_layouts: bool                # it has watched the layout of a topic, as only clients of Pulsar 5 do


class Connections:
    """The connections of one worker, in memory that processes forked later share."""

    def __init__(self) -> None:
        # The memory of a row is taken when the row is used first.
        self._memory = mmap.mmap(-1, _HEAD_BYTES + CONNECTIONS_MAX * _ROW.itemsize)
        self._head = np.frombuffer(self._memory, np.int64, 2)
        self._rows = np.frombuffer(self._memory, _ROW, CONNECTIONS_MAX, _HEAD_BYTES)
        self._unused: list[int] = []                 # rows below _USED
        self._fence = threading.Lock()

    def __repr__(self) -> str:
        return f"<Connections used={self._head[_USED]} left_out={self._head[_LEFT_OUT]}>"

    def clear(self) -> None:
        """Forget the connections of a former process, which ended with it."""
        self._rows["is_open"][:self._head[_USED]] = 0
        self._head[:] = 0
        self._unused = []

    def enter(self, worker: int, number: int, address: str, listener: str, connected_ms: int) -> int:
        """Add a connection that was accepted; return its row for `welcome` and `leave`."""
        if self._unused:
            at = self._unused.pop()
        elif self._head[_USED] < CONNECTIONS_MAX:
            at = int(self._head[_USED])
        else:
            self._head[_LEFT_OUT] += 1
            return _NO_ROW
        accepted = _ACCEPTED.pack(1, worker, number, connected_ms, _bytes(listener), _bytes(address))
        self._write(at, _VERSION.size, accepted + _GREETED.pack(-1, b"", b"") + _LAYOUTS.pack(0))
        self._head[_USED] = max(at + 1, self._head[_USED])
        return at

    def welcome(self, at: int, protocol: int, library: str, role: str) -> None:
        """Add to a connection what its handshake has told."""
        if at != _NO_ROW:
            greeted = _GREETED.pack(protocol, _bytes(library), _bytes(role))
            self._write(at, _VERSION.size + _ACCEPTED.size, greeted)

    def watches_layouts(self, at: int) -> None:
        """Add to a connection that it watches the layout of a topic."""
        if at != _NO_ROW:
            self._write(at, _ROW.itemsize - _LAYOUTS.size, _LAYOUTS.pack(1))

    def leave(self, at: int) -> None:
        """Remove a connection that has ended."""
        if at == _NO_ROW:
            self._head[_LEFT_OUT] -= 1
        else:
            self._write(at, _VERSION.size, _IS_OPEN.pack(0))
            self._unused.append(at)

    def _write(self, at: int, offset: int, data: bytes) -> None:
        """Write a part of a row, which begins at this offset in it."""
        row = _HEAD_BYTES + at * _ROW.itemsize
        [version] = _VERSION.unpack_from(self._memory, row)
        _VERSION.pack_into(self._memory, row, version + 1)
        with self._fence:      # a barrier: the processor shows the reader an odd version before it shows new fields
            self._memory[row + offset:row + offset + len(data)] = data
        with self._fence:
            _VERSION.pack_into(self._memory, row, version + 2)

    def read(self) -> tuple[list[Connection], int]:
        """Return the connections, and the number of further ones that have no row."""
        used = int(self._head[_USED])
        before = self._rows["version"][:used].copy()
        with self._fence:
            rows = self._rows[:used].copy()
        with self._fence:
            is_whole = (before == self._rows["version"][:used]) & (before % 2 == 0)
        opened = rows[is_whole & (rows["is_open"] == 1)].tolist()
        return [Connection(worker, number, connected_ms, _text(listener), _text(address),
                           None if protocol < 0 else protocol, _text(library), _text(role), bool(layouts))
                for _, _, worker, number, connected_ms, listener, address, protocol, library, role, layouts in opened
                ], self.left_out

    def has(self, address: str) -> bool:
        """Whether a connection from this address, host:port, has a row."""
        rows = self._rows[:self._head[_USED]]
        return bool(((rows["address"] == _bytes(address)) & (rows["is_open"] == 1)).any())

    @property
    def left_out(self) -> int:
        """The number of connections that have no row."""
        return int(self._head[_LEFT_OUT])


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")


def _text(data: bytes) -> str:
    return data.decode(errors="ignore")      # the last character may be cut
