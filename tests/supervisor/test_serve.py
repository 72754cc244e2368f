"""The geminga command as its user meets it: its output, its refusals in one line, and the answers over HTTP."""
import json
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import psutil
import pytest

from ..harness import COMMAND, HANG_SECONDS, eventually, partitions_url, request, unique_topic

pytestmark = pytest.mark.slow

GEMINGA = str(Path(sys.executable).with_name("geminga"))


def run(*arguments):
    """Run a command; return (exit status, output, lines of complaint)."""
    done = subprocess.run([GEMINGA, *map(str, arguments)], capture_output=True, text=True, timeout=HANG_SECONDS,
                          check=False)
    return done.returncode, done.stdout, done.stderr.splitlines()


def test_a_data_folder_has_one_broker(fresh_broker):
    """A second broker on the folder is refused in one line, and touches nothing."""
    status, _, complaints = run("serve", "--data-dir", fresh_broker.data_dir, "--port", 0, "--http-port", 0)
    assert status == 1
    assert [line for line in complaints if "data_dir" in line and "in use" in line]


def test_the_serve_command_is_the_one_tested():
    assert COMMAND == [GEMINGA, "serve"]


def test_what_is_published_can_be_read(broker):
    """The command line that the start prints works, and reading acknowledges nothing."""
    topic = unique_topic("cli")
    assert run("publish", "--url", broker.service_url, topic, "one", "two")[0] == 0
    for _ in range(2):
        assert run("read", "--url", broker.service_url, topic) == (0, "one\ntwo\n", [])


def test_lines_that_a_start_prints_can_be_pasted(own):
    lines = re.compile(r"^  (\S+ (?:produce|consume) --url .*)$", re.MULTILINE)
    # They come behind the addresses.
    first, second = eventually(lambda: len(found := lines.findall(own.log())) > 1 and found[-2:])
    assert subprocess.run(first, shell=True, capture_output=True, text=True, check=True).stdout.startswith("published ")
    assert "Hello\n" in subprocess.run(second, shell=True, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("path", "text"), [("/status.html", "OK"), ("/admin/v2/brokers/health", "ok"),
                                            ("/admin/v2/brokers/ready", "ok")])
def test_health_is_told(broker, path, text):
    """A health check publishes a message and reads it back."""
    assert request("GET", broker.http_url + path) == (200, text)


def test_messages_go_before_administration(broker):
    """The kernel gives the admin process less of a core that others want."""
    nice = {role: psutil.Process(broker.child(role)).nice() for role in ("admin", "worker", "owner")}
    assert nice["admin"] > nice["worker"] == nice["owner"]


@pytest.mark.parametrize(("body", "status"), [
    (b"3", 204), (b'"3"', 204), (b'{"partitions": 3, "properties": {}}', 204),
    (b"0", 406), (b"-1", 406), (b"1000000", 406), (b"three", 400), (b"", 400), (b"[]", 400), (b"true", 400),
    (b"1.5", 400)])
def test_partitioned_topics_are_made_by_a_number(broker, body, status):
    """The number is sent as clients send it; anything else is refused with a reason, and makes nothing."""
    topic = unique_topic("parts")
    got, text = request("PUT", partitions_url(broker.http_url, topic), body)
    assert got == status, text
    got, text = request("GET", partitions_url(broker.http_url, topic))
    if status == 204:
        assert (got, '"partitions": 3' in text) == (200, True)
        assert request("PUT", partitions_url(broker.http_url, topic), body)[0] == 409
    else:
        assert (got, '"reason"' in text) == (404, True)


@pytest.mark.parametrize(("path", "status"), [
    ("/admin/v2/persistent/nobody/nothing/t/partitions", 404),
    ("/admin/v2/persistent/public/default/a%2Fb/partitions", 412),
    ("/admin/v2/nothing", 404), ("/lookup/v2/topic/persistent/nobody/nothing/t", 404)])
def test_what_is_not_there_has_a_reason(broker, path, status):
    got, text = request("GET", broker.http_url + path)
    assert (got, '"reason"' in text) == (status, True)


