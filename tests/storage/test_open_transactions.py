"""Open transactions of a partition: what survives in the journal and in the state file, and what consumers may get."""
import numpy as np
import pytest

from geminga.proto import names
from geminga.storage import format
from geminga.storage.cursors import state_file
from geminga.storage.cursors.open_transactions import OpenTransactions, hash_of_role
from geminga.storage.cursors.state_file import State

FIRST, SECOND = names.transaction(0, 7), names.transaction(3, names.LEAST_MAX)


@pytest.fixture
def filled():
    """Two open transactions with everything that they can have."""
    made = OpenTransactions()
    for entries in ((5, 8), (8, 9), (20, 21)):
        made.published(FIRST, 3, *entries)
    made.published(SECOND, 3, 10, 12)
    made.published(SECOND, 4, 0, 1)
    made.of(FIRST).sequences[-5] = {0: 8, 11: 11}
    made.of(FIRST).role = hash_of_role("ann")
    acks = made.of(SECOND).acks_of(6)
    acks.entries[3] = {0, 1, 2, 9}
    acks.parts[3] = {4: 1 | 1 << 31 | 1 << 40 | 1 << 99}
    acks.up_to = 2, 17
    return made


def applied(data):
    """Apply ops, packed, one by one."""
    found = OpenTransactions()
    for op in np.frombuffer(data, format.OP_ROW)[:, np.newaxis]:
        found.apply(op.view(format.OPS[int(op["kind"][0])]))
    return found


def test_ops_make_the_same_transactions_however_often_they_are_applied(filled):
    data = filled.ops(9)
    assert applied(data).by_id == applied(data + data).by_id == filled.by_id
    assert applied(data).limit == filled.limit == (3, 5)


def test_a_state_file_has_open_transactions(filled, tmp_path):
    file = state_file.StateFile(tmp_path, 9)
    file.take(State(transactions=filled)).write()
    assert state_file.read(tmp_path, 9).transactions.by_id == filled.by_id
    file.take(State(transactions=OpenTransactions())).write()
    assert state_file.read(tmp_path, 9).transactions is None


def test_the_limit_is_the_first_entry_of_any_open_transaction(filled):
    filled.remove(FIRST)
    assert filled.limit == (3, 10)
    filled.remove(SECOND)
    assert filled.limit is None and filled.remove(SECOND) is None


@pytest.mark.parametrize("most, least", [(0, 0), (128, 1), (0, 1 << 56), (1 << 63, 1)])
def test_ids_that_no_coordinator_gives_out_have_no_number(most, least):
    assert names.transaction(most, least) is None


def test_an_id_is_two_numbers_again():
    assert names.transaction_bits(SECOND) == (3, (1 << 56) - 1) and names.transaction_text(FIRST) == "(0,7)"
