"""Requests that browsers send for pages of other sites are refused; those of tools are not."""
import base64
import contextlib
import http.client
import json
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from bcrypt import gensalt, hashpw

from ..harness import HANG_SECONDS, Broker, request, unique_topic

pytestmark = pytest.mark.slow

JSON = "application/json"
FORMS = "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain;charset=UTF-8"
FOREIGN = ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example:80", "xlocalhost",
           "0x7f000001", "[::1].evil.example", "evil.example:127.0.0.1", "", "127.0.0.1@evil.example")


def asked(broker, method, path, body=None, source=None, **headers):
    """Return (status, text) of a request.

    Headers are given by their names with _ for -, with a tuple for a header that is sent more than once; source: the
    caller's address.
    """
    where = urlsplit(broker.http_url).netloc
    with contextlib.closing(
        http.client.HTTPConnection(where, timeout=HANG_SECONDS, source_address=source and (source, 0))
    ) as connection:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host="Host" in sent, skip_accept_encoding=True)
        for name, value in sent.items():
            for one in value if isinstance(value, tuple) else (value,):
                connection.putheader(name, one)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def other_origins(broker):
    port = urlsplit(broker.http_url).port
    return (
        "http://evil.example",
        f"http://evil.example:{port}",
        f"http://127.0.0.1:{port + 1}",
        "http://127.0.0.1",
        "null",
        "",
        "file://",
    )


@pytest.fixture
def topic(broker):
    name = unique_topic("pages").partition("://")[2]
    assert request("PUT", f"{broker.http_url}/admin/v2/persistent/{name}")[0] == 204
    return f"/admin/v2/persistent/{name}"


def is_there(broker, topic):
    return topic.rpartition("/")[2] in request("GET", f"{broker.http_url}/admin/v2/persistent/public/default")[1]


# -- origins

@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "something-new", ("none", "cross-site")])
def test_a_page_that_the_browser_calls_foreign_changes_nothing(broker, topic, site):
    status, text = asked(broker, "DELETE", topic, Sec_Fetch_Site=site)
    assert (status, "Sec-Fetch-Site" in json.loads(text)["reason"]) == (403, True)
    assert is_there(broker, topic)


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_a_page_of_the_broker_may_change_what_its_user_may(broker, topic, site):
    assert asked(broker, "DELETE", topic, Sec_Fetch_Site=site, Origin=broker.http_url)[0] == 204
    assert not is_there(broker, topic)


def test_another_origin_changes_nothing_even_where_the_browser_does_not_say_which_site_it_is(broker, topic):
    for origin in other_origins(broker):
        assert asked(broker, "DELETE", topic, Origin=origin)[0] == 403, origin
        assert asked(broker, "DELETE", topic, Origin=origin, Sec_Fetch_Site="same-origin")[0] == 403, origin
    assert is_there(broker, topic)


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/admin/v2/brokers/shutdown"), ("POST", "/ops/v1/backup"),
    ("POST", "/admin/v2/namespaces/public/default/clearBacklog"),
    ("POST", "/admin/v2/namespaces/public/default/permissions/evil"),
    ("POST", "/admin/v2/namespaces/public/default/migration"),
    ("POST", "/admin/v2/clusters/standalone/migrate"), ("PUT", "/ops/v1/log-level"), ("POST", "/ops/v1/definitions"),
    ("POST", "/admin/v2/brokers/configuration/maxProducersPerTopic/1"), ("GET", "/admin/v2/brokers/health"),
    ("GET", "/admin/v2/persistent/public/default/from-a-page/partitions?checkAllowAutoCreation=true"),
    ("PUT", "/nothing/is/here")])
def test_whatever_a_page_of_another_site_asks_for_is_refused_before_it_is_looked_at(broker, method, path):
    for told in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        assert asked(broker, method, path, b"{}" if method != "GET" else None, Content_Type=JSON, **told)[0] == 403, (
            told
        )
    assert request("GET", f"{broker.http_url}/ready")[0] == 200


def test_reads_of_other_sites_are_answered_as_browsers_do_not_show_them_the_answers(broker):
    for path in ("/admin/v2/clusters", "/metrics"):
        assert asked(broker, "GET", path, Origin="http://evil.example", Sec_Fetch_Site="cross-site")[0] == 200


def test_a_page_that_asks_whether_it_may_is_not_told_that_it_may(broker, topic):
    status, _ = asked(broker, "OPTIONS", topic, Origin="http://evil.example", Access_Control_Request_Method="DELETE")
    assert status == 405


# -- bodies

MOZILLA = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"


