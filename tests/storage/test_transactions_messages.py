"""Messages of transactions in one owner: who gets them when, what a commit, an abort, a kill and an unload leave."""
import pytest

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.cursors.producer_sequences import NOWHERE
from geminga.storage.offline import verify
from geminga.storage.topics.subscription import SubType

from . import test_layout_change_steps as layouts
from .files import copy_of
from .test_rates import dispatch_rate, publish_rate, sets
from .transactional import TransactionalRig, killed_at

T = api.BaseCommand.Type
KINDS = pytest.mark.parametrize(
    "kind", [SubType.Exclusive, SubType.Failover, SubType.Shared, SubType.Key_Shared], ids=SubType.Name)
WAYS = pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])


@pytest.fixture
def rig(tmp_path):
    made = TransactionalRig(tmp_path / "data")
    yield made
    made.close()


def texts(rig, topic="t"):
    """Return what a reader from the beginning gets."""
    return [payload for _, payload in rig.everything(topic)]


def received(rig, consumer):
    return [payload for _, payload in rig.receive(consumer)]


def backlog(rig):
    """Return the backlog of the only subscription, in messages."""
    partition = rig.partition("t")
    [subscription] = partition.subscriptions.values()
    return subscription.cursor.backlog(partition.ledgers)


def errors(answers):
    return [(command.send_error.sequence_id, command.send_error.error)
            for command in answers.commands(api.BaseCommand.SEND_ERROR)]


@KINDS
@WAYS
def test_nobody_gets_a_message_before_the_commit_nor_one_behind_it(rig, kind, commits):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    transaction = rig.begin("t")
    [before] = rig.publish(producer, b"before")
    places = rig.publish_in(transaction, producer, b"a", b"b")
    [behind] = rig.publish(producer, b"behind")
    assert [*places, behind] == [(before[0], entry_id) for entry_id in (1, 2, 3)]
    assert received(rig, consumer) == [b"before"]
    [answers] = rig.end(transaction, "t", commits=commits)
    expected = [b"a", b"b", b"behind"] if commits else [b"behind"]
    assert [payload for _, payload in rig.delivered(answers, consumer)] == expected
    assert texts(rig) == [b"before", *expected]


