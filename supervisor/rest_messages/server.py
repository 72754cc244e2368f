"""A `geminga-web` process's side of plain HTTP: it answers calls that the admin process hands on."""
import asyncio
import json
import secrets
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus

from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.log import log
from geminga.supervisor.rest_messages import producing
from geminga.supervisor.rest_messages.bodies import Bodies, in_background
from geminga.supervisor.rest_messages.calls import HEADER, HEADER_MAX, PRODUCE, Call
from geminga.supervisor.rest_messages.pool import Pool
from geminga.supervisor.rest_messages.publisher import Outcome, Publisher
from geminga.supervisor.web.inner import Links
from geminga.supervisor.web.session import Turned
from geminga.workers.identity.authentication import Identity

_PRODUCERS_MAX = 500         # of a process, each with a connection to a worker
_PRODUCER_S = 30.0           # after its last call, when a producer ends
_STOP_S = 0.5                # that calls have to end when the process stops
_NOT_STORED = 2              # errorCode of a message, as in Pulsar


class Server:
    """Plain HTTP of one process."""

    def __init__(self, listener: socket.socket, links: Links) -> None:
        self._listener, self._links, self._bodies = listener, links, Bodies()
        self._publishers: Pool[Publisher] = Pool(_PRODUCERS_MAX, _PRODUCER_S)
        self._work: dict[str, Callable[[web.BaseRequest, Call], Awaitable[web.StreamResponse]]] = {
            PRODUCE: self._produce}
        self._server = web.Server(self._answer, access_log=None, handler_cancellation=True,
                                  max_field_size=HEADER_MAX)

    def __repr__(self) -> str:
        return f"<Server {self._publishers!r} {self._bodies!r}>"

    async def start(self) -> None:
        """Take calls from now on."""
        await asyncio.get_running_loop().create_unix_server(self._server, sock=self._listener)

    def look(self, now_s: float) -> None:
        """End what was not used for a while."""
        self._publishers.look()

    def end_unless(self, accepts: Callable[[Identity], bool]) -> None:
        """End what belongs to identities that the configuration does not admit any more."""
        self._publishers.end_unless(accepts)

    async def stop(self) -> None:
        """End all calls."""
        await self._server.shutdown(_STOP_S)
        self._publishers.stop()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            call = Call.of_text(request.headers[HEADER])
            return await self._work[call.kind](request, call)
        except Turned as error:
            return _refused(error.status, error.text)
        except ConnectionError:      # the admin process has hung up
            return web.Response()
        except Exception as error:
            log.error(f"a call over HTTP fails: {error!r}", code="G290")
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "An error of the broker's own; its log has the details")

    async def _produce(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        """Publish the messages of a body, and answer when each is stored or refused.  Raises Turned."""
        async with self._bodies.read(request) as (fields, size):
            body = await in_background(producing.read, fields, size=size)
            # Sequence ids mean nothing beside those of other calls, unless these have the same producer name.
            is_alone = not body.producer_name and any(one.sequence_id is not None for one in body.messages)
            name = f"\0{secrets.token_hex(8)}" if is_alone else body.producer_name      # no name has a NUL
            make = partial(Publisher, call, body.producer_name, body.schema, self._links)
            try:
                async with self._publishers.use(call.key(name), make, is_alone=is_alone) as publisher:
                    schema = await publisher.schema(body.schema)
                    messages = await in_background(producing.encode, schema.encoder, body.messages, size=size)
                    return _published(await publisher.publish(messages, schema, call.partition), schema.number)
            except Turned as error:
                if error.code != api.TopicTerminatedError:
                    raise
                outcomes = [Outcome(call.partition, asyncio.Event()) for _ in body.messages]
                for outcome in outcomes:
                    outcome.refuse(error.text)
                return _published(outcomes, -1)


def _published(outcomes: list[Outcome], version: int) -> web.Response:
    """Return the answer to a call, whose messages are stored or refused one by one."""
    results = [{"messageId": one.message_id, "errorCode": 0, "schemaVersion": 0} if not one.why else
               {"messageId": one.message_id, "errorMsg": one.why, "errorCode": _NOT_STORED, "schemaVersion": 0}
               for one in outcomes]
    return _json({"messagePublishResults": results, "schemaVersion": version})


def _json(body: object) -> web.Response:
    return web.json_response(body=json.dumps(body).encode())


def _refused(status: HTTPStatus, reason: str) -> web.Response:
    return web.json_response({"reason": reason}, status=status)
