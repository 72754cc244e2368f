"""What an owner does at the edges of what it checks: one small topic for each."""
import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api

from .test_limits import LIVE, TOPIC, set_policy

T = api.BaseCommand.Type
CHUNK = {"uuid": "u", "num_chunks_from_msg": 3, "chunk_id": 0, "total_chunk_msg_size": 15_000}


@pytest.mark.parametrize("topic", [TOPIC, LIVE])
def test_chunks_may_be_larger_than_the_messages_that_a_topic_takes(rigs, topic):
    rig = rigs()
    producer = rig.producer(topic)
    set_policy(rig, "maxMessageSize", 1_000, topic)
    answers = rig.run(rig.sends((producer, b"x" * 5_000, CHUNK), (producer, b"x" * 5_000)))
    assert (len(answers.receipts), len(answers.commands(T.SEND_ERROR))) == (1, 1)


def test_a_message_that_is_too_large_and_not_encrypted_is_refused_once(rigs):
    rig = rigs()
    set_policy(rig, "encryptionRequired", True, TOPIC)
    set_policy(rig, "maxMessageSize", 1_000, TOPIC)
    answers = rig.run(rig.sends((rig.producer(TOPIC, encrypted=True), b"x" * 5_000)))
    assert [one.send_error.message for one in answers.commands(T.SEND_ERROR)] == ["Exceed maximum message size"]


def test_a_topic_that_nobody_has_used_can_be_deleted(rig):
    name = names.parse(TOPIC)
    rig.owner.catalogue.create_topic(name, 0)
    rig.owner.commit()
    rig.asked("delete", TOPIC, force=False)
    assert not rig.owner.catalogue.has_topic(name)


def test_nobody_waits_for_more_where_nobody_is(rig):
    consumer = rig.consumer(TOPIC)
    for is_there in (True, False):
        told = rig.asked("internal", TOPIC)
        assert told["cursors"]["sub"]["waitingReadOp"] is is_there
        if is_there:
            rig.close_consumer(consumer)
