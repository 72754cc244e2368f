"""What the lab asks of the asyncio part of Python's client, or of aiopulsar-py where that is installed.

`Ground.ask` starts it and says how it is told.
"""
import asyncio
import contextlib
import importlib.util
import json
import logging
import sys
import traceback

import pulsar
from pulsar import ConsumerType, InitialPosition
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

WRAPPED = importlib.util.find_spec("aiopulsar") is not None
if WRAPPED:
    import aiopulsar
    PulsarException = pulsar.exceptions.PulsarException
else:
    import pulsar.asyncio as aio
    PulsarException = aio.PulsarException
TOLD = json.loads(sys.argv[-1])
SECONDS = 15         # longest wait for a message that has to come
SILENCE = 0.4        # shortest wait for one that must not
QUIET = logging.getLogger("pulsar")
QUIET.setLevel(logging.CRITICAL)
THINGS = {}


def thing(name):
    def keep(function):
        THINGS[name] = function
        return function
    return keep


async def please(method, path="", body=None):
    print(json.dumps({"please": method, "path": path, "body": body}), flush=True)
    answer = (await asyncio.to_thread(sys.stdin.readline)).strip()
    if answer != "done":
        raise AssertionError("administration: " + answer)


async def client(url=None, **options):
    options = {"operation_timeout_seconds": 20, "logger": QUIET, **options}
    return await aiopulsar.connect(url or TOLD["service"], **options) if WRAPPED else aio.Client(
        url or TOLD["service"], **options)


def numbered(count, prefix="m"):
    return [f"{prefix}{number}".encode() for number in range(count)]


async def publish(c, topic, payloads, **options):
    producer = await c.create_producer(topic, **options)
    if WRAPPED:      # each send takes a thread of its own, which keeps no order
        for payload in payloads:
            await producer.send(payload)
    else:
        await asyncio.gather(*(producer.send(payload) for payload in payloads))
    await producer.close()


PENDING = {}      # of a consumer: the wait for its next message, which this client does not let end early


async def next_of(consumer, seconds):
    """Return the next message, or None if none comes in time."""
    wait = PENDING.pop(consumer, None) or asyncio.ensure_future(consumer.receive())
    if not (await asyncio.wait({wait}, timeout=seconds))[0]:
        PENDING[consumer] = wait
        return None
    return wait.result()


async def receive(consumer, count, acknowledges=True):
    got = []
    for _ in range(count):
        message = await next_of(consumer, SECONDS)
        if message is None:
            raise TimeoutError(f"nothing more after {len(got)}")
        got.append(message)
        if acknowledges:
            await consumer.acknowledge(message)
    return got


async def drain(consumer):
    got = []
    while True:
        message = await next_of(consumer, SILENCE)
        if message is None:
            return got
        await consumer.acknowledge(message)
        got.append(message)


def told(messages, expected):
    data, expected = [message.data() for message in messages], list(expected)
    if data == expected:
        return f"{len(data)} in order"
    if sorted(data) == sorted(expected):
        return f"{len(data)} out of order"
    return f"{len(data)} came, {len(set(expected) - set(data))} missing, {len(data) - len(set(data))} twice"


@thing("exclusive")
async def exclusive(c, topic):
    consumer = await c.subscribe(topic, "s")
    other = await client()
    second = "second admitted"
    try:
        await other.subscribe(topic, "s")
    except PulsarException:
        second = "second refused"
    await other.close()
    await publish(c, topic, numbered(20), batching_enabled=False)
    return f"{told(await receive(consumer, 20), numbered(20))}, {second}"


@thing("failover")
async def failover(c, topic):
    other = await client()
    first = await c.subscribe(topic, "s", consumer_type=ConsumerType.Failover, consumer_name="a")
    second = await other.subscribe(topic, "s", consumer_type=ConsumerType.Failover, consumer_name="b")
    await publish(c, topic, numbered(20), batching_enabled=False)
    got = await receive(first, 10)
    await first.close()
    got += await receive(second, 10)
    await other.close()
    return told(got, numbered(20))


@thing("cumulative acknowledgement")
async def cumulative(c, topic):
    consumer = await c.subscribe(topic, "s")
    await publish(c, topic, numbered(10), batching_enabled=False)
    await consumer.acknowledge_cumulative((await receive(consumer, 10, acknowledges=False))[5])
    await consumer.close()
    again = await c.subscribe(topic, "s")
    return "others come again: " + told(await receive(again, 4) + await drain(again), numbered(10)[6:])


