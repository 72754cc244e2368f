"""Measures what filters of subscriptions cost, with and without one side by side.

    python tests/bench/filters.py [--messages 200000] [--rounds 5]

All messages match the filters of three terms, so the same messages are sent in both runs.

    live       messages of 100 bytes with one of 100 keys, published, delivered and acknowledged at full rate
    backlog    messages with three properties, delivered only; of batches of 100 their bytes are not looked at
    others     a backlog of which 1 message of 1,000 matches, and batches of 100 of which half of the messages match, in
               messages that were looked at in a second
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pulsar
from link import CLOCK, Link, Load
from load import measure, topic_names
from usage import cpu_seconds

from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.load import wire

FILTER = "region IN ('eu', 'us') AND price >= 10 AND kind LIKE 'order%'"
ABOUT_KEYS = "key IS NOT NULL AND key <> 'none' AND key NOT LIKE '%/%'"
RARE = "region = 'eu' AND price >= 10 AND mark = 'rare'"
HALF = "region = 'eu' AND price >= 10 AND kind LIKE 'order%'"
PERMITS = 1 << 20


@contextmanager
def broker() -> Iterator[tuple[str, int, int]]:
    """Start a broker that allows filters; yield (host, port, pid)."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"GEMINGA_STORAGE_SUBSCRIPTION_FILTERS": "true"}
        command = [sys.executable, "-m", "geminga.supervisor.main", "serve", "--data-dir", f"{folder}/data"]
        command += ["--port", "0", "--http-port", "0", "--owners", "1", "--workers", "1"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            url = next(line.split()[-1] for line in running.stdout if "pulsar://" in line)
            host, _, port = url.removeprefix("pulsar://").rpartition(":")
            try:
                yield host, int(port), running.pid
            finally:
                running.terminate()


def publish(url: str, topic: str, messages: int, batch: int) -> None:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(topic, "keep").close()      # else ledgers that are full would be deleted before they are read
    producer = client.create_producer(topic, batching_enabled=batch > 1, batching_max_messages=max(batch, 2),
                                      batching_max_publish_delay_ms=1_000, block_if_queue_full=True)
    for number in range(messages):
        properties = {"region": "us" if number % 2 else "eu", "price": str(10 + number % 7), "kind": "order-new"}
        if number % 1_000 == 999:
            properties["mark"] = "rare"
            properties["region"] = "eu"
        producer.send_async(b"x" * 100, lambda *_: None, properties=properties)
    producer.flush()
    client.close()


def subscribed(load: Load, subscription: str, text: str) -> Link:
    """Return a connection with a consumer, which has made the subscription with this filter."""
    link = Link(load)
    link.find(load.topics[0])
    request = api.CommandSubscribe(topic=load.topics[0], subscription=subscription, subType=0,
                                   consumer_id=wire.ID_FIRST, request_id=link.request_id(), initialPosition=1)
    if text:
        request.metadata.add(key="geminga.filter", value=text)
    link.ask("subscription", wire.frame(wire.SUBSCRIBE, request.SerializeToString()), wire.SUCCESS)
    return link


def live(host: str, port: int, pid: int, text: str) -> tuple[float, float]:
    """Return (messages per second that arrived, CPU of the broker for each in us)."""
    load = Load(host, port, topic_names(1), keys=100)
    link = subscribed(load, f"{load.subscription}-0", text)
    link.ask("leaving", wire.close_consumer(wire.ID_FIRST, link.request_id()), wire.SUCCESS)
    link.socket.close()
    figures = measure(load, pid=pid, warmup_s=1, seconds=4)
    return figures.arrived_rate, figures.cpu_us


def read(load: Load, pid: int, subscription: str, text: str, entries: int) -> tuple[float, float]:
    """Read so many entries of the backlog; return (seconds, CPU seconds of the broker)."""
    link = subscribed(load, subscription, text)
    used, began = cpu_seconds(pid), CLOCK()
    link.put(wire.flow(wire.ID_FIRST, PERMITS))
    count = 0
    while count < entries:
        starts = link.receive(0.02)
        count += int((link.data[starts + wire.KIND_AT] == wire.MESSAGE).sum()) if len(starts) else 0
    seconds, used = CLOCK() - began, cpu_seconds(pid) - used
    link.socket.close()
    return seconds, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with broker() as (host, port, pid):
        url, ratios = f"pulsar://{host}:{port}", []
        for _ in range(asked.rounds):
            (plain, plain_cpu), (filtered, filtered_cpu) = (live(host, port, pid, text) for text in ("", ABOUT_KEYS))
            ratios.append(filtered / plain)
            print(f"live: {plain:,.0f}/s without, {filtered:,.0f}/s with, {filtered / plain:.2f}; "
                  f"CPU of the broker {plain_cpu:.2f} and {filtered_cpu:.2f} us", flush=True)
        print(f"live: median {statistics.median(ratios):.2f}", flush=True)
        for batch in (1, 100):
            [topic], messages = topic_names(1), asked.messages
            load, entries = Load(host, port, (topic,)), asked.messages // batch
            publish(url, topic, messages, batch)
            ratios = []
            for number in range(asked.rounds):
                plain, plain_cpu = read(load, pid, f"plain-{number}", "", entries)
                filtered, filtered_cpu = read(load, pid, f"filtered-{number}", FILTER, entries)
                ratios.append(plain / filtered)
                print(f"batches of {batch}: {messages / plain:,.0f}/s without, {messages / filtered:,.0f}/s with, "
                      f"{plain / filtered:.2f}; CPU of the broker {plain_cpu / messages * 1e6:.2f} and "
                      f"{filtered_cpu / messages * 1e6:.2f} us", flush=True)
            print(f"batches of {batch}: median {statistics.median(ratios):.2f}", flush=True)
            text, expected = (RARE, messages // 1_000) if batch == 1 else (HALF, entries)
            seconds, used = read(load, pid, "others", text, expected)
            print(f"batches of {batch}, {text}: {messages / seconds:,.0f}/s looked at, "
                  f"CPU of the broker {used / messages * 1e6:.2f} us", flush=True)


if __name__ == "__main__":
    main()
