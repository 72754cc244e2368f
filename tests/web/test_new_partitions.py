"""Partitions that a topic gets while its producers and consumers are open: they join at the next look.

Sessions run in the test's own process, as clients of a real broker, so that the time between looks can be short.
"""
import asyncio
import base64
import json
from contextlib import asynccontextmanager

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.lease import Lease
from geminga.storage.runtime.unix_sockets import CLIENTS
from geminga.workers.http_messages.calls import RECEIVE, Call
from geminga.workers.http_messages.receiver import Receiver
from geminga.workers.identity.authentication import NOT_ASKED
from geminga.workers.web import session, worker_links
from geminga.workers.web.consumer import Consumer
from geminga.workers.web.handovers import CONSUMER, PRODUCER, READER, Handover
from geminga.workers.web.parameters import consuming, message_id_of, producing, reading
from geminga.workers.web.producer import Producer
from geminga.workers.web.worker_links import WorkerLink, WorkerLinks

from ..harness import HANG_SECONDS, eventually, partitioned_topic, partitions_url, path_of, request
from .rest import Rest

BROADLY = {"messageRoutingMode": "RoundRobinPartition"}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(session, "PARTITIONS_S", 0.05, raising=False)


@pytest.fixture(scope="module")
def rest(own):
    return Rest(own.http_url)


@pytest.fixture
def topic(own):
    return partitioned_topic(own.http_url, 1)


class Client:
    """A WebSocket's client: what it has got, and why it was closed."""

    is_writable = True

    def __init__(self):
        self.texts, self.end = asyncio.Queue(), None

    @property
    def is_closed(self):
        return self.end is not None

    def send(self, texts):
        for text in texts:
            self.texts.put_nowait(json.loads(text))

    def close(self, code=0, reason=""):
        self.end = code, reason

    def pause_reading(self):
        """A test sends little."""

    resume_reading = pause_reading

    async def get(self):
        async with asyncio.timeout(HANG_SECONDS):
            return await self.texts.get()


def handover_of(kind, *topics):
    return Handover(kind, topics, "", "s" if kind == CONSUMER else "", (), "", NOT_ASKED, "", b"")


@asynccontextmanager
async def opened(own, make, *topics, kind=CONSUMER, links=None, **parameters):
    """Yield an open session and its client.  links: its connections, which others may share."""
    client = Client()
    read = {CONSUMER: consuming, PRODUCER: producing, READER: reading}[kind]
    links = links or WorkerLinks(own.data_dir / CLIENTS, Lease())
    made = make(handover_of(kind, *topics), links, client, read(parameters))
    await made.open()
    try:
        yield made, client
    finally:
        made.closed()


def enlarge(own, topic, partitions):
    status, text = request("POST", partitions_url(own.http_url, topic), str(partitions).encode())
    assert status == 204, (status, text)


def publish(rest, topic, partition, *payloads):
    status, answer = rest.produce(topic, [{"payload": payload} for payload in payloads], f"/partitions/{partition}")
    assert status == 200 and not any(one["errorCode"] for one in answer["messagePublishResults"]), answer


async def messages(client, count):
    """Return [(partition, payload)] of the next messages, and the last one's id."""
    came = []
    for _ in range(count):
        message = await client.get()
        came.append((message_id_of(message["messageId"]).partition, base64.b64decode(message["payload"]).decode()))
    return came, message["messageId"]


async def published_to(producer, client, partitions):
    """Publish until messages went to all these partitions."""
    used = set()
    async with asyncio.timeout(HANG_SECONDS):
        while used != partitions:
            producer.texts([json.dumps({"payload": base64.b64encode(b"x").decode()})])
            answer = await client.get()
            assert answer["result"] == "ok", answer
            used.add(message_id_of(answer["messageId"]).partition)


def backlog(rest, topic):
    stats = rest.ask("GET", f"/admin/v2/{path_of(topic)}/stats")[1]
    return stats["subscriptions"]["s"]["msgBacklog"]


@pytest.mark.parametrize(("kind", "parameters"), [
    (CONSUMER, {}), (CONSUMER, {"subscriptionMode": "NonDurable", "subscriptionType": "Shared"}),
    (READER, {"messageId": "latest"})])
def test_a_consumer_gets_new_partitions_from_their_first_message(own, rest, topic, kind, parameters):
    """So nothing is missed that was published before the look; order and acknowledgements are as everywhere."""
    async def run():
        async with opened(own, Consumer, topic, kind=kind, **parameters) as (_, client):
            await asyncio.to_thread(enlarge, own, topic, 3)
            await asyncio.to_thread(publish, rest, topic, 2, "a", "b", "c")
            came, last = await messages(client, 3)
            assert came == [(2, "a"), (2, "b"), (2, "c")]
            return last
    asyncio.run(run())


def test_messages_of_new_partitions_are_acknowledged_and_need_permits(own, rest, topic):
    async def run():
        async with opened(own, Consumer, topic, pullMode="true") as (consumer, client):
            await asyncio.to_thread(enlarge, own, topic, 2)
            await asyncio.to_thread(publish, rest, topic, 1, "a", "b")
            consumer.texts([json.dumps({"type": "permit", "permitMessages": 1})])
            came, last = await messages(client, 1)
            assert came == [(1, "a")] and client.texts.empty()
            consumer.texts([json.dumps({"type": "acknowledgeCumulative", "messageId": last})])
            await asyncio.to_thread(eventually, lambda: backlog(rest, f"{topic}-partition-1") == 1)
            consumer.texts([json.dumps({"type": "permit", "permitMessages": 5})])
            assert (await messages(client, 1))[0] == [(1, "b")]
    asyncio.run(run())


