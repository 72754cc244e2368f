"""Tokens of issuers of OpenID Connect: which are accepted, how keys turn, and what a hostile issuer can do."""
import asyncio
import json
import socket
import ssl
import threading
from dataclasses import replace

import jwt
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from geminga.storage.runtime.log import log
from geminga.workers.identity import issuer_documents
from geminga.workers.identity.authentication import Authenticator, Original
from geminga.workers.identity.credentials import Credentials, NotAuthenticated
from geminga.workers.identity.issuer_documents import Documents, Unavailable
from geminga.workers.identity.issuers import Issuer
from geminga.workers.identity.options import (
    AuthenticationOptions,
    AuthorizationOptions,
    IdentityOptions,
    OidcOptions,
    Unusable,
)

from .. import issuer as issuers
from ..harness import Stopwatch
from ..issuer import AUDIENCE, DISCOVERY, KEYS, answer, jwk, make_key

SECRET = b"0123456789abcdef" * 4
UNLISTED = ", and its issuer is none of authentication.oidc.issuers"


@pytest.fixture
def issuer():
    with issuers.running() as running:
        yield running


@pytest.fixture
def other():
    with issuers.running() as running:
        yield running


@pytest.fixture
def lines(monkeypatch):
    """What is logged as a warning."""
    told = []
    monkeypatch.setattr(log, "warning", lambda text, **fields: told.append(text))
    return told


def options(*issuers, static: bool = False, **more) -> IdentityOptions:
    keys = (f"data:,{SECRET.decode()}",) if static else ()
    urls = tuple(issuer if isinstance(issuer, str) else issuer.url for issuer in issuers)
    return IdentityOptions(authentication=AuthenticationOptions(methods=("token",), secret_keys=keys),
                           oidc=OidcOptions(issuers=urls, audiences=(AUDIENCE,), require_https=False, **more))


async def admitted(authenticator: Authenticator, data: bytes) -> str:
    """Return the role of a token, or the reason for which it is refused."""
    credentials = Credentials("token", data)
    if (fetch := authenticator.fetching(credentials)) is not None:
        await fetch
    try:
        return authenticator.identify(credentials).role
    except NotAuthenticated as refused:
        return f"{refused.reason}: {refused.why}"


def roles(authenticator: Authenticator, *tokens: bytes) -> list[str]:
    """Return the roles of tokens that come one after the other, or why they are refused."""
    async def run() -> list[str]:
        return [await admitted(authenticator, token) for token in tokens]
    return asyncio.run(run())


def unsigned(token: bytes, **header) -> bytes:
    """Return a token with another header, and without a signature."""
    part = jwt.utils.base64url_encode(json.dumps(header).encode())
    return part + b"." + token.split(b".")[1] + b"."


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"])
@pytest.mark.parametrize("is_named", [True, False])
def test_tokens_of_each_algorithm_are_accepted(issuer, algorithm, is_named):
    """A key may name its algorithm, or leave it to its type."""
    issuer.turn("new", algorithm, **({"alg": algorithm} if is_named else {}))
    authenticator = Authenticator(options(issuer))
    assert roles(authenticator, issuer.token()) == ["joe"]
    assert authenticator.is_slow(Credentials("token", issuer.token())) == (algorithm in ("ES384", "ES512"))
    assert issuer.asked == {DISCOVERY: 1, KEYS: 1}


def test_an_identity_expires_with_its_token(issuer):
    async def run():
        credentials = Credentials("token", issuer.token(exp=2_000_000_000))
        authenticator = Authenticator(options(issuer, clock_skew_s=7))
        await authenticator.fetching(credentials)
        assert authenticator.fetching(credentials) is None
        return authenticator.identify(credentials).expires_s
    assert asyncio.run(run()) == 2_000_000_007


