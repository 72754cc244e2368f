"""Entry buckets: consumers of one segment share it by buckets of hashes, in order within each key."""
import random

import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.layouts import BUCKETS_MAX
from geminga.storage.dispatch.entry_buckets import EntryBuckets
from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.dispatch.ranges import HASHES, Buckets
from geminga.storage.topics.subscription import SubType

from .rig import T

SEGMENT = "segment://public/default/t/0000-ffff-0"
FOUR = [(0, 16_383), (16_384, 32_767), (32_768, 49_151), (49_152, 65_535)]
STAMPS = [100, 20_000, 40_000, 60_000]        # one of each bucket


@pytest.fixture
def rig(rigs):
    rig = rigs()
    rig.owner.catalogue.scalable_topics.create(names.parse("topic://public/default/t"), 1)
    rig.owner.catalogue.commit()
    return rig


def shared(bounds=FOUR, **fields):
    ranges = [api.IntRange(start=first, end=last) for first, last in bounds]
    return {"subType": SubType.Key_Shared, "keySharedMeta": api.KeySharedMeta(**{
        "keySharedMode": api.STICKY, "hashRanges": ranges, "entryBucketDispatch": True} | fields)}


def join(rig, name="c", connection=1, **fields):
    handle = rig.consumer(SEGMENT, consumer_name=name, connection=connection, **fields or shared())
    rig.run(rig.flow(handle, 1_000))
    return handle


def alone(rig, name="a", connection=1):
    return join(rig, name, connection, subType=SubType.Exclusive)


def subscription(rig):
    return rig.partition(SEGMENT).subscriptions["sub", True]


def publish(rig, producer, *entries):
    """Publish an entry for each (stamp, payload) and return the pass's answers."""
    answers = rig.run(rig.sends(*[(producer, payload, {"entry_hash_min": stamp, "entry_hash_max": stamp})
                                  for stamp, payload in entries]))
    subscription(rig).check()
    return answers


def got(rig, answers, consumer):
    return [payload for _, payload in rig.delivered(answers, consumer)]


def refused(rig, **fields):
    section, _ = rig.subscribe(SEGMENT, "sub", **fields)
    [error] = rig.run(section).commands(T.ERROR)
    return error.error.error, error.error.message


# -- buckets

def test_the_broker_spreads_the_buckets_and_entries_go_by_their_stamps(rig):
    producer, first, second = rig.producer(SEGMENT), join(rig, "a"), join(rig, "b")
    answers = publish(rig, producer, *[(stamp, b"%d" % stamp) for stamp in STAMPS])
    shares = [got(rig, answers, consumer) for consumer in (first, second)]
    assert sorted(map(len, shares)) == [2, 2]
    again = publish(rig, producer, *[(stamp + 5, b"%d" % stamp) for stamp in STAMPS])
    assert [got(rig, again, consumer) for consumer in (first, second)] == shares


def test_an_entry_without_a_stamp_goes_by_the_low_half_of_its_keys_hash(rig):
    consumers = [join(rig, name) for name in "abcd"]
    by_bucket = {}
    producer = rig.producer(SEGMENT)
    for stamp in STAMPS:
        answers = publish(rig, producer, (stamp, b"x"))
        [by_bucket[FOUR[STAMPS.index(stamp)]]] = [consumer for consumer in consumers if got(rig, answers, consumer)]
    for key, low in {"k0": 27_862, "k3": 47_229, "customer-7": 53_910}.items():
        answers = rig.run(rig.sends((producer, b"x", {"partition_key": key})))
        [bucket] = [bucket for bucket in FOUR if bucket[0] <= low <= bucket[1]]
        assert got(rig, answers, by_bucket[bucket]) == [b"x"]


