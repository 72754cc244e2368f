"""The Python client as tests use it: connected to the shared broker, and quiet unless something is wrong."""

from collections.abc import Callable, Iterator

import pulsar
import pytest

from ..harness import HANG_SECONDS

Connect = Callable[..., pulsar.Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Yield a function connect(service_url) that returns a client; the client is closed when the test ends."""
    opened: list[pulsar.Client] = []

    def connect(service_url: str, operation_timeout_seconds: int = HANG_SECONDS, **options: object) -> pulsar.Client:
        # Errors only: a reconnection is a warning, and is what some tests are about.
        opened.append(pulsar.Client(service_url, operation_timeout_seconds=operation_timeout_seconds,
                                    logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options))
        return opened[-1]

    yield connect
    for client in opened:
        client.shutdown()


@pytest.fixture
def client(broker, connect: Connect) -> pulsar.Client:
    return connect(broker.service_url)
