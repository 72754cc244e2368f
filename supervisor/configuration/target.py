"""The broker that a command talks to: addresses and credentials, as options with their defaults.

A value is that of its option, else of the option's environment variable, else of the first of these that there is:

    1. the folder that --data-dir names: the sockets of the broker that serves it
    2. the context that --context or GEMINGA_CONTEXT names
    3. the file that PULSAR_CLIENT_CONF names, which has the keys of Pulsar's client.conf
    4. the current context, unless an address was given
    5. the sockets of this host's broker, if none of the options was given, and this user may open them
    6. 127.0.0.1 with the default ports, without credentials

Values of two of these sources are never mixed, because a command might then send the credentials of one broker to
another.
"""
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from geminga.storage.runtime.unix_sockets import CLIENTS, HTTP, UNIX, connect
from geminga.supervisor.configuration import contexts
from geminga.supervisor.host import installed
from geminga.workers.pulsar_client import credentials

if TYPE_CHECKING:
    from geminga.workers.pulsar_client.client import BrokerConnection
    from geminga.workers.pulsar_client.rest import Broker

SERVICE_URL, ADMIN_URL = "pulsar://127.0.0.1:6650", "http://127.0.0.1:8080"
# Option's parameter: key of Pulsar's client.conf.
_CONF = {"url": "brokerServiceUrl", "admin_url": "webServiceUrl", "auth_plugin": "authPlugin",
         "auth_params": "authParams", "tls_trust_cert_path": "tlsTrustCertsFilePath",
         "tls_allow_insecure": "tlsAllowInsecureConnection"}
_ADDRESSES = "url", "admin_url"
_CONTEXT = "geminga.context"      # in click's `meta`, which all contexts of a command line share
_LOOK_S = 1.0                     # limit for a look whether a broker listens on a Unix socket


class Target(NamedTuple):
    """Addresses of a broker, and the credentials for it."""

    url: str
    admin_url: str
    credentials: credentials.Credentials

    @property
    def is_local(self) -> bool:
        """Whether the addresses are Unix sockets, which Pulsar's client libraries cannot use."""
        return self.url.startswith(UNIX)

    def broker(self, timeout_s: float = 60.0) -> "Broker":
        """Return a client of the broker's HTTP port."""
        from geminga.workers.pulsar_client.rest import Broker
        return Broker(self.admin_url, timeout_s, self.credentials)

    async def connect(self) -> "BrokerConnection":
        """Return a new connection of the binary protocol, after its handshake.  Raises OSError, ClientError."""
        from geminga.workers.pulsar_client import client
        method, data, *_ = self.credentials
        return await client.connect(self.url, method, data, self.credentials.context_for(self.url))

    async def connect_to_topic(self, topic: str) -> "BrokerConnection":
        """Return a new connection to the broker that serves a topic.  Raises OSError, ClientError."""
        from geminga.workers.pulsar_client import client
        method, data, *_ = self.credentials
        return await client.connect_to_topic(self.url, topic, method, data, self.credentials.context_for(self.url))


def of(values: Mapping[str, Any], folder: Path | None = None, *, may_be_local: bool = True) -> Target:
    """Return the target that values of the options give.

    folder: the data folder of this host's broker, if the command knows it.  may_be_local: whether the command can use
    Unix sockets.  Raises click.UsageError, NoDefaults,
    contexts.Unusable.
    """
    given = {name: value for name, value in values.items() if value not in (None, False)}
    if (data_dir := given.pop("data_dir", None)) is not None:
        if not may_be_local:
            raise click.UsageError("--data-dir: the library of applications needs an address: give --url")
        given = _served(data_dir, given)      # credentials of the environment are for other brokers
    who = {**_defaults(given, folder, may_be_local=may_be_local), **given}
    url, admin_url = who.pop("url", SERVICE_URL), who.pop("admin_url", ADMIN_URL)
    return Target(url, admin_url, credentials.of(**who))


class NoDefaults(Exception):
    """An error: the file that PULSAR_CLIENT_CONF names cannot be read, or no broker serves a folder."""

    exit_status = 2


