"""Messages reach another cluster once, in order and whole; refusals and lost connections delay them only."""
import time

import pulsar
import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..harness import eventually, request
from .conftest import Replication, arrive, numbered
from .far import POSITION

T = api.BaseCommand.Type


@pytest.mark.parametrize("is_new", [True, False])
def test_messages_arrive_in_order_and_the_cursor_follows(replication, is_new):
    name, far = replication.far(is_new=is_new)
    topic = replication.topic(name)
    replication.publish(topic, numbered(2_000))
    arrive(far, topic, numbered(2_000))
    eventually(lambda: replication.backlog(topic, name) == 0)
    eventually(lambda: replication.lane(topic, name)["unanswered"] == 0)
    lane = replication.lane(topic, name)
    assert lane["state"] == "sending" and lane["connected"] and lane["address"] == far.url.rpartition("/")[2]
    assert (lane["messagesSent"], lane["entriesFiltered"], lane["error"]) == (2_000, 0, "")


def test_the_handshake_is_a_replicators(replication):
    name, far = replication.far()
    topic = replication.topic(name)
    eventually(lambda: replication.lane(topic, name).get("connected"))
    flags = far.commands(T.CONNECT)[0].connect.feature_flags
    assert flags.supports_repl_dedup_by_lid_and_eid and flags.supports_get_partitioned_metadata_without_auto_creation
    producer = far.commands(T.PRODUCER)[0].producer
    assert producer.producer_name == f"pulsar.repl.standalone-->{name}"
    assert producer.user_provided_producer_name
    assert [command.type for command in far.heard if command.type != T.CONNECT] == [
        T.PARTITIONED_METADATA, T.LOOKUP, T.GET_SCHEMA, T.PRODUCER]


def test_a_message_is_what_it_was_and_says_where_it_came_from(replication):
    name, far = replication.far()
    topic = replication.topic(name)
    producer = replication.client.create_producer(topic, producer_name="original", batching_enabled=False,
                                                  compression_type=pulsar.CompressionType.ZLib)
    producer.send(b"." * 500, properties={"a": "b"}, partition_key="k", event_timestamp=77, ordering_key="o")
    eventually(lambda: far.stored(topic))
    metadata = far.stored(topic)[0].metadata
    assert (metadata.producer_name, metadata.partition_key, metadata.event_time, metadata.compression,
            metadata.ordering_key, metadata.replicated_from) == ("original", "k", 77, api.ZLIB, b"o", "standalone")
    assert {one.key for one in metadata.properties} == {"a", POSITION}


def test_batches_and_chunks_arrive_as_they_were(replication):
    name, far = replication.far()
    topic = replication.topic(name)
    replication.publish(topic, numbered(3_000), batching_enabled=True, batching_max_messages=100,
                        batching_max_publish_delay_ms=50)
    eventually(lambda: sum(one.send.num_messages for one in far.stored(topic)) == 3_000)
    producer = replication.client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(b"." * (11 << 20))
    eventually(lambda: sum(one.send.is_chunk for one in far.stored(topic)) == 3)
    chunks = [one for one in far.stored(topic) if one.send.is_chunk]
    assert [one.metadata.chunk_id for one in chunks] == [0, 1, 2]
    assert sum(len(one.payload) for one in chunks) == 11 << 20
    eventually(lambda: replication.backlog(topic, name) == 0)


def test_messages_for_other_clusters_only_are_acknowledged_and_not_sent(replication):
    name, far = replication.far()
    topic = replication.topic(name)
    producer = replication.client.create_producer(topic, batching_enabled=False)
    for number in range(40):
        producer.send_async(b"%d" % number, lambda *_: None,
                            replication_clusters=[name] if number % 2 else ["elsewhere"])
    producer.send_async(b"stays here", lambda *_: None, disable_replication=True)
    producer.flush()
    arrive(far, topic, numbered(40)[1::2])
    eventually(lambda: replication.backlog(topic, name) == 0)
    assert replication.lane(topic, name)["entriesFiltered"] == 21


