"""Clients that know both hosts go to the promoted standby by themselves; a standby shows its credentials."""
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pulsar
import pytest

from ..clients.java import JavaTools, fetch_jars
from ..harness import eventually, guarded_broker, unique_topic
from .pair import Broker, Standby

pytestmark = pytest.mark.slow


def both(first: str, second: str) -> str:
    return f"{first},{second.removeprefix('pulsar://')}"


def automatic(first: str, second: str) -> pulsar.AutoClusterFailover:
    return pulsar.AutoClusterFailover(pulsar.ServiceInfo(first), [pulsar.ServiceInfo(second)], check_interval_ms=300)


class User:
    """A client with a producer and a consumer of a topic of its own."""

    def __init__(self, service, topic):
        self._client = pulsar.Client(service, operation_timeout_seconds=30)
        self._consumer = self._client.subscribe(topic, "s")
        self._producer = self._client.create_producer(topic, send_timeout_millis=60_000)
        self.received, self._stop = [], threading.Event()
        self._consuming = threading.Thread(target=self._consume)
        self._consuming.start()

    def _consume(self):
        while not self._stop.is_set():
            try:
                message = self._consumer.receive(200)
            except pulsar.Timeout:
                continue
            self.received.append(int(message.data()))
            self._consumer.acknowledge(message)

    def publish(self, numbers):
        for number in numbers:
            self._producer.send(b"%d" % number)

    def close(self):
        self._stop.set()
        self._consuming.join()
        self._client.close()


def test_clients_that_know_both_hosts_go_on_at_the_promoted_standby(run):
    """Producers and consumers that were open keep working, and each message comes in its order."""
    broker = run("first")
    standby = run("second", broker.service_url)
    with contextlib.ExitStack() as opened:
        users = [opened.enter_context(contextlib.closing(User(service(broker.service_url, standby.service_url), topic)))
                 for service, topic in ((both, "with-both"), (automatic, "automatic"))]
        standby.wait_complete()
        for user in users:
            user.publish(range(100))
        standby.wait_complete()
        assert standby.promote().returncode == 0
        for user in users:
            user.publish(range(100, 200))
        for user in users:
            eventually(lambda user=user: user.received and user.received[-1] == 199)
    for user in users:
        assert list(dict.fromkeys(user.received)) == list(range(200))      # a redelivery follows what it repeats


@pytest.fixture
def controller():
    """An HTTP server that tells clients which broker to use, and a list with its address."""
    told = [""]

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"serviceUrl": told[0]}).encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", told
    server.shutdown()
    server.server_close()


@pytest.mark.java
@pytest.mark.parametrize("how", ["auto", "controlled"])
def test_the_java_client_goes_to_the_promoted_standby_by_itself(run, tmp_path, controller, how):
    """By AutoClusterFailover, which looks whether a port can be connected to, and by ControlledClusterFailover."""
    broker = run("first")
    standby = run("second", broker.service_url)
    controller_url, told = controller
    told[0] = broker.service_url
    tools = JavaTools(fetch_jars(), tmp_path, broker.service_url, broker.http_url)
    program = tools.start(tmp_path, "Failover", unique_topic("java"), how,
                          standby.service_url if how == "auto" else controller_url)
    with program:
        def received(line: str) -> list[int]:
            program.stdin.write(line)
            program.stdin.flush()
            numbers = map(int, program.stdout.readline().split())
            return list(dict.fromkeys(numbers))      # a provider connects anew when it likes, which repeats some

        assert program.stdout.readline().strip() == "open"
        assert received("0 50\n") == list(range(50))
        standby.wait_complete()
        assert standby.promote().returncode == 0
        told[0] = standby.service_url
        came = received("50 100\n")
        program.stdin.close()
    assert [number for number in came if number >= 50] == list(range(50, 100))


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
                eventually(lambda standby=standby, text=text: text in standby.log())
                assert not (standby.data_dir / "catalogue.sqlite").exists()
                standby.close()
            else:
                standby.wait_complete()
    finally:
        for one in made:
            one.close()