def test_a_stamp_over_two_buckets_goes_to_that_of_the_lower_hash_and_is_counted(rig):
    producer, consumers = rig.producer(SEGMENT), [join(rig, name) for name in "abcd"]
    lowest = publish(rig, producer, (100, b"x"))
    answers = rig.run(rig.sends((producer, b"y", {"entry_hash_min": 100, "entry_hash_max": 20_000})))
    assert [len(got(rig, lowest, one)) for one in consumers] == [len(got(rig, answers, one)) for one in consumers]
    assert subscription(rig).straddling == 1


def test_entries_without_key_and_stamp_are_spread(rig):
    producer, consumers = rig.producer(SEGMENT), [join(rig, name) for name in "abcd"]
    answers = rig.run(rig.sends(*[(producer, b"x") for _ in range(80)]))
    counts = [len(got(rig, answers, consumer)) for consumer in consumers]
    assert sum(counts) == 80 and min(counts) > 5


def test_a_bucket_that_moves_waits_for_its_former_consumer(rig):
    producer, first = rig.producer(SEGMENT), join(rig, "a")
    answers = publish(rig, producer, *[(stamp, b"%d" % stamp) for stamp in STAMPS])
    held = rig.delivered(answers, first)
    second = join(rig, "b")
    answers = publish(rig, producer, *[(stamp, b"new %d" % stamp) for stamp in STAMPS])
    kept = got(rig, answers, first)
    assert len(kept) == 2 and not got(rig, answers, second)
    answers = rig.run(rig.acks(first, *[position for position, _ in held]))
    assert sorted([*kept, *got(rig, answers, second)]) == sorted(b"new %d" % stamp for stamp in STAMPS)


def test_entries_of_a_consumer_that_is_gone_come_again_in_order(rig):
    producer, first, second = rig.producer(SEGMENT), join(rig, "a"), join(rig, "b")
    entries = [(stamp, b"%d %d" % (stamp, number)) for number in range(5) for stamp in STAMPS]
    answers = publish(rig, producer, *entries)
    its = got(rig, answers, second)
    assert got(rig, rig.close_consumer(second), first) == its and len(its) == 10


@pytest.mark.parametrize("fields, error", [
    (shared([]), api.ConsumerAssignError),
    (shared(FOUR[1:]), api.ConsumerAssignError),
    (shared(FOUR[:3]), api.ConsumerAssignError),
    (shared([(0, 40_000), (30_000, 65_535)]), api.ConsumerAssignError),
    (shared([(0, 20_000), (20_002, 65_535)]), api.ConsumerAssignError),
    (shared([(number, number) for number in range(BUCKETS_MAX)] + [(BUCKETS_MAX, 65_535)]), api.ConsumerAssignError),
    (shared(keySharedMode=api.AUTO_SPLIT), api.ConsumerAssignError),
    (shared(allowOutOfOrderDelivery=True), api.ConsumerAssignError)])
def test_bad_lists_of_buckets_are_refused_in_one_line(rig, fields, error):
    code, text = refused(rig, **fields)
    assert code == error and "\n" not in text
    join(rig)


def test_another_list_and_other_types_are_refused(rig):
    join(rig, "a")
    assert refused(rig, **shared([(0, 65_535)]))[0] == api.ConsumerAssignError
    assert refused(rig, subType=SubType.Shared)[0] == api.ConsumerBusy
    assert refused(rig, subType=SubType.Key_Shared)[0] == api.ConsumerBusy


def test_entry_buckets_are_for_segments_only(rig):
    section, _ = rig.subscribe("a", "sub", **shared())
    [error] = rig.run(section).commands(T.ERROR)
    assert error.error.error == api.NotAllowedError


# -- becoming shared, and sole again

