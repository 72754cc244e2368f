"""Dead letters in an owner: what is dead goes to no consumer, and to the mover of its subscription, come what may."""
import pytest

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.cursors.dead_entries import DELIVERIES, EXPIRED, REASON_SHIFT
from geminga.storage.open_topics import dead_letters
from geminga.storage.topics.subscription import SubType
from geminga.supervisor.wording import sentences

from .test_replication_cursors import is_replicator, set_policy

TOPIC, MOVER = "persistent://public/default/t", 90
KINDS = [SubType.Shared, SubType.Key_Shared]


def mover(rig, connection=MOVER):
    """The consumer of the process that moves dead letters, with permits for all of them; and what it gets at once."""
    is_replicator(rig, connection)
    consumer = rig.consumer("t", subType=SubType.Shared, connection=connection)
    return consumer, letters(rig.run(rig.flow(consumer, 100)))


def letters(answers):
    """{position: (reason, count)} of dead entries in answers."""
    return {(ledger_id, entry_id): (redeliveries >> REASON_SHIFT, redeliveries & (1 << REASON_SHIFT) - 1)
            for _, _, ledger_id, entries in answers.gifts for entry_id, redeliveries, *_ in entries}


def dead(rig, kind=SubType.Shared, limit=1):
    """A message that its consumer has given back once too often, and another one; and the consumer."""
    consumer = rig.consumer("t", subType=kind)
    set_policy(rig, "deadLetter", {"maxRedeliverCount": limit})
    poison, other = rig.publish(rig.producer("t"), b"poison", b"other")
    rig.run(rig.flow(consumer, 100))
    for _ in range(limit + 1):
        rig.run(rig.redeliver(consumer, poison))
    return consumer, poison, other


def test_the_mover_s_reason_is_told(rig):
    """A mover that could move nothing says why, by the next consumer that it opens."""
    dead(rig)
    is_replicator(rig, MOVER)
    rig.consumer("t", subType=SubType.Shared, connection=MOVER,
                 metadata=[api.KeyValue(key=names.MOVER_ERROR, value="there is no room")])
    told = rig.asked("why", "t", subscription="sub")
    assert any("failed: there is no room." in line for line in sentences.tell([told], "t", "sub"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_given_back_too_often_goes_to_the_mover_alone(rig, kind):
    consumer, poison, other = dead(rig, kind)
    assert rig.receive(consumer) == []
    taker, came = mover(rig)
    assert came == {poison: (DELIVERIES, 2)}
    assert letters(rig.run(rig.flow(taker, 100))) == {}
    rig.run(rig.acks(consumer, other))
    told = rig.asked("why", "t", subscription="sub")
    assert {"cause": "dead letters", "entries": 1, "error": ""} in told["causes"]
    assert not any("about to be delivered again" in line for line in sentences.tell([told], "t", "sub"))
    assert any("1 dead letter is on the way to the dead letter topic." in line
               for line in sentences.tell([told], "t", "sub"))
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=MOVER))
    assert mover(rig, MOVER + 1)[1] == {poison: (DELIVERIES, 2)}
    rig.run(rig.acks(consumer, poison))      # its client is done with it after all
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=MOVER + 1))
    assert mover(rig, MOVER + 2)[1] == {} and rig.asked("why", "t", subscription="sub")["backlog"] == 0


def test_what_is_dead_is_dead_after_a_crash(rig, tmp_path):
    _, poison, other = dead(rig)
    after = rig.crashed(tmp_path / "next")
    assert after.receive(after.consumer("t", subType=SubType.Shared)) == [(other, b"other")]
    assert mover(after)[1] == {poison: (DELIVERIES, 2)}
    after.close()


