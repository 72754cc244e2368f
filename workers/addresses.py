"""Addresses at which clients are to connect: the broker's own, and advertised ones.

Where no address is advertised, a client is to stay on the one by which it came: behind a port map, NAT or a tunnel, no
address that the broker knows leads back to it.
"""
from typing import NamedTuple
from urllib.parse import urlsplit

from geminga.workers.options import WorkerOptions

_SCHEMES = "pulsar", "pulsar+ssl"


class Addresses(NamedTuple):
    """URLs at which the broker is reached; empty where it does not listen."""

    service: str = ""           # without TLS
    service_tls: str = ""
    http: str = ""
    http_tls: str = ""
    listeners: dict[str, tuple[str, str]] = {}      # noqa: RUF012 (never written to) name -> (service, service_tls)
    is_advertised: bool = False     # `service` and `service_tls` were configured; else clients stay where they came
    ports: dict[str, int] = {}      # noqa: RUF012 (never written to) scheme of a listener -> its port on this host

    def named(self, **names: str) -> dict[str, str]:
        """Return the URLs that are not empty, renamed by field=name arguments: {name: URL}."""
        return {theirs: address for ours, theirs in names.items() if (address := getattr(self, ours))}

    def seen_as(self, host: str, port: int = 0) -> "Addresses":
        """Return the URLs for a client that has reached the broker under this host name or address.

        port: of all URLs; 0: they keep their own.
        """
        at = [url(*_parts(address, host, port)) if address else "" for address in self[:4]]
        return self._replace(service=at[0], service_tls=at[1], http=at[2], http_tls=at[3])

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
    is_advertised = bool(options.advertised_address or named)
    ports = {urlsplit(one).scheme: urlsplit(one).port or 0 for one in (*own, http, http_tls) if one}
    return Addresses(first[0] or own[0], first[1] or own[1], http, http_tls, named, is_advertised, ports)


def _parts(address: str, host: str, port: int) -> tuple[str, str, int]:
    parts = urlsplit(address)
    assert parts.port is not None      # `url` writes it
    return parts.scheme, host, port or parts.port


def url(scheme: str, host: str, port: int) -> str:
    """Return SCHEME://HOST:PORT, "" for port -1; a wildcard host becomes "localhost"."""
    host = "localhost" if is_wildcard(host) else host
    return "" if port < 0 else f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def is_wildcard(host: str) -> bool:
    """Whether a listener on this host listens on all addresses."""
    return host in ("0.0.0.0", "::", "")
