"""Deduplication: a message that is sent again is not stored again, through kills, restarts, checkpoints, batches and
chunks.
"""
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from geminga.proto import envelope, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.cursors import producer_sequences
from geminga.storage.cursors.missing_ids import GAPS_MAX, MissingIds
from geminga.storage.errors import StorageFull
from geminga.storage.owner import replayed_ops
from geminga.storage.owner.owner_pass import TICK_MS
from geminga.storage.topics import publish_plan

from .rig import T, entry_of

DUPLICATE = (producer_sequences.NOWHERE, producer_sequences.NOWHERE)
HOUR_MS = 3_600_000


@pytest.fixture
def rig(rigs):
    return rigs(deduplication=True)


@dataclass(frozen=True)
class Message:
    """A message that a client sends under one sequence id, or one chunk of it if `chunks` is set."""

    sequence_id: int
    payload: bytes = b"x"
    highest: int = 0
    chunk: int = 0
    chunks: int = 0
    more: dict = field(default_factory=dict, hash=False)      # of the metadata


def section(*sent):
    """Return a section of SENDs, each given as (producer, Message)."""
    rows, entries, offset = [], [], 0
    for producer, message in sent:
        metadata = {"producer_name": producer.name} | message.more
        if message.chunks:
            metadata |= {"chunk_id": message.chunk, "num_chunks_from_msg": message.chunks}
        entry = entry_of(message.payload, sequence_id=message.sequence_id % 2**64, **metadata)
        said = api.CommandSend(producer_id=producer.object_id, sequence_id=message.sequence_id % 2**64,
                               highest_sequence_id=message.highest % 2**64, is_chunk=bool(message.chunks))
        row = np.array([sends.read_one(said, entry)], sends.SEND_ROW)
        row["producer"], row["connection"], row["offset"] = producer.number, producer.connection, offset
        rows.append(row)
        entries.append(entry)
        offset += len(entry)
    return envelope.SENDS, np.concatenate(rows), b"".join(entries)


def send(rig, producer, *messages):
    """Send messages; return for each whether the receipt says that it is a duplicate."""
    messages = [Message(each, b"%d" % each) if isinstance(each, int) else each for each in messages]
    answers = rig.run(section(*((producer, message) for message in messages)), worker=producer.worker)
    assert [receipt[1:4] for receipt in answers.receipts] == [
        (producer.connection, producer.object_id, message.sequence_id % 2**64) for message in messages]
    return [position == DUPLICATE for position in answers.positions]


def chunks(sequence_id, count, first=0, end=None, **more):
    return [Message(sequence_id, b"%d/%d" % (sequence_id, chunk), chunk=chunk, chunks=count, more=more)
            for chunk in range(first, count if end is None else end)]


def kept(rig, topic):
    """Return the payloads of all stored entries of the topic, as text."""
    return [payload.decode() for _, payload in rig.everything(topic)]


def last_told(rig, topic, **fields):
    """Create a producer. Return (the last sequence id in its PRODUCER_SUCCESS, the producer)."""
    answers = rig.run(rig.command("producer", topic=topic, producer_id=77, request_id=77, **fields))
    [command] = answers.commands(T.PRODUCER_SUCCESS)
    rig.run(rig.command("close_producer", producer_id=77, request_id=78))
    return command.producer_success.last_sequence_id


# -- one producer

def test_what_is_sent_again_is_answered_in_its_place_and_not_stored(rig):
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, 0, 1, 2) == [False] * 3
    assert send(rig, producer, 1, 2, 3, 3, 0, 7, 7) == [True, True, False, True, True, False, True]
    assert kept(rig, "a") == ["0", "1", "2", "3", "7"]
    assert rig.counters.read()["entries_duplicate"] == 5
    assert rig.counters.read()["entries_in"] == 5


def test_a_pass_of_nothing_new_is_answered(rig):
    for count in (1, publish_plan.FEW_MAX + 1):
        producer = rig.producer("a", producer_name=f"p{count}")
        assert send(rig, producer, *range(count)) == [False] * count
        assert send(rig, producer, *range(count)) == [True] * count


