"""Statistics of scalable topics and of their segments, in the shapes of Pulsar 5.

A producer or stream consumer of such a topic has one for each segment, named NAME-seg-NUMBER, which count as one here.
"""
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from aiohttp import web

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.proto.layouts import Layout, Segment
from geminga.storage.admin.figures import ConsumerFigures, ProducerFigures, SubscriptionFigures, TopicFigures
from geminga.storage.admin.questions import GetStatistics
from geminga.storage.admin.segment_questions import GetRegistered, Registered
from geminga.storage.catalogue.policies import applied
from geminga.storage.runtime.units import instant
from geminga.storage.scalable import auto_scaling
from geminga.storage.scalable.assignment import assignable
from geminga.supervisor.admin.monitoring.topic_json import Json
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import SCALABLE, TOPICS, ask_usable, catalogue_of
from geminga.supervisor.admin.resources.retries import RETRIES
from geminga.supervisor.admin.resources.scalable_topics import layout_of, segment_of

routes = rights.Routes()
Figures = TypeVar("Figures", ProducerFigures, ConsumerFigures)
_ASK = partial(GetStatistics, earliest=False, publishers=True, consumers=True)


@routes.get(SCALABLE + "/stats", right=rights.LOOKS_UP)
async def stats_of_scalable(request: web.Request) -> web.Response:
    """Answer with statistics of a scalable topic: its layout, and its producers and subscriptions over all segments."""
    topic, layout = layout_of(request)
    change, is_done = catalogue_of(request).scalable_topics.last_change(topic)
    figures = await ask_usable(request, [names.parse(segment.topic) for segment in layout.segments], _ASK)
    topics = request.app[TOPICS]
    try:
        registered = await request.app[OWNERS].ask(GetRegistered(topic))
    except Refusal:      # the owner is being started
        registered = {}
    stats = {"autoScale": {"policy": applied(topics.catalogue, topic, auto_scaling.DECLARATION, topics.storage)},
             **topic_stats(layout, figures, topics.addresses.broker, time.time(), registered)}
    if change is not None:
        stats["layout"]["lastOperation"] = {
            "operation": change.operation, "trigger": change.trigger, "segmentIds": list(change.parents),
            "status": "success" if is_done else "running", "at": instant(change.began_ms)}
        if why := request.app[RETRIES].why(topic):
            stats["layout"]["lastOperation"]["error"] = why
    return web.json_response(stats)


@routes.get(SCALABLE + "/segments/{segment}/stats", right=rights.LOOKS_UP)
async def stats_of_segment(request: web.Request) -> web.Response:
    """Answer with statistics of one segment of a scalable topic."""
    segment = segment_of(request)
    figures = await request.app[OWNERS].ask(_ASK(names.parse(segment.topic)))
    return web.json_response({"ownerBroker": request.app[TOPICS].addresses.broker} | segment_stats(segment, figures))


# -- of a topic

def topic_stats(layout: Layout, answers: Sequence[TopicFigures | Refusal], broker: str, now: float,
                registered: dict[str, list[Registered]]) -> Json:
    """Return the statistics of a scalable topic.

    answers: of each segment of the layout, a Refusal of one whose files cannot be used: sums are without it, and its
    part of the layout has the error.  broker: this broker's name.  now: in seconds since 1970.  registered: stream
    consumers, and checkpoint consumers of groups, by subscription or group.
    """
    pairs = [(segment, one) for segment, one in zip(layout.segments, answers, strict=True)
             if not isinstance(one, Refusal)]
    figures, unknown = [one for _, one in pairs], {segment.number for segment in layout.segments} - {
        segment.number for segment, _ in pairs}
    producers = _by_name(pairs, lambda one: one.publishers)
    by_subscription: dict[str, list[tuple[Segment, SubscriptionFigures]]] = {}
    for segment, one in pairs:
        for name, subscription in one.subscriptions.items():
            by_subscription.setdefault(name, []).append((segment, subscription))
    # A group of consumers that are all away has no more to show than its name, and may be of a topic that was deleted.
    connected = [name for name, some in registered.items() if any(one.is_connected for one in some)]
    return {
        "controllerBroker": broker,
        "layout": {"epoch": layout.epoch,
                   "segments": {str(segment.number): _in_layout(segment, one, broker, now)
                                for segment, one in zip(layout.segments, answers, strict=True)}},
        **_rates(figures), "storageSize": sum(one.storage_bytes for one in figures),
        "backlogSize": sum(map(_backlog_bytes, figures)),
        "producers": [_producer(name, [one for _, one in some]) for name, some in producers.items()],
        "subscriptions": {name: _with_registered(_subscription(layout, by_subscription.get(name, []), unknown),
                                                 registered.get(name, []))
                          for name in dict.fromkeys([*by_subscription, *connected])}}


