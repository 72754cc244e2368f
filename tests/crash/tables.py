"""Kills of exports, at any moment: each message is in its table once, and the next run goes on.

    python -m tests.crash.tables --kills 50 [--spark] [--seed 1]

Each time some messages more come to a few topics, an export is started in a process of its own and killed some time
after it has begun.  Then each table, as a reader finds it, has no message twice, and none that was not published.
After a run that is not killed, it has them all.
"""
import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from ..storage.jobs.topics import CODECS, Message
from ..storage.tables.lake import Lake, position_of

TOPICS, KEYS, BATCHES = 3, 400, 20
LEFT_MAX_S = 60              # as long what a killed job has started may go on
_JOB = """
import sys
from pathlib import Path
from geminga.storage.jobs import engines
from geminga.storage.tables import exports
from tests.storage.tables.lake import Lake
folder = Path(sys.argv[1])
engine = engines.Spark(folder / "scratch", "local[2]", "512m") if sys.argv[2:] else engines.LocalEngine()
exports._ROUND_BYTES, exports._TASK_BYTES = 20_000, 5_000
lake = Lake(folder)
print("begins", flush=True)
reports = lake.export(engine=engine)
print("ends", *{report["error"] or report["outcome"] for report in reports}, sep=",", flush=True)
engine.close()
"""


class Kills:
    """Topics with tables, and the messages that were published."""

    def __init__(self, folder: Path, seed: int, *, with_spark: bool = False):
        self.folder, self.chance, self.with_spark = folder, random.Random(seed), with_spark
        self.lake = Lake(folder)
        self.topics = [one for number in range(TOPICS) for one in self.lake.topic(f"t{number}", partitions=2)]
        self.killed = self.whole = 0
        self.seconds = 0.3               # that a run takes, about

    def publish(self) -> None:
        for topic in self.topics:
            for _ in range(self.chance.randrange(BATCHES)):
                messages = [Message(str(self.chance.randrange(KEYS)), self.chance.randbytes(1 + number % 30))
                            for number in range(self.chance.randrange(1, 50))]
                if len(messages) == 1:
                    topic.publish(messages[0], self.chance.choice(CODECS))
                else:
                    topic.publish_batch(messages, self.chance.choice(CODECS))
            if self.chance.random() < 0.3:
                topic.roll()

    def start(self) -> subprocess.Popen:
        """Start an export and wait until it is about to work; its errors go to a file."""
        command = [sys.executable, "-c", _JOB, str(self.folder), *(["spark"] if self.with_spark else [])]
        with open(self.folder / "stderr", "w") as told:
            job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True)
        if job.stdout.readline() != "begins\n":
            raise AssertionError((self.folder / "stderr").read_text())
        return job

    def kill_one(self) -> None:
        """Kill an export at a random moment, and assert that no message is in a table twice, or made up."""
        self.publish()
        with self.start() as job:
            time.sleep(self.chance.random() * 1.1 * self.seconds)
            below = psutil.Process(job.pid).children(recursive=True)
            job.send_signal(signal.SIGKILL)
            said = job.stdout.read()
        self.killed += not said
        _, left = psutil.wait_procs(below, LEFT_MAX_S)
        assert not left, f"these go on although their job was killed: {[one.cmdline() for one in left]}"
        for number in range(TOPICS):
            assert self.rows(number).items() <= self.published(number).items()

    def finish(self) -> None:
        """Run an export to its end, and assert that each message is in its table."""
        with self.start() as job:
            begun = time.monotonic()
            said = job.stdout.read()
        self.seconds = time.monotonic() - begun
        assert said.rstrip("\n") in ("ends,exported", "ends,nothing new", "ends,exported,nothing new",
                                     "ends,nothing new,exported"), said + (self.folder / "stderr").read_text()
        self.whole += 1
        for number in range(TOPICS):
            assert self.rows(number) == self.published(number)

    def published(self, number: int) -> dict:
        return {place: message.payload for topic in self.topics[2 * number:2 * number + 2]
                for message, place in topic.expected}

    def rows(self, number: int) -> dict:
        rows = self.lake.rows(f"t{number}")
        found = {position_of(row): row["_payload"] for row in rows}
        assert len(found) == len(rows), "a message is in its table twice"
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.tables", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spark", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(Path(folder), options.seed, with_spark=options.spark)
        kills.publish()
        kills.finish()
        for number in range(options.kills):
            kills.kill_one()
            if kills.chance.random() < 0.5:      # else the next one finds what two have left
                kills.finish()
            print(f"\r{number + 1} of {options.kills}, {kills.killed} before they had ended", end="", flush=True)
        kills.finish()
        print(f"\n{options.kills} kills, {kills.killed} of them before the job had ended; {kills.whole} runs went on "
              f"to their end; {sum(len(kills.rows(number)) for number in range(TOPICS)):,} messages, each once")


if __name__ == "__main__":
    main()