def test_names_and_topics_have_sequences_of_their_own(rig):
    one, two = rig.producer("a", producer_name="p"), rig.producer("a", producer_name="q")
    other = rig.producer("b", producer_name="p")
    for producer in (one, two, other):
        assert send(rig, producer, 5) == [False]


def test_a_producer_that_comes_back_is_told_how_far_it_came(rig):
    assert last_told(rig, "a", producer_name="p") == -1
    producer = rig.producer("a", producer_name="p")
    send(rig, producer, Message(40, b"", highest=49))
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=1))
    assert last_told(rig, "a", producer_name="p") == 49
    assert last_told(rig, "a", producer_name="q") == -1


@pytest.mark.slow
def test_one_that_waited_for_its_turn_is_told_when_that_comes(rig):
    first = rig.producer("a", producer_name="p", producer_access_mode=api.Exclusive)
    send(rig, first, 8)
    rig.run(rig.command("producer", topic="a", producer_id=70, request_id=70, producer_name="q",
                        producer_access_mode=api.WaitForExclusive))
    rig.partition("a").sequences.learn(producer_sequences.identity("q"), producer_sequences.Progress(3), rig.now_ms)
    answers = rig.run(rig.command("close_producer", producer_id=first.object_id, request_id=1))
    [command] = answers.commands(T.PRODUCER_SUCCESS)
    assert command.producer_success.last_sequence_id == 3


@pytest.mark.parametrize(
    "again, is_duplicate",
    [((10, 19), True), ((12, 17), True), ((10, 30), False), ((19, 25), False), ((20, 29), False)], ids=str)
def test_a_batch_is_a_duplicate_if_all_its_messages_are_stored(rig, again, is_duplicate):
    """A batch that was cut anew, of which some messages were stored and some were not, is stored: its receipt says so.
    """
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, Message(10, b"", highest=19, more={"num_messages_in_batch": 10})) == [False]
    assert send(rig, producer, Message(again[0], b"", highest=again[1])) == [is_duplicate]
    assert send(rig, producer, max(again[1], 19) + 1) == [False]


def test_a_message_that_stands_alone_may_say_no_highest_id_or_its_own(rig):
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, Message(5), Message(6, highest=6), Message(6), Message(7)) == [False, False, True, False]


def test_sequence_ids_have_a_sign(rig):
    """Sequence ids are signed, as in Apache Pulsar: -1 is below 0."""
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, -2, -1, -1, 0, 1) == [False, False, True, False, False]


def test_without_deduplication_everything_is_stored(rigs):
    rig = rigs()
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, 1, 1, 0) == [False] * 3
    assert last_told(rig, "a", producer_name="q") == -1
    assert not rig.partition("a").sequences


# -- late

def batch(first, count, highest=0, **more):
    """Return a batch as clients send it: Java's names its last id too."""
    return Message(first, b"%d+%d" % (first, count), highest=highest, more={"num_messages_in_batch": count} | more)


def reopened(rigs, rig, producer, how):
    """Return the rig and the producer after a kill, a clean stop or an unload, or as they are."""
    if not how:
        return rig, producer
    if how == "unload":
        rig.asked("unload", "a")
    rig = {"kill": rigs.crash, "stop": rigs.restart, "unload": lambda same: same}[how](rig)
    return rig, rig.producer("a", producer_name="p")


@pytest.mark.parametrize("how", ["", "kill", "stop", "unload"])
@pytest.mark.parametrize("highest", [0, 19])
def test_a_delayed_message_that_overtakes_its_batch_costs_nothing(rigs, rig, how, highest):
    """A producer that batches sends delayed messages at once, and the batch around them later: a receipt means stored.
    """
    producer, around = rig.producer("a", producer_name="p"), batch(0, 17, highest)
    assert send(rig, producer, 3, 10, 17) == [False] * 3
    rig, producer = reopened(rigs, rig, producer, how)
    assert send(rig, producer, 3, around, 23, batch(20, 3)) == [True] + [False] * 3
    rig, producer = reopened(rigs, rig, producer, how)
    assert send(rig, producer, 3, 10, 17, around, 23, batch(20, 3)) == [True] * 6
    assert send(rig, producer, 24) == [False]
    assert kept(rig, "a") == ["3", "10", "17", "0+17", "23", "20+3", "24"]
    assert rig.partition("a").sequences.of(producer_sequences.identity("p")).missing == MissingIds()


