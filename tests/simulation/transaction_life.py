"""What happens in a world of transactions: each step one of ACTIONS, and in the end everything is over.

Owners are killed, stopped and started, their network is slow, and the power fails.  Transactions are committed and
aborted, run out of time, and are left by their clients.
"""
from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.owner.owner_pass import TICK_MS
from geminga.storage.topics.subscription import SubType
from geminga.storage.transactions import transaction_table
from geminga.storage.transactions.transaction_table import ENDED_MS

from . import checks, transaction_model
from .disk import Fate
from .model import demand
from .transaction_clients import MANY, TransactionClients
from .transaction_model import ABORTED, ASKED, COMMITTED, OPEN, Ack, Message, Subscription, Transaction
from .world import Again

FAR_MS = 1 << 40         # a lifetime beyond this does not end while the world lives
AGAIN_MS = 10_000        # after this all that an owner tries again has been tried again
OLD_MS = 5 * 3600_000    # after this a ledger is old enough for a new one


class TransactionLife(TransactionClients):
    """Clients that do something at random, and owners to which anything happens."""

    def step(self) -> None:
        self.faults_go_on()
        if self.chance.random() < 0.4:
            self.join()
        [action] = self.chance.choices(list(ACTIONS), list(ACTIONS.values()))
        self.say(action.__name__)
        action(self)

    # -- ends of transactions

    def end_one(self) -> None:
        if (transaction := self._some_open()) is not None:
            self._end(transaction, commits=self.chance.random() < 0.75)

    def _end(self, transaction: Transaction, *, commits: bool) -> None:
        """End a transaction as its client does; one that is not whole is aborted."""
        commits = commits and transaction.is_whole
        if self._coordinator(transaction) is not None:
            is_open, transaction.asked_ms = transaction.is_open(self.now_ms), self.now_ms
            transaction.learn(ASKED if commits else ABORTED, "asked")
            self.say("end", str(transaction), commits)
            self._ask_end(transaction, commits=commits, is_open=is_open)

    def _ask_end(self, transaction: Transaction, *, commits: bool, is_open: bool = False) -> None:
        """Ask for an end.  is_open: the transaction is open, so that this is surely done."""
        most, least = transaction.bits

        def done(error: int, answer) -> None:
            demand(not error or not is_open or not transaction.has_effects or self._has_faults(),
                   "an open transaction goes on", f"{transaction} {answer}")
            if error in (api.TransactionNotFound, api.TransactionCoordinatorNotFound):
                is_late = self.now_ms - transaction.asked_ms >= ENDED_MS
                demand(is_late or not transaction.has_effects or self._has_faults(), "an end may be asked for again",
                       f"{transaction} {answer}")
                transaction.is_forgotten = True
            elif not error:
                transaction.learn(COMMITTED if commits else ABORTED, "answered")
                transaction.is_told = True
                self.count("commits" if commits else "aborts")
                if not commits and self.chance.random() < 0.7:
                    self.rewind(transaction)
            elif error == api.InvalidTxnStatus:
                transaction.learn(ABORTED if commits else COMMITTED, "answered")
                transaction.is_told = True
            else:
                demand(self._has_faults(), "nothing is refused without a cause", f"{transaction} {answer}")

        connection = next(self.numbers)      # another one, which was not told
        self.connections.append(connection)
        process, request_id = self._coordinator(transaction), next(self.numbers)
        self.expect(process, connection, request_id, done, lambda: None)
        self.pass_of(process, process.rig.command(
            "endTxn", connection=connection, request_id=request_id, txnid_most_bits=most, txnid_least_bits=least,
            txn_action=api.COMMIT if commits else api.ABORT))

    def ask_again(self) -> None:
        """Ask for an end again whose answer may have been lost, or ask for the other one."""
        found = [one for one in self.transactions if one.asked_ms is not None and self._coordinator(one) is not None
                 and not one.is_forgotten]
        if found:
            transaction = self.chance.choice([*[one for one in found if one.fate == ASKED], *found])
            commits = transaction.fate in (ASKED, COMMITTED)
            if transaction.is_told and self.chance.random() < 0.5:
                commits = not commits
            self._ask_end(transaction, commits=commits)

    def vanish(self) -> None:
        if (transaction := self._some_open()) is not None:
            transaction.is_left = True

    # -- owners

    def unload(self) -> None:
        topic = self.chance.choice(self.names)
        if (process := self.owner_of(topic)) is not None:
            self.disconnect(topic)
            self.pass_of(process, process.rig.question("unload", topic))

    def drop_connection(self) -> None:
        self._drop(self.chance.choice(self.connections))

    def _drop(self, connection: int) -> None:
        self.connections = [next(self.numbers) if one == connection else one for one in self.connections]
        self.forget_connection(connection)
        for process in list(self.processes.values()):
            self.pass_of(process, process.rig.happened(envelope.CONNECTION_GONE, connection=connection))

    # -- the end of the world

    def end(self) -> None:
        """End all faults and transactions, and check that everything is delivered and nothing is left."""
        self.is_ending, self.is_moving = True, False
        while not self._everything_is_done():
            self.count("ends begun again")
        self.start_all()
        for process in self.processes.values():
            demand(process.rig.recovered == 0, "nothing is replayed after a clean stop", process.rig.recovered)

    def _everything_is_done(self) -> bool:
        """End everything, and stop all owners; return False if an earlier fault ended one of them meanwhile."""
        self.disk.fate = Fate()
        evidence: dict[Transaction, dict[str, str]] = {}
        try:
            while len(self.processes) < self.owners:
                self.start_some()
            self.settle()
            self._end_transactions()
            self._what_is_due_has_come()
            for connection in list(self.connections):
                self._drop(connection)
            for subscription in self.subscriptions:
                transaction_model.ended(
                    subscription, self.messages[subscription.topic], self._drain(subscription), evidence)
            self._acknowledge_everything()
            self._nothing_is_left()
            for process in list(self.processes.values()):
                self.stop_one(process)
        except Again:
            return False
        self._nothing_is_in_files()
        return True

    def _end_transactions(self) -> None:
        """End open transactions, or let their time pass; ask again for some ends without an answer."""
        for transaction in self.transactions:
            is_long = transaction.deadline_ms - self.now_ms > FAR_MS
            if transaction.fate == OPEN and (is_long or self.chance.random() < 0.5):
                self._end(transaction, commits=not transaction.is_left)
            elif transaction.fate == ASKED and self.chance.random() < 0.5:
                self._ask_end(transaction, commits=True)
        by_bits = {transaction.bits: transaction for transaction in self.transactions}
        for process in list(self.processes.values()):      # a request to begin or to end one was lost
            for each in process.rig.owner.coordinator.transactions.open:
                transaction = by_bits.get(names.transaction_bits(each.transaction))
                if each.state == transaction_table.OPEN and transaction is not None and transaction.fate == ASKED:
                    self._ask_end(transaction, commits=True)
                elif each.state == transaction_table.OPEN and each.lifetime_ms > FAR_MS:
                    self.pass_of(process, process.rig.tell("abort-transaction", transaction=each.transaction))
        self.settle()
        last = max((one.deadline_ms for one in self.transactions if one.deadline_ms - self.now_ms < FAR_MS),
                   default=0)
        self.pass_of_all(max(0, last - self.now_ms) + TICK_MS)
        for _ in range(2):      # partitions that could not be opened, and owners that have not answered, are told again
            self.pass_of_all(AGAIN_MS)
            self.settle()
        demand(not self.requests, "every request is answered", self.requests)
        demand(not self.waiting, "every send is answered", self.waiting)
        for transaction in self.transactions:
            if transaction.fate == OPEN:
                transaction.learn(ABORTED, "its time is over")

    def _what_is_due_has_come(self) -> None:
        """Check that consumers of Shared subscriptions have got all that nobody has acknowledged, if they want it."""
        for subscription in self.subscriptions:
            if subscription.kind != SubType.Shared or not subscription.consumers:
                continue
            self.now_ms += 10_000
            for consumer in subscription.consumers:
                self._flow(consumer, MANY)
            held = {message for consumer in subscription.consumers for message in consumer.got}
            for message in self.messages[subscription.topic]:
                demand(message in held or not transaction_model.left(subscription, message), "what is due is delivered",
                       f"{subscription.name} {message}")

    def _drain(self, subscription: Subscription) -> dict[Message, int]:
        """Return the bits of messages that a new consumer gets of the subscription."""
        consumer, before = self._join(subscription), -1
        while consumer.deliveries > before:
            before = consumer.deliveries
            self.now_ms += 10_000
            self._flow(consumer, MANY)
        demand(consumer.deliveries == len(consumer.got), "nothing is delivered twice", subscription.name)
        return consumer.got

    def _acknowledge_everything(self) -> None:
        """Acknowledge everything, and what is published then in a new ledger; the others are deleted."""
        for is_new in False, True, True:
            self.pass_of_all(OLD_MS if is_new else 0)
            for topic in self.names:
                producer = next(one for one in self.producers if one.topic == topic)
                if is_new and self._connected(producer):
                    self._send(self.owner_of(topic), [(producer, self._message(producer, None))])
                for subscription in self.subscriptions:
                    [consumer] = subscription.consumers
                    if subscription.topic == topic and consumer.got:
                        ack, consumer.got = Ack(None, {message: message.whole for message in consumer.got}), {}
                        self._acknowledge(consumer, ack, [(one.position, []) for one in ack.bits], is_asked=True)
        self.pass_of_all()
        for topic in self.names:
            partition = self.owner_of(topic).rig.partition(topic)
            checks.space_is_given_back(partition, has_failed="failed sync" in self.disk.faults)

    def _nothing_is_left(self) -> None:
        """Check that no owner remembers anything of a transaction."""
        promise = "nothing is left of ended transactions"
        self.pass_of_all(ENDED_MS)
        self.settle()
        for process in self.processes.values():
            owner = process.rig.owner
            coordinator, participant = owner.coordinator, owner.participant
            demand(coordinator.transactions.active == 0, promise, coordinator.transactions.open)
            demand(not (coordinator._under_way or coordinator._early), promise, coordinator._under_way)
            tables = coordinator.transactions.tables
            demand(not any(table._ended for table in tables.values()), promise, tables)
            demand(not (participant._added or participant._later), promise, participant)
            demand(not process.links._waiting.get(1 - process.index), promise, process.links._waiting)
            for partition in process.rig.partitions:
                if (known := partition.transactions) is not None:
                    demand(not (known.by_id or known.added) and known.limit is None, promise, known)
                for subscription in partition.subscriptions.values():
                    demand(subscription.withheld is None, promise, subscription.withheld)

    def _nothing_is_in_files(self) -> None:
        """Check that the tables of coordinators have room for ended transactions only, and these once."""
        for path in sorted((self.disk.root / "transactions").glob("*/table")):
            found, size = transaction_table.read(self.disk.root, int(path.parent.name)), path.stat().st_size
            demand(not found.by_id and not found.damage, "nothing is left of ended transactions", found)
            bound = 2 * (format.HEADER_SIZE + len(self.ids) * format.OP_ROW.itemsize)
            demand(size <= bound, "files of transactions are bounded", f"{path} {size}")


ACTIONS = {
    TransactionLife.new: 12, TransactionLife.add: 14, TransactionLife.publish: 22, TransactionLife.acknowledge: 24,
    TransactionLife.flow: 8, TransactionLife.leave: 1, TransactionLife.redeliver: 5, TransactionLife.read: 3,
    TransactionLife.end_one: 9, TransactionLife.ask_again: 3, TransactionLife.vanish: 1, TransactionLife.time_passes: 4,
    TransactionLife.killed: 1.5, TransactionLife.stopped: 0.7, TransactionLife.unload: 1,
    TransactionLife.drop_connection: 1.5,
}
