"""Sessions of browsers: a cookie carries the credentials with which somebody signed in to the console.

The cookie is encrypted and signed by a key in the data folder, so only the broker can read or make one. Every request
is authenticated by the credentials in it, as if they stood in the Authorization header: a token that expires and a user
who is removed end the session at once, and the broker keeps no list of sessions.

A cookie comes along with requests that a page of another site makes. So a change with a cookie must carry the session's
own secret in the header X-Geminga-Csrf, which only pages of the console know.
"""
import base64
import hmac
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from geminga.storage.disk.files import write_anew
from geminga.workers.identity.credentials import Credentials

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

COOKIE, HEADER = "geminga_session", "X-Geminga-Csrf"
KEY_FILE = "console.key"
LONGEST = 3_800              # characters of a cookie's value; browsers drop cookies above 4,096 with name and flags
_LOOKS = "GET", "HEAD", "OPTIONS"


class Session(NamedTuple):
    """The content of a session's cookie."""

    credentials: Credentials
    secret: str                  # that changes have to carry


class TooLong(Exception):
    """An error: credentials are too long for a cookie."""


class Sessions:
    """Makes and reads cookies of sessions."""

    def __init__(self, folder: Path, seconds: int):
        """Begin without a key, which the first use reads or makes.  seconds: how long a session lasts."""
        self._path, self.seconds = folder / KEY_FILE, seconds
        self._fernet: Fernet | None = None

    def __repr__(self) -> str:
        return f"<Sessions {self._path} seconds={self.seconds}>"

    def seal(self, credentials: Credentials) -> str:
        """Return the value of a cookie for a new session.  Raises TooLong; OSError: the key cannot be kept."""
        value = self.encrypted({"method": credentials.method, "data": base64.b64encode(credentials.data).decode(),
                                "secret": secrets.token_urlsafe(18)})
        if len(value) > LONGEST:
            raise TooLong
        return value

    def encrypted(self, content: dict[str, str]) -> str:
        """Return a cookie's value that only the broker can read or make.  Raises OSError: the key cannot be kept."""
        return self._key().encrypt(json.dumps(content, separators=(",", ":")).encode()).decode()

    def decrypted(self, value: str, seconds: int) -> dict[str, str] | None:
        """Return the content of a cookie's value, None if it is older than that or was not made here."""
        from cryptography.fernet import InvalidToken
        try:
            content: dict[str, str] = json.loads(self._key().decrypt(value.encode(), ttl=seconds))
        except (InvalidToken, UnicodeEncodeError, OSError):
            return None
        return content

    def open(self, value: str) -> Session | None:
        """Return the session of a cookie, None if the cookie is too old or was not made here."""
        content = self.decrypted(value, self.seconds)
        if content is None or "method" not in content:      # the cookie of a sign-in at an issuer is none of a session
            return None
        return Session(Credentials(content["method"], base64.b64decode(content["data"])), content["secret"])

    def _key(self) -> "Fernet":
        """Return the key in the data folder, which is made if there is none.  Raises OSError."""
        if self._fernet is None:
            from cryptography.fernet import Fernet  # when the first browser comes
            try:
                key = self._path.read_bytes()
            except FileNotFoundError:
                key = Fernet.generate_key()
                write_anew(self._path, key)
            self._fernet = Fernet(key)
        return self._fernet


SESSIONS = web.AppKey("sessions", Sessions)
SESSION = web.RequestKey("session", Session)


def session_of(request: web.Request) -> Session | None:
    """Return the session of a request's cookie, None without one.

    Raises 403 for a change that does not carry the session's secret.
    """
    if "Authorization" in request.headers or (value := request.cookies.get(COOKIE)) is None:
        return None
    session = request.app[SESSIONS].open(value)
    if session is None:
        return None
    sent = request.headers.get(HEADER, "")
    is_secret = hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), session.secret.encode())
    if request.method not in _LOOKS and not is_secret:
        raise web.HTTPForbidden(text=f"A change in a session carries its secret in the header {HEADER}: load the page "
                                     "again")
    request[SESSION] = session
    return session
