"""Disk space: below the low watermark publishing is refused until the high one is reached; all else continues.

    free bytes    0 .......................... disk_refuse_below_bytes ........... disk_accept_above_bytes ........
                  publishing is refused        publishing stays as it was          publishing is allowed

Open ledgers keep acknowledged entries while four times disk_accept_above_bytes are free, so that freeing them begins
long before publishing is refused.
Ledgers are allocated ahead of publishing, by at most a part of the bytes that are free above disk_accept_above_bytes.
Below that mark they grow by as much as they need, and ledgers with much unused room are sealed, which frees that room.

States of partitions and the catalogue also take room. For them there is a reserve, a file that is given up piece by
piece when other programs have filled the disk. It is allocated again when publishing is allowed again.
"""
import os
from pathlib import Path

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.disk.files import allocate
from geminga.storage.errors import NotDurable, StorageFull, text_of
from geminga.storage.open_topics.barrier import Barrier
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.log import log
from geminga.storage.topics.partition import Partition

_PIECES = 4               # pieces in which the reserve is given up
# On a small file system the watermarks and the reserve are at most 1/20, 1/10 and 1/40 of it: defaults for a large one
# would make it unusable.
_REFUSE_PART, _ACCEPT_PART, _RESERVE_PART = 20, 10, 40
_KEEP_TIMES = 4           # acknowledged entries are kept above so many times disk_accept_above_bytes
_AHEAD_PART = 4           # a file may be allocated ahead by 1/4 of the room that there is for this
_MIB = 1 << 20
_BARRIER = Barrier(api.ServiceNotReady, "There is no room on the broker's disk; try again", is_waited_for=True)


def refuse_below(disk: os.statvfs_result, options: StorageOptions) -> int:
    """Return the free bytes of a file system below which publishing is refused."""
    return min(options.disk_refuse_below_bytes, disk.f_blocks * disk.f_frsize // _REFUSE_PART)


class DiskSpace:
    """The free disk space as one owner sees it, which is a cause to refuse publishing (barrier.Cause)."""

    def __init__(self, folder: Path, options: StorageOptions, counters: Counters):
        """folder: a folder on the disk in question, which has the owner's reserve."""
        self._folder, self._counters = folder, counters
        self._reserve_path = folder / "reserve"
        self._held = self._reserve_path.stat().st_size if self._reserve_path.exists() else 0      # bytes of the reserve
        self._free = 0                  # bytes
        self.is_full = False            # whether publishing is refused
        self.configure(options)

    def __repr__(self) -> str:
        return f"<DiskSpace free={self._free} full={self.is_full} reserve={self._held}>"

    def configure(self, options: StorageOptions) -> None:
        """Apply the watermarks and the size of the reserve that options set."""
        disk = os.statvfs(self._folder)
        size = disk.f_blocks * disk.f_frsize
        self._refuse_below = refuse_below(disk, options)
        self._accept_above = max(min(options.disk_accept_above_bytes, size // _ACCEPT_PART), self._refuse_below)
        self._keep_acknowledged_ms = options.keep_acknowledged_s * 1000
        self._reserve = min(options.disk_reserve_bytes, size // _RESERVE_PART)
        if self._held > self._reserve:
            os.truncate(self._reserve_path, self._reserve)
            self._held = self._reserve
        self.look()

    @property
    def is_possible(self) -> bool:
        return self.is_full

    def barrier(self, partition: Partition) -> Barrier | None:
        """Return the barrier against publishing while the disk is full, else None."""
        return _BARRIER if self.is_full else None

    def look(self) -> None:
        """Measure free bytes, then refuse or allow publishing, and give up or take back the reserve.

        Raises NotDurable when the folder is gone.
        """
        try:
            disk = os.statvfs(self._folder)
        except OSError as error:
            raise NotDurable(text_of(error)) from error
        self._free = disk.f_bavail * disk.f_frsize
        if self._held and self._free < self._reserve // _PIECES:
            self.give_up()
        if self._free < self._refuse_below:
            self._change(True)
        elif self._free >= self._accept_above:
            self._change(False)
            if self._held < self._reserve and self._free - self._reserve >= self._accept_above:
                self._take_back()
        self._counters.set("disk_free_bytes", self._free)

    def spare(self) -> int:
        """Measure free bytes, and return how many more may be used before publishing is refused.  Raises NotDurable."""
        self.look()
        return 0 if self.is_full else max(0, self._free - self._refuse_below)

    @property
    def ahead(self) -> int:
        """The number of bytes by which a file may be allocated ahead without leading to refused publishing."""
        return max(0, self._free - self._accept_above) // _AHEAD_PART

    @property
    def keep_acknowledged_ms(self) -> int:
        """How long an idle open ledger keeps acknowledged entries, in ms; 0: they are freed, also while disk space is
        short.
        """
        return self._keep_acknowledged_ms if self._free >= _KEEP_TIMES * self._accept_above else 0

    @property
    def is_scarce(self) -> bool:
        """Whether the disk is so full that nothing is allocated ahead."""
        return self._free < self._accept_above

    def check(self) -> None:
        """Raise StorageFull if publishing is refused for lack of disk space."""
        if self.is_full:
            raise StorageFull(_BARRIER.text)

    def give_up(self) -> bool:
        """Free a piece of the reserve.  Returns False if there is no reserve left."""
        if not self._held:
            return False
        self._held = max(0, self._held - -(-self._reserve // _PIECES))
        if self._held:
            os.truncate(self._reserve_path, self._held)
        else:
            self._reserve_path.unlink()
        return True

    def _take_back(self) -> None:
        """Allocate the whole reserve again, unless there is no room."""
        try:
            allocate(self._reserve_path, self._reserve)
            self._held = self._reserve
        except StorageFull:
            return

    def _change(self, is_full: bool) -> None:
        """Refuse publishing or allow it again, and log the change."""
        if is_full == self.is_full:
            return
        self.is_full = is_full
        self._counters.set("publishing_refused", int(is_full))
        free = f"{self._folder}: {self._free / _MIB:.1f} MiB are free on this disk"
        if is_full:
            log.error(f"{free}: publishing is refused until there are {self._accept_above / _MIB:.1f}", code="G101")
        else:
            log.info(f"{free}: publishing goes on", code="G101")