@pytest.mark.parametrize("claims, refusal", [
    ({"exp": 1}, "EXPIRED_TOKEN: the token has expired"),
    ({"nbf": 10**10}, "INVALID_TOKEN: the token is not valid yet"),
    ({"nbf": None}, "joe"),
    ({"exp": None}, "INVALID_TOKEN: the token has no claim exp"),
    ({"iat": None}, "INVALID_TOKEN: the token has no claim iat"),
    ({"sub": None}, "INVALID_TOKEN: the token has no claim sub"),
    ({"aud": "others"}, "INVALID_AUDIENCES: the token is for another audience"),
    ({"aud": None}, "INVALID_AUDIENCES: the token is for another audience"),
    ({"aud": []}, "INVALID_AUDIENCES: the token is for another audience"),
    ({"aud": ["others", AUDIENCE]}, "joe"),
    ({"iss": None}, f"INVALID_TOKEN: no key here has signed the token{UNLISTED}"),
    ({"iss": "https://elsewhere.example.com"}, f"INVALID_TOKEN: no key here has signed the token{UNLISTED}"),
], ids=str)
def test_claims_of_a_token(issuer, claims, refusal):
    assert roles(Authenticator(options(issuer)), issuer.token(**claims)) == [refusal]


@pytest.mark.parametrize("claim, claims, role", [
    ("groups", {"groups": ["writers", "readers"]}, "writers"),
    ("realm_access.roles", {"realm_access": {"roles": ["writers"]}}, "writers"),
    ("https://example.com/role", {"https://example.com/role": "writers"}, "writers"),
    ("a.b", {"a.b": "whole", "a": {"b": "within"}}, "whole"),
    ("a.b", {"a": ["b"]}, None), ("groups", {"groups": []}, None), ("groups", {"groups": [7]}, None),
    ("sub", {"sub": "joe\ud800"}, None),
    ("groups", {"groups": ""}, None), ("groups", {}, None), ("groups", {"groups": {"a": "b"}}, None),
])
def test_the_role_may_stand_in_a_list_or_within_objects(issuer, claim, claims, role):
    refusal = f"INVALID_TOKEN: the token has no role in its claim {claim}"
    assert roles(Authenticator(options(issuer, role_claim=claim)), issuer.token(**claims)) == [role or refusal]


@pytest.mark.parametrize("claims, groups", [
    ({"groups": ["writers", "readers", "writers", "", 7, None, ["x"], "\udfff"]}, ("readers", "writers")),
    ({"groups": "writers"}, ("writers",)), ({"groups": {"writers": 1}}, ()), ({}, ()),
])
def test_groups_of_a_token(issuer, claims, groups):
    async def run(token: bytes):
        authenticator, credentials = Authenticator(options(issuer, groups_claim="groups")), Credentials("token", token)
        await authenticator.fetching(credentials)
        return authenticator.identify(credentials)
    assert asyncio.run(run(issuer.token(**claims))).groups == groups


def test_a_token_of_other_groups_renews_no_connection(issuer):
    """Open producers and consumers were admitted by the groups of the former token."""
    async def run():
        authenticator = Authenticator(options(issuer, groups_claim="groups"))
        first, same, less = (Credentials("token", issuer.token(groups=groups))
                             for groups in (["a", "b"], ["b", "a"], ["a"]))
        await authenticator.fetching(first)
        identity = authenticator.identify(first)
        assert authenticator.renew(identity, same).groups == ("a", "b")
        with pytest.raises(NotAuthenticated, match="other groups"):
            authenticator.renew(identity, less)
    asyncio.run(run())


def test_a_proxy_lends_its_groups_to_nobody(issuer):
    async def run():
        given = options(issuer, groups_claim="groups")
        authenticator = Authenticator(replace(given, authorization=AuthorizationOptions(proxy_roles=("proxy",))))
        shown = Credentials("token", issuer.token("proxy", groups=["admin"]))
        await authenticator.fetching(shown)
        return authenticator.admit(shown, Original("joe"))
    identity = asyncio.run(run())
    assert (identity.role, identity.proxy, identity.groups) == ("joe", "proxy", ())


