"""Credentials of a command, and how it checks its broker's certificate, under the names of Pulsar's tools.

    --auth-plugin AuthenticationToken   --auth-params file:PATH, token:TOKEN or the token
    --auth-plugin AuthenticationBasic   --auth-params '{"userId": "...", "password": "..."}'
    --auth-plugin AuthenticationTls     --auth-params tlsCertFile:PATH,tlsKeyFile:PATH

Without --auth-plugin the form of --auth-params tells which one it is; a token needs token: or file: then.

    --tls-trust-cert-path PATH          authorities to check the broker's certificate with, else the system's
    --tls-allow-insecure                accept any certificate

The variables GEMINGA_AUTH_PLUGIN and GEMINGA_AUTH_PARAMS count as much as the options, and do not appear in a list of
processes.
"""
import base64
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

import click

if TYPE_CHECKING:
    import ssl


class Credentials(NamedTuple):
    """Credentials for both protocols, and how to check the broker's certificate."""

    method: str = ""             # authentication method of the binary protocol; "": none
    data: str = ""
    certificate: str = ""        # PEM file, shown by TLS
    key: str = ""                # PEM file of its private key
    trusted: str = ""            # PEM file of authorities; "": the system's
    is_insecure: bool = False    # whether any certificate of the broker will do

    def __repr__(self) -> str:
        return f"Credentials({self.method})"

    def context_for(self, url: str) -> "ssl.SSLContext | None":
        """Return the ssl.SSLContext for connections to a URL, None for a URL without TLS.  Raises click.UsageError."""
        if not url.startswith(("pulsar+ssl:", "https:")):
            return None
        import ssl  # slow, and mostly not needed
        try:
            context = ssl.create_default_context(cafile=self.trusted or None)
        except OSError as error:
            raise click.UsageError(f"--tls-trust-cert-path: {self.trusted}: {_why(error)}") from None
        if self.is_insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except OSError as error:
                raise click.UsageError(f"--auth-params: {self.certificate}, {self.key}: {_why(error)}") from None
        return context

    def remedy(self) -> str:
        """Return what to do about a broker that refuses these credentials; it tells causes to its log alone."""
        if self.method:
            return "the broker's log says why"
        return "give --auth-params, or --context for a broker that has credentials"

    def headers(self) -> list[str]:
        """Return the HTTP header lines that carry these credentials."""
        if self.method == "token":
            return [f"Authorization: Bearer {self.data}"]
        if self.method == "basic":
            return [f"Authorization: Basic {base64.b64encode(self.data.encode()).decode()}"]
        return []


def _why(error: OSError) -> str:
    """Return the reason why a certificate file cannot be used, from the error of loading it."""
    if getattr(error, "reason", None):
        return "no certificate, with its key, in PEM form"
    return error.strerror or str(error)


NOBODY = Credentials()
OPTIONS = (
    (["--auth-plugin"], {"envvar": "GEMINGA_AUTH_PLUGIN", "metavar": "NAME",
                         "help": "AuthenticationToken, AuthenticationBasic or AuthenticationTls; else as --auth-params "
                                 "look."}),
    (["--auth-params"], {"envvar": "GEMINGA_AUTH_PARAMS", "metavar": "TEXT",
                         "help": "token:..., file:PATH, or a JSON object with userId and password or with "
                                 "tlsCertFile and tlsKeyFile."}),
    (["--tls-trust-cert-path", "--tlsTrustCertsFilePath"], {
        "envvar": "GEMINGA_TRUST_CERT_PATH", "metavar": "PATH",
        "help": "PEM file of authorities to check the broker's certificate with; else the system's."}),
    (["--tls-allow-insecure"], {"is_flag": True, "help": "Accept any certificate of the broker."}),
)


def of(auth_plugin: str | None = None, auth_params: str | None = None, tls_trust_cert_path: str | None = None,
       tls_allow_insecure: bool = False) -> Credentials:
    """Return the credentials that values of the options such as --auth-plugin give.  Raises click.UsageError."""
    return _parsed(auth_plugin, auth_params)._replace(trusted=tls_trust_cert_path or "", is_insecure=tls_allow_insecure)


def _parsed(plugin: str | None, params: str | None) -> Credentials:
    name = (plugin or (plugin_for(params) if params else "")).rpartition(".")[2].removeprefix("Authentication").lower()
    try:
        if name in ("", "disabled"):
            return NOBODY
        return _PLUGINS[name](params or "")
    except KeyError as error:
        if error.args[0] == name:
            raise click.UsageError(f"--auth-plugin {plugin} is not AuthenticationToken, AuthenticationBasic or "
                                   "AuthenticationTls") from None
        raise click.UsageError(f"--auth-params lacks {error.args[0]}") from None
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--auth-params: {getattr(error, 'strerror', None) or error}") from None


def plugin_for(params: str) -> str:
    """Return the plugin whose parameters have this form.  Raises click.UsageError for a text of no known form."""
    if params.startswith(("token:", "file:")):
        return "AuthenticationToken"
    with contextlib.suppress(ValueError, AttributeError):      # no JSON, or no object
        fields = _fields(params).keys()
        for plugin, field in (("Token", "token"), ("Basic", "userId"), ("Tls", "tlsCertFile")):
            if field in fields:
                return f"Authentication{plugin}"
    raise click.UsageError("--auth-params needs --auth-plugin, unless it begins with token: or file:, or has userId or "
                           "tlsCertFile")


def _token(params: str) -> Credentials:
    if params.startswith("{"):
        params = "token:" + str(json.loads(params)["token"])
    if params.startswith("file:"):
        path = unquote(urlsplit(params).path)
        try:
            token = Path(path).read_text(errors="replace")
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
    else:
        token = params.removeprefix("token:")
    if not (token := token.strip()).isascii() or not token.isprintable() or not token:
        raise ValueError("there is no token")
    return Credentials("token", token)


def _basic(params: str) -> Credentials:
    fields = _fields(params)
    return Credentials("basic", f"{fields['userId']}:{fields['password']}")


def _tls(params: str) -> Credentials:
    fields = _fields(params)
    return Credentials("tls", "", str(fields["tlsCertFile"]), str(fields["tlsKeyFile"]))


def _fields(params: str) -> dict[str, str]:
    """Parse the parameters of an authentication plugin: a JSON object, or name:value,name:value."""
    if params.startswith("{"):
        fields: dict[str, str] = json.loads(params)
        return fields
    return dict(part.split(":", 1) for part in params.split(",") if ":" in part)


_PLUGINS = {"token": _token, "basic": _basic, "tls": _tls}
