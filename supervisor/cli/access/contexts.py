"""`geminga context`: named brokers, with addresses and credentials."""
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from geminga.supervisor.cli import grammar, output
from geminga.supervisor.cli.output import Column, Output
from geminga.supervisor.configuration import contexts, target
from geminga.workers.pulsar_client import credentials

_STARS = "***"
_SECRET_FIELDS = "password", "token"
_OF_SIGN_IN = "refresh_token", "expires_s"
_COLUMNS = [Column("current", " ", lambda is_current: "*" if is_current else ""), Column("name"), Column("url"),
            Column("admin_url", "admin url"), Column("auth_plugin", "credentials"), Column("auth_params", "parameters")]
_STATUS = "Exit status: 0 done; 2 wrong usage, or no such context."
_secrets = click.option("--secrets", is_flag=True, help="Show tokens and passwords too.")


def _named(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    return target.complete_context(context, parameter, typed)


_name = click.argument("name", shell_complete=_named)


@click.group("context", cls=grammar.Group)
def context() -> None:
    """Name brokers, and choose the one that commands talk to.

    A context has a broker's addresses and credentials.  Contexts are in ~/.config/geminga/contexts.toml, which only its
    user can read.  A command takes the context that --context or GEMINGA_CONTEXT names, else the current one.
    """


def _options(function: Any) -> Any:
    """Decorate with the addresses and credentials of a context, which have no defaults and no variables."""
    for names, attributes in reversed(credentials.OPTIONS):
        values: dict[str, Any] = {**attributes, "envvar": None}
        function = click.option(*names, **values)(function)
    function = click.option("--admin-url", "--http-url", "admin_url", metavar="URL",
                            show_default="that of --url with the usual port",
                            help="The broker's address of HTTP: http://HOST:PORT or https://HOST:PORT.")(function)
    return click.option("--url", metavar="URL", show_default="that of --admin-url with the usual port",
                        help="The broker's address: pulsar://HOST:PORT or pulsar+ssl://HOST:PORT.")(function)


@context.command("set", epilog="\b\nExample:\n  geminga context set prod --url pulsar+ssl://broker.example.com:6651 "
                               "\\\n      --tls-trust-cert-path ca.pem --auth-params file:admin.token --use\n\n"
                               + _STATUS)
@_name
@_options
@click.option("--use", "is_used", is_flag=True, help="Make it the current context.")
@output.FORM
def put(name: str, is_used: bool, form: str, **given: Any) -> None:
    """Add a context, or change values of one; values that are not given stay."""
    if not contexts.is_name(name):
        raise click.UsageError(f"{name!r} is no name: a name has letters, digits, and the characters _ . -")
    with contexts.locked():
        stored = contexts.load()
        former = stored.by_name.get(name, {})
        if given["auth_params"] or given["auth_plugin"]:      # which take the place of a sign-in's
            former = {key: value for key, value in former.items() if key not in _OF_SIGN_IN}
        values = former | {key: value for key, value in given.items() if value not in (None, False)}
        if "url" not in values and "admin_url" not in values:
            raise click.UsageError("a context needs --url or --admin-url")
        if "auth_params" in values and "auth_plugin" not in values:
            values["auth_plugin"] = credentials.plugin_for(values["auth_params"])
        try:
            values = contexts.with_addresses(_with_whole_paths(values))
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        credentials.of(**{key: value for key, value in values.items() if key in contexts.CREDENTIALS})
        contexts.save(contexts.Contexts({**stored.by_name, name: values}, name if is_used else stored.current))
    _tell(form, name, values, f"context {name} is in {contexts.path()}")


def _tell(form: str, name: str, values: contexts.Values, line: str) -> None:
    """Print a line for people; forms for programs have the context, without secrets."""
    Output(form).value({"name": name, **_shown(values, secrets=False)}, lambda _: line)


def _with_whole_paths(values: contexts.Values) -> contexts.Values:
    """Return values whose paths of files hold in any folder."""
    values = dict(values)
    if "tls_trust_cert_path" in values:
        values["tls_trust_cert_path"] = os.path.abspath(values["tls_trust_cert_path"])
    if str(values.get("auth_params")).startswith("file:"):
        values["auth_params"] = "file:" + os.path.abspath(unquote(urlsplit(values["auth_params"]).path))
    return values


@context.command("list", epilog=_STATUS)
@_secrets
@output.FORM
def show_all(secrets: bool, form: str) -> None:
    """List all contexts; a star marks the current one."""
    stored = contexts.load()
    Output(form).rows([{"name": name, "current": name == stored.current, **_shown(values, secrets=secrets)}
                       for name, values in sorted(stored.by_name.items())], _COLUMNS)


@context.command(epilog=_STATUS)
@click.argument("name", required=False, shell_complete=_named)
@_secrets
@output.FORM
def show(name: str | None, secrets: bool, form: str) -> None:
    """Show the values of a context, the current one unless NAME is given."""
    stored = contexts.load()
    if not (name := name or stored.current):
        raise click.UsageError("there is no current context: geminga context use NAME")
    values = {"name": name, **_shown(stored.of(name), secrets=secrets)}
    Output(form).value(values, lambda fields: "\n".join(f"{key} = {value}" for key, value in fields.items()))


@context.command(epilog=_STATUS)
@_name
@output.FORM
def use(name: str, form: str) -> None:
    """Make a context the current one."""
    with contexts.locked():
        stored = contexts.load()
        values = stored.of(name)
        contexts.save(stored._replace(current=name))
    _tell(form, name, values, f"{name} is the current context")


@context.command(epilog=_STATUS)
@_name
@output.FORM
def remove(name: str, form: str) -> None:
    """Remove a context."""
    with contexts.locked():
        stored = contexts.load()
        values = stored.of(name)
        others = {other: values for other, values in stored.by_name.items() if other != name}
        contexts.save(contexts.Contexts(others, "" if stored.current == name else stored.current))
    _tell(form, name, values, f"context {name} is removed")


def _shown(values: contexts.Values, *, secrets: bool) -> contexts.Values:
    if secrets:
        return values
    hidden = dict(values)
    if "auth_params" in values:
        hidden["auth_params"] = _starred(values["auth_params"])
    if "refresh_token" in values:
        hidden["refresh_token"] = _STARS
    return hidden


def _starred(params: str) -> str:
    """Return the parameters of a plugin with stars for secrets; names of users and files are none."""
    if params.startswith("file:"):
        return params
    if params.startswith("{"):
        try:
            fields = json.loads(params)
        except ValueError:
            return _STARS
        return json.dumps({name: _STARS if name in _SECRET_FIELDS else value for name, value in fields.items()})
    parts = [part.partition(":") for part in params.split(",")]
    if not all(name.startswith("tls") and Path(value).name for name, _, value in parts):
        return _STARS
    return params
