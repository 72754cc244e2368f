"""Kills of the nightly job, at any moment: the views that there were stay whole, and the next run goes on.

    python -m tests.crash.compaction --kills 50 [--spark] [--seed 1]

After each kill (killed_jobs.py) every view is looked at, byte by byte, and against a dictionary of what it may have:
what it had before, or what it was to have.
"""
from pathlib import Path

from geminga.storage.jobs import confirmed
from geminga.storage.ledgers import compacted_ledgers

from ..storage.jobs.topics import CODECS, Message, Topic
from .killed_jobs import KilledJobs, run

TOPICS, KEYS, BATCHES = 3, 400, 40
_JOB = """
import sys
from pathlib import Path
from geminga.storage.jobs.compacting import engines, nightly
from tests.storage.jobs.topics import adopt_here
data_dir, scratch = Path(sys.argv[1]) / "data", Path(sys.argv[1]) / "scratch"
engine = engines.Spark(scratch, "local[2]", "512m") if sys.argv[2:] else engines.LocalEngine()
targets = [nightly.Target(int(path.name), path.name) for path in sorted((data_dir / "partitions").iterdir())]
print("begins", flush=True)
night = nightly.run(data_dir, nightly.plan(data_dir, targets), adopt_here(data_dir), engine)
print("ends", *{report.outcome for report in night.reports}, night.error and "failed: " + night.error, sep=",",
      flush=True)
engine.close()
"""


class Kills(KilledJobs):
    """Topics in a folder, and the contents that their compacted views should have."""

    JOB = _JOB

    def __init__(self, folder: Path, seed: int, *, with_spark: bool = False):
        super().__init__(folder, seed, with_spark=with_spark)
        self.data_dir = folder / "data"
        self.topics = [Topic(self.data_dir, number + 1, first_ledger=1_000 * (number + 1)) for number in range(TOPICS)]
        self.held = {topic: {} for topic in self.topics}

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

    def check(self) -> None:
        """Assert that each view is either the old one or the finished new one."""
        for topic in self.topics:
            if confirmed.current_view(self.data_dir, topic.partition_id):
                found = topic.contents()
                assert found in (self.held[topic], topic.newest()), f"partition {topic.partition_id} has lost something"
                self.held[topic] = found

    def check_whole(self) -> None:
        """Assert that each view is the new one, and that nothing unfinished is left."""
        for topic in self.topics:
            assert topic.contents() == topic.newest()
            self.held[topic] = topic.newest()
            assert not list(topic.view().folder.parent.glob(f"*{compacted_ledgers.UNFINISHED}"))

    def summary(self) -> str:
        return f"views {[topic.view().number for topic in self.topics]}, all whole"


if __name__ == "__main__":
    run(Kills, "tests.crash.compaction", __doc__.splitlines()[0])
