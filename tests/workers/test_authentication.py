"""Authentication by each method: credentials that prove a role, and credentials that must be refused."""
import base64
import hmac
import json
import os
import time
import zlib
from datetime import UTC, datetime, timedelta

import bcrypt
import jwt
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate
from hypothesis import given, settings
from hypothesis import strategies as st
from passlib.hash import apr_md5_crypt, des_crypt, ldap_sha1

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.counters import make_counters
from geminga.workers.identity import sources
from geminga.workers.identity.attempts import Attempts
from geminga.workers.identity.authentication import OURSELVES, Authenticator, Identity, Original
from geminga.workers.identity.credentials import Credentials, NotAuthenticated
from geminga.workers.identity.options import (
    AuthenticationOptions,
    AuthorizationOptions,
    IdentityOptions,
    Secret,
    Unusable,
)

SECRET = b"0123456789abcdef" * 4
OTHER_SECRET = b"fedcba9876543210" * 4
RSA = rsa.generate_private_key(65537, 2048)
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
EC = {algorithm: ec.generate_private_key(curve) for algorithm, curve in CURVES.items()}


def inline(data: bytes) -> str:
    return "data:;base64," + base64.b64encode(data).decode()


def public(key, encoding: Encoding = Encoding.DER) -> bytes:
    return key.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)


def asking(*, authorization: AuthorizationOptions | None = None, **options) -> Authenticator:
    """Return an authenticator for tokens, unless the options say otherwise."""
    options = {"methods": ("token",), "secret_keys": (inline(SECRET),)} | options
    authentication = AuthenticationOptions(**options)
    return Authenticator(IdentityOptions(authentication=authentication,
                                         authorization=authorization or AuthorizationOptions()))


def token(claims: dict, key=SECRET, algorithm: str = "HS256", **more) -> bytes:
    return jwt.encode(claims, key, algorithm, **more).encode()


def signed(claims: dict) -> bytes:
    """Sign any claims, also those that no library would write."""
    return jwt.api_jws.encode(json.dumps(claims).encode(), SECRET, "HS256").encode()


def role(authenticator: Authenticator, data: bytes, method: str = "token", certificate: bytes | None = None) -> str:
    return authenticator.identify(Credentials(method, data, certificate)).role


def refused(authenticator: Authenticator, data: bytes, method: str = "token", certificate: bytes | None = None) -> str:
    """Return the reason for which the credentials are refused."""
    with pytest.raises(NotAuthenticated) as found:
        authenticator.identify(Credentials(method, data, certificate))
    assert found.value.code == api.AuthenticationError and found.value.text == "Failed to authenticate"
    return found.value.reason


# -- tokens

@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_token_signed_with_the_secret_key_is_its_subject(algorithm):
    assert asking().identify(Credentials("token", token({"sub": "who"}, algorithm=algorithm))) == Identity(
        "who", "token"
    )


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
@pytest.mark.parametrize("encoding", [Encoding.DER, Encoding.PEM])
def test_a_token_signed_with_an_rsa_key(algorithm, encoding):
    """Every algorithm that the key can be used for is accepted: Apache Pulsar picks one by the key's size."""
    authenticator = asking(secret_keys=(), public_keys=(inline(public(RSA, encoding)),))
    assert role(authenticator, token({"sub": "who"}, RSA, algorithm)) == "who"


@pytest.mark.parametrize("algorithm", EC)
def test_a_token_signed_with_an_elliptic_key(algorithm):
    authenticator = asking(secret_keys=(), public_keys=(inline(public(EC[algorithm])),), public_key_algorithm=algorithm)
    good = token({"sub": "who"}, EC[algorithm], algorithm)
    assert role(authenticator, good) == "who"
    assert authenticator.is_slow(Credentials("token", good)) == (algorithm != "ES256")


def test_when_a_token_expires_is_known():
    expires_s = int(time.time()) + 1000
    assert asking().identify(Credentials("token", token({"sub": "who", "exp": expires_s}))).expires_s == expires_s


