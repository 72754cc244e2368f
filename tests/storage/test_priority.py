"""Priorities: which message a Shared consumer gets next where the policy is on, and that none is lost at its switch."""
import struct

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import compress
from geminga.storage import format
from geminga.storage.dispatch import by_priority
from geminga.storage.dispatch.by_priority import ByPriority
from geminga.storage.dispatch.shared import Shared
from geminga.storage.enforcement import batch_priorities
from geminga.storage.topics.subscription import SubType

from .test_limits import set_policy

SHARED = {"subType": SubType.Shared}
MINUTE_MS = 60_000


def priority(value):
    """Return the fields of a message with this priority; None: without one."""
    return {} if value is None else {"properties": [api.KeyValue(key="geminga.priority", value=str(value))]}


def publish(rig, producer, *priorities, **fields):
    """Publish a message of each priority in one pass, and return their positions."""
    return rig.run(rig.sends(*[(producer, b"x", priority(one) | fields) for one in priorities])).positions


def ids(rig, answers, consumer):
    return [position for position, *_ in rig.given(answers, consumer)]


def take(rig, consumer, permits=1_000):
    return ids(rig, rig.run(rig.flow(consumer, permits)), consumer)


def in_order(positions, priorities):
    """Return positions in the order of delivery: the highest priority first, then by position."""
    ranked = sorted((-(4 if each is None else each), position)
                    for position, each in zip(positions, priorities, strict=True))
    return [position for _, position in ranked]


@pytest.fixture
def owner(rigs):
    """An owner on which all topics deliver by priority."""
    return rigs(message_priority=True)


# -- the order

def test_the_highest_goes_first_and_within_it_the_oldest(owner):
    """Messages without a priority, and with one that is no number from 0 to 9, count as 4."""
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    priorities = [0, 9, None, 5, 4, "high", 9, 3, 10, 0]
    positions = publish(owner, producer, *priorities)
    wanted = in_order(positions, [each if each in range(10) else None for each in priorities])
    assert [take(owner, consumer, 3), take(owner, consumer, 1), take(owner, consumer)] == \
        [wanted[:3], wanted[3:4], wanted[4:]]


def test_the_order_holds_over_ledgers_and_for_consumers_in_turns(rigs):
    rig = rigs(message_priority=True, roll_over_entries=7)
    producer, crowd = rig.producer("a"), [rig.consumer("a", **SHARED) for _ in range(3)]
    priorities = [number * 7 % 10 for number in range(40)]
    positions = [position for each in priorities for position in publish(rig, producer, each)]
    wanted = in_order(positions, priorities)
    assert len({ledger for ledger, _ in positions}) > 3
    for number, consumer in enumerate(crowd * 5):
        assert sorted(take(rig, consumer, 2)) == sorted(wanted[2 * number:2 * number + 2])
    rest = [position for consumer in crowd for position in take(rig, consumer, 20)]
    assert sorted(rest) == sorted(wanted[30:])


def test_a_new_message_does_not_overtake_a_higher_one_that_waits(owner):
    """What a pass has appended is not delivered before what waits, also if a consumer has permits for it."""
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    first = publish(owner, producer, 7, 7)
    answers = owner.run(owner.sends((producer, b"x", priority(2)), (producer, b"x", priority(9))),
                        owner.flow(consumer, 2))
    low, high = answers.positions
    assert ids(owner, answers, consumer) == [high, first[0]]
    assert take(owner, consumer) == [first[1], low]


def test_redelivered_messages_keep_their_place(owner):
    """They come by priority, then position, before and behind messages that were never sent."""
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    priorities = [5, 1, 9, 5, 5, 1]
    positions = publish(owner, producer, *priorities)
    assert take(owner, consumer, 3) == in_order(positions, priorities)[:3]
    answers = owner.run(owner.redeliver(consumer, positions[0], positions[2]), owner.flow(consumer, 2))
    assert owner.given(answers, consumer) == [(positions[2], 1, []), (positions[0], 1, [])]
    assert take(owner, consumer) == [positions[4], positions[1], positions[5]]


def test_what_a_consumer_that_left_had_is_delivered_by_priority(owner):
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    priorities = [0, 8, 3, 8, 6]
    positions = publish(owner, producer, *priorities)
    assert len(take(owner, consumer)) == 5
    other = owner.consumer("a", **SHARED)
    owner.run(owner.flow(other, 100))
    assert ids(owner, owner.close_consumer(consumer), other) == in_order(positions, priorities)


