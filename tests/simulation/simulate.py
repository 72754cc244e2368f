"""Worlds under seeds: .venv/bin/python tests/simulation/simulate.py --seed N [--seeds 10000] [--steps 60] [--verbose]
[--canary NAME]

The first that breaks a promise ends the run, with the command that shows it again.  One world in TRANSACTIONS_EACH has
transactions, and up to two owners.
"""
import argparse
import contextlib
import multiprocessing
import sys
import tempfile
import time
import traceback
from pathlib import Path

if not __package__:      # run as a program
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    __package__ = "tests.simulation"

from geminga.storage.catalogue import catalogue

from . import world
from .canaries import CANARIES
from .life import Life
from .model import Broken
from .transaction_canaries import TRANSACTION_CANARIES
from .transaction_life import TransactionLife

STEPS = 60
TRANSACTIONS_EACH = 5
MEMORY = Path("/dev/shm")


def make_template() -> None:
    """Make an empty catalogue to copy, because making one anew costs more than a short life."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalogue.sqlite"
        made = catalogue.open_catalogue(path, lambda: 0)
        made.close()
        world.TEMPLATE["bytes"] = path.read_bytes()


def has_transactions(seed: int) -> bool:
    """Whether the world of this seed has transactions."""
    return seed % TRANSACTIONS_EACH == TRANSACTIONS_EACH - 1


def simulate(
    seed: int, steps: int = STEPS, *, canary: str = "", is_verbose: bool = False
) -> tuple[str, dict[str, int]]:
    """Run one life; return (digest of everything that happened, {event: how often}).  Raises model.Broken."""
    if not world.TEMPLATE:
        make_template()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        life = (TransactionLife if has_transactions(seed) else Life)(seed, Path(folder))
        life.verbose = is_verbose
        with (CANARIES | TRANSACTION_CANARIES)[canary][0]() if canary else contextlib.nullcontext():
            life.live(steps)
    counts = (
        life.counts
        | {f"fault: {fault}": count for fault, count in life.disk.faults.items()}
        | {"disk calls": life.disk.calls}
    )
    return life.trace.hexdigest(), counts


def command(seed: int, steps: int = STEPS) -> str:
    return f".venv/bin/python tests/simulation/simulate.py --seed {seed} --steps {steps} --verbose"


def _try(work: tuple[int, int, str, bool]) -> tuple[int, str, dict[str, int]]:
    seed, steps, canary, is_verbose = work
    try:
        return seed, "", simulate(seed, steps, canary=canary, is_verbose=is_verbose)[1]
    except Broken as broken:
        return seed, traceback.format_exc() if is_verbose else f"broken: {broken}"[:4_000], {}
    except Exception:
        return seed, traceback.format_exc(), {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from that on")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each world")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--keep-going", action="store_true", help="also after one that breaks a promise")
    parser.add_argument("--canary", default="", choices=sorted(CANARIES | TRANSACTION_CANARIES),
                        help="what is wrong with the owners")
    parser.add_argument("--identity", action="store_true",
                        help="only print what identifies all that happens under the first seed")
    parser.add_argument("--verbose", action="store_true", help="tell what happens")
    options = parser.parse_args()
    make_template()
    if options.identity:
        print(simulate(options.seed, options.steps)[0])
        return 0
    totals: dict[str, int] = {}
    begun, failed = time.monotonic(), 0
    work = [(seed, options.steps, options.canary, options.verbose)
            for seed in range(options.seed, options.seed + options.seeds)]
    # What a killed owner had open stays open in the process that plays it, so each of these plays some seeds only.
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=50) as pool:
        for seed, text, counts in map(_try, work) if options.seeds == 1 else pool.imap(_try, work, chunksize=4):
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
            if text:
                failed += 1
                print(f"{text}\nseed {seed} shows it: {command(seed, options.steps)}", flush=True)
                if not options.keep_going:
                    break
    print(f"{options.seeds} seeds, {failed} failed, {time.monotonic() - begun:.0f} s")
    for name, count in sorted(totals.items()):
        print(f"  {name}: {count:,}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
