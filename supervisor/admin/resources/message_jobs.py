"""Jobs about messages, in processes beside this one: searches of the ledgers, and dead letters sent back.

    GET  /ops/v1/search/DOMAIN/TENANT/NAMESPACE/TOPIC    lines of JSON as messages are found (tasks/searching.py)
    GET  /ops/v1/search/TENANT/NAMESPACE                 likewise, in all topics of a namespace
    GET  /ops/v1/redrive/DOMAIN/TENANT/NAMESPACE/TOPIC   what a redrive of the dead letter topic would do
    POST /ops/v1/redrive/DOMAIN/TENANT/NAMESPACE/TOPIC   do it; with `undo`, take back what it has sent (undoing.py)

A search ends after _SEARCH_SECONDS, at its limit of rows, or when the caller leaves. A redrive goes on without its
caller; one that is interrupted is complete after it is repeated.
"""
import asyncio
import contextlib
import json
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from aiohttp import web

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.catalogue.policies import Policies
from geminga.supervisor.admin.requests import jobs, rights
from geminga.supervisor.admin.requests.request_parts import (
    ANY,
    PATH,
    body_of,
    catalogue_of,
    existing_of,
    namespace_of,
    number_of,
    topic_of,
)
from geminga.supervisor.admin.resources import undoing
from geminga.supervisor.tasks.redrive_topics import subscription_in

if TYPE_CHECKING:
    from geminga.supervisor.tasks.searching import Search

routes = rights.Routes()
_SEARCH, _REDRIVE = "/ops/v1/search", "/ops/v1/redrive" + PATH
_SEARCHES_MAX = 2                # at once, each on a part of a core
_ROOM_SECONDS = 5.0              # for one of these to end: that its caller has left is noticed a little later
_SEARCH_SECONDS = 60
_ROWS, _ROWS_MAX = 100, 1_000
_PAYLOAD_BYTES, _PAYLOAD_BYTES_MAX = 1 << 10, 64 << 10
_LINE_BYTES = 4 << 20            # a row has less: all its parts are cut
_LEFT_SECONDS = 0.5              # between two looks whether the caller is still there
_LETTERS, _LETTERS_MAX = 1_000, 100_000
_LOOK_SECONDS = 15               # for the count of what a redrive would do
_ORDERS = "oldest", "newest"      # which message comes first
_TEXTS_MAX = 10                  # properties of one search


class Slots:
    """Jobs of this process that run."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_SEARCHES_MAX)
        self.is_redriving = False

    def __repr__(self) -> str:
        return f"<Slots room={self._room} is_redriving={self.is_redriving}>"

    @contextlib.asynccontextmanager
    async def search(self) -> AsyncIterator[None]:
        """Count a search while the block runs, which waits for room.  Raises 503 if there is none for some seconds."""
        try:
            async with asyncio.timeout(_ROOM_SECONDS):
                await self._room.acquire()
        except TimeoutError:
            raise web.HTTPServiceUnavailable(text=f"{_SEARCHES_MAX} searches are under way; try again") from None
        try:
            yield
        finally:
            self._room.release()

    @contextlib.contextmanager
    def redrive(self) -> Any:
        """Count a redrive while the block runs.  Raises 409 if there is another."""
        if self.is_redriving:
            raise web.HTTPConflict(text="Another redrive is under way; try again when it has ended")
        self.is_redriving = True
        try:
            yield
        finally:
            self.is_redriving = False


SLOTS = web.AppKey("slots_of_message_jobs", Slots)


# -- searches

@routes.get(_SEARCH + ANY, right=rights.CONSUMES)
async def search_topic(request: web.Request) -> web.StreamResponse:
    """Search a topic's messages, and answer with those that match as lines of JSON."""
    topic = existing_of(request)
    if not topic.is_persistent:
        raise web.HTTPPreconditionFailed(text="A non-persistent topic stores no messages")
    return await _search(request, str(topic))


@routes.get(_SEARCH + "/{tenant}/{namespace}", right=rights.DISCARDS)
async def search_namespace(request: web.Request) -> web.StreamResponse:
    """Search the messages of a namespace's topics, and answer with those that match as lines of JSON."""
    return await _search(request, namespace_of(request))


