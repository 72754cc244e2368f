"""Refusal of requests that a web page of another site makes, before anything else looks at them.

A browser sends what any page asks it to, from inside the network and with the passwords that it remembers. Three
headers show such requests:

    Sec-Fetch-Site, Origin   the page's site: only pages of the broker itself may change anything
    Content-Type             forms may be sent to any site without its permission, JSON may not
    Host                     the name by which the page reaches the broker. If a foreign name was pointed at the
                             broker's address (DNS rebinding), the page counts as the broker's own in all else. So
                             foreign names are refused for reads as well.

Addresses are never foreign: a name can be pointed elsewhere, an address cannot. Tools send neither of the first two
headers, and their Host is the name or address that they were given.

Not all requests of browsers have them. Sec-Fetch-Site comes over HTTPS and to loopback addresses only, and Origin with
changes and WebSocket, but with no plain GET. A GET that an image of a page asks for over plain HTTP looks like that of
a tool. So a GET that takes messages needs a proof, which no page can have a browser send (`refuse_unproven`).
"""
import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from geminga.storage.runtime.log import log
from geminga.supervisor.admin.requests.sessions import COOKIE
from geminga.supervisor.configuration.config import Config
from geminga.workers.addresses import Addresses
from geminga.workers.identity.authentication import LOCAL, Identity

# load balancers probe under names of their own, and these routes reveal nothing else
_PROBES = "/status.html", "/ready", "/admin/v2/brokers/ready"
_LOOKS = "GET", "HEAD", "OPTIONS"
# a GET that publishes a message, and those that take messages, so they count as changes
_HEALTH = "/admin/v2/brokers/health"
_MESSAGES = "/topics/"
_SOCKETS = "/ws/"
_OWN_SITES = "same-origin", "none"                                 # "none" is a request by the user, such as a bookmark
_JSON = "application/json", "text/json"
_FORMS = "application/x-www-form-urlencoded", "multipart/form-data", "text/plain"
_PROOF = "X-Requested-With"      # any value: a page of another site has to ask first whether it may send the header
_BROWSERS = "Mozilla/"           # how the User-Agent of every browser begins
_TOLD_MAX = 100                                                    # foreign names that are logged


class Guard:
    """Refuses requests of other sites' pages; holds the host names by which the broker may be reached."""

    def __init__(self, config: Config, addresses: Addresses):
        self._full_name: asyncio.Task[str] | None = None
        self.configure(config, addresses)

    def __repr__(self) -> str:
        return f"<Guard {sorted(self._names)}>"

    def configure(self, config: Config, addresses: Addresses) -> None:
        """Apply a new configuration."""
        urls = [*addresses[:4], *(url for pair in addresses.listeners.values() for url in pair)]
        known = ["localhost", socket.gethostname(), config.http_bind,
                 config.worker.bind, config.worker.advertised_address, urlsplit(config.console.url).hostname or ""]
        known += [*config.http.hosts, *(urlsplit(url).hostname or "" for url in urls)]
        self._names = {_plain(name) for name in known} - {""}
        self._told: set[str] = set()

    async def check(self, request: web.Request) -> None:
        """Refuse a request that comes from another site's page, or that uses a foreign host name.  Raises 403, 415."""
        if request.path not in _PROBES:
            for host in request.headers.getall("Host", ()):
                if not await self._is_own(host):
                    self._tell(host)
                    raise web.HTTPForbidden(
                        text=f"{host[:255]!r} is not a name of this broker; hosts of [http] in its configuration names "
                        "those that are, beside its addresses"
                    )
        if may_change(request):
            _refuse_other_sites(request)
            _refuse_forms(request)
            if request.method in _LOOKS and not request.path.startswith(_MESSAGES):
                _refuse_browsers_without_a_site(request)

    def knows(self, host: str) -> bool:
        """Whether the host of a page is this one, or is named by the configuration."""
        name = _plain(host)
        return name in self._names or (_is_address(name) and ipaddress.ip_address(name).is_loopback)

    async def _is_own(self, host: str) -> bool:
        name = _name_of(host)
        return name in self._names or _is_address(name) or name == await self._looked_up()

    async def _looked_up(self) -> str:
        """Return the host's full name.

        DNS may be slow, so the name is looked up once, when a request first uses an unknown name.
        """
        if self._full_name is None:
            self._full_name = asyncio.create_task(asyncio.to_thread(socket.getfqdn))
        return _plain(await asyncio.shield(self._full_name))

    def _tell(self, host: str) -> None:
        if host not in self._told and len(self._told) < _TOLD_MAX:
            self._told.add(host)
            log.warning(f"requests over HTTP for {host[:255]!r} are refused: hosts of [http] does not name it",
                code="G407")


