"""Administration's commands to an owner, and its questions about subscriptions that receive nothing."""
import inspect
import json
import typing

import pytest

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.layouts import MANAGED
from geminga.storage.admin import (
    questions,
    schedule_questions,
    segment_questions,
    table_questions,
    transactions,
    typed_json,
)
from geminga.storage.admin.queries import FUNCTIONS
from geminga.storage.topics.subscription import SubType

from .replicated_sites import introduce

T = api.BaseCommand.Type


def causes(rig, topic="t", subscription="sub"):
    return rig.asked("why", topic, subscription=subscription)["causes"]


def keyed(producer, key, payload=b"x"):
    return producer, payload, {"partition_key": key}


# -- termination

def test_a_terminated_topic_takes_nothing_more_and_says_so_to_those_who_have_everything(rig):
    """A terminated topic closes its producers and refuses new ones. Consumers get the rest of the messages, and are
    told of the end once they have acknowledged all.
    """
    producer, consumer = rig.producer("t"), rig.consumer("t")
    [first, last] = rig.publish(producer, b"a", b"b")
    answers = rig.run(rig.question("terminate", "t"))
    assert answers.answered == [{"answer": list(last)}]
    assert [command.close_producer.producer_id for command in answers.commands(T.CLOSE_PRODUCER)] == [
        producer.object_id
    ]
    assert not rig.run(rig.sends((producer, b"late"))).receipts
    [refused] = rig.run(rig.command("producer", topic="t", producer_id=9, request_id=9)).commands()
    assert refused.error.error == api.TopicTerminatedError
    assert [position for position, _ in rig.receive(consumer)] == [first, last]
    assert not rig.run(rig.acks(consumer, first)).commands(T.REACHED_END_OF_TOPIC)
    [end] = rig.run(rig.acks(consumer, last)).commands(T.REACHED_END_OF_TOPIC)
    assert end.reachedEndOfTopic.consumer_id == consumer.object_id
    assert not rig.run(rig.acks(consumer, last)).commands(T.REACHED_END_OF_TOPIC)      # told only once


def test_who_subscribes_to_the_end_of_a_topic_is_told(rig, tmp_path):
    """A consumer that subscribes at the end of a terminated topic is told of the end, also after a restart."""
    rig.publish(rig.producer("t"), b"a")
    rig.asked("terminate", "t")
    for one in (rig, rig.crashed(tmp_path / "next")):
        section, number = one.subscribe("t", "late", initialPosition=api.CommandSubscribe.Latest)
        assert [end.reachedEndOfTopic.consumer_id for end in one.run(section).commands(T.REACHED_END_OF_TOPIC)] == [
            number
        ]
        [refused] = one.run(one.command("producer", topic="t", producer_id=9, request_id=9)).commands()
        assert refused.error.error == api.TopicTerminatedError
    one.close()


@pytest.mark.parametrize(("version", "is_told"), [(8, False), (9, True)])
def test_the_end_of_a_topic_is_told_since_version_9(rig, version, is_told):
    rig.producer("t")
    rig.asked("terminate", "t")
    section, _ = rig.subscribe("t", "sub", connection=2, version=version)
    assert bool(rig.run(section).commands(T.REACHED_END_OF_TOPIC)) == is_told


@pytest.mark.parametrize(("library", "mark", "is_told"), [
    ("Pulsar-CPP-v4.1.0", "", False), ("Pulsar-CPP-v4.1.0", "true", True), ("Pulsar-Java-v4.0.0", "", True)])
def test_the_end_of_a_topic_is_not_told_to_libraries_that_would_close_their_connection(rig, library, mark, is_told):
    introduce(rig, 2, version=library)
    rig.producer("t")
    rig.asked("terminate", "t")
    section, _ = rig.subscribe("t", "sub", connection=2, metadata=[api.KeyValue(key=MANAGED, value=mark)])
    assert bool(rig.run(section).commands(T.REACHED_END_OF_TOPIC)) == is_told


# -- unloading