@pytest.mark.parametrize("count", [3, publish_plan.FEW_MAX + 1], ids=["few", "many"])
def test_each_late_message_is_stored_once(rigs, rig, count):
    producer, late = rig.producer("a", producer_name="p"), [2 * number for number in range(count)]
    assert send(rig, producer, *(each + 1 for each in late)) == [False] * count
    assert send(rig, producer, *late[::-1]) == [False] * count
    rig = rigs.crash(rig)
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, *range(2 * count), 2 * count) == [True] * 2 * count + [False]


@pytest.mark.parametrize("length", [7, 10])
def test_batches_that_name_their_first_id_only_leave_no_gaps(rigs, rig, length):
    """Clients but Java's name the first id of a batch only. A run that begins anew may cut its batches differently."""
    producer = rig.producer("a", producer_name="p")
    for first in range(0, 50, 10):
        assert send(rig, producer, batch(first, 10)) == [False]
    rig = rigs.crash(rig)
    producer = rig.producer("a", producer_name="p")
    firsts = range(0, 63, length)
    assert send(rig, producer, *(batch(first, length) for first in firsts)) == [first <= 40 for first in firsts]


def test_a_batch_with_a_key_is_supposed_to_hold_its_first_id_only(rig):
    """Batches of several keys are filled at the same time, so the ids behind a batch's first one may be another's."""
    producer = rig.producer("a", producer_name="p")
    keyed = [batch(first, count, partition_key=str(first)) for first, count in ((1, 3), (5, 1), (0, 2))]
    assert send(rig, producer, *keyed) == [False] * 3
    assert send(rig, producer, *keyed, 5, 3) == [True] * 4 + [False]


def test_a_chunked_message_may_be_late(rigs, rig):
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, 1, 4, *chunks(2, 3, end=2), 5) == [False] * 5
    rig = rigs.crash(rig)
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, *chunks(2, 3), 3, 4) == [True, True, False, False, True]
    assert send(rig, producer, *chunks(2, 3)) == [True] * 3


@pytest.mark.parametrize("step", [1, publish_plan.FEW_MAX + 1], ids=["few", "many"])
def test_of_too_many_gaps_the_lowest_are_forgotten(rigs, rig, step):
    """Ids in a forgotten gap count as stored, which is what an id below the highest one always meant."""
    producer, ids = rig.producer("a", producer_name="p"), [*range(1, 2 * GAPS_MAX + 4, 2)]
    for at in range(0, len(ids), step) if step > 1 else [0]:
        send(rig, producer, *ids[at:at + (step if step > 1 else len(ids))])
    rig = rigs.crash(rig)
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, 0, ids[-1] - 1, ids[-1]) == [True, False, True]
    assert len(rig.partition("a").sequences.of(producer_sequences.identity("p")).missing) <= GAPS_MAX


def test_a_partition_bounds_the_gaps_of_all_its_producers(monkeypatch):
    """Producers that were inactive longest lose their gaps first."""
    monkeypatch.setattr(producer_sequences, "PARTITION_GAPS_MAX", 100)
    found = producer_sequences.Sequences()
    for number in range(300):
        progress = producer_sequences.Progress(9, missing=MissingIds([(1, 2), (4, 5)]))
        found.learn(producer_sequences.identity(str(number)), progress, number)
        assert len(found.missed_rows()) == found._gaps <= 100
    assert found.of(producer_sequences.identity("299")).missing and not found.of(
        producer_sequences.identity("0")).missing


