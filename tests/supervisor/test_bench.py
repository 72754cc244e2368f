"""`geminga bench`: what it sends is what it says, nothing is left behind, and figures do not flatter a broker."""
import json
import signal
import struct
import subprocess

import crc32c
import numpy as np
import pulsar
import pytest

from geminga.proto import compression
from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.load import blocks, latencies, plan, producer, running, wire

from ..harness import COMMAND, HANG_SECONDS, eventually, partitioned_topic, request, unique_topic
from .test_load_wire import command, receipt

GEMINGA = COMMAND[0]


def test_frames_carry_their_time_their_key_and_a_checksum():
    message = blocks.Message(100, batch=3, keys=5, codec=api.LZ4)
    block = blocks.Block("bench-0123-00000", "0123", message, producers=2)
    raw = block.stamped(1_234, 12, 1_800_000_000_123_456)
    step = len(raw) // 12
    for number in range(12):
        sent, entry = command(raw[number * step:(number + 1) * step])
        assert (sent.send.sequence_id, sent.send.producer_id) == (wire.SEQUENCE_FIRST + 1_234 + number,
                                                                  wire.ID_FIRST + (1_234 + number) % 2)
        checksum, size = struct.unpack_from(">II", entry, 2)
        assert checksum == crc32c.crc32c(entry[6:])
        metadata = api.MessageMetadata.FromString(entry[10:10 + size])
        assert metadata.partition_key == f"key-{(1_234 + number) % 5:08d}"
        assert blocks.due_us_of(metadata) == 1_800_000_000_123_456
        unpacked = compression.decompress(api.LZ4, entry[10 + size:], metadata.uncompressed_size)
        assert bytes(unpacked).count(blocks.random_letters(100)) == metadata.num_messages_in_batch == 3
    data, ends = np.frombuffer(raw, np.uint8), step * np.arange(1, 13)
    stamps = blocks.Stamps("0123", message)
    assert stamps.ours(data, ends).all()
    assert (stamps.due_us(data, ends) == 1_800_000_000_123_456).all()
    assert not blocks.Stamps("4567", message).ours(data, ends).any()


def test_percentiles_are_upper_bounds_within_one_percent():
    counts = np.zeros(latencies.BUCKETS, np.int64)
    latencies.add(counts, np.arange(1, 100_001, dtype=np.float64))
    figures = latencies.percentiles_ms(counts)
    expected = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9, "max": 100}
    assert figures.keys() == expected.keys()
    assert all(expected[part] <= value < expected[part] * 1.0101 for part, value in figures.items())
    assert latencies.percentiles_ms(np.zeros(latencies.BUCKETS, np.int64)) is None


class Held:
    """A connection to a broker that gives receipts when the test says so."""

    def __init__(self):
        self.outbox, self.data, self._receipts = [], np.zeros(0, np.uint8), []

    def request_id(self):
        return 1

    def ask(self, what, asked, expected):
        return {}

    def put(self, data):
        frames = np.frombuffer(data, np.uint8)
        self._receipts += wire.sequences_of(frames, wire.frame_starts(frames, len(frames))[0]).tolist()

    def receive(self, timeout_s):
        raw, self._given = getattr(self, "_given", b""), b""
        self.data = np.frombuffer(raw, np.uint8)
        return wire.frame_starts(self.data, len(raw))[0]

    def release(self):
        self._given = b"".join(receipt(wire.ID_FIRST, wire.SEQUENCE_FIRST + number, 1) for number in self._receipts)
        self._receipts = []


def test_a_latency_counts_from_when_a_message_was_due_also_if_it_could_not_be_sent(monkeypatch):
    """A broker that stands still for a second holds up the producer.  The messages that wait are counted all the same.
    """
    now = 1_000.0
    monkeypatch.setattr(producer, "CLOCK", lambda: now)
    monkeypatch.setattr(plan.Plan, "link", lambda self, place: Held())
    load = plan.Plan("", {plan.BrokerAddress(""): ("topic",)}, blocks.Message(10), rate=100, window=5, consumers=0)
    board = plan.Board(1, 0)
    one = producer.Producer(load, load.parts(1)[0], board)
    one.begin()
    for _ in range(101):      # a second passes without a receipt: five messages fill the window
        one.step()
        now += 0.01
    assert board.behind[0] > 90
    for _ in range(30):       # the broker answers at once now
        one.link.release()
        one.step()
    figures = latencies.percentiles_ms(board.publish_counts[0])
    assert board.published[0] == 101 and board.behind[0] == 0
    assert figures["p50"] > 450 and figures["max"] > 1_000


