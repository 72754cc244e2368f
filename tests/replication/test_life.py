"""Failures of processes and links: nothing lost, nothing twice at a remote that knows positions, order kept."""
import random

import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..harness import eventually
from .conftest import arrive, numbered


def test_a_remote_that_is_away_costs_few_tries_and_is_told_once(replication):
    name, far = replication.far(is_known=False)
    port = far.port
    far.close()
    replication.know(name, f"pulsar://127.0.0.1:{port}")
    topics = [replication.topic(name) for _ in range(5)]
    for topic in topics:
        replication.publish(topic, numbered(10))
    link = eventually(lambda: (link := replication.link(name)).get("error") and link)
    assert "Connection refused" in link["error"] and not link["connected"] and link["downSince"]
    told = eventually(lambda: (told := replication.figures(topics[0], name)).get("lastError") and told)
    assert not told["connected"] and "Connection refused" in told["lastError"] and told["replicationBacklog"] == 10
    assert "Connection refused" in replication.why(topics[0], name)["causes"][0]["error"]
    back = type(far)(port=port)
    replication.fars.append(back)
    for topic in topics:
        arrive(back, topic, numbered(10), 60)
    told = replication.figures(topics[0], name)
    assert told["connected"] and told["outboundConnection"] == f"127.0.0.1:{port}" and told["outboundConnectedSince"]
    log = replication.broker.log()
    assert log.count(f"no connection to cluster {name}:") == 1
    assert log.count(f"the connection to cluster {name} is back") == 1


@pytest.mark.parametrize("url", [f"pulsar://{'a' * 70}.invalid:1", "pulsar://h\xf6st\u2024invalid:1"])
def test_an_address_that_is_no_name_is_the_remotes_fault(replication, url):
    name, _ = replication.far(is_known=False)
    replication.know(name, url)
    replication.publish(replication.topic(name), numbered(1))
    link = eventually(lambda: (link := replication.link(name)).get("error") and link)
    assert not link["connected"] and "this broker's own" not in link["error"]
    assert "G290" not in replication.broker.log()


def test_a_broken_address_in_a_remotes_answer_is_the_remotes_fault(replication):
    name, far = replication.far()

    def answer(visitor, command):
        if command.type != api.BaseCommand.LOOKUP:
            return False
        visitor.tell(api.BaseCommand.LOOKUP_RESPONSE, request_id=command.lookupTopic.request_id, response=1,
                     authoritative=True, proxy_through_service_url=True, brokerServiceUrl="pulsar://[::1:6650")
        return True

    far.on_command = answer
    topic = replication.topic(name)
    replication.publish(topic, numbered(1))
    lane = eventually(lambda: (lane := replication.lane(topic, name)).get("error") and lane)
    assert "the remote names 'pulsar://[::1:6650', which is no address" in lane["error"]
    assert "G290" not in replication.broker.log()


def test_kills_at_any_moment_lose_nothing_and_send_nothing_twice(replication):
    """The replicator is killed while messages flow, again and again; then a worker and an owner."""
    name, far = replication.far()
    topics = [replication.topic(name) for _ in range(3)]
    dice = random.Random(5)
    sent = 0
    for victim in ["replicator"] * 6 + ["worker", "owner"]:
        for topic in topics:
            replication.publish(topic, numbered(1_500, sent), block_if_queue_full=True)
        sent += 1_500
        wanted = sent - dice.randrange(1_400)
        eventually(lambda: len(far.stored(topics[0])) >= wanted)      # noqa: B023 - called in this round
        pid = replication.broker.kill(victim)
        replication.broker.wait_replaced(victim, 0, pid)
    for topic in topics:
        arrive(far, topic, numbered(sent), 60)
        eventually(lambda: replication.backlog(topic, name) == 0)      # noqa: B023 - likewise
    for topic in topics:
        positions = [one.position for one in far.stored(topic)]
        assert positions == sorted(set(positions))


def test_what_was_acknowledged_is_not_sent_again_after_a_kill(replication):
    name, far = replication.far()
    topic = replication.topic(name)
    replication.publish(topic, numbered(500))
    arrive(far, topic, numbered(500))
    eventually(lambda: replication.backlog(topic, name) == 0)
    pid = replication.broker.kill("replicator")
    replication.broker.wait_replaced("replicator", 0, pid)
    replication.publish(topic, numbered(10, 500))
    arrive(far, topic, numbered(510))
    assert far.duplicates == 0