IDS = st.integers(0, 40)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=200)
@given(steps=st.lists(st.tuples(st.booleans(), IDS, IDS)), first=IDS, count=st.integers(1, 40))
def test_missing_ids_are_a_set(steps, first, count):
    """Gaps hold the ids that were put in and not taken out, and tell what has changed since."""
    found, before, expected = MissingIds(), MissingIds(), set()
    for number, (adds, low, high) in enumerate(steps):
        low, high = min(low, high), max(low, high)
        assert found.touches(low, high) == bool(expected & {*range(low, high + 1)})
        found = found.with_missing(low, high) if adds else found.without(low, high)
        expected = expected | {*range(low, high + 1)} if adds else expected - {*range(low, high + 1)}
        before = found if number == len(steps) // 2 else before
    assert {each for low, high in found for each in range(low, high + 1)} == expected
    ahead = sorted(each for each in expected if each >= first)
    assert found.nth(first, count)[1] == max(0, count - len(ahead))
    assert not ahead or found.nth(first, count)[0] == ahead[min(count, len(ahead)) - 1]
    told = dict(before)
    for low, high in found.changes(before):
        told.pop(low, None)
        told |= {low: high} if high >= low else {}
    assert sorted(told.items()) == [*found]


# -- through kills

@pytest.mark.slow
@pytest.mark.parametrize("segment", [1 << 20, 64 << 10])
def test_after_a_kill_nothing_is_stored_twice(rigs, segment):
    """After a kill no message is stored twice, also if checkpoints have retired the journal's first segments."""
    rig = rigs(deduplication=True, journal_segment_bytes=segment)
    for name in ("p", "q"):
        producer = rig.producer("a", producer_name=name)
        assert not any(sum((send(rig, producer, *(Message(number, bytes(3_000)) for number in range(first, first + 10)))
                            for first in range(0, 300, 10)), []))
    again = rigs.crash(rig)
    assert [last_told(again, "a", producer_name=name) for name in "pqr"] == [299, 299, -1]
    for name in ("p", "q"):
        producer = again.producer("a", producer_name=name)
        assert send(again, producer, 298, 299, 300) == [True, True, False]
    assert len(kept(again, "a")) == 602


CROWDED = {"deduplication": True, "journal_segment_bytes": 64 << 10, "journal_segments_max": 2}


def fill_segment(rig):
    """Publish until the next record begins a segment and causes a checkpoint."""
    rig.journal._at = rig.journal._segment_bytes


def test_what_was_not_stored_when_it_was_killed_is_stored_when_it_comes_again(rigs, monkeypatch):
    """A message whose entry was lost in a kill is stored when it is sent again, because its sequence id was lost
    too.
    """
    rig = rigs(**CROWDED)
    producer = rig.producer("a", producer_name="p")
    send(rig, producer, 1)

    def killed(*_):
        raise KeyboardInterrupt
    monkeypatch.setattr(rig.journal, "_write", killed)
    fill_segment(rig)
    with pytest.raises(KeyboardInterrupt):
        send(rig, producer, 2, 3)
    again = rigs.crash(rig)
    assert send(again, again.producer("a", producer_name="p"), 1, 2, 3) == [True, False, False]
    assert kept(again, "a") == ["1", "2", "3"]


def test_a_clean_stop_and_an_unload_forget_nothing(rigs, rig):
    sent = Message(1), *chunks(2, 3, end=2)
    send(rig, rig.producer("a", producer_name="p"), *sent)
    again = rigs.restart(rig)
    again.producer("a", producer_name="q")
    again.run(after_ms=TICK_MS)
    assert send(again, again.producer("a", producer_name="p"), *sent) == [True] * 3
    again.asked("unload", "a")
    assert send(again, again.producer("a", producer_name="p"), *sent, chunks(2, 3)[2]) == [True] * 3 + [False]


# -- refused

