"""Rates of publishing, dispatching and subscribing, counted over a clock that the tests turn."""
import re

import pytest

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.catalogue.policies import DISPATCH_RATE_OF
from geminga.storage.catalogue.policy_declaration import read
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.enforcement import rate_limiter
from geminga.storage.enforcement.throttle_log import LINES_MAX, PERIOD_MS, QUIET_MS
from geminga.storage.runtime.counters import make_counters
from geminga.storage.topics import rate_limits
from geminga.storage.topics.rate_limits import Bucket, SharedLimit, Subscribed
from geminga.storage.topics.subscription import SubType

from .rig import T, entry_of

SECONDS = 10
NAMESPACE, TOPIC = "public/default", "persistent://public/default/a"
PAYLOAD = b"x" * 100
SIZE = len(entry_of(PAYLOAD, sequence_id=1_000))      # bytes of an entry, within a few
MANY = 1 << 30
KINDS = [SubType.Exclusive, SubType.Failover, SubType.Shared, SubType.Key_Shared]


def about(count):
    """Return a matcher for numbers within 2 % of the count, and one more, because one message may pass at once."""
    return pytest.approx(count, abs=count * 0.02 + 1)


def sets(rig, policy, value, scope=TOPIC):
    """Set a policy as administration does: in the catalogue, then with a question to the owner."""
    rig.owner.catalogue.policies.set(scope, policy, value and read(TABLE[policy], value))
    rig.owner.catalogue.commit()
    return rig.run(rig.tell("policies", scope=scope))


def publish_rate(messages=0, size=0):
    return {"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": size}


def dispatch_rate(messages=0, size=0, period_s=1, *, relative=False):
    return {"dispatchThrottlingRateInMsg": messages, "dispatchThrottlingRateInByte": size,
            "ratePeriodInSecond": period_s, "relativeToPublishRate": relative}


def passes(rig, ms, *sections):
    """Return the answers of all passes in `ms`: those the owner wants, and one every 50 ms if there are sections."""
    end, found = rig.now_ms + ms, []
    while rig.now_ms < end:
        due = min(rig.owner.passes.due_ms(), end, *[rig.now_ms + 50] * len(sections))
        assert due > rig.now_ms, "an owner that wants another pass at once never rests"
        found.append(rig.run(*[section for make in sections for section in make()], after_ms=due - rig.now_ms))
    return found


class Flood:
    """A client that sends as fast as it can while its connection is read; batch=n: n messages in each entry."""

    def __init__(self, rig, producer, burst=500, **fields):
        self.rig, self.producer, self.burst, self.fields = rig, producer, burst, fields
        self.is_read_from, self.sent, self.receipts = True, [], []

    def sends(self):
        if not self.is_read_from:
            return []
        section = self.rig.sends(*[(self.producer, PAYLOAD, self.fields)] * self.burst)
        self.sent += section[1]["sequence_id"].tolist()
        return [section]

    def see(self, answers):
        for connection, action, *_ in answers.replies:
            if connection == self.producer.connection and action in (envelope.PAUSE_READING, envelope.RESUME_READING):
                self.is_read_from = action == envelope.RESUME_READING
        self.receipts += [receipt[3] for receipt in answers.receipts if receipt[2] == self.producer.object_id]


def flood(floods, ms):
    """Let all clients send for `ms`. Return the number of receipts that each got."""
    before, rig = [len(one.receipts) for one in floods], floods[0].rig
    end = rig.now_ms + ms
    while rig.now_ms < end:
        after_ms = max(1, min(rig.owner.passes.due_ms(), end, rig.now_ms + 50) - rig.now_ms)
        answers = rig.run(*[section for one in floods for section in one.sends()], after_ms=after_ms)
        for one in floods:
            one.see(answers)
    return [len(one.receipts) - count for one, count in zip(floods, before, strict=True)]


# -- buckets -----------------------------------------------------------------------------------------------------------

@pytest.mark.slow
@pytest.mark.parametrize(("rate", "period_s"), [
    (1, 1), (7, 1), (50, 1), (1_000, 1), (123_457, 1), (7, 3), (10, 60), (1 << 40, 1)])
def test_tokens_come_at_the_rate_however_often_they_are_asked_for(rate, period_s):
    for step in (1, 3, 20, 50):
        bucket, taken = Bucket(rate, period_s, 0), 0
        for now_ms in range(0, 60_000, step):
            room = bucket.room(now_ms)
            if room > 0:
                bucket.take(room)
                taken += room
        assert 60 * rate // period_s - 1 <= taken <= (60_000 + rate_limits.SAVED_MS) * rate // (period_s * 1_000) + 1


def test_a_token_is_there_when_the_bucket_says():
    for rate, period_s in ((1, 1), (3, 1), (7, 60), (999, 1)):
        bucket = Bucket(rate, period_s, 0)
        for debt in (1, 5, 1_000):
            bucket.take(bucket.room(bucket.ready_ms()) + debt)
            ready_ms = bucket.ready_ms()
            assert bucket.room(ready_ms - 1) <= 0 < bucket.room(ready_ms)


