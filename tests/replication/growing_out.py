"""A topic moves to another cluster for good while it is used: its clients follow by TOPIC_MIGRATED."""
import threading
from collections.abc import Callable

import pulsar

from ..harness import HANG_MS, HANG_SECONDS, eventually, unique_topic

Ask = Callable[..., object]      # (method, path below /admin/v2, body)
NAMESPACE = "public/growing"


def both_know_the_namespace(asks: dict[str, Ask]) -> None:
    """Make the namespace in both clusters, each of which has a record of the other, and replicate it both ways."""
    for ask in asks.values():
        ask("PUT", f"namespaces/{NAMESPACE}")
        ask("POST", f"namespaces/{NAMESPACE}/replication", [*asks])


def move_while_used(client: pulsar.Client, old: tuple[str, Ask], url: str, told: Callable[[str], bool],
                    count: int = 3_000) -> tuple[list[int], str]:
    """Publish and consume numbers, and move the namespace half-way.  Return the numbers that came, and the topic.

    client: of the old cluster.  old: its name, and how to ask it.  url: of the new one's broker.  told: whether the new
    one has the subscription of a topic.
    """
    name, ask = old
    topic = unique_topic("growing").replace("public/default", NAMESPACE)
    consumer = client.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest,
                                replicate_subscription_state_enabled=True)
    producer = client.create_producer(topic, batching_enabled=False)
    half_way, may_go_on = threading.Event(), threading.Event()

    def publish() -> None:
        for number in range(count):
            producer.send(b"%d" % number)
            if number == count // 2:
                half_way.set()
                may_go_on.wait(HANG_SECONDS)

    publishing = threading.Thread(target=publish)
    publishing.start()
    found: list[int] = []

    def take(number: int) -> None:
        while number not in found[-1:]:
            message = consumer.receive(HANG_MS)
            consumer.acknowledge(message)
            found.append(int(message.data()))

    take(count // 2)
    assert half_way.wait(HANG_SECONDS)
    eventually(lambda: told(topic), what="the other cluster is told of the subscription")
    ask("POST", f"clusters/{name}/migrate?migrated=false", {"serviceUrl": "http://unused", "brokerServiceUrl": url})
    ask("POST", f"namespaces/{NAMESPACE}/migration", True)
    may_go_on.set()
    take(count - 1)
    publishing.join(HANG_SECONDS)
    assert not publishing.is_alive()
    consumer.close()
    producer.close()
    return found, topic


def check(found: list[int], count: int = 3_000) -> None:
    """Nothing is lost, everything comes in order, and again comes what was behind the last snapshot at most."""
    assert set(found) == set(range(count))
    firsts = list(dict.fromkeys(found))
    assert firsts == sorted(firsts)
