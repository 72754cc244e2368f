"""Measures what many transactions leave: open ones at a start after SIGKILL, and aborted ones once all is done.

    python -m tests.bench.many_transactions [--open 10000] [--aborted 100000] [--starts 5]

    open        transactions with a message and an acknowledgement each, on one topic
    ready       seconds from the start after a SIGKILL until the broker serves, with all of them open, and memory (PSS)
    aborted     transactions with a message each, on another broker
    deleted     memory and disk once the topic with their messages is deleted
    left        the same once the coordinator remembers their outcome no longer, which takes ten minutes
"""
import argparse
import asyncio
import itertools
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.transactions.transaction_table import ENDED_MS

from ..harness import Broker, request
from ..proto.client_frames import T, entry_of, message_metadata, send
from .transactions import PAYLOAD, SUBSCRIPTION, Connection
from .usage import memory_bytes

TOPIC = "persistent://public/default/many"
LANES = 64
LIFETIME_MS = 3_600_000


async def connected(broker: Broker) -> Connection:
    host, _, port = broker.service_url.rpartition("/")[2].partition(":")
    _, link = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
    await link.opened
    return link


async def in_lanes(numbers: Iterator[int], work) -> None:
    async def lane() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(lane() for _ in range(LANES)))


async def begin(link: Connection, number: int) -> dict[str, int]:
    """Begin a transaction that publishes a message; return its id as fields of commands."""
    began = (await link.ask(T.NEW_TXN, txn_ttl_millis=LIFETIME_MS, tc_id=0)).newTxnResponse
    its = {"txnid_most_bits": began.txnid_most_bits, "txnid_least_bits": began.txnid_least_bits}
    await link.ask(T.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **its)
    receipt = link.expect("receipt", number)
    link.transport.write(send(entry_of(message_metadata(**its), PAYLOAD), sequence_id=number, **its))
    assert (await receipt).type == T.SEND_RECEIPT
    return its


async def fill(broker: Broker, count: int) -> None:
    """Open transactions with a message and an acknowledgement each."""
    link = await connected(broker)
    await link.ask(T.SUBSCRIBE, topic=TOPIC, subscription=SUBSCRIPTION, subType=api.CommandSubscribe.Shared,
                   consumer_id=1)
    await link.ask(T.PRODUCER, topic=TOPIC, producer_id=1)
    plain, receipts = entry_of(message_metadata(), PAYLOAD), []
    for number in range(count):
        receipts.append(link.expect("receipt", number))
        link.transport.write(send(plain, sequence_id=number))
    ids = [(await receipt).send_receipt.message_id for receipt in receipts]
    added = api.Subscription(topic=TOPIC, subscription=SUBSCRIPTION)

    async def one(number: int) -> None:
        its = await begin(link, count + number)
        await link.ask(T.ADD_SUBSCRIPTION_TO_TXN, subscription=[added], **its)
        await link.ask(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=[ids[number]], **its)

    await in_lanes(iter(range(count)), one)
    link.transport.close()


async def abort(broker: Broker, count: int) -> None:
    """Publish a message in each of so many transactions, and abort them."""
    link = await connected(broker)
    await link.ask(T.PRODUCER, topic=TOPIC, producer_id=1)

    async def one(number: int) -> None:
        its = await begin(link, number)
        await link.ask(T.END_TXN, txn_action=api.ABORT, **its)

    await in_lanes(itertools.takewhile(lambda number: number < count, itertools.count()), one)
    link.transport.close()


def bytes_on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*")
               if path.is_file() and "journal" not in path.parts)


def figures(broker: Broker) -> str:
    return f"{memory_bytes(broker.pid, 'pss') / (1 << 20):,.0f} MiB of memory, " \
           f"{bytes_on_disk(broker.data_dir) / (1 << 20):,.2f} MiB on disk without journals"


def open_count(broker: Broker) -> int:
    _, text = request("GET", f"{broker.http_url}/metrics/")
    return sum(int(float(found)) for found in re.findall(r"^pulsar_txn_active_count\S* (\S+)", text, re.MULTILINE))


def delete(broker: Broker) -> None:
    status, text = request("DELETE", f"{broker.http_url}/admin/v2/{TOPIC.replace('://', '/')}?force=true")
    assert status == 204, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=int, default=10_000)
    parser.add_argument("--aborted", type=int, default=100_000)
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder) / "data", "--workers", "1", "--owners", "1").start()
        begun = time.perf_counter()
        asyncio.run(fill(broker, options.open))
        print(f"open    {options.open:,} transactions, {time.perf_counter() - begun:.0f} s", flush=True)
        for _ in range(options.starts):
            broker.kill_supervisor()
            before = len(broker.log())
            broker.start()
            [ready] = re.findall(r"is ready after ([\d.]+) s", broker.log()[before:])
            print(f"ready   after {ready} s with {open_count(broker):,} open, {figures(broker)}", flush=True)
        broker.kill_supervisor()
        broker.close()

        broker = Broker(Path(folder) / "other", "--workers", "1", "--owners", "1").start()
        asyncio.run(abort(broker, 1_000))      # the first ones make what is made once
        print(f"left    before: {figures(broker)}", flush=True)
        begun = time.perf_counter()
        asyncio.run(abort(broker, options.aborted))
        print(f"aborted {options.aborted:,} transactions, {time.perf_counter() - begun:.0f} s: {figures(broker)}",
              flush=True)
        delete(broker)
        print(f"deleted {figures(broker)}", flush=True)
        time.sleep(ENDED_MS / 1_000 + 5)
        asyncio.run(abort(broker, 1))          # changes the coordinator's table, so that it is written again
        delete(broker)
        print(f"left    after {time.perf_counter() - begun:.0f} s: {figures(broker)}", flush=True)
        broker.close()


if __name__ == "__main__":
    main()
