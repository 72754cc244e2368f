"""What the Java client is promised, shown with the tools that users of it have: pulsar-client, pulsar-perf,
pulsar-admin.

Java writes and Python reads, Python writes and Java reads: what one of them compresses, batches or cuts, the other puts
together.
"""

import json
import random
import re
import string
from concurrent.futures import ThreadPoolExecutor

import pulsar
import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..harness import HANG_MS, partitioned_topic, request, unique_topic
from ..supervisor.test_transactions import acknowledge, add, begin, publish
from ..workers.peer import Peer
from .java import JavaTools, fetch_jars

pytestmark = pytest.mark.java

RECEIVE_MS = HANG_MS
COMPRESSIONS = {
    "NONE": pulsar.CompressionType.NONE,
    "LZ4": pulsar.CompressionType.LZ4,
    "ZLIB": pulsar.CompressionType.ZLib,
    "ZSTD": pulsar.CompressionType.ZSTD,
    "SNAPPY": pulsar.CompressionType.SNAPPY,
}


@pytest.fixture(scope="module")
def java(broker, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    return JavaTools(fetch_jars(), tmp_path_factory.mktemp("java"), broker.service_url, broker.http_url)


def topic_of(broker, partitions: int) -> str:
    return partitioned_topic(broker.http_url, partitions) if partitions else unique_topic("java")


plain_and_partitioned = pytest.mark.parametrize("partitions", [0, 3], ids=["plain", "partitioned"])


def contents(printed: str) -> list[str]:
    return re.findall(r"content:(.*)", printed)


@pytest.mark.parametrize(("partitions", "options"), [(0, ()), (3, ("--disable-batching",))],
                         ids=["plain-batched", "partitioned-single"])
def test_java_receives_what_java_published(broker, client, java, partitions, options):
    """Java's tools receive what they published, with keys and properties; messages of a key keep their order."""
    topic = topic_of(broker, partitions)
    client.subscribe(topic, "sub").close()
    with ThreadPoolExecutor() as pool:  # at once: most of a run's time is Java's own start
        messages = ("-m", "one,two,three", "-n", "10", "-k", "a key", "-p", "colour=red")
        produced = pool.submit(java.client, "produce", topic, *messages, *options)
        consumed = pool.submit(java.client, "consume", topic, "-s", "sub", "-n", "30")

    assert "30 messages successfully produced" in produced.result()
    assert contents(consumed.result()) == ["one", "two", "three"] * 10
    assert consumed.result().count("key:[a key], properties:[colour=red]") == 30


def test_what_java_compressed_in_batches_is_read_by_python_and_by_java(broker, client, java, tmp_path):
    """Three texts in every compression arrive whole, on a plain and a partitioned topic, with and without keys.

    The tool that publishes ends ten seconds after it began, so that all of them run at once.
    """
    texts = ["short", "a longer text " * 20, "".join(random.Random(1).choices(string.ascii_letters, k=5000))]
    (tmp_path / "texts").write_text("\n".join(texts))
    topics = {compression: [topic_of(broker, partitions) for partitions in (0, 3)] for compression in COMPRESSIONS}
    consumers = [client.subscribe(topic, "python") for both in topics.values() for topic in both]
    for both in topics.values():
        for topic in both:
            client.subscribe(topic, "java").close()

    def publish(compression: str) -> str:
        keys = ("-mk", "random") if compression in ("LZ4", "ZSTD") else ()
        common = ("-m", "1000", "-r", "5000", "-f", str(tmp_path / "texts"), "--warmup-time", "0")
        return java.perf("produce", *topics[compression], "-t", "2", *common, "-z", compression, *keys)

    with ThreadPoolExecutor() as pool:
        list(pool.map(publish, topics))

    for consumer in consumers:
        received = [consumer.receive(timeout_millis=RECEIVE_MS) for _ in range(500)]
        assert {message.data().decode() for message in received} == set(texts)
        assert any(message.message_id().batch_index() > 0 for message in received)
    printed = java.perf("consume", *(topic for both in topics.values() for topic in both), "-t", "10", "-ss", "java",
                        "-m", "5000")
    assert " DONE " in printed, printed[-3000:]      # said behind the last of all messages
    counted = re.search(r"Aggregated throughput stats --- (\d+) records received", printed)
    assert counted is None or int(counted[1]) == 5000      # None: the tool ended before its log was written


@plain_and_partitioned
def test_java_reads_what_python_compressed(broker, client, java, partitions):
    """Java reads messages of one topic in every compression, batched and not."""
    topic = topic_of(broker, partitions)
    client.subscribe(topic, "sub").close()
    expected = []
    for name, compression in COMPRESSIONS.items():
        for batching in (False, True):
            producer = client.create_producer(topic, compression_type=compression, batching_enabled=batching)
            for number in range(3):
                text = f"{name} {batching} {number} " + "text " * 50
                producer.send_async(text.encode(), lambda result, message_id: None, partition_key=name)
                expected.append(text)
            producer.flush()
    assert sorted(contents(java.client("consume", topic, "-s", "sub", "-n", "30"))) == sorted(expected)


def test_python_reads_what_java_cut_into_chunks(broker, client, java, tmp_path):
    topic = partitioned_topic(broker.http_url, 2)
    body = random.Random(3).randbytes(12 * 1024 * 1024)
    (tmp_path / "body").write_bytes(body)
    consumer = client.subscribe(topic, "sub")
    java.client("produce", topic, "--chunking", "-f", str(tmp_path / "body"))
    assert consumer.receive(timeout_millis=RECEIVE_MS).data() == body


def test_java_reads_what_python_cut_into_chunks(client, java):
    topic = unique_topic("java")
    client.subscribe(topic, "sub").close()
    body = "".join(random.Random(4).choices(string.ascii_letters, k=1024)) * (12 * 1024)
    client.create_producer(topic, chunking_enabled=True).send(body.encode())
    assert contents(java.client("consume", topic, "-s", "sub", "-n", "1")) == [body]


def test_java_administrates_partitioned_topics(broker, java):
    """Pulsar's tool creates a partitioned topic, reads its metadata and looks it up over REST."""
    topic = unique_topic("java")
    made, metadata, place = java.admin_all([f"topics {words}" for words in (
        f"create-partitioned-topic {topic} -p 4", f"get-partitioned-topic-metadata {topic}",
        f"lookup {topic}-partition-0")])
    assert [made[0], metadata[0], place[0]] == [0, 0, 0]
    assert re.search(r'"partitions"\s*:\s*4', metadata[1])
    assert broker.service_url in place[1]


def test_java_administrates_transactions(broker, java):
    """Pulsar's tool reads every answer about transactions, and aborts one."""
    topic, sub = unique_topic("java"), "sub"
    with Peer(broker.service_url) as peer:
        peer.open_producer(topic)
        peer.subscribe(topic, sub)
        plain = publish(peer)
        its, path = begin(peer, 0)
        add(peer, its, topic)
        add(peer, its, topic, sub)
        first = publish(peer, 1, **its)
        acknowledge(peer, its, plain, api.CommandAck.Cumulative)
    most, least = path.split("/")
    one, at, on = f"-m {most} -l {least}", f"-t {topic}", f"-t {topic} -s {sub}"
    there = f"-l {plain.ledgerId} -e {plain.entryId}"
    verbs = [
        "coordinators-list", "coordinator-stats", "coordinator-stats -c 0", f"transaction-metadata {one}",
        f"transaction-in-buffer-stats {one} {at}", f"transaction-in-pending-ack-stats {one} {on}",
        f"transaction-buffer-stats -l -s {at}", f"pending-ack-stats -l {on}",
        f"position-stats-in-pending-ack {there} {on}", "slow-transactions -t 1m", f"abort-transaction {one}",
        f"abort-transaction {one}", f"transaction-metadata {one}", "scale-transactionCoordinators -r 1",
        "coordinator-internal-stats -c 0", f"pending-ack-internal-stats {on}", f"buffer-snapshot-internal-stats {at}"]
    told = java.admin_all([f"transactions {verb}" for verb in verbs])
    assert [status for status, _ in told] == [0] * 11 + [1] * 3 + [0] * 3
    printed = [json.loads(out.partition("}\nExit")[0] + "}") if out.startswith("{") else out for _, out in told]
    assert f"0    {broker.service_url}\n" in printed[0]
    assert "TransactionCoordinatorStats(state=Ready, " in printed[1] and printed[2]["ongoingTxnSize"] >= 1
    start, position = f"{first.ledgerId}:{first.entryId}", f"{plain.ledgerId}:{plain.entryId}"
    buffer, pending = {"startPosition": start, "aborted": False}, {"cumulativeAckPosition": position}
    assert (printed[3]["producedPartitions"], printed[3]["ackedPartitions"]) == (
        {topic: buffer}, {topic: {sub: pending}})
    assert printed[4:6] == [buffer, pending]
    assert (printed[6]["state"], printed[6]["maxReadPosition"]) == ("Ready", position)
    assert printed[6]["lowWaterMarks"]["0"] < int(least) and printed[7]["ongoingTxnSize"] == 1
    assert f"txnId=({most},{least}), status=OPEN" in printed[9]
    logs = printed[14]["transactionLogStats"], printed[15]["pendingAckLogStats"]
    assert all(log["managedLedgerInternalStats"]["ledgers"][-1]["entries"] > 0 for log in logs)
    assert printed[16]["snapshotType"] == "None"


def test_java_finds_the_broker_well(java):
    assert "ok" in java.admin("brokers", "healthcheck")


def test_java_publishes_with_a_schema_that_others_find(broker, client, java):
    """Java's producers register schema versions, and its consumers ask for the versions that they meet."""
    topic, old = unique_topic("java"), {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    new = {**old, "fields": [*old["fields"], {"name": "b", "type": "int", "default": 7}]}
    client.subscribe(topic, "sub").close()
    java.client("produce", topic, "-m", '{"a": 1}', "-s", "#", "-vs", f"avro:{json.dumps(old)}")
    java.client("produce", topic, "-m", '{"a": 2, "b": 3}', "-s", "#", "-vs", f"avro:{json.dumps(new)}")
    printed = java.client("consume", topic, "-s", "sub", "-n", "2", "-st", "auto_consume")
    assert re.findall(r"content:\{(.*?)\}", printed) == ["a=1", "a=2, b=3"]
    shown = json.loads(request("GET", f"{broker.http_url}/admin/v2/schemas/{topic.partition('://')[2]}/schema")[1])
    assert (shown["version"], shown["type"]) == (1, "AVRO")
