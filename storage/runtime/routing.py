"""Routing: which owner process has a partition, and the addresses of owners and workers."""
from functools import lru_cache
from pathlib import Path

import mmh3

from geminga.proto import names
from geminga.proto.names import REMEMBERED_MAX, split_partition

# The version of the rule by which `owner_of` places partitions. Journals are recovered by their partitions' owners, so
# the data folder says by which rule they were written.
#   Version 1: the hash of the partition's own name. Of two owners, one had both partitions of half the topics.
#   Version 2: the rank of owners for the topic, then the partition's number.
PLACEMENT = 2
_SEGMENT = f"{names.SEGMENT}://"


def socket_path(run_dir: Path, serial: int) -> str:
    """Return the ZeroMQ endpoint of the owner process with this serial number.

    Each process has a serial number of its own, so nothing connects to the endpoint of a process that has ended.
    """
    return f"ipc://{run_dir}/owner-{serial}.sock"


def owner_of(partition: str, owners: int) -> int:
    """Return the index, below `owners`, of the owner process that a partition belongs to.

    Rendezvous hashing of the topic's name ranks the owners, and its partitions or segments take them in turn. So every
    process computes the same answer without asking, no owner has two partitions of a topic more than another one, and
    of the topics without partitions few move when `owners` changes. A change of this rule has to change PLACEMENT.
    """
    return _remembered(partition, owners) if len(partition) <= REMEMBERED_MAX else _owner_of(partition, owners)


def _owner_of(partition: str, owners: int) -> int:
    topic, number = split_partition(partition)
    if partition.startswith(_SEGMENT):
        segment = names.parse(partition)
        topic, number = str(segment.base), segment.segment[0]
    ranked = sorted(range(owners), key=lambda owner: mmh3.hash(topic, owner, signed=False), reverse=True)
    return ranked[max(number, 0) % owners]


_remembered = lru_cache(maxsize=65_536)(_owner_of)


def worker_identity(serial: int) -> bytes:
    """Return the ZeroMQ identity of the worker with this serial number."""
    return b"w%d" % serial
