"""Who a command is to its broker, with the names that Pulsar's tools have for it.

    --auth-plugin AuthenticationToken   --auth-params file:PATH, token:TOKEN or the token
    --auth-plugin AuthenticationBasic   --auth-params '{"userId": "...", "password": "..."}'
    --auth-plugin AuthenticationTls     --auth-params tlsCertFile:PATH,tlsKeyFile:PATH

GEMINGA_AUTH_PLUGIN and GEMINGA_AUTH_PARAMS in the environment are as strong as options: nobody sees them in a list of processes.
"""
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import click


class Credentials(NamedTuple):
    """What is shown."""

    method: str = ""             # of the binary protocol; "": nothing
    data: str = ""
    certificate: str = ""        # PEM file, shown by TLS
    key: str = ""                # PEM file of its private key

    def __repr__(self) -> str:
        return f"Credentials({self.method})"

    def headers(self) -> list[str]:
        """Of HTTP."""
        if self.method == "token":
            return [f"Authorization: Bearer {self.data}"]
        if self.method == "basic":
            return [f"Authorization: Basic {base64.b64encode(self.data.encode()).decode()}"]
        return []


NOBODY = Credentials()
_OPTIONS = (
    ("--auth-plugin", "GEMINGA_AUTH_PLUGIN", "NAME", "AuthenticationToken, AuthenticationBasic or AuthenticationTls."),
    ("--auth-params", "GEMINGA_AUTH_PARAMS", "TEXT",
     "token:..., file:PATH, or a JSON object with userId and password or with tlsCertFile and tlsKeyFile."),
)


def options(function: Callable) -> Callable:
    """For a command that is told auth_plugin and auth_params."""
    for name, variable, metavar, text in reversed(_OPTIONS):
        function = click.option(name, envvar=variable, metavar=metavar, help=text)(function)
    return function


def parameters() -> list[click.Parameter]:
    """The same, for a command that is not made of a function."""
    return [click.Option([name], envvar=variable, metavar=metavar, help=text) for name, variable, metavar, text in _OPTIONS]


def of(plugin: str | None, params: str | None) -> Credentials:
    """Raises click.UsageError."""
    name = (plugin or "").rpartition(".")[2].removeprefix("Authentication").lower()
    try:
        if name in ("", "disabled"):
            return NOBODY
        return _PLUGINS[name](params or "")
    except KeyError as error:
        if error.args[0] == name:
            raise click.UsageError(f"--auth-plugin {plugin} is not AuthenticationToken, AuthenticationBasic or AuthenticationTls") from None
        raise click.UsageError(f"--auth-params lacks {error.args[0]}") from None
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--auth-params: {getattr(error, 'strerror', None) or error}") from None


def _token(params: str) -> Credentials:
    if params.startswith("{"):
        params = "token:" + str(json.loads(params)["token"])
    if params.startswith("file:"):
        token = Path(unquote(urlsplit(params).path)).read_text(errors="replace")
    else:
        token = params.removeprefix("token:")
    if not (token := token.strip()).isascii() or not token.isprintable() or not token:
        raise ValueError("there is no token")
    return Credentials("token", token)


def _basic(params: str) -> Credentials:
    found = _fields(params)
    return Credentials("basic", f"{found['userId']}:{found['password']}")


def _tls(params: str) -> Credentials:
    found = _fields(params)
    return Credentials("tls", "", str(found["tlsCertFile"]), str(found["tlsKeyFile"]))


def _fields(params: str) -> dict[str, str]:
    """A JSON object, or name:value,name:value."""
    if params.startswith("{"):
        return json.loads(params)
    return dict(part.split(":", 1) for part in params.split(",") if ":" in part)


_PLUGINS = {"token": _token, "basic": _basic, "tls": _tls}
