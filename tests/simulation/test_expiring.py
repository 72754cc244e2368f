"""Worlds with times to live of single messages keep every promise under seeds of their own, and find broken ones."""
import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest

from geminga.storage.enforcement import batch_priorities, message_ttl, own_ttl

from .canaries import patched
from .expiring_life import ExpiringLife
from .model import Broken
from .seeds import EACH, firsts
from .simulate import MEMORY, STEPS, make_template

CANARY_SEEDS = 30


@pytest.fixture(scope="module", autouse=True)
def template():
    make_template()


def live(seed):
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        life = ExpiringLife(seed, Path(folder))
        life.live(STEPS)
    return life.counts


@pytest.mark.slow
@firsts(20)
def test_every_promise_is_kept_with_times_to_live(first):
    expired = 0
    for seed in range(first, first + EACH):
        try:
            expired += live(seed).get("expired", 0)
        except BaseException:
            print(f"seed {seed} shows it")
            raise
    assert expired > 0


class _OfPublishing:
    """numpy for a watch that takes the time of publishing where the delivery comes later."""

    def __getattr__(self, name):
        return (lambda published, _: published) if name == "maximum" else getattr(np, name)


CANARIES = {
    "times are kept shorter": (own_ttl, "ttls_of", lambda flags, ttls_of=own_ttl.ttls_of: ttls_of(flags) // 2),
    "blocks are looked at once": (own_ttl, "_to_look_at", lambda blocks, stop, now_ms: np.arange(
        blocks.seen // own_ttl._BLOCK, -(-stop // own_ttl._BLOCK)) if blocks.seen < stop else np.arange(0)),
    "the times in batches are not read": (batch_priorities, "batch_flags", lambda entry, unpacked_max: (0, 0)),
    "delayed messages live from the publishing on": (own_ttl, "np", _OfPublishing()),
    "nothing expires": (message_ttl, "expire", lambda *args: 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CANARIES)
def test_a_broken_promise_of_times_to_live_is_found(name):
    with patched(iter([CANARIES[name]])):
        for seed in itertools.islice(itertools.count(), CANARY_SEEDS):
            try:
                live(seed)
            except Broken as broken:
                assert broken.promise in ("nothing expires before its time", "what is due has expired"), broken
                return
    pytest.fail(f"{CANARY_SEEDS} seeds have not found it")
