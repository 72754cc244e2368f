"""Answers to jobs beside the broker: put compacted views in force, and take part in backups."""
from geminga.storage.admin.context import AdministeredOwner
from geminga.storage.admin.questions import (
    AdoptView,
    BackupCut,
    BeginBackup,
    CompactionDue,
    CutBackup,
)
from geminga.storage.commands.topic_lookup import stored


def adopt_view(owner: AdministeredOwner, question: AdoptView) -> None:
    """Put a compacted view that a job has made into force.  Raises Refusal if it does not fit the partition."""
    owner.views.adopt(stored(owner, question.topic), question.view)


def compaction_due(owner: AdministeredOwner, question: CompactionDue) -> list[tuple[int, str]]:
    """Return (id, topic) of open partitions that have passed their compaction threshold."""
    return owner.views.due()


def begin_backup(owner: AdministeredOwner, question: BeginBackup) -> None:
    """Begin to hard-link the files of new ledgers and views into the backup's folder."""
    owner.snapshots.begin()


def cut_backup(owner: AdministeredOwner, question: CutBackup) -> BackupCut:
    """Write the state of all partitions as of now into a file of the backup's folder."""
    return BackupCut(*owner.snapshots.cut())
