"""Batches that are acknowledged in part: the messages left of them, and that these survive."""
import tracemalloc

import numpy as np
import pytest

from geminga.storage import format
from geminga.storage.cursors import batch_acks
from geminga.storage.ledgers.journal import Journal
from geminga.storage.topics.subscription import SubType

from .disk import Disk
from .rig import Rig

MANY = 1_000
ALL_64 = (1 << 64) - 1


@pytest.fixture(params=[SubType.Exclusive, SubType.Shared, SubType.Failover, SubType.Key_Shared], ids=SubType.Name)
def kind(request):
    return request.param


def publish(rig, *sizes):
    """Publish a batch of each size; return the positions."""
    producer = rig.producer("a")
    return rig.run(rig.sends(*[(producer, b"x", {"batch": size}) for size in sizes])).positions


def left(rig, kind=SubType.Exclusive):
    """Return {position: bits of the unacknowledged messages, or 0 for all} of the entries that a new consumer gets."""
    consumer = rig.consumer("a", subType=kind)
    answers = rig.run(rig.flow(consumer, MANY))
    rig.close_consumer(consumer)
    return {position: int.from_bytes(np.array(words, np.uint64).tobytes(), "little") for position, _,
            words in rig.given(answers, consumer)}


# -- what is left

def test_what_is_acknowledged_in_any_set_is_acknowledged(rig, kind):
    """Ack sets of one or several passes, repeated or not, add up."""
    positions, consumer = publish(rig, 5, 5, 5), rig.consumer("a", subType=kind)
    rig.run(rig.ack_part(consumer, positions[0], 0b11100), rig.ack_part(consumer, positions[0], 0b11011))
    rig.run(rig.ack_part(consumer, positions[0], 0b11100), rig.ack_part(consumer, positions[2], 0b01111))
    rig.close_consumer(consumer)
    assert left(rig, kind) == {positions[0]: 0b11000, positions[1]: 0, positions[2]: 0b01111}


def test_a_batch_of_which_nothing_is_left_is_acknowledged(rig, kind):
    """A batch is acknowledged by sets that cover it together, by an empty set, and by an acknowledgement of the entry.
    """
    positions, consumer = publish(rig, 3, 3, 3, 3), rig.consumer("a", subType=kind)
    rig.run(*[rig.ack_part(consumer, position, 0b110) for position in positions])
    rig.run(rig.ack_part(consumer, positions[0], 0b001), rig.ack_part(consumer, positions[1], 0),
            rig.acks(consumer, positions[2]))
    cursor = rig.partition("a").subscriptions["sub", True].cursor
    assert cursor.mark_delete == positions[2]
    assert cursor.parts == {positions[3][0]: {positions[3][1]: 0b110}}
    rig.run(rig.ack_part(consumer, positions[0], 0b111))       # an older set that comes late takes nothing back
    rig.close_consumer(consumer)
    assert left(rig, kind) == {positions[3]: 0b110}


@pytest.mark.slow
@pytest.mark.parametrize("size, words, expected", [
    (3, [ALL_64], 0), (3, [0b1000], None), (3, [0b101, 7, 7], 0b101), (65, [ALL_64], ALL_64),
    (65, [0, ALL_64], 1 << 64),
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    
    (130, [0, 0, 0b11], 0b11 << 128), (130, [1], 1), (64, [1 << 63], 1 << 63)])
def test_a_set_may_be_longer_or_shorter_than_its_batch(rigs, size, words, expected):
    """Bits beyond the batch are ignored, and messages beyond the set are acknowledged."""
    rig = rigs()
    positions, consumer = publish(rig, size), rig.consumer("a")
    rig.run(rig.ack_part(consumer, positions[0], *words))
    rig.close_consumer(consumer)
    found = {} if expected is None else {positions[0]: expected}
    assert left(rig) == left(rigs.crash(rig)) == found


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Failover], ids=SubType.Name)
def test_a_cumulative_set_is_about_its_batch_and_all_before(rig, kind):
    """A cumulative ack set acknowledges all entries before its batch, and leaves later ones as they are."""
    positions, consumer = publish(rig, 3, 3, 3, 3), rig.consumer("a", subType=kind)
    rig.run(*[rig.ack_part(consumer, positions[n], 0b011) for n in (0, 2, 3)])
    rig.run(rig.ack_part(consumer, positions[2], 0b110, cumulative=True))
    rig.close_consumer(consumer)
    assert left(rig, kind) == {positions[2]: 0b010, positions[3]: 0b011}


def test_what_is_left_comes_back_as_a_set(rig, kind):
    """Redelivered batches carry an ack set of the messages left, of any size and among whole entries."""
    positions, consumer = publish(rig, 1, 70, 5, 1), rig.consumer("a", subType=kind)
    rig.run(rig.flow(consumer, MANY), rig.ack_part(consumer, positions[1], 5, 0b100001))
    again = rig.given(rig.run(rig.redeliver(consumer)), consumer)
    assert [(position, words) for position, _, words in again] == [
        (positions[0], []), (positions[1], [5, 0b100001]), (positions[2], []), (positions[3], [])]


