"""Routing: which owner process has a partition, and the addresses of owners and workers."""
from functools import lru_cache
from pathlib import Path

import mmh3

from geminga.proto.names import REMEMBERED_MAX


def socket_path(run_dir: Path, serial: int) -> str:
    """Return the ZeroMQ endpoint of the owner process with this serial number.

    Each process has a serial number of its own, so nothing connects to the endpoint of a process that has ended.
    """
    return f"ipc://{run_dir}/owner-{serial}.sock"


def owner_of(partition: str, owners: int) -> int:
    """Return the index, below `owners`, of the owner process that a partition belongs to.

    Rendezvous hashing: every process computes the same answer without asking, and few partitions move when `owners`
    changes.
    """
    return _remembered(partition, owners) if len(partition) <= REMEMBERED_MAX else _owner_of(partition, owners)


def _owner_of(partition: str, owners: int) -> int:
    return max(range(owners), key=lambda owner: mmh3.hash(partition, owner, signed=False))


_remembered = lru_cache(maxsize=65_536)(_owner_of)


def worker_identity(serial: int) -> bytes:
    """Return the ZeroMQ identity of the worker with this serial number."""
    return b"w%d" % serial
