"""Measures how many messages a second `geminga search` looks at in ledgers, on one core.

    python -m tests.bench.search [--messages 5000000] [--folder FOLDER]

Messages have 100 B and a key of nine digits: each by itself, or 100 or 1,000 to a batch, plain and compressed.  The
storage's own code writes them into a folder that is removed afterwards.  No search finds anything, so every message is
looked at.  Figures are messages for each second of this process's CPU, so that other work on the machine matters less.

    key        a text that no entry has: batches are not unpacked
    key?       a pattern: the keys of all messages are compared
    grep       a regular expression: all payloads are compared
    sequence   a sequence id that no message has
    time       a time at which nothing was published: only the index is read
"""
import argparse
import tempfile
import time
from pathlib import Path

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.offline import search
from geminga.storage.offline.search import Conditions

from ..storage.jobs.topics import NOW_MS, Topic
from .compaction import write_topic

KEYS = 1_000_000
KINDS = {"unbatched": (1, api.NONE), "100 to a batch": (100, api.NONE), "1,000 to a batch": (1_000, api.NONE),
         "100 to a batch, LZ4": (100, api.LZ4), "1,000 to a batch, ZSTD": (1_000, api.ZSTD)}
ASKED = {"key": Conditions(key="nobody"), "key?": Conditions(key_pattern="[0-9]+x"),
         "grep": Conditions(payload_pattern="[x-z]{3}"), "sequence": Conditions(sequence_ids=(100, 200)),
         "time": Conditions((0, NOW_MS - 1))}


def rate(topic: Topic, conditions: Conditions) -> float:
    """Return messages for each second of CPU."""
    began = time.process_time()
    pieces = search.pieces(topic.data_dir, [(topic.partition_id, names.parse("searched"))])
    count = sum(search.count(topic.data_dir, piece, conditions, print) for piece in pieces)
    assert count == 0, count
    return topic.next_message / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.search", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    print(f"| million messages/s | {' | '.join(ASKED)} |\n|---|{'--:|' * len(ASKED)}", flush=True)
    for kind, (together, codec) in KINDS.items():
        with tempfile.TemporaryDirectory(prefix="search-", dir=options.folder) as folder:
            topic = write_topic(Path(folder), options.messages, KEYS, together, codec)
            rate(topic, ASKED["key"])      # the files come into memory
            figures = [f"{rate(topic, conditions) / 1e6:,.2f}" for conditions in ASKED.values()]
            print(f"| {kind} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
