"""Clients that break the protocol get an error or lose their connection; no other connection ends."""
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geminga.proto import pulsar_api_pb2 as api

from ..harness import partitioned_topic, request, unique_topic
from ..proto.client_frames import CONNECT, MESSAGE_SIZE_MAX, PING, T, command, entry_of, frame, message_metadata, send
from .peer import Bystander, Closed, Peer, error_of

pytestmark = pytest.mark.usefixtures("unharmed")

LARGEST = 2**64 - 1
SIGNED_MAX = 2**63 - 1


@pytest.fixture
def peer(broker):
    with Peer(broker.service_url) as connected:
        yield connected


# -- bytes that are no protocol

@pytest.mark.parametrize("said", [
    bytes(16), b"\xff" * 100,
    PING, send(), frame(b"\x08\x63"), command(T.PRODUCER, topic="t", producer_id=1, request_id=1),
], ids=["zeros", "ones", "ping", "send", "unknown", "producer"])
def test_what_comes_before_connect_ends_the_connection(broker, said):
    with Peer(broker.service_url, said) as peer:
        assert peer.until_closed() == []


@pytest.mark.slow
@pytest.mark.parametrize("said", [
    frame(b"\x08\x63"), frame(b"\x08\x03\x1a\0"), frame(b"\xff" * 10), frame(b""), CONNECT, frame(b"\x08\x05"),
    struct.pack(">II", MESSAGE_SIZE_MAX + 10 * 1024 + 1, 4), struct.pack(">II", 3, 0), struct.pack(">I", 0),
    struct.pack(">II", 10, 7),
    struct.pack(">II", 2**32 - 1, 2**32 - 1), frame(b"\x08\x05\x2a\x05\x0a\x03\xff\xfe\xfd"),
    command(T.PRODUCER, topic="topic", producer_id=1, request_id=1).replace(b"topic", b"to\xff\xfec"),
    command(T.LOOKUP, topic="topic", request_id=1).replace(b"topic", b"to\xff\xfec"),
    send(b"\0\0\0\x09abc"), send(producer_id=77), command(T.FLOW, consumer_id=1, messagePermits=0),
], ids=["unknown command", "a broker's command", "garbage", "empty", "second connect", "no producer inside",
        "too large",
        "size without room", "size zero", "command behind the frame", "sizes of four gigabytes", "lacking fields",
        "topic no text", "lookup no text", "metadata cut", "send for nobody", "no permits"])
def test_what_breaks_the_protocol_ends_the_connection(peer, said):
    """The connection ends without an answer, as the protocol has none; commands before it are answered."""
    peer.say(PING + said)
    assert [heard.type for heard in peer.until_closed()] == [T.PONG]


def test_a_frame_of_the_largest_size_is_taken(peer):
    """Payloads may have the size that CONNECTED announces, and the frame the headers around it."""
    peer.open_producer(unique_topic())
    peer.say(send(entry_of(message_metadata(), bytes(MESSAGE_SIZE_MAX))))
    assert peer.hear().type == T.SEND_RECEIPT


@pytest.mark.parametrize("method", ["", "none", "token", "no-such-method"])
def test_who_is_not_asked_may_show_anything(broker, method):
    with Peer(
        broker.service_url, command(T.CONNECT, client_version="test", auth_method_name=method, auth_data=b"secret")
    ) as peer:
        assert peer.hear().type == T.CONNECTED


def test_who_was_not_asked_has_nothing_to_answer(peer):
    """An AUTH_RESPONSE that was not asked for ends the connection."""
    peer.say(command(T.AUTH_RESPONSE, response={"auth_method_name": "token", "auth_data": b"secret"}))
    assert peer.until_closed() == []


# -- commands that are refused

@pytest.mark.slow
def test_a_wrong_checksum_is_refused_and_the_connection_goes_on(peer):
    """All other SENDs get receipts; the refused one gets none, and its bytes are not stored."""
    peer.open_producer(unique_topic())
    damaged = send(entry_of(message_metadata(), wrong_by=1), sequence_id=50)
    whole = [send(sequence_id=number) for number in range(101)]
    peer.say(b"".join([*whole[:50], damaged, *whole[51:]]))
    heard = [peer.hear() for _ in range(101)]
    refused = [one.send_error for one in heard if one.type == T.SEND_ERROR]
    assert [(one.producer_id, one.sequence_id, one.error) for one in refused] == [(1, 50, api.ChecksumError)]
    receipts = [one.send_receipt for one in heard if one.type == T.SEND_RECEIPT]
    assert [one.sequence_id for one in receipts] == [*range(50), *range(51, 101)]
    assert [one.message_id.entryId for one in receipts] == list(range(100))


