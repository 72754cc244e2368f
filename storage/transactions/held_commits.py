"""Commits that wait for a backup, so that none falls between the cuts of two owners."""
from collections.abc import Callable

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.cursors.pending_acks import NEVER_MS

HELD_MS = 10_000      # how long commits wait at most: the backup may have died
CUT_MS = 5_000        # until when an owner may be cut; less, because owners do not begin to hold commits together


class HeldCommits:
    """The commits that one coordinator does not decide yet."""

    def __init__(self) -> None:
        self._since_ms: int | None = None                 # None: commits are decided as they come
        self._waiting: list[Callable[[], None]] = []      # each decides one

    def __repr__(self) -> str:
        return f"<HeldCommits since={self._since_ms} waiting={len(self._waiting)}>"

    @property
    def is_on(self) -> bool:
        """Whether commits have to wait."""
        return self._since_ms is not None

    def begin(self, now_ms: int) -> None:
        """Have commits wait from now on."""
        self._since_ms = now_ms

    def add(self, decide: Callable[[], None]) -> None:
        """Keep a commit, which `decide` decides."""
        self._waiting.append(decide)

    def take(self) -> list[Callable[[], None]]:
        """Return the commits that have waited, and have no other wait."""
        waiting, self._waiting, self._since_ms = self._waiting, [], None
        return waiting

    def is_over(self, now_ms: int) -> bool:
        """Whether commits have waited for too long, or the clock was set back."""
        return self._since_ms is not None and not 0 <= now_ms - self._since_ms <= HELD_MS

    def due_ms(self) -> int:
        """Return the time at which commits will have waited for too long, NEVER_MS without any."""
        return NEVER_MS if self._since_ms is None else self._since_ms + HELD_MS + 1

    def check_cut(self, now_ms: int) -> None:
        """Raise Refusal if a cut at this time may lack part of a commit."""
        if self._since_ms is None or not 0 <= now_ms - self._since_ms <= CUT_MS:
            raise Refusal(api.MetadataError, "commits of transactions wait for a backup no longer")
