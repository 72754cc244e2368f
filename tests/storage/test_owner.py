"""Promises of an owner to publishers and to the disk: one sync for a pass, and no answer before it."""
import errno
import os

import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.errors import NotDurable
from geminga.storage.open_topics.durability import ACK_SYNC_MS

from .rig import T


def topics(count):
    return [f"topic-{number}" for number in range(count)]


@pytest.fixture
def watched(monkeypatch):
    """A function watched(rig) that returns what the rig's journal does, in order: "append" and "sync"."""
    def watch(rig):
        done = []
        for name in ("append", "sync"):
            real = getattr(rig.journal, name)

            def wrapped(*arguments, name=name, real=real):
                real(*arguments)
                done.append(name)

            monkeypatch.setattr(rig.journal, name, wrapped)
        return done
    return watch


# -- durability before answers -----------------------------------------------------------------------------------------

def test_a_receipt_is_given_only_when_its_entry_is_synced(rig, watched):
    producer = rig.producer("a")
    done = watched(rig)
    answers = rig.run(rig.sends((producer, b"x")))
    assert (len(answers.receipts), done) == (1, ["append", "sync"])


def test_a_pass_that_cannot_sync_answers_nothing(rig, monkeypatch):
    """A failed sync ends the process before any answer of the pass leaves.

    The kernel forgets data that it could not write, so the sync is not tried again.
    """
    producer = rig.producer("a")

    def fail(fd):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(NotDurable, match="Input/output"):
        rig.run(rig.sends((producer, b"x")))
    monkeypatch.undo()


def test_subscriptions_are_deleted_and_topics_truncated_with_the_sync_of_their_pass(rig, watched):
    """Deletions of subscriptions and truncations need no sync of their own; files change between the pass's sync and
    its answers.
    """
    producer = rig.producer("a")
    for subscription in ("first", "second"):
        rig.close_consumer(rig.consumer("a", subscription))
    ledger = rig.publish(producer, b"x")[0][0]
    path = rig.partition("a").find(ledger).ledger_path
    done = watched(rig)
    answers = rig.run(
        rig.question("unsubscribe", "a", subscription="first", force=False), rig.question("truncate", "a")
    )
    assert (len(answers.answered), done, path.exists()) == (2, ["append", "sync"], False)
    assert [name for name, _ in rig.partition("a").subscriptions] == ["second"]


def test_a_topic_that_is_truncated_and_unloaded_in_one_pass_comes_back_empty(rig):
    """A topic that is opened again in the pass that truncated it does not find the files of its deleted ledgers."""
    producer = rig.producer("a")
    rig.publish(producer, b"x", b"y")
    number = rig.number()
    subscribe = rig.command(
        "subscribe", topic="a", subscription="sub", subType=0, initialPosition=1, consumer_id=number, request_id=number
    )
    answers = rig.run(rig.question("truncate", "a"), rig.question("unload", "a"), subscribe)
    consumer = rig.consumer_in(answers, number, "a")
    assert (len(rig.partition("a").ledgers), rig.receive(consumer)) == (1, [])


@pytest.mark.slow
def test_many_partitions_in_one_pass_cost_one_sync(rig, watched):
    """SENDs to 60 topics and their acknowledgements in one pass cost one sync."""
    producers = [rig.producer(topic) for topic in topics(60)]
    consumers = [rig.consumer(topic) for topic in topics(60)]
    first = rig.run(rig.sends(*[(producer, b"x") for producer in producers]))
    done = watched(rig)
    acks = [
        rig.acks(consumer, position, request_id=7)
        for consumer, position in zip(consumers, first.positions, strict=True)
    ]
    answers = rig.run(*acks, rig.sends(*[(producer, b"y") for producer in producers]))
    assert (len(answers.receipts), len(answers.commands(T.ACK_RESPONSE))) == (60, 60)
    assert done == ["append", "sync"]


