"""The fast tests: tests of every package that take next to no time, together less than a minute on two cores; and the
nightly ones, which take minutes each and are left out unless they are asked for.

`--fast` leaves out tests that are marked slow.  A test that needs more than the one shared broker is slow without a
mark.

A test that is marked nightly does for minutes what a test of every run does in short, such as a hundred kills instead
of twenty.  `--nightly` runs these tests and no others.

A fast run ends with the names of tests that took more than CPU_MAX seconds of the processor, so that somebody marks
them slow.  The run does not fail for such tests, because machines differ in how much a second of the processor does.

`bootstrap.py test --fast` has pytest-xdist run one process per core.  Each of these processes sends what it counted to
the process that started it, which prints the summary.
"""
import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
# folders whose tests talk to whole brokers as clients do, or kill them
WHOLE = [HERE / name for name in ("clients", "crash")]
FIXTURES = {"own", "start_broker", "fresh_broker", "spark",         # each starts processes that take a second or more
            "filled_broker", "guarded", "package", "replicating", "several", "sites", "two"}
MARKS = ("slow", "java", "spark", "go")
SLOW_FILE = re.compile(rf"^pytestmark = \[?pytest\.mark\.({'|'.join(MARKS)})\b", re.MULTILINE)
CPU_MAX = 2.0            # seconds; tests that take a tenth of it are marked slow, the rest is for a busy machine
MODULES = pytest.StashKey[set[ModuleType]]()      # those with fast tests, also with such as an option leaves out
SLOW_TESTS = "slow_tests"      # the key of a process's list in what xdist takes from that process


def is_slow(item: pytest.Item) -> bool:
    return (any(item.get_closest_marker(name) for name in MARKS)
            or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
            or any(folder in item.path.parents for folder in WHOLE))


def is_started_by_xdist(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def configure(config: pytest.Config) -> None:
    if config.option.fast:
        config.pluginmanager.register(Budget())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders and files of slow tests only: importing them, and rewriting their assertions, takes seconds."""
    return True if config.option.fast and (collection_path in WHOLE or _is_slow_file(collection_path)) else None


def _is_slow_file(path: Path) -> bool:
    return path.suffix == ".py" and SLOW_FILE.search(path.read_text()) is not None


def is_wanted(item: pytest.Item, config: pytest.Config) -> bool:
    is_nightly = item.get_closest_marker("nightly") is not None
    return is_nightly if config.option.nightly else not (is_nightly or (config.option.fast and is_slow(item)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[MODULES] = {item.module for item in items if isinstance(item, pytest.Function) and not is_slow(item)}
    if left_out := [item for item in items if not is_wanted(item, config)]:
        items[:] = [item for item in items if is_wanted(item, config)]
        config.hook.pytest_deselected(items=left_out)


def cpu_seconds() -> float:
    """Return the user and system time of this process and of its children that have ended."""
    return sum(os.times()[:4])


class Budget:
    """Counts the processor's seconds of a fast run, and of each test together with the fixtures it sets up."""

    def __init__(self) -> None:
        self._before = 0.0
        self._slow: list[tuple[float, str]] = []

    def pytest_collection_finish(self) -> None:
        """Keep the collector from walking through thousands of collected tests again and again."""
        gc.collect()
        gc.freeze()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self._before = cpu_seconds()
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        yield
        took = cpu_seconds() - self._before
        if took > CPU_MAX and nextitem is not None:      # the last test also pays for ending the broker that all share
            self._slow.append((took, item.nodeid))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if is_started_by_xdist(session.config):
            session.config.workeroutput[SLOW_TESTS] = self._slow

    @pytest.hookimpl(optionalhook=True)      # a hook of xdist, which only fast runs load
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take over the list of a process that has ended; a process that crashed has sent none."""
        self._slow += map(tuple, getattr(node, "workeroutput", {}).get(SLOW_TESTS, ()))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for took, name in sorted(self._slow, reverse=True):
            terminalreporter.write_line(f"{took:.1f} s of the processor: make it faster, or mark it slow: {name}")
        terminalreporter.write_line(f"{cpu_seconds():.1f} s of the processor in all")
