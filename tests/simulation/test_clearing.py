"""Worlds in which backlogs are cleared and taken back keep every promise, and find broken ones."""
import itertools
import tempfile
from pathlib import Path

import pytest

from geminga.storage.ledgers import journal_ops

from .canaries import patched
from .clearing_life import ClearingLife
from .model import Broken
from .seeds import EACH, firsts
from .simulate import MEMORY, STEPS, make_template

CANARY_SEEDS = 40


@pytest.fixture(scope="module", autouse=True)
def template():
    make_template()


def live(seed):
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        life = ClearingLife(seed, Path(folder))
        life.live(STEPS)
    return life.counts


@pytest.mark.slow
@firsts(20)
def test_every_promise_is_kept_with_cleared_backlogs(first):
    taken_back = 0
    for seed in range(first, first + EACH):
        try:
            taken_back += live(seed).get("taken back", 0)
        except BaseException:
            print(f"seed {seed} shows it")
            raise
    assert taken_back > 0


@pytest.mark.slow
def test_the_journal_has_what_was_taken_back():
    """A canary: the op that gives a subscription the other cursor is missing."""
    def another_op(partition_id, subscription_id, other, *, since):
        return journal_ops.subscription_deleted(partition_id, other)

    with patched(iter([(journal_ops, "cursor_replaced", another_op)])):
        for seed in itertools.islice(itertools.count(), CANARY_SEEDS):
            try:
                live(seed)
            except Broken as broken:
                assert broken.promise == "what was acknowledged stays so, and nothing else is", broken
                return
    pytest.fail(f"{CANARY_SEEDS} seeds have not found it")
