"""Addresses at which clients are to connect: the broker's own, and advertised ones."""
from typing import NamedTuple

from geminga.workers.options import WorkerOptions

_SCHEMES = "pulsar", "pulsar+ssl"


class Addresses(NamedTuple):
    """URLs at which the broker is reached; empty where it does not listen."""

    service: str = ""           # without TLS
    service_tls: str = ""
    http: str = ""
    http_tls: str = ""
    listeners: dict[str, tuple[str, str]] = {}      # noqa: RUF012 (never written to) name -> (service, service_tls)

    def named(self, **names: str) -> dict[str, str]:
        """Return the URLs that are not empty, renamed by field=name arguments: {name: URL}."""
        return {theirs: address for ours, theirs in names.items() if (address := getattr(self, ours))}

    @property
    def broker(self) -> str:
        """The broker's name in administration: HOST:PORT of its HTTP listener."""
        return (self.http or self.http_tls).partition("://")[2]


def addresses(options: WorkerOptions, port: int, tls_port: int, http: str = "", http_tls: str = "") -> Addresses:
    """Return the URLs of listeners on these ports; port -1: no listener.

    A client that names no listener is sent to the first advertised listener of its scheme, as in Pulsar.
    """
    named: dict[str, tuple[str, str]] = {}
    for text in options.advertised_listeners:
        name, _, address = text.partition(":")
        plain, tls = named.get(name, ("", ""))
        named[name] = (plain, address) if address.startswith(_SCHEMES[1]) else (address, tls)
    first = [next((urls[at] for urls in named.values() if urls[at]), "") for at in (0, 1)]
    host = options.advertised_address or options.bind
    own = [url(scheme, host, at) for scheme, at in zip(_SCHEMES, (port, tls_port), strict=True)]
    return Addresses(first[0] or own[0], first[1] or own[1], http, http_tls, named)


def url(scheme: str, host: str, port: int) -> str:
    """Return SCHEME://HOST:PORT, "" for port -1; a wildcard host becomes "localhost"."""
    host = "localhost" if host in ("0.0.0.0", "::", "") else host
    return "" if port < 0 else f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
