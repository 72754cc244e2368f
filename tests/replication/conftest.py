"""A broker, another cluster that a script plays, and topics that are replicated to it."""
import asyncio
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pulsar
import pytest

from geminga.workers.replication import reports

from ..harness import Broker, eventually, request, unique_topic
from .far import FarCluster

_NUMBERS = itertools.count()


def replicate(broker: Broker, topic: str, *remotes: str) -> None:
    """Make a topic, and have it go to other clusters, which have records."""
    _asked("PUT", f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}")
    set_clusters(broker, topic, *remotes)


def set_clusters(broker: Broker, topic: str, *remotes: str, partitions: Iterable[int] = (), opens: bool = True) -> None:
    """Have a topic go to other clusters, and open it, or some of its partitions: then they have their cursors."""
    admin, path = f"{broker.http_url}/admin/v2", topic.replace("://", "/")
    own = json.loads(_asked("GET", f"{admin}/clusters"))
    _asked("POST", f"{admin}/tenants/public", {"allowedClusters": own})
    [local] = json.loads(_asked("GET", f"{admin}/namespaces/public/default/replication"))
    _asked("POST", f"{admin}/{path}/replication", [local, *remotes])
    for opened in ([f"{path}-partition-{number}" for number in partitions] or [path]) if opens else ():
        _asked("GET", f"{admin}/{opened}/stats")


def _asked(method: str, url: str, body: object = None) -> str:
    status, text = request(method, url, b"" if body is None else json.dumps(body).encode())
    assert status in (200, 204), (method, url, status, text)
    return text


class Replication:
    """A broker that replicates topics to clusters that scripts play."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self.fars: list[FarCluster] = []

    def far(self, *, is_new: bool = True, is_known: bool = True, **record: object) -> tuple[str, FarCluster]:
        """Return (name, cluster) of a new other cluster, which has a record here."""
        far, name = FarCluster(is_new=is_new), f"far-{next(_NUMBERS)}"
        self.fars.append(far)
        if is_known:
            self.know(name, far.url, **record)
        return name, far

    def know(self, name: str, url: str, **record: object) -> None:
        """Make or change the record of a cluster.  url: of its broker, with TLS or without."""
        place = f"{self.broker.http_url}/admin/v2/clusters/{name}"
        if url.startswith("pulsar+ssl:"):
            record |= {"brokerServiceUrlTls": url, "brokerClientTlsEnabled": True}
        else:
            record["brokerServiceUrl"] = url
        body = json.dumps(record)
        status, text = request("PUT", place, body.encode())
        if status == 409:
            status, text = request("POST", place, body.encode())
        assert status == 200, text

    def topic(self, *remotes: str, hint: str = "replicated") -> str:
        topic = unique_topic(hint)
        replicate(self.broker, topic, *remotes)
        return topic

    def publish(self, topic: str, payloads: list[bytes], key: str | None = None, **options: object) -> None:
        """Publish messages without batches, and wait for all receipts."""
        producer = self.client.create_producer(topic, **{"batching_enabled": False, "block_if_queue_full": True}
                                               | options)
        for payload in payloads:
            producer.send_async(payload, _ignore, partition_key=key)
        producer.flush()
        producer.close()

    def lane(self, topic: str, remote: str) -> dict:
        """Return the state of a lane; {} while there is none."""
        try:
            return asyncio.run(reports.lanes(self.broker.data_dir, [topic])).get((topic, remote), {})
        except reports.NoReplicator:
            return {}

    def failed_lane(self, topic: str, remote: str) -> dict:
        """Return the state of a lane that stopped with an error; a new lane waits for its connection without one."""
        return eventually(lambda: (it := self.lane(topic, remote)).get("state") == "waiting" and it["error"] and it)

    def link(self, remote: str) -> dict:
        """Return the state of the connections to a cluster; one without an error while there are none."""
        none = {"error": "", "connected": False}
        try:
            return asyncio.run(reports.ask(self.broker.data_dir, []))[0].get(remote, none)
        except reports.NoReplicator:      # it starts when it is first needed
            return none

    def backlog(self, topic: str, remote: str) -> int:
        """Return the messages that wait for a cluster, -1 while the topic's owner is being started."""
        status, text = request("GET", f"{self.broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats")
        if status == 503:
            return -1
        assert status == 200, text
        return json.loads(text)["replication"][remote]["replicationBacklog"]

    def figures(self, topic: str, remote: str) -> dict:
        """Return the statistics of a topic for a cluster."""
        path = topic.replace("://", "/")
        return json.loads(_asked("GET", f"{self.broker.http_url}/admin/v2/{path}/stats"))["replication"][remote]

    def why(self, topic: str, remote: str) -> dict:
        """Return what keeps messages from a cluster."""
        path = topic.replace("://", "/")
        [told] = json.loads(_asked("GET", f"{self.broker.http_url}/ops/v1/why/{path}/pulsar.repl.{remote}"))
        return told

    def close(self) -> None:
        self.client.close()
        for far in self.fars:
            far.close()


def _ignore(*_: object) -> None:
    pass


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def arrive(far: FarCluster, topic: str, payloads: list[bytes], seconds: float = 30) -> None:
    """Wait until the cluster has exactly these messages, in order."""
    eventually(lambda: len(far.stored(topic)) >= len(payloads), seconds, f"{len(payloads)} messages at the remote")
    assert far.payloads(topic) == payloads


@pytest.fixture(scope="module")
def replicating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(Path(tmp_path_factory.mktemp("r")) / "data", "--workers", "2", "--owners", "2").start()
    yield broker
    broker.close()


@pytest.fixture
def replication(replicating: Broker) -> Iterator[Replication]:
    made = Replication(replicating)
    yield made
    made.close()
