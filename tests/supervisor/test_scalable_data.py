"""Data of scalable topics over all segments, sealed ones too: tables, backups, verify, delayed messages, retention."""
import json
import re
import time
import uuid

import duckdb
import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.main import main

from ..harness import Broker, request
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..workers.peer import Peer
from ..workers.test_scalable_topics import create, layout_of, publish, segments_of, url_of

SEGMENTS = 4


@pytest.fixture
def topic(own):
    """A scalable topic of four segments with a message in each, in a namespace of its own that keeps everything."""
    namespace = f"public/d{uuid.uuid4().hex[:10]}"
    url = f"{own.http_url}/admin/v2/namespaces/{namespace}"
    assert request("PUT", url)[0] == 204
    assert request("POST", f"{url}/retention", b'{"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}')[0] == 204
    name = f"topic://{namespace}/data"
    create(own, name, SEGMENTS)
    fill(own, name, "first")
    return name


def fill(broker, name, text):
    """Publish a message to each active segment; return their names."""
    with Peer(broker.service_url) as peer:
        layout = layout_of(peer, name).dag
        active = [segment for segment, one in zip(segments_of(name, layout), layout.segments, strict=True)
                  if one.state == api.ACTIVE]
        for number, segment in enumerate(active):
            publish(peer, segment, f"{text} {number}".encode(), producer_id=number)
    return active


# -- compaction

def publish_keys(broker, name, values, **fields):
    """Publish values of keys, each to the active segment that has the key."""
    with Peer(broker.service_url) as peer:
        layout = layout_of(peer, name).dag
        active = [(one, segment) for segment, one in zip(segments_of(name, layout), layout.segments, strict=True)
                  if one.state == api.ACTIVE]
        for number, (key, value) in enumerate(values.items()):
            hash_of = {"low": 0, "high": 0xffff}[key.partition("-")[0]]
            [segment] = [segment for one, segment in active if one.hash_start <= hash_of <= one.hash_end]
            peer.open_producer(segment, number)
            peer.say(send(entry_of(message_metadata(partition_key=key, **fields), value), producer_id=number))
            assert peer.hear().type == T.SEND_RECEIPT


