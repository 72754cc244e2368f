"""`geminga admin tokens`: keys and tokens, with the verbs and options of `pulsar tokens`.  No broker is asked."""
import base64
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from geminga.storage.runtime import units
from geminga.supervisor.cli import grammar, output

_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
_PAIRS = "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"
_CONTEXT = {"help_option_names": ["-h", "--help"]}

_KEY_HELP = "A path, file:PATH or data:;base64,..."
_private_of = click.option("--private-key", "-pk", "private_key", metavar="KEY", help=_KEY_HELP)
_secret_of = click.option("--secret-key", "-sk", "secret_key", metavar="KEY", help=_KEY_HELP)
_algorithm = click.option("--signature-algorithm", "-a", "algorithm", default="RS256", show_default=True,
                          type=click.Choice(_PAIRS), help="The algorithm of the key pair.")
_where = (click.argument("token", required=False),
          click.option("--stdin", "-i", "from_stdin", is_flag=True, help="Read the token from standard input."),
          click.option("--token-file", "-f", type=click.Path(exists=True, dir_okay=False),
                       help="Read the token from a file."))


@click.group("tokens", cls=grammar.Group, context_settings=_CONTEXT)
def command() -> None:
    """Make and check keys and tokens; no broker is needed."""


def _token_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command's function with the options that give a token."""
    for option in _where:
        function = option(function)
    return function


@command.command("create-secret-key")
@click.option("--signature-algorithm", "-a", "algorithm", default="HS256", show_default=True,
              type=click.Choice(list(_SECRET_BYTES)))
@click.option("--base64", "-b", "is_base64", is_flag=True, help="Write the key as text, in base64.")
@click.option("--output", "-o", metavar="FILE", help="Write the key to FILE instead of standard output.")
def create_secret_key(algorithm: str, is_base64: bool, output: str | None) -> None:
    """Make a key that both signs and checks tokens."""
    key = secrets.token_bytes(_SECRET_BYTES[algorithm])
    _write(output, base64.b64encode(key) if is_base64 else key, 0o600)


@command.command("create-key-pair")
@_algorithm
@click.option("--output-private-key", required=True, metavar="FILE", help="Write the key that signs to FILE.")
@click.option("--output-public-key", required=True, metavar="FILE", help="Write the key that checks to FILE.")
def create_key_pair(algorithm: str, output_private_key: str, output_public_key: str) -> None:
    """Make a key that signs tokens and one that checks them, both as DER."""
    from geminga.supervisor.cli.access import signing
    private, public = signing.key_pair(algorithm)
    _write(output_private_key, private, 0o600)
    _write(output_public_key, public, 0o644)


def _write(path: str | None, data: bytes, mode: int) -> None:
    if path is None:
        sys.stdout.buffer.write(data)
        return
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.fchmod(file.fileno(), mode)      # open() sets no mode of an existing file, and obeys the umask
            file.write(data)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None


@command.command("create")
@_algorithm
@_private_of
@_secret_of
@click.option("--subject", "-s", required=True, metavar="ROLE", help="The role that the token is for.")
@click.option("--expiry-time", "-e", metavar="TIME", show_default="for ever",
              help="How long it is valid: 30m, 1h, 3d, 10y.")
@click.option("--headers", "-hs", multiple=True, metavar="NAME=VALUE",
              help="A field for the token's header; repeatable.")
def create(algorithm: str, private_key: str | None, secret_key: str | None, subject: str, expiry_time: str | None,
           headers: tuple[str, ...]) -> None:
    """Make a token."""
    _need_one(private_key, secret_key, "--private-key")
    claims: dict[str, Any] = {"sub": subject}
    if expiry_time is not None:
        try:
            claims["exp"] = int(time.time()) + units.seconds(expiry_time)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    header: dict[str, Any] = {"typ": None}      # `pulsar tokens` leaves it out, too
    for text in headers:
        name, equals, value = text.partition("=")
        if not equals or name in ("alg", "typ"):
            raise click.UsageError(f"{text!r} is no NAME=VALUE for a header")
        header[name] = value
    import jwt

    from geminga.supervisor.cli.access import signing
    from geminga.workers.identity import keys
    if secret_key:
        key = _parsed(secret_key, keys.secret_key)
        print(jwt.encode(claims, key.material, key.algorithms[-1], headers=header))
        return
    private = _parsed(private_key or "", lambda data: signing.private_key(data, algorithm))
    print(jwt.encode(claims, private, signing.strongest(private), headers=header))


@command.command("show")
@_token_options
@output.FORM
def show(token: str | None, from_stdin: bool, token_file: str | None, form: str) -> None:
    """Print the header and the claims of a token, without a check of its signature."""
    from jwt.utils import base64url_decode
    try:
        header, claims, _ = _token(token, from_stdin, token_file).split(".")
        texts = base64url_decode(header).decode(), base64url_decode(claims).decode()
        parts = dict(zip(("header", "claims"), map(json.loads, texts), strict=True))
    except ValueError:
        raise click.ClickException("this is no token") from None
    output.Output(form).value(parts, lambda _: "\n---\n".join(texts))


@command.command("validate")
@_algorithm
@click.option("--public-key", "-pk", "public_key", metavar="KEY", help="A path, file:PATH or data:;base64,...")
@_secret_of
@_token_options
@output.FORM
def validate(algorithm: str, public_key: str | None, secret_key: str | None, token: str | None, from_stdin: bool,
             token_file: str | None, form: str) -> None:
    """Check a token against a key, and print its claims.  Exit status 1 if the token is not valid."""
    _need_one(public_key, secret_key, "--public-key")
    import jwt

    from geminga.workers.identity import keys, tokens
    if secret_key:
        key = _parsed(secret_key, keys.secret_key)
    else:
        key = _parsed(public_key or "", lambda data: keys.public_key(data, algorithm))
    try:
        claims = tokens.claims(_token(token, from_stdin, token_file), [key])
    except (jwt.InvalidTokenError, ValueError) as error:
        raise click.ClickException(f"the token is not valid: {error}") from None
    output.Output(form).value(claims, lambda claims: json.dumps(claims, ensure_ascii=False))


def _need_one(first: str | None, second: str | None, name: str) -> None:
    if bool(first) == bool(second):
        raise click.UsageError(f"one of --secret-key and {name} is needed")


def _parsed(where: str, parse: Callable[[bytes], Any]) -> Any:
    """Read a key from a path, a file: URL or a data: URL, and return it parsed."""
    from geminga.workers.identity import sources
    try:
        return parse(sources.read(where)[1])
    except sources.SourceError as error:
        raise click.ClickException(f"the key {error}") from None


def _token(given: str | None, from_stdin: bool, path: str | None) -> str:
    if given:
        return given
    if from_stdin:
        return sys.stdin.readline().strip()
    if path:
        return Path(path).read_text(errors="replace").strip()
    if token := os.environ.get("TOKEN"):
        return token
    raise click.UsageError("a token is needed: as an argument, by --stdin, --token-file or the environment's TOKEN")