def test_what_is_refused_may_come_again_and_nothing_behind_it_is_stored_before(rig, monkeypatch):
    """A refused SEND closes its producer, so that SENDs already on their way do not overtake it."""
    producer, other = rig.producer("a", producer_name="p"), rig.producer("b", producer_name="p")
    send(rig, producer, 1)
    publishing = rig.owner.publishing
    make_room = publishing._make_room

    def full(demand):
        if demand.partition is rig.partition("a"):
            raise StorageFull("full")
        make_room(demand)
    monkeypatch.setattr(publishing, "_make_room", full)
    answers = rig.run(section(
        (producer, Message(1)), (producer, Message(2)), (other, Message(2)), (producer, Message(3))))
    assert [(receipt[2:4], receipt[4] == DUPLICATE) for receipt in answers.receipts] == [
        ((producer.object_id, 1), True), ((other.object_id, 2), False)]
    refused = [command.send_error.sequence_id for command in answers.commands(T.SEND_ERROR)]
    assert (refused, len(answers.commands(T.CLOSE_PRODUCER))) == ([2, 3], 1)
    monkeypatch.undo()
    assert rig.run(section((producer, Message(4, b"4")))).receipts == []      # it was already on its way
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, 2, 3, 4) == [False] * 3
    assert kept(rig, "a") == ["1", "2", "3", "4"]


# -- switched on and off

def test_it_is_switched_on_and_off_at_any_time(rigs, rig):
    """Sequence ids are forgotten once a message is stored without deduplication, and kept if none was."""
    producer = rig.producer("a", producer_name="p")
    partition = rig.partition("a")
    send(rig, producer, 10)
    partition.deduplicates = False
    assert last_told(rig, "a", producer_name="q") == -1
    partition.deduplicates = True
    assert send(rig, producer, 10) == [True]
    partition.deduplicates = False
    assert send(rig, producer, 0, 10, 11, 0) == [False] * 4
    partition.deduplicates = True
    again = rigs.crash(rig)
    assert send(again, again.producer("a", producer_name="p"), 1, 1, 2) == [False, True, False]
    assert send(rig, producer, 1, 1, 2) == [False, True, False]


def test_what_was_known_stays_forgotten_when_the_journal_has_forgotten_that(rigs):
    rig = rigs(**CROWDED)
    producer, other = rig.producer("a", producer_name="p"), rig.producer("b", producer_name="p")
    send(rig, producer, 10)
    rig.partition("a").deduplicates = False
    fill_segment(rig)
    send(rig, producer, 0)
    rig.partition("a").deduplicates = True
    for number in range(100):
        send(rig, other, Message(number, bytes(10_000)))
    again = rigs.crash(rig)
    assert last_told(again, "a", producer_name="p") == -1
    assert last_told(again, "b", producer_name="p") == 99


# -- chunks

@pytest.mark.slow
@pytest.mark.parametrize("stored", range(4))
@pytest.mark.parametrize("resent", range(4))
def test_chunks_are_stored_once_wherever_a_kill_cuts_their_message(rigs, rig, stored, resent):
    """A client that resends a chunked message after a kill has each chunk stored once, wherever the kill cut it."""
    resent = min(resent, stored)
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, 1, *chunks(2, 3, end=stored)) == [False] * (1 + stored)
    again = rigs.crash(rig)
    assert last_told(again, "a", producer_name="p") == (2 if stored == 3 else 1)
    producer = again.producer("a", producer_name="p")
    behind = [*chunks(2, 3, first=resent), Message(3, b"3")]
    assert send(again, producer, *behind) == [True] * (stored - resent) + [False] * (3 - stored + 1)
    assert kept(again, "a") == ["1", "2/0", "2/1", "2/2", "3"]


def test_a_message_begun_anew_is_stored_from_its_first_chunk_on(rigs, rig):
    """Chunks of a producer that lost its state are stored from the first on: mixed with old ones they would be no
    message.
    """
    producer = rig.producer("a", producer_name="p")
    send(rig, producer, 1, *chunks(2, 3, end=2))
    again = rigs.crash(rig)
    producer = again.producer("a", producer_name="p")
    anew = chunks(2, 4, publish_time=2)
    assert send(again, producer, *anew[:2]) == [False, False]
    again = rigs.crash(again)
    producer = again.producer("a", producer_name="p")
    assert send(again, producer, *anew) == [True, True, False, False]
    assert send(again, producer, *anew) == [True] * 4
    assert kept(again, "a") == ["1", "2/0", "2/1", "2/0", "2/1", "2/2", "2/3"]


