"""Connections of the HTTP port that other processes take over after a handshake.

A connection without TLS leaves the admin process.  One with TLS stays, because the keys of its encryption are here: its
bytes are passed on, as far as both sides read.
"""
import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

_RELAY_BYTES = 64 << 10      # read at once, and kept for a side that does not read


class _HandedOver(web.StreamResponse):
    """The answer to a handshake that another process answers: nothing is written here."""

    def __init__(self) -> None:
        super().__init__(status=101)
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


async def hand_over(request: web.Request, send: Callable[[bytes, int], Awaitable[None]]) -> web.StreamResponse:
    """Hand the request's connection over, and return when it has left, or with TLS has ended.

    send: gives another process (bytes that the client has sent behind its handshake, a descriptor of the connection),
    of which that process gets a copy; what it raises leaves this function.
    """
    transport = request.transport
    if transport is None:      # the client has gone
        return _HandedOver()
    link = transport.get_extra_info("socket")
    if transport.get_extra_info("sslcontext") is None:
        early = _Early()
        request.protocol.set_parser(early)      # type: ignore[arg-type]
        await send(bytes(early.data), link.fileno())
        transport.abort()      # the other process has the socket, so the connection stays
        return _HandedOver()
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            await send(b"", theirs.fileno())
        except BaseException:
            ours.close()
            raise
    ours.setblocking(False)
    await _relay(request, ours)
    return _HandedOver()


class _Early:
    """Takes the bytes that a client has sent behind its handshake, which aiohttp has read."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        pass


class _Inbound:
    """Passes on what a client sends; the client is not read while the other process does not read."""

    def __init__(self, client: asyncio.Transport, writer: asyncio.StreamWriter) -> None:
        self._client, self._writer = client, writer
        self._draining: asyncio.Task[None] | None = None

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._writer.write(data)
        if self._draining is None and self._writer.transport.get_write_buffer_size() > _RELAY_BYTES:
            self._client.pause_reading()
            self._draining = asyncio.create_task(self._drain())
        return False, b""

    def feed_eof(self) -> None:
        self._writer.close()

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        self._draining = None
        if not self._client.is_closing():
            self._client.resume_reading()


async def _relay(request: web.Request, ours: socket.socket) -> None:
    """Pass bytes between a client with TLS and the other process until one of them ends the connection."""
    reader, writer = await asyncio.open_connection(sock=ours, limit=_RELAY_BYTES)
    client = request.transport
    try:
        if client is None:
            return
        request.protocol.set_parser(_Inbound(client, writer))      # type: ignore[arg-type]
        while data := await reader.read(_RELAY_BYTES):
            client.write(data)
            await request.protocol._drain_helper()      # as aiohttp's own writer waits
    except ConnectionError:
        pass
    finally:
        writer.close()