@pytest.mark.parametrize(("method", "path", "status", "phrase"), [
    ("GET", "persistent/public/default/nope/stats", 404, "Topic persistent://public/default/nope not found"),
    ("GET", "namespaces/nope/nope", 404, "Tenant does not exist"),
    ("GET", "persistent/public/default/a%2Fb/partitions", 412, None),
    ("POST", "brokers/configuration/foo/bar", 412, "Can't update non-dynamic configuration"),
    ("GET", "persistent/public/default/a%0D%0ASet-Cookie:%20b=c%C3%A4/stats", None, None),
    ("GET", "persistent/public/default/" + "x" * 3_000 + "/stats", None, None),
    ("POST", "brokers/health", 405, "Method Not Allowed"), ("GET", "nothing/here", 404, "Not Found")])
def test_an_errors_phrase_is_its_reason(broker, method, path, status, phrase):
    """urllib shows nothing else.  A path without a route has HTTP's own phrase, as in Pulsar."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(f"{broker.http_url}/admin/v2/{path}", method=method),
                               timeout=HANG_SECONDS)
    with caught.value as error:
        reason = json.loads(error.read())["reason"]
    assert (status or error.status) == error.status >= 400 and "Set-Cookie" not in error.headers
    assert error.reason == (phrase or re.sub("[^ -~]", "?", reason)[:1_024].rstrip())


def test_an_error_of_rest_produce_has_its_reason_as_phrase(broker):
    url = f"{broker.http_url}/topics/{unique_topic('phrase').replace('://', '/')}"
    wanted = urllib.request.Request(url, b'{"messages": [{"payload": 1}]}', {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(wanted, timeout=HANG_SECONDS)
    with caught.value as error:
        assert error.reason == json.loads(error.read())["reason"]


@pytest.mark.parametrize("prefix", ["/lookup/v2/topic", "/lookup/v2/destination"])
def test_lookup_names_the_address_that_clients_use(broker, prefix):
    """Both addresses are strings, as the C++ client insists on them."""
    path = urllib.parse.quote(unique_topic("lookup").replace("://", "/"))
    status, text = request("GET", f"{broker.http_url}{prefix}/{path}")
    assert status == 200
    assert f'"brokerUrl": "{broker.service_url}"' in text and '"brokerUrlTls": ""' in text


def test_lookup_refuses_topics_that_use_would_not_create(broker):
    """Answers of Pulsar 4.0.7. Clients that look up over HTTP raise NotFoundException for them."""
    namespace, lookup = "public/uncreated", f"{broker.http_url}/lookup/v2/topic"
    base = f"{broker.http_url}/admin/v2"
    assert request("PUT", f"{base}/namespaces/{namespace}")[0] == 204
    assert request("PUT", f"{base}/persistent/{namespace}/parts/partitions", b"2")[0] == 204
    assert request("PUT", f"{base}/persistent/{namespace}/plain")[0] == 204
    for is_allowed in (True, False):
        policy = json.dumps({"allowAutoTopicCreation": is_allowed, "topicType": "non-partitioned"}).encode()
        assert request("POST", f"{base}/namespaces/{namespace}/autoTopicCreation", policy)[0] == 204
        missing = 200 if is_allowed else 404
        for topic, status in {
                "persistent/{}/plain": 200, "persistent/{}/parts": 200, "persistent/{}/parts-partition-1": 200,
                "persistent/{}/parts-partition-2": 404, "persistent/{}/none": missing,
                "persistent/{}/none-partition-0": missing, "non-persistent/{}/none": 200,
                "non-persistent/{}/parts-partition-2": 200,
                "persistent/{}/__change_events": 200}.items():
            assert (topic, request("GET", f"{lookup}/{topic.format(namespace)}")[0]) == (topic, status)
            if "partition-" in topic and "parts-partition-2" not in topic:
                url = f"{base}/{topic.format(namespace)}/partitions?checkAllowAutoCreation=true"
                assert (topic, request("GET", url)[0]) == (topic, status)
