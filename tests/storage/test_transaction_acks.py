"""Acknowledgements in transactions: pending until the transaction ends, however consumers and brokers come and go."""
import pytest

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.commands.consumers import QUARANTINE
from geminga.storage.topics.subscription import SubType
from geminga.supervisor.wording import sentences

from .transacting import FIRST, SECOND, T, ack, answer, end, given, got, open_for, subscription_of

KINDS = [SubType.Exclusive, SubType.Failover, SubType.Shared, SubType.Key_Shared]
SPREAD = SubType.Shared, SubType.Key_Shared
CONFLICT = api.TransactionConflict
EACH = pytest.mark.parametrize("kind", KINDS, ids=SubType.Name)


@pytest.fixture
def rigs(uncoordinated):
    return uncoordinated


def begin(rig, kind=SubType.Shared, *, count=5, batch=0):
    """Publish entries, deliver them all, and add the subscription to two transactions.

    Returns (the consumer, the positions).
    """
    producer = rig.producer("t")
    sent = rig.run(rig.sends(*[(producer, b"x", {"batch": batch} if batch else {}) for _ in range(count)]))
    consumer = rig.consumer("t", subType=kind)
    assert got(rig, consumer) == sent.positions
    open_for(rig, FIRST, SECOND)
    return consumer, sent.positions


def causes(rig):
    return rig.asked("why", "t", subscription="sub")["causes"]


def figures(rig):
    """Return (backlog in messages, messages that consumers hold and have not acknowledged)."""
    told = rig.asked("why", "t", subscription="sub")
    return told["messages"]["backlog"], sum(consumer["messages"] for consumer in told["consumers"])


def come_anew(rig, consumer, kind):
    """Close the consumer, attach another one; return it, and the positions that it gets."""
    rig.close_consumer(consumer)
    another = rig.consumer("t", subType=kind)
    return another, got(rig, another)


# -- pending, committed, aborted

@EACH
def test_pending_messages_are_not_redelivered(rig, kind, tmp_path):
    """Neither by asking, nor to a new consumer, nor by another broker that starts after a crash."""
    consumer, positions = begin(rig, kind)
    assert answer(rig, consumer, FIRST, positions[1], positions[2]) is None
    rest = [positions[0], *positions[3:]]
    answers = rig.run(rig.redeliver(consumer))
    assert [position for position, *_ in given(rig, answers, consumer)] == rest
    consumer, found = come_anew(rig, consumer, kind)
    assert found == rest
    after = rig.crashed(tmp_path / "next")
    assert got(after, after.consumer("t", subType=kind)) == rest
    again = after.crashed(tmp_path / "again")      # what the first start replayed is in a state file now
    assert got(again, again.consumer("t", subType=kind)) == rest


@EACH
def test_pending_messages_are_in_the_backlog_and_not_with_consumers(rig, kind):
    consumer, positions = begin(rig, kind)
    assert figures(rig) == (5, 5)
    answer(rig, consumer, FIRST, positions[1], positions[2])
    assert figures(rig) == (5, 3)
    end(rig, FIRST, commits=True)
    assert figures(rig) == (3, 3)


@EACH
def test_a_commit_acknowledges(rig, kind, tmp_path):
    consumer, positions = begin(rig, kind)
    answer(rig, consumer, FIRST, *positions[:2], positions[3])
    assert not given(rig, end(rig, FIRST, commits=True), consumer)
    subscription = subscription_of(rig)
    assert subscription.cursor.mark_delete == positions[1] and subscription.withheld is None
    assert answer(rig, consumer, SECOND, positions[3]) == CONFLICT
    _, found = come_anew(rig, consumer, kind)
    assert found == [positions[2], positions[4]]
    after = rig.crashed(tmp_path / "next")
    assert got(after, after.consumer("t", subType=kind)) == [positions[2], positions[4]]
    assert subscription_of(after).withheld is None