class Ordered(Record):
    name = String()
    count = Integer()


async def with_schema(c, topic, schema):
    consumer = await c.subscribe(topic, "s", schema=schema(Ordered))
    producer = await c.create_producer(topic, schema=schema(Ordered))
    for number in range(3):
        await producer.send(Ordered(name=f"n{number}", count=number))
    values = [message.value() for message in await receive(consumer, 3)]
    return " ".join(f"{value.name}={value.count}" for value in values)


@thing("schema JSON")
async def schema_json(c, topic):
    return await with_schema(c, topic, JsonSchema)


@thing("schema Avro")
async def schema_avro(c, topic):
    return await with_schema(c, topic, AvroSchema)


@thing("seek by id")
async def seek_by_id(c, topic):
    consumer = await c.subscribe(topic, "s")
    await publish(c, topic, numbered(10), batching_enabled=False)
    got = await receive(consumer, 10)
    await consumer.seek(got[4].message_id())
    return "from there: " + told(await receive(consumer, 5), numbered(10)[5:])


@thing("negative acknowledgement")
async def nack(c, topic):
    consumer = await c.subscribe(topic, "s", consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=200)
    if not hasattr(consumer, "negative_acknowledge"):
        return "lacks: no negative_acknowledge"
    await publish(c, topic, [b"again"])
    await consumer.negative_acknowledge((await receive(consumer, 1, acknowledges=False))[0])
    [message] = await receive(consumer, 1)
    return f"{message.data().decode()}, count {message.redelivery_count()}"


@thing("closed in the middle")
async def closed(c, topic):
    consumer = await c.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    await publish(c, topic, numbered(20), batching_enabled=False)
    got = await receive(consumer, 10)
    await receive(consumer, 5, acknowledges=False)
    await c.close()
    other = await client()
    got += await receive(await other.subscribe(topic, "s", consumer_type=ConsumerType.Shared), 10)
    await other.close()
    return told(got, numbered(20))


@thing("broker started again")
async def restarted(c, topic):
    consumer = await c.subscribe(topic, "s")
    producer = await c.create_producer(topic, send_timeout_millis=60_000)
    for payload in numbered(10):
        await producer.send(payload)
    data = [message.data() for message in await receive(consumer, 5)]
    await please("restart")
    for payload in numbered(10, "n"):
        await producer.send(payload)
    until = asyncio.get_running_loop().time() + 2 * SECONDS
    while len(set(data)) < 20 and asyncio.get_running_loop().time() < until:
        data += [message.data() for message in await drain(consumer)]
    order = list(dict.fromkeys(data)) == numbered(10) + numbered(10, "n")
    return f"{len(set(data))} of 20, " + ("in order" if order else "out of order")


@thing("unsubscribe")
async def unsubscribe(c, topic):
    consumer = await c.subscribe(topic, "s")
    await publish(c, topic, numbered(3))
    await consumer.unsubscribe()
    again = await c.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    return told(await receive(again, 3), numbered(3))


@thing("token over TLS")
async def token_over_tls(c, topic):
    secure = await client(TOLD["tls"], authentication=pulsar.AuthenticationToken(TOLD["token"]),
                    tls_trust_certs_file_path=TOLD["trusted"], tls_validate_hostname=True)
    consumer = await secure.subscribe(topic, "s")
    await publish(secure, topic, numbered(10))
    answer = told(await receive(consumer, 10), numbered(10))
    await secure.close()
    return answer


@thing("expired token")
async def expired(c, topic):
    other = await client(authentication=pulsar.AuthenticationToken(TOLD["expired"]))
    try:
        await other.create_producer(topic)
    except PulsarException:
        return "refused"
    finally:
        await other.close()
    return "admitted"


async def run(name):
    c = await client()
    try:
        return await THINGS[name](c, f"persistent://public/default/{TOLD['prefix']}-{name.replace(' ', '-')}")
    finally:
        with contextlib.suppress(PulsarException, AttributeError):      # it was closed
            await c.close()


def main():
    for name in TOLD["things"].split(","):
        try:
            answer = asyncio.run(run(name))
        except BaseException as error:      # as are errors of this client
            traceback.print_exc()
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps({"thing": name, "answer": answer}), flush=True)


if __name__ == "__main__":
    main()