@pytest.mark.parametrize("claims, reason", [
    ({"sub": "who", "exp": 1}, "EXPIRED_TOKEN"),
    ({"sub": "who", "exp": int(time.time()) - 1}, "EXPIRED_TOKEN"),
    # far ahead, as tests are collected long before this one runs
    ({"sub": "who", "nbf": int(time.time()) + 100_000}, "INVALID_TOKEN"),
    ({"sub": "who", "iat": int(time.time()) + 100_000}, "INVALID_TOKEN"),
    ({"sub": "who", "exp": "never"}, "INVALID_TOKEN"), ({"sub": "who", "exp": 1e400}, "INVALID_TOKEN"),
    ({"sub": "who", "exp": [1]}, "INVALID_TOKEN"),
    ({}, "INVALID_TOKEN"), ({"sub": ""}, "INVALID_TOKEN"), ({"sub": 7}, "INVALID_TOKEN"),
    ({"sub": None}, "INVALID_TOKEN"),
    ({"sub": "who", "exp": -1}, "EXPIRED_TOKEN"), ({"sub": "who", "exp": -10**400}, "EXPIRED_TOKEN"),
    ({"sub": "who", "exp": True}, "EXPIRED_TOKEN"),
    ({"sub": "who", "exp": float("nan")}, "INVALID_TOKEN"), ({"sub": "who", "exp": float("-inf")}, "INVALID_TOKEN"),
    ({"sub": "who", "exp": None}, "INVALID_TOKEN"), ({"sub": "who", "exp": {}}, "INVALID_TOKEN"),
    ({"sub": "who", "exp": "1"}, "EXPIRED_TOKEN"),
    ({"sub": "who", "nbf": "soon"}, "INVALID_TOKEN"), ({"sub": "who", "iat": float("nan")}, "INVALID_TOKEN"),
    ({"sub": "who", "nbf": 10**400}, "INVALID_TOKEN"), ({"sub": [["who"]]}, "INVALID_TOKEN"),
    ({"sub": True}, "INVALID_TOKEN"),
    ({"sub": []}, "INVALID_TOKEN"), ({"sub": [7]}, "INVALID_TOKEN"), ({"sub": {"a": 1}}, "INVALID_TOKEN"),
])
def test_what_a_token_must_not_say(claims, reason):
    """A token with these claims is refused although its signature is right."""
    assert refused(asking(), signed(claims)) == reason


@pytest.mark.parametrize("exp", [10**11, 9_223_372_036_854_775_807, 1e300, 10**400])
def test_a_token_may_expire_in_any_far_future(exp):
    """Java's largest number is in use as an expiry; larger ones must not be an error of the broker."""
    expires_s = asking().identify(Credentials("token", signed({"sub": "who", "exp": exp}))).expires_s
    assert time.time() + 10**9 < expires_s <= 10**11
    counters = make_counters(1)[0]
    Attempts(counters, None).succeeded(Identity("who", "token", expires_s))
    assert counters.read()["token_SUCCESS"] == 1


def encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


@pytest.mark.parametrize("header, payload", [
    ({"alg": "none"}, b'{"sub":"who"}'), ({"alg": "None"}, b'{"sub":"who"}'), ({"alg": ""}, b'{"sub":"who"}'),
    ({}, b'{"sub":"who"}'),
    ({"alg": None}, b'{"sub":"who"}'), ({"alg": ["HS256"]}, b'{"sub":"who"}'), ({"alg": "hs256"}, b'{"sub":"who"}'),
    ({"alg": "HS256", "zip": "DEF"}, zlib.compress(b'{"sub":"who"}')),
    ({"alg": "HS256", "b64": False, "crit": ["b64"]}, b'{"sub":"who"}'),
    ({"alg": "HS256", "crit": ["exp"]}, b'{"sub":"who"}'), ({"alg": "HS256", "cty": "JWT"}, None),
    ({"alg": "HS256"}, b'["who"]'),
    ({"alg": "HS256"}, b'"who"'), ({"alg": "HS256"}, b'null'), ({"alg": "HS256"}, b'{"sub":"w\xff"}'),
    ({"alg": "HS256"}, b'{"sub":"who"'),
    ({"alg": "HS256"}, b'[' * 8_000), ({"alg": "HS256"}, b'{"a":' * 2_000 + b"1" + b"}" * 2_000),
    ({"alg": "HS256"}, b""),
], ids=lambda value: repr(value)[:30])
def test_a_right_signature_makes_no_token_of_anything(header, payload):
    """Compressed or nested tokens, and those without an object or an algorithm, are refused though the signature is
    right.
    """
    payload = token({"sub": "who"}) if payload is None else payload
    said = encoded(json.dumps(header).encode()) + b"." + encoded(payload)
    refused(asking(), said + b"." + encoded(hmac.digest(SECRET, said, "sha256")))


