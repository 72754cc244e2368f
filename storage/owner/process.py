"""The owner's process: a loop of passes.  Wait, take in a bounded number of envelopes, decide, sync, answer.

If an owner cannot start because of its disk, the process retries every second, and logs each reason once.
"""
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from geminga.proto import envelope
from geminga.storage.catalogue.catalogue import CatalogueError, open_catalogue
from geminga.storage.disk.syscalls import give_back_memory
from geminga.storage.errors import NotDurable, StorageFull, is_of_disk, text_of
from geminga.storage.ledgers.journal import open_journal
from geminga.storage.ledgers.journal_reader import Told
from geminga.storage.options import StorageOptions
from geminga.storage.owner.owner import Owner
from geminga.storage.owner.owner_pass import TICK_MS, Pass
from geminga.storage.owner.recovery import journal_folder, recover_owner
from geminga.storage.runtime import zmq_frames
from geminga.storage.runtime.control import Control, unpacked
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.lease import Lease
from geminga.storage.runtime.log import log
from geminga.storage.runtime.routing import owner_of, socket_path, worker_identity
from geminga.storage.transactions.peers import Links

_AGAIN_SECONDS = 1          # between attempts to begin
_TELL_SECONDS = 0.25        # between reports of a recovery's progress, and between answers to pings
_ENVELOPES_MAX = 256        # most envelopes of one pass; pass_bytes_max bounds their bytes
# Between the last write of an owner that stops and the time at which it would be killed: a sync of the file system that
# is under way ends in it, and files that were not put in place are removed.
_SPARE_SECONDS = 1.0
_CLOSE_SECONDS = 2.5        # to write files where nobody has said how long that may take
_RECEIVE_SECONDS = 0.1      # a pass receives no further envelope after this time, so that answers do not wait long


class FolderGone(Exception):
    """Exception for a data folder that was removed, so that no owner can start on it."""


def run(index: int, owners: int, serial: int, run_dir: Path, data_dir: Path, options: StorageOptions, control: Control,
        counters: Counters, lease: Lease, *, has_moved: bool) -> None:
    """Run owner `index` of `owners` until told to stop.  Raises CorruptFile, FolderGone, NotDurable.

    serial: number of this process, for its endpoint in run_dir.  lease: without it nothing is answered.  has_moved:
    whether the number of owners has changed.
    """
    said = ""
    while True:
        try:
            owner, entries = _begin(index, owners, data_dir, options, counters, has_moved, _teller(control, counters),
                                    _answerer(control))
            break
        except (StorageFull, NotDurable, CatalogueError, OSError) as error:
            text = text_of(error) if isinstance(error, OSError) else str(error)
        if text != said:
            log.error(f"owner {index} cannot begin, and tries again: {text}", code="G102")
            control.send(failed=True)
            said = text
        counters.set("is_waiting", 1)
        if not control.has_kept:
            control.wait(_AGAIN_SECONDS)
        for message in control.receive():
            if "stop" in message:
                return
            if "options" in message:
                options, of_log = unpacked(message["options"])
                log.begin(of_log)
                control.send(configured="")
        if not control.is_open:
            return
    counters.set("is_waiting", 0)
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, 0)       # permits and credit bound what is sent
    router.setsockopt(zmq.RCVHWM, 0)
    router.setsockopt(zmq.LINGER, 1_000)
    router.bind(socket_path(run_dir, serial))
    give_back_memory()        # the recovery had whole records in memory
    counters.set("serving_pid", os.getpid())
    control.send(ready={"recovered": entries})
    links = Links(context, run_dir, serial)
    try:
        seconds = _loop(owner, router, links, control, lease)
    except OSError as error:
        if is_of_disk(error):
            raise NotDurable(text_of(error)) from error
        raise
    finally:
        links.close()
        router.close()
        context.term()
    owner.close(time.monotonic() + seconds)


