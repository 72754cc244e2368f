"""Paths of messages over plain HTTP, in the admin process.

    POST /topics/{domain}/{tenant}/{namespace}/{topic}[/partitions/{number}]
    POST /topics/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}, and GET with a proof
    POST /topics/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/ack, and /nack

Requests pass all checks of REST here: names of the host, other sites' pages, credentials and rights.  Then they are
handed on, by HTTP over a Unix socket, to the `geminga-web` process that has the topic's producers and consumers, and
its answer is passed back as it comes.  So the next request on the same connection is checked again, with TLS or
without, and may be about anything else.
"""
import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from geminga.proto.names import TopicName
from geminga.supervisor.admin.requests.authentication import IDENTITY
from geminga.supervisor.admin.requests.origins import refuse_unproven
from geminga.supervisor.admin.requests.request_parts import (
    PATH,
    READ_ELSEWHERE,
    TOPICS,
    ReadElsewhere,
    catalogue_of,
    error_answer,
    existing_of,
    number_of,
    part_of,
)
from geminga.supervisor.admin.requests.rights import READS, WRITES, Routes
from geminga.workers.http_messages.calls import (
    ACKNOWLEDGE,
    HEADER,
    HEADER_MAX,
    PRODUCE,
    RECEIVE,
    REFUSE,
    Call,
    calls_path,
    index_of,
)

routes = Routes()
_TOPIC = "/topics" + PATH
_SUBSCRIPTION = _TOPIC + "/subscription/{subscription:[^/]+}"
_CALLS_MAX = 2_000           # that are handed on and have no answer yet
_LAST = (1 << 31) - 1
_EVENTS = "text/event-stream"
_PASSED_ON = "Content-Type", "Content-Length", "Cache-Control"

# What `geminga-web` reads, for the description of REST.
_TEXT, _NUMBER, _MOMENT = {"type": "string"}, {"type": "integer"}, {"type": "integer", "description": "ms since 1970"}
_IDS = {"type": "array", "items": _TEXT}
_PRODUCING = {"type": "object", "required": ["messages"], "properties": {
    "producerName": _TEXT, "keySchema": _TEXT, "valueSchema": _TEXT, "schemaVersion": _NUMBER,
    "messages": {"type": "array", "items": {"type": "object", "required": ["payload"], "properties": {
        "payload": {}, "key": _TEXT, "properties": {"type": "object"}, "eventTime": _MOMENT, "sequenceId": _NUMBER,
        "deliverAt": _MOMENT, "deliverAfterMs": _NUMBER, "replicationClusters": _IDS,
        "disableReplication": {"type": "boolean"}}}}}}
_ACKS = {"type": "object", "properties": {"messageIds": _IDS, "upTo": _TEXT}}
_NACKS = {"type": "object", "required": ["messageIds"], "properties": {"messageIds": _IDS, "delayMs": _NUMBER}}
_PARAMETERS: dict[str, dict[str, Any]] = {
    "max": _NUMBER, "wait": _NUMBER, "ackTimeoutMillis": _NUMBER,
    "subscriptionType": {"type": "string", "enum": ["Shared", "Exclusive", "Failover", "Key_Shared"]},
    "subscriptionMode": {"type": "string", "enum": ["Durable", "NonDurable"]},
    "subscriptionInitialPosition": {"type": "string", "enum": ["Latest", "Earliest"]},
    "receiverQueueSize": _NUMBER, "consumerName": _TEXT, "priorityLevel": _NUMBER, "maxRedeliverCount": _NUMBER,
    "deadLetterTopic": _TEXT}


class Links:
    """The connections to all `geminga-web` processes."""

    def __init__(self, data_dir: Path, processes: int) -> None:
        self._data_dir, self.processes = data_dir, processes
        self._sessions: list[aiohttp.ClientSession] = []
        self.calls = 0                             # under way

    def __repr__(self) -> str:
        return f"<Links processes={self.processes} calls={self.calls}>"

    async def serve(self, app: web.Application) -> AsyncIterator[None]:
        """Keep the connections while the application runs."""
        # Paths of sockets have at most 107 bytes, and those of data folders may have more.
        folder = os.open(self._data_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._sessions = [aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(f"/proc/self/fd/{folder}/{calls_path(index)}", limit=0),
                cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None),
                max_field_size=HEADER_MAX) for index in range(self.processes)]
            yield
            for session in self._sessions:
                await session.close()
        finally:
            os.close(folder)

    def ask(self, request: web.Request, topic: TopicName, call: Call) -> "aiohttp.client._RequestContextManager":
        """Hand a request on to the process of its topic."""
        session = self._sessions[index_of(str(topic.base), self.processes)]
        return session.post("http://web/", headers={HEADER: call.as_text(), "Content-Type": "application/json"},
                            data=request.content if request.can_read_body and call.kind != RECEIVE else None)


LINKS = web.AppKey("http_messages", Links)