def test_chunks_of_two_threads_of_one_producer_may_take_turns(rigs, rig):
    """Interleaved chunked messages of one producer, with others in between, are stored once, and resent ones are
    duplicates.
    """
    five, six = chunks(5, 2), chunks(6, 3)
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, *range(5)) == [False] * 5
    first = [five[0], six[0], Message(7, b"7"), six[1]]
    assert send(rig, producer, *first) == [False] * 4
    again = rigs.crash(rig)
    producer = again.producer("a", producer_name="p")
    assert send(again, producer, *first, six[2], five[1]) == [True] * 4 + [False] * 2
    assert send(again, producer, *five, *six, 7, 8) == [True] * 6 + [False]
    assert kept(again, "a")[5:] == ["5/0", "6/0", "7", "6/1", "6/2", "5/1", "8"]


@pytest.mark.parametrize("count", [1, publish_plan.FEW_MAX + 1])
def test_a_message_that_comes_whole_has_no_more_chunks(rig, count):
    """When a restarted producer sends a message whole of which chunks were stored, those chunks are forgotten."""
    producer = rig.producer("a", producer_name="p")
    send(rig, producer, *chunks(5, 3, end=1))
    assert send(rig, producer, *range(5, 5 + count)) == [False] * count
    assert send(rig, producer, *chunks(5, 3)) == [True] * 3


def test_messages_that_are_never_finished_do_not_pile_up(rig):
    producer = rig.producer("a", producer_name="p")
    send(rig, producer, *(message for number in range(200) for message in chunks(number, 2, end=1)))
    assert len(rig.partition("a").sequences.of(producer_sequences.identity("p")).under_way) == 64
    assert send(rig, producer, chunks(199, 2)[0]) == [True]


def test_a_message_of_one_chunk_is_a_message(rig):
    producer = rig.producer("a", producer_name="p")
    assert send(rig, producer, *chunks(1, 1), *chunks(1, 1), 2) == [False, True, False]


# -- forgetting

def test_producers_that_stay_away_are_forgotten_and_connected_ones_are_not(rigs):
    rig = rigs(deduplication=True, deduplication_inactivity_s=3600)
    away, idle = (rig.producer("a", producer_name=name) for name in ("away", "idle"))
    send(rig, away, 5)
    send(rig, idle, 5)
    rig.run(after_ms=HOUR_MS - TICK_MS)
    rig.run(rig.command("close_producer", producer_id=away.object_id, request_id=1))
    rig.run(after_ms=HOUR_MS - TICK_MS)
    assert last_told(rig, "a", producer_name="away") == 5      # its absence begins again now
    rig.run(after_ms=HOUR_MS - TICK_MS)
    assert len(rig.partition("a").sequences) == 2
    rig.run(after_ms=2 * TICK_MS)
    assert last_told(rig, "a", producer_name="away") == -1
    assert send(rig, idle, 5) == [True]
    assert rig.counters.read()["deduplication_names_evicted"] == 0
    assert last_told(rigs.restart(rig), "a", producer_name="away") == -1


def test_the_time_of_a_producer_that_is_thrown_out_begins_then(rigs):
    rig = rigs(deduplication=True, deduplication_inactivity_s=3600)
    send(rig, rig.producer("a", producer_name="p"), 5)
    rig.run(after_ms=HOUR_MS - TICK_MS)
    rig.producer("a", producer_name="q", producer_access_mode=api.ExclusiveWithFencing)
    rig.run(after_ms=HOUR_MS - TICK_MS)
    assert rig.partition("a").sequences.of(producer_sequences.identity("p")).last == 5
    rig.run(after_ms=TICK_MS)
    assert rig.partition("a").sequences.of(producer_sequences.identity("p")).last == producer_sequences.NONE


