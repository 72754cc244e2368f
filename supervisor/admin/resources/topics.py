"""Topics: create, list, delete, look up; their partitions and properties."""
import re
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, TypedDict

from aiohttp import web

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import NameTaken, Refusal
from geminga.proto.names import TopicName
from geminga.storage.admin.questions import Delete, IsUsed, Subscribe
from geminga.storage.catalogue import orphans
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import policies_of, refuse_topics
from geminga.storage.catalogue.policy_values import PARTITIONS_MAX
from geminga.storage.open_topics import kept
from geminga.storage.runtime.log import log
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import (
    BUNDLE,
    PATH,
    SCALABLE,
    TOPIC,
    TOPICS,
    as_properties,
    ask_each,
    body_of,
    catalogue_of,
    done,
    existing_of,
    is_set,
    keep_properties,
    namespace_of,
    not_allowed,
    part_of,
    properties_of,
    status,
    topic_of,
    whole_of,
)
from geminga.supervisor.admin.resources import scalable_deletion
from geminga.workers.addresses import Addresses, is_wildcard

routes = rights.Routes()
_LIST = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
# Names of partitions, and names with a number that Pulsar takes for a partition's when a topic is to be created.
_LIKE_PARTITION = re.compile(r".*-partition-[+-]?\d{1,19}", re.DOTALL)
_SHADOW = "PULSAR.SHADOW_SOURCE"      # property of shadow topics


# -- topics that are not partitioned

@routes.put(TOPIC, right=rights.NAMESPACE)
async def create(request: web.Request) -> web.Response:
    """Create a topic without partitions."""
    topic, topics = topic_of(request), request.app[TOPICS]
    properties = await properties_of(request)
    if not topics.catalogue.namespaces.exists(topic.namespace):
        raise web.HTTPNotFound(text="Namespace not found")
    if topics.catalogue.topics.exists(topic):
        raise web.HTTPConflict(text="This topic already exists")
    if _LIKE_PARTITION.fullmatch(topic.local_name):
        raise web.HTTPPreconditionFailed(
            text=f'Can\'t create topic {topic.local_name} with "-partition-" followed by numeric value if '
            f"there isn't a partitioned topic {topic.base.local_name} created."
        )
    return _create(request, topic, 0, properties)


def _create(request: web.Request, topic: TopicName, partitions: int, properties: dict[str, str]) -> web.Response:
    topics = request.app[TOPICS]
    _refuse_shadow(request, properties)
    if names.is_reserved(str(topic)):
        raise web.HTTPBadRequest(text="Cannot create topic in system topic format!")
    if not (topic.is_persistent or topics.storage.non_persistent_topics):
        raise not_allowed(request, "Non-persistent topics are switched off")
    refuse_many(request, topic, max(1, partitions))
    if not topics.catalogue.topics.create(topic, partitions):
        raise web.HTTPConflict(text="This topic already exists")
    topics.catalogue.properties.set(str(topic), properties)
    topics.catalogue.commit()
    return done()


def _refuse_shadow(request: web.Request, properties: dict[str, str]) -> None:
    """Refuse to create a shadow topic, which a property requests.  Raises 405.

    Without the refusal an ordinary topic would be created, and stay empty.
    """
    if _SHADOW in properties:
        raise not_allowed(request, "Shadow topics are not available: "
                                   "a subscription of the source topic reads the same messages")


def refuse_many(request: web.Request, topic: TopicName, count: int) -> None:
    """Refuse `count` more topics or partitions if the namespace would exceed its limit.  Raises 412."""
    catalogue = catalogue_of(request)
    try:
        refuse_topics(catalogue, topic.namespace, policies_of(catalogue, topic, request.app[TOPICS].storage), count)
    except Refusal as refusal:
        raise web.HTTPPreconditionFailed(text=refusal.message) from None


@routes.delete(TOPIC, right=rights.NAMESPACE)
async def delete(request: web.Request) -> web.Response:
    """Delete a topic without partitions."""
    topic = topic_of(request)
    if catalogue_of(request).topics.partition_count(topic):
        raise web.HTTPConflict(text=f"{topic} is a partitioned topic, instead of calling delete topic, please call "
                                    "delete-partitioned-topic.")
    if topic in catalogue_of(request).topics.legacy(topic.base.scalable):
        raise web.HTTPConflict(text=f"{topic} is a segment of {topic.base.scalable}, which is deleted as a whole")
    _refuse_replicated(request, topic)
    await request.app[OWNERS].ask(Delete(topic, force=is_set(request, "force")))
    return done()