def test_clocks_may_differ_by_so_much():
    now = int(time.time())
    for claims in {"exp": now - 50}, {"nbf": now + 50}, {"iat": now + 50}:
        assert role(asking(clock_skew_s=100), token({"sub": "who"} | claims)) == "who"
        refused(asking(clock_skew_s=10), token({"sub": "who"} | claims))
    assert (
        asking(clock_skew_s=100).identify(Credentials("token", token({"sub": "who", "exp": now}))).expires_s
        == now + 100
    )


def test_another_claim_may_be_the_role():
    """If the claim is a list, its first role counts, as in Apache Pulsar."""
    authenticator = asking(role_claim="roles")
    assert role(authenticator, token({"sub": "who", "roles": "admin"})) == "admin"
    assert role(authenticator, token({"sub": "who", "roles": ["first", "second"]})) == "first"
    assert refused(authenticator, token({"sub": "who"})) == "INVALID_TOKEN"


def test_a_token_for_somebody_else():
    authenticator = asking(audience_claim="aud", audience="broker")
    for audience in "broker", ["other", "broker"]:
        assert role(authenticator, token({"sub": "who", "aud": audience})) == "who"
    for audience in "other", ["other"], [], None, {"broker": 1}, 7, "brokers", [["broker"]]:
        assert refused(authenticator, signed({"sub": "who", "aud": audience})) == "INVALID_AUDIENCES"
    assert refused(authenticator, signed({"sub": "who"})) == "INVALID_AUDIENCES"
    # no audience is configured, so nobody looks at the claim
    assert role(asking(), token({"sub": "who", "aud": "anybody"})) == "who"


def test_an_unsigned_token_is_none():
    assert refused(asking(), token({"sub": "who"}, None, "none")) == "INVALID_TOKEN"
    unsigned = token({"sub": "who"}).rpartition(b".")[0]
    for data in unsigned, unsigned + b".", unsigned + b"." + base64.urlsafe_b64encode(b"\0" * 32).rstrip(b"="):
        assert refused(asking(), data) == "INVALID_TOKEN"


def test_the_public_key_is_no_secret():
    """A token with algorithm HS256 that is signed with the public key's bytes, in any form, could be anybody's:
    refused.
    """
    authenticator = asking(public_keys=(inline(public(RSA)), inline(public(RSA, Encoding.PEM))))
    for key in public(RSA), public(RSA, Encoding.PEM), base64.b64encode(public(RSA)):
        head, body, _ = token({"sub": "who"}, OTHER_SECRET).split(b".")
        signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(head + b"." + body, key)
        assert refused(authenticator, b".".join((head, body, jwt.utils.base64url_encode(signature)))) == "INVALID_TOKEN"


def test_a_key_is_used_for_its_own_algorithms_only():
    only_rsa = asking(secret_keys=(), public_keys=(inline(public(RSA)),))
    assert refused(only_rsa, token({"sub": "who"})) == "INVALID_TOKEN"
    assert refused(only_rsa, token({"sub": "who"}, EC["ES256"], "ES256")) == "INVALID_TOKEN"
    assert refused(asking(), token({"sub": "who"}, RSA, "RS256")) == "INVALID_TOKEN"
    short = asking(secret_keys=(inline(SECRET[:32]),))
    assert role(short, token({"sub": "who"}, SECRET[:32])) == "who"


@pytest.mark.parametrize("data", [
    b"", b" ", b"\n", b".", b"..", b"...", b"garbage", b"\xff\xfe\0", b"a.b.c", b"{}.{}.{}", b"e30.e30.",
    "Grüße".encode(), b"." * 10_000,
    b"A" * 100_000, b"W10.W10.W10", base64.urlsafe_b64encode(b"[" * 9_000) + b".e30.AAAA",
], ids=lambda data: repr(data[:9]))
def test_what_is_no_token(data):
    assert refused(asking(), data) == ("INVALID_AUTH_DATA" if not data.strip() else "INVALID_TOKEN")


@pytest.mark.parametrize("before, after", [(b"", b"\n"), (b"", b"\r\n"), (b" ", b" "), (b"\n\t", b"")])
def test_a_token_may_be_sent_as_its_file_is(before, after):
    """Pulsar takes the end of a line behind a token, and clients send it."""
    assert role(asking(), before + token({"sub": "who"}) + after) == "who"
    head, _, rest = token({"sub": "who"}).partition(b".")
    assert refused(asking(), head + b"\n." + rest) == "INVALID_TOKEN"      # inside it means something