def test_strangers_are_not_heard(peer):
    """FLOW and redelivery for a consumer that does not exist are ignored, an ACK is refused; the connection goes on."""
    peer.say(command(T.FLOW, consumer_id=77, messagePermits=5)
             + command(T.ACK, consumer_id=77, ack_type=api.CommandAck.Individual,
                       message_id=[api.MessageIdData(ledgerId=1, entryId=1)],
                       request_id=1)
             + command(T.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=77))
    assert peer.hear().ackResponse.error == api.ConsumerNotFound
    assert peer.ask(T.PING).type == T.PONG


NOBODYS = {
    "TC_CLIENT_CONNECT_REQUEST": ({"tc_id": 2**64 - 1}, api.TransactionCoordinatorNotFound),
    "NEW_TXN": ({"tc_id": 2**64 - 1}, api.TransactionCoordinatorNotFound),
    "END_TXN": ({"txn_action": api.ABORT}, api.TransactionNotFound),
    "ADD_PARTITION_TO_TXN": ({"txnid_most_bits": 2**64 - 1}, api.TransactionNotFound),
    "ADD_SUBSCRIPTION_TO_TXN": ({"txnid_least_bits": 2**64 - 1}, api.TransactionNotFound),
    "END_TXN_ON_PARTITION": ({}, api.NotAllowedError), "END_TXN_ON_SUBSCRIPTION": ({}, api.NotAllowedError),
}


@pytest.mark.parametrize("name", NOBODYS)
def test_transactions_of_nobody_are_refused_in_the_words_of_the_protocol(peer, name):
    """Each request is refused with an error, never ignored: clients would wait."""
    fields, error = NOBODYS[name]
    answer = peer.ask(T.Value(name), request_id=7, **fields)
    assert error_of(answer) == error
    assert peer.ask(T.PING).type == T.PONG


def test_a_second_command_inside_does_not_confuse_the_answer(peer):
    """The type says which field counts, not the order of the fields."""
    both = api.BaseCommand(type=T.NEW_TXN, newTxn=api.CommandNewTxn(request_id=7, tc_id=99), ping=api.CommandPing())
    peer.say(frame(both.SerializeToString()))
    assert (error := peer.hear()).newTxnResponse.request_id == 7
    assert error_of(error) == api.TransactionCoordinatorNotFound


def test_a_subscription_of_no_kind_there_is_becomes_exclusive_or_is_refused(peer):
    """The protobuf library takes a number that the enumeration does not know for a missing field."""
    whole = command(T.SUBSCRIBE, topic="t", subscription="s", subType=1, consumer_id=1, request_id=1)
    peer.say(whole.replace(b"\x18\x01", b"\x18\x63"))
    assert peer.until_closed() == []


