"""`geminga admin`: every verb, what it sends, what it prints, how it ends, and that starting it costs little."""
import contextlib
import http.server
import json
import shlex
import threading
import urllib.parse
import uuid
from fnmatch import fnmatchcase
from pathlib import Path

import pulsar
import pytest
import yaml

from geminga.storage.runtime import units
from geminga.supervisor.cli import show
from geminga.supervisor.cli.admin import commands, policies, verbs
from geminga.supervisor.main import main
from geminga.supervisor.wording import human
from geminga.workers.pulsar_client.rest import topic_path

from ..harness import HANG_MS, Broker, eventually, partitioned_topic, request, unique_topic

HERE = Path(__file__).parent
REQUESTS = [json.loads(line) for line in (HERE / "pulsar_admin_requests.jsonl").read_text().splitlines()]
SCHEMAS = HERE / "sweep"
# Verbs of pulsar-admin for things that a broker of one host does not have.
LEFT_OUT = ("topics *shadow*", "topics offload-status", "namespaces clear-offload*", "namespaces delete-anti-affinity*",
            "namespaces *resource-group", "namespaces get-topic-positions", "namespaces split-bundle",
            "broker-stats allocator-stats", "transactions *internal-stats")
TOPIC, NAMESPACE = "public/default/orders", "public/default"


def rows():
    """Return (group, verb) of every command."""
    return [(group, name) for group in verbs.GROUPS
            for name in [*(verb.name for verb in verbs.GROUPS[group][1]), *commands.policies_of(group)]]


