"""Consumers of sealed segments that acknowledge nothing, because their client thinks that it has done so before."""
import pytest

from geminga.proto import envelope, layout_changes, names
from geminga.proto import pulsar_api_pb2 as api

from ..proto.client_frames import T
from .test_layout_change_steps import carry_out, layout_of

TOPIC = names.parse("topic://public/default/grown")
PARENT = "segment://public/default/grown/0000-ffff-0"


@pytest.fixture
def rig(rigs):
    """A stream consumer that was assigned a sealed segment, in which messages wait."""
    rig = rigs()
    rig.owner.catalogue.scalable_topics.create(TOPIC, 1)
    rig.owner.catalogue.commit()
    rig.asked("subscribe", PARENT, subscription="sub", may_create=True)
    rig.publish(rig.producer(PARENT), b"first", b"last")
    rig.owner.catalogue.scalable_topics.begin_change(TOPIC, layout_changes.split(TOPIC, layout_of(rig), 0, 5))
    rig.owner.catalogue.commit()
    assert carry_out(rig)
    registered(rig)
    return rig


def registered(rig):
    rig.run(rig.command("scalableTopicSubscribe", request_id=1, topic=str(TOPIC), subscription="sub",
                        consumer_name="c", consumer_id=1, consumer_type=api.STREAM))


def told(rig, seconds):
    """Return the assignments that the consumer is told meanwhile, as numbers of segments."""
    updates = [one for _ in range(seconds)
               for one in rig.run(after_ms=1_000).commands(T.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)]
    return [[segment.segment_id for segment in one.scalableTopicAssignmentUpdate.assignment.segments]
            for one in updates]


ANOTHER = 7      # connection than that of the registration


def lost(rig):
    """Have a consumer get all messages of the segment, and its connection end; return their positions."""
    consumer = rig.consumer(PARENT, connection=ANOTHER)
    positions = [position for position, _ in rig.receive(consumer)]
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=ANOTHER))
    return positions


def test_a_segment_is_taken_from_a_silent_consumer_and_given_back(rig):
    """So its client makes a new consumer, which gets the messages again, and acknowledges them."""
    positions = lost(rig)
    consumer = rig.consumer(PARENT)
    assert [position for position, _ in rig.receive(consumer)] == positions
    assert told(rig, 3) == []
    assert told(rig, 4) == [[], [0]]
    assert told(rig, 8) == [[], [0]]
    rig.close_consumer(consumer)
    again = rig.consumer(PARENT)
    assert [position for position, _ in rig.receive(again)] == positions
    assert told(rig, 20) == []      # its client can know of no acknowledgement that was lost


def test_an_application_that_is_slow_to_acknowledge_gets_nothing_twice(rig):
    rig.receive(rig.consumer(PARENT))
    assert told(rig, 20) == []


def test_an_owner_that_was_started_again_takes_silence_for_a_loss(rig, tmp_path):
    rig.receive(rig.consumer(PARENT))
    after = rig.crashed(tmp_path / "after")
    registered(after)
    after.receive(after.consumer(PARENT))
    assert told(after, 7) == [[], [0]]
    after.close()


def test_a_consumer_that_has_acknowledged_something_keeps_its_segment(rig):
    lost(rig)
    consumer = rig.consumer(PARENT)
    (first, _), _ = rig.receive(consumer)
    rig.run(rig.acks(consumer, first, cumulative=True))
    assert told(rig, 20) == []

