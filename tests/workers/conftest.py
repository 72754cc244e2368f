"""Whatever one client does, others go on and no process ends: seen after each test that asks for `unharmed`."""
from collections.abc import Iterator

import pytest

from ..harness import Broker, unique_topic
from .peer import Bystander


@pytest.fixture(scope="session")
def bystander(broker) -> Iterator[Bystander]:
    """A client that was there before."""
    found = Bystander(broker.service_url, unique_topic("bystander"))
    yield found
    found.close()


@pytest.fixture
def unharmed(broker, bystander: Bystander) -> Iterator[None]:
    """Afterwards those who were connected before and those who come publish and consume, and every process is the one
    that it was.
    """
    if not isinstance(broker, Broker):
        pytest.skip("needs a broker whose processes can be seen")
    before = broker.children()
    yield
    bystander.round()
    newcomer = Bystander(broker.service_url, unique_topic("newcomer"))
    newcomer.round()
    newcomer.close()
    assert broker.children() == before
