"""Work of a night on partitions, one at a time: give back at once what would be given back bit by bit, and report how
much.

A partition that is not open is examined from outside, and opened only if there is work. It is closed afterwards,
unless a policy works on it.
"""
import contextlib
import shutil
import time
from pathlib import Path

import numpy as np

from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.cursors.cursor import EXPIRED
from geminga.storage.ledgers import compacted_ledgers, ledger_headers
from geminga.storage.topics.partition import Partition

_FOLDERS_MAX = 20      # of deleted partitions, removed at a time


def enforce(owner, topic: TopicName, arguments: dict) -> dict | None:
    """Apply retention and expiry, forget inactive producers, and remove unfinished views.

    Return the report of a partition, None if nothing changed.
    """
    if (stored := owner.catalogue.partitions.find(topic)) is None:
        return None
    began, folder, is_open = time.perf_counter(), format.partition_folder(owner.data_dir, stored[0]), topic in owner.by_name
    compacted_ledgers.remove_unused(folder, compacted_ledgers.numbers(folder))
    unused_ms = None if is_open else _unused_since(owner, folder)
    if not is_open and not _has_work(owner, topic, folder, unused_ms):
        return None
    found = owner.partition(topic)
    before = _measured(found)
    forgotten = 0 if is_open else _forget(owner, found, unused_ms)
    owner.expiry.look(found, owner.now_ms)
    if found.policies.retains:
        owner.retention.look(found, owner.now_ms)
    else:
        owner.wake_trimming(found)
    owner.trim()
    after = _measured(found)
    if not is_open and not found.policies.work_alone:
        owner.release(found)
    row = {"bytes_before": before[0], "bytes_after": after[0], "freed": before[0] - after[0], "messages_before": before[1],
           "messages_after": after[1], "expired": after[2] - before[2], "names_forgotten": forgotten}
    if not (row["freed"] or row["expired"] or forgotten):
        return None
    return {"topic": str(topic)} | row | {"seconds": round(time.perf_counter() - began, 6)}


def _has_work(owner, topic: TopicName, folder: Path, unused_ms: int) -> bool:
    return (policies_of(owner.catalogue, topic, owner.options).work_alone or len(ledger_headers.ledger_ids(folder)) > 1
            or (_is_long_ago(owner, unused_ms) and _has_producers(folder)))


def _measured(found: Partition) -> tuple[int, int, int]:
    """Return (bytes of entries, messages, messages expired from subscriptions)."""
    return (sum(one.size - format.HEADER_SIZE for one in found.ledgers), found.next_message - found.ledgers[0].first_message,
            sum(subscription.cursor.totals[EXPIRED] for subscription in found.subscriptions.values()))


# -- producers that deduplication knows

def _unused_since(owner, folder: Path) -> int:
    """Return since when a closed partition has not been used.

    Time without a broker does not count as unused.
    """
    with contextlib.suppress(FileNotFoundError):
        return max(owner.began_ms, int(format.state_path(folder).stat().st_mtime * 1000))
    return owner.now_ms


def _is_long_ago(owner, unused_ms: int) -> bool:
    return owner.now_ms - unused_ms >= owner.options.deduplication_inactivity_s * 1000


def _has_producers(folder: Path) -> bool:
    with open(format.state_path(folder), "rb") as file:
        head = file.read(format.HEADER_SIZE)
    return len(head) == format.HEADER_SIZE and bool(np.frombuffer(head, format.STATE_HEADER)["sequences"][0])


def _forget(owner, found: Partition, unused_ms: int) -> int:
    """Forget producers that were inactive for too long.  Return how many."""
    before = len(found.sequences)
    found.sequences.begin(unused_ms)
    found.sequences.forget(owner.now_ms, owner.options.deduplication_inactivity_s * 1000, owner.options.deduplication_names_max, ())
    if len(found.sequences) < before:
        owner.journal.mark_dirty(found)
    return before - len(found.sequences)


# -- partitions that were deleted

def leftovers(owner, topic: None, arguments: dict) -> dict:
    """Remove some folders of partitions that the catalogue does not have, left by a deletion that a crash interrupted.

    A partition that is being created has a higher id than all that the catalogue had before, so its folder is not
    touched.
    """
    newest, known = owner.catalogue.partitions.newest_id(), {partition_id for partition_id, _ in owner.catalogue.partitions.all()}
    numbered = sorted(int(path.name) for path in (owner.data_dir / "partitions").glob("*") if path.name.isdigit())
    gone = [partition_id for partition_id in numbered if partition_id <= newest and partition_id not in known]
    freed = 0
    for partition_id in gone[:_FOLDERS_MAX]:
        folder = format.partition_folder(owner.data_dir, partition_id)
        freed += sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
        shutil.rmtree(folder)
    return {"folders": len(gone[:_FOLDERS_MAX]), "freed": freed, "left": len(gone[_FOLDERS_MAX:])}


QUESTIONS = {"enforce": enforce, "leftovers": leftovers}
