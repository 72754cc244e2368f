"""Messages to systemd by sd_notify(3): datagrams of NAME=value lines to the socket in NOTIFY_SOCKET.

    READY=1              every process serves; also at the end of a reload
    STATUS=...           the line in `systemctl status`: recovery, addresses, processes that are down
    EXTEND_TIMEOUT_USEC  a recovery has made progress
    RELOADING=1          a reload begins
    STOPPING=1           the end begins
    WATCHDOG=1           every process answers (serve.py)

Without NOTIFY_SOCKET no message is sent.
"""
import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

_EXTEND_SECONDS = 30         # granted to a recovery until its next progress
_EXTEND_AGAIN_SECONDS = 5


class Notify:
    """The connection to the service manager's socket for sd_notify messages.

    The variables of sd_notify are removed from the environment.  Otherwise a process that the broker starts would speak
    for the service.
    """

    def __init__(self, environ: MutableMapping[str, str]):
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        is_ours = self._socket is not None and usec.isdigit() and pid in ("", str(os.getpid()))
        # the longest time between two WATCHDOG=1; 0: no watchdog
        self.watchdog_seconds = int(usec) / 1e6 if is_ours else 0.0
        self._status = ""
        self._fed = self._extended = float("-inf")

    def __repr__(self) -> str:
        return f"<Notify {self._address or 'without a socket'} status={self._status!r}>"

    def close(self) -> None:
        """Close the service manager's socket in a forked child, because only the supervisor speaks for the service."""
        if self._socket is not None:
            self._socket.close()

    def _say(self, *lines: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):      # systemd may be restarting; the broker serves all the same
                self._socket.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, self._address)

    def ready(self) -> None:
        self._say("READY=1")

    def status(self, text: str) -> None:
        """Send the status line to the service manager if it has changed."""
        if text != self._status:
            self._status = text
            self._say(f"STATUS={text}")

    def reloading(self) -> None:
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._say("STOPPING=1")

    def extend(self) -> None:
        """Ask the service manager for more time to start, because a recovery makes progress.

        The request is sent every _EXTEND_AGAIN_SECONDS at most.
        """
        if time.monotonic() - self._extended >= _EXTEND_AGAIN_SECONDS:
            self._extended = time.monotonic()
            self._say(f"EXTEND_TIMEOUT_USEC={_EXTEND_SECONDS * 1_000_000}")

    def alive(self) -> None:
        """Feed systemd's watchdog, each time that a third of its interval has passed."""
        if self.watchdog_seconds and time.monotonic() - self._fed >= self.watchdog_seconds / 3:
            self._fed = time.monotonic()
            self._say("WATCHDOG=1")
