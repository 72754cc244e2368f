"""`geminga backup` and `geminga restore`: everything that was answered before a backup began is there after a restore.

Backups are made of one broker while it goes on: later changes must not change a backup.
"""
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pulsar
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.disk import locks
from geminga.storage.offline import backup
from geminga.supervisor.tasks import job_socket

from ..crash.backups import CONFIGURATION
from ..harness import HANG_MS, LOAD_PAUSE_SECONDS, Broker, eventually, left_for, path_of, request, unique_topic
from ..workers.test_coordinators import Begun
from .test_compaction import ended, fill, url_of
from .test_delayed import ask, ids, now_ms
from .test_serve import GEMINGA, run

pytestmark = pytest.mark.slow

BLOCK = b"x" * 8_000
FAR_MS = 3_600_000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backup")
    (folder / "geminga.toml").write_text(CONFIGURATION)
    return folder


@pytest.fixture(scope="module")
def start(place):
    """start(folder): a broker on this folder."""
    started = []

    def start(folder):
        started.append(Broker(folder, "--config", str(place / "geminga.toml"), "--owners", "2"))
        return started[-1].start()
    yield start
    for broker in started:
        broker.close()


@pytest.fixture(scope="module")
def broker(start, place):
    return start(place / "data")


@contextlib.contextmanager
def client_of(broker):
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(scope="module")
def client(broker):
    with client_of(broker) as client:
        yield client


def make(broker, folder, *more):
    """Make a backup; return its folder."""
    status, printed, complaints = run("backup", "--data-dir", broker.data_dir, "--json", *more, folder)
    assert (status, complaints) == (0, [])
    report = json.loads(printed)
    assert report["longest_pause_ms"] < 1_000
    return report


def put(made, folder):
    status, printed, complaints = run("restore", made, folder)
    assert (status, complaints) == (0, []), printed
    return folder


def left(broker, client, topic, *, acknowledge=False):
    """Return [(id, data, redeliveries)] of the messages that a topic's subscription s has left."""
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    try:
        found = left_for(broker, consumer)
        for message in found if acknowledge else ():
            consumer.acknowledge(message)
    finally:
        consumer.close()
    return [(str(message.message_id()), message.data(), message.redelivery_count()) for message in found]


def admin(broker, method, path, body=None):
    status, text = request(method, f"{broker.http_url}/admin/v2/{path}",
                           None if body is None else json.dumps(body).encode())
    assert status < 300, (path, status, text)
    return json.loads(text) if text else None


def stats(broker, topic):
    found = admin(broker, "GET", f"{path_of(topic)}/internalStats")
    return {name: found[name] for name in ("lastConfirmedEntry", "totalSize", "currentLedgerEntries")} | {
        "ledgers": [one["ledgerId"] for one in found["ledgers"]],
        "cursors": {name: cursor["markDeletePosition"] for name, cursor in found["cursors"].items()}}


class Load:
    """A load that publishes to some topics, acknowledges half, and knows what was answered."""

    def __init__(self, client, topics=4):
        self.topics = [unique_topic("load") for _ in range(topics)]
        self.published = {topic: [] for topic in self.topics}
        self.acknowledged = {topic: set() for topic in self.topics}
        self._client, self._is_over = client, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        consumers = [self._client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
                     for topic in self.topics]
        producers = [self._client.create_producer(topic) for topic in self.topics]
        number = 0
        while not self._is_over.wait(LOAD_PAUSE_SECONDS):
            for topic, producer, consumer in zip(self.topics, producers, consumers, strict=True):
                data = b"%d" % number
                producer.send(data + BLOCK)
                self.published[topic].append(data)
                message = consumer.receive(HANG_MS)
                if number % 2:
                    consumer.acknowledge(message)
                    self.acknowledged[topic].add(message.data()[:-len(BLOCK)])
            number += 1
        for one in consumers + producers:
            one.close()

    def answered(self):
        """Return (messages with a receipt, messages with an answered acknowledgement) so far."""
        return ({topic: list(found) for topic, found in self.published.items()},
                {topic: set(found) for topic, found in self.acknowledged.items()})

    def stop(self):
        self._is_over.set()
        self._thread.join()