def test_order_is_that_of_storing_and_not_of_commits(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    first, second = rig.begin("t"), rig.begin("t")
    rig.publish_in(first, producer, b"1")
    rig.publish_in(second, producer, b"2")
    rig.publish_in(first, producer, b"3")
    rig.end(second, "t")
    assert received(rig, consumer) == []
    [answers] = rig.end(first, "t")
    assert [payload for _, payload in rig.delivered(answers, consumer)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("count", [1, 40], ids=["few", "many"])
def test_a_pass_may_mix_transactions_and_plain_messages_of_several_topics(rig, count):
    topics = "t", "u"
    producers, mixed = {topic: rig.producer(topic) for topic in topics}, []
    commits, aborts = rig.begin(*topics), rig.begin(*topics)
    for number in range(count):
        for topic in topics:
            for transaction in (0, commits, aborts, commits):
                mixed.append((transaction, producers[topic], b"%d %d" % (transaction, number)))
    rig.run(rig.mixed(*mixed))
    rig.end(aborts, *topics, commits=False)
    assert texts(rig, "t") == [b"0 0"]
    rig.end(commits, *topics)
    expected = [b"%d %d" % (transaction, number) for number in range(count) for transaction in (0, commits, commits)]
    assert texts(rig, "t") == texts(rig, "u") == expected


@WAYS
def test_a_topic_is_no_more_behind_another_than_its_own_end(rig, commits):
    producers = [rig.producer(topic) for topic in ("t", "u")]
    transaction = rig.begin("t", "u")
    for producer in producers:
        rig.publish_in(transaction, producer, b"a")
    rig.end(transaction, "t", commits=commits)
    assert texts(rig, "t") == [b"a"] * commits and texts(rig, "u") == []
    rig.end(transaction, "u", commits=commits)
    assert texts(rig, "u") == [b"a"] * commits


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize("kills", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_kill_changes_nothing(rig, tmp_path, commits, kills):
    for topic in ("t", "u"):
        rig.publish(rig.producer(topic), b"before")

    def step(number):
        nonlocal rig
        if number in kills:
            rig = killed_at(rig, tmp_path / f"next-{number}")
            assert texts(rig) == [b"before"] + ([b"a", b"b"] * (commits and number == 2)), number
    transaction = rig.begin("t", "u")
    rig.publish_in(transaction, rig.producer("t"), b"a")
    step(0)
    rig.publish_in(transaction, rig.producer("t"), b"b")
    step(1)
    rig.owner.topics.find(rig.topic("t"))
    rig.end(transaction, "t", commits=commits)
    step(2)
    assert texts(rig) == [b"before"] + [b"a", b"b"] * commits
    consumer = rig.consumer("t", "new")
    assert received(rig, consumer) == [b"before"] + [b"a", b"b"] * commits
    rig.close()


@WAYS
def test_checkpoints_keep_what_is_open_and_what_has_ended(rig, tmp_path, commits):
    producer = rig.producer("t")
    ended, still_open = rig.begin("t"), rig.begin("t")
    rig.publish_in(ended, producer, b"a")
    rig.publish_in(still_open, producer, b"b")
    filler = rig.producer("other")
    size = 200_000
    for _ in range(12):
        rig.publish(filler, bytes(size))
    rig.end(ended, "t", commits=commits)
    for _ in range(12):
        rig.publish(filler, bytes(size))
    after = rig.crashed(tmp_path / "next")
    assert texts(after) == [b"a"] * commits
    after.end(still_open, "t")
    assert texts(after) == [b"a"] * commits + [b"b"]
    after.close()


@WAYS
def test_an_unloaded_topic_asks_how_its_transactions_ended(rig, commits):
    producer = rig.producer("t")
    partition_id = rig.partition("t").partition_id
    published, added = rig.begin("t"), rig.begin("t")
    rig.publish_in(published, producer, b"a")
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=1))
    rig.owner.topics.unload(rig.partition("t"))
    assert not rig.partitions
    producer = rig.producer("t")
    assert rig.peers.sent[-1] == (0, envelope.ASK, published, partition_id, 0)
    rig.publish_in(added, producer, b"b")
    for transaction in (published, added):
        rig.end(transaction, "t", commits=commits)
    assert texts(rig) == [b"a", b"b"] * commits


def test_an_owner_that_is_back_is_asked_about_its_transactions(rig):
    producer = rig.producer("t")
    partition_id = rig.partition("t").partition_id
    rig.peers.owners = 3
    transactions = [rig.begin("t", transaction=names.transaction(most, 1)) for most in (0, 1, 4)]
    for transaction in transactions:
        rig.publish_in(transaction, producer, b"a")
    rig.peers.sent.clear()
    rig.participant.ask_again(1)
    assert rig.peers.sent == [(1, envelope.ASK, transaction, partition_id, 0) for transaction in transactions[1:]]


def test_a_transaction_that_is_not_open_is_refused(rig):
    producer, other = rig.producer("t"), rig.producer("u")
    transaction, unknown = rig.begin("t"), names.transaction(0, 99)
    assert not rig.run(rig.sends_in(transaction, (other, b"not added"))).commands()
    refused = rig.answer(envelope.REFUSED, *rig.questions())
    assert [error for _, error in errors(refused)] == [api.NotAllowedError] and not refused.receipts
    rig.run(rig.mixed((0, producer, b"0"), (unknown, producer, b"1"), (transaction, producer, b"2")))
    answers = rig.answer(envelope.REFUSED, *rig.questions())
    assert [error for _, error in errors(answers)] == [api.NotAllowedError] and len(answers.receipts) == 2
    rig.end(transaction, "t")
    assert texts(rig) == [b"0", b"2"] and texts(rig, "u") == []


def test_a_message_of_a_committed_transaction_is_refused_and_one_of_an_aborted_dropped(rig):
    """Dropped with a receipt: a client that lost its answers sends again, and some stop for good at an error."""
    producer = rig.producer("t")
    for commits in (True, False):
        transaction = rig.begin("t")
        rig.publish_in(transaction, producer, b"a")
        rig.end(transaction, "t", commits=commits)
        late = rig.run(rig.mixed((0, producer, b"before"), (transaction, producer, b"late"), (0, producer, b"after")))
        assert [error for _, error in errors(late)] == [api.NotAllowedError] * commits
        dropped = [command.send_receipt.message_id.entryId for command in late.commands(T.SEND_RECEIPT)]
        assert dropped == [NOWHERE] * (not commits) and len(late.receipts) == 2
    assert rig.questions() == []
    assert texts(rig) == [b"a", b"before", b"after", b"before", b"after"]


@pytest.mark.parametrize("what", [envelope.ADD, envelope.ABORT, envelope.REFUSED], ids=["added", "aborted", "refused"])
def test_a_send_waits_for_its_coordinator_and_all_behind_it_to_the_topic_wait(rig, what):
    first, second, elsewhere = rig.producer("t"), rig.producer("t"), rig.producer("u")
    transaction = names.transaction(0, 99)
    waiting = rig.run(rig.mixed((0, first, b"0"), (transaction, first, b"1"), (0, second, b"2"), (0, elsewhere, b"u")))
    assert len(waiting.receipts) == 1 and texts(rig, "u") == [b"u"]
    assert not rig.run(rig.sends((second, b"3"))).receipts and texts(rig) == []
    assert not rig.run(rig.sends_in(transaction, (first, b"4"))).receipts
    [question] = rig.questions()
    answers = rig.answer(what, question)
    assert [error for _, error in errors(answers)] == [api.NotAllowedError] * 2 * (what == envelope.REFUSED)
    stored = {envelope.ADD: [b"0"], envelope.ABORT: [b"0", b"2", b"3"], envelope.REFUSED: [b"0", b"2", b"3"]}[what]
    assert texts(rig) == stored
    if what == envelope.ADD:
        rig.end(transaction, "t")
        assert texts(rig) == [b"0", b"1", b"2", b"3", b"4"]
    assert rig.questions() == [] and not rig.owner.admission.is_asking


def test_sends_of_many_unknown_transactions_cost_one_question_each(rig):
    producer, count = rig.producer("t"), 1_500
    transactions = [names.transaction(0, 1_000 + number) for number in range(count)]
    rig.run(rig.mixed(*[(transaction, producer, b"x") for transaction in transactions]))
    asked = rig.questions()
    assert sorted(asked) == sorted((transaction, rig.partition("t").partition_id) for transaction in transactions)
    answers = rig.answer(envelope.REFUSED, *asked)
    assert [error for _, error in errors(answers)] == [api.NotAllowedError] * count
    assert rig.questions() == [] and texts(rig) == []


def test_a_question_is_repeated_to_an_owner_that_is_back_and_given_up_if_none_comes(rig):
    producer, transaction = rig.producer("t"), names.transaction(1, 99)
    rig.peers.owners = 2
    rig.run(rig.mixed((transaction, producer, b"x"), (0, producer, b"y")))
    assert len(rig.questions()) == 1
    for index in (0, 1):
        rig.owner.admission.ask_again(index)
        assert len(rig.questions()) == index
    answers = rig.run(after_ms=6_000)
    assert [error for _, error in errors(answers)] == [api.NotAllowedError] and len(answers.receipts) == 1
    assert texts(rig) == [b"y"]


def test_sends_that_wait_end_with_their_topic_and_producer(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    rig.run(rig.sends_in(names.transaction(0, 99), (producer, b"x")))
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=1))
    [question] = rig.questions()
    assert not rig.answer(envelope.ADD, question).receipts
    producer = rig.producer("t")
    rig.run(rig.sends_in(names.transaction(0, 98), (producer, b"x")))
    for each in (producer, consumer):
        kind = "close_producer" if each is producer else "close_consumer"
        rig.run(rig.command(kind, **{f"{kind[6:]}_id": each.object_id}, request_id=1))
    rig.owner.topics.unload(rig.partition("t"))
    assert not rig.owner.admission.is_asking


