"""Small structures of dispatching by themselves: pending entries, permits, ack sets, cursors."""
import numpy as np
import pytest

from geminga.storage import format
from geminga.storage.cursors import batch_acks
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.cursors.pending_acks import NOBODY, PendingAcks
from geminga.storage.topics.permits import within_permits

from .files import ids

LEDGER, SLOT = 7, 5


@pytest.fixture
def pending():
    """Return pending acknowledgements of a consumer that got entries 0, 1 and 2 and has given back entry 0."""
    found = PendingAcks()
    found.give(LEDGER, range(3), SLOT, is_again=False)
    assert found.take_back_some(SLOT, LEDGER, ids(0)).tolist() == [0]
    return found


def to_redeliver(pending):
    return [entry_id for _, entries in pending.entries_to_redeliver() for entry_id in entries]


def test_what_is_settled_after_it_came_back_takes_nothing_with_it(pending):
    pending.settle(LEDGER, ids(0, 1))
    assert (pending.slot(LEDGER, 2), pending.to_redeliver) == (SLOT, 0)
    pending.settle(LEDGER, ids(2))
    assert not pending.knows(LEDGER)


def test_what_came_back_stays_when_nothing_is_out_any_more(pending):
    pending.settle(LEDGER, ids(1, 2))
    assert to_redeliver(pending) == [0] and pending.knows(LEDGER)


def test_all_up_to_a_position_is_settled_with_it(pending):
    [(ledger_id, entries, _)] = pending.settle_up_to(LEDGER, 1)
    assert (ledger_id, entries.tolist()) == (LEDGER, [0, 1])
    assert [pending.slot(LEDGER, entry_id) for entry_id in range(3)] == [NOBODY, NOBODY, SLOT]


@pytest.mark.parametrize("count", [3, 100])
@pytest.mark.parametrize(("permits", "expected"), [(1, (1, 2)), (2, (1, 2)), (3, (2, 4)), (4, (2, 4)), (6, (3, 6))])
def test_only_the_last_batch_exceeds_permits(count, permits, expected):
    """Permits suffice for the same number of entries, of two messages each, whether they are counted one by one or
    as arrays.
    """
    assert within_permits(np.full(count, 2, np.uint32), permits) == expected


@pytest.mark.parametrize(("first", "expected"), [(0, [1, 1, 1, 1, 0, 0]), (2, [1, 1, 0, 0]), (4, [0, 0])])
def test_the_entry_at_the_mark_delete_position_is_acknowledged(first, expected):
    acknowledged = Cursor(1, (LEDGER, 3), is_durable=True).acknowledged(LEDGER, first, 6)
    assert acknowledged.tolist() == [bool(one) for one in expected]


def test_two_notes_of_one_word_are_two():
    rows = np.zeros(4, format.PART_ROW)
    assert list(batch_acks.by_batch(rows, np.array([0, 1, 1, 2]))) == [(0, 2), (2, 4)]