async def _search(request: web.Request, place: str) -> web.StreamResponse:
    """Answer with lines of JSON, as a job finds messages."""
    query = request.query
    if (order := query.get("order", _ORDERS[0])) not in _ORDERS:
        raise web.HTTPBadRequest(text=f"order must be {' or '.join(_ORDERS)}")
    asked: Search = {
        "folder": str(_folder(request)), "place": place,
        "limit": number_of(request, query.get("limit", str(_ROWS)), "limit", _ROWS_MAX),
        "payload": number_of(request, query.get("payload", str(_PAYLOAD_BYTES)), "payload", _PAYLOAD_BYTES_MAX),
        "newest": order == "newest",
        "properties": [text for text in query.getall("property", []) if text][:_TEXTS_MAX],
        "key": query.get("key") or None, "grep": query.get("grep") or None, "where": query.get("where") or None,
        "since": query.get("since") or None, "until": query.get("until") or None}
    async with request.app[SLOTS].search():
        job = await asyncio.create_subprocess_exec(
            *jobs.command("supervisor.tasks.searching"), env=jobs.environment(), stdin=PIPE, stdout=PIPE,
            stderr=DEVNULL, start_new_session=True, limit=_LINE_BYTES)
        try:
            assert job.stdin is not None
            job.stdin.write(json.dumps(asked).encode())
            job.stdin.close()
            return await _passed_on(request, job)
        finally:
            await _kill(job)


async def _passed_on(request: web.Request, job: Process) -> web.StreamResponse:
    """Pass the lines of a job on to the caller, until the job ends, takes too long, or the caller leaves."""
    answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    with contextlib.suppress(ConnectionError):
        async for line in _lines(request, job):
            if not answer.prepared:
                said = json.loads(line)
                if "wrong" in said:
                    raise web.HTTPBadRequest(text=said["wrong"])
                await answer.prepare(request)
            await answer.write(line)
        if not answer.prepared:
            await answer.prepare(request)
        await answer.write_eof()
    return answer


async def _lines(request: web.Request, job: Process) -> AsyncIterator[bytes]:
    """Yield the lines of a job.  The last one says how the search ended."""
    assert job.stdout is not None
    end = asyncio.get_running_loop().time() + _SEARCH_SECONDS
    reading = asyncio.ensure_future(job.stdout.readline())
    last = b""
    try:
        while asyncio.get_running_loop().time() < end:
            await asyncio.wait([reading], timeout=_LEFT_SECONDS)
            if request.transport is None or request.transport.is_closing():
                return
            if not reading.done():
                continue
            if not (line := reading.result()):
                if not last.startswith((b'{"end"', b'{"wrong"')):
                    yield b'{"end": "failed"}\n'
                return
            yield line
            last = line
            reading = asyncio.ensure_future(job.stdout.readline())
        yield b'{"end": "time"}\n'
    finally:
        reading.cancel()