def _begin(index: int, owners: int, data_dir: Path, options: StorageOptions, counters: Counters, has_moved: bool,
           told: Told, sign_of_life: Callable[[], None]) -> tuple[Owner, int]:
    """Recover from the journal, and return (a new owner, number of entries that the recovery wrote into ledgers).

    Raises the errors of `run`, OSError, StorageFull, CatalogueError.
    """
    if not (data_dir / "catalogue.sqlite").exists():
        raise FolderGone(f"{data_dir}: it was removed, or something else was mounted there")
    gc.disable()      # a recovery makes very many objects that stay, and collections would look at all of them in vain
    try:
        recovered = recover_owner(data_dir, index, owners, told, has_moved=has_moved)
    finally:
        gc.enable()
        gc.freeze()
    catalogue = open_catalogue(data_dir / "catalogue.sqlite")
    journal = open_journal(journal_folder(data_dir, index), segment_bytes=options.journal_segment_bytes,
                           segments_max=options.journal_segments_max, kept=recovered.kept, changed=recovered.recovery)
    for name in ("partitions_open", "producers", "consumers", "unacknowledged"):
        counters.set(name, 0)
    owner = Owner(data_dir, options, catalogue, journal, counters, _clock_ms(), recovered.recovery,
                  lambda partition: owner_of(partition, owners) == index, index=index, owners=owners,
                  has_moved=has_moved)
    owner.requests.sign_of_life = sign_of_life
    for text in recovered.damage:
        owner.reports.damage(text)
    return owner, recovered.entries


def _teller(control: Control, counters: Counters) -> Told:
    """Return a function that reports a recovery's progress and answers the supervisor's pings.

    A report goes to the supervisor as a message, and to the admin process by the counters. Calls within _TELL_SECONDS
    of a report do nothing.
    """
    due = 0.0

    def told(what: str, done: int, of: int) -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + _TELL_SECONDS
            counters.set("recovery_done", done)
            counters.set("recovery_of", of)
            control.send(recovering=[what, done, of])
            control.answer()

    return told


def _answerer(control: Control) -> Callable[[], None]:
    """Return a function that answers the supervisor's pings within a long pass.

    Calls in quick succession do nothing.
    """
    due = 0.0

    def answer() -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + _TELL_SECONDS
            control.answer()

    return answer


def _loop(owner: Owner, router: zmq_frames.Socket, links: Links, control: Control, lease: Lease) -> float:
    """Run passes until told to stop, or until new options need a new process; return the seconds left to write files.
    """
    passes, poller = owner.passes, zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(control.fileno(), zmq.POLLIN)
    now_ms = _clock_ms()
    while True:
        ready = dict(poller.poll(0 if control.has_kept else min(max(0, passes.due_ms() - now_ms), TICK_MS)))
        now_ms = _clock_ms()
        passes.begin(now_ms)
        is_told = control.fileno() in ready or control.has_kept or owner.coordinator.waits_for_owners
        messages = control.receive() if is_told else []
        _hear_of_owners(owner, links, messages)
        if router in ready:
            _receive(passes, router, owner.options.current.pass_bytes_max)
        for message in messages:
            if "worker_gone" in message:
                owner.worker_gone(message["worker_gone"])
            elif "options" in message:
                options, of_log = unpacked(message["options"])
                log.begin(of_log)
                if not owner.can_be_configured(options):
                    control.send(configured="again")
                    return _CLOSE_SECONDS
                owner.configure(options)
                control.send(configured="")
            elif "drain" in message:
                owner.drain()
                control.send(drained=True)
            elif "stop" in message:
                return float(message["stop"]) - _SPARE_SECONDS
        if not control.is_open:
            return _CLOSE_SECONDS
        answers = passes.end()
        lease.keep()
        for worker, frames in answers:
            zmq_frames.send(router, [worker_identity(worker), *frames])
        links.send(owner.peers.take_others())
        owner.counters.add("passes")


def _hear_of_owners(owner: Owner, links: Links, messages: list[dict[str, Any]]) -> None:
    """Connect to owners that serve now, and disconnect from those that have ended.

    This comes before the pass receives commands.  The supervisor tells owners of each other before it tells workers,
    and after partitions have moved an owner refuses commands until it knows that all others have recovered.  Released
    C++ and Python consumers that are refused do not come back.
    """
    for message in messages:
        if "owner" in message:
            links.connect(*message["owner"])
            owner.owner_is_up(message["owner"][0])
        elif "owner_gone" in message:
            links.disconnect(message["owner_gone"])


def _receive(passes: Pass, router: zmq_frames.Socket, bytes_max: int) -> None:
    """Hand arrived envelopes to the pass, at least one, until a bound on their number, bytes or time is reached."""
    size, until = 0, time.monotonic() + _RECEIVE_SECONDS
    for _ in range(_ENVELOPES_MAX):
        identity, *parts = zmq_frames.receive(router)
        passes.receive(int(identity.bytes[1:]), envelope.unseal(parts)[1])
        size += sum(map(len, parts))
        if size >= bytes_max or time.monotonic() >= until or not zmq_frames.has_come(router):
            return


def _clock_ms() -> int:
    """Return the wall-clock time in ms since 1970."""
    return time.time_ns() // 1_000_000
