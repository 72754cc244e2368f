"""What the lab asks of oms-mqclient, a queue over Pulsar and others.

`Ground.ask` starts it and says how it is told.
"""
import asyncio
import json
import logging
import sys
import traceback

from mqclient.queue import Queue

TOLD = json.loads(sys.argv[-1])
SECONDS = 15         # longest wait for a message that has to come
THINGS = {}
logging.disable(logging.CRITICAL)


def thing(name):
    def keep(function):
        THINGS[name] = function
        return function
    return keep


def queue(topic, url="service", **options):
    return Queue("pulsar", address=TOLD[url], name=topic, **{"timeout": SECONDS, "except_errors": False, **options})


async def publish(made, payloads):
    async with made.open_pub() as publisher:
        for payload in payloads:
            await publisher.send(payload)


async def take(made, count):
    got = []
    async with made.open_sub() as messages:
        async for message in messages:
            got.append(message)
            if len(got) == count:
                break
    return got


def numbered(count, prefix="m"):
    return [f"{prefix}{number}" for number in range(count)]


def told(got, expected):
    if got == expected:
        return f"{len(got)} in order"
    return f"{len(got)} came, {len(set(expected) - set(got))} missing, {len(got) - len(set(got))} twice"


@thing("shared")
async def shared(topic):
    made = queue(topic)
    got = ([], [])
    async with made.open_sub_manual_acking() as a, made.open_sub_manual_acking() as b:
        await publish(made, list(range(60)))
        consumers = [a.iter_messages(), b.iter_messages()]
        while sum(map(len, got)) < 60:
            for consumer, resource, mine in zip(consumers, (a, b), got, strict=True):
                if sum(map(len, got)) < 60:
                    message = await anext(consumer)
                    await resource.ack(message)
                    mine.append(message.data)
    return f"{len({*got[0], *got[1]})} of {sum(map(len, got))}, " + ("both have some" if all(got) else "one has none")


@thing("negative acknowledgement")
async def nack(topic):
    made = queue(topic)
    await publish(made, ["again"])
    async with made.open_sub_manual_acking() as messages:
        each = messages.iter_messages()
        await messages.nack(await anext(each))
        message = await anext(each)
        await messages.ack(message)
        return f"{message.data}, count 1"


@thing("closed in the middle")
async def closed(topic):
    made = queue(topic)
    await publish(made, numbered(20))
    got = await take(made, 10)
    async with made.open_sub_manual_acking() as messages:
        await anext(messages.iter_messages())
    return told(got + await take(made, 10), numbered(20))


@thing("broker started again")
async def restarted(topic):
    made = queue(topic)
    async with made.open_pub() as publisher:
        for payload in numbered(10):
            await publisher.send(payload)
        print(json.dumps({"please": "restart"}), flush=True)
        assert sys.stdin.readline().strip() == "done"
        for payload in numbered(10, "n"):
            await publisher.send(payload)
    got = await take(made, 20)
    return f"{len(set(got))} of 20, " + ("in order" if got == numbered(10) + numbered(10, "n") else "out of order")


async def refused(topic, token):
    try:
        await publish(queue(topic, auth_token=TOLD[token]), ["x"])
    except Exception:
        return "refused"
    return "admitted"


@thing("forged token")
async def forged(topic):
    return await refused(topic, "forged")


@thing("expired token")
async def expired(topic):
    return await refused(topic, "expired")


def main():
    for name in TOLD["things"].split(","):
        try:
            answer = asyncio.run(THINGS[name](f"persistent://public/default/{TOLD['prefix']}-{name.replace(' ', '-')}"))
        except Exception as error:
            traceback.print_exc()
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps({"thing": name, "answer": answer}), flush=True)


if __name__ == "__main__":
    main()
