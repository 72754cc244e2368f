"""The supervisor's word to its children and theirs to it: JSON lines over a socket pair made before the fork.

    child -> supervisor    {"ready": {...}}                 it serves
                           {"recovering": [what, done, of]} an owner that begins has come further
                           {"pong": true}                   its main loop goes round
                           {"drained": true}                what was published is answered, and nothing more is given out
                           {"configured": why not}          its options are in force, or cannot be: the old ones are; "again": it ends
                                                            for its successor to have them
                           {"tell": {"log": [...]}}         of the admin process: all are to be told that
    supervisor -> child    {"owner": [index, serial]}       an owner is up; a link to it is to be made
                           {"owner_gone": index}            it ended: everything that hung on it is gone
                           {"worker_gone": serial}          a worker ended: so did all its connections
                           {"ping": true}                   answered by whoever looks for messages, see `receive`
                           {"log": [rule, ...]}             what the log is to tell for a while; done by whoever looks, too
                           {"options": packed}              hold from now on
                           {"drain": true}                  nobody may publish or be given anything; answered "drained" when that is so
                           {"stop": true}                   say good-bye and exit
"""
import json
import pickle
import socket
from typing import Any

from geminga.storage.runtime.log import Rule, log


class Control:
    """One end.  Never blocks on reading."""

    def __init__(self, end: socket.socket):
        self._socket = end
        self._rest = b""
        self._kept: list[dict[str, Any]] = []
        self.is_open = True
        end.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, **message: Any) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:      # the other end is gone: whoever watches processes sees to it
            self.is_open = False

    def receive(self) -> list[dict[str, Any]]:
        """Messages that have come; `is_open` is false when the other end is closed.

        A ping is answered on the way: whoever looks here does so from the process's main loop.
        """
        self.answer()
        found, self._kept = self._kept, []
        return found

    @property
    def has_kept(self) -> bool:
        """Whether messages wait although nothing is left to be read."""
        return bool(self._kept)

    def answer(self) -> None:
        """Answer a ping in the middle of something long; what else has come waits for `receive`."""
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
    """Options as they go along in a message, from a process to one that it has forked."""
    return pickle.dumps(what).hex()


def unpacked(text: str) -> Any:
    return pickle.loads(bytes.fromhex(text))


def control_pair() -> tuple[Control, Control]:
    ours, theirs = socket.socketpair()
    return Control(ours), Control(theirs)
