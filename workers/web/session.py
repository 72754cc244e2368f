"""What producers, consumers and readers share: a client of the workers that is opened again when it is lost.

    OPEN --the worker closes it--> LOST --opened again--> OPEN
                                        --refused--> the WebSocket closes

A session is lost when its topic is unloaded or deleted, a subscription seeks, a worker or owner ends, or a right is
revoked.  The first attempt to open it decides about the handshake's answer.

While it is open, a session of a topic with partitions looks for new ones once a minute.
"""
import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import Protocol, cast

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.log import log
from geminga.workers.pulsar_client.connection import ClientError, NoBroker
from geminga.workers.web.frames import FAILED, REFUSED
from geminga.workers.web.handovers import Handover
from geminga.workers.web.worker_links import Taker, WorkerLink, WorkerLinks

_STATUSES = {
    api.AuthenticationError: HTTPStatus.UNAUTHORIZED, api.AuthorizationError: HTTPStatus.FORBIDDEN,
    api.TopicNotFound: HTTPStatus.NOT_FOUND, api.MetadataError: HTTPStatus.NOT_FOUND,
    api.SubscriptionNotFound: HTTPStatus.NOT_FOUND,
    api.ProducerBusy: HTTPStatus.CONFLICT, api.ConsumerBusy: HTTPStatus.CONFLICT,
    api.ProducerFenced: HTTPStatus.CONFLICT, api.IncompatibleSchema: HTTPStatus.CONFLICT,
    api.ConsumerAssignError: HTTPStatus.CONFLICT, api.NotAllowedError: HTTPStatus.CONFLICT,
    api.InvalidTopicName: HTTPStatus.BAD_REQUEST, api.TooManyRequests: HTTPStatus.TOO_MANY_REQUESTS,
    api.ServiceNotReady: HTTPStatus.SERVICE_UNAVAILABLE, api.ConsumerNotFound: HTTPStatus.SERVICE_UNAVAILABLE,
    api.PersistenceError: HTTPStatus.SERVICE_UNAVAILABLE,
    api.TopicTerminatedError: HTTPStatus.SERVICE_UNAVAILABLE,
    api.ProducerBlockedQuotaExceededError: HTTPStatus.SERVICE_UNAVAILABLE,
    api.ProducerBlockedQuotaExceededException: HTTPStatus.SERVICE_UNAVAILABLE}
_BUSY = api.ProducerBusy, api.ConsumerBusy
# Causes that pass: None stands for a connection that ended.
_PASSING = None, api.ServiceNotReady, api.PersistenceError, api.TooManyRequests, *_BUSY
_RIGHTS = api.AuthenticationError, api.AuthorizationError
# A client that connects again at once may come before its former connection was seen to end.
_BUSY_ATTEMPTS, _BUSY_S = 5, 0.1
_AGAIN_S, _AGAIN_MAX_S = 0.1, 5.0       # between attempts to open a lost session
PARTITIONS_S = 60.0                      # between looks for new partitions, as Pulsar's clients look
_GIVE_UP_S = 60.0                        # for a name or subscription that is taken meanwhile


class TurnedAway(Exception):
    """A handshake, or a request over plain HTTP, is refused with this status.  code: of the worker's error."""

    def __init__(self, status: HTTPStatus, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.code = status, text, code


class Channel(Protocol):
    """The parts of a client's connection that its session uses."""

    @property
    def is_closed(self) -> bool: ...
    @property
    def is_writable(self) -> bool: ...
    def send(self, texts: list[bytes]) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, code: int = ..., reason: str = ...) -> None: ...