def compacted_of(broker, name, capsys):
    assert main(["consume", name, "--compacted", "--url", broker.service_url, "-o", "jsonl"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return sorted((one["key"], one["payload"]) for one in found)


def compact_at_night(broker, capsys):
    assert main(["nightly", "--json", "--data-dir", str(broker.data_dir)]) == 0, capsys.readouterr()
    capsys.readouterr()


@pytest.mark.slow
def test_by_event_time_a_message_before_a_split_outdates_a_late_one_behind_it(fresh_broker, monkeypatch, capsys):
    monkeypatch.setenv("GEMINGA_NIGHTLY_ENGINE", "here")
    name, policies = "topic://public/default/timed", f"{fresh_broker.http_url}/admin/v2/namespaces/public/default"
    create(fresh_broker, name, 1)
    assert request("PUT", f"{policies}/compactionThreshold", b"1000000")[0] == 204
    assert request("POST", f"{policies}/compactionOrder", b'"event_time"')[0] == 204
    publish_keys(fresh_broker, name, {"low-a": b"1", "low-b": b"1", "high-a": b"1"}, event_time=5)
    publish_keys(fresh_broker, name, {"low-b": b""}, event_time=6)
    assert request("POST", f"{url_of(fresh_broker, name)}/split/0")[0] == 204
    publish_keys(fresh_broker, name, {"low-a": b"late", "low-b": b"late", "high-b": b"2"}, event_time=4)
    publish_keys(fresh_broker, name, {"high-a": b"2"}, event_time=5)
    compact_at_night(fresh_broker, capsys)
    assert compacted_of(fresh_broker, name, capsys) == [("high-a", "2"), ("high-b", "2"), ("low-a", "1")]


@pytest.mark.slow
def test_a_compacted_topic_has_each_key_once_after_a_split_and_a_kill(fresh_broker, monkeypatch, capsys):
    """By nights and on demand, whichever segment the newest message of a key is in; deleted keys do not come back."""
    monkeypatch.setenv("GEMINGA_NIGHTLY_ENGINE", "here")
    name = "topic://public/default/keyed"
    create(fresh_broker, name, 1)
    assert request("PUT", f"{fresh_broker.http_url}/admin/v2/namespaces/public/default/compactionThreshold",
                   b"1000000")[0] == 204

    publish_keys(fresh_broker, name, {"low-a": b"1", "low-b": b"1", "high-a": b"1", "high-b": b"1"})
    compact_at_night(fresh_broker, capsys)
    assert request("POST", f"{url_of(fresh_broker, name)}/split/0")[0] == 204
    publish_keys(fresh_broker, name, {"low-a": b"", "high-a": b"2"})
    compact_at_night(fresh_broker, capsys)
    left = [("high-a", "2"), ("high-b", "1"), ("low-b", "1")]
    assert compacted_of(fresh_broker, name, capsys) == left
    fresh_broker.kill_supervisor()
    fresh_broker.start()
    assert compacted_of(fresh_broker, name, capsys) == left
    publish_keys(fresh_broker, name, {"low-b": b"", "high-b": b"3"})
    command = ["admin", "--http-url", fresh_broker.http_url, "scalable-topics"]
    assert main([*command, "compact", name]) == 0
    assert main([*command, "compaction-status", name, "--wait-complete"]) == 0
    assert "SUCCESS" in capsys.readouterr().out
    assert compacted_of(fresh_broker, name, capsys) == [("high-a", "2"), ("high-b", "3")]


# -- tables

@pytest.mark.slow
def test_a_night_makes_one_table_of_a_scalable_topic(own, topic, tmp_path, monkeypatch, capsys):
    """Each message is in it once, whatever segments there are, also after a split; none of a topic that it hides is."""
    monkeypatch.setenv("GEMINGA_NIGHTLY_ENGINE", "here")
    monkeypatch.setenv("GEMINGA_NIGHTLY_TABLES_URL", str(tmp_path / "tables"))
    url = f"{own.http_url}/admin/v2/namespaces/{names.parse(topic).namespace}/export"
    assert request("POST", url, b'"messages"')[0] == 204
    hidden = topic.replace("topic:", "persistent:")
    assert request("PUT", f"{own.http_url}/admin/v2/{hidden.replace('://', '/')}")[0] == 204
    with Peer(own.service_url) as peer:
        publish(peer, hidden, b"hidden")
    expected = [f"first {number}" for number in range(SEGMENTS)]
    place = f"{tmp_path}/tables/{topic.removeprefix('topic://')}/messages/day=*/*.parquet"
    for text in ("second", "third"):
        assert main(["nightly", "--json", "--data-dir", str(own.data_dir)]) == 0, capsys.readouterr()
        assert [table["topic"] for table in json.loads(capsys.readouterr().out)["tables"]] == [topic]
        rows = duckdb.sql(f"SELECT decode(_payload) FROM '{place}'").fetchall()
        assert sorted(value for value, in rows) == sorted(expected)
        assert request("POST", f"{url_of(own, topic)}/split/0")[0] in (204, 412)
        expected += [f"{text} {number}" for number in range(len(fill(own, topic, text)))]


@pytest.mark.slow
def test_a_topic_that_was_made_scalable_keeps_its_table(own, topic, made_scalable, tmp_path, monkeypatch, capsys):
    """Each message is in it once, whether it was exported as one of a partition, or comes in a later night."""
    monkeypatch.setenv("GEMINGA_NIGHTLY_ENGINE", "here")
    monkeypatch.setenv("GEMINGA_NIGHTLY_TABLES_URL", str(tmp_path / "tables"))
    name = f"{topic}-regular"
    url = f"{own.http_url}/admin/v2/namespaces/{names.parse(topic).namespace}/export"
    assert request("POST", url, b'"messages"')[0] == 204
    parts = made_scalable.partitions(name)
    place, expected = f"{tmp_path}/tables/{name.removeprefix('topic://')}/messages/day=*/*.parquet", ["a 0", "a 1"]
    for night, known_as in enumerate((name.replace("topic:", "persistent:"), name, name)):
        assert main(["nightly", "--json", "--data-dir", str(own.data_dir)]) == 0, capsys.readouterr()
        tables = json.loads(capsys.readouterr().out)["tables"]
        assert known_as in [table["topic"] for table in tables]
        rows = duckdb.sql(f"SELECT decode(_payload) FROM '{place}'").fetchall()
        assert sorted(value for value, in rows) == expected
        if night == 0:
            made_scalable.fill(parts, "b")
            made_scalable.migrate(name)
        expected = [f"{text} {part}" for text in "abc"[:night + 2] for part in range(2)]
        if night == 1:
            fill(own, name, "c")
    known = json.loads((own.data_dir / "nightly" / "tables.json").read_text())
    assert f"{name} messages" in known and f"{name.replace('topic:', 'persistent:')} messages" not in known


@pytest.fixture
def made_scalable(own):
    return _MadeScalable(own)


class _MadeScalable:
    """Regular topics of two partitions that are made scalable."""

    def __init__(self, broker):
        self.broker = broker

    def partitions(self, name):
        """Create the topic, with a message in each partition, and return the names of these."""
        regular = name.replace("topic:", "persistent:")
        url = f"{self.broker.http_url}/admin/v2/{regular.replace('://', '/')}/partitions"
        assert request("PUT", url, b"2")[0] == 204
        parts = [f"{regular}-partition-{number}" for number in range(2)]
        self.fill(parts, "a")
        return parts

    def fill(self, parts, text):
        with Peer(self.broker.service_url) as peer:
            for number, part in enumerate(parts):
                publish(peer, part, f"{text} {number}".encode(), producer_id=number)

    def migrate(self, name):
        assert request("POST", f"{url_of(self.broker, name)}/migrate?force=true")[0] == 204


# -- backups and files

@pytest.mark.slow
def test_a_backup_has_all_segments_and_their_subscriptions(own, topic, tmp_path, capsys):
    """Taken behind a split; the restored broker delivers what was not acknowledged, and its files are sound."""
    with Peer(own.service_url) as peer:
        first = segments_of(topic, layout_of(peer, topic).dag)[0]
        peer.subscribe(first)
    assert request("POST", f"{url_of(own, topic)}/split/0")[0] == 204
    fill(own, topic, "second")
    before = json.loads(request("GET", url_of(own, topic))[1])
    made, restored = tmp_path / "made", tmp_path / "restored" / "data"
    assert main(["backup", "--data-dir", str(own.data_dir), str(made)]) == 0, capsys.readouterr()
    fill(own, topic, "late")
    assert main(["restore", str(next(made.glob("2*"))), str(restored)]) == 0, capsys.readouterr()
    assert main(["verify", str(restored)]) == 0, capsys.readouterr()
    again = Broker(restored)
    try:
        again.start()
        assert json.loads(request("GET", url_of(again, topic))[1]) == before
        assert sorted(read(again, topic, 2 * SEGMENTS + 1)) == [
            f"{text} {number}" for text, count in (("first", SEGMENTS), ("second", SEGMENTS + 1))
            for number in range(count)]
        assert main(["verify", str(restored)]) == 0, capsys.readouterr()
    finally:
        again.close()


@pytest.mark.slow
def test_a_backup_has_partitions_of_a_topic_that_was_made_scalable(own, topic, made_scalable, tmp_path, capsys):
    """Also one that was killed in the middle, whose start finds partitions that are no topic's but the scalable one's.
    """
    name = f"{topic}-regular"
    parts = made_scalable.partitions(name)
    made_scalable.migrate(name)
    fill(own, name, "b")
    before = json.loads(request("GET", url_of(own, name))[1])
    made, restored = tmp_path / "made", tmp_path / "restored" / "data"
    assert main(["backup", "--data-dir", str(own.data_dir), str(made)]) == 0, capsys.readouterr()
    assert main(["restore", str(next(made.glob("2*"))), str(restored)]) == 0, capsys.readouterr()
    assert main(["verify", str(restored)]) == 0, capsys.readouterr()
    again = Broker(restored)
    try:
        again.start()
        assert json.loads(request("GET", url_of(again, name))[1]) == before
        assert before["segments"]["0"]["legacyTopicName"] == parts[0]
        assert sorted(read(again, name, 4)) == ["a 0", "a 1", "b 0", "b 1"]
    finally:
        again.close()


# -- delayed messages and retention

def test_delayed_messages_of_a_sealed_segment_are_delivered_in_time(own, topic):
    due_ms = time.time_ns() // 1_000_000 + 1_500
    with Peer(own.service_url) as peer:
        first = segments_of(topic, layout_of(peer, topic).dag)[0]
        peer.say(command(T.SUBSCRIBE, topic=first, subscription="shared", subType=api.CommandSubscribe.Shared,
                         consumer_id=1, request_id=1, initialPosition=api.CommandSubscribe.Latest))
        assert peer.hear().type == T.SUCCESS
        peer.open_producer(first, 9)
        peer.say(send(entry_of(message_metadata(deliver_at_time=due_ms), b"delayed"), producer_id=9))
        assert peer.hear().type == T.SEND_RECEIPT
        assert request("POST", f"{url_of(own, topic)}/split/0")[0] == 204
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=10))
        heard = peer.hear_frame()
        while heard[0].type != T.MESSAGE:
            assert heard[0].type in (T.SEND_ERROR, T.CLOSE_PRODUCER, T.SCALABLE_TOPIC_UPDATE)
            heard = peer.hear_frame()
        assert heard[1].endswith(b"delayed") and time.time_ns() // 1_000_000 >= due_ms


