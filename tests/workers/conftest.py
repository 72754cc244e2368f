"""Checks after each test that asks for `unharmed`: whatever one client did, others go on and no process ended."""
from collections.abc import Iterator

import pytest

from ..harness import Broker, unique_topic
from .peer import Bystander


@pytest.fixture(scope="session")
def bystander(broker) -> Iterator[Bystander]:
    """A client that was connected before the test."""
    found = Bystander(broker.service_url, unique_topic("bystander"))
    yield found
    found.close()


@pytest.fixture
def unharmed(broker, bystander: Bystander) -> Iterator[None]:
    """After the test, clients from before it and new ones publish and consume, and every process is the one it was."""
    if not isinstance(broker, Broker):
        pytest.skip("needs a broker whose processes can be seen")
    before = broker.children()
    yield
    bystander.round()
    newcomer = Bystander(broker.service_url, unique_topic("newcomer"))
    newcomer.round()
    newcomer.close()
    assert broker.children() == before
