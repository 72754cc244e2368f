"""Keys that sign tokens: making, reading, and the algorithms that they are for."""
import time
from typing import Any, cast

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
)

from geminga.workers.identity import keys, sources

_RSA_BITS = {"RS256": 2048, "RS384": 3072, "RS512": 4096, "PS256": 2048, "PS384": 3072, "PS512": 4096}
_CURVES: dict[str, Any] = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


def key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """Return a new key that signs tokens and the one that checks them, both as DER."""
    bits = _RSA_BITS.get(algorithm)
    key = rsa.generate_private_key(65537, bits) if bits else ec.generate_private_key(_CURVES[algorithm]())
    return (key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
            key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def signed(key: bytes, role: str, lifetime_s: int) -> str:
    """Return a token for a role, signed with RS256 by a key of `key_pair`."""
    return jwt.encode({"sub": role, "exp": int(time.time()) + lifetime_s},
                      private_key(key, "RS256"), "RS256", headers={"typ": None})


def private_key(data: bytes, algorithm: str) -> rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey:
    """Read a private key of the kind that the algorithm needs.  Raises SourceError."""
    try:
        key = load_pem_private_key(data, None) if data.startswith(b"-----BEGIN") else load_der_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise sources.SourceError("is no private key, neither as DER nor as PEM") from None
    keys.public_key(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo), algorithm)
    return cast("rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey", key)      # public_key() above refuses other kinds


def strongest(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    """Return the strongest algorithm for the key's size or curve, as `pulsar tokens` chooses it."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return next(name for name, curve in _CURVES.items() if key.curve.name == curve.name)
    return max(name for name, bits in _RSA_BITS.items() if name.startswith("RS") and key.key_size >= bits)