def test_retention_keeps_what_a_sealed_segment_has(own, topic):
    assert request("POST", f"{url_of(own, topic)}/split/0")[0] == 204
    assert sorted(read(own, topic, SEGMENTS)) == [f"first {number}" for number in range(SEGMENTS)]


def read(broker, topic, count):
    """Return as many payloads as new readers of all segments get."""
    with Peer(broker.service_url) as peer:
        segments = segments_of(topic, layout_of(peer, topic).dag)
        for number, segment in enumerate(segments):
            peer.say(command(T.SUBSCRIBE, topic=segment, subscription="reader", durable=False, consumer_id=number,
                             subType=api.CommandSubscribe.Exclusive, request_id=number,
                             initialPosition=api.CommandSubscribe.Earliest))
            while (answer := peer.hear()).type == T.REACHED_END_OF_TOPIC:      # of an empty segment that is sealed
                pass
            assert answer.type == T.SUCCESS, answer
        payloads = []
        for number in range(len(segments)):
            peer.say(command(T.FLOW, consumer_id=number, messagePermits=100))
        while len(payloads) < count:
            heard, entry = peer.hear_frame()
            if heard.type == T.MESSAGE:
                payloads.append(re.search(rb"[a-z]+ [0-9]+\Z", entry)[0].decode())
        return payloads