def install(app: web.Application) -> None:
    """Add the paths to the admin process's application, unless there is no process that serves them."""
    config = app[TOPICS].config
    if not config.http.web_processes:
        return
    app[LINKS] = Links(config.data_dir, config.http.web_processes)
    app.cleanup_ctx.append(app[LINKS].serve)
    app.add_routes(routes)
    app[READ_ELSEWHERE] |= {produce: ReadElsewhere({}, _PRODUCING), receive: ReadElsewhere(_PARAMETERS),
                            acknowledge: ReadElsewhere(_PARAMETERS, _ACKS),
                            refuse: ReadElsewhere(_PARAMETERS, _NACKS)}


@routes.post(_TOPIC, right=WRITES)
@routes.post(_TOPIC + "/partitions/{number:[0-9]+}", right=WRITES)
async def produce(request: web.Request) -> web.StreamResponse:
    """Publish messages, each encoded by a schema, and answer when all are on disk."""
    topic = existing_of(request)
    if "number" in request.match_info:
        return await _hand_on(request, topic, PRODUCE, number_of(request, part_of(request, "number"), "The partition",
                                                                 _LAST))
    count = catalogue_of(request).topics.partition_count(topic.base)
    if count and 0 <= topic.partition < count:
        # A producer of its own would claim a name that the partitioned topic's producer has there already.
        return await _hand_on(request, topic.base, PRODUCE, topic.partition)
    return await _hand_on(request, topic, PRODUCE)


@routes.post(_SUBSCRIPTION, right=READS)
@routes.get(_SUBSCRIPTION, allow_head=False, right=READS)
async def receive(request: web.Request) -> web.StreamResponse:
    """Answer with messages of a subscription as soon as there are some, or send them as server-sent events.

    By POST, whose body is not looked at, or by a GET that no page of another site can have a browser send.
    """
    if request.method == "GET":
        refuse_unproven(request, request[IDENTITY])
    return await _hand_on(request, existing_of(request), RECEIVE)


@routes.post(_SUBSCRIPTION + "/ack", right=READS)
async def acknowledge(request: web.Request) -> web.StreamResponse:
    """Acknowledge messages, and answer when that is on disk."""
    return await _hand_on(request, existing_of(request), ACKNOWLEDGE)


@routes.post(_SUBSCRIPTION + "/nack", right=READS)
async def refuse(request: web.Request) -> web.StreamResponse:
    """Have messages delivered again, to this client or another one."""
    return await _hand_on(request, existing_of(request), REFUSE)


async def _hand_on(request: web.Request, topic: TopicName, kind: str, partition: int = -1) -> web.StreamResponse:
    """Hand a request on, and pass its answer back.  Raises 4xx, 503."""
    links = request.app[LINKS]
    if links.calls >= _CALLS_MAX:
        raise web.HTTPServiceUnavailable(text=f"{_CALLS_MAX} calls are under way; try again")
    parameters = dict(reversed(list(request.query.items())))      # the first of several values counts, as in Pulsar
    parameters.pop("token", None)
    subscription = part_of(request, "subscription") if "subscription" in request.match_info else ""
    call = Call(kind, str(topic), partition, subscription, tuple(parameters.items()), request[IDENTITY],
                _EVENTS in request.headers.get("Accept", ""), request.headers.get("Last-Event-ID", ""))
    links.calls += 1
    asking = asyncio.create_task(_ask(request, topic, call))
    try:
        if kind != RECEIVE:      # else nobody would take what comes for a client that has gone
            return await asking
        gone = _Gone()
        request.protocol.close()      # behind the answer: bytes of a next request are lost here
        request.protocol.set_parser(gone)      # type: ignore[arg-type]
        either: set[asyncio.Future[Any]] = {asking, gone.future}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else web.Response(status=503)      # which nobody reads
    finally:
        links.calls -= 1
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({asking})


class _Gone:
    """Stands where the parser of a connection's next request does, and is told when the connection ends."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        return False, b""

    def feed_eof(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


async def _ask(request: web.Request, topic: TopicName, call: Call) -> web.StreamResponse:
    try:
        async with request.app[LINKS].ask(request, topic, call) as answer:
            return await _pass_back(request, answer, closes=call.kind == RECEIVE)
    except (aiohttp.ClientError, OSError) as error:
        if request.content.exception() is not None:
            raise web.HTTPBadRequest(text="The body ends early, or is not encoded as its headers say") from None
        raise web.HTTPServiceUnavailable(text=f"The process that serves messages has ended ({error}): those without an "
                                              "answer may be stored, or not") from None


async def _pass_back(request: web.Request, answer: aiohttp.ClientResponse, *, closes: bool) -> web.StreamResponse:
    """Pass an answer back, as far as the client reads.

    closes: the client's connection ends with the answer.  Raises ClientError.
    """
    if answer.status >= 400:
        refused = error_answer(answer.status, (await answer.json())["reason"])
        if closes:
            refused.force_close()
        return refused
    passed = web.StreamResponse(status=answer.status,
                                headers={name: answer.headers[name] for name in _PASSED_ON if name in answer.headers})
    if closes:
        passed.force_close()
    try:
        await passed.prepare(request)
        async for data in answer.content.iter_any():
            await passed.write(data)
    except (aiohttp.ClientError, ConnectionError):
        if request.transport is not None:      # nobody may take a part of an answer for the whole
            request.transport.abort()
    return passed
