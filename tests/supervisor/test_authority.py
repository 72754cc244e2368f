"""The certificates and tokens that `geminga secure` makes, checked as clients check them."""
import ssl
from datetime import timedelta

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_der_public_key

from geminga.supervisor.cli.access import authority, signing


def shaken(trusted, certificate, key, name, folder):
    """Do a TLS handshake in memory with a server of this certificate; the client trusts only `trusted`."""
    (folder / "chain.pem").write_bytes(certificate + key)
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(folder / "chain.pem")
    of_client = ssl.create_default_context(cadata=trusted.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = of_client.wrap_bio(to_client, to_server, server_hostname=name)
    server = of_server.wrap_bio(to_server, to_client, server_side=True)
    left = [client, server]
    while left:
        for end in left[:]:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(end)


def test_clients_that_trust_the_authority_trust_its_servers(tmp_path):
    trusted, signer = authority.make("Geminga of " + "x" * 100)
    certificate, key = authority.server(trusted, signer, ["mq.example", "10.0.0.7", "::1"])
    for name in ("mq.example", "10.0.0.7", "::1"):
        shaken(trusted, certificate, key, name, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shaken(trusted, certificate, key, "other.example", tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed|unable to get"):
        shaken(authority.make("another")[0], certificate, key, "mq.example", tmp_path)


def test_a_server_cannot_sign_and_its_certificate_is_short_enough_for_browsers():
    trusted, signer = authority.make("ours")
    made = x509.load_pem_x509_certificate(authority.server(trusted, signer, ["a"])[0])
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert made.not_valid_after_utc - made.not_valid_before_utc <= timedelta(days=825)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_key_pair_signs_and_checks(algorithm):
    private, public = signing.key_pair(algorithm)
    token = jwt.encode({"sub": "who"}, signing.private_key(private, algorithm), algorithm)
    assert jwt.decode(token, load_der_public_key(public), [algorithm]) == {"sub": "who"}


def test_a_signed_token_names_its_role_and_ends():
    private, public = signing.key_pair("RS256")
    claims = jwt.decode(signing.signed(private, "admin", 60), load_der_public_key(public), ["RS256"],
                        options={"require": ["sub", "exp"]})
    assert claims["sub"] == "admin"
    with pytest.raises(jwt.ExpiredSignatureError):
        jwt.decode(signing.signed(private, "admin", -1), load_der_public_key(public), ["RS256"])
