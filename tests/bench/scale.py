"""Measures what many of something cost, and what of it comes back: seconds, private memory, bytes on disk of each step.

    python tests/bench/scale.py holes 20000000         entries, every second of which is acknowledged; the broker is
                                                       started again, then the rest is acknowledged
    python tests/bench/scale.py connections 20000      connections with a producer each, twice, and closed each time
    python tests/bench/scale.py topics 100000          topics, each made by a producer; the broker is started again
"""

import argparse
import itertools
import resource
import socket
import tempfile
import time
from pathlib import Path

import numpy as np
from link import CLOCK, Link, Load
from load import Running, topic_names
from subscriptions import IDS_EACH, MIB, SETTLE_S, broker, collected, put_all
from usage import memory_bytes

from geminga.supervisor.load import wire

TOPICS_EACH = 1_000     # topics that are made at once
HOLES_EACH = 500_000    # entries that are published, and out, at once
PATIENCE_S = 120


def told(step: str, folder: str, pid: int, began: float) -> None:
    """Print a step that began then, when the broker has settled."""
    seconds = CLOCK() - began
    time.sleep(SETTLE_S)
    used = sum(file.lstat().st_blocks for file in Path(folder).rglob("*") if file.is_file()) * 512
    print(f"{step}: {seconds:.1f} s, {memory_bytes(pid, 'uss') / MIB:.0f} MiB, {used / MIB:.0f} MiB on disk",
          flush=True)


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
                _answered(one)
            told(f"{count} connections with a producer each", folder, pid, began)
            began = CLOCK()
            for one in sockets:
                one.close()
            told("closed", folder, pid, began)


def _answered(one: socket.socket, count: int = 1) -> None:
    """Read until so many producers are there."""
    inbox = bytearray()
    while count:
        more = one.recv(1 << 16)
        inbox += more
        starts, end = wire.frame_starts(np.frombuffer(bytes(inbox), np.uint8), len(inbox))
        kinds = [wire.command_of(inbox, start)[0] for start in starts.tolist()]
        del inbox[:end]
        if wire.ERROR in kinds or not more:
            raise SystemExit("a producer was refused")
        count -= kinds.count(wire.PRODUCER_SUCCESS)


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
                _answered(one, len(some))
        told(f"{count} topics made", folder, pid, began)
    began = CLOCK()
    with broker(folder) as (host, port, pid):
        link = Link(Load(host, port, names[-1:]))
        link.ask("producer", wire.producer(names[-1], 1, link.request_id(), "again"), wire.PRODUCER_SUCCESS)
        told("started again, with a producer", folder, pid, began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["holes", "connections", "topics"])
    parser.add_argument("count", type=int)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"holes": holes, "connections": connections, "topics": topics}[asked.what](folder, asked.count)


if __name__ == "__main__":
    main()
