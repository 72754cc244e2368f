"""Messages by page, decoded: those of a topic, those that a subscription has left, and the whole payload of one.

    GET  /ops/v1/messages/DOMAIN/TENANT/NAMESPACE/TOPIC[/SUBSCRIPTION]     rows of workers/messages/shown.py
    POST /ops/v1/messages/DOMAIN/TENANT/NAMESPACE/TOPIC                    publish one message
    GET  /ops/v1/payload/DOMAIN/TENANT/NAMESPACE/TOPIC/LEDGER:ENTRY[:INDEX]

A page costs its owner at most _ENTRIES_BYTES, and this process one page at a time in a thread.
"""
import asyncio
import base64
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import click
from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.admin.questions import GetEntry
from geminga.storage.admin.table_questions import GetPage, StoredPage
from geminga.storage.jobs import one_by_one
from geminga.storage.jobs.one_by_one import Damaged
from geminga.storage.runtime.unix_sockets import UNIX
from geminga.storage.schemas import registry
from geminga.storage.schemas.registry import InvalidSchema
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.request_parts import (
    INSIDE,
    PATH,
    ask_single,
    body_of,
    catalogue_of,
    existing_of,
    number_of,
    part_of,
    single_of,
    subscription_of,
)
from geminga.workers.messages import outgoing, publishing, shown
from geminga.workers.messages.entries import About, Outgoing
from geminga.workers.messages.filters import Filter
from geminga.workers.messages.shown import Shown, Stored
from geminga.workers.messages.values import Values, complete
from geminga.workers.pulsar_client import client, key_hashing
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.pulsar_client.producers import Receipt, Sending

routes = rights.Routes()
_MESSAGES, _PAYLOAD = "/ops/v1/messages" + PATH, "/ops/v1/payload" + PATH
_ROWS, _ROWS_MAX = 20, 100
_PAYLOAD_BYTES, _PAYLOAD_BYTES_MAX = 4 << 10, 64 << 10
_SKIPPED_MAX = 10_000_000        # entries that are passed over: some 50 ms of the owner
_ENTRIES_BYTES = 8 << 20         # of a page's entries together, beyond the first one
_AT_ONCE = 4                     # pages whose entries are in memory; others wait
_PUBLISH_SECONDS = 10
_PLACE = re.compile(r"([0-9]{1,18}):([0-9]{1,18})(?::([0-9]{1,9}))?", re.ASCII)
_PARTITIONED = "Messages of a partitioned topic are read from one of its partitions"
PAGES = web.AppKey("pages_of_messages", asyncio.Semaphore)
_decoding = ThreadPoolExecutor(1, "messages")      # one page after the other: a page may take a second


def slots() -> asyncio.Semaphore:
    """Return what bounds the pages in memory."""
    return asyncio.Semaphore(_AT_ONCE)


class _Asked(NamedTuple):
    """The parts of a request for a page of messages."""

    first: tuple[int, int, int] | None      # entry, and index in its batch
    limit: int                              # rows
    is_latest: bool                         # the last messages, instead of the first ones
    payload_max: int
    filter: Filter


# -- pages

@routes.get(_MESSAGES, right=rights.CONSUMES)
async def of_topic(request: web.Request) -> web.Response:
    """Answer with messages of a topic in the order in which they are stored."""
    return await _answer(request, None)


@routes.get(_MESSAGES + "/{subscription:[^/]+}", right=rights.CONSUMES)
async def of_subscription(request: web.Request) -> web.Response:
    """Answer with messages that a subscription has not acknowledged."""
    return await _answer(request, subscription_of(request))


async def _answer(request: web.Request, subscription: str | None) -> web.Response:
    asked = _asked(request)
    skipped = number_of(request, request.query.get("skip", "0"), "skip", _SKIPPED_MAX)
    if not single_of(request, _PARTITIONED).is_persistent:
        raise web.HTTPPreconditionFailed(text="A non-persistent topic stores no messages")
    question = partial(
        GetPage, subscription=subscription, position=asked.first[:2] if asked.first else None, skipped=skipped,
        from_latest=asked.is_latest, entries_max=(asked.limit if asked.filter.is_open else _ROWS_MAX) + 1,
        bytes_max=_ENTRIES_BYTES)
    async with request.app[PAGES]:
        page = await ask_single(request, _PARTITIONED, question)
        topic = single_of(request)
        work = partial(_rows, str(topic), page, asked, _schemas(request, topic, page))
        return web.json_response(body=await asyncio.get_running_loop().run_in_executor(_decoding, work))