def test_a_token_may_not_be_huge():
    assert refused(asking(), token({"sub": "who", "more": "x" * 100_000})) == "INVALID_TOKEN"


GOOD = token({"sub": "who"})
RSA_GOOD = token({"sub": "who"}, RSA, "RS256")
BOTH = asking(public_keys=(inline(public(RSA)),))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(good=st.sampled_from([GOOD, RSA_GOOD]), at=st.integers(0, 600), byte=st.integers(0, 255),
       how=st.sampled_from(["change", "insert", "delete"]))
def test_a_token_changed_anywhere_is_refused(good, at, byte, how):
    """Even a change that base64 decodes to the same bytes is refused: a token has one spelling, but for blanks around.
    """
    at %= len(good)
    changed = good[:at] + (b"" if how == "delete" else bytes([byte])) + good[at + (how != "insert"):]
    if changed.strip() != good:
        refused(BOTH, changed)
    assert role(BOTH, good) == "who"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_are_no_token(data):
    refused(BOTH, data)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["alg", "typ", "kid", "crit", "b64", "jwk", "x5c", "jku"]),
                       st.none() | st.text(max_size=9) | st.integers() | st.lists(st.text(max_size=9), max_size=3)),
       st.binary(max_size=80))
def test_what_a_header_says_opens_nothing(header, signature):
    parts = json.dumps(header).encode(), b'{"sub":"who"}', signature
    refused(BOTH, b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts))


# -- keys and where they are

def test_several_keys_are_valid_at_once():
    """One key can replace another while tokens of both are in use."""
    authenticator = asking(secret_keys=(inline(SECRET), inline(OTHER_SECRET)), public_keys=(inline(public(RSA)),))
    for key, algorithm in (SECRET, "HS256"), (OTHER_SECRET, "HS256"), (RSA, "RS256"):
        assert role(authenticator, token({"sub": "who"}, key, algorithm)) == "who"
    assert refused(authenticator, token({"sub": "who"}, SECRET[1:] + b"x")) == "INVALID_TOKEN"
    assert refused(authenticator, token({"sub": "who", "exp": 1}, OTHER_SECRET)) == "EXPIRED_TOKEN"


@pytest.mark.parametrize("form", ["{path}", "file:{path}", "file://{path}", "data:;base64,{base64}", "{base64}",
                                  "data:,{percent}"])
def test_a_key_is_where_it_is_said_to_be(tmp_path, form):
    path = tmp_path / "a key"
    path.write_bytes(SECRET)
    where = form.format(path=str(path) if form == "{path}" else str(path).replace(" ", "%20"),
                        base64=base64.b64encode(SECRET).decode(),
                        percent="".join(f"%{byte:02x}" for byte in SECRET))
    assert role(asking(secret_keys=(where,)), GOOD) == "who"


def test_the_text_of_a_key_may_begin_as_a_path_does():
    """One key of 64 does.  The text of 32 bytes ends in "=", as hardly a path does."""
    key = b"\xfe" * 32
    where = base64.b64encode(key).decode()
    assert where.startswith("/") and where.endswith("=")
    assert role(asking(secret_keys=(where,)), token({"sub": "who"}, key, "HS256")) == "who"


