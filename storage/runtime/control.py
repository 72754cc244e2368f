"""Messages between the supervisor and its children: JSON lines over a socket pair made before the fork.

    child -> supervisor    {"ready": {...}}                 the child serves
                           {"recovering": [what, done, of]} progress of an owner's recovery
                           {"pong": true}                   the child's main loop goes round
                           {"drained": true}                publishes are answered, and nothing more is delivered
                           {"configured": reason}           "": new options are in force; "again": the child ends, and
                                                            its successor takes them; else why the old ones stay
                           {"tell": {"log": [...]}}         from the admin process: to be sent to all children
                           {"tell": {"close": address}}     likewise, to all workers
                           {"superseded": true}             from the admin process: a standby is promoted, and all stop
    supervisor -> child    {"owner": [index, serial]}       an owner is up, and a link to it is to be made
                           {"owner_gone": index}            an owner ended, and with it all its producers and consumers
                           {"worker_gone": serial}          a worker ended, and with it all its connections
                           {"ping": true}                   answered by `receive`
                           {"log": [rule, ...]}             rules for the log; applied by `receive`
                           {"close": "host:port"}           to a worker: close the connection from this address
                           {"options": packed}              new options, in force from now on
                           {"drain": true}                  stop publishing and delivering, then answer "drained"
                           {"stop": seconds}                tell clients, write everything, and exit; it is killed
                                                            after so many seconds
"""
import json
import pickle
import select
import socket
from typing import Any

from geminga.storage.runtime.log import Rule, log


class Control:
    """One end of the socket pair between the supervisor and a child process.  Reading never blocks."""

    def __init__(self, end: socket.socket):
        self._socket = end
        self._rest = b""                              # of a line whose end has not arrived
        self._kept: list[dict[str, Any]] = []         # messages for `receive`
        self.is_open = True                           # False: the other process has ended, or closed its end
        end.setblocking(False)

    def __repr__(self) -> str:
        return f"<Control kept={len(self._kept)} is_open={self.is_open}>"

    def fileno(self) -> int:
        """Return the socket's file descriptor, for polling."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end of the socket pair."""
        self._socket.close()

    def send(self, **message: Any) -> None:
        """Send one message to the process at the other end, unless it has ended."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:      # the supervisor notices by itself that a child has ended, and a child ends with it
            self.is_open = False

    def wait(self, seconds: float) -> None:
        """Wait so long for bytes from the process at the other end, for a loop that polls nothing else."""
        waiting = select.poll()      # select.select takes no descriptor above 1,023
        waiting.register(self._socket, select.POLLIN)
        waiting.poll(seconds * 1_000)

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived.  `is_open` is False once the other end is closed.

        A ping is answered here, because a process calls this function from its main loop.
        """
        self.answer()
        messages, self._kept = self._kept, []
        return messages

    @property
    def has_kept(self) -> bool:
        """Whether messages for `receive` were read from the socket already, where polling does not show them."""
        return bool(self._kept)

    def is_told(self, name: str) -> bool:
        """Return whether a message of this name is kept for `receive`."""
        return any(name in message for message in self._kept)

    def answer(self) -> None:
        """Answer pings during a long task.  Other messages are kept for `receive`."""
        try:
            while chunk := self._socket.recv(65536):
                self._rest += chunk
            self.is_open = False
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        *lines, self._rest = self._rest.split(b"\n")
        for message in map(json.loads, lines):
            if "ping" in message:
                self.send(pong=True)
            elif "log" in message:
                log.follow(Rule(*rule) for rule in message["log"])
            else:
                self._kept.append(message)


def packed(what: Any) -> str:
    """Return options as a string, for a message to a forked process."""
    return pickle.dumps(what).hex()


def unpacked(text: str) -> Any:
    """Return options from a string that `packed` has made.

    Only a process of the broker may have written the string.
    """
    return pickle.loads(bytes.fromhex(text))


def control_pair() -> tuple[Control, Control]:
    """Return both ends of a new control connection, one for the supervisor and one for a child that is forked next."""
    ours, theirs = socket.socketpair()
    return Control(ours), Control(theirs)
