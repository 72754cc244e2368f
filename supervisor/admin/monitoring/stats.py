"""Statistics of topics and of the broker, in the shapes of Pulsar's REST."""
import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from aiohttp import web
from numpy.typing import NDArray

from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.proto.responses import PULSAR_VERSION
from geminga.storage.admin.figures import TopicFigures
from geminga.storage.admin.questions import BytesBehind, GetStatistics, GetStorage, GetStored, Measure
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.units import instant
from geminga.storage.statistics.columns import SUBSCRIPTION_COLUMNS, TOPIC_COLUMNS
from geminga.storage.statistics.statistics import unpack
from geminga.storage.topics.subscription import SubType
from geminga.supervisor.admin.monitoring import topic_json
from geminga.supervisor.admin.requests import replicator, rights
from geminga.supervisor.admin.requests.owners import OWNERS, Owners
from geminga.supervisor.admin.requests.request_parts import (
    BUNDLE,
    COUNTERS,
    TOPIC,
    TOPICS,
    Asking,
    ask_each,
    ask_single,
    ask_usable,
    body_of,
    catalogue_of,
    is_set,
    parts_of,
    topic_of,
    usable,
    whole_of,
)
from geminga.supervisor.admin.resources.compaction import COMPACTIONS

routes = rights.Routes()
_EVERYTHING = 1 << 30      # topics: all of them
_MEASURE_SECONDS = 8       # less than the ten seconds after which a Prometheus server gives up
# Fields whose largest value stands for all partitions; other numbers are summed.
_LARGEST = (
    "lastConsumedFlowTimestamp",
    "lastConsumedTimestamp",
    "lastAckedTimestamp",
    "lastMarkDeleteAdvancedTimestamp",
    "lastExpireTimestamp",
    "lastPublishTimeStamp",
    "replicationDelayInSeconds",
    "oldestBacklogMessageAgeSeconds",
    "oldestUnexportedMessageAgeSeconds",
    "lastExportTimestamp",
    "backlogQuotaLimitSize",
    "backlogQuotaLimitTime",
    "lastOffloadLedgerId",
    "lastOffloadSuccessTimeStamp",
    "lastOffloadFailureTimeStamp",
    "topicEpoch",
    "lastCompactionSucceedTimestamp",
    "lastCompactionFailedTimestamp",
    "lastCompactionDurationTimeInMills",
)
# the smallest value above 0 stands for all
_FIRST = ("earliestMsgPublishTimeInBacklog", "earliestMsgPublishTimeInBacklogs", "topicCreationTimeStamp")
_ALONE = (
    "address",
    "connectedSince",
    "clientVersion",
    "metadata",
    "accessMode",
    "producerName",
    "lastAckedTime",
    "lastConsumedTime",
    "activeConsumerName",
    "ownerBroker",
    "deduplicationStatus",
    "oldestBacklogMessageSubscriptionName",
    "exportedPosition",
    "drainingHashes",
    "keyHashRangeArrays",
    "inboundConnection",
    "inboundConnectedSince",
    "outboundConnection",
    "outboundConnectedSince",
    "lastError",
)      # left out: they mean something for one partition only


# -- topics

@routes.get(TOPIC + "/stats", right=rights.LOOKS_UP)
async def stats(request: web.Request) -> web.Response:
    """Answer with statistics of a topic without partitions, or of one partition."""
    _refuse_unknown_namespace(request)
    topic = topic_of(request)
    document = _told(request, topic, await ask_single(request, "", _question(request)))
    await _add_lanes(request, [topic], [document])
    return web.json_response(document)


def _question(request: web.Request) -> Asking[TopicFigures]:
    """Return the question to an owner about a topic's statistics, with the details that the request asks for."""
    return partial(
        GetStatistics, earliest=is_set(request, "getEarliestTimeInBacklog"),
        publishers=not is_set(request, "excludePublishers"), consumers=not is_set(request, "excludeConsumers"))


