"""Two brokers that replicate to each other: each has all messages once, whatever is killed on either side."""
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from ..harness import HANG_MS, Broker, eventually, request, unique_topic
from . import growing_out

NAMES = "west", "east"


class Site:
    """One of the two brokers, with a client."""

    def __init__(self, folder: Path, name: str) -> None:
        configuration = folder / f"{name}.toml"
        configuration.write_text(f'cluster_name = "{name}"\n')
        self.name = name
        self.broker = Broker(folder / name, "--config", str(configuration), "--workers", "1", "--owners", "2").start()
        self.client = pulsar.Client(self.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def ask(self, method: str, path: str, body: object = None) -> str:
        status, text = request(method, f"{self.broker.http_url}/admin/v2/{path}",
                               None if body is None else json.dumps(body).encode())
        assert status in (200, 204), (method, path, status, text)
        return text

    def know(self, other: "Site") -> None:
        """Keep a record of the other site, and replicate the namespace to it."""
        self.ask("PUT", f"clusters/{other.name}", {"brokerServiceUrl": other.broker.service_url,
                                                   "serviceUrl": other.broker.http_url})
        self.ask("POST", "tenants/public", {"allowedClusters": [*NAMES]})
        self.ask("POST", "namespaces/public/default/replication", [*NAMES])

    def publish(self, topic: str, payloads: list[bytes], **options: object) -> None:
        producer = self.client.create_producer(topic, **{"batching_enabled": False, "block_if_queue_full": True}
                                               | options)
        results: list[pulsar.Result] = []
        for payload in payloads:
            producer.send_async(payload, lambda result, _: results.append(result))
        producer.flush()
        producer.close()
        assert results == [pulsar.Result.Ok] * len(payloads)

    def consumer(self, topic: str, *, is_replicated: bool = False) -> pulsar.Consumer:
        """Subscribe, so that the topic keeps what is published from now on."""
        return self.client.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest,
                                     replicate_subscription_state_enabled=is_replicated)

    def backlog(self, topic: str) -> int:
        """Return the messages that the subscription has not acknowledged, -1 while there is none."""
        status, text = request("GET", f"{self.broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats")
        subscriptions = json.loads(text)["subscriptions"] if status == 200 else {}
        return int(subscriptions["all"]["msgBacklog"]) if "all" in subscriptions else -1

    def waits(self, topic: str) -> int:
        """Return how many entries of a topic the other site does not have, -1 while an owner is being started."""
        status, text = request("GET", f"{self.broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats")
        if status == 503:
            return -1
        [told] = [one for one in json.loads(text)["replication"].values() if "replicationBacklogSize" in one]
        return int(told["replicationBacklog"])

    def close(self) -> None:
        self.client.close()
        self.broker.close()


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    made = [Site(tmp_path_factory.mktemp("sites"), name) for name in NAMES]
    for one, other in itertools.permutations(made):
        one.know(other)
    yield made[0], made[1]
    for site in made:
        site.close()


