"""A box's way to downloads: an HTTP proxy in its network, which connects in the machine's network."""
import asyncio
import ctypes
import os
import signal
import socket
from contextlib import suppress
from urllib.parse import urlsplit

PORT = 3128
URL = f"http://127.0.0.1:{PORT}"
_HEAD_MAX = 1 << 16
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def start(network: int) -> None:
    """Listen in this process's network, from now on and for as long as the process lives.

    network: a descriptor of the other network.  To be called before there are threads, as it forks.
    """
    listener = socket.create_server(("127.0.0.1", PORT))
    if os.fork():
        listener.close()
        return
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # the proxy ends with its parent, which may need it until then
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if _libc.setns(network, 0) == 0:
            asyncio.run(_serve(listener))
    finally:
        os._exit(1)


async def _serve(listener: socket.socket) -> None:
    server = await asyncio.start_server(_pass_on, sock=listener, limit=_HEAD_MAX)
    await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on one request, or with CONNECT everything."""
    with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        method, target, _ = line.split(" ")
        address = urlsplit(f"//{target}" if method == "CONNECT" else target)
        there, back = await asyncio.open_connection(address.hostname, address.port or 80)
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            kept = [field for field in fields
                    if field.partition(":")[0].lower() not in ("connection", "proxy-connection", "keep-alive")]
            path = address._replace(scheme="", netloc="").geturl() or "/"
            back.write("\r\n".join([f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]).encode("latin-1"))
        await asyncio.gather(_pump(there, writer), _pump(reader, back))
    writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.close()
