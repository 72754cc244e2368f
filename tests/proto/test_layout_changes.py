"""Changes of layouts as values: hashes have one active segment each, whatever is split, merged and pruned."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.proto import layout_changes, names
from geminga.proto.layout_changes import CannotChange, change_from_row
from geminga.proto.layouts import HASHES, SEGMENTS_MAX, Layout, of_segments

TOPIC = names.parse("topic://acme/eu/x")


@given(st.data(), st.integers(1, 5))
def test_active_segments_divide_all_hashes_after_any_changes(data, count):
    layout = of_segments(TOPIC, count, 1)
    for epoch in range(1, 12):
        active = sorted(layout.active, key=lambda segment: segment.first)
        sealed = [segment.number for segment in layout.segments if not segment.is_active]
        operation = data.draw(st.sampled_from([layout_changes.SPLIT, layout_changes.MERGE, layout_changes.REBUCKET,
                                               layout_changes.PRUNE]))
        if operation == layout_changes.PRUNE:
            gone = data.draw(st.sets(st.sampled_from(sealed))) if sealed else ()
            change = layout_changes.prune(layout, gone, 2)
        elif operation == layout_changes.MERGE and len(active) > 1:
            at = data.draw(st.integers(0, len(active) - 2))
            change = layout_changes.merge(TOPIC, layout, (active[at + 1].number, active[at].number), 2)
        elif operation == layout_changes.REBUCKET:
            segment = data.draw(st.sampled_from(active))
            change = layout_changes.rebucket(TOPIC, layout, segment.number, data.draw(st.integers(1, 1024)), 2)
        else:
            change = layout_changes.split(TOPIC, layout, data.draw(st.sampled_from(active)).number, 2)
        assert change_from_row(TOPIC, change.to_row()) == change
        before, layout = layout, change.layout
        assert layout.epoch == epoch and layout.next_number >= before.next_number
        active = sorted(layout.active, key=lambda segment: segment.first)
        assert [segment.first for segment in active] == [0, *(segment.last + 1 for segment in active[:-1])]
        assert active[-1].last == HASHES - 1
        for child in change.children:
            assert set(change.parents) == set(child.parents) and child.is_active
            assert all(child.number in layout.numbered(number).children for number in change.parents)
        numbers = {segment.number for segment in layout.segments}
        assert all({*segment.parents, *segment.children} <= numbers for segment in layout.segments)


@given(st.integers(0, layout_changes.PARTITIONS_MAX), st.integers(0, 9))
def test_partitions_are_sealed_in_front_of_as_many_segments_that_divide_all_hashes(partitions, epoch):
    change = layout_changes.migrate(TOPIC, partitions, 1, epoch)
    assert change_from_row(TOPIC, change.to_row()) == change and change.layout.epoch == epoch
    count = max(partitions, 1)
    parents, active = change.layout.segments[:count], change.layout.active
    assert [segment.topic for segment in parents] == [
        str(TOPIC.regular.partition_name(number)) for number in range(partitions)] or [parents[0].topic] == [
        str(TOPIC.regular)]
    assert {(segment.first, segment.last, segment.is_active) for segment in parents} == {(0, HASHES - 1, False)}
    assert change.parents == tuple(range(count)) and change.children == active and len(active) == count
    assert all(child.parents == change.parents for child in active)
    assert all(parent.children == tuple(range(count, 2 * count)) for parent in parents)
    assert [segment.first for segment in active] == [0, *(segment.last + 1 for segment in active[:-1])]
    assert active[-1].last == HASHES - 1


def test_a_topic_of_too_many_partitions_is_not_made_scalable():
    with pytest.raises(CannotChange):
        layout_changes.migrate(TOPIC, layout_changes.PARTITIONS_MAX + 1, 1)


def test_a_segment_of_one_hash_is_not_split():
    layout = of_segments(TOPIC, SEGMENTS_MAX // 2, 1)
    while layout.active[0].first != layout.active[0].last:
        layout = layout_changes.split(TOPIC, layout, layout.active[0].number, 2).layout
        active = min(layout.active, key=lambda segment: segment.first)
        layout = Layout(layout.epoch, (active,), layout.next_number)
    with pytest.raises(CannotChange):
        layout_changes.split(TOPIC, layout, layout.active[0].number, 2)


def test_a_layout_has_a_most_of_segments():
    layout = of_segments(TOPIC, SEGMENTS_MAX - 1, 1)
    layout = layout_changes.rebucket(TOPIC, layout, 0, 1, 2).layout
    with pytest.raises(CannotChange):
        layout_changes.rebucket(TOPIC, layout, 1, 1, 2)


@pytest.mark.parametrize("numbers", [(0, 2), (2, 0), (1, 1)])
def test_segments_that_are_no_neighbours_do_not_merge(numbers):
    with pytest.raises(CannotChange):
        layout_changes.merge(TOPIC, of_segments(TOPIC, 3, 1), numbers, 2)