def test_a_clock_that_is_set_back_gives_nothing_and_stops_nothing():
    bucket = Bucket(1_000, 1, 1_000_000)
    bucket.take(bucket.room(1_000_000))
    assert bucket.room(5_000) == 0
    assert bucket.room(5_010) == 10


def test_owners_share_a_rate_of_the_broker():
    """Two owners together get no more than a rate of the broker, and one owner alone gets all of it."""
    counters = make_counters(3)
    limits = [SharedLimit(each, ("limited_messages_in", "limited_bytes_in"), (1_000, 0, 1, False), 0)
              for each in counters[:2]]

    def took(limit, now_ms, at_most):
        room = min(max(limit.room(now_ms)[0], 0), at_most)
        limit.take(room, 0)
        return room

    both = [sum(took(limit, now_ms, 1 << 30) for now_ms in range(0, 10_000, 5)) for limit in limits[:1]]
    assert both == [about(10_000)]
    both = [0, 0]
    for now_ms in range(10_000, 20_000, 5):
        for number in (0, 1) if now_ms % 10 else (1, 0):
            both[number] += took(limits[number], now_ms, 3)
    assert sum(both) == about(10_000)
    assert min(both) > 3_000


# -- publishing --------------------------------------------------------------------------------------------------------

@pytest.mark.slow
@pytest.mark.parametrize(("rate", "scope"), [(10, TOPIC), (100, TOPIC), (400, TOPIC), (100, NAMESPACE)])
def test_no_more_is_published_than_the_rate_and_no_less(rig, rate, scope):
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(rate), scope)
    one = Flood(rig, producer, 60)
    assert flood([one], SECONDS * 1_000) == [about(rate * SECONDS)]
    assert flood([one], 1_000) == [pytest.approx(rate, rel=0.03, abs=1)]


@pytest.mark.slow
def test_bytes_and_messages_of_batches_are_counted(rig):
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(size=100 * SIZE))
    one = Flood(rig, producer, 50)
    assert flood([one], SECONDS * 1_000) == [about(100 * SECONDS)]
    other = Flood(rig, rig.producer("b", connection=2), 50, batch=10)
    sets(rig, "publishRate", publish_rate(1_000), "persistent://public/default/b")
    assert flood([other], SECONDS * 1_000) == [about(100 * SECONDS)]


@pytest.mark.slow
def test_the_rates_of_the_broker_hold_for_each_topic_and_for_all_together(rigs):
    rig = rigs(publish_messages_per_topic=40, publish_messages_per_broker=100)
    floods = [Flood(rig, rig.producer(name, connection=number), 50) for number, name in enumerate("abc", 1)]
    assert flood(floods[:1], SECONDS * 1_000) == [about(40 * SECONDS)]
    counts = flood(floods, SECONDS * 1_000)
    assert sum(counts) == about(100 * SECONDS)
    assert min(counts) > 28 * SECONDS
    sets(rig, "publishRate", publish_rate(-1), NAMESPACE)      # no bound for topics: the broker's stays
    assert sum(flood(floods, SECONDS * 1_000)) == about(100 * SECONDS)


def test_nothing_is_lost_and_the_order_stays(rig):
    """A publish rate delays receipts and stops reading from the connection, but all entries are stored in order."""
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(100))
    answers = rig.run(rig.sends(*[(producer, b"%d" % number) for number in range(300)]))
    assert [action for _, action, *_ in answers.replies] == [envelope.PAUSE_READING]
    late = passes(rig, 4_000)
    assert [action for each in late for _, action, *_ in each.replies] == [envelope.RESUME_READING]
    assert len(rig.owner.rates.held._connections) == 0
    receipts = answers.receipts + [receipt for each in late for receipt in each.receipts]
    assert [receipt[3] for receipt in receipts] == sorted(receipt[3] for receipt in receipts)
    assert [payload for _, payload in rig.everything("a")] == [b"%d" % number for number in range(300)]
    assert [position for position, _ in rig.everything("a")] == [receipt[-1] for receipt in receipts]


def test_a_connection_is_read_from_again_when_half_of_what_was_held_back_is_gone(rig):
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(100))
    answers = rig.run(rig.sends(*[(producer, b"x") for _ in range(36)]))
    stored = len(answers.receipts)
    held = 36 - stored
    assert held == 20
    while envelope.RESUME_READING not in [action for _, action, *_ in answers.replies]:
        answers = rig.run(after_ms=20)
        stored += len(answers.receipts)
    assert stored == 36 - held // 2


def test_other_topics_do_not_wait(rig):
    """Entries of a topic without a rate pass, even from the same envelope."""
    slow, fast = rig.producer("a"), rig.producer("b", connection=2)
    sets(rig, "publishRate", publish_rate(10))
    rig.run(rig.sends(*[(slow, PAYLOAD)] * 100))
    both = [one for number in range(100) for one in ((slow, b"%d" % number), (fast, b"%d" % number))]
    answers = rig.run(rig.sends(*both))
    assert [receipt[2] for receipt in answers.receipts] == [fast.object_id] * 100
    assert (2, envelope.PAUSE_READING) not in [reply[:2] for reply in answers.replies]
    assert [payload for _, payload in rig.everything("b")] == [b"%d" % number for number in range(100)]