def test_an_unloaded_topic_is_found_as_it_was_left(rig):
    """An unloaded topic opens with the same cursors: holes, batches acknowledged in part and redelivery counts
    included.
    """
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    positions = rig.publish(producer, *[b"%d" % n for n in range(6)])
    [batch] = rig.run(rig.sends((producer, b"batch", {"batch": 3}))).positions
    rig.receive(consumer)
    rig.run(rig.acks(consumer, positions[0], positions[2]))
    kind, rows, _ = rig.acks(consumer, batch, flags=envelope.PARTIAL)
    rows["words"] = 1
    rig.run((kind, rows, (0b110).to_bytes(8, "little")))
    rig.run(rig.command("redeliverUnacknowledgedMessages", consumer_id=consumer.object_id,
                        message_ids=[api.MessageIdData(ledgerId=positions[4][0], entryId=positions[4][1])]))
    answers = rig.run(rig.question("unload", "t"))
    assert {command.type for command in answers.commands()} == {T.CLOSE_PRODUCER, T.CLOSE_CONSUMER}
    assert not rig.partitions
    consumer = rig.consumer("t", subType=SubType.Shared)
    answers = rig.run(rig.flow(consumer, 100))
    given = [one for *_, entries in answers.gifts for one in entries]
    assert [(entry, count) for entry, count, _ in given] == [(1, 0), (3, 0), (4, 1), (5, 0), (6, 0)]
    assert [words for *_, words in given if words] == [[0b110]]
    assert rig.publish(rig.producer("t"), b"more") == [(batch[0], 7)]


def test_an_unloaded_topic_may_be_used_again_in_the_same_pass_and_survives_a_crash(rig, tmp_path):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    first, second = rig.publish(producer, b"a", b"b")
    section, number = rig.subscribe("t", "sub")
    answers = rig.run(rig.acks(consumer, first), rig.question("unload", "t"), section)
    consumer = rig.consumer_in(answers, number, "t")
    assert rig.receive(consumer) == [(second, b"b")]
    after = rig.crashed(tmp_path / "next")
    assert after.receive(after.consumer("t")) == [(second, b"b")]
    after.close()


# -- positions

@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Shared])
def test_skipping_acknowledges_and_clearing_acknowledges_everything(rig, kind):
    positions = rig.publish(rig.producer("t"), *[b"%d" % n for n in range(6)])
    consumer = rig.consumer("t", subType=kind)
    rig.run(rig.acks(consumer, positions[1]))
    rig.asked("skip", "t", subscription="sub", entries=2)
    assert [position for position, _ in rig.receive(consumer)] == positions[3:]
    rig.asked("clear", "t", subscription="sub")
    assert causes(rig) == [{"cause": "no backlog"}]
    rig.asked("reset", "t", subscription="sub", position=positions[4], behind=False)
    assert [position for position, _ in rig.receive(rig.consumer("t", subType=kind))] == positions[4:]


def test_what_is_not_there_is_refused(rig):
    rig.producer("t")
    for topic, code in (("t", api.SubscriptionNotFound), ("other", api.TopicNotFound)):
        [answer] = rig.run(rig.question("clear", topic, subscription="nobody")).answered
        assert answer["refused"] == code


# -- why

def test_why_nothing_is_delivered(rigs):
    """The answer names each cause for which nothing is delivered, and the consumer that could change that."""
    rig = rigs(max_unacked_messages_per_consumer=3, max_unacked_messages_per_subscription=5)
    producer = rig.producer("t")
    consumer = rig.consumer("t", subType=SubType.Shared, consumer_name="a")
    assert causes(rig) == [{"cause": "no backlog"}]
    positions = rig.publish(producer, *[b"%d" % n for n in range(9)])
    assert causes(rig) == [{"cause": "no permits", "consumer": "a"}]
    rig.run(rig.flow(consumer, 100))
    assert causes(rig) == [
        {"cause": "unacknowledged messages of a consumer", "consumer": "a", "messages": 3, "limit": 3}
    ]
    other = rig.consumer("t", subType=SubType.Shared, consumer_name="b")
    rig.run(rig.flow(other, 100))
    assert {"cause": "unacknowledged messages of the subscription", "messages": 5, "limit": 5} in causes(rig)
    rig.run(rig.acks(consumer, *positions[:3]))
    rig.run(rig.acks(other, *positions[3:5]))
    rig.run(rig.acks(consumer, *positions[5:8]))
    assert causes(rig) == [{"cause": "no acknowledgements", "messages": 1}]
    for one in (consumer, other):
        rig.close_consumer(one)
    assert causes(rig) == [{"cause": "no consumer"}]
    rig.run(rig.acks(rig.consumer("t", subType=SubType.Shared), positions[8]))
    rig.asked("terminate", "t")
    assert causes(rig) == [{"cause": "end of topic"}]


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Failover])
def test_why_a_single_consumer_gets_nothing(rig, kind):
    consumer = rig.consumer("t", subType=kind, consumer_name="a")
    rig.publish(rig.producer("t"), b"x")
    assert causes(rig) == [{"cause": "no permits", "consumer": "a"}]
    rig.run(rig.flow(consumer, 10))
    assert causes(rig) == [{"cause": "no acknowledgements", "consumer": "a"}]


