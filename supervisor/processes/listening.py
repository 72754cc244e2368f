"""Listening sockets of the broker, and the folder of the sockets between its processes."""
import shutil
import socket
import tempfile
from pathlib import Path

_SOCKET_PATH_MAX = 80         # bytes of the folder's path; the kernel takes 107 with the socket's name


class CannotServe(Exception):
    """A failure that keeps the broker from starting; the text is one line for the log."""


def open_listener(bind: str, port: int, key: str, *, is_shared: bool = False, is_first: bool = True) -> socket.socket:
    """Open a listening socket.  Raises CannotServe, which names the configuration key of the port.

    The first of several sockets on a port binds it once without SO_REUSEPORT.  Otherwise another broker of the same
    user could share the port unnoticed, and take some of the connections.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM,
                                                                flags=socket.AI_PASSIVE)[0]
        if is_shared and is_first:
            with socket.socket(family, kind, protocol) as alone:
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                alone.bind(address)
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise CannotServe(f"{key}: cannot listen on {bind}:{port}: {error.strerror or error}") from None
    return listener


def make_run_dir(data_dir: Path) -> Path:
    """Make the folder of the owners' sockets: in the data folder, or a temporary folder if that path is too long."""
    place = data_dir.resolve() / "run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    return place if len(str(place)) <= _SOCKET_PATH_MAX else Path(tempfile.mkdtemp(prefix="geminga-"))
