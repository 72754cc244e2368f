"""Worlds with filters keep every promise under seeds of their own, and find owners that break one."""
import numpy as np
import pytest

from geminga.storage.filters.entries import Judged
from geminga.storage.filters.sieve import Sieve
from geminga.storage.open_topics import filtering

from .filtered_life import FilteredLife
from .seeds import firsts, happened, promise_broken_by


@pytest.mark.slow
@firsts(20)
def test_every_promise_is_kept_with_filters(first):
    assert happened(FilteredLife, "filtered", first) > 0


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
    promise_broken_by(FilteredLife, CANARIES[name])
