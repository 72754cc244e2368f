"""Sign-in to the console at an issuer: the way there and back, and ways that lead nowhere."""
import http.client
import json
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from geminga.supervisor.admin.requests.sessions import COOKIE, HEADER, Sessions
from geminga.supervisor.console.routes.issuer_sign_in import WAY_BACK

from .. import issuer as issuers
from ..harness import HANG_SECONDS, Broker
from ..issuer import AUDIENCE, AUTHORIZE, DISCOVERY, KEYS, TOKEN, answer
from .test_sessions import ask, secret_of

pytestmark = pytest.mark.slow
BEHIND = "console.example:8443"      # a proxy that ends TLS


@pytest.fixture(scope="module")
def issuer():
    with issuers.running() as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory, issuer):
    folder = tmp_path_factory.mktemp("issuer-sign-in")
    (folder / "geminga.toml").write_text(f"""
[authentication]
methods = ["token"]
[authentication.oidc]
issuers = ["{issuer.url}"]
audiences = ["{AUDIENCE}"]
require_https = false
console_client_id = "console"
unknown_key_interval_s = 1
[console]
url = "https://{BEHIND}"
[authorization]
enabled = true
super_user_roles = ["joe"]
""")
    own = Broker(folder / "data", "--config", str(folder / "geminga.toml"))
    try:
        yield own.start()
    finally:
        own.close()


@pytest.fixture(autouse=True)
def usual(issuer):
    yield
    issuer.instead.clear()
    issuer.person = "joe"


def cookies_of(answer) -> dict[str, str]:
    """Return the cookies that an answer sets, with their flags."""
    return {line.partition("=")[0]: line for line in answer.headers.get_all("Set-Cookie", ())}


def left(broker, issuer, next_: str = "/") -> tuple[str, str]:
    """Follow the button of the sign-in's page; return the address of the issuer's page, and the cookie."""
    moved = ask(broker, "GET", f"/console/sign-in/issuer?issuer={quote(issuer.url, safe='')}&next={quote(next_)}")
    assert moved.status == 303, moved.text
    return moved.headers["Location"], cookies_of(moved)[WAY_BACK].partition(";")[0]


def signed_in(address: str) -> str:
    """Sign in on the issuer's page; return the path to which it leads back."""
    parts = urlsplit(address)
    link = http.client.HTTPConnection(parts.netloc, timeout=HANG_SECONDS)
    try:
        link.request("GET", f"{parts.path}?{parts.query}")
        back = urlsplit(link.getresponse().headers["Location"])
    finally:
        link.close()
    return f"{back.path}?{back.query}"


def test_somebody_signs_in_at_the_issuer_and_out_again(broker, issuer):
    page = ask(broker, "GET", "/console/sign-in?next=/console/topics").text
    assert f"Sign in at {issuer.url.removeprefix('http://')}" in page and "/console/sign-in/issuer?issuer=" in page
    address, way_back = left(broker, issuer, "/console/topics")
    assert address.startswith(issuer.url + AUTHORIZE)
    came = ask(broker, "GET", signed_in(address), Cookie=way_back, Sec_Fetch_Site="cross-site")
    assert (came.status, came.headers["Location"]) == (303, "/console/topics"), came.text
    session, end = cookies_of(came)[COOKIE], cookies_of(came)[WAY_BACK]
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(session.split("; ")) and "Max-Age=0" in end
    cookie = session.partition(";")[0]
    assert "joe" in ask(broker, "GET", "/", Cookie=cookie).text
    assert ask(broker, "GET", "/admin/v2/tenants", Cookie=cookie).status == 200
    gone = ask(broker, "POST", "/console/sign-out", Cookie=cookie, **{HEADER: secret_of(broker, cookie)})
    assert "Max-Age=0" in cookies_of(gone)[COOKIE]


def test_the_issuer_is_asked_as_the_protocol_says(broker, issuer):
    address, way_back = left(broker, issuer)
    asked = {name: texts[0] for name, texts in parse_qs(urlsplit(address).query).items()}
    assert (asked["response_type"], asked["client_id"], asked["scope"]) == ("code", "console", "openid")
    assert asked["redirect_uri"] == f"{broker.http_url}/console/sign-in/return"
    assert asked["code_challenge_method"] == "S256" and len(asked["state"]) >= 32
    other, _ = left(broker, issuer)
    again = {name: texts[0] for name, texts in parse_qs(urlsplit(other).query).items()}
    assert asked["state"] != again["state"] and asked["code_challenge"] != again["code_challenge"]
    assert not [secret for secret in (asked["state"], asked["code_challenge"]) if secret in way_back]


