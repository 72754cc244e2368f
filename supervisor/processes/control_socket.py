"""Commands to the supervisor from its host: lines of JSON over a Unix socket in the data folder.

    {"reload": true}     -> {"changes": [...], "error": ""}; the error says why the old configuration stays in force
    {"drain": seconds}   -> {"outstanding": messages}, repeated until the broker ends and closes the connection

The rights of the folder decide who may connect: the broker's own user and root.
"""
import contextlib
import json
import selectors
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from geminga.storage.runtime import unix_sockets
from geminga.storage.runtime.control import Control

SOCKET = Path("run", "supervisor")      # in the data folder
_CONNECT_SECONDS = 10.0


class NotServed(Exception):
    """An error: no broker serves the data folder, or this user may not connect to it.  The text is one line."""

    exit_status = 1


class ControlSocket:
    """The supervisor's listening socket for commands on the host, and the connections open on it."""

    def __init__(self, data_dir: Path, selector: selectors.BaseSelector,
                 commands: dict[str, Callable[[Control, Any], None]]):
        """Listen in the data folder.

        `commands` maps a command's name to a function of (caller, value).  The function raises ValueError or TypeError
        for a value that it does not take; the connection is closed then.
        """
        self._listener, self._selector, self._commands = listen(data_dir), selector, commands
        self._callers: list[Control] = []
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def __repr__(self) -> str:
        return f"<ControlSocket {len(self._callers)} callers>"

    @property
    def held(self) -> list[socket.socket | Control]:
        """Return the listening socket and all connections, which a forked child has to close."""
        return [self._listener, *self._callers]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            caller = Control(self._listener.accept()[0])
            self._callers.append(caller)
            self._selector.register(caller, selectors.EVENT_READ, partial(self._receive, caller))

    def _receive(self, caller: Control) -> None:
        try:
            for message in caller.receive():
                [(name, value)] = message.items()
                self._commands[name](caller, value)
        except (ValueError, TypeError, KeyError, AttributeError):      # not a command of this socket
            caller.is_open = False
        if not caller.is_open:
            self.hang_up(caller)

    def hang_up(self, caller: Control) -> None:
        """Close a caller's connection, unless it is closed already."""
        if caller in self._callers:
            self._selector.unregister(caller)
            self._callers.remove(caller)
            caller.close()


def listen(data_dir: Path) -> socket.socket:
    """Return a listening, non-blocking control socket in the data folder.  Raises OSError."""
    listener = unix_sockets.listen(data_dir / SOCKET)
    listener.setblocking(False)
    return listener


def ask(data_dir: Path, patience: float | None = None, **message: Any) -> Iterator[dict[str, Any]]:
    """Send one command to a running broker, and yield its answers until the broker closes the connection or ends.

    `patience` is the longest wait for an answer in seconds, None for no bound.  Raises NotServed.
    """
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_CONNECT_SECONDS)
        try:
            with unix_sockets.short_path(data_dir / SOCKET) as path:
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
