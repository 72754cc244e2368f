"""A feed and a copy without a network between them: what was copied recovers to the state of the broker."""
import contextlib
import json
import shutil
import threading

import pulsar
import pytest

from geminga.storage.catalogue.catalogue import open_to_read
from geminga.storage.offline import verify
from geminga.storage.standby import copy, feeding, frames
from geminga.storage.standby.applying import Applier
from geminga.storage.standby.copy import Copy
from geminga.storage.standby.feeding import Feed
from geminga.storage.standby.frames import Decoder

from ..harness import (
    HANG_MS,
    LOAD_PAUSE_SECONDS,
    Broker,
    eventually,
    left_for,
    partitioned_topic,
    request,
    unique_topic,
)
from ..supervisor.test_undelete import clear, fill, keep, left, take_back

pytestmark = pytest.mark.slow
OWNERS = 2


class Line:
    """A feed of a broker's folder into a copy, both in this process."""

    def __init__(self, broker, folder):
        folder.mkdir(exist_ok=True)
        self.copy, self._decoder, self.marks = Copy(folder), Decoder(), []
        self.feed = Feed(broker.data_dir, OWNERS, self._take)

    def _take(self, pieces):
        for frame in self._decoder.receive(b"".join(pieces)):
            if frame.kind == frames.MARK:
                self.copy.sync()
                if frame.fields["base"] == "complete" and not self.copy.is_complete:
                    self.copy.complete_base("here", "there")
                self.marks.append(frame.fields)
            else:
                self.copy.take(frame)

    def begin(self):
        self.copy.begin_base("there", OWNERS)
        self.feed.begin()

    def catch_up(self):
        while not self.feed.round() or not self.copy.is_complete:
            pass

    def close(self):
        self.feed.close()
        self.copy.close()


def contents(broker, topic, subscription):
    """Return [(message id, payload)] of what a new subscription from the beginning, and an old one, get."""
    client = pulsar.Client(broker.service_url)
    try:
        consumer = client.subscribe(topic, subscription, initial_position=pulsar.InitialPosition.Earliest)
        return sorted((str(message.message_id()), message.data()) for message in left_for(broker, consumer))
    finally:
        client.close()


def test_a_copy_made_under_load_recovers_to_the_state_of_the_broker(tmp_path):
    """Ids, payloads, cursors and policies are the same, with a base, records, topics that came and topics that went."""
    broker = Broker(tmp_path / "broker", "--owners", str(OWNERS)).start()
    client = pulsar.Client(broker.service_url)
    topic, stop = partitioned_topic(broker.http_url, 3), threading.Event()
    consumer = client.subscribe(topic, "half")
    client.subscribe(topic, "all").close()

    def publish():
        producer, number = client.create_producer(topic), 0
        while not stop.is_set() or number < 3_000:
            producer.send_async(b"%d" % number, None)
            number += 1
            if number % 500 == 0:
                producer.flush()
                client.create_producer(f"later-{number}").close()
                stop.wait(10 * LOAD_PAUSE_SECONDS)
        producer.flush()

    publishing = threading.Thread(target=publish)
    publishing.start()
    for _ in range(200):
        consumer.acknowledge(consumer.receive(HANG_MS))
    line = Line(broker, tmp_path / "copy")
    line.begin()
    line.catch_up()
    applier = Applier(tmp_path / "copy")
    applier.step()
    for _ in range(300):
        consumer.acknowledge(consumer.receive(HANG_MS))
    line.feed.round()
    stop.set()
    publishing.join()
    consumer.close()
    client.close()
    broker.stop()
    line.catch_up()
    applier.step()
    line.close()
    copy.promote(tmp_path / "copy")
    found = [both(tmp_path / name, topic) for name in ("broker", "copy")]
    assert found[0] == found[1]
    assert len(found[0]["new"]) >= 3_000 and len(found[0]["half"]) < len(found[0]["all"])
    assert list(verify.walk(tmp_path / "copy")) == []


def both(folder, topic):
    broker = Broker(folder).start()
    try:
        return {name: contents(broker, topic, name) for name in ("all", "half", "new")}
    finally:
        broker.stop()


@pytest.mark.parametrize("lags", [False, True])
def test_a_backlog_that_is_taken_back_is_not_lost_on_a_standby_that_has_yet_to_hear_of_it(tmp_path, monkeypatch, lags):
    """It is taken back when the feed has read the journals but not the catalogue, or reads journals bit by bit."""
    broker, topic = Broker(tmp_path / "broker", "--owners", str(OWNERS)).start(), unique_topic()
    keep(broker)
    rest = fill(broker, topic)
    clear(broker, topic)
    line = Line(broker, tmp_path / "copy")
    line.begin()
    line.catch_up()
    if lags:
        monkeypatch.setattr(feeding, "_ROUND_BYTES", 1)
        client = pulsar.Client(broker.service_url)
        for number in range(8):
            producer = client.create_producer(f"{topic}-{number}")
            for _ in range(2):
                producer.send(bytes(400_000))
        client.close()
        assert take_back(broker, topic)[0] == 200
    else:
        monkeypatch.setattr(line.feed._catalogue, "changed", lambda: take_back(broker, topic)[0] == 200)
    line.feed.round()
    monkeypatch.undo()
    shutil.copytree(tmp_path / "copy", tmp_path / "lagging")
    line.catch_up()
    with contextlib.closing(open_to_read(tmp_path / "copy" / "catalogue.sqlite")) as catalogue:
        assert catalogue.kept_topics.all() == []
    line.close()
    broker.stop()
    for folder in ("lagging", "copy"):
        copy.promote(tmp_path / folder)
        promoted = Broker(tmp_path / folder).start()
        try:
            assert folder == "copy" or take_back(promoted, topic)[0] == 200
            assert left(promoted, topic, len(rest)) == rest
        finally:
            promoted.stop()


@pytest.mark.parametrize("lags", [False, True])
def test_a_split_of_which_a_standby_has_the_layout_alone_is_carried_out_there(tmp_path, monkeypatch, lags):
    """The split is made when the feed has read the journals but not the catalogue."""
    broker = Broker(tmp_path / "broker", "--owners", str(OWNERS)).start()
    url = f"{broker.http_url}/admin/v2/scalable/public/default/split"
    assert request("PUT", url)[0] == request("PUT", f"{url}/subscriptions/sub")[0] == 204
    line = Line(broker, tmp_path / "copy")
    line.begin()
    line.catch_up()
    monkeypatch.setattr(line.feed._catalogue, "changed", lambda: request("POST", f"{url}/split/0")[0] == 204)
    line.feed.round()
    monkeypatch.undo()
    if not lags:
        line.catch_up()
    line.close()
    broker.stop()
    copy.promote(tmp_path / "copy")
    promoted = Broker(tmp_path / "copy").start()
    try:
        stats = f"{promoted.http_url}/admin/v2/scalable/public/default/split/stats"
        eventually(lambda: set(json.loads(request("GET", stats)[1])["subscriptions"].get("sub", {"segments": []})[
            "segments"]) == {"0", "1", "2"})
        assert json.loads(request("GET", stats)[1])["layout"]["epoch"] == 1
    finally:
        promoted.stop()
