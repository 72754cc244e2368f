"""Measures delivery by priority beside plain Shared, with much that waits, or from publishing to receiving at a rate.

    python tests/bench/priority.py [--messages 1000000] [--consumers 4] [--size 100]
    python tests/bench/priority.py --rate 10000 [--seconds 20] [--consumers 4] [--size 100]

    published   messages a second, to each of two topics, one of which delivers by priority: ten levels, at random
    ready       seconds from a start after a SIGKILL until the broker serves, and until a consumer has a first message
    memory      bytes by which the owners grow for each waiting message when a consumer comes with the policy on, once
                one has come without it; pages of files, such as the mapped index, are not counted
    delivered   messages a second to all consumers together, each a process of its own with the Python client, and the
                CPU of owners and workers; how many came behind a lower one at their consumer
    paced       with --rate: milliseconds from `send_async` to `receive` of messages that are published one by one

The targets: half of the rate without priorities, 32 bytes, two seconds.
"""
import argparse
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pulsar

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import HANG_MS, Broker, path_of, request

_QUEUE = 1_000
_SILENT_MS = 20_000      # after which everything has come
_PACED_SILENT_MS = 5_000
_PLAIN, _PRIORITY = "persistent://public/default/plain", "persistent://public/default/by-priority"


def _client(url: str) -> pulsar.Client:
    return pulsar.Client(url, io_threads=1, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))


