"""Fixtures that all tests share: one broker for many tests, brokers that a test may kill, and a check of the checkout.

GEMINGA_TEST_SERVICE_URL and GEMINGA_TEST_HTTP_URL (both or none) name a broker that already runs.  Then the tests of
clients talk to that broker, and tests that need a broker to kill are skipped.  In this way another implementation of
the protocol can be tested.
"""

import importlib
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pulsar
import pytest

from geminga.storage.runtime.log import log

from . import fast, folders, machine
from .fast import pytest_collection_modifyitems, pytest_ignore_collect  # noqa: F401 - hooks
from .folders import pytest_fixture_post_finalizer, pytest_fixture_setup  # noqa: F401 - hooks
from .harness import HANG_SECONDS, Broker

hypothesis.settings.register_profile("without timings", deadline=None)
hypothesis.settings.load_profile("without timings")

REPOSITORY = Path(__file__).resolve().parent.parent
PRIORITY = os.getpriority(os.PRIO_PROCESS, 0)
FOLDER = pytest.StashKey[Path]()      # the folder that was made for this run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true",
                     help="only tests of some milliseconds; all packages are covered in under a minute")
    parser.addoption("--nightly", action="store_true",
                     help="only the long tests, which no other run has, as shorter ones show the same in small")


@pytest.hookimpl(tryfirst=True)      # pytest must see the option basetemp before it chooses its own folder
def pytest_configure(config: pytest.Config) -> None:
    _refuse_another_checkout()
    _keep_compiled_files()
    _heed_interrupts()
    os.environ["XDG_CONFIG_HOME"] = os.devnull      # contexts of the developer are no matter of the tests
    # Spark runs for seconds in a test.  Optimising its code for hours takes a third of its time on the processor.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    fast.configure(config)
    folders.configure()
    if fast.is_started_by_xdist(config):
        # xdist would choose a folder inside that of the process that started this one.  A folder beside it keeps the
        # paths of sockets short.
        config.option.basetemp = Path(config.option.basetemp).parent.parent / config.workerinput["workerid"]
    elif config.option.basetemp is None:
        place = machine.place_for_tests(machine.SPACE_OF_FAST if config.option.fast else machine.SPACE)
        made = Path(tempfile.mkdtemp(prefix="geminga-tests-", dir=place))
        made.chmod(0o711)      # some tests look at their folders as another user
        os.environ["TMPDIR"], tempfile.tempdir = str(made), None
        config.option.basetemp = made / "t"      # short: a Unix socket's path has to fit into 107 bytes
        config.stash[FOLDER] = made


def pytest_report_header(config: pytest.Config) -> list[str]:
    place = config.stash.get(FOLDER, Path(config.option.basetemp))
    lines = [f"folder: {place}, {shutil.disk_usage(place.parent).free / machine.GIB:.0f} GiB free; removed unless a "
             "test fails"]
    return lines + ([] if config.option.fast else machine.missing(place.parent))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    if FOLDER in config.stash and exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        terminalreporter.write_line(f"files of failed tests are in {config.stash[FOLDER]}")
        del config.stash[FOLDER]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder, with what programs left in it, unless a test failed."""
    if FOLDER in config.stash:
        shutil.rmtree(config.stash[FOLDER], ignore_errors=True)


def _refuse_another_checkout() -> None:
    """Refuse to run if `geminga` is imported from another clone.

    An editable install points at one clone.  In a second clone pytest would test the code of the first one, and pass.
    """
    try:
        found = importlib.import_module("geminga.proto").__path__[0]
    except ModuleNotFoundError:
        pytest.exit('geminga is not installed here: pip install -e ".[dev]"', returncode=4)
    if Path(found).resolve() != REPOSITORY / "proto":
        pytest.exit(f"geminga is installed from {found}, not from {REPOSITORY}: give each checkout a venv of its own",
                    returncode=4)


def _keep_compiled_files() -> None:
    """Have Python keep what it compiles, even where PYTHONDONTWRITEBYTECODE is set, as in many containers.

    A run of tests starts hundreds of brokers and commands.  Each would compile the same sources again, and pytest would
    rewrite the assertions of all tests at every collection, which takes two thirds of its time.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _heed_interrupts() -> None:
    """Take SIGINT even where a shell without job control, cron or nohup began the tests, and has it ignored.

    Programs that tests start, and interrupt, would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker that was started outside of the tests; no test may kill it."""

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


@pytest.fixture(scope="session", autouse=True)
def priority() -> Iterator[None]:
    """Let no command that a test runs in this process give up the process's priority.

    It could not be had back: all later brokers would inherit it, and hardly run beside other tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("geminga.supervisor.tasks.nights.be_polite", lambda niceness: None)
        patch.setattr(os, "nice", lambda increment: PRIORITY)
        yield
    assert os.sched_getscheduler(0) == os.SCHED_OTHER and os.getpriority(os.PRIO_PROCESS, 0) == PRIORITY


@pytest.fixture(autouse=True)
def _log_of_the_tests() -> Iterator[None]:
    """Give the log back its form after a test that ran `serve` or `nightly failed` in this process.

    Those begin the log of a broker, with the time before each line, and take over Python's logging.
    """
    root, before = logging.getLogger(), vars(log).copy()
    handlers, level = root.handlers[:], root.level
    yield
    if vars(log) != before:
        vars(log).update(before)
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | RunningBroker]:
    """One broker for all tests that leave it as it was: they use topics of their own and kill nothing."""
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
def own(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for the tests of a module, which look at everything the broker has or into its folder.

    A module may have OWN_OPTIONS, the options of `geminga serve` for its broker.  Its folder of some 130 MB is removed
    unless a test of the module fails: those of all modules together fill a file system in memory.
    """
    failed_before = request.session.testsfailed
    made = Broker(tmp_path_factory.mktemp("own") / "data", *getattr(request.module, "OWN_OPTIONS", ()))
    try:
        yield made.start()
    finally:
        made.close()
    if request.session.testsfailed == failed_before:
        shutil.rmtree(made.data_dir, ignore_errors=True)      # children that were killed may end only now


@pytest.fixture(scope="module")
def client(own: Broker) -> Iterator[pulsar.Client]:
    """A client of the module's own broker."""
    made = pulsar.Client(own.service_url, operation_timeout_seconds=HANG_SECONDS,
                         logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
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
    """One SparkSession for all tests that want one.  Starting Spark takes seconds, and a process has one session at a
    time.
    """
    engines = importlib.import_module("geminga.storage.jobs.compacting.engines")
    try:
        engine = engines.Spark(tmp_path_factory.mktemp("spark") / "scratch", "local[2]", "512m")
    except engines.NoSpark as error:
        pytest.skip(str(error))
    sql = importlib.import_module("pyspark.sql")
    yield sql.SparkSession.builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    engine.close()


@pytest.fixture
def seed():
    """A seed for a test that uses chance; it is printed with a failure, and GEMINGA_TEST_SEED replays it."""
    found = int(os.environ.get("GEMINGA_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"GEMINGA_TEST_SEED={found}")
    return found