def test_issuers_and_keys_of_the_operator_stand_side_by_side(issuer, other):
    authenticator = Authenticator(options(issuer, other, static=True))
    static = jwt.encode({"sub": "jane"}, SECRET, "HS256").encode()
    assert roles(authenticator, issuer.token("joe"), static, other.token("jim")) == ["joe", "jane", "jim"]


def test_each_issuer_signs_for_itself_only(issuer, other):
    """Both have a key with the same id, and a token names one and is signed by the other, or by the operator's key."""
    authenticator = Authenticator(options(issuer, other, static=True))
    named = {"iss": issuer.url, "aud": AUDIENCE, "sub": "joe", "iat": 1, "exp": 2_000_000_000}
    static = jwt.encode(named, SECRET, "HS256", headers={"kid": "first"}).encode()
    refusal = f"INVALID_TOKEN: no key of issuer {issuer.url} has signed the token"
    algorithm = f"INVALID_TOKEN: the token is signed by an algorithm that no key of issuer {issuer.url} is for"
    assert roles(authenticator, other.token(iss=issuer.url), static) == [refusal, algorithm]
    assert other.asked == {}


def test_a_key_cannot_be_used_as_another_kind(issuer):
    """The bytes of a public key are no secret key, whatever a token's header says, and no signature is not a kind."""
    issuer.turn("rsa", "RS256")
    issuer.published.append({"kty": "oct", "kid": "secret", "k": jwt.utils.base64url_encode(SECRET).decode()})
    pem = issuer.private["rsa"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "joe", "iat": 1, "exp": 2_000_000_000}

    def signed(secret: bytes, name: str) -> bytes:
        head, body = (jwt.utils.base64url_encode(json.dumps(part).encode())
                      for part in ({"alg": "HS256", "typ": "JWT", "kid": name}, claims))
        signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(head + b"." + body, secret)
        return b".".join([head, body, jwt.utils.base64url_encode(signature)])

    other = jwt.encode(claims, issuer.private["rsa"], "RS512", headers={"kid": "first"}).encode()
    refused = "INVALID_TOKEN: "
    forged = [signed(pem, "rsa"), signed(SECRET, "secret"), unsigned(issuer.token(), alg="none", kid="rsa"),
              unsigned(issuer.token(), alg="none"), unsigned(issuer.token(), alg="RS256", kid="rsa"), other]
    found = roles(Authenticator(options(issuer)), issuer.token(), *forged)
    assert found[0] == "joe" and all(why.startswith(refused) for why in found[1:])
    assert not any(part.decode() in why for token in forged for part in token.split(b".") if part for why in found)


@pytest.mark.slow
@pytest.mark.parametrize("entry", [
    {"use": "enc"}, {"key_ops": ["encrypt"]}, {"key_ops": "verify"}, {"alg": "RS256"}, {"alg": "HS256"}, {"kty": "oct"},
    {"kty": "RSA"}, {"crv": "secp256k1"}, {"x": "AA"}, {"kid": 7}, {"kid": None}, {"d": "AA"}, {"alg": ["ES256"]},
], ids=str)
def test_keys_that_are_not_for_these_signatures_are_left_out(issuer, entry):
    key = make_key("ES256")
    issuer.published.append(jwk(key, kid="strange") | entry)
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    token = jwt.encode(claims, key, "ES256", headers={"kid": "strange"}).encode()
    found = roles(Authenticator(options(issuer)), issuer.token(), token)
    assert found == ["joe", f"INVALID_TOKEN: no key of issuer {issuer.url} has signed the token"]


def test_a_short_rsa_key_is_left_out(issuer):
    from cryptography.hazmat.primitives.asymmetric import rsa
    issuer.turn("short", "RS256", is_published=False)
    issuer.private["short"] = rsa.generate_private_key(65537, 1024)
    issuer.published.append(jwk(issuer.private["short"], kid="short"))
    with pytest.warns(jwt.warnings.InsecureKeyLengthWarning):
        token = issuer.token()
    assert roles(Authenticator(options(issuer)), token)[0].startswith("INVALID_TOKEN: no key of issuer")


