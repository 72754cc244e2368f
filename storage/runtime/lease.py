"""A lease: until when this broker may answer without asking its standby whether that was promoted.

    the feed    a mark that the standby has acknowledged renews the lease, counted from when the mark was sent
    the admin   an answer of the standby, or the decision that nobody answers, renews it, counted from the question
    all others  compare the clock with the lease before they let answers out, and wait while it has lapsed

A promotion looks for its broker for longer than a lease of the standby's lasts.  So a broker that was stopped, and goes
on after the promotion, finds its lease lapsed and asks first.  A lease is a block of shared memory with a time for each
process that renews it; the later time counts.
"""
import mmap
import os
import time

from geminga.storage.runtime.control import Control

FEED, ADMIN = range(2)             # the processes that renew it
FOREVER = float("inf")             # nobody could be promoted: no standby is known, or its copy is not complete
TOLD_SECONDS = 4.0                 # after an acknowledgement or answer; a promotion looks for its broker for five
ALONE_SECONDS = 8.0                # after a question that nobody answered; the next one is asked within three
_LOOK_SECONDS = 0.02


class Lease:
    """The lease of one broker, which all its processes share."""

    def __init__(self, descriptor: int | None = None):
        """Begin a lease that never lapses, or use the one behind the descriptor of another process."""
        self.descriptor = os.memfd_create("geminga-lease", 0) if descriptor is None else descriptor
        if descriptor is None:
            os.truncate(self.descriptor, mmap.PAGESIZE)
        self._until = memoryview(mmap.mmap(self.descriptor, mmap.PAGESIZE)).cast("d")
        self._control: Control | None = None
        if descriptor is None:
            self.renew(ADMIN, FOREVER)

    def __repr__(self) -> str:
        return f"<Lease {self.seconds_left(FEED):.1f} s by the feed, {self.seconds_left(ADMIN):.1f} s by the admin>"

    @staticmethod
    def now() -> float:
        """Return the clock of leases, in seconds.  It counts time in which the host was suspended too."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def renew(self, by: int, until: float) -> None:
        """Set until when the lease lasts, as far as FEED or ADMIN is concerned."""
        self._until[by] = until

    def seconds_left(self, by: int) -> float:
        """Return how long the lease lasts, as far as FEED or ADMIN is concerned; negative if it has lapsed."""
        return self._until[by] - self.now()

    @property
    def has_lapsed(self) -> bool:
        now = self.now()
        return now > self._until[0] and now > self._until[1]

    def bind(self, control: Control) -> None:
        """Have `keep` follow the supervisor of this process while it waits."""
        self._control = control

    def keep(self) -> None:
        """Return at once while the lease lasts; else wait until it is renewed.

        The supervisor's pings are answered meanwhile.  If it stops the process, the process ends here, and the answers
        that wait are never given.
        """
        if self._until[ADMIN] == FOREVER:      # nearly always, and asked for every read: without a look at the clock
            return
        while self.has_lapsed:
            assert self._control is not None, "a process that waits can be told to stop"
            self._control.wait(_LOOK_SECONDS)
            self._control.answer()
            if self._control.is_told("stop") or not self._control.is_open:
                os._exit(0)
