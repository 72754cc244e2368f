"""A job queue with all features while processes are killed: each job is done or is one letter, whatever is killed.

    python -m tests.crash.jobs --kills 300 --seed 1

Jobs have priorities, delays and times to live; a filter leaves some out; some are given back by every consumer until
they are dead letters; a schedule publishes beside them.  Redrives send letters back all the time, and undo that.  A
random process is killed again and again: a worker, an owner, the mover of dead letters, the admin process, or the
supervisor with all of them.

At the end nothing waits but letters.  A job that is always given back is one letter, over all redrives and undos.
Every other job that the filter lets through was done or is one letter; no job is two.
"""
import argparse
import contextlib
import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pulsar

from geminga.storage.runtime.threads import beside

from ..harness import HANG_MS, HANG_SECONDS, eventually, path_of, request, unique_topic
from . import rounds
from .figures import configuration
from .promises import body, number_of
from .traffic import LAST

VICTIMS = {"worker": 3, "owner": 4, "replicator": 4, "admin": 1, "supervisor": 2}
PAUSE_SECONDS = 1.0           # at most, between two kills
CONSUMERS, SUBSCRIPTION, FILTER = 2, "jobs", "kind = 'mine' AND key IS NOT NULL"
POLICIES = {"deadLetter": {"maxRedeliverCount": 1, "expired": True}, "ownMessageTTL": True, "subscriptionFilters": True,
            "messagePriority": {"active": True, "ageingSeconds": 5}, "deduplicationEnabled": True}
SECOND_MS = 1_000


class Kind(NamedTuple):
    """What a job is."""

    is_mine: bool = False         # the filter lets it through
    is_poison: bool = False       # every consumer gives it back
    expires: bool = False


def faults(kinds: list[Kind], receipted: set[int], done: set[int], jobs: Counter[int],
           letters: Counter[int]) -> Counter[str]:
    """Count broken promises.

    receipted, done: numbers of jobs.  jobs: how often each is stored.  letters: how many of each wait.
    """
    # What has expired is gone for all subscriptions, and its bytes are given back.
    found = Counter({"lost": sum(not kinds[number].expires for number in receipted - jobs.keys())})
    for number in receipted | jobs.keys():
        stored = jobs[number]
        kind, count = kinds[number], letters[number]
        found["stored twice"] += stored > 1
        found["two letters"] += count > 1
        found["neither done nor a letter"] += kind.is_mine and not count and (kind.is_poison or number not in done)
        found["a letter that was filtered"] += count > 0 and not kind.is_mine and not kind.expires
    return +found


