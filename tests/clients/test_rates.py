"""Rates as real clients meet them: who publishes too much waits, and loses nothing; counts over time are in
tests/storage/test_rates.py.
"""
import functools
import json
from concurrent.futures import Future
from pathlib import Path

import pulsar
import pytest

from ..harness import HANG_SECONDS, eventually, request, unique_topic
from .test_administration import topic_url
from .test_python_client import assert_silent, bodies_of, data_of, earliest, publish, receive

ONE_A_SECOND = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}


@pytest.fixture
def topic():
    return unique_topic("rates")


def sets(broker, topic, policy, value):
    body = None if value is None else json.dumps(value).encode()
    assert request("DELETE" if value is None else "POST", topic_url(broker, topic, policy), body)[0] == 204


def send_all(producer, bodies):
    """Send messages, and return the futures of their receipts."""
    receipts = [Future() for _ in bodies]
    for body, receipt in zip(bodies, receipts, strict=True):
        producer.send_async(body, functools.partial(lambda receipt, result, _: receipt.set_result(result), receipt))
    return receipts


def causes(broker, topic):
    return json.loads(request("GET", f"{broker.http_url}/ops/v1/why/{topic.replace('://', '/')}/sub")[1])[0]["causes"]


def shown(broker, topic):
    return json.loads(request("GET", topic_url(broker, topic, "stats"))[1])


def test_who_publishes_too_much_waits_and_loses_nothing(broker, client, topic):
    """A producer above its rate is throttled and loses nothing; producers of other topics are not affected."""
    consumer, producer, bodies = (
        earliest(client, topic),
        client.create_producer(topic, batching_enabled=False),
        bodies_of(300),
    )
    sets(broker, topic, "publishRate", ONE_A_SECOND)
    receipts = send_all(producer, bodies)
    found = eventually(lambda: [cause for cause in causes(broker, topic) if cause["cause"] == "publish rate"])
    assert [cause["rule"] for cause in found] == [f"publishRate of topic {topic}: 1 messages in a second"]
    other_client = pulsar.Client(broker.service_url)
    try:
        publish(other_client.create_producer(unique_topic("quick")), bodies)
    finally:
        other_client.close()
    assert not receipts[-1].done()
    assert shown(broker, topic)["publishRateLimitedTimes"] > 0
    sets(broker, topic, "publishRate", None)
    assert {receipt.result(timeout=HANG_SECONDS) for receipt in receipts} == {pulsar.Result.Ok}
    assert data_of(receive(consumer, len(bodies))) == bodies


def test_a_client_that_is_not_read_from_is_not_taken_for_dead(start_broker, tmp_path: Path, topic):
    """A throttled client is not disconnected although its PONGs are not read."""
    (tmp_path / "geminga.toml").write_text("[network]\nkeep_alive_interval_ms = 200\n")
    broker = start_broker("--config", str(tmp_path / "geminga.toml"))
    client = pulsar.Client(broker.service_url)
    try:
        producer = client.create_producer(topic, batching_enabled=False)
        sets(broker, topic, "publishRate", ONE_A_SECOND | {"publishThrottlingRateInMsg": 4})
        [before] = shown(broker, topic)["publishers"]
        receipts = send_all(producer, bodies_of(100))
        # for five times as long as a PING may go unanswered
        assert receipts[7].result(timeout=HANG_SECONDS) == pulsar.Result.Ok
        assert [publisher["address"] for publisher in shown(broker, topic)["publishers"]] == [before["address"]]
        sets(broker, topic, "publishRate", None)
        assert {receipt.result(timeout=HANG_SECONDS) for receipt in receipts} == {pulsar.Result.Ok}
    finally:
        client.close()


