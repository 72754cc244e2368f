"""The owner's process: a loop around `Owner`.  Wait, drain a bounded batch, decide, sync, answer."""
import time
from functools import lru_cache
from pathlib import Path

import mmh3
import zmq

from geminga.proto import envelope
from geminga.storage.catalogue import open_catalogue
from geminga.storage.control import Control
from geminga.storage.counters import Counters
from geminga.storage.journal import open_journal
from geminga.storage.options import StorageOptions
from geminga.storage.owner import Owner
from geminga.storage.recovery import journal_folder, recover_owner

_ENVELOPES_MAX = 256        # taken in by one pass; its bytes are bounded by pass_bytes_max


def socket_path(run_dir: Path, serial: int) -> str:
    """Where the owner with that serial number listens: a new path for each process, so that nobody talks to a dead one."""
    return f"ipc://{run_dir}/owner-{serial}.sock"


@lru_cache(maxsize=65_536)
def owner_of(partition: str, owners: int) -> int:
    """Rendezvous hash: everybody knows the owner of a partition without asking, and few move when their number changes."""
    return max(range(owners), key=lambda owner: mmh3.hash(partition, owner, signed=False))


def worker_identity(serial: int) -> bytes:
    return b"w%d" % serial


def run(index: int, owners: int, serial: int, run_dir: Path, data_dir: Path, options: StorageOptions, control: Control,
        counters: Counters, *, has_moved: bool) -> None:
    """Be an owner until told to stop."""
    recovered = recover_owner(data_dir, index, owners, has_moved=has_moved)
    catalogue = open_catalogue(data_dir / "catalogue.sqlite")
    journal = open_journal(journal_folder(data_dir, index), segment_bytes=options.journal_segment_bytes,
                           segments_max=options.journal_segments_max, kept=recovered.kept, changed=recovered.recovery)
    counters.set("partitions_open", 0)
    counters.set("producers", 0)
    counters.set("consumers", 0)
    owner = Owner(data_dir, options, catalogue, journal, counters, _clock_ms(), recovered.recovery,
                  lambda partition: owner_of(partition, owners) == index)
    for text in recovered.damage:
        owner.report_damage(text)
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, 0)       # bounded by permits and by what workers may have unanswered
    router.setsockopt(zmq.RCVHWM, 0)
    router.setsockopt(zmq.LINGER, 1_000)
    router.bind(socket_path(run_dir, serial))
    control.send(ready={"recovered": recovered.entries})
    try:
        _loop(owner, router, control, options)
    finally:
        router.close()
        context.term()
    owner.close()


def _loop(owner: Owner, router: zmq.Socket, control: Control, options: StorageOptions) -> None:
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(control.fileno(), zmq.POLLIN)
    now_ms = _clock_ms()
    while True:
        ready = dict(poller.poll(max(0, owner.next_deadline_ms() - now_ms)))
        now_ms = _clock_ms()
        owner.begin_pass(now_ms)
        if router in ready:
            _receive(owner, router, options.pass_bytes_max)
        if control.fileno() in ready:
            for message in control.receive():
                if "worker_gone" in message:
                    owner.worker_gone(message["worker_gone"])
                elif "stop" in message:
                    return
            if not control.is_open:
                return
        for worker, frames in owner.end_pass():
            router.send_multipart([worker_identity(worker), *frames])
        owner.counters.add("passes")


def _receive(owner: Owner, router: zmq.Socket, bytes_max: int) -> None:
    """Hand what has come, something at least, to the owner, up to a bound."""
    size = 0
    for _ in range(_ENVELOPES_MAX):
        identity, parts = router.recv(zmq.NOBLOCK), [router.recv(copy=False)]
        while parts[-1].more:
            parts.append(router.recv(copy=False))
        owner.receive(int(identity[1:]), envelope.unseal(parts)[1])
        size += sum(map(len, parts))
        if size >= bytes_max or not router.getsockopt(zmq.EVENTS) & zmq.POLLIN:     # asking costs less than an exception
            return


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000
