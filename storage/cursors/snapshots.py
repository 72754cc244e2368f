"""Snapshots of a partition: a position here, and for each other cluster the position that is as far there.

    begin     a request goes to all other clusters, in the order of the partition's entries
    answer    each answers with its position, in the order of its own entries; with several, all are asked again
              the last answer's position here, and the first positions there, are a snapshot

A subscription that has everything up to the position here has everything up to those there: what a cluster had before
it answered lies before its answer here.  With several clusters, one may have had something of another before its
first answer that comes here only later, but before the second answer of that other one.
"""
import bisect
import uuid
from dataclasses import dataclass
from typing import NamedTuple

from geminga.storage.ledgers.position import Position

TRIES_MAX = 3      # snapshots asked for in vain, after which something has to change before the next one
Lanes = tuple[int, ...]      # handles of the consumers that take entries to other clusters


class Snapshot(NamedTuple):
    """Positions of the same place in several clusters."""

    local: Position
    remote: dict[str, Position]
    messages: int                      # when it was asked for; positions in other clusters may not cover later ones
    taken_ms: int


@dataclass(slots=True)
class Pending:
    """A snapshot that is under way."""

    snapshot_id: str
    messages: int
    began_ms: int
    lanes: Lanes
    missing: set[str]                  # clusters that have yet to answer
    remote: dict[str, Position]        # first answers
    is_last_round: bool


class Snapshots:
    """The snapshots of one partition: those that subscriptions have yet to pass, and one that is under way."""

    def __init__(self) -> None:
        self.kept: list[Snapshot] = []           # ascending
        self.pending: Pending | None = None
        self._covered = -1                       # messages of the newest snapshot
        self._tried: tuple[int, Lanes] = (-1, ())      # messages and lanes for which snapshots were asked for, ...
        self._tries = 0                          # ... and how often
        self._began_ms = 0

    def __repr__(self) -> str:
        return f"<Snapshots kept={len(self.kept)} pending={self.pending is not None}>"

    def is_due(self, messages: int, lanes: Lanes, now_ms: int, pause_ms: int) -> bool:
        """Whether to ask for a snapshot: there are messages that the last one does not cover.

        Nobody is asked for ever: after TRIES_MAX snapshots in vain, a message has to come, or a lane to be made anew.
        messages: the number of those of the partition.
        """
        if self.pending is not None or messages == self._covered or 0 <= now_ms - self._began_ms < pause_ms:
            return False
        if (messages, lanes) != self._tried:
            self._tried, self._tries = (messages, lanes), 0
        return self._tries < TRIES_MAX

    def begin(self, clusters: set[str], messages: int, lanes: Lanes, now_ms: int) -> str:
        """Begin a snapshot with these clusters, and return its id.  messages: the number of those of the partition."""
        self._tries += 1
        self._began_ms = now_ms
        self.pending = Pending(str(uuid.uuid4()), messages, now_ms, lanes, set(clusters), {},
                               is_last_round=len(clusters) == 1)
        return self.pending.snapshot_id

    def give_up(self) -> None:
        """Forget the snapshot that is under way."""
        self.pending = None

    def answer(self, snapshot_id: str, cluster: str, position: Position) -> Pending | None:
        """Take the answer of a cluster: its position.  Return the pending snapshot if no answer of this round misses.

        Answers to other snapshots, and those that came before, are ignored.
        """
        pending = self.pending
        if pending is None or pending.snapshot_id != snapshot_id or cluster not in pending.missing:
            return None
        pending.missing.discard(cluster)
        pending.remote.setdefault(cluster, position)
        return None if pending.missing else pending

    def ask_again(self) -> None:
        """Begin the second round of the snapshot that is under way."""
        assert self.pending is not None, self
        self.pending.missing, self.pending.is_last_round = set(self.pending.remote), True

    def complete(self, local: Position, now_ms: int, at_most: int) -> None:
        """Keep the snapshot that was under way.

        Beyond at_most, one goes that lies between two others and leaves the shortest time between them: a subscription
        far behind still passes some.  local: position of the last answer.
        """
        pending = self.pending
        assert pending is not None and (not self.kept or self.kept[-1].local < local), (self, local)
        self.kept.append(Snapshot(local, pending.remote, pending.messages, now_ms))
        self.pending, self._covered = None, pending.messages
        while len(self.kept) > at_most:
            gaps = [after.taken_ms - before.taken_ms for before, after in zip(self.kept, self.kept[2:], strict=False)]
            del self.kept[1 + gaps.index(min(gaps)) if gaps else 0]

    def passed(self, mark_delete: Position) -> Snapshot | None:
        """Return the newest snapshot up to a mark-delete position; None: there is none."""
        at = bisect.bisect_right(self.kept, mark_delete, key=_local)
        return self.kept[at - 1] if at else None

    def forget_before(self, mark_delete: Position) -> None:
        """Forget the snapshots before the newest one up to a position, which all subscriptions have passed."""
        del self.kept[:max(0, bisect.bisect_right(self.kept, mark_delete, key=_local) - 1)]


def _local(snapshot: Snapshot) -> Position:
    return snapshot.local
