"""Tasks of a compaction in Spark: each runs a part of a pass in a Python worker, and moves keys and slots as blocks."""
import bisect
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from geminga.storage.jobs.compacting import compaction, key_scan, view_writer
from geminga.storage.jobs.compacting.compaction import CannotCompact, Job
from geminga.storage.jobs.compacting.key_scan import KeyScan
from geminga.storage.jobs.compacting.view_writer import Written
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.ledgers.view_files import SLOT

_BUNDLE_MESSAGES = 500_000       # messages of the small stretches that one Spark task reads, and of its blocks
_BUCKET_MESSAGES = 100_000       # of a partition, for each of the buckets of its keys

Sum: TypeAlias = Any      # an accumulator of Spark
# A block of keys and places, for the part that is its key: (part, (number of the job, block)); job -1: only places.
_Block: TypeAlias = tuple[int, tuple[int, bytes]]
_Slots: TypeAlias = tuple[int, bytes]      # (number of a ledger, SLOTs in it)
Row: TypeAlias = tuple[int, Written]      # (number of the job, result for one ledger)


def begun(task: int) -> tuple[int, int]:
    """Load all that compactions need in a Python worker, of which pyarrow loads a part at first use.

    Returns (task, keys found), as a pair that executors can exchange.
    """
    return task, len(key_scan.newest_of(pa.table({"key": ["k"], "place": [0]}))["place"].to_numpy())


def bundled(stretches: list[tuple[int, Stretch, int]]) -> list[list[tuple[int, Stretch]]]:
    """Group small stretches into bundles, of which each is one Spark task."""
    bundles: list[list[tuple[int, Stretch]]] = []
    size = _BUNDLE_MESSAGES
    for number, stretch, messages in stretches:
        if size + messages > _BUNDLE_MESSAGES:
            bundles.append([])
            size = 0
        bundles[-1].append((number, stretch))
        size += messages
    return bundles


def looker(jobs: list[Job], bundles: list[list[tuple[int, Stretch]]], parts: int, looked: Sum,
            notes: Sum, sizes: Sum) -> Callable[[int], Iterator[_Block]]:
    """Return the function that runs the first pass of a compaction for one bundle."""
    def look(bundle: int) -> Iterator[_Block]:
        for number, stretches in groupby(bundles[bundle], itemgetter(0)):
            scans: list[KeyScan] = []
            try:
                for _, stretch in stretches:
                    for scan in key_scan.scan_keys(jobs[number], stretch):
                        looked.add(scan.messages)
                        notes.add([(number, False, text) for text in scan.damage])
                        sizes.add([(number, scan.size)])
                        scans.append(scan)
                        if sum(scan.keyed.num_rows for scan in scans) >= _BUNDLE_MESSAGES:
                            yield from _blocks(number, jobs[number], scans, parts)
                            scans = []
                yield from _blocks(number, jobs[number], scans, parts)
            except CannotCompact as error:
                notes.add([(number, True, str(error))])
    return look


def _blocks(number: int, job: Job, scans: list[KeyScan], parts: int) -> Iterator[_Block]:
    """Yield the keys and places of a job's scans as blocks."""
    if alone := b"".join(scan.alone.tobytes() for scan in scans):
        yield number % parts, (-1, alone)
    if scans:
        keyed = pa.concat_tables([pa.Table.from_batches([scan.keyed]) for scan in scans])
        buckets = min(parts, 1 + job.messages // _BUCKET_MESSAGES)
        for bucket, block in key_scan.blocks(keyed, buckets):
            yield (number + bucket) % parts, (number, block)


def finder(seeds: list[bytes]) -> Callable[[Iterator[_Block]], Iterator[_Slots]]:
    """Return the function that finds the newest message of each key in the blocks of a part.

    seeds: of the jobs' hashes.
    """
    def find(blocks: Iterator[_Block]) -> Iterator[_Slots]:
        by_job: dict[int, list[bytes]] = {}
        for _, (number, block) in blocks:
            by_job.setdefault(number, []).append(block)
        while by_job:
            number, some = by_job.popitem()
            slots = key_scan.newest(some, seeds[number]) if number >= 0 \
                else key_scan.keyless_slots(np.frombuffer(b"".join(some), np.int64))
            for ledger, of_ledger in key_scan.by_ledger(slots):
                yield ledger, of_ledger.tobytes()
    return find


def among(lasts: list[int]) -> Callable[[_Slots], list[int]]:
    """Return the function that finds those newest places which are of the last chunks of messages."""
    def find(slots: _Slots) -> list[int]:
        places = np.frombuffer(slots[1], SLOT)["place"]
        among: list[int] = places[np.isin(places >> compaction.MESSAGE_BIT << compaction.MESSAGE_BIT, lasts)].tolist()
        return among
    return find


def writer(jobs: list[Job], written: Sum, notes: Sum) -> Callable[[Iterator[_Slots]], Iterator[Row]]:
    """Return the function that runs the second pass of a compaction for some ledgers."""
    firsts = [job.first_ledger for job in jobs]

    def write(blocks: Iterator[_Slots]) -> Iterator[Row]:
        by_ledger: dict[int, list[bytes]] = {}
        for ledger, slots in blocks:
            by_ledger.setdefault(ledger, []).append(slots)
        while by_ledger:
            ledger, pieces = by_ledger.popitem()
            number = bisect.bisect_right(firsts, ledger) - 1
            job, result = jobs[number], Written(None)
            try:
                result = view_writer.write(job, ledger, np.frombuffer(b"".join(pieces), SLOT))
            except CannotCompact as error:
                notes.add([(number, True, str(error))])
            written.add(job.source(ledger).messages)
            yield number, result
    return write
