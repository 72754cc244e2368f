"""Acknowledged messages come again to a client that seeks back, and to a reader that begins late."""
import json

import pulsar
import pytest

from ..harness import HANG_MS, eventually, path_of, request, unique_topic

COUNT = 20
CONFIG = """stats_window_s = 1
disk_refuse_below_bytes = 0
disk_accept_above_bytes = 1048576      # so that no disk is short
"""


def stats(broker, topic):
    return json.loads(request("GET", f"{broker.http_url}/admin/v2/{path_of(topic)}/stats")[1])


def let_owner_tick(broker, client):
    """Publish to another topic until its rate, which a tick of the owner computes, says that there was one."""
    topic = unique_topic("other")
    producer = client.create_producer(topic)

    def is_counted():
        producer.send(b"x")
        return stats(broker, topic)["msgRateIn"] > 0

    eventually(is_counted, what="a tick after the acknowledgements")


@pytest.mark.parametrize(("keeps", "count"), [("", COUNT), ("keep_acknowledged_s = 0", 0)], ids=["kept", "freed"])
def test_acknowledged_messages_come_again(start_broker, connect, tmp_path, keeps, count):
    (tmp_path / "geminga.toml").write_text(f"owners = 1\n[storage]\n{CONFIG}{keeps}\n")
    broker = start_broker("--config", str(tmp_path / "geminga.toml"))
    client, topic = connect(broker.service_url), unique_topic("kept")
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    for number in range(COUNT):
        producer.send(b"%06d" % number * 17_000)
    for _ in range(COUNT):
        consumer.acknowledge(consumer.receive(HANG_MS))
    eventually(lambda: stats(broker, topic)["subscriptions"]["sub"]["msgBacklog"] == 0, what="all acknowledged")
    let_owner_tick(broker, client)

    consumer.seek(pulsar.MessageId.earliest)
    assert stats(broker, topic)["subscriptions"]["sub"]["msgBacklog"] == count
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    producer.send(b"last")
    for receive in (consumer.receive, reader.read_next):
        bodies = [receive(HANG_MS).data() for _ in range(count + 1)]
        assert bodies == [b"%06d" % number * 17_000 for number in range(COUNT)][:count] + [b"last"]