def _in_layout(segment: Segment, figures: TopicFigures | Refusal, broker: str, now: float) -> Json:
    document: Json = {
        "name": segment.topic, "state": "ACTIVE" if segment.is_active else "SEALED",
        **({"parentIds": list(segment.parents)} if segment.parents else {}),
        **({"childIds": list(segment.children)} if segment.children else {}),
        "createdAt": instant(segment.created_ms)}
    if segment.sealed_ms is not None:
        document |= {"sealedAt": instant(segment.sealed_ms)}
    document |= {"terminated": segment.sealed_ms is not None, "entryBuckets": len(segment.splits) + 1,
             "ownerBroker": broker}
    if isinstance(figures, Refusal):
        return document | {"error": figures.message}
    if segment.sealed_ms is not None:
        return document
    load = {"msgRateIn": figures.message_rate_in, "byteRateIn": figures.byte_rate_in,
            "msgRateOut": figures.message_rate_out, "byteRateOut": figures.byte_rate_out,
            "ageSeconds": round(max(0.0, now - segment.created_ms / 1000), 3)}
    return document | {"load": load}


def _rates(figures: Iterable[TopicFigures]) -> Json:
    figures = list(figures)
    messages, size = sum(one.message_rate_in for one in figures), sum(one.byte_rate_in for one in figures)
    return {"msgRateIn": messages, "byteRateIn": size, "msgRateOut": sum(one.message_rate_out for one in figures),
            "byteRateOut": sum(one.byte_rate_out for one in figures), "averageMsgSize": _average(size, messages)}


def _average(size: float, messages: float) -> float:
    return size / messages if messages else 0.0


def _backlog_bytes(figures: TopicFigures) -> int:
    """Return the bytes that the slowest durable subscription of a segment has left."""
    return max((one.backlog_bytes for one in figures.subscriptions.values() if one.is_durable), default=0)


def _subscription(layout: Layout, some: list[tuple[Segment, SubscriptionFigures]], unknown: set[int]) -> Json:
    """Return the statistics of a subscription.

    some: its figures in the segments that have it.  unknown: numbers of the segments of which that is not known.
    """
    figures, covered = [one for _, one in some], {segment.number for segment, _ in some} | unknown
    consumers, blocked = _by_name(some, lambda one: one.consumers), _blocked(layout, some)
    return {
        "type": _type(figures), "msgBacklog": sum(one.backlog for one in figures),
        "backlogSize": sum(one.backlog_bytes for one in figures),
        "unackedMessages": sum(one.unacknowledged for one in figures),
        "msgRateOut": sum(one.message_rate for one in figures), "byteRateOut": sum(one.byte_rate for one in figures),
        "msgRateRedeliver": sum(one.redeliver_rate for one in figures),
        "messageAckRate": sum(one.acknowledge_rate for one in figures),
        "uncoveredSegmentIds": [segment.number for segment in layout.segments if segment.number not in covered],
        "segments": {str(segment.number): _in_segment(one, is_blocked=segment.number in blocked)
                     for segment, one in some},
        "consumers": [_consumer(name, its) for name, its in consumers.items()]}


def _with_registered(subscription: Json, registered: list[Registered]) -> Json:
    """Enter consumers as they have registered; some have no segment, or read theirs by subscriptions of their own."""
    consumers = {one["consumerName"]: one for one in subscription["consumers"]}
    for one in registered:
        document = consumers.setdefault(one.name, _consumer(one.name, []))
        document |= {"connected": one.is_connected, "segmentIds": one.segments}
    if registered:
        subscription |= {"type": "STREAM", "consumers": list(consumers.values())}
    if not subscription["segments"]:      # a group's members keep their positions themselves
        subscription["uncoveredSegmentIds"] = []
    return subscription


def _type(figures: list[SubscriptionFigures]) -> str:
    """Return the kind of a subscription's consumers: those of a queue share each segment.

    A reader's is a queue, as in Pulsar, whose libraries know no third kind.
    """
    if any(one.type == "Shared" for one in figures):
        return "QUEUE"
    return "STREAM" if any(one.is_durable for one in figures) else "QUEUE"


def _draining(one: SubscriptionFigures) -> int:
    """Return how many entry buckets are held back until their former consumers have acknowledged."""
    return one.draining_hashes if one.is_sticky else 0


