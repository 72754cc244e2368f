"""Puts bugs into the sources one by one, and tells which of them the tests do not catch.

    python -m tests.mutants [--only TEXT ...] [--jobs N] [--list] [--no-baseline]

Each bug is put into a throwaway copy of this checkout, and the tests that concern the bug run there.  The bug is caught
if they fail, or take several times as long as without it.  First the tests have to pass without any bug.  A whole run
takes hours of a core, so it is started by hand or at night.

Exit status: 0 when at least 90 % are caught, 1 when not, 2 when tests fail without a bug.
"""
import argparse
import queue
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .bugs import Bug, all_bugs
from .checkout import LATE, SURVIVED, Checkout

CAUGHT_MIN = 0.9
NOT_TRIED = "not tried"
SECONDS_MIN, TIMES_AS_LONG = 60, 4       # seconds at least, and times as long as the tests take without a bug
SECONDS_MAX = 900                        # for tests without a bug, and with one if their usual time is not known


class Fails(Exception):
    """Tests fail although there is no bug."""


class Runs:
    """The copies of the checkout, each for one bug at a time, and how long each test takes without a bug."""

    def __init__(self, folder: Path, jobs: int):
        self._free: queue.SimpleQueue[Checkout] = queue.SimpleQueue()
        self._all = [Checkout(folder / str(number)) for number in range(jobs)]
        for checkout in self._all:
            self._free.put(checkout)
        self._is_over = False
        self._took: dict[str, float] = {}
        self._lock = threading.Lock()

    def end(self) -> None:
        """Stop putting in bugs, and end the tests that run."""
        self._is_over = True
        for checkout in self._all:
            checkout.end()

    def outcome(self, bug: Bug, is_known_good: bool) -> str:
        checkout = self._free.get()
        try:
            if self._is_over:
                return NOT_TRIED
            seconds = SECONDS_MAX
            if not is_known_good:
                seconds = max(SECONDS_MIN, TIMES_AS_LONG * sum(self._without(checkout, test) for test in bug.tests))
            right = checkout.text(bug.file)
            checkout.write(bug.file, bug.put_in(right))
            try:
                return checkout.run(bug.tests, seconds)[0]
            finally:
                checkout.write(bug.file, right)
        finally:
            self._free.put(checkout)

    def _without(self, checkout: Checkout, test: str) -> float:
        with self._lock:
            known = self._took.get(test)
        if known is not None:
            return known
        begun = time.monotonic()
        outcome, said = checkout.run((test,), SECONDS_MAX)
        if outcome != SURVIVED:
            raise Fails(f"{test} does not pass without a bug ({outcome}):\n{said[-3000:]}")
        with self._lock:
            self._took[test] = time.monotonic() - begun
        return self._took[test]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT",
                        help="bugs whose file or words contain one of these")
    parser.add_argument("--jobs", type=int, default=1, help="copies that run beside each other")
    parser.add_argument("--list", action="store_true", help="print the bugs, and put none in")
    parser.add_argument("--no-baseline", action="store_true", help="take it on trust that the tests pass without a bug")
    options = parser.parse_args()
    bugs = [bug for bug in all_bugs() if any(text in str(bug) for text in options.only)]
    if options.list:
        print("\n".join(map(str, bugs)))
        return 0
    lines: dict[str, list[str]] = defaultdict(list)      # outcome -> lines that were printed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))      # a SIGTERM ends the brokers under test too
    with tempfile.TemporaryDirectory(prefix="bugs-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        Path(folder).chmod(0o755)        # tests that go on as another user look for the broker's command in this folder
        runs = Runs(Path(folder), options.jobs)

        def tell(bug: Bug) -> tuple[Bug, str, float]:
            begun = time.monotonic()
            try:
                outcome = runs.outcome(bug, options.no_baseline)
            except Fails as error:
                print(error, file=sys.stderr, flush=True)
                outcome = NOT_TRIED
            return bug, outcome, time.monotonic() - begun

        try:
            for number, (bug, outcome, seconds) in enumerate(pool.map(tell, bugs), 1):
                lines[outcome].append(f"{number:4} {outcome:9} {seconds:6.1f} s  {bug}")
                print(lines[outcome][-1], flush=True)
        finally:
            runs.end()
    return _sum_up(lines)


def _sum_up(lines: dict[str, list[str]]) -> int:
    """Print the bugs that need attention again, then the number of each outcome; return the exit status."""
    for outcome in (NOT_TRIED, SURVIVED):
        if lines[outcome]:
            print(f"\n{outcome}: {len(lines[outcome])}", *lines[outcome], sep="\n")
    count = Counter({outcome: len(some) for outcome, some in lines.items()})
    caught = count["caught"] + count[LATE]
    judged = caught + count[SURVIVED]
    share = caught / judged if judged else 0.0
    print(f"\n{caught} of {judged} caught ({share:.1%}), {count[LATE]} of them by a timeout; "
          f"{count[SURVIVED]} survived; "
          f"{count[NOT_TRIED]} not tried, as their tests fail without a bug")
    if count[NOT_TRIED]:
        return 2
    return 0 if share >= CAUGHT_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
