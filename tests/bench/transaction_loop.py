"""Transactions in a closed loop: some on one connection at a time, each step of all of them awaited before the next.

The load takes little CPU from the broker, unlike that of transactions.py, which knows more kinds of transactions.
"""
import itertools
from collections.abc import Iterable
from typing import Any

import sends
from closed import await_answers
from link import Link, Load

from geminga.supervisor.load import wire

ACK_RESPONSE = 38
(NEW_TXN, NEW_TXN_RESPONSE, ADD_PARTITION_TO_TXN, ADD_PARTITION_TO_TXN_RESPONSE, ADD_SUBSCRIPTION_TO_TXN,
 ADD_SUBSCRIPTION_TO_TXN_RESPONSE, END_TXN, END_TXN_RESPONSE) = range(50, 58)
TC_CLIENT_CONNECT_REQUEST, TC_CLIENT_CONNECT_RESPONSE = 62, 63
COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
TOGETHER, LIFETIME_MS, COMMIT = 32, 60_000, 0
TARGET, SOURCE = wire.ID_FIRST, wire.ID_FIRST + 1      # ids of producers, and of the consumer of the topic `source`

Ids = list[bytes]      # of each transaction, its fields least and most bits, behind the request's number or alone


class TransactionLoop:
    """A connection whose transactions publish a message each and, if they consume, acknowledge one too."""

    def __init__(self, load: Load, *, consumes: bool):
        """Raises BrokerError."""
        self._load, self._consumes, self._link = load, consumes, Link(load)
        self._target, self._source = load.topics[0], f"{load.topics[0]}-source"
        self._numbers = itertools.count(wire.SEQUENCE_FIRST)      # of requests and messages
        link = self._link
        link.find(COORDINATOR)
        link.ask("connecting to the coordinator", wire.frame(
            TC_CLIENT_CONNECT_REQUEST, wire.number(1, link.request_id()) + wire.number(2, 0)),
            TC_CLIENT_CONNECT_RESPONSE)
        for producer_id, topic in ((TARGET, self._target), (SOURCE, self._source)):
            link.ask(f"producing to {topic}", wire.producer(
                topic, producer_id, link.request_id(), f"bench-{topic}"), wire.PRODUCER_SUCCESS)
        link.ask("subscribing", wire.subscribe(
            self._source, load.subscription, "shared", SOURCE, link.request_id(), "bench"), wire.SUCCESS)

    def feed(self, rounds: int) -> None:
        """Publish what so many rounds consume."""
        entry = sends.entry("bench", b"." * self._load.size_bytes)
        for _ in range(rounds if self._consumes else 0):
            self._do([wire.frame(wire.SEND, wire.number(1, SOURCE) + wire.number(2, next(self._numbers)), entry)
                      for _ in range(TOGETHER)], wire.SEND_RECEIPT)

    def run(self, rounds: int) -> None:
        """Do transactions, TOGETHER in each round.  Raises BrokerError."""
        for _ in range(rounds):
            begun = self._do(self._requests(NEW_TXN, [wire.number(2, LIFETIME_MS)] * TOGETHER), NEW_TXN_RESPONSE)
            bits = [(fields.get(2, 0), fields.get(3, 0)) for fields in begun]
            ids = [wire.number(2, least) + wire.number(3, most) for least, most in bits]
            self._do(self._requests(ADD_PARTITION_TO_TXN, ids, wire.string(4, self._target)),
                     ADD_PARTITION_TO_TXN_RESPONSE)
            self._do([self._send(*each) for each in bits], wire.SEND_RECEIPT)
            if self._consumes:
                self._do(self._requests(ADD_SUBSCRIPTION_TO_TXN, ids, wire.string(
                    4, wire.string(1, self._source) + wire.string(2, self._load.subscription))),
                    ADD_SUBSCRIPTION_TO_TXN_RESPONSE)
                messages = self._do([wire.flow(SOURCE, TOGETHER)], wire.MESSAGE)
                self._do([self._acknowledge(*each, message[2]) for each, message in zip(bits, messages, strict=True)],
                         ACK_RESPONSE)
            self._do(self._requests(END_TXN, ids, wire.number(4, COMMIT)), END_TXN_RESPONSE)

    def _do(self, frames: list[bytes], answer: int) -> list[dict[int, Any]]:
        """Send frames, and return the fields of TOGETHER answers of this kind."""
        self._link.put(b"".join(frames))
        return await_answers(self._link, answer, TOGETHER)

    def _requests(self, kind: int, bodies: Iterable[bytes], rest: bytes = b"") -> list[bytes]:
        return [wire.frame(kind, wire.number(1, next(self._numbers)) + body + rest) for body in bodies]

    def _send(self, least: int, most: int) -> bytes:
        body = wire.number(1, TARGET) + wire.number(2, next(self._numbers)) + wire.number(4, least)
        return wire.frame(wire.SEND, body + wire.number(5, most), sends.entry(
            "bench", b"." * self._load.size_bytes, transaction=(least, most)))

    def _acknowledge(self, least: int, most: int, message_id: bytes) -> bytes:
        return wire.frame(wire.ACK, wire.number(1, SOURCE) + wire.number(2, wire.INDIVIDUAL) + wire.string(
            3, message_id) + wire.number(6, least) + wire.number(7, most) + wire.number(8, next(self._numbers)))

    def close(self) -> None:
        self._link.close()
