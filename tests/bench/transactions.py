"""Measures transactions on one broker, or on two in turns.

    python -m tests.bench.transactions --broker geminga=127.0.0.1:6650,pid=123 [--broker pulsar=127.0.0.1:16650,pid=456]
                                       [--rows produce1,consume1] [--lanes 32] [--seconds 5] [--rounds 3]

One connection of raw bytes has so many transactions under way.  Each begins (NEW_TXN), adds its partition and
subscription, sends or acknowledges, waits for the receipts, and commits; what is aborted says so.  Messages have 100
bytes.  CPU is that of the process given and all below it.
"""
import argparse
import asyncio
import itertools
import statistics
import struct
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import SIZE
from geminga.proto.varints import encode

from ..proto.client_frames import CONNECT, T, command, entry_of, frame, message_metadata, send
from .usage import cpu_seconds

PAYLOAD = b"x" * 100
PERMITS = 1_000
SUBSCRIPTION = "bench"
ASSIGN = "persistent://pulsar/system/transaction_coordinator_assign"


class Row(NamedTuple):
    """What one transaction does."""

    messages: int = 0
    in_batch: int = 0          # messages in one entry; 0: each is an entry of its own
    consumes: int = 0          # messages that are acknowledged
    commits: bool = True


ROWS = {"nothing": Row(), "produce1": Row(1), "produce10": Row(10), "produce100": Row(100),
        "batch100": Row(1, in_batch=100), "consume1produce1": Row(1, consumes=1), "abort10": Row(10, commits=False)}


# By type of command: the name of its field in BaseCommand, and the field's class.
KINDS = {number: (field.name, getattr(api, field.message_type.name))
         for number, field in api.BaseCommand.DESCRIPTOR.fields_by_number.items() if field.message_type is not None}


class Broker(NamedTuple):
    """A broker to measure."""

    name: str
    host: str
    port: int
    pid: int | None


