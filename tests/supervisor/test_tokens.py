"""`geminga admin tokens`, and the credentials of our own commands: keys and tokens fit those of Apache Pulsar's tool.
"""
import base64
import json
import stat
import time

import click
import jwt
import pytest

from geminga.supervisor.main import main
from geminga.workers.identity.authentication import Authenticator
from geminga.workers.identity.credentials import Credentials
from geminga.workers.identity.options import AuthenticationOptions, IdentityOptions
from geminga.workers.pulsar_client import credentials

# Keys made by `pulsar tokens` of Apache Pulsar 4.0, and a token for "me" with each.
PULSARS_SECRET = "VYFmrgLV0pat/tRofdGdh6Gn8v+6aNpQsTtRQre31a0="
BY_SECRET = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.tHRqx8Fi-LsWhdjDyNTOM8eXJPJbvAP9EGqTK4zBLKE"
PULSARS_PUBLIC = ("MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE9xCccDecDL6Js1WVT1jAVirMyEti7sNW0fMUunpEc/"
                  "mQtO67tYQ1A4eD4QqsQvvPsc5RBDz7b/HN8gCQKZhc8Q==")
BY_PRIVATE = ("eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJtZSJ9."
              "n8-iUaz8ZZ5m-eVTv3ljDFqAVXrFq8RTnyC4I-WSNusXZW052moogSJ5D8MqJD_g1562QkS0cueSyg32pP7fvQ")


@pytest.fixture
def run(capfdbinary, monkeypatch):
    """run(words...): exit status, standard output, complaint."""
    for variable in "TOKEN", "GEMINGA_AUTH_PLUGIN", "GEMINGA_AUTH_PARAMS":
        monkeypatch.delenv(variable, raising=False)

    def run(*words):
        status = main(["admin", "tokens", *map(str, words)])
        printed = capfdbinary.readouterr()
        return status, printed.out, printed.err.decode()
    return run


def role(token: bytes, **options) -> str:
    authenticator = Authenticator(IdentityOptions(authentication=AuthenticationOptions(methods=("token",), **options)))
    return authenticator.identify(Credentials("token", token.strip())).role


