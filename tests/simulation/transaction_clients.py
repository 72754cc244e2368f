"""Clients of owners: they begin transactions, and publish and acknowledge in them and without them.

Every entry begins with its number, so that each delivery can be compared with what its client knows.
"""
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from geminga.proto import envelope, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.topics.subscription import SubType
from geminga.storage.transactions.coordinator import LIFETIME_MIN_MS

from ..storage.files import read_mapped
from ..storage.rig import Answers, T, entry_of, payload_of
from . import checks, transaction_model
from .model import Position, demand
from .owners import Owners, Process
from .transaction_model import (
    OPEN,
    Ack,
    Consumer,
    Message,
    Producer,
    Subscription,
    Transaction,
)
from .world import NOWHERE

TOPICS = "a", "b", "c", "d"      # of two owners, each has some
LIFETIMES_MS = 50, 2_000, 5_000, 60_000, 60_000, 1 << 45, 1 << 45
MANY = 1 << 20
PATIENCE_MS = 5_000               # so long a SEND may wait for a coordinator
BYTES_MAX = 3_000                # of the entries of a pass
RESPONSES = {T.NEW_TXN_RESPONSE: "newTxnResponse", T.ADD_PARTITION_TO_TXN_RESPONSE: "addPartitionToTxnResponse",
             T.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: "addSubscriptionToTxnResponse", T.END_TXN_RESPONSE: "endTxnResponse",
             T.ACK_RESPONSE: "ackResponse"}
SINGLE = SubType.Exclusive, SubType.Failover


@dataclass
class Request:
    """A request of a client: `done` is called with its error, 0 for none, and its answer; `lost` instead of that."""

    done: Callable[[int, object], None]
    lost: Callable[[], None]