GUARD = web.AppKey("guard", Guard)


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    await request.app[GUARD].check(request)
    return await handler(request)


def may_change(request: web.Request) -> bool:
    """Whether the request may change something.  Some do although they are GETs; a WebSocket is looked at by itself."""
    if request.method in _LOOKS:
        return (request.path == _HEALTH or request.path.startswith(_MESSAGES)
                or "checkAllowAutoCreation" in request.query)
    return True


def comes_from_a_browser(request: web.Request) -> bool:
    """Whether a browser sends this change or this handshake of a WebSocket.

    Browsers name the site of a page only to addresses that they trust.  They name its origin with every change and
    handshake, but with no GET, so a GET is a browser's by the name that it gives itself.  Libraries for WebSocket name
    an origin too, but no page can add a token to a handshake.
    """
    headers = request.headers
    if COOKIE in request.cookies or "Sec-Fetch-Site" in headers:
        return True
    if request.method in _LOOKS and not is_socket(request):
        return "Origin" in headers or _names_a_browser(request)
    return "Origin" in headers and not (is_socket(request) and _has_token_in_header(request))


def is_socket(request: web.Request) -> bool:
    """Whether the request asks for a WebSocket."""
    return request.path.startswith(_SOCKETS)


def refuse_unproven(request: web.Request, identity: Identity) -> None:
    """Refuse a GET that changes something, unless no page of another site can have a browser send it.  Raises 403.

    A browser's word for the page's site is proof, as foreign sites have been refused before.
    """
    is_told = not {"Sec-Fetch-Site", _PROOF}.isdisjoint(request.headers)
    if is_told or identity.method == LOCAL or shows_a_token(request, identity):
        return
    raise web.HTTPForbidden(text="Any web page can have a browser send this GET, which takes messages: ask by POST, or "
                                 f"send a header {_PROOF} or a token")


def shows_a_token(request: web.Request, identity: Identity) -> bool:
    """Whether whoever asks knows a token, which browsers do not add by themselves, as they do passwords.

    A token in the address, where any page can write one, counts only if the broker has accepted it.
    """
    return _has_token_in_header(request) or ("token" in request.query and identity.method == "token")


def _has_token_in_header(request: web.Request) -> bool:
    return request.headers.get("Authorization", "").lower().startswith("bearer ")


def _names_a_browser(request: web.Request) -> bool:
    return request.headers.get("User-Agent", "").startswith(_BROWSERS)


def _refuse_browsers_without_a_site(request: web.Request) -> None:
    """Refuse a GET that changes little and is asked for by Pulsar's tools, if a browser sends it.  Raises 403.

    The tools cannot be taught to send a proof, so only the name that browsers give themselves tells the two apart.
    """
    if "Sec-Fetch-Site" not in request.headers and _names_a_browser(request):
        raise web.HTTPForbidden(text="Any web page can have a browser send this GET, which changes something")


def _refuse_other_sites(request: web.Request) -> None:
    """Refuse a change that a page of another site requests.  Raises 403."""
    if any(site.strip().lower() not in _OWN_SITES for site in request.headers.getall("Sec-Fetch-Site", ())):
        raise web.HTTPForbidden(text="Pages of other sites may not change anything here: Sec-Fetch-Site names one")
    for origin in request.headers.getall("Origin", ()):
        if origin.partition("://")[2].lower() != (host := request.headers.get("Host", "")).lower():
            raise web.HTTPForbidden(
                text=f"Pages of {origin[:255]!r} may not change anything here: the request is for {host[:255]!r}, a "
                "Host that a proxy between them has to pass on as it is"
            )


def _refuse_forms(request: web.Request) -> None:
    """Refuse a body with a content type that an HTML form can send.  Raises 403, 415.

    Forms, and scripts that do not ask first whether they may, send no other bodies than those of a POST.
    """
    resource = request.match_info.route.resource
    if "Content-Type" not in request.headers or (resource is not None and resource.canonical.endswith("{rest}")):
        return      # the route itself refuses these, and says why
    kind = request.content_type
    if kind in _FORMS and request.method != "POST":
        return
    if kind in _FORMS:
        raise web.HTTPForbidden(text=f"A body of {kind} may come from a form of any web page: "
                                     "bodies are application/json")
    if request.can_read_body and kind not in _JSON and not kind.endswith("+json"):
        raise web.HTTPUnsupportedMediaType(text=f"Bodies are application/json, not {kind!r}")


# -- names

def _name_of(host: str) -> str:
    """Return a Host header's name without the port."""
    name, _, port = host.rpartition(":")
    return _plain(name if name and port.isdigit() and (":" not in name or name.endswith("]")) else host)


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".").removeprefix("[").removesuffix("]")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