def test_a_partition_that_is_refused_keeps_nothing_else_from_its_messages(own, rest, topic, monkeypatch):
    """It is tried again, and the session goes on meanwhile."""
    tried, ask = [], WorkerLink.ask

    async def refusing(self, question):
        if getattr(question, "topic", "").endswith("-partition-1") and hasattr(question, "subscription"):
            tried.append(question)
            question.subscription = "" if len(tried) < 3 else question.subscription      # which the worker refuses
        return await ask(self, question)

    async def run():
        monkeypatch.setattr(WorkerLink, "ask", refusing)
        async with opened(own, Consumer, topic) as (_, client):
            await asyncio.to_thread(enlarge, own, topic, 3)
            await asyncio.to_thread(publish, rest, topic, 2, "two")
            await asyncio.to_thread(publish, rest, topic, 0, "nought")
            assert sorted((await messages(client, 2))[0]) == [(0, "nought"), (2, "two")]
            await asyncio.to_thread(publish, rest, topic, 1, "one")
            assert (await messages(client, 1))[0] == [(1, "one")] and len(tried) == 3 and client.end is None
    asyncio.run(run())


def test_new_partitions_that_are_met_when_a_session_is_opened_again_start_at_their_first_message(own, rest, topic,
                                                                                                monkeypatch):
    """A reader of `latest` would miss what was published to them before."""
    async def run():
        monkeypatch.setattr(session, "PARTITIONS_S", HANG_SECONDS)
        async with opened(own, Consumer, topic, kind=READER, messageId="latest") as (consumer, client):
            await asyncio.to_thread(enlarge, own, topic, 2)
            await asyncio.to_thread(publish, rest, topic, 1, "early")
            consumer.lost("a test says so")
            assert (await messages(client, 1))[0] == [(1, "early")]
    asyncio.run(run())


def test_a_client_that_has_unsubscribed_gets_no_new_partitions(own, topic):
    async def run():
        async with opened(own, Consumer, topic) as (consumer, client):
            await consumer._unsubscribe()
            await asyncio.to_thread(enlarge, own, topic, 2)
            await consumer.look_for_partitions()
            assert not consumer._subscribing.topics and client.end is None
    asyncio.run(run())


@pytest.mark.parametrize("is_open", [False, True], ids=["handshake", "look"])
def test_a_client_that_goes_while_it_subscribes_leaves_the_subscription_free(own, topic, monkeypatch, is_open):
    """Also on a connection that goes on because other sessions share it."""
    monkeypatch.setattr(worker_links, "_OWN_PART", 1 << 30)      # so that all connections are shared
    partition, ask = f"{topic}-partition-{int(is_open)}", WorkerLink.ask

    async def run():
        asked, links = asyncio.Event(), WorkerLinks(own.data_dir / CLIENTS, Lease())

        async def noting(self, question):
            if isinstance(question, api.CommandSubscribe) and question.topic == partition:
                asked.set()
            return await ask(self, question)

        async with opened(own, Consumer, f"{topic}-other", links=links):
            monkeypatch.setattr(WorkerLink, "ask", noting)
            consumer = Consumer(handover_of(CONSUMER, topic), links, Client(), consuming({}))
            opening = asyncio.create_task(consumer.open())
            if is_open:
                await opening
                await asyncio.to_thread(enlarge, own, topic, 2)
            async with asyncio.timeout(HANG_SECONDS):
                await asked.wait()
            opening.cancel()
            consumer.closed()
            async with opened(own, Consumer, topic, links=links) as (_, client):
                assert client.end is None
    asyncio.run(run())


def test_a_producer_publishes_to_new_partitions(own, rest, topic):
    async def run():
        async with opened(own, Producer, topic, kind=PRODUCER, **BROADLY) as (producer, client):
            await asyncio.to_thread(enlarge, own, topic, 3)
            await published_to(producer, client, {0, 1, 2})
    asyncio.run(run())


def test_a_producer_tries_a_partition_that_is_refused_again_and_goes_on_meanwhile(own, topic, monkeypatch):
    tried, ask = [], WorkerLink.ask

    async def refusing(self, question):
        if isinstance(question, api.CommandProducer) and question.topic.endswith("-partition-1"):
            tried.append(question)
            if len(tried) < 3:
                question.topic += "/no/topic"      # which the worker refuses
        return await ask(self, question)

    async def run():
        monkeypatch.setattr(WorkerLink, "ask", refusing)
        async with opened(own, Producer, topic, kind=PRODUCER, **BROADLY) as (producer, client):
            await asyncio.to_thread(enlarge, own, topic, 2)
            await published_to(producer, client, {0, 1})
            assert len(tried) == 3 and client.end is None
    asyncio.run(run())


def test_a_consumer_over_plain_http_gets_new_partitions_while_calls_wait(own, rest, topic):
    async def run():
        call = Call(RECEIVE, topic, -1, "s", (), NOT_ASKED, is_stream=False, last_event="")
        links = WorkerLinks(own.data_dir / CLIENTS, Lease())
        receiver = Receiver(call, consuming({"subscriptionType": "Shared"}), links)
        await receiver.open()
        waiting = asyncio.create_task(receiver.take(10, HANG_SECONDS))
        await asyncio.to_thread(enlarge, own, topic, 2)
        await asyncio.to_thread(publish, rest, topic, 1, "a")
        [one] = await waiting
        assert one.message.partition == 1 and one.message.payload == b"a"
        await receiver.acknowledge([one.id], None)
        assert await asyncio.to_thread(backlog, rest, f"{topic}-partition-1") == 0
        receiver.closed()
    asyncio.run(run())