def _blocked(layout: Layout, some: list[tuple[Segment, SubscriptionFigures]]) -> set[int]:
    """Return the numbers of the segments whose messages stream consumers get only when others are drained."""
    if _type([one for _, one in some]) != "STREAM":
        return set()
    drained = {segment.number for segment, one in some if not segment.is_active and not one.backlog}
    consumed = {segment.number for segment in assignable(layout, drained)}
    return {segment.number for segment in layout.segments} - consumed - drained


def _in_segment(one: SubscriptionFigures, *, is_blocked: bool) -> Json:
    return {"msgBacklog": one.backlog, "backlogSize": one.backlog_bytes, "unackedMessages": one.unacknowledged,
            "msgRateOut": one.message_rate, "byteRateOut": one.byte_rate, "blocked": is_blocked,
            "drainingBuckets": _draining(one), "consumerCount": len(one.consumers)}


Holder = TypeVar("Holder", TopicFigures, SubscriptionFigures)


def _by_name(pairs: Iterable[tuple[Segment, Holder]],
             clients_of: Callable[[Holder], list[Figures]]) -> dict[str, list[tuple[Segment, Figures]]]:
    """Return {name: its figures in each segment} of producers or consumers."""
    segments_of: dict[str, list[tuple[Segment, Figures]]] = {}
    for segment, holder in pairs:
        for client in clients_of(holder):
            segments_of.setdefault(client.name.removesuffix(f"-seg-{segment.number}"), []).append((segment, client))
    return segments_of


def _producer(name: str, figures: list[ProducerFigures]) -> Json:
    messages, size = sum(one.message_rate for one in figures), sum(one.byte_rate for one in figures)
    return {"producerName": name, "msgRateIn": messages, "byteRateIn": size, "averageMsgSize": _average(size, messages),
            "accessMode": figures[0].access_mode, **_client(figures)}


def _consumer(name: str, some: list[tuple[Segment, ConsumerFigures]]) -> Json:
    figures = [one for _, one in some]
    return {"consumerName": name, "connected": True, "segmentIds": [segment.number for segment, _ in some],
            "msgRateOut": sum(one.message_rate for one in figures),
            "byteRateOut": sum(one.byte_rate for one in figures),
            "unackedMessages": sum(one.unacknowledged for one in figures),
            "availablePermits": sum(one.permits for one in figures), **(_client(figures) if figures else {})}


def _client(figures: list[Figures]) -> Json:
    return {"address": figures[0].address, "connectedSince": instant(min(one.connected_ms for one in figures)),
            "clientVersion": figures[0].client_version}


# -- of a segment

def segment_stats(segment: Segment, figures: TopicFigures) -> Json:
    """Return the statistics of one segment."""
    return {
        "terminated": not segment.is_active, **_rates([figures]), "storageSize": figures.storage_bytes,
        "backlogSize": _backlog_bytes(figures), "offloadedStorageSize": 0,
        "oldestBacklogMessageAgeSeconds": figures.backlog_age_s, "waitingPublishers": figures.waiting_producers,
        "topicCreationTime": instant(figures.created_ms),
        "producers": [_producer(one.name, [one]) for one in figures.publishers],
        "subscriptions": {name: _subscription_of_segment(one) for name, one in figures.subscriptions.items()}}


def _subscription_of_segment(one: SubscriptionFigures) -> Json:
    return {"type": one.type, "msgRateOut": one.message_rate, "byteRateOut": one.byte_rate,
            "msgRateRedeliver": one.redeliver_rate, "messageAckRate": one.acknowledge_rate, "msgBacklog": one.backlog,
            "backlogSize": one.backlog_bytes, "unackedMessages": one.unacknowledged,
            "drainingBuckets": _draining(one),
            "oldestBacklogMessageAgeSeconds": -1, "blockedSubscriptionOnUnackedMsgs": one.is_blocked,
            **_last_times(one), "consumers": [_consumer_of_segment(consumer) for consumer in one.consumers]}


def _consumer_of_segment(one: ConsumerFigures) -> Json:
    return {"consumerName": one.name, "msgRateOut": one.message_rate, "byteRateOut": one.byte_rate,
            "msgRateRedeliver": one.redeliver_rate, "messageAckRate": one.acknowledge_rate,
            "availablePermits": one.permits, "unackedMessages": one.unacknowledged,
            "blockedConsumerOnUnackedMsgs": one.is_blocked, **_client([one]), **_last_times(one)}


def _last_times(one: SubscriptionFigures | ConsumerFigures) -> Json:
    """Return when it last was delivered and acknowledged a message; neither field has a value for never."""
    times = {"lastConsumedTime": one.consumed_ms, "lastAckedTime": one.acked_ms}
    return {field: instant(time_ms) for field, time_ms in times.items() if time_ms}