@pytest.mark.slow
def test_producers_of_one_topic_on_two_connections_share_its_rate(rig):
    floods = [Flood(rig, rig.producer("a", connection=number), 20) for number in (1, 2)]
    sets(rig, "publishRate", publish_rate(100))
    counts = flood(floods, SECONDS * 1_000)
    assert sum(counts) == about(100 * SECONDS)
    assert min(counts) > 40 * SECONDS


def test_a_batch_larger_than_the_rate_goes_and_is_paid_for(rig):
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(10))
    assert len(rig.run(rig.sends((producer, b"x", {"batch": 100}), (producer, b"y"))).receipts) == 1
    assert not any(answers.receipts for answers in passes(rig, 9_500))
    assert [len(answers.receipts) for answers in passes(rig, 1_000) if answers.receipts] == [1]


def test_a_debt_is_paid_at_the_new_rate(rig):
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(10))
    rig.run(rig.sends((producer, b"x", {"batch": 100}), (producer, b"y")))
    sets(rig, "publishRate", publish_rate(50))
    assert not any(answers.receipts for answers in passes(rig, 1_900))
    assert [len(answers.receipts) for answers in passes(rig, 200) if answers.receipts] == [1]


@pytest.mark.slow
def test_another_rate_holds_at_once_and_none_lets_everything_go(rig):
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(10))
    one = Flood(rig, producer, 50)
    flood([one], 1_000)
    one.see(sets(rig, "publishRate", publish_rate(300)))
    assert flood([one], SECONDS * 1_000) == [about(300 * SECONDS)]
    one.see(sets(rig, "publishRate", publish_rate(20)))
    assert flood([one], SECONDS * 1_000) == [about(20 * SECONDS)]
    one.see(sets(rig, "publishRate", None))
    assert (one.receipts, one.is_read_from) == (one.sent, True)
    assert flood([one], 1_000) == [50 * 20]


def test_a_policy_of_something_else_changes_nothing(rig):
    """Setting another policy every second does not give a rate more tokens."""
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(10))
    one = Flood(rig, producer)
    counts = []
    for number in range(SECONDS):
        one.see(sets(rig, "messageTTL", 100 + number))
        counts += flood([one], 1_000)
    assert sum(counts) == about(10 * SECONDS)


def test_a_rate_is_kept_over_a_crash_and_what_was_held_back_is_not_there(rigs):
    rig = rigs()
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(10))
    receipts = rig.run(rig.sends(*[(producer, PAYLOAD)] * 100)).receipts
    rig = rigs.crash(rig)
    assert len(rig.everything("a")) == len(receipts)
    assert flood([Flood(rig, rig.producer("a"))], SECONDS * 1_000) == [about(10 * SECONDS)]


def test_what_came_before_a_close_is_stored(rig):
    """Entries held back are stored before the producer closes, and charged to later ones."""
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(10))
    rig.run(rig.sends(*[(producer, PAYLOAD)] * 50))
    answers = rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=9))
    assert len(rig.everything("a")) == 50
    actions = [action for _, action, *_ in answers.replies]
    assert envelope.PAUSE_READING not in actions and actions.count(envelope.RESUME_READING) == 1
    other = rig.producer("a")
    assert rig.publish(other, PAYLOAD) == []
    assert not any(answers.receipts for answers in passes(rig, 4_000 - 200))


@pytest.mark.parametrize("end", [lambda rig: rig.happened(envelope.CONNECTION_GONE),
                                 lambda rig: rig.question("terminate", "a"),
                                 lambda rig: rig.question("unload", "a")])
def test_what_a_producer_that_is_gone_has_sent_is_left_out(rig, end):
    """A producer that has gone got no receipt for its entries, and sends them again; those of others are stored."""
    producer, other = rig.producer("a"), rig.producer("b", connection=2)
    sets(rig, "publishRate", publish_rate(10), NAMESPACE)
    stored = len(rig.run(rig.sends(*[(producer, PAYLOAD)] * 50)).receipts)
    rig.run(rig.sends(*[(other, PAYLOAD)] * 20))
    answers = rig.run(end(rig))
    assert 1 in [connection for connection, action, *_ in answers.replies if action == envelope.RESUME_READING]
    assert sum(len(answers.receipts) for answers in passes(rig, 5_000)) == 20 - stored
    rig.run(rig.happened(envelope.CONNECTION_GONE))
    assert (len(rig.everything("a")), len(rig.everything("b"))) == (stored, 20)
    assert rig.owner.passes.due_ms() > rig.now_ms + 500


def test_nothing_is_due_when_the_only_topic_that_waited_is_gone(rig):
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(10))
    rig.run(rig.sends(*[(producer, PAYLOAD)] * 50))
    rig.run(rig.question("unload", "a"))
    assert len(passes(rig, 10_000)) <= 11


def test_one_of_two_producers_of_a_topic_goes(rig):
    """When one of two producers of a throttled topic leaves, the held back entries of the other keep their order and
    their bytes.
    """
    gone, stays = rig.producer("a", connection=2), rig.producer("a", connection=3)
    sets(rig, "publishRate", publish_rate(10))
    rig.run(rig.sends((gone, b"first"), (gone, b"second")))
    rig.run(rig.sends(*[one for number in range(10) for one in ((gone, b"no"), (stays, b"%d" % number))]))
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=2))
    passes(rig, 2_000)
    payloads = [payload for _, payload in rig.everything("a")]
    assert payloads == [b"first", b"second"] + [b"%d" % number for number in range(10)]


