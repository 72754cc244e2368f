"""Decisions to split, merge and rebucket segments of scalable topics."""
from dataclasses import replace

import pytest

from geminga.proto import names
from geminga.proto.layouts import Layout, of_segments
from geminga.storage.catalogue.policy_declaration import default
from geminga.storage.catalogue.policy_values import OutOfRange
from geminga.storage.options import StorageOptions
from geminga.storage.scalable.auto_scaling import (
    DECLARATION,
    Changes,
    Load,
    Merge,
    Rebucket,
    Split,
    decide,
    is_quiet,
    owner_fillers,
    policy_of,
    refuse_contradiction,
)

NOW = 10_000_000
POLICY = policy_of(default(DECLARATION, StorageOptions()))
LONG_QUIET = Load(quiet_ms=300_000)


def layout_of(count: int, buckets: int = 1) -> Layout:
    layout = of_segments(names.parse("topic://public/default/x"), count, 0)
    width = 65_536 // buckets
    return layout._replace(segments=tuple(
        segment._replace(splits=tuple(width * number for number in range(1, buckets))) for segment in layout.segments))


def decided(layout, loads=None, consumers=0, changes=None, **values):
    return decide(layout, loads or {}, consumers, POLICY._replace(**values), changes or Changes(), NOW)


@pytest.mark.parametrize(("load", "reason"), [
    (Load(messages_in=10_001), "messages in"),
    (Load(bytes_in=50_000_001), "bytes in"),
    (Load(messages_out=50_001), "messages out"),
    (Load(bytes_out=250_000_001), "bytes out"),
])
def test_a_segment_above_any_rate_is_split(load, reason):
    assert decided(layout_of(3), {1: load}) == Split(1, reason)


def test_a_rate_that_is_just_allowed_splits_nothing():
    assert decided(layout_of(3), {1: Load(10_000, 50_000_000, 50_000, 250_000_000)}) is None


def test_the_segment_that_is_furthest_above_a_rate_is_split():
    loads = {0: Load(messages_in=20_000), 1: Load(bytes_in=150_000_001), 2: Load(messages_in=29_999)}
    assert decided(layout_of(3), loads) == Split(1, "bytes in")


@pytest.mark.parametrize("values", [
    {"segments_max": 3}, {"automatically": False}, {"changes": Changes(split_ms=NOW - 59_999)},
])
def test_nothing_is_split_at_the_bound_within_the_cooldown_or_where_it_is_switched_off(values):
    assert decided(layout_of(3), {1: Load(messages_in=90_000)}, **values) is None


def test_a_cooldown_ends_and_a_clock_that_was_set_back_does_not_prolong_it():
    loads = {1: Load(messages_in=90_000)}
    assert decided(layout_of(3), loads, changes=Changes(split_ms=NOW - 60_000)) == Split(1, "messages in")
    assert decided(layout_of(3), loads, changes=Changes(split_ms=NOW + 60_000)) == Split(1, "messages in")


def test_the_segment_that_fills_its_owner_is_split_unless_its_halves_would_be_quiet():
    """Otherwise they would be merged again."""
    half = Load(POLICY.merge_messages_in, 0, 0, 0)
    assert decided(layout_of(3), {1: Load(2 * half.messages_in, fills_owner=True)}) == Split(1, "a busy owner")
    assert decided(layout_of(3), {1: Load(2 * half.messages_in)}) is None
    assert decided(layout_of(3), {1: Load(2 * half.messages_in - 1, fills_owner=True)}) is None
    assert decided(layout_of(3), {1: Load(5_000, fills_owner=True), 2: Load(10_001)}) == Split(2, "messages in")
    assert decided(layout_of(3), {0: Load(10_001), 1: Load(5_000, fills_owner=True)}) == Split(0, "messages in")
    assert decided(layout_of(3), {1: Load(5_000, fills_owner=True)}, segments_max=3) is None


@pytest.mark.parametrize(("cores", "found"), [
    ({0: 0.8, 1: 0.4}, {"b"}),
    ({0: 0.79, 1: 0.1}, set()),            # nobody is busy
    ({0: 0.9, 1: 0.41}, set()),            # nobody has time
    ({0: 0.9, 1: 0.9, 2: 0.0}, {"b", "c"}),
    ({0: 0.1, 2: 0.9}, set()),             # which carries nothing
    ({}, set()),
])
def test_a_busy_owner_is_filled_by_what_carries_the_most_of_it(cores, found):
    assert owner_fillers([{"a": 1.0, "b": 2.0}, {"c": 9.0}, {}], cores) == found


def test_a_segment_of_one_hash_is_not_split():
    layout = layout_of(2)
    layout = layout._replace(segments=(layout.segments[0]._replace(last=0), layout.segments[1]))
    assert decided(layout, {0: Load(messages_in=90_000)}) is None


