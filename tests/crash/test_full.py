"""A disk that is full to the last byte costs nothing but publishing, for as long as it lasts: full.py."""
import pytest

from . import full


@pytest.mark.parametrize("kind", ["ext4", pytest.param("tmpfs", marks=pytest.mark.nightly)])
def test_a_full_disk_stops_publishing_alone_and_only_while_it_is_full(tmp_path, kind):
    if reason := full.why_not(kind):
        pytest.skip(reason)
    figures = full.run(tmp_path, kind)
    assert not figures.faults, figures.table()
    assert figures.published > 0