@EACH
def test_commits_of_one_pass_acknowledge_together(rig, kind, tmp_path):
    """Whole entries, messages of batches, and everything up to a position, each in its own transaction."""
    consumer, positions = begin(rig, kind, count=6, batch=2)
    third, fourth = names.transaction(0, 9), names.transaction(0, 10)
    open_for(rig, third, fourth)
    assert answer(rig, consumer, FIRST, positions[1], positions[4]) is None
    assert answer(rig, consumer, SECOND, (*positions[3], [0b10])) is None
    assert answer(rig, consumer, third, positions[0], cumulative=True) is None
    assert answer(rig, consumer, fourth, (*positions[3], [0b01]), positions[5]) is None
    assert figures(rig)[0] == 12
    end(rig, FIRST, SECOND, third, fourth, commits=True)
    subscription = subscription_of(rig)
    assert subscription.cursor.mark_delete == positions[1] and subscription.withheld is None
    assert (figures(rig)[0], subscription.transactions_ended) == (2, (4, 0))
    assert come_anew(rig, consumer, kind)[1] == [positions[2]]
    after = rig.crashed(tmp_path / "next")
    assert got(after, after.consumer("t", subType=kind)) == [positions[2]]


@EACH
def test_an_abort_gives_back_at_once(rig, kind, tmp_path):
    """Shared and Key_Shared count it as a redelivery; on others everything unacknowledged comes again, in order."""
    consumer, positions = begin(rig, kind)
    rig.run(rig.acks(consumer, positions[0]))
    answer(rig, consumer, FIRST, positions[1], positions[3])
    answers = end(rig, FIRST, commits=False)
    expected = [(positions[1], 1, 0), (positions[3], 1, 0)] if kind in SPREAD else [
        (position, 0, 0) for position in positions[1:]]
    assert given(rig, answers, consumer) == expected
    assert answer(rig, consumer, SECOND, positions[1]) is None
    after = rig.crashed(tmp_path / "next")
    answers = after.run(after.flow(another := after.consumer("t", subType=kind), 100))
    counts = [0, 1, 0] if kind in SPREAD else [0, 0, 0]
    assert given(after, answers, another) == list(zip(positions[2:], counts, [0] * 3, strict=True))


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_that_was_open_over_a_crash_ends_as_any_other(rig, kind, commits, tmp_path):
    consumer, positions = begin(rig, kind)
    answer(rig, consumer, FIRST, positions[0], positions[2])
    after = rig.crashed(tmp_path / "next")
    consumer = after.consumer("t", subType=kind)
    assert answer(after, consumer, FIRST, positions[2]) == CONFLICT
    assert answer(after, consumer, FIRST, positions[4]) is None      # it goes on
    assert got(after, consumer) == [positions[1], positions[3]]
    answers = end(after, FIRST, commits=commits)
    assert bool(given(after, answers, consumer)) != commits
    _, found = come_anew(after, consumer, kind)
    assert found == ([positions[1], positions[3]] if commits else positions)


def test_an_abort_without_consumers_gives_back_to_the_next_one(rig):
    consumer, positions = begin(rig)
    answer(rig, consumer, FIRST, positions[1])
    rig.close_consumer(consumer)
    end(rig, FIRST, commits=False)
    answers = rig.run(rig.flow(consumer := rig.consumer("t", subType=SubType.Shared), 100))
    assert [redeliveries for _, redeliveries, _ in given(rig, answers, consumer)] == [0, 1, 0, 0, 0]


def test_an_abort_gives_nothing_that_was_not_delivered_before_its_turn(rig):
    """Entries behind the read position come once, when permits reach them."""
    _, positions = begin(rig)
    another = rig.consumer("t", "other", subType=SubType.Shared)
    assert got(rig, another, 1) == positions[:1]
    open_for(rig, FIRST, subscription="other")
    assert answer(rig, another, FIRST, *positions[2:]) is None      # ids may come from another consumer
    assert not given(rig, end(rig, FIRST, commits=False), another)
    assert got(rig, another, 10) == positions[1:]


