"""Deleted topics and cleared backlogs that are kept are on the standby too, and can be taken back behind its promotion.
"""
import pytest

from ..harness import unique_topic
from ..supervisor.test_undelete import clear, delete, fill, keep, kept, left, take_back

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("end", [delete, clear])
@pytest.mark.parametrize("is_deleted_before", [False, True])
def test_a_promoted_standby_takes_it_back(run, is_deleted_before, end):
    """The topic is deleted, or the backlog cleared, before the standby has copied anything, or behind that."""
    broker, topic = run("first"), unique_topic()
    keep(broker)
    rest = fill(broker, topic)
    if is_deleted_before:
        end(broker, topic)
    standby = run("second", broker.service_url)
    standby.wait_complete()
    if not is_deleted_before:
        end(broker, topic)
        standby.wait_complete()
    promoted = standby.promote()
    assert promoted.returncode == 0, promoted.stderr
    assert len(kept(standby, topic)) == 1
    assert take_back(standby, topic)[0] == 200
    assert left(standby, topic, len(rest)) == rest