def test_of_too_many_producers_the_longest_inactive_are_forgotten_and_counted(rigs):
    rig = rigs(deduplication=True, deduplication_names_max=3)
    first = rig.producer("a", producer_name="first")
    send(rig, first, 5)                                          # stays connected
    for number in range(5):
        producer = rig.producer("a", producer_name=f"p{number}")
        send(rig, producer, 5)
        rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=1))
    rig.run(after_ms=TICK_MS)
    assert [last_told(rig, "a", producer_name=f"p{number}") for number in range(5)] == [-1, -1, -1, 5, 5]
    assert send(rig, first, 5) == [True]
    assert rig.counters.read()["deduplication_names_evicted"] == 3


def test_who_publishes_again_is_the_least_inactive():
    """A producer that publishes again is evicted last, however early it came."""
    found = producer_sequences.Sequences()
    for now_ms, name in enumerate(["first", "second", "first"]):
        found.learn(producer_sequences.identity(name), producer_sequences.Progress(now_ms), now_ms)
    assert found.forget(3, 1_000, 1, connected=()) == 1
    assert found.of(producer_sequences.identity("first")).last == 2
    assert found.of(producer_sequences.identity("second")).last == producer_sequences.NONE


# -- at rest

SEQUENCES = st.dictionaries(
    st.text(max_size=5),
    st.tuples(
        st.sampled_from([producer_sequences.NONE, -1, 0, 100, 2**63 - 1]),
        st.dictionaries(
            st.integers(-2, 9), st.tuples(st.integers(1, 2**24 - 1), st.integers(0, 2**32 - 1)), max_size=3
        ),
        st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=4, unique_by=lambda gap: gap[0]),
        st.integers(0, 2),
    ),
    max_size=5,
)


def known(found):
    return {producer: said(progress) for producer, progress in found.by_producer.items()}


def said(progress):
    return progress.last, progress.under_way, [*progress.missing], progress.supposed


def progress_of(last, under_way, gaps, supposed):
    """Return progress with gaps at 10 * first, of a length each, and so many ids that are supposed to be stored."""
    missing = MissingIds((10 * first, 10 * first + length - 1) for first, length in sorted(gaps))
    made = producer_sequences.Progress(last, under_way, missing if last >= 100 else MissingIds())
    if -1 <= last < 2**63 - 1:
        made.suppose(last + supposed)
    return made


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=100)
@given(before=SEQUENCES, after=SEQUENCES)
def test_rows_and_ops_say_all_of_it(before, after):
    """Rows of the state file hold all sequence ids, gaps and chunks. Journal ops lead from an earlier state to a later
    one, however often they are applied.
    """
    made = []
    for asked in (before, after):
        found = producer_sequences.Sequences()
        for name, about in asked.items():
            found.learn(producer_sequences.identity(name), progress_of(*about), 0)
        made.append(found)
    read = producer_sequences.Sequences()
    read.load(made[0].rows())
    read.load_missed(made[0].missed_rows())
    assert list(known(read).items()) == list(known(made[0]).items())
    ops = b"".join([made[0].ops(1, producer, progress) for producer, progress in made[1].by_producer.items()])
    apply = {format.PRODUCED: read.apply_produced, format.CHUNKED: read.apply_chunked, format.MISSED: read.apply_missed}
    for _ in range(2):
        for run in replayed_ops.in_runs(np.frombuffer(ops, format.OP_ROW)):
            apply[run.kind](run.rows)
        assert {name: said(read.of(producer_sequences.identity(name))) for name in after} == {
            name: said(progress_of(*about)) for name, about in after.items()}


# -- many producers

