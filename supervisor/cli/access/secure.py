"""`geminga secure`: TLS, tokens and authorization in one step, and back again.

Everything that is made lies in the folder `secure` beside the configuration:

    ca.pem, ca.key               the authority; clients check the broker's certificate with ca.pem
    server.pem, server.key       the broker's certificate
    token.key, token-public.key  keys that sign and check tokens
    admin.token                  a token for the role admin, which may do everything
    former.toml                  the configuration as it was
    made.json                    what --undo and --renew need to know
"""
import hashlib
import ipaddress
import json
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from geminga.supervisor.host import installed

_ROLE = "admin"
_AUDIENCE = "pulsar"
_TOKEN_DAYS = 365
_DAY_S = 86_400
_LOOPBACK = (None, "", "127.0.0.1", "localhost", "::1")
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - clients need credentials from now on
_HOST = re.compile(r"(?=.{1,253}$)(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")
_OPEN, _GROUP, _OWN = 0o644, 0o640, 0o600      # modes: for everybody, for the broker, for the owner
# Order in which they are made and shown: mode, meaning.
_FILES = {
    "ca.pem": (_OPEN, "the authority's certificate, for clients; valid for 10 years"),
    "ca.key": (_OWN, "its private key"),
    "server.pem": (_OPEN, "the broker's certificate, valid for 800 days"),
    "server.key": (_GROUP, "its private key"),
    "token.key": (_OWN, "the key that signs tokens"),
    "token-public.key": (_OPEN, "the key that checks tokens"),
    "admin.token": (_OWN, f"a token for the role {_ROLE}, valid for {_TOKEN_DAYS} days"),
}
_RENEWED = ("server.key", "server.pem", "admin.token")


class _Cannot(Exception):
    """An error: the configuration cannot be secured, renewed or taken back.  The text is one line."""

    exit_status = 1


class _Issuer(NamedTuple):
    """An issuer of OpenID Connect whose tokens are accepted too."""

    url: str
    audience: str

    def values(self) -> dict[str, Any]:
        return {"authentication.oidc.issuers": [self.url], "authentication.oidc.audiences": [self.audience]}

    def prove(self) -> None:
        """Fetch the issuer's keys as the broker will.  Raises _Cannot."""
        import asyncio

        from geminga.workers.identity.issuer_documents import Documents, Unavailable
        from geminga.workers.identity.issuers import fetched
        from geminga.workers.identity.options import OidcOptions, Unusable
        try:
            _, keys = asyncio.run(fetched(self.url, Documents(self.url, OidcOptions(), None)))
        except (Unavailable, Unusable) as error:
            raise _Cannot(f"--oidc {self.url}: {getattr(error, 'why', error)}") from None
        print(f"proved  {self.url}: {sum(map(len, keys.values()))} keys that check its tokens")


class _Setup(NamedTuple):
    """The configuration, and the folder of everything that is made."""

    config: Path
    group: int | None      # of the broker's user, if this process is root's and the package is installed

    @property
    def folder(self) -> Path:
        return self.config.parent / "secure"

    def read(self) -> bytes | None:
        try:
            return self.config.read_bytes()
        except FileNotFoundError:
            return None

    def made(self) -> dict[str, Any]:
        """Return the notes of the run that secured the configuration.  Raises _Cannot."""
        try:
            notes: dict[str, Any] = json.loads((self.folder / "made.json").read_bytes())
        except FileNotFoundError:
            raise _Cannot(f"{self.config} was not secured by this command: there is no {self.folder}/made.json"
                          ) from None
        return notes

    def write(self, name: str, data: bytes, mode: int) -> None:
        """Put a whole file into the folder, in setup of one that is there."""
        _replace(self.folder / name, data, mode if self.group is not None or mode != _GROUP else _OWN, self.group)


@click.command(epilog="\b\nExamples:\n  geminga secure --host broker.example.com --dry-run\n"
                      "  geminga secure --host broker.example.com --restart\n  geminga secure --undo\n\n"
                      "Exit status: 0 done; 1 refused, and nothing is changed; 2 wrong usage.")
@click.option("--host", "hosts", metavar="NAME", multiple=True,
              help="A name or address by which clients reach this host; repeatable.")
@click.option("--oidc", "issuer", metavar="URL", help="An issuer of OpenID Connect whose tokens are accepted too.")
@click.option("--audience", metavar="NAME", show_default=_AUDIENCE,
              help="The audience of the issuer's tokens for the broker.")
@click.option("--config", metavar="FILE", show_default="./geminga.toml, or the installed one",
              help="The broker's configuration, as TOML.")