def test_delayed_messages_join_at_their_time(owner):
    """Until then lower ones are delivered; from then on they have the place of their priority and position."""
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    [late] = publish(owner, producer, 9, deliver_at_time=owner.now_ms + 5_000)
    others = publish(owner, producer, 2, 9, 2)
    assert take(owner, consumer, 2) == [others[1], others[0]]
    owner.run(after_ms=6_000)
    newest = publish(owner, producer, 9)
    assert take(owner, consumer) == [late, *newest, others[2]]


def test_a_delayed_message_that_consumers_wait_for_comes_at_once(owner):
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    assert not take(owner, consumer, 10)
    [late] = publish(owner, producer, 9, deliver_at_time=owner.now_ms + 5_000)
    assert ids(owner, owner.run(after_ms=7_000), consumer) == [late]


def test_chunks_count_as_messages_without_a_priority(owner):
    """The bits of their priorities have the numbers of chunks."""
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    chunk = {"num_chunks_from_msg": 2, "uuid": "u", "total_chunk_msg_size": 2}
    chunks = [*publish(owner, producer, 9, chunk_id=0, **chunk), *publish(owner, producer, 9, chunk_id=1, **chunk)]
    [lower, higher] = publish(owner, producer, 3, 5)
    assert take(owner, consumer) == [higher, *chunks, lower]


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Failover, SubType.Key_Shared])
def test_other_subscription_types_keep_the_order_of_positions(owner, kind):
    producer, consumer = owner.producer("a"), owner.consumer("a", subType=kind)
    positions = publish(owner, producer, 1, 9, 5)
    assert take(owner, consumer) == positions


def test_a_topic_without_the_policy_keeps_the_order_of_positions(rig):
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    positions = publish(rig, producer, 1, 9, 5)
    assert take(rig, consumer) == positions


def test_non_persistent_topics_keep_the_order_of_positions(owner):
    topic = "non-persistent://public/default/a"
    producer, consumer = owner.producer(topic), owner.consumer(topic, **SHARED)
    owner.run(owner.flow(consumer, 10))
    answers = owner.run(owner.sends(*[(producer, str(each).encode(), priority(each)) for each in (1, 9, 5)]))
    assert [payload for _, _, payload in answers.passed] == [b"1", b"9", b"5"]


# -- batches

def batch_of(*priorities, codec=api.NONE, damaged=False):
    """Return (payload, fields) of a batch with a message of each priority; None: without one."""
    pieces = []
    for value in priorities:
        own = api.SingleMessageMetadata(payload_size=3, **priority(value)).SerializeToString()
        pieces.append(struct.pack(">I", len(own)) + own + b"abc")
    plain = b"".join(pieces)[:-1 if damaged else None]
    fields = {"batch": len(priorities)}
    if codec != api.NONE:
        fields |= {"compression": codec, "uncompressed_size": len(plain)}
    return compress(codec, plain), fields


@pytest.mark.parametrize("codec", [api.NONE, api.LZ4, api.ZLIB, api.ZSTD, api.SNAPPY])
def test_a_batch_has_the_highest_priority_of_its_messages(owner, codec):
    """Messages of a batch without a priority count as 4, as others do; the bytes of the batch stay as they are."""
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    batches = [batch_of(1, 6, 2, codec=codec), batch_of(2, 3, codec=codec), batch_of(None, 1, codec=codec),
               batch_of(None, None, codec=codec), batch_of(9, codec=codec)]
    positions = owner.run(owner.sends(*[(producer, *batch) for batch in batches])).positions
    wanted = in_order(positions, [6, 3, 4, 4, 9])
    delivered = owner.receive(consumer)
    assert [position for position, _ in delivered] == wanted
    assert {payload for _, payload in delivered} == {payload for payload, _ in batches}


@pytest.mark.parametrize("payload, fields", [
    batch_of(9, damaged=True), (b"no codec reads this geminga.priority", {"batch": 2, "compression": api.ZSTD,
                                                                         "uncompressed_size": 100}),
    (batch_of(9)[0], {"batch": 1, "encryption_keys": [api.EncryptionKeys(key="k", value=b"v")]}),
    (batch_of(9)[0], {"batch": 4}), (batch_of(9, codec=api.ZLIB)[0], {
        "batch": 1, "compression": api.ZLIB, "uncompressed_size": 1 << 30}),
], ids=["cut", "compressed wrong", "encrypted", "too few", "too large"])
def test_a_batch_that_cannot_be_read_counts_as_one_without_a_priority(owner, payload, fields):
    """It is stored and delivered like any other: consumers find out what is wrong with it."""
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    positions = owner.run(owner.sends((producer, b"x", priority(3)), (producer, payload, fields),
                                      (producer, b"x", priority(5)))).positions
    assert take(owner, consumer) == [positions[2], positions[1], positions[0]]


