"""Owners are killed while backups are made: none that was made lacks anything, or changes later; and the check sees one
that does.
"""
import pytest

from geminga.storage.offline.backup import read_manifest

from .backups import Backups


def test_backups_have_what_was_answered_before_whoever_is_killed(tmp_path, seed):
    backups = Backups(tmp_path, seed)
    backups.make(2)
    backups.check()
    made, _ = backups.made[0]
    largest = max(read_manifest(made).items, key=lambda item: item.size)
    with open(made / largest.path, "r+b") as file:
        file.seek(largest.size // 2)
        byte = file.read(1)
        file.seek(largest.size // 2)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(AssertionError, match="damaged"):
        backups.put(made, "damaged")
