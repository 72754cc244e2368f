"""The publish gate: causes that close a partition to producers, and producers that wait until it opens again.

When a cause has a barrier, the partition's producers are closed, and their unanswered SENDs are dropped. The clients
keep the messages, reconnect, and send them again once they are let in.
"""
from dataclasses import dataclass
from typing import Protocol

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.commands import requests
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.session import Session
from geminga.storage.topics.watcher import Watcher

_WAIT_MS = 10_000       # for which a producer waits at most; clients wait longer for an answer
_LOOK_MS = 100          # between two looks at the producers that wait for one partition


@dataclass(frozen=True, slots=True)
class Barrier:
    """The reason for which a partition is closed to producers, with the error that they get."""

    code: api.ServerError.ValueType
    text: str
    is_waited_for: bool    # producers that reconnect get no error at once, but wait until the barrier is gone

    @property
    def refusal(self) -> Refusal:
        return Refusal(self.code, self.text)


class Cause(Protocol):
    """A cause that can close partitions to producers, such as a full disk or a backlog quota."""

    @property
    def is_possible(self) -> bool:
        """Whether any partition can have a barrier, so that passes skip the check otherwise."""

    def barrier(self, partition: Partition) -> Barrier | None:
        """Return the barrier that closes the partition to producers now, None if this cause has none."""


@dataclass(slots=True)
class _Waiting:
    """PRODUCER commands that wait for one partition."""

    looked_ms: int
    commands: dict[tuple[Session, int], tuple[api.BaseCommand, int]]     # by session and producer id; and since when


class PublishGate(Watcher):
    """The publish gate of one owner, which lets producers in, has them wait, or refuses them."""

    def __init__(self, owner: OwnerContext, *causes: Cause):
        self._owner, self._causes = owner, causes
        self._waiting: dict[Partition, _Waiting] = {}

    def __repr__(self) -> str:
        return f"<PublishGate {sum(len(one.commands) for one in self._waiting.values())} producers wait>"

    @property
    def is_watched(self) -> bool:
        """Whether any partition can have a barrier, so that passes skip the check otherwise."""
        return any(cause.is_possible for cause in self._causes)

    def barrier(self, partition: Partition) -> Barrier | None:
        """Return the first barrier that closes the partition to producers now, None if it is open."""
        for cause in self._causes:
            if cause.is_possible and (barrier := cause.barrier(partition)) is not None:
                return barrier
        return None

    def enter(self, session: Session, command: api.BaseCommand, partition: Partition) -> bool:
        """Return True if the producer of a PRODUCER command may be created now, False if it waits.

        Raises Refusal if it may not wait.
        """
        barrier = self.barrier(partition)
        if barrier is None:
            return True
        if not (barrier.is_waited_for and command.producer.epoch):
            raise barrier.refusal
        waiting = self._waiting.setdefault(partition, _Waiting(self._owner.now_ms, {}))
        producer_id = command.producer.producer_id
        waiting.commands[session, producer_id] = command, self._owner.now_ms
        session.waiting[command.type, producer_id] = partition
        return False

    def withdraw(self, session: Session, partition: Partition, producer_id: int) -> api.BaseCommand | None:
        """Withdraw the PRODUCER command of a waiting producer that its client has closed.

        Returns the command, None if the producer does not wait.
        """
        waiting = self._waiting.get(partition)
        if waiting is None or (session, producer_id) not in waiting.commands:
            return None
        command, _ = waiting.commands.pop((session, producer_id))
        return command

    def release(self, partition: Partition) -> None:
        """Refuse the producers that wait for a partition that is unloaded; their clients look the topic up again."""
        waiting = self._waiting.pop(partition, None)
        for (session, producer_id), (command, _) in waiting.commands.items() if waiting is not None else ():
            session.waiting.pop((command.type, producer_id), None)
            refusal = Refusal(api.ServiceNotReady, "The topic was unloaded; try again")
            requests.refuse(self._owner, session, command, refusal)

    def look(self, now_ms: int) -> None:
        """Let in waiting producers whose partition is open again, and refuse producers that have waited too long."""
        for partition, waiting in list(self._waiting.items()):
            if now_ms - waiting.looked_ms < _LOOK_MS:
                continue
            waiting.looked_ms, barrier = now_ms, self.barrier(partition)
            over = {key: command for key, (command, since_ms) in waiting.commands.items()
                    if barrier is None or now_ms - since_ms >= _WAIT_MS}
            for key in over:
                del waiting.commands[key]
            for (session, producer_id), command in over.items():
                session.waiting.pop((command.type, producer_id), None)
                if not self._owner.has(session):
                    continue
                if barrier is None:
                    self._owner.carry_out(session, command)
                else:
                    requests.refuse(self._owner, session, command, barrier.refusal)
        self._waiting = {partition: waiting for partition, waiting in self._waiting.items() if waiting.commands}