def test_acknowledgements_that_nobody_waits_for_are_synced_soon(rig, watched):
    """Acknowledgements without a receipt are synced with the next answer, or a moment later by themselves."""
    producer, consumer = rig.producer("a"), rig.consumer("a")
    [position] = rig.publish(producer, b"x")
    done = watched(rig)
    rig.run(rig.acks(consumer, position))
    assert done == ["append"]
    assert rig.owner.passes.due_ms() == rig.now_ms + ACK_SYNC_MS
    rig.run(after_ms=ACK_SYNC_MS)
    assert done == ["append", "sync"]
    assert rig.owner.passes.due_ms() > rig.now_ms + ACK_SYNC_MS


@pytest.mark.parametrize("request_id", [0, 5])
def test_an_acknowledgement_is_answered_when_it_is_synced_and_asked_for(rig, watched, request_id):
    producer, consumer = rig.producer("a"), rig.consumer("a")
    [position] = rig.publish(producer, b"x")
    done = watched(rig)
    answers = rig.run(rig.acks(consumer, position, request_id=request_id))
    assert [command.ackResponse.request_id for command in answers.commands(T.ACK_RESPONSE)] == [5] * bool(request_id)
    assert done == (["append", "sync"] if request_id else ["append"])


@pytest.mark.parametrize("count", [1, 100])
def test_an_acknowledgement_that_was_on_the_way_when_its_consumer_was_closed_is_refused(rig, count):
    """The client would wait for an answer until it gives up."""
    producer, consumer = rig.producer("a"), rig.consumer("a")
    positions = [rig.publish(producer, b"x")[0] for _ in range(count)]
    rig.asked("reset", "a", subscription="sub", time_ms=0)
    [answer] = rig.run(rig.acks(consumer, *positions, request_id=5)).commands(T.ACK_RESPONSE)
    refused = answer.ackResponse
    assert (refused.consumer_id, refused.request_id, refused.error) == (consumer.object_id, 5, api.ConsumerNotFound)
    assert rig.run(rig.acks(consumer, *positions)).commands() == []
    assert rig.asked("analyze", "a", subscription="sub")["messages"] == count


def test_a_new_subscription_is_synced_before_it_is_answered(rig, watched):
    rig.producer("a")
    done = watched(rig)
    rig.consumer("a")
    assert done == ["append", "sync"]


@pytest.mark.parametrize(("sync", "syncs"), [("interval", 1), ("none", 0)])
def test_other_ways_to_sync_answer_at_once(rigs, watched, sync, syncs):
    """With sync = "interval" or "none" answers do not wait for a sync."""
    rig = rigs(sync=sync, sync_interval_ms=500)
    producer = rig.producer("a")
    rig.run(after_ms=500)
    done = watched(rig)
    for _ in range(5):
        assert len(rig.run(rig.sends((producer, b"x"))).receipts) == 1
    rig.run(after_ms=500)
    assert done == ["append"] * 5 + ["sync"] * syncs


# -- receipts ----------------------------------------------------------------------------------------------------------

def test_receipts_come_in_order_and_with_dense_ids(rig):
    """Entry ids of a partition rise by one, and receipts of a producer follow the order of its SENDs over all
    sections.
    """
    one, other, elsewhere = rig.producer("a"), rig.producer("a", connection=2), rig.producer("b")
    messages = [(one, b"1"), (elsewhere, b"2"), (other, b"3"), (one, b"4"), (one, b"5"), (elsewhere, b"6")]
    answers = rig.run_all({1: [rig.sends(*messages), rig.sends((one, b"7"))], 2: [rig.sends((other, b"8"))]})
    by_producer = {}
    for _, connection, producer_id, sequence_id, position in answers.receipts:
        by_producer.setdefault((connection, producer_id), []).append((sequence_id, position))
    assert all(found == sorted(found) for found in by_producer.values())
    ledgers = {topic: rig.partition(topic).open_ledger.ledger_id for topic in "ab"}
    assert sorted(answers.positions) == sorted(
        [(ledgers["a"], n) for n in range(6)] + [(ledgers["b"], n) for n in range(2)]
    )
    assert [payload for _, payload in rig.everything("a")] == [b"1", b"3", b"4", b"5", b"7", b"8"]
    assert [payload for _, payload in rig.everything("b")] == [b"2", b"6"]
    assert {receipt[0] for receipt in answers.receipts} == {1, 2}


