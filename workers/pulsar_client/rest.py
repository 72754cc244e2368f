"""Requests to a broker's HTTP port.

They are HTTP/1.0, written by hand: an answer ends with its connection.  The standard library's client would double the
time that a command takes to start.
"""
import json
import socket
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from geminga.storage.runtime import unix_sockets
from geminga.storage.runtime.unix_sockets import UNIX
from geminga.workers.pulsar_client import reasons
from geminga.workers.pulsar_client.credentials import NOBODY, Credentials

_BAD_REQUEST = 400
_UNKNOWN = "Authentication required"      # the broker's text for credentials that it does not take
DONE, REFUSED, WRONG_USAGE, NOT_REACHABLE = range(4)  # exit statuses


class Refused(Exception):
    """An error: the broker answered with an error status; the text is its reason."""

    exit_status = REFUSED

    def __init__(self, status: int, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason} (HTTP {status})" + (f"; {remedy}" if remedy else ""))
        self.status = status


class NotReachable(Exception):
    """An error: the broker did not answer, or the address is not one of HTTP.  The text gives the reason."""

    exit_status = NOT_REACHABLE


class NoAddress(NotReachable):
    """An error: a text is not an address of HTTP."""

    exit_status = WRONG_USAGE


class NotText(ValueError):
    """An error: a name on the command line is not UTF-8."""

    exit_status = WRONG_USAGE


class Answer(NamedTuple):
    """A complete HTTP answer of a broker."""

    status: int
    phrase: str                       # behind the status
    headers: dict[str, str]           # names in lower case
    body: bytes

    def value(self) -> Any:
        """Return the body's JSON, its text if it is not JSON, or None without a body."""
        if not self.body:
            return None
        try:
            return json.loads(self.body)
        except ValueError:
            return self.body.decode(errors="replace")


class Broker:
    """The HTTP address of a broker, http://, https:// or unix:PATH, and the credentials for requests to it."""

    def __init__(self, url: str, timeout_s: float = 60.0, credentials: Credentials = NOBODY) -> None:
        parts: SplitResult | None
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts = port = None
        self._socket = Path(url.removeprefix(UNIX)) if url.startswith(UNIX) else None
        if self._socket is not None:
            parts = urlsplit("http://localhost")
        is_text = self._socket is not None or (url.isascii() and url.isprintable())
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or not is_text:
            raise NoAddress(f"{url!r} is no address of HTTP such as http://127.0.0.1:8080")
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._url = url
        self._parts = parts
        self._timeout_s = timeout_s
        self._credentials = credentials

    def __repr__(self) -> str:
        return f"<Broker {self._url} {self._credentials}>"

    def ask(self, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None) -> Answer:
        """Send a request to the broker, with its body as JSON, and return the answer.  Raises Refused, NotReachable."""
        target = self._parts.path.rstrip("/") + path
        if query:
            target += ("&" if "?" in path else "?") + urlencode({name: shown(value) for name, value in query.items()})
        content = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        lines = [f"{method} {target} HTTP/1.0", f"Host: {self._parts.netloc.rpartition('@')[2]}",
                 "Accept: application/json, */*",
                 *self._credentials.headers(), *(["Content-Type: application/json"] if content else []),
                 f"Content-Length: {len(content)}", "", ""]
        try:
            answer = _parsed(self._exchange("\r\n".join(lines).encode("ascii") + content))
        except (OSError, ValueError) as error:
            if self._socket is not None and isinstance(error, FileNotFoundError | ConnectionRefusedError):
                raise NotReachable(f"{Path(self._socket).parents[1]}: no broker serves this folder now; "
                                   "--admin-url or --url names another") from error
            raise NotReachable(f"{self._url}: {reasons.of(error, is_secure=self._parts.scheme == 'https')}") from error
        if answer.status >= 300:
            reason = _reason(answer)
            if answer.status == _BAD_REQUEST and reason.startswith("Port ") and " serves " in reason:
                raise NotReachable(f"{self._url}: {reason}")      # a port of Pulsar's protocol
            raise Refused(answer.status, reason, self._credentials.remedy() if reason == _UNKNOWN else "")
        return answer

    def _exchange(self, sent: bytes) -> bytes:
        context = self._credentials.context_for(self._url)
        with self._connected() as link:
            if context is not None:
                link = context.wrap_socket(link, server_hostname=self._parts.hostname)
            link.sendall(sent)
            received = []
            while block := link.recv(1 << 20):
                received.append(block)
        return b"".join(received)

    def _connected(self) -> socket.socket:
        if self._socket is not None:
            return unix_sockets.connect(self._socket, self._timeout_s)
        return socket.create_connection((self._parts.hostname, self._port), self._timeout_s)


def _parsed(received: bytes) -> Answer:
    """Parse an HTTP answer.  Raises ValueError if the bytes are not a complete one."""
    if not received.startswith(b"HTTP/1"):
        raise ValueError(reasons.of_bytes(received, "HTTP"))
    head, end, body = received.partition(b"\r\n\r\n")
    version, *lines = head.decode("latin-1").split("\r\n")
    _protocol, _, status = version.partition(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length")
    if not end or not status[:3].isdigit() or (length and len(body) != int(length)):
        raise ValueError("what came is no whole answer of HTTP")
    return Answer(int(status[:3]), status[4:], headers, body)


def _reason(answer: Answer) -> str:
    """Return the reason of an error answer in one line: from its JSON body, its text, or the phrase of the status."""
    text = answer.value()
    if isinstance(text, dict):
        text = text.get("reason")
    is_page = answer.headers.get("content-type", "").startswith("text/html")
    return plain(" ".join(str(text).split()) if text and not is_page else answer.phrase)


def shown(value: Any) -> str:
    """Return a value as JSON, but a text without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def quoted(part: str) -> str:
    """Percent-encode one part of a URL's path.  Raises NotText."""
    try:
        return quote(part, safe="")
    except UnicodeEncodeError:
        raise NotText(f"{part!r} is not UTF-8") from None


def subscription_path(name: str) -> str:
    """Return a subscription's name as the paths below a topic's /subscription/ have it: encoded twice, as by Pulsar's
    tools.

    Raises NotText.
    """
    return quoted(quoted(name))


def topic_path(name: str) -> str:
    """Return domain/tenant/namespace/topic with each part percent-encoded, for a complete or a short topic name.

    Raises ValueError.
    """
    domain, _, rest = name.rpartition("://") if "://" in name else ("persistent", "", name)
    parts = rest.split("/", 2)
    if len(parts) == 1:
        parts = ["public", "default", *parts]
    if domain not in ("persistent", "non-persistent", "topic") or len(parts) != 3 or not all(parts):
        raise ValueError(f"{name!r} is no topic: [persistent://|non-persistent://]tenant/namespace/topic")
    return "/".join(quoted(part) for part in (domain, *parts))


def namespace_path(name: str) -> str:
    """Return tenant/namespace with both parts percent-encoded.  Raises ValueError."""
    parts = name.split("/")
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"{name!r} is no namespace: tenant/namespace")
    return "/".join(map(quoted, parts))


def plain(text: str) -> str:
    """Escape unprintable characters: names and properties come from clients, and a terminal would obey them."""
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
