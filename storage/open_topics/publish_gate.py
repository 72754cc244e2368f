"""The publish gate: causes that close a partition to producers, and producers that wait until it opens again.

When a cause has a barrier, the partition's producers are closed, and their unanswered SENDs are dropped. The clients
keep the messages, reconnect, and send them again once they are let in.
"""
from collections.abc import Callable
from dataclasses import dataclass

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.open_topics import answers
from geminga.storage.open_topics.barrier import Barrier, Cause
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.session import Session, Sessions
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition

_WAIT_MS = 10_000       # for which a producer waits at most; clients wait longer for an answer
_LOOK_MS = 100          # between two looks at the producers that wait for one partition


@dataclass(slots=True)
class _Waiting:
    """PRODUCER commands that wait for one partition."""

    looked_ms: int
    commands: dict[tuple[Session, int], tuple[api.BaseCommand, int]]     # by session and producer id; and since when


class PublishGate(Watcher):
    """The publish gate of one owner, which lets producers in, has them wait, or refuses them."""

    def __init__(self, decisions: Decisions, sessions: Sessions, *causes: Cause):
        self._decisions, self._sessions, self._causes = decisions, sessions, causes
        self._waiting: dict[Partition, _Waiting] = {}

    def __repr__(self) -> str:
        return f"<PublishGate {sum(len(one.commands) for one in self._waiting.values())} producers wait>"

    @property
    def is_watched(self) -> bool:
        """Whether any partition can have a barrier, so that passes skip the check otherwise."""
        for cause in self._causes:      # noqa: SIM110     # a generator costs every pass more than the question
            if cause.is_possible:
                return True
        return False

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
        waiting = self._waiting.setdefault(partition, _Waiting(self._decisions.now_ms, {}))
        producer_id = command.producer.producer_id
        waiting.commands[session, producer_id] = command, self._decisions.now_ms
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
            answers.refuse(self._decisions, session, command, refusal)

    def look(self, now_ms: int, carry_out: Callable[[Session, api.BaseCommand], None]) -> None:
        """Let in waiting producers whose partition is open again, and refuse producers that have waited too long.

        carry_out: carries out the PRODUCER commands of those that are let in.
        """
        if not self._waiting:      # nearly always
            return
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
                if not self._sessions.has(session):
                    continue
                if barrier is None:
                    carry_out(session, command)
                else:
                    answers.refuse(self._decisions, session, command, barrier.refusal)
        self._waiting = {partition: waiting for partition, waiting in self._waiting.items() if waiting.commands}
