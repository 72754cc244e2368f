"""Stream consumers of one subscription, which share a topic's segments, wherever they are connected."""
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.layouts import HASHES, Share, of_partitions
from geminga.proto.names import parse
from geminga.storage.scalable import stream_consumers
from geminga.storage.scalable.assignment import deal
from geminga.storage.scalable.stream_consumers import SETTLE_MS

from ..proto.client_frames import T

GRACE_MS = 60_000
TOPIC = "persistent://public/default/shared"
ONE, TWO = 1, 2            # workers
COUNTS = st.integers(0, 40)


# -- layouts

def test_ranges_are_the_ones_that_pulsar_gives():
    """Recorded from Apache Pulsar 5.0.1."""
    bounds = [[(segment.first, segment.last) for segment in of_partitions(parse(TOPIC), count).segments]
              for count in (0, 3, 5)]
    assert bounds == [
        [(0, 65535)], [(0, 21844), (21845, 43689), (43690, 65535)],
        [(0, 13106), (13107, 26213), (26214, 39320), (39321, 52427), (52428, 65535)]]


@given(COUNTS)
def test_segments_are_the_partitions_and_divide_all_hashes(count):
    segments = of_partitions(parse(TOPIC), count).segments
    names = [f"{TOPIC}-partition-{number}" for number in range(count)] or [TOPIC]
    assert [(segment.number, segment.topic) for segment in segments] == list(enumerate(names))
    assert [hash_ for segment in segments for hash_ in (segment.first, segment.last)][1:-1] == [
        hash_ for segment in segments[1:] for hash_ in (segment.first - 1, segment.first)]
    assert (segments[0].first, segments[-1].last) == (0, HASHES - 1)


@given(COUNTS, st.sets(st.text(max_size=3), max_size=40))
def test_each_segment_has_one_consumer_and_consumers_have_about_as_many(count, names):
    layout = of_partitions(parse(TOPIC), count)
    dealt = deal(layout, names)
    assert list(dealt) == sorted(names)
    if names:
        assert Counter(share for shares in dealt.values() for share in shares) == Counter(map(Share, layout.segments))
        sizes = [len(segments) for segments in dealt.values()]
        assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


# -- registrations

@pytest.fixture
def rig(rigs):
    return rigs()


@pytest.fixture
def parted(rig):
    """A rig, and a topic of three partitions."""
    rig.owner.catalogue.topics.create(parse(TOPIC), 3)
    rig.owner.catalogue.commit()
    return rig


def registration(name, consumer_id, topic=TOPIC, **fields):
    return {"request_id": 100 + consumer_id, "topic": topic, "subscription": "sub", "consumer_name": name,
            "consumer_id": consumer_id, "consumer_type": api.STREAM} | fields


def register(rig, name, consumer_id=1, *, worker=ONE, connection=1, **fields):
    section = rig.command("scalableTopicSubscribe", connection=connection, **registration(name, consumer_id, **fields))
    return told(rig.run(section, worker=worker))


def unregister(rig, consumer_id=1, *, worker=ONE, connection=1):
    section = rig.command("scalableTopicUnsubscribe", connection=connection, request_id=9, consumer_id=consumer_id)
    return told(rig.run(section, worker=worker))


def restored(rig, name, consumer_id=1, *, worker=ONE, connection=1):
    data = api.CommandScalableTopicSubscribe(**registration(name, consumer_id)).SerializeToString()
    return told(rig.run(rig.happened(envelope.INTRODUCED, connection=connection, data=INTRODUCTION),
                        rig.happened(envelope.STREAM_RESTORED, connection=connection, data=data), worker=worker))


INTRODUCTION = (b'{"address": "/h:1", "version": "v", "partial": false, "positions": false, "role": "", '
                b'"connected_ms": 0, "superuser": false, "replicator": false}')


def told(answers):
    """Return what was said, by connection: (connection, "answer" or "update", consumer id, [segment's number]), or the
    answer's type and error.
    """
    found = []
    for connection, action, object_id, _, command in answers.replies:
        if command is None:
            found.append((connection, action, object_id))
        elif command.type == T.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            update = command.scalableTopicAssignmentUpdate
            assert (action, object_id) in ((envelope.STREAM_ASSIGNED, update.consumer_id), (envelope.WRITE, 0))
            found.append((connection, "update", update.consumer_id, numbers(update.assignment)))
        elif command.type == T.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE and \
                not (response := command.scalableTopicSubscribeResponse).HasField("error"):
            assert action == envelope.STREAM_REGISTERED and response.request_id == 100 + object_id
            found.append((connection, "answer", object_id, numbers(response.assignment)))
        elif command.type == T.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE:
            found.append((connection, "refused", command.scalableTopicSubscribeResponse.error))
        else:
            found.append((connection, T.Name(command.type)))
    return sorted(found, key=lambda said: said[0])      # each worker's answers are in an order of their own


def numbers(assignment):
    assert assignment.layout_epoch == 0
    assert all(segment.segment_topic.startswith((TOPIC, "segment://")) for segment in assignment.segments)
    return [segment.segment_id for segment in assignment.segments]


