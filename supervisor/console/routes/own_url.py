"""The address at which browsers reach the console, which `console.url` names where a proxy that ends TLS hides it."""
from aiohttp import web

from geminga.supervisor.admin.requests.request_parts import TOPICS


def own_url(request: web.Request) -> str:
    """Return the console's address without a path: `console.url` if the request's host is in it, else as it was asked.

    Somebody who comes past the proxy, such as by http://localhost:8080, still gets links and cookies that work there.
    """
    url = request.app[TOPICS].config.console.url
    return url if url.partition("://")[2] == request.host else f"{request.scheme}://{request.host}"


def is_secure(request: web.Request) -> bool:
    """Whether browsers reach the console by HTTPS, so that cookies may be marked `Secure`."""
    return own_url(request).startswith("https:")
