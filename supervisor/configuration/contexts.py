"""Contexts: named brokers, each with its addresses and credentials, in a file of the user.

The file is $XDG_CONFIG_HOME/geminga/contexts.toml, else ~/.config/geminga/contexts.toml.  It may hold tokens and
passwords, so that only its user can read it.
"""
import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

Values = dict[str, Any]      # parameters of the target's options -> values
FIELDS = {"url": str, "admin_url": str, "auth_plugin": str, "auth_params": str, "tls_trust_cert_path": str,
          "tls_allow_insecure": bool,
          # of a sign-in, see sign_in.py
          "issuer": str, "client_id": str, "scope": str, "audience": str, "refresh_token": str, "expires_s": int}
CREDENTIALS = ("auth_plugin", "auth_params", "tls_trust_cert_path", "tls_allow_insecure")
_SCHEMES = {"pulsar": ("http", 8080), "pulsar+ssl": ("https", 8443)}      # of clients: of HTTP, with its usual port
_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
_NAME = re.compile(r"[\w.-]+")


class Unusable(Exception):
    """An error: there is no such context, or the file cannot be used.  The text is one line."""

    exit_status = 2


class Contexts(NamedTuple):
    """All contexts of a user."""

    by_name: dict[str, Values]
    current: str = ""      # name of the one that commands use by default; "": none

    def of(self, name: str) -> Values:
        """Return the values of a context.  Raises Unusable, which names the nearest one."""
        if name not in self.by_name:
            from geminga.supervisor.configuration.properties import nearest
            known = nearest(name, self.by_name) or f": there are {', '.join(sorted(self.by_name)) or 'none'}"
            raise Unusable(f"there is no context {name!r}{known}")
        return self.by_name[name]


def path() -> Path:
    """Return the path of the user's file, which may not exist."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path("~", ".config").expanduser()
    return Path(home, "geminga", "contexts.toml")


def load() -> Contexts:
    """Return the user's contexts.  Raises Unusable if the file cannot be read."""
    place = path()
    try:
        text = place.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Contexts({})
    except (OSError, ValueError) as error:
        raise Unusable(f"{place}: {getattr(error, 'strerror', None) or 'is not UTF-8 text'}") from None
    import tomllib
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Unusable(f"{place}: {error}") from None
    current, contexts = document.get("current", ""), document.get("contexts", {})
    if not isinstance(current, str) or not isinstance(contexts, dict):
        raise Unusable(f"{place}: current is a text, and contexts a table")
    for name, values in contexts.items():
        for key, value in values.items() if isinstance(values, dict) else [("", None)]:
            if not isinstance(value, FIELDS.get(key, ())):
                raise Unusable(f"{place}: {name}: {key or 'it'} is none of {', '.join(FIELDS)} with a value")
    return Contexts(contexts, current)


def save(contexts: Contexts) -> None:
    """Replace the user's file at once.  Raises OSError."""
    import tempfile
    place = path()
    lines = [f"current = {_quoted(contexts.current)}"] if contexts.current else []
    for name, values in sorted(contexts.by_name.items()):
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [f"{key} = {_quoted(values[key])}" for key in FIELDS if key in values]
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, made = tempfile.mkstemp(dir=place.parent, prefix=".contexts-")      # mode 0600
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write("\n".join(lines).lstrip("\n") + "\n")
            file.flush()
            os.fsync(fd)
        Path(made).replace(place)
    except BaseException:
        Path(made).unlink()
        raise


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Keep other commands that change the file waiting: a token to refresh with must not be lost.  Raises OSError."""
    place = path().with_suffix(".lock")
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(place, "a") as file:      # mode 0600 by the umask of commands
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_name(text: str) -> bool:
    """Whether a text can name a context: letters, digits, and the characters _ . -"""
    return _NAME.fullmatch(text) is not None


def _quoted(value: str | bool | int) -> str:
    """Return a value as TOML; a text's escapes are those of JSON, and that of DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def with_addresses(values: Values) -> Values:
    """Return values with both addresses: one that is missing has the other's host and the usual port.

    Raises ValueError.
    """
    parts = {}
    for key, schemes in ("url", tuple(_SCHEMES)), ("admin_url", ("http", "https")):
        if key in values:
            try:
                parts[key] = urlsplit(values[key])
                is_right = parts[key].scheme in schemes and bool(parts[key].hostname) and parts[key].port != 0
            except ValueError:
                is_right = False
            if not is_right:
                raise ValueError(f"{values[key]!r} is no address such as {schemes[0]}://HOST:PORT")
    if "admin_url" not in values:
        scheme, port = _SCHEMES[parts["url"].scheme]
        return values | {"admin_url": f"{scheme}://{_host(parts['url'].hostname)}:{port}"}
    if "url" not in values:
        scheme = "pulsar+ssl" if parts["admin_url"].scheme == "https" else "pulsar"
        return values | {"url": f"{scheme}://{_host(parts['admin_url'].hostname)}:{_PORTS[scheme]}"}
    return values


def _host(name: str | None) -> str:
    return f"[{name}]" if ":" in str(name) else str(name)
