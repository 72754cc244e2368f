"""Kills of the nightly job, at any moment: the views that there were stay whole, and the next run goes on.

    python -m tests.crash.compaction --kills 50 [--spark] [--seed 1]

Each time some messages more come to a few topics, the job is started in a process of its own and killed some time after
it has begun; then every view is looked at, byte by byte, and against a dictionary of what it may have: what it had
before, or what it was to have.  What the job has started (Spark's JVM, and Python's workers below it) has to end by
itself.
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

from geminga.storage.jobs import confirmed
from geminga.storage.ledgers import compacted_ledgers

from ..storage.jobs.topics import CODECS, Message, Topic

TOPICS, KEYS, BATCHES = 3, 400, 40
LEFT_MAX_S = 60              # as long what a killed job has started may go on
_JOB = """
import sys
from pathlib import Path
from geminga.storage.jobs import engines, nightly
from tests.storage.jobs.topics import adopt_here
data_dir, scratch = map(Path, sys.argv[1:3])
engine = engines.Spark(scratch, "local[2]", "512m") if sys.argv[3:] else engines.LocalEngine()
targets = [nightly.Target(int(path.name), path.name) for path in sorted((data_dir / "partitions").iterdir())]
print("begins", flush=True)
night = nightly.run(data_dir, nightly.plan(data_dir, targets), adopt_here(data_dir), engine)
print("ends", *{report.outcome for report in night.reports}, night.error and "failed: " + night.error, sep=",",
      flush=True)
engine.close()
"""


class Kills:
    """Topics in a folder, and the contents that their compacted views should have."""

    def __init__(self, folder: Path, seed: int, *, with_spark: bool = False):
        self.folder, self.chance, self.with_spark = folder, random.Random(seed), with_spark
        self.data_dir = folder / "data"
        self.topics = [Topic(self.data_dir, number + 1, first_ledger=1_000 * (number + 1)) for number in range(TOPICS)]
        self.held = {topic: {} for topic in self.topics}
        self.killed = self.whole = 0
        self.left_s = 0.0                # what a killed job had started was gone after so long, at most
        self.seconds = 1.0               # that a run takes, about

    def publish(self) -> None:
        for topic in self.topics:
            for _ in range(self.chance.randrange(BATCHES)):
                messages = [Message(str(self.chance.randrange(KEYS)), self.chance.randbytes(self.chance.randrange(30)))
                            for _ in range(self.chance.randrange(1, 50))]
                if len(messages) == 1:
                    topic.publish(messages[0], self.chance.choice(CODECS))
                else:
                    topic.publish_batch(messages, self.chance.choice(CODECS))
            topic.publish(Message("always", b"x"))
            if self.chance.random() < 0.3:
                topic.roll()

    def start(self) -> subprocess.Popen:
        """Start a job and wait until it is about to work; its errors go to a file."""
        command = [sys.executable, "-c", _JOB, str(self.data_dir), str(self.folder / "scratch"),
                   *(["spark"] if self.with_spark else [])]
        with open(self.folder / "stderr", "w") as told:
            job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True)
        if job.stdout.readline() != "begins\n":
            raise AssertionError(self.ended(job))
        return job

    def ended(self, job: subprocess.Popen) -> str:
        """Return how the job has ended."""
        return (
            f"the job ended with status {job.wait()} (of a signal, if negative): {(self.folder / 'stderr').read_text()}"
        )

    def kill_one(self) -> None:
        """Kill a job at a random moment, and assert that nothing is lost."""
        self.publish()
        with self.start() as job:
            time.sleep(self.chance.random() * 1.1 * self.seconds)
            below = psutil.Process(job.pid).children(recursive=True)
            job.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            said = job.stdout.read()
        self.killed += not said
        _, left = psutil.wait_procs(below, LEFT_MAX_S)
        assert not left, f"these go on although their job was killed: {[one.cmdline() for one in left]}"
        self.left_s = max(self.left_s, time.monotonic() - killed)
        self.check()

    def check(self) -> None:
        """Assert that each view is either the old one or the finished new one."""
        for topic in self.topics:
            if confirmed.current_view(self.data_dir, topic.partition_id):
                found = topic.contents()
                assert found in (self.held[topic], topic.newest()), f"partition {topic.partition_id} has lost something"
                self.held[topic] = found

    def finish(self) -> None:
        """Run a job to its end, and assert that it leaves nothing unfinished."""
        with self.start() as job:
            begun = time.monotonic()
            said = job.stdout.read()
        self.seconds = time.monotonic() - begun
        assert said.startswith("ends") and "failed" not in said and job.returncode == 0, said + self.ended(job)
        self.whole += 1
        for topic in self.topics:
            assert topic.contents() == topic.newest()
            self.held[topic] = topic.newest()
            assert not list(topic.view().folder.parent.glob(f"*{compacted_ledgers.UNFINISHED}"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.compaction", description=__doc__.splitlines()[0])
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
        views = [topic.view().number for topic in kills.topics]
        print(f"\n{options.kills} kills, {kills.killed} of them before the job had ended; {kills.whole} runs went on "
              "to their end; "
              f"views {views}, all whole; what a killed job had started was gone after {kills.left_s:.1f} s at most")


if __name__ == "__main__":
    main()