@pytest.mark.parametrize("options, said", [
    ({"secret_keys": ("{folder}/absent",)},
     "authentication.secret_keys cannot be read: {folder}/absent: No such file or directory"),
    ({"secret_keys": ("no such key",)}, "authentication.secret_keys is neither a file that can be read nor base64"),
    ({"secret_keys": ("file://{folder}/absent",)},
     "authentication.secret_keys cannot be read: {folder}/absent: No such file or directory"),
    ({"secret_keys": ("data:;base64,%%%",)}, "authentication.secret_keys is not base64"),
    ({"secret_keys": ("data:nothing",)}, "authentication.secret_keys lacks a comma between data: and the content"),
    ({"secret_keys": (inline(b"short"),)},
     "authentication.secret_keys is too short: a secret key has at least 32 bytes, not 5"),
    ({"public_keys": (inline(b"secret-looking"),)},
     "authentication.public_keys is no public key, neither as DER nor as PEM"),
    ({"public_keys": (inline(public(EC["ES256"])),)}, "authentication.public_keys is no public key for RS256"),
    ({"public_keys": (inline(public(RSA)),), "public_key_algorithm": "ES256"},
     "authentication.public_keys is no public key for ES256"),
    ({"methods": ("basic",), "users": inline(b"")}, "authentication.users has no users in it"),
    ({"methods": ("basic",), "users": inline(b"joe")}, "authentication.users is not as htpasswd writes it"),
    ({"methods": ("basic",), "users": inline(b"joe:plain")},
     "authentication.users has a hash of a kind that is not known, of user 1"),
    ({"methods": ("basic",), "users": inline(b"joe:$2y$oops")}, "authentication.users is not as htpasswd writes it"),
])
def test_what_cannot_be_used_is_told_without_what_is_in_it(tmp_path, options, said):
    if "secret_keys" in options:
        keys = tuple(key.replace("{folder}", str(tmp_path)) for key in options["secret_keys"])
        options = options | {"secret_keys": keys}
    with pytest.raises(Unusable) as found:
        asking(**options)
    assert str(found.value) == said.replace("{folder}", str(tmp_path))


def test_a_key_file_is_read_again_when_it_has_changed(tmp_path, monkeypatch, capfd):
    """A changed key file that cannot be used leaves the former keys in force, and a log line says so."""
    monkeypatch.setattr(sources, "_LOOK_SECONDS", 0)
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    authenticator = asking(secret_keys=(str(path),))
    assert role(authenticator, GOOD) == "who"
    new = tmp_path / "new"
    new.write_bytes(OTHER_SECRET)
    os.replace(new, path)
    assert refused(authenticator, GOOD) == "INVALID_TOKEN"
    assert role(authenticator, token({"sub": "who"}, OTHER_SECRET)) == "who"
    path.unlink()
    assert role(authenticator, token({"sub": "who"}, OTHER_SECRET)) == "who"
    path.write_bytes(b"short")
    assert role(authenticator, token({"sub": "who"}, OTHER_SECRET)) == "who"
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 2 and all("its former content stays in force" in line for line in told)
    path.write_bytes(SECRET)
    assert role(authenticator, GOOD) == "who"


def test_a_file_that_is_gone_is_no_base64(tmp_path, monkeypatch, capfd):
    """A file's name could be base64: a key that anybody can guess must not come of it."""
    monkeypatch.setattr(sources, "_LOOK_SECONDS", 0)
    monkeypatch.chdir(tmp_path)
    name = "A" * 64
    (tmp_path / name).write_bytes(SECRET)
    authenticator = asking(secret_keys=(name,))
    assert role(authenticator, GOOD) == "who"
    (tmp_path / name).unlink()
    assert refused(authenticator, token({"sub": "who"}, base64.b64decode(name))) == "INVALID_TOKEN"
    assert role(authenticator, GOOD) == "who" and "No such file" in capfd.readouterr().err
    # a key that is given as base64 is one
    assert role(asking(secret_keys=(name,)), token({"sub": "who"}, base64.b64decode(name))) == "who"
    assert (
        capfd.readouterr().err
        == "geminga: authentication.secret_keys names no file: it is taken for content in base64\n"
    )


