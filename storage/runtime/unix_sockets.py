"""Unix sockets in a data folder, by which the broker's own processes and commands of its host reach the broker.

The owner of the folder and root may connect.  The kernel takes paths of at most 107 bytes, and paths of data folders
may be longer.
"""
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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


def listen(path: Path, *, is_replacing: bool = False) -> socket.socket:
    """Return a new listening socket at `path`, for `serve` or `serve_streams`.  Raises OSError.

    is_replacing: a socket that an earlier process left at `path` is removed first.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        if is_replacing:
            path.unlink(missing_ok=True)
        with short_path(path) as short:
            listener.bind(short)
            path.chmod(0o600)      # before `listen`, so that nobody else has connected
        listener.listen(_QUEUE_MAX)
    except OSError:
        listener.close()
        raise
    return listener


# The two functions below are the only places where a loop takes a Unix socket.  They call a loop's `create_server`,
# because its `create_unix_server` looks up the name by which the socket was bound, in order to remove that file when
# the server closes (the default from Python 3.13 on).  The name goes through a descriptor of the process that bound the
# socket.  In another process, and later in the same one, that number is another file's, or nobody's: the look-up
# fails, and the broker would not start, or somebody else's file would be removed.

async def serve(listener: socket.socket, make: "Callable[[], asyncio.BaseProtocol]") -> "asyncio.AbstractServer":
    """Accept connections at a socket of `listen` in the running loop; `make` returns a connection's protocol object.

    The socket's file is left where it is when the server closes.
    """
    import asyncio
    return await asyncio.get_running_loop().create_server(make, sock=listener, backlog=_QUEUE_MAX)


async def serve_streams(listener: socket.socket, talk: "Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]",
                        line_max: int) -> "asyncio.Server":
    """Accept connections as `serve` does, and call `talk` with each one's streams; a line has line_max bytes at most.
    """
    import asyncio
    return await asyncio.start_server(talk, sock=listener, backlog=_QUEUE_MAX, limit=line_max)


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
