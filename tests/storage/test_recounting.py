"""A client that counts its messages anew on each segment, behind splits and merges of a topic that deduplicates."""
import os

import pytest

from geminga.proto import layout_changes
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.contents import contents_of
from geminga.storage.admin.layout_change_steps import steps_of
from geminga.storage.admin.segment_questions import TakeSequences
from geminga.storage.cursors.producer_sequences import identity
from geminga.storage.scalable import recounting

from .rig import Rig, entry_of
from .test_deduplication import Message, kept, send
from .test_layout_change_steps import TOPIC, ask, begin, carry_out, enable_deduplication, layout_of, segments, stores

COUNT = 10


@pytest.fixture
def rig(rigs):
    """A topic of two segments that deduplicates."""
    made = rigs()
    made.owner.catalogue.scalable_topics.create(TOPIC, 2)
    enable_deduplication(made)
    return made


def attached(rig, number, **more):
    return rig.producer(segments(rig)[number], producer_name=f"p-seg-{number}", **more)


def other(*numbers):
    """Messages with these sequence ids, and with another content than those of `stores`."""
    return [Message(number, b"other %d" % number) for number in numbers]


def counts(rig, producer, *numbers):
    """Send other messages with these ids, and return whether each was stored."""
    return [not is_duplicate for is_duplicate in send(rig, producer, *other(*numbers))]


def split(rig, kind="split"):
    begin(rig, kind)
    assert carry_out(rig)


