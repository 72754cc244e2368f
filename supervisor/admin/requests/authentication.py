"""Authentication of HTTP requests: a middleware finds out the role before a route is taken.

    Authorization: Bearer TOKEN
    Authorization: Basic BASE64(USER:PASSWORD)
    the certificate of a connection by TLS, if there is no such header
    X-Original-Principal: ROLE, from proxies
    ?token=TOKEN for WebSocket and messages over HTTP, for browsers, whose scripts cannot set a header there
    the cookie of a session of the console, if there is no Authorization header (sessions.py)
    the user of the process, by the socket in the data folder, without any header
"""
import asyncio
import base64
import binascii
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.counters import EXPIRING_MINUTES, METHODS, RESULTS, Counters, authentication_counter
from geminga.supervisor.admin.requests.sessions import session_of
from geminga.workers.identity import local
from geminga.workers.identity.attempts import Attempts
from geminga.workers.identity.authentication import NOT_ASKED, Authenticator, Identity, Original
from geminga.workers.identity.credentials import Credentials, NotAuthenticated, certificate_of
from geminga.workers.identity.hashes import Hashes
from geminga.workers.identity.options import IdentityOptions

if TYPE_CHECKING:
    from geminga.workers.identity.issuers import Issuer

IDENTITY = web.RequestKey("identity", Identity)
SIGN_IN, STATIC = "/console/sign-in", "/console/static/"      # of the console, before somebody has signed in
LEAVE, RETURN = f"{SIGN_IN}/issuer", f"{SIGN_IN}/return"      # of a sign-in at an issuer
# probes have no credentials, and a broker that was superseded may have lost them
_OPEN = "/status.html", "/ready", SIGN_IN, LEAVE, RETURN, "/ops/v1/standby"
MESSAGES = "/topics/"    # messages over plain HTTP
_DOORS = "/ws/", MESSAGES
_METRICS = "/metrics", "/metrics/"
_PAGES = "/console/"
_SCHEMES = {"bearer": "token", "basic": "basic"}
# names of Pulsar's authentication providers
_SPOOFED = "Invalid combination of Original principal cannot be empty if the request is via proxy."


def is_page(path: str) -> bool:
    """Whether a path belongs to the console, whose pages are for browsers."""
    return path == "/" or path.startswith(_PAGES)