def _refuse_replicated(request: web.Request, topic: TopicName) -> None:
    """Refuse to delete a topic, with what other clusters do not have yet, unless it is forced.  Raises 422."""
    topics = request.app[TOPICS]
    remotes = policies_of(topics.catalogue, topic, topics.storage).remote_clusters
    if remotes and not is_set(request, "force"):
        raise status(422, f"Delete forbidden topic is replicated on clusters [{', '.join(remotes)}]: force deletes it "
                          "here, and it stays there")


# -- partitioned topics

@routes.put(TOPIC + "/partitions", right=rights.NAMESPACE)
async def create_partitioned(request: web.Request) -> web.Response:
    """Create a topic with partitions."""
    topic, catalogue, body = topic_of(request), catalogue_of(request), await body_of(request)
    count = _count(body)
    properties = as_properties(body.get("properties")) if isinstance(body, dict) else {}
    if count <= 0:
        raise status(406, "Number of partitions should be more than 0")
    if count > PARTITIONS_MAX:
        raise status(406, f"Number of partitions should be less than or equal to {PARTITIONS_MAX}")
    if not catalogue.namespaces.exists(topic.namespace):
        raise web.HTTPNotFound(text="Namespace does not exist")
    if topic.partition >= 0 or (topic.is_persistent and "-partition-" in topic.local_name):      # as in Pulsar
        raise web.HTTPPreconditionFailed(text="Partitioned Topic Name should not contain '-partition-'")
    return _create(request, topic, count, properties)


@routes.post(TOPIC + "/partitions", right=rights.TOPIC_POLICY)
async def add_partitions(request: web.Request) -> web.Response:
    """Add partitions to a topic; their number cannot fall, as messages would be lost.

    New partitions get all durable subscriptions before clients learn of the partitions.
    """
    topic, catalogue = whole_of(request), catalogue_of(request)
    count, before = _count(await body_of(request)), catalogue.topics.partition_count(topic)
    if not before:
        raise web.HTTPConflict(text=f"Topic {topic} is not the partitioned topic.")
    catalogue.topics.refuse_migrating(topic)
    if count > PARTITIONS_MAX:
        raise status(406, f"Number of partitions should be less than or equal to {PARTITIONS_MAX}")
    if count < before:
        raise status(422, f"Desired partitions {count} can't be less than the current partitions {before}.")
    refuse_many(request, topic, count - before)
    if taken := catalogue.topics.taken(topic, before, count):
        raise NameTaken(f"{topic} cannot have {count} partitions: {taken[0]} exists as a topic of its own")
    fresh = [topic.partition_name(number) for number in range(before, count)]
    if topic.is_persistent:
        existing = map(topic.partition_name, range(before))
        for subscription, said in sorted(_subscriptions_of(catalogue, existing).items()):
            await ask_each(request, fresh, partial(Subscribe, subscription=subscription, new=True, **said))
    if count > (catalogue.topics.partition_count(topic) or 0):      # another request may have added more meanwhile
        catalogue.topics.set_partition_count(topic, count)
    catalogue.commit()
    return done()


class _Said(TypedDict):
    """A subscription's properties and replication mark, as users have set them."""

    properties: dict[str, str] | None
    replicated: bool


def _subscriptions_of(catalogue: Catalogue, partitions: Iterable[TopicName]) -> dict[str, _Said]:
    """Return the durable subscriptions of these partitions: {name: properties and replication mark}."""
    by_name: dict[str, _Said] = {}
    for stored in filter(None, map(catalogue.partitions.find, partitions)):
        properties = catalogue.properties.of_subscriptions(stored[0])
        replicated = catalogue.subscriptions.replicated(stored[0])
        for name, subscription_id in catalogue.subscriptions.ids(stored[0]).items():
            if names.remote_of(name) is None:      # a partition makes replication cursors itself
                by_name.setdefault(name, {"properties": properties.get(subscription_id),
                                          "replicated": subscription_id in replicated})
    return by_name


def _count(value: Any) -> int:
    """Return the number of partitions in a body: a number, a text, or a member of an object.  Raises 400."""
    if isinstance(value, dict):
        value = value.get("partitions")
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        return int(value)
    except ValueError:
        raise web.HTTPBadRequest(text="The body is the number of partitions") from None


@routes.get(TOPIC + "/partitions", right=rights.LOOKS_UP)
async def partitions(request: web.Request) -> web.Response:
    """Answer with the number of a topic's partitions."""
    topic, topics = topic_of(request), request.app[TOPICS]
    if is_set(request, "checkAllowAutoCreation"):
        count: int | None = topics.directory.partitions(str(topic))
    else:
        if not topics.catalogue.namespaces.exists(topic.namespace):
            raise web.HTTPNotFound(text="Namespace does not exist")
        count = topics.catalogue.topics.partition_count(topic)
        if count is None:
            count = topics.catalogue.topics.former_partitions(topic)
        if count is None and not topics.catalogue.topics.exists(topic):
            raise Refusal(api.TopicNotFound, f"Topic {topic} not found")
    properties = topics.catalogue.properties.of(str(topic)) if count else {}
    return web.json_response({"partitions": count or 0, "deleted": False}
        | ({"properties": properties} if properties else {}))