def test_consumers_that_hold_too_many_go_on_when_these_are_pending(rigs):
    rig = rigs(max_unacked_messages_per_consumer=3)
    producer = rig.producer("t")
    positions = rig.publish(producer, *[b"x"] * 6)
    consumer = rig.consumer("t", subType=SubType.Shared)
    assert got(rig, consumer) == positions[:3]
    open_for(rig, FIRST)
    answers = rig.run(ack(rig, consumer, FIRST, *positions[:3]))
    assert [position for position, *_ in given(rig, answers, consumer)] == positions[3:]


def test_what_is_pending_in_a_batch_of_many_entries_is_left_out(rig):
    """Consumers get what lies between and behind pending entries, however these are spread."""
    consumer, positions = begin(rig, count=300)
    answer(rig, consumer, FIRST, *positions[::2])
    answer(rig, consumer, SECOND, *positions[101:200:2])
    more = rig.publish(rig.producer("t"), b"x", b"y")
    _, found = come_anew(rig, consumer, SubType.Shared)
    assert found == [*positions[1:100:2], *positions[201::2], *more]


def test_a_pending_message_that_leaves_quarantine_stays_pending(rig):
    """A consumer died over it, and another one has acknowledged it in a transaction, before it was released."""
    careful = {"subType": SubType.Shared, "metadata": [api.KeyValue(key=QUARANTINE, value="1")]}
    positions = rig.publish(rig.producer("t"), b"x", b"y")
    assert got(rig, rig.consumer("t", connection=2, **careful)) == positions
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=2))
    consumer = rig.consumer("t", **careful)
    open_for(rig, FIRST)
    assert got(rig, consumer) == []
    assert answer(rig, consumer, FIRST, positions[0]) is None
    answers = rig.run(rig.question("release", "t", subscription="sub"))
    assert [position for position, *_ in given(rig, answers, consumer)] == positions[1:]
    rig.partition("t").check()


# -- conflicts

def test_a_message_is_acknowledged_by_one_transaction_only(rig):
    """Neither another transaction nor the same one takes it again, nor one that comes after the end."""
    consumer, positions = begin(rig)
    rig.run(rig.acks(consumer, positions[0], positions[2]))
    assert answer(rig, consumer, FIRST, positions[0]) == answer(rig, consumer, FIRST, positions[2]) == CONFLICT
    assert answer(rig, consumer, FIRST, positions[1]) is None
    assert answer(rig, consumer, FIRST, positions[1]) == answer(rig, consumer, SECOND, positions[1]) == CONFLICT


def test_a_list_with_one_conflict_changes_nothing(rig):
    """The other messages of a refused list are still with the consumer, and it can give them back."""
    consumer, positions = begin(rig)
    answer(rig, consumer, FIRST, positions[1])
    before = figures(rig)
    assert answer(rig, consumer, SECOND, *positions) == CONFLICT
    assert figures(rig) == before == (5, 4)
    rest = [positions[0], *positions[2:]]
    answers = rig.run(rig.redeliver(consumer, *rest))
    assert [position for position, *_ in given(rig, answers, consumer)] == rest
    assert answer(rig, consumer, SECOND, *rest) is None


def test_a_message_may_come_twice_in_one_list(rig):
    consumer, positions = begin(rig)
    assert answer(rig, consumer, FIRST, positions[0], positions[0]) is None
    assert figures(rig) == (5, 4)


def test_only_transactions_that_were_added_may_acknowledge(rig):
    """An id that no coordinator gives out, an unknown one, one without this subscription, and one that has ended."""
    consumer, positions = begin(rig)
    other = rig.consumer("t", "other", subType=SubType.Shared)
    for transaction in (names.transaction(0, 9), names.LEAST_MAX + 1 << 10, FIRST):
        assert answer(rig, other, transaction, positions[0]) == api.TransactionNotFound
    end(rig, FIRST, commits=True)
    assert answer(rig, consumer, FIRST, positions[0]) == api.TransactionNotFound
    assert figures(rig) == (5, 5)