@pytest.mark.parametrize(("kind", "children"), [("split", [2, 3]), ("merge", [2]), ("rebucket", [2])])
def test_messages_that_are_counted_anew_are_stored(rig, kind, children):
    """What a child has stored of them counts from then on, for all connections."""
    for number in (0, 1):
        assert all(counts(rig, attached(rig, number), *range(COUNT)))
    split(rig, kind)
    for number in children:
        producer = attached(rig, number)
        assert stores(rig, producer, *range(COUNT // 2)) == [True] * (COUNT // 2)
        assert stores(rig, producer, *range(COUNT)) == [False] * (COUNT // 2) + [True] * (COUNT // 2)
        assert kept(rig, segments(rig)[number]) == [str(number) for number in range(COUNT)]


@pytest.mark.parametrize("more", [{}, {"connection": 77}])
def test_messages_that_the_program_sends_again_are_stored_once(rig, more):
    """The same content tells them from messages that are counted anew."""
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    assert not any(stores(rig, attached(rig, 2, **more), *range(COUNT)))
    assert not any(stores(rig, attached(rig, 3, **more), *range(5, COUNT)))


@pytest.mark.parametrize("more", [{}, {"connection": 77}, {"worker": 7}])
@pytest.mark.parametrize("since", [0, 3])
def test_messages_are_counted_anew_behind_a_reconnection(rig, since, more):
    """The connection that has the producer when the segment is sealed has sent higher numbers only, or nothing."""
    former = attached(rig, 0, connection=5)
    assert all(stores(rig, former, *range(7, 20)))
    rig.run(rig.command("close_producer", connection=5, producer_id=former.object_id, request_id=5))
    if since:
        assert all(stores(rig, attached(rig, 0), *range(20, 20 + since)))
    split(rig)
    assert all(counts(rig, attached(rig, 2, **more), *range(7, 25)))


def test_a_process_that_begins_in_the_middle_counts_anew(rig):
    """Its application knows how far the former process came, and says so."""
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    assert all(counts(rig, attached(rig, 2, connection=77), *range(5, 5 + COUNT)))


def test_messages_are_counted_anew_behind_a_kill(rig, tmp_path):
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    again = Rig.crashed(rig, tmp_path / "killed")
    assert not any(stores(again, attached(again, 2), *range(COUNT)))
    assert all(counts(again, attached(again, 3), *range(COUNT)))


def test_messages_are_counted_anew_behind_two_splits(rig):
    """The producer had sent nothing to the first child when that was sealed."""
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    split_again(rig)
    assert all(counts(rig, attached(rig, 4), *range(COUNT)))
    assert not any(stores(rig, attached(rig, 5), *range(COUNT)))


def split_again(rig):
    assert rig.owner.catalogue.scalable_topics.begin_change(
        TOPIC, layout_changes.split(TOPIC, layout_of(rig), 2, 5))
    rig.owner.catalogue.commit()
    assert carry_out(rig)


def test_some_of_the_messages_are_sent_again_before_others_are_counted(rig):
    """A process goes on from an older place of its application, so its first messages are those of the one before."""
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    producer = attached(rig, 2)
    assert not any(stores(rig, producer, 4, 5))
    assert all(counts(rig, producer, *range(6, 2 * COUNT)))


def test_what_goes_on_behind_the_inherited_numbers_keeps_them(rig):
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    producer = attached(rig, 2)
    assert stores(rig, producer, COUNT) == [True]
    assert not any(counts(rig, producer, *range(COUNT + 1)))


def test_late_messages_keep_the_inherited_numbers(rig):
    """Numbers that the parent lacks are those of other segments, or are still to come."""
    assert all(stores(rig, attached(rig, 0), 0, 1, 5, 6))
    split(rig)
    producer = attached(rig, 2)
    assert all(counts(rig, producer, 2, 3))
    assert not any(counts(rig, producer, 2, 3))
    assert not any(stores(rig, producer, 0, 1, 5, 6))
    assert stores(rig, producer, 4, 7) == [True, True]
    assert not any(counts(rig, producer, 2, 3, 4))


def test_contents_that_come_again_and_again_tell_nothing(rig):
    """Such as signs of life; nothing may be lost, so they are stored, though a program may have sent them again."""
    alike = [Message(number, b"alive") for number in range(COUNT)]
    assert not any(send(rig, attached(rig, 0), *alike))
    split(rig)
    producer = attached(rig, 2)
    assert not any(send(rig, producer, *alike))
    assert all(send(rig, producer, *alike))


def test_the_first_and_the_last_messages_are_known_after_a_split(rig, monkeypatch):
    """All others count as counted anew."""
    monkeypatch.setattr(recounting, "FIRST", 2)
    monkeypatch.setattr(recounting, "LAST", 3)
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    producer = attached(rig, 2)
    assert not any(stores(rig, producer, 0, 1, 7, 8, 9))
    assert stores(rig, producer, 4) == [True]


def test_large_messages_are_not_read(rig, monkeypatch):
    monkeypatch.setattr(recounting, "_BYTES_MAX", 0)
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    assert all(stores(rig, attached(rig, 2), *range(COUNT)))


def test_a_segment_hands_on_a_bounded_number_of_messages(rig, monkeypatch):
    """Its own ones, and of those that it has inherited the last ones."""
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    producer = attached(rig, 2)
    assert all(stores(rig, producer, *range(COUNT, COUNT + 4)))
    monkeypatch.setattr(recounting, "_KEPT_MAX", 6)
    split_again(rig)
    producer = attached(rig, 4)
    assert not any(stores(rig, producer, *range(COUNT - 2, COUNT + 4)))
    assert stores(rig, producer, COUNT - 3) == [True]


def test_messages_that_are_lost_are_passed_over(rig):
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    [ledger] = rig.partition(segments(rig)[0]).ledgers
    row = ledger.index[4]
    os.pwrite(ledger.descriptor, b"\xff" * int(row["size"]), int(row["offset"]))
    split(rig)
    producer = attached(rig, 2)
    assert not any(stores(rig, producer, 3, 5))
    assert stores(rig, producer, 4) == [True]


def test_a_segment_without_its_file_is_sealed(rig):
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    [ledger] = rig.partition(segments(rig)[0]).ledgers
    ledger.ledger_path.rename(ledger.ledger_path.with_suffix(".away"))
    split(rig)
    ledger.ledger_path.with_suffix(".away").rename(ledger.ledger_path)
    assert all(stores(rig, attached(rig, 2), *range(COUNT)))


def test_nothing_is_left_of_what_a_deleted_segment_inherited(rig):
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    inherited = "SELECT count(*) FROM inherited"
    assert rig.owner.catalogue.value(inherited) == 2
    rig.asked("delete", segments(rig)[3], force=True, gone=True)
    assert rig.owner.catalogue.value(inherited) == 1


def test_own_numbers_hold_behind_a_kill(rig, tmp_path):
    """Also those of late messages: nothing is left of gaps between the numbers that were inherited."""
    assert all(stores(rig, attached(rig, 0), 0, 5, 9))
    split(rig)
    assert all(counts(rig, attached(rig, 2), 0, 1, 2))
    again = Rig.crashed(rig, tmp_path / "killed")
    producer = attached(again, 2, connection=5)
    assert not any(counts(again, producer, 0, 1, 2))
    assert all(counts(again, producer, *range(3, COUNT)))


@pytest.mark.parametrize("others", [False, True])
def test_messages_are_counted_anew_behind_a_kill_between_the_catalogue_and_the_journal(rig, tmp_path, others):
    """The catalogue says that the producer counts anew, and the journal lacks its first message.

    others: whether another producer publishes a message before.
    """
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    partition = rig.partition(segments(rig)[2])
    rig.owner.catalogue.inherited_contents.forget(
        partition.partition_id, identity("p-seg-"), partition.next_message)
    rig.owner.catalogue.commit()
    again = Rig.crashed(rig, tmp_path / "killed")
    if others:
        again.publish(again.producer(segments(again)[2], producer_name="other-seg-2"), b"other")
    producer = attached(again, 2)
    assert all(counts(again, producer, *range(COUNT)))
    assert not any(counts(again, producer, *range(COUNT)))


def test_as_many_own_messages_as_inherited_ones_hold_behind_a_kill(rig, tmp_path):
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    assert all(counts(rig, attached(rig, 2), *range(COUNT)))
    again = Rig.crashed(rig, tmp_path / "killed")
    assert not any(counts(again, attached(again, 2), *range(COUNT)))


@pytest.mark.parametrize("kills", [False, True])
def test_a_change_that_is_carried_out_again_never_raises_own_numbers(rig, tmp_path, kills):
    """It was cut short behind one child, whose producer has counted anew meanwhile."""
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    begin(rig, "split")
    steps = steps_of(rig.owner.catalogue, TOPIC)
    question = next(steps)
    while not isinstance(question, TakeSequences):
        question = steps.send(ask(rig, question))
    ask(rig, question)
    producer = attached(rig, 2)
    assert all(counts(rig, producer, 0, 1, 2))
    if kills:
        rig = Rig.crashed(rig, tmp_path / "killed")
        producer = None
    assert carry_out(rig)
    assert all(counts(rig, producer or attached(rig, 2), *range(3, COUNT)))


def batch(*messages, number=0, own=False, **more):
    payload = b""
    for place, (key, text) in enumerate(messages):
        single = api.SingleMessageMetadata(partition_key=key, payload_size=len(text))
        if own:
            single.sequence_id = 2 * place
        single = single.SerializeToString()
        payload += len(single).to_bytes(4, "big") + single + text
    return contents_of(entry_of(payload, batch=len(messages), sequence_id=number, **more))


def test_a_message_has_the_same_content_however_the_batch_is_cut():
    first, second = ("k", b"first"), ("k", b"second")
    single = contents_of(entry_of(b"first", partition_key="k", publish_time=7, sequence_id=9, producer_name="p"))
    assert (single.producer, [number for number, _ in single.messages]) == ("p", [9])
    [(_, one)], [(_, two)] = batch(first).messages, batch(second).messages
    assert single.messages == [(9, one)] == batch(first, number=9).messages
    assert batch(first, second, number=9).messages == [(9, one), (10, two)]
    assert batch(first, second, own=True).messages == [(0, one), (2, two)]
    assert len({one, two, batch(("l", b"first")).messages[0][1]}) == 3


@pytest.mark.parametrize("payload", [b"", b"\0\0\0\x09abc", b"\0\0\0\x01\xff", b"\xff\xff\xff\xffabcd"])
def test_a_damaged_batch_counts_as_one_message(payload):
    assert len(contents_of(entry_of(payload, batch=3)).messages) == 1
    assert len(contents_of(entry_of(payload, compression=api.LZ4)).messages) == 1


def test_messages_of_another_cluster_are_of_no_producer_here():
    assert contents_of(entry_of(b"m", producer_name="p", replicated_from="west")).producer == ""