def test_two_clusters_get_the_same_and_one_that_hangs_holds_up_none(replication):
    quick, far = replication.far()
    slow, hung = replication.far()
    hung.on_send = lambda *_: True
    topic = replication.topic(quick, slow)
    replication.publish(topic, numbered(3_000))
    arrive(far, topic, numbered(3_000))
    eventually(lambda: replication.backlog(topic, quick) == 0)
    assert replication.backlog(topic, slow) == 3_000
    eventually(lambda: replication.lane(topic, slow)["unanswered"] == 3_000)


def test_no_more_than_its_bound_of_entries_is_unanswered(replication):
    name, far = replication.far()
    far.on_send = lambda visitor, send, stored: far.keep(visitor.producers[send.producer_id], stored) or True
    topic = replication.topic(name)
    replication.publish(topic, numbered(12_000))
    eventually(lambda: replication.lane(topic, name).get("unanswered") == 10_000)
    eventually(lambda: len(far.stored(topic)) == 10_000)
    assert replication.backlog(topic, name) == 12_000


@pytest.mark.parametrize("is_new", [True, False])
def test_what_has_no_receipt_when_the_connection_ends_is_sent_again(replication, is_new):
    name, far = replication.far(is_new=is_new)
    topic = replication.topic(name)
    count = 0

    def half(visitor, send, stored):
        """Store all, answer the first 500, and end the connection at message 900."""
        nonlocal count
        count += 1
        far.keep(topic, stored)
        if count <= 500:
            far.receipt(visitor, stored)
        elif count == 900:
            far.on_send = lambda *_: None
            visitor.close()
        return True

    far.on_send = half
    replication.publish(topic, numbered(1_000))
    eventually(lambda: replication.backlog(topic, name) == 0)
    if is_new:
        assert far.payloads(topic) == numbered(1_000)
        assert far.duplicates >= 400
    else:      # which cannot know that it has stored some
        assert [one for n, one in enumerate(far.payloads(topic)) if one not in far.payloads(topic)[:n]] \
            == numbered(1_000)


@pytest.mark.parametrize("code", [api.PersistenceError, api.NotAllowedError, api.ProducerBlockedQuotaExceededException,
                                  api.UnknownError, api.ChecksumError])
def test_a_refused_message_is_sent_again_and_nothing_before_it_is_acknowledged_or_behind_it_is_lost(replication, code):
    name, far = replication.far()
    topic = replication.topic(name)
    refusals = []

    def refuse(visitor, send, stored):
        """Refuse message 100 three times, and store nothing behind it meanwhile, as a broker that fences its topic."""
        if stored.payload == b"100":
            refusals.append(stored.position)
            if len(refusals) <= 3:
                far.refuse(visitor, send, code)
                visitor.producers.pop(send.producer_id)
                return True
        return None

    far.on_send = refuse
    replication.publish(topic, numbered(300))
    arrive(far, topic, numbered(300))
    assert len(refusals) == 4
    epochs = [command.producer.epoch for command in far.commands(T.PRODUCER)]
    assert epochs == [0, 1, 2, 3]
    eventually(lambda: replication.backlog(topic, name) == 0)


def test_a_refused_producer_is_asked_for_ever_more_seldom_with_the_reason_kept(replication):
    name, far = replication.far()
    far.on_producer = lambda *_: (api.ProducerBusy, "it is busy")
    topic = replication.topic(name)
    replication.publish(topic, numbered(10))
    eventually(lambda: len(far.commands(T.PRODUCER)) >= 4)
    lane = replication.failed_lane(topic, name)
    assert lane["error"] == "ProducerBusy: it is busy"
    assert not lane["connected"] and lane["nextTry"] > 0
    far.on_producer = lambda *_: None
    arrive(far, topic, numbered(10))
    assert len(far.commands(T.PRODUCER)) < 20


