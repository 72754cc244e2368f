"""How clients of the binary protocol authenticate: at CONNECT, and again when their credentials expire.

    CONNECT -> CONNECTED                                          authentication is off, or its check was quick
    CONNECT -> (a thread computes a hash) -> CONNECTED            nothing more is read from the client meanwhile
    CONNECT -> (an issuer's keys are fetched) -> CONNECTED        likewise
    CONNECT -> (a delay, see attempts.py) -> ERROR, closed        refused
    AUTH_CHALLENGE -> AUTH_RESPONSE                               every refresh_interval_s, where a token has expired
"""
import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import responses
from geminga.proto.errors import ProtocolError
from geminga.proto.frames import NO_REQUEST
from geminga.storage.runtime.counters import Counters
from geminga.workers.identity import local
from geminga.workers.identity.attempts import Attempts
from geminga.workers.identity.authentication import NOT_ASKED, OURSELVES, Authenticator, Identity, Original
from geminga.workers.identity.credentials import Credentials, NotAuthenticated, certificate_of
from geminga.workers.identity.hashes import Hashes

_SECONDS = 30                # from a connection to the end of its handshake
_DELAYED_MAX = 1_000         # refusals that are delayed at a time; another one is sent at once


class Stream(Protocol):
    """The parts of a connection that handshakes use."""

    transport: asyncio.Transport

    @property
    def host(self) -> str: ...
    def write(self, data: bytes) -> None: ...
    def stop_reading(self) -> None: ...
    def close(self) -> None: ...


class Client(Protocol):
    """The parts of a client that handshakes use."""

    is_inside: bool
    identity: Identity | None
    is_challenged: bool
    protocol_version: int
    supports_auth_refresh: bool

    @property
    def stream(self) -> Stream: ...
    def welcome(self, request: api.CommandConnect, identity: Identity) -> None: ...


