"""Issuers of OpenID Connect: their keys, fetched when a token first needs them, and kept.

    ISSUER/.well-known/openid-configuration  ->  its jwks_uri  ->  keys by id

Each process has its own keys.  They are fetched again

    when they are `refresh_s` old      meanwhile tokens are checked by the old ones
    for a key that is not known        its token waits; once in `unknown_key_interval_s`, whatever tokens come
    after a failure                    with growing pauses; known keys stay in force until they are `expiry_s` old
"""
import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any

from geminga.storage.runtime.log import log
from geminga.workers.identity import pem
from geminga.workers.identity.issuer_documents import Documents, Unavailable
from geminga.workers.identity.keys import Key, issuer_keys
from geminga.workers.identity.options import OidcOptions, Unusable
from geminga.workers.identity.sources import SourceError

_DISCOVERY = "/.well-known/openid-configuration"
_FIRST_PAUSE_S = 1.0      # after a failure; each further one doubles it, up to `unknown_key_interval_s`


class Issuer:
    """The keys of one issuer, as this process knows them."""

    def __init__(self, url: str, options: OidcOptions, documents: Documents, former: "Issuer | None" = None,
                 clock: Callable[[], float] = time.monotonic):
        """former: the same issuer under former options, whose keys are still good.  clock: returns seconds."""
        self.url, self._options, self.documents, self._clock = url, options, documents, clock
        self.discovery: dict[str, Any] = former.discovery if former else {}      # its document; {}: not fetched yet
        self._keys: dict[str | None, tuple[Key, ...]] = former._keys if former else {}
        self._fetched: float = former._fetched if former else 0.0      # by the clock
        self._due = 0.0                # before that time nothing is fetched for unknown keys
        self._failures = 0             # in a row
        self._fetch: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Issuer {self.url}: {len(self._keys)} keys, {self._failures} failures>"

    def keys(self, name: str | None) -> tuple[Key, ...]:
        """Return the keys with an id, mostly one; none if the id is not known.  None: keys without an id."""
        if self._clock() - self._fetched >= self._options.expiry_s:
            self._keys = {}
        return self._keys.get(name, ())

    def fetching(self, name: str | None) -> "asyncio.Future[None] | None":
        """Return what has to end before `keys` can answer for an id; None if it can already, or will not know more.

        Begins to fetch, if that is due.
        """
        is_known, now = bool(self.keys(name)), self._clock()
        is_old = now - self._fetched >= min(self._options.refresh_s, self._options.expiry_s)
        # The pause after a success is for unknown ids, which anybody can write.  If old keys waited for its end too,
        # they could expire meanwhile, and all tokens would be refused.
        is_due = (is_old or not is_known) and (now >= self._due or (is_old and not self._failures))
        if self._fetch is None and is_due:
            self._fetch = asyncio.get_running_loop().create_task(self._load())
        return None if is_known else self._fetch

    async def _load(self) -> None:
        try:
            self.discovery, keys = await fetched(self.url, self.documents)
        except Unavailable as error:
            pause = min(_FIRST_PAUSE_S * 2 ** min(self._failures, 16), self._options.unknown_key_interval_s)
            self._failures += 1
            self._due = self._clock() + pause
            if self._failures == 1:
                what = f"{len(self._keys)} known keys stay in force" if self._keys else "its tokens are refused"
                log.warning(f"the keys of issuer {self.url} cannot be fetched: {error}; {what}", code="G410")
        else:
            if self._failures:
                log.info(f"the keys of issuer {self.url} are fetched again", code="G410")
            self._keys, self._fetched, self._failures = keys, self._clock(), 0
            self._due = self._fetched + self._options.unknown_key_interval_s
        finally:
            self._fetch = None


async def fetched(url: str, documents: Documents) -> tuple[dict[str, Any], dict[str | None, tuple[Key, ...]]]:
    """Return the discovery document of an issuer and its present keys, by their ids.  Raises Unavailable."""
    discovery = await documents.fetch(url.removesuffix("/") + _DISCOVERY)
    if discovery.get("issuer") != url:
        raise Unavailable("its discovery document names another issuer")
    document = await documents.fetch(str(discovery.get("jwks_uri")))
    try:
        return discovery, issuer_keys(document)
    except SourceError as error:
        raise Unavailable(f"its key set {error}") from None


def issuers_of(options: OidcOptions, former: dict[str, Issuer]) -> dict[str, Issuer]:
    """Return the issuers of the configuration by their URLs.

    former: the issuers of the former configuration.  Raises Unusable: the file of authorities cannot be read, or an
    issuer is no URL.
    """
    trust = None
    if options.trusted and options.issuers:
        pem.certificates("authentication.oidc.trusted", options.trusted)
        try:
            trust = ssl.create_default_context(cafile=options.trusted)
        except (OSError, ssl.SSLError) as error:
            raise Unusable("authentication.oidc.trusted", f"cannot be used: {options.trusted}: {error}") from None
    return {url: Issuer(url, options, Documents(url, options, trust), former.get(url)) for url in options.issuers}
