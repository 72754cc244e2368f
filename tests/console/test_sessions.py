"""Sessions of the console: sign-in, the cookie, its secret, and what ends a session."""
import base64
import http.client
import json
import time

import jwt
import pytest
from cryptography.fernet import Fernet

from geminga.supervisor.admin.requests.sessions import COOKIE, HEADER, KEY_FILE, LONGEST, Sessions, TooLong
from geminga.workers.identity.credentials import Credentials

from ..harness import HANG_SECONDS, Broker, Stopwatch, eventually
from .browser import needs_browser

pytestmark = pytest.mark.slow
SECRET = "c2Vzc2lvbnMgb2YgdGhlIGNvbnNvbGUsIGZvciB0ZXN0cyBvbmx5IQ=="


def token(role: str, **claims) -> str:
    return jwt.encode({"sub": role, **claims}, base64.b64decode(SECRET), algorithm="HS256")


class Answer:
    def __init__(self, answer: http.client.HTTPResponse):
        self.status, self.headers, self.text = answer.status, answer.headers, answer.read().decode()

    @property
    def cookie(self) -> str:
        return self.headers["Set-Cookie"].partition(";")[0]


def ask(broker: Broker, method: str, path: str, body=None, **headers) -> Answer:
    """Send one request as a browser's script would, and return the answer with its headers."""
    host = broker.http_url.rpartition("/")[2]
    link = http.client.HTTPConnection(host, timeout=HANG_SECONDS)
    try:
        data = None if body is None else json.dumps(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        link.request(method, path, data, kind | {name.replace("_", "-"): text for name, text in headers.items()})
        return Answer(link.getresponse())
    finally:
        link.close()


def two_namespaces(broker, *paths):
    """Make acme/eu and acme/us, PUT the paths in each, and let the role reader produce and consume in acme/eu."""
    def make(method, path, body=None):
        answer = ask(broker, method, path, body, Authorization=f"Bearer {token('admin')}")
        assert answer.status in (200, 204), answer.text
    make("PUT", "/admin/v2/tenants/acme", {"adminRoles": [], "allowedClusters": ["standalone"]})
    for namespace in ("eu", "us"):
        make("PUT", f"/admin/v2/namespaces/acme/{namespace}")
        for path in paths:
            make("PUT", path.format(namespace=namespace))
    make("POST", "/admin/v2/namespaces/acme/eu/permissions/reader", ["produce", "consume"])
    return make


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A broker at which people sign in by token or password, with a super user and others."""
    import bcrypt
    folder = tmp_path_factory.mktemp("signing")
    (folder / "users").write_text(f"ops:{bcrypt.hashpw(b'right', bcrypt.gensalt(4)).decode()}\n")
    (folder / "geminga.toml").write_text(
        f'[authentication]\nmethods = ["token", "basic"]\nsecret_keys = ["data:;base64,{SECRET}"]\n'
        f'users = "{folder}/users"\nrefresh_interval_s = 1\n'
        '[authorization]\nenabled = true\nsuper_user_roles = ["admin", "ops"]\n')
    broker = Broker(folder / "data", "--config", str(folder / "geminga.toml"))
    try:
        broker.start()
        broker.users = folder / "users"
        yield broker
    finally:
        broker.close()


def sign_in(broker, **credentials) -> str:
    answer = ask(broker, "POST", "/console/sign-in", credentials)
    assert answer.status == 200, answer.text
    return answer.cookie


def secret_of(broker, cookie: str) -> str:
    page = ask(broker, "GET", "/", Cookie=cookie).text
    return page.partition('name="geminga-secret" content="')[2].partition('"')[0]


# -- in a browser: before the tests that fail, as wrong credentials from one address are answered later each time

@needs_browser
def test_somebody_signs_in_by_the_page_and_out_again(several, browser):
    browser.open(several.http_url + "/?x=1")
    browser.see("This broker asks who looks at it.")
    browser.fill("[name=user]", "ops")
    browser.fill("[name=password]", "wrong")
    browser.press("ENTER")
    browser.see("not accepted")      # wrong credentials from one address are answered later each time
    browser.fill("[name=password]", "right")
    browser.press("ENTER")
    browser.see("Signed in as ops")
    assert browser.url.endswith("/?x=1")
    assert browser.run("return document.cookie") == ""      # scripts do not see it
    browser.click("Sign out")
    browser.see("This broker asks who looks at it.")
    browser.open(several.http_url + "/").see("This broker asks who looks at it.")
    assert all("401" in problem for problem in browser.problems())      # the refused attempt


@needs_browser
def test_an_open_page_asks_to_sign_in_when_its_session_ends(several, browser):
    browser.open(several.http_url + "/")
    browser.fill("[name=token]", token("admin", exp=int(time.time()) + 4))
    browser.one("[name=token]").find_element("xpath", "ancestor::form//button").click()
    browser.see("ready")
    browser.see("This broker asks who looks at it.")
    browser.problems()


# -- the cookie

def test_a_cookie_brings_back_the_credentials(tmp_path):
    sessions = Sessions(tmp_path, 60)
    session = sessions.open(sessions.seal(Credentials("token", b"a.b.c")))
    assert (session.credentials.method, session.credentials.data) == ("token", b"a.b.c")
    assert len(session.secret) >= 20
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o077 == 0 or tmp_path.stat().st_mode & 0o077 == 0


def test_cookies_outlive_the_process_and_no_other_key_opens_them(tmp_path):
    cookie = Sessions(tmp_path, 60).seal(Credentials("token", b"a.b.c"))
    assert Sessions(tmp_path, 60).open(cookie) is not None
    (tmp_path / KEY_FILE).write_bytes(Fernet.generate_key())
    assert Sessions(tmp_path, 60).open(cookie) is None


@pytest.mark.parametrize("value", ["", "x", "gAAAA", "ü", "a" * 10_000])
def test_what_was_not_made_here_is_no_session(tmp_path, value):
    assert Sessions(tmp_path, 60).open(value) is None


def test_a_cookie_that_browsers_would_drop_is_not_made(tmp_path):
    with pytest.raises(TooLong):
        Sessions(tmp_path, 60).seal(Credentials("token", b"x" * LONGEST))


def test_a_cookie_is_for_this_site_only_and_hidden_from_scripts(several):
    answer = ask(several, "POST", "/console/sign-in", {"token": token("admin")})
    flags = {part.strip() for part in answer.headers["Set-Cookie"].split(";")[1:]}
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= flags and "Secure" not in flags      # it came without TLS


# -- signing in

def test_pages_send_those_without_credentials_to_the_sign_in_and_back(several):
    for elsewhere in ("//evil.example/", "/%5Cevil.example", "/%09/evil.example", "/%0A/evil.example",
                      "/%0D%09/evil.example", "/x%5C..%5C/evil.example", "%09//evil.example", "http:evil.example",
                      "javascript:evil", "evil.example"):
        answer = ask(several, "GET", f"/console/sign-in?next={elsewhere}")
        assert answer.status == 200 and "evil" not in answer.text and 'data-next="/"' in answer.text, elsewhere
    assert 'data-next="/console/topics?match=a%20b"' in ask(
        several, "GET", "/console/sign-in?next=%2Fconsole%2Ftopics%3Fmatch%3Da%2520b").text
    answer = ask(several, "GET", "/?a=1")
    assert (answer.status, answer.headers["Location"]) == (303, "/console/sign-in?next=/?a%3D1")
    assert ask(several, "GET", "/admin/v2/tenants").status == 401      # REST does not redirect


def test_both_kinds_of_credentials_open_pages_and_rest(several):
    for credentials in ({"token": token("admin")}, {"user": "ops", "password": "right"}):
        cookie = sign_in(several, **credentials)
        assert ask(several, "GET", "/", Cookie=cookie).status == 200
        assert ask(several, "GET", "/admin/v2/tenants", Cookie=cookie).status == 200


@pytest.mark.parametrize("body, status", [
    ({"token": "a.b.c"}, 401), ({"user": "ops", "password": "wrong"}, 401), ({"user": "ops"}, 400), ({}, 400),
    ([], 400), ({"token": 1}, 400), ({"token": "x", "more": "y"}, 400), ({"token": "\udcff"}, 400)])
def test_a_wrong_sign_in_gets_no_cookie(several, body, status):
    answer = ask(several, "POST", "/console/sign-in", body)
    assert answer.status == status and "Set-Cookie" not in answer.headers
    assert list(json.loads(answer.text)) == ["reason"]


def test_a_token_that_is_too_long_says_so(several):
    answer = ask(several, "POST", "/console/sign-in", {"token": token("admin", padding="x" * 4_000)})
    assert answer.status == 400 and "too long" in answer.text


# -- changes

def test_a_change_in_a_session_needs_the_secret_of_the_page(several):
    cookie = sign_in(several, token=token("admin"))
    path = "/admin/v2/tenants/by-cookie"
    tenant = {"adminRoles": [], "allowedClusters": ["standalone"]}
    answer = ask(several, "PUT", path, tenant, Cookie=cookie)
    assert answer.status == 403 and HEADER in answer.text
    assert ask(several, "PUT", path, tenant, Cookie=cookie, **{HEADER: "wrong"}).status == 403
    assert ask(several, "GET", path, Cookie=cookie).status == 404
    assert ask(several, "PUT", path, tenant, Cookie=cookie, **{HEADER: secret_of(several, cookie)}).status == 204
    line = json.loads((several.data_dir / "audit.log").read_text().splitlines()[-1])
    assert (line["role"], line["method"], line["request"]) == ("admin", "token", f"PUT {path}")


NOT_TEXT = "\xff\xfe", "secr\xe9t"      # http.client writes each character as a byte, so neither is UTF-8


@pytest.mark.parametrize("value", NOT_TEXT)
def test_a_secret_that_is_not_ascii_is_a_wrong_one(several, value):
    cookie = sign_in(several, token=token("admin"))
    answer = ask(several, "PUT", "/admin/v2/tenants/by-bytes", {}, Cookie=cookie, **{HEADER: value})
    assert answer.status == 403 and HEADER in answer.text


def test_a_header_that_is_not_ascii_is_never_an_error_of_the_brokers_own(several):
    value, topic = NOT_TEXT[0], "persistent/public/default/missing"
    admin = {"Authorization": f"Bearer {token('admin')}"}
    for header in ("Cookie", "Host", "Origin", "Sec-Fetch-Site", "Accept", "Last-Event-ID", "User-Agent", "Upgrade",
                   "Sec-WebSocket-Key", "X-Pulsar-ListenerName", "X-Requested-With", HEADER):
        said = f"{COOKIE}={value}" if header == "Cookie" else value
        for method, path in (
                ("GET", "/"), ("DELETE", "/admin/v2/tenants/missing"), ("GET", f"/lookup/v2/topic/{topic}"),
                ("POST", f"/topics/{topic}/subscription/s?wait=0"), ("GET", f"/ws/v2/reader/{topic}")):
            answer = ask(several, method, path, **admin | {header: said})
            assert answer.status != 500, (header, method, path, answer.text)
    # Few, as wrong guesses are answered late.
    assert ask(several, "GET", "/admin/v2/tenants", Authorization=f"Bearer {value}").status == 401
    assert "G290" not in several.log()


def test_a_principal_that_is_not_utf_8_is_nobody(several):
    """A proxy names the role for which it asks, here with bytes that are no text."""
    answer = ask(several, "GET", "/admin/v2/tenants", **{
        "Authorization": f"Bearer {token('admin')}", "X-Original-Principal": NOT_TEXT[0]})
    assert answer.status == 401


def test_another_sites_page_changes_nothing_even_with_cookie_and_secret(several):
    cookie = sign_in(several, token=token("admin"))
    answer = ask(several, "DELETE", "/admin/v2/tenants/by-cookie", Cookie=cookie, Origin="http://evil.example",
                 **{HEADER: secret_of(several, cookie)})
    assert answer.status == 403


def test_a_cookie_does_not_add_to_the_credentials_of_a_tool(several):
    """A request with an Authorization header is that role's, whatever cookie comes along."""
    cookie = sign_in(several, token=token("admin"))
    bearer = {"Authorization": f"Bearer {token('nobody')}"}
    assert ask(several, "GET", "/admin/v2/tenants", Cookie=cookie, **bearer).status == 401


# -- the end

def test_a_session_ends_when_its_token_expires(several):
    cookie = sign_in(several, token=token("admin", exp=int(time.time()) + 3))
    assert ask(several, "GET", "/", Cookie=cookie).status == 200
    eventually(lambda: ask(several, "GET", "/", Cookie=cookie).status == 303)


def test_a_session_ends_when_its_user_is_removed(several):
    cookie = sign_in(several, user="ops", password="right")
    before = several.users.read_text()
    try:
        several.users.write_text(before.replace("ops:", "other:"))
        eventually(lambda: ask(several, "GET", "/", Cookie=cookie).status == 303)
    finally:
        several.users.write_text(before)


def test_signing_out_takes_the_cookie(several):
    cookie = sign_in(several, token=token("admin"))
    answer = ask(several, "POST", "/console/sign-out", Cookie=cookie, **{HEADER: secret_of(several, cookie)})
    assert answer.status == 200 and f'{COOKIE}=""' in answer.headers["Set-Cookie"]


def test_an_ended_session_costs_no_growing_delay(several):
    """A browser that still shows an ended session asks again and again, and does not guess passwords."""
    watch = Stopwatch()
    for _ in range(20):
        assert ask(several, "GET", "/", Cookie=f"{COOKIE}=gone").status == 303
    assert watch.seconds() < 5


def test_pages_of_a_role_without_rights_leave_out_what_it_may_not_see(several):
    cookie = sign_in(several, token=token("nobody"))
    answer = ask(several, "GET", "/", Cookie=cookie)
    assert answer.status in (200, 403) and "owner-0" not in answer.text
