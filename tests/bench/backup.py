"""Measures publishing while backups are made: latencies and the longest gap between receipts, without and with one.

    python tests/bench/backup.py [--topics 1000] [--megabytes 3072] [--size 8000] [--rate 2000] [--seconds 15]
                                 [--backups 3]

    filled     topics with a subscription each, whose messages are not acknowledged
    nothing    publishing `rate` messages a second over all topics: p50 and p99 of the time to the receipt, longest time
               without any receipt
    backup     the same while `geminga backup` runs, on the file system of the data.  Then, from the backup's own
               report: how long an owner stood still, bytes, bytes shared with the data folder or the backup before,
               seconds.  The first backup reads everything, others only what is new.
    restored   the last backup, with every checksum checked and all of it verified
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pulsar

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import COMMAND, Broker


class Publisher:
    """Publishes at a rate until it is told to stop."""

    def __init__(self, broker: Broker, topics: list[str], size: int, rate: int):
        self._client = pulsar.Client(broker.service_url, io_threads=2,
                                     logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
        for name in topics:
            self._client.subscribe(name, "nobody").close()
        self._producers = [self._client.create_producer(name, max_pending_messages=0, batching_enabled=False)
                           for name in topics]
        self._payload, self._rate = os.urandom(size), rate
        self._lock, self._receipts, self._is_over = threading.Lock(), [], False

    def fill(self, rounds: int) -> None:
        for _ in range(rounds):
            for producer in self._producers:
                producer.send_async(self._payload, lambda *_: None)
            for producer in self._producers:
                producer.flush()

    def _send(self) -> None:
        began, sent = time.perf_counter(), 0
        while not self._is_over:
            for _ in range(int((time.perf_counter() - began) * self._rate) - sent):
                self._producers[sent % len(self._producers)].send_async(self._payload,
                                                                        self._receipted(time.perf_counter()))
                sent += 1
            time.sleep(0.001)

    def _receipted(self, when: float):
        def receipted(result: pulsar.Result, _) -> None:
            with self._lock:
                self._receipts.append((time.perf_counter(), when))
        return receipted

    def begin(self) -> None:
        threading.Thread(target=self._send, daemon=True).start()
        time.sleep(3)
        self.take()

    def take(self) -> str:
        """Return what was measured since the last call."""
        with self._lock:
            found, self._receipts = self._receipts, []
        took = sorted(came - when for came, when in found)
        gap = max((after[0] - before[0] for before, after in zip(found, found[1:], strict=False)), default=0.0)
        return (f"{len(found):>7,} receipts, p50 {1e3 * took[len(took) // 2]:.1f} ms, p99 "
                f"{1e3 * took[len(took) * 99 // 100]:.1f} ms, "
                f"longest gap {1e3 * gap:.0f} ms") if found else "no receipt"

    def stop(self) -> None:
        self._is_over = True


def _run(*words: object) -> str:
    done = subprocess.run([COMMAND[0], *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("topics", 1000), ("megabytes", 3072), ("size", 8_000), ("rate", 2000), ("seconds", 15),
                          ("backups", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker, began = Broker(Path(folder) / "data").start(), time.perf_counter()
        topics = [f"persistent://public/default/backup-{number}" for number in range(options.topics)]
        publisher = Publisher(broker, topics, options.size, options.rate)
        publisher.fill(max(1, (options.megabytes << 20) // (options.topics * options.size)))
        print(f"filled    {options.topics} topics with {options.megabytes} MiB, {time.perf_counter() - began:.0f} s",
              flush=True)
        publisher.begin()
        for _ in range(options.backups):
            time.sleep(options.seconds)
            print(f"nothing   {publisher.take()}", flush=True)
            report = json.loads(_run("backup", "--data-dir", broker.data_dir, "--json", Path(folder) / "backups"))
            print(f"backup    {publisher.take()}; stood still {report['longest_pause_ms']:.1f} ms; {report['bytes']:,} "
                  "bytes, "
                  f"{report['shared_bytes']:,} shared, {report['seconds']:.1f} s", flush=True)
            publisher.take()
        publisher.stop()
        broker.close()
        began = time.perf_counter()
        print(f"restored  {_run('restore', report['folder'], Path(folder) / 'again').splitlines()[-1]}; "
              f"{time.perf_counter() - began:.1f} s", flush=True)
    sys.stdout.flush()
    os._exit(0)      # threads of the client still look for a broker


if __name__ == "__main__":
    main()
