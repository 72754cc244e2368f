"""The seeds of tests: some in each run, and thousands of a night.  SEEDS in the environment sets another number."""
import os

import pytest

EACH = 10                 # seeds of one test
NIGHTLY_SEEDS = 2_000     # of a night, with those of every run


def firsts(seeds: int) -> pytest.MarkDecorator:
    """Give a test the first of each EACH seeds.  seeds: how many each run takes."""
    seeds = int(os.environ.get("SEEDS", seeds))
    return pytest.mark.parametrize("first", [pytest.param(first, marks=pytest.mark.nightly if first >= seeds else ())
                                             for first in range(0, max(seeds, NIGHTLY_SEEDS), EACH)])
