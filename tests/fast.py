"""The fast tests: those that take next to no time, of every package, in under a minute on two cores.

`--fast` leaves out what is marked slow, and whoever needs more than the one shared broker is slow without a mark.  The marks cannot rot: in
a fast run a test that takes more of the processor than CPU_MAX fails, and so does the run when all of them take more than CPU_SUM.  CPU
seconds are counted, as they hardly depend on what else the machine does.
"""
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
WHOLE = [HERE / name for name in ("clients", "crash")]              # tests of whole brokers by their clients, and of their death
FIXTURES = {"own", "start_broker", "fresh_broker", "spark"}         # each starts a process that takes a second or more
MARKS = ("slow", "java", "spark", "go")
CPU_MAX = 2.0            # seconds; tests that take a tenth of it are marked slow, the rest is for a busy machine
CPU_SUM = 90.0           # seconds; 62 were measured on a busy machine, whose CPU seconds do less


def is_slow(item: pytest.Item) -> bool:
    return (any(item.get_closest_marker(name) for name in MARKS) or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
            or any(folder in item.path.parents for folder in WHOLE))


def configure(config: pytest.Config) -> None:
    if config.option.fast:
        config.pluginmanager.register(Budget())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.fast and collection_path in WHOLE else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.fast:
        left_out = [item for item in items if is_slow(item)]
        items[:] = [item for item in items if not is_slow(item)]
        config.hook.pytest_deselected(items=left_out)


def cpu_seconds() -> float:
    """User and system time of this process and of the children that have ended."""
    return sum(os.times()[:4])


class Budget:
    """Holds a fast run, and each test of it with what it sets up, to its share of the processor."""

    def __init__(self) -> None:
        self._before = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self._before = cpu_seconds()
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        yield
        took = cpu_seconds() - self._before
        if took > CPU_MAX and nextitem is not None:      # the last one ends the broker that all share
            text = f"took {took:.1f} s of the processor, more than {CPU_MAX} s: make it faster, or mark it slow"
            pytest.fail(text, pytrace=False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if cpu_seconds() > CPU_SUM and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"{cpu_seconds():.1f} s of the processor, of at most {CPU_SUM:.0f}")
