"""What operators on the host ask of the supervisor: lines of JSON over a Unix socket in the data folder.

    {"reload": true}        -> {"error": ""} or why the configuration stays as it is, and {"changes": [...]} before it
    {"drain": seconds}      -> {"outstanding": messages}, again and again; the connection ends with the broker

Whoever may write to the folder may ask: the broker's own user, and root.
"""
import contextlib
import json
import selectors
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from geminga.storage.runtime.control import Control
from geminga.supervisor.host.unix_sockets import short_path

SOCKET = Path("run", "supervisor")      # in the data folder
_CONNECT_SECONDS = 10.0


class NotServed(Exception):
    """No broker, or none that we may ask, serves the folder.  One line."""


class Desk:
    """The supervisor's end."""

    def __init__(self, data_dir: Path, selector: selectors.BaseSelector, commands: dict[str, Callable[[Control, Any], None]]):
        """commands: what is called with the caller and what its message says.  Raises ValueError or TypeError when that is wrong."""
        self._listener, self._selector, self._commands = listen(data_dir), selector, commands
        self._callers: list[Control] = []
        selector.register(self._listener, selectors.EVENT_READ, self._called)

    @property
    def held(self) -> list[socket.socket | Control]:
        """What children have no use for."""
        return [self._listener, *self._callers]

    def _called(self) -> None:
        with contextlib.suppress(OSError):
            caller = Control(self._listener.accept()[0])
            self._callers.append(caller)
            self._selector.register(caller, selectors.EVENT_READ, partial(self._asked, caller))

    def _asked(self, caller: Control) -> None:
        try:
            for message in caller.receive():
                [(name, value)] = message.items()
                self._commands[name](caller, value)
        except (ValueError, TypeError, KeyError, AttributeError):      # whatever that is, it is none of our commands
            caller.is_open = False
        if not caller.is_open:
            self.hang_up(caller)

    def hang_up(self, caller: Control) -> None:
        if caller in self._callers:
            self._selector.unregister(caller)
            self._callers.remove(caller)
            caller.close()


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
