"""Partitioned topics at another cluster: made, enlarged and looked at there, as long as they are replicated.

A partition is replicated as a topic of its own, and a broker makes no partition at its first use.  So the partitioned
topic is made over HTTP, as Pulsar's brokers do for each other: as soon as it is replicated, as a consumer there would
make a topic without partitions otherwise, and again before lanes of its partitions open, as it may have been deleted.

Only the number of partitions that the cluster then says counts.  Pulsar 5.0 answers a PUT for a topic that exists as if
it had done it, and makes the further partitions as topics that do not belong to it.
"""
import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import click

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.stored_policies import REPLICATION
from geminga.storage.runtime.log import log
from geminga.workers.pulsar_client import rest
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.replication.backoff import Backoff, slow_s
from geminga.workers.replication.channel import RemoteSide
from geminga.workers.replication.lane import LinkDown, Standstill
from geminga.workers.replication.records import ClusterAddresses

_REQUEST_S = 30.0
_FRESH_S = 1.0               # for which a count counts, so that lanes of many partitions that open together ask once
_LOOK_S = 60.0               # between two looks whether a topic is still there
# From a producer that was closed there to the next look: Pulsar deletes partitions before their partitioned topic.
_SOON_S = 3.0
_UNDER_WAY = float("inf")
_NOT_FOUND, _CONFLICT = 404, 409


def replicated(catalogue: Catalogue, own: str) -> dict[str, set[str]]:
    """Return {other cluster: partitioned topics whose messages go there}.  own: this cluster.  Raises StorageFull."""
    lists = catalogue.policies.everywhere(REPLICATION)
    in_force: dict[str, list[str]] = {}
    for scope, clusters in lists.items():
        if "://" not in scope and set(clusters) - {own}:
            in_force |= dict.fromkeys(catalogue.topics.partitioned_names(scope), clusters)
    for scope, clusters in lists.items():
        if "://" in scope and catalogue.topics.partition_count(names.parse(scope)):
            in_force[scope] = clusters
    topics: dict[str, set[str]] = {}
    for topic, clusters in in_force.items():
        if names.parse(topic).is_persistent and not names.is_system(topic):
            for cluster in set(clusters) - {own}:
                topics.setdefault(cluster, set()).add(topic)
    return topics


class PartitionedTopics:
    """Partitioned topics that have been seen at one other cluster."""

    def __init__(self, catalogue: Catalogue, cluster: str) -> None:
        self._catalogue, self._cluster = catalogue, cluster
        self._loop = asyncio.get_running_loop()
        self._seen: dict[TopicName, tuple[int, float]] = {}      # (partitions there, when) of the last look
        self._locks: dict[TopicName, asyncio.Lock] = {}

    def forget(self) -> None:
        """Look at all topics again: the cluster's record has changed."""
        self._seen.clear()

    def wanted(self, topic: TopicName) -> int:
        """Return the number of partitions that a topic has here.  Raises StorageFull."""
        return self._catalogue.topics.partition_count(topic) or 0

    def doubt(self, topic: TopicName) -> None:
        """Look at the topic before the next lane of it opens, however long the last look is ago."""
        if topic in self._seen:
            self._seen[topic] = self._seen[topic][0], float("-inf")

    def is_missing(self, topic: TopicName) -> bool:
        """Whether the last look found no partitioned topic of that name there."""
        return not self._seen.get(topic, (0, 0.0))[0]

    async def make(self, topic: TopicName, least: int, place: ClusterAddresses, side: RemoteSide) -> None:
        """Have a partitioned topic there with at least so many partitions; one that has fewer gets as many as here.

        Raises ClientError, Standstill.
        """
        async with self._locks.setdefault(topic, asyncio.Lock()):
            there, seen_s = self._seen.get(topic, (0, 0.0))
            if there >= least and self._loop.time() - seen_s < _FRESH_S:
                return
            had, there = there, await partitions_there(side, str(topic))
            self._seen[topic] = there, self._loop.time()
            if had and not there:
                log.warning(f"partitioned topic {topic} was deleted at cluster {self._cluster}", code="G542",
                            topic=topic, cluster=self._cluster)
            if there < least:
                wanted = max(self.wanted(topic), least)
                if not place.admin_url:
                    raise Standstill(f"{topic} has {there} partitions there and {wanted} here, and the cluster's "
                                     "record has no serviceUrl by which it could be made")
                there = await _in_thread(partial(_make, topic, there, wanted, place))
                self._seen[topic] = there, self._loop.time()
        self._locks.pop(topic, None)


