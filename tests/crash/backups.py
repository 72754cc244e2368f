"""Backups under load while owners are killed: each is put in place at the end, and has what was answered before it was
begun.

    python -m tests.crash.backups --backups 20 [--seed 1]

Messages of a few topics are acknowledged in random order, so that ledgers are punched, deleted and rolled while backups
share them, and journals are used again.  A backup that an owner's end has spoilt says so, and is made again; those that
were made must not change any more.
"""
import argparse
import json
import random
import subprocess
import tempfile
import threading
from pathlib import Path

import pulsar

from ..harness import COMMAND, HANG_MS, LOAD_PAUSE_SECONDS, Broker, left_for

TOPICS, BATCH, HELD = 4, 20, 30
PAUSE_S = 4.0                # at most, between two kills, and two backups
PATIENCE_MS = HANG_MS
CONFIGURATION = """
[network]
max_message_size = 100_000
[storage]
roll_over_bytes = 1_048_576
journal_segment_bytes = 6_000_000
discovery_grace_s = 0
keep_acknowledged_s = 0
"""


class Topic:
    """The answered messages and acknowledgements of one topic, written by the thread that uses it."""

    def __init__(self, client: pulsar.Client, number: int, seed: int):
        self.name, self.published, self.tried = f"persistent://public/default/kept-{number}", [], set()
        self._client, self._chance, self.is_over = client, random.Random(seed), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        consumer = self._client.subscribe(self.name, "s", consumer_type=pulsar.ConsumerType.Shared,
                                          receiver_queue_size=200)
        producer = self._client.create_producer(self.name, send_timeout_millis=PATIENCE_MS, block_if_queue_full=True)
        first, held = 0, []
        while not self.is_over.wait(BATCH * LOAD_PAUSE_SECONDS):
            answered = threading.Semaphore(0)

            def receipted(result, _, number, answered=answered):
                if result == pulsar.Result.Ok:
                    self.published.append(number)
                answered.release()
            for number in range(first, first + BATCH):
                payload = b"%d " % number + bytes(self._chance.randrange(9_000))
                producer.send_async(payload,
                                    lambda result, message_id, number=number: receipted(result, message_id, number))
            for _ in range(BATCH):
                answered.acquire()
            first += BATCH
            try:
                held += [consumer.receive(2_000) for _ in range(BATCH)]
            except pulsar.Timeout:
                continue
            self._chance.shuffle(held)
            while len(held) > HELD:
                message = held.pop()
                self.tried.add(number_of(message))
                consumer.acknowledge(message)

    def stop(self) -> None:
        self.is_over.set()
        self._thread.join()


def number_of(message: pulsar.Message) -> int:
    return int(message.data().split(b" ")[0])


class Backups:
    """A broker on a folder, its topics, and the backups that were made of it."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.chance, self.failed = folder, random.Random(seed), 0
        (folder / "geminga.toml").write_text(CONFIGURATION)
        self.broker = self._broker("data").start()
        self._client = client_of(self.broker)
        self.topics = [Topic(self._client, number, self.chance.randrange(1 << 32)) for number in range(TOPICS)]
        self.made: list[tuple[Path, dict[str, list[int]]]] = []      # and what had been receipted before

    def _broker(self, name: str) -> Broker:
        return Broker(self.folder / name, "--config", str(self.folder / "geminga.toml"), "--owners",
                      str(self.chance.randrange(1, 4)))

    def make(self, count: int) -> None:
        over = threading.Event()

        def kill() -> None:
            while not over.wait(self.chance.uniform(0.5, PAUSE_S)):
                self.broker.kill("owner", 0)
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            while len(self.made) < count:
                before = {topic.name: list(topic.published) for topic in self.topics}
                done = subprocess.run([COMMAND[0], "backup", "--data-dir", self.broker.data_dir, "--json",
                                       self.folder / "backups"],
                                      capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    self.made.append((Path(json.loads(done.stdout)["folder"]), before))
                else:
                    assert "owner" in done.stderr, done.stderr
                    self.failed += 1
                over.wait(self.chance.uniform(0, PAUSE_S / 2))
        finally:
            over.set()
            killer.join()

    def check(self) -> None:
        """Restore each backup, and assert that it is undamaged and delivers every message with a receipt and no ack."""
        for topic in self.topics:
            topic.stop()
        self._client.close()
        self.broker.close()
        for number, (made, before) in enumerate(self.made):
            broker = self.put(made, f"again-{number}").start()
            try:
                self._look(broker, before)
            finally:
                broker.close()

    def put(self, made: Path, name: str) -> Broker:
        """Restore a backup, and start a broker on it with a random number of owners."""
        broker = self._broker(name)
        done = subprocess.run([COMMAND[0], "restore", made, broker.data_dir], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, (made, done.stdout, done.stderr)
        return broker

    def _look(self, broker: Broker, before: dict[str, list[int]]) -> None:
        client = client_of(broker)
        for topic in self.topics:
            consumer = client.subscribe(topic.name, "s", consumer_type=pulsar.ConsumerType.Shared)
            left = set(map(number_of, left_for(broker, consumer)))
            lost = set(before[topic.name]) - left - topic.tried
            assert not lost, (topic.name, sorted(lost))
        client.close()


def client_of(broker: Broker) -> pulsar.Client:
    return pulsar.Client(broker.service_url, operation_timeout_seconds=60,
                         logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backups", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        backups = Backups(Path(folder), options.seed)
        backups.make(options.backups)
        backups.check()
        print(f"{len(backups.made)} backups were made and looked at, {backups.failed} failed as an owner was killed, "
              "nothing is missing")


if __name__ == "__main__":
    main()
