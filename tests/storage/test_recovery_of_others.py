"""A start with fewer owners than before recovers the journals of the former owners too."""
from contextlib import closing

from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.ledgers import journal
from geminga.storage.options import StorageOptions
from geminga.storage.owner import recovery
from geminga.storage.owner.owner import Owner
from geminga.storage.runtime.counters import make_counters

OPTIONS = StorageOptions(journal_segment_bytes=1 << 20, journal_segments_max=2)


def start_owner(data_dir, index, owners):
    """Start the owner number `index` of `owners` as its process does."""
    recovery.recover_owner(data_dir, index, owners, has_moved=True)
    folder = recovery.journal_folder(data_dir, index)
    written = journal.open_journal(
        folder, segment_bytes=OPTIONS.journal_segment_bytes, segments_max=OPTIONS.journal_segments_max
    )
    with closing(open_catalogue(data_dir / "catalogue.sqlite")) as catalogue:
        Owner(data_dir, OPTIONS, catalogue, written, make_counters(1)[0], 0)


def test_a_journal_without_an_owner_is_recovered_and_removed(tmp_path):
    """Each journal without an owner is recovered by exactly one owner, and removed afterwards."""
    for index in range(3):
        start_owner(tmp_path, index, 3)
    for index in range(2):
        start_owner(tmp_path, index, 2)
    assert sorted(path.name for path in (tmp_path / "journal").iterdir()) == ["0", "1"]


def test_what_another_owner_kept_is_applied(tmp_path, monkeypatch):
    """A journal without an owner is replayed during recovery, before any client is served."""
    applied = []
    for index in range(2):
        start_owner(tmp_path, index, 2)
    monkeypatch.setattr(
        recovery, "recover", lambda data_dir, folder, *_, **__: applied.append(folder.name) or recovery.Recovered()
    )
    recovery.recover_owner(tmp_path, 0, 1, has_moved=True)
    assert applied == ["0", "1"]