@pytest.mark.parametrize("algorithm, size", [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_key_and_its_tokens(run, tmp_path, algorithm, size):
    path = tmp_path / "secret.key"
    assert run("create-secret-key", "-a", algorithm, "--output", path) == (0, b"", "")
    assert len(path.read_bytes()) == size and stat.S_IMODE(path.stat().st_mode) == 0o600
    status, token, _ = run("create", "--secret-key", f"file://{path}", "--subject", "joe")
    assert status == 0 and token.endswith(b"\n") and jwt.get_unverified_header(token.strip()) == {"alg": algorithm}
    assert role(token, secret_keys=(str(path),)) == "joe"
    status, said, _ = run("validate", "-sk", path, token.decode().strip())
    assert (status, json.loads(said)) == (0, {"sub": "joe"})


def test_a_secret_key_as_text(run):
    status, key, _ = run("create-secret-key", "--base64")
    assert status == 0 and len(base64.b64decode(key, validate=True)) == 32
    status, token, _ = run("create", "-sk", f"data:;base64,{key.decode()}", "-s", "joe")
    assert role(token, secret_keys=(key.decode(),)) == "joe"
    assert len(run("create-secret-key")[1]) == 32


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512"])
def test_a_key_pair_and_its_tokens(run, tmp_path, algorithm):
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    assert run("create-key-pair", "-a", algorithm, "--output-private-key", private, "--output-public-key", public) == (
        0,
        b"",
        "",
    )
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    _status, token, _ = run("create", "-a", algorithm, "--private-key", private, "-s", "joe", "-hs", "kid=one",
                            "--headers", "x=y")
    assert jwt.get_unverified_header(token.strip()) == {"alg": algorithm, "kid": "one", "x": "y"}
    assert role(token, public_keys=(f"file://{public}",), public_key_algorithm=algorithm) == "joe"
    (tmp_path / "token").write_bytes(token)
    assert run("validate", "-a", algorithm, "-pk", public, "-f", tmp_path / "token")[:2] == (0, b'{"sub": "joe"}\n')
    other = "ES256" if algorithm == "RS256" else "RS256"
    assert run("validate", "-a", other, "-pk", public, "-f", tmp_path / "token")[0] == 1


def test_tokens_of_apache_pulsar(run):
    assert role(BY_SECRET.encode(), secret_keys=(PULSARS_SECRET,)) == "me"
    assert role(BY_PRIVATE.encode(), public_keys=(PULSARS_PUBLIC,), public_key_algorithm="ES256") == "me"
    assert (
        run("validate", "-sk", PULSARS_SECRET, BY_SECRET)[:2]
        == run("validate", "-a", "ES256", "-pk", PULSARS_PUBLIC, BY_PRIVATE)[:2]
        == (0, b'{"sub": "me"}\n')
    )
    assert run("create", "-sk", PULSARS_SECRET, "-s", "me")[1].decode().strip() == BY_SECRET


def test_how_long_a_token_is_good(run):
    for text, seconds in ("1h", 3600), ("30m", 1800), ("3d", 3 * 86400), ("10y", 10 * 365 * 86400):
        before = int(time.time())
        _, token, _ = run("create", "-sk", PULSARS_SECRET, "-s", "joe", "--expiry-time", text)
        assert 0 <= jwt.decode(token.strip(), options={"verify_signature": False})["exp"] - before - seconds <= 60
    assert run("create", "-sk", PULSARS_SECRET, "-s", "joe", "-e", "soon")[0] == 2
    _, expired, _ = run("create", "-sk", PULSARS_SECRET, "-s", "joe", "-e", "-10s")
    status, said, complaint = run("validate", "-sk", PULSARS_SECRET, expired.decode().strip())
    assert (status, said) == (1, b"") and "expired" in complaint


def test_what_a_token_says_is_shown(run, tmp_path, monkeypatch):
    """A token is shown wherever it comes from, and whoever has signed it."""
    token = jwt.encode({"sub": "joe"}, "nobody knows this key; it is long enough", "HS256", headers={"typ": None})
    (tmp_path / "token").write_text(token + "\n")
    shown = 0, b'{"alg":"HS256"}\n---\n{"sub":"joe"}\n', ""
    assert run("show", token) == run("show", "-f", tmp_path / "token") == shown
    monkeypatch.setenv("TOKEN", token)
    assert run("show") == shown
    status, said, complaint = run("validate", "-sk", PULSARS_SECRET)
    assert (status, said) == (1, b"") and "not valid" in complaint


@pytest.mark.parametrize("words, status", [
    (["create", "-s", "joe"], 2), (["create", "-s", "joe", "-sk", PULSARS_SECRET, "-pk", "x"], 2),
    (["create", "-sk", PULSARS_SECRET], 2),
    (["create", "-s", "joe", "-sk", "{folder}/absent"], 1), (["create", "-s", "joe", "-sk", "data:;base64,AAAA"], 1),
    (["create", "-s", "joe", "-pk", PULSARS_SECRET], 1),
    (["create", "-s", "joe", "-sk", PULSARS_SECRET, "-hs", "alg=none"], 2),
    (["validate", "x.y.z"], 2), (["validate", "-sk", PULSARS_SECRET, "x.y.z"], 1), (["show", "x"], 1),
    (["show", "x.ÿ.z"], 1),
    (["show"], 2), (["create-secret-key", "-o", "{folder}/absent/key"], 1), (["create-key-pair"], 2),
])
def test_wrong_words(run, tmp_path, words, status):
    found, said, complaint = run(*(word.replace("{folder}", str(tmp_path)) for word in words))
    assert (found, said) == (status, b"") and "Traceback" not in complaint and PULSARS_SECRET not in complaint


# -- credentials of our own commands

def test_credentials_by_pulsars_names(tmp_path):
    path = tmp_path / "token"
    path.write_text("a.b.c\n")
    token = credentials.Credentials("token", "a.b.c")
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    for params in "a.b.c", "token:a.b.c", f"file://{path}", f"file:{path}", '{"token": "a.b.c"}':
        assert credentials.of(plugin, params) == credentials.of("token", params) == token
    assert token.headers() == ["Authorization: Bearer a.b.c"] and "a.b.c" not in repr(token)
    basic = credentials.Credentials("basic", "joe:x:y")
    for params in "userId:joe,password:x:y", '{"userId": "joe", "password": "x:y"}':
        assert credentials.of("AuthenticationBasic", params) == basic
    assert basic.headers() == [f"Authorization: Basic {base64.b64encode(b'joe:x:y').decode()}"]
    tls = credentials.of("AuthenticationTls", "tlsCertFile:/a/cert.pem,tlsKeyFile:/a/key.pem")
    assert tls == credentials.Credentials("tls", "", "/a/cert.pem", "/a/key.pem") and not tls.headers()
    assert credentials.of(None, None) == credentials.of("AuthenticationDisabled", "x") == credentials.NOBODY


@pytest.mark.parametrize(("params", "method"), [
    ("token:a.b.c", "token"), ('{"token": "a.b.c"}', "token"), ("userId:joe,password:x", "basic"),
    ('{"userId": "joe", "password": "x"}', "basic"), ("tlsCertFile:/a/cert.pem,tlsKeyFile:/a/key.pem", "tls")])
def test_parameters_alone_are_shown_to_the_broker(params, method, tmp_path):
    """They were left out without a word, and every broker refused."""
    assert credentials.of(None, params) == credentials.of(method, params) != credentials.NOBODY
    (tmp_path / "token").write_text("a.b.c")
    assert credentials.of(None, f"file:{tmp_path}/token").data == "a.b.c"


@pytest.mark.parametrize("params", ["a.b.c", "{", "[1]", "x:y"])
def test_parameters_of_no_known_form_need_a_plugin(params):
    with pytest.raises(click.UsageError, match="--auth-params needs --auth-plugin, unless"):
        credentials.of(None, params)


@pytest.mark.parametrize("plugin, params", [
    ("AuthenticationAthenz", "x"), ("token", ""), ("token", "file://{folder}/absent"), ("token", "a\r\nb"),
    ("token", "{}"), ("token", "{"),
    ("basic", ""), ("basic", '{"userId": "joe"}'), ("tls", "tlsCertFile:x"),
])
def test_credentials_that_are_none(plugin, params, tmp_path, capsys):
    params = params.replace("{folder}", str(tmp_path))
    assert main(["admin", "--auth-plugin", plugin, "--auth-params", params, "tenants", "list"]) == 2
    assert "Traceback" not in capsys.readouterr().err
