"""Fixtures: brokers and standbys that end with their test."""
import pytest

from .pair import Broker, Standby


@pytest.fixture
def run(tmp_path):
    """Return a function that starts a broker or, given the other's address, a standby, in a folder of that name."""
    started = []

    def start(name, of=None, *options):
        made = Broker(tmp_path / name, *options) if of is None else Standby(tmp_path / name, of, *options)
        started.append(made)
        return made.start()

    yield start
    for one in started:
        one.close()
