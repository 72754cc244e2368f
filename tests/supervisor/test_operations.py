"""What operators look at and set: the log's level, alarms, status."""
import json

import pytest

from geminga.supervisor import main

from ..harness import Broker, eventually, request, unique_topic

LEVEL = "/ops/v1/log-level"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("operations") / "data", "--workers", "2", "--owners", "2")
    broker.start()
    yield broker
    broker.close()


@pytest.fixture
def run(own, capsys):
    """(exit status, what was printed, what was complained about) of a command about that broker."""
    def run(*words):
        status = main.main([*words, "--http-url", own.http_url])
        printed = capsys.readouterr()
        return status, printed.out, printed.err
    return run


def lines(broker, *parts):
    return [line for line in broker.log().splitlines() if all(part in line for part in parts)]


# -- the log ----------------------------------------------------------------------------------------------------------------------

def use(broker, topic):
    """A client that publishes a message and reads it."""
    assert main.main(["publish", "--url", broker.service_url, topic, "hello"]) == 0


def test_debug_of_one_topic_is_told_by_all_processes_and_ends_by_itself(own, run):
    topic, other = unique_topic(), unique_topic()
    status, said, _ = run("log", "level", "debug", "--topic", topic, "--for", "2s")
    assert status == 0 and "info is configured" in said and f"of topic {topic}" in said
    eventually(lambda: (use(own, topic), lines(own, "a producer was made", f"topic={topic} ", "client=127.0.0.1:"))[1], 2)
    use(own, other)
    assert not lines(own, "a producer was made", other)
    eventually(lambda: json.loads(request("GET", own.http_url + LEVEL)[1])["for_now"] == [], 5)
    told = len(lines(own, "a producer was made"))
    use(own, topic)
    assert len(lines(own, "a producer was made")) == told


def test_a_level_of_everything_reaches_workers_and_whoever_is_started_later(own, run):
    assert run("log", "level", "debug")[0] == 0
    eventually(lambda: (use(own, unique_topic()), lines(own, "a connection was opened", "client=127.0.0.1:"))[1], 5)
    before = len(lines(own, "a producer was made"))
    for index in range(2):
        own.wait_replaced("owner", index, own.kill("owner", index), 10)
    topic = unique_topic()
    eventually(lambda: (use(own, topic), lines(own, "a producer was made", topic))[1], 10)
    own.wait_replaced("admin", 0, own.kill("admin"), 10)
    eventually(lambda: "debug for another" in run("log", "level")[1], 10)
    assert run("log", "level", "--reset")[1] == "info is configured\n"
    assert len(lines(own, "a producer was made")) > before


@pytest.mark.parametrize("body", [
    None, [], {}, {"level": "loud"}, {"level": "debug", "topic": 3}, {"level": "debug", "topic": "a/b"}, {"level": "debug", "for": 3},
    *({"level": "debug", "seconds": seconds} for seconds in (0, 1e9, "5m", True))])
def test_a_level_that_is_none_is_refused(own, body):
    status, text = request("PUT", own.http_url + LEVEL, json.dumps(body).encode())
    assert status in (400, 412), (status, text)


def test_what_is_changed_by_administration_is_told_with_its_topic(own):
    topic = unique_topic()
    assert request("PUT", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}")[0] == 204
    assert lines(own, "administration: PUT /admin/v2/persistent/", topic.rpartition("/")[2], "client=127.0.0.1")