def test_cookies_and_the_way_back_are_of_https_behind_a_proxy_that_ends_tls(broker, issuer):
    moved = ask(broker, "GET", f"/console/sign-in/issuer?issuer={quote(issuer.url, safe='')}", Host=BEHIND)
    address, way_back = moved.headers["Location"], cookies_of(moved)[WAY_BACK]
    assert parse_qs(urlsplit(address).query)["redirect_uri"] == [f"https://{BEHIND}/console/sign-in/return"]
    came = ask(broker, "GET", signed_in(address), Cookie=way_back.partition(";")[0], Host=BEHIND)
    assert came.status == 303 and "Secure" in way_back.split("; ")
    assert "Secure" in cookies_of(came)[COOKIE].split("; ")
    assert "Secure" not in cookies_of(ask(broker, "POST", "/console/sign-out", Host="localhost")).get(COOKIE, "")


def refused(broker, path: str, cookie: str = "") -> tuple[int, str]:
    said = ask(broker, "GET", path, **({"Cookie": cookie} if cookie else {}))
    assert COOKIE not in cookies_of(said)
    return said.status, said.text


def test_only_the_browser_that_left_comes_back(broker, issuer):
    address, way_back = left(broker, issuer)
    path = signed_in(address)
    other_way_back = left(broker, issuer)[1]
    for wrong, cookie in (
            (path, ""), (path, other_way_back), (path, f"{WAY_BACK}=x"), (path.replace("state=", "state=x"), way_back),
            ("/console/sign-in/return", way_back), ("/console/sign-in/return?state=%ff", way_back)):
        status, text = refused(broker, wrong, cookie)
        assert status == 400 and "did not begin in this browser" in text, wrong
    assert ask(broker, "GET", path, Cookie=way_back).status == 303
    status, text = refused(broker, path, way_back)      # a code is good for once
    assert status == 403 and "gives no token" in text


def test_cookies_of_two_kinds_do_not_stand_for_each_other(broker, issuer, tmp_path):
    address, way_back = left(broker, issuer)
    value = way_back.partition("=")[2]
    assert ask(broker, "GET", "/", Cookie=f"{COOKIE}={value}").status == 303      # to the sign-in
    came = ask(broker, "GET", signed_in(address), Cookie=way_back)
    session = cookies_of(came)[COOKIE].partition(";")[0].partition("=")[2]
    assert refused(broker, "/console/sign-in/return?state=", f"{WAY_BACK}={session}")[0] == 400
    sessions = Sessions(tmp_path, 60)
    assert sessions.decrypted(sessions.encrypted({"state": "x"}), 60) == {"state": "x"}


def test_another_issuers_answer_is_refused(broker, issuer):
    address, way_back = left(broker, issuer)
    path = signed_in(address).replace(quote(issuer.url, safe=""), quote("https://another", safe=""))
    status, text = refused(broker, path, way_back)
    assert status == 400 and "answer of another issuer" in text


def test_nobody_was_signed_in(broker, issuer):
    address, way_back = left(broker, issuer)
    state = parse_qs(urlsplit(address).query)["state"][0]
    status, text = refused(broker, f"/console/sign-in/return?error=access_denied&state={state}", way_back)
    assert status == 403 and "signed nobody in" in text


@pytest.mark.parametrize("tokens, why", [
    ({"access_token": "opaque"}, "no token that the broker can check"), ({}, "no token that the broker can check"),
    ({"access_token": 7, "id_token": ["a.b.c"]}, "no token that the broker can check"),
    ({"access_token": "a.b.c"}, "is not accepted here")], ids=str)
def test_an_answer_without_a_good_token_begins_no_session(broker, issuer, tokens, why):
    address, way_back = left(broker, issuer)
    issuer.instead[TOKEN] = lambda request: answer(request, 200, json.dumps(tokens).encode())
    status, text = refused(broker, signed_in(address), way_back)
    assert status == 403 and why in text


def test_the_identity_token_counts_where_only_the_issuer_can_read_the_other(broker, issuer):
    address, way_back = left(broker, issuer)
    tokens = {"access_token": "opaque", "id_token": issuer.token("joe").decode()}
    issuer.instead[TOKEN] = lambda request: answer(request, 200, json.dumps(tokens).encode())
    assert ask(broker, "GET", signed_in(address), Cookie=way_back).status == 303


def test_the_page_leads_to_issuers_of_the_configuration_only(broker, issuer):
    for wrong in "https://evil.example", "", issuer.url + "/":
        assert ask(broker, "GET", f"/console/sign-in/issuer?issuer={quote(wrong, safe='')}").status == 404
    address, way_back = left(broker, issuer, "//evil.example/")
    assert ask(broker, "GET", signed_in(address), Cookie=way_back).headers["Location"] == "/"


def test_asking_to_sign_in_asks_the_issuer_for_nothing_that_is_known(broker, issuer):
    left(broker, issuer)
    before = issuer.asked[DISCOVERY], issuer.asked[KEYS]
    for _ in range(20):
        left(broker, issuer)
    assert (issuer.asked[DISCOVERY], issuer.asked[KEYS]) == before