@pytest.mark.parametrize("count", [1, 50], ids=["few", "many"])
@WAYS
def test_refused_messages_hold_nobody_back(rig, tmp_path, commits, count):
    """Messages of an unknown and of an ended transaction leave nothing in the topic, so what comes behind is delivered.
    """
    producer, consumer = rig.producer("t"), rig.consumer("t")
    ended, unknown = rig.begin("t"), names.transaction(0, 99)
    rig.publish_in(ended, producer, b"a")
    rig.end(ended, "t", commits=commits)
    for transaction in (ended, unknown):
        answers = rig.run(rig.sends_in(transaction, *[(producer, b"refused")] * count))
        if transaction == unknown:
            answers = rig.answer(envelope.REFUSED, *rig.questions())
        refused = [] if transaction == ended and not commits else [api.NotAllowedError] * count
        assert [error for _, error in errors(answers)] == refused
    rig.publish(producer, b"behind")
    assert received(rig, consumer) == [b"a"] * commits + [b"behind"]
    after = rig.crashed(tmp_path / "next")
    assert texts(after) == [b"a"] * commits + [b"behind"] and after.partition("t").limit is None
    after.close()


def test_a_non_persistent_topic_takes_no_transaction(rig):
    producer = rig.producer("non-persistent://public/default/n")
    refused = rig.run(rig.sends_in(names.transaction(0, 5), (producer, b"a")))
    assert [error for _, error in errors(refused)] == [api.NotAllowedError]


