"""Bad requests to every route: the right status with a reason, never a 500, never an effect."""
import asyncio
import contextlib
import http.client
import json
import re
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import uvloop
from aiohttp import web

from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.runtime.counters import make_counters
from geminga.storage.runtime.lease import Lease
from geminga.supervisor.admin import app
from geminga.supervisor.admin.requests import request_parts
from geminga.supervisor.configuration.config import load
from geminga.workers.addresses import Addresses
from geminga.workers.identity.authentication import Authenticator

from ..harness import HANG_SECONDS, request, unique_topic

NAMES = ("..", "..%2F..%2Fetc", "%00", "%FF", "%ZZ", "%E2%98%83" * 1_000, "-1", "%0d%0aX-A:b")
NOT_JSON = (b"{", b"\xff\xfe", b"NaN", b"[" * 10_000, b"\x00")
WRONG = (b"[[[]]]", b'"\\ud800"', b"1" * 400, b"-0.5", b"true")
# Routes that do something whatever their body is: they read none, or take any text.
NO_BODY = re.compile(
    r"/(unload|split|terminate|terminate/partitions|trim|compaction|offload|createMissedPartitions|skip_all|"
    r"skip/\{\w+\}|expireMessages/\{\w+\}|resetcursor/\{\w+\}|clearBacklog|clearBacklog/\{\w+\}|unsubscribe/\{\w+\}|"
    r"shutdown|namespaceIsolationPolicies/\{\w+\}|migration|property/\{\w+\}/\{\w+\}|configuration/\{\w+\}/\{\w+\}|"
    r"dispatcherPauseOnAckStatePersistent|antiAffinity|"
    r"\{topic\}/(messageTTL|subscriptionExpirationTime|migrate))$|^/ops/|\{rest\}"
)
SHUTDOWN = "/admin/v2/brokers/shutdown"


@contextlib.contextmanager
def made_app(tmp_path, owners=None):
    """Make the app without owners, or with played ones."""
    config, _ = load(None, {}, {"data_dir": tmp_path / "data"})
    where = Addresses("pulsar://127.0.0.1:1", "", "http://127.0.0.1:2")
    counters = {("admin", 0): make_counters(1)[0]}
    made = app.make_app(config, owners or SimpleNamespace(), where, counters, Authenticator(config.identity), Lease())
    yield made
    made[request_parts.TOPICS].catalogue.close()


@pytest.fixture(scope="module")
def routes(tmp_path_factory):
    """Return (method, path) of all routes; HEAD is handled as GET."""
    with made_app(tmp_path_factory.mktemp("routes")) as made:
        found = {(route.method if route.method != "*" else "POST", route.resource.canonical)
                 for route in made.router.routes()}
    return sorted((method, path) for method, path in found if method != "HEAD" and path != SHUTDOWN)


class Asker:
    """One connection that is kept alive."""

    def __init__(self, broker):
        self._connection = http.client.HTTPConnection(urlsplit(broker.http_url).netloc, timeout=HANG_SECONDS)
        self.close = self._connection.close

    def __call__(self, method, path, body=None):
        """Send a request; return (status, reason)."""
        self._connection.putrequest(method, path, skip_accept_encoding=True)
        if body is not None:
            self._connection.putheader("Content-Length", str(len(body)))
            self._connection.putheader("Content-Type", "application/json")
        self._connection.endheaders(body)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status < 400:
            return answer.status, ""
        if answer.getheader("Content-Type", "").startswith("application/json"):
            return answer.status, json.loads(text)["reason"]
        return answer.status, text.decode()


@pytest.fixture
def ask(broker):
    asker = Asker(broker)
    yield asker
    asker.close()


def seen(broker):
    """Return everything that a bad request might have changed."""
    found = []
    for path in ("clusters", "tenants", "namespaces/public", "namespaces/public/default",
                 "namespaces/public/default/properties", "brokers/configuration/values", "tenants/public"):
        status, text = request("GET", f"{broker.http_url}/admin/v2/{path}")
        assert status == 200
        found.append(text)
    return found


def filled(path, value):
    """Return the path with this value for each of its parts.

    A topic is in a namespace that does not exist unless `value` names another.
    """
    return re.sub(r"\{(\w+)\}",
                  lambda match: {"domain": "persistent", "bundle": "0x00000000_0xffffffff"}.get(match[1], value), path)