def test_each_worker_is_told_what_was_taken_from_it(rig):
    """Each worker's credit counts the bytes of its entries and the cost of its commands over all passes."""
    producer = rig.producer("a")
    section = rig.sends((producer, b"x" * 100), (producer, b"y"))
    first = rig.run(section).taken[1]
    command = first - len(section[2])      # that made the producer
    assert envelope.COMMAND_COST < command < envelope.COMMAND_COST + 100
    assert rig.run(rig.sends((producer, b"x" * 100), (producer, b"y"))).taken == {1: command + 2 * len(section[2])}


def test_what_a_producer_that_is_gone_still_sends_counts_for_nothing(rig):
    """SENDs of a closed producer are neither stored nor answered, and their worker gets its credit back."""
    gone, kept = rig.producer("a"), rig.producer("a")
    rig.run(rig.command("close_producer", producer_id=gone.object_id, request_id=1))
    answers = rig.run(rig.sends((gone, b"1"), (kept, b"2"), (gone, b"3")))
    assert len(answers.receipts) == 1 and answers.taken[1] > 0
    assert rig.run(rig.sends((gone, b"4"))).receipts == []
    assert [payload for _, payload in rig.everything("a")] == [b"2"]


def test_a_waiting_producer_cannot_publish_before_its_turn(rig):
    first = rig.producer("a", producer_access_mode=api.Exclusive)
    answers = rig.run(rig.command("producer", connection=2, topic="a", producer_id=1, request_id=1,
                                  producer_access_mode=api.WaitForExclusive))
    [waiting] = answers.commands(T.PRODUCER_SUCCESS)
    assert not waiting.producer_success.producer_ready
    answers = rig.run(rig.command("close_producer", producer_id=first.object_id, request_id=2))
    [ready] = answers.commands(T.PRODUCER_SUCCESS)
    assert (ready.producer_success.producer_ready, ready.producer_success.topic_epoch) == (True, 1)


# -- full disks --------------------------------------------------------------------------------------------------------

def test_a_full_disk_refuses_sends_and_later_ones_work(rig, monkeypatch):
    """A full disk answers SENDs with an error that clients retry; partitions with room are not affected."""
    big, small = rig.producer("a"), rig.producer("b")
    real = os.posix_fallocate

    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    answers = rig.run(rig.sends((big, b"x" * 70_000), (small, b"y"), (big, b"z")))
    errors = [(command.send_error.producer_id, command.send_error.error) for command in answers.commands(T.SEND_ERROR)]
    assert errors == [(big.object_id, api.PersistenceError)] * 2
    assert [receipt[2] for receipt in answers.receipts] == [small.object_id]
    assert rig.run(rig.sends((big, b"x" * 70_000))).receipts == []         # all of a pass is refused
    monkeypatch.setattr(os, "posix_fallocate", real)
    [position] = rig.publish(big, b"x" * 70_000)
    assert position[1] == 0
    assert rig.everything("a") == [(position, b"x" * 70_000)]
    assert [payload for _, payload in rig.everything("b")] == [b"y"]


def test_a_full_disk_refuses_a_new_topic_and_the_next_try_makes_it(rig, monkeypatch):
    real = os.posix_fallocate

    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    answers = rig.run(rig.command("producer", topic="a", producer_id=1, request_id=1))
    assert [command.error.error for command in answers.commands(T.ERROR)] == [api.PersistenceError]
    assert [action for _, action, *_ in answers.replies] == [envelope.PRODUCER_GONE]
    monkeypatch.setattr(os, "posix_fallocate", real)
    assert len(rig.publish(rig.producer("a"), b"x")) == 1
