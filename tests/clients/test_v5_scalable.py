"""Programs for the client of Pulsar 5 on scalable topics: the same scenarios as on regular ones, and more.

Topics of some scenarios have four segments, the others are created by their first use, with one.
"""
import contextlib
import json
import re
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.catalogue.catalogue import open_to_read
from geminga.supervisor.main import main

from ..conftest import RunningBroker
from ..harness import HANG_SECONDS, Broker, eventually, request, unique_topic
from ..relay import Relay
from .java import JavaTools, fetch_v5_jars
from .test_v5_client import CLOSE_MS, PROGRAM, SCENARIOS

pytestmark = [pytest.mark.slow, pytest.mark.java]

OWN_OPTIONS = "--owners", "2", "--workers", "2"
# They add partitions, and expect a second consumer of one segment to wait.
RUN = [name for name in SCENARIOS if name not in ("grown", "surplus")]
SEGMENTED = ["keys", "checkpoint", "stream", "streams", "transactions", "transacted", "scalable"]


@pytest.fixture(scope="module")
def prefix() -> str:
    return f"topic://public/default/{unique_topic('v5s').rpartition('/')[2]}"


@pytest.fixture(scope="module")
def used(broker, request) -> Broker | RunningBroker:
    """A broker of two owners and two workers, or the one that runs already."""
    return request.getfixturevalue("own") if isinstance(broker, Broker) else broker


def url_of(used, topic: str) -> str:
    return f"{used.http_url}/admin/v2/scalable/{topic.removeprefix('topic://')}"


