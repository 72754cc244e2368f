"""Partitioned topics at another cluster: made and enlarged there before lanes of their partitions open.

A partition is replicated as a topic of its own, and a broker makes no partition at its first use.  So the partitioned
topic is made over HTTP, as Pulsar's brokers do for each other.
"""
import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.supervisor.pulsar_client import rest
from geminga.supervisor.pulsar_client.client import ClientError
from geminga.supervisor.replication.channel import RemoteSide
from geminga.supervisor.replication.connection import T
from geminga.supervisor.replication.lane import Standstill
from geminga.supervisor.replication.records import Place

_REQUEST_S = 30.0
_CONFLICT = 409


class PartitionedTopics:
    """Partitioned topics that have been seen at one other cluster."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._made: dict[TopicName, int] = {}      # partitions that the topic has there at least
        self._locks: dict[TopicName, asyncio.Lock] = {}

    def forget(self) -> None:
        """Look at all topics again: the cluster's record has changed."""
        self._made.clear()

    def is_made(self, partition: TopicName) -> bool:
        """Whether the topic was seen there with all partitions that it has here."""
        return self._made.get(partition.base, 0) >= max(partition.partition + 1, self._wanted(partition.base))

    def _wanted(self, topic: TopicName) -> int:
        return self._catalogue.topics.partition_count(topic) or 0

    async def make(self, partition: TopicName, place: Place, side: RemoteSide) -> None:
        """Make or enlarge the partitioned topic there.  Raises ClientError, Standstill."""
        topic = partition.base
        async with self._locks.setdefault(topic, asyncio.Lock()):
            wanted = max(self._wanted(topic), partition.partition + 1)
            if self._made.get(topic, 0) >= wanted:
                return
            there = await partitions_there(side, str(topic))
            if there < wanted and place.admin_url:
                await _in_thread(partial(_make, topic, wanted, place))
                there = wanted
            if there <= partition.partition:
                raise Standstill(f"{topic} has {there} partitions there and {wanted} here, and the cluster's record "
                                 "has no serviceUrl by which it could be made")
            self._made[topic] = there
        self._locks.pop(topic, None)


async def _in_thread(work: Callable[[], None]) -> None:
    """Do work that waits for the network in a thread, for whose end a stop of the process does not wait."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except Exception as failed:
            error = failed
        with contextlib.suppress(RuntimeError):      # the loop is closed
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, daemon=True).start()
    await done


def _make(topic: TopicName, wanted: int, place: Place) -> None:
    """Make a partitioned topic over HTTP, or enlarge it.  Raises ClientError, Standstill."""
    broker = rest.Broker(place.admin_url, _REQUEST_S, place.credentials)
    path = f"/admin/v2/{rest.topic_path(str(topic))}/partitions"
    try:
        try:
            broker.ask("PUT", path, {"createLocalTopicOnly": True}, wanted)
        except rest.Refused as error:
            if error.status != _CONFLICT:
                raise
            found = broker.ask("GET", path).value()
            there = found.get("partitions", 0) if isinstance(found, dict) else 0
            if not there:
                raise Standstill(f"{topic} is a topic without partitions there, and has {wanted} here") from None
            if there < wanted:
                broker.ask("POST", path, {"updateLocalTopicOnly": True, "force": False}, wanted)
    except (rest.Refused, rest.NotReachable) as error:
        raise ClientError(f"making the partitioned topic there: {error}") from None


async def partitions_there(side: RemoteSide, topic: str) -> int:
    """Return the number of partitions of a topic there, 0 if it has none or does not exist.  Raises ClientError."""
    request = api.CommandPartitionedTopicMetadata(topic=topic, request_id=side.next_id(),
                                                  metadata_auto_creation_enabled=False)
    command = api.BaseCommand(type=T.PARTITIONED_METADATA, partitionMetadata=request)
    try:
        answer = await side.ask(command, request.request_id)
    except ClientError as error:
        if error.code == api.TopicNotFound:
            return 0
        raise
    count: int = answer.partitions
    return count
