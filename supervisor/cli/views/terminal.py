"""A terminal whose keys come one by one, with its old state restored at the end; and the names of keys."""
import contextlib
import os
import selectors
import signal
import socket
import termios
import tty
from types import FrameType, TracebackType
from typing import Any

_SEQUENCES = {"[A": "up", "[B": "down", "[C": "right", "[D": "left", "[H": "home", "[F": "end", "[1~": "home",
              "[4~": "end", "[5~": "page up", "[6~": "page down", "OA": "up", "OB": "down", "OC": "right", "OD": "left",
              "OH": "home", "OF": "end"}
_CONTROLS = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\t": "tab", "\x0c": "redraw"}
_READ_MAX = 4_096
_ENDS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
_OTHERS = signal.SIGWINCH, signal.SIGCONT


def keys_of(data: bytes) -> list[str]:
    """Return the names of the keys in bytes from a terminal: characters, or names such as "up" and "enter"."""
    text, keys = data.decode(errors="ignore"), []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\x1b":
            for sequence, name in _SEQUENCES.items():
                if text.startswith(sequence, at):
                    keys.append(name)
                    at += len(sequence)
                    break
            else:
                if text[at:at + 1] in ("[", "O"):      # an unknown sequence: up to its last character
                    at += 1
                    while at < len(text) and not "@" <= text[at] <= "~":
                        at += 1
                    at += 1
                else:
                    keys.append("escape")
        elif char in _CONTROLS:
            keys.append(_CONTROLS[char])
        elif char.isprintable():
            keys.append(char)
    return keys


class Terminal:
    """The terminal of this process, as a context: keys without Enter and echo; signals end the wait for keys."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._selector = selectors.DefaultSelector()
        self.ended_by: int | None = None          # the signal that asks for the end

    def __repr__(self) -> str:
        return f"<Terminal {self._descriptor}>"

    def __enter__(self) -> "Terminal":
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        self._before: list[Any] = termios.tcgetattr(self._descriptor)
        self._handlers = {number: signal.signal(number, self._ends) for number in _ENDS}
        self._handlers |= {number: signal.signal(number, lambda *_: None) for number in _OTHERS}
        self._wakeup = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._read, selectors.EVENT_READ)
        self._selector.register(self._descriptor, selectors.EVENT_READ)
        tty.setcbreak(self._descriptor)
        without_suspend = termios.tcgetattr(self._descriptor)
        without_suspend[6][termios.VSUSP] = b"\x00"      # a stopped screen would leave the shell without echo
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, without_suspend)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._selector.close()
        self._read.close()
        self._write.close()

    def _ends(self, number: int, _frame: FrameType | None) -> None:
        self.ended_by = number

    def wake(self) -> None:
        """End the wait for keys; may be called from any thread."""
        with contextlib.suppress(OSError):      # the pair is full, so the wait ends anyway; or it is closed already
            self._write.send(b"\0")

    def keys(self, seconds: float) -> list[str]:
        """Wait for keys, a signal or `wake`, for some seconds at most; return the keys.

        The end of the input is a request to end.
        """
        keys: list[str] = []
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._read:
                with contextlib.suppress(BlockingIOError):
                    self._read.recv(_READ_MAX)
                continue
            try:
                data = os.read(self._descriptor, _READ_MAX)
            except OSError:
                data = b""
            if not data:
                self.ended_by = signal.SIGHUP
            keys += keys_of(data)
        return keys
