"""Scalable topics in the catalogue: one row for each, its names, and deletions that may be cut short."""
import pytest

from geminga.proto import layout_changes, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.catalogue import checksums
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.catalogue.orphans import mend

TOPIC = names.parse("topic://acme/eu/x")


@pytest.fixture
def catalogue(tmp_path):
    found = open_catalogue(tmp_path / "catalogue.sqlite")
    found.namespaces.create("acme/eu")
    found.commit()
    yield found
    found.close()


def test_a_topic_is_one_row_with_its_layout(catalogue, tmp_path):
    assert catalogue.scalable_topics.create(TOPIC, 2, {"team": "a"})
    catalogue.commit()
    other = open_catalogue(tmp_path / "catalogue.sqlite")
    layout = other.scalable_topics.layout(TOPIC)
    assert (layout.epoch, layout.next_number, len(layout.segments)) == (0, 2, 2)
    assert other.scalable_topics.names("acme/eu") == [str(TOPIC)] and not other.scalable_topics.names("acme/e")
    assert other.properties.of(str(TOPIC)) == {"team": "a"}
    other.close()
    assert not catalogue.scalable_topics.create(TOPIC, 5)


def test_a_layout_changes_as_a_whole(catalogue):
    catalogue.scalable_topics.create(TOPIC, 1)
    change = layout_changes.split(TOPIC, catalogue.scalable_topics.layout(TOPIC), 0, 5)
    assert catalogue.scalable_topics.begin_change(TOPIC, change)
    before = catalogue.topics.version()
    assert catalogue.scalable_topics.layout(TOPIC).epoch == 0 and catalogue.scalable_topics.changing() == [TOPIC]
    assert catalogue.scalable_topics.change_of(TOPIC) == change
    assert catalogue.scalable_topics.end_change(TOPIC) == change.layout == catalogue.scalable_topics.layout(TOPIC)
    assert catalogue.topics.version() > before and not catalogue.scalable_topics.changing()
    assert catalogue.scalable_topics.last_change(TOPIC) == (change, True)


def test_a_topic_has_one_change_at_a_time(catalogue):
    catalogue.scalable_topics.create(TOPIC, 2)
    layout = catalogue.scalable_topics.layout(TOPIC)
    first, second = (layout_changes.split(TOPIC, layout, number, 5) for number in (0, 1))
    assert catalogue.scalable_topics.begin_change(TOPIC, first)
    assert not catalogue.scalable_topics.begin_change(TOPIC, second)
    catalogue.scalable_topics.end_change(TOPIC)
    assert not catalogue.scalable_topics.begin_change(TOPIC, second)      # of the layout before


def test_the_checksum_of_the_table_is_right_behind_a_second_change(catalogue):
    catalogue.scalable_topics.create(TOPIC, 1)
    for number in (0, 1):
        layout = catalogue.scalable_topics.layout(TOPIC)
        assert catalogue.scalable_topics.begin_change(TOPIC, layout_changes.split(TOPIC, layout, number, 5))
        catalogue.scalable_topics.end_change(TOPIC)
        assert catalogue.value("SELECT value FROM sums WHERE name = 'layout_changes'") == checksums.sum_of(
            catalogue.connection, "layout_changes")


def test_the_change_of_a_deleted_topic_is_not_finished(catalogue):
    catalogue.scalable_topics.create(TOPIC, 1)
    layout = catalogue.scalable_topics.layout(TOPIC)
    catalogue.scalable_topics.begin_change(TOPIC, layout_changes.split(TOPIC, layout, 0, 5))
    catalogue.scalable_topics.begin_deletion(TOPIC)
    with pytest.raises(Refusal):
        catalogue.scalable_topics.end_change(TOPIC)
    catalogue.scalable_topics.end_deletion(TOPIC)
    catalogue.scalable_topics.create(TOPIC, 1)
    assert catalogue.scalable_topics.change_of(TOPIC) is None


