"""Scalable topics: create, list, show, delete; their subscriptions, in all segments at once.

Statistics are in `monitoring/scalable_stats.py`, permissions in `permissions.py`.
"""
import re
from functools import partial
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.layouts import SEGMENTS_MAX, Layout, Segment
from geminga.proto.names import TopicName
from geminga.storage.admin.questions import Clear, Reset, Subscribe, Unsubscribe
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.runtime.log import log
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import (
    SCALABLE,
    Answer,
    Asking,
    ask_each,
    ask_holders,
    catalogue_of,
    done,
    namespace_of,
    part_of,
    properties_of,
    subscription_of,
    time_of,
    topic_of,
)
from geminga.supervisor.admin.resources import scalable_deletion
from geminga.supervisor.admin.resources.clears import clear_of
from geminga.supervisor.admin.resources.topics import refuse_many

routes = rights.Routes()
_SUBSCRIPTION = SCALABLE + "/subscriptions/{subscription:[^/]+}"
_TYPES = "STREAM", "QUEUE", "CHECKPOINT"


# -- topics

@routes.get("/admin/v2/scalable/{tenant}/{namespace}", right=rights.LISTS)
async def scalable_topics(request: web.Request) -> web.Response:
    """Answer with the names of a namespace's scalable topics, or of those with all wanted properties."""
    catalogue, wanted = catalogue_of(request), [_filter(text) for text in request.query.getall("property", ())]
    topics = catalogue.scalable_topics.names(namespace_of(request))
    if wanted:
        topics = [name for name in topics if set(wanted) <= catalogue.properties.of(name).items()]
    return web.json_response(topics)


def _filter(text: str) -> tuple[str, str]:
    """Return the (name, value) of a filter by property.  Raises 412."""
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise web.HTTPPreconditionFailed(text=f"property filter must be in the form key=value, got: {text}")
    return name, value


@routes.put(SCALABLE, right=rights.NAMESPACE)
async def create_scalable(request: web.Request) -> web.Response:
    """Create a scalable topic with segments of equal size, and with the properties in the body."""
    topic, catalogue, properties = topic_of(request), catalogue_of(request), await properties_of(request)
    count = _count(request.query.get("numInitialSegments", "1"))
    namespace_of(request)
    if names.is_system(str(topic)):
        raise web.HTTPBadRequest(text="Cannot create topic in system topic format!")
    refuse_many(request, topic, 1)
    if catalogue.scalable_topics.is_being_deleted(topic):
        await scalable_deletion.finish(catalogue, request.app[OWNERS], topic)
    if not catalogue.scalable_topics.create(topic, count, properties):
        raise web.HTTPConflict(text=f"Scalable topic already exists: {topic}")
    catalogue.commit()
    log.info("a scalable topic was made", topic=topic, segments=count)
    return done()


def _count(text: str) -> int:
    """Return the number of segments that a request asks for.  Raises 412."""
    if re.fullmatch(r"-?[0-9]{1,9}", text) is not None:      # `int` takes more: blanks, "1_0", digits of other scripts
        if (count := int(text)) < 1:
            raise web.HTTPPreconditionFailed(text="numInitialSegments must be >= 1")
        if count <= SEGMENTS_MAX:
            return count
    raise web.HTTPPreconditionFailed(text=f"numInitialSegments must be a number from 1 to {SEGMENTS_MAX}")


@routes.get(SCALABLE, right=rights.LOOKS_UP)
async def metadata(request: web.Request) -> web.Response:
    """Answer with a scalable topic's segments and properties."""
    topic, layout = layout_of(request)
    return web.json_response({
        "epoch": layout.epoch, "nextSegmentId": layout.next_number,
        "segments": {str(segment.number): _segment(layout, segment) for segment in layout.segments},
        "properties": catalogue_of(request).properties.of(str(topic)), "deleted": False})


def layout_of(request: web.Request) -> tuple[TopicName, Layout]:
    """Return the scalable topic that the path names, with its layout.  Raises 404 if it does not exist, Refusal."""
    topic = topic_of(request)
    layout = catalogue_of(request).scalable_topics.layout(topic)
    if layout is None:
        raise web.HTTPNotFound(text=f"Scalable topic not found: {topic}")
    return topic, layout