@pytest.fixture(scope="module")
def java(used, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    return JavaTools(fetch_v5_jars(), tmp_path_factory.mktemp("java"), used.service_url, used.http_url)


@pytest.fixture(scope="module")
def said(used, prefix, java) -> dict[str, str]:
    """What the program printed: the name of each scenario -> "ok", or how it failed; "closing" -> its milliseconds."""
    for name in SEGMENTED:
        assert request("PUT", f"{url_of(used, f'{prefix}-{name}')}?numInitialSegments=4")[0] == 204
    lines = [line.split(" ", 2) for line in java.program(PROGRAM, used.http_url, prefix).splitlines()]
    return {name: "ok" if verdict == "ok" else "".join(why).replace("\\n", "\n") for verdict, name, *why in lines}


@pytest.mark.parametrize("name", RUN)
def test_a_program_for_pulsar_5_on_a_scalable_topic(said, name):
    assert said[name] == "ok"


def test_nothing_waits_at_the_end(said):
    assert int(said["closing"]) < CLOSE_MS


@pytest.mark.parametrize(("name", "subscription"), [
    ("plain", "sub"), ("keys", "sub"), ("negative", "sub"), ("dead", "sub"), ("stream", "sub"), ("streams", "sub"),
    ("transactions", "sub"), ("transacted", "sub"), ("transacted", "cumulative"),
    ("scalable", "stream")])
def test_everything_was_acknowledged(said, used, prefix, name, subscription):
    assert said[name] == "ok"
    url = f"{url_of(used, f'{prefix}-{name}')}/stats"
    eventually(lambda: json.loads(request("GET", url)[1])["subscriptions"][subscription]["msgBacklog"] == 0)


def test_the_program_of_the_page_runs_as_it_says(java, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "scalable-topics.md").read_text()
    program = re.search(r"```java\n(.*?)```", page, re.DOTALL)[1]
    said = re.search(r"Orders.java pulsar://localhost:6650\n((?:    customer.*\n)+)", page)[1]
    (tmp_path / "Orders.java").write_text(program)
    assert java.program(tmp_path / "Orders.java") == re.sub("(?m)^    ", "", said)


# -- stream consumers of one segment

SHARING = PROGRAM.parent / "sharing" / "Sharing.java"


def test_stream_consumers_share_a_segment_by_its_entry_buckets(java, used, prefix):
    """Two, four and five share 40 keys, one leaves, and one acknowledges nothing; no message comes twice or too late.

    The second one subscribes although the first one has not acknowledged what it has.  Nobody makes more buckets.
    """
    topic = f"{prefix}-sharing"
    assert request("PUT", url_of(used, topic))[0] == 204
    assert request("POST", f"{url_of(used, topic)}/autoScalePolicy", b'{"enabled":false}')[0] == 204
    assert java.program(SHARING, topic).splitlines() == [
        "the second one subscribed while the first one held a message", "2 of 2 share the keys",
        "4 of 4 share the keys", "4 of 5 share the keys", "4 of 4 share the keys",
        "one that acknowledges nothing keeps nobody else waiting"]


HANDOVER = PROGRAM.parent / "handover" / "Handover.java"


def test_a_segment_goes_whole_from_one_stream_consumer_to_another(java, used, prefix):
    """Each subscribes at once, whatever the others hold, and gets a segment when its former consumer has finished."""
    topic = f"{prefix}-handover"
    assert request("PUT", f"{url_of(used, topic)}?numInitialSegments=2")[0] == 204
    said = java.program(HANDOVER, topic).splitlines()
    assert not [line for line in said if line.startswith("not")], said
    assert said[-1] == "three of them get all"


# -- kills

def test_a_program_goes_on_through_a_kill_of_the_broker(fresh_broker, tmp_path):
    """Producer and stream consumers stay open: keys are in order, and no message is lost."""
    topic = "topic://public/default/killed"
    assert request("PUT", f"{url_of(fresh_broker, topic)}?numInitialSegments=4")[0] == 204
    java = JavaTools(fetch_v5_jars(), tmp_path, fresh_broker.service_url, fresh_broker.http_url)
    classes = tmp_path / "classes"
    classes.mkdir()
    with java.running(classes, "ThroughAKill", topic) as process:
        assert process.stdout.readline() == "half\n"
        fresh_broker.kill_supervisor()
        fresh_broker.start()
        process.stdin.write("go\n")
        assert process.stdout.readline() == "all 400\n"
        assert process.wait(HANG_SECONDS) == 0


class LosingRelay(Relay):
    """A relay that can lose acknowledgements, as a kill does."""

    def __init__(self, port):
        self.loses, self._partial = True, defaultdict(bytes)
        super().__init__(port)

    def _changed(self, one, data):
        """Pass on whole frames, but none of acknowledgements."""
        data, passed = self._partial[one] + data, b""
        while len(data) >= 8 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
            size = int.from_bytes(data[4:8], "big")
            if not (self.loses and api.BaseCommand.FromString(data[8:8 + size]).type == api.BaseCommand.ACK):
                passed += data[:end]
            data = data[end:]
        self._partial[one] = data
        return passed


def test_segments_whose_last_acknowledgements_were_lost_hold_up_no_consumer(start_broker, tmp_path):
    """The client discards what it has acknowledged before, and acknowledges it no more, until it consumes anew."""
    broker, topic = start_broker("--workers", "1"), "topic://public/default/lost"
    assert request("PUT", f"{url_of(broker, topic)}?numInitialSegments=2")[0] == 204
    with LosingRelay(int(broker.service_url.rpartition(":")[2])) as relay:
        java = JavaTools(fetch_v5_jars(), tmp_path, f"pulsar://127.0.0.1:{relay.port}", broker.http_url)
        classes = tmp_path / "classes"
        classes.mkdir()
        with java.running(classes, "ThroughAKill", topic) as process:
            assert process.stdout.readline() == "half\n"
            for segment in 0, 1:
                assert request("POST", f"{url_of(broker, topic)}/split/{segment}")[0] == 204
            relay.loses = False
            broker.kill("worker")
            process.stdin.write("go\n")
            assert process.stdout.readline() == "all 400\n"
            assert process.wait(HANG_SECONDS) == 0


@pytest.mark.parametrize("segments", [1, 3])
def test_clients_go_on_when_a_topic_is_deleted_and_created_again(java, used, prefix, tmp_path, segments):
    """The new topic has fewer segments or more, with the same numbers and other hashes."""
    topic = f"{prefix}-again-{segments}"
    assert request("PUT", f"{url_of(used, topic)}?numInitialSegments=2")[0] == 204
    with java.running(tmp_path, "Recreated", topic) as process:
        assert process.stdout.readline() == "ready\n"
        assert request("DELETE", url_of(used, topic))[0] == 204
        assert request("PUT", f"{url_of(used, topic)}?numInitialSegments={segments}")[0] == 204
        process.stdin.write("\n")
        assert process.stdout.read() == "queue 45\nstream 45\n"


# -- job queues

JOBS = PROGRAM.parent / "jobs" / "Jobs.java"


def test_a_queue_consumer_has_priorities_filters_times_to_live_and_dead_letters(used, java, prefix, capsys):
    """Also in a segment that was made by a split after the subscription, and of messages that a schedule publishes.

    Letters go back by a redrive, and one of them is taken back.
    """
    topic, rule = f"{prefix}-jobs", "kind = 'job'"
    local = topic.rpartition("/")[2]
    assert request("PUT", f"{url_of(used, topic)}?numInitialSegments=2")[0] == 204
    assert request("POST", f"{url_of(used, topic)}/autoScalePolicy", b'{"enabled":false}')[0] == 204
    for policy, value in (("messagePriority", {"active": True}), ("ownMessageTTL", True), ("subscriptionFilters", True),
                          ("deadLetter", {"maxRedeliverCount": 2, "expired": True})):
        url = f"{used.http_url}/admin/v2/persistent/public/default/{local}/{policy}"
        assert request("POST", url, json.dumps(value).encode())[0] == 204
    assert java.program(JOBS, topic, rule, "0") == ""
    for number in (0, 1):
        assert request("POST", f"{url_of(used, topic)}/split/{number}")[0] == 204

    def publish(payload, *properties):
        options = [word for one in ("kind=job", *properties) for word in ("--property", one)]
        assert main(["produce", topic, payload, "--key", "k", *options, "--quiet", "--url", used.service_url]) == 0

    publish("late", "geminga.ttl=1ms")
    publish("poison", "geminga.priority=0")
    for priority in "13579":
        publish(f"job {priority}", f"geminga.priority={priority}")
        publish(f"other {priority}", f"geminga.priority={priority}", "kind=other")
    where = [topic, "yearly", "--admin-url", used.http_url]
    assert main(["schedule", "set", *where, "--cron", "0 0 1 1 *", "--key", "k", "--property", "kind=job",
                 "--property", "geminga.priority=8", "job 8"]) == main(["schedule", "run", *where]) == 0

    def letters(*options):
        capsys.readouterr()
        if main(["consume", f"{local}-workers-DLQ", *options, "-o", "jsonl", "--url", used.service_url]):
            return []
        found = map(json.loads, capsys.readouterr().out.splitlines())
        return sorted((one["payload"], one["properties"]["geminga.dead-letter.reason"]) for one in found)

    eventually(lambda: letters() == [("late", "expired")])
    assert java.program(JOBS, topic, rule, "9").splitlines() == [
        *(f"job {priority}" for priority in "987531"), *["poison"] * 3]
    eventually(lambda: letters() == [("late", "expired"), ("poison", "deliveries")])
    said = json.loads(request("GET", f"{url_of(used, topic)}/stats")[1])["subscriptions"]["workers"]
    assert said["msgBacklog"] == 0
    again = ["redrive", f"{local}-workers-DLQ", "--url", used.service_url, "--admin-url", used.http_url, "-o", "json"]
    assert main([*again, "--property", "kind=job"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"] == {topic: 2}
    assert main([*again, "--undo", topic, "--grep", "poison"]) == 0
    assert json.loads(capsys.readouterr().out)["taken_back"] == 1
    left = "-s", "geminga-redrive", "--no-ack"
    eventually(lambda: letters(*left) == [("late", "expired"), ("poison", "taken back")])
    assert main([*again, "--grep", "poison"]) == 0
    assert java.program(JOBS, topic, rule, "3").splitlines() == ["poison"] * 3
    eventually(lambda: letters(*left) == [("late", "expired"), ("poison", "deliveries")])


# -- seek, and undelete of a cleared backlog

def test_a_seek_and_an_undelete_of_backlogs_go_back_over_a_split(used, java, prefix, tmp_path):
    """To the time of the split: what its children have.  To the beginning: everything, in the order of each key.

    Then everything is cleared, another segment is split, and everything is taken back.  The queue consumer is connected
    meanwhile.  A connected stream consumer of 5.0.1 passes over what it had already.
    """
    topic = f"{prefix}-seeking"
    with java.running(tmp_path, "Seeking", topic) as process:
        def say(line, answer):
            process.stdin.write(f"{line}\n")
            assert process.stdout.readline() == answer

        def seek(timestamp):
            for subscription in ("queue", "stream"):
                url = f"{url_of(used, topic)}/subscriptions/{subscription}/seek?timestamp={timestamp}"
                assert post(url) == 204

        assert process.stdout.readline() == "published\n"
        assert post(f"{url_of(used, topic)}/split/0") == 204
        split_ms = time.time_ns() // 1_000_000
        say("", "published\n")
        say(20, "20:20:0 20:20:0\n")
        seek(split_ms)
        say(10, "10:10:10 10:10:10\n")
        seek(0)
        say(20, "20:20:0 20:20:0\n")
        assert main(["admin", "--http-url", used.http_url, "topics", "set-deleted-retention", topic.rpartition("/")[2],
                     "--time", "3600"]) == 0
        seek(0)
        for subscription in ("queue", "stream"):
            assert post(f"{url_of(used, topic)}/subscriptions/{subscription}/skip-all") == 204
        assert post(f"{url_of(used, topic)}/split/1") == 204
        kept = [one["id"] for one in json.loads(request("GET", f"{used.http_url}/ops/v1/deleted/public/default")[1])
                if one["topic"] == topic]
        assert len(kept) == 2
        for number in kept:
            assert post(f"{used.http_url}/ops/v1/deleted/public/default/{number}/undelete") == 200
        say(20, "20:20:0 20:20:0\n")
        process.stdin.write("0\n")
        assert process.wait(HANG_SECONDS) == 0


# -- compaction

def test_a_compacted_topic_has_each_key_once_over_all_segments(used, java, prefix, tmp_path):
    """Keys that were deleted after a split are not there, although the sealed segment has them."""
    topic = f"{prefix}-compacted"

    def compact():
        assert request("PUT", f"{url_of(used, topic)}/compaction")[0] == 204
        eventually(lambda: json.loads(request("GET", f"{url_of(used, topic)}/compaction")[1]) == {
            "status": "SUCCESS", "lastError": ""})

    with java.running(tmp_path, "Compacted", topic) as process:
        assert process.stdout.readline() == "published\n"
        compact()
        assert post(f"{url_of(used, topic)}/split/0") == 204
        process.stdin.write("\n")
        assert process.stdout.readline() == "published\n"
        compact()
        process.stdin.write("\n")
        expected = {f"k{number}": "new" if number < 7 else "old" for number in range(3, 10)}
        said = ", ".join(f"{key}={value}" for key, value in expected.items())
        assert process.stdout.readline() == f"{{{said}}} 7\n"
        assert process.wait(HANG_SECONDS) == 0


# -- changes of segments

RATE = 500                   # messages a second
CHANGES = "split/0", "split/3", "merge/6/4", "split/1", "merge/7/8", "rebucket/2?bucketCount=4"


def changed_under_load(broker, java, folder, topic, change, changes=CHANGES, named=None):
    """Change the segments of a topic while a program publishes and consumes; return what this says at its end.

    change: makes one change, given its number and its URL.  named: the name by which the program knows the topic.
    """
    if named is None:
        assert request("PUT", f"{url_of(broker, topic)}?numInitialSegments=3")[0] == 204
    arguments = named or topic, str(RATE)
    with java.running(folder, "ThroughChanges", *arguments) as process:
        assert process.stdout.readline() == "ready\n"
        for number, path in enumerate(changes):
            before = stored_bytes(broker, topic)
            if path != MIGRATE:      # until then the topic is not scalable
                eventually(lambda before=before: stored_bytes(broker, topic) > before)
            change(number, f"{url_of(broker, topic)}/{path}")
        process.stdin.write("stop\n")
        said = process.stdout.read().splitlines()
        assert process.wait(HANG_SECONDS) == 0, said
        return dict(line.partition(" ")[::2] for line in said)


def stored_bytes(broker, topic):
    with contextlib.suppress(OSError):      # administration or an owner has just been killed
        status, said = request("GET", f"{url_of(broker, topic)}/stats")
        return json.loads(said)["storageSize"] if status == 200 else 0
    return 0


def test_no_message_is_lost_or_out_of_order_while_segments_change(used, java, prefix, tmp_path):
    def change(number, url):
        status, said = request("POST", url)
        assert status == 204, said

    said = changed_under_load(used, java, tmp_path, f"{prefix}-changing", change)
    assert "WRONG" not in said and "done" in said, said
    assert said["queue"] == said["stream"] == said["checkpoint"] == said["published"]


MIGRATE = "migrate"
MIGRATED = {2: (MIGRATE, "split/3", "merge/4/5"), 0: (MIGRATE, "split/1", "merge/2/3")}


@pytest.mark.parametrize("partitions", MIGRATED)
def test_no_message_is_lost_or_out_of_order_when_a_regular_topic_is_made_scalable(used, java, prefix, tmp_path,
                                                                                  partitions):
    """None of the program's consumers counts as one of a client of Pulsar 4, and no send fails."""
    topic = f"{prefix}-made-scalable-{partitions}"
    regular = topic.replace("topic:", "persistent:")
    url = f"{used.http_url}/admin/v2/{regular.replace('://', '/')}"
    status, said = request("PUT", f"{url}/partitions", b"%d" % partitions) if partitions else request("PUT", url)
    assert status == 204, said

    def change(number, url):
        status, said = request("POST", url)
        assert status == 204, said

    said = changed_under_load(used, java, tmp_path, topic, change, MIGRATED[partitions], regular)
    assert "WRONG" not in said and "done" in said, said
    assert said["queue"] == said["stream"] == said["checkpoint"] == said["published"]


@pytest.mark.parametrize("partitions", MIGRATED)
def test_transactions_delays_and_schemas_go_on_over_a_migration(used, java, prefix, tmp_path, partitions):
    """Transactions end as a whole, a delayed message comes once and in time, and a newer schema is read by both."""
    regular = f"{prefix}-under-way-{partitions}".replace("topic:", "persistent:")
    url = f"{used.http_url}/admin/v2/{regular.replace('://', '/')}"
    assert (request("PUT", f"{url}/partitions", b"%d" % partitions) if partitions else request("PUT", url))[0] == 204
    with java.running(tmp_path, "OverAMigration", regular) as process:
        assert process.stdout.readline() == "ready\n"
        assert request("POST", f"{url_of(used, regular.replace('persistent:', 'topic:'))}/migrate")[0] == 204
        process.stdin.write("go\n")
        said = dict(line.partition(" ")[::2] for line in process.stdout.read().splitlines())
        assert process.wait(HANG_SECONDS) == 0, said
    names = sorted(["plain", "moved", "delayed", *(f"committed{number}" for number in range(8))])
    expected = {
        "queue": [*names, "counted"], "stream": [*names, "counted"], "late": [*names, "counted7"],
        "acknowledging": [*(name for name in names if name != "plain"), "counted"], "done": None}
    assert said == {who: "{" + ", ".join(f"{name}=1" for name in sorted(its)) + "}" if its else ""
                    for who, its in expected.items()}


KILLED = ("owner", 0), ("admin", 0), ("owner", 1), ("worker", 0), ("supervisor", 0), ("owner", 0)


@pytest.mark.nightly
@pytest.mark.parametrize("changes", [CHANGES, (MIGRATE, "split/3", "merge/4/5", "split/2", "merge/7/8", "split/6")])
def test_no_message_is_lost_or_out_of_order_when_processes_are_killed_in_a_change(start_broker, tmp_path, changes):
    """Each change is finished, whoever is killed in it, and whether its request was answered or not."""
    broker, topic = start_broker(*OWN_OPTIONS), "topic://public/default/changing"
    java = JavaTools(fetch_v5_jars(), tmp_path, broker.service_url, broker.http_url)
    first = 1
    regular = None
    if changes[0] == MIGRATE:
        first, regular = 0, topic.replace("topic:", "persistent:")
        url = f"{broker.http_url}/admin/v2/{regular.replace('://', '/')}/partitions"
        assert request("PUT", url, b"2")[0] == 204

    def change(number, url):
        (role, index), epoch = KILLED[number], first + number
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(post, url)
            if role == "supervisor":
                broker.kill_supervisor()
                broker.start()
            else:
                broker.kill(role, index)
            asked.result(HANG_SECONDS)
        if not (broker_is_changing(broker) or epoch_of(broker, topic) >= epoch):      # it never began
            eventually(lambda: post(url) == 204)
        eventually(lambda: epoch_of(broker, topic) == epoch)

    folder = tmp_path / "classes"
    folder.mkdir()
    said = changed_under_load(broker, java, folder, topic, change, changes, regular)
    assert "WRONG" not in said and "done" in said, said
    assert said["queue"] == said["stream"] == said["checkpoint"] == said["published"]


def test_consumers_of_a_namespace_get_all_of_it_whoever_is_killed(start_broker, tmp_path):
    """Topics are created beside each kill, one is split, and each message comes, a key's in order for the stream."""
    broker, namespace = start_broker(*OWN_OPTIONS), "public/many"
    assert request("PUT", f"{broker.http_url}/admin/v2/namespaces/{namespace}")[0] == 204
    java, folder = JavaTools(fetch_v5_jars(), tmp_path, broker.service_url, broker.http_url), tmp_path / "classes"
    folder.mkdir()
    topics = [f"topic://{namespace}/{number}" for number in range(len(KILLED) + 1)]
    with java.running(
            folder, "NamespaceThroughKills", namespace) as process:
        def publish_to(topic):
            process.stdin.write(f"{topic}\n")
            assert process.stdout.readline() == f"{topic}\n"

        publish_to(topics[0])
        for topic, (role, index) in zip(topics[1:], KILLED, strict=True):
            if role == "supervisor":
                broker.kill_supervisor()
                broker.start()
                publish_to(topic)
            else:
                killed = broker.kill(role, index)
                publish_to(topic)
                broker.wait_replaced(role, index, killed)
        eventually(lambda: post(f"{url_of(broker, topics[0])}/split/0") == 204)
        process.stdin.write("stop\n")
        said = dict(line.partition(" ")[::2] for line in process.stdout.read().splitlines())
        assert process.wait(HANG_SECONDS) == 0, said
    assert "WRONG" not in said and "done" in said, said
    assert said["queue"] == said["stream"] == said["published"]


def post(url):
    """Return the status of a request that changes something; None if its process ends over it."""
    with contextlib.suppress(OSError):
        return request("POST", url)[0]
    return None


def epoch_of(broker, topic):
    """Return the epoch of the layout that the broker has written down, -1 if the topic is not scalable yet."""
    layout = read(broker, lambda catalogue: catalogue.scalable_topics.layout(names.parse(topic)))
    return -1 if layout is None else layout.epoch


def broker_is_changing(broker):
    return read(broker, lambda catalogue: bool(catalogue.scalable_topics.changing()))


def read(broker, what):
    catalogue = open_to_read(broker.data_dir / "catalogue.sqlite")
    try:
        return what(catalogue)
    finally:
        catalogue.close()
