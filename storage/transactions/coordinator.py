"""The coordinator of transactions in one owner: begin, add partitions and subscriptions, decide, carry to the end.

    OPEN -> COMMITTING -> COMMITTED      END_TXN
    OPEN -> ABORTING -> ABORTED          END_TXN, or the transaction's time is over

COMMITTING and ABORTING are durable decisions: after a crash they are repeated until every partition has answered.  Of
a transaction that its coordinator does not know, nothing was ever committed, so a partition that asks is told to abort.

An owner is the coordinator with its own index as number.  When the number of owners has become smaller, it also ends
the transactions of coordinators that have no owner any more.
"""
from bisect import bisect_left
from collections.abc import Callable, Sized
from functools import partial
from itertools import chain, islice

from geminga.proto import envelope, names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.ledgers import journal_ops
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.session import Session, Sessions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.runtime.routing import owner_of
from geminga.storage.transactions import named, transaction_table
from geminga.storage.transactions.coordinated import Transactions
from geminga.storage.transactions.deadlines import Deadlines
from geminga.storage.transactions.held_commits import HeldCommits
from geminga.storage.transactions.peers import Peers
from geminga.storage.transactions.transaction_table import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    OPEN,
    Role,
    Transaction,
    TransactionTable,
    Used,
)
from geminga.storage.transactions.under_way import Answer, Request, UnderWay

LIFETIME_MIN_MS = 100                # transactions of a shorter life are aborted at once, as Pulsar does
_LIFETIME_MAX_MS = 1 << 50           # a sum with today's time still fits into a journal's op
_WAITING_MAX = 100_000               # requests that wait for other owners; one of them may be down for long
_TOLD_MAX = 1_000                    # ended transactions that a connection is remembered to know
PROMISED_MAX = 10_000                # names of one transaction that do not exist; each takes memory until it ends
_EXPIRED_MAX = 1_000                 # transactions whose time is over that one pass aborts
_GONE = -1                           # in place of an owner's index: the partition was deleted

# Bounds in ms of `Coordinator.durations`, those of Pulsar's metrics.
DURATIONS_MS = 10, 20, 50, 100, 500, 1_000, 5_000, 15_000, 30_000, 60_000, 300_000, 1_500_000, 3_000_000


