"""Deleted topics and cleared backlogs that are kept, and can be taken back.

    GET    /ops/v1/deleted                              all of the broker
    GET    /ops/v1/deleted/TENANT/NAMESPACE             those of a namespace, with what they cost
    POST   /ops/v1/deleted/TENANT/NAMESPACE/ID/undelete
    DELETE /ops/v1/deleted/TENANT/NAMESPACE/ID          give one up now

A topic may have been deleted several times, and a backlog cleared, so each deletion and clear has an id.
"""
from functools import partial
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.storage.admin.questions import TakeBacklogBack
from geminga.storage.admin.schedule_questions import TakeOverSchedules
from geminga.storage.catalogue.database import now_ms
from geminga.storage.catalogue.kept_topics import KeptTopic, former_name
from geminga.storage.catalogue.policies import policies_of, refuse_topics
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import (
    TOPICS,
    ask_each,
    catalogue_of,
    done,
    namespace_of,
    number_of,
    part_of,
)
from geminga.supervisor.admin.resources import scalable_deletion

routes = rights.Routes()
_ALL = "/ops/v1/deleted"
_NAMESPACE = _ALL + "/{tenant}/{namespace}"
_ONE = _NAMESPACE + "/{deleted}"


@routes.get(_ALL)
async def all_of(request: web.Request) -> web.Response:
    """Answer with all deleted topics and cleared backlogs that can be taken back, the longest deleted one first."""
    return web.json_response([_as_json(one) for one in catalogue_of(request).kept_topics.all() if not one.is_given_up])


@routes.get(_NAMESPACE, right=rights.NAMESPACE)
async def of_namespace(request: web.Request) -> web.Response:
    """Answer with a namespace's deleted topics and cleared backlogs that can be taken back, the first one first."""
    return web.json_response([_as_json(one) for one in _of(request)])


def _of(request: web.Request) -> list[KeptTopic]:
    namespace = namespace_of(request)
    return [one for one in catalogue_of(request).kept_topics.all()
            if not one.is_given_up and names.parse(one.topic).namespace == namespace]


def _found(request: web.Request) -> KeptTopic:
    number = number_of(request, part_of(request, "deleted"), "The id")
    if (one := next((each for each in _of(request) if each.id == number), None)) is None:
        raise web.HTTPNotFound(text=f"No deleted topic or cleared backlog with id {number} is kept in that namespace")
    return one


def _as_json(one: KeptTopic) -> dict[str, Any]:
    return {"id": one.id, "topic": one.topic, "subscription": one.subscription or None, "partitions": one.partitions,
            "deleted_ms": one.deleted_ms, "until_ms": one.until_ms, "bytes": one.bytes,
            "messages": one.messages if one.subscription else None}


@routes.post(_ONE + "/undelete", right=rights.NAMESPACE)
async def undelete(request: web.Request) -> web.Response:
    """Take a deleted topic back as it was, or a cleared backlog: what the subscription had not acknowledged."""
    one, catalogue, topics = _found(request), catalogue_of(request), request.app[TOPICS]
    if one.subscription:
        return await _take_backlog_back(request, one)
    topic = names.parse(one.topic)
    if catalogue.scalable_topics.is_being_deleted(topic):
        await scalable_deletion.finish(catalogue, request.app[OWNERS], topic)
    refuse_topics(catalogue, topic.namespace, policies_of(catalogue, topic, topics.storage), max(1, one.partitions))
    catalogue.kept_topics.take_back(one, now_ms())
    catalogue.commit()
    await request.app[OWNERS].tell_all(TakeOverSchedules())
    return web.json_response(_as_json(one))


async def _take_backlog_back(request: web.Request, one: KeptTopic) -> web.Response:
    """Give the subscription its backlog back in each partition that keeps some of it.  Raises 404, 409, Refusal."""
    places = [name for _, name in catalogue_of(request).kept_topics.places(one.id)]
    if any(former_name(name) != name for name in places):
        raise web.HTTPConflict(text=f"Topic {one.topic} was deleted: take the topic back first")
    question = partial(TakeBacklogBack, subscription=one.subscription, number=one.id)
    messages = [count for count in await ask_each(request, map(names.parse, places), question) if count is not None]
    if not messages:
        raise web.HTTPNotFound(text=f"No backlog of {one.subscription} with id {one.id} is kept any more")
    return web.json_response(_as_json(one) | {"messages": sum(messages)})


@routes.delete(_ONE, right=rights.NAMESPACE)
async def discard(request: web.Request) -> web.Response:
    """Give a deleted topic or a cleared backlog up: what only it needs is deleted for good within seconds."""
    one, catalogue = _found(request), catalogue_of(request)
    catalogue.kept_topics.give_up(one.id)
    catalogue.commit()
    return done()