def test_all_that_was_answered_before_is_there_again_and_a_backup_does_not_change_with_its_source(
    broker, client, start, place
):
    """A backup has entries, acknowledgements, redelivery counts, sequence ids, delays, policies, schemas, views and
    ids.

    Changes of the broker afterwards do not reach it.
    """
    load = Load(client)

    acked = unique_topic("acked")        # each second message is acknowledged, one of them given back; several ledgers
    consumer = client.subscribe(acked, "s", consumer_type=pulsar.ConsumerType.Shared,
                                negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(acked, properties={"made": "by a test"})
    for number in range(400):
        producer.send_async(b"%d" % number + BLOCK, lambda *_: None)
    producer.flush()
    messages = [consumer.receive(HANG_MS) for _ in range(400)]
    for message in messages[1::2]:
        consumer.acknowledge(message)
    consumer.negative_acknowledge(messages[0])
    assert consumer.receive(HANG_MS).redelivery_count() == 1
    consumer.close()
    expected = left(broker, client, acked)
    assert len(expected) == 200 and expected[0][2] >= 1

    admin(broker, "PUT", "namespaces/public/exact")
    admin(broker, "POST", "namespaces/public/exact/deduplication", True)
    exact = unique_topic("exact").replace("default", "exact")
    client.subscribe(exact, "s").close()
    producer = client.create_producer(exact, "the-producer", initial_sequence_id=1)
    for number in range(10, 20):
        producer.send(b"%d" % number, sequence_id=number)
    producer.close()

    delayed = unique_topic("delayed")
    consumer = client.subscribe(delayed, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer, soon = client.create_producer(delayed), now_ms()
    for number in range(20):
        producer.send(b"%d" % number, deliver_at=soon + FAR_MS + number * 400_000)
    consumer.close()
    assert ask(broker, "DELETE", delayed, "/" + ids(broker, delayed)[0])[0] < 300
    waiting = ids(broker, delayed)
    assert len(waiting) == 19

    typed = unique_topic("typed")
    schema = {"type": "JSON",
              "schema": json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}),
              "properties": {"who": "me"}}
    admin(broker, "PUT", path_of(typed))
    admin(broker, "POST", f"schemas/{path_of(typed).partition('/')[2]}/schema", schema)
    admin(broker, "POST", f"{path_of(typed)}/retention", {"retentionTimeInMinutes": 7, "retentionSizeInMB": 8})
    admin(broker, "PUT", f"{path_of(typed)}/properties", {"colour": "red"})

    keyed = unique_topic("keyed")
    client.subscribe(keyed, "s").close()
    fill(client, keyed)
    assert request("PUT", url_of(broker, keyed))[0] == 204
    assert ended(broker, keyed) == ("SUCCESS", "")

    parted = unique_topic("parted")
    admin(broker, "PUT", f"{path_of(parted)}/partitions", 3)
    client.subscribe(parted, "s").close()
    producer = client.create_producer(parted)
    for number in range(30):
        producer.send(b"%d" % number)
    quiet = [acked, exact, delayed, keyed]
    admin(broker, "PUT", f"{path_of(exact)}/unload")      # an unloaded topic has its state in files only
    before = {topic: stats(broker, topic) for topic in quiet if topic != exact}
    eventually(lambda: all(len(found) > 40 for found in load.published.values()), what="load")

    published, acknowledged = load.answered()
    made = make(broker, place / "backups")
    folder = place / "backups" / os.path.basename(made["folder"])
    later = make(broker, place / "backups")               # a later backup shares unchanged files with the first
    assert later["shared_bytes"] > 1_000_000
    archive = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".ledger"}

    # changes after the backups
    left(broker, client, acked, acknowledge=True)
    admin(broker, "DELETE", f"{path_of(keyed)}?force=true")
    admin(broker, "DELETE", f"{path_of(typed)}?force=true")
    assert ask(broker, "DELETE", delayed, "/" + waiting[-1])[0] < 300
    published_later = load.answered()[0][load.topics[0]]
    eventually(lambda: len(load.published[load.topics[0]]) > len(published_later) + 100,
               what="journals that are used again")
    load.stop()
    eventually(lambda: len(list((broker.data_dir / "partitions").glob(f"{_partition(folder, acked)}/*.ledger"))) < 3,
               what="ledgers gone")
    assert archive == {path: path.read_bytes() for path in archive}

    elsewhere = start(put(folder, place / "elsewhere"))
    assert not (elsewhere.data_dir / "backup").exists()
    with client_of(elsewhere) as again:
        assert {topic: stats(elsewhere, topic) for topic in before} == before
        assert sorted(left(elsewhere, again, acked)) == sorted(expected)
        assert ids(elsewhere, delayed) == waiting
        assert [data for _, data, _ in left(elsewhere, again, exact)] == [b"%d" % number for number in range(10, 20)]
        producer = again.create_producer(exact, "the-producer")
        assert producer.last_sequence_id() == 19
        producer.send(b"again", sequence_id=15)
        producer.send(b"next", sequence_id=20)
        assert left(elsewhere, again, exact)[-1][1] == b"next" and len(left(elsewhere, again, exact)) == 11
        assert admin(elsewhere, "GET", "namespaces/public/exact/deduplication") is True
        assert admin(elsewhere, "GET", f"{path_of(typed)}/retention") == {"retentionTimeInMinutes": 7,
                                                                          "retentionSizeInMB": 8}
        assert admin(elsewhere, "GET", f"{path_of(typed)}/properties") == {"colour": "red"}
        found = admin(elsewhere, "GET", f"schemas/{path_of(typed).partition('/')[2]}/schema")
        assert (found["type"], json.loads(found["data"])) == ("JSON", json.loads(schema["schema"]))
        reader = again.create_reader(keyed, pulsar.MessageId.earliest, is_read_compacted=True)
        assert [int(reader.read_next(HANG_MS).data()) for _ in range(5)] == list(range(45, 50))
        assert not reader.has_message_available()
        assert sorted(int(data) for _, data, _ in left(elsewhere, again, parted)) == list(range(30))
        for topic in load.topics:
            rest = sorted(left(elsewhere, again, topic), key=lambda one: _place(one[0]))
            came = [data[:-len(BLOCK)] for _, data, _ in rest]
            assert not acknowledged[topic] & set(came)
            assert {data for data in published[topic] if not int(data) % 2} <= set(came)
            assert len(came) == len(set(came)) and [int(data) for data in came] == sorted(map(int, came))

    # ledger ids given out later differ
        old, new = [int(stats(one, unique)["ledgers"][-1])
                    for one, unique in ((broker, _used(client)), (elsewhere, _used(again)))]
        assert new > old
        given = [{_place(str(found.create_producer(topic).send(b"later")))
                  for topic in [*load.topics, acked, delayed, parted]}
                 for found in (client, again)]
        assert len(given[0] | given[1]) == sum(map(len, given)) > 6, (
            "the old broker and the new one gave out the same ids"
        )
    elsewhere.close()


