"""Questions between a broker and its standby beside the feed: where HTTP is, and whether the other one took over."""
import re
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import click

from geminga.storage.disk import data_folder
from geminga.storage.standby import standing
from geminga.storage.standby.standing import Peer
from geminga.supervisor.configuration.config import StandbyOptions
from geminga.supervisor.pulsar_client import credentials
from geminga.supervisor.pulsar_client.rest import Broker, NotReachable, Refused

PATH, FEED = "/ops/v1/standby", "/ops/v1/standby/feed"
_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
_ASK_SECONDS = 3.0
# A broker answers HTTP on a port of Pulsar's protocol so, whether with TLS or without.
_PLACES = {"pulsar": ("http", re.compile(rb"HTTP is at port (\d+)")),
           "pulsar+ssl": ("https", re.compile(rb"HTTPS is at port (\d+)"))}


class Superseded(Exception):
    """Exception for a data folder whose standby was promoted.  The text is one line for the user."""


def credentials_of(options: StandbyOptions) -> credentials.Credentials:
    """Return the configured credentials for the other broker.  Raises click.UsageError."""
    try:
        return credentials.of(auth_params=options.auth_params or None, tls_trust_cert_path=options.trusted or None)
    except click.UsageError as error:
        raise click.UsageError(error.message.replace("--auth-params", "standby.auth_params")) from None


def http_of(url: str) -> str:
    """Return the address of HTTP of the broker at pulsar:// or pulsar+ssl://, which that port tells.

    Raises OSError; NotReachable if the port is not of such a broker.
    """
    parts = urlsplit(url)
    scheme, place = _PLACES[parts.scheme]
    with socket.create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]), _ASK_SECONDS) as link:
        link.sendall(b"GET %s HTTP/1.0\r\n\r\n" % FEED.encode())
        said = b""
        with suppress(ConnectionError, TimeoutError):
            while some := link.recv(4096):
                said += some
    if (found := place.search(said)) is None:
        raise NotReachable(f"{url}: it does not tell where {scheme.upper()} is: it is no broker of this kind, or has "
                           "no such port")
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}:{int(found[1])}"


def supersede(data_dir: Path, by: Peer) -> None:
    """Mark a data folder as superseded by a standby that is promoted: no program serves it again.  Raises OSError."""
    data_folder.mark_superseded(data_dir)
    by = replace(by, at_ms=time.time_ns() // 1_000_000)
    standing.write(data_dir, replace(standing.read(data_dir), superseded=by))


def look(data_dir: Path, options: StandbyOptions) -> str:
    """Look whether the data folder may be served, as far as standbys are concerned, and ask its known standby.

    Returns a line for the log if the standby does not answer, else "".  Raises Superseded, OSError.
    """
    known = standing.read(data_dir)
    if known.superseded.http:
        data_folder.mark_superseded(data_dir)      # a kill may have come between the two files
    elif known.attached.http:
        try:
            broker = Broker(known.attached.http, _ASK_SECONDS, credentials_of(options))
            answer = broker.ask("GET", PATH, {"identity": known.identity}).value()
        except (NotReachable, Refused, click.UsageError) as error:
            text = f"its standby {known.attached.name} does not tell whether it was promoted: {error}"
            if options.required:
                raise Superseded(f"{data_dir}: {text}; start the standby, or set standby.required = false") from None
            return f"{text}; if it was, both serve from now on, and what clients write here is lost"
        if not (isinstance(answer, dict) and answer.get("took_over") is True):
            return ""
        supersede(data_dir, known.attached)
        known = standing.read(data_dir)
    else:
        return ""
    raise Superseded(told(data_dir, known))


def told(data_dir: Path, known: standing.Standing) -> str:
    """Return the line that says that a folder is superseded, and what to do."""
    by = known.superseded
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(by.at_ms / 1000))
    return f"{data_dir}: this host was superseded by {by.name} at {when}: serve as its standby with " \
           f"--standby-of {by.url}, which discards what this folder has, or use another folder"
