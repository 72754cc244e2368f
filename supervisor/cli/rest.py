"""Questions to a broker's HTTP port."""
import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

DONE, REFUSED, WRONG_USAGE, NOT_REACHABLE = range(4)  # exit statuses


class Refused(Exception):
    """The broker answered with an error."""

    exit_status = REFUSED

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{reason} (HTTP {status})")
        self.status = status


class NotReachable(Exception):
    """No answer came."""

    exit_status = NOT_REACHABLE


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def value(self) -> Any:
        """What it says: JSON, or a text that is none; None without a body."""
        if not self.body:
            return None
        try:
            return json.loads(self.body)
        except ValueError:
            return self.body.decode(errors="replace")


class Broker:
    """One connection, made with the first question."""

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise NotReachable(f"{url} is no address such as http://127.0.0.1:8080")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._url = url
        self._root = parts.path.rstrip("/")
        self._connection = kind(parts.hostname, parts.port, timeout=timeout_s)

    def ask(self, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None) -> Answer:
        """The answer; a body is sent as JSON.  Raises Refused and NotReachable."""
        target = self._root + path
        if query:
            target += ("&" if "?" in path else "?") + urlencode({name: shown(value) for name, value in query.items()})
        headers = {"Accept": "application/json, */*"}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(method, target, content, headers)
            answer = self._connection.getresponse()
            found = Answer(answer.status, answer.headers, answer.read())
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise NotReachable(f"{self._url}: {error or type(error).__name__}") from error
        if found.status >= 300:
            raise Refused(found.status, _reason(found, answer.reason))
        return found


def _reason(answer: Answer, phrase: str) -> str:
    """What is wrong, in one line: the reason in the body, its text, or the phrase beside the status."""
    said = answer.value()
    if isinstance(said, dict):
        said = said.get("reason")
    html = answer.headers.get_content_type() == "text/html"
    return " ".join(str(said).split()) if said and not html else phrase


def shown(value: Any) -> str:
    """A value as JSON has it; a text without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def quoted(part: str) -> str:
    """One part of a path, whatever characters it has."""
    return quote(part, safe="")


def topic_path(name: str) -> str:
    """domain/tenant/namespace/topic, each quoted, of a complete name or a short one; raises ValueError."""
    domain, _, rest = name.rpartition("://") if "://" in name else ("persistent", "", name)
    parts = rest.split("/", 2)
    if len(parts) == 1:
        parts = ["public", "default", *parts]
    if domain not in ("persistent", "non-persistent") or len(parts) != 3 or not all(parts):
        raise ValueError(f"{name!r} is no topic: [persistent://|non-persistent://]tenant/namespace/topic")
    return "/".join(quoted(part) for part in (domain, *parts))


def namespace_path(name: str) -> str:
    parts = name.split("/")
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"{name!r} is no namespace: tenant/namespace")
    return "/".join(map(quoted, parts))