def test_a_partition_that_deduplicates_knows_what_is_held_back(rig):
    """A message that is sent again while a rate holds it back is stored once."""
    producer = rig.producer("a", producer_name="p", user_provided_producer_name=True)
    sets(rig, "deduplication", True)
    sets(rig, "publishRate", publish_rate(10))
    section = rig.sends(*[(producer, b"%d" % number) for number in range(10)])
    rig.run(section, section)
    passes(rig, 3_000)
    assert [payload for _, payload in rig.everything("a")] == [b"%d" % number for number in range(10)]


def test_owners_hold_back_no_more_than_a_bound(rig, monkeypatch):
    """Rates are overdrawn when the held back entries of an owner reach a bound of memory."""
    monkeypatch.setattr(rate_limiter, "_HELD_MAX", 100 * SIZE)
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(10))
    stored = len(rig.run(rig.sends(*[(producer, PAYLOAD)] * 50)).receipts)
    assert stored < 5
    assert len(rig.run(rig.sends(*[(producer, PAYLOAD)] * 70)).receipts) == 120 - stored
    assert not any(answers.receipts for answers in passes(rig, 11_000))


def test_what_is_let_go_at_once_may_be_more_than_a_record_holds(rigs):
    """More entries than fit into a journal record are stored in several, in order."""
    rig = rigs(pass_bytes_max=100_000)
    payloads = [b"%d" % number * 1_000 for number in range(200)]
    producer = rig.producer("a")
    sets(rig, "publishRate", publish_rate(1))
    for payload in payloads:
        rig.run(rig.sends(*[(producer, payload)] * 10))
    assert len(rig.everything("a")) < 10
    sets(rig, "publishRate", None)
    assert [payload for _, payload in rig.everything("a")] == [payload for payload in payloads for _ in range(10)]


@pytest.mark.slow
def test_topics_that_keep_nothing_have_rates_too(rig):
    name = "non-persistent://public/default/n"
    producer, consumer = rig.producer(name), rig.consumer(name)
    rig.run(rig.flow(consumer, MANY))
    sets(rig, "publishRate", publish_rate(100), name)
    one = Flood(rig, producer, 20)
    assert flood([one], SECONDS * 1_000) == [about(100 * SECONDS)]
    assert one.receipts == one.sent[:len(one.receipts)]


# -- dispatching -------------------------------------------------------------------------------------------------------

def backlog(rig, topic, count, **fields):
    producer = rig.producer(topic, connection=99)
    for first in range(0, count, 1_000):
        rig.run(rig.sends(*[(producer, PAYLOAD, {"partition_key": str(number)} | fields)
                            for number in range(first, min(first + 1_000, count))]))
    return producer


def given(answers, consumer):
    """Return how many entries the consumer got in the passes."""
    return sum(len(one[3]) for each in answers for one in each.gifts if one[0] == consumer.number)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=SubType.Name)
def test_consumers_get_no_more_than_the_rate_and_no_less(rig, kind):
    """Consumers get entries at the dispatch rate, and in the end all of them in order."""
    backlog(rig, "a", 1_300)
    stored = [position for position, _ in rig.everything("a")]
    consumer = rig.consumer("a", subType=kind)
    sets(rig, "dispatchRate", dispatch_rate(100))
    first = [rig.run(rig.flow(consumer, MANY)), *passes(rig, SECONDS * 1_000)]
    assert given(first, consumer) == about(100 * SECONDS)
    rest = passes(rig, 3_000)
    positions = [position for answers in first + rest for position, _ in rig.delivered(answers, consumer)]
    assert (sorted(positions) if kind == SubType.Key_Shared else positions) == stored


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared], ids=SubType.Name)
def test_consumers_of_a_subscription_share_its_rate(rig, kind):
    backlog(rig, "a", 1_500)
    consumers = [rig.consumer("a", subType=kind, connection=number) for number in (1, 2)]
    sets(rig, "subscriptionDispatchRate", dispatch_rate(100))
    rig.run(*[rig.flow(consumer, MANY) for consumer in consumers])
    found = passes(rig, SECONDS * 1_000)
    counts = [given(found, consumer) for consumer in consumers]
    assert sum(counts) == about(100 * SECONDS)
    assert min(counts) > 35 * SECONDS


@pytest.mark.slow
def test_subscriptions_of_a_topic_share_its_rate_and_one_alone_gets_all(rig):
    backlog(rig, "a", 2_000)
    consumers = [rig.consumer("a", name) for name in ("x", "y")]
    sets(rig, "dispatchRate", dispatch_rate(100))
    rig.run(*[rig.flow(consumer, MANY) for consumer in consumers])
    found = passes(rig, SECONDS * 1_000)
    counts = [given(found, consumer) for consumer in consumers]
    assert sum(counts) == about(100 * SECONDS)
    assert min(counts) > 45 * SECONDS
    rig.close_consumer(consumers[0])
    assert given(passes(rig, SECONDS * 1_000), consumers[1]) == about(100 * SECONDS)


