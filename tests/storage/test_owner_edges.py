"""Checks of an owner at the edges of their conditions: one small topic for each."""
import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.ledgers.journal import Journal
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.open_topics.durability import ACK_SYNC_MS
from geminga.storage.topics.subscription import SubType

from .rig import Handle
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
    rig.owner.catalogue.topics.create(name, 0)
    rig.owner.durability.commit_and_sync()
    rig.asked("delete", TOPIC, force=False)
    assert not rig.owner.catalogue.topics.exists(name)


def test_nobody_waits_for_more_where_nobody_is(rig):
    consumer = rig.consumer(TOPIC)
    for is_there in (True, False):
        told = rig.shown("internal", TOPIC)
        assert told["cursors"]["sub"]["waitingReadOp"] is is_there
        if is_there:
            rig.close_consumer(consumer)


def test_acknowledgements_that_keep_coming_are_synced_as_soon_as_the_first_demands(rig):
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC)
    positions = rig.publish(producer, b"a", b"b")
    rig.run(rig.acks(consumer, positions[0]))
    due_ms = rig.now_ms + ACK_SYNC_MS
    rig.run(rig.acks(consumer, positions[1]), after_ms=ACK_SYNC_MS // 2)
    assert rig.owner.passes.due_ms() == due_ms


def test_a_producer_that_waits_publishes_nothing_to_topics_that_keep_nothing(rig):
    rig.producer(LIVE, producer_access_mode=api.Exclusive)
    rig.run(
        rig.command("producer", topic=LIVE, producer_id=99, request_id=99, producer_access_mode=api.WaitForExclusive)
    )
    [topic] = rig.owner.topics.non_persistent.values()
    [waiting] = topic.producers.waiting
    assert not rig.run(rig.sends((Handle(waiting.handle, 99, LIVE), b"early"))).receipts
    assert topic.published == 0


def test_a_reader_that_holds_too_much_gets_more_when_retention_takes_that(rigs):
    rig = rigs(roll_over_entries=2, retention_s=60, retention_bytes=-1)
    set_policy(rig, "maxUnackedMessagesPerSubscription", 2)
    producer, reader = rig.producer(TOPIC), rig.consumer(TOPIC, durable=False, subType=SubType.Shared)
    rig.run(rig.flow(reader, 10))
    assert len(rig.delivered(rig.run(rig.sends((producer, b"a"), (producer, b"b"))), reader)) == 2
    assert not rig.delivered(rig.run(rig.sends((producer, b"c"), (producer, b"d")), after_ms=30_000), reader)
    assert [payload for _, payload in rig.delivered(rig.run(after_ms=30_000), reader)] == [b"c", b"d"]


def test_a_ledger_is_deleted_after_the_journal_was_told_and_synced(rigs, monkeypatch):
    rig, done = rigs(roll_over_entries=2), []
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC)
    positions = rig.publish(producer, b"a", b"b") + rig.publish(producer, b"c")

    def watch(kind, name):
        how = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *arguments: (done.append(name), how(*arguments))[1])

    for kind, name in ((Journal, "append"), (Journal, "sync"), (Ledger, "unlink")):
        watch(kind, name)
    rig.run(rig.acks(consumer, positions[1], cumulative=True))
    assert done == ["append", "sync", "unlink"]


def test_a_batch_that_is_acknowledged_in_part_takes_permits_for_the_rest(rig):
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC, subType=SubType.Shared)
    [position] = rig.run(rig.sends((producer, b"batch", {"batch": 3}))).positions
    rig.publish(producer, b"one", b"two")
    assert [payload for _, payload in rig.receive(consumer, 3)] == [b"batch"]
    rig.run(rig.ack_part(consumer, position, 0b110))
    answers = rig.run(rig.redeliver(consumer), rig.flow(consumer, 3))
    assert [payload for _, payload in rig.delivered(answers, consumer)] == [b"batch", b"one"]
