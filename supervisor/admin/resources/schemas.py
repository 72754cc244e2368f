"""Schemas of topics: show, add, compare, delete.

A topic need not exist to have a schema.
"""
import json
from dataclasses import replace
from typing import Any

from aiohttp import web

from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import Policies
from geminga.storage.runtime.counters import Counters
from geminga.storage.schemas import registry
from geminga.storage.schemas.registry import Definition, InvalidSchema, T, Version
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.request_parts import (
    TOPICS,
    as_properties,
    body_of,
    catalogue_of,
    is_set,
    namespace_of,
    schema_topic_of,
)
from geminga.workers.directory.schemas import SchemaThread, Work
from geminga.workers.messages import schema_files

routes = rights.Routes()
THREAD = web.AppKey("thread", SchemaThread)
_PATH = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
# types that have a definition as a part of KEY_VALUE; the definition of any other type is empty
_SHOWN_AS_JSON = (T.Avro, T.Json, T.Protobuf, T.ProtobufNative)


async def _definition(request: web.Request) -> Definition:
    """Return the schema that the body defines.  Raises 400, 422."""
    body = await body_of(request)
    if not isinstance(body, dict) or not all(isinstance(body.get(name), str) for name in ("type", "schema")):
        raise web.HTTPBadRequest(text="The body is an object with type and schema, which are texts, and properties")
    properties = as_properties(body.get("properties"))
    try:
        return schema_files.of_parts(body["type"], body["schema"], properties)
    except (InvalidSchema, ValueError) as error:
        raise web.HTTPUnprocessableEntity(text=getattr(error, "message", str(error))) from None


def _shown(stored: Version) -> dict[str, Any]:
    definition = stored.definition
    data = definition.data.decode(errors="replace")
    if definition.kind == T.KeyValue:
        parts = (json.loads(part.data) if part.kind in _SHOWN_AS_JSON else "" for part in registry.parts(definition))
        data = json.dumps(dict(zip(("key", "value"), parts, strict=True)), separators=(",", ":"))
    return {
        "version": stored.version,
        "type": registry.TYPES[definition.kind],
        "timestamp": stored.created_ms,
        "data": data,
        "properties": definition.properties,
    }


def _found(request: web.Request, version: int | None = None) -> web.Response:
    with _counters(request).timed("schema_get"):
        stored = registry.find(catalogue_of(request), schema_topic_of(request), version)
    if stored is None:
        raise web.HTTPNotFound(text="Schema not found")
    return web.json_response(_shown(stored))


def _counters(request: web.Request) -> Counters:
    return request.app[TOPICS].counters


async def _do(request: web.Request, topic: TopicName, work: Work[Any]) -> Any:
    try:
        return await request.app[THREAD].do(topic, work)
    except InvalidSchema as error:
        raise web.HTTPUnprocessableEntity(text=error.message) from None


# -- what there is

@routes.get(_PATH + "/schema", right=rights.LOOKS_UP)
async def last_schema(request: web.Request) -> web.Response:
    """Answer with the newest version of a topic's schema."""
    return _found(request)


@routes.get(_PATH + "/schema/{version}", right=rights.LOOKS_UP)
async def one_schema(request: web.Request) -> web.Response:
    """Answer with a version of a topic's schema."""
    text = request.match_info["version"]
    if not text.removeprefix("-").isdecimal() or not text.isascii() or not -1 << 63 <= int(text[:40]) < 1 << 63:
        raise web.HTTPBadRequest(text="A version is a whole number")
    return _found(request, int(text))


@routes.get(_PATH + "/schemas", right=rights.LOOKS_UP)
async def all_schemas(request: web.Request) -> web.Response:
    """Answer with all versions of a topic's schema."""
    topic, catalogue = schema_topic_of(request), catalogue_of(request)
    with _counters(request).timed("schema_get"):
        stored = [registry.find(catalogue, topic, version) for version in registry.versions(catalogue, topic)]
    return web.json_response({"getSchemaResponses": [_shown(one) for one in stored if one is not None]})


@routes.get(_PATH + "/metadata", right=rights.LOOKS_UP)
async def metadata(request: web.Request) -> web.Response:
    """Answer with the versions of a topic's schema, with -1 for Pulsar's positions in ledgers."""
    index = [{"ledgerId": -1, "entryId": -1, "version": version}
             for version, _, _ in catalogue_of(request).schemas.versions(schema_topic_of(request).base)]
    return web.json_response({"info": index[-1], "index": index}) if index else web.Response()


@routes.post(_PATH + "/version", right=rights.LOOKS_UP)
async def version_of(request: web.Request) -> web.Response:
    """Answer with the number of the version that a definition is."""
    topic, definition = schema_topic_of(request), await _definition(request)

    def work(catalogue: Catalogue, policies: Policies) -> int | None:
        registry.check_size(definition)
        return registry.version_of(catalogue, topic, definition)

    version = await _do(request, topic, work)
    return web.json_response({"version": -1 if version is None else version})


@routes.post(_PATH + "/compatibility", right=rights.TENANT)
async def compatibility(request: web.Request) -> web.Response:
    """Answer whether a definition is compatible with a topic's schema."""
    namespace_of(request)
    topic, definition = schema_topic_of(request), await _definition(request)

    def work(catalogue: Catalogue, policies: Policies) -> str:
        registry.validate(definition)
        registry.check(catalogue, topic, definition, policies.schema_strategy, _counters(request))
        return policies.schema_strategy

    strategy = await _do(request, topic, work)
    return web.json_response({"schemaCompatibilityStrategy": strategy, "compatibility": True}, status=202)


# -- what is done

@routes.post(_PATH + "/schema", right=rights.PRODUCES)
async def add_schema(request: web.Request) -> web.Response:
    """Add a version of a topic's schema, even where policies forbid clients to do so."""
    namespace_of(request)
    topic, definition = schema_topic_of(request), await _definition(request)

    def work(catalogue: Catalogue, policies: Policies) -> int:
        with registry.counting_refusals(_counters(request)):
            registry.validate(definition)
            return registry.register(catalogue, topic, definition,
                                     replace(policies, schema_updates=True), _counters(request))

    return web.json_response({"version": {"version": await _do(request, topic, work)}})


@routes.delete(_PATH + "/schema", right=rights.TENANT)
async def delete_schema(request: web.Request) -> web.Response:
    """Delete all versions of a topic's schema.

    Version numbers continue afterwards; with force=true they begin again at 0.
    """
    namespace_of(request)
    topic, is_forced = schema_topic_of(request), is_set(request, "force")

    def work(catalogue: Catalogue, policies: Policies) -> int:
        with _counters(request).timed("schema_delete"):
            if not is_forced:
                return catalogue.schemas.delete(topic.base)
            catalogue.schemas.forget(topic.base)
            return -1

    return web.json_response({"version": await _do(request, topic, work)})