@pytest.mark.slow
def test_each_subscription_has_the_rate_of_subscriptions_and_the_strictest_rule_holds(rigs):
    rig = rigs(dispatch_messages_per_subscription=100)
    backlog(rig, "a", 2_000)
    consumers = [rig.consumer("a", name) for name in ("x", "y")]
    rig.run(*[rig.flow(consumer, MANY) for consumer in consumers])
    found = passes(rig, SECONDS * 1_000)
    assert [given(found, consumer) for consumer in consumers] == [about(100 * SECONDS)] * 2
    sets(rig, "dispatchRate", dispatch_rate(50))
    assert sum(given(passes(rig, SECONDS * 1_000), consumer) for consumer in consumers[:1]) <= 51 * SECONDS
    sets(rig, "subscriptionDispatchRate", dispatch_rate(20), NAMESPACE)
    found = passes(rig, SECONDS * 1_000)
    assert [given(found, consumer) for consumer in consumers] == [about(20 * SECONDS)] * 2


def test_one_subscription_may_have_a_rate_of_its_own(rigs):
    """A subscription's own rate is stronger than the rate for each, and bounds where that is not set."""
    rig = rigs()
    backlog(rig, "a", 1_500)
    consumers = [rig.consumer("a", name) for name in ("x", "y")]
    rig.owner.catalogue.policies.set(TOPIC, DISPATCH_RATE_OF + "x", dispatch_rate(10))
    sets(rig, "subscriptionDispatchRate", dispatch_rate(50))
    rig.run(*[rig.flow(consumer, MANY) for consumer in consumers])
    found = passes(rig, SECONDS * 1_000)
    assert [given(found, consumer) for consumer in consumers] == [about(10 * SECONDS), about(50 * SECONDS)]
    [cause] = rig.asked("why", "a", subscription="x")["causes"]
    assert cause["rule"] == f"dispatchRate/x of topic {TOPIC}: 10 messages in a second"
    rig.owner.catalogue.policies.set(TOPIC, DISPATCH_RATE_OF + "y", dispatch_rate(-1))
    found = [sets(rig, "subscriptionDispatchRate", None), *passes(rig, SECONDS * 1_000)]
    assert [given(found, consumer) for consumer in consumers] == [about(10 * SECONDS), pytest.approx(1_000, abs=15)]


@pytest.mark.slow
def test_the_brokers_rate_is_shared_by_all_topics(rigs):
    rig = rigs(dispatch_messages_per_broker=100)
    consumers = []
    for number, name in enumerate("ab"):
        backlog(rig, name, 1_500)
        consumers.append(rig.consumer(name, connection=number))
    rig.run(*[rig.flow(consumer, MANY) for consumer in consumers])
    found = passes(rig, SECONDS * 1_000)
    counts = [given(found, consumer) for consumer in consumers]
    assert sum(counts) == about(100 * SECONDS)
    assert min(counts) > 45 * SECONDS


def changes(rig, **options):
    """Change options of the running broker, as administration does."""
    for name, value in options.items():
        rig.owner.catalogue.options.set(name, value)
    rig.owner.catalogue.commit()
    return rig.run(rig.tell("options"))


@pytest.mark.slow
def test_rates_of_the_broker_that_are_changed_hold_at_once(rigs):
    rig = rigs(dispatch_messages_per_broker=1, publish_messages_per_broker=1)
    backlog(rig, "a", 5)
    passes(rig, 10_000)
    changes(rig, publish_messages_per_broker=0)
    producer, consumer = backlog(rig, "a", 1_500, batch=10), rig.consumer("a")
    rig.run(rig.flow(consumer, MANY))
    passes(rig, 1_000)
    found = [changes(rig, dispatch_messages_per_broker=50, dispatch_limits_entries=True), *passes(rig, SECONDS * 1_000)]
    assert given(found, consumer) == about(50 * SECONDS)
    rig.run(rig.sends(*[(producer, PAYLOAD)] * 20))
    changes(rig, dispatch_messages_per_broker=0, dispatch_messages_per_topic=20, publish_messages_per_topic=20)
    assert given(passes(rig, SECONDS * 1_000), consumer) == about(20 * SECONDS)
    assert flood([Flood(rig, rig.producer("a"), 50)], SECONDS * 1_000) == [about(20 * SECONDS)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=SubType.Name)
@pytest.mark.parametrize("size", [0, 1], ids=["messages", "bytes"])
def test_batches_count_by_their_messages_and_bytes_by_themselves(rig, kind, size):
    backlog(rig, "a", 1_200, batch=10)
    consumer = rig.consumer("a", subType=kind)
    sets(rig, "dispatchRate", dispatch_rate(0, 100 * SIZE) if size else dispatch_rate(1_000))
    rig.run(rig.flow(consumer, MANY))
    batch_size = len(entry_of(PAYLOAD, sequence_id=1_000, batch=10, partition_key="100"))
    expected = 100 * SECONDS * (SIZE / batch_size if size else 1)
    assert given(passes(rig, SECONDS * 1_000), consumer) == pytest.approx(expected, rel=0.02, abs=10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=SubType.Name)
