"""`geminga search`: finds messages beside a running broker, after it, and over the network."""
import asyncio
import contextlib
import io
import json
import signal
import subprocess
import threading

import pulsar
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.main import main
from geminga.workers.messages import delivered
from geminga.workers.messages.filters import Filter, Wish
from geminga.workers.messages.report import Report
from geminga.workers.messages.stored import pattern_of
from geminga.workers.pulsar_client.client import connect as connect_to

from ..clients.test_python_client import COMPRESSIONS
from ..harness import HANG_MS, HANG_SECONDS, LOAD_PAUSE_SECONDS, eventually, request, unique_topic
from ..proto.client_frames import T, entry_of, message_metadata, send
from ..storage.files import flip
from ..workers.peer import Peer
from .test_serve import GEMINGA

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(broker):
    made = connect(broker)
    yield made
    made.close()


def connect(broker):
    return pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def publish(client, topic, messages, **how):
    """Publish (payload, options of the message) by a producer of its own."""
    producer = client.create_producer(topic, **how)
    for payload, about in messages:
        producer.send_async(payload.encode(), None, **about)
    producer.flush()
    producer.close()


def run(*arguments):
    """Run a command in this process; return (exit status, output, lines of complaint)."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as complaints:
        status = main([str(argument) for argument in arguments])
    return status, printed.getvalue(), complaints.getvalue().splitlines()


def find(broker, *arguments):
    """Search the broker's data folder; return (exit status, messages as JSON, lines of complaint)."""
    return found_by("--data-dir", broker.data_dir, *arguments)


def found_by(*arguments):
    status, printed, complaints = run("search", "-o", "jsonl", *arguments)
    return status, [json.loads(line) for line in printed.splitlines()], complaints


def payloads(found):
    status, messages, complaints = found
    assert (status, complaints) == (0, []), found
    return [message["payload"] for message in messages]


