"""Worlds with filters keep every promise under seeds of their own, and find owners that break one."""
import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest

from geminga.storage.filters.entries import Judged
from geminga.storage.filters.sieve import Sieve
from geminga.storage.open_topics import filtering

from .canaries import patched
from .filtered_life import FilteredLife
from .model import Broken
from .seeds import EACH, firsts
from .simulate import MEMORY, STEPS, make_template

CANARY_SEEDS = 30


@pytest.fixture(scope="module", autouse=True)
def template():
    make_template()


def live(seed):
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        life = FilteredLife(seed, Path(folder))
        life.live(STEPS)
    return life.counts


@pytest.mark.slow
@firsts(20)
def test_every_promise_is_kept_with_filters(first):
    filtered = 0
    for seed in range(first, first + EACH):
        try:
            filtered += live(seed).get("filtered", 0)
        except BaseException:
            print(f"seed {seed} shows it")
            raise
    assert filtered > 0


def _everything_matches(sieve, ledger, entries):
    return Judged(np.ones(len(entries), bool))


CANARIES = {
    "a client's ack set counts the messages of the stored batch": (
        Sieve, "widened", lambda sieve, ledger, entry, bits: bits),
    "everything matches": (Sieve, "judge", _everything_matches),
    "what was not looked at is shown": (filtering, "shown", lambda subscription, ledgers: [
        ledger for ledger in ledgers if ledger.ledger_id >= subscription.read[0]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CANARIES)
def test_a_broken_promise_of_filters_is_found(name):
    with patched(iter([CANARIES[name]])):
        for seed in itertools.islice(itertools.count(), CANARY_SEEDS):
            try:
                live(seed)
            except Broken:
                return
    pytest.fail(f"{CANARY_SEEDS} seeds have not found it")