def test_a_partition_without_transactions_knows_none(rig):
    rig.publish(rig.producer("t"), b"x")
    assert answer(rig, rig.consumer("t"), FIRST, (1, 0)) == api.TransactionNotFound


def test_messages_that_do_not_exist_are_ignored(rig):
    consumer, positions = begin(rig)
    ledger_id = positions[0][0]
    unknown = [(ledger_id, 5), (ledger_id + 100, 0), (ledger_id, 1 << 40), (ledger_id, (1 << 64) - 1)]
    assert answer(rig, consumer, FIRST, *unknown) is None
    assert [answer(rig, consumer, FIRST, each, cumulative=True) for each in unknown[:3]] == [None] * 3
    assert answer(rig, consumer, FIRST, (1 << 63, 0)) == CONFLICT      # negative: before all that is acknowledged
    assert subscription_of(rig).withheld is None
    answers = rig.run(rig.sends((rig.producer("t"), b"y")))
    assert [position for position, *_ in given(rig, answers, consumer)] == answers.positions == unknown[:1]


def test_a_consumer_that_is_not_there_is_told_so(rig):
    consumer, positions = begin(rig)
    rig.close_consumer(consumer)
    [command] = rig.run(ack(rig, consumer, FIRST, positions[0])).commands(T.ACK_RESPONSE)
    assert command.ackResponse.error == api.ConsumerNotFound


def test_without_a_request_id_there_is_no_answer(rig):
    consumer, positions = begin(rig)
    assert not rig.run(ack(rig, consumer, FIRST, positions[0], request_id=None)).commands()
    assert not rig.run(ack(rig, consumer, FIRST, positions[0], request_id=None)).commands()
    assert answer(rig, consumer, FIRST, positions[0]) == CONFLICT


def test_a_non_persistent_topic_has_no_transactions(rig):
    consumer = rig.consumer("non-persistent://public/default/n")
    [command] = rig.run(ack(rig, consumer, FIRST, (0, 0))).commands(T.ACK_RESPONSE)
    assert command.ackResponse.error == api.NotAllowedError


# -- cumulative

@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Failover], ids=SubType.Name)
@pytest.mark.parametrize("commits", [True, False])
def test_a_cumulative_one_is_pending_up_to_its_position(rig, kind, commits, tmp_path):
    consumer, positions = begin(rig, kind)
    assert answer(rig, consumer, FIRST, positions[2], cumulative=True) is None
    after = rig.crashed(tmp_path / "next")
    consumer = after.consumer("t", subType=kind)
    assert got(after, consumer) == positions[3:]
    assert subscription_of(after).withheld.up_to == positions[2]
    end(after, FIRST, commits=commits)
    _, found = come_anew(after, consumer, kind)
    assert found == (positions[3:] if commits else positions)


def test_aborted_cumulative_ones_come_when_the_consumer_asks_or_comes_anew(rig):
    """Not at once, as the consumer still holds them; but at once if it was passed over meanwhile."""
    consumer, positions = begin(rig, SubType.Exclusive)
    answer(rig, consumer, FIRST, positions[2], cumulative=True)
    assert not given(rig, end(rig, FIRST, commits=False), consumer)
    answers = rig.run(rig.redeliver(consumer))
    assert [position for position, *_ in given(rig, answers, consumer)] == positions
    answer(rig, consumer, SECOND, positions[2], cumulative=True)
    consumer, found = come_anew(rig, consumer, SubType.Exclusive)
    assert found == positions[3:]
    answers = end(rig, SECOND, commits=False)
    assert [position for position, *_ in given(rig, answers, consumer)] == positions


