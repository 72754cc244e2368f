"""Requests of one coordinator that wait for participants: messages of transactions, and commands of clients."""
from collections.abc import Callable
from dataclasses import dataclass, field

from geminga.storage.open_topics.session import Session
from geminga.storage.transactions.transaction_table import Used

Answer = Callable[[int, int, int], bytes]      # (request id, most bits, least bits) -> the frame that answers

_REPEAT_MS = 5_000      # after this, participants that have not answered are told again


@dataclass(slots=True, eq=False)
class Request:
    """A command whose client waits for other owners."""

    session: Session
    request_id: int
    kind: int                        # BaseCommand.Type
    answer: Answer
    left: int = 0                    # answers of participants that are still to come


@dataclass(slots=True)
class UnderWay:
    """Messages and requests of a transaction that wait for answers of participants."""

    told_ms: int                                     # when participants were told
    adding: dict[Used, list[Request]] = field(default_factory=dict)
    ending: list[Request] = field(default_factory=list)
    left: set[int] = field(default_factory=set)      # ids of partitions that have not ended it

    def is_late(self, now_ms: int) -> bool:
        """Whether participants are to be told again, from this time on.

        An answer is lost if its owner sends it before it learns that the coordinator's process is a new one.
        """
        if 0 <= now_ms - self.told_ms < _REPEAT_MS:
            return False
        self.told_ms = now_ms
        return True