def test_an_end_of_what_is_not_there_is_answered_at_once(rig):
    rig.producer("t")
    partition_id = rig.partition("t").partition_id
    for there in (partition_id, 77):
        for transaction in (5, 6):
            _, told = rig.pass_of(rig.participant.end, [transaction], there, commits=transaction == 5)
            assert told == [(0, envelope.ENDED, transaction, there, 0)]


@WAYS
def test_an_end_that_is_repeated_changes_nothing(rig, commits):
    producer = rig.producer("t")
    transaction = rig.begin("t")
    rig.publish_in(transaction, producer, b"a")
    for _ in range(3):
        rig.end(transaction, "t", commits=commits)
    assert texts(rig) == [b"a"] * commits
    assert rig.partition("t").transactions.committed == commits


@WAYS
def test_an_end_takes_no_entry_and_no_place_in_the_backlog(rig, commits):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    transaction = rig.begin("t")
    [(ledger_id, entry_id)] = rig.publish_in(transaction, producer, b"a")
    rig.end(transaction, "t", commits=commits)
    for position, _ in rig.receive(consumer):
        rig.run(rig.acks(consumer, position))
    assert backlog(rig) == 0
    assert rig.publish(producer, b"b") == [(ledger_id, entry_id + 1)] and backlog(rig) == 1


def test_an_end_opens_the_partition(rig, tmp_path):
    producer = rig.producer("t")
    transaction, partition_id = rig.begin("t"), rig.partition("t").partition_id
    rig.publish_in(transaction, producer, b"a")
    after = rig.crashed(tmp_path / "next")
    assert not after.partitions
    _, told = after.pass_of(after.participant.end, [transaction], partition_id, commits=True)
    assert (0, envelope.ENDED, transaction, partition_id, 0) in told
    assert texts(after) == [b"a"]
    after.close()


# -- the last message, readers, seeks

def last(rig, consumer):
    [answer] = rig.run(
        rig.command("getLastMessageId", consumer_id=consumer.object_id, request_id=1)).commands()
    told = answer.getLastMessageIdResponse.last_message_id
    return told.ledgerId, told.entryId, told.batch_index


NOTHING = ((1 << 64) - 1, (1 << 64) - 1, -1)