def test_no_more_than_so_much_is_decompressed_in_a_pass(owner, monkeypatch):
    monkeypatch.setattr(batch_priorities, "_UNPACKED_MAX", 100)
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    batch = batch_of(9, codec=api.ZLIB)
    size = batch[1]["uncompressed_size"]
    batches = [(producer, *batch)] * (100 // size + 1)
    positions = owner.run(owner.sends((producer, b"x", priority(5)), *batches)).positions
    assert take(owner, consumer) == [*positions[1:-1], positions[0], positions[-1]]


def test_batches_from_before_the_policy_count_as_messages_without_a_priority(rig):
    """Nobody looked into them as they came; the priorities of single messages are known all the same."""
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    positions = rig.run(rig.sends((producer, *batch_of(9)), (producer, b"x", priority(5)))).positions
    set_policy(rig, "messagePriority", {"active": True})
    positions += rig.run(rig.sends((producer, *batch_of(9)))).positions
    assert take(rig, consumer) == [positions[2], positions[1], positions[0]]


def test_a_damaged_row_of_a_batch_gets_its_priority_back(owner, capfd):
    """A row that is rebuilt from its entry has the priority again, of a batch as of a message."""
    producer = owner.producer("a")
    [first, batch, single, last] = owner.run(owner.sends(
        (producer, b"x", priority(5)), (producer, *batch_of(1, 8)), (producer, b"x", priority(7)),
        (producer, b"x"))).positions
    owner.run()
    owner.asked("unload", "a")
    path = next(owner.data_dir.glob("partitions/*/*.index"))
    data = bytearray(path.read_bytes())
    for entry in (batch[1], single[1]):
        data[format.HEADER_SIZE + 64 * entry + 9] ^= 0xFF
    path.write_bytes(data)
    consumer = owner.consumer("a", **SHARED)
    assert take(owner, consumer) == [batch, single, first, last]
    assert "damaged rows were made anew, of 2 entries" in capfd.readouterr().err


# -- lost, skipped, killed

def test_after_a_kill_the_order_is_the_same(owner, tmp_path):
    """Acknowledged messages stay away; those that were sent come again, in the place of their priority."""
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    priorities = [number * 3 % 10 for number in range(50)]
    positions = publish(owner, producer, *priorities)
    sent = take(owner, consumer, 20)
    owner.run(owner.acks(consumer, *sent[5:15], request_id=1))
    after = owner.crashed(tmp_path / "next")
    again = after.consumer("a", **SHARED)
    left = [position for position in in_order(positions, priorities) if position not in sent[5:15]]
    assert take(after, again, 7) == left[:7]
    assert take(after, again) == left[7:]
    after.close()


def test_skipped_messages_are_not_delivered(owner):
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    positions = publish(owner, producer, 1, 9, 1, 9, 1)
    assert take(owner, consumer, 1) == [positions[1]]
    owner.asked("skip", "a", subscription="sub", entries=3)
    assert take(owner, consumer) == [positions[3], positions[4]]


def test_a_reset_begins_anew(owner):
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    positions = publish(owner, producer, 1, 9, 5)
    assert len(take(owner, consumer)) == 3
    owner.run(owner.command("seek", consumer_id=consumer.object_id, request_id=1,
                            message_id={"ledgerId": positions[1][0], "entryId": positions[1][1]}))
    again = owner.consumer("a", **SHARED)
    assert take(owner, again) == positions[1:]


# -- the switch

@pytest.mark.parametrize("change", [True, False], ids=["on", "off"])
def test_the_policy_changes_under_consumers(rig, change):
    """What they hold stays with them, nothing is sent twice, and the rest comes in the new order."""
    set_policy(rig, "messagePriority", {"active": not change})
    producer, consumer, other = rig.producer("a"), rig.consumer("a", **SHARED), rig.consumer("a", **SHARED)
    priorities = [number * 7 % 10 for number in range(30)]
    positions = publish(rig, producer, *priorities)
    held = take(rig, consumer, 8) + take(rig, other, 4)
    rig.run(rig.redeliver(other))
    held = held[:8]
    set_policy(rig, "messagePriority", {"active": change})
    dispatcher = rig.partition("a").subscriptions["sub", True].dispatcher
    assert type(dispatcher) is (ByPriority if change else Shared)
    rig.partition("a").check()
    wanted = in_order(positions, priorities) if change else positions
    assert take(rig, other) == [position for position in wanted if position not in held]
    rig.run(rig.acks(consumer, *held, request_id=1))
    rig.run(rig.acks(other, *[position for position in positions if position not in held], request_id=2))
    rig.partition("a").check()
    assert rig.partition("a").subscriptions["sub", True].cursor.mark_delete == positions[-1]


# -- ageing

def test_what_has_waited_long_enough_goes_first_and_the_oldest_of_it(rigs):
    rig = rigs(message_priority=True, message_priority_ageing_s=60)
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    old = publish(rig, producer, 0, 7, 0)
    rig.run(after_ms=50_000)
    new = publish(rig, producer, 1, 9)
    assert take(rig, consumer, 1) == [new[1]]
    rig.run(after_ms=10_000)
    assert take(rig, consumer, 4) == [*old, new[0]]


def test_a_delayed_message_waits_from_its_time_on(rigs):
    rig = rigs(message_priority=True, message_priority_ageing_s=60)
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    [late] = publish(rig, producer, 0, deliver_at_time=rig.now_ms + 90_000)
    [low] = publish(rig, producer, 1)
    rig.run(after_ms=100_000)
    [high] = publish(rig, producer, 9)
    assert take(rig, consumer, 2) == [low, high]
    rig.run(after_ms=60_000)
    [higher] = publish(rig, producer, 9)
    assert take(rig, consumer) == [late, higher]


# -- bounds

def test_a_large_backlog_is_looked_at_over_some_passes_and_nothing_is_sent_before(rigs, monkeypatch):
    """The highest priority may be in what is not looked at yet."""
    monkeypatch.setattr(by_priority, "_MARKED_MAX", 20)
    monkeypatch.setattr(by_priority, "_STRETCH", 10)
    rig = rigs(message_priority=True)
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    positions = publish(rig, producer, *[4] * 49, 9)
    answers, passes = rig.run(rig.flow(consumer, 2)), 0
    while rig.owner.passes.due_ms() <= rig.now_ms:
        assert not answers.gifts
        answers, passes = rig.run(), passes + 1
    assert passes and ids(rig, answers, consumer) == [positions[49], positions[0]]


def test_no_more_than_a_number_waits_in_memory(rigs, monkeypatch):
    """What is behind it is looked at when something has been delivered."""
    monkeypatch.setattr(by_priority, "WAITING_MAX", 10)
    monkeypatch.setattr(by_priority, "_STRETCH", 5)
    rig = rigs(message_priority=True)
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    positions = publish(rig, producer, *[4] * 19, 9)
    got = take(rig, consumer, 5)
    assert got == positions[:5] and rig.partition("a").subscriptions["sub", True].dispatcher.pending.to_redeliver == 5
    assert sorted(take(rig, consumer, 100) + take(rig, consumer, 1)) == positions[5:]


def test_a_search_goes_no_further_than_what_waits(owner):
    """Where all of a priority was sent, one that comes back is looked for in its place only."""
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    positions = publish(owner, producer, *[9] * 20, *[1] * 20)
    assert len(take(owner, consumer, 40)) == 40
    owner.run(owner.redeliver(consumer, positions[3], positions[5]))
    [levels] = owner.partition("a").subscriptions["sub", True].dispatcher.pending._levels.values()
    assert (levels.first[9], levels.last[9]) == (positions[3][1], positions[5][1])
    assert take(owner, consumer) == [positions[3], positions[5]]


def test_waiting_messages_cost_a_few_bytes_each(rigs):
    """Two bytes of a slot, and one of a priority, each of an array that doubles."""
    rig = rigs(message_priority=True)
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    for _ in range(10):
        publish(rig, producer, *[3] * 500)
    assert len(take(rig, consumer, 1)) == 1
    pending = rig.partition("a").subscriptions["sub", True].dispatcher.pending
    assert sum(held.slots.nbytes for held in pending._ledgers.values()) <= 4 * 5_000
    assert pending.counts == [0, 0, 0, 4_999, 0, 0, 0, 0, 0, 0]
    assert sum(levels.priorities.nbytes for levels in pending._levels.values()) <= 2 * 5_000