def test_a_segment_exists_by_its_whole_name(catalogue):
    catalogue.scalable_topics.create(TOPIC, 2)
    assert catalogue.topics.parts(TOPIC) == [TOPIC.segment_name(0, 0, 0x7fff), TOPIC.segment_name(1, 0x8000, 0xffff)]
    assert all(map(catalogue.topics.exists, catalogue.topics.parts(TOPIC)))
    for made_up in (TOPIC.segment_name(0, 0, 0xffff), TOPIC.segment_name(2, 0, 0x7fff),
                    names.parse("segment://acme/eu/y/0000-ffff-0")):
        assert not catalogue.topics.exists(made_up)


def test_a_scalable_topic_hides_a_regular_one_of_its_name(catalogue):
    """Clients of Pulsar 5 find a topic by its name without the domain, so one of the two is hidden."""
    live = names.parse("non-persistent://acme/eu/x")
    assert not catalogue.topics.is_shadowed(TOPIC.regular) and not catalogue.scalable_topics.are_any()
    catalogue.topics.create(TOPIC.regular, 0)
    assert catalogue.scalable_topics.create(TOPIC, 1) and catalogue.scalable_topics.are_any()
    hidden = [TOPIC.regular, TOPIC.regular.partition_name(0)]
    assert all(map(catalogue.topics.is_shadowed, hidden))
    assert not any(map(catalogue.topics.is_shadowed, (live, TOPIC, *catalogue.topics.parts(TOPIC))))


def test_a_missing_namespace_is_refused(catalogue):
    with pytest.raises(Refusal) as refused:
        catalogue.scalable_topics.create(names.parse("topic://acme/us/x"), 1)
    assert refused.value.code == api.TopicNotFound and not catalogue.is_changing


def test_a_deletion_takes_the_topic_at_once_and_its_segments_later(catalogue):
    catalogue.scalable_topics.create(TOPIC, 2, {"a": "b"})
    catalogue.policies.set(str(TOPIC), "permissions", {"me": ["produce"]})
    first, _ = catalogue.topics.parts(TOPIC)
    partition_id = catalogue.partitions.create(first)
    catalogue.partitions.create(names.parse("segment://acme/eu/xy/0000-ffff-0"))      # of another topic
    catalogue.scalable_topics.begin_deletion(TOPIC)
    assert catalogue.scalable_topics.layout(TOPIC) is None and not catalogue.topics.exists(first)
    assert not catalogue.scalable_topics.names("acme/eu") and not catalogue.topics.base_names("acme/eu")
    assert not catalogue.policies.of(str(TOPIC)) and not catalogue.properties.of(str(TOPIC))
    assert catalogue.scalable_topics.being_deleted() == [TOPIC]
    assert catalogue.scalable_topics.stored_segments(TOPIC) == [first]
    with pytest.raises(Refusal) as refused:
        catalogue.scalable_topics.create(TOPIC, 1)
    assert refused.value.code == api.ServiceNotReady
    catalogue.partitions.delete(partition_id)
    catalogue.scalable_topics.end_deletion(TOPIC)
    assert not catalogue.scalable_topics.being_deleted() and catalogue.scalable_topics.create(TOPIC, 1)


def test_the_end_of_a_segment_leaves_its_topic_as_it_is(catalogue):
    catalogue.scalable_topics.create(TOPIC, 2)
    catalogue.policies.set(str(TOPIC), "maxProducers", 3)
    catalogue.schemas.add(TOPIC, 0, 1, b"hash", {}, b"data")
    partition_id = catalogue.partitions.create(catalogue.topics.parts(TOPIC)[0])
    catalogue.partitions.delete(partition_id)
    assert catalogue.scalable_topics.layout(TOPIC) and catalogue.policies.of(str(TOPIC))
    assert catalogue.schemas.versions(TOPIC)


def test_segments_are_no_orphans(catalogue):
    catalogue.scalable_topics.create(TOPIC, 1)
    catalogue.partitions.create(catalogue.topics.parts(TOPIC)[0])
    assert mend(catalogue) == []
    catalogue.scalable_topics.begin_deletion(TOPIC)
    assert mend(catalogue) == [] and catalogue.scalable_topics.being_deleted() == [TOPIC]


def test_a_namespace_with_a_scalable_topic_stays(catalogue):
    catalogue.scalable_topics.create(TOPIC, 1)
    assert not catalogue.namespaces.delete("acme/eu")
