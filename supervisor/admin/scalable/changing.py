"""Split, merge and rebucket segments of scalable topics by hand, and make regular topics scalable."""
import asyncio
import itertools
import re
from collections.abc import Callable
from functools import partial

from aiohttp import web

from geminga.proto import layout_changes, names
from geminga.proto.layout_changes import CannotChange, LayoutChange
from geminga.proto.layouts import BUCKETS_MAX, MANAGED, Layout
from geminga.proto.names import TopicName
from geminga.storage.admin.questions import GetStatistics
from geminga.storage.catalogue.database import now_ms
from geminga.storage.catalogue.policies import policies_of
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.request_parts import (
    CONNECTIONS,
    SCALABLE,
    TOPICS,
    ask_each,
    catalogue_of,
    done,
    is_set,
    topic_of,
)
from geminga.supervisor.admin.resources.scalable_topics import layout_of, segment_of
from geminga.supervisor.admin.scalable.layout_changes import CHANGES

routes = rights.Routes()
_CLIENTS = partial(GetStatistics, earliest=False, publishers=True, consumers=True)
_STREAM_CONSUMER = re.compile(r"-seg-[0-9]+$")      # the end of the name of one, for each segment
_WAIT_SECONDS = 15           # until a change is answered as one that is finished later


@routes.post(SCALABLE + "/split/{segment}", right=rights.NAMESPACE)
async def split_segment(request: web.Request) -> web.Response:
    """Seal a segment, and make two of its hashes."""
    number = segment_of(request).number
    return await _change(request, lambda topic, layout: layout_changes.split(topic, layout, number, now_ms()))


@routes.post(SCALABLE + "/merge/{segment}/{other}", right=rights.NAMESPACE)
async def merge_segments(request: web.Request) -> web.Response:
    """Seal two segments whose hashes are neighbours, and make one of them."""
    numbers = segment_of(request).number, segment_of(request, "other").number
    return await _change(request, lambda topic, layout: layout_changes.merge(topic, layout, numbers, now_ms()))


@routes.post(SCALABLE + "/rebucket/{segment}", right=rights.NAMESPACE)
async def rebucket_segment(request: web.Request) -> web.Response:
    """Seal a segment, and make one of the same hashes with so many entry buckets (`bucketCount`)."""
    number, text = segment_of(request).number, request.query.get("bucketCount", "")
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise web.HTTPPreconditionFailed(text=f"bucketCount must be a number from 1 to {BUCKETS_MAX}")
    return await _change(request, lambda topic, layout: _rebucketed(topic, layout, number, int(text)))


def _rebucketed(topic: TopicName, layout: Layout, number: int, buckets: int) -> LayoutChange:
    """Return the change to so many buckets.  Raises CannotChange, also if the segment has as many."""
    segment = layout.numbered(number)
    if segment is not None and len(segment.splits) + 1 == buckets:
        raise CannotChange(f"Segment {number} has {buckets} entry buckets already")
    return layout_changes.rebucket(topic, layout, number, buckets, now_ms())


@routes.post(SCALABLE + "/migrate", right=rights.NAMESPACE)
async def migrate(request: web.Request) -> web.Response:
    """Make a scalable topic of a regular one, whose messages and subscriptions stay.

    Clients of Pulsar 4 that are connected cannot go on publishing, so they are a reason to refuse unless it is forced.
    """
    topic, topics = topic_of(request), request.app[TOPICS]
    count = _partitions_of(request, topic)
    legacy = 0 if is_set(request, "force") else await _legacy_clients(request, topic.regular, count)
    if legacy:
        raise web.HTTPConflict(
            text=f"{legacy} legacy v4 client connection(s) still attached to {topic.regular}; disconnect them (or all "
                 "clients are V5) before migrating, or retry with force=true")
    if policies_of(topics.catalogue, topic.regular, topics.storage).remote_clusters:
        raise web.HTTPPreconditionFailed(text=f"{topic.regular} is replicated, and scalable topics are not")
    return await _made(request, topic, lambda: request.app[CHANGES].migrate(topic, count))


def _partitions_of(request: web.Request, topic: TopicName) -> int:
    """Return the number of partitions of the regular topic that is to be made scalable.  Raises 400, 404, 409."""
    catalogue = catalogue_of(request)
    if catalogue.scalable_topics.layout(topic) is not None:
        raise web.HTTPConflict(text=f"Topic is already scalable: {topic}")
    count = catalogue.topics.partition_count(topic.regular)
    if count is None:
        raise web.HTTPNotFound(text=f"Topic does not exist: {topic.regular}")
    if names.is_system(str(topic)):
        raise web.HTTPBadRequest(text=f"{topic.regular} is a system topic, which stays as it is")
    return count


async def _legacy_clients(request: web.Request, regular: TopicName, count: int) -> int:
    """Return how many producers and consumers of a regular topic are not of clients of Pulsar 5.

    These mark their producers and queue consumers.  Checkpoint and stream consumers are known by what they look like,
    if a client of the same library on the same host watches layouts: that may be on another connection of the client.
    """
    parts = [regular.partition_name(number) for number in range(count)] or [regular]
    stored = [part for part in parts if catalogue_of(request).partitions.find(part) is not None]
    figures = await ask_each(request, stored, _CLIENTS)
    marks = [client.metadata.get(MANAGED) for one in figures for client in one.publishers]
    opened = itertools.chain.from_iterable(table.read()[0] for table in request.app[CONNECTIONS])
    watching = {(_host(one.address), one.library) for one in opened if one.has_layouts}
    for each in itertools.chain.from_iterable(one.subscriptions.values() for one in figures):
        for client in each.consumers:
            may_be_unmarked = not each.is_durable or _STREAM_CONSUMER.search(client.name)
            is_watching = (_host(client.address.removeprefix("/")), client.client_version) in watching
            marks.append("true" if may_be_unmarked and is_watching else client.metadata.get(MANAGED))
    return sum(mark != "true" for mark in marks)


def _host(address: str) -> str:
    return address.rpartition(":")[0]


async def _change(request: web.Request, changed: Callable[[TopicName, Layout], LayoutChange]) -> web.Response:
    """Answer when a change is in force.  Raises 404, 409: another one is under way, 412: it cannot be made, 503.

    A change outlives its request: the client may have gone.
    """
    topic, layout = layout_of(request)
    return await _made(request, topic, lambda: request.app[CHANGES].begin(topic, changed(topic, layout)))


async def _made(request: web.Request, topic: TopicName,
                begin: Callable[[], asyncio.Task[None] | None]) -> web.Response:
    """Begin a change, and answer when it is in force.  Raises as `_change`."""
    changes = request.app[CHANGES]
    try:
        task = begin()
    except CannotChange as error:
        raise web.HTTPPreconditionFailed(text=str(error)) from None
    if task is None:
        why = changes.why_it_takes_long(topic)
        raise web.HTTPConflict(text=f"The segments of {topic} are being changed"
                                    + (f", which failed last: {why}" if why else "; try again"))
    if not (await asyncio.wait([task], timeout=_WAIT_SECONDS))[0]:
        raise web.HTTPServiceUnavailable(text="The change is written down and is tried again; it failed last: "
                                              + changes.why_it_takes_long(topic))
    await task
    layout_of(request)      # the topic may have been deleted instead
    return done()
