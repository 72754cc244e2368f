"""The loops of producers and consumers by the library pulsar-client, for figures of applications that use the library.

Batches, compression and partitions are the library's own.  The library calls back from a thread of its own.
"""
import functools
import time
from collections import deque
from typing import Any

import numpy as np

from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.load import blocks, latencies
from geminga.supervisor.load.link import ANSWER_MAX_S, CLOCK, BrokerError
from geminga.supervisor.load.plan import Board, Part, Plan

INSTALL = "--client pulsar-client needs the library: pip install pulsar-client, into the same environment"
_SENT_MAX = 500          # messages in a step without a rate
_RECEIVE_MS = 100
_TAKEN_MAX = 1_000       # messages in a step
_CODECS: dict[int, str] = {api.NONE: "NONE", api.LZ4: "LZ4", api.ZLIB: "ZLib", api.ZSTD: "ZSTD", api.SNAPPY: "SNAPPY"}
_TYPES = {"exclusive": "Exclusive", "shared": "Shared", "failover": "Failover", "key_shared": "KeyShared"}


def is_installed() -> bool:
    """Return whether the library can be imported."""
    import importlib.util
    return importlib.util.find_spec("pulsar") is not None


def _client(plan: Plan, part: Part) -> Any:
    import pulsar
    who, options = plan.credentials, {}
    if who.method == "token":
        options["authentication"] = pulsar.AuthenticationToken(who.data)
    elif who.method == "basic":
        user, _, password = who.data.partition(":")
        options["authentication"] = pulsar.AuthenticationBasic(user, password)
    elif who.method == "tls":
        options["authentication"] = pulsar.AuthenticationTLS(who.certificate, who.key)
    if who.trusted:
        options["tls_trust_certs_file_path"] = who.trusted
    return pulsar.Client(part.place.url, tls_allow_insecure_connection=who.is_insecure,
                         logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)


class Producer:
    """A producer of the library on each topic of a part."""

    link = None

    def __init__(self, plan: Plan, part: Part, board: Board):
        import pulsar
        self._plan, self._number, self._board = plan, part.number, board
        message = plan.message
        self._payload = blocks.random_letters(message.size)
        self._sent = self._confirmed = 0      # messages
        self._receipts: deque[tuple[float, str]] = deque()      # (latency in us, error or "")
        self._window = plan.window * message.batch
        self._limit = None if part.entries is None else part.entries * message.batch
        self._per_second = plan.rate * part.share
        self._began_at = self._heard_at = 0.0
        try:
            self._client = _client(plan, part)
            self._producers = [
                self._client.create_producer(
                    topic, f"bench-{plan.run}-{part.number}-{at}", batching_enabled=message.batch > 1,
                    batching_max_messages=max(2, message.batch), block_if_queue_full=True,
                    max_pending_messages=self._window,
                    compression_type=getattr(pulsar.CompressionType, _CODECS[message.codec]))
                for at, topic in enumerate(part.topics)]
        except pulsar.PulsarException as error:
            raise BrokerError(str(error)) from None

    def __repr__(self) -> str:
        return f"<Producer {self._number} sent={self._sent} confirmed={self._confirmed}>"

    def begin(self) -> None:
        self._began_at = self._heard_at = CLOCK()

    @property
    def is_done(self) -> bool:
        return self._ends and self._sent == self._confirmed

    @property
    def _ends(self) -> bool:
        return self._board.stops_producing or self._sent == self._limit

    def step(self) -> float:
        """Take receipts, send what is due, and return the time in seconds after which to be called again."""
        self._take_receipts()
        if self._ends:
            return 0.001
        now = CLOCK()
        left = self._window - (self._sent - self._confirmed)
        if self._plan.consumers and self._plan.lead and not self._per_second:
            ahead = int(self._board.published.sum() - self._board.arrived.sum()) + self._sent - self._confirmed
            left = min(left, self._plan.lead - ahead)
        if self._limit is not None:
            left = min(left, self._limit - self._sent)
        if not self._per_second:
            for _ in range(min(left, _SENT_MAX)):
                self._send(CLOCK())
            return 0.0 if left > 0 else 0.001
        due = int((now - self._began_at) * self._per_second) + 1 - self._sent
        for _ in range(min(due, left)):
            self._send(self._began_at + self._sent / self._per_second)
        self._board.behind[self._number] = max(0, due - left)
        return max(0.0, self._began_at + self._sent / self._per_second - CLOCK()) if due <= left else 0.001

    def _send(self, due_at: float) -> None:
        due_us = int((time.time() - CLOCK() + due_at) * 1e6)
        keys = self._plan.message.keys
        self._producers[self._sent % len(self._producers)].send_async(
            self._payload, functools.partial(self._receive, due_at),
            properties={blocks.PROPERTY: f"{self._plan.run}:{due_us:016d}"},
            partition_key=f"key-{self._sent % keys:08d}" if keys else None)
        self._sent += 1

    def _receive(self, due_at: float, result: Any, _message_id: Any) -> None:
        self._receipts.append(((CLOCK() - due_at) * 1e6, "" if result.name == "Ok" else result.name))

    def _take_receipts(self) -> None:
        came = [self._receipts.popleft() for _ in range(len(self._receipts))]
        if came:
            self._heard_at = CLOCK()
            if errors := [error for _, error in came if error]:
                raise BrokerError(f"publishing: {errors[0]}")
            latencies.add(self._board.publish_counts[self._number], np.array([latency for latency, _ in came]))
            self._confirmed += len(came)
            self._board.published[self._number] = self._confirmed
        elif self._sent == self._confirmed:
            self._heard_at = CLOCK()
        elif CLOCK() - self._heard_at > ANSWER_MAX_S:
            raise BrokerError(f"{self._sent - self._confirmed} messages without a receipt for {ANSWER_MAX_S:.0f} s")

    def leave(self) -> None:
        self._client.close()