def test_batches_count_once_where_the_broker_is_told_so(rigs, kind):
    rig = rigs(dispatch_limits_entries=True)
    backlog(rig, "a", 1_200, batch=10)
    consumer = rig.consumer("a", subType=kind)
    sets(rig, "dispatchRate", dispatch_rate(100))
    rig.run(rig.flow(consumer, MANY))
    assert given(passes(rig, SECONDS * 1_000), consumer) == about(100 * SECONDS)


def test_the_period_is_followed(rig):
    backlog(rig, "a", 1_000)
    consumer = rig.consumer("a")
    sets(rig, "dispatchRate", dispatch_rate(500, period_s=10))
    rig.run(rig.flow(consumer, MANY))
    assert given(passes(rig, SECONDS * 1_000), consumer) == about(500)


@pytest.mark.slow
def test_a_rate_relative_to_what_is_published_is_beyond_that(rig):
    producer = backlog(rig, "a", 1_500)
    consumer = rig.consumer("a")
    sets(rig, "dispatchRate", dispatch_rate(100, relative=True))
    rig.run(rig.flow(consumer, MANY))
    found = passes(rig, SECONDS * 1_000, lambda: [rig.sends(*[(producer, PAYLOAD)] * 4)])
    published = sum(len(answers.receipts) for answers in found)
    assert published >= 4 * 20 * SECONDS
    assert given(found, consumer) == about(published + 100 * SECONDS)


@pytest.mark.slow
def test_bytes_relative_to_what_is_published_are_beyond_that_too(rig):
    producer = backlog(rig, "a", 1_500)
    consumer = rig.consumer("a")
    sets(rig, "dispatchRate", dispatch_rate(size=100 * SIZE, relative=True))
    rig.run(rig.flow(consumer, MANY))
    found = passes(rig, SECONDS * 1_000, lambda: [rig.sends(*[(producer, PAYLOAD)] * 4)])
    published = sum(len(answers.receipts) for answers in found)
    assert given(found, consumer) == pytest.approx(published + 100 * SECONDS, rel=0.05)


def test_consumers_without_a_backlog_are_not_slowed_where_the_broker_is_told_so(rigs):
    rig = rigs(dispatch_limits_without_backlog=False)
    producer = backlog(rig, "a", 2_500)
    consumer = rig.consumer("a")
    sets(rig, "dispatchRate", dispatch_rate(100))
    found = [rig.run(rig.flow(consumer, MANY)), *passes(rig, SECONDS * 1_000)]
    assert given(found, consumer) == about(100 * SECONDS)
    sets(rig, "dispatchRate", None)
    rig.run(rig.acks(consumer, rig.everything("a")[-1][0], cumulative=True))
    sets(rig, "dispatchRate", dispatch_rate(100))
    answers = rig.run(rig.sends(*[(producer, PAYLOAD)] * 500))
    assert given([answers], consumer) == 500


def test_another_dispatch_rate_holds_at_once_and_none_lets_everything_go(rig):
    backlog(rig, "a", 3_000)
    consumer = rig.consumer("a")
    sets(rig, "dispatchRate", dispatch_rate(10))
    rig.run(rig.flow(consumer, MANY))
    passes(rig, 1_000)
    found = [sets(rig, "dispatchRate", dispatch_rate(200)), *passes(rig, SECONDS * 1_000)]
    assert given(found, consumer) == about(200 * SECONDS)
    found = [sets(rig, "dispatchRate", None)]
    assert given(found, consumer) > 900
    assert rig.owner.passes.due_ms() - rig.now_ms > 500


@pytest.mark.parametrize("kind", KINDS, ids=SubType.Name)
def test_the_largest_rates_slow_nobody(rig, kind):
    largest = (1 << 31) - 1, (1 << 63) - 1
    sets(rig, "publishRate", publish_rate(*largest), NAMESPACE)
    sets(rig, "dispatchRate", dispatch_rate(*largest, (1 << 31) - 1, relative=True), NAMESPACE)
    sets(rig, "subscriptionDispatchRate", dispatch_rate(*largest), NAMESPACE)
    subscribe_rate = {"subscribeThrottlingRatePerConsumer": largest[0], "ratePeriodInSecond": largest[0]}
    sets(rig, "subscribeRate", subscribe_rate, NAMESPACE)
    consumer = rig.consumer("a", subType=kind)
    rig.run(rig.flow(consumer, MANY))
    answers = rig.run(rig.sends(*[(rig.producer("a"), PAYLOAD)] * 100))
    assert (len(answers.receipts), given([answers], consumer)) == (100, 100)


def test_who_is_not_slowed_is_not_woken(rig):
    """A subscription without permits or without entries wants no pass because of its rate."""
    backlog(rig, "a", 100)
    consumer = rig.consumer("a")
    sets(rig, "dispatchRate", dispatch_rate(10))
    rig.run(rig.flow(consumer, 5))
    passes(rig, 1_500)
    assert len(passes(rig, 5_000)) <= 6
    rig.run(rig.flow(consumer, MANY))
    passes(rig, SECONDS * 1_000)
    assert len(passes(rig, 5_000)) <= 6


