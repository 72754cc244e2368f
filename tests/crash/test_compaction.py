"""The nightly job is killed: what there was stays, and the next run goes on; and the check sees where it would not."""
import pytest

from geminga.storage import format

from .compaction import Kills


def test_views_stay_whole_when_the_job_is_killed(tmp_path, seed):
    kills = Kills(tmp_path, seed)
    kills.publish()
    kills.finish()
    for _ in range(4):
        kills.kill_one()
    kills.finish()


def test_a_view_that_lacks_something_is_a_fault(tmp_path):
    kills = Kills(tmp_path, 1)
    kills.publish()
    kills.finish()
    path = format.ledger_path(kills.topics[0].view().folder, kills.topics[0].view().ledgers[-1].ledger_id)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(AssertionError):
        kills.check()