def test_a_second_consumer_need_not_wait_until_the_first_has_acknowledged(rig):
    """It gets entries of its buckets of which the first one has none, and the others once these are acknowledged."""
    producer, first = rig.producer(SEGMENT), alone(rig)
    held = rig.delivered(publish(rig, producer, (20_000, b"old 0"), (40_000, b"old 1")), first)
    second = join(rig, "b")
    answers = publish(rig, producer, *[(stamp, b"%d" % stamp) for stamp in STAMPS])
    assert (got(rig, answers, first), got(rig, answers, second)) == ([], [b"60000"])
    assert not got(rig, rig.run(rig.acks(first, held[0][0], cumulative=True)), second)
    assert got(rig, rig.run(rig.acks(first, held[1][0], cumulative=True)), second) == [b"40000"]
    rig.close_consumer(first)
    section, number = rig.subscribe(SEGMENT, "sub", consumer_name="a", **shared())
    first = rig.consumer_in(rig.run(section), number, SEGMENT)
    assert got(rig, rig.run(rig.flow(first, 1_000)), first) == [b"100", b"20000"]
    subscription(rig).check()


def test_the_share_of_the_first_one_waits_while_it_becomes_a_sharer(rig):
    """No key goes to another consumer and back; whoever of them subscribes first."""
    producer, first = rig.producer(SEGMENT), alone(rig)
    for second_comes_late in (False, True):
        if not second_comes_late:
            second = join(rig, "b")
        rig.close_consumer(first)
        if second_comes_late:
            second = join(rig, "b")
        answers = publish(rig, producer, *[(stamp, b"%d" % stamp) for stamp in STAMPS])
        its = rig.delivered(answers, second)
        assert [payload for _, payload in its] == [b"40000", b"60000"]
        section, number = rig.subscribe(SEGMENT, "sub", consumer_name="a", **shared())
        first = rig.consumer_in(rig.run(section), number, SEGMENT)
        ours = rig.delivered(rig.run(rig.flow(first, 1_000)), first)
        assert [payload for _, payload in ours] == [b"100", b"20000"]
        rig.run(rig.acks(first, *[position for position, _ in ours]),
                rig.acks(second, *[position for position, _ in its]))
        rig.close_consumer(first)
        rig.close_consumer(second)
        first = alone(rig)


def test_others_get_the_share_of_one_that_does_not_come_again(rig):
    producer, first = rig.producer(SEGMENT), alone(rig)
    second = join(rig, "b")
    rig.close_consumer(first)
    publish(rig, producer, *[(stamp, b"%d" % stamp) for stamp in STAMPS])
    assert not got(rig, rig.run(after_ms=999), second)
    assert got(rig, rig.run(after_ms=1), second) == [b"100", b"20000"]
    subscription(rig).check()


def test_a_clock_that_is_set_back_keeps_no_share_for_longer(rig):
    producer, first = rig.producer(SEGMENT), alone(rig)
    second = join(rig, "b")
    rig.close_consumer(first)
    publish(rig, producer, (100, b"x"))
    assert got(rig, rig.run(rig.flow(second, 1), after_ms=-3_600_000), second) == [b"x"]


def test_a_cumulative_acknowledgement_leaves_entries_of_others_alone(rig):
    producer, first = rig.producer(SEGMENT), alone(rig)
    publish(rig, producer, (100, b"old"))
    second = join(rig, "b")      # which holds the entry that is not acknowledged at the end
    newest = rig.delivered(publish(rig, producer, (60_000, b"new")), second)[0][0]
    rig.run(rig.acks(first, newest, cumulative=True))
    rig.close_consumer(first)
    rig.close_consumer(second)
    assert subscription(rig).cursor.backlog(rig.partition(SEGMENT).ledgers) == 1


def test_what_the_first_one_has_not_acknowledged_comes_again_when_it_closes(rig):
    producer, first = rig.producer(SEGMENT), alone(rig)
    publish(rig, producer, *[(stamp, b"%d" % stamp) for stamp in STAMPS])
    second = join(rig, "b")
    assert got(rig, rig.close_consumer(first), second) == [b"40000", b"60000"]
    assert got(rig, rig.run(after_ms=1_000), second) == [b"100", b"20000"]


