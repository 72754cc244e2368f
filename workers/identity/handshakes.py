"""How clients of the binary protocol show who they are: at CONNECT, and again when what they have shown expires.

    CONNECT -> CONNECTED                                          nobody is asked, or it was checked at once
    CONNECT -> (a thread computes a hash) -> CONNECTED            nothing more is read from the client meanwhile
    CONNECT -> (a wait, see attempts.py) -> ERROR, closed         refused
    AUTH_CHALLENGE -> AUTH_RESPONSE                               every refresh_interval_s, to those whose token has expired
"""
import asyncio
import time
from collections.abc import Callable
from functools import partial

from geminga.proto import commands as answers
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import ProtocolError
from geminga.storage.runtime.counters import Counters
from geminga.workers.identity.attempts import Attempts
from geminga.workers.identity.authentication import NOT_ASKED, OURSELVES, Authenticator, Identity, Original
from geminga.workers.identity.hashes import Hashes
from geminga.workers.identity.shown import NotAuthenticated, Shown, certificate_of

_SECONDS = 30                # from a connection to the end of its handshake
_DELAYED_MAX = 1_000         # answers that are kept back; what comes above is answered at once


class Handshakes:
    """Of all clients of a worker."""

    def __init__(self, authenticator: Authenticator, counters: Counters, loop: asyncio.AbstractEventLoop):
        self._authenticator, self._counters, self._loop = authenticator, counters, loop
        self._attempts = Attempts(counters, loop)
        self._hashes = Hashes(loop)
        self._delayed = 0
        self._expiring: set = set()                            # clients whose identities do
        self._round = loop.call_later(authenticator.refresh_interval_s, self._refresh)

    def configured(self) -> None:
        """The authenticator has other options."""
        self._round.cancel()
        self._round = self._loop.call_later(self._authenticator.refresh_interval_s, self._refresh)

    def accepts(self, client) -> bool:
        """Whether the client could come now as it did."""
        return client.identity is None or self._authenticator.accepts(client.identity)

    def opened(self, client) -> asyncio.TimerHandle:
        """The connection ends unless its handshake does; the timer is to be cancelled then."""
        return self._loop.call_later(_SECONDS, client.transport.abort)

    def closed(self, client) -> None:
        self._expiring.discard(client)

    def connect(self, client, request: api.CommandConnect) -> None:
        if not self._authenticator.is_on or client.is_inside:
            return client.welcome(request, OURSELVES if client.is_inside else NOT_ASKED)
        shown = Shown(method_of(request), request.auth_data, certificate_of(client.transport))
        original = None
        if request.HasField("original_principal"):
            what = Shown(request.original_auth_method, request.original_auth_data.encode(), shown.certificate)
            original = Original(request.original_principal, what)
        demand = partial(self._authenticator.admit, shown, original, names_proxy=request.HasField("proxy_version"))
        if not (self._authenticator.is_slow(shown) or (original and self._authenticator.is_slow(original.shown))):
            return self._checked(client, shown.method, demand, partial(self._admitted, client, request))
        client.stop_reading()
        self._beside(client, shown.method, demand, partial(self._admitted, client, request))

    def response(self, client, response: api.CommandAuthResponse) -> None:
        """The client shows itself anew."""
        if not self._authenticator.is_on:
            raise ProtocolError("AUTH_RESPONSE, and nobody asked")
        said = response.response
        shown = Shown(said.auth_method_name, said.auth_data, certificate_of(client.transport))
        demand = partial(self._authenticator.renew, client.identity, shown)
        if self._authenticator.is_slow(shown):
            self._beside(client, shown.method, demand, partial(self._renewed, client))
        else:
            self._checked(client, shown.method, demand, partial(self._renewed, client))

    # -- what comes of it

    def _beside(self, client, method: str, demand: Callable[[], Identity], done: Callable[[Identity], None]) -> None:
        """Check it in a thread."""
        try:
            self._hashes.put(client.host, demand, partial(self._came_back, client, method, done), lambda: not client.transport.is_closing())
        except NotAuthenticated as busy:
            self._refuse(client, method, busy)

    def _came_back(self, client, method: str, done: Callable[[Identity], None], future: asyncio.Future) -> None:
        if future.cancelled() or client.transport.is_closing():
            if not future.cancelled():
                future.exception()      # else asyncio tells that nobody asked
            return
        self._checked(client, method, future.result, done)

    def _checked(self, client, method: str, demand: Callable[[], Identity], done: Callable[[Identity], None]) -> None:
        try:
            identity = demand()
        except NotAuthenticated as error:
            if client.identity is None:
                return self._refuse(client, method, error)
            return self._drop(client, error, is_told=error.reason != "ROLE_CHANGED")
        self._attempts.succeeded(identity)
        done(identity)

    def _admitted(self, client, request: api.CommandConnect, identity: Identity) -> None:
        client.welcome(request, identity)
        self._watch(client)

    def _renewed(self, client, identity: Identity) -> None:
        client.identity, client.is_challenged = identity, False
        self._watch(client)

    def _watch(self, client) -> None:
        if client.identity.expires_s is not None:
            self._expiring.add(client)
        else:
            self._expiring.discard(client)

    def _refuse(self, client, method: str, error: NotAuthenticated) -> None:
        """Say so, perhaps later, and end the connection."""
        self._counters.add("handshakes_refused")
        delay = self._attempts.failed(client.host, method, error)
        client.stop_reading()
        if not delay or self._delayed >= _DELAYED_MAX:
            return _end(client, error)
        self._delayed += 1
        self._loop.call_later(delay, self._end_late, client, error)

    def _end_late(self, client, error: NotAuthenticated) -> None:
        self._delayed -= 1
        _end(client, error)

    # -- what expires

    def _refresh(self) -> None:
        """A round: those whose tokens have expired are asked for others; who was asked in the last one and has not answered is gone."""
        self._round = self._loop.call_later(self._authenticator.refresh_interval_s, self._refresh)
        now = time.time()
        for client in [client for client in self._expiring if client.identity.expires_s <= now]:
            if client.is_challenged:
                self._drop(client, NotAuthenticated("NO_ANSWER", "the token has expired, and no other came"))
            elif not client.supports_auth_refresh or (client.identity.proxy and not self._authenticator.checks_originals):
                # A proxy that does not pass on what its clients show does not pass on either that they are asked.
                self._drop(client, NotAuthenticated("EXPIRED_TOKEN", "the token of a client that cannot be asked for another has expired"))
            else:
                client.is_challenged = True
                client.write(answers.auth_challenge(client.identity.method, client.protocol_version))

    def _drop(self, client, error: NotAuthenticated, *, is_told: bool = False) -> None:
        """End the connection of a client that was there: without a word, but for a wrong answer."""
        self._attempts.failed(client.host, client.identity.method, error)
        self._expiring.discard(client)
        client.stop_reading()
        _end(client, error) if is_told else client.abort()


def method_of(request: api.CommandConnect) -> str:
    """By its name, or as old clients say it."""
    if request.HasField("auth_method_name"):
        return request.auth_method_name
    if request.HasField("auth_method"):
        return api.AuthMethod.Name(request.auth_method).removeprefix("AuthMethod").lower()
    return "none"


def _end(client, error: NotAuthenticated) -> None:
    if not client.transport.is_closing():
        client.write(answers.error(answers.NO_REQUEST, error.code, error.told))
        client.abort()