def test_gets_that_change_something_are_for_tools_and_pages_of_the_broker(broker, topic):
    """Over plain HTTP by a name a browser does not say whose page asks, and Pulsar's tools send no proof."""
    made = topic + "-by-a-page"
    for path in (made + "/partitions?checkAllowAutoCreation=true", "/admin/v2/brokers/health"):
        assert asked(broker, "GET", path, User_Agent=MOZILLA)[0] == 403
        assert not is_there(broker, made)
        assert asked(broker, "GET", path, User_Agent=MOZILLA, Sec_Fetch_Site="same-origin")[0] == 200
        assert asked(broker, "GET", path, User_Agent="Pulsar-Java-v4.0.7")[0] == 200
    assert asked(broker, "GET", topic + "/partitions", User_Agent=MOZILLA)[0] == 200


@pytest.mark.parametrize("kind", FORMS)
def test_a_body_that_only_a_script_that_may_can_send_is_taken_for_json(broker, topic, kind):
    """A page cannot send a PUT unasked, whatever its body is: `curl -X PUT -d` names a form's type."""
    assert asked(broker, "PUT", topic + "/properties", b'{"a":"b"}', Content_Type=kind)[0] == 204
    assert asked(broker, "PUT", topic + "/properties", b"a=b", Content_Type=kind)[0] == 400
    assert asked(broker, "PUT", topic + "-parted/partitions", b"2", Content_Type=kind)[0] == 204
    assert asked(broker, "DELETE", topic + "-parted/partitions", Content_Type=kind)[0] == 204
    assert json.loads(request("GET", f"{broker.http_url}{topic}/properties")[1]) == {"a": "b"}


@pytest.mark.parametrize("kind", FORMS)
def test_a_body_that_a_form_could_send_is_refused_also_without_any_word_of_a_site(broker, topic, kind):
    for body in (b"5", b""):
        status, text = asked(broker, "POST", topic + "/messageTTL?messageTTL=5", body, Content_Type=kind)
        assert (status, "application/json" in text) == (403, True)
    assert request("GET", f"{broker.http_url}{topic}/messageTTL")[1] == ""


def test_bodies_are_json_and_one_without_a_type_is_taken_for_it(broker, topic):
    for number, kind in enumerate((JSON, "application/json;charset=utf-8",
                                   "application/vnd.partitioned-topic-metadata+json", None)):
        told = {"Content_Type": kind} if kind else {}
        assert asked(broker, "PUT", topic + "/properties", json.dumps({str(number): "b"}).encode(), **told)[0] == 204
    assert asked(broker, "PUT", topic + "/properties", b"{}", Content_Type="application/octet-stream")[0] == 415
    assert set(json.loads(request("GET", f"{broker.http_url}{topic}/properties")[1])) == set("0123")


def test_tools_that_upload_functions_are_told_that_there_are_none(broker):
    assert (
        asked(
            broker,
            "POST",
            "/admin/v3/functions/public/default/f",
            b"--x--",
            Content_Type="multipart/form-data; boundary=x",
        )[0]
        == 409
    )


# -- hosts

@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_name_is_refused_for_reads_too(broker, topic, host):
    lookup = "/lookup/v2/topic/" + topic.removeprefix("/admin/v2/")
    for method, path in (("GET", "/admin/v2/clusters"), ("GET", "/metrics"), ("GET", "/ops/v1/status"),
                         ("GET", "/nothing"), ("GET", lookup), ("DELETE", topic)):
        status, text = asked(broker, method, path, Host=host)
        assert (status, "hosts of [http]" in text) == (403, True), (method, path, status, text)
    assert is_there(broker, topic)


def test_not_even_its_head_is_told_by_a_foreign_name(broker):
    assert asked(broker, "HEAD", "/metrics", Host="evil.example")[0] == 403
    assert asked(broker, "HEAD", "/metrics", Host="localhost")[0] == 200


def test_one_foreign_name_of_two_is_enough(broker):
    for hosts in (("localhost", "evil.example"), ("evil.example", "localhost")):
        assert asked(broker, "GET", "/admin/v2/clusters", Host=hosts)[0] in (400, 403)


def test_addresses_and_names_of_the_host_are_the_brokers(broker):
    for host in ("localhost", "LocalHost:1", "localhost.", "127.0.0.1:8080", "10.1.2.3", "[::1]:8080", "[2001:db8::1]",
                 "2001:db8::1", socket.gethostname(), socket.getfqdn() + ":8080"):
        assert asked(broker, "GET", "/admin/v2/clusters", Host=host)[0] == 200, host


def test_a_request_of_http_1_0_needs_no_host(broker):
    with socket.create_connection(urlsplit(broker.http_url).netloc.split(":")) as connection:
        connection.sendall(b"GET /admin/v2/clusters HTTP/1.0\r\n\r\n")
        assert b" 200 " in connection.makefile("rb").readline()