def bench(broker, *words):
    """Run `geminga bench`; return (exit status, figures or None, lines of complaint)."""
    done = subprocess.run([GEMINGA, "bench", "--url", broker.service_url, "--admin-url", broker.http_url, "-o", "json",
                           *map(str, words)], capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr.splitlines()


def topics_of(broker):
    return set(json.loads(request("GET", broker.http_url + "/admin/v2/persistent/public/default")[1]))


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    ["-p", 2, "-c", 2, "--partitions", 3, "--keys", 7, "--batch", 10, "--compression", "zstd"],
    ["--topics", 3, "--rate", 20_000, "--size", "1K"],
    ["-c", 3, "--type", "key_shared", "--keys", 50, "--processes", 2],
    ["--size", "2M", "-n", 20],
    ["--client", "pulsar-client", "-p", 2, "--batch", 10, "--partitions", 2],
], ids=lambda options: " ".join(map(str, options)))
def test_every_message_arrives_and_topics_of_the_load_are_removed(own, options):
    before = topics_of(own)
    status, figures, complaints = bench(own, "-n", 5_000, *options)
    count = 20 if "2M" in options else 5_000
    assert (status, complaints) == (0, [])
    assert figures["published"] == figures["consumed"] == count
    size = 2 << 20 if "2M" in options else 1_024 if "1K" in options else 100      # of a payload, counted alike twice
    for way in ("published", "consumed"):
        assert figures[f"{way}_bytes_rate"] / figures[f"{way}_rate"] == pytest.approx(size, rel=0.01), way
    for name in ("publish_ms", "end_to_end_ms"):
        assert 0 < figures[name]["p50"] <= figures[name]["p99"] <= figures[name]["max"] < 60_000
    assert topics_of(own) == before


@pytest.mark.slow
def test_a_rate_is_kept_and_measured_for_the_asked_time(own):
    status, figures, _ = bench(own, "--rate", 500, "-d", "1s", "--warmup", "0s", "-c", 0)
    assert status == 0 and figures["end_to_end_ms"] is None
    assert 300 <= figures["published"] <= 600 and 1 <= figures["seconds"] < 5


@pytest.mark.slow
def test_a_topic_with_messages_of_others_is_read_as_they_are(own, client):
    """Batches of another program are counted by their metadata.  A named subscription stays, another one does not."""
    topic = partitioned_topic(own.http_url, 2)
    sender = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=50)
    for number in range(300):
        sender.send_async(b"x" * number, None, properties={"number": str(number)})
    sender.flush()
    sender.close()
    client.subscribe(topic, "billing", initial_position=pulsar.InitialPosition.Earliest).close()
    for words, left in ((["-s", "billing"], {"billing"}), ([], {"billing"})):
        status, figures, complaints = bench(own, topic, "-p", 0, "-n", 300, *words)
        assert (status, figures["consumed"], figures["published"], complaints) == (0, 300, 0, [])
        url = f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/subscriptions"
        assert set(json.loads(request("GET", url)[1])) == left


@pytest.mark.slow
def test_a_mistyped_topic_is_not_made(own):
    topic = unique_topic("mistyped")
    status, figures, complaints = bench(own, topic)
    assert (status, figures, len(complaints)) == (1, None, 1)
    assert f"there is no topic {topic}" in complaints[0] and topic not in topics_of(own)


@pytest.mark.slow
def test_an_interrupted_load_removes_its_topics(own):
    before = topics_of(own)
    process = subprocess.Popen([GEMINGA, "bench", "--url", own.service_url, "--admin-url", own.http_url],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: topics_of(own) - before, what="a topic of the load")
    process.send_signal(signal.SIGTERM)
    said, complaints = process.communicate(timeout=HANG_SECONDS)
    assert (process.returncode, said, complaints) == (1, "", "geminga: interrupted\n")
    assert topics_of(own) == before


@pytest.mark.slow
def test_figures_are_text_for_people(own):
    done = subprocess.run([GEMINGA, "bench", "--url", own.service_url, "--admin-url", own.http_url, "-n", "1000"],
                          capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("published ") and lines[0].endswith(" s") and "1,000 messages" in lines[0]
    assert lines[3].split() == ["LATENCY", "IN", "MS", "P50", "P90", "P99", "P99.9", "MAX"]
    assert "Without --rate" in lines[-1] and not done.stderr


@pytest.mark.slow
def test_a_process_of_the_load_that_dies_ends_it(own, monkeypatch):
    monkeypatch.setattr(running.consumer.Consumer, "begin", lambda self: running.os._exit(1))
    with pytest.raises(running.BrokerError, match="died"):
        topic = unique_topic()
        running.measure(plan.Plan(own.service_url, {plan.BrokerAddress(own.service_url): (topic,)}, blocks.Message(10),
                                  count=10), warmup_s=0, seconds=60)


@pytest.mark.slow
def test_messages_count_that_arrive_before_the_first_look_at_the_load(own, monkeypatch):
    start = running.Running.start

    def start_late(self):
        """Return only when everything has arrived, as if this process had had no processor meanwhile."""
        started = start(self)
        eventually(lambda: self.look().arrived == 10)
        return started

    monkeypatch.setattr(running.Running, "start", start_late)
    places = {plan.BrokerAddress(own.service_url): (unique_topic(),)}
    figures = running.measure(plan.Plan(own.service_url, places, blocks.Message(10), count=10), warmup_s=0, seconds=60)
    assert figures["published"] == figures["consumed"] == 10


@pytest.mark.parametrize(("words", "expected"), [
    (["-p", "0", "-c", "0"], "nothing to do"), (["-p", "0"], "a TOPIC with messages is needed"),
    (["orders", "--partitions", "2"], "topics of its own"), (["-s", "billing"], "--subscription is one of TOPIC"),
    (["--type", "exclusive", "-c", "2"], "one consumer"), (["--size", "x"], "is not a size"),
    (["--duration", "soon"], "is not a time"), (["--rate", "0"], "is not a rate"),
])
def test_wrong_usage_is_told_in_one_line(capsys, words, expected):
    from geminga.supervisor.main import main
    assert main(["bench", *words]) == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]
