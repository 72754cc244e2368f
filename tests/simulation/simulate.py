"""Worlds under seeds: .venv/bin/python tests/simulation/simulate.py --seed N [--seeds 10000] [--steps 60] [--verbose]
[--canary NAME]

The first that breaks a promise ends the run, with the command that shows it again.  WORLDS has the kinds of worlds.
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
from .scalable_canaries import SCALABLE_CANARIES
from .scalable_life import ScalableLife
from .schedule_life import SCHEDULE_CANARIES, ScheduleLife
from .transaction_canaries import TRANSACTION_CANARIES
from .transaction_life import TransactionLife

STEPS = 60
# The kinds of worlds, which seeds take in turn.  Those of scalable topics and of transactions have one or two owners.
WORLDS = Life, Life, Life, ScalableLife, TransactionLife, ScheduleLife
OF_CANARIES = {Life: CANARIES, ScalableLife: SCALABLE_CANARIES, TransactionLife: TRANSACTION_CANARIES,
               ScheduleLife: SCHEDULE_CANARIES}
MEMORY = Path("/dev/shm")


def make_template() -> None:
    """Make an empty catalogue to copy, because making one anew costs more than a short life."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalogue.sqlite"
        made = catalogue.open_catalogue(path, lambda: 0)
        made.close()
        world.TEMPLATE["bytes"] = path.read_bytes()


def world_of(seed: int, canary: str = "") -> type[world.World]:
    """Return what the world of a seed has; that of a canary has what the canary breaks."""
    return next((life for life, canaries in OF_CANARIES.items() if canary in canaries), WORLDS[seed % len(WORLDS)])


def all_canaries() -> dict[str, tuple]:
    """Return the canaries of all worlds."""
    return {name: canary for canaries in OF_CANARIES.values() for name, canary in canaries.items()}


def simulate(
    seed: int, steps: int = STEPS, *, canary: str = "", is_verbose: bool = False
) -> tuple[str, dict[str, int]]:
    """Run one life; return (digest of everything that happened, {event: how often}).  Raises model.Broken."""
    if not world.TEMPLATE:
        make_template()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        life = world_of(seed, canary)(seed, Path(folder))
        life.verbose = is_verbose
        with all_canaries()[canary][0]() if canary else contextlib.nullcontext():
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
    parser.add_argument("--canary", default="", choices=sorted(all_canaries()),
                        help="what is wrong with the owners")
    parser.add_argument("--identity", action="store_true",
                        help="only print what identifies all that happens under each seed")
    parser.add_argument("--verbose", action="store_true", help="tell what happens")
    options = parser.parse_args()
    make_template()
    if options.identity:
        print(*(simulate(options.seed + number, options.steps)[0] for number in range(options.seeds)), sep="\n")
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