def test_a_token_without_a_key_id_needs_a_key_without_one(issuer):
    token = issuer.token(headers={})
    refusal = f"INVALID_TOKEN: no key of issuer {issuer.url} has signed the token"
    assert roles(Authenticator(options(issuer)), token) == [refusal]
    del issuer.published[0]["kid"]
    assert roles(Authenticator(options(issuer)), token) == ["joe"]


# -- keys that turn, and issuers that fail

class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def rig(issuer, **more) -> tuple[Issuer, Clock]:
    clock, chosen = Clock(), options(issuer, **more).oidc
    return Issuer(issuer.url, chosen, Documents(issuer.url, chosen, None), clock=clock), clock


async def known(rig: Issuer, name: str) -> bool:
    """Return whether a key is known, after what a client waits for."""
    if (fetch := rig.fetching(name)) is not None:
        await fetch
    return bool(rig.keys(name))


async def ended(rig: Issuer) -> None:
    """Wait for the end of a fetch that no client waits for."""
    while rig._fetch is not None:
        await asyncio.wait([rig._fetch])


def test_a_new_key_is_fetched_at_once_and_unknown_ones_cost_one_fetch_in_a_while(issuer):
    async def run():
        rigged, clock = rig(issuer, unknown_key_interval_s=300)
        assert await known(rigged, "first")
        clock.now += 300
        issuer.turn("second")
        assert await known(rigged, "second") and await known(rigged, "first")
        assert issuer.asked[KEYS] == 2
        for number in range(100_000):
            assert rigged.fetching(f"unknown {number}") is None
        clock.now += 299
        assert not await known(rigged, "unknown")
        assert issuer.asked[KEYS] == 2
        clock.now += 1
        waiting = [rigged.fetching(f"unknown {number}") for number in range(1000)]
        assert len(set(waiting)) == 1
        await waiting[0]
        assert issuer.asked[KEYS] == 3 and rigged.fetching("unknown") is None
    asyncio.run(run())


def test_old_keys_check_tokens_while_new_ones_are_fetched(issuer):
    async def run():
        rigged, clock = rig(issuer, refresh_s=1000)
        assert await known(rigged, "first")
        clock.now += 999
        assert rigged.fetching("first") is None and rigged._fetch is None
        clock.now += 1
        issuer.published.clear()
        issuer.turn("second")
        assert rigged.fetching("first") is None and rigged.keys("first")
        await ended(rigged)
        assert not rigged.keys("first") and rigged.keys("second")      # withdrawn by the issuer
    asyncio.run(run())


def test_an_issuer_that_is_down_keeps_what_is_known_until_it_expires(issuer, lines):
    async def run():
        rigged, clock = rig(issuer, refresh_s=1000, expiry_s=5000)
        assert await known(rigged, "first")
        issuer.instead[DISCOVERY] = lambda request: answer(request, 503, b"{}")
        clock.now += 4999
        assert rigged.fetching("first") is None
        await ended(rigged)
        assert rigged.keys("first") and not await known(rigged, "second")
        clock.now += 1
        assert not await known(rigged, "first")
        asked = issuer.asked[DISCOVERY]
        assert not await known(rigged, "first") and issuer.asked[DISCOVERY] == asked      # a pause after a failure
        issuer.instead.clear()
        clock.now += 300
        assert await known(rigged, "first")
    asyncio.run(run())
    assert lines == [f"the keys of issuer {issuer.url} cannot be fetched: the answer has status 503; "
                     "1 known keys stay in force"]