def test_conflicts_of_cumulative_ones(rig):
    """At or below what is acknowledged, at or below its own last, and while another transaction has one."""
    consumer, positions = begin(rig, SubType.Exclusive)
    rig.run(rig.acks(consumer, positions[0], cumulative=True))
    assert answer(rig, consumer, FIRST, positions[0], cumulative=True) == CONFLICT
    assert answer(rig, consumer, FIRST, positions[2], cumulative=True) is None
    assert answer(rig, consumer, FIRST, positions[2], cumulative=True) == CONFLICT
    assert answer(rig, consumer, FIRST, positions[1], cumulative=True) == CONFLICT
    assert answer(rig, consumer, SECOND, positions[4], cumulative=True) == CONFLICT
    assert answer(rig, consumer, FIRST, positions[3], cumulative=True) is None
    end(rig, FIRST, commits=True)
    assert subscription_of(rig).cursor.mark_delete == positions[3]
    assert answer(rig, consumer, SECOND, positions[4], cumulative=True) is None


@pytest.mark.parametrize("commits", [True, False])
def test_individual_and_cumulative_ones_do_not_see_each_other(rig, commits):
    consumer, positions = begin(rig, SubType.Exclusive)
    assert answer(rig, consumer, FIRST, positions[1]) is None
    assert answer(rig, consumer, SECOND, positions[2], cumulative=True) is None
    assert answer(rig, consumer, FIRST, positions[0]) is None
    answers = end(rig, FIRST, commits=commits)
    assert not given(rig, answers, consumer)      # all are behind the other one's position
    end(rig, SECOND, commits=not commits)
    _, found = come_anew(rig, consumer, SubType.Exclusive)
    assert found == (positions[2:] if commits else positions[3:])


@pytest.mark.parametrize("kind", SPREAD, ids=SubType.Name)
def test_spread_subscriptions_take_cumulative_ones_in_transactions(rig, kind):
    consumer, positions = begin(rig, kind)
    assert answer(rig, consumer, FIRST, positions[2], cumulative=True) is None
    assert figures(rig) == (5, 2)
    answers = end(rig, FIRST, commits=False)
    assert given(rig, answers, consumer) == [(position, 1, 0) for position in positions[:3]]
    assert answer(rig, consumer, SECOND, positions[2], cumulative=True) is None
    end(rig, SECOND, commits=True)
    assert subscription_of(rig).cursor.mark_delete == positions[2] and figures(rig) == (2, 2)


# -- plain acknowledgements, seek, deletion

@pytest.mark.parametrize("kind, cumulative", [(kind, False) for kind in KINDS] + [(SubType.Exclusive, True)])
def test_plain_acknowledgements_win(rig, kind, cumulative, tmp_path):
    """They succeed over pending ones, and the abort gives nothing back."""
    consumer, positions = begin(rig, kind)
    answer(rig, consumer, FIRST, *positions[:2])
    some = [positions[1]] if cumulative else positions[:2]
    rig.run(rig.acks(consumer, *some, cumulative=cumulative))
    assert subscription_of(rig).cursor.mark_delete == positions[1]
    assert figures(rig)[0] == 3
    assert not given(rig, end(rig, FIRST, commits=False), consumer)
    after = rig.crashed(tmp_path / "next")
    assert got(after, after.consumer("t", subType=kind)) == positions[2:]


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("commits", [True, False])
def test_pending_messages_stay_hidden_after_a_seek_and_are_committed(rig, kind, commits, tmp_path):
    consumer, positions = begin(rig, kind)
    rig.run(rig.acks(consumer, positions[0]))
    answer(rig, consumer, FIRST, positions[1])
    start = api.MessageIdData(ledgerId=positions[0][0], entryId=0)
    rig.run(rig.command("seek", consumer_id=consumer.object_id, request_id=9, message_id=start))
    consumer = rig.consumer("t", subType=kind)
    assert got(rig, consumer) == [positions[0], *positions[2:]]
    end(rig, FIRST, commits=commits)
    after = rig.crashed(tmp_path / "next")
    assert got(after, after.consumer("t", subType=kind)) == [
        positions[0], *([] if commits else [positions[1]]), *positions[2:]]