def test_consumers_of_all_workers_share_the_partitions(parted):
    """Each join and leave is told to all others, also to those for whom nothing changes, before it is answered."""
    assert register(parted, "b") == [(1, "answer", 1, [0, 1, 2])]
    assert register(parted, "a", 2, worker=TWO, connection=2) == [(1, "update", 1, [1]), (2, "answer", 2, [0, 2])]
    assert register(parted, "c", 3, connection=5) == [
        (1, "update", 1, [1]), (2, "update", 2, [0]), (5, "answer", 3, [2])]
    assert register(parted, "d", 4, connection=6)[-1] == (6, "answer", 4, [])
    assert unregister(parted, 2, worker=TWO, connection=2) == [
        (1, "update", 1, [0]), (2, "SUCCESS"), (5, "update", 3, [1]), (6, "update", 4, [2])]
    assert unregister(parted, 2, worker=TWO, connection=2) == [(2, "SUCCESS")]


def test_segments_are_named_by_their_partitions(parted):
    section = parted.command("scalableTopicSubscribe", **registration("a", 1))
    [(*_, command)] = parted.run(section).replies
    assert [(segment.segment_id, segment.hash_start, segment.hash_end, segment.segment_topic, segment.bucket_ranges)
            for segment in command.scalableTopicSubscribeResponse.assignment.segments] == [
        (0, 0, 21844, f"{TOPIC}-partition-0", []), (1, 21845, 43689, f"{TOPIC}-partition-1", []),
        (2, 43690, 65535, f"{TOPIC}-partition-2", [])]


def test_subscriptions_and_topics_have_nothing_to_do_with_each_other(parted):
    register(parted, "a")
    assert register(parted, "a", 2, connection=2, subscription="other") == [(2, "answer", 2, [0, 1, 2])]
    assert register(parted, "a", 3, connection=2, topic=f"{TOPIC}-plain") == [(2, "answer", 3, [0])]
    assert register(parted, "a", 4, connection=2, consumer_type=api.CHECKPOINT) == [(2, "answer", 4, [0, 1, 2])]


def test_a_consumer_that_is_away_keeps_its_segments_for_a_minute(parted):
    register(parted, "a")
    register(parted, "b", 2, connection=2)
    assert told(parted.run(parted.happened(envelope.CONNECTION_GONE, connection=2))) == []
    assert told(parted.run(after_ms=GRACE_MS - 1_000)) == []
    assert register(parted, "b", 7, worker=TWO, connection=9) == [(9, "answer", 7, [1])]
    assert told(parted.run(after_ms=GRACE_MS)) == []
    parted.run(parted.happened(envelope.CONNECTION_GONE, connection=9), worker=TWO)
    assert told(parted.run(after_ms=GRACE_MS)) == [(1, "update", 1, [0, 1, 2])]
    assert told(parted.run(after_ms=GRACE_MS)) == []


def test_the_time_for_which_a_consumer_that_is_away_keeps_its_segments_can_be_changed(parted):
    register(parted, "a")
    register(parted, "b", 2, connection=2)
    parted.owner.configure(replace(parted.owner.options.configured, stream_consumer_grace_s=5))
    assert told(parted.run(parted.happened(envelope.CONNECTION_GONE, connection=2))) == []
    assert told(parted.run(after_ms=4_000)) == []
    assert told(parted.run(after_ms=2_000)) == [(1, "update", 1, [0, 1, 2])]


def test_a_worker_that_has_died_takes_its_consumers_along(parted):
    register(parted, "a")
    register(parted, "b", 2, worker=TWO, connection=2)
    parted.owner.worker_gone(TWO)
    assert told(parted.run(after_ms=GRACE_MS)) == [(1, "update", 1, [0, 1, 2])]


def test_the_last_consumer_leaves_nothing_behind(parted):
    register(parted, "a")
    register(parted, "b", 2, connection=2)
    unregister(parted)
    parted.run(parted.happened(envelope.CONNECTION_GONE, connection=2))
    parted.run(after_ms=GRACE_MS)
    assert repr(parted.owner.stream_consumers) == "<StreamConsumers 0 in 0 groups>"
    assert parted.owner.stream_consumers._connected == {}


def test_a_name_that_registers_again_is_the_same_consumer(parted):
    """The end of its former connection may be noticed later than its return; nobody else is disturbed."""
    register(parted, "a")
    register(parted, "b", 2, connection=2)
    assert register(parted, "b", 3, worker=TWO, connection=4) == [(4, "answer", 3, [1])]
    assert register(parted, "b", 3, worker=TWO, connection=4) == [(4, "answer", 3, [1])]
    assert told(parted.run(parted.happened(envelope.CONNECTION_GONE, connection=2), after_ms=GRACE_MS)) == []
    assert told(parted.run(after_ms=GRACE_MS)) == []
    assert unregister(parted, 3, worker=TWO, connection=4) == [(1, "update", 1, [0, 1, 2]), (4, "SUCCESS")]


