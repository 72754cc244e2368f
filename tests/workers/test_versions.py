"""F028: a client is sent no command or field that its version of the protocol does not know.

Apache Pulsar 4.0.7 does the same for versions 5 to 12, with which it was tried.  For older versions the protocol's own
list decides.
"""
from contextlib import ExitStack

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import responses

from ..harness import eventually, request, unique_topic
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from .peer import Closed, Peer

VERSIONS = (0, 1, 4, 5, 8, 9, 10, 11, 12, 21)


def connected(broker, version: int) -> Peer:
    peer = Peer(broker.service_url, command(T.CONNECT, client_version="of old", protocol_version=version))
    answer = peer.hear()
    assert answer.type == T.CONNECTED and answer.connected.protocol_version == version
    return peer


def heard(peer: Peer) -> list[str]:
    """Return the names of commands up to the answer of a PING; "end" if the connection ends first."""
    kinds = []
    peer.say(command(T.PING))
    try:
        while (kind := peer.hear().type) != T.PONG:
            kinds.append(T.Name(kind))
    except Closed:
        kinds.append("end")
    return kinds


@pytest.fixture
def published(broker):
    """Return a topic and its entries, of several sizes; enough of one size in a row to be written as an array."""
    topic = unique_topic("versions")
    entries = [entry_of(message_metadata(sequence_id=number), bytes(size))
               for number, size in enumerate([5] * 20 + [1, 0, 300, 2])]
    with Peer(broker.service_url) as peer:
        peer.open_producer(topic)
        for number, entry in enumerate(entries):
            peer.say(send(entry, sequence_id=number))
            assert peer.hear().type == T.SEND_RECEIPT
    return topic, entries


@pytest.mark.parametrize("version", VERSIONS)
def test_checksums_are_for_those_who_check_them(broker, published, version):
    """Deliveries have checksums from version 11 on: older C++ consumers misread that field."""
    topic, entries = published
    with connected(broker, version) as peer:
        peer.subscribe(topic, f"sub-{version}")
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=3))
        found = [peer.hear_frame()[1] for _ in range(3)]
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=100))
        found += [peer.hear_frame()[1] for _ in entries[3:]]
        assert found == (entries if version >= 11 else [entry[6:] for entry in entries])
        peer.say(command(T.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1))
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=100))
        assert peer.hear_frame()[1] == found[0]


def permits_of(peer):
    answer = peer.ask(T.CONSUMER_STATS, request_id=7, consumer_id=1)
    assert answer.type == T.CONSUMER_STATS_RESPONSE, answer
    return answer.consumerStatsResponse.availablePermits


@pytest.mark.parametrize("version", [10, 11])
def test_checksums_of_topics_that_keep_nothing(broker, version):
    topic = unique_topic("versions").replace("persistent://", "non-persistent://")
    entry = entry_of(message_metadata())
    with connected(broker, version) as peer, Peer(broker.service_url) as producer:
        peer.subscribe(topic)
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=100))
        producer.open_producer(topic)
        eventually(lambda: permits_of(peer) == 100, what="the permits at the owner: without them messages are dropped")
        producer.say(send(entry) + send(entry))
        assert [peer.hear_frame()[1] for _ in range(2)] == [entry if version >= 11 else entry[6:]] * 2


def test_the_end_of_a_topic_is_told_to_those_who_know_the_word(broker):
    topic = unique_topic("versions")
    with ExitStack() as open_peers:
        open_peers.enter_context(Peer(broker.service_url)).open_producer(topic)
        peers = {version: open_peers.enter_context(connected(broker, version)) for version in VERSIONS}
        for version, peer in peers.items():
            peer.subscribe(topic, f"sub-{version}")
            peer.say(command(T.FLOW, consumer_id=1, messagePermits=10))
        assert request("POST", f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/terminate")[0] == 200
        for version in VERSIONS[::-1]:      # clients that are told last are asked first
            if version >= 9:
                assert peers[version].hear().type == T.REACHED_END_OF_TOPIC
        for version in VERSIONS:
            assert heard(peers[version]) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_who_is_active_is_told_to_those_who_know_the_word(broker, version):
    with connected(broker, version) as peer:
        answer = peer.ask(T.SUBSCRIBE, topic=unique_topic("versions"), subscription="s",
                          subType=api.CommandSubscribe.Failover, consumer_id=1, request_id=2)
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=1))
        told = [answer.type]
        if version >= 12:
            told.append(peer.hear().type)
        assert sorted(told) == ([T.SUCCESS, T.ACTIVE_CONSUMER_CHANGE] if version >= 12 else [T.SUCCESS])
        # The owner answers this behind all that it told before; a PING would be answered by the worker.
        assert peer.ask(T.CLOSE_CONSUMER, consumer_id=1, request_id=3).type == T.SUCCESS


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("what", ["producer", "consumer"])
def test_whose_client_does_not_know_that_it_was_closed_is_disconnected(broker, version, what):
    topic = unique_topic("versions")
    with connected(broker, version) as peer:
        peer.open_producer(topic) if what == "producer" else peer.subscribe(topic)
        assert request("PUT", f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/unload")[0] == 204
        if version < 5:
            assert peer.until_closed() == []
        else:
            assert peer.hear().type == (T.CLOSE_PRODUCER if what == "producer" else T.CLOSE_CONSUMER)
            assert heard(peer) == []


def test_the_first_version_knows_no_ping(start_broker, tmp_path):
    """A client of version 0 gets no PING, and is not taken for dead for want of an answer."""
    config = tmp_path / "geminga.toml"
    config.write_text("[network]\nkeep_alive_interval_ms = 1000\n")
    broker = start_broker("--config", str(config), "--workers", "1", "--owners", "1")
    with connected(broker, 0) as old, connected(broker, 1) as other:
        other.answers_pings = False
        assert other.until_closed() == []      # this client was asked, and said nothing
        assert heard(old) == []


@pytest.mark.slow
def test_frames_that_a_version_understands():
    """The frames come one after the other; answers to those before the one that ends the connection are still sent."""
    moved, closed = responses.topic_migrated(1, 7, "pulsar://other", ""), responses.close_consumer(7)
    both = moved + closed
    assert responses.select_known(both, 20) == (both, False)
    assert responses.select_known(both, 19) == responses.select_known(both, 5) == (closed, False)
    assert responses.select_known(both, 4) == (b"", True)
    assert responses.select_known(responses.PONG + both + responses.PONG, 4) == (responses.PONG, True)
    challenge = responses.auth_challenge("token", 13)
    assert responses.select_known(challenge, 13) == (b"", False) and responses.select_known(challenge, 14) == (
        challenge,
        False,
    )
    assert responses.select_known(responses.PING, 0) == (b"", False) and responses.select_known(responses.PING, 1) == (
        responses.PING,
        False,
    )
    assert responses.select_known(responses.success(3), 0) == (responses.success(3), False)
