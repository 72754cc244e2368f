"""Measures what many of something cost, and what of it comes back: seconds, private memory, bytes on disk of each step.

    python tests/bench/scale.py holes 20000000         entries, every second of which is acknowledged; the broker is
                                                       started again, then the rest is acknowledged
    python tests/bench/scale.py connections 20000      connections with a producer each, twice, and closed each time
    python tests/bench/scale.py topics 100000          topics, each made by a producer that publishes a message; the
                                                       broker is started again, and everything is consumed
    python tests/bench/scale.py ledger 100             GB in one ledger, in entries of 5 MB, of which all but every
                                                       hundredth are acknowledged meanwhile; started again, and the
                                                       rest is consumed
    python tests/bench/scale.py week 7                 days of small traffic: 20 topics with a message every 4 minutes
                                                       each, under a clock that is 1000 times as fast (libfaketime)
    python tests/bench/scale.py standby 8640000        messages, of a day at 100 a second, that are published while the
                                                       standby is away; it comes back and catches up
"""

import argparse
import contextlib
import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pulsar
import sends
from link import CLOCK, Link, Load
from load import Running, topic_names
from subscriptions import IDS_EACH, MIB, SETTLE_S, broker, collected, put_all
from usage import memory_bytes

from geminga.supervisor.load import wire

TOPICS_EACH = 1_000     # topics that are made at once
HOLES_EACH = 500_000    # entries that are published, and out, at once
PATIENCE_S = 120
ENTRY = 5_000_000       # bytes of an entry of a large ledger
KEPT_EACH = 100         # one in so many of them is not acknowledged at once
FASTER, WEEK_TOPICS, PAUSE_S, DAY_S = 1000, 20, 0.25, 86_400


def told(step: str, folder: str, pid: int, began: float) -> None:
    """Print a step that began then, when the broker has settled."""
    seconds = CLOCK() - began
    time.sleep(SETTLE_S)
    print(f"{step}: {seconds:.1f} s, {memory_bytes(pid, 'uss') / MIB:.0f} MiB, {_used(folder) / MIB:.0f} MiB on disk",
          flush=True)


def _used(folder: str) -> int:
    """Return the bytes that the files of a folder have on disk."""
    used = 0
    for file in Path(folder).rglob("*"):
        with contextlib.suppress(FileNotFoundError):      # deleted meanwhile
            used += file.lstat().st_blocks * 512 if file.is_file() else 0
    return used