@pytest.mark.parametrize("place", ["data folder", "network"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_messages_are_found_by_all_that_can_be_asked_for(broker, client, compression, place):
    topic = unique_topic("all")
    publish(client, topic, [(f"value {number}", {"partition_key": f"k{number % 4}",
                                                 "properties": {"region": "eu" if number % 2 else "us"}})
                            for number in range(20)],
            batching_enabled=True, batching_max_publish_delay_ms=1_000, producer_name=f"maker-{topic[-5:]}",
            compression_type=COMPRESSIONS[compression])
    publish(client, topic, [("alone", {"partition_key": "k1", "sequence_id": 900})], batching_enabled=False,
            compression_type=COMPRESSIONS[compression])
    where = ("--data-dir", broker.data_dir) if place == "data folder" else ("--url", broker.service_url)
    for asked, expected in [
            (("--key", "k1"), ["value 1", "value 5", "value 9", "value 13", "value 17", "alone"]),
            (("--key", "k[23]", "-n", "3"), ["value 2", "value 3", "value 6"]),
            (("--key", "?1", "--grep", "alo"), ["alone"]),
            (("--property", "region=eu", "--grep", "^value 1[0-9]$"),
             ["value 11", "value 13", "value 15", "value 17", "value 19"]),
            (("--property", "region", "--property", "region=us", "--key", "k0", "--until", "+1h"),
             ["value 0", "value 4", "value 8", "value 12", "value 16"]),
            (("--where", "key == 'k3' && contains(payload, '7')"), ["value 7"]),
            (("--producer", f"maker-{topic[-5:]}", "--sequence-id", "3-5"), ["value 3", "value 4", "value 5"]),
            (("--sequence-id", "900", "--since", "-1h"), ["alone"])]:
        assert payloads(found_by(*where, topic, *asked)) == expected, asked
    for asked in (("--key", "k"), ("--property", "eu"), ("--until", "-1h"), ("--producer", "maker"), ("--grep", "V")):
        assert found_by(*where, topic, *asked) == (1, [], []), asked


def test_a_namespace_means_all_its_topics_and_partitions(broker, client):
    namespace = f"public/{unique_topic('n').rpartition('/')[2]}"
    assert request("PUT", f"{broker.http_url}/admin/v2/namespaces/{namespace}", b"{}")[0] == 204
    parted, single = f"persistent://{namespace}/parted", f"persistent://{namespace}/single"
    assert request("PUT", f"{broker.http_url}/admin/v2/persistent/{namespace}/parted/partitions", b"3")[0] == 204
    publish(client, parted, [(f"order {number}", {"partition_key": str(number)}) for number in range(20)],
            batching_enabled=False)
    publish(client, single, [("order alone", {}), ("other", {})])
    expected = sorted([*(f"order {number}" for number in range(20)), "order alone"])
    for where in (("--data-dir", broker.data_dir), ("--url", broker.service_url)):
        found = found_by(*where, namespace, "--grep", "order")
        assert sorted(payloads(found)) == expected
        assert {message["topic"] for message in found[1]} == {single, *(f"{parted}-partition-{n}" for n in range(3))}
        assert len(payloads(found_by(*where, parted, "--grep", "order"))) == 20
        one = found_by(*where, f"{parted}-partition-1")
        assert {message["topic"] for message in one[1]} == {f"{parted}-partition-1"}
    assert run("search", "--data-dir", broker.data_dir, namespace, "--grep", "order", "--total")[:2] == (0, "21\n")


def test_a_topic_that_is_deleted_while_its_namespace_is_searched_is_a_line(broker, client):
    namespace = f"public/{unique_topic('n').rpartition('/')[2]}"
    assert request("PUT", f"{broker.http_url}/admin/v2/namespaces/{namespace}", b"{}")[0] == 204
    topics = [f"persistent://{namespace}/{name}" for name in "abc"]
    for topic in topics:
        publish(client, topic, [(topic, {})])
    lines = []

    async def search():
        asked = delivered.messages(lambda: connect_to(broker.service_url), namespace, Filter(), Wish(),
                                   Report(lines.append))
        payloads = [message.payload.decode() for message in await anext(asked)]
        url = f"{broker.http_url}/admin/v2/{topics[1].replace('://', '/')}?force=true"
        assert (await asyncio.to_thread(request, "DELETE", url))[0] == 204
        return payloads + [message.payload.decode() async for messages in asked for message in messages]

    assert asyncio.run(search()) == [topics[0], topics[2]]
    assert len(lines) == 1 and lines[0].startswith(f"{topics[1]}: ") and "TopicNotFound" in lines[0]


def test_a_message_in_chunks_is_found_by_a_text_over_a_border(broker, client):
    topic = unique_topic("chunks")
    producer = client.create_producer(topic, chunking_enabled=True)
    large = "".join(str(number) for number in range(2_000_000))
    producer.send(large.encode(), partition_key="large")
    producer.send(b"999999 is small")
    producer.close()
    assert payloads(find(broker, topic, "--key", "large")) == [large]
    assert payloads(find(broker, topic, "--grep", "9999991000000")) == [large]
    assert run("search", "--data-dir", broker.data_dir, topic, "--grep", "99999[89]", "--total")[:2] == (0, "2\n")


class Order(pulsar.schema.Record):
    number = pulsar.schema.Integer()
    city = pulsar.schema.String()


@pytest.mark.parametrize("place", ["data folder", "network"])
@pytest.mark.parametrize("kind", [pulsar.schema.AvroSchema, pulsar.schema.JsonSchema])
def test_messages_are_found_by_their_decoded_values(broker, client, kind, place):
    topic = unique_topic("values")
    producer = client.create_producer(topic, schema=kind(Order), batching_enabled=False)
    for number in range(10):
        producer.send(Order(number=number, city=f"Paris-{number}"))
    producer.close()
    where = ("--data-dir", broker.data_dir) if place == "data folder" else ("--url", broker.service_url)
    for asked, expected in [(("--where", "value.number > `7`"), [8, 9]), (("--grep", '"number": [45]'), [4, 5]),
                            (("--grep", "Paris-3"), [3]), (("--where", "value.city == 'Paris-6'"), [6])]:
        status, messages, complaints = found_by(*where, topic, *asked)
        assert (status, complaints) == (0, [])
        assert [message["value"]["number"] for message in messages] == expected, asked
    assert run("search", *where, topic, "--grep", '"number": ', "--total")[:2] == (0, "10\n")
    assert '"city": "Paris-3"' in run("search", *where, topic, "--grep", "Paris-3")[1]


def test_a_search_beside_a_publishing_broker_finds_all_that_was_confirmed(broker, client):
    """Torn entries would be complaints, and messages with a receipt must not be missing."""
    topic, is_over, confirmed = unique_topic("live"), threading.Event(), [0]
    producer = client.create_producer(topic, batching_enabled=False)

    def go_on():
        while not is_over.wait(LOAD_PAUSE_SECONDS):
            producer.send(b"value" * 50, partition_key="k")
            confirmed[0] += 1
    publishing = threading.Thread(target=go_on)
    publishing.start()
    try:
        for _ in range(5):
            before = eventually(lambda: confirmed[0], what="a first receipt")
            status, messages, complaints = find(broker, topic, "--key", "k")
            assert (status, complaints) == (0, []) and len(messages) >= before
            assert [message["sequenceId"] for message in messages] == list(range(len(messages)))
    finally:
        is_over.set()
        publishing.join()


def test_messages_are_found_without_a_broker_and_after_its_restart(fresh_broker):
    client = connect(fresh_broker)
    topic = unique_topic("kept")
    publish(client, topic, [(f"value {number}", {"partition_key": "k"}) for number in range(10)],
            batching_enabled=False)
    client.close()
    fresh_broker.stop()
    assert payloads(find(fresh_broker, topic, "--grep", "value [0-4]")) == [f"value {number}" for number in range(5)]
    fresh_broker.start()
    assert len(payloads(find(fresh_broker, topic, "--key", "k"))) == 10


def test_acknowledged_messages_are_found_while_they_are_stored_and_passed_over_then(start_broker, tmp_path):
    """Space that a broker has given back is no damage."""
    (tmp_path / "geminga.toml").write_text("[storage]\nkeep_acknowledged_s = 0\n")
    broker = start_broker("--config", str(tmp_path / "geminga.toml"))
    client = connect(broker)
    topic = unique_topic("acknowledged")
    consumer = client.subscribe(topic, "s")
    publish(client, topic, [(f"{number} " + "x" * 5_000, {"partition_key": "k"}) for number in range(200)],
            batching_enabled=False)
    for number in range(200):
        message = consumer.receive(HANG_MS)
        if number != 150:
            consumer.acknowledge(message)

    def left():
        status, messages, complaints = find(broker, topic, "--key", "k")
        assert (status, complaints) == (0, [])
        return [int(message["payload"].split()[0]) for message in messages]
    eventually(lambda: len(left()) < 100, what="space that is given back")
    assert 150 in left()
    client.close()


def test_damage_is_a_line_and_hides_nothing_else(fresh_broker):
    client = connect(fresh_broker)
    topic = unique_topic("damaged")
    publish(client, topic, [(f"value {number}", {"partition_key": "k"}) for number in range(10)],
            batching_enabled=False)
    client.close()
    fresh_broker.stop()
    ledgers = fresh_broker.data_dir.glob("partitions/*/*.ledger")
    place = next(path for path in ledgers if b"value 7" in path.read_bytes())
    flip(place, place.read_bytes().index(b"value 7") + 2)
    status, messages, complaints = find(fresh_broker, topic, "--key", "k")
    assert (status, len(messages), len(complaints)) == (4, 9, 1)
    assert "its checksum is wrong" in complaints[0] and str(place) in complaints[0]


def test_forms_of_the_output(broker, client):
    topic = unique_topic("forms")
    publish(client, topic, [("text", {"partition_key": "a"})], batching_enabled=False)
    publish(client, topic, [("\x1b[2J", {})], batching_enabled=False)
    status, printed, complaints = run("search", "--data-dir", broker.data_dir, topic)
    assert (status, complaints) == (0, [])
    name = topic.rpartition("/")[2]
    assert [(line.split()[0], *line.split()[-2:]) for line in printed.splitlines()] == [
        (name, "a", "text"), (name, "4", "bytes")]
    for form in ("json", "yaml"):
        status, printed, _ = run("search", "--data-dir", broker.data_dir, topic, "-o", form, "--key", "a")
        assert status == 0 and "text" in printed and printed[0] in "[-"
    assert run("search", "--data-dir", broker.data_dir, topic, "--total", "-o", "jsonl")[1] == '{"messages":2}\n'


@pytest.mark.parametrize(("arguments", "status", "text"), [
    (("no-such-topic",), 1, "there is no topic persistent://public/default/no-such-topic"),
    (("no/namespace",), 1, "no/namespace"), (("a/b/c/d",), 2, "Invalid topic name"),
    (("t", "--grep", "["), 2, "--grep '[' is not a regular expression"), (("t", "--sequence-id", "9-3"), 2, "9-3"),
    (("t", "--since", "soon"), 2, "--since"), (("t", "--total", "-n", "3"), 2, "leave out --count"),
    (("t", "--url", "pulsar://127.0.0.1:1"), 2, "exclude each other"),
    (("t", "--data-dir", "{folder}/absent"), 2, "/absent is no data folder")])
def test_mistakes_are_answered_in_one_line(broker, tmp_path, arguments, status, text):
    arguments = [word.replace("{folder}", str(tmp_path)) for word in arguments]
    where = () if "--data-dir" in arguments else ("--data-dir", broker.data_dir)
    found, printed, complaints = run("search", *where, *arguments)
    assert (found, printed) == (status, "") and text in complaints[-1]


def test_without_a_data_folder_the_broker_is_asked_and_a_note_says_so(tmp_path):
    done = subprocess.run([GEMINGA, "search", "t"], capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
                          cwd=tmp_path)
    assert done.returncode == 3 and done.stdout == ""
    note, refused = done.stderr.splitlines()
    assert "is no data folder of a broker: all messages are read from pulsar://127.0.0.1:6650" in note
    assert "Connection refused" in refused
    status, printed, complaints = run("search", "--url", "pulsar://127.0.0.1:1", "t")
    assert (status, printed, len(complaints)) == (3, "", 1)


def test_an_interrupted_search_says_that_it_was_and_ends_with_130(broker, client):
    """The command stands still while nobody reads its output, so it has not ended when it is interrupted."""
    topic = unique_topic("interrupted")
    publish(client, topic, [("x" * 1_000, {}) for _ in range(2_000)])
    process = subprocess.Popen([GEMINGA, "search", "--data-dir", broker.data_dir, topic], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    assert topic.rpartition("/")[2] in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    printed, complaint = process.communicate(timeout=HANG_SECONDS)
    assert (process.returncode, complaint) == (130, "geminga: interrupted: not everything was searched\n")
    assert len(printed.splitlines()) < 1_999


def test_a_reader_that_has_enough_ends_the_search(broker, client):
    topic = unique_topic("enough")
    publish(client, topic, [("x" * 1_000, {}) for _ in range(2_000)])
    process = subprocess.Popen([GEMINGA, "search", "--data-dir", broker.data_dir, topic], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(HANG_SECONDS), process.stderr.read()) == (0, "")
    process.stderr.close()


@pytest.mark.parametrize(("glob", "text", "expected"), [
    ("a*", "a\nb", True), ("a*", "ba", False), ("?", "ü", True), ("a.c", "abc", False), ("[ab]c", "bc", True),
    ("[]x]c", "]c", True), ("[!]x]c", "ac", True), ("[", "[", True), ("a[", "a[", True), ("*[*]*", "x[y", True),
    ("**a**", "cab", True), ("a b", "a b", True)])
def test_a_shells_pattern_becomes_one_that_matches_all_the_same(glob, text, expected):
    import re2
    assert (re2.fullmatch(f"(?s:{pattern_of(glob)})", text) is not None) == expected


# -- transactions

def test_messages_of_transactions_are_found_as_consumers_get_them(fresh_broker):
    """Committed ones are found at once; aborted ones never; and nothing behind an open one."""
    topic = unique_topic("in")
    with Peer(fresh_broker.service_url) as peer:
        peer.open_producer(topic)

        def publish_in(*payloads):
            new = peer.ask(T.NEW_TXN, request_id=1, tc_id=0, txn_ttl_millis=300_000).newTxnResponse
            bits = {"txnid_most_bits": new.txnid_most_bits, "txnid_least_bits": new.txnid_least_bits}
            peer.ask(T.ADD_PARTITION_TO_TXN, request_id=2, partitions=[topic], **bits)
            for payload in payloads:
                peer.say(send(entry_of(message_metadata(sequence_id=1), payload), sequence_id=1, **bits))
                assert peer.hear().type == T.SEND_RECEIPT
            return bits

        def end(bits, action):
            assert not peer.ask(T.END_TXN, request_id=3, txn_action=action, **bits).endTxnResponse.HasField("error")

        end(publish_in(b"committed"), api.COMMIT)
        end(publish_in(b"aborted"), api.ABORT)
        assert payloads(find(fresh_broker, topic)) == ["committed"]
        second = publish_in(b"open")
        end(publish_in(b"behind"), api.COMMIT)
        assert payloads(find(fresh_broker, topic)) == ["committed"]
        fresh_broker.kill_supervisor()
        status, found, [complaint] = find(fresh_broker, topic)
        assert (status, [each["payload"] for each in found]) == (4, ["committed"])
        assert "whether transactions there have been committed" in complaint
    fresh_broker.start()
    with Peer(fresh_broker.service_url) as peer:
        end(second, api.COMMIT)
        assert payloads(find(fresh_broker, topic)) == ["committed", "open", "behind"]
    fresh_broker.stop()
    assert payloads(find(fresh_broker, topic)) == ["committed", "open", "behind"]
