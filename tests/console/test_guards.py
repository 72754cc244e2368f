"""What guards the console: headers of every page, foreign hosts, switches, and bounds."""
import http.client
import http.server
import json
import threading
from urllib.parse import urlsplit

import pytest

from geminga.supervisor.console import static_files
from geminga.supervisor.console.routes import live
from geminga.supervisor.console.routes.console import PARTS

from ..harness import HANG_SECONDS, eventually, request, unique_topic
from .browser import needs_browser
from .test_sessions import ask

pytestmark = pytest.mark.slow
BYTES_MAX = 300 << 10
PLAIN = sorted({page.path for part in PARTS for page in part.pages if "{" not in page.path})


def test_all_files_together_are_small():
    assert sum(len(file.content) for file in static_files._files().values()) < BYTES_MAX


@pytest.mark.parametrize("path", [*PLAIN, "/console/sign-in", "/console/nothing"])
def test_a_page_allows_nothing_from_elsewhere(own, path):
    answer = ask(own, "GET", path)
    assert answer.status == (404 if path == "/console/nothing" else 200), answer.text[:500]
    policy = dict(rule.strip().partition(" ")[::2] for rule in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert answer.headers["X-Frame-Options"] == "DENY" and answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    assert " style=" not in answer.text and "<style" not in answer.text and " onclick" not in answer.text
    assert "http://" not in answer.text.replace("http://www.w3.org", "") and "https://" not in answer.text


def test_files_may_be_kept_for_ever_under_the_address_of_their_content(own):
    address = static_files.address_of("console.css")
    answer = ask(own, "GET", address)
    assert answer.status == 200 and "immutable" in answer.headers["Cache-Control"]
    assert ask(own, "GET", "/console/static/older/console.css").headers["Cache-Control"] == "no-store"
    for name in ("nothing.js", "..%2ftext.toml", "..", "text.toml"):
        assert ask(own, "GET", f"{static_files.PREFIX}{static_files.version()}/{name}").status == 404


def test_a_page_is_refused_under_a_foreign_name(own):
    answer = ask(own, "GET", "/", Host="evil.example")
    assert answer.status == 403


def test_a_change_from_another_site_is_refused_though_nobody_signs_in(own):
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        assert ask(own, "PUT", "/admin/v2/tenants/evil", {}, **headers).status == 403


def test_streams_are_bounded(own, monkeypatch):
    """A page more than the bound gets an answer at once, and works without updates."""
    host, links = urlsplit(own.http_url), []
    try:
        for _ in range(live.STREAMS_MAX):
            link = http.client.HTTPConnection(host.hostname, host.port, timeout=HANG_SECONDS)
            link.request("GET", "/console/live?page=/")
            answer = link.getresponse()
            assert answer.status == 200
            links.append((link, answer))
        assert ask(own, "GET", "/console/live?page=/").status == 503
        assert ask(own, "GET", "/").status == 200
    finally:
        for link, answer in links:
            answer.close()
            link.close()
    eventually(lambda: _is_open(own))


def _is_open(own) -> bool:
    host = urlsplit(own.http_url)
    link = http.client.HTTPConnection(host.hostname, host.port, timeout=HANG_SECONDS)
    link.request("GET", "/console/live?page=/")
    answer = link.getresponse()
    answer.close()
    link.close()
    return answer.status == 200


@pytest.mark.parametrize("page", ["", "/console/nothing", "/admin/v2/tenants", "//evil.example/", "x"])
def test_only_pages_have_updates(own, page):
    answer = ask(own, "GET", f"/console/live?page={page}")
    assert answer.status == 404 and json.loads(answer.text)["reason"]


def test_a_switched_off_console_is_not_there(start_broker):
    broker = start_broker()
    assert request("GET", broker.http_url + "/")[0] == 200
    broker.stop()
    (broker.data_dir.parent / "off.toml").write_text("[console]\nenabled = false\n")
    broker.options = (*broker.options, "--config", str(broker.data_dir.parent / "off.toml"))
    broker.start()
    for path in ("/", "/console/topics", "/console/sign-in", static_files.address_of("console.js")):
        assert request("GET", broker.http_url + path)[0] == 404, path
    assert request("GET", broker.http_url + "/admin/v2/tenants")[0] == 200


def test_a_console_that_only_shows_lets_browsers_change_nothing(start_broker, tmp_path):
    (tmp_path / "shows.toml").write_text("[console]\nread_only = true\n")
    broker = start_broker("--config", str(tmp_path / "shows.toml"))
    topic = unique_topic().replace("://", "/")
    path = f"/admin/v2/{topic}"
    browsers = {"Sec-Fetch-Site": "same-origin"}, {"Origin": broker.http_url}      # the latter over HTTP by a name
    for browser in browsers:
        assert ask(broker, "PUT", path, {}, **browser).status == 403
    assert ask(broker, "PUT", path, {}).status == 204      # a tool
    taking = f"/topics/{topic}/subscription/s"
    for browser in browsers:
        assert ask(broker, "POST", taking, **browser).status == 403
        assert ask(broker, "GET", taking, **browser, **{"X-Requested-With": "script"}).status == 403
        for door in ("producer", "reader"):
            status = ask(broker, "GET", f"/ws/v2/{door}/{topic}", Upgrade="websocket", **browser).status
            assert status == 403, (door, browser)
    # by a name over plain HTTP a GET has neither header, also one that is typed into the address bar with a token
    unnamed = {"User-Agent": "Mozilla/5.0", "X-Requested-With": "script"}
    assert ask(broker, "GET", f"{taking}?wait=0", **unnamed).status == 403
    token = {"Authorization": "Bearer x", "Origin": broker.http_url}      # which a page cannot add to a handshake
    assert ask(broker, "GET", f"/ws/v2/producer/{topic}", Upgrade="websocket", **token).status == 400
    assert ask(broker, "POST", f"{taking}?wait=0").status == 200
    assert ask(broker, "GET", path + "/stats", **browsers[0]).status == 200
    assert ask(broker, "GET", path + "/stats", **unnamed).status == 200
    assert "read_only" in ask(broker, "GET", "/").text
    name = f"/console/actions/unload?topic={topic.replace('/', '://', 1)}"
    assert "disabled" in ask(broker, "GET", name).text


STATUS = """
const [path, how, done] = arguments;
fetch(path, how).then((answer) => done(answer.status), (error) => done(String(error)));
"""
SOCKET = """
const [path, done] = arguments;
const socket = new WebSocket(path);
socket.onopen = () => done("open");
socket.onerror = () => done("refused");
"""
PAGE = b"""<!doctype html><title>elsewhere</title><script>
const image = new Image();
image.onerror = () => { document.title = "asked"; };
image.src = decodeURIComponent(location.hash.slice(1));
</script>"""


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    """A page of another site, which has the browser load an image from the address behind its #."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)


@needs_browser
def test_a_browser_by_a_name_over_plain_http_is_taken_for_one(browser, start_broker, tmp_path):
    """There it does not say whose page asks: read_only holds all the same, and pages elsewhere take no messages."""
    (tmp_path / "shows.toml").write_text('[console]\nread_only = true\n[http]\nhosts = ["broker.example"]\n')
    broker = start_broker("--config", str(tmp_path / "shows.toml"))
    topic, port = unique_topic().replace("://", "/"), urlsplit(broker.http_url).port
    assert request("PUT", f"{broker.http_url}/admin/v2/{topic}")[0] == 204
    browser.open(f"http://broker.example:{port}/console/topics")
    run = browser.driver.execute_async_script
    assert run(STATUS, f"/admin/v2/{topic}/stats", {}) == 200
    assert run(STATUS, f"/admin/v2/{topic}-made", {"method": "PUT"}) == 403
    assert run(STATUS, f"/topics/{topic}/subscription/planted", {"method": "POST"}) == 403
    assert run(STATUS, f"/topics/{topic}/subscription/planted", {}) == 403
    assert run(SOCKET, f"ws://broker.example:{port}/ws/v2/producer/{topic}") == "refused"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        image = f"http://broker.example:{port}/topics/{topic}/subscription/planted"
        browser.open(f"http://pages.example:{server.server_port}/#{image}")
        eventually(lambda: browser.driver.title == "asked")
    finally:
        server.shutdown()
        server.server_close()
    told = json.loads(request("GET", f"{broker.http_url}/admin/v2/{topic}/stats")[1])
    assert (told["subscriptions"], told["publishers"]) == ({}, [])
    browser.problems()      # the browser tells of each request that was refused
