"""Jobs in processes of their own that are killed at any moment, and run again.

Each time some messages more come to a few topics, the job is started and killed some time after it has begun; then what
it has left is looked at.  What the job has started (Spark's JVM, and Python's workers below it) has to end by itself.
"""
import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import psutil

LEFT_MAX_S = 60              # as long what a killed job has started may go on


class KilledJobs(ABC):
    """Topics in a folder, and a job that works on them."""

    JOB: ClassVar[str]       # source: prints "begins" when it is about to work, and a line that begins with "ends"

    def __init__(self, folder: Path, seed: int, *, with_spark: bool = False):
        self.folder, self.chance, self.with_spark = folder, random.Random(seed), with_spark
        self.killed = self.whole = 0
        self.left_s = 0.0                # what a killed job had started was gone after so long, at most
        self.seconds = 1.0               # that a run takes, about

    @abstractmethod
    def publish(self) -> None:
        """Have some messages come to the topics."""

    @abstractmethod
    def check(self) -> None:
        """Assert that a killed job has left nothing that may not be."""

    @abstractmethod
    def check_whole(self) -> None:
        """Assert that a job that was not killed has done everything."""

    @abstractmethod
    def summary(self) -> str:
        """Return what there is at the end, as text."""

    def went_well(self, said: str) -> bool:
        """Whether a job that was not killed has printed this."""
        return said.startswith("ends") and "failed" not in said

    def start(self) -> subprocess.Popen:
        """Start a job and wait until it is about to work; its errors go to a file."""
        command = [sys.executable, "-c", self.JOB, str(self.folder), *(["spark"] if self.with_spark else [])]
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
        """Kill a job at a random moment, and check what it has left."""
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

    def finish(self) -> None:
        """Run a job to its end, and check that it has done everything."""
        with self.start() as job:
            begun = time.monotonic()
            said = job.stdout.read()
        self.seconds = time.monotonic() - begun
        assert self.went_well(said) and job.returncode == 0, said + self.ended(job)
        self.whole += 1
        self.check_whole()


def run(kind: type[KilledJobs], program: str, about: str) -> None:
    """Kill jobs as often as the command line says; print what was seen."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spark", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kills = kind(Path(folder), options.seed, with_spark=options.spark)
        kills.publish()
        kills.finish()
        for number in range(options.kills):
            kills.kill_one()
            if kills.chance.random() < 0.5:      # else the next one finds what two have left
                kills.finish()
            print(f"\r{number + 1} of {options.kills}, {kills.killed} before they had ended", end="", flush=True)
        kills.finish()
        print(f"\n{options.kills} kills, {kills.killed} of them before the job had ended; {kills.whole} runs went on "
              f"to their end; {kills.summary()}; what a killed job had started was gone after {kills.left_s:.1f} s "
              "at most")