def test_a_consumer_that_is_alone_again_gets_everything_in_order(rig):
    producer, first, second = rig.producer(SEGMENT), join(rig, "a"), join(rig, "b")
    answers = publish(rig, producer, *[(stamp, b"%d" % stamp) for stamp in STAMPS])
    ours = [position for position, _ in rig.delivered(answers, first)]
    rig.run(rig.acks(first, *ours))
    rig.close_consumer(first)
    sole = alone(rig)
    answers = publish(rig, producer, *[(stamp, b"new %d" % stamp) for stamp in STAMPS])
    assert not got(rig, answers, sole) and not got(rig, answers, second)
    missing = [payload for _, payload in rig.delivered(rig.close_consumer(second), sole)]
    assert missing[-4:] == [b"new %d" % stamp for stamp in STAMPS] and len(missing) == 6
    assert isinstance(subscription(rig).dispatcher, Exclusive) and subscription(rig).kind == SubType.Exclusive
    subscription(rig).check()
    [last] = [position for position, payload in rig.everything(SEGMENT) if payload == b"new 60000"]
    rig.run(rig.acks(sole, last, cumulative=True))
    assert subscription(rig).cursor.backlog(rig.partition(SEGMENT).ledgers) == 0


def test_a_segment_goes_from_one_stream_consumer_to_another_in_order(rig):
    """The other one attaches at once, and gets what comes when the first one has acknowledged or closed."""
    producer, first = rig.producer(SEGMENT), alone(rig, "a-seg-0")
    held = rig.delivered(publish(rig, producer, (100, b"0"), (20_000, b"1")), first)
    second = alone(rig, "b-seg-0")
    answers = publish(rig, producer, (40_000, b"2"))
    assert not got(rig, answers, first) and not got(rig, answers, second)
    assert not got(rig, rig.run(rig.acks(first, held[0][0], cumulative=True)), second)
    assert got(rig, rig.run(rig.acks(first, held[1][0], cumulative=True)), second) == [b"2"]
    rig.close_consumer(first)
    assert got(rig, publish(rig, producer, (100, b"3")), second) == [b"3"]
    assert isinstance(subscription(rig).dispatcher, Exclusive)
    third = alone(rig, "c-seg-0")
    assert got(rig, rig.close_consumer(second), third) == [b"2", b"3"]
    assert refused(rig, subType=SubType.Exclusive, consumer_name="c-seg-0")[0] == api.ConsumerBusy
    assert refused(rig, subType=SubType.Exclusive, consumer_name="d-seg-1")[0] == api.ConsumerBusy


def test_a_sealed_partition_goes_from_one_stream_consumer_to_another_too(rig):
    """Partitions are segments of a topic that was made scalable.  One that takes messages has other clients as well."""
    partition = "persistent://public/default/regular-partition-1"
    rig.publish(rig.producer(partition), b"0")
    first = rig.consumer(partition, consumer_name="a-seg-1", initialPosition=api.CommandSubscribe.Earliest)
    assert [payload for _, payload in rig.receive(first)] == [b"0"]
    section, _ = rig.subscribe(partition, "sub", consumer_name="b-seg-1")
    [error] = rig.run(section).commands(T.ERROR)
    assert error.error.error == api.ConsumerBusy
    rig.asked("terminate", partition)
    second = rig.consumer(partition, consumer_name="b-seg-1")
    assert rig.receive(second) == []
    assert [payload for _, payload in rig.delivered(rig.close_consumer(first), second)] == [b"0"]


def test_a_second_exclusive_consumer_is_refused(rig):
    alone(rig)
    assert refused(rig, subType=SubType.Exclusive)[0] == api.ConsumerBusy
    join(rig, "b")
    alone(rig, "c")
    assert refused(rig, subType=SubType.Exclusive)[0] == api.ConsumerBusy
    assert isinstance(subscription(rig).dispatcher, EntryBuckets)


