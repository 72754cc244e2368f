"""Commands that would cost an owner more than they cost to send; a client beside each of them goes on being served."""
import struct

import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..harness import Broker, unique_topic
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from .peer import Peer, error_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unharmed")]

# the smallest message that a batch can hold
MESSAGE = struct.pack(">I", 2) + api.SingleMessageMetadata(payload_size=0).SerializeToString()
GROWTH_MAX = 200 << 20      # bytes: what 5 MB of command may make all processes take


@pytest.fixture
def peer(broker):
    with Peer(broker.service_url) as connected:
        yield connected


@pytest.fixture
def small(broker):
    """After the test no process has taken much memory, not even for a moment."""
    before = _peaks(broker)
    yield
    after = _peaks(broker)
    assert all(after[pid] - before[pid] < GROWTH_MAX for pid in before)


def _peaks(broker: Broker) -> dict[int, int]:
    """Return the peak memory of each process."""
    found = {}
    for pid in broker.children().values():
        with open(f"/proc/{pid}/status") as status:
            found[pid] = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
    return found


def batch(count: int, **metadata) -> bytes:
    return entry_of(message_metadata(num_messages_in_batch=count, **metadata), MESSAGE * count)


def hear(peer: Peer) -> api.BaseCommand:
    """Return the next command that is no ACTIVE_CONSUMER_CHANGE."""
    while (heard := peer.hear()).type == T.ACTIVE_CONSUMER_CHANGE:
        pass
    return heard


def given(peer: Peer, topic: str, *entries: bytes, kind: int = api.CommandSubscribe.Shared) -> list[api.MessageIdData]:
    """Publish the entries, receive them as a consumer, and return their ids."""
    peer.open_producer(topic)
    answer = peer.ask(T.SUBSCRIBE, topic=topic, subscription="sub", subType=kind, consumer_id=1, request_id=2)
    assert answer.type == T.SUCCESS
    peer.say(b"".join(send(entry, sequence_id=number) for number, entry in enumerate(entries)))
    assert [hear(peer).type for _ in entries] == [T.SEND_RECEIPT] * len(entries)
    peer.say(command(T.FLOW, consumer_id=1, messagePermits=10_000))
    return [hear(peer).message.message_id for _ in entries]


def ack(peer: Peer, *sets: tuple[api.MessageIdData, list[int]], kind: int = api.CommandAck.Individual) -> None:
    """Acknowledge, and wait for the answer."""
    ids = [api.MessageIdData(ledgerId=identity.ledgerId, entryId=identity.entryId, ack_set=words)
           for identity, words in sets]
    answer = peer.ask(T.ACK, consumer_id=1, ack_type=kind, message_id=ids, request_id=9)
    assert answer.type == T.ACK_RESPONSE and not answer.ackResponse.HasField("error")


def backlog(peer: Peer) -> int:
    return peer.ask(T.CONSUMER_STATS, consumer_id=1, request_id=10).consumerStatsResponse.msgBacklog


# -- ack sets

@pytest.mark.parametrize("words", [200_000, 2_000_000])
@pytest.mark.parametrize("kind, type_", [(api.CommandSubscribe.Shared, api.CommandAck.Individual),
                                         (api.CommandSubscribe.Exclusive, api.CommandAck.Cumulative)])
def test_an_ack_set_costs_what_its_batch_can_hold(peer, small, words, kind, type_):
    """Words beyond those of the batch are ignored."""
    [identity] = given(peer, unique_topic(), batch(3), kind=kind)
    for left in (0b110, 0b100):
        ack(peer, (identity, [left] + [1] * (words - 1)), kind=type_)
    assert backlog(peer) == 1
    ack(peer, (identity, [0b001] + [1] * (words - 1)), kind=type_)
    assert backlog(peer) == 0


def test_a_large_batch_is_acknowledged_bit_by_bit(peer, small):
    """The largest uncompressed batch is acknowledged in whole words, from its end, and then all but one message."""
    count = 800_000
    [identity] = given(peer, unique_topic(), batch(count))
    for last in (12_400, 6_000, 2):
        ack(peer, (identity, [1] * last))
    ack(peer, (identity, [0, 1]))
    assert backlog(peer) == 1
    ack(peer, (identity, [1]))
    assert backlog(peer) == 0


