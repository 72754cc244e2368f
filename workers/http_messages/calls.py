"""Calls: what the admin process says about a request when it hands it on to a `geminga-web` process.

The supervisor makes a listening socket for each of these processes, and keeps it open: requests wait in it while a
process is being started again.  All calls about a topic go to the same process, which has its producers and consumers.
"""
import json
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from geminga.proto import names
from geminga.workers.identity.authentication import Identity

PRODUCE, RECEIVE, ACKNOWLEDGE, REFUSE = "produce", "receive", "acknowledge", "refuse"
HEADER = "X-Geminga-Call"
HEADER_MAX = 1 << 20         # bytes of a call; names and parameters have at most 64 KiB each, which JSON escapes


class Call(NamedTuple):
    """A request that the admin process has authenticated and authorised; its body follows."""

    kind: str                                  # PRODUCE, RECEIVE, ACKNOWLEDGE or REFUSE
    topic: str                                 # its complete name
    partition: int                             # that the path names, -1 without one
    subscription: str                          # likewise, "" without one
    parameters: tuple[tuple[str, str], ...]    # of the address
    identity: Identity
    is_stream: bool                            # the client takes server-sent events
    last_event: str                            # id of the last one that it got, "" for none

    @property
    def only_partition(self) -> int:
        """The partition to which everything goes: one that the path names, or the topic is one; -1: there is none."""
        return self.partition if self.partition >= 0 else names.parse(self.topic).partition

    def as_text(self) -> str:
        return json.dumps(self._replace(identity=asdict(self.identity)))      # type: ignore[arg-type]

    def key(self, *more: str) -> tuple[str, ...]:
        """Return what tells the caller and the topic apart from others."""
        who = self.identity
        return who.role, who.method, who.proxy, json.dumps(who.groups), self.topic, *more

    @classmethod
    def of_text(cls, text: str) -> "Call":
        call = cls(*json.loads(text))
        who: dict[str, Any] = call.identity      # type: ignore[assignment]  # as JSON has it
        return call._replace(parameters=tuple((name, value) for name, value in call.parameters),
                             identity=Identity(**who | {"groups": tuple(who["groups"])}))


def calls_path(index: int) -> Path:
    """Return the path of a process's socket, below the data folder."""
    return Path("run", f"web{index}")


def index_of(topic: str, processes: int) -> int:
    """Return the index of the process that has a topic's producers and consumers.  topic: name without a partition."""
    return zlib.crc32(topic.encode()) % processes