def test_a_terminated_topic_there_is_told_once_and_asked_once_a_minute(replication):
    name, far = replication.far()
    topic = replication.topic(name)
    far.on_send = lambda visitor, send, stored: far.refuse(visitor, send, api.TopicTerminatedError, "ended") or True
    replication.publish(topic, numbered(3))
    lane = replication.failed_lane(topic, name)
    assert lane["error"] == "the remote refuses a message: TopicTerminatedError: ended"
    told = [line for line in replication.broker.log().splitlines() if "[G542]" in line and topic in line]
    assert len(told) == 1
    assert lane["nextTry"] / 1000 > time.time() + 30
    assert replication.backlog(topic, name) == 3


def test_a_topic_that_is_deleted_there_meanwhile_gets_the_rest_when_it_is_back(replication):
    """What it had confirmed is gone with it; nothing else is lost, and the reason is told once."""
    name, far = replication.far()
    topic = replication.topic(name)
    replication.publish(topic, numbered(20))
    arrive(far, topic, numbered(20))
    eventually(lambda: replication.backlog(topic, name) == 0)
    far.on_producer = lambda *_: (api.TopicNotFound, "the topic was deleted")
    far.forget(topic)
    replication.publish(topic, numbered(30, 20))
    lane = replication.failed_lane(topic, name)
    assert "TopicNotFound: the topic was deleted" in lane["error"] or "unloaded or deleted there" in lane["error"]
    eventually(lambda: replication.backlog(topic, name) == 30)      # what was sent is acknowledged behind it
    far.on_producer = lambda *_: None
    arrive(far, topic, numbered(30, 20))
    eventually(lambda: replication.backlog(topic, name) == 0)
    assert sum("[G542]" in line and topic in line for line in replication.broker.log().splitlines()) <= 1


@pytest.mark.parametrize("lie", ["position", "producer", "garbage", "size", "many"])
def test_a_remote_that_lies_is_left_with_the_reason_and_nothing_is_acknowledged(replication, lie):
    name, far = replication.far()
    topic = replication.topic(name)

    def answer(visitor, send, stored):
        if lie == "position":
            visitor.tell(T.SEND_RECEIPT, producer_id=send.producer_id, sequence_id=5, highest_sequence_id=1 << 40)
        elif lie == "producer":
            visitor.tell(T.SEND_RECEIPT, producer_id=999_999, sequence_id=1)
        elif lie == "garbage":
            visitor.raw(b"\0\0\0\x10\0\0\0\x08" + b"\xff" * 12)
        elif lie == "size":
            visitor.raw(b"\xff\xff\xff\xff")
        else:
            far.receipt(visitor, stored)
            far.receipt(visitor, stored)
        return True

    far.on_send = answer
    replication.publish(topic, numbered(1))
    eventually(lambda: any(word in replication.link(name)["error"] for word in (
        "the remote lies", "never asked for", "cannot be parsed", "a frame of")))
    if lie != "many":      # its first receipt was true
        connections = len(far.commands(T.CONNECT))
        eventually(lambda: len(far.commands(T.CONNECT)) > connections + 1)
        assert replication.backlog(topic, name) == 1
    assert replication.broker.log().count(f"no connection to cluster {name}:") <= 1
    assert f"connection to cluster {name} is back" not in replication.broker.log() or lie == "many"
    assert len(far.commands(T.CONNECT)) < 12
    far.on_send = lambda *_: None
    replication.publish(topic, numbered(20, 1))
    eventually(lambda: far.payloads(topic)[-20:] == numbered(20, 1))
    eventually(lambda: replication.broker.log().count(f"connection to cluster {name} is back") == 1)


def test_a_message_too_large_for_the_remote_stops_the_lane_and_is_not_lost(replication):
    name, far = replication.far()
    far.max_message_size = 1_000
    topic = replication.topic(name)
    payloads = [*numbered(20), b"." * 20_000, b"behind"]
    replication.publish(topic, payloads)
    lane = replication.failed_lane(topic, name)
    assert "and the remote takes" in lane["error"]
    assert far.payloads(topic) == numbered(20)
    eventually(lambda: replication.backlog(topic, name) == 2)      # what was sent is acknowledged behind it
    far.max_message_size = 5 << 20
    replication.know(name, far.url, serviceUrl="http://127.0.0.1:1")      # a changed record begins anew at once
    arrive(far, topic, payloads)


