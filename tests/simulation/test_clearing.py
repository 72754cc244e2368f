"""Worlds in which backlogs are cleared and taken back keep every promise, and find broken ones."""
import pytest

from geminga.storage.ledgers import journal_ops

from .clearing_life import ClearingLife
from .seeds import firsts, happened, promise_broken_by


@pytest.mark.slow
@firsts(20)
def test_every_promise_is_kept_with_cleared_backlogs(first):
    assert happened(ClearingLife, "taken back", first) > 0


@pytest.mark.slow
def test_the_journal_has_what_was_taken_back():
    """A canary: the op that gives a subscription the other cursor is missing."""
    def another_op(partition_id, subscription_id, other, *, since):
        return journal_ops.subscription_deleted(partition_id, other)

    assert promise_broken_by(ClearingLife, (journal_ops, "cursor_replaced", another_op)) \
        == "what was acknowledged stays so, and nothing else is"
