"""Work for the delayed indexes of an owner's partitions: a little in each pass, and saving them every ten seconds.

A thread saves them: it syncs all window files with one call, writes the snapshots that refer to those files, then
removes files that no snapshot needs any more. After a power cut in between, the older snapshots are in place, with all
files that they refer to.
"""
import contextlib
import math
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from geminga.storage.delayed import persistence
from geminga.storage.delayed.index import DelayedIndex, Released
from geminga.storage.delayed.persistence import IndexSnapshot
from geminga.storage.disk.files import sync, sync_all, write_anew
from geminga.storage.errors import text_of
from geminga.storage.ledgers.checkpoints import TooMuch, in_time
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.runtime.log import log
from geminga.storage.topics.partition import Partition

_WORK_SECONDS = 0.002       # in each pass
_SAVE_MS = 10_000           # between two saves


class DelayedScheduler(Watcher):
    """Scheduler of one owner's delayed indexes: when each advances, scans, flushes and is saved."""

    def __init__(self, decisions: Decisions, data_dir: Path, options: OptionsInForce, reports: Reports):
        self._decisions, self._data_dir, self._options, self._reports = decisions, data_dir, options, reports
        self._all: dict[Partition, DelayedIndex] = {}
        self._busy: dict[Partition, DelayedIndex] = {}        # indexes with something to scan or flush
        self._to_save: dict[Partition, DelayedIndex] = {}     # indexes to save as soon as none of them has a flush
        self._thread: ThreadPoolExecutor | None = None
        self._saving: tuple[Future[None], list[IndexSnapshot]] | None = None
        self._save_ms = 0                                     # when to save next
        self._closed_by = math.inf                            # time.monotonic() at which saves give up

    def __repr__(self) -> str:
        return f"<DelayedScheduler indexes={len(self._all)} busy={len(self._busy)} to_save={len(self._to_save)}>"

    @property
    def is_busy(self) -> bool:
        """Whether an index has something to scan, to flush or to save now."""
        return bool(self._busy or self._to_save)

    def watch(self, partition: Partition, /) -> None:
        """Begin to schedule the partition's delayed index, if it has one.

        Called again when the partition's policies change or its index is made.
        """
        if partition.schedule is not None:
            self._all[partition] = partition.schedule
            partition.schedule.is_strict = self._options.current.delayed_delivery_strict
            self._look(partition, partition.schedule)

    def look(self, partition: Partition) -> None:
        """Note whether the partition's delayed index has something to scan or flush."""
        if partition.schedule is not None:
            self._look(partition, partition.schedule)

    def _look(self, partition: Partition, index: DelayedIndex) -> None:
        if index.is_busy:
            self._busy[partition] = index

    def release(self, partition: Partition, /) -> None:
        """Save the delayed index of a partition that the owner gives up, and forget it."""
        self._busy.pop(partition, None)
        self._to_save.pop(partition, None)
        if (index := self._all.pop(partition, None)) is not None:
            self._wait()
            self._save_now([index])

    def advance(self, partition: Partition, now_ms: int) -> bool:
        """Release the partition's delayed entries that are due to its subscriptions.

        The partition must have an index.  Returns whether the index had to advance.
        """
        assert partition.schedule is not None, partition
        partition.now_ms, index = now_ms, partition.schedule
        if index.next_ms() > now_ms:
            return False
        _tell(partition, index.advance(now_ms))
        self._decisions.changed[partition] = None
        return True

    def complete(self, partition: Partition, now_ms: int) -> None:
        """Scan the partition's ledgers until its delayed index covers every entry.  Raises OSError."""
        assert partition.schedule is not None, partition
        while not partition.schedule.is_complete:
            self._work_for(partition, partition.schedule, now_ms, time.perf_counter() + _WORK_SECONDS)

    def _work_for(self, partition: Partition, index: DelayedIndex, now_ms: int, until: float) -> None:
        _tell(partition, index.work(now_ms, until))
        self._decisions.wake(partition)

    def work(self, now_ms: int) -> None:
        """Scan and flush delayed indexes for two milliseconds or a little longer.

        Begins to save the chosen indexes once none of them has a flush in progress.
        """
        until = time.perf_counter() + _WORK_SECONDS
        for partition, index in list(self._busy.items()):
            try:
                self._work_for(partition, index, now_ms, until)
            except OSError as error:                  # rows stay in memory; tried again with the next tick
                self._reports.once(
                    f"{text_of(error)}; the schedule of {partition.name} is kept in memory until there is room",
                    code="G103", topic=str(partition.name))
                del self._busy[partition]
                self._to_save.pop(partition, None)
                continue
            if not index.is_busy:
                del self._busy[partition]
            if time.perf_counter() >= until:
                break
        if self._to_save and all(index.store.flush is None for index in self._to_save.values()):
            self._save()

    def tick(self, now_ms: int) -> None:
        for partition, index in self._all.items():
            if self.advance(partition, now_ms) and partition.attached:
                self._decisions.wake(partition)
            self._look(partition, index)
        if self._saving is not None and self._saving[0].done():
            self._collect()
        if self._saving is None and now_ms >= self._save_ms:
            self._prepare(now_ms)

    def close(self, until: float = math.inf) -> None:
        """Save all changed delayed indexes, and end the thread.

        until: time.monotonic() after which the rest is not saved: the next start scans its ledgers from the older
        snapshots on.
        """
        self._closed_by = until
        self._wait()
        self._save_now([index for index in self._all.values() if index.is_dirty])
        if self._thread is not None:
            self._thread.shutdown()

    # -- saving

    def _prepare(self, now_ms: int) -> None:
        """Choose the delayed indexes that have changed, and begin to flush them before their snapshots are taken."""
        self._save_ms = now_ms + _SAVE_MS
        self._to_save = {partition: index for partition, index in self._all.items() if index.is_dirty}
        for partition, index in self._to_save.items():
            index.begin_flush(now_ms)
            self._look(partition, index)

    def _save(self) -> None:
        """Take snapshots of the chosen delayed indexes, and let the thread write them.

        No index may have a flush in progress.
        """
        snapshots = [persistence.take_snapshot(index) for index in self._to_save.values()]
        self._to_save = {}
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "schedules")
        self._saving = self._thread.submit(self._write, snapshots), snapshots

    def _collect(self) -> None:
        """Finish the save that has ended: remove unneeded files, or after an error mark the indexes as unsaved."""
        assert self._saving is not None, self
        (future, snapshots), self._saving = self._saving, None
        # Files that no window needs go only once the snapshot without them is on disk: a start from the older snapshot
        # would miss one, and rebuild the index.
        try:
            future.result()
        except (OSError, TooMuch) as error:
            self._not_saved(error)
            for snapshot in snapshots:
                snapshot.index.is_dirty = True
        else:
            for snapshot in snapshots:
                snapshot.remove_files()

    def _wait(self) -> None:
        """Wait for the end of the save of delayed indexes in progress, if any."""
        if self._saving is not None:
            self._saving[0].exception()      # waits for it
            self._collect()

    def _save_now(self, indexes: list[DelayedIndex]) -> None:
        """Flush and save these delayed indexes before returning."""
        if not indexes:
            return
        try:
            for index in in_time(self._is_over, indexes):
                index.flush(self._decisions.now_ms)
            snapshots = [persistence.take_snapshot(index) for index in in_time(self._is_over, indexes)]
            self._write(snapshots)
        except (OSError, TooMuch) as error:           # a start scans the ledgers from the older snapshot on
            self._not_saved(error)
        else:
            for snapshot in snapshots:
                snapshot.remove_files()

    def _is_over(self) -> bool:
        return time.monotonic() > self._closed_by

    def _not_saved(self, error: OSError | TooMuch) -> None:
        if isinstance(error, TooMuch):
            log.info("not all schedules can be saved before a stop; the next start completes them", code="G105")
        else:
            self._reports.once(f"{text_of(error)}; schedules are not saved", code="G103")

    def _write(self, snapshots: list[IndexSnapshot]) -> None:
        """Write snapshots of delayed indexes durably, after the window files that they refer to.

        Raises OSError; TooMuch, when a stop has no more time.
        """
        # The window files go to the disk before the snapshots that name their sizes.  In the other order, a power cut
        # would leave a snapshot that claims rows of which the file has zeros: the index would count as damaged, and be
        # scanned anew from all ledgers.
        sync_all(self._data_dir)
        for snapshot in in_time(self._is_over, snapshots):
            folder = snapshot.path.parent
            with contextlib.suppress(FileNotFoundError):      # the partition was deleted
                folder.parent.stat()
                folder.mkdir(exist_ok=True)
                write_anew(snapshot.path, snapshot.data)
                for named in (folder, folder.parent):
                    sync(named, os.fsync)


def _tell(partition: Partition, released: Released) -> None:
    """Let subscriptions with consumers deliver entries that fell due after the dispatcher had passed them over."""
    for subscription in partition.attached if released else ():
        assert subscription.dispatcher is not None, subscription      # it has consumers
        subscription.dispatcher.fell_due(released)
