"""Listening sockets of the broker, and the folder of the sockets between its processes."""
import contextlib
import errno
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from geminga.supervisor.configuration.config import Config
from geminga.workers.addresses import is_wildcard

_SOCKET_PATH_MAX = 80         # bytes of the folder's path; the kernel takes 107 with the socket's name
_FAR = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}      # addresses reserved for examples


class CannotServe(Exception):
    """A failure that keeps the broker from starting; the text is one line for the log."""


def open_listener(bind: str, port: int, key: str) -> socket.socket:
    """Open a listening socket.  Raises CannotServe, which names the configuration key of the port."""
    with _named(bind, port, key):
        listener = _bind(bind, port)
        listener.listen(1024)
    return listener


def bind_shared(bind: str, port: int, key: str, count: int) -> list[socket.socket]:
    """Bind so many sockets to one port, without listening.  Raises CannotServe, which names the configuration key.

    No other broker can bind the port from then on, although nobody listens yet.
    """
    bound: list[socket.socket] = []
    with _named(bind, port, key):
        for _ in range(count):
            bound.append(_bind(bind, port, is_shared=True, is_first=not bound))
            port = bound[0].getsockname()[1]
            # With this option on both, another broker could bind the port as long as nobody listens.  The worker that
            # listens sets it again: ended connections would keep the port from the next start for a minute otherwise.
            bound[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    for first in bound[:1]:
        # A kernel may remember for the port that all its sockets had the option, until one is bound without it.
        with contextlib.suppress(OSError), socket.socket(first.family, first.type, first.proto) as without:
            without.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            without.bind(first.getsockname())
    return bound


def _bind(bind: str, port: int, *, is_shared: bool = False, is_first: bool = False) -> socket.socket:
    """Return a bound socket.  Raises OSError.

    The first of several sockets on a port binds it once without SO_REUSEPORT.  Otherwise another broker of the same
    user could share the port unnoticed, and take some of the connections.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM,
                                                            flags=socket.AI_PASSIVE)[0]
    if is_first:
        with socket.socket(family, kind, protocol) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            # The kernel takes a port that it has chosen away from a socket that stops listening.
            address = alone.getsockname()
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(address)
    return bound


@contextlib.contextmanager
def _named(bind: str, port: int, key: str) -> Iterator[None]:
    """Turn an OSError of a port into CannotServe, which names the configuration key."""
    try:
        yield
    except OSError as error:
        raise CannotServe(f"{key}: cannot listen on {bind}:{port}: {error.strerror or error}{_remedy(error, key, port)}"
                          ) from None


def open_listeners(config: Config) -> tuple[dict[str, list[socket.socket]], dict[str, socket.socket]]:
    """Bind a socket for each worker to the ports "network" and "tls", and open those of HTTP.  Raises CannotServe.

    The supervisor keeps the sockets: connections queue in them while a process restarts.
    """
    tls, has_tls = config.tls, bool(config.tls.certificate)
    of_clients = {name: bind_shared(config.worker.bind, port, f"{name}.port", config.workers if port >= 0 else 0)
                  for name, port in (("network", config.worker.port), ("tls", tls.port if has_tls else -1))}
    of_http = {scheme: open_listener(config.http_bind, port, key)
               for scheme, key, port in (("http", "http_port", config.http_port),
                                         ("https", "tls.http_port", tls.http_port if has_tls else -1)) if port >= 0}
    return of_clients, of_http


def reached_from_others(bind: str) -> str:
    """Return the address under which other hosts reach a listener on all addresses; "" for one on a single address.

    The host may have more addresses: this is the one of its default route.
    """
    if not is_wildcard(bind):
        return ""
    families = (socket.AF_INET, socket.AF_INET6) if bind == "::" else (socket.AF_INET,)
    for family in families:
        # A datagram socket that connects only chooses a route: nothing is sent.
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_FAR[family], 9))
            return str(probe.getsockname()[0])
    return ""


def shown(addresses: dict[str, list[str]], to_others: list[str], data_dir: Path) -> str:
    """Return the lines that a start prints: addresses by their kinds, the data folder, and two commands to try.

    to_others: addresses of clients on other hosts.  An empty address is left out.
    """
    others = [f"{url} (from other hosts)" for url in to_others if url]
    every = {**addresses, "clients": [*addresses["clients"], *others]}
    command, url = Path(sys.argv[0]).absolute(), next(filter(None, addresses["clients"]))
    return "".join(f"  {name:<9} {url}\n" for name, urls in every.items() for url in filter(None, urls)) + \
        f"  data      {data_dir.resolve()}\nPublish a first message, and read it:\n" \
        f"  {command} produce --url {url} my-topic 'Hello'\n  {command} consume --url {url} my-topic"


def _remedy(error: OSError, key: str, port: int) -> str:
    """Return the text that follows a failure to listen: its cause as far as it can be seen, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f" by {_holder(port)}; stop that process, or set {key} to another port"
    if error.errno == errno.EACCES:
        return f"; ports below 1024 are root's: set {key} to a higher one"
    bind_key = "http_bind or network.bind" if "http" in key else "network.bind"
    return f"; set {bind_key} to an address of this host"


def _holder(port: int) -> str:
    """Return the names and numbers of the processes that listen on a port, as far as this user may see them."""
    import psutil
    listening = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN
                 and getattr(one.laddr, "port", -1) == port]
    holders = {}
    for pid in sorted({one.pid for one in listening if one.pid is not None}):
        with contextlib.suppress(psutil.Error):
            holders[pid] = psutil.Process(pid).name()
    if not holders:
        return "a process of another user, which root can see with: ss -ltnp, or by one that does not listen yet"
    pid, name = next(iter(holders.items()))
    others = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
    return f"process {pid} ({name}){others}"


def make_run_dir(data_dir: Path) -> Path:
    """Make the folder of the owners' sockets: in the data folder, or a temporary folder if that path is too long."""
    place = data_dir.resolve() / "run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    return place if len(str(place)) <= _SOCKET_PATH_MAX else Path(tempfile.mkdtemp(prefix="geminga-"))


def raise_file_limit() -> None:
    """Let this process, and those that it forks, open as many files and sockets as they may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