async def _kill(job: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        job.kill()
    await job.wait()


def _folder(request: web.Request) -> Any:
    return catalogue_of(request).path.resolve().parent


# -- dead letters

@routes.get(_REDRIVE)
async def look(request: web.Request) -> web.Response:
    """Answer with what a redrive would send where, or what would be taken back of one; nothing is changed."""
    existing_of(request)
    with request.app[SLOTS].redrive():
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                if "undo" in request.query:
                    query: dict[str, Any] = dict(request.query) | {"properties": request.query.getall("properties", [])}
                    return await _undone(request, query, looks=True)
                return await _redriven(request, dict(request.query), "--dry-run")
        except TimeoutError:
            raise web.HTTPServiceUnavailable(text=f"There are more letters than can be looked at in {_LOOK_SECONDS} s"
                                             ) from None


@routes.post(_REDRIVE)
async def redrive(request: web.Request) -> web.Response:
    """Send dead letters back, or take back what a redrive has sent, and answer with the number of messages."""
    existing_of(request)
    body = await body_of(request)
    if body is not None and not isinstance(body, dict):
        raise web.HTTPBadRequest(text="The body is an object with count, subscription, reason, to, to_all, or undo")
    if body and "undo" in body:
        with request.app[SLOTS].redrive():
            return await _undone(request, body, looks=False)
    asked = {name: str(value) for name, value in (body or {}).items()}
    with request.app[SLOTS].redrive():
        return await _redriven(request, asked)


async def _redriven(request: web.Request, asked: dict[str, str], *more: str) -> web.Response:
    """Run a redrive, and answer with its figures.  Raises 400, 409."""
    if unknown := asked.keys() - {"count", "subscription", "reason", "to", "to_all"}:
        raise web.HTTPBadRequest(
            text=f"{', '.join(sorted(unknown))}: count, subscription, reason, to and to_all are known")
    count = number_of(request, asked.get("count", str(_LETTERS)), "count", _LETTERS_MAX)
    if any("\0" in text for text in asked.values()):
        raise web.HTTPBadRequest(text="A text with a zero byte is no name")
    options = [f"--{name}={asked[name]}" for name in ("subscription", "reason", "to") if asked.get(name)]
    if (to_all := str(asked.get("to_all", "false")).lower()) not in ("true", "false"):
        raise web.HTTPBadRequest(text="to_all is true or false")
    options += ["--to-all"] if to_all == "true" else []
    return web.json_response(await jobs.answer_of(
        "redrive", "--data-dir", _folder(request), f"--count={max(1, count)}", "-o", "json", *options, *more, "--",
        topic_of(request)))


# -- undone redrives

_TEXTS = "key", "grep", "where", "since", "until"
_OF_UNDO = {"undo", "subscription", "count", "rate", "from_subscription", "properties", *_TEXTS}


async def _undone(request: web.Request, asked: dict[str, Any], *, looks: bool) -> web.Response:
    """Take back what redrives have sent to a subscription, and answer with the number.  Raises 400, 409, Refusal."""
    if unknown := asked.keys() - _OF_UNDO:
        raise web.HTTPBadRequest(text=f"{', '.join(sorted(unknown))}: {', '.join(sorted(_OF_UNDO))} are known")
    properties = asked.get("properties", [])
    if not isinstance(properties, list) or len(properties) > _TEXTS_MAX:
        raise web.HTTPBadRequest(text=f"properties is a list of at most {_TEXTS_MAX} texts")
    words = [asked.get(name) or "" for name in ("undo", "subscription", "from_subscription", *_TEXTS)]
    if not all(isinstance(text, str) and "\0" not in text for text in [*words, *properties]):
        raise web.HTTPBadRequest(text="undo, subscription and conditions are texts without zero bytes")
    topic, letters = names.parse(words[0]), topic_of(request)
    catalogue = catalogue_of(request)
    if (whole := catalogue.topics.whole(topic)).is_scalable:
        topic = whole
    if not catalogue.topics.exists(topic) and not catalogue.topics.partition_count(topic):
        raise Refusal(api.TopicNotFound, f"Topic {topic} not found")
    subscription = words[1] or subscription_in(str(letters), str(topic))
    if not subscription:
        raise web.HTTPBadRequest(text=f"The name {letters} does not say which subscription of {topic}: name it")
    count = number_of(request, str(asked.get("count", _LETTERS)), "count", _LETTERS_MAX)
    conditions: dict[str, Any] = {name: asked.get(name) or None for name in _TEXTS}
    return await undoing.undo(request, _folder(request), undoing.Undo(
        names.parse(names.without_partition(str(letters))), str(topic), subscription,
        words[2] or Policies().dead_letter_subscription, max(1, count), _rate(asked.get("rate", 0)),
        conditions | {"properties": [text for text in properties if text]}, looks))


def _rate(value: object) -> float:
    """Return a rate in messages/s, 0 for none.  Raises 400."""
    try:
        rate = float(value)      # type: ignore[arg-type]
    except (TypeError, ValueError):
        rate = -1.0
    if not 0 <= rate < float("inf"):
        raise web.HTTPBadRequest(text="rate is a number of messages a second")
    return rate
