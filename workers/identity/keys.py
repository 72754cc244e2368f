"""Keys that check signatures of tokens, and the algorithms that each allows.

    secret_key    bytes                    HS256, HS384, HS512, by its length
    public_key    DER or PEM               RS... and PS... of RSA; the one ES... of a curve
    issuer_keys   a JSON Web Key Set       these, and EdDSA; never a symmetric key

A key fixes its algorithms, and a token can choose among them only.  Otherwise an attacker could sign with a public key
as if its bytes were a secret one.
"""
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from geminga.workers.identity.sources import SourceError

_SECRETS = {"HS256": 32, "HS384": 48, "HS512": 64}      # algorithm -> bytes that its key must have at least
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA_BITS_MIN = 2048
_ISSUER_KEYS_MAX = 100      # of one issuer; real ones publish fewer than ten, and each costs time to read


class Key(NamedTuple):
    """A key for checking signatures and the algorithms allowed with it; a token cannot choose another algorithm."""

    material: Any
    algorithms: tuple[str, ...]

    @property
    def is_slow(self) -> bool:
        """Whether checking a signature takes milliseconds, as it does for large elliptic curves."""
        return self.algorithms[0] in ("ES384", "ES512")


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
    algorithms = _algorithms(key)
    if algorithm not in algorithms:
        raise SourceError(f"is no public key for {algorithm}")
    return Key(key, algorithms)


def issuer_keys(document: dict[str, Any]) -> dict[str | None, tuple[Key, ...]]:
    """Return the keys of a JSON Web Key Set by their ids; None is the id of keys without one.

    Keys that are not for signatures are left out, and those of a kind that is not accepted, such as secret ones.
    Raises SourceError: the document is no key set, or none of its keys can be used.
    """
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise SourceError("is no key set")
    if len(listed) > _ISSUER_KEYS_MAX:
        raise SourceError(f"has more than {_ISSUER_KEYS_MAX} keys")
    keys: dict[str | None, tuple[Key, ...]] = {}
    for entry in listed:
        if isinstance(entry, dict) and (key := _issuer_key(entry)) is not None:
            name = entry.get("kid")
            keys[name] = (*keys.get(name, ()), key)
    if not keys:
        raise SourceError("has no key that can be used")
    return keys


def _issuer_key(entry: dict[str, Any]) -> Key | None:
    """Return a key of a key set, None if it is not one for signatures that are accepted."""
    if entry.get("use", "sig") != "sig" or not isinstance(entry.get("kid", ""), str):
        return None
    if entry.get("kty") not in ("RSA", "EC", "OKP") or "verify" not in _listed(entry.get("key_ops", ["verify"])):
        return None
    named = entry.get("alg")
    try:
        # `alg` is compared below.  Here it would choose how the key is read, and could name another family.
        key = jwt.PyJWK({name: value for name, value in entry.items() if name != "alg"}).key
    except Exception:      # the library raises anything over what strangers write
        return None
    algorithms = _algorithms(key)
    if named is not None:
        algorithms = (named,) if named in algorithms else ()
    return Key(key, algorithms) if algorithms else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _algorithms(key: Any) -> tuple[str, ...]:
    """Return the algorithms that a public key allows; none for a weak one, a private one, or one of another kind."""
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _RSA_BITS_MIN:
        return _RSA
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return (_CURVES[key.curve.name],)
    if isinstance(key, ed25519.Ed25519PublicKey):
        return ("EdDSA",)
    return ()
