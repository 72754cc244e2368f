"""`geminga login`: a person signs in at an issuer, and commands use and refresh the tokens of a context."""
import base64
import json
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest

from geminga.supervisor.configuration import contexts, sign_in, target
from geminga.supervisor.main import main

from .. import issuer as issuers
from ..harness import HANG_SECONDS, Broker
from ..issuer import AUDIENCE, DEVICE, DISCOVERY, TOKEN, answer

CLIENT = "geminga-command"


@pytest.fixture
def issuer():
    with issuers.running() as running:
        yield running


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The user's configuration, with one context."""
    for name in "GEMINGA_CONTEXT", "PULSAR_CLIENT_CONF", "GEMINGA_DATA_DIR":
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    nowhere = {"url": "pulsar://127.0.0.1:1", "admin_url": "http://127.0.0.1:1"}
    contexts.save(contexts.Contexts({"prod": nowhere}, "prod"))
    return tmp_path / "geminga/contexts.toml"


def login(issuer, *more: str) -> int:
    return main(["login", "--issuer", issuer if isinstance(issuer, str) else issuer.url, "--client-id", CLIENT, *more])


def stored(home) -> dict:
    return tomllib.loads(home.read_text())["contexts"]["prod"]


def token_of_commands() -> str:
    return target.of({}).credentials.data


@pytest.mark.slow
def test_commands_have_the_rights_of_whoever_signed_in(tmp_path, home, issuer, capsys):
    (tmp_path / "geminga.toml").write_text(f"""
[authentication]
methods = ["token"]
[authentication.oidc]
issuers = ["{issuer.url}"]
audiences = ["{AUDIENCE}"]
require_https = false
[authorization]
enabled = true
super_user_roles = ["joe"]
""")
    broker = Broker(tmp_path / "data", "--config", str(tmp_path / "geminga.toml")).start()
    try:
        assert main(["context", "set", "prod", "--url", broker.service_url, "--admin-url", broker.http_url]) == 0
        assert main(["admin", "tenants", "list"]) == 1
        issuer.pending = 2
        assert login(issuer) == 0
        told = capsys.readouterr().out
        assert f"Open {issuer.url}/enter in a browser, and enter the code WDJB-MJHT" in told
        assert "Context prod is signed in; its token is refreshed from 2" in told
        assert main(["admin", "tenants", "list"]) == 0 and "public" in capsys.readouterr().out
        assert main(["produce", "orders", "hello"]) == 0
        issuer.person = "jim"
        assert login(issuer) == 0 and main(["admin", "tenants", "list"]) == 1
    finally:
        broker.close()


def test_a_token_is_refreshed_once_it_has_expired_and_not_before(home, issuer):
    issuer.lifetime_s = 3600
    assert login(issuer) == 0
    first = token_of_commands()
    assert first == stored(home)["auth_params"].removeprefix("token:") and issuer.asked[TOKEN] == 1
    values = stored(home)
    contexts.save(contexts.Contexts({"prod": values | {"expires_s": int(time.time()) + 29}}, "prod"))
    second = token_of_commands()
    assert second != first and second == stored(home)["auth_params"].removeprefix("token:")
    assert token_of_commands() == second and issuer.asked[TOKEN] == 2
    assert stored(home)["refresh_token"] in issuer.refreshing


def test_commands_beside_each_other_refresh_once(home, issuer):
    """An issuer takes a token to refresh with only once, and many end the sign-in if it comes again."""
    assert login(issuer) == 0
    contexts.save(contexts.Contexts({"prod": stored(home) | {"expires_s": 1}}, "prod"))
    together = threading.Barrier(8)

    def command(_) -> str:
        together.wait()
        return target.of({}).credentials.data
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(command, range(8)))
    assert len(tokens) == 1 and issuer.asked[TOKEN] == 2


@pytest.mark.parametrize("words", [("set", "east", "--url", "pulsar://east"), ("use", "prod"), ("remove", "west")])
def test_changes_of_contexts_wait_for_a_refresh(home, words):
    """Else they would put back the token to refresh with that the issuer has just taken."""
    known = contexts.load()
    known.by_name["west"] = known.by_name["prod"]
    contexts.save(known)
    change = threading.Thread(target=main, args=(["context", *words],))
    with contexts.locked():
        change.start()
        change.join(0.2)
        assert change.is_alive()
        prod = known.by_name["prod"] | {"refresh_token": "new"}
        contexts.save(known._replace(by_name={**known.by_name, "prod": prod}))
    change.join(HANG_SECONDS)
    assert stored(home)["refresh_token"] == "new"