class Model:
    """The rules of deduplication in their simplest form, for producers of all topics."""

    def __init__(self):
        self.ids, self.begun, self.stored = {}, {}, {}

    def sent(self, topic, name, message):
        """Whether the model takes the message for a duplicate."""
        ids, begun = self.ids.setdefault((topic, name), set()), self.begun.setdefault((topic, name), {})
        its = {*range(message.sequence_id, max(message.sequence_id, message.highest) + 1)}
        entries = begun.get(message.sequence_id)
        if message.chunks and entries:
            duplicate = message.chunk < len(entries) and (message.chunk > 0 or message.payload == entries[0])
        else:
            duplicate = its <= ids
        if duplicate:
            return True
        self.stored.setdefault(topic, []).append(message.payload.decode())
        if message.chunks and message.chunk < message.chunks - 1:
            begun[message.sequence_id] = [message.payload if message.chunk == 0 else (entries or [None])[0],
                                          *[None] * message.chunk]
        else:
            begun.pop(message.sequence_id, None)
            ids |= its
        return False


MESSAGES = st.one_of(
    st.builds(Message, st.integers(0, 12), st.sampled_from([b"x", b"y"])),
    st.builds(
        lambda first, more: Message(first, b"batch", highest=first + more), st.integers(0, 12), st.integers(0, 4)
    ),
    st.builds(
        lambda number, payload, chunk: Message(number, payload, chunk=chunk, chunks=3),
        st.integers(0, 12),
        st.sampled_from([b"c", b"d"]),
        st.integers(0, 2),
    ),
)
RISING = st.tuples(st.integers(0, 12),
                   st.integers(0, 60)).map(lambda which: [Message(which[0] + n) for n in range(which[1])])
PASS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]), st.sampled_from(["p", "q"]), st.one_of(MESSAGES.map(lambda m: [m]), RISING)
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(sent=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=20))
@example(sent=[(0, 5), (1, 3), (2, 9), (0, 4)])
def test_the_ids_of_several_partitions_together_are_those_that_any_has_stored(sent):
    parts, stored = [producer_sequences.Progress() for _ in range(3)], set()
    for part, number in sent:
        parts[part].take(number, number, number, 0, 0)
        stored.add(number)
    whole = producer_sequences.united(parts)
    for number in range(14):
        assert whole.copy().take(number, number, number, 0, 0) == (number not in stored)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(passes=st.lists(st.tuples(PASS, st.booleans()), min_size=1, max_size=5))
@example(passes=[([("a", "p", [Message(7), Message(2, highest=4)]), ("a", "p", [Message(3), Message(5), Message(1)])],
                  True), ([("a", "p", [Message(number) for number in range(9)])], False)])
@example(passes=[([("a", "p", [Message(1, highest=3)]), ("a", "p", [Message(2)]), ("a", "q", [Message(2)])], True)])
def test_many_producers_in_one_pass_are_told_apart(rigs, passes):
    """Duplicates are recognized for each producer, in passes with two topics that deduplicate and one that does not,
    and after kills.
    """
    rig, model = rigs(deduplication=True, journal_segment_bytes=64 << 10), Model()
    producers = {}
    for asked, is_killed in passes:
        if is_killed:
            rig, producers = rigs.crash(rig), {}
        for topic, name, _ in asked:
            if (topic, name) not in producers:
                producers[topic, name] = rig.producer(topic, producer_name=name)
                rig.partition(topic).deduplicates = topic != "c"
        sent = [(topic, name, message) for topic, name, messages in asked for message in messages]
        if not sent:
            continue
        answers = rig.run(section(*((producers[topic, name], message) for topic, name, message in sent)))
        expected: dict = {}
        for topic, name, message in sent:
            if topic == "c":
                model.stored.setdefault(topic, []).append(message.payload.decode())
            is_duplicate = topic != "c" and model.sent(topic, name, message)
            expected.setdefault(producers[topic, name].object_id, []).append(is_duplicate)
        found: dict = {}
        for _, _, producer_id, _, position in answers.receipts:
            found.setdefault(producer_id, []).append(position == DUPLICATE)
        assert found == expected
    assert model.stored or not any(messages for asked, _ in passes for _, _, messages in asked)
    for topic, stored in model.stored.items():
        assert kept(rig, topic) == stored
    rigs.close()