@pytest.mark.parametrize("commits", [False, True])
def test_a_sealed_segment_does_not_tell_a_last_message_before_its_transactions_have_ended(rig, commits):
    """A checkpoint consumer that has it leaves the segment, and would lose what is committed later."""
    rig.owner.catalogue.scalable_topics.create(layouts.TOPIC, 2)
    segment = layouts.segments(rig)[0]
    producer, consumer = rig.producer(segment), rig.consumer(segment)
    rig.publish(producer, b"before")
    transaction = rig.begin(segment)
    rig.publish_in(transaction, producer, b"a")
    [behind] = rig.publish(producer, b"behind")
    assert last(rig, consumer)[0] == behind[0]
    layouts.begin(rig, "split")
    assert layouts.carry_out(rig)
    [answer] = rig.run(rig.command("getLastMessageId", consumer_id=consumer.object_id, request_id=1)).commands()
    assert answer.error.error == api.ServiceNotReady
    rig.end(transaction, segment, commits=commits)
    assert last(rig, consumer) == (*behind, -1)


def test_the_last_message_is_one_that_a_consumer_can_get(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    first, second = rig.begin("t"), rig.begin("t")
    rig.publish_in(first, producer, b"a", b"b")
    assert last(rig, consumer) == NOTHING
    rig.end(first, "t", commits=False)
    assert last(rig, consumer) == NOTHING
    [plain] = rig.publish(producer, b"c")
    section = rig.sends_in(second, (producer, b"d", {"batch": 3}))
    [batch] = rig.run(section).positions
    assert last(rig, consumer) == (*plain, -1)
    rig.end(second, "t")
    assert last(rig, consumer) == (*batch, 2)


@pytest.mark.slow
@WAYS
def test_statistics_of_a_consumer_count_what_it_can_get(rig, commits):
    """Whoever reads as many messages as the consumer's backlog would wait for those that are undone."""
    producer, consumer = rig.producer("t"), rig.consumer("t")

    def told():
        [answer] = rig.run(rig.command("consumerStats", consumer_id=consumer.object_id, request_id=8)).commands()
        return answer.consumerStatsResponse.msgBacklog

    rig.publish(producer, b"before")
    transaction = rig.begin("t")
    rig.publish_in(transaction, producer, b"a", b"b")
    rig.publish(producer, b"behind")
    assert (told(), backlog(rig)) == (1, 4)
    rig.end(transaction, "t", commits=commits)
    left = 4 if commits else 2
    assert (told(), backlog(rig), len(rig.receive(consumer))) == (left, left, left)


def test_thousands_of_aborted_messages_are_passed_over_for_the_last_one(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    [plain] = rig.publish(producer, b"a")
    transaction = rig.begin("t")
    for _ in range(3):
        rig.publish_in(transaction, producer, *[b"x"] * 3_000)
    rig.end(transaction, "t", commits=False)
    assert last(rig, consumer) == (*plain, -1)


@KINDS
@WAYS
def test_a_subscription_at_latest_begins_behind_open_messages(rig, kind, commits):
    producer = rig.producer("t")
    transaction = rig.begin("t")
    rig.publish_in(transaction, producer, b"a", b"b")
    consumer = rig.consumer("t", subType=kind, initialPosition=0)
    rig.publish(producer, b"behind")
    assert received(rig, consumer) == []
    [answers] = rig.end(transaction, "t", commits=commits)
    assert [payload for _, payload in rig.delivered(answers, consumer)] == [b"behind"]


@KINDS
@WAYS
def test_a_seek_to_the_beginning_gives_what_is_committed(rig, kind, commits):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    ended, still_open = rig.begin("t"), rig.begin("t")
    rig.publish_in(ended, producer, b"a", b"b")
    rig.publish(producer, b"c")
    rig.publish_in(still_open, producer, b"d")
    rig.end(ended, "t", commits=commits)
    earliest = api.MessageIdData(ledgerId=0, entryId=0)
    rig.run(rig.command("seek", consumer_id=consumer.object_id, request_id=1, message_id=earliest))
    consumer = rig.consumer("t", subType=kind)
    assert sorted(received(rig, consumer)) == [b"a", b"b"] * commits + [b"c"]


@KINDS
def test_redelivery_gives_committed_messages_only(rig, kind):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    aborted, still_open = rig.begin("t"), rig.begin("t")
    rig.publish(producer, b"a")
    rig.publish_in(aborted, producer, b"b")
    rig.publish(producer, b"c")
    rig.publish_in(still_open, producer, b"d")
    rig.end(aborted, "t", commits=False)
    assert received(rig, consumer) == [b"a", b"c"]
    answers = rig.run(rig.redeliver(consumer))
    assert sorted(payload for _, payload in rig.delivered(answers, consumer)) == [b"a", b"c"]
    rig.close_consumer(consumer)
    again = rig.consumer("t", subType=kind)
    assert sorted(received(rig, again)) == [b"a", b"c"]


# -- delays, rates, policies

@pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared], ids=SubType.Name)
@WAYS
@pytest.mark.parametrize("ends_ms", [100, 2_000], ids=["before it is due", "when it is due"])
def test_a_delay_counts_from_its_time_and_ends_after_the_commit(rig, kind, commits, ends_ms):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    transaction, got = rig.begin("t"), []

    def see(answers):
        got.extend(payload for _, payload in rig.delivered(answers, consumer))
    see(rig.run(rig.flow(consumer, 100)))
    due = {"deliver_at_time": rig.now_ms + 1_000}
    see(rig.run(rig.sends_in(transaction, (producer, b"late", due), (producer, b"now"), (producer, b"later", due))))
    see(rig.run(rig.sends((producer, b"plain"))))
    see(rig.run(after_ms=ends_ms))
    assert got == []
    [answers] = rig.end(transaction, "t", commits=commits)
    see(answers)
    see(rig.run(after_ms=5))
    if ends_ms < 1_000:
        assert got == [b"now"] * commits + [b"plain"]
    see(rig.run(after_ms=1_000))
    assert sorted(got) == sorted([b"late", b"now", b"later"] * commits + [b"plain"])
    assert rig.partition("t").schedule.waiting == 0