def test_a_sign_in_that_has_ended_is_told_with_its_remedy(home, issuer, capsys):
    assert login(issuer) == 0
    contexts.save(contexts.Contexts({"prod": stored(home) | {"expires_s": 1}}, "prod"))
    issuer.refreshing.clear()
    assert main(["admin", "tenants", "list"]) == 2
    assert capsys.readouterr().err == ("geminga: context prod gets no new token: invalid_grant; to sign in again: "
                                       "geminga login prod\n")


def test_credentials_of_the_command_line_need_no_sign_in(home, issuer):
    assert login(issuer) == 0
    contexts.save(contexts.Contexts({"prod": stored(home) | {"expires_s": 1}}, "prod"))
    issuer.refreshing.clear()
    assert target.of({"auth_params": "token:another"}).credentials.data == "another"


def test_the_next_sign_in_needs_no_options(home, issuer):
    assert login(issuer, "--audience", AUDIENCE, "--scope", "openid") == 0
    before = stored(home)
    assert main(["login"]) == 0
    after = stored(home)
    assert before["refresh_token"] != after["refresh_token"]
    assert {name: after[name] for name in sign_in.ASKED} == {
        "issuer": issuer.url, "client_id": CLIENT, "scope": "openid", "audience": AUDIENCE}


def test_secrets_are_starred_and_the_file_is_the_users(home, issuer, capsys):
    assert login(issuer) == 0
    secrets = stored(home)["refresh_token"], stored(home)["auth_params"].removeprefix("token:")
    told = capsys.readouterr().out
    for words in ("context", "show"), ("context", "list"), ("context", "show", "-o", "json"):
        assert main(list(words)) == 0
        told += capsys.readouterr().out
    assert not [secret for secret in secrets if secret in told]
    assert home.stat().st_mode & 0o777 == 0o600


def test_other_credentials_take_the_place_of_a_sign_in(home, issuer):
    assert login(issuer) == 0
    assert main(["context", "set", "prod", "--auth-params", "token:another"]) == 0
    assert token_of_commands() == "another" and not {"refresh_token", "expires_s"} & stored(home).keys()


def test_a_token_without_an_expiry_is_never_refreshed(home, issuer):
    issuer.instead[TOKEN] = lambda request: answer(request, 200, json.dumps({"access_token": "a.b.c"}).encode())
    assert login(issuer) == 0
    assert token_of_commands() == "a.b.c" and "expires_s" not in stored(home)


def test_the_identity_token_counts_where_only_the_issuer_can_read_the_other(home, issuer):
    tokens = {"access_token": "opaque", "id_token": "a.b.c", "expires_in": 3600}
    issuer.instead[TOKEN] = lambda request: answer(request, 200, json.dumps(tokens).encode())
    assert login(issuer) == 0 and token_of_commands() == "a.b.c"


@pytest.mark.parametrize("answered", ["opaque", None])
@pytest.mark.parametrize("lifetime", [7 * 86_400, "3600", float("nan"), float("inf"), None])
def test_a_token_that_is_used_expires_when_it_says(home, issuer, answered, lifetime):
    """The lifetime of the answer is another token's, a text, or missing."""
    token = issuer.token(exp=2_000_000_000).decode()
    tokens = {"access_token": answered or token, "id_token": token, "expires_in": lifetime}
    issuer.instead[TOKEN] = lambda request: answer(request, 200, json.dumps(tokens).encode())
    assert login(issuer) == 0 and stored(home)["expires_s"] == 2_000_000_000


@pytest.mark.parametrize("expiry", [float("inf"), float("nan"), 10**30, -1, "soon", None, []], ids=str)
def test_an_expiry_that_is_no_time_is_none(home, issuer, expiry):
    token = issuer.token()
    content = base64.urlsafe_b64encode(json.dumps({"exp": expiry}).encode()).decode().rstrip("=")
    tokens = {"access_token": f"{token.decode().split('.')[0]}.{content}.x"}
    issuer.instead[TOKEN] = lambda request: answer(request, 200, json.dumps(tokens).encode())
    assert login(issuer) == 0 and "expires_s" not in stored(home)


