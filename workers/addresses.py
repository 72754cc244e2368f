"""Where clients are told to go."""
from typing import NamedTuple

from geminga.workers.options import WorkerOptions

_SCHEMES = "pulsar", "pulsar+ssl"


class Addresses(NamedTuple):
    """URLs; empty where nobody listens."""

    service: str = ""           # without TLS
    service_tls: str = ""
    http: str = ""
    http_tls: str = ""
    listeners: dict[str, tuple[str, str]] = {}      # noqa: RUF012 (never written to) by name: the first two

    def said(self, **names: str) -> dict[str, str]:
        """Those there are, under other names."""
        return {theirs: found for ours, theirs in names.items() if (found := getattr(self, ours))}

    @property
    def broker(self) -> str:
        """What the broker is called in administration."""
        return (self.http or self.http_tls).partition("://")[2]


def addresses(options: WorkerOptions, port: int, tls_port: int, http: str = "", http_tls: str = "") -> Addresses:
    """For listeners on these ports, -1 where there is none.

    Who asks for no listener by name is told the first that was named of a scheme, as Pulsar has it.
    """
    named: dict[str, tuple[str, str]] = {}
    for text in options.advertised_listeners:
        name, _, said = text.partition(":")
        plain, tls = named.get(name, ("", ""))
        named[name] = (plain, said) if said.startswith(_SCHEMES[1]) else (said, tls)
    first = [next((urls[at] for urls in named.values() if urls[at]), "") for at in (0, 1)]
    own = [url(scheme, options.advertised_address or options.bind, at) for scheme, at in zip(_SCHEMES, (port, tls_port), strict=True)]
    return Addresses(first[0] or own[0], first[1] or own[1], http, http_tls, named)


def url(scheme: str, host: str, port: int) -> str:
    """Never of an address that means "any"; empty for port -1."""
    host = "localhost" if host in ("0.0.0.0", "::", "") else host
    return "" if port < 0 else f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
