"""Kills of either side, at any moment: the standby continues or begins anew, and never serves a mixture."""
import random
import signal
import threading
import time

import psutil
import pulsar
import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..crash.traffic import PAUSE_SECONDS, Publisher, Subscriber
from ..harness import (
    HANG_MS,
    HANG_SECONDS,
    LOAD_PAUSE_SECONDS,
    eventually,
    left_for,
    partitioned_topic,
    path_of,
    request,
)
from .pair import is_listening

pytestmark = pytest.mark.slow
SUBSCRIPTION = "sub"


class _Timed:
    """A client that remembers when each of its messages was answered (a number -> time.monotonic())."""

    def begin(self):
        self.answered = {}
        super().begin()

    def step(self):
        known = len(self.receipted)
        super().step()
        self.answered.update(dict.fromkeys(self.receipted[known:], time.monotonic()))

    def before(self, moment):
        return {number for number, at in self.answered.items() if at < moment}


class TimedPublisher(_Timed, Publisher):
    pass


class TimedSubscriber(_Timed, Subscriber):
    pass


class Load:
    """A producer that numbers what it sends and a consumer that acknowledges, which both reconnect.

    The topic has deduplication, as a producer that reconnects sends again what was stored without a receipt.
    """

    def __init__(self, url, topic):
        self.topic, self.answered, self.acknowledged, self._stop = topic, [], set(), threading.Event()
        self._client = pulsar.Client(url, operation_timeout_seconds=HANG_SECONDS)
        self._producer = self._client.create_producer(topic, send_timeout_millis=HANG_MS)
        self._consumer = self._client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._publish, self._consume)]
        for thread in self._threads:
            thread.start()

    def _publish(self):
        while not self._stop.wait(LOAD_PAUSE_SECONDS):
            self._producer.send(b"%d" % len(self.answered))
            self.answered.append(len(self.answered))

    def _consume(self):
        while not self._stop.is_set():
            try:
                message = self._consumer.receive(200)
                self.acknowledged.add(int(message.data()))
                self._consumer.acknowledge(message)
            except pulsar.PulsarException:
                continue

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(HANG_SECONDS)
        self._client.close()


def held(broker, topic):
    """Return the numbers that a topic of one partition holds, in their order, and those that SUBSCRIPTION gets."""
    client = pulsar.Client(broker.service_url)
    try:
        reader, found = client.create_reader(topic, pulsar.MessageId.earliest), []
        while reader.has_message_available():
            found.append(int(reader.read_next(HANG_MS).data()))
        consumer = client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared)
        return found, [int(message.data()) for message in left_for(broker, consumer)]
    finally:
        client.close()


def keep_everything(broker):
    status, text = request("POST", f"{broker.http_url}/admin/v2/namespaces/public/default/retention",
                           b'{"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}')
    assert status == 204, text


def test_a_lost_broker_costs_what_was_answered_within_the_lag(run):
    """What was answered before the lag is there, in order, once; cursors are not further than what was acknowledged,
    and not further back than the lag.
    """
    broker = run("first")
    standby = run("second", broker.service_url)
    keep_everything(broker)
    topic = "persistent://public/default/counted"
    with TimedPublisher(broker.service_url, topic, pause=PAUSE_SECONDS) as publisher, \
            TimedSubscriber(broker.service_url, topic, lambda _: True, kind=api.CommandSubscribe.Shared) as subscriber:
        standby.wait_complete()
        subscriber.wait_for_more(500)
        broker.kill_supervisor()
        asked, state = time.monotonic(), standby.state()
    as_of = asked - state["lag_ms"] / 1_000
    assert standby.promote().returncode == 0
    found, left = held(standby, topic)
    assert found == list(range(len(found))) and publisher.before(as_of) <= set(found)
    done = subscriber.before(as_of)
    assert done and not done & set(left), "acknowledged before the lag, and there again"
    assert set(found) - set(left) <= subscriber.asked, "skipped without an acknowledgement"


def test_a_standby_and_its_feed_may_be_killed_at_any_moment(run, tmp_path):
    """The copy goes on from where it was, or begins anew, and at the end it has everything."""
    chance = random.Random(7)
    broker = run("first")
    partitioned = partitioned_topic(broker.http_url, 1)
    topic = partitioned + "-partition-0"
    keep_everything(broker)
    assert request("POST", f"{broker.http_url}/admin/v2/{path_of(partitioned)}/deduplicationEnabled", b"true")[0] == 204
    standby = run("second", broker.service_url)
    load = Load(broker.service_url, topic)
    for _ in range(6):
        enough = len(load.answered) + chance.randrange(1, 400)
        eventually(lambda enough=enough: len(load.answered) > enough)
        victim = chance.choice(["standby", "feed", "applier", "owner", "admin"])
        if victim == "standby":
            standby.kill_all()
            standby.start()
        elif victim in ("owner", "admin"):
            broker.kill(victim)
        else:
            kill_job(broker.pid if victim == "feed" else standby.pid, victim)
        assert not is_listening(standby.service_url)
    standby.wait_complete()
    load.stop()
    standby.wait_complete()
    assert standby.promote().returncode == 0
    found, left = held(standby, topic)
    assert found == list(range(len(found))) and len(found) >= len(load.answered)
    # Acknowledgements that were on their way to an owner that was killed are lost: the client does not wait for them.
    assert set(found) - set(left) <= set(load.acknowledged)


def kill_job(pid, kind):
    name = {"feed": "geminga.supervisor.standby.feed", "applier": "geminga.storage.standby.applying"}[kind]
    for child in psutil.Process(pid).children(recursive=True):
        try:
            if name in child.cmdline():
                child.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def test_a_broker_that_was_restarted_is_followed_on_without_a_new_base(run):
    broker = run("first")
    standby = run("second", broker.service_url)
    standby.wait_complete()
    for end in (broker.stop, broker.kill_supervisor, broker.stop):
        end()
        broker.start()
        standby.wait_complete()
    assert "made anew" not in standby.log()


def test_a_second_standby_is_refused_and_another_folder_of_the_broker_gives_a_new_base(run, tmp_path):
    broker = run("first")
    standby = run("second", broker.service_url)
    standby.wait_complete()
    third = run("third", broker.service_url)
    eventually(lambda: "has a standby" in third.log())
    third.close()
    broker.stop()
    broker.data_dir = tmp_path / "other"
    broker.start()
    standby.wait_complete()
    assert "its copy is of another data folder" in standby.log()