class Handshakes:
    """Authentication of all clients of a worker, at CONNECT and when credentials expire."""

    def __init__(self, authenticator: Authenticator, counters: Counters, loop: asyncio.AbstractEventLoop):
        self._authenticator, self._counters, self._loop = authenticator, counters, loop
        self._attempts = Attempts(counters, loop)
        self._hashes = Hashes(loop)
        self._delayed = 0
        self._expiring: set[Client] = set()                    # those whose credentials expire
        self._fetching: set[Client] = set()                    # those whose credentials wait for keys of an issuer
        self._round = loop.call_later(authenticator.refresh_interval_s, self._refresh)

    def __repr__(self) -> str:
        return f"<Handshakes delayed={self._delayed} expiring={len(self._expiring)}>"

    def configured(self) -> None:
        """Follow the authenticator's options, which have changed."""
        self._round.cancel()
        self._round = self._loop.call_later(self._authenticator.refresh_interval_s, self._refresh)

    def accepts(self, client: Client) -> bool:
        """Whether the present options would admit a client that former options admitted."""
        return client.identity is None or self._authenticator.accepts(client.identity)

    def opened(self, client: Client) -> asyncio.TimerHandle:
        """Start the timer that ends a connection without a finished handshake; the caller cancels it afterwards."""
        return self._loop.call_later(_SECONDS, client.stream.transport.abort)

    def closed(self, client: Client) -> None:
        """Forget the client: its connection has ended."""
        self._expiring.discard(client)

    def connect(self, client: Client, request: api.CommandConnect) -> None:
        """Authenticate a client that sends CONNECT, then welcome or refuse it; slow checks answer later."""
        if client.is_inside:
            return client.welcome(request, _inside(client, request))
        if not self._authenticator.is_on:
            return client.welcome(request, NOT_ASKED)
        credentials = Credentials(method_of(request), request.auth_data, certificate_of(client.stream.transport))
        original, shown = None, [credentials]
        if request.HasField("original_principal"):
            passed_on = Credentials(request.original_auth_method, request.original_auth_data.encode(),
                                    credentials.certificate)
            original, shown = Original(request.original_principal, passed_on), [credentials, passed_on]
        check = partial(self._authenticator.admit, credentials, original, names_proxy=request.HasField("proxy_version"))
        done = partial(self._admitted, client, request)
        self._check(client, shown, check, done)

    def response(self, client: Client, response: api.CommandAuthResponse) -> None:
        """Check the fresh credentials in AUTH_RESPONSE.  Raises ProtocolError: authentication is off."""
        if not self._authenticator.is_on:
            raise ProtocolError("AUTH_RESPONSE, and authentication is off")
        assert client.identity is not None      # the connection's states have no AUTH_RESPONSE before CONNECTED
        data = response.response
        credentials = Credentials(data.auth_method_name, data.auth_data, certificate_of(client.stream.transport))
        check = partial(self._authenticator.renew, client.identity, credentials)
        self._check(client, [credentials], check, partial(self._renewed, client))

    # -- outcomes

    def _check(self, client: Client, shown: list[Credentials], check: Callable[[], Identity],
               done: Callable[[Identity], None]) -> None:
        """Run the check of the credentials that a client shows, now or when it can be run, then call done(identity).

        Nothing more is read from a new client until then.
        """
        fetch = self._authenticator.fetching(*shown)
        if fetch is None:
            return self._check_known(client, shown, check, done)
        if client.identity is None:
            client.stream.stop_reading()
        client.is_challenged = False      # it has answered; a slow issuer is not the client's fault
        if client in self._fetching:
            return      # one answer waits at a time: an admitted client that sends many would fill the memory
        self._fetching.add(client)
        fetch.add_done_callback(partial(self._fetched, client, shown, check, done))

    def _fetched(self, client: Client, shown: list[Credentials], check: Callable[[], Identity],
                 done: Callable[[Identity], None], fetch: "asyncio.Future[None]") -> None:
        self._fetching.discard(client)
        if not fetch.cancelled() and not client.stream.transport.is_closing():
            self._check(client, shown, check, done)      # a proxy's token and its client's may be of two issuers

    def _check_known(self, client: Client, shown: list[Credentials], check: Callable[[], Identity],
                     done: Callable[[Identity], None]) -> None:
        method = shown[0].method
        if not any(map(self._authenticator.is_slow, shown)):
            return self._checked(client, method, check, done)
        if client.identity is None:
            client.stream.stop_reading()
        self._check_in_thread(client, method, check, done)

    def _check_in_thread(self, client: Client, method: str, check: Callable[[], Identity],
                         done: Callable[[Identity], None]) -> None:
        try:
            self._hashes.put(client.stream.host, check, partial(self._came_back, client, method, done),
                             lambda: not client.stream.transport.is_closing())
        except NotAuthenticated as busy:
            self._refuse(client, method, busy)

    def _came_back(self, client: Client, method: str, done: Callable[[Identity], None],
                   future: asyncio.Future[Identity]) -> None:
        if future.cancelled() or client.stream.transport.is_closing():
            if not future.cancelled():
                future.exception()      # else asyncio logs that it was never retrieved
            return
        self._checked(client, method, future.result, done)

    def _checked(self, client: Client, method: str, check: Callable[[], Identity],
                 done: Callable[[Identity], None]) -> None:
        """Run the check and call done(identity); if the check fails, refuse a new client or drop an admitted one."""
        try:
            identity = check()
        except NotAuthenticated as error:
            if client.identity is None:
                return self._refuse(client, method, error)
            return self._drop(client, error, is_told=error.reason != "ROLE_CHANGED")
        self._attempts.succeeded(identity)
        done(identity)

    def _admitted(self, client: Client, request: api.CommandConnect, identity: Identity) -> None:
        client.welcome(request, identity)
        self._watch(client, identity)

    def _renewed(self, client: Client, identity: Identity) -> None:
        client.identity, client.is_challenged = identity, False
        self._watch(client, identity)

    def _watch(self, client: Client, identity: Identity) -> None:
        """Ask the client for fresh credentials when its present ones expire."""
        if identity.expires_s is not None:
            self._expiring.add(client)
        else:
            self._expiring.discard(client)

    def _refuse(self, client: Client, method: str, error: NotAuthenticated) -> None:
        """Send an error and end the connection; repeated failures from one address are answered with a delay."""
        self._counters.add("handshakes_refused")
        delay = self._attempts.failed(client.stream.host, method, error)
        client.stream.stop_reading()
        if not delay or self._delayed >= _DELAYED_MAX:
            return _end(client, error)
        self._delayed += 1
        self._loop.call_later(delay, self._end_late, client, error)

    def _end_late(self, client: Client, error: NotAuthenticated) -> None:
        self._delayed -= 1
        _end(client, error)

    # -- credentials that expire

    def _refresh(self) -> None:
        """Ask clients with expired credentials for fresh ones; drop clients that did not answer the last request."""
        self._round = self._loop.call_later(self._authenticator.refresh_interval_s, self._refresh)
        now = time.time()
        for client in list(self._expiring):
            identity = client.identity
            if identity is None or identity.expires_s is None or identity.expires_s > now:
                continue
            if client.is_challenged:
                self._drop(client, NotAuthenticated("NO_ANSWER", "the token has expired, and no other came"))
            elif not client.supports_auth_refresh or (identity.proxy and not self._authenticator.checks_originals):
                # A proxy that does not pass on its clients' credentials does not pass a challenge on to them either.
                why = "the token of a client that cannot be asked for another has expired"
                self._drop(client, NotAuthenticated("EXPIRED_TOKEN", why))
            else:
                client.is_challenged = True
                client.stream.write(responses.auth_challenge(identity.method, client.protocol_version))

    def _drop(self, client: Client, error: NotAuthenticated, *, is_told: bool = False) -> None:
        """End the connection of an admitted client; is_told: send an error with the reason first."""
        self._attempts.failed(client.stream.host, client.identity.method if client.identity else "", error)
        self._expiring.discard(client)
        client.stream.stop_reading()
        _end(client, error) if is_told else client.stream.close()


def _inside(client: Client, request: api.CommandConnect) -> Identity:
    """Return the identity of a client that came by the socket in the data folder.

    Our own processes ask on behalf of clients that they have authenticated: the original principal is the role, and the
    credentials name the proxy, if there is one, and the original's credentials are its groups, a list as JSON.
    """
    if request.HasField("original_principal"):
        groups = tuple(json.loads(request.original_auth_data or "[]"))
        return Identity(request.original_principal, request.original_auth_method, proxy=request.auth_data.decode(),
                        groups=groups)
    return local.identity_of(client.stream.transport) or OURSELVES


def method_of(request: api.CommandConnect) -> str:
    """Return the authentication method that CONNECT names; old clients send a number instead of a name."""
    if request.HasField("auth_method_name"):
        return request.auth_method_name
    if request.HasField("auth_method"):
        return api.AuthMethod.Name(request.auth_method).removeprefix("AuthMethod").lower()
    return "none"


def _end(client: Client, error: NotAuthenticated) -> None:
    if not client.stream.transport.is_closing():
        client.stream.write(responses.error(NO_REQUEST, error.code, error.text))
        client.stream.close()
