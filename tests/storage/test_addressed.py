"""What a redrive publishes for one subscription comes to no other, through kills; names.ONLY_FOR."""
import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.open_topics import addressed
from geminga.storage.topics import publish_plan

T = api.BaseCommand.Type
LOST = [api.KeyValue(key=names.ONLY_FOR, value="lost")]


def for_lost(rig, topic="t"):
    """Return a producer for the subscription `lost`, whose name another subscription has."""
    return rig.producer(topic, producer_name="redrive", metadata=LOST)


def got(rig, consumer):
    return [payload for _, payload in rig.receive(consumer)]


def subscribed(rig):
    """Return consumers of the subscriptions `lost`, `other` and `redrive`, and a reader."""
    return [rig.consumer("t", name, durable=name != "reader") for name in ("lost", "other", "redrive", "reader")]


@pytest.mark.parametrize("count", [3, publish_plan.FEW_MAX + 1], ids=["few", "many"])
@pytest.mark.parametrize("killed", [False, True])
def test_only_the_subscription_that_lost_them_gets_copies(rigs, count, killed):
    """The redrive's own subscription keeps them too, by which a repeated redrive knows what it has sent."""
    rig = rigs()
    plain = rig.producer("t")
    consumers = subscribed(rig)
    copies = for_lost(rig)
    rig.run(rig.sends(*((producer, b"%d" % number) for number in range(count) for producer in (plain, copies))))
    if killed:
        rig = rigs.crash(rig)
        consumers = subscribed(rig)[:3]
    once = [b"%d" % number for number in range(count)]
    twice = [each for each in once for _ in range(2)]
    expected = [twice, once, twice, once][:len(consumers)]
    assert [got(rig, consumer) for consumer in consumers] == expected
    assert got(rig, rig.consumer("t", "later")) == twice


def test_a_subscription_that_waits_far_behind_does_not_get_them_either(rigs):
    rig = rigs()
    plain = rig.producer("t")
    for consumer in subscribed(rig):
        rig.close_consumer(consumer)
    rig.publish(plain, b"before")
    rig.publish(for_lost(rig), b"copy")
    rig = rigs.restart(rig)
    rig.publish(rig.producer("t"), b"behind")
    assert got(rig, rig.consumer("t", "other")) == [b"before", b"behind"]
    assert got(rig, rig.consumer("t", "lost")) == [b"before", b"copy", b"behind"]


def test_a_producer_for_a_subscription_that_is_not_there_is_refused(rigs):
    rig = rigs()
    answers = rig.run(rig.command("producer", topic="t", producer_id=7, request_id=7, metadata=LOST))
    [command] = answers.commands(T.ERROR)
    assert command.error.error == api.SubscriptionNotFound


def test_copies_for_a_subscription_that_was_deleted_come_to_all(rigs):
    """Nothing is lost: they are messages like all others then."""
    rig = rigs()
    lost, other, *_ = subscribed(rig)
    copies = for_lost(rig)
    rig.run(rig.command("unsubscribe", consumer_id=lost.object_id, request_id=5))
    rig.publish(copies, b"copy")
    assert got(rig, other) == [b"copy"]


def test_a_record_has_room_for_so_many_acknowledgements(rigs, monkeypatch):
    """More are noted behind the record, in the same pass."""
    monkeypatch.setattr(addressed, "_OPS_MAX", 1)
    rig = rigs()
    subscribed(rig)
    rig.publish(for_lost(rig), b"copy")
    rig = rigs.crash(rig)
    assert [got(rig, rig.consumer("t", name)) for name in ("lost", "other")] == [[b"copy"], []]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("killed", [False, True])
def test_copies_in_a_transaction_come_to_that_subscription_once_it_is_committed(uncoordinated, killed, commits):
    """A redrive sends so to scalable topics.  What is undone counts as skipped once, for each subscription."""
    rig = uncoordinated()
    plain = rig.producer("t")
    consumers = subscribed(rig)[:3]
    copies = for_lost(rig)
    transaction = rig.begin("t")
    rig.publish_in(transaction, copies, b"1", b"2")
    rig.publish(plain, b"behind")
    if killed:
        assert [got(rig, consumer) for consumer in consumers] == [[], [], []]
        rig = uncoordinated.crash(rig)
        consumers = subscribed(rig)[:3]
    rig.end(transaction, "t", commits=commits)
    both = [b"1", b"2", b"behind"] if commits else [b"behind"]
    assert [got(rig, consumer) for consumer in consumers] == [both, [b"behind"], both]
    partition = rig.partition("t")
    for subscription in partition.subscriptions.values():
        cursor = subscription.cursor
        left = cursor.backlog_messages(partition.ledgers)
        assert partition.next_message - cursor.since == left + sum(cursor.totals), subscription.name
