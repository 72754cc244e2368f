"""Transactions of a real client, the Go one, while processes are killed: every input is moved exactly once.

    python -m tests.crash.transactions --kills 200 --seed 1

The client takes messages from a partitioned topic and puts them on another, each few in one transaction with their
acknowledgements, in several lanes.  A process of the broker is killed again and again, also while it starts.  At the
end the second topic holds what the first one holds, each message as often, and the subscription has nothing left.
"""
import argparse
import random
import re
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pulsar

from geminga.storage.runtime.threads import beside

from ..clients.test_go_client import build
from ..harness import Broker, partitioned_topic, request
from .traffic import LAST, SECONDS

VICTIMS = {"worker": 3, "owner": 5, "admin": 1, "supervisor": 2}
PAUSE_SECONDS = 1.0           # at most, between two kills
LANES, SILENCE = 3, "9s"      # twice the lifetime of a transaction, and a bit
DEADLINE_SECONDS = 1_800


@contextmanager
def inputs(url: str, topic: str) -> Iterator[None]:
    """Publish the numbers from 0 on, until the end of the block; some may be published twice by the client."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    # Without batches: the Go client acknowledges a batch in the transaction of its last message alone.
    producer = client.create_producer(topic, send_timeout_millis=0, batching_enabled=False, block_if_queue_full=True)

    def publish(is_over: threading.Event) -> None:
        number = 0
        while not is_over.wait(0.01):      # not faster than the client moves them on a busy machine
            producer.send_async(str(number).encode(), lambda *_: None, partition_key=str(number))
            number += 1

    try:
        with beside(publish):
            yield
    finally:
        producer.flush()
        client.close()


def kill_one(broker: Broker, chance: random.Random) -> None:
    """Kill a process at a random moment; the next one may die while this one's successor starts."""
    time.sleep(chance.random() * PAUSE_SECONDS)
    victim = chance.choices(list(VICTIMS), list(VICTIMS.values()))[0]
    if victim == "supervisor":
        broker.kill_supervisor()
        broker.start()
    else:
        broker.kill(victim, 0 if victim == "admin" else chance.randrange(2))


def all_of(client: pulsar.Client, topic: str, partitions: int) -> Counter[int]:
    """Count the numbers that a partitioned topic holds: those before a marker, which an open transaction would hold up.
    """
    found: Counter[int] = Counter()
    for part in range(partitions):
        producer = client.create_producer(f"{topic}-partition-{part}")
        producer.send(LAST)
        producer.close()
        reader = client.create_reader(f"{topic}-partition-{part}", pulsar.MessageId.earliest)
        while (data := reader.read_next(timeout_millis=SECONDS * 1_000).data()) != LAST:
            found[int(data)] += 1
        reader.close()
    return found


def run(folder: Path, kills: int, seed: int, *, batching: bool) -> dict[str, int]:
    """Move messages while processes are killed; return the client's counts.  Raises AssertionError."""
    chance, program = random.Random(seed), build()
    broker = Broker(folder / "data", "--workers", "2", "--owners", "2").start()
    try:
        source, target = (partitioned_topic(broker.http_url, partitions) for partitions in (3, 2))
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        client.subscribe(source, "mover", pulsar.ConsumerType.Shared).close()
        for topic in source, target:
            client.subscribe(topic, "audit").close()      # keeps what is acknowledged
        # A client that lost a receipt sends again in the same transaction.
        status, text = request("POST", f"{broker.http_url}/admin/v2/{target.replace('://', '/')}/deduplicationEnabled",
                               b"true")
        assert status == 204, text
        with (folder / "mover.log").open("wb") as log:
            mover = subprocess.Popen(
                [program, "-url", broker.service_url, "-topic", source, "-to", target, "-lanes", str(LANES), "-silence",
                 SILENCE, "-deadline", f"{DEADLINE_SECONDS}s", *(["-batching"] if batching else [])],
                stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            with inputs(broker.service_url, source):
                for _ in range(kills):
                    kill_one(broker, chance)
            said = mover.communicate(timeout=DEADLINE_SECONDS)[0]
        finally:
            mover.kill()
        assert mover.returncode == 0, said + (folder / "mover.log").read_text()[-4_000:]
        given, moved = all_of(client, source, 3), all_of(client, target, 2)
        lost, twice = given - moved, moved - given
        assert not lost and not twice, f"{lost.total()} lost: {lost.most_common(9)}, {twice.total()} twice: " \
                                       f"{twice.most_common(9)}"
        left = client.subscribe(source, "mover", pulsar.ConsumerType.Shared)
        with suppress(pulsar.Timeout):
            while (data := left.receive(timeout_millis=1_000).data()) == LAST:
                pass
            raise AssertionError(f"the subscription has {data!r} left")
        client.close()
        assert "Traceback" not in broker.log(), broker.log()
        counts = re.fullmatch(r"committed (\d+) aborted (\d+) broken (\d+) messages (\d+)\n", said)
        assert counts, said
        return dict(zip(("committed", "aborted", "broken", "messages"), map(int, counts.groups()), strict=True)) | {
            "inputs": given.total(), "kills": kills}
    finally:
        broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="transactions-") as folder:
        print(f"seed {options.seed}:", run(Path(folder), options.kills, options.seed, batching=options.seed % 2 == 1))


if __name__ == "__main__":
    main()
