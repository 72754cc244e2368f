"""The owner of a partition: the same in every process, evenly shared, and mostly kept when the number of owners
changes.
"""
from collections import Counter

import pytest

from geminga.storage.runtime.routing import owner_of
from geminga.workers.addresses import addresses
from geminga.workers.options import WorkerOptions

PARTITIONS = [f"persistent://public/default/topic-{number}" for number in range(4_000)]
OWNERS_OF_EIGHT = [7, 4, 3, 1, 5, 2, 7, 1]     # the owner of each of the first eight partitions


@pytest.mark.parametrize("owners", [1, 2, 3, 8, 64])
def test_owners_have_about_as_much_as_each_other(owners):
    had = Counter(owner_of(partition, owners) for partition in PARTITIONS)
    assert set(had) == set(range(owners))
    mean = len(PARTITIONS) / owners
    assert max(had.values()) < mean + 5 * mean**0.5
    assert min(had.values()) > mean - 5 * mean**0.5


@pytest.mark.parametrize("owners", [1, 2, 3, 8, 64])
def test_a_new_owner_takes_its_share_and_nothing_else_moves(owners):
    """Journals and caches of the former owners stay useful."""
    moved = [partition for partition in PARTITIONS if owner_of(partition, owners) != owner_of(partition, owners + 1)]
    assert {owner_of(partition, owners + 1) for partition in moved} == {owners}
    share = len(PARTITIONS) / (owners + 1)
    assert abs(len(moved) - share) < 5 * share**0.5


def test_the_owner_of_a_partition_is_the_same_in_every_process():
    """Python's own hashes differ between processes: workers do not ask each other."""
    assert [owner_of(partition, 8) for partition in PARTITIONS[:8]] == OWNERS_OF_EIGHT


@pytest.mark.parametrize("bind, advertised, url", [
    ("127.0.0.1", "", "pulsar://127.0.0.1:6650"), ("0.0.0.0", "", "pulsar://localhost:6650"),
    ("::", "", "pulsar://localhost:6650"),
    ("", "", "pulsar://localhost:6650"), ("0.0.0.0", "broker.example", "pulsar://broker.example:6650"),
    ("::1", "", "pulsar://[::1]:6650"),
])
def test_clients_are_never_told_an_address_that_means_any(bind, advertised, url):
    assert addresses(WorkerOptions(bind=bind, advertised_address=advertised), 6650, -1).service == url
