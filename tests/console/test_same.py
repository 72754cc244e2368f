"""The command that a dialog shows sends the very request that the dialog would send."""
import html
import json
import re
import shlex
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pulsar
import pytest

from geminga.supervisor import main
from geminga.supervisor.console.routes.dialogs import ACTIONS

from ..harness import HANG_SECONDS, request
from ..workers.peer import Peer
from ..workers.test_scalable_topics import layout_of, publish, segments_of

pytestmark = pytest.mark.slow
TOPIC, NAMESPACE, SUBSCRIPTION = "persistent://acme/eu/orders", "acme/eu", "billing"
SCALABLE = "topic://acme/eu/clicks"
# Commands that are programs of their own, and send no request of REST that could be compared.
PROGRAMS = {
    "reset-to-time": "its request names a moment, its command a time before now",
    "publish": "a client of the binary protocol", "redrive": "a client of the binary protocol",
    "make-backup": "makes the backup itself, beside the broker", "close-client": "needs a connection"}
# Values of fields and subjects; those of an action stand before those of all.
VALUES = {
    "topic": TOPIC, "namespace": NAMESPACE, "subscription": SUBSCRIPTION, "tenant": "acme", "role": "alice",
    "actions": "produce,consume", "partitions": "8", "entries": "3", "time": "-1h", "message": "earliest", "age": "1d",
    "start": "latest", "key": "team", "value": "payments", "level": "debug", "seconds": "60",
    "setting": "dispatchThrottlingRateInMsg", "alarm": "damage", "roles": "alice", "schema": '{"type": "string"}',
    "type": "STRING", "policy": "retention", "schedule": "daily"}
OWN = {
    "create-topic": {"topic": "acme/eu/new", "partitions": "3"}, "create-subscription": {"subscription": "other"},
    "create-tenant": {"tenant": "other"}, "create-namespace": {"namespace": "us"},
    "add-partitions": {"topic": "persistent://acme/eu/parted"}, "create-missing": {"topic": "persistent://acme/eu/parted"},
    "grant-namespace": {"produce": "true"}, "grant-topic": {"produce": "true"},
    "delete-tenant": {"tenant": "empty"}, "delete-namespace": {"namespace": "acme/empty"},
    "delete-topic": {"force": "true"}, "remove-namespace-policy": {"policy": "messageTTL"},
    "change-setting": {"value": "100"}, "upload-schema": {"schema": ""},
    "create-schedule": {"schedule": "new", "when": "30 7 * * MON-FRI", "time_zone": "Europe/Berlin", "missed": "all",
                        "payload": "persistent://as it is", "key": "k", "properties": "a=b", "paused": "true"},
    "resume-schedule": {"schedule": "paused"},
    "split-segment": {"topic": SCALABLE, "segment": "0"},
    "merge-segments": {"topic": SCALABLE, "segment": "0", "other": "1"},
    "delete-scalable-topic": {"topic": SCALABLE}, "unsubscribe-scalable": {"topic": SCALABLE},
    "take-backlog-back": {"subscription": "cleared", "id": "1"}}      # the first one that the broker has kept

# What commands print of the answer, by the end of the request's path.
ANSWERS = {
    "undelete": {"subscription": "cleared", "messages": 10}, "run": {"id": "0:0"},
    "new": {"topic": TOPIC, "name": "new", "partition": TOPIC, "cron": "* * * * *", "time_zone": "UTC",
            "missed": "last", "paused": True, "message": {}, "next": []}}