class Session(Taker):
    """A WebSocket's producer, consumer or reader; the classes that derive from this one say what is opened."""

    __slots__ = ("_again", "_growing", "_is_lost_again", "_links", "_looking", "connection", "link", "is_busy",
                 "handover")

    def __init__(self, handover: Handover, links: WorkerLinks, connection: Channel) -> None:
        self.handover, self._links, self.connection = handover, links, connection
        self.link: WorkerLink | None = None                       # None: not open yet, or lost
        self.is_busy = False                                  # it needs a connection of its own
        self._again: asyncio.Task[None] | None = None         # opens the session again
        self._is_lost_again = False                           # while it is opened
        self._looking: asyncio.Task[None] | None = None       # looks for new partitions
        self._growing = asyncio.Lock()                        # held while partitions are added

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.handover.kind} is_lost={self._again is not None}>"

    # -- what derived classes say

    async def begin(self, link: WorkerLink) -> None:
        """Open what the session needs on a new connection to a worker.  Raises ClientError."""
        raise NotImplementedError

    def began(self) -> None:
        """Go on: everything that the session needs is open."""

    @property
    def has_partitions(self) -> bool:
        """Whether a topic of the session has partitions, and may get more."""
        return False

    async def grow(self, link: WorkerLink) -> None:
        """Open what the session needs on partitions that its topics got meanwhile.  Raises ClientError."""

    def suspended(self) -> None:
        """Stop: the connection to the worker is lost."""

    def failed(self, why: str) -> None:
        """React to an error that will not pass: the session cannot be opened again."""
        self.connection.close(FAILED, why)

    # -- opening

    async def open(self) -> None:
        """Open the session for the first time.  Raises TurnedAway."""
        attempts = _BUSY_ATTEMPTS
        while True:
            try:
                return await self._open()
            except ClientError as error:
                attempts -= 1
                if error.code not in _BUSY or not attempts:
                    raise TurnedAway(status_of(error), str(error), error.code) from None
            except OSError as error:
                raise TurnedAway(HTTPStatus.SERVICE_UNAVAILABLE, f"The broker does not answer: {error}") from None
            await asyncio.sleep(_BUSY_S)

    async def _open(self) -> None:
        """Raises OSError, ClientError."""
        self._is_lost_again = False
        link = await self._links.get(self, self.handover.identity, is_own=self.is_busy)
        try:
            await self.begin(link)
        except BaseException:
            link.release(self)
            raise
        if self._is_lost_again or not link.is_open:
            link.release(self)
            raise NoBroker("a worker has closed what was just opened")
        self.link = link
        self.began()
        if self.has_partitions and self.link is link:
            self._looking = asyncio.get_running_loop().create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(PARTITIONS_S)
            await self.look_for_partitions()

    async def look_for_partitions(self) -> None:
        """Open partitions that the topics got meanwhile.  An error leaves the rest open, and the next look tries again.
        """
        async with self._growing:
            link = self.link
            if link is not None and self.has_partitions:
                with suppress(ClientError):
                    await self.grow(link)

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def lost(self, why: str) -> None:
        """Open the session again: a worker has closed the connection, or a producer or consumer on it."""
        if self.link is None:
            self._is_lost_again = True      # the attempt that is under way fails
            return
        self._stop_looking()
        link, self.link = self.link, None
        link.release(self)
        self._begin_again(None)

    def move(self) -> None:
        """Get a connection of the session's own, because the session could make others wait."""
        self.is_busy = True
        self._stop_looking()
        link, self.link = self.link, None
        if link is not None:
            self._begin_again(link)

    def _begin_again(self, left: WorkerLink | None) -> None:
        self.suspended()
        if not self.connection.is_closed and self._again is None:
            self._again = asyncio.get_running_loop().create_task(self._open_again(left))
        elif left is not None:
            left.release(self)

    async def _open_again(self, left: WorkerLink | None) -> None:
        """Open the session again, after it has left a connection."""
        loop = asyncio.get_running_loop()
        pause, began = _AGAIN_S, loop.time()
        try:
            if left is not None:
                await left.leave(self)
            while not self.connection.is_closed:
                try:
                    await self._open()
                    return
                except ClientError as error:
                    if error.code in _RIGHTS:
                        return self.connection.close(REFUSED, str(error))
                    is_over = error.code in _BUSY and loop.time() - began > _GIVE_UP_S
                    if error.code not in _PASSING or is_over:
                        return self.failed(str(error))
                except TurnedAway as error:
                    return self.failed(error.text)
                except OSError:
                    pass      # the worker is being started again
                await asyncio.sleep(pause)
                pause = min(2 * pause, _AGAIN_MAX_S)
        except Exception as error:
            log.error(f"{self!r} fails: {error!r}", code="G290")
            self.failed("An error of the broker's own; its log has the details")
        finally:
            self._again = None

    def closed(self) -> None:
        """End the session: its WebSocket has ended."""
        self._stop_looking()
        if self._again is not None:
            self._again.cancel()
        link, self.link = self.link, None
        if link is not None:
            link.release(self)

    # -- the client's side, for classes that do not care

    def socket_writable(self, *, is_writable: bool) -> None: ...
    def texts(self, texts: list[str]) -> None: ...


def status_of(error: ClientError) -> HTTPStatus:
    """Return the status that tells of a worker's error."""
    if error.code is None:
        return HTTPStatus.SERVICE_UNAVAILABLE
    return _STATUSES.get(cast("api.ServerError.ValueType", error.code), HTTPStatus.INTERNAL_SERVER_ERROR)
