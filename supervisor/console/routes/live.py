"""Updates of an open page, as server-sent events.

    parts     {block: HTML} of the page's blocks that have changed
    sample    a new point of the curves, once a second
    ended     the session is over, or the page's subject was deleted: the browser loads the page again

A page that nobody has open costs nothing. Between two events a stream asks whether its session still holds.
"""
import json
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from geminga.storage.runtime.log import log
from geminga.supervisor.admin.requests.authentication import AUTHENTICATOR, IDENTITY
from geminga.supervisor.console import rendering
from geminga.supervisor.console.asking import Asking, QuestionRefused
from geminga.supervisor.console.history import HISTORY, Steps
from geminga.supervisor.console.page import Page

STREAMS_MAX = 100            # open pages of all browsers together; others do not change by themselves
_STEP_SECONDS = 1.0
_PING_SECONDS = 15.0         # after which a comment shows that the connection still stands
_RETRY_MS = 1_000            # after which a browser asks again when the connection has broken
_TOLD_MAX = 200              # characters of an address in the log
OPEN = web.AppKey("open", set[int])      # streams that are open


async def stream(request: web.Request, page: Page, asking: Asking, common: dict[str, Any]) -> web.StreamResponse:
    """Answer with the updates of a page until the browser leaves.  common: values that all pages have.

    Raises 503 if too many pages are open.
    """
    if len(request.app[OPEN]) >= STREAMS_MAX:
        raise web.HTTPServiceUnavailable(text="Too many pages are open that change by themselves")
    return await events(request, request.app[OPEN], lambda answer: _run(request, answer, page, asking, common))


async def events(request: web.Request, opened: set[int],
                 run: Callable[[web.StreamResponse], Awaitable[None]]) -> web.StreamResponse:
    """Answer with the events that `run` writes, until it ends or the browser leaves.

    opened: streams of this kind, with this one meanwhile.
    """
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store",
                                         "X-Accel-Buffering": "no"})
    opened.add(id(answer))
    try:
        await answer.prepare(request)
        await run(answer)
    except ConnectionError:
        pass      # the browser has left
    except Exception:      # the answer has begun, so that it can only end: the browser asks again
        log.error(f"events of {request.path_qs[:_TOLD_MAX]}: {traceback.format_exc()}", code="G290")
    finally:
        opened.discard(id(answer))
    return answer


async def _run(request: web.Request, answer: web.StreamResponse, page: Page, asking: Asking,
               common: dict[str, Any]) -> None:
    await answer.write(b"retry: %d\n\n" % _RETRY_MS)
    shown: dict[str, str] = {}
    sent = due = time.monotonic()
    steps, sampled_ms = Steps(_STEP_SECONDS), request.app[HISTORY].last_ms()
    while request.transport is not None and not request.transport.is_closing():
        if not await holds(request):
            await answer.write(event("ended", {}))
            return
        now = time.monotonic()
        if now >= due:
            asking.calls.clear()      # only a page that is loaded names them
            try:
                parts = rendering.live_parts(page.template, common | await page.load(asking))
            except QuestionRefused as refused:
                if refused.status != web.HTTPServiceUnavailable.status_code:
                    await answer.write(event("ended", {}))
                    return
                parts = {}      # an owner is being started again
            changed = {name: html for name, html in parts.items() if shown.get(name) != html}
            if changed:
                await answer.write(event("parts", changed))
                shown, sent = shown | changed, now
            due = now + page.every_s - _STEP_SECONDS / 2
        for sample in request.app[HISTORY].after(sampled_ms) if page.path == "/" else []:
            await answer.write(event("sample", sample))
            sent, sampled_ms = now, int(sample["at"])
        if now - sent > _PING_SECONDS:
            await answer.write(b":\n\n")
            sent = now
        await steps.next()


async def holds(request: web.Request) -> bool:
    """Whether the request's credentials are still accepted, for the same role."""
    try:
        return await request.app[AUTHENTICATOR].identify(request) == request[IDENTITY]
    except web.HTTPException:
        return False


def event(name: str, value: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n".encode()
