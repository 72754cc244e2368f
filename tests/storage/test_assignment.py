"""Which segments of a layout a subscription's stream consumers get: each has one consumer, and parents come first."""
import random

from geminga.proto import names
from geminga.proto.layouts import Layout, Segment, Share, assignment, of_segments
from geminga.storage.scalable.assignment import assignable, deal

# 0 was split into 1 and 2; 1 and 2 were merged into 3, and 3 was split into 4 and 5.  9 has always been there.
ROWS = {0: ((), (1, 2)), 1: ((0,), (3,)), 2: ((0,), (3,)), 3: ((1, 2), (4, 5)), 4: ((3,), ()), 5: ((3,), ())}
HASHES = {0: (0, 99), 1: (0, 49), 2: (50, 99), 3: (0, 99), 4: (0, 49), 5: (50, 99)}


def layout(*without):
    """Return the layout, of which some segments have been pruned."""
    segments = [Segment(number, *HASHES[number], f"s{number}", sealed_ms=1 if children else None, parents=parents,
                        children=children) for number, (parents, children) in ROWS.items() if number not in without]
    return Layout(4, (*segments, Segment(9, 100, 199, "s9")), 10)


def numbers(shares):
    return [share.segment.number if isinstance(share, Share) else share.number for share in shares]


def buckets_of(segment):
    return len(segment.splits) + 1


def test_children_wait_until_all_their_parents_are_drained():
    assert numbers(assignable(layout(), ())) == [0, 9]
    assert numbers(assignable(layout(), {0})) == [1, 2, 9]
    assert numbers(assignable(layout(), {0, 1})) == [2, 9]
    assert numbers(assignable(layout(), {0, 1, 2})) == [3, 9]
    assert numbers(assignable(layout(), {0, 1, 2, 3})) == [4, 5, 9]


def test_segments_behind_a_drained_one_wait_for_its_parent():
    """It was sealed before it got a message."""
    assert numbers(assignable(layout(), {1, 2})) == numbers(assignable(layout(), {1, 2, 3})) == [0, 9]


def test_a_pruned_parent_was_drained():
    assert numbers(assignable(layout(0, 1), ())) == [2, 9]
    assert numbers(assignable(layout(0, 1, 2, 3), ())) == [4, 5, 9]


def test_segments_are_dealt_in_the_order_of_hashes_to_consumers_in_the_order_of_names():
    dealt = deal(layout(), ["b", "c", "a"], {0, 1, 2, 3})
    assert {name: numbers(segments) for name, segments in dealt.items()} == {"a": [4], "b": [5], "c": [9]}
    assert {name: numbers(segments) for name, segments in deal(layout(), ["b", "a"], {0}).items()} == {
        "a": [1, 9], "b": [2]}
    assert deal(layout(), []) == {}


# -- sharing

def named(count):
    return [f"c{number:02}" for number in range(count)]


def test_a_new_topic_has_four_buckets_for_all_of_its_segments_or_one_for_each():
    topic = names.parse("topic://public/default/t")
    splits = {count: {segment.splits for segment in of_segments(topic, count, 1).segments} for count in (1, 2, 3, 9)}
    assert splits == {1: {(16_384, 32_768, 49_152)}, 2: {(32_768,)}, 3: {()}, 9: {()}}


def test_consumers_beyond_the_number_of_segments_share_them_and_are_told_all_buckets():
    found = of_segments(names.parse("topic://public/default/t"), 2, 1)
    dealt = deal(found, ["a", "b", "c"])
    assert {name: numbers(shares) for name, shares in dealt.items()} == {"a": [0], "b": [0], "c": [1]}
    ranges = {name: [(one.start, one.end) for one in assignment(found, shares).segments[0].bucket_ranges]
              for name, shares in dealt.items()}
    assert ranges == {"a": [(0, 32_767), (32_768, 65_535)], "b": [(0, 32_767), (32_768, 65_535)], "c": []}
    assert [numbers(shares) for shares in deal(found, named(5)).values()] == [[0], [0], [1], [1], []]


def test_consumers_that_keep_their_places_themselves_share_no_segment():
    dealt = deal(of_segments(names.parse("topic://public/default/t"), 1, 1), ["a", "b"], may_share=False)
    assert {name: numbers(shares) for name, shares in dealt.items()} == {"a": [0], "b": []}


def test_whatever_the_buckets_all_segments_are_dealt_as_evenly_as_these_allow():
    chance = random.Random(1)
    for _ in range(300):
        segments = tuple(Segment(number, number, number, f"s{number}", splits=tuple(range(1, chance.randint(1, 6))))
                         for number in range(chance.randint(1, 6)))
        count = chance.randint(0, 30)
        dealt = deal(Layout(0, segments, len(segments)), chance.sample(named(count), count))
        shares = [share for its in dealt.values() for share in its]
        sharers = {segment: sum(share.segment == segment for share in shares) for segment in segments}
        assert len(dealt) == count and list(dealt) == named(count)
        if not count:
            continue
        assert all(1 <= sharers[segment] <= buckets_of(segment) for segment in segments)
        assert all(share.is_shared == (sharers[share.segment] > 1) for share in shares)
        if count > len(segments):
            assert len(shares) == min(count, sum(map(buckets_of, segments)))
            growing = [sharers[segment] for segment in segments if sharers[segment] < buckets_of(segment)]
            assert not growing or max(sharers.values()) - min(growing) <= 1