def test_more_consumers_than_segments_split_the_busiest_that_carries_enough():
    loads = {0: Load(messages_in=1_000), 1: Load(messages_in=900)}
    assert decided(layout_of(2), loads, consumers=3) == Split(0, "more consumers than segments")
    assert decided(layout_of(2), loads, consumers=2) is None
    assert decided(layout_of(2), loads, consumers=3, changes=Changes(split_ms=NOW)) is None


def test_consumers_of_a_quiet_topic_get_buckets_and_all_segments_get_as_many():
    assert decided(layout_of(1, 4), consumers=4) is None
    assert decided(layout_of(1, 4), consumers=5) == Rebucket((0,), 8, "more consumers than buckets")
    assert decided(layout_of(3), consumers=7) == Rebucket((0, 1, 2), 4, "more consumers than buckets")
    assert decided(layout_of(1, 4), consumers=1_000) == Rebucket((0,), 1_024, "more consumers than buckets")


def test_buckets_have_a_bound_and_a_cooldown():
    assert decided(layout_of(1, 4), consumers=5, buckets_max=4) is None
    assert decided(layout_of(1, 4), consumers=9, buckets_max=8) == Rebucket((0,), 8, "more consumers than buckets")
    assert decided(layout_of(1, 4), consumers=5, changes=Changes(rebucket_ms=NOW)) is None


def test_at_the_bound_of_segments_consumers_get_buckets():
    loads = {0: Load(messages_in=5_000), 1: Load(messages_in=5_000)}
    assert decided(layout_of(2), loads, consumers=3, segments_max=2) == Rebucket((0, 1), 2,
                                                                                 "more consumers than buckets")


def test_the_quietest_neighbours_are_merged_when_both_have_long_been_quiet():
    loads = {0: Load(5, quiet_ms=300_000), 1: Load(1, quiet_ms=300_000), 2: LONG_QUIET,
             3: Load(quiet_ms=299_999)}
    assert decided(layout_of(4), loads) == Merge(1, 2, "both are quiet")
    assert decided(layout_of(2), {0: LONG_QUIET}) is None      # nobody knows of the other one that it is quiet


@pytest.mark.parametrize("values", [
    {"segments_min": 2}, {"changes": Changes(merge_ms=NOW - 299_999)}, {"merges_max": 0}, {"automatically": False},
])
def test_nothing_is_merged_at_the_bound_or_within_the_cooldown(values):
    loads = {0: LONG_QUIET, 1: LONG_QUIET}
    assert decided(layout_of(2), loads, **{"consumers": 0} | values) is None


def test_a_merge_takes_no_bucket_from_a_consumer():
    loads = {0: LONG_QUIET, 1: LONG_QUIET}
    assert decided(layout_of(2, 2), loads, consumers=2, buckets_max=2) == Merge(0, 1, "both are quiet")
    assert decided(layout_of(2, 2), loads, consumers=3, buckets_max=2) is None
    assert decided(layout_of(2, 2), loads, consumers=3, buckets_max=4) == Merge(0, 1, "both are quiet")


def test_a_segment_that_has_come_of_many_merges_is_not_merged_again():
    first, second, third = layout_of(3).segments
    layout = Layout(1, (first._replace(sealed_ms=1, children=(3,)), second._replace(sealed_ms=1, children=(3,)), third,
                        first._replace(number=3, last=second.last, parents=(0, 1))), 4)
    loads = {2: LONG_QUIET, 3: LONG_QUIET}
    assert decided(layout, loads, merges_max=1) is None
    assert decided(layout, loads, merges_max=2) == Merge(3, 2, "both are quiet")


def test_a_segment_is_quiet_below_all_rates():
    assert is_quiet(Load(999, 4_999_999, 4_999, 24_999_999), POLICY)
    for name, rate in zip(Load._fields, (1_000, 5_000_000, 5_000, 25_000_000), strict=False):
        assert not is_quiet(Load(**{name: rate}), POLICY)


@pytest.mark.parametrize(("values", "text"), [
    ({"segments_max": 0}, "maxSegments must be >= minSegments"),
    ({"segments_min": 0, "segments_max": 0}, "minSegments must be >= 1"),
    ({"split_messages_in": 1_000}, "splitMsgRateInThreshold must be > mergeMsgRateInThreshold (hysteresis)"),
    ({"split_bytes_out": 0, "merge_bytes_out": 0}, "splitBytesRateOutThreshold must be > 0"),
    ({"merge_messages_out": -1}, "mergeMsgRateOutThreshold must be >= 0"),
    ({"merge_window_s": -1}, "mergeWindowSeconds must be >= 0"),
    ({"buckets_max": 0}, "maxEntryBucketsPerSegment must be >= 1"),
])
def test_contradictory_values_are_refused(values, text):
    with pytest.raises(OutOfRange) as refusal:
        refuse_contradiction(POLICY._replace(**values))
    assert str(refusal.value) == f"Invalid auto split/merge configuration: {text}"


def test_defaults_are_the_brokers_keys():
    options = replace(StorageOptions(), scale_segments_max=7)
    assert policy_of(default(DECLARATION, options)).segments_max == 7
    refuse_contradiction(POLICY)
