"""What a service manager is told, as systemd's sd_notify(3) has it: a datagram of NAME=value lines to the socket in NOTIFY_SOCKET.

    READY=1              every process serves; also at the end of a reload
    STATUS=...           what `systemctl status` shows: what is recovering, what is served, what is down
    EXTEND_TIMEOUT_USEC  a recovery goes on, and has come further
    RELOADING=1          a reload begins
    STOPPING=1           the end begins
    WATCHDOG=1           every process answers, see serve.py

Without NOTIFY_SOCKET nothing is told to anybody.
"""
import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

_EXTEND_SECONDS = 30         # that a recovery which goes on may take until it is heard of again
_EXTEND_AGAIN_SECONDS = 5


class Notify:
    """The line to the service manager.  The environment has nothing of it afterwards, so that no process we start takes itself for us."""

    def __init__(self, environ: MutableMapping[str, str]):
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        is_ours = self._socket is not None and usec.isdigit() and pid in ("", str(os.getpid()))
        self.watchdog_seconds = int(usec) / 1e6 if is_ours else 0.0      # within which WATCHDOG=1 must come; 0: nobody waits for it
        self._status = ""
        self._fed = self._extended = float("-inf")

    def close(self) -> None:
        """In a child: only the supervisor speaks for the service."""
        if self._socket is not None:
            self._socket.close()

    def _say(self, *lines: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):      # nobody listens any more: that is no reason not to serve
                self._socket.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, self._address)

    def ready(self) -> None:
        self._say("READY=1")

    def status(self, text: str) -> None:
        """One line; said when it has changed."""
        if text != self._status:
            self._status = text
            self._say(f"STATUS={text}")

    def reloading(self) -> None:
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._say("STOPPING=1")

    def extend(self) -> None:
        """What takes long has come further."""
        if time.monotonic() - self._extended >= _EXTEND_AGAIN_SECONDS:
            self._extended = time.monotonic()
            self._say(f"EXTEND_TIMEOUT_USEC={_EXTEND_SECONDS * 1_000_000}")

    def alive(self) -> None:
        """Everything answers; said at a third of the time that there is for it."""
        if self.watchdog_seconds and time.monotonic() - self._fed >= self.watchdog_seconds / 3:
            self._fed = time.monotonic()
            self._say("WATCHDOG=1")