def test_a_file_is_not_looked_at_each_time(tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    authenticator = asking(secret_keys=(str(path),))
    monkeypatch.setattr(sources, "stamp", lambda path: pytest.fail("looked again within a second"))
    now = time.monotonic()
    monkeypatch.setattr(sources.time, "monotonic", lambda: now)
    for _ in range(10):
        assert role(authenticator, GOOD) == "who"


# -- users and passwords

def htpasswd(**users: str) -> str:
    return inline("\n".join(f"{name}:{known}" for name, known in users.items()).encode())


def bcrypted(password: bytes, kind: str = "2b") -> str:
    return bcrypt.hashpw(password, bcrypt.gensalt(4)).decode().replace("$2b$", f"${kind}$")


@pytest.mark.parametrize("known", [bcrypted(b"secret", kind) for kind in ("2y", "2a", "2b")] + [
    apr_md5_crypt.hash("secret"), ldap_sha1.hash("secret"), des_crypt.hash("secret")],
    # hashes have random salts: no names
    ids=["bcrypt 2y", "bcrypt 2a", "bcrypt 2b", "Apache's MD5", "SHA-1", "crypt"])
def test_the_password_of_a_user(known):
    """Every format of the password file is known, also crypt(3) of old files."""
    authenticator = asking(methods=("basic",), users=htpasswd(joe=known))
    assert authenticator.is_slow(Credentials("basic", b"joe:secret"))
    assert authenticator.identify(Credentials("basic", b"joe:secret")) == Identity("joe", "basic")
    # not even right after the correct password was remembered
    assert not authenticator.is_slow(Credentials("basic", b"joe:secret"))
    assert authenticator.is_slow(Credentials("basic", b"joe:secreT"))
    for wrong in (
        b"joe:",
        b"joe:Secret",
        b"joe:secret ",
        b"joe:secret\0",
        b"joe:\0",
        b"Joe:secret",
        b"jo:esecret",
        b":secret",
    ):
        assert refused(authenticator, wrong, "basic") == "INVALID_TOKEN"


@pytest.mark.parametrize("data", [b"", b"joe", b"\xff\xfe"])
def test_what_is_no_user_and_password(data):
    assert (
        refused(asking(methods=("basic",), users=htpasswd(joe=ldap_sha1.hash("x"))), data, "basic")
        == "INVALID_AUTH_DATA"
    )


@pytest.mark.parametrize("data", [
    b"\xff:x", b"joe:\xff\xfe", b"joe:" + b"x" * 100_000, b"x" * 300 + b":x", b"\0:\0", b":", b"::", b"jo\ne:x",
    b"joe:x\0y",
], ids=lambda data: repr(data[:9]))
@pytest.mark.parametrize("known", [ldap_sha1.hash("x"), apr_md5_crypt.hash("x"), bcrypted(b"x")],
                         ids=lambda known: known[:4])
def test_strange_users_and_passwords(data, known):
    assert refused(asking(methods=("basic",), users=htpasswd(joe=known)), data, "basic") == "INVALID_TOKEN"


def test_a_password_may_have_colons_and_other_letters():
    authenticator = asking(methods=("basic",), users=htpasswd(joe=ldap_sha1.hash("a:b:Grüße")))
    assert role(authenticator, "joe:a:b:Grüße".encode(), "basic") == "joe"


def test_a_password_that_is_changed_is_good_no_longer(tmp_path, monkeypatch):
    """The former password is refused, although it was right and remembered."""
    monkeypatch.setattr(sources, "_LOOK_SECONDS", 0)
    path = tmp_path / "htpasswd"
    path.write_text(f"# a comment\njoe:{bcrypted(b'old')}\n\njane:{bcrypted(b'hers')}\n")
    authenticator = asking(methods=("basic",), users=str(path))
    assert role(authenticator, b"joe:old", "basic") == "joe"
    path.write_text(f"joe:{bcrypted(b'newer')}\n")
    assert (
        refused(authenticator, b"joe:old", "basic") == refused(authenticator, b"jane:hers", "basic") == "INVALID_TOKEN"
    )
    assert role(authenticator, b"joe:newer", "basic") == "joe"


# -- certificates, and nothing

def certificate(common_name: str | None) -> bytes:
    issued = trustme.CA().issue_cert("client.example.com", common_name=common_name)
    return load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()).public_bytes(Encoding.DER)


def test_the_role_of_a_certificate_is_its_common_name():
    """The certificate counts only if it was shown in the handshake, and its method is configured."""
    shown = certificate("admin")
    authenticator = asking(methods=("tls",))
    assert authenticator.identify(Credentials("tls", b"", shown)) == Identity("admin", "tls")
    assert refused(authenticator, b"", "tls") == "INVALID_CERTS"
    assert refused(authenticator, b"", "tls", b"garbage") == "INVALID_CERTS"
    assert refused(authenticator, b"", "tls", certificate(None)) == "INVALID_CN"
    assert refused(authenticator, b"", "none", shown) == "UNKNOWN_METHOD"
    assert refused(asking(), b"", "tls", shown) == "UNKNOWN_METHOD"


def test_who_shows_nothing_has_the_anonymous_role():
    """A method that is not configured counts as no credentials; configured ones have to be right."""
    authenticator = asking(anonymous_role="nobody")
    for method in "", "none", "basic", "tls", "internal", "sasl":
        assert authenticator.identify(Credentials(method, b"joe:x")) == Identity("nobody")
    assert refused(authenticator, b"") == "INVALID_AUTH_DATA"
    assert refused(authenticator, b"bad") == "INVALID_TOKEN"
    for method in "", "none", "basic", "internal":
        assert refused(asking(), b"", method) == "UNKNOWN_METHOD"


