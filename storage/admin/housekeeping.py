"""Requests of nights and jobs: space that is given back, compacted views to put in force, parts of backups.

A night enforces retention, expiry and trimming on one partition at a time, instead of bit by bit. A partition that is
not open is examined from outside, and opened only if there is work. It is closed afterwards, unless a policy works on
it.
"""
import contextlib
import shutil
import time
from pathlib import Path

import numpy as np

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.admin import questions
from geminga.storage.admin.figures import Reclaimed
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.commands.topic_lookup import stored
from geminga.storage.cursors.cursor import EXPIRED
from geminga.storage.enforcement.message_ttl import MessageTtl
from geminga.storage.enforcement.retention import Retention
from geminga.storage.ledgers import compacted_ledgers, ledger_headers
from geminga.storage.ledgers.checkpoints import collect_checkpoint, write_checkpoint
from geminga.storage.open_topics import compacted_views
from geminga.storage.open_topics.backup_snapshot import BackupSnapshots
from geminga.storage.open_topics.compacted_views import CompactedViews
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.durability import Durability
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.topics import exported
from geminga.storage.topics.exported import Exported
from geminga.storage.topics.partition import Partition
from geminga.storage.transactions.coordinator import Coordinator
from geminga.storage.upkeep.trimming import Trimming

_FOLDERS_MAX = 20      # of deleted partitions, removed at a time


def enforce(decisions: Decisions, topics: TopicTable, expiry: MessageTtl, retention: Retention, trimming: Trimming,
            question: questions.Enforce) -> Reclaimed | None:
    """Apply retention and expiry to a partition, forget its inactive producers, and remove unfinished views.

    Returns None if the partition does not exist or was not changed.
    """
    topic = question.topic
    if (stored := topics.catalogue.partitions.find(topic)) is None:
        return None
    began, is_open = time.perf_counter(), topic in topics.by_name
    folder = format.partition_folder(topics.data_dir, stored[0])
    compacted_ledgers.remove_unused(folder, compacted_ledgers.numbers(folder))
    unused_ms = None if is_open else _unused_since(decisions, topics, folder)
    if unused_ms is not None and not _has_work(decisions, topics.catalogue, topics.options, topic, folder, unused_ms):
        return None
    partition = topics.find(topic)
    assert partition is not None, topic      # the catalogue has it
    before = _measured(partition)
    forgotten = 0 if unused_ms is None else _forget(decisions, topics.options, partition, unused_ms)
    expiry.look(partition, decisions.now_ms)
    if partition.policies.retains:
        retention.look(partition, decisions.now_ms)
    else:
        decisions.wake_trimming(partition)
    trimming.trim()
    after = _measured(partition)
    if not is_open and not partition.policies.work_alone:
        topics.unload(partition)
    freed, expired = before[0] - after[0], after[2] - before[2]
    if not (freed or expired or forgotten):
        return None
    return Reclaimed(
        str(topic), bytes_before=before[0], bytes_after=after[0], freed=freed, messages_before=before[1],
        messages_after=after[1], expired=expired, names_forgotten=forgotten,
        seconds=round(time.perf_counter() - began, 6))


def _has_work(decisions: Decisions, catalogue: Catalogue, options: OptionsInForce, topic: TopicName, folder: Path,
              unused_ms: int) -> bool:
    """Whether the nightly work has to open a closed partition."""
    return (policies_of(catalogue, topic, options.current).work_alone or len(ledger_headers.ledger_ids(folder)) > 1
            or (_is_long_ago(decisions, options, unused_ms) and _has_producers(folder)))


def _measured(partition: Partition) -> tuple[int, int, int]:
    """Return a partition's (bytes of entries, messages, messages expired from subscriptions)."""
    return (sum(ledger.size - format.HEADER_SIZE for ledger in partition.ledgers),
            partition.next_message - partition.ledgers[0].first_message,
            sum(subscription.cursor.totals[EXPIRED] for subscription in partition.subscriptions.values()))


# -- producers that deduplication knows

def _unused_since(decisions: Decisions, topics: TopicTable, folder: Path) -> int:
    """Return the time in ms since which a closed partition has not been used.

    Time without a broker does not count as unused.
    """
    with contextlib.suppress(FileNotFoundError):
        return max(topics.since_ms, int(format.state_path(folder).stat().st_mtime * 1000))
    return decisions.now_ms


def _is_long_ago(decisions: Decisions, options: OptionsInForce, unused_ms: int) -> bool:
    return decisions.now_ms - unused_ms >= options.current.deduplication_inactivity_s * 1000


