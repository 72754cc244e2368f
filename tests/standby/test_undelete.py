"""Deleted topics and cleared backlogs that are kept are on the standby too, and can be taken back behind its promotion.
"""
import pytest

from geminga.supervisor.main import main

from ..harness import unique_topic
from ..supervisor.test_scalable_topics import Rest
from ..supervisor.test_undelete import clear, consumed, delete, fill, keep, kept, left, take_back

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_deleted_before", [False, True])
def test_a_promoted_standby_takes_it_back(run, is_deleted_before):
    """One topic is deleted, and the backlog of another cleared, before the standby has copied anything, or behind that.
    """
    broker, ends = run("first"), {unique_topic(): delete, unique_topic(): clear}
    keep(broker)
    rest = {topic: fill(broker, topic) for topic in ends}

    def end_all():
        for topic, end in ends.items():
            end(broker, topic)

    if is_deleted_before:
        end_all()
    standby = run("second", broker.service_url)
    standby.wait_complete()
    if not is_deleted_before:
        end_all()
        standby.wait_complete()
    promoted = standby.promote()
    assert promoted.returncode == 0, promoted.stderr
    for topic in ends:
        assert len(kept(standby, topic)) == 1
        assert take_back(standby, topic)[0] == 200
        assert left(standby, topic, len(rest[topic])) == rest[topic]


def test_a_promoted_standby_takes_back_the_cleared_backlog_of_a_scalable_topic(run, capsys):
    """A segment is split between the clear and the promotion."""
    broker = run("first")
    keep(broker)
    rest = Rest(broker)
    rest.set("PUT", "?numInitialSegments=2")
    rest.set("PUT", "/subscriptions/sub")
    standby = run("second", broker.service_url)
    standby.wait_complete()
    rest.publish(b"a", b"b")
    rest.set("POST", "/subscriptions/sub/skip-all")
    rest.set("POST", "/split/0")
    rest.publish(b"c", b"d", b"e")
    standby.wait_complete()
    assert standby.promote().returncode == 0
    rest.broker = standby
    assert main(["undelete", "backlog", rest.name, "sub", "--admin-url", standby.http_url]) == 0
    assert capsys.readouterr().out == "2 messages are there again for sub\n"
    assert consumed(standby, rest.name, capsys) == ["a", "b", "c", "d", "e"]
