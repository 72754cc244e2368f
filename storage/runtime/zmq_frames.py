"""Send and receive envelopes over a ZeroMQ socket, without the enums of pyzmq's multipart calls.

Comparing an enum costs a microsecond, and twenty in a process that has just been woken.
"""
from collections.abc import Sequence
from typing import Any, TypeAlias

import zmq

_MORE, _NOBLOCK, _EVENTS, _READABLE = int(zmq.SNDMORE), int(zmq.NOBLOCK), int(zmq.EVENTS), int(zmq.POLLIN)
Socket: TypeAlias = zmq.Socket[bytes]


def has_come(socket: Socket) -> bool:
    """Whether the socket has an envelope to receive.  This check is cheaper than an exception."""
    events: Any = socket.get(_EVENTS)
    return bool(events & _READABLE)


def receive(socket: Socket) -> list[zmq.Frame]:
    """Return the frames of the next envelope from the socket."""
    frames = [socket.recv(_NOBLOCK, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(_NOBLOCK, copy=False))
    return frames


def send(socket: Socket, frames: Sequence[bytes | memoryview]) -> None:
    """Send the frames of one envelope, which are one or more."""
    for frame in frames[:-1]:
        socket.send(frame, _MORE)
    socket.send(frames[-1])