def test_a_commit_in_the_pass_of_a_seek_outlives_a_crash(rig, tmp_path):
    """The journal has the commit's acknowledgements behind the seek, as they came."""
    consumer, positions = begin(rig)
    answer(rig, consumer, FIRST, positions[1])
    start = api.MessageIdData(ledgerId=positions[0][0], entryId=0)
    rig.owner.passes.begin(rig.now_ms)
    section = rig.command("seek", consumer_id=consumer.object_id, request_id=9, message_id=start)
    rig.owner.passes.receive(1, [section])
    end(rig, FIRST, commits=True)
    after = rig.crashed(tmp_path / "next")
    assert got(after, after.consumer("t", subType=SubType.Shared)) == [positions[0], *positions[2:]]


@pytest.mark.parametrize("commits", [True, False])
def test_pending_acknowledgements_go_with_their_subscription(rig, commits, tmp_path):
    """A new subscription of the same name has nothing of them, nor has one after a crash."""
    consumer, positions = begin(rig)
    answer(rig, consumer, FIRST, positions[0])
    [command] = rig.run(rig.command("unsubscribe", consumer_id=consumer.object_id, request_id=9)).commands()
    assert command.type == T.SUCCESS
    assert rig.partition("t").transactions.by_id[FIRST].acks == {}
    consumer = rig.consumer("t", subType=SubType.Shared)
    assert got(rig, consumer) == positions
    assert answer(rig, consumer, FIRST, positions[0]) == api.TransactionNotFound
    after = rig.crashed(tmp_path / "next")
    after_consumer = after.consumer("t", subType=SubType.Shared)
    assert not (after.partition("t").transactions or rig.partition("t").transactions).by_id[FIRST].acks
    end(rig, FIRST, commits=commits)
    assert got(after, after_consumer) == positions
    assert subscription_of(rig).cursor.mark_delete < positions[0]


@pytest.mark.parametrize("commits", [True, False])
def test_a_reader_s_acknowledgements_are_in_memory(rig, commits, tmp_path):
    """They end as others do if the transaction is known here; else they have no effect."""
    _, positions = begin(rig)
    reader = rig.consumer("t", "reader", durable=False)
    assert got(rig, reader) == positions
    assert answer(rig, reader, names.transaction(0, 9), positions[0]) is None
    assert subscription_of(rig, "reader", durable=False).withheld is None
    assert answer(rig, reader, FIRST, positions[0]) is None
    answers = rig.run(rig.redeliver(reader))
    assert [position for position, *_ in given(rig, answers, reader)] == positions[1:]
    answers = end(rig, FIRST, commits=commits)
    assert [position for position, *_ in given(rig, answers, reader)] == ([] if commits else positions)
    assert subscription_of(rig, "reader", durable=False).cursor.is_acknowledged(*positions[0]) == commits
    after = rig.crashed(tmp_path / "next")
    assert got(after, after.consumer("t", subType=SubType.Shared)) == positions


# -- messages of batches

ALL = 0b1111


def test_a_batch_comes_with_what_is_not_pending_of_it(rig, tmp_path):
    """Several transactions may have messages of it.  Overlaps conflict, also with the whole entry."""
    consumer, positions = begin(rig, count=2, batch=4)
    entry = positions[0]
    assert answer(rig, consumer, FIRST, (*entry, [0b1110])) is None
    assert answer(rig, consumer, SECOND, (*entry, [0b1101])) is None
    for taken in ([0b1110], [0b1100], [0b0000], []):
        assert answer(rig, consumer, SECOND, (*entry, taken)) == CONFLICT
    assert figures(rig) == (8, 6)
    answers = rig.run(rig.redeliver(consumer))
    assert given(rig, answers, consumer) == [(entry, 1, 0b1100), (positions[1], 1, 0)]
    after = rig.crashed(tmp_path / "next")
    answers = after.run(after.flow(after.consumer("t", subType=SubType.Shared), 100))
    assert [entry for *_, entries in answers.gifts for entry in entries] == [(0, 1, [0b1100]), (1, 1, [])]
    end(rig, FIRST, commits=True)
    assert figures(rig) == (7, 6)
    answers = end(rig, SECOND, commits=False)
    assert given(rig, answers, consumer) == [(entry, 2, 0b1110)] and figures(rig) == (7, 7)