def _segment(layout: Layout, segment: Segment) -> dict[str, Any]:
    """Return a segment as Pulsar's REST shows it."""
    legacy = {"legacyTopicName": segment.topic} if segment.is_legacy else {}
    return {
        "segmentId": segment.number, "hashRange": {"start": segment.first, "end": segment.last},
        "state": "ACTIVE" if segment.is_active else "SEALED", "parentIds": list(segment.parents),
        "childIds": list(segment.children), "createdAtEpoch": segment.created_epoch,
        "sealedAtEpoch": -1 if segment.sealed_ms is None else segment.sealed_epoch,
        "createdAtMs": segment.created_ms, "sealedAtMs": -1 if segment.sealed_ms is None else segment.sealed_ms,
        **legacy, "entryBucketSplits": list(segment.splits), "sealed": not segment.is_active,
        "active": segment.is_active, "root": not segment.parents, "leaf": not segment.children,
        "legacy": segment.is_legacy}


# -- deletion

@routes.delete(SCALABLE, right=rights.NAMESPACE)
async def delete_scalable(request: web.Request) -> web.Response:
    """Delete a scalable topic with all its segments and subscriptions; as in Pulsar, also while clients use it."""
    topic, _ = layout_of(request)
    await scalable_deletion.delete(request.app, [topic])
    return done()


# -- subscriptions

@routes.put(_SUBSCRIPTION, right=rights.CONSUMES)
async def create_subscription(request: web.Request) -> web.Response:
    """Create a subscription in all segments of a scalable topic, at their first messages.  One that exists stays."""
    kind = request.query.get("type", _TYPES[0])
    if kind not in _TYPES:
        raise web.HTTPNotFound(text=f"type is one of {', '.join(_TYPES)}")
    about = partial(Subscribe, subscription=subscription_of(request), shared=kind == "QUEUE", may_create=True,
                    position=EARLIEST)
    asked: set[str] = set()
    while segments := [one for one in layout_of(request)[1].segments if one.topic not in asked]:
        # Segments that others have taken over come last.  Else a request that fails could leave one with a subscription
        # that is not behind it, and a consumer, which is answered at once there, would miss what is published.
        active = [names.parse(one.topic) for one in segments if not one.children]
        await ask_each(request, active, about)
        for segment in sorted((one for one in segments if one.children), key=lambda one: one.number, reverse=True):
            await ask_each(request, [names.parse(segment.topic)], about)
        asked.update(one.topic for one in segments)
    return done()


@routes.delete(_SUBSCRIPTION, right=rights.CONSUMES)
async def delete_subscription(request: web.Request) -> web.Response:
    """Delete a subscription from all segments of a scalable topic, or from none if one of them has consumers."""
    question = partial(Unsubscribe, subscription=subscription_of(request), force=False)
    await _ask_any(request, partial(question, looks=True))
    await _ask_any(request, question)
    return done()


@routes.post(_SUBSCRIPTION + "/seek", right=rights.CONSUMES)
async def seek_subscription(request: web.Request) -> web.Response:
    """Move a subscription to the first message of a time, in each segment."""
    time_ms = time_of(request, request.query.get("timestamp", "0"))
    with clear_of(request) as asked_ms:
        await _ask_any(request, partial(Reset, subscription=subscription_of(request), time_ms=time_ms,
                                        asked_ms=asked_ms))
    return done()


@routes.post(_SUBSCRIPTION + "/skip-all", right=rights.CONSUMES)
async def clear_subscription(request: web.Request) -> web.Response:
    """Acknowledge everything for a subscription."""
    with clear_of(request) as asked_ms:
        await _ask_any(request, partial(Clear, subscription=subscription_of(request), asked_ms=asked_ms))
    return done()


async def _ask_any(request: web.Request, about: Asking[Answer]) -> None:
    """Ask the owners of all segments about a subscription, also of those that a change of the layout makes meanwhile.

    Raises Refusal if no segment has it.
    """
    asked: set[str] = set()
    is_held = False
    while segments := [one.topic for one in layout_of(request)[1].segments if one.topic not in asked]:
        is_held |= bool(await ask_holders(request, list(map(names.parse, segments)), about))
        asked.update(segments)
    if not is_held:
        topic = topic_of(request)
        raise Refusal(api.SubscriptionNotFound, f"Subscription {subscription_of(request)} not found for topic {topic}")


# -- one segment

def _numbered(layout: Layout, text: str) -> Segment | None:
    return layout.numbered(int(text)) if text.isascii() and text.isdigit() and len(text) < 19 else None


def segment_of(request: web.Request, part: str = "segment") -> Segment:
    """Return the segment whose number a part of the path has.  Raises 404 if there is none, Refusal."""
    topic, layout = layout_of(request)
    segment = _numbered(layout, part_of(request, part))
    if segment is None:
        raise web.HTTPNotFound(text=f"Segment {part_of(request, part)} not found in scalable topic {topic}")
    return segment
