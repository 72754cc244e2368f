"""What takes a dead entry's place in a dead letter topic, and the name of that topic."""
import struct

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.cursors.dead_entries import DELIVERIES, EXPIRED, REASON_SHIFT
from geminga.workers.dead_letters.lane import Source
from geminga.workers.dead_letters.letters import letters_of
from geminga.workers.dead_letters.mover import _Failure, target_of
from geminga.workers.pulsar_client.entries import Entry

from ..proto.client_frames import entry_of

TOPIC = "persistent://public/default/jobs-partition-1"
_REDELIVERED = 1 | DELIVERIES << REASON_SHIFT      # given back once too often


def properties_of(letter) -> dict[str, str]:
    return {one.key: one.value for one in letter.metadata.properties}


def dead(metadata: api.MessageMetadata, payload: bytes, **fields) -> Entry:
    return Entry(7, 3, metadata, entry_of(metadata.SerializeToString(), payload), **fields)


@pytest.mark.parametrize(("stay", "waiting", "holds"), [(0, 5, True), (2, 2, True), (2, 3, False)])
def test_letters_that_can_be_moved_do_not_wait_for_those_that_cannot(stay, waiting, holds):
    failure = _Failure(until=60.0, wait_s=60.0, stay=stay)
    assert failure.holds(1.0, waiting) is holds and not failure.holds(60.0, waiting)


def test_a_message_keeps_what_it_has_and_says_where_it_died():
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key="k", event_time=5,
                                   deliver_at_time=9, properties=[api.KeyValue(key="a", value="b")])
    [letter] = letters_of(dead(metadata, b"body", redelivery_count=2 | EXPIRED << REASON_SHIFT),
                          TOPIC, "sub")
    assert (letter.payload, letter.messages, letter.origin) == (b"body", 1, TOPIC)
    assert (letter.metadata.partition_key, letter.metadata.event_time) == ("k", 5)
    assert not letter.metadata.HasField("deliver_at_time")      # the letter does not wait once more
    assert properties_of(letter) == {
        "a": "b", "REAL_TOPIC": TOPIC, "REAL_SUBSCRIPTION": "sub", "ORIGIN_MESSAGE_ID": "7:3:1",
        "ORIGIN_MESSAGE_IDY_TIME": "7:3:1", "geminga.dead-letter.reason": "expired",
        "geminga.dead-letter.subscription": "sub", "geminga.dead-letter.deliveries": "2"}


def test_a_letter_that_dies_again_keeps_its_first_origin():
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, properties=[
        api.KeyValue(key="REAL_TOPIC", value="persistent://public/default/first"),
        api.KeyValue(key="geminga.dead-letter.reason", value="expired")])
    [letter] = letters_of(dead(metadata, b"x", redelivery_count=_REDELIVERED), TOPIC, "sub")
    assert letter.origin == "persistent://public/default/first"
    assert properties_of(letter)["geminga.dead-letter.reason"] == "deliveries"
    assert len({one.key for one in letter.metadata.properties}) == len(letter.metadata.properties)


def test_only_messages_of_a_batch_that_are_left_become_letters():
    payload = b"".join(
        struct.pack(">I", len(own)) + own + bytes([number]) for number in range(3)
        for own in [api.SingleMessageMetadata(payload_size=1, partition_key=str(number)).SerializeToString()])
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=3)
    letters = letters_of(dead(metadata, payload, ack_set=(0b101,), redelivery_count=_REDELIVERED), TOPIC, "sub")
    assert [(letter.payload, letter.metadata.partition_key) for letter in letters] == [(b"\0", "0"), (b"\2", "2")]
    assert [properties_of(letter)["ORIGIN_MESSAGE_ID"] for letter in letters] == ["7:3:1:0", "7:3:1:2"]
    [whole] = letters_of(dead(metadata, b"damaged", redelivery_count=_REDELIVERED), TOPIC, "sub")
    assert (whole.payload, whole.messages) == (b"damaged", 3)


def test_the_topic_is_named_as_clients_name_it_unless_the_policy_says_so():
    source = Source(TOPIC, "sub")
    assert target_of(source, "") == "persistent://public/default/jobs-sub-DLQ"
    assert target_of(source, "lost") == "persistent://public/default/lost"
    with pytest.raises(Refusal):
        target_of(source._replace(subscription="a/b"), "")