# -- proxies

PROXIES = AuthorizationOptions(enabled=True, proxy_roles=("proxy", "proxy2"))


def admitted(authenticator: Authenticator, who: str, original: str | None = None, shown: Credentials | None = None,
             **more) -> Identity:
    asks_for = Original(original, shown) if original is not None else None
    return authenticator.admit(Credentials("token", token({"sub": who})), asks_for, **more)


def test_a_proxy_asks_on_behalf_of_others():
    assert admitted(asking(authorization=PROXIES), "proxy", "joe", names_proxy=True) == Identity(
        "joe", "token", None, "proxy"
    )


@pytest.mark.parametrize("who, original, more, told", [
    ("proxy", None, {}, "Invalid roles."), ("proxy", "", {}, "Invalid roles."), ("proxy", " ", {}, "Invalid roles."),
    ("proxy", "proxy", {}, "Invalid roles."), ("proxy", "proxy2", {}, "Invalid roles."),
    ("proxy", "proxy", {"may_repeat": True}, "Invalid roles."),
    ("joe", "jane", {}, "Invalid roles."), ("joe", "joe", {}, "Invalid roles."),
    ("joe", "jane", {"may_repeat": True}, "Invalid roles."),
    ("joe", "proxy", {}, "Invalid roles."),
    ("joe", None, {"names_proxy": True}, "Must not set proxyVersion without connecting as a ProxyRole."),
])
def test_nobody_else_does(who, original, more, told):
    with pytest.raises(NotAuthenticated) as found:
        admitted(asking(authorization=PROXIES), who, original, **more)
    assert (found.value.code, found.value.text, found.value.reason) == (api.AuthorizationError, told,
                                                                        "INVALID_PRINCIPAL")


def test_who_names_itself_over_http_is_itself():
    assert admitted(asking(authorization=PROXIES), "joe", "joe", may_repeat=True) == Identity("joe", "token")


def test_without_authorization_a_name_is_only_believed_of_a_proxy():
    authenticator = asking(authorization=AuthorizationOptions(proxy_roles=("proxy",)))
    assert admitted(authenticator, "joe", "jane", names_proxy=True) == Identity("joe", "token")
    assert admitted(authenticator, "proxy", "jane") == Identity("jane", "token", None, "proxy")
    assert admitted(authenticator, "proxy") == Identity("proxy", "token")


def test_what_a_proxys_client_has_shown_is_checked_where_that_is_wanted():
    """The credentials of the proxy's client decide who it is, and not the name that the proxy gives."""
    authenticator = asking(authorization=PROXIES, original_authentication=True, anonymous_role="nobody")
    shown = Credentials("token", token({"sub": "jane", "exp": int(time.time()) + 1000}))
    found = admitted(authenticator, "proxy", "joe", shown)
    assert (found.role, found.proxy) == ("jane", "proxy") and found.expires_s
    assert admitted(authenticator, "proxy", "joe", Credentials("none", b"")).role == "nobody"
    for bad in (
        Credentials("token", b""),
        Credentials("token", b"bad"),
        Credentials("token", token({"sub": "jane"}, OTHER_SECRET)),
        Credentials("token", token({"sub": "proxy2"})),
    ):
        with pytest.raises(NotAuthenticated):
            admitted(authenticator, "proxy", "joe", bad)


def test_who_was_admitted_may_stay_where_it_could_come_again_by_the_same_way():
    """After the options have changed, this is asked of everybody who is connected."""
    tokens = asking(authorization=PROXIES, anonymous_role="nobody")
    nobody_asked, strict = Authenticator(IdentityOptions()), asking()
    assert nobody_asked.accepts(Identity("")) and nobody_asked.accepts(Identity("joe", "basic"))
    assert tokens.accepts(OURSELVES) and strict.accepts(OURSELVES)
    assert tokens.accepts(Identity("joe", "token")) and not tokens.accepts(Identity("joe", "basic"))
    assert (
        tokens.accepts(Identity("nobody"))
        and not tokens.accepts(Identity("somebody"))
        and not tokens.accepts(Identity(""))
    )
    assert not strict.accepts(Identity("")) and not strict.accepts(Identity("nobody"))
    assert tokens.accepts(Identity("joe", "token", proxy="proxy")) and not tokens.accepts(
        Identity("joe", "token", proxy="former")
    )
    assert not tokens.accepts(Identity("joe", "basic", proxy="proxy")) and not strict.accepts(
        Identity("joe", "token", proxy="proxy")
    )


