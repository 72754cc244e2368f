"""What the Go client is promised, shown by a program of its own in go/: it publishes, consumes, and verifies what it
received.

The program is built once per state of its sources, into $XDG_CACHE_HOME/geminga-tests (or ~/.cache/geminga-tests).
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..harness import HANG_SECONDS, partitioned_topic, unique_topic
from .java import cache_dir

pytestmark = pytest.mark.go

SOURCES = Path(__file__).parent / "go"
BUILD_SECONDS = 600
# Neither a C compiler nor another Go than the one that is installed.  The compiler works without optimising, and looks
# seldom for garbage: the first build of a machine compiles Go's library too, which takes 54 s of the processor so, and
# 93 s otherwise.  All builds have the same flags, so that they share what is compiled.
SETTINGS = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOGC": "400"}
BUILD = "go", "build", "-buildvcs=false", "-gcflags=all=-N -l", "-ldflags=-s -w"
RUN_SECONDS = HANG_SECONDS

Run = Callable[..., str]


def build() -> Path:
    """Build the Go program and return its path; skip the test if it cannot be built."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    state = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
    program = cache_dir() / f"goclient-{hashlib.sha256(state).hexdigest()[:12]}"
    if program.exists():
        return program
    cache_dir().mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **SETTINGS, "GOFLAGS": "-mod=readonly"}
    try:
        fetched = subprocess.run(
            ["go", "list", "-deps", "."], cwd=SOURCES, env=environment, capture_output=True, text=True,
            timeout=BUILD_SECONDS
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"Go's modules were not fetched within {BUILD_SECONDS} s")
    if fetched.returncode != 0:
        pytest.skip(f"Go's modules could not be fetched: {fetched.stderr[-500:]}")
    scratch = program.with_name(f"{program.name}.{os.getpid()}")
    command = [*BUILD, "-o", str(scratch), "."]
    built = subprocess.run(command, cwd=SOURCES, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert built.returncode == 0, built.stderr
    scratch.rename(program)
    return program


@pytest.fixture(scope="module")
def go(broker) -> Run:
    """A function go(topic, *flags) that runs the Go program and returns its output; a failure fails the test."""
    program = build()

    def run(topic: str, *flags: str, url: str = broker.service_url, said: str = "") -> str:
        done = subprocess.run([program, "-url", url, "-topic", topic, *flags], capture_output=True, text=True,
                              timeout=RUN_SECONDS, input=said)
        assert done.returncode == 0, f"{flags}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    return run


def topic_of(broker, partitions: int) -> str:
    return partitioned_topic(broker.http_url, partitions) if partitions else unique_topic("go")


plain_and_partitioned = pytest.mark.parametrize("partitions", [0, 3], ids=["plain", "partitioned"])


@plain_and_partitioned
@pytest.mark.parametrize("batching", ["-batching=false", "-batching"], ids=["single", "batched"])
@pytest.mark.parametrize("compression", ["none", "lz4", "zlib", "zstd", "snappy"])
def test_go_receives_what_go_published(broker, go, compression, batching, partitions):
    """Go's client receives messages unchanged, once, in order, with keys and properties, and none again after the
    ack.
    """
    go(topic_of(broker, partitions), "-messages", "200", "-size", "1000", "-compression", compression, batching,
       "-keys")


@plain_and_partitioned
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_go_receives_what_go_cut_into_chunks(broker, go, compression, partitions):
    go(topic_of(broker, partitions), "-messages", "3", "-size", str(12 * 1024 * 1024), "-compression", compression,
       "-chunking")


def test_a_cumulative_acknowledgement_covers_everything(go):
    go(unique_topic("go"), "-messages", "500", "-batching", "-cumulative")


def test_many_messages_in_flight_arrive_in_order(broker, go):
    go(topic_of(broker, 3), "-messages", "20000", "-batching", "-keys")


def test_lookup_over_http_finds_a_partitioned_topic(broker, go):
    go(topic_of(broker, 3), "-messages", "30", url=broker.http_url)
