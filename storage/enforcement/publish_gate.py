"""Why nobody may publish to a partition now, and which producers wait until it is possible again.

A cause says what is in the way.  As soon as one does, the partition's producers are told to go, and what they sent and got no
answer to is dropped: their clients keep it, come back, and send it again when they are let in.
"""
from dataclasses import dataclass
from typing import Protocol

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.commands import requests
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.watcher import Watcher

_WAIT_MS = 10_000       # for a producer that has come back: less than its client waits for an answer
_LOOK_MS = 100          # between two looks whether one may go on


@dataclass(frozen=True, slots=True)
class Barrier:
    """What is in the way, as those who come are told."""

    code: int              # api.ServerError
    text: str
    is_waited_for: bool    # by producers that were there before: they get an answer when it is gone, or later

    @property
    def refusal(self) -> Refusal:
        return Refusal(self.code, self.text)


class Cause(Protocol):
    """Something that can be in the way."""

    @property
    def is_possible(self) -> bool:
        """Whether it is worth to ask for any partition: this is asked in each pass."""

    def barrier(self, partition: Partition) -> Barrier | None:
        """What is in the way of those who publish there."""


@dataclass(slots=True)
class _Waiting:
    looked_ms: int
    commands: dict[tuple, tuple]        # (session, producer's id) -> (session, command, since when)


class Gate(Watcher):
    """Of one owner."""

    def __init__(self, owner, *causes: Cause):
        self._owner, self._causes = owner, causes
        self._waiting: dict[Partition, _Waiting] = {}

    @property
    def is_watched(self) -> bool:
        return any(cause.is_possible for cause in self._causes)

    def barrier(self, partition: Partition) -> Barrier | None:
        for cause in self._causes:
            if cause.is_possible and (found := cause.barrier(partition)) is not None:
                return found
        return None

    def enter(self, session, command: api.BaseCommand, partition: Partition) -> bool:
        """Whether the producer may go on; else it waits.  Raises Refusal."""
        found = self.barrier(partition)
        if found is None:
            return True
        if not (found.is_waited_for and command.producer.epoch):
            raise found.refusal
        waiting, producer_id = self._waiting.setdefault(partition, _Waiting(self._owner.now_ms, {})), command.producer.producer_id
        waiting.commands[session, producer_id] = session, command, self._owner.now_ms
        session.waiting[command.type, producer_id] = partition
        return False

    def withdraw(self, session, partition: Partition, producer_id: int) -> api.BaseCommand | None:
        """The producer that waits is not wanted any more; returns its command."""
        waiting = self._waiting.get(partition)
        return waiting and waiting.commands.pop((session, producer_id), (None, None))[1]

    def release(self, partition: Partition) -> None:
        """It is given up: those that wait for it are to look it up again."""
        waiting = self._waiting.pop(partition, None)
        for session, command, _ in waiting.commands.values() if waiting else ():
            session.waiting.pop((command.type, command.producer.producer_id), None)
            requests.refuse(self._owner, session, command, Refusal(api.ServiceNotReady, "The topic was unloaded; try again"))

    def look(self, now_ms: int) -> None:
        """Let in those whose way is free, and refuse those that have waited for too long."""
        for partition, waiting in list(self._waiting.items()):
            if now_ms - waiting.looked_ms < _LOOK_MS:
                continue
            waiting.looked_ms, found = now_ms, self.barrier(partition)
            over = [key for key, (_, _, since_ms) in waiting.commands.items() if found is None or now_ms - since_ms >= _WAIT_MS]
            for session, command, _ in [waiting.commands.pop(key) for key in over]:
                session.waiting.pop((command.type, command.producer.producer_id), None)
                if not self._owner.has(session):
                    continue
                if found is None:
                    self._owner.carry_out(session, command)
                else:
                    requests.refuse(self._owner, session, command, found.refusal)
        self._waiting = {partition: waiting for partition, waiting in self._waiting.items() if waiting.commands}
