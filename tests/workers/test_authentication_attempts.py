"""Failed attempts to authenticate: how they are counted, logged and slowed down."""
import time

import pytest

from geminga.storage.runtime.counters import make_counters
from geminga.storage.runtime.log import Log
from geminga.workers.identity import attempts
from geminga.workers.identity.attempts import Attempts, address_of
from geminga.workers.identity.authentication import OURSELVES, Identity
from geminga.workers.identity.credentials import NotAuthenticated


class Loop:
    """A clock, with the calls that it was asked to make."""

    def __init__(self):
        self.now, self.due = 1000.0, []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, function) -> None:
        self.due.append((self.now + seconds, function))

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        due, self.due = self.due, []
        for when, function in due:
            if when <= self.now:
                function()
            else:
                self.due.append((when, function))


@pytest.fixture(autouse=True)
def log(monkeypatch):
    """A log that has written nothing yet: a process stops writing lines that come too often, and other tests wrote
    many.
    """
    monkeypatch.setattr(attempts, "log", Log())


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def counters():
    return make_counters(1)[0]


@pytest.fixture
def tried(loop, counters):
    return Attempts(counters, loop)


BAD = NotAuthenticated("INVALID_TOKEN", "not a token")


def test_the_third_failure_waits_and_each_one_longer(tried, loop):
    waits = [tried.failed("10.0.0.1", "token", BAD) for _ in range(12)]
    assert waits[:6] == [0, 0, 0.25, 0.5, 1, 2] and waits[-1] == max(waits) == 8
    assert tried.failed("10.0.0.2", "token", BAD) == 0
    loop.pass_(61)
    assert tried.failed("10.0.0.1", "token", BAD) == 0


def test_an_episode_is_told_when_it_begins_and_when_it_is_over(tried, loop, capfd):
    for _ in range(5):
        tried.failed("10.0.0.1", "token", BAD)
        loop.pass_(10)
    for _ in range(2):
        tried.failed("10.0.0.1", "<script>\n", NotAuthenticated("UNKNOWN_METHOD", "a method that is not configured"))
    assert capfd.readouterr().err == (
        "geminga: authentication failed from 10.0.0.1 by token: not a token\n"
        "geminga: authentication failed from 10.0.0.1 by another method: a method that is not configured\n")
    loop.pass_(61)
    loop.pass_(61)
    assert capfd.readouterr().err == ("geminga: authentication failed 7 times from 10.0.0.1 in 50 s: 5 by token: not a "
                                      "token; "
                                      "2 by another method: a method that is not configured\n")
    assert not loop.due
    tried.failed("10.0.0.1", "token", BAD)
    loop.pass_(61)
    assert capfd.readouterr().err.count("\n") == 1      # one failure is told once


def test_a_thousand_addresses_do_not_fill_the_log(tried, loop, capfd):
    for number in range(1000):
        tried.failed(f"10.0.{number // 256}.{number % 256}", "token", BAD)
    assert capfd.readouterr().err.count("\n") == attempts._LINES_MAX
    loop.pass_(61)
    capfd.readouterr()
    tried.failed("10.1.1.1", "token", BAD)
    assert "from 980 more addresses" in capfd.readouterr().err


def test_invented_causes_do_not_fill_the_log(tried, loop, capfd):
    """Sizes are part of some causes: beyond a few, causes are counted together, and every failure is counted."""
    for size in range(500):
        tried.failed("10.0.0.1", "token", NotAuthenticated("INVALID_TOKEN", f"a token of {size} bytes"))
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == attempts._CAUSES_MAX + 1 and lines[-1].endswith("from 10.0.0.1 for other causes")
    loop.pass_(61)
    summary = capfd.readouterr().err
    assert "500 times from 10.0.0.1" in summary and "1 by token: a token of 7 bytes; 492 for other causes" in summary


def test_addresses_that_are_remembered_are_bounded(tried, monkeypatch):
    monkeypatch.setattr(attempts, "_ADDRESSES_MAX", 10)
    for number in range(50):
        tried.failed(f"10.0.0.{number}", "token", BAD)
    assert len(tried._episodes) == 10
    assert [tried.failed("10.0.0.49", "token", BAD) for _ in range(2)] == [0, 0.25]


@pytest.mark.parametrize("one, other", [
    ("2001:db8::1", "2001:db8::ffff:1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::2"),
    ("local", "local")])
def test_what_counts_as_one_address(one, other):
    assert address_of(one) == address_of(other)
    assert address_of("2001:db8:0:1::1") != address_of("2001:db8:0:2::1") and address_of("10.0.0.1") != address_of(
        "10.0.0.2"
    )


def test_results_are_counted_by_method_and_reason(tried, counters):
    tried.succeeded(Identity("joe", "basic"))
    tried.succeeded(Identity("joe", "token", time.time() + 7 * 60))
    tried.succeeded(Identity("joe", "token", time.time() + 1000 * 60))
    tried.succeeded(Identity("nobody"))
    tried.failed("a", "token", NotAuthenticated("EXPIRED_TOKEN", "it has expired"))
    tried.failed("a", "kerberos", NotAuthenticated("UNKNOWN_METHOD", "a method that is not configured"))
    found = {name: count for name, count in counters.read().items() if count}
    minutes = found.pop("expiring_minutes")
    assert found == {"basic_SUCCESS": 1, "token_SUCCESS": 2, "expiring_10": 1, "expiring_later": 1,
                     "token_EXPIRED_TOKEN": 1, "expired_tokens": 1, "other_UNKNOWN_METHOD": 1}
    assert 1004 <= minutes <= 1007


def test_the_brokers_own_processes_are_not_counted(tried, counters):
    tried.succeeded(OURSELVES)
    assert not any(counters.read().values())


def test_who_goes_on_failing_is_remembered_before_those_who_stopped(tried, monkeypatch):
    monkeypatch.setattr(attempts, "_ADDRESSES_MAX", 10)
    for number in range(9):
        tried.failed("10.0.0.0", "token", BAD)
        tried.failed(f"10.0.1.{number}", "token", BAD)
    for number in range(9):
        assert tried.failed("10.0.0.0", "token", BAD) == 8
        tried.failed(f"10.0.2.{number}", "token", BAD)
    assert tried.failed("10.0.1.0", "token", BAD) == 0


def test_ends_are_told_of_those_whose_beginning_was(tried, loop, capfd):
    for number in range(3 * attempts._LINES_MAX):
        for _ in range(2):
            tried.failed(f"10.0.0.{number}", "token", BAD)
    capfd.readouterr()
    loop.pass_(61)
    assert capfd.readouterr().err.count(" 2 times from 10.0.0.") == attempts._LINES_MAX