class Coordinator(Watcher):
    """The transactions that one owner coordinates."""

    def __init__(self, decisions: Decisions, sessions: Sessions, topics: TopicTable, reports: Reports, peers: Peers,
                 tables: dict[int, TransactionTable], *, has_moved: bool):
        """Take over recovered tables, by number of the coordinator.

        has_moved: the number of owners has changed, so other owners may still be writing tables that are this owner's
        now.  Transactions can be used once all other owners have been reported by `owner_is_up`.
        """
        self._decisions, self._sessions, self._topics = decisions, sessions, topics
        self._reports, self._peers, self.transactions = reports, peers, Transactions(tables)
        self.created = self.committed = self.aborted = self.timed_out = 0      # transactions, since the start
        self.appended = 0                                    # changes in the journal, since the start
        self.durations = [0] * (len(DURATIONS_MS) + 1)       # of ended ones, by DURATIONS_MS; the last are longer
        self._deadlines = Deadlines(self.transactions)
        self._under_way: dict[int, UnderWay] = {}           # by transaction
        self._owners: dict[int, int] = {}                    # partition id -> index of its owner, or _GONE
        # What commands of this pass have named, which mostly name the same.
        self._found: dict[named.Wanted, tuple[Used, str]] = {}
        self._waiting: dict[Request, None] = {}             # for other owners
        self.held = HeldCommits()
        self._early: list[Callable[[], None]] = []           # questions that came before `_begin`
        self._missing = set(range(peers.owners)) - {peers.index} if has_moved else set()
        self.is_ready = False      # whether transactions may be used
        self.newest = 0            # the transaction that began last, since the start
        # By session of the broker's own processes: the last one that it began.  These have one at a time.
        self._newest_of: dict[tuple[int, int], int] = {}
        if not self._missing:
            self._begin()

    def __repr__(self) -> str:
        return f"<Coordinator ready={self.is_ready} {self.transactions!r} under_way={len(self._under_way)}>"

    @property
    def waits_for_owners(self) -> bool:
        """Whether other owners have not recovered yet, so that their journals may have records of partitions here."""
        return bool(self._missing)

    @property
    def unanswered(self) -> int:
        """Number of decided ends that partitions have not carried out yet."""
        return sum(len(each.left) for each in self._under_way.values())

    def left_of(self, transaction: Transaction) -> set[int]:
        """Return the ids of partitions in which a transaction has not ended yet, although its end is decided."""
        waiting = self._under_way.get(transaction.transaction)
        return set() if waiting is None else waiting.left

    def _begin(self) -> None:
        """Read tables that no op of the journal has changed, and go on with transactions that have not ended."""
        peers = self._peers
        for path in (self._topics.data_dir / "transactions").glob("*"):
            number = int(path.name) if path.name.isdigit() else -1
            if number >= 0 and number % peers.owners == peers.index and number not in self.transactions.tables:
                table = self.transactions.tables[number] = transaction_table.read(self._topics.data_dir, number)
                for text in table.damage:
                    self._reports.damage(text)
        if peers.index not in self.transactions.tables:
            self.transactions.tables[peers.index] = transaction_table.read(self._topics.data_dir, peers.index)
        self.is_ready = True
        for transaction in self.transactions.open:
            self._deadlines.add(transaction)
            if transaction.state != OPEN:
                transaction.decided_ms = self._decisions.now_ms
                self._of(transaction).left.update(partition_id for partition_id, _ in transaction.added)
            self._repeat(transaction)
        while self._early:
            self._early.pop(0)()

    # -- other owners

    def owner_is_up(self, index: int) -> None:
        """Repeat to an owner that serves now what its last process may not have made durable."""
        self._missing.discard(index)
        if self.is_ready:
            for transaction in self.transactions.open:
                self._repeat(transaction, index)
        elif not self._missing:
            self._begin()

    def _repeat(self, transaction: Transaction, index: int | None = None) -> None:
        """Send what a transaction is waiting for, or what participants may have forgotten.

        index: only to that owner; None: to all.
        """
        if transaction.state != OPEN:
            return self._send_end(transaction, [one for one in self._of(transaction).left
                                                if index is None or self._owner_of(one) == index])
        for partition_id, subscription_id in transaction.added:
            to = self._owner_of(partition_id)
            if to != _GONE and index in (None, to):
                self._send_add(to, transaction, partition_id, subscription_id)

    def _send_add(self, to: int, transaction: Transaction, partition_id: int, subscription_id: int) -> None:
        """Tell a participant what was added to a transaction, and whose it is."""
        self._peers.send(to, envelope.ADD, transaction.transaction, partition_id, subscription_id,
                         transaction.role.hash)

    def added(self, transaction_id: int, partition_id: int, subscription_id: int) -> None:
        """Note that a participant knows a partition or subscription to be in the transaction."""
        transaction = self.transactions.find(transaction_id)      # an ADD of a former process may arrive behind the end
        if transaction is None or (transaction.state != OPEN and partition_id not in self._of(transaction).left):
            return self.asked(transaction_id, partition_id)
        if (waiting := self._under_way.get(transaction_id)) is not None:
            for request in waiting.adding.pop((partition_id, subscription_id), ()):
                request.left -= 1
                if not request.left:
                    self._reply(request, transaction_id)
            if not (waiting.adding or waiting.ending or waiting.left):
                del self._under_way[transaction_id]

    def ended(self, transaction_id: int, partition_id: int) -> None:
        """Note that a participant has ended the transaction in a partition, durably."""
        transaction = self.transactions.find(transaction_id)
        if transaction is not None and transaction.state != OPEN:
            self._of(transaction).left.discard(partition_id)
            self._finish_if_done(transaction)

    def asked(self, transaction_id: int, partition_id: int) -> None:
        """Tell a participant how the transaction ended that is open in one of its partitions.

        If it is open here too, tell what was added.  A partition whose ADD was lost in a power cut is added again.
        """
        if not self.is_ready:
            self._early.append(partial(self.asked, transaction_id, partition_id))
            return
        transaction, to = self.transactions.find(transaction_id), self._owner_of(partition_id)
        if to == _GONE:
            return
        if transaction is None:
            how = self.transactions.ended(transaction_id)
            what = envelope.COMMIT if how is not None and how[0] == COMMITTED else envelope.ABORT
            self._peers.send(to, what, transaction_id, partition_id, 0)
        elif transaction.state == OPEN:
            if all(used[0] != partition_id for used in transaction.added):
                self._add(transaction, (partition_id, 0))
            for used in transaction.added:
                if used[0] == partition_id:
                    self._send_add(to, transaction, *used)
        else:
            self._of(transaction).left.add(partition_id)
            self._send_end(transaction, [partition_id])

    def may_publish(self, transaction_id: int, partition_id: int) -> None:
        """Tell a participant what to do with a SEND in a transaction that it does not know to be open."""
        if not self.is_ready:
            self._early.append(partial(self.may_publish, transaction_id, partition_id))
            return
        transaction, what = self.transactions.find(transaction_id), envelope.REFUSED
        if transaction is None:
            if self.transactions.outcome(transaction_id) == ABORTED:
                what = envelope.ABORT
        elif transaction.state == ABORTING:
            self._of(transaction).left.add(partition_id)
            what = envelope.ABORT
        elif transaction.state == OPEN and self._is_added(transaction, partition_id):
            what = envelope.ADD
        if (to := self._owner_of(partition_id)) != _GONE:
            role = transaction.role.hash if transaction is not None else 0
            self._peers.send(to, what, transaction_id, partition_id, 0, role)

    def _is_added(self, transaction: Transaction, partition_id: int) -> bool:
        """Whether a transaction may publish to a partition.

        A topic that was not there when its name was added is there now: its partition is added.
        """
        if (partition_id, 0) in transaction.added:
            return True
        name = self._topics.catalogue.partitions.name_of(partition_id)
        if name is None or not transaction.promised or named.hash_of(name) not in transaction.promised:
            return False
        self._add(transaction, (partition_id, 0))
        # Otherwise the partition's owner may store what the transaction does before we sync.
        self._decisions.answer_needs_sync()
        return True

    def may_acknowledge(self, transaction_id: int, partition_id: int, subscription_id: int) -> None:
        """Tell a participant what to do with an ACK on a subscription that it does not know to be in a transaction."""
        if not self.is_ready:
            self._early.append(partial(self.may_acknowledge, transaction_id, partition_id, subscription_id))
            return
        transaction, what, role = self.transactions.find(transaction_id), envelope.REFUSED, 0
        if transaction is not None and transaction.state == OPEN and self._may_acknowledge(
                transaction, partition_id, subscription_id):
            what, role = envelope.ADD, transaction.role.hash
        if (to := self._owner_of(partition_id)) != _GONE:
            self._peers.send(to, what, transaction_id, partition_id, subscription_id, role)

    def _may_acknowledge(self, transaction: Transaction, partition_id: int, subscription_id: int) -> bool:
        """Whether a transaction may acknowledge on a subscription, which is there now if it was not when added."""
        if transaction.added & {(partition_id, subscription_id), (partition_id, named.NOT_STORED)}:
            return True
        if transaction.promised and named.subscription_hash(
                self._topics.catalogue, partition_id, subscription_id) in transaction.promised:
            self._add(transaction, (partition_id, subscription_id))
            self._decisions.answer_needs_sync()      # as in `_is_added`
            return True
        return False

    # -- commands of clients

    def new(self, session: Session, request_id: int, coordinator: int, lifetime_ms: int) -> None:
        """Begin a transaction, and answer its client.  Raises Refusal, StorageFull, NotDurable."""
        number = self._peers.index
        if not self.is_ready or coordinator != number or number > names.COORDINATOR_MAX:
            raise _no_coordinator(coordinator)
        table, maximum = self.transactions.tables[number], self._topics.options.current.max_active_transactions
        if maximum and len(table.by_id) >= maximum:
            raise Refusal(api.TooManyRequests, f"Coordinator {number} has {maximum} active transactions already")
        least = self._topics.catalogue.ids.next_transaction()
        transaction_id = names.transaction(number, least)
        assert transaction_id is not None, (number, least)
        lifetime_ms = min(lifetime_ms, _LIFETIME_MAX_MS) if lifetime_ms >= LIFETIME_MIN_MS else 0
        transaction = Transaction(
            transaction_id, transaction_table.role(session.role), self._decisions.now_ms, lifetime_ms,
            role_name=session.role)
        table.by_id[transaction_id] = transaction
        self._deadlines.add(transaction)
        self._append(transaction, transaction.op())
        self.created, self.newest = self.created + 1, transaction_id
        if session.is_replicator or session.client_version == names.PROGRAM:
            self._newest_of[session.key] = transaction_id
        self._decisions.outbox(session.worker).reply(
            session.connection, responses.new_transaction(request_id, number, least), request_id=request_id)

    def add(self, session: Session, request_id: int, bits: tuple[int, int], wanted: list[named.Wanted],
            kind: int, answer: Answer) -> None:
        """Add topics or subscriptions to a transaction; answer its client once the topics' owners have noted that.

        wanted: (topic, subscription or None) of each.  A topic that is not stored, or a subscription of one, is
        promised (named.py).  Raises Refusal, StorageFull.
        """
        transaction = self._mine(session, bits)
        if transaction.state != OPEN:
            raise _ending(transaction)
        _check_room(self._waiting)
        stored, promised = named.look_up(self._topics, wanted, self._found)
        if promised:
            self._promise(transaction, promised - transaction.promised)
        request = Request(session, request_id, kind, answer, left=len(stored))
        if not stored:
            return self._reply(request, transaction.transaction)
        self._waiting[request], adding = None, self._of(transaction).adding
        for used, (name, written) in stored.items():
            transaction.written[name] = written
            to = self._owner_of(used[0], name)
            if used not in transaction.added:
                self._add(transaction, used)
                if to != self._peers.index:      # else `to` may store what a crash here forgets
                    self._decisions.answer_needs_sync()
            adding.setdefault(used, []).append(request)
            self._send_add(to, transaction, *used)

    def _promise(self, transaction: Transaction, topics: set[bytes]) -> None:
        """Note topics that are not there, or subscriptions of them, as the transaction's, by hashes of their names.

        Raises Refusal.
        """
        if len(transaction.promised) + len(topics) > PROMISED_MAX:
            raise Refusal(api.NotAllowedError, f"A transaction takes {PROMISED_MAX} topics that do not exist")
        for topic in topics:
            transaction.promised.add(topic)
            self._append(transaction, journal_ops.promised_to_transaction(transaction.transaction, topic))
        if topics:
            self._decisions.answer_needs_sync()

    def _add(self, transaction: Transaction, used: Used) -> None:
        transaction.added.add(used)
        self._append(transaction, journal_ops.added_to_transaction(transaction.transaction, *used))

    def end(self, session: Session, request_id: int, bits: tuple[int, int], kind: int, answer: Answer, *,
            commits: bool) -> None:
        """Commit or abort a transaction, and answer the client when all its partitions have.  Raises Refusal."""
        known = names.transaction(*bits)
        how = None if known is None else self.transactions.ended(known)
        if known is not None and how is not None and _may_use(session, how[1]):
            if known in session.told_ended:      # only a client that may have lost the answer asks again by right
                raise Refusal(api.TransactionNotFound, f"Transaction {names.transaction_text(known)} has ended")
            if (how[0] == COMMITTED) != commits:
                raise Refusal(api.InvalidTxnStatus,
                              f"Transaction {names.transaction_text(known)} was {transaction_table.STATES[how[0]]}")
            return self._tell_end(Request(session, request_id, kind, answer), known)
        transaction, request = self._mine(session, bits), Request(session, request_id, kind, answer)
        _check_room(self._waiting)
        if transaction.state == OPEN and commits and self.held.is_on:
            return self.held.add(partial(self._end_later, request, bits))
        if transaction.state == OPEN:
            self._decide(transaction, commits=commits)
        elif transaction.commits != commits:
            raise _ending(transaction)
        self._waiting[request] = None
        self._of(transaction).ending.append(request)
        self._finish_if_done(transaction)

    def release_commits(self) -> None:
        """Decide the commits that have waited for a backup, and answer them."""
        for decide in self.held.take():
            decide()

    def _end_later(self, request: Request, bits: tuple[int, int]) -> None:
        try:
            self.end(request.session, request.request_id, bits, request.kind, request.answer, commits=True)
        except Refusal as refusal:
            self._write(request, _refused(request, bits, refusal))

    def backed_up(self) -> dict[int, bytes]:
        """Return the content of each coordinator's table in a backup, by number.  Raises Refusal: it comes too late."""
        self.held.check_cut(self._decisions.now_ms)
        return {number: table.encode(of_backup=True) for number, table in self.transactions.tables.items()}

    def abort(self, transaction_id: int) -> bool:
        """Abort a transaction for an administrator; return whether it was open."""
        transaction = self.transactions.find(transaction_id)
        if transaction is None or transaction.state != OPEN:
            return False
        self._decide(transaction, commits=False)
        self._finish_if_done(transaction)
        return True

    def session_ended(self, session: Session) -> None:
        """Abort the transaction that one of the broker's own processes or commands has left open, as nobody goes on.

        Clients may: they connect again and end theirs.
        """
        if (transaction_id := self._newest_of.pop(session.key, None)) is not None:
            self.abort(transaction_id)

    # -- the end

    def _decide(self, transaction: Transaction, *, commits: bool) -> None:
        """Decide the end of an open transaction, and tell all of its partitions."""
        transaction.state, transaction.decided_ms = COMMITTING if commits else ABORTING, self._decisions.now_ms
        self._append(transaction, transaction.op())
        self._decisions.answer_needs_sync()
        waiting = self._of(transaction)
        if waiting.adding:
            bits, refused = names.transaction_bits(transaction.transaction), chain(*waiting.adding.values())
            for request in dict.fromkeys(refused):
                self._write(request, _refused(request, bits, _ending(transaction)))
            waiting.adding.clear()
        waiting.left |= {partition_id for partition_id, _ in transaction.added}
        self._send_end(transaction, sorted(waiting.left))

    def _send_end(self, transaction: Transaction, partition_ids: list[int]) -> None:
        """Tell the owners of these partitions to end the transaction.  Deleted ones need nothing."""
        what, left = envelope.COMMIT if transaction.commits else envelope.ABORT, self._of(transaction).left
        for partition_id in partition_ids:
            to = self._owner_of(partition_id)
            if to == _GONE:
                left.discard(partition_id)
            else:
                self._peers.send(to, what, transaction.transaction, partition_id, 0)
        self._finish_if_done(transaction)

    def _finish_if_done(self, transaction: Transaction) -> None:
        """If all partitions have ended the transaction, answer whoever waits, and forget it but for its end."""
        waiting = self._of(transaction)
        if waiting.left:
            return
        table = self.transactions.table_of(transaction)
        if transaction.transaction in table.by_id:
            now_ms = self._decisions.now_ms
            self._append(transaction, table.end(transaction, commits=transaction.commits, now_ms=now_ms))
            self.durations[bisect_left(DURATIONS_MS, self._decisions.now_ms - transaction.opened_ms)] += 1
            self.committed += transaction.commits
            self.aborted += not transaction.commits
        for request in waiting.ending:
            self._tell_end(request, transaction.transaction)
        del self._under_way[transaction.transaction]

    def _append(self, transaction: Transaction, op: bytes) -> None:
        """Note a change of a transaction for the journal."""
        self._decisions.note_for(self.transactions.table_of(transaction), op)
        self.appended += 1

    def _tell_end(self, request: Request, transaction_id: int) -> None:
        """Answer an END_TXN, and remember for a while that this connection was told."""
        told = request.session.told_ended
        told[transaction_id] = None
        if len(told) > _TOLD_MAX:      # many at once: finding the first one takes as long as many were deleted before
            for old in list(islice(told, _TOLD_MAX // 2)):
                del told[old]
        self._reply(request, transaction_id)

    def expire(self, now_ms: int) -> None:
        """Abort transactions whose time is over, and decide commits that have waited for too long; once a pass."""
        self._found.clear()
        if self.held.is_over(now_ms):
            self.release_commits()
        for _ in range(_EXPIRED_MAX):
            if (transaction := self._deadlines.take(now_ms)) is None:
                return
            self.timed_out += 1
            self._decide(transaction, commits=False)

    def due_ms(self) -> int:
        """Return the next deadline of a transaction, or of commits that wait, in ms since 1970, or NEVER_MS."""
        return min(self._deadlines.next_ms(), self.held.due_ms())

    def tick(self, now_ms: int) -> None:
        """Repeat what participants have not answered, and forget what ended long ago; called once a second."""
        for transaction_id, waiting in list(self._under_way.items()):
            if (transaction := self.transactions.find(transaction_id)) is not None and waiting.is_late(now_ms):
                self._repeat(transaction)
        for table in self.transactions.tables.values():
            table.forget_ended(now_ms)
        self._owners.clear()      # partitions may have been deleted

    # -- tables

    def _mine(self, session: Session, bits: tuple[int, int]) -> Transaction:
        """Return a transaction that has not ended, and that this client may use.  Raises Refusal."""
        transaction_id = names.transaction(*bits)
        if not self.is_ready or (bits[0] not in self.transactions.tables and bits[0] >= self._peers.owners):
            raise _no_coordinator(bits[0])
        transaction = self.transactions.find(transaction_id) if transaction_id is not None else None
        if transaction is None or not _may_use(session, transaction.role):
            raise Refusal(api.TransactionNotFound, f"Transaction ({bits[0]},{bits[1]}) is unknown or has ended")
        return transaction

    def _of(self, transaction: Transaction) -> UnderWay:
        if (waiting := self._under_way.get(transaction.transaction)) is None:
            waiting = self._under_way[transaction.transaction] = UnderWay(self._decisions.now_ms)
        return waiting

    def _owner_of(self, partition_id: int, name: str | None = None) -> int:
        """Return the index of a partition's owner, _GONE of a deleted partition."""
        if (owner := self._owners.get(partition_id)) is None:
            name = name or self._topics.catalogue.partitions.name_of(partition_id)
            owner = self._owners[partition_id] = _GONE if name is None else owner_of(name, self._peers.owners)
        return owner

    # -- answers

    def _reply(self, request: Request, transaction_id: int) -> None:
        self._write(request, request.answer(request.request_id, *names.transaction_bits(transaction_id)))

    def _write(self, request: Request, frame: bytes) -> None:
        self._waiting.pop(request, None)
        if self._sessions.has(request.session):
            self._decisions.outbox(request.session.worker).reply(
                request.session.connection, frame, request_id=request.request_id)


def _refused(request: Request, bits: tuple[int, int], why: Refusal) -> bytes:
    return responses.refusal_by_ids(request.kind, request.request_id, bits, why.code, why.message)


def _may_use(session: Session, role: Role) -> bool:
    return session.is_superuser or role.is_name(session.role)


def _check_room(waiting: Sized) -> None:
    """Raise Refusal if too many requests wait for other owners already.  Clients then try again."""
    if len(waiting) >= _WAITING_MAX:
        raise Refusal(api.TransactionCoordinatorNotFound, "Too many requests wait for another owner; try again")


def _no_coordinator(number: int) -> Refusal:
    return Refusal(api.TransactionCoordinatorNotFound, f"There is no coordinator {number} of transactions here")


def _ending(transaction: Transaction) -> Refusal:
    return Refusal(api.InvalidTxnStatus, f"Transaction {names.transaction_text(transaction.transaction)} is "
                                         f"{transaction_table.STATES[transaction.state]}")