class HttpAuthenticator:
    """Authenticates HTTP requests, and delays answers to addresses that fail repeatedly, longer each time."""

    def __init__(self, authenticator: Authenticator, options: IdentityOptions, counters: Counters):
        self._authenticator, self._counters = authenticator, counters
        self._attempts: Attempts | None = None      # made at the first request, as it needs a running loop
        self._hashes: Hashes | None = None          # likewise
        self._follow(options)

    def __repr__(self) -> str:
        return f"<HttpAuthenticator ways={self._ways} open={self._open}>"

    def configure(self, options: IdentityOptions) -> None:
        """Apply a new configuration.  Raises Unusable, and keeps the old configuration then."""
        self._authenticator.configure(options)
        self._follow(options)

    def _follow(self, options: IdentityOptions) -> None:
        self._open = _OPEN if options.authentication.metrics else (*_OPEN, *_METRICS)
        asks_for = self._authenticator.asks_for
        self._ways = [f'{scheme} realm="geminga"' for scheme in ("Bearer", "Basic")
                      if asks_for(_SCHEMES[scheme.lower()])]

    async def identify(self, request: web.Request) -> Identity:
        """Authenticate the sender of a request, and pass the request on.

        Raises HTTPUnauthorized, HTTPServiceUnavailable.
        """
        if (peer := local.identity_of(request.transport)) is not None:
            return peer
        if not self._authenticator.is_on or request.path in self._open or request.path.startswith(STATIC):
            return NOT_ASKED
        # Any page may open a WebSocket, with the console's cookie too, so a cookie proves nothing where messages are.
        if not request.path.startswith(_DOORS) and (session := session_of(request)) is not None:
            certificate = certificate_of(request.transport) if request.transport is not None else None
            return await self.check(request, replace(session.credentials, certificate=certificate), is_new=False)
        # A browser that shows a page without credentials is sent to the sign-in, and does not guess.
        is_guess = "Authorization" in request.headers or not is_page(request.path)
        return await self.check(request, self._credentials(request), is_new=is_guess)

    @property
    def is_on(self) -> bool:
        """Whether requests have to be authenticated."""
        return self._authenticator.is_on

    def asks_for(self, method: str) -> bool:
        """Whether the configuration allows this authentication method."""
        return self._authenticator.asks_for(method)

    def issuer(self, url: str) -> "Issuer | None":
        """Return an issuer whose tokens are accepted, None if the configuration names no such issuer."""
        return self._authenticator.issuer(url)

    async def check(self, request: web.Request, credentials: Credentials, *, is_new: bool = True) -> Identity:
        """Return the identity that credentials of a request prove.

        is_new: whether a client sends them.  Credentials of a session were right once, so a browser that still shows
        an ended session does not guess, and is answered at once. Raises HTTPUnauthorized, HTTPServiceUnavailable.
        """
        if self._attempts is None:
            loop = asyncio.get_running_loop()
            self._attempts, self._hashes = Attempts(self._counters, loop), Hashes(loop)
        try:
            identity = await self._admit(request, credentials)
        except NotAuthenticated as error:
            if is_new:
                await asyncio.sleep(self._attempts.failed(request.remote or "local", credentials.method, error))
            if error.code == api.ServiceNotReady:
                raise web.HTTPServiceUnavailable(text=error.text) from None
            reason = _SPOOFED if error.code == api.AuthorizationError else "Authentication required"
            # With this header a browser asks by a window of its own, and the script of a page waits for that for ever.
            ways = self._ways if is_new and not is_page(request.path) else []
            raise web.HTTPUnauthorized(text=reason, headers=[("WWW-Authenticate", way) for way in ways]) from None
        if is_new:
            self._attempts.succeeded(identity)
        return identity

    async def _admit(self, request: web.Request, credentials: Credentials) -> Identity:
        principal = request.headers.get("X-Original-Principal")
        if principal is not None and not _is_text(principal):
            raise NotAuthenticated("INVALID_PRINCIPAL", "a principal that is not UTF-8")
        original = Original(principal) if principal is not None else None
        if (fetch := self._authenticator.fetching(credentials)) is not None:
            await asyncio.shield(fetch)      # other requests wait for it too
        if not self._authenticator.is_slow(credentials):
            return self._authenticator.admit(credentials, original, may_repeat=True)
        check = partial(self._authenticator.admit, credentials, original, may_repeat=True)
        assert self._hashes is not None      # made with `_attempts`
        return await self._hashes.result(request.remote or "local", check)

    def _credentials(self, request: web.Request) -> Credentials:
        header = request.headers.get("Authorization", "")
        if not header and request.path.startswith(_DOORS) and "token" in request.query:
            header = f"Bearer {request.query['token']}"
        scheme, _, rest = header.partition(" ")
        method = _SCHEMES.get(scheme.lower(), scheme.lower())
        certificate = certificate_of(request.transport) if request.transport is not None else None
        if not header and certificate is not None and self._authenticator.asks_for("tls"):
            return Credentials("tls", b"", certificate)
        if method != "basic":
            return Credentials(method, rest.strip().encode("utf-8", "surrogateescape"), certificate)
        try:
            return Credentials(method, base64.b64decode(rest.strip(), validate=True), certificate)
        except (binascii.Error, ValueError):
            return Credentials(method, b"", certificate)      # an empty user and password belong to nobody


def _is_text(value: str) -> bool:
    """Whether a header's bytes were UTF-8; others stand in it as halves of characters, which nothing can write."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


AUTHENTICATOR = web.AppKey("authenticator", HttpAuthenticator)


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    if IDENTITY not in request:      # else a page of the console asks for what it shows, and was identified itself
        request[IDENTITY] = await request.app[AUTHENTICATOR].identify(request)
    return await handler(request)


_PROVIDERS = {"token": "AuthenticationProviderToken", "basic": "AuthenticationProviderBasic",
              "tls": "AuthenticationProviderTls"}


def families(cluster: str, total: Callable[[str], int]) -> Iterator[Metric]:
    """Yield metrics of authentication under Pulsar's names.  total: function that sums a counter over all processes."""
    labels = ["cluster", "provider_name", "auth_method"]
    right = CounterMetricFamily("pulsar_authentication_success", "Clients and requests that were authenticated",
        labels=labels)
    wrong = CounterMetricFamily("pulsar_authentication_failures", "Clients and requests whose authentication failed",
                                labels=[*labels, "reason"])
    for method in METHODS:
        values = [cluster, _PROVIDERS.get(method, ""), method]
        for result in RESULTS:
            count = total(authentication_counter(method, result))
            if result == "SUCCESS":
                right.add_metric(values, count)
            elif count:
                wrong.add_metric([*values, result], count)
    expired = CounterMetricFamily("pulsar_expired_token", "Tokens that were refused as expired", labels=["cluster"])
    expired.add_metric([cluster], total("expired_tokens"))
    what = "Minutes until tokens expire, when they are presented"
    expiring = HistogramMetricFamily("pulsar_expiring_token_minutes", what, labels=["cluster"])
    buckets, count = [], 0
    for bound in (*EXPIRING_MINUTES, "later"):
        count += total(f"expiring_{bound}")
        buckets.append(("+Inf" if bound == "later" else f"{bound:.1f}", count))
    expiring.add_metric([cluster], buckets, total("expiring_minutes"))
    yield from (right, wrong, expired, expiring)