class Connection(asyncio.Protocol):
    """A connection whose answers go to the one who waits for them, by request id, sequence id or message."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.waiting: dict[tuple[str, int], asyncio.Future[api.BaseCommand]] = {}
        self.messages: asyncio.Queue[api.MessageIdData] = asyncio.Queue()
        self.numbers = itertools.count(1)
        self.opened = asyncio.get_running_loop().create_future()
        self.waiting["connected", 0] = self.opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(CONNECT)

    def data_received(self, data: bytes) -> None:
        self.data += data
        at = 0
        while len(self.data) - at >= 8:
            total, size = struct.unpack_from(">II", self.data, at)
            if len(self.data) - at < 4 + total:
                break
            self._heard(api.BaseCommand.FromString(bytes(self.data[at + 8:at + 8 + size])))
            at += 4 + total
        del self.data[:at]

    def _heard(self, heard: api.BaseCommand) -> None:
        if heard.type == T.MESSAGE:
            return self.messages.put_nowait(heard.message.message_id)
        if heard.type == T.PING:
            return self.transport.write(command(T.PONG))
        if heard.type == T.CONNECTED:
            key = "connected", 0
        elif heard.type == T.SEND_RECEIPT:
            key = "receipt", heard.send_receipt.sequence_id
        elif heard.type == T.SEND_ERROR:
            key = "receipt", heard.send_error.sequence_id
        else:
            key = "request", getattr(heard, KINDS[heard.type][0]).request_id
        if (future := self.waiting.pop(key, None)) is not None and not future.done():
            future.set_result(heard)

    def expect(self, kind: str, number: int) -> "asyncio.Future[api.BaseCommand]":
        future = self.waiting[kind, number] = asyncio.get_running_loop().create_future()
        return future

    async def ask(self, kind: int, **fields: object) -> api.BaseCommand:
        """Send a request and return its answer.  Raises RuntimeError for an error."""
        number = next(self.numbers)
        future = self.expect("request", number)
        name, kind_of = KINDS[kind]
        said = api.BaseCommand(type=kind, **{name: kind_of(request_id=number, **fields)})
        self.transport.write(frame(said.SerializeToString()))
        heard = await future
        answer = getattr(heard, KINDS[heard.type][0])
        if "error" in answer.DESCRIPTOR.fields_by_name and answer.HasField("error"):
            raise RuntimeError(f"{api.ServerError.Name(answer.error)}: {answer.message}")
        return heard


def entry(row: Row, transaction: tuple[int, int]) -> bytes:
    """Return an entry of one message, or of a batch."""
    most, least = transaction
    fields = {"txnid_most_bits": most, "txnid_least_bits": least}
    if not row.in_batch:
        return entry_of(message_metadata(**fields), PAYLOAD)
    single = api.SingleMessageMetadata(payload_size=len(PAYLOAD)).SerializeToString()
    one = SIZE.pack(len(single)) + single + PAYLOAD
    return entry_of(message_metadata(num_messages_in_batch=row.in_batch, **fields), one * row.in_batch)


def sends(made: bytes, numbers: Iterable[int], messages: int, transaction: tuple[int, int]) -> bytes:
    """Return the frames of SENDs of one entry, with these sequence ids.

    The client's CPU is taken from the broker, so these bytes are put together by hand; `send` makes the same.
    """
    most, least = transaction
    rest = b"\x18" + encode(messages) + b"\x20" + encode(least) + b"\x28" + encode(most)
    inner = (b"\x08\x01\x10" + encode(number) + rest for number in numbers)
    return b"".join([frame(b"\x08\x06\x32" + encode(len(one)) + one, made) for one in inner])


async def transact(link: Connection, row: Row, target: str, source: str, sequence: Iterator[int]) -> float:
    """Do one transaction from its begin to its end; return how many seconds its end took."""
    began = (await link.ask(T.NEW_TXN, txn_ttl_millis=60_000, tc_id=0)).newTxnResponse
    most, least = began.txnid_most_bits, began.txnid_least_bits
    its = {"txnid_most_bits": most, "txnid_least_bits": least}
    answers = []
    if row.messages:
        await link.ask(T.ADD_PARTITION_TO_TXN, partitions=[target], **its)
        numbers = list(itertools.islice(sequence, row.messages))
        answers += [link.expect("receipt", number) for number in numbers]
        link.transport.write(sends(entry(row, (most, least)), numbers, max(1, row.in_batch), (most, least)))
    if row.consumes:
        added = api.Subscription(topic=source, subscription=SUBSCRIPTION)
        await link.ask(T.ADD_SUBSCRIPTION_TO_TXN, subscription=[added], **its)
        for _ in range(row.consumes):
            message_id = await link.messages.get()
            answers.append(asyncio.ensure_future(link.ask(
                T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=[message_id], **its)))
    for heard in await asyncio.gather(*answers):
        if heard.type == T.SEND_ERROR:
            raise RuntimeError(heard.send_error.message)
    begun = time.perf_counter()
    await link.ask(T.END_TXN, txn_action=api.COMMIT if row.commits else api.ABORT, **its)
    return time.perf_counter() - begun


async def measure(broker: Broker, row: Row, lanes: int, seconds: float) -> dict[str, float]:
    """Return transactions a second, latencies of them and of their ends in ms, and CPU ms of the broker for each."""
    loop = asyncio.get_running_loop()
    _, link = await loop.create_connection(Connection, broker.host, broker.port)
    await link.opened
    target, source = (f"persistent://public/default/{name}-{uuid.uuid4().hex[:8]}" for name in ("target", "source"))
    for topic in (ASSIGN, target, source):      # loads the coordinator, or the topic
        await link.ask(T.PARTITIONED_METADATA, topic=topic)
        await link.ask(T.LOOKUP, topic=f"{ASSIGN}-partition-0" if topic == ASSIGN else topic)
    await link.ask(T.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
    await link.ask(T.PRODUCER, topic=target, producer_id=1, txn_enabled=True)
    sequence, latencies, ends = itertools.count(), [], []
    feeder = None
    if row.consumes:
        await link.ask(T.SUBSCRIBE, topic=source, subscription=SUBSCRIPTION, subType=api.CommandSubscribe.Shared,
                       consumer_id=1)
        await link.ask(T.PRODUCER, topic=source, producer_id=2)
        link.transport.write(command(T.FLOW, consumer_id=1, messagePermits=PERMITS))
        feeder = asyncio.ensure_future(feed(link, sequence))
    is_over = False

    async def lane() -> None:
        while not is_over:
            begun = time.perf_counter()
            ends.append(await transact(link, row, target, source, sequence))
            latencies.append(time.perf_counter() - begun)

    running = [asyncio.ensure_future(lane()) for _ in range(lanes)]
    await asyncio.sleep(1.0)      # a warm-up
    latencies.clear()
    ends.clear()
    cpu, begun = cpu_seconds(broker.pid) if broker.pid else 0.0, time.perf_counter()
    await asyncio.sleep(seconds)
    done, ended, took = sorted(latencies), sorted(ends), time.perf_counter() - begun
    cpu = cpu_seconds(broker.pid) - cpu if broker.pid else 0.0
    is_over = True
    await asyncio.wait_for(asyncio.gather(*running), 60)
    if feeder is not None:
        feeder.cancel()
    link.transport.close()
    return {"per second": len(done) / took, "p50 ms": 1_000 * done[len(done) // 2],
            "p99 ms": 1_000 * done[len(done) * 99 // 100], "end p50 ms": 1_000 * ended[len(ended) // 2],
            "end p99 ms": 1_000 * ended[len(ended) * 99 // 100], "CPU ms each": 1_000 * cpu / len(done)}


async def feed(link: Connection, sequence: Iterator[int]) -> None:
    """Keep messages for the consumer: as many as it was delivered, with permits for more."""
    made, sent, taken = entry_of(message_metadata(), PAYLOAD), 0, 0
    while True:
        queued = link.messages.qsize()
        if queued < PERMITS // 2:
            numbers = [next(sequence) for _ in range(PERMITS // 2)]
            receipts = [link.expect("receipt", number) for number in numbers]
            link.transport.write(b"".join(send(made, producer_id=2, sequence_id=number) for number in numbers))
            await asyncio.gather(*receipts)
            sent += len(numbers)
            if sent - taken > PERMITS // 2:
                taken = sent
                link.transport.write(command(T.FLOW, consumer_id=1, messagePermits=PERMITS // 2))
        await asyncio.sleep(0.002)


def parsed(text: str) -> Broker:
    name, _, rest = text.partition("=")
    address, _, pid = rest.partition(",pid=")
    host, _, port = address.partition(":")
    return Broker(name, host, int(port), int(pid) if pid else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", type=parsed, action="append", required=True)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name in options.rows.split(","):
        found: dict[str, list[dict[str, float]]] = {broker.name: [] for broker in options.broker}
        for _ in range(options.rounds):
            for broker in options.broker:
                found[broker.name].append(
                    asyncio.run(measure(broker, ROWS[name], options.lanes, options.seconds)))
        medians = {broker: {figure: statistics.median(each[figure] for each in rounds) for figure in rounds[0]}
                   for broker, rounds in found.items()}
        for broker, figures in medians.items():
            print(f"{name:<18}{broker:<12}", *(f"{figure} {value:10.3f}  " for figure, value in figures.items()),
                  flush=True)
        if len(medians) == 2:
            first, second = medians.values()
            print(f"{name:<18}{'ratio':<12}", *(f"{figure} {first[figure] / second[figure]:10.3f}  "
                                               for figure in first if second[figure]), flush=True)


if __name__ == "__main__":
    main()