def _asked(request: web.Request) -> _Asked:
    """Return what the query asks for.  Raises 400."""
    query = request.query
    limit = number_of(request, query.get("limit", str(_ROWS)), "limit", _ROWS_MAX)
    payload_max = number_of(request, query.get("payload", str(_PAYLOAD_BYTES)), "payload", _PAYLOAD_BYTES_MAX)
    order = query.get("order", "earliest")
    if order not in ("earliest", "latest"):
        raise web.HTTPBadRequest(text="order is earliest or latest")
    first = place_of(query["from"], "from") if "from" in query else None
    try:
        chosen = Filter(query.get("key") or None, tuple(filter(None, query.getall("property", []))),
                        query.get("grep") or None)
    except click.UsageError as error:
        raise web.HTTPBadRequest(text=error.message.removeprefix("--")) from None
    return _Asked(first, max(1, limit), order == "latest", payload_max, chosen)


def place_of(text: str, name: str) -> tuple[int, int, int]:
    """Return (ledger, entry, index in the batch or -1) of a message's id.  Raises 400."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise web.HTTPBadRequest(text=f"{name} is LEDGER:ENTRY or LEDGER:ENTRY:INDEX, such as 12:0")
    return int(match[1]), int(match[2]), -1 if match[3] is None else int(match[3])


def _schemas(request: web.Request, topic: TopicName, page: StoredPage) -> dict[bytes, api.Schema]:
    """Return the schema versions that messages of a page name, as far as the topic has them; b"" is the newest."""
    schemas: dict[bytes, api.Schema] = {}
    for entry in page.entries:
        try:
            metadata, _ = one_by_one.split(base64.b64decode(entry.data))
        except Damaged:
            continue
        version = metadata.schema_version
        if (not version or (len(version) == 8 and not version[0] & 0x80)) and version not in schemas:
            kept = registry.find(catalogue_of(request), topic, int.from_bytes(version) if version else None)
            if kept is not None:
                schemas[version] = registry.to_wire(kept.definition, "")
    return schemas


def _rows(topic: str, page: StoredPage, asked: _Asked, schemas: dict[bytes, api.Schema]) -> bytes:
    """Return the answer for a page, as JSON."""
    async def schema(_topic: str, version: bytes) -> api.Schema | None:
        return schemas.get(version)

    values = Values(schema)
    some = list(islice(_chosen(topic, page, asked, values), None if asked.is_latest else asked.limit + 1))
    if asked.is_latest:
        has_more, some = page.has_more or len(some) > asked.limit, some[-asked.limit:]
    else:
        has_more, next_ = page.has_more, some[asked.limit:]
        some = some[:asked.limit]
        has_more |= bool(next_)
    answer: dict[str, Any] = {
        "topic": topic, "rows": [shown.row(one, asked.payload_max, stored_ms) for one, stored_ms in some],
        "has_more": has_more, "next": None, "complaints": values.complaints,
        "passed_entries": page.passed_entries, "passed_messages": page.passed_messages,
        "first_number": None, "end_number": None}
    if not asked.is_latest and has_more:
        last = page.entries[-1]
        answer["next"] = next_[0][0].message.id if next_ else f"{last.ledger}:{last.entry + 1}"
    if page.entries:
        first, last = page.entries[0], page.entries[-1]
        answer |= {"first_number": first.index + 1 - _count(first.data), "end_number": last.index + 1,
                   "behind": f"{last.ledger}:{last.entry + 1}"}
    return json.dumps(answer, default=str).encode()


def _count(data: str) -> int:
    """Return the number of messages of an entry in base64."""
    try:
        return max(1, one_by_one.split(base64.b64decode(data))[0].num_messages_in_batch)
    except Damaged:
        return 1


def _chosen(topic: str, page: StoredPage, asked: _Asked, values: Values) -> Iterator[tuple[Shown, int]]:
    """Yield (message, when its entry was stored) of the messages of a page that match."""
    for one, left in zip(page.entries, page.left, strict=True):
        stored = Stored(one.ledger, one.entry, base64.b64decode(one.data), left, one.timestamp)
        for each in shown.messages(topic, stored):
            message = each.message
            if asked.first is not None and (one.ledger, one.entry, message.batch_index) < asked.first:
                continue
            if not each.left_out and len(message.payload) <= shown.DECODED_MAX:
                complete(values.decode([message]))
            if asked.filter.matches(message):
                yield each, one.timestamp


# -- the whole payload of one

@routes.get(_PAYLOAD + "/{message:[^/]+}", right=rights.CONSUMES)
async def payload(request: web.Request) -> web.Response:
    """Answer with the whole payload of a message, for a file: browsers do not show it as a page."""
    ledger, entry, index = place_of(part_of(request, "message"), "The message")
    async with request.app[PAGES]:
        one = await ask_single(request, _PARTITIONED, partial(GetEntry, position=(ledger, entry)))
        stored = Stored(one.ledger, one.entry, base64.b64decode(one.data))
        work = partial(_payload, str(single_of(request)), stored, index)
        content = await asyncio.get_running_loop().run_in_executor(_decoding, work)
    if content is None:
        raise web.HTTPNotFound(text="Message not found")
    return web.Response(body=content, content_type="application/octet-stream", headers={
        "Content-Disposition": f'attachment; filename="message-{ledger}-{entry}{f"-{index}" if index >= 0 else ""}"',
        "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"})


def _payload(topic: str, stored: Stored, index: int) -> bytes | None:
    for each in shown.messages(topic, stored, unpacked_max=shown.WHOLE_MAX):
        if index in (-1, each.message.batch_index):
            return each.message.payload
    return None


# -- publishing

@routes.post(_MESSAGES, right=rights.PRODUCES)
async def publish(request: web.Request) -> web.Response:
    """Publish one message, and answer when it is on disk.

    The body has the fields of workers/messages/outgoing.py. A `value` is encoded by the topic's newest schema.
    """
    topic, body = existing_of(request), await body_of(request)
    definition = None
    if isinstance(body, dict) and body.get("value") is not None:
        kept = registry.find(catalogue_of(request), topic)
        if kept is None:
            raise web.HTTPBadRequest(text="value: the topic has no schema: publish a payload")
        definition = kept.definition
    try:
        encoder = None
        if definition is not None:
            from geminga.workers.messages.schema_encoding import NotEncodable, SchemaEncoder  # slow to import
            try:
                encoder = SchemaEncoder(definition)
            except (NotEncodable, InvalidSchema) as error:
                raise outgoing.Wrong(f"value: {error}") from None
        message = outgoing.of_json(json.dumps(body).encode(), About(), encoder)
    except outgoing.Wrong as error:
        raise web.HTTPBadRequest(text=str(error)) from None
    schema = registry.to_wire(definition, "") if definition is not None else None
    try:
        async with asyncio.timeout(_PUBLISH_SECONDS):
            receipt = await _publish(f"{UNIX}{request.app[INSIDE]}", topic, message, schema)
    except TimeoutError:
        raise web.HTTPServiceUnavailable(text=f"The message has no receipt after {_PUBLISH_SECONDS} s: it may be "
                                              "stored, or not") from None
    except ClientError as error:
        raise web.HTTPConflict(text=str(error)) from None
    except OSError as error:
        raise web.HTTPServiceUnavailable(text=f"The broker takes no messages now: {error}") from None
    is_stored = receipt.has_id and topic.is_persistent
    return web.json_response({"id": f"{receipt.ledger_id}:{receipt.entry_id}" if is_stored else None,
                              "topic": receipt.producer.topic})


async def _publish(url: str, topic: TopicName, message: Outgoing, schema: api.Schema | None) -> Receipt:
    """Publish a message as a client on this host.  Raises ClientError, OSError."""
    connection = await client.connect(url)
    try:
        if len(message.payload) > connection.message_size_max:
            raise ClientError(f"it has {len(message.payload)} bytes, and the broker takes "
                                     f"{connection.message_size_max}")
        receipts: list[Receipt] = []
        sending = Sending(connection, receipts.append)
        opened = await publishing.open_producers(connection, sending, topic, None, "", schema)
        publisher = publishing.Publisher(sending, opened, key_hashing.Scheme("murmur3", key_hashing.murmur3))
        async with sending:
            await publisher.publish([message])
            await publisher.flush()
        await sending.close()
        return receipts[0]
    finally:
        connection.close()
