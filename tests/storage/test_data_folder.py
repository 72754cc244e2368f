"""Data folders, as they are made and before they hold anything."""
import stat

import pytest

from geminga.storage.disk import data_folder


def test_a_folder_is_made_for_its_user_alone_and_may_be_there(tmp_path):
    place = tmp_path / "a" / "b"
    for _ in range(2):
        data_folder.make(place)
        assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_file_is_not_taken_for_a_folder(tmp_path):
    place = tmp_path / "file"
    place.write_bytes(b"mine")
    with pytest.raises(NotADirectoryError, match="file"):
        data_folder.make(place)
    assert place.read_bytes() == b"mine"
