"""Transactions as applications in Java use them, with Apache Pulsar's own client.

One Java program has all scenarios (java_sources/transactions). The tests start the program once, give it the names of
scenarios one by one, and kill processes of the broker where a scenario asks for that.

Apache Pulsar 4.0.7 passes all scenarios but two: it drops a message that is sent again after an abort with
deduplication, and closes the connection of a producer that publishes to a non-persistent topic in a transaction.
"""

import queue
import subprocess
import threading
from collections.abc import Iterator

import pytest

from ..conftest import RunningBroker
from ..harness import Broker
from .java import JavaTools, fetch_jars

pytestmark = [pytest.mark.slow, pytest.mark.java]

OWN_OPTIONS = "--owners", "2", "--workers", "2"
ANSWER_SECONDS = 180
TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
SCENARIOS = {
    "Publishing": [
        "published-unbatched", "published-batched", "published-by-key-in-batches", "published-compressed",
        "published-in-chunks", "published-with-delays", "published-with-keys", "order-is-that-of-storing",
        "many-interleaved", "several-topics", "first-use-of-a-topic", "deduplicated", "deduplicated-after-an-abort",
        "non-persistent-topic",
    ],
    "Acknowledging": [
        *(f"acknowledged-one-by-one-{kind}" for kind in TYPES),
        "acknowledged-cumulatively-Exclusive", "acknowledged-cumulatively-Failover",
        *(f"acknowledged-parts-of-a-batch-{kind}" for kind in TYPES),
        "acknowledged-cumulatively-within-a-batch", "acknowledged-as-a-list", "acknowledged-chunks",
        "acknowledged-in-two-subscriptions", "conflicts", "conflicts-within-a-batch", "a-failed-operation-aborts",
        "plain-acknowledgements-win", "unacked-messages-are-counted", "consume-process-produce",
    ],
    "Redelivering": [
        "redelivery-counts", "negative-acknowledgements", "acknowledgement-time-outs", "dead-letter-topic",
        "dead-letter-topic-of-a-batch", "retry-letter-topic", "another-consumer-takes-over",
        "committed-messages-come-again",
    ],
    "Ending": [
        "ended-transactions-refuse", "ended-ones-are-not-found", "unknown-ones-are-not-found", "empty-transactions-end",
        "time-out", "time-out-without-the-clients-clock", "another-client-commits",
        "a-client-closes-with-open-transactions", "several-coordinators", "many-at-once",
    ],
    "Reading": [
        "readers", "readers-at-the-latest-message", "table-views", "last-message-ids", "seeks", "compacted-topics",
        "late-subscriptions",
    ],
    "Failing": [
        "unloaded-topics", "killed-owner-0", "killed-owner-1", "killed-worker", "deleted-topics",
    ],
}


class Program:
    """The Java program while it runs."""

    def __init__(self, process: "subprocess.Popen[str]", broker: Broker | RunningBroker) -> None:
        self._process, self._broker = process, broker
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.names: list[str] = []
        while (line := self._next()) != "ready":
            self.names.append(line.removeprefix("has "))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("failed the program has ended")

    def _next(self) -> str:
        return self._lines.get(timeout=ANSWER_SECONDS)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def run(self, name: str) -> str:
        """Run a scenario, and return "ok" or the exception that ended it."""
        self._say(name)
        while (line := self._next()).startswith("please kill "):
            assert isinstance(self._broker, Broker)
            role, index = line.removeprefix("please kill ").split()
            self._broker.wait_replaced(role, int(index), self._broker.kill(role, int(index)))
            self._say("done")
        return line.replace("\\n", "\n")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(scope="module")
def program(broker, request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The Java program, connected to a broker of two owners or to the one that runs already."""
    jars = fetch_jars()
    used = request.getfixturevalue("own") if isinstance(broker, Broker) else broker
    java = JavaTools(jars, tmp_path_factory.mktemp("java"), used.service_url, used.http_url)
    started = Program(java.start(tmp_path_factory.mktemp("classes"), "Scenarios", used.http_url), used)
    yield started
    started.close()


def test_every_scenario_is_run(program):
    assert program.names == [name for names in SCENARIOS.values() for name in names]


@pytest.mark.parametrize("name", [name for names in SCENARIOS.values() for name in names])
def test_a_scenario_with_transactions(program, broker, name):
    if name.startswith("killed-") and not isinstance(broker, Broker):
        pytest.skip("needs a broker of its own, and was told to use one that runs already")
    assert program.run(name) == "ok"