def test_a_seek_forgets_parts(rig):
    positions, consumer = publish(rig, 3), rig.consumer("a")
    rig.run(rig.ack_part(consumer, positions[0], 0b110))
    rig.run(rig.command("seek", consumer_id=consumer.object_id, request_id=1, message_publish_time=0))
    assert left(rig) == {positions[0]: 0}


def test_where_it_is_switched_off_parts_count_for_nothing(rigs, kind):
    """Without batch index acknowledgement a cumulative ack set acknowledges only the entries before its batch."""
    rig = rigs(batch_index_acknowledgement=False)
    positions, consumer = publish(rig, 3, 3, 3), rig.consumer("a", subType=kind)
    rig.run(rig.ack_part(consumer, positions[0], 0b110), rig.ack_part(consumer, positions[0], 0))
    rig.run(rig.ack_part(consumer, positions[1], 0b110, cumulative=True))
    rig.close_consumer(consumer)
    expected = positions if kind in (SubType.Shared, SubType.Key_Shared) else positions[1:]
    assert left(rig, kind) == dict.fromkeys(expected, 0)


def test_skipping_everything_leaves_no_message_at_a_consumer(rigs):
    """A skip beyond a ledger with holes takes off a consumer's count only the messages that were left of a batch."""
    rig = rigs(roll_over_entries=3)
    consumer = rig.consumer("a", subType=SubType.Shared)
    positions = publish(rig, 1, 5, 1) + publish(rig, 1)
    assert positions[2][0] < positions[3][0]
    rig.run(rig.flow(consumer, MANY))
    rig.run(rig.acks(consumer, positions[2]), rig.ack_part(consumer, positions[1], 0b00011))
    subscription = rig.partition("a").subscriptions["sub", True]
    assert subscription.first_consumer.unacknowledged == 1 + 2 + 1
    rig.asked("clear", "a", subscription="sub")
    assert subscription.first_consumer.unacknowledged == 0
    subscription.check()


# -- what is kept

@pytest.mark.slow
def test_parts_outlive_the_process(rigs, kind):
    """Ack sets survive a kill, a stop, and both, with more acknowledged in between."""
    rig = rigs(roll_over_entries=2)
    rig.close_consumer(rig.consumer("a"))
    positions = sum((publish(rig, 100) for _ in range(4)), [])
    expected = dict.fromkeys(positions, 0)
    for number, end in enumerate((rigs.crash, rigs.restart, rigs.crash, rigs.crash, rigs.restart)):
        consumer = rig.consumer("a", subType=kind)
        for position in positions[1:]:
            rig.run(rig.ack_part(consumer, position, (1 << 64) - 1 - (1 << number), ALL_64))
            expected[position] = (expected[position] or (1 << 100) - 1) & ~(1 << number)
        rig = end(rig)
        assert left(rig, kind) == expected


def test_a_power_cut_takes_back_no_part_that_was_answered(tmp_path, monkeypatch):
    """An answered ack set survives a power cut, also right behind a checkpoint, which has written the state file anew.
    """
    disk = Disk(tmp_path / "data", monkeypatch)
    rig = Rig(tmp_path / "data", journal_segment_bytes=64 << 10, journal_segments_max=3, roll_over_entries=16)
    producer, consumer = rig.producer("a"), rig.consumer("a", subType=SubType.Shared)
    path, answered, cuts, sync = format.state_path(rig.partition("a").folder), {}, {}, Journal.sync

    def look(journal):
        """Cut the power instead of syncing, on a copy, and read what is left."""
        if journal is rig.journal and path.exists() and (written := path.stat().st_mtime_ns) not in cuts:
            cuts[written] = tmp_path / f"cut-{len(cuts)}"
            disk.after_power_cut(cuts[written], with_sizes=True)
            found = Rig(cuts[written], **rig.settings)
            for position, bits in left(found).items():
                assert not (bits or 0b111) & answered.get(position, 0), position
            found.close()
        sync(journal)

    monkeypatch.setattr(Journal, "sync", look)
    for number in range(30):
        sends = rig.sends(*[(producer, b"x" * 6_000, {"batch": 3})] * (2 + number % 3))
        old = [position for position, bits in answered.items() if bits == 0b001][:-40]
        answers = rig.run(sends, *[rig.ack_part(consumer, position, 0b001, request_id=1) for position in old])
        answered.update(dict.fromkeys(old, 0b111))
        rig.run(*[rig.ack_part(consumer, position, 0b110, request_id=2) for position in answers.positions])
        answered.update(dict.fromkeys(answers.positions, 0b001))
    rig.close()
    assert len(cuts) >= 5
    assert 0b111 in answered.values()


