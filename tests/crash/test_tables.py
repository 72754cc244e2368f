"""Exports are killed: no message is in a table twice, none is lost; and the check sees where one would be."""
import shutil

import pytest

from .tables import Kills


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.nightly)])
def test_tables_have_each_message_once_when_exports_are_killed(tmp_path, seed, count):
    kills = Kills(tmp_path, seed)
    kills.publish()
    kills.finish()
    for _ in range(count):
        kills.kill_one()
    kills.finish()


def test_a_message_that_is_in_a_table_twice_is_a_fault(tmp_path):
    kills = Kills(tmp_path, 1)
    kills.publish()
    kills.finish()
    path = next(iter(kills.lake.target.rglob("day=*/*.parquet")))
    shutil.copy(path, path.with_name("again.parquet"))
    with pytest.raises(AssertionError):
        kills.finish()