@EACH
def test_after_an_abort_a_batch_comes_as_a_whole(rig, kind):
    consumer, positions = begin(rig, kind, count=1, batch=4)
    assert answer(rig, consumer, FIRST, (*positions[0], [0b1110])) is None
    answers = end(rig, FIRST, commits=False)
    assert given(rig, answers, consumer) == [(positions[0], int(kind in SPREAD), 0)]


@EACH
def test_a_batch_of_which_all_is_pending_is_withheld(rig, kind, tmp_path):
    consumer, positions = begin(rig, kind, count=2, batch=4)
    assert answer(rig, consumer, FIRST, (*positions[0], [0b1100])) is None
    assert answer(rig, consumer, SECOND, (*positions[0], [0b0011])) is None
    if kind in SPREAD:
        assert figures(rig) == (8, 4)
    consumer, found = come_anew(rig, consumer, kind)
    assert found == positions[1:]
    after = rig.crashed(tmp_path / "next")
    another = after.consumer("t", subType=kind)
    assert got(after, another) == positions[1:]
    for each in (rig, after):
        end(each, SECOND, commits=True)
        answers = end(each, FIRST, commits=each is rig)
        expected = [] if each is rig else [(positions[0], int(kind in SPREAD), 0b0011)]
        assert given(each, answers, another)[:1] == expected
    assert subscription_of(rig).cursor.mark_delete == positions[0]


def test_messages_that_are_pending_one_after_the_other_make_a_whole(rig):
    """The counts of the consumer follow each of them, and a plain acknowledgement of the rest ends it."""
    consumer, positions = begin(rig, count=1, batch=4)
    for bit, left in ((0, 3), (1, 2)):
        assert answer(rig, consumer, FIRST, (*positions[0], [ALL & ~(1 << bit)])) is None
        assert figures(rig) == (4, left)
    rig.run(rig.ack_part(consumer, positions[0], 0b0011))
    rig.partition("t").check()
    assert figures(rig) == (2, 0)
    end(rig, FIRST, commits=True)
    assert figures(rig) == (0, 0) and subscription_of(rig).cursor.mark_delete == positions[0]


def test_plain_acknowledgements_of_pending_messages_of_a_batch_win(rig):
    """What was acknowledged meanwhile is not given back, nor counted twice."""
    consumer, positions = begin(rig, count=1, batch=4)
    answer(rig, consumer, FIRST, (*positions[0], [0b1100]))
    rig.run(rig.ack_part(consumer, positions[0], 0b1010))
    rig.partition("t").check()
    assert figures(rig) == (2, 1)
    answers = rig.run(rig.redeliver(consumer))
    assert given(rig, answers, consumer) == [(positions[0], 1, 0b1000)]
    answers = end(rig, FIRST, commits=False)
    assert given(rig, answers, consumer) == [(positions[0], 2, 0b1010)] and figures(rig) == (2, 2)
    assert answer(rig, consumer, SECOND, (*positions[0], [0b1110])) == CONFLICT
    assert answer(rig, consumer, SECOND, (*positions[0], [0b1000])) is None      # one of its three is new
    rig.run(rig.acks(consumer, positions[0]))
    assert not given(rig, end(rig, SECOND, commits=False), consumer) and figures(rig) == (0, 0)


def test_a_set_that_leaves_nothing_is_for_the_whole_entry(rig):
    consumer, positions = begin(rig, count=2, batch=4)
    assert answer(rig, consumer, FIRST, (*positions[0], [0])) is None
    assert answer(rig, consumer, FIRST, (*positions[1], [0b1110]), positions[1]) is None      # the whole wins
    assert figures(rig) == (8, 0) and not subscription_of(rig).withheld.parts
    end(rig, FIRST, commits=True)
    assert figures(rig) == (0, 0)