@KINDS
@WAYS
def test_a_rate_limited_subscription_stops_at_an_open_transaction(rig, kind, commits):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    sets(rig, "dispatchRate", dispatch_rate(2), "persistent://public/default/t")
    transaction, got = rig.begin("t"), []

    def pass_time(*sections):
        for _ in range(6):
            answers = rig.run(*sections, after_ms=1_000)
            got.extend(payload for _, payload in rig.delivered(answers, consumer))
            sections = ()
    rig.publish(producer, b"0", b"1", b"2", b"3", b"4")
    rig.publish_in(transaction, producer, b"5", b"6", b"7")
    rig.publish(producer, b"8")
    pass_time(rig.flow(consumer, 100))
    assert got == [b"0", b"1", b"2", b"3", b"4"]
    [answers] = rig.end(transaction, "t", commits=commits)
    got.extend(payload for _, payload in rig.delivered(answers, consumer))
    pass_time()
    assert got == [b"0", b"1", b"2", b"3", b"4"] + [b"5", b"6", b"7"] * commits + [b"8"]


@WAYS
def test_sends_that_a_rate_holds_back_keep_their_transaction(rig, commits):
    producer = rig.producer("t")
    sets(rig, "publishRate", publish_rate(2), "persistent://public/default/t")
    transaction = rig.begin("t")
    rig.run(rig.sends_in(transaction, *[(producer, b"%d" % number) for number in range(9)]))
    rig.run(after_ms=2_000)
    assert 0 < rig.partition("t").next_message < 9
    rig.run(rig.sends((producer, b"plain")))
    rig.end(transaction, "t", commits=commits)
    assert texts(rig) == [b"%d" % number for number in range(9)] * commits + [b"plain"]


@WAYS
def test_expiry_by_age_goes_no_further_than_an_open_transaction(tmp_path, commits):
    rig = TransactionalRig(tmp_path / "data")
    producer = rig.producer("t")
    rig.consumer("t")
    rig.publish(producer, b"before")
    transaction = rig.begin("t")
    rig.publish_in(transaction, producer, b"in it")
    rig.publish(producer, b"behind")
    assert rig.asked("expire", "t", subscription="sub", seconds=0) == 1
    rig.end(transaction, "t", commits=commits)
    assert backlog(rig) == 1 + commits
    rig.close()


