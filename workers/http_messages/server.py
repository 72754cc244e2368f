"""A `geminga-web` process's side of plain HTTP: it answers calls that the admin process hands on."""
import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus

from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime import unix_sockets
from geminga.storage.runtime.log import log
from geminga.workers.http_messages import events, producing, receiving
from geminga.workers.http_messages.bodies import Bodies, in_background
from geminga.workers.http_messages.calls import (
    ACKNOWLEDGE,
    HEADER,
    HEADER_MAX,
    PRODUCE,
    RECEIVE,
    REFUSE,
    Call,
)
from geminga.workers.http_messages.pool import Pool
from geminga.workers.http_messages.publisher import Outcome, Publisher
from geminga.workers.http_messages.receiver import Receiver
from geminga.workers.identity.authentication import Identity
from geminga.workers.web.parameters import Consuming
from geminga.workers.web.session import TurnedAway
from geminga.workers.web.worker_links import WorkerLinks

_PRODUCERS_MAX = 500         # of a process, each with a connection to a worker
_CONSUMERS_MAX = 500         # likewise, each with a megabyte of messages at most that no call has taken
_PRODUCER_S = 30.0           # after its last call, when a producer ends
_CONSUMER_S = 5.0            # likewise a consumer: what it has taken in advance waits as long for other consumers
_LOOK_S = 1.0                # between two looks for what was not used
_STOP_S = 0.5                # that calls have to end when the process stops
_NOT_STORED = 2              # errorCode of a message, as in Pulsar


class Server:
    """Plain HTTP of one process."""

    def __init__(self, listener: socket.socket, links: WorkerLinks) -> None:
        self._listener, self._links, self._bodies = listener, links, Bodies()
        self._looking: asyncio.Task[None] | None = None
        self._publishers: Pool[Publisher] = Pool(_PRODUCERS_MAX, _PRODUCER_S)
        self._receivers: Pool[Receiver] = Pool(_CONSUMERS_MAX, _CONSUMER_S)
        self._work: dict[str, Callable[[web.BaseRequest, Call], Awaitable[web.StreamResponse]]] = {
            PRODUCE: self._produce, RECEIVE: self._receive, ACKNOWLEDGE: self._acknowledge, REFUSE: self._refuse}
        self._server = web.Server(self._answer, access_log=None, handler_cancellation=True,
                                  max_field_size=HEADER_MAX)

    def __repr__(self) -> str:
        return f"<Server {self._publishers!r} {self._bodies!r}>"

    async def start(self) -> None:
        """Take calls from now on."""
        await unix_sockets.serve(self._listener, self._server)
        self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """End what was not used for a while, again and again."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._publishers.look()
            self._receivers.look()

    def end_unless(self, accepts: Callable[[Identity], bool]) -> None:
        """End what belongs to identities that the configuration does not admit any more."""
        self._publishers.end_unless(accepts)
        self._receivers.end_unless(accepts)

    async def stop(self) -> None:
        """End all calls."""
        if self._looking is not None:
            self._looking.cancel()
        self._receivers.stop()      # which answers calls that wait
        await self._server.shutdown(_STOP_S)
        self._publishers.stop()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            call = Call.of_text(request.headers[HEADER])
            return await self._work[call.kind](request, call)
        except TurnedAway as error:
            return _refused(error.status, error.text)
        except ConnectionError:      # the admin process has hung up
            return web.Response()
        except Exception as error:
            log.error(f"a call over HTTP fails: {error!r}", code="G290")
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "An error of the broker's own; its log has the details")

    async def _produce(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        """Publish the messages of a body, and answer when each is stored or refused.  Raises TurnedAway."""
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
            except TurnedAway as error:
                if error.code != api.TopicTerminatedError:
                    raise
                outcomes = [Outcome(call.only_partition, asyncio.Event()) for _ in body.messages]
                for outcome in outcomes:
                    outcome.refuse(error.text)
                return _published(outcomes, -1)


    # -- consuming

    @asynccontextmanager
    async def _consumer(self, call: Call, wanted: Consuming, *, is_exact: bool) -> AsyncIterator[Receiver]:
        """Yield the consumer of a call.  is_exact: it must have the wanted parameters.  Raises TurnedAway."""
        key = call.key(call.subscription)
        receiver = self._receivers.find(key)
        if is_exact and receiver is not None and receiver.parameters != wanted:
            if receiver.calls:
                raise TurnedAway(HTTPStatus.CONFLICT, "Other calls use this subscription with other parameters")
            self._receivers.end(key)
        async with self._receivers.use(key, partial(Receiver, call, wanted, self._links)) as receiver:
            yield receiver

    async def _receive(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        """Answer with messages as soon as there are some, or send them as events.  Raises TurnedAway."""
        wanted = receiving.receiving(dict(call.parameters))
        last = receiving.place_of(call.last_event) if call.is_stream and call.last_event else None
        async with self._consumer(call, wanted.consuming, is_exact=True) as receiver:
            if last is not None:
                receiver.resume(last)
            if call.is_stream:
                return await events.stream(request, receiver, wanted.messages_max)
            deliveries = await receiver.take(wanted.messages_max, wanted.wait_s)
            end = ',"endOfTopic":true' if not deliveries and receiver.is_at_end else ""
            texts = ",".join(map(receiving.text_of, deliveries))
            return web.json_response(body=f'{{"messages":[{texts}]{end}}}'.encode())

    async def _acknowledge(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        """Acknowledge messages, and answer when that is on disk.  Raises TurnedAway."""
        async with self._bodies.read(request) as (fields, _):
            body = receiving.acknowledging(fields)
            wanted = receiving.receiving(dict(call.parameters), is_cumulative=body.up_to is not None)
            async with self._consumer(call, wanted.consuming, is_exact=False) as receiver:
                await receiver.acknowledge(body.places, body.up_to)
        return web.Response(status=HTTPStatus.NO_CONTENT)

    async def _refuse(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        """Have messages delivered again.  Raises TurnedAway."""
        async with self._bodies.read(request) as (fields, _):
            places, delay_ms = receiving.refusing(fields)
            wanted = receiving.receiving(dict(call.parameters))
            async with self._consumer(call, wanted.consuming, is_exact=False) as receiver:
                receiver.refuse(places, delay_ms)
        return web.Response(status=HTTPStatus.NO_CONTENT)


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
