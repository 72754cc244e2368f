"""Unix sockets in a data folder, by which the broker's own processes and commands of its host reach the broker.

The rights of the folder decide who may connect: its owner and root.  The kernel takes paths of at most 107 bytes, and
paths of data folders may be longer.
"""
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio

Protocol = TypeVar("Protocol", bound="asyncio.BaseProtocol")

# In the data folder, while a broker serves it: for the binary protocol and for HTTP.
CLIENTS, HTTP = Path("run", "clients"), Path("run", "http")
_QUEUE_MAX = 128
UNIX = "unix:"       # begins the address of such a socket: unix:PATH


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a short path of the socket at `path`, valid inside the `with` block.  Raises OSError without its folder."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


def listen(path: Path) -> socket.socket:
    """Return a new listening socket at `path`.  Raises OSError."""
    listener = socket.socket(socket.AF_UNIX)
    with short_path(path) as short:
        listener.bind(short)
    listener.listen(_QUEUE_MAX)
    return listener


def connect(path: Path, timeout_s: float | None = None) -> socket.socket:
    """Return a connection to the socket at `path`.  Raises OSError."""
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(timeout_s)
    try:
        with short_path(path) as short:
            link.connect(short)
    except OSError:
        link.close()
        raise
    return link


async def open_connection(url: str, protocol: Callable[[], Protocol]) -> "tuple[asyncio.Transport, Protocol]":
    """Return a new connection of the running loop to unix:PATH, as the loop's own methods do.  Raises OSError."""
    import asyncio  # which takes most of a command's start, and is not needed for HTTP
    with short_path(Path(url.removeprefix(UNIX))) as path:
        return await asyncio.get_running_loop().create_unix_connection(protocol, path)