def test_probes_of_load_balancers_are_answered_whatever_name_they_use(broker):
    for path in ("/ready", "/status.html", "/admin/v2/brokers/ready"):
        assert asked(broker, "GET", path, Host="pool-member-7.invalid")[0] == 200


def test_names_are_configured_and_a_reload_changes_them(tmp_path):
    place = tmp_path / "geminga.toml"
    listeners = 'advertised_listeners = ["in:pulsar://127.0.0.1:6650", "out:pulsar://out.example:6650"]'
    place.write_text(f'[http]\nhosts = ["Proxy.Example"]\n[network]\n{listeners}\n')
    broker = Broker(tmp_path / "data", "--config", str(place), "--workers", "1", "--owners", "1")

    def answered():
        return [asked(broker, "GET", "/admin/v2/clusters", Host=name)[0]
                for name in ("proxy.example:80", "advertised.example", "out.example:8080", "later.example")]

    with contextlib.closing(broker):
        broker.start()
        assert answered() == answered() == [200, 403, 200, 403]
        assert broker.log().count("'later.example'") == 1
        place.write_text('[http]\nhosts = ["later.example"]\n[network]\nadvertised_address = "advertised.example"\n')
        assert reloaded(broker) == 0
        assert answered() == [403, 200, 403, 200]
        assert broker.log().count("'proxy.example:80'") == 1


def reloaded(broker):
    geminga = Path(sys.executable).with_name("geminga")
    return subprocess.run(
        [geminga, "reload", "--data-dir", broker.data_dir], capture_output=True, check=False
    ).returncode


# -- passwords, which browsers send by themselves

def test_the_right_password_helps_no_page_of_another_site(tmp_path):
    (tmp_path / "users").write_text(f"admin:{hashpw(b'secret', gensalt(4)).decode()}\n")
    (tmp_path / "geminga.toml").write_text(f'[authentication]\nmethods = ["basic"]\nusers = "{tmp_path}/users"\n'
                                           '[authorization]\nenabled = true\nsuper_user_roles = ["admin"]\n')
    broker = Broker(tmp_path / "data", "--config", str(tmp_path / "geminga.toml"), "--workers", "1", "--owners", "1")
    known = {"Authorization": "Basic " + base64.b64encode(b"admin:secret").decode()}
    path = "/admin/v2/persistent/public/default/t"
    with contextlib.closing(broker):
        broker.start()
        assert asked(broker, "PUT", path, **known)[0] == 204
        for told in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            assert asked(broker, "DELETE", path, **known, **told)[0] == 403
        assert asked(broker, "POST", path + "/terminate", **known, Content_Type=FORMS[0])[0] == 403
        assert asked(broker, "GET", "/metrics", **known, Host="evil.example")[0] == 403
        # the browser is not asked for a password either
        assert asked(broker, "GET", "/admin/v2/tenants", Host="evil.example")[0] == 403
        assert asked(broker, "DELETE", path, **known)[0] == 204
        refused = [json.loads(line) for line in (broker.data_dir / "audit.log").read_text().splitlines()
                   if '"status": 403' in line]
        assert [one["request"] for one in refused] == [f"DELETE {path}"] * 3 + [f"POST {path}/terminate"]


# -- where backups go

def backed_up(broker, folder, **more):
    """Ask for a backup; return (status, text)."""
    return asked(broker, "POST", "/ops/v1/backup", json.dumps({"folder": str(folder)}).encode(), Content_Type=JSON,
                 **more)


def test_backups_over_http_go_to_folders_that_were_named(tmp_path):
    place, allowed = tmp_path / "geminga.toml", tmp_path / "allowed"
    place.write_text(f'[http]\nbackup_folders = ["{allowed}"]\n')
    broker = Broker(tmp_path / "data", "--config", str(place), "--workers", "1", "--owners", "1")
    (tmp_path / "link").symlink_to(tmp_path)
    with contextlib.closing(broker):
        broker.start()
        for folder in (tmp_path / "other", f"{allowed}/../other", f"{allowed}x", tmp_path / "link" / "other"):
            status, text = backed_up(broker, folder)
            assert (status, "backup_folders" in text) == (403, True), text
        assert not (tmp_path / "other").exists()
        for folder in (allowed, allowed / "below", tmp_path / "link" / "allowed"):
            assert backed_up(broker, folder, source="127.0.0.2")[0] == 200


def test_a_caller_elsewhere_that_nobody_has_authenticated_cannot_have_the_broker_write_a_backup(broker, tmp_path):
    status, text = backed_up(broker, tmp_path / "made", source="127.0.0.2")
    assert (status, "backup_folders" in text, (tmp_path / "made").exists()) == (403, True, False)
    assert backed_up(broker, tmp_path / "made")[0] == 200