@WAYS
def test_messages_of_open_transactions_do_not_expire(tmp_path, commits):
    rig = TransactionalRig(tmp_path / "data", message_ttl_s=60)
    producer = rig.producer("t")
    rig.close_consumer(rig.consumer("t"))
    transaction = rig.begin("t")
    rig.publish(producer, b"old")
    rig.publish_in(transaction, producer, b"a")
    rig.publish(producer, b"behind")
    rig.run(after_ms=100_000)
    [subscription] = rig.partition("t").subscriptions.values()
    assert subscription.cursor.totals[1] == 1 and backlog(rig) == 2
    rig.end(transaction, "t", commits=commits)
    rig.run(after_ms=1_000)
    assert backlog(rig) == 0
    rig.close()


@WAYS
def test_ledgers_stay_from_the_first_open_message_on(tmp_path, commits):
    rig = TransactionalRig(tmp_path / "data", roll_over_entries=2)
    producer = rig.producer("t")
    transaction = rig.begin("t")
    rig.publish(producer, b"1")
    rig.publish(producer, b"2")
    rig.publish_in(transaction, producer, b"3")
    for number in range(4, 9):
        rig.publish(producer, b"%d" % number)
    rig.run(after_ms=1_000)
    assert [ledger.entries for ledger in rig.partition("t").ledgers] == [2, 2, 2]
    rig.asked("truncate", "t")
    rig.run(after_ms=1_000)
    assert [ledger.entries for ledger in rig.partition("t").ledgers] == [2, 2, 2, 0]
    rig.end(transaction, "t", commits=commits)
    assert [ledger.entries for ledger in rig.partition("t").ledgers] == [0]
    rig.close()


def test_a_truncated_topic_keeps_what_is_open(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    transaction = rig.begin("t")
    rig.publish_in(transaction, producer, b"a")
    rig.publish(producer, b"b")
    rig.asked("truncate", "t")
    assert len(rig.partition("t").ledgers) == 2
    rig.end(transaction, "t")
    assert received(rig, consumer) == [] == texts(rig)


@WAYS
def test_a_terminated_topic_ends_its_transactions(rig, commits):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    transaction = rig.begin("t")
    rig.publish_in(transaction, producer, b"a")
    rig.asked("terminate", "t")
    [answers] = rig.end(transaction, "t", commits=commits)
    got = rig.delivered(answers, consumer) + rig.receive(consumer)
    assert [payload for _, payload in got] == [b"a"] * commits
    if commits:
        rig.run(rig.acks(consumer, got[0][0]))
    assert rig.partition("t").is_drained


def test_a_deleted_topic_forgets_its_transactions(rig):
    producer = rig.producer("t")
    transaction, partition_id = rig.begin("t"), rig.partition("t").partition_id
    rig.publish_in(transaction, producer, b"a")
    rig.asked("delete", "t", force=True)
    _, told = rig.pass_of(rig.participant.end, [transaction], partition_id, commits=True)
    assert told == [(0, envelope.ENDED, transaction, partition_id, 0)]
    rig.producer("t")
    assert texts(rig) == []


# -- figures

@KINDS
def test_why_names_the_oldest_open_transaction(rig, kind):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    first, second = rig.begin("t", transaction=names.transaction(3, 7)), rig.begin("t")
    rig.publish(producer, b"0")
    began_ms = rig.now_ms
    rig.publish_in(first, producer, b"1", b"2")
    rig.run(after_ms=5_000)
    rig.publish_in(second, producer, b"3")
    [(place, _)] = rig.receive(consumer)
    waits = {"cause": "open transaction", "transaction": "(3,7)", "since_ms": began_ms, "messages": 3}
    assert rig.asked("why", "t", subscription="sub")["causes"] == [waits]
    rig.run(rig.acks(consumer, place))
    rig.end(first, "t", commits=False)
    causes = rig.asked("why", "t", subscription="sub")["causes"]
    assert causes == [waits | {"transaction": names.transaction_text(second), "since_ms": began_ms + 5_000,
                               "messages": 1}]
    [answers] = rig.end(second, "t")
    rig.run(rig.acks(consumer, *[place for place, _ in rig.delivered(answers, consumer)]))
    assert rig.asked("why", "t", subscription="sub")["causes"] == [{"cause": "no backlog"}]


def test_statistics_count_transactions_that_published(rig):
    producer = rig.producer("t")
    some = [rig.begin("t") for _ in range(7)]
    for transaction in some[:6]:
        rig.publish_in(transaction, producer, b"a")
    rig.end(some[0], "t")
    for transaction in some[1:3]:
        rig.end(transaction, "t", commits=False)
    rig.end(some[6], "t")
    shown = rig.shown("stats", "t", earliest=False, publishers=False, consumers=False)
    assert [shown[f"{kind}TxnCount"] for kind in ("ongoing", "aborted", "committed")] == [3, 2, 1]
    assert shown["msgInCounter"] == 6


# -- files

@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "killed"])
def test_verify_finds_nothing_wrong_with_open_and_ended_transactions(rig, tmp_path, stops):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    still_open, aborted, committed = (rig.begin("t") for _ in range(3))
    for transaction in (committed, aborted, still_open, aborted):
        rig.publish_in(transaction, producer, b"a", b"b")
    rig.end(committed, "t")
    rig.end(aborted, "t", commits=False)
    rig.run(rig.acks(consumer, *[place for place, _ in rig.receive(consumer)]))
    if stops:
        rig.close()
    else:
        rig.settle()
    folder = rig.data_dir if stops else copy_of(rig.data_dir, tmp_path / "copy")
    assert [finding for finding in verify.walk(folder) if finding.severity] == []