@pytest.mark.slow
@pytest.mark.parametrize("topic, code", [
    ("persistent://tenant/cluster/namespace/topic", api.InvalidTopicName), ("a/b", api.InvalidTopicName),
    ("", api.InvalidTopicName),
    ("x" * 100_000, api.InvalidTopicName), ("persistent://public/nowhere/topic", api.TopicNotFound),
    ("acme/eu/topic", api.TopicNotFound),
], ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("kind, fields", [
    (T.PRODUCER, {"producer_id": 1}), (T.SUBSCRIBE, {"consumer_id": 1, "subscription": "s", "subType": 0}),
    (T.LOOKUP, {}),
    (T.PARTITIONED_METADATA, {})], ids=["producer", "subscribe", "lookup", "partitions"])
def test_a_topic_that_cannot_be_is_refused(peer, kind, fields, topic, code):
    answer = peer.ask(kind, topic=topic, request_id=7, **fields)
    assert error_of(answer) == code
    assert peer.ask(T.PING).type == T.PONG


def test_a_partition_that_is_not_there_is_refused(broker, peer):
    """The last partition can be used; those behind it, and the partitioned topic itself, are refused."""
    topic = partitioned_topic(broker.http_url, 2)
    for name in (f"{topic}-partition-2", topic):
        assert error_of(peer.ask(T.PRODUCER, topic=name, producer_id=5, request_id=1)) == api.TopicNotFound
    peer.open_producer(f"{topic}-partition-1")


# -- numbers as large as they can be

@pytest.mark.parametrize("epoch", [SIGNED_MAX, SIGNED_MAX + 1, LARGEST])
@pytest.mark.parametrize("mode", [api.Exclusive, api.ExclusiveWithFencing])
def test_an_invented_topic_epoch_is_refused(peer, epoch, mode):
    """An epoch larger than the catalogue can store is refused; the owner does not end."""
    topic = unique_topic()
    answer = peer.ask(T.PRODUCER, topic=topic, producer_id=1, request_id=1, topic_epoch=epoch,
                      producer_access_mode=mode)
    assert error_of(answer) == api.ProducerFenced
    assert (
        peer.ask(T.PRODUCER, topic=topic, producer_id=1, request_id=1, producer_access_mode=mode).type
        == T.PRODUCER_SUCCESS
    )


@pytest.mark.slow
@pytest.mark.parametrize("entry_id", [0, SIGNED_MAX, SIGNED_MAX + 1, LARGEST - 1, LARGEST])
@pytest.mark.parametrize("ledger_id", [0, SIGNED_MAX, SIGNED_MAX + 1, LARGEST])
def test_a_position_may_be_any_number(broker, ledger_id, entry_id):
    """Positions of any value can be given to begin at, to seek to, and to acknowledge, individually or cumulatively."""
    where, topic = {"ledgerId": ledger_id, "entryId": entry_id}, unique_topic()
    with Peer(broker.service_url) as peer:
        peer.open_producer(topic)
        peer.say(send())
        assert peer.hear().type == T.SEND_RECEIPT
        said = {"topic": topic, "subType": 0, "consumer_id": LARGEST, "request_id": LARGEST}
        assert peer.ask(T.SUBSCRIBE, subscription="s", start_message_id=where, **said).type == T.SUCCESS
        for kind in (api.CommandAck.Individual, api.CommandAck.Cumulative):
            ids = [api.MessageIdData(**where, ack_set=[-1] if entry_id % 2 else [])]
            assert (
                peer.ask(T.ACK, consumer_id=LARGEST, ack_type=kind, message_id=ids, request_id=LARGEST).type
                == T.ACK_RESPONSE
            )
        peer.say(command(T.SEEK, consumer_id=LARGEST, request_id=LARGEST, message_id=where))
        assert {peer.hear().type, peer.hear().type} == {T.SUCCESS, T.CLOSE_CONSUMER}


@pytest.mark.parametrize("kind, fields", [
    (T.SUBSCRIBE,
     {"subscription": "s", "subType": 0, "consumer_id": LARGEST, "start_message_rollback_duration_sec": LARGEST}),
    (T.PRODUCER, {"producer_id": LARGEST, "epoch": LARGEST}),
], ids=["subscribe", "producer"])
def test_other_numbers_may_be_any(peer, kind, fields):
    assert peer.ask(kind, topic=unique_topic(), request_id=LARGEST, **fields).type in (T.SUCCESS, T.PRODUCER_SUCCESS)


def test_an_entry_may_say_any_number_of_itself(peer):
    """Times and ids are the producer's affair, and so are message counts that the payload may hold."""
    peer.open_producer(topic := unique_topic())
    strange = [{"publish_time": LARGEST, "num_messages_in_batch": 20_000_000, "deliver_at_time": -2**63,
                "compression": api.ZSTD, "uncompressed_size": 2**32 - 1}, {"publish_time": 2**63},
               {"num_messages_in_batch": -2**31, "event_time": LARGEST, "highest_sequence_id": LARGEST,
                "sequence_id": LARGEST},
               {"num_messages_in_batch": 0, "num_chunks_from_msg": 2**31 - 1, "total_chunk_msg_size": 2**31 - 1,
                "chunk_id": 2**31 - 1},
               {"num_chunks_from_msg": -2**31, "total_chunk_msg_size": -2**31, "chunk_id": -2**31}]
    entries = [entry_of(message_metadata(**fields)) for fields in strange]
    for entry in entries:
        peer.say(send(entry, sequence_id=LARGEST, highest_sequence_id=LARGEST, num_messages=-5))
        assert peer.hear().type == T.SEND_RECEIPT
    peer.subscribe(topic)
    for entry in entries:      # each entry may use up all permits that there can be
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=2**32 - 1))
        assert peer.hear_frame()[1] == entry