def test_why_a_key_waits(rigs):
    """The answer names, for a draining key, the consumer that holds its messages, the first of them, and since when
    it drains.
    """
    rig = rigs(key_shared_consistent_hashing=False)
    producer = rig.producer("t")
    first = rig.consumer("t", subType=SubType.Key_Shared, consumer_name="first")
    [position] = rig.run(rig.sends(keyed(producer, "B"))).positions        # hash 27274, in the lower half
    rig.run(rig.flow(first, 1))
    second = rig.consumer("t", subType=SubType.Key_Shared, consumer_name="second")
    rig.run(rig.flow(second, 10), rig.sends(keyed(producer, "B")))
    [draining] = [cause for cause in causes(rig) if cause["cause"] == "draining key"]
    assert draining == {
        "cause": "draining key",
        "hash": 27274,
        "key": "B",
        "consumer": "first",
        "since_ms": rig.now_ms,
        "messages": 1,
        "message": "{}:{}".format(*position),
        "waiting": "second",
    }
    assert [gift[0] for gift in rig.run(rig.acks(first, position)).gifts] == [second.number]


def test_why_hashes_wait_that_nobody_takes(rig):
    ranges = api.KeySharedMeta(keySharedMode=api.STICKY, hashRanges=[api.IntRange(start=0, end=100)])
    consumer = rig.consumer("t", subType=SubType.Key_Shared, keySharedMeta=ranges)
    rig.run(rig.flow(consumer, 10), rig.sends(keyed(rig.producer("t"), "B")))
    assert {"cause": "hashes that no consumer takes", "ranges": [[101, 65535]]} in causes(rig)


def test_answers_come_to_who_asked(rig):
    rig.producer("t")
    answers = rig.run_all({1: [rig.question("terminate", "t")], 2: [rig.question("terminate", "nothing")]})
    assert [next(iter(answer)) for answer in answers.answered] == ["answer", "refused"]
    assert envelope.QUESTIONS != envelope.ANSWERS


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Shared], ids=SubType.Name)
def test_a_consumer_s_statistics(rig, kind):
    consumer = rig.consumer("t", subType=kind, consumer_name="a")
    first, *_ = rig.publish(rig.producer("t"), *[b"%d" % n for n in range(5)])
    rig.run(rig.flow(consumer, 3))
    rig.run(rig.acks(consumer, first))
    [answer] = rig.run(rig.command("consumerStats", consumer_id=consumer.object_id, request_id=8)).commands()
    told = answer.consumerStatsResponse
    assert (told.request_id, told.consumerName, told.type) == (8, "a", SubType.Name(kind))
    assert (told.msgBacklog, told.unackedMessages, told.availablePermits, told.blockedConsumerOnUnackedMsgs) == (
        4,
        2,
        0,
        False,
    )
    assert (told.msgRateOut, told.msgRateRedeliver, told.messageAckRate) == (3, 0, 1) and told.msgThroughputOut > 3
    assert told.connectedSince == "2023-11-14T22:13:20.000+00:00"
    rig.run(rig.command("redeliverUnacknowledgedMessages", consumer_id=consumer.object_id))
    [answer] = rig.run(
        rig.command("consumerStats", consumer_id=consumer.object_id, request_id=8), after_ms=2_000
    ).commands()
    told = answer.consumerStatsResponse
    assert (told.msgRateOut, told.msgRateRedeliver, told.messageAckRate, told.unackedMessages) == (1.5, 1, 0.5, 0)
    [answer] = rig.run(rig.command("consumerStats", consumer_id=77, request_id=9)).commands()
    assert answer.consumerStatsResponse.error_code == api.ConsumerNotFound


# -- what became of messages

