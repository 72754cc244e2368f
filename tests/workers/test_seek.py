"""SEEK into a batch, in bytes as Java's client writes them, over a restart of the broker."""
import struct

import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..harness import Broker, unique_topic
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from .peer import Peer

MESSAGES = 6


def batch():
    """Return an entry of so many messages."""
    body = b""
    for number in range(MESSAGES):
        one = api.SingleMessageMetadata(payload_size=1).SerializeToString()
        body += struct.pack(">I", len(one)) + one + b"%d" % number
    return entry_of(message_metadata(num_messages_in_batch=MESSAGES), body)


def given(peer, topic):
    """Return (id, ack set) of the one message that a consumer is given."""
    peer.subscribe(topic)
    peer.say(command(T.FLOW, consumer_id=1, messagePermits=10))
    message = peer.hear().message
    return message.message_id, list(message.ack_set)


def acknowledge(peer, where):
    answer = peer.ask(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=[where], request_id=3)
    assert answer.type == T.ACK_RESPONSE and not answer.ackResponse.HasField("error")


@pytest.mark.slow
def test_a_seek_into_a_batch_holds_over_a_restart(tmp_path):
    """F201: messages before the position do not come again, those behind it come until they are acknowledged."""
    broker, topic = Broker(tmp_path / "data").start(), unique_topic("seek")
    try:
        with Peer(broker.service_url) as peer:
            peer.subscribe(topic)
            peer.open_producer(topic)
            peer.say(send(batch(), num_messages=MESSAGES))
            where = peer.hear().send_receipt.message_id
            acknowledge(peer, where)
            where.ack_set.append(0b110000)
            seek = api.BaseCommand(type=T.SEEK, seek=api.CommandSeek(consumer_id=1, request_id=4,
                                                                     message_id=where)).SerializeToString()
            peer.say(struct.pack(">II", 4 + len(seek), len(seek)) + seek)
            assert {peer.hear().type, peer.hear().type} == {T.SUCCESS, T.CLOSE_CONSUMER}
            found, words = given(peer, topic)
            assert (found.ledgerId, found.entryId, words) == (where.ledgerId, where.entryId, [0b110000])
            found.ack_set.append(0b100000)
            acknowledge(peer, found)
        broker.stop()
        broker.start()
        with Peer(broker.service_url) as peer:
            assert given(peer, topic)[1] == [0b100000]
    finally:
        broker.close()
