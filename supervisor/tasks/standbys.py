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
from geminga.storage.runtime.lease import ADMIN, ALONE_SECONDS, Lease
from geminga.storage.standby import standing
from geminga.storage.standby.standing import Peer
from geminga.supervisor.configuration.config import StandbyOptions
from geminga.workers.pulsar_client import credentials
from geminga.workers.pulsar_client.rest import Broker, NotReachable, Refused

PATH, FEED = "/ops/v1/standby", "/ops/v1/standby/feed"
_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
_ASK_SECONDS = 3.0
_AGAIN_SECONDS = 0.2
DOUBT_SECONDS = 10.0         # for which a standby that may be promoted, and begins to serve, is asked again
TOOK_OVER, PROMOTING, FOLLOWS = "took over", "promoting", "follows"      # a standby's answers
NO_ANSWER = NotReachable, Refused, click.UsageError
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


def ask(known: standing.Standing, options: StandbyOptions, seconds: float = _ASK_SECONDS) -> str:
    """Ask the known standby whether it took over: TOOK_OVER, PROMOTING if it is about to, else FOLLOWS.

    Raises NO_ANSWER.
    """
    broker = Broker(known.attached.http, seconds, credentials_of(options))
    answer = broker.ask("GET", PATH, {"identity": known.identity}).value()
    said = answer if isinstance(answer, dict) else {}
    return TOOK_OVER if said.get("took_over") is True else PROMOTING if said.get("promoting") is True else FOLLOWS


def _waited_for(known: standing.Standing, options: StandbyOptions) -> str:
    """Ask the known standby, and again while it is being promoted, for DOUBT_SECONDS at most.  Raises NO_ANSWER."""
    until, answer = time.monotonic() + DOUBT_SECONDS, ask(known, options)
    while answer == PROMOTING and time.monotonic() < until:
        time.sleep(_AGAIN_SECONDS)
        with suppress(*NO_ANSWER):      # its process ends, and begins anew as a broker
            answer = ask(known, options)
    return answer


def look(data_dir: Path, options: StandbyOptions) -> str:
    """Look whether the data folder may be served, as far as standbys are concerned, and ask its known standby.

    Returns a line for the log if the standby does not answer, else "".  Raises Superseded, OSError.
    """
    known = standing.read(data_dir)
    if known.superseded.http:
        data_folder.mark_superseded(data_dir)      # a kill may have come between the two files
    elif known.attached.http:
        try:
            answer = _waited_for(known, options)
        except NO_ANSWER as error:
            text = f"its standby {known.attached.name} does not tell whether it was promoted: {error}"
            if options.required:
                raise Superseded(f"{data_dir}: {text}; start the standby, or set standby.required = false") from None
            return f"{text}; if it was, both serve from now on, and what clients write here is lost"
        if answer != TOOK_OVER:
            return ""
        supersede(data_dir, known.attached)
        known = standing.read(data_dir)
    else:
        return ""
    raise Superseded(told(data_dir, known))


def lease_of(data_dir: Path) -> Lease:
    """Return the lease of a broker that begins to serve a folder, after a look at its standby."""
    lease = Lease()
    if standing.read(data_dir).attached.http:
        lease.renew(ADMIN, lease.now() + ALONE_SECONDS)
    return lease


def told(data_dir: Path, known: standing.Standing) -> str:
    """Return the line that says that a folder is superseded, and what to do."""
    by = known.superseded
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(by.at_ms / 1000))
    return f"{data_dir}: this host was superseded by {by.name} at {when}: serve as its standby with " \
           f"--standby-of {by.url}, which discards what this folder has, or use another folder"