@pytest.fixture
def run(capsys):
    """run(url, words...): exit status, standard output, lines of complaint."""
    def run(url, *words):
        status = main(["admin", "--admin-url", url, *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err.splitlines()
    return run


@pytest.fixture(scope="module")
def listener():
    """A server that answers every request like a broker with one cluster and four partitions of each topic.

    It remembers the requests.
    """
    class Handler(http.server.BaseHTTPRequestHandler):
        wbufsize = -1       # an answer is one packet
        def answer(self):
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((self.command, self.path, json.loads(sent) if sent else None))
            path = self.path.partition("?")[0]
            said = ANSWERS.get(path.rpartition("/")[2],
                               {"brokerUrl": "pulsar://x:1"} if path.startswith("/lookup") else [])
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, *_):
            pass

    asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


# parameters that pulsar-admin always sends when it deletes, and that mean nothing there
ALWAYS = ("deleteSchema", "messageTTL")
ANSWERS = {"clusters": ["standalone"], "partitions": {"partitions": 4}, "subscriptions": ["sub"],
           "compaction": {"status": "SUCCESS", "lastError": ""}}


def equal(ours, theirs):
    """Return a request without the parts that mean the same when they are left out."""
    (our_method, our_target, our_body), (method, target, *body) = ours, theirs
    our_place, place = urllib.parse.urlsplit(our_target), urllib.parse.urlsplit(target)
    our_query, query = (dict(urllib.parse.parse_qsl(each.query)) for each in (our_place, place))
    if place.path.endswith("/resetcursor/*"):
        our_place = our_place._replace(path=our_place.path.rpartition("/")[0] + "/*")
    body = body[0] if body else None
    bodies_agree = our_body == body or (not our_body and not body)
    if isinstance(our_body, dict) and isinstance(body, dict):
        bodies_agree = our_body.items() <= body.items()
    differing = dict(our_query.items() ^ query.items())
    return our_method == method and our_place.path == place.path and bodies_agree and all(
        value == "false" or (name in ALWAYS and name not in our_query) for name, value in differing.items())


@pytest.mark.slow
def test_what_is_sent_is_what_pulsar_admin_sends(run, listener, monkeypatch):
    """Hundreds of recorded commands send the same methods, paths, parameters and JSON."""
    monkeypatch.chdir(SCHEMAS)
    url, asked = listener
    assert len(REQUESTS) > 300
    for command, *expected in REQUESTS:
        asked.clear()
        status, _, complaints = run(url, *shlex.split(command))
        if status == 2 and "There is no command" in complaints[-1]:
            assert any(fnmatchcase(" ".join(command.split()[:2]), pattern) for pattern in LEFT_OUT), command
            continue
        if "peek" in command:      # geminga asks first whether there is such a subscription
            assert asked.pop(0)[1].endswith("/subscriptions")
        by_path = sorted(asked, key=lambda each: each[1])
        assert status == 0, (command, complaints)
        assert len(asked) == len(expected), (command, asked)
        assert all(map(equal, by_path, sorted(expected, key=lambda each: each[1]))), (command, asked)


@pytest.mark.slow
def test_every_verb_says_how_it_is_used(capsys):
    """The help of each verb has a line about the verb and an example that begins with it."""
    assert len(rows()) > 300
    for group, name in rows():
        assert main(["admin", group, name, "--help"]) == 0
        printed = capsys.readouterr().out
        assert f"geminga admin {group} {name}" in printed
        assert len(printed.splitlines()) > 8, printed


@pytest.fixture(scope="module")
def filled_broker(tmp_path_factory):
    """The HTTP address of a broker with a topic, subscriptions, and messages both plain and in batches."""
    own = Broker(tmp_path_factory.mktemp("cli") / "data")
    try:
        own.start()
        fill(own.service_url)
        yield own.http_url
    finally:
        own.close()


def fill(service_url):
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(TOPIC, "billing").close()
    single = client.create_producer(TOPIC, batching_enabled=False)
    single.send(b"a text", properties={"team": "payments"}, partition_key="key 1")
    single.send(bytes(range(20)))
    batched = client.create_producer(TOPIC, batching_enabled=True, batching_max_publish_delay_ms=10_000,
                                     compression_type=pulsar.CompressionType.ZSTD)
    for number in "012":
        batched.send_async(b"one of many " + number.encode(), lambda *_: None, properties={"number": number},
                           partition_key="k" + number)
    batched.flush()
    client.close()


def test_messages_are_shown_one_by_one(filled_broker, run):
    """Batches are unpacked, texts shown as texts, other bytes in hexadecimal; JSON has them in base64."""
    status, printed, _ = run(filled_broker, "topics", "peek", TOPIC, "-s", "billing", "-n", "4")
    text, binary, *many = printed.split("\n\n")
    assert status == 0 and len(many) == 2
    assert "key          key 1" in text and "property     team = payments" in text and text.endswith("\na text")
    assert "00000010  10 11 12 13" in binary
    assert many[1].endswith("one of many 1\n") and "property     number = 1" in many[1]

    status, printed, _ = run(filled_broker, "-o", "json", "topics", "peek-messages", TOPIC, "-s", "billing", "-n", "99")
    messages = [json.loads(line) for line in printed.splitlines()]
    assert [message.get("payload") for message in messages] == ["a text", None,
                                                                *(f"one of many {number}" for number in range(3))]
    assert messages[1]["payloadBase64"] == "AAECAwQFBgcICQoLDA0ODxAREhM="
    assert [message["key"] for message in messages[2:]] == ["k0", "k1", "k2"]

    ledger, entry = messages[0]["id"].split(":")[:2]
    assert run(filled_broker, "topics", "get-message-by-id", TOPIC, "-l", ledger, "-e", entry)[1].endswith("\na text\n")
    assert run(filled_broker, "topics", "examine-messages", TOPIC, "-i", "earliest")[1].endswith("\na text\n")


def test_all_partitions_are_peeked_at_one_after_the_other(broker, run):
    topic = partitioned_topic(broker.http_url, 3)
    peek = "topics", "peek", topic, "-s", "sub", "-n"
    status, printed, complaints = run(broker.http_url, *peek, "3")
    assert (status, printed, len(complaints)) == (1, "", 1)      # there is no such subscription
    with contextlib.closing(pulsar.Client(broker.service_url)) as client:
        client.subscribe(topic, "sub").close()
        for number in (0, 2):
            producer = client.create_producer(f"{topic}-partition-{number}")
            for place in "ab":
                producer.send(f"{number}{place}".encode())
    for count, shown in (("3", ["0a", "0b", "2a"]), ("9", ["0a", "0b", "2a", "2b"]), ("1", ["0a"])):
        status, printed, _ = run(broker.http_url, "-o", "json", *peek, count)
        assert (status, [json.loads(line)["payload"] for line in printed.splitlines()]) == (0, shown)


def test_peeking_at_an_empty_subscription_says_that_there_is_nothing(broker, run):
    """Also one whose messages were all acknowledged, and one of a partitioned topic."""
    plain, parted = unique_topic("peeked"), partitioned_topic(broker.http_url, 2)
    with contextlib.closing(pulsar.Client(broker.service_url)) as client:
        for topic in (plain, parted):
            consumer = client.subscribe(topic, "billing")
            if topic == plain:
                client.create_producer(topic).send(b"done")
                consumer.acknowledge_cumulative(consumer.receive(HANG_MS))
            consumer.close()
    for topic in (plain, parted):
        eventually(lambda topic=topic: run(broker.http_url, "topics", "peek", topic, "-s", "billing", "-n", "3") == (
            0, "", ["geminga: there are no messages to show"]))


def test_a_namespace_may_be_made_as_pulsar_admin_makes_it(filled_broker, run):
    """The object that pulsar-admin sends has empty lists of clusters, which mean the broker's own cluster."""
    made = json.dumps({"replication_clusters": [], "allowed_clusters": [], "backlog_quota_map": {},
                       "offload_threshold": -1}).encode()
    assert request("PUT", f"{filled_broker}/admin/v2/namespaces/public/made", made) == (204, "")
    assert run(filled_broker, "namespaces", "get-clusters", "public/made")[1] == "standalone\n"
    assert run(filled_broker, "namespaces", "delete", "public/made")[0] == 0


@pytest.mark.parametrize("name", ["fn/ns/name", "a+b c", "a%41b", "5%"])
def test_a_subscription_of_any_name_is_made_used_and_deleted(filled_broker, run, name):
    topic = f"public/default/odd-{uuid.uuid4().hex[:8]}"
    assert run(filled_broker, "topics", "create-subscription", topic, "-s", name)[0] == 0
    assert run(filled_broker, "topics", "subscriptions", topic)[1] == f"{name}\n"
    for words in (("clear-backlog",), ("skip", "-n", "1"), ("expire-messages", "-t", "1"), ("reset-cursor", "-t", "1m"),
                  ("get-subscription-properties",), ("unsubscribe",)):
        assert run(filled_broker, "topics", words[0], topic, "-s", name, *words[1:])[0] == 0, words
    assert run(filled_broker, "topics", "subscriptions", topic)[1] == ""


def test_exit_status_and_the_line_that_says_why(filled_broker, run, tmp_path):
    """Status 0: done, 1: refused by the broker, 2: wrong usage, 3: not reachable.  Each but usage is told in one line.
    """
    assert run(filled_broker, "tenants", "list")[0] == 0
    status, printed, complaints = run(filled_broker, "topics", "subscriptions", "public/default/missing")
    assert (status, printed, len(complaints)) == (1, "", 1) and complaints[0].endswith("(HTTP 404)")
    for words in (["topics", "nonsense"], ["topics", "skip", TOPIC, "-s", "x"], ["topics", "stats", "a/b"],
                  ["namespaces", "policies", "a"],
                  ["topics", "create", TOPIC, "-m", "nonsense"], ["topics", "skip", TOPIC, "-s", "x", "-n", "few"],
                  ["topics", "create-subscription", TOPIC, "-s", "x", "-m", "first"],
                  ["topics", "reset-cursor", TOPIC, "-s", "x"],
                  ["namespaces", "set-retention", NAMESPACE, "-t", "soon", "-s", "1"],
                  ["schemas", "upload", TOPIC, "-f", str(tmp_path / "absent")]):
        assert run(filled_broker, *words)[0] == 2, words
    status, _, complaints = run("http://127.0.0.1:1", "tenants", "list")
    assert status == 3 and len(complaints) == 1
    assert run("nonsense", "tenants", "list")[0] == 2


@pytest.mark.parametrize("sent", [b"", b"nonsense", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[]",
                                  b"HTTP/1.1 2xx\r\n\r\n"])
def test_no_whole_answer_is_no_answer(run, sent):
    """Whatever answers in place of a broker, one line says so, and nothing of the answer is used."""
    import socket
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            link, _ = server.accept()
            with link:
                link.recv(65_536)
                link.sendall(sent)
        thread = threading.Thread(target=answer)
        thread.start()
        status, printed, complaints = run(f"http://127.0.0.1:{server.getsockname()[1]}", "tenants", "list")
        thread.join()
    assert (status, printed, len(complaints)) == (3, "", 1)


def test_output_for_programs_is_the_answer_as_it_came(filled_broker, run):
    """With -o json the output is the answer byte for byte, wherever the option stands; without, a list has a line each.
    """
    import urllib.request
    with urllib.request.urlopen(f"{filled_broker}/admin/v2/tenants") as answer:
        expected = answer.read().decode()
    assert (
        run(filled_broker, "-o", "json", "tenants", "list")[1]
        == run(filled_broker, "tenants", "list", "-o", "json")[1]
        == expected + "\n"
    )
    assert run(filled_broker, "tenants", "list")[1].splitlines() == json.loads(expected)


def test_every_form_has_the_whole_answer(filled_broker, run):
    plain = json.loads(run(filled_broker, "tenants", "list", "-o", "json")[1])
    assert [json.loads(line) for line in run(filled_broker, "tenants", "list", "-o", "jsonl")[1].splitlines()] == plain
    for words in (("tenants", "list"), ("topics", "stats", TOPIC)):
        as_json, as_yaml = (run(filled_broker, *words, "-o", form)[1] for form in ("json", "yaml"))
        assert yaml.safe_load(as_yaml).__class__ is json.loads(as_json).__class__
    assert yaml.safe_load(run(filled_broker, "tenants", "list", "-o", "yaml")[1]) == plain


def test_stats_of_a_topic_are_a_page_for_people(filled_broker, run):
    """The page has a table of subscriptions whose figures are those of the exact answer."""
    exact = json.loads(run(filled_broker, "topics", "stats", TOPIC, "-o", "json")[1])
    lines = run(filled_broker, "topics", "stats", TOPIC)[1].splitlines()
    assert lines[2] == f"stored   {human.size(exact['storageSize'])}"
    heading = next(number for number, line in enumerate(lines) if line.startswith("SUBSCRIPTION "))
    rows = [line.split() for line in lines[heading + 1:heading + 1 + len(exact["subscriptions"])]]
    shown = {name: figures[:3] for name, *figures in rows}
    assert shown == {name: [each["type"], "0", str(each["msgBacklog"])]
                     for name, each in exact["subscriptions"].items()}
    assert {"no consumers", "no producers"} <= set(lines)
    assert "OLDEST" not in lines[heading]      # what was not asked for is no column of dashes
    assert "  OLDEST\n" in run(filled_broker, "topics", "stats", TOPIC, "-etb")[1]


# These verbs come after all others, in this order.
LAST = ["scalable-topics delete",
        "namespaces unsubscribe", "topics unsubscribe", "topics terminate", "topics partitioned-terminate",
        "topics truncate", "topics delete", "topics delete-partitioned-topic", "brokers shutdown"]
# Examples that this broker refuses, with their exit statuses.
REFUSED = {
    "topics create": 409, "topics create-partitioned-topic": 409, "topics get-message-by-id": 404,
    "topicPolicies set-entry-filters-per-topic": 400, "topicPolicies set-offload-policies": 412,
    "scalable-topics seek": 404, "scalable-topics clear-backlog": 404,
    "scalable-topics migrate": 409,
    "clusters create": 409, "clusters delete": 412,
    "tenants create": 409, "tenants delete": 409,
    "namespaces create": 409, "namespaces delete": 409, "namespaces set-entry-filters": 400,
    "namespaces set-offload-policies": 412,
    "brokers namespaces": 404, "delayed cancel": 404, "delayed reschedule": 404,
    "transactions transaction-metadata": 404, "transactions abort-transaction": 404,
    "transactions scale-transactionCoordinators": 409,
}


@pytest.mark.slow
def test_every_example_is_done_or_refused(run, tmp_path, monkeypatch):
    """No example is wrong usage for a real broker, and each one that is refused is listed with its status."""
    (tmp_path / "schema.json").write_text((SCHEMAS / "avro.json").read_text())
    monkeypatch.chdir(tmp_path)
    own, wrong = Broker(tmp_path / "data"), []
    try:
        url = own.start().http_url
        assert run(url, "topics", "create-partitioned-topic", "public/default/parted", "-p", "4")[0] == 0
        fill(own.service_url)
        every = [(group, verb) for group in verbs.GROUPS
                 for verb in [*verbs.GROUPS[group][1], *commands.policies_of(group).values()]]
        every.sort(key=lambda row: ((name := f"{row[0]} {row[1].name}") in LAST and LAST.index(name) + 1,
                                    row[0] != "topics"))
        for group, verb in every:
            if verb.hidden:     # the same as a verb of topicPolicies
                continue
            words = [commands._ARGUMENTS[name][1] for name in commands._arguments(verb)] + shlex.split(verb.example)
            if "partition" in verb.name and words[0] == TOPIC:
                words[0] = "public/default/parted"
            status, _, complaints = run(url, group, verb.name, *words)
            refused = REFUSED.get(f"{group} {verb.name}")
            if status != (1 if refused else 0) or (refused and not (len(complaints) == 1
                                                                    and complaints[0].endswith(f"(HTTP {refused})"))):
                wrong.append((group, verb.name, status, complaints))
    finally:
        own.close()
    assert not wrong, "\n".join(map(str, wrong))


def test_answers_for_people():
    assert show.text(["a", "b"]) == "a\nb"
    assert show.text({"na\nme": "\x1b[2Jü"}) == "na\\nme  \\x1b[2Jü"
    assert show.text({"rate": 1.25, "list": [], "on": True}) == "rate  1.25\nlist  -\non    true"
    assert show.text({"subs": {"a": {"backlog": 1}}, "type": "x"}) == "type  x\nsubs\n  a\n    backlog  1"
    assert show.text([{"id": 1, "size": 100}, {"id": 22, "size": 3}]) == "id  size\n1   100\n22  3"
    assert show.text([{"a": 1, "of": {"b": 2}}, {"a": 3, "of": {}}]) == "- a  1\n  of\n    b  2\n- a   3\n  of  -"


def test_times_and_sizes_have_units():
    assert [units.seconds(text) for text in ("90", "10m", "3h", "2D", "-1")] == [90, 600, 10_800, 172_800, -1]
    assert [units.seconds(text) for text in ("1w", "1y")] == [604_800, 31_536_000]
    assert [units.minutes(text) for text in ("90", "2h", "-1", "0")] == [1, 120, -1, 0]
    assert [units.size(text) for text in ("90", "4k", "10M", "2G", "-1")] == [90, 4_096, 10 << 20, 2 << 30, -1]
    assert [units.mebibytes(text) for text in ("1M", "1G", "-1")] == [1, 1_024, -1]
    assert [units.millis(text) for text in ("2s", "500ms", "5m", "0")] == [2_000, 500, 300_000, 0]
    for text in ("", "m", "ten", "10x", "1.5h"):
        with pytest.raises(ValueError):
            units.seconds(text)
    for read, text in ((units.minutes, "59s"), (units.mebibytes, "1023k")):      # 0 would mean something else
        with pytest.raises(ValueError, match="is less than a .*would be 0"):
            read(text)


def test_moments_are_ms_or_iso_8601_or_so_long_from_now():
    now_ms, noon_ms = 1_700_000_000_000, 1_769_860_800_000
    for text, found in (("0", 0), ("1700000000001", now_ms + 1), ("10m", now_ms + 600_000), ("+2H", now_ms + 7_200_000),
                        ("-1d", now_ms - 86_400_000), ("2026-01-31T12:00:00Z", noon_ms), ("2026-01-31T12:00", noon_ms),
                        ("2026-01-31 14:00:00.5+02:00", noon_ms + 500), ("2026-01-31", noon_ms - 43_200_000),
                        ("253402300799999", units.LAST_MS)):
        assert units.moment(text, now_ms) == found, text
    assert [units.instant(ms) for ms in (noon_ms, 1 << 60)] == ["2026-01-31T12:00:00.000Z", f"{1 << 60} ms"]
    for text in ("", "soon", "-1", "1.5h", "253402300800000", "10000-01-01", "1969-12-31T23:59:59Z",
                 "0001-01-01T00:00+14:00", "9" * 5_000, "99999999999y", "1 h", "\u0663"):
        with pytest.raises(ValueError, match="is not a time"):
            units.moment(text, now_ms)


def test_names_of_topics_are_quoted_in_paths():
    assert topic_path("orders") == "persistent/public/default/orders"
    assert topic_path("non-persistent://a/b/c/d e") == "non-persistent/a/b/c%2Fd%20e"
    for name in ("a/b", "queue://a/b/c", "a//c", ""):
        with pytest.raises(ValueError):
            topic_path(name)


def test_every_policy_has_its_verbs():
    """Each policy of the table can be set, shown and removed by a verb at each of its levels."""
    for of in ("namespace", "topic"):
        made = {verb.name for verb in policies.verbs(of)}
        rows = [(policy, policy.verb_at(of)) for policy in policies.TABLE.values() if of in policy.levels]
        assert {f"set-{verb}" for _, verb in rows} <= made
        gets = {policy.name: policy.get if of == "namespace" else "" for policy, _ in rows}
        assert {f"get-{gets[policy.name] or verb}" for policy, verb in rows} <= made
        removable = [verb for policy, verb in rows if policy.route_at(of).removable]
        assert {f"remove-{verb}" for verb in removable} <= made


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete(shell, capsys):
    """The printed script asks the command itself for completions."""
    assert main(["completion", shell]) == 0
    assert "_GEMINGA_COMPLETE" in capsys.readouterr().out


def completed(url, words, typed):
    from click.shell_completion import ShellComplete

    from geminga.supervisor.main import geminga

    asked = ShellComplete(geminga, {}, "geminga", "_GEMINGA_COMPLETE").get_completions(
        ["admin", "--admin-url", url, *words], typed
    )
    return {each.value for each in asked}


@pytest.mark.slow
def test_names_are_completed_as_far_as_the_broker_tells_them(filled_broker):
    assert "namespaces" in completed(filled_broker, [], "name")
    assert "peek-messages" in completed(filled_broker, ["topics"], "pe")
    assert {"public/", "pulsar/"} <= completed(filled_broker, ["topics", "stats"], "pu")
    assert TOPIC in completed(filled_broker, ["topics", "stats"], "pub")
    assert TOPIC in completed(filled_broker, ["topics", "stats"], "public/default/ord")
    assert "public/default" in completed(filled_broker, ["namespaces", "policies"], "public/def")
    assert completed("http://127.0.0.1:1", ["topics", "stats"], "pub") == set()