def payloads_of(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """Return so many messages, behind which nothing more comes.

    A consumer whose broker was killed may get the same message again, by the same id.
    """
    found: dict[tuple[int, int, int, int], bytes] = {}
    while True:
        try:
            message = consumer.receive(HANG_MS if len(found) < count else 300)
        except pulsar.Timeout:
            break
        at = message.message_id()
        found.setdefault((at.partition(), at.ledger_id(), at.entry_id(), at.batch_index()), message.data())
        consumer.acknowledge(message)
    assert len(found) == count
    return list(found.values())


def by_name(payloads: list[bytes]) -> dict[str, list[int]]:
    """Return the numbers of each site's messages, in the order of their coming."""
    return {name: [int(one.split()[1]) for one in payloads if one.startswith(name.encode())] for name in NAMES}


def everything(count: int) -> dict[str, list[int]]:
    """Return what `by_name` does when so many messages of each site are there, in order."""
    return {name: list(range(count)) for name in NAMES}


@pytest.mark.slow
def test_messages_go_both_ways_and_not_round(sites):
    topic = unique_topic("mirrored")
    consumers = {site: site.consumer(topic) for site in sites}
    for site in sites:
        site.publish(topic, [b"%s %d" % (site.name.encode(), number) for number in range(500)], batching_enabled=True)
    for site in sites:
        eventually(lambda: site.waits(topic) == 0)      # noqa: B023 - called in this round
    assert [by_name(payloads_of(consumers[site], 1_000)) for site in sites] == [everything(500)] * 2


def test_a_message_of_the_largest_size_goes_over(sites):
    west, east = sites
    topic, payload = unique_topic("large"), random.Random(1).randbytes((5 << 20) - 200)
    consumer = east.consumer(topic)
    west.publish(topic, [payload, b"small"])
    assert payloads_of(consumer, 2) == [payload, b"small"]


def test_partitions_are_made_at_the_other_site(sites):
    west, east = sites
    topic = unique_topic("parts")
    west.ask("PUT", f"{topic.replace('://', '/')}/partitions", 3)
    west.publish(topic, [b"%d" % number for number in range(100)])
    eventually(lambda: topic in json.loads(east.ask("GET", "persistent/public/default/partitioned")))
    assert json.loads(east.ask("GET", f"{topic.replace('://', '/')}/partitions"))["partitions"] == 3
    assert sorted(payloads_of(east.consumer(topic), 100), key=int) == [b"%d" % number for number in range(100)]


@pytest.mark.slow
def test_kills_on_both_sides_lose_nothing_and_store_nothing_twice(sites):
    topic, dice, rounds = unique_topic("killed"), random.Random(7), ["replicator", "owner", "worker"] * 3
    consumers = {site: site.consumer(topic) for site in sites}
    for number, victim in enumerate(rounds):
        for site in sites:
            site.publish(topic, [b"%s %d" % (site.name.encode(), 700 * number + each) for each in range(700)])
        site = dice.choice(sites)
        pid = site.broker.kill(victim)
        site.broker.wait_replaced(victim, 0, pid)
    for site in sites:
        eventually(lambda: site.waits(topic) == 0)      # noqa: B023 - called in this round
    count = 700 * len(rounds)
    assert [by_name(payloads_of(consumers[site], 2 * count)) for site in sites] == [everything(count)] * 2


def take(consumer: pulsar.Consumer, wanted: set[bytes]) -> list[bytes]:
    """Consume until all of these messages have come, and return what has come."""
    found: list[bytes] = []
    while not wanted <= set(found):
        message = consumer.receive(HANG_MS)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


@pytest.mark.slow
def test_a_consumer_that_moves_between_killed_sites_loses_nothing_and_sees_little_again(sites):
    """What it sees again has come since the other site was last told of everything."""
    topic, at, there = unique_topic("moving"), *sites
    consumer = at.consumer(topic, is_replicated=True)

    def publish(text: str) -> set[bytes]:
        payloads = {site: [f"{site.name} {text} {number}".encode() for number in range(50)] for site in sites}
        for site in sites:
            site.publish(topic, payloads[site])
        return {payload for some in payloads.values() for payload in some}

    late: set[bytes] = set()      # consumed when the other site may not have been told any more
    for turn, (victim, is_here) in enumerate((("owner", True), ("replicator", False), ("worker", False),
                                              ("owner", False), ("replicator", True))):
        told = publish(f"{turn} told")
        found = take(consumer, told)
        assert set(found) <= told | late, "it sees what the other site had been told of"
        eventually(lambda: there.backlog(topic) == 0, what="the other site is told")      # noqa: B023 - this round's
        late = publish(f"{turn} late")
        assert set(take(consumer, late)) <= late
        consumer.close()
        victims = (at if is_here else there).broker
        victims.wait_replaced(victim, 0, victims.kill(victim))
        at, there = there, at
        consumer = at.consumer(topic, is_replicated=True)


@pytest.mark.slow
def test_a_topic_moves_to_the_other_site_for_good_while_it_is_used(sites):
    old, new = sites
    growing_out.both_know_the_namespace({site.name: site.ask for site in sites})
    found, topic = growing_out.move_while_used(old.client, (old.name, old.ask), new.broker.service_url,
                                               lambda topic: new.backlog(topic) == 0)
    growing_out.check(found)
    stats = json.loads(new.ask("GET", f"{topic.replace('://', '/')}/stats"))
    assert stats["msgInCounter"] == 3_000      # each message is there once
    assert old.backlog(topic) == 0 and old.waits(topic) == 0
