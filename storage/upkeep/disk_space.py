"""Room on the disk: below the high watermark nobody may publish until there is more than the low one says; the rest goes on.

    free bytes    0 ..... publishing is refused ..... disk_refuse_below_bytes ... disk_accept_above_bytes ..... publishing goes on

Ledgers are allocated ahead of what is published, by a part of what is free above the low watermark at most.  Below that they grow by
what they need, and those with much room that nobody uses are sealed, which gives it back.

What else takes room (states of partitions, the catalogue) has a reserve, a file that is given up piece by piece when others have
filled the disk, and taken back when publishing goes on.
"""
import os
from pathlib import Path

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.disk.files import allocate
from geminga.storage.enforcement.publish_gate import Barrier
from geminga.storage.errors import NotDurable, StorageFull, text_of
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.log import log
from geminga.storage.topics.partition import Partition

_PIECES = 4               # in which the reserve is given up
# A small file system is not given up for watermarks that were made for a large one.  Parts of it:
_REFUSE_PART, _ACCEPT_PART, _RESERVE_PART = 20, 10, 40
_AHEAD_PART = 4
_MIB = 1 << 20
_BARRIER = Barrier(api.ServiceNotReady, "There is no room on the broker's disk; try again", is_waited_for=True)


class DiskSpace:
    """As one owner sees it.  A cause of gate.Gate."""

    def __init__(self, folder: Path, options: StorageOptions, counters: Counters):
        self._folder, self._counters = folder, counters
        self._reserve_path = folder / "reserve"
        self._held = self._reserve_path.stat().st_size if self._reserve_path.exists() else 0
        self._free = 0
        self.is_full = False
        self.configure(options)

    def configure(self, options: StorageOptions) -> None:
        """These watermarks hold from now on."""
        found = os.statvfs(self._folder)
        size = found.f_blocks * found.f_frsize
        self._refuse_below = min(options.disk_refuse_below_bytes, size // _REFUSE_PART)
        self._accept_above = max(min(options.disk_accept_above_bytes, size // _ACCEPT_PART), self._refuse_below)
        self._reserve = min(options.disk_reserve_bytes, size // _RESERVE_PART)
        if self._held > self._reserve:
            os.truncate(self._reserve_path, self._reserve)
            self._held = self._reserve
        self.look()

    @property
    def is_possible(self) -> bool:
        return self.is_full

    def barrier(self, partition: Partition) -> Barrier | None:
        return _BARRIER if self.is_full else None

    def look(self) -> None:
        """How much room there is, and what follows from it.  Raises NotDurable when the folder is gone."""
        try:
            found = os.statvfs(self._folder)
        except OSError as error:
            raise NotDurable(text_of(error)) from error
        self._free = found.f_bavail * found.f_frsize
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
        """Bytes that may be taken before publishing is refused; looked up anew.  Raises NotDurable."""
        self.look()
        return 0 if self.is_full else max(0, self._free - self._refuse_below)

    @property
    def ahead(self) -> int:
        """Bytes that a file may be given before anybody needs them: whatever many files take so, publishing is not refused for it."""
        return max(0, self._free - self._accept_above) // _AHEAD_PART

    @property
    def is_scarce(self) -> bool:
        """Nothing is allocated ahead any more."""
        return self._free < self._accept_above

    def check(self) -> None:
        """Raises StorageFull while publishing is refused."""
        if self.is_full:
            raise StorageFull(_BARRIER.text)

    def give_up(self) -> bool:
        """A piece of the reserve; false when there is nothing left of it."""
        if not self._held:
            return False
        self._held = max(0, self._held - -(-self._reserve // _PIECES))
        if self._held:
            os.truncate(self._reserve_path, self._held)
        else:
            self._reserve_path.unlink()
        return True

    def _take_back(self) -> None:
        try:
            allocate(self._reserve_path, self._reserve)
            self._held = self._reserve
        except StorageFull:      # next time
            return

    def _change(self, is_full: bool) -> None:
        if is_full == self.is_full:
            return
        self.is_full = is_full
        self._counters.set("publishing_refused", int(is_full))
        free = f"{self._folder}: {self._free / _MIB:.1f} MiB are free on this disk"
        if is_full:
            log.error(f"{free}: publishing is refused until there are {self._accept_above / _MIB:.1f}", code="G101")
        else:
            log.info(f"{free}: publishing goes on", code="G101")
