"""Worlds with times to live of single messages keep every promise under seeds of their own, and find broken ones."""
import numpy as np
import pytest

from geminga.storage.enforcement import batch_priorities, message_ttl, own_ttl

from .expiring_life import ExpiringLife
from .seeds import firsts, happened, promise_broken_by


@pytest.mark.slow
@firsts(20)
def test_every_promise_is_kept_with_times_to_live(first):
    assert happened(ExpiringLife, "expired", first) > 0


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
    assert promise_broken_by(ExpiringLife, CANARIES[name]) in (
        "nothing expires before its time", "what is due has expired")