class TransactionClients(Owners):
    """A world of owners with topics, subscriptions and clients."""

    def __init__(self, seed: int, folder: Path):
        super().__init__(seed, folder)
        pick = self.chance.choice
        self.options |= {"max_unacked_messages_per_consumer": 50_000, "batch_index_acknowledgement": True}
        self.names = TOPICS[:pick([1, 2, 4])] if self.owners == 1 else TOPICS[:pick([2, 4])]
        self.messages: dict[str, list[Message]] = {name: [] for name in self.names}
        self.by_number: dict[int, Message] = {}
        self.producers = [Producer(f"p{name}{number}", name) for name in self.names for number in range(2)]
        self.subscriptions = [Subscription(f"s{number}", name, pick(list(SubType.values())))
                              for name in self.names for number in range(pick([1, 2]))]
        self.transactions: list[Transaction] = []
        self.ids: set[tuple[int, int]] = set()
        self.requests: dict[tuple[int, int, int], Request] = {}      # by the owner's serial, connection, request
        self.waiting: dict[tuple[int, int], list[Message]] = {}      # SENDs without answer, by connection and producer
        self.ready: dict[int, int] = {}                              # handles of what the pass has made
        self.readers: dict[int, dict[Message, int]] = {}             # handle -> what it got

    # -- the world

    def begin(self) -> None:
        super().begin()
        self.connections = [next(self.numbers) for _ in range(3)]
        self.settle()
        for subscription in self.subscriptions:
            demand(self._join(subscription) is not None, "nothing is refused without a cause", subscription.name)

    def gone(self, process: Process) -> None:
        """Note that a process has ended: its clients have lost their producers, consumers and answers."""
        for topic in self.names:
            if self.index_of(topic) == process.index:
                self.disconnect(topic)
        self.readers = {}
        for key in [key for key in self.requests if key[0] == process.serial]:
            self.requests.pop(key).lost()

    def _ask(self, process: Process | None, command: str, done, lost, **fields) -> bool:
        """Send a request to an owner on any connection; return whether the owner was there."""
        if process is None:
            return False
        connection, request_id = self.chance.choice(self.connections), next(self.numbers)
        self.expect(process, connection, request_id, done, lost)
        self.pass_of(process, process.rig.command(command, connection=connection, request_id=request_id, **fields))
        return True

    def expect(self, process: Process, connection: int, request_id: int, done, lost) -> None:
        """Expect an answer."""
        self.requests[process.serial, connection, request_id] = Request(done, lost)

    def disconnect(self, topic: str) -> None:
        """Note that all producers and consumers of a topic are gone."""
        self.waiting = {key: sent for key, sent in self.waiting.items() if sent and sent[0].topic != topic}
        for producer in self.producers:
            producer.handle *= producer.topic != topic
        for subscription in self.subscriptions:
            if subscription.topic == topic:
                subscription.consumers = []

    def forget_connection(self, connection: int) -> None:
        """Note that a connection is gone, and all that was on it."""
        self.waiting = {key: sent for key, sent in self.waiting.items() if key[0] != connection}
        for producer in self.producers:
            producer.handle *= producer.connection != connection
        for subscription in self.subscriptions:
            subscription.consumers = [one for one in subscription.consumers if one.connection != connection]
        for key in [key for key in self.requests if key[1] == connection]:
            self.requests.pop(key).lost()

    def _has_faults(self) -> bool:
        return self.disk.faults != self.before

    # -- answers

    def answered(self, process: Process, answers: Answers) -> None:
        for connection, action, object_id, handle, command in answers.replies:
            if action in (envelope.PRODUCER_READY, envelope.CONSUMER_READY):
                self.ready[object_id] = handle
            elif action == envelope.PRODUCER_GONE:
                for producer in self.producers:
                    if producer.object_id == object_id:
                        producer.handle = 0
                self.waiting.pop((connection, object_id), None)
            if command is not None and command.type in RESPONSES:
                answer = getattr(command, RESPONSES[command.type])
                self.say("answer", command.type, answer.error)
                request = self.requests.pop((process.serial, connection, answer.request_id), None)
                demand(request is not None or connection not in self.connections, "nothing is answered twice", answer)
                if request is not None:
                    request.done(answer.error, answer)
            elif command is not None and command.type == T.SEND_ERROR:
                self._refused(process, connection, command.send_error)
            elif command is not None and command.type == T.SEND_RECEIPT:
                self._dropped(connection, command.send_receipt)
        self._receipts(process, answers)
        self._deliveries(process, answers)
        with self.disk.aside():
            for partition in process.rig.partitions:
                checks.agrees_with_itself(partition)
                for subscription in partition.subscriptions.values():
                    cursor = subscription.cursor
                    demand(not subscription.is_durable or partition.next_message - cursor.since
                           == sum(cursor.totals) + cursor.backlog_messages(partition.ledgers), "totals add up",
                           f"{subscription.name} {cursor.totals}")

    def _refused(self, process: Process, connection: int, error) -> None:
        message = self._take(connection, error)
        transaction = message.transaction
        is_right = self._has_faults() or (transaction is not None and (
            not transaction.is_open(self.now_ms) or self.now_ms - message.sent_ms >= PATIENCE_MS
            or self._is_forgotten(transaction, process, transaction.topics[message.topic])))
        demand(is_right, "nothing is refused without a cause", f"{message}: {error.message}")
        self._given_up(message)
        self.count("sends refused")

    def _dropped(self, connection: int, receipt) -> None:
        if (connection, receipt.producer_id) not in self.waiting:      # a closed producer's client ignores receipts
            return
        message = self._take(connection, receipt)
        demand(receipt.message_id.entryId == NOWHERE, "what is dropped has no position", message)
        is_right = message.transaction is not None and not message.transaction.is_open(self.now_ms)
        demand(is_right or self._has_faults(), "only messages of ended transactions are dropped", message)
        self._given_up(message)
        self.count("sends dropped")

    def _take(self, connection: int, answer) -> Message:
        """Return the SEND that is answered, which waits no more."""
        sent = self.waiting.get((connection, answer.producer_id), [])
        message = next((one for one in sent if one.sequence_id == answer.sequence_id), None)
        demand(message is not None, "nothing is answered twice", answer)
        sent.remove(message)
        return message

    def _given_up(self, message: Message) -> None:
        message.is_refused = message.attempts == 1
        if message.transaction is not None:
            message.transaction.is_spoiled = True
        for producer in self.producers:
            if message in producer.unconfirmed:
                producer.unconfirmed.remove(message)

    def _receipts(self, process: Process, answers: Answers) -> None:
        for _, connection, producer_id, sequence_id, position in answers.receipts:
            sent = self.waiting.get((connection, producer_id))
            demand(bool(sent), "nothing is answered twice", position)
            message = sent.pop(0)
            self.say("receipt", message.number, position)
            demand(message.sequence_id == sequence_id, "receipts come in order", position)
            if position == (NOWHERE, NOWHERE):
                demand(message.attempts > 1, "only what is sent again is a duplicate", message)
                self.count("duplicates")
            else:
                message.is_at(position)
            message.is_stored = True
            for producer in self.producers:
                if message in producer.unconfirmed:
                    producer.unconfirmed.remove(message)
        self.waiting = {key: sent for key, sent in self.waiting.items() if sent}
        left = [sent[0] for sent in self.waiting.values() if self.owner_of(sent[0].topic) is process]
        demand(not left or process.rig.owner.admission.is_asking, "every send is answered", left)

    def _deliveries(self, process: Process, answers: Answers) -> None:
        by_handle = {consumer.handle: consumer for subscription in self.subscriptions
                     for consumer in subscription.consumers if self.owner_of(subscription.topic) is process}
        for handle, partition_id, ledger_id, gift in answers.gifts:
            first, last = gift[0][0], gift[-1][0]
            with self.disk.aside():
                found = read_mapped(format.partition_folder(self.disk.root, partition_id), ledger_id, first,
                                    last - first + 1)
            for entry_id, _, words in gift:
                data, position = found[entry_id - first], (ledger_id, entry_id)
                message = self.by_number.get(int(payload_of(data).split()[0]))
                demand(message is not None and message.data == data, "entries keep their bytes", position)
                transaction_model.seen(message, position, self.messages[message.topic], self.now_ms)
                bits = sum(word << 64 * number for number, word in enumerate(words)) or message.whole
                self.say("given", handle, message.number, bits)
                self.count("deliveries")
                if handle in self.readers:
                    self.readers[handle][message] = bits
                elif handle in by_handle:
                    consumer = by_handle[handle]
                    transaction_model.given(consumer.subscription, message, position, bits, self.now_ms)
                    consumer.got[message] = bits
                    consumer.deliveries += 1

    # -- who there is

    def _join(self, subscription: Subscription) -> Consumer | None:
        process = self.owner_of(subscription.topic)
        if process is None:
            return None
        consumer = Consumer(0, next(self.numbers), self.chance.choice(self.connections), subscription)
        if self.pass_of(process, process.rig.command(
                "subscribe", connection=consumer.connection, topic=subscription.topic, subscription=subscription.name,
                subType=subscription.kind, consumer_id=consumer.object_id, request_id=consumer.object_id,
                consumer_name=f"c{consumer.object_id}", initialPosition=1)) is None:
            return None
        consumer.handle = self.ready.pop(consumer.object_id, 0)
        demand(consumer.handle or self._has_faults(), "nothing is refused without a cause", subscription.name)
        if consumer.handle:
            subscription.consumers.append(consumer)
        return consumer if consumer.handle else None

    def join(self) -> None:
        subscription = self.chance.choice(self.subscriptions)
        if len(subscription.consumers) < (1 if subscription.kind == SubType.Exclusive else 2) \
                and (consumer := self._join(subscription)) is not None:
            self._flow(consumer)

    def _flow(self, consumer: Consumer, permits: int | None = None) -> Answers | None:
        process = self.owner_of(consumer.subscription.topic)
        return self.pass_of(process, process.rig.flow(consumer, permits or self.chance.choice([1, 3, 10, 1_000])))

    def _some_consumer(self) -> Consumer | None:
        found = [consumer for subscription in self.subscriptions for consumer in subscription.consumers]
        return self.chance.choice(found) if found else None

    def _sample(self, consumer: Consumer, count: int) -> list[Message]:
        return self.chance.sample(list(consumer.got), min(len(consumer.got), count))

    def flow(self) -> None:
        if (consumer := self._some_consumer()) is not None:
            self._flow(consumer)

    def leave(self) -> None:
        if (consumer := self._some_consumer()) is not None:
            process = self.owner_of(consumer.subscription.topic)
            consumer.subscription.consumers.remove(consumer)
            self.pass_of(process, process.rig.command("close_consumer", connection=consumer.connection,
                                                      consumer_id=consumer.object_id, request_id=next(self.numbers)))

    def redeliver(self) -> None:
        if (consumer := self._some_consumer()) is not None:
            process = self.owner_of(consumer.subscription.topic)
            wanted = self._sample(consumer, 3) if self.chance.random() < 0.5 else []
            self.pass_of(process, process.rig.redeliver(consumer, *[message.position for message in wanted]))

    def read(self) -> None:
        """Read a topic from its beginning: all that was committed is there, up to the first open transaction."""
        topic = self.chance.choice(self.names)
        process, number = self.owner_of(topic), next(self.numbers)
        connection = self.chance.choice(self.connections)
        if process is None or self.pass_of(process, process.rig.command(
                "subscribe", connection=connection, topic=topic, subscription=f"reader{number}", subType=0,
                consumer_id=number, request_id=number, durable=False, initialPosition=1)) is None \
                or number not in self.ready:
            return
        reader = Consumer(self.ready.pop(number), number, connection, Subscription("reader", topic, 0))
        got = self.readers[reader.handle] = {}
        if self._flow(reader, MANY) is not None:
            partition = process.rig.partition(topic)
            end = partition.limit or (1 << 62, 0)
            for message in self.messages[topic]:
                if message.position is not None and transaction_model.is_due(message) and message.position < end \
                        and message.position[0] >= partition.ledgers[0].ledger_id:
                    demand(message in got, "what is committed is there", message)
            self.pass_of(process, process.rig.command("close_consumer", connection=connection, consumer_id=number,
                                                      request_id=next(self.numbers)))
        self.readers = {}

    def _connected(self, producer: Producer) -> bool:
        """Connect a producer, which then sends what has no receipt again; return whether it is connected."""
        process = self.owner_of(producer.topic)
        if producer.handle or process is None:
            return bool(producer.handle)
        producer.connection, producer.object_id = self.chance.choice(self.connections), next(self.numbers)
        answers = self.pass_of(process, process.rig.command(
            "producer", connection=producer.connection, topic=producer.topic, producer_id=producer.object_id,
            request_id=producer.object_id, producer_name=producer.name, user_provided_producer_name=True))
        producer.handle = self.ready.pop(producer.object_id, 0) if answers is not None else 0
        demand(producer.handle or answers is None or self._has_faults(), "nothing is refused without a cause",
               producer.name)
        if not self.options["deduplication"]:
            producer.unconfirmed = []
        again = [message for message in producer.unconfirmed
                 if message.transaction is None or message.transaction.is_open(self.now_ms)]
        producer.unconfirmed = again[:]
        for message in again:
            if producer.handle:
                self._send(process, [(producer, message)])
                self.count("resends")
        return bool(producer.handle)

    # -- transactions

    def _some_open(self) -> Transaction | None:
        found = [one for one in self.transactions if one.fate == OPEN and not one.is_left]
        return self.chance.choice(found) if found else None

    def _is_forgotten(self, transaction: Transaction, process: Process, serial: int) -> bool:
        """Whether an owner need not know what was added to a transaction.  serial: of the process that knew it.

        A coordinator tells each new process of another owner.  For its own partitions it need not have synced it.
        """
        is_other = transaction.bits[0] % self.owners != process.index and not self.is_moving
        return process.serial != serial and not (process.is_known and is_other)

    def _may_ask(self, transaction: Transaction, process: Process) -> bool:
        """Whether an owner may have to ask another one what was added to a transaction, which takes some passes."""
        is_told = process.is_known and not self.is_moving and transaction.is_open(self.now_ms)
        return self._coordinator(transaction) is not process and not is_told

    def rewind(self, transaction: Transaction) -> None:
        """Use the sequence ids again of messages that were undone, by producers that have sent nothing behind them."""
        for producer in self.producers if self.options["deduplication"] else ():
            mine = [message for message in transaction.messages if message.producer == producer.name]
            if mine and producer.sent[-len(mine):] == mine and all(
                    message.position is not None and message.attempts == 1 for message in mine):
                del producer.sent[-len(mine):]
                producer.next_sequence = mine[0].sequence_id
                self.count("sent anew", len(mine))

    def _coordinator(self, transaction: Transaction) -> Process | None:
        return self.processes.get(transaction.bits[0] % self.owners)

    def new(self) -> None:
        index, lifetime_ms = self.chance.randrange(self.owners), self.chance.choice(LIFETIMES_MS)

        def done(error: int, answer) -> None:
            if error:
                return demand(self._has_faults(), "nothing is refused without a cause", answer)
            bits = answer.txnid_most_bits, answer.txnid_least_bits
            demand(bits not in self.ids, "ids are given out once", bits)
            self.ids.add(bits)
            lives_ms = lifetime_ms if lifetime_ms >= LIFETIME_MIN_MS else 0
            self.transactions.append(Transaction(bits, self.now_ms + lives_ms))
            self.count("transactions")

        process = self.processes.get(index)
        self._ask(process, "newTxn", done, lambda: None, tc_id=index, txn_ttl_millis=lifetime_ms)

    def add(self) -> None:
        """Add topics and subscriptions to a transaction, each in a request of its own."""
        if (transaction := self._some_open()) is None:
            return
        for topic in self.chance.sample(self.names, self.chance.randint(1, len(self.names))):
            self._add(transaction, topic, None)
            for subscription in self.subscriptions:
                if subscription.topic == topic and self.chance.random() < 0.7:
                    self._add(transaction, topic, subscription)

    def _add(self, transaction: Transaction, topic: str, subscription: Subscription | None) -> None:
        owner = self.owner_of(topic)
        serial = 0 if owner is None else owner.serial      # a later process does not know it until it is told again

        def done(error: int, answer) -> None:
            transaction.waiting -= 1
            if error:
                is_right = not transaction.is_open(self.now_ms) or not transaction.has_effects or self._has_faults()
                demand(is_right, "an open transaction goes on", f"{transaction} {answer}")
                transaction.is_spoiled = True
            elif subscription is None:
                transaction.topics[topic] = serial
            else:
                transaction.subscriptions[subscription] = serial

        def lost() -> None:
            transaction.waiting -= 1
            transaction.is_spoiled = True

        most, least = transaction.bits
        fields = {"txnid_most_bits": most, "txnid_least_bits": least}
        if subscription is None:
            command, fields["partitions"] = "addPartitionToTxn", [topic]
        else:
            command = "addSubscriptionToTxn"
            fields["subscription"] = [api.Subscription(topic=topic, subscription=subscription.name)]
        transaction.waiting += 1
        coordinator = self._coordinator(transaction)
        if not self._ask(coordinator, command, done, lost, **fields):
            transaction.waiting -= 1

    def _message(self, producer: Producer, transaction: Transaction | None) -> Message:
        number, batch = next(self.numbers), self.chance.choice([0, 0, 3, 70])
        fields = {"partition_key": self.chance.choice("klm")} if self.chance.random() < 0.7 else {}
        if self.chance.random() < 0.05:
            fields["deliver_at_time"] = self.now_ms + self.chance.choice([1, 50, 2_000])
        data = entry_of(b"%d " % number + b"x" * self.chance.choice([1, 200, 200, 900]), batch=batch,
                        sequence_id=producer.next_sequence, publish_time=self.now_ms, **fields)
        message = Message(number, producer.topic, data, batch or 1, producer.name, producer.next_sequence, transaction)
        producer.next_sequence += message.count
        self.messages[producer.topic].append(message)
        self.by_number[number] = message
        producer.sent.append(message)
        producer.unconfirmed.append(message)
        if transaction is not None:
            transaction.messages.append(message)
        return message

    def publish(self) -> None:
        """Publish in transactions and without, in one pass."""
        process = self.chance.choice(list(self.processes.values())) if self.processes else None
        producers = [one for one in self.producers if process is not None and self.owner_of(one.topic) is process]
        sent: list[tuple[Producer, Message]] = []
        for _ in range(self.chance.choice([1, 2, 4]) if producers else 0):
            producer = self.chance.choice(producers)
            if self.processes.get(process.index) is not process or not self._connected(producer):
                continue
            found = [one for one in self.transactions if not one.is_left and one.fate == OPEN
                     and producer.topic in one.topics]
            transaction = self.chance.choice([None, *found, *found, *found])
            for _ in range(self.chance.choice([1, 1, 3])):
                if sum(len(message.data) for _, message in sent) < BYTES_MAX:
                    sent.append((producer, self._message(producer, transaction)))
        if sent := [(producer, message) for producer, message in sent if producer.handle]:
            self._send(process, sent)

    def _send(self, process: Process, sent: list[tuple[Producer, Message]]) -> None:
        rows, offset = [], 0
        for producer, message in sent:
            command = api.CommandSend(producer_id=producer.object_id, sequence_id=message.sequence_id)
            if message.count > 1:
                command.highest_sequence_id = message.sequence_id + message.count - 1
            if message.transaction is not None:
                command.txnid_most_bits, command.txnid_least_bits = message.transaction.bits
            row = np.array([sends.read_one(command, message.data)], sends.SEND_ROW)
            row["producer"], row["connection"], row["offset"] = producer.handle, producer.connection, offset
            rows.append(row)
            offset += len(message.data)
            message.attempts += 1
            message.sent_ms = self.now_ms
            self.count("sends" if message.transaction is None else "sends in transactions")
            self.waiting.setdefault((producer.connection, producer.object_id), []).append(message)
        self.say("send", [(message.number, str(message.transaction)) for _, message in sent])
        kind = envelope.SENDS_IN_TRANSACTIONS if any(one.transaction for _, one in sent) else envelope.SENDS
        self.pass_of(process, (kind, np.concatenate(rows), b"".join(message.data for _, message in sent)))

    def acknowledge(self) -> None:
        """Acknowledge some of what a consumer got, in a transaction or without one."""
        found = [(consumer, transaction) for subscription in self.subscriptions for consumer in subscription.consumers
                 if consumer.got for transaction in [None, *self.transactions]
                 if transaction is None or (transaction.fate == OPEN and not transaction.is_left
                                            and subscription in transaction.subscriptions)]
        if not found:
            return
        consumer, transaction = self.chance.choice([*[one for one in found if one[1] is not None], *found])
        subscription, chance, ack = consumer.subscription, self.chance, Ack(transaction)
        is_cumulative = subscription.kind in SINGLE and chance.random() < 0.2
        wanted: list[tuple[Position, list[int]]] = []      # with words of messages that are left, for a part
        for message in self._sample(consumer, 1 if is_cumulative else chance.randint(1, 3)):
            bits, mine = consumer.got[message], message.whole
            if message.count > 1 and not is_cumulative and chance.random() < 0.5:
                mine = bits & (chance.getrandbits(message.count) | 1 << bits.bit_length() - 1)
            ack.bits[message], left = mine, message.whole & ~mine
            wanted.append((message.position, [left & (1 << 64) - 1, left >> 64][:-(-message.count // 64)]
                           if left else []))
            if not bits & ~mine and chance.random() < 0.8:
                del consumer.got[message]
        if is_cumulative:
            ack.up_to = wanted[0][0]
        self._acknowledge(consumer, ack, wanted, is_asked=ack.transaction is not None or chance.random() < 0.6)

    def _acknowledge(self, consumer: Consumer, ack: Ack, wanted: list, *, is_asked: bool) -> None:
        subscription, transaction = consumer.subscription, ack.transaction
        process, request_id = self.owner_of(subscription.topic), next(self.numbers)
        may_ask = transaction is not None and self._may_ask(transaction, process)
        subscription.acks.append(ack)
        if transaction is not None:
            transaction.acks.append(ack)

        def done(error: int, answer) -> None:
            ack.is_done, ack.is_refused = not error, bool(error)
            if error:      # it still has them
                consumer.got |= ack.bits
            self.count("acknowledgements refused", bool(error))
            if error == api.TransactionConflict:
                overlaps = any(ack.up_to is not None or any(other.of(message, message.position) for message in ack.bits)
                               for other in subscription.acks if other is not ack and not other.is_refused)
                demand(overlaps, "nothing is refused without a cause", answer)
            elif error:
                is_right = transaction is not None and (
                    not transaction.is_open(self.now_ms) or consumer not in subscription.consumers
                    or self._is_forgotten(transaction, process, transaction.subscriptions[subscription]))
                demand(is_right or self._has_faults(), "nothing is refused without a cause", answer)
            if transaction is not None:
                transaction.waiting -= 1

        def lost() -> None:
            if transaction is not None:
                transaction.waiting -= 1
                transaction.is_spoiled = True

        if is_asked:
            self.expect(process, consumer.connection, request_id, done, lost)
        self.say("acknowledge", subscription.name, str(transaction), [(one.number, bits) for one, bits in
                                                                      ack.bits.items()], ack.up_to)
        if transaction is not None:
            transaction.waiting += 1
            ids = [api.MessageIdData(ledgerId=ledger_id, entryId=entry_id,
                                     ack_set=np.array(words, np.uint64).view(np.int64).tolist())
                   for (ledger_id, entry_id), words in wanted]
            kind = api.CommandAck.Individual if ack.up_to is None else api.CommandAck.Cumulative
            most, least = transaction.bits
            sections = [process.rig.command(
                "ack", connection=consumer.connection, consumer_id=consumer.object_id, ack_type=kind, message_id=ids,
                txnid_most_bits=most, txnid_least_bits=least, request_id=request_id)]
        else:
            sections = [process.rig.ack_part(consumer, position, *words) if words else process.rig.acks(
                consumer, position, cumulative=ack.up_to is not None) for position, words in wanted]
            if is_asked:
                last = sections[-1][1]
                last["request_id"][-1] = request_id
                last["flags"][-1] |= envelope.WANTS_RESPONSE
        self.count("acknowledgements" if transaction is None else "acknowledgements in transactions")
        self.pass_of(process, *sections)
        demand(may_ask or (process.serial, consumer.connection, request_id) not in self.requests,
               "every acknowledgement that asks is answered", subscription.name)