def _told(request: web.Request, topic: TopicName, figures: TopicFigures) -> dict[str, Any]:
    """Return a topic's statistics as TopicStats, completed with fields that only the admin process knows."""
    stored, document = catalogue_of(request).partitions.find(topic), topic_json.topic_stats(topic, figures)
    record = request.app[COMPACTIONS].record(stored[0]) if stored is not None else None
    return document | {
        "ownerBroker": request.app[TOPICS].addresses.broker,
        "bytesOutInternalCounter": record.bytes_read if record else 0,
        "compaction": document["compaction"] | {"lastCompactionFailedTimestamp": record.failed_ms if record else 0}}


async def _add_lanes(request: web.Request, topics: Sequence[TopicName], told: Sequence[dict[str, Any]]) -> None:
    """Add to the statistics of topics how their connections to other clusters are."""
    replicated = [(topic, cluster, one) for topic, stats in zip(topics, told, strict=True)
                  for cluster, one in stats["replication"].items() if "replicationBacklogSize" in one]
    lanes = await replicator.lanes(request, {topic for topic, _, _ in replicated}) if replicated else {}
    for topic, cluster, one in replicated:
        lane = lanes.get((str(topic), cluster))
        one["connected"] = lane is not None and lane["connected"]
        if lane is not None:
            one |= {"msgRateOut": lane["messageRate"], "msgThroughputOut": lane["byteRate"],
                    "msgOutCount": lane["messagesSent"], "bytesOutCount": lane["bytesSent"]}
        if lane is not None and lane["connected"]:
            one |= {"outboundConnection": lane["address"],
                    "outboundConnectedSince": instant(lane["connectedSince"])}
        elif lane is not None and lane["error"]:
            one["lastError"] = lane["error"]


def _refuse_unknown_namespace(request: web.Request) -> None:
    if not catalogue_of(request).namespaces.exists(topic_of(request).namespace):
        raise web.HTTPNotFound(text="Namespace not found")


def _partitions(request: web.Request) -> int:
    """Return the number of partitions of a partitioned topic.  Raises 404."""
    _refuse_unknown_namespace(request)
    count = catalogue_of(request).topics.partition_count(topic_of(request))
    if not count:
        raise web.HTTPNotFound(text=f"Partitioned Topic {topic_of(request)} not found")
    return count


@routes.get(TOPIC + "/partitioned-stats", right=rights.LOOKS_UP)
async def partitioned_stats(request: web.Request) -> web.Response:
    """Answer with the merged statistics of all partitions, and with each partition's unless perPartition=false.

    Partitions whose files cannot be used are left out, and named with their errors.
    """
    whole_of(request)
    count, parts, per_partition = _partitions(request), parts_of(request), is_set(request, "perPartition", default=True)
    answers = await ask_usable(request, parts, _question(request))
    errors = {topic: one.message for topic, one in zip(parts, answers, strict=True) if isinstance(one, Refusal)}
    names = [topic for topic in parts if topic not in errors]
    stats = [_told(request, topic, one) for topic, one in zip(names, usable(answers), strict=True)]
    await _add_lanes(request, names, stats)
    return web.json_response(together(stats) | {
        "metadata": {"partitions": count, "deleted": False},
        "partitions": dict(zip(map(str, names), stats, strict=True)) if per_partition else {},
        **({"partitionErrors": {str(topic): why for topic, why in errors.items()}} if errors else {})})