def test_a_token_is_renewed_by_one_of_the_same_role():
    authenticator = asking(authorization=PROXIES)
    identity = authenticator.identify(Credentials("token", token({"sub": "joe", "exp": int(time.time()) + 10})))
    later = int(time.time()) + 1000
    assert authenticator.renew(identity, Credentials("token", token({"sub": "joe", "exp": later}))) == Identity(
        "joe", "token", later
    )
    for bad, reason in (
        (token({"sub": "jane"}), "ROLE_CHANGED"),
        (b"bad", "INVALID_TOKEN"),
        (token({"exp": 1}), "EXPIRED_TOKEN"),
    ):
        with pytest.raises(NotAuthenticated) as found:
            authenticator.renew(identity, Credentials("token", bad))
        assert found.value.reason == reason
    of_proxy = admitted(authenticator, "proxy", "joe")
    renewed = authenticator.renew(of_proxy, Credentials("token", token({"sub": "proxy", "exp": later})))
    assert renewed == Identity("joe", "token", later, "proxy")


def test_a_secret_shows_itself_nowhere():
    options = AuthenticationOptions(secret_keys=(Secret("data:;base64,c2VjcmV0"),), users=Secret("data:,joe"))
    assert "c2VjcmV0" not in repr(options) and "joe" not in repr(options)
    assert "secret" not in repr(Credentials("basic", b"joe:secret"))


# -- loopholes

def test_a_short_rsa_key_is_refused():
    """Others can compute the private half of a short key."""
    with pytest.raises(Unusable, match="public_keys"):
        asking(secret_keys=(), public_keys=(inline(public(rsa.generate_private_key(65537, 1024))),))


def test_a_token_has_one_spelling():
    """The last letter of a signature has bits without meaning; only one of its values is accepted."""
    whole = token({"sub": "who"})
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    at = letters.index(whole[-1:])
    others = [whole[:-1] + letters[other:other + 1] for other in range(at & ~3, (at & ~3) + 4) if other != at]
    assert len(others) == 3 and role(asking(), whole) == "who"
    assert {refused(asking(), other) for other in others} == {"INVALID_TOKEN"}


def test_a_user_without_a_name_is_none(tmp_path):
    """A user without a name is refused, though the file has a password for it."""
    hashed = ldap_sha1.hash("secret")
    (tmp_path / "users").write_text(f"joe:{hashed}\n:{hashed}\n")
    authenticator = asking(methods=("basic",), secret_keys=(), users=str(tmp_path / "users"))
    assert role(authenticator, b"joe:secret", "basic") == "joe"
    assert refused(authenticator, b":secret", "basic") == "INVALID_TOKEN"


def test_of_several_common_names_the_last_is_the_role():
    """The last of several common names is the role, as in Apache Pulsar."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, one) for one in ("first", "last")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(1))
        .not_valid_after(now + timedelta(1))
        .sign(key, hashes.SHA256())
    )
    authenticator = asking(methods=("tls",), secret_keys=())
    assert role(authenticator, b"", "tls", made.public_bytes(Encoding.DER)) == "last"


@pytest.mark.parametrize("identity, options, expected", [
    (Identity("who", "token"), {}, True), (Identity("who", "basic"), {}, False), (Identity(""), {}, False),
    (Identity("who"), {}, False),
    (Identity("guest"), {"anonymous_role": "guest"}, True), (Identity("other"), {"anonymous_role": "guest"}, False),
    (Identity("who", "token", proxy="proxy"), {}, True), (Identity("who", "token", proxy="no-more"), {}, False),
    (OURSELVES, {}, True)], ids=str)
def test_who_stays_when_the_options_change_could_come_by_the_same_way(identity, options, expected):
    authenticator = asking(authorization=AuthorizationOptions(enabled=True, proxy_roles=("proxy",)), **options)
    assert authenticator.accepts(identity) == expected


def test_where_nobody_is_asked_all_stay():
    authenticator = asking(methods=(), secret_keys=())
    assert all(authenticator.accepts(one)
               for one in (Identity("who", "token"), Identity(""), Identity("x", "tls", proxy="y")))