@pytest.mark.slow
def test_what_a_batch_claims_to_hold_takes_no_memory(rigs, kind):
    """Memory for a batch is bounded by the ack sets received, however many messages its metadata claim."""
    rig = rigs()
    positions, consumer = publish(rig, 2**31 - 1), rig.consumer("a", subType=kind)
    tracemalloc.start()
    rig.run(rig.ack_part(consumer, positions[0], ALL_64, ALL_64 - 1, request_id=1))
    rig.run(rig.ack_part(consumer, positions[0], 0b101, 1 << 63, request_id=2))
    rig.close_consumer(consumer)
    expected = {positions[0]: 0b101 | 1 << 127}
    assert left(rig, kind) == left(rigs.crash(rig), kind) == left(rigs.restart(rig), kind) == expected
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


@pytest.mark.slow
def test_many_words_of_one_batch_are_back_after_a_crash(rigs):
    """The journal has each word of an ack set when it first comes and when it changes, also to 0."""
    rig, words = rigs(), list(range(1, 60_001))
    positions, consumer = publish(rig, 64 * len(words)), rig.consumer("a")
    rig.run(rig.ack_part(consumer, positions[0], *words, request_id=1))
    for number in (7, 59_999):
        words[number] = 0
        rig.run(rig.ack_part(consumer, positions[0], *words, request_id=1))
    rig.close_consumer(consumer)
    expected = {positions[0]: int.from_bytes(np.array(words, np.uint64).tobytes(), "little")}
    assert left(rigs.crash(rig)) == left(rigs.restart(rig)) == expected


def test_words_are_64_bits_the_lowest_first():
    """Words behind the last one with a bit are left out, for clients and in the journal; missing words are 0."""
    assert batch_acks.words(0b11000).tolist() == [24]
    assert batch_acks.words(1 << 64 | 3).tolist() == [3, 1]
    assert batch_acks.words(1 << 128).tolist() == [0, 0, 1]
    assert batch_acks.words(0).tolist() == [0]
    assert batch_acks.words(ALL_64).tobytes() == b"\xff" * 8


@pytest.mark.parametrize(
    "messages, bits", [(3, 0b111), (64, ALL_64), (65, 1 << 64 | ALL_64), (1 << 40, (1 << 192) - 1)])
def test_words_are_read_as_far_as_the_batch_goes(messages, bits):
    assert batch_acks.bits_of(b"\xff" * 24, messages) == bits


def test_words_take_the_place_of_others():
    assert batch_acks.put(5 << 64 | 3, np.array([0, 2]), np.array([0, 7], np.uint64)) == 7 << 128 | 5 << 64
    assert batch_acks.put(1 << 64 | 3, np.array([1]), np.array([0], np.uint64)) == 3
    assert batch_acks.put(0, np.array([3]), np.array([1], np.uint64)) == 1 << 192


def test_what_is_left_goes_with_its_own_batch_whatever_was_acknowledged_first(rig, kind):
    positions, consumer = publish(rig, 3, 3, 3), rig.consumer("a", subType=kind)
    for position, bits in zip(reversed(positions), (0b011, 0b101, 0b110), strict=True):
        rig.run(rig.ack_part(consumer, position, bits))
    rig.close_consumer(consumer)
    assert left(rig, kind) == dict(zip(positions, (0b110, 0b101, 0b011), strict=True))


def test_what_is_acknowledged_of_the_first_batch_counts(rig, kind):
    """Backlogs count only the messages left of a batch, also of the first entry that is counted."""
    positions, consumer = publish(rig, 3, 3, 3), rig.consumer("a", subType=kind)
    rig.run(rig.ack_part(consumer, positions[0], 0b100), rig.ack_part(consumer, positions[2], 0b110))
    partition = rig.partition("a")
    cursor = partition.subscriptions["sub", True].cursor
    assert cursor.backlog_messages(partition.ledgers) == 1 + 3 + 2
    assert [cursor.unacknowledged_messages(partition.open_ledger, first, first + 1) for first in range(3)] == [1, 3, 2]


def test_the_last_that_is_acknowledged_is_acknowledged(rig, kind):
    """Ack sets for an entry that is acknowledged as a whole change nothing."""
    [position], consumer = publish(rig, 3), rig.consumer("a", subType=kind)
    rig.run(rig.acks(consumer, position))
    rig.run(rig.ack_part(consumer, position, 0b110))
    cursor = rig.partition("a").subscriptions["sub", True].cursor
    assert (cursor.parts, cursor.totals[0], cursor.is_acknowledged(*position)) == ({}, 3, True)


def test_words_of_which_nothing_is_left_stay_so_after_a_crash(rigs):
    """A word of an ack set that became 0 is in the journal like all changed words, and is 0 after a crash."""
    rig = rigs()
    [position] = publish(rig, 130)
    consumer = rig.consumer("a")
    for middle in (1, 0):
        rig.run(rig.ack_part(consumer, position, ALL_64, middle, 0b11))
    assert left(rigs.crash(rig)) == {position: ALL_64 | 0b11 << 128}