def test_holes_stop_at_an_open_transaction(tmp_path):
    rig = TransactionalRig(tmp_path / "data", journal_segment_bytes=8 << 20)
    producer, consumer = rig.producer("t"), rig.consumer("t")
    transaction = rig.begin("t")
    rig.publish(producer, *[b"x" * 10_000] * 20)
    rig.publish_in(transaction, producer, *[b"y" * 10_000] * 20)
    rig.run(rig.acks(consumer, (rig.partition("t").open_ledger.ledger_id, 39), cumulative=True))
    for _ in range(3):
        rig.run(after_ms=1_000)
    assert texts(rig) == []
    rig.end(transaction, "t")
    assert texts(rig) == [b"y" * 10_000] * 20
    rig.close()


def test_a_topic_with_an_open_transaction_is_in_use(tmp_path):
    rig = TransactionalRig(tmp_path / "data", delete_inactive_topics=True, inactive_topic_s=5)
    producer = rig.producer("t")
    transaction = rig.begin("t")
    rig.publish_in(transaction, producer, b"a")
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=1))
    for _ in range(30):
        rig.run(after_ms=1_000)
    rig.end(transaction, "t")
    assert texts(rig) == [b"a"]
    rig.close()


def test_delayed_messages_of_an_aborted_transaction_do_not_wait(rig):
    """Those of an open one do, because they may be delivered at their time."""
    producer, transaction = rig.producer("t"), rig.begin("t")
    rig.consumer("t", subType=SubType.Shared)
    at = [{"deliver_at_time": rig.now_ms + 3_600_000 + number} for number in range(4)]
    first, _, _, last = rig.run(rig.mixed_with(
        (transaction, producer, b"in 0", at[0]), (transaction, producer, b"in 1", at[1]), (0, producer, b"2", at[2]),
        (0, producer, b"3", at[3]))).positions

    def told(by="message"):
        rig.run(after_ms=1_000)
        found = rig.asked("delayed", "t", by=by, first_ms=0, end_ms=1 << 60, at_most=2)
        stats = rig.shown("stats", "t", earliest=False, publishers=False, consumers=False)
        assert stats["subscriptions"]["sub"]["msgDelayed"] == found["waiting"]
        return found["waiting"], found["next_due_ms"], [row["deliver_at"] for row in found["rows"]]

    times = [each["deliver_at_time"] for each in at]
    assert told() == (4, times[0], times[:2])
    rig.end(transaction, "t", commits=False)
    assert told() == (2, times[2], times[2:])
    assert rig.asked("cancel", "t", position=first) is False
    assert rig.asked("cancel", "t", position=last) is True
    assert told() == (1, times[2], times[2:3])
