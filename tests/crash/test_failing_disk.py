"""A disk that fails in other ways than being full: a clear word, a clear state, and nothing that was answered is lost.
"""
import resource
import shutil
import subprocess
from pathlib import Path

import pulsar
import pytest

from ..harness import HANG_SECONDS, Broker, eventually, request, unique_topic
from . import full

SECONDS = HANG_SECONDS
DESCRIPTORS, TOPICS = 256, 150      # a topic takes six of the owner's and the worker's, if nobody minds


def ready(broker):
    return request("GET", f"{broker.http_url}/ready")


def test_a_data_folder_that_was_removed_ends_the_broker_and_is_not_made_anew(fresh_broker, connect):
    """When the data folder is removed, the broker ends; a new, empty folder would look like a broker without data."""
    connect(fresh_broker.service_url).create_producer(unique_topic()).send(b"1")
    shutil.rmtree(fresh_broker.data_dir)
    assert fresh_broker._process.wait(SECONDS) == 1
    assert f"{fresh_broker.data_dir}: it was removed" in fresh_broker.log()
    assert not fresh_broker.data_dir.exists()


def test_a_file_system_that_became_read_only_is_waited_for(tmp_path):
    """On a read-only file system owners log once and retry; the broker stays alive and is not ready."""
    if reason := full.why_not("ext4"):
        pytest.skip(reason)
    with full.disk(tmp_path, "ext4") as place:
        device = Path(subprocess.check_output(["findmnt", "-no", "SOURCE", place], text=True).strip()).name
        trigger = Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
        if not trigger.exists():
            pytest.skip("this kernel has no way to make a file system fail")
        subprocess.run(["mount", "-o", "remount,errors=remount-ro", place], check=True)
        broker = Broker(place / "data")
        broker.log_path = tmp_path / "broker.log"
        broker.start()
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            producer = client.create_producer(unique_topic(), send_timeout_millis=2_000)
            producer.send(b"1")
            trigger.write_text("1")
            with pytest.raises(pulsar.PulsarException):
                producer.send(b"2")
            eventually(lambda: ready(broker)[0] == 503 and "cannot read or write" in ready(broker)[1], SECONDS,
                       "a word about the disk")
            assert request("GET", f"{broker.http_url}/status.html")[0] == 200
            assert broker.log().count("cannot begin, and tries again") <= broker.log().count("Read-only file system")
            assert "Traceback" not in broker.log()
        finally:
            client.close()
            broker.close()


def test_more_topics_than_descriptors_are_served(fresh_broker, connect):
    """A broker serves three times as many topics as it may open files for."""
    eventually(lambda: ready(fresh_broker)[0] == 200, SECONDS, "the broker to be ready")
    children = fresh_broker.children()
    for pid in children.values():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    client, topics = connect(fresh_broker.service_url), [unique_topic() for _ in range(TOPICS)]
    producers = [client.create_producer(topic) for topic in topics]
    for producer in producers:
        producer.send(producer.topic().encode())
    for topic in topics:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert reader.read_next(SECONDS * 1_000).data() == topic.encode()
        reader.close()
    assert fresh_broker.children() == children
    client.close()
    assert fresh_broker.stop() == 0
