"""The seeds of tests: some in each run, and thousands of a night.  SEEDS in the environment sets another number."""
import itertools
import os
import tempfile
from pathlib import Path

import pytest

from .canaries import patched
from .model import Broken
from .simulate import MEMORY, STEPS, make_template
from .world import TEMPLATE, World

EACH = 10                 # seeds of one test
NIGHTLY_SEEDS = 2_000     # of a night, with those of every run
CANARY_SEEDS = 30         # one of which finds a canary


def firsts(seeds: int) -> pytest.MarkDecorator:
    """Give a test the first of each EACH seeds.  seeds: how many each run takes."""
    seeds = int(os.environ.get("SEEDS", seeds))
    return pytest.mark.parametrize("first", [pytest.param(first, marks=pytest.mark.nightly if first >= seeds else ())
                                             for first in range(0, max(seeds, NIGHTLY_SEEDS), EACH)])


def _live(world: type[World], seed: int) -> dict[str, int]:
    """Run a world of a kind that has seeds of its own; return {event: how often}.  Raises model.Broken."""
    if not TEMPLATE:
        make_template()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        life = world(seed, Path(folder))
        life.live(STEPS)
    return life.counts


def happened(world: type[World], event: str, first: int) -> int:
    """Return how often an event happened in the worlds of EACH seeds.  Raises model.Broken."""
    count = 0
    for seed in range(first, first + EACH):
        try:
            count += _live(world, seed).get(event, 0)
        except BaseException:
            print(f"seed {seed} shows it")
            raise
    return count


def promise_broken_by(world: type[World], canary: tuple) -> str:
    """Return the promise that the first seed finds broken with a canary, which is a patch; fail if none does."""
    with patched(iter([canary])):
        for seed in itertools.islice(itertools.count(), CANARY_SEEDS):
            try:
                _live(world, seed)
            except Broken as broken:
                return broken.promise
    pytest.fail(f"{CANARY_SEEDS} seeds have not found it")
