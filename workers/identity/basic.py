"""Users and passwords in a file of htpasswd's.  passlib reads it and computes the hashes, which are slow on purpose."""
import hashlib
import secrets
import threading

from passlib.apache import HtpasswdFile
from passlib.context import CryptContext

from geminga.workers.identity.credentials import NotAuthenticated, Proof
from geminga.workers.identity.options import AuthenticationOptions
from geminga.workers.identity.sources import Source, SourceError

_HASHES = CryptContext(schemes=["bcrypt", "apr_md5_crypt", "ldap_sha1", "sha256_crypt", "sha512_crypt", "des_crypt"])
_REMEMBERED_MAX = 10_000      # right passwords, whose hashes need not be computed again


def users(data: bytes) -> HtpasswdFile:
    """Parse the content of an htpasswd file.  Raises SourceError."""
    try:
        file = HtpasswdFile.from_string(data, context=_HASHES)  # type: ignore[call-arg]  # the stubs lack it
        names = file.users()
        for number, name in enumerate(names, 1):
            handler = _HASHES.identify(file.get_hash(name), resolve=True)  # type: ignore[arg-type]  # takes bytes too
            if handler is None:
                raise SourceError(f"has a hash of a kind that is not known, of user {number}")
            handler.from_string(file.get_hash(name))  # type: ignore[arg-type]
    except ValueError:
        raise SourceError("is not as htpasswd writes it") from None
    if not names:
        raise SourceError("has no users in it")
    return file


class Basic:
    """The method "basic": a user and a password."""

    def __init__(self, options: AuthenticationOptions):
        """Load the file of users.  Raises Unusable."""
        self._source = Source("authentication.users", options.users, users)
        self._salt = secrets.token_bytes(32)
        self._right: dict[bytes, None] = {}      # digests of (user, password, hash) that were right, oldest first
        self._lock = threading.Lock()            # of `_right`: hashes are computed in other threads

    def __repr__(self) -> str:
        return f"<Basic {len(self._right)} passwords remembered>"

    def fetching(self, data: bytes) -> None:
        """Return None: everything that is needed is in the file."""

    def is_slow(self, data: bytes) -> bool:
        """Whether a password hash has to be computed, because these credentials were not checked lately."""
        name, colon, password = data.partition(b":")
        return bool(colon) and self._digest(name, password) not in self._right

    def identify(self, data: bytes, certificate: bytes | None) -> Proof:
        """Return the user of valid credentials "user:password".  Raises NotAuthenticated."""
        name, colon, password = data.partition(b":")
        if not colon:
            raise NotAuthenticated("INVALID_AUTH_DATA", "no user and password")
        if (digest := self._digest(name, password)) in self._right:
            return Proof(name.decode())
        file, role, known = self._source.get(), "", None
        try:
            role, known = name.decode(), file.get_hash(name)  # type: ignore[arg-type]  # takes bytes too
            # A hash is computed for an unknown user too.  Otherwise the time of an answer would tell which users exist.
            computed = known or file.get_hash(file.users()[0])  # type: ignore[arg-type]
            is_right = _HASHES.verify(password, computed) and known is not None
        except ValueError:       # not UTF-8, NUL bytes, or more than 72 bytes for bcrypt
            is_right = False
        if not is_right or not role:
            # Only the log tells the two apart; clients get one answer for both.
            raise NotAuthenticated("INVALID_TOKEN", "unknown user" if known is None else "wrong password")
        with self._lock:
            self._right[digest] = None
            if len(self._right) > _REMEMBERED_MAX:
                del self._right[next(iter(self._right))]
        return Proof(role)

    def _digest(self, name: bytes, password: bytes) -> bytes:
        try:
            known = self._source.get().get_hash(name) or b""  # type: ignore[arg-type]
        except ValueError:
            known = b""
        content = b"%d:%d:" % (len(name), len(password)) + name + password + known
        return hashlib.blake2b(content, key=self._salt, digest_size=32).digest()