class Side(Protocol):
    """What the upkeep of partitioned topics uses of its cluster."""

    name: str

    async def keep(self, topic: TopicName, least: int) -> None:
        """Ensure that the other cluster has the partitioned topic, with at least that many partitions.

        Raises LinkDown, ClientError, Standstill.
        """
    def stands_still(self, topic: TopicName, why: str) -> None:
        """Stop the lanes of a partitioned topic that is not there."""
    def wait_for_link(self, waiting: "Upkeep") -> float: ...


class Upkeep:
    """Partitioned topics of one other cluster, made there when they are replicated, and looked at each minute."""

    def __init__(self, side: Side, topics: PartitionedTopics) -> None:
        self._side, self._topics = side, topics
        self._loop = asyncio.get_running_loop()
        self._due_s: dict[TopicName, float] = {}           # of the next look
        self._counts: dict[TopicName, int] = {}            # partitions here
        self._failures: dict[TopicName, tuple[Backoff, str]] = {}
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Upkeep {len(self._due_s)} topics>"

    def follow(self, topics: Iterable[TopicName]) -> None:
        """Follow the catalogue: the partitioned topics that are replicated to the cluster now.  Raises StorageFull."""
        counts = {topic: self._topics.wanted(topic) for topic in topics}
        for gone in self._due_s.keys() - counts.keys():
            del self._due_s[gone]
            self._failures.pop(gone, None)
        for topic in [topic for topic, count in counts.items() if self._counts.get(topic) != count]:
            self._due_s[topic] = 0.0
        self._counts = counts
        self.start()

    def look_soon(self, topic: TopicName) -> None:
        """Look at a topic in some seconds, as something has happened to a partition of it there."""
        if topic in self._due_s:
            due_s = self._due_s[topic]
            self._due_s[topic] = min(due_s, self._loop.time() + _SOON_S)

    def begin_anew(self) -> None:
        """Look at all topics now: the cluster's record has changed."""
        self._failures.clear()
        self._due_s = dict.fromkeys(self._due_s, 0.0)
        self.start()

    def start(self) -> None:
        """Look at the topics that are due."""
        now = self._loop.time()
        if self._task is None and any(due <= now for due in self._due_s.values()):
            self._task = self._loop.create_task(self._work())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            now = self._loop.time()
            for topic in [topic for topic, due in self._due_s.items() if due <= now]:
                await self._keep(topic)
        except LinkDown:
            self._side.wait_for_link(self)
        finally:
            self._task = None

    async def _keep(self, topic: TopicName) -> None:
        """Look at one topic, and say when to look again.  Raises LinkDown."""
        backoff, logged = self._failures.pop(topic, (Backoff(), ""))
        again_s = _LOOK_S
        if topic in self._due_s:
            self._due_s[topic] = _UNDER_WAY
        try:
            await self._side.keep(topic, self._counts.get(topic, 0))
        except LinkDown:
            if topic in self._due_s:
                self._due_s[topic] = 0.0
            raise
        except Standstill as error:
            again_s = self._failed(topic, str(error), backoff, logged, slow_s())
            if self._topics.is_missing(topic):
                self._side.stands_still(topic, str(error))
        except (ClientError, OSError, TimeoutError) as error:
            again_s = self._failed(topic, str(error) or type(error).__name__, backoff, logged, backoff.next_s())
        except Exception as error:
            log.error(f"a partitioned topic cannot be made at cluster {self._side.name}: {error!r}", code="G290",
                      topic=topic)
        if self._due_s.get(topic) == _UNDER_WAY:      # else something has asked for another look meanwhile
            self._due_s[topic] = self._loop.time() + again_s

    def _failed(self, topic: TopicName, why: str, backoff: Backoff, logged: str, again_s: float) -> float:
        """Note a failure, which the log is told once, and return the seconds until the next try."""
        if why != logged:
            log.warning(f"a partitioned topic is not at cluster {self._side.name} as it is here: {why}", code="G542",
                        topic=topic, cluster=self._side.name)
        if topic in self._due_s:
            self._failures[topic] = backoff, why
        return again_s


