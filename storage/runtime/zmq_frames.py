"""Envelopes over a ZeroMQ socket: what pyzmq's multipart calls do, without its enums.

To ask an enum for a flag costs a microsecond, and twenty in a process that has just been woken.
"""
import zmq

_MORE, _NOBLOCK, _EVENTS, _READABLE = map(int, (zmq.SNDMORE, zmq.NOBLOCK, zmq.EVENTS, zmq.POLLIN))


def has_come(socket: zmq.Socket) -> bool:
    """Whether there is something to receive; asking costs less than an exception."""
    return socket.get(_EVENTS) & _READABLE != 0


def receive(socket: zmq.Socket) -> list[zmq.Frame]:
    """The frames of what has come."""
    frames = [socket.recv(_NOBLOCK, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(_NOBLOCK, copy=False))
    return frames


def send(socket: zmq.Socket, frames: list) -> None:
    for frame in frames[:-1]:
        socket.send(frame, _MORE)
    socket.send(frames[-1])