@click.option("--renew", "is_renewed", is_flag=True,
              help="Make a new certificate, by the same authority, and a new administrator's token.")
@click.option("--undo", "is_undone", is_flag=True, help="Put the former configuration back, and remove what was made.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only print what would be done.")
@click.option("--restart", is_flag=True, help="Restart the installed service afterwards.")
def secure(hosts: tuple[str, ...], issuer: str | None, audience: str | None, config: str | None, is_renewed: bool,
           is_undone: bool, is_dry: bool, restart: bool) -> int:
    """Set up TLS, tokens and authorization in one step.

    An authority, a certificate, keys and an administrator's token are made, and the configuration is changed.  Ports
    without TLS are closed, and the broker listens on all addresses.
    """
    if is_renewed and is_undone:
        raise click.UsageError("--renew and --undo exclude each other")
    if issuer and (is_renewed or is_undone):
        raise click.UsageError("--oidc is for the first run: later an issuer is added in the configuration")
    if audience is not None and not issuer:
        raise click.UsageError("--audience is of the issuer that --oidc names")
    audience = audience or _AUDIENCE
    for host in hosts:
        if not _is_host(host):
            raise click.BadParameter(f"{host!r} is no host name and no address", param_hint="--host")
    is_package = installed.configuration(None, None) is not None and config is None
    if is_package and os.geteuid():
        line = shlex.join(["sudo", "geminga", *sys.argv[1:]])
        raise _Cannot(f"only root may change the installed configuration: {line}")
    if restart and not is_package:
        raise click.UsageError("--restart is for the installed service")
    user = installed.user() if is_package else None
    setup = _Setup(Path(installed.configuration(config, None) or "geminga.toml").absolute(),
                   pwd.getpwnam(user).pw_gid if user else None)
    try:
        if is_undone:
            _undo(setup, is_dry=is_dry)
        elif is_renewed:
            _renew(setup, hosts, is_dry=is_dry)
        else:
            _begin(setup, hosts, _Issuer(issuer, audience) if issuer else None, is_dry=is_dry)
    except OSError as error:
        raise _Cannot(f"{error.filename or setup.config}: {error.strerror}") from None
    if is_dry:
        return 0
    if is_renewed:
        print("The broker takes the new certificate within 2 seconds.")
    elif restart:
        subprocess.run(["systemctl", "restart", "geminga"], check=True)
        print("The broker was restarted.")
    else:
        how = "systemctl restart geminga" if is_package else f"geminga serve --config {setup.config} ..."
        print(f"Restart the broker, as a reload does not open or close ports:\n  {how}")
    if not is_undone:
        print("\n".join(["", *_for_clients(setup), *(_for_people(issuer, audience) if issuer else ())]))
    return 0


def _is_host(text: str) -> bool:
    return _is_address(text) or _HOST.fullmatch(text) is not None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# -- the first run