# -- anything

PIECES = st.one_of(
    st.just(CONNECT), st.just(PING), st.just(send()), st.binary(max_size=50), st.binary(max_size=50).map(frame),
    st.builds(lambda kind, body: frame(b"\x08" + bytes([kind, kind << 3 & 127 | 2, len(body)]) + body),
              st.integers(0, 15), st.binary(max_size=40)),
    st.builds(lambda number: command(T.FLOW, consumer_id=number, messagePermits=1), st.integers(0, LARGEST)),
    st.builds(lambda topic: command(T.LOOKUP, topic=topic, request_id=1), st.text(max_size=20)),
    st.builds(lambda topic: command(T.PRODUCER, topic=topic, producer_id=1, request_id=1), st.text(max_size=20)),
)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(PIECES, max_size=10), is_polite=st.booleans())
def test_any_bytes_are_answered_in_frames_or_end_the_connection(broker, bystander: Bystander, pieces, is_polite):
    """Whatever comes, in any pieces, the client hears whole frames, and perhaps the end."""
    with Peer(broker.service_url, CONNECT if is_polite else b"") as peer:
        for piece in pieces:
            peer.say(piece)
        peer.end()
        peer.until_closed()
    bystander.round()


def test_a_connection_that_ended_says_so_to_whoever_goes_on(peer):
    """A canary: were connections never ended, the tests above would wait, and some would pass for another reason."""
    peer.say(frame(b"\x08\x63"))
    with pytest.raises(Closed):
        peer.hear()


def unreadable(broker):
    """Return the counts above 0 of messages that clients could not read, as lines of the metrics."""
    return counted(broker, "geminga_acks_of_damaged")


def counted(broker, family):
    """Return the values above 0 of a metric, as its lines."""
    return [line for line in request("GET", f"{broker.http_url}/metrics")[1].splitlines()
            if line.startswith(family) and not line.endswith(" 0.0")]


def discard(peer, why):
    """Publish a message, receive it, and acknowledge it with this validation error; return it."""
    topic = unique_topic()
    peer.open_producer(topic)
    peer.subscribe(topic)
    body = entry_of(message_metadata(sequence_id=1), b"x")
    peer.say(send(body, sequence_id=1) + command(T.FLOW, consumer_id=1, messagePermits=1))
    message = next(heard for heard in (peer.hear(), peer.hear()) if heard.type == T.MESSAGE).message
    answer = peer.ask(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=[message.message_id],
                      request_id=9, validation_error=why)
    assert answer.type == T.ACK_RESPONSE
    assert peer.ask(T.CONSUMER_STATS, consumer_id=1, request_id=10).consumerStatsResponse.msgBacklog == 0
    return message


@pytest.mark.slow
def test_a_message_that_a_client_could_not_decrypt_is_acknowledged_and_no_damage(broker, peer):
    """A client without the right key raises no alarm: it has checked the checksum before."""
    before, undecrypted = unreadable(broker), counted(broker, "geminga_acks_undecrypted")
    discard(peer, api.CommandAck.DecryptionError)
    assert unreadable(broker) == before
    assert counted(broker, "geminga_acks_undecrypted") != undecrypted


@pytest.mark.slow
def test_a_message_that_a_client_could_not_read_is_acknowledged_and_counted(broker, peer):
    """The client has discarded the message: it is acknowledged as asked, for delivering it again would not help."""
    before = unreadable(broker)
    message = discard(peer, api.CommandAck.ChecksumMismatch)
    assert unreadable(broker) != before
    before = unreadable(broker)
    invented = [api.MessageIdData(ledgerId=message.message_id.ledgerId, entryId=number) for number in range(1_000)]
    answer = peer.ask(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=invented, request_id=11,
                      validation_error=api.CommandAck.ChecksumMismatch)
    # a client cannot have read entries that it was not given, or has acknowledged
    assert answer.type == T.ACK_RESPONSE and unreadable(broker) == before
    assert (
        f"could not read message {message.message_id.ledgerId}:{message.message_id.entryId} (ChecksumMismatch)"
        in broker.log()
    )