def test_a_cumulative_one_within_a_batch_is_pending_up_to_its_message(rig):
    consumer, positions = begin(rig, SubType.Exclusive, count=3, batch=4)
    assert answer(rig, consumer, FIRST, (*positions[1], [0b1110]), cumulative=True) is None
    assert answer(rig, consumer, FIRST, (*positions[1], [0b1110]), cumulative=True) == CONFLICT
    assert answer(rig, consumer, FIRST, (*positions[1], [0b1100]), cumulative=True) is None
    consumer, found = come_anew(rig, consumer, SubType.Exclusive)
    assert found == positions[1:]
    end(rig, FIRST, commits=True)
    cursor = subscription_of(rig).cursor
    assert cursor.mark_delete == positions[0] and cursor.parts[positions[1][0]] == {positions[1][1]: 0b1100}


def test_messages_of_a_batch_count_without_the_option_too(rigs):
    """Pulsar 4.0.7 asks for the option only where there is no transaction."""
    rig = rigs(batch_index_acknowledgement=False)
    consumer, positions = begin(rig, SubType.Exclusive, count=3, batch=4)
    (ledger_id, first), part = positions[0], (*positions[0], [0b1110])
    assert answer(rig, consumer, FIRST, part) is None
    assert answer(rig, consumer, SECOND, part) == CONFLICT
    assert subscription_of(rig).withheld.parts == {ledger_id: {first: 0b0001}}
    assert answer(rig, consumer, SECOND, (*positions[2], [0]), positions[2]) is None
    end(rig, FIRST, commits=True)
    end(rig, SECOND, commits=True)
    cursor = subscription_of(rig).cursor
    assert cursor.parts[ledger_id] == {first: 0b1110} and cursor.is_acknowledged(*positions[2])


def test_a_batch_that_claims_too_many_messages_is_not_acknowledged_in_part(rig):
    """An ack set of few bytes would stand for millions of messages; nothing has changed then."""
    positions = rig.run(rig.sends(*[(rig.producer("t"), b"x", {"batch": 1 << 30})] * 2)).positions
    consumer = rig.consumer("t", subType=SubType.Shared)
    open_for(rig, FIRST)
    assert answer(rig, consumer, FIRST, positions[1], (*positions[0], [1])) == api.NotAllowedError
    assert subscription_of(rig).withheld is None
    assert answer(rig, consumer, FIRST, *positions) is None


# -- for people

@EACH
def test_why_names_transactions_that_acknowledge_the_backlog(rig, kind):
    """Nobody else is blamed once consumers hold nothing.  Messages that are acknowledged meanwhile do not count."""
    consumer, positions = begin(rig, kind, batch=4)
    assert answer(rig, consumer, FIRST, *positions[:2], (*positions[2], [0b1110])) is None
    assert answer(rig, consumer, SECOND, (*positions[2], [0b0001])) is None
    rig.run(rig.acks(consumer, positions[1]))
    first = {"cause": "acknowledged in a transaction", "transaction": "(0,7)", "messages": 5}
    second = first | {"transaction": "(1,8)", "messages": 3}
    assert causes(rig)[:2] == [first, second] and len(causes(rig)) == 3
    rig.run(rig.acks(consumer, *positions[3:]))
    assert causes(rig) == [first, second]
    end(rig, FIRST, commits=True)
    assert causes(rig) == [second]
    [*_, sentence, advice] = sentences.tell([rig.asked("why", "t", subscription="sub")], "t", "sub")
    assert advice.endswith("geminga transactions abort 1,8")
    assert sentence.strip() == \
        "3 messages are acknowledged in transaction (1,8), which is open; they come again if it aborts."
    end(rig, SECOND, commits=True)
    assert causes(rig) == [{"cause": "no backlog"}]


def test_messages_up_to_a_position_count_once(rig):
    consumer, positions = begin(rig, SubType.Exclusive)
    assert answer(rig, consumer, FIRST, positions[1]) is None
    assert answer(rig, consumer, FIRST, positions[2], cumulative=True) is None
    assert causes(rig)[0]["messages"] == 3
