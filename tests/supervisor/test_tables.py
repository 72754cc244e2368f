"""`geminga topics`, `subscriptions`, `clients` and `why`, of a broker with real clients."""
import contextlib
import json
import socket
import subprocess
import sys

import pulsar
import pytest
import yaml

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import frame
from geminga.supervisor import main

from ..harness import HANG_MS, HANG_SECONDS, eventually, partitioned_topic, request

pytestmark = pytest.mark.slow
OWN_OPTIONS = "--owners", "2", "--workers", "2"


@pytest.fixture
def run(own, capsys):
    """run(words...): exit status, standard output, standard error."""
    def run(*words):
        status = main.main([*words, "--admin-url", own.http_url])
        printed = capsys.readouterr()
        return status, printed.out, printed.err
    return run


@pytest.fixture(scope="module", autouse=True)
def held(own, client):
    """A topic whose three messages a consumer holds, and one whose five nobody consumes."""
    consumer = client.subscribe("held", "billing", pulsar.ConsumerType.Shared, consumer_name="till")
    client.subscribe("left", "billing").close()
    for topic, number in (("held", 3), ("left", 5)):
        producer = client.create_producer(topic)
        for _ in range(number):
            producer.send(b"x")
        producer.close()
    yield consumer
    consumer.close()


# -- tables

def test_tables_are_sorted_and_say_how_many_rows_are_left_out(run):
    status, printed, said = run("topics", "--sort", "backlog", "-n", "1")
    heading, line = printed.splitlines()
    assert status == 0 and heading.split()[:2] == ["TOPIC", "IN/S"] and line.split()[0] == "public/default/left"
    assert "1 of 2 topics" in said
    status, printed, _ = run("topics", "--sort", "backlog", "--reverse")
    assert [line.split()[0] for line in printed.splitlines()[1:]] == ["public/default/held", "public/default/left"]


def test_forms_for_programs_have_the_same_rows(run):
    def values(form, parse):
        printed = run("subscriptions", "public/default", "--sort", "topic", "-o", form)[1]
        return [(row["topic"], row["type"], row["backlog"]) for row in parse(printed)]

    wanted = [("persistent://public/default/held", "Shared", 3), ("persistent://public/default/left", "Exclusive", 5)]
    for form, parse in (("json", json.loads), ("yaml", yaml.safe_load),
                        ("jsonl", lambda text: [json.loads(line) for line in text.splitlines()])):
        assert values(form, parse) == wanted


def test_clients_are_listed_and_closed(own, run, client):
    [row] = json.loads(run("clients", "held", "-o", "json")[1])
    assert (row["producers"], row["consumers"]) == (0, 1) and row["library"].startswith("Pulsar")
    assert row["address"] in run("clients")[1] and row["address"] in run("clients", "list", "h*")[1]
    assert run("clients", "close", row["address"])[:2] == (0, f"closed {row['address']}\n")
    again = eventually(lambda: json.loads(run("clients", "held", "-o", "json")[1]))
    assert again[0]["address"] != row["address"]
    audit = (own.data_dir / "audit.log").read_text()
    assert "DELETE /ops/v1/clients/" in audit and row["address"].rpartition(":")[2] in audit
    status, _, said = run("clients", "close", row["address"])
    assert status == 1 and "There is no connection from" in said


def test_a_connection_with_nothing_open_is_listed_and_closed(own, run):
    """A connection before its handshake has no library; commands on the broker's host come by a socket of their own."""
    port = int(own.service_url.rpartition(":")[2])
    def row_of(connection):
        address = "{}:{}".format(*connection.getsockname())
        return next((row for row in json.loads(run("clients", "-o", "json")[1]) if row["address"] == address), None)

    silent = socket.create_connection(("127.0.0.1", port))
    before = eventually(lambda: row_of(silent))
    idle = socket.create_connection(("127.0.0.1", port))
    idle.sendall(frame(api.BaseCommand(
        type=api.BaseCommand.CONNECT, connect=api.CommandConnect(client_version="idle 1", protocol_version=21))))
    assert idle.recv(1_000)
    told = eventually(lambda: row if (row := row_of(idle)) and row["library"] else None)
    assert (told["library"], told["protocol"], told["listener"]) == ("idle 1", 21, "pulsar")
    assert (told["producers"], told["consumers"], told["topics"]) == (0, 0, 0)
    assert (before["library"], before["protocol"]) == (None, None)
    assert before["connected_ms"] <= told["connected_ms"]
    assert told["address"] not in run("clients", "public/default")[1]
    for connection in (idle, silent):
        assert run("clients", "close", "{}:{}".format(*connection.getsockname()))[0] == 0
        assert row_of(connection) is None
        connection.settimeout(HANG_SECONDS)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1_000) == b""
        connection.close()