def test_topics_share_few_connections(replication):
    name, far = replication.far()
    topics = [replication.topic(name) for _ in range(40)]
    for topic in topics:
        replication.publish(topic, [b"x"])
    for topic in topics:
        arrive(far, topic, [b"x"])
    assert replication.link(name)["connections"] == len(far.visitors) == 2


def test_a_cursor_that_is_gone_ends_its_lane(replication):
    name, _ = replication.far()
    topic = replication.topic(name)
    eventually(lambda: replication.lane(topic, name).get("connected"))
    place = topic.replace("://", "/")
    assert request("DELETE", f"{replication.broker.http_url}/admin/v2/{place}?force=true")[0] == 204
    eventually(lambda: not replication.lane(topic, name))
    assert replication.link(name)["lanes"] == 0


def test_a_topic_is_looked_up_and_redirections_are_followed(replication):
    name, far = replication.far()
    _, second = replication.far()

    def redirect(visitor, command):
        if command.type == T.LOOKUP:
            visitor.tell(T.LOOKUP_RESPONSE, request_id=command.lookupTopic.request_id, response=0,
                         brokerServiceUrl=second.url, authoritative=True)
        return command.type == T.LOOKUP

    far.on_command = redirect
    topic = replication.topic(name)
    replication.publish(topic, numbered(20))
    arrive(second, topic, numbered(20))
    assert second.commands(T.LOOKUP)[0].lookupTopic.authoritative
    assert not far.stored(topic)
    assert replication.lane(topic, name)["address"] == second.url.rpartition("/")[2]


def test_a_broker_behind_a_proxy_is_reached_through_it(replication):
    name, far = replication.far()

    def behind(visitor, command):
        if command.type == T.LOOKUP:
            visitor.tell(T.LOOKUP_RESPONSE, request_id=command.lookupTopic.request_id, response=1,
                         brokerServiceUrl="pulsar://broker.example.com:6650", proxy_through_service_url=True)
        return command.type == T.LOOKUP

    far.on_command = behind
    topic = replication.topic(name)
    replication.publish(topic, numbered(20))
    arrive(far, topic, numbered(20))
    assert [one.connect.proxy_to_broker_url for one in far.commands(T.CONNECT)] == ["", "broker.example.com:6650"]


def test_statistics_count_what_was_sent_and_nothing_else(start_broker, tmp_path):
    """Entries that name other clusters, or came from one, go through the replicator and are not sent."""
    (tmp_path / "geminga.toml").write_text("[storage]\nstats_window_s = 1\n")
    broker = start_broker("--config", str(tmp_path / "geminga.toml"), "--workers", "1", "--owners", "1")
    replication = Replication(broker)
    try:
        name, far = replication.far()
        topic = replication.topic(name)
        producer = replication.client.create_producer(topic, batching_enabled=False)
        for number in range(10):
            producer.send(b"kept", disable_replication=True)
            producer.send(b"%d" % number)
        arrive(far, topic, numbered(10))
        eventually(lambda: replication.backlog(topic, name) == 0)
        told = replication.figures(topic, name)
        assert told["msgOutCount"] == 10 and 0 < told["bytesOutCount"] < 10 * 1_000
        series = f'pulsar_replication_rate_out{{cluster="standalone",namespace="public/default",topic="{topic}"'

        def only_kept_ones_count_nothing():
            """Whether a second has passed in which nothing was sent, though messages went through the replicator."""
            producer.send(b"kept", disable_replication=True)
            text = request("GET", f"{broker.http_url}/metrics")[1]
            rates = [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(series)]
            return rates == [0.0] and replication.figures(topic, name)["msgRateOut"] == 0.0

        eventually(only_kept_ones_count_nothing)
    finally:
        replication.close()