def _used(client):
    topic = unique_topic("fresh")
    client.create_producer(topic).send(b"1")
    return topic


def _place(message_id):
    return tuple(map(int, message_id.strip("()").split(",")))[:2]


def _partition(folder, topic):
    import sqlite3
    with contextlib.closing(sqlite3.connect(folder / "catalogue.sqlite")) as db:
        return db.execute("SELECT id FROM partitions WHERE name = ?", (topic,)).fetchone()[0]


# -- what can go wrong

@pytest.fixture(scope="module")
def one(broker, client, place):
    """(a backup, a topic in it, the topic's messages that were left)"""
    topic = unique_topic("one")
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    for number in range(50):
        producer.send(b"%d" % number + BLOCK)
    producer.close()
    return place / "one" / os.path.basename(make(broker, place / "one")["folder"]), topic, left(broker, client, topic)


def complete(folder):
    return sorted(path for path in folder.iterdir() if path.name != "lock") == backup.backups(folder)


def test_a_backup_that_is_killed_leaves_nothing_that_counts_and_the_next_removes_it(broker, place, one):
    folder = place / "killed"
    killed = subprocess.Popen([GEMINGA, "backup", "--data-dir", broker.data_dir, folder], stdout=subprocess.DEVNULL)
    eventually(lambda: any(folder.glob("*.new/partitions/*/*.ledger")) or killed.poll() is not None,
               what="one that is being made")
    killed.kill()
    killed.wait()
    make(broker, folder)
    assert complete(folder) and not format.linked_folder(broker.data_dir).exists()


