"""Owners that break a promise on purpose: for each of CANARIES some seed must find it.

A canary is what is wrong with the owner, and by which promise that is to show.
"""
import contextlib
import inspect
import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np

from geminga.proto.deliveries import RECEIPT_ROW
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.cursors.entry_counts import EntryCounts
from geminga.storage.cursors.producer_sequences import Sequences
from geminga.storage.delayed.index import DelayedIndex
from geminga.storage.disk import files
from geminga.storage.dispatch import by_priority, failover
from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.dispatch.key_shared import KeyShared
from geminga.storage.ledgers import checkpoints, journal
from geminga.storage.ledgers.journal import Journal
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.open_topics import acknowledge
from geminga.storage.open_topics.decisions import Decisions, Outbox
from geminga.storage.owner.dispatching import Dispatching
from geminga.storage.owner.owner import Owner
from geminga.storage.owner.recovery import Recovery
from geminga.storage.runtime.counters import Counters
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer

CANARIES: dict[str, tuple[Callable, set[str]]] = {}


def canary(*promises: str):
    """Register a canary: the decorated function returns (object, name, replacement) for each value of its arguments."""
    def add(how):
        CANARIES[how.__name__] = lambda: patched(how()), set(promises)
        return how
    return add


@contextlib.contextmanager
def patched(patches: Iterator[tuple]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for where, name, instead in patches:
            if isinstance(where, dict):
                stack.enter_context(mock.patch.dict(where, {name: instead}))
            else:
                stack.enter_context(mock.patch.object(where, name, instead))
        yield


def sometimes(where, name: str, instead: Callable, every: int) -> tuple:
    """Replace every n-th call of a function by `instead`, which is given the original function."""
    right, numbers = getattr(where, name), itertools.count(1)

    def call(*arguments, **more):
        if next(numbers) % every:
            return right(*arguments, **more)
        return instead(right, *arguments, **more)

    return where, name, call


def nothing(*_, **__) -> None:
    pass


def without(where, name: str, line: str) -> tuple:
    """Return the function without its one line that begins with `line`."""
    right = getattr(where, name)
    lines = textwrap.dedent(inspect.getsource(right)).split("\n")
    [at] = [number for number, text in enumerate(lines) if text.strip().startswith(line)]
    lines[at] = lines[at].partition(line)[0] + "pass"
    made: dict[str, Callable] = {}
    exec(compile("\n".join(lines), f"<{name} without {line}>", "exec"), vars(sys.modules[right.__module__]), made)
    return where, name, made[name]


# -- what is stored

@canary("every send is answered")
def a_receipt_is_forgotten():
    yield sometimes(Outbox, "receipts", nothing, 5)


@canary("no position is used twice")
def positions_are_used_twice():
    def receipts(right, outbox, rows):
        rows = (np.frombuffer(rows, RECEIPT_ROW) if isinstance(rows, bytes) else rows).copy()
        rows["entry_id"] -= rows["entry_id"] > 0
        right(outbox, rows)
    yield sometimes(Outbox, "receipts", receipts, 3)


@canary("receipted entries are there", "what was acknowledged stays so, and nothing else is", "messages are counted")
def the_journal_is_not_synced():
    yield Journal, "sync", nothing


@canary("receipted entries are there", "messages are counted")
def entries_are_not_replayed():
    right = Recovery.finish

    def finish(recovery, records, told):
        right(recovery, [], told)
    yield Recovery, "finish", finish


@canary("entries keep their bytes")
def bytes_change():
    def write(right, ledger, pieces, offset):
        right(ledger, [bytes(b"".join(pieces)[:-1]) + b"?"] if offset else pieces, offset)      # not the file's header
    yield sometimes(Ledger, "write", write, 7)


@canary("what is sent again is stored once")
def what_is_sent_again_is_forgotten():
    yield Sequences, "learn", nothing


# -- what is acknowledged

@canary("acknowledgements are exact", "nothing is delivered that is acknowledged", "totals add up",
        "what was acknowledged stays so, and nothing else is")
def an_acknowledgement_is_undone():
    def acknowledge(right, cursor, ledger, entry_ids):
        fresh = right(cursor, ledger, entry_ids)
        for entry_id in fresh[:1].tolist():
            cursor.bitmaps[ledger.ledger_id][entry_id >> 3] &= ~np.uint8(1 << (entry_id & 7))
        return fresh
    yield sometimes(Cursor, "acknowledge", acknowledge, 3)


@canary("what was acknowledged stays so, and nothing else is", "totals add up")
def acknowledgements_are_not_in_the_journal():
    yield Decisions, "note_many", nothing


@canary("every acknowledgement that asks is answered")
def an_acknowledgement_is_not_answered():
    def by_consumer(right, rows):
        found = right(rows)
        for acks in found.values():
            acks.requests = acks.requests[1:]
        return found
    yield sometimes(acknowledge, "few_by_consumer", by_consumer, 3)


@canary("totals add up", "totals are the model's own")
def totals_are_wrong():
    def count(right, decisions, subscription, reason, messages):
        right(decisions, subscription, reason, messages + 1)
    yield sometimes(Decisions, "count", count, 5)


@canary("what is left of a batch is said", "totals add up", "what an owner holds agrees with itself")
def what_is_left_of_a_batch_is_not_said():
    yield Cursor, "parts_of", lambda *_: []


# -- what is delivered

@canary("nothing is delivered twice", "permits are not exceeded")
def a_delivery_comes_twice():
    def deliver(right, *arguments):
        right(*arguments)
        right(*arguments)
    yield sometimes(Dispatching, "_deliver", deliver, 5)
    yield sometimes(Outbox, "run", deliver, 5)


@canary("what is due is delivered")
def a_delivery_is_held_back():
    yield sometimes(Dispatching, "_dispatch", nothing, 5)
    yield sometimes(Dispatching, "_deliver_appended", lambda right, *_: True, 5)


@canary("entries are delivered in order")
def deliveries_come_in_another_order():
    def next_batches(right, *arguments):
        return right(*arguments)[::-1]
    yield sometimes(Exclusive, "next_batches", next_batches, 1)
    yield Exclusive, "takes_appended", nothing


@canary("the highest priority goes first")
def priorities_are_forgotten():
    yield by_priority, "priorities_of", lambda flags, _: np.full(len(flags), 4, np.uint8)


@canary("one consumer is active", "what is due is delivered")
def another_consumer_is_active():
    yield failover.SELECTIONS, "name", lambda candidates, topic, places: max(candidates,
                                                                             key=lambda consumer: consumer.name)


@canary("a key is at one consumer at a time")
def a_key_is_at_two_consumers():
    yield KeyShared, "_find_draining", lambda dispatcher: setattr(dispatcher, "_draining", {})
    yield KeyShared, "check", lambda _: None      # else the dispatcher itself finds it first


@canary("nothing is delivered before its time")
def delays_are_forgotten():
    yield DelayedIndex, "published", lambda *_: None


@canary("redelivery counts are exact")
def redeliveries_are_counted_twice():
    def add(right, *arguments):
        right(*arguments)
        return right(*arguments)
    yield sometimes(EntryCounts, "add", add, 2)


@canary("permits are exact", "permits are not exceeded")
def permits_are_too_many():
    right = Consumer.grant
    yield Consumer, "grant", lambda consumer, permits: right(consumer, permits + 1)


# -- space, numbers, and the end

@canary("space is given back")
def nothing_is_deleted():
    yield Partition, "take_acknowledged_ledgers", lambda *_, **__: []


@canary("nothing unacknowledged is deleted", "what an owner holds agrees with itself")
def too_much_is_deleted():
    def take(right, partition, *_, **__):
        return [partition.ledgers.pop(0) for _ in partition.ledgers[1:]]
    yield sometimes(Partition, "take_acknowledged_ledgers", take, 2)


# a ledger that should be gone comes back without them
@canary("no file is left behind", "receipted entries are there")
def files_are_left_behind():
    yield Ledger, "unlink", nothing


@canary("nothing is replayed after a clean stop")
def segments_are_not_retired():
    yield journal, "retire", nothing


_KEPT = "receipted entries are there", "what was acknowledged stays so, and nothing else is", "messages are counted"


@canary(*_KEPT, "nothing but the disk's own failures ends an owner")
def files_are_not_synced_at_a_checkpoint():
    yield without(journal, "write_checkpoint", "sync(path, os.fdatasync)")


@canary(*_KEPT, "nothing but the disk's own failures ends an owner", "a crash damages nothing")
def folders_are_not_synced_at_a_checkpoint():
    for module in (checkpoints, journal):
        yield module, "sync", lambda path, how: None if how is os.fsync else files.sync(path, how)


@canary(*_KEPT)
def states_are_not_written_at_a_checkpoint():
    yield without(journal, "write_checkpoint", "snapshot.write()")


@canary("nothing is replayed after a clean stop")
def segments_are_not_retired_at_a_checkpoint():
    yield without(Journal, "_write_and_retire", "retire(segment)")


@canary(*_KEPT)
def nothing_is_put_in_place_at_a_stop():
    yield without(Journal, "close", "write_checkpoint(")


@canary("nothing is replayed after a clean stop")
def segments_are_not_retired_at_a_stop():
    yield without(Journal, "close", "retire(segment, self._number + 1)")


@canary("nothing is replayed after a clean stop")
def what_a_stop_has_retired_is_not_synced():
    yield without(Journal, "close", "os.fdatasync(segment.fd)")


@canary("a failed sync ends the owner")
def a_failed_sync_is_not_noticed():
    def sync(self):
        with contextlib.suppress(OSError):
            journal.os.fdatasync(self._segment.fd)
        self._synced = self._number
    yield Journal, "sync", sync


@canary("counters are not below zero", "counters are right")
def a_counter_is_wrong():
    right = Counters.add
    yield Counters, "add", lambda counters, name, count=1: right(counters, name, count if count > 0 else 2 * count)


@canary("nothing but the disk's own failures ends an owner")
def an_owner_falls_over():
    def tick(right, owner):
        raise ValueError("what nobody expected")
    yield sometimes(Owner, "_tick", tick, 3)
