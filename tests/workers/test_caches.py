"""Memory of names that clients use is bounded, however many and long the names are."""
import tracemalloc
from collections.abc import Callable

import pytest

from geminga.proto import names
from geminga.proto.commands import CONSUME
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.routing import owner_of
from geminga.workers.addresses import Addresses
from geminga.workers.directory import patterns
from geminga.workers.directory.directory import Directory
from geminga.workers.directory.patterns import ForeignPattern, Pattern, pattern
from geminga.workers.identity.authentication import Identity
from geminga.workers.identity.authorization import Authorization
from geminga.workers.identity.options import AuthorizationOptions

GROWTH_MAX = 1 << 20          # bytes; without bounds it would be several megabytes


@pytest.fixture
def catalogue(tmp_path):
    made = open_catalogue(tmp_path / "catalogue.sqlite")
    yield made
    made.close()


def growth(work: Callable[[], None]) -> int:
    """Return the bytes that stay allocated after the work."""
    work()      # the first call loads what is loaded only once
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def long_names(count: int = 500) -> list[str]:
    long_names.calls = getattr(long_names, "calls", 0) + 1
    return [f"persistent://public/default/{long_names.calls}-{number}-{'x' * 4_000}" for number in range(count)]


def test_names_of_topics():
    assert growth(lambda: [names.parse(name) for name in long_names()] and None) < GROWTH_MAX
    assert names.parse("orders") is names.parse("orders")


def test_owners_of_partitions():
    assert growth(lambda: [owner_of(name, 2) for name in long_names()] and None) < GROWTH_MAX
    assert len({owner_of(name, 2) for name in long_names()}) == 2


def test_topics_and_namespaces_of_the_directory(catalogue):
    directory = Directory(catalogue, Addresses("pulsar://localhost", ""), StorageOptions(), 1)

    def work() -> None:
        for number, name in enumerate(long_names()):
            assert directory.partitions(name) == 0
            assert not directory.has_namespace(f"public/{number}-{'n' * 4_000}")

    assert growth(work) < GROWTH_MAX


@pytest.mark.slow
def test_namespaces_that_are_not_there_do_not_add_up(catalogue):
    """The bound counts names of namespaces, not only names of topics."""
    directory = Directory(catalogue, Addresses("pulsar://localhost", ""), StorageOptions(), 1)
    directory.topics_version()
    for number in range(40_000):
        directory.has_namespace(f"public/n{number}")
    directory.topics_version()
    assert len(directory._namespaces) < 20_000


def test_decisions(catalogue):
    authorization = Authorization(AuthorizationOptions(enabled=True), catalogue)
    topic = names.parse("orders")

    def work() -> None:
        for number, name in enumerate(long_names()):
            assert not authorization.allows(Identity("joe"), CONSUME, topic, name)
            assert not authorization.allows(Identity(f"{number}{name}"), CONSUME, topic)
            assert not authorization.allows(Identity("joe"), CONSUME, names.parse(name))

    assert growth(work) < GROWTH_MAX
    assert authorization.decide(Identity("joe"), CONSUME, topic) is authorization.decide(
        Identity("joe"), CONSUME, topic
    )


@pytest.fixture
def nothing_compiled():
    pattern.cache_clear()
    yield
    pattern.cache_clear()


def test_patterns_in_use_are_bounded(nothing_compiled):
    """Above the bound a client evaluates its pattern itself; patterns that no client uses any more make room."""
    held = [pattern(f"a{number}.*") for number in range(patterns.PATTERNS_MAX)]
    with pytest.raises(ForeignPattern):
        pattern("b.*")
    del held[-1]
    assert pattern("b.*").choose(["persistent://b1"]) == ["persistent://b1"]
    assert len(held) + 1 == patterns.PATTERNS_MAX


@pytest.mark.parametrize("text", [
    "(a", "[", "a**\n\x1b[2Jgeminga: all is well", "(?!a)\nFAKE", "(?P<x>", "\\pQ", "x{1001}",
    "(((a{1,1000}){1,1000}))"])
def test_what_is_refused_is_printed_nowhere(text, capfd):
    """RE2 would print a refused pattern as it came: lines that look like the broker's, and escapes for terminals."""
    with pytest.raises((patterns.BrokenPattern, ForeignPattern)):
        Pattern(text)
    assert capfd.readouterr() == ("", "")
