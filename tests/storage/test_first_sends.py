"""A client that counts its messages anew on each segment, behind splits and merges of a topic that deduplicates."""
import pytest

from geminga.proto import layout_changes
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.contents import digest_of
from geminga.storage.admin.layout_change_steps import steps_of
from geminga.storage.admin.segment_questions import TakeSequences

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


def test_messages_that_the_program_sends_again_on_its_connection_are_stored_once(rig):
    """From the first one on; the same content tells them from messages that are counted anew."""
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    assert not any(stores(rig, attached(rig, 2), *range(COUNT)))
    assert not any(counts(rig, attached(rig, 3), *range(5, COUNT)))


@pytest.mark.parametrize("since", [0, 3])
def test_messages_are_counted_anew_from_the_lowest_number_behind_a_reconnection(rig, since):
    """The connection that has the producer when the segment is sealed has sent higher numbers only, or nothing."""
    former = attached(rig, 0, connection=5)
    assert all(stores(rig, former, *range(7, 20)))
    rig.run(rig.command("close_producer", connection=5, producer_id=former.object_id, request_id=5))
    producer = attached(rig, 0)
    if since:
        assert all(stores(rig, producer, *range(20, 20 + since)))
    split(rig)
    assert not any(counts(rig, attached(rig, 2), *range(8, 20)))
    assert all(counts(rig, attached(rig, 3), *range(7, 25)))


def test_messages_are_counted_anew_behind_two_splits(rig):
    """The producer had sent nothing to the first child when that was sealed."""
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    assert rig.owner.catalogue.scalable_topics.begin_change(
        TOPIC, layout_changes.split(TOPIC, layout_of(rig), 2, 5))
    rig.owner.catalogue.commit()
    assert carry_out(rig)
    assert all(counts(rig, attached(rig, 4), *range(COUNT)))
    assert not any(stores(rig, attached(rig, 5), *range(COUNT)))


def test_who_sends_first_decides(rig):
    """What another connection has stored is not forgotten."""
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    producer = attached(rig, 2, connection=5)
    assert stores(rig, producer, COUNT) == [True]
    rig.run(rig.command("close_producer", connection=5, producer_id=producer.object_id, request_id=5))
    assert not any(counts(rig, attached(rig, 2), *range(COUNT + 1)))


@pytest.mark.parametrize("more", [{"connection": 77}, {"worker": 7}])
def test_other_connections_are_not_believed(rig, more):
    """A process that makes its messages anew, with other contents, may have begun where the former one did."""
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    assert not any(counts(rig, attached(rig, 2, **more), *range(COUNT)))


def test_only_a_first_send_says_that_it_is_counted_anew(rig):
    assert all(stores(rig, attached(rig, 0), *range(COUNT)))
    split(rig)
    producer = attached(rig, 2)
    assert stores(rig, producer, COUNT) == [True]
    assert not any(counts(rig, producer, *range(COUNT)))


def test_a_producer_that_was_closed_before_the_seal_is_not_believed(rig):
    producer = attached(rig, 0)
    assert all(stores(rig, producer, *range(COUNT)))
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=5))
    split(rig)
    assert not any(counts(rig, attached(rig, 2), *range(COUNT)))


def test_own_numbers_hold_behind_a_kill(rig, tmp_path):
    """Also those of late messages: nothing is left of gaps between the numbers that were inherited."""
    assert all(stores(rig, attached(rig, 0), 0, 5, 9))
    split(rig)
    assert all(counts(rig, attached(rig, 2), 0, 1, 2))
    again = Rig.crashed(rig, tmp_path / "killed")
    producer = attached(again, 2, connection=5)
    assert not any(counts(again, producer, 0, 1, 2))
    assert all(counts(again, producer, *range(3, COUNT)))


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


def test_a_digest_is_that_of_the_first_message_however_the_batch_is_cut():
    def batch(*messages):
        payload = b""
        for key, text in messages:
            own = api.SingleMessageMetadata(partition_key=key, payload_size=len(text)).SerializeToString()
            payload += len(own).to_bytes(4, "big") + own + text
        return digest_of(entry_of(payload, batch=len(messages)))

    single = digest_of(entry_of(b"first", partition_key="k", publish_time=7, sequence_id=9))
    assert batch(("k", b"first")) == batch(("k", b"first"), ("k", b"second")) == single
    assert len({single, batch(("l", b"first")), batch(("k", b"second"), ("k", b"first"))}) == 3


@pytest.mark.parametrize("payload", [b"", b"\0\0\0\x09abc", b"\0\0\0\x01\xff", b"\xff\xff\xff\xffabcd"])
def test_a_damaged_batch_has_a_digest_too(payload):
    assert len(digest_of(entry_of(payload, batch=3))) == len(digest_of(entry_of(payload, compression=api.LZ4))) == 16