def _begin(setup: _Setup, hosts: tuple[str, ...], issuer: _Issuer | None, *, is_dry: bool) -> None:
    from geminga.supervisor.configuration import editing
    if not hosts:
        raise click.UsageError("--host is needed: a name or address by which clients reach this host")
    if setup.folder.exists():
        raise _Cannot(f"{setup.folder} is there already: --renew makes a new certificate and token, --undo removes all")
    if setup.config.suffix in (".conf", ".properties"):
        raise _Cannot(f"{setup.config} has Pulsar's form: only a TOML file can be changed")
    former = setup.read()
    try:
        text = (former or b"").decode()
        values = _values(setup, tomllib.loads(text), hosts) | (issuer.values() if issuer else {})
        changed = editing.edited(text, values)
    except UnicodeDecodeError:
        raise _Cannot(f"{setup.config}: is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, editing.CannotEdit) as error:
        raise _Cannot(f"{setup.config}: {error}") from None
    if issuer is not None:
        issuer.prove()
    names = _names(hosts, changed)
    if is_dry:
        _show_plan(setup, names, text, changed)
        return
    setup.folder.mkdir(mode=0o700)
    try:
        _give(setup.folder, 0o750 if setup.group is not None else 0o700, setup.group)
        for name, data in _made(setup, names):
            setup.write(name, data, _FILES[name][0])
            print(f"made    {setup.folder / name}: {_FILES[name][1]}")
        if former is not None:
            setup.write("former.toml", former, _GROUP)
        notes = {"hosts": hosts, "had_file": former is not None, "sha256": hashlib.sha256(changed.encode()).hexdigest()}
        setup.write("made.json", json.dumps(notes).encode(), _OWN)
        _put(setup, changed.encode())
        for key, value in values.items():
            print(f"set     {key} = {json.dumps(value)}")
        print(f"changed {setup.config}" + (f"; as it was: {setup.folder}/former.toml" if former is not None else ""))
        _check(setup)
    except BaseException:
        _restore(setup, former)
        shutil.rmtree(setup.folder)
        raise


def _values(setup: _Setup, document: dict[str, Any], hosts: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys of the configuration to set.  Raises _Cannot if it has TLS or authentication already."""
    tables = {name: table if isinstance(table := document.get(name, {}), dict) else {}
              for name in ("network", "http", "tls", "authentication", "authorization")}
    for section, name in ("tls", "certificate"), ("tls", "key"), ("authentication", "methods"):
        if tables[section].get(name):
            raise _Cannot(f"{setup.config} sets {section}.{name} already: only a configuration without TLS and "
                          "authentication can be secured in one step")
    roles = tables["authorization"].get("super_user_roles", [])
    keys = tables["authentication"].get("public_keys", [])
    known = tables["http"].get("hosts", [])      # names in requests' Host header; addresses need not be listed
    named = [host for host in hosts if not _is_address(host) and host not in known]
    is_inside = tables["network"].get("bind") in _LOOPBACK
    return {"http_port": -1, **({"http.hosts": [*known, *named]} if named else {}),
            **({"network.bind": _EVERYWHERE} if is_inside else {}), "network.port": -1,
            "tls.certificate": str(setup.folder / "server.pem"), "tls.key": str(setup.folder / "server.key"),
            "authentication.methods": ["token"],
            "authentication.public_keys": [*keys, str(setup.folder / "token-public.key")],
            "authorization.enabled": True,
            "authorization.super_user_roles": [*roles, *([] if _ROLE in roles else [_ROLE])]}


def _names(hosts: tuple[str, ...] | list[str], text: str) -> list[str]:
    """Return all names and addresses of the certificate, the first host first."""
    advertised = tomllib.loads(text).get("network", {}).get("advertised_address", "")
    return list(dict.fromkeys([*hosts, *([advertised] if _is_host(advertised) else []), "localhost", "127.0.0.1",
                               "::1", *(name for name in (socket.gethostname(),) if _is_host(name))]))


def _made(setup: _Setup, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files, in the order of _FILES."""
    from geminga.supervisor.cli.access import authority, signing
    ca, ca_key = authority.make(f"Geminga authority of {names[0]}")
    server, server_key = authority.server(ca, ca_key, names)
    private, public = signing.key_pair("RS256")
    token = signing.signed(private, _ROLE, _TOKEN_DAYS * _DAY_S)
    yield from zip(_FILES, (ca, ca_key, server, server_key, private, public, token.encode() + b"\n"), strict=True)


def _check(setup: _Setup) -> None:
    """Check the configuration as the broker's user does.  Raises _Cannot."""
    # -P: a folder `geminga` where the command is run, such as a checkout, must not take the program's setup
    command = [sys.executable, "-P", "-m", "geminga.supervisor.main", "config", "check", "--config",
               str(setup.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _Cannot(f"the broker could not use it, so all is as before: {done.stderr.strip()}")
    print("checked geminga config check: ok")


def _show_plan(setup: _Setup, names: list[str], former: str, changed: str) -> None:
    import difflib
    for name, (_, meaning) in _FILES.items():
        print(f"would make {setup.folder / name}: {meaning}")
    print(f"names in the certificate: {', '.join(names)}\n")
    lines = difflib.unified_diff(former.splitlines(True), changed.splitlines(True), str(setup.config),
                                 str(setup.config), n=1)
    print("".join(lines), end="")


# -- later runs

def _renew(setup: _Setup, hosts: tuple[str, ...], *, is_dry: bool) -> None:
    from geminga.supervisor.cli.access import authority, signing
    notes = setup.made()
    text = (setup.read() or b"").decode(errors="replace")
    names = _names(hosts or notes["hosts"], text)
    if is_dry:
        for name in _RENEWED:
            print(f"would make anew {setup.folder / name}: {_FILES[name][1]}")
        print(f"names in the certificate: {', '.join(names)}")
        return
    ca, ca_key, private = ((setup.folder / name).read_bytes() for name in ("ca.pem", "ca.key", "token.key"))
    server, server_key = authority.server(ca, ca_key, names)
    token = signing.signed(private, _ROLE, _TOKEN_DAYS * _DAY_S)
    for name, data in zip(_RENEWED, (server_key, server, token.encode() + b"\n"), strict=True):
        setup.write(name, data, _FILES[name][0])
        print(f"made    {setup.folder / name}: {_FILES[name][1]}")
    setup.write("made.json", json.dumps(notes | {"hosts": hosts or notes["hosts"]}).encode(), _OWN)


def _undo(setup: _Setup, *, is_dry: bool) -> None:
    notes = setup.made()
    former = (setup.folder / "former.toml").read_bytes() if notes["had_file"] else None
    present = setup.read()
    if present != former and hashlib.sha256(present or b"").hexdigest() != notes["sha256"]:
        raise _Cannot(f"{setup.config} was changed since: undo its lines of TLS and authentication by hand"
                      + (f", or put {setup.folder}/former.toml in its setup" if former is not None else ""))
    others = sorted(path.name for path in setup.folder.iterdir() if path.name not in (*_FILES, "made.json",
                                                                                      "former.toml"))
    ours = [*_FILES, "former.toml", "made.json"]      # made.json last: what is left can be removed by another run
    if is_dry:
        print(f"would put {setup.config} back as it was" if former is not None else f"would remove {setup.config}")
        print(f"would remove {setup.folder}" + (f" but for {', '.join(others)}" if others else ""))
        return
    _restore(setup, former)
    print(f"{setup.config} is as it was" if former is not None else f"removed {setup.config}")
    for name in ours:
        (setup.folder / name).unlink(missing_ok=True)
    if others:
        print(f"removed what was made in {setup.folder}; left there: {', '.join(others)}")
    else:
        setup.folder.rmdir()
        print(f"removed {setup.folder}")


# -- files

def _restore(setup: _Setup, former: bytes | None) -> None:
    if former is None:
        setup.config.unlink(missing_ok=True)
    else:
        _put(setup, former)


def _put(setup: _Setup, data: bytes) -> None:
    """Replace the configuration at once; it keeps its mode, owner and group."""
    try:
        kept = setup.config.stat()
    except FileNotFoundError:
        return _replace(setup.config, data, _OWN if setup.group is None else _GROUP, setup.group)
    _replace(setup.config, data, kept.st_mode & 0o7777, kept.st_gid, kept.st_uid)


def _replace(path: Path, data: bytes, mode: int, group: int | None, owner: int = -1) -> None:
    fd, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        _give(Path(made), mode, group, owner)
        Path(made).replace(path)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise


def _give(path: Path, mode: int, group: int | None, owner: int = -1) -> None:
    if group is not None:
        os.chown(path, owner, group)
    path.chmod(mode)


# -- for clients

def _for_clients(setup: _Setup) -> Iterator[str]:
    """Yield lines to paste on a client."""
    from geminga.supervisor.configuration import config as configuration
    loaded, _ = configuration.load(setup.config, os.environ, {})
    host = setup.made()["hosts"][0]
    name = re.sub(r"[^\w.-]", "-", host)
    address = f"[{host}]" if ":" in host else host
    url, admin_url = f"pulsar+ssl://{address}:{loaded.tls.port}", f"https://{address}:{loaded.tls.http_port}"
    yield from (
        "On a client, with ca.pem and a token from this host:", "",
        f"  service URL  {url}",
        f"  admin URL    {admin_url}",
        f"  CA file      {setup.folder}/ca.pem",
        f"  token file   {setup.folder}/admin.token   (may do everything; keep it secret)", "",
        "  import pulsar",
        f'  client = pulsar.Client("{url}", tls_trust_certs_file_path="ca.pem",',
        '                         authentication=pulsar.AuthenticationToken(open("admin.token").read().strip()))', "",
        f"  geminga context set {name} --url {url} --admin-url {admin_url} \\",
        "      --tls-trust-cert-path ca.pem --auth-params file:admin.token --use", "",
        "A token for an application, and its rights:", "",
        f"  geminga admin tokens create --private-key {setup.folder}/token.key --subject orders --expiry-time 90d",
        "  geminga admin namespaces grant-permission public/default --role orders --actions produce,consume")


def _for_people(issuer: str, audience: str) -> Iterator[str]:
    """Yield lines about tokens of the issuer."""
    yield from (
        "", f"Tokens of {issuer} for the audience {audience} are accepted too; their role is the claim sub. Programs",
        "get them by the OAuth 2 plug-in of their client, and people by:", "",
        f"  geminga login --issuer {shlex.quote(issuer)} --client-id CLIENT")