@pytest.mark.parametrize("more", [{"refresh_s": 10}, {"expiry_s": 10}], ids=str)
def test_old_keys_do_not_wait_for_the_interval_of_unknown_ones(issuer, more):
    async def run():
        rigged, clock = rig(issuer, unknown_key_interval_s=300, **more)
        assert await known(rigged, "first")
        clock.now += 9
        assert not await known(rigged, "unknown") and issuer.asked[KEYS] == 1
        clock.now += 1
        assert await known(rigged, "first")
        await ended(rigged)
        assert await known(rigged, "first") and not await known(rigged, "unknown")
        assert issuer.asked[KEYS] == 2
    asyncio.run(run())


def test_pauses_after_failures_grow(issuer, lines):
    async def run():
        issuer.instead[KEYS] = lambda request: answer(request, 500, b"{}")
        rigged, clock = rig(issuer, unknown_key_interval_s=5)
        for pause in (1, 2, 4, 5, 5):
            asked = issuer.asked[KEYS]
            assert not await known(rigged, "first") and issuer.asked[KEYS] == asked + 1
            clock.now += pause - 0.1
            assert rigged.fetching("first") is None
            clock.now += 0.1
        issuer.instead.clear()
        assert await known(rigged, "first")
    asyncio.run(run())
    assert len(lines) == 1


def test_a_reload_keeps_the_keys_of_issuers_that_stay(issuer, other):
    authenticator = Authenticator(options(issuer, other))
    assert roles(authenticator, issuer.token(), other.token()) == ["joe", "joe"]
    authenticator.configure(options(issuer, static=True))
    static = jwt.encode({"sub": "jane"}, SECRET, "HS256").encode()
    found = roles(authenticator, issuer.token(), static, other.token())
    assert found[:2] == ["joe", "jane"] and found[2].endswith(UNLISTED)
    assert issuer.asked[KEYS] == 1


@pytest.mark.parametrize("url", ["https://[::1", "https://a:99999", "https://a:b", "https://:443"])
def test_an_issuer_must_be_a_url(url):
    with pytest.raises(Unusable, match=r"authentication\.oidc\.issuers names no host"):
        Authenticator(options(url))


