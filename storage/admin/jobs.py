"""Answers to jobs beside the broker: put compacted views in force, and take part in backups."""
from geminga.storage.admin.context import AdministeredOwner
from geminga.storage.admin.questions import (
    AdoptView,
    BackupCut,
    BeginBackup,
    CompactedView,
    CompactionDue,
    CutBackup,
    GetView,
)
from geminga.storage.commands.topic_lookup import stored
from geminga.storage.topics.partition import Partition
from geminga.storage.upkeep.compacted_views import news


def adopt_view(owner: AdministeredOwner, question: AdoptView) -> CompactedView:
    """Put a view in force that a job has made.  Raises Refusal if it does not fit what is there."""
    partition = stored(owner, question.topic)
    owner.views.adopt(partition, question.view)
    return _view_of(partition)


def view(owner: AdministeredOwner, question: GetView) -> CompactedView:
    """Return the compacted view in force."""
    return _view_of(stored(owner, question.topic))


def _view_of(partition: Partition) -> CompactedView:
    number, horizon, behind = partition.view_number, partition.horizon, news(partition)
    if partition.view is None:
        return CompactedView(number, horizon, entries=0, messages=0, bytes=0, news=behind, created_ms=0)
    manifest = partition.view.manifest
    return CompactedView(number, horizon, entries=manifest.entries, messages=manifest.messages, bytes=manifest.size,
                         news=behind, created_ms=manifest.created_ms, report=manifest.report)


def compaction_due(owner: AdministeredOwner, question: CompactionDue) -> list[tuple[int, str]]:
    """Return (id, topic) of open partitions that have passed their compaction threshold."""
    return owner.views.due()


def begin_backup(owner: AdministeredOwner, question: BeginBackup) -> None:
    """Give new ledgers and views a second name in the backup's folder from now on."""
    owner.snapshots.begin()


def cut_backup(owner: AdministeredOwner, question: CutBackup) -> BackupCut:
    """Write down the state of all partitions as of now."""
    return BackupCut(*owner.snapshots.cut())