def test_a_client_that_is_not_read_from_keeps_its_producers_name(broker, client, topic):
    """A throttled client keeps its producer's name when another client wants it, because its sign of life is read."""
    producer = client.create_producer(topic, producer_name="mine", batching_enabled=False)
    sets(broker, topic, "publishRate", ONE_A_SECOND)
    receipts = send_all(producer, bodies_of(100))
    [before] = shown(broker, topic)["publishers"]
    other_client = pulsar.Client(broker.service_url, operation_timeout_seconds=5)
    try:
        with pytest.raises((pulsar.ProducerBusy, pulsar.Timeout)):
            other_client.create_producer(topic, producer_name="mine")
    finally:
        other_client.close()
    assert [publisher["address"] for publisher in shown(broker, topic)["publishers"]] == [before["address"]]
    sets(broker, topic, "publishRate", None)
    assert {receipt.result(timeout=HANG_SECONDS) for receipt in receipts} == {pulsar.Result.Ok}


def test_a_producer_that_is_closed_while_it_waits_loses_nothing(broker, client, topic):
    producer, bodies = client.create_producer(topic, batching_enabled=False), bodies_of(100)
    sets(broker, topic, "publishRate", ONE_A_SECOND)
    receipts = send_all(producer, bodies)
    receipts[0].result(timeout=HANG_SECONDS)
    sets(broker, topic, "publishRate", None)
    producer.flush()
    producer.close()
    assert data_of(receive(earliest(client, topic), len(bodies))) == bodies


@pytest.mark.parametrize("path", ["dispatchRate", "subscriptionDispatchRate", "sub/dispatchRate"])
def test_a_consumer_gets_what_the_rate_allows_and_all_when_it_goes(broker, client, topic, path):
    bodies = bodies_of(50)
    rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "relativeToPublishRate": False,
            "ratePeriodInSecond": 600}
    publish(client.create_producer(topic, batching_enabled=False), bodies)
    sets(broker, topic, path, rate)
    assert json.loads(request("GET", topic_url(broker, topic, path))[1]) == rate
    assert json.loads(request("GET", topic_url(broker, topic, path + "?applied=true"))[1]) == rate
    consumer = earliest(client, topic)
    first = receive(consumer, 1)
    assert_silent(consumer)
    policy = "dispatchRate/sub" if path.startswith("sub/") else path
    [cause] = causes(broker, topic)
    assert (cause["cause"], cause["rule"]) == ("dispatch rate", f"{policy} of topic {topic}: 1 messages in 600 seconds")
    sets(broker, topic, path, None)
    assert data_of(first + receive(consumer, len(bodies) - 1)) == bodies


@pytest.mark.parametrize(("policy", "value"), [
    ("publishRate", {"publishThrottlingRateInMsg": 1 << 31}), ("publishRate", {"publishThrottlingRateInByte": []}),
    ("publishRate", 5),
    ("dispatchRate", {"relativeToPublishRate": "x"}), ("subscriptionDispatchRate", {"ratePeriodInSecond": 1.5}),
    ("sub/dispatchRate", {"dispatchThrottlingRateInMsg": {}}), ("sub/dispatchRate", []), ("subscribeRate", "x"),
])
def test_values_that_are_none_are_refused_and_have_no_effect(broker, client, topic, policy, value):
    earliest(client, topic)
    status, text = request("POST", topic_url(broker, topic, policy), json.dumps(value).encode())
    assert (status, list(json.loads(text))) == (400, ["reason"])
    assert request("GET", topic_url(broker, topic, policy))[1] == ""


def test_a_subscription_is_named_in_a_path_as_everywhere_else(broker, client, topic):
    earliest(client, topic)
    rate = {"dispatchThrottlingRateInMsg": 7, "dispatchThrottlingRateInByte": -1, "relativeToPublishRate": False,
            "ratePeriodInSecond": 1}
    sets(broker, topic, "a+b/dispatchRate", rate)
    assert json.loads(request("GET", topic_url(broker, topic, "a%20b/dispatchRate"))[1]) == rate
    assert request("GET", topic_url(broker, topic, "a%2Bb/dispatchRate"))[1] == ""
