"""Transactions hold while processes are killed: a client that moves messages moves each exactly once."""
import pytest

from . import transactions

pytestmark = [pytest.mark.slow, pytest.mark.go]
KILLS, KILLS_OF_A_NIGHT = 5, 40


@pytest.mark.usefixtures("start_broker")        # skipped where no broker may be killed
@pytest.mark.parametrize("kills", [KILLS, pytest.param(KILLS_OF_A_NIGHT, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_what_is_moved_in_transactions_is_moved_once_over_kills(tmp_path, seed, batching, kills):
    counts = transactions.run(tmp_path, kills, seed, batching=batching)
    assert counts["committed"] > 0 and counts["aborted"] > 0, counts