def _has_producers(folder: Path) -> bool:
    """Whether the partition's state file has sequence ids of producers."""
    with open(format.state_path(folder), "rb") as file:
        head = file.read(format.HEADER_SIZE)
    return len(head) == format.HEADER_SIZE and bool(np.frombuffer(head, format.STATE_HEADER)["sequences"][0])


def _forget(decisions: Decisions, options: OptionsInForce, partition: Partition, unused_ms: int) -> int:
    """Forget a partition's producers that were inactive for too long.  Returns how many."""
    bounds, before = options.current, len(partition.sequences)
    partition.sequences.begin(unused_ms)
    partition.sequences.forget(
        decisions.now_ms, bounds.deduplication_inactivity_s * 1000, bounds.deduplication_names_max, ())
    if len(partition.sequences) < before:
        decisions.journal.mark_dirty(partition)
    return before - len(partition.sequences)


# -- partitions that were deleted

def leftovers(topics: TopicTable, question: questions.RemoveLeftovers) -> questions.Leftovers:
    """Remove some folders of deleted partitions, left by a deletion that a crash interrupted.

    Such a folder has an id that the catalogue does not have. A partition that is being created has a higher id than all
    in the catalogue, so its folder is not touched.
    """
    newest = topics.catalogue.partitions.newest_id()
    known = topics.catalogue.partitions.ids()
    numbered = sorted(int(path.name) for path in (topics.data_dir / "partitions").glob("*") if path.name.isdigit())
    deleted = [partition_id for partition_id in numbered if partition_id <= newest and partition_id not in known]
    freed = 0
    for partition_id in deleted[:_FOLDERS_MAX]:
        folder = format.partition_folder(topics.data_dir, partition_id)
        freed += sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
        shutil.rmtree(folder)
    return questions.Leftovers(folders=len(deleted[:_FOLDERS_MAX]), freed=freed, left=len(deleted[_FOLDERS_MAX:]))


# -- jobs beside the broker

def adopt_view(topics: TopicTable, views: CompactedViews, question: questions.AdoptView) -> None:
    views.adopt(stored(topics, question.topic), question.view)


def settle(topics: TopicTable, durability: Durability, question: questions.Settle) -> None:
    """Write a partition's state file, with the position up to which no transaction is open.

    A partition that has not been opened since the start may not have written it.  Raises NotDurable, OSError.
    """
    partition = topics.find(question.topic)
    if partition is not None:
        partition.with_transactions()
        durability.commit_and_sync()
        write_checkpoint(*collect_checkpoint({partition}))


def note_exported(decisions: Decisions, topics: TopicTable, question: questions.NoteExported) -> None:
    """Write down how far a partition is exported, and have trimming look at it.

    A position up to which it was exported before changes nothing.  Raises Refusal for a position that is not the
    partition's, OSError.
    """
    partition, position = stored(topics, question.topic), question.position
    if partition.partition_id != question.partition_id:
        raise Refusal(api.MetadataError, f"{question.topic} has been deleted and created again meanwhile")
    if position > partition.last_confirmed:
        raise Refusal(api.MetadataError, f"{question.topic} ends at {partition.last_confirmed}, before {position}")
    if partition.limit is not None and position >= partition.limit:
        raise Refusal(api.MetadataError, f"{question.topic} has a transaction open from {partition.limit} on, which is "
                                         f"not behind {position}")
    if position <= partition.exported_up_to:
        return
    made = Exported(position, decisions.now_ms)
    exported.write(partition.folder, made)
    partition.exported = made
    decisions.wake_trimming(partition)
    decisions.acknowledged[partition] = None      # holes may be punched up to the position
    decisions.changed[partition] = None


def compaction_due(topics: TopicTable, question: questions.CompactionDue) -> list[tuple[int, str]]:
    return compacted_views.due(topics.by_name.values())


def begin_backup(snapshots: BackupSnapshots, question: questions.BeginBackup) -> None:
    snapshots.begin()


def hold_commits(decisions: Decisions, coordinator: Coordinator, question: questions.HoldCommits) -> None:
    """Let commits of transactions wait, so that none falls between the cuts of two owners, or decide them again."""
    if question.is_over:
        coordinator.release_commits()
    else:
        coordinator.held.begin(decisions.now_ms)


def cut_backup(topics: TopicTable, snapshots: BackupSnapshots, coordinator: Coordinator,
               question: questions.CutBackup) -> questions.BackupCut:
    return questions.BackupCut(*snapshots.cut(
        topics.by_name.values(), coordinator.backed_up, topics.catalogue.kept_topics.backlog_rows))