def test_a_start_removes_what_a_killed_backup_has_kept_in_the_data_folder(start, place):
    broker = start(place / "leftover")
    assert broker.stop() == 0
    format.linked_folder(broker.data_dir).mkdir(parents=True)
    (format.linked_folder(broker.data_dir) / "1.ledger").write_bytes(b"x")
    broker.start()
    assert not format.linked_folder(broker.data_dir).exists()
    broker.close()


def test_an_owner_that_is_killed_meanwhile_fails_the_backup_and_nothing_is_left_of_it(broker, place, one):
    def kill_and_cut():
        broker.wait_replaced("owner", 1, broker.kill("owner", 1))
        eventually(lambda: request("GET", broker.http_url + "/ready")[0] == 200)      # its successor may still load
        side.ask("backup-hold", owner="all")
        return side.ask("backup-cut", owner="all")

    with (
        contextlib.closing(job_socket.BrokerSocket(broker.data_dir)) as side,
        pytest.raises(job_socket.JobRefused, match="started again"),
    ):
        backup.make(broker.data_dir, place / "owners", lambda: side.ask("backup-begin", owner="all"), kill_and_cut)
    assert complete(place / "owners") and not format.linked_folder(broker.data_dir).exists()
    make(broker, place / "owners")


def test_a_restored_copy_has_transactions_that_were_committed_and_aborts_those_that_were_open(broker, start, place):
    """The topics of each belong to two owners.  Ids go on behind those that the old broker has given out since."""
    done, unfinished = Begun(broker, 0), Begun(broker, 1)
    for topic in (*done.topics, *unfinished.topics):      # else nothing is kept for long
        admin(broker, "PUT", f"{path_of(topic)}/subscription/keeps-it", "earliest")
    done.end(api.COMMIT)
    report = make(broker, place / "transactions")
    unfinished.end(api.COMMIT)
    last = Begun(broker, 1)
    again = start(put(report["folder"], place / "transactions restored"))
    before, later = unfinished.stored(), Begun(again, 1)
    done.broker = unfinished.broker = again
    assert (done.stored(), unfinished.stored(), before) == ([1, 1], [0, 0], [1, 1])
    assert later.bits["txnid_least_bits"] > last.bits["txnid_least_bits"]
    again.close()


def test_another_backup_meanwhile_is_refused_in_one_line(broker, place, one):
    with locks.lock(format.linked_folder(broker.data_dir).with_name(locks.LOCK)) as is_ours:
        assert is_ours
        status, printed, [complaint] = run("backup", "--data-dir", broker.data_dir, place / "second")
    assert (status, printed) == (1, "") and "another backup is being made" in complaint


