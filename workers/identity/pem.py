"""Certificates and keys in files, PEM form."""
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from geminga.workers.identity.options import Unusable


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Unusable(key, f"cannot be read: {path}: {error.strerror}") from None


def certificates(key: str, path: str) -> list[x509.Certificate]:
    """Return all certificates in the file `path`.  key: its key in the configuration.  Raises Unusable."""
    try:
        return x509.load_pem_x509_certificates(_read(key, path))
    except ValueError:
        raise Unusable(key, f"must be certificates in PEM form, which {path} is not") from None


def check_key(path: str, certificate: x509.Certificate) -> None:
    """Check that the file holds the private key of the certificate.  Raises Unusable."""
    data = _read("tls.key", path)
    try:
        key = load_pem_private_key(data, None)
    except TypeError:
        raise Unusable("tls.key",
                       f"must not be encrypted, as {path} is: there is nobody to ask for its password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise Unusable("tls.key", f"must be a private key in PEM form, which {path} is not") from None
    if _public(key.public_key()) != _public(certificate.public_key()):
        raise Unusable("tls.key", f"must be of the first certificate in tls.certificate, which {path} is not")


def _public(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def der(certificate: x509.Certificate) -> bytes:
    """The certificate in DER form."""
    return certificate.public_bytes(Encoding.DER)
