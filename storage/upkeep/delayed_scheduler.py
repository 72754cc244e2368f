"""What an owner does for the schedules of its partitions: small pieces of work in each pass, and saving them now and then.

A schedule is saved by a thread: what went into windows is synced with one call, then what says so is written, then files go that nobody
needs any more.  A power cut in between finds what was saved before, and all files that it speaks of.
"""
import contextlib
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from geminga.storage.delayed.index import DelayedIndex, Released, Snapshot
from geminga.storage.disk.files import sync, write_anew
from geminga.storage.disk.syscalls import sync_all
from geminga.storage.errors import text_of
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.watcher import Watcher

_WORK_SECONDS = 0.002       # in each pass
_SAVE_MS = 10_000


class DelayedScheduler(Watcher):
    """Those of the partitions of one owner."""

    def __init__(self, owner: OwnerContext):
        self._owner = owner
        self._all: dict[Partition, DelayedIndex] = {}
        self._busy: dict[Partition, DelayedIndex] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._saving: tuple[Future, list[Snapshot]] | None = None
        self._to_save: dict[Partition, DelayedIndex] = {}
        self._save_ms = 0

    @property
    def is_busy(self) -> bool:
        """Whether there is something to be done at once."""
        return bool(self._busy or self._to_save)

    def watch(self, partition: Partition) -> None:
        """Its policies are new, or it was opened; it may have a schedule."""
        if partition.schedule is not None:
            self._all[partition] = partition.schedule
            partition.schedule.is_strict = self._owner.options.delayed_delivery_strict
            self.look(partition)

    def look(self, partition: Partition) -> None:
        """There may be work for it."""
        if partition.schedule.is_busy:
            self._busy[partition] = partition.schedule

    def release(self, partition: Partition) -> None:
        """Somebody else may open it, or nobody: what there is to save is saved."""
        self._busy.pop(partition, None)
        self._to_save.pop(partition, None)
        if (schedule := self._all.pop(partition, None)) is not None:
            self._wait()
            self._save_now([schedule])

    def advance(self, partition: Partition, now_ms: int) -> bool:
        """What is due of it by now waits no more, and who passed it gives it out; whether there was anything."""
        partition.now_ms, schedule = now_ms, partition.schedule
        if schedule.next_ms() > now_ms:
            return False
        _tell(partition, schedule.advance(now_ms))
        self._owner.changed[partition] = None
        return True

    def complete(self, partition: Partition, now_ms: int) -> None:
        """Of all its entries it is known whether they wait.  Raises OSError."""
        while not partition.schedule.is_complete:
            self._work_for(partition, now_ms, time.perf_counter() + _WORK_SECONDS)

    def _work_for(self, partition: Partition, now_ms: int, until: float) -> None:
        _tell(partition, partition.schedule.work(now_ms, until))
        self._owner.wake(partition)

    def work(self, now_ms: int) -> None:
        """Do what there is, for a short time."""
        until = time.perf_counter() + _WORK_SECONDS
        for partition, schedule in list(self._busy.items()):
            try:
                self._work_for(partition, now_ms, until)
            except OSError as error:                  # rows stay in memory; tried again with the next tick
                self._owner.complain(f"{text_of(error)}; the schedule of {partition.name} is kept in memory until there is room",
                                     code="G103", topic=str(partition.name))
                del self._busy[partition]
                self._to_save.pop(partition, None)
                continue
            if not schedule.is_busy:
                del self._busy[partition]
            if time.perf_counter() >= until:
                break
        if self._to_save and all(schedule.is_between for schedule in self._to_save.values()):
            self._save()

    def tick(self, now_ms: int) -> None:
        for partition in self._all:
            if self.advance(partition, now_ms) and partition.attached:
                self._owner.wake(partition)
            self.look(partition)
        if self._saving is not None and self._saving[0].done():
            self._collect()
        if self._saving is None and now_ms >= self._save_ms:
            self._prepare(now_ms)

    def close(self) -> None:
        """All is saved."""
        self._wait()
        self._save_now([schedule for schedule in self._all.values() if schedule.is_dirty])
        if self._thread is not None:
            self._thread.shutdown()

    # -- saving

    def _prepare(self, now_ms: int) -> None:
        """Those that have changed are to be saved, when what they have is in files."""
        self._save_ms = now_ms + _SAVE_MS
        self._to_save = {partition: schedule for partition, schedule in self._all.items() if schedule.is_dirty}
        for partition, schedule in self._to_save.items():
            schedule.begin_flush(now_ms)
            self.look(partition)

    def _save(self) -> None:
        """Begin to save them, as none of them has a flush under way."""
        snapshots = [schedule.snapshot() for schedule in self._to_save.values()]
        self._to_save = {}
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "schedules")
        self._saving = self._thread.submit(_write, self._owner.data_dir, snapshots), snapshots

    def _collect(self) -> None:
        (future, snapshots), self._saving = self._saving, None
        try:
            future.result()
        except OSError as error:
            self._owner.complain(f"{text_of(error)}; schedules are not saved", code="G103")
            for snapshot in snapshots:
                snapshot.schedule.is_dirty = True
        else:
            for snapshot in snapshots:
                snapshot.schedule.saved(snapshot)

    def _wait(self) -> None:
        if self._saving is not None:
            with contextlib.suppress(OSError):
                self._saving[0].result()
            self._collect()

    def _save_now(self, schedules: list[DelayedIndex]) -> None:
        if not schedules:
            return
        try:
            for schedule in schedules:
                schedule.flush(self._owner.now_ms)
            snapshots = [schedule.snapshot() for schedule in schedules]
            _write(self._owner.data_dir, snapshots)
        except OSError as error:                      # a start makes it anew from what was saved before
            self._owner.complain(f"{text_of(error)}; schedules are not saved", code="G103")
        else:
            for snapshot in snapshots:
                snapshot.schedule.saved(snapshot)


def _tell(partition: Partition, released: Released) -> None:
    """Who has passed these gives them out."""
    for subscription in partition.attached if released else ():
        subscription.dispatcher.fell_due(released)


def _write(data_dir: Path, snapshots: list[Snapshot]) -> None:
    """All of them are on disk, and what they speak of was before.  Raises OSError."""
    sync_all(data_dir)
    for snapshot in snapshots:
        folder = snapshot.path.parent
        with contextlib.suppress(FileNotFoundError):      # the partition was deleted
            folder.parent.stat()
            folder.mkdir(exist_ok=True)
            write_anew(snapshot.path, snapshot.data)
            for named in (folder, folder.parent):
                sync(named, os.fsync)
