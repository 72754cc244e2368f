"""Requests of one connection of the binary protocol, many under way at a time: numbers, answers, failures."""
import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.proto.frames import command_of
from geminga.supervisor.pulsar_client.answers import answer_in, error_in
from geminga.supervisor.pulsar_client.client import ClientError

ANSWER_S = 30.0              # that the peer has for an answer


class Requests:
    """Requests that have no answer yet, and the handshake before them."""

    __slots__ = ("_connected", "_failure", "_ids", "_refusal", "_send", "_waiting")

    def __init__(self, send: Callable[[Message], None], failure: Callable[[str], ClientError],
                 refusal: Callable[[int, str], str]) -> None:
        """Begin without requests.

        send: is given a command's own message, such as CommandLookupTopic, and writes the command to the peer.
        failure: is given a text, and returns the error of a peer that does not answer.
        refusal: is given the code and text of an error that the peer has answered, and returns the text to raise.
        """
        self._send, self._failure, self._refusal = send, failure, refusal
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._connected: asyncio.Future[api.CommandConnected] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Requests waiting={len(self._waiting)}>"

    def next_id(self) -> int:
        """Return a new number for a request, a producer, a consumer or a watcher."""
        return next(self._ids)

    async def greet(self, request: api.CommandConnect) -> api.CommandConnected:
        """Send CONNECT, and return CONNECTED.  Raises ClientError."""
        return await self._answer(request, self._connected)

    async def ask(self, request: Any) -> Any:
        """Send a request, to which a number is given, and return the message inside its answer.  Raises ClientError."""
        request.request_id = self.next_id()
        waiting = self._waiting[request.request_id] = asyncio.get_running_loop().create_future()
        try:
            return await self._answer(request, waiting)
        finally:
            self._waiting.pop(request.request_id, None)

    async def _answer(self, request: Message, waiting: "asyncio.Future[Any]") -> Any:
        self._send(request)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await waiting
        except TimeoutError:
            raise self._failure(f"no answer to {T.Name(command_of(request).type)} within {ANSWER_S:g} s") from None

    def take(self, command: api.BaseCommand) -> bool:
        """Hand an answer to the one who waits for it.  Return whether the command is an answer."""
        if command.type == T.CONNECTED:
            if not self._connected.done():
                self._connected.set_result(command.connected)
            return True
        if (answer := answer_in(command)) is None:
            return command.type == T.PRODUCER_SUCCESS      # another answer follows
        is_handshake = command.type == T.ERROR and not self._connected.done()
        waiting = self._connected if is_handshake else self._waiting.get(answer.request_id)
        if waiting is None or waiting.done():
            return True      # nobody waits
        if (error := error_in(command)) is not None:
            waiting.set_exception(ClientError(self._refusal(*error), error[0]))
        else:
            waiting.set_result(answer)
        return True

    def end(self, why: str) -> None:
        """Fail all requests: the connection has ended."""
        for waiting in (*self._waiting.values(), self._connected):
            if not waiting.done():
                waiting.set_exception(self._failure(why))
                waiting.exception()      # else asyncio logs that nobody waits any more
        self._waiting.clear()
