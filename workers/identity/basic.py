"""Users and passwords, as htpasswd keeps them.  passlib reads the file and computes the hashes, which is slow on purpose."""
import hashlib
import secrets
import threading

from passlib.apache import HtpasswdFile
from passlib.context import CryptContext

from geminga.workers.identity.credentials import NotAuthenticated
from geminga.workers.identity.options import AuthenticationOptions
from geminga.workers.identity.sources import Source, SourceError

_HASHES = CryptContext(schemes=["bcrypt", "apr_md5_crypt", "ldap_sha1", "sha256_crypt", "sha512_crypt", "des_crypt"])
_REMEMBERED_MAX = 10_000      # passwords that were right


def users(data: bytes) -> HtpasswdFile:
    """Raises SourceError."""
    try:
        found = HtpasswdFile.from_string(data, context=_HASHES)
        names = found.users()
        for number, name in enumerate(names, 1):
            handler = _HASHES.identify(found.get_hash(name), resolve=True)
            if handler is None:
                raise SourceError(f"has a hash of a kind that is not known, of user {number}")
            handler.from_string(found.get_hash(name))
    except ValueError:
        raise SourceError("is not as htpasswd writes it") from None
    if not names:
        raise SourceError("has no users in it")
    return found


class Basic:
    """The method "basic"."""

    def __init__(self, options: AuthenticationOptions):
        """Raises Unusable."""
        self._source = Source("authentication.users", options.users, users)
        self._salt = secrets.token_bytes(32)
        self._right: dict[bytes, None] = {}      # digests of user, password and hash that went together, the oldest first
        self._lock = threading.Lock()            # other threads compute hashes

    def is_slow(self, data: bytes) -> bool:
        """Whether a hash has to be computed."""
        name, colon, password = data.partition(b":")
        return bool(colon) and self._digest(name, password) not in self._right

    def identify(self, data: bytes, certificate: bytes | None) -> tuple[str, float | None]:
        """(role, when that ends)"""
        name, colon, password = data.partition(b":")
        if not colon:
            raise NotAuthenticated("INVALID_AUTH_DATA", "no user and password")
        if (digest := self._digest(name, password)) in self._right:
            return name.decode(), None
        found = self._source.get()
        try:
            role, known = name.decode(), found.get_hash(name)
            # For a user that is not there it takes as long, so that nobody learns who is.
            is_right = _HASHES.verify(password, known or found.get_hash(found.users()[0])) and known is not None
        except ValueError:       # not UTF-8, or what no user or password can be: NULs, more than 72 bytes for bcrypt
            is_right = False
        if not is_right or not role:
            raise NotAuthenticated("INVALID_TOKEN", "unknown user or wrong password")
        with self._lock:
            self._right[digest] = None
            if len(self._right) > _REMEMBERED_MAX:
                del self._right[next(iter(self._right))]
        return role, None

    def _digest(self, name: bytes, password: bytes) -> bytes:
        try:
            known = self._source.get().get_hash(name) or b""
        except ValueError:
            known = b""
        return hashlib.blake2b(b"%d:%d:" % (len(name), len(password)) + name + password + known, key=self._salt, digest_size=32).digest()