def holes(folder: str, entries: int) -> None:
    topics = topic_names(1)

    def loaded(host: str, port: int) -> Load:
        return Load(host, port, topics, kind="shared", limit=HOLES_EACH, lead=0, consumers=0)

    def consuming(load: Load) -> Link:
        link = Link(load)
        request = wire.subscribe(load.topics[0], "holes", "shared", wire.ID_FIRST, link.request_id(), "bench")
        link.ask("subscription", request, wire.SUCCESS)
        return link

    def acknowledged(link: Link, count: int, step: int) -> None:
        link.put(wire.flow(wire.ID_FIRST, count))
        put_all(link, [wire.acknowledge(wire.ID_FIRST, wire.INDIVIDUAL, chosen[at:at + IDS_EACH].tobytes())
                        for chosen in (rows[::step] for rows in collected(link, count))
                        for at in range(0, len(chosen), IDS_EACH)])

    with broker(folder) as (host, port, pid):
        load = loaded(host, port)
        link, began = consuming(load), CLOCK()
        told("nothing", folder, pid, began)
        for _ in range(0, entries, HOLES_EACH):
            with Running(load, pid) as running:
                running.start_producers()
                running.finish_producers()
            acknowledged(link, HOLES_EACH, 2)
        told(f"{entries} published, every second acknowledged", folder, pid, began)
    began = CLOCK()
    with broker(folder) as (host, port, pid):
        link = consuming(loaded(host, port))
        told("started again, and subscribed", folder, pid, began)
        began = CLOCK()
        for _ in range(0, entries, HOLES_EACH):
            acknowledged(link, HOLES_EACH // 2, 1)
        told("the rest acknowledged", folder, pid, began)


def connections(folder: str, count: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = min(count, most - 500)
    topics = topic_names(100)
    with broker(folder) as (host, port, pid):
        told("nothing", folder, pid, CLOCK())
        for round_ in range(2):
            began, sockets = CLOCK(), []
            for number, topic in zip(range(count), itertools.cycle(topics), strict=False):
                sockets.append(socket.create_connection((host, port), PATIENCE_S))
                sockets[-1].sendall(wire.connect() + wire.producer(topic, 1, 1, f"p-{round_}-{number}"))
            for one in sockets:
                _answered(one, wire.PRODUCER_SUCCESS)
            told(f"{count} connections with a producer each", folder, pid, began)
            began = CLOCK()
            for one in sockets:
                one.close()
            told("closed", folder, pid, began)


def _answered(one: socket.socket, kind: int, count: int = 1) -> None:
    """Read until so many commands of a kind have come."""
    inbox = bytearray()
    while count:
        more = one.recv(1 << 16)
        inbox += more
        starts, end = wire.frame_starts(np.frombuffer(bytes(inbox), np.uint8), len(inbox))
        kinds = [wire.command_of(inbox, start)[0] for start in starts.tolist()]
        del inbox[:end]
        if wire.ERROR in kinds or not more:
            raise SystemExit("a request was refused")
        count -= kinds.count(kind)


def topics(folder: str, count: int) -> None:
    names = topic_names(count)

    with broker(folder) as (host, port, pid):
        told("nothing", folder, pid, CLOCK())
        began = CLOCK()
        for at in range(0, count, TOPICS_EACH):
            with socket.create_connection((host, port), PATIENCE_S) as one:
                some = names[at:at + TOPICS_EACH]
                one.sendall(wire.connect() + b"".join(wire.producer(name, number, number, f"p-{number}")
                                                      for number, name in enumerate(some, 1)))
                _answered(one, wire.PRODUCER_SUCCESS, len(some))
                one.sendall(b"".join(wire.frame(wire.SEND, wire.number(1, number) + wire.number(2, 0),
                                                sends.entry(f"p-{number}", b"x")) for number, _ in enumerate(some, 1)))
                _answered(one, wire.SEND_RECEIPT, len(some))
        told(f"{count} topics made, with a message each", folder, pid, began)
    began = CLOCK()
    with broker(folder) as (host, port, pid):
        link = Link(Load(host, port, names[-1:]))
        link.ask("producer", wire.producer(names[-1], 1, link.request_id(), "again"), wire.PRODUCER_SUCCESS)
        told("started again, with a producer", folder, pid, began)
        began = CLOCK()
        for at in range(0, count, TOPICS_EACH):
            with socket.create_connection((host, port), PATIENCE_S) as one:
                some = names[at:at + TOPICS_EACH]
                one.sendall(wire.connect() + b"".join(
                    wire.subscribe(name, "scale", "exclusive", number, number, f"c-{number}")
                    for number, name in enumerate(some, 1)))
                _answered(one, wire.SUCCESS, len(some))
                one.sendall(b"".join(wire.flow(number, 1) for number, _ in enumerate(some, 1)))
                _answered(one, wire.MESSAGE, len(some))
        told(f"all {count} messages consumed", folder, pid, began)


def ledger(folder: str, gigabytes: int) -> None:
    os.environ |= {"GEMINGA_STORAGE_ROLL_OVER_BYTES": str(1 << 40), "GEMINGA_STORAGE_RETENTION_S": "0",
                   "GEMINGA_STORAGE_KEEP_ACKNOWLEDGED_S": "0"}
    [topic], count = topic_names(1), gigabytes * 10**9 // ENTRY
    payload, most, kept = os.urandom(ENTRY), 0, 0

    def client(host: str, port: int) -> pulsar.Client:
        return pulsar.Client(f"pulsar://{host}:{port}", logger=pulsar.FileLogger(pulsar.LoggerLevel.Error,
                                                                                 f"{folder}/client.log"))

    def subscribed(one: pulsar.Client) -> pulsar.Consumer:
        return one.subscribe(topic, "scale", pulsar.ConsumerType.Shared, receiver_queue_size=20)

    with broker(folder) as (host, port, pid):
        told("nothing", folder, pid, began := CLOCK())
        one = client(host, port)
        consumer = subscribed(one)
        producer = one.create_producer(topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=20,
                                       send_timeout_millis=0)
        for number in range(count):
            producer.send_async(number.to_bytes(4, "big") + payload[4:], lambda *_: None)
            if number >= 20:      # the last ones are on their way
                kept += _taken(consumer)
            if number % 100 == 0:
                most = max(most, _used(folder))
        producer.flush()
        for _ in range(min(count, 20)):
            kept += _taken(consumer)
        told(f"{count} entries of {ENTRY / 1e6:g} MB, {kept} of them left; {most / MIB:.0f} MiB on disk at most",
             folder, pid, began)
        lengths = [file.stat().st_size / 1e9 for file in Path(folder).rglob("*.ledger")]
        print(f"lengths of ledgers: {', '.join(f'{length:.1f} GB' for length in lengths)}", flush=True)
        one.close()
    began = CLOCK()
    with broker(folder) as (host, port, pid):
        one = client(host, port)
        consumer = subscribed(one)
        first = consumer.receive(PATIENCE_S * 1000)
        told("started again, and the first message", folder, pid, began)
        began = CLOCK()
        for message in itertools.chain([first], (consumer.receive(PATIENCE_S * 1000) for _ in range(kept - 1))):
            assert int.from_bytes(message.data()[:4], "big") % KEPT_EACH == 0 and message.data()[4:] == payload[4:]
            consumer.acknowledge(message)
        told(f"the other {kept} consumed, as they were published", folder, pid, began)
        one.close()


def _taken(consumer: pulsar.Consumer) -> int:
    """Take a message; return 1 if it is one that is kept, else acknowledge it."""
    message = consumer.receive(PATIENCE_S * 1000)
    if int.from_bytes(message.data()[:4], "big") % KEPT_EACH == 0:
        return 1
    consumer.acknowledge(message)
    return 0


def week(folder: str, days: int) -> None:
    library = next(map(str, Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
    if library is None:
        raise SystemExit("libfaketime is not installed")
    # No time to live: clients keep the host's clock, and what they publish on the second day would expire at once.
    os.environ |= {"GEMINGA_STORAGE_RETENTION_S": str(DAY_S), "GEMINGA_STORAGE_RETENTION_BYTES": "-1",
                   "FAKETIME": f"+0 x{FASTER}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    clean, os.environ["LD_PRELOAD"] = os.environ.get("LD_PRELOAD", ""), library
    with broker(folder) as (host, port, pid):
        os.environ["LD_PRELOAD"] = clean
        one = pulsar.Client(f"pulsar://{host}:{port}",
                            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, f"{folder}/client.log"))
        names, came = topic_names(WEEK_TOPICS), [0]

        def take(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            consumer.acknowledge(message)
            came[0] += 1

        # every second topic has a consumer; the others keep their messages
        for name in names[::2]:
            one.subscribe(name, "scale", pulsar.ConsumerType.Shared, message_listener=take)
        for name in names[1::2]:
            one.subscribe(name, "scale").close()
        producers = [one.create_producer(name) for name in names]
        began, sent = CLOCK(), 0
        for day in range(days + 1):
            while CLOCK() - began < day * DAY_S / FASTER:
                for producer in producers:
                    producer.send_async(b"x" * 1000, lambda *_: None)
                sent += len(producers)
                time.sleep(PAUSE_S)
            _told_of_processes(f"day {day}: {sent} sent, {came[0]} consumed", folder, pid)
        one.close()
        began = CLOCK()
        time.sleep(2 * DAY_S / FASTER)
        _told_of_processes("two days without clients", folder, pid)


def _told_of_processes(step: str, folder: str, pid: int) -> None:
    children = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    print(f"{step}: {memory_bytes(pid, 'uss') / MIB:.0f} MiB, {sum(child.num_fds() for child in children)} files open, "
          f"{sum(child.num_threads() for child in children)} threads, {_used(folder) / MIB:.0f} MiB on disk, "
          f"{sum(1 for _ in Path(folder).rglob('*.ledger'))} ledgers", flush=True)


def standby(folder: str, messages: int) -> None:
    load_topics = topic_names(1)
    command = [sys.executable, "-m", "geminga.supervisor.main", "serve", "--data-dir", f"{folder}/copy", "--port", "0",
               "--http-port"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        http_port = free.getsockname()[1]

    def follows() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/ops/v1/status", timeout=PATIENCE_S) as answer:
            found: dict[str, float] = json.load(answer)["follows"]
            return found

    def until_complete(pid: int) -> int:
        """Wait until the standby has everything of this moment; return its most memory."""
        asked, most = time.monotonic(), 0
        while True:
            time.sleep(0.5)
            most = max(most, memory_bytes(pid, "uss"))
            try:
                state, now = follows(), time.monotonic()
            except OSError:      # it does not listen yet
                continue
            if state["complete"] and state["connected"] and now - state["lag_ms"] / 1000 > asked:
                return most

    def started(host: str, port: int) -> subprocess.Popen[str]:
        return subprocess.Popen([*command, str(http_port), "--standby-of", f"pulsar://{host}:{port}"],
                                stdout=subprocess.DEVNULL, text=True)

    with broker(folder) as (host, port, pid):
        load = Load(host, port, load_topics, limit=messages, lead=0, consumers=0)
        link = Link(load)
        link.ask("subscription", wire.subscribe(load.topics[0], "scale", "shared", wire.ID_FIRST, link.request_id(),
                                                "bench"), wire.SUCCESS)
        one = started(host, port)
        try:
            until_complete(one.pid)
            told("a broker with a standby: the broker", folder, pid, began := CLOCK())
            print(f"the standby: {memory_bytes(one.pid, 'uss') / MIB:.0f} MiB", flush=True)
            one.kill()
            one.wait()
            began = CLOCK()
            with Running(load, pid) as running:
                running.start_producers()
                running.finish_producers()
            told(f"{messages} messages published without it: the broker", folder, pid, began)
            began = CLOCK()
            one = started(host, port)
            most = until_complete(one.pid)
            told(f"caught up: the standby had {most / MIB:.0f} MiB at most; the broker", folder, pid, began)
            print(f"the standby: {memory_bytes(one.pid, 'uss') / MIB:.0f} MiB", flush=True)
        finally:
            one.terminate()
            one.wait()


COMMANDS = {"holes": holes, "connections": connections, "topics": topics, "ledger": ledger, "week": week,
            "standby": standby}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("count", type=int)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        COMMANDS[asked.what](folder, asked.count)


if __name__ == "__main__":
    main()
