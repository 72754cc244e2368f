"""What operators on the host ask of the supervisor: lines of JSON over a Unix socket in the data folder.

    {"reload": true}        -> {"error": ""} or why the configuration stays as it is, and {"changes": [...]} before it
    {"drain": seconds}      -> {"outstanding": messages}, again and again; the connection ends with the broker

Whoever may write to the folder may ask: the broker's own user, and root.
"""
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from geminga.supervisor.beside import short_path

SOCKET = Path("run", "supervisor")      # in the data folder
_CONNECT_SECONDS = 10.0


class NotServed(Exception):
    """No broker, or none that we may ask, serves the folder.  One line."""


def listen(data_dir: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    with short_path(data_dir / SOCKET) as path:
        listener.bind(path)
    listener.listen(16)
    listener.setblocking(False)
    return listener


def ask(data_dir: Path, patience: float | None = None, **message: Any) -> Iterator[dict[str, Any]]:
    """The answers, until the broker ends the connection or itself.  Raises NotServed.

    patience: seconds that each may take.
    """
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_CONNECT_SECONDS)
        try:
            with short_path(data_dir / SOCKET) as path:
                link.connect(path)
        except OSError as error:
            raise NotServed(f"{data_dir}: no broker answers there: {error.strerror or error}") from None
        link.settimeout(patience)
        link.sendall(json.dumps(message).encode() + b"\n")
        try:
            with link.makefile("rb") as lines:
                yield from map(json.loads, lines)
        except TimeoutError:
            raise NotServed(f"{data_dir}: the broker has not answered for {patience:g} s") from None
        except ConnectionError:
            return