def says(status: int, **fields):
    return lambda request: answer(request, status, json.dumps(fields).encode())


@pytest.mark.slow
@pytest.mark.parametrize("path, instead, complaint", [
    (TOKEN, says(400, error="access_denied"), "refuses the sign-in: access_denied"),
    (TOKEN, says(400, error="expired_token"), "refuses the sign-in: expired_token"),
    (TOKEN, says(400, error="\x1b[2J"), "refuses the sign-in: its answer has status 400"),
    (TOKEN, says(302), "refuses the sign-in: its answer has status 302"),
    (TOKEN, says(200, access_token="opaque"), "gives no token that a broker can check"),
    (TOKEN, says(200), "gives no token that a broker can check"),
    (DEVICE, says(401, error="invalid_client"), "gives no code: invalid_client"),
    (DEVICE, says(200, user_code=7), "gives no code"),
    (DISCOVERY, says(200, issuer="https://another"), "is no issuer by this name"),
    (DISCOVERY, says(404), "is no issuer by this name: its answer has status 404"),
    (DISCOVERY, lambda request: answer(request, 200, b"[" * 1_000_000), "is no issuer by this name"),
    (DISCOVERY, lambda request: request.wfile.write(b"nonsense\n"), "does not answer: BadStatusLine"),
])
def test_an_issuer_that_refuses_changes_nothing(home, issuer, capsys, path, instead, complaint):
    before, issuer.instead[path] = home.read_text(), instead
    assert login(issuer) == 1
    told = capsys.readouterr().err
    assert complaint in told and told.endswith("\n") and told[:-1].isprintable()
    assert home.read_text() == before


def test_secrets_go_nowhere_in_the_clear(home, issuer, capsys):
    assert login("http://id.example.com") == 1
    assert "'http://id.example.com' is no https:// address" in capsys.readouterr().err
    elsewhere = {"issuer": issuer.url, "device_authorization_endpoint": "http://id.example.com/device"}
    issuer.instead[DISCOVERY] = says(200, **elsewhere)
    assert login(issuer) == 1
    assert "has no device_authorization_endpoint with an https:// address" in capsys.readouterr().err


def test_a_redirect_is_not_followed(home, issuer):
    for path in DISCOVERY, TOKEN:
        issuer.instead = {path: lambda request: answer(request, 302, b"{}", Location=f"{issuer.url}/elsewhere")}
        assert login(issuer) == 1 and issuer.asked[path] and not issuer.asked["/elsewhere"]


def test_an_issuer_that_is_away_is_told(home, capsys):
    assert login("http://127.0.0.1:1") == 1
    assert capsys.readouterr().err == "geminga: http://127.0.0.1:1 does not answer: Connection refused\n"


def test_an_issuer_that_asks_for_patience_is_asked_less(issuer):
    said = iter(["authorization_pending", "slow_down", "authorization_pending"])

    def slow(request) -> None:
        error = next(said, None)
        answer(request, *((400, json.dumps({"error": error}).encode()) if error else
                          (200, b'{"access_token": "a.b.c"}')))
    issuer.instead[TOKEN] = slow
    who, slept = {"issuer": issuer.url, "client_id": CLIENT}, []
    code = sign_in.begin(who)._replace(interval_s=2)
    assert sign_in.finish(who, code, slept.append)["auth_params"] == "token:a.b.c"
    assert slept == [2, 7, 7]


def test_a_code_that_nobody_enters_ends(issuer):
    issuer.pending = 10**9
    who = {"issuer": issuer.url, "client_id": CLIENT}
    with pytest.raises(sign_in.Refused, match="nobody has entered the code in time"):
        sign_in.finish(who, sign_in.begin(who)._replace(lifetime_s=0.05))


@pytest.mark.parametrize("words, complaint", [
    (["login"], "--issuer is needed: context prod has none yet"),
    (["login", "--issuer", "https://id.example.com"], "--client-id is needed"),
    (["login", "prd"], "there is no context 'prd', did you mean prod?"),
])
def test_a_mistake_is_one_line(home, capsys, words, complaint):
    assert main(words) == 2
    assert complaint in capsys.readouterr().err
