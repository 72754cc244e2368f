"""JSON Web Tokens: signed statements of who somebody is.  PyJWT reads and checks them; which keys and claims count is said here."""
from collections.abc import Iterable
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key
from jwt.utils import base64url_decode, base64url_encode

from geminga.workers.identity.credentials import NotAuthenticated
from geminga.workers.identity.options import AuthenticationOptions
from geminga.workers.identity.sources import Source, SourceError

_SIZE_MAX = 16 << 10          # of a token; HTTP servers take no larger headers
_NEVER_S = 10**11             # seconds since 1970, in the year 5138: whatever expires later does not, and fits into every number
_SECRETS = {"HS256": 32, "HS384": 48, "HS512": 64}      # bytes that a key must have for each
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA_BITS_MIN = 2048
# Whom a token is for is looked at below; its subject may be a list, its other claims anything.
_CHECKS = {"verify_aud": False, "verify_sub": False, "verify_iss": False, "verify_jti": False}


class Key(NamedTuple):
    """What signatures are checked with, and the algorithms that it is for: a token does not choose among others."""

    material: Any
    algorithms: tuple[str, ...]


def secret_key(data: bytes) -> Key:
    """Raises SourceError."""
    algorithms = tuple(name for name, size in _SECRETS.items() if len(data) >= size)
    if not algorithms:
        raise SourceError(f"is too short: a secret key has at least {_SECRETS['HS256']} bytes, not {len(data)}")
    return Key(data, algorithms)


def public_key(data: bytes, algorithm: str) -> Key:
    """A key in DER or PEM, for tokens signed like that, or with another algorithm of that kind.  Raises SourceError."""
    try:
        found = load_pem_public_key(data) if data.startswith(b"-----BEGIN") else load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise SourceError("is no public key, neither as DER nor as PEM") from None
    if isinstance(found, rsa.RSAPublicKey) and algorithm in _RSA and found.key_size >= _RSA_BITS_MIN:
        return Key(found, _RSA)
    if isinstance(found, ec.EllipticCurvePublicKey) and algorithm in _CURVES.values() and found.curve.name in _CURVES:
        return Key(found, (_CURVES[found.curve.name],))
    raise SourceError(f"is no public key for {algorithm}")


def claims(token: str | bytes, keys: Iterable[Key], clock_skew_s: int = 0) -> dict[str, Any]:
    """What the token says, which one of the keys has signed.  Raises jwt.InvalidTokenError."""
    failure: jwt.InvalidTokenError = jwt.InvalidSignatureError("there is no key")
    signature = token.rpartition("." if isinstance(token, str) else b".")[2]
    if base64url_encode(base64url_decode(signature)) != (signature.encode() if isinstance(signature, str) else signature):
        raise jwt.DecodeError("the signature is not written as it should be")      # else one token had many spellings
    for key in keys:
        try:
            return jwt.decode(token, key.material, algorithms=key.algorithms, options=_CHECKS, leeway=clock_skew_s)
        except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError) as error:
            failure = error
    raise failure


class Tokens:
    """The method "token"."""

    def __init__(self, options: AuthenticationOptions):
        """Raises Unusable."""
        self._options = options
        self._sources = [Source("authentication.secret_keys", where, secret_key) for where in options.secret_keys]
        self._sources += [Source("authentication.public_keys", where, lambda data: public_key(data, options.public_key_algorithm))
                          for where in options.public_keys]

    def is_slow(self, data: bytes) -> bool:
        """Large curves take milliseconds."""
        return any(key.algorithms[0] in ("ES384", "ES512") for key in (source.get() for source in self._sources))

    def identify(self, data: bytes, certificate: bytes | None) -> tuple[str, float | None]:
        """(role, when that ends)"""
        if not data:
            raise NotAuthenticated("INVALID_AUTH_DATA", "no token")
        if len(data) > _SIZE_MAX:
            raise NotAuthenticated("INVALID_TOKEN", f"a token of {len(data)} bytes")
        try:
            found = claims(data, (source.get() for source in self._sources), self._options.clock_skew_s)
        except jwt.ExpiredSignatureError:
            raise NotAuthenticated("EXPIRED_TOKEN", "the token has expired") from None
        except jwt.ImmatureSignatureError:
            raise NotAuthenticated("INVALID_TOKEN", "the token is not valid yet") from None
        except jwt.InvalidAlgorithmError:
            raise NotAuthenticated("INVALID_TOKEN", "the token is signed by an algorithm that no key here is for") from None
        except jwt.InvalidSignatureError:
            raise NotAuthenticated("INVALID_TOKEN", "the token is signed by nobody known here") from None
        except Exception:      # whatever the libraries make of what strangers send: it is no token
            raise NotAuthenticated("INVALID_TOKEN", "not a token") from None
        self._check_audience(found)
        role = found.get(self._options.role_claim)
        if isinstance(role, list) and role:
            role = role[0]
        if not isinstance(role, str) or not role:
            raise NotAuthenticated("INVALID_TOKEN", f"the token has no role in its claim {self._options.role_claim}")
        return role, float(min(int(found["exp"]), _NEVER_S)) + self._options.clock_skew_s if "exp" in found else None

    def _check_audience(self, found: dict[str, Any]) -> None:
        if not self._options.audience_claim:
            return
        audience = found.get(self._options.audience_claim)
        if self._options.audience not in (audience if isinstance(audience, list) else [audience]):
            raise NotAuthenticated("INVALID_AUDIENCES", "the token is for somebody else")