def together(partitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the statistics of all partitions into one TopicStats.

    Rates and counters are summed, and averages are computed again.
    """
    merged = _merged(partitions)
    for one in (merged, *merged["publishers"]):
        one["averageMsgSize"] = one["msgThroughputIn"] / one["msgRateIn"] if one["msgRateIn"] else 0.0
    return merged


def _merged(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge JSON objects of the same kind field by field: numbers are summed, with exceptions by name."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in objects for name in one if name not in _ALONE):
        values: list[Any] = [one[name] for one in objects if name in one]
        first = values[0]
        if name in ("publishers", "consumers"):      # clients open one on every partition, in the same order
            merged[name] = [_merged(list(filter(None, some))) for some in _columns(values)]
        elif name in ("subscriptions", "replication"):
            keys = dict.fromkeys(key for value in values for key in value)
            merged[name] = {key: _merged([value[key] for value in values if key in value]) for key in keys}
        elif name in ("compaction", "messages"):
            merged[name] = _merged(values)
        elif name in _LARGEST:
            merged[name] = max(values)
        elif name in _FIRST:
            merged[name] = min((value for value in values if value > 0), default=0)
        elif name == "avgMessagesPerEntry":
            merged[name] = round(sum(values) / len(values))
        elif name == "connected":
            merged[name] = all(values)
        elif isinstance(first, bool):
            merged[name] = any(values)
        elif isinstance(first, int | float) and name not in ("producerId",):
            merged[name] = sum(values)
        else:
            merged[name] = first
    return merged


def _columns(lists: list[list[Any]]) -> Iterable[list[Any]]:
    """Yield the first members of all lists, then the second members, and so on; shorter lists are skipped."""
    return ([one[at] for one in lists if at < len(one)] for at in range(max(map(len, lists))))


@routes.get(TOPIC + "/internalStats", right=rights.LOOKS_UP)
async def internal_stats(request: web.Request) -> web.Response:
    """Answer with a topic's ledgers and cursors."""
    _refuse_unknown_namespace(request)
    figures = await ask_single(request, "", GetStorage)
    return web.json_response(topic_json.internal_stats(topic_of(request), figures))


@routes.get(TOPIC + "/partitioned-internalStats", right=rights.LOOKS_UP)
async def partitioned_internal_stats(request: web.Request) -> web.Response:
    """Answer with the ledgers and cursors of each partition."""
    count, names = _partitions(request), parts_of(request)
    figures = await ask_each(request, names, GetStorage)
    stats = {str(topic): topic_json.internal_stats(topic, one) for topic, one in zip(names, figures, strict=True)}
    return web.json_response({"metadata": {"partitions": count, "deleted": False}, "partitions": stats})


@routes.get(TOPIC + "/internal-info", right=rights.LOOKS_UP)
async def internal_info(request: web.Request) -> web.Response:
    """Answer with the ledgers and cursors of the topic, or of each of its partitions."""
    _refuse_unknown_namespace(request)
    names = parts_of(request)
    infos = [topic_json.internal_info(stored) for stored in await ask_each(request, names, GetStored)]
    info = infos[0] if names == [topic_of(request)] else {
        "version": 0, "partitions": dict(zip(map(str, names), infos, strict=True))}
    # Java's library returns this body as text. Programs compare it with compact text.
    return web.json_response(info, dumps=partial(json.dumps, separators=(",", ":")))


@routes.get(TOPIC + "/backlog", right=rights.CONSUMES)
async def backlog(request: web.Request) -> web.Response:
    """Answer with the sizes of what subscriptions have left."""
    _refuse_unknown_namespace(request)
    stats = topic_json.offline_stats(topic_of(request), await ask_single(request, "", GetStored))
    return web.json_response(stats | {"brokerName": request.url.host or ""})


@routes.put(TOPIC + "/backlogSize", right=rights.CONSUMES)
async def backlog_size(request: web.Request) -> web.Response:
    """Answer with the bytes that are stored behind the message id in the body."""
    _refuse_unknown_namespace(request)
    identity = await body_of(request)
    try:
        ledger, entry = (int(identity.get(name, 0)) for name in ("ledgerId", "entryId"))
        if max(abs(ledger), abs(entry)) >= 1 << 63:
            raise ValueError
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise web.HTTPBadRequest(text="The body is a message id: ledgerId, entryId") from None
    refused = "calculate backlog size is not allowed for partitioned-topic"
    return web.json_response(await ask_single(request, refused, partial(BytesBehind, ledger=ledger, entry=entry)))


# -- all that is loaded

class Measured:
    """Statistics of one owner: a row for each of its busiest topics, and sums by namespace of all further topics."""

    def __init__(self, head: dict[str, Any], tables: list[NDArray[np.float64]]):
        """See `statistics.pack` for both."""
        self.head = head
        self.topics, self.subscriptions, self.other_topics, self.other_subscriptions, self.replication = tables

    def __repr__(self) -> str:
        return f"<Measured topics={len(self.topics)} subscriptions={len(self.subscriptions)}>"

    def total(self, column: str) -> float:
        """Return a column's sum over all topics of the owner."""
        at = TOPIC_COLUMNS.index(column)
        return float(self.topics[:, at].sum() + self.other_topics[:, at].sum())

    def by_namespace(self, column: str) -> dict[str, float]:
        """Return {namespace: a column's sum over its open topics}."""
        at, numbers = TOPIC_COLUMNS.index(column), {name: number for number, name in enumerate(self.head["namespaces"])}
        marks = [numbers[namespace_of(name)] for name in self.head["topics"]]
        sums = self.other_topics[:, at] + np.bincount(np.array(marks, np.int64), self.topics[:, at], len(numbers))
        return dict(zip(self.head["namespaces"], sums.tolist(), strict=True))


def namespace_of(topic: str) -> str:
    """Return the namespace that a complete topic name has."""
    return "/".join(topic.partition("://")[2].split("/", 2)[:2])


async def measure(owners: Owners, most: int, *, consumers: bool = False, producers: bool = False,
                  seconds: float = _MEASURE_SECONDS) -> list[Measured | None]:
    """Return the statistics of each owner, None for an owner that does not answer in time.

    most: number of topics with rows of their own, over all owners; all other topics are summed by namespace.
    """
    question = Measure(most=-(-most // owners.count), consumers=consumers, producers=producers)

    async def ask(index: int) -> Measured | None:
        try:
            async with asyncio.timeout(seconds):
                # The owner makes some rows in each of its passes, and answers with numbers until all are made.
                while not isinstance(packed := await owners.ask_owner(index, question), bytes):
                    pass
                return Measured(*unpack(packed))
        except (Refusal, TimeoutError):
            return None

    return await asyncio.gather(*map(ask, range(owners.count)))


async def put_sent(data_dir: Path, measured: Iterable[Measured | None]) -> None:
    """Replace rates of what owners gave the replicator by rates of what it sent to other clusters.

    The replicator passes over entries that came from another cluster, or that name others.
    """
    rows = [(owner, at, (owner.head["topics"][number], remote)) for owner in measured if owner is not None
            for at, (number, remote) in enumerate(owner.head["replication"])]
    lanes = await replicator.lanes_of(data_dir, [topic for _, _, (topic, _) in rows]) if rows else {}
    for owner in {owner for owner, _, _ in rows}:
        owner.replication = owner.replication.copy()      # it is a view of bytes that came
    for owner, at, key in rows:
        lane = lanes.get(key)
        owner.replication[at, _SENT] = (lane["messageRate"], lane["byteRate"]) if lane is not None else (0.0, 0.0)


_SENT = [SUBSCRIPTION_COLUMNS.index(name) for name in ("rate_out", "throughput_out")]


def _objects(columns: tuple[str, ...], table: np.ndarray) -> list[dict[str, float]]:
    return [dict(zip(columns, row, strict=True)) for row in table.tolist()]


@routes.get("/admin/v2/broker-stats/topics")
async def broker_topics(request: web.Request) -> web.Response:
    """Answer with statistics of all topics that are loaded."""
    document: dict[str, Any] = {}
    every = await measure(request.app[OWNERS], _EVERYTHING, consumers=True, producers=True)
    await put_sent(request.app[TOPICS].config.data_dir, every)
    for measured in filter(None, every):
        topics = [_loaded_topic(row) for row in _objects(TOPIC_COLUMNS, measured.topics)]
        rows = _objects(SUBSCRIPTION_COLUMNS, measured.subscriptions)
        for (number, name), row in zip(measured.head["subscriptions"], rows, strict=True):
            topics[number]["subscriptions"][name] = _loaded_subscription(row)
        rows = _objects(SUBSCRIPTION_COLUMNS, measured.replication)
        for (number, remote), row in zip(measured.head["replication"], rows, strict=True):
            topics[number]["replication"][remote] = _loaded_replication(row)
        for number, subscription, name, _, *rates, _, _, permits, _, _ in measured.head["consumers"]:
            rate, throughput, redelivered, acknowledged = rates
            topics[number]["subscriptions"][subscription]["consumers"].append({
                "consumerName": name, "availablePermits": permits, "msgRateOut": rate, "msgThroughputOut": throughput,
                "msgRateRedeliver": redelivered, "messageAckRate": acknowledged})
        for number, name, producer_id, rate, throughput, average in measured.head["producers"]:
            topics[number]["publishers"].append({"producerName": name, "producerId": producer_id, "msgRateIn": rate,
                                                 "msgThroughputIn": throughput, "averageMsgSize": average})
        for name, topic in zip(measured.head["topics"], topics, strict=True):
            bundle = document.setdefault(namespace_of(name), {}).setdefault(BUNDLE, {})
            bundle.setdefault(name.partition(":")[0], {})[name] = topic
    return web.json_response(document)


def _loaded_topic(row: dict[str, float]) -> dict[str, Any]:
    return {
        "publishers": [],
        "replication": {},
        "subscriptions": {},
        "producerCount": int(row["producers"]),
        "averageMsgSize": row["throughput_in"] / row["rate_in"] if row["rate_in"] else 0.0,
        "msgRateIn": row["rate_in"],
        "msgRateOut": row["rate_out"],
        "msgInCount": int(row["messages_in"]),
        "bytesInCount": int(row["bytes_in"]),
        "msgOutCount": int(row["messages_out"]),
        "bytesOutCount": int(row["bytes_out"]),
        "msgThroughputIn": row["throughput_in"],
        "msgThroughputOut": row["throughput_out"],
        "storageSize": int(row["storage_bytes"]),
        "backlogSize": int(row["backlog_bytes"]),
    }


def _sub_type(number: int) -> str:
    kind: Any = number
    return SubType.Name(kind)


def _loaded_subscription(row: dict[str, float]) -> dict[str, Any]:
    return {
        "consumers": [],
        "msgBacklog": int(row["backlog"]),
        "msgRateExpired": row["rate_expired"],
        "msgRateOut": row["rate_out"],
        "messageAckRate": row["rate_acknowledged"],
        "msgThroughputOut": row["throughput_out"],
        "msgRateRedeliver": row["rate_redeliver"],
        "type": "None" if row["kind"] < 0 else _sub_type(int(row["kind"])),
        "filterProcessedMsgCount": 0,
        "filterAcceptedMsgCount": 0,
        "filterRejectedMsgCount": 0,
        "filterRescheduledMsgCount": 0,
    }


def _loaded_replication(row: dict[str, float]) -> dict[str, Any]:
    since_ms = int(row["backlog_since_ms"])
    return {
        "connected": row["consumers"] > 0,
        "msgRateExpired": row["rate_expired"],
        "msgRateOut": row["rate_out"],
        "msgThroughputOut": row["throughput_out"],
        "replicationBacklog": int(row["backlog"]),
        "replicationDelayInSeconds": max(0, round(time.time() - since_ms / 1000)) if since_ms else 0,
    }


_NAMESPACE_METRICS = {
    "brk_in_rate": "rate_in",
    "brk_in_tp_rate": "throughput_in",
    "brk_out_rate": "rate_out",
    "brk_out_tp_rate": "throughput_out",
    "brk_msg_backlog": "backlog",
    "brk_no_of_consumers": "consumers",
    "brk_no_of_producers": "producers",
    "brk_no_of_subscriptions": "subscriptions",
    "brk_storage_size": "storage_bytes",
}


@routes.get("/admin/v2/broker-stats/metrics")
async def broker_metrics(request: web.Request) -> web.Response:
    """Answer with metrics summed by namespace, and the number of connections."""
    owners = list(filter(None, await measure(request.app[OWNERS], 0)))
    sums = {name: [measured.by_namespace(column) for measured in owners] for name, column in _NAMESPACE_METRICS.items()}
    namespaces = dict.fromkeys(namespace for measured in owners for namespace in measured.head["namespaces"])
    entries = [{"metrics": {name: sum(one.get(namespace, 0) for one in each) for name, each in sums.items()},
             "dimensions": {"namespace": namespace}} for namespace in namespaces]
    rows = [counters.read() for counters in request.app[COUNTERS].values()]
    opened, closed = (sum(row[name] for row in rows) for name in ("connections_opened", "connections_closed"))
    entries.append({"metrics": {"brk_active_connections": opened - closed, "brk_connection_created_total_count": opened,
                             "brk_connection_closed_total_count": closed},
                 "dimensions": {"cluster": request.app[TOPICS].cluster_name, "metric": "broker_connection"}})
    return web.json_response(entries)


@routes.get("/admin/v2/broker-stats/mbeans")
async def mbeans(request: web.Request) -> web.Response:
    """Answer with the counters of each process."""
    return web.json_response([{"metrics": counters.read(), "dimensions": {"process": f"{role}-{index}"}}
                              for (role, index), counters in request.app[COUNTERS].items()])


@routes.get("/admin/v2/broker-stats/load-report")
async def load_report(request: web.Request) -> web.Response:
    """Answer with the load of the broker and its host."""
    owners, topics = list(filter(None, await measure(request.app[OWNERS], 0))), request.app[TOPICS]
    totals = {
        name: sum(measured.total(column) for measured in owners)
        for name, column in (
            ("msgRateIn", "rate_in"),
            ("msgRateOut", "rate_out"),
            ("msgThroughputIn", "throughput_in"),
            ("msgThroughputOut", "throughput_out"),
        )
    }
    counts = {name: int(sum(measured.total(column) for measured in owners)) for name, column in (
        ("numConsumers", "consumers"), ("numProducers", "producers"))}
    memory, mib, where = psutil.virtual_memory(), 1 << 20, topics.addresses
    return web.json_response(
        {
            **where.named(
                http="webServiceUrl",
                http_tls="webServiceUrlTls",
                service="pulsarServiceUrl",
                service_tls="pulsarServiceUrlTls",
            ),
            "brokerVersionString": PULSAR_VERSION,
            "persistentTopicsEnabled": True,
            "nonPersistentTopicsEnabled": topics.storage.non_persistent_topics,
            "cpu": {"usage": psutil.cpu_percent(), "limit": 100.0},
            "memory": {"usage": resident_bytes(request.app[COUNTERS]) / mib, "limit": memory.total / mib},
            **totals,
            **counts,
            "numTopics": sum(sum(measured.head["loaded"]) for measured in owners),
            "numBundles": 1,
            "lastUpdate": int(time.time() * 1000),
        }
    )


def resident_bytes(counters: dict[tuple[str, int], Counters]) -> int:
    """Return the resident memory of all processes, in bytes."""
    return sum(process.memory_info().rss for _, process in processes(counters))


def processes(counters: dict[tuple[str, int], Counters]) -> Iterable[tuple[str, psutil.Process]]:
    """Yield (name, process) of each running process of the broker."""
    for (role, index), own in counters.items():
        try:
            yield f"{role}-{index}", psutil.Process(own.read()["pid"])
        except (psutil.NoSuchProcess, ValueError):
            continue


@routes.get("/admin/v2/broker-stats/allocator-stats/{allocator}")
async def allocator_stats(request: web.Request) -> web.Response:
    """Answer with the memory of an allocator, which a broker without Java does not have."""
    if request.match_info["allocator"] not in ("default", "ml-cache"):
        raise web.HTTPNotAcceptable(text=f"Invalid allocator name : {request.match_info['allocator']}")
    raise web.HTTPNotFound(text="There is no allocator of buffers here; /metrics has the memory of each process")
