"""An authority of one's own: its certificate, and certificates of servers that it signs."""
import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_AUTHORITY_DAYS = 3650
SERVER_DAYS = 800              # browsers and some libraries refuse certificates for longer than 825 days
_EARLY = timedelta(minutes=5)      # for clients whose clocks are late
_NAME_MAX = 64                 # characters of a common name


def make(name: str) -> tuple[bytes, bytes]:
    """Return (certificate, private key) of a new authority, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_NAME_MAX])])
    usage = x509.KeyUsage(digital_signature=False, key_cert_sign=True, crl_sign=True, content_commitment=False,
                          key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                          decipher_only=False)
    signed = (_begun(subject, subject, key.public_key(), _AUTHORITY_DAYS)
              .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
              .add_extension(usage, critical=True)
              .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
              .sign(key, hashes.SHA256()))
    return signed.public_bytes(Encoding.PEM), _pem(key)


def server(authority: bytes, authority_key: bytes, names: Sequence[str]) -> tuple[bytes, bytes]:
    """Return (certificate, private key), as PEM, of a server with these host names and addresses.

    The authority's certificate and key are PEM too.
    """
    above = x509.load_pem_x509_certificate(authority)
    signing = load_pem_private_key(authority_key, None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)      # of `make`
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:_NAME_MAX])])
    signed = (_begun(subject, above.subject, key.public_key(), SERVER_DAYS)
              .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
              .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
              .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
              .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
              .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
              .sign(signing, hashes.SHA256()))
    return signed.public_bytes(Encoding.PEM), _pem(key)


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLY).not_valid_after(now + timedelta(days=days)))


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
