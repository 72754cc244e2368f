"""Documents of an issuer of OpenID Connect over HTTP: bounded in size and time, without redirects.

An issuer is trusted with roles, not with this host.  So its answers cannot fill the memory, hold a connection for long,
or lead the broker to services that only this host can reach.
"""
import ipaddress
import json
import os
import socket
import ssl
from typing import Any

import aiohttp
from yarl import URL

from geminga.workers.identity.options import OidcOptions, Unusable

_SIZE_MAX = 256 << 10      # bytes of a document; real ones have less than 20 KiB
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}


class Unavailable(Exception):
    """A document cannot be fetched or used.  The message gives the reason, and nothing that the issuer has sent."""


class Documents:
    """Fetches documents of one issuer."""

    def __init__(self, issuer: str, options: OidcOptions, trust: ssl.SSLContext | None):
        """trust: authorities of the issuer's certificate, None for the system's.  Raises Unusable: issuer is no URL."""
        try:
            self._host = URL(issuer).host
        except ValueError as error:
            raise Unusable("authentication.oidc.issuers", f"names no host: {issuer!r}: {error}") from None
        self.schemes = ("https",) if options.require_https else ("https", "http")
        self._trust: ssl.SSLContext | bool = trust if trust is not None else True
        connect, read = options.connect_timeout_ms / 1000, options.read_timeout_ms / 1000
        self._timeout = aiohttp.ClientTimeout(connect + read, sock_connect=connect, sock_read=read)

    def __repr__(self) -> str:
        return f"<Documents of {self._host}>"

    async def fetch(self, address: str, form: dict[str, str] | None = None) -> dict[str, Any]:
        """Return the JSON object at a URL, or the answer to a form that is posted there.  Raises Unavailable."""
        try:
            url = URL(address)
        except ValueError:
            raise Unavailable("an address is no URL") from None
        if url.scheme not in self.schemes or not url.host:
            raise Unavailable(f"an address is no {' or '.join(self.schemes)} URL")
        try:
            body = await self._body(url, form)
        except TimeoutError:
            raise Unavailable(f"no answer within {self._timeout.total:g} s") from None
        except aiohttp.ClientConnectorCertificateError:
            raise Unavailable("the certificate is not valid for it, or its authority is not trusted") from None
        except aiohttp.ClientConnectorError as error:
            number = error.errno or 0      # below 0 it is one of looking names up, and the text is right
            reason = os.strerror(number) if number > 0 else error.strerror
            raise Unavailable(reason or "no connection") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:      # ValueError: a port or name that cannot be
            raise Unavailable(f"the exchange failed ({type(error).__name__})") from None
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise Unavailable("the answer is not JSON") from None
        if not isinstance(document, dict):
            raise Unavailable("the answer is no JSON object")
        return document

    async def _body(self, url: URL, form: dict[str, str] | None) -> bytes:
        # The operator named the issuer's host, which may be in a private network.  Its documents may lead back there
        # and to the public network, but to no other private address.
        make = _socket if url.host == self._host else _public_socket
        connector = aiohttp.TCPConnector(ssl=self._trust, socket_factory=make, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=_HEADERS, auto_decompress=False,
                                  cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request("GET" if form is None else "POST", url, data=form, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise Unavailable(f"the answer has status {response.status}")
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > _SIZE_MAX:
                    raise Unavailable(f"the answer has more than {_SIZE_MAX} bytes")
        return bytes(body)


def _socket(place: tuple[Any, ...]) -> socket.socket:
    return socket.socket(*place[:3])


def _public_socket(place: tuple[Any, ...]) -> socket.socket:
    """Return a socket for an address of the public network.  Raises OSError for any other address."""
    address = ipaddress.ip_address(place[4][0].partition("%")[0])
    if not (getattr(address, "ipv4_mapped", None) or address).is_global:
        raise PermissionError(None, "a document leads to a private address")
    return _socket(place)
