"""WebSockets of the broker that tests share."""
from collections.abc import Iterator

import pytest

from .sockets import Sockets


@pytest.fixture(scope="module")
def sockets(broker) -> Iterator[Sockets]:
    with Sockets(broker.http_url) as made:
        yield made
