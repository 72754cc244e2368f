"""Whether clients on other hosts may use the broker without authentication."""
import ipaddress
from collections.abc import Iterator

from geminga.supervisor.configuration.config import Config


def warning(config: Config) -> str:
    """Return a line about listeners that everybody on the network may use, "" if there is none.

    Listeners on loopback addresses are not reached from other hosts.  TLS that demands a client's certificate counts as
    authentication.
    """
    open_to_all = ", ".join(_open(config))
    if config.authentication.methods or not open_to_all:
        return ""
    return f"everybody who reaches this host may read and write: {open_to_all} without authentication; set " \
           "authentication.methods (docs/security.md), or close the ports in a firewall"


def _open(config: Config) -> Iterator[str]:
    """Yield "key = address" of each bind key whose listeners take anybody."""
    tls = config.tls
    has_open_tls = bool(tls.certificate) and not (tls.trusted and tls.client_certificates == "required")
    if not is_loopback(config.worker.bind) and (config.worker.port >= 0 or (has_open_tls and tls.port >= 0)):
        yield f"network.bind = {config.worker.bind}"
    bind = config.http_bind or config.worker.bind
    if not is_loopback(bind) and (config.http_port >= 0 or (has_open_tls and tls.http_port >= 0)):
        yield f"http_bind = {bind}"


def is_loopback(bind: str) -> bool:
    """Whether only programs on this host reach a listener on the address."""
    try:
        return ipaddress.ip_address(bind.partition("%")[0]).is_loopback
    except ValueError:
        return bind == "localhost" or bind.endswith(".localhost")