def test_what_became_of_messages_adds_up(rig, rigs):
    """Published messages are acknowledged, skipped or in the backlog, counted exactly with parts of batches, also
    after a kill.
    """
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    positions = rig.run(rig.sends(*[(producer, b"x", {"batch": 3})] * 6)).positions
    rig.run(rig.flow(consumer, 100))
    rig.run(rig.acks(consumer, positions[0], positions[4]), rig.ack_part(consumer, positions[5], 0b011))
    rig.asked("skip", "t", subscription="sub", entries=1)
    expected = {"published": 18, "acknowledged": 7, "expired": 0, "skipped": 3, "evicted": 0, "backlog": 8}
    assert rig.asked("why", "t", subscription="sub")["messages"] == expected
    again = rigs.crash(rig)
    assert again.asked("why", "t", subscription="sub")["messages"] == expected
    [first, *_] = positions
    again.asked("reset", "t", subscription="sub", position=first, behind=False)
    assert again.asked("why", "t", subscription="sub")["messages"] == dict.fromkeys(expected, 0) | {
        "published": 18,
        "backlog": 18,
    }


def test_what_became_of_messages_is_told_after_a_restart_too(rig, rigs):
    """Totals that were read from disk can be sent as JSON like those counted since."""
    rig.consumer("t")
    rig.publish(rig.producer("t"), b"a", b"b")
    rig.asked("skip", "t", subscription="sub", entries=1)
    again = rigs.restart(rig)
    assert again.asked("why", "t", subscription="sub")["messages"]["skipped"] == 1


# -- replication

def test_whether_a_subscription_is_replicated_outlives_a_crash_and_goes_with_it(rig, tmp_path):
    rig.producer("t")
    for name in ("yes", "no"):
        rig.asked("subscribe", "t", subscription=name, replicated=name == "yes")
    later = rig.crashed(tmp_path / "next")
    assert [later.asked("replicated", "t", subscription=name) for name in ("yes", "no")] == [
        {"persistent://public/default/t": True}, {"persistent://public/default/t": False}]
    later.asked("unsubscribe", "t", subscription="yes", force=False)
    later.asked("subscribe", "t", subscription="yes")
    assert later.asked("replicated", "t", subscription="yes") == {"persistent://public/default/t": False}
    assert not later.owner.catalogue.read("SELECT * FROM policies WHERE scope LIKE '#%'")
    later.close()


# -- types

def test_each_question_has_a_function_that_takes_it_and_gives_its_answer():
    """Each class of questions has a function whose annotations have that class and its answer. The type checker
    cannot check a table of functions with different arguments.
    """
    kinds = {kind for module in (questions, schedule_questions, segment_questions, table_questions, transactions)
             for _, kind in inspect.getmembers(module, inspect.isclass)
             if issubclass(kind, questions.Question) and kind.name}
    assert FUNCTIONS.keys() == kinds
    for kind, function in FUNCTIONS.items():
        hints = typing.get_type_hints(function)
        assert (hints["question"], hints["return"]) == (kind, questions.answer_type(kind))


def test_a_question_is_read_as_it_was_written():
    question = questions.Reset(names.parse("t"), subscription="sub", position=(3, 4), batch_index=1)
    fields = json.loads(question.encode())
    assert (fields.pop("ask"), fields.pop("topic")) == ("reset", "persistent://public/default/t")
    assert questions.Reset(question.topic, **typed_json.read_fields(questions.Reset, fields)) == question


@pytest.mark.parametrize("fields", [{"entries": "2"}, {"entries": True}, {"entries": None}, {"entries": 2, "more": 1}])
def test_arguments_that_a_question_does_not_have_are_refused(rig, fields):
    rig.consumer("t")
    [answer] = rig.run(rig.question("skip", "t", subscription="sub", **fields)).answered
    assert answer["refused"] == api.UnknownError


@pytest.mark.parametrize("wanted, value, read", [
    (float, 1, 1), (int | None, None, None), (tuple[int, int], [1, 2], (1, 2)), (list[tuple[int, str]], [[1, "a"]],
    [(1, "a")]),
    (dict[str, int], {"a": 1}, {"a": 1}), (object, [None], [None]), (bytes | int, 3, 3),
    (questions.Released | None, {"entries": 1}, questions.Released(1))])
def test_json_is_read_as_annotations_say(wanted, value, read):
    assert typed_json.read(wanted, value) == read


@pytest.mark.parametrize("wanted, value", [
    (int, 1.5), (int, True), (str, 1), (bool, 0), (tuple[int, int], [1]), (list[int], {}), (dict[str, int],
    {"a": "b"}), (int, None),
    (questions.Released, {"entries": "1"}), (questions.Released, {}), (questions.Released, [1])])
def test_json_of_another_type_is_refused(wanted, value):
    with pytest.raises(TypeError):
        typed_json.read(wanted, value)
