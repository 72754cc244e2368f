"""What tests share: a broker that many use, brokers that one test may kill, and a refusal to test some other checkout.

GEMINGA_TEST_SERVICE_URL and GEMINGA_TEST_HTTP_URL (both or none) name a broker that already runs.  The tests of clients then talk to
it, and those that need a broker to kill are skipped: so they can be tried on another implementation of the protocol.
"""

import importlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pytest

from .harness import Broker

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """An editable install points at one clone: in a second one pytest would test the first one's code, and pass."""
    try:
        found = importlib.import_module("geminga.proto").__path__[0]
    except ModuleNotFoundError:
        pytest.exit('geminga is not installed here: pip install -e ".[dev]"', returncode=4)
    if Path(found).resolve() != REPOSITORY / "proto":
        pytest.exit(f"geminga is installed from {found}, not from {REPOSITORY}: give each checkout a venv of its own", returncode=4)


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker that somebody else started, and that is not ours to kill."""

    service_url: str
    http_url: str


def _running_broker() -> RunningBroker | None:
    service_url = os.environ.get("GEMINGA_TEST_SERVICE_URL")
    http_url = os.environ.get("GEMINGA_TEST_HTTP_URL")
    if not service_url and not http_url:
        return None
    if not service_url or not http_url:
        pytest.exit("GEMINGA_TEST_SERVICE_URL and GEMINGA_TEST_HTTP_URL go together", returncode=4)
    return RunningBroker(service_url, http_url.rstrip("/"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | RunningBroker]:
    """One broker for all tests that leave it as it was: they take topics of their own and kill nothing."""
    running = _running_broker()
    if running is not None:
        yield running
        return
    own = Broker(tmp_path_factory.mktemp("broker") / "data")
    try:
        yield own.start()
    finally:
        own.close()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for the tests of a module, which look at all that it has, or into its folder."""
    made = Broker(tmp_path_factory.mktemp("own") / "data")
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture(scope="module")
def client(own: Broker) -> Iterator[pulsar.Client]:
    """Of that one."""
    made = pulsar.Client(own.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """start_broker(*options): a broker of the test's own on an empty folder, to stop, kill and start again."""
    if _running_broker() is not None:
        pytest.skip("needs a broker of its own, and was told to use one that runs already")
    started: list[Broker] = []

    def start(*options: str) -> Broker:
        started.append(Broker(tmp_path / f"data-{len(started)}", *options))
        return started[-1].start()

    yield start
    for own in started:
        own.close()


@pytest.fixture
def fresh_broker(start_broker: Callable[..., Broker]) -> Broker:
    return start_broker()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """One SparkSession for all tests that want one: a Spark takes seconds to start, and a process has one at a time."""
    engines = importlib.import_module("geminga.storage.jobs.engines")
    try:
        engine = engines.Spark(tmp_path_factory.mktemp("spark") / "scratch", "local[2]", "512m")
    except engines.NoSpark as error:
        pytest.skip(str(error))
    engine.session.conf.set("spark.sql.shuffle.partitions", "4")
    yield engine.session
    engine.close()


@pytest.fixture
def seed():
    """Printed with a failure; GEMINGA_TEST_SEED replays it."""
    found = int(os.environ.get("GEMINGA_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"GEMINGA_TEST_SEED={found}")
    return found