@pytest.mark.parametrize("suffix", [".ledger", ".index", "state", "catalogue.sqlite", "manifest"])
def test_a_wrong_byte_in_a_backup_is_found_and_its_file_named(one, tmp_path, suffix):
    copy = tmp_path / "copy"
    shutil.copytree(one[0], copy)
    path = max((path for path in copy.rglob(f"*{suffix}")), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    used = [at for at, byte in enumerate(data) if byte]      # a restore leaves unused space out, which is zeros
    data[used[len(used) // 3]] ^= 16
    path.write_bytes(data)
    status, printed, [complaint] = run("restore", copy, tmp_path / "data")
    assert (status, printed) == (1, "") and str(path) in complaint
    assert not any((tmp_path / "data").glob("*"))


def test_what_cannot_be_restored_is_refused_in_one_line(one, tmp_path):
    status, _, [complaint] = run("restore", tmp_path, tmp_path / "data")
    assert status == 1 and "no backup" in complaint
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_bytes(b"mine")
    status, _, [complaint] = run("restore", one[0], tmp_path / "used")
    assert status == 1 and "not empty" in complaint and (tmp_path / "used" / "file").read_bytes() == b"mine"
    copy = tmp_path / "copy"
    shutil.copytree(one[0], copy)
    manifest = backup.read_manifest(copy)
    next(copy.rglob("*.ledger")).unlink()
    status, _, [complaint] = run("restore", copy, tmp_path / "data")
    assert status == 1 and "missing" in complaint
    manifest.folder_version += 1
    (copy / "manifest").write_bytes(manifest.encode())
    status, _, [complaint] = run("restore", copy, tmp_path / "data")
    assert status == 1 and "newer program" in complaint
    manifest.folder_version -= 1
    manifest.items[0].path = "../elsewhere"
    (copy / "manifest").write_bytes(manifest.encode())
    status, _, [complaint] = run("restore", copy, tmp_path / "data")
    assert status == 1 and "not in a data folder" in complaint


# -- where, how many, and by whom

@pytest.fixture
def memory():
    """A folder on another file system."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def test_on_another_file_system_a_backup_is_a_copy_and_the_next_shares_with_it(broker, client, start, one, memory,
                                                                               place):
    """Both backups can be restored there, and elsewhere."""
    if memory.stat().st_dev == broker.data_dir.stat().st_dev:
        pytest.skip("there is one file system")
    first, second = make(broker, memory), make(broker, memory)
    assert first["shared_bytes"] == 0 < second["shared_bytes"]
    shutil.rmtree(first["folder"])
    again = start(put(second["folder"], memory / "data"))
    with client_of(again) as there:
        assert left(again, there, one[1]) == one[2]
    again.close()


def test_of_those_that_are_complete_the_oldest_go(broker, one, place):
    made = [make(broker, place / "kept", "--keep", "2")["folder"] for _ in range(3)]
    assert [str(path) for path in backup.backups(place / "kept")] == made[1:]
    assert complete(place / "kept")


def test_a_broker_that_was_killed_is_backed_up_with_what_only_its_journals_have(start, place, tmp_path):
    broker, topic = start(place / "down"), unique_topic("down")
    with client_of(broker) as client:
        client.subscribe(topic, "s").close()
        producer = client.create_producer(topic)
        for number in range(20):
            producer.send(b"%d" % number)
        expected = left(broker, client, topic)
        broker.kill_supervisor()
    made = make(broker, place / "of-down")
    broker.start()      # the broker goes on where it was
    for one in (broker, start(put(made["folder"], tmp_path / "data"))):
        with client_of(one) as client:
            assert left(one, client, topic) == expected
        one.close()


def test_it_can_be_asked_for_over_http(broker, place, one):
    ask_for = f"{broker.http_url}/ops/v1/backup"
    status, text = request("POST", ask_for, json.dumps({"folder": str(place / "http")}).encode())
    assert status == 200, text
    assert complete(place / "http") and json.loads(text)["folder"] == str(backup.backups(place / "http")[0])
    status, printed, _ = run("backup", "--admin-url", broker.http_url, "--keep", 1, place / "http")
    assert status == 0 and len(backup.backups(place / "http")) == 1
    assert re.search(r": \d+ partitions, [\d.]+ [KMG]iB, [\d.]+ ([KMG]i)?B of it shared; ", printed), printed
    folder = str(place / "wrong")
    for body in ({"folder": "relative"}, {}, [], {"folder": folder, "keep": -1}, {"folder": folder, "keep": True},
                 {"folder": 1}):
        assert request("POST", ask_for, json.dumps(body).encode())[0] == 400
    status, text = request("POST", ask_for, json.dumps({"folder": str(broker.data_dir / "inside")}).encode())
    assert status == 409 and "is in the data folder" in text
