"""JSON Web Tokens: signed statements of a client's role.

PyJWT reads them; this file says which keys and claims count.
"""
from collections.abc import Iterable
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key
from jwt.types import Options
from jwt.utils import base64url_decode, base64url_encode

from geminga.workers.identity.credentials import NotAuthenticated
from geminga.workers.identity.options import AuthenticationOptions
from geminga.workers.identity.sources import Source, SourceError

_SIZE_MAX = 16 << 10          # of a token; HTTP servers take no larger headers
_NEVER_S = 10**11      # seconds since 1970, in the year 5138: later expiries are cut to it, as they may not fit a float
_SECRETS = {"HS256": 32, "HS384": 48, "HS512": 64}      # algorithm -> bytes that its key must have at least
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA_BITS_MIN = 2048
# The audience is checked below; the subject may be a list, other claims anything.
_CHECKS: Options = {"verify_aud": False, "verify_sub": False, "verify_iss": False, "verify_jti": False}


class Key(NamedTuple):
    """A key for checking signatures and the algorithms allowed with it; a token cannot choose another algorithm."""

    material: Any
    algorithms: tuple[str, ...]


def secret_key(data: bytes) -> Key:
    """Return a secret key, with the HMAC algorithms that it is long enough for.  Raises SourceError."""
    algorithms = tuple(name for name, size in _SECRETS.items() if len(data) >= size)
    if not algorithms:
        raise SourceError(f"is too short: a secret key has at least {_SECRETS['HS256']} bytes, not {len(data)}")
    return Key(data, algorithms)


def public_key(data: bytes, algorithm: str) -> Key:
    """Parse a public key in DER or PEM form for this algorithm and others of its family.  Raises SourceError."""
    try:
        key = load_pem_public_key(data) if data.startswith(b"-----BEGIN") else load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise SourceError("is no public key, neither as DER nor as PEM") from None
    if isinstance(key, rsa.RSAPublicKey) and algorithm in _RSA and key.key_size >= _RSA_BITS_MIN:
        return Key(key, _RSA)
    if isinstance(key, ec.EllipticCurvePublicKey) and algorithm in _CURVES.values() and key.curve.name in _CURVES:
        return Key(key, (_CURVES[key.curve.name],))
    raise SourceError(f"is no public key for {algorithm}")


def claims(token: str | bytes, keys: Iterable[Key], clock_skew_s: int = 0) -> dict[str, Any]:
    """Return the claims of a token that one of the keys has signed.  Raises jwt.InvalidTokenError."""
    failure: jwt.InvalidTokenError = jwt.InvalidSignatureError("there is no key")
    signature = (token.encode() if isinstance(token, str) else token).rpartition(b".")[2]
    if base64url_encode(base64url_decode(signature)) != signature:
        raise jwt.DecodeError("the signature is not canonical base64")      # else a token could be written in many ways
    for key in keys:
        try:
            return jwt.decode(token, key.material, algorithms=key.algorithms, options=_CHECKS, leeway=clock_skew_s)
        except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError) as error:
            failure = error
    raise failure


class Tokens:
    """The method "token": a JSON Web Token."""

    def __init__(self, options: AuthenticationOptions):
        """Load the keys.  Raises Unusable: a key cannot be read."""
        self._options = options
        self._sources = [Source("authentication.secret_keys", where, secret_key) for where in options.secret_keys]
        self._sources += [Source("authentication.public_keys", where,
                                 lambda data: public_key(data, options.public_key_algorithm))
                          for where in options.public_keys]

    def __repr__(self) -> str:
        return f"<Tokens of {len(self._sources)} keys>"

    def is_slow(self, data: bytes) -> bool:
        """Whether checking the signature takes milliseconds, as it does for large elliptic curves."""
        return any(key.algorithms[0] in ("ES384", "ES512") for key in (source.get() for source in self._sources))

    def identify(self, data: bytes, certificate: bytes | None) -> tuple[str, float | None]:
        """Return (role, expiry in seconds since 1970 or None) of a valid token.  Raises NotAuthenticated.

        Blanks around a token mean nothing: programs send a token file as it is, with the end of its line.
        """
        if not (data := data.strip()):
            raise NotAuthenticated("INVALID_AUTH_DATA", "no token")
        if len(data) > _SIZE_MAX:
            raise NotAuthenticated("INVALID_TOKEN", f"a token of {len(data)} bytes")
        try:
            content = claims(data, (source.get() for source in self._sources), self._options.clock_skew_s)
        except jwt.ExpiredSignatureError:
            raise NotAuthenticated("EXPIRED_TOKEN", "the token has expired") from None
        except jwt.ImmatureSignatureError:
            raise NotAuthenticated("INVALID_TOKEN", "the token is not valid yet") from None
        except jwt.InvalidAlgorithmError:
            raise NotAuthenticated("INVALID_TOKEN",
                                   "the token is signed by an algorithm that no key here is for") from None
        except jwt.InvalidSignatureError:
            raise NotAuthenticated("INVALID_TOKEN", "no key here has signed the token") from None
        except Exception:      # libraries raise anything over bytes from strangers
            raise NotAuthenticated("INVALID_TOKEN", "the credentials are no token") from None
        self._check_audience(content)
        role = content.get(self._options.role_claim)
        if isinstance(role, list) and role:
            role = role[0]
        if not isinstance(role, str) or not role:
            raise NotAuthenticated("INVALID_TOKEN", f"the token has no role in its claim {self._options.role_claim}")
        if "exp" not in content:
            return role, None
        return role, float(min(int(content["exp"]), _NEVER_S)) + self._options.clock_skew_s

    def _check_audience(self, content: dict[str, Any]) -> None:
        """Check that the token is meant for this broker, if the configuration demands an audience.  Raises
        NotAuthenticated.
        """
        if not self._options.audience_claim:
            return
        audience = content.get(self._options.audience_claim)
        if self._options.audience not in (audience if isinstance(audience, list) else [audience]):
            raise NotAuthenticated("INVALID_AUDIENCES", "the token is for another audience")
