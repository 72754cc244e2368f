"""Bodies of requests: JSON of bounded size, and a bound for all that are in memory together."""
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

from aiohttp import web

from geminga.workers.web.session import TurnedAway

BODY_MAX = 16 << 20          # bytes: a message of the usual largest size, whose every third character is escaped
_ALL_MAX = 128 << 20         # bytes of all bodies in memory
_SECONDS = 30                # limit for a body to come
_PARTS_MAX = 1_000_000       # objects and lists of a body, each of which takes more memory than its two bytes
_LARGE = 64 << 10            # bytes of a body that would keep the process's other work waiting


class Bodies:
    """Reads the bodies of one process's requests."""

    def __init__(self) -> None:
        self._bytes = 0                            # of bodies in memory

    def __repr__(self) -> str:
        return f"<Bodies bytes={self._bytes}>"

    @contextlib.asynccontextmanager
    async def read(self, request: web.BaseRequest) -> AsyncIterator[tuple[Any, int]]:
        """Yield (a body's JSON value, None for an empty body; its size in bytes).

        The bytes count until the end of the `with` block.

        Raises TurnedAway.
        """
        data = bytearray()
        try:
            await self._come(request, data)
            yield await in_background(_json, bytes(data), size=len(data)), len(data)
        finally:
            self._bytes -= len(data)

    async def _come(self, request: web.BaseRequest, data: bytearray) -> None:
        """Append what comes to `data`.  Raises TurnedAway."""
        try:
            async with asyncio.timeout(_SECONDS):
                async for chunk in request.content.iter_any():
                    data += chunk
                    self._bytes += len(chunk)
                    if len(data) > BODY_MAX:
                        raise TurnedAway(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A body has at most {BODY_MAX} bytes")
                    if self._bytes > _ALL_MAX:
                        raise TurnedAway(HTTPStatus.SERVICE_UNAVAILABLE, "Too many bodies are under way; try again")
        except TimeoutError:
            raise TurnedAway(HTTPStatus.REQUEST_TIMEOUT, f"The body has not come within {_SECONDS} s") from None
        except web.RequestPayloadError:
            raise TurnedAway(HTTPStatus.BAD_REQUEST,
                             "The body ends early, or is not encoded as its headers say") from None


async def in_background(work: Any, *arguments: Any, size: int) -> Any:
    """Return work(*arguments), done in a thread if it is about so many bytes that others would wait for it."""
    return await asyncio.to_thread(work, *arguments) if size > _LARGE else work(*arguments)


def _json(data: bytes) -> Any:
    if data.count(b"{") + data.count(b"[") > _PARTS_MAX:
        raise TurnedAway(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A body has at most {_PARTS_MAX} objects and lists")
    try:
        return json.loads(data, parse_constant=_no_number) if data.strip() else None
    except (ValueError, RecursionError):
        raise TurnedAway(HTTPStatus.BAD_REQUEST, "The body is not JSON") from None


def _no_number(text: str) -> None:
    """Refuse NaN and Infinity, which JSON does not have."""
    raise ValueError(text)
