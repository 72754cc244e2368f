"""Partitioned topics and lookup over HTTP."""
import json
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto.names import TopicName
from geminga.storage.catalogue import Catalogue
from geminga.supervisor.config import Config
from geminga.workers.requests import Directory

routes = web.RouteTableDef()
PARTITIONS_MAX = 16_384      # of one topic; arbitrary, and more than one host has a use for
PATH = "/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


class Topics:
    """The catalogue, as requests need it."""

    def __init__(self, catalogue: Catalogue, service_url: str, http_url: str, config: Config):
        self.catalogue, self.service_url, self.http_url = catalogue, service_url, http_url
        self.cluster_name, self.storage = config.cluster_name, config.storage
        listeners = dict(text.split(":", 1) for text in config.worker.advertised_listeners)
        self.directory = Directory(catalogue, url=service_url, listeners=listeners, auto_create=config.storage.auto_create_topics,
                                   auto_create_partitions=0)


TOPICS = web.AppKey("topics", Topics)


@routes.put("/admin/v2" + PATH + "/partitions")
async def create_partitioned(request: web.Request) -> web.Response:
    topic, topics = topic_of(request), request.app[TOPICS]
    count = _count(await body_of(request))
    if not 0 < count <= PARTITIONS_MAX:
        raise _status(406, f"Number of partitions should be between 1 and {PARTITIONS_MAX}")
    if not topics.catalogue.has_namespace(topic.namespace):
        raise web.HTTPNotFound(text="Namespace does not exist")
    if topic.partition >= 0:
        raise web.HTTPPreconditionFailed(text="A partitioned topic's name does not end in -partition-N")
    created = topics.catalogue.create_topic(topic, count)
    topics.catalogue.commit()
    if not created:
        raise web.HTTPConflict(text="This topic already exists")
    return web.Response(status=204)


@routes.post("/admin/v2" + PATH + "/partitions")
async def add_partitions(request: web.Request) -> web.Response:
    """More of them; there are never fewer, as those that are gone would have had messages."""
    topic, catalogue = topic_of(request), request.app[TOPICS].catalogue
    count, before = _count(await body_of(request)), catalogue.partition_count(topic)
    if not before:
        raise web.HTTPNotFound(text=f"Topic {topic} is not partitioned") if before is None else web.HTTPConflict(
            text=f"Topic {topic} is not a partitioned topic")
    if not before < count <= PARTITIONS_MAX:
        raise _status(406, f"Number of partitions must be more than the existing {before} and at most {PARTITIONS_MAX}")
    catalogue.set_partition_count(topic, count)
    catalogue.commit()
    return web.Response(status=204)


@routes.get("/admin/v2" + PATH + "/partitions")
async def partitions(request: web.Request) -> web.Response:
    topic, topics = topic_of(request), request.app[TOPICS]
    may_create = request.query.get("checkAllowAutoCreation", "false").lower() == "true"
    if may_create:
        return web.json_response({"partitions": topics.directory.partitions(str(topic)), "deleted": False})
    if not topics.catalogue.has_namespace(topic.namespace):
        raise web.HTTPNotFound(text="Namespace does not exist")
    count = topics.catalogue.partition_count(topic)
    if count is None and topic.partition < 0:
        raise web.HTTPNotFound(text=f"Topic {topic} not found")
    return web.json_response({"partitions": count or 0, "deleted": False})


@routes.get("/lookup/v2/topic" + PATH)
@routes.get("/lookup/v2/destination" + PATH)
async def lookup(request: web.Request) -> web.Response:
    """Where the topic is served; both URLs are always strings, which the C++ client insists on."""
    topics = request.app[TOPICS]
    listener = request.query.get("listenerName") or request.headers.get("X-Pulsar-ListenerName", "")
    url = topics.directory.url(str(topic_of(request)), listener)
    return web.json_response({"brokerUrl": url, "brokerUrlTls": "", "httpUrl": topics.http_url, "httpUrlTls": "", "nativeUrl": url,
                              "brokerUrlSsl": ""})


def topic_of(request: web.Request) -> TopicName:
    part = request.match_info
    return names.parse(f"{part['domain']}://{part['tenant']}/{part['namespace']}/{part['topic']}")


async def body_of(request: web.Request) -> Any:
    """What its JSON says, None when there is nothing.  Raises 400."""
    data = await request.read()
    try:
        return json.loads(data) if data.strip() else None
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="The body is not JSON") from None


def _count(value: Any) -> int:
    """A number; in quotes, or in an object, as other clients send it.  Raises 400."""
    if isinstance(value, dict):
        value = value.get("partitions")
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        return int(value)
    except ValueError:
        raise web.HTTPBadRequest(text="The body is the number of partitions") from None


def _status(status: int, text: str) -> web.HTTPException:
    class _Other(web.HTTPClientError):
        status_code = status
    return _Other(text=text)
