"""Requests of one connection of the binary protocol, many under way at a time: numbers, answers, failures."""
import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.pulsar_client.client import ClientError

T = api.BaseCommand.Type
ANSWER_S = 30.0              # that the peer has for an answer
# Type of an answer: (its field of BaseCommand, field of an error's code in there, field of its text).
_ANSWERS: dict[int, tuple[str, str, str]] = {
    T.SUCCESS: ("success", "", ""),
    T.PRODUCER_SUCCESS: ("producer_success", "", ""),
    T.ERROR: ("error", "error", "message"),
    T.PARTITIONED_METADATA_RESPONSE: ("partitionMetadataResponse", "error", "message"),
    T.LOOKUP_RESPONSE: ("lookupTopicResponse", "error", "message"),
    T.GET_SCHEMA_RESPONSE: ("getSchemaResponse", "error_code", "error_message"),
    T.GET_OR_CREATE_SCHEMA_RESPONSE: ("getOrCreateSchemaResponse", "error_code", "error_message"),
    T.ACK_RESPONSE: ("ackResponse", "error", "message"),
    T.WATCH_TOPIC_LIST_SUCCESS: ("watchTopicListSuccess", "", ""),
}


class Requests:
    """Requests that have no answer yet, and the handshake before them."""

    __slots__ = ("_connected", "_failure", "_ids", "_refusal", "_send", "_waiting")

    def __init__(self, send: Callable[[api.BaseCommand], None], failure: Callable[[str], ClientError],
                 refusal: Callable[[int, str], str]) -> None:
        """send: writes a command.  failure: makes the error of a peer that does not answer, of its text.

        refusal: makes the text of a peer's error, of its code and text.
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
        return await self._answer(api.BaseCommand(type=T.CONNECT, connect=request), self._connected)

    async def ask(self, command: api.BaseCommand, request_id: int) -> Any:
        """Send a request, and return the message inside its answer.  Raises ClientError."""
        waiting = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        try:
            return await self._answer(command, waiting)
        finally:
            self._waiting.pop(request_id, None)

    async def _answer(self, command: api.BaseCommand, waiting: "asyncio.Future[Any]") -> Any:
        self._send(command)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await waiting
        except TimeoutError:
            raise self._failure(f"no answer to {T.Name(command.type)} within {ANSWER_S:g} s") from None

    def take(self, command: api.BaseCommand) -> bool:
        """Hand an answer to the one who waits for it.  Return whether the command is an answer."""
        if command.type == T.CONNECTED:
            if not self._connected.done():
                self._connected.set_result(command.connected)
            return True
        if command.type not in _ANSWERS:
            return False
        name, code, text = _ANSWERS[command.type]
        answer = getattr(command, name)
        is_handshake = command.type == T.ERROR and not self._connected.done()
        waiting = self._connected if is_handshake else self._waiting.get(answer.request_id)
        if waiting is None or waiting.done() or (command.type == T.PRODUCER_SUCCESS and not answer.producer_ready):
            return True      # nobody waits, or another answer follows
        if code and answer.HasField(code):
            number = getattr(answer, code)
            waiting.set_exception(ClientError(self._refusal(number, getattr(answer, text)), number))
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
