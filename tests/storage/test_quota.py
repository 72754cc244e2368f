"""Backlog quotas: above a quota, producers are held or refused, or entries are evicted. Producers are let in again
when there is room.
"""
import random

import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.cursors.cursor import EVICTED
from geminga.storage.topics.subscription import SubType

from .rig import entry_of

LIMIT = 10_000
HOLD, EXCEPTION, EVICTION = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
PAYLOAD = b"x" * 1_000
SIZE = len(entry_of(PAYLOAD, sequence_id=100))
T = api.BaseCommand.Type


def asks(rig, name="mine", epoch=0, number=77, **fields):
    return rig.command("producer", topic="t", producer_id=number, request_id=number, producer_name=name,
                       user_provided_producer_name=True, epoch=epoch, **fields)


def errors(answers):
    return [(command.error.error, command.error.message) for command in answers.commands(T.ERROR)]


def is_let_in(answers, number=77):
    return any(action == envelope.PRODUCER_READY and object_id == number
               for _, action, object_id, _, _ in answers.replies)


def filled(rigs, policy, **options):
    """Publish until the backlog just exceeds the quota. Return (rig, producer, consumer, positions)."""
    rig = rigs(backlog_quota_bytes=LIMIT, backlog_quota_policy=policy, **options)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    positions = []
    while len(positions) * SIZE < LIMIT:
        positions += rig.publish(producer, PAYLOAD)
    assert len(positions) == -(-LIMIT // SIZE)
    return rig, producer, consumer, positions


def closed(answers):
    return [command.close_producer.producer_id for command in answers.commands(T.CLOSE_PRODUCER)]


@pytest.mark.parametrize(("policy", "code"), [(HOLD, api.ProducerBlockedQuotaExceededError),
                                              (EXCEPTION, api.ProducerBlockedQuotaExceededException)])
def test_the_next_message_is_refused_and_so_is_whoever_comes_new(rigs, policy, code):
    """A message above the quota gets no receipt: its client sends it again when it is let in."""
    rig, producer, _, positions = filled(rigs, policy)
    answers = rig.run(rig.sends((producer, PAYLOAD)))
    assert (closed(answers), answers.receipts) == ([producer.object_id], [])
    assert rig.run(rig.sends((producer, PAYLOAD))).receipts == []
    assert [position for position, _ in rig.everything("t")] == positions
    assert errors(rig.run(asks(rig))) == [(code, "Cannot create producer on topic with backlog quota exceeded")]
    assert is_let_in(rig.run(rig.command("producer", topic="else", producer_id=78, request_id=78)), 78)


@pytest.mark.parametrize("policy", [HOLD, EXCEPTION, EVICTION])
def test_quotas_that_are_not_checked_stop_and_evict_nothing(rigs, policy):
    rig, producer, consumer, positions = filled(rigs, policy, backlog_quota_check=False)
    positions += rig.publish(producer, PAYLOAD, PAYLOAD)
    assert is_let_in(rig.run(asks(rig)))
    rig.run(after_ms=5_000)
    assert [position for position, _ in rig.receive(consumer)] == positions


def test_who_comes_back_waits_and_is_let_in_when_there_is_room(rigs):
    rig, producer, consumer, positions = filled(rigs, HOLD)
    rig.run(rig.sends((producer, PAYLOAD)))
    assert rig.run(asks(rig, epoch=1)).replies == []
    assert rig.run(after_ms=5_000).replies == []
    answers = rig.run(rig.acks(consumer, positions[5]))
    for _ in range(2):
        answers = answers if is_let_in(answers) else rig.run(after_ms=500)
    assert is_let_in(answers)


@pytest.mark.parametrize("policy", [HOLD, EXCEPTION])
def test_a_replicator_is_told_the_error_after_which_it_tries_again(rigs, policy):
    """At the other code Pulsar's replicator stops until its topic is unloaded."""
    rig, *_ = filled(rigs, policy)
    answers = rig.run(asks(rig, "pulsar.repl.far-->here"))
    assert [code for code, _ in errors(answers)] == [api.ProducerBlockedQuotaExceededError]


def test_who_comes_back_has_an_answer_after_ten_seconds(rigs):
    rig, producer, _, _ = filled(rigs, HOLD)
    rig.run(rig.sends((producer, PAYLOAD)))
    rig.run(asks(rig, epoch=1))
    assert rig.run(after_ms=9_999).replies == []
    answers = rig.run(after_ms=1_000)
    text = "Cannot create producer on topic with backlog quota exceeded"
    assert errors(answers) == [(api.ProducerBlockedQuotaExceededError, text)]
    assert rig.run(after_ms=20_000).replies == []


@pytest.mark.parametrize("policy", [HOLD, EXCEPTION])
def test_with_the_exception_nobody_waits(rigs, policy):
    rig, producer, _, _ = filled(rigs, policy)
    rig.run(rig.sends((producer, PAYLOAD)))
    assert bool(errors(rig.run(asks(rig, epoch=1)))) == (policy == EXCEPTION)


def test_who_gave_up_waiting_does_not_get_in(rigs):
    """A producer that was closed, or whose connection has ended, is not let in any more."""
    rig, producer, consumer, positions = filled(rigs, HOLD)
    rig.run(rig.sends((producer, PAYLOAD)))
    rig.run(asks(rig, epoch=1), asks(rig, "other", 1, 78, connection=2))
    rig.run(rig.command("close_producer", producer_id=77, request_id=5))
    rig.run(rig._command_section(2, envelope.CONNECTION_GONE, b""))
    rig.run(rig.acks(consumer, *positions))
    assert not rig.partition("t").producers.live
    assert rig.run(after_ms=60_000).replies == []
    assert not rig.partition("t").producers.live


def test_an_unloaded_topic_keeps_nobody_waiting(rigs):
    rig, producer, _, _ = filled(rigs, HOLD)
    rig.run(rig.sends((producer, PAYLOAD)))
    rig.run(asks(rig, epoch=1))
    answers = rig.run(rig.question("unload", "t"))
    assert [code for code, _ in errors(answers)] == [api.ServiceNotReady]


def test_a_waiting_exclusive_producer_has_its_turn(rigs):
    """An exclusive producer that waits has no access yet, and no other is told that it has."""
    rig = rigs(backlog_quota_bytes=LIMIT)
    rig.consumer("t")
    first = rig.producer("t", producer_access_mode=api.Exclusive)
    rig.run(asks(rig, producer_access_mode=api.WaitForExclusive))
    rig.publish(first, *[PAYLOAD] * 10)
    answers = rig.run(rig.sends((first, PAYLOAD)))
    assert (closed(answers), is_let_in(answers)) == ([first.object_id], True)


def test_room_is_made_by_whatever_takes_the_backlog_away(rigs):
    rig, producer, consumer, _positions = filled(rigs, HOLD)
    for make_room in (lambda: rig.question("clear", "t", subscription="sub"),
                      lambda: rig.command("unsubscribe", consumer_id=consumer.object_id, request_id=5, force=True)):
        assert not is_let_in(rig.run(asks(rig, epoch=1)))
        rig.run(make_room())
        assert is_let_in(rig.run(after_ms=1_000))
        rig.run(rig.command("close_producer", producer_id=77, request_id=6))
        producer = rig.producer("t")
        rig.publish(producer, *[PAYLOAD] * 10)


def test_only_what_is_not_acknowledged_counts(rigs):
    """One entry in front of acknowledged ones makes no backlog; readers do not count, other subscriptions do."""
    rig, producer, consumer, positions = filled(rigs, HOLD)
    rig.consumer("t", "reader", durable=False)
    rig.run(rig.acks(consumer, *positions[1:]))
    answers = rig.run(*[rig.sends((producer, PAYLOAD))])
    assert len(answers.receipts) == 1
    rig.consumer("t", "slow")      # from the beginning: ledgers hold it all
    assert closed(rig.run(rig.sends((producer, PAYLOAD)))) == [producer.object_id]


def test_a_quota_of_age_looks_at_the_oldest_message_that_is_not_delayed(rigs):
    rig = rigs(backlog_quota_age_s=60)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    later = {"deliver_at_time": rig.now_ms + 3_600_000}
    rig.run(rig.sends((producer, b"late", later)))
    rig.run(after_ms=30_000)
    [position] = rig.publish(producer, b"a")
    rig.run(after_ms=59_999)
    assert len(rig.publish(producer, b"b")) == 1
    rig.run(after_ms=1)
    assert closed(rig.run(rig.sends((producer, b"c")))) == [producer.object_id]
    assert errors(rig.run(asks(rig)))
    rig.run(rig.acks(consumer, position))
    assert is_let_in(rig.run(asks(rig)))


def set_quota(rig, kind, value):
    rig.owner.catalogue.policies.set("public/default", f"backlogQuota/{kind}", value)
    rig.owner.catalogue.commit()
    return rig.run(rig.tell("policies", scope="public/default"))


def test_a_quota_that_is_set_or_taken_away_holds_for_the_next_message(rig):
    producer, _ = rig.producer("t"), rig.consumer("t")
    rig.publish(producer, *[PAYLOAD] * 10)
    set_quota(rig, "destination_storage", {"limitSize": LIMIT, "limitTime": -1, "policy": HOLD})
    assert closed(rig.run(rig.sends((producer, PAYLOAD)))) == [producer.object_id]
    assert not is_let_in(rig.run(asks(rig, epoch=1)))
    set_quota(rig, "destination_storage", None)
    assert is_let_in(rig.run(after_ms=1_000))


@pytest.mark.parametrize(("of_age", "of_size", "code"), [
    (HOLD, EXCEPTION, api.ProducerBlockedQuotaExceededError),
    (EXCEPTION, HOLD, api.ProducerBlockedQuotaExceededException),
    (EXCEPTION, EVICTION, api.ProducerBlockedQuotaExceededException)])
def test_each_quota_has_its_own_way(rig, of_age, of_size, code):
    """The quota of age has its own action, whatever the action of the quota of size is."""
    producer, _ = rig.producer("t"), rig.consumer("t")
    set_quota(rig, "destination_storage", {"limitSize": 1 << 30, "limitTime": -1, "policy": of_size})
    set_quota(rig, "message_age", {"limitSize": -1, "limitTime": 60, "policy": of_age})
    rig.publish(producer, b"a")
    rig.run(after_ms=60_001)
    assert [error for error, _ in errors(rig.run(asks(rig)))] == [code]


# -- eviction

def state(rig, subscription="sub"):
    """Return (entries that are not acknowledged, messages evicted)."""
    found = rig.partition("t")
    cursor = found.subscriptions[subscription, True].cursor
    return cursor.backlog(found.ledgers), cursor.totals[EVICTED]


def test_the_slowest_subscriptions_lose_their_oldest_messages(rigs):
    rig, producer, consumer, positions = filled(rigs, EVICTION)
    rig.consumer("t", "fast", initialPosition=0)
    assert len(rig.publish(producer, PAYLOAD, PAYLOAD)) == 2
    kept, evicted = state(rig)
    assert (kept * SIZE <= LIMIT, kept + evicted) == (True, len(positions) + 2)
    assert kept * SIZE > LIMIT * 0.8
    assert state(rig, "fast") == (2, 0)
    assert rig.counters.read()["entries_evicted"] == evicted
    assert [position for position, _ in rig.receive(consumer)][:1] == [positions[evicted]]


def test_messages_whose_time_has_not_come_are_not_evicted(rigs):
    rig = rigs(backlog_quota_bytes=LIMIT, backlog_quota_policy=EVICTION)
    producer, _ = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    later = {"deliver_at_time": rig.now_ms + 3_600_000}
    for _ in range(20):
        assert rig.run(rig.sends((producer, PAYLOAD, later))).receipts
    assert state(rig) == (20, 0)
    rig.publish(producer, PAYLOAD)
    rig.run(after_ms=1_000)
    assert state(rig) == (20, 1)
    rig.run(after_ms=3_600_000)
    kept, evicted = state(rig)
    assert kept * SIZE <= LIMIT and kept + evicted == 21


def test_messages_that_are_too_old_are_evicted_within_a_second(rigs):
    rig = rigs(backlog_quota_age_s=60, backlog_quota_policy=EVICTION)
    producer, _ = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    rig.run(rig.sends((producer, b"late", {"deliver_at_time": rig.now_ms + 3_600_000}), (producer, b"a")))
    rig.run(after_ms=30_000)
    rig.publish(producer, b"b")
    rig.run(after_ms=29_999)
    assert state(rig) == (3, 0)
    rig.run(after_ms=1_001)
    assert state(rig) == (2, 1)
    assert len(rig.publish(producer, b"c")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_nobody_is_kept_out_without_reason_nor_let_in_with_one(rigs, seed):
    """Producers are held or let in exactly by a count of all entries, over acknowledgements, roll-overs, new
    subscriptions and restarts.
    """
    random_ = random.Random(seed)
    # The quota is exceeded by eight entries.
    rig = rigs(backlog_quota_bytes=8 * SIZE - SIZE // 2, roll_over_entries=random_.choice((3, 1_000)))
    producer, consumers = rig.producer("t"), {"sub": rig.consumer("t", subType=SubType.Shared)}
    backlogs = {"sub": []}
    for step in range(150):
        what, name = random_.random(), random_.choice(list(backlogs))
        is_full = max(map(len, backlogs.values())) >= 8
        if what < 0.55:
            answers = rig.run(rig.sends((producer, PAYLOAD)))
            assert bool(answers.receipts) != is_full
            if is_full:
                producer = None
            else:
                for backlog in backlogs.values():
                    backlog += answers.positions
        elif backlogs[name]:
            position = backlogs[name].pop(random_.randrange(len(backlogs[name])))
            rig.run(rig.acks(consumers[name], position))
        if 0.6 < what < 0.62 and len(backlogs) < 3:
            name = f"sub-{step}"
            consumers[name] = rig.consumer("t", name, subType=SubType.Shared, initialPosition=0)
            backlogs[name] = []
        if 0.65 < what < 0.67:
            rig = rigs.restart(rig)
            producer = None
            consumers = {name: rig.consumer("t", name, subType=SubType.Shared) for name in consumers}
        while producer is None:
            if max(map(len, backlogs.values())) >= 8:
                assert errors(rig.run(asks(rig, f"p-{step}", number=1_000 + step)))
                name = max(backlogs, key=lambda name: len(backlogs[name]))
                rig.run(rig.acks(consumers[name], backlogs[name].pop(0)))
            else:
                producer = rig.producer("t")