class Consumer:
    """A consumer of the library on all topics of a part."""

    link = None

    def __init__(self, plan: Plan, part: Part, board: Board):
        import pulsar
        self._number, self._board = part.number, board
        self._timeout = pulsar.Timeout
        position = pulsar.InitialPosition.Latest if plan.starts_at_end else pulsar.InitialPosition.Earliest
        try:
            self._client = _client(plan, part)
            self._consumer = self._client.subscribe(
                list(part.topics) if len(part.topics) > 1 else part.topics[0], plan.subscription,
                consumer_type=getattr(pulsar.ConsumerType, _TYPES[plan.kind]), initial_position=position,
                receiver_queue_size=plan.permits)
        except pulsar.PulsarException as error:
            raise BrokerError(str(error)) from None

    def __repr__(self) -> str:
        return f"<Consumer {self._number}>"

    def begin(self) -> None:
        """Do nothing: the library takes messages as soon as it has subscribed."""

    @property
    def is_done(self) -> bool:
        return self._board.stops_consuming

    def step(self) -> float:
        """Take and acknowledge messages that are there, or wait a moment for one."""
        waits: list[float] = []
        count = size = 0
        try:
            while count < _TAKEN_MAX:
                message = self._consumer.receive(timeout_millis=1 if count else _RECEIVE_MS)
                now_us = time.time() * 1e6
                self._consumer.acknowledge(message)
                count, size = count + 1, size + len(message.data())
                digits = message.properties().get(blocks.PROPERTY, "").rpartition(":")[2]
                if digits.isdigit():
                    waits.append(now_us - int(digits))
        except self._timeout:
            pass
        if waits:
            latencies.add(self._board.arrival_counts[self._number], np.array(waits))
        self._board.bytes_arrived[self._number] += size
        self._board.arrived[self._number] += count
        return 0.0

    def leave(self) -> None:
        self._client.close()
