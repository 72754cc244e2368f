"""Questions of a page: requests to REST's own routes, answered in this process for the role that looks at the page.

A page's questions pass the same checks as those of a client over the network. So a page shows a role what REST would
answer to it, and nothing else.
"""
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from aiohttp import web
from multidict import MultiMapping
from yarl import URL

_NOT_ALLOWED = 401, 403


class QuestionRefused(Exception):
    """An error: REST refused a question.  The text is its reason."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status, self.text = status, text


class Asking:
    """The address of a page that is being loaded, and the way of that page to ask REST."""

    def __init__(self, request: web.Request, parts: Mapping[str, str], query: MultiMapping[str]):
        """parts: those of the page's path, decoded.  query: parameters of its address."""
        self.request, self._parts, self.query = request, parts, query
        self.calls: list[str] = []       # the requests that were made, as people write them
        self.memory: dict[str, Any] = {}      # what a page keeps from one update to the next

    def __repr__(self) -> str:
        return f"<Asking {dict(self._parts)} calls={len(self.calls)}>"

    def part(self, name: str) -> str:
        """Return a part of the page's path."""
        return self._parts[name]

    @staticmethod
    def quoted(text: str) -> str:
        """Return a text as one part of a path."""
        return quote(text, safe="")

    @property
    def topic_path(self) -> str:
        """The page's topic as REST's paths name it: DOMAIN/TENANT/NAMESPACE/TOPIC, each part quoted."""
        return "/".join(quote(self._parts[name], safe="") for name in ("domain", "tenant", "namespace", "topic"))

    @property
    def topic(self) -> str:
        """The complete name of the page's topic."""
        return "{}://{}/{}/{}".format(*(self._parts[name] for name in ("domain", "tenant", "namespace", "topic")))

    async def get(self, path: str, **query: Any) -> Any:
        """Return REST's answer to GET: the value of its JSON, or a text.  Raises QuestionRefused.

        path: quoted, without parameters.  query: parameters; those that are None are left out.
        """
        answer = await self.answer(path, **query)
        if answer.content_type == "application/json":
            return json.loads(answer.body) if answer.body else None      # type: ignore[arg-type]  # it is bytes
        return answer.text

    async def maybe(self, path: str, **query: Any) -> Any:
        """Return REST's answer to GET, None if the role may not ask, or what it asks for is not there.

        Raises QuestionRefused for other refusals.
        """
        try:
            return await self.get(path, **query)
        except QuestionRefused as refused:
            if refused.status in _NOT_ALLOWED or refused.status == web.HTTPNotFound.status_code:
                return None
            raise

    async def answer(self, path: str, **query: Any) -> web.Response:
        """Return REST's whole answer to GET.  Raises QuestionRefused."""
        parameters = urlencode([(name, _text(value)) for name, value in query.items() if value is not None])
        address = path + ("?" if parameters else "") + parameters
        if (call := f"GET {address}") not in self.calls:
            self.calls.append(call)
        inner = self.request.clone(method="GET", rel_url=URL(address, encoded=True))
        # aiohttp's own way from a request to its answer, through all middlewares.
        answer = await self.request.app._handle(inner)
        assert isinstance(answer, web.Response), path      # routes that pages ask do not stream
        if answer.status >= 400:
            raise QuestionRefused(answer.status, _reason(answer))
        return answer


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _reason(answer: web.Response) -> str:
    try:
        said = json.loads(answer.text or "")
    except ValueError:
        said = None
    return str(said["reason"]) if isinstance(said, dict) and "reason" in said else answer.reason or ""