@routes.delete(TOPIC + "/partitions", right=rights.NAMESPACE)
async def delete_partitioned(request: web.Request) -> web.Response:
    """Delete a topic with its partitions."""
    topic, catalogue = whole_of(request), catalogue_of(request)
    count = catalogue.topics.partition_count(topic)
    if count is None:
        raise web.HTTPNotFound(text=f"Topic {topic} not found.")
    if not count:
        raise web.HTTPConflict(text=f"{topic} is a non-partitioned topic. "
                                    "Instead of calling delete-partitioned-topic please call delete.")
    _refuse_replicated(request, topic)
    await delete_topics(request, [topic], force=is_set(request, "force"))
    return done()


async def delete_topics(request: web.Request, topics: Iterable[TopicName], *, force: bool) -> None:
    """Delete topics with all their partitions; without force only if none of them is used.

    topics: base names. A partitioned topic is deleted before its partitions, so that clients which reconnect at once do
    not find it. Raises Refusal.
    """
    catalogue, topics = catalogue_of(request), list(topics)
    scalable = [topic for topic in topics if topic.is_scalable]
    topics = [topic for topic in topics if not topic.is_scalable]
    parts = []
    for topic in topics:
        catalogue.topics.refuse_migrating(topic)
        count = catalogue.topics.partition_count(topic)
        parts += [topic.partition_name(number) for number in range(count)] if count else [topic]
    stored = [part for part in parts if not part.is_persistent or catalogue.partitions.find(part) is not None]
    used: list[bool] = [] if force else await ask_each(request, stored, IsUsed)
    if any(used):
        raise Refusal(api.ConsumerBusy, "Topic has active producers/subscriptions")
    data_dir = request.app[TOPICS].config.data_dir
    for topic in topics:
        if not (catalogue.topics.partition_count(topic) or topic not in stored):
            continue      # its owner deletes it
        seconds = kept.seconds_of(catalogue, request.app[TOPICS].storage, topic)
        if seconds and any(part.base == topic for part in stored):
            kept.keep(catalogue, data_dir, topic, seconds, time.time_ns() // 1_000_000)
        else:
            catalogue.topics.delete(topic)
    catalogue.commit()
    # Clients may have opened more partitions until the commit.  Topics with these names that came since are left alone.
    stored_names = set(stored)
    stored += [part for part in parts if part not in stored_names and catalogue.partitions.find(part) is not None
               and not catalogue.topics.exists(part)]
    try:
        await ask_each(request, stored, partial(Delete, force=True, gone=True))
    except Refusal:
        orphans.mend(catalogue)      # partitions that could not be deleted appear in lists
        catalogue.commit()
        raise
    await scalable_deletion.delete(request.app, scalable)


@routes.post(TOPIC + "/createMissedPartitions", right=rights.NAMESPACE)
async def create_missed(request: web.Request) -> web.Response:
    """Answer without doing anything: partitions exist as soon as their topic does, so none can be missing."""
    topic = whole_of(request)
    if not catalogue_of(request).topics.partition_count(topic):
        raise web.HTTPNotFound(text=f"Topic {topic} does not exist")
    return done()


# -- lists

@routes.get(_LIST, right=rights.LISTS)
async def topics(request: web.Request) -> web.Response:
    """Answer with the names of a namespace's topics."""
    complete = catalogue_of(request).topics.complete_names(namespace_of(request))
    return web.json_response(listed(request, complete, (part_of(request, "domain") + ":",)))


@routes.get(_LIST + "/partitioned", right=rights.LISTS)
async def partitioned(request: web.Request) -> web.Response:
    """Answer with the names of a namespace's partitioned topics."""
    complete = catalogue_of(request).topics.partitioned_names(namespace_of(request))
    return web.json_response(listed(request, complete, (part_of(request, "domain") + ":",)))


def listed(request: web.Request, complete: list[str], beginnings: tuple[str, ...]) -> list[str]:
    """Return the topics that a listing asks for.

    complete: complete names. beginnings: prefixes, one of which a name must have. System topics are left out unless the
    request wants them. Raises 412 for an unknown bundle.
    """
    if request.query.get("bundle", BUNDLE) != BUNDLE:
        raise web.HTTPPreconditionFailed(text=f"The namespace has one bundle: {BUNDLE}")
    with_system = is_set(request, "includeSystemTopic")
    return [name for name in complete if name.startswith(beginnings) and (with_system or not names.is_system(name))]


# -- properties

def _scope(request: web.Request) -> str:
    """Return the name by which properties of the request's topic are stored.  Raises Refusal: it does not exist."""
    topic = topic_of(request)
    whole = catalogue_of(request).topics.whole(topic)
    return str(existing_of(request).base if whole == topic.base else whole)


@routes.get(SCALABLE + "/properties", right=rights.LOOKS_UP)
@routes.get(TOPIC + "/properties", right=rights.LOOKS_UP)
async def properties(request: web.Request) -> web.Response:
    """Answer with a topic's properties."""
    return web.json_response(catalogue_of(request).properties.of(_scope(request)))


@routes.put(SCALABLE + "/properties", right=rights.TOPIC)
@routes.put(TOPIC + "/properties", right=rights.TOPIC)
async def add_properties(request: web.Request) -> web.Response:
    """Add properties to a topic."""
    scope, more = _scope(request), await properties_of(request)
    _refuse_shadow(request, more)
    return keep_properties(request, scope, catalogue_of(request).properties.of(scope) | more)


@routes.delete(SCALABLE + "/properties", right=rights.TOPIC)
@routes.delete(TOPIC + "/properties", right=rights.TOPIC)
async def delete_property(request: web.Request) -> web.Response:
    """Remove a property from a topic."""
    scope = _scope(request)
    kept = catalogue_of(request).properties.of(scope)
    kept.pop(request.query.get("key", ""), None)
    return keep_properties(request, scope, kept)


# -- lookup

@routes.get("/lookup/v2/topic/{domain:topic}/{tenant}/{namespace}/{topic:[^/]+}", right=rights.RESOLVES)
@routes.get("/lookup/v2/topic" + PATH, right=rights.RESOLVES)
@routes.get("/lookup/v2/destination" + PATH, right=rights.RESOLVES)
async def lookup(request: web.Request) -> web.Response:
    """Answer with the addresses at which the topic is served, under the request's host name unless one is advertised.

    Every URL is a string, as the C++ client refuses null. The URL of the scheme by which the request came has the port
    by which it came, also behind a port map. No header tells how other ports are mapped, so those are the broker's own.
    """
    topics = request.app[TOPICS]
    listener: str = request.query.get("listenerName") or request.headers.get("X-Pulsar-ListenerName") or ""
    try:
        with topics.counters.timed("lookup"):
            url, url_tls = topics.directory.urls(str(topic_of(request)), listener)
            topics.directory.refuse_missing(topic_of(request))      # only over HTTP, as in Pulsar
    except Refusal:
        topics.counters.add("lookups_failed")
        raise
    topics.counters.add("lookups")
    addresses = topics.addresses
    if not addresses.is_advertised and (host := _host_of(request)):
        addresses = _by_request(request, addresses.seen_as(host))
        url, url_tls = addresses[:2]
    return web.json_response({"brokerUrl": url, "brokerUrlTls": url_tls, "httpUrl": addresses.http,
                              "httpUrlTls": addresses.http_tls, "nativeUrl": url, "brokerUrlSsl": ""})


def _by_request(request: web.Request, addresses: Addresses) -> Addresses:
    """Return addresses in which the request's own scheme has the port in its Host header, if there is one.

    Another port than the broker's own is told in the log once, because clients are likely to fail behind such a map.
    """
    port, topics = request.url.explicit_port, request.app[TOPICS]
    own = topics.addresses.ports.get(request.scheme)
    if not port or port == own:
        return addresses
    if not topics.is_map_told:
        log.info(f"A lookup over HTTP came by port {port}, which is mapped to {own}. The answer has the broker's own "
                 "port for clients. If that is mapped too, name the address in network.advertised_listeners, or give "
                 "clients a URL that begins with pulsar://")
        topics.is_map_told = True
    seen = addresses.seen_as(request.url.host or "", port)
    is_tls = request.scheme == "https"
    return addresses._replace(http_tls=seen.http_tls) if is_tls else addresses._replace(http=seen.http)


def _host_of(request: web.Request) -> str:
    """Return the host name of the request, "" where the binary protocol may not be served under the same name."""
    config = request.app[TOPICS].config
    if not is_wildcard(config.worker.bind) and config.worker.bind != config.http_bind:
        return ""
    try:
        return (request.url.host or "") if "Host" in request.headers else ""
    except ValueError:
        return ""


@routes.get("/lookup/v2/topic" + PATH + "/bundle", right=rights.LISTS)
async def bundle(request: web.Request) -> web.Response:
    """Answer with the bundle of a topic."""
    if not catalogue_of(request).namespaces.exists(topic_of(request).namespace):
        raise web.HTTPNotFound(text="Namespace not found")
    return web.Response(text=BUNDLE)
