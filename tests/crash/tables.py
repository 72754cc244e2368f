"""Kills of exports, at any moment: each message is in its table once, and the next run goes on.

    python -m tests.crash.tables --kills 50 [--spark] [--seed 1]

After each kill (killed_jobs.py) each table, as a reader finds it, has no message twice, and none that was not
published.  After a run that is not killed, it has them all.
"""
from pathlib import Path

from ..storage.jobs.topics import CODECS, Message
from ..storage.tables.lake import Lake, position_of
from .killed_jobs import KilledJobs, run

TOPICS, KEYS, BATCHES = 3, 400, 20
_JOB = """
import sys
from pathlib import Path
from geminga.storage.jobs.compacting import engines
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


class Kills(KilledJobs):
    """Topics with tables, and the messages that were published."""

    JOB = _JOB

    def __init__(self, folder: Path, seed: int, *, with_spark: bool = False):
        super().__init__(folder, seed, with_spark=with_spark)
        self.lake = Lake(folder)
        self.topics = [one for number in range(TOPICS) for one in self.lake.topic(f"t{number}", partitions=2)]

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

    def check(self) -> None:
        """Assert that no message is in a table twice, or made up."""
        for number in range(TOPICS):
            assert self.rows(number).items() <= self.published(number).items()

    def check_whole(self) -> None:
        """Assert that each message is in its table."""
        for number in range(TOPICS):
            assert self.rows(number) == self.published(number)

    def went_well(self, said: str) -> bool:
        return said.rstrip("\n") in ("ends,exported", "ends,nothing new", "ends,exported,nothing new",
                                     "ends,nothing new,exported")

    def summary(self) -> str:
        return f"{sum(len(self.rows(number)) for number in range(TOPICS)):,} messages, each once"

    def published(self, number: int) -> dict:
        return {place: message.payload for topic in self.topics[2 * number:2 * number + 2]
                for message, place in topic.expected}

    def rows(self, number: int) -> dict:
        rows = self.lake.rows(f"t{number}")
        found = {position_of(row): row["_payload"] for row in rows}
        assert len(found) == len(rows), "a message is in its table twice"
        return found


if __name__ == "__main__":
    run(Kills, "tests.crash.tables", __doc__.splitlines()[0])
