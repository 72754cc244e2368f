"""Measures delivery by priority beside plain Shared, with much that waits.

    python tests/bench/priority.py [--messages 1000000] [--consumers 4] [--size 100]

    published   messages a second, to each of two topics, one of which delivers by priority: ten levels, at random
    ready       seconds from a start after a SIGKILL until the broker serves, and until a consumer has a first message
    memory      bytes by which the owners grow for each waiting message when a consumer comes with the policy on, once
                one has come without it; pages of files, such as the mapped index, are not counted
    delivered   messages a second to all consumers together, each a process of its own with the Python client, and the
                CPU of owners and workers; how many came behind a lower one at their consumer

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

import psutil
import pulsar

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import HANG_MS, Broker, path_of, request

_QUEUE = 1_000
_SILENT_MS = 20_000      # after which everything has come
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder) / "data").start()
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
