"""Replicators of other clusters over the wire: receipts, refusals, takeover, and the requests before a PRODUCER."""
import json

import pulsar
import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api

from ..harness import messages_of, request, unique_topic
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from .peer import Peer, error_of

COUNT = 200                 # enough for SENDs to be read as arrays
CONNECT = command(T.CONNECT, client_version="Pulsar-Java-v4.0.7", protocol_version=21,
                  feature_flags={"supports_repl_dedup_by_lid_and_eid": True})
DUPLICATE = 2**64 - 1


class Replicator(Peer):
    """A connection of another cluster's broker, with one producer."""

    def __init__(self, broker, topic, name="pulsar.repl.far-->standalone"):
        super().__init__(broker.service_url, CONNECT)
        assert self.hear().connected.feature_flags.supports_repl_dedup_by_lid_and_eid
        answer = self.ask(T.PRODUCER, topic=topic, producer_id=3, request_id=1, producer_name=name,
                          user_provided_producer_name=True)
        assert answer.type == T.PRODUCER_SUCCESS, answer

    def send(self, *positions, **fields):
        self.say(b"".join([replicated(position, sequence_id=number % 50, **fields)
                           for number, position in enumerate(positions)]))

    def receipts(self, count):
        return [self.hear().send_receipt for _ in range(count)]


def replicated(position, *, sequence_id=0, wrong_by=0, **fields):
    properties = [] if position is None else [api.KeyValue(key=names.POSITION_PROPERTY, value=position)]
    metadata = message_metadata(sequence_id=sequence_id, replicated_from="far", properties=properties, **fields)
    return send(entry_of(metadata, f"at {position}".encode(), wrong_by=wrong_by), producer_id=3,
                sequence_id=sequence_id, marker="marker_type" in fields)


def stored(broker, topic):
    """Return the payloads of the topic, as a reader gets them."""
    client = pulsar.Client(broker.service_url)
    try:
        return [message.data().decode() for message in messages_of(client, topic)]
    finally:
        client.close()


@pytest.fixture
def topic():
    return unique_topic("replicated")


def test_receipts_name_positions_and_come_in_order(broker, topic, unharmed):
    with Replicator(broker, topic) as peer:
        peer.send(*(f"61561655729:{number}" for number in range(COUNT)))
        assert [(one.sequence_id, one.highest_sequence_id) for one in peer.receipts(COUNT)] == [
            (61561655729, number) for number in range(COUNT)]
    assert stored(broker, topic) == [f"at 61561655729:{number}" for number in range(COUNT)]


def test_a_second_connection_takes_over_and_what_it_sends_again_is_known(broker, topic, unharmed):
    with Replicator(broker, topic) as old:
        old.send(*(f"7:{number}" for number in range(COUNT)))
        old.receipts(COUNT)
        with Replicator(broker, topic) as new:
            assert old.hear().type == T.CLOSE_PRODUCER
            old.send("7:1000")
            new.send(*(f"7:{number}" for number in range(COUNT + 1)))
            ids = [one.message_id.ledgerId for one in new.receipts(COUNT + 1)]
            assert ids[:-1] == [DUPLICATE] * COUNT and ids[-1] != DUPLICATE
    assert stored(broker, topic) == [f"at 7:{number}" for number in range(COUNT + 1)]


@pytest.mark.parametrize("bad", [
    replicated(None, sequence_id=9), replicated("7:nonsense", sequence_id=9),
    replicated("7:500", sequence_id=9, wrong_by=1), replicated("7:500", sequence_id=9, num_messages_in_batch=1_000)])
def test_nothing_behind_a_refused_message_is_stored(broker, topic, unharmed, bad):
    with Replicator(broker, topic) as peer:
        peer.say(b"".join([*(replicated(f"7:{number}") for number in range(COUNT)), bad,
                           *(replicated(f"7:{number}") for number in range(501, 501 + COUNT))]))
        assert [one.highest_sequence_id for one in peer.receipts(COUNT)] == list(range(COUNT))
        refused, closed = peer.hear(), peer.hear()
        assert (refused.send_error.sequence_id, refused.send_error.error) == (9, api.PersistenceError)
        assert (closed.type, closed.close_producer.producer_id) == (T.CLOSE_PRODUCER, 3)
        peer.say(replicated("7:900"))      # the client may have sent it before it knew
        assert peer.ask(T.PING).type == T.PONG
    assert stored(broker, topic) == [f"at 7:{number}" for number in range(COUNT)]


def test_a_marker_is_answered_and_not_delivered(broker, topic, unharmed):
    with Replicator(broker, topic) as peer:
        peer.say(replicated("7:0") + replicated("7:1", sequence_id=6, marker_type=10) + replicated("7:2"))
        assert [(one.sequence_id, one.highest_sequence_id) for one in peer.receipts(3)] == [
            (7, 0), (6, names.MARKER_RECEIPT), (7, 2)]
    assert stored(broker, topic) == ["at 7:0", "at 7:2"]


def test_a_connection_that_names_no_positions_gets_receipts_of_old(broker, topic, unharmed):
    with Peer(broker.service_url) as peer:
        peer.ask(T.PRODUCER, topic=topic, producer_id=3, request_id=1, producer_name="pulsar.repl.far")
        peer.say(replicated("7:5", sequence_id=11) + replicated(None, sequence_id=4) * COUNT)
        heard = [peer.hear().send_receipt for _ in range(COUNT + 1)]
        assert [(one.sequence_id, one.highest_sequence_id) for one in heard] == [
            (11, 2**64 - 1), *[(4, 2**64 - 1)] * COUNT]
    assert stored(broker, topic) == ["at 7:5", *["at None"] * COUNT]


def test_the_requests_before_a_producer_are_answered(broker, topic, unharmed):
    """A replicator of a new topic asks for its schema, of which there is none, and for its partitions: there are none,
    and asking makes none.
    """
    with Peer(broker.service_url, CONNECT) as peer:
        peer.hear()
        answer = peer.ask(T.GET_SCHEMA, topic=topic, request_id=1)
        assert error_of(answer) == api.TopicNotFound
        answer = peer.ask(T.PARTITIONED_METADATA, topic=topic, request_id=2, metadata_auto_creation_enabled=False)
        assert answer.partitionMetadataResponse.error == api.TopicNotFound
        answer = peer.ask(T.PRODUCER, topic=topic, producer_id=3, request_id=3, producer_name="pulsar.repl.far-->x")
        assert answer.type == T.PRODUCER_SUCCESS
        answer = peer.ask(T.PARTITIONED_METADATA, topic=topic, request_id=4, metadata_auto_creation_enabled=False)
        assert answer.partitionMetadataResponse.response == api.CommandPartitionedTopicMetadataResponse.Success
        assert answer.partitionMetadataResponse.partitions == 0


def test_a_source_makes_and_enlarges_partitioned_topics(broker, topic):
    url = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/partitions"
    said = {"Content-Type": "application/json"}
    assert request("PUT", url + "?createLocalTopicOnly=true", b"3", **said)[0] == 204
    assert request("PUT", url + "?createLocalTopicOnly=true", b"3", **said)[0] == 409      # as Pulsar answers
    assert request("POST", url + "?updateLocalTopicOnly=true&force=false", b"5", **said)[0] == 204
    assert json.loads(request("GET", url)[1])["partitions"] == 5