def test_two_programs_of_one_name_are_told_the_same(parted):
    """One of them has the segments.  It keeps them and hears of changes, also after the other one has given up."""
    register(parted, "a")
    register(parted, "a", 2, worker=TWO, connection=2)
    assert unregister(parted, 2, worker=TWO, connection=2) == [(2, "SUCCESS")]
    register(parted, "a", 3, worker=TWO, connection=3)
    assert register(parted, "b", 4, connection=4) == [
        (1, "update", 1, [0, 2]), (3, "update", 3, [0, 2]), (4, "answer", 4, [1])]


def test_a_name_has_so_many_connections(parted, monkeypatch):
    monkeypatch.setattr(stream_consumers, "PLACES_MAX", 2)
    for number in (1, 2):
        register(parted, "a", number, connection=number)
    assert register(parted, "a", 3, connection=3) == [(3, "refused", api.ConsumerBusy)]
    assert register(parted, "a", 2, connection=2) == [(2, "answer", 2, [0, 1, 2])]


def test_partitions_that_are_added_are_dealt(parted):
    register(parted, "a")
    register(parted, "b", 2, connection=2)
    parted.owner.catalogue.topics.set_partition_count(parse(TOPIC), 5)
    parted.owner.catalogue.commit()
    assert told(parted.run(after_ms=1_000)) == [(1, "update", 1, [0, 2, 4]), (2, "update", 2, [1, 3])]
    assert told(parted.run(after_ms=1_000)) == []


def test_a_topic_that_was_deleted_keeps_its_segments_for_who_creates_it_again(parted):
    register(parted, "a")
    parted.owner.catalogue.topics.delete(parse(TOPIC))
    parted.owner.catalogue.commit()
    assert told(parted.run(after_ms=1_000)) == []
    parted.owner.catalogue.topics.create(parse(TOPIC), 2)
    parted.owner.catalogue.commit()
    assert told(parted.run(after_ms=1_000)) == [(1, "update", 1, [0, 1])]


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_scalable_topic_that_was_deleted_takes_its_segments_along(rig, is_seen):
    """Also if it is there again at the next look: its client keeps what it has of a segment, which is closed."""
    topics, name = rig.owner.catalogue.scalable_topics, parse("topic://public/default/shared")

    def created(segments):
        topics.create(name, segments)
        rig.owner.catalogue.commit()

    created(2)
    assert register(rig, "a", topic=str(name)) == [(1, "answer", 1, [0, 1])]
    topics.begin_deletion(name)
    topics.end_deletion(name)
    rig.owner.catalogue.commit()
    if is_seen:
        assert told(rig.run(after_ms=1_000)) == [(1, "update", 1, [])]
        assert told(rig.run(after_ms=1_000)) == []
        assert rig.owner.stream_consumers.counts() == {} and rig.owner.stream_consumers.figures()[1] == 0
        created(2)
        assert told(rig.run(after_ms=1_000)) == [(1, "update", 1, [0, 1])]
    else:
        created(1)
        assert told(rig.run(after_ms=1_000)) == [(1, "update", 1, []), (1, "update", 1, [0])]


def test_a_new_owner_says_nothing_before_all_workers_have_told_it(parted):
    assert restored(parted, "a") == []
    assert restored(parted, "b", 2, worker=TWO, connection=2) == []
    assert register(parted, "c", 3, connection=3) == [(3, "answer", 3, [2])]
    assert told(parted.run(after_ms=SETTLE_MS)) == [
        (1, "update", 1, [0]), (2, "update", 2, [1]), (3, "update", 3, [2])]
    assert told(parted.run(after_ms=SETTLE_MS)) == []


def test_a_consumer_without_its_right_is_told_that_it_has_nothing(parted):
    register(parted, "a")
    register(parted, "b", 2, connection=2)
    assert told(parted.run(parted.happened(envelope.STREAM_EXPELLED, connection=2, data=b"2"))) == [
        (1, "update", 1, [0, 1, 2]), (2, "update", 2, [])]
    assert told(parted.run(parted.happened(envelope.STREAM_EXPELLED, connection=2, data=b"2"))) == []


def test_a_full_subscription_gives_up_who_is_away_longest(parted, monkeypatch):
    monkeypatch.setattr(stream_consumers, "CONSUMERS_MAX", 3)
    for number, name in enumerate("abc", 1):
        register(parted, name, number, connection=number)
    assert register(parted, "d", 4, connection=4) == [(4, "refused", api.ConsumerBusy)]
    for connection in (3, 2):
        parted.run(parted.happened(envelope.CONNECTION_GONE, connection=connection), after_ms=10)
    assert register(parted, "d", 4, connection=4) == [(1, "update", 1, [0]), (4, "answer", 4, [2])]
    assert register(parted, "c", 5, connection=5) == [
        (1, "update", 1, [0]), (4, "update", 4, [2]), (5, "answer", 5, [1])]


def test_an_owner_has_room_for_so_many(parted, monkeypatch):
    monkeypatch.setattr(stream_consumers, "_REGISTRATIONS_MAX", 2)
    register(parted, "a")
    register(parted, "a", 2, subscription="other")
    assert register(parted, "a", 3, subscription="third") == [(1, "refused", api.TooManyRequests)]
    unregister(parted)
    assert register(parted, "a", 3, subscription="third") == [(1, "answer", 3, [0, 1, 2])]