def _fill(broker: Broker, topic: str, messages: int, size: int) -> float:
    """Publish to a topic with a subscription; return messages a second."""
    client, payload, chance = _client(broker.service_url), os.urandom(size), random.Random(1)
    client.subscribe(topic, "jobs", pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(topic, batching_enabled=False, max_pending_messages=5_000,
                                      block_if_queue_full=True)
    began = time.perf_counter()
    for _ in range(messages):
        producer.send_async(payload, _ignore, properties={"geminga.priority": str(chance.randrange(10))})
    producer.flush()
    took = time.perf_counter() - began
    client.close()
    return messages / took


def _ignore(result: pulsar.Result, _: pulsar.MessageId) -> None:
    assert result == pulsar.Result.Ok, result


def _consume(url: str, topic: str, start: "multiprocessing.Barrier", told: "multiprocessing.Queue") -> None:
    """Take and acknowledge messages until none comes; tell how many, when the last one came, and out of order."""
    client = _client(url)
    start.wait()
    consumer = client.subscribe(topic, "jobs", pulsar.ConsumerType.Shared, receiver_queue_size=_QUEUE)
    count, last, highest, wrong = 0, time.time(), 9, 0
    while True:
        try:
            message = consumer.receive(_SILENT_MS)
        except pulsar.Timeout:
            break
        consumer.acknowledge(message)
        count, last = count + 1, time.time()
        priority = int(message.properties()["geminga.priority"])
        wrong += priority > highest
        highest = min(priority, highest)
    told.put((count, last, wrong))
    client.close()


def _publish_paced(url: str, topic: str, rate: int, seconds: float, size: int) -> None:
    """Publish messages at a rate, each with a priority at random and its time in its payload; then 0 as a time."""
    client, chance = _client(url), random.Random(1)
    producer = client.create_producer(topic, batching_enabled=False, max_pending_messages=5_000,
                                      block_if_queue_full=True)
    began, rest = time.monotonic_ns(), bytes(size - 8)
    for number in range(int(rate * seconds)):
        due = began + number * 1_000_000_000 // rate
        while (now := time.monotonic_ns()) < due:
            time.sleep(max(0, due - now) / 1e9)
        producer.send_async(now.to_bytes(8) + rest, _ignore,
                            properties={"geminga.priority": str(chance.randrange(10))})
    producer.flush()
    client.close()


def _consume_paced(url: str, topic: str, start: "multiprocessing.Barrier", told: "multiprocessing.Queue") -> None:
    """Take and acknowledge messages until none comes; tell (priority, nanoseconds since it was published) of each."""
    client, found = _client(url), []
    consumer = client.subscribe(topic, "jobs", pulsar.ConsumerType.Shared, receiver_queue_size=_QUEUE)
    start.wait()
    while True:
        try:
            message = consumer.receive(_PACED_SILENT_MS)
        except pulsar.Timeout:
            break
        now = time.monotonic_ns()
        found.append((int(message.properties()["geminga.priority"]), now - int.from_bytes(message.data()[:8])))
        consumer.acknowledge(message)
    told.put(found)
    client.close()


def percentiles(found: list[tuple[int, int]]) -> str:
    """Return a line about (priority, nanoseconds) of messages."""
    def told(some: list[int]) -> str:
        return "/".join(f"{np.percentile(some, part) / 1e6:,.1f}" for part in (50, 99, 99.9))
    highest, lowest = ([took for level, took in found if level == wanted] for wanted in (9, 0))
    return f"p50/p99/p99.9 {told([took for _, took in found])} ms, of the highest {told(highest)}, of the lowest " \
           f"{told(lowest)}; {len(found):,} messages"


def _subscribe(broker: Broker, topic: str) -> None:
    client = _client(broker.service_url)
    client.subscribe(topic, "jobs", pulsar.ConsumerType.Shared).close()
    client.close()


def _paced(broker: Broker, topic: str, options: argparse.Namespace) -> str:
    """Publish at a rate beside consumers; return a line about the times until messages came."""
    start, told = multiprocessing.Barrier(options.consumers + 1), multiprocessing.Queue()
    processes = [multiprocessing.Process(target=_consume_paced, args=(broker.service_url, topic, start, told))
                 for _ in range(options.consumers)]
    for process in processes:
        process.start()
    start.wait()
    cpu, began = sum(_cpu(broker)), time.monotonic()
    _publish_paced(broker.service_url, topic, options.rate, options.seconds, options.size)
    took = time.monotonic() - began
    found = [one for _ in processes for one in told.get()]
    for process in processes:
        process.join()
    return f"{len(found) / took:,.0f} a second published; {percentiles(found)}; " \
           f"{(sum(_cpu(broker)) - cpu) / len(found) * 1e6:.1f} s of the broker's CPU for a million"


def _processes(broker: Broker, kind: str) -> list[psutil.Process]:
    """Return the broker's owners ("o") or workers ("w")."""
    return [psutil.Process(pid) for name, pid in broker.children().items() if re.fullmatch(rf"geminga-{kind}\d+", name)]


def _cpu(broker: Broker) -> list[float]:
    """Return the seconds of CPU that owners, and that workers have used."""
    return [sum(sum(process.cpu_times()[:2]) for process in _processes(broker, kind)) for kind in "ow"]


def _memory(broker: Broker) -> int:
    return 1024 * sum(int(re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{owner.pid}/status").read_text())[1])
                      for owner in _processes(broker, "o"))


def _deliver(broker: Broker, topic: str, consumers: int) -> str:
    """Have everything consumed; return a line about it."""
    start, told = multiprocessing.Barrier(consumers + 1), multiprocessing.Queue()
    processes = [multiprocessing.Process(target=_consume, args=(broker.service_url, topic, start, told))
                 for _ in range(consumers)]
    for process in processes:
        process.start()
    start.wait()
    began, cpu = time.time(), _cpu(broker)
    found = [told.get() for _ in processes]
    count, last = sum(each[0] for each in found), max(each[1] for each in found)
    owners, workers = (after - before for after, before in zip(_cpu(broker), cpu, strict=True))
    for process in processes:
        process.join()
    return f"{count / (last - began):,.0f} a second; for a million {owners / count * 1e6:.1f} s of owners' CPU and " \
           f"{workers / count * 1e6:.1f} of workers'; {sum(each[2] for each in found):,} out of order, {count:,} in all"


def _first_message(broker: Broker, topic: str) -> float:
    """Return the seconds until a new client's consumer has a message."""
    began = time.perf_counter()
    client = _client(broker.service_url)
    consumer = client.subscribe(topic, "jobs", pulsar.ConsumerType.Shared, receiver_queue_size=1)
    consumer.receive(HANG_MS)
    took = time.perf_counter() - began
    client.close()
    return took


def _switch(broker: Broker, *, is_on: bool) -> None:
    status, text = request("POST", f"{broker.http_url}/admin/v2/{path_of(_PRIORITY)}/messagePriority",
                           json.dumps({"active": is_on}).encode())
    assert status == 204, text


def _restart(broker: Broker) -> float:
    """Kill and start the broker; return the seconds that the start took."""
    broker.kill_supervisor()
    began = time.perf_counter()
    broker.start()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rate", type=int, help="publish so many messages a second beside consumers, and nothing else")
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder) / "data").start()
        if options.rate:
            for topic in (_PRIORITY, _PLAIN):
                _subscribe(broker, topic)
            _switch(broker, is_on=True)
            for topic in (_PRIORITY, _PLAIN):
                print(f"paced      {topic.rpartition('/')[2]}: {_paced(broker, topic, options)}", flush=True)
            broker.stop()
            os._exit(0)      # threads of clients may still run
        for topic in (_PRIORITY, _PLAIN):
            print(f"published  {topic.rpartition('/')[2]}: {_fill(broker, topic, options.messages, options.size):,.0f}",
                  flush=True)
        _switch(broker, is_on=True)
        ready = _restart(broker)
        plain, first = _first_message(broker, _PLAIN), _first_message(broker, _PRIORITY)
        print(f"ready      {ready:.2f} s after a SIGKILL, a first message after {first:.2f} s more, of the other topic "
              f"{plain:.2f}", flush=True)
        _switch(broker, is_on=False)
        _restart(broker)
        _first_message(broker, _PRIORITY)      # has the rows of the index checked, which takes memory for a moment
        before = _memory(broker)
        _switch(broker, is_on=True)
        client = _client(broker.service_url)
        held = client.subscribe(_PRIORITY, "jobs", pulsar.ConsumerType.Shared, receiver_queue_size=1)
        held.receive(HANG_MS)
        print(f"memory     {(_memory(broker) - before) / options.messages:.1f} bytes for a waiting message", flush=True)
        client.close()
        for topic in (_PRIORITY, _PLAIN):
            print(f"delivered  {topic.rpartition('/')[2]}: {_deliver(broker, topic, options.consumers)}", flush=True)
        broker.stop()
    os._exit(0)      # threads of clients may still run


if __name__ == "__main__":
    main()