class Queue:
    """A topic with jobs, and what has become of each of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        folder.mkdir(exist_ok=True)
        self.broker = rounds.broker_of(folder, folder / "data", configuration(self.chance, workers=2, owners=2))
        self.topic = unique_topic("jobs")
        self.letters = f"{self.topic}-{SUBSCRIPTION}-DLQ"
        self.kinds: list[Kind] = []      # of each job
        self.receipted: set[int] = set()
        self.done: set[int] = set()
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.details = ""

    def prepare(self) -> None:
        """Start the broker, and make the topic."""
        self.broker.start()
        assert self.ask("PUT", f"/admin/v2/{path_of(self.topic)}", None) == 204
        for name, value in POLICIES.items():
            assert self.ask("POST", f"/admin/v2/{path_of(self.topic)}/{name}", value) == 204, name
        assert self.ask("PUT", f"/ops/v1/schedules/{path_of(self.topic)}/tick", {
            "message": {"payload": "tick"}, "every": "1s", "missed": "all", "at_most": 1_000}) == 200
        client = self.client()
        self.subscribe(client).close()
        client.subscribe(self.topic, "audit").close()      # keeps what is acknowledged
        client.close()

    def ask(self, method: str, path: str, value: object) -> int:
        body = b"" if value is None else json.dumps(value).encode()
        status, text = request(method, self.broker.http_url + path, body)
        if path.startswith("/ops/v1/redrive"):
            self.counts[f"redrive: {status}"] += 1
        assert status < 500 or status in (500, 502, 503, 504), text
        return status

    def client(self) -> pulsar.Client:
        return pulsar.Client(self.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def subscribe(self, client: pulsar.Client) -> pulsar.Consumer:
        return client.subscribe(self.topic, SUBSCRIPTION, pulsar.ConsumerType.Shared, receiver_queue_size=10,
                                negative_ack_redelivery_delay_ms=50, properties={"geminga.filter": FILTER})

    # -- threads

    def publish(self, is_over: threading.Event) -> None:
        client, chance = self.client(), random.Random(self.chance.random())
        producer = client.create_producer(self.topic, "jobs", batching_enabled=False, send_timeout_millis=0,
                                          block_if_queue_full=True)
        while not is_over.wait(0.01):
            number, draw = len(self.kinds), chance.random()
            is_mine, is_poison, expires = draw < 0.7, draw < 0.15, chance.random() < 0.15
            self.kinds.append(Kind(is_mine, is_poison, expires))
            properties = {"kind": "mine" if is_mine else "other", "geminga.priority": str(chance.randrange(10))}
            if expires:
                properties["geminga.ttl"] = "1s"
            producer.send_async(
                body(number), lambda result, _, of=number: self.receipted.add(of) if result == pulsar.Result.Ok else 0,
                properties=properties, partition_key="k",
                deliver_at=int(time.time() * 1000) + 1_500 if chance.random() < 0.1 else None)
        producer.flush()
        client.close()

    def consume(self, is_over: threading.Event) -> None:
        client = self.client()
        consumer = self.subscribe(client)
        while not is_over.is_set():
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                continue
            number = number_of(message.data())
            is_mine, is_poison, _ = self.kinds[number] if number >= 0 else Kind()
            self.faults["damaged"] += message.data() != body(number)
            self.faults["not let through"] += not is_mine
            if is_poison:
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
                self.done.add(number)
        client.close()

    def redrive(self, is_over: threading.Event) -> None:
        chance = random.Random(self.chance.random())
        while not is_over.wait(chance.random()):
            with contextlib.suppress(OSError):      # the admin process was killed
                self._redrive({"count": 100})
                if chance.random() < 0.7:
                    self._redrive({"undo": self.topic, "subscription": SUBSCRIPTION, "count": 50})

    def _redrive(self, what: dict[str, object]) -> int:
        return self.ask("POST", f"/ops/v1/redrive/{path_of(self.letters)}", what)

    # -- kills, and the end

    def kill_one(self) -> None:
        """Kill a process at a random moment; the next one may die while this one's successor starts."""
        time.sleep(self.chance.random() * PAUSE_SECONDS)
        victim = self.chance.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        if victim == "supervisor":
            self.broker.kill_supervisor()
            self.broker.start()
        else:
            self.broker.kill(victim, self.chance.randrange(2) if victim in ("worker", "owner") else 0)
        self.counts[f"killed: {victim}"] += 1

    def backlog(self) -> int:
        status, text = request("GET", f"{self.broker.http_url}/admin/v2/{path_of(self.topic)}/stats")
        return json.loads(text)["subscriptions"][SUBSCRIPTION]["msgBacklog"] if status == 200 else -1

    def ends_redrives(self) -> bool:
        """Repeat a redrive until one was not disturbed: it takes up what killed ones have left."""
        with contextlib.suppress(OSError):
            return self._redrive({}) == 200
        return False

    def run(self, kills: int) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(CONSUMERS):
                stack.enter_context(beside(self.consume))
            with beside(self.publish), beside(self.redrive):
                # A client that comes again without any receipt begins its sequence ids anew: it makes duplicates then.
                eventually(lambda: self.receipted, what="a receipt")
                for _ in range(kills):
                    self.kill_one()
                eventually(lambda: self.counts["redrive: 200"], what="a redrive that was not killed")
            eventually(self.ends_redrives, what="a last redrive")
            self.broker.kill_supervisor()
            self.broker.start()
            eventually(lambda: self.backlog() == 0, 2 * HANG_SECONDS, "no backlog")

    def check(self) -> None:
        """Count broken promises."""
        client = self.client()
        for topic in self.topic, self.letters:
            client.create_producer(topic).send(LAST)      # behind transactions that are still open
        stored = [one for one in _until_last(client.create_reader(self.topic, pulsar.MessageId.earliest).read_next)
                  if "geminga.redriven.from" not in one.properties()]
        jobs = Counter(number_of(message.data()) for message in stored)
        ticks = [round(datetime.fromisoformat(message.properties()["geminga.scheduled-for"]).timestamp() * 1_000)
                 for message in stored if message.data() == b"tick"]
        del jobs[-1]
        consumer = client.subscribe(self.letters, "geminga-redrive", pulsar.ConsumerType.Shared)
        waiting = list(_until_last(consumer.receive))
        letters = Counter(number_of(one.data()) for one in waiting)
        told = [(str(one.message_id()), number, self.kinds[number], one.properties()) for one in waiting
                if letters[number := number_of(one.data())] > 1]
        told += [(number, self.kinds[number]) for number in self.receipted - jobs.keys()]
        self.details = "\n".join(map(str, told))
        client.close()
        self.faults += faults(self.kinds, self.receipted, self.done, jobs, letters)
        self.faults["ticks lost or twice"] += ticks != list(range(ticks[0], ticks[-1] + 1, SECOND_MS))
        self.counts.update(jobs=len(jobs), done=len(self.done), letters=letters.total(), ticks=len(ticks))


def _until_last(receive: Callable[[int], pulsar.Message]) -> Iterator[pulsar.Message]:
    """Yield messages up to the one that was published at the end."""
    while (message := receive(HANG_MS)).data() != LAST:
        yield message


def run(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill processes under a job queue; return counts.  Raises AssertionError."""
    queue = Queue(folder, seed)
    try:
        queue.prepare()
        queue.run(kills)
        queue.check()
        assert not +queue.faults, f"{seed=} {+queue.faults} {queue.counts}\n{queue.details}"
        assert "Traceback" not in queue.broker.log(), queue.broker.log()
        return queue.counts
    finally:
        queue.broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jobs-") as folder:
        print(f"seed {options.seed}:", dict(run(Path(folder) / "round", options.kills, options.seed)))


if __name__ == "__main__":
    main()