def test_many_ack_sets_in_one_command(peer, small):
    """The ack sets are about one batch again and again, or about batches that do not exist."""
    [identity] = given(peer, unique_topic(), batch(64))
    elsewhere = api.MessageIdData(ledgerId=identity.ledgerId, entryId=1 << 40)
    ack(peer, *[((identity, elsewhere)[number & 1], [-1 << number // 2_000]) for number in range(100_000)])
    assert backlog(peer) == 1
    ack(peer, (identity, [0]))
    assert backlog(peer) == 0


# -- counts

@pytest.mark.parametrize("fields", [
    {"num_messages_in_batch": 2**31 - 1}, {"num_messages_in_batch": 4},
    {"num_messages_in_batch": 4, "uncompressed_size": 1 << 30},
    {"num_messages_in_batch": 4, "compression": api.ZLIB},
    {"num_messages_in_batch": 4, "compression": api.LZ4, "uncompressed_size": 23},
    {"num_messages_in_batch": 2**31 - 1, "compression": api.ZSTD, "uncompressed_size": 2**32 - 1},
    {"num_messages_in_batch": 4, "encryption_keys": [api.EncryptionKeys(key="k", value=b"v")]}])
def test_a_batch_that_cannot_hold_its_messages_is_refused(peer, fields):
    """The producer gets an error for the message; the connection and the producer go on."""
    peer.open_producer(topic := unique_topic())
    peer.say(send(entry_of(message_metadata(**fields), MESSAGE * 3), sequence_id=5) + send(batch(3), sequence_id=6))
    refused, stored = peer.hear(), peer.hear()
    assert (
        refused.type == T.SEND_ERROR
        and error_of(refused) == api.NotAllowedError
        and refused.send_error.sequence_id == 5
    )
    assert stored.type == T.SEND_RECEIPT and stored.send_receipt.message_id.entryId == 0
    peer.subscribe(topic)
    peer.say(command(T.FLOW, consumer_id=1, messagePermits=10))
    assert peer.hear().message.message_id.entryId == 0


def test_a_run_of_such_batches_is_refused_one_by_one(peer):
    peer.open_producer(unique_topic())
    peer.say(b"".join(send(entry_of(message_metadata(num_messages_in_batch=5, sequence_id=number), MESSAGE),
                           sequence_id=number)
                      for number in range(200)))
    assert [peer.hear().send_error.sequence_id for _ in range(200)] == list(range(200))


@pytest.mark.parametrize("fields, payload", [
    ({"num_messages_in_batch": 1}, b""), ({"num_messages_in_batch": 4}, MESSAGE * 4),
    ({"num_messages_in_batch": 4, "compression": api.ZLIB, "uncompressed_size": 24}, b"z" * 12),
    ({"num_messages_in_batch": 4, "compression": api.ZLIB, "uncompressed_size": 24,
      "encryption_keys": [api.EncryptionKeys(key="k", value=b"v")]}, b"z" * 12),
    ({"num_messages_in_batch": 1_000_000, "compression": api.ZSTD, "uncompressed_size": 6_000_000}, b"z" * 12)])
def test_a_batch_that_may_hold_its_messages_is_stored(peer, small, fields, payload):
    """Messages may be empty; an ack set takes no more memory than the words that were sent, whatever count is claimed.
    """
    [identity] = given(peer, unique_topic(), entry_of(message_metadata(**fields), payload))
    if fields["num_messages_in_batch"] > 1:
        ack(peer, (identity, [0b11]))
        ack(peer, (identity, [0b01]))
        assert backlog(peer) == 1
    ack(peer, (identity, [0]))
    assert backlog(peer) == 0


# -- consumers

@pytest.mark.parametrize("kind",
                         [api.CommandSubscribe.Key_Shared, api.CommandSubscribe.Shared, api.CommandSubscribe.Failover])
def test_thousands_of_consumers_join_one_subscription_at_once(broker, peer, kind):
    """Thousands that join at once, and leave at once, cost the others little."""
    topic, count = unique_topic(), 3_000
    peer.say(b"".join(command(T.SUBSCRIBE, topic=topic, subscription="sub", subType=kind, consumer_id=number,
                              request_id=number, consumer_name=f"c{number}") for number in range(count)))
    ready = set()
    while len(ready) < count:
        heard = hear(peer)
        assert heard.type == T.SUCCESS, heard
        ready.add(heard.success.request_id)
    peer.socket.close()
    with Peer(broker.service_url) as witness:
        assert given(witness, topic, batch(1), kind=kind)


def test_ranges_of_hashes_cost_what_they_bring(broker, peer):
    """One consumer takes every other hash, the next one all others, and a third is refused by each."""
    for number, (first, type_) in enumerate([(0, T.SUCCESS), (1, T.SUCCESS), (0, T.ERROR), (1, T.ERROR)]):
        hashes = [api.IntRange(start=at, end=at) for at in range(first, 65_536, 2)]
        answer = peer.ask(T.SUBSCRIBE, topic="costs-of-ranges", subscription="sub",
                          subType=api.CommandSubscribe.Key_Shared, consumer_id=number, request_id=number,
                          keySharedMeta={"keySharedMode": api.STICKY, "hashRanges": hashes})
        assert answer.type == type_, answer