async def _in_thread(work: Callable[[], int]) -> int:
    """Do work that waits for the network in a thread, for whose end a stop of the process does not wait."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[int] = loop.create_future()

    def settle(count: int, error: BaseException | None) -> None:
        if not done.done():
            done.set_result(count) if error is None else done.set_exception(error)

    def run() -> None:
        count, error = 0, None
        try:
            count = work()
        except Exception as failed:
            error = failed
        with contextlib.suppress(RuntimeError):      # the loop is closed
            loop.call_soon_threadsafe(settle, count, error)

    threading.Thread(target=run, daemon=True).start()
    return await done


def _make(topic: TopicName, there: int, wanted: int, place: ClusterAddresses) -> int:
    """Make a partitioned topic over HTTP, or enlarge it, and return its partitions there.

    there: their number now.  Raises ClientError, Standstill.
    """
    path = f"/admin/v2/{rest.topic_path(str(topic))}/partitions"
    try:
        broker = rest.Broker(place.admin_url, _REQUEST_S, place.credentials)
        if not there:
            there = _create(broker, path, topic, wanted)
        if there < wanted:
            # By force, as partitions may be there that do not belong to it, which hold what was replicated before.
            broker.ask("POST", path, {"updateLocalTopicOnly": True, "force": True}, wanted)
            there = _count(broker, path) or 0
    except (rest.Refused, rest.NotReachable) as error:
        raise ClientError(f"making the partitioned topic there: {error}") from None
    except click.UsageError as error:      # credentials of the record
        raise ClientError(f"making the partitioned topic there: {error.message}") from None
    if there < wanted:
        raise ClientError(f"{topic} still has {there} partitions there, after its cluster said that it has {wanted}")
    return there


def _create(broker: rest.Broker, path: str, topic: TopicName, wanted: int) -> int:
    """Make a partitioned topic, and return its partitions there.  Raises Standstill, Refused, NotReachable."""
    why = ""
    try:
        broker.ask("PUT", path, {"createLocalTopicOnly": True}, wanted)
    except rest.Refused as error:
        if error.status != _CONFLICT:
            raise
        why = str(error)
    there = _count(broker, path)
    if there == 0 and why:
        raise Standstill(f"{topic} is a topic without partitions there, and has {wanted} here: delete it there")
    if there is None and why:
        raise Standstill(f"partitions of {topic} are there, and no partitioned topic, which has {wanted} here: delete "
                         f"them there ({why})")
    return there or 0


def _count(broker: rest.Broker, path: str) -> int | None:
    """Return the partitions of a topic there, 0 for one without, None if it is missing.  Raises Refused, NotReachable.
    """
    try:
        answer = broker.ask("GET", path).value()
    except rest.Refused as error:
        if error.status == _NOT_FOUND:
            return None
        raise
    count = answer.get("partitions") if isinstance(answer, dict) else None
    return count if isinstance(count, int) else 0


async def partitions_there(side: RemoteSide, topic: str) -> int:
    """Return the number of partitions of a topic there, 0 if it has none or does not exist.  Raises ClientError."""
    try:
        return await side.partition_count(topic, may_create=False)
    except ClientError as error:
        if error.code == api.TopicNotFound:
            return 0
        raise