def test_delayed_messages_of_a_slowed_subscription_come_at_the_rate(rig):
    producer = rig.producer("a")
    consumer = rig.consumer("a", subType=SubType.Shared)
    sets(rig, "dispatchRate", dispatch_rate(100))
    rig.run(rig.flow(consumer, MANY))
    rig.run(rig.sends(*[(producer, PAYLOAD, {"deliver_at_time": rig.now_ms + 2_000})] * 500))
    assert given(passes(rig, 1_900), consumer) == 0
    assert given(passes(rig, 2_200), consumer) == pytest.approx(220, abs=10)


def test_what_is_redelivered_counts(rig):
    backlog(rig, "a", 50)
    consumer = rig.consumer("a", subType=SubType.Shared)
    rig.run(rig.flow(consumer, MANY))
    sets(rig, "dispatchRate", dispatch_rate(10))
    rig.run(rig.redeliver(consumer))
    assert given(passes(rig, 2_000), consumer) == pytest.approx(20, abs=2)
    assert given(passes(rig, 5_000), consumer) == pytest.approx(30, abs=2)


def test_a_topic_that_keeps_nothing_drops_what_is_beyond_its_dispatch_rate(rig):
    name = "non-persistent://public/default/n"
    producer, consumer = rig.producer(name), rig.consumer(name)
    rig.run(rig.flow(consumer, MANY))
    sets(rig, "dispatchRate", dispatch_rate(100), name)
    found = passes(rig, SECONDS * 1_000, lambda: [rig.sends(*[(producer, PAYLOAD)] * 8)])
    assert sum(len(answers.passed) for answers in found) == about(100 * SECONDS)
    assert sum(len(answers.receipts) for answers in found) >= 8 * 20 * SECONDS


# -- subscribing -------------------------------------------------------------------------------------------------------

def test_who_subscribes_too_often_is_refused_and_others_are_not(rig):
    sets(rig, "subscribeRate", {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 10}, NAMESPACE)

    def subscribes(name, number=7):
        answers = rig.run(rig.command("subscribe", topic="a", subscription="s", subType=SubType.Shared,
                                      consumer_name=name, consumer_id=number, request_id=5))
        errors = [(command.error.error, command.error.message) for command in answers.commands(T.ERROR)]
        rig.run(rig.command("close_consumer", consumer_id=number, request_id=6))
        return errors

    refused = [(api.NotAllowedError, "Subscribe limited by subscribe rate limit per consumer.")]
    assert [subscribes("x") for _ in range(3)] == [[], [], refused]
    assert (subscribes("y"), subscribes("x", 8)) == ([], [])
    rig.run(after_ms=5_000)
    assert [subscribes("x") for _ in range(2)] == [[], refused]
    sets(rig, "subscribeRate", None, NAMESPACE)
    assert [subscribes("x") for _ in range(5)] == [[]] * 5


def test_consumers_that_subscribed_long_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr(rate_limits, "_CONSUMERS_MAX", 10)
    subscribed = Subscribed((1, 1))
    for number in range(100):
        subscribed.count((number,), number * 200)
        assert not subscribed.may((number,), number * 200)
    assert len(subscribed._buckets) <= 10


# -- what is shown -----------------------------------------------------------------------------------------------------

def test_consumers_that_have_everything_wait_for_no_rate(rig):
    """Consumers that have all entries are not throttled, although the rate is used up."""
    producer, consumer = rig.producer("a"), rig.consumer("a")
    sets(rig, "subscriptionDispatchRate", dispatch_rate(1))
    rig.run(rig.flow(consumer, MANY))
    assert len(rig.run(rig.sends((producer, b"x"))).gifts) == 1
    limited = rig.partition("a").subscriptions["sub", True].limited
    assert (limited.times, limited.since_ms) == ({}, 0)
    rig.run(rig.sends((producer, b"x")))
    assert limited.times == {"dispatchThrottledMsgEventsBySubscriptionLimit": 1} and limited.since_ms == rig.now_ms


def test_why_names_the_rule_that_slows_consumers(rig):
    backlog(rig, "a", 100)
    consumer = rig.consumer("a")
    sets(rig, "dispatchRate", dispatch_rate(10, 5_000_000, 2), NAMESPACE)
    sets(rig, "subscriptionDispatchRate", dispatch_rate(2))
    rig.run(rig.flow(consumer, MANY))
    passes(rig, 3_000)
    since = rig.now_ms - 3_000
    causes = rig.asked("why", "a", subscription="sub")["causes"]
    [cause] = [cause for cause in causes if "subscriptionDispatchRate" in cause["rule"]]
    assert cause.pop("until_ms") - rig.now_ms in range(1, 520)
    assert cause == {"cause": "dispatch rate", "since_ms": since,
                     "rule": f"subscriptionDispatchRate of topic {TOPIC}: 2 messages in a second"}
    sets(rig, "subscriptionDispatchRate", None)
    passes(rig, 1_000)
    [cause] = rig.asked("why", "a", subscription="sub")["causes"]
    assert cause["rule"] == f"dispatchRate of namespace {NAMESPACE}: 10 messages and 5000000 bytes in 2 seconds"
    times = rig.partition("a").subscriptions["sub", True].limited.times
    assert set(times) == {"dispatchThrottledMsgEventsBySubscriptionLimit", "dispatchThrottledMsgEventsByTopicLimit"}
    sets(rig, "dispatchRate", None, NAMESPACE)
    assert [cause["cause"] for cause in rig.asked("why", "a", subscription="sub")["causes"]] == ["no acknowledgements"]