@pytest.mark.parametrize("words, line", [
    (("topics", "hled"), "There is no topic public/default/hled.  Did you mean public/default/held?"),
    (("subscriptions", "public/defualt"), "There is no namespace public/defualt.  Did you mean public/default?"),
    (("clients", "publik/default"), "There is no tenant publik.  Did you mean public?"),
    (("why", "hled", "billing"), "There is no topic public/default/hled.  Did you mean public/default/held?"),
    (("why", "hled"), "There is no topic public/default/hled.  Did you mean public/default/held?"),
    (("why", "held", "biling"), "held has no subscription biling.  Did you mean billing?"),
])
def test_a_mistyped_name_is_one_line_with_the_nearest(run, words, line):
    status, printed, said = run(*words)
    assert (status, printed) == (1, "") and said.startswith(f"geminga: {line.removesuffix('?')}")
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", [("topics", "a/b/c/*"), ("topics", "--sort", "colour"),
                                   ("topics", "-n", "0"), ("why", "a/b", "c"), ("why",)])
def test_wrong_usage_asks_nothing(run, words):
    assert run(*words)[0] == 2


# -- why

def test_why_names_who_holds_how_many_and_since_when(run):
    printed = eventually(lambda: text if "holds 3" in (text := run("why", "held", "billing")[1]) else None)
    assert printed.startswith(
        "held, subscription billing (Shared): 3 messages are not acknowledged, and the oldest has waited ")
    assert "Everything is delivered: 3 messages are with consumers that have to acknowledge." in printed
    assert "Consumer till (127.0.0.1:" in printed and "holds 3 messages; it has acknowledged nothing" in printed
    [consumer] = json.loads(run("why", "held", "billing", "-o", "json")[1])[0]["consumers"]
    assert consumer["acknowledged_ms"] == 0 and consumer["consumed_ms"] > 0


def test_why_without_a_subscription_tells_all_in_short(run, client):
    client.subscribe("held", "idle").close()
    status, printed, _ = run("why", "held")
    lines = printed.splitlines()
    assert status == 0 and lines[1].startswith("  billing (Shared): 3 messages are not acknowledged")
    assert lines[2] == "  idle (Exclusive): everything is acknowledged."


def test_why_keeps_the_type_when_nobody_is_connected_and_says_what_to_do(run):
    printed = run("why", "left", "billing")[1]
    assert "(Exclusive): 5 messages are not acknowledged" in printed and "No consumer is connected." in printed
    assert "geminga admin topics unsubscribe left -s billing" in printed


def test_why_of_partitions_tells_together_what_is_alike(own, run, client):
    topic = partitioned_topic(own.http_url, 3)
    client.subscribe(topic, "sub").close()
    producer = client.create_producer(f"{topic}-partition-1")
    producer.send(b"x")
    producer.close()
    printed = eventually(lambda: text if "1 message is" in (text := run("why", topic, "sub")[1]) else None)
    assert "  partition 1: 1 message is not acknowledged" in printed
    assert "  partitions 0, 2: everything is acknowledged." in printed
    assert len(json.loads(run("why", topic, "sub", "-o", "json")[1])) == 3, "the answer of the broker"


def test_why_names_a_key_by_name(own, run, client):
    options = {"consumer_type": pulsar.ConsumerType.KeyShared}
    first = client.subscribe("keyed", "sub", consumer_name="first", **options)
    producer = client.create_producer("keyed")
    for number in range(20):
        producer.send(b"x", partition_key=f"customer-{number}")
    for _ in range(20):
        first.receive(HANG_MS)
    second = client.subscribe("keyed", "sub", consumer_name="second", **options)
    printed = eventually(lambda: text if "belongs to" in (text := run("why", "keyed", "sub")[1]) else None)
    assert "Key 'customer-" in printed
    assert "belongs to consumer second now, which waits until consumer first (" in printed
    assert "geminga clients close 127.0.0.1:" in printed
    for one in (producer, first, second):
        one.close()


# -- start and completion

def test_commands_start_without_what_they_do_not_need(own):
    """Most of a command's start is spent on imports."""
    for words in (["topics"], ["clients"], ["why", "held"], ["top", "-b"]):
        words = [*words, "--admin-url", own.http_url]
        code = f"import sys; from geminga.supervisor.main import main; main({words}); print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              timeout=HANG_SECONDS, check=True)
        assert "held" in done.stdout or words[0] == "clients"
        assert set(done.stdout.split()) & {"rich", "numpy", "google.protobuf", "aiohttp", "asyncio", "http.client",
                                           "ssl", "yaml", "termios"} == set(), words


def completed(own, *words):
    from click.shell_completion import ShellComplete
    *before, typed = words
    asked = ShellComplete(main.geminga, {}, "geminga", "_GEMINGA_COMPLETE").get_completions(
        [before[0], "--admin-url", own.http_url, *before[1:]], typed)
    return {each.value for each in asked}


def test_topics_and_subscriptions_are_completed(own):
    assert {"held", "left"} <= completed(own, "topics", "") and completed(own, "why", "hel") == {"held"}
    assert "public/default/held" in completed(own, "subscriptions", "public/default/")
    assert completed(own, "why", "held", "bil") == {"billing"}
    assert request("GET", own.http_url + "/status.html")[0] == 200


def test_a_partitioned_topic_is_completed_once_unless_a_partition_is_meant(own):
    assert request("PUT", f"{own.http_url}/admin/v2/namespaces/public/cut")[0] == 204
    assert request("PUT", f"{own.http_url}/admin/v2/persistent/public/cut/parted/partitions", b"2")[0] == 204
    name = "public/cut/parted"
    assert completed(own, "topics", "public/cut/") == {name}
    assert completed(own, "topics", f"{name}-partition-") == {f"{name}-partition-0", f"{name}-partition-1"}


def test_addresses_of_clients_are_completed(own, run, monkeypatch):
    monkeypatch.setenv("GEMINGA_DATA_DIR", str(own.data_dir))
    code = ("from geminga.supervisor import main; from click.shell_completion import ShellComplete; print(*[one.value "
            "for one in ShellComplete(main.geminga, {}, 'geminga', '_').get_completions(['clients', 'close'], '')])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=HANG_SECONDS, check=True)
    assert set(done.stdout.split()) >= {row["address"] for row in json.loads(run("clients", "held", "-o", "json")[1])}