class Recorder(ThreadingHTTPServer):
    """Passes questions on to the broker, and notes changes, which it answers as if they had been made."""

    daemon_threads = True

    def __init__(self, http_url: str):
        self.http_url, self.changes = http_url, []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        asked = urllib.request.Request(self.server.http_url + self.path)
        try:
            with urllib.request.urlopen(asked, timeout=HANG_SECONDS) as answer:
                status, data = answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                status, data = refused.code, refused.read()
        self._answer(status, data)

    def _change(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.changes.append((self.command, self.path, json.loads(data) if data.strip() else None))
        if self.path == "/ops/v1/log-level":      # whose changes are answered as its questions are
            return self.do_GET()
        end = self.path.rpartition("/")[2]
        self._answer(200, json.dumps(ANSWERS[end]).encode()) if end in ANSWERS else self._answer(204, b"")

    do_POST = do_PUT = do_DELETE = do_PATCH = _change

    def _answer(self, status, data):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def filled(own, client):
    """A broker that has what the actions act on."""
    for method, path, body in (
            ("PUT", "/admin/v2/tenants/acme", {"adminRoles": ["ops"], "allowedClusters": ["standalone"]}),
            ("PUT", "/admin/v2/tenants/empty", {"adminRoles": [], "allowedClusters": ["standalone"]}),
            ("PUT", f"/admin/v2/namespaces/{NAMESPACE}", None), ("PUT", "/admin/v2/namespaces/acme/empty", None),
            ("PUT", f"/admin/v2/persistent/{NAMESPACE}/parted/partitions", 4),
            ("PUT", f"/admin/v2/scalable/{NAMESPACE}/clicks?numInitialSegments=2", {}),
            ("PUT", f"/admin/v2/scalable/{NAMESPACE}/clicks/subscriptions/{SUBSCRIPTION}", None),
            ("POST", f"/admin/v2/namespaces/{NAMESPACE}/messageTTL", 60),
            ("POST", f"/admin/v2/namespaces/{NAMESPACE}/permissions/alice", ["produce"])):
        status, text = request(method, own.http_url + path, b"" if body is None else json.dumps(body).encode())
        assert status == 204, text
    producer = client.create_producer(TOPIC)
    for subscription in (SUBSCRIPTION, "cleared"):
        client.subscribe(TOPIC, subscription, consumer_type=pulsar.ConsumerType.Shared).close()
    for number in range(10):
        producer.send(str(number).encode())
    producer.close()
    for path, body in ((f"/admin/v2/persistent/{NAMESPACE}/orders/retention", {
            "retentionTimeInMinutes": 10, "retentionSizeInMB": 20}),
            (f"/admin/v2/namespaces/{NAMESPACE}/deletedRetention", 3_600),
            (f"/admin/v2/persistent/{NAMESPACE}/orders/subscription/cleared/skip_all", None),
            (f"/admin/v2/schemas/{NAMESPACE}/orders/schema", {"type": "STRING", "schema": "", "properties": {}})):
        status, text = request("POST", own.http_url + path, b"" if body is None else json.dumps(body).encode())
        assert status in (200, 204), text
    for name in ("daily", "paused"):
        body = {"cron": "0 18 * * *", "paused": name == "paused", "message": {"payload": "close"}}
        status, text = request("PUT", f"{own.http_url}/ops/v1/schedules/persistent/{NAMESPACE}/orders/{name}",
                               json.dumps(body).encode())
        assert status == 200, text
    return own


@pytest.fixture(scope="module")
def recorder(filled):
    made = Recorder(filled.http_url)
    yield made
    made.shutdown()
    made.server_close()


def values_of(action) -> dict[str, str]:
    values = {field.name: field.default for field in action.fields if field.default}
    known = VALUES | OWN.get(action.name, {})
    names = (*action.subject, *(field.name for field in action.fields if field.is_required))
    return values | {name: known[name] for name in names if name in known} | OWN.get(action.name, {})


def normal(path: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a path and its parameters; parameters that say what is true without them do not count."""
    parts = urlsplit(path)
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if value != "false"]
    return parts.path, sorted(query)


SIMPLE = [action for action in ACTIONS.values() if action.name not in PROGRAMS and not action.name.startswith("set-")
          and "delayed" not in action.name and "transaction" not in action.name and action.name != "acknowledge-alarm"
          and action.name != "reset-setting"]


@pytest.mark.parametrize("action", SIMPLE, ids=lambda action: action.name)
def test_a_command_sends_the_request_of_its_dialog(filled, recorder, action, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)      # some commands read a file
    compare(filled, recorder, action, values_of(action))


def compare(filled, recorder, action, values):
    """Hold a dialog's request against the one that its command sends."""
    address = f"/console/actions/{action.name}?{urlencode(values)}"
    status, dialog = request("GET", filled.http_url + address)
    assert status == 200, dialog
    found = re.search(r'data-method="(\w+)" data-path="([^"]*)" data-body="([^"]*)"', dialog)
    assert found is not None, re.sub(r"<[^>]*>", "", dialog)
    method, path, body = map(html.unescape, found.groups())
    command = html.unescape(re.search(r"<code>(geminga [^<]*)</code>", dialog)[1])
    words = shlex.split(command)[1:]
    if action.name == "upload-schema":
        Path("schema.json").write_text(body)
    recorder.changes.clear()
    place = 1 if words[0] == "admin" else 2      # behind the group, or the verb
    with_address = [*words[:place], "--admin-url", recorder.url, *words[place:]]
    assert main.main(with_address) in (0, None), command
    sent = [(told, normal(where), what) for told, where, what in recorder.changes]
    expected = method, normal(path), json.loads(body) if body else None
    assert expected in sent, (command, expected, sent)


def test_a_scalable_topic_is_created_by_the_command_as_by_its_dialog(filled, recorder):
    compare(filled, recorder, ACTIONS["create-topic"], {"topic": "topic://acme/eu/new", "partitions": "3"})


def test_a_backlog_of_all_segments_is_cleared_by_the_command_as_by_its_dialog(filled, recorder):
    with Peer(filled.service_url) as peer:
        publish(peer, segments_of(SCALABLE, layout_of(peer, SCALABLE).dag)[0], b"x")
    compare(filled, recorder, ACTIONS["clear-backlog"], {"topic": SCALABLE, "subscription": SUBSCRIPTION})


@pytest.mark.parametrize("values", [
    {"timing": "every", "when": "90s", "missed": "none", "payload": "-x"},
    {"timing": "cron", "when": "0 18 * * *", "time_zone": "", "form": "value", "payload": '"text"'}],
    ids=lambda one: one["timing"])
def test_a_schedule_is_set_by_the_command_as_by_its_dialog(filled, recorder, values):
    compare(filled, recorder, ACTIONS["create-schedule"], {"topic": TOPIC, "schedule": "new"} | values)


@pytest.mark.parametrize("payload", ["persistent://as it is", "-x"])
def test_the_command_that_publishes_has_the_payload_as_it_is(filled, client, payload):
    consumer = client.subscribe(TOPIC, "published")
    address = f"/console/actions/publish?{urlencode({'topic': TOPIC, 'payload': payload, 'key': 'k'})}"
    _, dialog = request("GET", filled.http_url + address)
    words = shlex.split(html.unescape(re.search(r"<code>(geminga [^<]*)</code>", dialog)[1]))
    assert main.main([words[1], "--url", filled.service_url, *words[2:]]) in (0, None)
    message = consumer.receive()
    assert message.data().decode() == payload
    consumer.acknowledge(message)
    consumer.close()



POLICIES = [action for action in ACTIONS.values() if action.words == "policy"]


def typed(field) -> str:
    """Return a value for a field of a policy."""
    if field.choices:
        return field.choices[0]
    if field.name == "defaultNumPartitions":
        return "6"
    return "60000" if field.kind == "number" else "Exclusive,Shared"


@pytest.mark.parametrize("action", POLICIES, ids=lambda action: action.name)
def test_a_policy_is_set_by_the_command_as_by_its_dialog(filled, recorder, action):
    compare(filled, recorder, action, {
        "topic": TOPIC, "namespace": NAMESPACE, **{field.name: typed(field) for field in action.fields}})
