"""A WebSocket client for tests: aiohttp's, with its loop in a thread, so that tests read from top to bottom.

    with Sockets(broker.http_url) as sockets:
        producer = sockets.producer(topic, batchingEnabled="true")
        producer.publish(b"payload")                  # returns the message id
        consumer = sockets.consumer(topic, "subscription")
        message = consumer.message()                  # as a dictionary
        consumer.send(messageId=message["messageId"])
"""
import asyncio
import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp

from ..harness import HANG_SECONDS, path_of

SECONDS = HANG_SECONDS
QUIET_SECONDS = 0.5          # after which nothing is expected to come any more
Answer = TypeVar("Answer")


class Closed(Exception):
    """The server has closed the connection.  code: None without a CLOSE."""

    def __init__(self, code: int | None, reason: str | None = "") -> None:
        super().__init__(f"{code} {reason}")
        self.code = code


class Socket:
    """One open WebSocket."""

    def __init__(self, sockets: "Sockets", link: aiohttp.ClientWebSocketResponse) -> None:
        self._sockets, self.link = sockets, link
        connection = link._response.connection      # no public way
        assert connection is not None
        self.transport = connection.transport

    def __repr__(self) -> str:
        return f"<Socket closed={self.link.closed}>"

    def text(self, text: str) -> None:
        self._sockets.run(self.link.send_str(text))

    def send(self, **fields: Any) -> None:
        self.text(json.dumps(fields))

    def binary(self, data: bytes) -> None:
        self._sockets.run(self.link.send_bytes(data))

    def raw(self, opcode: int, data: bytes) -> None:
        """Send a frame of any kind."""
        self._sockets.run(self.link._writer.send_frame(data, opcode))      # no public way

    def receive(self) -> dict[str, Any]:
        """Return the next text, which is JSON.  Raises Closed."""
        came = self._sockets.run(self.link.receive(SECONDS))
        if came.type is aiohttp.WSMsgType.TEXT:
            return json.loads(came.data)
        raise Closed(came.data if came.type is aiohttp.WSMsgType.CLOSE else None, str(came.extra))

    def code(self) -> int | None:
        """Return the code with which the server closes the connection; texts before it are skipped."""
        while True:
            try:
                self.receive()
            except Closed as closed:
                return closed.code

    def close(self) -> None:
        self._sockets.run(self.link.close())

    # -- producers

    def publish(self, payload: bytes, **fields: Any) -> str:
        """Publish a message, and return its id."""
        self.send(payload=base64.b64encode(payload).decode(), **fields)
        answer = self.receive()
        assert answer["result"] == "ok", answer
        return answer["messageId"]

    # -- consumers and readers

    def message(self) -> dict[str, Any]:
        """Return the next message, with `data` for the decoded payload."""
        came = self.receive()
        return came | {"data": base64.b64decode(came["payload"])}

    def data(self, count: int) -> list[bytes]:
        """Return the payloads of the next messages, which are acknowledged."""
        found = []
        for _ in range(count):
            message = self.message()
            self.send(messageId=message["messageId"])
            found.append(message["data"])
        return found

    def is_quiet(self) -> bool:
        """Whether nothing comes for a while, after everything that was sent before was answered."""
        self.send(type="isEndOfTopic")
        if "endOfTopic" not in self.receive():
            return False
        try:
            self._sockets.run(self.link.receive(QUIET_SECONDS))
        except TimeoutError:
            return True
        return False


class Sockets:
    """WebSockets of one server."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None, **headers: str) -> None:
        self.url, self._tls, self._headers = url, tls, headers
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._opened: list[Socket] = []

    def __enter__(self) -> "Sockets":
        self._thread.start()
        self._session = self.run(self._make_session())
        return self

    def __exit__(self, *_: object) -> None:
        for socket in self._opened:
            self.run(socket.link.close())
        self.run(self._session.close())
        self.run(self._abort())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _abort(self) -> None:
        """End the transports in the next round of the loop: those with TLS would wait for the other side."""
        for socket in self._opened:
            if socket.transport is not None:
                with contextlib.suppress(AttributeError):      # of Python 3.11, for one with TLS that has ended
                    socket.transport.abort()
        await asyncio.sleep(0)

    async def _make_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(headers=self._headers,
                                     connector=aiohttp.TCPConnector(ssl=self._tls or True, limit=0))

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def open(self, path: str, headers: dict[str, str] | None = None, **parameters: Any) -> Socket:
        """Open a WebSocket.  Raises aiohttp.WSServerHandshakeError."""
        url = self.url + path + (("&" if "?" in path else "?") + urlencode(parameters) if parameters else "")
        link = self.run(self._session.ws_connect(url, max_msg_size=0, headers=headers))
        self._opened.append(Socket(self, link))
        return self._opened[-1]

    def status(self, path: str, headers: dict[str, str] | None = None, **parameters: Any) -> int:
        """Return the status of a handshake: 101, or that of an error."""
        try:
            self.open(path, headers, **parameters).close()
        except aiohttp.WSServerHandshakeError as error:
            return error.status
        return 101

    def producer(self, topic: str, **parameters: Any) -> Socket:
        return self.open(f"/ws/v2/producer/{path_of(topic)}", **parameters)

    def consumer(self, topic: str, subscription: str, **parameters: Any) -> Socket:
        return self.open(f"/ws/v2/consumer/{path_of(topic)}/{quote(subscription, safe='')}", **parameters)

    def reader(self, topic: str, **parameters: Any) -> Socket:
        return self.open(f"/ws/v2/reader/{path_of(topic)}", **parameters)