def _served(data_dir: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the addresses of the broker that serves the folder of --data-dir."""
    for name in _ADDRESSES:
        if name in given:
            raise click.UsageError(f"--data-dir names a broker, and so does --{name.replace('_', '-')}")
    if (local := _local(Path(data_dir))) is None:
        raise NoDefaults(f"{data_dir}: no broker answers there, or only the folder's user may ask it")
    return local


def _defaults(given: Mapping[str, Any], folder: Path | None, *, may_be_local: bool) -> dict[str, Any]:
    """Return values for options that are not given, by parameter, from the first source that there is."""
    if str(given.get("url")).startswith(UNIX):
        return {}
    click_context = click.get_current_context(silent=True)
    named = (click_context.meta.get(_CONTEXT) if click_context else None) or os.environ.get("GEMINGA_CONTEXT")
    if named:
        return _of_context(named, given)
    if path := os.environ.get("PULSAR_CLIENT_CONF"):
        return _client_conf(path)
    if not any(name in given for name in _ADDRESSES):
        stored = contexts.load()
        if stored.current:
            return _of_context(stored.current, given)
    if given or not may_be_local:
        return {}
    place = folder or installed.data_dir()
    return (_local(place, is_stopped_too=True) if place is not None else None) or {}


def _of_context(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the addresses and credentials of a context.  Raises contexts.Unusable.

    given: values that take the place of the context's; with credentials among them, its token is not refreshed.
    """
    values = contexts.load().of(name)
    if "expires_s" in values and "auth_params" not in given:
        from geminga.supervisor.configuration import sign_in
        values = sign_in.refreshed(name)
    return {key: values[key] for key in (*_ADDRESSES, *contexts.CREDENTIALS) if key in values}


def _local(folder: Path, *, is_stopped_too: bool = False) -> dict[str, Any] | None:
    """Return the addresses of the broker that serves a folder, None if this user may not, or cannot, connect to it.

    is_stopped_too: also if the broker of the folder does not run.  Nobody answers there then: a broker at the default
    address would be another one, whose state is not what was asked for.
    """
    try:
        connect(folder / HTTP, _LOOK_S).close()
    except PermissionError:
        return None
    except OSError:
        if not is_stopped_too or not _is_served_folder(folder):
            return None
    return {"url": f"{UNIX}{folder / CLIENTS}", "admin_url": f"{UNIX}{folder / HTTP}"}


def _is_served_folder(folder: Path) -> bool:
    """Whether a broker has served a folder, as far as this user can see."""
    try:
        return (folder / "format").exists()
    except OSError:
        return False


def _client_conf(path: str) -> dict[str, Any]:
    from geminga.supervisor.configuration.properties import parse
    try:
        text = Path(path).read_text(errors="replace")
    except OSError as error:
        raise NoDefaults(f"PULSAR_CLIENT_CONF: {path}: {error.strerror}") from None
    values = parse(text, path)
    taken = {ours: values[theirs].value for ours, theirs in _CONF.items() if theirs in values and values[theirs].value}
    return taken | {"tls_allow_insecure": str(taken.get("tls_allow_insecure")).lower() == "true"}


# -- options

def _service_url() -> click.Option:
    return click.Option(["url", "--url"], metavar="URL", show_default=f"this host's broker, else {SERVICE_URL}",
                        help="The broker's address: pulsar://HOST:PORT or pulsar+ssl://HOST:PORT.")


def _admin_url() -> click.Option:
    return click.Option(["admin_url", "--admin-url", "--http-url"], metavar="URL",
                        show_default=f"this host's broker, else {ADMIN_URL}",
                        help="The broker's address of HTTP: http://HOST:PORT or https://HOST:PORT.")


def _data_dir() -> click.Option:
    return click.Option(["data_dir", "--data-dir"], metavar="DIR",
                        help="The broker that serves this folder, without credentials: for the folder's user and root.")


def context_option(*, hidden: bool = False) -> click.Option:
    """Return the option --context, which any part of a command line may have; `of` follows the last one."""
    return click.Option(["--context"], metavar="NAME", expose_value=False, callback=keep_context, hidden=hidden,
                        shell_complete=complete_context, help="The broker of this name: see geminga context.")


def keep_context(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    """Keep the value of --context for `of`."""
    if value is not None:
        context.meta[_CONTEXT] = value


def complete_context(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Return the names of contexts that begin with a text."""
    try:
        return sorted(name for name in contexts.load().by_name if name.startswith(typed))
    except contexts.Unusable:
        return []


def credentials_options() -> list[click.Option]:
    """Return the options of credentials, such as --auth-plugin, as click objects."""
    return [click.Option(names, **attributes) for names, attributes in credentials.OPTIONS]


def _parameters(*addresses: click.Option) -> list[click.Option]:
    return [*addresses, context_option(), _data_dir(), *credentials_options()]


def service_parameters() -> list[click.Option]:
    """Return the options of commands that only use the binary protocol, as click objects."""
    return _parameters(_service_url())


def admin_parameters() -> list[click.Option]:
    """Return the options of commands that only use HTTP, as click objects."""
    return _parameters(_admin_url())


def _decorator(parameters: Callable[[], list[click.Option]]) -> Callable[..., Any]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        added = getattr(function, "__click_params__", [])
        function.__click_params__ = added + parameters()[::-1]      # type: ignore[attr-defined]
        return function
    return decorate


# Decorators of a command's function, which passes the values to `of`: with both addresses, or with one.
options = _decorator(lambda: _parameters(_service_url(), _admin_url()))
service_options = _decorator(service_parameters)
admin_options = _decorator(admin_parameters)
with_credentials = _decorator(credentials_options)      # without an address