def test_a_consumer_that_dies_counts_as_a_delivery(rig):
    set_policy(rig, "deadLetter", {"maxRedeliverCount": 1})
    first = rig.consumer("t", subType=SubType.Shared, connection=5)
    [poison] = rig.publish(rig.producer("t"), b"poison")
    for connection in (5, 6):
        consumer = first if connection == 5 else rig.consumer("t", subType=SubType.Shared, connection=connection)
        assert rig.receive(consumer) == [(poison, b"poison")]
        rig.run(rig.happened(envelope.CONNECTION_GONE, connection=connection))
    assert rig.receive(rig.consumer("t", subType=SubType.Shared)) == []
    assert mover(rig)[1] == {poison: (DELIVERIES, 2)}


@pytest.mark.parametrize("policy", [None, {"maxRedeliverCount": 9}])
def test_what_a_new_policy_lets_live_is_delivered_again(rig, policy):
    consumer, poison, _ = dead(rig)
    answers = set_policy(rig, "deadLetter", policy)
    assert (poison, b"poison") in rig.delivered(answers, consumer)


def test_a_mover_keeps_what_it_has_when_the_policy_changes(rig):
    """Its transaction may be under way: the message must not be delivered beside the letter."""
    consumer, *_ = dead(rig)
    mover(rig)
    assert rig.delivered(set_policy(rig, "deadLetter", None), consumer) == []


def test_expired_messages_are_letters_on_durable_subscriptions_of_every_type(rigs):
    rig = rigs(message_ttl_s=1)
    set_policy(rig, "deadLetter", {"expired": True})
    consumer = rig.consumer("t", subType=SubType.Exclusive)
    position, = rig.publish(rig.producer("t"), b"old")
    rig.run(after_ms=3_000)
    assert rig.receive(consumer) == []
    assert mover(rig)[1] == {position: (EXPIRED, 0)}


def test_what_has_expired_is_made_a_letter_once(rigs, monkeypatch):
    """Letters that wait cost little in each second: a million of them had kept their owner from answering."""
    rig = rigs(message_ttl_s=1)
    set_policy(rig, "deadLetter", {"expired": True})
    rig.consumer("t", subType=SubType.Shared)
    positions = rig.publish(rig.producer("t"), b"1", b"2", b"3")
    buried, bury = [], dead_letters.bury
    monkeypatch.setattr(dead_letters, "bury", lambda decisions, subscription, ledger_id, entries, reason, **how: (
        buried.append(len(entries)) or bury(decisions, subscription, ledger_id, entries, reason, **how)))
    for _ in range(3):
        rig.run(after_ms=3_000)
    assert buried[0] == len(positions) and not any(buried[1:])
    assert mover(rig)[1].keys() == set(positions)


def test_a_topic_of_dead_letters_has_none(rig):
    consumer = rig.consumer("t-sub-DLQ", subType=SubType.Shared)
    set_policy(rig, "deadLetter", {"maxRedeliverCount": 1, "expired": True})
    [position] = rig.publish(rig.producer("t-sub-DLQ"), b"x")
    rig.run(rig.flow(consumer, 100))
    for _ in range(5):
        assert rig.delivered(rig.run(rig.redeliver(consumer, position)), consumer) == [(position, b"x")]


@pytest.mark.parametrize("own_s", [None, 5])
def test_what_has_expired_does_not_expire_again_among_dead_letters(rig, own_s):
    """The times to live of the namespace do not hold for the topic, one of its own does."""
    dead_topic = f"{TOPIC}-sub-DLQ"
    rig.consumer("t-sub-DLQ")
    set_policy(rig, "messageTTL", 2)
    set_policy(rig, "ownMessageTTL", True)
    set_policy(rig, "deadLetter", {"expired": True})
    if own_s is not None:
        set_policy(rig, "messageTTL", own_s, dead_topic)
    properties = [api.KeyValue(key="geminga.ttl", value="1s")]
    rig.run(rig.sends((rig.producer("t-sub-DLQ"), b"x", {"properties": properties})))
    for waited_ms in (4_000, 4_000):
        rig.run(after_ms=waited_ms)
    partition = rig.partition("t-sub-DLQ")
    assert partition.subscriptions["sub", True].cursor.backlog(partition.ledgers) == (own_s is None)
