"""A promotion: what is there afterwards, who serves, and who never serves again."""
import subprocess
import threading
from contextlib import suppress

import pulsar
import pytest

from ..harness import HANG_MS, HANG_SECONDS, LOAD_PAUSE_SECONDS, eventually, request, unique_topic
from ..proto.client_frames import T, entry_of, message_metadata, send
from ..supervisor.test_scalable_data import fill
from ..supervisor.test_scalable_data import read as read_all
from ..workers.peer import Closed, Peer
from ..workers.test_scalable_topics import create, url_of
from .pair import GEMINGA, Standby, is_listening, ready_status

pytestmark = pytest.mark.slow


def publish(url, topic, payloads):
    client = pulsar.Client(url)
    try:
        producer = client.create_producer(topic)
        return [str(producer.send(payload)) for payload in payloads]
    finally:
        client.close()


def read(url, topic, count):
    client = pulsar.Client(url)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        return [(str(message.message_id()), message.data())
                for message in (reader.read_next(HANG_MS) for _ in range(count))]
    finally:
        client.close()


def test_a_standby_takes_over_everything_and_its_broker_never_serves_again(run, tmp_path):
    """A planned promotion loses nothing: the broker stops first, and the standby gets the rest."""
    broker = run("first")
    standby = run("second", broker.service_url)
    standby.wait_complete()
    assert not is_listening(standby.service_url) and ready_status(standby.http_url) == 503
    assert "standby of" in subprocess.run([GEMINGA, "status", "--data-dir", str(standby.data_dir)], text=True,
                                          capture_output=True).stdout
    assert "geminga_standby_lag_seconds" in request("GET", f"{standby.http_url}/metrics")[1]
    assert "geminga_standby_lag_seconds" in request("GET", f"{broker.http_url}/metrics")[1]
    topic, stop, sent = unique_topic(), threading.Event(), []

    def go_on():
        # Python's client would wait for the answer to its last message.
        with suppress(Closed, OSError), Peer(broker.service_url) as peer:
            peer.open_producer(topic)
            while not stop.wait(LOAD_PAUSE_SECONDS):
                number = len(sent)
                peer.say(send(entry_of(message_metadata(sequence_id=number), b"%d" % number), sequence_id=number))
                if (heard := peer.hear()).type != T.SEND_RECEIPT:
                    return
                place = heard.send_receipt.message_id
                sent.append((f"({place.ledgerId},{place.entryId},-1,-1)", b"%d" % number))

    publishing = threading.Thread(target=go_on)
    publishing.start()
    eventually(lambda: len(sent) > 200)
    promoted = standby.promote()
    stop.set()
    assert promoted.returncode == 0 and '"stopped": true' in promoted.stdout, promoted.stderr
    assert broker.ended() == 2
    publishing.join()
    assert read(standby.service_url, topic, len(sent)) == sent
    assert publish(standby.service_url, topic, [b"more"]) and ready_status(standby.http_url) == 200
    again = subprocess.run([GEMINGA, "serve", "--data-dir", str(broker.data_dir), "--port", "0", "--http-port", "0"],
                           capture_output=True, text=True, timeout=HANG_SECONDS)
    assert again.returncode == 2 and f"--standby-of {standby.service_url}" in again.stderr
    old = Standby(broker.data_dir, standby.service_url).start()      # it may serve as the standby of the other one
    try:
        old.wait_complete()
        assert "discarded, with 0 entries" in old.log()
    finally:
        old.close()


def test_a_broker_that_was_down_at_the_promotion_asks_its_standby(run):
    """After a kill and a promotion it refuses to serve, and as a standby it says what it discards."""
    broker = run("first")
    standby = run("second", broker.service_url)
    standby.wait_complete()
    publish(broker.service_url, "kept", [b"1", b"2"])
    standby.wait_complete()
    standby.kill_all()
    publish(broker.service_url, "kept", [b"3", b"4", b"5"])
    broker.kill_supervisor()
    standby.start()
    promoted = standby.promote()
    assert promoted.returncode == 0 and '"stopped": false' in promoted.stdout, promoted.stderr
    assert [data for _, data in read(standby.service_url, "kept", 2)] == [b"1", b"2"]
    again = subprocess.run([GEMINGA, "serve", "--data-dir", str(broker.data_dir), "--port", "0", "--http-port", "0"],
                           capture_output=True, text=True, timeout=HANG_SECONDS)
    assert again.returncode == 2 and "was superseded" in again.stderr
    old = Standby(broker.data_dir, standby.service_url).start()
    try:
        old.wait_complete()
        assert "discarded, with 3 entries" in old.log()
    finally:
        old.close()
    standby.stop()
    assert standby.start().service_url and ready_status(standby.http_url) == 200      # with the same command


def test_a_standby_never_overwrites_other_data_and_a_copy_is_served_by_nobody_before_its_promotion(run):
    """A folder of another broker is refused while it is served, and when it is not."""
    broker, other = run("first"), run("other")
    publish(other.service_url, "precious", [b"1"])
    for text in ("in use", "no standby's copy"):
        refused = subprocess.run(
            [GEMINGA, "serve", "--data-dir", str(other.data_dir), "--standby-of", broker.service_url],
            capture_output=True, text=True, timeout=HANG_SECONDS)
        assert refused.returncode == 1 and text in refused.stderr
        if other.is_there:
            other.stop()
    other.start()
    assert read(other.service_url, "precious", 1)[0][1] == b"1"
    standby = run("second", broker.service_url)
    standby.wait_complete()
    standby.stop()
    refused = subprocess.run([GEMINGA, "serve", "--data-dir", str(standby.data_dir), "--port", "0"],
                             capture_output=True, text=True, timeout=HANG_SECONDS)
    assert refused.returncode == 1 and "it is a standby's copy" in refused.stderr


@pytest.mark.parametrize("is_migrated", [False, True])
def test_a_standby_takes_over_scalable_topics_whose_segments_change(run, is_migrated):
    """Segments that split while the standby follows, or that were a regular topic's partitions when it began to, are
    there after the promotion, with their messages.
    """
    broker = run("first")
    name = "topic://public/default/followed"
    url = f"{broker.http_url}/admin/v2/namespaces/public/default/retention"
    assert request("POST", url, b'{"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}')[0] == 204
    if is_migrated:
        regular = f"{broker.http_url}/admin/v2/persistent/public/default/followed"
        assert request("PUT", f"{regular}/partitions", b"2")[0] == 204
        for number in range(2):
            publish(broker.service_url, f"followed-partition-{number}", [b"before %d" % number])
    else:
        create(broker, name, 2)
        fill(broker, name, "before")
    standby = run("second", broker.service_url)
    standby.wait_complete()
    for change in ("migrate", "split/3") if is_migrated else ("split/1",):
        assert request("POST", f"{url_of(broker, name)}/{change}")[0] == 204
    fill(broker, name, "behind")
    layout = request("GET", url_of(broker, name))
    standby.wait_complete()
    assert standby.promote().returncode == 0
    eventually(lambda: ready_status(standby.http_url) == 200)
    assert request("GET", url_of(standby, name)) == layout
    assert sorted(read_all(standby, name, 5)) == ["before 0", "before 1", "behind 0", "behind 1", "behind 2"]
    fill(standby, name, "after")
    assert request("POST", f"{url_of(standby, name)}/split/{2 if is_migrated else 0}")[0] == 204
    assert len(read_all(standby, name, 8)) == 8