def test_why_names_the_rule_that_slows_producers(rigs):
    rig = rigs(publish_bytes_per_topic=10 * SIZE)
    rig.consumer("a")
    producer, began = rig.producer("a"), rig.now_ms
    rig.run(rig.sends(*[(producer, PAYLOAD)] * 100))
    passes(rig, 2_000)
    cause = rig.asked("why", "a", subscription="sub")["causes"][-1]
    assert (cause["cause"], cause["rule"], cause["since_ms"]) == (
        "publish rate", f"publishRate of the broker: {10 * SIZE} bytes in a second", began)
    assert cause["held_back"] == pytest.approx(80, abs=4)
    assert rig.partition("a").rate_limits.publish_limited_times > 10
    passes(rig, 9_000)
    assert [cause["cause"] for cause in rig.asked("why", "a", subscription="sub")["causes"]] == ["no permits"]


def test_nothing_is_left_of_the_rate_of_a_topic_that_keeps_nothing_when_that_is_deleted(rig):
    """A deleted non-persistent topic leaves no rate, whether clients used it or only administration did."""
    name = "non-persistent://public/default/gone"
    sets(rig, "publishRate", publish_rate(10), NAMESPACE)
    rig.consumer(name)
    assert rig.owner.rates.is_possible
    rig.asked("delete", name, force=True)
    assert not rig.owner.rates.is_possible and not rig.owner.topics.non_persistent
    rig.owner.catalogue.topics.create(names.parse(name), 0)
    rig.asked("subscriptions", name)
    assert rig.owner.rates.is_possible
    rig.asked("delete", name, force=False)
    assert not rig.owner.rates.is_possible and not rig.owner.topics.non_persistent


# -- what the log says -------------------------------------------------------------------------------------------------

def lines(capsys):
    """Return the log's lines, without those about topics and subscriptions that were made."""
    found = [line.removeprefix("geminga: ") for line in capsys.readouterr().err.splitlines()]
    return [line for line in found if not line.startswith(("a topic was made", "a subscription was made"))]


def test_the_log_says_when_a_rate_begins_to_keep_producers_waiting_and_when_that_is_over(rig, capsys):
    """The log has one line when a rate begins to throttle producers and one when that is over, however often there
    are tokens in between.
    """
    sets(rig, "publishRate", publish_rate(10))
    producer = rig.producer("a")
    rig.run(rig.sends(*[(producer, PAYLOAD)] * 100))
    passes(rig, 5_000)
    rig.run(rig.sends(*[(producer, PAYLOAD)] * 10))
    assert lines(capsys) == [
        f"{TOPIC}: producers wait because of publishRate of topic {TOPIC}: 10 messages in a second"]
    passes(rig, QUIET_MS)
    assert not lines(capsys)      # the last entries still wait, or did a moment ago
    passes(rig, QUIET_MS + 2_000)
    [line] = lines(capsys)
    held = int(re.fullmatch(rf"{TOPIC}: producers wait no more; a rate held up (\d+) entries in 1\d\.\d s", line)[1])
    assert 100 < held < 110
    rig.run(rig.sends(*[(producer, PAYLOAD)] * 100))
    assert len(lines(capsys)) == 1


def test_it_is_not_over_while_somebody_waits_for_very_long(rig, capsys):
    sets(rig, "publishRate", publish_rate(1))
    rig.run(rig.sends(*[(rig.producer("a"), PAYLOAD)] * 60))
    passes(rig, 50_000)
    assert len(lines(capsys)) == 1
    passes(rig, 25_000)
    assert [line.partition(";")[0] for line in lines(capsys)] == [f"{TOPIC}: producers wait no more"]


def test_the_log_says_so_of_consumers_too(rig, capsys):
    backlog(rig, "a", 100)
    sets(rig, "dispatchRate", dispatch_rate(10))
    consumer = rig.consumer("a")
    rig.run(rig.flow(consumer, MANY))
    passes(rig, 5_000)
    assert lines(capsys) == [f"{TOPIC}: consumers of subscription 'sub' wait because of dispatchRate of topic {TOPIC}: "
                             "10 messages in a second"]
    rig.close_consumer(consumer)
    passes(rig, QUIET_MS + 2_000)
    [line] = lines(capsys)
    assert line.partition(";")[0] == f"{TOPIC}: consumers of subscription 'sub' wait no more"


@pytest.mark.slow
def test_lines_are_few_where_very_many_wait(rigs, capsys):
    """When very many topics are throttled, the log has a limited number of lines, and one that counts the topics
    without a line.
    """
    rig = rigs(publish_messages_per_topic=1)
    producers = [rig.producer(f"t{number}") for number in range(LINES_MAX + 30)]
    rig.run(rig.sends(*[(producer, PAYLOAD) for producer in producers for _ in range(5)]))
    assert len(lines(capsys)) == LINES_MAX
    passes(rig, PERIOD_MS)
    found = lines(capsys)
    assert found.pop() == "rates began to keep 30 more topics and subscriptions waiting, of which there are no lines"
    assert len(found) == LINES_MAX and all("no more" in line for line in found)