# -- the rules, at random

def test_buckets_are_spread_evenly_and_move_only_if_they_have_to():
    chance = random.Random(1)
    for count in (1, 2, 3, 4, 7, 8, 64):
        width = HASHES // count
        buckets = Buckets([(number * width, HASHES - 1 if number == count - 1 else (number + 1) * width - 1)
                           for number in range(count)])
        there = []
        for _ in range(60):
            before = buckets._owners.copy()
            is_leaving = bool(there) and chance.random() < 0.45
            changed = there.pop(chance.randrange(len(there))) if is_leaving else min({*range(1, 80)} - {*there})
            if not is_leaving:
                there.append(changed)
            buckets.spread(there)
            shares = [int((buckets._owners == slot).sum()) for slot in there]
            assert not there or (sum(shares) == count and max(shares) - min(shares) <= 1)
            moved = buckets._owners != before
            if is_leaving:
                assert (before[moved] == changed).all()
            elif len(there) > 1:
                assert (buckets._owners[moved] == changed).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_keys_keep_their_order_and_nothing_is_lost_while_consumers_come_and_go(rig, seed):
    """Sharers and sole consumers come, acknowledge, close and are cut off; what one was given and acknowledged is never
    given again, and no key's message is given while an earlier one is held by another.
    """
    chance, producer = random.Random(seed), rig.producer(SEGMENT)
    consumers, held, done, sent = {}, {}, set(), 0

    def take(answers):
        for handle in list(consumers):
            for position, payload in rig.delivered(answers, handle):
                stamp, number = map(int, payload.split())
                assert position not in done, (seed, payload)
                for other, its in held.items():
                    for (held_stamp, held_number) in its.values():
                        assert other is handle or held_stamp != stamp or held_number > number, (seed, payload, other)
                held[handle][position] = stamp, number
        if consumers:
            subscription(rig).check()

    for step in range(400):
        action = chance.random()
        if action < 0.35:
            entries = [(chance.choice(STAMPS) + chance.randrange(4), None) for _ in range(chance.randrange(1, 6))]
            sections = [(producer, b"%d %d" % (stamp, sent + at), {"entry_hash_min": stamp, "entry_hash_max": stamp})
                        for at, (stamp, _) in enumerate(entries)]
            sent += len(entries)
            take(rig.run(rig.sends(*sections)))
        elif action < 0.5 and len(consumers) < 6:
            sole = chance.random() < 0.25
            section, number = rig.subscribe(SEGMENT, "sub", consumer_name=f"c{step}-seg-0", **(
                {"subType": SubType.Exclusive} if sole else shared()))
            answers = rig.run(section)
            if not answers.commands(T.ERROR):
                handle = rig.consumer_in(answers, number, SEGMENT)
                consumers[handle], held[handle] = sole, {}
                take(answers)
                take(rig.run(rig.flow(handle, chance.choice([3, 1_000]))))
        elif action < 0.62 and consumers:
            handle = chance.choice(list(consumers))
            del consumers[handle]
            held.pop(handle)
            take(rig.close_consumer(handle))
        elif consumers:
            handle = chance.choice(list(consumers))
            some = sorted(held[handle])[:chance.randrange(1, 5)]
            if some:
                is_cumulative = consumers[handle]
                done.update(some)
                for position in some:
                    del held[handle][position]
                take(rig.run(rig.acks(handle, *([some[-1]] if is_cumulative else some), cumulative=is_cumulative),
                             rig.flow(handle, len(some))))
    for handle in list(consumers):
        del consumers[handle]
        held.pop(handle)
        rig.close_consumer(handle)
    everything = {position for position, _ in rig.everything(SEGMENT)}
    last = rig.consumer(SEGMENT, subType=SubType.Exclusive)
    rest = {position for position, _ in rig.receive(last, 10_000)}
    assert len(everything) == sent and done.isdisjoint(rest) and done | rest == everything