def test_authorities_must_be_certificates(issuer, tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(Unusable, match=r"authentication\.oidc\.trusted must be certificates"):
        Authenticator(options(issuer, trusted=f"{tmp_path}/ca.pem"))


def test_the_certificate_of_an_issuer_must_be_trusted(tmp_path, lines):
    authority, strange = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for signer, role in (authority, "joe"), (strange, None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        signer.issue_cert("127.0.0.1").configure_cert(context)
        with issuers.running(context) as issuer:
            found = roles(Authenticator(options(issuer, trusted=f"{tmp_path}/ca.pem")), issuer.token())
            assert found == [role or f"INVALID_TOKEN: no key of issuer {issuer.url} has signed the token"]
    assert len(lines) == 1 and "its authority is not trusted; its tokens are refused" in lines[0]


# -- hostile issuers

def large(request) -> None:
    body = b'{"keys": [' + b" " * (10 << 20)
    answer(request, 200, body)


def endless(request) -> None:
    request.send_response(200)
    request.end_headers()
    for _ in range(10_000):
        request.wfile.write(b" " * 65_536)


def compressed(request) -> None:
    import gzip
    answer(request, 200, gzip.compress(b" " * (10 << 20)), **{"Content-Encoding": "gzip"})


def redirecting(request) -> None:
    answer(request, 302, b"{}", Location="http://127.0.0.1:1/keys")


def many(request) -> None:
    entry = jwk(make_key("EdDSA"))
    answer(request, 200, json.dumps({"keys": [entry | {"kid": str(number)} for number in range(101)]}).encode())


def says(body: bytes):
    return lambda request: answer(request, 200, body)


def discovers(**fields):
    return lambda request: answer(request, 200, json.dumps(fields).encode())


@pytest.mark.slow
@pytest.mark.parametrize("path, instead, why", [
    (KEYS, large, "the answer has more than 262144 bytes"), (KEYS, endless, "the answer has more than 262144 bytes"),
    (DISCOVERY, large, "the answer has more than 262144 bytes"), (KEYS, compressed, "the answer is not JSON"),
    (KEYS, redirecting, "the answer has status 302"), (DISCOVERY, redirecting, "the answer has status 302"),
    (KEYS, many, "its key set has more than 100 keys"),
    (KEYS, says(b"[" * 100_000), "the answer is not JSON"), (KEYS, says(b"[]"), "the answer is no JSON object"),
    (KEYS, says(b"\xff"), "the answer is not JSON"), (KEYS, says(b'{"keys": 7}'), "its key set is no key set"),
    (KEYS, says(b'{"keys": []}'), "its key set has no key that can be used"),
    (KEYS, says(b'{"keys": [7, {}, {"kty": []}]}'), "its key set has no key that can be used"),
    (DISCOVERY, discovers(issuer="http://another"), "its discovery document names another issuer"),
    (DISCOVERY, discovers(), "its discovery document names another issuer"),
])
def test_an_answer_that_cannot_be_used_changes_nothing(issuer, lines, path, instead, why):
    async def run():
        rigged, clock = rig(issuer)
        assert await known(rigged, "first")
        issuer.instead[path] = instead
        clock.now += 300
        assert not await known(rigged, "second") and rigged.keys("first")
    asyncio.run(run())
    assert lines == [f"the keys of issuer {issuer.url} cannot be fetched: {why}; "
                     "1 known keys stay in force"]


def refused(url: str, home: str = "http://127.0.0.1", **more) -> str:
    """Return why a document is not fetched."""
    chosen = OidcOptions(**{"require_https": False} | more)
    with pytest.raises(Unavailable) as error:
        asyncio.run(Documents(home, chosen, None).fetch(url))
    return str(error.value)


def test_an_answer_that_drips_is_given_up(issuer):
    """Each part comes in time, and the whole never does."""
    over = threading.Event()

    def drip(request) -> None:
        request.send_response(200)
        request.end_headers()
        while not over.wait(0.02):
            request.wfile.write(b" ")

    issuer.instead[KEYS] = drip
    watch = Stopwatch()
    assert refused(issuer.url + KEYS, connect_timeout_ms=100, read_timeout_ms=200) == "no answer within 0.3 s"
    assert watch.seconds() < 5
    over.set()


def test_a_silent_issuer_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert refused(url, connect_timeout_ms=100, read_timeout_ms=100) == "no answer within 0.2 s"


@pytest.mark.parametrize("url", ["http://127.0.0.2:{port}/keys", "http://[::1]:{port}/keys", "http://localhost:{port}/keys",
                                 "http://[::ffff:127.0.0.1]:{port}/keys", "http://169.254.169.254/latest/meta-data",
                                 "http://10.0.0.1/", "http://0.0.0.0:{port}/keys"])
def test_an_issuer_leads_to_no_private_address_but_its_own(issuer, url):
    why = refused(url.format(port=issuer.url.rpartition(":")[2]), connect_timeout_ms=500)
    assert "a document leads to a private address" in why
    assert not issuer.asked


NO_URL = "an address is no https or http URL"


@pytest.mark.parametrize("url, why", [
    ("file:///etc/passwd", NO_URL), ("ftp://127.0.0.1/", NO_URL), ("None", NO_URL), ("http://", NO_URL),
    ("http://127.0.0.1:99999999/", "an address is no URL"), ("http://127.0.0.1:1/", "Connection refused"),
])
def test_an_address_must_be_one_of_http(url, why):
    assert why in refused(url)


def test_keys_come_encrypted_where_issuers_have_to_be(issuer):
    assert refused(issuer.url + KEYS, require_https=True) == "an address is no https URL"


def test_the_broker_asks_for_plain_answers_only():
    assert issuer_documents._HEADERS["Accept-Encoding"] == "identity"
