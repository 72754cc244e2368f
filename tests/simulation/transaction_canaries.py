"""Owners that break a promise about transactions on purpose: a world of transactions must find each one.

See canaries.py for what a canary is.
"""
from collections.abc import Callable

from geminga.storage.catalogue import ids
from geminga.storage.cursors.open_transactions import OpenTransactions
from geminga.storage.cursors.transaction_acks import TransactionAcks
from geminga.storage.cursors.withheld import Withheld
from geminga.storage.ledgers.checkpoints import SnapshotFile
from geminga.storage.topics.partition import Partition
from geminga.storage.transactions import participant, pending, publishing, transaction_table
from geminga.storage.transactions.coordinator import Coordinator
from geminga.storage.transactions.participant import Participant
from geminga.storage.transactions.peers import Links
from geminga.storage.transactions.transaction_table import TransactionTable

from .canaries import nothing, patched, sometimes, without

TRANSACTION_CANARIES: dict[str, tuple[Callable, set[str]]] = {}

_WHOLE = "a transaction is whole or nothing"
_LOST = _WHOLE, "everything is delivered in the end", "what is committed is there", "what is due is delivered"
_SHOWN = "nothing that was aborted is delivered", "nothing of an open transaction is delivered", \
    "nothing behind an open transaction is delivered"
_LEFT = "nothing is left of ended transactions", "every request is answered", "space is given back"
_HELD = "what an open transaction acknowledges is held back"
_ITSELF = "what an owner holds agrees with itself"


def canary(*promises: str):
    """Register a canary: the decorated function yields (object, name, replacement)."""
    def add(how):
        TRANSACTION_CANARIES[how.__name__] = lambda: patched(how()), set(promises)
        return how
    return add


# -- the end of a transaction

@canary(*_LOST, "an end may be asked for again")
def a_decision_is_not_synced():
    yield without(Coordinator, "_decide", "self._decisions.answer_needs_sync()")


@canary(*_LOST, *_LEFT)
def a_decision_is_not_repeated():
    def repeat(right, one, transaction, index=None):
        if transaction.state == transaction_table.OPEN:
            right(one, transaction, index)
    yield sometimes(Coordinator, "_repeat", repeat, 1)


@canary(*_LOST, *_SHOWN)
def a_part_of_a_commit_is_aborted():
    def end(right, one, transaction, partition_id, *, commits):
        right(one, transaction, partition_id, commits=not commits)
    yield sometimes(Participant, "end", end, 5)


@canary(*_LOST, "an end may be asked for again")
def ended_transactions_are_forgotten():
    yield TransactionTable, "_has_ended", nothing


@canary(*_LOST, *_LEFT)
def time_limits_are_forgotten():
    yield Coordinator, "expire", nothing


@canary(*_LOST, *_LEFT)
def what_was_added_is_kept():
    yield without(OpenTransactions, "remove", "self.added.pop(")


@canary(*_LEFT)
def answers_to_a_coordinator_are_lost():
    yield sometimes(Links, "send", nothing, 4)
    yield Coordinator, "tick", nothing      # else it asks for them again


@canary("ids are given out once")
def numbers_of_transactions_are_not_durable():
    def take_ahead(right, self, counter, count, *rest):
        return count if counter == "transactions" else right(self, counter, count, *rest)
    yield sometimes(ids.Ids, "_take_ahead", take_ahead, 1)


@canary("nothing is refused without a cause", "every acknowledgement that asks is answered")
def another_owner_is_not_told_again_what_was_added():
    def repeat(right, one, transaction, index=None):
        if transaction.state != transaction_table.OPEN:
            right(one, transaction, index)
    yield sometimes(Coordinator, "_repeat", repeat, 1)


@canary("an open transaction goes on", "nothing is refused without a cause",
        "only messages of ended transactions are dropped", _HELD, *_LOST, *_SHOWN)
def open_transactions_are_not_recovered():
    right = TransactionTable.apply

    def apply(table, ops):
        right(table, ops)
        for known in [known for known in table.by_id.values() if known.state == transaction_table.OPEN]:
            del table.by_id[known.transaction]
    yield TransactionTable, "apply", apply


# -- what is published

@canary(*_SHOWN)
def aborted_entries_are_shown():
    yield participant, "_discard", nothing


@canary(*_SHOWN, _ITSELF)
def the_read_limit_is_ignored():
    yield Partition, "limit", None


@canary(*_SHOWN)
def the_read_limit_is_of_the_last_transaction():
    def find_limit(transactions):
        firsts = [each.first for each in transactions.by_id.values() if each.first is not None]
        transactions.limit = max(firsts, default=None)

    def published(right, transactions, *entries):
        right(transactions, *entries)
        find_limit(transactions)
    yield OpenTransactions, "_find_limit", find_limit
    yield sometimes(OpenTransactions, "published", published, 1)
    yield OpenTransactions, "check", nothing      # else it finds this first


@canary("only what is sent again is a duplicate")
def sequence_ids_of_undone_messages_stay_used():
    yield publishing, "take_back_sequences", nothing


# -- what is acknowledged

@canary(_HELD)
def acknowledgements_are_not_withheld():
    yield Withheld, "left_of", lambda withheld, cursor, ledger, entries: entries
    yield Withheld, "batches", lambda withheld, cursor, ledger, entries: iter([entries])
    yield Withheld, "cut", lambda withheld, ledger, entries, parts: parts


@canary(*_LOST, _HELD, "nothing is delivered that is acknowledged",
        "only what a client acknowledged is acknowledged")
def withheld_entries_are_not_recovered():
    yield TransactionAcks, "apply", nothing


@canary("nothing is delivered that is acknowledged", _WHOLE, _ITSELF)
def acknowledgements_are_lost_at_a_commit():
    yield pending, "_commit", lambda decisions, subscription, withheld, transactions: [
        pending._remove(subscription, withheld, transaction) for transaction in transactions]


@canary(*_LOST)
def an_abort_acknowledges():
    yield pending, "_abort", lambda decisions, subscription, withheld, transaction: pending._commit(
        decisions, subscription, withheld, [transaction])


@canary("what is due is delivered")
def an_abort_gives_nothing_back():
    yield without(pending, "_abort", "dispatcher.released(back)")


# -- the file

@canary(*_LOST, *_SHOWN, _HELD, "an open transaction goes on", "an end may be asked for again",
        "only messages of ended transactions are dropped")
def the_table_of_a_coordinator_is_not_written():
    def put(right, file, number):
        if not isinstance(file, TransactionTable):
            right(file, number)
    yield sometimes(SnapshotFile, "put", put, 1)