# Each route is asked with every fourth name or body, and the next route with the next ones; at night with all.
some_or_all = pytest.mark.parametrize("each", [4, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"])


@pytest.mark.slow
@some_or_all
def test_strange_names_are_refused_by_every_route(routes, broker, ask, each):
    before = seen(broker)
    for number, (method, path) in enumerate(routes):
        if "{" not in path:
            continue
        for name in NAMES[number % each::each]:
            status, reason = ask(method, filled(path, name))
            assert (400 <= status < 500 and reason) or (method == "GET" and status < 300) or status in (503, 409), (
                method,
                path,
                name,
                status,
            )
    assert seen(broker) == before


@pytest.mark.slow
def test_a_body_that_is_no_json_is_refused_by_every_route_that_reads_one(routes, broker, ask):
    topic = unique_topic("swept").rpartition("/")[2]
    assert request("PUT", f"{broker.http_url}/admin/v2/persistent/public/default/{topic}")[0] == 204
    parts = {"tenant": "public", "namespace": "default", "topic": topic, "cluster": "standalone",
             "domain": "persistent"}
    before = seen(broker)
    for method, path in routes:
        if method not in ("PUT", "POST") or NO_BODY.search(path):
            continue
        there = re.sub(r"\{(\w+)\}", lambda match: parts.get(match[1], "x"), path)
        for body in NOT_JSON:
            status, reason = ask(method, there, body)
            assert 400 <= status < 500 and reason, (method, path, body[:20], status, reason)
        for body in WRONG:
            status, reason = ask(method, filled(path, "nothing-there"), body)
            assert status < 300 or (400 <= status < 500 and reason) or status == 503, (
                method,
                path,
                body[:20],
                status,
                reason,
            )
    assert seen(broker)[:4] == before[:4]


# Bodies that no route expects, and that do no harm to what exists; and such whose members some route reads.
ODD = (b"[]", b"[null]", b'["x"]', b"{}", b'{"a": [1]}', b"null", b"1e999", b"-1", b"9" * 30, b'"x"', b'"\\ud800"',
       b'["\\ud800"]', b'{"\\udfff": "\\ud800"}')
READ = (b'{"level": ["debug"]}', b'{"level": {}}', b'{"folder": "/\\ud800"}', b'{"folder": "/\\u0000"}',
        b'{"deliver_at": 1e999}', b'{"ledgerId": [], "entryId": {}}', b'{"ledgerId": 1e999, "entryId": true}',
        b'{"partitions": [2]}', b'{"properties": []}', b'{"version": 1, "topics": [], "tenants": {"x": 5}}',
        b'{"type": ["STRING"], "schema": {}}', b'{"allowedClusters": [["standalone"]], "adminRoles": 5}',
        b'{"auth_policies": []}', b'[{"topic": ["t"], "role": {}}]')


@some_or_all
def test_odd_bodies_about_what_is_there_are_answered_and_leave_no_traceback(routes, start_broker, each):
    """Members of policies with values of every other kind are among these bodies."""
    broker = start_broker("--workers", "1", "--owners", "1")
    ask, topic = Asker(broker), "/admin/v2/persistent/public/default/odd"
    parts = {"tenant": "public", "namespace": "default", "topic": "odd", "cluster": "standalone", "subscription": "s",
             "domain": "persistent", "bundle": "0x00000000_0xffffffff"}
    members = {route.path: [f'{{"{part.json}": {value}}}'.encode() for part in policy.parts
                            for value in ("[]", "1e999", '"x"')]
               for policy in TABLE.values() for route in (policy.namespace, policy.topic) if route is not None}
    for number, (method, path) in enumerate(routes):
        if method not in ("PUT", "POST", "PATCH") or path.endswith("/compaction"):
            continue
        there = re.sub(r"\{(\w+)\}", lambda match: parts.get(match[1], "5"), path)
        ask("PUT", topic), ask("PUT", topic + "/subscription/s")
        for body in (*ODD[number % each::each], *READ, *members.get(path.rpartition("/")[2], ())):
            status, reason = ask(method, there, body)
            assert status < 500 or status == 503, (method, there, body, status, reason)
    for query in ("force=%FF&key=%ED%A0%80", "index=%FF", "listenerName=%FF", "mode=%FF&bundle=%FF",
                  f"index={'9' * 5_000}", "topics=%FF"):
        for method, path in routes:
            if method == "GET":
                there = re.sub(r"\{(\w+)\}", lambda match: parts.get(match[1], "5"), path)
                assert ask(method, f"{there}?{query}")[0] not in (500, 501, 502), (there, query)
    ask.close()
    assert "Traceback" not in broker.log() and "G290" not in broker.log()


MALFORMED = (b"\x16\x03\x01\0\0\0\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"G\0T / HTTP/1.1\r\n\r\n",
             b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
             b"GET http://[::1/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
             b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
             b"GET /ready HTTP/1.1\r\na: " + b"x" * 200_000 + b"\r\n\r\n",
             b"GET /metrics HTTP/1.1\r\nHost: \xff\r\nConnection: close\r\n\r\n",
             *(b"PUT /admin/v2/clusters/c HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + rest for rest in (
                 b"Origin: \xff\r\n\r\n", b"Content-Type: \xff/\xfe\r\nContent-Length: 2\r\n\r\n{}",
                 b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
                 b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n")))


def test_what_is_no_http_is_refused_and_is_one_line_of_the_log(start_broker):
    broker = start_broker("--workers", "1", "--owners", "1")
    where = urlsplit(broker.http_url)
    for sent in MALFORMED:
        with socket.create_connection((where.hostname, where.port), 60) as connection:
            connection.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                assert re.match(rb"HTTP/1.[01] 4\d\d ", connection.recv(1_000)), sent
    # a client that goes away in the middle of its body
    with socket.create_connection((where.hostname, where.port), 60) as connection:
        connection.sendall(b"PUT /admin/v2/clusters/c HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\nabcde")
    assert request("GET", broker.http_url + "/ready")[0] == 200
    assert "Traceback" not in broker.log() and "G290" not in broker.log()
    assert broker.log().count("Error handling request") == 1


FLAGGED = {      # path: flags of its query, by method
    "/admin/v2/TOPIC/partitions": {"GET": ["checkAllowAutoCreation"], "DELETE": ["force"]},
    "/admin/v2/TOPIC/partitioned-stats": {"GET": ["perPartition", "getEarliestTimeInBacklog"]},
    "/admin/v2/TOPIC/stats": {"GET": ["excludePublishers", "excludeConsumers"]},
    "/admin/v2/TOPIC/retention": {"GET": ["applied"]}, "/admin/v2/TOPIC/subscription/s": {
        "DELETE": ["force"], "PUT": ["replicated"]},
    "/admin/v2/persistent/public/default": {"GET": ["includeSystemTopic"]},
    "/admin/v2/namespaces/public/default": {"DELETE": ["force"]}, "/admin/v2/tenants/public": {"DELETE": ["force"]},
    "/admin/v2/schemas/public/default/flags/schema": {"DELETE": ["force"]},
    "/admin/v2/clusters/standalone/migrate": {"POST": ["migrated"]},
    "/admin/v3/transactions/transactionBufferStats/public/default/flags-partition-0": {"GET": ["lowWaterMarks"]},
    "/ops/v1/definitions": {"POST": ["dry-run"]}, "/ops/v1/topics": {"GET": ["reverse"]},
    "/ops/v1/schedules/TOPIC/tick": {"PUT": ["dry-run"]}}
BODIES = {"definitions": {"version": 1}, "migrate": {"brokerServiceUrl": "pulsar://other:6650"},
          "tick": {"every": "1d", "message": {"payload": "x"}}}


def test_a_flag_that_is_neither_true_nor_false_is_refused_and_nothing_is_done(broker, ask):
    """A misspelt dry-run would carry the change out."""
    flags = set()
    for file in (Path(__file__).parents[2] / "supervisor/admin").rglob("*.py"):
        flags |= set(re.findall(r'is_set\(request, "([\w-]+)"', file.read_text()))
    assert flags == {flag for methods in FLAGGED.values() for found in methods.values() for flag in found}
    topic = "persistent/public/default/flags"
    ask("PUT", f"/admin/v2/{topic}/partitions", b"2")
    ask("PUT", f"/admin/v2/{topic}/subscription/s")
    before = seen(broker)
    for path, methods in FLAGGED.items():
        for method, found in methods.items():
            body = BODIES.get(path.rpartition("/")[2])
            for flag in found:
                for value in ("maybe", "1", ""):
                    answer = ask(method, f"{path.replace('TOPIC', topic)}?{flag}={value}",
                                 None if body is None else json.dumps(body).encode())
                    assert answer == (400, f"{flag} is true or false"), (method, path, flag)
    assert seen(broker) == before


@pytest.mark.parametrize(("method", "path", "body", "status"), [
    ("POST", "non-persistent/public/default/t/terminate", None, 406),
    ("POST", "non-persistent/public/nowhere/t/terminate", None, 406),
    ("DELETE", "non-persistent/public/default/t/truncate", None, 412),
    ("PUT", "persistent/public/closed/t/subscription/s", b"{}", 412),
    ("PUT", "persistent/public/nowhere/t/subscription/s", b"{}", 404),
    ("POST", "namespaces/public/closed/autoTopicCreation",
     b'{"allowAutoTopicCreation": true, "topicType": "x", "defaultNumPartitions": 2}', 412),
    ("POST", "namespaces/public/closed/autoTopicCreation",
     b'{"allowAutoTopicCreation": false, "topicType": "x"}', 204)])
def test_refusals_have_the_status_that_pulsar_gives_them(broker, method, path, body, status):
    namespace = f"{broker.http_url}/admin/v2/namespaces/public/closed"
    assert request("PUT", namespace)[0] in (204, 409)
    assert request("POST", namespace + "/autoTopicCreation", b'{"allowAutoTopicCreation": false}')[0] == 204
    assert request(method, f"{broker.http_url}/admin/v2/{path}", body)[0] == status


def test_the_kind_of_topics_that_are_created_is_read_in_any_case(broker):
    base = f"{broker.http_url}/admin/v2"
    assert request("PUT", f"{base}/namespaces/public/upper")[0] == 204
    for kind, given, count in (("PARTITIONED", ', "defaultNumPartitions": 2', 2), ("Non-Partitioned", "", 0)):
        body = f'{{"allowAutoTopicCreation": true, "topicType": "{kind}"{given}}}'
        assert request("POST", f"{base}/namespaces/public/upper/autoTopicCreation", body.encode())[0] == 204
        _, text = request("GET", f"{base}/persistent/public/upper/{kind}/partitions?checkAllowAutoCreation=true")
        assert json.loads(text)["partitions"] == count


def test_a_body_that_is_too_large_is_refused(ask):
    status, reason = ask("PUT", "/admin/v2/clusters/c", b" " * (1 << 20) + b"1")
    assert (status, bool(reason)) == (413, True)


def test_old_paths_and_wrong_methods_are_told(ask):
    for method, path, status, words in (
            ("GET", "/admin/persistent/a/b/c/d/stats", 404, "/admin/v2"), ("GET", "/nothing", 404, "nothing"),
            ("PATCH", "/admin/v2/clusters", 405, "GET"), ("GET", "/admin/v3/functions/a/b", 409, "unctions"),
            ("POST", "/admin/v3/transactions/x", 404, "nothing"), ("GET", "/admin/v2/worker/cluster", 409, ""),
            ("PUT", "/admin/v2/resourcegroups/x", 405, "groups")):
        found, reason = ask(method, path)
        assert (found, words in reason) == (status, True), (method, path, found, reason)


# -- slow clients

def served(tmp_path, monkeypatch, talk):
    """Return the result of `talk(reader, writer)` over a connection to a server that waits for next to nothing, and how
    many seconds the server had the connection.
    """
    monkeypatch.setattr(app, "_SILENT_SECONDS", 0.05)
    monkeypatch.setattr(request_parts, "_BODY_SECONDS", 0.05)

    async def serve(made):
        runner = web.AppRunner(made, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        accepted = []

        def accept():
            accepted.append(time.monotonic())
            return app._accepted(runner.server)

        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = await asyncio.get_running_loop().create_server(accept, sock=listener)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            try:
                return await asyncio.wait_for(talk(reader, writer), 60), time.monotonic() - accepted[0]
            finally:
                writer.close()
                server.close()
                await runner.cleanup()

    with made_app(tmp_path) as made:
        return uvloop.run(serve(made))


@pytest.mark.parametrize("beginning", [b"", b"GET /metr", b"GET /status.html HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_client_that_never_sends_a_whole_request_is_cut_off(tmp_path, monkeypatch, beginning):
    async def talk(reader, writer):
        writer.write(beginning)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""

    heard, seconds = served(tmp_path, monkeypatch, talk)
    assert heard == b"" and seconds > app._SILENT_SECONDS / 2      # the client had its time


def test_a_request_is_answered_before_bytes_behind_it_that_are_none(tmp_path, monkeypatch):
    """Node.js sends the body of a DELETE without its length; the client for it tests topics with such requests."""
    async def talk(reader, writer):
        writer.write(b"DELETE /admin/v2/clusters/missing HTTP/1.1\r\nHost: localhost\r\n\r\n{}")
        return await reader.read()

    heard, _ = served(tmp_path, monkeypatch, talk)
    assert heard.startswith(b"HTTP/1.1 404")


def test_a_body_that_never_comes_is_answered_in_time(tmp_path, monkeypatch):
    async def talk(reader, writer):
        writer.write(b"PUT /admin/v2/clusters/c HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        return await reader.readline()

    assert b" 408 " in served(tmp_path, monkeypatch, talk)[0]


def test_a_client_that_has_asked_may_ask_again(tmp_path, monkeypatch):
    """A second request may come later than the time that a client has for its first one."""
    async def talk(reader, writer):
        for _ in range(2):
            writer.write(b"GET /status.html HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(2) == b"OK"
            await asyncio.sleep(0.1)
        return True

    assert served(tmp_path, monkeypatch, talk)[0]
