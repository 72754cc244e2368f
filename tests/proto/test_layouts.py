"""Layouts of topics: their values, and the forms in which clients get them and the catalogue keeps them."""
import json

import pytest

from geminga.proto import layouts
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import parse

TOPIC = parse("topic://acme/eu/x")


@pytest.mark.parametrize("count, bounds", [
    (1, [(0, 0xffff)]), (2, [(0, 0x7fff), (0x8000, 0xffff)]),
    (3, [(0, 0x5554), (0x5555, 0xaaa9), (0xaaaa, 0xffff)])])
def test_segments_divide_all_hashes_evenly_and_the_last_has_the_remainder(count, bounds):
    layout = layouts.of_segments(TOPIC, count, 7)
    assert [(one.first, one.last) for one in layout.segments] == bounds
    assert [one.topic for one in layout.segments] == [
        f"segment://acme/eu/x/{first:04x}-{last:04x}-{number}" for number, (first, last) in enumerate(bounds)]
    assert (layout.epoch, layout.next_number, layout.active) == (0, count, list(layout.segments))


def test_partitions_are_segments_under_their_own_names():
    topic = parse("acme/eu/x")
    assert [one.topic for one in layouts.of_partitions(topic, 2).segments] == [
        str(topic.partition_name(0)), str(topic.partition_name(1))]
    [one] = layouts.of_partitions(topic, 0).segments
    assert (one.topic, one.first, one.last, one.is_legacy) == (str(topic), 0, 0xffff, True)


def split():
    """Return a layout whose first segment has been split, of a topic that was migrated."""
    parent = layouts.Segment(0, 0, 0xffff, "persistent://acme/eu/x", 5, 0, 9, 1, (), (1, 2), (), is_legacy=True)
    return layouts.Layout(1, (
        parent,
        layouts.Segment(1, 0, 0x7fff, str(TOPIC.segment_name(1, 0, 0x7fff)), 9, 1, None, 0, (0,), (), (0x4000,)),
        layouts.Segment(2, 0x8000, 0xffff, str(TOPIC.segment_name(2, 0x8000, 0xffff)), 9, 1, None, 0, (0,))), 3)


def test_the_catalogue_keeps_all_of_a_layout():
    layout = split()
    row = json.loads(json.dumps(layout.to_row()))
    assert layouts.from_row(TOPIC, layout.epoch, layout.next_number, row) == layout
    assert len(json.dumps(layouts.of_segments(TOPIC, 4, 1_700_000_000_000).to_row())) < 300


def test_clients_are_told_all_of_a_layout():
    told = split().to_wire(("pulsar://h:6650", ""))
    parent, child, _ = told.segments
    assert (parent.state, list(parent.child_ids), parent.sealed_at_epoch, parent.sealed_at_ms) == (
        api.SEALED, [1, 2], 1, 9)
    assert parent.legacy_topic_name == "persistent://acme/eu/x" and not child.HasField("legacy_topic_name")
    assert (child.state, list(child.parent_ids), list(child.entry_bucket_splits), child.HasField("sealed_at_ms")) == (
        api.ACTIVE, [0], [0x4000], False)
    assert [one.segment_id for one in told.segment_brokers] == [1, 2]      # active ones only
    assert (told.epoch, told.controller_broker_url, told.HasField("controller_broker_url_tls")) == (
        1, "pulsar://h:6650", False)
    assert not split().to_wire().segment_brokers


def test_a_segment_is_found_by_its_number():
    layout = split()
    assert layout.numbered(2).topic == str(TOPIC.segment_name(2, 0x8000, 0xffff)) and layout.numbered(9) is None


@pytest.mark.parametrize("before, now, is_gone", [
    (split(), split(), False), (split(), None, True),
    (split(), split()._replace(epoch=2, next_number=5), False),
    (split(), layouts.of_segments(TOPIC, 2, 7, epoch=5), True),              # fewer numbers were used
    (layouts.of_segments(TOPIC, 2, 7), layouts.of_segments(TOPIC, 2, 8), True),
    (split(), layouts.of_partitions(TOPIC.regular, 4), True),                # a regular topic has the name again
    (layouts.of_partitions(TOPIC.regular, 4), None, False),
    (layouts.of_partitions(TOPIC.regular, 2), split(), False)])              # it was made scalable
def test_a_topic_that_was_deleted_is_known_by_its_next_layout(before, now, is_gone):
    assert before.mark.is_gone(None if now is None else now.mark) == is_gone
