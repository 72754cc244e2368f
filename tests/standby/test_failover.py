"""Clients that know both hosts go to the promoted standby by themselves; a standby shows its credentials."""
import threading

import pulsar
import pytest

from ..harness import eventually, guarded_broker
from .pair import Broker, Standby

pytestmark = pytest.mark.slow


def test_a_client_with_both_hosts_goes_on_at_the_promoted_standby(run):
    """The producer and the consumer that were open keep working, and each message comes in its order."""
    broker = run("first")
    standby = run("second", broker.service_url)
    both = f"{broker.service_url},{standby.service_url.removeprefix('pulsar://')}"
    client = pulsar.Client(both, operation_timeout_seconds=30)
    try:
        consumer = client.subscribe("failover", "s")
        producer = client.create_producer("failover", send_timeout_millis=60_000)
        standby.wait_complete()
        received, stop = [], threading.Event()

        def consume():
            while not stop.is_set():
                try:
                    message = consumer.receive(200)
                except pulsar.Timeout:
                    continue
                received.append(int(message.data()))
                consumer.acknowledge(message)

        consuming = threading.Thread(target=consume)
        consuming.start()
        for number in range(100):
            producer.send(b"%d" % number)
        standby.wait_complete()
        assert standby.promote().returncode == 0
        for number in range(100, 200):
            producer.send(b"%d" % number)
        eventually(lambda: received and received[-1] == 199, 60)
        stop.set()
        consuming.join()
        assert list(dict.fromkeys(received)) == list(range(200))      # a redelivery follows what it repeats
    finally:
        client.close()


def test_a_standby_needs_the_rights_of_a_super_user(tmp_path):
    """Without a token, or with that of another role, nothing is copied."""
    made = []

    def start(*options):
        made.append(Broker(tmp_path / "first", *options))
        return made[-1].start()

    broker, tokens = guarded_broker(start, tmp_path, "admin", "nobody")
    config = tmp_path / "geminga.toml"
    try:
        for role, text in ((None, "401"), ("nobody", "401"), ("admin", "")):
            mine = tmp_path / f"{role}.toml"
            credentials = f'[standby]\nauth_params = "token:{tokens[role]}"\n' if role else ""
            mine.write_text(config.read_text() + credentials)
            made.append(standby := Standby(tmp_path / f"of-{role}", broker.service_url, "--config", str(mine)))
            standby.start()
            if text:
                eventually(lambda standby=standby, text=text: text in standby.log(), 30)
                assert not (standby.data_dir / "catalogue.sqlite").exists()
                standby.close()
            else:
                standby.wait_complete()
    finally:
        for one in made:
            one.close()

