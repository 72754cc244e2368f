"""Programs for the client of Pulsar 5, with that client as it is, on topics with and without partitions.

One Java program has all scenarios (java_sources/V5.java), and runs once.  Apache Pulsar 5.0.1 fails those with stream
consumers, which it does not take on such topics, and those with transactions, after which such a topic delivers
nothing.  The last one is about topics that only Pulsar has.
"""
import json
from pathlib import Path

import pytest

from ..conftest import RunningBroker
from ..harness import Broker, eventually, partitions_url, request, unique_topic
from .java import JavaTools, fetch_v5_jars

pytestmark = [pytest.mark.slow, pytest.mark.java]

PROGRAM = Path(__file__).parent / "java_sources" / "V5.java"
OWN_OPTIONS = "--owners", "2", "--workers", "2"
SCENARIOS = ["plain", "keys", "exclusive", "negative", "dead", "dlq", "checkpoint", "stream", "streams", "surplus",
             "grown", "transactions", "transacted", "scalable", "namespace"]
PARTITIONED = ["keys", "checkpoint", "stream", "streams", "grown", "transactions", "transacted"]
CLOSE_MS = 8_000        # two consumers and producers opened and closed; the client itself waits 10 s where it waits


@pytest.fixture(scope="module")
def prefix() -> str:
    return unique_topic("v5").rpartition("/")[2]


@pytest.fixture(scope="module")
def used(broker, request) -> Broker | RunningBroker:
    """A broker of two owners and two workers, or the one that runs already."""
    return request.getfixturevalue("own") if isinstance(broker, Broker) else broker


@pytest.fixture(scope="module")
def said(used, prefix, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the program printed: the name of each scenario -> "ok", or how it failed; "closing" -> its milliseconds."""
    jars = fetch_v5_jars()
    for name in PARTITIONED:
        url = partitions_url(used.http_url, f"persistent://public/default/{prefix}-{name}")
        assert request("PUT", url, b"3")[0] == 204
    java = JavaTools(jars, tmp_path_factory.mktemp("java"), used.service_url, used.http_url)
    lines = [line.split(" ", 2) for line in java.program(PROGRAM, used.http_url, prefix).splitlines()]
    return {name: "ok" if verdict == "ok" else "".join(why).replace("\\n", "\n") for verdict, name, *why in lines}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_program_for_pulsar_5(said, name):
    assert said[name] == "ok"


def test_nothing_waits_at_the_end(said):
    assert int(said["closing"]) < CLOSE_MS


@pytest.mark.parametrize(("name", "subscription"), [
    ("plain", "sub"), ("keys", "sub"), ("negative", "sub"), ("dead", "sub"), ("stream", "sub"), ("streams", "sub"),
    ("surplus", "sub"), ("grown", "sub"), ("transactions", "sub"), ("transacted", "sub"), ("transacted", "cumulative")])
def test_everything_was_acknowledged(said, used, prefix, name, subscription):
    assert said[name] == "ok"
    kind = "partitioned-stats" if name in PARTITIONED else "stats"
    url = f"{used.http_url}/admin/v2/persistent/public/default/{prefix}-{name}/{kind}"
    eventually(lambda: json.loads(request("GET", url)[1])["subscriptions"][subscription]["msgBacklog"] == 0)
